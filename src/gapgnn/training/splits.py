"""The split of every repeat."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import Graph, repeat_roles
from gapgnn.nn.fast import best_class
from gapgnn.rng import experiment_seed


@dataclass(frozen=True)
class Splits:
    """Masks of all repeats, each of shape (repeats, nodes)."""

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    test: NDArray[np.bool_]

    def test_accuracies(self, scores: Tensor, labels: NDArray[np.int64]) -> list[float]:
        """Return each repeat's accuracy on its own test nodes, for class scores (R, nodes, C)."""
        device = scores.device
        # Counted where the scores are: only the counts travel.
        right = best_class(scores) == torch.tensor(labels, device=device)
        hits = (right & torch.from_numpy(self.test).to(device)).sum(dim=1).tolist()
        return [hit / max(1, int(mask.sum())) for hit, mask in zip(hits, self.test, strict=True)]

    def train_positions(self, device: torch.device) -> list[Tensor]:
        """Return the positions of each repeat's training nodes."""
        return [torch.from_numpy(np.flatnonzero(mask)).to(device) for mask in self.train]


def repeat_splits(graph: Graph, *, level: str, repeats: int, split: str, seed: int) -> Splits:
    """Return the graph's own split for the first repeat, and for the others that one or fresh ones.

    ``fresh`` draws from all nodes the own split uses, so a repeat varies the split as well as the
    initial weights. At node level a role is a hash of (seed, repeat, id), and the shares are those
    of the own split in whole percent, which are public: nobody else's role changes when somebody
    leaves (privacy page, section 2). Elsewhere every repeat has exactly as many training and
    validation nodes as the own split.
    """
    own = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    masks = np.zeros((3, repeats, graph.num_nodes), dtype=np.bool_)
    masks[:, 0] = own
    used: NDArray[np.bool_] = graph.train_mask | graph.val_mask | graph.test_mask
    positions = np.flatnonzero(used)
    ends = np.cumsum(own.sum(axis=1))[:2]
    shares = [round(share, 2) for share in own.sum(axis=1) / max(1, len(positions))]

    def shuffle(repeat: int) -> None:
        rng = np.random.default_rng(experiment_seed(seed, "split", repeat))
        for mask, part in zip(masks, np.split(rng.permutation(positions), ends), strict=True):
            mask[repeat, part] = True

    def hash_four(first: int) -> None:
        four = range(first, min(first + 4, repeats))
        found = repeat_roles(graph.ids, seed=seed, train=shares[0], val=shares[1], repeats=four)
        for role, mask in enumerate(masks):
            mask[four.start : four.stop] = (found == role) & used

    if split == "fixed":
        masks[:, 1:] = own[:, None]
        return Splits(*masks)
    # NumPy shuffles and computes without the interpreter's lock.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        if level == "node":
            list(pool.map(hash_four, range(1, repeats, 4)))
        else:
            list(pool.map(shuffle, range(1, repeats)))
    return Splits(*masks)
