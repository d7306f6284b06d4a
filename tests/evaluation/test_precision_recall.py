"""Precision and recall in the report: what a risk desk reads, per two-class data set."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gapgnn.evaluation.grid.records import Record
from gapgnn.evaluation.report.figures import Chart
from gapgnn.evaluation.report.page import render
from gapgnn.evaluation.report.plots import Panel, Plot, plots
from gapgnn.evaluation.report.tables import Table, tables, to_csv
from gapgnn.training import CURVE_RECALLS, Metrics, measure

NODES, RARE = 200, 12
MADE = (
    ("gap", "none", "none", None, 5.0),
    ("gap", "edge", "undirected", 1.0, 1.0),
    ("gap", "edge", "undirected", 4.0, 2.0),
    ("sage", "edge", "undirected", 4.0, 1.0),
    ("mlp", "edge", "undirected", 0.0, 0.5),
    ("gap", "node", "add-remove", 8.0, 1.0),
)


def figures(strength: float, repeat: int, names: tuple[str, ...]) -> Metrics:
    """Return real figures of probabilities that separate the last class by `strength`."""
    rng = np.random.default_rng([repeat, int(10 * strength)])
    labels = np.zeros(NODES, dtype=np.int64)
    labels[:RARE] = len(names) - 1
    labels[RARE : RARE + len(names) - 2] = 1
    scores = rng.normal(size=NODES) + strength * (labels == len(names) - 1)
    rare = 1 / (1 + np.exp(2 - scores))
    rest = np.repeat((1 - rare)[:, None] / (len(names) - 1), len(names) - 1, axis=1)
    probabilities = np.concatenate([rest, rare[:, None]], axis=1)
    return measure(probabilities, probabilities.argmax(axis=1), labels, names, len(names) - 1)


@pytest.fixture
def make_ranked(make_record: Any) -> Callable[..., list[Record]]:
    def made(
        *names: str, experiment: str = "accuracy", dataset: str = "bank", **more: Any
    ) -> list[Record]:
        records = []
        for method, level, relation, epsilon, strength in MADE:
            found = [figures(strength, repeat, names) for repeat in range(3)]
            records.append(
                make_record(
                    experiment=experiment,
                    dataset=dataset,
                    method=method,
                    level=level,
                    relation=relation,
                    epsilon=epsilon,
                    runs=tuple(one.accuracy for one in found),
                    extra={"metrics": [one.to_dict() for one in found], **more},
                )
            )
        return records

    return made


@pytest.fixture
def bank(make_ranked: Any) -> list[Record]:
    return list(make_ranked("low", "high"))


def the_plot(records: list[Record]) -> Plot:
    return next(plot for plot in plots(records) if plot.name == "precision-recall")


def the_table(records: list[Record], name: str = "precision-recall") -> Table:
    return next(table for table in tables(records) if table.name == name)


def edge(records: list[Record]) -> Panel:
    return next(one for one in the_plot(records).panels if "edge level" in one.title)


def test_a_two_class_data_set_has_a_curve_per_method_and_guessing_at_the_share_of_the_class(
    bank: list[Record],
) -> None:
    titles = [panel.title for panel in the_plot(bank).panels]
    assert titles == [
        "bank, class high, no privacy",
        "bank, class high, edge level, ε = 4",
        "bank, class high, node level, ε = 8",
    ]
    panel = edge(bank)
    assert [line.label for line in panel.lines] == ["GAP", "GraphSAGE", "MLP"]
    record = next(r for r in bank if (r.method, r.epsilon) == ("gap", 4.0))
    values = panel.lines[0].values
    assert tuple(value.x for value in values) == CURVE_RECALLS
    assert [value.mean for value in values] == pytest.approx(
        np.mean([one.curve for one in record.rankings], axis=0)
    )
    assert all(value.low <= value.mean <= value.high for value in values)
    (guessing,) = panel.references
    assert (guessing.label, guessing.values[0].mean) == ("guessing", RARE / NODES)


def test_the_trade_off_shows_the_middle_budget_where_nothing_else_was_run(
    make_ranked: Any, bank: list[Record]
) -> None:
    rows = make_ranked("low", "high", experiment="tradeoff", dataset="shop")
    assert "shop, class high, edge level, ε = 4" in [p.title for p in the_plot(rows).panels]
    both = [*bank, *make_ranked("low", "high", experiment="tradeoff")]
    assert the_plot(both).panels == the_plot(bank).panels


def test_more_than_two_classes_and_results_without_rankings_have_none(
    make_ranked: Any, made_up: list[Record]
) -> None:
    for records in (make_ranked("low", "middle", "high"), made_up):
        assert "precision-recall" not in {plot.name for plot in plots(records)}
        assert not any(table.name.startswith("precision-recall") for table in tables(records))
        assert "Who is ranked first" not in render(records)


def test_the_table_has_average_precision_and_recall_precision_and_lift_of_the_tops(
    bank: list[Record],
) -> None:
    table = the_table(bank)
    assert table.columns == (
        "average precision",
        *(f"{name} in top 1 %" for name in ("recall", "precision", "lift")),
        *(f"{name} in top 5 %" for name in ("recall", "precision", "lift")),
    )
    record = next(r for r in bank if (r.method, r.epsilon) == ("gap", 4.0))
    row = next(r for r in table.rows if r.keys[0] == "GAP" and r.keys[-1] == "4")
    first, last = (
        [one.top[name] for one in record.rankings] for name in ("top_1_percent", "top_5_percent")
    )
    wanted = [
        np.mean([one.average_precision for one in record.rankings]),
        *(np.mean([getattr(one, name) for one in first]) for name in ("recall", "precision")),
        np.mean([one.lift for one in first]),
        *(np.mean([getattr(one, name) for one in last]) for name in ("recall", "precision")),
        np.mean([one.lift for one in last]),
    ]
    assert [cell.mean for cell in row.cells if cell] == pytest.approx(wanted)
    # A lift is a number of times, everything else in percent.
    assert row.cells[3] is not None
    assert row.cells[3].short == f"{wanted[3]:.1f}"
    guessing = table.rows[0]
    share = RARE / NODES
    assert guessing.keys[0] == "guessing"
    assert [cell.mean for cell in guessing.cells if cell] == pytest.approx(
        [share, 2 / NODES, share, 1, 10 / NODES, share, 1]
    )
    written = list(csv.DictReader(io.StringIO(to_csv(table))))
    lifts = [float(one["mean"]) for one in written if one["column"] == "lift in top 5 %"]
    assert lifts[0] == 1
    assert any("the curator only" in note for note in table.notes)


def test_the_page_has_the_curve_with_its_words_its_values_and_whose_eyes_it_is_for(
    bank: list[Record],
) -> None:
    page = render(bank)
    assert 'href="#ranking"' in page
    start = page.index('<section id="ranking"')
    section = page[start : page.index("</section>", start)]
    assert "average precision" in section
    chart = Chart(the_plot(bank), edge(bank))
    assert chart.summary.endswith("guessing 6.0.")
    assert "at recall 0.05 to" in chart.summary
    assert section.count('<svg viewBox="0 0 560') == 3
    assert "Values of this figure as a table" in section
    values = the_table(bank, "precision-recall-curve")
    assert [row.keys[0] for row in values.rows if "edge level" in row.block] == [
        "GAP",
        "GraphSAGE",
        "MLP",
    ]
    assert len(values.columns) == len(CURVE_RECALLS)
    assert "precision and recall of such rows are for the curator only" in " ".join(page.split())


def test_a_threshold_of_a_row_is_compared_with_guessing_as_many_nodes(make_record: Any) -> None:
    labels = np.array([0] * 900 + [1] * 100)
    answers = np.zeros(1000, dtype=int)
    answers[860:930] = 1
    found = measure(np.eye(2)[answers], answers, labels, ["low", "high"])
    some = {"extra": {"metrics": [found.to_dict()]}, "runs": (found.accuracy,)}
    assert "Not better than always answering" in render([make_record(**some)])
    for asked in ({"threshold": "rate"}, {"metric": "average_precision"}):
        assert "Not better than" not in render([make_record(**some, parameters=asked)])
