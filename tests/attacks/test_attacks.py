"""Attacks succeed on models that leak, and are guessing on models that do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from controlcases import controls_once  # noqa: F401
from suited import suited

from gapgnn import GAP, MLP, Graph, GraphSAGE, LabelGAP, NodeLabelGAP, load_model
from gapgnn.attacks import membership
from gapgnn.attacks.attacker import AttackNetwork, rank
from gapgnn.attacks.links import (
    all_pairs,
    held_out_pairs,
    hold_out,
    link_stealing_attack,
    linkteller_attack,
    sample_pairs,
)
from gapgnn.attacks.membership import (
    _halves,
    _members_only,
    answer_rows,
    likelihood_ratios,
    lira_attack,
    membership_attack,
)
from gapgnn.attacks.reconstruction import reconstruction_attack
from gapgnn.attacks.target import ask, fitted
from gapgnn.errors import DataError, InputError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.graph.transforms import random_split

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("own_ledger")]
once = pytest.mark.usefixtures("controls_once")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return social_graph(num_nodes=600, mean_degree=12, num_classes=3)


@pytest.fixture(scope="module")
def noise_graph() -> Graph:
    """Labels that nothing predicts: a model can only memorise them."""
    rng = np.random.default_rng(0)
    count = 400
    graph = Graph.from_arcs(
        rng.integers(count, size=800),
        rng.integers(count, size=800),
        num_nodes=count,
        features=rng.normal(size=(count, 40)).astype(np.float32),
        labels=rng.integers(2, size=count),
    )
    return random_split(graph, seed=0)


# Trained to the last epoch, on labels that nothing predicts.
OVERFITTED = {"folds": 0, "level": "none", "epochs": 60, "hidden": 32}


def test_ranking_figures():
    truth = np.arange(200) >= 100
    perfect = rank(np.arange(200), truth)
    assert (perfect.auc, perfect.tpr_at_1pct_fpr) == (1.0, 1.0)
    assert rank(np.zeros(200), truth).auc == 0.5
    assert rank(np.zeros(200), truth).tpr_at_1pct_fpr == 0.0
    with pytest.raises(InputError, match="true and false cases"):
        rank(np.zeros(3), np.ones(3, dtype=bool))


def test_the_attack_network_learns_an_interaction():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1_500, 4))
    truth = rows[:, 0] * rows[:, 1] > 0
    network = AttackNetwork(seed=0, epochs=60).fit(rows[:1000], truth[:1000])
    assert rank(network.score(rows[1000:]), truth[1000:]).auc > 0.9


def test_the_attack_network_trains_on_one_thread_and_leaves_torch_its_number(monkeypatch):
    rng, used = np.random.default_rng(0), set()
    loss = AttackNetwork._loss

    def counted(self, *args):
        used.add(torch.get_num_threads())
        return loss(self, *args)

    monkeypatch.setattr(AttackNetwork, "_loss", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        AttackNetwork(seed=0, epochs=2).fit(rng.normal(size=(100, 4)), rng.random(100) < 0.5)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert used == {1}


@pytest.fixture(scope="module")
def memorised(noise_graph):
    """The attack on a model that memorised its labels."""
    return membership_attack(MLP(**OVERFITTED), noise_graph, runs=2, shadow_per_class=100).to_dict()


def test_membership_in_a_model_that_memorised_is_found(memorised):
    assert memorised["auc"] > 0.7
    assert (memorised["on"], memorised["setting"]) == ("target", "tstf")


# The shadow model is asked about its own nodes only, so its graph is the larger one.
@pytest.mark.parametrize(
    ("on", "setting", "per_class"), [("target", "transductive", 100), ("shadow", "tstf", 190)]
)
def test_membership_is_found_in_other_settings_too(noise_graph, on, setting, per_class):
    result = membership_attack(
        MLP(**OVERFITTED), noise_graph, runs=1, on=on, setting=setting, shadow_per_class=per_class
    )
    assert result.to_dict()["auc"] > 0.7
    assert result.to_dict()["on"] == on


def test_a_model_without_privacy_is_attacked_at_its_last_epoch_unless_asked_otherwise(
    noise_graph, memorised
):
    """Choosing the epoch on validation nodes keeps a model from memorising noise."""
    options = {"runs": 2, "shadow_per_class": 100}
    best = membership_attack(MLP(**OVERFITTED), noise_graph, epoch="best", **options).to_dict()
    assert (memorised["epoch"], best["epoch"]) == ("last", "best")
    assert best["auc"] < memorised["auc"] - 0.1


def test_accuracies_on_members_and_others_are_reported(memorised):
    assert memorised["member_accuracy"] > 0.9
    assert memorised["other_accuracy"] < 0.7
    assert {"member_accuracy", "other_accuracy", "auc"} <= set(memorised["runs"][1])


def test_shadow_models_alternate_between_complementary_halves(graph):
    first, second, third = _halves(graph, 3, np.random.default_rng(0))
    assert (first.train_mask == second.test_mask).all()
    assert not (first.train_mask & second.train_mask).any()
    assert (first.train_mask != third.train_mask).any()


def test_predictions_are_standardised_per_model():
    """A target that learnt from more nodes is more confident; standardised, it compares."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(300, 2)), rng.integers(2, size=300)

    def rows(scale: float) -> np.ndarray:
        odds = np.exp(scale * logits)
        return answer_rows(odds / odds.sum(axis=1, keepdims=True), labels)

    assert np.allclose(rows(1.0)[:, :3], rows(3.0)[:, :3], atol=1e-6)
    assert np.isfinite(answer_rows(np.eye(2)[labels], 1 - labels)).all()


