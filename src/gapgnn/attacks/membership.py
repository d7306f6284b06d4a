"""Node membership inference: whether a label was used to train a model (GAP, privacy attacks).

Two attacks: that of GAP, described here, and LiRA.

The attacker has a shadow graph from the same population, trains a shadow model of the same method
on it, and learns to distinguish members from others by the shadow model's predictions. The attack
is then measured on the target model, which was trained separately. (Measured on the shadow model
itself, ``on="shadow"``, it is the published protocol, and overestimates the attack.)

Training follows TSTF: the model is trained on the graph of its members and predicts on the full
graph, including edges to non-members. The protocol has no validation nodes, so models are trained
to their last epoch, as private ones always are. ``epoch="best"`` attacks models with the epoch of
the best validation score, which reduces memorisation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.attacks.attacker import AttackNetwork, Ranking, Rows, guessing, rank
from gapgnn.attacks.target import check_itself, copied, described, fitted
from gapgnn.errors import DataError, check_choice, check_integer
from gapgnn.graph import Graph, induced, random_split
from gapgnn.rng import experiment_rng, experiment_seed
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

Mask = NDArray[np.bool_]
EPOCHS = ("last", "best")
# Share of a shadow graph that is neither member nor target: an estimator needs validation and test
# nodes.
_ASIDE = 0.02
_TINY = 1e-12
# With fewer models on a side, one variance is shared by all nodes (as Carlini et al. advise).
_ENOUGH_FOR_OWN_VARIANCE = 32


@dataclass(frozen=True)
class MembershipResult:
    """Figures of a membership attack, over runs.

    Attributes:
        attack: ``membership`` or ``lira``.
        on: the model the attack was measured on.
        rankings: one per run.
        accuracies: of the attacked model on its members and on others, one pair per run. What a
            model knows of its members only is what gives them away.
        guesses: what guessing reaches, one per run.
        details: the setting.
    """

    attack: str
    on: str
    rankings: tuple[Ranking, ...]
    accuracies: tuple[tuple[float, float], ...]
    guesses: tuple[dict[str, float], ...]
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: means over the runs, and the runs."""
        runs = [
            {**asdict(ranking), "member_accuracy": on_members, "other_accuracy": on_others}
            for ranking, (on_members, on_others) in zip(self.rankings, self.accuracies, strict=True)
        ]
        means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        guessed = {
            name: float(np.mean([guess[name] for guess in self.guesses]))
            for name in self.guesses[0]
        }
        about = {"guessing": guessed, "runs": runs, "on": self.on}
        return {"attack": self.attack, **means, **about, **self.details}


def membership_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    runs: int = 10,
    on: str = "target",
    setting: str = "tstf",
    epoch: str = "last",
    shadows: int = 2,
    shadow_per_class: int = 1_000,
    target_per_class: int | None = None,
    itself: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> MembershipResult:
    """Run GAP's membership attack against copies of an estimator.

    Args:
        estimator: the method, level and parameters under attack; it is not changed.
        graph: the population. Its training nodes are the target's members, its test nodes are not.
        runs: independent repetitions: other shadow graph, models and attack network.
        on: ``target`` measures on the target model, on nodes that are not in the shadow graph;
            ``shadow`` on one shadow model itself, on the half of its nodes that the attack network
            was not trained on (the published protocol).
        setting: ``tstf`` trains on the graph of the members and asks about the full graph;
            ``transductive`` trains and asks on the same graph, labels alone being withheld.
        epoch: which epoch a model keeps where choosing is free (everywhere but at node level): the
            ``last``, or the ``best`` on validation nodes, as ``fit`` does when it has some.
        shadows: shadow models to learn from. Every second one is trained on the nodes that the one
            before was not, so each node is seen on both sides.
        shadow_per_class: nodes in the shadow graph, times the number of classes; half of them are
            members. Every class gives the same share of its nodes, half of them at most, so that
            each is among the nodes that are judged, as often as it is in the graph.
        target_per_class: train the target on a graph of this many nodes per class too, disjoint
            from the shadow graph and half of them members, instead of on the whole graph: the less
            a model has to learn from, the more it remembers.
        itself: attack the fitted estimator itself: it is the target, as it was trained on this
            graph and split. Shadow models are trained the same way, so ``on``, ``setting``,
            ``epoch`` and ``target_per_class`` follow from it.
        seed: of all choices; never of noise.
        callback: watches the runs.
    """
    check_integer("runs", runs, at_least=1)
    protocol = _Protocol(on, setting, epoch, shadows, shadow_per_class, target_per_class)
    if itself:
        check_itself(estimator, graph)
        # As `fit` trains: on one graph, keeping the epoch that validation nodes like best.
        protocol = replace(
            protocol, on="target", setting="transductive", epoch="best", target_per_class=None
        )
    watcher = callback or Silent()
    watcher.start("runs", runs)
    found = []
    for run in range(runs):
        found.append(protocol.run(estimator, graph, seed, run, itself=itself))
        watcher.advance("runs", accuracy=found[-1][0].auc)
    rankings, accuracies, guesses = zip(*found, strict=True)
    details = {**protocol.details(estimator.level), "itself": itself, **described(estimator, graph)}
    return MembershipResult("membership", protocol.on, rankings, accuracies, guesses, details)


