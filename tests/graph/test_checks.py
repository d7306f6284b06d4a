"""A graph that cannot be trained on is named as such."""

from __future__ import annotations

import numpy as np
import pytest

from gapgnn.errors import DataError
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import check_trainable


class TestTrainable:
    def graph(self, labels: list[int], train: list[int], test: list[int]) -> Graph:
        count = len(labels)
        masks = {
            key: np.isin(np.arange(count), chosen)
            for key, chosen in (("train_mask", train), ("test_mask", test))
        }
        return Graph.from_arcs(
            [0], [1], num_nodes=count, features=np.eye(count), labels=labels, **masks
        )

    def test_a_usable_split_passes(self) -> None:
        check_trainable(self.graph([0, 1, 0], [0, 1], [2]))

    @pytest.mark.parametrize(
        ("labels", "train", "test", "message"),
        [
            ([0, 0, -1], [0], [1], "at least two classes. Got 1"),
            ([0, 1, 0], [0], [2], r"none for class 1 \(1 nodes in all\)"),
            ([0, 1, 0], [0, 1], [], "must leave a test node"),
        ],
    )
    def test_what_is_missing_is_named(self, labels, train, test, message: str) -> None:
        with pytest.raises(DataError, match=message):
            check_trainable(self.graph(labels, train, test))
