"""`gapgnn noise --method sage` prices the mixture and the original theorem side by side."""

import json

import pytest

from gapgnn.cli.main import main
from gapgnn.errors import GapgnnError

SIZES = ["--level", "node", "--delta", "1e-5", "--steps", "60", "--sampling-rate", "0.02"]
SAGE = ["noise", "--method", "sage", "--max-degree", "10", *SIZES]


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def answer(capsys, *options):
    assert main([*SAGE, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_tighter_price_is_the_one_that_is_used(capsys):
    found = answer(capsys, "--epsilon", "4", "--train-nodes", "5000")
    assert found["accountant"] == "pld"
    assert 0.995 * 4 <= found["epsilon"] <= 4 < found["original_theorem_epsilon"]


def test_the_train_nodes_change_the_original_theorem_alone(capsys):
    few = answer(capsys, "--noise-multiplier", "1", "--train-nodes", "200")
    many = answer(capsys, "--noise-multiplier", "1")
    assert few["epsilon"] == many["epsilon"]
    assert few["original_theorem_epsilon"] < many["original_theorem_epsilon"]


def test_both_are_in_the_table(capsys):
    assert main([*SAGE, "--noise-multiplier", "1"]) == 0
    printed = capsys.readouterr().out
    assert "pld" in printed
    assert "original theorem" in printed
    assert "21 clips" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "sage", "--delta", "1e-5", "--epsilon", "1"], "--level node"),
        (["--method", "sage", *SIZES, "--relation", "replace", "--epsilon", "1"], "add-remove"),
        (["--method", "sage", *SIZES, "--hops", "2", "--epsilon", "1"], "`hops` must be 1"),
        (["--method", "sage", *SIZES[:4], "--epsilon", "1"], "needs --steps"),
        (["--method", "sag", *SIZES, "--epsilon", "1"], "Did you mean 'sage'"),
        (["--train-nodes", "9", *SIZES, "--epsilon", "1"], "--method sage only"),
    ],
)
def test_what_has_no_answer_is_refused(words, message):
    with pytest.raises(GapgnnError, match=message):
        main(["noise", *words])