def test_membership_under_a_small_node_level_budget_is_a_guess(graph):
    model = MLP(level="node", epsilon=0.5, epochs=2, insecure_noise_seed=0)
    result = membership_attack(model, graph, runs=2, shadow_per_class=80)
    assert result.to_dict()["auc"] == pytest.approx(0.5, abs=0.15)


def test_an_equally_small_target_shares_no_node_with_the_shadow(noise_graph):
    result = membership_attack(
        MLP(**OVERFITTED), noise_graph, runs=1, shadow_per_class=90, target_per_class=90
    )
    assert result.to_dict()["auc"] > 0.6


def test_tstf_trains_on_the_graph_of_members_only(graph):
    trained = _members_only(graph)
    members = set(graph.ids[graph.train_mask].tolist())
    assert set(trained.ids[trained.train_mask].tolist()) == members
    assert not set(trained.ids.tolist()) & set(graph.ids[graph.test_mask].tolist())


def test_lira_finds_members_of_models_that_memorised(noise_graph):
    result = lira_attack(MLP(**OVERFITTED), noise_graph, models=8)
    assert len(result.rankings) == 8
    assert result.to_dict()["auc"] > 0.7


def test_lira_leaves_the_target_out_of_its_own_fit():
    """With itself among the fits, a model's own confidence would be likelier on its own side."""
    rng = np.random.default_rng(0)
    members = rng.random((6, 4_000)) < 0.5
    ratios = likelihood_ratios(rng.normal(size=members.shape), members)
    known = np.isfinite(ratios)
    assert rank(ratios[known], members[known]).auc == pytest.approx(0.5, abs=0.02)


def test_lira_of_private_models_is_a_guess(graph):
    result = lira_attack(
        MLP(level="node", epsilon=0.5, epochs=2, insecure_noise_seed=0), graph, models=6
    )
    assert result.to_dict()["auc"] == pytest.approx(0.5, abs=0.06)


def test_connected_and_unconnected_pairs_are_labelled_as_such(graph):
    matrix = graph.adjacency().toarray() > 0
    for others in ("degree", "uniform"):
        pairs = sample_pairs(graph, 300, np.random.default_rng(0), others=others)
        assert (matrix[pairs.first, pairs.second] == pairs.linked).all()
        assert int(pairs.linked.sum()) == 300
        assert (pairs.first < pairs.second).all()
    every = all_pairs(graph, np.arange(50))
    assert int(every.linked.sum()) == int(np.triu(matrix[:50, :50]).sum())


