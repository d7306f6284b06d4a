"""Fingerprints of tables do not change: ledgers and saved folders know graphs by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tablecases import FORMATS, save

from gapgnn.graph.store.build import build_store
from gapgnn.graph.tables import read_tables
from gapgnn.graph.tables.schema import Label, Number, Schema

PEOPLE = {
    "id": ["ann", "bob", "cid", "dan", "007", "7a"],
    "age": [31.0, None, 250.5, None, -3.25, 1e6],
    "city": ["Rome", "Bern", "Zürich", None, "Rome", "a,b"],
    "branch": ["056", "007", "112", "056", None, "007"],
    "member": [True, False, None, True, True, False],
    "shoe": [41, 38, 44, None, 40, 39],
    "team": ["red", "blue", "red", None, "blue", "red"],
}
PAYMENTS = {
    "from": ["ann", "bob", "cid", "ann", "ann", "007", "7a", "dan"],
    "to": ["bob", "cid", "dan", "ann", "bob", "7a", "007", "ann"],
    "amount": [10.0, 2.5, None, 7.0, 0.125, 1234.5, 3.0, 99.0],
    "day": [f"2024-0{month}-15" for month in (1, 2, 3, 4, 5, 6, 7, 8)],
}
NUMBERED = {
    "id": [30, 10, 20, -5, 10**15],
    "x": [1, 2, 3, 4, 5],
    "y": ["2", "10", "2.0", "10", None],
}
LINKS = {"src": [30, 10, 20, 30, -5], "dst": [10, 20, 30, 10**15, 10]}
WEIGHED = {"source": "from", "target": "to", "weight": "amount", "weight_bounds": (0, 2000)}
DIRECTED = {"directed": True, "time": "day", "since": "2024-02-01", "until": "2024-08-01"}
DECLARED = Schema((Number("shoe", 30, 50),), Label("team", ("red", "blue")))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "learned": (PEOPLE, PAYMENTS, {"label": "team"}),
    "amounts": (PEOPLE, PAYMENTS, {"label": "team", **WEIGHED}),
    "window": (PEOPLE, PAYMENTS, {"label": "team", **WEIGHED, **DIRECTED}),
    "declared": (
        PEOPLE,
        PAYMENTS,
        {
            "label": "team",
            "schema": DECLARED,
            "drop": ["age", "city", "branch", "member"],
            "dangling": "keep",
        },
    ),
    "numbers": (NUMBERED, LINKS, {"label": "y"}),
    "without a label": (NUMBERED, LINKS, {"label": None, "drop": ["y"], "directed": True}),
}
# Computed before the readers changed; a change of any of them breaks ledgers and saved folders.
KNOWN = {
    "learned": "489097e6680c3ace92a5895d5b63f42a28e8c299b787a4c6dc5cd46533edec9b",
    "amounts": "a596bbccb72078b7c462334e7e2048ee8567691f09c7ef968f75aa77f0749e22",
    "window": "b3dc1821598931d954c49c1ee0966bfb2666b12860c24df18e8751740aa05c3b",
    "declared": "4591c2ab5f006241679a4e7a8f567e3bd1f23cf2279a3925adefd3f195cb4b9f",
    "numbers": "cae2653f16814c0b2b8d1ffa162595847f1ff45c4f343428592b688c0622485b",
    "without a label": "f5f981b4f9c19ed5e8b9e614b17436e7271fdc5c175193e1ebb38ba862995230",
}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_a_table_keeps_its_fingerprint(tmp_path: Path, case: str, suffix: str) -> None:
    nodes, edges, options = CASES[case]
    files = {
        "nodes": save(pa.table(nodes), tmp_path / f"nodes.{suffix}"),
        "edges": save(pa.table(edges), tmp_path / f"edges.{suffix}"),
    }
    assert read_tables(**files, **options).graph.fingerprint == KNOWN[case]
    stored = build_store(tmp_path / "store", parts=2, **files, **options).graph
    assert stored.fingerprint == KNOWN[case]
