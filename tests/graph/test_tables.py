"""Two tables become the graph they describe, whatever their format, types and gaps."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tablecases import FORMATS, FRIENDS, PEOPLE, dense, feature, save, write

from gapgnn.errors import DataError
from gapgnn.graph.graph import Graph
from gapgnn.graph.tables.files import ColumnTypeError, open_table
from gapgnn.graph.tables.read import TableOptions, read_tables


class TestNodes:
    def test_numbers_categories_and_gaps_become_named_features(self, tmp_path: Path) -> None:
        tables = read_tables(**write(tmp_path, nodes=PEOPLE, edges=FRIENDS), label="team")
        assert tables.feature_names == (
            "age",
            "age=missing",
            "city=Bern",
            "city=Rome",
            "member",
        )
        assert feature(tables, "age") == [31, 0, 52, 28]
        assert feature(tables, "age=missing") == [0, 1, 0, 0]
        assert feature(tables, "city=Rome") == [1, 0, 0, 1]
        assert feature(tables, "city=Bern") == [0, 1, 0, 0]
        assert feature(tables, "member") == [1, 0, 1, 0]

    def test_one_hot_data_stays_sparse_and_numbers_alone_stay_dense(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
        assert sp.issparse(read_tables(**paths, label="team").graph.features)
        numbers = read_tables(**paths, label="team", drop=["city"])
        assert isinstance(numbers.graph.features, np.ndarray)
        assert numbers.feature_names == ("age", "age=missing", "member")

    def test_the_first_column_is_the_id_if_none_is_called_id(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes="who,x,y\n8,1,a\n9,2,b\n", edges="p,q\n8,9\n")
        assert read_tables(**paths, label="y").graph.ids.tolist() == [8, 9]
        paths = write(tmp_path, nodes="x,id,y\n1,8,a\n2,9,b\n", edges="p,q\n8,9\n")
        assert read_tables(**paths, label="y").graph.ids.tolist() == [8, 9]

    def test_ids_with_leading_zeros_are_names(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes="id,x,y\n007,1,a\n8,2,b\n", edges="p,q\n007,8\n")
        graph = read_tables(**paths, label="y").graph
        assert graph.ids.tolist() == ["007", "8"]
        assert graph.num_arcs == 2

    def test_labels_are_sorted_as_numbers_and_a_missing_one_is_unknown(
        self, tmp_path: Path
    ) -> None:
        paths = write(
            tmp_path, nodes="id,x,y\n1,0,10\n2,0,2.0\n3,0,\n4,0,2\n", edges="p,q\n1,2\n3,4\n"
        )
        graph = read_tables(**paths, label="y").graph
        assert graph.label_names == ("2", "10")
        assert graph.labels.tolist() == [1, 0, -1, 0]

    def test_text_labels_are_sorted_by_name(self, tmp_path: Path) -> None:
        graph = read_tables(**write(tmp_path, nodes=PEOPLE, edges=FRIENDS), label="team").graph
        assert graph.label_names == ("blue", "red")
        assert graph.labels.tolist() == [1, 0, 1, 0]

    def test_without_a_label_all_nodes_are_unlabelled(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes=PEOPLE, edges=FRIENDS)
        graph = read_tables(**paths, label=None, drop=["team"]).graph
        assert graph.labels.tolist() == [-1] * 4
        assert graph.label_names is None

    def test_a_column_of_nothing_adds_no_feature(self, tmp_path: Path) -> None:
        paths = write(tmp_path, nodes="id,x,z,y\n1,5,,a\n2,6,,b\n", edges="p,q\n1,2\n")
        assert read_tables(**paths, label="y").feature_names == ("x",)

    def test_a_dictionary_of_numbers_is_a_category(self, tmp_path: Path) -> None:
        nodes = pa.table(
            {"id": [1, 2], "code": pa.array([5, 7]).dictionary_encode(), "y": ["a", "b"]}
        )
        tables = read_tables(
            nodes=save(nodes, tmp_path / "n.feather"),
            edges=save(pa.table({"a": [1], "b": [2]}), tmp_path / "e.feather"),
            label="y",
        )
        assert tables.feature_names == ("code=5", "code=7")

    def test_rare_classes_and_unlabelled_nodes_can_be_left_out(self, tmp_path: Path) -> None:
        paths = write(
            tmp_path,
            nodes="id,x,y\n1,0,a\n2,0,a\n3,0,b\n4,0,b\n5,0,c\n6,0,\n",
            edges="p,q\n1,2\n3,4\n4,5\n5,6\n",
        )
        assert read_tables(**paths, label="y").graph.num_nodes == 6
        graph = read_tables(**paths, label="y", min_class_count=2).graph
        assert graph.ids.tolist() == [1, 2, 3, 4]
        assert graph.label_names == ("a", "b")


class TestFormats:
    @pytest.fixture
    def tables(self) -> dict[str, pa.Table]:
        rng = np.random.default_rng(5)
        count = 40
        return {
            "nodes": pa.table(
                {
                    "id": [f"n{number}" for number in range(count)],
                    "x": pa.array(rng.integers(0, 9, count)),
                    "z": pa.array([None, *rng.random(count - 1).round(3)]),
                    "c": pa.array([None, *rng.choice(["u", "v", "w"], count - 1)]),
                    "y": pa.array([None, *rng.choice(["a", "b"], count - 1)]),
                }
            ),
            "edges": pa.table(
                {
                    "a": [f"n{number}" for number in rng.integers(0, count, 200)],
                    "b": [f"n{number}" for number in rng.integers(0, count, 200)],
                }
            ),
        }

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_every_format_gives_the_same_graph(
        self, tmp_path: Path, tables: dict[str, pa.Table], suffix: str
    ) -> None:
        def load(suffix: str) -> tuple[str, tuple[str, ...], int, int]:
            paths = {key: save(t, tmp_path / f"{key}.{suffix}") for key, t in tables.items()}
            read = read_tables(**paths, label="y")
            return (
                read.graph.fingerprint,
                read.feature_names,
                read.dropped_self_loops,
                read.dropped_duplicates,
            )

        assert load(suffix) == load("csv")

    def test_shuffled_rows_are_the_same_data_set(
        self, tmp_path: Path, tables: dict[str, pa.Table]
    ) -> None:
        paths = {key: save(t, tmp_path / f"{key}.parquet") for key, t in tables.items()}
        order = np.random.default_rng(1).permutation(tables["nodes"].num_rows)
        shuffled = save(tables["nodes"].take(order), tmp_path / "shuffled.parquet")
        plain = read_tables(**paths, label="y").graph
        other = read_tables(edges=paths["edges"], nodes=shuffled, label="y").graph
        assert other.ids.tolist() != plain.ids.tolist()
        assert other.fingerprint == plain.fingerprint


class TestStreaming:
    @pytest.fixture(autouse=True)
    def tiny_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make every block a few rows, so that small tables cross many of them."""
        from gapgnn.graph.tables import files as tablefiles

        batches = tablefiles.TableFile.batches

        def small(self, columns, **options):
            return batches(self, columns, **{**options, "block_bytes": 64, "block_rows": 3})

        monkeypatch.setattr(tablefiles.TableFile, "batches", small)

    def rows(self, count: int) -> tuple[pa.Table, pa.Table]:
        rng = np.random.default_rng(2)
        nodes = pa.table(
            {
                "id": np.arange(count) * 3,
                "x": rng.integers(0, 9, count),
                "c": [f"value {number % 7}" for number in range(count)],
                "y": [f"class {number % 3}" for number in range(count)],
            }
        )
        edges = pa.table({"a": rng.permutation(count) * 3, "b": rng.permutation(count) * 3})
        return nodes, edges

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_blocks_join_without_a_seam(self, tmp_path: Path, suffix: str) -> None:
        nodes, edges = self.rows(60)
        seen: list[tuple[str, int, int | None]] = []
        read = read_tables(
            nodes=save(nodes, tmp_path / f"n.{suffix}"),
            edges=save(edges, tmp_path / f"e.{suffix}"),
            label="y",
            directed=True,
            progress=lambda *step: seen.append(step),
        )
        positions = [np.asarray(edges[side]) // 3 for side in ("a", "b")]
        expected = Graph.from_arcs(
            *positions,
            num_nodes=60,
            features=dense(read.graph),
            labels=np.arange(60) % 3,
            ids=np.arange(60) * 3,
            directed=True,
        )
        assert read.graph.fingerprint == expected.fingerprint
        assert feature(read, "x") == nodes["x"].to_pylist()
        assert feature(read, "c=value 6") == [float(number % 7 == 6) for number in range(60)]
        for what in ("nodes", "edges"):
            steps = [(done, total) for name, done, total in seen if name == what]
            assert len(steps) > 5
            assert steps == sorted(steps)
            assert steps[-1][0] == steps[-1][1]

    def test_row_numbers_in_messages_count_across_blocks(self, tmp_path: Path) -> None:
        nodes, _ = self.rows(30)
        edges = "a,b\n" + "".join(f"{row * 3},0\n" for row in range(1, 26)) + "1,0\n"
        paths = write(tmp_path, edges=edges)
        with pytest.raises(DataError, match="the first 1 as source in row 26"):
            read_tables(nodes=save(nodes, tmp_path / "n.parquet"), **paths, label="y")

    def test_a_text_value_that_does_not_fit_names_column_and_line(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("a,b,c\n" + "1,2,3\n" * 30 + "1,2,oops\n")
        table = open_table(path, what="edges")
        with pytest.raises(ColumnTypeError) as caught:
            list(table.batches(["c"], types={"c": pa.int64()}))
        assert (caught.value.column, caught.value.line) == ("c", "32")


def test_a_type_guessed_from_the_first_block_may_prove_too_narrow(tmp_path: Path) -> None:
    late = {"whole": "0.5", "gap": "7", "number": "B12", "flag": "maybe"}
    early = {"whole": "1", "gap": "", "number": "12", "flag": "true"}
    lines = [",".join(["id", "y", *early])]
    # The guess is made from the first MiB.
    filler = 80_000
    lines += [f"{row},{'ab'[row % 2]},{','.join(early.values())}" for row in range(filler)]
    lines.append(f"{filler},a,{','.join(late.values())}")
    paths = write(tmp_path, nodes="\n".join(lines) + "\n", edges="p,q\n0,1\n")
    assert paths["nodes"].stat().st_size > 1 << 20
    read = read_tables(**paths, label="y")
    assert read.feature_names == (
        "whole",
        "gap",
        "gap=missing",
        "number=12",
        "number=B12",
        "flag=maybe",
        "flag=true",
    )
    assert dense(read.graph)[-1].tolist() == [0.5, 7, 0, 0, 1, 1, 0]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_edge_list_is_read_as_from_arcs_builds_it(tmp_path: Path, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    ids = data.draw(
        st.lists(st.integers(-(10**12), 10**12), min_size=count, max_size=count, unique=True)
    )
    if data.draw(st.booleans()):
        ids = [f"node {name}" for name in ids]
    places = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(places, places), min_size=1, max_size=40))
    directed = data.draw(st.booleans())
    suffix = data.draw(st.sampled_from(FORMATS))
    labels = [number % 2 for number in range(count)]
    nodes = pa.table({"id": ids, "x": list(range(count)), "y": labels})
    edges = pa.table({"a": [ids[u] for u, _ in pairs], "b": [ids[v] for _, v in pairs]})
    read = read_tables(
        nodes=save(nodes, tmp_path / f"n.{suffix}"),
        edges=save(edges, tmp_path / f"e.{suffix}"),
        label="y",
        directed=directed,
    )
    sources, targets = zip(*pairs, strict=True)
    expected = Graph.from_arcs(
        sources,
        targets,
        num_nodes=count,
        features=np.arange(count)[:, None],
        labels=labels,
        ids=ids,
        directed=directed,
    )
    assert read.graph.fingerprint == expected.fingerprint
    assert read.dropped_self_loops == sum(u == v for u, v in pairs)
    distinct = {(u, v) if directed else (min(u, v), max(u, v)) for u, v in pairs if u != v}
    kept = len(pairs) - read.dropped_self_loops - read.dropped_duplicates
    assert kept == len(distinct)


@pytest.mark.dataset
def test_facebook_page_page_loads_from_its_plain_files() -> None:
    folder = Path(os.environ.get("GAPGNN_DATA", "")) / "facebook-page-page"
    if "GAPGNN_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("needs facebook-page-page under GAPGNN_DATA")
    from gapgnn.graph.datasets.load import load_dataset

    read = read_tables(
        edges=folder / "facebook_edges.csv",
        nodes=folder / "facebook_target.csv",
        features=folder / "facebook.json",
        label="page_type",
    )
    graph = read.graph
    sizes = (graph.num_nodes, graph.num_arcs, graph.num_features, graph.num_classes)
    assert sizes == (22_470, 341_646, 4_714, 4)
    assert (read.dropped_self_loops, read.dropped_duplicates) == (179, 0)
    known = load_dataset("facebook-page-page")
    assert graph.label_names == known.label_names
    assert graph.fingerprint == known.fingerprint


def test_a_store_takes_the_options_of_a_graph_in_memory_with_their_defaults() -> None:
    """`build_store` takes `TableOptions`; users read about them at `read_tables`."""
    in_memory = dict(inspect.signature(read_tables).parameters)
    del in_memory["progress"]
    # Whoever builds a store has read the file of the schema.
    in_memory["schema"] = in_memory["schema"].replace(annotation="Schema | None")
    assert in_memory == dict(inspect.signature(TableOptions).parameters)
