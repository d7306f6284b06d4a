"""What is computed for one person is a function of that person's rows, to the last bit."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapgnn.graph import Graph
from gapgnn.nn import ReplicaMLP
from gapgnn.training import FeatureInputs, HopInputs, row_by_row

WIDTH = 37


def features_of(people, *, sparse):
    """Return features that follow from who a person is."""
    rows = np.stack(
        [np.random.default_rng([1, person]).normal(size=WIDTH) for person in people]
    ).astype(np.float32)
    if sparse:
        rows[np.abs(rows) < 0.8] = 0
        return sp.csr_array(rows)
    return rows


def inputs_of(people, *, sparse=False):
    graph = Graph.from_arcs(
        [], [], num_nodes=len(people), features=features_of(people, sparse=sparse)
    )
    return FeatureInputs(graph, torch.device("cpu"))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return ReplicaMLP(2, [WIDTH, 16, 3], activation="selu").eval()


@settings(max_examples=15, deadline=None)
@given(others=st.sampled_from([1, 2, 3, 17, 1022, 1023, 1024, 1500]), sparse=st.booleans())
def test_a_person_more_changes_no_bit_of_anybody_elses_result(network, others, sparse):
    with torch.no_grad():
        without = row_by_row(network, inputs_of(range(others), sparse=sparse))
        with_one = row_by_row(network, inputs_of([9999, *range(others)], sparse=sparse))
    assert without.shape == (2, others, 3)
    assert torch.equal(without, with_one[:, 1:])


def test_it_is_the_network_that_is_applied(network):
    inputs = inputs_of(range(1100))
    with torch.no_grad():
        torch.testing.assert_close(row_by_row(network, inputs), network(inputs.all()))


def test_hops_are_taken_with_their_nodes():
    rows = torch.arange(2 * 1030 * 3.0).view(2, 1030, 3)
    inputs = HopInputs(rows[..., :1], [rows[..., 1:]])
    assert torch.equal(row_by_row(lambda parts: torch.cat(parts, dim=-1), inputs), rows)
