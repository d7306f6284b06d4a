"""What published predictions give away about links, by what a prediction reads of its own person.

    GAPGNN_DATA=DIR python benchmarks/own_links.py --jobs 2 --markdown docs/generated/own-links.md
    python benchmarks/own_links.py --datasets social --epsilons 1 --seeds 1

Test accuracy, and AUC in percent of two attackers on published labels / published probabilities,
means over seeds. Link stealing knows features and labels, and edges were held out before training;
its gain over the same attacker without the model stands in brackets, in points. The informed
attacker (`gapgnn attack own-neighbours`) knows the model, the release and all edges except one.
Guessing is 50. `record` is joint differential privacy, another promise than the other two.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import mean
from typing import Any

import torch

import generated
from gapgnn import LabelGAP, NeighborVote, NodeLabelGAP, load_dataset
from gapgnn.attacks import fitted
from gapgnn.attacks.links import PUBLISHED, link_stealing_attack
from gapgnn.attacks.own_neighbours import own_neighbours_attack

# What is fitted, and what is chosen at prediction.
TARGETS: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "node, nothing": (NodeLabelGAP, {"own": "nothing"}, None),
    "node, features": (NodeLabelGAP, {"own": "features"}, None),
    "node, record": (NodeLabelGAP, {"own": "record"}, None),
    "node, vote": (NeighborVote, {"level": "node"}, None),
    "edge, features": (LabelGAP, {}, None),
    "edge, record": (LabelGAP, {}, "record"),
    "edge, vote": (NeighborVote, {"level": "edge"}, None),
}


def measured(job: tuple[str, str, float, int, dict[str, Any]]) -> dict[str, float]:
    """Return the figures of one target and seed."""
    dataset, target, epsilon, seed, options = job
    torch.set_num_threads(1)
    method, chosen, own = TARGETS[target]
    graph = load_dataset(dataset, split_seed=seed)
    given = {"epsilon": epsilon, **options, **chosen}
    if method is NeighborVote and chosen["level"] == "node":
        # Pure.
        given["delta"] = "auto"
    estimator = method(**given)
    found: dict[str, float] = {}
    with fitted(estimator, graph, repeats=1, seed=seed) as model:
        right = model.decide(model.predict_proba(graph, own=own)) == graph.labels
        found["accuracy"] = float(right[graph.test_mask].mean())
        for published in PUBLISHED:
            inferred = own_neighbours_attack(
                model, graph, published=published, own=own, itself=True, seed=seed
            )
            found[f"informed {published}"] = inferred.ranking.auc
    for published in PUBLISHED:
        stolen = link_stealing_attack(estimator, graph, published=published, own=own, seed=seed)
        found[f"stealing {published}"] = stolen.ranking.auc
        found[f"gain {published}"] = stolen.gain_auc
    return found


def row(dataset: str, target: str, epsilon: float, runs: list[dict[str, float]]) -> tuple[str, ...]:
    means = {name: 100 * mean(run[name] for run in runs) for name in runs[0]}
    is_free = target == "edge, vote"
    both = ("labels", "probabilities")
    stolen = [f"{means[f'stealing {name}']:.1f} ({means[f'gain {name}']:+.1f})" for name in both]
    informed = [f"{means[f'informed {name}']:.1f}" for name in both]
    price = "0" if is_free else f"{epsilon:g}"
    figures = (f"{means['accuracy']:.1f}", " / ".join(stolen), " / ".join(informed))
    return (dataset, target, price, *figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["facebook100/Cornell5"])
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--noise", default="safe", choices=["safe", "fast"])
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 100 on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    generated.add_option(parser)
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("delta", "noise", "device")}
    cells = [
        (dataset, target, epsilon)
        for dataset in arguments.datasets
        for target in arguments.targets
        for epsilon in arguments.epsilons
        if target != "edge, vote" or epsilon == arguments.epsilons[0]
    ]
    seeds = range(100, 100 + arguments.seeds)
    jobs = [(*cell, seed, options) for cell in cells for seed in seeds]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(measured, jobs))
    rows = [
        row(*cell, found[place * len(seeds) : (place + 1) * len(seeds)])
        for place, cell in enumerate(cells)
    ]
    columns = ["data set", "level, reads", "epsilon", "accuracy"]
    columns += ["link stealing: labels / probabilities", "informed: labels / probabilities"]
    body = generated.table(columns, rows)
    print(body)
    title = "Links from published predictions: AUC in percent (gain over the control in points)"
    generated.write(arguments.markdown, title, body, device=arguments.device)


if __name__ == "__main__":
    main()
