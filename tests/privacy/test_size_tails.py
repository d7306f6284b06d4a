"""Beyond each constant of the code: no coin comes back, and no sum loses a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gapgnn.graph import Graph, join_edge_types
from gapgnn.privacy.accounting import LabelResponse
from gapgnn.privacy.dpsgd import PoissonBatches, plan_steps
from gapgnn.privacy.dpsgd.poisson import BLOCK_DRAWS
from gapgnn.privacy.mechanisms import Coins, NoiseSource, hop_mechanisms, randomised_labels
from gapgnn.privacy.mechanisms.aggregation import BlockRelease
from gapgnn.privacy.mechanisms.draws import BLOCK
from gapgnn.privacy.mechanisms.noise import PIECE_BLOCKS
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


def star(first: int, second: int) -> Graph:
    """Return nodes that all write to node 0: some along calls, the others along visits."""
    count = first + second + 1
    senders, features = np.arange(1, count), np.zeros((count, 1), dtype=np.float32)
    types = {"calls": senders[:first], "visits": senders[first:]}
    return join_edge_types(
        {
            name: Graph.from_arcs(
                some, np.zeros_like(some), num_nodes=count, features=features, directed=True
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


def test_a_released_union_has_the_noise_of_the_exact_sum(monkeypatch):
    """Noise that takes the sum away leaves nothing, not even the last step of the grid."""
    graph = star(EXACT_ENTRIES, EXACT_ENTRIES - 1)
    exact = (2 * EXACT_ENTRIES - 1) * int(ALMOST / ROW_GRID) * ROW_GRID
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
    rows = torch.full((graph.num_nodes, 1), ALMOST)
    assert float(union.hop(rows, 1, normalise=False)[0, 0]) == 0.0
