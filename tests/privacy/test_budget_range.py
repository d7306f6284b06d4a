"""One accepted range of budgets, asked everywhere before a charge, and no spend that vanishes."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapgnn import (
    GAP,
    MLP,
    Graph,
    GraphSAGE,
    LabelGAP,
    Ledger,
    NeighborVote,
    NodeLabelGAP,
    ProGAP,
)
from gapgnn.cli.main import main
from gapgnn.errors import BudgetExceededError, GapgnnError, InputError, PrivacyError
from gapgnn.graph import random_split
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy import (
    LEAST_EPSILON,
    MOST_EPSILON,
    Guarantee,
    Undirected,
    check_delta,
    check_price,
    parse_relation,
)
from gapgnn.privacy.accounting import (
    Event,
    Gaussian,
    Laplace,
    PoissonGaussian,
    RandomisedResponse,
    calibrate,
    gaussian_epsilon,
    gaussian_shift,
    renyi_curve,
)
from gapgnn.privacy.ledger import People, forecast_fits
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.filters import Filter, Spend

OUTSIDE = [1e-300, 5e-324, 1e-7, 1.1e5, 1e9, 1e308]
OUTSIDE_DELTA = [1e-300, 5e-324, 1e-21, 0.95]
AUDITS = [
    "aggregation",
    "dpsgd",
    "sampler",
    "edges",
    "subgraphs",
    "messages",
    "labels",
    "mean-degree",
]
PEOPLE = People(np.arange(30), "5f" * 32)
STATED: dict[str, Any] = {"level": "edge", "relation": "undirected"}
PROMISED: dict[str, Any] = {"relation": Undirected()}


METHODS = (GAP, ProGAP, LabelGAP, NodeLabelGAP, GraphSAGE, MLP, NeighborVote)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_split(social_graph(num_nodes=120, mean_degree=8, num_classes=3), seed=0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.init(tmp_path / "ledger.sqlite")


@pytest.mark.parametrize("epsilon", OUTSIDE)
def test_a_budget_outside_the_range_is_refused_everywhere_before_a_charge(
    epsilon: float, graph: Graph, ledger: Ledger
) -> None:
    def estimator(method: type) -> None:
        level = "node" if method in (MLP, NeighborVote, NodeLabelGAP) else "edge"
        method(level=level, epsilon=epsilon, ledger=ledger.path).fit(graph)

    ways = [
        *(lambda method=method: estimator(method) for method in METHODS),
        lambda: calibrate([Gaussian(1.0)], epsilon=epsilon, delta=1e-5, relation="directed"),
        lambda: calibrate(
            [PoissonGaussian(1.0, 0.1, 5)], epsilon=epsilon, delta=1e-5, relation="add-remove"
        ),
        lambda: ledger.grant("people", PEOPLE, **STATED, epsilon=epsilon, delta=1e-5),
        lambda: ledger.charge(
            PEOPLE, **STATED, epsilon=epsilon, delta=0.0, events=[], purpose="fit"
        ),
    ]
    for way in ways:
        with pytest.raises(InputError, match=r"`epsilon` must be (0, or )?at least 1e-06 and at"):
            way()
    ledger.grant("people", PEOPLE, **STATED, epsilon=1.0, delta=1e-5)
    with pytest.raises(InputError, match="`epsilon` must be at least 1e-06 and at most 100000"):
        forecast_fits(ledger, "people", epsilon=epsilon)
    node = {"level": "node", "relation": "add-remove"}
    ledger.grant("people", PEOPLE, **node, epsilon=1.0, delta=1e-5, composition="sum")
    with pytest.raises(InputError, match="`epsilon` must be at least 1e-06 and at most 100000"):
        forecast_fits(ledger, "people", epsilon=epsilon, level="node", delta=1e-8)
    assert ledger.entries() == []


@pytest.mark.parametrize("delta", OUTSIDE_DELTA)
def test_a_delta_outside_the_range_is_refused_everywhere_before_a_charge(
    delta: float, graph: Graph, ledger: Ledger
) -> None:
    ways = [
        lambda: GAP(delta=delta, ledger=ledger.path).fit(graph),
        lambda: LabelGAP(delta=delta, ledger=ledger.path).fit(graph),
        lambda: NodeLabelGAP(delta=delta, ledger=ledger.path).fit(graph),
        lambda: MLP(level="node", delta=delta, ledger=ledger.path).fit(graph),
        lambda: calibrate([Gaussian(1.0)], epsilon=1.0, delta=delta, relation="directed"),
        lambda: ledger.grant("people", PEOPLE, **STATED, epsilon=1.0, delta=delta),
        lambda: ledger.charge(PEOPLE, **STATED, epsilon=1.0, delta=delta, events=[], purpose="fit"),
    ]
    for way in ways:
        with pytest.raises(InputError, match=r"`delta` must be (0, or )?at least 1e-20"):
            way()
    assert ledger.entries() == []


@pytest.mark.parametrize("epsilon", ["1e-300", "1e9", "1e308"])
def test_the_command_line_refuses_it_in_one_line_with_exit_2(
    epsilon: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "ledger.sqlite")
    nodes = tmp_path / "people.csv"
    nodes.write_text("id\n1\n2\n3\n")
    about = ["--level", "edge", "--epsilon", epsilon, "--delta", "1e-5"]
    for words in (
        ["train", "gap", "--dataset", "cora", "--level", "edge", "--epsilon", epsilon],
        ["noise", *about],
        ["ledger", "grant", "people", *about, "--nodes", str(nodes), "--ledger", path],
        *(["audit", one, "--epsilon", epsilon] for one in AUDITS),
    ):
        with pytest.raises(InputError) as raised:
            main(words)
        text = str(raised.value)
        assert "must be at least 1e-06 and at most 100000" in text, words
        assert "\n" not in text
    assert capsys.readouterr().out == ""
    assert not Path(path).exists()


def test_an_audit_of_less_noise_than_the_grid_carries_is_refused_and_not_called_broken() -> None:
    with pytest.raises(InputError, match="`--epsilon` must be above 0 and at most 10240"):
        main(["audit", "mean-degree", "--epsilon", "99999"])


@pytest.mark.parametrize("epsilon", [LEAST_EPSILON, MOST_EPSILON])
@pytest.mark.parametrize("delta", [1e-20, 1e-10, 0.9])
def test_at_the_ends_of_the_range_the_curve_is_inverted_on_the_safe_side(
    epsilon: float, delta: float
) -> None:
    check_delta(delta)
    shift = gaussian_shift(epsilon, delta)
    assert gaussian_epsilon(shift, delta) <= epsilon
    assert gaussian_epsilon(shift * (1 + 1e-3), delta) > epsilon
    found = calibrate([Gaussian(1.0, count=2)], epsilon=epsilon, delta=delta, relation="directed")
    assert 0.995 * epsilon <= found.epsilon <= epsilon


def test_a_pure_release_that_costs_more_than_a_tiny_budget_is_refused(graph: Graph) -> None:
    with pytest.raises(PrivacyError, match="must cost at most epsilon 1e-06"):
        Guarantee.pure(graph, [Laplace(1 / (1e-6 + 5e-15))], **PROMISED, epsilon=1e-6, delta=0.0)


@pytest.mark.parametrize("noise", [1e60, 1e30])
def test_a_release_that_costs_next_to_nothing_is_stated_at_the_least_epsilon(
    noise: float, graph: Graph
) -> None:
    found = Guarantee.of_events(
        graph, [Laplace(noise)], **PROMISED, delta=0.0, noise_multiplier=None
    )
    assert found.epsilon == LEAST_EPSILON
    assert check_price(found.epsilon) == LEAST_EPSILON


def test_a_release_with_next_to_no_noise_is_refused_before_a_charge(graph: Graph) -> None:
    with pytest.raises(PrivacyError, match="an epsilon of at most 100000"):
        Guarantee.of_events(graph, [Gaussian(1e-3)], **PROMISED, delta=1e-5, noise_multiplier=1e-3)


def test_more_noise_than_can_be_counted_is_no_event() -> None:
    with pytest.raises(InputError, match="`noise_multiplier` must be at most 1e\\+100"):
        Gaussian(1e200)


def spend(event: Event, *, count: int, relation: str = "undirected") -> Spend:
    written = json.dumps([event.to_dict()])
    return Spend(parse_relation(relation), Amount.of(LEAST_EPSILON, 1e-12), count, written)


@pytest.mark.parametrize(
    ("rule", "relation", "large", "tiny"),
    [
        ("gaussian", "undirected", Gaussian(4.0), Gaussian(1e12)),
        ("renyi", "add-remove", Laplace(4.0), Laplace(1e12)),
        ("renyi", "add-remove", Laplace(4.0), RandomisedResponse.symmetric(1e-10)),
        ("renyi", "add-remove", Laplace(4.0), PoissonGaussian(1e3, 1e-9, 1)),
    ],
    ids=str,
)
def test_no_charge_vanishes_beside_larger_ones(
    rule: str, relation: str, large: Event, tiny: Event
) -> None:
    """A budget of 1, a large charge and a great many tiny ones, one at a time and at once."""
    level = "edge" if relation == "undirected" else "node"
    budget = Filter.granted(rule, level, parse_relation(relation), Amount.of(1.0, 1e-5))
    known = spend(large, count=1, relation=relation)
    before = budget._used([known])
    one = budget._used([spend(tiny, count=1, relation=relation)])
    assert one > 0
    assert budget._used([known, spend(tiny, count=1, relation=relation)]) == before + one
    # Apart they come to what they come to together, and in the end nothing more fits.
    singly = [spend(tiny, count=1, relation=relation)] * 1000
    assert budget._used([known, *singly]) == before + 1000 * one
    room = (Fraction(budget.room) - before) / one
    assert budget.allows([known, spend(tiny, count=math.floor(room), relation=relation)])
    assert not budget.allows([known, spend(tiny, count=math.floor(room) + 1, relation=relation)])


def test_many_tiny_charges_fill_a_budget_of_one_exactly(ledger: Ledger) -> None:
    ledger.grant("people", PEOPLE, **STATED, epsilon=1.0, delta=1e-5, composition="sum")
    priced = {**STATED, "delta": 0.0, "events": [], "purpose": "fit"}
    ledger.charge(PEOPLE, **priced, epsilon=0.9)
    ledger.charge(PEOPLE, **priced, epsilon=1e-6, count=99_999)
    ledger.charge(PEOPLE, **priced, epsilon=1e-6)
    for epsilon in (1e-6, 1e-5):
        with pytest.raises(BudgetExceededError, match="has nothing left"):
            ledger.charge(PEOPLE, **priced, epsilon=epsilon)
    (budget,) = ledger.summary()
    assert (budget.spent_epsilon, budget.left_epsilon) == (1.0, 0.0)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-9, 1e-12])
def test_the_renyi_price_of_little_is_never_below_the_truth(epsilon: float) -> None:
    """Laplace noise and a random bit, by arithmetic with 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 60
    e, response = mpmath.mpf(epsilon), RandomisedResponse.symmetric(epsilon)
    bit = mpmath.mpf(response.drop)
    for order in (1.5, 8.0, 64.0):
        a = mpmath.mpf(order)
        laplace = a * mpmath.exp((a - 1) * e) + (a - 1) * mpmath.exp(-a * e)
        flipped = bit**a * (1 - bit) ** (1 - a) + (1 - bit) ** a * bit ** (1 - a)
        pairs = [
            (Laplace(1 / epsilon), laplace / (2 * a - 1)),
            (response, flipped),
        ]
        for event, inside in pairs:
            exact = mpmath.log(inside) / (a - 1)
            found = float(renyi_curve([event], relation="directed", orders=np.array([order]))[0])
            assert found >= exact * (1 - mpmath.mpf("1e-9")), (event, order)
            assert found <= float(exact) * 5 + 1e-13


