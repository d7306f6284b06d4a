"""Linear maps over a private graph, each with a proof of its sensitivity.

An operator sums rows of norm at most 1 along the arcs of a graph: ``S(X) = W^T X``. It defines the
exact sums (:meth:`Operator.sums`) and their sensitivity: the largest L2 distance, over all rows
together, between two neighbouring graphs (:meth:`Operator.sensitivity`). Noise is scaled to that
number (:class:`~gapgnn.privacy.mechanisms.PrivateAggregation`), so sensitivities of hops are
derived in this module only (privacy page, section 1).

Everywhere below, ``x_u`` is the row that node u sends, of norm at most 1, and a weight is between 0
and 1, so a message ``w x_u`` has norm at most 1. Where the weight of a link differs between two
graphs, or the link itself, what it carries differs by ``(w - w') x_u``, of norm at most 1 too. At
edge level rows are public and equal in both graphs. At node level p is the person whose record
differs.

Backends compute sums fast (:mod:`gapgnn.privacy.mechanisms.backends`): :attr:`Operator.messages`
gives them the lists to sum and the scaling of rows. :meth:`Operator.sums` is the reference, which
every backend equals to the bit on the safe grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import scipy.sparse as sp

from gapgnn import graph as graphs
from gapgnn.errors import InputError, PrivacyError, check_integer
from gapgnn.privacy import mechanisms
from gapgnn.privacy.relations import Links, Records, Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from gapgnn.graph import Graph
    from gapgnn.rng import NoiseKey


@dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs of one edge type that messages travel along, as a backend reads them.

    Attributes:
        graph: whose arcs.
        max_degree: how many entries are kept of every adjacency list; None for all.
        key: the secret that decides which ones.
        symmetrised: messages also travel against arcs; self-loops are left out then.
        drops_loops: arcs from a node to itself are left out.
    """

    graph: Graph
    max_degree: int | None = None
    key: NoiseKey | None = None
    symmetrised: bool = False
    drops_loops: bool = False


@dataclass(frozen=True, eq=False)
class Messages:
    """The arcs that a backend sums over, and the scaling of rows.

    Attributes:
        arcs: of every edge type; all are summed.
        copies: the largest number of rows that each node contributes to. Its row is divided by the
            square root of that number before it is truncated to the grid. None: no scaling.
        to_self: every node also sends to itself.
    """

    arcs: tuple[Arcs, ...]
    copies: NDArray[np.int64] | None = None
    to_self: bool = False

    @property
    def is_weighted(self) -> bool:
        """Whether some message has a weight, so that rows are cut to the coarser grid."""
        return any(one.graph.is_weighted for one in self.arcs)


