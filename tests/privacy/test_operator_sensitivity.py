"""The accounted sensitivity of every operator bounds the exact distance of any two neighbours.

One property test for all operators and all relations. An operator is drawn: one edge type or
several unequal ones, with weights, self-loops kept, symmetrised, degree-bounded or
degree-normalised, sending to oneself, with the union of types beside them. So are two neighbours.
Their sums are computed from dense float64 matrices, apart from the product's own code, and held to
what the product accounts for: the standard deviation of its noise over the noise multiplier,
jointly over everything that one hop releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gapgnn import GAP, LabelGAP, NodeLabelGAP
from gapgnn.graph import Graph, join_kinds
from gapgnn.privacy.guarantee import EntityCounts
from gapgnn.privacy.mechanisms import kind_aggregations
from gapgnn.privacy.plan import PublicFacts
from gapgnn.rng import NoiseKey

SIZE, WIDTH, MULTIPLIER = 7, 2, 2.0
# Rows and weights are multiples of this, which the product's grids hold exactly.
STEP = 64
# Degree-normalised rows are cut to a grid of 2**-14; so many of them meet in one row at most.
CUT = 4 * SIZE * 2.0**-14
ONE, OTHER = (STEP, 0), (0, STEP)


@dataclass(frozen=True)
class Side:
    """One of two neighbours: the arcs of each edge type with their weights, and everybody's row."""

    types: tuple[dict[tuple[int, int], int], ...]
    rows: tuple[tuple[int, int], ...]

    def matrices(self, *, symmetric: bool) -> list[np.ndarray]:
        """Return the dense adjacency matrix of each edge type."""
        found = []
        for arcs in self.types:
            matrix = np.zeros((SIZE, SIZE))
            for (source, target), weight in arcs.items():
                matrix[source, target] = weight / STEP
                if symmetric:
                    matrix[target, source] = weight / STEP
            found.append(matrix)
        return found


@dataclass(frozen=True)
class World:
    """An operator and two neighbours under a relation."""

    relation: str
    first: Side
    second: Side
    person: int = 0
    directed: bool = True
    weighted: bool = False
    both_ways: bool = False
    with_total: bool = True
    protects: str = "any"
    max_degree: int | None = None
    to_self: bool = False
    withdrawn: bool = False

    @property
    def level(self) -> str:
        return "node" if self.relation in ("add-remove", "replace") else "edge"

    @property
    def normalised(self) -> bool:
        """Whether messages are degree-normalised, which covers a person's own row too."""
        return self.level == "node" and self.max_degree is None

    @property
    def has_total(self) -> bool:
        is_any = self.level == "edge" and self.protects == "any"
        return self.with_total and is_any and len(self.first.types) > 1

    @property
    def covered(self) -> list[int]:
        """Return whose rows are covered."""
        kept = self.level == "edge" or self.normalised
        return [row for row in range(SIZE) if kept or row != self.person]

    def graph(self, side: Side, *, withdrawn: bool = False) -> Graph:
        """Return what the product is given. A withdrawn person has no row; entries dangle."""
        here = [row for row in range(SIZE) if not withdrawn or row != self.person]
        place = {row: position for position, row in enumerate(here)}
        graphs = {}
        for number, arcs in enumerate(side.types):
            there = {arc: weight for arc, weight in arcs.items() if set(arc) <= set(here)}
            dangling = {
                place[source]: [target]
                for source, target in arcs
                if source in place and target not in place
            }
            ends = np.array([[place[end] for end in arc] for arc in there]).reshape(-1, 2)
            graphs[f"type {number}"] = Graph.from_arcs(
                *ends.astype(np.int64).T,
                num_nodes=len(here),
                features=np.zeros((len(here), 1)),
                directed=self.directed,
                ids=here,
                dangling=dangling,
                self_loops="keep",
                weights=np.array([*there.values()]) / STEP if self.weighted else None,
            )
        return join_kinds(graphs)

    def mechanisms(self, graph: Graph):
        return kind_aggregations(
            graph,
            level=self.level,
            relation=self.relation,
            noise_multiplier=MULTIPLIER,
            max_degree=self.max_degree,
            is_divided=self.normalised,
            to_self=self.to_self,
            both_ways=self.both_ways,
            with_total=self.has_total,
            keys=[NoiseKey.insecure(7)],
        )

    def exact(self, side: Side, kept: list[np.ndarray] | None = None) -> np.ndarray:
        """Return all sums that one hop releases, from dense matrices alone.

        Args:
            side: of which neighbour.
            kept: the entries that a cut keeps, of each edge type.
        """
        rows = np.array(side.rows, dtype=np.float64) / STEP
        sums = []
        for matrix in kept or side.matrices(symmetric=not self.directed):
            lengths = (matrix != 0).sum(axis=1)
            if self.both_ways:
                matrix = matrix + matrix.T
            if self.both_ways or self.to_self:
                # A self-loop is left out where messages go both ways or to oneself anyway.
                np.fill_diagonal(matrix, float(self.to_self))
            if self.normalised:
                written = np.maximum(lengths + int(self.to_self), 1)
                matrix = matrix / np.sqrt(written)[:, None]
            sums.append(matrix.T @ rows)
        return np.stack([*sums, sum(sums)] if self.has_total else sums)

    def released(self, side: Side, *, withdrawn: bool = False):
        """Return the product's sums without noise, and who writes to whom after a cut."""
        here = [row for row in range(SIZE) if not withdrawn or row != self.person]
        mechanisms = self.mechanisms(self.graph(side, withdrawn=withdrawn))
        rows = torch.tensor(side.rows, dtype=torch.float32)[here] / STEP
        sums = np.zeros((len(mechanisms), SIZE, WIDTH))
        kept = []
        for number, mechanism in enumerate(mechanisms):
            sums[number, here] = mechanism.hop(rows, number + 1, normalise=False).double().numpy()
            if self.max_degree is not None:
                kept.append(self._kept(mechanism, here))
        return mechanisms, sums, kept

    def _kept(self, mechanism, here: list[int]) -> np.ndarray:
        indptr, indices, weights = mechanism._weighted_lists(0)
        matrix = np.zeros((SIZE, SIZE))
        targets = np.repeat(here, np.diff(indptr))
        sources = np.array(here)[indices]
        matrix[sources, targets] = 1.0 if weights is None else weights
        return matrix


