"""A grid runs what is missing, once, records it at once, and says what its figures cost."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from methodgraphs import small_graph

from gapgnn import Ledger
from gapgnn.cli.main import main
from gapgnn.errors import DataError, InputError
from gapgnn.evaluation.grid import runner
from gapgnn.evaluation.grid.plans import Configuration, plan
from gapgnn.evaluation.grid.records import CANDIDATE, Record, Store, load
from gapgnn.evaluation.grid.runner import Failure, Row, estimate, missing_tasks, run_grid
from gapgnn.evaluation.grid.tasks import Source, Task, open_graph, perform
from gapgnn.graph.graph import Graph
from gapgnn.training import METRICS, Metrics

pytestmark = pytest.mark.gate


def opened(seed: int, *, num_nodes: int = 120) -> Graph:
    return small_graph(num_nodes=num_nodes, seed=seed)


SOURCE = Source("tiny", ("--dataset", "tiny"), opened)


def a_task(configuration: Configuration, **changes: Any) -> Task:
    graph = open_graph(SOURCE, 0)
    options: dict[str, Any] = {
        "source": SOURCE,
        "fingerprint": graph.fingerprint,
        "arcs": graph.num_arcs,
        "version": "test",
        "repeats": 2,
    }
    return Task(configuration=configuration, **{**options, **changes})


def tasks_of(experiment: str, **options: Any) -> list[Task]:
    return [a_task(configuration) for configuration in plan(experiment, **options)]


def rows_of(experiment: str, select: str = "fixed", **options: Any) -> list[Row]:
    return [Row(task, select) for task in tasks_of(experiment, **options)]


def made_up(task: Task, *, attack: Any = None) -> Record:
    """Return a result without training; more hops look better on validation and worse on test."""
    hops = task.configuration.parameters.get("hops", 2)
    hops = 2 if hops == "auto" else hops
    return Record(
        key=task.key,
        experiment=task.configuration.experiment,
        dataset=task.source.name,
        fingerprint=task.fingerprint,
        method=task.configuration.method,
        level=task.configuration.level,
        relation="none",
        epsilon=task.configuration.epsilon,
        delta=None,
        parameters=dict(task.configuration.parameters),
        metric=task.configuration.metric,
        runs=(1 - hops / 10,) * task.repeats,
        seconds=2.0 * task.repeats,
        noise_multiplier=None,
        events=(),
        guarantee="",
        command=task.command,
        version=task.version,
        created="2026-11-15T10:00:00+00:00",
        machine="test",
        extra={"validation_runs": [hops / 10] * task.repeats},
    )


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make results up instead of training, and collect the keys of what ran."""
    ran: list[str] = []

    def count(task: Task, *, attack: Any = None) -> Record:
        ran.append(task.key)
        return made_up(task)

    monkeypatch.setattr(runner, "perform", count)
    return ran