class Operator(Protocol):
    """A linear map from rows of norm at most 1 to sums, exact on the noise grid."""

    @property
    def graph(self) -> Graph:
        """The private graph, in memory or in a store."""

    @property
    def messages(self) -> Messages:
        """The arcs and the scaling for a backend."""

    def sums(self, rows: Tensor) -> Tensor:
        """Return the exact sums of rows ``(N, d)`` in float64, NOT private."""

    def sensitivity(self, relation: Relation) -> float:
        """Return the largest L2 distance between the sums of two neighbouring graphs.

        Raises:
            InputError: if no bound holds under this relation, with the reason.
        """


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The sum of the messages along the arcs that end at a node: ``A^T X``.

    **Theorem.** The sensitivity is sqrt(k) for k arcs of one person and sqrt(k^2 + k) for k
    undirected edges: 1 for ``Directed()`` and sqrt(2) for ``Undirected()``.

    *Proof.* The k arcs leave one person p and, in one edge type, end at k different nodes. Each of
    these rows changes by one message, of norm at most 1, and no other row changes: k in squares.
    Of k edges between p and v_1, ..., v_k the row of each v_i changes by one message, together k in
    squares, and row p by the sum of k messages, of norm at most k. An edge from p to itself is one
    arc and changes row p alone, by one of these k messages. QED. Both are attained by a star whose
    leaves all send the same row.

    Under relations of records there is no bound: a record may be on any number of rows.

    Args:
        graph: the private graph; weights of its edges are part of it.

    >>> from gapgnn.privacy.relations import Directed, KEdges
    >>> Neighbors.bound(Directed()), round(Neighbors.bound(KEdges(5)) ** 2, 9)
    (1.0, 30.0)
    """

    graph: Graph

    @cached_property
    def messages(self) -> Messages:
        """All arcs."""
        return Messages((Arcs(self.graph),))

    def sums(self, rows: Tensor) -> Tensor:
        """Return ``A^T X``."""
        return _product(_matrix(self.graph), _on_grid(rows, self.messages))

    @staticmethod
    def bound(relation: Relation) -> float:
        """Return the sensitivity, which is that of any graph."""
        if not isinstance(relation, Links):
            raise InputError(
                f"`relation` must be of edge level for sums over whole lists. Got {relation}: a "
                "record may write to any number of rows. Bound or normalise out-degrees."
            )
        k = relation.count
        return math.sqrt(k if relation.are_arcs else k * k + k)

    def sensitivity(self, relation: Relation) -> float:
        """Return :meth:`bound`."""
        return self.bound(relation)


@dataclass(frozen=True, eq=False)
class Symmetrized:
    """The symmetrised sum, without self-loops: ``(A + A^T - 2 diag A)^T X``.

    **Theorem.** The sensitivity is sqrt(k^2 + k) for k arcs of one person, and 2 sqrt(k^2 + k) for
    k undirected edges, which are both arcs of k pairs.

    *Proof.* Without the diagonal an arc p->v adds x_p to row v and x_v to another row, p. Of k arcs
    from p to v_1, ..., v_k the row of each v_i changes by one message, together k in squares, and
    row p by the sum of k messages, of norm at most k: k^2 + k. With the arcs v_i->p as well every
    one of these messages is there twice, which doubles the norm. QED. An arc from a node to itself
    would change a single row by two messages, norm 2, where the claim for one arc is sqrt(2); so it
    is left out.

    Under relations of records there is no bound: p receives messages of all nodes that list p.

    Args:
        graph: a private graph with directions.

    >>> from gapgnn.privacy.relations import Directed, Undirected
    >>> [round(Symmetrized.bound(one) ** 2, 9) for one in (Directed(), Undirected())]
    [2.0, 8.0]
    """

    graph: Graph

    def __post_init__(self) -> None:
        if not self.graph.is_directed:
            raise PrivacyError("symmetrised messages must be over a directed graph. Got another.")

    @cached_property
    def messages(self) -> Messages:
        """All arcs, in both directions."""
        return Messages((Arcs(self.graph, symmetrised=True),))

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums over arcs that arrive and arcs that leave."""
        matrix = _without_loops(_matrix(self.graph))
        return _product(matrix + matrix.T, _on_grid(rows, self.messages))

    @staticmethod
    def bound(relation: Relation) -> float:
        """Return the sensitivity, which is that of any graph."""
        if not isinstance(relation, Links):
            raise InputError(
                f"`relation` must be of edge level for symmetrised messages. Got {relation}: what "
                "arrives against an arc is on a list of somebody else."
            )
        k = relation.count
        return math.sqrt(k * k + k) * (1 if relation.are_arcs else 2)

    def sensitivity(self, relation: Relation) -> float:
        """Return :meth:`bound`."""
        return self.bound(relation)


