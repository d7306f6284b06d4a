"""A folder is believed as far as its card, and says the same under other defaults."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from methodgraphs import cut_in_two, small_graph

from gapgnn import GAP, MLP, SAGE, Graph, load_model
from gapgnn.errors import DataError
from gapgnn.methods import mlp as mlp_module
from gapgnn.methods import sage as sage_module
from gapgnn.methods.folder import _checksum
from gapgnn.methods.gap import estimator, variant
from gapgnn.training import crossfit


@pytest.fixture(scope="module")
def halves() -> tuple[Graph, Graph]:
    return cut_in_two(small_graph(num_nodes=300), seed=0)


@pytest.fixture
def folder(halves, tmp_path) -> Path:
    GAP(epsilon=4.0, messages="features", epochs=2).fit(halves[0]).save(tmp_path / "model")
    return tmp_path / "model"


def forge(folder: Path, *, params: dict[str, object] | None = None, **changes: object) -> None:
    """Change a configuration as somebody would who also repairs its checksum."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    config["params"] = {**config["params"], **(params or {})}
    del config["checksum"]
    path.write_text(json.dumps({**config, "checksum": _checksum(config)}))


class TestAReceivedFolderIsBelievedAsFarAsItsCard:
    def test_a_noise_seed_that_the_card_does_not_know_is_refused(self, folder):
        forge(folder, params={"insecure_noise_seed": 7})
        with pytest.raises(DataError, match=r"says noise source .*seed.*, its card"):
            load_model(folder)

    def test_a_noise_seed_is_never_taken_from_a_folder(self, halves, tmp_path):
        model = GAP(epsilon=4.0, messages="features", epochs=2, insecure_noise_seed=7)
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
        ("changes", "what"),
        [
            ({"noise_multiplier": 0.01}, "noise multiplier"),
            ({"params": {"level": "none"}}, "level"),
            ({"params": {"relation": "directed"}}, "relation"),
            ({"params": {"noise": "fast"}}, "noise source"),
            ({"params": {"epsilon": 400.0}}, "epsilon"),
            ({"params": {"delta": 0.01}}, "delta"),
        ],
    )
    def test_a_configuration_that_differs_from_its_card_is_refused(self, changes, what, folder):
        forge(folder, **changes)
        with pytest.raises(DataError, match=f"its configuration says {what} .*, its card"):
            load_model(folder)

    def test_what_a_prediction_reads_of_its_person_is_that_of_the_card(self, halves, tmp_path):
        model = GAP(level="node", epsilon=8.0, own="record").fit(halves[0])
        model.save(tmp_path / "node")
        forge(tmp_path / "node", params={"own": "nothing"})
        with pytest.raises(DataError, match="its configuration says own nothing, its card record"):
            load_model(tmp_path / "node")

    def test_a_folder_without_the_release_of_its_training_is_refused(self, folder):
        forge(folder, releases=[])
        with pytest.raises(DataError, match="does not hold the release of its training"):
            load_model(folder)

    def test_smaller_ratios_of_noise_are_refused(self, halves, tmp_path):
        model = GAP(level="node", epsilon=8.0, messages="features", epochs=2, batch_size=50)
        model.fit(halves[0]).save(tmp_path / "node")
        config = json.loads((tmp_path / "node" / "config.json").read_text())
        forge(tmp_path / "node", resolved={**config["resolved"], "noise_ratios": [1.0, 0.01, 1.0]})
        with pytest.raises(DataError, match="its configuration says noise of a hop"):
            load_model(tmp_path / "node")


def change_every_default(monkeypatch: pytest.MonkeyPatch) -> None:
    old = variant.Defaults.of.__func__

    def of(cls, chosen):
        found = old(cls, chosen)
        return dataclasses.replace(found, hidden=9, base_layers=3, activation="gelu", ratio=0.3)

    monkeypatch.setattr(variant.Defaults, "of", classmethod(of))
    for module in (estimator, mlp_module, crossfit):
        monkeypatch.setattr(module, "FEATURE_WIDTH", 24, raising=False)
    monkeypatch.setattr(crossfit, "FOLDS", 3)
    monkeypatch.setattr(variant, "DEFAULT_DEGREE", 3)
    monkeypatch.setattr(sage_module, "AUTO_DEGREE", 7)
    resolve = variant.Variant.resolve.__func__
    monkeypatch.setattr(
        variant.Variant,
        "resolve",
        classmethod(lambda cls, **given: dataclasses.replace(resolve(cls, **given), hops=3)),
    )


SAVED = {
    "edge": lambda: GAP(epsilon=4.0, epochs=2),
    "paper": lambda: GAP(epsilon=4.0, messages="features", epochs=2),
    "progressive": lambda: GAP(epsilon=4.0, messages="features", progressive=True, epochs=2),
    "node": lambda: GAP(level="node", epsilon=8.0),
    "own record": lambda: GAP(level="node", epsilon=8.0, own="record"),
    "mlp": lambda: MLP(epochs=2),
    "sage": lambda: SAGE(level="node", epsilon=8.0, epochs=2),
}


class TestASavedModelHoldsResolvedValues:
    @pytest.mark.parametrize("name", SAVED)
    def test_a_changed_default_changes_no_prediction(self, name, halves, tmp_path, monkeypatch):
        model = SAVED[name]().fit(halves[0])
        model.save(tmp_path / "model")
        expected = model.predict_proba(halves[0])
        change_every_default(monkeypatch)
        loaded = load_model(tmp_path / "model")
        assert np.array_equal(loaded.predict_proba(halves[0]), expected)

    @pytest.mark.parametrize("name", ["edge", "paper", "node", "own record"])
    def test_a_changed_default_changes_no_price(self, name, halves, tmp_path, monkeypatch):
        model = SAVED[name]().fit(halves[0])
        model.save(tmp_path / "model")
        expected = model._prediction_guarantee(halves[1]).events
        change_every_default(monkeypatch)
        assert load_model(tmp_path / "model")._prediction_guarantee(halves[1]).events == expected

    def test_a_loaded_model_that_is_fitted_again_resolves_again(self, folder, halves):
        loaded = load_model(folder)
        assert loaded.set_params(hops=1).fit(halves[1]).card_.events[0]["count"] == 1

    def test_the_words_of_the_card_decide_no_prediction(self, halves, tmp_path, monkeypatch):
        model = SAVED["own record"]().fit(halves[0])
        model.save(tmp_path / "model")
        expected = model.predict_proba(halves[0])
        reworded = ("origin of roles", "hash")
        monkeypatch.setattr(estimator, "_HASHED_ROLES", reworded)
        loaded = load_model(tmp_path / "model")
        no_roles = halves[0].with_masks(*np.zeros((3, halves[0].num_nodes), dtype=bool))
        assert np.array_equal(loaded.predict_proba(no_roles), expected)