def charged_events(world: World) -> int:
    """Return how many events the product charges for one hop along all edge types."""
    if world.has_total and world.relation.endswith("-arcs"):
        # GAP releases no union there; with the noise that it needs it would be one more event.
        return 2
    shared = {"level": world.level, "relation": world.relation, "delta": 1e-5}
    if world.level == "edge":
        # Of one edge of any type GAP releases no union beside the types' sums.
        is_apart = world.protects == "any" and not world.has_total
        model = (GAP if is_apart else LabelGAP)(edge_types=world.protects, **shared)
    elif world.normalised:
        model = NodeLabelGAP(hop_share=0.5, **shared)
    else:
        model = GAP(max_degree=world.max_degree, **shared)
    plan = model.plan(facts_of(world))
    hops = plan.hops["aggregation"]
    (released,) = (event for event in (*plan.template, *plan.fixed) if event.label == hops.event)
    assert released.count % hops.count == 0
    return released.count // hops.count


def facts_of(world: World) -> PublicFacts:
    """Return what is public of a graph with the world's edge types."""
    types = tuple(f"type {number}" for number in range(len(world.first.types)))
    return PublicFacts(
        num_train=1_000,
        num_features=WIDTH,
        num_classes=2,
        class_names=("red", "green"),
        declared_rates=None,
        counted_rates=None,
        edge_types=types if len(types) > 1 else (),
        is_directed=world.directed,
        counts=EntityCounts(num_nodes=SIZE, num_edges=1, num_arcs=2, is_directed=world.directed),
    )


@st.composite
def row(draw):
    """A vector of norm at most 1, often exactly 1."""
    if draw(st.booleans()):
        return draw(st.sampled_from([ONE, OTHER, (-STEP, 0), (0, -STEP)]))
    angle, length = draw(st.floats(0, 6.28)), draw(st.integers(0, STEP))
    return int(length * math.cos(angle)), int(length * math.sin(angle))


nodes = st.integers(0, SIZE - 1)
arcs_drawn = st.dictionaries(st.tuples(nodes, nodes), st.integers(1, STEP), max_size=12)