@dataclass(frozen=True)
class _Protocol:
    """The protocol of GAP's attack."""

    on: str
    setting: str
    epoch: str
    shadows: int
    shadow_per_class: int
    target_per_class: int | None

    def __post_init__(self) -> None:
        check_choice("on", self.on, ("target", "shadow"))
        check_choice("setting", self.setting, ("tstf", "transductive"))
        check_choice("epoch", self.epoch, EPOCHS)
        check_integer("shadows", self.shadows, at_least=1)
        check_integer("shadow_per_class", self.shadow_per_class, at_least=4)

    def run(
        self, estimator: NodeClassifier, graph: Graph, seed: int, number: int, *, itself: bool
    ) -> tuple[Ranking, tuple[float, float], dict[str, float]]:
        """Attack once; return how well, how right the attacked model is, and what guessing does."""
        rng = experiment_rng(seed, "membership", number)
        own_seed = experiment_seed(seed, "membership model", number) % 2**31
        asked = _Asked(estimator, self.setting, self.epoch, own_seed)
        everybody = np.ones(graph.num_nodes, bool)
        chosen = _in_proportion(graph.labels, self.shadow_per_class, everybody, rng, most=0.5)
        shadow = induced(graph, chosen)
        if self.on == "shadow":
            answers = asked.about(_halved(shadow, rng))
            known = rng.random(len(answers.members)) < 0.5
            learnt, judged = [answers.part(known)], answers.part(~known)
        else:
            learnt = [asked.about(part) for part in _halves(shadow, self.shadows, rng)]
            target, fresh = _target(graph, chosen, self.target_per_class, rng)
            judged = asked.about(target, only=fresh, model=estimator if itself else None)
        network = AttackNetwork(seed=own_seed).fit(
            np.concatenate([answers.rows for answers in learnt]),
            np.concatenate([answers.members for answers in learnt]),
        )
        ranking = rank(network.score(judged.rows), judged.members)
        return ranking, judged.accuracies, guessing(judged.members)

    def details(self, level: str) -> dict[str, Any]:
        """Return the protocol as plain values, for a model of this level."""
        return {
            "setting": self.setting,
            "epoch": "last" if level == "node" else self.epoch,
            "shadows": 1 if self.on == "shadow" else self.shadows,
            "shadow_per_class": self.shadow_per_class,
            "target_per_class": self.target_per_class,
        }


def _in_proportion(
    labels: NDArray[np.int64],
    per_class: int,
    allowed: Mask,
    rng: np.random.Generator,
    *,
    most: float = 1.0,
) -> Mask:
    """Choose ``per_class`` nodes times the classes, the same share of each; ``most`` at most.

    As many of every class would take all of a small one and leave none of it to be judged.
    """
    classes = [np.flatnonzero((labels == label) & allowed) for label in range(labels.max() + 1)]
    share = min(most, per_class * len(classes) / max(1, sum(map(len, classes))))
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label, nodes in enumerate(classes):
        # Two members and two others; where only some may be taken, as many must be left.
        count = max(4, round(share * len(nodes)))
        needed = count if most == 1.0 else count + 4
        if len(nodes) < needed:
            raise DataError(
                f"Each class must have at least {needed} nodes to sample from. Got {len(nodes)} of "
                f"class {label}; take fewer nodes per class."
            )
        chosen[rng.permutation(nodes)[:count]] = True
    return chosen


