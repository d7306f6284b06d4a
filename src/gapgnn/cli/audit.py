"""`gapgnn audit`: attack a mechanism on canaries and bound its epsilon from below."""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gapgnn.cli import claim_audit, fit_audit, pipeline
from gapgnn.cli.main import Parser
from gapgnn.cli.options import add_options, number
from gapgnn.cli.output import complain, console, emit_json, progress_bars, say
from gapgnn.errors import CalibrationError, InputError, PrivacyError

if TYPE_CHECKING:
    from gapgnn.audits import AuditReport
    from gapgnn.methods import NodeClassifier

MECHANISMS = {
    "aggregation": "the noisy hops, with canary edges or records",
    "dpsgd": "DP-SGD, with canary examples of the clipped norm",
    "sampler": "the bound on out-degrees, on the hub graph",
    "edges": "randomised edges (ARR, EdgeRand, LapGraph), bit by bit",
    "subgraphs": "the training of sage at node level, where a record is part of many examples",
    "messages": "all hops of label-gap (edge) or node-label-gap (node), read from the fitted model",
    "labels": "everybody's randomised label, as vote releases it at node level",
    "mean-degree": "the noisy mean out-degree, by which node-label-gap splits its budget",
}

MODEL_TRIALS = 20_000
_LEVEL: dict[str, Any] = {"choices": ["edge", "node"], "default": "edge"}
_RELATION: dict[str, Any] = {"choices": ["add-remove"], "default": "add-remove"}
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "aggregation": {
        "level": _LEVEL,
        "relation": {
            "default": "auto",
            "help": "edge: directed, undirected, or up to so many links of one person (5-edges, "
            "5-arcs); node: add-remove or replace (default: undirected or add-remove)",
        },
        "hops": number(2, "noisy hops"),
        "max-degree": number(10, "D at node level"),
        "edge-types": number(1, "edge types"),
        "protects": {
            "choices": ["auto", "each", "any"],
            "default": "auto",
            "help": "with several edge types: neighbours differ in one edge of each type, or in "
            "one edge of any type (default any, node: each)",
        },
        "without-union": {
            "action": "store_true",
            "help": "with any: no sum over the union of the edge types, as in gap",
        },
        "weighted": {"action": "store_true", "help": "edges have weights"},
        "normalised": {
            "action": "store_true",
            "help": "node: degree-normalised messages (divided by the square root of the sender's "
            "out-degree) instead of a bounded out-degree",
        },
        "symmetrised": {
            "action": "store_true",
            "help": "edge: the adjacency is symmetrised: messages are sent along arcs and against "
            "them",
        },
        "trials": number(100_000, "independent trials"),
    },
    "dpsgd": {
        "relation": {**_RELATION, "choices": ["add-remove", "replace"]},
        "steps": number(50, "steps of a training"),
        "sampling-rate": number(0.1, "of the Poisson batches"),
        "clip": number(1.0, "clipping norm"),
        "trials": number(100_000, "independent trials"),
    },
    "sampler": {
        "relation": _RELATION,
        "max-degree": number(4, "the bound D"),
        "sources": number(50, "people who share their targets"),
        "trials": number(20_000, "independent trials"),
    },
    "edges": {
        "perturbation": {
            "choices": ["arr", "edgerand", "lapgraph"],
            "default": "arr",
            "help": "default arr",
        },
        "relation": {"choices": ["undirected", "directed"], "default": "undirected"},
        "directed": {
            "action": "store_const",
            "const": True,
            "help": "with relation undirected: the graph has directions, both arcs of a pair are "
            "protected",
        },
        "density": {
            "type": float,
            "default": 0.005,
            "help": "share of the pairs that are connected (default 0.005, as in real graphs)",
        },
        "trials": number(1_000_000, "independent trials"),
    },
    "subgraphs": {
        "relation": _RELATION,
        "steps": number(20, "steps of a training"),
        "sampling-rate": number(0.2, "of the Poisson batches"),
        "max-degree": number(4, "the bound D"),
        "clip": number(1.0, "clipping norm"),
        "trials": number(20_000, "independent trials"),
    },
    "messages": {
        "level": _LEVEL,
        "relation": {"default": "auto", "help": "as for aggregation (default auto)"},
        "hops": {"type": int, "help": "edge: noisy hops (default 2)"},
        "own": {
            "choices": ["nothing", "features", "record"],
            "help": "node: what a prediction reads of the node's own record (default features)",
        },
        "role": {
            "choices": ["both", "training", "others"],
            "default": "both",
            "help": "node: whose record is in question, of those who train or of the others, who "
            "are in a hop of their own (default both, the worse is reported)",
        },
        "trials": number(100_000, "independent trials"),
    },
    "labels": {
        "relation": {**_RELATION, "choices": ["add-remove", "replace"]},
        "classes": number(3, "classes"),
        "trials": number(100_000, "people whose label is guessed"),
    },
    "mean-degree": {
        "relation": {**_RELATION, "choices": ["add-remove", "replace"]},
        "trials": number(20_000, "independent releases"),
    },
}
# What a release costs without any delta, and what has no one noise multiplier.
_PURE = ("edges", "labels", "mean-degree")

