"""The audit is itself audited: each planted fault must be found, and found as a broken guarantee.

Every fault is one that public implementations had or that this one could come to have. Trials and
epsilon are such that a fault's bound lies 5 standard deviations or more above the claim, and a
sound bound as far above its share (six to eight runs each). Fresh noise on every prediction is at
3.5, as the trained classifier varies too: its bound is three times the claim.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pipelinecases import tables

from gapgnn import GAP, Graph, LabelGAP, Ledger, NodeLabelGAP
from gapgnn.audits import aggregation as aggregation_audit
from gapgnn.audits import (
    audit_aggregation,
    audit_dpsgd,
    audit_edges,
    audit_messages,
    audit_sampler,
    audit_subgraphs,
)
from gapgnn.audits import edges as edges_audit
from gapgnn.audits import messages as messages_audit
from gapgnn.audits import model as model_audit
from gapgnn.audits import subgraphs as subgraph_audit
from gapgnn.audits.model import audit_prediction
from gapgnn.audits.pipeline import Case, audit_pipeline
from gapgnn.cli.main import main
from gapgnn.errors import CalibrationError, PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.store import StoredGraph
from gapgnn.graph.transforms import join_edge_types, random_split
from gapgnn.methods import graphsage
from gapgnn.methods.label_gap import edge_level
from gapgnn.methods.label_gap.node_votes import OF_OTHERS
from gapgnn.methods.releases import Releases
from gapgnn.privacy import (
    Neighbors,
    OutDegreeNormalized,
    Release,
    Replace,
    Symmetrized,
    UnionOfTypes,
    guarantee,
    observe,
    parse_relation,
)
from gapgnn.privacy.accounting import accountants, calibration, events
from gapgnn.privacy.accounting.events import Gaussian, MixtureOfGaussians
from gapgnn.privacy.dpsgd import ghost
from gapgnn.privacy.dpsgd import step as dpsgd
from gapgnn.privacy.dpsgd import subgraphs as neighbourhoods
from gapgnn.privacy.ledger import People
from gapgnn.privacy.mechanisms import (
    aggregation,
    backends,
    edges,
    hop_mechanisms,
    sums,
)
from gapgnn.privacy.mechanisms.noise import NoiseSource
from gapgnn.privacy.session import PrivateSession
from gapgnn.rng import NoiseKey
from seeded_entropy import same_entropy

pytestmark = pytest.mark.gate

TRIALS = 8_000
# What is found at one level is found at the other; the slow tests say so.
edge_or_node = pytest.mark.parametrize(
    "level", ["edge", pytest.param("node", marks=pytest.mark.slow)]
)
DPSGD = {"epsilon": 2.0, "steps": 5, "sampling_rate": 0.3, "trials": 4_000}


def assert_broken(report) -> None:
    assert not report.holds
    assert report.epsilon_lower_bound > report.epsilon_claimed
    assert "broken" in report.sentence


def assert_counted(report, *names) -> None:
    """The exact checks of these names, and no others, found more than is accounted."""
    assert not report.holds
    assert {check.name for check in report.checks if not check.holds} == set(names)
    assert all(name in report.sentence for name in names)


@functools.cache
def assert_sound(audit, share: float, **options) -> None:
    """Without the fault: the same audit holds, and its bound is worth having. Run once each."""
    with same_entropy(f"{audit.__name__} {options}"):
        report = audit(**options)
    assert report.holds, report.sentence
    assert report.epsilon_lower_bound >= share * report.epsilon_claimed


@pytest.fixture
def halved_rows(monkeypatch):
    original = NoiseSource.gaussian_rows
    monkeypatch.setattr(
        NoiseSource, "gaussian_rows", lambda *args, **options: original(*args, **options) / 2
    )


@pytest.mark.usefixtures("halved_rows")
@pytest.mark.parametrize(
    ("level", "relation"),
    [
        ("edge", "undirected"),
        ("node", "add-remove"),
        pytest.param("edge", "directed", marks=pytest.mark.slow),
        pytest.param("node", "replace", marks=pytest.mark.slow),
    ],
)
def test_halved_noise_on_the_hops(level, relation):
    assert_broken(audit_aggregation(level=level, relation=relation, epsilon=1.0, trials=TRIALS))


def test_sqrt_2_missing_on_an_undirected_graph(monkeypatch):
    monkeypatch.setattr(Neighbors, "bound", staticmethod(lambda relation: 1.0))
    assert_broken(audit_aggregation(relation="undirected", epsilon=4.0, trials=TRIALS))


@pytest.mark.parametrize(
    ("claimed", "used"),
    [("5-edges", "undirected"), pytest.param("5-arcs", "directed", marks=pytest.mark.slow)],
)
def test_noise_for_one_link_where_five_are_claimed(monkeypatch, claimed, used):
    shared = {"relation": claimed, "epsilon": 1.0, "trials": TRIALS}
    bound = Neighbors.bound(parse_relation(used))
    monkeypatch.setattr(Neighbors, "bound", staticmethod(lambda relation: bound))
    report = audit_aggregation(**shared)
    assert_broken(report)
    whats = ("in memory", "on disk")
    assert_counted(report, *(f"how far 5 links of one person move a hop ({w})" for w in whats))


def test_both_directions_at_the_sensitivity_of_one(monkeypatch):
    """An arc that moves two rows, charged as if it moved one."""
    shared = {"relation": "directed", "symmetrised": True, "epsilon": 4.0, "trials": TRIALS}
    assert_sound(audit_aggregation, 0.8, **shared)
    monkeypatch.setattr(Symmetrized, "bound", staticmethod(Neighbors.bound))
    report = audit_aggregation(**shared)
    assert_broken(report)
    places = [f"how far one edge moves a hop ({place})" for place in ("in memory", "on disk")]
    assert_counted(report, *places)


def test_label_messages_in_both_directions_at_the_sensitivity_of_one(monkeypatch):
    shared = {"trials": TRIALS}
    model = LabelGAP(relation="directed", epsilon=4.0, hops=2)
    assert messages_audit._Canaries(model).is_symmetrised
    report = audit_messages(model, **shared)
    assert report.holds
    assert report.epsilon_lower_bound >= 0.8 * report.epsilon_claimed
    monkeypatch.setattr(Symmetrized, "bound", staticmethod(Neighbors.bound))
    assert_broken(audit_messages(model, **shared))


@edge_or_node
def test_the_same_noise_in_two_hops(monkeypatch, level):
    original = NoiseSource.gaussian_rows

    def reused(self, first, rows, columns, std, *path, **options):
        return original(self, first, rows, columns, std, "hop", 1, **options)

    monkeypatch.setattr(NoiseSource, "gaussian_rows", reused)
    assert_broken(audit_aggregation(level=level, epsilon=1.0, trials=4_000))


def test_rows_that_are_not_held_to_norm_1(monkeypatch):
    monkeypatch.setattr(aggregation, "quantise_rows", lambda rows, **_: 2 * rows.double())
    assert_broken(audit_aggregation(epsilon=1.0, trials=TRIALS))


def test_a_sampler_that_refills(monkeypatch):
    original = backends.bound_out_degrees

    def refilling(graph, max_degree, key):
        known = graph._replace(dangling_indptr=None, dangling_targets=None)
        return original(known, max_degree, key)

    monkeypatch.setattr(backends, "bound_out_degrees", refilling)
    assert_broken(audit_sampler(epsilon=1.0, trials=2_000))


OF_ALL_TYPES = [f"events of a hop along all edge types ({p})" for p in ("in memory", "on disk")]


@edge_or_node
def test_one_edge_of_each_type_charged_as_one_of_any(level):
    options = {"level": level, "edge_types": 2, "protects": "each", "epsilon": 1.0}
    assert_sound(audit_aggregation, 0.4, **options, trials=TRIALS)
    # Half the price is a small fault: fewer trials miss it now and then.
    report = audit_aggregation(**{**options, "trials": 5 * TRIALS}, charged=2)
    assert_broken(report)
    assert_counted(report, *OF_ALL_TYPES)


def test_a_union_that_is_not_charged():
    """An edge moves the sum of its type and that of the union: twice what was charged."""
    options = {"edge_types": 2, "epsilon": 1.0, "trials": TRIALS}
    assert_sound(audit_aggregation, 0.4, **options)
    assert_sound(audit_aggregation, 0.4, **options, without_union=True)
    report = audit_aggregation(**{**options, "trials": 5 * TRIALS}, charged=2)
    assert_broken(report)
    assert_counted(report, *OF_ALL_TYPES)


@pytest.mark.parametrize(("relation", "edge_types"), [("2-arcs", 2), ("5-arcs", 3)])
def test_arcs_of_several_types_that_meet_in_one_row_charged_as_if_they_did_not(
    monkeypatch, relation, edge_types
):
    """The union moves by sqrt(k min(k, M)) under `k-arcs`; sqrt(k) was charged."""
    options = {"relation": relation, "edge_types": edge_types, "epsilon": 4.0, "trials": 1_000}
    report = audit_aggregation(**options)
    assert report.holds, report.sentence
    monkeypatch.setattr(
        UnionOfTypes, "sensitivity", lambda self, relation: self.types[0].sensitivity(relation)
    )
    report = audit_aggregation(**options)
    assert_counted(report, "events of arcs that meet in one row")
    # A model that releases such a union is audited as it was trained.
    monkeypatch.setattr(edge_level, "releases_union", lambda num_types, **_: num_types > 1)
    halves = [social_graph(num_nodes=100, mean_degree=6, seed=seed) for seed in (1, 2)]
    graph = random_split(join_edge_types({"calls": halves[0], "visits": halves[1]}), seed=0)
    model = LabelGAP(relation="2-arcs", epochs=1, hops=1).fit(graph)
    monkeypatch.setattr(model_audit, "audit_messages", lambda *_, **__: report)
    found = {one["mechanism"]: one for one in model_audit.audit_model(model, trials=200)}
    assert not found["aggregation"]["holds"]


def keep_self_loops(monkeypatch):
    """Let nodes with a self-loop send two messages to their own row."""
    original = OutDegreeNormalized.messages.func

    def with_loops(self):
        messages = original(self)
        return replace(messages, arcs=(replace(messages.arcs[0], drops_loops=False),))

    monkeypatch.setattr(OutDegreeNormalized, "messages", property(with_loops))


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_a_self_loop_that_counts_twice_in_its_own_row(monkeypatch, relation):
    """Under `own="record"` every node sends to itself, and a kept self-loop sends once more."""
    options = {"level": "node", "normalised": True, "relation": relation, "trials": 200}
    report = audit_aggregation(epsilon=4.0, **options)
    assert report.holds, report.sentence
    keep_self_loops(monkeypatch)
    report = audit_aggregation(epsilon=4.0, **options)
    assert_counted(report, "how far a node with a self-loop that sends to itself moves a hop")
    graph = random_split(social_graph(num_nodes=200, mean_degree=8, num_classes=3), seed=0)
    options = {"own": "record", "relation": relation, "epsilon": 8.0, "epochs": 1}
    model = NodeLabelGAP(hop_share=0.5, **options).fit(graph)
    found = {one["mechanism"]: one for one in model_audit.audit_model(model, trials=200)}
    assert not found["aggregation"]["holds"]


def test_a_union_that_shares_the_noise_of_an_edge_type(monkeypatch):
    """The union minus the sum of that type is the sum of the other types, without noise."""
    original = aggregation.hop_mechanisms

    def shared(graph, *, keys, **settings):
        *types, union = original(graph, keys=keys, **settings)
        if graph.more_edge_types:
            union._sources = types[0]._sources
        return [*types, union]

    def same_hop(self, first, rows, columns, std, *path, **more):
        # Numbers of hops differ between sums, so that a shared key alone does no harm.
        return drawn(self, first, rows, columns, std, "hop", (path[1] + 2) // 3, **more)

    monkeypatch.setattr(aggregation_audit, "hop_mechanisms", shared)
    options = {"edge_types": 2, "epsilon": 1.0, "trials": 2_000}
    assert_counted(audit_aggregation(**options), "correlation of the noise of two sums")
    drawn = NoiseSource.gaussian_rows
    monkeypatch.setattr(NoiseSource, "gaussian_rows", same_hop)
    report = audit_aggregation(**options)
    assert_broken(report)
    assert_counted(report, "correlation of the noise of two sums")


def test_a_union_that_adds_one_edge_type_twice(monkeypatch):
    """An edge of that type moves the union by two messages."""
    original = aggregation.hop_mechanisms

    def twice(graph, *, keys, **settings):
        *types, union = original(graph, keys=keys, **settings)
        if graph.more_edge_types:
            (messages,) = union._messages
            union._messages = [replace(messages, arcs=(messages.arcs[0], *messages.arcs))]
        return [*types, union]

    monkeypatch.setattr(aggregation_audit, "hop_mechanisms", twice)
    report = audit_aggregation(edge_types=2, epsilon=1.0, trials=TRIALS)
    assert_counted(report, *OF_ALL_TYPES)


@pytest.mark.parametrize(
    "options",
    [
        {"protects": "each"},
        pytest.param({"protects": "any", "without_union": True}, marks=pytest.mark.slow),
        {"level": "node"},
    ],
)
def test_edge_types_that_share_a_noise_key(monkeypatch, options):
    """In the difference of two sums the noise cancels."""
    original = NoiseSource.gaussian_rows

    def shared(graph, *, keys, with_total, **settings):
        alone = [one._changed(more_edge_types=()) for one in graph.edge_types]
        return [hop_mechanisms(one, keys=keys, **settings)[0] for one in alone]

    def same_hop(self, first, rows, columns, std, *path, **more):
        # Numbers of hops differ between edge types, so that a shared key alone does no harm.
        return original(self, first, rows, columns, std, "hop", (path[1] + 1) // 2, **more)

    monkeypatch.setattr(aggregation_audit, "hop_mechanisms", shared)
    options = {"edge_types": 2, "epsilon": 1.0, "trials": 2_000, **options}
    assert_counted(audit_aggregation(**options), "correlation of the noise of two sums")
    monkeypatch.setattr(NoiseSource, "gaussian_rows", same_hop)
    report = audit_aggregation(**options)
    assert not report.holds
    if options.get("level") != "node":
        assert_broken(report)


def test_weights_that_are_not_held_to_1(monkeypatch):
    options = {"weighted": True, "epsilon": 1.0, "trials": TRIALS}
    assert_sound(audit_aggregation, 0.5, **options)
    original = backends.in_lists

    def heavy(arcs):
        indptr, indices, weights = original(arcs)
        return indptr, indices, 2 * weights

    monkeypatch.setattr(backends, "in_lists", heavy)
    with pytest.raises(PrivacyError, match="between 0 and 1"):
        audit_aggregation(**options)
    monkeypatch.setattr(sums, "check_weights", lambda weights: None)
    assert_broken(audit_aggregation(**options))


MOVES = "how far one record moves a hop ({})"


def test_lists_that_are_not_cut(monkeypatch):
    """On the hub statistics see nothing: v's list is as long as allowed. Longer ones count."""
    monkeypatch.setattr(
        backends, "bound_out_degrees", lambda graph, *_: (graph.indptr, graph.indices)
    )
    report = audit_sampler(epsilon=1.0, trials=1_000)
    assert report.bound_holds
    assert_counted(report, MOVES.format("in memory"))


