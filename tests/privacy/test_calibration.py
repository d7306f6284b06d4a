"""Calibration never exceeds the budget, wastes little of it, and its cache cannot weaken it."""

import json
import math
import os
import stat
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gapgnn
from gapgnn.errors import CalibrationError, InputError
from gapgnn.privacy.accounting import account, calibration, events, pld
from gapgnn.privacy.accounting.calibration import LEAST_NOISE, calibrate, search_multiplier
from gapgnn.privacy.accounting.events import (
    EpsilonDelta,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    PrivateSelection,
    RandomisedResponse,
    SubgraphGaussian,
)

FACEBOOK = PoissonGaussian(1.0, sampling_rate=0.0129, steps=1546)
GAP_NDP = (FACEBOOK, Gaussian(1.0, count=2))

epsilons = st.floats(-2, 3).map(lambda x: 10**x)
deltas = st.floats(-12, -1).map(lambda x: 10**x)
ratios = st.sampled_from([0.3, 1.0, 2.5])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "_REMEMBERED", {})
    return tmp_path / "gapgnn" / "calibration"


def assert_keeps(answer, *, epsilon, delta, relation):
    again = account(answer.events, delta, relation=relation).epsilon
    assert 0.995 * epsilon <= again <= epsilon
    assert answer.epsilon == again
    assert answer.noise_multiplier > 0


@pytest.mark.parametrize(
    ("template", "epsilon", "delta", "relation", "low", "high"),
    [
        ([Gaussian(1.0, count=2)], 1.0, 1e-7, "directed", 6.6165, 6.6175),
        ([Gaussian(1.0, count=2)], 1.0, 1e-7, "undirected", 6.6165, 6.6175),
        (GAP_NDP, 8.0, 1e-5, "add-remove", 0.949, 0.951),
        (GAP_NDP, 1.0, 1e-5, "add-remove", 5.61 * 0.995, 5.61 * 1.005),
        ([FACEBOOK, Gaussian(0.5, count=2)], 16.88, 1e-5, "replace", 0.995, 1.005),
    ],
)
def test_the_values_of_the_privacy_page(template, epsilon, delta, relation, low, high):
    answer = calibrate(template, epsilon=epsilon, delta=delta, relation=relation)
    assert low <= answer.noise_multiplier <= high
    assert_keeps(answer, epsilon=epsilon, delta=delta, relation=relation)


@settings(max_examples=200, deadline=None)
@given(epsilon=epsilons, delta=deltas, first=ratios, second=ratios, count=st.integers(1, 20))
def test_gaussian_budgets_are_met_to_the_ninth_digit(epsilon, delta, first, second, count):
    template = [Gaussian(first, count=count), Gaussian(second)]
    answer = calibrate(template, epsilon=epsilon, delta=delta, relation="add-remove")
    again = account(answer.events, delta, relation="add-remove").epsilon
    assert epsilon * (1 - 1e-6) <= again <= epsilon
    less = [event.scaled(1 - 1e-8) for event in answer.events]
    assert account(less, delta, relation="add-remove").epsilon > again


SUBSAMPLED = {
    "epsilon": epsilons,
    "delta": deltas,
    "rate": st.floats(-3, -0.05).map(lambda x: 10**x),
    "steps": st.integers(1, 3000),
    "hops": st.integers(1, 5),
    "ratio": ratios,
    "relation": st.sampled_from(["add-remove", "replace"]),
}


def check_subsampled(epsilon, delta, rate, steps, hops, ratio, relation):
    template = [PoissonGaussian(1.0, rate, steps), Gaussian(ratio, count=hops)]
    answer = calibrate(template, epsilon=epsilon, delta=delta, relation=relation, cache=False)
    assert_keeps(answer, epsilon=epsilon, delta=delta, relation=relation)


@settings(max_examples=4, deadline=None)
@given(**SUBSAMPLED)
def test_any_budget_is_kept_and_used(**request):
    check_subsampled(**request)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(**SUBSAMPLED)
def test_any_budget_is_kept_and_used_many_times(**request):
    check_subsampled(**request)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.01, 1e-12),
        (1000.0, 0.1),
        pytest.param(0.01, 0.1, marks=pytest.mark.slow),
        pytest.param(1000.0, 1e-12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "relation", ["add-remove", pytest.param("replace", marks=pytest.mark.slow)]
)
def test_the_corners_of_the_range(epsilon, delta, relation):
    answer = calibrate(GAP_NDP, epsilon=epsilon, delta=delta, relation=relation)
    assert_keeps(answer, epsilon=epsilon, delta=delta, relation=relation)


