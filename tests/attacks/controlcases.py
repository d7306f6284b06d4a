"""What an attacker without edges learns of a graph, learnt once for all tests of a process.

Every attack on links trains the same features-only model beside its own, for longer than the tests
train the model under attack. It reads everything but the edges.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import scipy.sparse as sp

from gapgnn import Graph
from gapgnn.attacks import links, reconstruction

_learnt: dict[tuple[object, ...], links.Rows] = {}


def _once(learn: Callable[[Graph, int], links.Rows], graph: Graph, seed: int) -> links.Rows:
    rows = sp.csr_array(graph.features)
    features = (rows.indptr, rows.indices, rows.data)
    parts = (*features, graph.labels, graph.ids, graph.train_mask, graph.val_mask)
    key = (seed, rows.shape, *(part.tobytes() for part in parts))
    if key not in _learnt:
        _learnt[key] = learn(graph, seed)
    return _learnt[key]


@pytest.fixture
def controls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn the control of each graph, split and seed only once."""
    learn = links.public_rows
    for module in (links, reconstruction):
        monkeypatch.setattr(module, "public_rows", lambda graph, seed: _once(learn, graph, seed))
