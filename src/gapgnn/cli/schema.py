"""`gapgnn schema`: propose what to declare public about tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.cli.data import add_dialect_options, dialect_of, table_word
from gapgnn.cli.output import console, emit_json, say
from gapgnn.errors import InputError, check_all

if TYPE_CHECKING:
    from gapgnn.graph.tables import Schema

EXAMPLES = """\
examples:
  gapgnn schema --nodes people.csv --label team --out schema.toml
  gapgnn schema --nodes people.parquet --label year --drop name --out schema.toml --json
  gapgnn schema --nodes people.csv --label risk --delimiter semicolon --decimal , --out schema.toml
  gapgnn schema --nodes people.csv --edges payments.csv --weight amount --out schema.toml
  gapgnn train gap --edges friends.csv --nodes people.csv --schema schema.toml --level node
  gapgnn schema --json-schema > schema.json        what the file may hold, for editors

At node level nothing may be learned from single people: not which categories there are, not how
large a number can be, not which classes exist. The schema says it instead. What is proposed was
read from the table without noise, so check and edit it before anything else sees it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn schema`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--nodes", type=table_word, required=True, metavar="FILE", help="your node table"
    )
    parser.add_argument("--label", metavar="COLUMN", help="the column with the class to predict")
    parser.add_argument(
        "--drop",
        metavar="COLUMN",
        action="append",
        help="a column that is not a feature; may be given several times",
    )
    parser.add_argument(
        "--edges",
        type=table_word,
        metavar="FILE",
        help="your edge table, to propose bounds of --weight",
    )
    parser.add_argument(
        "--weight", metavar="COLUMN", help="the column of the edge table with an amount"
    )
    add_dialect_options(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the schema, TOML; must be new"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--json-schema",
        action=_JsonSchema,
        nargs=0,
        help="print the JSON schema of schema.toml, for editors and other programs, and stop",
    )


class _JsonSchema(argparse.Action):
    """Prints what a schema file may hold, as ``--help`` prints options: nothing else is needed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the JSON schema and stop."""
        import json

        from gapgnn.graph.tables import json_schema

        print(json.dumps(json_schema(), indent=2))
        parser.exit()


def execute(args: argparse.Namespace) -> int:
    """Read the table, write the proposal, and print what to check."""
    from gapgnn.graph.tables import propose_schema

    check_all(lambda: _check_target(args.out), lambda: dialect_of(args))
    schema = propose_schema(
        args.nodes,
        args.label,
        args.drop or (),
        edges=args.edges,
        weight=args.weight,
        dialect=dialect_of(args),
    )
    _write(args.out, schema.to_toml(args.nodes.name))
    if args.json:
        emit_json({"out": str(args.out), "notes": schema.notes, "schema": schema.to_dict()})
    else:
        _print(args.out, schema)
    return 0


def _check_target(path: Path) -> None:
    if path.exists():
        raise InputError(f"`--out` must be a new file. Got {str(path)!r}, which is there.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"`--out` must lie in a folder that exists. Got {str(path)!r}.")


def _write(path: Path, text: str) -> None:
    try:
        # Exclusive, so that a file that appeared meanwhile is not overwritten either.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"`--out` must be a new, writable file. Got {str(path)!r}: {error.strerror}."
        ) from None


def _print(path: Path, schema: Schema) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from gapgnn.graph.tables import column_summary

    heads = (Column(title, overflow="fold") for title in ("column", "becomes"))
    table = Table(*heads, title=escape(f"proposed in {path}"))
    for column in schema.columns:
        table.add_row(escape(column.name), escape(column_summary(column)))
    if schema.label is not None:
        classes = ", ".join(schema.label.classes)
        table.add_row(escape(schema.label.column), escape(f"the label: {classes}"))
    if schema.weight is not None:
        low, high = schema.weight.bounds
        table.add_row(escape(schema.weight.column), f"amounts of edges, {low:g} to {high:g}")
    console(to_stderr=False).print(table)
    for note in schema.notes:
        say(f"- {note}")
