"""Private hops: released once and charged once, for any model on top, with a card of their own."""

from __future__ import annotations

import itertools
import json

import networkx
import numpy as np
import pytest
import torch
from pyarrow import parquet
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from typedgraphs import unlike_types

from gapgnn import Checkpoint, Graph, Ledger, PrivateHops, load_model
from gapgnn.audits.replay import Recording, Replaying
from gapgnn.errors import BudgetExceededError, DataError, InputError, PrivacyError
from gapgnn.graph import to_networkx, to_pyg
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.methods.folder import CONFIG
from gapgnn.privacy import observed_by
from gapgnn.privacy.ledger import People
from gapgnn.privacy.mechanisms import row_normalise

NODES, WIDTH = 60, 5


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """The user's own ledger, which nobody has to name."""
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    return ledger


@pytest.fixture(scope="module")
def graph():
    return generate(num_nodes=NODES, mean_degree=6, num_features=WIDTH, num_classes=3)


@pytest.fixture
def x(graph):
    return torch.tensor(np.asarray(graph.features), dtype=torch.float32)


def quiet(text):
    """Say no price."""


class Observer:
    """Lists the releases of a run."""

    def __init__(self):
        self.seen = []

    def begin(self, *args, **about):
        pass

    def release(self, release, output):
        self.seen.append(release)
        return output


class Interrupted(Observer):
    """Stops a run after its first release."""

    def release(self, release, output):
        if len(self.seen) == 1:
            raise ZeroDivisionError
        return super().release(release, output)


def observed(work):
    observer = Observer()
    with observed_by(observer):
        found = work()
    return observer.seen, found


def arcs_of(graph):
    indptr = np.asarray(graph.indptr)
    return np.repeat(np.arange(graph.num_nodes), np.diff(indptr)), np.asarray(graph.indices)


def bare(graph):
    """Return a PyG Data without features."""
    return Data(edge_index=to_pyg(graph).edge_index, num_nodes=graph.num_nodes)


