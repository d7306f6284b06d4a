"""How a network is trained: epochs, batches, optimiser, and what DP-SGD needs at node level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.privacy.accounting import PoissonGaussian
from gapgnn.privacy.dpsgd import DPSchedule, plan_steps

# The paper's batch sizes at node level by the size of its three graphs' training sets.
NODE_BATCHES = ((50_000, 256), (500_000, 2_048))
LARGEST_BATCH = 4_096
# Steps of DP-SGD with messages of norm 1 and of the MLP, how many people one of them counts, and at
# least and at most which share of all (docs/research-notes.md).
NODE_STEPS, STEP_PEOPLE, LEAST_RATE, MOST_RATE = 225, 1024, 0.06, 0.5
LEARNING_RATE = 0.01
# From this budget on, under ``add-remove``, few people are learned from by smaller steps.
AMPLE = 4.0
# Where a step reads some nodes: how many training nodes it counts, and how many steps there are,
# where training nodes are few and where they are not (docs/research-notes.md).
STEP_NODES, FEW_STEPS, STEPS = 1024, 60, 240
# Up to so many they are few.
FEW = 4000


@dataclass(frozen=True)
class Recipe:
    """Resolved training settings.

    ``batch_size`` None means all training nodes in every step. ``steps`` is how many steps of
    DP-SGD there are, where that does not follow from the epochs. ``nodes`` is how many training
    nodes a step without a batch size counts, among nodes that all replicas share; None for all.
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
        """Fill in ``auto`` as in the paper: 100 full-batch epochs, or 10 epochs of DP-SGD.

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
        """Return what one phase of DP-SGD releases, its noise as a ratio to the free multiplier."""
        schedule = self.schedule(num_train)
        return PoissonGaussian(ratio, schedule.sampling_rate, schedule.steps, label)


def node_recipe(
    paper_recipe: Recipe, num_train: int, *, epochs: int | str, batch_size: int | str
) -> Recipe:
    """Return the paper's settings at node level with as many steps of DP-SGD on any graph.

    A step counts 1,024 people, or 6 % of them where that is more, and at most half: the larger a
    step, the less its noise weighs. What the caller chose stays. Chosen on the development graphs
    (docs/research-notes.md), with rows as :class:`RowScale` has them.
    """
    if batch_size == "auto":
        rate = min(MOST_RATE, max(LEAST_RATE, STEP_PEOPLE / num_train))
        paper_recipe = replace(paper_recipe, batch_size=max(1, round(rate * num_train)))
    return replace(paper_recipe, steps=NODE_STEPS) if epochs == "auto" else paper_recipe


def node_learning_rate(num_train: int, worth: float) -> float:
    """Return the step size for networks that learn from features by DP-SGD.

    The features of few people are soon learned by heart, and with an ample budget no step needs to
    be large to be heard above the noise. Chosen on the development graphs (docs/research-notes.md).

    Args:
        num_train: number of training people, as far as that is public.
        worth: the budget under ``add-remove`` that buys about as little noise.

    >>> [node_learning_rate(people, 16.0) for people in (2000, 9000)]
    [0.005, 0.01]
    """
    return LEARNING_RATE * (1.0 if num_train > FEW else min(1.0, math.sqrt(AMPLE / worth)))


def minibatch_recipe(
    paper_recipe: Recipe, num_train: int, *, epochs: int | str, batch_size: int | str
) -> Recipe:
    """Return the paper's settings for steps that read some nodes each.

    What the caller chose stays: the number of steps, and how many training nodes each of them
    counts.
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
    """Return what a node of each class counts in the loss, on average 1; None for all alike.

    Args:
        given: ``balanced`` lets every class count the same in total; otherwise numbers, one for
            each class or by name, also as text: ``"high=10,low=1"``.
        names: of the classes, in their order.
        rates: share of each class among the nodes. With privacy at node level they are declared,
            because counts of people are private; None where they are not known.

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