@pytest.mark.parametrize(
    ("backend", "place", "relation"),
    [
        (backends.InMemory, "in memory", "add-remove"),
        (backends.OnDisk, "on disk", "add-remove"),
        pytest.param(backends.InMemory, "in memory", "replace", marks=pytest.mark.slow),
        pytest.param(backends.OnDisk, "on disk", "replace", marks=pytest.mark.slow),
    ],
)
def test_lists_that_are_cut_for_the_first_hop_only(monkeypatch, backend, place, relation):
    options = {"level": "node", "relation": relation, "epsilon": 4.0, "trials": 4_000}
    assert_sound(audit_aggregation, 0.5, **options)
    original = backend.release

    def uncut(self, block, rows, out):
        if block.index > 1:
            (arcs,) = self._messages.arcs
            self._messages = replace(self._messages, arcs=(replace(arcs, max_degree=None),))
        original(self, block, rows, out)

    monkeypatch.setattr(backend, "release", uncut)
    assert_counted(audit_aggregation(**options), MOVES.format(place))


def test_a_clip_that_is_not_applied(monkeypatch):
    def unclipped(squared, clip, valid=None, *, all_finite=False):
        factors = torch.ones_like(squared)
        return factors if valid is None else factors * valid

    monkeypatch.setattr(dpsgd, "clip_factors", unclipped)
    assert_broken(audit_dpsgd(**DPSGD))


