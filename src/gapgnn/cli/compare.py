"""``gapgnn compare``: two or more releases side by side, by what an attacker can reach."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gapgnn.cli.output import begin, console, emit_json, note, say

EPILOG = """\
An epsilon holds at one delta, and for one relation. Compare mu, which bounds every test of an
attacker at once, and only within a table: models in different tables hide different things.

examples:
  gapgnn compare january february              two saved models
  gapgnn compare release-a release-b           two releases
  gapgnn compare january february --json
  gapgnn report january february               the same as a page, with the ledger
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="saved models, or what `gapgnn release` wrote; two or more",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print a table for each thing that is hidden, and what all come to together."""
    begin("Comparing: loading the libraries")
    from gapgnn.evaluation.release import side_by_side

    found = side_by_side(args.folders)
    if args.json:
        emit_json(found)
        return 0
    for group in found["groups"]:
        _print(group)
    rows = [row for group in found["groups"] for row in group["models"]]
    if any(row["mu"] is None and row["mu_of_guess"] is not None for row in rows):
        note("~: no mu is proved; the one that allows the same 50:50 guess, and bounds no other.")
    if not found["comparable"]:
        say(
            f"These hide {len(found['groups'])} different things: an epsilon or a mu of one table "
            "says nothing of one in another."
        )
    joint = found["together"]
    say(
        joint["problem"]
        or f"All of them together: epsilon {joint['epsilon']} at delta {joint['delta']} for "
        f"whoever is in the data of all; a 50:50 guess is right in at most {joint['guess']}."
    )
    for one in found["settings"]:
        values = ", ".join(f"{name}: {value}" for name, value in one["values"].items())
        note(f"{one['name']}: {values}")
    return 0


def _print(group: dict[str, Any]) -> None:
    from rich.table import Table

    heads = ("model", "method", "mu", "epsilon", "delta", "50:50 guess right at most")
    table = Table(*heads, "true positives at 1 % false", title=group["hidden"])
    for row in group["models"]:
        table.add_row(row["name"], row["method"], *_figures(row))
    console(to_stderr=False).print(table)


def _figures(row: dict[str, Any]) -> list[str]:
    from gapgnn.privacy.card import rounded_up
    from gapgnn.privacy.card import texts as texts

    def number(name: str) -> str:
        return "-" if row[name] is None else rounded_up(row[name])

    def share(name: str) -> str:
        return "-" if row[name] is None else texts.percent(row[name])

    mu = number("mu")
    if row["mu"] is None and row["mu_of_guess"] is not None:
        mu = f"~{number('mu_of_guess')}"
    figures = [mu, number("epsilon"), number("delta")]
    return [*figures, share("guess"), share("tpr_at_fpr_1_percent")]
