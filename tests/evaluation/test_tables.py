"""Tables say which method is best and how sure that is, and no name can break their format."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapgnn.evaluation.grid.records import Record
from gapgnn.evaluation.report.tables import (
    FORMATS,
    Cell,
    Row,
    Table,
    tables,
    to_csv,
    to_latex,
    to_markdown,
)

EXPECTED = [
    "accuracy",
    "tradeoff-edge",
    "tradeoff-node",
    "encoder-edge",
    "encoder-node",
    "hops",
    "degree",
    "membership",
]
CLEAR = tuple(0.80 + 0.001 * k for k in range(10))


def named(records: list[Record], name: str) -> Table:
    return next(table for table in tables(records) if table.name == name)


def cell(table: Table, method: str, column: str) -> Cell | None:
    row = next(row for row in table.rows if row.keys[0] == method)
    return row.cells[table.columns.index(column)]


def one_cell(name: str) -> Table:
    return Table(
        "t", "Title", "Text.", ("method",), (name,), (Row(name, (name,), (Cell(0.5),)),), ()
    )


def test_every_experiment_has_its_table(made_up: list[Record]) -> None:
    names = [table.name for table in tables(made_up) if not table.name.endswith("-metrics")]
    assert names == EXPECTED


def test_every_table_of_accuracies_has_one_of_what_stands_beside_them(
    made_up: list[Record],
) -> None:
    found = {table.name: table for table in tables(made_up) if table.name.endswith("-metrics")}
    assert list(found) == [f"{name}-metrics" for name in EXPECTED if name != "membership"]
    for table in found.values():
        assert table.columns == (
            "accuracy",
            "largest class",
            "balanced accuracy",
            "macro F1",
            "AUC",
        )
        assert table.rows
        assert all(one is not None for row in table.rows for one in row.cells)
    rows = found["hops-metrics"].rows
    assert ("GAP, K = 3", "", "", "4") in {row.keys for row in rows}


def test_the_figures_beside_accuracy_are_means_over_repeats(make_measured: Any) -> None:
    table = named([make_measured(majority=0.91, auc=0.58)], "accuracy-metrics")
    cells = table.rows[0].cells
    assert [one and one.short for one in cells] == ["72.0", "91.0", "70.0", "69.0", "58.0"]
    for write in (to_markdown, to_latex, to_csv):
        assert "balanced accuracy" in write(table)


def test_a_data_set_that_is_judged_by_auc_is_compared_by_it(make_measured: Any) -> None:
    def row(method: str, accuracy: float, auc: float) -> Record:
        runs = (accuracy,) * 6
        return make_measured(method=method, dataset="tolokers", headline="auc", runs=runs, auc=auc)

    rows = [row("gap", 0.80, 0.60), row("sage", 0.70, 0.75)]
    usual = make_measured()
    table = named([*rows, usual], "accuracy")
    assert table.columns == ("tolokers (AUC)", "social")
    assert "another figure" in table.caption
    better = cell(table, "GraphSAGE", "tolokers (AUC)")
    assert better is not None
    assert (better.short, better.is_best) == ("75.0", True)
    assert named(rows, "accuracy").caption.startswith("Test AUC in percent")
    # Whatever it is judged by, its accuracy is not lost.
    beside = named(rows, "accuracy-metrics")
    assert [row.cells[0] and row.cells[0].short for row in beside.rows] == ["80.0", "70.0"]


def test_accuracies_are_never_shown_where_others_are_auc(
    make_record: Any, make_measured: Any
) -> None:
    new = make_measured(dataset="tolokers", headline="auc", auc=0.75)
    old = make_record(method="sage", dataset="tolokers", runs=(0.99, 0.99))
    table = named([new, old], "accuracy")
    assert [row.keys[0] for row in table.rows] == ["GAP"]
    assert named([old], "accuracy").columns == ("tolokers",)


@pytest.mark.parametrize(("level", "relation"), [("node", "add-remove"), ("edge", "undirected")])
def test_tables_with_rows_at_node_level_say_that_they_are_the_curator_s(
    make_measured: Any, level: str, relation: str
) -> None:
    for table in tables([make_measured(level=level, relation=relation)]):
        says = any("for the curator only" in note for note in table.notes)
        assert says == (level == "node")


def test_the_accuracy_table_has_a_row_per_method_and_a_column_per_data_set(
    made_up: list[Record],
) -> None:
    table = named(made_up, "accuracy")
    assert len(table.rows) == 10
    assert table.columns[:2] == ("social", "facebook100/UIllinois20")
    best = cell(table, "LabelGAP", "social")
    assert best is not None
    assert re.fullmatch(r"\d\d\.\d \(\d\d\.\d to \d\d\.\d\)", best.text)


def test_published_numbers_stand_beside_the_paper_s_data_set_only(made_up: list[Record]) -> None:
    table = named(made_up, "accuracy")
    assert "facebook100/UIllinois20, published" in table.columns
    assert "social, published" not in table.columns
    found = cell(table, "GAP", "facebook100/UIllinois20, published")
    assert found is not None
    assert found.text == "76.3"
    assert cell(table, "LabelGAP", "facebook100/UIllinois20, published") is None


def rivals(make_record: Any, other: tuple[float, ...], **changes: Any) -> Table:
    first = make_record(method="label-gap", runs=CLEAR)
    second = make_record(method="gap", runs=other, **changes)
    return named([first, second], "accuracy")


def test_the_best_of_a_block_is_starred_when_every_pair_agrees(make_record: Any) -> None:
    table = rivals(make_record, tuple(run - 0.02 for run in CLEAR))
    best = cell(table, "LabelGAP", "social")
    assert best is not None
    assert best.is_best
    assert best.is_significant
    other = cell(table, "GAP", "social")
    assert other is not None
    assert not other.is_best


def test_a_lead_that_pairs_do_not_support_gets_no_star(make_record: Any) -> None:
    mixed = tuple(run + (0.02 if k % 2 else -0.0201) for k, run in enumerate(CLEAR))
    best = cell(rivals(make_record, mixed), "LabelGAP", "social")
    assert best is not None
    assert best.is_best
    assert not best.is_significant


@pytest.mark.parametrize("change", [{"seed": 1}, {"runs": (0.1,) * 9}])
def test_repeats_that_do_not_pair_are_never_called_significant(
    make_record: Any, change: dict[str, Any]
) -> None:
    runs = change.get("runs", tuple(run - 0.02 for run in CLEAR))
    rest = {name: value for name, value in change.items() if name != "runs"}
    best = cell(rivals(make_record, runs, **rest), "LabelGAP", "social")
    assert best is not None
    assert not best.is_significant


def test_methods_of_other_levels_relations_and_budgets_do_not_compete(make_record: Any) -> None:
    changes = [
        {"level": "node", "relation": "add-remove"},
        {"relation": "directed"},
        {"epsilon": 8.0},
    ]
    for change in changes:
        table = rivals(make_record, (0.1,) * 10, **change)
        assert not any(one.is_best for row in table.rows for one in row.cells if one)


def test_methods_that_read_no_edges_compete_at_every_budget(make_record: Any) -> None:
    rows = [
        make_record(method="mlp", epsilon=0.0, events=(), runs=(0.9,) * 10),
        make_record(method="gap", epsilon=0.1, runs=(0.5,) * 10),
    ]
    best = cell(named(rows, "accuracy"), "MLP", "social")
    assert best is not None
    assert best.is_significant


def test_selection_on_validation_is_said_to_be_outside_epsilon(make_record: Any) -> None:
    table = named([make_record(select="validation")], "accuracy")
    assert "not covered by epsilon" in " ".join(table.notes)
    assert table.rows[0].keys[0] == "GAP, selected"


def test_the_attack_on_the_shadow_model_is_not_mixed_with_the_target_s(make_record: Any) -> None:
    rows = [
        make_record(experiment="membership", metric="auc", extra={"attack": {"on": on}})
        for on in ("target", "shadow")
    ]
    labels = [row.keys[0] for row in named(rows, "membership").rows]
    assert labels == ["GAP", "GAP, shadow model"]


@given(st.text(min_size=1))
def test_any_name_stays_one_markdown_cell(name: str) -> None:
    lines = to_markdown(one_cell(name)).splitlines()
    assert len(lines) == 5
    for line in lines[2:]:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 4


@given(st.text(min_size=1))
def test_any_name_stays_one_latex_cell(name: str) -> None:
    row = next(line for line in to_latex(one_cell(name)).splitlines() if line.endswith(r"50.0 \\"))
    bare = re.sub(r"\\text(backslash|ascii\w+|less|greater)\{\}|\\[&%$#_{}]", "", row[:-2])
    bare = bare.replace(r"$\varepsilon$", "").replace(r"$\infty$", "")
    assert bare.count("&") == 2
    assert not set(bare) & set("\\%$#_{}~^")


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_any_name_survives_csv_and_is_no_formula(name: str) -> None:
    rows = list(csv.reader(io.StringIO(to_csv(one_cell(name)), newline="")))
    plain = " ".join(name.split()).replace("∞", "inf").replace("ε", "epsilon")
    assert len(rows) == 2
    assert rows[1][0] in (plain, f"'{plain}")
    assert not rows[1][0].startswith(("=", "+", "-", "@"))


def test_csv_keeps_fractions_and_repeats(made_up: list[Record]) -> None:
    table = named(made_up, "accuracy")
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    best = next(r for r in rows if r["method"] == "LabelGAP" and r["column"] == "social")
    assert 0.8 < float(best["ci95_low"]) <= float(best["mean"]) <= float(best["ci95_high"]) < 0.95
    assert (best["repeats"], best["best"], best["epsilon"]) == ("10", "1", "4")


def own_rows(make_record: Any) -> list[Any]:
    """Return rows of every guarantee: public ones, own neighbours read, at either level."""
    node = {"level": "node", "relation": "add-remove", "epsilon": 8.0}
    joint = {"own": "record", "notion": "own record"}
    return [
        make_record(method="gap", epsilon=4.0, runs=(0.7, 0.71)),
        make_record(method="mlp", epsilon=0.0, runs=(0.5, 0.51)),
        make_record(method="vote", epsilon=0.0, runs=(0.9, 0.91), extra={"own": "record"}),
        make_record(method="gap", runs=(0.6, 0.61), **node, extra={"notion": "strict"}),
        make_record(method="mlp", runs=(0.5, 0.51), **node),
        make_record(
            method="node-label-gap own nothing",
            runs=(0.5, 0.52),
            **node,
            extra={"own": "nothing", "notion": "own record"},
        ),
        make_record(method="node-label-gap own record", runs=(0.8, 0.81), **node, extra=joint),
        make_record(method="vote", runs=(0.85, 0.86), **node, extra=joint),
    ]


def test_own_and_notion_stand_beside_every_node_level_figure(make_record: Any) -> None:
    table = named(own_rows(make_record), "accuracy")
    assert table.keys == ("method", "own", "notion", "ε")
    assert {(row.block[:4], row.keys[0]): row.keys[1:3] for row in table.rows} == {
        ("edge", "GAP"): ("", ""),
        ("edge", "MLP"): ("", ""),
        ("edge", "NeighborVote"): ("record", ""),
        ("node", "GAP"): ("features", "strict"),
        ("node", "MLP"): ("features", "strict"),
        ("node", "NodeLabelGAP own nothing"): ("nothing", "own record"),
        ("node", "NodeLabelGAP own record"): ("record", "own record"),
        ("node", "NeighborVote"): ("record", "own record"),
    }
    for write in FORMATS.values():
        assert "own record" in write(table)


def test_rows_that_read_own_neighbours_are_ranked_in_their_own_block(make_record: Any) -> None:
    table = named(own_rows(make_record), "accuracy")
    rows = {(row.block[:4], row.keys[0]): row for row in table.rows}
    best = {name for name, row in rows.items() if any(one and one.is_best for one in row.cells)}
    assert best == {("edge", "GAP"), ("node", "GAP"), ("node", "NeighborVote")}
    blocks = {name: row.block for (level, name), row in rows.items() if level == "node"}
    assert blocks["NeighborVote"] == blocks["NodeLabelGAP own record"]
    assert blocks["NeighborVote"] == "node-level privacy, add-remove, own neighbours read (joint)"
    assert blocks["NodeLabelGAP own nothing"] == blocks["MLP"] == "node-level privacy, add-remove"
    assert any("joint differential privacy" in note for note in table.notes)
    plain = named([row for row in own_rows(make_record) if row.level == "edge"][:2], "accuracy")
    assert plain.keys == ("method", "ε")
    assert not any("joint" in note for note in plain.notes)


def test_a_school_without_a_published_figure_is_named_with_the_papers_facebook(
    make_record: Any,
) -> None:
    def notes(name: str) -> str:
        (table,) = tables([make_record(dataset=name)])[:1]
        return " ".join(table.notes)

    said = "the papers' Facebook is facebook100/UIllinois20"
    assert f"Cornell5 has no published figure: {said}" in notes("facebook100/Cornell5")
    assert said not in notes("facebook100/UIllinois20")
    assert said not in notes("social")
