"""Permutation importance: what features and what neighbours contribute to predictions.

A figure is how much a metric on the test nodes falls when what is read is exchanged among these
nodes (Breiman 2001): a column of their own features, or their rows of a released hop. Messages stay
as they were released, so nothing is read of the edges again and nothing is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph
from gapgnn.methods.decisions import decide, positive_class, probabilities
from gapgnn.methods.releases import ReleasedHops
from gapgnn.rng import experiment_rng
from gapgnn.training import measure

if TYPE_CHECKING:
    from gapgnn.methods.estimator import NodeClassifier

FEATURES, NEIGHBOURS = "features", "neighbours"


@dataclass(frozen=True)
class Importance:
    """How much a metric falls without one input.

    Attributes:
        name: ``features`` (all of a node's own), ``neighbours`` (all hops), ``hop 1``, ..., or a
            column of the features; one-hot columns of one category count as one.
        mean: fall of the metric, the mean over the permutations.
        std: standard deviation over the permutations.
    """

    name: str
    mean: float
    std: float


def column_groups(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the columns of each feature: those of one category are named ``category=value``.

    >>> column_groups(["age", "ward=1", "ward=2", "age missing"])
    {'age': [0], 'ward': [1, 2], 'age missing': [3]}
    """
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name.partition("=")[0], []).append(place)
    return groups


def permuted_columns(features: Any, columns: Sequence[int] | None, order: NDArray[np.int64]) -> Any:
    """Return features with the rows of some columns in another order; None: of all columns.

    >>> permuted_columns(np.array([[1, 2], [3, 4]]), [1], np.array([1, 0])).tolist()
    [[1, 4], [3, 2]]
    """
    if columns is None:
        return features[order]
    if not sp.issparse(features):
        found = features.copy()
        found[:, list(columns)] = features[order][:, list(columns)]
        return found
    chosen = np.zeros(features.shape[1], dtype=features.dtype)
    chosen[list(columns)] = 1
    return (features @ sp.diags(1 - chosen) + features[order] @ sp.diags(chosen)).tocsr()


def permutation_importance(
    model: NodeClassifier[Any],
    graph: Graph,
    *,
    released: ReleasedHops | None,
    score: Callable[[Graph, ReleasedHops | None], Tensor],
    metric: str,
    repeats: int,
    seed: int,
    columns: Mapping[str, Sequence[int]],
) -> list[Importance]:
    """Return the importance of every input of a fitted model, the largest first.

    Args:
        model: whose decisions are measured.
        graph: with a test mask.
        released: the rows that predictions read; None: the method reads features alone.
        score: class scores from the features of a graph and released rows.
        metric: of the test nodes.
        repeats: number of permutations of each input.
        seed: of the permutations.
        columns: groups of feature columns that are permuted together.
    """
    check_integer("repeats", repeats, at_least=1)
    mask = graph.test_mask & (graph.labels >= 0)
    nodes = np.flatnonzero(mask)
    if not len(nodes):
        raise InputError(
            "`graph` must have labelled test nodes to measure importance on. Got none; use "
            "`random_split`."
        )
    positive = positive_class(model, graph)

    def figure(given: Graph, rows: ReleasedHops | None) -> float:
        with torch.no_grad():
            found = probabilities(score(given, rows), mask)
        answers = decide(found, model.threshold_)
        return measure(found, answers, graph.labels[mask], graph.label_names, positive).get(metric)

    def without(name: str, order: NDArray[np.int64]) -> float:
        if name in hops:
            assert released is not None
            return figure(graph, _with_permuted(released, hops[name], order))
        chosen = None if name == FEATURES else columns[name]
        return figure(
            graph._replace(features=permuted_columns(graph.features, chosen, order)), released
        )

    hops = dict(_hops(released))
    rng, whole = experiment_rng(seed, "importance"), figure(graph, released)
    found = []
    for name in (FEATURES, *hops, *columns):
        falls = []
        for _ in range(repeats):
            order = np.arange(graph.num_nodes)
            order[nodes] = rng.permutation(nodes)
            falls.append(whole - without(name, order))
        found.append(Importance(name, float(np.mean(falls)), float(np.std(falls))))
    return sorted(found, key=lambda one: -one.mean)


def _hops(released: ReleasedHops | None) -> Iterator[tuple[str, list[int]]]:
    """Yield the released hops by name, without hop 0, which is of a node's own features."""
    if released is None:
        return
    places = list(range(int(released.has_hop_zero), len(released.hops)))
    if places:
        yield NEIGHBOURS, places
    if len(places) > 1:
        yield from ((f"hop {hop}", [place]) for hop, place in enumerate(places, start=1))


def _with_permuted(
    released: ReleasedHops, places: Sequence[int], order: NDArray[np.int64]
) -> ReleasedHops:
    rows = torch.from_numpy(order)
    hops = (hop[rows] if k in places else hop for k, hop in enumerate(released.hops))
    return replace(released, hops=tuple(hops))
