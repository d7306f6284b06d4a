"""A price is paid by whoever agreed to it: `predict --charge`, and what is free is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from methodgraphs import write_tables
from schemacases import SCHEMA
from suited import suited

from gapgnn import GAP, MLP, LabelGAP, NeighborVote, load_model, read_tables
from gapgnn.cli import predict
from gapgnn.errors import NotAgreedError
from gapgnn.graph.transforms import random_split
from gapgnn.privacy.ledger import People, spending
from gapgnn.privacy.ledger.agreed import check_agreed


@pytest.fixture
def tables(tmp_path, ledger) -> list[str]:
    return write_tables(tmp_path / "data")


@pytest.fixture
def model(tmp_path, tables) -> Path:
    return saved(tmp_path / "model", tables)


def saved(folder: Path, tables: list[str], method=LabelGAP, **options) -> Path:
    read = read_tables(edges=tables[1], nodes=tables[3], label="year")
    settings = {"level": "edge", **({"folds": 0} if method is LabelGAP else {}), **options}
    shared = {"epsilon": 4.0, "epochs": 3, "hidden": 8}
    suited(method, shared, **settings).fit(random_split(read.graph, seed=0)).save(folder)
    return folder


@pytest.fixture
def month(tmp_path) -> list[str]:
    """Return other transactions of the same people."""
    return write_tables(tmp_path / "month", seed=1)


def state(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if "ledger.sqlite" not in path.name}


class TestAnAnswerWithAPrice:
    def test_is_refused_in_one_line_with_the_price_and_the_option(
        self, gapgnn, model, month, tmp_path, ledger
    ):
        fit = ledger.entries()[0]
        terms = {"level": "edge", "relation": "undirected", "epsilon": 10, "delta": 1e-4}
        ledger.grant(fit.population, **terms, composition="gaussian")
        before, charges = state(tmp_path), ledger.entries()
        words = ["predict", "--model", model, *month, "--out", "labels.csv"]
        code, out, err = gapgnn(*words)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "charged epsilon 4.00, delta 0.0001 (undirected)" in err
        assert f"{fit.population} has epsilon " in err
        assert "; after this, epsilon " in err
        assert "Agree with `--charge`, or with `--max-epsilon E` to at most E" in err
        code, out, _ = gapgnn(*words, "--json")
        found = json.loads(out)
        assert (code, found["error"]["code"]) == (3, "not-agreed")
        # A program reads the price, and asks somebody.
        assert found["price"] == {
            "epsilon": pytest.approx(4),
            "delta": 1e-4,
            "relation": "undirected",
        }
        assert state(tmp_path) == before
        assert ledger.entries() == charges

    @pytest.mark.parametrize("word", [["--charge"], ["--max-epsilon", "4"]])
    def test_is_given_and_charged_once_it_is_agreed_to(
        self, word, gapgnn, model, month, tmp_path, ledger
    ):
        words = ["predict", "--model", model, *month, "--out", "labels.csv"]
        assert gapgnn(*words)[0] == 3
        code, out, err = gapgnn(*words, *word)
        assert code == 0, err
        assert "one new graph was charged" in out
        assert [one.epsilon for one in ledger.entries()][1:] == [pytest.approx(4)]
        # The second time it is free, and nobody is asked.
        code, out, _ = gapgnn(*words)
        assert code == 0
        assert "this graph was released before, for an earlier answer" in out
        assert len(ledger.entries()) == 2

    def test_is_agreed_to_up_to_a_number_also_beside_charge(
        self, gapgnn, model, month, tmp_path, ledger
    ):
        words = ["predict", "--model", model, *month, "--out", "labels.csv", "--charge"]
        code, _, err = gapgnn(*words, "--max-epsilon", "3.9")
        assert code == 3
        assert "`--max-epsilon` must be at least 4.00, the price of this answer. Got 3.9" in err
        assert len(ledger.entries()) == 1

    def test_is_refused_by_the_ledger_first_if_the_budget_does_not_suffice(
        self, gapgnn, model, month, ledger
    ):
        terms = {"level": "edge", "relation": "undirected", "epsilon": 5, "delta": 1e-3}
        ledger.grant(ledger.entries()[0].population, **terms, composition="sum")
        words = ["predict", "--model", model, *month, "--out", "labels.csv", "--json"]
        code, out, _ = gapgnn(*words)
        found = json.loads(out)
        assert (code, found["error"]["code"]) == (3, "budget-exhausted")
        assert found["charges"] == []
        assert [one["left_epsilon"] for one in found["budgets"]] == [pytest.approx(1)]

    def test_is_refused_at_node_level_as_well(self, gapgnn, tables, month, tmp_path, ledger):
        read = read_tables(edges=tables[1], nodes=tables[3], label="year", schema=SCHEMA)
        options = {"level": "node", "epsilon": 4.0, "epochs": 2, "hidden": 8, "batch_size": 30}
        graph = random_split(read.graph, seed=0)
        suited(GAP, {}, **options).fit(graph).save(tmp_path / "node")
        words = ["predict", "--model", tmp_path / "node", *month, "--out", "labels.csv"]
        code, _, err = gapgnn(*words)
        assert (code, err.count("\n")) == (3, 1), err
        assert "(add-remove) for any one person's record" in err
        assert len(ledger.entries()) == 1
        assert gapgnn(*words, "--charge")[0] == 0
        assert len(ledger.entries()) == 2

    def test_is_refused_for_new_people_as_well(self, gapgnn, tables, tmp_path, ledger):
        grown = write_tables(tmp_path / "grown", count=140)
        folder = saved(tmp_path / "early", tables)
        words = ["predict", "--model", folder, "--new-people", *grown, "--out", "new.csv"]
        code, _, err = gapgnn(*words)
        assert (code, err.count("\n")) == (3, 1)
        assert "the edges of new people were not released before, and are charged" in err
        assert len(ledger.entries()) == 1
        assert gapgnn(*words, "--max-epsilon", "4")[0] == 0
        assert len(ledger.entries()) == 2

    def test_says_what_is_left_to_those_alone_who_were_charged(
        self, gapgnn, tables, tmp_path, ledger
    ):
        grown = write_tables(tmp_path / "grown", count=140)
        folder = saved(tmp_path / "early", tables)
        graph = read_tables(edges=grown[1], nodes=grown[3], label="year").graph
        named = load_model(folder).people_charged(graph, new_people=True).ids
        terms = {"level": "edge", "relation": "undirected", "epsilon": 90, "delta": 1e-3}
        for name, ids in (
            ("newcomers", np.setdiff1d(graph.ids, np.arange(100))),
            ("bystanders", np.setdiff1d(graph.ids, named)),
        ):
            ledger.grant(name, People.listed(ids), **terms)
        words = ["predict", "--model", folder, "--new-people", *grown, "--out", "new.csv"]
        code, _, err = gapgnn(*words, "--charge")
        assert code == 0, err
        lines = [line.split()[:2] for line in err.splitlines()]
        before, after = (
            {name for word, name in filter(None, lines) if word == when}
            for when in ("Before:", "After:")
        )
        assert "newcomers" in before
        assert before == after


class TestWhatIsFreeIsSaid:
    def why(self, gapgnn, *words: object) -> str:
        """Return why an answer is free, which the plan and the answer say alike."""
        code, out, err = gapgnn("predict", *words, "--plan", "--json")
        assert code == 0, err
        planned = json.loads(out)
        assert (planned["free"], planned["epsilon"]) == (True, 0.0)
        code, out, err = gapgnn("predict", *words, "--max-epsilon", "0", "--out", "labels.csv")
        assert code == 0, err
        assert f"; no budget was spent: {planned['why_free']}\n" in out
        return planned["why_free"]

    def test_of_the_graph_of_training(self, gapgnn, model, tables, ledger):
        said = "this is the graph of training, whose rows were released"
        assert self.why(gapgnn, "--model", model, *tables) == said
        said = "the rows that were released in training answer"
        assert self.why(gapgnn, "--model", model) == said
        assert len(ledger.entries()) == 1

    def test_of_new_people_who_are_read_against_released_rows(
        self, gapgnn, model, tmp_path, ledger
    ):
        grown = write_tables(tmp_path / "grown", count=140)
        words = ["--model", model, "--new-people", "--own", "record", *grown]
        said = self.why(gapgnn, *words)
        assert said.startswith("each answer reads the new person's own record, and of others only")
        assert len(ledger.entries()) == 1

    @pytest.mark.parametrize(
        ("method", "options", "said"),
        [
            (MLP, {}, "this model reads no edges to predict"),
            (NeighborVote, {}, "each answer reads the person's own neighbours, and is for that"),
            (LabelGAP, {"level": "none", "epsilon": None}, "level none promises nothing"),
        ],
    )
    def test_of_models_without_a_price(
        self, method, options, said, gapgnn, tables, month, tmp_path, ledger
    ):
        if method is LabelGAP:
            read = read_tables(edges=tables[1], nodes=tables[3], label="year")
            graph = random_split(read.graph, seed=0)
            LabelGAP(level="none", epochs=2, hidden=8).fit(graph).save(tmp_path / "free")
        else:
            saved(tmp_path / "free", tables, method, **options)
        assert self.why(gapgnn, "--model", tmp_path / "free", *month).startswith(said)


def test_a_plan_has_the_price_what_is_left_and_what_it_would_be_after(gapgnn, model, month, ledger):
    fit = ledger.entries()[0]
    terms = {"level": "edge", "relation": "undirected", "epsilon": 10, "delta": 1e-4}
    ledger.grant(fit.population, **terms, composition="gaussian")
    words = ["predict", "--model", model, *month]
    code, out, _ = gapgnn(*words, "--plan", "--json")
    planned = json.loads(out)
    assert (code, planned["refused"]) == (0, "")
    (budget,) = planned["after"]
    assert gapgnn(*words, "--charge", "--out", "labels.csv")[0] == 0
    assert ledger.entries()[-1].epsilon == planned["epsilon"]
    (left,) = ledger.summary()
    assert budget["left_epsilon_after"] == pytest.approx(left.left_epsilon, abs=1e-9)
    assert budget["left_epsilon"] > budget["left_epsilon_after"] > 0
    assert planned["composed_epsilon"] == load_model(model).card_.composed_epsilon


def test_a_path_to_a_charge_that_the_price_forgot_is_refused(
    gapgnn, model, month, ledger, monkeypatch
):
    """Were an answer called free that is not, the session itself would ask."""
    quote = predict.Quote.of.__func__

    def free(cls, *args, **options):
        found = quote(cls, *args, **options)
        return cls(found.model, found.graph, found.new_people, None, "nothing is read")

    monkeypatch.setattr(predict.Quote, "of", classmethod(free))
    code, _, err = gapgnn("predict", "--model", model, *month, "--out", "labels.csv")
    assert code == 3
    assert "a charge of epsilon 4 must be agreed to. Got 0 agreed to" in err
    assert len(ledger.entries()) == 1
    assert not Path("labels.csv").exists()


def test_what_is_agreed_to_holds_for_all_charges_together():
    with spending(at_most=1.5), spending():
        check_agreed(1.5)
        with pytest.raises(NotAgreedError, match=r"Got 1\.5 agreed to"):
            check_agreed(1.6)


def test_every_caller_around_a_charge_pays_for_all_of_its_releases(tables, ledger):
    read = read_tables(edges=tables[1], nodes=tables[3], label="year")
    model = LabelGAP(epsilon=1.0, epochs=1, hidden=8, hops=1, folds=0, repeats=2)
    with spending(at_most=3.5) as outer:
        with spending() as inner:
            model.fit(random_split(read.graph, seed=0))
        assert [(one.epsilon, one.count) for one in inner] == [(pytest.approx(1), 2)]
        assert outer == inner
        # Two of epsilon 1 are spent, and two more are 4.
        with pytest.raises(NotAgreedError, match=r"of epsilon 2 must be agreed to.* 2 is spent"):
            model.fit(random_split(read.graph, seed=0))
    assert len(ledger.entries()) == 1


def test_a_plan_of_repeats_on_two_populations_is_what_the_run_then_leaves(gapgnn, tables, ledger):
    terms = {"level": "edge", "relation": "undirected", "epsilon": 9, "delta": 1e-3}
    ids = read_tables(edges=tables[1], nodes=tables[3], label="year").graph.ids
    for name, half in (("old", ids[::2]), ("young", ids[1::2])):
        ledger.grant(name, People.listed(half), **terms, composition="sum")
    words = ["train", "label-gap", *tables, "--label", "year", "--no-save", "--no-compare"]
    words += ["--epsilon", "1", "--repeats", "2", "--epochs", "1", "--hops", "1", "--folds", "0"]
    planned = json.loads(gapgnn(*words, "--plan", "--json")[1])
    code, out, err = gapgnn(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [sorted(one["populations"]) for one in found["charges"]] == [["old", "young"]]
    left = {one["population"]: one["left_epsilon"] for one in found["budgets"]}
    assert left == {"old": pytest.approx(7), "young": pytest.approx(7)}
    after = {one["population"]: one["left_epsilon_after"] for one in planned["after"]}
    assert after == pytest.approx(left)


def test_a_simulation_is_charged_to_nobody(gapgnn, ledger):
    sizes = ["--num-nodes", "120", "--mean-degree", "4", "--classes", "2", "--num-features", "2"]
    code, out, err = gapgnn("simulate", *sizes, "--epsilon", "8", "--no-compare", "--json")
    assert code == 0, err
    assert [one["epsilon"] for one in json.loads(out)["rows"]] == [8.0]
    assert ledger.chain() == []
