"""The shrunk regression: the penalised log loss it claims to solve, at its share, from a folder."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression

from gapgnn.nn import ShrunkRegression, SparseRows
from gapgnn.nn.shrunk import scores_of


@pytest.fixture
def rows():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32))


@pytest.fixture
def labels(rows):
    noise = np.random.default_rng(1).normal(size=200)
    return torch.from_numpy((rows[:, 0].numpy() + noise > 1).astype(np.int64))


def log_odds(rows, weights):
    scores = scores_of(rows, weights)
    return (scores[:, 1] - scores[:, 0]).numpy()


@pytest.mark.parametrize("penalty", [1.0, 30.0])
def test_weights_are_those_of_the_penalised_log_loss(penalty, rows, labels):
    found = ShrunkRegression(1, 6, 2).solved(rows, labels, penalty=penalty)
    # Two rows of weights, each penalised: half the penalty of their difference.
    one = LogisticRegression(C=2 / penalty, max_iter=1000, tol=1e-8).fit(rows, labels)
    np.testing.assert_allclose(
        log_odds(rows, found), one.decision_function(rows.double()), atol=5e-3
    )


def test_the_class_prior_is_met_whatever_the_penalty(rows, labels):
    found = ShrunkRegression(1, 6, 2).solved(rows, labels, penalty=1e6)
    said = torch.softmax(scores_of(rows, found), dim=-1)[:, 1]
    torch.testing.assert_close(said, labels.float().mean().expand(200), atol=1e-3, rtol=0)


def test_sparse_rows_have_the_weights_of_dense_ones(labels):
    dense = (np.random.default_rng(2).random((200, 6)) < 0.3).astype(np.float32)
    shrunk = ShrunkRegression(1, 6, 2)
    sparse = SparseRows.from_scipy(sp.csr_array(dense))
    found = shrunk.solved(sparse, labels, penalty=3.0)
    torch.testing.assert_close(
        found, shrunk.solved(torch.from_numpy(dense), labels, penalty=3.0), atol=1e-4, rtol=0
    )


def test_a_share_of_0_says_what_the_others_say_and_1_what_the_regression_says(rows, labels):
    shrunk, others = ShrunkRegression(2, 6, 2), torch.randn(2, 200, 2)
    assert shrunk.beside(others, rows) is others
    found = shrunk.solved(rows, labels, penalty=3.0)
    shrunk.keep(torch.stack([found, found]), torch.tensor([0.0, 1.0]))
    said = shrunk.beside(others, rows)
    torch.testing.assert_close(said[0], torch.log_softmax(others[0], dim=-1))
    torch.testing.assert_close(said[1], torch.log_softmax(scores_of(rows, found), dim=-1))


def test_state_loads_solved_or_not(rows, labels):
    solved = ShrunkRegression(1, 6, 2)
    solved.keep(solved.solved(rows, labels, penalty=3.0).unsqueeze(0), 0.5)
    empty = ShrunkRegression(1, 6, 2)
    for state, is_solved in ((solved.state_dict(), True), (empty.state_dict(), False)):
        loaded = ShrunkRegression(1, 6, 2)
        loaded.load_state_dict(state)
        assert loaded.is_solved == is_solved
        assert float(loaded.share[0]) == (0.5 if is_solved else 0)
