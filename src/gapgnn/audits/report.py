"""What every audit shares: its claim, its trials, and what it found, in one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from gapgnn.audits.bounds import Price, Scores, Trials, curve_bound, threshold_bound
from gapgnn.errors import check_integer, check_number
from gapgnn.privacy import Relation
from gapgnn.privacy.accounting import (
    Gaussian,
    MixtureOfGaussians,
    PoissonGaussian,
    account,
    calibrate,
)
from gapgnn.rng import experiment_rng

# A violation that is found in so many runs is one.
RUNS = 3
# Sums that are compared exactly were rounded to float32 on their way out.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Check:
    """One exact comparison of what the shipped code does with what is accounted, without noise.

    Statistics need many trials to see a difference of a tenth; a count or a distance that can be
    computed outright needs none, and has no confidence to speak of.

    Attributes:
        name: what is compared, in words that a number can follow.
        found: what the code does.
        accounted: what is paid for; ``found`` must not exceed it.

    >>> Check("hops released", 3, 2).holds, Check("hops released", 2, 2).holds
    (False, True)
    """

    name: str
    found: float
    accounted: float

    @property
    def holds(self) -> bool:
        """Whether what is paid for covers what is done, up to the rounding of float32."""
        return self.found <= self.accounted * (1 + ROUNDING)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and for the card."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class AuditReport:
    """The result of one audit.

    Attributes:
        mechanism: what was run: ``aggregation``, ``dpsgd``, ``sampler``, ``edges``, ``prediction``.
        epsilon_claimed: what the accountant says it costs, at ``delta``.
        epsilon_lower_bound: what the attacker proved it costs at least.
        delta: of the claim and of the bound.
        confidence: how often such a bound holds.
        trials: runs of the mechanism, or independent parts of runs.
        details: the setting, and every bound that the reported one is the largest of.
        checks: exact comparisons, beside the statistics.

    >>> AuditReport("edges", 1.0, 0.93, 0.0, 0.95, 1000).holds
    True
    """

    mechanism: str
    epsilon_claimed: float
    epsilon_lower_bound: float
    delta: float
    confidence: float
    trials: int
    details: dict[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the claim survived. False is a proof, at the stated confidence; True is not."""
        return self.bound_holds and all(check.holds for check in self.checks)

    @property
    def bound_holds(self) -> bool:
        """Whether the statistics leave the claim standing, whatever the exact checks found."""
        return self.epsilon_lower_bound <= self.epsilon_claimed

    @property
    def sentence(self) -> str:
        """The finding in one plain sentence."""
        percent = f"{self.confidence:.0%}"
        claim = f"the claimed epsilon {self.epsilon_claimed:.4g} at delta {self.delta:g}"
        found = f"{self.epsilon_lower_bound:.4g} ({percent} confidence, {self.trials:,} trials)"
        if self.holds:
            return f"The {self.mechanism} audit found no violation: at least {found} of {claim}."
        reasons = [
            f"{check.name}: {check.found:.6g}, accounted {check.accounted:.6g}"
            for check in self.checks
            if not check.holds
        ]
        if not self.bound_holds:
            reasons.insert(0, f"an attacker reaches epsilon {found}, above {claim}")
        return f"The guarantee of the {self.mechanism} mechanism is broken: {'; '.join(reasons)}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and for the card."""
        return {
            "mechanism": self.mechanism,
            "epsilon_claimed": self.epsilon_claimed,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "confidence": self.confidence,
            "trials": self.trials,
            "holds": self.holds,
            "delta": self.delta,
            "checks": [check.to_dict() for check in self.checks],
            **self.details,
        }


class Options(TypedDict, total=False):
    """What every audit can be given beside options of its own.

    Attributes:
        confidence: of the lower bound; left out: 0.95.
        seed: of the coins; noise and batches are always secret.
        progress: called with finished and all trials.
    """

    confidence: float
    seed: int
    progress: Callable[[int, int], None] | None


