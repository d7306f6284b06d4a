"""Class codes: one vector per class, sent as a message, and estimates from sums of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Sources of the class prior of a fitted model, as stated in its card.
UNIFORM = "uniform: no rates are declared, and counts of classes are private at this level"
DECLARED = "declared in the schema"
COUNTED = "class frequencies of the training labels, which are public at this level"


# Norm of the simplex corners' mean under the prior at which centring starts, and at which it is
# complete. Below the first no class is rare, and centring would only shorten codes relative to the
# noise. Chosen on the development graphs (docs/explanation/research-notes.md).
EVEN, UNEVEN = 0.25, 0.5


def centring(shares: Sequence[float]) -> float:
    """Return how far class codes move from the uniform prior, at 0, towards this one, at 1.

    >>> centring([0.97, 0.03]), centring([0.3, 0.3, 0.25, 0.15])
    (1.0, 0.0)
    """
    known = torch.tensor(shares, dtype=torch.float64)
    uneven = float((known @ _simplex(len(shares))).norm())
    return min(1.0, max(0.0, (uneven - EVEN) / (UNEVEN - EVEN)))


@dataclass(frozen=True)
class ClassPrior:
    """The class probabilities at which codes are centred, fixed at fit and kept with the model.

    Attributes:
        shares: of each class, for every repeat.
        source: where they came from.
        centred: degree of centring for every repeat, see :func:`centring`.
    """

    shares: tuple[tuple[float, ...], ...]
    source: str
    centred: tuple[float, ...]

    @classmethod
    def of(cls, shares: Sequence[Sequence[float]], source: str) -> ClassPrior:
        """Return the prior with shares of every repeat.

        >>> ClassPrior.of([[0.97, 0.03]], DECLARED).centred
        (1.0,)
        """
        rows = tuple(tuple(float(share) for share in row) for row in shares)
        return cls(rows, source, tuple(centring(row) for row in rows))

    @classmethod
    def counted(cls, labels: NDArray[Any], training: NDArray[np.bool_], classes: int) -> ClassPrior:
        """Return the class frequencies of the training nodes of each repeat, where public.

        >>> ClassPrior.counted(np.array([0, 0, 0, 1]), np.array([[True] * 4]), 2).shares
        ((0.75, 0.25),)
        """
        counts = [np.bincount(labels[mask], minlength=classes) for mask in training]
        return cls.of([(count / count.sum()).tolist() for count in counts], COUNTED)

    @classmethod
    def declared(cls, rates: Sequence[float] | None, *, classes: int, repeats: int) -> ClassPrior:
        """Return declared rates, or without any the uniform prior; neither reads a label.

        >>> ClassPrior.declared(None, classes=2, repeats=1).shares
        ((0.5, 0.5),)
        """
        shares = [1 / classes] * classes if rates is None else rates
        return cls.of([shares] * repeats, UNIFORM if rates is None else DECLARED)

    def first(self) -> ClassPrior:
        """Return the prior of the first repeat, which a saved model holds."""
        return ClassPrior(self.shares[:1], self.source, self.centred[:1])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, classes: int) -> ClassPrior | None:
        """Read what :meth:`to_dict` wrote; None for models saved without a prior (uniform).

        >>> ClassPrior.from_dict({"shares": [[1.0, -2.0]], "source": "", "centred": [1.0]}, 2)
        Traceback (most recent call last):
        ...
        ValueError: the class prior must be 2 probabilities. Got [1.0, -2.0].
        """
        if values is None:
            return None
        shares = tuple(tuple(map(float, row)) for row in values["shares"])
        centred = tuple(map(float, values["centred"]))
        for row in shares:
            if len(row) != classes or not all(0 <= share <= 1 for share in row) or not sum(row):
                raise ValueError(
                    f"the class prior must be {classes} probabilities. Got {list(row)}."
                )
        if len(centred) != len(shares) or not all(0 <= share <= 1 for share in centred):
            raise ValueError(f"the centring must be from 0 to 1. Got {list(centred)}.")
        return cls(shares, str(values["source"]), centred)

    def tensor(self) -> Tensor:
        """Return the class probabilities at which codes are centred, (repeats, C)."""
        shares = torch.tensor(self.shares, dtype=torch.float64)
        moved = torch.tensor(self.centred, dtype=torch.float64).unsqueeze(-1)
        return moved * shares + (1 - moved) / shares.shape[-1]

    def fact(self) -> tuple[str, str]:
        """Return the card's statement: the shares of the first repeat, and their source."""
        shares = ", ".join(f"{share:.4g}" for share in self.shares[0])
        moved = self.centred[0]
        centre = {0.0: "even shares", 1.0: "it"}.get(
            moved, f"{moved:.2g} times it and {1 - moved:.2g} times even shares"
        )
        return f"class prior {shares}; class codes are centred at {centre}", self.source