class TestFit:
    @pytest.mark.parametrize("form", ["graph", "pyg", "bare pyg", "scipy", "networkx"])
    def test_takes_every_form_of_a_graph_and_charges_once(self, ledger, graph, x, form):
        given = {
            "graph": graph,
            "pyg": to_pyg(graph),
            "bare pyg": bare(graph),
            "scipy": graph.adjacency(),
            "networkx": networkx.Graph(to_networkx(graph).edges()),
        }[form]
        if form == "networkx":
            given.add_nodes_from(range(NODES))
            x = x[list(given)]
        z = PrivateHops(level="edge", epsilon=1.0, hops=2).fit_transform(given, x)
        assert [tuple(hop.shape) for hop in z] == [(NODES, WIDTH)] * 3
        (charge,) = ledger.entries()
        assert charge.purpose == "private-hops fit"
        assert 0.995 < charge.epsilon <= 1.0

    def test_hops_are_normalised_exact_sums_with_the_noise_that_was_charged(self, ledger, graph, x):
        hops = PrivateHops(epsilon=2.0, hops=2)
        seen, z = observed(lambda: hops.fit_transform(graph, x))
        dense = torch.tensor(graph.adjacency().toarray()).double()
        for sent, release in zip(z, seen, strict=False):
            on_grid = torch.trunc(sent.double() * 2**14) / 2**14
            exact = dense.T @ on_grid
            assert torch.allclose(torch.tensor(release.value), exact, atol=1e-9)
        scale = hops.plan_.promise.multiplier_of("aggregation") * 2**0.5
        assert [one.scale for one in seen] == [pytest.approx(scale)] * 2
        for hop in z:
            assert torch.allclose(hop.norm(dim=1), torch.ones(NODES), atol=1e-5)
        assert torch.equal(z[0], row_normalise(x))

    def test_the_price_is_printed_before_it_is_charged(self, ledger, graph, capsys):
        said = []
        PrivateHops().fit(graph, announce=lambda text: said.append((text, ledger.entries())))
        (text, before), *_ = said
        price = "private-hops is charged epsilon 1.00, delta 0.0001 (undirected) "
        assert text.startswith(price)
        assert before == []
        PrivateHops().fit(graph)
        assert f"Price: {text}" in capsys.readouterr().err

    def test_a_budget_that_cannot_pay_releases_nothing(self, ledger, graph):
        people = People.of(graph)
        terms = {"level": "edge", "relation": "undirected", "epsilon": 0.5, "delta": 1e-3}
        ledger.grant("people", people, **terms)
        hops = PrivateHops(epsilon=1.0)
        observer = Observer()
        with observed_by(observer), pytest.raises(BudgetExceededError):
            hops.fit(graph)
        assert observer.seen == []
        with pytest.raises(NotFittedError):
            hops.transform()

    def test_a_gradient_of_the_rows_ends_at_hop_zero(self, ledger, graph, x):
        encoder = nn.Linear(WIDTH, 3)
        z = PrivateHops(hops=2).fit_transform(graph, encoder(x), announce=quiet)
        for hop in z[1:]:
            with pytest.raises(PrivacyError, match="a release has no gradient"):
                hop.sum().backward(retain_graph=True)
        assert encoder.weight.grad is None
        z[0].square().sum().backward()
        assert encoder.weight.grad is not None
        plain = PrivateHops(hops=1).fit_transform(graph, x, announce=quiet)
        assert not any(hop.requires_grad for hop in plain)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"hops": 0}, "hops"),
            ({"epsilon": 0.0}, "epsilon"),
            ({"relation": "replace"}, "relation"),
            ({"max_degree": 7}, "max_degree"),
            ({"edge_types": "each"}, "edge_types"),
            ({"level": "none"}, None),
            ({"level": "none", "epsilon": 2.0}, "epsilon"),
            ({"level": "node", "edge_types": "any"}, "edge_types"),
            ({"device": "tpu"}, "device"),
        ],
    )
    def test_what_cannot_work_is_refused_before_the_charge(self, ledger, graph, options, said):
        hops = PrivateHops(**options)
        if said is None:
            assert len(hops.fit_transform(graph)) == 3
        else:
            with pytest.raises(InputError, match=f"`{said}`"):
                hops.fit(graph)
        assert ledger.entries() == []

    @pytest.mark.parametrize(
        "rows",
        [
            torch.ones(NODES - 1, 2),
            torch.ones(NODES),
            torch.ones(NODES, 0),
            torch.full((NODES, 2), float("nan")),
            torch.ones(NODES, 2, dtype=torch.complex64),
            [["a"] * 2] * NODES,
        ],
    )
    def test_rows_that_cannot_be_sent_are_refused_before_the_charge(self, ledger, graph, rows):
        with pytest.raises(InputError, match="`x` must"):
            PrivateHops().fit(graph, rows)
        assert ledger.entries() == []

    def test_rows_of_a_graph_convolution_are_refused_before_the_charge(self, ledger, graph, x):
        data = to_pyg(graph)
        mixed = GCNConv(WIDTH, 2)(data.x, data.edge_index)
        with pytest.raises(PrivacyError, match="computed without edges"):
            PrivateHops().fit(data, mixed)
        assert ledger.entries() == []

    def test_a_convolution_beside_other_rows_is_refused_before_the_charge(self, ledger, graph, x):
        data = to_pyg(graph)
        beside = data.x + GCNConv(WIDTH, WIDTH)(data.x, data.edge_index)
        with pytest.raises(PrivacyError, match="computed without edges"):
            PrivateHops().fit(data, beside)
        assert ledger.entries() == []

    def test_an_interrupted_fit_leaves_no_card_of_an_earlier_one(self, ledger, graph):
        hops = PrivateHops().fit(graph, announce=quiet)
        with observed_by(Interrupted()), pytest.raises(ZeroDivisionError):
            hops.fit(graph, announce=quiet)
        with pytest.raises(NotFittedError):
            hops.transform()

    def test_the_curator_reads_people_with_a_budget_without_spending_it_on_record_alone(
        self, ledger, graph
    ):
        terms = {"level": "edge", "relation": "undirected", "epsilon": 4.0, "delta": 1e-3}
        ledger.grant("people", People.of(graph), **terms)
        free = PrivateHops(level="none", epsilon=float("inf"))
        with pytest.raises(PrivacyError, match="curator_only"):
            free.fit(graph)
        free.fit(graph, curator_only="to see what noise costs")
        (access,) = ledger.entries()
        assert (access.reason, access.epsilon) == ("to see what noise costs", 0.0)

    @pytest.mark.parametrize(("protects", "events"), [("any", 2), ("each", 4)])
    def test_every_edge_type_has_its_own_chain_and_its_price(self, ledger, protects, events):
        graph = unlike_types()
        hops = PrivateHops(hops=2, edge_types=protects)
        seen, z = observed(lambda: hops.fit_transform(graph, announce=quiet))
        width = graph.num_features
        assert [hop.shape[1] for hop in z] == [width, 2 * width, 2 * width]
        assert [event.times for event in hops.plan_.promise.events] == [events]
        assert len({one.name for one in seen}) == 4
        assert hops.card_.protects == protects

    def test_an_interrupted_run_goes_on_without_drawing_or_paying_again(
        self, ledger, graph, tmp_path
    ):
        hops, folder = PrivateHops(hops=2), tmp_path / "unfinished"
        first, again = (Checkpoint(folder, ledger=None, resume=resume) for resume in (False, True))
        with observed_by(Interrupted()), pytest.raises(ZeroDivisionError):
            hops.fit(graph, checkpoint=first)
        first.close()
        seen, _ = observed(lambda: hops.fit(graph, checkpoint=again))
        again.remove()
        assert [one.name for one in seen] == ["hop 2"]
        (charge,) = ledger.entries()
        assert hops.card_.ledger.charge_id == charge.id


