"""What is true of every relation of the package, also of one that is added.

Which relation covers which, and how many steps of one make a step of another, is compared with a
count: on four nodes all sets of arcs in which two graphs can differ are listed, and each relation
is the set of those that it allows. So is how far sums move.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from relationcases import classes, made

from gapgnn.errors import InputError
from gapgnn.privacy import (
    RELATIONS,
    RELATIONS_OF_LEVEL,
    Directed,
    KArcs,
    KEdges,
    Links,
    Neighbors,
    Relation,
    Symmetrized,
    Undirected,
    Unprotected,
    parse_relation,
    strictest,
)
from gapgnn.privacy.card.texts import covered, hidden

SIZE = 4
ARCS = [*itertools.permutations(range(SIZE), 2)]
Arcs = list[tuple[int, int]]


def of_one_person(arcs: Arcs, relation: Links) -> bool:
    """Tell whether so many arcs leave one person at most."""
    return len(arcs) <= relation.count and len({source for source, _ in arcs}) <= 1


def edges_of_one_person(arcs: Arcs, relation: Links) -> bool:
    """Tell whether the arcs lie on so many pairs at most, with one person in all of them."""
    pairs = {frozenset(arc) for arc in arcs}
    people = [person for person in range(SIZE) if all(person in pair for pair in pairs)]
    return len(pairs) <= relation.count and bool(people)


# Of every relation of edge level, whether two graphs that differ in these arcs are neighbours.
ALLOWS: dict[type[Relation], Callable[[Arcs, Links], bool]] = {
    Directed: of_one_person,
    KArcs: of_one_person,
    Undirected: edges_of_one_person,
    KEdges: edges_of_one_person,
}
OF_ONE_PERSON = (Directed, KArcs, Undirected, KEdges)
CLASSES = [*classes()]
LINKS = list(
    dict.fromkeys(made(relation_class, count) for relation_class in ALLOWS for count in (2, 3))
)


@cache
def allowed(relation: Links) -> NDArray[np.int64]:
    """Return the sets of arcs that a relation allows to differ, one bit for each arc."""
    sets = range(1 << len(ARCS))
    arcs_of = ([arc for bit, arc in enumerate(ARCS) if one >> bit & 1] for one in sets)
    is_allowed = ALLOWS[type(relation)]
    return np.array(
        [one for one, arcs in zip(sets, arcs_of, strict=True) if is_allowed(arcs, relation)]
    )


@cache
def steps(relation: Links) -> NDArray[np.int64]:
    """Return for every set of arcs by how many neighbours in a row two graphs come to differ."""
    found = np.full(1 << len(ARCS), -1)
    reached, number = np.array([0]), 0
    while len(reached):
        found[reached] = number
        reached = np.unique(reached[:, None] ^ allowed(relation))
        reached, number = reached[found[reached] < 0], number + 1
    return found


def test_every_relation_of_edge_level_is_counted_here():
    assert {relation_class for relation_class in CLASSES if relation_class.level == "edge"} == set(
        ALLOWS
    )
    assert {relation_class.level for relation_class in CLASSES} == {"none", "edge", "node"}


@pytest.mark.parametrize("operator", [Neighbors, Symmetrized])
@pytest.mark.parametrize("relation", LINKS, ids=str)
def test_sums_move_as_far_as_an_operator_states(relation, operator):
    # Where everybody sends the same row of norm 1, a row moves by as many as the messages to it.
    sources, targets = (np.eye(SIZE)[list(ends)] for ends in zip(*ARCS, strict=True))
    ends = targets if operator is Neighbors else targets + sources
    differ = allowed(relation)[:, None] >> np.arange(len(ARCS)) & 1
    moved = np.sqrt(((differ @ ends) ** 2).sum(axis=1))
    assert moved.max() == pytest.approx(operator.bound(relation))


@pytest.mark.parametrize(("one", "other"), [*itertools.product(LINKS, repeat=2)], ids=str)
def test_a_relation_covers_another_one_if_it_allows_all_that_the_other_does(one, other):
    assert one.covers(other) == bool(np.isin(allowed(other), allowed(one)).all())
    if one.covers(other):
        counted = steps(other)[allowed(one)].max()
        assert one.group_size(other) >= counted
        # For links without a common person the worst case may need more than four nodes.
        assert one.group_size(other) == counted or type(one) not in OF_ONE_PERSON
    else:
        with pytest.raises(InputError, match="must cover"):
            one.group_size(other)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(LINKS, 2)], ids=str)
def test_the_strictest_of_two_is_the_smallest_that_covers_both(one, other):
    both = np.union1d(allowed(one), allowed(other))
    covering = [known for known in LINKS if np.isin(both, allowed(known)).all()]
    assert strictest([one, other]) == min(covering, key=lambda known: len(allowed(known)))


@pytest.mark.parametrize("relation_class", CLASSES)
def test_a_relation_is_read_from_its_name_and_offered_where_another_is_refused(relation_class):
    relation = made(relation_class, 5)
    assert parse_relation(relation.name, relation.level) == relation
    if relation_class is Unprotected:
        return
    assert parse_relation(relation.name) == relation
    is_word = relation.name in RELATIONS
    assert is_word == (relation.name in RELATIONS_OF_LEVEL[relation.level])
    assert is_word or relation.name.startswith("5-")
    with pytest.raises(InputError, match=rf"must be one of auto, .*\b{relation.name}[,.]"):
        parse_relation("something", relation.level)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(CLASSES, 2)])
def test_no_two_relations_are_described_alike(one, other):
    first, second = made(one, 5), made(other, 5)
    assert first.sentence != second.sentence
    if "none" in (first.level, second.level):
        return
    assert covered(first, notion=None) != covered(second, notion=None)
    for options in ({}, {"edge_types": ("calls", "visits"), "protects": "any"}):
        assert hidden(first, "it", **options) != hidden(second, "it", **options)
