"""The figures as files for papers and pages: PDF, SVG and PNG, readable without colour."""

from __future__ import annotations

import io
from collections.abc import Iterable
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn.errors import UnavailableError
from gapgnn.evaluation.report.plots import STYLES, Panel, Plot
from gapgnn.evaluation.report.writing import write_file

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
    for axes, panel in zip(grid.flat, plot.panels, strict=False):
        _panel(axes, plot, panel)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    for axes in list(grid.flat)[count:]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(plot.y_label)
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
    axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def _plain(text: str) -> str:
    """Keep matplotlib from reading a dollar sign in a name as mathematics."""
    return text.replace("$", r"\$")
