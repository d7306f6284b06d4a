"""The model under attack: a copy with a temporary ledger.

An attack fits models that are never released. Its figures are computed from private data without
noise, so they are for the curator, not for publication. Nothing is charged to the user's ledger;
every fit has a temporary ledger.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from gapgnn.errors import InputError
from gapgnn.graph import Graph
from gapgnn.methods import Releases, check_trained_on
from gapgnn.privacy.ledger import scratch_ledger
from gapgnn.training import Callback, Silent

if TYPE_CHECKING:
    from gapgnn.methods import NodeClassifier


@contextmanager
def copied(estimator: NodeClassifier, **changes: Any) -> Iterator[NodeClassifier]:
    """Give a copy of an estimator that is to be fitted, with a throw-away ledger."""
    with scratch_ledger() as ledger:
        model: NodeClassifier = clone(estimator)
        yield model.set_params(ledger=ledger, **changes)


@contextmanager
def fitted(
    estimator: NodeClassifier, graph: Graph, *, callback: Callback | None = None, **changes: Any
) -> Iterator[NodeClassifier]:
    """Fit a copy of an estimator on a graph, with a throw-away ledger.

    Parameters that do nothing on this graph, which is often another one than the estimator was made
    for, are left out.

    >>> from gapgnn import MLP
    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> with fitted(MLP(epochs=1), social_graph(num_nodes=300, mean_degree=10)) as model:
    ...     model.method
    'mlp'
    """
    with copied(estimator, **changes) as model:
        defaults = {field.name: field.default for field in fields(model)}
        unused = model.unused_parameters(graph)
        yield model.set_params(**{name: defaults[name] for name in unused}).fit(
            graph, callback=callback or Silent()
        )


def check_itself(model: NodeClassifier, graph: Graph) -> None:
    """Refuse to attack a saved model where its answers would have to be paid for.

    Args:
        model: a fitted or loaded model, which is attacked itself and not changed.
        graph: the one it was trained on, with its split.
    """
    if getattr(model, "card_", None) is None:
        raise InputError("`estimator` must be fitted to be attacked itself. Call `fit` first.")
    check_trained_on(model, graph)


def ask(model: NodeClassifier, graph: Graph) -> NDArray[np.float32]:
    """Return a model's answer about a graph and let it forget the question.

    A model keeps what it released on every graph, so that nothing is drawn twice. Hundreds of
    slightly changed graphs would fill the memory with releases that nobody asks for again.
    """
    passing = copy.copy(model)
    known = model.releases_
    passing.releases_ = Releases(dict(known.hops), dict(known._release_of))
    return passing.predict_proba(graph)


def as_released(model: NodeClassifier, graph: Graph) -> NodeClassifier:
    """Return a model that answers about another graph from what was released on its training graph.

    What would the answers be, had the private data been otherwise and the release the same?
    """
    given = copy.copy(model)
    given.releases_ = model.releases_.given(graph)
    return given


def described(estimator: NodeClassifier, graph: Graph) -> dict[str, Any]:
    """Return which model of which data is attacked, as plain values."""
    return {
        "method": estimator.method,
        "level": estimator.level,
        "epsilon": estimator.epsilon if estimator.level != "none" else None,
        "dataset": graph.name,
    }
