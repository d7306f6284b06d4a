"""The schema of the tables that ``write_tables`` writes."""

from __future__ import annotations

from pathlib import Path

from gapgnn.graph.tables.schema import Category, Label, Number, Schema

SCHEMA = Schema(
    columns=(Category("city", ("Bern", "Oslo", "Rome")), Number("age", 10, 40)),
    label=Label("year", ("2004", "2005", "2006")),
)


def declared(tables: list[str]) -> list[str]:
    """Write the schema beside the tables and return the words that choose both."""
    path = Path(tables[3]).with_name("schema.toml")
    path.write_text(SCHEMA.to_toml())
    return [*tables, "--schema", str(path)]
