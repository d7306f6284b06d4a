"""The audit of one fitted model for its privacy card: its mechanisms and its predictions.

The budget covers one release. With fresh noise for every prediction an attacker could average the
noise out, even if each prediction alone is within the budget. So predictions are audited as well:
an estimator is fitted on a graph of canary edges, queried many times, and the predictions are
averaged (privacy page, sections 2 and 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from gapgnn.attacks import fitted
from gapgnn.audits.aggregation import audit_aggregation, audit_sampler
from gapgnn.audits.bounds import LEAST_TRIALS, Price, Scores, Trials, gaussian_price
from gapgnn.audits.dpsgd import audit_dpsgd
from gapgnn.audits.edges import audit_edges
from gapgnn.audits.messages import NO_CLASSES, audit_messages, check_card
from gapgnn.audits.pure import audit_labels, audit_mean_degree
from gapgnn.audits.report import Attempt, AuditReport, Options, confirmed
from gapgnn.audits.subgraphs import audit_subgraphs
from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph
from gapgnn.methods import EdgeFacts, EdgeReader, LabelGAP, NeighborVote, NodeLabelGAP
from gapgnn.privacy import AddRemove, Undirected
from gapgnn.privacy.accounting import (
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
)
from gapgnn.privacy.dpsgd import neighbourhood_sensitivity

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gapgnn.methods import NodeClassifier

# A prefix of a long training is a mechanism of the same type, with its own claim.
_MOST_STEPS = 100
_MOST_SUBGRAPH_STEPS = 20
# Nodes on which the classifier learns which of two features arrived along the edges.
_TEACHERS = 150
_SENDERS = 40


def audit_model(
    estimator: NodeClassifier, *, trials: int = 20_000, confidence: float = 0.95, seed: int = 0
) -> list[dict[str, Any]]:
    """Audit every mechanism that a fitted model used, with the noise multiplier it used.

    The claim of each part is the epsilon of that part alone, which is less than the total on the
    card. All hops that the model keeps are read together, and their claim is that of the charged
    ones. The epsilon of the card is compared with that of its events. The training data is not
    read: audits run on canaries. The results fit
    :meth:`gapgnn.privacy.card.card.PrivacyCard.with_audit`.

    Args:
        estimator: a fitted model.
        trials: of each audit.
        confidence: of each lower bound.
        seed: of the coins.

    >>> from gapgnn import LabelGAP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> model = LabelGAP(epsilon=4.0, epochs=2).fit(social_graph(num_nodes=300, mean_degree=10))
    >>> [found["mechanism"] for found in audit_model(model, trials=500)]
    ['aggregation', 'messages', 'prediction']
    """
    card = getattr(estimator, "card_", None)
    if card is None:
        raise InputError("`estimator` must be fitted to be audited. Call `fit` first.")
    shared: dict[str, Any] = {"trials": trials, "confidence": confidence, "seed": seed}
    events = [Event.from_dict(event) for event in card.events]
    reports = [report for event in events for report in _audit_event(estimator, event, shared)]
    if any(_randomises_edges(estimator, event) for event in events):
        # The noisy number of edges and the bits are one mechanism.
        reports.insert(0, _audit_edges(estimator, shared))
    released = {
        event.label: event.noise_multiplier for event in events if isinstance(event, Gaussian)
    }
    if released and isinstance(estimator, LabelGAP | NodeLabelGAP):
        reports.append(audit_messages(_unfitted(estimator, released), **shared))
    if card.level == "edge" and card.events:
        few = {**shared, "trials": max(200, trials // 10)}
        reports.append(audit_prediction(estimator, **few))
    if reports and card.delta:
        reports[0] = replace(reports[0], checks=(*reports[0].checks, check_card(card)))
    return [report.to_dict() for report in reports]


def events_without_audit(estimator: NodeClassifier) -> tuple[str, ...]:
    """Return the events on a fitted model's card that no audit covers, by type and label.

    These are events of methods of other packages, which have their own mechanisms.

    >>> from gapgnn import GAP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> graph = social_graph(num_nodes=300, mean_degree=10)
    >>> events_without_audit(GAP(epsilon=4.0, epochs=2).fit(graph))
    ()
    """
    events = [Event.from_dict(dict(event)) for event in estimator.card_.events]
    return tuple(
        f"{type(event).__name__} ({event.label or 'without a label'})"
        for event in events
        if not _is_audited(estimator, event)
    )


def _is_audited(estimator: NodeClassifier, event: Event) -> bool:
    """Whether there is an audit of the mechanism behind an event."""
    if isinstance(event, PoissonGaussian):
        return True
    if isinstance(event, Gaussian | MixtureOfGaussians):
        return isinstance(estimator, EdgeReader)
    return (
        _randomises_edges(estimator, event)
        or _is_mean_degree(estimator, event)
        or (isinstance(event, LabelResponse) and isinstance(estimator, NeighborVote))
    )


def _randomises_edges(estimator: NodeClassifier, event: Event) -> bool:
    is_pure = isinstance(event, Laplace | RandomisedResponse)
    return is_pure and estimator.level == "edge" and "perturbation" in estimator.get_params()


def _is_mean_degree(estimator: NodeClassifier, event: Event) -> bool:
    return isinstance(event, Laplace) and isinstance(estimator, NodeLabelGAP)


def _audit_edges(estimator: NodeClassifier, shared: Mapping[str, Any]) -> AuditReport:
    card = estimator.card_
    return audit_edges(
        perturbation=estimator.get_params()["perturbation"],
        relation=card.relation.name,
        directed=estimator.edges_.is_directed if card.relation == Undirected() else None,
        epsilon=float(card.epsilon or 0.0),
        noise=estimator.noise,
        **shared,
    )


def _audit_event(
    estimator: NodeClassifier, event: Event, shared: Mapping[str, Any]
) -> Iterator[AuditReport]:
    """Audit what one event on the card pays for."""
    card = estimator.card_
    fewer = {**shared, "trials": max(200, shared["trials"] // 5)}
    used: dict[str, Any] = {"relation": card.relation.name, "noise": estimator.noise}
    if isinstance(event, Gaussian | PoissonGaussian | MixtureOfGaussians):
        used |= {"delta": card.delta, "noise_multiplier": event.noise_multiplier}
    if isinstance(event, PoissonGaussian | MixtureOfGaussians):
        used |= {"clip": estimator.clip, "steps": min(event.steps, _MOST_STEPS)}
    if isinstance(event, Gaussian):
        hops = _hops(estimator, event)
        yield audit_aggregation(**hops, **used, **shared)
        if card.relation == AddRemove() and "normalised" not in hops:
            yield audit_sampler(**used, **fewer)
    elif isinstance(event, PoissonGaussian):
        yield audit_dpsgd(sampling_rate=event.sampling_rate, **used, **shared)
    elif isinstance(event, MixtureOfGaussians):
        degree = card.max_degree or 1
        used["noise_multiplier"] /= neighbourhood_sensitivity(degree)
        used["steps"] = min(event.steps, _MOST_SUBGRAPH_STEPS)
        yield audit_subgraphs(sampling_rate=_rate_of(event, degree), **used, **fewer)
    elif isinstance(event, LabelResponse) and isinstance(estimator, NeighborVote):
        yield audit_labels(response=event, **used, **shared)
    elif _is_mean_degree(estimator, event):
        epsilon = event.pair(card.relation).pure_epsilon
        yield audit_mean_degree(epsilon=epsilon, **used, **fewer)


def _hops(estimator: NodeClassifier, event: Gaussian) -> dict[str, Any]:
    """Return the hops that the model keeps, as options of their audit."""
    card, kept = estimator.card_, estimator.releases_.training()
    planned = estimator.plan_.hops.values()
    hops: dict[str, Any] = {
        "level": card.level,
        "hops": len(kept.hops) - int(kept.has_hop_zero),
        "charged": event.count,
    }
    if card.edge_types:
        hops |= {"edge_types": len(card.edge_types), "protects": card.protects}
        hops["without_union"] = not any(one.with_union for one in planned)
    bounds = getattr(estimator, "edges_", EdgeFacts()).bounds
    hops["weighted"] = any(pair is not None for pair in bounds)
    hops["symmetrised"] = any(one.is_symmetrised for one in planned)
    if any(one.is_normalised for one in planned):
        # Each hop is of another group, and so an event of its own.
        hops |= {"normalised": True, "hops": 1, "edge_types": event.count}
    return hops


def _unfitted(estimator: NodeClassifier, released: Mapping[str, float]) -> NodeClassifier:
    """Return an unfitted estimator whose hops are as the model's, which had this noise."""
    card = estimator.card_
    same: NodeClassifier = clone(estimator).set_params(
        delta=card.delta, relation=card.relation.name
    )
    parameters = same.get_params()
    if "directions" in parameters:
        ways = any(one.is_symmetrised for one in estimator.plan_.hops.values())
        same.set_params(directions="both" if ways else "along")
    if len(released) > 1 and "hop_share" in parameters:
        # What the hop of training people got of what the others' got: all of it.
        of_training, of_others = released.values()
        same.set_params(hop_share=(of_others / of_training) ** 2)
    return same


