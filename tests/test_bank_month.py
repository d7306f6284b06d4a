"""A month of a bank, as its tables come: German text, a folder of Parquet files, and PostgreSQL.

From description to report no file is rewritten, and it is one graph and one model each time.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from gapgnn.cli.main import main
from gapgnn.privacy.ledger import Ledger

pytestmark = pytest.mark.gate

SMALL, WHOLE = (1_200, 14_400), (50_000, 600_000)
PARTS = 3
SEGMENTS = ("Privatkunde", "Geschäftskunde", "Student", "Rentner", "Freiberufler")
PURPOSES = ("Miete", "Lohn", 'Einkauf; "bar"', "")
NOVEMBER = ("--since", "2026-11-01", "--until", "2026-12-01")
SCHEMA = f"""\
entity = "Kunde/Kunden"
link = "Zahlung/Zahlungen"

[label]
column = "risiko"
classes = ["niedrig", "hoch"]

[weight]
column = "betrag"
low = 0
high = 800

[columns.filiale]
type = "category"
values = {json.dumps([f"{number:03d}" for number in range(1, 60)])}

[columns.plz]
type = "ignore"

[columns.einkommen]
type = "number"
low = 200
high = 40000

[columns.eroeffnet]
type = "date"
low = 1990-01-01
high = 2030-01-01
format = "%d.%m.%Y"

[columns.segment]
type = "category"
values = {json.dumps(SEGMENTS, ensure_ascii=False)}

[columns.score_extern]
type = "number"
low = 300
high = 900

[columns.aktiv]
type = "category"
values = ["ja", "nein"]

[columns.bemerkung]
type = "ignore"
"""
CUSTOMERS = pa.schema(
    [
        ("kundennr", pa.string()),
        ("filiale", pa.string()),
        ("plz", pa.string()),
        ("einkommen", pa.float64()),
        ("eroeffnet", pa.date32()),
        ("segment", pa.string()),
        ("score_extern", pa.int32()),
        ("aktiv", pa.string()),
        ("bemerkung", pa.string()),
        ("risiko", pa.string()),
    ]
)
PAYMENTS = pa.schema(
    [
        ("zahlung_id", pa.int64()),
        ("von", pa.string()),
        ("an", pa.string()),
        ("betrag", pa.float64()),
        ("gebucht_am", pa.timestamp("us")),
        ("zweck", pa.string()),
    ]
)
TYPES = {
    pa.string(): "text",
    pa.float64(): "numeric(12, 2)",
    pa.date32(): "date",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.timestamp("us"): "timestamp with time zone",
}


def bank(customers: int, payments: int) -> tuple[pa.Table, pa.Table]:
    """Return customers and payments: codes, gaps, dates, accounts of other banks."""
    rng = np.random.default_rng(7)
    risky = rng.random(customers) < 0.15
    ids = np.array([f"{number + 4711:010d}" for number in range(customers)])

    def some(values: list[object], share: float) -> list[object]:
        gone = rng.random(len(values)) < share
        return [None if empty else value for value, empty in zip(values, gone, strict=True)]

    income = np.exp(rng.normal(7.9, 0.6, customers)) * (1 - 0.3 * risky)
    opened = [date(1998, 1, 1) + timedelta(int(days)) for days in rng.integers(0, 9000, customers)]
    known = rng.random(customers) < 0.4
    rows = {
        "kundennr": ids,
        "filiale": [f"{branch:03d}" for branch in rng.integers(1, 60, customers)],
        "plz": [f"{code:05d}" for code in rng.integers(1067, 99998, customers)],
        "einkommen": some(list(np.round(income, 2).tolist()), 0.06),
        "eroeffnet": some(list(opened), 0.02),
        "segment": rng.choice(SEGMENTS, customers),
        "score_extern": some(rng.normal(600 - 80 * risky, 70).astype(int).tolist(), 0.3),
        "aktiv": np.where(rng.random(customers) < 0.1, "nein", "ja"),
        "bemerkung": [f"Rückruf wegen Karte; Vorgang {number}" for number in range(customers)],
        "risiko": [
            ("hoch" if bad else "niedrig") if seen else None
            for bad, seen in zip(risky, known, strict=True)
        ],
    }
    activity = rng.pareto(1.8, customers) + 0.2
    source, target = rng.choice(customers, (2, payments), p=activity / activity.sum())
    alike = risky[source] & (rng.random(payments) < 0.6)
    target[alike] = rng.choice(np.flatnonzero(risky), int(alike.sum()))
    outside = rng.random(payments) < 0.03
    minutes = rng.integers(0, 60 * 24 * 60, payments).tolist()
    moved = {
        "zahlung_id": np.arange(payments),
        "von": ids[source],
        "an": np.where(
            outside, np.char.add("DE", np.char.zfill(source.astype(str), 8)), ids[target]
        ),
        "betrag": np.round(np.exp(rng.normal(4.5, 1.3, payments)), 2),
        "gebucht_am": [datetime(2026, 10, 15) + timedelta(minutes=minute) for minute in minutes],
        "zweck": rng.choice(PURPOSES, payments),
    }
    return pa.table(rows, schema=CUSTOMERS), pa.table(moved, schema=PAYMENTS)


def german(value: object) -> str:
    """Write a value as a German spreadsheet does."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")
    if isinstance(value, datetime):
        return value.strftime("%d.%m.%Y %H:%M")
    return value.strftime("%d.%m.%Y") if isinstance(value, date) else str(value)


