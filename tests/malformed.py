"""300 ways to give a command what it cannot use: files, options, folders, ledgers and stores.

A case is a command, the files that differ from good ones, and the exit codes that are right. All
hold whichever reader is behind a table.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

COUNT = 60
NODES = "id,x,city,year\n" + "".join(
    f"p{row},{row / 8},{'Rome' if row % 3 else 'Bern'},{2000 + row % 2}\n" for row in range(COUNT)
)
EDGES = "source,target\n" + "".join(f"p{row},p{(row * 7 + 1) % COUNT}\n" for row in range(COUNT))
SCHEMA = """\
[label]
column = "year"
classes = ["2000", "2001"]

[columns.x]
type = "number"
low = 0
high = 10

[columns.city]
type = "category"
values = ["Bern", "Rome"]
"""
TABLES = ("--edges", "edges.csv", "--nodes", "nodes.csv", "--label", "year")
DECLARED = (*TABLES[:4], "--schema", "schema.toml")
TRAIN = ("train", "label-gap", *TABLES, "--epochs", "1", "--folds", "0", "--no-save")
DEEP = "[" * 100_000
HUGE = "9" * 10_000

Make = Callable[[Path], None]
File = str | bytes | Make


@dataclass(frozen=True)
class Bad:
    """One way to get it wrong: the command, the files that differ, and the right exit codes."""

    words: tuple[str, ...]
    files: dict[str, File] = field(default_factory=dict)
    codes: tuple[int, ...] = (2,)
    # What the one line has to name.
    said: str = ""


# Files that are none ---------------------------------------------------------------------------


def folder(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def in_a_circle(path: Path) -> None:
    path.with_name("circle").symlink_to(path.name)
    path.symlink_to("circle")


def to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def to_a_folder(path: Path) -> None:
    path.with_name("behind").mkdir()
    path.symlink_to("behind")


def listening(path: Path) -> None:
    # Bound by a short name: the address of a socket has little room.
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


NO_FILES: dict[str, Make] = {
    "a folder": folder,
    "a FIFO": fifo,
    "an endless device": endless,
    "a link to itself": to_itself,
    "links in a circle": in_a_circle,
    "a link to nothing": to_nothing,
    "a link to a folder": to_a_folder,
    "a socket": listening,
}

# Bytes that are no table -----------------------------------------------------------------------

NOISE = bytes(np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8))
BYTES: dict[str, bytes] = {
    "nothing": b"",
    "line ends": b"\n\r\n\n",
    "spaces": b"    \t   \n",
    "zeros": bytes(1000),
    "noise": NOISE,
    "a picture": b"\x89PNG\r\n\x1a\n" + NOISE[:200],
    "an archive": b"PK\x03\x04" + NOISE[:200],
    "a pickle": b"\x80\x04\x95" + NOISE[:100],
    "a database": b"SQLite format 3\x00" + bytes(100),
    "UTF-16 of the other order": EDGES.encode("utf-16-be"),
    "UTF-32": EDGES.encode("utf-32"),
    "half a character": "source,target\np1,p2\np1,Zür".encode()[:-1] + b"\xc3",
    "overlong UTF-8": EDGES.encode() + b"p1,\xc0\x80\n",
    "surrogates": EDGES.encode() + b"p1,\xed\xa0\x80\n",
    "HTML": b"<!DOCTYPE html>\n<html><body>Please log in</body></html>\n",
    "JSON": b'{"source": ["p1"], "target": ["p2"]}\n',
    "one huge word": b"x" * 2_000_000,
    "a header of many columns": b",".join(b"c%d" % k for k in range(200_000)) + b"\n",
    "an open quote": EDGES.encode() + b'p1,"p2\n' + b"p3,p4\n" * 50,
    "long rows": EDGES.encode() + b"p1,p2,p3\n",
    "short rows": EDGES.encode() + b"p1\n",
}


def a_parquet(change: Callable[[bytes], bytes] = bytes) -> Make:
    def make(path: Path) -> None:
        table = pa.table({"source": ["p1", "p2"], "target": ["p2", "p3"]})
        pq.write_table(table, path)
        path.write_bytes(change(path.read_bytes()))

    return make


def written(write: Callable[[pa.Table, Path], None], table: Callable[[], pa.Table]) -> Make:
    return lambda path: write(table(), path)


def feathered(table: pa.Table, path: Path) -> None:
    feather.write_feather(table, str(path))


def flipped(raw: bytes, place: int = -9) -> bytes:
    changed = bytearray(raw)
    changed[place] ^= 0xFF
    return bytes(changed)


COLUMNAR: dict[str, tuple[str, File]] = {
    "a short Parquet file": ("e.parquet", a_parquet(lambda raw: raw[:40])),
    "a Parquet footer of another length": ("e.parquet", a_parquet(lambda raw: flipped(raw, -6))),
    "Parquet marks alone": ("e.parquet", b"PAR1PAR1"),
    "Parquet bytes in reverse": ("e.parquet", a_parquet(lambda raw: raw[::-1])),
    "Parquet without columns": ("e.parquet", written(pq.write_table, lambda: pa.table({}))),
    "Parquet of structures": (
        "e.parquet",
        written(pq.write_table, lambda: pa.table({"a": [{"b": 1}], "c": [{"b": 2}]})),
    ),
    "Parquet of nothings": (
        "e.parquet",
        written(pq.write_table, lambda: pa.table({"a": pa.nulls(3), "b": pa.nulls(3)})),
    ),
    "a short Feather file": ("e.feather", b"ARROW1\x00\x00" + bytes(8)),
    "a Feather file with a damaged end": (
        "e.feather",
        lambda path: (
            (
                feathered(pa.table({"a": ["p1"], "b": ["p2"]}), path),
                path.write_bytes(flipped(path.read_bytes(), -12)),
            )[-1]
            and None
        ),
    ),
    "text called Feather": ("e.feather", EDGES),
    "a Parquet folder": ("e.parquet", lambda path: (folder(path), (path / "part").mkdir())[-1]),
}


def tables() -> Iterator[tuple[str, Bad]]:
    """Yield files that are no table, in the place of edges and of nodes."""
    for name, make in NO_FILES.items():
        yield f"edges: {name}", Bad(TRAIN, {"edges.csv": make})
        yield f"nodes: {name}", Bad(TRAIN, {"nodes.csv": make})
    for name, raw in BYTES.items():
        # One line of JSON is a header of two columns without rows, and few edges are no mistake.
        if name != "JSON":
            yield f"edges: {name}", Bad(TRAIN, {"edges.csv": raw})
    for name in ("nothing", "zeros", "noise", "UTF-32", "JSON", "one huge word"):
        yield f"nodes: {name}", Bad(TRAIN, {"nodes.csv": BYTES[name]})
    for name, (file, content) in COLUMNAR.items():
        words = tuple(file if word == "edges.csv" else word for word in TRAIN)
        yield name, Bad(words, {file: content})
    for name, place in {
        "a name of 5,000 letters": "x" * 5000 + ".csv",
        "an address": "http://127.0.0.1:1/edges.csv",
        "an empty name": "",
        "a folder of files": "/dev",
        "below a file": "nodes.csv/edges.csv",
    }.items():
        words = tuple(place if word == "edges.csv" else word for word in TRAIN)
        yield f"edges: {name}", Bad(words)


# Cells ------------------------------------------------------------------------------------------


def cells() -> Iterator[tuple[str, Bad]]:
    """Yield good tables with a cell or two that cannot be."""
    rows = NODES.splitlines()

    def nodes(line: str, row: int = 5) -> dict[str, File]:
        return {"nodes.csv": "\n".join([*rows[:row], line, *rows[row + 1 :]]) + "\n"}

    for value in ("nan", "inf", "-inf", "1e400", "-1e400", "1e39", "1e308"):
        yield f"a number that is {value}", Bad(TRAIN, nodes(f"p4,{value},Bern,2000"))
    twice = {
        "the same": "p7",
        "with a space": "p7 ",
        "with another width": "\uff507",
        "in capitals": "P7",
        "with a joiner": "p\u200d7",
        "with a mark of direction": "p7\u200f",
        "with a soft hyphen": "p\u00ad7",
        "with a no-break space": "\u00a0p7",
    }
    for name, person in twice.items():
        files = nodes(f"{person},1,Bern,2000")
        # Nobody leaves: what is refused is the second spelling alone.
        files["edges.csv"] = EDGES.replace("p4,", "p5,").replace(",p4\n", ",p5\n")
        yield f"an id twice, {name}", Bad(TRAIN, files)
    for name, line in {
        "no id": ",1,Bern,2000",
        "a class of its own": "p4,1,Bern,2000 or so",
        "a number as text": "p4,about 3,Bern,2000",
        "a bell": "p4,1,Bern,\x07",
    }.items():
        yield f"a row with {name}", Bad(TRAIN, nodes(line))
    yield (
        "a column of many words",
        Bad(
            TRAIN,
            {
                "nodes.csv": "id,x,city,year\n"
                + "".join(f"p{row},1,city {row},{2000 + row % 2}\n" for row in range(COUNT))
            },
        ),
    )
    for name, edge in {
        "a stranger": "p1,q1",
        "nobody": "p1,",
        "a number too large": "p1,99999999999999999999999999",
        "a formula": "p1,=1+1",
        "an escape": "p1,\x1b[31m",
    }.items():
        yield f"an edge to {name}", Bad(TRAIN, {"edges.csv": f"{EDGES}{edge}\n"})
    yield "edges of one person", Bad(TRAIN, {"edges.csv": "a,b\n" + "q,q\n" * COUNT})
    yield "a single row", Bad(TRAIN, {"nodes.csv": "id,x,year\np1,1,2000\n"})
    yield "labels of one class", Bad(TRAIN, {"nodes.csv": NODES.replace("2001", "2000")})
    yield "columns that are one", Bad(TRAIN, {"nodes.csv": NODES.replace("city", "x")})
    yield "a column without a name", Bad(TRAIN, {"nodes.csv": NODES.replace("city", "")})


# Options ----------------------------------------------------------------------------------------

NUMBERS = ("nan", "inf", "-inf", "-1", "1e400", "1e", "0x10", "--", "one", "1,5", "")
OPTIONS: dict[str, tuple[str, ...]] = {
    "--epsilon": (*NUMBERS, "0", "1e-400", "5e-324", "1e308"),
    "--delta": (*NUMBERS[:6], "0", "1", "2", "1e-400", "tiny"),
    "--hops": ("0", "-1", "2.5", "nan", "1e3", "9" * 30, "9" * 400, "9" * 5000),
    "--epochs": ("-1", "2.5", "nan", "ten"),
    "--hidden": ("0", "-1", "1.5", "9" * 30, "9" * 400),
    "--learning-rate": ("nan", "inf", "-1", "fast"),
    "--dropout": ("nan", "-0.1", "2"),
    "--folds": ("-1", "1.5", "9" * 30),
    "--repeats": ("0", "-1", "1.5"),
    "--seed": ("1.5", "nan", "x"),
    "--level": ("", "EDGE", "edge\n", "\u0435dge"),
    "--relation": ("k-edges", "0-edges", "-1-edges", "replace", "9" * 400 + "-edges", "\x00"),
    "--device": ("tpu", "cuda:99", "", "cpu:7"),
    "--noise": ("loud", ""),
    "--population": ("a\nb", "-x", "x" * 101, "\U0001f600", "a\x1bb"),
    "--entity": ("", "a{b}", "x" * 1000),
    "--ledger": ("nodes.csv/l", "nodes.csv", "postgresql://", "postgresql://127.0.0.1:1/x"),
    "--min-class-count": ("-1", "1.5", "9" * 30),
    "--dropped-at-most": ("nan", "-0.1", "1.1", "inf"),
    "--dangling": ("Keep", ""),
    "--delimiter": ("", "ab", "\n", '"'),
    "--drop": ("", "no such column"),
    "--label": ("", "id", "no such column"),
    "--since": ("not a day",),
    "--class-weight": ("high=", "2000=nan,2001=1", "2000=-1,2001=1", "2002=1", "{}"),
    "--threshold": ("nan", "-1", "1.5"),
    "--log-format": ("", "yaml", "JSON"),
}


def shown(value: str) -> str:
    return repr(value) if len(value) < 20 else f"of {len(value)} letters"


def options() -> Iterator[tuple[str, Bad]]:
    """Yield options with values that no command can use."""
    for option, values in OPTIONS.items():
        for value in values:
            words = tuple(word for word in TRAIN)
            if option == "--label":
                words = tuple(w for w in TRAIN if w not in TABLES[4:])
            codes = (2, 4, 5) if option == "--ledger" else (2,)
            yield f"{option} {shown(value)}", Bad((*words, f"{option}={value}"), codes=codes)
    lone = {
        "a file as a word": ("nodes.csv",),
        "no word": ("",),
        "a word of spaces": ("  ",),
        "an option alone": ("--epsilon",),
        "a broken word": ("train", "\udcff"),
        "a word of dashes": ("train", "---"),
        "two methods": ("train", "gap", "label-gap"),
        "bounds without amounts": (*TRAIN, "--weight-bounds", "0", "1"),
        "bounds in reverse": (*TRAIN, "--weight", "x", "--weight-bounds", "9", "1"),
        "bounds that are no numbers": (*TRAIN, "--weight", "x", "--weight-bounds", "nan", "inf"),
        "a window without times": (*TRAIN, "--until", "2027-01-01"),
        "a time that is not there": (*TRAIN, "--time", "when", "--since", "2027-01-01"),
        "saved and not saved": (*TRAIN, "--out", "m"),
        "going on without a folder": (*TRAIN, "--resume"),
        "a folder that is a file": (*TRAIN[:-1], "--out", "nodes.csv"),
        "a folder below a file": (*TRAIN[:-1], "--out", "nodes.csv/m"),
        "a folder without a name": (*TRAIN[:-1], "--out", ""),
        "the folder above": (*TRAIN[:-1], "--out", ".."),
        "a folder of 5,000 letters": (*TRAIN[:-1], "--out", "x" * 5000),
    }
    for name, words in lone.items():
        yield name, Bad(words)


# Files of options and schemas -------------------------------------------------------------------

TOML: dict[str, File] = {
    "noise": NOISE,
    "zeros": bytes(100),
    "Latin-1": 'label = "größe"\n'.encode("latin-1"),
    "UTF-16": 'label = "x"\n'.encode("utf-16"),
    "half a line": 'label = "ye',
    "a key twice": "epsilon = 1\nepsilon = 2\n",
    "nested deeply": "epsilon = " + DEEP,
    "a huge number": f"epsilon = {HUGE}\n",
    "JSON": '{"epsilon": 1}\n',
    "a control character": 'label = "a\x00b"\n',
}


def configs() -> Iterator[tuple[str, Bad]]:
    """Yield files of `--config` and `--schema` that cannot be read or say nothing possible."""
    words = ("train", "label-gap", "--config", "run.toml", "--no-save")
    for name, make in NO_FILES.items():
        yield f"options: {name}", Bad(words, {"run.toml": make})
        yield f"schema: {name}", Bad(("describe", *DECLARED), {"schema.toml": make})
    for name, content in TOML.items():
        yield f"options: {name}", Bad(words, {"run.toml": content})
        yield f"schema: {name}", Bad(("describe", *DECLARED), {"schema.toml": content})
    for name, text in {
        "a table": "[epsilon]\nx = 1\n",
        "a list": "epsilon = [1, 2]\n",
        "a date": "epsilon = 2027-01-01\n",
        "not a number": "epsilon = nan\n",
        "a truth": "epsilon = true\n",
        "an unknown key": "epsilom = 1\n",
        "a key without a name": '"" = 1\n',
        "itself": 'config = "run.toml"\n',
        "a name with a zero": 'edges = "a\\u0000b.csv"\nnodes = "nodes.csv"\nlabel = "year"\n',
        "help": "help = true\n",
    }.items():
        yield f"options: {name}", Bad(words, {"run.toml": text})
    column = SCHEMA.replace("low = 0", "low = {}")
    for name, text in {
        "a bound that is none": column.format("nan"),
        "an endless bound": column.format("-inf"),
        "bounds in reverse": column.format("11"),
        "a bound of text": column.format('"0"'),
        "a bound of truth": column.format("true"),
        "a bound of many digits": column.format(HUGE),
        "a bound of 400 digits": column.format("9" * 400),
        "an unknown type": SCHEMA.replace('"number"', '"float"'),
        "no type": SCHEMA.replace('type = "number"\n', ""),
        "an unknown key": SCHEMA + "colour = 1\n",
        "no values": SCHEMA.replace('["Bern", "Rome"]', "[]"),
        "values twice": SCHEMA.replace('["Bern", "Rome"]', '["Bern", "Bern"]'),
        "values of two types": SCHEMA.replace('["Bern", "Rome"]', '["Bern", [1]]'),
        "one class": SCHEMA.replace('["2000", "2001"]', '["2000"]'),
        "a class twice": SCHEMA.replace('["2000", "2001"]', '["2000", "2000"]'),
        "a rate that is none": SCHEMA.replace("[columns.x]", "rates = [nan, 1]\n[columns.x]"),
        "a negative rate": SCHEMA.replace("[columns.x]", "rates = [-1, 2]\n[columns.x]"),
        "too few rates": SCHEMA.replace("[columns.x]", "rates = [1]\n[columns.x]"),
        "columns as a list": "columns = [1, 2]\n",
        "a column as a number": "[columns]\nx = 1\n",
        "the label as a column": SCHEMA.replace("columns.city", "columns.year"),
        "an unknown part": SCHEMA + "[extra]\nx = 1\n",
        "an entity of two lines": 'entity = "a\\nb"\n' + SCHEMA,
        "amounts below 0": SCHEMA + '[weight]\ncolumn = "x"\nlow = -1\nhigh = 1\n',
        "nobody's columns": SCHEMA.replace("columns.city", "columns.town"),
    }.items():
        yield f"schema: {name}", Bad(("describe", *DECLARED), {"schema.toml": text})


# Feature files ----------------------------------------------------------------------------------


def an_array(shape: str, dtype: str = "<f8", data: bytes = b"") -> bytes:
    """Return a file of NumPy whose header says what it likes."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def features() -> Iterator[tuple[str, Bad]]:
    """Yield files of features that hold none."""
    for name, (file, content) in {
        "a matrix that no memory holds": (
            "f.npy",
            an_array("(10**18, 3)".replace("10**18", "1" * 18)),
        ),
        "a negative shape": ("f.npy", an_array("(-5, 3)")),
        "a shape of text": ("f.npy", an_array("'60, 3'")),
        "fewer numbers than said": ("f.npy", an_array("(60, 3)", data=bytes(40))),
        "objects": ("f.npy", an_array("(60, 1)", "|O", b"\x80\x04N.")),
        "complex numbers": ("f.npy", an_array("(60, 1)", "<c16", bytes(960))),
        "three axes": ("f.npy", an_array("(60, 1, 1)", data=bytes(480))),
        "no columns": ("f.npy", an_array("(60, 0)")),
        "a header of code": ("f.npy", b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os')".ljust(32)),
        "an empty archive": ("f.npz", b"PK\x05\x06" + bytes(18)),
        "half an archive": ("f.npz", b"PK\x03\x04" + NOISE[:90]),
        "JSON that is deep": ("f.json", '{"p0": ' + DEEP),
        "JSON with a huge number": ("f.json", f'{{"p0": [{HUGE}]}}'),
        "JSON with a column far away": (
            "f.json",
            json.dumps({f"p{row}": [10**15] for row in range(COUNT)}),
        ),
        "JSON with not a number": ("f.json", '{"p0": [NaN]}'),
        "JSON of half": ("f.json", '{"p0": [1], "p1"'),
        "JSON of bytes": ("f.json", NOISE),
        "JSON of one word": ("f.json", '"p0"'),
    }.items():
        yield f"features: {name}", Bad((*TRAIN, "--features", file), {file: content})
    for name, make in NO_FILES.items():
        yield f"features: {name}", Bad((*TRAIN, "--features", "f.npy"), {"f.npy": make})


# Models -----------------------------------------------------------------------------------------

PREDICT = ("predict", "--model", "model", "--out", "labels.csv")
MODEL_FILES = ("config.json", "card.json", "card.md", "weights.safetensors", "hops/*")
DAMAGE: dict[str, Callable[[bytes], bytes] | Make] = {
    "empty": lambda raw: b"",
    "half": lambda raw: raw[: len(raw) // 2],
    "flipped": lambda raw: flipped(raw, len(raw) // 2),
    "zeros": lambda raw: bytes(len(raw)),
    "deep": lambda raw: DEEP.encode(),
    "a list": lambda raw: b"[]",
    "null": lambda raw: b"null",
    "a huge number": lambda raw: HUGE.encode(),
    "a header of 2^63 bytes": lambda raw: b"\xff" * 7 + b"\x7f" + raw[8:],
}


def damaged(name: str, change: Callable[[bytes], bytes]) -> Make:
    def make(model: Path) -> None:
        file = min(model.glob(name))
        file.write_bytes(change(file.read_bytes()))

    return make


def replaced(name: str, by: Make) -> Make:
    def make(model: Path) -> None:
        file = min(model.glob(name))
        file.unlink()
        by(file)

    return make


def models() -> Iterator[tuple[str, Bad]]:
    """Yield folders of models that are damaged, and other things in their place."""
    for file in MODEL_FILES:
        for name, change in DAMAGE.items():
            yield f"{file}: {name}", Bad(PREDICT, {"model": damaged(file, change)}, (2, 4))
        for name in ("a folder", "a FIFO", "a link to itself", "a link to nothing"):
            changed = replaced(file, NO_FILES[name])
            yield f"{file}: {name}", Bad(PREDICT, {"model": changed}, (2, 4))
    for name, make in NO_FILES.items():
        whole = lambda path, make=make: (shutil.rmtree(path), make(path))[-1]  # noqa: E731
        yield f"model: {name}", Bad(PREDICT, {"model": whole}, (2, 4))
    for command in (("report", "model"), ("audit", "--model", "model")):
        change = damaged("config.json", lambda raw: HUGE.encode())
        yield f"{command[0]} of a damaged model", Bad(command, {"model": change}, (2, 4))
    for name, words in {
        "no output": ("predict", "--model", "model"),
        "an output that is a folder": (*PREDICT[:-1], "."),
        "an output below a file": (*PREDICT[:-1], "nodes.csv/labels.csv"),
        "an output of 5,000 letters": (*PREDICT[:-1], "x" * 5000 + ".csv"),
        "an output without a type": (*PREDICT[:-1], "labels"),
        "a price that is none": (*PREDICT, "--max-epsilon", "nan"),
        "a price below 0": (*PREDICT, "--max-epsilon=-1"),
        "an endless price": (*PREDICT, "--max-epsilon", "inf"),
        "a ledger that is none": (*PREDICT, *TABLES, "--ledger", "nodes.csv"),
        "new people without tables": (*PREDICT, "--new-people"),
        "half of a table": (*PREDICT, "--nodes", "nodes.csv"),
    }.items():
        yield name, Bad(words, codes=(2, 4))


# Ledgers ----------------------------------------------------------------------------------------


def another_database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE charges (id INTEGER)")
    db.close()


def ledgers() -> Iterator[tuple[str, Bad]]:
    """Yield files that are no ledger, and actions that a ledger does not know."""
    files: dict[str, File] = {
        **NO_FILES,
        "text": NODES,
        "noise": NOISE,
        "a mark alone": b"SQLite format 3\x00",
        "zeros": bytes(5000),
        "another database": another_database,
    }
    for name, content in files.items():
        for words in (("ledger", "--ledger", "l.sqlite"), (*TRAIN, "--ledger", "l.sqlite")):
            case = Bad(words, {"l.sqlite": content}, (2, 4, 5))
            yield f"{words[0]} on {name}", case
    grant = ("ledger", "grant", "people", "--nodes", "nodes.csv", "--delta", "1e-6")
    for name, words in {
        "a warning at nothing": ("ledger", "watch", "--warn-at", "nan"),
        "a warning below 0": ("ledger", "watch", "--warn-at=-1"),
        "a warning at 0": ("ledger", "watch", "--warn-at", "0"),
        "a budget that is none": (*grant, "--epsilon", "nan"),
        "an endless budget": (*grant, "--epsilon", "inf"),
        "a day that is none": (*grant, "--epsilon", "1", "--until", "2027-02-30"),
        "a day in the past": (*grant, "--epsilon", "1", "--until", "2001-01-01"),
        "a name of two lines": ("ledger", "grant", "a\nb", "--epsilon", "1"),
        "a name of nothing": ("ledger", "grant", "", "--epsilon", "1"),
        "people nobody knows": ("ledger", "grant", "nobody", "--epsilon", "1"),
        "a column that is not there": (*grant, "--epsilon", "1", "--id", "name"),
        "the charges of nobody": ("ledger", "show", "nobody"),
        "a forecast of nobody": ("ledger", "forecast", "nobody", "--epsilon", "1"),
        "a setting that is none": ("ledger", "settings", "require-grants", "on"),
        "a value that is none": ("ledger", "settings", "require-grant", "yes"),
        "an export of another type": ("ledger", "export", "--out", "l.xlsx"),
        "an export onto a file": ("ledger", "export", "--out", "taken.json"),
        "an approval of nothing": ("ledger", "approve", "99"),
        "a key of nobody": ("ledger", "signer", "ann", "zz"),
        "a ledger in a file": ("ledger", "init", "nodes.csv/l.sqlite"),
    }.items():
        yield name, Bad(words, {"taken.json": "{}"}, (2, 4))
    for name, content in {**TOML, **NO_FILES, "null": "null", "a list": "[1]"}.items():
        words = ("ledger", "verify", "--against", "x.json")
        yield f"verified against {name}", Bad(words, {"x.json": content}, (2, 4))


# Stores, results and everything else ------------------------------------------------------------


def others() -> Iterator[tuple[str, Bad]]:
    """Yield stores, results and declarations that cannot be used."""
    store = ("describe", "--store", "store")
    for name, make in NO_FILES.items():
        yield f"store: {name}", Bad(store, {"store": make}, (2, 4))
    for name, content in {**TOML, "null": "null", "a list": "[]", "an object": "{}"}.items():
        raw = content if isinstance(content, bytes) else str(content).encode()
        made = lambda path, raw=raw: (path.mkdir(), (path / "store.json").write_bytes(raw))[-1]  # noqa: E731
        yield f"store of {name}", Bad(store, {"store": made}, (2, 4))  # type: ignore[dict-item]
        lines = lambda path, raw=raw: (path.mkdir(), (path / "results.jsonl").write_bytes(raw))[-1]  # noqa: E731
        yield f"results of {name}", Bad(("report", "results"), {"results": lines}, (2, 4))  # type: ignore[dict-item]
    for name, words in {
        "people without a number": ("simulate", "--num-nodes", "many"),
        "9 people": ("simulate", "--num-nodes", "9"),
        "neighbours that are none": ("simulate", "--mean-degree", "inf"),
        "more homophily than edges": ("simulate", "--homophily", "1.5"),
        "a share of labels that is none": ("simulate", "--labelled", "nan"),
        "budgets that are none": ("simulate", "--epsilon", "1", "0"),
        "noise for nothing": ("noise", "--epsilon", "0"),
        "noise at a delta of 1": ("noise", "--epsilon", "1", "--delta", "1"),
        "noise of many digits": ("noise", "--epsilon", "1" * 400),
        "noise that is none": ("noise", "--noise-multiplier", "nan"),
        "an example nobody knows": ("example", "school", "--out", "x"),
        "parts that are none": ("partition", *TABLES, "--parts", "0", "--out", "s"),
        "a schema of nobody": ("schema", "--nodes", "none.csv", "--out", "s.toml"),
        "a schema onto a file": ("schema", "--nodes", "nodes.csv", "--out", "schema.toml"),
        "experiments nobody knows": ("experiment", "speed", "--out", "x"),
        "a report of nothing": ("report", "none"),
        "a shell nobody knows": ("completion", "dos"),
        "help for nothing": ("help", "trian"),
        "an attack nobody knows": ("attack", "brute"),
    }.items():
        yield name, Bad(words, codes=(2, 4))


def collected() -> dict[str, Bad]:
    """Return all cases by name; no name is used twice."""
    found: dict[str, Bad] = {}
    for part in (tables, cells, options, configs, features, models, ledgers, others):
        for name, case in part():
            assert name not in found, name
            found[name] = case
    return found


MALFORMED = collected()
