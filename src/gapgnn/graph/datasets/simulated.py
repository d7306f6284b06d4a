"""Tables like somebody's own, from what is declared about them: no private data is read.

Before anybody trains on private tables, an analyst wants to know what an epsilon buys. This module
draws tables of the same public size: the columns and classes of a schema, a declared number of
people, mean degree and homophily. Edges are those of the degree-corrected block model of
:mod:`gapgnn.graph.datasets.synthetic`. What real tables have beyond that, such as columns that
depend on each other, is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import InputError, UnavailableError, check_integer, check_number
from gapgnn.graph.datasets.synthetic import BlockModel
from gapgnn.rng import experiment_rng

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.graph.tables import Schema

PEOPLE, EDGES, SCHEMA, LABEL = "people.csv", "edges.csv", "schema.toml", "class"
POPULATION = "simulated"


class SimulatedTables(NamedTuple):
    """A node table and an edge table by their columns, and the schema that declares the first."""

    nodes: dict[str, NDArray[Any]]
    edges: dict[str, NDArray[Any]]
    schema: Schema

    def graph(self, *, seed: int = 0) -> Graph:
        """Return the graph of these tables as :func:`gapgnn.read_tables` reads it, split.

        Args:
            seed: of the split.
        """
        import pyarrow as pa

        from gapgnn.graph import random_split
        from gapgnn.graph.tables import read_tables

        label = self.schema.label
        assert label is not None
        read = read_tables(
            edges=pa.table(self.edges),
            nodes=pa.table(self.nodes),
            label=label.column,
            schema=self.schema,
            population=POPULATION,
        )
        return replace(random_split(read.graph, seed=seed), name=POPULATION)

    def write(self, folder: Path) -> list[Path]:
        """Write both tables and the schema into a new or empty folder, and return their paths.

        Args:
            folder: where to.
        """
        import pyarrow as pa
        import pyarrow.csv

        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UnavailableError(f"`out` must be a new or empty folder. Got {str(folder)!r}.")
            for name, columns in ((PEOPLE, self.nodes), (EDGES, self.edges)):
                pyarrow.csv.write_csv(pa.table(columns), folder / name)
            (folder / SCHEMA).write_text(self.schema.to_toml(PEOPLE), encoding="utf-8")
        except OSError as error:
            raise UnavailableError(
                f"`out` must be a folder that can be written. Got {str(folder)!r}: "
                f"{error.strerror}."
            ) from None
        return [folder / name for name in (PEOPLE, EDGES, SCHEMA)]


@dataclass(frozen=True)
class DeclaredGraph:
    """What is declared about a graph; equal declarations give equal tables.

    Attributes:
        num_nodes: number of people.
        mean_degree: neighbours of one of them on average, within a few percent.
        homophily: share of the edges that stay inside a class beyond chance: 0, edges ignore
            classes; 1, none leaves its class. It is Newman's assortativity coefficient of the
            classes.
        label_noise: share of the people whose edges do not follow their class but another one's.
        signal: how far the classes differ in each column, in standard deviations; 0 not at all.
        labelled: share of the people with a label.
        schema: columns, classes and their rates; None for ``num_classes`` and ``num_features``.
        num_classes: number of classes, without a schema.
        num_features: number of columns, without a schema.
        seed: of everything that is drawn.

    >>> declared = DeclaredGraph(num_nodes=300, mean_degree=8, num_classes=3, num_features=4)
    >>> tables = declared.tables()
    >>> sorted(tables.nodes), len(tables.nodes["id"])
    (['class', 'id', 'x1', 'x2', 'x3', 'x4'], 300)
    >>> tables.graph().num_classes
    3
    """

    num_nodes: int = 10_000
    mean_degree: float = 20.0
    homophily: float = 0.5
    label_noise: float = 0.1
    signal: float = 0.3
    labelled: float = 1.0
    schema: Schema | None = None
    num_classes: int = 6
    num_features: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("num_nodes", self.num_nodes, at_least=10)
        check_number("mean_degree", self.mean_degree, above=0, at_most=self.num_nodes - 1)
        check_number("label_noise", self.label_noise, at_least=0, below=1)
        most = (1 - self.label_noise) ** 2
        if check_number("homophily", self.homophily, at_least=0) > most:
            raise InputError(
                f"`homophily` must be at most {most:.3g}, what is left where the edges of "
                f"{self.label_noise:.0%} of the people follow another class (`label_noise`). Got "
                f"{self.homophily:g}."
            )
        check_number("signal", self.signal, at_least=0, at_most=100)
        check_number("labelled", self.labelled, above=0, at_most=1)
        check_integer("num_classes", self.num_classes, at_least=2, at_most=self.num_nodes // 2)
        check_integer("num_features", self.num_features, at_least=1, at_most=100_000)
        check_integer("seed", self.seed, at_least=0)
        if self.schema is None:
            return
        if self.schema.label is None:
            raise InputError(
                "`schema` must declare the classes to be simulated, as [label]. Got none."
            )
        if not self.schema.feature_names:
            raise InputError("`schema` must declare a column that is a feature. Got none.")

    @property
    def num_edges(self) -> int:
        """The declared number of edges, each between two people."""
        return max(1, round(self.num_nodes * self.mean_degree / 2))

    @cached_property
    def declared(self) -> Schema:
        """The schema of the tables: the declared one, or columns of numbers."""
        from gapgnn.graph.tables import Schema

        if self.schema is not None:
            return self.schema
        number = {"type": "number", "low": 0, "high": 1}
        columns = [{"name": f"x{k}", **number} for k in range(1, self.num_features + 1)]
        classes = [f"class {k}" for k in range(self.num_classes)]
        return Schema.from_dict(
            {"columns": columns, "label": {"column": LABEL, "classes": classes}}
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in their order."""
        label = self.declared.label
        assert label is not None
        return label.classes

    @property
    def rates(self) -> tuple[float, ...]:
        """The share of each class: as declared, or else equal."""
        label = self.declared.label
        assert label is not None
        return label.rates or (1 / len(label.classes),) * len(label.classes)

    @property
    def edge_homophily(self) -> float:
        """Share of the edges between two people of one class, with those that ignore classes."""
        by_chance = sum(rate**2 for rate in self.rates)
        return self.homophily + (1 - self.homophily) * by_chance

    def tables(self) -> SimulatedTables:
        """Draw the tables."""
        model = BlockModel(
            num_nodes=self.num_nodes,
            mean_degree=self.mean_degree,
            num_classes=len(self.classes),
            num_features=1,
            # Both ends of an edge have the class that their edges follow with 1 - label_noise.
            homophily=min(1.0, self.homophily / (1 - self.label_noise) ** 2),
            label_noise=self.label_noise,
            rates=self.rates,
            seed=self.seed,
        )
        blocks = range(model.num_blocks)
        labels = np.concatenate([model.nodes(block).labels for block in blocks])
        pieces = [model.edges(one, other) for one in blocks for other in blocks if one <= other]
        starts, ends = (np.concatenate(side) for side in zip(*pieces, strict=True))
        return SimulatedTables(
            {"id": np.arange(self.num_nodes), **self._columns(labels), **self._label(labels)},
            {"source": starts, "target": ends},
            self.declared,
        )

    def _label(self, labels: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        label = self.declared.label
        assert label is not None
        rng = experiment_rng(self.seed, "simulated", "labelled")
        cells = np.array(self.classes, dtype=object)[labels]
        cells[rng.random(self.num_nodes) >= self.labelled] = None
        return {label.column: cells}

    def _columns(self, labels: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Draw every declared column given the classes; what is ignored is left out."""
        from gapgnn.graph.tables import Category, Date, Number

        cells: dict[str, NDArray[Any]] = {}
        for column in self.declared.columns:
            rng = experiment_rng(self.seed, "simulated", column.name)
            if isinstance(column, Number):
                shares = self._shares(labels, rng)
                cells[column.name] = column.low + shares * (column.high - column.low)
            elif isinstance(column, Date):
                days = (column.high - column.low).days * self._shares(labels, rng)
                dates = np.datetime64(column.low, "D") + days.astype(np.int64)
                cells[column.name] = _written(dates, column.format)
            elif isinstance(column, Category):
                cells[column.name] = self._categories(labels, column.values, rng)
        return cells

    def _shares(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw a number from 0 to 1 for each person, uniform over all and shifted by class."""
        from scipy.special import ndtr

        centres = self.signal * rng.standard_normal(len(self.classes))
        values = centres[labels] + rng.standard_normal(len(labels))
        shares: NDArray[np.float64] = ndtr(values / np.hypot(1.0, self.signal))
        return shares

    def _categories(
        self, labels: NDArray[np.int64], values: Sequence[str], rng: np.random.Generator
    ) -> NDArray[Any]:
        """Draw one of the declared values for each person, with other odds in each class."""
        odds = -np.log(np.arange(len(values)) + 2.0)
        scores = odds + self.signal * rng.standard_normal((len(self.classes), len(values)))
        shares = np.cumsum(np.exp(scores), axis=1)
        shares /= shares[:, -1:]
        drawn = (rng.random(len(labels))[:, None] > shares[labels]).sum(axis=1)
        cells: NDArray[Any] = np.array(values, dtype=object)[np.minimum(drawn, len(values) - 1)]
        return cells


def _written(dates: NDArray[Any], text: str | None) -> NDArray[Any]:
    """Return dates as the cells of a table, in the declared format."""
    days = dates.astype(object)
    return np.array([d.isoformat() if text is None else d.strftime(text) for d in days], object)
