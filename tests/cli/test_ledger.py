"""`gapgnn ledger`: what people and programs see of the budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn.cli.main import main
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph.datasets import load as datasets
from gapgnn.graph.graph import Graph
from gapgnn.privacy.ledger.ledger import Ledger

FINGERPRINT = "5f" * 32


def tiny(name: str, *, split_seed: int | None = 0) -> Graph:
    """Stand in for the registry, which needs no part in these promises."""
    if name not in ("tiny", "tiny-directed"):
        raise InputError(f"`dataset` must be a known name. Got {name!r}.")
    directed = name == "tiny-directed"
    features = np.eye(3)
    return Graph.from_arcs(
        [0, 1], [1, 2], num_nodes=3, features=features, directed=directed, name=name
    )


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("GAPGNN_LEDGER", str(tmp_path / "ledger.sqlite"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(datasets, "load_dataset", tiny)
    return Ledger()


def spend(ledger: Ledger, fingerprint: str, **options: Any) -> str:
    given = {"level": "edge", "relation": "undirected", "epsilon": 0.5, "delta": 1e-6, **options}
    return ledger.charge(fingerprint, events=[{"event": "Gaussian"}], purpose="GAP fit", **given).id


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["ledger", *words, "--json"]) == 0
    out = capsys.readouterr().out
    result: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1
    return result


def test_looking_at_no_ledger_makes_none(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Nothing was granted or charged yet" in captured.err
    assert answer(capsys) == {"ledger": str(ledger.path), "budgets": []}
    assert not ledger.path.exists()


def test_a_granted_budget_limits_and_the_table_shows_it(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "grant", "tiny", "--epsilon", "4", "--delta", "1e-5"]) == 0
    spend(ledger, tiny("tiny").fingerprint)
    capsys.readouterr()
    assert main(["ledger"]) == 0
    table = capsys.readouterr().out
    for shown in ("tiny", "edge", "undirected", "4 / 1e-05", "0.5 / 1e-06", "3.5 / 9e-06"):
        assert shown in table
    (budget,) = answer(capsys)["budgets"]
    assert (budget["granted_epsilon"], budget["left_epsilon"], budget["charges"]) == (4.0, 3.5, 1)


def test_auto_relation_follows_the_graph(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = ("--epsilon", "1", "--delta", "1e-5")
    assert answer(capsys, "grant", "tiny", *numbers)["budget"]["relation"] == "undirected"
    assert answer(capsys, "grant", "tiny-directed", *numbers)["budget"]["relation"] == "directed"
    node = answer(capsys, "grant", *numbers, "tiny", "--level", "node")["budget"]
    assert (node["level"], node["relation"]) == ("node", "add-remove")


def test_a_budget_can_be_granted_to_a_fingerprint_or_its_beginning(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = ("--epsilon", "2", "--delta", "1e-5")
    with pytest.raises(InputError, match="`--relation` must be given"):
        main(["ledger", "grant", FINGERPRINT, *numbers])
    spend(ledger, FINGERPRINT, name="friends.csv")
    budget = answer(capsys, "grant", FINGERPRINT[:8], *numbers)["budget"]
    assert (budget["fingerprint"], budget["spent_epsilon"]) == (FINGERPRINT, 0.5)
    assert answer(capsys, "grant", "friends.csv", *numbers)["budget"]["left_epsilon"] == 1.5


def test_an_ambiguous_data_set_is_refused(ledger: Ledger) -> None:
    for fingerprint in (FINGERPRINT, "5f" + "00" * 31):
        spend(ledger, fingerprint, name="twins")
    with pytest.raises(InputError, match="beginning of one fingerprint"):
        main(["ledger", "show", "5f"])
    with pytest.raises(InputError, match="`DATASET` must name one data set"):
        main(["ledger", "show", "twins"])


def test_a_grant_by_name_goes_to_the_known_content_not_to_a_namesake(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    spend(ledger, FINGERPRINT, name="tiny")
    granted = answer(capsys, "grant", "tiny", "--epsilon", "1", "--delta", "1e-5")["budget"]
    assert granted["fingerprint"] == tiny("tiny").fingerprint != FINGERPRINT


def test_show_lists_the_charges(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    first = spend(ledger, FINGERPRINT, name="tiny", count=10)
    ledger.complete(first)
    second = spend(ledger, FINGERPRINT)
    assert main(["ledger", "show", "tiny"]) == 0
    table = capsys.readouterr().out
    for shown in (first, second, "GAP fit", "0.5 / 1e-06", "10", "yes", "no"):
        assert shown in table
    charges = answer(capsys, "show", FINGERPRINT)["charges"]
    assert [charge["id"] for charge in charges] == [first, second]
    assert charges[0]["events"] == [{"event": "Gaussian"}]


def test_options_may_stand_before_or_after_the_action(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = Ledger(tmp_path / "other.sqlite")
    spend(other, FINGERPRINT)
    for words in (
        ["--ledger", str(other.path), "--json", "show", FINGERPRINT],
        ["show", FINGERPRINT, "--ledger", str(other.path), "--json"],
    ):
        assert main(["ledger", *words]) == 0
        assert len(json.loads(capsys.readouterr().out)["charges"]) == 1
    assert not ledger.path.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grant", "tiny", "--epsilon", "0", "--delta", "1e-5"], "`--epsilon` must be positive"),
        (["grant", "tiny", "--epsilon", "1", "--delta", "1"], "`--delta` must be"),
        (["grant", "tiny", "--epsilon", "1"], "required: --delta"),
        (
            ["grant", "tiny", "--epsilon", "1", "--delta", "1e-5", "--relation", "replace"],
            "`relation` at level 'edge'",
        ),
        (["grant", "nowhere", "--epsilon", "1", "--delta", "1e-5"], "must be a known name"),
        (["shwo"], "invalid choice: 'shwo'"),
        (["--jsno"], "unknown option '--jsno'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    ledger: Ledger, words: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        main(["ledger", *words])
    assert not ledger.path.exists()


def test_a_grant_below_what_is_spent_is_refused(ledger: Ledger) -> None:
    spend(ledger, tiny("tiny").fingerprint)
    with pytest.raises(PrivacyError, match="below what is spent"):
        main(["ledger", "grant", "tiny", "--epsilon", "0.4", "--delta", "1e-5"])


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["ledger", "--help"])
    assert end.value.code == 0
    assert "gapgnn ledger grant social --epsilon 4 --delta 1e-5" in capsys.readouterr().out
