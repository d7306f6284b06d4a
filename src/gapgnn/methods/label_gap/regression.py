"""The regression of a stage, beside its networks or in their place where a class is rare.

A few dozen training nodes of a class are too few for a network. The evidence in the graph is then
nearly linear in few columns: the log-probabilities of the feature model, the pool of the released
hops, and its squares. Under Gaussian noise the log-likelihood ratio of two numbers of
neighbours is linear in a noisy sum, and quadratic where nodes of one class differ in that number.

Features, labels and released rows are public at the levels of LabelGAP, so all of this is
post-processing (privacy page, section 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gapgnn.nn import ShrunkRegression, specified

# Factor on half the squared norm of the weights of standardised columns, and the size in units of
# the noise beyond which the square of a sum grows no more. Chosen on generated graphs with a rare
# class (docs/explanation/research-notes.md).
PENALTY, LARGEST = 2.0, 30.0


def regression_of(stage: str) -> str:
    """Return the name of a stage's regression among the modules of a model."""
    return f"{stage}-regression"


def columns_of(first: Tensor, pool: Tensor) -> Tensor:
    """Return what a regression reads of every node, (repeats, nodes, columns).

    Args:
        first: log-probabilities of the feature model, (repeats, nodes, classes).
        pool: of the released hops in units of their noise, (repeats, nodes, width).

    >>> columns_of(torch.zeros(1, 5, 2), torch.ones(1, 5, 1)).shape
    torch.Size([1, 5, 4])
    """
    return torch.cat([first, pool, pool.clamp(-LARGEST, LARGEST).square()], dim=-1)


@specified
class StageRegression(ShrunkRegression):
    """One regression for each repeat, without effect until it is solved.

    Args:
        replicas: number of repeats.
        num_columns: of :func:`columns_of`.
        num_classes: C.
    """

    def __init__(self, replicas: int, num_columns: int, num_classes: int) -> None:
        super().__init__(replicas, num_columns, num_classes)

    @classmethod
    def of_pool(cls, replicas: int, pool_width: int, num_classes: int) -> StageRegression:
        """Return the regression for a pool with a number of columns.

        >>> StageRegression.of_pool(1, 1, 2).is_solved
        False
        """
        return cls(replicas, num_classes + 2 * pool_width, num_classes)

    def solved_on(self, columns: Tensor, labels: Tensor, training: Tensor) -> Tensor:
        """Return the weights of every repeat, (repeats, columns + 1, classes), for given columns.

        The penalty holds for columns of mean 0 and standard deviation 1 over the training nodes.

        Args:
            columns: of every node, from :func:`columns_of`.
            labels: class of every node.
            training: mask of the training nodes of each repeat; no other label is read.

        >>> columns = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(0))
        >>> labels, everyone = (columns[0, :, 2] > 0).long(), torch.ones(1, 50, dtype=torch.bool)
        >>> weights = StageRegression(1, 4, 2).solved_on(columns, labels, everyone)
        >>> bool(weights[0, 2, 1] > weights[0, 2, 0])
        True
        """
        found = []
        for rows, mask in zip(columns, training, strict=True):
            known = rows[mask]
            mean, spread = known.mean(dim=0), known.std(dim=0).clamp(min=1e-6)
            standard = self.solved((known - mean) / spread, labels[mask], penalty=PENALTY)
            weights = standard[:-1] / spread.unsqueeze(-1)
            found.append(torch.cat([weights, standard[-1:] - mean.unsqueeze(0) @ weights]))
        return torch.stack(found)

    def posterior_beside(self, posterior: Tensor, columns: Tensor) -> Tensor:
        """Return the posterior of networks and regression, at the regression's share."""
        logs = posterior.clamp(min=torch.finfo(posterior.dtype).tiny).log()
        return torch.softmax(self.beside(logs, columns), dim=-1)
