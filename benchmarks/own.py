"""What a prediction may read of its own person, and what each choice is worth.

    GAPGNN_DATA=DIR python benchmarks/own.py --jobs 2 --markdown docs/generated/own.md
    python benchmarks/own.py --datasets cora pubmed --epsilons 1 4 --relation replace
    python benchmarks/own.py --level edge --epsilons 1 --markdown docs/generated/own-edge.md

Every cell is the mean test accuracy of independent repeats and half the width of its 95 % interval.
`record` is joint differential privacy, another promise than `nothing` and `features`, and `vote` is
its simple baseline: randomised response of labels at node level, epsilon 0 at edge level. MLP reads
features alone: the line that reading edges must not fall below. At edge level `record` is chosen at
prediction, so every repeat is a fit of its own, on a split of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import generated
from gapgnn import MLP, LabelGAP, Ledger, NeighborVote, NodeLabelGAP, load_dataset

# Two-sided 95 % points of Student's t, by the number of repeats.
STUDENT = {2: 12.71, 3: 4.30, 5: 2.78, 10: 2.26, 20: 2.09}
METHODS = {
    "node": ("MLP", "nothing", "features", "record", "vote"),
    "edge": ("MLP", "features", "record", "vote"),
}
Job = tuple[str, str, float, dict[str, Any]]
Scores = dict[str, list[float]]


def at_node_level(job: Job) -> Scores:
    """Return the scores of one method."""
    dataset, method, epsilon, options = job
    torch.set_num_threads(1)
    graph = load_dataset(dataset, split_seed=options["seed"])
    given = {"level": "node", "epsilon": epsilon, **options}
    if method == "vote":
        del given["delta"]  # pure
    estimator = {"MLP": MLP, "vote": NeighborVote}.get(method, NodeLabelGAP)
    chosen = {"own": method} if estimator is NodeLabelGAP else {}
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
        return {method: list(estimator(ledger=ledger, **given, **chosen).fit(graph).repeat_scores_)}


def at_edge_level(job: Job) -> Scores:
    """Return the scores of one method, a fit for each; LabelGAP has one for each value of `own`."""
    dataset, method, epsilon, options = job
    torch.set_num_threads(1)
    reads = {"features": None, "record": "record"} if method == "LabelGAP" else {method: None}
    scores: Scores = {name: [] for name in reads}
    for seed in range(options["seed"], options["seed"] + options["repeats"]):
        graph = load_dataset(dataset, split_seed=seed)
        given = {"level": "edge", "device": options["device"], "seed": seed}
        if method == "LabelGAP":
            given |= {name: options[name] for name in ("relation", "delta", "noise")}
            given["epsilon"] = epsilon
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger.init(Path(folder, "ledger.sqlite")).path
            methods = {"MLP": MLP, "vote": NeighborVote, "LabelGAP": LabelGAP}
            model = methods[method](ledger=ledger, **given).fit(graph)
            for name, own in reads.items():
                is_right = model.decide(model.predict_proba(graph, own=own)) == graph.labels
                scores[name].append(float(is_right[graph.test_mask].mean()))
    return scores


def shown(scores: list[float]) -> str:
    percent = [100 * score for score in scores]
    if len(percent) == 1:
        return f"{percent[0]:.1f}"
    half = STUDENT.get(len(percent), 1.96) * statistics.stdev(percent) / len(percent) ** 0.5
    return f"{statistics.mean(percent):.1f} ± {half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    schools = [f"facebook100/{name}" for name in ("Cornell5", "Rutgers89", "Wisconsin87")]
    parser.add_argument("--level", default="node", choices=list(METHODS))
    parser.add_argument("--datasets", nargs="+", default=schools)
    parser.add_argument("--methods", nargs="+", help="(all of the level)")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--relation", default="auto")
    parser.add_argument("--delta", type=float, help="(node 1e-5, edge auto)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--noise", default="safe", choices=["safe", "fast"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    generated.add_option(parser)
    arguments = parser.parse_args()
    known = METHODS[arguments.level]
    if unknown := sorted(set(arguments.methods or ()) - set(known)):
        parser.error(f"at level {arguments.level} there is {', '.join(known)}. Got {unknown[0]}.")
    options = {
        name: getattr(arguments, name)
        for name in ("relation", "delta", "repeats", "seed", "noise", "device")
    }
    options["delta"] = arguments.delta or (1e-5 if arguments.level == "node" else "auto")
    is_edge = arguments.level == "edge"
    wanted = arguments.methods or known
    # At edge level what needs no budget is measured once, and one model answers for each value of
    # `own`.
    free = ("MLP", "vote") if is_edge else ()
    fitted = ["LabelGAP" if is_edge and name not in free else name for name in wanted]
    jobs = [
        (dataset, method, epsilon, options)
        for dataset in arguments.datasets
        for method in dict.fromkeys(fitted)
        for epsilon in (arguments.epsilons[:1] if method in free else arguments.epsilons)
    ]
    found: dict[tuple[str, str, float], str] = {}
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        tasks = {pool.submit(at_edge_level if is_edge else at_node_level, job): job for job in jobs}
        for number, task in enumerate(as_completed(tasks), start=1):
            dataset, _, epsilon, _ = tasks[task]
            for method, scores in task.result().items():
                found[dataset, method, epsilon] = shown(scores)
                print(f"[{number}/{len(jobs)}]", dataset, method, f"{epsilon:g}", shown(scores))
                sys.stdout.flush()
    first = arguments.epsilons[0]
    rows = [
        (
            dataset,
            method,
            *(found[dataset, method, first if method in free else e] for e in arguments.epsilons),
        )
        for dataset in arguments.datasets
        for method in wanted
    ]
    columns = ["data set", "reads", *(f"epsilon {epsilon:g}" for epsilon in arguments.epsilons)]
    body = generated.table(columns, rows)
    print(body)
    title = f"What a prediction reads of its own person, level {arguments.level}"
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
