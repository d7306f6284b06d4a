"""`gapgnn predict`: labels from a saved model, for its own graph or for another one."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.data import (
    DIALECT_OPTIONS,
    add_data_options,
    dialect_of,
    load_graph,
    mention_left_out,
)
from gapgnn.cli.output import plain_cell, say
from gapgnn.cli.prices import Quote, left_lines
from gapgnn.cli.receipts import emit_result, receipt
from gapgnn.cli.scale import add_ray_option, at_scale, check_ray
from gapgnn.errors import InputError, UnavailableError, check_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gapgnn.graph import Graph, Wording
    from gapgnn.methods import NodeClassifier

EXAMPLES = """\
examples:
  gapgnn predict --model model --out labels.csv
  gapgnn predict --model model --edges friends.csv --nodes people.csv --plan
  gapgnn predict --model model --edges friends.csv --nodes people.csv --out labels.parquet --charge
  gapgnn predict --model model --edges friends.csv --nodes people.csv --label risk \
    --only unlabelled --with probabilities --out to-check.csv
  gapgnn predict --model model --dataset social --own record --out to-each-their-own.csv
  gapgnn predict --model model --new-people --edges their-friends.csv --nodes new.csv \
    --out new.csv --max-epsilon 1
  gapgnn predict --config predict.toml --out labels.csv

