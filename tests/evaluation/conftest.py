"""Made-up results for the tests of tables, figures and report: shapes are real, numbers are not."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn.evaluation.grid.records import FILE, Record
from gapgnn.evaluation.report.page import render

CREATED = "2026-11-15T08:00:00+00:00"
TOPS = {"GAP": 0.82, "SAGE": 0.84, "MLP": 0.51}
EDGE = ("GAP-EDP", "GAP-EDP labels", "SAGE-EDP")
NODE = ("GAP-NDP", "GAP-NDP labels", "SAGE-NDP", "MLP-DP")


def record_of(**changes: Any) -> Record:
    """Return one result; what is not given is that of GAP-EDP at epsilon 1."""
    values: dict[str, Any] = {
        "experiment": "accuracy",
        "dataset": "social",
        "fingerprint": "f1" * 32,
        "method": "GAP-EDP",
        "level": "edge",
        "relation": "undirected",
        "epsilon": 1.0,
        "delta": 1e-6,
        "parameters": {"messages": "features"},
        "metric": "test_accuracy",
        "runs": (0.70, 0.72, 0.74),
        "seconds": 3.0,
        "noise_multiplier": 5.9,
        "events": (
            {"event": "Gaussian", "noise_multiplier": 5.9, "count": 2, "label": "aggregation"},
        ),
        "guarantee": "Anyone who sees this model learns almost the same: made up for a test.",
        "command": "gapgnn train gap --level edge --epsilon 1 --repeats 3",
        "version": "0.1.0+abc",
        "created": CREATED,
        "machine": "cpu, made up for a test",
    }
    values |= changes
    if "key" not in values:
        values["key"] = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
    return Record(**values)


def measured(runs: tuple[float, ...], *, majority: float = 0.4, auc: float = 0.9) -> dict[str, Any]:
    """Return what a record has beside accuracies: the same for every repeat, but for accuracy."""
    half = {"recall": 0.5, "precision": 0.5, "support": 50}
    return {
        "metrics": [
            {
                "accuracy": run,
                "majority": majority,
                "balanced_accuracy": run - 0.02,
                "macro_f1": run - 0.03,
                "auc": auc,
                "calibration_error": 0.05,
                "per_class": {"one": half, "other": half},
            }
            for run in runs
        ],
        "headline": "accuracy",
    }


@pytest.fixture
def make_measured() -> Callable[..., Record]:
    """Return a maker of single results that have more than accuracies."""

    def made(*, headline: str = "accuracy", **changes: Any) -> Record:
        figures = {name: changes.pop(name) for name in ("majority", "auc") if name in changes}
        runs = changes.setdefault("runs", (0.70, 0.72, 0.74))
        extra = {**measured(runs, **figures), "headline": headline}
        return record_of(**{**changes, "extra": extra})

    return made


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Return a maker of single results."""
    return record_of


@pytest.fixture
def made_up() -> list[Record]:
    """Return results of every experiment on two data sets."""
    return every_result()


@pytest.fixture(scope="module")
def rendered() -> str:
    """Return the page of those results."""
    return render(every_result())


def every_result() -> list[Record]:
    return [
        record
        for dataset in ("social", "facebook100/UIllinois20")
        for record in (
            *_accuracy(dataset),
            *_tradeoff(dataset),
            *_ablations(dataset),
            *_membership(dataset),
        )
    ]


@pytest.fixture
def results(tmp_path: Path, made_up: list[Record]) -> Path:
    """Return a folder that holds them."""
    folder = tmp_path / "results"
    folder.mkdir()
    store(folder, made_up)
    return folder


@pytest.fixture
def few_results(tmp_path: Path, made_up: list[Record]) -> Path:
    """Return a folder that holds those of one experiment, method and data set."""
    folder = tmp_path / "results"
    folder.mkdir()
    wanted = ("hops", "GAP-EDP", "social")
    store(folder, [one for one in made_up if (one.experiment, one.method, one.dataset) == wanted])
    return folder


def store(folder: Path, records: list[Record]) -> None:
    lines = "".join(record.to_json() + "\n" for record in records)
    (folder / FILE).write_text(lines)


def _curve(method: str, epsilon: float | None, scale: float) -> float:
    """Return an accuracy that rises with epsilon, as real ones do."""
    top = TOPS[method.split("-")[0]] + (0.08 if "labels" in method else 0)
    if epsilon is None or method == "MLP":
        return top
    strength = 0.2 if "SAGE" in method else 1.0
    return 0.4 + (top - 0.4) * (1 - math.exp(-((strength * epsilon / scale) ** 0.7)))