class TestGrid:
    def test_a_second_call_runs_nothing_and_a_wider_one_only_the_rest(
        self, tmp_path: Path, performed: list[str]
    ) -> None:
        first = run_grid(rows_of("tradeoff", methods=["gap"], levels=["edge"]), Store(tmp_path))
        assert (first.planned, first.found, first.ran) == (7, 0, 7)
        again = run_grid(rows_of("tradeoff", methods=["gap"], levels=["edge"]), Store(tmp_path))
        assert (again.found, again.ran) == (7, 0)
        more = run_grid(
            rows_of("tradeoff", methods=["gap", "mlp"], levels=["edge"]), Store(tmp_path)
        )
        assert (more.found, more.ran) == (7, 1)
        assert len(performed) == len(set(performed)) == 8

    def test_experiments_that_share_a_configuration_run_it_once_and_both_have_it(
        self, tmp_path: Path, performed: list[str]
    ) -> None:
        rows = rows_of("accuracy") + rows_of("tradeoff") + rows_of("degree")
        run_grid(rows, Store(tmp_path))
        assert len(performed) == len(set(performed)) < len(rows)
        found = load(tmp_path)
        assert len(found) == len(rows)
        degree = {
            (record.epsilon, record.parameters["max_degree"])
            for record in found
            if record.experiment == "degree"
        }
        assert degree == {(e, d) for e in (4, 16) for d in (10, 20, 50, 100, 200, 300, 400)}

    def test_every_result_is_in_the_store_before_the_next_task_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []

        def recorded(task: Task, *, attack: Any = None) -> Record:
            seen.append(len(Store(tmp_path).records()))
            return made_up(task)

        monkeypatch.setattr(runner, "perform", recorded)
        run_grid(rows_of("hops", methods=["gap"], levels=["edge"], epsilons=[1]), Store(tmp_path))
        assert seen == [0, 1, 2, 3, 4]

    def test_a_task_that_cannot_be_done_does_not_stop_the_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(task: Task, *, attack: Any = None) -> Record:
            configuration = task.configuration
            if (configuration.method, configuration.level) == ("sage", "edge"):
                raise DataError("a class\nis too small.")
            return made_up(task)

        monkeypatch.setattr(runner, "perform", fail)
        summary = run_grid(rows_of("accuracy"), Store(tmp_path))
        assert summary.ran == 17
        assert [message for _, message in summary.failures] == ["a class is too small."]
        assert len(load(tmp_path)) == 17

    def test_ctrl_c_keeps_what_is_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = iter(range(100))

        def interrupted(task: Task, *, attack: Any = None) -> Record:
            if next(calls) == 3:
                raise KeyboardInterrupt
            return made_up(task)

        monkeypatch.setattr(runner, "perform", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_grid(rows_of("accuracy"), Store(tmp_path))
        assert len(load(tmp_path)) == 3
        assert run_grid(rows_of("accuracy"), Store(tmp_path)).found == 3

    def test_a_watcher_is_called_for_every_run(self, tmp_path: Path, performed: list[str]) -> None:
        class Watcher:
            def __init__(self) -> None:
                self.planned: list[str] = []
                self.finished: list[str] = []

            def start(self, tasks: Sequence[Task]) -> None:
                self.planned = [task.key for task in tasks]

            def done(self, task: Task, result: Record | Failure) -> None:
                self.finished.append(task.key)

        watcher = Watcher()
        run_grid(rows_of("accuracy"), Store(tmp_path), watcher=watcher)
        assert watcher.planned == watcher.finished == performed


class TestSelection:
    def test_the_best_on_validation_is_kept_not_the_best_on_test(
        self, tmp_path: Path, performed: list[str]
    ) -> None:
        run_grid(
            rows_of("accuracy", "validation", methods=["gap"], levels=["edge"]), Store(tmp_path)
        )
        (record,) = load(tmp_path)
        assert record.parameters["hops"] == 5
        assert record.select == "validation"
        assert record.runs == (0.5, 0.5)
        assert [one["validation_accuracy"] for one in record.extra["candidates"]] == [
            pytest.approx(hops / 10) for hops in (1, 2, 3, 4, 5)
        ]
        assert record.seconds == 5 * 4.0
        assert "--hops 5" in record.command

    def test_a_killed_selection_goes_on_with_the_missing_candidates(
        self, tmp_path: Path, performed: list[str]
    ) -> None:
        rows = rows_of("accuracy", "validation", methods=["gap"], levels=["node"])
        done = [replace(made_up(part), experiment=CANDIDATE) for part in rows[0].parts[:17]]
        for record in done:
            Store(tmp_path).append(record)
        summary = run_grid(rows, Store(tmp_path))
        assert (summary.found, summary.ran) == (0, 3)
        assert len(load(tmp_path)) == 1
        assert run_grid(rows, Store(tmp_path)).found == 1
        assert len(performed) == 3

    def test_an_ablation_serves_as_candidates(self, tmp_path: Path, performed: list[str]) -> None:
        run_grid(rows_of("hops", methods=["gap"], levels=["edge"], epsilons=[4]), Store(tmp_path))
        rows = rows_of("accuracy", "validation", methods=["gap"], levels=["edge"])
        assert missing_tasks(rows, Store(tmp_path).records()) == []
        assert run_grid(rows, Store(tmp_path)).ran == 0
        assert {record.experiment for record in load(tmp_path)} == {"hops", "accuracy"}

    def test_an_attack_has_nothing_to_choose_by(self) -> None:
        with pytest.raises(InputError, match="`select` must be fixed for the experiment"):
            rows_of("membership", "validation")
        with pytest.raises(InputError, match="Did you mean 'validation'"):
            rows_of("accuracy", "validaton")


class TestKey:
    def test_everything_that_decides_the_figures_is_in_the_key(self) -> None:
        (configuration,) = plan("accuracy", methods=["gap"], levels=["edge"])
        task = a_task(configuration)
        others = [
            replace(task, seed=1),
            replace(task, repeats=3),
            replace(task, noise="safe"),
            replace(task, fingerprint="other"),
            replace(task, version="other"),
            task.with_configuration(replace(configuration, epsilon=1.0)),
            task.with_configuration(replace(configuration, relation="directed")),
            task.with_configuration(replace(configuration, parameters={"hops": 1})),
            task.with_configuration(replace(configuration, attack={"on": "target"})),
        ]
        assert len({task.key, *(other.key for other in others)}) == len(others) + 1

    def test_what_does_not_decide_them_is_not(self) -> None:
        (configuration,) = plan("accuracy", methods=["gap"], levels=["edge"])
        task = a_task(configuration)
        same = [
            replace(task, device="cpu"),
            replace(task, log_folder="logs"),
            task.with_configuration(replace(configuration, experiment="tradeoff")),
            task.with_configuration(replace(configuration, parameters={"encoder_layers": 2})),
        ]
        assert {task.key} == {other.key for other in same}


class TestPerform:
    @pytest.mark.parametrize(("method", "level"), [("mlp", "edge"), ("gap", "none")])
    def test_the_command_of_a_record_makes_its_figures(
        self,
        method: str,
        level: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from gapgnn.graph.datasets import load as datasets

        monkeypatch.setattr(
            datasets, "load_dataset", lambda name, *, split_seed, progress: opened(split_seed)
        )
        (configuration,) = plan("accuracy", methods=[method], levels=[level])
        record = perform(a_task(configuration))
        words = shlex.split(record.command)
        assert words[0] == "gapgnn"
        assert main(words[1:]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["test_accuracy"]["runs"] == list(record.runs)
        assert (printed["level"], printed["relation"]) == (record.level, record.relation)

    def test_a_private_row_says_what_it_costs_and_charges_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = Ledger.init(tmp_path / "ledger.sqlite")
        monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
        (configuration,) = plan("accuracy", methods=["gap"], levels=["edge"])
        record = perform(a_task(configuration, log_folder=str(tmp_path / "logs")))
        assert record.epsilon == 4.0
        assert 0.99 * 4 < record.extra["accounted_epsilon"] <= 4.0
        assert record.relation == "undirected"
        assert record.noise_multiplier is not None
        assert [dict(event)["count"] for event in record.events] == [2]  # type: ignore[call-overload]
        assert record.guarantee.startswith("Not a private release, because fast float32 noise")
        assert len(record.runs) == len(record.extra["validation_runs"]) == 2
        assert ledger.entries() == []
        assert [path.suffix for path in (tmp_path / "logs").iterdir()] == [".jsonl"]
        assert Record.from_json(record.to_json()) == record

    @pytest.mark.parametrize(("method", "level"), [("gap", "edge"), ("mlp", "node")])
    def test_a_row_has_all_figures_of_every_repeat_and_says_whose_they_are(
        self, method: str, level: str
    ) -> None:
        (configuration,) = plan("accuracy", methods=[method], levels=[level])
        record = perform(a_task(configuration))
        assert set(record.extra["metrics"][0]) == {field.name for field in fields(Metrics)}
        assert record.figures("accuracy") == pytest.approx(record.runs)
        for name in (*METRICS, "majority"):
            assert len(record.figures(name)) == 2
        assert len({run["majority"] for run in record.extra["metrics"]}) == 2  # each on its split
        at_node_level = ["runs", "metrics", "validation_runs"]
        assert record.extra["curator_only"] == (at_node_level if record.level == "node" else [])
        assert record.headline == "accuracy"
        assert Record.from_json(record.to_json()) == record

    def test_a_data_set_of_the_registry_is_judged_by_its_own_figure(self) -> None:
        def tolokers(seed: int) -> Graph:
            return replace(opened(seed), name="tolokers", population="dataset tolokers")

        (configuration,) = plan("accuracy", methods=["mlp"], levels=["edge"])
        task = a_task(configuration, source=Source("tolokers", ("tolokers",), tolokers))
        record = perform(replace(task, fingerprint=tolokers(0).fingerprint))
        assert record.headline == "auc"
        assert record.metric == "test_accuracy"

    def test_repeats_share_their_splits_across_methods(self) -> None:
        from gapgnn.training.splits import repeat_splits

        models = [a_task(configuration).estimator() for configuration in plan("accuracy")]
        graph = opened(0)
        for level in ("none", "edge", "node"):
            splits = [
                repeat_splits(
                    graph,
                    level=model.level,
                    repeats=model.repeats,
                    split=model.split,
                    seed=model.seed,
                )
                for model in models
                if model.level == level
            ]
            assert len(splits) > 1
            assert all((one.test == splits[0].test).all() for one in splits)

    def test_an_attack_is_measured_by_its_auc(self) -> None:
        class Found:
            def to_dict(self) -> dict[str, Any]:
                return {"runs": [{"auc": 0.5, "tpr_at_1pct_fpr": 0.01}] * 3}

        def attack(estimator: Any, graph: Graph, **options: Any) -> Found:
            assert estimator.hidden == 64
            assert {name: options[name] for name in ("runs", "on", "seed")} == {
                "runs": 3,
                "on": "shadow",
                "seed": 0,
            }
            return Found()

        rows = plan(
            "membership", methods=["mlp"], levels=["node"], epsilons=[8], attack_on=["shadow"]
        )
        record = perform(a_task(rows[0], repeats=3), attack=attack)
        assert (record.metric, record.runs) == ("auc", (0.5, 0.5, 0.5))
        assert (record.relation, record.delta) == ("add-remove", 1e-4)
        assert record.extra["attack_runs"][0]["tpr_at_1pct_fpr"] == 0.01
        assert "attack membership mlp --runs 3 --on shadow" in record.command

    def test_data_that_changed_since_the_plan_is_refused(self) -> None:
        (configuration,) = plan("accuracy", methods=["mlp"], levels=["edge"])
        task = a_task(configuration, source=replace(SOURCE, words=("other",)), fingerprint="old")
        with pytest.raises(DataError, match="`tiny` must not change while experiments run"):
            perform(task)


class TestEstimates:
    def test_a_record_of_the_same_row_tells_best(self) -> None:
        first, second = tasks_of("tradeoff", methods=["gap"], levels=["edge"])[:2]
        record = replace(made_up(first), seconds=30.0)
        assert estimate(replace(second, repeats=4), [record]) == 60.0

    def test_without_records_a_larger_graph_takes_longer(self) -> None:
        task = tasks_of("accuracy", methods=["gap"], levels=["edge"])[0]
        larger = replace(task, arcs=100 * task.arcs)
        assert 0 < estimate(task, []) < estimate(larger, [])

    def test_there_is_an_estimate_for_every_row(self) -> None:
        every = [*tasks_of("accuracy"), *tasks_of("membership")]
        assert all(estimate(task, []) > 0 for task in every)


def test_the_graph_of_the_last_task_is_opened_once() -> None:
    opens: list[int] = []

    def count(seed: int) -> Graph:
        opens.append(seed)
        return opened(seed)

    source = Source("counted", ("counted",), functools.partial(count))
    for _ in range(3):
        open_graph(source, 0)
    assert opens == [0]


@pytest.mark.parametrize(
    ("method", "level", "own", "notion", "paid"),
    [
        ("vote", "edge", "record", None, 0.0),
        ("vote", "node", "record", "own record", 8.0),
        ("node-label-gap own nothing", "node", "nothing", "own record", 8.0),
    ],
)
def test_a_record_says_what_is_read_and_in_which_notion(
    method: str, level: str, own: str, notion: str | None, paid: float
) -> None:
    (task,) = tasks_of("accuracy", methods=[method], levels=[level])
    found = perform(task)
    assert (found.extra["own"], found.extra["notion"]) == (own, notion)
    assert found.own == own
    assert found.epsilon == paid
    assert found.extra["accounted_epsilon"] <= paid
    assert found.extra["curator_only"] == ["runs", "metrics", "validation_runs"]
    assert Record.from_json(found.to_json()) == found
