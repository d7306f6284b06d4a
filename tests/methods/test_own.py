"""What a prediction reads of its own person, and that it reads nothing of anybody else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from methodgraphs import cut_in_two, given_as_hashed_and_one_otherwise, small_graph, with_arcs
from typedgraphs import unlike_types

from gapgnn import GAP, LabelGAP, Ledger, NodeLabelGAP
from gapgnn.errors import InputError
from gapgnn.graph import with_absent
from gapgnn.graph.graph import Graph
from gapgnn.graph.store import open_store, store_graph
from gapgnn.graph.transforms import induced, join_edge_types, random_split
from gapgnn.methods.label_gap.budget import learnability, record_share, vote_weight
from gapgnn.methods.label_gap.codes import class_codes, class_scores
from gapgnn.methods.label_gap.node_votes import Votes, padded
from gapgnn.privacy.accounting import Event, account

OWN = ("nothing", "features", "record")
STD = 3.0


def quick(own: str, **more) -> NodeLabelGAP:
    # On a graph this small `auto` would release no hop.
    shared = {"epochs": 2, "batch_size": 50, "epsilon": 4.0, "hop_share": 0.5}
    return NodeLabelGAP(**{**shared, "own": own, **more})


@pytest.fixture(scope="module")
def whole() -> Graph:
    """Everybody on a list has a row, which is what reading own neighbours needs."""
    return small_graph()


@pytest.fixture(scope="module")
def graph(whole) -> Graph:
    """With entries that name nobody: some people withdrew."""
    return induced(whole, np.arange(whole.num_nodes) % 40 != 3, dangle=True)


@pytest.fixture(scope="module")
def fitted(graph, whole, tmp_path_factory):
    """One model of each type, with its ledger."""
    found = {}
    for own in OWN:
        ledger = Ledger.init(tmp_path_factory.mktemp(own) / "ledger.sqlite")
        given = whole if own == "record" else graph
        found[own] = quick(own, ledger=ledger.path).fit(given), ledger
    return found


def votes_of(graph: Graph, own: str) -> Votes:
    everybody = with_absent(graph)
    sends = padded(torch.tensor(graph.train_mask).unsqueeze(0), everybody.num_nodes)
    return Votes(everybody, graph.num_nodes, graph.num_classes, own, sends, STD)


def some_rows(graph: Graph, own: str, seed: int = 0) -> dict[object, torch.Tensor]:
    """Return made-up released rows by id: one block for each hop and edge type."""
    generator = torch.Generator().manual_seed(seed)
    hops, width = (1 if own == "record" else 2), len(graph.edge_types) * (graph.num_classes - 1)
    return {
        name: 3 * torch.randn(hops, width, generator=generator)
        for name in with_absent(graph).ids.tolist()
    }


def in_order(graph: Graph, rows: dict[object, torch.Tensor]) -> list[torch.Tensor]:
    """Return released rows as a graph has its people, (repeats, nodes, width)."""
    stacked = torch.stack([rows[name] for name in with_absent(graph).ids.tolist()], dim=1)
    return [hop.unsqueeze(0) for hop in stacked]


def left(graph: Graph, person: int) -> Graph:
    return induced(graph, np.arange(graph.num_nodes) != person, dangle=True)


def two_types(graph: Graph) -> Graph:
    """Cut the edges of a graph into two types."""
    arcs = graph.adjacency().tocoo()
    rows = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    parts = {}
    for name, side in (("calls", 0), ("visits", 1)):
        chosen = (arcs.row + arcs.col) % 2 == side
        parts[name] = Graph.from_arcs(
            arcs.row[chosen],
            arcs.col[chosen],
            num_nodes=graph.num_nodes,
            directed=graph.is_directed,
            **{key: getattr(graph, key) for key in rows},
        )
    return join_edge_types(parts)


@pytest.mark.parametrize("own", OWN)
class TestPredictions:
    def test_asked_twice_and_after_a_reload_the_answer_is_the_same(
        self, own, graph, whole, fitted, tmp_path
    ):
        graph = whole if own == "record" else graph
        model, ledger = fitted[own]
        first = model.predict_proba(graph)
        np.testing.assert_array_equal(model.predict_proba(graph), first)
        model.save(tmp_path / "model")
        again = NodeLabelGAP.load(tmp_path / "model", ledger=ledger.path)
        assert again.own == own
        np.testing.assert_array_equal(again.predict_proba(graph), first)
        np.testing.assert_array_equal(again.predict(graph), model.predict(graph))
        assert len(ledger.entries()) == 1

    def test_released_rows_are_saved_and_pooled_rows_never(
        self, own, graph, whole, fitted, tmp_path
    ):
        """Pooled over the own neighbours they would show the list: only hops of everybody leave."""
        graph = whole if own == "record" else graph
        from safetensors.numpy import load_file

        model, _ = fitted[own]
        model.save(tmp_path / "model")
        (kept,) = (tmp_path / "model" / "hops").glob("*.safetensors")
        saved = load_file(kept)
        width = graph.num_classes - 1
        released = model.releases_.training().hops
        assert len(saved) == len(released) == (1 if own == "record" else 2)
        for hop, value in zip(released, saved.values(), strict=True):
            # Who else stands in lists is not public. Rows lie in the order of keyed hashes.
            assert value.shape == (graph.num_nodes, width)
            expected = hop.numpy()
            np.testing.assert_array_equal(
                value[np.lexsort(value.T)], expected[np.lexsort(expected.T)]
            )
        if own == "record":
            votes = model._votes(graph, torch.tensor(graph.train_mask).unsqueeze(0))
            read = votes.read([released[0].unsqueeze(0)])[0].numpy()
            # What the list says, and after it what it votes.
            pooled, voted = read[:, width + 1 : 2 * width + 1], read[:, -graph.num_classes :]
            files = b"".join(
                path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()
            )
            for listed in (pooled, voted):
                rows = listed[np.abs(listed).sum(axis=1) > 0]
                assert len(rows) > 100
                assert not any(row.tobytes() in files for row in rows)

    def test_another_graph_is_charged_for_its_hops_by_role(self, own, tmp_path):
        first, second = (random_split(one, seed=0) for one in cut_in_two(small_graph(), seed=0))
        ledger = Ledger.init(tmp_path / "ledger.sqlite")
        model = quick(own, ledger=ledger.path).fit(first)
        labels = model.predict(second)
        np.testing.assert_array_equal(model.predict(second), labels)
        assert len(ledger.entries()) == 2
        (charge,) = (one for one in ledger.entries() if "predict" in one.purpose)
        events = [Event.from_dict(dict(event)) for event in charge.events]
        roles = ["training"] if own == "record" else ["training", "others"]
        assert [event.group for event in events] == roles
        alone = [account([event], charge.delta, relation="add-remove").epsilon for event in events]
        assert charge.epsilon == pytest.approx(max(alone), rel=1e-9)
        assert max(alone) <= 4.0

    def test_the_fit_is_charged_once_for_the_dearest_role(self, own, fitted):
        model, _ = fitted[own]
        events = [Event.from_dict(event) for event in model.card_.events]
        roles = {event.group for event in events}
        assert roles == ({"training"} if own == "record" else {"training", "others"})
        alone = [
            account(
                [event for event in events if event.group == role],
                model.card_.delta,
                relation="add-remove",
            ).epsilon
            for role in roles
        ]
        assert model.card_.epsilon == pytest.approx(max(alone), rel=1e-9)
        # Each role may spend nearly all of it.
        assert all(3.97 <= price <= 4.0 for price in alone)


class TestOthers:
    """Given what was released, one record more or less changes nothing that another one reads."""

    @pytest.mark.parametrize("own", OWN)
    @pytest.mark.parametrize("types", [1, 2])
    def test_a_withdrawn_record_changes_nobody_elses_input(self, own, types, graph):
        whole = small_graph(num_nodes=60)
        whole = whole if types == 1 else two_types(whole)
        rows = some_rows(whole, own)
        before = votes_of(whole, own).read(in_order(whole, rows))[0]
        hub = int(np.argmax(whole.out_degrees))
        for person in (0, hub, whole.num_nodes - 1):
            gone = left(whole, person)
            after = votes_of(gone, own).read(in_order(gone, rows))[0]
            others = np.arange(whole.num_nodes) != person
            assert torch.equal(before[torch.from_numpy(others)], after)

    def test_a_withdrawn_record_changes_nobody_elses_second_message(self):
        whole = small_graph(num_nodes=60)
        rows = some_rows(whole, "features")
        (before,) = votes_of(whole, "features")._guesses(in_order(whole, rows)[0])
        for person in (0, 7, whole.num_nodes - 1):
            gone = left(whole, person)
            (after,) = votes_of(gone, "features")._guesses(in_order(gone, rows)[0])
            for place, name in enumerate(gone.ids.tolist()):
                assert torch.equal(before[0, name], after[0, place])
            # Whoever withdrew has a row and sends nothing.
            assert not after[0, gone.num_nodes :].any()

    @pytest.mark.parametrize("own", OWN)
    def test_another_persons_label_and_list_change_nothing(self, own):
        whole = small_graph(num_nodes=60)
        rows = in_order(whole, some_rows(whole, own))
        before = votes_of(whole, own).read(rows)[0]
        person = 11
        labels = whole.labels.copy()
        labels[person] = (labels[person] + 1) % whole.num_classes
        arcs = whole.adjacency().tocoo()
        stays = arcs.row != person
        keys = ("features", "ids", "train_mask", "val_mask", "test_mask")
        other = Graph.from_arcs(
            np.append(arcs.row[stays], person),
            np.append(arcs.col[stays], 3),
            num_nodes=whole.num_nodes,
            directed=True,
            labels=labels,
            **{key: getattr(whole, key) for key in keys},
        )
        after = votes_of(other, own).read(rows)[0]
        others = torch.arange(whole.num_nodes) != person
        assert torch.equal(before[others], after[others])
        # What is the person's own is read under `record` alone.
        assert torch.equal(before[person], after[person]) == (own != "record")

    def test_each_hop_is_sent_by_one_role(self):
        """Nobody is in both: that is why neither makes the other dearer."""
        whole = small_graph(num_nodes=60)
        votes = votes_of(whole, "features")
        trains = torch.tensor(whole.train_mask)
        sent = votes._labels[0]
        (guesses,) = votes._guesses(in_order(whole, some_rows(whole, "features"))[0])
        assert not sent[~trains].any()
        assert not guesses[0, trains].any()
        assert sent[trains].norm(dim=-1).min() > 0.99
        assert guesses[0, ~trains].norm(dim=-1).max() <= 1 + 1e-6


class TestListsVote:
    """Under ``record`` scores start from the votes of the own neighbours."""

    def votes(self, graph: Graph, rows: dict[object, torch.Tensor]) -> torch.Tensor:
        read = votes_of(graph, "record").read(in_order(graph, rows))[0]
        return read[:, -graph.num_classes :]

    @pytest.mark.parametrize("types", [1, 2])
    def test_each_friend_votes_for_the_class_its_row_says(self, types):
        graph = small_graph(num_nodes=60)
        graph = graph if types == 1 else two_types(graph)
        rows = some_rows(graph, "record")
        found, width = self.votes(graph, rows), graph.num_classes - 1
        person = int(np.flatnonzero(graph.train_mask)[3])
        counted, friends = torch.zeros(graph.num_classes), 0
        for place, one_type in enumerate(graph.edge_types):
            one = one_type.indices[one_type.indptr[person] : one_type.indptr[person + 1]]
            wrote = class_codes(graph.num_classes)[int(graph.labels[person])]
            wrote = wrote / np.sqrt(len(one) + 1) / STD
            for friend in one.tolist():
                row = rows[friend][0, place * width : (place + 1) * width]
                counted += torch.softmax(class_scores((row - wrote).unsqueeze(0))[0], dim=-1)
            friends += len(one)
        assert friends > 6
        wanted = np.log(6) * (6 / friends) ** 0.6 * (counted - counted.mean())
        torch.testing.assert_close(found[person], wanted, rtol=0, atol=1e-3)

    def test_whoever_lists_nobody_has_no_votes(self):
        graph = Graph.from_arcs(
            [0, 1], [1, 0], num_nodes=3, features=np.eye(3), labels=np.array([0, 1, 2])
        )
        assert not self.votes(graph, some_rows(graph, "record"))[2].any()

    def test_votes_by_how_often_one_is_listed_would_be_seen(self, monkeypatch):
        """Other people's lists are theirs: the planted fault moves what a withdrawal must not."""
        whole = small_graph(num_nodes=60)
        graph = with_arcs(whole, np.arange(whole.num_arcs) % 3 > 0, directed=True)
        person = int(np.argmax(graph.out_degrees))
        rows = some_rows(graph, "record")
        others = torch.arange(graph.num_nodes) != person

        def moved() -> bool:
            gone = left(graph, person)
            return not torch.equal(self.votes(graph, rows)[others], self.votes(gone, rows))

        assert not moved()
        real = Votes._votes_listed

        def by_popularity(self, listed):
            listing = torch.from_numpy(
                np.bincount(self.graph.indices, minlength=listed[0].shape[1])
            )
            return real(self, listed) * listing.unsqueeze(-1)

        monkeypatch.setattr(Votes, "_votes_listed", by_popularity)
        assert moved()

    def test_what_they_count_is_saved(self, whole, fitted, tmp_path):
        model, ledger = fitted["record"]
        classifier = model.modules_["classifier"]
        assert classifier.mixing_weight.tolist() == [1.0]
        answers = model.predict_proba(whole)
        model.save(tmp_path / "now")
        again = NodeLabelGAP.load(tmp_path / "now", ledger=ledger.path)
        assert again.modules_["classifier"].mixing_weight.tolist() == [1.0]
        np.testing.assert_array_equal(again.predict_proba(whole), answers)
        again.modules_["classifier"].mixing_weight.zero_()
        assert not np.allclose(again.predict_proba(whole), answers, atol=0.05)

    def test_they_count_less_where_a_network_learns_more(self):
        learned = [
            learnability(epsilon, num_train=10_000, num_features=400)
            for epsilon in (0.5, 1.0, 2.0, 8.0)
        ]
        assert [vote_weight(one) for one in learned] == [1.0, 1.0, 0.5, 0.125]
        assert [record_share(one) for one in learned] == [pytest.approx(0.5**0.5), 0.8, 0.8, 0.8]


