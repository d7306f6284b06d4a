"""Weighted edges and several edge types: price, promise, and what a saved model asks for."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from methodgraphs import small_graph
from sklearn.base import clone

from gapgnn import (
    GAP,
    MLP,
    GraphSAGE,
    LabelGAP,
    NodeLabelGAP,
    PrivateSession,
    ProGAP,
    load_model,
)
from gapgnn.audits.model import audit_model
from gapgnn.errors import InputError, PrivacyError
from gapgnn.graph import csr
from gapgnn.graph.store import open_store, store_graph
from gapgnn.graph.transforms import induced, join_edge_types, random_split
from gapgnn.methods.hops import blocks_of, reconciled
from gapgnn.methods.label_gap import edge_level
from gapgnn.privacy.accounting import Event, account
from gapgnn.privacy.card import guarantee_sentence
from gapgnn.privacy.checkpoint import Checkpoint
from gapgnn.privacy.session import SessionOptions
from gapgnn.rng import NoiseKey


def dealt(graph, *, names=("calls", "visits"), weights=False, seed=0):
    """Distribute the edges of a graph over types."""
    sources, targets = csr.sources(graph.indptr, np.int64), graph.indices
    once = sources < targets
    sources, targets = sources[once], targets[once]
    rng = np.random.default_rng(seed)
    type_of = rng.integers(len(names), size=len(sources))
    types = {}
    for place, name in enumerate(names):
        mine = type_of == place
        indptr, indices = csr.build(sources[mine], targets[mine], graph.num_nodes, symmetric=True)
        types[name] = graph._replace(indptr=indptr, indices=indices)
        if weights:
            types[name] = weighed(types[name])
    return join_edge_types(types)


def weighed(graph, bounds=(0.0, 50.0)):
    """Give every edge a weight that both of its directions share."""
    sources = csr.sources(graph.indptr, np.int64)
    low, high = np.minimum(sources, graph.indices), np.maximum(sources, graph.indices)
    return graph._replace(weights=((low * 7 + high * 13) % 257) / 256, weight_bounds=bounds)


@pytest.fixture(scope="module")
def plain():
    return small_graph()


@pytest.fixture(scope="module")
def types(plain):
    return dealt(plain)


def gap(ledger, method=LabelGAP, **options):
    return method(**{"epochs": 2, "ledger": ledger.path, "device": "cpu", **options})


def hop_events(model):
    return sum(event["count"] for event in model.card_.events if event["event"] == "Gaussian")


@pytest.mark.parametrize(
    ("method", "options", "events", "sums"),
    [
        (LabelGAP, {}, 8, 12),
        (LabelGAP, {"edge_types": "each"}, 8, 8),
        pytest.param(GAP, {}, 2, 4, marks=pytest.mark.slow),
        pytest.param(GAP, {"edge_types": "each"}, 4, 4, marks=pytest.mark.slow),
        (ProGAP, {"hops": 2}, 4, 6),
        (NodeLabelGAP, {"hop_share": 0.5}, 4, 4),
        (GAP, {"level": "node", "max_degree": 5, "hops": 1}, 2, 2),
        (GAP, {"level": "node", "max_degree": 5, "relation": "replace"}, 4, 4),
        (ProGAP, {"level": "node", "max_degree": 5, "hops": 2}, 4, 4),
    ],
)
def test_every_hop_of_every_type_is_charged_once(
    types, ledger, spied, method, options, events, sums
):
    model = gap(ledger, method, **options).fit(types)
    assert hop_events(model) == events
    drawn = {path for _, path in spied}
    assert len(drawn) == sums, "one noisy sum per hop and edge type, and of their union"
    card = model.card_
    priced = account(
        [Event.from_dict(dict(e)) for e in card.events], card.delta, relation=card.relation
    )
    assert priced.epsilon <= 1.0
    (charge,) = ledger.entries()
    assert sum(e["count"] for e in charge.events if e["event"] == "Gaussian") == events


def three_types(plain):
    return dealt(plain, names=("calls", "letters", "visits"))


@pytest.mark.parametrize(
    ("method", "options", "events"),
    [
        (LabelGAP, {}, 2),
        (LabelGAP, {"edge_types": "each"}, 3),
        (GAP, {}, 1),
        (LabelGAP, {"level": "none"}, None),
    ],
)
def test_more_types_take_no_more_noise_unless_each_is_hidden(
    plain, ledger, method, options, events
):
    several = gap(ledger, method, **options).fit(three_types(plain))
    # With one edge type there is nothing to choose.
    alone = {k: v for k, v in options.items() if k != "edge_types"}
    one = gap(ledger, method, **alone).fit(plain)
    if events is None:
        assert several.noise_multiplier_ is None
        return
    growth = several.noise_multiplier_ / one.noise_multiplier_
    assert growth == pytest.approx(events**0.5, rel=0.01)


def test_types_and_their_total_are_made_to_agree():
    """Every type and the sum then have a variance of M / (M + 1): no linear mean has less."""
    generator = torch.Generator().manual_seed(0)
    *types, total = torch.randn(4, 200_000, generator=generator)
    found, together = reconciled(types, total)
    assert torch.allclose(torch.stack(found).sum(dim=0), together, atol=1e-5)
    for one in (*found, together):
        assert float(one.var()) == pytest.approx(3 / 4, rel=0.02)
    # The best mean of a sum and a total of variances 3 and 1.
    assert torch.allclose(together, sum(types) / 4 + 3 / 4 * total, atol=1e-5)


@pytest.mark.parametrize("has_total", [False, True])
def test_networks_read_types_and_their_sum_in_units_of_noise(has_total):
    noise = torch.randn(1, 100_000, 2 * (2 + has_total), generator=torch.manual_seed(0))
    blocks = blocks_of(noise, 2, with_union=has_total)
    assert [tuple(block.shape) for block in blocks] == [(1, 100_000, 2)] * 3
    assert [float(block.std()) for block in blocks] == pytest.approx([1.0] * 3, rel=0.02)
    exact = torch.tensor([[[1.0, 2.0, 3.0, 4.0, *([4.0, 6.0] * has_total)]]])
    *each, together = blocks_of(exact, 2, with_union=has_total)
    assert torch.allclose(together / together[..., :1], torch.tensor([1.0, 1.5]))
    # Where nothing is noise types and total agree already.
    assert torch.allclose(each[0] / each[0][..., :1], torch.tensor([1.0, 2.0]))


def test_the_total_is_a_part_of_what_is_released_and_kept(types, ledger, tmp_path):
    model = gap(ledger, insecure_noise_seed=3).fit(types)
    width = types.num_classes - 1
    assert [hop.shape[1] for hop in model.releases_.training().hops[1:]] == [3 * width] * 4
    separate = gap(ledger, edge_types="each").fit(types)
    assert [hop.shape[1] for hop in separate.releases_.training().hops[1:]] == [2 * width] * 4
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model", ledger=ledger.path, device="cpu")
    for first, second in zip(
        model.releases_.training().hops, loaded.releases_.training().hops, strict=True
    ):
        assert torch.equal(first, second)
    assert loaded.space_needed(types) > separate.space_needed(types)


def test_what_is_promised_for_links_of_every_type_is_on_the_card(plain, ledger):
    """Three types move by 3 and their total by 9, where 1 and 1 were charged: six times."""
    graph = three_types(plain)
    for method, growth in ((LabelGAP, 6), (GAP, 3)):
        card = gap(ledger, method).fit(graph).card_
        events = [Event.from_dict(dict(e)) for e in card.events]
        whole = [event.scaled(growth**-0.5) for event in events]
        price = account(whole, card.delta, relation=card.relation).epsilon
        (line,) = (line for line in card.not_covered if "several edge types at once" in line)
        assert "connected by every type (calls, letters, visits)" in line
        assert float(line.rstrip(".").split()[-1]) == pytest.approx(price, abs=0.01)
        assert price > 1.5
    several = gap(ledger, relation="3-edges").fit(graph).card_
    (line,) = (line for line in several.not_covered if "of every type at once" in line)
    assert "Epsilon for 3 of each type (calls, letters, visits) is" in line
    each = gap(ledger, edge_types="each").fit(graph).card_
    assert not any("at once: epsilon" in line for line in each.not_covered)


def test_what_auto_is_follows_the_level(types, ledger):
    for method in (GAP, ProGAP, LabelGAP):
        model = method()
        assert model.get_params()["edge_types"] == clone(model).edge_types == "auto"
    assert gap(ledger, level="none").fit(types).card_.protects == "any"
    found = [
        gap(ledger, method, edge_types=word, **options).fit(types).card_.protects
        for method, word, options in (
            (LabelGAP, "auto", {}),
            (LabelGAP, "each", {}),
            (GAP, "auto", {"level": "node", "max_degree": 5}),
            (GAP, "each", {"level": "node", "max_degree": 5}),
        )
    ]
    assert found == ["any", "each", "each", "each"]


def test_the_card_says_what_is_hidden(types, ledger):
    each, one, node = (
        gap(ledger, method, **options).fit(types).card_
        for method, options in (
            (LabelGAP, {"edge_types": "each"}),
            (LabelGAP, {}),
            (GAP, {"level": "node", "max_degree": 5}),
        )
    )
    assert "of each edge type at once (calls, visits)" in guarantee_sentence(each)
    assert "of one edge type (calls, visits), whichever, are in" in guarantee_sentence(one)
    assert "adjacency lists of all edge types (calls, visits)" in guarantee_sentence(node)
    assert "One edge of each type (calls, visits), all at once." in each.covered
    assert any("several edge types at once" in line for line in one.not_covered)
    assert (each.edge_types, each.protects, one.protects) == (("calls", "visits"), "each", "any")
    assert "| edge types | calls, visits |" in each.to_markdown()
    for card in (each, one, node):
        assert type(card).from_json(card.to_json()) == card
    assert ("edge types", "calls, visits: given by name") in each.public


def test_any_is_refused_at_node_level(types, ledger):
    with pytest.raises(InputError, match=r"^`edge_types` must be auto or each at level node: a"):
        gap(ledger, GAP, level="node", edge_types="any").fit(types)
    assert not ledger.entries()


def test_weights_are_on_the_card_and_change_no_price(plain, ledger):
    with_them, without = (gap(ledger).fit(graph) for graph in (weighed(plain), plain))
    assert with_them.noise_multiplier_ == without.noise_multiplier_
    assert any("amount of an edge" in line for line in with_them.card_.covered)
    assert ("bounds of the amounts of edges", "0 to 50: declared") in with_them.card_.public
    assert not any("amount" in line for line in without.card_.covered)


@pytest.mark.parametrize("level", ["none", "edge", "node"])
def test_sage_refuses_weights_and_types_before_a_charge(plain, types, ledger, level):
    sage = GraphSAGE(level=level, epochs=1, ledger=ledger.path)
    with pytest.raises(InputError, match=r"must have one edge type for sage\. Got calls, vis"):
        sage.fit(types)
    with pytest.raises(InputError, match="must have edges without weights for sage"):
        sage.fit(weighed(plain))
    assert not ledger.entries()


def test_mlp_reads_no_edges_of_any_type(plain, types, ledger):
    first, second = (
        MLP(epochs=2, ledger=ledger.path).fit(graph).predict(graph) for graph in (plain, types)
    )
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        # A mixing weight that noise may set to 0 would leave the second graph unread, and free.
        (LabelGAP, {"folds": 0}),
        (LabelGAP, {"folds": 0, "edge_types": "each"}),
        pytest.param(GAP, {}, marks=pytest.mark.slow),
        (ProGAP, {"hops": 2}),
        (LabelGAP, {"folds": 0, "level": "none"}),
    ],
)
def test_a_saved_model_predicts_as_before_and_wants_the_same_types(
    plain, types, ledger, tmp_path, method, options
):
    first, second = (
        random_split(induced(types, half), seed=0)
        for half in (np.arange(types.num_nodes) % 2 == rest for rest in (0, 1))
    )
    model = gap(ledger, method, **options).fit(first)
    model.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    edges = {"edge_types": ["calls", "visits"], "bounds": [None, None], "directed": False}
    assert config["edges"] == edges
    loaded = load_model(tmp_path / "model", ledger=ledger.path, device="cpu")
    assert np.array_equal(loaded.predict_proba(first), model.predict_proba(first))
    before = len(ledger.entries())
    assert loaded.predict(second).shape == (second.num_nodes,)
    entries = ledger.entries()
    if model.level != "none":
        assert len(entries) == before + 1
        assert entries[-1].events[0]["count"] == hop_events(model)
    swapped = join_edge_types({"visits": _arcs(second, 1), "calls": _arcs(second, 0)})
    assert np.array_equal(loaded.predict_proba(swapped), loaded.predict_proba(second))
    for graph, message in (
        (plain, r"the edge types of training, calls, visits\. Got a single one\."),
        (dealt(plain, names=("calls", "walks")), "Got calls, walks"),
        (dealt(plain, weights=True), r"bounds of training, none\. Got 0 to 50"),
    ):
        with pytest.raises(InputError, match=message):
            loaded.predict(graph)


def _arcs(graph, place):
    """Return one type of a graph with all nodes' features again."""
    one_type = graph.edge_types[place]
    return graph._replace(
        indptr=one_type.indptr,
        indices=one_type.indices,
        edge_type="links",
        more_edge_types=(),
        weights=one_type.weights,
    )


