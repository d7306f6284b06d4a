"""Draws accuracy against epsilon on the school that took no part in choices, as SVG.

Plain shapes and fixed colours: the same records give the same bytes with any version of any
library, and the drawing is legible on a light and on a dark page (it has its own background).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

SCHOOL = "facebook100/Wisconsin87"
PANELS = (
    ("edge", "Edge level: one undirected edge", ("LabelGAP", "ProGAP", "GAP", "SAGE", "MLP")),
    ("node", "Node level: one record", ("NodeLabelGAP", "ProGAP", "GAP", "SAGE", "MLP-DP")),
)
NAMES = {"SAGE": "GraphSAGE"}
# Colour and dashes of each method; an own marker would need more room than the lines have.
STYLES = {
    "LabelGAP": ("#1b4f9c", ""),
    "NodeLabelGAP": ("#1b4f9c", ""),
    "ProGAP": ("#a3480c", "8 3"),
    "GAP": ("#1f6b3a", "2 3"),
    "SAGE": ("#7a2f8f", "8 3 2 3"),
    "MLP": ("#4a4a4a", "1 4"),
    "MLP-DP": ("#4a4a4a", "1 4"),
}
WIDTH, HEIGHT, LEFT, TOP, GAP = 430, 300, 48, 44, 20
LOW, HIGH = 30.0, 90.0
Cells = Mapping[tuple[str, str, str, float], Mapping[str, Any]]


def drawing(cells: Cells) -> str:
    """Return the SVG of both levels."""
    whole = 2 * (LEFT + WIDTH + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {HEIGHT + 140}" '
        'font-family="sans-serif" font-size="14" role="img" '
        'aria-label="Test accuracy against epsilon on Wisconsin87, edge level and node level">',
        f'<rect width="{whole}" height="{HEIGHT + 140}" fill="#ffffff"/>',
    ]
    for number, (level, title, methods) in enumerate(PANELS):
        lines += panel(cells, number * (LEFT + WIDTH + GAP) + LEFT, level, title, methods)
    return "\n".join([*lines, "</svg>", ""])


def panel(
    cells: Cells, left: int, level: str, title: str, methods: tuple[str, ...]
) -> Iterator[str]:
    """Yield the axes, lines and legend of one level."""
    here = {(key[2], key[3]): cell for key, cell in cells.items() if key[:2] == (level, SCHOOL)}
    epsilons = sorted({epsilon for _, epsilon in here})
    first, last = math.log(epsilons[0]), math.log(epsilons[-1])

    def x(epsilon: float) -> float:
        return left + WIDTH * (math.log(epsilon) - first) / (last - first)

    def y(accuracy: float) -> float:
        return TOP + HEIGHT * (HIGH - accuracy) / (HIGH - LOW)

    yield f'<text x="{left}" y="{TOP - 18}" font-size="16" font-weight="bold">{title}</text>'
    for accuracy in range(int(LOW), int(HIGH) + 1, 10):
        place = y(accuracy)
        yield (
            f'<path d="M{left} {place:.1f}H{left + WIDTH}" stroke="#cccccc" fill="none"/>'
            f'<text x="{left - 8}" y="{place + 5:.1f}" text-anchor="end">{accuracy}</text>'
        )
    for epsilon in epsilons:
        yield (
            f'<text x="{x(epsilon):.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">'
            f"{epsilon:g}</text>"
        )
    yield f'<text x="{left}" y="{TOP + HEIGHT + 40}">epsilon; test accuracy in percent</text>'
    for number, method in enumerate(methods):
        colour, dashes = STYLES[method]
        stroke = f'stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dashes}" fill="none"'
        at = epsilons
        means = [statistics.mean(_cell(here, method, one)["scores"]) for one in at]
        points = " ".join(
            f"{x(one):.1f},{y(mean):.1f}" for one, mean in zip(at, means, strict=True)
        )
        yield f'<polyline points="{points}" {stroke}/>'
        row, column = divmod(number, 3)
        start, line = left + 150 * column, TOP + HEIGHT + 64 + 24 * row
        yield (
            f'<path d="M{start} {line - 5}h28" {stroke}/>'
            f'<text x="{start + 34}" y="{line}">{NAMES.get(method, method)}</text>'
        )


def _cell(
    here: Mapping[tuple[str, float], Mapping[str, Any]], method: str, epsilon: float
) -> Mapping[str, Any]:
    # Below node level an MLP reads no edge: one run counts for every budget.
    return here[method, 1.0 if method == "MLP" else epsilon]
