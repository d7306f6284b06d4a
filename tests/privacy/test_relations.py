import math

import pytest

from gapgnn.errors import InputError
from gapgnn.privacy.relations import (
    aggregation_ratio,
    aggregation_sensitivity,
    auto_delta,
    describe_relation,
    protected_entities,
    resolve_relation,
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
    assert resolve_relation(level, "auto", is_directed=is_directed) == expected


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
    assert resolve_relation(level, relation, is_directed=is_directed) == relation


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


@pytest.mark.parametrize(
    ("level", "relation", "max_degree", "expected"),
    [
        ("edge", "directed", None, 1.0),
        ("edge", "undirected", None, math.sqrt(2)),
        ("edge", "5-edges", None, math.sqrt(30)),
        ("edge", "5-arcs", None, math.sqrt(5)),
        ("node", "add-remove", 1, 1.0),
        ("node", "add-remove", 50, math.sqrt(50)),
        ("node", "replace", 50, 2 * math.sqrt(50)),
    ],
)
def test_sensitivities_are_those_of_the_privacy_page(level, relation, max_degree, expected):
    assert aggregation_sensitivity(level, relation, max_degree=max_degree) == expected


@pytest.mark.parametrize(
    ("level", "relation", "max_degree"),
    [
        ("node", "add-remove", None),
        ("node", "replace", 0),
        ("node", "replace", -3),
        ("node", "replace", 2.5),
        ("edge", "auto", None),
        ("edge", "replace", 10),
        ("none", "directed", None),
    ],
)
def test_no_sensitivity_is_invented(level, relation, max_degree):
    with pytest.raises(InputError):
        aggregation_sensitivity(level, relation, max_degree=max_degree)


def test_under_replace_a_contribution_is_half_the_sensitivity():
    one = aggregation_sensitivity("node", "add-remove", max_degree=9)
    two = aggregation_sensitivity("node", "replace", max_degree=9)
    assert aggregation_ratio("replace") * two == one == aggregation_ratio("add-remove") * one


def test_directed_on_a_symmetric_graph_is_allowed_but_never_silent():
    described = describe_relation("edge", "directed", is_directed=False)
    assert "one arc" in described.sentence
    assert described.warning is not None
    assert "the real epsilon is larger" in described.warning
    assert describe_relation("edge", "directed", is_directed=True).warning is None
    assert describe_relation("edge", "auto", is_directed=False).warning is None
    assert describe_relation("node", "auto", is_directed=False).relation == "add-remove"


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
    assert protected_entities("edge", 10, 99) == 99
    assert protected_entities("node", 10, 99) == 10
    with pytest.raises(InputError):
        protected_entities("none", 10, 99)
