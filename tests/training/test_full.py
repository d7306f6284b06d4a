"""Full-batch epochs leave nodes out, or count them together, without changing the result."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from gapcases import small_classifier

from gapgnn.graph.graph import Graph
from gapgnn.nn.layers import cross_entropy, reset_replicas
from gapgnn.privacy.dpsgd.flat import FlatAdam, FlatParameters
from gapgnn.training.callbacks import Silent
from gapgnn.training.full_batch import BestEpoch, FullBatch, clean_scores
from gapgnn.training.inputs import FeatureInputs, HopInputs, own_rows
from gapgnn.training.recipe import Recipe
from gapgnn.training.splits import Splits
from gapgnn.training.trainer import Trainer

REPLICAS, NODES, CLASSES, WIDTH = 3, 400, 4, 5


def setting(
    *,
    hop_zero: str,
    first_layers: int,
    dropout: float = 0.0,
    base_layers: int = 1,
    num_train: int = 250,
):
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
    changes = {
        "first_layers": first_layers,
        "base_layers": base_layers,
        "batch_norm": True,
        "dropout": dropout,
    }
    model = small_classifier(REPLICAS, [width, WIDTH, WIDTH], CLASSES, **changes)
    reset_replicas(model, [torch.Generator().manual_seed(seed) for seed in range(REPLICAS)])
    order = torch.stack([torch.randperm(NODES, generator=generator) for _ in range(REPLICAS)])
    train, val = torch.zeros(2, REPLICAS, NODES, dtype=torch.bool)
    train.scatter_(1, order[:, :num_train], True)
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


@pytest.mark.gate
@pytest.mark.parametrize(("num_train", "are_most"), [(250, True), (150, False)])
def test_where_most_nodes_train_they_stand_for_all_in_deeper_networks(num_train, are_most):
    """Where fewer do, the gradient is that of all nodes; nodes always validate by all."""
    model, inputs, flat, batch, labels, train, val = setting(
        hop_zero="codes", first_layers=2, base_layers=2, dropout=0.2, num_train=num_train
    )
    read = []
    model.head.register_forward_hook(lambda _, inputs, scores: read.append(scores.shape[1]))
    model.bases[1].register_forward_hook(lambda _, inputs, codes: read.append(codes.shape[1]))
    rounds = 100
    found = sum(batch.gradient(is_watched=False)[0] for _ in range(rounds)) / rounds
    assert set(read) == {num_train if are_most else NODES}
    wanted = torch.zeros_like(found)
    for _ in range(rounds):
        losses = cross_entropy(model(inputs.all()), labels)
        wanted += flat.gradient((losses * train).sum() / num_train) / rounds
    cosine = torch.nn.functional.cosine_similarity(found, wanted, dim=1)
    assert float(cosine.min()) > 0.98
    right = clean_scores(model, inputs.all()).argmax(-1) == labels
    assert float(batch.validate()) == pytest.approx(float((right & val).sum()) / 180, abs=1e-6)


@pytest.mark.parametrize(("dropout", "looks"), [(0.2, [4, 8, 10]), (0.0, [*range(10), 10])])
def test_with_dropout_validation_nodes_are_looked_at_every_few_epochs(dropout, looks, monkeypatch):
    """And with the last parameters in any case; without dropout in every epoch, at no cost."""
    model, inputs, _, _, labels, train, val = setting(
        hop_zero="codes", first_layers=1, dropout=dropout
    )
    taken, seen = [], []
    step, consider = FlatAdam.step, BestEpoch.consider
    monkeypatch.setattr(FlatAdam, "step", lambda *a: (taken.append(1), step(*a)))
    monkeypatch.setattr(
        BestEpoch, "consider", lambda *a: (seen.append(len(taken)), consider(*a))[1]
    )
    roles = (mask.numpy() for mask in (train, val, ~(train | val)))
    recipe = Recipe(10, None, 0.01, 0.0, "adam", 1.0)
    trainer = Trainer(labels, Splits(*roles), 250, recipe, 0, Silent())
    trainer.fit(model, inputs, phase="classifier")
    assert seen == looks


def test_own_rows_are_those_of_each_replica():
    values = torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(0))
    positions = torch.randint(7, (3, 11), generator=torch.Generator().manual_seed(1))
    wanted = torch.stack([own[at] for own, at in zip(values, positions, strict=True)])
    assert torch.equal(own_rows(values, positions), wanted)
    shared = values[:1].expand(3, -1, -1)
    assert torch.equal(own_rows(shared, positions), values[0][positions])
