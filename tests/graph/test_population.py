"""Whose ids they are goes wherever a graph goes: losing it would split or merge budgets."""

from __future__ import annotations

import numpy as np
import pytest
from tablecases import FRIENDS, PEOPLE, write

from gapgnn.graph.convert import (
    from_networkx,
    from_pyg,
    from_scipy,
    to_networkx,
    to_pyg,
    to_scipy,
)
from gapgnn.graph.datasets.load import load_dataset
from gapgnn.graph.graph import Graph
from gapgnn.graph.store.build import build_store, store_graph
from gapgnn.graph.store.graph import open_store
from gapgnn.graph.tables.read import read_ids, read_tables
from gapgnn.graph.transforms import align_features, filter_classes, induced, random_split


@pytest.fixture
def graph() -> Graph:
    return Graph.from_arcs(
        [0, 1, 2],
        [1, 2, 3],
        num_nodes=4,
        features=np.eye(4),
        labels=[0, 1, 0, 1],
        feature_names=("a", "b", "c", "d"),
        population="clients",
    )


def through_store(graph: Graph, folder) -> Graph:
    store_graph(graph, folder / "store", parts=2)
    return random_split(open_store(folder / "store"), seed=0)


WAYS = {
    "split": lambda graph, folder: random_split(graph, seed=0),
    "part": lambda graph, folder: induced(graph, np.arange(2)),
    "classes": lambda graph, folder: filter_classes(graph, min_count=1),
    "columns": lambda graph, folder: align_features(graph, ("b", "a")),
    "change": lambda graph, folder: graph._replace(name="other"),
    "pyg": lambda graph, folder: from_pyg(to_pyg(graph)),
    "networkx": lambda graph, folder: from_networkx(to_networkx(graph)),
    "scipy": lambda graph, folder: from_scipy(**to_scipy(graph)),
    "store": through_store,
}


@pytest.mark.parametrize("way", WAYS)
def test_it_stays_on_every_way(graph, tmp_path, way):
    assert WAYS[way](graph, tmp_path).population == "clients"


def test_it_is_no_part_of_the_content(graph):
    assert graph.fingerprint == graph._replace(population="suppliers").fingerprint


def test_tables_and_their_stores_are_in_the_one_that_is_named(tmp_path):
    paths = write(tmp_path, edges=FRIENDS, nodes=PEOPLE)
    assert read_tables(**paths, label="team").graph.population == "default"
    named = {"label": "team", "population": "clients"}
    assert read_tables(**paths, **named).graph.population == "clients"
    build_store(tmp_path / "store", **paths, **named, parts=2)
    assert open_store(tmp_path / "store").population == "clients"


def test_registered_data_sets_have_their_own():
    assert load_dataset("social").population == "dataset social"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (PEOPLE, ["ann", "bob", "cid", "dan"]),
        ("age,id\n31,9\nold,7\n", [9, 7]),
        ("who\nann\n", ["ann"]),
    ],
)
def test_ids_are_read_without_a_look_at_the_rest(tmp_path, text, ids):
    assert read_ids(write(tmp_path, nodes=text)["nodes"]).tolist() == ids