def test_halved_noise_in_dpsgd(monkeypatch):
    original = NoiseSource.gaussian_rows
    monkeypatch.setattr(
        NoiseSource, "gaussian_rows", lambda *args, **options: original(*args, **options) / 2
    )
    assert_broken(audit_dpsgd(**DPSGD))


@pytest.mark.slow
def test_noise_forgotten_on_empty_batches(monkeypatch):
    original = dpsgd.PrivateStep._noised

    def forgetful(self, total):
        noised = original(self, total)
        is_empty = (total == 0).all(dim=1, keepdim=True)
        return torch.where(is_empty, torch.zeros_like(noised), noised)

    monkeypatch.setattr(dpsgd.PrivateStep, "_noised", forgetful)
    assert_broken(audit_dpsgd(**{**DPSGD, "epsilon": 1.0, "trials": 8_000}))


SHARED = {"epsilon": 2.0, "steps": 20, "sampling_rate": 0.1, "trials": 4_000}


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["safe", "fast"])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_same_noise_in_every_step(monkeypatch, noise, relation):
    options = {**SHARED, "epsilon": 4.0, "trials": 8_000}
    options |= {"noise": noise, "relation": relation}
    original = dpsgd.PrivateStep._noised

    def forgetful(self, total):
        steps, self.steps = self.steps, 0
        noised = original(self, total)
        self.steps = steps
        return noised

    monkeypatch.setattr(dpsgd.PrivateStep, "_noised", forgetful)
    report = audit_dpsgd(**options)
    assert_broken(report)
    assert_counted(report, "correlation of the noise of two steps")


