"""Feature columns have names, and a model finds its columns in another graph by them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tablecases import FRIENDS, PEOPLE, dense, write

from gapgnn.errors import DataError, InputError
from gapgnn.graph.convert import (
    from_networkx,
    from_pyg,
    from_scipy,
    to_networkx,
    to_pyg,
    to_scipy,
)
from gapgnn.graph.graph import Graph
from gapgnn.graph.tables.read import read_tables
from gapgnn.graph.transforms import align_features, filter_classes, induced, random_split

NAMES = tuple("abcdefgh")


def named(names: tuple[str, ...], *, sparse: bool = False) -> Graph:
    """Return a graph whose column of a name holds the same values whatever its place."""
    columns = [[NAMES.index(name) + 1, -NAMES.index(name) / 4, 0] for name in names]
    values = np.array(columns, dtype=np.float32).T
    return Graph.from_arcs(
        [0, 1],
        [1, 2],
        num_nodes=3,
        features=sp.csr_array(values) if sparse else values,
        labels=[0, 1, 1],
        feature_names=names,
    )


some_names = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple)


@given(known=some_names, wanted=some_names, sparse=st.booleans())
def test_columns_are_moved_dropped_and_filled_by_name(known, wanted, sparse):
    graph = named(known, sparse=sparse)
    if not set(known) & set(wanted):
        with pytest.raises(InputError, match="must share a feature"):
            align_features(graph, wanted)
        return
    aligned = align_features(graph, wanted)
    full = dense(named(wanted))
    missing = [name not in known for name in wanted]
    np.testing.assert_array_equal(dense(aligned), np.where(missing, 0, full))
    assert aligned.feature_names == wanted
    assert sp.issparse(aligned.features) == (sparse or False)
    assert aligned.fingerprint == graph.fingerprint


def test_equal_names_return_the_graph_itself():
    graph = named(("a", "b"))
    assert align_features(graph, ["a", "b"]) is graph


def test_names_that_share_nothing_are_named():
    with pytest.raises(InputError, match=r"the 1 the model knows, such as 'h'\. Got 2 others"):
        align_features(named(("a", "b")), ["h"])


def test_a_repeated_name_cannot_be_aligned_by():
    graph = named(("a", "b"))._replace(feature_names=("a", "a"))
    with pytest.raises(InputError, match="repeated"):
        align_features(graph, ["a"])


def test_without_names_there_is_nothing_to_align_by():
    with pytest.raises(InputError, match="must have feature names"):
        align_features(named(("a",))._replace(feature_names=None), ["a"])


def test_a_graph_has_one_name_per_column():
    with pytest.raises(DataError, match=r"every feature column \(2\)\. Got 1 names"):
        named(("a", "b"))._replace(feature_names=("a",))


def test_names_are_not_part_of_the_content():
    graph = named(("a", "b"))
    assert graph.fingerprint == graph._replace(feature_names=None).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: random_split(graph, seed=0),
        lambda graph: induced(graph, [0, 1]),
        lambda graph: filter_classes(graph, 1),
        lambda graph: from_pyg(to_pyg(graph)),
        lambda graph: from_networkx(to_networkx(graph)),
        lambda graph: from_scipy(**to_scipy(graph)),
    ],
)
def test_transforms_and_conversions_keep_the_names(change):
    assert change(named(("b", "a"))).feature_names == ("b", "a")
    assert change(named(("b", "a"))._replace(feature_names=None)).feature_names is None


def test_tables_name_their_columns(tmp_path):
    tables = read_tables(**write(tmp_path, nodes=PEOPLE, edges=FRIENDS), label="team")
    assert tables.graph.feature_names == tables.feature_names
    assert "city=Rome" in tables.feature_names


def test_a_file_of_features_has_no_names(tmp_path):
    paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    tables = read_tables(**paths, label="team", features=tmp_path / "x.npy")
    assert tables.graph.feature_names is None
