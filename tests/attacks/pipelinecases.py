"""Small tables for the audit from table to folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gapgnn.audits.neighbours import Tables
from gapgnn.audits.pipeline import Case, Outcome, audit_pipeline
from gapgnn.cli.main import main
from gapgnn.privacy import parse_relation

CITIES, TEAMS = ("Rome", "Bern", "Oslo"), ("red", "green", "blue")
SCHEMA = """\
[label]
column = "team"
classes = ["blue", "green", "red", "violet"]

[columns.age]
type = "number"
low = -3
high = 5

[columns.city]
type = "category"
values = ["Bern", "Rome"]
"""
DATED = f"""{SCHEMA}
[columns.joined]
type = "date"
low = "2010-01-01"
high = "2030-01-01"
format = "%d.%m.%Y"
"""
LABEL_ONLY = SCHEMA.split("\n[columns.age]")[0]


def tables(
    *, size: int = 150, directed: bool = False, schema: str | None = SCHEMA, matrix: bool = False
) -> Tables:
    """Return people of three teams with links mostly inside a team; one class has one member."""
    rng = np.random.default_rng(5)
    team = rng.integers(0, 3, size)
    ids = [str(3 * k + 100) for k in range(size)]
    rows = [
        (ids[k], f"{rng.normal() + team[k]:.3f}", CITIES[rng.integers(3)], TEAMS[team[k]])
        for k in range(size)
    ]
    # The only member of a class; at edge level every class needs a training node.
    if schema is not None:
        rows[size // 3] = (*rows[size // 3][:3], "violet")
    links = []
    for k in range(size):
        for other in rng.integers(0, size, 4).tolist():
            if team[other] == team[k] or rng.random() < 0.2:
                links.append((ids[k], ids[other]))
    columns: tuple[str, ...] = ("id", "age", "city", "team")
    features = None
    if matrix:
        features = rng.normal(size=(size, 5)).astype(np.float32)
        rows = [(row[0], row[3]) for row in rows]  # type: ignore[misc]
        columns, schema = ("id", "team"), LABEL_ONLY
    return Tables(
        columns, tuple(rows), ("a", "b"), tuple(links), "team", directed, features, schema
    )


def with_dates(given: Tables) -> Tables:
    """Return tables with a date in each row, some far out of bounds and some unreadable."""
    rng = np.random.default_rng(6)
    cells = [f"{rng.integers(1, 29):02d}.0{rng.integers(1, 10)}.{y}" for y in range(1990, 2040)]
    cells += ["", "soon", "31.02.2020"]
    nodes = tuple((*row, cells[k % len(cells)]) for k, row in enumerate(given.nodes))
    return replace(given, node_columns=(*given.node_columns, "joined"), nodes=nodes, schema=DATED)


def with_strangers(given: Tables) -> Tables:
    """Return tables with additional links to and from people without a row."""
    pairs = [("99999", given.ids[1]), (given.ids[2], "99998"), ("99999", "99998")]
    rest = ("7",) * (len(given.edge_columns) - 2)
    strangers = [(*pair, *rest) for pair in pairs]
    return replace(given, edges=(*strangers, *given.edges, *strangers[:2]))


def weighed(given: Tables, *, bounds: tuple[str, str] = ("1", "50")) -> Tables:
    """Give every link an amount: most within the bounds, some far above, a few unreadable."""
    rng = np.random.default_rng(7)
    amounts = [f"{amount:.2f}" for amount in rng.lognormal(3, 1, len(given.edges))]
    amounts[3], amounts[5] = "", "unknown"
    return replace(
        given,
        edge_columns=(*given.edge_columns, "amount"),
        edges=tuple((*row, amount) for row, amount in zip(given.edges, amounts, strict=True)),
        weight="amount",
        edge_words=("--weight", "amount", "--weight-bounds", *bounds),
    )


def split_by_type(given: Tables) -> Tables:
    """Return the tables with every second link in a second edge type."""
    more = (("visits", given.edge_columns, given.edges[1::2]),)
    return replace(given, edge_type="calls", edges=given.edges[::2], more=more)


def audit(
    words: str,
    level: str,
    relation: str,
    given: Tables | None = None,
    pairs: Sequence[str] | None = None,
    reference: bool = False,
    **options: object,
) -> list[Outcome]:
    """Audit a command on small tables, by default without the long training of its reference."""
    words = f"{words} --level {level} --relation {relation} --device cpu"
    if not reference and words.startswith("train"):
        words += " --no-compare"
    is_cut = any(f" {method} " in f" {words}" for method in ("gap", "progap", "sage", "embed"))
    if "--own record" in words:
        options.setdefault("keeps_rows", True)
    if level == "node" and is_cut:
        options.setdefault("max_degree", 3)
        words += " --max-degree 3"
    given = tables() if given is None else given
    case = Case(tuple(words.split()), given, parse_relation(relation, level), **options)  # type: ignore[arg-type]
    return audit_pipeline(case, main, pair_types=pairs)


def findings(outcomes: Sequence[Outcome]) -> list[str]:
    """Return everything that was found."""
    return [f"{outcome.pair_type}: {text}" for outcome in outcomes for text in outcome.findings]
