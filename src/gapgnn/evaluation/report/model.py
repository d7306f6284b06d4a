"""One page about one saved model, for whoever answers for the privacy of those in the data.

Everything it states is read off the card, the ledger and the folder when the page is made: it has
no words of its own about a promise (privacy page, sections 6 to 9). Figures of usefulness are not
on it unless the curator asks for a copy of her own: at node level they are computed from private
labels without noise.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn import __version__
from gapgnn.errors import GapgnnError, InputError, PrivacyError
from gapgnn.evaluation.report.content import event_words
from gapgnn.evaluation.report.decision import Decision, decide
from gapgnn.evaluation.report.figures import FRAME, Chart, write_file
from gapgnn.evaluation.report.page import rendered
from gapgnn.evaluation.report.plots import (
    Line,
    Panel,
    curve_values,
    guessing_line,
    precision_recall_plot,
    small,
)
from gapgnn.evaluation.report.tables import (
    RANKING_COLUMNS,
    RANKING_NOTE,
    Row,
    Table,
    curve_cells,
    curve_table,
    guessing_cells,
    ranking_cells,
)
from gapgnn.methods import Saved, load_folder
from gapgnn.privacy import Links
from gapgnn.privacy.accounting import AttackBounds, Event
from gapgnn.privacy.card import PrivacyCard, guarantee_sentence
from gapgnn.privacy.card import texts as texts
from gapgnn.privacy.ledger import (
    Budget,
    Charge,
    Ledger,
    composed_epsilon,
    composed_profile,
    is_address,
)
from gapgnn.training import Ranking, shortcomings

if TYPE_CHECKING:
    from gapgnn.graph import Graph, Wording
    from gapgnn.methods import NodeClassifier

# Beliefs before the model is seen, for which the page says what they can become.
PRIORS = (0.001, 0.01, 0.1, 0.5)
NO_VIOLATION = "no violation found"
# Fields of a charge that are in the ledger and on the card.
_SHARED = ("level", "relation", "epsilon", "delta")


def _bound(epsilon: float, delta: float) -> float:
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def _hits(attacker: AttackBounds) -> list[tuple[str, str]]:
    """Return shares of false positives, with the most true positives there."""
    most = (attacker.tpr_at_fpr_1_percent, attacker.tpr_at_fpr_0_1_percent)
    return list(zip(("1 %", "0.1 %"), map(texts.percent, most), strict=True))


def _raised(prior: float, epsilon: float) -> float:
    """Return what a belief can become when its odds grow by e^epsilon.

    >>> round(_raised(0.5, 1.0), 4), round(_raised(0.01, 1.0), 4)
    (0.7311, 0.0267)
    """
    return 1 / (1 + (1 - prior) / prior * math.exp(-min(epsilon, 700.0)))


def amount(value: float, *, up: bool) -> str:
    """Write an epsilon with four digits: what is spent is rounded up, what is left down.

    >>> amount(0.89591, up=True), amount(3.54119, up=False), amount(0.0, up=True)
    ('0.896', '3.541', '0')
    """
    exact = Decimal(repr(float(value)))
    if not exact:
        return "0"
    digits = Decimal(1).scaleb(exact.adjusted() - 3)
    return f"{float(exact.quantize(digits, ROUND_CEILING if up else ROUND_FLOOR)):g}"


def curator_figures(model: NodeClassifier, graph: Graph) -> dict[str, Any]:
    """Return how good a saved model is on the test nodes of its own graph, for the curator alone.

    That is :class:`gapgnn.training.Metrics` in plain values, and what the model fails at in words.
    How well one class is put first is left out where there are more than two and none was named.

    Args:
        model: whose cached hops answer.
        graph: with the split of the training.
    """
    found = model.metrics(graph)
    faults = shortcomings([found], metric=model.metric, threshold=model.threshold)
    values = {**found.to_dict(), "shortcomings": faults}
    is_sought = model.positive is not None or len(found.per_class) == 2
    return values if is_sought else {**values, "ranking": None}


def _ranking(figures: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the figures of one class for the curator's copy: a table, and the curve drawn."""
    found = (figures or {}).get("ranking")
    if found is None:
        return None
    one = Ranking.from_dict(found)
    block = f"class {one.positive}"
    rows = (("this model", ranking_cells([one])), ("guessing", guessing_cells([one])))
    table = Table(
        "ranking",
        "Who is ranked first",
        f"Class {one.positive}: {one.support:,} of the test nodes. In percent, lift in times.",
        ("order",),
        RANKING_COLUMNS,
        tuple(Row(block, (name,), cells) for name, cells in rows),
        (RANKING_NOTE,),
    )
    panel = Panel(block, (Line("this model", 0, curve_values([one])),), (guessing_line([one]),))
    plot = precision_recall_plot([panel])
    assert plot is not None
    values = curve_table([Row(block, ("this model",), curve_cells([one]))], ("order",), ())
    return {"table": table, "plot": plot, "charts": [Chart(plot, panel)], "values": [values]}


