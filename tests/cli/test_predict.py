"""`gapgnn predict`: labels from a saved model, by id and by name."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pyarrow.csv as pcsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from methodgraphs import write_tables
from schemacases import SCHEMA, declared
from suited import suited

from gapgnn import (
    MLP,
    LabelGAP,
    Ledger,
    NeighborVote,
    NodeLabelGAP,
    load_model,
    read_tables,
)
from gapgnn.graph.tables.schema import Ignored, Number
from gapgnn.graph.transforms import random_split

NODE = {"method": NodeLabelGAP, "schema": SCHEMA, "level": "node", "batch_size": 30}
# What every JSON object of a command that may charge says.
RECEIPT = {"charges", "budgets", "ledger", "folder", "seconds"}
YEARS = {"2004", "2005", "2006"}
READERS = {
    ".csv": pcsv.read_csv,
    ".tsv": lambda path: pcsv.read_csv(path, parse_options=pcsv.ParseOptions(delimiter="\t")),
    ".parquet": pq.read_table,
    ".feather": feather.read_table,
}


@pytest.fixture
def tables(tmp_path) -> list[str]:
    return write_tables(tmp_path / "data")


@pytest.fixture
def model(tmp_path, tables, ledger) -> Path:
    return saved(tmp_path / "model", tables)


def saved(folder: Path, tables: list[str], method=LabelGAP, schema=None, **options) -> Path:
    read = read_tables(edges=tables[1], nodes=tables[3], label="year", schema=schema)
    shared = {"epsilon": 4.0, "epochs": 3, "hidden": 8}
    settings = {"level": "edge", **options}
    if method is LabelGAP:
        # A mixing weight that noise may set to 0 would leave further graphs unread, and free.
        settings["folds"] = 0
    suited(method, shared, **settings).fit(random_split(read.graph, seed=0)).save(folder)
    return folder


def column(out: Path, name: str) -> list:
    return pcsv.read_csv(out)[name].to_pylist()


@pytest.mark.parametrize("suffix", READERS)
def test_every_format_holds_ids_and_label_names(suffix, gapgnn, model, tmp_path, ledger):
    out = tmp_path / f"labels{suffix}"
    code, text, err = gapgnn("predict", "--model", model, "--out", out)
    assert (code, err) == (0, "")
    why = "the rows that were released in training answer"
    assert text == f"120 labels written to {out}; no budget was spent: {why}\n"
    table = READERS[suffix](out)
    assert table.column_names == ["id", "label", "probability", "graph"]
    assert set(table["graph"].to_pylist()) == {"training"}
    assert table["id"].to_pylist() == [f"p{row}" for row in range(120)]
    assert {str(label) for label in table["label"].to_pylist()} <= YEARS
    wanted = load_model(model).predict_proba().max(axis=1)
    assert table["probability"].to_pylist() == pytest.approx(wanted.tolist())
    assert len(ledger.entries()) == 1
    assert not list(tmp_path.glob(".*"))


def test_json_lines_are_one_object_each(gapgnn, model, tmp_path):
    out = tmp_path / "labels.jsonl"
    assert gapgnn("predict", "--model", model, "--out", out, "--with", "probabilities")[0] == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 120
    for row in rows:
        shares = {name: value for name, value in row.items() if name.startswith("probability of")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert shares[f"probability of {row['label']}"] == pytest.approx(row["probability"])


class TestLabelsOfTheTable:
    """What is asked about labels is read from the table; the answers do not change with it."""

    @pytest.fixture
    def unlabelled(self, tables) -> list[str]:
        nodes = Path(tables[3])
        header, *rows = nodes.read_text().splitlines()
        year = header.split(",").index("year")
        changed = [row.split(",") for row in rows]
        for row in changed[::5]:
            row[year] = ""
        nodes.write_text("\n".join([header, *map(",".join, changed)]) + "\n")
        return tables

    def predict(self, gapgnn, model, tables, tmp_path, *words):
        out = tmp_path / "labels.csv"
        code, _, err = gapgnn("predict", "--model", model, "--out", out, *tables, *words)
        assert (code, err) == (0, "")
        return pcsv.read_csv(out)

    def test_only_the_unlabelled(self, gapgnn, unlabelled, tmp_path, ledger):
        model = saved(tmp_path / "model", unlabelled)
        every = self.predict(gapgnn, model, unlabelled, tmp_path)
        some = self.predict(gapgnn, model, unlabelled, tmp_path, "--only", "unlabelled")
        assert some["id"].to_pylist() == [f"p{row}" for row in range(0, 120, 5)]
        assert some["label"].to_pylist() == every["label"].to_pylist()[::5]
        rest = self.predict(gapgnn, model, unlabelled, tmp_path, "--only", "labelled")
        assert len(some) + len(rest) == 120
        assert len(ledger.entries()) == 1

    def test_roles_are_those_of_the_training(self, gapgnn, unlabelled, tmp_path, ledger):
        folder = tmp_path / "model"
        words = ["--epochs", "2", "--epsilon", "4", "--seed", "7", "--no-compare"]
        words += ["--out", str(folder)]
        assert gapgnn("train", "label-gap", *unlabelled, *words)[0] == 0
        more = ("--with", "role", "--with", "truth")
        table = self.predict(gapgnn, folder, unlabelled, tmp_path, *more)
        graph = read_tables(edges=unlabelled[1], nodes=unlabelled[3], label="year").graph
        graph = random_split(graph, seed=7)
        roles = table["role"].to_pylist()
        assert [role == "training" for role in roles] == graph.train_mask.tolist()
        assert [role == "test" for role in roles] == graph.test_mask.tolist()
        assert [role == "unlabelled" for role in roles] == [row % 5 == 0 for row in range(120)]
        truth = table["truth"].to_pylist()
        assert [entry is None for entry in truth] == [role == "unlabelled" for role in roles]

    def test_without_tables_there_is_nothing_to_ask(self, gapgnn, model, tmp_path):
        out = tmp_path / "labels.csv"
        for words in (["--only", "unlabelled"], ["--with", "role", "--cached"]):
            code, _, err = gapgnn("predict", "--model", model, "--out", out, *words)
            assert code == 2
            assert "`--only`, `--with role`" in err
        assert not out.exists()


def test_json_is_one_object(gapgnn, model, tmp_path, ledger):
    out = tmp_path / "labels.csv"
    code, text, err = gapgnn("predict", "--model", model, "--out", out, "--json")
    assert (code, err) == (0, "")
    found = json.loads(text)
    assert found.pop("seconds")["total"] > 0
    assert found == {
        "out": str(out),
        "nodes": 120,
        "new_releases": 0,
        "why_free": "the rows that were released in training answer",
        "releases": 1,
        "composed_epsilon": pytest.approx(4, rel=1e-6),
        "charges": [],
        "budgets": [],
        "ledger": str(ledger.path),
        "folder": str(model),
        "price": {"epsilon": 0.0, "delta": 0.0, "relation": None},
    }


def test_the_training_tables_are_known_and_free(gapgnn, model, tables, tmp_path, ledger):
    once, again = tmp_path / "once.csv", tmp_path / "again.csv"
    gapgnn("predict", "--model", model, "--out", once)
    code, text, _ = gapgnn("predict", "--model", model, "--out", again, *tables)
    assert code == 0
    assert "no budget was spent" in text
    assert once.read_text() == again.read_text()
    assert set(column(again, "graph")) == {"training"}
    assert len(ledger.entries()) == 1


def test_rows_in_another_order_keep_their_labels(gapgnn, model, tables, tmp_path, ledger):
    once, again = tmp_path / "once.csv", tmp_path / "again.csv"
    gapgnn("predict", "--model", model, "--out", once)
    people = Path(tables[3])
    head, *rows = people.read_text().splitlines()
    people.write_text("\n".join([head, *rows[::-1]]) + "\n")
    gapgnn("predict", "--model", model, "--out", again, *tables)
    assert again.read_text().splitlines()[1].startswith('"p119"')
    assert sorted(once.read_text().splitlines()) == sorted(again.read_text().splitlines())
    assert len(ledger.entries()) == 1


def test_another_graph_is_charged_once_and_its_hops_are_kept(gapgnn, model, tmp_path, ledger):
    other = write_tables(tmp_path / "other", first=1000, count=80)
    outs = [tmp_path / "first.csv", tmp_path / "second.csv"]
    texts = [
        gapgnn("predict", "--model", model, "--out", out, *other, "--charge")[1] for out in outs
    ]
    assert "one new graph was charged" in texts[0]
    assert "no budget was spent" in texts[1]
    assert outs[0].read_text() == outs[1].read_text()
    assert len(ledger.entries()) == 2
    assert len(list((model / "hops").glob("*.safetensors"))) == 2
    assert len(outs[0].read_text().splitlines()) == 81
    assert set(column(outs[0], "graph")) == {"given"}


def next_month(folder: Path) -> list[str]:
    """Write as many different transactions of the same people."""
    return write_tables(folder, seed=1)


def test_another_ledger_never_answers_with_last_months_labels(gapgnn, model, tmp_path, ledger):
    month, out = next_month(tmp_path / "month"), tmp_path / "labels.csv"
    other = Ledger.init(tmp_path / "other.sqlite")
    before = sorted(tmp_path.rglob("*"))
    words = ["predict", "--model", model, "--out", out, *month]
    for path in (other.path, tmp_path / "none.sqlite"):
        code, text, err = gapgnn(*words, "--ledger", path)
        assert (code, text) == (2, "")
        assert "`--ledger`" in err
        assert "`--cached`" in err
        assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert other.entries() == []
    assert len(ledger.entries()) == 1
    # The way out that the complaint names: the same command, and no word about these edges.
    assert gapgnn(*words, "--ledger", other.path, "--cached")[0] == 0
    assert set(column(out, "graph")) == {"training"}
    assert other.entries() == []


def test_changed_edges_of_the_same_people_are_charged_and_read(gapgnn, model, tmp_path, ledger):
    out, cached, month = tmp_path / "new.csv", tmp_path / "old.csv", next_month(tmp_path / "month")
    code, text, _ = gapgnn(
        "predict", "--model", model, "--out", out, *month, "--charge", "--reason", "May"
    )
    assert code == 0
    assert "one new graph was charged" in text
    assert set(column(out, "graph")) == {"given"}
    fit, prediction = ledger.entries()
    assert prediction.population == fit.population
    assert prediction.reason == "May"
    gapgnn("predict", "--model", model, "--out", cached, "--cached")
    assert column(out, "id") == column(cached, "id")
    assert column(out, "probability") != column(cached, "probability")


def emptied(tables: list[str], rows: slice = slice(None)) -> list[str]:
    """Empty the label of some rows of the node table."""
    nodes = Path(tables[3])
    header, *lines = nodes.read_text().splitlines()
    some = set(range(len(lines))[rows])
    lines = [
        f"{line.rsplit(',', 1)[0]}," if row in some else line for row, line in enumerate(lines)
    ]
    nodes.write_text("\n".join([header, *lines]) + "\n")
    return tables


class TestPeopleWhoseLabelColumnIsEmpty:
    @pytest.mark.parametrize("words", [[], ["--only", "unlabelled", "--with", "truth"]])
    def test_are_answered_for(self, words, gapgnn, model, tmp_path, ledger):
        other = emptied(write_tables(tmp_path / "other", first=1000, count=80))
        out = tmp_path / "labels.csv"
        code, _, err = gapgnn("predict", "--model", model, "--out", out, *other, *words, "--charge")
        assert code == 0, err
        assert len(column(out, "id")) == 80

    def test_where_lists_read_labels_it_says_what_is_missing(self, gapgnn, model, tmp_path, ledger):
        other = emptied(write_tables(tmp_path / "other", first=1000, count=80))
        words = ["--model", model, "--out", tmp_path / "labels.csv", "--own", "record"]
        code, _, err = gapgnn("predict", *words, *other, "--charge")
        assert code == 2
        assert "must have training labels, which own='record' reads. Got none." in err
        assert len(ledger.entries()) == 1


class TestNewPeople:
    """Months later: twenty people more, who know each other and people of the training."""

    @pytest.fixture
    def grown(self, tmp_path) -> list[str]:
        return write_tables(tmp_path / "grown", count=140)

    @pytest.fixture
    def early(self, tmp_path, grown, ledger) -> Path:
        """A model of the first 120 people."""
        folder = tmp_path / "early"
        folder.mkdir()
        lines = Path(grown[3]).read_text().splitlines()
        (folder / "people.csv").write_text("\n".join(lines[:121]) + "\n")
        (folder / "friends.csv").write_text(Path(grown[1]).read_text())
        read = read_tables(
            edges=folder / "friends.csv",
            nodes=folder / "people.csv",
            label="year",
            dangling="drop",
        )
        # With other noise the mixing weight may be 0, and edges are not read.
        model = LabelGAP(epsilon=4.0, epochs=3, insecure_noise_seed=0)
        model.fit(random_split(read.graph, seed=0)).save(tmp_path / "model")
        return tmp_path / "model"

    @pytest.fixture
    def alone(self, tmp_path, grown) -> list[str]:
        """The new people and their edges, and nothing of the others; nobody has a label."""
        folder = tmp_path / "alone"
        folder.mkdir()
        people = Path(grown[3]).read_text().splitlines()
        new = {line.split(",")[0] for line in people[121:]}
        friends = Path(grown[1]).read_text().splitlines()
        edges = [line for line in friends[1:] if new & set(line.split(","))]
        (folder / "people.csv").write_text("\n".join([people[0], *people[121:]]) + "\n")
        (folder / "friends.csv").write_text("\n".join([friends[0], *edges]) + "\n")
        words = ["--edges", str(folder / "friends.csv"), "--nodes", str(folder / "people.csv")]
        return emptied([*words, "--label", "year"])

    @pytest.mark.parametrize("which", ["alone", "grown"])
    def test_are_answered_for_from_their_edges(
        self, which, gapgnn, early, tmp_path, ledger, request
    ):
        tables, outs = request.getfixturevalue(which), [tmp_path / "one.csv", tmp_path / "two.csv"]
        runs = [
            gapgnn("predict", "--model", early, "--new-people", "--out", out, *tables, "--charge")
            for out in outs
        ]
        assert [code for code, _, _ in runs] == [0, 0], runs
        assert column(outs[0], "id") == [f"p{row}" for row in range(120, 140)]
        assert set(column(outs[0], "graph")) == {"given"}
        assert outs[0].read_text() == outs[1].read_text()
        assert len(ledger.entries()) == 2
        assert (
            "Price: the edges of new people were not released before, and are charged" in runs[0][2]
        )
        assert "20 labels written" in runs[0][1]
        assert "the edges of new people were charged" in runs[0][1]
        assert "no budget was spent" in runs[1][1]
        assert load_model(early).card_.releases[1].purpose == "prediction for new people"

    def test_many_edges_to_people_of_the_training_are_not_lost(
        self, gapgnn, early, grown, tmp_path, ledger
    ):
        """Seen refused: most people whom these edges name have no row in the table."""
        new = [f"n{k}" for k in range(120)]
        edges = [f"{name},p{(7 * k + step) % 120}" for k, name in enumerate(new) for step in (0, 1)]
        header = Path(grown[3]).read_text().splitlines()[:2]
        rows = [",".join([name, *header[1].split(",")[1:]]) for name in new]
        (tmp_path / "new.csv").write_text("\n".join([header[0], *rows]) + "\n")
        for name, lines in (("good.csv", edges), ("odd.csv", [f"{e}0x" for e in edges])):
            (tmp_path / name).write_text("\n".join(["a,b", *lines]) + "\n")
        words = [
            "--charge",
            "--model",
            early,
            "--new-people",
            "--nodes",
            tmp_path / "new.csv",
            "--out",
        ]
        code, _, err = gapgnn(
            "predict", *words, tmp_path / "x.csv", "--edges", tmp_path / "odd.csv"
        )
        assert (code, "`--edges` must have usable rows" in err) == (2, True), err
        assert len(ledger.entries()) == 1
        out = tmp_path / "new-labels.csv"
        code, _, err = gapgnn("predict", *words, out, "--edges", tmp_path / "good.csv")
        assert code == 0, err
        assert "dropped or unreadable" not in err
        assert len(column(out, "id")) == 120

    def test_for_their_own_eyes_they_are_answered_for_free(
        self, gapgnn, early, alone, tmp_path, ledger
    ):
        out = tmp_path / "own.csv"
        words = ["--model", early, "--new-people", "--own", "record", "--out", out]
        code, text, err = gapgnn("predict", *words, *alone)
        assert code == 0, err
        assert "no budget was spent" in text
        assert "Price" not in err
        assert "it is for that person" in err
        assert len(ledger.entries()) == 1
        assert pcsv.read_csv(out).column_names == ["id", "label", "graph"]

    def test_need_tables(self, gapgnn, early, tmp_path, ledger):
        words = ["--model", early, "--new-people", "--out", tmp_path / "labels.csv"]
        code, _, err = gapgnn("predict", *words)
        assert code == 2
        assert "`--new-people` must come with `--edges` and `--nodes`" in err

    def test_nobody_new_is_said(self, gapgnn, model, tables, tmp_path, ledger):
        words = ["--model", model, "--new-people", "--out", tmp_path / "labels.csv"]
        code, _, err = gapgnn("predict", *words, *tables)
        assert code == 2
        assert "Got none: leave out `--new-people`." in err
        assert len(ledger.entries()) == 1


class TestThePriceIsShownBeforeItIsCharged:
    def grant(self, ledger, epsilon) -> None:
        spent = ledger.entries()[0].population
        budget = {"level": "edge", "relation": "undirected", "epsilon": epsilon, "delta": 1e-4}
        ledger.grant(spent, **budget, composition="gaussian")

    def test_with_what_is_left_and_what_all_releases_come_to(self, gapgnn, model, tmp_path, ledger):
        self.grant(ledger, 10)
        out, month = tmp_path / "labels.csv", next_month(tmp_path / "month")
        code, _, err = gapgnn("predict", "--model", model, "--out", out, *month, "--charge")
        assert code == 0
        card, (fit, charge) = load_model(model).card_, ledger.entries()
        together = f"{card.composed_epsilon:.2f}"
        (budget,) = ledger.summary()
        rest = math.floor(1e4 * budget.left_epsilon) / 1e4
        before, after = err.split("Charged: ")
        assert before.splitlines() == [
            f"Price: this graph was not released before, and is charged epsilon "
            f"{charge.epsilon:.2f}, delta 0.0001 (undirected) for all edges between any two people "
            "together (one undirected edge).",
            f"Before: {fit.population} has epsilon {before.split('epsilon ')[2].split()[0]} of 10 "
            f"left, delta 0.0001; after this, epsilon {rest:g}",
            f"The 2 releases of this model will then come to epsilon {together} at delta 0.0001 "
            "for what is in all of their graphs; now it is 4.00.",
        ]
        assert f"(charge {charge.id})" in after
        assert f"lists 2 releases, together epsilon {together} at delta 0.0001" in after
        left = float(after.split("has epsilon ")[1].split()[0])
        assert left == pytest.approx(budget.left_epsilon, abs=1e-3)

    def test_without_a_budget_that_is_said_once_and_the_ledger_is_named(
        self, gapgnn, model, tmp_path, ledger
    ):
        out, month = tmp_path / "labels.csv", next_month(tmp_path / "month")
        code, _, err = gapgnn("predict", "--model", model, "--out", out, *month, "--charge")
        assert code == 0
        before, after = err.split("Charged: ")
        said = "No budget is set for these people: the charge is recorded but not limited"
        assert f"{said} (`gapgnn ledger grant`)." in before.splitlines()
        assert err.lower().count("no budget is set") == 1
        assert f"Ledger: {ledger.path}" in after.splitlines()
        # Nothing is charged any more, so nothing is said about it, and nothing need be agreed to.
        code, _, err = gapgnn("predict", "--model", model, "--out", out, *month)
        assert (code, err) == (0, "")

    def test_also_where_it_is_then_refused(self, gapgnn, model, tmp_path, ledger):
        self.grant(ledger, 5)
        out, month = tmp_path / "labels.csv", next_month(tmp_path / "month")
        code, _, err = gapgnn("predict", "--model", model, "--out", out, *month, "--charge")
        assert code == 3
        assert err.startswith("Price: this graph was not released before")
        assert "Charged" not in err
        assert len(load_model(model).card_.releases) == len(ledger.entries()) == 1

    def test_json_states_what_was_charged(self, gapgnn, model, tmp_path, ledger):
        out, month = tmp_path / "labels.csv", next_month(tmp_path / "month")
        code, text, _ = gapgnn(
            "predict", "--model", model, "--out", out, *month, "--charge", "--json"
        )
        charge, card = ledger.entries()[-1], load_model(model).card_
        assert code == 0
        found = json.loads(text)
        assert {**found, "seconds": 0} == {
            "out": str(out),
            "nodes": 120,
            "new_releases": 1,
            "why_free": "",
            "releases": 2,
            "composed_epsilon": card.composed_epsilon,
            "charges": [
                {
                    "id": charge.id,
                    "populations": [charge.population],
                    "level": "edge",
                    "relation": "undirected",
                    "epsilon": charge.epsilon,
                    "delta": charge.delta,
                    "count": 1,
                    "purpose": "label-gap predict",
                }
            ],
            "budgets": found["budgets"],
            "ledger": str(ledger.path),
            "folder": str(model),
            "price": {"epsilon": charge.epsilon, "delta": charge.delta, "relation": "undirected"},
            "seconds": 0,
        }
        (budget,) = found["budgets"]
        assert (budget["population"], budget["left_epsilon"]) == (charge.population, None)
        assert budget["spent_epsilon"] == sum(one.epsilon for one in ledger.entries())


def contents(folder: Path) -> dict[str, bytes]:
    """Return what is in a folder, without the ledger's file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if not path.name.startswith("ledger.sqlite")
    }


