"""`gapgnn example`: generate tables like those of a bank or a hospital, with true classes."""

from __future__ import annotations

import argparse
from pathlib import Path

from gapgnn.cli.output import emit_json, say

EXAMPLES = """\
examples:
  gapgnn example bank --out bank
  gapgnn example hospital --out hospital --seed 7

bank: 12,500 customers with columns of every type, and 150,000 payments with repetitions and
accounts of other banks; 3 % of the customers have a high risk, and 30 % have a label. hospital:
6,000 patients and their contacts; whether a patient was readmitted is known for 60 %. `truth.csv`
has the class of everybody, `schema.toml` the public declarations. The same seed writes the same
files.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gapgnn example`."""
    parser.epilog = EXAMPLES
    parser.add_argument("example", choices=["bank", "hospital"], help="whose tables")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="a new or empty folder"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the generated people"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Write the tables and print their paths."""
    from gapgnn.graph.datasets import write_example

    paths = write_example(args.example, args.out, seed=args.seed)
    if args.json:
        emit_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            say(str(path))
    return 0
