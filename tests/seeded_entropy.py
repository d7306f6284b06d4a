"""The same secret keys in every run of a test, in place of the operating system's entropy.

What a test says of noise is then true in every run or in none. The package is as it is, down to its
call of the system, and draws that have to differ still do. Only keys are replaced: names of charges
stay those of the system, as a ledger may outlive a test. `pytest --hypothesis-profile=explore`, for
which new examples are looked for too, draws every key anew.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

from hypothesis import settings

KEY_BYTES = 32


@contextmanager
def same_entropy(name: str) -> Iterator[None]:
    """Draw the keys of a block from a name, one after the other."""
    if settings.default is None or not settings.default.derandomize:
        yield
        return
    from gapgnn import rng

    drawn = itertools.count()

    def urandom(count: int) -> bytes:
        if count != KEY_BYTES:
            return os.urandom(count)
        return hashlib.shake_256(f"{name} {next(drawn)}".encode()).digest(count)

    with mock.patch.object(rng, "os", SimpleNamespace(urandom=urandom)):
        yield
