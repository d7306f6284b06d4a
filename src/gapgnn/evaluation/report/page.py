"""One HTML page from a folder of results, with its figures and tables as files beside it.

The page holds its style, its script and its drawings; a content security policy with their hashes
keeps anything else from loading, whatever a name in the results contains.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn import __version__
from gapgnn.errors import InputError, UnavailableError
from gapgnn.evaluation.grid import ATTACKS, EXPERIMENTS, Record, load
from gapgnn.evaluation.report import content as report_content
from gapgnn.evaluation.report.figures import (
    FRAME,
    Chart,
    check_can_draw,
    marker,
    save_figures,
    write_file,
)
from gapgnn.evaluation.report.findings import Attack, Audit, load_findings
from gapgnn.evaluation.report.plots import STYLES, Plot, plots, small, unique
from gapgnn.evaluation.report.tables import FORMATS, Row, Table, price, tables

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE = "report.html"
_TRADEOFFS = ("tradeoff-edge", "tradeoff-node")
_RANKINGS = ("precision-recall",)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No sandbox: containers often cannot make one, and the only page opened is one's own, which by its
# policy loads nothing. The other switches keep the browser itself off the network.
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
_LONGEST_SECONDS = 120


@dataclass(frozen=True)
class Written:
    """The files of one report."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]


def write_report(folder: str | Path) -> Written:
    """Read the results in a folder and write its report, figures and tables there.

    Every file appears complete or not at all, the page last. What the page says is computed from
    private data without noise: it is for the curator (privacy page, section 2).

    >>> write_report("nowhere")
    Traceback (most recent call last):
    ...
    gapgnn.errors.UnavailableError: `nowhere` must hold results.jsonl. Got no such file.
    """
    check_can_draw()
    records = load_results(folder)
    audits, attacks = load_findings(folder)
    place = Path(folder)
    drawn, made = plots(records), tables(records)
    page = render(records, audits=audits, attacks=attacks, folder=str(folder))
    written_tables = []
    for table in made:
        for suffix, write in FORMATS.items():
            path = place / "tables" / f"{table.name}.{suffix}"
            write_file(path, write(table))
            written_tables.append(path)
    figures = save_figures(drawn, place / "figures")
    write_file(place / PAGE, page)
    return Written(place / PAGE, tuple(figures), tuple(written_tables))


def load_results(folder: str | Path) -> list[Record]:
    """Return the results that a report speaks of; an empty store is an error."""
    records = [record for record in load(folder) if record.experiment in EXPERIMENTS]
    if not records:
        raise InputError(
            f"`{folder}` must hold at least one result. Got none; `gapgnn experiment` makes them."
        )
    return records


def render(
    records: Sequence[Record],
    *,
    audits: Sequence[Audit] = (),
    attacks: Sequence[Attack] = (),
    folder: str = "FOLDER",
) -> str:
    """Return the page as text; everything that comes from the results is escaped.

    Args:
        records: of :func:`gapgnn.evaluation.grid.records.load`, at least one.
        audits: shown beside the rows whose budget they tested.
        attacks: shown below them.
        folder: as named in the commands.
    """
    return rendered("report.html.j2", folder=folder, **_content(records, audits, attacks))


