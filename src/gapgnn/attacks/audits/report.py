"""What an audit found, in one object: for people, for JSON and for the privacy card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gapgnn.attacks.audits.bounds import Trials, curve_bound, threshold_bound
from gapgnn.errors import check_number

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
        return {
            "name": self.name,
            "found": self.found,
            "accounted": self.accounted,
            "holds": self.holds,
        }


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


@dataclass(frozen=True)
class View:
    """One way of looking at the mechanism, with its own trials.

    Attributes:
        name: for the report.
        trials: what was seen.
        price: the curve of the mechanism, where it is known (see :func:`curve_bound`).
    """

    name: str
    trials: Trials
    price: Callable[[float], float] | None = None


def conclude(
    mechanism: str,
    views: Sequence[View],
    *,
    epsilon: float,
    delta: float,
    confidence: float,
    details: dict[str, Any],
    checks: Sequence[Check] = (),
) -> AuditReport:
    """Compute all bounds and report the largest, with the exact checks beside it.

    The allowed error is shared equally among the bounds, so that the largest of them still holds
    with the stated confidence (union bound).
    """
    check_number("confidence", confidence, above=0, below=1)
    count = sum(1 if view.price is None else 2 for view in views)
    alpha = (1 - confidence) / count
    bounds: dict[str, float] = {}
    for view in views:
        name = f"{view.name}, Clopper-Pearson"
        bounds[name] = threshold_bound(view.trials, delta=delta, alpha=alpha)
        if view.price is not None:
            name = f"{view.name}, trade-off curve"
            bounds[name] = curve_bound(view.trials, view.price, alpha=alpha)[0]
    return AuditReport(
        mechanism,
        epsilon,
        max(bounds.values()),
        delta,
        confidence,
        sum(len(view.trials.worlds) for view in views),
        {**details, "bounds": bounds},
        tuple(checks),
    )


def confirmed(attempt: Callable[[int], AuditReport]) -> AuditReport:
    """Run an audit, again from scratch if it finds a violation, and a third time; report the last.

    Against a mechanism that spends all of its budget, one run in twenty may end above the claim by
    chance, and people run dozens of audits. Three independent runs in a row do so at most once in
    8,000, while a real fault shows up in all of them. The reported bound keeps its confidence:
    where the claim is true, a further run can only take back a wrong bound, and where it is false,
    the last run stands for itself. Exact checks are not left to chance and ask for no second run.

    Args:
        attempt: runs the audit with the coins of the given number.
    """
    first = report = attempt(0)
    for number in range(1, RUNS):
        if report.bound_holds:
            break
        report = attempt(number)
    if report is first:
        return first
    return replace(
        report, details={**report.details, "first_lower_bound": first.epsilon_lower_bound}
    )
