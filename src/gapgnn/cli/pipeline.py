"""`gapgnn audit pipeline`: run a whole command on neighbouring files and compare its output."""

from __future__ import annotations

import argparse
import functools
import importlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.cli.data import add_curator_option
from gapgnn.cli.output import complain, console, emit_json, progress_bars, say
from gapgnn.errors import InputError, without_password

if TYPE_CHECKING:
    from gapgnn.audits import Case, Outcome, Tables
    from gapgnn.graph.tables import Preparation, TableFile

TEXT = "a whole command, from table to folder, on neighbouring files"
EXAMPLES = """\
examples:
  gapgnn audit pipeline train gap --level node --epsilon 4
  gapgnn audit pipeline train gap --level edge --edges friends.csv --nodes people.csv --label year
  gapgnn audit pipeline --neighbours hub,huge train mlp --level node --nodes people.csv \\
      --edges friends.csv --schema schema.toml
  gapgnn audit pipeline --parts 4 --interrupt-after 2 train gap --edges friends.csv ...
  gapgnn audit pipeline predict --model model --edges new.csv --nodes people.csv --label year
  gapgnn audit pipeline --model model
  gapgnn audit pipeline --model model train --edges friends.csv --nodes people.csv --label year

Options before `train`, `embed` or `predict` belong to the audit, options after it to the command.
The command runs twice for every pair of neighbouring inputs: recorded on the first, and replayed on
the second, where every release returns the recorded value. Releases may differ by what is accounted
for, and everything else must be equal. Nothing is charged to your ledger. What the runs write is
deleted after the comparison. Exit code 1: the outputs differ. The distance of releases without
noise is private: for people with a privacy budget give `--curator-only REASON`, which is recorded
in the ledger.

With `--model` before the command, the training of this model is audited, on the built-in graph or
on the tables given, and the result is kept in the model's folder for `gapgnn report`. For your own
tables only whether anything was found is kept.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn audit pipeline`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--neighbours",
        metavar="PAIR,...",
        help="pairs of neighbouring inputs, such as first,hub,huge (default: all of the level)",
    )
    parser.add_argument(
        "--parts", type=int, metavar="N", help="put the tables into a store of N parts first"
    )
    parser.add_argument(
        "--interrupt-after",
        type=int,
        metavar="K",
        help="kill each run after K releases and resume it (with --parts)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice of neighbours")
    add_curator_option(parser)
    # Suppressed, or its default would overwrite what stood before the mechanism's name.
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        default=argparse.SUPPRESS,
        help="audit the training of this saved model, and keep the result in its folder",
    )
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="the command: train METHOD ..., embed ... or predict ...",
    )


def execute(args: argparse.Namespace) -> int:
    """Audit the command and report; exit code 1 if there are findings."""
    from gapgnn.audits import audit_pipeline
    from gapgnn.cli.main import main

    words = [word for word in args.command if word != "--"]
    if args.model is not None:
        words = _training_of(args.model, words)
    case = case_of(words, parts=args.parts, interrupt_after=args.interrupt_after)
    _check_people(args, words, case.tables)
    pair_types = None if args.neighbours is None else args.neighbours.split(",")
    with progress_bars("neighbours", "MofNCompleteColumn") as advance:
        advance("neighbours", 0, None)
        move = functools.partial(advance, "neighbours")
        outcomes = audit_pipeline(case, main, pair_types=pair_types, seed=args.seed, progress=move)
    if all(outcome.skipped for outcome in outcomes):
        why = "; ".join(f"{outcome.pair_type}: {outcome.skipped}" for outcome in outcomes)
        raise InputError(
            "`--neighbours` must have a pair that applies to the command. Got none "
            f"({why or 'no pair at all'}), so nothing was audited."
        )
    holds = all(outcome.holds for outcome in outcomes)
    if args.model is not None:
        _keep(args.model, args.command, outcomes)
    if args.json:
        emit_json(
            {
                "mechanism": "pipeline",
                "command": ["gapgnn", *words],
                "level": case.level,
                "relation": case.relation.name,
                "holds": holds,
                "neighbours": [outcome.to_dict() for outcome in outcomes],
            }
        )
    else:
        _print(outcomes)
    if not holds:
        found = sum(len(outcome.findings) for outcome in outcomes)
        by = "1 finding distinguishes" if found == 1 else f"{found} findings distinguish"
        complain(f"The guarantee is violated: {by} neighbouring inputs.")
    return 0 if holds else 1


def _check_people(args: argparse.Namespace, words: Sequence[str], tables: Tables) -> None:
    """Refuse to read people who have a budget, unless the curator gives a reason."""
    import numpy as np

    from gapgnn.cli.data import check_access
    from gapgnn.methods import load_model
    from gapgnn.privacy.ledger import People

    parsed = _parsed(words)[0]
    if parsed.edges is None:
        return
    population = parsed.population
    if population is None and words[0] == "predict":
        said = load_model(parsed.model).preparation_
        population = None if said is None else said.population
    every = (tables.edges, *(rows for _, _, rows in tables.more))
    named = {name for rows in every for row in rows for name in row[:2]}
    ids = np.array(sorted(named.union(tables.ids)))
    check_access(
        People.listed(ids, namespace=population or "default"),
        ledger=parsed.ledger,
        curator_only=args.curator_only or getattr(parsed, "curator_only", None),
        purpose="audit pipeline",
    )


def _training_of(folder: Path, words: Sequence[str]) -> list[str]:
    """Return the command that trains as a saved model was trained, on the data that is given."""
    from gapgnn.cli.options import method_options, method_words
    from gapgnn.methods import load_model, method_config

    if words and words[0] != "train":
        raise InputError(f"`--model` must come with train, or alone. Got {words[0]!r}.")
    model = load_model(folder)
    params = {k: v for k, v in model.saved_parameters().items() if k != "insecure_noise_seed"}
    if model.card_.level == "edge":
        # The relation that was promised, whichever way the links of other tables run.
        params["relation"] = model.card_.relation.name
    config = method_config(model.method)
    options = method_words(config, params)
    made = ["train", model.method, *options, *words[1:]]
    chosen = method_options(_parsed(made)[0], config)
    changed = [
        name
        for name, value in params.items()
        if name in chosen and chosen[name] != (tuple(value) if type(value) is list else value)
    ]
    if changed:
        raise InputError(
            f"`--{changed[0].replace('_', '-')}` must be left out: the model's own is audited. Got "
            f"{chosen[changed[0]]!r}."
        )
    return made


def _keep(folder: Path, given: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes into the model's folder; for the user's tables only whether all hold.

    There the ids of neighbours, and the distance of releases without noise, are private.
    """
    from gapgnn.methods import keep_audit

    ran = [outcome for outcome in outcomes if not outcome.skipped]
    is_own = any(word.split("=")[0] in ("--edges", "--store") for word in given)
    if is_own:
        tables = f"{len(ran)} {'pair' if len(ran) == 1 else 'pairs'} of neighbouring tables"
        rows = [
            {
                "neighbours": f"{tables}, made from the curator's own",
                "releases": sum(len(outcome.releases) for outcome in ran),
                "holds": all(outcome.holds for outcome in ran),
            }
        ]
    else:
        rows = [
            {
                "neighbours": outcome.pair_type,
                "releases": len(outcome.releases),
                "holds": outcome.holds,
            }
            for outcome in ran
        ]
    words = map(without_password, given)
    command = shlex.join(["gapgnn", "audit", "pipeline", "--model", str(folder), *words])
    keep_audit(folder, audit="pipeline", command=command, results=rows)