class TestNodeLevel:
    def test_hop_zero_is_in_nothing_that_leaves(self, ledger, graph, x, tmp_path):
        hops = PrivateHops(level="node", epsilon=8.0, hops=2, max_degree=4)
        z = hops.fit_transform(graph, x)
        assert len(z) == 2
        hops.save(tmp_path / "rows", format="parquet")
        loaded = PrivateHops.load(tmp_path / "rows")
        sent = row_normalise(x)
        for released in (*z, *hops.transform(), *loaded.transform(graph)):
            assert not torch.isclose(released, sent, atol=1e-3).all(dim=1).any()
        (table,) = (tmp_path / "rows" / "hops").glob("*.parquet")
        columns = parquet.read_table(table).column_names
        assert not [name for name in columns if name.startswith("hop0")]

    def test_the_card_says_what_the_promise_rests_on(self, ledger, graph, x):
        hops = PrivateHops(level="node", epsilon=8.0)
        given, features = hops.fit(graph, x).card_, hops.fit(graph).card_
        assert "each of them was computed from that person's own record" in given.messages
        assert "learned from several people without noise" in given.messages
        assert features.messages.startswith("Rows computed from the features of each node")
        assert "the released rows" in str(given)
        assert "model" not in str(given)
        assert not [what for what, _ in given.public if "training" in what]

    def test_batch_norm_is_refused_and_one_record_stops_nothing(self, ledger, graph, x):
        mixed = nn.Sequential(nn.Linear(WIDTH, 3), nn.BatchNorm1d(3))(x)
        with pytest.raises(PrivacyError, match="computed each from one person's own record"):
            PrivateHops(level="node", epsilon=8.0).fit(graph, mixed)
        assert ledger.entries() == []
        x[3], x[7, 0] = float("nan"), float("inf")
        seen, _ = observed(lambda: PrivateHops(level="node", epsilon=8.0).fit(graph, x))
        assert all(np.isfinite(one.value).all() for one in seen)

    def test_a_row_with_one_bad_cell_sends_nothing(self, ledger, graph, x):
        x[3, 1] = float("nan")
        options = {"level": "node", "epsilon": 8.0, "hops": 1, "max_degree": NODES}
        seen, _ = observed(lambda: PrivateHops(**options).fit(graph, x, announce=quiet))
        sent = row_normalise(torch.where(torch.isfinite(x).all(dim=1, keepdim=True), x, 0.0))
        sums = graph.adjacency().toarray().T @ sent.numpy()
        assert np.allclose(seen[0].value, sums, atol=1e-2)

    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_noise_is_secret_and_never_the_same_twice(self, ledger, graph, x, level):
        """Neither between two fits, nor between a fit and another graph, nor that of a seed."""
        fits = [PrivateHops(level=level, epsilon=8.0).fit(graph, x) for _ in range(2)]
        seeded = [
            PrivateHops(level=level, epsilon=8.0, insecure_noise_seed=seed).fit(graph, x)
            for seed in (0, 1)
        ]
        last = [hops.transform()[-1] for hops in (*fits, *seeded)]
        for one, other in itertools.combinations(last, 2):
            assert not torch.isclose(one, other).any()
        assert all(hops.card_.is_private_release for hops in fits)
        assert not any(hops.card_.is_private_release for hops in seeded)

    def test_lists_are_cut_and_the_noise_is_for_whole_records(self, ledger, graph, x):
        hops = PrivateHops(level="node", epsilon=8.0, relation="replace", max_degree=4)
        seen, _ = observed(lambda: hops.fit(graph, x))
        assert {one.sensitivity for one in seen} == {4.0}
        assert hops.card_.max_degree == 4
        assert seen[0].value.sum() < np.asarray(graph.adjacency().toarray()).sum()