class TestPlan:
    """What answers would cost: nothing is charged, released or written, and no --out is needed."""

    def planned(self, gapgnn, tmp_path, ledger, *words) -> dict:
        """Return the plan as an object, after what is printed for people."""
        before, charges = contents(tmp_path), ledger.entries()
        code, text, err = gapgnn("predict", *words, "--plan")
        assert (code, text.splitlines()[0][:7]) == (0, "Price: "), err
        code, out, err = gapgnn("predict", *words, "--plan", "--json")
        assert (code, len(out.splitlines())) == (0, 1), err
        assert contents(tmp_path) == before
        assert ledger.entries() == charges
        found = json.loads(out)
        priced = {"free", "why_free", "epsilon", "delta", "relation", "plan"}
        priced |= {"left", "after", "refused"}
        composed = {"composed_epsilon", "composed_epsilon_before"}
        assert found.keys() == priced | composed | RECEIPT
        assert found["charges"] == []
        assert found["free"] == ("Price: nothing, because " in text) == bool(found["why_free"])
        return found

    def test_another_graph_has_the_price_that_is_then_charged(
        self, gapgnn, model, tmp_path, ledger
    ):
        month, out = next_month(tmp_path / "month"), tmp_path / "labels.csv"
        found = self.planned(gapgnn, tmp_path, ledger, "--model", model, *month)
        assert not found["free"]
        assert gapgnn("predict", "--model", model, *month, "--charge", "--out", out)[0] == 0
        charge = ledger.entries()[-1]
        assert found["plan"]["epsilon"] == charge.epsilon
        assert found["plan"]["delta"] == charge.delta
        assert found["composed_epsilon"] == load_model(model).card_.composed_epsilon
        # It is paid for now.
        found = self.planned(gapgnn, tmp_path, ledger, "--model", model, *month)
        assert found["free"]
        assert found["composed_epsilon"] == load_model(model).card_.composed_epsilon

    def test_an_answer_above_max_epsilon_is_refused_and_not_charged(
        self, gapgnn, model, tmp_path, ledger
    ):
        month, out = next_month(tmp_path / "month"), tmp_path / "labels.csv"
        charges = ledger.entries()
        words = ["predict", "--model", model, *month, "--max-epsilon", 3.9]
        code, _, err = gapgnn(*words, "--out", out)
        assert code == 3
        assert "`--max-epsilon` must be at least 4.00, the price of this answer. Got 3.9" in err
        assert "`--max-epsilon` must be at least 4.00" in gapgnn(*words, "--plan")[1]
        assert ledger.entries() == charges
        assert not out.exists()
        # The graph of training is answered for from what was released.
        assert gapgnn("predict", "--model", model, "--max-epsilon", 0, "--out", out)[0] == 0
        assert ledger.entries() == charges
        words = ["predict", "--model", model, *month, "--max-epsilon", 4, "--out", out]
        assert gapgnn(*words)[0] == 0
        assert len(ledger.entries()) == len(charges) + 1

    def test_price_sum_and_remaining_budget_are_printed(self, gapgnn, model, tmp_path, ledger):
        (fit,) = ledger.entries()
        budget = {"level": "edge", "relation": "undirected", "epsilon": 10, "delta": 1e-4}
        ledger.grant(fit.population, **budget, composition="gaussian")
        month = next_month(tmp_path / "month")
        found = self.planned(gapgnn, tmp_path, ledger, "--model", model, *month)
        code, text, err = gapgnn("predict", "--model", model, *month, "--plan")
        assert (code, err) == (0, "")
        price, left = text.splitlines()
        together = f"{found['composed_epsilon']:.2f}"
        assert price == (
            "Price: epsilon 4.00, delta 0.0001 (undirected) for all edges between any two people "
            "together (one undirected edge). All releases of this model would come to epsilon "
            f"{together} at delta 0.0001; now it is 4.00."
        )
        assert [left.removeprefix("Left: ")] == found["left"]
        assert left.startswith(f"Left: {fit.population} has epsilon ")
        assert (
            gapgnn(
                "predict", "--model", model, *month, "--charge", "--out", tmp_path / "labels.csv"
            )[0]
            == 0
        )
        (budget,) = ledger.summary()
        assert float(left.rpartition(" ")[2]) == pytest.approx(budget.left_epsilon, abs=1e-4)

    def test_a_refusal_is_printed_in_advance(self, gapgnn, model, tmp_path, ledger):
        """What is left and the price may be stated at different deltas, so nobody can compare."""
        (fit,) = ledger.entries()
        budget = {"level": "edge", "relation": "undirected", "epsilon": 5, "delta": 1e-4}
        ledger.grant(fit.population, **budget, composition="gaussian")
        month = next_month(tmp_path / "month")
        found = self.planned(gapgnn, tmp_path, ledger, "--model", model, *month)
        lines = gapgnn("predict", "--model", model, *month, "--plan")[1].splitlines()
        assert lines[-1] == f"It would be refused: {found['refused']}"
        out = tmp_path / "labels.csv"
        code, _, err = gapgnn("predict", "--model", model, *month, "--charge", "--out", out)
        assert (code, err.splitlines()[-1]) == (3, f"gapgnn: {found['refused']}")
        assert "`--population NAME`" in found["refused"]

    @pytest.mark.parametrize("words", [[], ["--cached"]])
    def test_the_graph_of_training_is_free(self, words, gapgnn, model, tables, tmp_path, ledger):
        tables = [] if words else tables
        found = self.planned(gapgnn, tmp_path, ledger, "--model", model, *tables, *words)
        assert (found["free"], found["plan"], found["left"]) == (True, None, [])

    @pytest.mark.parametrize(("own", "is_free"), [((), False), (("--own", "record"), True)])
    def test_new_people_are_free_for_their_own_eyes_alone(
        self, own, is_free, gapgnn, tmp_path, ledger
    ):
        grown = write_tables(tmp_path / "grown", count=140)
        first = tmp_path / "people.csv"
        first.write_text("\n".join(Path(grown[3]).read_text().splitlines()[:121]) + "\n")
        read = read_tables(edges=grown[1], nodes=first, label="year", dangling="drop")
        model = LabelGAP(epsilon=4.0, epochs=3, insecure_noise_seed=0)
        model.fit(random_split(read.graph, seed=0)).save(tmp_path / "model")
        words = ["--model", tmp_path / "model", "--new-people", *grown, *own]
        assert self.planned(gapgnn, tmp_path, ledger, *words)["free"] == is_free

    @pytest.mark.parametrize("method", [MLP, NeighborVote])
    def test_a_model_that_charges_nothing_has_no_price(
        self, method, gapgnn, tables, tmp_path, ledger
    ):
        folder = saved(tmp_path / "model", tables, method)
        month = next_month(tmp_path / "month")
        assert self.planned(gapgnn, tmp_path, ledger, "--model", folder, *month)["free"]

    def test_without_a_plan_answers_must_go_somewhere(self, gapgnn, model, ledger):
        code, text, err = gapgnn("predict", "--model", model)
        assert (code, text) == (2, "")
        assert err == "gapgnn: `--out` must say where the answers go. Got none.\n"