def as_text(table: pa.Table, path: Path) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(table.column_names)
        for batch in table.to_batches(max_chunksize=1 << 14):
            writer.writerows([map(german, row.values()) for row in batch.to_pylist()])
    return path


def as_folder(table: pa.Table, folder: Path) -> Path:
    folder.mkdir()
    step = -(-table.num_rows // PARTS)
    for part in range(PARTS):
        pq.write_table(table.slice(part * step, step), folder / f"part-{part}.parquet")
    return folder


def into_postgres(table: pa.Table, name: str, address: str) -> str:
    import psycopg

    columns = ", ".join(f'"{part.name}" {TYPES[part.type]}' for part in table.schema)
    with psycopg.connect(address) as link, link.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.execute(f"CREATE TABLE {name} ({columns})")
        with cursor.copy(f"COPY {name} FROM STDIN") as copy:
            for batch in table.to_batches(max_chunksize=1 << 14):
                for row in batch.to_pylist():
                    copy.write_row(
                        Decimal(str(cell)) if isinstance(cell, float) else cell
                        for cell in row.values()
                    )
    return f"{address}?SELECT * FROM {name} ORDER BY {table.column_names[0]}"


class Month(NamedTuple):
    """What the commands made of the tables of one source."""

    fingerprint: str
    columns: list[dict[str, object]]
    tensors: dict[str, str]
    predictions: str
    report: str
    charges: int


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tensors_of(model: Path) -> dict[str, str]:
    """Return all that was learned and released; a release is filed under a name of chance."""
    return {
        f"{path.relative_to(model).parts[0]} {name}": hashlib.sha256(tensor.tobytes()).hexdigest()
        for path in model.rglob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


def month(words: list[str], folder: Path, said: Callable[[], str]) -> Month:
    """Describe, train, predict and report as the bank does."""
    ledger = Ledger.init(folder / "ledger.sqlite")
    model = folder / "model"
    shared = ["--ledger", str(ledger.path)]
    read = ["--source", "von", "--target", "an", "--weight", "betrag", "--time", "gebucht_am"]
    read += ["--time-format", "%d.%m.%Y %H:%M", *NOVEMBER, "--dangling", "drop"]
    schema = ["--schema", str(folder / "schema.toml")]
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    said()
    assert main(["describe", *words, *read, *schema, *shared, "--json"]) == 0
    about = json.loads(said())
    train = ["train", "label-gap", *words, *read, *schema, *shared, "--epsilon", "4"]
    train += ["--epochs", "5", "--folds", "0", "--insecure-noise-seed", "3", "--no-compare"]
    assert main([*train, "--out", str(model)]) == 0
    answers = folder / "predictions.csv"
    predict = ["predict", "--model", str(model), *words, *NOVEMBER, *shared]
    assert main([*predict, "--out", str(answers)]) == 0
    assert main(["report", str(model), "--out", str(folder / "report.html"), *shared]) == 0
    said()
    return Month(
        fingerprint=about["fingerprint"],
        columns=about["columns"],
        tensors=tensors_of(model),
        predictions=answers.read_text(encoding="utf-8"),
        report=(folder / "report.html").read_text(encoding="utf-8"),
        charges=len(ledger.entries()),
    )


@pytest.fixture(
    scope="module",
    params=[SMALL, pytest.param(WHOLE, marks=pytest.mark.slow)],
    ids=["small", "whole"],
)
def tables(request) -> tuple[pa.Table, pa.Table]:
    return bank(*request.param)


@pytest.mark.filterwarnings("ignore:The namespace:gapgnn.privacy.ledger.LedgerNotice")
def test_from_text_folders_and_postgres_it_is_one_graph_and_one_model(
    tables, tmp_path, capsys, postgres
):
    given = tmp_path / "given"
    given.mkdir()
    names = ("kunden", "zahlungen")
    text = [as_text(t, given / f"{n}.csv") for t, n in zip(tables, names, strict=True)]
    parts = [as_folder(t, given / n) for t, n in zip(tables, names, strict=True)]
    before = files_of(given)
    address = postgres.fresh()
    asked = [into_postgres(t, n, address) for t, n in zip(tables, names, strict=True)]
    spelled = ["--delimiter", "semicolon", "--decimal", ",", "--thousands", "."]
    found = []
    for name, (nodes, edges), words in (
        ("text", text, spelled),
        ("folder", parts, []),
        ("postgres", asked, []),
    ):
        (tmp_path / name).mkdir()
        source = ["--nodes", str(nodes), "--edges", f"zahlungen={edges}", *words]
        found.append(month(source, tmp_path / name, lambda: capsys.readouterr().out))
    first, *others = found
    assert first.tensors
    assert first.charges == 1
    assert len(first.predictions.splitlines()) == tables[0].num_rows + 1
    for other in others:
        assert other.fingerprint == first.fingerprint
        assert other.columns == first.columns
        assert other.tensors == first.tensors
        assert other.predictions == first.predictions
        assert other.charges == first.charges
    # Nobody had to write a file anew, and nobody did.
    assert files_of(given) == before
    assert all("Zahlung" in one.report for one in found)
