"""Figures in sentences and small tables of pages, each from records or from the accountant.

Every entry of ``STATED`` is a page, a text with ``{}`` for each figure, and a function that returns
the figures as they are printed. The text must stand on the page exactly once, whatever its line
breaks. ``docs/tables.py --write`` puts the figures in, ``--check`` compares them, and a test looks
for figures on these pages that no entry states.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs" / "data" / "tables"
FIGURE = r"([-+]?\d[\d,]*(?:\.\d+)?)"
Row = dict[str, Any]


class Stated(NamedTuple):
    """A text with figures, and where they come from."""

    page: str
    text: str
    figures: Callable[[], Sequence[str]]

    def pattern(self) -> re.Pattern[str]:
        """Return what finds the text, with a group for each figure."""
        parts = (re.escape(part).replace(r"\ ", r"\s+") for part in self.text.split("{}"))
        return re.compile(FIGURE.join(parts))

    def filled(self, page: str) -> str:
        """Return the text of a page with the figures in it."""
        found = list(self.pattern().finditer(page))
        if len(found) != 1:
            raise ValueError(f"{self.page} must have {self.text!r} once. Got {len(found)} times.")
        figures = list(self.figures())
        if len(figures) != self.text.count("{}"):
            raise ValueError(f"{self.text!r} must have its figures. Got {figures}.")
        match, made, end = found[0], "", found[0].start()
        for group, figure in enumerate(figures, start=1):
            made += page[end : match.start(group)] + figure
            end = match.end(group)
        return page[: match.start()] + made + page[end : match.end()] + page[match.end() :]


def rows(name: str) -> list[Row]:
    """Return the rows of a table of docs/generated."""
    lines = (TABLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    return [json.loads(line) for line in lines]


def number(cell: Any, place: int = 0) -> float:
    """Return a number of a cell, the first one if none is named."""
    return float(re.findall(r"[-+]?\d+(?:\.\d+)?", str(cell).replace(",", ""))[place])


def _row(name: str, **cells: str) -> Row:
    (found,) = (
        one for one in rows(name) if all(str(one[key]) == value for key, value in cells.items())
    )
    return found


# Audits and attacks ----------------------------------------------------------------------------

AUDITS = "docs/explanation/audits.md"


def _bounds() -> list[str]:
    found = [number(one["1"]) / number(one["1"], -1) for one in rows("audit-bounds")[-1:]]
    found += [number(one["1"]) for one in rows("audit-bounds")[:-1]]
    return [f"{min(found):.2f}", f"{max(found):.2f}"]


def _membership(target: str, paper: bool = True) -> list[str]:
    one = _row("attack-membership", target=target, epsilon="inf")
    column = next(key for key in one if key.startswith("paper"))
    cells = [f"{number(one['whole graph']):.1f}", f"{number(one['1,000 nodes per class']):.1f}"]
    return [*cells, f"{number(one[column]):.1f}"] if paper else cells


def _private_membership() -> list[str]:
    private = [one for one in rows("attack-membership") if str(one["epsilon"]) != "inf"]
    column = next(key for key in private[0] if key.startswith("shadow"))
    found = [number(one[key]) for one in private for key in ("whole graph", column)]
    return [f"{math.floor(min(found))}", f"{math.ceil(max(found))}"]


def _published_way() -> list[str]:
    found = []
    for one in rows("attack-membership"):
        column = next(key for key in one if key.startswith("shadow"))
        if str(one["epsilon"]) == "inf" and one[column]:
            found.append(number(one[column]) - number(one["whole graph"]))
    return [f"{round(max(found))}"]


def _gap(target: str) -> str:
    cell = _row("attack-membership", target=target, epsilon="inf")["accuracy on members / others"]
    return f"{round(number(cell) - number(cell, 1))}"


def _lira(target: str, level: str) -> str:
    one = _row("attack-lira", target=target, level=level)
    return f"{number(next(value for key, value in one.items() if key.startswith('AUC'))):.1f}"


def _links(target: str, pairs: str) -> str:
    return f"{number(_row('attack-links-cornell5', target=target)[f'`{pairs}`'], 1):.1f}"


PRIVATE_LINKS = "GAP, edge level, epsilon 1, feature messages", "GAP, edge level, epsilon 1"
OPEN_LINKS = "SAGE without privacy", "GAP without privacy, feature messages"


def _held_out() -> list[str]:
    return [f"{max(float(_links(one, 'held-out')) for one in PRIVATE_LINKS):.1f}"]


def _uniform() -> list[str]:
    private = min(float(_links(one, "uniform")) for one in PRIVATE_LINKS)
    assert private > max(float(_links(one, "uniform")) for one in OPEN_LINKS)
    return [f"{round(private)}"]


def _pubmed(is_private: bool) -> list[float]:
    found = rows("attack-links-pubmed")
    return [number(one["gain"]) for one in found if ("epsilon" in one["target"]) == is_private]


def _linkteller(graph: str, others: str, layers: str = "2 layers") -> float:
    (one,) = (
        row
        for row in rows("attack-linkteller")
        if row["graph"].startswith(graph)
        and others in row["`--others`"]
        and layers in row["target"]
    )
    return number(one["attack"])


def _stealing() -> list[str]:
    column = "link stealing: labels / probabilities"
    gains = [
        float(one) for row in rows("own-links") for one in re.findall(r"\(([^)]*)\)", row[column])
    ]
    return [f"{min(gains):.1f}", f"{max(gains):+.1f}"]


def _informed(answers: int) -> list[float]:
    column = "informed: labels / probabilities"
    found = (row for row in rows("own-links") if re.search("record|vote", row["level, reads"]))
    return [number(row[column], answers) for row in found]


# Speed and memory ------------------------------------------------------------------------------

SPEED, SCALE = "docs/explanation/performance.md", "docs/how-to/scale.md"


def _floors(level: str, stages: str) -> list[str]:
    found = [
        number(one["times the floor"])
        for one in rows("stages")
        if one["level"] == level and re.search(stages, one["stage"])
    ]
    return [f"{min(found):g}", f"{max(found):g}"]


def _store(step: str, column: str) -> float:
    (one,) = (row for row in rows("store") if row["step"].startswith(step))
    return number(one[column])


def _of_the_disk() -> str:
    rates = [_store(hop, "rate") for hop in ("hop 1", "hop 2")]
    return f"{round(100 * max(rates) / _store('plain sequential read', 'rate'))}"


def _ledger(ids: str, step: str, column: str) -> float:
    return number(_row("ledger", people="10,000,000", ids=ids, step=step)[column])


# Prices ----------------------------------------------------------------------------------------

PRIVACY, LEDGER = "docs/explanation/privacy.md", "docs/how-to/ledger.md"
STEPS = {"sampling_rate": 0.0129, "steps": 1546}


def _whole_edge(claimed: float) -> list[str]:
    from gapgnn.accounting import Gaussian, calibrate, epsilon

    (hop,) = calibrate([Gaussian(1.0)], epsilon=claimed, delta=1e-7, relation="directed")
    whole = Gaussian(hop.noise_multiplier / math.sqrt(2))
    return [f"{epsilon([whole], 1e-7, relation='undirected'):.2f}"]


def _composed_fits() -> list[str]:
    from gapgnn.accounting import Gaussian, calibrate, epsilon

    (hops,) = calibrate([Gaussian(1.0, count=2)], epsilon=1.0, delta=1e-7, relation="undirected")
    return [f"{epsilon([hops] * 10, 1e-7, relation='undirected'):.2f}"]


def _renyi(events: Sequence[Any], delta: float) -> float:
    from gapgnn.privacy.accounting import accountant_named

    return float(accountant_named("rdp").epsilon(events, delta, relation="add-remove"))


def _steps_price() -> list[str]:
    from gapgnn.accounting import Gaussian, PoissonGaussian, epsilon

    events = [PoissonGaussian(1.0, **STEPS), Gaussian(1.0, count=2)]
    return [f"{epsilon(events, 1e-5):.3f}", f"{_renyi(events, 1e-5):.3f}"]


def _steps_replaced() -> list[str]:
    from gapgnn.accounting import Gaussian, PoissonGaussian, epsilon

    # The noise is as before: a hop's sensitivity is twice as large, 2 sqrt(D).
    events = [PoissonGaussian(1.0, **STEPS), Gaussian(0.5, count=2)]
    return [f"{epsilon(events, 1e-5, relation='replace'):.2f}"]


STATED: tuple[Stated, ...] = (
    Stated(AUDITS, "At a claimed epsilon of 1 they are {} to {}.", _bounds),
    Stated(AUDITS, "Private models: {} to {}, close to guessing.", _private_membership),
    Stated(AUDITS, "published way reaches up to {} points more", _published_way),
    Stated(AUDITS, "| GAP | {} | {} | {} |", lambda: _membership("GAP, feature messages")),
    Stated(AUDITS, "| MLP | {} | {} | {} |", lambda: _membership("MLP")),
    Stated(AUDITS, "| GraphSAGE | {} | {} | {} |", lambda: _membership("SAGE")),
    Stated(AUDITS, "accuracy on members and others differs by {} points.", lambda: [_gap("SAGE")]),
    Stated(
        AUDITS,
        "For GAP and MLP the difference is {} and {} points.",
        lambda: [_gap("GAP, feature messages"), _gap("MLP")],
    ),
    Stated(
        AUDITS,
        "| GAP | {} | {} |\n",
        lambda: [_lira("GAP, feature messages", one) for one in ("none", "node, epsilon 8")],
    ),
    Stated(
        AUDITS,
        "| MLP | {} | {} |\n",
        lambda: [_lira("MLP", one) for one in ("none", "node, epsilon 8")],
    ),
    Stated(AUDITS, "| GraphSAGE | {} | |", lambda: [_lira("SAGE", "none")]),
    Stated(AUDITS, "| held-out | 0 to {}, chance |", _held_out),
    Stated(
        AUDITS,
        "| degree-matched | {} (GAP) and {} (LabelGAP)",
        lambda: [_links(one, "degree") for one in PRIVATE_LINKS],
    ),
    Stated(AUDITS, "| uniform | **{}, more than models without privacy**", _uniform),
    Stated(
        AUDITS,
        "There it gains {} to {} points without privacy, and at most {} points at epsilon 1.",
        lambda: [
            f"{round(min(_pubmed(False)))}",
            f"{round(max(_pubmed(False)))}",
            f"{max(_pubmed(True)):.1f}",
        ],
    ),
    Stated(
        AUDITS,
        "tells pairs that are close in the graph with an AUC of {}.",
        lambda: [f"{_linkteller('Cornell5', 'all'):.1f}"],
    ),
    Stated(
        AUDITS,
        "its AUC is then {} on Cornell5 and {} on PubMed.",
        lambda: [f"{round(_linkteller(one, 'held-out'))}" for one in ("Cornell5", "PubMed, 197")],
    ),
    Stated(AUDITS, "them: {} to {} points, chance.", _stealing),
    Stated(
        AUDITS,
        "and NeighborVote, probabilities: {} to {}.**",
        lambda: [f"{round(one(_informed(1)))}" for one in (min, max)],
    ),
    Stated(
        AUDITS,
        "and NeighborVote, labels: {} to {}.**",
        lambda: [f"{one(_informed(0)):.1f}" for one in (min, max)],
    ),
    Stated(
        SPEED,
        "Epochs at edge level take {} to {} times the counted floor;",
        lambda: _floors("edge", "epochs"),
    ),
    Stated(SPEED, "node level takes {} to {} times,", lambda: _floors("node", "floor|epochs|hops")),
    Stated(
        SCALE,
        "| partition | {} GiB |",
        lambda: [f"{_store('partition', 'peak resident memory'):.2f}"],
    ),
    Stated(SCALE, "| hops | {} GiB |", lambda: [f"{_store('hop 1', 'peak resident memory'):.2f}"]),
    Stated(
        SCALE,
        "| a whole fit | {} GiB |",
        lambda: [f"{_store('whole fit', 'peak resident memory'):.1f}"],
    ),
    Stated(
        SCALE,
        "A hop takes {} s of both cores together. It reads at {} % of the rate of the disk.",
        lambda: [f"{_store('hop 2', 'of all cores together'):.1f}", _of_the_disk()],
    ),
    Stated(
        SCALE,
        "| grant a budget | {} s of a core | {} s |",
        lambda: [f"{_ledger(one, 'grant', 'of one core'):.1f}" for one in ("number", "text")],
    ),
    Stated(
        SCALE,
        "| charge next month's table | {} s of a core | {} s |",
        lambda: [f"{_ledger(one, 'charge', 'of one core'):.1f}" for one in ("number", "text")],
    ),
    Stated(
        SCALE,
        "| memory | {} GiB | {} GiB |",
        lambda: [
            f"{_ledger(one, 'grant', 'peak memory') / 1024:.1f}" for one in ("number", "text")
        ],
    ),
    Stated(PRIVACY, "| 4 | {} |", lambda: _whole_edge(4.0)),
    Stated(PRIVACY, "| 1 | {} |", lambda: _whole_edge(1.0)),
    Stated(PRIVACY, "(two hops, delta 1e-7 each) are {} together by", _composed_fits),
    Stated(PRIVACY, "`add-remove` | epsilon {} (RDP {}) |", _steps_price),
    Stated(PRIVACY, "| the same under `replace` | epsilon {} |", _steps_replaced),
)

PAGES = frozenset(one.page for one in STATED)


def filled(page: str, text: str) -> str:
    """Return a page with all of its stated figures made anew."""
    for one in STATED:
        if one.page == page:
            text = one.filled(text)
    return text
