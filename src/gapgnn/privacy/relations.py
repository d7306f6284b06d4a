"""Neighbouring relations: which two graphs a guarantee makes hard to tell apart.

A level says what is protected (an edge, or a node's whole record), a relation which two graphs are
neighbours (privacy page, section 1). A relation is an object: ``Undirected()``, ``KEdges(5)``,
``Replace()``. It knows its level, its one name, the relations it covers and how many steps of a
weaker relation make one step of it. Text is its form on the command line, in the ledger, on cards
and in saved files: :func:`parse_relation` reads it and ``str`` writes it. How far an operator moves
between two neighbours is stated by the operator (:mod:`gapgnn.privacy.operators`).

Everything here is public arithmetic: no graph is read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from gapgnn.errors import InputError, check_choice, check_integer

LEVELS = ("none", "edge", "node")


class Relation(ABC):
    """Which two graphs are neighbours; each relation is a frozen dataclass.

    Attributes:
        level: what is protected: ``none``, ``edge`` or ``node``.
        contributions: how many contributions of one link or record lie between two neighbours at
            most: 2 where an old and a new one can oppose each other.
    """

    level: ClassVar[str]
    contributions: ClassVar[int] = 1

    @property
    @abstractmethod
    def name(self) -> str:
        """The relation's one name, as it is written everywhere."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Which two graphs are neighbours, in words."""

    @abstractmethod
    def covers(self, other: Relation) -> bool:
        """Tell whether what this relation protects includes all that another one does."""

    @abstractmethod
    def group_size(self, other: Relation) -> int:
        """Return how many neighbours under a weaker relation lead to a neighbour under this one."""

    def __str__(self) -> str:
        return self.name

    def check_covers(self, other: Relation) -> None:
        """Raise unless this relation covers another one."""
        if not self.covers(other):
            raise InputError(f"`relation` must cover {other}. Got {self.name!r}.")


@dataclass(frozen=True)
class Unprotected(Relation):
    """Level none: nothing is protected.

    >>> str(Unprotected()), Unprotected().covers(Unprotected())
    ('none', True)
    """

    level: ClassVar[str] = "none"

    @property
    def name(self) -> str:
        """``none``."""
        return "none"

    @property
    def sentence(self) -> str:
        """That nothing is promised."""
        return "No guarantee makes two graphs hard to distinguish: nothing is protected."

    def covers(self, other: Relation) -> bool:
        """Tell whether the other one protects nothing either."""
        return self == other

    def group_size(self, other: Relation) -> int:
        """Return 1, of itself."""
        self.check_covers(other)
        return 1


