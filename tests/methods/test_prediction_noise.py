"""What a prediction on a new graph reads and draws, and what the card says of an edge."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from gapcases import quick
from methodgraphs import small_graph, with_arcs
from suited import seeded, suited

from gapgnn import GAP, Graph, GraphSAGE, LabelGAP, NodeLabelGAP, PrivateHops, ProGAP
from gapgnn.methods import graphsage as sage_module
from gapgnn.privacy import Directed, observed_by
from gapgnn.privacy.accounting.events import Gaussian
from gapgnn.privacy.guarantee import Guarantee
from gapgnn.privacy.mechanisms.noise import NoiseSource


def elsewhere(num_nodes: int = 200, seed: int = 1, first_id: int = 10_000) -> Graph:
    """A graph of people whom the training graph does not know."""
    graph = small_graph(num_nodes=num_nodes, seed=seed)
    return graph._replace(ids=graph.ids + first_id)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph(num_nodes=200)


# Test labels of the new graph


@pytest.fixture
def same_noise(monkeypatch):
    """Let noise depend on the seed alone: the labels are part of a graph's fingerprint."""
    real = Graph.fingerprint.func

    def of_everything_but_labels(self: Graph) -> str:
        return real(self._replace(labels=np.zeros_like(self.labels)))

    monkeypatch.setattr(Graph, "fingerprint", property(of_everything_but_labels))


