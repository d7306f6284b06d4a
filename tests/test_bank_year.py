"""The bank's tutorial as it stands: its commands run, its warnings appear, its page is true."""

from __future__ import annotations

import csv
import re

import pytest
from sklearn.metrics import roc_auc_score

from gapgnn import Ledger, load_model
from tutorials import QUICK, played

# The page trains the first time under `--population trial`, and its ledger says so.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The namespace:gapgnn.privacy.ledger.LedgerNotice"),
]


@pytest.fixture(scope="module", params=[QUICK, {}], ids=["quick", "whole"])
def story(request, tmp_path_factory):
    """Run every command of the page; the whole run trains and audits as long as the page does."""
    with played("tutorials/bank.md", tmp_path_factory.mktemp("bank"), request.param) as story:
        yield story


def test_every_command_does_what_the_page_says(story):
    refused = {step.words[0]: step.said for step in story.steps if step.code}
    assert list(refused) == ["describe"], refused
    assert "3 things must be changed" in story.step("describe").said


def test_both_runs_show_what_the_largest_class_and_guessing_would_have(story):
    naive, declared = (step.said for step in story.steps if step.words[0] == "train")
    for said in (naive, declared):
        assert "always 'low' │ 97.0%" in said
        assert "guessing │ 0.030" in said
    assert "Not better than" not in declared
    # Once by options and once by the schema.
    for said in (naive, declared):
        assert "all payments between any two customers together" in " ".join(said.split())


def test_the_unlabelled_of_high_risk_stand_in_front(story):
    folder = story.folder
    with (folder / "truth.csv").open() as file:
        truth = {row["id"]: row["risk"] == "high" for row in csv.DictReader(file)}
    with (folder / "to-check.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (folder / "customers.csv").open() as file:
        unknown = {row["id"] for row in csv.DictReader(file) if not row["risk"]}
    assert {row["id"] for row in rows} == unknown
    probabilities = [float(row["probability of high"]) for row in rows]
    assert roc_auc_score([truth[row["id"]] for row in rows], probabilities) >= 0.80


def test_the_officers_page_speaks_of_payments_and_shows_no_accuracy(story):
    folder = story.folder
    text = re.sub(r"<[^>]+>", " ", (folder / "november.report.html").read_text())
    assert "payment" in text
    assert "all payments between any two customers together" in text
    assert not re.search(r"\b(person|people|friend\w*)\b", text)
    assert not re.search(r"accuracy|AUC|84\.\d ?%", text)
    # What it states is what the card and the ledger say.
    card = load_model(folder / "november").card_
    (charge,) = Ledger(folder / "bank.sqlite").entries("scored")
    assert card.ledger.charge_id == charge.id
    for stated in (charge.id, "scored", "scores of November", f"{card.epsilon:.2f}"):
        assert stated in text
    assert text.count("holds") >= 3


def test_the_ledger_holds_one_fit_of_these_customers(story):
    folder = story.folder
    ledger = Ledger(folder / "bank.sqlite")
    (charge,) = ledger.entries("scored")
    assert (charge.reason, charge.purpose) == ("scores of November", "label-gap fit")
    assert 3.9 < charge.epsilon <= 4
    assert ledger.problems() == []


def test_three_of_a_hundred_are_at_risk_and_codes_keep_their_leading_zeros(story):
    with (story.folder / "truth.csv").open() as file:
        risks = [row["risk"] for row in csv.DictReader(file)]
    assert risks.count("high") / len(risks) == pytest.approx(0.03)
    names = load_model(story.folder / "november").feature_names_
    assert {"branch=004", "occupation=0110"} <= set(names)
    said = [step.said for step in story.steps if step.words[0] == "train"]
    assert all("Nodes of class 'high'" in one for one in said)
    assert re.search(r"The graph adds \+0\.\d+ to the average precision", said[1])
