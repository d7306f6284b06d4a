"""May this model be released, and to whom: the first thing that the page of a model answers.

The answer follows from the privacy card, from what audits found and from what the ledger says of
the same charge. The sentences are about who may receive what. What is promised stays in the words
of the card (:mod:`gapgnn.privacy.card.texts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.card import texts as texts

ANYONE = "anyone"
CURATOR = "the curator alone"


@dataclass(frozen=True)
class Recipient:
    """One thing that could be handed out, who may receive it, and why."""

    what: str
    who: str
    why: str


@dataclass(frozen=True)
class Decision:
    """Whether a model may be released.

    Attributes:
        may_release: whether anything of it may leave the curator.
        answer: in one sentence.
        reasons: against a release; empty where there is none.
        recipients: what may go to whom; without a release everything stays with the curator.
        conditions: what somebody has to decide or to know before.
    """

    may_release: bool
    answer: str
    reasons: tuple[str, ...]
    recipients: tuple[Recipient, ...]
    conditions: tuple[str, ...]


def decide(
    card: PrivacyCard,
    *,
    disagreements: Sequence[str] = (),
    broken_audits: Sequence[str] = (),
    unconfirmed: str = "",
) -> Decision:
    """Return whether a model may be released, and to whom.

    A promise that does not hold is a reason against it: no safe noise, an audit that found a
    violation, or a ledger that disagrees with the card. How much epsilon is acceptable is not for
    a program to say, so that stands among the conditions.

    Args:
        card: of the model.
        disagreements: what the ledger and the card say differently.
        broken_audits: names of the audits that found a violation.
        unconfirmed: why no ledger confirms the charge; empty where one does.
    """
    reasons = _against(card, disagreements, broken_audits)
    said = card.wording.fill
    if reasons:
        everything = Recipient("the model, its predictions and its figures", CURATOR, reasons[0])
        return Decision(False, "No. Keep this model with the curator.", reasons, (everything,), ())
    recipients = tuple(
        Recipient(said(one.what), said(one.who), said(one.why)) for one in _recipients(card)
    )
    # The first two are the model and its predictions.
    is_open = all(one.who == ANYONE for one in recipients[:2])
    answer = (
        "Yes: the model and its predictions may go to anyone, under the conditions below."
        if is_open
        else "Yes, but not everything to everybody: the table says what may go to whom."
    )
    conditions = tuple(map(said, _conditions(card)))
    if unconfirmed and card.epsilon:
        conditions += (f"No ledger confirms what was charged. {unconfirmed}",)
    return Decision(True, answer, (), recipients, conditions)


def _against(
    card: PrivacyCard, disagreements: Sequence[str], broken_audits: Sequence[str]
) -> tuple[str, ...]:
    """Return why a model must not be released."""
    reasons = []
    if card.level == "none":
        reasons.append(
            card.wording.fill(
                "It was trained without protection, and may reveal anything about the {entities} "
                "in the data."
            )
        )
    elif not card.is_private_release:
        reasons.append(
            "Its noise is not fit for a release, so the promise does not hold: "
            f"{card.noise_source}."
        )
    if broken_audits:
        reasons.append(f"An audit found a violation of the promise: {', '.join(broken_audits)}.")
    if disagreements:
        reasons.append("The card and the ledger disagree: one of the two was changed.")
    return tuple(reasons)


def _recipients(card: PrivacyCard) -> list[Recipient]:
    """Return what may go to whom, for a promise that holds."""
    figures = Recipient(
        "figures of usefulness",
        CURATOR,
        "They are computed from the true labels without noise, and no ε covers them."
        if card.level == "node"
        else "They are no part of the release. Labels are public at this level, so publishing "
        "them is a decision of the curator.",
    )
    record = Recipient(
        "this page", "those who answer for the data", "It speaks of the ledger and its budgets."
    )
    if card.level == "edge":
        return [*_at_edge_level(card), figures, record]
    return [*_at_node_level(card), figures, record]


def _at_edge_level(card: PrivacyCard) -> list[Recipient]:
    model = Recipient("the model", ANYONE, "What it holds of the {links} was released with noise.")
    if not card.epsilon:
        model = Recipient("the model", ANYONE, "It reads no {links}.")
    if card.own == "record":
        own = Recipient(
            "a prediction",
            "the {entity} it is about, or whoever may know its neighbours",
            "It is computed from that {entity}'s exact neighbours. All predictions together would "
            "reveal them.",
        )
        return [model, own]
    return [model, Recipient("its predictions", ANYONE, "They follow from the model.")]


def _at_node_level(card: PrivacyCard) -> list[Recipient]:
    model = Recipient(
        "the model",
        ANYONE,
        "Everything in it was released with noise. Which ids have a row in it is treated as "
        "public: where it is not, keep the folder.",
    )
    if card.own == "nothing":
        answers = Recipient(
            "its predictions", ANYONE, "They read nothing of their own {entity} without noise."
        )
    else:
        read = "features and neighbours" if card.own == "record" else "features"
        answers = Recipient(
            "a prediction",
            f"the {{entity}} it is about, or whoever may know its {read}",
            f"It is computed from that {{entity}}'s own {read}, without noise.",
        )
    return [model, answers]


def _conditions(card: PrivacyCard) -> list[str]:
    """Return what somebody has to decide or to know before a release."""
    conditions = []
    if card.composed_epsilon:
        conditions.append(
            "Somebody who answers for the data accepts "
            f"{texts.price(card.composed_epsilon, card.delta)}. The section on attackers says what "
            "that allows."
        )
    if card.level == "edge":
        conditions.append(
            "Features and labels are public, and so is who is in the data: they are not hidden."
        )
    if card.ledger is None and card.epsilon:
        conditions.append("Nobody counts this release: it is in no ledger.")
    elif card.ledger is not None and card.ledger.granted_epsilon is None:
        conditions.append(
            "No budget is set for these {entities}: nothing limits what else is released."
        )
    if card.warnings:
        conditions.append("The warnings of the card, below, are known to whoever decides.")
    return conditions
