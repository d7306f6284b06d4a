"""Class filter, splits, induced graphs, feature columns: each returns a new graph.

The privacy cost of a transform depends on what it reads (privacy page, section 2): the class filter
and the splits read labels only, which is free at edge level and part of the declared, public
protocol at node level. The seed of a split is experiment randomness, not noise. The checks at the
end of this module are the requirements for training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from gapgnn.errors import DataError, InputError, PrivacyError, check_choice, check_number
from gapgnn.graph import csr
from gapgnn.graph.canonical import frozen
from gapgnn.graph.graph import MASKS, Graph
from gapgnn.graph.people import roles


def filter_classes(graph: Graph, min_count: int) -> Graph:
    """Drop unlabelled nodes and classes with fewer than ``min_count`` nodes.

    The remaining classes are numbered from 0 in their old order and keep their names; arcs between
    remaining nodes stay, and nodes left without arcs stay too.

    >>> import numpy as np
    >>> graph = Graph.from_arcs(
    ...     [0, 1, 2], [1, 2, 3], num_nodes=5, features=np.eye(5), labels=[2, 0, 2, 1, -1]
    ... )
    >>> filter_classes(graph, 1).labels.tolist()
    [2, 0, 2, 1]
    >>> filter_classes(graph, 2)
    Traceback (most recent call last):
    ...
    gapgnn.errors.DataError: `min_count` must leave two classes; the largest have 2 and 1. Got 2.
    """
    if isinstance(min_count, bool) or not isinstance(min_count, int | np.integer) or min_count < 0:
        raise DataError(f"`min_count` must be a whole number of at least 0. Got {min_count!r}.")
    known = graph.labels >= 0
    counts = np.bincount(graph.labels[known], minlength=graph.num_classes)
    large = counts >= max(1, min_count)
    if large.sum() < 2:
        first, second = np.sort(np.append(counts, [0, 0]))[::-1][:2]
        raise DataError(
            f"`min_count` must leave two classes; the largest have {first} and {second}. "
            f"Got {min_count}."
        )
    number = np.where(large, np.cumsum(large) - 1, -1)
    # The last entry answers for label -1.
    labels = np.append(number, -1)[graph.labels]
    names = graph.label_names
    kept = None if names is None else tuple(n for n, big in zip(names, large, strict=True) if big)
    filtered = induced(graph, labels >= 0)
    # Which classes are large enough was read from the data.
    facts = (*graph.inferred, "classes")
    return filtered._replace(labels=labels[labels >= 0], label_names=kept, inferred=facts)


def one_class_against_all(graph: Graph, positive: str) -> Graph:
    """Return the graph with two labels: a class, numbered 1, and ``other``, numbered 0.

    It makes a task with a rare class of a graph with many classes. Unlabelled nodes stay so;
    features, edges and masks are kept. The class is named, so nothing is read but each node's own
    label: free at edge level, and at node level part of the declared protocol, as one person's
    label changes that person's new label alone (privacy page, section 2). A class that is picked
    because it is the smallest was counted, which at node level is not covered.

    Args:
        graph: any graph with labels.
        positive: name of the class; its number as text where classes have no names.

    >>> import numpy as np
    >>> graph = Graph.from_arcs(
    ...     [0], [1], num_nodes=4, features=np.eye(4), labels=[0, 2, 1, -1],
    ...     label_names=("law", "medicine", "physics"),
    ... )
    >>> one = one_class_against_all(graph, "physics")
    >>> one.labels.tolist(), one.label_names
    ([0, 1, 0, -1], ('other', 'physics'))
    """
    names = list(graph.label_names or map(str, range(graph.num_classes)))
    number = names.index(check_choice("positive", str(positive), names))
    if len(names) < 2 or names[number] == "other":
        raise DataError(
            f"`positive` must be one of several classes and not called 'other'. Got {positive!r}."
        )
    labels = np.where(graph.labels < 0, -1, graph.labels == number)
    # A schema's label declares the former classes.
    schema = None if graph.schema is None else replace(graph.schema, label=None)
    return graph._replace(labels=labels, label_names=("other", names[number]), schema=schema)


def random_split(graph: Graph, *, seed: int, train: float = 0.75, val: float = 0.10) -> Graph:
    """Split the labelled nodes at random into training, validation and test nodes.

    A node's role is a public hash of (seed, id), so it does not depend on which other nodes are in
    the graph; node-level privacy requires this (privacy page, section 2). The shares hold in
    expectation.

    Args:
        graph: any graph; its own split is replaced.
        seed: of the experiment; equal seeds give equal splits.
        train: fraction of the labelled nodes to train on.
        val: fraction to validate on; the rest is for testing.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([], [], num_nodes=20, features=np.eye(20), labels=[0, 1] * 10)
    >>> split = random_split(graph, seed=0)
    >>> masks = (split.train_mask, split.val_mask, split.test_mask)
    >>> sum(int(mask.sum()) for mask in masks)
    20
    """
    train = check_number("train", train, above=0, at_most=1)
    val = check_number("val", val, at_least=0, at_most=1)
    if train + val > 1 + 1e-9:
        raise InputError(f"`train` and `val` must sum to at most 1. Got {train} and {val}.")
    labelled = graph.labels >= 0
    found = roles(graph.ids, seed=seed, train=train, val=val)
    masks = [(found == role) & labelled for role in range(3)]
    if not masks[0].any():
        raise DataError(
            f"`train` must select a node; {labelled.sum()} nodes have a label. Got {train}."
        )
    return graph.with_masks(*masks)._changed(split_options=(seed, train, val))


def induced(graph: Graph, keep: ArrayLike, *, dangle: bool = False) -> Graph:
    """Return the graph of some nodes and the arcs between them, with ids and masks as they were.

    Args:
        graph: any graph.
        keep: one boolean per node, or distinct positions; the order of nodes does not change.
        dangle: whether an arc to a dropped node becomes a dangling entry, as when a record is
            withdrawn at node level (privacy page, section 1); by default it is removed.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0, 1], [1, 2], num_nodes=3, features=np.eye(3), ids=[7, 8, 9])
    >>> part = induced(graph, [1, 2])
    >>> part.ids.tolist(), part.num_arcs
    ([8, 9], 2)
    >>> induced(graph, [1, 2], dangle=True).dangling_targets.tolist()
    [7]
    """
    mask = _as_selection(keep, graph.num_nodes)
    indptr, indices = csr.select(graph.indptr, graph.indices, mask)
    starts, names = _dangling_of(graph, mask, dangle)
    rows = {key: getattr(graph, key)[mask] for key in ("features", "labels", "ids", *MASKS)}
    arcs: dict[str, Any] = {"indptr": indptr, "indices": indices}
    if graph.weights is not None:
        arcs["weights"] = graph.weights[csr.between(graph.indptr, graph.indices, mask)]
    dangling = {"dangling_indptr": starts, "dangling_targets": names}
    more = {
        "more_edge_types": tuple(induced(one, mask, dangle=dangle) for one in graph.more_edge_types)
    }
    # The induced arcs are symmetric if all arcs are, so the direction is not checked again.
    return Graph._checked(**{**graph._parts(), **rows, **arcs, **dangling, **more})


def with_absent(graph: Graph) -> Graph:
    """Return the graph with a node for every dangling entry.

    A person who withdrew has no features, no label, no role and no out-neighbours, but is still an
    out-neighbour of others, and therefore has a row that others contribute to. A person who reads
    the released rows of the own neighbours then reads the same rows whether or not one of these
    neighbours has a record (privacy page, section 1). New nodes come last, in the order of their
    ids.

    >>> import numpy as np
    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), dangling={1: [7]})
    >>> everybody = with_absent(graph)
    >>> everybody.ids.tolist(), everybody.out_degrees.tolist()
    ([0, 1, 7], [1, 2, 0])
    """
    targets: list[NDArray[Any]] = [
        one.dangling_targets for one in graph.edge_types if one.dangling_targets is not None
    ]
    if not targets:
        return graph
    if any(one.is_weighted for one in graph.edge_types):
        raise InputError("`graph` must have no weights: those of dangling entries are not kept.")
    names: NDArray[Any] = np.unique(np.concatenate(targets))
    added = len(names)
    nobody = {mask: np.append(getattr(graph, mask), np.zeros(added, bool)) for mask in MASKS}
    features = graph.features
    empty = np.zeros((added, graph.num_features), dtype=np.float32)
    rows: dict[str, Any] = {
        "features": sp.vstack([features, sp.csr_array(empty)], format="csr")
        if sp.issparse(features)
        else np.concatenate([features, empty]),
        "labels": np.append(graph.labels, np.full(added, -1)),
        "ids": np.append(graph.ids, names),
        **nobody,
    }
    more = {
        "more_edge_types": tuple(
            _with_absent_nodes(one, names, rows) for one in graph.more_edge_types
        )
    }
    return Graph._checked(**{**graph._parts(), **rows, **_absent_arcs(graph, names), **more})


def _with_absent_nodes(graph: Graph, names: NDArray[Any], rows: Mapping[str, Any]) -> Graph:
    """Return a further edge type over the nodes of :func:`with_absent`."""
    count = graph.num_nodes + len(names)
    nobody = {mask: np.zeros(count, dtype=np.bool_) for mask in MASKS}
    own = {"features": np.zeros((count, 0), dtype=np.float32), "labels": np.full(count, -1)}
    arcs = _absent_arcs(graph, names)
    return Graph._checked(**{**graph._parts(), **own, **nobody, "ids": rows["ids"], **arcs})


def _absent_arcs(graph: Graph, names: NDArray[Any]) -> dict[str, Any]:
    """Return the adjacency lists with dangling entries as arcs to the rows of those names."""
    arcs: dict[str, Any] = {"dangling_indptr": None, "dangling_targets": None, "is_directed": True}
    lists = csr.sources(graph.indptr, np.int64), graph.indices.astype(np.int64)
    if graph.dangling_indptr is not None and graph.dangling_targets is not None:
        owners = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dangling_indptr))
        places = graph.num_nodes + np.searchsorted(names, graph.dangling_targets)
        lists = np.append(lists[0], owners), np.append(lists[1], places)
    order = np.lexsort((lists[1], lists[0]))
    counts = np.bincount(lists[0], minlength=graph.num_nodes + len(names))
    arcs["indptr"] = np.concatenate([[0], np.cumsum(counts)])
    arcs["indices"] = lists[1][order].astype(graph.indices.dtype)
    return arcs


def join_edge_types(graphs: Mapping[str, Graph]) -> Graph:
    """Return one graph with several edge types over the same nodes.

    Features, labels and the split are those of the first graph; the others give their arcs, weights
    and dangling entries. Edge types are kept in the order of their names, so the order of
    ``graphs`` has no effect.

    >>> import numpy as np
    >>> calls, visits = (
    ...     Graph.from_arcs([0], [to], num_nodes=3, features=np.eye(3)) for to in (1, 2)
    ... )
    >>> join_edge_types({"visits": visits, "calls": calls})
    Graph('graph', undirected, nodes=3, calls=2, visits=2, features=3, classes=0)
    """
    if not graphs:
        raise DataError("`graphs` must have at least one edge type. Got none.")
    nodes = next(iter(graphs.values()))
    for name, graph in graphs.items():
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"`graphs` must be named by text. Got {name!r}.")
        if graph.more_edge_types:
            raise DataError(f"`graphs` must have one edge type each. Got several in {name!r}.")
        if not np.array_equal(graph.ids, nodes.ids):
            raise DataError(
                f"`graphs` must have the same nodes in the same order. Got others in {name!r}."
            )
    first, *rest = sorted(graphs)
    if len(graphs) == 1:
        return nodes
    arcs = ("indptr", "indices", "weights", "weight_bounds", "dangling_indptr", "dangling_targets")
    own = {key: getattr(graphs[first], key) for key in arcs}
    more = tuple(arcs_only(graphs[name], name) for name in rest)
    return Graph._checked(**{**nodes._parts(), **own, "edge_type": first, "more_edge_types": more})


def arcs_only(graph: Graph, edge_type: str) -> Graph:
    """Return the edges of a graph as a further edge type, without features, labels or split."""
    count = graph.num_nodes
    nobody = {mask: frozen(np.zeros(count, dtype=np.bool_)) for mask in MASKS}
    names = dict.fromkeys(("label_names", "feature_names", "schema", "preparation"))
    found = graph._changed(
        features=frozen(np.zeros((count, 0), dtype=np.float32)),
        labels=frozen(np.full(count, -1)),
        inferred=(),
        edge_type=edge_type,
        **nobody,
        **names,
    )
    found.__dict__.pop("fingerprint", None)
    return found


def _as_selection(keep: ArrayLike, num_nodes: int) -> NDArray[np.bool_]:
    """Return a boolean per node from booleans or positions."""
    chosen = np.asarray(keep)
    if chosen.dtype == np.bool_:
        if chosen.shape != (num_nodes,):
            raise DataError(
                f"`keep` must have one entry per node ({num_nodes}). Got shape {chosen.shape}."
            )
        mask = chosen
    else:
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise DataError(f"`keep` must be booleans or node positions. Got {chosen.dtype}.")
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < num_nodes:
            bad = chosen.min() if chosen.min() < 0 else chosen.max()
            raise DataError(f"`keep` must be between 0 and {num_nodes - 1}. Got {bad}.")
        mask = np.zeros(num_nodes, dtype=np.bool_)
        mask[chosen.astype(np.int64)] = True
        if mask.sum() != chosen.size:
            raise DataError(
                f"`keep` must name each node once. Got {chosen.size - mask.sum()} repeated."
            )
    if not mask.any():
        raise DataError("`keep` must select at least one node. Got none.")
    return mask


def _dangling_of(
    graph: Graph, mask: NDArray[np.bool_], dangle: bool
) -> tuple[NDArray[np.int64] | None, NDArray[Any] | None]:
    """Return the dangling entries of the kept nodes; with ``dangle``, also the new ones."""
    owners, names = [], []
    if graph.dangling_indptr is not None and graph.dangling_targets is not None:
        owners.append(np.repeat(np.arange(graph.num_nodes), np.diff(graph.dangling_indptr)))
        names.append(graph.dangling_targets)
    if dangle:
        lost = ~mask[graph.indices]
        owners.append(csr.sources(graph.indptr, np.int64)[lost])
        names.append(graph.ids[graph.indices[lost]])
    if not owners:
        return None, None
    owner, name = np.concatenate(owners), np.concatenate(names)
    owner, name = owner[mask[owner]], name[mask[owner]]
    order = np.lexsort((name, owner))
    counts = np.bincount(owner, minlength=graph.num_nodes)[mask]
    return np.concatenate([[0], np.cumsum(counts)]), name[order]


def align_features(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with exactly the feature columns ``names``, matched by name.

    Columns of other names are left out, and a name the graph lacks becomes a column of 0, as for a
    one-hot category that does not occur. The result is a view of the same data set for a model with
    these columns, so it keeps the fingerprint.

    >>> import numpy as np
    >>> graph = Graph.from_arcs(
    ...     [0], [1], num_nodes=2, features=[[1, 2], [3, 4]], feature_names=("age", "size")
    ... )
    >>> align_features(graph, ("size", "city=Rome")).features.tolist()
    [[2.0, 0.0], [4.0, 0.0]]
    """
    wanted = tuple(names)
    known = graph.feature_names
    if known is None:
        raise InputError("`graph` must have feature names to be aligned by. Got none.")
    if known == wanted:
        return graph
    for what, given in (("names", wanted), ("feature_names", known)):
        if len(set(given)) < len(given):
            raise InputError(f"`{what}` must differ to be aligned by. Got a repeated one.")
    place = {name: column for column, name in enumerate(wanted)}
    pairs = [(column, place[name]) for column, name in enumerate(known) if name in place]
    if not pairs:
        raise InputError(
            f"The graph must share a feature with the {len(wanted)} the model knows, such as "
            f"{wanted[0]!r}. Got {len(known)} others, such as {known[0]!r}."
        )
    old, new = np.transpose(pairs)
    ones = np.ones(len(pairs), dtype=np.float32)
    # Each column has at most one source, so the product moves values and rounds nothing.
    moves = sp.csr_array((ones, (old, new)), shape=(len(known), len(wanted)))
    aligned = graph._replace(features=graph.features @ moves, feature_names=wanted)
    aligned.__dict__["fingerprint"] = graph.fingerprint
    return aligned


