"""The durable budget of a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.ledger import RELATIONS as RELATIONS
    from gapgnn.privacy.ledger.ledger import Budget as Budget
    from gapgnn.privacy.ledger.ledger import Charge as Charge
    from gapgnn.privacy.ledger.ledger import Ledger as Ledger

__getattr__, __dir__, __all__ = front(__name__)
