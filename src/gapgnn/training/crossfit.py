"""Cross-fitting: feature models that never score a node whose label they have learned from.

Nodes are dealt to folds by a public hash of (seed, id), and there is a network for each fold that
trains on all training nodes but those. Training nodes are scored out of fold, all other nodes by
the ensemble. A classifier that is trained on these scores then meets training nodes as it will meet
the others: their own labels do not echo.

Beside each network stands a shallow one, and their log-probabilities are averaged. Where training
nodes are few, a linear network that is solved stands beside them as well
(:class:`gapgnn.nn.LinearBySize`), at the same weight as both.

Where a class is rare, a regression with small weights (:class:`gapgnn.nn.ShrunkRegression`) may
stand in their place or beside them: the log loss of the validation nodes decides.
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
    """Dropout and steps of networks that read features."""

    dropout: float
    steps: int

    @classmethod
    def suited(cls, num_train: int, num_features: int) -> FeatureNetworks:
        """Return what suits so many training nodes and features; chosen on development graphs.

        Where features are many and training nodes few, most of a layer is blanked.

        >>> FeatureNetworks.suited(2000, 1433).dropout, FeatureNetworks.suited(10000, 767).dropout
        (0.7, 0.4)
        """
        return cls(0.7, 60) if num_train < 4 * num_features else cls(0.4, 80)


# Width of their hidden layers, and their weight decay unless another is chosen.
FEATURE_WIDTH, FEATURE_DECAY = 64, 5e-4
# Nodes that finished networks read at a time.
AT_ONCE = 1 << 15
# A class is rare below this share of an even one. Penalty of the regression that is tried then, and
# its shares in what is said (docs/research-notes.md).
RARE_BELOW, PENALTY, REGRESSION_SHARES = 0.25, 10.0, (0.5, 1.0)


class FeatureModels(NamedTuple):
    """All networks that read features, of all repeats and folds.

    Attributes:
        networks: give scores (repeats times folds, nodes, classes) for rows of features.
        shallow: others; None in models that were saved without them.
        linear: linear ones, which say nothing until they are solved.
        shrunk: regressions, likewise; None in models that were saved without them.
    """

    networks: Callable[[Any], Tensor]
    shallow: nn.Module | None
    linear: LinearBySize
    shrunk: ShrunkRegression | None = None

    @classmethod
    def of(cls, modules: Mapping[str, nn.Module], name: str) -> FeatureModels:
        """Return a model's networks; the first of them is called ``name``."""
        linear, shrunk = modules["linear"], modules.get("shrunk")
        assert isinstance(linear, LinearBySize)
        assert shrunk is None or isinstance(shrunk, ShrunkRegression)
        return cls(modules[name], modules.get("shallow"), linear, shrunk)

    def scores(self, rows: Any) -> Tensor:
        """Return what they say together, each network of a fold with those beside it."""
        scores = self.networks(rows)
        if self.shallow is not None:
            others = torch.log_softmax(self.shallow(rows), dim=-1)
            scores = (torch.log_softmax(scores, dim=-1) + others) / 2
        scores = self.linear.beside(scores, rows)
        return scores if self.shrunk is None else self.shrunk.beside(scores, rows)


def shallow_networks(
    replicas: int,
    num_features: int,
    num_classes: int,
    *,
    hidden: int,
    batch_norm: bool,
    dropout: float,
) -> ReplicaMLP:
    """Return networks of one hidden layer, to stand beside others.

    >>> len(shallow_networks(2, 9, 3, hidden=8, batch_norm=True, dropout=0.4).layers)
    2
    """
    sizes = [num_features, hidden, num_classes]
    return ReplicaMLP(replicas, sizes, activation="relu", batch_norm=batch_norm, dropout=dropout)


