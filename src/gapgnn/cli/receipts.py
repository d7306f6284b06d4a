"""What a command charged and left behind, for programs: the same keys on success and on failure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.output import emit_json
from gapgnn.errors import GapgnnError

if TYPE_CHECKING:
    from gapgnn.privacy.ledger import Budget, Charge, Ledger, People

# Commands that may charge a budget, or write to the ledger that the curator looked at private data.
CHARGING = ("train", "tune", "predict", "embed", "experiment")


@dataclass
class Receipt:
    """The charges of one command, and where its results go; filled in while it runs.

    Attributes:
        charges: made so far, also if the command then fails.
        ledger: that is charged; None until it is known.
        people: whose data the command reads; None until they are known.
        folder: where results go.
        price: of the answer that is asked for, whether it is then charged or not; None elsewhere.
        begun: when the command began.

    >>> sorted(Receipt().to_dict())
    ['budgets', 'charges', 'folder', 'ledger', 'seconds']
    """

    charges: list[Charge] = field(default_factory=list)
    ledger: Ledger | None = None
    people: People | None = None
    folder: Path | None = None
    price: dict[str, Any] | None = None
    begun: float = field(default_factory=time.monotonic)

    def to_dict(self, *, reads_ledger: bool = True) -> dict[str, Any]:
        """Return plain values: charges, budgets, the ledger's name, folder and seconds.

        Args:
            reads_ledger: whether what is spent and left is read; not from one that has just failed.
        """
        return {
            "charges": [_charge(one) for one in self.charges],
            "budgets": [_budget(one) for one in self._budgets()] if reads_ledger else [],
            "ledger": None if self.ledger is None else self.ledger.name,
            "folder": None if self.folder is None else str(self.folder),
            "seconds": {"total": round(time.monotonic() - self.begun, 3)},
            **({} if self.price is None else {"price": self.price}),
        }

    def _budgets(self) -> Sequence[Budget]:
        """Return the budgets of all who were charged; where nobody was, of those who were read."""
        if self.ledger is None:
            return []
        with suppress(GapgnnError):
            if not self.charges:
                return [] if self.people is None else self.ledger.budgets_of(self.people)
            names = {name for one in self.charges for name in (one.population, *one.others)}
            levels = {one.level for one in self.charges}
            every = self.ledger.summary()
            return [one for one in every if one.population in names and one.level in levels]
        return []


def _charge(charge: Charge) -> dict[str, Any]:
    return {
        "id": charge.id,
        "populations": [charge.population, *charge.others],
        "level": charge.level,
        "relation": charge.relation,
        "epsilon": charge.epsilon,
        "delta": charge.delta,
        "count": charge.count,
        "purpose": charge.purpose,
    }


def _budget(budget: Budget) -> dict[str, Any]:
    names = ("population", "level", "relation", "composition", "until")
    amounts = ("granted_epsilon", "granted_delta", "spent_epsilon", "spent_delta")
    left = ("left_epsilon", "left_delta")
    return {name: getattr(budget, name) for name in (*names, *amounts, *left)}


_receipt = Receipt()


@contextmanager
def opened(command: str) -> Iterator[Receipt]:
    """Begin the receipt of a command, to which every charge made inside is added."""
    global _receipt
    before = _receipt
    if command not in CHARGING:
        yield before
        return
    from gapgnn.privacy.ledger import spending

    with spending() as charges:
        _receipt = Receipt(charges)
        try:
            yield _receipt
        finally:
            _receipt = before


def receipt() -> Receipt:
    """Return the receipt of the running command."""
    return _receipt


def emit_result(result: dict[str, Any]) -> None:
    """Print the result of a command as one JSON object, with what it charged."""
    emit_json({**result, **_receipt.to_dict(), **_phases(result)})


def _phases(result: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each phase, where a result has them."""
    return {"seconds": result["seconds"]} if isinstance(result.get("seconds"), dict) else {}
