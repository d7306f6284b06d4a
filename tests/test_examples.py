"""Every script of examples/ is short, is named by the index, and runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gapgnn import Ledger

README = Path(__file__).parents[1] / "README.md"
FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
# What reads no edge charges nothing.
FREE = ("accounting_only.py",)


def test_there_are_examples_of_all_tasks():
    assert {
        "own_gnn.py",
        "gnns_by_dp_sgd.py",
        "embeddings_to_sklearn.py",
        "accounting_only.py",
        "own_message.py",
        "own_operator.py",
        "second_package.py",
        "free_hyperparameters.py",
        "epsilon_plot.py",
    } <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_shorter_than_eighty_lines_and_trains_by_a_plain_loop(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert text.startswith('"""'), "it says what it shows"
    assert not re.search(r"lightning|Trainer\(", text, re.IGNORECASE)


def test_the_index_names_every_example_and_no_other():
    named = re.findall(r"\]\((\w+\.py)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(named) == SCRIPTS


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name, tmp_path):
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    environment = {**os.environ, "GAPGNN_LEDGER": str(ledger.path), "MPLBACKEND": "agg"}
    found = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip(), "an example shows a result"
    assert bool(ledger.entries()) is (name not in FREE), "what reads edges is charged"


def test_the_readme_leads_from_a_data_to_ones_own_private_model_in_ten_lines(tmp_path, monkeypatch):
    import torch
    from torch_geometric.data import Data

    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (ten,) = (block for block in blocks if "PrivateHops" in block)
    assert len(ten.splitlines()) <= 10
    ledger = Ledger.init(tmp_path / "ledger.sqlite")
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    ends = torch.randint(90, (2, 900))
    edges = ends[:, y[ends[0]] == y[ends[1]]]
    data = Data(x=torch.randn(90, 4), y=y, edge_index=edges, train_mask=torch.arange(90) < 60)
    names = {"data": data}
    exec(compile(ten, "README.md", "exec", dont_inherit=True), names)
    (charge,) = ledger.entries()
    assert charge.purpose == "private-hops fit"
    assert 0 < charge.epsilon <= 1.0
    assert names["hops"].card_.epsilon == charge.epsilon
    assert names["model"](names["z"]).shape == (90, 3)
