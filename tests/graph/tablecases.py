"""Small tables for the tests of reading them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import scipy.sparse as sp

from gapgnn.graph.graph import Graph

PEOPLE = """id,age,city,member,team
ann,31,Rome,true,red
bob,,Bern,false,blue
cid,52,,true,red
dan,28,Rome,false,blue
"""
FRIENDS = "a,b,weight\nann,bob,1\nbob,cid,2\ncid,dan,3\n"
FORMATS = ["csv", "tsv", "parquet", "feather"]


def write(folder: Path, **files: str) -> dict[str, Path]:
    """Write text tables and return their paths by the reader's parameter names."""
    paths = {}
    for what, text in files.items():
        paths[what] = folder / f"{what}.csv"
        paths[what].write_text(text, encoding="utf-8")
    return paths


def save(table: pa.Table, path: Path) -> Path:
    writers = {
        ".csv": pcsv.write_csv,
        ".tsv": lambda t, p: pcsv.write_csv(t, p, pcsv.WriteOptions(delimiter="\t")),
        ".parquet": lambda t, p: pq.write_table(t, p, row_group_size=2),
        ".feather": lambda t, p: feather.write_feather(t, str(p), chunksize=2),
    }
    writers[path.suffix](table, path)
    return path


def dense(graph: Graph) -> np.ndarray:
    return graph.features.toarray() if sp.issparse(graph.features) else np.asarray(graph.features)


def feature(tables, name: str) -> list[float]:
    return dense(tables.graph)[:, tables.feature_names.index(name)].tolist()
