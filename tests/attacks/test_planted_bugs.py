"""The audit is itself audited: each planted fault must be found, and found as a broken guarantee.

Every fault is one that public implementations had or that this one could come to have.
"""

from __future__ import annotations

import math

import pytest
import torch

from gapgnn import GAP
from gapgnn.attacks.audit import (
    audit_aggregation,
    audit_dpsgd,
    audit_edges,
    audit_messages,
    audit_prediction,
    audit_sampler,
    audit_subgraphs,
)
from gapgnn.methods import sage
from gapgnn.methods.releases import Releases
from gapgnn.privacy import aggregation, dpsgd, edges
from gapgnn.privacy.events import Gaussian
from gapgnn.privacy.noise import NoiseSource

TRIALS = 20_000
DPSGD = {"epsilon": 2.0, "steps": 5, "sampling_rate": 0.3, "trials": 4_000}


def assert_broken(report) -> None:
    assert not report.holds
    assert report.epsilon_lower_bound > report.epsilon_claimed
    assert "broken" in report.sentence


@pytest.mark.parametrize(
    ("level", "relation"),
    [("edge", "directed"), ("edge", "undirected"), ("node", "add-remove"), ("node", "replace")],
)
def test_halved_noise_on_the_hops(monkeypatch, level, relation):
    original = NoiseSource.gaussian_rows
    monkeypatch.setattr(
        NoiseSource, "gaussian_rows", lambda *args, **options: original(*args, **options) / 2
    )
    assert_broken(audit_aggregation(level=level, relation=relation, epsilon=1.0, trials=TRIALS))


def test_sqrt_2_missing_on_an_undirected_graph(monkeypatch):
    monkeypatch.setattr(aggregation, "aggregation_sensitivity", lambda *args, **options: 1.0)
    assert_broken(audit_aggregation(relation="undirected", epsilon=4.0, trials=TRIALS))