@pytest.mark.parametrize(
    "way",
    [
        {"method": LabelGAP, "level": "edge", "epsilon": 1e-6, "delta": 1e-9},
        {"method": NodeLabelGAP, "level": "node", "epsilon": 1e-6, "delta": 1e-9},
        {"method": GAP, "level": "edge", "epsilon": 1e-6, "delta": 1e-9},
        {"method": GAP, "level": "node", "epsilon": 1e-6, "delta": 1e-9},
        {"method": ProGAP, "level": "node", "epsilon": 1e-6, "delta": 1e-9},
        {"method": MLP, "level": "node", "epsilon": 1e-6, "delta": 1e-9},
        {"method": GraphSAGE, "level": "node", "epsilon": 1e-6, "delta": 1e-9},
        {"method": GraphSAGE, "level": "edge", "epsilon": 1e-6},
        {"method": GraphSAGE, "level": "edge", "epsilon": 690.0 * 20},
    ],
    ids=lambda way: f"{way['method'].__name__} {way['level']} {way['epsilon']}",
)
def test_noise_beyond_the_safe_grid_is_refused_before_the_charge(
    way: dict[str, Any], graph: Graph, ledger: Ledger
) -> None:
    options = dict(way)
    model = options.pop("method")(**options, ledger=ledger.path)
    with pytest.raises(GapgnnError):
        model.fit(graph)
    assert ledger.entries() == []


@pytest.mark.parametrize(
    "way", [{"epsilon": 3e-4, "delta": 0.01}, {"train_size": 20_000_000}], ids=str
)
def test_the_mean_degree_is_released_for_tiny_budgets_and_many_people(
    way: dict[str, Any], graph: Graph, ledger: Ledger
) -> None:
    model = NodeLabelGAP(epochs=1, ledger=ledger.path, **{"epsilon": 1.0, **way}).fit(graph)
    assert model.card_.epsilon <= way.get("epsilon", 1.0)
    assert "mean out-degree" in [event["label"] for event in model.card_.events]


def test_noise_of_a_prediction_is_checked_before_its_charge(
    graph: Graph, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LabelGAP(level="edge", epsilon=8.0, epochs=1, folds=0, ledger=ledger.path).fit(graph)
    other = graph._replace(ids=graph.ids + 1000)
    with monkeypatch.context() as patch:
        patch.setattr("gapgnn.privacy.mechanisms.noise.MAX_SCALE", 0.01)
        with pytest.raises(PrivacyError, match=r"to lie on the safe grid.*nothing was charged"):
            model.predict(other)
    assert len(ledger.entries()) == 1
    model.predict(other)
    assert len(ledger.entries()) == 2
