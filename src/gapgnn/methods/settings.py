"""Resolved hyperparameters, without ``auto``: the part of a plan about a method's networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from gapgnn.training import Recipe, RowScale

SettingsType = TypeVar("SettingsType", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every method resolves; a method adds its own.

    Attributes:
        recipe: epochs, batches and optimiser of its classifiers.
        batch_norm: whether networks normalise batches.
        loss_weights: what a node of each class counts in the loss; None: all alike.
        answer_weights: what a node of each class counts in answers of networks that train without
            weights; None: all alike.
        row_scale: how rows of features are scaled; None leaves them as they are.
    """

    recipe: Recipe
    batch_norm: bool
    loss_weights: tuple[float, ...] | None = None
    answer_weights: tuple[float, ...] | None = None
    row_scale: RowScale | None = None

    @classmethod
    def from_dict(cls: type[SettingsType], values: Mapping[str, Any]) -> SettingsType:
        """Read settings back; raise ValueError, TypeError or KeyError where they cannot be.

        >>> recipe = Recipe.resolve(level="edge", num_train=9, epochs=5, batch_size="auto",
        ...     learning_rate=0.01, weight_decay=0.0, optimizer="adam", clip=1.0)
        >>> from gapgnn.privacy.plan import plain
        >>> Settings.from_dict(plain(Settings(recipe=recipe, batch_norm=True))).recipe.epochs
        5
        """
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        for name in ("recipe", "feature_recipe"):
            if name in found:
                found[name] = Recipe(**found[name])
        if found["row_scale"] is not None:
            found["row_scale"] = RowScale(**found["row_scale"])
        unknown = set(found) - {part.name for part in fields(cls)}
        if unknown:
            raise ValueError(f"settings have unknown names: {', '.join(sorted(unknown))}")
        weights = found["answer_weights"]
        if weights is not None and (min(weights) < 0 or not 0 < sum(weights) < float("inf")):
            raise ValueError(f"class weights must be at least 0. Got {weights}.")
        return cls(**found)


def layer_options(config: Any, settings: Settings, *, dropout: float) -> dict[str, Any]:
    """Return the options that all layers of a method's networks share.

    Args:
        config: of the method: ``hidden`` and ``activation``.
        settings: resolved: ``batch_norm``.
        dropout: resolved.
    """
    return {
        "hidden": config.hidden,
        "activation": config.activation,
        "batch_norm": settings.batch_norm,
        "dropout": dropout,
    }
