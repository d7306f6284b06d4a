"""Whoever is removed from a folder is gone from every file, and nobody else notices."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from methodgraphs import small_graph
from suited import suited

from gapgnn import GAP, Graph, LabelGAP, Ledger, NeighborVote, NodeLabelGAP, PrivateHops, load_model
from gapgnn.errors import GapgnnError, InputError, PrivacyError
from gapgnn.evaluation.report.model import render_model
from gapgnn.graph.transforms import induced
from gapgnn.methods import finish_removals, forget, load_folder, plan_removal, unfinished
from gapgnn.methods import folder as folder_module
from gapgnn.privacy.ledger import LedgerNotice

GONE = ["ann.00017@bank", "ann.00101@bank"]
# In other spellings of the same ids.
ASKED = ["ANN.00017@bank ", "ann.00101@bank"]

# Products of matrices of another size are rounded otherwise.
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return a graph of people whose ids are found in any file that holds them."""
    whole = small_graph(num_nodes=200)
    arcs = whole.adjacency().tocoo()
    rows = ("features", "labels", "train_mask", "val_mask", "test_mask")
    return Graph.from_arcs(
        arcs.row,
        arcs.col,
        num_nodes=whole.num_nodes,
        label_names=whole.label_names,
        ids=np.array([f"ann.{number:05}@bank" for number in range(whole.num_nodes)]),
        **{name: getattr(whole, name) for name in rows},
    )


@pytest.fixture(scope="module")
def left(graph: Graph) -> Graph:
    """Return the tables without them: neither a row nor an entry of a list."""
    return induced(graph, ~np.isin(graph.ids, GONE))


METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    # With other noise the mixing weight may be 0, and edges are not read.
    "label-gap": (LabelGAP, {"level": "edge", "hops": 1, "insecure_noise_seed": 0}),
    "gap": (GAP, {"level": "edge", "hops": 1}),
    "gap at node level": (GAP, {"level": "node", "hops": 1}),
    "node-label-gap": (NodeLabelGAP, {"hop_share": 0.8}),
    "vote": (NeighborVote, {"level": "node"}),
}
shared = {"epochs": 2, "epsilon": 4.0, "hidden": 8, "batch_size": 50}


