"""Preparation: what somebody said about their tables, for the next ones of the same kind.

A model that was trained on tables knows which column is the label, which ones were left out and how
numbers were written, so that it reads next month's tables without being told again. All of it is
what was said, and at edge level also which columns there were: features are public there. At node
level the schema says that, and nothing here was read from the data (privacy page, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gapgnn.errors import DataError, InputError
from gapgnn.graph import WeightBounds, Wording

if TYPE_CHECKING:
    from gapgnn.graph.tables.files import Dialect
    from gapgnn.graph.tables.schema import Schema


@dataclass(frozen=True)
class Preparation:
    """What was said about tables when they were read.

    Attributes:
        label: the column with the class.
        drop: columns that are not features.
        columns: the columns that became features; None where a schema or a file of features says.
        codes: those of them that hold codes: digits of which some begin with 0.
        directed: whether an edge u, v says nothing about v, u.
        dangling: what was done with edges that name somebody without a row.
        population: namespace of the ids in the ledger.
        dialect: how cells are written, as the keyword arguments of
            :class:`~gapgnn.graph.tables.files.Dialect`.
        edges: for each edge type, "" where there is one, the columns ``weight``, ``time``,
            ``source`` and ``target`` and the ``weight_bounds``, where they were said. Not the
            window's two moments, which belong to one table.
        entity: what the user calls one of those in the tables, as ``SINGULAR`` or
            ``SINGULAR/PLURAL``; empty where nothing was said.
        link: what the user calls a row of the edge table, likewise.

    >>> said = Preparation(label="team", drop=("bio",), columns=("age",))
    >>> Preparation.from_dict(said.to_dict()) == said
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
        kinds = {**dict.fromkeys(("drop", "columns", "codes"), list), "directed": bool}
        kinds |= {"dialect": dict, "edges": dict}
        values = dict(given) if isinstance(given, Mapping) else {"": given}
        for key, value in values.items():
            is_known = key in {part.name for part in fields(cls)}
            if not is_known or not isinstance(value, kinds.get(key, str)):
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
        """Return plain values for JSON, without what is as usual."""
        usual = Preparation()
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value != getattr(usual, key)
        }

    def spelling(self) -> Dialect:
        """Return how cells are written."""
        from gapgnn.graph.tables.files import Dialect

        return Dialect(**self.dialect)

    def edge_options(self, kinds: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return columns and bounds by edge type, as ``read_tables`` takes them.

        Args:
            kinds: of the other tables, "" where there is one; None is those that are remembered.

        >>> said = Preparation(edges={"": {"weight": "sum", "weight_bounds": [0, 9]}})
        >>> said.edge_options()["weight_bounds"]
        {'': (0.0, 9.0)}
        """
        keys = ("weight", "weight_bounds", "time", "source", "target")
        found: dict[str, dict[str, Any]] = {key: {} for key in keys}
        for kind in self.edges if kinds is None else kinds:
            for key, value in self.edges.get(kind, {}).items():
                if key == "weight_bounds":
                    bounds = WeightBounds(*value)
                    found[key][kind] = (bounds.low, bounds.high)
                elif key in found and isinstance(value, str):
                    found[key][kind] = value
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
        """Return what is label, left out, new and missing in another table of the same kind.

        Args:
            columns: of the other table.
            label: named now, instead of the remembered one.
            drop: left out now, beside the remembered ones.
            schema: what is declared about both tables.

        >>> said = Preparation(label="team", drop=("bio",), columns=("age", "city"))
        >>> said.applied(["id", "age", "bio", "shoe"])
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
    """A remembered preparation on the columns of one table.

    Attributes:
        label: the column with the class, if the table has it.
        drop: columns to leave out.
        new: those of them that nobody spoke of before.
        missing: columns that were features and are not there.
    """

    label: str | None
    drop: tuple[str, ...]
    new: tuple[str, ...]
    missing: tuple[str, ...]