def _runs(seed: str, mean: float, repeats: int = 10) -> tuple[float, ...]:
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
    return tuple(float(x) for x in np.clip(rng.normal(mean, 0.008, repeats), 0, 1).round(5))


def _row(
    experiment: str, dataset: str, method: str, epsilon: float | None, **changes: Any
) -> Record:
    level = "edge" if "EDP" in method or method == "MLP" else "none"
    level = "node" if method in NODE else level
    relation = {"none": "none", "edge": "undirected", "node": "add-remove"}[level]
    parameters = {"messages": "labels" if "labels" in method else "features"}
    parameters |= changes.pop("parameters", {})
    mean = changes.pop("mean", _curve(method, epsilon, 1.0 if level == "edge" else 6.0))
    name = method.split("-")[0].lower()
    budget = "" if epsilon is None else f" --epsilon {epsilon:g}"
    events: tuple[Any, ...] = ()
    if epsilon:
        multiplier = round(5.9 / epsilon, 4)
        events = (
            {"event": "Gaussian", "noise_multiplier": multiplier, "count": 2, "label": "hops"},
        )
        if level == "node":
            events += (
                {
                    "event": "PoissonGaussian",
                    "noise_multiplier": multiplier,
                    "sampling_rate": 0.03,
                    "steps": 292,
                    "label": "classifier",
                },
            )
    runs = _runs(f"{experiment} {dataset} {method} {epsilon} {parameters}", mean)
    if changes.get("metric", "test_accuracy") == "test_accuracy":
        changes.setdefault("extra", measured(runs))
    return record_of(
        experiment=experiment,
        dataset=dataset,
        method=method,
        level=level,
        relation=relation,
        epsilon=epsilon,
        delta=None if level == "none" else (1e-6 if level == "edge" else 1e-5),
        parameters=parameters,
        noise_multiplier=round(5.9 / epsilon, 4) if epsilon else None,
        events=events,
        runs=runs,
        command=f"gapgnn train {name} --dataset {dataset} --level {level}{budget} --repeats 10",
        **changes,
    )


def _accuracy(dataset: str) -> list[Record]:
    unprotected = [_row("accuracy", dataset, m, None) for m in ("GAP-inf", "SAGE-inf")]
    edge = [_row("accuracy", dataset, m, 4.0) for m in EDGE]
    mlp = [_row("accuracy", dataset, "MLP", 0.0)]
    return unprotected + edge + mlp + [_row("accuracy", dataset, m, 8.0) for m in NODE]


def _tradeoff(dataset: str) -> list[Record]:
    edge = [_row("tradeoff", dataset, m, e) for m in EDGE for e in (0.1, 0.2, 0.5, 1.0, 2.0, 4, 8)]
    node = [_row("tradeoff", dataset, m, e) for m in NODE for e in (1.0, 2.0, 4.0, 8.0, 16.0)]
    ends = [_row("tradeoff", dataset, m, None) for m in ("GAP-inf",)]
    return [*edge, *node, *ends, _row("tradeoff", dataset, "MLP", 0.0)]


def _ablations(dataset: str) -> list[Record]:
    rows = []
    for method, budgets in (("GAP-EDP", (1.0, 4.0)), ("GAP-NDP", (8.0, 16.0))):
        for epsilon in budgets:
            top = _curve(method, epsilon, 2.0)
            for layers in (0, 2):
                change = {
                    "parameters": {"encoder_layers": layers},
                    "mean": top - 0.1 * (2 - layers),
                }
                rows.append(_row("encoder", dataset, method, epsilon, **change))
            for hops in range(1, 6):
                change = {"parameters": {"hops": hops}, "mean": top - 0.01 * (hops - 3) ** 2}
                rows.append(_row("hops", dataset, method, epsilon, **change))
    for epsilon in (4.0, 16.0):
        for bound in (10, 20, 50, 100, 200, 400):
            mean = _curve("GAP-NDP", epsilon, 2.0) - 0.05 * abs(math.log10(bound / 100))
            change = {"parameters": {"max_degree": bound}, "mean": mean}
            rows.append(_row("degree", dataset, "GAP-NDP", epsilon, **change))
    return rows


def _membership(dataset: str) -> list[Record]:
    rows = []
    for method in ("GAP-NDP", "SAGE-NDP", "MLP-DP"):
        for epsilon in (1.0, 2.0, 4.0, 8.0, 16.0):
            change = {"metric": "auc", "mean": 0.5 + 0.002 * epsilon}
            rows.append(_row("membership", dataset, method, epsilon, **change))
    unprotected = {"metric": "auc", "mean": 0.81}
    return [*rows, _row("membership", dataset, "GAP-inf", None, **unprotected)]
