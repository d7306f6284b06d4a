"""Ten repeats of SAGE trained together, against ten single runs.

    GAPGNN_DATA=... python benchmarks/sage.py
    GAPGNN_DATA=... python benchmarks/sage.py --level edge --singles 2

Prints the seconds of one process that trains all repeats, the seconds of single runs (``--singles``
are timed and scaled up), their ratio, and the accuracies.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from gapgnn import GraphSAGE, Ledger, load_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="facebook100/Cornell5")
    parser.add_argument("--level", choices=("none", "edge", "node"), default="none")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--singles", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    graph = load_dataset(args.dataset, split_seed=0)
    print(f"{graph}, level {args.level}, {args.threads} threads, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:

        def fit(repeats: int, seed: int) -> tuple[float, list[float]]:
            drawn = {"epsilon": args.epsilon, "noise": "fast"}
            model = GraphSAGE(
                level=args.level,
                **(drawn if args.level != "none" else {}),
                repeats=repeats,
                seed=seed,
                device=args.device,
                ledger=Ledger.init(Path(folder) / "ledger.sqlite").path,
            )
            start = time.perf_counter()
            model.fit(graph)
            return time.perf_counter() - start, model.repeat_scores_

        fit(1, 0)
        single = [fit(1, seed) for seed in range(args.singles)]
        alone = sum(seconds for seconds, _ in single) * args.repeats / args.singles
        together, scores = fit(args.repeats, 0)
    print(f"together: {together:.1f} s, mean test accuracy {sum(scores) / len(scores):.1%}")
    print(f"single runs: {alone:.1f} s for {args.repeats} ({args.singles} timed)")
    print(f"ratio together / single: {together / alone:.2f}")


if __name__ == "__main__":
    main()
