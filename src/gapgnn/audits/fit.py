"""The audit of one whole fit: canaries in the graph, scores from the saved folder.

Privacy page, section 8. The shipped method is trained once on a graph with canaries, each in or
out by a secret coin, and saved. The attacker reads the released rows of the folder, subtracts what
is known and projects the rest on what each canary would add. Hop noise is exactly Gaussian, so the
mean difference between canaries that are in and out estimates mu of the hops, and its lower limit
gives a lower bound on epsilon (:mod:`gapgnn.audits.scores`). The bound is compared with the epsilon
of the card.

Reported beside it is what others see: a *black-box* bound from predictions, and at node level one
from the trained classifier, which DP-SGD protects. They assume nothing of the mechanism, and are
far below the claim.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from gapgnn.attacks import fitted
from gapgnn.audits.bounds import LEAST_TRIALS, Trials, curve_bound, gaussian_price
from gapgnn.audits.canaries import EdgeCanaries, RecordCanaries, edge_canaries, record_canaries
from gapgnn.audits.directions import log_odds
from gapgnn.audits.messages import check_card, check_roles
from gapgnn.audits.released import (
    ReleasedHop,
    charged_hops,
    check_readable,
    is_symmetrised,
    received,
    released_hops,
    unit_of,
    untouched_rows,
)
from gapgnn.audits.report import RUNS, Attempt, AuditReport, Check, confirmed
from gapgnn.audits.scores import (
    Effect,
    Matrix,
    Moves,
    effect_of,
    guess_bound,
    noise_checks,
    whitened,
)
from gapgnn.errors import InputError, check_integer, check_number
from gapgnn.graph import Graph, induced, random_split
from gapgnn.methods import NodeLabelGAP, load_model
from gapgnn.privacy.accounting import gaussian_shift
from gapgnn.training import Callback, FeatureInputs, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

Canaries = EdgeCanaries | RecordCanaries
# How likely a canary is in. References stand for those that are out, so that most may be in. Coins
# of guesses are fair.
IN_SHARE, FAIR = 0.75, 0.5


def audit_fit(
    estimator: NodeClassifier,
    graph: Graph,
    *,
    canaries: int = 1_000,
    confidence: float = 0.95,
    runs: int | None = None,
    own_ledger: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> AuditReport:
    """Train a method once with canaries, and bound its epsilon from below by their scores.

    Relation: that of the estimator. A canary is one edge, or at node level one record; with several
    links of one person under ``k-edges`` the bound is of one of them. At edge level canary edges
    join training nodes; at node level canary records are training people. The estimator is fitted,
    saved and loaded as by ``gapgnn train --out``, and the folder is deleted.

    A bound above the claim is confirmed by another fit with fresh coins, as in every audit.

    Args:
        estimator: label-gap, gap or progap at level edge, or node-label-gap; it is not changed.
        graph: with or without a split.
        canaries: number of canaries; each is in the graph with probability 3/4, for ``gap`` 1/2.
        confidence: of the lower bound, one-sided.
        runs: at most so many fits; left out: 3, and 1 with ``own_ledger``.
        own_ledger: charge the estimator's ledger, as for any fit on private tables, instead of a
            temporary one.
        seed: of coins, canaries and the split; never of noise.
        callback: watches the fit, and receives the price before it is charged.

    >>> from gapgnn import LabelGAP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> report = audit_fit(
    ...     LabelGAP(epsilon=4.0, epochs=2), social_graph(num_nodes=600, mean_degree=10),
    ...     canaries=100,
    ... )
    >>> report.mechanism, report.holds
    ('fit', True)
    """
    check_integer("canaries", canaries, at_least=LEAST_TRIALS)
    check_number("confidence", confidence, above=0, below=1)
    if estimator.level not in ("edge", "node"):
        raise InputError(f"`level` must be edge or node to be audited. Got {estimator.level!r}.")
    check_readable(estimator)
    if estimator.level == "node" and estimator.relation == "replace":
        raise InputError(
            "`relation` must be add-remove for an audit of a fit at level node: a canary is there "
            "or not. Got 'replace'."
        )
    if own_ledger and estimator.level == "node":
        raise InputError(
            "`own_ledger` must be False at level node: canary records would be enrolled as people "
            "of your own. Audit the fit on a data set."
        )
    if not graph.has_split:
        graph = random_split(graph, seed=estimator.seed)

    def attempt(run: Attempt) -> AuditReport:
        return _audit_once(estimator, graph, run, callback or Silent(), own_ledger=own_ledger)

    if runs is None:
        runs = 1 if own_ledger else RUNS
    return confirmed("fit", attempt, canaries, confidence=confidence, seed=seed, runs=runs)


def _audit_once(
    estimator: NodeClassifier, graph: Graph, run: Attempt, callback: Callback, *, own_ledger: bool
) -> AuditReport:
    """Fit once on a graph with fresh canaries, and read the folder."""
    is_guessed = estimator.method == "gap"
    coins = _coins(run, FAIR if is_guessed else IN_SHARE)
    drawn: Canaries
    if estimator.level == "edge":
        drawn = edge_canaries(graph, coins, run.rng, shared_rows=not is_guessed)
    else:
        drawn = record_canaries(graph, coins, run.rng, seed=estimator.seed)
    fit = _charged_fit if own_ledger else fitted
    with (
        tempfile.TemporaryDirectory(prefix="gapgnn-audit-") as scratch,
        fit(estimator, drawn.graph, callback=callback, repeats=1) as model,
    ):
        folder = Path(scratch) / "model"
        model.save(folder)
        return _read(load_model(folder, device="cpu", ledger=model.ledger), drawn, run)


@contextmanager
def _charged_fit(
    estimator: NodeClassifier, graph: Graph, *, callback: Callback, **changes: Any
) -> Iterator[NodeClassifier]:
    """Fit a copy that charges the ledger of the estimator."""
    model: NodeClassifier = clone(estimator).set_params(**changes)
    yield model.fit(graph, callback=callback)


def _coins(run: Attempt, share: float) -> NDArray[np.bool_]:
    """Toss a coin for each canary, with at least one on each side."""
    coins: NDArray[np.bool_] = run.rng.random(run.trials) < share
    if coins.all() or not coins.any():
        coins[0] = not coins[0]
    return coins


def _read(model: NodeClassifier, drawn: Canaries, run: Attempt) -> AuditReport:
    """Return what the folder of a fit tells about its canaries."""
    card = model.card_
    if card.epsilon is None or card.delta is None:
        raise InputError("`estimator` must have a privacy guarantee to be audited. Got none.")
    view = _view(model, drawn)
    # A fifth of the allowed error is for the checks and for what is computed approximately.
    alpha = 0.8 * (1 - run.confidence)
    delta = card.delta
    details: dict[str, Any] = {
        "method": model.method,
        "level": card.level,
        "relation": card.relation.name,
        "dataset": drawn.graph.name,
        "canaries_in": int(drawn.inside.sum()),
        "references": len(drawn.inside) - drawn.count,
        "hops": len(view.hops),
        "noise": model.noise,
    }
    if view.is_direction:
        found, bound = _from_directions(view, drawn, delta, alpha)
        checks = [Check("hops released", len(view.hops), charged_hops(model))]
    else:
        checks = [
            Check("hops released", len(view.hops), charged_hops(model)),
            *noise_checks(view.residuals, view.scales, view.untouched),
        ]
        effect = _effect(view, drawn, checks, alpha)
        found, bound = _described(effect), effect.epsilon(delta)
    checks += [check_card(card), *check_roles(card)]
    details |= {**found, "bounds": {_NAMES[view.is_direction]: bound}}
    details["mu_claimed"] = gaussian_shift(card.epsilon, delta)
    details |= _other_views(model, drawn, view, run, delta)
    return AuditReport(
        "fit", card.epsilon, bound, delta, run.confidence, drawn.count, details, tuple(checks)
    )


_NAMES = {False: "canary scores", True: "guesses from directions"}


@dataclass(frozen=True)
class _View:
    """What the auditor computes from the hops of a folder.

    Attributes:
        hops: that canaries write to.
        residuals: released rows less what is known, in the unit of the rows, of every hop.
        scales: the unit over the accounted noise, of every hop.
        tables: vectors of canaries in the unit of the rows, of hops that they write to.
        sums: of others, in the unit of the rows.
        places: which of the hops those are.
        moves: who adds what to which row.
        untouched: rows that no canary writes to.
        is_direction: whether only directions are kept.
    """

    hops: list[ReleasedHop]
    residuals: list[Matrix]
    scales: list[float]
    tables: list[Matrix]
    sums: list[Matrix]
    places: list[int]
    moves: Moves
    untouched: NDArray[np.bool_]
    is_direction: bool


def _view(model: NodeClassifier, drawn: Canaries) -> _View:
    """Subtract what is known from every released row."""
    hops = released_hops(model, drawn.graph)
    symmetrised = is_symmetrised(model)
    is_direction = hops[0].is_direction
    if isinstance(drawn, EdgeCanaries):
        base, people, moves = drawn.base, drawn.base.num_nodes, drawn.moves(symmetrised=symmetrised)
        places = list(range(len(hops)))
    else:
        people, moves = drawn.people, drawn.moves()
        base = induced(drawn.graph, np.arange(drawn.graph.num_nodes) < people)
        places = [k for k, hop in enumerate(hops) if hop.group in ("", "training")]
    residuals, scales, all_sums = [], [], []
    for hop in hops:
        known = received(base, _first(hop, people), symmetrised=symmetrised)
        rows = hop.rows[:people]
        unit = 1 / hop.std if is_direction else unit_of(rows, known, hop.std)
        residuals.append(rows - unit * known)
        scales.append(1 / (unit * hop.std))
        all_sums.append(unit * known)
    tables = []
    for place in places:
        hop = hops[place]
        unit = 1 / (scales[place] * hop.std)
        tables.append(unit * _table(model, drawn, hop))
    return _View(
        hops,
        residuals,
        scales,
        tables,
        [all_sums[place] for place in places],
        places,
        moves,
        untouched_rows(people, np.unique(moves.row[drawn.inside[moves.canary]])),
        is_direction,
    )


def _first(hop: ReleasedHop, people: int) -> ReleasedHop:
    return replace(hop, sent=hop.sent[:people])


def _table(model: NodeClassifier, drawn: Canaries, hop: ReleasedHop) -> Matrix:
    """Return the vectors that canaries add: what a node sends, or what a canary would send."""
    if isinstance(drawn, EdgeCanaries):
        return hop.sent
    assert isinstance(model, NodeLabelGAP)
    nobody = torch.zeros(1, drawn.graph.num_nodes, dtype=torch.bool)
    codes = model._votes(drawn.graph, nobody)._codes.double().numpy()
    length = drawn.lists.shape[1] + int(hop.to_self)
    vectors: Matrix = codes[drawn.labels] / math.sqrt(length)
    return vectors


def _effect(view: _View, drawn: Canaries, checks: list[Check], alpha: float) -> Effect:
    """Return the effect of a canary; where noise is not what is claimed, by its best statistic."""
    residuals, tables = [view.residuals[place] for place in view.places], view.tables
    if not all(check.holds for check in checks) and len({one.shape for one in tables}) == 1:
        residuals, tables = whitened(residuals, tables, view.untouched)
    return effect_of(residuals, tables, view.moves, drawn.inside, alpha=alpha)


def _described(effect: Effect) -> dict[str, Any]:
    return {
        "mu": effect.shift,
        "mu_error": effect.error,
        "mu_lower_bound": max(effect.lower, 0.0),
        "residual_noise": effect.noise,
    }


def _from_directions(
    view: _View, drawn: Canaries, delta: float, alpha: float
) -> tuple[dict[str, Any], float]:
    """Guess each coin by the likelihood of directions, and count right guesses."""
    count = drawn.count
    chosen = view.moves.canary < count
    moves = Moves(view.moves.canary[chosen], view.moves.row[chosen], view.moves.sender[chosen])
    rows = [hop.rows[: len(view.residuals[0])] for hop in view.hops]
    odds = log_odds(rows, view.sums, view.tables, moves, count)
    inside = drawn.inside[:count]
    trials = Trials(odds[None], inside, price=gaussian_price(delta))
    right = float(((odds >= 0) == inside).mean())
    return {"right_guesses": right}, curve_bound(trials, alpha=alpha)


# What others see ----------------------------------------------------------------------------------


def _other_views(
    model: NodeClassifier, drawn: Canaries, view: _View, run: Attempt, delta: float
) -> dict[str, Any]:
    """Return bounds from predictions, and at node level from the classifier that DP-SGD trained.

    Guesses are about fair coins: of the canaries that are in, so many are left out of the game at
    random that the others are in or out with equal odds.
    """
    inside = drawn.inside[: drawn.count]
    odds = FAIR / IN_SHARE * (1 - IN_SHARE) / (1 - FAIR) if not view.is_direction else 1.0
    judged = ~inside | (run.rng.random(drawn.count) < odds)
    if inside[judged].all() or not inside[judged].any():
        return {}
    scores = {"black_box": _of_predictions(model, drawn)}
    if isinstance(drawn, RecordCanaries) and isinstance(model, NodeLabelGAP):
        scores["dp_sgd"] = _of_classifier(model, drawn, view)
    return {
        name: {
            "epsilon_lower_bound": guess_bound(
                one[judged], inside[judged], delta=delta, alpha=1 - run.confidence
            ),
            "auc": _auc(one[judged], inside[judged]),
            "canaries": int(judged.sum()),
        }
        for name, one in scores.items()
    }


def _auc(scores: NDArray[np.float64], inside: NDArray[np.bool_]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(inside, scores))


def _of_predictions(model: NodeClassifier, drawn: Canaries) -> NDArray[np.float64]:
    """Score canaries by the predictions about their targets: how likely the sender's class is."""
    graph = drawn.graph
    logs = np.log(np.clip(model.predict_proba(graph), 1e-12, None).astype(np.float64))
    logs -= logs.mean(axis=0)
    count = drawn.count
    if isinstance(drawn, EdgeCanaries):
        source, target = drawn.ends[:count].T
        both: NDArray[np.float64] = (
            logs[target, graph.labels[source]] + logs[source, graph.labels[target]]
        )
        return both
    found: NDArray[np.float64] = logs[drawn.lists[:count], drawn.labels[:count, None]].sum(axis=1)
    return found


def _of_classifier(model: NodeLabelGAP, drawn: RecordCanaries, view: _View) -> NDArray[np.float64]:
    """Score canaries by the classifier's loss on their own examples, with rows of no information.

    The classifier was trained on those that are in.
    """
    count, settings = drawn.count, model.plan_.settings
    examples = induced(drawn.graph, np.arange(drawn.graph.num_nodes) < drawn.people)
    donors = drawn.donors[:count]
    records = Graph.from_arcs(
        [],
        [],
        num_nodes=count,
        features=examples.features[donors],
        labels=drawn.labels[:count],
        directed=True,
    )
    device = torch.device("cpu")
    model.networks_on(device)
    votes = model._votes(records, torch.zeros(1, count, dtype=torch.bool))
    features = FeatureInputs(records, device, scale=settings.row_scale)
    nothing = [torch.zeros(1, count, hop.rows.shape[1]) for hop in view.hops]
    with torch.no_grad():
        inputs = votes.inputs(features, nothing)
        scores = torch.log_softmax(model.modules_["classifier"](inputs.all())[0].double(), dim=-1)
    found: NDArray[np.float64] = scores[np.arange(count), drawn.labels[:count]].numpy()
    return found
