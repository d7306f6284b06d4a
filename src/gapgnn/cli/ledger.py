"""``gapgnn ledger``: budgets per data set, what was charged to them, and how to grant one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gapgnn.cli.output import console, emit_json, say
from gapgnn.errors import InputError, check_number
from gapgnn.privacy import RELATIONS as ALL_RELATIONS
from gapgnn.privacy import resolve_relation
from gapgnn.privacy.ledger import RELATIONS, Budget, Charge, Ledger

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """\
A budget belongs to a data set, not to a run. Charges add up; one that does not fit is refused
before anything is computed. Without a budget, runs are recorded and not limited.

examples:
  gapgnn ledger                                      all budgets
  gapgnn ledger grant social --epsilon 4 --delta 1e-5
  gapgnn ledger grant facebook100/Cornell5 --epsilon 8 --delta 1e-5 --level node
  gapgnn ledger show social                          what was charged, and when
"""
DATASET_HELP = "a data set's name, its fingerprint, or the beginning of one in the ledger"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.epilog = EPILOG
    _add_common(parser, json=False, ledger=None)
    actions = parser.add_subparsers(dest="action", metavar="[show|grant]", title="actions")
    show = actions.add_parser("show", help="the charges of one data set")
    show.add_argument("dataset", metavar="DATASET", help=DATASET_HELP)
    grant = actions.add_parser("grant", help="set a data set's budget, or replace it")
    grant.add_argument("dataset", metavar="DATASET", help=DATASET_HELP)
    grant.add_argument("--epsilon", type=float, required=True, metavar="E", help="for all charges")
    grant.add_argument("--delta", type=float, required=True, metavar="D", help="for all charges")
    grant.add_argument(
        "--level", choices=tuple(RELATIONS), default="edge", help="what is protected (edge)"
    )
    grant.add_argument(
        "--relation",
        choices=("auto", *ALL_RELATIONS),
        default="auto",
        help="the neighbouring relation of the budget; charges must use the same (auto)",
    )
    for action in (show, grant):
        # Suppressed, or the action's default would overwrite what stood before its name.
        _add_common(action, json=argparse.SUPPRESS, ledger=argparse.SUPPRESS)


def _add_common(parser: argparse.ArgumentParser, *, json: Any, ledger: Any) -> None:
    parser.add_argument("--json", action="store_true", default=json, help="print one JSON object")
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        default=ledger,
        help="another ledger than GAPGNN_LEDGER or the user's own",
    )


def execute(args: argparse.Namespace) -> int:
    """Show the budgets, show one data set's charges, or grant a budget."""
    ledger = Ledger(args.ledger)
    if args.action == "grant":
        _grant(ledger, args)
    elif args.action == "show":
        _show(ledger, args)
    else:
        budgets = ledger.summary()
        if args.json:
            emit_json({"ledger": str(ledger.path), "budgets": [asdict(row) for row in budgets]})
        elif budgets:
            _print_budgets(budgets)
        else:
            say(f"Nothing was granted or charged yet in {ledger.path}.", to_stderr=True)
    return 0


def _grant(ledger: Ledger, args: argparse.Namespace) -> None:
    relation = args.relation
    # Before a large graph is read: are the numbers and the relation possible at all?
    check_number("--epsilon", args.epsilon, above=0)
    check_number("--delta", args.delta, at_least=0, below=1)
    resolve_relation(args.level, relation, is_directed=False)
    fingerprint, name, is_directed = _find(ledger, args.dataset, by_content=True)
    if relation == "auto" and is_directed is None:
        relation = _relation_in_use(ledger, fingerprint, args.level)
    budget = ledger.grant(
        fingerprint,
        level=args.level,
        relation=resolve_relation(args.level, relation, is_directed=bool(is_directed)),
        epsilon=args.epsilon,
        delta=args.delta,
        name=name,
    )
    if args.json:
        emit_json({"ledger": str(ledger.path), "budget": asdict(budget)})
    else:
        _print_budgets([budget])


def _show(ledger: Ledger, args: argparse.Namespace) -> None:
    fingerprint, name, _ = _find(ledger, args.dataset, by_content=False)
    charges = ledger.entries(fingerprint)
    if args.json:
        plain = [{k: v for k, v in asdict(row).items() if k != "budget"} for row in charges]
        about = {"ledger": str(ledger.path), "dataset": name, "fingerprint": fingerprint}
        emit_json({**about, "charges": plain})
    elif charges:
        _print_charges(charges)
    else:
        say(f"Nothing was charged to {name or fingerprint[:12]} yet.", to_stderr=True)


