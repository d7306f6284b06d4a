"""Optional kernels of the layers (:mod:`gapgnn.nn.kernels.registry`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.nn.kernels.registry import kernels_off as kernels_off
    from gapgnn.nn.kernels.registry import lookup as lookup
    from gapgnn.nn.kernels.registry import register as register
    from gapgnn.nn.kernels.registry import registered as registered

__getattr__, __dir__, __all__ = front(__name__)
