"""`gapgnn report`: one page, with figures and tables, from a folder of results."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.output import console, emit_json, say
from gapgnn.errors import InputError

if TYPE_CHECKING:
    from gapgnn.evaluation.grid import Record
    from gapgnn.evaluation.report import Audit

AUDIT_TRIALS = 20_000
SECTIONS = ("short", "protected", "tradeoff", "accuracy", "tested", "ablations", "releases")
EXAMPLES = """\
examples:
  gapgnn experiment tradeoff --datasets social --out results
  gapgnn report results                        results/report.html, figures/ and tables/
  gapgnn report results --audit                audit the noisy hops of every budget first
  gapgnn audit dpsgd --epsilon 8 --json >> results/findings.jsonl
  gapgnn report results --screenshot report.png --section tradeoff

The page is one file that loads nothing. Its figures are computed from the private data without
noise: for data that is not public, it is for the curator.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn report`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="what `gapgnn experiment --out` filled"
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="run the audits of the noisy hops that are missing, on canaries, and keep them in "
        "FOLDER/findings.jsonl",
    )
    parser.add_argument(
        "--screenshot",
        type=Path,
        metavar="FILE.png",
        help="also take a picture of the page, with the installed Chromium",
    )
    parser.add_argument(
        "--section",
        choices=SECTIONS,
        help="the first section in the picture (default: all of the page's top)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Write the report, and say where it is."""
    from gapgnn.evaluation.report import load_results, screenshot, write_report

    if args.screenshot is not None and args.screenshot.suffix != ".png":
        raise InputError(f"`screenshot` must end in .png. Got {str(args.screenshot)!r}.")
    if args.audit:
        _audit(args.folder, load_results(args.folder))
    written = write_report(args.folder)
    if args.screenshot is not None:
        screenshot(written.page, args.screenshot, section=args.section or "")
    if args.json:
        emit_json(
            {
                "page": str(written.page),
                "figures": [str(path) for path in written.figures],
                "tables": [str(path) for path in written.tables],
                "screenshot": None if args.screenshot is None else str(args.screenshot),
            }
        )
    else:
        line = (
            f"{written.page}, with {len(written.figures)} figure files and "
            f"{len(written.tables)} table files beside it"
        )
        say(line)
    return 0


def _audit(folder: Path, records: list[Record]) -> None:
    """Audit the noisy hops of every GAP row that has no audit yet, and keep the results.

    The shipped mechanism runs at the very noise of the results, on canaries and never on the data
    (privacy page, section 8). Each part is held to what it alone is accounted at.
    """
    from gapgnn.attacks.audits import audit_aggregation
    from gapgnn.evaluation.report import FILE, load_findings

    wanted = _missing(records, load_findings(folder)[0])
    err = console(to_stderr=True)
    for number, options in enumerate(wanted, start=1):
        if err.is_terminal:
            err.print(f"audit {number} of {len(wanted)}")
        report = audit_aggregation(**options, trials=AUDIT_TRIALS)
        line = {**report.to_dict(), "command": _command(options)}
        _append(folder / FILE, json.dumps(line, allow_nan=False))


def _missing(records: list[Record], done: list[Audit]) -> list[dict[str, Any]]:
    """Return the options of every audit that is wanted and not there."""
    have = {(one.relation, one.noise_multiplier) for one in done if one.mechanism == "aggregation"}
    wanted: dict[tuple[str, float], dict[str, Any]] = {}
    for record in records:
        if record.experiment not in ("accuracy", "tradeoff") or not record.method.startswith("GAP"):
            continue
        for event in record.events:
            if not isinstance(event, Mapping) or event.get("event") != "Gaussian":
                continue
            key = (record.relation, event["noise_multiplier"])
            if key not in have:
                wanted[key] = {
                    "level": record.level,
                    "relation": record.relation,
                    "delta": record.delta,
                    "noise_multiplier": event["noise_multiplier"],
                    "hops": event.get("count", 1),
                }
    return list(wanted.values())


def _command(options: dict[str, Any]) -> str:
    words = ["gapgnn", "audit", "aggregation", "--trials", str(AUDIT_TRIALS)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--json"])


def _append(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise InputError(f"`{path}` must be writable. Got {error.strerror}.") from None
