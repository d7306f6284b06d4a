"""A saved model predicts as it did, gives nothing away, and is refused where it is not whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from methodgraphs import cut_in_two, small_graph
from safetensors.numpy import load_file
from suited import suited

from gapgnn import GAP, MLP, Graph, Ledger, NodeLabelGAP, load_model
from gapgnn.errors import (
    BudgetExceededError,
    DataError,
    GapgnnError,
    InputError,
    PrivacyError,
    UnavailableError,
)
from gapgnn.methods import folder as folder_module
from gapgnn.methods import keep_audit
from gapgnn.privacy.ledger.people import People
from gapgnn.training import RowScale

LEVELS = ["none", "edge", "node"]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph(num_nodes=200)


@pytest.fixture(scope="module")
def halves() -> tuple[Graph, Graph]:
    return cut_in_two(small_graph(num_nodes=300), seed=0)


def quick(method, level: str, **more):
    batch = {"batch_size": 50} if level == "node" else {}
    shared = {"epochs": 2, "epsilon": 4.0, "hidden": 8, **batch}
    return suited(method, shared, **{"level": level, **more})


@pytest.fixture(scope="module")
def saved(graph, tmp_path_factory) -> dict[str, Path]:
    """One saved GAP per level; tests that change a folder copy it first."""
    folders = {}
    for level in LEVELS:
        folders[level] = tmp_path_factory.mktemp("saved") / level
        quick(GAP, level).fit(graph).save(folders[level])
    return folders


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return shutil.copytree(saved["edge"], tmp_path / "model")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def refusal(folder: Path, case: type[Exception] = DataError) -> str:
    with pytest.raises(case) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def rewrite(folder: Path, *, without: str = "checksum", **changes: object) -> None:
    """Change the configuration as somebody would who also repairs its checksum."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config = {name: value for name, value in config.items() if name not in ("checksum", without)}
    config |= changes
    config["checksum"] = folder_module._checksum(config)
    path.write_text(json.dumps(config))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class TestRoundTrip:
    @pytest.mark.parametrize("method", [GAP, MLP])
    @pytest.mark.parametrize("level", LEVELS)
    def test_a_loaded_model_predicts_identically(self, method, level, graph, tmp_path):
        model = quick(method, level).fit(graph)
        model.save(tmp_path / "model")
        loaded = method.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict_proba(graph), model.predict_proba(graph))
        if level != "node" and method is GAP:
            np.testing.assert_array_equal(loaded.predict_proba(), model.predict_proba())
        assert loaded.card_ == model.card_
        assert loaded.label_names_ == graph.label_names
        assert loaded.get_params() == model.get_params()
        assert type(load_model(tmp_path / "model")) is method

    def test_raw_features_and_every_other_option_survive(self, graph, tmp_path):
        options = {"encoder_layers": 0, "combine": "attention", "noise_ratios": (1.0, 2.0, 1.0)}
        model = quick(GAP, "node", hops=1, activation="tanh", **options).fit(graph)
        model.save(tmp_path / "model")
        loaded = GAP.load(tmp_path / "model")
        assert loaded.get_params() == model.get_params()
        np.testing.assert_array_equal(loaded.predict_proba(graph), model.predict_proba(graph))

    @pytest.mark.parametrize("method", [NodeLabelGAP, MLP])
    def test_rows_are_as_long_as_those_it_learned_from(self, method, graph, tmp_path):
        few, many = (
            method(level="node", epochs=2, train_size=size).fit(graph) for size in (200, 10_000)
        )
        scales = [model.plan_.settings.row_scale for model in (few, many)]
        assert scales == [RowScale(5.0, few=16.0), RowScale(6.0)]
        few.save(tmp_path / "model")
        loaded = load_model(tmp_path / "model")
        assert loaded.plan_.settings.row_scale == scales[0]
        wanted = few.predict_proba(graph)
        np.testing.assert_array_equal(loaded.predict_proba(graph), wanted)
        plan = json.loads((tmp_path / "model" / "config.json").read_text())["plan"]
        plan["settings"]["row_scale"] = dataclasses.asdict(scales[1])
        rewrite(tmp_path / "model", plan=plan)
        assert not np.allclose(load_model(tmp_path / "model").predict_proba(graph), wanted)

    def test_an_infinite_epsilon_without_privacy_is_saved(self, graph, tmp_path):
        quick(GAP, "none", epsilon=float("inf")).fit(graph).save(tmp_path / "model")
        assert GAP.load(tmp_path / "model").epsilon == float("inf")

    def test_a_model_of_another_method_is_refused(self, saved):
        with pytest.raises(InputError, match=r"must hold a mlp model\. Got 'gap'"):
            MLP.load(saved["edge"])


