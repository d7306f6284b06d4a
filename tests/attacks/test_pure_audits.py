"""Audits of releases without a delta, and of models with nothing but such releases.

Randomised labels, the noisy mean out-degree and randomised edges hold as shipped; with a planted
fault each audit says that the guarantee is broken. An audit that audits nothing fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gapgnn import MLP, GraphSAGE, Ledger, NeighborVote, NodeLabelGAP, load_model
from gapgnn.audits import (
    audit_edges,
    audit_labels,
    audit_mean_degree,
    audit_model,
    pure,
)
from gapgnn.audits import model as model_audit
from gapgnn.cli.main import main
from gapgnn.errors import InputError
from gapgnn.evaluation.report import write_model_page
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.transforms import random_split
from gapgnn.methods import keep_audit
from gapgnn.privacy import parse_relation
from gapgnn.privacy.accounting import Event, LabelResponse
from gapgnn.privacy.accounting.pairs import DiscretePair
from gapgnn.privacy.mechanisms import edges, labels, mean_degree
from gapgnn.privacy.mechanisms.noise import NoiseSource

gate = pytest.mark.gate

RELATIONS = ("add-remove", "replace")
both_relations = pytest.mark.parametrize("relation", RELATIONS)
LABELS = {"epsilon": 1.0, "classes": 3, "trials": 8_000}
DEGREE = {"epsilon": 1.0, "trials": 500}
# For what is counted and not guessed.
COUNTED = {"epsilon": 8.0, "trials": 40}
KEPT = "share of true labels that come out"
MOVED = "doublings that one record adds"


def broken_checks(report) -> set[str]:
    return {check.name for check in report.checks if not check.holds}


class TestLabels:
    @both_relations
    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_hold_and_the_bound_is_near_the_claim(self, relation, classes):
        report = audit_labels(relation=relation, **{**LABELS, "classes": classes})
        assert report.holds, report.sentence
        assert report.epsilon_claimed == pytest.approx(1.0)
        assert report.epsilon_lower_bound >= 0.7

    @both_relations
    def test_kept_as_if_half_of_them_were_exchanged(self, relation, monkeypatch):
        """Half the noise."""
        each = labels.Coins.each

        def half(self, count, share, *path):
            return each(self, count, share / 2 if path == ("at random",) else share, *path)

        monkeypatch.setattr(labels.Coins, "each", half)
        report = audit_labels(relation=relation, **LABELS)
        assert not report.holds
        assert not report.bound_holds
        assert KEPT in broken_checks(report)

    def test_people_without_a_label_who_keep_silent(self, monkeypatch):
        original = labels.randomised_labels

        def silent(given, speaks, *args, **options):
            return original(given, speaks & (given >= 0), *args, **options)

        monkeypatch.setattr(pure, "randomised_labels", silent)
        report = audit_labels(relation="add-remove", **LABELS)
        assert not report.bound_holds
        assert "people without a label who do not answer" in broken_checks(report)

    def test_people_without_a_label_who_all_say_the_same(self, monkeypatch):
        monkeypatch.setattr(
            labels, "_uniform", lambda coins, count, classes: np.zeros(count, np.int64)
        )
        report = audit_labels(relation="add-remove", **LABELS)
        assert "share of one class among people without a label" in broken_checks(report)

    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_the_distance_of_a_response_is_priced_at_its_epsilon(self, classes):
        response = LabelResponse.of(1.5, classes)
        distances = {
            "replace": response.keep - response.other,
            "add-remove": response.keep - 1 / classes,
        }
        for relation, distance in distances.items():
            price = pure._response_price(classes, parse_relation(relation))
            assert price(distance) == pytest.approx(1.5, rel=1e-9)

    def test_a_response_is_held_to_what_it_is_accounted_at(self):
        report = audit_labels(response=LabelResponse.of(3.0, 4), epsilon=9.0, trials=4_000)
        assert report.epsilon_claimed == pytest.approx(3.0)
        assert report.details["classes"] == 4


class TestMeanDegree:
    @gate
    @both_relations
    def test_holds_and_the_bound_is_near_the_claim(self, relation):
        report = audit_mean_degree(relation=relation, epsilon=1.0, trials=1_500)
        assert report.holds, report.sentence
        # More than four standard deviations under the mean of many audits, 0.82.
        assert report.epsilon_lower_bound >= 0.5

    @gate
    def test_a_tenth_of_the_noise(self, monkeypatch):
        original = NoiseSource.add_laplace
        monkeypatch.setattr(
            NoiseSource,
            "add_laplace",
            lambda self, values, scale, *path: original(self, values, scale / 10, *path),
        )
        report = audit_mean_degree(**DEGREE)
        assert not report.bound_holds
        # At the small epsilon that a model spends on it no coin can be guessed; noise is measured.
        tiny = audit_mean_degree(epsilon=0.01, trials=200)
        assert broken_checks(tiny) == {"accounted over measured scale of the noise"}

    def test_what_is_counted_holds_and_half_of_the_noise_is_measured(self, monkeypatch):
        assert broken_checks(audit_mean_degree(**COUNTED)) == set()
        original = NoiseSource.add_laplace
        monkeypatch.setattr(
            NoiseSource,
            "add_laplace",
            lambda self, values, scale, *path: original(self, values, scale / 2, *path),
        )
        found = broken_checks(audit_mean_degree(**COUNTED))
        assert found == {"accounted over measured scale of the noise"}

    def test_lists_that_are_not_clamped(self, monkeypatch):
        monkeypatch.setattr(mean_degree.np, "minimum", lambda values, most: values)
        assert MOVED in broken_checks(audit_mean_degree(**COUNTED))

    def test_the_exact_number_of_people(self, monkeypatch):
        """As if whoever is there were public: a record without neighbours moves the mean too."""
        original = mean_degree.noisy_mean_degree

        def exact(given, *, num_people, **options):
            return original(given, num_people=2 * len(given), **options)

        monkeypatch.setattr(pure, "noisy_mean_degree", exact)
        assert "doublings that a record without neighbours adds" in broken_checks(
            audit_mean_degree(**COUNTED)
        )


@gate
class TestEdges:
    @pytest.mark.parametrize(
        ("perturbation", "relation", "directed", "trials"),
        [
            *((one, "undirected", True, 2_000) for one in edges.PERTURBATIONS),
            *(
                pytest.param(one, relation, directed, 20_000, marks=pytest.mark.slow)
                for one in edges.PERTURBATIONS
                for relation, directed in (
                    ("undirected", True),
                    ("undirected", False),
                    ("directed", True),
                )
            ),
        ],
    )
    def test_hold_under_every_relation_and_direction(
        self, perturbation, relation, directed, trials
    ):
        options = {"perturbation": perturbation, "relation": relation, "directed": directed}
        report = audit_edges(epsilon=2.0, trials=trials, **options)
        assert report.holds, report.sentence
        assert report.details["directed"] == directed
        if trials > 10_000:
            # The numbers of LapGraph are read one statistic at a time.
            assert report.epsilon_lower_bound >= (0.2 if perturbation == "lapgraph" else 0.9)

    @pytest.mark.parametrize(
        ("perturbation", "trials", "is_measured"),
        [
            ("arr", 1_500, False),
            ("edgerand", 1_500, True),
            ("lapgraph", 1_500, False),
            pytest.param("arr", 20_000, True, marks=pytest.mark.slow),
        ],
    )
    def test_a_pair_of_arcs_that_pays_for_one_is_found(
        self, perturbation, trials, is_measured, monkeypatch
    ):
        """`undirected` on a graph with directions: each of two bits had the whole budget."""
        original = edges.Cells.of

        def one_bit(*args, **options):
            return replace(original(*args, **options), bits_per_edge=1)

        monkeypatch.setattr(edges.Cells, "of", one_bit)
        options = {"relation": "undirected", "directed": True, "epsilon": 2.0}
        report = audit_edges(perturbation=perturbation, trials=trials, **options)
        assert "bits that one edge changes" in broken_checks(report)
        assert not (report.bound_holds and is_measured)

    def test_one_arc_has_no_meaning_without_directions(self):
        with pytest.raises(InputError, match="`directed` must be True or left out"):
            audit_edges(relation="directed", directed=False)


@pytest.fixture(scope="module")
def graph():
    return random_split(social_graph(num_nodes=300, mean_degree=10, num_classes=3), seed=0)


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    path = Ledger.init(tmp_path / "ledger.sqlite").path
    monkeypatch.setenv("GAPGNN_LEDGER", str(path))
    return path


def saved(model, graph, ledger, folder):
    model.set_params(ledger=ledger).fit(graph).save(folder)
    return folder


EDGES = ["edges", "prediction"]


class TestModels:
    @pytest.mark.parametrize(
        ("model", "mechanisms"),
        [
            (NeighborVote(level="node", epsilon=2.0), ["labels"]),
            (NeighborVote(level="node", epsilon=2.0, relation="replace"), ["labels"]),
            *(
                pytest.param(model, found, marks=gate)
                for model, found in (
                    (GraphSAGE(epsilon=4.0, epochs=1, perturbation="lapgraph"), EDGES),
                    (GraphSAGE(epsilon=4.0, epochs=1, perturbation="arr"), EDGES),
                    # Of so few people no hop is released of this budget, however long lists are
                    # said to be.
                    (NodeLabelGAP(epsilon=0.5, epochs=1), ["mean degree", "dpsgd"]),
                )
            ),
        ],
        ids=lambda value: value if isinstance(value, list) else type(value).__name__,
    )
    def test_every_event_of_ours_has_an_audit(self, graph, ledger, model, mechanisms):
        model.set_params(ledger=ledger).fit(graph)
        assert model_audit.events_without_audit(model) == ()
        found = audit_model(model, trials=500)
        assert [audit["mechanism"] for audit in found] == mechanisms
        assert all(audit["holds"] for audit in found)

    @gate
    def test_a_vote_at_node_level_is_audited_from_its_folder(self, graph, ledger, tmp_path, capsys):
        folder = saved(NeighborVote(level="node", epsilon=2.0), graph, ledger, tmp_path / "vote")
        assert main(["audit", "--model", str(folder), "--trials", "2000"]) == 0
        assert "labels" in capsys.readouterr().out
        page = write_model_page(folder, ledger=ledger).read_text()
        assert "no violation found" in page

    def test_a_vote_with_half_the_noise_is_found_from_its_folder(
        self, graph, ledger, tmp_path, capsys, monkeypatch
    ):
        folder = saved(NeighborVote(level="node", epsilon=1.0), graph, ledger, tmp_path / "vote")
        each = labels.Coins.each
        monkeypatch.setattr(
            labels.Coins,
            "each",
            lambda self, count, share, *path: each(
                self, count, share / 2 if path == ("at random",) else share, *path
            ),
        )
        assert main(["audit", "--model", str(folder), "--trials", "2000"]) == 1
        assert "guarantee of this model is broken: labels" in capsys.readouterr().err
        assert "no violation found" not in write_model_page(folder, ledger=ledger).read_text()

    @gate
    def test_sage_on_a_graph_with_directions_is_audited_by_pairs_of_arcs(self, ledger):
        arcs = social_graph(num_nodes=200, mean_degree=8, num_classes=2)
        from methodgraphs import with_arcs

        directed = with_arcs(arcs, np.arange(arcs.num_arcs) % 3 > 0, directed=True)
        graph = random_split(directed, seed=0)
        options = {"relation": "undirected", "epsilon": 4.0, "epochs": 1, "ledger": ledger}
        model = GraphSAGE(**options).fit(graph)
        found = audit_model(model, trials=500)[0]
        assert (found["mechanism"], found["relation"], found["directed"]) == (
            *("edges", "undirected"),
            True,
        )


@dataclass(frozen=True)
class Questionnaire(Event):
    """An event of somebody else's method."""

    epsilon: float
    times: int = 1
    label: str = ""

    def pair(self, relation):
        return DiscretePair.of_pure(self.epsilon)


