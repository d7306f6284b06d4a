"""Rare classes: what is sent in hop 1 under noise, and how two classes are read at node level."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gapgnn import LabelGAP, NodeLabelGAP
from gapgnn.graph.datasets.synthetic import rare_graph
from gapgnn.graph.tables import Schema
from gapgnn.graph.tables.schema import Label
from gapgnn.methods import direction_and_size
from gapgnn.methods.label_gap.codes import class_codes, code_scale
from gapgnn.methods.label_gap.node_votes import Votes
from gapgnn.methods.label_gap.stages import SHARPENING
from gapgnn.training import FeatureInputs

UNEVEN, EVEN = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])


@pytest.fixture(scope="module")
def rare():
    return rare_graph(num_nodes=1500, num_edges=12_000, rate=0.05, noise_columns=12, labelled=0.6)


@pytest.mark.parametrize(
    ("level", "epsilon", "leans"),
    [("none", None, True), ("edge", 40.0, True), ("edge", 4.0, False)],
)
def test_what_is_sent_first_leans_to_the_common_class_where_noise_is_little(
    level, epsilon, leans, rare
):
    budget = {} if level == "none" else {"epsilon": epsilon, "insecure_noise_seed": 1}
    model = LabelGAP(level=level, epochs=2, hops=2, **budget).fit(rare)
    features = FeatureInputs(rare, torch.device("cpu"))
    labels, training = torch.tensor(rare.labels), torch.tensor(rare.train_mask).unsqueeze(0)
    stages = model._stages(rare)
    # Whether the regression was kept is up to the validation nodes of so small a graph.
    shrunk = model.modules_["shrunk"]
    shrunk.keep(torch.zeros(shrunk._whole), 0.5)
    said = stages.hop_zero(features, training)
    released = [torch.zeros(1, rare.num_nodes, 1)] * 2
    sent = stages.messages(features, labels, training, released)[0]
    sharpened = torch.softmax(said * (SHARPENING if leans else 1.0), dim=-1) @ stages.codes.float()
    others = ~rare.train_mask
    assert torch.allclose(sent[0, others], sharpened[0, others], atol=1e-6)


def votes(graph, prior, own):
    sends = torch.tensor(graph.train_mask).unsqueeze(0)
    return Votes(graph, graph.num_nodes, 2, own, sends, 1.0, prior)


@pytest.mark.parametrize("own", ["features", "record"])
def test_two_classes_of_uneven_rates_are_read_as_numbers(own, rare):
    rows = 3 * torch.randn(1, rare.num_nodes, 1, generator=torch.Generator().manual_seed(1))
    hops = [rows] if own == "record" else [rows, rows]
    taken = votes(rare, UNEVEN, own)._written[0] if own == "record" else 0.0
    read = votes(rare, UNEVEN, own).read(hops)
    assert torch.equal(read[..., :1], rows - taken)
    assert read[..., 0].unique().numel() > 1000


@pytest.mark.parametrize("prior", [None, EVEN])
def test_without_declared_rates_the_direction_is_read(prior, rare):
    rows = torch.randn(1, rare.num_nodes, 1, generator=torch.Generator().manual_seed(1))
    read = votes(rare, prior, "features").read([rows, rows])
    assert torch.equal(read[..., :2], direction_and_size(rows))


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.77, 0.23], [0.9, 0.07, 0.03]])
def test_codes_are_nearer_to_each_other_by_their_scale(shares):
    prior = torch.tensor(shares, dtype=torch.float64)
    farthest = torch.pdist(class_codes(len(shares))).max()
    around = torch.pdist(class_codes(len(shares), prior=prior)).max()
    assert float(farthest / around) == pytest.approx(code_scale(len(shares), prior), rel=1e-5)


def test_declared_rates_reach_what_is_read(rare):
    label = Label("class", ("common", "rare"), rates=(0.95, 0.05))
    graph = replace(rare, schema=Schema(label=label), label_names=("common", "rare"))
    model = NodeLabelGAP(epsilon=8.0, epochs=1, hop_share=0.8, insecure_noise_seed=1).fit(graph)
    types = model._votes(graph, torch.tensor(graph.train_mask).unsqueeze(0))
    assert types._is_uneven_pair
    model = NodeLabelGAP(epsilon=8.0, epochs=1, hop_share=0.8, insecure_noise_seed=1).fit(rare)
    types = model._votes(rare, torch.tensor(rare.train_mask).unsqueeze(0))
    assert not types._is_uneven_pair
    assert np.isfinite(model.predict_proba(rare)).all()
