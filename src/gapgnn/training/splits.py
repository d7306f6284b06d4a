"""The split of every repeat."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.graph import Graph, repeat_roles, roles
from gapgnn.nn import best_class
from gapgnn.rng import experiment_seed

# Default shares of `random_split`.
TRAIN_SHARE, VAL_SHARE = 0.75, 0.10


@dataclass(frozen=True)
class Splits:
    """Masks of all repeats, each of shape (repeats, nodes)."""

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    test: NDArray[np.bool_]

    def test_accuracies(self, scores: Tensor, labels: NDArray[np.int64]) -> list[float]:
        """Return each repeat's accuracy on its own test nodes, for class scores (R, nodes, C)."""
        device = scores.device
        # Counted on the device of the scores, so that only the counts are copied.
        right = best_class(scores) == torch.tensor(labels, device=device)
        hits = (right & torch.from_numpy(self.test).to(device)).sum(dim=1).tolist()
        return [hit / max(1, int(mask.sum())) for hit, mask in zip(hits, self.test, strict=True)]

    def train_positions(self, device: torch.device) -> list[Tensor]:
        """Return the positions of each repeat's training nodes."""
        return [torch.from_numpy(np.flatnonzero(mask)).to(device) for mask in self.train]


def repeat_splits(graph: Graph, *, level: str, repeats: int, split: str, seed: int) -> Splits:
    """Return the graph's split for the first repeat, and that one or fresh splits for the others.

    ``fresh`` draws from all nodes that the graph's split uses, so repeats differ in the split and
    in the initial weights. At node level a role is a hash of (seed, repeat, id), and the shares are
    public (privacy page, section 2), so removing one record changes no other role. At other levels
    every repeat has exactly as many training and validation nodes as the graph's split.
    """
    own = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    masks = np.zeros((3, repeats, graph.num_nodes), dtype=np.bool_)
    masks[:, 0] = own
    used: NDArray[np.bool_] = graph.train_mask | graph.val_mask | graph.test_mask
    positions = np.flatnonzero(used)
    ends = np.cumsum(own.sum(axis=1))[:2]
    shares = _shares(graph)

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


def is_hash_split(graph: Graph, *, seed: int) -> bool:
    """Return whether roles are the standard split of a seed, a public hash of (seed, id).

    It depends on how the roles were made, not on their values: one given role that differs from the
    hash must not change the treatment of all records.

    >>> import numpy as np
    >>> from gapgnn.graph import random_split
    >>> graph = Graph.from_arcs([], [], num_nodes=50, features=np.eye(50), labels=[0, 1] * 25)
    >>> split = random_split(graph, seed=3)
    >>> given = graph.with_masks(split.train_mask, split.val_mask, split.test_mask)
    >>> is_hash_split(split, seed=3), is_hash_split(split, seed=4), is_hash_split(given, seed=3)
    (True, False, False)
    """
    return graph.split_options == (seed, TRAIN_SHARE, VAL_SHARE)


def public_training(graph: Graph, *, repeats: int, split: str, seed: int) -> NDArray[np.bool_]:
    """Return the training nodes by the public hash of (seed, id), for rows with or without records.

    The same as :func:`gapgnn.graph.random_split` and :func:`repeat_splits` at node level, but for
    every row, shape (repeats, nodes). It needs only the ids, which are known without a record.

    >>> import numpy as np
    >>> from gapgnn.graph import random_split
    >>> graph = Graph.from_arcs([], [], num_nodes=50, features=np.eye(50), labels=[0, 1] * 25)
    >>> graph = random_split(graph, seed=3)
    >>> found = public_training(graph, repeats=2, split="fresh", seed=3)
    >>> splits = repeat_splits(graph, level="node", repeats=2, split="fresh", seed=3)
    >>> bool((found == splits.train).all())
    True
    """
    own = roles(graph.ids, seed=seed, train=TRAIN_SHARE, val=VAL_SHARE) == 0
    found = np.repeat(own[None], repeats, axis=0)
    if split == "fresh":
        train, val = _shares(graph)
        for first in range(1, repeats, 4):
            four = range(first, min(first + 4, repeats))
            hashed = repeat_roles(graph.ids, seed=seed, train=train, val=val, repeats=four)
            found[four.start : four.stop] = hashed == 0
    return found


def _shares(graph: Graph) -> list[float]:
    """Return the shares of a hash split, or those of given roles in whole percent: both public."""
    if graph.split_options is not None:
        _, train, val = graph.split_options
        return [train, val]
    own = np.stack([graph.train_mask, graph.val_mask, graph.test_mask]).sum(axis=1)
    return [round(share, 2) for share in own[:2] / max(1, int(own.sum()))]