def test_pairs_matched_by_degree_do_not_reward_knowing_degrees(graph):
    degrees = np.diff(graph.indptr)

    def by_degree(others: str) -> float:
        pairs = sample_pairs(graph, 1_500, np.random.default_rng(0), others=others)
        return rank(degrees[pairs.first] * degrees[pairs.second], pairs.linked).auc

    assert by_degree("degree") == pytest.approx(0.5, abs=0.1)
    assert by_degree("uniform") > 0.65


@pytest.mark.parametrize("is_directed", [False, True])
def test_held_out_edges_are_gone_in_both_directions_and_nothing_else_is(graph, is_directed):
    if is_directed:
        arcs = np.random.default_rng(1).integers(600, size=(2, 4_000))
        graph = Graph.from_arcs(*arcs, num_nodes=600, features=graph.features, directed=True)
    before = graph.adjacency().toarray() > 0
    left, pairs = held_out_pairs(graph, 150, np.random.default_rng(0))
    after = left.adjacency().toarray() > 0
    assert int(pairs.linked.sum()) == len(pairs.linked) // 2 == 150
    assert left.is_directed == is_directed
    linked = (after | after.T)[pairs.first, pairs.second]
    assert (linked == pairs.linked).all()
    gone = np.argwhere(before & ~after)
    removed = {(a, b) for a, b, kept in zip(*_columns(pairs), strict=True) if not kept}
    assert {(min(a, b), max(a, b)) for a, b in gone.tolist()} == removed
    assert not (after & ~before).any()


def _columns(pairs) -> tuple[list, list, list]:
    return pairs.first.tolist(), pairs.second.tolist(), pairs.linked.tolist()


def test_a_tenth_of_the_edges_is_held_out_at_most(graph):
    left, pairs = held_out_pairs(graph, 10**6, np.random.default_rng(0))
    assert left.num_edges >= 0.9 * graph.num_edges
    assert len(pairs.linked) > 0.15 * graph.num_edges


@pytest.fixture(scope="module")
def sparse_graph() -> Graph:
    """Each node has two neighbours and distinct features: single edges change predictions."""
    rng = np.random.default_rng(0)
    count = 1_500
    others = (np.arange(count) + rng.integers(1, count, size=count)) % count
    graph = Graph.from_arcs(
        np.arange(count),
        others,
        num_nodes=count,
        features=rng.normal(size=(count, 8)).astype(np.float32),
        labels=rng.integers(3, size=count),
    )
    return random_split(graph, seed=0)


def test_linkteller_separates_held_out_from_kept_edges_where_single_edges_show(sparse_graph):
    options = {"nodes": 300, "others": "held-out"}
    result = linkteller_attack(GraphSAGE(level="none", layers=1, epochs=5), sparse_graph, **options)
    assert result.ranking.auc > 0.95
    assert result.details["others"] == "held-out"


def test_homophily_alone_does_not_identify_held_out_edges(graph):
    """Public information separates edges from other pairs, but not kept from removed edges."""
    model = MLP(level="none", epochs=20)
    options = {"pairs": 1_500, "seed": 1}
    held_out = link_stealing_attack(model, graph, others="held-out", **options)
    uniform = link_stealing_attack(model, graph, others="uniform", **options)
    assert uniform.ranking.auc > 0.65
    assert held_out.ranking.auc == pytest.approx(0.5, abs=0.12)
    assert held_out.control.auc == pytest.approx(0.5, abs=0.12)


@once
def test_linkteller_reads_the_edges_of_a_model_without_privacy(graph):
    model = GraphSAGE(level="none", layers=1, epochs=20)
    result = linkteller_attack(model, graph, nodes=60)
    assert result.ranking.auc > 0.95
    assert result.gain_auc > 0.1