@pytest.fixture(scope="module")
def trained(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a method's model, beside its ledger."""
    known: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in known:
            place = tmp_path_factory.mktemp("trained")
            ledger = Ledger.init(place / "ledger.sqlite")
            method, own = METHODS[name]
            model = suited(method, {**shared, "ledger": ledger.path}, **own).fit(graph)
            model.save(place / "model")
            np.save(place / "answers.npy", model.predict_proba(graph))
            known[name] = place
        return known[name]

    return folder


@pytest.fixture
def place(trained: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return shutil.copytree(trained(getattr(request, "param", "label-gap")), tmp_path / "own")


def ledger_of(place: Path) -> Ledger:
    return Ledger(place / "ledger.sqlite")


def removed(place: Path, ids: Sequence[str] = ASKED) -> None:
    forget(place / "model", ids, ledger_of(place))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file()}  # fmt: skip


of_every_method = pytest.mark.parametrize("place", METHODS, indirect=True)


@of_every_method
def test_others_are_answered_as_before_and_nothing_is_charged(
    place: Path, graph: Graph, left: Graph
) -> None:
    ledger = ledger_of(place)
    model = load_model(place / "model", ledger=ledger.path)
    stays = ~np.isin(graph.ids, GONE)
    before = model.predict_proba(graph)[stays]
    removed(place)
    charges = ledger.entries()
    again = load_model(place / "model", ledger=ledger.path)
    if model.level == "edge":
        np.testing.assert_allclose(again.predict_cached(left.ids), before, atol=ROUNDING)
    with pytest.warns(LedgerNotice, match="these are the others"):
        after = again.predict_proba(left)
    # Whose list named somebody who is gone reads one neighbour less, if lists are read at all.
    same = (abs(after - before) <= ROUNDING).all(axis=1)
    assert same.all() if model.method != "vote" else same.mean() > 0.5
    if model.method != "vote":
        assert again.prediction_guarantee(left) is None
    assert ledger.entries() == charges


@of_every_method
def test_who_is_gone_is_unknown(place: Path, graph: Graph) -> None:
    removed(place)
    model = load_model(place / "model", ledger=ledger_of(place).path)
    with pytest.raises(InputError, match=r"2 of the ids are not known: .*Leave them out"):
        model.predict_proba(graph)
    if model.level == "edge":
        refusals = []
        for name in (GONE[0], "nobody"):
            with pytest.raises(InputError) as refusal:
                model.predict_cached(np.array([name]))
            refusals.append(str(refusal.value).replace(name, "..."))
        assert refusals[0] == refusals[1]


@of_every_method
def test_no_file_holds_their_ids_or_rows_and_digests_are_renewed(place: Path) -> None:
    saved = load_folder(place / "model")
    (before,) = saved.hops.values()
    removed(place)
    again = load_folder(place / "model")
    (after,) = again.hops.values()
    assert len(after.ids) == len(before.ids) - 2
    mine = ~np.isin(before.ids, after.ids)
    rows = [row.numpy().tobytes() for hop in before.hops for row in hop[mine] if row.ndim]
    for name, content in contents(place / "model").items():
        for text in (*GONE, *ASKED, *before.ids[mine].tolist()):
            assert text.encode() not in content, name
        assert not any(row in content for row in rows), name
    # The card is as it was handed out, and so are the weights.
    for name in ("card.json", "card.md", "weights.safetensors"):
        assert again.digests[name] == saved.digests[name]
    assert set(contents(place / "model")) == set(again.digests)


@pytest.mark.parametrize("place", ["gap at node level", "node-label-gap", "vote"], indirect=True)
def test_a_folder_at_node_level_has_no_id_of_anybody_and_still_answers(
    place: Path, graph: Graph
) -> None:
    for name, content in contents(place / "model").items():
        assert b"ann." not in content, name
    (released,) = load_folder(place / "model").hops.values()
    assert released.is_keyed
    assert sorted(released.ids) == released.ids.tolist()  # and not in the order of the table
    model = load_model(place / "model", ledger=ledger_of(place).path)
    charges = ledger_of(place).entries()
    answers = np.load(place / "answers.npy")
    np.testing.assert_allclose(model.predict_proba(graph), answers, atol=ROUNDING)
    assert ledger_of(place).entries() == charges
    # The same people under another ledger have other hashes, and it cannot tell whose they are.
    other = Ledger.init(place / "other.sqlite")
    with pytest.raises(PrivacyError, match="does not know"):
        load_model(place / "model", ledger=other.path).predict(graph)
    assert not set(other.pseudonyms(released.release, graph.ids)) & set(released.ids)


def test_hashes_of_one_person_differ_from_charge_to_charge(place: Path) -> None:
    ledger = ledger_of(place)
    names = [ledger.pseudonyms(charge, np.array(["007"]))[0] for charge in ("a", "b")]
    assert names[0] != names[1]
    assert ledger.pseudonyms("a", np.array([7]))[0] == names[0]


def test_a_folder_at_edge_level_keeps_ids_which_its_answers_list(place: Path, graph: Graph) -> None:
    (released,) = load_folder(place / "model").hops.values()
    assert not released.is_keyed
    assert released.ids.tolist() == graph.ids.tolist()


def test_the_ledger_says_how_many_and_when_and_names_nobody(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["gapgnn", "forget", "--id", *ASKED])
    ledger = ledger_of(place)
    spent = ledger.summary()
    removed(place)
    (note,) = [one for one in ledger.notes() if one.kind == "forgotten"]
    (charge,) = ledger.entries()
    assert json.loads(note.about)["releases"] == {charge.id: 2}
    assert note.command == "gapgnn forget"
    (entry,) = ledger.removals()
    assert entry.link == ledger.chain()[-1].link
    assert load_folder(place / "model").config["forgotten"][0]["link"] == entry.link
    assert b"ann" not in (place / "ledger.sqlite").read_bytes().lower().replace(b"an new", b"")
    assert ledger.problems() == []
    # A withdrawal gives no budget back: what was released stays released.
    assert ledger.summary() == spent


def test_the_ledger_counts_people_who_had_a_row_and_nobody_else(place: Path) -> None:
    removed(place, [*ASKED, "nobody@bank"])
    assert [entry.people for entry in ledger_of(place).removals()] == [2]


def test_a_removed_entry_of_the_ledger_is_found(place: Path) -> None:
    import sqlite3

    ledger = ledger_of(place)
    removed(place)
    with sqlite3.connect(ledger.path) as db:
        db.execute("DELETE FROM notes WHERE kind = 'forgotten'")
    assert ledger.problems()


def test_a_restored_backup_is_found_by_the_ledger(place: Path) -> None:
    ledger = ledger_of(place)
    backup = shutil.copytree(place / "model", place / "backup")
    assert unfinished(place / "model", ledger) == []
    removed(place)
    assert unfinished(place / "model", ledger) == []
    (found,) = unfinished(backup, ledger)
    assert "from another copy" in found
    forget(backup, ASKED, ledger)
    # Both copies have been through a removal of their own, and each knows of one.
    assert len(unfinished(backup, ledger)) == 1


def test_pages_and_links_agree_before_and_after(place: Path) -> None:
    ledger = ledger_of(place)
    before = render_model(place / "model", ledger=ledger.path)
    removed(place)
    after = render_model(place / "model", ledger=ledger.path)
    saved = load_folder(place / "model")
    assert saved.card.ledger is not None
    assert saved.card.ledger.head in {entry.link for entry in ledger.chain()}
    changed = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True)
               if pair[0] != pair[1]]  # fmt: skip
    # Only digests of files differ, and none of a file that is not there.
    names = [name for name in saved.digests if "hops/" in name or name == "config.json"]
    assert all(any(name in new for name in names) or len(new) < 90 for _, new in changed), changed
    for name in names:
        assert saved.digests[name] in after


