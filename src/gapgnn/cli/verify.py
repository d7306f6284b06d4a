"""``gapgnn verify``: is a release what was released, and does it say what its files say?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.cli.output import begin, complain, console, emit_json, progress_bars, say
from gapgnn.errors import IntegrityError

if TYPE_CHECKING:
    from gapgnn.evaluation.release import Verification

EPILOG = """\
Needs the folder alone: no ledger, no network, no account. Exit code 4 if anything is wrong.

Without a key from elsewhere, a signature shows that nothing changed since somebody signed, and not
who that was. An unsigned folder shows that its files agree with each other.

examples:
  gapgnn verify release
  gapgnn verify release --public-key key.pub       signed by whoever has this key?
  gapgnn verify release --chain root.pem           by a certificate under this root?
  gapgnn verify release --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument("release", type=Path, metavar="FOLDER", help="what `gapgnn release` wrote")
    given = parser.add_mutually_exclusive_group()
    given.add_argument(
        "--public-key", type=Path, metavar="FILE", help="of the signer, PEM, from elsewhere"
    )
    given.add_argument(
        "--chain",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="root certificates from which the signer's must descend",
    )
    given.add_argument(
        "--without-signature",
        action="store_true",
        help="check everything else, where the package model-signing is not installed",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Check the folder, and say in plain words what was checked."""
    begin("Verifying the release: loading the libraries")
    from gapgnn.evaluation.release import verify_release

    with progress_bars("checking", "MofNCompleteColumn", quiet=args.json) as advance:
        found = verify_release(
            args.release,
            public_key=args.public_key,
            roots=args.chain,
            without_signature=args.without_signature,
            progress=lambda done, total: advance("checking", done, total),
        )
    if args.json:
        emit_json(_values(found))
    else:
        _print(found)
    for problem in found.problems:
        complain(f"{args.release}: {problem}.")
    return 0 if found.holds else IntegrityError.exit_code


def _values(found: Verification) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "release": str(found.folder),
        "holds": found.holds,
        "checks": [asdict(one) for one in found.checks],
        "problems": list(found.problems),
        "limits": list(found.limits),
        "signer": found.signer,
        "is_known_signer": found.is_known_signer,
    }


def _print(found: Verification) -> None:
    from rich.table import Table

    table = Table("checked", "", "what", title=None, show_lines=False)
    for one in found.checks:
        text = one.text if one.outcome != "failed" else "; ".join(one.problems)
        table.add_row(one.name, one.outcome.upper() if one.problems else one.outcome, text)
    console(to_stderr=False).print(table)
    if found.holds:
        say(f"{found.folder}: what could be checked is in order.")
    else:
        say(f"{found.folder}: THIS IS NOT WHAT WAS RELEASED. Do not rely on it.")
    for line in found.limits:
        say(f"Not shown: {line}")
