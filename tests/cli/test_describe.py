"""`gapgnn describe` shows what was read, and the page on your own data tells the truth."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gapgnn.cli.data import add_data_options, add_level_option, add_word_options, load_graph
from gapgnn.cli.main import Parser, main
from gapgnn.errors import DataError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "your-data.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the page's example files into an empty working folder and return the page."""
    text = PAGE.read_text(encoding="utf-8")
    files = re.findall(r"`(\S+)`:\n\n```(?:csv|json|toml)\n(.*?)```", text, re.DOTALL)
    assert len(files) == 9
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return text


def commands(page: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines]


def describe(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    capsys.readouterr()
    assert main(["describe", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


BASIC = ["--edges", "friends.csv", "--nodes", "people.csv", "--label", "team", "--drop", "bio"]


def test_the_page_shows_the_basic_command_first(page: str) -> None:
    assert commands(page)[0] == ["gapgnn", "describe", *BASIC]


def test_every_command_of_the_page_loads_its_graph(page: str) -> None:
    for command in commands(page):
        if command[0] == "gzip":
            subprocess.run(command, check=True)
            continue
        assert command[0] == "gapgnn"
        if command[1] == "schema" or "--edges" not in command:
            assert main(command[1:]) == 0
            continue
        first = next(at for at, word in enumerate(command) if word.startswith("--"))
        options = [word for word in command[first:] if word != "--plan"]
        parser = Parser()
        add_data_options(parser)
        add_word_options(parser)
        add_level_option(parser.add_argument_group())
        graph = load_graph(parser.parse_args(options), seed=0).graph
        assert graph.train_mask.any()


def test_the_summary_holds_what_the_page_says(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = describe(BASIC, capsys)
    sentence = re.search(r"It shows (\d+) nodes, (\d+) arcs, (\d+) features and (\d+)", page)
    assert sentence is not None
    shown = (summary["nodes"], summary["arcs"], summary["features"], len(summary["classes"]))
    assert shown == tuple(int(number) for number in sentence.groups())
    assert (summary["dropped_self_loops"], summary["dropped_duplicates"]) == (1, 1)
    assert summary["classes"] == {"blue": 4, "red": 5}
    assert summary["unlabelled"] == 1
    assert sum(summary["split"].values()) == 9
    assert summary["degree"] == {"mean": 1.8, "max": 2}
    assert len(summary["fingerprint"]) == 64


def test_the_python_example_prints_what_it_says(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    promised = re.search(r"# (Graph\(.*\))", code[1])
    assert promised is not None
    assert capsys.readouterr().out.splitlines()[0] == promised[1]


def test_the_example_of_a_complaint_is_real(page: str) -> None:
    quoted = re.search(r"```text\ngapgnn: (.*)\n```", page)
    assert quoted is not None
    with pytest.raises(DataError, match=re.escape(quoted[1])):
        main(["describe", *BASIC[:5], "taem"])


def test_direction_and_dangling_entries_are_shown(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe([*BASIC, "--directed"], capsys)["directed"]
    assert not describe([*BASIC, "--undirected"], capsys)["directed"]
    assert describe([*BASIC, "--directed"], capsys)["arcs"] == 10
    kept = ["--edges", "more-friends.csv", *BASIC[2:], "--dangling", "keep"]
    assert describe(kept, capsys)["dangling"] == 1


def test_a_class_minimum_leaves_out_unlabelled_nodes(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = describe([*BASIC, "--min-class-count", "4"], capsys)
    assert (summary["nodes"], summary["unlabelled"]) == (9, 0)


def test_the_seed_moves_the_split_and_not_the_fingerprint(page: str) -> None:
    parser = Parser()
    add_data_options(parser)
    graphs = [load_graph(parser.parse_args(BASIC), seed=seed).graph for seed in range(4)]
    assert len({graph.fingerprint for graph in graphs}) == 1
    assert len({graph.train_mask.tobytes() for graph in graphs}) > 1


def test_people_get_a_table(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", *BASIC]) == 0
    output = capsys.readouterr()
    assert "undirected" in output.out
    assert "1 self-loops, 1 duplicate edges" in output.out
    assert output.err == ""


def test_tables_without_a_label_can_be_loaded_for_prediction(page: str) -> None:
    parser = Parser()
    add_data_options(parser)
    options = ["--edges", "friends.csv", "--nodes", "people.csv", "--drop", "bio", "--drop", "team"]
    graph = load_graph(parser.parse_args(options), seed=0, needs_label=False).graph
    assert graph.labels.max() == -1
    assert not graph.train_mask.any()


def test_a_schema_shows_what_becomes_of_each_column(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--edges", "friends.csv", "--nodes", "people.csv", "--schema", "schema.toml"]
    summary = describe([*own, "--level", "node"], capsys)
    assert summary["inferred"] == []
    assert summary["declared"]["age"] == "0 to 100, scaled to -1 to 1"
    assert summary["declared"]["bio"] == "ignored"
    assert summary["features"] == 2 + 4 + 3
    assert summary["classes"] == {"red": 5, "blue": 4}
    assert describe(BASIC, capsys)["inferred"] == ["classes", "columns"]
    assert main(["describe", *own]) == 0
    assert "Bern, Oslo, Rome or other" in capsys.readouterr().out


def test_every_column_is_shown_with_its_use(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {one["name"]: one for one in describe(BASIC, capsys)["columns"]}
    assert list(shown) == ["id", "age", "city", "member", "bio", "team"]
    assert shown["age"] == {
        "name": "age",
        "type": "number",
        "range": "23 to 61",
        "missing": pytest.approx(0.1),
        "becomes": "as it is, 0 and `age=missing` where missing",
    }
    assert shown["bio"]["becomes"] == "ignored: dropped"
    assert main(["describe", *BASIC]) == 0
    out = capsys.readouterr().out
    for word in ("23 to 61", "10.0%", "one-hot of 3 values", "ignored: dropped"):
        assert word in out
    # Only tables have columns.
    assert describe([], capsys)["columns"] is None


def test_the_spreadsheet_of_the_page_is_read_as_it_says(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = [words for words in commands(page) if "payments.csv" in words]
    found = describe(command[2:], capsys)
    assert (found["nodes"], found["arcs"], found["dropped_dangling"]) == (10, 8, 1)
    shown = {one["name"]: one for one in found["columns"]}
    assert shown["income"]["range"] == "980 to 12400"
    assert shown["opened"]["range"] == "2011-11-02 to 2021-03-23"
    assert shown["opened"]["missing"] == pytest.approx(0.1)


def test_a_node_table_alone_shows_also_what_would_be_refused(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path("people.csv").read_text().splitlines()
    more = [f"{line},{1990 + row}-05-0{row % 9 + 1}" for row, line in enumerate(lines[1:])]
    Path("dated.csv").write_text("\n".join([f"{lines[0]},born", *more]))
    found = describe(["--nodes", "dated.csv", "--label", "team"], capsys)
    assert found["nodes"] == "dated.csv"
    born = found["columns"][-1]
    assert (born["name"], born["type"]) == ("born", "date")
    assert born["becomes"].startswith("refused: dates; declare it in a schema")
    assert main(["describe", "--nodes", "dated.csv"]) == 0
    assert "refused: dates" in capsys.readouterr().out


@pytest.mark.dataset
def test_the_plain_files_of_facebook_page_page_are_that_data_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(os.environ.get("GAPGNN_DATA", "")) / "facebook-page-page"
    if "GAPGNN_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("needs facebook-page-page under GAPGNN_DATA")
    words = ["--edges", f"{folder}/facebook_edges.csv", "--nodes", f"{folder}/facebook_target.csv"]
    words += ["--features", f"{folder}/facebook.json", "--label", "page_type"]
    plain = describe(words, capsys)
    known = describe(["--dataset", "facebook-page-page"], capsys)
    assert (plain["nodes"], plain["arcs"], plain["features"]) == (22_470, 341_646, 4_714)
    # What a registered data set declares was read from the tables here.
    different = {"dataset", "inferred", "columns"}
    different |= {key for key in plain if key.startswith("dropped_")}
    assert (plain["inferred"], known["inferred"]) == (["classes", "columns"], [])
    for key in plain.keys() - different:
        assert plain[key] == known[key]
