"""Training recipes: epochs, batches, optimiser, and the schedule of DP-SGD at node level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy.accounting import PoissonGaussian
from gapgnn.privacy.dpsgd import DPSchedule, plan_steps

# GAP's batch sizes at node level, by the size of its three graphs' training sets.
NODE_BATCHES = ((50_000, 256), (500_000, 2_048))
LARGEST_BATCH = 4_096
# For the MLP and methods with messages of norm 1: steps of DP-SGD, expected batch size, and the
# least and largest sampling rate (docs/explanation/research-notes.md).
NODE_STEPS, STEP_PEOPLE, LEAST_RATE, MOST_RATE = 225, 1024, 0.06, 0.5
LEARNING_RATE = 0.01
# Above this epsilon, under ``add-remove``, the learning rate falls if training nodes are few.
AMPLE = 4.0
# Minibatch steps: training nodes in a minibatch, and the number of steps if training nodes are few
# and if they are not (docs/explanation/research-notes.md).
STEP_NODES, FEW_STEPS, STEPS = 1024, 60, 240
# The largest number of training nodes that counts as few.
FEW = 4000


@dataclass(frozen=True)
class Recipe:
    """Resolved training settings.

    ``batch_size`` None means all training nodes in every step. ``steps`` is the number of DP-SGD
    steps, if it does not follow from the epochs. ``nodes`` is the number of training nodes in a
    minibatch that all replicas share, used without a batch size; None for all.
    """

    epochs: int
    batch_size: int | None
    learning_rate: float
    weight_decay: float
    optimizer: str
    clip: float
    steps: int | None = None
    nodes: int | None = None

    @classmethod
    def resolve(
        cls,
        *,
        level: str,
        num_train: int,
        epochs: int | str,
        batch_size: int | str,
        learning_rate: float | str,
        weight_decay: float,
        optimizer: str,
        clip: float,
    ) -> Recipe:
        """Fill in ``auto`` as in GAP: 100 full-batch epochs, or 10 epochs of DP-SGD.

        >>> Recipe.resolve(level="node", num_train=11530, epochs="auto", batch_size="auto",
        ...     learning_rate=0.01, weight_decay=0.0, optimizer="adam", clip=1.0).batch_size
        256
        """
        is_private = level == "node"
        if learning_rate == "auto":
            learning_rate = LEARNING_RATE
        if epochs == "auto":
            epochs = 10 if is_private else 100
        size: int | None
        if batch_size == "auto":
            fitting = (size for limit, size in NODE_BATCHES if num_train < limit)
            size = min(next(fitting, LARGEST_BATCH), num_train) if is_private else None
        else:
            size = check_integer("batch_size", batch_size, at_least=1)
            if size > num_train:
                raise InputError(
                    f"`batch_size` must be at most {num_train}, the number of training nodes. "
                    f"Got {size}."
                )
            if size == num_train and not is_private:
                size = None
        return cls(
            epochs=check_integer("epochs", epochs, at_least=1),
            batch_size=size,
            learning_rate=check_number("learning_rate", learning_rate, above=0),
            weight_decay=check_number("weight_decay", weight_decay, at_least=0),
            optimizer=check_choice("optimizer", optimizer, ("adam", "sgd")),
            clip=check_number("clip", clip, above=0),
        )

    def schedule(self, num_train: int) -> DPSchedule:
        """Return the Poisson schedule of one phase of DP-SGD."""
        planned = plan_steps(num_train, self.batch_size or num_train, self.epochs)
        return planned if self.steps is None else replace(planned, steps=self.steps)

    def event(self, num_train: int, *, ratio: float, label: str) -> PoissonGaussian:
        """Return the event of one phase of DP-SGD, its noise as a ratio to the free multiplier."""
        schedule = self.schedule(num_train)
        return PoissonGaussian(ratio, schedule.sampling_rate, schedule.steps, label)


def node_recipe(
    paper_recipe: Recipe, num_train: int, *, epochs: int | str, batch_size: int | str
) -> Recipe:
    """Return GAP's settings at node level with a fixed number of DP-SGD steps.

    The expected batch size is 1,024, or 6 % of the training nodes if that is more, and at most
    half: a larger batch has a better signal-to-noise ratio. Given parameters are kept. Chosen on
    the development graphs (docs: research notes), with rows scaled by :class:`RowScale`.
    """
    if batch_size == "auto":
        rate = min(MOST_RATE, max(LEAST_RATE, STEP_PEOPLE / num_train))
        paper_recipe = replace(paper_recipe, batch_size=max(1, round(rate * num_train)))
    return replace(paper_recipe, steps=NODE_STEPS) if epochs == "auto" else paper_recipe


def node_learning_rate(num_train: int, effective_epsilon: float) -> float:
    """Return the learning rate of networks that are trained on features by DP-SGD.

    Few training nodes are easily overfitted, and under an ample budget the noise allows smaller
    steps. Chosen on the development graphs (docs/explanation/research-notes.md).

    Args:
        num_train: public number of training nodes.
        effective_epsilon: the budget under ``add-remove`` with about the same noise.

    >>> [node_learning_rate(people, 16.0) for people in (2000, 9000)]
    [0.005, 0.01]
    """
    return LEARNING_RATE * (
        1.0 if num_train > FEW else min(1.0, math.sqrt(AMPLE / effective_epsilon))
    )


def minibatch_recipe(
    paper_recipe: Recipe, num_train: int, *, epochs: int | str, batch_size: int | str
) -> Recipe:
    """Return GAP's settings for minibatch steps.

    A given number of steps and a given number of training nodes per step are kept.
    """
    steps = STEPS if num_train > FEW else FEW_STEPS
    nodes = STEP_NODES if batch_size == "auto" else paper_recipe.batch_size or num_train
    chosen = steps if epochs == "auto" else paper_recipe.epochs
    return replace(paper_recipe, batch_size=None, nodes=nodes, epochs=chosen)


def class_weights(
    given: str | Sequence[float] | Mapping[Any, float] | None,
    *,
    names: Sequence[str],
    rates: Sequence[float] | None,
) -> list[float] | None:
    """Return the weight of a node of each class in the loss, on average 1; None: all 1.

    Args:
        given: ``balanced`` gives every class the same total weight; otherwise numbers, one for each
            class or by name, also as text: ``"high=10,low=1"``.
        names: of the classes, in their order.
        rates: share of each class among the nodes. With privacy at node level they are declared,
            because class counts are private; None if they are unknown.

    >>> class_weights("balanced", names=["high", "low"], rates=[0.1, 0.9])
    [5.0, 0.5555555555555556]
    >>> class_weights("high=9,low=1", names=["high", "low"], rates=[0.1, 0.9])
    [5.0, 0.5555555555555556]
    >>> class_weights([1, 1, 2], names=["a", "b", "c"], rates=None)
    [0.75, 0.75, 1.5]
    """
    if given is None:
        return None
    if given == "balanced":
        if rates is None:
            raise InputError(
                "`class_weight` must be numbers where the rates of the classes are not declared: "
                "at level node their counts are private. Got balanced; declare `rates` beside the "
                "classes in the schema, or give numbers."
            )
        weights = [0.0 if rate == 0 else 1 / (len(names) * rate) for rate in rates]
    else:
        weights = _given_weights(given, names)
    shares = [1 / len(names)] * len(names) if rates is None else rates
    mean = sum(weight * share for weight, share in zip(weights, shares, strict=True))
    if not mean:
        raise InputError(f"`class_weight` must be above 0 for a class that occurs. Got {given!r}.")
    return [weight / mean for weight in weights]


def _given_weights(given: Any, names: Sequence[str]) -> list[float]:
    """Return one number per class from a list, a table by name, or either as text."""
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(",")]
        is_named = all("=" in part for part in parts)
        given = dict(part.rsplit("=", 1) for part in parts) if is_named else parts
    if isinstance(given, Mapping):
        table = {str(name): weight for name, weight in given.items()}
        if sorted(table) != sorted(names):
            raise InputError(
                f"`class_weight` must name each class once: {', '.join(names)}. "
                f"Got {', '.join(table)}."
            )
        given = [table[name] for name in names]
    if len(given) != len(names):
        raise InputError(
            f"`class_weight` must be balanced or one number for each of the {len(names)} classes "
            f"({', '.join(names[:8])}). Got {len(given)}."
        )
    weights = []
    for weight in given:
        try:
            number = float(weight)
        except (TypeError, ValueError):
            raise InputError(
                f"`class_weight` must be balanced or numbers. Got {weight!r}."
            ) from None
        weights.append(check_number("class_weight", number, at_least=0, at_most=1e6))
    return weights
