"""`gapgnn audit fit`: train a method once with canaries and bound epsilon by their scores."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from gapgnn.cli.attack import SAVED
from gapgnn.cli.data import add_data_options, load_graph
from gapgnn.cli.main import Parser
from gapgnn.cli.options import add_method_options, add_options, level_of, method_options, number
from gapgnn.cli.output import complain, console, emit_json, note, phase_bars, say
from gapgnn.errors import InputError
from gapgnn.methods import method_class, method_config, methods, recommended_method

if TYPE_CHECKING:
    from gapgnn.audits import AuditReport
    from gapgnn.graph import Graph
    from gapgnn.methods import NodeClassifier
    from gapgnn.training import Callback

TEXT = "one whole fit, by the scores of canaries in its graph"
METHODS = ("gap", "label-gap", "node-label-gap", "progap")
EXAMPLES = """\
examples:
  gapgnn audit fit --level edge --epsilon 4
  gapgnn audit fit --dataset facebook100/Cornell5 --level node --epsilon 8 --json
  gapgnn audit fit gap --level edge --epsilon 4 --canaries 400
  gapgnn audit fit --edges friends.csv --nodes people.csv --label year --epsilon 1
  gapgnn audit fit --model model               a saved model's configuration; kept in its folder

The shipped method is trained on a graph with canaries, which are in or out by a secret coin, and
saved; the released rows of the folder show how well canaries are distinguished. Canaries are edges
between training people, or records at node level. On a data set nothing is charged. On your own
tables it is a fit like any other: its price is shown and charged, and nothing is saved. Exit code
1: the lower bound is above the claim, or an exact check found a fault.
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "canaries": number(1_000, "canaries", metavar="N"),
    "confidence": number(0.95, "of the lower bound"),
    "runs": {
        "type": int,
        "metavar": "N",
        "help": "a bound above the claim is confirmed by further fits, so many in all (default 3; "
        "1 on your own tables)",
    },
}


def configure(parser: Parser) -> None:
    """Add one subcommand per method, and one for a saved model."""
    parser.epilog = EXAMPLES
    parser.default_choice = _target_of
    parser.later = _declare_targets


def _target_of(words: Sequence[str]) -> str:
    """Return what is audited where no method is named."""
    if any(word.split("=")[0] == "--model" for word in words):
        return SAVED
    return recommended_method(level_of(words))


def _declare_targets(parser: Parser) -> None:
    targets = parser.add_subparsers(
        dest="method", metavar="METHOD", required=True, parser_class=Parser
    )
    shared: dict[str, Any] = {"description": TEXT, "epilog": EXAMPLES}
    known = methods()
    for name in METHODS:
        target = targets.add_parser(name, help=known[name], **shared)
        target.later = partial(_declare_options, name)
    targets.add_parser(SAVED, **shared).later = _declare_saved


def _declare_options(method: str, target: Parser) -> None:
    add_options(target.add_argument_group("audit"), OPTIONS)
    add_data_options(target)
    add_method_options(target, method_config(method))
    output = target.add_argument_group("run and output")
    output.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    output.add_argument("--json", action="store_true", help="print one JSON object")