def test_released_rows_with_their_table_are_renewed_too(
    graph: Graph, left: Graph, tmp_path: Path
) -> None:
    from pyarrow import parquet

    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    hops = PrivateHops(level="edge", epsilon=4.0, hops=1, ledger=ledger.path)
    before = hops.fit_transform(graph)
    hops.save(tmp_path / "model", format="parquet")
    removed(tmp_path)
    (table,) = tmp_path.glob("model/hops/*.parquet")
    assert parquet.read_table(table)["id"].to_pylist() == left.ids.tolist()
    again = PrivateHops.load(tmp_path / "model", ledger=ledger.path)
    stays = ~np.isin(graph.ids, GONE)
    for one, other in zip(again.transform(), before, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.detach().numpy()[stays])


def test_every_release_of_a_folder_loses_them(graph: Graph, place: Path) -> None:
    ledger = ledger_of(place)
    model = load_model(place / "model", ledger=ledger.path)
    month = induced(graph, np.arange(150), dangle=False)
    model.predict(month)
    model.save_releases(place / "model")
    plan = plan_removal(place / "model", ["ann.00017@bank", "ann.00180@bank"], ledger)
    assert sorted(plan.rows.values()) == [1, 2]
    assert sorted(plan.purposes.values()) == ["prediction", "training"]
    assert plan.known.tolist() == [True, True]
    removed(place, ["ann.00017@bank", "ann.00180@bank"])
    sizes = [len(one.ids) for one in load_folder(place / "model").hops.values()]
    assert sizes == [198, 149]
    again = load_model(place / "model", ledger=ledger.path)
    # A release added later lies beside the renewed ones.
    with pytest.warns(LedgerNotice):
        again.predict(induced(graph, ~np.isin(graph.ids, ["ann.00017@bank", "ann.00180@bank"])))
    again.predict(induced(graph, np.arange(20, 60)))
    again.save_releases(place / "model")
    assert len(load_folder(place / "model").hops) == 3


def test_a_backup_with_further_releases_is_found_too(graph: Graph, place: Path) -> None:
    ledger = ledger_of(place)
    model = load_model(place / "model", ledger=ledger.path)
    model.predict(induced(graph, np.arange(150), dangle=False))
    model.save_releases(place / "model")
    backup = shutil.copytree(place / "model", place / "backup")
    # A person of the training alone.
    removed(place, ["ann.00180@bank"])
    (found,) = unfinished(backup, ledger)
    assert "from another copy" in found


@pytest.mark.parametrize("place", ["gap at node level"], indirect=True)
def test_people_who_leave_together_are_hidden_at_the_price_of_a_group(
    graph: Graph, place: Path
) -> None:
    ledger = ledger_of(place)
    model = load_model(place / "model", ledger=ledger.path)

    def together(count: int) -> float | None:
        ids = [f"ann.{number:05}@bank" for number in range(count)]
        return plan_removal(place / "model", ids, ledger).epsilon_together()

    one, two = together(1), together(2)
    assert one == pytest.approx(model.card_.epsilon, rel=1e-3)
    # Twice the distance under the same noise, at the same delta.
    assert 2 * one < two < 4 * one
    assert together(10) is not None
    assert together(11) is None
    # A person may be in every release of the folder.
    model.predict(induced(graph, np.arange(150), dangle=False))
    model.save_releases(place / "model")
    assert together(1) == pytest.approx(model.card_.composed_epsilon, rel=1e-3)


def test_below_node_level_no_price_of_a_group_of_people_is_stated(place: Path) -> None:
    assert plan_removal(place / "model", ASKED, ledger_of(place)).epsilon_together() is None


class Killed(BaseException):
    """Stands for a kill: nothing after it is executed."""


