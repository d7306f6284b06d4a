"""The page of a saved model says what the card and the ledger say, and nothing else."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from methodgraphs import write_tables
from scipy.stats import norm

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, Ledger, NodeLabelGAP, load_model
from gapgnn.errors import DataError, InputError
from gapgnn.evaluation.report.content import right_guesses
from gapgnn.evaluation.report.model import (
    PRIORS,
    amount,
    curator_figures,
    render_model,
    write_model_page,
)
from gapgnn.graph import Wording, join_edge_types
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.transforms import one_class_against_all
from gapgnn.methods.folder import _checksum, keep_audit, load_folder
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.card import PrivacyCard, guarantee_sentence
from gapgnn.privacy.card.texts import at_most, odds, percent, rounded_up
from gapgnn.privacy.ledger import People
from gapgnn.training import shortcomings

FIGURE = re.compile(r"[Aa]ccura|F1|AUC|recall")


class Facts(HTMLParser):
    """Collects what a page states, by the name of the fact."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self._open: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "br", "link"):
            return
        name = dict(attrs).get("data-fact")
        self._open.append(name)
        if name:
            self.found.setdefault(name, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for name in self._open:
            if name:
                self.found[name][-1] += data


def contradictions(page: str, card: PrivacyCard, ledger: Ledger | None = None) -> list[str]:
    """Return every statement of a page that is not that of the card and the ledger."""
    facts = Facts(page).found
    wrong = []

    def compare(name: str, wanted: list[str]) -> None:
        found = facts.get(name, [])
        if found != wanted:
            wrong.append(f"{name}: {found} on the page, {wanted} in truth")

    compare("promise", [guarantee_sentence(card)])
    compare("level", [card.level])
    compare("relation", [str(card.relation)])
    compare("epsilon", ["none" if card.epsilon is None else at_most(card.epsilon)])
    stated = facts["delta"][0].removesuffix(", chosen by size")
    if stated != "none" and not math.isclose(float(stated), card.delta or 0.0, rel_tol=1e-5):
        wrong.append(f"delta: {stated} on the page, {card.delta} in truth")
    compare("private", ["yes" if card.is_private_release else "NO"])
    compare("noise", [card.noise_source])
    compare("covered", list(card.covered))
    compare("not-covered", list(card.not_covered))
    compare("warning", list(card.warnings))
    if len(facts.get("event", [])) != len(card.events):
        wrong.append("event: another number of releases")
    if card.epsilon:
        bounds = card.attacker
        assert bounds is not None
        compare("right", [percent(bounds.guess)])
        hits = (bounds.tpr_at_fpr_1_percent, bounds.tpr_at_fpr_0_1_percent)
        compare("true-positives", list(map(percent, hits)))
        compare("mu", [] if bounds.mu is None else [rounded_up(bounds.mu)])
    if ledger is not None and card.ledger is not None:
        compare("charge", [card.ledger.charge_id])
        mine = next(one for one in ledger.entries() if one.id == card.ledger.charge_id)
        budgets = [row for row in ledger.summary() if row.population == mine.population]
        compare("spent", [amount(row.spent_epsilon, up=True) for row in budgets])
        compare(
            "left",
            [
                "not limited" if row.left_epsilon is None else amount(row.left_epsilon, up=False)
                for row in budgets
            ],
        )
        if len(facts.get("charged", [])) != len(ledger.entries(mine.population)):
            wrong.append("charged: another number of charges")
    return wrong


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger.init(tmp_path / "own.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(made.path))
    return made


@pytest.fixture(scope="module")
def graph() -> Any:
    return social_graph(num_nodes=300, mean_degree=10)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, graph: Any) -> Path:
    """A saved model and the ledger that was charged for it, to be copied and never changed.

    Without a mixing weight, which noise may set to 0: predictions on other graphs read their edges.
    """
    place = tmp_path_factory.mktemp("trained")
    ledger = Ledger.init(place / "own.sqlite").path
    LabelGAP(epsilon=1.0, epochs=2, folds=0, ledger=ledger).fit(graph).save(place / "model")
    return place


@pytest.fixture
def folder(tmp_path: Path, ledger: Ledger, trained: Path) -> Path:
    shutil.copyfile(trained / "own.sqlite", ledger.path)
    return Path(shutil.copytree(trained / "model", tmp_path / "model"))


def state_epsilon(values: dict[str, Any], epsilon: float) -> None:
    """Let a card say of its one release that it cost something else."""
    values["releases"][0]["epsilon"] = epsilon
    values.update(epsilon=epsilon, composed_epsilon=epsilon)


class TestAModelThatPredictedOnOtherGraphs:
    @pytest.fixture
    def four(self, folder: Path, graph: Any, ledger: Ledger) -> Path:
        model = load_model(folder)
        for seed in range(1, 4):
            model.predict(social_graph(num_nodes=300, mean_degree=10, seed=seed))
        model.save_releases(folder)
        return folder

    def test_the_page_lists_every_release_and_what_they_come_to(
        self, four: Path, ledger: Ledger
    ) -> None:
        card = load_folder(four).card
        facts = Facts(render_model(four)).found
        assert len(facts["release"]) == 4
        for row, charge in zip(facts["release"], ledger.entries(), strict=True):
            assert charge.id in row
            assert amount(charge.epsilon, up=True) in row
        assert facts["all-releases"] == [at_most(card.composed_epsilon)]
        assert facts["composed-epsilon"] == [amount(card.composed_epsilon or 0.0, up=True)]
        assert "disagreement" not in facts
        assert contradictions(render_model(four), card, ledger) == []

    def test_an_attacker_has_all_of_them(self, four: Path, folder: Path) -> None:
        card = load_folder(four).card
        events = [event for release in card.releases for event in release.events]
        shift = math.sqrt(sum(event["count"] / event["noise_multiplier"] ** 2 for event in events))
        attacker = card.attacker
        assert attacker is not None
        assert (attacker.mu, attacker.guess) == pytest.approx((shift, norm.cdf(shift / 2)))
        assert percent(attacker.guess) in Facts(render_model(four)).found["right"]

    def test_every_figure_that_follows_from_epsilon_is_that_of_all_of_them(
        self, four: Path
    ) -> None:
        card, page = load_folder(four).card, render_model(four)
        assert card.composed_epsilon is not None
        assert card.composed_epsilon > 1.5 * (card.epsilon or 0.0)
        grown = math.exp(card.composed_epsilon)
        assert Facts(page).found["odds"] == [f"\u00d7 {odds(card.composed_epsilon)}"]
        assert f"would allow {percent(1 - (1 - (card.delta or 0.0)) / (1 + grown))}" in page
        for prior in PRIORS:
            after = percent(prior * grown / (1 - prior + prior * grown))
            assert f'data-label="after, at most" class="number">{after}<' in page

    def test_an_audit_of_the_model_stays_its_audit(self, folder: Path, four: Path) -> None:
        audited = {
            "mechanism": "aggregation",
            "epsilon_claimed": 1.0,
            "epsilon_lower_bound": 0.5,
            "trials": 100,
            "holds": True,
        }
        keep_audit(four, audit="mechanisms", command="gapgnn audit", results=[audited])
        model = load_model(four)
        model.predict(social_graph(num_nodes=300, mean_degree=10, seed=9))
        model.save_releases(four)
        assert "no-audit" not in Facts(render_model(four)).found

    def test_a_charge_that_differs_from_the_card_is_shown(self, four: Path, ledger: Ledger) -> None:
        def cheaper(values: dict[str, Any]) -> None:
            values["releases"][2]["epsilon"] = 0.5

        change_card(four, cheaper)
        (line,) = Facts(render_model(four)).found["disagreement"]
        assert line.startswith(f"epsilon of the charge {ledger.entries()[2].id}: 0.5 on the card")

        def others(values: dict[str, Any]) -> None:
            values["releases"][1]["delta"] *= 0.5
            values["releases"][3]["events"][0]["noise_multiplier"] *= 1.5

        change_card(four, others)
        first, second, third = Facts(render_model(four)).found["disagreement"]
        assert first.startswith(f"delta of the charge {ledger.entries()[1].id}: ")
        assert second == line
        assert third == f"what the charge {ledger.entries()[3].id} was for"


def change_card(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write another card, with digests that fit."""
    import hashlib

    values = json.loads((folder / "card.json").read_text())
    change(values)
    (folder / "card.json").write_text(json.dumps(values))
    config = json.loads((folder / "config.json").read_text())
    config.pop("checksum")
    config["files"]["card.json"] = hashlib.sha256((folder / "card.json").read_bytes()).hexdigest()
    config["checksum"] = _checksum(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_the_page_says_what_the_card_and_the_ledger_say(folder: Path, ledger: Ledger) -> None:
    assert contradictions(render_model(folder), load_folder(folder).card, ledger) == []
    assert "The charge says the same as the card" in render_model(folder)


@pytest.mark.parametrize(
    "estimator",
    [
        LabelGAP(epsilon=4.0, epochs=2, level="edge", relation="directed"),
        GraphSAGE(epsilon=2.0, epochs=2, level="edge"),
        MLP(epochs=2, level="edge"),
        MLP(epochs=2, level="none"),
        LabelGAP(epsilon=1.0, epochs=2, insecure_noise_seed=1),
        GAP(epsilon=8.0, epochs=2, level="node", max_degree=5),
        NodeLabelGAP(epsilon=8.0, epochs=2),
        GAP(epsilon=4.0, epochs=2),
    ],
    ids=["directed", "pure", "nothing", "none", "seeded", "node", "node labels", "features"],
)
def test_so_does_the_page_of_every_method_and_level(
    estimator: Any, graph: Any, ledger: Ledger, tmp_path: Path
) -> None:
    estimator.fit(graph).save(tmp_path / "model")
    page = render_model(tmp_path / "model")
    assert contradictions(page, estimator.card_, ledger) == []
    assert ("Do not release this model" in page) == (not estimator.card_.is_private_release)


@pytest.mark.parametrize(
    ("protects", "question"),
    [
        ("each", "are these edges, one of each type (all payments of a pair), in the data?"),
        ("any", "are there payments between these two people in the data?"),
    ],
)
def test_the_page_names_several_edge_types(
    protects: str, question: str, graph: Any, ledger: Ledger, tmp_path: Path
) -> None:
    both = join_edge_types({"visits": graph, "calls": graph})
    model = LabelGAP(epsilon=1.0, epochs=2, edge_types=protects).fit(both)
    model.save(tmp_path / "model")
    page = render_model(tmp_path / "model")
    assert contradictions(page, model.card_, ledger) == []
    assert Facts(page).found["edge-types"] == ["calls, visits"]
    assert question in render_model(tmp_path / "model", words=Wording.of(None, "payment"))


def test_names_of_edge_types_are_not_reworded(graph: Any, ledger: Ledger, tmp_path: Path) -> None:
    both = join_edge_types({"friends": graph, "links": graph})
    LabelGAP(epsilon=1.0, epochs=2).fit(both).save(tmp_path / "model")
    page = render_model(tmp_path / "model", words=Wording.of("customer", "payment"))
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert text.count("(friends, links)") >= 2
    assert "edge types friends, links: given by name" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('data-fact="epsilon">1<', 'data-fact="epsilon">0.5<'),
        ('data-fact="level">edge', 'data-fact="level">node'),
        ('data-fact="private">yes', 'data-fact="private">NO'),
        ("Every single undirected edge", "Every single person"),
        ("learns almost the same", "learns nothing"),
        ('data-fact="spent">', 'data-fact="spent">0'),
        ('<tr data-fact="charged">', '<tr data-fact="gone">'),
        ('data-fact="right">5', 'data-fact="right">4'),
    ],
)
def test_a_page_that_contradicts_card_or_ledger_is_found(
    folder: Path, ledger: Ledger, before: str, after: str
) -> None:
    change_card(folder, lambda card: state_epsilon(card, 1.0))
    page = render_model(folder)
    assert before in page
    false = page.replace(before, after)
    assert contradictions(false, load_folder(folder).card, ledger) != []


def test_another_card_makes_another_page_and_the_ledger_does_not_agree(
    folder: Path, ledger: Ledger
) -> None:
    change_card(folder, lambda card: state_epsilon(card, 0.25))
    change_card(folder, lambda card: card.update(covered=["Nobody at all."]))
    page = render_model(folder)
    assert contradictions(page, load_folder(folder).card, ledger) == []
    assert "Nobody at all." in page
    assert "0.25 on the card" in page
    assert "The charge says the same as the card" not in page


def test_the_curator_s_copy_names_recall_precision_and_support(folder: Path, graph: Any) -> None:
    page = render_model(folder, figures=curator_figures(load_model(folder), graph))
    for name in ("recall", "precision", "support"):
        assert f'<th scope="col" class="number">{name}</th>' in page
    assert "right when named" not in page


def test_an_audit_on_own_tables_does_not_stand_below_never_on_yours(folder: Path) -> None:
    row = {"neighbours": "1 pair of neighbouring tables, made from the curator's own"}
    rows = [{**row, "releases": 4, "holds": True}]
    keep_audit(folder, audit="pipeline", command="gapgnn audit pipeline", results=rows)
    page = render_model(folder)
    assert "1 pair of neighbouring tables" in page
    assert "never on yours" not in page


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory, graph: Any) -> Path:
    """A model of the default node-level training, which chooses one of several charged options."""
    place = tmp_path_factory.mktemp("adaptive")
    ledger = Ledger.init(place / "own.sqlite").path
    NodeLabelGAP(epsilon=4.0, epochs=1, ledger=ledger).fit(graph).save(place / "model")
    return place


def released_by(charge: Any, option: int) -> list[dict[str, Any]]:
    """Return the events of one option of a charge with three, the first of them without hops."""
    events = [dict(event) for event in charge.events]
    marks = [str(event.pop("option", "")) for event in events]
    kept = ("", str(option)) if option > 1 else (str(option),)
    return [events[0]] + [
        event for mark, event in zip(marks[1:], events[1:], strict=True) if mark in kept
    ]


def test_a_default_node_level_model_agrees_with_its_own_charge(adaptive: Path) -> None:
    page = render_model(adaptive / "model", ledger=adaptive / "own.sqlite")
    assert "disagree" not in page
    assert "The charge says the same as the card" in page


def test_the_card_lists_the_options_that_were_charged_and_not_taken(adaptive: Path) -> None:
    card = PrivacyCard.from_json((adaptive / "model" / "card.json").read_text())
    (charge,) = Ledger(adaptive / "own.sqlite").entries()
    (release,) = card.releases
    assert list(map(dict, release.events)) == list(map(dict, charge.events))
    assert len(release.events) > len(card.events)


@pytest.mark.parametrize("option", [1, 2, 3])
def test_whatever_option_was_chosen_the_charge_covers_it(
    adaptive: Path, tmp_path: Path, option: int
) -> None:
    folder = Path(shutil.copytree(adaptive / "model", tmp_path / "model"))
    ledger = Ledger(adaptive / "own.sqlite")
    events = released_by(ledger.entries()[0], option)
    assert len(events) == (2 if option == 1 else 4)
    change_card(folder, lambda card: card.update(events=events))
    assert "disagree" not in render_model(folder, ledger=ledger.path)


def test_a_card_that_names_roles_agrees_with_a_charge_that_names_groups(
    adaptive: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(adaptive / "model", tmp_path / "model"))

    def with_roles(card: dict[str, Any]) -> None:
        assert any("group" in event for event in card["events"])
        for event in card["events"]:
            if "group" in event:
                event["role"] = event.pop("group")

    change_card(folder, with_roles)
    assert "disagree" not in render_model(folder, ledger=adaptive / "own.sqlite")


@pytest.mark.parametrize("option", [1, 2, 3])
@pytest.mark.parametrize("change", ["noise", "omitted", "added", "mixed"])
def test_a_card_that_is_none_of_the_charged_options_was_changed(
    adaptive: Path, tmp_path: Path, option: int, change: str
) -> None:
    folder = Path(shutil.copytree(adaptive / "model", tmp_path / "model"))
    ledger = Ledger(adaptive / "own.sqlite")
    charge = ledger.entries()[0]
    events = released_by(charge, option)
    if change == "noise":
        events[1]["noise_multiplier"] *= 2
    elif change == "omitted":
        del events[-1]
    elif change == "added":
        events.append(events[-1])
    else:
        events[1] = released_by(charge, option % 3 + 1)[1]
        if option == 1:
            events.append(released_by(charge, 2)[2])
    change_card(folder, lambda card: card.update(events=events))
    page = render_model(folder, ledger=ledger.path)
    assert "the card lists other events than the ledger" in page


def test_a_card_with_another_head_of_the_ledger_is_shown(folder: Path) -> None:
    change_card(folder, lambda values: values["ledger"].update(head="0" * 32))
    (line,) = Facts(render_model(folder)).found["disagreement"]
    assert line.startswith("the chain: the card has another head")


def test_another_charge_makes_another_page(folder: Path, ledger: Ledger, graph: Any) -> None:
    before = Facts(render_model(folder)).found
    LabelGAP(epsilon=1.0, epochs=2, reason="again").fit(graph)
    after = Facts(render_model(folder)).found
    assert len(after["charged"]) == len(before["charged"]) + 1
    assert float(after["spent"][0]) > float(before["spent"][0])
    assert "again" in after["charged"][-1]


def test_a_ledger_that_was_changed_by_hand_is_called_changed(folder: Path, ledger: Ledger) -> None:
    import sqlite3

    with sqlite3.connect(ledger.path) as db:
        db.execute("UPDATE charges SET epsilon = '0.1'")
    page = render_model(folder)
    assert "The ledger was changed outside this program" in page
    assert "row 1 of charges, or one before it, was changed or removed" in page
    # Figures of a ledger that cannot be trusted are nobody's figures.
    assert 'data-fact="spent"' not in page


def test_without_the_ledger_the_page_says_so_plainly(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Ledger.init(tmp_path / "other.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(other.path))
    page = render_model(folder)
    assert "is not at hand" in page
    assert 'data-fact="spent"' not in page
    with pytest.raises(InputError, match="must know the charge"):
        render_model(folder, ledger=other.path)


def test_a_50_50_guess_is_exact_for_gaussian_noise_and_below_the_bound(graph: Any) -> None:
    from gapgnn.privacy.accounting import gaussian_shift

    card = LabelGAP(epsilon=1.0, epochs=1).fit(graph).card_
    bounds = card.attacker
    assert bounds is not None
    assert card.epsilon is not None
    assert card.delta is not None
    shift = gaussian_shift(card.epsilon, card.delta)
    assert bounds.mu == pytest.approx(shift, rel=1e-6)
    assert bounds.guess == pytest.approx(norm.cdf(shift / 2), abs=1e-4)
    assert 100 * bounds.guess < float(right_guesses(card.epsilon, card.delta).split()[0])
    # What an attacker with the optimal test reaches, tried out.
    rng = np.random.default_rng(0)
    coins = rng.integers(2, size=400_000)
    right = ((rng.normal(size=len(coins)) + shift * coins) > shift / 2) == coins
    assert right.mean() == pytest.approx(bounds.guess, abs=3e-3)


def test_a_50_50_guess_about_one_random_answer_is_that_of_its_epsilon(graph: Any) -> None:
    card = GraphSAGE(epsilon=2.0, epochs=1, level="edge").fit(graph).card_
    bounds = card.attacker
    assert bounds is not None
    assert bounds.mu is None
    assert bounds.guess <= math.exp(2) / (1 + math.exp(2))


def test_a_guess_about_charges_of_unknown_curve_is_bounded_by_their_epsilon(
    folder: Path, ledger: Ledger, graph: Any
) -> None:
    """Randomised bits of arcs have no curve under the relation of whole edges."""
    GraphSAGE(relation="directed", epsilon=1.0, epochs=1, ledger=ledger.path).fit(graph)
    (budget,) = ledger.summary()
    assert budget.relations == ("directed", "undirected")
    (guess,) = Facts(render_model(folder)).found["right-together"]
    most = 1 - (1 - budget.spent_delta) / (1 + math.exp(budget.spent_epsilon))
    assert guess == percent(most)


def test_budgets_of_both_levels_are_on_the_page(folder: Path, ledger: Ledger, graph: Any) -> None:
    ledger.charge(
        People.of(graph),
        level="node",
        relation="add-remove",
        epsilon=0.5,
        delta=1e-6,
        events=[Gaussian(20.0).to_dict()],
        purpose="test",
    )
    assert [budget.level for budget in ledger.summary()] == ["edge", "node"]
    page, card = render_model(folder), load_folder(folder).card
    assert len(Facts(page).found["spent"]) == 2
    assert contradictions(page, card, ledger) == []
    # A guess about edges is not one about records: each level has a curve of its own.
    assert card.attacker is not None
    guesses = [card.attacker.guess, float(norm.cdf(1 / 40))]
    assert Facts(page).found["right-together"] == list(map(percent, guesses))


def test_no_figure_of_usefulness_is_on_the_page_unless_asked(folder: Path) -> None:
    page = render_model(folder)
    assert (
        FIGURE.search(re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.S))
        is None
    )
    figures = {
        "accuracy": 0.75,
        "majority": 0.8,
        "balanced_accuracy": 0.5,
        "macro_f1": 0.4,
        "auc": None,
        "calibration_error": 0.1,
        "per_class": {"a": {"support": 40, "recall": 0.5, "precision": None}},
        "shortcomings": ["Not better than always answering 'a'."],
    }
    copy = render_model(folder, figures=figures)
    assert Facts(copy).found["accuracy"] == ["75.0 %"]
    assert "do not hand it on" in copy
    assert Facts(copy).found["shortcoming"] == figures["shortcomings"]


def test_the_curator_s_copy_has_the_figures_of_the_model(folder: Path, graph: Any) -> None:
    model = load_model(folder)
    found = model.metrics(graph)
    copy = render_model(folder, figures=curator_figures(model, graph))
    facts = Facts(copy).found
    assert facts["macro-f1"] == [f"{100 * found.macro_f1:.1f} %"]
    assert facts["auc"] == [f"{100 * (found.auc or 0):.1f} %"]
    assert facts.get("shortcoming", []) == shortcomings([found])
    support = sum(one.support for one in found.per_class.values())
    assert f"On {support:,} test" in copy


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory, graph: Any) -> tuple[Path, Any]:
    """A model of private labels of two classes, and its graph."""
    both = one_class_against_all(graph, str((graph.label_names or ("0",))[-1]))
    place = tmp_path_factory.mktemp("rare")
    ledger = Ledger.init(place / "own.sqlite").path
    settings = {"level": "node", "epsilon": 8.0, "epochs": 2, "max_degree": 5}
    GAP(**settings, threshold=0.01, ledger=ledger).fit(both).save(place / "model")
    return place / "model", both


class TestPrecisionAndRecall:
    def test_the_officer_s_page_has_none_and_the_curator_s_copy_the_model_s(
        self, rare: tuple[Path, Any], ledger: Ledger
    ) -> None:
        folder, both = rare
        page = render_model(folder)
        shown = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.S)
        assert re.search(r"[Pp]recision|[Rr]ecall|[Ll]ift|ranked first", shown) is None
        assert "precision" not in "".join(
            path.read_text(errors="ignore") for path in folder.rglob("*") if path.is_file()
        )
        model = load_model(folder, ledger=folder.parent / "own.sqlite")
        ranking = model.metrics(both).ranking
        assert ranking is not None
        copy = render_model(folder, figures=curator_figures(model, both))
        top = ranking.top["top_5_percent"]
        row = copy[copy.index(">this model<") :]
        row = row[: row.index("</tr>")]
        cells = dict(re.findall(r'<td data-label="([^"]+)"[^>]*>.*?"mean">([\d.]+)<', row))
        assert cells["average precision"] == f"{100 * ranking.average_precision:.1f}"
        assert cells["recall in top 5 %"] == f"{100 * top.recall:.1f}"
        assert cells["lift in top 5 %"] == f"{top.lift:.1f}"
        # The curve, with its values in words, and guessing beside it.
        assert f"recall = 0.05: {100 * ranking.curve[0]:.1f} %" in copy
        assert f"guessing {100 * ranking.share:.1f}." in copy
        assert "which are private at this level" in copy

    def test_a_threshold_is_compared_with_guessing_as_many_nodes(
        self, rare: tuple[Path, Any], ledger: Ledger
    ) -> None:
        """From 1 % on everybody is of the class: as precise as guessing, and said so."""
        model = load_model(rare[0], ledger=rare[0].parent / "own.sqlite")
        assert (model.decide(model.predict_proba(rare[1])) == 1).mean() > 0.9
        first, *_ = curator_figures(model, rare[1])["shortcomings"]
        assert first.startswith("Not better than guessing by more than chance: ")

    def test_of_several_classes_only_a_named_one_is_ranked(self, folder: Path, graph: Any) -> None:
        model = load_model(folder)
        figures = curator_figures(model, graph)
        assert figures["ranking"] is None
        assert "Who is ranked first" not in render_model(folder, figures=figures)
        model.positive = str((graph.label_names or ("0",))[0])
        figures = curator_figures(model, graph)
        assert f"class {model.positive}" in render_model(folder, figures=figures)


def test_the_reader_s_words_are_used_everywhere(folder: Path, graph: Any, tmp_path: Path) -> None:
    GAP(epsilon=8.0, epochs=2, level="node", max_degree=5).fit(graph).save(tmp_path / "node")
    for place in (folder, tmp_path / "node"):
        page = render_model(place, words=Wording.of("customer", "payment"))
        text = re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]+>", " ", page, flags=re.S)
        assert re.search(r"\b(person|people|friend\w*)\b", text, re.I) is None
        assert "customer" in text
        assert "payment" in text


@pytest.mark.parametrize("word", ["<b>", "", "two\nlines", "a/b/c", "x" * 60])
def test_a_word_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="`entity` must be a word"):
        Wording(entity=word)
    with pytest.raises(InputError, match="`link` must be a word"):
        Wording.of("customer", word or "/")


def test_audits_stand_on_the_page_with_day_and_result(folder: Path) -> None:
    assert "None was run." in render_model(folder)
    assert f"gapgnn audit --model {folder}" in render_model(folder)
    found = {"mechanism": "aggregation", "epsilon_claimed": 1.0, "epsilon_lower_bound": 0.9}
    rows = [{**found, "trials": 100, "holds": True}]
    path = keep_audit(folder, audit="mechanisms", command="gapgnn audit --model m", results=rows)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = render_model(folder)
    assert Facts(page).found["audit"] == ["no violation found"]
    assert "None was run." not in page
    broken = [{"neighbours": "hub", "releases": 2, "holds": False}]
    keep_audit(folder, audit="pipeline", command="gapgnn audit pipeline", results=broken)
    assert Facts(render_model(folder)).found["audit"] == ["no violation found", "BROKEN"]
    load_folder(folder)  # digests of further files are kept too
    # They speak of the card that was there.
    change_card(folder, lambda card: state_epsilon(card, 0.25))
    assert "None was run." in render_model(folder)


def test_every_digest_is_on_the_page_and_a_damaged_folder_has_none(folder: Path) -> None:
    import hashlib

    facts = Facts(render_model(folder)).found["digest"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(facts) == sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)
    (folder / "card.md").write_text("Nothing to see.")
    with pytest.raises(DataError, match="not what was saved"):
        render_model(folder)


def test_the_page_lies_beside_the_folder_for_its_owner(folder: Path) -> None:
    page = write_model_page(folder)
    assert page == folder.with_name("model.report.html")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    with pytest.raises(InputError, match=r"must end in \.html"):
        write_model_page(folder, out="page.txt")


def test_names_in_the_folder_are_text_and_never_markup(tmp_path: Path, ledger: Ledger) -> None:
    graph = social_graph(num_nodes=300, mean_degree=10)
    model = LabelGAP(epochs=1, reason="<script>hit()</script>").fit(graph)
    model.save(tmp_path / "<img src=x>")
    page = render_model(tmp_path / "<img src=x>")
    assert "<img" not in page
    assert page.count("<script>") == 1


class Outline(HTMLParser):
    """Collects what a page for everybody has to have."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.levels: list[int] = []
        self.refers: list[str] = []
        self.bare: list[str] = []
        self.lang = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.lang = known.get("lang", self.lang)
        if "id" in known:
            self.ids.append(known["id"])
        self.refers += known.get("aria-labelledby", "").split()
        self.refers += [known["href"][1:]] if known.get("href", "").startswith("#") else []
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        if (tag == "th" and "scope" not in known) or (tag == "img" and "alt" not in known):
            self.bare.append(tag)
        if "aria-label" in known and tag == "pre" and "role" not in known:
            self.bare.append(tag)


def test_the_page_has_what_assistive_technology_needs(folder: Path) -> None:
    page = render_model(folder)
    outline = Outline(page)
    assert outline.lang == "en"
    assert "<title>What this model promises: model</title>" in page
    assert outline.bare == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert set(outline.refers) <= set(outline.ids)
    assert outline.levels[0] == 1
    assert outline.levels.count(1) == 1
    steps = zip(outline.levels, outline.levels[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--section", "short"], "`--section` must come with a folder of results"),
        (["--entity", "<b>"], "`--entity` must be a word"),
        (["--ledger", "nowhere.sqlite"], "nowhere.sqlite"),
        (["--out", "page.txt"], "must end in .html"),
    ],
)
def test_bad_options_are_one_line(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main
    from gapgnn.errors import GapgnnError

    with pytest.raises(GapgnnError, match=re.escape(message)):
        main(["report", str(folder), *words])
    assert not folder.with_name("model.report.html").exists()


def test_the_command_makes_the_page_checks_the_folder_and_has_a_curator_s_copy(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main

    tables = write_tables(tmp_path / "tables", count=160)
    out = str(tmp_path / "model")
    words = ["--epsilon", "4", "--epochs", "3", "--no-compare", "--json"]
    assert main(["train", "label-gap", *tables, *words, "--out", out]) == 0
    accuracy = json.loads(capsys.readouterr().out)["test_accuracy"]["mean"]
    assert main(["report", out, "--check"]) == 0
    assert "none changed" in capsys.readouterr().out
    with pytest.raises(InputError, match="`--curator-copy` must come with the data"):
        main(["report", out, "--curator-copy"])
    page = str(tmp_path / "copy.html")
    assert main(["report", out, "--curator-copy", *tables, "--out", page, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["curator_copy"] is True
    assert Facts(Path(page).read_text()).found["accuracy"] == [f"{100 * accuracy:.1f} %"]
    assert len(ledger.entries()) == 1  # nothing more was charged


def test_a_look_of_the_curator_at_people_with_a_budget_is_on_record(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main
    from gapgnn.errors import PrivacyError

    tables = write_tables(tmp_path / "tables", count=160)
    nodes = tables[tables.index("--nodes") + 1]
    assert (
        main(
            ["ledger", "grant", "customers", "--nodes", nodes, "--epsilon", "4", "--delta", "1e-4"]
        )
        == 0
    )
    out = str(tmp_path / "model")
    words = ["--epsilon", "1", "--epochs", "2", "--no-compare"]
    assert main(["train", "label-gap", *tables, *words, "--out", out]) == 0
    with pytest.raises(PrivacyError, match="--curator-only"):
        main(["report", out, "--curator-copy", *tables])
    assert main(["report", out, "--curator-copy", *tables, "--curator-only", "to see"]) == 0
    assert ledger.entries()[-1].purpose == "access: report --curator-copy"


def test_a_model_is_audited_from_its_folder_and_the_page_shows_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main

    assert main(["audit", "--model", str(folder), "--trials", "400", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["holds"] is True
    assert Facts(render_model(folder)).found["audit"] == ["no violation found"]
    assert os.listdir(folder / "audits")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit"], "a mechanism must be named"),
        (["audit", "--model", "{model}", "aggregation"], "`--model` must come without a mechanism"),
        (["audit", "--trials", "5", "aggregation"], "`--trials` must follow"),
        (["audit", "pipeline", "--model", "{model}", "predict"], "`--model` must come with train"),
        (
            ["audit", "pipeline", "--model", "{model}", "train", "--epsilon", "2"],
            "`--epsilon` must be left out",
        ),
    ],
)
def test_bad_audits_are_one_line(folder: Path, words: list[str], message: str) -> None:
    from gapgnn.cli.main import main

    with pytest.raises(InputError, match=re.escape(message)):
        main([word.format(model=folder) for word in words])


def test_a_model_that_released_nothing_has_nothing_to_audit(
    graph: Any, tmp_path: Path, ledger: Ledger
) -> None:
    from gapgnn.cli.main import main

    MLP(epochs=1, level="edge").fit(graph).save(tmp_path / "mlp")
    with pytest.raises(InputError, match="released nothing"):
        main(["audit", "--model", str(tmp_path / "mlp")])


@pytest.mark.gate
def test_the_training_of_a_model_is_audited_as_a_whole(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main

    tables = write_tables(tmp_path / "tables", count=160)
    out = str(tmp_path / "model")
    words = ["--epsilon", "4", "--epochs", "2", "--no-compare"]
    assert main(["train", "label-gap", *tables, *words, "--out", out]) == 0
    capsys.readouterr()
    audit = ["audit", "pipeline", "--neighbours", "first", "--model", out, "--json"]
    assert main([*audit, "train", *tables]) == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True
    (kept,) = load_folder(Path(out)).audits
    # Who the neighbours were, and how far a release moved, stays with the curator.
    assert kept["results"] == [
        {
            "neighbours": "1 pair of neighbouring tables, made from the curator's own",
            "releases": 4,
            "holds": True,
        }
    ]
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    ("relation", "question"),
    [
        (
            "5-edges",
            "are up to 5 edges of one person (each: all payments with one other person) in the "
            "data?",
        ),
        ("undirected", "are there payments between these two people in the data?"),
    ],
)
def test_the_question_counts_the_links_that_are_hidden(
    relation: str, question: str, graph: Any, ledger: Ledger, tmp_path: Path
) -> None:
    model = LabelGAP(relation=relation, epochs=1, ledger=ledger.path).fit(graph)
    model.save(tmp_path / "model")
    page = render_model(tmp_path / "model", words=Wording.of(None, "payment"))
    assert question in page
    assert ("up to 5 of one person&#39;s undirected edges" in page) == (relation == "5-edges")