def _halved(graph: Graph, rng: np.random.Generator) -> Graph:
    """Make a random half of the nodes members (training nodes), the same share of every class."""
    half = (1 - _ASIDE) / 2
    order = rng.permutation(np.flatnonzero(graph.labels >= 0))
    # By each node's place among those of its class: every prefix has the same share of each.
    place = np.empty(graph.num_nodes)
    for label in range(graph.num_classes):
        members = order[graph.labels[order] == label]
        place[members] = (np.arange(len(members)) + 0.5) / max(1, len(members))
    order = order[np.argsort(place[order], kind="stable")]
    masks = np.zeros((3, graph.num_nodes), dtype=np.bool_)
    ends = [round(half * len(order)), round(half * len(order)) + round(_ASIDE * len(order))]
    for mask, part in zip(masks, np.split(order, ends), strict=True):
        mask[part] = True
    return graph.with_masks(*masks)


def _halves(graph: Graph, count: int, rng: np.random.Generator) -> list[Graph]:
    """Return so many ways to make half of the nodes members, every second one the other half."""
    ways: list[Graph] = []
    while len(ways) < count:
        half = _halved(graph, rng)
        ways += [half, half.with_masks(half.test_mask, half.val_mask, half.train_mask)]
    return ways[:count]


def _target(
    graph: Graph, shadow: Mask, per_class: int | None, rng: np.random.Generator
) -> tuple[Graph, Mask]:
    """Return the graph the target is trained on, and which of its nodes the attack never saw."""
    if per_class is None:
        return graph, ~shadow
    check_integer("target_per_class", per_class, at_least=4)
    chosen = _in_proportion(graph.labels, per_class, ~shadow, rng)
    target = _halved(induced(graph, chosen), rng)
    return target, np.ones(target.num_nodes, dtype=np.bool_)


@dataclass(frozen=True)
class _Answers:
    """Predictions of one model for the target nodes, and their true membership."""

    rows: NDArray[np.float64]
    members: Mask
    accuracies: tuple[float, float]

    def part(self, chosen: Mask) -> _Answers:
        """Return the predictions for a subset of the nodes."""
        return replace(self, rows=self.rows[chosen], members=self.members[chosen])


@dataclass
class _Asked:
    """Trains models in one setting and asks them."""

    estimator: NodeClassifier
    setting: str
    epoch: str
    seed: int
    models: int = 0

    def about(
        self, graph: Graph, only: Mask | None = None, model: NodeClassifier | None = None
    ) -> _Answers:
        """Train on the graph's training nodes; tell these and the test nodes, or ``only`` some.

        A ``model`` that is given was trained on them already and is asked itself.
        """
        posteriors = self._trained_on(graph) if model is None else model.predict_proba(graph)
        watched = graph.train_mask | graph.test_mask
        if only is not None:
            watched = watched & only
        members, labels = graph.train_mask[watched], graph.labels[watched]
        right = posteriors[watched].argmax(axis=1) == labels
        accuracies = float(right[members].mean()), float(right[~members].mean())
        return _Answers(answer_rows(posteriors[watched], labels), members, accuracies)

    def _trained_on(self, graph: Graph) -> NDArray[np.float32]:
        trained = graph if self.setting == "transductive" else _members_only(graph)
        if self.epoch == "last":
            trained = _without_choice(trained)
        seed = experiment_seed(self.seed, "model", self.models) % 2**31
        self.models += 1
        with fitted(self.estimator, trained, seed=seed, repeats=1) as model:
            return model.predict_proba(graph)


