"""One page that puts several saved models side by side: `gapgnn report MODEL MODEL`.

Epsilon of one relation is no epsilon of another, so models are grouped by what they hide. What all
of them come to together is composed from the releases on their cards, as one card composes its own
(:mod:`gapgnn.privacy.card.composition`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gapgnn import __version__
from gapgnn.errors import InputError, PrivacyError
from gapgnn.evaluation.report.decision import Decision
from gapgnn.evaluation.report.figures import FRAME, Chart, write_file
from gapgnn.evaluation.report.model import History, amount, decision_of, history_of
from gapgnn.evaluation.report.page import rendered
from gapgnn.evaluation.report.plots import (
    STYLES,
    Line,
    Panel,
    curve_values,
    guessing_line,
    precision_recall_plot,
    small,
)
from gapgnn.graph import Wording
from gapgnn.methods import Saved, load_folder
from gapgnn.privacy.card import ChargedRelease, PrivacyCard, composed
from gapgnn.privacy.card import texts as texts
from gapgnn.training import Ranking

FILE = "models.report.html"


@dataclass(frozen=True)
class Compared:
    """One of the models.

    Attributes:
        name: as the page calls it.
        saved: what its folder holds.
        card: in the words of the page.
        decision: whether it may be released.
        history: what the ledger knows of its charge.
        figures: how useful it is, in the curator's copy.
    """

    name: str
    saved: Saved
    card: PrivacyCard
    decision: Decision
    history: History
    figures: Mapping[str, Any] | None = None

    @property
    def guess(self) -> str:
        """How often a 50:50 guess is right, at most."""
        return "-" if self.card.attacker is None else texts.percent(self.card.attacker.guess)

    @property
    def hits(self) -> str:
        """True positives at 1 % false positives, at most."""
        attacker = self.card.attacker
        return "-" if attacker is None else texts.percent(attacker.tpr_at_fpr_1_percent)

    @property
    def epsilon(self) -> str:
        """Of all releases of the model."""
        spent = self.card.composed_epsilon
        return "none" if spent is None else amount(spent, up=True)

    @property
    def delta(self) -> str:
        """At which that epsilon holds."""
        return "none" if self.card.delta is None else small(float(f"{self.card.delta:.6g}"))

    @property
    def charged_to(self) -> str:
        """The people that its releases were charged to, by the ledger."""
        names = [str(one["name"]) for one in self.history.populations]
        return ", ".join(names) or "not known to this page"


@dataclass(frozen=True)
class Together:
    """What several models come to for whoever is in the data of all of them.

    Attributes:
        epsilon: at ``delta``; empty if no finite value is proved.
        delta: the largest of the models.
        guess: how often a 50:50 guess by somebody who has all of them is right, at most.
        problem: why there is none, in one sentence; empty if there is.
    """

    epsilon: str = ""
    delta: str = ""
    guess: str = ""
    problem: str = ""


def write_comparison(
    folders: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    ledger: str | Path | None = None,
    words: Wording | None = None,
    figures: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write the page that compares several saved models, and return where it is.

    Args:
        folders: of saved models, at least two.
        out: the file; left out: ``models.report.html`` beside the first folder.
        ledger: file of the ledger; left out: the user's own.
        words: what people and edges are called; left out: as the first card calls them.
        figures: of :func:`gapgnn.evaluation.report.model.curator_figures`, one for each model; the
            page is then for the curator alone.

    >>> write_comparison(["model"])
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `folders` must be at least 2 saved models. Got 1.
    """
    places = [Path(folder) for folder in folders]
    if len({place.resolve() for place in places}) < 2:
        raise InputError(f"`folders` must be at least 2 saved models. Got {len(places)}.")
    target = places[0].resolve().with_name(FILE) if out is None else Path(out)
    if target.suffix != ".html":
        raise InputError(f"`out` must end in .html. Got {str(out)!r}.")
    page = render_comparison(places, ledger=ledger, words=words, figures=figures)
    write_file(target, page)
    return target


