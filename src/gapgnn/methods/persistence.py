"""Saving a fitted model to a folder, and loading it again."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import nn

from gapgnn.errors import DataError, InputError
from gapgnn.graph import Graph
from gapgnn.graph.tables import Schema
from gapgnn.methods.folder import add_hops, load_folder, save_folder
from gapgnn.methods.journal import Journal, NoJournal
from gapgnn.methods.releases import Releases
from gapgnn.privacy import Guarantee
from gapgnn.privacy.card import PrivacyCard

Self = TypeVar("Self", bound="Persistent")


class Persistent:
    """What every fitted method can do with a folder."""

    method: ClassVar[str]
    # Whether every release goes through a journal, so that a killed run can be resumed.
    _keeps_releases: ClassVar[bool] = False
    level: str
    repeats: int
    num_features_: int
    num_classes_: int
    classes_: Any
    label_names_: tuple[str, ...] | None
    feature_names_: tuple[str, ...] | None
    schema_: Schema | None
    noise_multiplier_: float | None
    modules_: dict[str, nn.Module]
    releases_: Releases
    card_: PrivacyCard
    get_params: Callable[..., dict[str, Any]]

    def _check_fitted(self) -> None:
        raise NotImplementedError

    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        raise NotImplementedError

    def _checked_journal(self, journal: Journal | None) -> NoJournal:
        """Refuse a journal where releases would not be kept and so be drawn again."""
        if journal is not None and not self._keeps_releases:
            raise InputError(f"`journal` must be None for {self.method}. Got one; it is for gap.")
        return NoJournal() if journal is None else journal

    def _about_run(self, graph: Graph, guarantee: Guarantee) -> dict[str, Any]:
        """Return what must not change when a run is resumed: options, and what is released."""
        return {
            "method": self.method,
            "params": self._saved_params(),
            "num_nodes": graph.num_nodes,
            "level": guarantee.level,
            "relation": guarantee.relation,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "count": self.repeats,
            "events": [event.to_dict() for event in guarantee.events],
            "fingerprint": graph.fingerprint,
        }

    def _saved_params(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them, without those of this machine."""
        return {
            # JSON has no infinity, which epsilon may be at level none.
            k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in self.get_params().items()
            if k not in ("ledger", "device")
        }

    def save(self, folder: str | Path) -> None:
        """Write the model to a new folder: weights, configuration, card, released hops."""
        self._check_fitted()
        save_folder(
            Path(folder),
            config={
                "method": self.method,
                "params": self._saved_params(),
                "num_features": self.num_features_,
                "num_classes": self.num_classes_,
                "label_names": self.label_names_,
                "feature_names": self.feature_names_,
                "schema": None if self.schema_ is None else self.schema_.to_dict(),
                "noise_multiplier": self.noise_multiplier_,
                "releases": list(self.releases_.hops),
            },
            weights={
                f"{name}.{key}": value
                for name, module in self.modules_.items()
                for key, value in module.state_dict().items()
            },
            card=self.card_,
            hops=self.releases_.hops,
        )

    def save_releases(self, folder: str | Path) -> None:
        """Add what was released since saving to the model's folder: it is never drawn again.

        At level none nothing was paid for, so nothing needs to be kept.
        """
        if self.level == "none":
            return
        for release, released in self.releases_.hops.items():
            if release not in load_folder(Path(folder)).hops:
                add_hops(Path(folder), released)

    @classmethod
    def load(cls: type[Self], folder: str | Path, **overrides: Any) -> Self:
        """Read a model saved by :meth:`save`; it predicts exactly as the saved one did.

        Args:
            folder: the model's folder.
            overrides: ``device`` or ``ledger`` of this machine.
        """
        saved = load_folder(Path(folder))
        config = saved.config
        if config.get("method") != cls.method:
            raise InputError(
                f"the model folder {str(folder)!r} must hold a {cls.method} model. "
                f"Got {config.get('method')!r}."
            )
        try:
            params: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in config["params"].items()
            }
            params["epsilon"] = float(params["epsilon"])
            model = cls(**params, **overrides)
            model.num_features_ = int(config["num_features"])
            model.num_classes_ = int(config["num_classes"])
            names = config["label_names"]
            model.label_names_ = None if names is None else tuple(names)
            names = config["feature_names"]
            model.feature_names_ = None if names is None else tuple(names)
            # Version 0.1 knew no schemas.
            declared = config.get("schema")
            model.schema_ = None if declared is None else Schema.from_dict(declared)
            model.noise_multiplier_ = config["noise_multiplier"]
            model.modules_ = model._build(1, model.num_features_, model.num_classes_)
            for name, module in model.modules_.items():
                start = f"{name}."
                state = {
                    k[len(start) :]: v for k, v in saved.weights.items() if k.startswith(start)
                }
                module.load_state_dict(state)
                module.eval()
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"the model folder {str(folder)!r} is damaged: {str(error).splitlines()[0]}"
            ) from None
        model.classes_ = np.arange(model.num_classes_)
        model.releases_ = Releases(saved.hops)
        model.card_ = saved.card
        return model
