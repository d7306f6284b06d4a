"""Audit of what GAP really releases when nodes send their labels, stage after stage.

The audit of the aggregation runs one mechanism at a time. Here the whole estimator is fitted on
canaries, with its stages and networks in between, and the attacker reads the hops that the model
keeps: all that was ever computed from the edges. They must cost no more than the events on the card
that pay for them, nor these events more than the card says. A hop that nobody charged, or a stage
that reads the edges beside the noise, shows here and nowhere else (privacy page, sections 2 and 8).

Canaries are training nodes, which send the same class code in every hop. So what an edge or a
record adds to the released sums is known in advance, however the networks were trained, and groups
of canaries are independent trials. All hops are read together: their mean along what was sent is
the best statistic there is.

Two things need no trials: the model keeps no more hops than the card charges, and the events on the
card cost no more than its epsilon.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gapgnn.attacks import fitted
from gapgnn.attacks.audits.aggregation import without
from gapgnn.attacks.audits.bounds import LEAST_TRIALS, Scores, gaussian_price
from gapgnn.attacks.audits.report import Attempt, AuditReport, Check, Options, confirmed
from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph
from gapgnn.privacy import aggregation_sensitivity, links_of, resolve_relation
from gapgnn.privacy.accounting import Event, Gaussian, account

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gapgnn.methods.gap import GAP
    from gapgnn.privacy.card import PrivacyCard

# However long a list is, divided messages move all rows together by 1.
_DIVIDED_LIST = 9
_NODES_PER_FIT = 100_000
# Nodes without edges that are validated and tested on.
_ASIDE = 8
# Canaries have classes of their own: what is said about those of the model's data is not theirs.
NO_CLASSES: dict[str, None] = {"class_weight": None, "threshold": None}


def audit_messages(
    estimator: GAP,
    *,
    trials: int = 20_000,
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the hops that a GAP with label messages releases and bound their epsilon from below.

    A copy of the estimator is fitted for one epoch per network, on canaries with a ledger of its
    own. Neighbours (privacy page, section 1): at edge level two people who are connected or not
    (``directed``: one names the other, which moves both rows where messages go both ways), under
    ``5-edges`` one who is connected to five others or not; at node
    level a record that writes to D rows and is there or not (``add-remove``), or has one label or
    the other (``replace``). The claim is the price of the hops alone, or the card's epsilon if that
    is less.

    Args:
        estimator: GAP at level edge or node that sends labels; it is not changed.
        trials: independent canaries.
        options: of every audit.

    >>> from gapgnn import GAP
    >>> audit_messages(GAP(epsilon=4.0), trials=400).holds
    True
    """
    if estimator.level == "none" or estimator.messages == "features":
        raise InputError(
            "`messages` must be labels or both, at level edge or node, to be audited. Got "
            f"{estimator.messages!r} at level {estimator.level!r}."
        )
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    if estimator.level == "edge":
        size = 1 + _Canaries(estimator).links
    else:
        size = _list_length(estimator) + 1
    at_once = max(LEAST_TRIALS, _NODES_PER_FIT // size)

    def attempt(run: Attempt) -> AuditReport:
        canaries = _Canaries(estimator)
        seen = run.run(canaries.scores, at_once=at_once, threshold=0.5)
        return run.conclude(
            {"canaries": replace(seen, price=gaussian_price(canaries.delta))},
            epsilon=canaries.epsilon,
            delta=canaries.delta,
            checks=canaries.checks,
            details={
                "level": estimator.level,
                "relation": canaries.relation,
                "messages": estimator.messages,
                "hops": canaries.hops,
                "noise": estimator.noise,
            },
        )

    return confirmed("messages", attempt, trials, **options)


def check_card(card: PrivacyCard) -> Check:
    """Compare what all events on a card cost together with the epsilon that it states.

    >>> from gapgnn import GAP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> model = GAP(epsilon=4.0, epochs=2).fit(social_graph(num_nodes=300, mean_degree=10))
    >>> check_card(model.card_).holds
    True
    """
    if card.epsilon is None or card.delta is None:
        raise InputError("`card` must make a promise to be compared. Got none.")
    price = account(_events(card), card.delta, relation=card.relation).epsilon
    return Check("epsilon of the events on the card", price, card.epsilon)


def _events(card: PrivacyCard) -> list[Event]:
    return [Event.from_dict(dict(event)) for event in card.events]


class _Canaries:
    """Fits copies of an estimator on canaries and reads their released hops."""

    def __init__(self, estimator: GAP) -> None:
        self.estimator = estimator
        is_directed, self.links = estimator.level == "node", 1
        if estimator.level == "edge" and estimator.relation != "auto":
            links = links_of(estimator.relation)
            is_directed, self.links = links.are_arcs, links.count
        self.is_directed = is_directed
        self.both_ways = estimator.goes_both_ways(is_directed=is_directed)
        self.relation = resolve_relation(
            estimator.level, estimator.relation, is_directed=is_directed
        )
        self.epsilon = self.delta = 0.0
        self.hops = 0
        self.checks: list[Check] = []

    def scores(self, worlds: NDArray[np.bool_]) -> Scores:
        """Return per canary how far the sums moved, in units of what its presence moves them by."""
        build = self._stars if self.estimator.level == "edge" else self._records
        graph, rows, signs = build(worlds)
        changes = {"epochs": 1, "repeats": 1, "insecure_noise_seed": None, "device": "cpu"}
        with fitted(self.estimator, graph, **changes, **NO_CLASSES) as model:
            card, kept = model.card_, model.releases_.training()
        events = [event for event in _events(card) if isinstance(event, Gaussian)]
        if card.epsilon is None or card.delta is None or not events:
            raise InputError("`estimator` must release noisy hops to be audited. Got none.")
        is_divided = card.level == "node" and card.max_degree is None
        paid = events
        if is_divided:
            # A training person is in the first hop alone, which is held to its own price.
            events = [event for event in events if event.label == "aggregation"]
        self.delta = card.delta
        price = account(events, self.delta, relation=self.relation).epsilon
        self.epsilon = min(price, card.epsilon)
        std = events[0].noise_multiplier * aggregation_sensitivity(
            card.level,
            self.relation,
            max_degree=card.max_degree,
            is_divided=is_divided,
            both_ways=self.both_ways,
        )
        # Hops are kept in units of their noise; the class code of two classes has one coordinate.
        hops = kept.hops[int(kept.has_hop_zero) :]
        kept_hops, charged = len(hops), sum(event.count for event in paid)
        if is_divided:
            hops = hops[:1]
        released = torch.stack(list(hops)).double()[:, :, 0] * std
        self.hops = len(released)
        self.checks = [Check("hops released", kept_hops, charged), check_card(card)]
        sent = 1.0 if self.estimator.messages == "labels" else math.sqrt(0.5)
        if is_divided:
            sent /= math.sqrt(_list_length(self.estimator) + (self.estimator.own == "record"))
        seen = released[:, torch.from_numpy(rows)].mean(dim=0).numpy() * signs / sent
        along: Scores = seen.mean(axis=1)[None]
        return along / 2 + 0.5 if self.relation == "replace" else along

    def _stars(
        self, worlds: NDArray[np.bool_]
    ) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
        """Nodes of one class and as many of the other as links are protected, joined by coin."""
        size = self.links + 1
        centre = size * np.arange(len(worlds))
        others = centre[:, None] + np.arange(1, size)
        labels = np.ones(size * len(worlds), dtype=np.int64)
        labels[centre] = 0
        ends = np.repeat(centre[worlds], self.links), others[worlds].ravel()
        graph = _graph(*ends, labels, directed=self.is_directed)
        # What presence adds to each row: the centre's code, and to the centre that of all others.
        rows, added = others, np.full(self.links, _code(0))
        if self.both_ways or not self.is_directed:
            rows = np.concatenate([centre[:, None], others], axis=1)
            added = np.concatenate([[self.links * _code(1)], added])
        # The mean over the rows is then 1 where the links are there.
        signs = added * len(added) / (added**2).sum()
        return graph, rows, np.tile(signs, (len(worlds), 1))

    def _records(
        self, worlds: NDArray[np.bool_]
    ) -> tuple[Graph, NDArray[np.int64], NDArray[np.float64]]:
        """Records that write to D rows each: there or not, or of one of two opposite classes."""
        degree = _list_length(self.estimator)
        size = degree + 1
        centre = size * np.arange(len(worlds))
        targets = centre[:, None] + np.arange(1, size)
        labels = np.arange(size * len(worlds)) % 2
        labels[centre] = 1
        gone = centre[~worlds]
        if self.relation == "replace":
            labels[gone], gone = 0, gone[:0]
        graph = _graph(np.repeat(centre, degree), targets.ravel(), labels, directed=True)
        graph, place = without(graph, gone)
        return graph, place[targets], np.full((len(worlds), degree), _code(1))


def _list_length(estimator: GAP) -> int:
    """Return how many rows a record in question writes to: as many as it may, or a few."""
    bound = estimator._list_bound()
    return _DIVIDED_LIST if bound is None else bound


def _code(label: int) -> float:
    """Return what a node of one of two classes sends."""
    from gapgnn.methods.gap import class_codes

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