@dataclass(frozen=True, eq=False)
class DegreeBounded:
    """The sum over adjacency lists truncated to at most D entries each: ``cut(A)^T X``.

    **Theorem.** Over the rows of everybody but p the sensitivity is sqrt(D) for ``AddRemove()`` and
    2 sqrt(D) for ``Replace()``.

    *Proof.* What is kept of a list is a function of that list, the ids on it and the key
    (:func:`~gapgnn.graph.bound_out_degrees`); an entry without a record keeps its slot and nothing
    is refilled. So the lists of others are the same in both graphs and only the messages of p
    differ. These are at most D, in D different rows, each of norm at most 1: D in squares. An
    exchanged record takes away at most D messages and adds at most D, and by the triangle
    inequality the sums move by at most twice sqrt(D). QED. Both are attained by a list of D entries
    or more, the second by two opposite rows. Row p itself is computed from p's place in the graph
    and is not covered; nobody sends to oneself on top.

    At edge level there is no use: where one entry leaves a long list another one takes its slot.

    Args:
        graph: the private graph.
        max_degree: D.
        key: the secret of the cut, from which nothing else is derived.

    >>> from gapgnn.privacy.relations import AddRemove, Replace
    >>> DegreeBounded.bound(AddRemove(), 100), DegreeBounded.bound(Replace(), 100)
    (10.0, 20.0)
    """

    graph: Graph
    max_degree: int
    key: NoiseKey

    def __post_init__(self) -> None:
        check_integer("max_degree", self.max_degree, at_least=1)

    @cached_property
    def messages(self) -> Messages:
        """The arcs that are kept."""
        return Messages((Arcs(self.graph, self.max_degree, self.key),))

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums over the arcs that are kept."""
        kept = graphs.bound_out_degrees(self.graph, self.max_degree, self.key)
        return _product(_csr(self.graph, *kept), _on_grid(rows, self.messages))

    @staticmethod
    def bound(relation: Relation, max_degree: int) -> float:
        """Return the sensitivity, which is that of any graph."""
        if not isinstance(relation, Records):
            raise InputError(
                f"`relation` must be of node level where out-degrees are bounded. Got {relation}: "
                "where a link leaves a list that is cut, another one takes its place."
            )
        degree = check_integer("max_degree", max_degree, at_least=1)
        return math.sqrt(degree) * relation.contributions

    def sensitivity(self, relation: Relation) -> float:
        """Return :meth:`bound`."""
        return self.bound(relation, self.max_degree)


@dataclass(frozen=True, eq=False)
class OutDegreeNormalized:
    """Sums of degree-normalised rows: ``A^T C^(-1/2) X``.

    ``c_u`` is the length of u's list, dangling entries included, and one more where everybody also
    sends to oneself. Self-loops are then left out of the sums and still count in ``c_u``.

    **Theorem.** Over the rows of all public ids, p's own included, the sensitivity is 1 for
    ``AddRemove()`` and 2 for ``Replace()``, however long lists are. A withdrawn p keeps a row.

    *Proof.* ``c_u`` is a function of u's own record: an entry without a record still counts, so
    nobody else's changes with p. Hence only the messages of p differ. Without sending to oneself
    they are at most ``c_p``, one for each entry, all in different rows, a self-loop's in row p.
    With it the self-loop is left out, so that row p still receives one message, and they are at
    most ``c_p`` again. Each has norm at most ``c_p^(-1/2)``, so that the squares add up to at most
    1. An exchanged record takes away at most 1 and adds at most 1. QED. Both are attained by a
    record whose entries all have a row; with the self-loop counted twice row p would move by two
    messages and the distance be up to sqrt(2).

    At edge level there is no use: one edge changes the out-degree and with it all messages.
    If p also vanished from the lists of others, their ``c_u`` would change: not bounded.

    Args:
        graph: the private graph.
        to_self: every node also sends to itself.

    >>> from gapgnn.privacy.relations import AddRemove, Replace
    >>> OutDegreeNormalized.bound(AddRemove()), OutDegreeNormalized.bound(Replace())
    (1.0, 2.0)
    """

    graph: Graph
    to_self: bool = False

    @property
    def copies(self) -> NDArray[np.int64]:
        """How many rows each node writes to at most."""
        copies: NDArray[np.int64] = self.graph.out_degrees + int(self.to_self)
        return copies

    @cached_property
    def messages(self) -> Messages:
        """All arcs, without self-loops where everybody sends to oneself."""
        drops_loops = self.to_self and self.graph.num_self_loops > 0
        arcs = Arcs(self.graph, drops_loops=drops_loops)
        return Messages((arcs,), self.copies, to_self=self.to_self)

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums of the normalised rows, and of one's own."""
        sent = _on_grid(rows, self.messages)
        if not self.to_self:
            return _product(_matrix(self.graph), sent)
        return _product(_without_loops(_matrix(self.graph)), sent) + sent

    @staticmethod
    def bound(relation: Relation) -> float:
        """Return the sensitivity, which is that of any graph."""
        if not isinstance(relation, Records):
            raise InputError(
                "`relation` must be of node level for degree-normalised messages. Got "
                f"{relation}: one link changes all messages of a list."
            )
        return float(relation.contributions)

    def sensitivity(self, relation: Relation) -> float:
        """Return :meth:`bound`."""
        return self.bound(relation)


