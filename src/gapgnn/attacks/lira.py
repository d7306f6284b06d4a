"""LiRA, the likelihood-ratio attack (Carlini et al. 2022), on replicas that are trained together.

R models are trained on R random halves of the nodes, as the repeats of one fit. Each in turn is the
target; for every node the other R - 1 models say how confident a model is that had the node among
its members, and how confident one is that had not. Two Gaussians are fitted to these, and the score
is the logarithm of their likelihood ratio at the target's own confidence.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from gapgnn.attacks.membership import EPOCHS, MembershipResult
from gapgnn.attacks.scores import rank
from gapgnn.errors import check_choice, check_integer
from gapgnn.graph import Graph, random_split
from gapgnn.training import Callback

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

Confidences = NDArray[np.float64]
# With fewer models on a side, one variance is shared by all nodes (as Carlini et al. advise).
_ENOUGH_FOR_OWN_VARIANCE = 32


def lira_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    models: int = 16,
    epoch: str = "last",
    seed: int = 0,
    callback: Callback | None = None,
) -> MembershipResult:
    """Run LiRA with leave-one-out Gaussian fits against an estimator.

    The models are trained transductively: all see the same graph, each is trained on the labels of
    its own random half. Nothing is charged: the models are not released (see
    :mod:`gapgnn.attacks.target`).

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the population.
        models: R, trained together as repeats; each is the target once.
        epoch: which epoch a model keeps where choosing is free: the ``last``, or the ``best`` on
            validation nodes.
        seed: of the halves and initial weights; never of noise.
        callback: watches the training.
    """
    check_integer("models", models, at_least=4)
    check_choice("epoch", epoch, EPOCHS)
    halved = random_split(graph, seed=seed, train=0.5, val=0.05 if epoch == "best" else 0.0)
    with tempfile.TemporaryDirectory() as folder:
        model: NodeClassifier = clone(estimator)
        ledger = Path(folder) / "ledger.sqlite"
        model.set_params(repeats=models, split="fresh", seed=seed, ledger=ledger)
        model._keeps_repeats = True
        model.fit(halved, callback=callback)
    scores, splits = model._repeats
    confidences = _confidences(scores, halved.labels)
    ratios = likelihood_ratios(confidences, splits.train)
    rankings = []
    for ratio, train, test in zip(ratios, splits.train, splits.test, strict=True):
        watched = (train | test) & np.isfinite(ratio)
        rankings.append(rank(ratio[watched], train[watched]))
    right = scores.argmax(dim=-1).numpy() == halved.labels
    accuracies = tuple(
        (float(hit[train].mean()), float(hit[test].mean()))
        for hit, train, test in zip(right, splits.train, splits.test, strict=True)
    )
    details = {
        "models": models,
        "setting": "transductive",
        "epoch": "last" if estimator.level == "node" else epoch,
        "method": estimator.method,
        "level": estimator.level,
        "epsilon": estimator.epsilon if estimator.level != "none" else None,
        "dataset": graph.name,
    }
    return MembershipResult("lira", "target", tuple(rankings), accuracies, details)


def _confidences(scores: torch.Tensor, labels: NDArray[np.int64]) -> Confidences:
    """Return the log odds of the true class, ``(R, nodes)``: nearly Gaussian over models."""
    logs = torch.log_softmax(scores.double(), dim=-1)
    known = torch.tensor(labels).clamp(min=0).expand(len(scores), -1).unsqueeze(-1)
    right = logs.gather(2, known)[..., 0]
    others = logs.scatter(2, known, -torch.inf).logsumexp(dim=-1)
    odds: Confidences = (right - others).numpy()
    return odds


def likelihood_ratios(confidences: Confidences, members: NDArray[np.bool_]) -> Confidences:
    """Return, for each model and node, the leave-one-out log likelihood ratio of membership.

    A node that no other model had on one of the two sides has no ratio: NaN.

    Args:
        confidences: ``(R, nodes)``.
        members: ``(R, nodes)``, who was trained on.

    >>> rng = np.random.default_rng(0)
    >>> members = rng.random((8, 500)) < 0.5
    >>> ratios = likelihood_ratios(rng.normal(size=(8, 500)) + 3 * members, members)
    >>> bool(np.nanmean(ratios[members]) > np.nanmean(ratios[~members]))
    True
    """
    ratio = np.zeros_like(confidences)
    for side, sign in ((members, 1.0), (~members, -1.0)):
        others = side.sum(axis=0) - side
        total = np.where(side, confidences, 0.0)
        squares = np.where(side, confidences**2, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (total.sum(axis=0) - total) / others
            spread = (squares.sum(axis=0) - squares) / others - mean**2
            own = np.maximum(spread, 0.0) * others / (others - 1)
        shared = np.nanmean(np.where(others > 1, own, np.nan), axis=1, keepdims=True)
        enough = others >= _ENOUGH_FOR_OWN_VARIANCE
        variance = np.where(enough, own, shared) + 1e-12
        log_density = -0.5 * ((confidences - mean) ** 2 / variance + np.log(variance))
        ratio += sign * log_density
    return ratio
