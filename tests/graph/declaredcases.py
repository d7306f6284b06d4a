"""A small table with a schema, and cells that do not fit it."""

from __future__ import annotations

from pathlib import Path

from tablecases import write

from gapgnn.graph.tables.read import Tables, read_tables
from gapgnn.graph.tables.schema import Category, Ignored, Label, Number, Schema

SCHEMA = Schema(
    columns=(Number("age", 0, 100), Category("city", ("Bern", "Rome")), Ignored("note")),
    label=Label("team", ("red", "blue")),
)
PEOPLE = """id,age,city,note,team
ann,31,Rome,x,red
bob,,Bern,y,blue
cid,250,Oslo,z,red
dan,old,,"",green
"""
FRIENDS = "a,b\nann,bob\nbob,cid\ncid,dan\n"
NAMES = ("age", "age=missing", "city=Bern", "city=Rome", "city=other")


def tables(folder: Path, people: str = PEOPLE, **options: object) -> Tables:
    return read_tables(
        **write(folder, nodes=people, edges=FRIENDS),
        **{"label": "team", "schema": SCHEMA, "dangling": "keep", **options},
    )
