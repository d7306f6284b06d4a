"""The report's own drawings: where everything goes, in the units of one SVG.

Only numbers and words are computed here; the template draws them, so that every word is escaped in
one place. Values can be reached with a pointer and with the arrow keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gapgnn.evaluation.report.plots import STYLES, Panel, Plot, Value

WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 34, 56
_SIZE = 5.0
_TICK_WIDTH = 38


@dataclass(frozen=True)
class Tick:
    """A place on an axis and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Point:
    """One value: its place, its bar, and what is said about it."""

    x: float
    y: float
    low: float
    high: float
    name: str
    value: str


@dataclass(frozen=True)
class Curve:
    """One line: its look, its path and its points."""

    label: str
    style: int
    path: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Level:
    """A level line with what is said about it."""

    label: str
    style: int
    y: float
    value: str


@dataclass(frozen=True)
class Chart:
    """One panel, ready to be drawn."""

    title: str
    summary: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    levels: tuple[Level, ...]


def charts(plot: Plot) -> list[Chart]:
    """Return the drawing of each panel.

    >>> from gapgnn.evaluation.report.plots import Line
    >>> values = (Value(1.0, 0.7, 0.6, 0.8, 3), Value(2.0, 0.8, 0.7, 0.9, 3))
    >>> panel = Panel("social", (Line("GAP", 0, values),))
    >>> plot = Plot("hops", "Hops", "", "K", "accuracy (%)", False, "K", (panel,))
    >>> charts(plot)[0].curves[0].points[0].value
    'K = 1: 70.0 % (60.0 to 80.0), 3 repeats'
    """
    return [_chart(plot, panel) for panel in plot.panels]


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


def _chart(plot: Plot, panel: Panel) -> Chart:
    values = [value for line in panel.lines for value in line.values]
    levels = [reference.value for reference in panel.references]
    ends = [end for value in (*values, *levels) for end in (100 * value.low, 100 * value.high)]
    steps = ticks(min(ends), max(ends))
    places = sorted({value.x for value in values})

    def x(value: float) -> float:
        return _place(value, places, LEFT + 18, WIDTH - RIGHT - 18, is_log=plot.is_log)

    def y(fraction: float) -> float:
        bottom, top = HEIGHT - BOTTOM, TOP
        share = (100 * fraction - steps[0]) / (steps[-1] - steps[0])
        return round(bottom + share * (top - bottom), 2)

    def said(name: str, value: Value) -> str:
        return f"{name}: {_percent(value)}"

    curves = []
    for line in panel.lines:
        points = tuple(
            Point(
                x(value.x),
                y(value.mean),
                y(value.low),
                y(value.high),
                line.label,
                said(f"{plot.x_name} = {value.x:g}", value),
            )
            for value in line.values
        )
        path = "M" + "L".join(f"{point.x:g} {point.y:g}" for point in points)
        curves.append(Curve(line.label, line.style, path, points))
    return Chart(
        panel.title,
        _summary(plot, panel),
        tuple(Tick(x(place), f"{place:g}") for place in _thinned(places, x)),
        tuple(Tick(y(step / 100), f"{step:g}") for step in steps),
        tuple(curves),
        tuple(
            Level(one.label, one.style, y(one.value.mean), _percent(one.value))
            for one in panel.references
        ),
    )


def _percent(value: Value) -> str:
    text = f"{100 * value.mean:.1f} %"
    if value.repeats < 2:
        return text
    return f"{text} ({100 * value.low:.1f} to {100 * value.high:.1f}), {value.repeats} repeats"


def _place(
    value: float, places: Sequence[float], start: float, end: float, *, is_log: bool
) -> float:
    first, last = places[0], places[-1]
    if first == last:
        return (start + end) / 2
    if is_log and first > 0:
        share = math.log(value / first) / math.log(last / first)
    else:
        share = (value - first) / (last - first)
    return round(start + share * (end - start), 2)


def _thinned(places: Sequence[float], x: Callable[[float], float]) -> list[float]:
    """Leave out ticks that would write over another one; the last always stays."""
    kept: list[float] = []
    for place in places:
        if kept and x(place) - x(kept[-1]) < _TICK_WIDTH:
            if place != places[-1] or len(kept) == 1:
                continue
            kept.pop()
        kept.append(place)
    return kept


def _summary(plot: Plot, panel: Panel) -> str:
    """Say in words what the drawing shows: the alternative text."""
    parts = []
    for line in panel.lines:
        first, last = line.values[0], line.values[-1]
        if len(line.values) == 1:
            parts.append(f"{line.label} {100 * first.mean:.1f} at {plot.x_name} {first.x:g}")
        else:
            parts.append(
                f"{line.label} from {100 * first.mean:.1f} at {plot.x_name} {first.x:g} to "
                f"{100 * last.mean:.1f} at {plot.x_name} {last.x:g}"
            )
    parts += [f"{one.label} {100 * one.value.mean:.1f}" for one in panel.references]
    return f"{plot.title}, {panel.title}. {plot.y_label}: {'; '.join(parts)}."
