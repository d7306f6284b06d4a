"""The same layers in fewer passes, on a CPU and on a GPU; tested against the plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.nn.fast.bias import shifted as shifted
    from gapgnn.nn.fast.exponential import elu as elu
    from gapgnn.nn.fast.exponential import selu as selu
    from gapgnn.nn.fast.gpu import best_class as best_class
    from gapgnn.nn.fast.gpu import can_fuse as can_fuse
    from gapgnn.nn.fast.gpu import cross_entropy_slopes as cross_entropy_slopes
    from gapgnn.nn.fast.narrow import LONG as LONG
    from gapgnn.nn.fast.narrow import NARROW as NARROW
    from gapgnn.nn.fast.narrow import narrow_product as narrow_product
    from gapgnn.nn.fast.normed import Chosen as Chosen
    from gapgnn.nn.fast.normed import Moments as Moments
    from gapgnn.nn.fast.normed import Places as Places
    from gapgnn.nn.fast.normed import Sample as Sample
    from gapgnn.nn.fast.normed import can_norm as can_norm
    from gapgnn.nn.fast.normed import exact_moments as exact_moments
    from gapgnn.nn.fast.normed import normed_layer as normed_layer
    from gapgnn.nn.fast.threads import one_thread as one_thread

_HOMES = {
    "Chosen": "normed",
    "LONG": "narrow",
    "Moments": "normed",
    "NARROW": "narrow",
    "Places": "normed",
    "Sample": "normed",
    "best_class": "gpu",
    "can_fuse": "gpu",
    "can_norm": "normed",
    "cross_entropy_slopes": "gpu",
    "elu": "exponential",
    "exact_moments": "normed",
    "narrow_product": "narrow",
    "normed_layer": "normed",
    "one_thread": "threads",
    "selu": "exponential",
    "shifted": "bias",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = front(__name__, _HOMES)
