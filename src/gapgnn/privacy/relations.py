"""Neighbouring relations, and how far two neighbours can be apart (privacy page, section 1).

A level says what is protected (an edge, or a node's whole record), a relation says which two graphs
count as neighbours. Between one edge and a whole record lie the relations that name a number:
``5-edges`` is up to five undirected edges of one person, ``5-arcs`` up to five arcs out of one. The
number is part of the word, so it goes wherever the relation goes. Everything here is public
arithmetic: no graph is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gapgnn.errors import InputError, check_choice, check_integer

LEVELS = ("none", "edge", "node")
RELATIONS_OF_LEVEL = {
    "none": (),
    "edge": ("directed", "undirected"),
    "node": ("add-remove", "replace"),
}
# Those that are a word alone; at edge level there is one more for every number of links.
RELATIONS = ("directed", "undirected", "add-remove", "replace")
_SAMPLES = ("5-edges", "5-arcs")

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
class Links:
    """What a relation of edge level protects: up to so many links of one person.

    Attributes:
        count: how many.
        are_arcs: arcs out of that person; otherwise undirected edges, which are two arcs each.

    >>> links_of("undirected"), links_of("5-arcs")
    (Links(count=1, are_arcs=False), Links(count=5, are_arcs=True))
    """

    count: int
    are_arcs: bool

    @property
    def relation(self) -> str:
        """The relation's one name."""
        if self.count == 1:
            return "directed" if self.are_arcs else "undirected"
        return f"{self.count}-{'arcs' if self.are_arcs else 'edges'}"

    def sensitivity(self, *, both_ways: bool, summed_kinds: int = 1) -> float:
        """Return how far a hop can move (privacy page, section 1).

        k edges move that person's own row by at most k and k other rows by at most 1 each. k arcs
        out of somebody move k other rows, and the own one where messages also go against arcs.
        Both arcs of a pair move both rows twice then.

        In the total over M kinds of edges, arcs u->v of different kinds move the same row: row v by
        at most min(k, M) messages, all rows together by k. The squares add up to k min(k, M).

        For edges, and for arcs both ways, a total alone may move by more than is returned, and then
        the sums of its kinds move by less. The k links are cells of a table, kinds by ends. In the
        kinds' sums the own row moves by the row sums r, the others by 1 for each cell; in the total
        the own row moves by k, the others by the column sums c: together sum(r^2) + k + k^2 +
        sum(c^2). Now sum(r^2) counts the ordered pairs of cells in one row, sum(c^2) those in one
        column. Different cells do not share both, so each of their k^2 - k pairs counts at most
        once, and each cell with itself twice: sum(r^2) + sum(c^2) <= k^2 + k. Kinds and total are
        so within two events of sqrt(k^2 + k).

        Args:
            both_ways: messages go along arcs and against them.
            summed_kinds: M, of a total that is released beside the sum of each kind; 1 elsewhere.

        >>> Links(5, are_arcs=True).sensitivity(both_ways=False, summed_kinds=5)
        5.0
        """
        k = self.count
        if self.are_arcs and not both_ways:
            return math.sqrt(k * min(k, summed_kinds))
        return math.sqrt(k * k + k) * (2 if both_ways and not self.are_arcs else 1)


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


def check_relation(relation: object, *, level: str | None = None) -> str:
    """Return a relation by its one name, or refuse it: any, or one of a level that has some.

    >>> check_relation("5-edges"), check_relation("1-edges"), check_relation("1-arcs", level="edge")
    ('5-edges', 'undirected', 'directed')
    >>> check_relation("k-edges")
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `relation` must have a number for k: 5-edges. Got 'k-edges'.
    """
    links = _links(relation)
    known = links.relation if links else relation
    if level is not None:
        _check_belongs(level, relation)
    elif links is None:
        check_choice("relation", relation, (*RELATIONS, *_SAMPLES))
    return str(known)


def links_of(relation: str) -> Links:
    """Return what a relation of edge level protects.

    >>> links_of("12-edges").count
    12
    """
    links = _links(relation)
    if links is None:
        _check_belongs("edge", relation)
        raise InputError(f"`relation` must be of level edge. Got {relation!r}.")
    return links


def covers(relation: str, other: str) -> bool:
    """Tell whether what one relation protects includes all that another one does.

    Edges include arcs, of as many links or fewer. Arcs out of one person never include a whole
    edge, whose second arc is somebody else's.

    >>> covers("5-edges", "undirected"), covers("5-edges", "5-arcs"), covers("5-arcs", "undirected")
    (True, True, False)
    """
    if relation in RELATIONS_OF_LEVEL["node"] or other in RELATIONS_OF_LEVEL["node"]:
        return relation == other or (relation, other) == ("replace", "add-remove")
    strict, weak = links_of(relation), links_of(other)
    return strict.count >= weak.count and (weak.are_arcs or not strict.are_arcs)


