"""Bad input is one line on stderr and exit 2: nothing on stdout, no traceback, no file left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from gapgnn.cli.main import run

COUNT = 40
NODES = "id,x,colour,year\n" + "".join(
    f"{row},{row / 8},{'red' if row % 3 else 'blue'},{2000 + row % 2}\n" for row in range(COUNT)
)
EDGES = "source,target\n" + "".join(f"{row},{(row * 7 + 1) % COUNT}\n" for row in range(COUNT))
TABLES = ("--edges", "edges.csv", "--nodes", "nodes.csv", "--label", "year")

File = str | bytes | Callable[[Path], None]


@dataclass(frozen=True)
class Bad:
    """One way to get it wrong: the complaint, the words, the files that differ from the good."""

    complaint: str
    words: tuple[str, ...] = TABLES
    files: dict[str, File] = field(default_factory=dict)


def nodes_with(row: int, line: str) -> str:
    """Return the good node table with one data row exchanged."""
    lines = NODES.splitlines()
    lines[row] = line
    return "\n".join(lines) + "\n"


def truncated(write: Callable[[pa.Table, str], None]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        write(pa.table({"id": [1, 2], "x": [1.0, 2.0], "year": [1, 2]}), str(path))
        path.write_bytes(path.read_bytes()[:-20])

    return make


def mislabelled(path: Path) -> None:
    """Write Latin-1 bytes as a column that claims to be text."""
    city = pa.array(["Köln".encode("latin-1")] * 2).cast(pa.string(), safe=False)
    feather.write_feather(pa.table({"id": [1, 2], "x": city, "year": [1, 2]}), str(path))


def swapped(**changes: str) -> tuple[str, ...]:
    """Return the good words with the values of some options exchanged."""
    options = dict(zip(TABLES[::2], TABLES[1::2], strict=True))
    options |= {f"--{key}": value for key, value in changes.items()}
    return tuple(word for pair in options.items() for word in pair)


def with_features(name: str, content: File, complaint: str) -> Bad:
    return Bad(complaint, (*TABLES, "--features", name), {name: content})


def json_features(**changes: object) -> str:
    rows: dict[str, object] = {str(row): [row % 3] for row in range(COUNT)}
    return json.dumps({k: v for k, v in (rows | changes).items() if v is not None})


BAD = {
    # Options.
    "unknown option": Bad("Did you mean '--edges'?", ("--egdes", "edges.csv")),
    "unknown data set": Bad("'facebok'", ("--dataset", "facebok")),
    "two sources of data": Bad("`--dataset` must not come with", (*TABLES, "--dataset", "social")),
    "edges without nodes": Bad("Got no node table", ("--edges", "edges.csv", "--label", "year")),
    "label without edges": Bad("Got no edge table", ("--label", "year")),
    "direction without edges": Bad("`--undirected` must come", ("--undirected",)),
    "no label": Bad("`--label` must name", TABLES[:4]),
    "both directions": Bad("not allowed with", (*TABLES, "--directed", "--undirected")),
    "unknown treatment of dangling": Bad("'dorp'", (*TABLES, "--dangling", "dorp")),
    "class minimum not a number": Bad("'many'", (*TABLES, "--min-class-count", "many")),
    "negative class minimum": Bad("at least 0. Got -1", (*TABLES, "--min-class-count", "-1")),
    "class minimum too large": Bad(
        "Got 21; the two largest classes have 20 and 20", (*TABLES, "--min-class-count", "21")
    ),
    # Files.
    "missing edge file": Bad("Did you mean 'edges.csv'?", swapped(edges="edgs.csv")),
    "missing node file": Bad("which is not there", swapped(nodes="people.parquet")),
    "folder instead of a file": Bad(
        "which is a folder", swapped(nodes="people.csv"), {"people.csv": lambda path: path.mkdir()}
    ),
    "unknown suffix": Bad(".csv, .tsv, .parquet, .feather", swapped(edges="edges.xlsx")),
    "no bytes": Bad("must not be empty", files={"nodes.csv": ""}),
    "nodes without rows": Bad("`--nodes` must have rows", files={"nodes.csv": "id,x,year\n"}),
    "blank lines only": Bad("`--nodes` must have rows", files={"nodes.csv": "\n\n"}),
    "truncated parquet": Bad(
        "undamaged PARQUET", swapped(nodes="n.parquet"), {"n.parquet": truncated(pq.write_table)}
    ),
    "truncated feather": Bad(
        "undamaged FEATHER",
        swapped(nodes="n.feather"),
        {"n.feather": truncated(feather.write_feather)},
    ),
    "text called parquet": Bad(
        "undamaged PARQUET", swapped(edges="e.parquet"), {"e.parquet": EDGES}
    ),
    "latin-1 category": Bad(
        "must be UTF-8", files={"nodes.csv": nodes_with(3, "2,1,Köln,2000").encode("latin-1")}
    ),
    "latin-1 header": Bad(
        "must be UTF-8", files={"nodes.csv": NODES.replace("colour", "größe").encode("latin-1")}
    ),
    "latin-1 label": Bad(
        "must be UTF-8", files={"nodes.csv": nodes_with(3, "2,1,red,Köln").encode("latin-1")}
    ),
    "latin-1 in feather": Bad(
        "must be UTF-8", swapped(nodes="n.feather"), {"n.feather": mislabelled}
    ),
    "utf-16": Bad("must be UTF-8", files={"nodes.csv": NODES.encode("utf-16")}),
    "ragged rows": Bad("Expected 2 columns, got 3", files={"edges.csv": EDGES + "1,2,3\n"}),
    # Columns.
    "missing label column": Bad("Did you mean 'year'?", swapped(label="yaer")),
    "label is the id": Bad("must not be the id column", swapped(label="id")),
    "missing drop column": Bad("`--drop` must be a column", (*TABLES, "--drop", "name")),
    "label dropped": Bad("must not name the label", (*TABLES, "--drop", "year")),
    "column twice": Bad("Got 'x' twice", files={"nodes.csv": NODES.replace("colour", "x")}),
    "column without a name": Bad(
        "without a name", files={"nodes.csv": NODES.replace("colour", "")}
    ),
    "one edge column": Bad("separated by commas", files={"edges.csv": EDGES.replace(",", ";")}),
    "no header": Bad("line of column names", files={"edges.csv": "0,1\n1,2\n"}),
    "row numbers in front": Bad(
        "remove a column of row numbers", files={"edges.csv": ",from,to\n0,1,2\n"}
    ),
    "no features": Bad("`--features FILE`", (*TABLES, "--drop", "x", "--drop", "colour")),
    "free text": Bad(
        "`--drop bio`",
        files={
            "nodes.csv": "id,bio,year\n"
            + "".join(f"{row},about {row},{2000 + row % 2}\n" for row in range(60)),
        },
    ),
    "dates": Bad("`--drop x`", files={"nodes.csv": "id,x,year\n0,2020-01-01,1\n1,2020-01-02,2\n"}),
    "lists in a column": Bad(
        "must hold numbers or categories",
        swapped(nodes="n.parquet"),
        {
            "n.parquet": lambda path: pq.write_table(
                pa.table({"id": [0, 1], "x": [[1], [2]], "year": [1, 2]}), path
            )
        },
    ),
    # Values.
    "NaN feature": Bad("Got nan in row 3", files={"nodes.csv": nodes_with(3, "2,nan,red,2000")}),
    "infinite feature": Bad(
        "Got inf in row 3", files={"nodes.csv": nodes_with(3, "2,inf,red,2000")}
    ),
    "feature beyond float32": Bad(
        "Got 1e+300 in row 3", files={"nodes.csv": nodes_with(3, "2,1e300,red,2000")}
    ),
    "missing node id": Bad(
        "Got nothing in row 3", files={"nodes.csv": nodes_with(3, ",1,red,2000")}
    ),
    "duplicate node id": Bad(
        "Got 1 repeated, the first 5", files={"nodes.csv": nodes_with(3, "5,1,red,2000")}
    ),
    "fractional node ids": Bad(
        "whole numbers or strings",
        swapped(nodes="n.parquet"),
        {
            "n.parquet": lambda path: pq.write_table(
                pa.table({"id": [0.5, 1.5], "x": [1, 2], "year": [1, 2]}), path
            )
        },
    ),
    "missing edge end": Bad("Got none in row 41", files={"edges.csv": EDGES + "3,\n"}),
    "unknown ids": Bad(
        "Got unknown ids in 2 of 42 rows of 'edges.csv', the first 99 as target in row 41",
        files={"edges.csv": EDGES + "3,99\n98,3\n"},
    ),
    "word among numbers": Bad("'ann' in column `target`", files={"edges.csv": EDGES + "3,ann\n"}),
    "dangling source": Bad(
        "unknown ids in 1 of", (*TABLES, "--directed"), {"edges.csv": EDGES + "98,3\n"}
    ),
    "only gaps": Bad(
        "Got only missing values",
        files={"nodes.csv": "id,x,year\n0,,1\n1,,2\n", "edges.csv": "a,b\n0,1\n"},
    ),
    "one class": Bad(
        "at least two classes. Got 1 ('2000')", files={"nodes.csv": NODES.replace("2001", "2000")}
    ),
    "no class": Bad(
        "at least two classes. Got 0",
        files={"nodes.csv": "id,x,year\n0,1,\n1,2,\n", "edges.csv": "a,b\n0,1\n"},
    ),
    "label unlike a class": Bad(
        "must be a column of classes",
        swapped(label="x"),
        {"nodes.csv": "id,x,year\n" + "".join(f"{row},{row / 9},1\n" for row in range(60))},
    ),
    "class without a training node": Bad(
        "must have a training node. Got none for class 'rare ",
        files={
            "nodes.csv": "id,x,year\n"
            + "".join(f"{row},1,{f'rare {row}' if row < 15 else 'usual'}\n" for row in range(COUNT))
        },
    ),
    "too few nodes to test": Bad(
        "must leave a test node",
        files={"nodes.csv": "id,x,year\n0,1,1\n1,2,2\n", "edges.csv": "a,b\n0,1\n"},
    ),
    # Feature files.
    "missing feature file": Bad("which is not there", (*TABLES, "--features", "f.npz")),
    "unknown feature suffix": Bad(".npz, .npy, .json", (*TABLES, "--features", "f.pkl")),
    "damaged npz": with_features("f.npz", b"PK\x03\x04 not an archive", "undamaged NPZ"),
    "pickled npz": with_features(
        "f.npz", lambda path: np.savez(path, x=np.array([[{}]], dtype=object)), "Object arrays"
    ),
    "several arrays": with_features(
        "f.npz", lambda path: np.savez(path, a=np.eye(2), b=np.eye(2)), "Got 2 arrays"
    ),
    "feature rows": with_features(
        "f.npz", lambda path: sp.save_npz(path, sp.csr_array(np.eye(3))), "one row per node (40)"
    ),
    "one-dimensional features": with_features(
        "f.npy", lambda path: np.save(path, np.ones(COUNT)), "must be a matrix"
    ),
    "text features": with_features(
        "f.npy", lambda path: np.save(path, np.full((COUNT, 1), "a")), "must be numbers"
    ),
    "NaN in a feature file": with_features(
        "f.npy", lambda path: np.save(path, np.full((COUNT, 1), np.nan)), "Got 40 NaN or infinite"
    ),
    "damaged json": with_features("f.json", '{"0": [1', "undamaged JSON"),
    "json of another shape": with_features("f.json", "[[1], [2]]", "must map ids to lists"),
    "json with unknown id": with_features(
        "f.json", json_features(extra=[1]), "Got 1 unknown in 'f.json', the first 'extra'"
    ),
    "json with missing id": with_features(
        "f.json", json_features(**{"7": None}), "none for 1 ids in 'f.json', the first '7'"
    ),
    "json with negative column": with_features("f.json", json_features(**{"7": [-2]}), "Got -2"),
    "json with fractional column": with_features(
        "f.json", json_features(**{"7": [0.5]}), "Got 0.5"
    ),
    "json with an id twice": with_features("f.json", '{"0": [1], "0": [2]}', "Got '0' twice"),
}


def prepare(folder: Path, bad: Bad) -> None:
    for name, content in {"nodes.csv": NODES, "edges.csv": EDGES, **bad.files}.items():
        if callable(content):
            content(folder / name)
        else:
            raw = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(raw)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in folder.rglob("*")
    }


def test_at_least_25_cases_are_covered() -> None:
    assert len(BAD) >= 25


def test_the_good_input_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, Bad(""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gapgnn", "describe", *TABLES])
    with pytest.raises(SystemExit) as done:
        run()
    assert done.value.code == 0
    assert "40" in capsys.readouterr().out


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(tmp_path, BAD[case])
    before = snapshot(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gapgnn", "describe", *BAD[case].words])
    with pytest.raises(SystemExit) as done:
        run()
    output = capsys.readouterr()
    assert done.value.code == 2
    assert output.out == ""
    assert output.err.startswith("gapgnn: ")
    assert output.err.endswith("\n")
    assert output.err.count("\n") == 1
    assert BAD[case].complaint in output.err
    assert "Traceback" not in output.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "case", ["truncated parquet", pytest.param("unknown ids", marks=pytest.mark.slow)]
)
def test_the_installed_command_complains_the_same_way(case: str, tmp_path: Path) -> None:
    prepare(tmp_path, BAD[case])
    before = snapshot(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from gapgnn.cli.main import run; run()",
            "describe",
            *BAD[case].words,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert BAD[case].complaint in done.stderr
    assert snapshot(tmp_path) == before
