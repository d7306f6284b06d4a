"""One set of options for estimators of several methods and levels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapgnn.methods import NodeClassifier


def seeded(level: str, seed: int) -> dict[str, int]:
    """Return a seed of noise for a level that has some."""
    return {} if level == "none" else {"insecure_noise_seed": seed}


def suited(method_class: type[NodeClassifier], shared: dict[str, Any], **own: Any) -> Any:
    """Return an estimator with its own options, and those of the shared ones that it uses."""
    unused = method_class(**{**shared, **own}).unused_parameters()
    used = {name: value for name, value in shared.items() if name not in unused}
    return method_class(**{**used, **own})


def decided(model: NodeClassifier, graph: Any, **options: Any) -> NDArray[np.int64]:
    """Return the predictions as numbers of classes, as graphs have their labels."""
    return model.decide(model.predict_proba(graph, **options))