def test_a_kill_at_any_step_leaves_the_old_folder_or_the_new_one(
    place: Path, left: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step that changes a file is one at which the process may be gone."""
    steps = 0
    last = 10**6

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*words: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > last:
                raise Killed
            return real(*words, **options)

        return step

    for name in ("replace", "fsync", "unlink", "open"):
        monkeypatch.setattr(folder_module.os, name, dying(getattr(os, name)))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
    monkeypatch.setattr(Ledger, "record_removal", dying(Ledger.record_removal))
    removed(shutil.copytree(place, tmp_path / "counted"))
    total, seen = steps, set()
    assert total > 12
    for number in range(total):
        twin = shutil.copytree(place, tmp_path / f"killed {number}")
        ledger = ledger_of(twin)
        steps, last = 0, number
        with pytest.raises(Killed):
            removed(twin)
        last = 10**6
        people = load_folder(twin / "model").hops.popitem()[1].ids
        assert len(people) in (200, 198)
        seen.add(len(people))
        if len(people) == 200:
            assert ledger.removals() == []
        # Repeated, it is finished: whether or not the ids are still known.
        finish_removals([twin / "model"], ledger)
        removed(twin)
        (again,) = load_folder(twin / "model").hops.values()
        assert again.ids.tolist() == left.ids.tolist()
        assert set(contents(twin / "model")) == set(load_folder(twin / "model").digests)
        assert unfinished(twin / "model", ledger) == []
        assert len(ledger.removals()) == 1
        assert ledger.problems() == []
    assert seen == {200, 198}


def test_a_kill_during_a_second_removal_leaves_what_the_first_one_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed(place)
    before = load_folder(place / "model").hops.popitem()[1]

    def killed(*words: Any, **options: Any) -> None:
        raise Killed

    # New files are written by then, and nothing names them.
    monkeypatch.setattr(folder_module, "_write_config", killed)
    with pytest.raises(Killed):
        removed(place, ["ann.00050@bank"])
    (after,) = load_folder(place / "model").hops.values()
    assert after.ids.tolist() == before.ids.tolist()


def test_a_reader_in_between_sees_one_or_the_other(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody loads the folder while its files change under him."""
    real, ledger = folder_module._read_config, ledger_of(place)
    hidden = [True]

    def between(folder: Path) -> dict[str, Any]:
        config = real(folder)
        if hidden:
            hidden.clear()
            forget(place / "model", ASKED, ledger)
        return config

    monkeypatch.setattr(folder_module, "_read_config", between)
    (released,) = load_folder(place / "model").hops.values()
    assert len(released.ids) == 198


REFUSED: list[tuple[Callable[[Path], Ledger], Sequence[str], str]] = [
    (lambda place: Ledger.init(place / "other.sqlite"), GONE, "Name the ledger of the training"),
    (ledger_of, [f"ann.{number:05}@bank" for number in range(200)], "remove the folder"),
]


@pytest.mark.parametrize(("ledger", "ids", "why"), REFUSED, ids=["other ledger", "everybody"])
def test_what_cannot_be_removed_changes_nothing(
    place: Path, ledger: Callable[[Path], Ledger], ids: Sequence[str], why: str
) -> None:
    named, before = ledger(place), contents(place / "model")
    with pytest.raises(GapgnnError, match=why) as refusal:
        forget(place / "model", ids, named)
    assert "\n" not in str(refusal.value)
    assert contents(place / "model") == before


def test_without_a_signature_that_the_ledger_requires_nothing_is_removed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapgnn.privacy.ledger import make_key

    ledger, before = ledger_of(place), contents(place / "model")
    monkeypatch.setenv("GAPGNN_SIGNING_KEY", str(tmp_path / "ann.pem"))
    ledger.add_signer("ann", make_key(tmp_path / "ann.pem"))
    ledger.set("require-signatures", "on")
    monkeypatch.delenv("GAPGNN_SIGNING_KEY")
    with pytest.raises(PrivacyError, match="requires signatures"):
        removed(place)
    assert contents(place / "model") == before
    monkeypatch.setenv("GAPGNN_SIGNING_KEY", str(tmp_path / "ann.pem"))
    removed(place)
    assert ledger.chain()[-1].signer == "ann"


def test_the_service_has_no_line_of_theirs(place: Path) -> None:
    from gapgnn.serving import rows_of_model

    before = rows_of_model(place / "model", not_private=True).rows
    removed(place)
    after = rows_of_model(place / "model", not_private=True).rows
    assert set(before) - set(after) == set(GONE)
    for name, line in after.items():
        now, then = json.loads(line), json.loads(before[name])
        assert now.pop("probability") == pytest.approx(then.pop("probability"), abs=ROUNDING)
        assert now == then