class TestWhatIsInside:
    @pytest.mark.parametrize("level", LEVELS)
    def test_only_tensors_json_and_the_card_for_people(self, level, saved):
        cases = {path.suffix for path in files(saved[level])}
        assert cases == {".safetensors", ".json", ".md"}
        for path in files(saved[level]):
            content = path.read_bytes()
            # A pickle of protocol 2 or more starts with 0x80, and a zip of torch.save with PK.
            assert content[:1] != b"\x80"
            assert content[:2] != b"PK"
            if path.suffix == ".json":
                json.loads(content)
            elif path.suffix == ".safetensors":
                load_file(path)

    @pytest.mark.parametrize("level", LEVELS)
    def test_no_fingerprint(self, level, saved, graph):
        names = "".join(str(path) for path in files(saved[level]))
        for content in [names.encode(), *(path.read_bytes() for path in files(saved[level]))]:
            assert graph.fingerprint.encode() not in content
            assert graph.fingerprint[:12].encode() not in content
            assert bytes.fromhex(graph.fingerprint) not in content

    @pytest.mark.parametrize("level", LEVELS)
    def test_neither_ledger_nor_noise_key(self, level, saved):
        config = json.loads((saved[level] / "config.json").read_text())
        assert not {"ledger", "device", "reason"} & config["params"].keys()
        assert "secret" not in json.dumps(config)

    def test_at_node_level_no_hop_zero_and_no_features(self, saved, graph):
        model = GAP.load(saved["node"])
        encoder = model.modules_["encoder"]
        features = graph.features.toarray()
        import torch

        with torch.no_grad():
            codes = encoder.embed(torch.from_numpy(features))[0].numpy()
        units = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        tensors = {
            f"{path.name}/{name}": value
            for path in files(saved["node"])
            if path.suffix == ".safetensors"
            for name, value in load_file(path).items()
        }
        per_node = {name: v for name, v in tensors.items() if graph.num_nodes in v.shape}
        assert [value.shape for value in per_node.values()] == [(graph.num_nodes, 8)] * 2
        for value in per_node.values():
            for secret in (codes, units):
                assert np.abs(value - secret).max(axis=1).min() > 1e-4
        raw = b"".join(path.read_bytes() for path in files(saved["node"]))
        for row in range(0, graph.num_nodes, 10):
            assert features[row].tobytes() not in raw
            assert codes[row].tobytes() not in raw
            assert units[row].tobytes() not in raw

    def test_at_edge_level_hop_zero_is_there(self, saved):
        (path,) = saved["edge"].glob("hops/*.safetensors")
        assert sorted(load_file(path)) == ["hop0", "hop1", "hop2"]


