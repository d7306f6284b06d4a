"""The form of docs/generated: a heading, the command, the machine, the date, the origin, one table.

    python benchmarks/accuracy.py --experiment levels --markdown docs/generated/accuracy-levels.md

A benchmark offers the option by `add_option` and hands its table to `write`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import torch


def add_option(parser: argparse.ArgumentParser) -> None:
    text = "also write the table to this file, in the form of docs/generated"
    parser.add_argument("--markdown", type=Path, metavar="FILE", help=text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def machine(device: str = "auto") -> str:
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    return f"CPU, {platform.machine()}, {threads}, torch {torch.__version__}"


def command(words: Sequence[str]) -> str:
    """Return a command line as it is typed in the checkout, wherever the file itself goes."""
    script, *rest = words
    shown = []
    while rest:
        word = rest.pop(0)
        name, is_joined, value = word.partition("=")
        if name == "--markdown":
            shown += [name, f"docs/generated/{Path(value if is_joined else rest.pop(0)).name}"]
        else:
            shown.append(word)
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *shown])


def page(title: str, commands: Sequence[str], facts: dict[str, str], body: str) -> str:
    lines = [f"- Command: {words}" for words in commands]
    lines += [f"- {name}: {text}" for name, text in facts.items()]
    return "\n".join([f"# {title}", "", *lines, "", body, ""])


def write(path: Path | None, title: str, body: str, *, device: str = "auto") -> None:
    """Write the page of a finished run, or nothing without a path."""
    if path is None:
        return
    facts = {
        "Machine": machine(device),
        "Date": f"{date.today()}",
        "Origin": "written by `--markdown`",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title, [f"`{command(sys.argv)}`"], facts, body), encoding="utf-8")