def answer_rows(
    posteriors: NDArray[np.floating[Any]], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return what the attacker reads of one model's answers: posteriors and label, made plain.

    Logarithms of the posteriors, the log odds of the true class, the entropy, and the class itself.
    Each model's answers are standardised by themselves: a target that learnt from more nodes than a
    shadow is surer about everybody, members or not.

    >>> answer_rows(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0])).shape
    (2, 6)
    """
    sure = np.clip(posteriors.astype(np.float64), _TINY, 1.0)
    logs = np.log(sure)
    place = np.arange(len(labels))
    own = sure[place, labels]
    odds = np.log(own) - np.log(np.clip(sure.sum(axis=1) - own, _TINY, None))
    entropy = -(sure * logs).sum(axis=1)
    centred = logs - logs.mean(axis=1, keepdims=True)
    rows = np.concatenate([centred, odds[:, None], entropy[:, None]], axis=1)
    rows = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + _TINY)
    return np.concatenate([rows, np.eye(posteriors.shape[1])[labels]], axis=1)


def _members_only(graph: Graph) -> Graph:
    """Return the graph of the members and of the few nodes that choose the epoch and score."""
    aside = np.flatnonzero(graph.val_mask)
    if len(aside) < 2:
        raise DataError("The split must have at least 2 validation nodes for TSTF. Got fewer.")
    kept = graph.train_mask | graph.val_mask
    test = np.zeros(graph.num_nodes, dtype=np.bool_)
    test[aside[1::2]] = True
    masks = graph.train_mask, graph.val_mask & ~test, test
    return induced(graph.with_masks(*masks), kept)


def _without_choice(graph: Graph) -> Graph:
    """Return the graph without validation nodes: training keeps its last epoch."""
    nobody = np.zeros(graph.num_nodes, dtype=np.bool_)
    return graph.with_masks(graph.train_mask, nobody, graph.test_mask)


def lira_attack(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    models: int = 16,
    epoch: str = "last",
    seed: int = 0,
    callback: Callback | None = None,
) -> MembershipResult:
    """Run LiRA, the likelihood-ratio attack (Carlini et al. 2022), against an estimator.

    R models are trained on R random halves of the nodes, as the repeats of one fit. Each in turn is
    the target; for every node the other R - 1 models say how confident a model is that had the node
    among its members, and how confident one is that had not. Two Gaussians are fitted to these, and
    the score is the logarithm of their likelihood ratio at the target's own confidence.

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
    with copied(estimator, repeats=models, split="fresh", seed=seed) as model:
        model._keeps_repeats = True
        model.fit(halved, callback=callback or Silent())
    scores, splits = model._repeats
    confidences = _confidences(scores, halved.labels)
    ratios = likelihood_ratios(confidences, splits.train)
    rankings, guesses = [], []
    for ratio, train, test in zip(ratios, splits.train, splits.test, strict=True):
        watched = (train | test) & np.isfinite(ratio)
        rankings.append(rank(ratio[watched], train[watched]))
        guesses.append(guessing(train[watched]))
    right = scores.argmax(dim=-1).numpy() == halved.labels
    accuracies = tuple(
        (float(hit[train].mean()), float(hit[test].mean()))
        for hit, train, test in zip(right, splits.train, splits.test, strict=True)
    )
    details = {
        "models": models,
        "setting": "transductive",
        "epoch": "last" if estimator.level == "node" else epoch,
        **described(estimator, graph),
    }
    return MembershipResult("lira", "target", tuple(rankings), accuracies, tuple(guesses), details)


def _confidences(scores: torch.Tensor, labels: NDArray[np.int64]) -> Rows:
    """Return the log odds of the true class, ``(R, nodes)``: nearly Gaussian over models."""
    logs = torch.log_softmax(scores.double(), dim=-1)
    known = torch.tensor(labels).clamp(min=0).expand(len(scores), -1).unsqueeze(-1)
    right = logs.gather(2, known)[..., 0]
    others = logs.scatter(2, known, -torch.inf).logsumexp(dim=-1)
    odds: Rows = (right - others).numpy()
    return odds


def likelihood_ratios(confidences: Rows, members: NDArray[np.bool_]) -> Rows:
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