def strictest(relations: Iterable[str]) -> str:
    """Return the weakest relation that covers all of these.

    >>> strictest(["directed", "undirected"]), strictest(["5-arcs", "2-edges"])
    ('undirected', '5-edges')
    """
    known = list(relations)
    if any(relation in RELATIONS_OF_LEVEL["node"] for relation in known):
        return max(known, key=RELATIONS_OF_LEVEL["node"].index)
    links = [links_of(relation) for relation in known]
    return Links(
        max(one.count for one in links), are_arcs=all(one.are_arcs for one in links)
    ).relation


def group_size(charged: str, counted: str) -> int:
    """Return how many neighbours under one relation lead to a neighbour under a stricter one.

    k edges are ceil(k / j) groups of at most j. k edges as arcs are those out of one person, and
    one out of each of k others. A replaced record is one removed and one added.

    >>> group_size("undirected", "5-edges"), group_size("2-edges", "5-edges")
    (5, 3)
    >>> group_size("directed", "undirected"), group_size("5-arcs", "5-edges")
    (2, 6)
    """
    _check_covers(counted, charged)
    if charged == counted:
        return 1
    if counted == "replace":
        return 2
    strict, weak = links_of(counted), links_of(charged)
    own = -(-strict.count // weak.count)
    return own + strict.count if weak.are_arcs and not strict.are_arcs else own


def squared_growth(charged: str, counted: str) -> float:
    """Return by what factor the squared sensitivity of a hop grows towards a stricter relation.

    An event does not say whether messages also went against arcs, so the larger of both counts: the
    second arc of an edge doubles the squared distance along arcs, and both ways the distance.

    >>> round(squared_growth("undirected", "5-edges"), 9), squared_growth("2-edges", "2-edges")
    (15.0, 1.0)
    >>> round(squared_growth("directed", "undirected"), 9)
    4.0
    """
    _check_covers(counted, charged)
    strict, weak = links_of(counted), links_of(charged)
    return max(
        (strict.sensitivity(both_ways=ways) / weak.sensitivity(both_ways=ways)) ** 2
        for ways in (False, True)
    )


def resolve_kinds(level: str, kinds: str = "auto") -> str:
    """Return in which kinds of edges neighbours differ, where there are several.

    ``any``, in one of them, whichever: the promise is then that of one table, one edge. ``each``,
    in all of them at once; at node level it is nothing else. ``auto`` is ``any`` unless records are
    protected (privacy page, section 1).

    >>> resolve_kinds("edge"), resolve_kinds("node"), resolve_kinds("edge", "each")
    ('any', 'each', 'each')
    """
    check_choice("level", level, LEVELS)
    check_choice("edge_types", kinds, ("auto", "each", "any"))
    if level == "node" and kinds == "any":
        raise InputError(
            "`edge_types` must be auto or each at level node: a record holds its adjacency lists of "
            "all types, so withdrawing it changes every type. Got 'any'."
        )
    if kinds == "auto":
        return "each" if level == "node" else "any"
    return kinds


def kinds_growth(num_kinds: int, *, has_total: bool) -> float:
    """Return by what factor what was charged under ``any`` grows for links of every kind at once.

    That is the squared distance, in all sums of a hop together, of graphs that differ in the same
    links of every kind, over the largest of those that differ in one kind. Of M kinds M sums move
    instead of one. A total moves by M messages instead of one, and without it nothing else was
    charged: M, or (M + M^2) / 2. Where a total has more noise than the sums (``k-arcs``), that is
    an upper bound.

    >>> kinds_growth(2, has_total=False), kinds_growth(2, has_total=True)
    (2.0, 3.0)
    """
    return (num_kinds + num_kinds**2) / 2 if has_total else float(num_kinds)


def _check_covers(relation: str, other: str) -> None:
    if not covers(relation, other):
        raise InputError(f"`relation` must cover {other}. Got {relation!r}.")


def resolve_relation(level: str, relation: str = "auto", *, is_directed: bool) -> str:
    """Return the relation that holds at ``level``, with ``auto`` replaced by its meaning.

    ``auto`` is ``undirected`` for a symmetric graph and ``directed`` otherwise at edge level,
    ``add-remove`` at node level, ``none`` at level none. On a symmetric graph ``directed`` is
    allowed, because the paper's tables need it, and :func:`describe_relation` then warns.
    ``undirected`` on a directed graph is allowed too: it protects both arcs of a pair, which is the
    stronger promise. The same holds for ``5-arcs`` and ``5-edges``, which ``auto`` never is.

    >>> resolve_relation("edge", "5-edges", is_directed=False)
    '5-edges'
    >>> resolve_relation("edge", is_directed=False), resolve_relation("edge", is_directed=True)
    ('undirected', 'directed')
    >>> resolve_relation("none", "directed", is_directed=True)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `relation` has no meaning at level none. Got 'directed'. Use auto.
    """
    check_choice("level", level, LEVELS)
    if relation == "auto":
        if level == "edge":
            return "directed" if is_directed else "undirected"
        return "add-remove" if level == "node" else "none"
    if _links(relation) is None:
        check_choice("relation", relation, ("auto", *RELATIONS, *_SAMPLES))
    return check_relation(relation, level=level)


def describe_relation(level: str, relation: str, *, is_directed: bool) -> RelationDescription:
    """Say in plain words which graphs are neighbours, and warn where the promise is easily misread.

    >>> describe_relation("edge", "directed", is_directed=False).warning.split(":")[0]
    'The graph is symmetric but only one arc of each edge is protected'
    >>> describe_relation("edge", "auto", is_directed=False).warning is None
    True
    """
    resolved = resolve_relation(level, relation, is_directed=is_directed)
    links, warning = _links(resolved), None
    if links is not None and links.are_arcs and not is_directed:
        whole = "a whole edge" if links.count == 1 else f"{links.count} whole edges"
        warning = (
            f"The graph is symmetric but only one arc of each edge is protected: for {whole} "
            f"the noise multiplier is smaller by a factor of sqrt({links.count + 1}), so the real "
            "epsilon is larger than the one stated here."
        )
    return RelationDescription(resolved, _sentence(resolved, links), warning)


def _sentence(relation: str, links: Links | None) -> str:
    if links is None or links.count == 1:
        return _WHO_DIFFERS[relation]
    if links.are_arcs:
        what = f"{links.count} arcs out of one person"
    else:
        what = f"{links.count} undirected edges of one person, each stored as two arcs"
    return f"Two graphs are neighbours if they differ in up to {what}."


def aggregation_sensitivity(
    level: str,
    relation: str,
    *,
    max_degree: int | None = None,
    is_divided: bool = False,
    both_ways: bool = False,
    summed_kinds: int = 1,
) -> float:
    """Return the L2 sensitivity of one hop of aggregation (privacy page, section 1).

    One hop is ``A^T X`` with rows of norm at most 1: 1 for ``directed``, sqrt(2) for
    ``undirected``, sqrt(k^2 + k) for ``k-edges`` and sqrt(k) for ``k-arcs``, sqrt(D) for
    ``add-remove`` and 2 sqrt(D) for ``replace``, where D bounds every out-list. At node level the
    rows of all *other* nodes are covered. Where messages are divided by the root of their list's
    length, all that a person writes has norm 1, however long the list is: 1 for ``add-remove`` and
    2 for ``replace``.

    Where messages travel along an arc and against it, ``(A + A^T) X`` without self-loops, one arc
    moves two rows: sqrt(2) for ``directed``, and 2 sqrt(2) for both arcs of a pair, which then move
    both rows twice; sqrt(k^2 + k) for ``k-arcs`` and twice that for ``k-edges``.

    The total over M kinds of edges (``summed_kinds``) moves by sqrt(k min(k, M)) for ``k-arcs``
    along arcs: those of different kinds may end in one row. Otherwise a total and the sums of its
    kinds are together within two events of what is returned (:meth:`Links.sensitivity`).

    >>> aggregation_sensitivity("edge", "directed")
    1.0
    >>> round(aggregation_sensitivity("edge", "5-edges") ** 2, 6)
    30.0
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
        return links_of(relation).sensitivity(both_ways=both_ways, summed_kinds=summed_kinds)
    if both_ways:
        raise InputError("messages go both ways at level edge. Got level 'node'.")
    if summed_kinds > 1:
        raise InputError("totals over several kinds are of level edge. Got level 'node'.")
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
    check_relation(relation)
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


def _links(relation: object) -> Links | None:
    """Return what a word says of links; None where it is a relation of records, or none at all."""
    if relation in RELATIONS_OF_LEVEL["edge"]:
        return Links(1, are_arcs=relation == "directed")
    if not isinstance(relation, str) or not re.search(r"(edge|arc)s?$", relation):
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,8})-(edges|arcs)", relation)
    if found is None:
        sample = _SAMPLES["arc" in relation]
        raise InputError(f"`relation` must have a number for k: {sample}. Got {relation!r}.")
    return Links(int(found[1]), are_arcs=found[2] == "arcs")


def _check_belongs(level: str, relation: object) -> None:
    check_choice("level", level, LEVELS)
    known = RELATIONS_OF_LEVEL[level]
    if relation in known or (level == "edge" and _links(relation) is not None):
        return
    if not known:
        raise InputError(f"`relation` has no meaning at level none. Got {relation!r}. Use auto.")
    listed = (*known, *_SAMPLES) if level == "edge" else known
    raise InputError(
        f"`relation` at level {level!r} must be one of auto, {', '.join(listed)}. Got {relation!r}."
    )
