"""Audits of the noisy hops and of the degree sampler, on worst-case neighbours.

Many trials run in one call. The graph is a union of small separate groups; in each group a coin
decides between two neighbouring groups. A group's released rows are a function of that group's
arcs, of noise that belongs to its own rows (each row has its own bytes of the key stream) and, for
the sampler, of a keyed hash of its own ids. So groups are independent trials of the same mechanism,
and the release of all other groups tells nothing about one of them.

What is audited is the noisy sum ``PrivateAggregation.hop(..., normalise=False)``: it is what the
budget pays for, and scaling it to norm 1 afterwards only loses information. What goes into the next
hop is the normalised row, as in ``PrivateAggregation.run``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.attacks.audits.bounds import LEAST_TRIALS, Trials, coins, gaussian_price
from gapgnn.attacks.audits.hop_shift import bare_graph, check_hops
from gapgnn.attacks.audits.report import AuditReport, View, conclude, confirmed
from gapgnn.errors import check_choice, check_integer
from gapgnn.graph import Graph, induced
from gapgnn.privacy import resolve_relation
from gapgnn.privacy.accounting import Gaussian, account, calibrate
from gapgnn.privacy.mechanisms import Construction, PrivateAggregation, row_normalise
from gapgnn.rng import NoiseKey, experiment_rng

Progress = Callable[[int, int], None]
# Two columns: the canary's direction, and one orthogonal to it for everybody else.
_WIDTH = 2
_NODES_PER_CALL = 400_000


@dataclass(frozen=True)
class _Setting:
    """What is claimed, and the noise that is supposed to keep the claim."""

    level: str
    relation: str
    epsilon: float
    delta: float
    hops: int
    noise_multiplier: float
    max_degree: int | None
    construction: Construction

    @classmethod
    def of(
        cls,
        *,
        level: str,
        relation: str,
        epsilon: float,
        delta: float,
        hops: int,
        noise_multiplier: float | None,
        max_degree: int,
        construction: Construction,
        charged: int | None = None,
    ) -> _Setting:
        """Calibrate to the budget, or price the noise that is given."""
        check_choice("level", level, ("edge", "node"))
        relation = resolve_relation(level, relation, is_directed=False)
        check_integer("hops", hops, at_least=1)
        check_integer("max_degree", max_degree, at_least=1)
        paid = hops if charged is None else check_integer("charged", charged, at_least=1)
        if noise_multiplier is None:
            template = [Gaussian(1.0, count=paid)]
            found = calibrate(template, epsilon=epsilon, delta=delta, relation=relation)
            noise_multiplier, epsilon = found.noise_multiplier, found.epsilon
        else:
            events = [Gaussian(noise_multiplier, count=paid)]
            epsilon = account(events, delta, relation=relation).epsilon
        bound = max_degree if level == "node" else None
        return cls(level, relation, epsilon, delta, hops, noise_multiplier, bound, construction)

    def aggregation(self, graph: Graph) -> PrivateAggregation:
        """Return the shipped mechanism with a fresh secret key."""
        return PrivateAggregation(
            graph,
            level=self.level,
            relation=self.relation,
            noise_multiplier=self.noise_multiplier,
            max_degree=self.max_degree,
            keys=[NoiseKey.fresh()],
            construction=self.construction,
        )

    def conclude(self, mechanism: str, trials: Trials, confidence: float) -> AuditReport:
        """Report the bounds, and how far neighbours are apart without noise."""
        details: dict[str, Any] = {
            "level": self.level,
            "relation": self.relation,
            "hops": self.hops,
            "noise_multiplier": self.noise_multiplier,
            "noise": self.construction,
        }
        if self.max_degree is not None:
            details["max_degree"] = self.max_degree
        return conclude(
            mechanism,
            [View("canaries", trials, gaussian_price(self.delta))],
            epsilon=self.epsilon,
            delta=self.delta,
            confidence=confidence,
            details=details,
            checks=check_hops(
                level=self.level,
                relation=self.relation,
                hops=self.hops,
                max_degree=self.max_degree,
                construction=self.construction,
            ),
        )


def audit_aggregation(
    *,
    level: str = "edge",
    relation: str = "auto",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    hops: int = 2,
    charged: int | None = None,
    trials: int = 100_000,
    noise_multiplier: float | None = None,
    max_degree: int = 10,
    confidence: float = 0.95,
    construction: Construction = "safe",
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack the noisy hops with canaries and bound their epsilon from below.

    Neighbours (privacy page, sections 1 and 8): ``directed``, the arc u->v is there or not;
    ``undirected``, the edge between u and v, which changes two rows; ``add-remove``, a record that
    writes to D rows; ``replace``, a record whose new version writes the opposite vector to the same
    D rows. The attacker knows everything but the coin and adds up, over rows and hops, the released
    row's component along the row the canary sent: for Gaussian noise no statistic is better. A
    second statistic, the difference of two hops, sees noise that was used twice. How far the
    neighbours are apart is also computed without noise, with lists that are longer than D
    (:func:`~gapgnn.attacks.audits.hop_shift.check_hops`).

    At node level a person's own row is not covered, so it is not looked at; in its place the
    canary sends a known direction at every hop, which an adaptive adversary may choose.

    Args:
        level: ``edge`` or ``node``.
        relation: of the level; auto is undirected or add-remove.
        epsilon: claimed budget, for which the noise is calibrated.
        delta: of the claim.
        hops: number of noisy hops that are released and read together.
        charged: how many of them the claim pays for; left out: all.
        trials: independent canaries.
        noise_multiplier: audit this noise instead; the claim is then what it is accounted at.
        max_degree: D at node level.
        confidence: of the lower bound.
        construction: ``safe`` or ``fast`` noise.
        seed: of the coins; the noise is always secret.
        progress: called with finished and all trials.

    >>> report = audit_aggregation(epsilon=4.0, trials=2_000)
    >>> report.mechanism, report.holds
    ('aggregation', True)
    """
    setting = _Setting.of(
        level=level,
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        hops=hops,
        noise_multiplier=noise_multiplier,
        max_degree=max_degree,
        construction=construction,
        charged=charged,
    )
    size = 2 if level == "edge" else max_degree + 1
    attack = _edge_trials if level == "edge" else _node_trials

    def attempt(number: int) -> AuditReport:
        rng = experiment_rng(seed, "audit aggregation", number)
        found = _in_batches(setting, attack, trials, size, rng, progress)
        return setting.conclude("aggregation", found, confidence)

    return confirmed(attempt)


