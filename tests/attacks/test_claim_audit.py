"""The audit of a program that is not ours: mistakes are caught, honest programs pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gapgnn.audits import audit_claim
from gapgnn.audits import claim as claims
from gapgnn.audits.claim_graphs import canary_graph, neighbours
from gapgnn.cli.main import main
from gapgnn.errors import DataError, InputError

pytestmark = pytest.mark.gate

FOLDER = Path(__file__).parents[2] / "examples" / "claims"
HONEST = ("honest_gradients", "honest_hops")
BY_CANARIES = (
    "labels_without_noise",
    "last_sampling_rate",
    "noise_in_first_hop_only",
    "pretrained_on_labels",
    "shared_noise",
)
BY_NEIGHBOURS = ("cap_from_degrees", "private_maximum")


# Runs a program as it stands, with noise that follows from the seed of the graph and its number.
SEEDED = """
import itertools, json, runpy, sys
from pathlib import Path
import numpy as np

fresh, drawn = np.random.default_rng, itertools.count()
script, given, _ = sys.argv[1:]
seed = json.loads((Path(given) / "graph.json").read_text())["seed"]
np.random.default_rng = lambda: fresh([seed, next(drawn)])
sys.argv.pop(0)
sys.path.insert(0, str(Path(script).parent))
runpy.run_path(script, run_name="__main__")
"""


def program(name: str) -> list[str]:
    return [sys.executable, "-c", SEEDED, str(FOLDER / f"{name}.py")]


def test_every_program_of_the_folder_is_audited():
    names = {path.stem for path in FOLDER.glob("*.py")} - {"graph_folder"}
    assert names == {*HONEST, *BY_CANARIES, *BY_NEIGHBOURS}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BY_CANARIES, *BY_NEIGHBOURS])
def test_a_mistake_is_caught(name):
    report = audit_claim(program(name))
    assert not report.holds
    assert report.epsilon_lower_bound > report.epsilon_claimed
    best = max(report.details["bounds"], key=report.details["bounds"].__getitem__)
    assert best.startswith("canaries" if name in BY_CANARIES else "neighbours")
    assert "broken" in report.sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(name):
    report = audit_claim(program(name))
    assert report.holds, report.sentence
    assert len(report.details["bounds"]) == (6 if name == "honest_hops" else 7)


# A program in a few lines, so that tests need not start one a hundred times ---------------------


class Inside(claims.Program):
    """Stands for a program: a function from a graph to arrays, with noise of the run's seed."""

    release = staticmethod(lambda graph, rng: graph.features)

    def run(self, graph, seed):
        rng = np.random.default_rng(seed)
        arrays = {"released": np.asarray(type(self).release(graph, rng))}
        stated = {"epsilon": 1.0, "delta": 1e-6, "relation": type(self).relation}
        return claims.Output(arrays, stated)


def played(monkeypatch, release, relation="undirected", **options):
    attributes = {"release": staticmethod(release), "relation": relation}
    monkeypatch.setattr(claims, "Program", type("Played", (Inside,), attributes))
    return audit_claim(["nothing"], **options)


def sums(graph):
    found = np.zeros_like(graph.features, dtype=np.float64)
    np.add.at(found, graph.edges[:, 1], graph.features[graph.edges[:, 0]])
    if not graph.directed:
        np.add.at(found, graph.edges[:, 0], graph.features[graph.edges[:, 1]])
    return found


@pytest.mark.parametrize("relation", ["undirected", "directed", "add-remove"])
def test_noise_that_hides_everything_passes_every_game(monkeypatch, relation):
    report = played(
        monkeypatch, lambda g, rng: sums(g) + rng.normal(scale=50, size=g.features.shape), relation
    )
    assert report.holds
    assert report.epsilon_lower_bound < 0.5


@pytest.mark.parametrize("relation", ["undirected", "directed", "add-remove"])
def test_sums_without_noise_are_caught(monkeypatch, relation):
    report = played(monkeypatch, lambda g, rng: sums(g), relation)
    assert not report.holds


@pytest.mark.parametrize(
    ("statistic", "pair"),
    [
        (lambda d: max(d.max(), 1), "largest degree"),
        (lambda d: max(np.median(d), 0.5), "median degree"),
        (lambda d: max(int(np.quantile(d, 0.9)), 1), "upper tenth"),
        (lambda d: max(int(np.quantile(d, 0.95)), 1), "upper twentieth"),
    ],
)
@pytest.mark.parametrize("relation", ["undirected", "add-remove"])
def test_noise_scaled_to_a_private_statistic_is_caught(monkeypatch, relation, statistic, pair):
    def release(graph, rng):
        ends = graph.edges[:, 0] if graph.directed else graph.edges.ravel()
        degrees = np.bincount(ends, minlength=len(graph.labels))
        return rng.normal(scale=20 * statistic(degrees), size=graph.features.shape)

    few = {"canaries": 40, "canary_runs": 2}
    report = played(monkeypatch, release, relation, **few)
    assert not report.holds
    assert report.details["bounds"][f"neighbours: {pair}"] > 1