def class_codes(
    num_classes: int, device: torch.device | None = None, prior: Tensor | None = None
) -> Tensor:
    """Return one vector of norm at most 1 per class: simplex corners, centred at the prior.

    One-hot codes of C classes have distance sqrt(2) and a common direction without information
    about the class. Without it C - 1 dimensions suffice, and at the same norm the corners of a
    regular simplex have distance sqrt(2 C / (C - 1)), a better signal-to-noise ratio.

    With uniform centring a sum over many neighbours of a common class is long, and masks the
    contribution of a rare class. With a prior the corners are shifted so that their mean under it
    is zero, and scaled so that the largest norm is 1: the code of a rare class has norm 1, that of
    a class with nearly all nodes a norm near 0. One message changes a sum by at most 1 in either
    case (privacy page, section 1).

    Args:
        num_classes: C.
        device: of the result.
        prior: public class probabilities, (C) or (repeats, C); None is uniform.

    Returns:
        (C, C - 1), or (repeats, C, C - 1).

    >>> codes = class_codes(3)
    >>> codes.shape, bool(torch.allclose(codes @ codes.T, torch.eye(3) * 1.5 - 0.5, atol=1e-6))
    (torch.Size([3, 2]), True)
    >>> class_codes(2, prior=torch.tensor([0.75, 0.25])).flatten().tolist()
    [0.3333333432674408, -1.0]
    """
    corners = _simplex(num_classes)
    if prior is not None:
        centre, longest = _placed(num_classes, prior)
        corners = (corners - centre) / longest
    return corners.float().to(device=device)


def _placed(num_classes: int, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the corners under a prior, and the largest distance of a corner to it."""
    corners, known = _simplex(num_classes), prior.detach().to(device="cpu", dtype=torch.float64)
    centre = ((known / known.sum(dim=-1, keepdim=True)) @ corners).unsqueeze(-2)
    lengths = torch.linalg.vector_norm(corners - centre, dim=-1)
    return centre, lengths.amax(dim=-1)[..., None, None]


def code_scale(num_classes: int, prior: Tensor | None = None) -> float:
    """Return the factor by which centring at a prior shortened codes; 1 if it is uniform.

    >>> code_scale(3), code_scale(2, torch.tensor([0.75, 0.25]))
    (1.0, 1.5)
    """
    if prior is None:
        return 1.0
    shares = prior if prior.dim() == 1 else prior[0]
    if bool((shares == shares[0]).all()):
        return 1.0
    return float(_placed(num_classes, shares)[1])


def class_counts(sums: Tensor, prior: Tensor | None = None) -> Tensor:
    """Return the number of messages of each class in a sum, less what the prior expects.

    A uniform prior expects equal numbers of all classes.

    Args:
        sums: of class codes centred at the prior, (..., nodes, C - 1).
        prior: as in :func:`class_codes`.

    >>> codes = class_codes(2, prior=torch.tensor([0.75, 0.25]))
    >>> counts = class_counts(3 * codes[:1] + 5 * codes[1:], torch.tensor([0.75, 0.25]))
    >>> [round(float(count), 5) for count in counts[0]]
    [-3.0, 3.0]
    """
    classes = sums.shape[-1] + 1
    counts = (1 - 1 / classes) * class_scores(sums)
    if prior is None:
        return counts
    longest = _placed(classes, prior)[1].to(device=sums.device, dtype=sums.dtype)
    return counts * (longest if sums.dim() > 2 else longest.flatten()[0])


@cache
def _simplex(num_classes: int) -> Tensor:
    codes = torch.zeros(num_classes, num_classes - 1, dtype=torch.float64)
    # Corners after k agree in coordinates 0 to k.
    for axis in range(num_classes - 1):
        rest = 1 - codes[axis, :axis].square().sum()
        codes[axis, axis] = rest.sqrt()
        cosine = -1 / (num_classes - 1)
        below = codes[axis + 1 :, :axis] @ codes[axis, :axis]
        codes[axis + 1 :, axis] = (cosine - below) / codes[axis, axis]
    return codes


def mean_codes(scores: Tensor, codes: Tensor | None = None) -> Tensor:
    """Return the mean of the class codes under a posterior; zero if it equals the prior.

    Args:
        scores: calibrated class scores, (..., C).
        codes: from :func:`class_codes`; None: those of a uniform prior.

    >>> bool(mean_codes(torch.zeros(1, 4)).norm() < 1e-6)
    True
    """
    if codes is None:
        codes = class_codes(scores.shape[-1], scores.device)
    return torch.softmax(scores, dim=-1) @ codes


def class_scores(sums: Tensor, codes: Tensor | None = None) -> Tensor:
    """Return the inner product of a sum of class codes with the code of each class.

    >>> class_scores(class_codes(3)[1:2]).argmax().item()
    1
    """
    if codes is None:
        codes = class_codes(sums.shape[-1] + 1, sums.device)
    return sums @ codes.transpose(-1, -2)
