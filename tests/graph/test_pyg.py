"""PyG manners: bounded lists and hash splits as transforms, and HeteroData of one node type."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import BaseTransform, Compose

from gapgnn import BoundDegree, HashSplit, PrivateHops, as_graph, from_pyg, random_split
from gapgnn.errors import DataError, InputError
from gapgnn.graph import bound_out_degrees
from gapgnn.rng import NoiseKey

pytestmark = pytest.mark.filterwarnings("ignore:`edge_attr` are not read")

KEY = b"sixteen bytes or more"
COUNT = 40


def arcs(count: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    found = torch.randint(COUNT, (2, count), generator=drawn)
    return found[:, found[0] != found[1]].unique(dim=1)


def data(count: int = 400, **more) -> Data:
    edges = arcs(count)
    return Data(
        x=torch.eye(COUNT),
        y=torch.arange(COUNT) % 3 - 1,
        edge_index=edges,
        edge_attr=torch.arange(edges.shape[1]).float().unsqueeze(1),
        **more,
    )


def lists(given: Data) -> list[set[int]]:
    """The adjacency list of every node, by id."""
    ids = given.get("ids", torch.arange(given.num_nodes))
    found: list[set[int]] = [set() for _ in range(int(max(ids)) + 1)]
    for source, target in given.edge_index.T.tolist():
        found[int(ids[source])].add(int(ids[target]))
    return found


def test_both_are_transforms_that_compose_and_leave_the_data_alone():
    given = data()
    before = given.edge_index.clone()
    both = Compose([BoundDegree(3, key=KEY), HashSplit(seed=1)])
    found = both(given)
    assert all(isinstance(one, BaseTransform) for one in both.transforms)
    assert torch.equal(given.edge_index, before)
    assert "train_mask" not in given
    assert found.train_mask.dtype == torch.bool
    assert str(both.transforms[0]) == "BoundDegree(max_degree=3)", "a key is a secret"


def test_no_list_is_longer_than_the_bound_and_attributes_go_with_their_arcs():
    given = data()
    found = BoundDegree(3, key=KEY)(given)
    assert int(torch.bincount(found.edge_index[0]).max()) == 3
    places = found.edge_attr[:, 0].long()
    assert torch.equal(given.edge_index[:, places], found.edge_index)
    whole = BoundDegree(COUNT, key=KEY)(given)
    assert torch.equal(whole.edge_index, given.edge_index)


def test_the_cut_is_that_of_the_library():
    given = data()
    found = BoundDegree(3, key=KEY)(given)
    cut = bound_out_degrees(from_pyg(given), 3, NoiseKey(KEY))
    assert found.edge_index.shape[1] == len(cut.indices)
    kept = as_graph(Data(x=given.x, edge_index=found.edge_index, directed=True))
    assert kept.indices.tolist() == cut.indices.tolist()


def test_a_list_does_not_change_when_somebody_else_leaves():
    given = data()
    cut = BoundDegree(3, key=KEY)
    left = torch.arange(COUNT) != 7
    ids = torch.arange(COUNT)[left]
    others = given.subgraph(left)
    others.ids = ids
    # The entry of who left dangles in the lists that held it: it keeps its slot.
    dangling: dict[int, list[int]] = {}
    for source, target in given.edge_index.T.tolist():
        if target == 7 and source != 7:
            dangling.setdefault(ids.tolist().index(source), []).append(7)
    others.dangling = dangling
    everybody, without = lists(cut(given)), lists(cut(others))
    for person in ids.tolist():
        assert everybody[person] - {7} == without[person]


def test_cut_lists_have_a_declared_direction_also_where_every_arc_has_its_reverse():
    back = arcs(60)
    both = data().clone()
    both.edge_index, both.edge_attr = torch.cat([back, back.flip(0)], dim=1), None
    assert not as_graph(both).is_directed
    cut = as_graph(BoundDegree(COUNT, key=KEY)(both))
    assert (cut.is_directed, "direction" in cut.inferred) == (True, False)


def test_a_key_of_ones_own_decides_and_a_fresh_one_stays_for_every_call():
    given = data()
    cut = BoundDegree(3)
    assert torch.equal(cut(given).edge_index, cut(given).edge_index)
    others = [BoundDegree(3)(given).edge_index for _ in range(3)]
    assert not all(
        one.shape == cut(given).edge_index.shape and torch.equal(one, cut(given).edge_index)
        for one in others
    )


def test_repeated_arcs_count_once_and_an_arc_to_oneself_is_an_entry():
    edges = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 2, 0, 3]])
    found = BoundDegree(3, key=KEY)(Data(x=torch.eye(4), edge_index=edges)).edge_index
    assert found.shape[1] == 3
    assert found.unique(dim=1).shape == found.shape


def test_the_split_is_that_of_random_split_by_ids():
    ids = torch.arange(COUNT) * 3 + 1
    given = data(ids=ids)
    found, split = HashSplit(seed=5)(given), random_split(from_pyg(given), seed=5)
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert found[mask].tolist() == getattr(split, mask).tolist()
    assert not (found.train_mask | found.val_mask | found.test_mask)[given.y < 0].any()
    # A role is a function of (seed, id): the order of the rows is none of its business.
    turned = HashSplit(seed=5)(Data(x=given.x.flip(0), y=given.y.flip(0), ids=ids.flip(0)))
    assert turned.train_mask.flip(0).tolist() == found.train_mask.tolist()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: BoundDegree(0), "max_degree"),
        (lambda: BoundDegree(3, key=b"short"), "at least 16 bytes"),
        (lambda: HashSplit(train=0.9, val=0.2), "sum to at most 1"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make, reason):
    with pytest.raises(InputError, match=reason):
        make()


def test_data_without_arcs_or_labels_is_refused():
    with pytest.raises(DataError, match="edge_index"):
        BoundDegree(3)(Data(x=torch.eye(3)))
    with pytest.raises(DataError, match="labels `y`"):
        HashSplit()(Data(x=torch.eye(3)))
    with pytest.raises(DataError, match=r"one entry per node \(3\)"):
        HashSplit()(Data(x=torch.eye(3), y=torch.zeros(3, 2)))


# HeteroData ---------------------------------------------------------------------------------------


def hetero(**stores: torch.Tensor) -> HeteroData:
    found = HeteroData()
    found["person"].x = torch.eye(COUNT)
    found["person"].y = torch.arange(COUNT) % 2
    found["person"].ids = torch.arange(COUNT) + 100
    for name, edges in (stores or {"calls": arcs(80, 1), "visits": arcs(90, 2)}).items():
        found["person", name, "person"].edge_index = edges
    return found


def test_edge_types_of_one_node_type_become_edge_types_of_a_graph():
    given = hetero()
    graph = as_graph(given)
    assert [one.edge_type for one in graph.edge_types] == ["calls", "visits"]
    assert graph.ids.tolist() == list(range(100, 140))
    assert graph.is_directed
    for one in graph.edge_types:
        alone = Data(
            x=torch.eye(COUNT), edge_index=given["person", one.edge_type, "person"].edge_index
        )
        assert one.indices.tolist() == from_pyg(alone, directed=True).indices.tolist()


def test_a_type_without_direction_beside_one_with_it_is_read_with_direction():
    back = arcs(60, 3)
    given = hetero(calls=arcs(80, 1), likes=torch.cat([back, back.flip(0)], dim=1))
    assert as_graph(given).is_directed
    both = hetero(likes=torch.cat([back, back.flip(0)], dim=1))
    assert not as_graph(both).is_directed
    assert not from_pyg(given, directed=False).is_directed


def test_weights_are_read_of_the_types_that_have_them():
    given = hetero()
    calls = given["person", "calls", "person"]
    calls.minutes = torch.rand(calls.edge_index.shape[1])
    graph = from_pyg(given, weight="minutes", weight_bounds=(0, 1))
    assert [one.is_weighted for one in graph.edge_types] == [True, False]
    with pytest.raises(DataError, match="attribute of an edge type"):
        from_pyg(given, weight="hours", weight_bounds=(0, 1))
    with pytest.raises(InputError, match="`weight_bounds` must come with `weight`"):
        from_pyg(given, weight_bounds=(0, 1))


@pytest.mark.parametrize("place", ["nodes", "edge type"])
def test_an_entry_of_who_left_keeps_its_slot_in_the_lists_of_an_edge_type(place):
    calls, cut = ("person", "calls", "person"), BoundDegree(3, key=KEY)

    def star(count: int) -> HeteroData:
        found = HeteroData()
        found["person"].ids = torch.arange(count) + 100
        found["person"].num_nodes = count
        found[calls].edge_index = torch.stack(
            [torch.zeros(count - 1).long(), torch.arange(1, count)]
        )
        return found

    everybody, left = star(10), star(6)
    store = left["person"] if place == "nodes" else left[calls]
    store.dangling = {0: [106, 107, 108, 109]}
    listed = cut(everybody)[calls].edge_index[1].tolist()
    assert any(one > 5 for one in listed)
    assert cut(left)[calls].edge_index[1].tolist() == [one for one in listed if one <= 5]


def test_several_node_types_are_refused_with_the_fix():
    given = hetero()
    given["shop"].x = torch.eye(3)
    given["person", "buys", "shop"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(DataError, match="'person', 'shop': keep one of them"):
        as_graph(given)
    with pytest.raises(DataError, match="within one node type"):
        BoundDegree(3)(given)


def test_transforms_and_private_hops_take_it_too(tmp_path):
    from gapgnn import Ledger

    given = hetero()
    cut = BoundDegree(1, key=KEY)(HashSplit(seed=2)(given))
    assert all(int(torch.bincount(one.edge_index[0]).max()) == 1 for one in cut.edge_stores)
    assert int(cut["person"].train_mask.sum()) == int(
        random_split(as_graph(given), seed=2).train_mask.sum()
    )
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    hops = PrivateHops(hops=1, ledger=ledger.path)
    del given["person"].x
    first = hops.fit_transform(given, torch.eye(COUNT, 3))[1]
    assert first.shape == (COUNT, 6), "the sums along both edge types, side by side"
    assert len(ledger.entries()) == 1
