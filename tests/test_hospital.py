"""The hospital's tutorial as it stands: node level with a schema, and nobody's figures leave."""

from __future__ import annotations

import csv
import re

import pytest
from sklearn.metrics import roc_auc_score

from gapgnn import Ledger, load_model
from tutorials import QUICK, played

pytestmark = pytest.mark.gate

# Ten epochs are few; what they cost is charged as such.
QUICKER = {**QUICK, "train": ("--epochs", "10"), "audit --model": ("--trials", "1000")}


@pytest.fixture(
    scope="module",
    params=[QUICKER, pytest.param({}, marks=pytest.mark.slow)],
    ids=["quick", "whole"],
)
def story(request, tmp_path_factory):
    """Run every command of the page; the slow run trains and audits as long as the page does."""
    with played(
        "tutorials/hospital.md", tmp_path_factory.mktemp("hospital"), request.param
    ) as story:
        yield story


def test_only_the_training_without_a_schema_is_refused(story):
    (refused,) = (step for step in story.steps if step.code)
    assert refused.words[:2] == ("train", "--edges")
    assert "`--schema` must say at node level" in refused.said
    assert "gapgnn schema --nodes patients.csv --label readmitted" in refused.said


def test_figures_are_called_the_curators(story):
    said = story.step("train", "calls", "balanced").said
    assert "computed from private labels, for the curator only" in said
    assert "any one patient's record (features, label and adjacency list)" in said
    assert "Charged to patients: charge " in said
    assert "features only" not in said, "a reference at node level has a price of its own"


def test_the_unlabelled_who_come_back_stand_in_front(story):
    files = {}
    for name in ("truth", "to-call", "patients"):
        with (story.folder / f"{name}.csv").open() as file:
            files[name] = list(csv.DictReader(file))
    truth = {row["id"]: row["readmitted"] == "yes" for row in files["truth"]}
    rows = files["to-call"]
    unknown = {row["id"] for row in files["patients"] if not row["readmitted"]}
    assert {row["id"] for row in rows} == unknown
    probabilities = [float(row["probability of yes"]) for row in rows]
    assert roc_auc_score([truth[row["id"]] for row in rows], probabilities) >= 0.7
    assert "no budget was spent" in story.step("predict").said


def test_the_officers_page_speaks_of_patients_and_shows_no_accuracy(story):
    page = (story.folder / "calls.report.html").read_text()
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]+>", " ", page, flags=re.S)
    assert "patient" in text
    assert "contact" in text
    assert not re.search(r"\b(person|people|friend\w*)\b", text, re.I)
    assert not re.search(r"accuracy|AUC", text)
    card = load_model(story.folder / "calls").card_
    assert (card.level, str(card.relation), card.max_degree) == ("node", "add-remove", None)
    for stated in (card.ledger.charge_id, "whom to call after discharge", f"{card.epsilon:.2f}"):
        assert stated in text
    assert text.count("holds") + text.count("no violation found") >= 2


def test_what_the_card_calls_covered_is_what_the_page_says(story):
    card = load_model(story.folder / "calls").card_
    assert any("features, label and adjacency list" in line for line in card.covered)
    assert dict(card.public).keys() >= {"number of training patients"}
    assert all("read from the data" not in origin for _, origin in card.public)


def test_the_ledger_holds_both_fits_and_the_access(story):
    ledger = Ledger(story.folder / "hospital.sqlite")
    found = [(entry.purpose, entry.reason) for entry in ledger.entries("patients")]
    assert found == [
        ("node-label-gap fit", "whom to call after discharge"),
        ("mlp fit", "what the columns alone say"),
        ("access: audit pipeline", "before the release"),
    ]
    assert ledger.problems() == []
    (budget,) = ledger.summary()
    assert (budget.level, budget.composition) == ("node", "renyi")
    assert 8 < budget.spent_epsilon < 16