@st.composite
def edge_worlds(draw, relation: str):
    """Two graphs that differ in up to k links of one person, of whichever edge types."""
    types = draw(st.integers(1, 3))
    are_arcs = relation.endswith("arcs") or relation == "directed"
    directed = are_arcs or draw(st.booleans())
    k = 1 if relation in ("directed", "undirected") else int(relation.split("-")[0])
    person, protects = draw(nodes), draw(st.sampled_from(["any", "each"]))
    weighted = draw(st.booleans())
    cells = st.sets(st.tuples(st.integers(0, types - 1), nodes), max_size=k)
    if protects == "each":
        # k links of every type at once.
        drawn = [draw(st.sets(nodes, max_size=k)) for _ in range(types)]
        links = {(number, other) for number, others in enumerate(drawn) for other in others}
    else:
        links = draw(cells)
    base = [draw(arcs_drawn) for _ in range(types)]
    sides = []
    for _ in range(2):
        changed = [dict(arcs) for arcs in base]
        for number, other in links:
            ends = {(person, other)} if are_arcs else {(person, other), (other, person)}
            if not directed:
                ends = {(min(person, other), max(person, other))}
            for arc in ends:
                changed[number].pop(arc, None)
                changed[number].pop(arc[::-1], None) if not directed else None
                if draw(st.booleans()):
                    changed[number][arc] = draw(st.integers(1, STEP))
        if not directed:
            changed = [{tuple(sorted(arc)): w for arc, w in arcs.items()} for arcs in changed]
        sides.append(tuple(changed))
    rows = tuple(draw(st.lists(row(), min_size=SIZE, max_size=SIZE)))
    return World(
        relation,
        *(Side(plain(arcs, weighted), rows) for arcs in sides),
        person=person,
        directed=directed,
        weighted=weighted,
        both_ways=directed and draw(st.booleans()),
        with_total=draw(st.booleans()),
        protects=protects,
    )


@st.composite
def node_worlds(draw, relation: str):
    """Two graphs that differ in one person's record: row, and the out-list of every edge type."""
    types = draw(st.integers(1, 3))
    person, weighted = draw(nodes), draw(st.booleans())
    max_degree = draw(st.none() | st.integers(1, 4))
    withdrawn = relation == "add-remove"
    base = [draw(arcs_drawn) for _ in range(types)]
    rows = draw(st.lists(row(), min_size=SIZE, max_size=SIZE))
    sides = []
    for second in (False, True):
        mine = [{} for _ in base]
        own_row = (0, 0)
        if not (second and withdrawn):
            drawn = [draw(st.dictionaries(nodes, st.integers(1, STEP))) for _ in base]
            mine = [{(person, other): w for other, w in others.items()} for others in drawn]
            own_row = draw(row())
        arcs = [
            {arc: w for arc, w in others.items() if arc[0] != person} | own
            for others, own in zip(base, mine, strict=True)
        ]
        sides.append((tuple(arcs), (*rows[:person], own_row, *rows[person + 1 :])))
    return World(
        relation,
        *(Side(plain(arcs, weighted), own_rows) for arcs, own_rows in sides),
        person=person,
        weighted=weighted,
        max_degree=max_degree,
        to_self=max_degree is None and draw(st.booleans()),
        # Where messages are degree-normalised whoever withdraws keeps a row, of zeros.
        withdrawn=withdrawn and max_degree is not None,
    )


def plain(types, weighted: bool):
    return tuple({arc: w if weighted else STEP for arc, w in arcs.items()} for arcs in types)


def nothing(side: Side, *, rows=None) -> Side:
    return Side(tuple({} for _ in side.types), side.rows if rows is None else rows)


def star(person: int, others, *, back: bool = False):
    arcs = {(person, other): STEP for other in others}
    return arcs | {(other, person): STEP for other in others} if back else arcs


ALIKE = (ONE,) * SIZE
CENTRE = (ONE, *(OTHER,) * (SIZE - 1))
TWO_TYPES = Side((star(0, [1]), star(0, [1])), ALIKE)
HUB = Side((star(0, range(SIZE)), star(0, range(3))), (ONE, *((0, 0),) * (SIZE - 1)))
TURNED = ((-STEP, 0), *((0, 0),) * (SIZE - 1))

