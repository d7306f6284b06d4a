"""The report's own drawings: where everything goes, in the units of one SVG.

Only numbers and words are computed here; the template draws them, so that every word is escaped in
one place. Values can be reached with a pointer and with the arrow keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gapgnn.evaluation.report.plots import STYLES, Line, Panel, Plot, Value

WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 34, 56
_SIZE = 5.0
_TICK_WIDTH = 38


@dataclass(frozen=True)
class Chart:
    """One panel of a plot: places of its values, and what is said about them.

    >>> values = (Value(1.0, 0.7, 0.6, 0.8, 3), Value(2.0, 0.8, 0.7, 0.9, 3))
    >>> panel = Panel("social", (Line("GAP", 0, values),))
    >>> chart = Chart(Plot("hops", "Hops", "", "K", "accuracy (%)", False, "K", (panel,)), panel)
    >>> chart.said(values[0]), chart.path(panel.lines[0])
    ('K = 1: 70.0 % (60.0 to 80.0), 3 repeats', 'M62 207.33L528 120.67')
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
        return f"{self.plot.title}, {self.panel.title}. {self.plot.y_label}: {'; '.join(parts)}."


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
