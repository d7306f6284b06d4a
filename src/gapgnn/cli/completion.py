"""`gapgnn completion SHELL`: a script that completes commands, options and their choices.

It is generated from the parsers themselves, so it cannot know less or more than the commands do. It
runs nothing when a key is pressed: everything is in the script, which is made again after an
upgrade or when another package brings a method.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from gapgnn.cli.main import COMMANDS, Parser, parser_of

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


class Option(NamedTuple):
    """One option: its names, what may follow it (nothing if None), and its help."""

    names: tuple[str, ...]
    values: tuple[str, ...] | None
    is_place: bool
    text: str


class Level(NamedTuple):
    """What may follow some words: subcommands and options."""

    path: str
    words: dict[str, str]
    options: list[Option]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="which shell the script is for")


def execute(args: argparse.Namespace) -> int:
    """Print the script."""
    levels = list(_levels())
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](levels), end="")
    return 0


def _levels() -> Iterator[Level]:
    """Yield every place in a command at which something can be completed."""
    yield Level("", {name: text for name, (_, text) in COMMANDS.items()}, [])
    for name in COMMANDS:
        if name == "help":
            yield Level("help", {other: text for other, (_, text) in COMMANDS.items()}, [])
            continue
        yield from _below(name, parser_of(name))


def _below(path: str, parser: Parser) -> Iterator[Level]:
    parser.declare()
    words: dict[str, str] = {}
    options: list[Option] = []
    children: dict[str, Parser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            children = dict(action.choices)
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            # A name without a text is not for people.
            words |= {name: texts[name] for name in children if name in texts}
        elif action.option_strings:
            options.append(_option(action))
        elif action.choices is not None:
            words |= dict.fromkeys(map(str, action.choices), "")
    yield Level(path, words, options)
    for name, child in children.items():
        if name in words:
            yield from _below(f"{path} {name}", child)


def _option(action: argparse.Action) -> Option:
    text = " ".join((action.help or "").replace("%%", "%").split())
    names = tuple(action.option_strings)
    if action.nargs == 0:
        return Option(names, None, False, text)
    shown = action.metavar if isinstance(action.metavar, str) else ""
    values = tuple(map(str, action.choices or ()))
    if not values and "|" in shown:
        # A placeholder such as N stands for a number; words stand for themselves.
        values = tuple(word for word in shown.split("|") if not word.isupper())
    is_place = any(word in shown.upper() for word in _PLACES)
    return Option(names, values, is_place, text)


_BASH = """\
# Completion of gapgnn for bash, made by `gapgnn completion bash`.
_gapgnn_words() {
    case "$1" in
%(words)s
    esac
}
# What may follow an option: its choices, `<place>` for a file, nothing for a word of your own.
_gapgnn_values() {
    case "$1 $2" in
%(values)s
        *) return 1 ;;
    esac
}
_gapgnn() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
    local place="" word next values index
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${COMP_WORDS[index]}"
        next="${place:+$place }$word"
        [[ "$word" != -* && -n "$(_gapgnn_words "$next")" ]] && place="$next"
    done
    COMPREPLY=()
    if [[ "$before" == -* ]] && values="$(_gapgnn_values "$place" "$before")"; then
        if [[ "$values" == "<place>" ]]; then
            COMPREPLY=($(compgen -f -- "$current"))
        else
            COMPREPLY=($(compgen -W "$values" -- "$current"))
        fi
        return
    fi
    COMPREPLY=($(compgen -W "$(_gapgnn_words "$place")" -- "$current"))
    # A folder or file that stands without an option's name.
    [[ ${#COMPREPLY[@]} -eq 0 && "$current" != -* ]] && COMPREPLY=($(compgen -f -- "$current"))
    return 0
}
complete -o filenames -F _gapgnn gapgnn
"""


def _bash(levels: list[Level]) -> str:
    words, values = [], []
    for level in levels:
        names = [*level.words, *(name for option in level.options for name in option.names)]
        words.append(f"        {_quoted(level.path)}) echo {_quoted(' '.join(names))} ;;")
        for option in level.options:
            if option.values is None:
                continue
            answer = "<place>" if option.is_place and not option.values else " ".join(option.values)
            cases = "|".join(_quoted(f"{level.path} {name}") for name in option.names)
            values.append(f"        {cases}) echo {_quoted(answer)} ;;")
    return _BASH % {"words": "\n".join(words), "values": "\n".join(values)}


def _zsh(levels: list[Level]) -> str:
    # The same functions: zsh reads them through its own layer for scripts of bash.
    script = _bash(levels).replace("for bash, made by `gapgnn completion bash`", "for zsh")
    return f"#compdef gapgnn\nautoload -U +X bashcompinit && bashcompinit\n{script}"


_FISH = """\
# Completion of gapgnn for fish, made by `gapgnn completion fish`.
function __gapgnn_at
    set -l words
    for word in (commandline -opc)[2..-1]
        string match -q -- '-*' $word; or set -a words $word
    end
    set -l wanted (string split -n ' ' -- $argv[1])
    test (count $wanted) -eq 0; and test (count $words) -eq 0; and return 0
    test (count $wanted) -gt 0; and test (count $words) -ge (count $wanted); or return 1
    test "$words[1..(count $wanted)]" = "$wanted"
end
complete -c gapgnn -f
"""


def _fish(levels: list[Level]) -> str:
    lines = []
    for level in levels:
        place = f"complete -c gapgnn -n {_quoted(f'__gapgnn_at {_quoted(level.path)}')}"
        for word, text in level.words.items():
            lines.append(f"{place} -a {_quoted(word)} -d {_quoted(text)}")
        for option in level.options:
            names = [
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            ]
            follows = ""
            if option.values is not None:
                follows = " -x" if option.values or not option.is_place else " -rF"
                follows += f" -a {_quoted(' '.join(option.values))}" if option.values else ""
            lines.append(f"{place} {' '.join(names)}{follows} -d {_quoted(option.text[:80])}")
    return _FISH + "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return shlex.quote(text)
