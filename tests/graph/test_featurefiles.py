"""Features from a file of their own: the rows meet their nodes, and nothing is unpickled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tablecases import dense, write

from gapgnn.errors import DataError
from gapgnn.graph.tables.read import read_tables


class TestFeatureFiles:
    NODES = "id,name,y\n1,x,a\n2,x,b\n3,x,a\n"
    EDGES = "p,q\n1,2\n2,3\n"

    def read(self, folder: Path, features: Path):
        return read_tables(
            **write(folder, nodes=self.NODES, edges=self.EDGES), features=features, label="y"
        )

    def test_json_lists_become_sparse_rows_in_node_order(self, tmp_path: Path) -> None:
        path = tmp_path / "f.json"
        path.write_text(json.dumps({"3": [], "1": [4, 0, 4], "2": [1]}))
        graph = self.read(tmp_path, path).graph
        assert sp.issparse(graph.features)
        assert dense(graph).tolist() == [[1, 0, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]

    @pytest.mark.parametrize("form", ["csr", "csc", "coo"])
    def test_sparse_npz_stays_sparse(self, tmp_path: Path, form: str) -> None:
        matrix = np.array([[0, 1.5], [2, 0], [0, 0]])
        sp.save_npz(tmp_path / "f.npz", sp.coo_array(matrix).asformat(form))
        graph = self.read(tmp_path, tmp_path / "f.npz").graph
        assert sp.issparse(graph.features)
        assert dense(graph).tolist() == matrix.tolist()

    def test_one_dense_array_stays_dense(self, tmp_path: Path) -> None:
        matrix = np.arange(6).reshape(3, 2)
        np.savez(tmp_path / "f.npz", anything=matrix)
        np.save(tmp_path / "f.npy", matrix)
        for name in ("f.npz", "f.npy"):
            graph = self.read(tmp_path, tmp_path / name).graph
            assert isinstance(graph.features, np.ndarray)
            assert graph.features.tolist() == matrix.tolist()

    def test_a_pickle_inside_is_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "f.npz", x=np.array([[print]] * 3, dtype=object))
        with pytest.raises(DataError, match="Object arrays cannot be loaded"):
            self.read(tmp_path, tmp_path / "f.npz")

    def test_sparse_indices_outside_the_matrix_are_refused(self, tmp_path: Path) -> None:
        matrix = sp.csr_array(np.eye(3))
        np.savez(
            tmp_path / "f.npz",
            format=b"csr",
            shape=(3, 3),
            data=matrix.data,
            indices=np.array([0, 1, 1 << 30]),
            indptr=matrix.indptr,
        )
        with pytest.raises(DataError, match="undamaged NPZ"):
            self.read(tmp_path, tmp_path / "f.npz")
