"""A misspelt option, a page of help and the first line of a training need no heavy library."""

import importlib
import inspect
import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import fields

import pytest

from gapgnn.cli.main import COMMANDS, Parser, parser_of
from gapgnn.methods import method_class, method_config, methods
from gapgnn.methods.configs import own_pieces
from gapgnn.methods.registry import METHODS

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
        (("train", "--level", "node", "--folds", "2"), "unknown option '--folds'."),
        (("attack", "membership", "--foo"), "unknown option '--foo'."),
        (("predict", "--model", "x", "--out", "y", "--jsno"), "Did you mean '--json'?"),
        (("trian",), "Did you mean 'train'?"),
        # Their options are missing too, but the misspelling is the news.
        (("noise", "--epsilom", "1"), "unknown option '--epsilom'. Did you mean '--epsilon'?"),
        (("ledger", "show", "--jsno"), "unknown option '--jsno'. Did you mean '--json'?"),
        (("predict", "--modle", "x"), "unknown option '--modle'. Did you mean '--model'?"),
        (("noise", "--epsilon", "1", "--delta", "small"), "must be auto or a number. Got 'small'."),
        (("datasets", "--jsno"), "Did you mean '--json'?"),
    ],
)
def test_a_typo_is_answered_without_loading_anything(words, expected):
    out, complaint, code = answer(*words)
    assert code == 2
    assert expected in complaint
    assert complaint.count("\n") == 1
    assert out.strip() == "loaded:"


OURS = tuple(METHODS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_examples_of_it(name):
    parser = Parser(prog=f"gapgnn {name}")
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    epilog = parser.epilog or ""
    assert "examples:" in epilog
    assert f"gapgnn {name}" in epilog


@pytest.mark.parametrize("name", OURS)
def test_help_of_a_method_loads_nothing(name):
    out, _, code = answer("train", name, "--help")
    assert code == 0
    config = method_config(name)
    for part in fields(config):
        has_option = re.search(rf"--{part.name.replace('_', '-')}(?![\w-])", out) is not None
        assert has_option is (part.name not in own_pieces(config)), part.name
    assert out.strip().splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("name", OURS)
def test_a_configuration_is_the_constructor_of_its_method(name):
    config, method = method_config(name), method_class(name)
    assert issubclass(method, config)
    given = [(part.name, part.default, part.type) for part in fields(config)]
    assert [(part.name, part.default, part.type) for part in fields(method)] == given
    assert list(inspect.signature(method).parameters) == [name for name, _, _ in given]
    assert method().get_params() == {name: default for name, default, _ in given}


def test_every_method_of_this_package_has_a_configuration_of_its_own():
    assert set(OURS) <= set(methods())
    assert len({method_config(name) for name in OURS}) == len(OURS)
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
        while b"Training label-gap" not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 4096)
        process.kill()
    os.close(ours)
    assert b"Training label-gap: loading social and the libraries" in seen
    before = seen[: seen.index(b"Training label-gap")].decode()
    loaded = {line.rpartition("|")[2].strip() for line in before.splitlines()}
    assert not loaded & set(HEAVY)


def test_nothing_is_said_to_a_file_or_where_quiet_is_wanted():
    from gapgnn.cli.output import begin, verbosity

    done = subprocess.run(
        [sys.executable, "-c", "from gapgnn.cli.output import begin; begin('x')"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    with verbosity("quiet"):
        begin("x")