class TestRefusals:
    def test_a_newer_format(self, copy):
        rewrite(copy, format=99, gapgnn="7.0")
        assert "newer gapgnn (7.0, format 99). Upgrade" in refusal(copy, InputError)

    def test_a_folder_of_version_0_2_or_before(self, saved, copy):
        """It has no plan; one line says which version can open it, wherever it is read."""
        rewrite(copy, without="plan", format=1, gapgnn="0.2.0")
        message = refusal(copy, InputError)
        assert "was written by gapgnn 0.2.0, before models had a plan" in message
        assert "Open it with gapgnn 0.2, or train again." in message
        before = {path: path.read_bytes() for path in files(copy)}
        with pytest.raises(InputError, match="before models had a plan"):
            GAP.load(saved["edge"]).save_releases(copy)
        with pytest.raises(InputError, match="before models had a plan"):
            keep_audit(copy, audit="mechanisms", command="gapgnn audit", results=[])
        assert {path: path.read_bytes() for path in files(copy)} == before

    def test_a_folder_that_is_not_there(self, tmp_path):
        assert "does not exist" in refusal(tmp_path / "nothing", UnavailableError)

    def test_a_folder_of_something_else(self, tmp_path):
        assert "config.json' is missing" in refusal(tmp_path)
        (tmp_path / "config.json").write_text('{"learning_rate": 1}')
        assert "is not a gapgnn model" in refusal(tmp_path)
        (tmp_path / "config.json").write_text("[1]")
        assert "is not a gapgnn model" in refusal(tmp_path)

    def test_each_file_missing(self, saved, tmp_path):
        for number, path in enumerate(files(saved["edge"])):
            folder = shutil.copytree(saved["edge"], tmp_path / str(number))
            (folder / path.relative_to(saved["edge"])).unlink()
            assert path.name in refusal(folder)

    @pytest.mark.parametrize("where", [0.0, 0.3, 0.5, 0.8, 0.999])
    def test_each_file_damaged(self, where, copy):
        for path in files(copy):
            good = path.read_bytes()
            place = int(where * len(good))
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            assert "damaged" in refusal(copy)
            path.write_bytes(good)
        load_model(copy)

    def test_every_digit_of_the_configuration_counts(self, copy):
        path = copy / "config.json"
        good = path.read_text()
        for place, character in enumerate(good):
            if character.isdigit() and place % 7 == 0:
                other = str((int(character) + 1) % 10)
                changed = good[:place] + other + good[place + 1 :]
                # The last digit of a float may not change its value.
                if json.loads(changed) != json.loads(good):
                    path.write_text(changed)
                    refusal(copy, GapgnnError)

    def test_an_empty_file(self, copy):
        for path in files(copy):
            good = path.read_bytes()
            path.write_bytes(b"")
            refusal(copy)
            path.write_bytes(good)

    def test_hops_of_another_graph(self, copy, saved):
        """Swapped in as they are, and by somebody who repairs the digests."""
        (mine,) = copy.glob("hops/*.safetensors")
        (other,) = saved["none"].glob("hops/*.safetensors")
        shutil.copy(other, mine)
        assert "is not what was saved" in refusal(copy)
        recorded = json.loads((copy / "config.json").read_text())["files"]
        rewrite(copy, files={**recorded, f"hops/{mine.name}": digest(mine)})
        assert "Got those of another release" in refusal(copy)

    def test_ids_of_another_size(self, copy):
        (ids,) = copy.glob("hops/*.ids.json")
        ids.write_text("[1, 2, 3]")
        recorded = json.loads((copy / "config.json").read_text())["files"]
        rewrite(copy, files={**recorded, f"hops/{ids.name}": digest(ids)})
        assert "a row for each of its 3 ids" in refusal(copy)

    @pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "hops/../../secret.json"])
    def test_a_path_out_of_the_folder(self, name, copy):
        secret = copy.parent / "secret.json"
        secret.write_text("{}")
        recorded = json.loads((copy / "config.json").read_text())["files"]
        rewrite(copy, files={**recorded, name: digest(secret)})
        assert "lists files outside of it" in refusal(copy)

    @pytest.mark.parametrize(
        "changes",
        [
            {"releases": 3},
            {"releases": ["../../secret"]},
            {"params": {}},
            {"params": None},
            {"num_features": "many"},
            {"num_features": 3},
            {"files": []},
            {"files": {}},
        ],
    )
    def test_a_configuration_that_makes_no_sense(self, changes, copy):
        rewrite(copy, **changes)
        refusal(copy)