class TestTransform:
    def test_the_same_graph_is_answered_without_a_charge(self, ledger, graph, x):
        hops = PrivateHops()
        z = hops.fit_transform(graph, x)
        for answer in (hops.transform(), hops.transform(graph), hops.transform(graph, x)):
            assert all(map(torch.equal, answer, z))
        assert hops.guarantee(graph) is None
        order = torch.randperm(NODES, generator=torch.Generator().manual_seed(0))
        place = torch.empty_like(order)
        place[order] = torch.arange(NODES)
        sources, targets = arcs_of(graph)
        shuffled = Graph.from_arcs(
            place[torch.tensor(sources)].numpy(),
            place[torch.tensor(targets)].numpy(),
            num_nodes=NODES,
            features=np.asarray(graph.features)[order],
            labels=graph.labels[order],
            ids=graph.ids[order],
            label_names=graph.label_names,
        )
        assert torch.equal(hops.transform(shuffled)[1], z[1][order])
        assert len(ledger.entries()) == 1

    @pytest.mark.parametrize("level", ["edge", "node"])
    def test_other_rows_on_the_same_graph_are_refused_and_not_charged(
        self, ledger, graph, x, level
    ):
        hops = PrivateHops(level=level, epsilon=8.0).fit(graph, x)
        with pytest.raises(InputError, match="must be the rows that were sent"):
            hops.transform(graph, x.flip(0))
        assert len(ledger.entries()) == 1

    def test_another_graph_is_charged_and_listed_on_the_card(self, ledger, graph, capsys):
        other = generate(num_nodes=NODES, mean_degree=6, num_features=WIDTH, num_classes=3, seed=7)
        hops = PrivateHops(epsilon=2.0).fit(graph)
        price = hops.guarantee(other)
        capsys.readouterr()
        z = hops.transform(other)
        assert capsys.readouterr().err.startswith("Price: private-hops is charged epsilon")
        first, second = ledger.entries()
        assert (second.purpose, second.epsilon) == ("private-hops predict", price.epsilon)
        assert [one.purpose for one in hops.card_.releases] == ["fit", "transform"]
        assert hops.card_.composed_epsilon > max(first.epsilon, second.epsilon)
        alone = f"The first release alone promises epsilon {hops.card_.epsilon:.2f}"
        assert alone in str(hops.card_)
        assert all(map(torch.equal, hops.transform(other), z))
        assert len(ledger.entries()) == 2

    def test_a_charged_graph_is_on_the_card_whatever_stops_its_release(self, ledger, graph):
        other = generate(num_nodes=NODES, mean_degree=6, num_features=WIDTH, num_classes=3, seed=7)
        hops = PrivateHops().fit(graph, announce=quiet)
        with observed_by(Interrupted()), pytest.raises(ZeroDivisionError):
            hops.transform(other, announce=quiet)
        charged = [one.id for one in ledger.entries()]
        assert [one.charge_id for one in hops.card_.releases] == charged

    def test_what_no_card_can_list_is_refused_before_it_is_charged(self, ledger, graph):
        other = generate(num_nodes=NODES, mean_degree=6, num_features=WIDTH, num_classes=3, seed=7)
        hops = PrivateHops(level="node", epsilon=8.0).fit(graph, announce=quiet)
        hops.set_params(relation="replace")
        with pytest.raises(PrivacyError, match="must be of one relation"):
            hops.transform(other)
        assert len(ledger.entries()) == 1

    def test_an_automatic_delta_is_that_of_the_graph_that_is_read(self, ledger, graph):
        hops = PrivateHops().fit(graph, announce=quiet)
        larger = generate(num_nodes=900, mean_degree=20, num_features=WIDTH, num_classes=3)
        assert hops.card_.delta == 1e-4
        assert hops.guarantee(larger).delta == 1e-5

    def test_another_width_or_other_edge_types_are_refused_before_the_charge(self, ledger, graph):
        hops = PrivateHops().fit(graph)
        wide = generate(num_nodes=NODES, mean_degree=6, num_features=9, num_classes=3)
        for other, said in ((wide, "columns of the first graph"), (unlike_types(), "edge types")):
            with pytest.raises(InputError, match=said):
                hops.transform(other)
        assert len(ledger.entries()) == 1


