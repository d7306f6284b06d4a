"""The entry for the deployment registry passes the checks that the registry makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from methodgraphs import small_graph

from gapgnn import GAP, MLP, Ledger
from gapgnn.errors import InputError
from gapgnn.evaluation.release import About, read_about
from gapgnn.evaluation.release.files import ENTRY
from gapgnn.evaluation.release.registry import as_yaml, entry_of
from gapgnn.privacy.card import PrivacyCard
from releasecases import ABOUT, DAY

FIXTURES = Path(__file__).parent.parent / "fixtures" / "opendp_registry"
SCHEMA = yaml.safe_load((FIXTURES / "deployments-schema.yaml").read_text())
CARDS = Path(__file__).parent.parent / "golden" / "cards"
DIGESTS = {"model/card.json": "5f" * 32}


def complaints(text: str) -> list[str]:
    """Return what the registry complains of: the schema, and how texts are written."""
    validator = Draft7Validator(SCHEMA, format_checker=Draft7Validator.FORMAT_CHECKER)
    found = [error.message for error in validator.iter_errors(yaml.safe_load(text))]
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if getattr(token, "style", None) not in (None, "|", '"', "'"):
            found.append(f"style {token.style}")
    return found


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PrivacyCard]:
    place = tmp_path_factory.mktemp("cards")
    ledger = Ledger.init(place / "ledger.sqlite").path
    graph = small_graph(num_nodes=120)
    models: dict[str, Any] = {
        "gaussian": GAP(epsilon=1.0, hidden=4, epochs=1, ledger=ledger),
        "dp-sgd": MLP(level="node", epsilon=4.0, hidden=4, epochs=1, ledger=ledger),
        "free": MLP(level="edge", hidden=4, epochs=1),
    }
    return {name: model.fit(graph).card_ for name, model in models.items()}


@pytest.mark.parametrize("name", ["gaussian", "dp-sgd", "free"])
def test_the_entry_passes_the_validator_of_the_registry(name: str, cards) -> None:
    entry = entry_of(cards[name], ABOUT, made=DAY, digests=DIGESTS)
    text = as_yaml(entry)
    assert complaints(text) == []
    assert yaml.safe_load(text) == entry
    assert re.fullmatch(r"[a-z0-9_]+\.yaml", ENTRY)


def test_the_entry_states_the_price_of_the_card(cards) -> None:
    for card in cards.values():
        loss = entry_of(card, ABOUT, made=DAY, digests=DIGESTS)["deployment"]["privacy_loss"]
        stated = loss["privacy_parameters"]
        assert stated["epsilon"] == card.composed_epsilon
        assert stated.get("delta", 0) == (card.delta if card.epsilon else 0)
        assert card.relation.name in loss["privacy_unit_details"]


@pytest.mark.parametrize(
    "part", ["basic", "administrative", ("basic", "data_curators"), ("administrative", "status")]
)
def test_the_validator_refuses_an_entry_without_what_it_requires(part: Any, cards) -> None:
    entry = entry_of(cards["gaussian"], ABOUT, made=DAY, digests=DIGESTS)
    place = entry["deployment"]
    *above, last = (part,) if isinstance(part, str) else part
    for name in above:
        place = place[name]
    del place[last]
    assert complaints(as_yaml(entry))


@pytest.mark.parametrize(
    ("where", "value"),
    [("data_product_type", "Model"), ("publication_date", "1/1/2026"), ("surprise", "x")],
)
def test_the_validator_refuses_other_values(where: str, value: str, cards) -> None:
    entry = entry_of(cards["gaussian"], ABOUT, made=DAY, digests=DIGESTS)
    entry["deployment"]["basic"][where] = value
    assert complaints(as_yaml(entry))


TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" \n"), min_size=1)
KEYS = st.sampled_from(["name", "text", "data", "epsilon"])
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_every_text_and_number_survives_yaml(values: dict[str, Any]) -> None:
    assert yaml.safe_load(as_yaml(values)) == values


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"curator_type": "Bank"}, "`curator_type` must be one of"),
        ({"sector": "Banking"}, "`sector` must be one of"),
        ({"name": " "}, "`name` must be stated"),
        ({"authors": ()}, "`authors` must be stated"),
        ({"region": "a\x1b[31m"}, "printable"),
        ({"people": 0}, "positive whole number"),
        ({"slug": "A B"}, "small letters"),
    ],
)
def test_what_a_curator_states_is_checked(change: dict[str, Any], complaint: str) -> None:
    values = {name: getattr(ABOUT, name) for name in ABOUT.__dataclass_fields__}
    with pytest.raises(InputError, match=complaint):
        About(**{**values, **change})


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "about.toml"
    file.write_text('nmae = "x"')
    with pytest.raises(InputError, match="Did you mean 'name'"):
        read_about(file)
    file.write_text('name = "x"')
    with pytest.raises(InputError, match="`curator`, `curator_type`"):
        read_about(file)