def claim(
    template: Gaussian | PoissonGaussian | MixtureOfGaussians,
    relation: Relation,
    epsilon: float,
    delta: float,
    noise_multiplier: float | None,
) -> tuple[float, float]:
    """Return the noise to audit, as a multiple of the template's, and the epsilon it is held to.

    Calibrated to the budget; or the noise that is given, at what it is accounted at.
    """
    if noise_multiplier is None:
        found = calibrate([template], epsilon=epsilon, delta=delta, relation=relation)
        return found.noise_multiplier, found.epsilon
    events = [template.scaled(noise_multiplier)]
    return noise_multiplier, account(events, delta, relation=relation).epsilon


@dataclass
class Attempt:
    """One run of an audit from scratch.

    Attributes:
        mechanism: what is audited.
        rng: tosses the coins.
        trials: of the whole run.
        confidence: of the lower bound.
        progress: called with finished and all trials.
        done: trials that are finished.
    """

    mechanism: str
    rng: np.random.Generator
    trials: int
    confidence: float = 0.95
    progress: Callable[[int, int], None] | None = None
    done: int = 0

    def coins(self, count: int) -> NDArray[np.bool_]:
        """Toss the fair coins that choose each trial's data set."""
        return self.rng.integers(2, size=count).astype(np.bool_)

    def run(
        self,
        attack: Callable[[NDArray[np.bool_]], Scores],
        *,
        count: int | None = None,
        at_once: int | None = None,
        threshold: float = 0.0,
        price: Price | None = None,
    ) -> Trials:
        """Let an attack score ``count`` trials, all if left out, so many of them in one call."""
        worlds = self.coins(self.trials if count is None else count)
        calls = 1 if at_once is None else math.ceil(len(worlds) / at_once)
        parts = []
        for some in np.array_split(worlds, calls):
            parts.append(attack(some))
            self.done += len(some)
            if self.progress is not None:
                self.progress(self.done, self.trials)
        return Trials(np.concatenate(parts, axis=1), worlds, threshold, price)

    def conclude(
        self,
        views: dict[str, Trials],
        *,
        epsilon: float,
        delta: float,
        details: dict[str, Any],
        checks: Sequence[Check] = (),
    ) -> AuditReport:
        """Compute all bounds and report the largest, with the exact checks beside it.

        The allowed error is shared equally among the bounds, so that the largest of them still
        holds with the stated confidence (union bound).
        """
        count = sum(1 if view.price is None else 2 for view in views.values())
        alpha = (1 - self.confidence) / count
        bounds: dict[str, float] = {}
        for name, view in views.items():
            bounds[f"{name}, Clopper-Pearson"] = threshold_bound(view, delta=delta, alpha=alpha)
            if view.price is not None:
                bounds[f"{name}, trade-off curve"] = curve_bound(view, alpha=alpha)
        return AuditReport(
            self.mechanism,
            epsilon,
            max(bounds.values()),
            delta,
            self.confidence,
            sum(len(view.worlds) for view in views.values()),
            {**details, "bounds": bounds},
            tuple(checks),
        )


def confirmed(
    mechanism: str,
    attempt: Callable[[Attempt], AuditReport],
    trials: int,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    runs: int = RUNS,
) -> AuditReport:
    """Run an audit, again from scratch if it finds a violation, and a third time; report the last.

    Against a mechanism that spends all of its budget, one run in twenty may end above the claim by
    chance, and people run dozens of audits. Three independent runs in a row do so at most once in
    8,000, while a real fault shows up in all of them. The reported bound keeps its confidence:
    where the claim is true, a further run can only take back a wrong bound, and where it is false,
    the last run stands for itself. Exact checks are not left to chance and ask for no second run.
    With ``runs=1`` the first run is reported: its bound keeps the stated confidence, and no more.
    """
    check_number("confidence", confidence, above=0, below=1)
    check_integer("runs", runs, at_least=1, at_most=RUNS)
    reports: list[AuditReport] = []
    while not reports or (len(reports) < runs and not reports[-1].bound_holds):
        rng = experiment_rng(seed, f"audit {mechanism}", len(reports))
        reports.append(attempt(Attempt(mechanism, rng, trials, confidence, progress)))
    if len(reports) == 1:
        return reports[0]
    first = {"first_lower_bound": reports[0].epsilon_lower_bound}
    return replace(reports[-1], details={**reports[-1].details, **first})
