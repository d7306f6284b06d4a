"""The options that choose a graph, and loading it: a known data set or tables of your own."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.cli.output import progress_bars, say
from gapgnn.errors import InputError, PrivacyError, without_password

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gapgnn.graph import Graph
    from gapgnn.graph.tables import Dialect, EdgeCounts, Preparation, Schema, Source
    from gapgnn.privacy.ledger import People

DEFAULT_DATASET = "social"

DESCRIPTION = """\
A known data set (see `gapgnn datasets`), or two tables of your own: one row per node with its id,
class and features, and one row per edge with two node ids. Or a store that `gapgnn partition` made
of either, for graphs that do not fit in memory. A table is a CSV or TSV file (also .gz), a Parquet
or Arrow file, a folder of such files, - for standard input, or a query of DuckDB, SQLite or
PostgreSQL: --edges "duckdb:bank.db?SELECT payer, payee FROM payments"
For example: --edges friends.csv --nodes people.csv --label year --drop name
or of a spreadsheet: --edges e.csv --nodes n.csv --label year --delimiter semicolon --decimal ,
Several edge tables are several edge types over the same nodes; edges may have weights:
--edges calls.csv --edges payments.csv --weight payments=amount --weight-bounds 0 5000"""

# What edge tables had that could not be used, for the curator, by its name in the counts.
EDGE_COUNTS = {
    "without_amount": "edges without a readable amount, which count as LOW",
    "without_time": "edges without a readable time, left out",
    "mostly_unused": "small edge tables that are empty or mostly dropped or unreadable",
    "outside": "edges outside the window of time, left out",
}

# How text is written, by the names of the attributes of a dialect.
DIALECT_OPTIONS = ("delimiter", "decimal", "thousands", "quote", "header")
# Options that only mean something for tables, by their name in the parsed arguments.
_TABLE_OPTIONS = (
    *("nodes", "label", "schema", "features", "drop"),
    *("directed", "dangling", "min_class_count", "population"),
    *DIALECT_OPTIONS,
    *("weight", "weight_bounds", "time", "time_format", "since", "until"),
    *("source", "target", "dropped_at_most"),
)


@dataclass(frozen=True)
class LoadedGraph:
    """A graph with its split, and what reading tables left out (None for a known data set)."""

    graph: Graph
    dropped_self_loops: int | None = None
    dropped_duplicates: int | None = None
    dropped_dangling: int | None = None
    counts: EdgeCounts | None = None

    @property
    def left_out(self) -> str:
        """Which edges were left out, in words; empty if none were."""
        reasons = {
            ("self-loop", "self-loops"): self.dropped_self_loops,
            ("repeated edge", "repeated edges"): self.dropped_duplicates,
            (
                "edge that names an id without a row",
                "edges that name an id without a row",
            ): self.dropped_dangling,
        }
        return ", ".join(
            f"{count:,} {one if count == 1 else several}"
            for (one, several), count in reasons.items()
            if count
        )


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a graph."""
    group = parser.add_argument_group("data", DESCRIPTION)
    group.add_argument(
        "--dataset",
        metavar="NAME",
        help="a known data set, such as facebook100/Cornell5 "
        f"(default: {DEFAULT_DATASET}, built in)",
    )
    group.add_argument(
        "--store", metavar="FOLDER", type=Path, help="a graph on disk, made by `gapgnn partition`"
    )
    _add_edge_table_options(group)
    _add_node_table_options(group)
    _add_reading_options(group)


