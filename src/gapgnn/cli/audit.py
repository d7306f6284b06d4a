"""`gapgnn audit`: try to break a mechanism, and say what that proves about its epsilon."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapgnn.cli import pipeline
from gapgnn.cli.output import complain, console, emit_json, progress_bars

if TYPE_CHECKING:
    from gapgnn.attacks.audits import AuditReport

MECHANISMS = {
    "aggregation": "the noisy hops, with canary edges or records",
    "dpsgd": "DP-SGD, with canary examples of the clipped norm",
    "sampler": "the rule that cuts out-lists, on the hub graph",
    "edges": "randomised edges (ARR, EdgeRand, LapGraph), bit by bit",
    "subgraphs": "the training of SAGE at node level, where a record is part of many examples",
    "messages": "all hops a GAP releases when nodes send labels, read from the fitted model",
}

EXAMPLES = """\
examples:
  gapgnn audit aggregation --level edge --relation undirected --epsilon 1 --hops 2
  gapgnn audit aggregation --level node --max-degree 10 --epsilon 8
  gapgnn audit dpsgd --epsilon 1 --steps 50 --sampling-rate 0.1 --trials 20000
  gapgnn audit sampler --epsilon 4
  gapgnn audit edges --perturbation arr --epsilon 2 --json
  gapgnn audit subgraphs --epsilon 4
  gapgnn audit messages --level node --epsilon 4
  gapgnn audit pipeline train gap --level node --epsilon 4

