"""`gapgnn simulate`: what an epsilon gives on a graph like yours; no private data is read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.options import number_or_auto
from gapgnn.cli.output import begin, console, emit_json, note, phase_bars, say
from gapgnn.errors import InputError, check_all, check_choice, check_integer
from gapgnn.privacy import check_delta, check_epsilon, resolve_relation

if TYPE_CHECKING:
    from gapgnn.cli.output import PhaseLog
    from gapgnn.evaluation import SimulatedRow, Simulation
    from gapgnn.graph.datasets import DeclaredGraph
    from gapgnn.training import ProgressBars

EPSILONS = (1.0, 2.0, 4.0, 8.0)
# Of what is declared without a schema, and of every declaration.
_WITHOUT_SCHEMA = ("classes", "num_features")
SIZES = (
    *("num_nodes", "mean_degree", "homophily", "label_noise", "signal", "labelled"),
    *_WITHOUT_SCHEMA,
)

EXAMPLES = """\
examples:
  gapgnn simulate --like schema.toml --epsilon 1 2 4 8
  gapgnn simulate --like schema.toml --num-nodes 12500 --mean-degree 24 --homophily 0.6
  gapgnn simulate --classes 4 --num-features 30 --level node --epsilon 8 --repeats 5
  gapgnn simulate --like schema.toml --epsilon 4 --out simulated