def test_a_budget_beyond_the_exponent_range_of_floats_is_still_used_up():
    # exp(1000) overflows; the curve must stay smooth there for the search to come close.
    template = [PoissonGaussian(1.0, 0.001, 3000), Gaussian(2.5)]
    request = {"epsilon": 1000.0, "delta": 1e-12, "relation": "replace"}
    assert_keeps(calibrate(template, **request), **request)


@pytest.mark.parametrize(
    "template",
    [
        [Laplace(1.0, count=3)],
        [MixtureOfGaussians(1.0, (0.0, 1.0, 3.0), (0.9, 0.09, 0.01), steps=50), Gaussian(0.5)],
        [Laplace(2.0), Gaussian(1.0)],
    ],
    ids=["laplace", "mixture", "both"],
)
def test_every_sort_of_noise_can_be_calibrated(template):
    answer = calibrate(template, epsilon=2.0, delta=1e-6, relation="add-remove")
    assert_keeps(answer, epsilon=2.0, delta=1e-6, relation="add-remove")


def test_ratios_and_labels_are_kept():
    template = [PoissonGaussian(1.0, 0.1, 20, "encoder"), Gaussian(0.5, count=2, label="hops")]
    answer = calibrate(template, epsilon=4.0, delta=1e-5, relation="add-remove")
    steps, hops = answer.events
    assert (steps.label, hops.label) == ("encoder", "hops")
    assert steps.noise_multiplier == answer.noise_multiplier
    assert hops.noise_multiplier == answer.noise_multiplier / 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "`epsilon` must be positive"),
        ({"epsilon": -1.0}, "`epsilon` must be positive. Got -1.0"),
        ({"epsilon": math.nan}, "`epsilon` must be a number"),
        ({"epsilon": math.inf}, "`epsilon` must be finite"),
        ({"delta": 0.0}, "`delta` must be above 0"),
        ({"delta": 1.0}, "`delta` must be above 0 and below 1"),
        ({"delta": math.nan}, "`delta`"),
        ({"relation": "auto"}, "`relation`"),
        ({"template": []}, "`template` must have at least one event"),
        ({"template": [RandomisedResponse.symmetric(1.0)]}, "pass it as `fixed`"),
    ],
)
def test_an_impossible_request_says_why(change, message):
    request = {"template": GAP_NDP, "epsilon": 1.0, "delta": 1e-5, "relation": "add-remove"}
    template = {**request, **change}.pop("template")
    rest = {k: v for k, v in {**request, **change}.items() if k != "template"}
    with pytest.raises(InputError, match=message):
        calibrate(template, **rest)


@pytest.mark.parametrize(
    "make",
    [lambda: PoissonGaussian(1.0, 1.2, 10), lambda: PoissonGaussian(1.0, 0.1, 0)],
    ids=["rate over 1", "zero steps"],
)
def test_an_impossible_template_cannot_even_be_written(make):
    with pytest.raises(InputError, match="Got"):
        calibrate([make()], epsilon=1.0, delta=1e-5, relation="add-remove")


@pytest.mark.parametrize("template", [[Gaussian(1.0)], [PoissonGaussian(1.0, 0.1, 10)]])
def test_what_is_spent_already_is_not_there_to_spend(template):
    with pytest.raises(CalibrationError, match="the fixed events alone cost epsilon"):
        calibrate(template, epsilon=1.0, delta=1e-5, relation="add-remove", fixed=[Gaussian(2.0)])


@pytest.mark.parametrize("fixed", [Gaussian(10.0), RandomisedResponse.symmetric(0.5)])
def test_fixed_events_are_charged(fixed):
    request = {"epsilon": 1.0, "delta": 1e-5, "relation": "directed"}
    alone = calibrate([Gaussian(1.0)], **request)
    beside = calibrate([Gaussian(1.0)], fixed=[fixed], **request)
    assert beside.noise_multiplier > alone.noise_multiplier
    assert beside.events[-1] == fixed
    assert_keeps(beside, **request)