def case_of(
    words: Sequence[str], *, parts: int | None = None, interrupt_after: int | None = None
) -> Case:
    """Return what to audit from the words of a command.

    >>> case_of(["train", "gap", "--level", "none"])
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `level` must be edge or node to be audited. Got 'none'.
    """
    from gapgnn.audits import Case

    if not words or words[0] not in ("train", "embed", "predict"):
        given = " ".join(words[:2]) or "nothing"
        raise InputError(f"`command` must start with train, embed or predict. Got {given!r}.")
    parsed, kept = _parsed(words)
    if getattr(parsed, "store", None) is not None:
        raise InputError(
            "`--store` cannot be audited: neighbours are made of tables. Give the tables, and "
            "`--parts N` before the command to have them put into a store."
        )
    if interrupt_after is not None and parts is None:
        raise InputError("`--interrupt-after` must come with `--parts`. Got no store to resume.")
    model = ledger = None
    if words[0] == "predict":
        from gapgnn.privacy.ledger import Ledger

        model, ledger = parsed.model, Ledger(parsed.ledger).path
        kept += _recall(parsed)
    method, level, relation, degree, protects, own = (
        getattr(parsed, name, None)
        for name in ("method", "level", "relation", "max_degree", "edge_types", "own")
    )
    if level not in ("edge", "node"):
        raise InputError(f"`level` must be edge or node to be audited. Got {level!r}.")
    tables = _tables(parsed)
    from gapgnn.privacy import resolve_relation

    return Case(
        words=tuple(kept),
        tables=tables,
        relation=resolve_relation(level, relation or "auto", is_directed=tables.directed),
        max_degree=degree if isinstance(degree, int) else None,
        seed=getattr(parsed, "seed", 0),
        parts=parts,
        interrupt_after=interrupt_after,
        model=None if model is None else Path(model).resolve(),
        ledger=ledger,
        protects=protects or "auto",
        keeps_rows=level == "node" and (own == "record" or method == "vote"),
    )


