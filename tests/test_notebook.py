"""The notebook runs from its first cell to its last, and carries nothing but what was written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def notebook() -> dict:
    return json.loads(PATH.read_text(encoding="utf-8"))


def test_its_cells_run_in_one_namespace(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            # A traceback names the cell.
            code = compile("".join(cell["source"]), f"{PATH.name} cell {number}", "exec")
            exec(code, vars(module))
    said = capsys.readouterr().out
    assert "GAP on graph: level edge, relation undirected" in said
    assert "gap fit 3.0 a first look" in said
    assert "nothing was charged" in said


def test_it_is_plain_and_holds_no_output_of_anybodys_run(notebook):
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert PATH.stat().st_size < 20_000