EXAMPLES = """\
examples:
  gapgnn audit aggregation --level edge --relation undirected --epsilon 1 --hops 2
  gapgnn audit aggregation --relation 5-edges --epsilon 1
  gapgnn audit aggregation --level node --max-degree 10 --epsilon 8
  gapgnn audit aggregation --edge-types 2 --weighted --epsilon 1
  gapgnn audit dpsgd --epsilon 1 --steps 50 --sampling-rate 0.1 --trials 20000
  gapgnn audit sampler --epsilon 4
  gapgnn audit edges --perturbation arr --epsilon 2 --json
  gapgnn audit subgraphs --epsilon 4
  gapgnn audit messages --level node --own nothing --epsilon 4
  gapgnn audit labels --epsilon 2 --classes 3
  gapgnn audit mean-degree --epsilon 0.5
  gapgnn audit fit --level edge --epsilon 4
  gapgnn audit claim python their_code.py   somebody else's program
  gapgnn audit pipeline train --level node --epsilon 4
  gapgnn audit --model model                every mechanism of a saved model, kept in its folder
  gapgnn audit pipeline --model model       the whole command that made it

Runs the shipped mechanism on canaries, never on your data. Exit code 0: no violation was found,
which is evidence and not a proof. Exit code 1: the guarantee is broken, with the stated confidence.
"""


