"""Cross-fitting: feature models whose scores of a training node do not depend on its label.

Nodes are assigned to folds by a public hash of (seed, id). For each fold there is a network that
trains on all training nodes outside it. Training nodes are scored out of fold, all other nodes by
the ensemble. A classifier trained on these scores therefore sees the same distribution at training
nodes as at others.

The log-probabilities of each network are averaged with those of a shallow one. If training nodes
are few, the mean of both is averaged with a linear network in closed form
(:class:`gapgnn.nn.LinearBySize`).

If a class is rare, a regression with a weight penalty (:class:`gapgnn.nn.ShrunkRegression`) may
replace them or be averaged with them: the log loss of the validation nodes decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph, folds_of
from gapgnn.nn import LinearBySize, ReplicaMLP, ShrunkRegression, mixed, scores_of
from gapgnn.rng import experiment_seed
from gapgnn.training.inputs import FeatureInputs
from gapgnn.training.recipe import FEW, Recipe
from gapgnn.training.splits import Splits
from gapgnn.training.trainer import Trainer

FOLDS = 4


class FeatureNetworks(NamedTuple):
    """Dropout and number of steps of feature models."""

    dropout: float
    steps: int

    @classmethod
    def suited(cls, num_train: int, num_features: int) -> FeatureNetworks:
        """Return the values for a number of training nodes and features.

        Chosen on development graphs: dropout is high if training nodes are few for their features.

        >>> FeatureNetworks.suited(2000, 1433).dropout, FeatureNetworks.suited(10000, 767).dropout
        (0.7, 0.4)
        """
        return cls(0.7, 60) if num_train < 4 * num_features else cls(0.4, 80)


# Width of the hidden layers of feature models, and their default weight decay.
FEATURE_WIDTH, FEATURE_DECAY = 64, 5e-4
# Nodes scored at a time by trained networks.
AT_ONCE = 1 << 15
# A class is rare below this fraction of 1 / C. Penalty of the regression that is tried then, and
# its candidate shares in the log-probabilities (docs/explanation/research-notes.md).
RARE_BELOW, PENALTY, REGRESSION_SHARES = 0.25, 10.0, (0.5, 1.0)


class FeatureModels(NamedTuple):
    """The feature models of all repeats and folds.

    Attributes:
        networks: give scores (repeats times folds, nodes, classes) for rows of features.
        shallow: shallow networks.
        linear: linear networks, without effect until they are solved.
        shrunk: regressions, likewise.
    """

    networks: Callable[[Any], Tensor]
    shallow: Callable[[Any], Tensor]
    linear: LinearBySize
    shrunk: ShrunkRegression

    @classmethod
    def of(cls, modules: Mapping[str, nn.Module], name: str) -> FeatureModels:
        """Return the feature models among a model's networks; the main one is called ``name``."""
        linear, shrunk = modules["linear"], modules["shrunk"]
        assert isinstance(linear, LinearBySize)
        assert isinstance(shrunk, ShrunkRegression)
        return cls(modules[name], modules["shallow"], linear, shrunk)

    def scores(self, rows: Any) -> Tensor:
        """Return the combined scores of each fold, (repeats times folds, nodes, classes)."""
        networks, shallow = self.networks(rows), self.shallow(rows)
        scores = (torch.log_softmax(networks, dim=-1) + torch.log_softmax(shallow, dim=-1)) / 2
        return self.shrunk.beside(self.linear.beside(scores, rows), rows)


def shallow_networks(
    replicas: int,
    num_features: int,
    num_classes: int,
    *,
    hidden: int,
    batch_norm: bool,
    dropout: float,
) -> ReplicaMLP:
    """Return networks of one hidden layer, as further ensemble members.

    >>> len(shallow_networks(2, 9, 3, hidden=8, batch_norm=True, dropout=0.4).layers)
    2
    """
    sizes = [num_features, hidden, num_classes]
    return ReplicaMLP(replicas, sizes, activation="relu", batch_norm=batch_norm, dropout=dropout)


def resolve_folds(folds: int | str, *, can_cross_fit: bool) -> int:
    """Return the number of folds, 0 for none.

    >>> resolve_folds("auto", can_cross_fit=True), resolve_folds(0, can_cross_fit=True)
    (4, 0)
    """
    if folds == "auto":
        return FOLDS if can_cross_fit else 0
    number = check_integer("folds", folds, at_least=0, at_most=100)
    if number == 1:
        raise InputError("`folds` must be 0 or at least 2: each network leaves one out. Got 1.")
    if number and not can_cross_fit:
        raise InputError(
            "`folds` must be 0 or auto at level node, without label messages or without an "
            f"encoder. Got {number}."
        )
    return number


