"""How long calibration takes for GAP at node level and Facebook size, uncached and from the cache.

python benchmarks/calibration.py
"""

import argparse
import os
import tempfile
import time

from gapgnn.privacy.accounting.calibration import calibrate
from gapgnn.privacy.accounting.events import Gaussian, PoissonGaussian
from gapgnn.privacy.relations import aggregation_ratio

BUDGETS = [(8.0, 1e-5), (1.0, 1e-5), (0.01, 1e-12), (1000.0, 0.1)]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        print("relation     epsilon  delta  multiplier  accounted  uncached s  cached ms")
        # The first line includes the import of the accounting library.
        for relation in ("add-remove", "replace"):
            hops = Gaussian(aggregation_ratio(relation), count=2)
            template = [PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546), hops]
            for epsilon, delta in BUDGETS:
                times = []
                for _ in range(2):
                    start = time.perf_counter()
                    answer = calibrate(template, epsilon=epsilon, delta=delta, relation=relation)
                    times.append(time.perf_counter() - start)
                print(
                    f"{relation:<11} {epsilon:8g} {delta:6g} {answer.noise_multiplier:11.4f} "
                    f"{answer.epsilon:10.5g} {times[0]:11.2f} {1000 * times[1]:10.1f}"
                )


if __name__ == "__main__":
    main()
