"""The durable budget of a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.ledger import RELATIONS as RELATIONS
    from gapgnn.privacy.ledger.ledger import Budget as Budget
    from gapgnn.privacy.ledger.ledger import Charge as Charge
    from gapgnn.privacy.ledger.ledger import Ledger as Ledger

_HOMES = {
    "Budget": "ledger",
    "Charge": "ledger",
    "Ledger": "ledger",
    "RELATIONS": "ledger",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = front(__name__, _HOMES)
