"""Saved models: the contents of a folder, and their validation.

A folder holds the plan that was carried out, without ``auto``, so that later changes of defaults do
not affect it. It is checked against its card (privacy page, section 7): a model must not release
with less noise, or under another level or relation, than its card states. Ledger, device and noise
seed are never taken from a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gapgnn.errors import DataError, GapgnnError, InputError
from gapgnn.graph.tables import Preparation, Schema
from gapgnn.methods.edgefacts import EdgeFacts
from gapgnn.methods.estimator import NodeClassifier, Shape
from gapgnn.methods.folder import Saved, add_releases, changing, load_folder, save_folder
from gapgnn.methods.hops import events_per_hop
from gapgnn.methods.releases import Releases
from gapgnn.nn import build_network, describe_network
from gapgnn.privacy import Guarantee, Plan
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.card import noise_source
from gapgnn.training import features_read

Model = TypeVar("Model", bound="NodeClassifier[Any]")

# Parameters of the machine and of the run that trained.
NEVER_LOADED = ("ledger", "device", "reason", "insecure_noise_seed")


def save(model: NodeClassifier[Any], folder: Path) -> None:
    """Write a fitted model to a new folder."""
    save_folder(
        folder,
        config={
            "method": model.method,
            "params": model.saved_parameters(),
            "plan": replace(model.plan_, facts=None).to_dict(),
            "networks": _specifications(model),
            "learned": model.learned(),
            "num_features": model.num_features_,
            "num_classes": model.num_classes_,
            "label_names": model.label_names_,
            "feature_names": model.feature_names_,
            "schema": None if model.schema_ is None else model.schema_.to_dict(),
            "preparation": None if model.preparation_ is None else model.preparation_.to_dict(),
            "edges": model.edges_.to_dict(),
            "threshold": model.threshold_,
            "releases": list(model.releases_.hops),
        },
        weights={
            f"{name}.{key}": value
            for name, module in model.modules_.items()
            for key, value in module.state_dict().items()
        },
        card=model.card_,
        hops=model.releases_.hops,
    )


def save_releases(model: NodeClassifier[Any], folder: Path) -> None:
    """Add what a model released since saving to its folder, and its card that lists it."""
    with changing(folder):
        saved = load_folder(folder)
        card = saved.card
        for release in model.card_.releases:
            card = card.with_release(release)
        hops = model.releases_.hops.items()
        new = [released for release, released in hops if release not in saved.hops]
        if new or card != saved.card:
            add_releases(folder, new, card)
    model.card_ = card


def load(kind: type[Model], folder: Path, overrides: Mapping[str, Any]) -> Model:
    """Read a model of one kind; refuse a folder that is damaged or contradicts its card."""
    saved = load_folder(folder)
    config = saved.config
    if config.get("method") != kind.method:
        raise InputError(
            f"the model folder {str(folder)!r} must hold a {kind.method} model. "
            f"Got {config.get('method')!r}."
        )
    try:
        model = _restored(kind, saved, overrides)
        _check_card(model, was_seeded=config["params"].get("insecure_noise_seed") is not None)
        model.check_loaded()
    except GapgnnError as error:
        raise DataError(f"the model folder {str(folder)!r} is damaged: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"the model folder {str(folder)!r} is damaged: {reason}") from None
    return model


def _specifications(model: NodeClassifier[Any]) -> dict[str, Any] | None:
    """Return the networks as data; None where a method's own class does not keep it."""
    known = {name: describe_network(module) for name, module in model.modules_.items()}
    return None if None in known.values() else known


def _restored(kind: type[Model], saved: Saved, overrides: Mapping[str, Any]) -> Model:
    """Return the model of a folder; nothing of it is resolved again."""
    config = saved.config
    params: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in config["params"].items()
    }
    params["epsilon"] = float(params["epsilon"])
    for name in NEVER_LOADED:
        params.pop(name, None)
    model = kind(**params, **overrides)
    stored = config["plan"]
    settings = kind.settings_class.from_dict(stored["settings"])
    model.plan_ = Plan.from_dict(stored, settings)
    model.num_features_ = int(config["num_features"])
    model.num_classes_ = int(config["num_classes"])
    model.classes_ = np.arange(model.num_classes_)
    weights = settings.answer_weights
    if weights is not None and len(weights) != model.num_classes_:
        raise ValueError(f"class weights must be one per class. Got {weights}.")
    names = config["label_names"]
    model.label_names_ = None if names is None else tuple(names)
    names = config["feature_names"]
    model.feature_names_ = None if names is None else tuple(names)
    declared = config["schema"]
    model.schema_ = None if declared is None else Schema.from_dict(declared)
    model.preparation_ = Preparation.from_dict(config["preparation"])
    model.edges_ = EdgeFacts.from_dict(config["edges"])
    threshold = config["threshold"]
    model.threshold_ = None if threshold is None else float(threshold)
    model.releases_, model.card_ = Releases(saved.hops), saved.card
    model.restore(config["learned"])
    _restore_networks(model, saved)
    return model