class TestOwnLabel:
    """What a person wrote is taken out again, wherever that person reads it."""

    def read(self, graph: Graph, noise: list[torch.Tensor]) -> torch.Tensor:
        """Return what everybody reads of true sums with the same noise on top."""
        votes = votes_of(graph, "record")
        sent, released = votes._labels[0].double(), []
        for one_type in graph.edge_types:
            normalised = sent / torch.tensor(one_type.out_degrees + 1).double().sqrt().unsqueeze(-1)
            sums = torch.from_numpy(one_type.adjacency().T @ normalised.numpy()) + normalised
            released.append((sums / STD).float())
        return votes.read([torch.cat(released, dim=-1) + noise[0]])[0]

    def test_nothing_is_taken_out_for_whoever_has_no_label(self):
        """Also if the public hash lets them train: nothing of theirs was sent."""
        graph = small_graph(num_nodes=120)
        nobody = np.zeros(120, dtype=bool)
        labels = np.where(np.arange(120) % 3 == 0, -1, graph.labels)
        graph = random_split(graph.with_masks(*[nobody] * 3)._replace(labels=labels), seed=0)
        model = quick("record", epochs=1)
        model._keeps_repeats = True
        scores, _ = model.fit(graph)._repeats
        wanted = torch.softmax(scores[0].double(), dim=-1).numpy()
        np.testing.assert_allclose(model.predict_proba(graph), wanted, atol=1e-5)

    @pytest.mark.parametrize("is_typed", [False, True])
    def test_with_another_label_of_ones_own_one_reads_the_same(self, is_typed):
        """With the release that belongs to it: own row and all rows of the list have moved."""
        graph = unlike_types() if is_typed else small_graph(num_nodes=60)
        noise = in_order(graph, some_rows(graph, "record"))
        before = self.read(graph, noise)
        for person in np.flatnonzero(graph.train_mask)[:5].tolist():
            labels = graph.labels.copy()
            labels[person] = (labels[person] + 1) % graph.num_classes
            after = self.read(graph._replace(labels=labels), noise)
            torch.testing.assert_close(before[person], after[person], rtol=0, atol=1e-5)
            # Others see it: it is what was paid for.
            assert not torch.allclose(before, after, rtol=0, atol=1e-3)

    def test_left_in_it_would_be_seen(self, monkeypatch):
        graph = small_graph(num_nodes=60)
        monkeypatch.setattr(
            Votes,
            "_written",
            property(lambda self: [torch.zeros_like(self._labels)] * len(self.graph.edge_types)),
        )
        noise = in_order(graph, some_rows(graph, "record"))
        before = self.read(graph, noise)
        person = int(np.flatnonzero(graph.train_mask)[0])
        labels = graph.labels.copy()
        labels[person] = (labels[person] + 1) % graph.num_classes
        after = self.read(graph._replace(labels=labels), noise)
        read, voted = (slice(None, -graph.num_classes), slice(-graph.num_classes, None))
        for part in (read, voted):
            one, other = before[person, part], after[person, part]
            assert not torch.allclose(one, other, rtol=0, atol=1e-2)

    @pytest.mark.parametrize("is_loaded", [False, True])
    def test_another_split_of_the_same_graph_takes_out_what_was_sent(
        self, is_loaded, whole, fitted, tmp_path
    ):
        """Who sent a label is a fact of the release, not of the split that is asked about."""
        model, ledger = fitted["record"]
        wanted = model.predict_proba(whole)
        if is_loaded:
            model.save(tmp_path / "model")
            model = NodeLabelGAP.load(tmp_path / "model", ledger=ledger.path)
        nobody = np.zeros(whole.num_nodes, dtype=bool)
        for other in (random_split(whole, seed=5), whole.with_masks(nobody, nobody, nobody)):
            assert other.fingerprint == whole.fingerprint
            np.testing.assert_array_equal(model.predict_proba(other), wanted)
        assert len(ledger.entries()) == 1

    def test_roles_that_were_given_are_part_of_the_records(self, whole, ledger):
        """They follow from nothing else, and the card says so."""
        given = random_split(whole, seed=5)
        model = quick("record", ledger=ledger.path).fit(given)
        assert ("where roles come from", "given with the records") in model.card_.public
        wanted = model.predict_proba(given)
        assert not np.array_equal(model.predict_proba(whole), wanted)
        np.testing.assert_array_equal(model.predict_proba(given), wanted)

    def test_one_given_role_does_not_change_the_card(self, whole):
        """Seen to fail where given roles are compared with those of the hash."""
        one, other = given_as_hashed_and_one_otherwise(whole)
        facts = quick("record").fit(one).card_.public
        assert quick("record").fit(other).card_.public == facts
        assert ("where roles come from", "given with the records") in facts


