"""Every field of planned hops decides which operator a session releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gapgnn import GAP, Graph, Ledger, PrivateSession, SessionOptions, random_split
from gapgnn.graph import join_edge_types
from gapgnn.privacy import (
    Neighbors,
    Operator,
    OutDegreeNormalized,
    PlannedHops,
    Symmetrized,
    UnionOfTypes,
)
from gapgnn.rng import NoiseKey

HOPS, SIZE = "aggregation", 60
# Which event pays, how often, and for whom: these decide the price, not the operator.
OF_THE_PRICE = {"event", "count", "protects"}


@dataclass(frozen=True)
class Case:
    """Planned hops and what they are to release; None where the cut of lists is secret."""

    level: str
    planned: dict[str, Any]
    operators: Callable[[Graph], list[Operator]] | None


def all_types(graph: Graph) -> list[Operator]:
    types: list[Operator] = [Neighbors(one) for one in graph.edge_types]
    return [*types, UnionOfTypes(types)]


CASES = {
    "nothing": Case("edge", {}, lambda graph: [Neighbors(one) for one in graph.edge_types]),
    "max_degree": Case("node", {"max_degree": 3}, None),
    "is_normalised": Case(
        "node",
        {"max_degree": None, "is_normalised": True},
        lambda graph: [OutDegreeNormalized(one) for one in graph.edge_types],
    ),
    "to_self": Case(
        "node",
        {"max_degree": None, "is_normalised": True, "to_self": True},
        lambda graph: [OutDegreeNormalized(one, to_self=True) for one in graph.edge_types],
    ),
    "is_symmetrised": Case(
        "edge",
        {"is_symmetrised": True},
        lambda graph: [Symmetrized(one) for one in graph.edge_types],
    ),
    "with_union": Case("edge", {"with_union": True}, all_types),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    rng = np.random.default_rng(0)

    def edge_type() -> Graph:
        ends = np.unique(rng.integers(0, SIZE, size=(6 * SIZE, 2)), axis=0)
        return Graph.from_arcs(
            *ends.T,
            num_nodes=SIZE,
            features=np.eye(SIZE)[:, :4],
            labels=np.arange(SIZE) % 2,
            directed=True,
            self_loops="keep",
        )

    return random_split(join_edge_types({"calls": edge_type(), "visits": edge_type()}), seed=0)


def released(graph: Graph, case: Case, folder: Any) -> tuple[Tensor, ...]:
    """Return the sums of everybody's own unit vector: who writes to whom, without noise."""
    plan = GAP(level=case.level, epsilon=4.0).plan_for(graph)
    # One hop of the two that are charged, so that a union is paid for too.
    hops = replace(plan.hops[HOPS], count=1, **case.planned)
    ledger = Ledger.init(folder / "ledger.sqlite").path
    options = SessionOptions([NoiseKey.insecure(0)], ledger=ledger)
    with PrivateSession(replace(plan, hops={HOPS: hops}), graph, options) as session:
        return session.release(HOPS, torch.eye(graph.num_nodes))


@pytest.mark.usefixtures("bare_sums")
@pytest.mark.parametrize("name", CASES)
def test_a_session_releases_the_sums_that_were_planned(name, graph, tmp_path):
    case = CASES[name]
    found = released(graph, case, tmp_path)
    if case.operators is None:
        for sums, one in zip(found, graph.edge_types, strict=True):
            kept = (sums != 0).sum(dim=0)
            assert torch.equal(kept, torch.tensor(one.out_degrees).clamp(max=3))
        return
    wanted = [one.sums(torch.eye(graph.num_nodes)).float() for one in case.operators(graph)]
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_every_field_that_decides_the_operator_is_planned_here():
    planned = {name for case in CASES.values() for name in case.planned}
    assert {part.name for part in fields(PlannedHops)} - OF_THE_PRICE == planned