class TestTransformer:
    def test_parameters_are_read_set_and_cloned(self, ledger, graph):
        hops = PrivateHops(level="node", epsilon=3.0, hops=1, max_degree=9)
        assert clone(hops).get_params() == hops.get_params()
        assert clone(hops.fit(graph)).set_params(hops=2).hops == 2
        with pytest.raises(NotFittedError, match="not fitted"):
            clone(hops).transform(graph)
        with pytest.raises(PrivacyError, match="`level` must be node"):
            hops.set_params(level="edge").transform(graph)

    def test_a_pipeline_goes_from_the_graph_to_an_estimator(self, ledger, graph):
        side_by_side = FunctionTransformer(lambda hops: torch.cat(hops, dim=1).numpy())
        model = make_pipeline(PrivateHops(epsilon=8.0), side_by_side)
        table = model.fit_transform(graph)
        names = model[0].get_feature_names_out()
        assert table.shape == (NODES, len(names)) == (NODES, 3 * WIDTH)
        assert (names[0], names[-1]) == ("hop0_0", f"hop2_{WIDTH - 1}")
        LogisticRegression().fit(table, graph.labels)
        model.transform(graph)
        assert len(ledger.entries()) == 1


class TestFolder:
    @pytest.fixture
    def saved(self, ledger, graph, x, tmp_path):
        hops = PrivateHops(epsilon=2.0).fit(graph, x)
        hops.save(tmp_path / "rows", format="parquet")
        return hops, tmp_path / "rows"

    def test_a_loaded_folder_answers_for_its_graph_free_of_charge(self, saved, graph, x, ledger):
        hops, folder = saved
        loaded = PrivateHops.load(folder)
        assert all(map(torch.equal, loaded.transform(graph, x), hops.transform()))
        assert loaded.card_ == hops.card_
        with pytest.raises(InputError, match="must be the rows that were sent"):
            loaded.transform(graph, x.flip(0))
        assert len(ledger.entries()) == 1

    def test_the_table_holds_the_ids_and_every_column(self, saved, graph):
        hops, folder = saved
        (file,) = (folder / "hops").glob("*.parquet")
        table = parquet.read_table(file)
        assert table.column_names == ["id", *hops.get_feature_names_out()]
        assert table["id"].to_pylist() == graph.ids.tolist()
        assert np.array_equal(table["hop2_1"].to_numpy(), hops.transform()[2][:, 1].numpy())

    def test_a_further_release_is_added_with_its_card(self, saved, ledger):
        hops, folder = saved
        other = generate(num_nodes=NODES, mean_degree=6, num_features=WIDTH, num_classes=3, seed=7)
        z = hops.transform(other)
        hops.save_releases(folder)
        loaded = PrivateHops.load(folder)
        assert len(list((folder / "hops").glob("*.parquet"))) == 2
        assert all(map(torch.equal, loaded.transform(other), z))
        assert loaded.card_.composed_epsilon == hops.card_.composed_epsilon

    @pytest.mark.parametrize("protects", ["any", "each"])
    def test_rows_of_several_edge_types_are_loaded_again(self, ledger, tmp_path, protects):
        graph = unlike_types()
        hops = PrivateHops(edge_types=protects).fit(graph, announce=quiet)
        hops.save(tmp_path / "rows")
        loaded = PrivateHops.load(tmp_path / "rows")
        assert all(map(torch.equal, loaded.transform(graph), hops.transform()))

    def test_rows_are_no_model_and_a_model_is_no_rows(self, saved):
        _, folder = saved
        with pytest.raises(InputError, match=r"use `gapgnn\.PrivateHops\.load`"):
            load_model(folder)

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("params", "noise"), "fast"),
            (("params", "level"), "node"),
            (("params", "epsilon"), "1.0"),
            (("plan", "hops", "aggregation", "count"), 9),
            (("plan", "guarantee", "events", 0, "noise_multiplier"), 0.1),
            (("releases",), []),
        ],
    )
    def test_a_folder_that_contradicts_its_card_is_refused(self, saved, path, value):
        from gapgnn.methods.folder import _checksum

        _, folder = saved
        config = json.loads((folder / CONFIG).read_text())
        del config["checksum"]
        place = config
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        config["checksum"] = _checksum(config)
        (folder / CONFIG).write_text(json.dumps(config))
        with pytest.raises(DataError, match="damaged"):
            PrivateHops.load(folder)


