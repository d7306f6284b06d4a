"""The card's promises: complete, readable, strict, and silent about private data."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from gapgnn.errors import DataError, InputError
from gapgnn.graph import Wording
from gapgnn.privacy import AddRemove, parse_relation
from gapgnn.privacy.accounting import PoissonGaussian, attack_bounds
from gapgnn.privacy.accounting.accountants import account
from gapgnn.privacy.accounting.events import Event, Gaussian, Laplace
from gapgnn.privacy.card import texts
from gapgnn.privacy.card.card import (
    PrivacyCard,
    ReleaseFacts,
    guarantee_sentence,
    make_card,
)
from gapgnn.privacy.card.run import ReleasedRun
from gapgnn.privacy.card.texts import STEPS, odds, rounded_up
from gapgnn.privacy.guarantee import Guarantee
from gapgnn.privacy.ledger import Ledger, People
from gapgnn.privacy.plan import PlannedHops

NOISE = Gaussian(6.617, count=2)
EVENT = NOISE.to_dict()
TRAINED = (PoissonGaussian(1.0, 0.0129, 1546), Gaussian(1.0, count=2))
FINGERPRINT = "5f" * 32
PEOPLE = People(np.array(["somebody"]), FINGERPRINT, name="people")
EVERY_RELATION = [
    ("edge", "undirected"),
    ("edge", "directed"),
    ("node", "add-remove"),
    ("node", "replace"),
]


def card(**options: Any) -> PrivacyCard:
    promised: dict[str, Any] = {
        "relation": "undirected",
        "epsilon": 1.0,
        "delta": 1e-6,
        "delta_is_auto": False,
        "entities": 10_000,
        "noise_multiplier": 6.617,
        "accountant": "exact Gaussian",
        "events": (NOISE,),
    }
    promised |= {key: value for key, value in options.items() if key in promised}
    promised["relation"] = parse_relation(promised["relation"], options.get("level"))
    run: dict[str, Any] = {"dataset": "social", "promise": Guarantee(**promised)}
    if "max_degree" in options:
        run["hops"] = [PlannedHops(event="hops", count=1, max_degree=options["max_degree"])]
    facts: dict[str, Any] = {"method": "GAP"}
    for name, value in options.items():
        if name in {one.name for one in fields(ReleasedRun)}:
            run[name] = value
        elif name in {one.name for one in fields(ReleaseFacts)}:
            facts[name] = value
    return make_card(ReleasedRun(**run), ReleaseFacts(**facts))


def resolved(events: tuple[Event, ...]) -> Guarantee:
    """Return what releases promise at node level."""
    spend = account(events, 1e-5, relation="add-remove")
    stated = (AddRemove(), spend.epsilon, 1e-5, False, 1000, None, spend.accountant)
    return Guarantee(*stated, events)


def unprotected(**options: Any) -> PrivacyCard:
    return card(level="none", relation="none", epsilon=None, delta=0.0, events=(), **options)


def every_card() -> list[PrivacyCard]:
    cards = [card(level=level, relation=relation) for level, relation in EVERY_RELATION]
    bounded = {"level": "node", "relation": "add-remove", "max_degree": 100}
    return [
        *cards,
        card(**bounded),
        card(**bounded, longest_list=100),
        card(epsilon=0.0, events=(), noise_multiplier=None, messages="none"),
        card(is_seeded=True),
        card(noise="fast").with_audit({"mechanism": "aggregation", "epsilon_lower_bound": 0.7}),
        card(epsilon=8.0, delta_is_auto=True, entities=1000),
        unprotected(),
    ]


@pytest.mark.parametrize("original", every_card(), ids=lambda c: f"{c.level}-{c.relation}")
def test_json_reads_back_to_the_same_card(original: PrivacyCard) -> None:
    text = original.to_json()
    assert PrivacyCard.from_json(text) == original
    assert PrivacyCard.from_json(text.encode()).to_json() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    ("level", "relation", "sentence"),
    [
        (
            "edge",
            "undirected",
            "Anyone who sees this model and its predictions learns almost the same about the graph "
            "whether or not all edges between any two people together (one undirected edge) are "
            "in it: epsilon 1.00, delta "
            "1e-06.",
        ),
        (
            "edge",
            "directed",
            "Anyone who sees this model and its predictions learns almost the same about the graph "
            "whether or not all edges from any one person to any other together (one arc) are in "
            "it: epsilon 1.00, "
            "delta 1e-06.",
        ),
        (
            "node",
            "add-remove",
            "Anyone who sees this model and the predictions for everybody else learns almost the "
            "same about the data whether or not any one person's record (features, label and "
            "adjacency list) is in it: epsilon 1.00, delta 1e-06.",
        ),
        (
            "node",
            "replace",
            "Anyone who sees this model and the predictions for everybody else learns almost the "
            "same about the data whether any one person's record (features, label and "
            "adjacency list) is the true one or another: epsilon 1.00, delta 1e-06.",
        ),
    ],
)
def test_the_guarantee_is_one_plain_sentence(level: str, relation: str, sentence: str) -> None:
    made = card(level=level, relation=relation)
    assert guarantee_sentence(made) == sentence
    assert sentence in str(made)
    assert sentence in made.to_markdown()


def test_a_large_epsilon_is_not_called_almost_the_same() -> None:
    assert guarantee_sentence(card(epsilon=8.0)) == (
        "Seeing this model and its predictions shifts the odds on whether or not all edges "
        "between any two people together (one undirected edge) are in the graph by at most a "
        "factor of 3000: epsilon 8.00, delta 1e-06."
    )


def test_level_none_and_a_method_without_edges_state_what_they_are() -> None:
    nothing = unprotected()
    assert guarantee_sentence(nothing).startswith("Nothing is promised")
    assert (nothing.epsilon, nothing.is_private_release) == (None, False)
    assert json.loads(nothing.to_json())["epsilon"] is None
    mlp = card(method="MLP", epsilon=0.0, events=(), noise_multiplier=None, messages="none")
    assert guarantee_sentence(mlp).endswith("are in the graph: epsilon 0.")
    assert mlp.is_private_release
    assert mlp.warnings == ()


def test_seeded_noise_is_not_a_private_release_and_says_so_everywhere() -> None:
    seeded = card(is_seeded=True)
    assert not seeded.is_private_release
    assert json.loads(seeded.to_json())["is_private_release"] is False
    for text in (str(seeded), seeded.to_markdown()):
        assert "NOT A PRIVATE RELEASE" in text
        assert "Not a private release, because the noise was seeded" in text
    fast = card(noise="fast")
    assert not fast.is_private_release
    assert "fast float32 (experiment)" in str(fast)
    assert "operating system entropy, float-safe grid" in str(card())


def test_node_level_says_who_is_not_covered() -> None:
    made = card(level="node", relation="add-remove", max_degree=100, delta_is_auto=True)
    text = made.to_markdown()
    assert "own row and own predicted label" in text
    assert "Which ids have a row in a saved model: it is treated as public" in text
    assert "stay when the person leaves" in text
    assert made.node_notion == "own record"
    charged_there = {"training", "statistics", "classifier", "selection"}
    assert not {STEPS[step][0] for step in charged_there} & {what for what, _ in made.not_charged}


def test_several_edges_are_said_to_cost_delta_too() -> None:
    (several,) = (line for line in card().not_covered if line.startswith("Several edges"))
    assert "k times epsilon and k e^((k - 1) epsilon) times delta" in several


def test_the_strict_notion_is_claimed_only_where_no_list_was_cut() -> None:
    bounded = {"level": "node", "relation": "add-remove", "max_degree": 100}
    strict = card(**bounded, longest_list=100)
    assert strict.node_notion == "strict"
    assert any("vanish from everybody else's list" in line for line in strict.covered)
    assert not any("vanish" in line for line in card(**bounded).covered)
    node = {"level": "node", "relation": "add-remove"}
    # Nothing is known of lists that are not cut; and where no edge is read, nothing depends on it.
    assert card(**node).node_notion == "own record"
    assert card(**node, messages="none").node_notion is None


@pytest.mark.parametrize(
    ("hops", "stated"),
    [(["each", "each"], "each"), (["any", "each"], "any"), (["each", "any"], "any"), ([], "any")],
)
def test_an_edge_of_each_type_is_covered_only_where_all_hops_hide_it(
    hops: list[Any], stated: str
) -> None:
    planned = [PlannedHops(event=str(n), count=1, protects=one) for n, one in enumerate(hops)]
    made = card(level="edge", relation="undirected", edge_types=("calls", "visits"), hops=planned)
    assert made.protects == stated


def test_edge_level_says_that_features_and_labels_are_public() -> None:
    made = card()
    assert any("Features and labels" in line for line in made.not_covered)
    assert {what for what, _ in made.not_charged} == {
        Wording().fill(row[0]) for row in STEPS.values()
    }
    short = card(steps=["preparation", "training"])
    assert len(short.not_charged) == 2


def test_markdown_states_every_fact(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    spend: dict[str, Any] = {"level": "node", "relation": "replace", "delta": 1e-5}
    ledger.grant("people", PEOPLE, epsilon=10, composition="sum", **spend)
    charge = ledger.charge(PEOPLE, epsilon=2.5, events=[EVENT], purpose="fit", **spend)
    made = card(
        **{**spend, "epsilon": 2.5},
        max_degree=120,
        messages="labels",
        charge=charge,
    ).with_audit({"mechanism": "dpsgd", "epsilon_lower_bound": 1.9})
    text = made.to_markdown()
    facts = ["GAP", "social", "node", "replace", "2.5", "1e-05", "exact Gaussian", "6.617"]
    facts.append(f"{made.rdp_epsilon:g}")
    facts += [
        "120",
        "own record",
        "Class codes (vectors of norm at most 1, centred at the class prior) of the training",
        charge.id,
        "granted epsilon 10",
    ]
    facts += ["left epsilon 7.5", "Gaussian", "count = 2", "dpsgd", "epsilon_lower_bound = 1.9"]
    facts += [*made.covered, *made.not_covered, *(w for row in made.not_charged for w in row)]
    for fact in facts:
        assert fact in text


def test_the_card_says_whether_a_budget_limits_it(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    spend: dict[str, Any] = {"level": "edge", "relation": "undirected", "delta": 1e-6}
    free = ledger.charge(PEOPLE, epsilon=1, events=[], purpose="fit", count=10, **spend)
    made = card(charge=free)
    assert str(made).count("recorded but not limited (`gapgnn ledger grant`)") == 1
    assert made.to_markdown().count("not limited") == 1
    assert any("10 independent releases" in warning for warning in made.warnings)
    stated = {**spend, "delta": 1e-3, "composition": "sum"}
    ledger.grant("people", PEOPLE, epsilon=20, **stated)
    limited = ledger.charge(PEOPLE, epsilon=1, events=[], purpose="fit", **spend)
    assert card(charge=limited).warnings == ()
    assert card().warnings == ("This release is not recorded in a ledger.",)


def test_directed_on_a_symmetric_graph_states_the_epsilon_of_an_undirected_edge() -> None:
    made = card(relation="directed", is_symmetric=True)
    edge = account([NOISE.scaled(1 / math.sqrt(2))], 1e-6, relation="undirected").epsilon
    assert edge > 1.3
    stated = f"under undirected, is {rounded_up(edge)}"
    assert any(stated in warning for warning in made.warnings)
    assert not any("symmetric" in w for w in card(relation="directed").warnings)
    assert not any("symmetric" in w for w in card(is_symmetric=True).warnings)


def test_a_delta_that_is_too_large_is_a_warning_without_the_count() -> None:
    made = card(delta=1e-3, entities=12345)
    assert any(
        "the largest power of ten that is at most 1 /" in warning for warning in made.warnings
    )
    assert "12345" not in made.to_json()
    assert not any("delta" in warning for warning in card(delta=1e-6, entities=12345).warnings)


def test_nothing_in_a_card_identifies_the_content_of_the_data_set(tmp_path: Path) -> None:
    charge = Ledger.init(tmp_path / "ledger.sqlite").charge(
        PEOPLE,
        level="edge",
        relation="undirected",
        epsilon=1,
        delta=0,
        events=[],
        purpose="fit",
    )
    text = card(charge=charge).to_json()
    assert FINGERPRINT[:8] not in text
    assert "somebody" not in text


def changed(**changes: Any) -> str:
    values = json.loads(card().to_json())
    values.update(changes)
    return json.dumps({key: value for key, value in values.items() if value != "drop this"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(epsilom=1.0), "unknown keys: epsilom"),
        (changed(delta="drop this"), "missing keys: delta"),
        (changed(ledger={"charge_id": "1"}), "`ledger` has missing keys"),
        (changed(ledger=3), "`ledger` must be an object"),
        (changed(format=7), r"format 10\. Got 7, written by a version before 0\.3; that version"),
        (changed(format=11), r"must have format 10\. Got 11, written by a newer version"),
        (changed(attacker=None), "`attacker` must bound"),
        (changed(wording=None), "`wording` must be an object"),
        (changed(releases=None), "`releases` must be a list of objects"),
        (changed(releases=[]), "`releases` must list what was charged"),
        (changed(composed_epsilon=None), "`composed_epsilon` must be a number"),
        (changed(epsilon=None), "`epsilon` must be a number"),
        (changed(epsilon=-1), "`epsilon` must be at least 0"),
        (changed(epsilon="1"), "`epsilon` must be a number"),
        (changed(epsilon=0), "`events` must list"),
        (changed(events=[]), "`events` must list"),
        (changed(events={}), "`events` must be a list of objects"),
        (changed(level="none"), "`relation` must be one of none"),
        (changed(level="vertex"), "`level` must be one of"),
        (changed(noise_multiplier=0), "`noise_multiplier` must be positive"),
        (changed(noise_source="dice"), "`noise_source` must be one of"),
        (changed(noise_source="none: no private data was read"), "`noise_source` must be"),
        (changed(is_private_release=False), "`is_private_release` must be true"),
        (changed(covered="everybody"), "`covered` must be a list of texts"),
        (changed(not_charged=[["what"]]), "`not_charged` must be a list of pairs"),
        (changed(delta_is_auto=1), "`delta_is_auto` must be true or false"),
        (changed(method=None), "`method` must be a text"),
        ("{", "must be JSON"),
        ("[]", "must be a JSON object"),
    ],
)
def test_a_card_that_is_not_whole_or_contradicts_itself_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as refusal:
        PrivacyCard.from_json(text)
    assert "\n" not in str(refusal.value)


def test_a_seeded_card_cannot_be_made_private_by_editing_the_flag() -> None:
    text = card(is_seeded=True).to_json()
    forged = text.replace('"is_private_release": false', '"is_private_release": true')
    assert forged != text
    with pytest.raises(DataError, match="`is_private_release` must be false"):
        PrivacyCard.from_json(forged)


@pytest.mark.parametrize(
    "wrong",
    [{"messages": "gossip"}, {"steps": ["magic"]}, {"noise": "loud"}, {"epsilon": math.inf}],
)
def test_facts_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        card(**wrong)


def test_an_audit_is_added_to_a_copy() -> None:
    before = card()
    after = before.with_audit({"mechanism": "aggregation", "holds": True})
    assert (len(before.audits), len(after.audits)) == (0, 1)
    assert "holds = True" in after.to_markdown()


def test_a_name_cannot_break_the_table() -> None:
    assert "| data set | a \\| b c |" in card(dataset="a | b\nc").to_markdown()


@given(st.floats(1e-12, 1e3))
def test_a_printed_epsilon_is_never_smaller_than_the_real_one(epsilon: float) -> None:
    assert float(rounded_up(epsilon)) >= epsilon
    assert float(rounded_up(epsilon)) <= 1.11 * epsilon + 1e-300
    if epsilon < 50:
        assert float(odds(epsilon)) >= math.exp(epsilon)


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        ("undirected", "All payments between the same two customers together"),
        ("5-edges", "All payments between the same two customers together"),
        ("directed", "All payments from one customer to the same other customer together"),
        ("5-arcs", "All payments from one customer to the same other customer together"),
    ],
)
def test_the_card_says_that_all_rows_of_a_pair_are_protected_together(
    relation: str, words: str
) -> None:
    known = Wording.of("customer", "payment")
    stated = card(relation=relation, wording=known)
    assert any(line.startswith(words) for line in stated.covered)
    assert re.search(r"\b(all|All) payments\b.*\bcustomers?\b", guarantee_sentence(stated))


@pytest.mark.parametrize(
    ("entity", "sentence"),
    [
        ("user", "A user's record, if a user leaves."),
        ("employee", "An employee's record, if an employee leaves."),
        ("hour", "An hour's record, if an hour leaves."),
        ("university/universities", "A university's record, if a university leaves."),
        ("MP", "An MP's record, if an MP leaves."),
    ],
)
def test_the_article_fits_the_reader_s_word(entity: str, sentence: str) -> None:
    template = "{An_entity}'s record, if {an_entity} leaves."
    assert Wording.of(entity).fill(template) == sentence


USUAL = re.compile(r"\{|\b(person|people|friend\w*|links?)\b", re.IGNORECASE)


@pytest.mark.parametrize("own", ["", "record"])
@pytest.mark.parametrize("types", [(), ("calls", "visits")])
@pytest.mark.parametrize(("level", "relation"), [*EVERY_RELATION, ("edge", "5-edges")])
def test_no_sentence_of_a_card_knows_better_words_than_the_user(
    level: str, relation: str, types: tuple[str, ...], own: str
) -> None:
    stated = card(
        level=level,
        relation=relation,
        edge_types=types,
        protects="any" if types else "",
        own=own or ("features" if level == "node" else ""),
        is_weighted=True,
        is_symmetric=True,
        wording=Wording.of("user", "SMS"),
        public=texts.public_facts(level, num_train=1000, delta_is_auto=True, **FACTS),
    )
    text = stated.to_markdown() + str(stated)
    assert USUAL.search(text) is None
    assert "an user" not in text.lower()
    # Without words it speaks of people and edges; what somebody once called them is forgotten.
    usual = stated.in_words(Wording())
    assert "SMS" not in usual.to_markdown()
    assert "friend" not in usual.to_markdown()
    assert PrivacyCard.from_json(usual.to_json()).in_words(stated.wording) == stated


@pytest.mark.parametrize("word", ["a\x1bb", 7, "", "x" * 41])
def test_a_card_with_a_word_that_is_none_is_damaged(word: object) -> None:
    values = json.loads(card().to_json())
    values["wording"]["link"] = word
    with pytest.raises(DataError, match="`link` must be a word"):
        PrivacyCard.from_json(json.dumps(values))


FACTS: dict[str, Any] = {
    "train_size_is_declared": False,
    "inferred": (),
    "has_schema": True,
    "max_degree": None,
}


@pytest.mark.parametrize(("people", "is_exact"), [(42, True), (99, True), (100, False)])
def test_a_small_count_is_not_called_rounded(people: int, is_exact: bool) -> None:
    facts = dict(texts.public_facts("node", num_train=people, delta_is_auto=True, **FACTS))
    assert ("exact" in facts[texts.NUM_TRAIN]) is is_exact
    assert facts[texts.NUM_TRAIN].startswith(f"{people}: counted")


@pytest.mark.parametrize("level", ["edge", "node"])
def test_the_number_that_a_stated_delta_is_compared_with_is_listed_as_public(level: str) -> None:
    shared: dict[str, Any] = {"num_train": 1000, "delta_is_auto": False, **FACTS}
    name = f"order of magnitude of the number of {'edges' if level == 'edge' else '{entities}'}"
    assert name in dict(texts.public_facts(level, is_delta_compared=True, **shared))
    # A pure promise has no delta to warn of.
    assert name not in dict(texts.public_facts(level, is_delta_compared=False, **shared))


def test_the_accountant_is_that_of_the_chosen_option() -> None:
    first = Laplace(50.0, label="mean out-degree")
    options = [
        Guarantee(
            relation=AddRemove(),
            epsilon=epsilon,
            delta=1e-5,
            delta_is_auto=True,
            entities=1000,
            noise_multiplier=1.0,
            accountant=accountant,
            events=events,
        )
        for epsilon, accountant, events in (
            (3.8, "pld", (Gaussian(3.0, label="classifier"),)),
            (3.9, "exact", (Gaussian(4.0, label="classifier"), Gaussian(1.0, label="hop"))),
        )
    ]
    whole = Guarantee.one_of(first, options)
    assert whole.accountant == "exact, added to the first release"
    chosen = options[0].after(first, whole)
    assert chosen.accountant == "pld, added to the first release"
    assert chosen.epsilon == whole.epsilon


def test_the_card_states_what_an_attacker_reaches_and_reads_it_back() -> None:
    made = card(epsilon=1.0)
    mu = math.sqrt(sum(event["count"] / event["noise_multiplier"] ** 2 for event in made.events))
    bounds = made.attacker
    assert bounds is not None
    assert bounds.mu == pytest.approx(mu)
    assert bounds.guess == pytest.approx(norm.cdf(mu / 2))
    assert bounds.tpr_at_fpr_1_percent == pytest.approx(norm.cdf(norm.ppf(0.01) + mu))
    stated = json.loads(made.to_json())["attacker"]
    assert stated["guess"] == bounds.guess
    assert PrivacyCard.from_json(made.to_json()).attacker == bounds
    text = made.to_markdown()
    assert f"| a 50:50 guess is right in at most | {texts.percent(bounds.guess)} |" in text
    assert f"| Gaussian DP | mu {texts.rounded_up(mu)} |" in text
    hits = texts.percent(bounds.tpr_at_fpr_0_1_percent)
    assert f"| true positives at 0.1 % false positives, at most | {hits} |" in text


@pytest.mark.parametrize("wrong", [0.3, 1.2, "much", None])
def test_a_card_with_an_impossible_guess_is_refused(wrong: Any) -> None:
    values = json.loads(card(epsilon=1.0).to_json())
    values["attacker"]["guess"] = wrong
    with pytest.raises(DataError, match="guess"):
        PrivacyCard.from_json(json.dumps(values))


def test_the_bounds_are_those_of_the_worst_option_and_not_of_the_one_that_followed() -> None:
    options = [
        resolved(TRAINED),
        resolved((PoissonGaussian(2.0, 0.0129, 1546), Gaussian(0.7, label="aggregation"))),
    ]
    first = Laplace(20.0)
    whole = Guarantee.one_of(first, options)
    cards = [
        make_card(ReleasedRun(promise=option.after(first, whole)), ReleaseFacts(method="GAP"))
        for option in options
    ]
    assert cards[0].attacker == cards[1].attacker
    assert cards[0].attacker is not None
    each = [attack_bounds([first, *o.events], relation="add-remove").guess for o in options]
    assert cards[0].attacker.guess >= max(each) - 1e-9
    assert abs(each[0] - each[1]) > 0.01


@pytest.mark.parametrize(
    ("entities", "is_few"), [(1, True), (10, True), (11, True), (100, True), (101, False)]
)
def test_up_to_a_hundred_entities_are_called_too_few(entities: int, is_few: bool) -> None:
    lines = texts.delta_warnings(1e-9, entities)
    assert [line.startswith("There are at most 100") for line in lines] == [True] * is_few


@pytest.mark.parametrize("entities", [11, 100, 101, 1472])
def test_a_delta_at_the_bound_is_not_warned_of_and_twice_it_is(entities: int) -> None:
    """The bound is the largest power of ten that is at most one over the number."""
    bound = 10.0 ** -math.ceil(math.log10(entities))
    found = [
        [line for line in texts.delta_warnings(delta, entities) if line.startswith("delta")]
        for delta in (bound, 2 * bound)
    ]
    assert [len(lines) for lines in found] == [0, 1]


@pytest.mark.parametrize(("delta", "entities"), [(5e-4, 1472), (2e-6, 499_999), (1e-3, 1472)])
def test_the_warning_of_a_large_delta_is_true_of_every_number_that_it_may_be(
    delta: float, entities: int
) -> None:
    """Only the order of magnitude is compared, so it says that and no more."""
    (warning,) = texts.delta_warnings(delta, entities)
    bound = float(warning.split(" is above ")[1].split(",")[0])
    assert bound <= 1 / entities < 10 * bound
    assert delta > bound
    assert "is not below" not in warning
