"""Every method of the package, also one that is added, is in the tables of the tests that run it.

Other tests of methods take them from the registry by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from cardcases import MODELS
from test_every_release import WAYS
from test_parameters import ALGORITHMS, OWN_QUICKLY, QUICKLY
from test_whole_runs import WAYS as RUNS

from gapgnn.methods import NodeClassifier, method_class, registry

METHODS = {method_class(name) for name in registry.METHODS}
LEVELS = {(method, level) for method in METHODS for level in method.levels}
PRIVATE = {(method, level) for method, level in LEVELS if method(level=level).draws_noise()}


def with_level(cases: Iterable[tuple]) -> set[tuple[type[NodeClassifier], str]]:
    """Return method and level of cases that begin with a method and its options."""
    return {(method, method(**options).level) for method, options, *_ in cases}


def test_its_parameters_are_tried_at_every_level():
    assert with_level(ALGORITHMS.values()) == LEVELS


def test_its_own_parameters_are_used_or_refused_by_default():
    assert {ALGORITHMS[name][0] for name in (*QUICKLY, *OWN_QUICKLY)} == METHODS


def test_each_of_its_releases_has_the_noise_of_the_card():
    assert with_level(WAYS.values()) == PRIVATE


def test_a_whole_run_of_it_is_watched():
    assert with_level(RUNS.values()) >= PRIVATE


def test_a_card_of_it_is_kept():
    assert {method for method, _ in MODELS.values()} == METHODS
