"""An experiment grid on a cluster gives the table of one process."""

from __future__ import annotations

import functools
import math
import os

import pytest
from methodgraphs import write_tables

from gapgnn import Ledger
from gapgnn.cli.main import main
from gapgnn.cluster import ray_executor
from gapgnn.errors import InputError, UnavailableError, check_integer
from gapgnn.evaluation.grid.records import load

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.gate,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


def test_the_table_is_that_of_one_process(two_nodes, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GAPGNN_LEDGER", str(Ledger.init(tmp_path / "ledger.sqlite").path))
    tables = write_tables(tmp_path / "tables", count=120)
    # At node level what is public must be declared.
    schema = str(tmp_path / "schema.toml")
    assert main(["schema", *tables[2:], "--out", schema]) == 0
    rows = ("--methods", "MLP", "GAP-EDP", "GAP-NDP", "SAGE-EDP")
    grid = ("experiment", "accuracy", *tables, "--schema", schema, *rows, "--repeats", "2")
    grid += ("--json", "--insecure-noise-seed", "3")
    for folder, how in (("here", ("--jobs", "1")), ("there", ("--ray", two_nodes[0]))):
        assert main([*grid, "--out", str(tmp_path / folder), *how]) == 0
    here, there = (
        {record.key: (record.method, record.runs) for record in load(tmp_path / folder)}
        for folder in ("here", "there")
    )
    assert len(here) == 4
    assert here == there


def test_tasks_come_back_with_their_results(two_nodes, monkeypatch):
    monkeypatch.setenv("GAPGNN_EXAMPLE", "here")
    executor = ray_executor(two_nodes[0], 2)
    assert sorted(executor(math.factorial, [3, 1, 2])) == [(1, 1), (2, 2), (3, 6)]
    # Where data sets are found is known to the workers, too.
    assert list(executor(os.getenv, ["GAPGNN_EXAMPLE"])) == [("GAPGNN_EXAMPLE", "here")]
    with pytest.raises(InputError, match=r"`hops` must be at least 8\. Got 7\.") as caught:
        list(executor(functools.partial(check_integer, "hops", at_least=8), [7]))
    assert "\n" not in str(caught.value)


def test_bad_options_are_refused_before_anything_runs():
    with pytest.raises(InputError, match=r"`jobs` must be at least 1\. Got 0\."):
        ray_executor("local", 0)
    with pytest.raises(UnavailableError, match="does not answer"):
        list(ray_executor("localhost:1")(abs, [1]))