@once
def test_linkteller_is_guessing_where_cached_hops_answer(graph):
    result = linkteller_attack(LabelGAP(epsilon=1.0, epochs=5), graph, nodes=40)
    assert result.ranking.auc == 0.5
    assert result.details["questions"] == "cached"
    assert result.details["epsilon_spent"] <= 1.0


@once
def test_paying_for_every_question_is_reported(graph):
    model = GAP(epsilon=1.0, epochs=5)
    result = linkteller_attack(model, graph, nodes=40, fresh="always")
    assert result.details["questions"] == "fresh"
    assert result.details["epsilon_spent"] == pytest.approx(41.0, rel=0.01)


@once
def test_link_stealing_from_a_model_without_edges_gains_nothing(graph):
    result = link_stealing_attack(MLP(level="none", epochs=20), graph, pairs=1_500, others="degree")
    assert abs(result.gain_auc) < 0.05
    assert set(result.details["unsupervised"]) == set(result.details["control_unsupervised"])


@once
def test_reconstruction_counts_true_edges_among_the_top(graph):
    found = reconstruction_attack(
        LabelGAP(level="none", epochs=20), graph, runs=2, nodes=100
    ).to_dict()
    assert found["precision"] > 2 * found["guessing"]["precision"]
    assert 0 <= found["control"]["precision"] <= 1
    assert found["precision"] == pytest.approx(np.mean([one["precision"] for one in found["runs"]]))
    assert found["gain_auc"] == pytest.approx(found["auc"] - found["control"]["auc"])


def test_a_model_that_reads_no_edge_reconstructs_no_more_than_the_control(graph):
    found = reconstruction_attack(MLP(level="none", epochs=20), graph, runs=2, nodes=100).to_dict()
    assert abs(found["gain_auc"]) < 0.05


def test_reconstruction_needs_edges_among_its_nodes(graph):
    with pytest.raises(DataError, match="`nodes` must leave pairs with and without an edge"):
        reconstruction_attack(MLP(level="none", epochs=1), graph, runs=1, nodes=3)


def test_attacks_charge_no_ledger_and_leave_the_estimator_alone(graph, own_ledger):
    model = LabelGAP(epsilon=1.0, epochs=2)
    before = model.get_params()
    link_stealing_attack(model, graph, pairs=100)
    assert model.get_params() == before
    assert not hasattr(model, "card_")
    assert own_ledger.entries() == []


def test_asking_leaves_nothing_behind(graph):
    with fitted(GAP(level="none", epochs=2), graph) as model:
        changed = social_graph(num_nodes=600, mean_degree=12, num_classes=3, seed=1)
        ask(model, changed)
        assert len(model.releases_.hops) == 1


@pytest.mark.parametrize(
    ("attack", "options", "message"),
    [
        (membership_attack, {"runs": 0}, "`runs` must be at least 1"),
        (membership_attack, {"on": "me"}, "`on` must be one of"),
        (membership_attack, {"epoch": "first"}, "`epoch` must be one of"),
        (membership_attack, {"shadows": 0}, "`shadows` must be at least 1"),
        (lira_attack, {"epoch": "first"}, "`epoch` must be one of"),
        (linkteller_attack, {"others": "degree"}, "`others` must be one of"),
        (link_stealing_attack, {"others": "all"}, "`others` must be one of"),
        (lira_attack, {"models": 1}, "`models` must be at least 4"),
        (linkteller_attack, {"nodes": 10_000}, "`nodes` must be at most 600"),
        (linkteller_attack, {"step": 0}, "`step` must be positive"),
        (link_stealing_attack, {"pairs": 1}, "`pairs` must be at least"),
    ],
)
def test_bad_options_are_refused(graph, attack, options, message):
    with pytest.raises(InputError, match=message):
        attack(MLP(epochs=1), graph, **options)


@pytest.mark.parametrize(("others", "least"), [("held-out", 20), ("degree", 2), ("uniform", 2)])
def test_a_graph_without_edges_cannot_be_attacked(graph, others, least):
    empty = Graph.from_arcs(
        [], [], num_nodes=graph.num_nodes, features=graph.features, labels=graph.labels
    )
    with pytest.raises(DataError, match=f"at least {least} edges"):
        link_stealing_attack(MLP(), empty, others=others)


