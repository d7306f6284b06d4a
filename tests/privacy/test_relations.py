import pytest

from gapgnn.errors import InputError
from gapgnn.privacy.card.texts import relation_warnings
from gapgnn.privacy.guarantee import EntityCounts
from gapgnn.privacy.operators import DegreeBounded
from gapgnn.privacy.relations import (
    AddRemove,
    Directed,
    KArcs,
    KEdges,
    Replace,
    Undirected,
    Unprotected,
    aggregation_ratio,
    auto_delta,
    parse_relation,
    resolve_relation,
    strictest,
)


@pytest.mark.parametrize(
    ("level", "is_directed", "expected"),
    [
        ("edge", False, "undirected"),
        ("edge", True, "directed"),
        ("node", False, "add-remove"),
        ("node", True, "add-remove"),
        ("none", False, "none"),
    ],
)
def test_auto_never_picks_the_weaker_promise(level, is_directed, expected):
    assert str(resolve_relation(level, "auto", is_directed=is_directed)) == expected


@pytest.mark.parametrize("is_directed", [True, False])
@pytest.mark.parametrize(
    ("level", "relation"),
    [
        ("edge", "directed"),
        ("edge", "undirected"),
        ("node", "add-remove"),
        ("node", "replace"),
    ],
)
def test_a_named_relation_is_kept(level, relation, is_directed):
    assert str(resolve_relation(level, relation, is_directed=is_directed)) == relation


@pytest.mark.parametrize(
    ("level", "relation", "message"),
    [
        (
            "edge",
            "add-remove",
            "must be one of auto, directed, undirected, 5-edges, 5-arcs. Got 'add-",
        ),
        ("edge", "replace", "must be one of auto, directed, undirected"),
        ("node", "undirected", "must be one of auto, add-remove, replace"),
        ("none", "directed", "has no meaning at level none"),
        ("node", "5-edges", "must be one of auto, add-remove, replace. Got '5-edges'"),
        ("none", "5-edges", "has no meaning at level none"),
        ("node", "removal", "`relation` must be one of auto"),
        ("nodes", "auto", "Did you mean 'node'"),
    ],
)
def test_a_relation_of_another_level_is_refused(level, relation, message):
    with pytest.raises(InputError, match=message):
        resolve_relation(level, relation, is_directed=False)


RELATIONS = [Directed(), Undirected(), KArcs(5), KEdges(5), AddRemove(), Replace()]


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_text_and_relation_are_one(relation):
    assert parse_relation(str(relation)) == relation == parse_relation(relation)
    assert parse_relation(str(relation), relation.level) == relation
    assert hash(parse_relation(relation.name)) == hash(relation)
    other = "node" if relation.level == "edge" else "edge"
    for text in (relation, relation.name):
        with pytest.raises(InputError, match=f"at level '{other}' must be one of"):
            parse_relation(text, other)
        with pytest.raises(InputError, match="no meaning at level none"):
            parse_relation(text, "none")


def test_no_two_relations_are_equal():
    assert len({*RELATIONS, Unprotected(), KArcs(6), KEdges(6)}) == len(RELATIONS) + 3


@pytest.mark.parametrize("word", ["auto", "none", "", "5", None, 5, "edges", "Directed"])
def test_what_names_no_relation_is_refused(word):
    with pytest.raises(InputError, match="`relation` must"):
        parse_relation(word)


@pytest.mark.parametrize("count", [0, 1, -3, 2.5, "5"])
@pytest.mark.parametrize("relation", [KArcs, KEdges])
def test_a_relation_of_several_links_has_a_number_above_1(relation, count):
    with pytest.raises(InputError, match="`count`"):
        relation(count)


def test_relations_of_several_levels_have_no_strictest():
    assert strictest([AddRemove(), Replace()]) == Replace()
    with pytest.raises(InputError, match="of one level"):
        strictest([AddRemove(), Directed()])


def test_under_replace_a_contribution_is_half_the_sensitivity():
    one, two = (DegreeBounded.bound(relation, 9) for relation in (AddRemove(), Replace()))
    assert aggregation_ratio("replace") * two == one == aggregation_ratio("add-remove") * one


def test_directed_on_a_symmetric_graph_is_allowed_but_never_silent():
    assert "one arc" in Directed().sentence
    arc, edge = ({"is_symmetric": is_symmetric} for is_symmetric in (True, False))
    (warning,) = relation_warnings(Directed(), **arc, undirected_epsilon=5.887)
    assert warning.endswith("under undirected, is 5.89.")
    assert relation_warnings(Directed(), **edge, undirected_epsilon=5.887) == []
    for relation in (Undirected(), KEdges(5), AddRemove(), Replace(), Unprotected()):
        assert relation_warnings(relation, **arc, undirected_epsilon=None) == []


@pytest.mark.parametrize(
    ("entities", "expected"),
    [(0, 0.1), (1, 0.1), (9, 0.01), (10, 0.01), (11, 1e-3), (8000, 1e-5), (10**7, 1e-8)],
)
def test_auto_delta_is_the_largest_power_of_ten_that_is_at_most_a_tenth_of_one_over_n(
    entities, expected
):
    assert auto_delta(entities) == expected
    # Rounding of a product of floats, no more.
    assert auto_delta(entities) * 10 * max(entities, 1) <= 1 + 1e-12
    assert auto_delta(entities) * 100 * max(entities, 1) > 1


def test_entities_are_what_the_level_protects():
    counts = EntityCounts(num_nodes=10, num_edges=99, num_arcs=198, is_directed=False)
    assert counts.protected(Undirected()) == counts.protected(KEdges(5)) == 99
    assert counts.protected(Directed()) == counts.protected(KArcs(5)) == 198
    assert counts.protected(AddRemove()) == counts.protected(Replace()) == 10
