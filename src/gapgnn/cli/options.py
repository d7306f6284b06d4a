"""One configuration is the constructor, the command line and the configuration file.

The options of ``gapgnn train METHOD`` are the fields of the method's configuration
(:mod:`gapgnn.methods.configs`): names, types, defaults and help texts. ``--config run.toml`` turns
each key into the same option, so both accept the same settings.
"""

from __future__ import annotations

import argparse
import stat
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gapgnn.errors import InputError, check_choice, did_you_mean
from gapgnn.methods.configs import help_texts, own_parameters, own_pieces
from gapgnn.privacy import LEVELS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_BOOLEANS = {"true": True, "false": False}
_PROMISE = ("level", "epsilon", "delta", "relation")
# How it is run, not what it is; the names of the ledger come last.
_RUNNING = ("noise", "insecure_noise_seed", "device", "ledger", "reason")


def add_method_options(parser: argparse.ArgumentParser, config: type) -> None:
    """Add one option for every field of a method's configuration."""
    hints, texts = _type_hints(config), help_texts(config)
    group = parser.add_argument_group("model and privacy")
    defaults = {part.name: part.default for part in fields(config)}
    for name in _reading_order(config):
        flag = "--" + name.replace("_", "-")
        default = defaults[name]
        shown = "" if default is None else f" (default: {_shown(default)})"
        options: dict[str, Any] = {
            "default": default,
            "dest": name,
            "help": (texts.get(name, "") + shown).replace("%", "%%"),
        }
        if hints[name] is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
            continue
        if parts := _tuple_parts(hints[name]):
            options |= {"nargs": len(parts), "type": _reader(parts[0])}
        else:
            options["type"] = _reader(hints[name])
            if "true" in _choices(hints[name]):
                # The bare flag turns it on.
                options |= {"nargs": "?", "const": True}
        group.add_argument(flag, metavar=_metavar(hints[name]), **options)


def number(default: float, text: str, **more: Any) -> dict[str, Any]:
    """Return the settings of an option that is a number of its default's type.

    >>> number(0.5, "share")["help"], number(10_000, "pairs")["help"]
    ('share (default 0.5)', 'pairs (default 10000)')
    """
    shown = f"{default:g}" if isinstance(default, float) else f"{default}"
    return {"type": type(default), "default": default, "help": f"{text} (default {shown})", **more}


def number_or_auto(text: str) -> float | str:
    """Read the word of an option that is a number or ``auto``.

    >>> number_or_auto("auto"), number_or_auto("1e-6")
    ('auto', 1e-06)
    """
    try:
        return "auto" if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be auto or a number. Got {text!r}.") from None


def add_options(group: argparse._ActionsContainer, options: Mapping[str, dict[str, Any]]) -> None:
    """Add options by their names and settings."""
    for name, settings in options.items():
        group.add_argument(f"--{name}", **settings)


def method_options(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """Return the constructor's keyword arguments from parsed options."""
    of_python = own_pieces(config)
    names = (part.name for part in fields(config) if part.name not in of_python)
    chosen = {name: getattr(args, name) for name in names}
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in chosen.items()
    }


def value_of(config: type, name: str, text: str) -> Any:
    """Return a word as a value of one field of a method's configuration.

    >>> from gapgnn.methods.configs.gap import GAPConfig
    >>> value_of(GAPConfig, "hops", "3"), value_of(GAPConfig, "batch_norm", "false")
    (3, False)
    """
    try:
        return _reader(_type_hints(config)[name])(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"`{name}` {error}") from None


def method_words(config: type, params: Mapping[str, Any]) -> list[str]:
    """Return the options of the command line that give a constructor these arguments.

    >>> from gapgnn.methods.configs.mlp import MLPConfig
    >>> method_words(MLPConfig, {"level": "edge", "batch_norm": True, "reason": "", "ledger": None})
    ['--level=edge', '--batch-norm=true', '--reason=']
    """
    hints = _type_hints(config)
    words: list[str] = []
    for name, value in params.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if hints[name] is bool:
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple | list):
            words += [flag, *map(str, value)]
        else:
            words.append(f"{flag}={str(value).lower() if isinstance(value, bool) else value}")
    return words


@cache
def _type_hints(config: type) -> dict[str, Any]:
    return typing.get_type_hints(config)


def _reading_order(config: type) -> list[str]:
    """Return the fields in order: guarantee, method, execution, ledger.

    Functions of the user's own are given in Python alone.
    """
    names = dict.fromkeys([*_PROMISE, *own_parameters(config), *(p.name for p in fields(config))])
    left_out = (*_RUNNING, *own_pieces(config))
    return [*(name for name in names if name not in left_out), *_RUNNING]


def level_of(words: Sequence[str]) -> str:
    """Return the level that a command asks for, on the command line or in its `--config` file.

    >>> level_of(["--level", "node"]), level_of(["--epsilon", "2"])
    ('node', 'edge')
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--level", nargs="?")
    parser.add_argument("--config", nargs="?")
    known, _ = parser.parse_known_args([word for word in words if word != "--"])
    if known.level is None and known.config is not None:
        try:
            known.level = _read_toml(Path(known.config)).get("level")
        except (OSError, ValueError, RecursionError):
            # Read again, and complained of, with all other options.
            known.level = None
    # Without a value it is complained of with all other options, too.
    return "edge" if known.level is None else check_choice("--level", known.level, LEVELS)


def check_plain(name: str, path: Path) -> None:
    """Refuse a pipe, a device or a socket, which might have no end.

    Args:
        name: of the option.
        path: that it names.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        # Whoever reads it says what is wrong.
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"`--{name}` must be a file. Got {str(path)!r}, a pipe or a device.")


