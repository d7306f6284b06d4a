"""Answers for people who came after the training: what is read, released and charged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from methodgraphs import small_graph
from typedgraphs import unlike_types

from gapgnn import GAP, MLP, Graph, GraphSAGE, LabelGAP, NodeLabelGAP, load_model
from gapgnn.errors import BudgetExceededError, InputError, PrivacyError
from gapgnn.graph import induced, random_split
from gapgnn.methods import ReleasedHops, Releases
from gapgnn.methods.label_gap.new_people import NewPeople
from gapgnn.privacy import Release
from gapgnn.privacy.ledger import People
from gapgnn.privacy.observer import observed_by

KNOWN = 250
# With other noise the mixing weight may be 0, and edges are not read.
LABELS = {"epsilon": 4.0, "epochs": 5, "insecure_noise_seed": 0}


@pytest.fixture(scope="module")
def whole() -> Graph:
    return small_graph(num_nodes=300)


def part(whole: Graph, keep: np.ndarray, *, dangle: bool = False) -> Graph:
    return induced(whole, keep, dangle=dangle)


def trained(whole: Graph, ledger, **options) -> LabelGAP:
    return LabelGAP(**{**LABELS, **options}, ledger=ledger.path).fit(part(whole, np.arange(KNOWN)))


def newcomers(whole: Graph) -> Graph:
    """Return the new people alone; their entries that name known people dangle."""
    return part(whole, np.arange(KNOWN, whole.num_nodes), dangle=True)


def without_edge(graph: Graph, u: int, v: int) -> Graph:
    arcs = graph.adjacency().tocoo()
    keep = ~(((arcs.row == u) & (arcs.col == v)) | ((arcs.row == v) & (arcs.col == u)))
    rows = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    return Graph.from_arcs(
        arcs.row[keep],
        arcs.col[keep],
        num_nodes=graph.num_nodes,
        label_names=graph.label_names,
        **{key: getattr(graph, key) for key in rows},
    )


@dataclass
class Observed:
    """Keeps what every hop is before noise, and lets the run go on with what came out first."""

    outputs: dict[str, object] = field(default_factory=dict)
    releases: dict[str, Release] = field(default_factory=dict)

    def begin(self, purpose, *, ids, relation) -> None:
        self.releases = {}
        self.ids = ids

    def release(self, release, output):
        self.releases[release.name] = release
        return self.outputs.setdefault(release.name, output)

    def batch(self, phase, batch, members):
        return batch


class TestWhatIsReleased:
    def test_one_new_edge_moves_a_hop_by_no_more_than_is_charged(self, whole, ledger):
        model = trained(whole, ledger)
        arcs = whole.adjacency().tocoo()
        some_new = np.maximum(arcs.row, arcs.col) >= KNOWN
        both_new = np.minimum(arcs.row, arcs.col) >= KNOWN
        observed = Observed()
        values = []
        first_known = np.flatnonzero(some_new & ~both_new & (arcs.row < KNOWN))[0]
        chosen = [first_known, np.flatnonzero(both_new & (arcs.row < arcs.col))[0]]
        graphs = [whole, *(without_edge(whole, arcs.row[k], arcs.col[k]) for k in chosen)]
        with observed_by(observed):
            for graph in graphs:
                model.predict(graph, new_people=True)
                values.append(dict(observed.releases))
        is_new = np.isin(observed.ids, whole.ids[KNOWN:])
        hops = [name for name in values[0] if name.startswith("hop ")]
        assert len(hops) == 4
        moved = []
        for other in values[1:]:
            for name in hops:
                change = (other[name].value - values[0][name].value)[..., is_new, :]
                distance = float(np.linalg.norm(change))
                moved.append(distance)
                assert distance <= values[0][name].sensitivity * (1 + 1e-6)
        # Of an edge to a known person one row is released, of one between new people both.
        assert max(moved[:4]) <= 1 + 1e-6
        assert moved[4] > 1
        assert values[0][hops[0]].sensitivity == pytest.approx(math.sqrt(2))
        paid = model.card_.releases[1].events[0]
        assert paid["count"] == 4
        assert values[0][hops[0]].scale == pytest.approx(paid["noise_multiplier"] * math.sqrt(2))

    def test_edges_of_known_people_are_not_read(self, whole, ledger):
        model = trained(whole, ledger)
        first = model.predict_proba(whole, new_people=True)
        arcs = whole.adjacency().tocoo()
        known = np.flatnonzero(np.maximum(arcs.row, arcs.col) < KNOWN)[0]
        changed = without_edge(whole, arcs.row[known], arcs.col[known])
        np.testing.assert_array_equal(model.predict_proba(changed, new_people=True), first)
        assert len(ledger.entries()) == 2

    def test_known_people_send_what_their_released_rows_say(self, whole, ledger):
        model = trained(whole, ledger)
        observed, values = Observed(), []
        training = model.releases_.training()
        with observed_by(observed):
            for sign in (1, -1):
                hops = (training.hops[0], *(sign * hop for hop in training.hops[1:]))
                model.releases_ = Releases({training.release: replace(training, hops=hops)})
                model.predict(whole, new_people=True)
                values.append(dict(observed.releases))
        is_new = np.isin(observed.ids, whole.ids[KNOWN:])
        first, second = (
            [value[name].value[..., is_new, :] for name in ("hop 1", "hop 2")] for value in values
        )
        # In hop 1 they send labels and feature predictions, in hop 2 also what hop 1 says.
        np.testing.assert_array_equal(first[0], second[0])
        assert not np.array_equal(first[1], second[1])

    def test_rows_of_known_people_are_not_released_again(self, whole, ledger):
        model = trained(whole, ledger)
        model.predict(whole, new_people=True)
        kept = list(model.releases_.hops.values())[1]
        assert kept.ids.tolist() == whole.ids[KNOWN:].tolist()
        assert [len(hop) for hop in kept.hops] == [whole.num_nodes - KNOWN] * 5

    def test_asked_again_the_same_answer_and_no_charge(self, whole, ledger, tmp_path):
        model = trained(whole, ledger)
        model.save(tmp_path / "model")
        first = model.predict_proba(whole, new_people=True)
        model.save_releases(tmp_path / "model")
        assert first.shape == (whole.num_nodes - KNOWN, whole.num_classes)
        loaded = load_model(tmp_path / "model", ledger=ledger.path)
        assert loaded.prediction_guarantee(whole, new_people=True) is None
        np.testing.assert_array_equal(loaded.predict_proba(whole, new_people=True), first)
        assert len(ledger.entries()) == 2
        # Released rows of new people are no answer for a graph of everybody.
        assert loaded.prediction_guarantee(whole) is not None

    def test_it_is_of_use(self, whole, ledger):
        model = trained(whole, ledger, epsilon=8.0, epochs=40)
        truth = model.classes_[whole.labels[KNOWN:]]
        for graph in (whole, newcomers(whole)):
            found = model.predict(graph, new_people=True)
            assert (found == truth).mean() > 0.6


class TestWhatItCosts:
    def test_new_edges_alone_at_the_delta_of_the_training(self, whole, ledger):
        model = trained(whole, ledger)
        # So few that an automatic delta of their own would be larger.
        few = part(whole, np.arange(KNOWN, KNOWN + 2), dangle=True)
        price = model.prediction_guarantee(few, new_people=True)
        model.predict(few, new_people=True)
        charge = ledger.entries()[-1]
        assert (charge.epsilon, charge.delta) == (price.epsilon, model.card_.delta)
        assert charge.epsilon == pytest.approx(model.card_.epsilon, rel=1e-3)
        listed = model.card_.releases[1]
        assert (listed.purpose, listed.charge_id) == ("prediction for new people", charge.id)
        assert model.card_.composed_epsilon > model.card_.epsilon

    def test_everybody_the_new_edges_name_is_charged(self, whole, ledger):
        model = trained(whole, ledger)
        fit = ledger.entries()[0]
        model.predict(newcomers(whole), new_people=True)
        assert fit.population in {ledger.entries()[-1].population, *ledger.entries()[-1].others}

    def test_over_budget_it_is_refused(self, whole, ledger):
        model = trained(whole, ledger)
        budget = {"level": "edge", "relation": "undirected", "epsilon": 4.5, "delta": 1e-3}
        known = People.of(part(whole, np.arange(KNOWN)))
        ledger.grant("customers", known, **budget, composition="sum")
        with pytest.raises(BudgetExceededError):
            model.predict(newcomers(whole), new_people=True)
        assert len(model.card_.releases) == len(ledger.entries()) == 1

    def test_own_record_is_free_and_keeps_nothing(self, whole, ledger):
        model = trained(whole, ledger)
        first = model.predict_proba(whole, own="record", new_people=True)
        assert model.prediction_guarantee(whole, own="record", new_people=True) is None
        assert len(ledger.entries()) == len(model.releases_.hops) == 1
        again = model.predict_proba(whole, own="record", new_people=True)
        np.testing.assert_array_equal(first, again)
        few = model.predict_proba(newcomers(whole), own="record", new_people=True)
        assert few.shape == first.shape

    @pytest.mark.parametrize("only_new", [True, False])
    def test_own_record_reads_the_own_edges_and_nobody_else_s(self, only_new, whole, ledger):
        model = trained(whole, ledger)
        u, v = KNOWN, int(whole.out_neighbours(KNOWN)[0])

        def asked(graph: Graph) -> np.ndarray:
            graph = newcomers(graph) if only_new else graph
            return model.predict_proba(graph, own="record", new_people=True)

        first, second = asked(whole), asked(without_edge(whole, u, v))
        differs = np.flatnonzero((first != second).any(axis=1)) + KNOWN
        assert u in differs
        assert set(differs.tolist()) <= {u, v}


class TestWhoIsNew:
    def test_nobody_new_is_refused(self, whole, ledger):
        model = trained(whole, ledger)
        with pytest.raises(InputError, match="must have people who were not in the graph"):
            model.predict(part(whole, np.arange(KNOWN)), new_people=True)

    def test_without_cross_fitting_rows_of_the_known_are_needed(self, whole, ledger):
        model = trained(whole, ledger, folds=0)
        assert len(model.predict(whole, new_people=True)) == whole.num_nodes - KNOWN
        with pytest.raises(InputError, match="Give the rows of the known people"):
            model.predict(newcomers(whole), new_people=True)
        assert len(ledger.entries()) == 2

    @pytest.mark.parametrize(
        ("model", "refusal"),
        [
            (NodeLabelGAP(epsilon=8.0, epochs=1), PrivacyError),
            (GAP(epsilon=8.0, epochs=1), InputError),
            (MLP(epochs=1), InputError),
            (GraphSAGE(epsilon=4.0, epochs=1), InputError),
        ],
        ids=["node", "gap", "mlp", "sage"],
    )
    def test_others_say_what_they_cannot_do(self, model, refusal, whole, ledger):
        model.set_params(ledger=ledger.path).fit(part(whole, np.arange(KNOWN)))
        before = len(ledger.entries())
        with pytest.raises(refusal, match="`new_people` must be left out"):
            model.predict(whole, new_people=True)
        assert len(ledger.entries()) == before

    def test_ids_as_text_are_the_same_people(self, whole, ledger):
        model = trained(whole, ledger)
        first = model.predict_proba(whole, new_people=True)
        as_text = random_split(whole._replace(ids=whole.ids.astype(str)), seed=0)
        assert model.predict_proba(as_text, new_people=True).shape == first.shape


def amounts(edges: Graph) -> np.ndarray:
    """The weight of every arc, as a matrix; 1 without weights."""
    arcs = edges.adjacency().tocoo()
    found = np.zeros((edges.num_nodes, edges.num_nodes))
    found[arcs.row, arcs.col] = 1.0 if edges.weights is None else edges.weights
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_of_every_edge_type_the_new_edges_are_read_and_their_ends_are_charged(weighted):
    whole = unlike_types(directed=True, weighted=weighted)
    is_late = np.arange(whole.num_nodes) >= 100
    known = ReleasedHops("", np.arange(100), (torch.zeros(100, 2),), has_hop_zero=True)
    found = NewPeople.beside(whole, known, needs_rows=True)
    order = np.concatenate([np.flatnonzero(is_late), known.ids])
    is_new = is_late[:, None] | is_late[None, :]
    named = set(np.flatnonzero(is_late).tolist())
    for one, read in zip(whole.edge_types, found.graph.edge_types, strict=True):
        arcs = amounts(one)
        np.testing.assert_array_equal(amounts(read), (arcs * is_new)[order][:, order])
        assert (arcs * ~is_new).any()
        named |= set(np.concatenate(np.nonzero(arcs * is_new)).tolist())
    assert set(found.people.ids.tolist()) == named
