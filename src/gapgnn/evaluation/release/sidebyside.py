"""Two or more releases side by side, in the units in which they can be compared.

Mu of Gaussian differential privacy is what to compare: it bounds every test of an attacker at once,
and does not depend on a delta. Where none is known (steps of DP-SGD have none), the mu that allows
the same 50:50 guess stands in its place: it is one point of the curve, and bounds no other. An
epsilon under one relation says nothing of one under another, so models are grouped by what they
hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import NormalDist
from typing import Any

from gapgnn.errors import InputError
from gapgnn.evaluation.release.checks import audit_results
from gapgnn.evaluation.release.files import model_of
from gapgnn.evaluation.report import settings, together
from gapgnn.methods import Saved, load_folder
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.card import texts as texts


def side_by_side(folders: Sequence[Path]) -> dict[str, Any]:
    """Return what two or more models promise, by what they hide, the smallest mu first.

    Args:
        folders: of saved models or releases.
    """
    if len({folder.resolve() for folder in folders}) < 2:
        raise InputError(f"2 saved models or releases must be given. Got {len(folders)}.")
    found = [load_folder(model_of(folder)) for folder in folders]
    names = list(map(str, folders))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, saved in zip(names, found, strict=True):
        card = saved.card
        key = (card.relation.name, _hidden(card))
        groups.setdefault(key, []).append(_row(name, saved))
    joint = together([saved.card for saved in found])
    return {
        "groups": [
            {
                "relation": relation,
                "level": next(one["level"] for one in rows),
                "hidden": hidden,
                "models": sorted(rows, key=_strength),
            }
            for (relation, hidden), rows in groups.items()
        ],
        "comparable": len(groups) == 1,
        "together": {name: value or None for name, value in asdict(joint).items()},
        "settings": [
            {"name": name, "values": dict(zip(names, values, strict=True))}
            for name, values in settings(found)
        ],
    }


def _hidden(card: PrivacyCard) -> str:
    if card.level == "none":
        return "Nothing is hidden."
    what = texts.hidden(
        card.relation, "the data", edge_types=card.edge_types, protects=card.protects
    )
    return card.wording.fill(f"Hidden is {what}.")


def _row(name: str, saved: Saved) -> dict[str, Any]:
    card = saved.card
    return {
        "name": name,
        "method": card.method,
        "dataset": card.dataset,
        "level": card.level,
        "mu": None if card.attacker is None else card.attacker.mu,
        "mu_of_guess": None if card.attacker is None else _mu_of_guess(card.attacker.guess),
        "epsilon": card.composed_epsilon,
        "delta": card.delta,
        "guess": None if card.attacker is None else card.attacker.guess,
        "tpr_at_fpr_1_percent": (
            None if card.attacker is None else card.attacker.tpr_at_fpr_1_percent
        ),
        "own": card.own,
        "releases": len(card.releases),
        "is_private_release": card.is_private_release,
        "audits": len(audit_results(saved)),
    }


def _mu_of_guess(guess: float) -> float | None:
    """Return the mu of Gaussian noise that allows the same 50:50 guess, Phi(mu / 2).

    Where a mu is known this is it, unless epsilon and delta bound the guess further. None if every
    guess may be right.

    >>> round(_mu_of_guess(0.6914624612740131), 6)
    1.0
    """
    return 2 * NormalDist().inv_cdf(guess) if guess < 1 else None


def _strength(row: dict[str, Any]) -> tuple[float, float]:
    """Return what models of one group are ordered by: the guess, which increases with mu."""
    guess = 1.0 if row["guess"] is None else float(row["guess"])
    return guess, float("inf") if row["epsilon"] is None else float(row["epsilon"])
