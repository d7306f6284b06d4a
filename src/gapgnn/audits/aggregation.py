"""Audits of the noisy hops and of the degree sampler, on worst-case neighbours.

Many trials run in one call. The graph is a union of small separate groups; in each group a coin
decides between two neighbouring groups. A group's released rows are a function of that group's
arcs, of noise that belongs to its own rows (each row has its own bytes of the key stream) and, for
the sampler, of a keyed hash of its own ids. So groups are independent trials of the same mechanism,
and the release of all other groups carries no information about one of them.

What is audited is the noisy sum ``PrivateAggregation.hop(..., normalise=False)``: it is what the
budget pays for, and scaling it to norm 1 afterwards only loses information. What goes into the next
hop is the normalised row, as in ``PrivateAggregation.run``.

Beside the statistics, how far one edge or one record moves a hop is computed exactly: the same
secret key draws the same noise, so two neighbouring graphs that are released under one key differ
by what the noise is there to hide, and by nothing else. A hop that forgets to cut the lists shows
outright, wherever it runs and whichever of the hops it is.

With several edge types, neighbours differ in an edge of one type (``any``), or in one of every
type at once (``each``). Under ``each`` every second type has the edge in the other data set, since
noise shared by two types then cancels while the canary does not. Under ``any`` the union of edge
types is released too, and read beside the type of the canary. The distance by which all sums move
together is compared with what is charged.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.audits.bounds import LEAST_TRIALS, Scores, gaussian_price
from gapgnn.audits.report import Attempt, AuditReport, Check, Options, claim, confirmed
from gapgnn.errors import InputError, check_choice, check_integer
from gapgnn.graph import Graph, induced, join_edge_types
from gapgnn.graph.store import open_store, store_graph
from gapgnn.privacy import (
    AddRemove,
    Links,
    Relation,
    Replace,
    links_of,
    resolve_edge_types,
    resolve_relation,
)
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.mechanisms import (
    PrivateAggregation,
    SafeOrFast,
    hop_mechanisms,
    row_normalise,
)
from gapgnn.rng import NoiseKey

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Two columns: the canary's direction, and one orthogonal to it for everybody else.
_WIDTH = 2
_NODES_PER_CALL = 400_000
# A fault may begin with the second hop, so one hop is never enough.
_LEAST_HOPS = 3
_PLACES = (("in memory", "cpu"), ("on disk", "cpu"), ("on an accelerator", "cuda"))


@dataclass(frozen=True)
class _Setting:
    """The hops that are audited, and the noise that is supposed to keep the claim."""

    relation: Relation
    hops: int
    noise_multiplier: float
    max_degree: int | None
    noise: SafeOrFast
    edge_types: int = 1
    protects: str = "each"
    without_union: bool = False
    weighted: bool = False
    normalised: bool = False
    charged: int | None = None
    symmetrised: bool = False

    @property
    def links(self) -> Links:
        """How many links of one person a canary has, at edge level."""
        return links_of(self.relation)

    @property
    def level(self) -> str:
        """What is protected."""
        return self.relation.level

    def star_arcs(
        self, centres: NDArray[np.int64], others: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the arcs between each centre and its row of others, as neighbours differ in them.

        A graph without direction has the second arc of an edge by itself.
        """
        sources, targets = np.repeat(centres, others.shape[1]), others.ravel()
        if self.symmetrised and not self.links.are_arcs:
            return np.concatenate([sources, targets]), np.concatenate([targets, sources])
        return sources, targets

    @property
    def has_total(self) -> bool:
        """Whether the total over all edge types is released beside them."""
        return self.edge_types > 1 and self.protects == "any" and not self.without_union

    @property
    def is_directed(self) -> bool:
        """Whether the canaries of edge level are arcs."""
        return self.links.are_arcs or self.symmetrised

    def aggregation(
        self, graph: Graph, *, key: NoiseKey | None = None, device: str = "cpu"
    ) -> PrivateAggregation:
        """Return the shipped mechanism of one edge type."""
        return self.aggregations(graph, key=key, device=device)[0]

    def aggregations(
        self, graph: Graph, *, key: NoiseKey | None = None, device: str = "cpu"
    ) -> list[PrivateAggregation]:
        """Return the shipped mechanisms, with a fresh secret key unless one is given."""
        return hop_mechanisms(
            graph,
            level=self.level,
            relation=self.relation,
            noise_multiplier=self.noise_multiplier,
            max_degree=None if self.normalised else self.max_degree,
            normalised=self.normalised,
            symmetrised=self.symmetrised,
            with_total=self.has_total,
            keys=[NoiseKey.fresh() if key is None else key],
            noise=self.noise,
            device=device,
        )

    def graph(
        self,
        arcs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
        num_nodes: int,
        *,
        directed: bool,
    ) -> Graph:
        """Return a graph with these arcs of each edge type."""
        graphs = [
            bare_graph(*ends, num_nodes, directed=directed, weighted=self.weighted) for ends in arcs
        ]
        return join_edge_types({f"type {place}": graph for place, graph in enumerate(graphs)})

    def audited(
        self,
        mechanism: str,
        attack: Callable[[NDArray[np.bool_]], Scores],
        group_size: int,
        trials: int,
        *,
        epsilon: float,
        delta: float,
        **options: Unpack[Options],
    ) -> AuditReport:
        """Run an attack on enough groups, in calls that each have their own key."""
        check_integer("trials", trials, at_least=LEAST_TRIALS)
        at_once = max(LEAST_TRIALS, _NODES_PER_CALL // group_size)
        details: dict[str, Any] = {
            "level": self.level,
            "relation": self.relation.name,
            "hops": self.hops,
            "noise_multiplier": self.noise_multiplier,
            "noise": self.noise,
        }
        if self.symmetrised:
            details["symmetrised"] = True
        if self.normalised:
            details["normalised"] = True
        elif self.max_degree is not None:
            details["max_degree"] = self.max_degree
        if self.edge_types > 1:
            details |= {
                "edge_types": self.edge_types,
                "protects": self.protects,
                "total": self.has_total,
            }
        if self.weighted:
            details["weighted"] = True

        def attempt(run: Attempt) -> AuditReport:
            price = gaussian_price(delta)
            found = run.run(attack, at_once=at_once, threshold=0.5, price=price)
            return run.conclude(
                {"canaries": found},
                epsilon=epsilon,
                delta=delta,
                details=details,
                checks=[*_check_hops(self), *_check_edge_types(self), *_check_special(self)],
            )

        return confirmed(mechanism, attempt, trials, **options)


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
    noise: SafeOrFast = "safe",
    edge_types: int = 1,
    protects: str = "auto",
    without_union: bool = False,
    weighted: bool = False,
    normalised: bool = False,
    symmetrised: bool = False,
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the noisy hops with canaries and bound their epsilon from below.

    Neighbours (privacy page, sections 1 and 8): ``directed``, the arc u->v is there or not;
    ``undirected``, the edge between u and v, which changes two rows, as one arc does if messages
    are symmetrised; ``5-edges``, five edges of u, which change its own row by five messages and
    five others by one; ``add-remove``, a record that contributes to D rows; ``replace``, a record
    whose new version contributes the opposite vector to the same D rows. The attacker knows
    everything but the coin and sums, over rows and hops, the released row's component along the
    canary's message, which is the optimal statistic for Gaussian noise. A second statistic, the
    difference of two hops, detects reused noise. The distance of the neighbours is also computed
    without noise, with lists that are longer than D.

    At node level a person's own row is not covered, so it is not used; instead the canary sends a
    known direction at every hop, which an adaptive adversary may choose. The same holds for several
    links of one person, whose other ends all send the same message.

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
        noise: ``safe`` or ``fast``.
        edge_types: number of edge types, each with its own hops.
        protects: ``each`` if neighbours differ in every edge type, ``any`` if in one of them; auto
            is any, at node level each.
        without_union: under ``any``, release no sum over the union of the edge types, as GAP does:
            each type has a chain of hops of its own.
        weighted: give the edges weights; a canary weighs 1, the most there is.
        normalised: at node level, audit degree-normalised messages, divided by the square root of
            the sender's out-degree; ``max_degree`` is then the out-degree of a canary.
        symmetrised: at edge level, audit messages that travel along arcs and against them: an arc
            moves two rows.
        options: of every audit.

    >>> report = audit_aggregation(epsilon=4.0, trials=2_000)
    >>> report.mechanism, report.holds
    ('aggregation', True)
    """
    check_choice("level", level, ("edge", "node"))
    neighbours = resolve_relation(level, relation, is_directed=False)
    check_integer("hops", hops, at_least=1)
    check_integer("max_degree", max_degree, at_least=1)
    check_integer("edge_types", edge_types, at_least=1)
    if normalised and level != "node":
        raise InputError("`normalised` must be False at level edge. Got True.")
    if symmetrised and level != "edge":
        raise InputError(f"`symmetrised` must be False for relation {neighbours}. Got True.")
    choices = ("auto", "each") if level == "node" else ("auto", "each", "any")
    protects = resolve_edge_types(level, check_choice("protects", protects, choices))
    moved = edge_types if protects == "each" else 1 + (edge_types > 1 and not without_union)
    paid = hops * moved if charged is None else check_integer("charged", charged, at_least=1)
    multiplier, epsilon = claim(
        Gaussian(1.0, count=paid), neighbours, epsilon, delta, noise_multiplier
    )
    bound = max_degree if level == "node" else None
    setting = _Setting(
        neighbours,
        hops,
        multiplier,
        bound,
        noise,
        edge_types=edge_types,
        protects=protects,
        without_union=without_union,
        weighted=weighted,
        normalised=normalised,
        charged=paid,
        symmetrised=symmetrised,
    )
    attack, size = _node_scores, max_degree + 1
    if level == "edge":
        attack, size = _edge_scores, setting.links.count + 1
    return setting.audited(
        "aggregation",
        partial(attack, setting),
        size,
        trials,
        epsilon=epsilon,
        delta=delta,
        **options,
    )


def audit_sampler(
    *,
    relation: str = "add-remove",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    trials: int = 20_000,
    noise_multiplier: float | None = None,
    max_degree: int = 4,
    sources: int = 50,
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack the truncation of adjacency lists, on the hub graph of the privacy page's section 1.

    ``sources`` nodes have the same D targets and a node v as neighbours, one more than allowed. v's
    own neighbours are the D targets. When v withdraws, arcs to v dangle. Two statistics: along v's
    direction the targets must not reveal more than the claim; along the direction of the sources
    they reveal nothing, unless the places of dangling arcs are filled again.

    Relation ``add-remove`` at node level, sensitivity sqrt(D), one hop.

    >>> audit_sampler(epsilon=4.0, trials=200).holds
    True
    """
    check_choice("relation", relation, ("add-remove",))
    neighbours = AddRemove()
    check_integer("sources", sources, at_least=1)
    check_integer("max_degree", max_degree, at_least=1)
    multiplier, epsilon = claim(Gaussian(1.0), neighbours, epsilon, delta, noise_multiplier)
    setting = _Setting(neighbours, 1, multiplier, max_degree, noise)
    attack, size = partial(_hub_scores, setting, sources), sources + max_degree + 1
    return setting.audited("sampler", attack, size, trials, epsilon=epsilon, delta=delta, **options)


def _edge_scores(setting: _Setting, worlds: NDArray[np.bool_]) -> Scores:
    """Attack groups of one node and as many others as links are protected, joined by a coin.

    Under ``any`` group i is joined by type i modulo their number, and read in that type's sums and
    in those of the union; under ``each`` by all edge types, every second one of which has the edges
    where the coin says not.
    """
    links, edge_types = setting.links, setting.edge_types
    size = links.count + 1
    centre = size * np.arange(len(worlds))
    others = centre[:, None] + np.arange(1, size)
    mine = np.arange(len(worlds)) % edge_types
    is_each = setting.protects == "each"
    joined = [
        worlds ^ (place % 2 == 1) if is_each else worlds & (mine == place)
        for place in range(edge_types)
    ]
    graph = setting.graph(
        [setting.star_arcs(centre[there], others[there]) for there in joined],
        size * len(worlds),
        directed=setting.is_directed,
    )
    moves_centre = setting.symmetrised or not links.are_arcs
    # What a hop adds to the statistic: the squared distance of the neighbours, and once more where
    # both arcs of an edge are symmetrised.
    unit = links.count**2 + links.count if moves_centre else links.count
    unit *= 2 if setting.symmetrised and not links.are_arcs else 1
    added = torch.zeros(len(worlds), dtype=torch.float64)
    by_type = []
    aggregations = setting.aggregations(graph)
    for place, aggregation in enumerate(aggregations):
        rows, sent, seen = _star_rows(graph.num_nodes, size, 0), [], []
        for hop in range(1, setting.hops + 1):
            number = (hop - 1) * len(aggregations) + place + 1
            noisy = aggregation.hop(rows, number, normalise=False).double()
            at = noisy.reshape(len(worlds), size, _WIDTH)
            messages = rows.double().reshape(len(worlds), size, _WIDTH)
            # The others receive from the centre, and where an edge moves two rows it from them.
            along = (at[:, 1:] * messages[:, :1]).sum(dim=(1, 2))
            if moves_centre:
                along += (at[:, 0] * messages[:, 1:].sum(dim=1)).sum(dim=1)
            if is_each:
                added += unit - along if place % 2 else along
            else:
                is_read = (mine == place) | (place == edge_types)
                added += torch.where(torch.from_numpy(is_read), along, 0.0)
            seen.append(at[:, 1:].mean(dim=1))
            sent.append(messages[:, 0])
            rows = row_normalise(noisy.float())
            if links.count > 1:
                # Noisy rows of several nodes have several directions; the worst case has one.
                rows = _star_rows(graph.num_nodes, size, hop)
        by_type.append((seen, sent))
    scores = [added / (setting.hops * unit * (edge_types if is_each else 1 + setting.has_total))]
    if edge_types == 1:
        scores += _difference(*by_type[0])
    else:
        scores += _between_edge_types([seen[0] for seen, _ in by_type], sent[0], mine, setting)
    return torch.stack(scores).numpy()


def _star_rows(num_nodes: int, size: int, turn: int) -> Tensor:
    """Return what groups send: their first node one direction, all others the orthogonal one."""
    rows = torch.zeros(num_nodes, _WIDTH)
    rows[:, (turn + 1) % _WIDTH] = 1
    rows[::size] = torch.eye(_WIDTH)[turn % _WIDTH]
    return rows


def _between_edge_types(
    seen: list[Tensor], sent: Tensor, mine: NDArray[np.int64], setting: _Setting
) -> list[Tensor]:
    """Return the component of the difference of two sums of the first hop along the messages.

    The two are sums of two edge types, or of the union and a type without the canary. Independent
    noise leaves the statistic useless. Noise that two sums share cancels and leaves the canary.
    """
    if setting.protects == "each":
        return [((seen[0] - seen[1]) * _first_way(sent)).sum(dim=1) / 2 + 0.5]
    stacked, places = torch.stack(seen), torch.from_numpy(mine)
    pairs = torch.arange(len(mine))
    own, other = stacked[places, pairs], stacked[(places + 1) % setting.edge_types, pairs]
    scores = [((own - other) * _first_way(sent)).sum(dim=1)]
    if setting.has_total:
        less = [((seen[-1] - one) * _first_way(sent)).sum(dim=1) for one in seen[:-1]]
        scores += [torch.where(places == place, 0.0, one) for place, one in enumerate(less)]
    return scores


def _first_way(sent: Tensor) -> Tensor:
    """Return what the first of a pair sends in the first hop: the first direction."""
    return torch.eye(_WIDTH, dtype=torch.float64)[0].expand_as(sent)


def _node_scores(setting: _Setting, worlds: NDArray[np.bool_]) -> Scores:
    """Canary records that write to D rows each: there or not, or of two opposite ones."""
    degree = setting.max_degree or 1
    size = degree + 1
    centre = size * np.arange(len(worlds))
    targets = centre[:, None] + np.arange(1, size)
    arcs = np.repeat(centre, degree), targets.ravel()
    graph = setting.graph([arcs] * setting.edge_types, size * len(worlds), directed=True)
    is_replace = setting.relation == Replace()
    stays = worlds | is_replace
    graph, place = without(graph, centre[~stays])
    signs = torch.from_numpy(np.where(worlds, 1.0, -1.0)[stays]).float()
    canaries = torch.from_numpy(place[centre[stays]])
    received = torch.from_numpy(place[targets])
    aggregations = setting.aggregations(graph)
    projections, sent, seen = [], [], []
    for number in range(1, setting.hops * setting.edge_types + 1):
        # Another direction at the next hop, so that noise used twice would cancel visibly.
        column = (number - 1) % _WIDTH
        rows = torch.zeros(graph.num_nodes, _WIDTH)
        rows[canaries, column] = signs
        aggregation = aggregations[(number - 1) % setting.edge_types]
        noisy = aggregation.hop(rows, number, normalise=False).double()[received]
        projections.append(noisy[:, :, column].sum(dim=1))
        seen.append(noisy.mean(dim=1))
        sent.append(torch.eye(_WIDTH, dtype=torch.float64)[column].expand(len(worlds), _WIDTH))
    shift = float(setting.hops * setting.edge_types * degree)
    if setting.normalised:
        shift /= math.sqrt(degree)
    total = torch.stack(projections).sum(dim=0) / shift
    scores = [total / 2 + 0.5 if is_replace else total, *_difference(seen, sent)]
    return torch.stack(scores).numpy()


def _hub_scores(setting: _Setting, sources: int, worlds: NDArray[np.bool_]) -> Scores:
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
    graph, place = without(graph, centre[~worlds])
    rows = torch.zeros(graph.num_nodes, _WIDTH)
    rows[place[centre[worlds]], 0] = 1
    rows[place[others.ravel()], 1] = 1
    noisy = setting.aggregation(graph).hop(rows, 1, normalise=False).double()
    sums = noisy[torch.from_numpy(place[targets])].sum(dim=1)
    # Fewer arcs from the sources speak for v, who would then hold some of their slots.
    return torch.stack([sums[:, 0] / degree, -sums[:, 1]]).numpy()


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


def _check_hops(setting: _Setting) -> list[Check]:
    """Compare the distance between neighbours with what is accounted, at every hop.

    At node level there are several records, of as many entries as are allowed and of many more.
    """
    setting = replace(setting, noise_multiplier=1.0)
    graphs, sent, owners = _neighbours(setting)
    checks = []
    for place, device in _PLACES:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        key, released = NoiseKey.fresh(), []
        for graph, rows in zip(graphs, sent, strict=True):
            with _placed(graph, place) as placed:
                aggregation = setting.aggregation(placed, key=key, device=device)
                indices = range(1, max(setting.hops, _LEAST_HOPS) + 1)
                done = [aggregation.hop(rows, index, normalise=False).cpu() for index in indices]
            released.append(torch.stack(done).double())
        squares = (released[0] - released[1]).square().sum(dim=-1)
        # Groups are disjoint: each has its own edge or record, and its own row is not covered.
        moved = torch.zeros(len(squares), int(owners.max()) + 1, dtype=torch.float64)
        moved.index_add_(1, torch.from_numpy(owners), squares)
        name = f"how far one record moves a hop ({place})"
        if setting.level == "edge":
            count = setting.links.count
            entity = "one edge moves" if count == 1 else f"{count} links of one person move"
            name = f"how far {entity} a hop ({place})"
        checks.append(Check(name, float(moved.max().sqrt()), aggregation.std))
    return checks


# Noise of two edge types, or of a type and the union, is drawn for this many rows and compared.
_COMPARED_ROWS = 4096


def _check_edge_types(setting: _Setting) -> list[Check]:
    """Compare the distance of all sums of a hop with what is charged, and their noise.

    Every edge type has the neighbours of :func:`_neighbours`; under ``any`` only the first type
    has, and the union with it.
    """
    if setting.edge_types == 1:
        return []
    silent = replace(setting, noise_multiplier=1.0)
    graphs, sent, owners = _neighbours(silent)
    events = (setting.charged or setting.hops) / setting.hops
    checks = []
    for place, device in _PLACES:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        key, released = NoiseKey.fresh(), []
        for world, (graph, rows) in enumerate(zip(graphs, sent, strict=True)):
            same = graphs[0] if setting.protects == "any" and world else graph
            edge_types = {f"type {n}": same if n else graph for n in range(setting.edge_types)}
            with _placed(join_edge_types(edge_types), place) as placed:
                mechanisms = silent.aggregations(placed, key=key, device=device)
                done = [one.hop(rows, n, normalise=False) for n, one in enumerate(mechanisms, 1)]
            released.append(torch.stack(done).cpu().double())
        squares = (released[0] - released[1]).square().sum(dim=(0, 2)) / mechanisms[0].std ** 2
        moved = torch.zeros(int(owners.max()) + 1, dtype=torch.float64)
        moved.index_add_(0, torch.from_numpy(owners), squares)
        name = f"events of a hop along all edge types ({place})"
        checks.append(Check(name, float(moved.max()), events))
    nothing = setting.graph(
        [(np.zeros(0, np.int64),) * 2] * setting.edge_types, _COMPARED_ROWS, directed=True
    )
    noise = [
        one.hop(torch.zeros(_COMPARED_ROWS, _WIDTH), 1, normalise=False).flatten()
        for one in setting.aggregations(nothing)
    ]
    alike = torch.corrcoef(torch.stack(noise)).triu(diagonal=1).abs()
    # Nine standard deviations of what independent noise has.
    most = 9 / (_COMPARED_ROWS * _WIDTH) ** 0.5
    return [*checks, Check("correlation of the noise of two sums", float(alike.max()), most)]


def _check_special(setting: _Setting) -> list[Check]:
    """Compare what neighbours move that are the worst case of one operator alone."""
    silent = replace(setting, noise_multiplier=1.0)
    checks = []
    if setting.normalised:
        checks += [_check_loops(silent, to_self=to_self) for to_self in (False, True)]
    if setting.has_total and setting.links.are_arcs and not setting.symmetrised:
        checks.append(_check_meeting(silent))
    return checks


def _check_loops(setting: _Setting, *, to_self: bool) -> Check:
    """Return how far a record moves a hop whose owner lists itself: alone, and among others.

    The own row is covered here, and where everybody sends to oneself anyway it must not be written
    a second time.
    """
    sources, targets = np.array([0, 1, 1, 1]), np.array([0, 1, 2, 3])
    owners = np.array([0, 1, 1, 1])
    features = np.zeros((4, 1), dtype=np.float32)
    graphs = [
        Graph.from_arcs(
            sources[:count],
            targets[:count],
            num_nodes=4,
            features=features,
            directed=True,
            self_loops="keep",
        )
        for count in (len(sources), len(sources) if setting.relation == Replace() else 0)
    ]
    rows = torch.zeros(4, _WIDTH)
    rows[:2, 0] = 1
    key, released = NoiseKey.fresh(), []
    for graph, sent in zip(graphs, (rows, -rows if graphs[1].num_arcs else 0 * rows), strict=True):
        (aggregation,) = hop_mechanisms(
            graph,
            level=setting.level,
            relation=setting.relation,
            noise_multiplier=setting.noise_multiplier,
            normalised=True,
            to_self=to_self,
            keys=[key],
            noise=setting.noise,
        )
        released.append(aggregation.hop(sent, 1, normalise=False).double())
    moved = np.zeros(2)
    np.add.at(moved, owners, (released[0] - released[1]).square().sum(dim=1).numpy())
    what = "a node with a self-loop that sends to itself" if to_self else "a node with a self-loop"
    return Check(f"how far {what} moves a hop", math.sqrt(moved.max()), aggregation.std)


def _check_meeting(setting: _Setting) -> Check:
    """Return how many events arcs of different types are that all end in one row of the union."""
    meet = min(setting.links.count, setting.edge_types)
    nothing = (np.zeros(0, np.int64),) * 2
    arc = np.array([0]), np.array([1])
    arcs = [[arc] * meet + [nothing] * (setting.edge_types - meet), [nothing] * setting.edge_types]
    rows, key = torch.tensor([[1.0, 0.0]] * 2), NoiseKey.fresh()
    released = []
    for edge_types in arcs:
        mechanisms = setting.aggregations(setting.graph(edge_types, 2, directed=True), key=key)
        done = [one.hop(rows, n, normalise=False) for n, one in enumerate(mechanisms, 1)]
        released.append(torch.stack(done).double())
    squares = (released[0] - released[1]).square().sum(dim=(1, 2))
    noise = torch.tensor([one.std for one in mechanisms]).square()
    events = (setting.charged or setting.hops) / setting.hops
    # Of k arcs, k / meet such groups to people of their own; the rest of them moves no more.
    groups = setting.links.count // meet
    return Check(
        "events of arcs that meet in one row", float((squares / noise).sum()) * groups, events
    )


@contextmanager
def _placed(graph: Graph, place: str) -> Iterator[Graph]:
    """Give the graph as it is, or as a store of several parts that lasts as long as the block."""
    if place != "on disk":
        yield graph
        return
    with tempfile.TemporaryDirectory() as folder:
        store_graph(graph, Path(folder, "store"), parts=2)
        yield open_store(Path(folder, "store"))


def _neighbours(
    setting: _Setting,
) -> tuple[tuple[Graph, Graph], tuple[Tensor, Tensor], NDArray[np.int64]]:
    """Return two graphs, what their nodes send, and whose group every row is in."""
    if setting.level == "edge":
        size = setting.links.count + 1
        options = {"directed": setting.is_directed, "weighted": setting.weighted}
        arcs = setting.star_arcs(np.zeros(1, np.int64), np.arange(1, size)[None])
        star, nobody = (
            bare_graph(sources, targets, size, **options)
            for sources, targets in (arcs, (arcs[0][:0], arcs[1][:0]))
        )
        rows = _star_rows(size, size, 0)
        return (star, nobody), (rows, rows), np.zeros(size, dtype=np.int64)
    degree = setting.max_degree or 1
    lengths = np.array([degree, degree + 1, 4 * degree + 1])
    # Beside the record and those it lists: somebody who lists the same people, and whom they list.
    # Nothing of theirs may depend on whether the record is there.
    sizes = lengths + 3
    sources = np.cumsum(sizes) - sizes
    owners = np.repeat(np.arange(len(lengths)), sizes)
    second, last = sources + lengths + 1, sources + lengths + 2
    targets = np.setdiff1d(np.arange(len(owners)), [*sources, *second, *last])
    theirs = np.repeat(second, lengths), np.repeat(last, lengths)
    others = np.concatenate([theirs[0], targets]), np.concatenate([targets, theirs[1]])
    options = {"directed": True, "weighted": setting.weighted}
    own = np.repeat(sources, lengths), targets
    lists, listed = (np.concatenate(pair) for pair in zip(own, others, strict=True))
    whole = bare_graph(lists, listed, len(owners), **options)
    rows = torch.zeros(len(owners), 2)
    rows[torch.from_numpy(others[0]), 1] = 1
    rows[torch.from_numpy(sources), 0] = 1
    if setting.relation == Replace():
        return (whole, whole), (rows, rows * torch.tensor([-1.0, 1.0])), owners
    nobody = bare_graph(others[0], others[1], len(owners), **options)
    return (whole, nobody), (rows, rows), owners


def bare_graph(
    sources: NDArray[np.int64] | list[int],
    targets: NDArray[np.int64] | list[int],
    num_nodes: int,
    *,
    directed: bool,
    weighted: bool = False,
) -> Graph:
    """Return a graph of these arcs for hops that are given their rows; weights are 1.

    >>> bare_graph([0], [1], 2, directed=True).num_arcs
    1
    """
    # Features only have to exist.
    features = np.zeros((num_nodes, 1), dtype=np.float32)
    return Graph.from_arcs(
        sources,
        targets,
        num_nodes=num_nodes,
        features=features,
        directed=directed,
        weights=np.ones(len(sources)) if weighted else None,
    )


def without(graph: Graph, gone: NDArray[np.int64]) -> tuple[Graph, NDArray[np.int64]]:
    """Return the graph after some records withdrew, and where everybody stands now.

    Entries that name them dangle.

    >>> left, place = without(bare_graph([0, 1], [1, 2], 3, directed=True), np.array([0]))
    >>> left.num_arcs, place[1:].tolist()
    (1, [0, 1])
    """
    keep = np.ones(graph.num_nodes, dtype=np.bool_)
    keep[gone] = False
    return induced(graph, keep, dangle=True), np.cumsum(keep) - 1
