"""The form of docs/generated: a heading, the command, the machine, the date, the origin, one table.

    python benchmarks/accuracy.py --experiment levels --markdown docs/generated/accuracy-levels.md

A benchmark offers the option by `add_option` and hands its table to `write`, which also writes the
rows as records (docs/data/tables, from which docs/tables.py makes the page again).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
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


def value(cell: str) -> str | float:
    """Return a cell as a number where that prints as the cell does."""
    if re.fullmatch(r"-?\d+(\.\d+)?", cell):
        number: float = json.loads(cell)
        return number if str(number) == cell else cell
    return cell


def records(title: str, commands: Sequence[str], facts: dict[str, str], body: str) -> str:
    """Return a table as lines of JSON: its facts, then one line for each row."""
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in body.splitlines()]
    columns, _, *rows = lines
    head = {"title": title, "commands": list(commands)}
    head |= {name.lower(): text for name, text in facts.items()} | {"columns": columns}
    found = [dict(zip(columns, map(value, row), strict=True)) for row in rows]
    compact = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in found)
    return "\n".join([json.dumps(head, ensure_ascii=False), *compact, ""])


def records_path(path: Path) -> Path:
    """Return where the records of a page are kept."""
    if path.parent.name != "generated":
        return path.with_suffix(".jsonl")
    return path.parents[1] / "data" / "tables" / path.with_suffix(".jsonl").name


def write(path: Path | None, title: str, body: str, *, device: str = "auto") -> None:
    """Write the page of a finished run and its records, or nothing without a path."""
    if path is None:
        return
    facts = {
        "Machine": machine(device),
        "Date": f"{date.today()}",
        "Origin": "written by `--markdown`",
    }
    commands = [f"`{command(sys.argv)}`"]
    kept = records_path(path)
    for file, text in (
        (path, page(title, commands, facts, body)),
        (kept, records(title, commands, facts, body)),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
