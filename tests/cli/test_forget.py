"""`gapgnn forget`: shown before it is done, all folders or none, and a check for backups."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gapgnn.cli.main import main
from gapgnn.errors import GapgnnError, InputError
from gapgnn.methods import load_folder
from gapgnn.privacy.ledger import Ledger


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a ledger and two models on people in common."""
    from gapgnn import LabelGAP
    from gapgnn.graph.datasets.synthetic import social_graph

    place = tmp_path_factory.mktemp("trained")
    ledger = Ledger.init(place / "ledger.sqlite")
    for name, people in (("january", 300), ("february", 320)):
        graph = social_graph(num_nodes=people, mean_degree=8, num_classes=3, seed=0)
        LabelGAP(epochs=1, hops=1, ledger=ledger.path).fit(graph).save(place / name)
    return place


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shutil.copytree(trained, tmp_path / "own"))
    monkeypatch.setenv("GAPGNN_LEDGER", "ledger.sqlite")
    return Path()


def people(folder: str) -> int:
    (released,) = load_folder(Path(folder)).hops.values()
    return len(released.ids)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["forget", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_says_what_would_go_and_changes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    words = ["--id", "7", "0310", "--model", "january", "february"]
    found = run(capsys, *words, "--plan")
    assert [one["people"] for one in found["models"]] == [1, 2]
    assert (found["ids"], found["unknown"], found["changed"]) == (2, 0, False)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert main(["forget", *words, "--plan"]) == 0
    assert "february would lose 2 rows of 2 people in 1 release (training)." in (
        capsys.readouterr().out
    )


def test_an_option_that_is_given_again_adds_to_the_first(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise whoever was named first would stay without a word."""
    words = ["--id", "7", "--id", "8", "--model", "january", "--model", "february"]
    found = run(capsys, *words, "--plan")
    assert [one["people"] for one in found["models"]] == [2, 2]


def test_one_person_in_several_spellings_is_one_in_the_plan_and_in_the_ledger(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--id", "7", "007", "+7.0", "8", "--model", "january"]
    for more in (["--plan"], []):
        (found,) = run(capsys, *words, *more)["models"]
        assert (found["people"], list(found["rows"].values())) == (2, [2])
    assert [one.people for one in Ledger("ledger.sqlite").removals()] == [2]


def test_people_go_from_every_model_named_and_predictions_are_without_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["predict", "--model", "january", "--cached", "--out", "before.jsonl"])
    found = run(capsys, "--id", "7", "310", "--model", "january", "february")["models"]
    assert [sum(one["rows"].values()) for one in found] == [1, 2]
    assert (people("january"), people("february")) == (299, 318)
    assert main(["predict", "--model", "january", "--cached", "--out", "after.jsonl"]) == 0
    ids = [
        [json.loads(line)["id"] for line in Path(name).read_text().splitlines()]
        for name in ("before.jsonl", "after.jsonl")
    ]
    assert set(ids[0]) - set(ids[1]) == {7}
    Path("one.csv").write_text("id\n7\n")
    unknown = ["predict", "--model", "january", "--cached", "--nodes", "one.csv"]
    with pytest.raises(InputError, match="were not in the graph of training"):
        main([*unknown, "--out", "x.csv"])
    for folder in ("january", "february"):
        assert main(["ledger", "verify", "--against", folder]) == 0


def test_an_id_that_no_model_has_is_refused_before_anything_changes(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--id", "7", "9999", "--model", "january", "february"]
    with pytest.raises(InputError, match=r"Got 1 of 2 in none; nothing was removed") as refusal:
        main(["forget", *words])
    # A message may end up in somebody's log.
    assert "9999" not in str(refusal.value)
    assert (people("january"), people("february")) == (300, 320)
    found = run(capsys, *words, "--ignore-unknown")
    assert found["unknown"] == 1
    assert people("january") == 299


def test_a_folder_that_is_none_leaves_the_others_as_they_were(place: Path) -> None:
    for wrong in ("nowhere", "ledger.sqlite"):
        with pytest.raises(GapgnnError) as refusal:
            main(["forget", "--id", "7", "--model", "january", wrong])
        assert "\n" not in str(refusal.value)
        assert people("january") == 300


@pytest.mark.parametrize("text", ["7\n\n8\n", "\ufeff7\r\n8\r\n7\r\n", " 7\n+8"])
def test_ids_come_from_a_file_or_standard_input(
    place: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("withdrawn.txt").write_bytes(text.encode())
    found = run(capsys, "--ids-file", "withdrawn.txt", "--model", "january", "--plan")
    assert found["models"][0]["people"] == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(text.lstrip("\ufeff")))
    assert run(capsys, "--ids-file", "-", "--model", "january")["models"][0]["people"] == 2
    assert people("january") == 298


@pytest.mark.parametrize(
    ("content", "code"), [(b"\xff\xfe7\x00", 2), (b"\n \n", 2), (None, 2)], ids=str
)
def test_a_file_without_ids_is_one_line(place: Path, content: bytes | None, code: int) -> None:
    if content is not None:
        Path("ids.txt").write_bytes(content)
    words = ["forget", "--ids-file", "ids.txt", "--model", "january", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "gapgnn", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stderr.startswith("gapgnn: ")
    assert done.stderr.count("\n") == 1
    assert "error" in json.loads(done.stdout)
    assert people("january") == 300


def test_verify_finds_a_folder_that_was_restored_from_a_backup(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("january", "backup")
    run(capsys, "--id", "7", "--model", "january")
    assert main(["ledger", "verify", "--against", "january"]) == 0
    assert main(["ledger", "verify", "--against", "backup"]) == 4
    assert "removed on" in capsys.readouterr().err
    shutil.rmtree("january")
    shutil.copytree("backup", "january")
    assert main(["ledger", "verify", "--against", "january"]) == 4


def test_an_interrupted_removal_is_finished_by_the_same_command(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*words: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record_removal", killed)
        with pytest.raises(Killed):
            main(["forget", "--id", "7", "--model", "january"])
    assert people("january") == 299
    assert main(["ledger", "verify", "--against", "january"]) == 4
    assert "is not finished" in capsys.readouterr().err
    run(capsys, "--id", "8", "--model", "january", "--plan")
    assert Ledger("ledger.sqlite").removals() == [], "a plan changes nothing, also not this"
    # The id is not known any more, and that is no mistake here.
    run(capsys, "--id", "7", "--model", "january")
    assert main(["ledger", "verify", "--against", "january"]) == 0
    assert len(Ledger("ledger.sqlite").removals()) == 1
