"""What is checked of a release beyond its digests: that its files say the same, and can be true.

Each check returns a :class:`Check` in plain words. A check that cannot be made says so and why: it
is no failure, and no proof either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gapgnn.errors import GapgnnError, InputError, PrivacyError, UnavailableError
from gapgnn.evaluation.release.excerpt import disagreements
from gapgnn.methods import PrivateHops, Saved, load_model
from gapgnn.privacy.accounting import (
    NOTHING_LEARNED,
    Event,
    account,
    accountant_named,
    attack_bounds,
)
from gapgnn.privacy.card import ChargedRelease, PrivacyCard, composed
from gapgnn.privacy.card import texts as texts

Outcome = Literal["ok", "failed", "not checked"]
# Rounding of two machines. What a card states may be larger than its events come to.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: in one or two words.
        outcome: ``ok``, ``failed`` or ``not checked``.
        text: what was compared with what, or why it was not.
        problems: what is wrong, each naming its file; empty unless it failed.
    """

    name: str
    outcome: Outcome
    text: str
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, text: str, problems: Sequence[str]) -> Check:
        """Return a check that fails if there is any problem."""
        # A name of a file may be bytes that are no text.
        shown = (one.encode("utf-8", "backslashreplace").decode() for one in problems)
        return cls(name, "failed" if problems else "ok", text, tuple(shown))

    @classmethod
    def skipped(cls, name: str, why: str) -> Check:
        """Return a check that could not be made."""
        return cls(name, "not checked", why)


class Contradiction(NamedTuple):
    """Whether a model folder contradicts itself, and what it says."""

    is_wrong: bool
    is_known: bool
    text: str


def contradiction_of(place: Path, saved: Saved) -> Contradiction:
    """Return whether the parameters, the plan and the networks of a model contradict its card.

    A model with functions of its user's own, or of a package that is not installed, cannot be
    loaded here.
    """
    try:
        if saved.config.get("method") == "private-hops":
            PrivateHops.load(place)
        else:
            load_model(place)
    except PrivacyError as error:
        return Contradiction(True, True, str(error))
    except (InputError, UnavailableError) as error:
        return Contradiction(False, False, str(error))
    return Contradiction(False, True, "")


def check_model(place: Path, saved: Saved) -> Check:
    """Compare the parameters, the plan, the weights and the card of the model."""
    text = (
        "The model was loaded. Its parameters, plan, weights and rows agree with its card, and "
        "all have the digests that its configuration lists."
    )
    found = contradiction_of(place, saved)
    if found.is_wrong:
        return Check.of("model", text, [found.text])
    if not found.is_known:
        return Check.skipped("model", f"The model cannot be loaded here: {found.text}")
    return Check.of("model", text, [])


def check_plan(saved: Saved) -> Check:
    """Compare the plan with the card: price, noise, and every event."""
    card, plan = saved.card, saved.config["plan"]
    text = (
        "The plan promises the level, relation, epsilon, delta, noise and events that the card "
        "states."
    )
    try:
        promise = plan["guarantee"]
        if card.level == "none":
            return Check.skipped("plan", "Nothing is promised.")
        charged = promise["charged"] or promise["events"]
        on_card = list(map(dict, card.releases[0].events)) if card.releases else []
        pairs = [
            ("level", promise["level"], card.level),
            ("relation", promise["relation"], card.relation.name),
            ("epsilon", promise["epsilon"], card.epsilon),
            ("delta", promise["delta"], card.delta),
            ("noise multiplier", promise["noise_multiplier"], card.noise_multiplier),
            ("the accountant", promise["accountant"], card.accountant),
            ("what is released", _sorted(promise["events"]), _sorted(card.events)),
            ("what is charged", _sorted(charged), _sorted(on_card)),
        ]
    except (KeyError, TypeError, AttributeError) as error:
        return Check.of("plan", text, [f"the plan in config.json cannot be read: {error!r}"])
    problems = [
        f"{name}: {planned} in the plan, {stated} on the card"
        for name, planned, stated in pairs
        if planned != stated
    ]
    return Check.of("plan", text, problems)