def resolve_folds(folds: int | str, *, can_cross_fit: bool) -> int:
    """Return how many networks are cross-fitted, 0 for none.

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
    """Who learns from whom.

    Attributes:
        fold: of every node.
        folds: how many there are.
    """

    fold: NDArray[np.int64]
    folds: int = FOLDS

    @classmethod
    def of(cls, graph: Graph, *, seed: int, folds: int = FOLDS) -> CrossFit:
        """Deal the nodes of a graph.

        Folds of people for an evaluation are dealt by another hash, and tell nothing about these.
        """
        seed = experiment_seed(seed, "cross-fitting") % 2**31
        return cls(folds_of(graph.ids, seed=seed, folds=folds), folds)

    def splits(self, splits: Splits) -> Splits:
        """Return whom each network trains on: those of the first repeat first, fold by fold.

        >>> train = np.array([[True, True, False]])
        >>> found = CrossFit(np.array([0, 1, 1]), 2).splits(Splits(train, ~train, ~train))
        >>> found.train.tolist()
        [[False, True, False], [True, False, False]]
        """
        repeats = len(splits.train)
        left_out = np.tile(np.arange(self.folds), repeats)[:, None] == self.fold
        train, val, test = (
            np.repeat(mask, self.folds, axis=0) for mask in (splits.train, splits.val, splits.test)
        )
        return Splits(train & ~left_out, val, test)

    def trainer(self, trainer: Trainer, recipe: Recipe) -> Trainer:
        """Return the trainer of the feature models: each leaves its fold of the training nodes out.

        Args:
            trainer: of the repeats.
            recipe: of the feature models.
        """
        return replace(trainer, splits=self.splits(trainer.splits), recipe=recipe)

    def solve(self, models: FeatureModels, trainer: Trainer, features: FeatureInputs) -> None:
        """Solve what is not trained, beside networks that are.

        A linear network for each one that is trained, where training nodes are few; a regression
        for each one, where a class is rare.

        Args:
            models: of all repeats and folds.
            trainer: of the repeats.
            features: of every node.
        """
        splits = self.splits(trainer.splits)
        learning = [
            torch.from_numpy(np.flatnonzero(learns)).to(trainer.labels.device)
            for learns in splits.train
        ]
        if int(trainer.splits.train[0].sum()) <= FEW:
            for replica, nodes in enumerate(learning):
                labels, worth = trainer.labels[nodes], torch.ones(len(nodes), device=nodes.device)
                models.linear.solve(replica, features.taken(nodes), labels, worth)
        if models.shrunk is not None and has_rare_class(trainer):
            self._shrink(models, models.shrunk, learning, trainer, features)

    @torch.no_grad()
    def _shrink(
        self,
        models: FeatureModels,
        shrunk: ShrunkRegression,
        learning: Sequence[Tensor],
        trainer: Trainer,
        features: FeatureInputs,
    ) -> None:
        """Solve regressions, and keep them where they make the validation nodes more likely.

        Validation labels are public wherever networks cross-fit, and no training node has one: what
        is said about a training node does not follow from its own label (privacy page, section 10).
        """
        with torch.enable_grad():
            parts = [
                shrunk.solved(features.taken(nodes), trainer.labels[nodes], penalty=PENALTY)
                for nodes in learning
            ]
        found = torch.stack(parts)
        shares = found.new_zeros(len(found))
        for repeat, mask in enumerate(trainer.splits.val):
            nodes = torch.from_numpy(np.flatnonzero(mask)).to(trainer.labels.device)
            if not len(nodes):
                continue
            rows, labels = features.taken(nodes), trainer.labels[nodes]
            own = slice(repeat * self.folds, (repeat + 1) * self.folds)
            scores = models.scores(rows)[own]
            said = torch.stack([scores_of(rows, one) for one in found[own]])
            losses = {
                share: validation_loss(mixed(scores, said, share), labels)
                for share in (0.0, *REGRESSION_SHARES)
            }
            shares[own] = min(losses, key=lambda share: losses[share])
        if bool(shares.any()):
            shrunk.keep(found, shares)

    def out_of_fold(self, scores: Tensor, training: Tensor, nodes: NDArray[np.int64]) -> Tensor:
        """Return log-probabilities of some nodes, (repeats, nodes, classes).

        Args:
            scores: of all networks, (repeats times folds, nodes, classes).
            training: which of these nodes train, (repeats, nodes): they are told by the network
                that has not seen them.
            nodes: who they are.
        """
        said = torch.log_softmax(scores, dim=-1).view(-1, self.folds, *scores.shape[1:])
        fold = torch.from_numpy(self.fold[nodes]).to(scores.device)
        alone = said[:, fold, torch.arange(len(nodes), device=scores.device)]
        together = torch.log_softmax(said.mean(dim=1), dim=-1)
        return torch.where(training.unsqueeze(-1), alone, together)

    @torch.no_grad()
    def log_probabilities(
        self, models: FeatureModels, features: FeatureInputs, training: Tensor
    ) -> Tensor:
        """Return what finished networks say about every node, (repeats, nodes, classes).

        Args:
            models: the networks.
            features: of every node.
            training: who trains in each repeat.
        """
        parts = []
        for start in range(0, len(self.fold), AT_ONCE):
            nodes = np.arange(start, min(start + AT_ONCE, len(self.fold)))
            places = torch.from_numpy(nodes).to(features.device)
            whole = features.all() if len(nodes) == len(self.fold) else features.taken(places)
            parts.append(self.out_of_fold(models.scores(whole), training[:, nodes], nodes))
        return torch.cat(parts, dim=1)


def has_rare_class(trainer: Trainer) -> bool:
    """Tell whether a class has less than a quarter of an even share of the training nodes.

    Training labels decide it, which are public wherever networks cross-fit.
    """
    train = torch.from_numpy(trainer.splits.train[0]).to(trainer.labels.device)
    counts = torch.bincount(trainer.labels[train])
    return float(counts.min()) < RARE_BELOW * float(counts.sum()) / len(counts)


def validation_loss(scores: Tensor, labels: Tensor) -> float:
    """Return the log loss of the mean log-probabilities of all folds, (folds, nodes, classes)."""
    logs = torch.log_softmax(torch.log_softmax(scores, dim=-1).mean(dim=0), dim=-1)
    return -float(logs.gather(-1, labels.unsqueeze(-1)).double().mean())
