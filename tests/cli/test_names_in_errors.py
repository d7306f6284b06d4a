"""The same mistake names an argument in Python and an option on the command line."""

from __future__ import annotations

import pytest
from methodgraphs import small_graph, write_tables

from gapgnn import GAP, MLP, GraphSAGE, LabelGAP, read_tables
from gapgnn.cli.main import main
from gapgnn.errors import GapgnnError

PARAMETERS = [
    (GAP, {"epsilon": -1.0}, "`epsilon` must be positive. Got -1.0."),
    (GAP, {"delta": 2.0}, "`delta` must be at least 0 and below 1. Got 2.0."),
    (GAP, {"hops": 0}, "`hops` must be at least 1. Got 0."),
    (GAP, {"epochs": 0}, "`epochs` must be at least 1. Got 0."),
    (GAP, {"learning_rate": -0.5}, "`learning_rate` must be positive. Got -0.5."),
    (GAP, {"repeats": 0}, "`repeats` must be at least 1. Got 0."),
    (GAP, {"insecure_noise_seed": -1}, "`insecure_noise_seed` must be at least 0. Got -1."),
    (LabelGAP, {"folds": 1}, "`folds` must be"),
    (GAP, {"train_size": 0}, "`train_size` must be at least 1. Got 0."),
    (MLP, {"level": "node", "threshold": "auto"}, "`threshold` must be a number at level node"),
    (MLP, {"hidden": 0}, "`hidden` must be at least 1. Got 0."),
    (MLP, {"level": "node", "dropout": 0.5}, "`dropout` must be 0 at level node"),
    (GraphSAGE, {"level": "node", "max_degree": 0}, "`max_degree` must be at least 1. Got 0."),
    (GraphSAGE, {"batch_size": 1}, "`batch_size` must be at least 2 with batch norm. Got 1."),
]
TABLES = [
    ({"label": "yaer"}, "`label` must be a column"),
    ({"label": "year", "drop": ["name"]}, "`drop` must be a column"),
    ({"label": "year", "min_class_count": -1}, "`min_class_count` must be at least 0. Got -1."),
]


def as_option(words: str) -> str:
    """Return words with the one name in front as its option."""
    name, _, rest = words[1:].partition("`")
    return f"`--{name.replace('_', '-')}`{rest}"


def options(given: dict) -> list[str]:
    """Return the words of the command line that say the same."""
    values = {key: value[0] if isinstance(value, list) else value for key, value in given.items()}
    return [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]


@pytest.mark.parametrize(("method", "given", "words"), PARAMETERS)
def test_a_parameter_is_an_argument_here_and_an_option_there(method, given, words):
    with pytest.raises(GapgnnError) as here:
        method(**given).fit(small_graph(num_nodes=60))
    with pytest.raises(type(here.value)) as there:
        main(["train", method.method, *options(given)])
    assert words in str(here.value)
    assert as_option(words) in str(there.value)
    assert "--" not in str(here.value)


@pytest.mark.parametrize(("given", "words"), TABLES)
def test_so_is_what_is_said_about_tables(given, words, tmp_path):
    files = write_tables(tmp_path)[:4]
    with pytest.raises(GapgnnError) as here:
        read_tables(edges=files[1], nodes=files[3], **given)
    with pytest.raises(GapgnnError) as there:
        main(["describe", *files, *options(given)])
    assert words in str(here.value)
    assert as_option(words) in str(there.value)


def test_what_to_do_is_said_in_the_same_language(tmp_path):
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    rows = "".join(f"{k},{'ab'[k % 2]},text number {k}\n" for k in range(60))
    nodes.write_text(f"id,year,home town\n{rows}")
    edges.write_text("a,b\n1,2\n3,77\n")
    with pytest.raises(GapgnnError) as here:
        read_tables(edges=edges, nodes=nodes, label="year")
    assert '`drop=["home town"]`' in str(here.value)
    assert '`dangling="drop"`' in str(here.value)
    words = ["--edges", str(edges), "--nodes", str(nodes), "--label", "year"]
    with pytest.raises(GapgnnError) as there:
        main(["describe", *words])
    assert "`--drop 'home town'`" in str(there.value)
    assert "`--dangling drop`" in str(there.value)


def test_a_column_that_is_called_like_an_option_keeps_its_name(tmp_path):
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    nodes.write_text("id,year,seed\n" + "".join(f"{k},{k % 2},words {k}\n" for k in range(60)))
    edges.write_text("a,b\n1,2\n")
    words = ["--edges", str(edges), "--nodes", str(nodes), "--label", "year", "--no-save"]
    with pytest.raises(GapgnnError, match=r"Column `seed` of .* `--drop seed`"):
        main(["train", "label-gap", *words])
