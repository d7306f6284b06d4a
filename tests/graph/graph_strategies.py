"""Random graphs for property tests: every storage form, with the corner cases included."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import settings
from hypothesis import strategies as st

from gapgnn.graph.graph import Graph

# No deadline: the first example may wait for an import, or for a busy machine.
fifty = settings(max_examples=50, deadline=None)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Directed or not, isolated nodes, self-loops, any ids, dangling entries, unknown labels."""
    return Graph.from_arcs(**draw(graph_parts()))


@st.composite
def graph_parts(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    arcs = draw(st.lists(st.tuples(node, node), max_size=20))
    value = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-30, 0.1])
    columns = draw(st.integers(0, 4))
    row = st.lists(value, min_size=columns, max_size=columns)
    features: Any = np.array(draw(st.lists(row, min_size=n, max_size=n)), np.float32)
    features = features.reshape(n, columns)
    if draw(st.booleans()):
        features = sp.csr_array(features)
    labels = np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))
    sides = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    sides[labels < 0] = 3
    # NumPy strings cannot end in NUL, so such names are left out.
    text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4)
    name = draw(st.sampled_from([st.integers(-9, 10**15), text]))
    names = draw(st.lists(name, min_size=n, max_size=n + 3, unique=True))
    ids, outside = names[:n], names[n:]
    listed = st.lists(st.sampled_from(outside), max_size=3) if outside else st.just([])
    return {
        "sources": np.array([source for source, _ in arcs], dtype=np.int64),
        "targets": np.array([target for _, target in arcs], dtype=np.int64),
        "num_nodes": n,
        "features": features,
        "labels": labels,
        "train_mask": sides == 0,
        "val_mask": sides == 1,
        "test_mask": sides == 2,
        "ids": ids,
        "directed": draw(st.booleans()),
        "dangling": draw(st.dictionaries(node, listed)),
        "label_names": draw(st.sampled_from([None, ("a", "b", "c")])),
        "name": draw(st.sampled_from(["graph", "friends"])),
        "self_loops": draw(st.sampled_from(["drop", "keep"])),
    }