def rendered(template: str, **values: Any) -> str:
    """Fill a template, with the style and the script that all pages share."""
    from markupsafe import Markup

    home = files("gapgnn.evaluation.report") / "templates"
    style, script = (
        (home / name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    return (
        _environment()
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=content_policy(style, script),
            **values,
        )
    )


@cache
def _environment() -> Environment:
    """Return what fills templates; it keeps those that it has compiled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gapgnn.evaluation.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.globals.update(
        marker=marker,
        dashes=lambda index: _dashes(STYLES[index].dashes),
        level_dashes=lambda index: _dashes(STYLES[index].level_dashes),
        legend=_legend,
        blocks=_blocks,
        price=price,
        small=small,
    )
    return environment


def content_policy(style: str, script: str) -> str:
    """Return a policy that allows this style and this script, and nothing from anywhere else.

    >>> content_policy("", "").split(";")[0]
    "default-src 'none'"
    """
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _content(
    records: Sequence[Record], audits: Sequence[Audit], attacks: Sequence[Attack]
) -> dict[str, Any]:
    """Return everything the template speaks of."""
    made = tables(records)
    drawn = [
        (
            plot,
            [Chart(plot, panel) for panel in plot.panels],
            [table for table in made if table.name.startswith(plot.name)],
        )
        for plot in plots(records)
    ]
    datasets = unique(record.dataset for record in records)
    summary = [(name, report_content.tiles(records, name)) for name in datasets]
    other_figures = {tile["figure"] for _, tiles in summary for tile in tiles} - {"accuracy"}
    checked = report_content.checked(records, audits)
    return {
        "datasets": datasets,
        "facts": _facts(records),
        "summary": [(name, tiles) for name, tiles in summary if tiles],
        "other_figures": sorted(other_figures),
        "cautions": report_content.cautions(records),
        "protections": report_content.protections(records),
        "tradeoffs": [one for one in drawn if one[0].name in _TRADEOFFS],
        "attack_figures": [one for one in drawn if one[0].name in ATTACKS],
        "rankings": [
            (plot, panels, [table for table in made if table.name == f"{plot.name}-curve"])
            for plot, panels, _ in drawn
            if plot.name in _RANKINGS
        ],
        "ranking": next((table for table in made if table.name in _RANKINGS), None),
        "ablations": [
            one for one in drawn if one[0].name not in (*_TRADEOFFS, *ATTACKS, *_RANKINGS)
        ],
        "accuracy": next((table for table in made if table.name == "accuracy"), None),
        "beside": next((table for table in made if table.name == "accuracy-metrics"), None),
        "tested": [(name, list(rows)) for name, rows in groupby(checked, itemgetter("dataset"))],
        "attacked_width": _attacked_width(records),
        "audits": audits,
        "attacks": report_content.other_attacks(attacks),
        "releases": report_content.released(records),
        "commands": report_content.commands(records, audits),
        "frame": FRAME,
    }


def _facts(records: Sequence[Record]) -> dict[str, str]:
    days = sorted({record.created[:10] for record in records})
    machines = unique(record.machine for record in records)
    return {
        "rows": f"{len(records):,}",
        "when": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
        "version": __version__,
        "machines": f"Measured on: {'; '.join(machines)}.",
        "code": ", ".join(sorted({record.version for record in records})),
    }


def _attacked_width(records: Sequence[Record]) -> str:
    widths = unique(r.parameters.get("hidden") for r in records if r.metric == "auc")
    return ", ".join(str(width) for width in widths if width is not None)


def _dashes(lengths: Sequence[float]) -> str:
    return " ".join(f"{2 * length:g}" for length in lengths)


def _legend(plot: Plot) -> list[tuple[str, int, bool]]:
    """Return label, style and whether it is a level line, for everything in a row of panels."""
    lines = [(line.label, line.style, False) for panel in plot.panels for line in panel.lines]
    levels = [(one.label, one.style, True) for panel in plot.panels for one in panel.references]
    return unique([*sorted(lines, key=lambda line: line[1]), *levels])


def _blocks(table: Table) -> list[tuple[str, list[Row]]]:
    return [(name, list(rows)) for name, rows in groupby(table.rows, attrgetter("block"))]


def find_browser() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def screenshot(
    page: Path, target: Path, *, section: str = "", width: int = 1280, height: int = 1400
) -> None:
    """Write a PNG of a report's top; it appears complete or not at all.

    Args:
        page: an HTML file.
        target: ending in ``.png``.
        section: id of the section that shall follow the page's head; those before are left out.
        width: of the window, in pixels.
        height: likewise.

    >>> screenshot(Path("report.html"), Path("shot.gif"))
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `screenshot` must end in .png. Got 'shot.gif'.
    """
    if target.suffix != ".png":
        raise InputError(f"`screenshot` must end in .png. Got {str(target)!r}.")
    browser = find_browser()
    if browser is None:
        raise UnavailableError(
            "A screenshot needs Chromium or Chrome on the PATH. Got none; on Debian: "
            "`apt install chromium`."
        )
    with tempfile.TemporaryDirectory() as scratch:
        picture = Path(scratch) / "page.png"
        shown = page.resolve()
        if section:
            # A headless browser takes its picture at the top, whatever the address names.
            shown = Path(scratch) / "page.html"
            shown.write_text(_from(page.read_text(encoding="utf-8"), section), encoding="utf-8")
        words = [
            browser,
            *SWITCHES,
            "--hide-scrollbars",
            f"--user-data-dir={scratch}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            shown.as_uri(),
        ]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"`{browser}` must answer. Got nothing in {_LONGEST_SECONDS} seconds."
            ) from None
        if not picture.exists():
            raise UnavailableError(f"`{browser}` must take a picture. Got exit {done.returncode}.")
        write_file(target, picture.read_bytes())


def _from(text: str, section: str) -> str:
    """Return a report without the sections before the given one.

    >>> _from('<main><section id="a">A</section><section id="b">B</section></main>', "b")
    '<main><section id="b">B</section></main>'
    """
    first, start = text.find("<section id="), text.find(f'<section id="{section}"')
    if start < 0:
        raise InputError(
            f"`section` must be in the report. Got {section!r}, which it does not have."
        )
    return text[:first] + text[start:]