def configure(parser: Parser) -> None:
    """Add one subcommand per mechanism."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="instead of a mechanism: audit all that this saved model used, at its very noise, and "
        "keep the results in its folder, for `gapgnn report FOLDER`",
    )
    parser.add_argument(
        "--trials",
        dest="model_trials",
        type=int,
        metavar="TRIALS",
        help=f"of each audit, with --model (default {MODEL_TRIALS})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    mechanisms = parser.add_subparsers(dest="mechanism", metavar="MECHANISM")
    pipeline.configure(
        mechanisms.add_parser("pipeline", help=pipeline.TEXT, description=pipeline.TEXT)
    )
    fit_audit.configure(
        mechanisms.add_parser(
            "fit",
            help=fit_audit.TEXT,
            description=fit_audit.TEXT,
        )
    )
    claim_audit.configure(
        mechanisms.add_parser("claim", help=claim_audit.TEXT, description=claim_audit.TEXT)
    )
    for name, text in MECHANISMS.items():
        child = mechanisms.add_parser(name, help=text, description=text, epilog=EXAMPLES)
        child.add_argument("--epsilon", type=float, default=1.0, help="claimed (default 1)")
        if name not in _PURE:
            child.add_argument("--delta", type=float, default=1e-5, help="claimed (default 1e-5)")
        if name not in (*_PURE, "messages"):
            child.add_argument(
                "--noise-multiplier",
                type=float,
                help="audit this noise against what it is accounted at, instead of --epsilon",
            )
        add_options(child, OPTIONS[name])
        child.add_argument(
            "--confidence", type=float, default=0.95, help="of the lower bound (default 0.95)"
        )
        child.add_argument(
            "--noise",
            choices=["safe", "fast"],
            default="safe",
            help="which noise to audit (default safe)",
        )
        child.add_argument("--seed", type=int, default=0, help="of the coins; never of noise")
        # Suppressed, or its default would overwrite what stood before the mechanism's name.
        child.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object"
        )


def execute(args: argparse.Namespace) -> int:
    """Run the audit and report; a broken guarantee is exit code 1."""
    if args.mechanism is None:
        return _audit_folder(args)
    if args.model_trials is not None:
        raise InputError(
            f"`--trials` must follow the mechanism's name. Got it before {args.mechanism}."
        )
    if args.mechanism == "fit":
        return fit_audit.execute(args)
    if args.mechanism == "claim":
        return claim_audit.execute(args)
    if args.mechanism == "pipeline":
        return pipeline.execute(args)
    if args.model is not None:
        raise InputError(
            "`--model` must come without a mechanism: all mechanisms of the model are audited. "
            f"Got {args.mechanism}."
        )
    from gapgnn import audits as audit
    from gapgnn.privacy import check_epsilon

    if (epsilon := getattr(args, "epsilon", None)) is not None:
        check_epsilon(epsilon)
    audits: dict[str, Callable[..., AuditReport]] = {
        "aggregation": audit.audit_aggregation,
        "dpsgd": audit.audit_dpsgd,
        "sampler": audit.audit_sampler,
        "edges": audit.audit_edges,
        "subgraphs": audit.audit_subgraphs,
        "messages": _audit_messages,
        "labels": audit.audit_labels,
        "mean-degree": audit.audit_mean_degree,
    }
    ours = ("mechanism", "json", "model", "model_trials", "verbosity")
    options = {k: v for k, v in vars(args).items() if k not in ours}
    with progress_bars("trials", "MofNCompleteColumn") as advance:
        advance("trials", 0, args.trials)
        options["progress"] = functools.partial(advance, "trials")
        try:
            report = audits[args.mechanism](**options)
        except CalibrationError:
            # What was asked for, not what was found.
            raise
        except PrivacyError as error:
            # On canaries of our own nothing may be refused: a guard that stops them is a finding.
            complain(f"The guarantee of the {args.mechanism} mechanism is broken: {error}")
            return 1
    if args.json:
        emit_json(report.to_dict())
    else:
        _print(report)
    if not report.holds:
        complain(report.sentence)
        return 1
    return 0


def _audit_folder(args: argparse.Namespace) -> int:
    """Audit a saved model, and keep the results in its folder."""
    if args.model is None:
        raise InputError(
            f"a mechanism must be named ({', '.join(('pipeline', *MECHANISMS))}), or a saved model "
            "(`--model FOLDER`). Got neither."
        )
    found = audit_saved(args.model, trials=args.model_trials or MODEL_TRIALS)
    holds = all(audit["holds"] for audit in found.audits)
    if args.json:
        values = {"model": str(args.model), "holds": holds and not found.left_out}
        emit_json({**values, "audits": found.audits, "without_audit": found.left_out})
    else:
        _print_found(found.audits, args.model)
    if not holds:
        broken = ", ".join(audit["mechanism"] for audit in found.audits if not audit["holds"])
        complain(f"The guarantee of this model is broken: {broken}.")
    return 0 if holds and not found.left_out else 1


class Audited(NamedTuple):
    """What was found of a saved model, and which of its events no audit covers."""

    audits: list[dict[str, Any]]
    left_out: list[str]


def audit_saved(folder: Path, *, trials: int = MODEL_TRIALS) -> Audited:
    """Audit all mechanisms of a saved model on canaries, and keep the results in its folder."""
    from gapgnn.audits import audit_model, events_without_audit
    from gapgnn.methods import keep_audit, load_model

    model = load_model(folder)
    if not model.card_.events:
        why = "has no guarantee" if model.level == "none" else "released nothing on private data"
        raise InputError(f"`model` must have released something. Got {str(folder)!r}, which {why}.")
    left_out = list(events_without_audit(model))
    if len(left_out) == len(model.card_.events):
        raise InputError(
            f"`model` must have released something that an audit covers. Got {str(folder)!r}, with "
            f"{', '.join(left_out)} alone."
        )
    with progress_bars("auditing", "TimeElapsedColumn") as advance:
        advance("auditing", 0, None)
        found = audit_model(model, trials=trials)
    words = ["gapgnn", "audit", "--model", str(folder), "--trials", str(trials)]
    keep_audit(folder, audit="mechanisms", command=shlex.join(words), results=found)
    if left_out:
        complain(f"Not audited, as there is no audit of it: {', '.join(left_out)}.")
    return Audited(found, left_out)


def _print_found(found: Sequence[dict[str, Any]], folder: Path) -> None:
    from rich.table import Table

    heads = ("mechanism", "claimed epsilon", "measured at least", "")
    table = Table(*heads, title="audit of a saved model")
    for audit in found:
        figures = (f"{audit[key]:.4g}" for key in ("epsilon_claimed", "epsilon_lower_bound"))
        table.add_row(audit["mechanism"], *figures, "holds" if audit["holds"] else "BROKEN")
    console(to_stderr=False).print(table)
    say(f"Kept in {folder}; `gapgnn report {shlex.quote(str(folder))}` shows it.")


def _audit_messages(
    *,
    trials: int,
    level: str,
    hops: int | None,
    own: Literal["nothing", "features", "record"] | None,
    role: str,
    confidence: float,
    seed: int,
    progress: Any,
    **shared: Any,
) -> AuditReport:
    """Audit the method that sends class codes at a level, fitted with the given options."""
    from gapgnn.audits import audit_messages
    from gapgnn.methods import LabelGAP, NodeLabelGAP

    for name, value, wanted in (("hops", hops, "edge"), ("own", own, "node")):
        if value is not None and level != wanted:
            raise InputError(f"`{name}` must be left out at level {level}. Got {value!r}.")
    estimator: NodeClassifier
    if level == "edge":
        estimator = LabelGAP(hops=2 if hops is None else hops, **shared)
    else:
        estimator = NodeLabelGAP(own=own or "features", **shared)
    return audit_messages(
        estimator, trials=trials, role=role, confidence=confidence, seed=seed, progress=progress
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
