"""What an audit found, in one object: for people, for JSON and for the privacy card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gapgnn.attacks.bounds import Trials, curve_bound, threshold_bound
from gapgnn.errors import check_number


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

    @property
    def holds(self) -> bool:
        """Whether the claim survived. False is a proof, at the stated confidence; True is not."""
        return self.epsilon_lower_bound <= self.epsilon_claimed

    @property
    def sentence(self) -> str:
        """The finding in one plain sentence."""
        percent = f"{self.confidence:.0%}"
        claim = f"the claimed epsilon {self.epsilon_claimed:.4g} at delta {self.delta:g}"
        found = f"{self.epsilon_lower_bound:.4g} ({percent} confidence, {self.trials:,} trials)"
        if self.holds:
            return f"The {self.mechanism} audit found no violation: at least {found} of {claim}."
        return (
            f"The guarantee of the {self.mechanism} mechanism is broken: an attacker reaches "
            f"epsilon {found}, above {claim}."
        )

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
            **self.details,
        }


# A violation that is found in so many runs is one.
RUNS = 3


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
) -> AuditReport:
    """Compute all bounds and report the largest.

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
    )


def confirmed(attempt: Callable[[int], AuditReport]) -> AuditReport:
    """Run an audit, again from scratch if it finds a violation, and a third time; report the last.

    Against a mechanism that spends all of its budget, one run in twenty may end above the claim by
    chance, and people run dozens of audits. Three independent runs in a row do so at most once in
    8,000, while a real fault shows up in all of them. The reported bound keeps its confidence:
    where the claim is true, a further run can only take back a wrong bound, and where it is false,
    the last run stands for itself.

    Args:
        attempt: runs the audit with the coins of the given number.
    """
    first = report = attempt(0)
    for number in range(1, RUNS):
        if report.holds:
            break
        report = attempt(number)
    if report is first:
        return first
    return replace(
        report, details={**report.details, "first_lower_bound": first.epsilon_lower_bound}
    )
