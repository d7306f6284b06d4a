"""The grids are the paper's, and what somebody asks for is either run or refused by name."""

from __future__ import annotations

import pytest

from gapgnn.errors import InputError
from gapgnn.evaluation.grid.plans import EXPERIMENTS, METHODS, candidates, plan
from gapgnn.evaluation.report.tables import published

PAPERS = {"GAP-inf", "SAGE-inf", "GAP-EDP", "SAGE-EDP", "MLP", "GAP-NDP", "SAGE-NDP", "MLP-DP"}


def test_accuracy_has_the_papers_eight_rows_and_ours() -> None:
    rows = {row.method: row for row in plan("accuracy")}
    assert set(rows) == set(METHODS)
    labels = {"GAP-inf labels", "GAP-EDP labels", "GAP-NDP labels"}
    own = {"GAP-NDP own nothing", "GAP-NDP own record", "Vote", "Vote-NDP"}
    assert set(METHODS) - PAPERS == labels | own
    assert rows["GAP-inf"].epsilon is None
    assert rows["MLP"].epsilon == rows["Vote"].epsilon == 0.0
    assert rows["Vote-NDP"].epsilon == rows["GAP-NDP own record"].epsilon == 8.0
    assert rows["GAP-NDP own nothing"].parameters == {"messages": "labels", "own": "nothing"}
    assert {rows[name].epsilon for name in ("GAP-EDP", "SAGE-EDP", "GAP-EDP labels")} == {4.0}
    assert {rows[name].epsilon for name in ("GAP-NDP", "SAGE-NDP", "MLP-DP")} == {8.0}
    assert rows["GAP-EDP"].parameters == {"messages": "features"}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_configuration_makes_an_estimator_that_can_work(experiment: str) -> None:
    from gapgnn.methods.registry import method_class

    for row in plan(experiment):
        method_class(row.estimator)(**row.constructor()).check()
        for one in candidates(row):
            method_class(one.estimator)(**one.constructor()).check()


def test_the_ablations_vary_what_the_paper_varies() -> None:
    def grid(experiment: str, name: str) -> dict[str, dict[float, list[int]]]:
        found: dict[str, dict[float, list[int]]] = {}
        for row in plan(experiment):
            found.setdefault(row.method, {}).setdefault(row.epsilon or 0, []).append(
                row.parameters[name]
            )
        return found

    hops = [1, 2, 3, 4, 5]
    assert grid("hops", "hops") == {
        "GAP-EDP": {1.0: hops, 4.0: hops},
        "GAP-NDP": {8.0: hops, 16.0: hops},
    }
    degrees = [10, 20, 50, 100, 200, 300, 400]
    assert grid("degree", "max_degree") == {"GAP-NDP": {4.0: degrees, 16.0: degrees}}
    encoder = grid("encoder", "encoder_layers")
    assert all(layers == [2, 0] for by in encoder.values() for layers in by.values())
    assert list(encoder["GAP-EDP"]) == [0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert list(encoder["GAP-NDP"]) == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_relation_reaches_the_rows_of_its_own_level_only() -> None:
    relations = {row.method: row.relation for row in plan("accuracy", relation="directed")}
    assert relations["GAP-EDP"] == relations["SAGE-EDP"] == relations["MLP"] == "directed"
    assert relations["GAP-NDP"] == relations["GAP-inf"] == "auto"


def test_the_attack_is_on_wide_models_and_the_mlp_without_privacy() -> None:
    rows = plan("membership", attack_on=("target", "shadow"))
    assert {row.parameters["hidden"] for row in rows} == {64}
    assert [row.attack for row in rows if row.method == "MLP"] == [
        {"on": "target"},
        {"on": "shadow"},
    ]
    assert {(row.level, row.epsilon) for row in rows if row.method == "MLP"} == {("none", None)}


@pytest.mark.parametrize("name", ["gap-edp labels", "GAP-EDP-labels", "gap_edp_labels"])
def test_a_label_may_be_written_without_its_space(name: str) -> None:
    assert [row.method for row in plan("accuracy", methods=[name, name])] == ["GAP-EDP labels"]


@pytest.mark.parametrize(
    ("experiment", "options", "complaint"),
    [
        ("acuracy", {}, "Did you mean 'accuracy'?"),
        ("accuracy", {"methods": ["GAP-EPD"]}, "Did you mean 'GAP-EDP'?"),
        ("accuracy", {"methods": ["sage-ndq"]}, "Did you mean 'SAGE-NDP'?"),
        ("degree", {"methods": ["GAP-EDP"]}, "`methods` of degree must be among GAP-NDP"),
        ("accuracy", {"epsilons": [-1.0]}, "`epsilons` must be positive. Got -1.0."),
        ("accuracy", {"epsilons": [float("inf")]}, "`epsilons` must be finite"),
        ("membership", {"attack_on": ["targte"]}, "Did you mean 'target'?"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(
    experiment: str, options: dict, complaint: str
) -> None:
    with pytest.raises(InputError) as error:
        plan(experiment, **options)
    assert complaint in str(error.value)


def test_a_selection_tries_what_the_paper_tries_and_keeps_what_the_row_fixes() -> None:
    rows = {row.method: row for row in plan("accuracy")}
    assert len(candidates(rows["GAP-NDP"])) == 5 * 4
    assert [one.parameters["layers"] for one in candidates(rows["SAGE-EDP"])] == [1, 2, 3, 4, 5]
    assert [one.parameters["max_degree"] for one in candidates(rows["SAGE-NDP"])] == [
        100,
        200,
        300,
        400,
    ]
    assert candidates(rows["MLP"]) == [rows["MLP"]]
    two_hops = plan("hops", methods=["GAP-EDP"], epsilons=[1])[1]
    assert candidates(two_hops) == [two_hops]


def test_published_figures_are_found_by_the_rows_of_our_tables() -> None:
    for row in plan("accuracy"):
        figure = published("amazon", row.method, row.epsilon)
        assert (figure is None) == (row.method not in PAPERS)
    for row in plan("membership"):
        assert published("reddit", row.method, row.epsilon, experiment="membership") is not None