def _rate_of(event: MixtureOfGaussians, max_degree: int) -> float:
    """Return the sampling rate behind the chance that a batch has none of a record's examples."""
    shares = dict(zip(event.sensitivities, event.probabilities, strict=True))
    return float(1 - shares.get(0.0, 0.0) ** (1 / (max_degree + 1)))


def audit_prediction(
    estimator: NodeClassifier,
    *,
    queries: int = 50,
    trials: int = 2_000,
    **options: Unpack[Options],
) -> AuditReport:
    """Attack an estimator at edge level by asking for its predictions ``queries`` times.

    A copy of the estimator is fitted on a graph of teaching nodes and of canary pairs. The
    classifier learns to infer from the hops which of two classes of senders is connected. In each
    pair a coin decides whether a sender of known class is connected to a node outside the training
    set. The statistic is the mean log odds of that node's class over all answers. For GAP the hops
    of a pair depend on that pair alone, so given the trained weights pairs are independent trials.
    The guarantee covers any number of answers, so the price does not grow with ``queries``. The
    ledger is temporary, because canaries are synthetic.

    Args:
        estimator: any method at level edge; it is not changed.
        queries: how often the predictions are asked for.
        trials: canary pairs.
        options: of every audit.

    >>> from gapgnn import GAP
    >>> audit_prediction(GAP(epochs=5), queries=2, trials=200).holds
    True
    """
    if estimator.level != "edge":
        raise InputError(f"`level` must be edge to audit predictions. Got {estimator.level!r}.")
    check_integer("queries", queries, at_least=1)
    check_integer("trials", trials, at_least=4 * LEAST_TRIALS)

    def attempt(run: Attempt) -> AuditReport:
        worlds = run.coins(trials)
        graph, watched, sign = _canary_graph(worlds)
        # Batch statistics would couple the pairs; repeats are releases of their own.
        changes: dict[str, Any] = {"repeats": 1, "batch_norm": False, "relation": "auto"}
        with fitted(estimator, graph, **changes, **NO_CLASSES) as model:
            odds = np.zeros(trials)
            for _ in range(queries):
                answer = np.log(np.clip(model.predict_proba(graph)[watched], 1e-30, None))
                odds += sign * (answer[:, 1] - answer[:, 0]) / queries
            card = model.card_
        if card.epsilon is None or card.delta is None:
            raise InputError("`estimator` must have a privacy guarantee to be audited. Got none.")
        is_gaussian = all(event["event"] == "Gaussian" for event in card.events)
        price = gaussian_price(card.delta) if is_gaussian else None
        return run.conclude(
            {"mean answer": _centred(odds, worlds, sign, price)},
            epsilon=card.epsilon,
            delta=card.delta,
            details={"method": card.method, "level": "edge", "queries": queries},
        )

    return confirmed("prediction", attempt, trials, **options)


