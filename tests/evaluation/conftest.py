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
TOPS = {"gap": 0.82, "label-gap": 0.9, "node-label-gap": 0.9, "sage": 0.84, "mlp": 0.51}
EDGE = ("gap", "label-gap", "sage")
NODE = ("gap", "node-label-gap", "sage", "mlp")


def record_of(**changes: Any) -> Record:
    """Return one result; what is not given is that of GAP at edge level, epsilon 1."""
    values: dict[str, Any] = {
        "experiment": "accuracy",
        "dataset": "social",
        "fingerprint": "f1" * 32,
        "method": "gap",
        "level": "edge",
        "relation": "undirected",
        "epsilon": 1.0,
        "delta": 1e-6,
        "parameters": {},
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
                "ranking": None,
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
    wanted = ("hops", "edge", "social")
    store(folder, [one for one in made_up if (one.experiment, one.level, one.dataset) == wanted])
    return folder


def store(folder: Path, records: list[Record]) -> None:
    lines = "".join(record.to_json() + "\n" for record in records)
    (folder / FILE).write_text(lines)


def _curve(method: str, epsilon: float | None, scale: float) -> float:
    """Return an accuracy that rises with epsilon, as real ones do."""
    top = TOPS[method]
    if not epsilon:
        return top
    strength = 0.2 if method == "sage" else 1.0
    return 0.4 + (top - 0.4) * (1 - math.exp(-((strength * epsilon / scale) ** 0.7)))


def _runs(seed: str, mean: float, repeats: int = 10) -> tuple[float, ...]:
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
    return tuple(float(x) for x in np.clip(rng.normal(mean, 0.008, repeats), 0, 1).round(5))


def _row(
    experiment: str, dataset: str, method: str, level: str, epsilon: float | None, **changes: Any
) -> Record:
    relation = {"none": "none", "edge": "undirected", "node": "add-remove"}[level]
    parameters = changes.pop("parameters", {})
    mean = changes.pop("mean", _curve(method, epsilon, 1.0 if level == "edge" else 6.0))
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
    runs = _runs(f"{experiment} {dataset} {method} {level} {epsilon} {parameters}", mean)
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
        command=f"gapgnn train {method} --dataset {dataset} --level {level}{budget} --repeats 10",
        **changes,
    )


def _accuracy(dataset: str) -> list[Record]:
    unprotected = [_row("accuracy", dataset, m, "none", None) for m in ("gap", "sage")]
    edge = [_row("accuracy", dataset, m, "edge", 4.0) for m in EDGE]
    mlp = [_row("accuracy", dataset, "mlp", "edge", 0.0)]
    return unprotected + edge + mlp + [_row("accuracy", dataset, m, "node", 8.0) for m in NODE]


def _tradeoff(dataset: str) -> list[Record]:
    low, high = (0.1, 0.2, 0.5, 1.0, 2.0, 4, 8), (1.0, 2.0, 4.0, 8.0, 16.0)
    edge = [_row("tradeoff", dataset, m, "edge", e) for m in EDGE for e in low]
    node = [_row("tradeoff", dataset, m, "node", e) for m in NODE for e in high]
    ends = [_row("tradeoff", dataset, "gap", "none", None)]
    return [*edge, *node, *ends, _row("tradeoff", dataset, "mlp", "edge", 0.0)]


def _ablations(dataset: str) -> list[Record]:
    rows = []
    for level, budgets in (("edge", (1.0, 4.0)), ("node", (8.0, 16.0))):
        for epsilon in budgets:
            top = _curve("gap", epsilon, 2.0)
            for layers in (0, 2):
                change = {
                    "parameters": {"encoder_layers": layers},
                    "mean": top - 0.1 * (2 - layers),
                }
                rows.append(_row("encoder", dataset, "gap", level, epsilon, **change))
            for hops in range(1, 6):
                change = {"parameters": {"hops": hops}, "mean": top - 0.01 * (hops - 3) ** 2}
                rows.append(_row("hops", dataset, "gap", level, epsilon, **change))
    for epsilon in (4.0, 16.0):
        for bound in (10, 20, 50, 100, 200, 400):
            mean = _curve("gap", epsilon, 2.0) - 0.05 * abs(math.log10(bound / 100))
            change = {"parameters": {"max_degree": bound}, "mean": mean}
            rows.append(_row("degree", dataset, "gap", "node", epsilon, **change))
    return rows


def _membership(dataset: str) -> list[Record]:
    rows = []
    for method in ("gap", "sage", "mlp"):
        for epsilon in (1.0, 2.0, 4.0, 8.0, 16.0):
            change = {"metric": "auc", "mean": 0.5 + 0.002 * epsilon}
            rows.append(_row("membership", dataset, method, "node", epsilon, **change))
    unprotected = {"metric": "auc", "mean": 0.81}
    return [*rows, _row("membership", dataset, "gap", "none", None, **unprotected)]
