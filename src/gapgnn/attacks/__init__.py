"""Attacks on models: membership, links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.attacks.membership import lira_attack as lira_attack
    from gapgnn.attacks.membership import membership_attack as membership_attack
    from gapgnn.attacks.own_list import own_list_attack as own_list_attack
    from gapgnn.attacks.target import fitted as fitted

__getattr__, __dir__, __all__ = front(__name__)
