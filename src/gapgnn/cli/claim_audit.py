"""`gapgnn audit claim`: run somebody else's program on graphs of ours, and attack its output."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING

from gapgnn.cli.main import Parser
from gapgnn.cli.options import add_options, number
from gapgnn.cli.output import complain, console, emit_json, progress_bars, say
from gapgnn.errors import InputError

if TYPE_CHECKING:
    from gapgnn.audits import AuditReport

TEXT = "the claim of any program, which is run on graphs with canaries and on neighbours"
EXAMPLES = """\
examples:
  gapgnn audit claim python examples/claims/honest_hops.py
  gapgnn audit claim --runs 400 --jobs 8 -- ./their_model --mode release
  gapgnn audit claim --canaries 600 --json python their_code.py

The program is called with two more words: a folder to read a graph from, and a folder to write
what it releases to (.npy or .safetensors) and `claim.json`, which states epsilon, delta and the
relation. docs/how-to/audit-programs.md has the format. It runs with your rights: audit programs
that you would run yourself. Exit code 1: what it releases reveals more than it claims.
"""
OPTIONS = {
    "canaries": number(300, "canaries in each run with canaries", metavar="N"),
    "canary-runs": number(4, "runs with canaries; half of them teach the attacker", metavar="N"),
    "runs": number(
        100, "runs that judge a pair of neighbours, where a few distinguished it", metavar="N"
    ),
    "confidence": number(0.95, "of the lower bound"),
    "timeout": number(60.0, "seconds for one run"),
    "jobs": number(2, "runs at once", metavar="N"),
    "seed": number(0, "of graphs and coins, and the public seed that the program is given"),
}


def configure(parser: Parser) -> None:
    """Add the options of `gapgnn audit claim`."""
    parser.epilog = EXAMPLES
    add_options(parser, OPTIONS)
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its words")


def execute(args: argparse.Namespace) -> int:
    """Run the program, attack its releases, report; exit code 1 where its claim is broken."""
    from gapgnn.audits import audit_claim

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise InputError(
            "`command` must name a program. Got none. See `gapgnn audit claim --help`."
        )
    with progress_bars("runs", "MofNCompleteColumn") as advance:
        advance("runs", 0, None)
        report = audit_claim(
            words,
            canaries=args.canaries,
            canary_runs=args.canary_runs,
            runs=args.runs,
            confidence=args.confidence,
            timeout=args.timeout,
            jobs=args.jobs,
            seed=args.seed,
            progress=functools.partial(advance, "runs"),
        )
    if args.json:
        emit_json(report.to_dict())
    else:
        _print(report)
    if not report.holds:
        complain(report.sentence)
        return 1
    return 0


def _print(report: AuditReport) -> None:
    from rich.table import Column, Table

    table = Table("", Column("epsilon", justify="right"), title="audit of a claim")
    table.add_row(f"claimed, at delta {report.delta:g}", f"{report.epsilon_claimed:.4g}")
    for name, bound in report.details["bounds"].items():
        table.add_row(f"at least, by {name}", f"{bound:.4g}")
    console(to_stderr=False).print(table)
    if report.holds:
        say(report.sentence)