# The worst cases: what each must reach of the joint distance that is charged, at least.
WORST = {
    "k arcs of as many types into one node": (
        World("2-arcs", TWO_TYPES, nothing(TWO_TYPES)),
        1.0,
    ),
    "5 arcs, of each of three types into one node": (
        World(
            "5-arcs",
            five := Side((star(0, [1, 2]), star(0, [1, 2]), star(0, [1])), ALIKE),
            nothing(five),
        ),
        0.9,
    ),
    "an edge of one of two types": (
        World(
            "undirected",
            pair := Side((star(0, [1]), {}), CENTRE),
            nothing(pair),
            directed=False,
        ),
        1.0,
    ),
    "5 edges of one person": (
        World(
            "5-edges",
            edges := Side((star(0, range(1, 6)),), CENTRE),
            nothing(edges),
            directed=False,
        ),
        1.0,
    ),
    "5 edges of two types, symmetrised": (
        World(
            "5-edges",
            both := Side((star(0, range(1, 6), back=True), {}), CENTRE),
            nothing(both),
            both_ways=True,
        ),
        1.0,
    ),
    "an arc of a symmetrised operator": (
        World("directed", arc := Side((star(0, [1]),), CENTRE), nothing(arc), both_ways=True),
        1.0,
    ),
    "an edge of each of two types": (
        World(
            "undirected",
            each := Side((star(0, [1]), star(0, [1])), CENTRE),
            nothing(each),
            directed=False,
            protects="each",
        ),
        1.0,
    ),
    "a hub that lists itself and sends to itself": (
        World("add-remove", HUB, nothing(HUB, rows=((0, 0),) * SIZE), to_self=True),
        0.8,
    ),
    "somebody who lists nobody but themselves and sends to themselves": (
        World(
            "add-remove",
            alone := Side((star(0, [0]),), HUB.rows),
            nothing(alone, rows=((0, 0),) * SIZE),
            to_self=True,
        ),
        0.7,
    ),
    "the same record turned round": (
        World("replace", alone, Side(alone.types, TURNED), to_self=True),
        0.7,
    ),
    "opposite vectors of a degree-normalised hub": (
        World("replace", HUB, Side(HUB.types, TURNED)),
        1.0,
    ),
    "opposite vectors of a list cut to D": (
        World("replace", HUB, Side(HUB.types, TURNED), max_degree=2),
        0.7,
    ),
    "a record with a list cut to D": (
        World("add-remove", HUB, nothing(HUB, rows=((0, 0),) * SIZE), max_degree=2, withdrawn=True),
        0.7,
    ),
    "a longer list instead of a shorter one": (
        World(
            "replace",
            Side((star(0, [1]),), HUB.rows),
            Side((star(0, range(SIZE)),), TURNED),
        ),
        0.7,
    ),
}


def joint_distance(world: World) -> float:
    """Return how far all sums of a hop are apart, in units of what is charged for them.

    Squared distances over squared noise add up, and every event that is charged covers 1.
    """
    sides = []
    for side, is_gone in ((world.first, False), (world.second, world.withdrawn)):
        mechanisms, sums, kept = world.released(side, withdrawn=is_gone)
        exact = world.exact(side, kept or None)
        rows = [row for row in range(SIZE) if not is_gone or row != world.person]
        # What is released is what the operator promises to add up, and nothing else.
        slack = CUT if world.normalised else 1e-6
        np.testing.assert_allclose(sums[:, rows], exact[:, rows], atol=slack)
        sides.append((mechanisms, sums, exact, kept))
    check_cut(world, sides[0][3], sides[1][3])
    squares = 0.0
    for number, mechanism in enumerate(sides[0][0]):
        accounted = mechanism.std / mechanism.noise_multiplier
        for place in (1, 2):
            moved = sides[0][place][number] - sides[1][place][number]
            distance = float(np.square(moved[world.covered]).sum())
            if world.level == "node" or not world.has_total:
                # Apart from a union, each sum is an event of its own, or the others do not move.
                most = accounted**2 if world.level == "node" else math.inf
                assert distance <= most + (CUT if place == 1 else 1e-9)
            if place == 2:
                squares += distance / accounted**2
    return math.sqrt(squares / charged_events(world))


def check_cut(world: World, first: list[np.ndarray], second: list[np.ndarray]) -> None:
    """A cut keeps entries of the list, D at most, and of other people's lists the same ones."""
    for side, kept in ((world.first, first), (world.second, second)):
        for matrix, whole in zip(kept, side.matrices(symmetric=False), strict=False):
            assert ((matrix == 0) | (matrix == whole)).all()
            assert ((matrix != 0).sum(axis=1) <= world.max_degree).all()
    others = [row for row in range(SIZE) if row != world.person]
    for one, two in zip(first, second, strict=True):
        assert np.array_equal(one[np.ix_(others, others)], two[np.ix_(others, others)])


edge_relations = st.sampled_from(
    ["undirected", "directed", "2-edges", "5-edges", "2-arcs", "5-arcs"]
)
worlds = edge_relations.flatmap(edge_worlds) | st.sampled_from(["add-remove", "replace"]).flatmap(
    node_worlds
)


@pytest.mark.usefixtures("without_noise")
class TestNoNeighbour:
    @settings(max_examples=150)
    @given(world=worlds)
    @example(world=WORST["k arcs of as many types into one node"][0])
    @example(world=WORST["a hub that lists itself and sends to itself"][0])
    @example(world=WORST["the same record turned round"][0])
    @example(world=WORST["opposite vectors of a degree-normalised hub"][0])
    def test_moves_a_hop_further_than_is_accounted(self, world):
        assert joint_distance(world) <= 1 + 1e-6

    @pytest.mark.parametrize("name", WORST)
    def test_is_further_away_than_the_worst_cases_which_come_near(self, name):
        world, share = WORST[name]
        assert share - 1e-6 <= joint_distance(world) <= 1 + 1e-6
