"""Beyond each constant of the code: no coin comes back, and no sum loses a step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from gapgnn import Ledger
from gapgnn.graph import Graph, folds_of, join_edge_types, repeat_roles, roles
from gapgnn.graph.people import CHUNK, encode_ids
from gapgnn.graph.store import open_store, store_graph
from gapgnn.privacy import Neighbors, UnionOfTypes
from gapgnn.privacy.accounting import LabelResponse
from gapgnn.privacy.dpsgd import PoissonBatches, plan_steps
from gapgnn.privacy.dpsgd.poisson import BLOCK_DRAWS
from gapgnn.privacy.ledger import People
from gapgnn.privacy.ledger import people as people_module
from gapgnn.privacy.mechanisms import (
    Coins,
    NoiseSource,
    backends,
    hop_mechanisms,
    randomised_labels,
)
from gapgnn.privacy.mechanisms.aggregation import BlockRelease
from gapgnn.privacy.mechanisms.draws import BLOCK
from gapgnn.privacy.mechanisms.noise import PIECE_BLOCKS, ROW_BLOCK
from gapgnn.privacy.mechanisms.sums import EXACT_ENTRIES, ROW_GRID
from gapgnn.rng import NoiseKey

KEY = NoiseKey.insecure(11)
SAFE_OR_FAST = pytest.mark.parametrize("noise", ["safe", "fast"])
TAIL = 4096


def alike(first: np.ndarray, second: np.ndarray) -> float:
    """Return how often two runs of fair coins say the same."""
    return float((first == second).mean())


@SAFE_OR_FAST
def test_coins_beyond_a_block_are_new_ones(noise):
    coins = Coins(KEY, noise=noise).each(2 * BLOCK + TAIL, 0.5, "x")
    parts = [coins[start : start + TAIL] for start in (0, BLOCK, 2 * BLOCK)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(alike(parts[one], parts[other]) - 0.5) < 0.05
    assert abs(coins[BLOCK:].mean() - 0.5) < 0.005


@SAFE_OR_FAST
def test_gaps_beyond_a_block_are_new_ones(noise):
    heads = Coins(KEY, noise=noise).heads(5 * BLOCK // 2, 0.6, "x")
    assert len(heads) > BLOCK + TAIL
    gaps = np.diff(heads)
    first, second = gaps[:TAIL], gaps[BLOCK : BLOCK + TAIL]
    # Equal gaps by chance: the sum of squared geometric probabilities, 0.6 / 1.4.
    assert abs(alike(first, second) - 0.6 / 1.4) < 0.05


def test_labels_of_more_people_than_a_block_are_exchanged_anew():
    count = BLOCK + TAIL
    said = randomised_labels(
        np.zeros(count, dtype=np.int64),
        np.ones(count, dtype=np.bool_),
        LabelResponse.of(0.5, 2),
        key=KEY,
    ).numpy()
    likely = LabelResponse.of(0.5, 2).keep
    assert abs(alike(said[:TAIL], said[BLOCK:]) - (likely**2 + (1 - likely) ** 2)) < 0.05


@pytest.mark.parametrize(
    "shape", [(8 * PIECE_BLOCKS + 64, 1), (2, 8 * PIECE_BLOCKS + 64)], ids=["rows", "columns"]
)
def test_noise_beyond_a_piece_is_new_and_of_the_same_scale(shape):
    values = NoiseSource(KEY).gaussian(shape, 3.0, "x").numpy().reshape(-1)
    assert len(np.unique(values)) > 0.9 * len(values)
    assert abs(values.std() - 3.0) < 0.02
    piece = 8 * PIECE_BLOCKS
    assert not (values[:64] == values[piece : piece + 64]).any()


@SAFE_OR_FAST
def test_batches_beyond_a_block_of_draws_are_new_ones(noise):
    schedule = plan_steps(1000, 500, 100)
    assert schedule.steps * 1000 > 2 * BLOCK_DRAWS
    batches = PoissonBatches(schedule, [KEY], phase="x", noise=noise)
    drawn = {}
    for batch in batches:
        members = np.zeros(1000, dtype=np.bool_)
        members[batch.positions[0][batch.valid[0]].numpy()] = True
        drawn[batch.step] = members
    assert len(drawn) == schedule.steps
    block = BLOCK_DRAWS // 1000
    for step in (block, 2 * block):
        assert abs(alike(drawn[0], drawn[step]) - 0.5) < 0.1
    assert len({members.tobytes() for members in drawn.values()}) == schedule.steps


SPLIT = {"seed": 3, "train": 0.5, "val": 0.25}


@pytest.mark.parametrize("are_names", [False, True])
@pytest.mark.parametrize(
    "draw",
    [
        partial(roles, **SPLIT),
        partial(repeat_roles, **SPLIT, repeats=range(1, 3)),
        partial(folds_of, seed=3, folds=5),
        partial(encode_ids, key=bytes(32)),
    ],
    ids=["role", "roles of repeats", "fold", "code"],
)
def test_what_is_drawn_for_a_person_is_the_same_behind_any_number_of_others(draw, are_names):
    ids = np.arange(CHUNK + TAIL)
    ids = np.char.add("p", ids.astype(str)) if are_names else ids
    whole, alone = draw(ids), draw(ids[CHUNK:])
    assert np.array_equal(whole[..., CHUNK:], alone)
    assert len(np.unique(alone)) > 2


@pytest.mark.parametrize("spelled", ["{}", "p{}", "Zo\u00eb {}"])
def test_a_budget_knows_the_last_of_many_people_and_nobody_else(spelled, tmp_path, monkeypatch):
    monkeypatch.setattr(people_module, "_PART_SIZE", 3 * TAIL)
    count = people_module._CHUNK + TAIL
    names = np.array([spelled.format(k) for k in range(count + 10)])
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    terms = {"level": "edge", "relation": "undirected", "epsilon": 1.0, "delta": 1e-6}
    budget = ledger.grant("customers", People.listed(names[:count]), **terms)
    assert budget.people == count
    for k in (0, TAIL, people_module._CHUNK - 1, people_module._CHUNK, count - 1):
        (found,) = ledger.budgets_of(People.listed(names[k : k + 1]))
        assert found.population == "customers"
    assert ledger.budgets_of(People.listed(names[count:])) == []
    everybody = People.listed(names)
    spend = {**terms, "epsilon": 0.5, "events": [{"event": "Gaussian", "noise_multiplier": 20.0}]}
    assert ledger.charge(everybody, **spend, purpose="fit").budget.people == len(names)


def test_each_of_several_people_with_a_budget_is_found_in_a_long_list(tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    names = np.arange(people_module._CHUNK + 4 * TAIL)
    terms = {"level": "edge", "relation": "undirected", "epsilon": 1.0, "delta": 1e-6}
    for k in range(20):
        ledger.grant(f"number {k}", People.listed(names[k : k + 1]), **terms)
    found = ledger.budgets_of(People.listed(names))
    assert {one.population for one in found} == {f"number {k}" for k in range(20)}


def star(first: int, second: int, *, weighted: str = "") -> Graph:
    """Return nodes that all write to node 0: some along calls, the others along visits."""
    count = first + second + 1
    senders, features = np.arange(1, count), np.zeros((count, 1), dtype=np.float32)
    types = {"calls": senders[:first], "visits": senders[first:]}
    return join_edge_types(
        {
            name: Graph.from_arcs(
                some,
                np.zeros_like(some),
                num_nodes=count,
                features=features,
                directed=True,
                weights=np.full(len(some), 255 / 256) if name == weighted else None,
            )
            for name, some in types.items()
        }
    )


# All but one step of the grid, as often as float32 can add up, of either type: odd in the end.
ALMOST = 1 - ROW_GRID


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (EXACT_ENTRIES, EXACT_ENTRIES - 1),
        (EXACT_ENTRIES - 1, EXACT_ENTRIES),
        (EXACT_ENTRIES + 1, EXACT_ENTRIES),
        (3 * EXACT_ENTRIES, 7),
    ],
)
def test_the_union_of_edge_types_is_exact_beyond_the_entries_of_float32(first, second):
    rows = torch.full((first + second + 1, 1), ALMOST)
    lists = [
        (np.array([0, count]), np.arange(start, start + count, dtype=np.int32), None)
        for start, count in ((1, first), (1 + first, second))
    ]
    block = BlockRelease(None, 0.0, 1, normalise=False, is_exact=True)
    wanted = (first + second) * int(ALMOST / ROW_GRID) * ROW_GRID
    assert float(block.add(rows, *lists)) == wanted


@pytest.mark.parametrize("is_stored", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("weighted", ["", "calls", "visits"])
def test_a_released_union_has_the_noise_of_the_exact_sum(
    weighted, is_stored, monkeypatch, tmp_path
):
    """Noise that takes the sum away leaves nothing, not even the last step of the grid."""
    graph = star(EXACT_ENTRIES, EXACT_ENTRIES - 1, weighted=weighted)
    rows = torch.full((graph.num_nodes, 1), ALMOST)
    exact = float(UnionOfTypes(list(map(Neighbors, graph.edge_types))).sums(rows)[0])
    if not weighted:
        assert exact == (2 * EXACT_ENTRIES - 1) * int(ALMOST / ROW_GRID) * ROW_GRID
    if is_stored:
        store_graph(graph, tmp_path / "store", parts=2)
        graph = open_store(tmp_path / "store")
    monkeypatch.setattr(
        NoiseSource,
        "gaussian_rows",
        lambda self, first, rows, columns, *path, **more: torch.full(
            (rows, columns), -exact, dtype=torch.float64
        ),
    )
    *_, union = hop_mechanisms(
        graph, level="edge", relation="directed", noise_multiplier=1.0, keys=[KEY], with_total=True
    )
    assert union.name == "all edge types"
    assert float(union.hop(rows, 1, normalise=False)[0, 0]) == 0.0


@pytest.mark.parametrize("is_stored", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("limit", ["CHUNK_NUMBERS", "PART_NUMBERS"])
def test_rows_beyond_a_chunk_or_a_part_have_noise_of_their_own(
    limit, is_stored, monkeypatch, tmp_path
):
    monkeypatch.setattr(backends, limit, 1)
    count = 2 * ROW_BLOCK + TAIL
    nothing = np.zeros((count, 1), dtype=np.float32)
    graph = Graph.from_arcs([0], [1], num_nodes=count, features=nothing, directed=True)
    if is_stored:
        store_graph(graph, tmp_path / "store", parts=2)
        graph = open_store(tmp_path / "store")
    (hops,) = hop_mechanisms(
        graph, level="edge", relation="directed", noise_multiplier=3.0, keys=[KEY]
    )
    released = hops.hop(torch.zeros(count, 2), 1, normalise=False)
    drawn = NoiseSource(KEY).gaussian_rows(0, count, 2, 3.0, "hop", 1)
    assert torch.equal(released, drawn.float())
    assert len(released.unique()) > 0.99 * released.numel()