@pytest.mark.gate
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("noise", ["safe", pytest.param("fast", marks=pytest.mark.slow)])
@pytest.mark.parametrize("parts", [1, 7, 64])
def test_a_store_of_any_partition_gives_the_model_of_memory(
    own, noise, parts, graph, whole, tmp_path
):
    graph = whole if own == "record" else graph
    options = {"insecure_noise_seed": 3, "noise": noise}
    here = quick(own, **options).fit(graph)
    expected = here.predict_proba(graph)
    store_graph(graph, tmp_path / "store", parts=parts)
    stored = random_split(open_store(tmp_path / "store"), seed=0)
    there = quick(own, **options).fit(stored)
    pairs = zip(here.releases_.training().hops, there.releases_.training().hops, strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    np.testing.assert_array_equal(there.predict_proba(stored), expected)


@pytest.mark.parametrize("own", ["nothing", "record"])
@pytest.mark.parametrize("level", ["none", "edge"])
def test_other_levels_have_no_choice_of_what_is_read(own, level, graph, ledger):
    with pytest.raises(InputError, match="`level` must be node for node-label-gap"):
        quick(own, level=level, ledger=ledger.path).fit(graph)
    assert ledger.entries() == []


@pytest.mark.parametrize("method", [GAP, LabelGAP])
def test_other_methods_do_not_know_the_choice(method):
    with pytest.raises(TypeError, match="own"):
        method(own="record")


@pytest.mark.parametrize(("own", "hops"), [("features", 2), ("record", 1)])
def test_the_card_speaks_of_a_second_hop_where_there_is_one(own, hops, ledger):
    graph = small_graph(num_nodes=200)
    options = {"epsilon": 8.0, "epochs": 2, "ledger": ledger.path, "own": own}
    if own == "features":
        options["hop_share"] = 0.5
    card = NodeLabelGAP(**options).fit(graph).card_
    assert sum(event["event"] == "Gaussian" for event in card.events) == hops
    assert ("second hop" in card.messages) is (hops == 2)
