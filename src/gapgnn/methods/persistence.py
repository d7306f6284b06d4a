"""Saved models: the contents of a folder, and their validation.

A folder holds the plan that was carried out, without ``auto``, so that later changes of defaults do
not affect it. It is checked against its card (privacy page, section 7): a model must not release
with less noise, or under another level or relation, than its card states. Ledger, device and noise
seed are never taken from a folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gapgnn.errors import GapgnnError, InputError, IntegrityError
from gapgnn.graph.tables import Preparation, Schema
from gapgnn.methods.configs import own_pieces
from gapgnn.methods.edgefacts import EdgeFacts
from gapgnn.methods.estimator import NodeClassifier, Shape
from gapgnn.methods.folder import Saved, add_releases, changing, load_folder, save_folder
from gapgnn.methods.hops import events_per_hop
from gapgnn.methods.private_hops import PrivateHops
from gapgnn.methods.releases import ReleasedHops, Releases
from gapgnn.nn import build_network, describe_network
from gapgnn.privacy import Declared, Guarantee, Plan, parse_relation
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.card import noise_source
from gapgnn.privacy.ledger import Ledger
from gapgnn.training import features_read

Model = TypeVar("Model", bound="NodeClassifier[Any]")
Hops = TypeVar("Hops", bound=PrivateHops)

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
        hops=_named_for_folder(model, model.releases_.hops),
    )


def _named_for_folder(
    model: NodeClassifier[Any] | PrivateHops, hops: Mapping[str, ReleasedHops]
) -> dict[str, ReleasedHops]:
    """Return releases with ids only where a folder needs them.

    A model at node level predicts from a graph, which comes with the ids, and asks the ledger which
    release is that graph's. So its folder holds keyed hashes, which nobody without the ledger can
    compute. Below node level predictions list the ids of the folder itself, and released rows are
    a product by id.
    """
    if model.level != "node" or isinstance(model, PrivateHops):
        return dict(hops)
    ledger = Ledger(model.ledger)
    return {
        name: one if one.is_keyed or ledger.graph_of(name) is None else one.keyed(ledger)
        for name, one in hops.items()
    }


def save_hops(hops: PrivateHops, folder: Path, *, is_table: bool) -> None:
    """Write released rows to a new folder, also as a table where that is asked for."""
    save_folder(
        folder,
        config={
            "method": hops.method,
            "params": hops.saved_parameters(),
            "plan": replace(hops.plan_, facts=None).to_dict(),
            "num_features": hops.n_features_in_,
            "edges": hops.edges_.to_dict(),
            "releases": list(hops.releases_.hops),
            "is_table": is_table,
        },
        weights={},
        card=hops.card_,
        hops=hops.releases_.hops,
    )


def load_hops(cls: type[Hops], folder: Path, overrides: Mapping[str, Any]) -> Hops:
    """Read released rows; refuse a folder that is damaged or contradicts its card."""
    saved = load_folder(folder)
    config = saved.config
    if config.get("method") != cls.method:
        raise InputError(
            f"the folder {str(folder)!r} must hold released rows. Got a model, "
            f"{config.get('method')!r}: use `load_model`."
        )
    with _damages(folder):
        hops = cls(**_parameters(config), **overrides)
        stored = config["plan"]
        hops.plan_ = Plan.from_dict(stored, Declared(**stored["settings"]))
        hops.n_features_in_ = int(config["num_features"])
        hops.edges_ = EdgeFacts.from_dict(config["edges"])
        hops.releases_, hops.card_, hops._sent = Releases(saved.hops), saved.card, {}
        _check_card(hops, was_seeded=config["params"].get("insecure_noise_seed") is not None)
        if hops.card_.product != "rows" or not saved.hops:
            raise ValueError("its card or its rows are missing.")
    return hops


def save_releases(model: NodeClassifier[Any] | PrivateHops, folder: Path) -> None:
    """Add what a model released since saving to its folder, and its card that lists it."""
    with changing(folder):
        saved = load_folder(folder)
        card = saved.card
        for release in model.card_.releases:
            card = card.with_release(release)
        hops = model.releases_.hops.items()
        new = {release: released for release, released in hops if release not in saved.hops}
        if new or card != saved.card:
            add_releases(folder, list(_named_for_folder(model, new).values()), card)
    model.card_ = card


def load(model_class: type[Model], folder: Path, overrides: Mapping[str, Any]) -> Model:
    """Read a model of one class; refuse a folder that is damaged or contradicts its card."""
    saved = load_folder(folder)
    config = saved.config
    if config.get("method") != model_class.method:
        raise InputError(
            f"the model folder {str(folder)!r} must hold a {model_class.method} model. "
            f"Got {config.get('method')!r}."
        )
    given = _check_pieces(model_class, folder, config.get("params"), overrides)
    with _damages(folder, given):
        model = _restored(model_class, saved, overrides)
        _check_card(model, was_seeded=config["params"].get("insecure_noise_seed") is not None)
        model.check_loaded()
    return model


def _check_pieces(
    model_class: type[Model], folder: Path, params: Any, given: Mapping[str, Any]
) -> list[str]:
    """Refuse to load unless the functions that the model was trained with are given again.

    A folder holds no code.
    """
    names = own_pieces(model_class)
    for name in names:
        trained = params.get(name) if isinstance(params, Mapping) else None
        if trained is not None and given.get(name) is None:
            raise InputError(
                f"the model in {str(folder)!r} was trained with `{name}` of your own ({trained}), "
                f"which no folder holds. Give it again: load_model({str(folder)!r}, {name}=...)."
            )
        if trained is None and given.get(name) is not None:
            raise InputError(
                f"`{name}` must be left out for the model in {str(folder)!r}, which was trained "
                f"without. Got {given[name]!r}."
            )
    return [name for name in names if given.get(name) is not None]


@contextmanager
def _damages(folder: Path, given: Sequence[str] = ()) -> Iterator[None]:
    """Call whatever fails in a block a damage of the folder, or of functions that were given."""
    found = f"the model folder {str(folder)!r} is damaged"
    if given:
        found += f", or other functions were given as {', '.join(given)} than it was trained with"
    try:
        yield
    except GapgnnError as error:
        raise IntegrityError(f"{found}: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise IntegrityError(f"{found}: {reason}") from None


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a folder without those of the machine that wrote it."""
    params: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in config["params"].items()
        if k not in NEVER_LOADED
    }
    return {**params, "epsilon": float(params["epsilon"])}