def _add_edge_table_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that name edge tables and what is read of them."""
    group.add_argument(
        "--edges",
        metavar="FILE",
        action="append",
        help="your edge table: its first two columns are node ids, or those called source and "
        "target, src and dst, id_1 and id_2, or those of --source and --target; "
        "several times for several edge types, named by their files or as NAME=FILE",
    )
    group.add_argument(
        "--source",
        metavar="COLUMN",
        action="append",
        help="the column of the edge table with the source of each edge, together with --target. "
        "TYPE=COLUMN as for --weight",
    )
    group.add_argument(
        "--target",
        metavar="COLUMN",
        action="append",
        help="the column of the edge table with the target of each edge",
    )
    group.add_argument(
        "--weight",
        metavar="COLUMN",
        action="append",
        help="the column of the edge table with an amount: an edge weighs its share of HIGH, and "
        "rows of one edge are added up. It must be in every edge table; TYPE=COLUMN is for one",
    )
    group.add_argument(
        "--weight-bounds",
        metavar=("LOW", "HIGH"),
        nargs=2,
        type=float,
        action="append",
        help="declared bounds of the amounts, 0 <= LOW < HIGH; required unless the schema has them "
        "as [weight], because bounds from the table would reveal single edges. One pair for each "
        "--weight",
    )
    group.add_argument(
        "--time",
        metavar="COLUMN",
        action="append",
        help="the column of the edge table with a date, a time or a number, for --since and "
        "--until; rows without a readable one are left out. TYPE=COLUMN as for --weight",
    )
    group.add_argument(
        "--time-format",
        metavar="FORMAT",
        action="append",
        help="how that column is written, as in Python's strptime, such as '%%d.%%m.%%Y %%H:%%M' "
        "(default: ISO, 2024-12-31 or 2024-12-31T23:59). TYPE=FORMAT as for --weight",
    )
    group.add_argument(
        "--since", metavar="WHEN", help="leave out edges before this date, time or number"
    )
    group.add_argument(
        "--until", metavar="WHEN", help="leave out edges at this date, time or number and after it"
    )


def _add_node_table_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that name a node table, and say what its columns are."""
    group.add_argument(
        "--nodes",
        metavar="FILE",
        type=table_word,
        help="your node table: the column `id` (or the first one) names the node, the others are "
        "features (numbers as they are, categories one-hot)",
    )
    group.add_argument(
        "--label", metavar="COLUMN", help="the node column with the class to predict"
    )
    group.add_argument(
        "--schema",
        metavar="FILE",
        type=Path,
        help="what is declared public about the node table (`gapgnn schema` proposes one); "
        "required at node level",
    )
    group.add_argument(
        "--features",
        metavar="FILE",
        type=Path,
        help="features from an NPZ or NPY matrix with the rows of the node table, or from JSON as "
        '{"id": [columns]}, instead of the node columns',
    )
    group.add_argument(
        "--drop",
        metavar="COLUMN",
        action="append",
        help="a node column that is not a feature, such as a name; may be given several times",
    )


