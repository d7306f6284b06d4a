"""A ledger that moves to another place: everything goes with it, and only one is ever open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn.errors import BudgetExceededError, InputError, NotGrantedError, PrivacyError
from gapgnn.privacy.ledger import Charge, Ledger, People

TERMS: dict[str, Any] = {"level": "edge", "relation": "undirected"}
PEOPLE = People(np.arange(10), "5f" * 32, name="customers")


def charge(ledger: Ledger, people: People = PEOPLE, epsilon: float = 1.0) -> Charge:
    fit = {**TERMS, "epsilon": epsilon, "delta": 0.0, "events": [], "purpose": "fit"}
    return ledger.charge(people, **fit)  # type: ignore[arg-type]


def test_people_budgets_claims_and_settings_go_along_and_the_old_one_is_closed(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.grant("customers", PEOPLE, **TERMS, epsilon=4, delta=1e-3, composition="sum")
    made = charge(ledger)
    ledger.claim(made.id, None, "token")
    ledger.set("require-grant", "on")
    before = ledger.summary(), ledger.entries(), ledger.grants(), ledger.chain()
    new = Ledger.init(tmp_path / "new.sqlite")
    ledger.move_to(new)
    assert (new.summary(), new.entries(), new.grants(), new.chain()[:-1]) == before
    assert new.claimed(made.id) == "token"
    assert new.setting("require-grant") == "on"
    with pytest.raises(PrivacyError, match=r"was moved to .* and is closed"):
        charge(ledger)
    # The same people in another spelling, and strangers, who still need a budget.
    with pytest.raises(BudgetExceededError):
        charge(new, People(np.array(["007"]), "61" * 32), epsilon=3.1)
    with pytest.raises(NotGrantedError):
        charge(new, People(np.array(["zoe"]), "62" * 32))
    charge(new, epsilon=3.0)
    assert new.problems() == []


def test_a_ledger_is_not_closed_where_it_cannot_be_moved_to(ledger: Ledger, tmp_path: Path) -> None:
    """Closed and not copied, its charges would be forgotten by the one that it names."""
    charge(ledger)
    taken, new = Ledger.init(tmp_path / "taken.sqlite"), Ledger.init(tmp_path / "new.sqlite")
    charge(taken)
    with pytest.raises(InputError, match="copied into an empty one"):
        ledger.move_to(taken)
    with pytest.raises(InputError, match="does not exist"):
        ledger.move_to(Ledger(tmp_path / "absent.sqlite"))
    charge(ledger)
    before = ledger.entries()
    ledger.move_to(new)
    assert new.entries() == before
