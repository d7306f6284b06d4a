"""Audits and single attacks beside the results: what somebody found when trying to break a promise.

``gapgnn audit ... --json`` and ``gapgnn attack ... --json`` print one JSON object each; appended to
``findings.jsonl`` in the folder of the results they appear in its report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapgnn.errors import DataError, InputError, UnavailableError, check_number

FILE = "findings.jsonl"


@dataclass(frozen=True)
class Audit:
    """What an audit of one mechanism found.

    Attributes:
        epsilon: what the audited part is accounted at.
        lower_bound: what an attacker proved it costs at least, at the same delta.
        noise_multiplier: of the audited noise, where it is known.
        first_lower_bound: of a first run that ended above the claim and was repeated.
        command: that repeats it; may be empty.
    """

    mechanism: str
    level: str
    relation: str
    epsilon: float
    lower_bound: float
    delta: float
    confidence: float
    trials: int
    noise_multiplier: float | None
    first_lower_bound: float | None
    command: str

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.epsilon


@dataclass(frozen=True)
class Attack:
    """What one attack on a model reached; AUC 0.5 is guessing."""

    attack: str
    method: str
    dataset: str
    level: str
    epsilon: float | None
    auc: float
    control_auc: float | None


def load_findings(folder: str | Path) -> tuple[list[Audit], list[Attack]]:
    """Return the audits and attacks kept in a folder; none if there is no such file.

    >>> load_findings("nowhere")
    ([], [])
    """
    path = Path(folder) / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], []
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(f"`{path}` must be readable text. Got {error}.") from None
    audits: list[Audit] = []
    attacks: list[Attack] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise InputError(f"a finding must be a JSON object. Got {type(values).__name__}.")
            if "mechanism" in values:
                audits.append(_audit(values))
            else:
                attacks.append(_attack(values))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"`{path}`, line {number}, must be what `gapgnn audit --json` or `gapgnn attack "
                f"--json` printed. Got {_reason(error)}."
            ) from None
    return audits, attacks


def _audit(values: Mapping[str, Any]) -> Audit:
    relation = str(values.get("relation", "none"))
    noise, first = values.get("noise_multiplier"), values.get("first_lower_bound")
    return Audit(
        mechanism=str(values["mechanism"]),
        level="node" if relation in ("add-remove", "replace") else "edge",
        relation=relation,
        epsilon=check_number("epsilon_claimed", values["epsilon_claimed"], at_least=0),
        lower_bound=check_number("epsilon_lower_bound", values["epsilon_lower_bound"]),
        delta=check_number("delta", values.get("delta", 0.0), at_least=0),
        confidence=check_number("confidence", values["confidence"], above=0, below=1),
        trials=int(values["trials"]),
        noise_multiplier=None if noise is None else check_number("noise_multiplier", noise),
        first_lower_bound=None if first is None else check_number("first_lower_bound", first),
        command=str(values.get("command", "")),
    )


def _attack(values: Mapping[str, Any]) -> Attack:
    epsilon = values["epsilon"]
    control = values.get("control")
    return Attack(
        attack=str(values["attack"]),
        method=str(values["method"]),
        dataset=str(values["dataset"]),
        level=str(values["level"]),
        epsilon=None if epsilon is None else check_number("epsilon", epsilon, at_least=0),
        auc=check_number("auc", values["auc"], at_least=0, at_most=1),
        control_auc=None if control is None else check_number("control", control["auc"]),
    )


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no {error.args[0]!r}"
    return str(error).rstrip(".")
