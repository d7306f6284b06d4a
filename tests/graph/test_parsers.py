"""Each public format becomes the graph its documentation describes."""

import gzip
import io
import json
import pickle
import zipfile
from collections import defaultdict

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from gapgnn.errors import DataError
from gapgnn.graph.datasets import parsers


def put(folder, path, content):
    target = folder / path
    target.write_bytes(content)
    return target


def test_facebook100_takes_zero_as_missing_and_not_as_a_category(tmp_path):
    local_info = np.array(
        [
            [1, 2, 0, 0, 9, 2006, 3],
            [1, 0, 0, 0, 8, 2007, 4],
            [2, 1, 5, 0, 0, 2006, 5],
            [0, 0, 0, 0, 0, 0, 6],
        ],
        dtype=np.uint16,
    )
    edges = np.array([[0, 1, 2, 2, 3], [1, 0, 2, 3, 2]])
    adjacency = sp.csc_matrix((np.ones(5), edges), shape=(4, 4))
    path = tmp_path / "school.mat"
    scipy.io.savemat(path, {"A": adjacency, "local_info": local_info})
    graph = parsers.facebook100([path])
    # Columns: status 1, 2; gender 1, 2; major 5; no minor at all; housing 8, 9.
    assert graph.features.toarray().tolist() == [
        [1, 0, 0, 1, 0, 0, 1],
        [1, 0, 0, 0, 0, 1, 0],
        [0, 1, 1, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ]
    assert graph.labels.tolist() == [0, 1, 0, -1]
    assert graph.label_names == ("2006", "2007")
    assert graph.num_arcs == 4  # two edges; the self-loop is dropped


def test_planetoid_puts_test_rows_in_place_and_leaves_gaps_unlabelled(tmp_path):
    # Position 4 is in no file, as for CiteSeer; the test index is not sorted; paper 2 has no class.
    parts = {
        "allx": sp.csr_matrix([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]),
        "ally": np.array([[1, 0], [0, 1], [0, 0]]),
        "tx": sp.csr_matrix([[4.0, 0.0], [0.0, 3.0]]),
        "ty": np.array([[0, 1], [1, 0]]),
        "graph": defaultdict(list, {0: [1, 0, 5], 1: [0, 0], 3: [], 5: [0]}),
    }
    paths = [put(tmp_path, part, pickle.dumps(content, 3)) for part, content in parts.items()]
    paths.append(put(tmp_path, "test.index", b"5\n3\n"))
    graph = parsers.planetoid(paths)
    assert graph.features.toarray().tolist() == [[1, 0], [0, 2], [1, 1], [0, 3], [0, 0], [4, 0]]
    assert graph.labels.tolist() == [0, 1, -1, 0, -1, 1]
    assert graph.num_arcs == 4
    assert graph.num_classes == 2


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in members.items():
            packed.writestr(name.replace("__", "/").replace("_DOT_", "."), content)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_reddit_is_read_from_its_archive(tmp_path):
    data = npz(feature=np.arange(6.0).reshape(3, 2), label=np.array([0, 1, 1]), node_types=[1])
    graph_file = io.BytesIO()
    sp.save_npz(graph_file, sp.coo_matrix(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])))
    members = {"reddit_data_DOT_npz": data, "reddit_graph_DOT_npz": graph_file.getvalue()}
    graph = parsers.reddit([put(tmp_path, "reddit.zip", archive(**members))])
    assert graph.features.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert graph.features.dtype == np.float32
    assert graph.labels.tolist() == [0, 1, 1]
    assert graph.num_arcs == 2


def test_reddit_is_never_unpickled(tmp_path):
    data = npz(feature=np.array([[{}]], dtype=object), label=np.array([0]))
    path = put(tmp_path, "reddit.zip", archive(reddit_data_DOT_npz=data))
    with pytest.raises(DataError, match="allow_pickle=False"):
        parsers.reddit([path])


def products(features="0.5,1\n-2e-3,0\n0,7\n"):
    tables = {"node-label": "4\n2\n4\n", "node-feat": features, "edge": "0,1\n2,1\n1,1\n"}
    members = {
        f"products__raw__{name}_DOT_csv_DOT_gz": gzip.compress(text.encode())
        for name, text in tables.items()
    }
    return archive(**members)


def test_amazon_is_read_from_its_archive(tmp_path):
    graph = parsers.amazon([put(tmp_path, "products.zip", products())])
    np.testing.assert_allclose(graph.features, [[0.5, 1], [-2e-3, 0], [0, 7]])
    assert graph.labels.tolist() == [4, 2, 4]
    assert graph.num_arcs == 4


