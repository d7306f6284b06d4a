"""The privacy card: what a release promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.card.card import PrivacyCard as PrivacyCard
    from gapgnn.privacy.card.card import ReleaseFacts as ReleaseFacts
    from gapgnn.privacy.card.card import attacker_facts as attacker_facts
    from gapgnn.privacy.card.card import attacker_of as attacker_of
    from gapgnn.privacy.card.card import guarantee_sentence as guarantee_sentence
    from gapgnn.privacy.card.card import make_card as make_card
    from gapgnn.privacy.card.composition import ChargedRelease as ChargedRelease
    from gapgnn.privacy.card.texts import IN_HOPS as IN_HOPS
    from gapgnn.privacy.card.texts import noise_source as noise_source
    from gapgnn.privacy.card.texts import promise as promise
    from gapgnn.privacy.card.texts import protected as protected
    from gapgnn.privacy.card.texts import public_facts as public_facts
    from gapgnn.privacy.card.texts import rounded_up as rounded_up

__getattr__, __dir__, __all__ = front(__name__)
