"""Audit of the hops released by LabelGAP and NodeLabelGAP.

The audit of the aggregation runs one mechanism at a time. This one fits the whole estimator on
canaries, including its stages and networks, and the attacker reads the hops that the model keeps,
which are all results computed from the edges. They must cost no more than the card's events for
them, and these events no more than the card states. An uncharged hop, or a stage that reads edges
without noise, is only detected here (privacy page, sections 2 and 8).

Canaries are training nodes, which send the same class code in every hop. So the contribution of an
edge or a record to the released sums is known in advance, whatever the networks are, and groups of
canaries are independent trials. All hops are combined: their mean component along the messages is
the optimal statistic.

At node level the other nodes send in a separate hop, and the two groups compose in parallel
(privacy page, section 1). So there is an attack for each role. The message of such a node follows
from the first hop, which is released, and from its adjacency list, so the attacker knows it.

Two conditions need no trials: the model keeps no more hops than the card charges, and the events on
the card cost no more than its epsilon, together and for each group.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from gapgnn.attacks import fitted
from gapgnn.audits.aggregation import without
from gapgnn.audits.bounds import LEAST_TRIALS, Scores, gaussian_price
from gapgnn.audits.report import Attempt, AuditReport, Check, Options, confirmed
from gapgnn.errors import InputError, check_choice, check_integer
from gapgnn.graph import Graph
from gapgnn.methods import LabelGAP, NodeLabelGAP, class_codes
from gapgnn.methods.label_gap import SHARES
from gapgnn.privacy import (
    Neighbors,
    OutDegreeNormalized,
    Plan,
    PublicFacts,
    Replace,
    Symmetrized,
    links_of,
    resolve_relation,
)
from gapgnn.privacy.accounting import Event, Gaussian, account, group_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gapgnn.methods import NodeClassifier
    from gapgnn.privacy.card import PrivacyCard

# However long a list is, degree-normalised messages move all rows together by 1.
_NEIGHBOURS = 9
_NODES_PER_FIT = 100_000
# People whose labels make a record that does not train sure of what it sends.
_FEEDERS = 20
ROLES = ("training", "others")
# Nodes without edges that are validated and tested on.
_ASIDE = 8
# Canaries have classes of their own: what is said about those of the model's data is not theirs.
NO_CLASSES: dict[str, None] = {"class_weight": None, "threshold": None}


def audit_messages(
    estimator: NodeClassifier,
    *,
    trials: int = 20_000,
    role: str = "both",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the hops in which class codes travel and bound their epsilon from below.

    A copy of the estimator is fitted for one epoch per network, on canaries with a temporary
    ledger. Neighbours (privacy page, section 1): at edge level two nodes that are connected or not
    (``directed``: by one arc, which moves both rows where messages are symmetrised), under
    ``5-edges`` a node that is connected to five others or not; at node level a record that writes
    to a few rows and is there or not (``add-remove``), or has one label or the other (``replace``).
    The claim is the price of the hops alone, or the card's epsilon if that is less.

    Args:
        estimator: LabelGAP at level edge, or NodeLabelGAP; it is not changed.
        trials: independent canaries, for each role.
        role: where nodes outside the training set send in a separate hop: whose record differs,
            ``training``, ``others`` or ``both``. Of both the worse result is reported.
        options: of every audit.

    >>> from gapgnn import LabelGAP
    >>> audit_messages(LabelGAP(epsilon=4.0), trials=400).holds
    True
    """
    check_choice("role", role, ("both", *ROLES))
    if estimator.level == "none" or not isinstance(estimator, LabelGAP | NodeLabelGAP):
        raise InputError(
            "`estimator` must send class codes, as label-gap at level edge and node-label-gap do. "
            f"Got {estimator.method} at level {estimator.level!r}."
        )
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    if not _Canaries(estimator).has_second_role:
        if role == "others":
            raise InputError(
                "`role` must be training or both where people who do not train send nothing of "
                "their own. Got 'others'."
            )
        return _audit_role(estimator, "training", trials, **options)
    reports = {
        one: _audit_role(estimator, one, trials, **options)
        for one in (ROLES if role == "both" else (role,))
    }
    worst = min(
        reports.values(), key=lambda r: (r.holds, r.epsilon_claimed - r.epsilon_lower_bound)
    )
    found = {
        name: {
            "epsilon_claimed": report.epsilon_claimed,
            "epsilon_lower_bound": report.epsilon_lower_bound,
            "holds": report.holds,
        }
        for name, report in reports.items()
    }
    return replace(worst, details={**worst.details, "roles": found})