No private data is read: there is no option for a table. The columns, classes and rates are those of
the schema, and people, neighbours and homophily are what you declare. Homophily is the share of the
edges that stay inside a class beyond chance: 0 where edges ignore classes, 1 where none leaves its
class. A public statement about such graphs, or a guess from below and one from above, will do.
The recommended method of --level is trained at each epsilon, beside features alone and a model
without privacy. The figures say what a graph of this size gives, and not what yours will.
`--out` writes the simulated tables: every command can be tried on them, and nobody is in them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn simulate`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=list(EPSILONS), help="budgets (1 2 4 8)"
    )
    parser.add_argument("--level", default="edge", help="what is protected: edge (default) or node")
    parser.add_argument(
        "--relation", default="auto", help="the neighbouring relation (default: auto)"
    )
    parser.add_argument(
        "--delta",
        type=number_or_auto,
        default="auto",
        metavar="auto|D",
        help="a number, or auto: by the declared number of edges or people (default)",
    )
    add_size_options(parser)
    run = parser.add_argument_group("run and output")
    run.add_argument("--repeats", type=int, default=1, metavar="N", help="means over N runs (1)")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of everything drawn (0)")
    run.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="where to compute")
    run.add_argument(
        "--no-compare",
        dest="compare",
        action="store_false",
        help="leave out features alone and the model without privacy",
    )
    run.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the simulated tables and their schema"
    )
    run.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    run.add_argument("--json", action="store_true", help="print one JSON object")


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that declare the public size of a graph."""
    group = parser.add_argument_group(
        "what is declared", "Public facts or assumptions about the graph. No table is read."
    )
    group.add_argument(
        "--like", type=Path, metavar="FILE", help="the schema of your node table (`gapgnn schema`)"
    )
    group.add_argument("--num-nodes", type=int, metavar="N", help="people (10000)")
    group.add_argument("--mean-degree", type=float, metavar="X", help="neighbours of each (20)")
    group.add_argument(
        "--homophily",
        type=float,
        metavar="X",
        help="share of the edges that stay inside a class beyond chance, 0 to 1 (0.5)",
    )
    group.add_argument(
        "--label-noise",
        type=float,
        metavar="X",
        help="share of the people whose edges follow another class than their own (0.1)",
    )
    group.add_argument(
        "--signal",
        type=float,
        metavar="X",
        help="how far classes differ in each column, in standard deviations (0.3)",
    )
    group.add_argument(
        "--labelled", type=float, metavar="X", help="share of the people with a label (1)"
    )
    group.add_argument("--classes", type=int, metavar="N", help="without --like: classes (6)")
    group.add_argument("--num-features", type=int, metavar="N", help="without --like: columns (20)")


def declared_of(args: argparse.Namespace) -> DeclaredGraph:
    """Return what the options of :func:`add_size_options` declare; the schema is read."""
    from gapgnn.graph.datasets import DeclaredGraph
    from gapgnn.graph.tables import Schema

    said = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    schema = None
    if args.like is not None:
        for name in _WITHOUT_SCHEMA:
            if name in said:
                option = name.replace("_", "-")
                raise InputError(f"`--{option}` must be left out: the schema declares it.")
        if not args.like.is_file():
            raise InputError(f"`--like` must be a schema file. Got {str(args.like)!r}.")
        schema = Schema.read(args.like)
    if "classes" in said:
        said["num_classes"] = said.pop("classes")
    return DeclaredGraph(schema=schema, seed=getattr(args, "seed", 0), **said)


def check_budgets(args: argparse.Namespace) -> None:
    """Refuse budgets and a relation that no method accepts, all at once."""
    level = check_choice("level", args.level, ("edge", "node"))
    checks: list[Callable[[], object]] = [
        lambda: resolve_relation(level, args.relation, is_directed=False)
    ]
    checks += [lambda one=one: check_epsilon(one) for one in args.epsilon]  # type: ignore[misc]
    if args.delta != "auto":
        checks.append(lambda: check_delta(args.delta, can_be_zero=False))
    checks.append(lambda: check_integer("repeats", getattr(args, "repeats", 1), at_least=1))
    check_all(*checks)


def execute(args: argparse.Namespace) -> int:
    """Draw tables from declarations, train on them at each epsilon, print accuracies."""
    check_budgets(args)
    declared = declared_of(args)
    if args.out is not None:
        declared_folder(args.out)
    begin("Simulating: loading the libraries")
    found = simulated(args, declared, repeats=args.repeats, compare=args.compare)
    paths = [] if args.out is None else declared.tables().write(args.out)
    if args.json:
        emit_json({**to_dict(found), "files": [str(path) for path in paths]})
        return 0
    print_rows(found)
    for path in paths:
        note(str(path), is_path=True)
    return 0


def declared_folder(folder: Path) -> None:
    """Refuse a folder that could not be written, before anything is trained."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"`--out` must be a new or empty folder. Got {str(folder)!r}.")
    if not folder.absolute().parent.is_dir():
        raise InputError(f"`--out` must lie in a folder that exists. Got {str(folder)!r}.")


def simulated(
    args: argparse.Namespace, declared: DeclaredGraph, *, repeats: int = 1, compare: bool = True
) -> Simulation:
    """Train on a simulated graph at each epsilon, and show the progress.

    Args:
        args: with level, relation, epsilon and delta.
        declared: what is simulated.
        repeats: means over so many.
        compare: also train references.
    """
    from gapgnn.evaluation import simulate

    bars = phase_bars(len(args.epsilon) + 2 * compare, says_total=not args.json)
    with bars:
        return simulate(
            declared,
            epsilons=args.epsilon,
            level=args.level,
            relation=args.relation,
            delta=None if args.delta in (None, "auto") else args.delta,
            repeats=repeats,
            references=compare,
            device=getattr(args, "device", "auto"),
            callback=_Steps(bars),
        )


class _Steps:
    """Passes on the steps of a run and not its price: nobody is charged for a simulation."""

    def __init__(self, bars: ProgressBars | PhaseLog) -> None:
        self._bars = bars

    def expect(self, phases: Sequence[str]) -> None:
        """Pass it on."""
        self._bars.expect(phases)

    def start(self, phase: str, total: int) -> None:
        """Pass it on."""
        self._bars.start(phase, total)

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Pass it on."""
        self._bars.advance(phase, loss=loss, accuracy=accuracy)


def to_dict(found: Simulation) -> dict[str, Any]:
    """Return a simulation as plain values; the schema is left out, as it is a file."""
    given = found.declared
    names = [*(name for name in SIZES if name not in _WITHOUT_SCHEMA), "seed", "num_edges"]
    about = {name: getattr(given, name) for name in (*names, "edge_homophily")}
    about |= {"classes": list(given.classes), "rates": list(given.rates)}
    about["num_features"] = given.declared.width
    return {
        "method": found.method,
        "delta": found.delta,
        "declared": about,
        "rows": [asdict(row) for row in found.rows],
        "references": [asdict(row) for row in found.references],
        "majority": found.majority,
    }


def print_rows(found: Simulation) -> None:
    """Print the accuracies at each epsilon, the references, and what was simulated."""
    from rich import box
    from rich.table import Column, Table

    heads = ("epsilon", "accuracy", "balanced", "AUC", "average precision")
    columns = [Column(head, justify="right") for head in heads]
    table = Table("simulated test nodes", *columns, box=box.SIMPLE)
    for row in (*found.rows, *found.references):
        epsilon = "inf" if row.epsilon is None else f"{row.epsilon:g}"
        table.add_row(row.name, epsilon, *_figures(row))
    largest = max(zip(found.declared.rates, found.declared.classes, strict=True))[1]
    table.add_row(f"always {largest!r}", "0", f"{found.majority:.1%}", "-", "0.500", "-")
    console(to_stderr=False).print(table)
    say(what_was_simulated(found))


def what_was_simulated(found: Simulation) -> str:
    """Say what was simulated, and that no private data was read."""
    about = found.declared
    return (
        f"Simulated: {about.num_nodes:,} people with {about.mean_degree:g} neighbours each and "
        f"{len(about.classes)} classes; homophily {about.homophily:g}, so that "
        f"{about.edge_homophily:.0%} of the edges are within a class. Delta {found.delta:g}. No "
        "private data was read and nothing was charged; your graph may give more or less."
    )


def _figures(row: SimulatedRow) -> list[str]:
    """Return the figures of a row, with an interval from five repeats on."""
    from gapgnn.evaluation import shown_interval

    accuracy = f"{row.figures['accuracy'] or 0:.1%}"
    if ends := shown_interval(row.runs):
        accuracy += f" ({ends[0]:.1%} to {ends[1]:.1%})"
    shares = [row.figures[name] for name in ("balanced_accuracy", "auc", "average_precision")]
    formats = (".1%", ".3f", ".3f")
    return [
        accuracy,
        *("-" if one is None else f"{one:{f}}" for one, f in zip(shares, formats, strict=True)),
    ]
