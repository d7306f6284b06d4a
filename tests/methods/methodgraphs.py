"""Small graphs on which methods are quick."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.graph import Graph
from gapgnn.graph.transforms import induced, random_split
from gapgnn.rng import experiment_rng


def small_graph(*, num_nodes: int = 400, seed: int = 0) -> Graph:
    return random_split(
        social_graph(num_nodes=num_nodes, mean_degree=20, num_classes=3, seed=seed), seed=seed
    )


def cut_in_two(graph: Graph, *, seed: int) -> tuple[Graph, Graph]:
    """Cut a graph at random into one to train on and one to meet later."""
    order = experiment_rng(seed, "inductive split").permutation(graph.num_nodes)
    is_first = np.zeros(graph.num_nodes, dtype=np.bool_)
    is_first[order[: round(graph.num_nodes / 2)]] = True
    return induced(graph, is_first), induced(graph, ~is_first)


def given_as_hashed_and_one_otherwise(graph: Graph) -> tuple[Graph, Graph]:
    """Return a graph with the roles it has as given ones, and with that of one person changed."""
    train, val, test = (np.array(m) for m in (graph.train_mask, graph.val_mask, graph.test_mask))
    given = graph.with_masks(train.copy(), val, test.copy())
    person = int(np.flatnonzero(train)[0])
    train[person], test[person] = False, True
    return given, graph.with_masks(train, val, test)


def shuffled(graph: Graph, order: np.ndarray) -> Graph:
    """Return the same data set with its nodes in another order."""
    place = np.argsort(order)
    arcs = graph.adjacency().tocoo()
    rows = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    return Graph.from_arcs(
        place[arcs.row],
        place[arcs.col],
        num_nodes=graph.num_nodes,
        directed=graph.is_directed,
        label_names=graph.label_names,
        name=graph.name,
        **{key: getattr(graph, key)[order] for key in rows},
    )


def with_arcs(graph: Graph, keep: np.ndarray, *, directed: bool = False) -> Graph:
    """Return a graph with some of its arcs."""
    arcs = graph.adjacency().tocoo()
    rows = ("features", "labels", "ids", "train_mask", "val_mask", "test_mask")
    return Graph.from_arcs(
        arcs.row[keep],
        arcs.col[keep],
        num_nodes=graph.num_nodes,
        directed=directed,
        label_names=graph.label_names,
        name=graph.name,
        **{key: getattr(graph, key) for key in rows},
    )


def write_tables(folder: Path, *, first: int = 0, count: int = 120, seed: int = 0) -> list[str]:
    """Write friends.csv and people.csv, and return the words that choose them.

    People are called p0, p1 and so on from ``first``; city and age depend on the year to predict.
    """
    rng = np.random.default_rng([seed, first])
    years = rng.integers(3, size=count)
    cities = np.array(["Rome", "Bern", "Oslo"])[(years + (rng.random(count) < 0.3)) % 3]
    ages = 20 + years + rng.normal(size=count)
    ends = rng.integers(count, size=(12 * count, 2))
    ends = ends[(years[ends[:, 0]] == years[ends[:, 1]]) | (rng.random(len(ends)) < 0.3)]
    people = ["id,city,age,year"]
    people += [
        f"p{first + row},{cities[row]},{ages[row]:.2f},{2004 + years[row]}" for row in range(count)
    ]
    friends = ["a,b", *(f"p{first + u},p{first + v}" for u, v in ends)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "people.csv").write_text("\n".join(people) + "\n")
    (folder / "friends.csv").write_text("\n".join(friends) + "\n")
    tables = ["--edges", str(folder / "friends.csv"), "--nodes", str(folder / "people.csv")]
    return [*tables, "--label", "year"]


def write_risks(tables: list[str]) -> list[str]:
    """Give written tables two classes instead, one of them rare; return the words."""
    people = Path(tables[3])
    header, *rows = people.read_text().splitlines()
    cells = [row.rpartition(",") for row in rows]
    is_high = [year == "2006" and number % 2 == 0 for number, (_, _, year) in enumerate(cells)]
    rows = [
        f"{row},{'high' if h else 'low'}" for (row, _, _), h in zip(cells, is_high, strict=True)
    ]
    people.write_text("\n".join([header.replace("year", "risk"), *rows]) + "\n")
    return [*tables[:4], "--label", "risk"]