def test_where_the_sampling_rate_is_enough_there_is_still_some_noise():
    # One record is seen at all with probability 1e-7, below delta.
    rare = [PoissonGaussian(1.0, sampling_rate=1e-9, steps=100)]
    answer = calibrate(rare, epsilon=1.0, delta=1e-5, relation="add-remove")
    assert answer.noise_multiplier >= LEAST_NOISE
    assert answer.epsilon <= 1.0


def test_a_search_gone_wrong_stops_the_program(monkeypatch):
    monkeypatch.setattr(calibration, "_solve", lambda request: 0.5)
    with pytest.raises(CalibrationError, match="over the budget"):
        calibrate(GAP_NDP, epsilon=1.0, delta=1e-5, relation="add-remove", cache=False)
    monkeypatch.setattr(calibration, "_solve_gaussian", lambda request: 0.0)
    with pytest.raises(CalibrationError, match="nothing is released"):
        calibrate([Gaussian(1.0)], epsilon=1.0, delta=1e-5, relation="directed")


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    root=st.floats(-2, 5).map(lambda x: 10**x),
    power=st.floats(0.3, 6.0),
    start=st.floats(-2, 4).map(lambda x: 10**x),
)
def test_the_search_finds_any_falling_curve_from_anywhere(root, power, start):
    found = search_multiplier(lambda m: (root / m) ** power, 1.0, start=start)
    assert 0.995 <= (root / found) ** power <= 1.0


def test_the_search_stays_on_the_cheap_side_of_a_jump_and_gives_up_on_a_wall():
    assert 3.0 <= search_multiplier(lambda m: 5.0 if m < 3 else 0.1, 1.0) < 3.01
    assert 3.0 <= search_multiplier(lambda m: math.inf if m < 3 else 0.0, 1.0) < 3.01
    assert search_multiplier(lambda m: 2.0, 1.0) is None


def calibrate_gap(**change):
    request = {"epsilon": 4.0, "delta": 1e-5, "relation": "add-remove", **change}
    return calibrate([PoissonGaussian(1.0, 0.05, 50), Gaussian(1.0, count=2)], **request)