def _recall(parsed: argparse.Namespace) -> list[str]:
    """Take over the model's parameters for `predict`; return words that keep its dialect."""
    from gapgnn.cli.data import dialect_of
    from gapgnn.methods import load_model

    fitted = load_model(parsed.model)
    settled, said = fitted.get_params(), fitted.preparation_
    vars(parsed).update(
        {name: settled.get(name) for name in ("max_degree", "edge_types", "own")},
        method=fitted.method,
        level=fitted.level,
        relation=fitted.card_.relation,
        schema_of_model=fitted.schema_,
        preparation_of_model=said,
    )
    if said is None or not said.dialect:
        return []
    numbers = said.spelling().of_numbers
    if dialect_of(parsed, said).of_numbers != numbers:
        return []
    # The audit writes tables with commas, whatever the model remembers.
    return ["--delimiter", ",", *numbers.words]


# Options that say where data comes from and results go: the audit sets its own.
_PLACES = {
    **dict.fromkeys(("--dataset", "--edges", "--nodes", "--label", "--features", "--schema"), 1),
    **dict.fromkeys(("--out", "--model", "--ledger", "--store"), 1),
    **dict.fromkeys(("--delimiter", "--quote", "--header"), 1),
    **dict.fromkeys(("--weight", "--time", "--time-format", "--since", "--until"), 1),
    **dict.fromkeys(("--source", "--target"), 1),
    "--weight-bounds": 2,
    **dict.fromkeys(("--directed", "--undirected", "--json", "--resume"), 0),
}
# Options that say how tables are read: they go wherever the tables do, also into a store.
_READING = (
    "dangling",
    "drop",
    "min_class_count",
    "population",
    "decimal",
    "thousands",
    "dropped_at_most",
)


