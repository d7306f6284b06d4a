"""Weights, edge types and time windows on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path):
    """People of two teams who pay and call mostly their own."""
    rng = np.random.default_rng(3)
    team = rng.integers(0, 2, 80)
    rows = [f"{k},{rng.normal() + team[k]:.3f},{'red' if team[k] else 'blue'}" for k in range(80)]
    (tmp_path / "people.csv").write_text("id,age,team\n" + "\n".join(rows) + "\n")
    for name in ("payments", "calls"):
        lines = []
        for k in range(80):
            for other in rng.integers(0, 80, 4).tolist():
                if team[other] == team[k]:
                    lines.append(f"{k},{other},{rng.lognormal(3, 1):.2f},2024-{1 + k % 12:02d}-03")
        (tmp_path / f"{name}.csv").write_text("a,b,amount,day\n" + "\n".join(lines) + "\n")
    return ["--nodes", "people.csv", "--label", "team"]


WEIGHT = ["--weight", "amount", "--weight-bounds", "0", "100"]
TRAIN = ["--epochs", "2", "--device", "cpu", "--no-compare"]


def test_describe_shows_edge_types_weights_and_rows_left_out(gapgnn, files, tmp_path):
    with (tmp_path / "payments.csv").open("a") as file:
        file.write("1,2,much,2024-01-01\n3,4,5,then\n")
    edges = ["--edges", "calls.csv", "--edges", "money=payments.csv", *files]
    window = ["--time", "day", "--since", "2024-01-01", "--until", "2024-07-01"]
    code, out, err = gapgnn("describe", *edges, *WEIGHT, *window, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found["edge_types"]) == ["calls", "money"]
    assert found["edge_types"]["money"]["weights"]["high"] == 100
    assert (found["without_amount"], found["without_time"]) == (1, 1)
    assert found["outside"] > 100
    # Out-degrees are those over all edge types, as the arcs are.
    assert found["degree"]["mean"] == pytest.approx(found["arcs"] / found["nodes"])
    code, out, err = gapgnn("describe", *edges, *WEIGHT, *window)
    assert code == 0
    for text in ("money", "without a readable amount", "without a readable time", "outside"):
        assert text in out
    code, out, err = gapgnn("describe", "--edges", "calls.csv", *files)
    assert "calls.csv: not read: amount, day (see --weight and --time)" in err


def test_train_predict_and_the_card(gapgnn, files, tmp_path, ledger):
    edges = ["--edges", "calls.csv", "--edges", "payments.csv", *files, *WEIGHT]
    code, out, err = gapgnn("train", "label-gap", *edges, *TRAIN, "--out", "model", "--json")
    assert code == 0, err
    card = json.loads((tmp_path / "model" / "card.json").read_text())
    assert (card["edge_types"], card["protects"]) == (["calls", "payments"], "any")
    assert sum(event["count"] for event in card["events"]) == 8
    # The other way round they are the same tables, so the answer costs nothing.
    swapped = ["--edges", "payments.csv", "--edges", "calls.csv", *files, *WEIGHT]
    # The model remembers column and bounds.
    for words in (edges, swapped, edges[: -len(WEIGHT)]):
        code, out, err = gapgnn(
            "predict", "--model", "model", *words, "--out", "labels.csv", "--json"
        )
        assert (code, json.loads(out)["new_releases"]) == (0, 0), err
    for words, message in (
        (["--edges", "calls.csv", *files, *WEIGHT], "calls, payments. Got a single one."),
        ([*edges[:-1], "200"], "Got 0 to 200."),
    ):
        code, out, err = gapgnn("predict", "--model", "model", *words, "--out", "labels.csv")
        assert code == 2
        assert message in err.splitlines()[-1]


def test_a_store_of_several_weighted_edge_types(gapgnn, files, tmp_path):
    edges = ["--edges", "calls.csv", "--edges", "payments.csv", *files, *WEIGHT]
    code, out, _ = gapgnn("partition", *edges, "--parts", 3, "--out", "store", "--json")
    assert code == 0
    made = json.loads(out)
    assert (made["edge_types"], made["weighted"]) == (["calls", "payments"], True)
    seed = ["--insecure-noise-seed", "1"]
    runs = []
    for place, data in enumerate((edges, ["--store", "store"])):
        code, out, err = gapgnn(
            "train", "label-gap", *data, *TRAIN, *seed, "--out", f"model{place}", "--json"
        )
        assert code == 0, err
        runs.append(json.loads(out)["test_accuracy"])
    assert runs[0] == runs[1]


@pytest.mark.gate
def test_a_configuration_file_names_several_tables(gapgnn, files, tmp_path):
    (tmp_path / "run.toml").write_text(
        'edges = ["calls.csv", "payments.csv"]\nnodes = "people.csv"\nlabel = "team"\n'
        'weight = "amount"\nweight-bounds = [0, 100]\nepochs = 2\n'
    )
    options = ["--config", "run.toml", "--device", "cpu", "--json"]
    code, _, err = gapgnn("train", "label-gap", *options, "--out", "two")
    assert code == 0, err
    assert json.loads((tmp_path / "two" / "card.json").read_text())["edge_types"] != []
    # The command line wins, also where an option may be repeated.
    code, _, err = gapgnn("train", "label-gap", *options, "--edges", "calls.csv", "--out", "one")
    assert code == 0, err
    assert json.loads((tmp_path / "one" / "card.json").read_text())["edge_types"] == []


CALLS = ["--edges", "calls.csv"]
BOTH = [*CALLS, "--edges", "payments.csv"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*CALLS, "--weight", "amount"], "`--weight` must come with `--weight-bounds LOW HIGH`"),
        ([*CALLS, "--weight-bounds", "0", "1"], "Got 0 and 1."),
        ([*CALLS, "--weight", "sum", "--weight-bounds", "0", "1"], "`--weight` must be a column"),
        ([*CALLS, "--weight", "amount", "--weight-bounds", "5", "5"], "0 <= LOW < HIGH"),
        ([*CALLS, "--weight", "amount", "--weight-bounds", "-1", "5"], "0 <= LOW < HIGH"),
        ([*CALLS, "--weight", "amount", "--weight-bounds", "0", "inf"], "two finite numbers"),
        ([*CALLS, "--edges", "calls.csv"], "must name each edge type once. Got 'calls' twice"),
        ([*CALLS, "--edges", "=payments.csv"], "`--edges` must be FILE or NAME=FILE"),
        ([*CALLS, "--edges", "money=nowhere.csv"], "which is not there"),
        ([*BOTH, *WEIGHT, *WEIGHT], "must be TYPE=COLUMN where it is given several times"),
        ([*BOTH, "--weight", "walks=amount", "--weight-bounds", "0", "1"], "must be a column"),
        ([*CALLS, "--since", "2024-01-01"], "must come with `--time COLUMN`"),
        ([*CALLS, "--time", "day"], "`--time` must come with `--since` or `--until`"),
        (
            [*CALLS, "--time", "day", "--since", "soon"],
            "`--since` must be a date such as 2024",
        ),
        ([*CALLS, "--time", "date", "--since", "5"], "The columns are 'a', 'b', 'amount', 'day'."),
        (
            [*BOTH, "--level", "node", "--edge-types", "any"],
            "`--edge-types` must be auto or each at level node",
        ),
        ([*CALLS, "--edge-types", "all"], "must be one of auto, each, any. Got 'all'"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_charged(gapgnn, files, ledger, words, message):
    schema = ["--schema", "schema.toml"] if "node" in words else []
    if schema:
        gapgnn("schema", "--nodes", "people.csv", "--label", "team", "--out", "schema.toml")
    method = "gap" if "node" in words else "label-gap"
    code, out, err = gapgnn("train", method, *words, *files, *schema, *TRAIN, "--out", "model")
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not ledger.entries()


@pytest.mark.parametrize("words", [WEIGHT, ["--time", "day", "--since", "1"]])
def test_edge_options_want_an_edge_table(gapgnn, words):
    code, _, err = gapgnn("describe", *words)
    assert code == 2
    assert "must come with `--edges`" in err


def test_sage_and_attacks_on_links_say_what_they_cannot_read(gapgnn, files):
    both = [*BOTH, *files]
    code, _, err = gapgnn("train", "sage", *both, *TRAIN, "--out", "model")
    assert code == 2
    assert "must have one edge type for sage. Got calls, payments; use gap." in err
    words = ["--edges", "calls.csv", *files, *WEIGHT]
    code, _, err = gapgnn("train", "sage", *words, *TRAIN, "--out", "model")
    assert code == 2
    assert "must have edges without weights for sage" in err
    code, _, err = gapgnn("attack", "link-stealing", *both, "--epochs", "2", "--pairs", "20")
    assert code == 2
    assert "one edge type for an attack on links" in err
    code, _, err = gapgnn(
        "attack", "link-stealing", *words, "--epochs", "2", "--pairs", "20", "--json"
    )
    assert code == 0, err


GERMAN = ["--delimiter", "semicolon", "--decimal", ","]


@pytest.fixture
def spelled(files, tmp_path):
    """The same tables as a spreadsheet writes them, with a payment and a call to strangers."""
    for name in ("people", "payments", "calls"):
        path = tmp_path / f"{name}.csv"
        lines = path.read_text().splitlines()
        lines += [] if name == "people" else ["1,999,5.5,2024-01-03", "998,999,5.5,2024-01-03"]
        path.write_text("\n".join(lines).replace(",", ";").replace(".", ",") + "\n")
    return [*files, *GERMAN]


def test_spreadsheets_of_several_edge_types(gapgnn, spelled, tmp_path, ledger):
    """Dialect, strangers, amounts and a window at once; the model remembers all but the window."""
    edges = ["--edges", "calls.csv", "--edges", "payments.csv"]
    window = ["--time", "day", "--since", "2024-01-01", "--until", "2024-07-01"]
    words = [*edges, *spelled, *WEIGHT, *window, "--dangling", "drop"]
    code, out, err = gapgnn("describe", *words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["dropped_dangling"], found.get("without_amount")) == (4, None)
    assert 0.1 < found["edge_types"]["calls"]["weights"]["mean"] < 0.6
    assert [column["name"] for column in found["columns"]] == ["id", "age", "team"]
    code, out, err = gapgnn("describe", *words)
    assert code == 0
    for text in ("payments", "edges that name", "outside", "becomes"):
        assert text in out
    code, out, err = gapgnn("partition", *words, "--parts", 2, "--out", "store", "--json")
    made = json.loads(out)
    assert (made["dropped_dangling"], made["edge_types"]) == (4, ["calls", "payments"])
    assert made["outside"] == found["outside"]
    code, out, err = gapgnn("partition", *words, "--parts", 2, "--out", "second")
    assert "arcs of calls, payments in 2 parts" in " ".join(out.split())
    printed = " ".join(err.split())
    assert "For the curator only: left out" in printed
    assert f"For the curator only: {found['outside']:,} edges outside the window" in printed
    code, out, err = gapgnn("train", "label-gap", *words, *TRAIN, "--out", "model", "--json")
    assert code == 0, err
    # No count of edges stands beside the promise.
    assert not {"dropped_dangling", "outside"} & set(json.loads(out))
    assert "left out" not in err
    predict = ["predict", "--model", "model", *edges, "--nodes", "people.csv", "--out", "new.csv"]
    code, _, err = gapgnn(*predict)
    assert code == 2
    assert "`--since` or `--until` must say which window of `day`" in err
    code, out, err = gapgnn(*predict, *window[2:], "--json")
    assert (code, json.loads(out)["new_releases"]) == (0, 0), err


@pytest.mark.gate
def test_an_audit_of_a_model_that_remembers_its_spreadsheets(gapgnn, spelled, ledger):
    words = ["--edges", "calls.csv", *spelled, *WEIGHT, "--dangling", "drop"]
    code, _, err = gapgnn("train", "label-gap", *words, *TRAIN, "--out", "model", "--json")
    assert code == 0, err
    # Other tables of the same format; predictions on those of the training are not charged.
    data = ["--edges", "payments.csv", "--nodes", "people.csv"]
    pairs = ["--neighbours", "hub,amount-huge"]
    code, out, err = gapgnn("audit", "pipeline", *pairs, "predict", "--model", "model", *data)
    assert code == 0, out + err
    code, out, err = gapgnn("audit", "pipeline", *pairs, "train", "label-gap", *words, *TRAIN)
    assert code == 0, out + err


DECLARED = """\
[label]
column = "team"
classes = ["blue", "red"]

