"""A budget in, the least noise that keeps it out: never over (privacy page, section 3).

A *template* is a composition whose noise multipliers are ratios to one free number m: with
``[PoissonGaussian(1.0, ...), Gaussian(0.5, count=2)]`` the aggregation gets half the multiplier of
the training steps. :func:`calibrate` finds the smallest m whose accounted epsilon is at most the
target.

Slow answers are kept on disk between runs: one small JSON file for each question in
``$XDG_CACHE_HOME/gapgnn/calibration`` (``~/.cache`` without the variable), named by the SHA-256 of
the question and of the versions that answered it. Files are written for their owner alone and moved
into place whole. A file that is damaged, or that somebody else owns or may write, is ignored. An
answer, on disk or remembered by this process, is accounted for the question at hand before it is
used: a cache may save time, not privacy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gapgnn.errors import CalibrationError, InputError
from gapgnn.privacy import RelationLike, check_delta, check_part, parse_relation
from gapgnn.privacy.accounting.accountants import account, gaussian_shift
from gapgnn.privacy.accounting.events import Composition, Event, Gaussian, group_of, merge
from gapgnn.privacy.accounting.rdp import ORDERS, rdp_epsilon

# Where the search aims and stops, as shares of the target epsilon, and what is promised.
_AIM, _STOP, _PROMISED = 0.9995, 0.998, 0.995
# Search range of the free multiplier. Below it even a finite accounted epsilon is no privacy.
LEAST_NOISE, _MOST_NOISE = 1e-3, 1e9
_MOST_EVALUATIONS = 80
# Multipliers that this process found or read, by question.
_REMEMBERED: dict[str, float] = {}
_MOST_REMEMBERED = 256
FORMAT = 2
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Calibrated:
    """The answer of a calibration.

    Attributes:
        noise_multiplier: the free number m.
        epsilon: as accounted, at most the target.
        delta: as asked.
        accountant: which accountant priced it.
        events: the template with its multipliers filled in, then the fixed events.
    """

    noise_multiplier: float
    epsilon: float
    delta: float
    accountant: str
    events: Composition


def calibrate(
    template: Sequence[Event],
    *,
    epsilon: float,
    delta: float,
    relation: RelationLike,
    fixed: Sequence[Event] = (),
    cache: bool = True,
) -> Calibrated:
    """Return the least noise with which the template costs at most (epsilon, delta).

    The accounted epsilon is at most the target and within 0.5 % of it. One exception lies on the
    safe side: if the sampling rate alone keeps the budget however little noise there is, the
    multiplier returned is 0.001 and epsilon may be far below the target.

    Args:
        template: events whose noise multipliers are ratios to the free number.
        epsilon: target, in the accepted range (:mod:`gapgnn.privacy.budget`), or what another
            release has left of such a budget.
        delta: likewise, above 0.
        relation: the run's neighbouring relation, ``auto`` already resolved.
        fixed: events that are charged too but whose noise is already decided.
        cache: whether slow answers are remembered, by this process and on disk. What a file
            says is accounted before use.

    Raises:
        CalibrationError: if no noise keeps the budget, for instance because ``fixed`` spends it
            all.

    >>> from gapgnn.privacy.accounting.events import Gaussian
    >>> answer = calibrate([Gaussian(1.0, count=2)], epsilon=1.0, delta=1e-7, relation="undirected")
    >>> round(answer.noise_multiplier, 3), answer.epsilon <= 1.0
    (6.617, True)
    """
    request = _Request(tuple(template), tuple(fixed), epsilon, delta, relation)
    request.check()
    searched = request.of_own_groups()
    if merge((*template, *searched.fixed), relation=relation).is_gaussian:
        return request.confirm(_solve_gaussian(searched))
    if not cache:
        return request.confirm(_solve(searched))
    key = request.key()
    answer = _confirmed_answer(request, _REMEMBERED.get(key)) or _confirmed_answer(
        request, read_answer(key)
    )
    if answer is None:
        answer = request.confirm(_solve(searched))
        write_answer(key, answer.noise_multiplier)
    if len(_REMEMBERED) >= _MOST_REMEMBERED:
        _REMEMBERED.clear()
    _REMEMBERED[key] = answer.noise_multiplier
    return answer


@dataclass(frozen=True)
class _Request:
    """What was asked, and the two things every part of the search does with it."""

    template: Composition
    fixed: Composition
    epsilon: float
    delta: float
    relation: RelationLike

    def check(self) -> None:
        """Say why if the question has no answer."""
        parse_relation(self.relation)
        check_part(self.epsilon)
        check_delta(self.delta, can_be_zero=False)
        if not self.template:
            raise InputError(
                "`template` must have at least one event: without one no noise is needed. Got none."
            )

    def of_own_groups(self) -> _Request:
        """Return the question without fixed events that no person of the template is in."""
        groups = {"", *(group_of(event) for event in self.template)}
        if groups == {""}:
            return self
        beside = tuple(event for event in self.fixed if group_of(event) in groups)
        return replace(self, fixed=beside)

    def fill(self, multiplier: float) -> Composition:
        """Return the composition at one value of the free number."""
        return (*(event.scaled(multiplier) for event in self.template), *self.fixed)

    def price(self, multiplier: float) -> float:
        """Return the accounted epsilon at one value of the free number."""
        return account(self.fill(multiplier), self.delta, relation=self.relation).epsilon

    def confirm(self, multiplier: float) -> Calibrated:
        """Account the finished events once more, and refuse them if over the budget."""
        if not (math.isfinite(multiplier) and multiplier > 0):
            raise CalibrationError(
                f"calibration ended at noise {multiplier!r}: nothing is released."
            )
        events = self.fill(multiplier)
        spend = account(events, self.delta, relation=self.relation)
        if not spend.epsilon <= self.epsilon:
            raise CalibrationError(
                f"the calibrated noise {multiplier!r} costs epsilon {spend.epsilon!r}, over the "
                f"budget {self.epsilon!r}: nothing is released with it."
            )
        return Calibrated(multiplier, spend.epsilon, self.delta, spend.accountant, events)

    def key(self) -> str:
        """Return the name of the cached answer; labels do not change it."""
        from importlib.metadata import version

        from gapgnn import __version__

        content = {
            "format": FORMAT,
            "versions": [__version__, version("dp-accounting")],
            "question": {
                "template": [_nameless(event) for event in self.template],
                "fixed": [_nameless(event) for event in self.fixed],
                "epsilon": float(self.epsilon),
                "delta": float(self.delta),
                "relation": parse_relation(self.relation).name,
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def unreachable(self) -> CalibrationError:
        """Return the error that says why no noise is enough."""
        if self.fixed:
            spent = account(self.fixed, self.delta, relation=self.relation).epsilon
            return CalibrationError(
                f"the fixed events alone cost epsilon {spent:.6g} at delta {self.delta:g}: too "
                f"little is left of {self.epsilon:g}. Raise `epsilon` or drop a fixed event."
            )
        return CalibrationError(
            f"no noise up to {_MOST_NOISE:g} keeps epsilon {self.epsilon:g} at delta "
            f"{self.delta:g}: the composition is too long for them. Raise `delta` or use fewer "
            "steps."
        )


def _nameless(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.to_dict().items() if name != "label"}


def _solve_gaussian(request: _Request) -> float:
    """Invert the exact curve: squared shifts add up; the template gets what is left."""
    largest = gaussian_shift(request.epsilon, request.delta)
    spent = merge(request.fixed, relation=request.relation).shift
    if spent >= largest * (1 - 1e-9):
        raise request.unreachable()
    free = math.sqrt((largest - spent) * (largest + spent))
    # One part in 10^10 more than the root, so that rounding cannot end above the budget; in a tiny
    # one, of which the curve is known to fewer digits, as many as it takes.
    found = merge(request.template, relation=request.relation).shift / free * (1 + 1e-10)
    for _ in range(_MOST_EVALUATIONS):
        if request.price(found) <= request.epsilon:
            break
        found *= 1 + 1e-9
    return found


def _solve(request: _Request) -> float:
    """Search with RDP for the neighbourhood, then with the price itself.

    Everything composed here is nearly one Gaussian (the central limit theorem of privacy loss,
    Dong, Roth and Su 2019), whose squared shift is that of the fixed events and a power of the
    free number. So the search walks along that power, which is nearly straight, and RDP is asked
    for what it says of the one Gaussian at the target: the two are loose alike.
    """
    spent = 0.0
    if request.fixed:
        spent = account(request.fixed, request.delta, relation=request.relation).epsilon
        if spent >= request.epsilon:
            raise request.unreachable()

    def left(price: float) -> float:
        """Return the shift that a price leaves for the template."""
        whole, fixed = (gaussian_shift(e, request.delta) if e else 0.0 for e in (price, spent))
        return math.sqrt(max(whole * whole - fixed * fixed, 0.0))

    def loose(multiplier: float) -> float:
        events = request.fill(multiplier)
        return rdp_epsilon(events, request.delta, relation=request.relation, orders=ORDERS[::4])

    alike = Gaussian(1 / gaussian_shift(request.epsilon, request.delta))
    target = rdp_epsilon([alike], request.delta, relation=request.relation, orders=ORDERS[::4])
    start = search_multiplier(loose, target, stop=0.99, aim=0.996) or 1.0
    found = search_multiplier(request.price, request.epsilon, start=start, straight=left)
    if found is None:
        raise request.unreachable()
    return found


def _confirmed_answer(request: _Request, multiplier: float | None) -> Calibrated | None:
    """Return a cached answer if a full accounting of its events confirms it.

    The cache proves nothing: it spares the search, of which one accounting is about a fifth, or
    nothing where this process has just priced the same events. An answer that is over the budget,
    or that wastes more of it than the search would, is dropped: it belongs to another request.
    """
    if multiplier is None or not LEAST_NOISE <= multiplier <= _MOST_NOISE:
        return None
    try:
        answer = request.confirm(multiplier)
    except CalibrationError:
        return None
    is_used_up = answer.epsilon >= _PROMISED * request.epsilon
    return answer if is_used_up or multiplier == LEAST_NOISE else None


def search_multiplier(
    cost: Callable[[float], float],
    target: float,
    *,
    start: float = 1.0,
    stop: float = _STOP,
    aim: float = _AIM,
    straight: Callable[[float], float] = float,
) -> float | None:
    """Return an m with ``stop * target <= cost(m) <= target``; None if no m is cheap enough.

    Secant steps on log cost against log m, which is nearly straight, or is so for what ``straight``
    makes of the cost, inside a bracket that halves when a step leaves it. ``cost`` falls with m,
    except for jumps far below the tolerance.

    >>> 1.0 <= search_multiplier(lambda m: 8 / m**2, 8.0) < 1.002
    True
    """
    costly, cheap = 0.0, math.inf
    # Rounding makes the price of a tiny multiplier jump, so the most used of those seen may win.
    best = (-math.inf, -math.inf)
    previous: tuple[float, float] | None = None
    multiplier, slope, log_aim = start, -1.2, math.log(straight(aim * target))
    for _ in range(_MOST_EVALUATIONS):
        price = cost(multiplier)
        if stop * target <= price <= target:
            return multiplier
        if price > target:
            costly = max(costly, multiplier)
        else:
            cheap = min(cheap, multiplier)
            best = max(best, (price, -multiplier))
        if cheap <= LEAST_NOISE:
            return cheap
        if costly >= _MOST_NOISE:
            return None
        if cheap < math.inf and cheap / max(costly, 1e-300) < 1 + 1e-9:
            # The curve jumps across the tolerance; the cheap side keeps the budget.
            return -best[1]
        height = straight(price) if 0 < price < math.inf else 0.0
        point = (math.log(multiplier), math.log(height)) if height > 0 else None
        if point and previous and point[0] != previous[0]:
            slope = (point[1] - previous[1]) / (point[0] - previous[0])
        guess = _guess(point, slope, log_aim)
        previous = point or previous
        multiplier = _inside(guess, multiplier, costly, cheap)
    return -best[1] if cheap < math.inf else None


def _guess(point: tuple[float, float] | None, slope: float, log_aim: float) -> float | None:
    """Follow the line through the last point to where it meets the aim."""
    if point is None or not slope < -1e-3:
        return None
    return math.exp(max(-20.0, min(20.0, point[0] + (log_aim - point[1]) / slope)))


def _inside(guess: float | None, last: float, costly: float, cheap: float) -> float:
    """Return the guess if it is inside the bracket, else its middle or a step beyond it."""
    if costly > 0 and cheap < math.inf:
        margin = (cheap / costly) ** 0.02
        if guess is not None and costly * margin <= guess <= cheap / margin:
            return guess
        return math.sqrt(costly * cheap)
    # One-sided so far: follow the guess, but by no more than a factor of eight.
    if cheap == math.inf:
        step = guess if guess is not None and guess > costly else 2 * costly
        return min(_MOST_NOISE, max(costly * 1.0001, min(step, 8 * last)))
    step = guess if guess is not None and guess < cheap else cheap / 2
    return max(LEAST_NOISE, min(cheap / 1.0001, max(step, last / 8)))


def read_answer(name: str) -> float | None:
    """Return a stored multiplier, or None if there is none that is surely ours and whole."""
    try:
        with open(_folder() / f"{name}.json", encoding="utf-8") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = json.loads(file.read(_MOST_BYTES))
        multiplier = content["noise_multiplier"]
        if content["key"] != name or content["digest"] != _digest(name, multiplier):
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    is_number = isinstance(multiplier, float) and math.isfinite(multiplier) and multiplier > 0
    return multiplier if is_number else None


def write_answer(name: str, noise_multiplier: float) -> None:
    """Store an answer; a folder that cannot be written only costs time at the next call."""
    content = {
        "key": name,
        "noise_multiplier": noise_multiplier,
        "digest": _digest(name, noise_multiplier),
    }
    with contextlib.suppress(OSError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes the file readable and writable by its owner only.
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
            os.replace(temporary, folder / f"{name}.json")
        except BaseException:
            os.unlink(temporary)
            raise


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says to ignore a relative path.
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return root / "gapgnn" / "calibration"


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(name: str, noise_multiplier: float) -> str:
    return hashlib.sha256(json.dumps([name, noise_multiplier]).encode()).hexdigest()
