"""Whether Triton is there, and its decorator: kernels are ordinary Python where it is not.

``TRITON_INTERPRET=1`` runs kernels on a CPU, operation by operation: slow, for tests.
"""

# mypy: ignore-errors

import os
from importlib import import_module

try:
    triton = import_module("triton")
    tl = import_module("triton.language")
except ImportError:
    triton = tl = None

IS_PRESENT = triton is not None
# The interpreter knows parameters that are fixed at compile time by this very object.
constexpr = tl.constexpr if IS_PRESENT else object
IS_INTERPRETED = IS_PRESENT and os.environ.get("TRITON_INTERPRET") == "1"


def jit(**options):
    """Compile for the device where Triton is present; leave the function alone elsewhere."""
    return triton.jit(**options) if IS_PRESENT else lambda function: function
