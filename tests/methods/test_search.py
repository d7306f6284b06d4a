"""Hyperparameters chosen inside the budget: what is free, what is charged, what stays secret."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from methodgraphs import small_graph

from gapgnn import (
    GAP,
    MLP,
    Checkpoint,
    GraphSAGE,
    InputError,
    LabelGAP,
    NodeLabelGAP,
    PrivacyError,
    PrivateSearchCV,
    load_model,
)
from gapgnn.accounting import Event, Gaussian, PrivateSelection, epsilon
from gapgnn.methods import search_run
from gapgnn.methods.search_run import Winner
from gapgnn.privacy import (
    SCORE,
    SELECTION,
    SelectionSession,
    SessionOptions,
    observed_by,
    selection_plan,
)
from gapgnn.privacy.accounting import CandidateNumber
from gapgnn.rng import NoiseKey

GRAPH = small_graph(num_nodes=200)
HOPS = {"hops": [1, 2]}


def gap(ledger, **params):
    given = {"epsilon": 2.0, "epochs": 2, "hidden": 4, "ledger": ledger.path, "seed": 1}
    return GAP(**{**given, **params})


def selecting(model, grid, **more):
    return PrivateSearchCV(model, grid, strategy="selection", **more)


class Seen:
    """An observer that keeps what is released and, given outputs, answers with them."""

    def __init__(self, outputs=None):
        self.values, self.outputs, self.scales = {}, outputs or {}, {}
        self.order = []

    def begin(self, purpose, *, ids, relation):
        pass

    def release(self, release, output):
        name = (release.name, self.order.count(release.name))
        self.order.append(release.name)
        self.values[name] = np.array(release.value)
        self.scales[name] = release.scale
        return self.outputs.setdefault(name, output)

    def batch(self, phase, batch, members):
        return batch


class TestWhatIsFree:
    """What acts after the last release alone is compared on one release."""

    @pytest.mark.parametrize(
        ("make", "values"),
        [
            (GAP, {"base_layers": 2, "head_layers": 2, "combine": "sum", "threshold": None}),
            (
                lambda **more: GAP(**{**more, "encoder_layers": 0}),
                {"hidden": 6, "epochs": 3, "activation": "relu", "dropout": 0.3, "optimizer": "sgd"}
                | {"learning_rate": 0.1, "weight_decay": 0.1, "class_weight": "balanced"}
                | {"batch_size": 50, "batch_norm": False, "metric": "macro_f1"},
            ),
            (LabelGAP, {"class_weight": "balanced"}),
        ],
        ids=["gap", "gap without an encoder", "label-gap"],
    )
    def test_a_parameter_that_is_free_changes_no_value_of_a_release(self, ledger, make, values):
        shared = {"epsilon": 2.0, "epochs": 2, "hidden": 4, "ledger": ledger.path}
        first = Seen()
        with observed_by(first):
            model = make(**shared).fit(GRAPH)
        assert first.values
        assert set(values) <= model.after_release()
        for name, value in values.items():
            other = Seen(first.outputs)
            with observed_by(other):
                make(**{**shared, name: value}).fit(GRAPH)
            assert other.values.keys() == first.values.keys(), name
            for key, known in first.values.items():
                np.testing.assert_array_equal(other.values[key], known, err_msg=name)

    def test_what_an_encoder_is_trained_with_is_not_free(self, ledger):
        search = PrivateSearchCV(gap(ledger), {"hidden": [4, 6]}).plan_for(GRAPH)
        assert len(search.releases) == 2

    def test_all_settings_of_one_release_cost_one_fit_and_draw_noise_once(self, ledger, spied):
        model = gap(ledger)
        search = PrivateSearchCV(model, {"combine": ["sum", "concat"], "head_layers": [1, 2]})
        search.fit(GRAPH)
        assert len(spied) == 2  # hops
        (charge,) = ledger.entries()
        assert charge.epsilon == model.guarantee(GRAPH).epsilon
        assert [event["event"] for event in charge.events] == ["Gaussian"]
        assert None not in search.cv_results_["score"]
        assert search.best_score_ == max(search.cv_results_["score"])
        assert search.cv_results_["release"] == [0] * 4

    def test_features_alone_are_free(self, ledger):
        model = MLP(level="edge", epochs=2, ledger=ledger.path)
        search = PrivateSearchCV(model, {"hidden": [4, 8]}).fit(GRAPH)
        assert ledger.entries() == []
        assert search.card_.epsilon == 0

    def test_the_plan_says_which_parameters_are_free(self, ledger):
        text = str(
            PrivateSearchCV(gap(ledger), {**HOPS, "combine": ["sum", "max"]}).plan_for(GRAPH)
        )
        assert "compared without a further charge: combine\n" in text
        assert "asking the graph again: hops\n" in text
        assert ledger.entries() == []

    def test_at_node_level_nothing_is_free(self, ledger):
        model = gap(ledger, level="node", max_degree=5)
        assert (
            len(PrivateSearchCV(model, {"combine": ["sum", "concat"]}).plan_for(GRAPH).releases)
            == 2
        )


class TestThePrice:
    def test_the_whole_search_costs_at_most_the_budget_in_one_charge(self, ledger):
        search = selecting(gap(ledger), HOPS, mean=5).fit(GRAPH)
        (charge,) = ledger.entries()
        (event,) = charge.events
        selection = PrivateSelection.from_dict(dict(event))
        assert selection.number == CandidateNumber.geometric(5.0)
        assert 0.99 * 2.0 <= charge.epsilon <= 2.0
        assert epsilon([selection], charge.delta, relation="undirected") <= charge.epsilon
        assert search.card_.epsilon == search.card_.composed_epsilon == charge.epsilon
        # A candidate alone costs less: its charge would not cover the choice.
        alone = [epsilon(list(one), charge.delta) for one in selection.candidates]
        assert max(alone) < 0.9 * charge.epsilon

    def test_noise_is_that_of_the_candidates_budget_in_every_candidate(self, ledger, spied):
        search = selecting(gap(ledger, insecure_noise_seed=4), HOPS, mean=5).fit(GRAPH)
        paid = {
            event.noise_multiplier * 2**0.5
            for plan in search.search_.plans
            for event in plan.promise.events
        }
        assert len(spied) > 2
        assert all(min(abs(std / one - 1) for one in paid) < 1e-6 for std, _ in spied)

    def test_what_fails_before_the_charge_charges_nothing(self, ledger):
        for make, message in [
            (lambda: PrivateSearchCV(gap(ledger), {"epsilon": [1, 2]}), "leave out epsilon"),
            (
                lambda: PrivateSearchCV(gap(ledger), {"hobs": [1, 2]}),
                "parameters of gap",
            ),
            (lambda: PrivateSearchCV(gap(ledger), {"hops": [1]}), "two settings or more"),
            (lambda: PrivateSearchCV(gap(ledger), {"hops": [0, 1]}), "`hops` must be at least 1"),
            (lambda: PrivateSearchCV(gap(ledger, level="none", epsilon=1.0), HOPS), "edge or node"),
            (lambda: PrivateSearchCV(gap(ledger, repeats=2), HOPS), "`repeats` must be 1"),
            (lambda: selecting(gap(ledger), HOPS, number="poisson", mean=2), "no candidate"),
            (
                lambda: selecting(gap(ledger), HOPS, number="binomial"),
                "`shape` must be",
            ),
            (
                lambda: PrivateSearchCV(
                    GAP(ledger=ledger.path), {"method": ["gap", "mlp"], "hidden": [4]}
                ),
                "reads no private data",
            ),
        ]:
            with pytest.raises(InputError, match=message):
                make().fit(GRAPH)
        sage = GraphSAGE(level="node", epsilon=8.0, ledger=ledger.path)
        with pytest.raises(InputError, match="read no other record"):
            PrivateSearchCV(sage, {"hidden": [4, 8]}).fit(GRAPH)
        assert ledger.entries() == []

    @pytest.mark.parametrize(
        "name",
        [
            *("level", "epsilon", "delta", "relation", "noise", "insecure_noise_seed", "device"),
            *("ledger", "reason", "train_size", "repeats", "split", "seed", "notion"),
        ],
    )
    def test_what_candidates_must_have_in_common_is_in_no_grid(self, ledger, name):
        with pytest.raises(InputError, match=f"must leave out {name}, which"):
            PrivateSearchCV(gap(ledger), {name: [1, 2]}).check()

    def test_a_part_of_the_budget_that_is_too_small_to_fit_with_charges_nothing(self, ledger):
        model = gap(ledger, epsilon=0.1)
        search = PrivateSearchCV(model, HOPS, strategy="pilots", pilot_share=1e-10)
        with pytest.raises(InputError, match="must leave each pilot at least 1e-06"):
            search.fit(GRAPH)
        assert ledger.entries() == []

    def test_a_search_that_was_charged_for_one_candidate_runs_none_beside_it(self, ledger):
        """The planted fault: the plan of one fit, and a candidate of another one."""
        plan = gap(ledger).plan_for(GRAPH)
        session = SelectionSession(plan, GRAPH, SessionOptions(ledger=ledger.path))
        with session:
            session.candidate(0, plan, GRAPH)
            for number, other in ((1, plan), (0, gap(ledger, hops=3).plan_for(GRAPH))):
                with pytest.raises(PrivacyError, match="that the search was charged for"):
                    session.candidate(number, other, GRAPH)

    def test_no_more_candidates_run_than_were_drawn(self, ledger):
        plan, session = opened(ledger, seed=0)
        with session:
            drawn = session.draw_candidates()
            with pytest.raises(PrivacyError, match="more than were drawn"):
                session.candidate(len(drawn), plan, GRAPH)


def opened(ledger, *, seed, mean=3.0):
    plan = gap(ledger, epsilon=1.0).plan_for(GRAPH)
    other = gap(ledger, epsilon=1.0, hops=1).plan_for(GRAPH)
    whole = selection_plan(
        [plan, other], CandidateNumber.geometric(mean), method="test", budget=2.0, delta="auto"
    )
    key = NoiseKey.fresh() if seed is None else NoiseKey.insecure(seed)
    return plan, SelectionSession(whole, GRAPH, SessionOptions(keys=[key], ledger=ledger.path))


class TestTheNumber:
    """It is drawn from the noise key, and shown to nobody."""

    def test_it_is_random_and_so_are_the_settings(self, ledger):
        """40 runs by seed: a geometric number of mean 3, and two settings alike."""
        numbers, settings = [], Counter()
        for seed in range(40):
            _, session = opened(ledger, seed=seed)
            with session:
                drawn = session.draw_candidates()
            numbers.append(len(drawn))
            settings.update(drawn)
        assert 8 <= Counter(numbers)[1] <= 20
        assert 2.0 < np.mean(numbers) < 4.2
        assert max(numbers) > 6
        assert 0.35 < settings[0] / settings.total() < 0.65

    def test_it_does_not_follow_from_public_seeds(self, ledger):
        """Numbers differ, and settings are no beginnings of one sequence: by chance below 1e-16."""
        drawn = []
        for _ in range(12):
            _, session = opened(ledger, seed=None, mean=30.0)
            with session:
                drawn.append(session.draw_candidates())
        longest = max(drawn, key=len)
        assert len({len(candidates) for candidates in drawn}) > 1
        assert any(candidates != longest[: len(candidates)] for candidates in drawn)

    def test_nothing_of_other_candidates_is_kept_printed_or_written(self, ledger, tmp_path, capfd):
        model = gap(ledger, insecure_noise_seed=4)
        search = selecting(model, HOPS, mean=5)
        shown = []

        class Shows:
            def start(self, phase, total):
                shown.append(phase)

            def advance(self, phase, *, loss=None, accuracy=None):
                shown.append(phase)

            def quote(self, price):
                shown.append(price)

        unfinished = tmp_path / "model.unfinished"
        checkpoint = Checkpoint(unfinished, ledger=ledger.path)
        search.fit(GRAPH, callback=Shows(), checkpoint=checkpoint)
        checkpoint.remove()
        assert len(shown) == 1
        assert "charged epsilon" in shown[0]
        printed = "".join(capfd.readouterr())
        assert "accuracy" not in printed
        release = search.cv_results_["release"]
        for number, score in enumerate(search.cv_results_["score"]):
            assert (score is None) == (release[number] != release[search.best_index_])
        search.best_estimator_.save(tmp_path / "model")
        assert not unfinished.exists()
        assert len(list((tmp_path / "model" / "hops").glob("*.safetensors"))) == 1
        written = (tmp_path / "model" / "config.json").read_text()
        assert "candidate-" not in written
        assert not {"_opens", "_drawn_settings"} & set(vars(search.best_estimator_))

    def test_scores_of_a_candidate_that_was_overtaken_are_not_kept(self, monkeypatch):
        search = SimpleNamespace(pilots=(), plans=(), releases=((0, 1), (2,)))
        session = SimpleNamespace(draw_candidates=lambda: (0, 1, 0))

        def run(self, graph, group):
            score = 0.9 if self.number == 1 else 0.1
            return Winner(group[0], None, score, dict.fromkeys(group, score))

        monkeypatch.setattr(search_run.Candidate, "run", run)
        assert search_run.run_search(search, GRAPH, session).shown == {2: 0.9}


class TestTheWinner:
    def test_its_card_and_folder_state_the_price_of_the_search(self, ledger, tmp_path):
        search = selecting(gap(ledger), HOPS, mean=5).fit(GRAPH)
        search.best_estimator_.save(tmp_path / "model")
        model = load_model(tmp_path / "model", ledger=ledger.path)
        np.testing.assert_array_equal(model.predict(GRAPH), search.predict(GRAPH))
        card = json.loads((tmp_path / "model" / "card.json").read_text())
        (event,) = card["releases"][0]["events"]
        assert event["event"] == "PrivateSelection"
        assert card["epsilon"] == ledger.entries()[0].epsilon
        assert any("best of a random number of candidates" in text for text in card["warnings"])
        assert card["attacker"]["mu"] is None
        assert card["rdp_epsilon"] >= card["epsilon"]
        # Its own noise is what a prediction on another graph repeats.
        (hops,) = [event for event in card["events"] if event["event"] == "Gaussian"]
        assert model.prediction_guarantee(small_graph(num_nodes=150, seed=3)).epsilon < 2.0
        assert hops["noise_multiplier"] == model.plan_.promise.events[0].noise_multiplier

    def test_a_tampered_price_is_found(self, ledger, tmp_path):
        search = selecting(gap(ledger), HOPS, mean=5).fit(GRAPH)
        events = [event.to_dict() for event in search.best_estimator_.plan_.promise.events]
        assert search.card_.releases[0].events[0] != events[0]
        assert search.best_estimator_.epsilon == 2.0

    def test_methods_can_be_candidates(self, ledger):
        grid = [{"method": ["gap"], "hops": [1]}, {"method": ["label-gap"], "hops": [1]}]
        search = selecting(gap(ledger), grid, mean=1.2).fit(GRAPH)
        assert search.best_params_["method"] == search.best_estimator_.method
        assert ledger.entries()[0].purpose == "a selection of gap and label-gap fit"


class TestPilots:
    """One pilot for each setting and a fit with the best one: a composition, charged once."""

    def test_pilots_and_the_fit_cost_the_budget_together(self, ledger, spied):
        search = PrivateSearchCV(gap(ledger), {**HOPS, "combine": ["sum", "concat"]}).fit(GRAPH)
        (charge,) = ledger.entries()
        events = [Event.from_dict(dict(event)) for event in charge.events]
        assert 0.995 * 2.0 <= charge.epsilon <= 2.0
        squares = dict.fromkeys((1, 2), 0.0)
        for event in events:
            for option in squares:
                if event.option in (0, option):
                    squares[option] += event.count / event.noise_multiplier**2
        dearest = Gaussian(1 / max(squares.values()) ** 0.5)
        exact = epsilon([dearest], charge.delta, relation="undirected")
        assert charge.epsilon == pytest.approx(exact, rel=1e-9)
        # Two pilots of 1 and 2 hops, and the fit.
        assert len(spied) == 1 + 2 + search.best_estimator_.hops
        assert None not in search.cv_results_["score"]
        assert search.card_.epsilon == charge.epsilon
        assert any("by a pilot of each" in text for text in search.card_.warnings)

    def test_the_fit_gets_nearly_all_of_the_budget(self, ledger):
        alone = gap(ledger, hops=2).plan_for(GRAPH).promise.noise_multiplier
        search = PrivateSearchCV(gap(ledger), HOPS).plan_for(GRAPH)
        assert 1 < search.plans[1].promise.noise_multiplier / alone < 1.03

    def test_the_winner_can_be_saved_and_read(self, ledger, tmp_path):
        search = PrivateSearchCV(gap(ledger), HOPS).fit(GRAPH)
        search.best_estimator_.save(tmp_path / "model")
        model = load_model(tmp_path / "model", ledger=ledger.path)
        np.testing.assert_array_equal(model.predict(GRAPH), search.predict(GRAPH))

    def test_no_pilot_and_no_fit_is_made_twice(self, ledger):
        search = PrivateSearchCV(gap(ledger), HOPS).plan_for(GRAPH)
        session = SelectionSession(search.plan, GRAPH, SessionOptions(ledger=ledger.path))
        with session:
            session.candidate(2, search.plans[0], GRAPH)
            with session.candidate(0, search.pilots[0], GRAPH) as pilot:
                rows = torch.ones(GRAPH.num_nodes, 2) / 2
                first = pilot.release("aggregation", rows)[0]
            # Opened again it has the same rows, not other ones with the same noise.
            with session.candidate(0, search.pilots[0], GRAPH) as again:
                torch.testing.assert_close(again.release("aggregation", -rows)[0], first)
            for number, plan in (
                (0, search.plans[0]),
                (1, search.pilots[0]),
                (2, search.pilots[0]),
                (3, search.plans[0]),
            ):
                with pytest.raises(PrivacyError, match="that the search was charged for"):
                    session.candidate(number, plan, GRAPH)

    def test_they_are_refused_at_node_level(self, ledger):
        model = gap(ledger, level="node", max_degree=5)
        with pytest.raises(InputError, match="`strategy` must be selection"):
            PrivateSearchCV(model, HOPS, strategy="pilots").fit(GRAPH)


class TestNodeLevel:
    """The score is a noisy count inside the candidate, and part of its price."""

    @pytest.mark.parametrize("method", [GAP, NodeLabelGAP])
    def test_the_score_is_charged_and_noisy(self, ledger, method):
        bound = {"max_degree": 5} if method is GAP else {}
        model = method(level="node", epsilon=8.0, epochs=1, ledger=ledger.path, **bound)
        search = PrivateSearchCV(model, {"hidden": [4, 6]}, mean=1.2)
        seen = Seen()
        with observed_by(seen):
            search.fit(GRAPH)
        (charge,) = ledger.entries()
        assert charge.epsilon <= 8.0
        selection = PrivateSelection.from_dict(dict(charge.events[0]))
        for candidate in selection.candidates:
            (score,) = (event for event in candidate if event.label == SCORE)
            assert score.noise_multiplier == pytest.approx(1 / search.search_.score_epsilon)
        counts = [key for key in seen.values if key[0] == SCORE]
        assert counts
        for key in counts:
            assert seen.scales[key] == pytest.approx(1 / search.search_.score_epsilon)
            assert float(seen.values[key][0]).is_integer()
            assert float(seen.outputs[key]) != float(seen.values[key][0])
        assert search.best_score_ in [float(seen.outputs[key]) for key in counts]
        assert {event["label"] for event in search.card_.events} >= {SCORE}

    def test_every_candidate_has_noise_of_its_own_on_its_score(self, ledger):
        # By this seed two candidates are drawn.
        options = {"epsilon": 8.0, "epochs": 1, "max_degree": 5, "insecure_noise_seed": 0}
        model = GAP(level="node", **options, ledger=ledger.path)
        seen = Seen()
        with observed_by(seen):
            PrivateSearchCV(model, {"hidden": [4, 6]}, mean=1.2).fit(GRAPH)
        keys = [key for key in seen.values if key[0] == SCORE]
        noise = {round(float(seen.outputs[key]) - float(seen.values[key][0]), 6) for key in keys}
        assert len(noise) == len(keys) == 2

    def test_one_record_moves_the_score_by_at_most_one_given_the_releases(self, ledger):
        """Replay: the same releases on the graph without the label of one validation node."""
        model = GAP(level="node", epsilon=8.0, epochs=1, max_degree=5, ledger=ledger.path)
        model.set_params(insecure_noise_seed=1, hidden=4)
        first = Seen()
        with observed_by(first):
            PrivateSearchCV(model, {"hops": [1, 2]}, mean=1.2).fit(GRAPH)
        labels = np.array(GRAPH.labels)
        person = int(np.flatnonzero(GRAPH.val_mask)[0])
        labels[person] = (labels[person] + 1) % GRAPH.num_classes
        other = Seen(first.outputs)
        with observed_by(other):
            PrivateSearchCV(model, {"hops": [1, 2]}, mean=1.2).fit(replace(GRAPH, labels=labels))
        keys = [key for key in first.values if key[0] == SCORE]
        assert keys
        for key in keys:
            assert abs(first.values[key][0] - other.values[key][0]) <= 1

    def test_only_accuracy_has_a_noisy_count(self, ledger):
        model = gap(ledger, level="node", max_degree=5)
        with pytest.raises(InputError, match="`scoring` must be accuracy"):
            PrivateSearchCV(model, HOPS, scoring="auc").fit(GRAPH)


def test_a_killed_search_goes_on_with_the_same_candidates_at_no_charge(
    ledger, tmp_path, monkeypatch
):
    from gapgnn.methods.search_run import Candidate

    model, folder = gap(ledger, insecure_noise_seed=4), tmp_path / "model.unfinished"
    original, seen = Candidate.fit, []

    def killed(self, graph, model, index, *more):
        if len(seen) == 1:
            raise KeyboardInterrupt
        score = original(self, graph, model, index, *more)
        seen.append((index, score))
        return score

    monkeypatch.setattr(Candidate, "fit", killed)
    checkpoint = Checkpoint(folder, ledger=ledger.path)
    with pytest.raises(KeyboardInterrupt):
        selecting(model, HOPS, mean=6).fit(GRAPH, checkpoint=checkpoint)
    checkpoint.close()

    resumed = []

    def counted(self, graph, model, index, *more):
        score = original(self, graph, model, index, *more)
        resumed.append((index, score))
        return score

    monkeypatch.setattr(Candidate, "fit", counted)
    checkpoint = Checkpoint(folder, ledger=ledger.path, resume=True)
    # Another key: what was drawn before the kill is used as it is.
    selecting(model.set_params(insecure_noise_seed=5), HOPS, mean=6).fit(
        GRAPH, checkpoint=checkpoint
    )
    checkpoint.remove()
    assert resumed[: len(seen)] == seen
    assert len(ledger.entries()) == 1


def test_a_selection_has_a_name_on_the_ledger(ledger):
    _, session = opened(ledger, seed=0)
    with session:
        session.draw_candidates()
    assert session.transcript == (SELECTION,)
    assert ledger.entries()[0].events[0]["label"] == SELECTION