def _add_reading_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that say how tables become a graph."""
    direction = group.add_mutually_exclusive_group()
    direction.add_argument(
        "--directed",
        action="store_true",
        default=None,
        help="an edge u, v does not imply v, u",
    )
    direction.add_argument(
        "--undirected",
        dest="directed",
        action="store_false",
        default=None,
        help="each edge counts in both directions (the default)",
    )
    group.add_argument(
        "--dangling",
        choices=["refuse", "keep", "drop"],
        help="edges that name an id without a row in the node table: refuse (the default), "
        "drop such edges, or keep them as entries that contribute nothing (the default at node "
        "level, where drop is not allowed)",
    )
    group.add_argument(
        "--dropped-at-most",
        metavar="SHARE",
        type=float,
        help="the share of the rows of a table that may be dropped or unreadable; a table of at "
        "least 100 rows with a larger share is refused before anything is charged (default: 0.5)",
    )
    add_dialect_options(group)
    group.add_argument(
        "--population",
        metavar="NAME",
        help="what the ids of your tables belong to (default: default). Tables of one population "
        "that name a common id share a privacy budget; give unrelated ones names of their own",
    )
    group.add_argument(
        "--min-class-count",
        metavar="N",
        type=int,
        help="leave out unlabelled nodes and classes with fewer than N nodes (default: 0, nothing "
        "is left out)",
    )


def add_word_options(parser: argparse.ArgumentParser) -> None:
    """Add the words that the privacy card uses for people and edges."""
    group = parser.add_argument_group("words of the privacy card")
    group.add_argument(
        "--entity",
        metavar="WORD",
        help="what one of those in the data is called, such as customer, or company/companies "
        "(default: as the schema says, or person)",
    )
    group.add_argument(
        "--link",
        metavar="WORD",
        help="what a row of the edge table is called, such as payment: all payments between two "
        "customers are protected together (default: as the schema says, or edge)",
    )


def add_dialect_options(group: argparse._ActionsContainer) -> None:
    """Add the options that say how the cells of tables are written."""
    group.add_argument(
        "--delimiter",
        metavar="CHAR",
        help="between the cells of .csv files: one character, semicolon or tab (default: a comma; "
        "a .tsv file has tabs)",
    )
    group.add_argument(
        "--decimal", metavar="CHAR", help="the decimal point of numbers, . or , (default: .)"
    )
    group.add_argument(
        "--thousands",
        metavar="CHAR",
        help="between groups of three digits, one of . , ' or space (default: nothing)",
    )
    group.add_argument(
        "--quote",
        choices=['"', "'", "none"],
        help='around cells of .csv and .tsv files that hold a delimiter (default: "); none: a '
        "quote is text",
    )
    group.add_argument(
        "--header",
        choices=["first", "none"],
        help="none: .csv and .tsv files have no line of column names, and the columns are called "
        "column_1, column_2 and so on",
    )


def table_word(word: str) -> Source:
    """Return the table that a word of the command line names: a path, ``-`` or a query.

    >>> table_word("people.csv")
    PosixPath('people.csv')
    """
    if ":" not in word:
        return Path(word)
    from gapgnn.graph.tables import as_source

    return as_source(word)


def dialect_of(args: argparse.Namespace, known: Preparation | None = None) -> Dialect:
    """Return how cells are written: as the options say, or else as a model remembers.

    >>> parser = argparse.ArgumentParser()
    >>> add_dialect_options(parser)
    >>> dialect_of(parser.parse_args(["--delimiter", "tab", "--decimal", ","]))
    Dialect(delimiter='\\t', decimal=',', thousands=None, quote='"', header='first')
    """
    from gapgnn.graph.tables import Dialect, may_be_csv, may_be_text

    given = {name: value for name in DIALECT_OPTIONS if (value := getattr(args, name)) is not None}
    if known is None or given:
        return Dialect(**given)
    edges = edge_files(args.edges).values() if getattr(args, "edges", None) else ()
    tables = [table for table in (args.nodes, *edges) if table is not None]
    # What stood between the cells of other tables says nothing of Parquet or Arrow.
    said = known.spelling()
    if not any(map(may_be_text, tables)):
        return said.of_numbers
    return said if any(map(may_be_csv, tables)) else replace(said, delimiter=None)


def add_level_option(group: argparse._ArgumentGroup) -> None:
    """Add `--level` to a command that reads tables and does not train."""
    group.add_argument(
        "--level",
        choices=["none", "edge", "node"],
        help="read tables as `train` with this level does; node needs a schema, keeps dangling "
        "entries, and makes rows of features that are not finite zero",
    )


def load_graph(
    args: argparse.Namespace,
    *,
    seed: int,
    quiet: bool = False,
    needs_label: bool = True,
    schema: Schema | None = None,
    level: str | None = None,
    preparation: Preparation | None = None,
    classes: Sequence[str] | None = None,
    may_lack_labels: bool = False,
    known_ids: NDArray[Any] | None = None,
) -> LoadedGraph:
    """Load the graph that the parsed options choose, split 75/10/15 into train, val and test.

    Args:
        args: parsed options of :func:`add_data_options`.
        seed: of the experiment; decides the split.
        quiet: show no progress bar. There is none either if stderr is not a terminal.
        needs_label: whether the graph is for training. If not, tables may come without a label
            column, and then without a split.
        schema: schema of a saved model, used unless `--schema` is given.
        level: the privacy level the graph is for; that of ``args`` if left out.
        preparation: what a saved model remembers of its tables, where options say nothing.
        classes: the classes a saved model knows, in their order.
        may_lack_labels: whether the graph may have no labels; there is no split then.
        known_ids: ids with a row in the tables of the training: edges to them are kept.

    With :func:`add_word_options` the graph has the words that are given.

    >>> parser = argparse.ArgumentParser()
    >>> add_data_options(parser)
    >>> load_graph(parser.parse_args(["--edges", "friends.csv"]), seed=0)
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `--edges` must come with `--nodes`. Got no node table.
    """
    check_options(
        args, needs_label=needs_label, schema=schema, level=level, preparation=preparation
    )
    loaded = _load(
        args,
        seed=seed,
        quiet=quiet,
        needs_label=needs_label,
        schema=schema,
        level=level,
        preparation=preparation,
        classes=classes,
        may_lack_labels=may_lack_labels,
        known_ids=known_ids,
    )
    words = given_words(args)
    return replace(loaded, graph=loaded.graph.with_words(**words)) if words else loaded


def given_words(args: argparse.Namespace) -> dict[str, str]:
    """Return the words of :func:`add_word_options` that are given, checked."""
    from gapgnn.graph import Wording

    found = {name: getattr(args, name, None) for name in ("entity", "link")}
    words = {name: word for name, word in found.items() if word is not None}
    for name, word in words.items():
        if not word:
            raise InputError(f"`--{name}` must be a word. Got nothing.")
    Wording.of(**words)
    return words


def _load(
    args: argparse.Namespace,
    *,
    seed: int,
    quiet: bool,
    needs_label: bool,
    schema: Schema | None,
    level: str | None,
    preparation: Preparation | None,
    classes: Sequence[str] | None,
    may_lack_labels: bool,
    known_ids: NDArray[Any] | None,
) -> LoadedGraph:
    """Load the graph that checked options choose."""
    if args.store is not None:
        return _load_store(args.store, seed=seed, quiet=quiet, needs_label=needs_label)
    if args.edges is None:
        from gapgnn.graph.datasets import load_dataset

        name = args.dataset if args.dataset is not None else DEFAULT_DATASET
        with reading_bars(quiet) as progress:
            return LoadedGraph(load_dataset(name, split_seed=seed, progress=progress))
    options = table_options(
        args, labelled=needs_label, schema=schema, level=level, preparation=preparation
    )
    if needs_label and options["label"] is None:
        raise _no_label()
    if options["label"] is not None and options["schema"] is None:
        options["classes"] = classes
    options["known_ids"] = known_ids
    return _load_tables(options, seed=seed, quiet=quiet, may_lack_labels=may_lack_labels)


def _load_store(folder: Path, *, seed: int, quiet: bool, needs_label: bool) -> LoadedGraph:
    """Open a store, and split it if there are labels or labels are required."""
    from gapgnn.graph import random_split
    from gapgnn.graph.store import open_store

    with reading_bars(quiet) as progress:
        graph: Graph = open_store(folder, progress=progress)
    has_labels = needs_label or (graph.labels >= 0).any()
    return LoadedGraph(random_split(graph, seed=seed) if has_labels else graph)


def _load_tables(
    options: Mapping[str, Any], *, seed: int, quiet: bool, may_lack_labels: bool
) -> LoadedGraph:
    """Read tables by :func:`table_options`, and split the graph if there is a label."""
    from gapgnn.graph import random_split
    from gapgnn.graph.tables import read_tables

    with reading_bars(quiet) as progress:
        tables = read_tables(**options, progress=progress)
    graph = tables.graph
    if options["label"] is not None and not (may_lack_labels and (graph.labels < 0).all()):
        graph = random_split(graph, seed=seed)
    mention_ignored(tables.ignored)
    mention_unused(tables.counts)
    dropped = tables.dropped_self_loops, tables.dropped_duplicates, tables.dropped_dangling
    return LoadedGraph(graph, *dropped, tables.counts)


def mention_ignored(ignored: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print to stderr which columns of which edge tables are not used."""
    for name, columns in ignored:
        listed = ", ".join(columns)
        say(f"{name}: not read: {listed} (see --weight and --time)", to_stderr=True)


