"""Preparation: the options by which tables were read, for further tables of the same layout.

A model that was trained on tables stores which column is the label, which columns were left out and
how numbers were written, so that next month's tables are read the same way. It holds options that
the user gave and, at edge level, which feature columns there were: features are public there. At
node level the schema declares the columns, and nothing here was read from the data (privacy page,
section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gapgnn.errors import DataError, InputError
from gapgnn.graph import WeightBounds, Wording

if TYPE_CHECKING:
    from gapgnn.graph.tables.dialect import Dialect
    from gapgnn.graph.tables.schema import Schema


@dataclass(frozen=True)
class Preparation:
    """The options by which tables were read.

    Attributes:
        label: the column with the class.
        drop: columns that are not features.
        columns: the columns that became features; None where a schema or a file of features
            determines them.
        codes: those of them that hold codes: digits of which some begin with 0.
        directed: whether an edge u, v is an arc from u to v only.
        dangling: what was done with edges that name an id without a row.
        population: namespace of the ids in the ledger.
        dialect: how cells are written, as the keyword arguments of
            :class:`~gapgnn.graph.tables.dialect.Dialect`.
        edges: for each edge type, "" where there is one, the columns ``weight``, ``time``,
            ``source`` and ``target``, ``weight_bounds`` and ``time_format``, where they were given.
            Not the window's two moments, which belong to one table.
        entity: what the user calls one row of the node table, as ``SINGULAR`` or
            ``SINGULAR/PLURAL``; empty where it was not given.
        link: what the user calls a row of the edge table, likewise.

    >>> known = Preparation(label="team", drop=("bio",), columns=("age",))
    >>> Preparation.from_dict(known.to_dict()) == known
    True
    """

    label: str | None = None
    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    directed: bool = False
    dangling: str = "refuse"
    population: str = "default"
    dialect: Mapping[str, str] = field(default_factory=dict)
    edges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    codes: tuple[str, ...] = ()
    entity: str = ""
    link: str = ""

    @property
    def wording(self) -> Wording:
        """What people and edges are called in statements about privacy.

        >>> Preparation(entity="customer").wording.entities
        'customers'
        """
        return Wording.of(self.entity, self.link)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | None) -> Preparation | None:
        """Return what :meth:`to_dict` wrote; None for None, and anything else is refused."""
        if given is None:
            return None
        types = {**dict.fromkeys(("drop", "columns", "codes"), list), "directed": bool}
        types |= {"dialect": dict, "edges": dict}
        values = dict(given) if isinstance(given, Mapping) else {"": given}
        for key, value in values.items():
            is_known = key in {part.name for part in fields(cls)}
            if not is_known or not isinstance(value, types.get(key, str)):
                raise DataError(f"`preparation` must say how tables are read. Got {key!r}.")
            values[key] = tuple(map(str, value)) if isinstance(value, list) else value
        try:
            made = cls(**values)
            made.spelling()
            made.edge_options()
            _ = made.wording
        except (AttributeError, TypeError, ValueError, InputError):
            raise DataError("`preparation` must say how tables are read. Got another.") from None
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without defaults."""
        defaults = Preparation()
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value != getattr(defaults, key)
        }

    def spelling(self) -> Dialect:
        """Return how cells are written."""
        from gapgnn.graph.tables.dialect import Dialect

        return Dialect(**self.dialect)

    def edge_options(self, edge_types: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return columns and bounds by edge type, as ``read_tables`` takes them.

        Args:
            edge_types: those of the other tables, "" where there is one; None is the stored ones.

        >>> known = Preparation(edges={"": {"weight": "sum", "weight_bounds": [0, 9]}})
        >>> known.edge_options()["weight_bounds"]
        {'': (0.0, 9.0)}
        """
        keys = ("weight", "weight_bounds", "time", "time_format", "source", "target")
        found: dict[str, dict[str, Any]] = {key: {} for key in keys}
        for name in self.edges if edge_types is None else edge_types:
            for key, value in self.edges.get(name, {}).items():
                if key == "weight_bounds":
                    bounds = WeightBounds(*value)
                    found[key][name] = (bounds.low, bounds.high)
                elif key in found and isinstance(value, str):
                    found[key][name] = value
                else:
                    raise ValueError(key)
        return found

    def applied(
        self,
        columns: Sequence[str],
        *,
        label: str | None = None,
        drop: Sequence[str] = (),
        schema: Schema | None = None,
    ) -> Applied:
        """Apply the stored options to the columns of another table.

        Args:
            columns: of the other table.
            label: given now, instead of the stored one.
            drop: left out now, beside the stored ones.
            schema: what is declared about both tables.

        >>> known = Preparation(label="team", drop=("bio",), columns=("age", "city"))
        >>> known.applied(["id", "age", "bio", "shoe"])
        Applied(label=None, drop=('bio', 'shoe'), new=('shoe',), missing=('city',))
        """
        id_column = "id" if "id" in columns else columns[0]
        if label is None and self.label in columns and self.label not in drop:
            label = self.label
        left_out = [*drop, *(name for name in self.drop if name in columns and name != label)]
        known = self.columns
        missing: tuple[str, ...] = ()
        if schema is not None:
            known = tuple(column.name for column in schema.columns)
            known += () if schema.label is None else (schema.label.column,)
        elif known is not None:
            missing = tuple(name for name in known if name not in (*columns, *drop))
        new: tuple[str, ...] = ()
        if known is not None:
            used = {id_column, label, *left_out, *known}
            new = tuple(name for name in columns if name not in used)
        return Applied(label, tuple(dict.fromkeys([*left_out, *new])), new, missing)


@dataclass(frozen=True)
class Applied:
    """A stored preparation, applied to the columns of one table.

    Attributes:
        label: the column with the class, if the table has it.
        drop: columns to leave out.
        new: those of them that the preparation does not know.
        missing: columns that were features and are not there.
    """

    label: str | None
    drop: tuple[str, ...]
    new: tuple[str, ...]
    missing: tuple[str, ...]
