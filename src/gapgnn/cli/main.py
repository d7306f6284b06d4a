"""Entry point: finds the command, loads only that command's module, turns errors into one line."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from gapgnn import __version__
from gapgnn.cli.output import (
    complain,
    emit_json,
    is_quiet,
    is_verbose,
    log,
    log_format,
    logs_json,
    printable,
    say,
    verbosity,
)
from gapgnn.cli.receipts import CHARGING, Receipt, opened
from gapgnn.errors import (
    BusyError,
    GapgnnError,
    InputError,
    IntegrityError,
    UnavailableError,
    did_you_mean,
    outcome_of,
)

# Each module has `configure(parser)` and `execute(args) -> int`; it is imported only when named.
COMMANDS = {
    "train": ("gapgnn.cli.train", "train a model privately and print its accuracy and guarantee"),
    "tune": ("gapgnn.cli.tune", "choose hyperparameters inside the budget, charged once"),
    "predict": ("gapgnn.cli.predict", "predict labels with a saved model"),
    "serve": ("gapgnn.cli.serve", "answer with a model's predictions over HTTP, uncharged"),
    "embed": ("gapgnn.cli.embed", "release noisy sums over neighbours, to build any model on"),
    "noise": ("gapgnn.cli.noise", "how much noise a budget needs, and what a noise level costs"),
    "simulate": ("gapgnn.cli.simulate", "what an epsilon gives, before private data is read"),
    "datasets": ("gapgnn.cli.datasets", "the known data sets: sizes, and which are here"),
    "ledger": ("gapgnn.cli.ledger", "privacy budgets: granted, spent, left"),
    "forget": ("gapgnn.cli.forget", "remove people from saved models, and record it"),
    "attack": ("gapgnn.cli.attack", "attack a model: who was a member, who is connected to whom"),
    "audit": ("gapgnn.cli.audit", "try to break a mechanism: a measured lower bound on epsilon"),
    "experiment": ("gapgnn.cli.experiment", "the paper's tables and figures, resumable"),
    "report": ("gapgnn.cli.report", "turn a folder of results into one page, figures and tables"),
    "release": ("gapgnn.cli.release", "a model with the evidence for its promise, for outsiders"),
    "verify": ("gapgnn.cli.verify", "is a release what was released? needs its folder alone"),
    "compare": ("gapgnn.cli.compare", "two or more models or releases side by side, by mu"),
    "partition": ("gapgnn.cli.partition", "put a graph on disk, for one that outgrows the memory"),
    "schema": ("gapgnn.cli.schema", "propose what to declare public about your node table"),
    "describe": ("gapgnn.cli.describe", "what a data set or your own tables contain"),
    "example": ("gapgnn.cli.example", "tables of a bank or a hospital to try everything on"),
    "completion": ("gapgnn.cli.completion", "a script that lets your shell complete commands"),
    "help": ("gapgnn.cli.help", "what a command does, and its options"),
}
# What these commands write is made of public data, and a folder of it may serve several people.
_PUBLIC = ("datasets",)
_VERBOSITIES = {"-v": "verbose", "--verbose": "verbose", "-q": "quiet", "--quiet": "quiet"}
_LOG_FORMATS = ("text", "json")

EXAMPLES = """\
examples:
  gapgnn train                                     the built-in graph, edge level, epsilon 1
  gapgnn train --dataset facebook100/Cornell5 --level node --epsilon 8
  gapgnn train --edges friends.csv --nodes people.csv --label year --out model
  gapgnn train gap --level edge --epsilon 1 --plan
  gapgnn predict --model model --out labels.csv
  gapgnn noise --level edge --epsilon 1 --delta 1e-7 --hops 2
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line with the nearest known name, and exit code 2."""

    # The subcommand that is meant where none is named; for `gapgnn train` it follows from --level.
    default_choice: str | Callable[[Sequence[str]], str] | None = None
    # Declares the options when they are first asked for: of several methods one is meant.
    later: Callable[[Parser], None] | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        # One meaning for all commands. Suppressed, or the default of a subcommand would overwrite
        # what stood before its name.
        for names, level, text in (
            (
                ("-v", "--verbose"),
                "verbose",
                "also print how long phases took, and where errors are",
            ),
            (
                ("-q", "--quiet"),
                "quiet",
                "print only results, errors and warnings about budgets",
            ),
        ):
            self.add_argument(
                *names,
                dest="verbosity",
                action="store_const",
                const=level,
                default=argparse.SUPPRESS,
                help=text,
            )
        self.add_argument(
            "--log-format",
            choices=_LOG_FORMATS,
            default=argparse.SUPPRESS,
            help="how everything for people is written to stderr: text (default), or json, one "
            "object a line",
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage: `run` prints the one line."""
        raise InputError(f"{message}{_nearest_choice(message)} (see `{self.prog} --help`)")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and name the nearest known option for an unknown one."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            known, unknown = self.parse_known_args(words, namespace)
        except InputError:
            # A misspelt option is also one that is missing; the misspelling is the news.
            names = set(self.option_names())
            unknown = [
                word for word in words if word[:2] == "--" and word.split("=")[0] not in names
            ]
            if not unknown[:1] or unknown[0] == "--":
                raise
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0])
            self._refuse_misplaced(word.split("=")[0], words)
            hint = did_you_mean(word.split("=")[0], self.option_names())
            raise InputError(f"unknown option {word!r}.{hint} (see `{self.prog} --help`)")
        return known

    def _refuse_misplaced(self, name: str, words: Sequence[str]) -> None:
        """Raise with the owner of an option that another subcommand or the command itself has."""
        chosen: Parser = self
        for word in words:
            chosen = chosen._children().get(word, chosen)
        owners = [one.prog for one in self._family() if name in one._option_string_actions]
        if owners:
            raise InputError(
                f"`{name}` is not an option of `{chosen.prog}`, but of "
                f"{', '.join(f'`{owner}`' for owner in owners)}. Leave it out, or use it there "
                f"(see `{chosen.prog} --help`)"
            )

    def _children(self) -> dict[str, Parser]:
        """Return the parsers of the subcommands by name."""
        found = [one for one in self._actions if isinstance(one, argparse._SubParsersAction)]
        return {name: child for action in found for name, child in action.choices.items()}

    def _family(self) -> list[Parser]:
        """Return this parser and those of all subcommands below it."""
        children = dict.fromkeys(self._children().values())
        return [self, *(one for child in children for one in child._family())]

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; where the command has `--config FILE`, its options come before the given ones."""
        self.declare()
        words = self.complete(sys.argv[1:] if args is None else args)
        if "--config" in self._option_string_actions:
            from gapgnn.cli.options import expand_config

            words = expand_config(words, self)
        return super().parse_known_args(words, namespace)

    def format_help(self) -> str:
        """Return the page of help, all options declared."""
        self.declare()
        return super().format_help()

    def declare(self) -> None:
        """Declare the options, if that was deferred."""
        if self.later is not None:
            later, self.later = self.later, None
            later(self)

    def complete(self, words: Sequence[str]) -> list[str]:
        """Return the words with the default subcommand first where none is named."""
        rest = words[_count_shared(words) :]
        is_named = rest and not rest[0].startswith("-")
        if self.default_choice is None or is_named or {"-h", "--help"} & set(words):
            return list(words)
        default = self.default_choice
        return [default if isinstance(default, str) else default(words), *words]

    def option_names(self) -> list[str]:
        """Return every option of this parser and of the subcommands below it.

        Of several subcommands only those whose options are already declared count, if any are.
        """
        self.declare()
        names: list[str] = []
        for action in self._actions:
            names += action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                children = list(action.choices.values())
                for child in [one for one in children if one.later is None] or children:
                    names += child.option_names()
        return names


def _count_shared(words: Sequence[str]) -> int:
    """Return how many words at the beginning are options that every command has.

    >>> _count_shared(["-q", "--log-format", "json", "train", "-v"])
    3
    """
    count = 0
    while count < len(words):
        if words[count] in _VERBOSITIES or words[count].startswith("--log-format="):
            count += 1
        elif words[count] == "--log-format":
            count += 2
        else:
            break
    return min(count, len(words))


def _nearest_choice(message: str) -> str:
    """Return the nearest of the choices that an error message lists, or nothing.

    >>> _nearest_choice("argument METHOD: invalid choice: 'gpa' (choose from 'gap', 'sage')")
    " Did you mean 'gap'?"
    """
    found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    if found is None:
        return ""
    choices = [word.strip("' ") for word in found[2].split(",")]
    return did_you_mean(found[1], choices)


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
    said = list(argv[: _count_shared(argv)])
    argv = [*argv[len(said) : len(said) + 1], *said, *argv[len(said) + 1 :]]
    if not argv or argv[0].startswith("-"):
        overview.parse_args(argv)
        overview.print_help()
        return 0
    name = argv[0]
    if name not in COMMANDS:
        raise InputError(f"unknown command {name!r}.{_nearest(name)} (see `gapgnn --help`)")
    module = importlib.import_module(COMMANDS[name][0])
    parser = parser_of(name)
    args = parser.parse_args(argv[1:])
    _check_files(args)
    shown = verbosity(getattr(args, "verbosity", "normal"))
    with shown, log_format(getattr(args, "log_format", "text")), opened(name) as receipt:
        begun = time.monotonic()
        try:
            code: int = module.execute(args)
        except BaseException as error:
            _note_end(error, args, receipt)
            if isinstance(error, GapgnnError | OSError | MemoryError):
                _show_traceback()
            if isinstance(error, GapgnnError):
                error.args = (in_options(str(error), parser.option_names()),)
            raise
        if is_verbose():
            say(f"gapgnn {name} took {time.monotonic() - begun:.1f} s", to_stderr=True)
    return code


# Their readers say what they take: a reader of tables may take a pipe.
_OF_READERS = ("edges", "nodes", "out")


def _check_files(args: argparse.Namespace) -> None:
    """Refuse pipes, devices and sockets where a file is named: what reads them might not end."""
    from gapgnn.cli.options import check_plain

    for name, value in vars(args).items():
        if isinstance(value, Path) and name not in _OF_READERS:
            check_plain(name.replace("_", "-"), value)


def _show_traceback() -> None:
    """Print where an error came from, if details are printed."""
    if not is_verbose():
        return
    import traceback  # here, as in `errors` and `output`: help need not wait for it

    text = traceback.format_exc()
    if logs_json():
        log("traceback", text, severity="error")
    else:
        print(printable(text), end="", file=sys.stderr)


def _note_end(error: BaseException, args: argparse.Namespace, receipt: Receipt) -> None:
    """Keep with an error how its command reports it, for :func:`run`."""
    about: dict[str, Any] = {"as_json": bool(getattr(args, "json", False))}
    about["log_format"] = getattr(args, "log_format", "text")
    if isinstance(error, GapgnnError | KeyboardInterrupt | OSError | MemoryError):
        # What a ledger says that is locked or damaged would take as long, or be wrong.
        is_sound = not isinstance(error, BusyError | IntegrityError)
        about["receipt"] = receipt.to_dict(reads_ledger=is_sound)
    error.__dict__["about_end"] = about


def in_options(message: str, options: Iterable[str]) -> str:
    """Return an error message of the library with Python names replaced by options.

    In Python an argument is `` `max_degree` ``, with a value `` `dangling="keep"` ``. A column that
    has the name of an option, as in "Column `label`", keeps it.

    >>> in_options("`max_degree` must be 1. Column `label` is.", ["--max-degree", "--label"])
    '`--max-degree` must be 1. Column `label` is.'
    >>> in_options('leave it out with `drop=["home town"]`', ["--drop"])
    "leave it out with `--drop 'home town'`"
    """
    known = set(options)

    def translated(found: re.Match[str]) -> str:
        option = "--" + found["name"].replace("_", "-")
        if option not in known:
            return found[0]
        value = found["plain"]
        if found["quoted"] is not None:
            value = shlex.quote(found["quoted"])
        return f"`{option}`" if value is None else f"`{option} {value}`"

    name = r"(?<!olumn )`(?P<name>[a-z][a-z_]*)"
    value = r"""(?:=(?:\[?"(?P<quoted>[^`]*)"\]?|(?P<plain>[^"`]+)))?`"""
    return re.sub(name + value, translated, message)


def _check_words(argv: Sequence[str]) -> None:
    """Refuse bytes that are no text: names, reasons and paths are written to files as UTF-8."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"every word of the command must be UTF-8 text. Got {word!a}."
            ) from None


def _nearest(name: str) -> str:
    """Return the nearest command, or the method that was meant to be trained.

    >>> _nearest("trian"), _nearest("gpa")
    (" Did you mean 'train'?", " Did you mean 'train gap'?")
    """
    from gapgnn.methods import methods

    hint = did_you_mean(name, COMMANDS)
    return hint or did_you_mean(name, methods()).replace("mean '", "mean 'train ")


def parser_of(name: str) -> Parser:
    """Return the parser of a command, with all of its options."""
    module, text = COMMANDS[name]
    parser = Parser(prog=f"gapgnn {name}", description=text)
    importlib.import_module(module).configure(parser)
    return parser


_python_shows = warnings.showwarning


def _show_warning(
    message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> None:
    """Print notices of the ledger as one line, and other warnings as Python does."""
    from gapgnn.privacy.ledger import LedgerNotice

    if issubclass(category, LedgerNotice):
        # Said once and never again: not even a quiet run may swallow it.
        complain(in_options(str(message), ["--population"]), severity="warning")
    elif logs_json() and not is_quiet():
        log("warning", str(message), severity="warning", category=category.__name__)
    elif not is_quiet():
        _python_shows(printable(str(message)), category, *place, **more)


@contextmanager
def _ended_like_ctrl_c() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does; yield those that came.

    A signal that the caller has ignored, as `nohup` does, stays ignored.
    """
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    numbers = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    ours = [n for n in numbers if n is not None and signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end_with(code: str, message: str, error: BaseException) -> None:
    """Print an error for people, and for programs where they asked for JSON."""
    words = sys.argv[1:]
    about = error.__dict__.get("about_end", {})
    pairs = list(itertools.pairwise(words))
    is_log = "--log-format=json" in words or ("--log-format", "json") in pairs
    with log_format("json" if is_log or about.get("log_format") == "json" else "text"):
        complain(message, code=code)
    if "--json" not in words and not about.get("as_json"):
        return
    described = {"error": {"code": code, "message": printable(" ".join(message.split()))}}
    command = next(iter(words[_count_shared(words) :]), "")
    if command in CHARGING:
        described |= about.get("receipt") or Receipt().to_dict()
    emit_json(described)


def _as_unavailable(error: OSError | MemoryError) -> UnavailableError:
    """Return the error of a machine as one of the library, on one line that is not endless."""
    if isinstance(error, MemoryError):
        said = "the memory of this machine does not suffice"
    else:
        where = "" if error.filename is None else f" (`{str(error.filename)[:200]}`)"
        said = f"{error.strerror or error}{where}"
    found = UnavailableError(f"{said}. --verbose prints where this came from.")
    found.__cause__ = error
    return found


def run() -> NoReturn:
    """Console script: exit 0, or the exit code of the error with one line on stderr.

    The exit codes stand in `gapgnn.errors`; a signal ends with 128 and its number. With ``--json``
    an error is also printed to stdout, as ``{"error": {"code": ..., "message": ...}}``; a command
    that may charge a budget adds what it charged, as on success (:mod:`gapgnn.cli.receipts`).
    """
    warnings.showwarning = _show_warning
    # Models, predictions, reports and exports are their owner's until she decides otherwise.
    words = sys.argv[1:]
    is_public = next(iter(words[_count_shared(words) :]), "") in _PUBLIC
    mask = os.umask(0o077)
    if is_public:
        os.umask(mask)
    received: list[int] = []
    try:
        with _ended_like_ctrl_c() as received:
            code = main(sys.argv[1:])
            sys.stdout.flush()
    except GapgnnError as error:
        code, name = outcome_of(error)
        _end_with(name, str(error), error)
    except KeyboardInterrupt as error:
        # After SIGHUP there may be no terminal to print on.
        with suppress(OSError):
            said = str(error) or "interrupted; nothing is left half-written"
            _end_with("interrupted", said, error)
        code = 128 + (received or [signal.SIGINT])[0]
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (OSError, MemoryError) as error:
        # What a machine refuses and no command foresees: a name too long, a device that fails.
        code, name = outcome_of(_as_unavailable(error))
        _end_with(name, str(_as_unavailable(error)), error)
    finally:
        os.umask(mask)
    sys.exit(code)