WAYS = {
    **{f"gap {level}": (GAP, {"level": level}) for level in GAP.levels},
    **{f"progap {level}": (ProGAP, {"level": level, "hops": 2}) for level in ProGAP.levels},
    **{f"label-gap {level}": (LabelGAP, {"level": level, "hops": 2}) for level in LabelGAP.levels},
    # On a graph this small a share left to `auto` would release no hop.
    **{
        f"node-label-gap {own}": (NodeLabelGAP, {"level": "node", "hop_share": 0.5, "own": own})
        for own in ("nothing", "features", "record")
    },
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("where", ["test_mask", "val_mask"])
def test_labels_outside_the_new_graphs_training_set_change_no_prediction(
    graph, ledger, same_noise, name, where
):
    method, options = WAYS[name]
    batch = {"batch_size": 50} if options["level"] == "node" else {}
    shared = {"epochs": 2, "epsilon": 4.0, "hidden": 8, **batch, **seeded(options["level"], 3)}
    model = suited(method, shared, **options, ledger=ledger.path).fit(graph)
    new = elsewhere()
    hidden = getattr(new, where)
    assert hidden.any()
    changed = new._replace(labels=np.where(hidden, (new.labels + 1) % 3, new.labels))
    relabelled = new._replace(labels=np.where(new.train_mask, (new.labels + 1) % 3, new.labels))
    answers, released = [], []
    for each in (new, changed, relabelled):
        mine = copy.deepcopy(model)
        answers.append(mine.predict_proba(each))
        released.append(list(mine.releases_.hops.values())[-1].hops)
    np.testing.assert_array_equal(answers[0], answers[1])
    for ours, theirs in zip(released[0], released[1], strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    # The training labels do travel, so the comparison above can fail.
    is_label = method in (LabelGAP, NodeLabelGAP)
    assert np.array_equal(answers[0], answers[2]) == (not is_label)


# Noise of a prediction


@pytest.fixture
def noise(monkeypatch) -> list[np.ndarray]:
    """Collect the noise on every hop, for the first rows and columns, in units of its scale."""
    drawn: list[np.ndarray] = []
    real = NoiseSource.gaussian_rows

    def spy(self, first, rows, columns, std, *path, **options):
        found = real(self, first, rows, columns, std, *path, **options)
        # The steps of DP-SGD draw rows too.
        if path[-1] != "steps":
            drawn.append(found[:100, :8].double().cpu().numpy() / std)
        return found

    monkeypatch.setattr(NoiseSource, "gaussian_rows", spy)
    return drawn


def assert_unlike(drawn: list[np.ndarray]) -> None:
    """Fail if two of some draws are alike, or opposite."""
    rows = np.stack([each.reshape(-1) for each in drawn])
    likeness = rows @ rows.T / rows.shape[1]
    np.testing.assert_allclose(np.diag(likeness), 1, atol=7 * (2 / rows.shape[1]) ** 0.5)
    np.fill_diagonal(likeness, 0)
    assert np.abs(likeness).max() < 7 / rows.shape[1] ** 0.5


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("level", ["edge", "node"])
def test_predictions_on_two_graphs_share_no_noise(graph, ledger, noise, level, seed):
    model = quick(level, insecure_noise_seed=seed, ledger=ledger.path).fit(graph)
    for new in (elsewhere(seed=1), elsewhere(seed=2, first_id=20_000)):
        model.predict(new)
    # Two hops of the training graph and of each new one.
    assert len(noise) == 6
    assert_unlike(noise)


@pytest.mark.parametrize("seed", [None, 5])
def test_private_hops_of_two_graphs_share_no_noise(graph, ledger, noise, seed):
    hops = PrivateHops(hops=1, insecure_noise_seed=seed, ledger=ledger.path).fit(graph)
    for new in (elsewhere(seed=1), elsewhere(seed=2, first_id=20_000)):
        hops.transform(new)
    assert len(noise) == 3
    assert_unlike(noise)


@pytest.mark.parametrize("level", ["edge", "node"])
def test_predictions_on_one_graph_by_two_fitted_models_share_no_noise(graph, ledger, noise, level):
    new = elsewhere()
    for _ in range(2):
        quick(level, ledger=ledger.path).fit(graph).predict(new)
    assert len(noise) == 8
    assert_unlike(noise)


def test_randomised_edges_of_two_predictions_are_drawn_apart(graph, ledger, monkeypatch):
    new, released, real = elsewhere(), [], sage_module.perturb_edges

    def spy(*args, **options):
        released.append(real(*args, **options).indices)
        return real(*args, **options)

    monkeypatch.setattr(sage_module, "perturb_edges", spy)
    for _ in range(2):
        model = GraphSAGE(level="edge", epochs=1, hidden=8, epsilon=4.0, ledger=ledger.path).fit(
            graph
        )
        model.predict(new)
    # Each model reads the training graph and the new one.
    _, first, _, second = released
    assert not np.array_equal(first, second)


class Watching:
    """Lists the releases of a run."""

    def __init__(self):
        self.seen = []

    def begin(self, purpose, **about):
        pass

    def release(self, release, output):
        self.seen.append(release)
        return output


@pytest.mark.parametrize("is_directed", [False, True])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (GAP, {"epochs": 1}),
        (ProGAP, {"epochs": 1}),
        (LabelGAP, {"epochs": 1, "folds": 0, "directions": "along"}),
        (PrivateHops, {}),
    ],
)
def test_a_further_graph_is_released_and_charged_under_the_relation_of_its_own_direction(
    graph, ledger, method, options, is_directed
):
    """A symmetric one is read with noise for whole edges, whatever the first one was."""
    arcs = graph.adjacency().tocoo()
    directed = with_arcs(graph, arcs.row < arcs.col, directed=True)
    first, second = (graph, directed) if is_directed else (directed, graph)
    given = {name: one for name, one in options.items() if name != "directions" or not is_directed}
    model = method(epsilon=4.0, hops=1, ledger=ledger.path, **given).fit(first)
    watching = Watching()
    with observed_by(watching):
        model.transform(second) if method is PrivateHops else model.predict(second)
    trained, charged = ledger.entries()
    assert trained.relation == ("undirected" if is_directed else "directed")
    assert charged.relation == ("directed" if is_directed else "undirected")
    (event,), (release,) = charged.events, watching.seen
    assert release.sensitivity == pytest.approx(1.0 if is_directed else 2**0.5)
    assert release.scale / release.sensitivity == pytest.approx(event["noise_multiplier"])
    assert event["noise_multiplier"] == trained.events[0]["noise_multiplier"]
    assert [str(one.relation) for one in model.card_.releases] == [
        trained.relation,
        charged.relation,
    ]


# The card


@pytest.mark.parametrize(("epsilon", "of_an_edge"), [(4.0, 5.89), (1.0, 1.45)])
def test_the_card_prices_an_edge_with_the_square_root_of_two(epsilon, of_an_edge):
    """Two hops, delta 1e-7: the known values of the privacy page, section 1."""
    graph = Graph.from_arcs([0], [1], num_nodes=3, features=np.eye(3), directed=True)
    promise = Guarantee.resolve(
        graph,
        [Gaussian(1.0, count=2)],
        relation=Directed(),
        epsilon=epsilon,
        delta=1e-7,
    )
    assert promise.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert promise.undirected_epsilon() == pytest.approx(of_an_edge, abs=0.005)