def _declare_saved(target: Parser) -> None:
    target.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="FOLDER",
        dest="saved",
        help="audit the configuration of this saved model, and keep the result in its folder",
    )
    add_options(target.add_argument_group("audit"), OPTIONS)
    add_data_options(target)
    output = target.add_argument_group("run and output")
    output.add_argument("--seed", type=int, default=0, help="of coins; never of noise")
    output.add_argument("--device", default="auto", metavar="auto|cpu|cuda")
    output.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Fit, read the folder, report; exit code 1 where the guarantee is broken."""
    from gapgnn.audits import audit_fit

    estimator, graph = _saved(args) if args.method == SAVED else _given(args)
    is_own = args.edges is not None
    with phase_bars() as bars:
        report = audit_fit(
            estimator,
            graph,
            canaries=args.canaries,
            confidence=args.confidence,
            runs=args.runs,
            own_ledger=is_own,
            seed=args.seed,
            callback=bars if is_own else _unpriced(bars),
        )
    if args.method == SAVED:
        _keep(args, report)
    if args.json:
        emit_json(report.to_dict())
    else:
        _print(report)
        if is_own:
            note("Note: the fit was charged. These figures are for the curator only.")
    if not report.holds:
        complain(report.sentence)
        return 1
    return 0


def _unpriced(bars: Callback) -> Callback:
    """Return the bars of a fit that is charged to nobody: a price would be misunderstood."""
    return cast("Callback", SimpleNamespace(start=bars.start, advance=bars.advance))


def _given(args: argparse.Namespace) -> tuple[NodeClassifier, Graph]:
    """Return the estimator and the graph that the options choose."""
    estimator = method_class(args.method)(**method_options(args, method_config(args.method)))
    estimator.check()
    _check_data(args)
    return estimator, load_graph(args, seed=args.seed, quiet=args.json).graph


def _check_data(args: argparse.Namespace) -> None:
    if args.store is not None:
        raise InputError(
            "`--store` cannot be audited by a fit: canaries are put into a graph in memory. Give "
            "the tables, or a data set."
        )
    if args.edges is not None and getattr(args, "level", "edge") == "node":
        raise InputError(
            "`--edges` must be left out at level node: canary records would be enrolled in the "
            "ledger as people of your own. Audit the fit on a data set (`--dataset`)."
        )


def _saved(args: argparse.Namespace) -> tuple[NodeClassifier, Graph]:
    """Return an estimator with the configuration of a saved model, and a graph to train it on."""
    from sklearn.base import clone

    from gapgnn.methods import load_model

    model = load_model(args.saved, device=args.device)
    if model.method not in METHODS or model.level == "none":
        raise InputError(
            f"`model` must be of {', '.join(METHODS)} at level edge or node. Got {model.method} at "
            f"level {model.level}."
        )
    args.level = model.level
    _check_data(args)
    card, estimator = model.card_, clone(model)
    chosen: dict[str, Any] = {"delta": card.delta, "insecure_noise_seed": None}
    if model.level == "node":
        chosen["relation"] = card.relation.name
    estimator.set_params(**chosen)
    graph = load_graph(args, seed=model.seed, quiet=args.json, level=model.level).graph
    return estimator, graph


def _keep(args: argparse.Namespace, report: AuditReport) -> None:
    """Write the result into the folder; of the curator's own tables only whether it holds."""
    from gapgnn.methods import keep_audit

    words = ["gapgnn", "audit", "fit", "--model", str(args.saved)]
    words += ["--canaries", str(args.canaries)]
    result = report.to_dict()
    if args.dataset is not None:
        words += ["--dataset", args.dataset]
    if args.edges is not None:
        kept = ("mechanism", "epsilon_claimed", "epsilon_lower_bound", "confidence", "trials")
        result = {name: result[name] for name in (*kept, "holds", "delta")}
    keep_audit(args.saved, audit="fit", command=shlex.join(words), results=[result])


def _print(report: AuditReport) -> None:
    from rich.table import Column, Table

    details = report.details
    title = f"audit of one fit: {details['method']}, level {details['level']}, {details['dataset']}"
    table = Table("", Column("epsilon", justify="right"), title=title)
    table.add_row(f"claimed, at delta {report.delta:g}", f"{report.epsilon_claimed:.4g}")
    for name, bound in details["bounds"].items():
        table.add_row(f"at least, by {name}", f"{bound:.4g}")
    shown = {"black_box": "predictions alone", "dp_sgd": "the trained classifier alone"}
    for name, text in shown.items():
        if name in details:
            bound = details[name]["epsilon_lower_bound"]
            table.add_row(f"at least, by {text}", f"{bound:.4g}")
    console(to_stderr=False).print(table)
    say(
        f"{report.trials:,} canaries, {details['canaries_in']:,} of them in the graph; "
        f"{details['references']:,} references; {details['hops']} released hops."
    )
    if details.get("residual_noise", 1.0) > 1.1:
        say(
            f"Rows differ from what is known by {details['residual_noise']:.3g} times the noise: "
            "the auditor cannot explain them, and the bound says less than it could."
        )
    broken = [check for check in report.checks if not check.holds]
    for check in broken:
        say(f"{check.name}: {check.found:.6g}, accounted {check.accounted:.6g}")
    say(f"Exact checks: {len(report.checks) - len(broken)} of {len(report.checks)} hold.")
    if report.holds:
        say(report.sentence)