class TestSaving:
    def test_into_a_folder_with_files_is_refused(self, graph, tmp_path):
        model = quick(MLP, "edge").fit(graph)
        (tmp_path / "mine.txt").write_text("keep me")
        with pytest.raises(InputError, match="new or empty folder"):
            model.save(tmp_path)
        with pytest.raises(InputError, match="must be a folder"):
            model.save(tmp_path / "mine.txt")
        assert [path.name for path in files(tmp_path)] == ["mine.txt"]

    def test_into_an_empty_or_deep_folder_works(self, graph, tmp_path):
        model = quick(MLP, "edge").fit(graph)
        (tmp_path / "empty").mkdir()
        for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
            model.save(folder)
            MLP.load(folder)

    @pytest.mark.parametrize("stop", [OSError("disk full"), KeyboardInterrupt()])
    @pytest.mark.parametrize("after", [0, 2, 5])
    def test_a_stop_in_the_middle_leaves_nothing(self, stop, after, saved, tmp_path, monkeypatch):
        model = GAP.load(saved["edge"])
        original, written = folder_module._write, []

        def stopping(path, content):
            if len(written) == after:
                raise stop
            written.append(path)
            original(path, content)

        monkeypatch.setattr(folder_module, "_write", stopping)
        with pytest.raises((UnavailableError, KeyboardInterrupt)):
            model.save(tmp_path / "model")
        assert list(tmp_path.iterdir()) == []

    def test_a_stop_while_hops_are_added_leaves_the_model_as_it_was(
        self, halves, ledger, tmp_path, monkeypatch
    ):
        first, second = halves
        folder = tmp_path / "model"
        model = quick(GAP, "edge", ledger=ledger.path).fit(first)
        model.save(folder)
        model.predict(second)
        monkeypatch.setattr(folder_module, "_write_config", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.save_releases(folder)
        assert len(load_model(folder).releases_.hops) == 1


class TestWhoseGraphItIs:
    @pytest.fixture
    def trained(self, halves, ledger, tmp_path) -> Path:
        """A model of the first half, whose charge the ledger knows."""
        quick(GAP, "edge", ledger=ledger.path).fit(halves[0]).save(tmp_path / "model")
        return tmp_path / "model"

    def test_the_training_graph_is_known_by_the_ledger(self, trained, halves, ledger):
        model = load_model(trained, ledger=ledger.path)
        np.testing.assert_array_equal(model.predict_proba(halves[0]), model.predict_proba())
        assert model.releases_.is_training(halves[0])
        assert len(ledger.entries()) == 1

    def test_changed_edges_of_the_same_people_are_charged_and_read(self, trained, halves, ledger):
        changed = cut(halves[0])
        model = load_model(trained, ledger=ledger.path)
        assert (model.predict_proba(changed) != model.predict_proba()).any()
        assert not model.releases_.is_training(changed)
        fit, prediction = ledger.entries()
        assert prediction.fingerprint == changed.fingerprint
        assert prediction.population == fit.population

    def test_over_budget_changed_edges_are_refused(self, trained, halves, ledger):
        budget = {"level": "edge", "relation": "undirected", "epsilon": 5, "delta": 1e-3}
        ledger.grant("customers", People.of(halves[0]), **budget, composition="sum")
        model = load_model(trained, ledger=ledger.path)
        with pytest.raises(BudgetExceededError, match="customers at edge level"):
            model.predict(cut(halves[0]))
        assert len(ledger.entries()) == 1
        np.testing.assert_array_equal(model.predict_proba(halves[0]), model.predict_proba())

    @pytest.mark.parametrize("is_made", [True, False])
    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_a_ledger_that_does_not_know_the_charge_answers_for_no_graph(
        self, level, is_made, saved, graph, tmp_path
    ):
        """Not even for the graph of training: nobody can tell that it is."""
        path = tmp_path / "other.sqlite"
        if is_made:
            Ledger.init(path)
        for each in (graph, cut(graph)):
            with pytest.raises(PrivacyError, match=r"`ledger`.*`predict_cached`"):
                load_model(saved[level], ledger=path).predict(each)
        assert path.exists() == is_made
        if is_made:
            assert Ledger(path).entries() == []

    def test_a_copy_of_the_ledger_knows_it_too(self, trained, halves, ledger, tmp_path):
        copy = shutil.copy(ledger.path, tmp_path / "copy.sqlite")
        model = load_model(trained, ledger=copy)
        np.testing.assert_array_equal(model.predict_proba(halves[0]), model.predict_proba())

    def test_the_cache_answers_for_the_graph_of_training_without_any_ledger(
        self, trained, halves, tmp_path
    ):
        model = load_model(trained, ledger=tmp_path / "none.sqlite")
        everybody = model.predict_cached()
        np.testing.assert_array_equal(everybody, model.predict_proba())
        some = np.array([70, 3, 12])
        for ids in (halves[0].ids[some], halves[0].ids[some].astype(str)):
            np.testing.assert_allclose(model.predict_cached(ids), everybody[some], atol=1e-6)
        with pytest.raises(InputError, match=r"2 of the ids were not in the graph of training"):
            model.predict_cached(np.array([halves[0].ids[0], -5, -6]))

    def test_at_node_level_the_cache_lacks_the_features(self, saved):
        with pytest.raises(InputError, match="keeps no features"):
            GAP.load(saved["node"]).predict_cached()

    def test_without_privacy_changed_edges_are_read_again(self, saved, graph):
        model = GAP.load(saved["none"])
        wanted = quick(GAP, "none").fit(graph).predict_proba(cut(graph))
        np.testing.assert_array_equal(model.predict_proba(cut(graph)), wanted)
        assert (model.predict_proba(graph) != wanted).any()

    def test_what_another_graph_paid_for_is_kept_in_the_folder(self, trained, halves, ledger):
        model = load_model(trained, ledger=ledger.path)
        wanted = model.predict_proba(halves[1])
        model.save_releases(trained)
        model.save_releases(trained)
        again = load_model(trained, ledger=ledger.path)
        np.testing.assert_array_equal(again.predict_proba(halves[1]), wanted)
        np.testing.assert_array_equal(again.predict_proba(), model.predict_proba(halves[0]))
        assert len(ledger.entries()) == 2
        assert len(list(trained.glob("hops/*.safetensors"))) == 2

    def test_at_node_level_it_is_kept_under_keyed_hashes_and_answers_again(
        self, graph, halves, ledger, tmp_path
    ):
        folder = tmp_path / "model"
        model = quick(GAP, "node", ledger=ledger.path).fit(graph)
        model.save(folder)
        wanted = model.predict_proba(halves[1])
        model.save_releases(folder)
        for ids in folder.glob("hops/*.ids.json"):
            assert not set(json.loads(ids.read_text())) & set(halves[1].ids.tolist())
        again = load_model(folder, ledger=ledger.path)
        np.testing.assert_array_equal(again.predict_proba(halves[1]), wanted)
        assert len(ledger.entries()) == 2

    def test_without_privacy_nothing_was_paid_and_nothing_is_kept(self, saved, tmp_path, halves):
        folder = shutil.copytree(saved["none"], tmp_path / "model")
        model = GAP.load(folder)
        model.predict(halves[1])
        model.save_releases(folder)
        assert len(list(folder.glob("hops/*.safetensors"))) == 1


def cut(graph: Graph) -> Graph:
    """Return the same people with half of their edges."""
    arcs = graph.adjacency().tocoo()
    kept = (arcs.row + arcs.col) % 2 == 0
    parts = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask", "label_names")
    return Graph.from_arcs(
        arcs.row[kept],
        arcs.col[kept],
        num_nodes=graph.num_nodes,
        **{key: getattr(graph, key) for key in parts},
    )
