"""The accountant alone: what releases cost together, without a graph or a model.

Epsilon of a list of events, noise for a budget, a mechanism of one's own, and the same events in
dp_accounting and Opacus.
"""

from dataclasses import dataclass

from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from gapgnn.accounting import (
    DiscretePair,
    Event,
    Gaussian,
    PoissonGaussian,
    calibrate,
    delta,
    epsilon,
    from_opacus,
    to_dp_accounting,
    trade_off,
)

# Two noisy hops, and 1,000 steps of DP-SGD at sampling rate 1 %.
hops, training = Gaussian(5.0, count=2), PoissonGaussian(1.2, sampling_rate=0.01, steps=1000)
together = epsilon([hops, training], delta=1e-5)
print(
    f"epsilon at delta 1e-5: {together:.4f}, delta at epsilon 1: {delta([hops, training], 1.0):.2e}"
)

# The least noise for a budget: numbers in the template are ratios to one free multiplier.
wanted = [Gaussian(2.0, count=2), PoissonGaussian(1.0, sampling_rate=0.01, steps=1000)]
noisy = calibrate(wanted, epsilon=2.0, delta=1e-5)
print("for epsilon 2:", [round(event.noise_multiplier, 3) for event in noisy])

# dp_accounting prices the same events.
library = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
library.compose(to_dp_accounting([hops, training]))
print(f"dp_accounting: {library.get_epsilon(1e-5):.4f}")
assert abs(library.get_epsilon(1e-5) - together) < 0.01 * together

# A training by Opacus, as its accountant's history has it.
print(f"an Opacus run: {epsilon(from_opacus([(1.0, 0.02, 500)]), delta=1e-5):.3f}")


@dataclass(frozen=True)
class NoisyWinner(Event):
    """Report noisy max (Dwork and Roth 2014, claim 3.9): the winner of counts, pure epsilon-DP."""

    epsilon: float
    times: int = 1
    label: str = ""

    def pair(self, relation: object) -> DiscretePair:
        """Return two outputs that are as hard to tell apart as those of the mechanism."""
        return DiscretePair.of_pure(self.epsilon)


both = epsilon([NoisyWinner(0.5), hops], delta=1e-5)
assert both < 0.5 + epsilon([hops], delta=1e-5)
print(f"with a mechanism of one's own: {both:.3f}")

curve = trade_off([hops, training], false_positives=[0.001, 0.01, 0.1])
for alarms, missed in zip(curve.false_positives, curve.false_negatives, strict=True):
    print(f"an attacker with {alarms:.1%} false alarms finds at most {1 - missed:.2%}")