The model remembers label, dropped columns, weights, delimiter and schema of its tables: other
tables need no such option again, only a window of time is said anew. Columns it never saw are left
out, and those it misses are named.
For the training graph the released hops in the model's folder answer, free of charge; the data may
be left out except at node level. Another graph is charged once, and its hops stay in the folder.
A price must be agreed to, with `--charge`, or with `--max-epsilon E` for at most E; `--plan` shows
it. Which of the two a graph is, only the ledger of the training knows: without it tables are
refused.
The column `graph` of the output says which graph the answers are for.
With `--new-people` (label-gap) the answers are for the people of --nodes alone who were
not in the graph of training. Their edges to each other and to people who were are read, and only
these are charged, to everybody they name. Rows of known people are not needed, but with their
labels the answers are better. With `--own record` beside it nothing is charged.
With `--own record` (label-gap at edge level) each answer also reads the node's own neighbours: more
accurate, not charged for itself, and for that person alone. Everybody's answers handed out together
would tell lists, so only labels are written unless `--with probabilities` is given.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn predict`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FOLDER", help="what `train --out` saved"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="table with id, label and probability: .csv, .tsv, .jsonl, .parquet or .feather; left "
        "out only with --plan",
    )
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        choices=["probabilities", "role", "truth"],
        default=[],
        help="further columns, may be given several times: the probability of every class; whether "
        "a row was for training, validation, test or is unlabelled; the label it has in the table",
    )
    parser.add_argument(
        "--only",
        choices=["unlabelled", "labelled"],
        help="write these rows only; like role and truth it needs the label column (--label, or "
        "the one of the model's schema)",
    )
    parser.add_argument(
        "--own",
        choices=["features", "record"],
        help="what a prediction reads of the node's own record, for label-gap at level edge: "
        "features (default), or record (features and own neighbours), which makes it a "
        "prediction for that person only; at level node this is chosen when training",
    )
    parser.add_argument(
        "--new-people",
        action="store_true",
        help="answer for the people alone who were not in the graph of training, from their edges, "
        "for label-gap",
    )
    parser.add_argument(
        "--device", default="auto", metavar="auto|cpu|cuda", help="where to compute"
    )
    parser.add_argument("--ledger", metavar="FILE", help="file of the privacy ledger")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the ledger")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print what the answers would cost and what is left, and stop: nothing is charged, "
        "released or written",
    )
    parser.add_argument(
        "--charge",
        action="store_true",
        help="agree to the price of an answer that is not free, whatever it is; without it, or "
        "--max-epsilon, such an answer is refused with exit code 3",
    )
    parser.add_argument(
        "--max-epsilon",
        type=float,
        metavar="E",
        help="agree to a price of at most E; an answer that is charged more is refused, and 0 is "
        "for free answers only",
    )
    parser.add_argument(
        "--cached",
        action="store_true",
        help="answer for the graph of training and read nothing of the tables but the ids of "
        "--nodes; needs no ledger",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same options")
    add_ray_option(parser)
    add_data_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Load the model and the graph, predict, write the table."""
    from gapgnn.methods import load_model
    from gapgnn.privacy.ledger import Ledger, spending

    _check_out(args)
    if args.max_epsilon is not None:
        check_number("max_epsilon", args.max_epsilon, at_least=0)
    check_ray(args)
    if _needs_label(args) and not args.cached and not _gives_data(args):
        raise InputError(
            "`--only`, `--with role` and `--with truth` must come with tables, which have the "
            "labels. Got no data."
        )
    receipt().folder = args.model
    model = load_model(args.model, device=args.device, ledger=args.ledger, reason=args.reason)
    receipt().ledger = Ledger(model.ledger)
    if args.cached:
        return _from_cache(args, model)
    if args.new_people:
        _check_new_people(args)
    is_for_own = args.own == "record" or model.card_.own == "record"
    graph = _graph_of(args, model, reads_own=is_for_own)
    before = len(model.card_.releases)
    quote = Quote.of(model, graph, own=args.own, new_people=args.new_people)
    receipt().people = quote.people
    if args.plan:
        return _show_plan(quote, args)
    receipt().price = quote.to_dict()
    quote.check_agreed(charge=args.charge, at_most=args.max_epsilon)
    _say_price(quote)
    agreed = 0.0 if quote.price is None else math.inf
    try:
        with at_scale(args, graph) as placed, spending(agreed):
            probabilities = model.predict_proba(placed, own=args.own, new_people=args.new_people)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_what_is_lost(model)) from None
    model.save_releases(args.model)
    charged = model.card_.releases[before:]
    if charged:
        _say_charged(quote)
    if args.new_people and graph is not None:
        graph = _new_people_of(model, graph)
    ids = model.releases_.training().ids if graph is None else graph.ids
    is_training = graph is None or (not args.new_people and model.releases_.is_training(graph))
    table = _table(model, ids, probabilities, is_training, args.extra, graph)
    if is_for_own:
        table = _for_own_people(table, args, model.card_.wording)
    rows = _chosen_rows(args.only, graph)
    _write_table(args.out, table if rows is None else table.filter(rows))
    if args.json:
        emit_result(_result(args.out, len(ids), quote, len(charged)))
    else:
        entities = model.card_.wording.entities
        what = f"the edges of new {entities} were" if args.new_people else "one new graph was"
        spent = f"{what} charged" if charged else f"no budget was spent: {quote.why_free}"
        written = len(ids) if rows is None else int(rows.sum())
        line = f"{written:,} label{'s' * (written != 1)} written to {args.out}; {spent}"
        say(line)
    return 0


def _graph_of(args: argparse.Namespace, model: NodeClassifier, *, reads_own: bool) -> Graph | None:
    """Return the graph to answer for, read as the model remembers; None without any data."""
    if not _gives_data(args):
        return None
    loaded = load_graph(
        args,
        # Roles are those of the training: a function of this seed and of each id.
        seed=model.seed,
        quiet=args.json,
        # A prediction that reads own neighbours also reads their training labels.
        needs_label=_needs_label(args) or (reads_own and not args.new_people),
        schema=model.schema_,
        preparation=model.preparation_,
        classes=model.label_names_,
        # A model of version 0.1 knows the columns of its table by name and has no schema. It
        # answers for the graph it was trained on; reading another one is refused further down.
        level="none" if model.schema_ is None and model.feature_names_ else model.level,
        may_lack_labels=True,
        known_ids=_known_ids(model) if args.new_people else None,
    )
    if loaded.dropped_dangling and not args.json:
        mention_left_out(loaded)
    _check_model_folder(args, model, loaded.graph)
    _mention_columns(model, loaded.graph)
    return loaded.graph


def _result(out: Path, nodes: int, quote: Quote, charged: int) -> dict[str, Any]:
    """Return the object of `--json`: with the epsilon of all releases, and why it was free."""
    card = quote.model.card_
    return {
        "out": str(out),
        "nodes": nodes,
        "new_releases": charged,
        "why_free": quote.why_free,
        "releases": len(card.releases),
        "composed_epsilon": card.composed_epsilon,
    }


def _check_new_people(args: argparse.Namespace) -> None:
    """Refuse options that exclude `--new-people`; edges to known people are kept."""
    if args.edges is None:
        raise InputError(
            "`--new-people` must come with `--edges` and `--nodes`: the new people, and their "
            "edges. Got none."
        )
    if args.ray:
        raise InputError("`--new-people` must come without `--ray`. Got both.")
    if args.dangling is None:
        args.dangling = "keep"


def _known_ids(model: NodeClassifier) -> NDArray[Any] | None:
    """Return the ids of the training, to which edges of new people may lead."""
    return model.releases_.training().ids if model.releases_.hops else None


def _new_people_of(model: NodeClassifier, graph: Graph) -> Graph:
    """Return the people of a graph who were not in the graph of training."""
    from gapgnn.graph import induced
    from gapgnn.methods import new_among

    return induced(graph, new_among(graph, model.releases_.training()))


def _show_plan(quote: Quote, args: argparse.Namespace) -> int:
    """Print the price of a prediction; nothing is charged or released."""
    from gapgnn.privacy.card import rounded_up

    price, after = quote.price, quote.afterwards()
    # What `--charge` would agree to is only asked for where the answer is wanted.
    refusal = quote.disagreement(charge=True, at_most=args.max_epsilon) or after.refusal
    if args.json:
        emit_result(
            {
                "free": price is None,
                "why_free": quote.why_free,
                **quote.to_dict(),
                "plan": None if price is None else price.to_dict(),
                "composed_epsilon_before": quote.epsilon_before,
                "composed_epsilon": quote.epsilon_after,
                "left": [] if price is None else after.lines,
                "after": after.to_list(),
                "refused": refusal,
            }
        )
        return 0
    if price is None:
        say(f"Price: nothing, because {quote.why_free}.")
        return 0
    say(
        f"Price: {quote.charged}. All releases of this model would come to epsilon "
        f"{rounded_up(quote.epsilon_after)} at delta {quote.model.card_.delta:.3g}; now it is "
        f"{rounded_up(quote.epsilon_before)}."
    )
    for line in after.lines:
        say(f"Left: {line}")
    if refusal:
        say(f"It would be refused: {refusal}")
    return 0


def _say_price(quote: Quote) -> None:
    """Print the price of a prediction to stderr, before it is charged."""
    from gapgnn.privacy.card import rounded_up

    price, after = quote.price, quote.afterwards()
    if price is None:
        return
    card, count = quote.model.card_, len(quote.model.card_.releases) + 1
    line = f"Price: {quote.what} charged {quote.charged}."
    say(line, to_stderr=True, event="price", **quote.to_dict())
    for line, budget in zip(after.lines, after.to_list(), strict=True):
        say(f"Before: {line}", to_stderr=True, event="budget", **budget)
    if not after.lines and not after.refusal:
        say(
            f"No budget is set for these {card.wording.entities}: the charge is recorded but not "
            "limited (`gapgnn ledger grant`).",
            to_stderr=True,
            event="budget",
        )
    say(
        f"The {count} releases of this model will then come to epsilon "
        f"{rounded_up(quote.epsilon_after)} at delta {card.delta:.3g} for what is in all "
        f"of their graphs; now it is {rounded_up(quote.epsilon_before)}.",
        to_stderr=True,
        event="price",
        composed_epsilon=quote.epsilon_after,
    )


def _say_charged(quote: Quote) -> None:
    """Print to stderr the charge, the ledger, the remaining budget, and the card's epsilon."""
    from gapgnn.privacy.card import rounded_up

    card = quote.model.card_
    last = card.releases[-1]
    say(
        f"Charged: epsilon {rounded_up(last.epsilon)} (charge {last.charge_id}). The card of the "
        f"model lists {len(card.releases)} releases, together epsilon "
        f"{rounded_up(card.composed_epsilon or 0.0)} at delta {card.delta:.3g}.",
        to_stderr=True,
        event="charge",
        id=last.charge_id,
        epsilon=last.epsilon,
        delta=last.delta,
    )
    people, level = quote.people, quote.model.level
    for line in [] if people is None else left_lines(quote.ledger, people, level):
        say(f"After: {line}", to_stderr=True, event="budget")
    say(f"Ledger: {quote.ledger.name}", to_stderr=True, event="ledger")


def _for_own_people(table: Any, args: argparse.Namespace, wording: Wording) -> Any:
    """Leave probabilities out unless requested, and print whom the predictions are for."""
    say(
        wording.fill(
            "each prediction read the {entity}'s exact own neighbours: it is for that {entity}, or "
            "for readers who may know them. All predictions together would reveal edges"
        ),
        to_stderr=True,
    )
    if "probabilities" in args.extra:
        return table
    say(
        "labels only: from probabilities lists could be solved for (--with probabilities)",
        to_stderr=True,
    )
    return table.drop_columns(["probability"])


def _what_is_lost(model: NodeClassifier) -> str:
    """Print what an interrupted prediction has cost."""
    charge = getattr(model, "_unfinished", None)
    if charge is None:
        return "interrupted; nothing was charged for a new graph and nothing was written"
    return (
        f"interrupted; the new graph was charged ({charge.id}: epsilon {charge.epsilon:.4g}) and "
        "its hops are not finished. The charge stays, and predicting on it again is charged again"
    )


def _from_cache(args: argparse.Namespace, model: NodeClassifier) -> int:
    """Predict from the model's folder only."""
    from gapgnn.graph.tables import read_ids
    from gapgnn.methods import EdgeReader

    if args.own == "record":
        raise InputError("`--cached` must be left out with `--own record`, which reads lists.")
    if args.new_people:
        raise InputError("`--cached` must be left out with `--new-people`, who have no row in it.")
    if not isinstance(model, EdgeReader):
        raise InputError(f"`--cached` must be left out: {model.method} answers from features.")
    if _needs_label(args):
        raise InputError(
            "`--cached` reads nothing of the tables but ids: `--only`, `--with role` and "
            "`--with truth` must be left out. Got one of them."
        )
    if args.plan:
        return _show_plan(Quote.of(model, None, own=None, new_people=False), args)
    dialect = dialect_of(args, model.preparation_)
    ids = None if args.nodes is None else read_ids(args.nodes, dialect=dialect)
    probabilities = model.predict_cached(ids)
    ids = model.releases_.training().ids if ids is None else ids
    _write_table(args.out, _table(model, ids, probabilities, True, args.extra, None))
    if args.json:
        quote = Quote.of(model, None, own=None, new_people=False)
        emit_result(_result(args.out, len(ids), quote, 0))
    else:
        say(f"{len(ids):,} labels for the graph of training written to {args.out}")
    return 0


DATA_OPTIONS = (
    *("dataset", "store", "edges", "nodes"),
    *("label", "schema", "features", "drop", "directed", "dangling"),
    *DIALECT_OPTIONS,
    *("weight", "weight_bounds", "time", "time_format", "since", "until", "source", "target"),
    "dropped_at_most",
)
WRITERS = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".parquet": "", ".feather": ""}


def _check_out(args: argparse.Namespace) -> None:
    """Refuse a file that could not be written, and predictions without an output."""
    if args.out is not None:
        _check_target(args.out)
    elif not args.plan:
        raise InputError("`--out` must say where the answers go. Got none.")


def _check_target(path: Path) -> None:
    """Refuse a file that could not be written, before anything is charged."""
    if path.suffix not in WRITERS:
        raise InputError(f"`out` must end in {', '.join(WRITERS)}. Got {str(path)!r}.")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InputError(f"`out` must be a file in an existing folder. Got {str(path)!r}.")
    if not os.access(path.resolve().parent, os.W_OK):
        raise InputError(f"`out` must be writable. Got {str(path)!r}.")


def _check_model_folder(args: argparse.Namespace, model: NodeClassifier, graph: Graph) -> None:
    """Refuse a model folder that could not store the releases of another graph."""
    from gapgnn.privacy.ledger import Ledger

    releases = model.releases_
    if not releases.hops or model.level == "none" or os.access(args.model, os.W_OK):
        return
    if args.new_people or releases.find(graph, Ledger(model.ledger)) is None:
        raise InputError(
            f"`model` must be writable to keep the hops of another graph. Got {str(args.model)!r}."
        )


def _mention_columns(model: NodeClassifier, graph: Graph) -> None:
    """Print to stderr which columns the model does not use, and which ones it lacks."""
    if model.feature_names_ is None or graph.feature_names is None:
        return
    known, given = set(model.feature_names_), set(graph.feature_names)
    for text, names in (("left out", given - known), ("missing, taken as 0", known - given)):
        if names:
            line = f"{len(names)} feature columns {text}, such as {min(names)!r}"
            say(line, to_stderr=True)


def _gives_data(args: argparse.Namespace) -> bool:
    return any(getattr(args, option) is not None for option in DATA_OPTIONS)


def _needs_label(args: argparse.Namespace) -> bool:
    """Whether labels of the tables are requested; predictions never read them."""
    return args.only is not None or bool({"role", "truth"} & set(args.extra))


def _chosen_rows(only: str | None, graph: Graph | None) -> NDArray[np.bool_] | None:
    """Return which rows to write; None writes all."""
    if only is None or graph is None:
        return None
    is_labelled: NDArray[np.bool_] = graph.labels >= 0
    return is_labelled if only == "labelled" else ~is_labelled


def _table(
    model: NodeClassifier,
    ids: NDArray[Any],
    probabilities: NDArray[np.float32],
    is_training: bool,
    extra: Sequence[str],
    graph: Graph | None,
) -> Any:
    """Return id, label, its probability and the graph, and the requested columns.

    Args:
        model: the predicting model.
        ids: one per row.
        probabilities: of every class.
        is_training: whether the predictions are for the graph of training.
        extra: further columns.
        graph: the graph that was read, if any.
    """
    import pyarrow as pa

    from gapgnn.methods import answer_columns

    names: Sequence[Any] = model.label_names_ or range(model.num_classes_)
    columns = answer_columns(model, ids, probabilities, is_training=is_training)
    if "probabilities" in extra:
        columns |= {f"probability of {name}": probabilities[:, k] for k, name in enumerate(names)}
    if "role" in extra and graph is not None:
        columns["role"] = _roles(graph)
    if "truth" in extra and graph is not None:
        known: Sequence[Any] = graph.label_names or range(graph.num_classes)
        columns["truth"] = [None if label < 0 else known[label] for label in graph.labels.tolist()]
    return pa.table(columns)


def _roles(graph: Graph) -> list[str]:
    """Return what each row was for in the training."""
    masks = {"training": graph.train_mask, "validation": graph.val_mask, "test": graph.test_mask}
    roles = ["unlabelled"] * graph.num_nodes
    for name, mask in masks.items():
        for row in mask.nonzero()[0].tolist():
            roles[row] = name
    return roles


def _without_formulas(table: Any) -> Any:
    """Return a table in which no spreadsheet takes text or column names for a formula."""
    import pyarrow as pa

    columns = [
        pa.array([None if cell is None else plain_cell(cell) for cell in column.to_pylist()])
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=list(map(plain_cell, table.column_names)))


def _write_table(path: Path, table: Any) -> None:
    """Write a table in the format of the file's name; whole or not at all."""
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    from gapgnn.methods import json_line

    scratch = path.with_name(f".{path.name}.part")
    try:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, scratch)
        elif path.suffix == ".feather":
            pyarrow.feather.write_feather(table, scratch)
        elif path.suffix == ".jsonl":
            with scratch.open("w", encoding="utf-8") as file:
                for batch in table.to_batches():
                    file.writelines(map(json_line, batch.to_pylist()))
        else:
            options = pyarrow.csv.WriteOptions(delimiter=WRITERS[path.suffix])
            pyarrow.csv.write_csv(_without_formulas(table), scratch, options)
        os.replace(scratch, path)
    except OSError as error:
        raise UnavailableError(f"{str(path)!r} cannot be written: {error}") from None
    finally:
        scratch.unlink(missing_ok=True)