@pytest.mark.parametrize(
    "features", ["0.5,1\n0,7\n", "0.5,1\n,0\n0,7\n", "0.5,1\n1\n0,7\n", "x,1\n" * 3]
)
def test_amazon_with_wrong_rows_is_refused(tmp_path, features):
    path = put(tmp_path, "products.zip", products(features))
    with pytest.raises(DataError) as error:
        parsers.amazon([path])
    assert str(error.value).startswith(f"`{path}` must be a whole, undamaged file.")


def musae(prefix, label):
    return {
        f"{prefix}_edges.csv": "id_1,id_2\n10,30\n30,30\n20,10\n10,30\n",
        f"{prefix}_target.csv": f'id,name,{label}\n30,"b, ""c""",web\n10,é,ml\n20,d,web\n',
        f"{prefix}_features.json": json.dumps({"20": [0], "10": [3, 3, 1], "30": []}),
    }


def check_musae(graph):
    assert graph.ids.tolist() == [30, 10, 20]
    assert graph.label_names == ("ml", "web")
    assert graph.labels.tolist() == [1, 0, 1]
    assert graph.features.toarray().tolist() == [[0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0]]
    assert graph.num_arcs == 4
    assert graph.out_neighbours(1).tolist() == [0, 2]


def test_musae_graphs_are_read_from_archives_and_from_files(tmp_path):
    members = {
        f"git__{name}".replace(".", "_DOT_"): c for name, c in musae("git", "ml_target").items()
    }
    check_musae(parsers.github([put(tmp_path, "git.zip", archive(**members))]))
    files = musae("pages", "page_type")
    paths = [put(tmp_path, name, content.encode()) for name, content in files.items()]
    check_musae(parsers.facebook_page_page(paths))
    members = {name.replace(".", "_DOT_"): content for name, content in files.items()}
    check_musae(parsers.facebook_page_page([put(tmp_path, "pages.zip", archive(**members))]))


def test_an_edge_to_an_unknown_page_is_refused(tmp_path):
    files = {**musae("pages", "page_type"), "pages_edges.csv": "id_1,id_2\n10,99\n"}
    paths = [put(tmp_path, name, content.encode()) for name, content in files.items()]
    with pytest.raises(DataError, match="an edge names an unknown node"):
        parsers.facebook_page_page(paths)


def test_an_archive_with_two_candidates_is_refused(tmp_path):
    members = {name.replace(".", "_DOT_"): c for name, c in musae("git", "ml_target").items()}
    members["more_edges_DOT_csv"] = "id_1,id_2\n"
    with pytest.raises(DataError, match=r"2 files called _edges\.csv"):
        parsers.github([put(tmp_path, "git.zip", archive(**members))])


def heterophilous_file(path, features):
    content = {
        "node_features": features,
        "node_labels": np.array([0, 1, 0]),
        "edges": np.array([[0, 1], [1, 2], [2, 2]]),
    }
    np.savez(path, **content)
    return path


@pytest.mark.parametrize("directed", [False, True])
def test_the_heterophilous_collection_is_read_as_declared(tmp_path, directed):
    path = heterophilous_file(tmp_path / "some.npz", np.eye(3, 7, dtype=np.float32))
    graph = parsers.heterophilous([path], label_names=("free", "mine"), directed=directed)
    assert graph.is_directed == directed
    assert graph.num_arcs == (2 if directed else 4)
    assert graph.label_names == ("free", "mine")
    assert not sp.issparse(graph.features)


def test_wide_features_of_the_collection_stay_sparse(tmp_path):
    path = heterophilous_file(tmp_path / "some.npz", np.eye(3, 900, dtype=np.float32))
    graph = parsers.heterophilous([path], label_names=("0", "1"))
    assert sp.issparse(graph.features)


def test_products_are_read_without_touching_what_is_pickled(tmp_path):
    np.savez(
        tmp_path / "photo.npz",
        adj_indptr=np.array([0, 1, 2, 2]),
        adj_indices=np.array([1, 0]),
        attr_data=np.ones(2, dtype=np.float32),
        attr_indices=np.array([1, 0]),
        attr_indptr=np.array([0, 1, 2, 2]),
        attr_shape=np.array([3, 2]),
        labels=np.array([0, 1, 1]),
        class_names=np.array([{"pickled": True}], dtype=object),
    )
    graph = parsers.amazon_electronics([tmp_path / "photo.npz"])
    assert (graph.num_nodes, graph.num_arcs, graph.num_classes) == (3, 2, 2)
    np.testing.assert_array_equal(graph.features.toarray(), [[0, 1], [1, 0], [0, 0]])