def test_every_class_gives_the_same_share_to_the_shadow_graph_and_keeps_some_for_the_target():
    """A small class once was in the shadow graph as a whole, and nobody of it was judged."""
    labels = np.repeat([0, 1, 2], [4_000, 2_000, 150])
    everybody = np.ones(len(labels), dtype=bool)
    chosen = membership._in_proportion(labels, 1_000, everybody, np.random.default_rng(0), most=0.5)
    shares = [chosen[labels == label].mean() for label in range(3)]
    assert shares == pytest.approx([3_000 / 6_150] * 3, abs=0.01)
    assert (~chosen)[labels == 2].sum() > 70
    few = membership._in_proportion(labels, 100_000, everybody, np.random.default_rng(0), most=0.5)
    assert few.mean() == pytest.approx(0.5, abs=0.01)


def test_a_class_that_is_too_small_to_share_is_named():
    labels = np.repeat([0, 1], [100, 5])
    with pytest.raises(DataError, match=r"at least 8 nodes to sample from\. Got 5 of class 1"):
        membership._in_proportion(
            labels, 20, np.ones(105, dtype=bool), np.random.default_rng(0), most=0.5
        )


@once
@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (membership_attack, {"runs": 1, "shadow_per_class": 60}),
        (lira_attack, {"models": 4}),
        (link_stealing_attack, {"pairs": 60}),
        (linkteller_attack, {"nodes": 20}),
        (reconstruction_attack, {"runs": 1, "nodes": 40}),
    ],
)
def test_the_score_of_guessing_is_reported_for_each_metric(graph, attack, options):
    found = attack(MLP(level="none", epochs=1), graph, **options).to_dict()
    assert set(found["guessing"]) >= {"auc", "average_precision", "tpr_at_1pct_fpr"}
    assert found["guessing"]["auc"] == 0.5
    assert 0 < found["guessing"]["average_precision"] < 1


@once
@pytest.mark.parametrize(
    ("method", "own"),
    [
        (LabelGAP, {"level": "none"}),
        (LabelGAP, {"level": "edge"}),
        (NodeLabelGAP, {"hop_share": 0.5}),
        (GAP, {"level": "node", "max_degree": 5}),
    ],
)
def test_a_saved_model_is_attacked_itself(graph, own_ledger, tmp_path, method, own):
    shared = {"epsilon": 4.0, "epochs": 2}
    suited(method, shared, **own).fit(graph).save(tmp_path / "model")
    charges = len(own_ledger.entries())
    model = load_model(tmp_path / "model")
    for attack, options in (
        (membership_attack, {"runs": 1, "shadow_per_class": 60}),
        (link_stealing_attack, {"pairs": 60, "others": "degree"}),
        (reconstruction_attack, {"runs": 1, "nodes": 40}),
        (linkteller_attack, {"nodes": 30}),
    ):
        assert attack(model, graph, itself=True, **options).to_dict()["itself"] is True
    assert len(own_ledger.entries()) == charges


def test_what_cannot_be_done_to_a_saved_model_is_one_line(graph, own_ledger):
    model = LabelGAP(epochs=1).fit(graph)
    with pytest.raises(InputError, match="`others` must not be held-out"):
        link_stealing_attack(model, graph, itself=True)
    with pytest.raises(InputError, match="`fresh` must be auto"):
        linkteller_attack(model, graph, nodes=5, fresh="always", itself=True)
    with pytest.raises(InputError, match="must be fitted"):
        reconstruction_attack(LabelGAP(), graph, itself=True)
    other = hold_out(graph, all_pairs(graph, np.arange(50)), np.random.default_rng(0))[0]
    with pytest.raises(InputError, match="must be the one the model was trained on"):
        reconstruction_attack(model, other, nodes=10, itself=True)
