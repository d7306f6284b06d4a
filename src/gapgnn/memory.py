"""Memory that is freed and asked for again, over and over, while numbers are computed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Where glibc's own adjustment of the two ends: a process may have come here by itself.
LARGEST_MMAP_THRESHOLD, LARGEST_TRIM_THRESHOLD = 32 << 20, 64 << 20
KEPT = 1 << 30


@contextmanager
def pages_kept() -> Iterator[None]:
    """Keep freed memory, up to a gigabyte, while the block runs; without glibc do nothing.

    glibc gives memory at the end of the heap back to the system as soon as there is much of it. A
    full-batch epoch of ten replicas frees some fifty megabytes, and the next one asks for them
    again, page by page: a fifth of the time on a CPU, or none of it, as the heap happens to lie.

    >>> with pages_kept():
    ...     sum([1, 2])
    3
    """
    set_option = _mallopt()
    if set_option is None:
        yield
        return
    set_option(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    set_option(M_TRIM_THRESHOLD, KEPT)
    try:
        yield
    finally:
        set_option(M_TRIM_THRESHOLD, LARGEST_TRIM_THRESHOLD)


def _mallopt() -> Callable[[int, int], int] | None:
    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return None
    return found
