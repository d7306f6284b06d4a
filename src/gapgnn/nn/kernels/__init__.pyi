from .registry import kernels_off as kernels_off
from .registry import lookup as lookup
from .registry import register as register
from .registry import registered as registered