def only_file(folder):
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """An answer that was searched once, and the name and content of its file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(calibration, "_REMEMBERED", {})
        answer = calibrate_gap()
        path = only_file(Path(os.environ["XDG_CACHE_HOME"]) / "gapgnn" / "calibration")
        return answer, path.name, path.read_text()


@pytest.fixture
def cached(answered, folder):
    """That answer and its file, on disk as if another process had searched it."""
    answer, name, content = answered
    calibration.write_answer(Path(name).stem, answer.noise_multiplier)
    assert only_file(folder).read_text() == content
    return answer, only_file(folder)


def rewrite(path, noise_multiplier):
    """Replace a cached answer and make its digest right again, as an attacker would."""
    content = json.loads(path.read_text())
    content["noise_multiplier"] = noise_multiplier
    content["digest"] = calibration._digest(content["key"], noise_multiplier)
    path.write_text(json.dumps(content))


def forget():
    """Do as if this were another process."""
    calibration._REMEMBERED.clear()


def test_a_second_call_in_a_process_is_accounted_without_a_search_or_a_convolution(monkeypatch):
    first = calibrate_gap()
    accounted, real = [], account
    monkeypatch.setattr(
        calibration, "account", lambda *a, **k: accounted.append(a) or real(*a, **k)
    )
    monkeypatch.setattr(calibration, "_solve", lambda request: pytest.fail("searched again"))
    monkeypatch.setattr(pld, "_compose", lambda *a, **k: pytest.fail("composed again"))
    assert calibrate_gap() == first
    assert len(accounted) == 1
    relabelled = [PoissonGaussian(1.0, 0.05, 50, "encoder"), Gaussian(1.0, count=2)]
    again = calibrate(relabelled, epsilon=4.0, delta=1e-5, relation="add-remove")
    assert again.noise_multiplier == first.noise_multiplier
    assert again.events[0].label == "encoder"


def test_what_a_process_remembers_is_bounded(monkeypatch):
    monkeypatch.setattr(calibration, "_MOST_REMEMBERED", 2)
    for epsilon in (3.0, 4.0, 5.0):
        assert calibrate_gap(epsilon=epsilon).epsilon <= epsilon
    assert len(calibration._REMEMBERED) <= 2


def test_another_process_accounts_the_answer_on_disk_once_and_does_not_search(folder, monkeypatch):
    first = calibrate_gap()
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o600
    forget()
    accounted, real = [], account
    monkeypatch.setattr(
        calibration, "account", lambda *a, **k: accounted.append(a) or real(*a, **k)
    )
    monkeypatch.setattr(calibration, "_solve", lambda request: pytest.fail("searched again"))
    assert calibrate_gap() == first
    assert len(accounted) == 1


def test_another_question_has_another_answer(folder):
    calibrate_gap()
    for change in ({"epsilon": 5.0}, {"delta": 1e-6}, {"relation": "replace"}):
        calibrate_gap(**change)
    assert len(list(folder.iterdir())) == 4


# One event of every sort, and another value of each of its fields.
CASES = [
    (Gaussian(1.0, count=2), {"noise_multiplier": 1.5, "count": 3}),
    (Laplace(1.0, count=2), {"noise_multiplier": 1.5, "count": 3}),
    (
        PoissonGaussian(1.0, 0.05, 50),
        {"noise_multiplier": 1.5, "sampling_rate": 0.06, "steps": 51},
    ),
    (
        MixtureOfGaussians(1.0, (0.0, 1.0), (0.9, 0.1), steps=50),
        {
            "noise_multiplier": 1.5,
            "sensitivities": (0.0, 2.0),
            "probabilities": (0.8, 0.2),
            "steps": 51,
        },
    ),
    (
        SubgraphGaussian(1.0, 0.05, (2,), 1, 50, 0.9),
        {
            "noise_multiplier": 1.5,
            "sampling_rate": 0.06,
            "reach": (3,),
            "own": 0,
            "steps": 51,
            "keep": 0.8,
        },
    ),
    (RandomisedResponse(0.1, 0.2, count=2), {"drop": 0.11, "add": 0.21, "count": 3}),
    (LabelResponse(3, 0.2, count=2), {"classes": 4, "other": 0.21, "count": 3}),
    (
        PrivateSelection(((Gaussian(2.0),),), 8.0, 40.0, "binomial"),
        {
            "candidates": ((Gaussian(2.5),),),
            "mean": 9.0,
            "shape": 50.0,
            "distribution": "truncated-negative-binomial",
        },
    ),
    (EpsilonDelta(0.5, 1e-6, count=2), {"epsilon": 0.6, "delta": 1e-7, "count": 3}),
]


def question(template, **change):
    asked = {"fixed": (), "epsilon": 4.0, "delta": 1e-5, "relation": "add-remove", **change}
    return calibration._Request(tuple(template), **asked)


def test_every_field_of_every_event_is_part_of_the_question():
    # The sorts of the library; a test may have made others.
    known = {
        name for name, case in events._EVENT_CLASSES.items() if case.__module__ == events.__name__
    }
    assert {type(event).__name__ for event, _ in CASES} == known
    for event, changes in CASES:
        more = {"group": "training", "option": 1} if hasattr(event, "group") else {}
        changes = {**changes, **more}
        assert set(changes) == {field.name for field in fields(event)} - {"label"}
        for name, value in changes.items():
            other = replace(event, **{name: value})
            for one, two in (
                (question([event]), question([other])),
                (question(GAP_NDP, fixed=(event,)), question(GAP_NDP, fixed=(other,))),
            ):
                assert one.key() != two.key(), (event, name)
        renamed = replace(event, label="another")
        assert question([event]).key() == question([renamed]).key()
    names = [type(event).__name__ for event, _ in CASES]
    assert len({question([event]).key() for event, _ in CASES}) == len(names)


def test_every_part_of_a_question_and_of_who_answers_is_part_of_its_name(monkeypatch):
    asked = question([FACEBOOK])
    others = [
        question([FACEBOOK, FACEBOOK]),
        question([FACEBOOK], fixed=(Gaussian(9.0),)),
        question([FACEBOOK], epsilon=4.1),
        question([FACEBOOK], delta=1e-6),
        question([FACEBOOK], relation="replace"),
        # What is fixed is no template, and the other way round.
        question([Gaussian(9.0)], fixed=(FACEBOOK,)),
    ]
    assert {field.name for field in fields(asked)} == {
        *("template", "fixed", "epsilon", "delta", "relation")
    }
    names = [one.key() for one in (asked, *others)]
    assert len(set(names)) == len(names)
    for change in (
        lambda patch: patch.setattr(gapgnn, "__version__", "0.0.0"),
        lambda patch: patch.setattr("importlib.metadata.version", lambda name: "0.0.0"),
        lambda patch: patch.setattr(calibration, "FORMAT", 0),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            assert asked.key() not in names


@pytest.mark.parametrize("remembers", ["process", "disk"])
def test_an_answer_to_another_question_is_never_used(remembers, monkeypatch):
    """Even where the name of a question leaves something out: it is accounted before use."""
    monkeypatch.setattr(calibration._Request, "key", lambda self: "one for all")
    steps, hops = PoissonGaussian(1.0, 0.05, 50), Gaussian(1.0, count=2)
    base = {"epsilon": 4.0, "delta": 1e-5, "relation": "add-remove"}
    questions = [
        ([steps, hops], base),
        ([replace(steps, steps=100), hops], base),
        ([steps, replace(hops, count=6)], base),
        ([steps, hops], {**base, "epsilon": 3.95}),
        ([steps, hops], {**base, "fixed": [Gaussian(2.0)]}),
    ]
    for template, request in questions:
        if remembers == "disk":
            forget()
        answer = calibrate(template, **request)
        kept = {name: request[name] for name in ("epsilon", "delta", "relation")}
        assert_keeps(answer, **kept)


def test_a_damaged_entry_is_ignored_and_rewritten(cached):
    first, path = cached
    whole = path.read_text()
    changed = whole.replace(str(first.noise_multiplier), str(first.noise_multiplier / 2))
    for content in ("", "{", "[]", "null", '{"key": 1}', "\x00" * 50, whole[:-9], changed):
        path.write_text(content)
        assert calibration.read_answer(path.stem) is None
    assert calibrate_gap() == first
    assert path.read_text() == whole


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf, "1", None, True, [1.0]])
def test_an_entry_that_cannot_be_true_is_ignored(multiplier):
    calibration.write_answer("honest", 1.0)
    assert calibration.read_answer("honest") == 1.0
    calibration.write_answer("absurd", multiplier)
    assert calibration.read_answer("absurd") is None


ALTERED = [1e-300, 0.9, 0.999, 1.01, 100.0]
ALTERED += [
    pytest.param(s, marks=pytest.mark.slow) for s in (1e-4, 0.5, 0.8, 0.95, 0.98, 1.5, 1e300)
]


@pytest.mark.parametrize("share", ALTERED)
def test_no_altered_entry_weakens_the_noise_or_wastes_the_budget(cached, share):
    first, path = cached
    whole = path.read_text()
    rewrite(path, first.noise_multiplier * share)
    answer = calibrate_gap()
    assert_keeps(answer, epsilon=4.0, delta=1e-5, relation="add-remove")
    # What was dropped is found and written again.
    assert (answer, path.read_text()) == (first, whole)


@pytest.mark.parametrize(
    "share", [0.9999, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.9, 0.93, 0.95, 0.98))]
)
def test_asked_for_eight_an_altered_entry_never_costs_more(folder, share):
    request = {"epsilon": 8.0, "delta": 1e-5, "relation": "add-remove"}
    first = calibrate(GAP_NDP, **request)
    rewrite(only_file(folder), first.noise_multiplier * share)
    forget()
    answer = calibrate(GAP_NDP, **request)
    assert account(answer.events, 1e-5, relation="add-remove").epsilon <= 8.0
    assert_keeps(answer, **request)


def test_where_the_sampling_rate_is_enough_the_answer_on_disk_is_used(folder, monkeypatch):
    rare = [PoissonGaussian(1.0, sampling_rate=1e-9, steps=100)]
    request = {"epsilon": 1.0, "delta": 1e-5, "relation": "add-remove"}
    first = calibrate(rare, **request)
    assert first.noise_multiplier == LEAST_NOISE
    forget()
    monkeypatch.setattr(calibration, "_solve", lambda request: pytest.fail("searched again"))
    assert calibrate(rare, **request) == first


def test_an_entry_that_others_may_write_is_ignored(cached):
    first, path = cached
    assert calibration.read_answer(path.stem) == first.noise_multiplier
    path.chmod(0o666)
    assert calibration.read_answer(path.stem) is None


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibrate_gap().epsilon <= 4.0


def test_the_cache_can_be_turned_off(folder):
    calibrate_gap(cache=False)
    assert not os.path.exists(folder)
    assert calibration._REMEMBERED == {}
