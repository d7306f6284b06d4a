"""Full-batch epochs leave nodes out, or count them together, without changing the result."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from gapcases import small_classifier

from gapgnn.graph.graph import Graph
from gapgnn.nn.layers import cross_entropy, reset_replicas
from gapgnn.privacy.dpsgd.flat import FlatParameters
from gapgnn.training.full_batch import FullBatch, clean_scores
from gapgnn.training.inputs import FeatureInputs, HopInputs

REPLICAS, NODES, CLASSES, WIDTH = 3, 400, 4, 5


def setting(*, hop_zero: str, first_layers: int, dropout: float = 0.0):
    rng = np.random.default_rng(0)
    # Few different rows, so that many nodes are alike.
    features = sp.csr_array((rng.random((60, 12)) < 0.3).astype(np.float32))
    graph = Graph.from_arcs([], [], num_nodes=NODES, features=features[rng.integers(0, 60, NODES)])
    generator = torch.Generator().manual_seed(0)
    first = FeatureInputs(graph, torch.device("cpu"))
    width = 12
    if hop_zero == "codes":
        first, width = torch.randn(REPLICAS, NODES, 7, generator=generator), 7
    hops = [torch.randn(REPLICAS, NODES, WIDTH, generator=generator) for _ in range(2)]
    changes = {"first_layers": first_layers, "batch_norm": True, "dropout": dropout}
    model = small_classifier(REPLICAS, [width, WIDTH, WIDTH], CLASSES, **changes)
    reset_replicas(model, [torch.Generator().manual_seed(seed) for seed in range(REPLICAS)])
    order = torch.stack([torch.randperm(NODES, generator=generator) for _ in range(REPLICAS)])
    train, val = torch.zeros(2, REPLICAS, NODES, dtype=torch.bool)
    train.scatter_(1, order[:, :250], True)
    val.scatter_(1, order[:, 250:310], True)
    labels = torch.randint(CLASSES, (NODES,), generator=generator)
    flat, inputs = FlatParameters(model.train()), HopInputs(first, hops)
    batch = FullBatch(model, inputs, flat, labels=labels, train=train, val=val)
    return model, inputs, flat, batch, labels, train, val


@pytest.mark.parametrize("hop_zero", ["features", "codes"])
@pytest.mark.parametrize("first_layers", [1, 2])
def test_the_gradient_is_that_of_all_nodes(hop_zero, first_layers):
    model, inputs, flat, batch, labels, train, _ = setting(
        hop_zero=hop_zero, first_layers=first_layers
    )
    found, _, _ = batch.gradient(is_watched=False)
    losses = cross_entropy(model(inputs.all()), labels)
    wanted = flat.gradient((losses * train).sum() / 250)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    assert batch.clean_scores().shape[1] < NODES


@pytest.mark.parametrize("hop_zero", ["features", "codes"])
@pytest.mark.parametrize("first_layers", [1, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_validation_accuracy_is_that_of_all_nodes_without_dropout(
    hop_zero, first_layers, dropout
):
    model, inputs, _, batch, labels, _, val = setting(
        hop_zero=hop_zero, first_layers=first_layers, dropout=dropout
    )
    right = clean_scores(model, inputs.all()).argmax(-1) == labels
    accuracy = batch.best.consider(batch.clean_scores())
    assert float(accuracy) == pytest.approx(float((right & val).sum()) / 180, abs=1e-6)


def test_with_dropout_only_training_nodes_are_in_the_gradient():
    """Blanked values differ from pass to pass, so the mean of many gradients is compared."""
    model, inputs, flat, batch, labels, train, _ = setting(
        hop_zero="features", first_layers=2, dropout=0.2
    )
    # The means are then 20 (cosine) and 11 (length) standard deviations inside their limits.
    rounds = 100
    found = sum(batch.gradient(is_watched=False)[0] for _ in range(rounds)) / rounds
    wanted = torch.zeros_like(found)
    for _ in range(rounds):
        losses = cross_entropy(model(inputs.all()), labels)
        wanted += flat.gradient((losses * train).sum() / 250) / rounds
    cosine = torch.nn.functional.cosine_similarity(found, wanted, dim=1)
    assert float(cosine.min()) > 0.99
    assert float((found.norm() / wanted.norm() - 1).abs()) < 0.05
