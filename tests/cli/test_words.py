"""The user's words for people and edges are said once, and stand in everything that is stated."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from methodgraphs import write_tables
from schemacases import SCHEMA

from gapgnn import load_model, read_tables
from gapgnn.graph import Wording
from gapgnn.graph.tables import Preparation, Schema

QUICK = ["--epochs", "2", "--epsilon", "4", "--hidden", "8", "--no-compare"]
WORDS = ["--entity", "user", "--link", "payment"]
TOGETHER = "all payments between any two users together"
USUAL = re.compile(r"\b(an user|person|people|friend\w*|links?)\b", re.IGNORECASE)


def tables_of(folder: Path, *, seed: int = 0) -> list[str]:
    """Write tables whose names do not speak of people and friends."""
    words = write_tables(folder, seed=seed)
    for old, new in (("people.csv", "rows.csv"), ("friends.csv", "pairs.csv")):
        (folder / old).rename(folder / new)
        words[words.index(str(folder / old))] = str(folder / new)
    return words


@pytest.fixture
def tables(tmp_path: Path, ledger) -> list[str]:
    return tables_of(tmp_path / "data")


def page_of(gapgnn, folder: Path, *words: str) -> str:
    code, _, err = gapgnn("report", folder, "--out", folder.with_suffix(".html"), *words)
    assert code == 0, err
    page = folder.with_suffix(".html").read_text(encoding="utf-8")
    return re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]+>", " ", page, flags=re.S)


def test_train_says_what_is_protected_in_the_users_words(gapgnn, tables, tmp_path):
    model = tmp_path / "model"
    code, out, err = gapgnn("train", *tables, *QUICK, *WORDS, "--out", model)
    assert code == 0, err
    said = " ".join(out.split())
    assert f"whether or not {TOGETHER} (one undirected edge) are in the graph" in said
    card = json.loads((model / "card.json").read_text())
    assert card["wording"] == {
        "entity": "user",
        "entities": "users",
        "link": "payment",
        "links": "payments",
    }
    covered = " ".join(card["covered"])
    assert "All payments between the same two users together: every row" in covered
    assert TOGETHER in (model / "card.md").read_text()
    del card["templates"], card["wording"]
    for text in (said, err, json.dumps(card), (model / "card.md").read_text()):
        assert not USUAL.search(text)


def test_predict_and_report_know_the_words_of_the_training(gapgnn, tables, tmp_path):
    model = tmp_path / "model"
    assert gapgnn("train", *tables, *QUICK, *WORDS, "--out", model)[0] == 0
    month = tables_of(tmp_path / "month", seed=1)
    words = ["--model", model, *month, "--out", tmp_path / "labels.csv", "--charge"]
    code, _, err = gapgnn("predict", *words)
    assert code == 0, err
    (price,) = [line for line in err.splitlines() if line.startswith("Price: ")]
    assert price.endswith(f"for {TOGETHER} (one undirected edge).")
    assert "No budget is set for these users" in err
    assert TOGETHER in (model / "card.md").read_text()
    page = page_of(gapgnn, model)
    assert TOGETHER in page
    assert "are there payments between these two users in the data?" in page
    assert not USUAL.search(page)
    other = page_of(gapgnn, model, "--entity", "company/companies")
    assert "all payments between any two companies together" in other
    assert "user" not in other.replace("reuse", "")


def test_a_schema_declares_the_words_of_a_model_at_node_level(gapgnn, tables, tmp_path):
    schema = replace(SCHEMA, entity="user", link="payment")
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    assert Schema.from_dict(schema.to_dict()).entity == "user"
    model = tmp_path / "model"
    options = ["--level", "node", "--batch-size", "30", "--out", model]
    options += ["--schema", tmp_path / "schema.toml"]
    code, out, err = gapgnn("train", *tables, *QUICK, *options)
    assert code == 0, err
    assert "any one user's record" in " ".join(out.split())
    card = load_model(model).card_
    assert "number of training users" in dict(card.public)
    assert not USUAL.search((model / "card.md").read_text())


def test_without_words_nobody_is_a_friend(gapgnn, tables, tmp_path):
    model = tmp_path / "model"
    code, out, err = gapgnn("train", *tables, *QUICK, "--out", model)
    assert code == 0, err
    said = " ".join(out.split())
    assert "all edges between any two people together (one undirected edge)" in said
    for text in (out, err, (model / "card.md").read_text(), page_of(gapgnn, model)):
        assert "friend" not in text.replace("friends", "")


def test_a_store_and_a_known_data_set_have_words_too(gapgnn, tables, tmp_path):
    store = tmp_path / "store"
    assert gapgnn("partition", *tables, *WORDS, "--out", store)[0] == 0
    known = tmp_path / "known"
    words = ["--entity", "player", "--link", "match/matches"]
    assert gapgnn("partition", "--dataset", "social", *words, "--out", known)[0] == 0
    for folder, found in ((store, "all payments between any two users"), (known, "all matches")):
        model = tmp_path / f"{folder.name}-model"
        code, out, err = gapgnn("train", "--store", folder, *QUICK, "--out", model)
        assert code == 0, err
        assert found in " ".join(out.split())


@pytest.mark.parametrize("word", ["", "a\x1b[31mb", "x" * 60, "a/b/c", "two\nlines", "=1+1", "/"])
@pytest.mark.parametrize("option", ["--entity", "--link"])
def test_a_word_that_is_none_is_refused_before_anything_is_read(
    gapgnn, tables, ledger, option, word
):
    code, out, err = gapgnn("train", *tables, *QUICK, option, word)
    assert (code, out) == (2, "")
    assert f"`{option}` must be a word" in err
    assert "\x1b" not in err
    assert len(err.strip().splitlines()) == 1
    assert ledger.entries() == []


def test_in_python_tables_and_any_other_graph_have_words(tables):
    edges, nodes, label = tables[1::2]
    graph = read_tables(edges=edges, nodes=nodes, label=label, entity="Kundin/Kundinnen").graph
    assert graph.preparation.entity == "Kundin/Kundinnen"
    assert Preparation.from_dict(graph.preparation.to_dict()) == graph.preparation
    assert graph.wording == Wording("Kundin", "Kundinnen")
    named = graph.with_words(link="Überweisung/Überweisungen")
    assert named.wording.entities == "Kundinnen"
    assert named.fingerprint == graph.fingerprint
