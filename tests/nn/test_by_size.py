"""Linear networks by size: the least squares they claim to be, of one row alone."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gapgnn.nn import LinearBySize, SparseRows
from gapgnn.nn.by_size import PENALTY, SHARPNESS, SIZES


@pytest.fixture
def rows():
    found = (np.random.default_rng(0).random((60, 9)) < 0.3).astype(np.float32)
    found[0] = 0
    found[1] *= 40
    return torch.from_numpy(found)


@pytest.fixture
def labels():
    return torch.from_numpy(np.random.default_rng(1).integers(0, 3, 60))


@pytest.fixture
def linear(rows, labels):
    found = LinearBySize(2, 9, 3)
    for replica in range(2):
        half = slice(30 * replica, 30 * replica + 30)
        found.solve(replica, rows[half], labels[half], torch.ones(30))
    return found


def columns(rows):
    """Every column of the regression: direction and a constant, times the nearness of the size."""
    rows = rows.double().numpy()
    squares = (rows**2).sum(axis=1, keepdims=True)
    near = np.exp(-((np.log1p(squares) - np.array(SIZES)) ** 2) / 2)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    direction = rows / np.sqrt(np.where(squares > 0, squares, 1))
    direction = np.concatenate([direction, np.ones((len(rows), 1))], axis=1)
    return (direction[:, :, None] * near[:, None]).reshape(len(rows), -1)


def test_weights_are_those_of_ridge_regression(linear, rows, labels):
    read, wanted = columns(rows[:30]), SHARPNESS * np.eye(3)[labels[:30]]
    solved = np.linalg.solve(read.T @ read + PENALTY * np.eye(read.shape[1]), read.T @ wanted)
    np.testing.assert_allclose(linear(rows)[0], columns(rows) @ solved, atol=1e-4)


def test_a_node_that_counts_twice_is_there_twice(rows, labels):
    weights = torch.ones(60)
    weights[:20] = 2
    twice = torch.cat([torch.arange(60), torch.arange(20)])
    counted, repeated = LinearBySize(1, 9, 3), LinearBySize(1, 9, 3)
    counted.solve(0, rows, labels, weights)
    repeated.solve(0, rows[twice], labels[twice], torch.ones(80))
    torch.testing.assert_close(counted(rows), repeated(rows), atol=1e-3, rtol=0)


def test_sparse_rows_say_the_same(linear, rows, labels):
    sparse = SparseRows.from_scipy(sp.csr_array(rows.numpy()))
    other = LinearBySize(2, 9, 3)
    for replica in range(2):
        half = np.arange(30 * replica, 30 * replica + 30)
        other.solve(replica, sparse.taken(half), labels[half], torch.ones(30))
    torch.testing.assert_close(other(sparse), linear(rows), atol=1e-4, rtol=0)


def test_what_is_said_about_a_row_does_not_follow_from_the_others(linear, rows):
    torch.testing.assert_close(linear(rows[7:9]), linear(rows)[:, 7:9], atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12])
def test_rows_of_any_size_get_a_score(scale, linear, rows):
    assert linear(rows * scale).isfinite().all()


def test_one_that_is_not_solved_changes_nothing(linear, rows):
    scores = torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0))
    assert LinearBySize(2, 9, 3).beside(scores, rows) is scores
    both = (torch.log_softmax(scores, -1) + torch.log_softmax(linear(rows), -1)) / 2
    torch.testing.assert_close(linear.beside(scores, rows), both)


def test_state_loads_solved_or_not(linear, rows):
    solved, empty = LinearBySize(2, 9, 3), LinearBySize(2, 9, 3)
    solved.load_state_dict(linear.state_dict())
    assert torch.equal(solved(rows), linear(rows))
    solved.load_state_dict(empty.state_dict())
    assert not solved.is_solved
    with pytest.raises(RuntimeError, match="Missing key"):
        linear.load_state_dict({})


def test_state_of_other_features_is_refused(linear):
    with pytest.raises(RuntimeError, match="size mismatch"):
        LinearBySize(2, 8, 3).load_state_dict(linear.state_dict())
