"""DP-SGD steps: clip every example's gradient, sum, add noise, divide by a constant, move.

One step releases the noisy clipped sum of a Poisson batch: a Poisson-subsampled Gaussian event
whose noise multiplier is the standard deviation over the clip. Relation ``add-remove``: one example
joins or leaves, the sum moves by at most the clip. Relation ``replace``: by at most twice the clip;
the accountant knows and expects the same multiplier. Everything after the noise, the optimiser
included, is post-processing. Privacy page, sections 2 to 4.

Use, for a module made of layers that report to the tape::

    flat = FlatParameters(module)
    private = PrivateStep(flat, FlatAdam(flat.values), clip=1.0, noise_multiplier=1.0,
                          expected_batch=schedule.expected_batch, sources=sources, phase="encoder")
    for batch in PoissonBatches(schedule, keys, phase="encoder"):
        with record_linears() as tape:
            losses = ...                         # (R, B), one per example
        private.step(tape, losses, batch.valid)

The loop's owner emits the event; this module never decides what to charge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapgnn.errors import InputError, PrivacyError, check_number
from gapgnn.privacy import Release, active_observer, observe
from gapgnn.privacy.dpsgd.flat import FlatParameters, Optimiser
from gapgnn.privacy.dpsgd.ghost import (
    Tape,
    check_clippable,
    check_examples_apart,
    clip_factors,
    clipped_sums,
    output_gradients,
    squared_norms,
)
from gapgnn.privacy.mechanisms import NoiseSource, SafeOrFast, grid_slack, on_grid
from gapgnn.rng import NoiseKey

# The norms are sums of float32 products: a relative error below 1e-6 for any layer width in use.
# The clip factors aim this much lower, so a norm that was rounded down cannot lift a gradient over
# the clip.
ROUNDING_MARGIN = 1e-5
# Values and steps for which a CPU draws noise at once; half the steps an audit takes by default, so
# that it would see the noise of one call come back in the next.
NOISE_AHEAD, MOST_AHEAD = 1 << 17, 24


@dataclass(frozen=True)
class PrivateTraining:
    """What turns a phase into DP-SGD (privacy page, sections 2 to 4).

    Attributes:
        noise_multiplier: standard deviation of the noise over ``sensitivity`` times the clip.
        keys: the secret of each replica.
        noise: ``safe`` or ``fast``.
        sensitivity: how far one record moves a batch's clipped sum, in clips.
    """

    noise_multiplier: float
    keys: Sequence[NoiseKey]
    noise: SafeOrFast
    sensitivity: float = 1.0


def check_size(num_parameters: int) -> float:
    """Return what rounding to the grid takes of a clip; refuse what leaves too little of it.

    >>> check_size(1_000_000) < 0.001
    True
    """
    slack = grid_slack(num_parameters)
    if slack > 0.01:
        raise InputError(
            f"`module` must have fewer parameters for noise on the safe grid. Got {num_parameters}."
        )
    return slack


class NoisyStep:
    """Releases clipped sums of gradients with noise, one step at a time, and moves the parameters.

    Numerics. With safe noise the clipped sum runs in float64 and is rounded to the noise grid, in
    units of the clip. Rounding may move each of P coordinates by a grid step, so the per-example
    clip is lowered by that slack and by :data:`ROUNDING_MARGIN`: the rounded sum of one batch and
    that of a neighbour differ by at most ``clip``. With fast noise (experiments) the sum is
    float32.

    Args:
        flat: the parameters.
        optimiser: moves ``flat.values``.
        clip: the largest L2 norm of one example's gradient.
        noise_multiplier: standard deviation of the noise over ``sensitivity * clip``.
        expected_batch: the divisor, a constant; the size of an actual batch is secret.
        sources: one per replica, each with its own key.
        phase: names this training within the run. Use it once per key: the same key and phase draw
            the same noise again, and no two phases share any.
        sensitivity: how far one record moves the sum, in clips. One where a record is one example
            (also for ``replace``, by the accountant's convention); more if a record touches
            several.
    """

    def __init__(
        self,
        flat: FlatParameters,
        optimiser: Optimiser,
        *,
        clip: float,
        noise_multiplier: float,
        expected_batch: float,
        sources: Sequence[NoiseSource],
        phase: str,
        sensitivity: float = 1.0,
    ) -> None:
        if len(sources) != flat.replicas:
            raise InputError(
                f"`sources` must have one per replica ({flat.replicas}). Got {len(sources)}."
            )
        if len({source.key for source in sources}) != len(sources):
            raise PrivacyError("`sources` must have one key per replica. Got a repeated one.")
        if len({source.noise for source in sources}) != 1:
            raise InputError("`sources` must have one `noise` for all replicas. Got safe and fast.")
        self.flat = flat
        self.optimiser = optimiser
        self.clip = check_number("clip", clip, above=0)
        self._sensitivity = check_number("sensitivity", sensitivity, above=0)
        multiplier = check_number("noise_multiplier", noise_multiplier, above=0)
        self.std = multiplier * self._sensitivity
        self.expected_batch = check_number("expected_batch", expected_batch, above=0)
        self.phase = phase
        self.steps = 0
        self._sources = list(sources)
        self._is_safe = sources[0].noise == "safe"
        slack = check_size(flat.size) if self._is_safe else 0.0
        self._unit_clip = 1 - ROUNDING_MARGIN - slack
        # Noise comes for several steps per call, since a call costs as much as 4,000 values; few
        # enough to stay in cache. How many may depend on P but not on R: a replica's noise is the
        # same whoever trains beside it. Safe noise does not depend on it at all.
        most, room = (512, 1 << 20) if flat.values.is_cuda else (MOST_AHEAD, NOISE_AHEAD)
        self._ahead = max(1, min(most, room // flat.size))
        self._held = flat.values.new_zeros(0)
        self._upcoming = flat.values.new_zeros(0)

    @property
    def effective_clip(self) -> float:
        """The norm that gradients are really clipped to: ``clip`` less the rounding margins."""
        return self.clip * self._unit_clip

    def release(self, total: Tensor) -> None:
        """Add noise to a clipped sum in units of the clip, divide and move the parameters.

        Args:
            total: ``(R, P)``; no example contributes more than ``effective_clip / clip``.
        """
        # Fast noise is added in place, so a copy is kept for whoever watches.
        seen = total.clone() if active_observer() is not None else total
        released = observe(lambda: self._describe(seen), self._noised(total))
        self.steps += 1
        self.optimiser.step(released.mul_(self.clip / self.expected_batch))

    def _describe(self, total: Tensor) -> Release:
        """Return what an observer sees of one step: the clipped sums in clips, NOT private."""
        return Release(
            f"{self.phase} step {self.steps + 1}",
            total.double().cpu().numpy(),
            self.std,
            self._sensitivity,
            counts_records=True,
        )

    @property
    def can_record(self) -> bool:
        """Whether steps can be recorded as a CUDA graph: not where somebody watches them."""
        return self.flat.values.is_cuda and active_observer() is None

    def record(self, take: Callable[[], None]) -> Callable[[], None]:
        """Record the step that ``take`` takes, and return what takes it again.

        Recording computes nothing and counts for nothing. Each call of what is returned draws the
        noise of the coming step first, so that no noise is used twice.
        """
        dtype = torch.float64 if self._is_safe else self.flat.values.dtype
        self._held = torch.zeros_like(self.flat.values, dtype=dtype)
        graph, taken = torch.cuda.CUDAGraph(), self.steps
        with torch.cuda.graph(graph):
            take()
        self.steps = taken

        def replay() -> None:
            self._held.copy_(self._next_noise())
            self.steps += 1
            graph.replay()

        return replay

    def _noised(self, total: Tensor) -> Tensor:
        """Return the sum plus each replica's own noise, drawn for this step and phase alone."""
        # Nothing is computed while a step is recorded; every replay fills what is held first.
        is_recording = total.is_cuda and torch.cuda.is_current_stream_capturing()
        noise = self._held if is_recording else self._next_noise()
        if self._is_safe:
            return on_grid(total).add_(noise).to(self.flat.values.dtype)
        return total.to(self.flat.values.dtype).add_(noise)

    def _next_noise(self) -> Tensor:
        """Return the noise of the coming step, ``(R, P)``: of safe noise a row per step."""
        block, row = divmod(self.steps, self._ahead)
        if row == 0:
            count, size, device = self._ahead, self.flat.size, self.flat.values.device
            path = (self.phase, "steps") if self._is_safe else (self.phase, "steps", block)
            first = self.steps if self._is_safe else 0
            drawn = [
                source.gaussian_rows(first, count, size, self.std, *path, device=device)
                for source in self._sources
            ]
            self._upcoming = torch.stack(drawn, dim=1)
        return self._upcoming[row]


class PrivateStep(NoisyStep):
    """Takes one DP-SGD step at a time on a flat parameter vector, with gradients from a tape.

    Its arguments are those of :class:`NoisyStep`. The module of ``flat`` is checked with
    ``check_clippable``.
    """

    def __init__(self, flat: FlatParameters, optimiser: Optimiser, **options: Any) -> None:
        check_clippable(flat.module)
        super().__init__(flat, optimiser, **options)
        self._checked_independence = False
        self._known = {id(value) for value in flat.parameters}

    def step(
        self,
        tape: Tape,
        losses: Tensor,
        valid: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> None:
        """Clip, sum, add noise, divide and move; an empty batch adds its noise like any other.

        Args:
            tape: the forward pass that gave the losses.
            losses: one loss per replica and example, ``(R, B)``, neither averaged nor weighted.
            valid: which examples are real; padding counts for nothing.
            shares: what of each clipped gradient counts, ``(R, B)``, cut to 0 to 1: a function of
                that example alone, so the sum still moves by at most the clip. A weight before
                clipping is undone by it wherever gradients are longer than the clip.
        """
        self._check_losses(losses)
        if not self._checked_independence and losses.shape[1] >= 2:
            check_examples_apart(tape, losses)
            self._checked_independence = True
        self.release(self._clipped_sum(tape, losses, valid, shares))

    def clipped_sum(
        self,
        tape: Tape,
        losses: Tensor,
        valid: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Return the clipped sum *without noise*, ``(R, P)``: not private, for tests and audits."""
        self._check_losses(losses)
        return self._clipped_sum(tape, losses, valid, shares) * self.clip

    def _check_losses(self, losses: Tensor) -> None:
        if losses.ndim != 2 or losses.shape[0] != self.flat.replicas:
            raise InputError(
                f"`losses` must have shape ({self.flat.replicas}, batch), one per example. "
                f"Got {tuple(losses.shape)}."
            )

    def _clipped_sum(
        self, tape: Tape, losses: Tensor, valid: Tensor | None, shares: Tensor | None
    ) -> Tensor:
        """Return the clipped sum in units of the clip."""
        deltas = output_gradients(tape, losses)
        with torch.no_grad():
            squared = squared_norms(tape, deltas)
            if squared.shape != losses.shape:
                raise PrivacyError(
                    "the recorded layers must see the examples of the losses, one row each. "
                    f"Got {tuple(squared.shape)} rows for {tuple(losses.shape)} losses."
                )
            # On a GPU, asking would wait for the device, so rows are always masked there.
            finite = not squared.is_cuda and math.isfinite(float(squared.sum()))
            factors = clip_factors(squared, self.effective_clip, valid, all_finite=finite)
            factors = factors.div_(self.clip)
            if shares is not None:
                factors = factors.mul_(shares.clamp(0, 1))
            sums = clipped_sums(tape, deltas, factors, masked=not finite, exact=self._is_safe)
            if not self._known.issuperset(sums):
                raise PrivacyError(
                    "a recorded layer is not part of the module that is trained. Run only that "
                    "module inside `record_linears()`."
                )
            return self.flat.collect(sums)
