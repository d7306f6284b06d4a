"""Cards and pages state figures that are computed again here, from the noise alone."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cardcases import GOLDEN, MODELS, SETTLED, card_graph, masked, save_models
from scipy.stats import norm

from gapgnn import LabelGAP, Ledger, load_model
from gapgnn.evaluation.report.model import render_model
from gapgnn.privacy.accounting import Event, account
from gapgnn.privacy.card import PrivacyCard

# What the card must name as released, by the type of its event.
RELEASED = {
    "gap-edge": {"Gaussian"},
    "gap-node": {"Gaussian", "PoissonGaussian"},
    "progap-edge": {"Gaussian"},
    "label-gap": {"Gaussian"},
    "label-gap-no-folds": {"Gaussian"},
    "node-label-gap": {"Laplace", "PoissonGaussian"},
    "vote-edge": set(),
    "vote-node": {"LabelResponse"},
    "mlp-edge": set(),
    "mlp-node": {"PoissonGaussian"},
    "sage-edge": {"RandomisedResponse"},
    "gap-node-replace": {"Gaussian", "PoissonGaussian"},
    "node-label-gap-record": {"Gaussian", "PoissonGaussian"},
}


@pytest.fixture(scope="module")
def graph() -> Any:
    return card_graph()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, graph: Any) -> Path:
    """One saved model of every method and level, each with its own ledger."""
    folder = tmp_path_factory.mktemp("models")
    save_models(graph, folder)
    return folder


def section(text: str, title: str) -> str:
    """Return what stands below a heading of a card."""
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def facts(page: str, name: str) -> list[str]:
    """Return what a page states under a name."""
    return re.findall(rf'data-fact="{name}">([^<]*)<', page)


def shift(events: Any, counts: Any = None) -> float:
    """Return mu of Gaussian releases: the root of the sum of their squared inverse multipliers."""
    counts = [1] * len(events) if counts is None else counts
    squares = (
        many * event["count"] / event["noise_multiplier"] ** 2
        for event, many in zip(events, counts, strict=True)
    )
    return math.sqrt(math.fsum(squares))


def is_rounded_up(text: str, share: float) -> bool:
    """Return whether a share is stated as the next tenth of a percent."""
    return 0 <= float(text.removesuffix(" %")) - 100 * share + 1e-9 <= 0.1 + 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_a_card_lists_every_release_and_nothing_only_where_nothing_was_released(
    place: Path, name: str
) -> None:
    card = PrivacyCard.from_json((place / name / "card.json").read_text())
    assert {event["event"] for event in card.events} >= RELEASED[name]
    released = section((place / name / "card.md").read_text(), "Released on private data")
    assert (released.strip() == "Nothing.") is (not RELEASED[name]) is (card.epsilon == 0)
    for event in card.events:
        line = next(one for one in released.splitlines() if one.startswith(f"| {event['event']} |"))
        assert line
        for key, value in event.items():
            if key not in ("event", "label") and value != "":
                assert f"{key} = {value}" in released
    page = render_model(place / name, ledger=place / f"{name}.sqlite" if card.ledger else None)
    assert len(facts(page, "event")) == len(card.events)
    assert ("No release on protected data is on the card." in page) is (not card.events)


@pytest.mark.parametrize("name", SETTLED)
def test_the_words_of_a_card_are_those_of_its_golden_card(place: Path, name: str) -> None:
    """Whoever changes a sentence writes them anew and reads the difference (cardcases.py)."""
    golden = (GOLDEN / f"{name}.md").read_text(encoding="utf-8")
    assert masked((place / name / "card.md").read_text(encoding="utf-8")) == golden


def test_the_card_of_a_vote_says_what_its_people_released(place: Path) -> None:
    card = load_model(place / "vote-node").card_
    assert "training labels are released by randomised response" in card.messages
    (event,) = card.events
    # The true class is e^epsilon times as likely as any other.
    keep = 1 - (event["classes"] - 1) * event["other"]
    assert math.log(keep / event["other"]) == pytest.approx(card.epsilon)
    assert (card.epsilon, card.delta) == (pytest.approx(2.0), 0.0)


@pytest.mark.parametrize("name", [name for name in MODELS if RELEASED[name]])
def test_the_stated_epsilon_pays_for_the_listed_releases(place: Path, name: str) -> None:
    card = load_model(place / name).card_
    events = [Event.from_dict(dict(event)) for event in card.events]
    price = account(events, card.delta or 0.0, relation=card.relation).epsilon
    assert card.epsilon is not None
    assert price <= card.epsilon * (1 + 1e-6)
    # An adaptive choice is priced at its dearest option; everything else to the last digit.
    assert price >= card.epsilon * (0.8 if name == "node-label-gap" else 1 - 1e-3)


def test_the_page_states_the_50_50_guess_of_the_listed_noise(place: Path) -> None:
    card = load_model(place / "label-gap").card_
    page = render_model(place / "label-gap", ledger=place / "label-gap.sqlite")
    (stated,) = facts(page, "right")
    assert is_rounded_up(stated, norm.cdf(shift(card.events) / 2))


def test_the_page_states_the_50_50_guess_of_everything_that_was_charged(
    tmp_path: Path, graph: Any
) -> None:
    ledger = Ledger.init(tmp_path / "own.sqlite")
    options: dict[str, Any] = {"epochs": 1, "ledger": ledger.path}
    LabelGAP(epsilon=0.5, **options).fit(graph).save(tmp_path / "model")
    LabelGAP(epsilon=1.0, **options).fit(graph)
    LabelGAP(epsilon=0.7, repeats=3, **options).fit(graph)
    charges = ledger.entries()
    assert sorted(charge.count for charge in charges) == [1, 1, 3]
    events = [event for charge in charges for event in charge.events]
    counts = [charge.count for charge in charges for _ in charge.events]
    (stated,) = facts(render_model(tmp_path / "model", ledger=ledger.path), "right-together")
    assert is_rounded_up(stated, norm.cdf(shift(events, counts) / 2))


def test_the_page_at_node_level_states_the_50_50_guess_of_the_noise_and_not_of_epsilon(
    place: Path,
) -> None:
    card = load_model(place / "node-label-gap").card_
    assert card.epsilon is not None
    (stated,) = facts(
        render_model(place / "node-label-gap", ledger=place / "node-label-gap.sqlite"), "right"
    )
    share = float(stated.removesuffix(" %")) / 100
    # The share of right guesses of the best attacker on the training alone, simulated.
    (event,) = [event for event in card.events if event["event"] == "PoissonGaussian"]
    rng = np.random.default_rng(3)
    shift = 1 / event["noise_multiplier"]
    ratios = []
    for is_there in (True, False):
        total = np.zeros(20_000)
        for _ in range(event["steps"]):
            joined = is_there & (rng.random(len(total)) < event["sampling_rate"])
            x = rng.normal(size=len(total)) + shift * joined
            likely = np.exp(shift * x - shift * shift / 2)
            total += np.log1p(event["sampling_rate"] * (likely - 1))
        ratios.append(total)
    reached = (np.mean(ratios[0] > 0) + np.mean(ratios[1] <= 0)) / 2
    # The bound is that of the worst option of the adaptive choice.
    assert reached - 0.01 <= share < 0.75 < 1 / (1 + math.exp(-card.epsilon))
