"""What all programs here share: the graph folder, the exact Gaussian curve, the output."""

import json
import math
import sys
from pathlib import Path

import numpy as np


def read() -> tuple[dict, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the facts, the adjacency, features of norm 1, labels and who trains."""
    folder = Path(sys.argv[1])
    facts = json.loads((folder / "graph.json").read_text())
    lines = (folder / "edges.csv").read_text().splitlines()[1:]
    adjacency = np.zeros((facts["nodes"], facts["nodes"]))
    for line in lines:
        source, target = map(int, line.split(","))
        adjacency[source, target] = 1
        if not facts["directed"]:
            adjacency[target, source] = 1
    features = np.load(folder / "features.npy").astype(np.float64)
    labels, train = np.load(folder / "labels.npy"), np.load(folder / "train.npy")
    return facts, adjacency, unit(features), labels, train


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows of norm 1; zero rows stay zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def noise(shape: tuple[int, ...], std: float) -> np.ndarray:
    """Return fresh Gaussian noise."""
    return np.random.default_rng().normal(scale=std, size=shape)


def delta_of(mu: float, epsilon: float) -> float:
    """Return the delta of a Gaussian mechanism of shift mu."""

    def cdf(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the shift that a budget allows."""
    low, high = 1e-6, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, epsilon) < delta else (low, middle)
    return low


def write(arrays: list[np.ndarray], *, relation: str, epsilon: float, delta: float) -> None:
    """Write what is released and what is claimed."""
    folder = Path(sys.argv[2])
    for place, array in enumerate(arrays, start=1):
        np.save(folder / f"released-{place}.npy", array)
    claim = {"epsilon": epsilon, "delta": delta, "relation": relation}
    (folder / "claim.json").write_text(json.dumps(claim))
