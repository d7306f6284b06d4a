"""Entry point: finds the command, loads only that command's module, turns errors into one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from gapgnn import __version__
from gapgnn.cli.output import complain
from gapgnn.errors import GapgnnError, InputError, did_you_mean

# Each module has `configure(parser)` and `execute(args) -> int`; it is imported only when named.
COMMANDS = {
    "train": ("gapgnn.cli.train", "train a model privately and print its accuracy and guarantee"),
    "predict": ("gapgnn.cli.predict", "predict labels with a saved model"),
    "noise": ("gapgnn.cli.noise", "how much noise a budget needs, and what a noise level costs"),
    "datasets": ("gapgnn.cli.datasets", "the known data sets: sizes, and which are here"),
    "ledger": ("gapgnn.cli.ledger", "privacy budgets: granted, spent, left"),
    "attack": ("gapgnn.cli.attack", "attack a model: who was a member, who is connected to whom"),
    "audit": ("gapgnn.cli.audit", "try to break a mechanism: a measured lower bound on epsilon"),
    "experiment": ("gapgnn.cli.experiment", "the paper's tables and figures, resumable"),
    "report": ("gapgnn.cli.report", "turn a folder of results into one page, figures and tables"),
    "partition": ("gapgnn.cli.partition", "put a graph on disk, for one that outgrows the memory"),
    "schema": ("gapgnn.cli.schema", "propose what to declare public about your node table"),
    "describe": ("gapgnn.cli.describe", "what a data set or your own tables contain"),
    "example": ("gapgnn.cli.example", "tables of a bank or a hospital to try everything on"),
}

EXAMPLES = """\
examples:
  gapgnn train                                     GAP on the built-in graph, edge level, epsilon 1
  gapgnn train gap --dataset facebook100/Cornell5 --level node --epsilon 8
  gapgnn train gap --edges friends.csv --nodes people.csv --label year --out model
  gapgnn predict --model model --out labels.csv
  gapgnn noise --level edge --epsilon 1 --delta 1e-7 --hops 2
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, exit 2, with the nearest known name."""

    # The subcommand that is meant where none is named: `gapgnn train` means `train gap`.
    default_choice: str | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage: `run` prints the one line."""
        raise InputError(f"{message} (see `{self.prog} --help`)")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and name the nearest known option for an unknown one."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0])
            hint = did_you_mean(word.split("=")[0], self._option_names())
            raise InputError(f"unknown option {word!r}.{hint} (see `{self.prog} --help`)")
        return known

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; where the command has `--config FILE`, its options come before the given ones."""
        words = self.complete(sys.argv[1:] if args is None else args)
        if "--config" in self._option_string_actions:
            from gapgnn.cli.options import expand_config

            words = expand_config(words, self)
        return super().parse_known_args(words, namespace)

    def complete(self, words: Sequence[str]) -> list[str]:
        """Return the words with the default subcommand first where none is named."""
        is_named = words and not words[0].startswith("-")
        if self.default_choice is None or is_named or {"-h", "--help"} & set(words):
            return list(words)
        return [self.default_choice, *words]

    def _option_names(self) -> list[str]:
        """Return every option of this parser and of the subcommands below it."""
        names: list[str] = []
        for action in self._actions:
            names += action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    names += child._option_names()
        return names


def _overview() -> Parser:
    lines = [f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items()]
    parser = Parser(
        prog="gapgnn",
        description="Train graph neural networks on private graphs with differential privacy.\n\n"
        "commands:\n" + "\n".join(lines),
        epilog=EXAMPLES,
        usage="gapgnn COMMAND [options]",
    )
    parser.add_argument("--version", action="version", version=f"gapgnn {__version__}")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; library errors pass through."""
    _check_words(argv)
    overview = _overview()
    if not argv or argv[0].startswith("-"):
        overview.parse_args(argv)
        overview.print_help()
        return 0
    name = argv[0]
    if name not in COMMANDS:
        raise InputError(
            f"unknown command {name!r}.{did_you_mean(name, COMMANDS)} (see `gapgnn --help`)"
        )
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(prog=f"gapgnn {name}", description=COMMANDS[name][1])
    module.configure(parser)
    code: int = module.execute(parser.parse_args(argv[1:]))
    return code


def _check_words(argv: Sequence[str]) -> None:
    """Refuse bytes that are no text: names, reasons and paths are written to files as UTF-8."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"every word of the command must be UTF-8 text. Got {word!a}."
            ) from None


_python_shows = warnings.showwarning


def _show_warning(
    message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> None:
    """Show what the ledger has to tell people as one line, and other warnings as Python does."""
    from gapgnn.privacy.ledger import LedgerNotice

    if issubclass(category, LedgerNotice):
        complain(str(message))
    else:
        _python_shows(message, category, *place, **more)


def run() -> NoReturn:
    """Console script: exit 0, or 2 with one line on stderr, or 130 on Ctrl-C."""
    warnings.showwarning = _show_warning
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except GapgnnError as error:
        complain(str(error))
        code = 2
    except KeyboardInterrupt as error:
        complain(str(error) or "interrupted; nothing is left half-written")
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
