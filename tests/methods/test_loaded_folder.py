"""A folder is trusted as far as its card, and says the same under other defaults."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from methodgraphs import cut_in_two, small_graph, with_arcs
from suited import suited

from gapgnn import (
    GAP,
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
    load_model,
)
from gapgnn.errors import DataError, InputError
from gapgnn.graph import join_edge_types
from gapgnn.methods import NodeClassifier
from gapgnn.methods import gap as gap_module
from gapgnn.methods import graphsage as sage_module
from gapgnn.methods import mlp as mlp_module
from gapgnn.methods import neighbor_vote as vote_module
from gapgnn.methods import progap as progap_module
from gapgnn.methods.folder import _checksum
from gapgnn.methods.label_gap import budget, edge_level, node_level
from gapgnn.methods.persistence import NEVER_LOADED
from gapgnn.training import crossfit, recipe, row_scale


@pytest.fixture(scope="module")
def halves() -> tuple[Graph, Graph]:
    return cut_in_two(small_graph(num_nodes=300), seed=0)


@pytest.fixture
def folder(halves, tmp_path) -> Path:
    GAP(epsilon=4.0, epochs=2).fit(halves[0]).save(tmp_path / "model")
    return tmp_path / "model"


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def forge(folder: Path, *, params: dict[str, object] | None = None, **changes: object) -> None:
    """Change a configuration as somebody would who also repairs its checksum."""
    config = {**read(folder), **changes}
    config["params"] = {**config["params"], **(params or {})}
    del config["checksum"]
    text = json.dumps({**config, "checksum": _checksum(config)})
    (folder / "config.json").write_text(text)


def forge_plan(folder: Path, part: str, **changes: object) -> None:
    """Change the guarantee, the settings or all planned hops of a plan."""
    plan = read(folder)["plan"]
    for one in plan["hops"].values() if part == "hops" else [plan[part]]:
        one.update(changes)
    forge(folder, plan=plan)


class TestAReceivedFolderIsTrustedAsFarAsItsCard:
    def test_a_noise_seed_that_the_card_does_not_know_is_refused(self, folder):
        forge(folder, params={"insecure_noise_seed": 7})
        with pytest.raises(DataError, match=r"says noise source .*seed.*, its card"):
            load_model(folder)

    def test_a_noise_seed_is_never_taken_from_a_folder(self, halves, tmp_path):
        model = GAP(epsilon=4.0, epochs=2, insecure_noise_seed=7)
        model.fit(halves[0]).save(tmp_path / "seeded")
        loaded = load_model(tmp_path / "seeded")
        assert loaded.insecure_noise_seed is None
        first = loaded.predict_proba(halves[1])
        second = load_model(tmp_path / "seeded").predict_proba(halves[1])
        assert not np.array_equal(first, second)

    def test_a_ledger_and_a_device_are_never_taken_from_a_folder(self, folder, tmp_path):
        forge(folder, params={"ledger": str(tmp_path / "elsewhere"), "device": "cuda"})
        loaded = load_model(folder)
        assert (loaded.ledger, loaded.device) == (None, "auto")

    @pytest.mark.parametrize(
        ("params", "what"),
        [
            ({"level": "none"}, "level"),
            ({"relation": "directed"}, "relation"),
            ({"noise": "fast"}, "noise source"),
            ({"epsilon": 400.0}, "epsilon"),
            ({"delta": 0.01}, "delta"),
        ],
    )
    def test_a_configuration_that_differs_from_its_card_is_refused(self, params, what, folder):
        forge(folder, params=params)
        with pytest.raises(DataError, match=f"its configuration says {what} .*, its card"):
            load_model(folder)

    @pytest.mark.parametrize("name", ["level", "relation", "epsilon", "noise_multiplier", "events"])
    def test_a_plan_that_promises_something_else_than_its_card_is_refused(self, name, folder):
        stated = read(folder)["plan"]["guarantee"]
        other = {
            "level": "node",
            "relation": "directed",
            "epsilon": 400.0,
            "noise_multiplier": 0.01,
            "events": [{**stated["events"][0], "noise_multiplier": 0.01}],
        }
        assert name in stated
        forge_plan(folder, "guarantee", **{name: other[name]})
        # A relation that is not of its level is refused before it is compared.
        reason = "at level 'node' must be" if name == "level" else "configuration says .*, its card"
        with pytest.raises(DataError, match=reason):
            load_model(folder)

    @pytest.mark.parametrize(
        ("params", "hops"),
        [
            # More hops than were charged, and sums beside those that were charged.
            ({"hops": 20}, {"count": 20}),
            ({}, {"with_union": True}),
        ],
    )
    def test_a_plan_of_more_releases_than_its_card_lists_is_refused(
        self, params, hops, halves, tmp_path
    ):
        arcs = halves[0].adjacency().tocoo()
        is_call = (arcs.row + arcs.col) % 2 == 0
        types = {
            "calls": with_arcs(halves[0], is_call),
            "visits": with_arcs(halves[0], ~is_call),
        }
        model = GAP(epsilon=4.0, epochs=2).fit(join_edge_types(types))
        model.save(tmp_path / "model")
        load_model(tmp_path / "model")
        forge(tmp_path / "model", params=params)
        forge_plan(tmp_path / "model", "hops", **hops)
        with pytest.raises(DataError, match=r"its plan releases .* sums"):
            load_model(tmp_path / "model")

    def test_another_bound_on_lists_than_that_of_the_card_is_refused(self, halves, tmp_path):
        model = GAP(level="node", epsilon=8.0, epochs=2, batch_size=50, max_degree=9)
        model.fit(halves[0]).save(tmp_path / "node")
        forge_plan(tmp_path / "node", "hops", max_degree=1)
        with pytest.raises(DataError, match="its configuration says max_degree 1, its card 9"):
            load_model(tmp_path / "node")

    def test_what_a_prediction_reads_of_its_person_is_that_of_the_card(self, halves, tmp_path):
        model = NodeLabelGAP(epsilon=8.0, own="record").fit(halves[0])
        model.save(tmp_path / "node")
        forge(tmp_path / "node", params={"own": "nothing"})
        with pytest.raises(DataError, match="its configuration says own nothing, its card record"):
            load_model(tmp_path / "node")

    def test_a_folder_without_the_release_of_its_training_is_refused(self, folder):
        forge(folder, releases=[])
        with pytest.raises(DataError, match="does not hold the release of its training"):
            load_model(folder)

    def test_settings_of_another_method_are_refused(self, folder):
        forge_plan(folder, "settings", mean_degree_epsilon=0.1)
        with pytest.raises(DataError, match="settings have unknown names: mean_degree_epsilon"):
            load_model(folder)


CLASSES: tuple[type[NodeClassifier[Any]], ...] = (
    GAP,
    ProGAP,
    LabelGAP,
    NodeLabelGAP,
    NeighborVote,
    GraphSAGE,
    MLP,
)
SAVED: dict[str, tuple[type[NodeClassifier[Any]], dict[str, Any]]] = {
    **{
        f"{method_class.method} {level}": (method_class, {"level": level})
        for method_class in CLASSES
        for level in method_class.levels
    },
    "label-gap without folds": (LabelGAP, {"level": "edge", "folds": 0}),
    "label-gap without encoder": (LabelGAP, {"level": "edge", "encoder_layers": 0}),
    "label-gap, many hops": (LabelGAP, {"level": "edge", "epsilon": 9.0}),
    "node-label-gap, released hops": (NodeLabelGAP, {"level": "node", "epsilon": 40.0}),
    "node-label-gap nothing": (NodeLabelGAP, {"level": "node", "own": "nothing"}),
    "node-label-gap record": (NodeLabelGAP, {"level": "node", "own": "record"}),
    "mlp without folds": (MLP, {"level": "edge", "folds": 0}),
}
# A plan reads constants of these modules alone.
PLANNING = (
    *(gap_module, progap_module, mlp_module, sage_module, vote_module),
    *(edge_level, node_level, budget, recipe, crossfit, row_scale),
)
# No choice of a plan: part of what a scaled row is, and how many rows are read at a time.
FIXED = ("SIZE_FACTOR", "AT_ONCE")


class Changed:
    """A default that nothing can be computed from, so that whoever reads it is found."""


def is_number(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(is_number, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def constants(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if name.isupper() and is_number(value) and name not in FIXED
    ]


def other_number(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(other_number, value))
    return value + 1 if isinstance(value, int) else value * 0.37 + 0.01


def change_every_default(
    patch: pytest.MonkeyPatch, method_class: type[NodeClassifier[Any]]
) -> None:
    """Change what every parameter is by default, and every number that a plan reads."""
    for part in dataclasses.fields(method_class):
        if part.name not in NEVER_LOADED:
            patch.setitem(method_class.__init__.__kwdefaults__, part.name, Changed())
            patch.setattr(part, "default", Changed())
            patch.setattr(method_class, part.name, Changed())
    for module in PLANNING:
        for name in constants(module):
            patch.setattr(module, name, other_number(getattr(module, name)))
    patch.setattr(
        crossfit.FeatureNetworks,
        "suited",
        classmethod(lambda cls, num_train, num_features: cls(0.13, 7)),
    )
    # Whatever else a plan follows from, nothing of it is asked again: not of another graph either.
    choices = ("hop_share", "learnability", "mean_degree_epsilon", "record_share", "vote_weight")
    asked = [(method_class, name) for name in ("plan", "recipe", "settings")]
    asked += [(row_scale.RowScale, "suited"), *((node_level, name) for name in choices)]
    for owner, name in asked:

        def refuse(*args: Any, _name: str = name, **options: Any) -> None:
            raise AssertionError(f"{_name} was resolved again")

        patch.setattr(owner, name, refuse)


def test_every_number_that_a_plan_reads_is_changed():
    """The scan finds the constants; a plan under other ones is another plan."""
    found = {f"{module.__name__}.{name}" for module in PLANNING for name in constants(module)}
    assert found >= {
        "gapgnn.methods.progap.STEP_NODES",
        "gapgnn.methods.progap.EPOCHS",
        "gapgnn.methods.label_gap.edge_level.HIDDEN",
        "gapgnn.methods.label_gap.edge_level.FEATURE_WIDTH",
        "gapgnn.methods.label_gap.node_level.SHARES",
        "gapgnn.methods.label_gap.budget.THRESHOLDS",
        "gapgnn.methods.mlp.FEATURE_WIDTH",
        "gapgnn.training.recipe.NODE_STEPS",
        "gapgnn.training.crossfit.FOLDS",
        "gapgnn.training.row_scale.LARGE",
    }


class TestASavedModelHoldsItsPlan:
    @pytest.mark.parametrize("name", SAVED)
    def test_no_changed_default_changes_a_prediction_or_its_price(
        self, name, halves, tmp_path, monkeypatch, ledger
    ):
        method_class, options = SAVED[name]
        shared = {"epsilon": 4.0, "epochs": 2, "ledger": ledger.path}
        model = suited(method_class, shared, **options).fit(halves[0])
        model.save(tmp_path / "model")
        plan = str(model.plan_)

        def answers(one: NodeClassifier[Any]) -> list[Any]:
            found: list[Any] = [one.predict_proba(halves[0]), one.predict(halves[0])]
            if method_class is LabelGAP and one.level == "edge":
                found.append(one.predict_proba(halves[0], own="record"))
            if hasattr(one, "prediction_guarantee"):
                price = one.prediction_guarantee(halves[1])
                found.append(None if price is None else (price.events, price.epsilon))
            # The same noise on another graph.
            one.set_params(insecure_noise_seed=None if one.level == "none" else 3)
            try:
                found.append(one.predict_proba(halves[1]))
            except InputError as refused:
                assert method_class is NeighborVote
                found.append(str(refused))
            return found

        expected = answers(model)
        with monkeypatch.context() as patch:
            change_every_default(patch, method_class)
            loaded = load_model(tmp_path / "model", ledger=ledger.path)
            assert str(loaded.plan_) == plan
            for mine, theirs in zip(answers(loaded), expected, strict=True):
                if isinstance(mine, np.ndarray):
                    np.testing.assert_array_equal(mine, theirs)
                else:
                    assert mine == theirs

    def test_a_loaded_model_that_is_fitted_again_is_planned_again(self, folder, halves):
        loaded = load_model(folder)
        assert loaded.set_params(hops=1).fit(halves[1]).card_.events[0]["count"] == 1

    def test_the_words_of_the_card_decide_no_prediction(self, halves, tmp_path, monkeypatch):
        model = NodeLabelGAP(epsilon=8.0, own="record").fit(halves[0])
        model.save(tmp_path / "model")
        expected = model.predict_proba(halves[0])
        monkeypatch.setattr(node_level, "HASHED_ROLES", ("origin of roles", "hash"))
        loaded = load_model(tmp_path / "model")
        no_roles = halves[0].with_masks(*np.zeros((3, halves[0].num_nodes), dtype=bool))
        assert np.array_equal(loaded.predict_proba(no_roles), expected)