def test_over_budget_changed_edges_are_refused(gapgnn, model, tables, tmp_path, ledger):
    spent = ledger.entries()[0].population
    budget = {"level": "edge", "relation": "undirected", "epsilon": 5, "delta": 0.5}
    ledger.grant(spent, **budget, composition="sum")
    out, month = tmp_path / "labels.csv", next_month(tmp_path / "month")
    code, text, err = gapgnn("predict", "--model", model, "--out", out, *month, "--charge")
    assert (code, text) == (3, "")
    assert "nothing was charged" in err
    assert not out.exists()
    assert len(ledger.entries()) == 1
    # What is paid for stays free.
    assert gapgnn("predict", "--model", model, "--out", out, *tables)[0] == 0


def test_cached_answers_for_the_graph_of_training_by_ids_alone(gapgnn, model, tmp_path):
    """Neither ledger nor edges are needed, and of the table nothing but the ids is looked at."""
    plain, cached = tmp_path / "plain.csv", tmp_path / "cached.csv"
    gapgnn("predict", "--model", model, "--out", plain)
    nodes = tmp_path / "ids.csv"
    nodes.write_text("id,salary\np7,secret\np3,\n")
    words = ["--cached", "--nodes", nodes, "--ledger", tmp_path / "none.sqlite"]
    code, text, err = gapgnn("predict", "--model", model, "--out", cached, *words)
    assert (code, err) == (0, "")
    assert text == f"2 labels for the graph of training written to {cached}\n"
    assert column(cached, "id") == ["p7", "p3"]
    assert set(column(cached, "graph")) == {"training"}
    labels = dict(zip(column(plain, "id"), column(plain, "label"), strict=True))
    assert column(cached, "label") == [labels["p7"], labels["p3"]]
    code, _, _ = gapgnn("predict", "--model", model, "--out", cached, "--cached", "--json")
    assert code == 0
    assert cached.read_text() == plain.read_text()


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ("a stranger", "1 of the ids were not in the graph of training, such as 'q9'"),
        ("node level", "keeps no features"),
        ("features only", "`--cached` must be left out: mlp"),
    ],
)
def test_what_the_cache_cannot_answer_is_one_line(
    case, complaint, gapgnn, tables, tmp_path, ledger
):
    options = {
        "node level": NODE,
        "features only": {"method": MLP},
    }
    folder = saved(tmp_path / "model", tables, **options.get(case, {}))
    nodes = tmp_path / "ids.csv"
    nodes.write_text("id\np7\nq9\n" if case == "a stranger" else "id\np7\n")
    out = tmp_path / "labels.csv"
    words = ["predict", "--model", folder, "--out", out, "--cached", "--nodes", nodes]
    code, text, err = gapgnn(*words)
    assert (code, text) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert not out.exists()


