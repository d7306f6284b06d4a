"""``gapgnn forget``: remove people from saved models, and record it in the ledger."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.output import emit_json, say
from gapgnn.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from gapgnn.methods import Removal

EPILOG = """\
Their ids and rows go; a model then answers for them as for unknown ids, and for everybody else as
before. Weights stay, and so do the noisy sums of others. The ledger records how many people were
removed from which releases, and when; no id. What stays, and why: docs/explanation/erasure.md.

Ids in a command are seen by `ps` and kept by the shell: --ids-file reads them from a file, one in a
line, or from - for standard input. A command that was killed is repeated.

examples:
  gapgnn forget --id 1044 --model january --plan     what would be removed; nothing is changed
  gapgnn forget --ids-file withdrawn.txt --model january february
  gapgnn forget --ids-file - --model january --json < withdrawn.txt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--id",
        nargs="+",
        action="extend",
        metavar="ID",
        help="of the people, as in the node table, in any spelling",
    )
    given.add_argument("--ids-file", type=Path, metavar="FILE", help="one id per line; - is stdin")
    parser.add_argument(
        "--model",
        type=Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="FOLDER",
        help="saved models, or rows of `gapgnn embed`",
    )
    parser.add_argument("--plan", action="store_true", help="show what would go; change nothing")
    parser.add_argument(
        "--ignore-unknown",
        action="store_true",
        help="go on if none of the models has a row of an id",
    )
    parser.add_argument(
        "--ledger", metavar="FILE", help="of the training, if it is not GAPGNN_LEDGER or your own"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Plan the removal from every folder, and only then change the first of them."""
    ids = _ids(args)
    from gapgnn.methods import finish_removals, forget, plan_removal
    from gapgnn.privacy.ledger import Ledger

    ledger = Ledger(args.ledger)
    has_finished = False if args.plan else finish_removals(args.model, ledger)
    plans = [plan_removal(folder, ids, ledger) for folder in args.model]
    unknown = sum(not any(one.known[place] for one in plans) for place in range(len(ids)))
    # What an interrupted command has removed already is not known any more.
    if unknown and not (args.ignore_unknown or has_finished):
        raise InputError(
            f"every id must be in one of the models. Got {unknown} of {len(ids)} in none; nothing "
            "was removed. Check the spelling, or say `--ignore-unknown`."
        )
    if not args.plan:
        for one in plans:
            if one.rows:
                forget(one.folder, ids, ledger)
    _show(args, plans, ledger.name, {"ids": len(ids), "unknown": unknown})
    return 0


def _show(
    args: argparse.Namespace, plans: list[Removal], ledger: str, counts: dict[str, int]
) -> None:
    """Print what was removed, or would be."""
    from gapgnn.privacy.card import rounded_up

    if args.json:
        models = [_plain(one) for one in plans]
        emit_json({"models": models, "ledger": ledger, **counts, "changed": not args.plan})
        return
    for one in plans:
        if not one.rows:
            say(f"{one.folder}: nobody of them has a row.")
            continue
        rows, of = sum(one.rows.values()), len(one.rows)
        would = "would lose" if args.plan else "lost"
        say(
            f"{one.folder} {would} {_counted(rows, 'row')} of "
            f"{one.people} {'person' if one.people == 1 else 'people'} in {_counted(of, 'release')}"
            f" ({', '.join(sorted({text for text in one.purposes.values() if text}) or ['rows'])})."
        )
        if (together := one.epsilon_together()) is not None:
            say(
                "  Its releases hide "
                + (f"that {one.people} people left together" if one.people > 1 else "that person")
                + f": epsilon {rounded_up(together)} at delta {one.card.delta:.3g}."
            )
    if counts["unknown"]:
        say(f"{counts['unknown']} of {counts['ids']} ids were in none of the models.")
    if not args.plan:
        say(f"Recorded in the ledger {ledger}, without ids.", to_stderr=True)
    say(
        "Weights stay, and the noisy sums of others: docs/explanation/erasure.md. Backups, files "
        "of predictions, node tables and services that have read a model are yours to renew.",
        to_stderr=True,
    )


def _plain(removal: Removal) -> dict[str, Any]:
    return {
        "model": str(removal.folder),
        "level": removal.level,
        "people": removal.people,
        "rows": removal.rows,
        "epsilon_together": removal.epsilon_together(),
    }


def _counted(count: int, what: str) -> str:
    """Return a count in words.

    >>> _counted(1, "row"), _counted(2, "release")
    ('1 row', '2 releases')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _ids(args: argparse.Namespace) -> list[str]:
    """Return the ids that are given, each once."""
    if args.id is not None:
        lines = list(args.id)
    else:
        try:
            is_stdin = str(args.ids_file) == "-"
            text = sys.stdin.read() if is_stdin else args.ids_file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise InputError("`--ids-file` must be text in UTF-8. Got other bytes.") from None
        except OSError as error:
            raise UnavailableError(
                f"`--ids-file` cannot be read: {str(args.ids_file)!r}: {error.strerror}."
            ) from None
        lines = text.splitlines()
    ids = list(dict.fromkeys(line for line in lines if line.strip()))
    if not ids:
        raise InputError("`--id` or `--ids-file` must name somebody. Got no id.")
    return ids
