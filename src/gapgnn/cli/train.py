"""`gapgnn train`: fit a method, print its accuracy and its guarantee, optionally save it."""

from __future__ import annotations

import argparse
import resource
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import (
    DEFAULT_DATASET,
    add_curator_option,
    add_data_options,
    add_word_options,
    check_options,
    load_graph,
    mention_left_out,
    shown_tables,
)
from gapgnn.cli.ledger import spent_sentence
from gapgnn.cli.main import Parser, in_options
from gapgnn.cli.options import add_method_options, level_of, method_options
from gapgnn.cli.output import begin, console, note, phase_bars, say
from gapgnn.cli.prices import afterwards
from gapgnn.cli.receipts import emit_result, receipt
from gapgnn.cli.scale import (
    add_ray_option,
    at_scale,
    check_ray,
    check_space,
    how_to_go_on,
    open_checkpoint,
)
from gapgnn.errors import InputError, PrivacyError, check_all
from gapgnn.methods import (
    method_class,
    method_config,
    methods,
    methods_left_out,
    recommended_method,
)

if TYPE_CHECKING:
    from rich.table import Table

    from gapgnn.graph import Graph
    from gapgnn.methods import NodeClassifier
    from gapgnn.training import Callback

SHOWN_CLASSES = 8
# Parts of the result that are computed from labels without noise.
FROM_LABELS = ("test_accuracy", "metrics", "references", "shortcomings", "graph_contribution")

EXAMPLES = """\
examples:
  gapgnn train {method}
  gapgnn train {method} --dataset facebook100/Cornell5 --level {level} --epsilon 8 --repeats 10
  gapgnn train {method} --edges friends.csv --nodes people.csv --label year --out model
  gapgnn train {method} --edges e.csv --nodes n.csv --label risk --delimiter semicolon --out model
  gapgnn train {method} --config run.toml --json
"""
# Below node level alone.
_EXAMPLE_LEVELS = {"label-gap": "edge"}
OVERVIEW = """\
examples:
  gapgnn train                                                the recommended method, built-in graph
  gapgnn train --edges friends.csv --nodes people.csv --label year --epsilon 1 --plan
  gapgnn train --edges friends.csv --nodes people.csv --label year --epsilon 1 --out model
  gapgnn train gap --dataset facebook100/Cornell5 --level node --epsilon 8
  gapgnn train label-gap --help                               all options of a method
"""


def configure(parser: Parser) -> None:
    """Add one subcommand per method, with the fields of its configuration as options."""
    parser.default_choice = lambda words: recommended_method(level_of(words))
    commands = parser.add_subparsers(dest="method", metavar="METHOD", required=True)
    left_out = [f"left out: {name!r}, {why}" for name, why in methods_left_out().items()]
    parser.epilog = "\n".join([OVERVIEW, *left_out])
    for name, text in methods().items():
        examples = EXAMPLES.format(method=name, level=_EXAMPLE_LEVELS.get(name, "node"))
        child = commands.add_parser(name, help=text, description=text, epilog=examples)
        child.later = partial(_declare, name)


def _declare(name: str, child: Parser) -> None:
    """Add the options of one method."""
    add_data_options(child)
    add_word_options(child)
    add_method_options(child, method_config(name))
    output = child.add_argument_group("run and output")
    output.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    output.add_argument("--out", type=Path, metavar="FOLDER", help="save the model here")
    output.add_argument(
        "--no-save",
        action="store_true",
        help="on your own data: train, charge the budget, print the result and drop the model",
    )
    add_curator_option(output)
    add_ray_option(output)
    output.add_argument(
        "--resume",
        action="store_true",
        help="with --out: go on with the interrupted run of the same command; what it finished "
        "is kept in OUT.unfinished, and nothing is charged or drawn again",
    )
    output.add_argument(
        "--plan",
        action="store_true",
        help="print what would be released, with which noise and at which price, and stop: nothing "
        "is charged, trained or written",
    )
    output.add_argument("--json", action="store_true", help="print one JSON object")
    output.add_argument(
        "--audit",
        action="store_true",
        help="attack the mechanisms this model used and put the measured lower bounds on its "
        "privacy card; exit 1 if one exceeds the claim",
    )
    output.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also train references: GAP of the paper, which is charged too, features only, "
        "which at node level is charged too, and without privacy, which the guarantee does not "
        "cover (default: all for the built-in graph, features only for your own data except at "
        "node level)",
    )