def test_columns_of_other_tables_are_matched_by_name(gapgnn, model, tmp_path, ledger):
    """The other city has nobody from Oslo but somebody from Kyiv, its columns stand otherwise,
    and it has one more."""
    other = write_tables(tmp_path / "other", first=1000, count=80)
    people = Path(other[3])
    rows = [line.split(",") for line in people.read_text().replace("Oslo", "Kyiv").splitlines()]
    lines = [",".join([who, age, "7", city]) for who, city, age, _ in rows]
    people.write_text("\n".join(["id,age,shoe,city", *lines[1:]]) + "\n")
    out = tmp_path / "labels.csv"
    code, _, err = gapgnn("predict", "--model", model, "--out", out, *other[:4], "--charge")
    assert code == 0
    assert err.splitlines()[:3] == [
        "columns of people.csv new and left out: 'shoe'",
        "1 feature columns left out, such as 'city=Kyiv'",
        "1 feature columns missing, taken as 0, such as 'city=Oslo'",
    ]
    assert len(out.read_text().splitlines()) == 81
    read = read_tables(edges=other[1], nodes=other[3], label=None, drop=["shoe"])
    assert ledger.entries()[-1].fingerprint == read.graph.fingerprint


def test_a_features_only_model_gives_a_person_the_same_label_in_another_table(
    gapgnn, tables, tmp_path, ledger
):
    folder = saved(tmp_path / "mlp", tables, MLP)
    once, again = tmp_path / "once.csv", tmp_path / "again.csv"
    gapgnn("predict", "--model", folder, "--out", once, *tables)
    people = Path(tables[3])
    head, *rows = people.read_text().splitlines()
    romans = [row for row in rows if ",Rome," in row]
    people.write_text("\n".join([head, *romans]) + "\n")
    Path(tables[1]).write_text(f"a,b\n{romans[0].split(',')[0]},{romans[1].split(',')[0]}\n")
    code, _, err = gapgnn(
        "predict", "--model", folder, "--out", again, *tables[:4], "--drop", "year"
    )
    assert code == 0, err
    wanted = dict(line.split(",", 1) for line in once.read_text().splitlines())
    got = dict(line.split(",", 1) for line in again.read_text().splitlines())
    assert len(got) == len(romans) + 1
    labels = {who: answer.split(",")[0] for who, answer in wanted.items()}
    assert all(answer.split(",")[0] == labels[who] for who, answer in got.items())


