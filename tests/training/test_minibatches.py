"""Steps over some nodes: what they count, and whom each replica validates by."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from gapcases import small_classifier

from gapgnn.graph.graph import Graph
from gapgnn.nn.layers import cross_entropy, reset_replicas
from gapgnn.privacy.dpsgd.flat import FlatParameters
from gapgnn.training import minibatches
from gapgnn.training.inputs import FeatureInputs, HopInputs
from gapgnn.training.minibatches import Minibatches
from gapgnn.training.splits import Splits

REPLICAS, NODES, CLASSES, WIDTH = 3, 400, 4, 5


def setting(*, hop_zero: str, most: int, validates: tuple[int, ...] = (60, 60, 60)):
    """Return a network and its steps; replicas have splits of their own."""
    rng = np.random.default_rng(0)
    features = sp.csr_array((rng.random((NODES, 12)) < 0.3).astype(np.float32))
    graph = Graph.from_arcs([], [], num_nodes=NODES, features=features)
    first, width = FeatureInputs(graph, torch.device("cpu")), 12
    generator = torch.Generator().manual_seed(0)
    if hop_zero == "codes":
        first, width = torch.randn(REPLICAS, NODES, 7, generator=generator), 7
    hops = [torch.randn(REPLICAS, NODES, WIDTH, generator=generator) for _ in range(2)]
    sizes = {"first_layers": 2, "base_layers": 1, "batch_norm": True, "dropout": 0.0}
    model = small_classifier(REPLICAS, [width, WIDTH, WIDTH], CLASSES, **sizes)
    reset_replicas(model, [torch.Generator().manual_seed(seed) for seed in range(REPLICAS)])
    train, val, test = np.zeros((3, REPLICAS, NODES), dtype=np.bool_)
    for replica, count in enumerate(validates):
        order = rng.permutation(NODES)
        train[replica, order[:200]] = True
        val[replica, order[200 : 200 + count]] = True
        test[replica, order[300:]] = True
    labels = torch.randint(CLASSES, (NODES,), generator=generator)
    inputs, flat = HopInputs(first, hops), FlatParameters(model.train())
    steps = Minibatches(
        model,
        inputs,
        flat,
        labels=labels,
        splits=Splits(train, val, test),
        most=most,
        rng=np.random.default_rng(1),
    )
    return model, inputs, flat, steps, labels, train, torch.from_numpy(val)


def running_scores(model, inputs):
    """Return everybody's scores with the running statistics of validation."""
    model.eval()
    with torch.no_grad():
        scores = model(inputs.all())
    model.train()
    return scores


@pytest.mark.parametrize("hop_zero", ["features", "codes"])
@pytest.mark.parametrize("validates", [(60, 60, 60), (60, 1, 37)])
def test_validation_counts_each_replicas_own_validation_nodes(hop_zero, validates):
    model, inputs, _, steps, labels, _, val = setting(
        hop_zero=hop_zero, most=100, validates=validates
    )
    right = running_scores(model, inputs).argmax(-1) == labels
    wanted = (right & val).sum(dim=1) / val.sum(dim=1)
    assert float(steps.validate()) == pytest.approx(float(wanted.mean()), abs=1e-6)


def test_the_best_step_of_each_replica_is_kept():
    """By its own validation nodes: accuracy, less a tenth of the loss."""
    model, inputs, flat, steps, labels, _, val = setting(hop_zero="features", most=100)
    generator, start, seen, worths = torch.Generator().manual_seed(2), flat.values.clone(), [], []
    for _ in range(6):
        flat.values.copy_(start + 0.1 * torch.randn(start.shape, generator=generator))
        steps.validate()
        scores = running_scores(model, inputs)
        right, losses = scores.argmax(-1) == labels, cross_entropy(scores, labels)
        utility = (right * val).sum(1) - minibatches.LOSS_SHARE * (losses * val).sum(1)
        worths.append(utility / val.sum(1))
        seen.append(flat.values.clone())
    steps.best.restore()
    best = torch.stack(worths).argmax(dim=0)
    assert len(set(best.tolist())) > 1, "replicas must differ for this to say anything"
    for replica, step in enumerate(best.tolist()):
        assert torch.equal(flat.values[replica], seen[step][replica])


@pytest.mark.parametrize("hop_zero", ["features", "codes"])
def test_the_gradient_is_that_of_the_training_nodes_among_those_dealt(hop_zero):
    model, inputs, flat, steps, labels, train, _ = setting(hop_zero=hop_zero, most=100)
    steps.next_batch()
    nodes = steps._places
    assert len(nodes) < NODES
    found, _ = steps.gradient()
    weights = torch.from_numpy(train)[:, nodes].float()
    losses = cross_entropy(model(inputs.taken(nodes)), labels[nodes]) * weights
    wanted = flat.gradient((losses.sum(dim=1) / weights.sum(dim=1)).sum())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_without_validation_nodes_nobody_looks_and_the_last_step_stays():
    _, _, flat, steps, *_ = setting(hop_zero="features", most=100, validates=(0, 0, 0))
    assert not any(steps.is_validated(step, is_last=step == 40) for step in range(1, 41))
    flat.values.add_(1.0)
    last = flat.values.clone()
    steps.best.restore()
    assert torch.equal(flat.values, last)


def test_a_look_reads_so_many_nodes_at_the_most(monkeypatch):
    monkeypatch.setattr(minibatches, "LOOKED", 20)
    _, _, _, steps, *_ = setting(hop_zero="codes", most=100)
    assert [block.shape[1] for block in steps._validated] == [20, 20, 20]
