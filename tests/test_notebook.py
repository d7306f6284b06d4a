"""The notebook runs from its first cell to its last, and carries nothing but what was written."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from gapgnn.errors import UnavailableError
from gapgnn.graph.datasets import write_example

PATH = Path(__file__).parents[1] / "docs" / "tutorials" / "notebook.ipynb"


@pytest.fixture(scope="module")
def notebook() -> dict:
    return json.loads(PATH.read_text(encoding="utf-8"))


def test_its_cells_run_in_one_namespace_and_write_to_a_temporary_folder(
    notebook, tmp_path, monkeypatch, capsys
):
    here, scratch = tmp_path / "mine", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    mine = {name: f"my own {name}" for name in ("people.csv", "friends.csv", "notebook.sqlite")}
    for name, text in mine.items():
        (here / name).write_text(text)
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            # A traceback names the cell.
            code = compile("".join(cell["source"]), f"{PATH.name} cell {number}", "exec")
            exec(code, vars(module))
    said = capsys.readouterr().out
    assert "LabelGAP on graph: level edge, relation undirected" in said
    assert "label-gap fit 3.0 a first look" in said
    assert "nothing was charged" in said
    # What lay in the reader's folder is as it was, and nothing else does.
    assert {path.name: path.read_text() for path in here.iterdir()} == mine


def test_it_is_plain_and_holds_no_output_of_anybodys_run(notebook):
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert PATH.stat().st_size < 20_000


@pytest.mark.gate
@pytest.mark.parametrize("example", ["bank", "hospital"])
def test_examples_refuse_a_folder_with_something_in_it(example, tmp_path):
    (tmp_path / "customers.csv").write_text("my own")
    with pytest.raises(UnavailableError, match="new or empty folder"):
        write_example(example, tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["my own"]
