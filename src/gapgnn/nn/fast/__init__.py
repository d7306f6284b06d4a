"""The same layers in fewer passes, on a CPU and on a GPU; tested against the plain ones.

A layer asks at a door (:mod:`gapgnn.nn.fast.doors`) and computes its formula where the answer is
None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.nn.fast.cpu import Chosen as Chosen
    from gapgnn.nn.fast.cpu import Moments as Moments
    from gapgnn.nn.fast.cpu import Places as Places
    from gapgnn.nn.fast.cpu import Sample as Sample
    from gapgnn.nn.fast.cpu import can_norm as can_norm
    from gapgnn.nn.fast.cpu import input_moments as input_moments
    from gapgnn.nn.fast.doors import cross_entropy_slopes as cross_entropy_slopes
    from gapgnn.nn.fast.gpu import Masks as Masks
    from gapgnn.nn.fast.gpu import best_class as best_class

__getattr__, __dir__, __all__ = front(__name__)
