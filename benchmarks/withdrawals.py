"""What several withdrawals at once are hidden at: epsilon for g people, at the delta of one.

    python benchmarks/withdrawals.py --markdown docs/generated/withdrawals.md

Each row is a composition with the least noise that hides one person at its epsilon: hops of
neighbour sums, DP-SGD, or both. No data is read.
"""

from __future__ import annotations

import argparse

import generated
from gapgnn.accounting import Event, Gaussian, PoissonGaussian, calibrate, group_epsilon

DELTA = 1e-5
STEPS = PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546)
RELEASES: dict[str, list[Event]] = {
    "2 hops": [Gaussian(1.0, count=2)],
    "DP-SGD, 1,546 steps": [STEPS],
    "2 hops and DP-SGD": [Gaussian(2.0, count=2), STEPS],
}


def shown(epsilon: float) -> str:
    """Return an epsilon with two digits behind the point, rounded up."""
    return f"{-(-epsilon * 100 // 1) / 100:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--people", nargs="+", type=int, default=[1, 2, 3, 5, 10])
    generated.add_option(parser)
    args = parser.parse_args()
    rows = []
    for name, template in RELEASES.items():
        for budget in args.epsilons:
            events = calibrate(template, epsilon=budget, delta=DELTA)
            prices = (group_epsilon(events, DELTA, people=people) for people in args.people)
            rows.append([name, f"{budget:g}", *map(shown, prices)])
    columns = ["releases", "calibrated for", *(f"g = {people}" for people in args.people)]
    body = generated.table(columns, rows)
    print(body)
    title = f"Epsilon at which g withdrawals at once are hidden, at delta {DELTA:g}"
    generated.write(args.markdown, title, body, device="cpu")


if __name__ == "__main__":
    main()
