"""`gapgnn completion SHELL`: a script that completes commands, options and their choices.

It is generated from the parsers, so it always agrees with the commands. It
runs nothing when a key is pressed: everything is in the script, which is made again after an
upgrade or when another package brings a method.
"""

from __future__ import annotations

import argparse
import importlib

from gapgnn.cli.main import COMMANDS, Parser

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """\
examples:
  gapgnn completion bash > ~/.local/share/bash-completion/completions/gapgnn
  gapgnn completion zsh > ~/.zfunc/_gapgnn           a folder of $fpath
  gapgnn completion fish > ~/.config/fish/completions/gapgnn.fish
  source <(gapgnn completion bash)                   for this shell only
"""
# What names a file or folder, by the word that help texts use.
_PLACES = ("FILE", "FOLDER", "PATH")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="which shell the script is for")


def execute(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    print(shtab.complete(_whole_parser(), shell=args.shell))
    return 0


def _whole_parser() -> Parser:
    """Return one parser of all commands, each action with what may follow it."""
    whole = Parser(prog="gapgnn")
    commands = whole.add_subparsers()
    for name, (module, text) in COMMANDS.items():
        importlib.import_module(module).configure(commands.add_parser(name, help=text))
    _annotate(whole)
    (words,) = commands.choices["help"]._get_positional_actions()
    words.choices = list(COMMANDS)
    return whole


def _annotate(parser: Parser) -> None:
    import shtab

    parser.declare()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _annotate(child)
        elif action.nargs != 0 and action.choices is None:
            shown = action.metavar if isinstance(action.metavar, str) else ""
            # A placeholder such as N stands for a number; words stand for themselves.
            words = [word for word in shown.split("|") if word.islower()]
            if words:
                action.choices = words
            elif any(word in shown.upper() for word in _PLACES):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
