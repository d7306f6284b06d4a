"""A misspelt option, a page of help and the first line of a training need no heavy library."""

import inspect
import os
import pty
import subprocess
import sys
import time

import pytest

from gapgnn.cli import outlines
from gapgnn.cli.main import parser_of
from gapgnn.cli.options import _reading_order, _type_hints, parameter_texts
from gapgnn.methods import method_class, methods

HEAVY = ("torch", "sklearn", "scipy", "numpy", "pyarrow")
# Run the command, then say on stdout which heavy libraries it loaded.
WATCHED = f"""
import sys
sys.argv = ["gapgnn", *sys.argv[1:]]
from gapgnn.cli.main import run
try:
    run()
finally:
    print("loaded:", *(name for name in {HEAVY} if name in sys.modules))
"""


def answer(*words: str) -> tuple[str, str, int]:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=False
    )
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train", "--epsilom", "1"), "unknown option '--epsilom'. Did you mean '--epsilon'?"),
        (("train", "gap", "--foo"), "unknown option '--foo'."),
        (("train", "gpa"), "Did you mean 'gap'?"),
        (("train", "--level", "nod"), "must be one of none, edge, node. Got 'nod'."),
        (("train", "mlp", "--hops", "2"), "unknown option '--hops'."),
        (("attack", "membership", "--foo"), "unknown option '--foo'."),
        (("predict", "--model", "x", "--out", "y", "--jsno"), "Did you mean '--json'?"),
        (("trian",), "Did you mean 'train'?"),
        # Their options are missing too, but the misspelling is the news.
        (("noise", "--epsilom", "1"), "unknown option '--epsilom'. Did you mean '--epsilon'?"),
        (("ledger", "show", "--jsno"), "unknown option '--jsno'. Did you mean '--json'?"),
        (("predict", "--modle", "x"), "unknown option '--modle'. Did you mean '--model'?"),
        (("noise", "--epsilon", "1"), "the following arguments are required: --delta"),
        (("datasets", "--jsno"), "Did you mean '--json'?"),
    ],
)
def test_a_typo_is_answered_without_loading_anything(words, expected):
    out, complaint, code = answer(*words)
    assert code == 2
    assert expected in complaint
    assert complaint.count("\n") == 1
    assert out.strip() == "loaded:"


def test_help_of_a_method_loads_nothing():
    out, _, code = answer("train", "gap", "--help")
    assert code == 0
    assert "--epsilon" in out
    assert out.strip().splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("name", ["gap", "sage", "mlp", "vote"])
def test_an_outline_is_what_the_class_says(name):
    real, outline = method_class(name), outlines._outline(*outlines.method_home(name))
    assert outline is not real
    parameters = inspect.signature(real).parameters
    shown = inspect.signature(outline).parameters
    assert list(parameters) == list(shown)
    for key in parameters:
        assert parameters[key].default == shown[key].default
        assert type(parameters[key].default) is type(shown[key].default)
        assert _type_hints(real)[key] == _type_hints(outline)[key]
    assert parameter_texts(real) == parameter_texts(outline)
    assert _reading_order(real) == _reading_order(outline)


def test_every_method_of_this_package_has_an_outline():
    assert {name for name in methods() if outlines.method_home(name)} == {
        "gap",
        "sage",
        "mlp",
        "vote",
    }
    # The class is loaded here, so it is asked itself.
    assert outlines.method_outline("gap") is method_class("gap")
    assert "--epsilon" in parser_of("train").option_names()


def test_training_says_something_before_it_loads_anything():
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", WATCHED, "train", "--epsilon", "1"],
        stdout=subprocess.DEVNULL,
        stderr=its,
    ) as process:
        os.close(its)
        seen = b""
        deadline = time.monotonic() + 60
        while b"Training gap" not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 4096)
        process.kill()
    os.close(ours)
    assert b"Training gap: loading social and the libraries" in seen
    before = seen[: seen.index(b"Training gap")].decode()
    loaded = {line.rpartition("|")[2].strip() for line in before.splitlines()}
    assert not loaded & set(HEAVY)


def test_nothing_is_said_to_a_file_or_where_quiet_is_wanted():
    from gapgnn.cli.output import begin, speaking

    done = subprocess.run(
        [sys.executable, "-c", "from gapgnn.cli.output import begin; begin('x')"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    with speaking("quiet"):
        begin("x")