def _audit_role(
    estimator: NodeClassifier, role: str, trials: int, **options: Unpack[Options]
) -> AuditReport:
    """Audit what people of one role are in."""
    size = 2 * _Canaries(estimator).links if estimator.level == "edge" else 1 + _NEIGHBOURS
    if role == "others":
        size += 2 * _FEEDERS
    at_once = max(LEAST_TRIALS, _NODES_PER_FIT // size)

    def attempt(run: Attempt) -> AuditReport:
        canaries = _Canaries(estimator, role)
        seen = run.run(canaries.scores, at_once=at_once, threshold=0.5)
        return run.conclude(
            {"canaries": replace(seen, price=gaussian_price(canaries.delta))},
            epsilon=canaries.epsilon,
            delta=canaries.delta,
            checks=canaries.checks,
            details={
                "level": estimator.level,
                "relation": canaries.relation.name,
                "method": estimator.method,
                "role": role,
                "hops": canaries.hops,
                "noise": estimator.noise,
            },
        )

    return confirmed("messages", attempt, trials, **options)


def check_card(card: PrivacyCard) -> Check:
    """Compare what all events on a card cost together with the epsilon that it states.

    >>> from gapgnn import LabelGAP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> model = LabelGAP(epsilon=4.0, epochs=2).fit(social_graph(num_nodes=300, mean_degree=10))
    >>> check_card(model.card_).holds
    True
    """
    if card.epsilon is None or card.delta is None:
        raise InputError("`card` must have a privacy guarantee to be compared. Got none.")
    price = account(_events(card), card.delta, relation=card.relation).epsilon
    return Check("epsilon of the events on the card", price, card.epsilon)


def check_roles(card: PrivacyCard) -> list[Check]:
    """Compare what each group's events cost alone with the epsilon of a card.

    Nobody is in two groups, and everybody is in events without one (privacy page, section 1). Each
    sum is accounted without groups, so that it does not rest on how they are put together.
    """
    if card.epsilon is None or card.delta is None:
        raise InputError("`card` must have a privacy guarantee to be compared. Got none.")
    events = _events(card)
    checks = []
    for group in dict.fromkeys(filter(None, map(group_of, events))):
        alone = [_of_everybody(event) for event in events if group_of(event) in ("", group)]
        price = account(alone, card.delta, relation=card.relation).epsilon
        checks.append(Check(f"epsilon of role {group} alone", price, card.epsilon))
    return checks


def _of_everybody(event: Event) -> Event:
    values = event.to_dict()
    for name in ("group", "option"):
        values.pop(name, None)
    return Event.from_dict(values)


def _events(card: PrivacyCard) -> list[Event]:
    return [Event.from_dict(dict(event)) for event in card.events]


class _Canaries:
    """Fits copies of an estimator on canaries and reads their released hops."""

    def __init__(self, estimator: NodeClassifier, role: str = "training") -> None:
        self.estimator = estimator
        self.role = role
        is_directed, self.links = estimator.level == "node", 1
        if estimator.level == "edge" and estimator.relation != "auto":
            links = links_of(estimator.relation)
            is_directed, self.links = links.are_arcs, links.count
        self.is_directed = is_directed
        plan = self._planned()
        planned = (plan.options or (plan,))[-1].hops
        self.asks_mean_degree = bool(plan.options)
        self.has_second_role = len(planned) > 1
        self.is_symmetrised = any(one.is_symmetrised for one in planned.values())
        self.is_normalised = any(one.is_normalised for one in planned.values())
        self.to_self = any(one.to_self for one in planned.values())
        self.relation = resolve_relation(
            estimator.level, estimator.relation, is_directed=is_directed
        )
        self.epsilon = self.delta = 0.0
        self.hops = 0
        self.checks: list[Check] = []

    def _planned(self) -> Plan[Any]:
        """Return what the estimator plans on canaries, whose noise is not asked."""
        labels = np.arange(2 * LEAST_TRIALS) % 2
        nobody = np.zeros(0, dtype=np.int64)
        graph = _graph(nobody, nobody, labels, directed=self.is_directed)
        facts = PublicFacts.of(graph, level=self.estimator.level)
        # As many train as in any batch.
        plain: NodeClassifier = clone(self.estimator).set_params(**NO_CLASSES)
        return plain.plan(replace(facts, num_train=_NODES_PER_FIT))

    def scores(self, worlds: NDArray[np.bool_]) -> Scores:
        """Return per canary how far the sums moved, in units of what its presence moves them by."""
        build = self._stars if self.estimator.level == "edge" else self._records
        if self.role == "others":
            build = self._others
        graph, rows, signs = build(worlds)
        changes: dict[str, Any] = {"epochs": 1, "repeats": 1, "insecure_noise_seed": None}
        changes["device"] = "cpu"
        if self.asks_mean_degree:
            # Canaries are few, and of few no hop would be released: audited is the dearest option.
            changes["hop_share"] = SHARES[-1]
        with fitted(self.estimator, graph, **changes, **NO_CLASSES) as model:
            card, kept = model.card_, model.releases_.training()
        events = [event for event in _events(card) if isinstance(event, Gaussian)]
        if card.epsilon is None or card.delta is None or not events:
            raise InputError("`estimator` must release noisy hops to be audited. Got none.")
        paid = events
        if self.is_normalised:
            # Nobody is in both hops: each is held to its own price.
            events = [event for event in events if event.group == self.role]
        self.delta = card.delta
        hops = kept.hops[int(kept.has_hop_zero) :]
        self.checks = [
            Check("hops released", len(hops), sum(event.count for event in paid)),
            check_card(card),
            *check_roles(card),
        ]
        if not events:
            # Released or not, nobody paid for it: the count above says so, and noise is not known.
            self.epsilon, self.hops = 0.0, 0
            return np.zeros((1, len(worlds)))
        price = account(events, self.delta, relation=self.relation).epsilon
        self.epsilon = min(price, card.epsilon)
        std = events[0].noise_multiplier * self._sensitivity(card)
        # Hops are kept in units of their noise; the class code of two classes has one coordinate.
        if self.is_normalised:
            place = ROLES.index(self.role)
            hops = hops[place : place + 1]
        released = torch.stack(list(hops)).double()[:, :, 0] * std
        self.hops = len(released)
        sent = 1 / math.sqrt(_NEIGHBOURS + self.to_self) if self.is_normalised else 1.0
        seen = released[:, torch.from_numpy(rows)].mean(dim=0).numpy() * signs / sent
        along: Scores = seen.mean(axis=1)[None]
        return along / 2 + 0.5 if self.relation == Replace() else along

    def _sensitivity(self, card: PrivacyCard) -> float:
        """Return how far one hop moves, by the operator that the card describes."""
        if card.level == "edge":
            return (Symmetrized if self.is_symmetrised else Neighbors).bound(self.relation)
        return OutDegreeNormalized.bound(self.relation)

    def _stars(
        self, worlds: NDArray[np.bool_]
    ) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
        """Nodes of one class and as many of the other as links are protected, joined by coin.

        With unconnected nodes beside them both classes are as common, so that all codes are long.
        """
        size = 2 * self.links
        centre = size * np.arange(len(worlds))
        others = centre[:, None] + np.arange(1, 1 + self.links)
        labels = np.zeros(size * len(worlds), dtype=np.int64)
        labels[others] = 1
        ends = np.repeat(centre[worlds], self.links), others[worlds].ravel()
        graph = _graph(*ends, labels, directed=self.is_directed)
        # What presence adds to each row: the centre's code, and to the centre that of all others.
        rows, added = others, np.full(self.links, _code(0))
        if self.is_symmetrised or not self.is_directed:
            rows = np.concatenate([centre[:, None], others], axis=1)
            added = np.concatenate([[self.links * _code(1)], added])
        # The mean over the rows is then 1 where the links are there.
        signs = added * len(added) / (added**2).sum()
        return graph, rows, np.tile(signs, (len(worlds), 1))

    def _records(
        self, worlds: NDArray[np.bool_]
    ) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
        """Records that write to some rows: there or not, or of one of two opposite classes."""
        degree = _NEIGHBOURS
        size = degree + 1
        centre = size * np.arange(len(worlds))
        targets = centre[:, None] + np.arange(1, size)
        labels = np.arange(size * len(worlds)) % 2
        labels[centre] = 1
        gone = centre[~worlds]
        if self.relation == Replace():
            labels[gone], gone = 0, gone[:0]
        graph = _graph(np.repeat(centre, degree), targets.ravel(), labels, directed=True)
        graph, place = without(graph, gone)
        return graph, place[targets], np.full((len(worlds), degree), _code(1))

    def _others(
        self, worlds: NDArray[np.bool_]
    ) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
        """Records of people who do not train, and list some about whom training people agree.

        These agree so much, whatever the noise of the first hop, that the record is sure of what it
        sends in the second: the code of the class of those on its list. There or not; under
        ``replace`` it lists people of one class or those of the other.
        """
        degree = _NEIGHBOURS
        sides = 2 if self.relation == Replace() else 1
        size = 1 + sides * (degree + _FEEDERS)
        centre = size * np.arange(len(worlds))
        labels = np.zeros(size * len(worlds), dtype=np.int64)
        sources, ends, rows, signs = [], [], [], []
        for side in range(sides):
            label, first = 1 - side, 1 + side * (degree + _FEEDERS)
            targets = centre[:, None] + np.arange(first, first + degree)
            feeders = centre[:, None] + np.arange(first + degree, first + degree + _FEEDERS)
            labels[feeders] = label
            sources.append(np.repeat(feeders, degree, axis=1).ravel())
            ends.append(np.tile(targets, (1, _FEEDERS)).ravel())
            # Under `replace` a mean over both lists is half of what one of them says.
            rows.append(targets)
            signs.append(np.full(targets.shape, sides * (1 - 2 * side) * _code(label)))
            lists_them = (worlds != bool(side)) if sides == 2 else np.ones_like(worlds)
            sources.append(np.repeat(centre[lists_them], degree))
            ends.append(targets[lists_them].ravel())
        graph = _graph(np.concatenate(sources), np.concatenate(ends), labels, directed=True)
        train, rest = np.array(graph.train_mask), np.array(graph.test_mask)
        train[centre], rest[centre] = False, True
        graph = graph.with_masks(train, graph.val_mask, rest)
        graph, place = without(graph, centre[~worlds] if sides == 1 else centre[:0])
        return graph, place[np.concatenate(rows, axis=1)], np.concatenate(signs, axis=1)


def _code(label: int) -> float:
    """Return what a node of one of two classes sends."""
    return float(class_codes(2)[label, 0])


def _graph(
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    directed: bool,
) -> Graph:
    """Return canaries that are all trained on, and a few nodes aside."""
    count = len(labels)
    graph = Graph.from_arcs(
        sources,
        targets,
        num_nodes=count + _ASIDE,
        features=np.ones((count + _ASIDE, 1), dtype=np.float32),
        labels=np.concatenate([labels, np.arange(_ASIDE) % 2]),
        directed=directed,
        name="canaries",
    )
    place = np.arange(count + _ASIDE)
    aside = place >= count
    return graph.with_masks(~aside, aside & (place % 2 == 0), aside & (place % 2 == 1))
