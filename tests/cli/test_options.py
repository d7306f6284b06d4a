"""The fields of a configuration are the options: all of them, with help, types and defaults."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gapgnn.cli import train
from gapgnn.cli.main import Parser
from gapgnn.cli.options import (
    add_method_options,
    config_words,
    expand_config,
    level_of,
    method_options,
)
from gapgnn.errors import InputError
from gapgnn.methods import method_config, methods
from gapgnn.methods.configs import help_texts, own_parameters, own_pieces

CONFIGS = {name: method_config(name) for name in methods()}


def parser_of(method: str) -> Parser:
    parser = Parser(prog="gapgnn train")
    add_method_options(parser, CONFIGS[method])
    return parser


def names_of(method: str) -> list[str]:
    """Return the parameters that are options: functions of the user's own are for Python alone."""
    config = CONFIGS[method]
    return [part.name for part in fields(config) if part.name not in own_pieces(config)]


@pytest.mark.parametrize("method", CONFIGS)
def test_every_parameter_is_an_option_with_a_help_text(method):
    actions = {action.dest: action for action in parser_of(method)._actions}
    texts = help_texts(CONFIGS[method])
    for name in names_of(method):
        assert f"--{name.replace('_', '-')}" in actions[name].option_strings
        assert len(texts[name]) > 5, name
        assert actions[name].help.startswith(texts[name].replace("%", "%%"))
        assert "`" not in texts[name]


@pytest.mark.parametrize("method", CONFIGS)
def test_no_help_text_is_about_nothing(method):
    texts = help_texts(CONFIGS[method])
    assert texts.keys() == {*names_of(method), *own_pieces(CONFIGS[method])}


@pytest.mark.parametrize("method", CONFIGS)
def test_functions_of_the_users_own_are_no_options(method):
    names = {action.dest for action in parser_of(method)._actions}
    assert not names & set(own_pieces(CONFIGS[method]))


def test_a_method_inherits_texts_and_words_its_own_again():
    gap, sage, mlp = (help_texts(CONFIGS[name]) for name in ("gap", "sage", "mlp"))
    assert gap["seed"] == sage["seed"] == mlp["seed"]
    assert gap["notion"] == sage["notion"]
    assert gap["max_degree"] != sage["max_degree"]
    assert mlp["epsilon"] == "privacy budget at node level"
    assert gap["epsilon"].startswith("privacy budget; smaller is more private.")


@pytest.mark.parametrize("method", CONFIGS)
def test_the_help_begins_with_the_promise_and_goes_on_with_the_method(method):
    names = [
        action.dest
        for action in parser_of(method)._actions
        if action.dest not in ("help", "verbosity", "log_format")
    ]
    assert names[:4] == ["level", "epsilon", "delta", "relation"]
    assert names[4] == next(own_parameters(CONFIGS[method]))
    assert names[-2:] == ["ledger", "reason"]
    assert sorted(names) == sorted(names_of(method))


@pytest.mark.parametrize("method", CONFIGS)
def test_the_help_can_be_printed(method, capsys):
    parser = Parser(prog="gapgnn train")
    train.configure(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([method, "--help"])
    text = capsys.readouterr().out
    assert "--epsilon" in text
    assert "(default: " in text


@pytest.mark.parametrize("method", CONFIGS)
def test_no_options_give_the_constructors_defaults(method):
    config = CONFIGS[method]
    chosen = method_options(parser_of(method).parse_args([]), config)
    defaults = {part.name: part.default for part in fields(config)}
    assert chosen == {name: defaults[name] for name in names_of(method)}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--epsilon", "0.5"], "epsilon", 0.5),
        (["--epsilon=3"], "epsilon", 3.0),
        (["--delta", "auto"], "delta", "auto"),
        (["--delta", "1e-5"], "delta", 1e-5),
        (["--hops", "4"], "hops", 4),
        (["--epochs", "auto"], "epochs", "auto"),
        (["--epochs", "7"], "epochs", 7),
        (["--batch-norm"], "batch_norm", True),
        (["--batch-norm", "true"], "batch_norm", True),
        (["--batch-norm", "false"], "batch_norm", False),
        (["--batch-norm", "auto"], "batch_norm", "auto"),
        (["--noise-ratios", "1", "2", "0.5"], "noise_ratios", (1.0, 2.0, 0.5)),
        (["--insecure-noise-seed", "3"], "insecure_noise_seed", 3),
        (["--ledger", "7"], "ledger", "7"),
        (["--level", "node"], "level", "node"),
    ],
)
def test_words_become_values_of_the_parameters_type(words, name, value):
    chosen = method_options(parser_of("gap").parse_args(words), CONFIGS["gap"])
    assert chosen[name] == value
    assert type(chosen[name]) is type(value)


@pytest.fixture
def config(tmp_path):
    def write(text: str):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("epsilon = 0.5", ["--epsilon=0.5"]),
        ("epsilon = -1", ["--epsilon=-1"]),
        ("batch_norm = true", ["--batch-norm=true"]),
        ("batch-norm = 'auto'", ["--batch-norm=auto"]),
        ("noise_ratios = [1, 2.5, 1]", ["--noise-ratios", "1", "2.5", "1"]),
        ("ledger = 'my ledger.sqlite'", ["--ledger=my ledger.sqlite"]),
        ("", []),
    ],
)
def test_a_line_of_a_file_becomes_words(line, words, config):
    assert config_words(config(line), parser_of("gap")) == words


def test_a_file_of_a_level_chooses_the_method_and_the_command_line_wins(config):
    path = str(config('level = "node"\n'))
    assert level_of(["--config", path]) == "node"
    assert level_of([f"--config={path}", "--level", "none"]) == "none"
    # What is wrong with the file is said with all other options.
    assert level_of(["--config", f"{path}.none"]) == level_of(["--config"]) == "edge"


def test_a_level_that_is_none_chooses_no_method():
    with pytest.raises(InputError, match=r"`--level` must be one of none, edge, node\. Got 'egde'"):
        level_of(["--level", "egde"])


@pytest.mark.parametrize("line", ["epsilon = true", "ledger = true", "hops = false"])
def test_truth_is_refused_where_it_means_nothing(line, config):
    with pytest.raises(InputError, match="must not be true or false"):
        config_words(config(line), parser_of("gap"))


def test_a_switch_is_turned_off_by_false(config):
    parser = Parser(prog="gapgnn train")
    train.configure(parser)
    child = parser._subparsers._group_actions[0].choices["gap"]
    child.declare()
    path = config("compare = false\njson = false\ndirected = true\ndrop = ['name', 'mail']\n")
    assert config_words(path, child) == [
        "--no-compare",
        "--directed",
        "--drop",
        "name",
        "--drop",
        "mail",
    ]


def test_words_of_the_file_stand_before_all_others(config):
    path = config("epsilon = 8\n")
    words = expand_config(["--hops", "3", "--config", str(path), "--seed", "1"], parser_of("gap"))
    assert words == ["--epsilon=8", "--hops", "3", "--seed", "1"]


def test_the_readers_messages_name_what_is_wanted():
    parser = parser_of("gap")
    with pytest.raises(InputError, match=r"--level: must be one of none, edge, node\. Got 'egde'"):
        parser.parse_args(["--level", "egde"])
    with pytest.raises(InputError, match=r"--batch-size: must be one of auto, a whole number"):
        parser.parse_args(["--batch-size", "half"])
