"""Steps and epochs recorded once as a CUDA graph and taken again and again.

A DP-SGD step is some ninety small kernels; launched one by one from Python they take several times
as long as they run. Recording needs fixed shapes, so batches are padded to one width. No batch is
cut to it: the rare one that is wider is taken without the graph, and sampling stays exactly Poisson
(privacy page, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gapgnn.privacy.dpsgd import PrivateStep

# Taken one kernel at a time first: they load libraries and compile what needs compiling.
WARM_STEPS = 3


class RecordedEpochs:
    """Repeats one piece of work that reads and writes the same tensors every time.

    Args:
        work: one epoch; returns its loss and, where there is one, the validation accuracy. What it
            returns keeps its place: the next call writes there.
    """

    def __init__(self, work: Callable[[], tuple[Tensor, Tensor | None]]) -> None:
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: tuple[Tensor, Tensor | None]
        self._taken = 0

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        """Do the work once more."""
        self._taken += 1
        if self._taken <= WARM_STEPS:
            return self._work()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = self._work()
        self._graph.replay()
        return self._result


class RecordedSteps:
    """Takes steps by a graph as soon as one is recorded.

    Args:
        take: takes one step for positions ``(R, B)`` and which of them are real.
        step: what ``take`` calls; it provides each step's noise.
        replicas: R.
        expected_batch: mean size of a batch.
        device: a CUDA device.
    """

    def __init__(
        self,
        take: Callable[[Tensor, Tensor], None],
        step: PrivateStep,
        *,
        replicas: int,
        expected_batch: float,
        device: torch.device,
    ) -> None:
        self._take = take
        self._step = step
        width = math.ceil((expected_batch + 6 * math.sqrt(expected_batch) + 16) / 64) * 64
        self._positions = torch.zeros(replicas, width, dtype=torch.int64, device=device)
        self._valid = torch.zeros(replicas, width, dtype=torch.bool, device=device)
        self._replay: Callable[[], None] | None = None
        self._taken = 0

    def __call__(self, positions: Tensor, valid: Tensor) -> None:
        """Take one step."""
        width = positions.shape[1]
        self._taken += 1
        if self._taken <= WARM_STEPS or width > self._positions.shape[1]:
            self._take(positions, valid)
            return
        if self._replay is None:
            self._replay = self._step.record(lambda: self._take(self._positions, self._valid))
        self._positions[:, :width] = positions
        self._valid[:, :width] = valid
        self._valid[:, width:] = False
        self._replay()
