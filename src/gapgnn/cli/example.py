"""`gapgnn example`: tables as a bank or a hospital has them, generated, with the truth."""

from __future__ import annotations

import argparse
from pathlib import Path

from gapgnn.cli.output import emit_json, say

EXAMPLES = """\
examples:
  gapgnn example bank --out bank
  gapgnn example hospital --out hospital --seed 7

bank: 12,500 customers with columns of every kind, 150,000 payments with repetitions and accounts of
other banks; 3 % are of high risk, known for three of ten. hospital: 6,000 patients and their
contacts; who came back is known for three of five. `truth.csv` has the class of everybody,
`schema.toml` what would be declared public. The same seed writes the same files.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn example`."""
    parser.epilog = EXAMPLES
    parser.add_argument("kind", choices=["bank", "hospital"], help="whose tables")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="a new or empty folder"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="other people of the same kind"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Write the tables and say which."""
    from gapgnn.graph.datasets import write_example

    paths = write_example(args.kind, args.out, seed=args.seed)
    if args.json:
        emit_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            say(str(path))
    return 0