def check_declared(graph: Graph) -> None:
    """Refuse, at node level, columns and categories that were learned from the node table.

    A category that only one person has would be stored in the saved model, and the width of its
    input would reveal whether that person is there (privacy page, section 2). The width of an array
    counts as declared.
    """
    given = graph.preparation
    if given is not None and given.dangling == "drop":
        raise PrivacyError(
            "edges that name an id without a row must be kept at level node: dropped, the "
            "out-degrees of other people would depend on who has a record. "
            'Got tables read with `dangling="drop"`. Read them with `dangling="keep"`.'
        )
    if "columns" in graph.inferred:
        raise PrivacyError(
            "the columns of the node table must be declared at level node: their categories and "
            "ranges would otherwise be read from single people. Got no schema. Propose one with "
            "`gapgnn schema --nodes FILE --label COLUMN --out schema.toml`, edit it, and give it "
            "as `schema=schema.toml`."
        )


def check_trainable(graph: Graph, *, level: str = "none") -> None:
    """Raise unless the split can train and score a classifier.

    At least two classes have nodes, every class has a training node, and some node is for testing.
    At node level there must only be two classes: whether a class is empty can depend on one person,
    who must not be able to make the run fail (privacy page, sections 2 and 9).

    >>> from gapgnn.graph.graph import Graph
    >>> graph = Graph.from_arcs([0], [1], num_nodes=2, features=np.eye(2), labels=[0, 0])
    >>> check_trainable(graph)
    Traceback (most recent call last):
    ...
    gapgnn.errors.DataError: `labels` must have at least two classes. Got 1.
    """
    if level == "node":
        if graph.num_classes < 2:
            raise DataError(f"`labels` must have at least two classes. Got {graph.num_classes}.")
        return
    # One pass counts nodes by class and by whether they train; -1 is an unknown class.
    of_class_and_part = (graph.labels + 1) * 2 + graph.train_mask
    both = np.bincount(of_class_and_part, minlength=2 * graph.num_classes + 2).reshape(-1, 2)[1:]
    counts, trained = both.sum(axis=1), both[:, 1]
    present = np.count_nonzero(counts)
    if present < 2:
        raise DataError(f"`labels` must have at least two classes. Got {present}.")
    without = np.flatnonzero(trained == 0)
    if len(without):
        first = int(without[0])
        name = repr(graph.label_names[first]) if graph.label_names is not None else str(first)
        raise DataError(
            f"Each class must have a training node. Got none for class {name} "
            f"({counts[first]} nodes in all); drop rare classes with `min_class_count=N`."
        )
    if not graph.test_mask.any():
        raise DataError(
            f"The split must leave a test node. Got none out of {counts.sum()} labelled nodes; "
            "give more labelled nodes."
        )
