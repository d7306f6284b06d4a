"""`gapgnn tune`: one charge, one winner, and nothing about the other candidates."""

from __future__ import annotations

import json

import pytest

from gapgnn import load_model

QUICK = ["gap", "--epochs", 2, "--hidden", 4]
HOPS = ["--try", "hops=1,2"]


def test_a_plan_says_what_is_free_and_what_it_costs_and_charges_nothing(gapgnn, ledger):
    code, out, _ = gapgnn("tune", *QUICK, *HOPS, "--try", "combine=concat,sum", "--plan")
    assert code == 0
    assert "compared without a further charge: combine" in out
    assert "asking the graph again: hops" in out
    assert "2 pilots" in out
    code, out, _ = gapgnn("tune", *QUICK, *HOPS, "--strategy", "selection", "--plan", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["releases"] == [[0], [1]]
    assert plan["plan"]["guarantee"]["events"][0]["event"] == "PrivateSelection"
    # As `train --plan` says it.
    assert (plan["left"], plan["after"], plan["refused"]) == ([], [], "")
    assert ledger.entries() == []


@pytest.mark.parametrize("strategy", ["pilots", "selection"])
def test_the_winner_is_saved_at_the_price_of_the_search(gapgnn, ledger, tmp_path, strategy):
    code, out, err = gapgnn(
        "tune", *QUICK, *HOPS, "--strategy", strategy, "--out", "model", "--json"
    )
    result = json.loads(out)
    assert code == 0
    (charge,) = ledger.entries()
    assert result["epsilon"] == charge.epsilon <= 1.0
    assert load_model(tmp_path / "model").card_.epsilon == charge.epsilon
    assert not (tmp_path / "model.unfinished").exists()
    assert result["seconds"] == {}
    secret = [score is None for score in result["results"]["score"]]
    assert any(secret) == (strategy == "selection")
    assert "validation" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`--try` must name what to choose from"),
        (["--try", "hops"], "must name a parameter once, with its values"),
        (["--try", "hobs=1,2"], "`--try` must name a parameter of gap"),
        (["--try", "hops=1,x"], "must be a whole number. Got 'x'."),
        (["--try", "hops=1"], "two settings or more"),
        ([*HOPS, "--strategy", "pilots", "--level", "node"], "must be selection at level node"),
        (["--try", "epsilon=1,2"], "must leave out epsilon"),
    ],
)
def test_a_search_that_cannot_work_is_refused_before_any_charge(gapgnn, ledger, words, message):
    code, _, err = gapgnn("tune", *QUICK, *words)
    assert code == 2
    assert message in err
    assert ledger.entries() == []


def test_a_budget_that_does_not_suffice_refuses_the_search(gapgnn, ledger):
    assert gapgnn("ledger", "grant", "social", "--level", "edge", "--epsilon", "0.5")[0] == 0
    code, _, _ = gapgnn("tune", *QUICK, *HOPS)
    assert code == 3
    assert ledger.entries() == []