def audit_sampler(
    *,
    relation: str = "add-remove",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    trials: int = 20_000,
    noise_multiplier: float | None = None,
    max_degree: int = 4,
    sources: int = 50,
    confidence: float = 0.95,
    construction: Construction = "safe",
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack the rule that cuts out-lists, on the hub graph of the privacy page's section 1.

    ``sources`` people each list the same D targets and a person v, so every list is one entry too
    long. v's own list names the D targets. When v withdraws, entries that name v dangle. Two
    statistics: along v's own direction the targets must not tell more than the claim; along the
    direction of the sources they must not tell anything, unless slots are refilled.

    Relation ``add-remove`` at node level, sensitivity sqrt(D), one hop.

    >>> audit_sampler(epsilon=4.0, trials=200).holds
    True
    """
    check_choice("relation", relation, ("add-remove",))
    check_integer("sources", sources, at_least=1)
    setting = _Setting.of(
        level="node",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        hops=1,
        noise_multiplier=noise_multiplier,
        max_degree=max_degree,
        construction=construction,
    )

    def attack(setting: _Setting, worlds: NDArray[np.bool_]) -> Trials:
        return _hub_trials(setting, worlds, sources)

    def attempt(number: int) -> AuditReport:
        rng = experiment_rng(seed, "audit sampler", number)
        found = _in_batches(setting, attack, trials, sources + max_degree + 1, rng, progress)
        return setting.conclude("sampler", found, confidence)

    return confirmed(attempt)


def _in_batches(
    setting: _Setting,
    attack: Callable[[_Setting, NDArray[np.bool_]], Trials],
    trials: int,
    group_size: int,
    rng: np.random.Generator,
    progress: Progress | None,
) -> Trials:
    """Run enough calls of the mechanism for all trials, each with its own key."""
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    calls = max(1, math.ceil(trials * group_size / _NODES_PER_CALL))
    calls = min(calls, trials // LEAST_TRIALS)
    parts, done = [], 0
    for worlds in np.array_split(coins(rng, trials), calls):
        parts.append(attack(setting, worlds))
        done += len(worlds)
        if progress is not None:
            progress(done, trials)
    return Trials.joined(parts)


def _edge_trials(setting: _Setting, worlds: NDArray[np.bool_]) -> Trials:
    """Pairs of nodes 2i and 2i + 1, joined where the coin says so."""
    first = 2 * np.arange(len(worlds))
    is_directed = setting.relation == "directed"
    graph = bare_graph(first[worlds], first[worlds] + 1, 2 * len(worlds), directed=is_directed)
    rows = torch.zeros(graph.num_nodes, _WIDTH)
    rows[0::2, 0] = 1
    rows[1::2, 1] = 1
    aggregation = setting.aggregation(graph)
    projections, sent, seen = [], [], []
    for hop in range(1, setting.hops + 1):
        noisy = aggregation.hop(rows, hop, normalise=False).double()
        # Rows of the second node receive from the first; both directions if the edge has two.
        pairs = [(noisy[1::2], rows[0::2].double())]
        if not is_directed:
            pairs.append((noisy[0::2], rows[1::2].double()))
        projections.append(sum(((a * b).sum(dim=1) for a, b in pairs), torch.zeros(len(worlds))))
        seen.append(pairs[0][0])
        sent.append(pairs[0][1])
        rows = row_normalise(noisy.float())
    shift = setting.hops * (1 if is_directed else 2)
    scores = [torch.stack(projections).sum(dim=0) / shift, *_difference(seen, sent)]
    return Trials(torch.stack(scores).numpy(), worlds, threshold=0.5)


def _node_trials(setting: _Setting, worlds: NDArray[np.bool_]) -> Trials:
    """Canary records that write to D rows each: there or not, or of one of two opposite kinds."""
    degree = setting.max_degree or 1
    size = degree + 1
    centre = size * np.arange(len(worlds))
    targets = centre[:, None] + np.arange(1, size)
    graph = bare_graph(
        np.repeat(centre, degree), targets.ravel(), size * len(worlds), directed=True
    )
    is_replace = setting.relation == "replace"
    keep = np.ones(graph.num_nodes, dtype=np.bool_)
    if not is_replace:
        keep[centre[~worlds]] = False
        graph = induced(graph, keep, dangle=True)
    place = np.cumsum(keep) - 1
    signs = torch.from_numpy(np.where(worlds, 1.0, -1.0)[keep[centre]]).float()
    canaries = torch.from_numpy(place[centre[keep[centre]]])
    received = torch.from_numpy(place[targets])
    aggregation = setting.aggregation(graph)
    projections, sent, seen = [], [], []
    for hop in range(1, setting.hops + 1):
        # Another direction at the next hop, so that noise used twice would cancel visibly.
        column = (hop - 1) % _WIDTH
        rows = torch.zeros(graph.num_nodes, _WIDTH)
        rows[canaries, column] = signs
        noisy = aggregation.hop(rows, hop, normalise=False).double()[received]
        projections.append(noisy[:, :, column].sum(dim=1))
        seen.append(noisy.mean(dim=1))
        sent.append(torch.eye(_WIDTH, dtype=torch.float64)[column].expand(len(worlds), _WIDTH))
    shift = setting.hops * degree
    total = torch.stack(projections).sum(dim=0) / shift
    scores = [total / 2 + 0.5 if is_replace else total, *_difference(seen, sent)]
    return Trials(torch.stack(scores).numpy(), worlds, threshold=0.5)


def _hub_trials(setting: _Setting, worlds: NDArray[np.bool_], sources: int) -> Trials:
    """Hub groups: v first, then D targets, then the sources that list all of them."""
    degree = setting.max_degree or 1
    size = 1 + degree + sources
    centre = size * np.arange(len(worlds))
    targets = centre[:, None] + np.arange(1, degree + 1)
    others = centre[:, None] + np.arange(degree + 1, size)
    listed = np.concatenate([centre[:, None], targets], axis=1)
    from_v = np.repeat(centre, degree), targets.ravel()
    from_others = np.repeat(others.ravel(), degree + 1), np.repeat(listed, sources, axis=0).ravel()
    arcs = [np.concatenate(pair) for pair in zip(from_v, from_others, strict=True)]
    graph = bare_graph(arcs[0], arcs[1], size * len(worlds), directed=True)
    keep = np.ones(graph.num_nodes, dtype=np.bool_)
    keep[centre[~worlds]] = False
    graph = induced(graph, keep, dangle=True)
    place = np.cumsum(keep) - 1
    rows = torch.zeros(graph.num_nodes, _WIDTH)
    rows[place[centre[worlds]], 0] = 1
    rows[place[others.ravel()], 1] = 1
    noisy = setting.aggregation(graph).hop(rows, 1, normalise=False).double()
    sums = noisy[torch.from_numpy(place[targets])].sum(dim=1)
    # Fewer arcs from the sources speak for v, who would then hold some of their slots.
    scores = torch.stack([sums[:, 0] / degree, -sums[:, 1]])
    return Trials(scores.numpy(), worlds, threshold=0.5)


def _difference(seen: list[Tensor], sent: list[Tensor]) -> list[Tensor]:
    """Return the component of hop 1 less hop 2 along the difference of what was sent.

    Fresh noise leaves it useless; noise used twice cancels and leaves the canary alone.
    """
    if len(seen) < 2:
        return []
    change = sent[0] - sent[1]
    size = change.square().sum(dim=1)
    along = ((seen[0] - seen[1]) * change).sum(dim=1)
    return [torch.where(size > 1e-6, along / size.clamp(min=1e-6), 0.5)]
