"""`gapgnn help COMMAND`: the same as `gapgnn COMMAND --help`."""

from __future__ import annotations

import argparse
import contextlib

EXAMPLES = """\
examples:
  gapgnn help
  gapgnn help train
  gapgnn help train gap
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command to explain."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND", help="a command, and its subcommands if it has any"
    )


def execute(args: argparse.Namespace) -> int:
    """Print the help of the command, or the overview."""
    from gapgnn.cli.main import main

    with contextlib.suppress(SystemExit):  # how the parser ends after printing
        main([*args.words, "--help"])
    return 0
