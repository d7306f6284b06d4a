"""The split of every repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph.graph import Graph
from gapgnn.rng import experiment_seed


@dataclass(frozen=True)
class Splits:
    """Masks of all repeats, each of shape (repeats, nodes)."""

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    test: NDArray[np.bool_]

    def test_accuracies(self, scores: Tensor, labels: NDArray[np.int64]) -> list[float]:
        """Return each repeat's accuracy on its own test nodes, for class scores (R, nodes, C)."""
        right = scores.argmax(dim=-1).cpu().numpy() == labels
        return [float(hit[mask].mean()) for hit, mask in zip(right, self.test, strict=True)]

    def train_positions(self, device: torch.device) -> Tensor:
        """Return the positions of each repeat's training nodes, (repeats, training nodes)."""
        return torch.from_numpy(np.stack([np.flatnonzero(mask) for mask in self.train])).to(device)


def repeat_splits(graph: Graph, *, repeats: int, split: str, seed: int) -> Splits:
    """Return the graph's own split for the first repeat, and for the others that one or fresh ones.

    ``fresh`` draws as many training and validation nodes as the graph's own split has, at random
    from all nodes the own split uses, so a repeat varies the split as well as the initial weights.
    """
    masks = [(graph.train_mask, graph.val_mask, graph.test_mask)]
    used = graph.train_mask | graph.val_mask | graph.test_mask
    positions = np.flatnonzero(used)
    num_train, num_val = int(graph.train_mask.sum()), int(graph.val_mask.sum())
    for repeat in range(1, repeats):
        if split == "fixed":
            masks.append(masks[0])
            continue
        rng = np.random.default_rng(experiment_seed(seed, "split", repeat))
        shuffled = rng.permutation(positions)
        parts = np.split(shuffled, [num_train, num_train + num_val])
        drawn = []
        for part in parts:
            mask = np.zeros(graph.num_nodes, dtype=bool)
            mask[part] = True
            drawn.append(mask)
        masks.append((drawn[0], drawn[1], drawn[2]))
    train, val, test = (np.stack(kind) for kind in zip(*masks, strict=True))
    return Splits(train, val, test)