def _read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says."""
    check_plain("config", path)
    return tomllib.loads(path.read_text(encoding="utf-8"))


def config_words(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Translate a TOML file into command-line words; a misspelt key names the nearest one."""
    try:
        config = _read_toml(path)
    except FileNotFoundError:
        raise InputError(f"`--config` file {str(path)!r} does not exist.") from None
    # A number of very many digits is a ValueError, too.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"`--config` file {str(path)!r} cannot be read: {error}.") from None
    known = {
        flag[2:]: action
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--")
        and flag not in ("--help", "--config")
        # What says no to another option is written as `false`.
        and "--" + flag.removeprefix("--no-") not in action.option_strings
    }
    words: list[str] = []
    for key, value in config.items():
        name = key.replace("_", "-")
        if name not in known:
            raise InputError(f"unknown key {key!r} in {str(path)!r}.{did_you_mean(name, known)}")
        words += _words(path, name, value, known[name])
    return words


def _words(path: Path, name: str, value: Any, action: argparse.Action) -> list[str]:
    if isinstance(value, dict):
        raise InputError(f"key {name!r} in {str(path)!r} must be a value. Got a table.")
    if isinstance(value, bool):
        if action.nargs != 0:
            return [_boolean_word(path, name, value, action)]
        if value:
            return [f"--{name}"]
        negated = f"--no-{name}"
        return [negated] if negated in action.option_strings else []
    if isinstance(value, list):
        if isinstance(action.nargs, int):
            return [f"--{name}", *map(str, value)]
        if not isinstance(action, argparse._AppendAction):
            raise InputError(f"key {name!r} in {str(path)!r} must be one value. Got a list.")
        return [word for item in value for word in (f"--{name}", str(item))]
    return [f"--{name}={value}"]


def _boolean_word(path: Path, name: str, value: bool, action: argparse.Action) -> str:
    """Return the word for an option that takes true or false among others, such as auto."""
    word = str(value).lower()
    try:
        accepted = callable(action.type) and action.type(word) is value
    except argparse.ArgumentTypeError:
        accepted = False
    if not accepted:
        raise InputError(f"key {name!r} in {str(path)!r} must not be true or false.")
    return f"--{name}={word}"


def expand_config(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Put the words of ``--config FILE`` before the others, so that the command line wins."""
    rest: list[str] = []
    before: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--config" or word.startswith("--config="):
            _, found, value = word.partition("=")
            file = value if found else next(remaining, None)
            if not file:
                raise InputError("`--config` must be followed by a file.")
            before += config_words(Path(file), parser)
        else:
            rest.append(word)
    # Options that may be repeated add up; those that choose the data replace the file's instead.
    stated = {word.split("=")[0] for word in rest if word.startswith("--")}
    return _without(before, stated & {"--edges", "--weight", "--weight-bounds", "--time"}) + rest


def _without(words: Sequence[str], flags: set[str]) -> list[str]:
    """Return words without some options and what follows them."""
    kept, is_gone = [], False
    for word in words:
        if word.startswith("--"):
            is_gone = word.split("=")[0] in flags
        if not is_gone:
            kept.append(word)
    return kept


@cache
def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the hint itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(one for part in typing.get_args(hint) for one in _parts(part))
    return (hint,)


def _choices(hint: Any) -> list[str]:
    """Return the words a hint admits."""
    words: list[str] = []
    for part in _parts(hint):
        if part is bool:
            words += _BOOLEANS
        elif typing.get_origin(part) is Literal:
            words += map(str, typing.get_args(part))
    return words


def _plain_types(hint: Any) -> list[type]:
    """Return the plain types a hint admits."""
    return [part for part in _parts(hint) if part in (int, float, str, Path)]


def _reader(hint: Any) -> Callable[[str], Any]:
    """Return the function that reads one word as a value of type ``hint``."""
    words, plain = _choices(hint), _plain_types(hint)

    def read(text: str) -> Any:
        if text in words:
            return _BOOLEANS.get(text, text)
        for convert in plain:
            try:
                return convert(text)
            except ValueError:
                continue
        wanted = [*words, *("a whole number" if one is int else "a number" for one in plain)]
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(wanted)}. Got {text!r}.{did_you_mean(text, words)}"
            if words
            else f"must be {wanted[0]}. Got {text!r}."
        )

    return read


def _tuple_parts(hint: Any) -> tuple[Any, ...]:
    """Return the types inside a tuple, which may be optional."""
    found = (typing.get_args(part) for part in _parts(hint) if typing.get_origin(part) is tuple)
    return next(found, ())


def _metavar(hint: Any) -> str | tuple[str, ...]:
    if parts := _tuple_parts(hint):
        return ("X",) * len(parts)
    names = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
    return "|".join([*_choices(hint), *(names[one] for one in _plain_types(hint))])


def _shown(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