def _centred(odds: Scores, worlds: NDArray[np.bool_], sign: Scores, price: Price | None) -> Trials:
    """Centre the scores of each class by a quarter of the trials, and return the other trials."""
    few = len(odds) // 4
    centred = odds.copy()
    for one in (-1.0, 1.0):
        known = (sign == one) & (np.arange(len(odds)) < few)
        means = [odds[known & (worlds == world)].mean() for world in (False, True)]
        centred[sign == one] -= sum(means) / 2
    return Trials(centred[None, few:], worlds[few:], price=price)


def _canary_graph(
    worlds: NDArray[np.bool_],
) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
    """Return the graph, the node of each pair that receives, and for which class its sender is."""
    senders = np.arange(2 * _SENDERS)
    teachers = 2 * _SENDERS + np.arange(2 * _TEACHERS)
    bearers = teachers[-1] + 1 + np.arange(len(worlds))
    watched = bearers + len(worlds)
    num_nodes = int(watched[-1]) + 1
    labels = np.full(num_nodes, -1)
    features = np.zeros((num_nodes, 3), dtype=np.float32)
    features[:, 2] = 1
    for nodes in (senders, bearers):
        features[nodes, 2] = 0
        features[nodes, nodes % 2] = 1
    for nodes in (senders, bearers, teachers):
        labels[nodes] = nodes % 2
    # Every teacher receives from all senders of its own class.
    receives, sends = np.nonzero((teachers[:, None] % 2) == (senders[None, :] % 2))
    graph = Graph.from_arcs(
        np.concatenate([senders[sends], bearers[worlds]]),
        np.concatenate([teachers[receives], watched[worlds]]),
        num_nodes=num_nodes,
        features=features,
        labels=labels,
        name="canaries",
    )
    part = np.zeros((3, num_nodes), dtype=np.bool_)
    part[0, senders] = part[0, bearers] = True
    for split, mask in enumerate(part):
        mask[teachers[teachers // 2 % 3 == split]] = True
    return graph.with_masks(*part), watched, np.where(bearers % 2 == 1, 1.0, -1.0)
