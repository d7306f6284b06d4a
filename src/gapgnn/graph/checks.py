"""What a graph must have before a model can be trained on it."""

from __future__ import annotations

import numpy as np

from gapgnn.errors import DataError, PrivacyError
from gapgnn.graph.graph import Graph


def check_declared(graph: Graph) -> None:
    """Refuse, at node level, columns and categories that were learned from people's own table.

    A category that one person has would stand in the saved model, and the width of its input would
    tell whether that person is there (privacy page, section 2). Arrays have a declared width by
    nature.
    """
    if "columns" in graph.inferred:
        raise PrivacyError(
            "the columns of the node table must be declared at level node: their categories and "
            "ranges would otherwise be read from single people. Got no schema. Propose one with "
            "`gapgnn schema --nodes FILE --label COLUMN --out schema.toml`, edit it, and give it "
            "as `--schema schema.toml` (`schema=` in read_tables)."
        )


def check_trainable(graph: Graph, *, level: str = "none") -> None:
    """Raise unless the split can train and score a classifier.

    At least two classes have nodes, every class has a training node, and some node is for testing.
    At node level there need only be two classes: whether a class has anybody in it can depend on
    one person, who must not be able to stop the run (privacy page, sections 2 and 9).

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
    labelled = graph.labels[graph.labels >= 0]
    counts = np.bincount(labelled, minlength=graph.num_classes)
    present = np.count_nonzero(counts)
    if present < 2:
        raise DataError(f"`labels` must have at least two classes. Got {present}.")
    trained = np.bincount(graph.labels[graph.train_mask], minlength=graph.num_classes)
    without = np.flatnonzero(trained == 0)
    if len(without):
        first = int(without[0])
        name = repr(graph.label_names[first]) if graph.label_names is not None else str(first)
        raise DataError(
            f"Each class must have a training node. Got none for class {name} "
            f"({counts[first]} nodes in all); drop rare classes with `--min-class-count N`."
        )
    if not graph.test_mask.any():
        raise DataError(
            f"The split must leave a test node. Got none out of {len(labelled)} labelled nodes; "
            "give more labelled nodes."
        )