# Neighbours ---------------------------------------------------------------------------------------


def neighbours(rng, relation):
    """Return two random graphs that are neighbours, the rows of each, and whose record differs."""
    size = 12
    arcs = {(int(a), int(b)) for a, b in rng.integers(0, size, (30, 2)) if a != b}
    rows = rng.normal(size=(size, 3)).astype(np.float32)
    person = int(rng.integers(size))
    other, others = set(arcs), rows.copy()
    if relation in ("add-remove", "replace"):
        other = {arc for arc in arcs if arc[0] != person}
        if relation == "replace":
            other |= {(person, b) for b in rng.permutation(size)[:6].tolist() if b != person}
            others[person] = -10 * rows[person]
    elif relation.endswith("arcs") or relation == "directed":
        count = int(relation.split("-")[0]) if "-" in relation else 1
        mine = [arc for arc in sorted(arcs) if arc[0] == person] or [sorted(arcs)[0]]
        other -= set(mine[:count])
    else:
        arcs |= {(b, a) for a, b in arcs}
        count = int(relation.split("-")[0]) if "-" in relation else 1
        mine = [arc for arc in sorted(arcs) if arc[0] == person] or [sorted(arcs)[0]]
        other = arcs - {pair for a, b in mine[:count] for pair in ((a, b), (b, a))}
    return (arcs, rows), (other, others), person


def graph_of(arcs, *, gone=None, directed):
    """Return a graph of 12 people; who is gone stays named in the lists of others."""
    ids = [node for node in range(12) if node != gone]
    place = {node: k for k, node in enumerate(ids)}
    kept = sorted((place[a], place[b]) for a, b in arcs if a in place and b in place)
    named = {place[a]: [b] for a, b in arcs if b == gone and a in place}
    sources, targets = np.array(kept or [(0, 0)]).T
    return Graph.from_arcs(
        sources,
        targets,
        num_nodes=len(ids),
        features=np.zeros((len(ids), 1), dtype=np.float32),
        ids=ids,
        directed=directed,
        dangling=named or None,
    )


RELATIONS = ["directed", "undirected", "3-arcs", "3-edges", "add-remove", "replace"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_release_moves_further_between_neighbours_than_it_is_charged_for(ledger, relation):
    level = "node" if relation in ("add-remove", "replace") else "edge"
    bound = {"max_degree": 3} if level == "node" else {}
    # The same key cuts lists in both runs, and delta does not follow from their sizes.
    hops = PrivateHops(
        level=level, epsilon=8.0, delta=1e-3, relation=relation, insecure_noise_seed=1, **bound
    )
    rng, ratios = np.random.default_rng(3), []
    for _ in range(12):
        (arcs, rows), (others, changed), person = neighbours(rng, relation)
        directed = relation not in ("undirected", "3-edges")
        gone = person if relation == "add-remove" else None
        recording = Recording(str(person) if level == "node" else None, None)
        with observed_by(recording):
            hops.fit(graph_of(arcs, directed=directed), rows, announce=quiet)
        replaying = Replaying(recording, 1)
        keep = np.arange(12) != gone
        with observed_by(replaying):
            second = graph_of(others, gone=gone, directed=directed)
            hops.fit(second, changed[keep], announce=quiet)
        replaying.finish()
        assert replaying.findings == []
        ratios += [one.observed / one.accounted for one in replaying.compared]
    assert len(ratios) == 24
    assert 0.3 < max(ratios) <= 1 + 1e-6


def test_its_repr_says_level_and_epsilon_and_what_differs_from_the_defaults():
    assert repr(PrivateHops()) == "PrivateHops(level='edge', epsilon=1.0)"
    assert repr(PrivateHops(level="node", hops=3)) == (
        "PrivateHops(level='node', epsilon=1.0, hops=3)"
    )
