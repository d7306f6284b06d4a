"""Graph: the private data, validated once and immutable."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError, InputError, check_choice
from gapgnn.graph import csr
from gapgnn.graph.canonical import (
    Features,
    NotFinite,
    as_dangling,
    as_features,
    as_inferred,
    as_labels,
    as_mask,
    as_names,
    frozen,
    increases,
)
from gapgnn.graph.fingerprint import fingerprint
from gapgnn.graph.weights import STEPS, WeightBounds, as_weights
from gapgnn.graph.wording import Wording

if TYPE_CHECKING:
    from gapgnn.graph.tables import Preparation, Schema

SelfLoops = Literal["drop", "keep"]
MASKS = ("train_mask", "val_mask", "test_mask")
# The end of messages to callers who pass rows instead of a graph, or would split a graph into rows.
KEPT_WHOLE = (
    "Rows alone have no edges: build a graph with `Graph.from_arcs`, and in place of GridSearchCV, "
    "cross_val_score and transformers of a Pipeline use `gapgnn.cross_validate`, which keeps the "
    "graph whole and reports the privacy cost of its folds."
)
AnyGraph = TypeVar("AnyGraph", bound="Graph")


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with node features, labels and split masks.

    Build one with :meth:`from_arcs` (or a function of :mod:`gapgnn.graph.convert`); transforms
    return new graphs. ``Graph(...)`` itself checks nothing and is for those functions only. Row
    ``u`` of the adjacency is the adjacency list of node ``u``, so aggregation over in-neighbours is
    ``adjacency.T @ X``. Every array is read-only: writable arrays are copied on the way in, and a
    read-only one is shared.

    Attributes:
        indptr: CSR row pointers of the adjacency lists, ``num_nodes + 1`` long.
        indices: targets, sorted inside each adjacency list, without duplicates; int32 where they
            fit.
        features: ``(num_nodes, num_features)``, dense float32 or sparse CSR (one-hot stays sparse).
        labels: class of each node, ``-1`` where unknown.
        train_mask: nodes whose label may be used to train.
        val_mask: nodes whose label may be used to choose between models.
        test_mask: nodes whose label is only used to score.
        ids: the user's name of each node: integers or strings, unique.
        is_directed: False means that the adjacency is symmetric.
        dangling_indptr: CSR row pointers of the dangling entries of each adjacency list, or None.
        dangling_targets: ids of neighbours that have no record here. They contribute nothing, but
            count towards the out-degree when an adjacency list is cut (privacy page, section 1).
        weights: the weight of each arc, 0 to 1 on a grid of 2**-8, beside ``indices``; None if all
            are 1. In an undirected graph both arcs of an edge have the same weight.
        weight_bounds: the declared bounds of the amounts that became weights; not part of the
            content.
        edge_type: the name of this edge type, where there are several.
        more_edge_types: the other edge types over the same nodes, as graphs without features; see
            :func:`gapgnn.graph.transforms.join_edge_types`.
        label_names: the name of each class, in the order of ``labels``.
        feature_names: the name of each feature column, where known; not part of the content.
        name: a human-readable name, not part of the content.
        schema: the declaration of the node table, if there is one; not part of the content.
        inferred: which of classes, columns and direction were read from the data instead of being
            declared, so that they may reveal single people (privacy page, section 2); not part
            of the content.
        population: the namespace of ``ids`` in the ledger: graphs in one namespace that name a
            common id share a budget (privacy page, section 6); not part of the content.
        preparation: the options by which its tables were read, for a model to store; not part of
            the content.
        split_options: the seed and the training and validation shares with which
            :func:`~gapgnn.graph.transforms.random_split` drew roles from ids; None where roles
            came with the records. Not part of the content.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    features: Features
    labels: NDArray[np.int64]
    train_mask: NDArray[np.bool_]
    val_mask: NDArray[np.bool_]
    test_mask: NDArray[np.bool_]
    ids: NDArray[Any]
    is_directed: bool
    dangling_indptr: NDArray[np.int64] | None = None
    dangling_targets: NDArray[Any] | None = None
    label_names: tuple[str, ...] | None = None
    name: str = field(default="graph")
    feature_names: tuple[str, ...] | None = None
    schema: Schema | None = None
    inferred: tuple[str, ...] = ()
    population: str = "default"
    preparation: Preparation | None = None
    weights: NDArray[np.float32] | None = None
    weight_bounds: tuple[float, float] | None = None
    edge_type: str = "links"
    more_edge_types: tuple[Graph, ...] = ()
    split_options: tuple[int, float, float] | None = None

    @classmethod
    def from_arcs(
        cls,
        sources: ArrayLike,
        targets: ArrayLike,
        *,
        num_nodes: int,
        features: Any,
        labels: ArrayLike | None = None,
        train_mask: ArrayLike | None = None,
        val_mask: ArrayLike | None = None,
        test_mask: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        directed: bool | None = False,
        dangling: Mapping[Any, ArrayLike] | None = None,
        label_names: tuple[str, ...] | None = None,
        feature_names: tuple[str, ...] | None = None,
        name: str = "graph",
        self_loops: SelfLoops = "drop",
        not_finite: NotFinite = "refuse",
        schema: Schema | None = None,
        inferred: Iterable[str] | None = None,
        population: str = "default",
        preparation: Preparation | None = None,
        weights: ArrayLike | None = None,
        weight_bounds: tuple[float, float] = (0.0, 1.0),
    ) -> Graph:
        """Build a graph from two arrays of node positions, one entry per arc.

        Duplicate arcs are dropped, and self-loops too unless they are to be kept. With
        ``directed=False`` every arc is also stored in the other direction, so each undirected edge
        may be given once or twice.

        Args:
            sources: position (0 to ``num_nodes - 1``) of each arc's source.
            targets: position of each arc's target.
            num_nodes: number of nodes, those without arcs included.
            features: array-like or SciPy sparse matrix with one row per node.
            labels: class per node, ``-1`` for unknown; all unknown if left out.
            train_mask: boolean per node; nobody if left out.
            val_mask: likewise.
            test_mask: likewise.
            ids: the user's names of nodes; ``0 .. num_nodes - 1`` if left out.
            directed: whether arcs have a direction; None checks whether every arc has its reverse.
            dangling: for a node's position, the ids of its neighbours that have no record.
            label_names: name of each class.
            feature_names: name of each feature column.
            name: for people.
            self_loops: ``"drop"`` or ``"keep"`` arcs from a node to itself.
            not_finite: what to do with a row of features that holds NaN or infinity: refuse, or
                make the row zero, so that one record cannot stop a run at node level.
            schema: the declaration of the table the features come from.
            inferred: which facts the caller read from the data itself. None: the direction if
                ``directed`` is None, the classes if labels come without ``label_names``.
            population: namespace of the ids in the ledger; give unrelated graphs their own.
            preparation: the options by which the graph's tables were read.
            weights: the amount of each arc. Amounts of one arc are added up and clamped to the
                bounds, one that is NaN counts as the lower bound, and the weight is its share of
                the upper bound. In an undirected graph the larger of both directions counts.
            weight_bounds: declared bounds of the amounts, 0 <= low < high.

        >>> import numpy as np
        >>> graph = Graph.from_arcs([0, 1, 1], [1, 2, 1], num_nodes=3, features=np.eye(3))
        >>> graph.num_arcs, graph.out_neighbours(1).tolist()
        (4, [0, 2])
        """
        if num_nodes < 1:
            raise DataError(f"A graph must have at least one node. Got {num_nodes}.")
        keep_loops = check_choice("self_loops", self_loops, ["drop", "keep"]) == "keep"
        how = {"symmetric": directed is False, "keep_loops": keep_loops}
        weighed: dict[str, Any] = {}
        if weights is None:
            indptr, indices = csr.build(sources, targets, num_nodes, **how)
        else:
            bounds = WeightBounds(*weight_bounds)
            units = bounds.units(weights)
            indptr, indices, steps = csr.build_weighted(
                sources, targets, units, num_nodes, finish=bounds.steps, **how
            )
            weighed = {"weights": steps / STEPS, "weight_bounds": (bounds.low, bounds.high)}
        if inferred is None:
            has_unnamed_classes = labels is not None and label_names is None
            learned = {"direction": directed is None, "classes": has_unnamed_classes}
            inferred = [fact for fact in learned if learned[fact]]
        if directed is None:
            directed = not csr.is_symmetric(indptr, indices, weighed.get("weights"))
        dangling_indptr, dangling_targets = as_dangling(dangling, num_nodes)
        return cls._checked(
            indptr=indptr,
            indices=indices,
            features=features,
            not_finite=not_finite,
            labels=np.full(num_nodes, -1) if labels is None else labels,
            train_mask=np.zeros(num_nodes, bool) if train_mask is None else train_mask,
            val_mask=np.zeros(num_nodes, bool) if val_mask is None else val_mask,
            test_mask=np.zeros(num_nodes, bool) if test_mask is None else test_mask,
            ids=np.arange(num_nodes) if ids is None else ids,
            is_directed=bool(directed),
            dangling_indptr=dangling_indptr,
            dangling_targets=dangling_targets,
            label_names=label_names,
            feature_names=feature_names,
            name=name,
            schema=schema,
            inferred=inferred,
            population=population,
            preparation=preparation,
            **weighed,
        )

    @classmethod
    def _checked(cls, **parts: Any) -> Graph:
        """Bring every part into canonical form, then validate the whole (not the adjacency)."""
        not_finite = parts.pop("not_finite", "refuse")
        parts["features"] = as_features(parts["features"], not_finite=not_finite)
        parts["labels"] = as_labels(parts["labels"])
        for mask in MASKS:
            parts[mask] = as_mask(mask, parts[mask])
        parts["ids"] = as_names("ids", parts["ids"])
        for key in ("label_names", "feature_names"):
            if parts.get(key) is not None:
                parts[key] = tuple(str(name) for name in parts[key])
        parts["inferred"] = as_inferred(parts.get("inferred", ()))
        if parts.get("dangling_targets") is not None and not len(parts["dangling_targets"]):
            parts["dangling_indptr"] = parts["dangling_targets"] = None
        if parts.get("weights") is not None:
            parts["weights"] = as_weights(parts["weights"])
            if len(parts["weights"]) != len(parts["indices"]):
                raise DataError(
                    f"`weights` must have one entry per arc ({len(parts['indices'])}). "
                    f"Got {len(parts['weights'])}."
                )
        for key in ("indptr", "indices", "dangling_indptr", "dangling_targets", "weights"):
            if parts.get(key) is not None:
                parts[key] = frozen(np.ascontiguousarray(parts[key]))
        if parts.get("more_edge_types"):
            parts["more_edge_types"] = tuple(
                one._changed(ids=parts["ids"]) for one in parts["more_edge_types"]
            )
        graph = cls(**parts)
        graph._validate()
        graph._validate_edge_types()
        return graph

    def _validate(self) -> None:
        rows = {
            "features": self.features.shape[:1],
            "labels": self.labels.shape,
            "ids": self.ids.shape,
        }
        for key, shape in rows.items():
            self._check_rows(key, shape)
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if lowest < -1:
            raise DataError(f"`labels` must be at least -1. Got {lowest}.")
        if self.label_names is not None and highest >= len(self.label_names):
            raise DataError(
                f"`label_names` must name every class. Got {len(self.label_names)} names for class "
                f"{highest}."
            )
        if self.feature_names is not None and len(self.feature_names) != self.num_features:
            raise DataError(
                f"`feature_names` must name every feature column ({self.num_features}). "
                f"Got {len(self.feature_names)} names."
            )
        if not increases(self.ids):
            repeated = self.num_nodes - len(np.unique(self.ids))
            if repeated:
                raise DataError(f"`ids` must be unique. Got {repeated} repeated.")
        self._validate_masks()
        self._validate_dangling()

    def _check_rows(self, key: str, shape: tuple[int, ...]) -> None:
        n = self.num_nodes
        if shape != (n,):
            raise DataError(f"`{key}` must have one entry per node ({n}). Got shape {shape}.")

    def _validate_masks(self) -> None:
        masks = {"train": self.train_mask, "val": self.val_mask, "test": self.test_mask}
        for key, mask in masks.items():
            self._check_rows(f"{key}_mask", mask.shape)
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            shared = int((masks[first] & masks[second]).sum())
            if shared:
                raise DataError(
                    f"`{first}_mask` and `{second}_mask` must not overlap. "
                    f"Got {shared} shared nodes."
                )
        for key, mask in masks.items():
            unknown = int((self.labels[mask] < 0).sum())
            if unknown:
                raise DataError(f"`{key}_mask` must select labelled nodes. Got {unknown} without.")

    def _validate_edge_types(self) -> None:
        names = [graph.edge_type for graph in self.edge_types]
        if len(set(names)) < len(names):
            raise DataError(f"Edge types must have different names. Got {', '.join(names)}.")
        for other in self.more_edge_types:
            if other.num_nodes != self.num_nodes:
                raise DataError(
                    f"Edge types must be over the same {self.num_nodes} nodes. Got "
                    f"{other.num_nodes} for {other.edge_type!r}."
                )
            if other.is_directed != self.is_directed:
                raise DataError(
                    "Edge types must all have a direction or none. Got both: "
                    f"{self.edge_type!r} and {other.edge_type!r}."
                )

    def _validate_dangling(self) -> None:
        starts, names = self.dangling_indptr, self.dangling_targets
        if starts is None or names is None:
            if starts is not names:
                raise DataError("`dangling` must have both its arrays or none. Got one.")
            return
        if len(starts) != self.num_nodes + 1 or starts[-1] != len(names):
            raise DataError(
                f"`dangling` must have one list per node ({self.num_nodes}). Got others."
            )
        if names.dtype.kind != self.ids.dtype.kind:
            raise DataError(
                f"`dangling` must name nodes as `ids` does. Got {names.dtype} and {self.ids.dtype}."
            )
        if not csr.rows_increase(starts, names):
            raise DataError(
                "`dangling` must be sorted and unique in each adjacency list. Got another order."
            )
        known = names[np.isin(names, self.ids)]
        if len(known):
            raise DataError(
                f"`dangling` must name nodes that have no record. Got {len(known)} that have one, "
                f"such as {known[0].item()!r}."
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def edge_types(self) -> tuple[Graph, ...]:
        """The edge types in the order of their names, this graph being the first of them."""
        return (self, *self.more_edge_types)

    @property
    def edge_type_names(self) -> tuple[str, ...]:
        """The names of the edge types; none where there is only one."""
        return tuple(graph.edge_type for graph in self.edge_types) if self.more_edge_types else ()

    @property
    def is_weighted(self) -> bool:
        """Whether arcs have weights."""
        return self.weights is not None

    @property
    def num_arcs(self) -> int:
        """Number of stored arcs; an undirected edge counts twice. Dangling entries do not count."""
        return len(self.indices)

    @cached_property
    def num_self_loops(self) -> int:
        """Number of arcs from a node to itself; 0 unless they were kept on purpose."""
        return csr.count_loops(self.indptr, self.indices)

    @property
    def num_edges(self) -> int:
        """Number of protected entities at edge level: arcs, or unordered pairs if undirected."""
        return self.num_arcs if self.is_directed else (self.num_arcs + self.num_self_loops) // 2

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return int(self.features.shape[1])

    @property
    def num_classes(self) -> int:
        """Number of classes: named ones, or one more than the largest label."""
        if self.label_names is not None:
            return len(self.label_names)
        return int(self.labels.max()) + 1

    @property
    def num_dangling(self) -> int:
        """Number of dangling entries of all adjacency lists."""
        return 0 if self.dangling_targets is None else len(self.dangling_targets)

    @cached_property
    def out_degrees(self) -> NDArray[np.int64]:
        """Out-degree of each node; dangling entries count."""
        degrees = np.diff(self.indptr)
        if self.dangling_indptr is not None:
            degrees = degrees + np.diff(self.dangling_indptr)
        return frozen(degrees)

    def dangling_lists(self) -> dict[int, NDArray[Any]]:
        """Return the dangling entries of each node that has some, as ``from_arcs`` takes them."""
        if self.dangling_indptr is None or self.dangling_targets is None:
            return {}
        nodes = np.flatnonzero(np.diff(self.dangling_indptr)).tolist()
        lists = np.split(self.dangling_targets, self.dangling_indptr[1:-1])
        return {node: lists[node] for node in nodes}

    def out_neighbours(self, node: int) -> NDArray[Any]:
        """Return the positions of one node's out-neighbours."""
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def adjacency(self) -> sp.csr_array:
        """Return the adjacency as SciPy CSR (row = source) with unit float32 values."""
        return csr.matrix(self.indptr, self.indices, dtype=np.float32)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical content, which identifies a data set.

        It reads nodes in the order of their ids, so the order of the rows of a table does not
        matter, and it ignores the split and the name. Dense and sparse features with equal values
        have the same fingerprint.
        """
        return fingerprint(self)

    def _parts(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.__dataclass_fields__}

    def _changed(self: AnyGraph, **changes: Any) -> AnyGraph:
        """Copy with some parts exchanged, unchecked; cached values are kept."""
        graph = copy.copy(self)
        graph.__dict__.update(changes)
        return graph

    def _replace(self, **changes: Any) -> Graph:
        """Copy with some parts exchanged; everything that depends on them is checked again."""
        parts = {**self._parts(), **changes}
        if "is_directed" in changes:
            direction = {"is_directed": changes["is_directed"]}
            parts["more_edge_types"] = tuple(
                one._replace(**direction) for one in parts["more_edge_types"]
            )
        if changes.keys() & {"indptr", "indices", "is_directed", "weights"}:
            csr.check(np.asarray(parts["indptr"]), np.asarray(parts["indices"]))
            arcs = parts["indptr"], parts["indices"], parts["weights"]
            graph = Graph._checked(**parts)
            if not graph.is_directed and not csr.is_symmetric(*arcs):
                raise DataError(
                    "`is_directed` must be True unless every arc has its reverse"
                    f"{'' if arcs[2] is None else ' of the same weight'}. Got False."
                )
            return graph
        return Graph._checked(**parts)

    @property
    def wording(self) -> Wording:
        """What nodes and edges are called in statements about privacy."""
        given, schema = self.preparation, self.schema
        known = None if schema is None else Wording.of(schema.entity, schema.link)
        return Wording.of(*(() if given is None else (given.entity, given.link)), known=known)

    def with_words(
        self: AnyGraph, *, entity: str | None = None, link: str | None = None
    ) -> AnyGraph:
        """Return a copy whose privacy cards use these names; the fingerprint stays the same.

        Args:
            entity: what a node is called, as ``SINGULAR`` or ``SINGULAR/PLURAL``.
            link: what a row of the edge table is called; all rows of a pair are one edge.

        >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2))
        >>> graph.with_words(entity="company/companies", link="payment").wording.entities
        'companies'
        """
        from gapgnn.graph.tables import Preparation

        Wording.of(entity, link)
        given = self.preparation or Preparation()
        given = replace(given, entity=entity or given.entity, link=link or given.link)
        return self._changed(preparation=given)

    def with_masks(
        self: AnyGraph, train: NDArray[np.bool_], val: NDArray[np.bool_], test: NDArray[np.bool_]
    ) -> AnyGraph:
        """Return a copy with another split; the content and the fingerprint stay the same."""
        masks = {
            key: as_mask(key, mask) for key, mask in zip(MASKS, (train, val, test), strict=True)
        }
        graph = self._changed(**masks, split_options=None)
        graph._validate_masks()
        return graph

    @property
    def has_split(self) -> bool:
        """Whether any node has a role: to train, to validate or to test."""
        return any(bool(getattr(self, mask).any()) for mask in MASKS)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        # scikit-learn calls this on an input that it is about to split into rows.
        raise InputError(f"a graph must stay whole and is no array. {KEPT_WHOLE}")

    def __repr__(self) -> str:
        direction = "directed" if self.is_directed else "undirected"
        arcs = f"arcs={self.num_arcs:,}"
        if self.more_edge_types:
            arcs = ", ".join(f"{graph.edge_type}={graph.num_arcs:,}" for graph in self.edge_types)
        return (
            f"Graph({self.name!r}, {direction}, nodes={self.num_nodes:,}, {arcs}, "
            f"features={self.num_features:,}, classes={self.num_classes})"
        )