def _find(ledger: Ledger, text: str, *, by_content: bool) -> tuple[str, str, bool | None]:
    """Return the fingerprint, the name and, if the graph was read, whether it is directed.

    A budget is granted to content, so a known data set's own graph is read, and a name in the
    ledger, which anybody could have given to another graph, is only the second choice. To show
    charges the name in the ledger is enough, if it is unique.
    """
    budgets = ledger.summary()
    names = {row.fingerprint: row.name for row in budgets}
    if re.fullmatch("[0-9a-f]{64}", text):
        return text, names.get(text, ""), None
    same_name = sorted({key for key, name in names.items() if name == text})
    if len(same_name) == 1 and not by_content:
        return same_name[0], text, None
    begins = [key for key in names if re.fullmatch("[0-9a-f]+", text) and key.startswith(text)]
    if len(begins) == 1:
        return begins[0], names[begins[0]], None
    if len(begins) > 1:
        raise InputError(
            f"`DATASET` must be the beginning of one fingerprint. Got {text!r}, which begins "
            f"{len(begins)}."
        )
    from gapgnn.graph.datasets import load_dataset

    try:
        graph = load_dataset(text, split_seed=None)
    except InputError:
        if len(same_name) == 1:
            return same_name[0], text, None
        if same_name:
            raise InputError(
                f"`DATASET` must name one data set. Got {text!r}, the name of {len(same_name)} in "
                "the ledger; use the fingerprint that `gapgnn ledger` shows."
            ) from None
        raise
    return graph.fingerprint, graph.name, graph.is_directed


def _relation_in_use(ledger: Ledger, fingerprint: str, level: str) -> str:
    """Take `auto` from the ledger where the graph itself is not at hand."""
    if level == "node":
        return "auto"
    for row in ledger.summary():
        if (row.fingerprint, row.level) == (fingerprint, level):
            return row.relation
    raise InputError(
        "`--relation` must be given for a fingerprint that has no charges yet: directed or "
        "undirected. Got auto."
    )


def _print_budgets(budgets: Sequence[Budget]) -> None:
    table = _table(["data set", "level", "relation"], ["granted", "spent", "left", "charges"])
    for row in budgets:
        table.add_row(
            _called(row.name, row.fingerprint),
            row.level,
            row.relation,
            _amount(row.granted_epsilon, row.granted_delta),
            _amount(row.spent_epsilon, row.spent_delta),
            _amount(row.left_epsilon, row.left_delta),
            str(row.charges),
        )
    console(to_stderr=False).print(table)
    say("Amounts are epsilon / delta.", to_stderr=True)
    if any(row.granted_epsilon is None for row in budgets):
        say(
            "No budget: recorded, not limited. `gapgnn ledger grant DATASET` sets one.",
            to_stderr=True,
        )


def _print_charges(charges: Sequence[Charge]) -> None:
    columns = ["charged", "for", "level", "relation"]
    table = _table(columns, ["releases", "each", "completed", "id"])
    for row in charges:
        table.add_row(
            row.charged_at,
            row.purpose + (f" (with {len(row.others)} more)" if row.others else ""),
            row.level,
            row.relation,
            str(row.count),
            _amount(row.epsilon, row.delta),
            "yes" if row.completed_at else "no",
            row.id,
        )
    console(to_stderr=False).print(table)
    say(
        "Amounts are epsilon / delta. A charge counts as spent whether or not it was completed.",
        to_stderr=True,
    )


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    from rich.table import Column, Table

    columns = [Column(title, overflow="fold") for title in left]
    columns += [Column(title, justify="right", overflow="fold") for title in right]
    return Table(*columns, box=None, padding=(0, 1, 0, 0), pad_edge=False)


def _called(name: str, fingerprint: str) -> str:
    return f"{name} ({fingerprint[:12]})" if name else fingerprint[:12]


def _amount(epsilon: float | None, delta: float | None) -> str:
    return "-" if epsilon is None or delta is None else f"{epsilon:.6g} / {delta:.3g}"
