"""``gapgnn datasets``: the known data sets, their sizes, and which of them are on this machine."""

from __future__ import annotations

import argparse
from typing import Any

# Named, and not what it offers: that loads SciPy, and a misspelt option does not need it.
import gapgnn.graph.datasets as datasets
from gapgnn.cli.output import console, emit_json, progress_bars, say

EPILOG = """\
examples:
  gapgnn datasets
  gapgnn datasets --fetch cora

Files are looked for in the folder that the variable GAPGNN_DATA names, then in the user's cache
(~/.cache/gapgnn); what is in neither is downloaded into the cache when it is first used.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.add_argument("--fetch", metavar="NAME", help="download one data set into the cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print the list, or fetch one data set and print its entry."""
    if args.fetch is None:
        entries = [_entry(name) for name in datasets.dataset_names()]
    else:
        paths = _fetch(args.fetch)
        entries = [{**_entry(args.fetch), "paths": paths}]
    if args.json:
        emit_json({"datasets": entries})
    else:
        _show(entries)
    return 0


def _entry(name: str) -> dict[str, Any]:
    info = datasets.dataset_info(name)
    where = datasets.local_status(name)
    return {
        "name": name,
        "same_as": info.name if info.name != name else None,
        "description": info.description,
        "nodes": info.nodes,
        "arcs": info.arcs,
        "features": info.features,
        "classes": info.classes,
        "here": where != "not here",
        "where": where,
        "files": [file.path for file in info.files],
        "addresses": sorted({file.address for file in info.files}),
    }


def _show(entries: list[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    sizes = ("nodes", "arcs", "features", "classes")
    table = Table(
        Column("name", no_wrap=True),
        *(Column(size, justify="right", no_wrap=True) for size in sizes),
        Column("where", no_wrap=True),
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for entry in entries:
        numbers = ["-" if entry[size] is None else f"{entry[size]:,}" for size in sizes]
        style = None if entry["here"] else "dim"
        table.add_row(entry["name"], *numbers, entry["where"], style=style)
    console(to_stderr=False).print(table)
    notes = [f"{e['name']} is {e['same_as']}." for e in entries if e["same_as"]]
    if len(entries) > 1:
        notes.append("`gapgnn datasets --fetch NAME` downloads one; `-` is not known before.")
    for note in (*notes, *entries[0].get("paths", ())):
        say(note, to_stderr=True)


def _fetch(name: str) -> list[str]:
    columns = ("DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn")
    with progress_bars("{task.description}", *columns, transient=False) as advance:
        return [str(path) for path in datasets.fetch_dataset(name, progress=advance)]