def _sorted(events: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(json.dumps(dict(event), sort_keys=True) for event in events)


def check_accounting(card: PrivacyCard) -> Check:
    """Compute the price of the stated events again, and compare it with the card.

    What is stated may be larger, never smaller: epsilon of every release at its delta, of all of
    them together, and what an attacker can reach.
    """
    if card.level == "none":
        return Check.skipped("epsilon", "Nothing is promised.")
    if not card.releases:
        # The card refuses an epsilon without events, and events without an epsilon.
        return Check.of("epsilon", "Nothing was released on protected data: epsilon is 0.", [])
    try:
        problems = [one for release in card.releases for one in _underpriced(release)]
        problems += _bounds(card)
    except PrivacyError as error:
        problems = [f"no price of the events on the card is proved: {error}"]
    except (GapgnnError, KeyError, TypeError, ValueError) as error:
        return Check.skipped("epsilon", f"The events on the card cannot be priced here: {error}")
    assert card.composed_epsilon is not None
    stated = texts.price(card.composed_epsilon, card.delta)
    many = f"{len(card.releases)} releases" if len(card.releases) > 1 else "release"
    text = (
        f"The accountant of this program priced the events on the card again: the stated {stated} "
        f"covers the {many}, and so do the stated bounds on an attacker."
    )
    return Check.of("epsilon", text, problems)


def _underpriced(release: ChargedRelease) -> list[str]:
    events = [Event.from_dict(dict(event)) for event in release.events]
    needed = account(events, release.delta, relation=release.relation).epsilon
    if release.epsilon >= needed * (1 - _ROUNDING):
        return []
    charge = f" of charge {release.charge_id}" if release.charge_id else ""
    return [
        f"the card states epsilon {release.epsilon:.6g} for the release{charge}, whose events come "
        f"to {needed:.6g} at delta {release.delta:g}"
    ]


def _bounds(card: PrivacyCard) -> list[str]:
    assert card.attacker is not None
    assert card.composed_epsilon is not None
    assert card.delta is not None
    first = card.releases[0]
    if len(card.releases) == 1:
        needed, events = first.epsilon, [Event.from_dict(dict(one)) for one in first.events]
        known = attack_bounds(events, relation=first.relation).within(first.epsilon, first.delta)
    else:
        needed, known = composed(card.releases, card.delta)
    problems = []
    if card.composed_epsilon < needed * (1 - _ROUNDING):
        problems.append(
            f"the card states epsilon {card.composed_epsilon:.6g} for all releases, which come to "
            f"{needed:.6g}"
        )
    least = asdict(known if card.releases else NOTHING_LEARNED)
    stated = asdict(card.attacker)
    for name in ("guess", "tpr_at_fpr_1_percent", "tpr_at_fpr_0_1_percent"):
        if stated[name] < least[name] * (1 - _ROUNDING):
            problems.append(
                f"the card states {name} {stated[name]:.6g}, the events allow {least[name]:.6g}"
            )
    mu, own = stated["mu"], least["mu"]
    if (mu is None) != (own is None) or (own is not None and abs(mu - own) > _ROUNDING * own):
        problems.append(f"the card states mu {mu}, the events come to {own}")
    if card.rdp_epsilon is not None and len(card.releases) == 1 and first.delta > 0:
        price = accountant_named("rdp").epsilon(
            [Event.from_dict(dict(one)) for one in first.events],
            first.delta,
            relation=first.relation,
        )
        if card.rdp_epsilon < price * (1 - _ROUNDING):
            problems.append(
                f"the card states epsilon {card.rdp_epsilon:.6g} by Renyi accounting, the events "
                f"come to {price:.6g}"
            )
    return problems


def check_excerpt(card: PrivacyCard, excerpt: Mapping[str, Any] | None) -> Check:
    """Compare the excerpt of the ledger with the card."""
    if excerpt is None:
        why = "No excerpt of a ledger is here, so nothing confirms what was charged."
        if not card.epsilon:
            why = "Nothing was charged, so no ledger has an entry of it."
        return Check.skipped("ledger", why)
    text = (
        "Every charge on the card is in the excerpt of the ledger, with the same relation, "
        "epsilon, delta and events, and the card has the link of its charge."
    )
    problems = disagreements(card, dict(excerpt))
    if not problems:
        signed = sum(one["signed"] is not None for one in excerpt["charges"])
        if signed:
            text += f" {signed} of {len(excerpt['charges'])} entries are signed by the key named."
        if (count := excerpt["charges"][0]["count"]) > 1:
            text += f" It paid for {count} trainings, of which this is the first."
    return Check.of("ledger", text, problems)


# What nobody can see in an excerpt, said wherever there is one.
EXCERPT_LIMIT = (
    "The links of the ledger are hashes under a key that its owner keeps, so they cannot be "
    "computed here. Ask the owner for `gapgnn ledger verify --against` with this folder: it fails "
    "if the charge, or an entry before it, was changed or removed since."
)


def audit_results(saved: Saved) -> list[dict[str, Any]]:
    """Return what audits of a model found: those on its card, and those kept in its folder."""
    kept = (one for audit in saved.audits for one in audit.get("results", []))
    return [dict(one) for one in (*saved.card.audits, *kept)]


def check_audits(saved: Saved) -> Check:
    """Look at the audits of this very model."""
    digests = {saved.config["files"].get("card.json"), *saved.config.get("former_cards", ())}
    results = audit_results(saved)
    problems = []
    for audit in saved.audits:
        if audit.get("card") not in digests:
            problems.append("model/audits: an audit is of another card")
    broken = [one for one in results if not one.get("holds")]
    names = {str(one.get("mechanism", one.get("neighbours", "?"))) for one in broken}
    problems += [f"model/audits: an audit found a violation of {name}" for name in sorted(names)]
    if not results and not problems:
        return Check.skipped("audits", "No audit of this model is here.")
    many = f"{len(results)} results" if len(results) != 1 else "The result"
    text = f"{many} of audits of this very configuration: no violation found."
    return Check.of("audits", text, problems)
