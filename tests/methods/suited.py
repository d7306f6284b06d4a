"""One set of options for estimators of several methods and levels."""

from __future__ import annotations

from typing import Any

from gapgnn.methods import NodeClassifier


def seeded(level: str, seed: int) -> dict[str, int]:
    """Return a seed of noise for a level that has some."""
    return {} if level == "none" else {"insecure_noise_seed": seed}


def suited(kind: type[NodeClassifier], shared: dict[str, Any], **own: Any) -> Any:
    """Return an estimator with its own options, and those of the shared ones that it uses."""
    unused = kind(**{**shared, **own}).unused_parameters()
    used = {name: value for name, value in shared.items() if name not in unused}
    return kind(**{**used, **own})