def test_a_model_on_a_store_of_several_types_is_the_one_in_memory(plain, ledger, tmp_path):
    graph = dealt(plain, weights=True)
    store_graph(graph, tmp_path / "store", parts=3)
    stored = random_split(open_store(tmp_path / "store"), seed=0)
    here, there = (
        gap(ledger, insecure_noise_seed=3).fit(one) for one in (random_split(graph, seed=0), stored)
    )
    for first, second in zip(
        here.releases_.training().hops, there.releases_.training().hops, strict=True
    ):
        assert torch.equal(first, second)
    assert "indices" not in stored.__dict__


def test_a_killed_run_goes_on_along_every_type(types, ledger, tmp_path, monkeypatch):
    class KillError(Exception):
        pass

    undisturbed = gap(ledger, insecure_noise_seed=5).fit(types)
    for kill in (1, 3, 6):
        checkpoint = Checkpoint(tmp_path / f"{kill}", ledger=ledger.path)
        calls = [0]
        real = Checkpoint._keep

        def dying(self, name, tensors, calls=calls, kill=kill, real=real):
            if name.startswith("hop"):
                calls[0] += 1
                if calls[0] == kill:
                    raise KillError
            real(self, name, tensors)

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "_keep", dying)
            with pytest.raises(KillError):
                gap(ledger, insecure_noise_seed=5).fit(types, checkpoint=checkpoint)
        checkpoint.close()
        again = Checkpoint(tmp_path / f"{kill}", ledger=ledger.path, resume=True)
        resumed = gap(ledger, insecure_noise_seed=5).fit(types, checkpoint=again)
        again.close()
        for first, second in zip(
            undisturbed.releases_.training().hops, resumed.releases_.training().hops, strict=True
        ):
            assert torch.equal(first, second)
    assert len(ledger.entries()) == 4