def test_tables_that_share_no_column_are_refused(gapgnn, model, tmp_path, ledger):
    other = write_tables(tmp_path / "other", first=1000, count=80)
    people = Path(other[3])
    people.write_text(people.read_text().replace("id,city,age,year", "id,town,years,class"))
    out = tmp_path / "labels.csv"
    code, _, err = gapgnn("predict", "--model", model, "--out", out, *other[:4], "--drop", "class")
    assert code == 2
    assert "must share a column with the 2 the model knows, such as 'city'" in err
    assert len(err.splitlines()) == 1
    assert not out.exists()
    assert len(ledger.entries()) == 1


def test_at_node_level_the_data_must_be_given(gapgnn, tables, tmp_path, ledger):
    folder = saved(tmp_path / "node", tables, **NODE)
    out = tmp_path / "labels.csv"
    code, text, err = gapgnn("predict", "--model", folder, "--out", out)
    assert (code, text) == (2, "")
    assert len(err.splitlines()) == 1
    assert "model keeps no features" in err
    assert not out.exists()
    code, text, _ = gapgnn("predict", "--model", folder, "--out", out, *declared(tables))
    assert code == 0
    assert "no budget was spent" in text
    assert len(ledger.entries()) == 1


def test_tables_are_read_by_the_schema_the_model_knows(gapgnn, tables, tmp_path, ledger):
    folder = saved(tmp_path / "declared", tables, method=MLP, schema=SCHEMA)
    other = replace(SCHEMA, columns=(Ignored("city"), Number("age", 0, 90)))
    (tmp_path / "other.toml").write_text(other.to_toml())
    out = tmp_path / "labels.csv"
    assert load_model(folder).schema_ == SCHEMA
    code, _, err = gapgnn("predict", "--model", folder, "--out", out, *tables)
    assert (code, err) == (0, "")
    words = [*tables, "--schema", tmp_path / "other.toml"]
    code, text, err = gapgnn("predict", "--model", folder, "--out", out, *words)
    assert (code, text) == (2, "")
    assert "`--schema` must be the one the model was trained with" in err
    assert len(err.splitlines()) == 1