class TestNothingAudited:
    """An audit that audits nothing fails, and a page never calls that good news."""

    def test_a_model_whose_events_have_no_audit_is_one_line(
        self, graph, ledger, tmp_path, monkeypatch
    ):
        folder = saved(NeighborVote(level="node", epsilon=2.0), graph, ledger, tmp_path / "vote")
        monkeypatch.setattr(model_audit, "_is_audited", lambda estimator, event: False)
        with pytest.raises(InputError, match=r"an audit covers.*LabelResponse \(labels\) alone"):
            main(["audit", "--model", str(folder)])
        page = write_model_page(folder, ledger=ledger).read_text()
        assert "no violation found" not in page
        assert "None was run." in page

    @gate
    def test_a_model_with_one_event_without_an_audit_fails_and_names_it(
        self, graph, ledger, tmp_path, monkeypatch, capsys
    ):
        folder = saved(MLP(level="node", epsilon=4.0, epochs=1), graph, ledger, tmp_path / "mlp")
        whole = load_model(folder)
        events = (*whole.card_.events, Questionnaire(1e-6, label="asked").to_dict())
        whole.card_ = replace(whole.card_, events=events)
        monkeypatch.setattr("gapgnn.methods.load_model", lambda folder: whole)
        assert main(["audit", "--model", str(folder), "--trials", "400", "--json"]) == 1
        printed = capsys.readouterr()
        assert "Not audited, as there is no audit of it: Questionnaire (asked)." in printed.err
        answer = json.loads(printed.out)
        assert answer["holds"] is False
        assert answer["without_audit"] == ["Questionnaire (asked)"]

    def test_an_empty_list_of_results_is_no_good_news_on_the_page(self, graph, ledger, tmp_path):
        """As versions before kept it of a vote."""
        folder = saved(NeighborVote(level="node", epsilon=2.0), graph, ledger, tmp_path / "vote")
        keep_audit(folder, audit="mechanisms", command="gapgnn audit --model vote", results=[])
        page = write_model_page(folder, ledger=ledger).read_text()
        assert "nothing was audited" in page
        assert "no violation found" not in page

    @gate
    def test_a_pipeline_audit_without_a_pair_is_one_line(self, tmp_path, monkeypatch):
        from gapgnn import audits
        from gapgnn.audits import Outcome

        skipped = [Outcome("strict", "nobody", skipped="the card does not claim it")]
        monkeypatch.setattr(audits, "audit_pipeline", lambda *args, **options: skipped)
        with pytest.raises(InputError, match="so nothing was audited"):
            main(["audit", "pipeline", "train", "mlp", "--level", "node", "--epochs", "1"])