def test_a_fitted_model_of_several_types_is_audited_as_such(types, ledger):
    for method, options, expected in (
        (GAP, {}, ("any", False, 2)),
        (GAP, {"edge_types": "each"}, ("each", False, 2)),
        (LabelGAP, {}, ("any", True, 4)),
    ):
        model = gap(ledger, method, epsilon=4.0, **options).fit(types)
        found = audit_model(model, trials=400)
        assert all(one["holds"] for one in found)
        assert found[0]["edge_types"] == 2
        assert (found[0]["protects"], found[0]["total"], found[0]["hops"]) == expected


def test_a_fitted_model_whose_total_nobody_paid_for_is_found(types, ledger, monkeypatch):
    monkeypatch.setattr(edge_level, "events_per_hop", lambda *args, **options: 1)
    with pytest.raises(PrivacyError, match="every hop must be paid for"):
        gap(ledger, epsilon=4.0).fit(types)
    # And where nobody asked before the release, its audit finds it.
    monkeypatch.setattr(PrivateSession, "_check_paid", lambda self: None)
    model = gap(ledger, epsilon=4.0).fit(types)
    assert not audit_model(model, trials=400)[0]["holds"]


@pytest.mark.parametrize("method", [GAP, LabelGAP, ProGAP])
def test_an_edge_of_each_type_is_paid_for_in_every_type(types, ledger, monkeypatch, method):
    original = method.plan

    def for_one_type(self, facts):
        plan = original(self, facts)
        (event,) = plan.template
        hops = sum(planned.count for planned in plan.hops.values())
        return replace(plan, template=(replace(event, count=hops),))

    monkeypatch.setattr(method, "plan", for_one_type)
    with pytest.raises(PrivacyError, match="every hop must be paid for"):
        gap(ledger, method, epsilon=4.0, edge_types="each").fit(types)
    assert ledger.entries() == []


def test_a_union_is_not_released_where_an_edge_of_each_type_is_protected(types, ledger):
    """One edge of each type may move a row of the union as often as there are types."""
    plan = gap(ledger, GAP, epsilon=4.0, edge_types="each", hops=1).plan_for(types)
    hops = {name: replace(one, with_union=True) for name, one in plan.hops.items()}
    options = SessionOptions([NoiseKey.fresh()], ledger=ledger.path)
    with pytest.raises(PrivacyError, match="without the union"):
        PrivateSession(replace(plan, hops=hops), types, options).open()
    assert ledger.entries() == []


def test_two_types_that_say_the_same_are_read_together(plain, ledger):
    """Without noise, a model on two halves of the edges is as good as on all of them."""
    whole, halves = (
        gap(ledger, level="none", epochs=30, seed=1).fit(graph).repeat_scores_[0]
        for graph in (plain, dealt(plain))
    )
    assert halves > whole - 0.1