def _parsed(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed command and its words without those that choose data and output."""
    from gapgnn.cli.main import COMMANDS, Parser
    from gapgnn.cli.options import expand_config

    module = importlib.import_module(COMMANDS[words[0]][0])
    parser = Parser(prog=f"gapgnn {words[0]}")
    module.configure(parser)
    full = parser.complete(words[1:])
    if words[0] == "predict" and not any(word.split("=")[0] == "--out" for word in full):
        full += ["--out", "predictions.csv"]
    parsed = parser.parse_args(full)
    if "--config" in parser._option_string_actions:
        full = expand_config(full, parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            # What `--config` says is spelled out: it may choose data, too.
            full = [full[0], *expand_config(full[1:], action.choices[full[0]])]
    kept, skip = [words[0]], 0
    for word in full:
        if skip:
            skip -= 1
            continue
        name = word.split("=")[0]
        if name in _PLACES or name[2:].replace("-", "_") in _READING:
            skip = 0 if "=" in word else _PLACES.get(name, 1)
        else:
            kept.append(word)
    return parsed, kept


def _tables(parsed: argparse.Namespace) -> Tables:
    """Read the input of a command as rows of text; a known data set is written as tables first."""
    from gapgnn.audits import Tables
    from gapgnn.cli.data import check_options, dialect_of, edge_files, edge_options
    from gapgnn.graph.tables import Schema, end_columns, open_table

    known = getattr(parsed, "schema_of_model", None)
    said = getattr(parsed, "preparation_of_model", None)
    check_options(parsed, needs_label=False, schema=known, preparation=said)
    if parsed.edges is None:
        return _tables_of_dataset(parsed)
    dialect = dialect_of(parsed, said)
    node_table = open_table(parsed.nodes, what="nodes", dialect=dialect)
    first = "id" if "id" in node_table.columns else node_table.columns[0]
    node_columns, nodes = _rows(node_table, [first])
    edge_tables = []
    chosen = edge_options(parsed, said, known)
    ends = chosen["source"], chosen["target"]
    for name, path in edge_files(parsed.edges).items():
        table = open_table(path, what="edges", dialect=dialect)
        key = name if len(parsed.edges) > 1 else ""
        stated = [end.get(key) if isinstance(end, dict) else end for end in ends]
        edge_tables.append((name, *_rows(table, list(end_columns(table, *stated)))))
    (edge_type, edge_columns, edges), *more = edge_tables
    features = None
    if parsed.features is not None:
        import numpy as np

        from gapgnn.graph.tables import read_features

        features = read_features(parsed.features, np.array([row[0] for row in nodes]))
    schema, label = None, parsed.label
    if parsed.schema is not None:
        schema = Path(parsed.schema).read_text(encoding="utf-8")
        declared = Schema.read(parsed.schema).label
        if label is None and known is None and declared is not None:
            label = declared.column
    elif known is not None:
        schema = known.to_toml()
    directed = bool(said is not None and said.directed)
    if parsed.directed is not None:
        directed = parsed.directed
    return Tables(
        node_columns,
        nodes,
        edge_columns,
        edges,
        label,
        directed,
        features,
        schema,
        edge_type=edge_type,
        more=tuple(more),
        weight=_weight_of(parsed, edge_type, edge_columns),
        edge_words=tuple(_edge_words(parsed)),
    )


def _edge_words(parsed: argparse.Namespace) -> list[str]:
    """Return the options that say what is read of the tables, and how."""
    words = [word for each in parsed.weight or () for word in ("--weight", each)]
    for low, high in parsed.weight_bounds or ():
        words += ["--weight-bounds", repr(low), repr(high)]
    for name in ("time", "time_format", "source", "target"):
        option = f"--{name.replace('_', '-')}"
        words += [word for each in getattr(parsed, name) or () for word in (option, each)]
    for name in ("since", "until"):
        value = getattr(parsed, name)
        words += [] if value is None else [f"--{name}={value}"]
    for name in _READING:
        value = getattr(parsed, name)
        for each in value if isinstance(value, list) else [value]:
            words += [] if each is None else [f"--{name.replace('_', '-')}={each}"]
    return words


def _weight_of(parsed: argparse.Namespace, edge_type: str, columns: Sequence[str]) -> str | None:
    """Return the column of the first edge table with amounts, if it has one."""
    said: Preparation | None = getattr(parsed, "preparation_of_model", None)
    if parsed.weight is None and said is not None:
        key = edge_type if len(parsed.edges) > 1 else ""
        remembered: str | None = said.edge_options([key])["weight"].get(key)
        return remembered
    for word in parsed.weight or ():
        name, is_named, column = word.partition("=")
        found: str = column if is_named and name == edge_type else word
        if found in columns:
            return found
    return None


def _rows(
    table: TableFile, first: list[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return a table's columns and rows as text, with some columns first."""
    import pyarrow as pa

    columns = list(table.columns)
    # As text: what a cell of a text file holds is written as it stands.
    text = dict.fromkeys(columns, pa.large_string()) if table.is_text else {}
    rows = [
        ["" if value is None else str(value) for value in row.values()]
        for batch in table.batches(columns, types=text, missing=[])
        for row in batch.to_pylist()
    ]
    order = [columns.index(name) for name in first]
    order += [place for place in range(len(columns)) if place not in order]
    names = tuple(columns[place] for place in order)
    return names, tuple(tuple(row[place] for place in order) for row in rows if row)


def _tables_of_dataset(parsed: argparse.Namespace) -> Tables:
    """Return a known data set as tables: ids and classes, links, and its features as a matrix."""
    import numpy as np

    from gapgnn.audits import Tables
    from gapgnn.cli.data import DEFAULT_DATASET
    from gapgnn.graph import csr
    from gapgnn.graph.datasets import load_dataset
    from gapgnn.graph.tables import Schema

    graph = load_dataset(parsed.dataset or DEFAULT_DATASET, split_seed=None)
    names = graph.label_names or tuple(str(label) for label in range(graph.num_classes))
    ids = [str(name) for name in graph.ids.tolist()]
    nodes = tuple(
        (name, "" if label < 0 else names[label])
        for name, label in zip(ids, graph.labels.tolist(), strict=True)
    )
    sources, targets = csr.sources(graph.indptr, np.int64), graph.indices
    wanted = np.ones(len(targets), bool) if graph.is_directed else sources < targets
    edges = tuple(
        (ids[u], ids[v])
        for u, v in zip(sources[wanted].tolist(), targets[wanted].tolist(), strict=True)
    )
    schema = Schema.from_dict({"label": {"column": "class", "classes": names}}).to_toml()
    heads = ("id", "class"), ("source", "target")
    is_directed, features = graph.is_directed, graph.features
    return Tables(heads[0], nodes, heads[1], edges, "class", is_directed, features, schema)


def _print(outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table

    heads = ("neighbours", "differ in", "releases", "moved most, of what is accounted", "")
    table = Table(*heads, title="audit of the pipeline")
    for outcome in outcomes:
        worst = outcome.worst
        most = "-" if worst is None else f"{worst.observed / worst.accounted:.4f} ({worst.name})"
        count = len(outcome.findings)
        verdict = f"{count} finding{'s' * (count != 1)}" if count else "holds"
        if outcome.skipped:
            verdict = f"skipped: {outcome.skipped}"
        table.add_row(outcome.pair_type, outcome.who, str(len(outcome.releases)), most, verdict)
    console(to_stderr=False).print(table)
    for outcome in outcomes:
        for text in outcome.public:
            say(f"{outcome.pair_type}: public fact differs: {text}")
        for text in outcome.findings:
            say(f"{outcome.pair_type}: FOUND {text}")