def test_fast_noise_that_comes_back_after_a_few_steps(monkeypatch):
    original = dpsgd.PrivateStep._next_noise

    def periodic(self):
        steps, self.steps = self.steps, self.steps % self._ahead
        noise = original(self)
        self.steps = steps
        return noise

    monkeypatch.setattr(dpsgd.PrivateStep, "_next_noise", periodic)
    report = audit_dpsgd(**{**SHARED, "steps": 50}, noise="fast")
    assert_broken(report)
    assert_counted(report, "correlation of the noise of two steps")


CLIPS = "clips that one example moves a step by"
CLIPPED = {**DPSGD, "epsilon": 8.0, "trials": 10_000}


def _per_layer(tape, deltas, factors, *, masked=True, exact=False):
    """Each layer clipped for itself, in units of the clip."""
    sums = {}
    for record, delta in zip(tape.records, deltas, strict=True):
        own = dpsgd.clip_factors(record.squared_norms(delta).double(), 1.0) * (factors > 0)
        own = own if exact else own.to(delta.dtype)
        sums.update(record.clipped_sums(delta, own, masked=masked, exact=exact))
    return sums


def _free_biases(tape, deltas, factors, **options):
    sums = ghost.clipped_sums(tape, deltas, factors, **options)
    free = ghost.clipped_sums(tape, deltas, (factors > 0).to(factors.dtype), **options)
    biases = [id(record.bias) for record in tape.records if record.bias is not None]
    return {**sums, **{name: free[name] for name in biases}}