def tell_curator(text: str) -> None:
    """Print to stderr what may follow from one record: audits of the pipeline leave it out."""
    from gapgnn.graph import CURATOR_ONLY

    say(f"{CURATOR_ONLY} {text}.", to_stderr=True)


def mention_unused(counts: EdgeCounts) -> None:
    """Print to stderr how many edge tables gave few edges or none: for the curator."""
    if counts.mostly_unused:
        tables = "table is" if counts.mostly_unused == 1 else "tables are"
        tell_curator(f"{counts.mostly_unused} edge {tables} empty or mostly dropped or unreadable")


def mention_left_out(loaded: LoadedGraph) -> None:
    """Print to stderr which edges were left out: exact counts, which epsilon does not cover."""
    if loaded.left_out:
        tell_curator(f"left out {loaded.left_out}")


def check_options(
    args: argparse.Namespace,
    *,
    needs_label: bool,
    schema: Schema | None = None,
    level: str | None = None,
    preparation: Preparation | None = None,
) -> None:
    """Raise if options contradict each other or one is missing, before anything is read."""
    given_words(args)
    for option in ("dataset", "edges") if args.store is not None else ():
        if getattr(args, option) is not None:
            raise InputError(
                f"`--store` must not come with `--{option}`. Got both; leave one of them out."
            )
    if args.edges is not None:
        if args.dataset is not None:
            raise InputError(
                "`--dataset` must not come with `--edges`. Got both; leave one of them out."
            )
        if args.nodes is None:
            raise InputError("`--edges` must come with `--nodes`. Got no node table.")
        dialect_of(args)
        edge_options(args, preparation, schema)
        has_schema = args.schema is not None or schema is not None
        if args.label is None and needs_label and not has_schema:
            raise _no_label()
        if _is_node_level(args, level):
            _check_node_level(args, has_schema)
        return
    for option in _TABLE_OPTIONS:
        value = getattr(args, option)
        if value is not None:
            shown = "undirected" if value is False else option.replace("_", "-")
            raise InputError(f"`--{shown}` must come with `--edges`. Got no edge table.")