Runs the shipped mechanism on canaries, never on your data. Exit code 0: no violation was found,
which is evidence and not a proof. Exit code 1: the guarantee is broken, with the stated confidence.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per mechanism."""
    parser.epilog = EXAMPLES
    mechanisms = parser.add_subparsers(dest="mechanism", metavar="MECHANISM", required=True)
    pipeline.configure(
        mechanisms.add_parser("pipeline", help=pipeline.TEXT, description=pipeline.TEXT)
    )
    for name, text in MECHANISMS.items():
        child = mechanisms.add_parser(name, help=text, description=text, epilog=EXAMPLES)
        child.add_argument("--epsilon", type=float, default=1.0, help="claimed (default 1)")
        if name != "edges":
            child.add_argument("--delta", type=float, default=1e-5, help="claimed (default 1e-5)")
        if name not in ("edges", "messages"):
            child.add_argument(
                "--noise-multiplier",
                type=float,
                help="audit this noise against what it is accounted at, instead of --epsilon",
            )
        _ADD[name](child)
        child.add_argument(
            "--confidence", type=float, default=0.95, help="of the lower bound (default 0.95)"
        )
        child.add_argument(
            "--noise",
            dest="construction",
            choices=["safe", "fast"],
            default="safe",
            help="which construction to audit (default safe)",
        )
        child.add_argument("--seed", type=int, default=0, help="of the coins; never of noise")
        child.add_argument("--json", action="store_true", help="print one JSON object")


def _add_aggregation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", choices=["edge", "node"], default="edge")
    parser.add_argument(
        "--relation",
        default="auto",
        help="edge: directed or undirected; node: add-remove or replace (default: undirected or "
        "add-remove)",
    )
    parser.add_argument("--hops", type=int, default=2, help="noisy hops (default 2)")
    parser.add_argument("--max-degree", type=int, default=10, help="D at node level (default 10)")
    _add_trials(parser, 100_000)


def _add_dpsgd(parser: argparse.ArgumentParser) -> None:
    _add_node_relation(parser, ["add-remove", "replace"])
    parser.add_argument("--steps", type=int, default=50, help="steps of a training (default 50)")
    parser.add_argument(
        "--sampling-rate", type=float, default=0.1, help="of the Poisson batches (default 0.1)"
    )
    parser.add_argument("--clip", type=float, default=1.0, help="clipping norm (default 1)")
    _add_trials(parser, 100_000)


def _add_sampler(parser: argparse.ArgumentParser) -> None:
    _add_node_relation(parser, ["add-remove"])
    parser.add_argument("--max-degree", type=int, default=4, help="the bound D (default 4)")
    parser.add_argument(
        "--sources", type=int, default=50, help="people who share their targets (default 50)"
    )
    _add_trials(parser, 20_000)


def _add_edges(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--perturbation", choices=["arr", "edgerand", "lapgraph"], default="arr", help="default arr"
    )
    parser.add_argument("--relation", choices=["undirected", "directed"], default="undirected")
    parser.add_argument(
        "--density",
        type=float,
        default=0.005,
        help="share of the pairs that are connected (default 0.005, as in real graphs)",
    )
    _add_trials(parser, 1_000_000)


def _add_subgraphs(parser: argparse.ArgumentParser) -> None:
    _add_node_relation(parser, ["add-remove"])
    parser.add_argument("--steps", type=int, default=20, help="steps of a training (default 20)")
    parser.add_argument(
        "--sampling-rate", type=float, default=0.2, help="of the Poisson batches (default 0.2)"
    )
    parser.add_argument("--max-degree", type=int, default=4, help="the bound D (default 4)")
    parser.add_argument("--clip", type=float, default=1.0, help="clipping norm (default 1)")
    _add_trials(parser, 20_000)


def _add_messages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", choices=["edge", "node"], default="edge")
    parser.add_argument("--relation", default="auto", help="as for aggregation (default auto)")
    parser.add_argument("--messages", choices=["labels", "both"], default="labels")
    parser.add_argument("--hops", type=int, default=2, help="noisy hops (default 2)")
    parser.add_argument("--max-degree", type=int, default=10, help="D at node level (default 10)")
    _add_trials(parser, 100_000)


def _add_node_relation(parser: argparse.ArgumentParser, choices: list[str]) -> None:
    parser.add_argument("--relation", choices=choices, default="add-remove")


def _add_trials(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--trials", type=int, default=default, help=f"independent trials (default {default})"
    )


_ADD = {
    "aggregation": _add_aggregation,
    "dpsgd": _add_dpsgd,
    "sampler": _add_sampler,
    "edges": _add_edges,
    "subgraphs": _add_subgraphs,
    "messages": _add_messages,
}


def execute(args: argparse.Namespace) -> int:
    """Run the audit and report; a broken guarantee is exit code 1."""
    if args.mechanism == "pipeline":
        return pipeline.execute(args)
    from gapgnn.attacks import audits as audit

    audits: dict[str, Callable[..., AuditReport]] = {
        "aggregation": audit.audit_aggregation,
        "dpsgd": audit.audit_dpsgd,
        "sampler": audit.audit_sampler,
        "edges": audit.audit_edges,
        "subgraphs": audit.audit_subgraphs,
        "messages": _audit_messages,
    }
    options = {k: v for k, v in vars(args).items() if k not in ("mechanism", "json")}
    with progress_bars("trials", "MofNCompleteColumn") as advance:
        advance("trials", 0, args.trials)
        options["progress"] = functools.partial(advance, "trials")
        report = audits[args.mechanism](**options)
    if args.json:
        emit_json(report.to_dict())
    else:
        _print(report)
    if not report.holds:
        complain(report.sentence)
        return 1
    return 0


def _audit_messages(
    *, trials: int, confidence: float, seed: int, construction: str, progress: Any, **options: Any
) -> AuditReport:
    """Audit a GAP that is fitted with the given options."""
    from gapgnn.attacks.audits import audit_messages
    from gapgnn.methods.gap import GAP

    estimator = GAP(noise=construction, **options)  # type: ignore[arg-type]
    return audit_messages(
        estimator, trials=trials, confidence=confidence, seed=seed, progress=progress
    )


def _print(report: AuditReport) -> None:
    from rich.table import Column, Table

    title = f"audit of {report.mechanism}"
    table = Table("", Column("epsilon", justify="right"), title=title)
    table.add_row(f"claimed, at delta {report.delta:g}", f"{report.epsilon_claimed:.4g}")
    for name, bound in report.details["bounds"].items():
        table.add_row(f"at least, by {name}", f"{bound:.4g}")
    out = console(to_stderr=False)
    out.print(table)
    for check in report.checks:
        out.print(f"{check.name}: {check.found:.6g}, accounted {check.accounted:.6g}")
    if report.holds:
        out.print(report.sentence)
