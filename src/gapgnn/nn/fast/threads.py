"""Results that do not depend on the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread what would be rounded differently on several.

    MKL cuts products of few rows by the number of threads, torch's softmax and powers treat the end
    of each thread's share differently, and its batch norm adds up the shares. Training makes much
    of a last bit. Everything else in an epoch gives the same bits on any number of threads.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
