"""What ``auto`` means for each variant of GAP.

The paper's method keeps the paper's settings. Those of the other variants were chosen once, on
public graphs; nothing is searched on private data at fit time. ``docs/research-notes.md`` has the
search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from gapgnn.methods.gap.variant import Variant
from gapgnn.training import Recipe

T = TypeVar("T")


def chosen(value: T | str, default: T) -> T:
    """Return an option with ``auto`` filled in.

    >>> chosen("auto", 16), chosen(64, 16)
    (16, 64)
    """
    return default if value == "auto" else value  # type: ignore[return-value]


@dataclass(frozen=True)
class Defaults:
    """The settings of one variant.

    Attributes:
        hidden: width of hidden layers.
        base_layers: layers of the network applied to each hop.
        activation: after every hidden layer.
        dropout: rate after every hidden layer.
        batches: size of a DP-SGD batch relative to the paper's.
        epochs: DP-SGD epochs relative to the paper's.
        ratio: noise multiplier of the aggregation over that of DP-SGD, at epsilon 1.
        exponent: how that ratio changes with epsilon: the aggregation of a large budget gains more
            from a larger share.
    """

    hidden: int = 16
    base_layers: int = 1
    activation: str = "selu"
    dropout: float = 0.0
    batches: int = 1
    epochs: int = 1
    ratio: float = 1.0
    exponent: float = 0.0

    @classmethod
    def of(cls, variant: Variant) -> Defaults:
        """Return the settings of a variant.

        >>> labels = Variant.resolve(level="edge", messages="labels", progressive="auto",
        ...                          hops="auto", encoder_layers=2)
        >>> Defaults.of(labels).hidden
        32
        """
        is_free = variant.level != "node"
        if variant.is_papers:
            return cls()
        if variant.messages == "features":
            return cls(
                base_layers=2,
                activation="tanh",
                dropout=0.2 if is_free else 0.0,
                batches=2,
                exponent=-1 / 3,
            )
        if is_free:
            return cls(hidden=32, dropout=0.4)
        return cls(batches=8, epochs=4, ratio=0.55, exponent=-1 / 2)

    def aggregation_ratio(self, epsilon: float) -> float:
        """Return the noise multiplier of the aggregation relative to that of DP-SGD.

        >>> Defaults(ratio=0.5, exponent=-0.5).aggregation_ratio(4.0)
        0.25
        """
        return float(self.ratio * epsilon**self.exponent)

    def recipe(
        self, papers: Recipe, num_train: int, *, epochs: int | str, batch_size: int | str
    ) -> Recipe:
        """Return the paper's training settings with this variant's batches and epochs.

        What the caller chose stays. A batch is at most a quarter of the training nodes, so that
        small graphs are given enough steps.
        """
        if papers.batch_size is None:
            return papers
        if batch_size == "auto" and self.batches > 1:
            size = min(self.batches * papers.batch_size, max(num_train // 4, papers.batch_size))
            papers = replace(papers, batch_size=size)
        if epochs == "auto":
            papers = replace(papers, epochs=self.epochs * papers.epochs)
        return papers
