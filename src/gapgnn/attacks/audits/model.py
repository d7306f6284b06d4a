"""The audit of one fitted model for its privacy card."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sklearn.base import clone

from gapgnn.attacks.audits.aggregation import audit_aggregation, audit_sampler
from gapgnn.attacks.audits.dpsgd import audit_dpsgd
from gapgnn.attacks.audits.edges import audit_edges
from gapgnn.attacks.audits.messages import audit_messages, check_card
from gapgnn.attacks.audits.prediction import audit_prediction
from gapgnn.attacks.audits.report import AuditReport
from gapgnn.attacks.audits.subgraphs import audit_subgraphs
from gapgnn.errors import InputError
from gapgnn.privacy.accounting import (
    Gaussian,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    event_from_dict,
)
from gapgnn.privacy.dpsgd import neighbourhood_sensitivity

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier

# A prefix of a long training is a mechanism of the same kind with a claim of its own.
_MOST_STEPS = 100
_MOST_SUBGRAPH_STEPS = 20
# Canary records of this many entries at most: the rule is the same for longer lists.
_LARGEST_RECORD = 10


def audit_model(
    estimator: NodeClassifier, *, trials: int = 20_000, confidence: float = 0.95, seed: int = 0
) -> list[dict[str, Any]]:
    """Audit every mechanism that a fitted model used, at the very noise it used.

    Each part is held to what that part alone is accounted at, which is less than the total on the
    card; all hops that the model keeps are read together and held to those that were charged. That
    the events cost no more than the card says is compared too. The training data is not touched:
    audits run on canaries. The results fit :meth:`gapgnn.privacy.card.card.PrivacyCard.with_audit`.

    Args:
        estimator: a fitted model.
        trials: of each audit.
        confidence: of each lower bound.
        seed: of the coins.

    >>> from gapgnn import GAP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> model = GAP(epsilon=4.0, epochs=2).fit(social_graph(num_nodes=300, mean_degree=10))
    >>> [found["mechanism"] for found in audit_model(model, trials=500)]
    ['aggregation', 'messages', 'prediction']
    """
    card = getattr(estimator, "card_", None)
    if card is None:
        raise InputError("`estimator` must be fitted to be audited. Call `fit` first.")
    params = estimator.get_params()
    shared: dict[str, Any] = {"trials": trials, "confidence": confidence, "seed": seed}
    fewer = {**shared, "trials": max(200, trials // 5)}
    reports: list[AuditReport] = []
    for event in map(event_from_dict, card.events):
        used: dict[str, Any] = {"relation": card.relation, "construction": estimator.noise}
        if isinstance(event, Gaussian | PoissonGaussian | MixtureOfGaussians):
            used |= {"delta": card.delta, "noise_multiplier": event.noise_multiplier}
        if isinstance(event, PoissonGaussian | MixtureOfGaussians):
            used |= {"clip": estimator.clip, "steps": min(event.steps, _MOST_STEPS)}
        if isinstance(event, Gaussian):
            kept = estimator.releases_.training()
            hops = len(kept.hops) - int(kept.has_hop_zero)
            whole = {"level": card.level, "hops": hops, "charged": event.count}
            reports.append(audit_aggregation(**whole, **used, **shared))
            if card.relation == "add-remove":
                reports.append(audit_sampler(**used, **fewer))
        elif isinstance(event, PoissonGaussian):
            reports.append(audit_dpsgd(sampling_rate=event.sampling_rate, **used, **shared))
        elif isinstance(event, MixtureOfGaussians):
            degree = params["max_degree"]
            used["noise_multiplier"] /= neighbourhood_sensitivity(degree)
            used["steps"] = min(event.steps, _MOST_SUBGRAPH_STEPS)
            rate = _rate_of(event, degree)
            reports.append(audit_subgraphs(sampling_rate=rate, **used, **fewer))
        elif isinstance(event, RandomisedResponse):
            used |= {"perturbation": params["perturbation"], "epsilon": card.epsilon}
            reports.append(audit_edges(**used, **shared))
    if card.events and params.get("messages", "features") != "features":
        same = clone(estimator).set_params(delta=card.delta, relation=card.relation)
        if card.level == "node":
            same.set_params(max_degree=min(params["max_degree"], _LARGEST_RECORD))
        reports.append(audit_messages(same, **shared))
    if card.level == "edge" and card.events:
        few = {**shared, "trials": max(200, trials // 10)}
        reports.append(audit_prediction(estimator, **few))
    if reports and card.delta:
        reports[0] = replace(reports[0], checks=(*reports[0].checks, check_card(card)))
    return [report.to_dict() for report in reports]


def _rate_of(event: MixtureOfGaussians, max_degree: int) -> float:
    """Return the sampling rate behind the chance that a batch has none of a record's examples."""
    shares = dict(zip(event.sensitivities, event.probabilities, strict=True))
    return float(1 - shares.get(0.0, 0.0) ** (1 / (max_degree + 1)))