class Links(Relation):
    """Up to so many links of one person: arcs out of that person, or undirected edges.

    An undirected edge is stored as two arcs, u->v and v->u.

    Attributes:
        count: how many.
        are_arcs: whether links are arcs.

    >>> Links.of(1, are_arcs=False), Links.of(5, are_arcs=True)
    (Undirected(), KArcs(count=5))
    """

    level: ClassVar[str] = "edge"
    count: int
    are_arcs: ClassVar[bool]

    @staticmethod
    def of(count: int, *, are_arcs: bool) -> Links:
        """Return the relation of so many links."""
        if count == 1:
            return Directed() if are_arcs else Undirected()
        return KArcs(count) if are_arcs else KEdges(count)

    @property
    def name(self) -> str:
        """``directed``, ``undirected``, or with a number: ``5-arcs``, ``5-edges``."""
        if self.count == 1:
            return "directed" if self.are_arcs else "undirected"
        return f"{self.count}-{'arcs' if self.are_arcs else 'edges'}"

    @property
    def sentence(self) -> str:
        """Which two graphs are neighbours, in words."""
        if self.are_arcs:
            one = "one arc u->v"
            several = f"up to {self.count} arcs out of one person"
        else:
            one = "one undirected edge, stored as the two arcs u->v and v->u"
            several = f"up to {self.count} undirected edges of one person, each stored as two arcs"
        return f"Two graphs are neighbours if they differ in {one if self.count == 1 else several}."

    def covers(self, other: Relation) -> bool:
        """Tell whether what this relation protects includes all that another one does.

        Edges include arcs, of as many links or fewer. Arcs out of one person never include a whole
        edge, whose second arc is somebody else's.

        >>> KEdges(5).covers(Undirected()), KEdges(5).covers(KArcs(5)), KArcs(5).covers(KEdges(2))
        (True, True, False)
        """
        if not isinstance(other, Links):
            return False
        return self.count >= other.count and (other.are_arcs or not self.are_arcs)

    def group_size(self, other: Relation) -> int:
        """Return how many neighbours under a weaker relation lead to a neighbour under this one.

        k edges are ceil(k / j) groups of at most j. k edges as arcs are those out of one person,
        and one out of each of k others.

        >>> KEdges(5).group_size(Undirected()), KEdges(5).group_size(KEdges(2))
        (5, 3)
        >>> Undirected().group_size(Directed()), KEdges(5).group_size(KArcs(5))
        (2, 6)
        """
        self.check_covers(other)
        if self == other or not isinstance(other, Links):
            return 1
        own = -(-self.count // other.count)
        return own + self.count if other.are_arcs and not self.are_arcs else own


@dataclass(frozen=True)
class Directed(Links):
    """Two graphs are neighbours if they differ in one arc."""

    count: int = field(default=1, init=False, repr=False)
    are_arcs: ClassVar[bool] = True


@dataclass(frozen=True)
class Undirected(Links):
    """Two graphs are neighbours if they differ in one undirected edge, which is two arcs."""

    count: int = field(default=1, init=False, repr=False)
    are_arcs: ClassVar[bool] = False


@dataclass(frozen=True)
class KArcs(Links):
    """Two graphs are neighbours if they differ in up to k arcs out of one person; k is above 1."""

    count: int
    are_arcs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("count", self.count, at_least=2)


@dataclass(frozen=True)
class KEdges(Links):
    """Two graphs are neighbours if they differ in up to k undirected edges of one person.

    k is above 1.

    >>> str(KEdges(5)), parse_relation("5-edges") == KEdges(5)
    ('5-edges', True)
    """

    count: int
    are_arcs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_integer("count", self.count, at_least=2)


class Records(Relation):
    """One person's record: features, label and adjacency list."""

    level: ClassVar[str] = "node"

    def covers(self, other: Relation) -> bool:
        """Tell whether what this relation protects includes all that another one does.

        >>> Replace().covers(AddRemove()), AddRemove().covers(Replace())
        (True, False)
        """
        return isinstance(other, Records) and self.contributions >= other.contributions

    def group_size(self, other: Relation) -> int:
        """Return 2 for a replaced record, which is one removed and one added; 1 of itself.

        >>> Replace().group_size(AddRemove())
        2
        """
        self.check_covers(other)
        return 1 if self == other else 2


@dataclass(frozen=True)
class AddRemove(Records):
    """Two graphs are neighbours if one record is in one of them and not in the other."""

    @property
    def name(self) -> str:
        """``add-remove``."""
        return "add-remove"

    @property
    def sentence(self) -> str:
        """Which two graphs are neighbours, in words."""
        return (
            "Two graphs are neighbours if one person's record (features, label and adjacency list) "
            "is in one and not in the other."
        )


@dataclass(frozen=True)
class Replace(Records):
    """Two graphs are neighbours if one record is exchanged for another."""

    contributions: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """``replace``."""
        return "replace"

    @property
    def sentence(self) -> str:
        """Which two graphs are neighbours, in words."""
        return (
            "Two graphs are neighbours if one person's record (features, label and adjacency list) "
            "is exchanged for another record."
        )


# A relation, or its name where users write it.
RelationLike: TypeAlias = Relation | str

# Those that are a word alone, by name; and at edge level one for every number of links.
_WORDS: dict[object, Relation] = {
    one.name: one for one in (Directed(), Undirected(), AddRemove(), Replace())
}
_NUMBERED: dict[str, type[KEdges] | type[KArcs]] = {"edges": KEdges, "arcs": KArcs}
_SAMPLES = {unit: several(5).name for unit, several in _NUMBERED.items()}
RELATIONS_OF_LEVEL = {
    level: tuple(one.name for one in _WORDS.values() if one.level == level) for level in LEVELS
}
RELATIONS = tuple(one.name for one in _WORDS.values())


def parse_relation(text: object, level: str | None = None) -> Relation:
    """Return the relation of a name, or refuse it: any, or one of a level.

    A relation is returned as it is, if it is of the level.

    >>> parse_relation("5-edges"), parse_relation("1-edges"), parse_relation("replace", "node")
    (KEdges(count=5), Undirected(), Replace())
    >>> parse_relation("k-edges")
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `relation` must have a number for k: 5-edges. Got 'k-edges'.
    """
    if isinstance(text, Relation) and level in (None, text.level):
        return text
    name = text.name if isinstance(text, Relation) else text
    if level == "none" and name == "none":
        return Unprotected()
    found = _parsed(name)
    if level is not None:
        _check_belongs(level, name, found)
    if found is None:
        check_choice("relation", name, (*RELATIONS, *_SAMPLES.values()))
        raise InputError(f"`relation` must be a relation. Got {name!r}.")
    return found


def _parsed(name: object) -> Relation | None:
    """Return the relation of a name; None where there is none of this name."""
    if not isinstance(name, str) or name in _WORDS:
        return _WORDS.get(name)
    for unit, several in _NUMBERED.items():
        if found := re.fullmatch(rf"([1-9][0-9]{{0,8}})-{unit}", name):
            count = int(found[1])
            return several(count) if count > 1 else Links.of(1, are_arcs=several.are_arcs)
    for unit, sample in _SAMPLES.items():
        if re.search(rf"{unit[:-1]}s?$", name):
            raise InputError(f"`relation` must have a number for k: {sample}. Got {name!r}.")
    return None


def _check_belongs(level: str, name: object, found: Relation | None) -> None:
    check_choice("level", level, LEVELS)
    if found is not None and found.level == level:
        return
    if level == "none":
        raise InputError(f"`relation` has no meaning at level none. Got {name!r}. Use auto.")
    known = RELATIONS_OF_LEVEL[level]
    listed = (*known, *_SAMPLES.values()) if level == "edge" else known
    raise InputError(
        f"`relation` at level {level!r} must be one of auto, {', '.join(listed)}. Got {name!r}."
    )


def strictest(relations: Iterable[Relation]) -> Relation:
    """Return the weakest relation that covers all of these.

    >>> strictest([Directed(), Undirected()]), strictest([KArcs(5), KEdges(2)])
    (Undirected(), KEdges(count=5))
    """
    known = list(relations)
    links = [one for one in known if isinstance(one, Links)]
    if not links:
        return next(one for one in known if all(one.covers(other) for other in known))
    if len(links) < len(known):
        raise InputError("`relations` must be of one level. Got several.")
    return Links.of(max(one.count for one in links), are_arcs=all(one.are_arcs for one in links))


def links_of(relation: RelationLike) -> Links:
    """Return what a relation of edge level protects.

    >>> links_of("12-edges").count
    12
    """
    found = parse_relation(relation, "edge")
    assert isinstance(found, Links)
    return found


def resolve_edge_types(level: str, edge_types: str = "auto") -> Literal["any", "each"]:
    """Return in which edge types neighbours differ, where there are several.

    ``any``, in one of them, whichever: the promise is then that of one table, one edge. ``each``,
    in all of them at once; at node level it is nothing else. ``auto`` is ``any`` unless records are
    protected (privacy page, section 1).

    >>> resolve_edge_types("edge"), resolve_edge_types("node"), resolve_edge_types("edge", "each")
    ('any', 'each', 'each')
    """
    check_choice("level", level, LEVELS)
    check_choice("edge_types", edge_types, ("auto", "each", "any"))
    if level == "node" and edge_types == "any":
        raise InputError(
            "`edge_types` must be auto or each at level node: a record holds its adjacency lists "
            "of all types, so withdrawing it changes every type. Got 'any'."
        )
    if edge_types == "auto":
        return "each" if level == "node" else "any"
    return "each" if edge_types == "each" else "any"


def resolve_relation(level: str, relation: RelationLike = "auto", *, is_directed: bool) -> Relation:
    """Return the relation that holds at ``level``, with ``auto`` replaced by its meaning.

    ``auto`` is ``undirected`` for a symmetric graph and ``directed`` otherwise at edge level,
    ``add-remove`` at node level, ``none`` at level none. On a symmetric graph ``directed`` is
    allowed, because the paper's tables need it, and the privacy card then warns. ``undirected`` on
    a directed graph is allowed too: it protects both arcs of a pair, which is the stronger promise.
    The same holds for ``5-arcs`` and ``5-edges``, which ``auto`` never is.

    >>> resolve_relation("edge", "5-edges", is_directed=False)
    KEdges(count=5)
    >>> resolve_relation("edge", is_directed=False), resolve_relation("edge", is_directed=True)
    (Undirected(), Directed())
    >>> resolve_relation("none", "directed", is_directed=True)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `relation` has no meaning at level none. Got 'directed'. Use auto.
    """
    check_choice("level", level, LEVELS)
    if relation == "auto":
        if level == "edge":
            return Directed() if is_directed else Undirected()
        return AddRemove() if level == "node" else Unprotected()
    if isinstance(relation, str) and _parsed(relation) is None:
        check_choice("relation", relation, ("auto", *RELATIONS, *_SAMPLES.values()))
    return parse_relation(relation, level)


def aggregation_ratio(relation: RelationLike) -> float:
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
    return 1 / parse_relation(relation).contributions


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