def test_a_number_of_the_claim_that_is_private_is_caught(monkeypatch):
    class Telling(Inside):
        relation = "undirected"

        def run(self, graph, seed):
            noise = np.random.default_rng(seed).normal(scale=50, size=graph.features.shape)
            stated = {"epsilon": 1.0, "delta": 1e-6, "relation": "undirected"}
            return claims.Output({"released": noise}, {**stated, "edges": len(graph.edges)})

    monkeypatch.setattr(claims, "Program", Telling)
    assert not audit_claim(["nothing"], canaries=40, canary_runs=2).holds


@pytest.mark.parametrize("level", ["edge", "node"])
def test_neighbours_differ_in_one_edge_or_record(level):
    for _, with_it, without in neighbours(level, directed=level == "node"):
        if level == "edge":
            assert len(with_it.edges) == len(without.edges) + 1
            assert (with_it.edges[:-1] == without.edges).all()
            assert (with_it.features == without.features).all()
        else:
            moved = (with_it.features != without.features).any(axis=1)
            assert moved.sum() == 1
            kept = with_it.edges[~moved[with_it.edges[:, 0]]]
            assert (kept == without.edges).all()


def test_canaries_are_in_where_the_coin_says_so():
    rng = np.random.default_rng(0)
    coins = rng.random(50) < 0.5
    edges = canary_graph(coins, rng, level="edge", directed=False)
    linked = np.isin(edges.nodes[:, 0], edges.graph.edges[:, 0])
    assert linked.tolist() == coins.tolist()
    records = canary_graph(coins, rng, level="node", directed=True)
    assert (records.graph.features[records.nodes[:, 0]].any(axis=1) == coins).all()
    assert (records.graph.train[records.nodes[:, 0]] == coins).all()


# The contract ---------------------------------------------------------------------------------


def script(tmp_path, body: str) -> list[str]:
    path = tmp_path / "program.py"
    head = "import json, sys, numpy as np\nfrom pathlib import Path\nout = Path(sys.argv[2])\n"
    path.write_text(head + body)
    return [sys.executable, str(path)]


CLAIM = "(out / 'claim.json').write_text(json.dumps({claim}))\n"
GOOD = CLAIM.format(claim={"epsilon": 1, "delta": 1e-6, "relation": "undirected"})


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("sys.exit('no memory')", InputError, "exit code 0. Got 1: no memory"),
        ("", DataError, "must write claim.json"),
        (CLAIM.format(claim={"epsilon": 1}), DataError, "must write .npy or .safetensors"),
        (
            CLAIM.format(claim={"epsilon": 1}) + "np.save(out / 'a.npy', np.eye(2))",
            DataError,
            "claim.json must state delta, relation",
        ),
        (
            CLAIM.format(claim={"epsilon": 1, "delta": 0, "relation": "edges"})
            + "np.save(out / 'a.npy', np.eye(2))",
            DataError,
            "a relation of undirected, directed, add-remove",
        ),
        (GOOD + "np.save(out / 'a.npy', np.eye(3, 2))", DataError, "a row for each node"),
        (GOOD + "(out / 'a.npy').write_text('x')", DataError, "a.npy must hold arrays"),
    ],
)
def test_a_program_that_breaks_the_contract_is_named_in_one_line(tmp_path, body, error, message):
    with pytest.raises(error, match=message):
        audit_claim(script(tmp_path, body))


def test_the_command_prints_one_json_object(capsys, tmp_path):
    body = (
        GOOD
        + """
given = Path(sys.argv[1])
rows = np.load(given / "features.npy")
ends = np.loadtxt(given / "edges.csv", delimiter=",", skiprows=1, dtype=int, ndmin=2).reshape(-1, 2)
sums = np.zeros_like(rows)
np.add.at(sums, ends[:, 0], rows[ends[:, 1]])
np.add.at(sums, ends[:, 1], rows[ends[:, 0]])
np.save(out / "sums.npy", sums)
"""
    )
    words = ["--canaries", "100", "--canary-runs", "2", "--json", "--"]
    assert main(["audit", "claim", *words, *script(tmp_path, body)]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["mechanism"], found["holds"], found["relation"]) == ("claim", False, "undirected")
    assert "broken" in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`command` must name a program"),
        (["no-such-program"], "a program that can be run"),
        (["--runs", "2", "true"], "`--runs` must be at least"),
    ],
)
def test_bad_words_are_one_line(words, message):
    with pytest.raises(InputError, match=message):
        main(["audit", "claim", *words])