[weight]
column = "amount"
low = 0
high = 100

[columns.age]
type = "number"
low = -3
high = 5
"""


@pytest.fixture
def declared(files, tmp_path):
    (tmp_path / "schema.toml").write_text(DECLARED)
    return ["--nodes", "people.csv", "--schema", "schema.toml"]


class TestWeightOfASchema:
    """Bounds of amounts are declared once, where everything else is."""

    def test_weight_needs_no_bounds_again_and_the_model_knows_them(
        self, gapgnn, declared, tmp_path
    ):
        words = [*CALLS, *declared, "--weight", "amount"]
        code, _, err = gapgnn("train", "label-gap", *words, *TRAIN, "--out", "model", "--json")
        assert code == 0, err
        public = json.loads((tmp_path / "model" / "card.json").read_text())["public"]
        assert ["bounds of the amounts of edges", "0 to 100: declared"] in public
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        assert config["schema"]["weight"] == {"column": "amount", "low": 0, "high": 100}
        for known in ([], ["--weight", "amount"], WEIGHT):
            options = [*CALLS, "--nodes", "people.csv", *known, "--out", "labels.csv", "--json"]
            code, out, err = gapgnn("predict", "--model", "model", *options)
            assert (code, json.loads(out)["new_releases"]) == (0, 0), err

    def test_of_several_tables_one_may_be_weighed(self, gapgnn, declared):
        words = [*BOTH, *declared, "--weight", "payments=amount", "--json"]
        code, out, err = gapgnn("describe", *words)
        assert code == 0, err
        found = json.loads(out)["edge_types"]
        assert found["payments"]["weights"]["high"] == 100
        assert found["calls"]["weights"] is None

    def test_a_declaration_alone_weighs_nothing(self, gapgnn, declared):
        code, out, err = gapgnn("describe", *CALLS, *declared, "--json")
        assert (code, json.loads(out)["weights"]) == (0, None)
        assert "calls.csv: not read: amount, day" in err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ["--weight", "amount", "--weight-bounds", "0", "200"],
                "`--weight-bounds` must be those of the schema for 'amount', 0 to 100, or be left "
                "out. Got 0 to 200.",
            ),
            (["--weight", "day"], "`--weight` must come with `--weight-bounds`"),
        ],
    )
    def test_what_contradicts_the_schema_is_one_line(
        self, gapgnn, declared, ledger, words, message
    ):
        words = [*CALLS, *declared, *words, *TRAIN, "--out", "model"]
        code, out, err = gapgnn("train", "label-gap", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
        assert not ledger.entries()

    def test_bounds_may_be_said_again_if_they_are_the_same(self, gapgnn, declared):
        code, out, _ = gapgnn("describe", *CALLS, *declared, *WEIGHT, "--json")
        assert (code, json.loads(out)["weights"]["high"]) == (0, 100)

    def test_a_store_and_the_audit_of_the_pipeline_know_them(self, gapgnn, declared, tmp_path):
        words = [*CALLS, *declared, "--weight", "amount"]
        code, out, err = gapgnn("partition", *words, "--out", "store", "--json")
        assert (code, json.loads(out)["weighted"]) == (0, True), err
        pairs = ["--neighbours", "amount-huge", "--json"]
        code, out, err = gapgnn("audit", "pipeline", *pairs, "train", "label-gap", *words, *TRAIN)
        assert code == 0, err
        assert json.loads(out)["holds"]

    def test_bounds_are_proposed_from_an_edge_table(self, gapgnn, files, tmp_path):
        words = ["--nodes", "people.csv", "--label", "team", "--out", "draft.toml"]
        code, out, err = gapgnn("schema", *words, "--edges", "payments.csv", "--weight", "amount")
        assert code == 0, err
        assert "amounts of edges, 0 to " in out
        assert "About one in twenty amounts" in out
        options = ["--edges", "payments.csv", "--nodes", "people.csv", "--schema", "draft.toml"]
        code, out, err = gapgnn("describe", *options, "--weight", "amount", "--json")
        assert code == 0, err
        amounts = [float(line.split(",")[2]) for line in _lines(tmp_path / "payments.csv")]
        high = json.loads(out)["weights"]["high"]
        assert high not in amounts
        assert 0 < sum(amount > high for amount in amounts) < len(amounts) / 20
        code, _, err = gapgnn("schema", *words[:-1], "other.toml", "--weight", "amount")
        assert (code, err.count("\n")) == (2, 1)
        assert "`--weight` must come with `--edges`" in err


def _lines(path):
    return path.read_text().splitlines()[1:]