@dataclass(frozen=True)
class CrossFit:
    """The assignment of nodes to folds.

    Attributes:
        fold: of every node.
        folds: number of folds.
    """

    fold: NDArray[np.int64]
    folds: int = FOLDS

    @classmethod
    def of(cls, graph: Graph, *, seed: int, folds: int = FOLDS) -> CrossFit:
        """Assign the nodes of a graph to folds.

        Evaluation folds use another hash, and are independent of these.
        """
        seed = experiment_seed(seed, "cross-fitting") % 2**31
        return cls(folds_of(graph.ids, seed=seed, folds=folds), folds)

    def splits(self, splits: Splits) -> Splits:
        """Return the split of each network: those of the first repeat first, by fold.

        >>> train = np.array([[True, True, False]])
        >>> splits = CrossFit(np.array([0, 1, 1]), 2).splits(Splits(train, ~train, ~train))
        >>> splits.train.tolist()
        [[False, True, False], [True, False, False]]
        """
        repeats = len(splits.train)
        left_out = np.tile(np.arange(self.folds), repeats)[:, None] == self.fold
        train, val, test = (
            np.repeat(mask, self.folds, axis=0) for mask in (splits.train, splits.val, splits.test)
        )
        return Splits(train & ~left_out, val, test)

    def trainer(self, trainer: Trainer, recipe: Recipe) -> Trainer:
        """Return the trainer of the feature models; each omits the training nodes of its fold.

        Args:
            trainer: of the repeats.
            recipe: of the feature models.
        """
        return replace(trainer, splits=self.splits(trainer.splits), recipe=recipe)

    def solve(self, models: FeatureModels, trainer: Trainer, features: FeatureInputs) -> None:
        """Solve the feature models with a closed form or a convex loss.

        One linear network per fold if training nodes are few, and one regression per fold if a
        class is rare.

        Args:
            models: of all repeats and folds.
            trainer: of the repeats.
            features: of every node.
        """
        splits = self.splits(trainer.splits)
        training = [
            torch.from_numpy(np.flatnonzero(mask)).to(trainer.labels.device)
            for mask in splits.train
        ]
        if int(trainer.splits.train[0].sum()) <= FEW:
            for replica, nodes in enumerate(training):
                labels, weights = trainer.labels[nodes], torch.ones(len(nodes), device=nodes.device)
                models.linear.solve(replica, features.taken(nodes), labels, weights)
        if has_rare_class(trainer):
            self._shrink(models, training, trainer, features)

    @torch.no_grad()
    def _shrink(
        self,
        models: FeatureModels,
        training: Sequence[Tensor],
        trainer: Trainer,
        features: FeatureInputs,
    ) -> None:
        """Solve regressions, and keep them in repeats where they reduce the validation loss.

        Validation labels are public at every level with cross-fitting. Training nodes are not
        validation nodes, so the scores of a training node still do not depend on its own label
        (privacy page, section 10).
        """
        with torch.enable_grad():
            parts = [
                models.shrunk.solved(features.taken(nodes), trainer.labels[nodes], penalty=PENALTY)
                for nodes in training
            ]
        solved = torch.stack(parts)
        shares = solved.new_zeros(len(solved))
        for repeat, mask in enumerate(trainer.splits.val):
            nodes = torch.from_numpy(np.flatnonzero(mask)).to(trainer.labels.device)
            if not len(nodes):
                continue
            rows, labels = features.taken(nodes), trainer.labels[nodes]
            own = slice(repeat * self.folds, (repeat + 1) * self.folds)
            scores = models.scores(rows)[own]
            others = torch.stack([scores_of(rows, one) for one in solved[own]])
            losses = {
                share: validation_loss(mixed(scores, others, share), labels)
                for share in (0.0, *REGRESSION_SHARES)
            }
            shares[own] = min(losses, key=lambda share: losses[share])
        if bool(shares.any()):
            models.shrunk.keep(solved, shares)

    def out_of_fold(self, scores: Tensor, training: Tensor, nodes: NDArray[np.int64]) -> Tensor:
        """Return log-probabilities of some nodes, (repeats, nodes, classes).

        Args:
            scores: of all networks, (repeats times folds, nodes, classes).
            training: mask of the training nodes, (repeats, nodes): each is scored by the network of
                its fold, which did not train on it.
            nodes: their positions.
        """
        logs = torch.log_softmax(scores, dim=-1).view(-1, self.folds, *scores.shape[1:])
        fold = torch.from_numpy(self.fold[nodes]).to(scores.device)
        held_out = logs[:, fold, torch.arange(len(nodes), device=scores.device)]
        ensemble = torch.log_softmax(logs.mean(dim=1), dim=-1)
        return torch.where(training.unsqueeze(-1), held_out, ensemble)

    @torch.no_grad()
    def log_probabilities(
        self, models: FeatureModels, features: FeatureInputs, training: Tensor
    ) -> Tensor:
        """Return log-probabilities of every node, (repeats, nodes, classes).

        Args:
            models: the trained networks.
            features: of every node.
            training: mask of the training nodes of each repeat.
        """
        parts = []
        for start in range(0, len(self.fold), AT_ONCE):
            nodes = np.arange(start, min(start + AT_ONCE, len(self.fold)))
            places = torch.from_numpy(nodes).to(features.device)
            whole = features.all() if len(nodes) == len(self.fold) else features.taken(places)
            parts.append(self.out_of_fold(models.scores(whole), training[:, nodes], nodes))
        return torch.cat(parts, dim=1)


def has_rare_class(trainer: Trainer) -> bool:
    """Return whether a class has less than a quarter of 1 / C of the training nodes.

    It follows from training labels, which are public at every level with cross-fitting.
    """
    train = torch.from_numpy(trainer.splits.train[0]).to(trainer.labels.device)
    counts = torch.bincount(trainer.labels[train])
    return float(counts.min()) < RARE_BELOW * float(counts.sum()) / len(counts)


def validation_loss(scores: Tensor, labels: Tensor) -> float:
    """Return the log loss of the mean log-probabilities of all folds, (folds, nodes, classes)."""
    logs = torch.log_softmax(torch.log_softmax(scores, dim=-1).mean(dim=0), dim=-1)
    return -float(logs.gather(-1, labels.unsqueeze(-1)).double().mean())