def execute(args: argparse.Namespace) -> int:
    """Load, fit, save, report."""
    tables = shown_tables(args)
    data = args.dataset or args.store or tables or DEFAULT_DATASET
    begin(f"Training {args.method}: loading {data} and the libraries")
    from gapgnn.privacy.ledger import Ledger, People

    estimator = method_class(args.method)(**method_options(args, method_config(args.method)))
    # Everything that can fail without reading private data fails here, before the charge, at once.
    check_all(
        estimator.check,
        lambda: _check_out(args),
        lambda: check_ray(args),
        lambda: check_options(args, needs_label=True),
        lambda: open_checkpoint(args),
        Ledger(estimator.ledger).check,
    )
    checkpoint = open_checkpoint(args)
    receipt().ledger, receipt().folder = Ledger(estimator.ledger), args.out
    loaded = load_graph(args, seed=args.seed, quiet=args.json)
    graph = loaded.graph
    receipt().people = People.of(graph)
    if args.plan:
        return _show_plan(estimator, graph, args)
    check_space(args.out, estimator.space_needed(graph))
    wanted = _wanted_references(args)
    # One estimate for all trainings of this command.
    bars = phase_bars(1 + len(wanted), says_total=not args.json)
    try:
        with bars, at_scale(args, graph, bars) as placed:
            estimator.fit(
                placed, callback=bars, checkpoint=checkpoint, curator_only=args.curator_only
            )
        audits = _audited(estimator) if args.audit else []
        if args.out is not None:
            estimator.save(args.out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_go_on(checkpoint)) from None
    finally:
        if checkpoint is not None:
            checkpoint.close()
    if checkpoint is not None:
        checkpoint.remove()
    references: dict[str, NodeClassifier] = {}
    if wanted:
        with bars:
            references = _references(estimator, graph, wanted, bars, args.curator_only)
    if args.json:
        emit_result(_result(estimator, graph, references))
    else:
        _print_table(estimator, graph, references, args.out)
        mention_left_out(loaded)
    return 0 if all(audit["holds"] for audit in audits) else 1


def _check_out(args: argparse.Namespace) -> None:
    """Refuse a folder that could not be written, and to lose a model of the user's data."""
    from gapgnn.methods import check_new_folder

    is_own = args.edges is not None or args.store is not None
    if args.out is not None and args.no_save:
        raise InputError("`--no-save` must not come with `--out`. Got both.")
    if args.out is not None:
        check_new_folder(args.out)
    elif is_own and not args.no_save and not args.plan and args.level != "none":
        raise InputError(
            "`--out` must say where the model goes: training on your own data is charged to its "
            "budget. Got none; give `--no-save` to drop the model."
        )


def _audited(estimator: NodeClassifier) -> list[dict[str, Any]]:
    """Audit what the model used and put the findings on its card (privacy page, section 8)."""
    from gapgnn.audits import audit_model

    audits = audit_model(estimator)
    for audit in audits:
        estimator.card_ = estimator.card_.with_audit(audit)
        verdict = "holds" if audit["holds"] else "BROKEN"
        console(to_stderr=True).print(
            f"audit of {audit['mechanism']}: {verdict}; claimed epsilon "
            f"{audit['epsilon_claimed']:.3g}, measured at least {audit['epsilon_lower_bound']:.3g}"
        )
    return audits


# Parameters about classes, which hold for every method.
_OF_CLASSES = ("class_weight", "threshold", "metric", "positive")
PAPER, FEATURES_ONLY, NOT_PRIVATE = "GAP (paper)", "features only (MLP)", "without privacy"


