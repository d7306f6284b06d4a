"""Networks of users' own in the place of GAP's encoder and classifier.

A factory is given sizes and returns a torch module for rows of nodes. Encoder: ``(nodes,
num_features)`` to ``(nodes, hidden)``; what it returns is scaled to norm 1 before it is sent, so
the sensitivity of a hop does not depend on it. Classifier: a list of hops 0 to K, ``(nodes,
width)`` each, to ``(nodes, num_classes)``. At edge level both are trained on public features and
labels and on released rows. At node level they are trained by DP-SGD, and every row is computed
by itself (:mod:`gapgnn.nn.own`; privacy page, section 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from gapgnn.errors import InputError
from gapgnn.methods.configs import own_pieces
from gapgnn.methods.unused import Unused
from gapgnn.nn import OwnClassifier, OwnEncoder, OwnNetwork

if TYPE_CHECKING:
    from gapgnn.methods.estimator import Shape
    from gapgnn.methods.gap import GAP

# The parameters that each factory takes the place of.
REPLACED = {"encoder": ("encoder_layers",), "classifier": ("base_layers", "head_layers", "combine")}


def check_pieces(model: Any) -> None:
    """Refuse own pieces that cannot be called, or that are a network and not its factory.

    >>> from gapgnn import GAP
    >>> check_pieces(GAP(encoder=nn.Linear(2, 2)))
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `encoder` must be a function that builds a network. Got a Linear: ...
    """
    for name in own_pieces(type(model)):
        value = getattr(model, name)
        if isinstance(value, nn.Module):
            raise InputError(
                f"`{name}` must be a function that builds a network. Got a {type(value).__name__}: "
                "every fit and every repeat needs a new one."
            )
        if value is not None and not callable(value):
            raise InputError(f"`{name}` must be a function. Got {value!r}.")


def describe_piece(value: Any) -> str | None:
    """Return how a folder names a function that it cannot hold; None where there is none.

    >>> describe_piece(describe_piece), describe_piece(None)
    ('gapgnn.methods.own_networks.describe_piece', None)
    """
    if value is None:
        return None
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def replaced(model: GAP) -> Iterator[Unused]:
    """Yield the parameters that do nothing where a network is the user's own."""
    for name, others in REPLACED.items():
        if getattr(model, name) is not None:
            yield Unused(others, f"with `{name}`, which builds the network")
    has_encoder = model.encoder is not None or not model.encoder_layers
    if has_encoder and model.classifier is not None:
        yield Unused(
            ("activation", "dropout", "batch_norm"), "where no network is the library's own"
        )


def own_encoder(model: GAP, shape: Shape) -> OwnEncoder:
    """Return the user's encoder with a head that trains it."""
    build = model.encoder
    assert build is not None
    body = OwnNetwork(
        shape.replicas,
        lambda: build(shape.features, model.hidden),
        name="encoder",
        widths=shape.features,
        out=model.hidden,
        one_by_one=model.level == "node",
    )
    return OwnEncoder(body, model.hidden, shape.classes)


def own_classifier(model: GAP, shape: Shape, widths: Sequence[int]) -> OwnClassifier:
    """Return the user's classifier of hops of some widths."""
    build = model.classifier
    assert build is not None
    return OwnClassifier(
        OwnNetwork(
            shape.replicas,
            lambda: build(list(widths), shape.classes),
            name="classifier",
            widths=list(widths),
            out=shape.classes,
            one_by_one=model.level == "node",
        )
    )
