"""`gapgnn ledger`: what people and programs see of the budgets, and do with them."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import sqlite3
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from gapgnn.cli.data import LoadedGraph
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import Graph
from gapgnn.graph.datasets import load as datasets
from gapgnn.privacy import Guarantee, resolve_relation
from gapgnn.privacy.accounting import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    account,
    calibrate,
    gaussian_epsilon,
    gaussian_shift,
)
from gapgnn.privacy.ledger import Ledger, People

TABLE = ("grant", "customers", "--nodes", "customers.csv", "--epsilon", "4")
CUSTOMERS = (*TABLE, "--delta", "1e-4")
VERSION_3 = Path(__file__).parents[1] / "fixtures" / "version_3" / "ledger.sqlite"


def tiny(name: str, *, split_seed: int | None = 0, progress: object = None) -> Graph:
    """Stand in for the registry, which needs no part in these promises."""
    if name not in ("tiny", "tiny-directed"):
        raise InputError(f"`dataset` must be a known name. Got {name!r}.")
    directed, namespace = name == "tiny-directed", f"dataset {name}"
    return Graph.from_arcs(
        [0, 1],
        [1, 2],
        num_nodes=3,
        features=np.eye(3),
        directed=directed,
        name=name,
        population=namespace,
    )


@pytest.fixture
def run(gapgnn, ledger, tmp_path, monkeypatch):
    """Return a function that runs `gapgnn ledger`, in a folder with a table of 1,000 customers."""
    monkeypatch.setattr(datasets, "load_dataset", tiny)
    monkeypatch.setattr(datasets, "dataset_names", lambda: ("tiny", "tiny-directed"))
    rows = (f"{20 + i % 60},{i},never read" for i in range(1, 1001))
    (tmp_path / "customers.csv").write_text("\n".join(["age,id,note", *rows]) + "\n")

    def call(*words: object) -> tuple[int, str, str]:
        return gapgnn("ledger", *words)

    return call


def asked(run: Any, *words: object) -> dict[str, Any]:
    """Return what a command answers to a program: one JSON object and nothing else."""
    code, out, _ = run(*words, "--json")
    assert (code, out.count("\n")) == (0, 1)
    answer: dict[str, Any] = json.loads(out)
    return answer


def refused(run: Any, *words: object, code: int = 2) -> str:
    """Return the one line with which a command is refused."""
    ended, out, err = run(*words)
    assert (ended, out, err.count("\n")) == (code, "", 1), (ended, out, err)
    assert err.startswith("gapgnn: ")
    return str(err)


def people(*ids: object, namespace: str = "default") -> People:
    return People.listed(np.array(ids), namespace=namespace, name="customers")


def fit(ledger: Ledger, who: People, *, epsilon: float = 1.0, **options: Any) -> str:
    """Charge what a training with two hops costs."""
    priced = calibrate([Gaussian(1.0, count=2)], epsilon=epsilon, delta=1e-7, relation="undirected")
    given = {"level": "edge", "relation": "undirected", "purpose": "GAP fit", **options}
    events = [event.to_dict() for event in priced.events]
    return ledger.charge(who, epsilon=priced.epsilon, delta=1e-7, events=events, **given).id


def test_an_empty_ledger_says_that_nothing_was_granted(run, ledger) -> None:
    code, out, err = run()
    assert (code, out) == (0, "")
    assert "Nothing was granted or charged yet" in err
    assert asked(run) == {"ledger": str(ledger.path), "budgets": []}


def test_looking_at_the_users_own_ledger_makes_none(run, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("GAPGNN_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    assert run()[0] == run("verify")[0] == run("settings")[0] == 0
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    "words",
    [
        (),
        CUSTOMERS,
        ("show", "customers"),
        ("forecast", "customers", "--epsilon", "1"),
        ("settings",),
        ("settings", "require-grant", "on"),
        ("export", "--out", "all.csv"),
        ("verify",),
    ],
)
def test_a_named_ledger_that_is_not_there_is_refused(run, tmp_path, words) -> None:
    before = sorted(tmp_path.iterdir())
    assert "does not exist" in refused(run, *words, "--ledger", tmp_path / "mistyped.sqlite")
    assert sorted(tmp_path.iterdir()) == before


def test_init_makes_a_ledger_once_and_refuses_anything_else(run, tmp_path) -> None:
    path = tmp_path / "team" / "ledger.sqlite"
    assert run("init", path)[:2] == (0, f"Made the ledger {path}.\n")
    run(*CUSTOMERS, "--ledger", path)
    assert "was there already; nothing was changed" in run("init", path)[1]
    assert len(asked(run, "--ledger", path)["budgets"]) == 1
    assert asked(run, "init", path) == {"ledger": str(path), "made": False}
    text = (tmp_path / "customers.csv").read_text()
    assert "is damaged or not a ledger" in refused(run, "init", "customers.csv", code=4)
    assert (tmp_path / "customers.csv").read_text() == text
    refused(run, "init", tmp_path)


def test_people_get_a_budget_before_anything_is_trained(run, ledger) -> None:
    code, out, err = run(*CUSTOMERS, "--until", "2127-11-15", "--reason", "board, item 12")
    assert code == 0
    assert out.splitlines()[1].split() == [
        *("customers", "edge", "undirected", "gaussian"),
        *("4", "/", "0.0001", "0", "0", "4", "2127-11-15", "0"),
    ]
    assert "1,000 people in the namespace default" in err
    assert "The relation is undirected, the default at edge level" in err
    (granted,) = ledger.grants()
    assert granted.reason == "board, item 12"
    # One of them in another table, as text, with a stranger: the same people.
    fit(ledger, people("1000", "stranger"))
    (budget,) = asked(run)["budgets"]
    assert (budget["people"], budget["charges"]) == (1001, 1)
    assert 0 < budget["left_epsilon"] < 4


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "feather"])
def test_only_ids_are_read_from_every_table_format(run, tmp_path, suffix) -> None:
    table = pa.table({"name": ["ann", "bob"], "account": [70, 71], "id": ["x", "y"]})
    path = tmp_path / f"people.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif suffix == "feather":
        pyarrow.feather.write_feather(table, path)
    else:
        mark = "," if suffix == "csv" else "\t"
        lines = zip(*table.to_pydict().values(), strict=True)
        text = "\n".join(mark.join(map(str, line)) for line in (table.column_names, *lines))
        path.write_text(text + "\n")
    words = ("--nodes", path, "--epsilon", 1, "--delta", "1e-4")
    assert asked(run, "grant", "by-id", *words)["budget"]["people"] == 2
    ledger = Ledger()
    fit(ledger, people("x"))
    run("grant", "by-account", *words, "--id", "account")
    fit(ledger, people(70))
    charges = {row["population"]: row["charges"] for row in asked(run)["budgets"]}
    assert charges == {"by-id": 1, "by-account": 1}


@pytest.mark.filterwarnings("ignore:The namespace:gapgnn.privacy.ledger.LedgerNotice")
def test_ids_of_another_namespace_are_other_people(run, ledger) -> None:
    run(*CUSTOMERS)
    patients = ("grant", "patients", "--nodes", "customers.csv", "--epsilon", "1")
    patients += ("--delta", "1e-4")
    budget = asked(run, *patients, "--population", "clinic")["budget"]
    assert (budget["namespace"], budget["people"]) == ("clinic", 1000)
    fit(ledger, people(1, namespace="clinic"), epsilon=0.5)
    charges = {row["population"]: row["charges"] for row in asked(run)["budgets"]}
    assert charges == {"customers": 0, "patients": 1}
    assert "choose another name" in refused(run, *CUSTOMERS, "--population", "clinic")


def test_a_known_population_is_granted_anew_by_its_name_and_keeps_the_rest(run, ledger) -> None:
    run(*CUSTOMERS, "--composition", "sum", "--delta", "1e-6", "--until", "2127-11-15")
    again = asked(run, "grant", "customers", "--epsilon", "8")["budget"]
    assert (again["granted_epsilon"], again["granted_delta"]) == (8.0, 1e-6)
    assert (again["composition"], again["until"]) == ("sum", "2127-11-15")
    words = ("grant", "customers", "--epsilon", "8", "--delta", "1e-4", "--until", "never")
    changed = asked(run, *words, "--composition", "renyi")["budget"]
    assert (changed["granted_delta"], changed["until"]) == (1e-4, None)
    assert (changed["composition"], changed["people"]) == ("renyi", 1000)


def test_watch_warns_of_what_is_nearly_spent_or_over_and_of_nothing_else(
    run, ledger, today
) -> None:
    """Epsilon or delta at exactly the share, or a last day that is over; today is still in time."""
    terms = {"level": "edge", "relation": "undirected", "composition": "sum"}
    days = {"over": -1, "last day": 0, "fresh": 1}
    spent = {"epsilon": (0.8, 1e-6), "delta": (0.1, 9e-6), "less": (0.79, 7e-6)}
    for number, name in enumerate((*days, *spent)):
        until = (today + timedelta(days=days[name])).isoformat() if name in days else None
        who = people(500 + number)
        ledger.grant(name, who, **terms, epsilon=1, delta=1e-5, until=until)
        if name in spent:
            epsilon, delta = spent[name]
            stated = {"level": "edge", "relation": "undirected", "events": [], "purpose": "fit"}
            ledger.charge(who, **stated, epsilon=epsilon, delta=delta)
    code, out, _ = run("watch", "--warn-at", "0.8", "--json")
    rows = {row["population"]: row for row in json.loads(out)["budgets"]}
    assert code == 1
    assert {name for name, row in rows.items() if row["warns"]} == {"over", "epsilon", "delta"}
    assert {name for name, row in rows.items() if row["has_ended"]} == {"over"}
    assert (rows["epsilon"]["share"], rows["delta"]["share"]) == (0.8, pytest.approx(0.9))


def test_a_sum_of_pure_epsilons_stays_one(run) -> None:
    run(*CUSTOMERS, "--composition", "sum", "--delta", "0")
    again = asked(run, "grant", "customers", "--epsilon", "8")["budget"]
    assert (again["composition"], again["granted_delta"]) == ("sum", 0.0)


def test_a_registered_data_set_is_granted_by_its_name_and_relation(run, ledger) -> None:
    budget = asked(run, "grant", "tiny", "--epsilon", "1")["budget"]
    assert (budget["namespace"], budget["relation"]) == ("dataset tiny", "undirected")
    assert (budget["people"], budget["granted_delta"]) == (3, 1e-2)
    directed = run("grant", "tiny-directed", "--epsilon", "1")
    assert "The relation is directed, as the data set is" in directed[2]
    node = asked(run, "grant", "tiny", "--epsilon", "1", "--level", "node")["budget"]
    assert (node["relation"], node["composition"]) == ("add-remove", "renyi")
    fit(ledger, People.of(tiny("tiny")), epsilon=0.5)
    assert [row["charges"] for row in asked(run)["budgets"]] == [1, 0, 0]


def test_what_is_spent_is_shown_rounded_up_and_what_is_left_rounded_down(run, ledger) -> None:
    terms = {"level": "edge", "relation": "undirected"}
    ledger.grant("few", people(1), **terms, epsilon=4, delta=1e-3, composition="sum")
    spent = {"epsilon": 0.123411, "delta": 1.23411e-5}
    ledger.charge(people(1), **terms, **spent, events=[], purpose="by hand")
    cells = run()[1].splitlines()[1].split()
    assert "0.1235 / 1.235e-05" in " ".join(cells)
    assert "3.876 / 0.0009876" in " ".join(cells)


def test_a_data_sets_name_given_to_other_people_is_refused(run, ledger) -> None:
    run("grant", "tiny", "--nodes", "customers.csv", "--epsilon", "1", "--delta", "1e-4")
    assert "whose ids mean other people" in refused(run, "grant", "tiny", "--epsilon", "2")
    assert len(ledger.grants()) == 1


def test_the_relation_of_earlier_charges_is_kept(run, ledger) -> None:
    fit(ledger, people(1, 2), relation="directed")
    _, out, err = run(*CUSTOMERS)
    assert "directed" in out.splitlines()[1].split()
    assert "The relation is directed, as before" in err


def test_what_is_next_to_nothing_is_zero_for_people_and_exact_in_json(run, ledger) -> None:
    run(*CUSTOMERS, "--composition", "sum", "--delta", "1e-5")
    for _ in range(4):
        fit(ledger, people(1))
    header, row = run()[1].splitlines()
    shown = dict(zip(re.split("  +", header), re.split("  +", row), strict=True))
    assert shown["spent"] == "4 / 4e-07"
    assert shown["left"] == "0 / 9.6e-06"
    (budget,) = asked(run)["budgets"]
    assert 0 < budget["left_epsilon"] < 1e-6
    assert budget["spent_epsilon"] == pytest.approx(4, abs=1e-6)


def test_without_a_budget_charges_are_listed_and_said_to_be_unlimited(run, ledger) -> None:
    fit(ledger, people(1, 2))
    _, out, err = run()
    assert out.splitlines()[1].split() == [
        *("customers", "edge", "undirected", "-", "-", "1", "/", "1e-07", "1", "-", "1")
    ]
    assert "recorded, not limited" in err


def test_show_says_who_charged_what_when_and_why(run, ledger, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run(*CUSTOMERS, "--delta", "1e-7")
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("socket.gethostname", lambda: "bank-7")
    monkeypatch.setattr("sys.argv", ["/usr/bin/gapgnn", "train", "label-gap", "--out", "my model"])
    ledger.complete(fit(ledger, people(1), reason="scores of November"))
    fit(ledger, people(1), count=9)
    _, out, _ = run("show", "customers")
    # Nothing is broken over lines, however narrow the screen: least of all a time.
    first = next(line for line in out.splitlines() if "ann@bank-7" in line)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d  ann@bank-7  GAP fit  edge +1 / 1e-07 +1$", first)
    assert "    reason: scores of November\n" in out
    assert "    command: gapgnn train label-gap --out 'my model'\n" in out
    assert "9 x 1 / 1e-07     3.462" in out  # ten fits together, not 10
    assert "spent, and not noted as completed" in out
    answer = asked(run, "show", "customers")
    assert [row["reason"] for row in answer["charges"]] == ["scores of November", ""]
    assert answer["charges"][1]["together"] == pytest.approx(3.4614, abs=1e-3)
    assert answer["budgets"][0]["left_epsilon"] < 4
    assert "Did you mean 'customers'?" in refused(run, "show", "custmers")


def test_show_lists_an_uncharged_look_with_its_reason(run, ledger) -> None:
    run(*CUSTOMERS)
    stated = {"level": "edge", "relation": "undirected"}
    ledger.log_access(people(1), **stated, purpose="attack links", reason="our own audit")
    _, out, _ = run("show", "customers")
    assert re.search(r"access: attack links +edge +- +0\n    reason: our own audit\n", out)
    (charge,) = asked(run, "show", "customers")["charges"]
    assert (charge["count"], charge["epsilon"]) == (0, 0.0)


@pytest.fixture
def today(monkeypatch) -> date:
    """The day on which the test begins, for commands too: midnight may come in the middle."""
    day = date.today()

    class Held(date):
        @classmethod
        def today(cls) -> date:
            return day

    for module in ("gapgnn.privacy.ledger.forecast", "gapgnn.cli.ledger"):
        monkeypatch.setattr(f"{module}.date", Held)
    return day


def test_a_forecast_counts_the_fits_and_names_the_days(run, ledger, today) -> None:
    run(*CUSTOMERS, "--delta", "1e-7")
    words = ("forecast", "customers", "--epsilon", "1", "--hops", "4")
    _, out, _ = run(*words)
    lines = out.splitlines()
    assert lines[0].startswith("12 more fits of epsilon 1 (delta 1e-07, 4 hops) fit the budget")
    assert [line.split()[:2] for line in lines[2:14]] == [
        [str(number), (today + timedelta(days=30 * (number - 1))).isoformat()]
        for number in range(1, 13)
    ]
    table = [line.split() for line in lines[-4:]]
    assert [row[0] for row in table] == ["1", "2", "3", "4"]
    assert table[-1][1:] == ["1", "12", "11", "1"]
    answer = asked(run, *words, "--every", "7")["forecast"]
    assert answer["fits"] == len(answer["plan"]) == 12
    assert answer["plan"][1]["day"] == (today + timedelta(days=7)).isoformat()
    assert ledger.entries() == []


def test_a_forecast_stops_where_the_budget_ends(run, today) -> None:
    end = today + timedelta(days=40)
    run(*CUSTOMERS, "--until", end)
    _, out, _ = run("forecast", "customers", "--epsilon", "1")
    assert f"The budget ends on {end}: 2 of them are in time." in out
    assert "no budget at node level" in refused(
        run, "forecast", "customers", "--epsilon", "1", "--level", "node"
    )


def test_a_ledger_can_require_a_grant(run, ledger) -> None:
    assert run("settings")[1].splitlines()[0] == "require-grant off"
    assert run("settings", "require-grant", "on")[1] == "require-grant on\n"
    assert asked(run, "settings", "require-grant")["settings"] == {"require-grant": "on"}
    with pytest.raises(PrivacyError, match="this ledger requires one"):
        fit(ledger, people(1))
    run("settings", "require-grant", "off")
    fit(ledger, people(1))


def test_settings_and_exports_show_who_changed_a_setting_and_when(run, tmp_path) -> None:
    run("settings", "require-grant", "on")
    run("settings", "require-grant", "off")
    _, out, err = run("settings")
    assert out.splitlines()[0] == "require-grant off"
    assert re.findall(r"\S+@\S+ changed require-grant: (\w+ to \w+)\.", err) == [
        "off to on",
        "on to off",
    ]
    assert len(asked(run, "settings")["changes"]) == 2
    run("export", "--out", "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [row["about"] for row in csv.DictReader(file) if row["row"] == "note"] == [
            "require-grant: off to on",
            "require-grant: on to off",
        ]
    run("export", "--out", "all.json")
    assert len(json.loads((tmp_path / "all.json").read_text())["notes"]) == 2


def test_an_export_holds_every_grant_and_charge_exactly(run, ledger, tmp_path) -> None:
    run(*CUSTOMERS, "--reason", 'said "yes", twice')
    fit(ledger, people(1), epsilon=0.3)
    run("grant", "customers", "--epsilon", "5")
    assert "2 grants and 1 charge written to all.csv" in run("export", "--out", "all.csv")[1]
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["row"] for row in rows) == ["charge", "grant", "grant"]
    assert sorted(rows, key=lambda row: row["at"]) == rows
    (charge,) = ledger.entries()
    (written,) = (row for row in rows if row["row"] == "charge")
    assert float(written["epsilon"]) == charge.epsilon
    assert json.loads(written["events"]) == list(charge.events)
    assert 'said "yes", twice' in [row["reason"] for row in rows]
    assert asked(run, "export", "--out", "all.json")["charges"] == 1
    whole = json.loads((tmp_path / "all.json").read_text())
    assert [row["epsilon"] for row in whole["grants"]] == [4.0, 5.0]
    assert whole["charges"][0]["epsilon"] == charge.epsilon
    assert "must be a new file" in refused(run, "export", "--out", "all.csv")
    assert "must end in .csv or .json" in refused(run, "export", "--out", "all.xls")
    assert "must be a new file" in refused(run, "export", "--out", "nowhere/all.csv")


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE charges SET epsilon = '0.1'",
        "DELETE FROM charges WHERE seq = 1",
        "DELETE FROM charges WHERE seq = 2",
        "UPDATE grants SET epsilon = '400.0'",
    ],
)
def test_verify_finds_a_changed_or_removed_row(run, ledger, tampering) -> None:
    run(*CUSTOMERS)
    fit(ledger, people(1), epsilon=0.3)
    fit(ledger, people(1), epsilon=0.2)
    code, out, err = run("verify")
    assert (code, err) == (0, "")
    assert out == f"{ledger.path}: 1 grant and 2 charges, none changed or removed.\n"
    assert asked(run, "verify")["problems"] == []
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(tampering)
    connection.close()
    assert re.search("was (changed or )?removed", refused(run, "verify", code=4))
    code, out, _ = run("verify", "--json")
    assert code == 4
    assert len(json.loads(out)["problems"]) == 1


def test_verify_refuses_a_file_that_is_not_a_ledger(run) -> None:
    refused(run, "verify", "--ledger", "customers.csv", code=4)


@pytest.mark.filterwarnings("default::gapgnn.privacy.ledger.LedgerNotice")
def test_a_ledger_of_version_3_is_upgraded_and_says_so_in_one_line(run, tmp_path) -> None:
    path = tmp_path / "old.sqlite"
    shutil.copy(VERSION_3, path)
    code, out, err = run("--ledger", path)
    assert code == 0
    lines = err.splitlines()
    assert re.match(r"gapgnn: Ledger \S+old\.sqlite was brought to version 5", lines[0])
    assert "Warning" not in err
    assert len(out.splitlines()) > 1
    assert len(list(tmp_path.glob("old.sqlite.version-*"))) == 1
    assert "version" not in run("--ledger", path)[2]


def test_options_may_stand_before_or_after_the_action(run, ledger, tmp_path) -> None:
    other = Ledger.init(tmp_path / "other.sqlite")
    fit(other, people(1))
    for words in (
        ["--ledger", other.path, "--json", "show", "customers"],
        ["show", "customers", "--ledger", other.path, "--json"],
    ):
        code, out, _ = run(*words)
        assert (code, len(json.loads(out)["charges"])) == (0, 1)
    assert ledger.entries() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*TABLE[:-1], "0"), "`--epsilon` must be positive"),
        ((*CUSTOMERS, "--delta", "1"), "`--delta` must be"),
        ((*CUSTOMERS, "--delta", "small"), "must be auto or a number. Got 'small'"),
        ((*CUSTOMERS, "--relation", "replace"), "`--relation` at level 'edge'"),
        ((*CUSTOMERS, "--composition", "rdp"), "invalid choice: 'rdp'"),
        ((*CUSTOMERS, "--until", "2001-01-01"), "`--until` must not be over"),
        ((*CUSTOMERS, "--until", "next year"), "`--until` must be a day such as"),
        ((*CUSTOMERS, "--until", "21271115"), "`--until` must be a day such as"),
        ((*CUSTOMERS, "--id", "number"), "`--id` must be a column of"),
        ((*CUSTOMERS, "--id", "note"), "must name each node once"),
        ((*CUSTOMERS, "--population", "-"), "a population must have a name"),
        (("grant", "customers", "--nodes", "custmers.csv", "--epsilon", "1"), "'customers.csv'"),
        (("grant", "customers", "--epsilon", "1"), "must be a known population"),
        (("grant", "customers", "--epsilon", "1", "--id", "id"), "must come with `--nodes`"),
        (("grant", "customers", "--nodes", "customers.csv"), "required: --epsilon"),
        (("grant", "a\tb", "--nodes", "customers.csv", "--epsilon", "1"), "must have a name"),
        (("settings", "require-grants", "on"), "Did you mean 'require-grant'"),
        (("settings", "require-grant", "maybe"), "must be one of off, on"),
        (("init", "new.sqlite", "--ledger", "x"), "`--ledger` must be left out"),
        (("shwo",), "invalid choice: 'shwo'"),
        (("--jsno",), "unknown option '--jsno'"),
    ],
)
def test_bad_input_is_one_line_and_grants_nothing(run, ledger, words, message) -> None:
    assert message in refused(run, *words)
    assert ledger.grants() == []
    assert ledger.summary() == []


def test_a_grant_below_what_is_spent_is_refused(run, ledger) -> None:
    fit(ledger, people(1))
    assert "below what is spent" in refused(run, *TABLE[:-1], "0.4", "--delta", "1e-7")


def test_help_shows_examples(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "gapgnn ledger grant customers --nodes customers.csv --epsilon 4 --delta 1e-7" in out


def test_one_fit_at_node_level_is_stated_as_it_is_counted_and_as_it_is_proved(run, ledger) -> None:
    """A Renyi budget counts far more than one training costs by its loss distribution."""
    events = (PoissonGaussian(2.0, 0.1, 60), Gaussian(2.0))
    alone = account(events, 1e-5, relation="add-remove").epsilon
    ledger.grant(
        "customers", people(1, 2), level="node", relation="add-remove", epsilon=8, delta=1e-5
    )
    stated = {"level": "node", "relation": "add-remove", "epsilon": alone, "delta": 1e-5}
    ledger.charge(
        people(1), **stated, events=[event.to_dict() for event in events], purpose="GAP fit"
    )
    (row,) = asked(run)["budgets"]
    assert row["spent_epsilon"] > 1.2 * alone
    assert row["composed_epsilon"] == pytest.approx(alone, rel=2e-3)
    assert row["composed_epsilon"] <= alone
    for words in ((), ("show", "customers")):
        _, out, err = run(*words)
        heads, values = (line.split() for line in out.splitlines()[:2])
        # "granted" is three words.
        shown = float(values[heads.index("composed") + 2])
        assert 0 <= shown - row["composed_epsilon"] < 1e-3
        assert "Spent is what the budget counts and what limits it" in err
        assert "if none was chosen by what another one showed" in err


def test_what_is_composed_is_never_more_than_what_is_counted(run, ledger) -> None:
    run(*CUSTOMERS)
    for epsilon in (1.0, 0.5):
        fit(ledger, people(1), epsilon=epsilon)
    (row,) = asked(run)["budgets"]
    # Gaussian noise alone: the filter has no loss, and both are the exact curve.
    mu = math.hypot(*(gaussian_shift(epsilon, 1e-7) for epsilon in (1.0, 0.5)))
    assert row["spent_epsilon"] == pytest.approx(gaussian_epsilon(mu, 1e-4), rel=1e-4)
    assert row["composed_epsilon"] == pytest.approx(row["spent_epsilon"], rel=1e-9)


def test_without_a_budget_charges_are_summed_and_composed(run, ledger) -> None:
    for _ in range(4):
        fit(ledger, people(1))
    (row,) = asked(run)["budgets"]
    assert row["spent_epsilon"] == pytest.approx(4, rel=1e-3)
    mu = 2 * gaussian_shift(1.0, 1e-7)
    assert row["composed_epsilon"] == pytest.approx(gaussian_epsilon(mu, 4e-7), rel=1e-3)


def test_each_budget_is_composed_of_its_own_charges(run, ledger) -> None:
    """Not of those at the other level, nor of those of other people."""
    noise = {"edge": 4.0, "node": 2.0}
    for level, relation in (("edge", "undirected"), ("node", "add-remove")):
        stated = {"level": level, "relation": relation, "epsilon": 6.0, "delta": 1e-5}
        events = [Gaussian(noise[level]).to_dict()]
        ledger.charge(people(1), **stated, events=events, purpose="fit")
        ledger.charge(people(70), **stated, events=[Gaussian(0.5).to_dict()], purpose="fit")
    rows = [row for row in asked(run)["budgets"] if row["population"] == "customers"]
    assert len(rows) == 2
    for row in rows:
        alone = account([Gaussian(noise[row["level"]])], 1e-5, relation=row["relation"]).epsilon
        assert row["composed_epsilon"] == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-5, 0.0], ids=["gaussian", "pure"])
def test_repeats_of_one_charge_are_composed_as_so_many_charges(run, ledger, delta) -> None:
    event = Gaussian(8.0) if delta else Laplace(1.0)
    stated = {"level": "edge", "relation": "undirected", "events": [event.to_dict()]}
    stated |= {"epsilon": 3.0, "delta": delta, "purpose": "fit"}
    ledger.charge(people(1), **stated, count=3)
    for _ in range(3):
        ledger.charge(people(70), **stated)
    rows = {row["population"]: row for row in asked(run)["budgets"] if row["charges"]}
    repeated, single = (row["composed_epsilon"] for row in rows.values())
    alone = account([event], delta, relation="undirected").epsilon
    assert repeated == pytest.approx(single, rel=1e-6)
    assert repeated > 1.5 * alone


def test_charges_under_a_weaker_relation_are_not_composed_by_their_sum(run, ledger) -> None:
    """An edge is two arcs: twice the epsilon that was stated for one of them."""
    stated = {"level": "edge", "relation": "directed", "epsilon": 0.5, "delta": 0.0}
    ledger.charge(people(1), **stated, events=[], purpose="by hand")
    terms = {"level": "edge", "relation": "undirected", "epsilon": 4, "delta": 1e-5}
    ledger.grant("customers", **terms, composition="sum")
    (row,) = asked(run)["budgets"]
    assert row["composed_epsilon"] == row["spent_epsilon"] == 1.0


def test_hops_under_a_weaker_relation_are_composed_by_the_sensitivity_of_the_budgets(
    run, ledger
) -> None:
    stated = {"level": "edge", "relation": "directed", "epsilon": 2.0, "delta": 1e-5}
    ledger.charge(people(1), **stated, events=[Gaussian(4.0).to_dict()], purpose="fit")
    terms = {"level": "edge", "relation": "undirected", "epsilon": 8, "delta": 1e-5}
    ledger.grant("customers", **terms, composition="gaussian")
    (row,) = asked(run)["budgets"]
    # An edge is two arcs, and a symmetrised sum moves by twice as much: half the noise.
    own = account([Gaussian(4.0 / 2)], 1e-5, relation="undirected").epsilon
    assert row["composed_epsilon"] == pytest.approx(own, rel=1e-6)
    assert own > 1.3 * account([Gaussian(4.0)], 1e-5, relation="undirected").epsilon


def test_a_charge_that_does_not_say_what_it_bought_is_composed_by_its_sum(run, ledger) -> None:
    stated = {"level": "edge", "relation": "undirected", "epsilon": 0.5, "delta": 1e-8}
    for _ in range(3):
        ledger.charge(people(1), **stated, events=[], purpose="by hand")
    (row,) = asked(run)["budgets"]
    assert row["composed_epsilon"] == row["spent_epsilon"] == 1.5


def test_auto_delta_follows_edges_at_edge_level_as_that_of_a_run_does(run, ledger) -> None:
    """A thousand customers with a hundred thousand payments: 1e-4 by people, 1e-6 by edges."""
    assert "auto follows the number of edges" in refused(run, *TABLE)
    assert "auto follows the number of edges" in refused(run, *TABLE, "--delta", "auto")
    assert ledger.grants() == []
    # Of people who were charged already, the delta of the runs is known.
    fit(ledger, people(1, 2))
    _, _, err = run(*TABLE)
    assert "delta is 1e-07, that of the last charge" in err
    assert ledger.grants()[0].delta == 1e-7
    # At node level the table says how many people there are.
    node = asked(run, *TABLE, "--level", "node")["budget"]
    assert node["granted_delta"] == 1e-4


@pytest.mark.parametrize("name", ["tiny", "tiny-directed"])
@pytest.mark.parametrize("level", ["edge", "node"])
def test_a_grant_and_a_run_on_one_data_set_have_the_same_auto_delta(
    run, monkeypatch, name: str, level: str
) -> None:
    """Ten people and 40 edges: at edge level 1e-3 and not 1e-2; the same as a run's."""
    ends = np.array([(u, v) for u in range(10) for v in range(u)][:40])
    graph = Graph.from_arcs(
        ends[:, 0],
        ends[:, 1],
        num_nodes=10,
        features=np.eye(10),
        directed=name == "tiny-directed",
        name=name,
        population=f"dataset {name}",
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: graph)
    granted = asked(run, "grant", name, "--epsilon", "1", "--level", level)["budget"]
    relation = resolve_relation(level, is_directed=graph.is_directed)
    promised = Guarantee.resolve(
        graph, [Gaussian(1.0)], relation=relation, epsilon=1.0, delta="auto"
    )
    assert granted["granted_delta"] == promised.delta == {"edge": 1e-3, "node": 1e-2}[level]


def test_one_of_anything_is_not_called_several(run, gapgnn, ledger) -> None:
    words = ("--epsilon", "1", "--delta", "1e-4")
    _, _, err = run("grant", "tiny", *words)
    assert "3 people in" in err
    (Path("one.csv")).write_text("id\n7\n")
    _, _, err = run("grant", "one", "--nodes", "one.csv", *words)
    assert "1 person in the namespace" in err
    _, out, _ = run("forecast", "one", "--epsilon", "0.99", "--delta", "1e-4", "--hops", "1")
    assert out.startswith("1 more fit of epsilon 0.99 (delta 0.0001, 1 hop) fits the budget")
    _, out, _ = gapgnn("noise", *words, "--hops", "1")
    assert ", 1 hop\n" in out
    loaded = LoadedGraph(tiny("tiny"), 1, 2, 1)
    assert loaded.left_out == (
        "1 self-loop, 2 repeated edges, 1 edge that names an id without a row"
    )
