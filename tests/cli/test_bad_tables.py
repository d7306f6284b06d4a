"""Tables as people have them, and what can be wrong with them: one line that tells everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COUNT = 60
HEAD = "id;income;opened;city;note;risk"
ROWS = [
    f"{row};{1000 + row}.{row % 10:03d},5;20{10 + row % 12}-0{1 + row % 9}-1{row % 10};"
    f"{'Bern' if row % 2 else 'Rome'};word {row};{'high' if row % 3 else 'low'}"
    for row in range(COUNT)
]
GERMAN = "\n".join([HEAD, *ROWS]) + "\n"
PEOPLE = "id,age,city,risk\n" + "".join(
    f"{row},{row % 50},{'Bern' if row % 2 else 'Rome'},{'high' if row % 3 else 'low'}\n"
    for row in range(COUNT)
)
PAID = "payer,payee\n" + "".join(f"{row},{(row * 7 + 1) % COUNT}\n" for row in range(COUNT))
SCHEMA = """\
[label]
column = "risk"
classes = ["high", "low"]

[columns.age]
type = "number"
low = 0
high = 100

[columns.city]
type = "category"
values = ["Bern", "Rome"]
"""
DATED = SCHEMA + '\n[columns.opened]\ntype = "date"\nlow = "2000-01-01"\nhigh = "2030-01-01"\n'
TABLES = ("--edges", "paid.csv", "--nodes", "people.csv", "--label", "risk")
DECLARED = ("--edges", "paid.csv", "--nodes", "people.csv", "--schema", "schema.toml")
SEMICOLONS = ("--delimiter", ";", "--edges", "paid.csv", "--nodes", "people.csv")
NODE = ("--level", "node")

File = str | bytes | Callable[[Path], None]


@dataclass(frozen=True)
class Bad:
    """One way to get it wrong: parts of the line, the command, the files that differ."""

    said: tuple[str, ...]
    words: tuple[str, ...] = ("describe", *TABLES)
    files: dict[str, File] = field(default_factory=dict)


def people(head: str = "id,age,city,risk", extra: Callable[[int], str] = lambda row: "") -> str:
    """Return the good people with further cells."""
    lines = [head]
    for row in range(COUNT):
        risk = "high" if row % 3 else "low"
        lines.append(f"{row},{row % 50},{'Bern' if row % 2 else 'Rome'}{extra(row)},{risk}")
    return "\n".join(lines) + "\n"


def with_column(name: str, cell: Callable[[int], str]) -> dict[str, File]:
    return {"people.csv": people(f"id,age,city,{name},risk", lambda row: f",{cell(row)}")}


def describe(*words: str) -> tuple[str, ...]:
    return ("describe", *words)


def parquet(path: Path) -> None:
    rows = range(COUNT)
    table = {"id": list(rows), "age": [[row] for row in rows], "risk": [str(r % 2) for r in rows]}
    pq.write_table(pa.table(table), path)


BAD = {
    # How files are written.
    "semicolons in the nodes": Bad(
        (
            "`--nodes` must have columns separated by commas. Got one, 'id;income",
            "`--delimiter semicolon`",
        ),
        files={"people.csv": GERMAN},
    ),
    "semicolons in the edges": Bad(
        ("`--edges` must have columns separated by commas", "pass `--delimiter semicolon`"),
        files={"paid.csv": PAID.replace(",", ";")},
    ),
    "tabs in a csv": Bad(("pass `--delimiter tab`",), files={"paid.csv": PAID.replace(",", "\t")}),
    "bars in a csv": Bad(("pass `--delimiter '|'`",), files={"paid.csv": PAID.replace(",", "|")}),
    "commas in a tsv": Bad(
        ("must have columns separated by tabs", "call the file .csv"),
        describe("--edges", "paid.tsv", *TABLES[2:]),
        {"paid.tsv": PAID},
    ),
    "commas where semicolons are declared": Bad(
        ("(1) `--nodes` must have columns separated by ';'", "(2) `--edges`", "`--delimiter ,`"),
        describe(*TABLES, "--delimiter", ";"),
    ),
    "both tables written otherwise": Bad(
        ("2 things must be changed", "(1) `--nodes`", "(2) `--edges`"),
        files={"people.csv": GERMAN, "paid.csv": PAID.replace(",", ";")},
    ),
    "a delimiter of two": Bad(
        ("`--delimiter` must be one character, semicolon or tab. Got '::'",),
        describe(*TABLES, "--delimiter", "::"),
    ),
    "an empty delimiter": Bad(("`--delimiter` must be",), describe(*TABLES, "--delimiter", "")),
    "a letter as delimiter": Bad(("Got 'x'",), describe(*TABLES, "--delimiter", "x")),
    "a quote as delimiter": Bad(
        ("must not be part of a cell",), describe(*TABLES, "--delimiter", '"')
    ),
    "a delimiter for Parquet": Bad(
        ("`--delimiter` must come with a .csv file",),
        ("schema", "--nodes", "n.parquet", "--delimiter", ";", "--out", "s.toml"),
        {"n.parquet": parquet},
    ),
    "a decimal that is none": Bad(
        ("`--decimal` must be '.' or ','. Got ':'",), describe(*TABLES, "--decimal", ":")
    ),
    "thousands that are none": Bad(
        ("`--thousands` must be '.', ',', \"'\" or space. Got '_'",),
        describe(*TABLES, "--thousands", "_"),
    ),
    "one mark for both": Bad(
        ("`--thousands` must differ from the decimal point", "say `--decimal ,` too"),
        describe(*TABLES, "--thousands", "."),
    ),
    "a dialect without tables": Bad(
        ("`--delimiter` must come with `--edges`",), ("describe", "--delimiter", ";")
    ),
    "a decimal comma without tables": Bad(
        ("`--decimal` must come with `--edges`",), ("train", "gap", "--decimal", ",")
    ),
    "a dialect without people": Bad(
        ("`--thousands` must come with `--nodes`",),
        ("ledger", "grant", "bank", "--epsilon", "1", "--thousands", ","),
    ),
    "people in another dialect": Bad(
        ("must have columns separated by commas", "`--delimiter semicolon`"),
        ("ledger", "grant", "bank", "--epsilon", "1", "--nodes", "people.csv"),
        {"people.csv": GERMAN},
    ),
    "a schema of semicolons": Bad(
        ("`--delimiter semicolon`",),
        ("schema", "--nodes", "people.csv", "--out", "s.toml"),
        {"people.csv": GERMAN},
    ),
    "UTF-16 with its mark": Bad(
        ("`--nodes` must be UTF-8 text. Got UTF-16, which Excel calls Unicode text",),
        files={"people.csv": PEOPLE.encode("utf-16")},
    ),
    "UTF-16 without its mark": Bad(
        ("Got UTF-16", "CSV UTF-8"), files={"paid.csv": PAID.encode("utf-16-le")}
    ),
    "Latin-1": Bad(
        ("such as Latin-1 or Windows-1252, in line 3 of 'people.csv'",),
        files={"people.csv": PEOPLE.replace("1,1,Bern", "1,1,Zürich").encode("latin-1")},
    ),
    # Columns.
    "decimal commas": Bad(
        ("Column `size`", "Got numbers written as '0,5'; pass `--decimal ,`"),
        files=with_column("size", lambda row: f'"{row},5"'),
    ),
    "thousands": Bad(
        ("Got numbers written as '10,007'; pass `--thousands ,`",),
        files=with_column("size", lambda row: f'"{10 + row % 7},007"'),
    ),
    "thousands and decimal commas": Bad(
        ("Got numbers written as '1.000,5'; pass `--decimal ,` and `--thousands .`",),
        files=with_column("size", lambda row: f'"1.{row:03d},5"'),
    ),
    "a decimal comma too much": Bad(
        ("Got numbers written as '0.5'; leave `--decimal` and `--thousands` out",),
        describe(*TABLES, "--decimal", ","),
        with_column("size", lambda row: f"{row}.5"),
    ),
    "a word among numbers": Bad(
        ("Column `size`", "Got 'unknown' beside 59 different numbers; leave those cells empty"),
        files=with_column("size", lambda row: "unknown" if row == 7 else f"{row}.5"),
    ),
    "ISO dates": Bad(
        ("Column `opened`", 'Got dates; declare it in a schema with `type = "date"`'),
        files=with_column("opened", lambda row: f"2020-01-{1 + row % 28:02d}"),
    ),
    "dates with a time": Bad(
        ("Got dates;", "`--drop opened`"),
        files=with_column("opened", lambda row: f"2020-01-{1 + row % 28:02d} 10:00:00"),
    ),
    "German dates": Bad(
        ("Got dates;",), files=with_column("opened", lambda row: f"{1 + row % 28:02d}.01.2020")
    ),
    "free text": Bad(
        ("Column `note`", "Got free text (60 different values in 60 rows)", "`--drop note`"),
        files=with_column("note", lambda row: f"says {row}"),
    ),
    "a name with a space": Bad(
        ("`--drop 'a note'`",), files=with_column("a note", lambda row: f"says {row}")
    ),
    "clock times": Bad(
        ("Got time32[s]; turn it into one of them",),
        files=with_column("at", lambda row: f"10:{row:02d}:00"),
    ),
    "five problems": Bad(
        (
            "6 things must be changed",
            "Did you mean 'risk'?",
            "`--drop` must be a column",
            "Column `opened`",
            "Column `size`",
            "Column `note`",
            "Got unknown ids in 1 of 61 rows",
        ),
        describe(
            "--edges", "paid.csv", "--nodes", "people.csv", "--label", "rsik", "--drop", "nam"
        ),
        {
            "people.csv": people(
                "id,age,city,opened,size,note,risk",
                lambda row: f',2020-01-{1 + row % 28:02d},"{row},5",says {row}',
            ),
            "paid.csv": PAID + "3,99\n",
        },
    ),
    "broken numbers in two columns": Bad(
        (
            "2 things must be changed",
            "Column `age`",
            "nan in row 4",
            "Column `size`",
            "inf in row 6",
        ),
        files={
            "people.csv": with_column("size", lambda row: "inf" if row == 5 else str(row))[
                "people.csv"
            ].replace("3,3,", "3,nan,")  # type: ignore[union-attr]
        },
    ),
    "ids and columns": Bad(
        ("(1) Column `id`", "Got nothing in row 1", "(2) Column `note`"),
        files={
            "people.csv": with_column("note", lambda row: f"says {row}")["people.csv"].replace(
                "\n0,0,", "\n,0,"
            )  # type: ignore[union-attr]
        },
    ),
    "one class and free text": Bad(
        ("(1) `--label` must have at least two classes. Got 1 ('low')", "(2) Column `note`"),
        files={
            "people.csv": with_column("note", lambda row: f"says {row}")["people.csv"].replace(
                "high", "low"
            )  # type: ignore[union-attr]
        },
    ),
    "edges of one column and an unknown label": Bad(
        ("two columns of node ids", "`--label` must be a column"),
        describe(*TABLES[:4], "--label", "team"),
        {"paid.csv": "payer\n1\n"},
    ),
    "both files missing": Bad(
        ("(1) `--nodes` must be a file. Got 'n.csv'", "(2) `--edges` must be a file. Got 'e.csv'"),
        describe("--edges", "e.csv", "--nodes", "n.csv", "--label", "risk"),
    ),
    "a nameless column and free text": Bad(
        ("without a name", "Column `note`"),
        files={"people.csv": people("id,age,city,,note,risk", lambda row: f",{row},says {row}")},
    ),
    "label and id dropped": Bad(
        ("(1) `--drop` must not name the id", "(2) `--drop` must not name the label"),
        describe(*TABLES, "--drop", "id", "--drop", "risk"),
    ),
    # Schemas.
    "undeclared and absent columns": Bad(
        ("2 things", "Got none for 'city'", "without 'opened'"),
        describe(*DECLARED),
        {
            "schema.toml": DATED.replace("columns.city", "columns.town")
            .replace("category", "ignore")
            .replace('values = ["Bern", "Rome"]\n', "")
        },
    ),
    "a date without bounds": Bad(
        ("`columns.opened.high` must be given",),
        describe(*DECLARED),
        {"schema.toml": DATED.replace('high = "2030-01-01"\n', "")},
    ),
    "a bound that is no date": Bad(
        ("`columns.opened.low` must be a date such as 2024-12-31. Got '1.1.2000'",),
        describe(*DECLARED),
        {"schema.toml": DATED.replace("2000-01-01", "1.1.2000")},
    ),
    "a bound that is a number": Bad(
        ("`columns.opened.low` must be a date", "Got 2000"),
        describe(*DECLARED),
        {"schema.toml": DATED.replace('"2000-01-01"', "2000")},
    ),
    "bounds the wrong way round": Bad(
        ("`columns.opened.low` must be before `high`. Got 2030-01-02 and 2030-01-01",),
        describe(*DECLARED),
        {"schema.toml": DATED.replace("2000-01-01", "2030-01-02")},
    ),
    "a format without a year": Bad(
        ("`columns.opened.format` must say how dates are written", "Got '%d.%m.'"),
        describe(*DECLARED),
        {"schema.toml": DATED + 'format = "%d.%m."\n'},
    ),
    "a format that is none": Bad(
        ("`columns.opened.format` must say",),
        describe(*DECLARED),
        {"schema.toml": DATED + 'format = "%Q"\n'},
    ),
    "an unknown key of a date": Bad(
        ("must only have keys that are known. Got 'from'",),
        describe(*DECLARED),
        {"schema.toml": DATED + "from = 3\n"},
    ),
    "lists declared as dates": Bad(
        ("Column `age` of 'n.parquet' must hold dates, as the schema declares",),
        describe("--edges", "paid.csv", "--nodes", "n.parquet", "--schema", "schema.toml"),
        {
            "n.parquet": parquet,
            "schema.toml": '[label]\ncolumn = "risk"\nclasses = [0, 1]\n[columns.age]\n'
            'type = "date"\nlow = "2000-01-01"\nhigh = "2030-01-01"\n',
        },
    ),
    # Edges.
    "unknown ids": Bad(
        ("Got unknown ids in 1 of 61 rows", "leave such edges out with `--dangling drop`"),
        files={"paid.csv": PAID + "3,99\n"},
    ),
    "dropping at node level": Bad(
        ("`--dangling` must be keep at node level", "count for the out-degree", "Got 'drop'"),
        describe(*DECLARED, "--dangling", "drop", *NODE),
    ),
    "dropping at node level, to train": Bad(
        ("`--dangling` must be keep at node level",),
        ("train", "gap", *DECLARED, "--dangling", "drop", *NODE, "--out", "model"),
    ),
    "dropping at node level, for a store": Bad(
        ("`--dangling` must be keep at node level",),
        ("partition", *DECLARED, "--dangling", "drop", *NODE, "--out", "store"),
    ),
    "no schema at node level": Bad(
        ("`gapgnn schema --nodes people.csv --label risk --delimiter semicolon --decimal , --out",),
        ("train", "gap", *SEMICOLONS, "--label", "risk", "--decimal", ",", *NODE, "--out", "m"),
    ),
    "nodes without edges, to train": Bad(
        ("`--nodes` must come with `--edges`",),
        ("train", "gap", "--nodes", "people.csv", "--label", "risk", "--no-save"),
    ),
    "a column that is not there, of a table alone": Bad(
        ("2 things", "`--drop` must be a column", "`--label` must be a column"),
        ("describe", "--nodes", "people.csv", "--label", "team", "--drop", "nmae"),
    ),
    # Before anything is charged.
    "free text, to train": Bad(
        ("Column `note`", "free text"),
        ("train", "gap", *TABLES, "--out", "model"),
        with_column("note", lambda row: f"says {row}"),
    ),
    "two problems, for a store": Bad(
        ("2 things", "Column `note`", "Column `size`"),
        ("partition", *TABLES, "--out", "store"),
        {"people.csv": people("id,age,city,size,note,risk", lambda row: f',"{row},5",says {row}')},
    ),
    "features of the wrong length and an unknown label": Bad(
        ("`--label` must be a column of 'people.csv'. Got 'rsik'. Did you mean 'risk'?",),
        describe(*TABLES[:4], "--label", "rsik", "--features", "x.npy"),
        {"x.npy": lambda path: np.save(path, np.ones((3, 2)))},
    ),
}


def prepare(folder: Path, files: dict[str, File]) -> None:
    good: dict[str, File] = {"people.csv": PEOPLE, "paid.csv": PAID, "schema.toml": SCHEMA}
    for name, content in {**good, **files}.items():
        if callable(content):
            content(folder / name)
        else:
            raw = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(raw)


def snapshot(folder: Path) -> dict[str, bytes]:
    # A ledger is opened to be checked; what stands in it is asked for itself.
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if path.suffix != ".sqlite"}


def test_at_least_40_cases_are_covered() -> None:
    assert len(BAD) >= 40


def test_the_good_tables_are_good(gapgnn, tmp_path) -> None:
    prepare(tmp_path, {})
    assert gapgnn("describe", *TABLES)[0] == 0
    assert gapgnn("describe", *DECLARED, *NODE)[0] == 0


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_at_once_and_nothing_is_written_or_charged(
    case, gapgnn, tmp_path, ledger
) -> None:
    prepare(tmp_path, BAD[case].files)
    before = snapshot(tmp_path)
    code, out, err = gapgnn(*BAD[case].words)
    assert (code, out) == (2, "")
    assert err.startswith("gapgnn: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    for part in BAD[case].said:
        assert part in err
    assert ledger.entries() == []
    assert snapshot(tmp_path) == before


def test_a_large_table_is_not_read_to_find_more(gapgnn, tmp_path, monkeypatch) -> None:
    """A misspelt option is refused at once, not after ten million rows."""
    from gapgnn.graph.tables import files

    prepare(tmp_path, with_column("note", lambda row: f"says {row}"))
    monkeypatch.setattr(files, "SMALL", 100)
    _, _, err = gapgnn("describe", *TABLES[:4], "--label", "rsik")
    assert "`--label` must be a column" in err
    assert "note" not in err.replace("'note'", "")
    _, _, err = gapgnn("describe", *TABLES)
    assert "Column `note`" in err