class TestRememberedPreparation:
    """What was said to `train` need not be said to `predict` again."""

    SAID = (
        *("--label", "year", "--drop", "note", "--delimiter", ";", "--decimal", ","),
        *("--dangling", "drop", "--directed", "--population", "bank"),
    )
    QUICK = ("--epochs", "2", "--epsilon", "4", "--no-compare")

    @pytest.fixture
    def bank(self, tmp_path) -> list[str]:
        """Write tables of a spreadsheet, with a column of text and payments to others."""
        words = write_tables(tmp_path / "bank")
        nodes, edges = Path(words[3]), Path(words[1])
        head, *rows = nodes.read_text().splitlines()
        rows = [row.replace(".", "#").replace(",", ";").replace("#", ",") for row in rows]
        lines = [f"{row};says {number}" for number, row in enumerate(rows)]
        nodes.write_text("\n".join([head.replace(",", ";") + ";note", *lines]) + "\n")
        edges.write_text(edges.read_text().replace(",", ";") + "p1;elsewhere\n")
        return words[:4]

    @pytest.fixture
    def trained(self, gapgnn, bank) -> str:
        words = [*bank, *self.SAID, *self.QUICK, "--folds", "0", "--out", "model", "--json"]
        code, _, err = gapgnn("train", "label-gap", *words)
        assert (code, len(err.splitlines())) == (0, 1), err
        return "model"

    def test_the_same_tables_are_known_without_a_word(self, gapgnn, bank, trained, ledger):
        code, out, err = gapgnn("predict", "--model", trained, *bank, "--out", "labels.csv")
        assert code == 0
        assert "no budget was spent" in out
        (line,) = err.splitlines()
        assert line.startswith("For the curator only: left out ")
        assert line.endswith(", 1 edge that names an id without a row.")
        assert len(ledger.entries()) == 1
        words = ["--cached", "--nodes", bank[3], "--out", "cached.csv"]
        assert gapgnn("predict", "--model", trained, *words)[0] == 0

    def test_new_columns_are_left_out_and_named(self, gapgnn, bank, trained, ledger):
        nodes = Path(bank[3])
        head, *rows = nodes.read_text().splitlines()
        extended = [f"{row};tale {number}" for number, row in enumerate(rows)]
        nodes.write_text("\n".join([f"{head};story", *extended]) + "\n")
        code, out, err = gapgnn("predict", "--model", trained, *bank, "--out", "labels.csv")
        assert code == 0
        assert err.splitlines()[0] == "columns of people.csv new and left out: 'story'"
        # The same people and the same payments: nothing new was asked.
        assert "no budget was spent" in out

    def test_missing_columns_are_named_and_the_same_people_are_charged(
        self, gapgnn, bank, trained, ledger
    ):
        nodes = Path(bank[3])
        rows = [line.split(";") for line in nodes.read_text().splitlines()]
        nodes.write_text("\n".join(f"{row[0]};{row[2]}" for row in rows))
        words = [*bank, "--out", "labels.csv", "--charge"]
        code, _, err = gapgnn("predict", "--model", trained, *words)
        assert code == 0
        assert err.splitlines()[0] == "columns of people.csv missing, taken as 0: 'city'"
        fit, prediction = ledger.entries()
        assert fit.population == prediction.population

    def test_classes_are_those_of_the_model_whoever_is_in_the_table(
        self, gapgnn, bank, trained, ledger
    ):
        """Only one year is left, and most labels are unknown: that is no reason to refuse."""
        nodes = Path(bank[3])
        nodes.write_text(nodes.read_text().replace(";2004;", ";;").replace(";2005;", ";;"))
        words = [*bank, "--out", "labels.csv", "--charge"]
        code, _, _ = gapgnn("predict", "--model", trained, *words)
        assert code == 0
        assert {str(label) for label in column(Path("labels.csv"), "label")} <= YEARS

    def test_what_is_said_now_counts(self, gapgnn, bank, trained):
        for name in bank[1::2]:
            text = Path(name).read_text().replace(",", ".").replace(";", ",")
            Path(name).write_text(text)
        code, _, err = gapgnn("predict", "--model", trained, *bank, "--out", "labels.csv")
        assert code == 2
        assert "pass `--delimiter ,`" in err
        words = [*bank, "--delimiter", ",", "--out", "labels.csv"]
        code, out, _ = gapgnn("predict", "--model", trained, *words)
        assert (code, "no budget was spent" in out) == (0, True)

    def test_only_what_was_said_stands_in_the_model_under_a_schema(self, gapgnn, bank, tmp_path):
        (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
        words = [*bank, "--schema", "schema.toml", "--drop", "note", "--delimiter", ";"]
        words += ["--level", "node", "--batch-size", "30", "--decimal", ",", *self.QUICK]
        assert gapgnn("train", *words, "--out", "node", "--json")[0] == 0
        assert json.loads(Path("node", "config.json").read_text())["preparation"] == {
            "label": "year",
            "drop": ["note"],
            "dangling": "keep",
            "dialect": {"delimiter": ";", "decimal": ","},
        }
        code, out, err = gapgnn("predict", "--model", "node", *bank, "--out", "labels.csv")
        assert (code, err) == (0, "")
        assert "no budget was spent" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--out", "labels.xlsx"], "`--out` must end in .csv, .tsv, .jsonl, .parquet"),
        (["--out", "nowhere/labels.csv"], "`--out` must be a file in an existing folder"),
        (["--out", "labels.csv", "--model", "nowhere"], "'nowhere' does not exist"),
        (["--out", "labels.csv", "--device", "tpu"], "`--device`"),
        (["--out", "labels.csv", "--label", "year"], "`--label` must come with `--edges`"),
        (["--out", "labels.csv", "--drop", "year"], "`--drop` must come with `--edges`"),
        (["--out", "labels.csv", "--schema", "s.toml"], "`--schema` must come with `--edges`"),
        (["--out", "labels.csv", "--decimal", ","], "`--decimal` must come with `--edges`"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_written(
    words, complaint, gapgnn, model, tmp_path, monkeypatch, ledger
):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    code, text, err = gapgnn("predict", "--model", model, *words)
    assert (code, text) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == before


def test_a_damaged_model_is_one_line(gapgnn, model, tmp_path):
    (model / "weights.safetensors").write_bytes(b"nonsense")
    code, _, err = gapgnn("predict", "--model", model, "--out", tmp_path / "labels.csv")
    assert code == 4
    assert len(err.splitlines()) == 1
    assert "damaged" in err


def test_a_folder_that_cannot_keep_what_is_paid_for_is_refused_before_the_charge(
    gapgnn, model, tables, tmp_path, ledger, monkeypatch
):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != model and access(path, mode))
    out = tmp_path / "labels.csv"
    other = write_tables(tmp_path / "other", first=1000, count=80)
    code, _, err = gapgnn("predict", "--model", model, "--out", out, *other)
    assert code == 2
    assert "`--model` must be writable" in err
    assert len(ledger.entries()) == 1
    assert gapgnn("predict", "--model", model, "--out", out, *tables)[0] == 0


class TestOwnRecord:
    """Predictions that read own neighbours: for that person, and labels only."""

    def test_labels_only_unless_probabilities_are_asked_for(self, gapgnn, model, tables, tmp_path):
        words = ("predict", "--model", model, *tables, "--label", "year", "--own", "record")
        out = tmp_path / "labels.csv"
        code, text, err = gapgnn(*words, "--out", out)
        assert code == 0
        assert text == (
            f"120 labels written to {out}; no budget was spent: this is the graph of training, "
            "whose rows were released\n"
        )
        assert "for that person, or for readers who may know them" in err
        assert "labels only" in err
        assert pcsv.read_csv(out).column_names == ["id", "label", "graph"]
        code, _, err = gapgnn(*words, "--with", "probabilities", "--out", out)
        assert code == 0
        assert "would reveal edges" in err
        assert "labels only" not in err
        assert pcsv.read_csv(out).column_names[:3] == ["id", "label", "probability"]

    def test_a_vote_is_always_for_its_own_person(self, gapgnn, tables, tmp_path, ledger):
        folder, out = saved(tmp_path / "vote", tables, NeighborVote), tmp_path / "labels.csv"
        words = ("predict", "--model", folder, *tables, "--label", "year", "--out", out)
        code, _, err = gapgnn(*words)
        assert code == 0
        assert "labels only" in err
        assert pcsv.read_csv(out).column_names == ["id", "label", "graph"]

    @pytest.mark.parametrize(
        ("method", "words", "message"),
        [
            (MLP, ("--own", "record"), "`--own` must be left out for mlp"),
            (LabelGAP, ("--own", "record", "--cached"), "`--cached` must be left out"),
            (LabelGAP, ("--new-people", "--cached"), "`--cached` must be left out"),
        ],
    )
    def test_what_cannot_be_read_is_refused(
        self, method, words, message, gapgnn, tables, tmp_path, ledger
    ):
        folder, out = saved(tmp_path / "other", tables, method), tmp_path / "labels.csv"
        code, _, err = gapgnn(
            "predict", "--model", folder, *tables, "--label", "year", *words, "--out", out
        )
        assert code == 2
        assert message in err
        assert not out.exists()
