"""GAP: aggregation perturbation, its variants and their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.methods.gap.codes import class_codes as class_codes
    from gapgnn.methods.gap.estimator import GAP as GAP
    from gapgnn.methods.gap.variant import SHARES as SHARES

__getattr__, __dir__, __all__ = front(__name__)
