"""The durable budget of people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.amounts import COMPOSITIONS as COMPOSITIONS
    from gapgnn.privacy.ledger.composed import composed_epsilon as composed_epsilon
    from gapgnn.privacy.ledger.composed import composed_profile as composed_profile
    from gapgnn.privacy.ledger.file import LedgerNotice as LedgerNotice
    from gapgnn.privacy.ledger.forecast import Forecast as Forecast
    from gapgnn.privacy.ledger.forecast import forecast_fits as forecast_fits
    from gapgnn.privacy.ledger.ledger import SETTINGS as SETTINGS
    from gapgnn.privacy.ledger.ledger import Charge as Charge
    from gapgnn.privacy.ledger.ledger import Grant as Grant
    from gapgnn.privacy.ledger.ledger import Ledger as Ledger
    from gapgnn.privacy.ledger.ledger import Note as Note
    from gapgnn.privacy.ledger.ledger import is_day as is_day
    from gapgnn.privacy.ledger.ledger import scratch_ledger as scratch_ledger
    from gapgnn.privacy.ledger.people import People as People
    from gapgnn.privacy.ledger.rules import RELATIONS as RELATIONS
    from gapgnn.privacy.ledger.rules import Budget as Budget
    from gapgnn.privacy.ledger.rules import check_population as check_population

__getattr__, __dir__, __all__ = front(__name__)
