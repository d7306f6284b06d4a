"""The entry of a release for the OpenDP deployment registry.

The fields are those of ``schemas/deployments-schema.yaml`` of the repository
opendp/deployments-registry-data. What the registry asks of the promise is taken from the card;
what a card cannot know is what the curator states (:class:`gapgnn.evaluation.release.About`). The
entry is a draft: its authors send it to the registry, whose board reviews it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gapgnn.evaluation.release.about import About
from gapgnn.evaluation.report import event_words
from gapgnn.privacy.card import PrivacyCard, guarantee_sentence
from gapgnn.privacy.card import texts as texts


def entry_of(
    card: PrivacyCard, about: About, *, made: str, digests: Mapping[str, str]
) -> dict[str, Any]:
    """Return the entry of a released model.

    Args:
        card: of the model.
        about: what the curator states.
        made: the day of the release, as ``2027-01-31``.
        digests: SHA-256 of files of the release, by which the entry names it.
    """
    basic: dict[str, Any] = {
        "name": about.name,
        "data_curators": [
            {"data_curator_name": about.curator, "data_curator_type": about.curator_type}
        ],
        "description": about.description or f"{card.method}, trained on {card.dataset}",
        "intended_use": about.intended_use,
        "data_product_type": "Dataset" if card.product == "rows" else "Machine learning model",
        "data_product_region": about.region,
    }
    if about.sector:
        basic["data_product_sector"] = about.sector
    basic["publication_date"] = made
    deployment: dict[str, Any] = {"basic": basic, **_promise(card, about)}
    deployment["deployment_model"] = _deployment(card)
    deployment["implementation"] = _implementation(card, about)
    deployment["administrative"] = {
        "evidence_sources": {"release": _evidence(about, digests)},
        "status": "Draft",
        "registry_authors": list(about.authors),
        "tier": 3 if about.justification and about.people else 2,
    }
    return {"url_slug": about.slug, "deployment": deployment}


def _promise(card: PrivacyCard, about: About) -> dict[str, Any]:
    """Return what is promised: the variant, the domain, the unit and its parameters."""
    epsilon, delta = card.composed_epsilon or 0.0, card.delta or 0.0
    said = card.wording.fill
    what = texts.protected(card.relation, edge_types=card.edge_types, protects=card.protects)
    loss: dict[str, Any] = {
        "privacy_unit": said(what),
        "privacy_unit_details": _lines(
            [f"Relation of neighbouring graphs: {card.relation}.", *card.covered]
        ),
    }
    if about.people:
        loss["number_of_privacy_units"] = about.people
    loss["privacy_parameters"] = {"epsilon": float(epsilon)}
    if epsilon and delta:
        loss["privacy_parameters"]["delta"] = float(delta)
    details = [guarantee_sentence(card), f"Accountant: {card.accountant}."]
    if card.attacker is not None:
        if card.attacker.mu is not None:
            mu = texts.rounded_up(card.attacker.mu)
            details.append(f"Gaussian differential privacy: mu {mu}.")
        right = texts.percent(card.attacker.guess)
        details.append(f"A 50:50 guess by an attacker is right in at most {right}.")
    loss["privacy_parameters_details"] = _lines(details)
    unprotected = [*card.not_covered, *(f"{what}: {origin}" for what, origin in card.public)]
    return {
        "dp_variant": {
            "variant_name": "Approximate DP" if epsilon and delta else "Pure DP",
            "data_domain": said(
                "Graphs: {entities} with features and labels, and the {links} between them."
            ),
            "unprotected_quantities": _lines(unprotected) or "None.",
        },
        "privacy_loss": loss,
    }


def _deployment(card: PrivacyCard) -> dict[str, Any]:
    many = len(card.releases) > 1
    return {
        "model_name": "Central",
        "actors": (
            "The curator holds the graph and adds the noise. Whoever has the release is taken to "
            "be an attacker who knows everything else and has unlimited computing power."
        ),
        "release_type": "Many releases" if many else "One release",
        "release_type_details": (
            f"{len(card.releases)} releases, whose composition is stated."
            if many
            else "The privacy loss of further releases on the same graph is counted in a ledger."
            if card.ledger is not None
            else "No ledger counts further releases on the same graph."
        ),
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _implementation(card: PrivacyCard, about: About) -> dict[str, Any]:
    before = [f"{what}: {why}" for what, why in card.not_charged]
    mechanisms = [event_words(event) for event in card.events] or ["None: nothing was released."]
    values = {
        "preprocessing_and_hyperparameter_tuning": _lines(before) or "None.",
        "mechanisms": _lines(
            [
                *mechanisms,
                f"Noise: {card.noise_source}.",
                f"Library: gapgnn {card.version}.",
            ]
        ),
        "composition": (
            f"All events of all releases are composed by the accountant {card.accountant}. What "
            "different groups of people are in is composed in parallel."
        ),
        "post_processing": (
            "Everything that is computed from the released values, such as training on released "
            "rows and predictions."
        ),
    }
    if about.justification:
        values["justification"] = about.justification
    return values


def _evidence(about: About, digests: Mapping[str, str]) -> dict[str, Any]:
    note = "; ".join(f"SHA-256 of {name}: {digest}" for name, digest in digests.items())
    source = {"title": about.name, "author": about.curator, "note": note}
    if about.url:
        source["url"] = about.url
    return {"evidence_source_type": "Authorized organizational attestation", "misc": source}


def _lines(parts: Sequence[str]) -> str:
    """Return several statements as a list in Markdown, one as it is."""
    return parts[0] if len(parts) == 1 else "".join(f"- {one}\n" for one in parts)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Write nested values as YAML, of which every loader reads the same.

    Texts are in double quotes, or a literal block where they have several lines: the registry
    accepts no folded ones.

    >>> print(as_yaml({"a": {"delta": 1e-07, "names": ["x: y"], "text": "- b\\n"}}), end="")
    a:
      delta: 1.0e-07
      names:
        - "x: y"
      text: |
        - b
    """
    return "".join(f"{line}\n" for line in _yaml(values, 0))


def _yaml(value: Any, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for key, one in value.items():
        if isinstance(one, Mapping):
            yield f"{pad}{key}:"
            yield from _yaml(one, depth + 1)
        elif isinstance(one, list):
            yield f"{pad}{key}:"
            for item in one:
                if isinstance(item, Mapping):
                    first, *others = _yaml(item, depth + 2)
                    yield f"{pad}  - {first.lstrip()}"
                    yield from others
                else:
                    yield f"{pad}  - {_scalar(item)}"
        elif isinstance(one, str) and one.endswith("\n") and one[0] not in " \n":
            yield f"{pad}{key}: |"
            # Of the last line break a literal block has exactly one.
            yield from (f"{pad}  {line}".rstrip() for line in one.rstrip("\n").split("\n"))
        else:
            yield f"{pad}{key}: {_scalar(one)}"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # Without a point, YAML 1.1 reads 1e-07 as a text.
        mantissa, has_exponent, exponent = repr(value).partition("e")
        if has_exponent and "." not in mantissa:
            return f"{mantissa}.0e{exponent}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
