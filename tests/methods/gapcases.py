"""A quick GAP, and what its tests look at."""

from __future__ import annotations

import numpy as np
import pytest
from suited import suited

from gapgnn import GAP
from gapgnn.nn import MultiHopClassifier

LEVELS = ["none", "edge", "node"]
PRIVATE = ["edge", "node"]
RAW = {"encoder_layers": 0}


def quick(level: str, **more) -> GAP:
    batch = {"batch_size": 50} if level == "node" else {}
    shared = {"epochs": 2, "epsilon": 4.0, "hidden": 8, **batch}
    model: GAP = suited(GAP, shared, level=level, **more)
    return model


def small_classifier(
    replicas: int, widths: list[int], num_classes: int, **more
) -> MultiHopClassifier:
    """A classifier of one layer everywhere, eight units wide."""
    plain = {"first_layers": 1, "base_layers": 1, "head_layers": 1, "hidden": 8}
    plain |= {"combine": "concat", "has_embedding": False, "activation": "selu"}
    plain |= {"batch_norm": False, "dropout": 0.0}
    return MultiHopClassifier(replicas, widths, num_classes, **{**plain, **more})


def weights(model: GAP) -> dict[str, np.ndarray]:
    return {
        f"{name}.{key}": value.numpy()
        for name, module in model.modules_.items()
        for key, value in module.state_dict().items()
    }


def hops(model: GAP) -> list[np.ndarray]:
    return [hop.numpy() for hop in model.releases_.training().hops]


def forbid(monkeypatch: pytest.MonkeyPatch, owner: object, *names: str) -> None:
    """Make some functions fail, so that whoever calls them is found."""
    for name in names:

        def refuse(*args, _name=name, **kwargs):
            raise AssertionError(f"{_name} was called")

        monkeypatch.setattr(owner, name, refuse)
