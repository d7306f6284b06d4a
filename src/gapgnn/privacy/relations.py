"""Neighbouring relations, and how far two neighbours can be apart (privacy page, section 1).

A level says what is protected (an edge, or a node's whole record), a relation says which two graphs
count as neighbours. Everything here is public arithmetic: no graph is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gapgnn.errors import InputError, check_choice, check_integer

LEVELS = ("none", "edge", "node")
RELATIONS_OF_LEVEL = {
    "none": (),
    "edge": ("directed", "undirected"),
    "node": ("add-remove", "replace"),
}
RELATIONS = ("directed", "undirected", "add-remove", "replace")

_WHO_DIFFERS = {
    "directed": "Two graphs are neighbours if they differ in one arc u->v.",
    "undirected": (
        "Two graphs are neighbours if they differ in one undirected edge, stored as the two arcs "
        "u->v and v->u."
    ),
    "add-remove": (
        "Two graphs are neighbours if one person's record (features, label and own out-list) is in "
        "one and not in the other."
    ),
    "replace": (
        "Two graphs are neighbours if one person's record (features, label and own out-list) is "
        "exchanged for another record."
    ),
    "none": "No two graphs are told apart by a guarantee: nothing is protected.",
}


@dataclass(frozen=True)
class RelationDescription:
    """What a relation promises, in words for the privacy card.

    Attributes:
        relation: the resolved relation; ``"none"`` at level none.
        sentence: which two graphs are neighbours.
        warning: what a reader must know beside it, or None.
    """

    relation: str
    sentence: str
    warning: str | None = None


def resolve_relation(level: str, relation: str = "auto", *, is_directed: bool) -> str:
    """Return the relation that holds at ``level``, with ``auto`` replaced by its meaning.

    ``auto`` is ``undirected`` for a symmetric graph and ``directed`` otherwise at edge level,
    ``add-remove`` at node level, ``none`` at level none. On a symmetric graph ``directed`` is
    allowed, because the paper's tables need it, and :func:`describe_relation` then warns.
    ``undirected`` on a directed graph is allowed too: it protects both arcs of a pair, which is the
    stronger promise.

    >>> resolve_relation("edge", is_directed=False), resolve_relation("edge", is_directed=True)
    ('undirected', 'directed')
    >>> resolve_relation("none", "directed", is_directed=True)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `relation` has no meaning at level none. Got 'directed'. Use auto.
    """
    check_choice("level", level, LEVELS)
    check_choice("relation", relation, ("auto", *RELATIONS))
    if relation == "auto":
        if level == "edge":
            return "directed" if is_directed else "undirected"
        return "add-remove" if level == "node" else "none"
    _check_belongs(level, relation)
    return relation


def describe_relation(level: str, relation: str, *, is_directed: bool) -> RelationDescription:
    """Say in plain words which graphs are neighbours, and warn where the promise is easily misread.

    >>> describe_relation("edge", "directed", is_directed=False).warning.split(":")[0]
    'The graph is symmetric but only one arc of each edge is protected'
    >>> describe_relation("edge", "auto", is_directed=False).warning is None
    True
    """
    resolved = resolve_relation(level, relation, is_directed=is_directed)
    warning = None
    if resolved == "directed" and not is_directed:
        warning = (
            "The graph is symmetric but only one arc of each edge is protected: for a whole edge "
            "the noise multiplier is smaller by a factor of sqrt(2), so the real epsilon is larger "
            "than the one stated here."
        )
    return RelationDescription(resolved, _WHO_DIFFERS[resolved], warning)


def aggregation_sensitivity(
    level: str,
    relation: str,
    *,
    max_degree: int | None = None,
    is_divided: bool = False,
    both_ways: bool = False,
) -> float:
    """Return the L2 sensitivity of one hop of aggregation (privacy page, section 1).

    One hop is ``A^T X`` with rows of norm at most 1: 1 for ``directed``, sqrt(2) for
    ``undirected``, sqrt(D) for ``add-remove`` and 2 sqrt(D) for ``replace``, where D bounds every
    out-list. At node level the rows of all *other* nodes are covered. Where messages are divided by
    the root of their list's length, all that a person writes has norm 1, however long the list is:
    1 for ``add-remove`` and 2 for ``replace``.

    Where messages travel along an arc and against it, ``(A + A^T) X`` without self-loops, one arc
    moves two rows: sqrt(2) for ``directed``, and 2 sqrt(2) for both arcs of a pair, which then move
    both rows twice.

    >>> aggregation_sensitivity("edge", "directed")
    1.0
    >>> round(aggregation_sensitivity("edge", "directed", both_ways=True) ** 2, 6)
    2.0
    >>> aggregation_sensitivity("node", "replace", max_degree=100)
    20.0
    >>> aggregation_sensitivity("node", "replace", is_divided=True)
    2.0
    """
    _check_belongs(level, relation)
    if level == "edge":
        if is_divided:
            raise InputError("messages are divided at level node. Got level 'edge'.")
        if both_ways:
            return math.sqrt(2.0) if relation == "directed" else math.sqrt(8.0)
        return 1.0 if relation == "directed" else math.sqrt(2.0)
    if both_ways:
        raise InputError("messages go both ways at level edge. Got level 'node'.")
    if (max_degree is None) == (not is_divided):
        raise InputError(
            "`max_degree` is needed at level node, or divided messages: either bounds what one "
            f"record can change. Got {'neither' if max_degree is None else 'both'}."
        )
    degree = 1 if max_degree is None else check_integer("max_degree", max_degree, at_least=1)
    return math.sqrt(degree) * (1.0 if relation == "add-remove" else 2.0)


def aggregation_ratio(relation: str) -> float:
    """Return one record's contribution to a hop as a share of the sensitivity: 1, or 1/2.

    A :class:`~gapgnn.privacy.accounting.events.Gaussian` event counts its noise in sensitivities, a
    DP-SGD step in contributions, which are clipping norms under both relations: that two records
    of ``replace`` can be two norms apart is what the accountants model (privacy page, sections 1
    and 3), and doubling the norm as well would charge it twice. A budget that is to be shared so
    that both add noise of the same multiple of one record's contribution uses
    ``Gaussian(aggregation_ratio(relation))`` beside ``PoissonGaussian(1.0, ...)`` as its
    calibration template. Under ``replace`` the old and the new record can oppose each other: the
    sensitivity is two contributions.

    >>> aggregation_ratio("add-remove"), aggregation_ratio("replace")
    (1.0, 0.5)
    """
    check_choice("relation", relation, RELATIONS)
    return 0.5 if relation == "replace" else 1.0


def protected_entities(level: str, num_nodes: int, num_edges: int) -> int:
    """Return how many entities the level protects: edges or nodes.

    ``num_edges`` counts what the relation protects: undirected edges of a symmetric graph, arcs of
    a directed one.

    >>> protected_entities("edge", 5, 8)
    8
    """
    check_choice("level", level, LEVELS[1:])
    count = num_edges if level == "edge" else num_nodes
    return check_integer("num_edges" if level == "edge" else "num_nodes", count, at_least=0)


def auto_delta(entities: int) -> float:
    """Return the largest power of ten that is at most 1 / (10 entities) (privacy page, section 3).

    A mechanism that publishes each entity outright with probability delta publishes
    ``delta * entities`` of them on average: at most a tenth. Only the order of magnitude of the
    count is revealed, which is treated as public.

    >>> auto_delta(26406), auto_delta(10), auto_delta(1)
    (1e-06, 0.01, 0.1)
    """
    count = max(check_integer("entities", entities, at_least=0), 1)
    # The digits of 10 count - 1 are the smallest k with 10^k >= 10 count: exact, no logarithm.
    return float(f"1e-{len(str(10 * count - 1))}")


def public_count(count: int) -> int:
    """Return a count as it may be known: rounded to two digits (privacy page, section 2).

    At node level the number of training people decides the sampling rate and the steps of DP-SGD.
    Rounded, it does not tell whether one person is among them, except at the edge between two
    roundings; who wants to rule that out as well declares the number.

    >>> public_count(11530), public_count(73)
    (12000, 73)
    """
    number = check_integer("count", count, at_least=0)
    step: int = 10 ** max(0, len(str(number)) - 2)
    return (number + step // 2) // step * step


def _check_belongs(level: str, relation: str) -> None:
    check_choice("level", level, LEVELS)
    known = RELATIONS_OF_LEVEL[level]
    if relation in known:
        return
    if not known:
        raise InputError(f"`relation` has no meaning at level none. Got {relation!r}. Use auto.")
    raise InputError(
        f"`relation` at level {level!r} must be one of auto, {', '.join(known)}. Got {relation!r}."
    )