def _restore_networks(model: NodeClassifier[Any], saved: Saved) -> None:
    """Build the networks as they are described, and give them their weights."""
    networks = saved.config["networks"]
    if networks is None:
        shape = Shape(1, model.num_features_, model.num_classes_, model.num_types_)
        model.modules_ = model.networks(model.plan_.settings, shape)
    else:
        model.modules_ = {name: build_network(one) for name, one in networks.items()}
        _check_widths(model, networks)
    for name, module in model.modules_.items():
        start = f"{name}."
        state = {k[len(start) :]: v for k, v in saved.weights.items() if k.startswith(start)}
        module.load_state_dict(state)
        module.eval()


def _check_widths(model: NodeClassifier[Any], networks: Mapping[str, Any]) -> None:
    """Raise if networks do not read the model's features or score its classes."""
    width = features_read(model.num_features_, model.plan_.settings.row_scale)
    expected = {"num_features": width, "num_classes": model.num_classes_}
    for name, network in networks.items():
        for argument, number in expected.items():
            found = network["arguments"].get(argument, number)
            if found != number:
                raise ValueError(f"{name} must have {argument} {number}. Got {found}.")


def _check_card(model: NodeClassifier[Any], *, was_seeded: bool) -> None:
    """Refuse a folder whose configuration, plan and card disagree (privacy page, section 7).

    The card is what people read.
    """
    card, promise = model.card_, model.plan_.promise
    source = noise_source(card.level, card.epsilon, model.noise, is_insecure=was_seeded)
    relation = card.relation if model.relation == "auto" else model.relation
    pairs = [
        ("level", model.level, card.level),
        ("relation", relation, card.relation),
        ("noise source", source, card.noise_source),
        *_of_promise(promise, card),
    ]
    if card.delta and card.events:
        stated = "auto" if card.delta_is_auto else card.delta
        pairs.append(("delta", model.delta, stated))
    own = model.get_params().get("own", "")
    if card.own and model.level == "node" and own:
        pairs.append(("own", own, card.own))
    if card.events and card.epsilon is not None:
        # Calibration ends below the budget, by at most half a percent.
        is_near = card.epsilon * (1 - 1e-9) <= model.epsilon <= card.epsilon * 1.01
        pairs.append(("epsilon", card.epsilon if is_near else model.epsilon, card.epsilon))
    for name, configured, stated in pairs:
        if configured != stated:
            raise ValueError(f"its configuration says {name} {configured}, its card {stated}.")
    _check_hops(model)
    _check_listed(model)


def _of_promise(promise: Guarantee, card: Any) -> list[tuple[str, Any, Any]]:
    """Return what the plan promises beside what the card says."""
    return [
        ("the level of the plan", promise.level, card.level),
        ("the relation of the plan", promise.relation, card.relation),
        ("the epsilon of the plan", promise.epsilon, card.epsilon),
        ("noise multiplier", promise.noise_multiplier, card.noise_multiplier),
        ("events", [event.to_dict() for event in promise.events], list(map(dict, card.events))),
    ]


def _check_hops(model: NodeClassifier[Any]) -> None:
    """Raise if planned hops release more, or otherwise cut, sums than the card's events pay for.

    Predictions on other graphs repeat these hops at the price of these events.
    """
    plan, card = model.plan_, model.card_
    if plan.level == "none":
        return
    for hops in plan.hops.values():
        events = [event for event in plan.promise.events if event.label == hops.event]
        if not events:
            raise ValueError(
                f"its plan releases hops of {hops.event!r}, its card has no such event."
            )
        per_hop = events_per_hop(
            model.num_types_, protected=card.protects or "any", with_union=hops.with_union
        )
        for event in events:
            if isinstance(event, Gaussian) and event.count != hops.count * per_hop:
                raise ValueError(
                    f"its plan releases {hops.count * per_hop} sums of {hops.event!r}, its card "
                    f"{event.count}."
                )
        if plan.level == "node" and hops.max_degree != card.max_degree:
            raise ValueError(
                f"its configuration says max_degree {hops.max_degree}, its card {card.max_degree}."
            )


def _check_listed(model: NodeClassifier[Any]) -> None:
    """Raise if the folder holds a release that its card does not list."""
    listed = {release.charge_id for release in model.card_.releases}
    for release in model.releases_.hops:
        if model.card_.releases and release not in listed:
            raise ValueError(f"its card does not list the release {release}.")