def table_options(
    args: argparse.Namespace,
    *,
    labelled: bool,
    schema: Schema | None = None,
    level: str | None = None,
    preparation: Preparation | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments that read the chosen tables, in memory or into a store.

    Args:
        args: parsed options of :func:`add_data_options`, checked.
        labelled: whether to read the label that a schema declares if `--label` names none.
        schema: what a saved model knows about tables.
        level: the privacy level the graph is for; that of ``args`` if left out.
        preparation: what a saved model remembers of its tables; columns it never saw are left out
            and named on stderr.
    """
    from gapgnn.graph.tables import Preparation, Schema
    from gapgnn.privacy.ledger import check_population

    if args.schema is not None:
        given = Schema.read(args.schema)
        if schema not in (None, given):
            raise InputError(
                "`--schema` must be the one the model was trained with. Got another in "
                f"{str(args.schema)!r}; leave it out, the model carries its own."
            )
        schema = given
    said = Preparation() if preparation is None else preparation
    dialect = dialect_of(args, said)
    label, drop = args.label, tuple(args.drop or ())
    if preparation is not None:
        label, drop = _remembered(args, preparation, schema, dialect)
    if label is None and labelled and schema is not None and schema.label is not None:
        label = schema.label.column
    is_node_level = _is_node_level(args, level)
    return {
        **({} if args.edges is None else edge_options(args, preparation, schema)),
        "nodes": args.nodes,
        "label": label,
        "features": args.features,
        "drop": drop,
        "directed": said.directed if args.directed is None else args.directed,
        # At node level one record must not stop the run, whoever it names and whatever it holds.
        "dangling": args.dangling or ("keep" if is_node_level else said.dangling),
        "not_finite": "zero" if is_node_level else "refuse",
        "min_class_count": args.min_class_count or 0,
        "schema": schema,
        "dialect": dialect,
        **({} if preparation is None else {"codes": preparation.codes}),
        **({} if args.dropped_at_most is None else {"dropped_at_most": args.dropped_at_most}),
        "population": check_population(args.population or said.population),
    }


def _remembered(
    args: argparse.Namespace,
    preparation: Preparation,
    schema: Schema | None,
    dialect: Dialect,
) -> tuple[str | None, tuple[str, ...]]:
    """Return the label and the columns to leave out, as a model remembers them; name the others."""
    from gapgnn.graph.tables import open_table

    columns = open_table(args.nodes, what="nodes", dialect=dialect).columns
    found = preparation.applied(columns, label=args.label, drop=args.drop or (), schema=schema)
    if args.features is not None:
        return found.label, tuple(name for name in found.drop if name not in found.new)
    if found.missing and found.missing == preparation.columns:
        raise InputError(
            f"`nodes` must share a column with the {len(found.missing)} the model knows, such as "
            f"{found.missing[0]!r}. Got none in {str(args.nodes)!r}."
        )
    for text, names in (("new and left out", found.new), ("missing, taken as 0", found.missing)):
        if names:
            shown = ", ".join(map(repr, names))
            say(f"columns of {args.nodes.name} {text}: {shown}", to_stderr=True)
    return found.label, found.drop


def edge_files(words: Sequence[str]) -> dict[str, Source]:
    """Return the edge tables by the names of their edge types: as stated, or of the files.

    >>> edge_files(["calls.csv", "money=2024/payments.csv"])
    {'calls': PosixPath('calls.csv'), 'money': PosixPath('2024/payments.csv')}
    >>> list(edge_files(["sqlite:bank.db?SELECT * FROM paid WHERE amount=1"]))
    ['bank']
    """
    found: dict[str, Source] = {}
    for word in words:
        # A query may hold an equals sign, but not before its colon.
        name, is_named, path = word.partition("=")
        if not is_named or ":" in name or Path(word).exists():
            name, path = "", word
        table = table_word(path)
        name = name if is_named and path != word else table.stem
        if not name.strip() or not path:
            raise InputError(f"`--edges` must be FILE or NAME=FILE. Got {word!r}.")
        if name in found:
            raise InputError(
                f"`--edges` must name each edge type once. Got {name!r} twice; name them apart "
                f"as NAME={path}."
            )
        found[name] = table
    return found


def data_words(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the options that choose a graph, as they may be stored; without a password.

    >>> parser = argparse.ArgumentParser()
    >>> add_data_options(parser)
    >>> words = ["--edges", "a.csv", "--edges", "b.csv", "--nodes", "n.csv", "--undirected"]
    >>> data_words(parser.parse_args([*words, "--weight-bounds", "0", "9"]))[4:]
    ('--nodes', 'n.csv', '--undirected', '--weight-bounds', '0.0', '9.0')
    """
    found: list[str] = []
    for name in ("dataset", "store", "edges", *_TABLE_OPTIONS):
        value = getattr(args, name, None)
        if name == "directed" and value is not None:
            found.append("--directed" if value else "--undirected")
        elif value is not None:
            for each in value if isinstance(value, list) else [value]:
                cells = each if isinstance(each, list | tuple) else [getattr(each, "word", each)]
                found += [f"--{name.replace('_', '-')}", *map(str, cells)]
    return tuple(map(without_password, found))


def shown_tables(args: argparse.Namespace) -> str:
    """Return the edge tables as they were given, without the password of a database."""
    return without_password(" and ".join(args.edges or ()))


def edge_options(
    args: argparse.Namespace,
    preparation: Preparation | None = None,
    schema: Schema | None = None,
) -> dict[str, Any]:
    """Return the options of the edge tables, as `read_tables` takes them.

    A model stores columns and bounds but no time window. Other tables have another window, and the
    tables of the training without their window would be another graph, which is charged.
    """
    files = edge_files(args.edges)
    known: dict[str, Any] = {}
    if preparation is not None:
        known = preparation.edge_options(list(files) if len(files) > 1 else [""])
    weight: Any = _by_edge_type("weight", args.weight, files)
    source = _by_edge_type("source", args.source, files)
    target = _by_edge_type("target", args.target, files)
    if (source is None) != (target is None):
        raise InputError("`--source` must come with `--target`. Got only one of them.")
    if source is None:
        source, target = known.get("source") or None, known.get("target") or None
    time: Any = _by_edge_type("time", args.time, files) or known.get("time") or None
    written: Any = _by_edge_type("time-format", args.time_format, files)
    if written is not None and time is None:
        raise InputError("`--time-format` must come with `--time COLUMN`. Got no column.")
    if written is None and args.time is None:
        written = known.get("time_format") or None
    bounds: Any = None if args.weight_bounds is None else list(map(tuple, args.weight_bounds))
    given = len(args.weight or ())
    if given != len(bounds or ()) and not (bounds is None and _declares_weight(args, schema)):
        raise InputError(
            "`--weight` must come with `--weight-bounds LOW HIGH`, one pair for each, or with a "
            "schema that has them as [weight]: bounds read from the table would reveal single "
            f"edges. Got {given} and {len(bounds or ())}."
        )
    if bounds is not None:
        bounds = dict(zip(weight, bounds, strict=True)) if isinstance(weight, dict) else bounds[0]
    if args.weight is None and known.get("weight"):
        weight, bounds = known["weight"], known["weight_bounds"]
    if time is None and not args.since is args.until is None:
        raise InputError("`--since` and `--until` must come with `--time COLUMN`. Got no column.")
    if args.time is None and time is not None and args.since is args.until is None:
        raise InputError(
            f"`--since` or `--until` must say which window of `{next(iter(time.values()))}` is "
            "meant, because the model was trained on one. Got neither."
        )
    if time is not None and args.since is args.until is None:
        raise InputError("`--time` must come with `--since` or `--until`. Got neither.")
    return {
        "edges": files if len(files) > 1 else next(iter(files.values())),
        "weight": weight,
        "weight_bounds": bounds,
        "time": time,
        "time_format": written,
        "since": args.since,
        "until": args.until,
        "source": source,
        "target": target,
    }


def _declares_weight(args: argparse.Namespace, schema: Schema | None) -> bool:
    """Whether the schema of the command, or else of the model, declares bounds of amounts."""
    from gapgnn.graph.tables import Schema

    if args.schema is not None:
        schema = Schema.read(args.schema)
    return schema is not None and schema.weight is not None


def _by_edge_type(
    option: str, words: Sequence[str] | None, edge_types: Mapping[str, Source]
) -> str | dict[str, str] | None:
    """Return a column for every edge table, or those given as TYPE=COLUMN."""
    if words is None:
        return None
    found: dict[str, str] = {}
    for word in words:
        edge_type, is_named, column = word.partition("=")
        if not is_named or edge_type not in edge_types:
            if len(words) > 1:
                raise InputError(
                    f"`--{option}` must be TYPE=COLUMN where it is given several times. "
                    f"Got {word!r}; the edge types are {', '.join(edge_types)}."
                )
            return word
        if edge_type in found:
            raise InputError(
                f"`--{option}` must name each edge type once. Got {edge_type!r} twice."
            )
        found[edge_type] = column
    return found if len(edge_types) > 1 else next(iter(found.values()))


def _is_node_level(args: argparse.Namespace, level: str | None) -> bool:
    return (level or getattr(args, "level", None)) == "node"


def _no_label() -> InputError:
    return InputError("`--label` must name the node column with the class to predict. Got none.")


def _check_node_level(args: argparse.Namespace, has_schema: bool) -> None:
    """Refuse to infer from the table what must be declared (privacy page, section 2)."""
    from gapgnn.graph.tables import has_stated_width

    if not has_schema:
        words = ["gapgnn", "schema", "--nodes", str(args.nodes)]
        words += [] if args.label is None else ["--label", args.label]
        words += [word for name in args.drop or () for word in ("--drop", name)]
        words += dialect_of(args).words
        command = shlex.join([*words, "--out", "schema.toml"])
        raise InputError(
            "`--schema` must say at node level which columns, categories and classes are public. "
            f"Got none; `{command}` proposes one to edit."
        )
    if args.dangling == "drop":
        raise InputError(
            "`--dangling` must be keep at node level, where edges to ids without a row count for "
            "the out-degree: dropped, removing a person would change other records. Got 'drop'."
        )
    if args.min_class_count is not None:
        raise InputError(
            f"`--min-class-count` must be left out at node level. Got {args.min_class_count}; "
            "declare the classes in the schema instead."
        )
    if args.features is not None and not has_stated_width(args.features):
        raise InputError(
            "`--features` must be a matrix (.npz or .npy) at node level, because in JSON the "
            f"largest column that anybody has decides the width. Got {str(args.features)!r}."
        )


def add_curator_option(group: argparse._ActionsContainer) -> None:
    """Add `--curator-only` to a command that shows figures computed from private data."""
    group.add_argument(
        "--curator-only",
        metavar="REASON",
        help="for people with a privacy budget: the figures stay with the curator, and the access "
        "is recorded in the ledger with this reason, uncharged",
    )


def check_curator(args: argparse.Namespace, graph: Graph, *, purpose: str) -> None:
    """Refuse uncharged access to people who have a budget, unless the curator gives a reason.

    Figures of an experiment or an attack are computed from private data without noise. Passing
    them on is a release, so under a budget they are for the curator only, and the access is logged.
    """
    from gapgnn.privacy.ledger import People

    check_access(
        People.of(graph),
        ledger=getattr(args, "ledger", None),
        curator_only=args.curator_only,
        purpose=purpose,
    )


def check_access(
    people: People, *, ledger: str | Path | None, curator_only: str | None, purpose: str
) -> None:
    """Refuse access to people with a budget without a reason; record it in the ledger otherwise.

    Args:
        people: whose data is read.
        ledger: its file; left out: the user's ledger.
        curator_only: the curator's reason; None if there is none.
        purpose: the command that reads the data.
    """
    from gapgnn.privacy.ledger import Ledger

    opened = Ledger(ledger)
    budgets = opened.budgets_of(people)
    if not budgets:
        opened.note_overlaps(people)
        return
    if curator_only is None:
        raise PrivacyError(
            f"the people of {budgets[0].population!r} have a privacy budget, and `{purpose}` shows "
            "figures computed from their data without spending it. Give `--curator-only REASON` if "
            "they stay with you: this access is then recorded in the ledger."
        )
    for budget in budgets:
        opened.log_access(
            people,
            level=budget.level,
            relation=budget.relation,
            purpose=purpose,
            reason=curator_only,
        )


def reading_bars(quiet: bool) -> AbstractContextManager[Callable[[str, int, int | None], None]]:
    """Return progress bars for reading, which disappear at the end."""
    columns = ("TaskProgressColumn", "TimeRemainingColumn")
    return progress_bars("reading {task.description:<12}", *columns, quiet=quiet)
