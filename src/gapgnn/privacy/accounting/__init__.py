"""What was released, and what it costs: events, accountants, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapgnn.facade import front

if TYPE_CHECKING:
    from gapgnn.privacy.accounting.accountants import ACCOUNTANTS as ACCOUNTANTS
    from gapgnn.privacy.accounting.accountants import account as account
    from gapgnn.privacy.accounting.accountants import accountant_named as accountant_named
    from gapgnn.privacy.accounting.accountants import gaussian_epsilon as gaussian_epsilon
    from gapgnn.privacy.accounting.accountants import gaussian_shift as gaussian_shift
    from gapgnn.privacy.accounting.calibration import calibrate as calibrate
    from gapgnn.privacy.accounting.calibration import search_multiplier as search_multiplier
    from gapgnn.privacy.accounting.events import Composition as Composition
    from gapgnn.privacy.accounting.events import Event as Event
    from gapgnn.privacy.accounting.events import Gaussian as Gaussian
    from gapgnn.privacy.accounting.events import LabelResponse as LabelResponse
    from gapgnn.privacy.accounting.events import Laplace as Laplace
    from gapgnn.privacy.accounting.events import MixtureOfGaussians as MixtureOfGaussians
    from gapgnn.privacy.accounting.events import PoissonGaussian as PoissonGaussian
    from gapgnn.privacy.accounting.events import RandomisedResponse as RandomisedResponse
    from gapgnn.privacy.accounting.events import group_of as group_of
    from gapgnn.privacy.accounting.events import merge as merge
    from gapgnn.privacy.accounting.events import worst_cases as worst_cases
    from gapgnn.privacy.accounting.pairs import DiscretePair as DiscretePair
    from gapgnn.privacy.accounting.pairs import GaussianPair as GaussianPair
    from gapgnn.privacy.accounting.pairs import LaplacePair as LaplacePair
    from gapgnn.privacy.accounting.pld import pld_delta as pld_delta
    from gapgnn.privacy.accounting.rdp import ORDERS as ORDERS
    from gapgnn.privacy.accounting.rdp import paper_edge_epsilon as paper_edge_epsilon
    from gapgnn.privacy.accounting.rdp import plain_rdp_epsilon as plain_rdp_epsilon
    from gapgnn.privacy.accounting.rdp import renyi_curve as renyi_curve
    from gapgnn.privacy.accounting.tradeoff import NOTHING_LEARNED as NOTHING_LEARNED
    from gapgnn.privacy.accounting.tradeoff import AttackBounds as AttackBounds
    from gapgnn.privacy.accounting.tradeoff import PrivacyProfile as PrivacyProfile
    from gapgnn.privacy.accounting.tradeoff import attack_bounds as attack_bounds
    from gapgnn.privacy.accounting.tradeoff import privacy_profile as privacy_profile

__getattr__, __dir__, __all__ = front(__name__)
