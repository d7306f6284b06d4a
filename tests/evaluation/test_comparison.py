"""The page of several saved models says what their cards say, and what they come to together."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gapgnn import GAP, LabelGAP, Ledger, NodeLabelGAP, load_model
from gapgnn.cli.main import main
from gapgnn.errors import InputError, IntegrityError
from gapgnn.evaluation.release import About, side_by_side
from gapgnn.evaluation.release.checks import check_accounting, check_audits
from gapgnn.evaluation.release.nist import mapping_of
from gapgnn.evaluation.release.registry import entry_of
from gapgnn.evaluation.report.comparison import render_comparison, together, write_comparison
from gapgnn.evaluation.report.decision import ANYONE, CURATOR, decide
from gapgnn.evaluation.report.model import amount, curator_figures, history_of, render_model
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.methods.folder import keep_audit, load_folder
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.card.texts import percent, price
from gapgnn.privacy.ledger import People


def facts(page: str, name: str) -> list[str]:
    """Return what a page states under a name, without markup."""
    found = re.findall(rf'data-fact="{name}"[^>]*>(.*?)</(?:td|th|li|p|strong|span|div)>', page)
    return [re.sub(r"<[^>]+>", "", one) for one in found]


@pytest.fixture(scope="module")
def graph() -> Any:
    return social_graph(num_nodes=300, mean_degree=10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, graph: Any) -> Path:
    """Four saved models of one graph, and the ledger that was charged; never changed."""
    folder = tmp_path_factory.mktemp("models")
    ledger = Ledger.init(folder / "own.sqlite").path
    models = {
        "one": LabelGAP(epsilon=1.0, epochs=1, folds=0, ledger=ledger),
        "four": GAP(level="edge", epsilon=4.0, epochs=1, ledger=ledger),
        "node": NodeLabelGAP(epsilon=8.0, epochs=1, ledger=ledger),
        "open": GAP(level="none", epochs=1, ledger=ledger),
    }
    for name, model in models.items():
        model.fit(graph).save(folder / name)
    return folder


def cards(place: Path, *names: str) -> list[PrivacyCard]:
    return [load_folder(place / name).card for name in names]


def test_the_page_states_each_promise_as_its_card_does(place: Path) -> None:
    names = ["one", "four"]
    page = render_comparison([place / name for name in names], ledger=place / "own.sqlite")
    assert facts(page, "model") == names
    for card, epsilon, delta, right in zip(
        cards(place, *names),
        facts(page, "epsilon"),
        facts(page, "delta"),
        facts(page, "right"),
        strict=True,
    ):
        assert epsilon == amount(card.composed_epsilon or 0.0, up=True)
        assert float(delta) == pytest.approx(card.delta)
        assert right == percent(card.attacker.guess)


def test_two_releases_with_gaussian_noise_come_to_the_root_of_their_squares(place: Path) -> None:
    found = cards(place, "one", "four")
    mus = [card.attacker.mu for card in found]
    assert None not in mus
    mu = math.hypot(*mus)
    right = 0.5 * (1 + math.erf(mu / 2 / math.sqrt(2)))
    both = together(found)
    # Rounded up, and by at most what the grid of the composition adds.
    assert right <= float(both.guess.removesuffix(" %")) / 100 <= right + 0.002
    assert max(card.epsilon for card in found) < float(both.epsilon) < 5


def test_a_release_that_two_folders_list_counts_once(place: Path) -> None:
    (card,) = cards(place, "one")
    twice = together([card, card])
    assert float(twice.epsilon) == pytest.approx(1.0, abs=1e-3)
    # Two releases without an id are two.
    bare = replace(card, releases=tuple(replace(one, charge_id="") for one in card.releases))
    assert float(together([bare, bare]).epsilon) > 1.3


def test_every_page_of_a_release_states_the_price_of_all_its_releases(
    place: Path, graph: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(place / "four", tmp_path / "twice"))
    model = load_model(folder, ledger=place / "own.sqlite")
    model.predict(graph._replace(ids=graph.ids + 2000))
    model.save_releases(folder)
    saved = load_folder(folder)
    card = saved.card
    alone, both = (price(one, card.delta) for one in (card.epsilon, card.composed_epsilon))
    accepted = decide(card).conditions[0]
    assert both in accepted
    assert alone not in accepted
    parameters = mapping_of(saved, has_excerpt=False, is_signed=False).splitlines()[6]
    assert both in parameters
    assert alone not in parameters
    about = About.from_dict(
        {
            **dict.fromkeys(("name", "curator", "intended_use", "region"), "any"),
            "curator_type": "Industry",
            "authors": ["Ann"],
        }
    )
    entry = entry_of(card, about, made="2027-01-31", digests={})
    stated = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert stated == {"epsilon": card.composed_epsilon, "delta": card.delta}


def test_what_is_left_of_a_budget_is_stated_rounded_down(graph: Any, tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "own.sqlite")
    terms = {"level": "edge", "relation": "undirected", "epsilon": 10.0, "delta": 1e-4}
    ledger.grant("people", People.of(graph), **terms, composition="sum")
    GAP(epsilon=math.pi, delta=1e-5, epochs=1, ledger=ledger.path).fit(graph).save(tmp_path / "pi")
    (budget,) = ledger.budgets_of(People.of(graph))
    page = render_model(tmp_path / "pi", ledger=ledger.path)
    (left,), (spent,) = (facts(page, name) for name in ("left", "spent"))
    assert budget.left_epsilon is not None
    assert 0 < budget.left_epsilon - float(left) < 1e-3
    assert 0 < float(spent) - budget.spent_epsilon < 1e-3


def test_a_mu_that_the_events_do_not_have_is_found(place: Path) -> None:
    (card,) = cards(place, "node")
    assert card.attacker is not None
    assert card.attacker.mu is None
    assert check_accounting(card).outcome == "ok"
    forged = check_accounting(replace(card, attacker=replace(card.attacker, mu=0.1)))
    assert forged.outcome == "failed"
    assert "the card states mu 0.1" in forged.problems[0]


def test_a_further_release_that_is_understated_is_found_by_its_events_and_by_the_ledger(
    place: Path, graph: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(place / "four", tmp_path / "forged"))
    ledger = place / "own.sqlite"
    model = load_model(folder, ledger=ledger)
    model.predict(graph._replace(ids=graph.ids + 3000))
    card = model.card_
    first, second = card.releases
    forged = replace(card, releases=(first, replace(second, epsilon=second.epsilon / 2)))
    assert history_of(card, ledger).disagreements == ()
    assert card.ledger is not None
    elsewhere = replace(card, ledger=replace(card.ledger, head="0" * 64))
    (said,) = history_of(elsewhere, ledger).disagreements
    assert said.startswith("the chain: the card has another head")
    (said,) = history_of(forged, ledger).disagreements
    assert said.startswith(f"epsilon of the charge {second.charge_id}")
    assert check_accounting(card).outcome == "ok"
    (problem,) = check_accounting(forged).problems
    assert f"of charge {second.charge_id}" in problem


def test_side_by_side_stands_what_each_folder_holds_and_not_its_training_alone(
    place: Path, graph: Any, tmp_path: Path
) -> None:
    """Further releases and audits came to a folder after its training."""
    folder = Path(shutil.copytree(place / "four", tmp_path / "audited"))
    found = {"mechanism": "aggregation", "holds": True}
    keep_audit(folder, audit="mechanisms", command="gapgnn audit", results=[found, found])
    model = load_model(folder, ledger=place / "own.sqlite")
    for month in (1000, 2000):
        model.predict(graph._replace(ids=graph.ids + month))
        model.save_releases(folder)
    (group,) = side_by_side([place / "four", folder])["groups"]
    before, after = sorted(group["models"], key=lambda row: row["releases"])
    assert (before["releases"], before["audits"]) == (1, 0)
    assert (after["releases"], after["audits"]) == (3, 2)
    assert after["epsilon"] == model.card_.composed_epsilon > before["epsilon"]
    # The audit was of the first of three cards.
    assert check_audits(load_folder(folder)).outcome == "ok"


def test_what_has_no_promise_or_no_common_one_is_not_added_up(place: Path) -> None:
    assert "promises nothing" in together(cards(place, "one", "open")).problem
    assert "different levels" in together(cards(place, "one", "node")).problem


def test_models_that_hide_other_things_stand_in_tables_of_their_own(place: Path) -> None:
    page = render_comparison([place / one for one in ("one", "node", "four", "open")])
    assert len(facts(page, "hidden")) == 3
    assert facts(page, "model") == ["one", "four", "node"]
    assert "These models hide 3 different things" in page


def test_no_figure_of_usefulness_is_on_the_page_unless_asked(place: Path, graph: Any) -> None:
    from gapgnn import load_model

    folders = [place / "one", place / "four"]
    assert "accuracy" not in re.sub(
        r"<style>.*?</style>", "", render_comparison(folders), flags=re.S
    )
    ledger = place / "own.sqlite"
    figures = [curator_figures(load_model(one, ledger=ledger), graph) for one in folders]
    page = render_comparison(folders, figures=figures)
    assert facts(page, "accuracy") == [f"{100 * one['accuracy']:.1f} %" for one in figures]
    assert "do not hand it on" in page


def test_parameters_that_differ_are_listed_and_no_others(place: Path) -> None:
    page = render_comparison([place / "one", place / "four"])
    listed = re.findall(r'<th scope="row"><code>(\w+)</code>', page)
    assert "epsilon" in listed
    assert "seed" not in listed


class TestMayItBeReleased:
    """The answer follows from the card, the audits and the ledger."""

    def test_at_edge_level_model_and_predictions_may_go_to_anyone(self, place: Path) -> None:
        found = decide(*cards(place, "one"))
        assert found.may_release
        assert found.answer.startswith("Yes: the model and its predictions may go to anyone")
        assert [one.who for one in found.recipients[:3]] == [ANYONE, ANYONE, CURATOR]
        assert any("epsilon 1.00" in one for one in found.conditions)

    def test_at_node_level_a_prediction_is_for_its_own_person(self, place: Path) -> None:
        found = decide(*cards(place, "node"))
        assert found.answer.startswith("Yes, but not everything to everybody")
        assert found.recipients[1].who == "the person it is about, or whoever may know its features"

    def test_a_prediction_that_reads_neighbours_is_for_its_own_person(self, place: Path) -> None:
        (card,) = cards(place, "one")
        found = decide(replace(card, own="record"))
        assert found.recipients[1].who.startswith("the person it is about")
        assert not found.answer.startswith("Yes: ")

    def test_a_model_without_a_promise_stays(self, place: Path) -> None:
        found = decide(*cards(place, "open"))
        assert not found.may_release
        assert [one.who for one in found.recipients] == [CURATOR]

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"disagreements": ["epsilon: 1 on the card, 4 in the ledger"]}, "ledger disagree"),
            ({"broken_audits": ["aggregation"]}, "violation of the promise: aggregation"),
        ],
    )
    def test_a_promise_that_does_not_hold_is_a_reason(
        self, place: Path, options: dict[str, Any], reason: str
    ) -> None:
        found = decide(*cards(place, "one"), **options)
        assert not found.may_release
        assert reason in found.reasons[0]

    def test_noise_that_is_not_safe_is_a_reason(self, graph: Any) -> None:
        card = GAP(level="edge", epochs=1, noise="fast").fit(graph).card_
        assert "not fit for a release" in decide(card).reasons[0]

    def test_an_audit_in_the_folder_that_found_a_violation_turns_the_answer(
        self, place: Path, tmp_path: Path
    ) -> None:
        folder = Path(shutil.copytree(place / "one", tmp_path / "one"))
        assert facts(render_model(folder), "answer")[0].startswith("Yes")
        row = {"mechanism": "aggregation", "epsilon_claimed": 1.0, "epsilon_lower_bound": 2.0}
        rows = [{**row, "trials": 100, "holds": False}]
        keep_audit(folder, audit="mechanisms", command="gapgnn audit", results=rows)
        assert facts(render_model(folder), "answer") == ["No. Keep this model with the curator."]

    def test_a_charge_that_no_ledger_confirms_is_a_condition(self, place: Path) -> None:
        known = render_model(place / "one", ledger=place / "own.sqlite")
        unknown = render_model(place / "one")
        assert not any("No ledger confirms" in one for one in facts(known, "condition"))
        assert any("No ledger confirms" in one for one in facts(unknown, "condition"))


def test_the_command_writes_the_page_and_checks_the_folders(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(shutil.copytree(place / one, tmp_path / one)) for one in ("one", "four")]
    assert main(["report", *folders, "--json"]) == 0
    page = Path(json.loads(capsys.readouterr().out)["page"])
    assert page == tmp_path / "models.report.html"
    assert "2 models compared" in page.read_text()
    assert main(["report", *folders, "--check"]) == 0
    assert capsys.readouterr().out.count("none changed") == 2
    (tmp_path / "four" / "card.md").write_text("changed")
    with pytest.raises(IntegrityError, match="not what was saved"):
        main(["report", *folders])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--audit"], "`--audit` must come with one folder. Got 2."),
        (["--section", "short"], "`--section` must come with one folder. Got 2."),
        (["--out", "page.txt"], "must end in .html"),
        (["--entity", "<b>"], "`--entity` must be a word"),
    ],
)
def test_bad_options_are_one_line(place: Path, words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        main(["report", str(place / "one"), str(place / "four"), *words])


def test_one_model_twice_is_no_comparison(place: Path) -> None:
    with pytest.raises(InputError, match="at least 2 saved models"):
        write_comparison([place / "one", place / "one"])
