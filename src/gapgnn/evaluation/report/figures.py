"""Plots drawn twice: as files (PDF, SVG, PNG, readable without colour), and in the report itself.

For the report only numbers and words are computed here, in the units of one SVG; the template draws
them, so that every word is escaped in one place. Values can be reached with a pointer and with the
arrow keys.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.errors import InputError, UnavailableError
from gapgnn.evaluation import INTERVAL_REPEATS
from gapgnn.evaluation.report.plots import STYLES, Line, Panel, Plot, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Without dates the same results give the same bytes.
FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": "gapgnn", "Producer": None},
    "svg": {"Date": None, "Creator": "gapgnn"},
    "png": {"Software": "gapgnn"},
}
_MOST_ACROSS = 3
_MOST_TICKS = 10
WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 34, 56
# What the template needs of these.
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM}
_SIZE = 5.0
_TICK_WIDTH = 38


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file, for its owner, and the folders above; a kill leaves the old or the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "tables" / "a.md", "text")
    ...     (Path(folder) / "tables" / "a.md").read_text()
    'text'
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.unlink(missing_ok=True)
            with open(
                scratch, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"`{path}` must be writable. Got {error.strerror}.") from None


def save_figures(plots: Iterable[Plot], folder: Path) -> list[Path]:
    """Draw every plot as PDF, SVG and PNG into a folder and return the files.

    >>> save_figures([], Path("nowhere"))
    []
    """
    written = []
    for plot in plots:
        for suffix, content in draw(plot).items():
            path = folder / f"{plot.name}.{suffix}"
            write_file(path, content)
            written.append(path)
    return written


def draw(plot: Plot) -> dict[str, bytes]:
    """Return the bytes of one plot in every format.

    >>> from gapgnn.evaluation.report.plots import Line, Value
    >>> line = Line("GAP", 0, (Value(1.0, 0.7, 0.6, 0.8, 3), Value(2.0, 0.8, 0.7, 0.9, 3)))
    >>> panel = Panel("social", (line,))
    >>> plot = Plot("hops", "Hops", "", "K", "accuracy (%)", False, "K", (panel,))
    >>> draw(plot)["pdf"][:5]
    b'%PDF-'
    """
    import matplotlib
    from matplotlib import style

    with (
        as_file(files("gapgnn.evaluation.report") / "gapgnn.mplstyle") as sheet,
        matplotlib.rc_context(),
    ):
        style.use(sheet)
        figure = _figure(plot)
        return {suffix: _bytes(figure, suffix) for suffix in FORMATS}


def check_can_draw() -> None:
    """Say how to get what draws figures, before anything is written."""
    if find_spec("matplotlib") is None:
        raise UnavailableError(
            "`matplotlib` must be installed to draw figures. Got none; install `gapgnn[report]`."
        )


def _bytes(figure: Figure, suffix: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=suffix, metadata=FORMATS[suffix])
    return out.getvalue()


def _figure(plot: Plot) -> Figure:
    from matplotlib.figure import Figure

    count = len(plot.panels)
    across = 2 if count == 4 else min(count, _MOST_ACROSS)
    down = -(-count // across)
    figure = Figure(figsize=(max(4.0, 3.1 * across), 2.5 * down + 0.7))
    grid = figure.subplots(down, across, squeeze=False)
    shown: dict[str, Any] = {}
    for index, (axes, panel) in enumerate(zip(grid.flat, plot.panels, strict=False)):
        _panel(axes, plot, panel)
        if index % across == 0 or panel.y_label:
            axes.set_ylabel(plot.y_label_of(panel))
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    for axes in list(grid.flat)[count:]:
        axes.set_visible(False)
    figure.supxlabel(plot.x_label, fontsize=9)
    styles = {_plain(line.label): line.style for panel in plot.panels for line in panel.lines}
    labels = sorted(shown, key=lambda label: styles.get(label, len(STYLES)))
    _legend(figure, {label: shown[label] for label in labels})
    return figure


def _legend(figure: Figure, shown: dict[str, Any]) -> None:
    """Put the legend above the panels, in as many columns as the figure is wide."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    for columns in range(min(len(shown), 4), 0, -1):
        legend = figure.legend(
            list(shown.values()), list(shown), loc="outside upper left", ncols=columns
        )
        if columns == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            break
        legend.remove()
    # Each further row would take its height from the panels.
    rows = -(-len(shown) // columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * max(0, rows - 2))


def _panel(axes: Axes, plot: Plot, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(_plain(panel.title))
    for line in panel.lines:
        style = STYLES[line.style]
        means = [100 * value.mean for value in line.values]
        axes.errorbar(
            [value.x for value in line.values],
            means,
            yerr=[
                [max(0.0, m - 100 * v.low) for m, v in zip(means, line.values, strict=True)],
                [max(0.0, 100 * v.high - m) for m, v in zip(means, line.values, strict=True)],
            ],
            color=style.colour,
            marker=style.marker,
            linestyle=(0, style.dashes) if style.dashes else "-",
            elinewidth=0.9,
            capsize=2,
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=_plain(line.label),
        )
    for reference in panel.references:
        style = STYLES[reference.style]
        axes.axhline(
            100 * reference.values[0].mean,
            color=style.colour,
            linewidth=1,
            dashes=style.level_dashes,
            label=_plain(reference.label),
        )
    ticks = sorted({value.x for line in panel.lines for value in line.values})
    if plot.is_log:
        axes.set_xscale("log")
    if len(ticks) <= _MOST_TICKS:
        axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _plain(text: str) -> str:
    """Keep matplotlib from reading a dollar sign in a name as mathematics."""
    return text.replace("$", r"\$")


@dataclass(frozen=True)
class Chart:
    """One panel of a plot: places of its values, and what is said about them.

    >>> values = (Value(1.0, 0.7, 0.6, 0.8, 10), Value(2.0, 0.8, 0.7, 0.9, 10))
    >>> panel = Panel("social", (Line("GAP", 0, values),))
    >>> chart = Chart(Plot("hops", "Hops", "", "K", "accuracy (%)", False, "K", (panel,)), panel)
    >>> chart.said(values[0]), chart.path(panel.lines[0])
    ('K = 1: 70.0 % (60.0 to 80.0), 10 repeats', 'M62 207.33L528 120.67')
    """

    plot: Plot
    panel: Panel

    @cached_property
    def _places(self) -> list[float]:
        return sorted({value.x for line in self.panel.lines for value in line.values})

    @cached_property
    def y_ticks(self) -> list[float]:
        """Percentages that span everything drawn."""
        lines = (*self.panel.lines, *self.panel.references)
        values = [value for line in lines for value in line.values]
        ends = [100 * end for value in values for end in (value.low, value.high)]
        return ticks(min(ends), max(ends))

    @property
    def x_ticks(self) -> list[float]:
        """The values' places, without those that would write over another; the last one stays."""
        kept: list[float] = []
        for place in self._places:
            if kept and self.x(place) - self.x(kept[-1]) < _TICK_WIDTH:
                if place != self._places[-1] or len(kept) == 1:
                    continue
                kept.pop()
            kept.append(place)
        return kept

    def x(self, value: float) -> float:
        """Return the place of a value on the axis."""
        start, end = LEFT + 18, WIDTH - RIGHT - 18
        first, last = self._places[0], self._places[-1]
        if first == last:
            return (start + end) / 2
        if self.plot.is_log and first > 0:
            share = math.log(value / first) / math.log(last / first)
        else:
            share = (value - first) / (last - first)
        return round(start + share * (end - start), 2)

    def y(self, fraction: float) -> float:
        """Return the height of a fraction."""
        bottom, steps = HEIGHT - BOTTOM, self.y_ticks
        share = (100 * fraction - steps[0]) / (steps[-1] - steps[0])
        return round(bottom + share * (TOP - bottom), 2)

    def path(self, line: Line) -> str:
        """Return a line through its values."""
        return "M" + "L".join(f"{self.x(v.x):g} {self.y(v.mean):g}" for v in line.values)

    def said(self, value: Value) -> str:
        """Return what is said about one value."""
        text = f"{self.plot.x_name} = {value.x:g}: {100 * value.mean:.1f} %"
        if value.repeats < 2:
            return text
        if value.repeats < INTERVAL_REPEATS:
            return f"{text}, {value.repeats} repeats"
        return f"{text} ({100 * value.low:.1f} to {100 * value.high:.1f}), {value.repeats} repeats"

    @property
    def summary(self) -> str:
        """What the drawing shows, in words: the alternative text."""
        name, parts = self.plot.x_name, []
        for line in self.panel.lines:
            ends = [f"{100 * v.mean:.1f} at {name} {v.x:g}" for v in line.values]
            several = f"from {ends[0]} to {ends[-1]}"
            parts.append(f"{line.label} {ends[0] if len(ends) == 1 else several}")
        parts += [f"{one.label} {100 * one.values[0].mean:.1f}" for one in self.panel.references]
        what = self.plot.y_label_of(self.panel)
        return f"{self.plot.title}, {self.panel.title}. {what}: {'; '.join(parts)}."


def marker(style: int) -> str:
    """Return the path of a style's marker around the origin.

    >>> marker(2)
    'M-4.5-4.5h9v9h-9z'
    """
    return {
        "o": f"M-{_SIZE:g} 0a{_SIZE:g} {_SIZE:g} 0 1 0 {2 * _SIZE:g} 0"
        f"a{_SIZE:g} {_SIZE:g} 0 1 0-{2 * _SIZE:g} 0z",
        "D": "M0-6L6 0L0 6L-6 0z",
        "s": "M-4.5-4.5h9v9h-9z",
        "^": "M0-6L5.6 4.5h-11.2z",
        "v": "M0 6L5.6-4.5h-11.2z",
        "P": "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
        "p": "M0-5L4.8-1.5L2.9 4.1H-2.9L-4.8-1.5z",
        "X": "M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0z",
    }[STYLES[style].marker]


def ticks(low: float, high: float, *, most: int = 7) -> list[float]:
    """Return round numbers that span an interval.

    >>> ticks(47.2, 88.9)
    [40.0, 50.0, 60.0, 70.0, 80.0, 90.0]
    """
    span = max(high - low, 1e-6)
    for step in (scale * 10.0**power for power in range(-3, 4) for scale in (1, 2, 5)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first + 1 <= most and step * most >= span:
            return [round(step * k, 6) for k in range(first, max(last, first + 1) + 1)]
    return [low, high]