def _specifications(model: NodeClassifier[Any]) -> dict[str, Any] | None:
    """Return the networks as data; None where a method's own class does not keep it."""
    known = {name: describe_network(module) for name, module in model.modules_.items()}
    return None if None in known.values() else known


def _restored(model_class: type[Model], saved: Saved, overrides: Mapping[str, Any]) -> Model:
    """Return the model of a folder; nothing of it is resolved again."""
    config = saved.config
    own = {name: overrides.get(name) for name in own_pieces(model_class)}
    others = {name: value for name, value in overrides.items() if name not in own}
    model = model_class(**{**_parameters(config), **own}, **others)
    stored = config["plan"]
    settings = model_class.settings_class.from_dict(stored["settings"])
    model.plan_ = Plan.from_dict(stored, settings)
    model.num_features_ = int(config["num_features"])
    model.num_classes_ = int(config["num_classes"])
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


def _check_card(model: NodeClassifier[Any] | PrivateHops, *, was_seeded: bool) -> None:
    """Refuse a folder whose configuration, plan and card disagree (privacy page, section 7).

    The card is what people read.
    """
    card, promise = model.card_, model.plan_.promise
    source = noise_source(card.level, card.epsilon, model.noise, is_insecure=was_seeded)
    relation = card.relation
    if model.relation != "auto":
        relation = parse_relation(model.relation, model.level)
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
        ("the relation of the plan", promise.relation, card.relation),
        ("the epsilon of the plan", promise.epsilon, card.epsilon),
        ("noise multiplier", promise.noise_multiplier, card.noise_multiplier),
        ("events", [event.to_dict() for event in promise.events], list(map(dict, card.events))),
    ]


def _check_hops(model: NodeClassifier[Any] | PrivateHops) -> None:
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


def _check_listed(model: NodeClassifier[Any] | PrivateHops) -> None:
    """Raise if the folder holds a release that its card does not list."""
    listed = {release.charge_id for release in model.card_.releases}
    for release in model.releases_.hops:
        if model.card_.releases and release not in listed:
            raise ValueError(f"its card does not list the release {release}.")