@pytest.mark.parametrize("fault", [_per_layer, pytest.param(_free_biases, marks=pytest.mark.slow)])
@pytest.mark.parametrize("noise", ["safe", pytest.param("fast", marks=pytest.mark.slow)])
def test_a_clip_of_parts_of_the_gradient(monkeypatch, fault, noise):
    """Per layer an example moves sqrt(layers) clips; without the biases it moves any number."""
    options = {**CLIPPED, "noise": noise}
    monkeypatch.setattr(dpsgd, "clipped_sums", fault)
    report = audit_dpsgd(**options)
    assert_broken(report)
    assert_counted(report, CLIPS)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["safe", "fast"])
def test_without_a_fault_in_steps_or_clips_the_same_audits_hold(noise):
    """By default test_audit.py asks DP-SGD without a fault, of other steps and more trials."""
    assert_sound(audit_dpsgd, 0.6, **CLIPPED, noise=noise)
    for relation in ("add-remove", "replace"):
        options = {**SHARED, "epsilon": 4.0, "trials": 8_000, "relation": relation}
        assert_sound(audit_dpsgd, 0.4, **options, noise=noise)


def test_biases_left_out_of_the_norm(monkeypatch):
    original = ghost.LinearRecord.squared_norms
    monkeypatch.setattr(
        ghost.LinearRecord,
        "squared_norms",
        lambda self, delta: original(replace(self, bias=None), delta),
    )
    assert_counted(audit_dpsgd(**DPSGD), CLIPS)


SUBGRAPHS = {"epsilon": 4.0, "steps": 2, "sampling_rate": 0.5, "trials": 2_500}
# For what is counted, whatever the statistics say.
FEW_SUBGRAPHS = {**SUBGRAPHS, "trials": 200}


@pytest.mark.slow
def test_noise_for_one_example_where_a_record_is_part_of_many(monkeypatch):
    monkeypatch.setattr(graphsage, "neighbourhood_sensitivity", lambda max_degree: 1.0)
    assert_broken(audit_subgraphs(**SUBGRAPHS))


@pytest.mark.slow
def test_noise_for_replaced_examples_forgotten(monkeypatch):
    """D + 1 clips: as if each of the D other examples could only come or go, not turn round."""
    monkeypatch.setattr(graphsage, "neighbourhood_sensitivity", lambda max_degree: max_degree + 1.0)
    assert_broken(audit_subgraphs(**SUBGRAPHS))


@pytest.mark.slow
def test_examples_clipped_by_the_norm_of_one_of_their_parts(monkeypatch):
    """What a star's example then moves is counted by test_neighbourhoods.py."""
    original = dpsgd.squared_norms
    monkeypatch.setattr(dpsgd, "squared_norms", lambda *args: original(*args) / 2**2)
    assert_broken(audit_subgraphs(**SUBGRAPHS))


MOST = "clips that one record moves a step by at most"
MEAN = "clips that one record moves a step by on average"


def _one_person_fewer(multiplier, *, max_degree, **options):
    event = neighbourhoods.neighbourhood_event(multiplier, max_degree=max_degree - 1, **options)
    wholes = [neighbourhoods.neighbourhood_sensitivity(max_degree - less) for less in (0, 1)]
    return event.scaled(wholes[0] / wholes[1])