def _wanted_references(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the references: on the user's data only those that are free and fast to train."""
    if args.method == "mlp" and not args.compare:
        return ()
    is_recommended = args.method == recommended_method(args.level) and args.level != "none"
    everything = (*([PAPER] if is_recommended else []), FEATURES_ONLY, NOT_PRIVATE)
    if args.compare is not None:
        return everything if args.compare else ()
    if args.edges is not None or args.store is not None:
        return () if args.level == "node" else (FEATURES_ONLY,)
    is_builtin = args.dataset in (None, "social")
    return everything if is_builtin and not args.json else ()


def _untrained(estimator: NodeClassifier, wanted: Sequence[str]) -> dict[str, NodeClassifier]:
    """Return GAP of the paper and features only at the same level, and a model without privacy."""
    from gapgnn.methods import GAP, MLP

    shared = {
        key: value
        for key, value in estimator.get_params().items()
        if key in ("level", "relation", "epsilon", "delta", "repeats", "split", "seed")
        or key in ("device", "ledger", "noise", "insecure_noise_seed", *_OF_CLASSES)
    }
    free = {**estimator.get_params(), "level": "none", "relation": "auto"}
    without = method_class(recommended_method("none"))
    if "none" in estimator.levels:
        without = type(estimator)
    references: dict[str, tuple[type[NodeClassifier], Mapping[str, Any]]] = {
        PAPER: (GAP, shared),
        FEATURES_ONLY: (MLP, shared),
        NOT_PRIVATE: (without, free),
    }
    return {
        name: _reference(method, parameters)
        for name, (method, parameters) in references.items()
        if name in wanted and not (name == NOT_PRIVATE and estimator.level == "none")
    }


def _references(
    estimator: NodeClassifier,
    graph: Graph,
    wanted: Sequence[str],
    callback: Callback,
    curator_only: str | None,
) -> dict[str, NodeClassifier]:
    """Train the references.

    GAP, and at node level the features-only model, are charged like any other.
    """
    found: dict[str, NodeClassifier] = {}
    for name, model in _untrained(estimator, wanted).items():
        look = curator_only if name == NOT_PRIVATE else None
        try:
            found[name] = model.fit(graph, callback=callback, curator_only=look)
        except (InputError, PrivacyError) as error:
            # The result itself is paid for and must be shown; a reference may have a price.
            console(to_stderr=True).print(f"No reference {name!r}: {error}", markup=False)
    return found


def _reference(method: type[NodeClassifier], parameters: Mapping[str, Any]) -> NodeClassifier:
    """Return a reference with those parameters of the command that it uses."""
    known = {part.name for part in fields(method)}
    own = {name: value for name, value in parameters.items() if name in known}
    unused = method(**own).unused_parameters()
    return method(**{name: value for name, value in own.items() if name not in unused})


def _show_plan(estimator: NodeClassifier, graph: Graph, args: argparse.Namespace) -> int:
    """Print what a training would release and cost; nothing is charged or read beyond that."""
    from gapgnn.privacy.ledger import Ledger, People

    plan = estimator.plan_for(graph)
    ledger, people = Ledger(estimator.ledger), People.of(graph)
    after = afterwards(ledger, people, plan.promise, count=estimator.repeats)
    compared = {
        name: model.guarantee(graph)
        for name, model in _untrained(estimator, _wanted_references(args)).items()
    }
    charged = {name: price for name, price in compared.items() if price.events}
    if args.json:
        prices = {n: {"epsilon": one.epsilon, "delta": one.delta} for n, one in charged.items()}
        found = {"plan": plan.to_dict(), "repeats": estimator.repeats, "compared": prices}
        found |= {"left": after.lines, "after": after.to_list(), "refused": after.refusal}
        emit_result(found)
        return 0
    say(str(plan))
    if estimator.repeats > 1 and plan.promise.events:
        say(f"repeats: {estimator.repeats}, each charged this price")
    for name, price in charged.items():
        say(
            f"for comparison: {name}, charged epsilon {price.epsilon:.6g}, delta {price.delta:.3g} "
            "too; left out with --no-compare"
        )
    for line in after.lines:
        say(f"left: {line}")
    if after.refusal:
        say(f"it would be refused: {after.refusal}")
    return 0


def _shortcomings(estimator: NodeClassifier, references: Mapping[str, NodeClassifier]) -> list[str]:
    from gapgnn.training import shortcomings

    ignoring = references.get(FEATURES_ONLY)
    reads_graph = ignoring is not None and estimator.method != "mlp"
    return shortcomings(
        estimator.repeat_metrics_,
        ignoring.repeat_metrics_ if ignoring is not None and reads_graph else (),
        metric=estimator.metric,
        threshold=estimator.threshold,
    )


def _result(
    estimator: NodeClassifier, graph: Graph, references: Mapping[str, NodeClassifier]
) -> dict[str, Any]:
    from gapgnn.evaluation import shown_interval
    from gapgnn.training import mean_metrics

    runs = estimator.repeat_scores_
    card = estimator.card_
    phases = ("total", "calibrate", "encoder", "aggregate", "classifier")
    return {
        "method": estimator.method,
        "level": card.level,
        "relation": card.relation.name,
        "dataset": graph.name,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "noise_multiplier": card.noise_multiplier,
        "test_accuracy": {
            "mean": sum(runs) / len(runs),
            "ci95": shown_interval(runs),
            "runs": runs,
        },
        "metrics": mean_metrics(estimator.repeat_metrics_),
        "threshold": estimator.threshold_,
        "graph_contribution": _contribution(estimator, references),
        "references": {
            name: mean_metrics(model.repeat_metrics_) for name, model in references.items()
        },
        "shortcomings": _shortcomings(estimator, references),
        "seconds": {phase: round(estimator.seconds_.get(phase, 0.0), 4) for phase in phases},
        "device": estimator.device_,
        "peak_memory_mb": _peak_memory_mb(),
        "is_private_release": card.is_private_release,
        "edges_unread": card.edges_unread,
        # Computed from private labels or lists without noise: not covered by the promise.
        "curator_only": list(FROM_LABELS) if card.level == "node" or card.own else [],
        "noise": estimator.noise,
        "split": estimator.split if len(runs) > 1 else "single",
    }


def _peak_memory_mb() -> float:
    """Return the largest resident size of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _print_table(
    estimator: NodeClassifier,
    graph: Graph,
    references: Mapping[str, NodeClassifier],
    saved: Path | None,
) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gapgnn.privacy.card import guarantee_sentence
    from gapgnn.training import mean_metrics

    out = console(to_stderr=False)
    # What a level protects is not counted beside its promise.
    title = graph.name
    if estimator.level != "node":
        title += f": {graph.num_nodes:,} nodes"
    if estimator.level == "none":
        title += f", {sum(one.num_arcs for one in graph.edge_types):,} arcs"
    columns = ("test nodes", "accuracy", "balanced", "F1", "AUC", "epsilon", "delta")
    table = Table(*columns, title=escape(title))
    own = f"{estimator.card_.method}, level {estimator.level}"
    for name, model in {own: estimator, **references}.items():
        card, mean = model.card_, mean_metrics(model.repeat_metrics_)
        epsilon = "inf" if card.epsilon is None else f"{card.epsilon:.3g}"
        delta = "-" if not card.epsilon else f"{card.delta:.0e}"
        figures = [_percent(mean["balanced_accuracy"]), _percent(mean["macro_f1"])]
        auc = "-" if mean["auc"] is None else f"{mean['auc']:.3f}"
        table.add_row(name, _accuracy(model), *figures, auc, epsilon, delta)
    mean = mean_metrics(estimator.repeat_metrics_)
    largest = max(mean["per_class"], key=lambda name: mean["per_class"][name]["support"])
    table.add_row(f"always {largest!r}", _percent(mean["majority"]), "-", "-", "0.500", "0", "-")
    out.print(table)
    for line in _by_class(mean):
        out.print(line, markup=False)
    if _shows_ranking(estimator, mean):
        out.print(_ranking_table({own: estimator, **references}, mean["ranking"]))
    if (sentence := _contribution_sentence(estimator, references)) is not None:
        out.print(sentence, markup=False)
    out.print(guarantee_sentence(estimator.card_))
    _mention_charge(estimator)
    for warning in estimator.card_.warnings:
        note(f"Note: {warning}")
    for sentence in _shortcomings(estimator, references):
        note(f"Warning: {in_options(sentence, ['--threshold'])}")
    if estimator.level == "node" or estimator.card_.own:
        read = "labels" if estimator.level == "node" else "lists"
        note(f"Note: the accuracies are computed from private {read}, for the curator only.")
    if saved is not None:
        out.print(f"Saved to {saved}", markup=False, soft_wrap=True)


def _shows_ranking(estimator: NodeClassifier, mean: Mapping[str, Any]) -> bool:
    """Whether to print ranking metrics: a positive class is named, or one of two is rare."""
    from gapgnn.training import RARE

    ranking = mean["ranking"]
    if ranking is None or estimator.positive is not None:
        return ranking is not None
    return len(mean["per_class"]) == 2 and ranking["share"] < RARE


def _ranking_table(models: Mapping[str, NodeClassifier], first: Mapping[str, Any]) -> Table:
    """Return the ranking metrics of each model for the positive class."""
    from rich.markup import escape
    from rich.table import Table

    from gapgnn.training import TOP_SHARES, mean_metrics

    shares = {name: f"top {share:.0%}" for name, share in TOP_SHARES.items()}
    first_top, top = next(iter(shares.items()))
    found = f"{_count(first['support'])} of the test nodes, {_percent(first['share'])}"
    table = Table(
        "test nodes",
        "average\nprecision",
        *(f"recall in\n{text}" for text in shares.values()),
        f"precision\nin {top}",
        f"lift in\n{top}",
        title=escape(f"Nodes of class {first['positive']!r} ({found})"),
    )
    for name, model in models.items():
        ranking = mean_metrics(model.repeat_metrics_)["ranking"]
        if ranking is None:
            continue
        best = ranking["top"][first_top]
        recalls = [_percent(ranking["top"][share]["recall"]) for share in shares]
        reached = f"{ranking['average_precision']:.3f}"
        lift = f"{best['lift']:.1f}"
        table.add_row(name, reached, *recalls, _percent(best["precision"]), lift)
    guessed = [_percent(share) for share in TOP_SHARES.values()]
    table.add_row("guessing", f"{first['share']:.3f}", *guessed, _percent(first["share"]), "1.0")
    return table


def _count(number: float) -> str:
    """Write a number of nodes, which is a mean over repeats."""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


def _contribution(
    estimator: NodeClassifier, references: Mapping[str, NodeClassifier]
) -> dict[str, float] | None:
    """Return the gain of each metric over features alone; None without that model."""
    from gapgnn.training import METRICS

    alone = references.get(FEATURES_ONLY)
    if alone is None or estimator.method == "mlp":
        return None
    found = {}
    for metric in METRICS:
        pairs = zip(estimator.repeat_metrics_, alone.repeat_metrics_, strict=True)
        values = [(own.find(metric), other.find(metric)) for own, other in pairs]
        known = [own - other for own, other in values if own is not None and other is not None]
        if known:
            found[metric] = sum(known) / len(known)
    return found


def _contribution_sentence(
    estimator: NodeClassifier, references: Mapping[str, NodeClassifier]
) -> str | None:
    """Return a sentence on the gain over features alone, by the metric of the model."""
    from gapgnn.training import mean_metrics

    contribution = _contribution(estimator, references)
    if contribution is None:
        return None
    is_rare = _shows_ranking(estimator, mean_metrics(estimator.repeat_metrics_))
    metric = estimator.metric
    if metric == "auto":
        metric = "average_precision" if is_rare else "accuracy"
    if metric not in contribution:
        return None
    runs = [run.get(metric) for run in estimator.repeat_metrics_ if run.find(metric) is not None]
    mean, added = sum(runs) / len(runs), contribution[metric]
    name = {"auc": "AUC", "macro_f1": "macro F1"}.get(metric, metric.replace("_", " "))
    name = name.replace(" 1 percent", " 1%").replace(" 5 percent", " 5%")
    texts = [f"{added:+.3f}", f"{mean - added:.3f}", f"{mean:.3f}"]
    if metric not in ("auc", "average_precision"):
        texts = [f"{100 * added:+.1f} points", _percent(mean - added), _percent(mean)]
    change, without, reached = texts
    return (
        f"The graph adds {change} to the {name} of features alone: {without} without it, {reached} "
        "with it."
    )


def _mention_charge(estimator: NodeClassifier) -> None:
    """Print whose budget was charged, in which ledger, and what is left of it."""
    from gapgnn.privacy.ledger import Ledger

    paid = estimator.card_.ledger
    if paid is None:
        return
    ledger = Ledger(estimator.ledger)
    charges = ledger.entries()
    names = list(dict.fromkeys(one.population for one in charges if one.id == paid.charge_id))
    note(f"Charged to {' and '.join(names)}: {paid}.")
    for row in ledger.summary():
        is_known = row.charges == 1 and row.granted_epsilon is None
        if row.population in names and row.level == estimator.card_.level and not is_known:
            note(spent_sentence(row, charges))
    note(f"Ledger: {ledger.name}", is_path=True)


def _accuracy(model: NodeClassifier) -> str:
    from gapgnn.evaluation import shown_interval

    runs = model.repeat_scores_
    shown = f"{sum(runs) / len(runs):.1%}"
    if ends := shown_interval(runs):
        shown += f" ({ends[0]:.1%} to {ends[1]:.1%}, {len(runs)} repeats)"
    elif len(runs) > 1:
        shown += f" ({len(runs)} repeats)"
    return shown


def _by_class(mean: dict[str, Any]) -> list[str]:
    """Return one line about each class, of many classes those with the lowest recall."""
    figures = mean["per_class"]
    worst = sorted(figures, key=lambda name: figures[name]["recall"] or 0)[:SHOWN_CLASSES]
    lines = [
        f"  {name}: recall {_percent(figures[name]['recall'])}, "
        f"precision {_percent(figures[name]['precision'])}, "
        f"support {figures[name]['support']:,.0f}"
        for name in figures
        if name in worst
    ]
    few = f" (the {SHOWN_CLASSES} with the lowest recall)" if len(figures) > SHOWN_CLASSES else ""
    error = f"calibration error {mean['calibration_error']:.1%}"
    return [f"By class{few}, {error}:", *lines]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
