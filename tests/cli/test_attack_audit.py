"""`gapgnn attack` and `gapgnn audit`: one JSON object, exit codes, one line for bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from controlcases import controls_once  # noqa: F401
from schemacases import declared

from gapgnn.cli.main import main
from gapgnn.errors import InputError
from gapgnn.methods import recommended_method
from gapgnn.privacy.mechanisms import backends
from gapgnn.privacy.mechanisms.noise import NoiseSource

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("controls_once")]

WANTED = {"mechanism", "epsilon_claimed", "epsilon_lower_bound", "confidence", "trials", "holds"}


@pytest.fixture(autouse=True)
def _own_ledger(ledger):
    """Charge nobody else's budget."""


@pytest.fixture
def tables(tmp_path) -> list[str]:
    from methodgraphs import write_tables

    return write_tables(tmp_path / "tables", count=160)


@pytest.mark.parametrize(
    "words",
    [
        ["aggregation", "--level", "node", "--epsilon", "4"],
        ["aggregation", "--relation", "directed", "--epsilon", "4", "--hops", "1"],
        ["dpsgd", "--epsilon", "4", "--steps", "2", "--sampling-rate", "0.5"],
        ["sampler", "--epsilon", "4"],
        ["edges", "--epsilon", "2"],
        ["subgraphs", "--epsilon", "4", "--steps", "2", "--sampling-rate", "0.5"],
        ["messages", "--epsilon", "4", "--hops", "2"],
        ["messages", "--epsilon", "4", "--level", "node"],
    ],
)
def test_an_audit_prints_one_json_object(capsys, words):
    assert main(["audit", *words, "--trials", "400", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    assert set(answer) >= WANTED
    assert answer["mechanism"] == words[0]
    assert answer["holds"] is True
    assert answer["checks"]
    assert all(check["holds"] for check in answer["checks"])


def test_an_audit_speaks_to_people(capsys):
    assert main(["audit", "aggregation", "--epsilon", "4", "--trials", "400"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "found no violation" in printed
    assert "how far one edge moves a hop (in memory): 1.41421, accounted 1.41421" in printed


def test_a_broken_guarantee_is_exit_1_and_a_plain_sentence(capsys, monkeypatch):
    original = NoiseSource.gaussian_rows
    monkeypatch.setattr(
        NoiseSource, "gaussian_rows", lambda *args, **options: original(*args, **options) / 4
    )
    assert main(["audit", "aggregation", "--epsilon", "1", "--trials", "4000", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["holds"] is False
    assert printed.err.count("\n") == 1
    assert "broken" in printed.err


def test_what_is_counted_is_exit_1_too(capsys, monkeypatch):
    monkeypatch.setattr(
        backends, "bound_out_degrees", lambda graph, *_: (graph.indptr, graph.indices)
    )
    words = ["--level", "node", "--epsilon", "4", "--trials", "400", "--json"]
    assert main(["audit", "aggregation", *words]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["holds"] is False
    assert printed.err.count("\n") == 1
    assert "how far one record moves a hop (in memory): 6.40312, accounted 3.16228" in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "agregation"], "invalid choice"),
        (["audit", "aggregation", "--trials", "1"], "`--trials` must be at least"),
        (["audit", "edges", "--delta", "1"], "`--delta` is not an option of `gapgnn audit edges`"),
        (["audit", "messages", "--own", "list"], "invalid choice"),
        (["audit", "messages", "--own", "record"], "`--own` must be left out at level edge"),
        (["audit", "subgraphs", "--max-degree", "0"], "`--max-degree` must be at least 1"),
        (
            ["audit", "messages", "--level", "node", "--hops", "2"],
            "`--hops` must be left out at level node",
        ),
        (["audit", "aggregation", "--normalised"], "`--normalised` must be"),
        (["attack", "membership", "--epoch", "5"], "invalid choice"),
        (["attack", "membershp"], "invalid choice"),
        (["attack", "membership", "--runs", "0"], "`--runs` must be at least 1"),
        (["attack", "linkteller", "mlp", "--hops", "2"], "unknown option '--hops'"),
        (["attack", "own-neighbours", "--level", "none"], "`--level` must be edge or node"),
        (["attack", "own-neighbours", "--published", "scores"], "invalid choice"),
        (
            ["attack", "label-inference", "--share", "0.9"],
            "`--share` must be above 0 and at most 0.5",
        ),
        (["attack", "inductive-links", "--pairs", "5"], "`--pairs` must be at least 20"),
    ],
)
def test_bad_words_are_one_line(words, message):
    with pytest.raises(InputError, match=message):
        main(words)


ATTACKS = {
    "membership": ["--runs", "2", "--shadow-per-class", "30"],
    "lira": ["--models", "4"],
    "link-stealing": ["--pairs", "60"],
    "linkteller": ["--watch", "20"],
    "reconstruction": ["--runs", "2", "--watch", "40"],
    "label-inference": ["--runs", "2", "--share", "0.4"],
    "inductive-links": ["--runs", "2", "--pairs", "60"],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_prints_one_json_object(capsys, tables, attack):
    words = [*ATTACKS[attack], *tables, "--level", "none", "--epochs", "3", "--json"]
    assert main(["attack", attack, *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["attack"] == attack
    assert answer["method"] == "label-gap"
    assert 0 <= answer["auc"] <= 1
    assert "tpr_at_1pct_fpr" in answer
    if attack in ("membership", "lira"):
        assert answer["epoch"] == "last"
        # From five runs on.
        several = len(answer["runs"]) >= 5
        assert (answer["ci95"]["auc"] is not None) == several
        if several:
            low, high = answer["ci95"]["auc"]
            assert low <= answer["auc"] <= high
    elif attack == "label-inference":
        assert answer["guessing"]["auc"] == 0.5
        assert "control" not in answer
    else:
        assert answer["gain_auc"] == pytest.approx(answer["auc"] - answer["control"]["auc"])


@pytest.mark.parametrize(
    ("words", "own", "is_inferred"),
    [
        (["label-gap", "--level", "edge"], "", False),
        (["label-gap", "--level", "edge", "--own", "record"], "record", True),
        (["vote", "--level", "edge"], "record", True),
    ],
    ids=["features", "record", "vote"],
)
def test_published_predictions_are_attacked_by_what_they_read(
    capsys, tables, words, own, is_inferred
):
    words = [*words, *tables, "--epochs", "3", "--pairs", "40", "--json"]
    assert main(["attack", "own-neighbours", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["own"], answer["published"]) == (own, "probabilities")
    assert (answer["auc"] > 0.7) == is_inferred
    assert main(["attack", "link-stealing", *words, "--published", "labels"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["own"], answer["published"]) == (own, "labels")


def test_a_saved_model_is_attacked_with_its_own_record_options(capsys, tables, tmp_path):
    words = [*tables, "--level", "edge", "--epochs", "3"]
    assert main(["train", "label-gap", *words, "--out", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    words = [
        "attack",
        "own-neighbours",
        "--model",
        str(tmp_path / "model"),
        *tables,
        "--pairs",
        "40",
    ]
    assert main([*words, "--own", "record", "--published", "labels"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "published labels of the saved label-gap, level edge, epsilon" in shown
    assert "own record" in shown
    assert "Links that change an answer, given the release:" in shown


@pytest.mark.parametrize("attack", ["link-stealing", "linkteller"])
def test_held_out_edges_can_be_asked_for(capsys, tables, attack):
    words = [*ATTACKS[attack], *tables, "--level", "none", "--epochs", "3", "--json"]
    words[1] = "60"
    assert main(["attack", attack, *words, "--others", "held-out"]) == 0
    assert json.loads(capsys.readouterr().out)["others"] == "held-out"


def test_the_accuracy_of_attacked_models_is_printed(capsys, tables):
    words = [*ATTACKS["lira"], *tables, "--level", "none", "--epochs", "3"]
    assert main(["attack", "lira", *words, "--epoch", "best"]) == 0
    assert "(best epoch)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("method", "level"),
    [
        ("gap", "edge"),
        ("progap", "edge"),
        ("label-gap", "edge"),
        ("sage", "edge"),
        ("mlp", "node"),
        pytest.param("mlp", "edge", marks=pytest.mark.slow),
        pytest.param("gap", "node", marks=pytest.mark.slow),
        pytest.param("progap", "node", marks=pytest.mark.slow),
        pytest.param("node-label-gap", "node", marks=pytest.mark.slow),
        # Accounting for a mixture of Gaussians takes ten seconds.
        pytest.param("sage", "node", marks=pytest.mark.slow),
    ],
)
def test_every_method_and_level_can_be_attacked(capsys, tables, method, level):
    own = declared(tables) if level == "node" else tables
    words = ["--pairs", "40", *own, "--level", level, "--epochs", "1", "--epsilon", "8"]
    if level == "node":
        words += ["--batch-size", "40"]
    assert main(["attack", "link-stealing", method, *words]) == 0
    assert "for the curator only" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["audit", "dpsgd"], ["attack", "lira"], ["attack", "lira", "gap"]]
)
def test_help_shows_examples(capsys, words):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("level", ["edge", "node"])
def test_the_pipeline_audit_takes_a_command_of_training_and_of_prediction(level, tmp_path, capsys):
    from pipelinecases import tables

    words = {}
    for name, size in (("train", 120), ("predict", 100)):
        (tmp_path / name).mkdir()
        given = tables(size=size)
        if name == "predict":
            renamed = {row[0]: f"1{row[0]}" for row in given.nodes}
            nodes = tuple((renamed[row[0]], *row[1:]) for row in given.nodes)
            edges = tuple((renamed[a], renamed[b]) for a, b in given.edges)
            given = replace(given, nodes=nodes, edges=edges)
        places = given.write(tmp_path / name)
        words[name] = [
            str(tmp_path / name / word) if word.endswith((".csv", ".toml")) else word
            for word in places
        ]
    method = recommended_method(level)
    quick = ["--level", level, "--epochs", "2", "--batch-size", "30"]
    # On tables this small no hop would be released, or its mixing weight would be 0.
    quick += ["--hop-share", "0.5"] if level == "node" else ["--folds", "0"]
    audit = ["audit", "pipeline", "--neighbours", "random", "--json"]
    assert main([*audit, "train", method, *words["train"], *quick]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["holds"]
    assert [one["neighbours"] for one in report["neighbours"]] == ["random"]
    model = str(tmp_path / "model")
    assert main(["train", method, *words["train"], *quick, "--out", model]) == 0
    capsys.readouterr()
    assert main([*audit, "predict", "--model", model, *words["predict"]]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["holds"], report["level"]) == (True, level)
    assert report["neighbours"][0]["releases"]