@pytest.mark.parametrize("level", ["edge", "node"])
def test_the_same_noise_in_two_hops(monkeypatch, level):
    original = NoiseSource.gaussian_rows

    def reused(self, first, rows, columns, std, *path, **options):
        return original(self, first, rows, columns, std, "hop", 1, **options)

    monkeypatch.setattr(NoiseSource, "gaussian_rows", reused)
    assert_broken(audit_aggregation(level=level, epsilon=1.0, trials=TRIALS // 4))


def test_rows_that_are_not_held_to_norm_1(monkeypatch):
    def without_cut(rows):
        return 2 * rows.double()

    monkeypatch.setattr(aggregation, "quantise_rows", without_cut)
    assert_broken(audit_aggregation(epsilon=1.0, trials=TRIALS))


def test_a_sampler_that_refills(monkeypatch):
    original = aggregation.bound_out_degrees

    def refilling(graph, max_degree, key):
        known = graph._replace(dangling_indptr=None, dangling_targets=None)
        return original(known, max_degree, key)

    monkeypatch.setattr(aggregation, "bound_out_degrees", refilling)
    assert_broken(audit_sampler(epsilon=1.0, trials=2_000))


def test_lists_that_are_not_cut(monkeypatch):
    """v's list is as long as allowed, so only the sources' lists are longer; they tell nothing."""
    monkeypatch.setattr(
        aggregation, "bound_out_degrees", lambda graph, *_: (graph.indptr, graph.indices)
    )
    assert audit_sampler(epsilon=1.0, trials=1_000).holds


def test_a_clip_that_is_not_applied(monkeypatch):
    def unclipped(squared, clip, valid=None, *, all_finite=False):
        factors = torch.ones_like(squared)
        return factors if valid is None else factors * valid

    monkeypatch.setattr(dpsgd, "clip_factors", unclipped)
    assert_broken(audit_dpsgd(**DPSGD))


def test_halved_noise_in_dpsgd(monkeypatch):
    original = NoiseSource.add_gaussian
    monkeypatch.setattr(
        NoiseSource,
        "add_gaussian",
        lambda self, values, std, *path: original(self, values, std / 2, *path),
    )
    assert_broken(audit_dpsgd(**DPSGD))


def test_noise_forgotten_on_empty_batches(monkeypatch):
    original = dpsgd.PrivateStep._noised

    def forgetful(self, total):
        noised = original(self, total)
        is_empty = (total == 0).all(dim=1, keepdim=True)
        return torch.where(is_empty, torch.zeros_like(noised), noised)

    monkeypatch.setattr(dpsgd.PrivateStep, "_noised", forgetful)
    assert_broken(audit_dpsgd(**{**DPSGD, "trials": 20_000}))


SUBGRAPHS = {"epsilon": 4.0, "steps": 2, "sampling_rate": 0.5, "trials": 1_000}


def test_noise_for_one_example_where_a_record_is_part_of_many(monkeypatch):
    monkeypatch.setattr(sage, "neighbourhood_sensitivity", lambda max_degree: 1.0)
    assert_broken(audit_subgraphs(**SUBGRAPHS))


def test_noise_for_replaced_examples_forgotten(monkeypatch):
    """D + 1 clips: as if each of the D other examples could only come or go, not turn round."""
    monkeypatch.setattr(sage, "neighbourhood_sensitivity", lambda max_degree: max_degree + 1.0)
    assert_broken(audit_subgraphs(**SUBGRAPHS))


def test_examples_clipped_by_the_norm_of_one_of_their_parts(monkeypatch):
    original = dpsgd.squared_norms
    monkeypatch.setattr(dpsgd, "squared_norms", lambda *args: original(*args) / 2**2)
    assert_broken(audit_subgraphs(**SUBGRAPHS))


@pytest.mark.parametrize("options", [{}, {"level": "node", "max_degree": 5}])
def test_halved_noise_under_label_messages(monkeypatch, options):
    original = NoiseSource.gaussian_rows
    monkeypatch.setattr(
        NoiseSource, "gaussian_rows", lambda *args, **options: original(*args, **options) / 2
    )
    assert_broken(audit_messages(GAP(epsilon=2.0, delta=1e-5, **options), trials=4_000))


def test_a_hop_of_label_messages_that_nobody_paid_for(monkeypatch):
    monkeypatch.setattr(GAP, "_template", lambda self, graph: (Gaussian(1.0, count=1),))
    assert_broken(audit_messages(GAP(epsilon=2.0, hops=3), trials=4_000))


QUICK_GAP = {"epsilon": 4.0, "epochs": 20, "messages": "features", "hops": 1, "encoder_layers": 0}


def test_fresh_noise_on_every_prediction(monkeypatch):
    monkeypatch.setattr(Releases, "find", lambda *args, **options: None)
    assert_broken(audit_prediction(GAP(**QUICK_GAP), queries=50, trials=1_000))


def test_predictions_of_the_shipped_model_hold():
    assert audit_prediction(GAP(**QUICK_GAP), queries=50, trials=1_000).holds


def test_density_noise_scaled_for_the_wrong_number_of_cells(monkeypatch):
    """Noise on the density is scaled by 1 / cells: for 50 times the cells it is too small."""

    def too_small(self, true):
        count = torch.tensor([float(len(true))], dtype=torch.float64)
        scale = self.cells.bits_per_edge / self.on_count / 50
        return float(self.noise.add_laplace(count, scale, "number of edges"))

    monkeypatch.setattr(edges._Release, "_noisy_count", too_small)
    assert_broken(audit_edges(epsilon=1.0, trials=10_000))


@pytest.mark.parametrize("perturbation", ["arr", "edgerand", "lapgraph"])
def test_bits_kept_too_often(monkeypatch, perturbation):
    original = edges._split
    monkeypatch.setattr(
        edges, "_split", lambda *args: (original(*args)[0], math.sqrt(5) * original(*args)[1])
    )
    assert_broken(audit_edges(perturbation=perturbation, epsilon=1.0, trials=4_000))