@dataclass(frozen=True, eq=False)
class UnionOfTypes:
    """The sum over the union of M edge types: ``sum_m S_m(X)``.

    A link of one type and a link of another may end at the same node and move one row of the union
    twice. The k links of person p are cells of a table, types by ends; r are the numbers of cells
    in its rows, c those in its columns. No cell is there twice, so ``c <= min(k, M)`` and
    ``sum(c^2) <= min(k, M) sum(c) = k min(k, M)``.

    **Theorem 1 (the union alone).** With m = min(k, M) the sensitivity is sqrt(k m) for k arcs
    along arcs and sqrt(k^2 + k m) for k edges; for symmetrised types sqrt(k^2 + k m) for k arcs and
    2 sqrt(k^2 + k m) for k edges.

    *Proof.* Along arcs the row of an end v changes by c_v messages: ``sum(c^2)`` in squares.
    For edges, and for symmetrised arcs, row p changes by k messages more, as k links leave or reach
    it, whatever their types; for symmetrised edges every message is there twice. QED.

    **Theorem 2 (beside its types).** Let the sums of all types be released too, each with noise for
    the sensitivity s of its own type. Then types and union are within two events: the squared
    distances over the squared sensitivities add up to at most 2, where the union counts with
    sqrt(k min(k, M)) for arcs along arcs, and with s otherwise.

    *Proof.* Arcs along arcs: the types' sums move by one message per cell, k in squares, which is
    s^2; the union by Theorem 1. Otherwise, in units of one message: in the types' sums row p moves
    by r and every end by 1 for each cell, in the union row p by k and the ends by c, together
    ``sum(r^2) + k + k^2 + sum(c^2)``. ``sum(r^2)`` counts the ordered pairs of cells in one row,
    ``sum(c^2)`` those in one column. Two different cells never share both, so each of their
    ``k^2 - k`` ordered pairs counts at most once, and each cell with itself twice: ``sum(r^2) +
    sum(c^2) <= k^2 + k``, and the whole is at most ``2 (k^2 + k)``. QED. One type that has all k
    links attains it.

    Under relations of records there is no bound stated: a record holds its lists of every type.

    Args:
        types: one operator for each edge type, all :class:`Neighbors` or all :class:`Symmetrized`.
        beside_types: the sums of all types are released and charged too.
    """

    types: tuple[Operator, ...]
    beside_types: bool = False

    def __init__(self, types: Sequence[Operator], *, beside_types: bool = False) -> None:
        # A frozen dataclass takes its attributes this way only.
        self.__dict__.update(types=tuple(types), beside_types=beside_types)
        found = {type(one) for one in self.types}
        if len(found) != 1 or not found <= {Neighbors, Symmetrized}:
            names = ", ".join(sorted(one.__name__ for one in found)) or "nothing"
            raise PrivacyError(
                "a union must be of types that are all summed along arcs, or all symmetrised. "
                f"Got {names}."
            )
        if len({id(one.graph) for one in self.types}) < len(self.types):
            raise PrivacyError("a union must have every edge type once. Got one of them twice.")

    @property
    def graph(self) -> Graph:
        """The graph of the first type."""
        return self.types[0].graph

    @cached_property
    def messages(self) -> Messages:
        """The arcs of all types."""
        return Messages(tuple(arcs for one in self.types for arcs in one.messages.arcs))

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sums over all types; cutting rows that lie on the grid changes nothing."""
        sent = _on_grid(rows, self.messages)
        first, *others = (one.sums(sent) for one in self.types)
        return sum(others, start=first)

    def sensitivity(self, relation: Relation) -> float:
        """Return the sensitivity by Theorem 1 or, beside the types, what Theorem 2 counts with."""
        if not isinstance(relation, Links):
            raise InputError(
                f"`relation` must be of edge level for a union of edge types. Got {relation}: a "
                "record holds its lists of all types. Release every type by itself."
            )
        k, is_along = relation.count, isinstance(self.types[0], Neighbors)
        cells = k * min(k, len(self.types))
        if relation.are_arcs and is_along:
            return math.sqrt(cells)
        if self.beside_types:
            return self.types[0].sensitivity(relation)
        return math.sqrt(k * k + cells) * (1 if relation.are_arcs or is_along else 2)


def squared_growth(charged: Relation, counted: Relation) -> float:
    """Return by what factor the squared sensitivity of a hop grows towards a stricter relation.

    An event does not say whether messages also went against arcs, so the larger of both counts: the
    second arc of an edge doubles the squared distance along arcs, and symmetrised the distance.

    >>> from gapgnn.privacy.relations import Directed, KEdges, Undirected
    >>> round(squared_growth(Undirected(), KEdges(5)), 9), squared_growth(KEdges(2), KEdges(2))
    (15.0, 1.0)
    >>> round(squared_growth(Directed(), Undirected()), 9)
    4.0
    """
    counted.check_covers(charged)
    bounds = (Neighbors.bound, Symmetrized.bound)
    return max((bound(counted) / bound(charged)) ** 2 for bound in bounds)


def edge_types_growth(num_types: int, *, has_total: bool) -> float:
    """Return by what factor what was charged for any edge type grows for links of every type.

    That is the squared distance, in all sums of a hop together, of graphs that differ in the same
    links of every type, over the largest of those that differ in one type. Of M types M sums move
    instead of one. A union moves by M messages instead of one, and without it nothing else was
    charged: M, or (M + M^2) / 2. Where a union has more noise than the types (``KArcs``), that is
    an upper bound.

    >>> edge_types_growth(2, has_total=False), edge_types_growth(2, has_total=True)
    (2.0, 3.0)
    """
    return (num_types + num_types**2) / 2 if has_total else float(num_types)


def _csr(graph: Graph, indptr: Any, indices: Any, weights: Any = None) -> sp.csr_array:
    """Return adjacency lists as a matrix of weights, row = source."""
    values = np.ones(len(indices)) if weights is None else weights.astype(np.float64)
    return sp.csr_array((values, indices, indptr), shape=(graph.num_nodes,) * 2)


def _matrix(graph: Graph) -> sp.csr_array:
    return _csr(graph, graph.indptr, graph.indices, graph.weights)


def _without_loops(matrix: sp.csr_array) -> sp.csr_array:
    loops = sp.csr_array(sp.diags_array(matrix.diagonal()))
    return matrix - loops


def _on_grid(rows: Tensor, messages: Messages) -> Tensor:
    """Return rows as they are sent: divided where they are, and cut to the grid, in float64."""
    rows = rows.double()
    if messages.copies is not None:
        rows = mechanisms.divide_rows(rows, rows.new_tensor(messages.copies))
    grid = mechanisms.WEIGHTED_GRID if messages.is_weighted else mechanisms.ROW_GRID
    return mechanisms.quantise_rows(rows, grid=grid)


def _product(matrix: sp.csr_array, rows: Tensor) -> Tensor:
    """Return ``matrix^T rows``: exact in float64, as all products lie on the noise grid."""
    return rows.new_tensor(matrix.T @ rows.numpy())