def write_model_page(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    ledger: str | Path | None = None,
    words: Wording | None = None,
    figures: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of a saved model and return where it is.

    A folder may be handed on and the page speaks of the ledger, so it lies beside the folder.

    Args:
        folder: of a saved model.
        out: the file; left out: ``FOLDER.report.html``.
        ledger: file of the ledger; left out: the user's own. It must exist if it is named.
        words: what people and edges are called; left out: as the card calls them.
        figures: of :func:`curator_figures`; the page is then for the curator alone.
    """
    place = Path(folder)
    if out is None:
        resolved = place.resolve()
        out = resolved.with_name(f"{resolved.name}.report.html")
    target = Path(out)
    if target.suffix != ".html":
        raise InputError(f"`out` must end in .html. Got {str(out)!r}.")
    write_file(target, render_model(place, ledger=ledger, words=words, figures=figures))
    return target


def render_model(
    folder: str | Path,
    *,
    ledger: str | Path | None = None,
    words: Wording | None = None,
    figures: Mapping[str, Any] | None = None,
) -> str:
    """Return the page as text; everything that comes from the folder or the ledger is escaped."""
    saved = load_folder(Path(folder))
    card = saved.card if words is None else saved.card.in_words(words)
    words = card.wording
    attacker = card.attacker
    history = history_of(card, ledger)
    return rendered(
        "model.html.j2",
        card=card,
        decision=decision_of(saved, card, history),
        words=words,
        sentence=guarantee_sentence(card),
        today=datetime.now(timezone.utc).date().isoformat(),
        version=__version__,
        facts=facts_of(card),
        is_promised=card.level != "none",
        question=_question(card),
        mu=None if attacker is None or attacker.mu is None else texts.rounded_up(attacker.mu),
        right="" if attacker is None else texts.percent(attacker.guess),
        hits=[] if attacker is None else _hits(attacker),
        odds=None if card.composed_epsilon is None else texts.odds(card.composed_epsilon),
        general=None
        if card.composed_epsilon is None or card.delta is None
        else texts.percent(_bound(card.composed_epsilon, card.delta)),
        beliefs=[]
        if not card.composed_epsilon
        else [(f"{100 * p:g} %", texts.percent(_raised(p, card.composed_epsilon))) for p in PRIORS],
        delta=None if card.delta is None else small(card.delta),
        history=history,
        audits=_audits(saved),
        audit_command=f"gapgnn audit --model {shlex.quote(str(folder))}",
        pipeline_command=f"gapgnn audit pipeline --model {shlex.quote(str(folder))}",
        check_command=f"gapgnn report {shlex.quote(str(folder))} --check",
        events=[event_words(event) for event in card.events],
        releases=_releases(card),
        is_adaptive=any("option" in event for one in card.releases[:1] for event in one.events),
        composed="" if not card.composed_epsilon else amount(card.composed_epsilon, up=True),
        figures=figures,
        ranking=_ranking(figures),
        frame=FRAME,
        percent=lambda share: f"{100 * share:.1f} %",
        digests=saved.digests,
        folder=Path(folder).name,
    )


def facts_of(card: PrivacyCard) -> list[tuple[str, str, str]]:
    """Return name, words and value of what the card states in one word or number each."""
    several = len(card.releases) > 1
    epsilon = "none" if card.epsilon is None else texts.at_most(card.epsilon)
    delta = "none" if card.delta is None else small(float(f"{card.delta:.6g}"))
    rows = [
        ("method", "Method", card.method),
        ("dataset", "Data set", card.dataset),
        ("level", "Level", card.level),
        ("relation", "Neighbouring relation", card.relation.name),
        ("epsilon", "Epsilon (ε) of the training" if several else "Epsilon (ε)", epsilon),
        ("delta", "Delta (δ)", delta + (", chosen by size" if card.delta_is_auto else "")),
        ("private", "Private release", "yes" if card.is_private_release else "NO"),
        ("noise", "Noise", card.noise_source),
        ("accountant", "How ε was computed", card.accountant),
    ]
    if several:
        rows[5:5] = [
            (
                "all-releases",
                f"Epsilon of all {len(card.releases)} releases",
                texts.at_most(card.composed_epsilon or 0.0),
            )
        ]
    if card.edges_unread:
        rows.append(("edges", "Predictions read edges", "no"))
    if card.edge_types:
        rows.append(("edge-types", "Edge types", ", ".join(card.edge_types)))
    if card.max_degree is not None:
        rows.append(("max-degree", "Adjacency lists cut to", str(card.max_degree)))
    if card.node_notion is not None:
        rows.append(("notion", "Notion", card.node_notion))
    return [*rows, ("version", "Made with", f"gapgnn {card.version}")]


def _question(card: PrivacyCard) -> str:
    """Return the one question an attacker asks, in the card's words."""
    words = card.wording
    both = f"these two {words.entities}"
    links = card.relation
    if isinstance(links, Links) and links.count > 1:
        each = " of each type" if card.protects == "each" else ""
        what = "arcs" if links.are_arcs else "edges"
        rows = f"each: all {words.links} with one other {words.entity}"
        return f"are up to {links.count} {what}{each} of one {words.entity} ({rows}) in the data?"
    if card.level == "edge" and card.protects == "each":
        return f"are these edges, one of each type (all {words.links} of a pair), in the data?"
    return {
        "undirected": f"are there {words.links} between {both} in the data?",
        "directed": f"are there {words.links} from one of {both} to the other in the data?",
        "add-remove": f"is this {words.entity}'s record in the data?",
        "replace": f"is this {words.entity}'s record the true one?",
    }.get(card.relation.name, "is this in the data?")


@dataclass(frozen=True)
class History:
    """What the ledger knows of those whom a model read.

    Attributes:
        problem: why there is none, in one sentence; empty if there is.
        path: of the ledger.
        own: the model's charge.
        disagreements: what the charge says otherwise than the card.
        populations: name, budgets and charges of everybody who was charged.
    """

    problem: str = ""
    path: str = ""
    own: Charge | None = None
    disagreements: tuple[str, ...] = ()
    populations: tuple[dict[str, Any], ...] = ()


def decision_of(saved: Saved, card: PrivacyCard, history: History) -> Decision:
    """Return whether a saved model may be released, given what the ledger knows of it."""
    broken = [row["name"] for run in _audits(saved) for row in run["rows"] if not row["holds"]]
    return decide(
        card,
        disagreements=history.disagreements,
        broken_audits=list(dict.fromkeys(broken)),
        unconfirmed=history.problem,
    )


def history_of(card: PrivacyCard, path: str | Path | None) -> History:
    """Find the card's charge in the ledger, and what else was charged to the same."""
    if card.ledger is None:
        if card.epsilon:
            return History("This release is not in any ledger: its cost is not counted.")
        return History("Nothing was charged, because nothing protected was read.")
    ledger = Ledger(path)
    charge_id = card.ledger.charge_id
    try:
        charges = ledger.entries()
    except PrivacyError as error:
        return History(
            "The ledger was changed outside this program or is damaged, so nothing of it is shown "
            f"here. {error}"
        )
    except GapgnnError:
        if path is not None:  # a ledger that was named must be there
            raise
        charges = []
    mine = [charge for charge in charges if charge.id == charge_id]
    listed = {one.charge_id: one for one in card.releases}
    others = {charge.id: charge for charge in charges if charge.id in listed}
    if not mine:
        if path is not None:
            raise InputError(
                f"`ledger` must know the charge {charge_id} of this model. Got {ledger.name!r}, "
                "which does not."
            )
        return History(
            f"The ledger that was charged is not at hand: none here knows the charge {charge_id}. "
            "What else was released about the same, and what is left of their budget, is unknown "
            "to this page. Name the ledger with --ledger FILE."
        )
    owned = [charge for charge in charges if charge.id in listed]
    names = list(dict.fromkeys(charge.population for charge in owned))
    budgets = ledger.summary()
    return History(
        path=ledger.name if is_address(ledger.path) else Path(ledger.name).name,
        own=mine[0],
        disagreements=(*_disagreements(card, mine[0]), *_disagreeing_predictions(card, others)),
        populations=tuple(
            {
                "name": name,
                "budgets": [_budget(row, charges) for row in budgets if row.population == name],
                "charges": [
                    _charge(charge, listed) for charge in charges if charge.population == name
                ],
            }
            for name in names
        ),
    )


def _shown(stated: Any, name: str) -> Any:
    """Return a field of a card or a charge; a relation by its name, as the ledger holds it."""
    return str(stated.relation) if name == "relation" else getattr(stated, name)


def _disagreements(card: PrivacyCard, charge: Charge) -> list[str]:
    """Return what a card and its charge say differently: one of the two was changed."""
    found = [
        f"{name}: {_shown(card, name)} on the card, {_shown(charge, name)} in the ledger"
        for name in _SHARED
        if _shown(card, name) != _shown(charge, name)
    ]
    released = _sorted(_option_of(event)[1] for event in card.events)
    if released not in map(_sorted, _charged_options(charge.events)):
        found.append("what was released: the card lists other events than the ledger")
    on_card = None if card.ledger is None else card.ledger.head
    if on_card is not None and on_card != charge.link:
        found.append("the chain: the card has another head at this charge than the ledger")
    return found


def _disagreeing_predictions(card: PrivacyCard, charges: Mapping[str, Charge]) -> list[str]:
    """Return what the card and the ledger say differently of the releases after the training."""
    found = []
    for release in card.releases[1:]:
        charge = charges.get(release.charge_id)
        if charge is None:
            found.append(f"the charge {release.charge_id}: on the card, not in the ledger")
            continue
        found += [
            f"{name} of the charge {release.charge_id}: {_shown(release, name)} on the card, "
            f"{_shown(charge, name)} in the ledger"
            for name in ("relation", "epsilon", "delta")
            if _shown(release, name) != _shown(charge, name)
        ]
        if _sorted(release.events) != _sorted(charge.events):
            found.append(f"what the charge {release.charge_id} was for")
    return found


def _releases(card: PrivacyCard) -> list[dict[str, Any]]:
    """Return every release of the model, as the card lists it."""
    return [
        {
            "purpose": release.purpose,
            "when": release.when,
            "charge": release.charge_id,
            "relation": release.relation.name,
            "epsilon": amount(release.epsilon, up=True),
            "delta": small(release.delta),
            "events": [event_words(event) for event in release.events],
        }
        for release in card.releases
    ]


def _charged_options(events: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return each list of events that a charge allows to be released.

    An adaptive choice is charged before it is made, so its charge lists the events of all options
    (:meth:`gapgnn.privacy.guarantee.Guarantee.one_of`): the deciding release, the events of each
    option, marked with its number, and unmarked those that all options with more than one event
    have in common. Exactly one option is released.
    """
    marked = [_option_of(event) for event in events]
    numbers = list(dict.fromkeys(number for number, _ in marked if number))
    if not numbers:
        return [[event for _, event in marked]]
    first = marked[0][1]
    common = [event for number, event in marked[1:] if not number]
    options = []
    for wanted in numbers:
        own = [event for number, event in marked[1:] if number == wanted]
        options.append([first, *own, *common])
        if len(own) == 1:
            options.append([first, *own])
    if len(numbers) == 1:
        # The only other option has all of its events unmarked.
        options.append([first, *common])
    return options


def _option_of(event: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the option an event is marked with, empty for none, and the event without the mark.

    Ledgers and cards written before options had a field of their own are read as those are.

    >>> old = {"event": "Gaussian", "noise_multiplier": 1.0, "role": "training, option 2"}
    >>> number, plain = _option_of(old)
    >>> number, plain["group"]
    ('2', 'training')
    """
    try:
        plain = Event.from_dict(dict(event)).to_dict()
    except GapgnnError:
        # Of a package that is not here, or changed by hand: compared as it is written.
        plain = dict(event)
    return str(plain.pop("option", "") or ""), plain


def _sorted(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return events in an order that does not depend on how they were listed."""
    return sorted(json.dumps(dict(event), sort_keys=True) for event in events)


def _budget(row: Budget, charges: Sequence[Charge]) -> dict[str, Any]:
    own = [c for c in charges if (c.population, c.level) == (row.population, row.level)]
    composed = composed_epsilon(own, row)
    profile = composed_profile(own, relation=row.relation)
    bounds = AttackBounds(None, 1.0, 1.0, 1.0) if profile is None else profile.bounds()
    guess = bounds.within(composed, row.spent_delta).guess
    has_grant = row.granted_epsilon is not None and row.left_epsilon is not None
    return {
        "level": row.level,
        "relation": row.relation,
        "composition": row.composition if has_grant else "",
        "granted": f"{row.granted_epsilon:g}" if has_grant else "no budget",
        "delta": small(row.granted_delta or 0.0) if has_grant else small(row.spent_delta),
        "spent": amount(row.spent_epsilon, up=True),
        "left": amount(row.left_epsilon or 0.0, up=False) if has_grant else "not limited",
        "until": row.until or "",
        "charges": row.charges,
        "composed": amount(composed, up=True),
        "right": texts.percent(guess),
    }


def _charge(row: Charge, own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "when": row.charged_at[:10],
        "who": row.who,
        "purpose": row.purpose,
        "level": row.level,
        "count": row.count,
        "epsilon": amount(row.epsilon, up=True),
        "delta": small(row.delta),
        "together": "" if row.together is None else amount(row.together, up=True),
        "reason": row.reason,
        "is_own": row.id in own,
    }


_AUDITED = {
    "mechanisms": "Mechanisms",
    "fit": "One whole fit of the same configuration, with canaries",
    "pipeline": "The whole command, from table to folder, on neighbouring files",
}


def _audits(saved: Saved) -> list[dict[str, Any]]:
    """Return every audit of this very model, those of the training first."""
    runs: list[dict[str, Any]] = []
    if saved.card.audits:
        results = list(map(dict, saved.card.audits))
        title = _AUDITED["mechanisms"]
        runs.append({"title": title, "when": "", "command": "", "results": results})
    # A card that lists one more prediction is still the card of what was audited.
    digests = {saved.config["files"].get("card.json"), *saved.config.get("former_cards", ())}
    runs += [
        {**audit, "title": _AUDITED[audit["kind"]]}
        for audit in saved.audits
        if audit.get("card") in digests
    ]
    return [
        {
            "title": run["title"],
            "is_bound": run["title"] != _AUDITED["pipeline"],
            "when": str(run["when"])[:10] or "with the training",
            "command": run["command"],
            "rows": [_audit_row(result) for result in run["results"]],
            "holds": _verdict(run["results"]) == NO_VIOLATION,
            "verdict": _verdict(run["results"]),
        }
        for run in runs
    ]


def _verdict(results: Sequence[Mapping[str, Any]]) -> str:
    """Return what an audit found; an audit without results found nothing, which is not "holds"."""
    if not results:
        return "nothing was audited"
    return NO_VIOLATION if all(bool(one.get("holds")) for one in results) else "BROKEN"


def _audit_row(result: Mapping[str, Any]) -> dict[str, Any]:
    is_mechanism = "mechanism" in result
    return {
        "name": str(result["mechanism"] if is_mechanism else result["neighbours"]),
        "claimed": f"{result['epsilon_claimed']:.4g}" if is_mechanism else "",
        "found": f"{result['epsilon_lower_bound']:.4g}" if is_mechanism else "",
        "trials": int(result.get("trials" if is_mechanism else "releases", 0)),
        "holds": bool(result.get("holds")),
    }