def _without_its_own_example(multiplier, *, max_degree, **options):
    event = neighbourhoods.neighbourhood_event(multiplier, max_degree=max_degree, **options)
    shares = {}
    for shift, share in zip(event.sensitivities, event.probabilities, strict=True):
        shares[shift // 2 * 2] = shares.get(shift // 2 * 2, 0.0) + share
    return MixtureOfGaussians(
        event.noise_multiplier,
        tuple(shares),
        tuple(shares.values()),
        event.steps,
        label=event.label,
    )


@pytest.mark.parametrize(
    "fault", [pytest.param(_one_person_fewer, marks=pytest.mark.slow), _without_its_own_example]
)
def test_a_mixture_of_one_example_too_few(monkeypatch, fault):
    """Too little for statistics to see; what a record moves is counted.

    Without the fault this audit holds: test_audit.py asks it of more trials.
    """
    monkeypatch.setattr(graphsage, "neighbourhood_event", fault)
    assert_counted(audit_subgraphs(**FEW_SUBGRAPHS), MOST, MEAN)


def test_noise_for_2_d_clips_where_2_d_and_1_are_accounted(monkeypatch):
    monkeypatch.setattr(graphsage, "neighbourhood_sensitivity", lambda max_degree: 2.0 * max_degree)
    assert_counted(audit_subgraphs(**FEW_SUBGRAPHS), "one clip over a step's noise")


def test_a_sensitivity_of_2_d_in_noise_and_account(monkeypatch):
    for module in (neighbourhoods, graphsage, subgraph_audit):
        monkeypatch.setattr(
            module, "neighbourhood_sensitivity", lambda max_degree: 2.0 * max_degree
        )
    assert_counted(audit_subgraphs(**FEW_SUBGRAPHS), MOST)


@pytest.mark.usefixtures("halved_rows")
def test_halved_noise_under_class_codes():
    assert_broken(audit_messages(LabelGAP(epsilon=2.0, delta=1e-5), trials=4_000))


@pytest.mark.usefixtures("halved_rows")
@pytest.mark.parametrize("own", ["record", pytest.param("features", marks=pytest.mark.slow)])
def test_halved_noise_under_degree_normalised_class_codes(own):
    model = NodeLabelGAP(own=own, epsilon=2.0, delta=1e-5)
    assert_broken(audit_messages(model, trials=4_000))


@pytest.mark.parametrize("kept", [np.maximum, np.add])
def test_messages_divided_by_how_often_one_is_listed_too(monkeypatch, kept):
    """What the people on a list send would change when its owner leaves."""

    def listed(self):
        arcs = np.zeros(0, int) if isinstance(self.graph, StoredGraph) else self.graph.indices
        counts = np.bincount(arcs, minlength=self.graph.num_nodes)
        return kept(self.graph.out_degrees, counts) + int(self.to_self)

    monkeypatch.setattr(OutDegreeNormalized, "copies", property(listed))
    found = audit_aggregation(level="node", normalised=True, epsilon=1.0, trials=1_000)
    assert_counted(found, "how far one record moves a hop (in memory)")


@pytest.mark.parametrize("own", ["record", pytest.param("features", marks=pytest.mark.slow)])
def test_messages_divided_by_less_than_the_list(monkeypatch, own):
    """Refused where rows are checked; without the check the audit sees it."""
    original = aggregation.divide_rows

    def by_too_little(rows, lengths):
        return original(rows, lengths // 4)

    monkeypatch.setattr(aggregation, "divide_rows", by_too_little)
    model = NodeLabelGAP(own=own, epsilon=4.0, delta=1e-5)
    with pytest.raises(PrivacyError, match="must have norm at most 1"):
        audit_messages(model, trials=4_000)
    monkeypatch.setattr(aggregation, "check_contributions", lambda rows, lengths: None)
    assert_broken(audit_messages(model, trials=8_000))


def charging(monkeypatch, changed):
    """Charge LabelGAP for other events than those that its plan lists."""
    original = LabelGAP.plan

    def plan(self, facts):
        made = original(self, facts)
        return replace(made, template=changed(made.template))

    monkeypatch.setattr(LabelGAP, "plan", plan)


def refused_and_then_let(monkeypatch):
    """Hold a session to refusing unpaid hops, and then let them pass, so that an audit must see."""
    graph = random_split(social_graph(num_nodes=120, mean_degree=6), seed=0)
    with pytest.raises(PrivacyError, match="every hop must be paid for"):
        LabelGAP(epsilon=2.0, hops=3).fit(graph)
    monkeypatch.setattr(PrivateSession, "_check_paid", lambda self: None)


def test_a_hop_of_label_messages_that_nobody_paid_for(monkeypatch):
    charging(monkeypatch, lambda events: tuple(replace(event, count=1) for event in events))
    refused_and_then_let(monkeypatch)
    assert_broken(audit_messages(LabelGAP(epsilon=2.0, hops=3), trials=4_000))


def _one_hop_fewer(events):
    return tuple(
        replace(event, count=event.count - 1) if isinstance(event, Gaussian) else event
        for event in events
    )


TWO_HOPS = {"epsilon": 4.0, "delta": 1e-5, "hops": 2}


def test_one_hop_fewer_charged_than_released(monkeypatch):
    model = LabelGAP(**TWO_HOPS)
    assert_sound(audit_messages, 0.5, estimator=model, trials=4_000)
    charging(monkeypatch, _one_hop_fewer)
    refused_and_then_let(monkeypatch)
    report = audit_messages(model, trials=4_000)
    assert_broken(report)
    assert_counted(report, "hops released")


def test_noise_for_one_hop_fewer_than_on_the_card(monkeypatch):
    original = guarantee.calibrate

    def for_fewer(template, **options):
        found = original(_one_hop_fewer(template), **options)
        events = [event.scaled(found.noise_multiplier) for event in template]
        return replace(found, events=tuple(events))

    monkeypatch.setattr(guarantee, "calibrate", for_fewer)
    report = audit_messages(LabelGAP(**TWO_HOPS), trials=4_000)
    assert_broken(report)
    assert_counted(report, "epsilon of the events on the card")


QUICK_GAP = {"epsilon": 4.0, "epochs": 20, "hops": 1, "encoder_layers": 0}


def test_fresh_noise_on_every_prediction(monkeypatch):
    monkeypatch.setattr(Releases, "find", lambda *args, **options: None)
    assert_broken(audit_prediction(GAP(**QUICK_GAP), queries=50, trials=2_000))


def test_predictions_of_the_shipped_model_hold():
    assert audit_prediction(GAP(**QUICK_GAP), queries=50, trials=2_000).holds


@pytest.mark.slow
def test_density_noise_scaled_for_the_wrong_number_of_cells(monkeypatch):
    """Noise on the density is scaled by 1 / cells: for 50 times the cells it is too small."""

    def too_small(self, true):
        count = torch.tensor([float(len(true))], dtype=torch.float64)
        scale = self.scale_of_count / 50
        return float(self.count_noise.add_laplace(count, scale, "number of edges"))

    monkeypatch.setattr(edges._Release, "_noisy_count", too_small)
    assert_broken(audit_edges(epsilon=1.0, trials=4_000))


@pytest.mark.slow
@pytest.mark.parametrize("perturbation", ["arr", "edgerand", "lapgraph"])
def test_bits_kept_too_often(monkeypatch, perturbation):
    original = edges._split
    monkeypatch.setattr(
        edges, "_split", lambda *args: (original(*args)[0], math.sqrt(5) * original(*args)[1])
    )
    assert_broken(audit_edges(perturbation=perturbation, epsilon=1.0, trials=50_000))


ODDS = "log odds of a released bit"


def _thinned_in_part(monkeypatch, *, is_kept_thinned):
    original = edges.response_probabilities

    def in_part(epsilon, density=None):
        pairs = original(epsilon), original(epsilon, density)
        return pairs[is_kept_thinned][0], pairs[not is_kept_thinned][1]

    for module in (edges, edges_audit):
        monkeypatch.setattr(module, "response_probabilities", in_part)


@pytest.mark.slow
def test_false_edges_thinned_and_true_ones_not(monkeypatch):
    assert_sound(audit_edges, 0.2, epsilon=1.0, trials=100_000)
    _thinned_in_part(monkeypatch, is_kept_thinned=False)
    report = audit_edges(epsilon=1.0, trials=100_000)
    assert_broken(report)
    assert_counted(report, ODDS)


def test_true_edges_thinned_and_false_ones_not(monkeypatch):
    """The coins refuse such probabilities; the audit says why it is no mere mistake."""
    _thinned_in_part(monkeypatch, is_kept_thinned=True)
    assert_counted(audit_edges(epsilon=1.0, trials=4_000), ODDS)


@pytest.mark.slow
def test_a_density_without_its_noise(monkeypatch):
    """The noisy number of edges is released, but the exact one decides how much is thinned."""

    def exact(self, true):
        density = min(1.0, len(true) / max(1, self.cells.count))
        probabilities = edges.response_probabilities(self._per_bit, density)
        return self._respond(true, *probabilities), self._noisy_count(true)

    monkeypatch.setattr(edges._Release, "arr", exact)
    assert_broken(audit_edges(epsilon=1.0, trials=20_000))


class TestRoles:
    """People who do not train are in a hop of their own; whose role is dearer decides the price."""

    MODEL = NodeLabelGAP(own="nothing", epsilon=2.0, delta=1e-5)

    def test_without_a_fault_both_roles_hold(self):
        report = audit_messages(self.MODEL, trials=4_000)
        assert report.holds, report.sentence
        assert set(report.details["roles"]) == {"training", "others"}
        # Nearly all of it is spent on the second hop, and the audit sees most of that.
        assert report.details["roles"]["others"]["epsilon_lower_bound"] > 1.0

    def test_halved_noise_in_the_second_hop_alone(self, monkeypatch):
        original = guarantee.Guarantee.multiplier_of

        def halved(self, label):
            return original(self, label) / (2 if label == OF_OTHERS else 1)

        monkeypatch.setattr(guarantee.Guarantee, "multiplier_of", halved)
        report = audit_messages(self.MODEL, trials=4_000)
        assert_broken(report)
        assert report.details["role"] == "others"
        assert report.details["roles"]["training"]["holds"]

    def test_the_cheaper_role_as_the_price(self, monkeypatch, tmp_path):
        """Roles maximised in the wrong direction: what training costs is nobody's concern."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        model = NodeLabelGAP(own="nothing", epsilon=2.125, delta=1e-5)
        real, solve = events.parallel_compositions, calibration._solve
        # A search that is content with too little noise: refused as long as every role counts.
        monkeypatch.setattr(calibration, "_solve", lambda request: solve(request) / 2)
        with pytest.raises(CalibrationError):
            audit_messages(model, trials=400)

        def cheapest(charged, *, relation):
            return real(charged, relation=relation)[:1]

        monkeypatch.setattr(accountants, "parallel_compositions", cheapest)
        report = audit_messages(model, trials=400)
        assert_counted(report, "epsilon of role training alone")

    def test_a_second_hop_that_nobody_paid_for(self, monkeypatch):
        """Left out of what is charged, and released at its noise all the same."""
        original = PrivateSession.card

        def forgetful(self, facts):
            made = original(self, facts)
            kept = tuple(event for event in made.events if event["label"] != OF_OTHERS)
            return replace(made, events=kept)

        monkeypatch.setattr(PrivateSession, "card", forgetful)
        report = audit_messages(self.MODEL, trials=2_000)
        assert_counted(report, "hops released")

    def test_a_second_hop_without_an_event_is_one_line_and_a_finding(self, monkeypatch, capsys):
        original = NodeLabelGAP._hop_events
        monkeypatch.setattr(NodeLabelGAP, "_hop_events", lambda *args: original(*args)[:1])
        words = ["audit", "messages", "--level", "node", "--trials", "400"]
        assert main([*words, "--own", "nothing", "--epsilon", "2"]) == 1
        assert "broken: every hop must be paid for" in " ".join(capsys.readouterr().err.split())


class TestGroups:
    """Groups compose in parallel, and their names say nothing: whatever they are called."""

    NAMES = ("nurses, day", "nurses, night")

    @staticmethod
    def _count_by_shift(words):
        """A command that counts the people of each shift, with Laplace noise of scale 1."""
        with open("people.csv", encoding="utf-8") as file:
            _, *lines = file.read().splitlines()
        rows = [line.split(",") for line in lines]
        people = People.listed(np.array([row[0] for row in rows]))
        charged = [events.Laplace(1.0, group=name) for name in TestGroups.NAMES]
        price = accountants.account(charged, 0.0, relation="replace").epsilon
        Ledger().charge(
            people,
            level="node",
            relation="replace",
            epsilon=price,
            delta=0.0,
            events=[event.to_dict() for event in charged],
            purpose="count",
        )
        for name in TestGroups.NAMES:
            # Who has an early birthday works by day.
            mine = [row for row in rows if (float(row[1]) < 1) == name.endswith("day")]
            count = torch.tensor([float(len(mine))], dtype=torch.float64)

            seen = Release(name, count.clone().numpy(), 1.0, 1.0, measure="l1")
            observe(
                lambda seen=seen: seen, NoiseSource(NoiseKey.fresh()).add_laplace(count, 1.0, name)
            )
        return 0

    def test_a_comma_in_a_name_that_is_taken_for_an_option_is_found(self, monkeypatch):
        given = tables()
        case = Case(("count",), given, Replace())

        def found():
            pair_types = ["first", "last", "middle", "hub"]
            return audit_pipeline(case, self._count_by_shift, pair_types=pair_types)

        sound = found()
        assert [text for outcome in sound for text in outcome.findings] == []
        moved = [sum(one.observed for one in outcome.releases) for outcome in sound]
        assert 2.0 in moved, "somebody changes the shift"
        group_of = events.group_of
        monkeypatch.setattr(events, "group_of", lambda event: group_of(event).split(", ")[0])
        monkeypatch.setattr(
            events, "option_of", lambda event: len(group_of(event).partition(", ")[2]) or 0
        )
        broken = [text for outcome in found() for text in outcome.findings]
        assert any(
            "all releases: cost epsilon 2 at delta 0 by what they moved, charged 1" in text
            for text in broken
        ), broken


class TestSelfLoops:
    """Graphs made in Python may keep self-loops, which tables drop."""

    @staticmethod
    def _fit(words):
        """A command that trains on the tables with a self-loop at every node."""
        with open("people.csv", encoding="utf-8") as file:
            _, *lines = file.read().splitlines()
        rows = [line.split(",") for line in lines]
        place = {row[0]: number for number, row in enumerate(rows)}
        with open("links.csv", encoding="utf-8") as file:
            _, *lines = file.read().splitlines()
        arcs = [[place[name] for name in line.split(",")] for line in lines]
        arcs += [[number, number] for number in place.values()]
        teams = ("blue", "green", "red", "violet")
        graph = Graph.from_arcs(
            *np.array(arcs).T,
            num_nodes=len(rows),
            features=np.array([[float(row[1] or 0)] for row in rows], dtype=np.float32),
            labels=np.array([teams.index(row[3]) if row[3] in teams else -1 for row in rows]),
            label_names=teams,
            ids=np.array([int(name) for name in place]),
            directed=True,
            self_loops="keep",
        )
        graph = random_split(graph, seed=0)
        options = {"own": "record", "hop_share": 0.5, "epochs": 1, "batch_size": 30}
        NodeLabelGAP(relation=words[0], epsilon=8.0, device="cpu", **options).fit(graph)
        return 0

    @pytest.mark.parametrize("relation", ["add-remove", "replace"])
    def test_a_self_loop_that_counts_twice_in_its_own_row(self, monkeypatch, relation):
        """A node whose only neighbour is itself moves a hop by sqrt(2) instead of 1."""
        given = tables(directed=True, schema=None)
        # A training node without other neighbours.
        alone = "103"
        given = replace(given, edges=tuple(row for row in given.edges if row[0] != alone))
        case = Case((relation,), given, parse_relation(relation), keeps_rows=True)

        def found():
            outcomes = audit_pipeline(case, self._fit, pair_types=["isolated"])
            assert all(one.releases for one in outcomes)
            return [text for outcome in outcomes for text in outcome.findings]

        assert found() == []
        keep_self_loops(monkeypatch)
        assert any("hop 1: moved by" in text for text in found())