def render_comparison(
    folders: Sequence[Path],
    *,
    ledger: str | Path | None = None,
    words: Wording | None = None,
    figures: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return the page as text; everything that comes from folders or the ledger is escaped."""
    models = _models(folders, ledger, words, figures)
    return rendered(
        "comparison.html.j2",
        models=models,
        groups=_groups(models),
        together=together([model.card for model in models]),
        settings=settings([model.saved for model in models]),
        words=models[0].card.wording,
        today=datetime.now(timezone.utc).date().isoformat(),
        version=__version__,
        is_copy=figures is not None,
        percent=lambda share: f"{100 * share:.1f} %",
        curves=_curves(models),
        frame=FRAME,
    )


def _models(
    folders: Sequence[Path],
    ledger: str | Path | None,
    words: Wording | None,
    figures: Sequence[Mapping[str, Any]] | None,
) -> list[Compared]:
    """Return the models in the order in which they were named."""
    is_unique = len({folder.resolve().name for folder in folders}) == len(folders)
    models: list[Compared] = []
    for number, folder in enumerate(folders):
        saved = load_folder(folder)
        known = models[0].card.wording if models else saved.card.wording
        card = saved.card.in_words(words or known)
        history = history_of(card, ledger)
        name = folder.resolve().name if is_unique else str(folder)
        found = None if figures is None else figures[number]
        decision = decision_of(saved, card, history)
        models.append(Compared(name, saved, card, decision, history, found))
    return models


def _groups(models: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return the models by what they hide: only within a group is a smaller epsilon safer."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for model in models:
        card = model.card
        if card.level == "none":
            hidden = "Nothing is hidden."
        else:
            what = texts.hidden(
                card.relation, "the data", edge_types=card.edge_types, protects=card.protects
            )
            hidden = card.wording.fill(f"Hidden is {what}.")
        groups.setdefault((card.relation.name, hidden), []).append(model)
    return [
        {
            "relation": relation,
            "level": group[0].card.level,
            "hidden": hidden,
            "models": sorted(group, key=lambda one: one.card.composed_epsilon or 0.0),
        }
        for (relation, hidden), group in groups.items()
    ]


def together(cards: Sequence[PrivacyCard]) -> Together:
    """Return what all models come to for whoever is in the data of all of them.

    The releases of all cards are one composition under the strictest of their relations. A charge
    that several cards list is one release.

    >>> together([]).problem
    'Nothing was charged for any of them.'
    """
    releases: dict[str, ChargedRelease] = {}
    for number, card in enumerate(cards):
        if card.level == "none":
            return Together(problem="One of them promises nothing, so neither do all of them.")
        for place, release in enumerate(card.releases):
            releases[release.charge_id or f"{number} {place}"] = release
    if not releases:
        return Together(problem="Nothing was charged for any of them.")
    if len({release.relation.level for release in releases.values()}) > 1:
        return Together(
            problem="They hide things of different levels, for which no common ε is proved. Each "
            "promise holds by itself, and the ledger counts a budget for each level."
        )
    delta = max(card.delta or 0.0 for card in cards)
    try:
        epsilon, attacker = composed(list(releases.values()), delta)
    except PrivacyError as error:
        return Together(problem=f"No common ε is proved: {error}")
    shown = small(float(f"{delta:.6g}"))
    return Together(amount(epsilon, up=True), shown, texts.percent(attacker.guess))


def settings(models: Sequence[Saved]) -> list[tuple[str, list[str]]]:
    """Return every parameter in which the models differ, with its value in each."""
    chosen = [model.config["params"] for model in models]
    names = sorted({name for one in chosen for name in one})
    rows = []
    for name in names:
        if name in ("ledger", "device"):
            continue
        values = ["-" if name not in one else _written(one[name]) for one in chosen]
        if len(set(values)) > 1:
            rows.append((name, values))
    return rows


def _written(value: object) -> str:
    """Write a parameter as the command line does.

    >>> _written(None), _written(0.5), _written([1, 2])
    ('none', '0.5', '1, 2')
    """
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _curves(models: Sequence[Compared]) -> tuple[Any, list[Chart]] | None:
    """Return precision-recall curves of the class that all curator's copies rank, one per model."""
    found = [model.figures and model.figures.get("ranking") for model in models]
    if not all(found):
        return None
    rankings = [Ranking.from_dict(one) for one in found if one]
    if len({one.positive for one in rankings}) > 1:
        return None
    lines = tuple(
        Line(model.name, number % len(STYLES), curve_values([one]))
        for number, (model, one) in enumerate(zip(models, rankings, strict=True))
    )
    panel = Panel(f"class {rankings[0].positive}", lines, (guessing_line(rankings[:1]),))
    plot = precision_recall_plot([panel])
    assert plot is not None
    return plot, [Chart(plot, panel)]
