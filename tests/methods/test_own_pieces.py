"""Encoders, classifiers and messages of users' own inside our methods, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor, nn

from gapgnn import GAP, LabelGAP, Ledger, load_model, random_split
from gapgnn.cli import main as cli
from gapgnn.errors import GapgnnError, InputError, IntegrityError, PrivacyError
from gapgnn.graph import Graph, induced
from gapgnn.graph.datasets.synthetic import generate
from gapgnn.methods import registry
from gapgnn.methods.configs import own_pieces
from gapgnn.methods.label_gap.own_messages import Senders
from gapgnn.nn import OwnClassifier, OwnEncoder, OwnNetwork

QUICK = {"epochs": 3, "hidden": 8, "insecure_noise_seed": 1}


def encoder(num_features: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_features, width), nn.LayerNorm(width), nn.Tanh())


class Attention(nn.Module):
    """Weighs the hops of a node by a softmax over them: what a researcher would write."""

    def __init__(self, widths: list[int], num_classes: int) -> None:
        super().__init__()
        self.query = nn.Linear(widths[0], 1)
        self.out = nn.Linear(widths[0], num_classes)

    def forward(self, hops: list[Tensor]) -> Tensor:
        stacked = torch.stack(hops, dim=1)
        weights = torch.softmax(self.query(stacked), dim=1)
        scores: Tensor = self.out((weights * stacked).sum(dim=1))
        return scores


def one_hot(senders: Senders) -> Tensor:
    rows = torch.full((len(senders.labels), senders.num_classes), 1 / senders.num_classes)
    if senders.posteriors is not None:
        rows = senders.posteriors.clone()
    known = senders.labels >= 0
    rows[known] = torch.eye(senders.num_classes)[senders.labels[known]]
    return 3 * rows


one_hot.norm_bound = 3.0
one_hot.columns = 3


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = generate(num_nodes=300, mean_degree=8, num_features=6, num_classes=3, seed=1)
    return random_split(made, seed=0)


def charges(ledger: Ledger) -> int:
    return len(ledger.entries())


@pytest.mark.parametrize("level", ["none", "edge", "node"])
def test_gap_trains_charges_saves_and_loads_networks_of_ones_own(level, graph, ledger, tmp_path):
    noisy = {} if level == "none" else {"epsilon": 8.0, "insecure_noise_seed": 1}
    model = GAP(
        level=level,
        encoder=encoder,
        classifier=Attention,
        epochs=3,
        hidden=8,
        ledger=ledger.path,
        **noisy,
    )
    model.fit(graph)
    assert charges(ledger) == (level != "none")
    assert isinstance(model.modules_["encoder"], OwnEncoder)
    assert isinstance(model.modules_["classifier"], OwnClassifier)
    is_node = level == "node"
    assert model.modules_["encoder"].body.one_by_one is is_node
    assert model.modules_["classifier"].body.one_by_one is is_node
    model.save(tmp_path / "model")
    given = {"encoder": encoder, "classifier": Attention}
    loaded = load_model(tmp_path / "model", ledger=ledger.path, **given)
    assert (loaded.predict_proba(graph) == model.predict_proba(graph)).all()
    assert charges(ledger) == (level != "none")
    if level != "none":
        assert "the user's own code" in model.card_.to_json()


def test_what_the_events_cost_does_not_depend_on_whose_networks_they_are(graph, ledger):
    ours, theirs = (
        GAP(level="node", epsilon=4.0, ledger=ledger.path, **given).plan_for(graph)
        for given in ({}, {"encoder": encoder, "classifier": Attention})
    )
    assert ours.promise == theirs.promise


def test_a_persons_row_does_not_depend_on_who_else_is_there_at_node_level(graph, ledger):
    class Centred(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(rows - rows.mean(dim=0))

    model = GAP(level="node", epsilon=8.0, encoder=Centred, ledger=ledger.path, **QUICK)
    model.fit(graph)
    everybody = model._encode(model._features(graph, torch.device("cpu")))
    others = induced(graph, np.arange(graph.num_nodes) != 7)
    found = model._encode(model._features(others, torch.device("cpu")))
    assert torch.equal(found[:, :7], everybody[:, :7])
    assert torch.equal(found[:, 7:], everybody[:, 8:])


def test_repeats_have_networks_of_their_own_and_the_first_is_that_of_one_repeat(graph, ledger):
    shared = {"encoder": encoder, "classifier": Attention, "ledger": ledger.path, **QUICK}
    several = GAP(repeats=2, **shared).fit(graph)
    alone = GAP(**shared).fit(graph)
    assert (several.predict_proba(graph) == alone.predict_proba(graph)).all()


def test_a_clone_keeps_the_factories_and_is_not_fitted(graph):
    model = GAP(encoder=functools.partial(encoder), classifier=Attention)
    again = clone(model)
    assert again.classifier is Attention
    assert again.get_params()["encoder"] is not None
    assert not hasattr(again, "card_")


def test_a_folder_wants_the_functions_it_was_trained_with(graph, ledger, tmp_path):
    folder = tmp_path / "model"
    GAP(encoder=encoder, ledger=ledger.path, **QUICK).fit(graph).save(folder)
    with pytest.raises(
        InputError, match=r"trained with `encoder` of your own \(.*encoder\), which"
    ):
        load_model(folder)
    with pytest.raises(InputError, match="`classifier` must be left out"):
        load_model(folder, encoder=encoder, classifier=Attention)
    with pytest.raises(IntegrityError, match="other functions were given as encoder"):
        load_model(folder, encoder=lambda features, width: nn.Linear(features, width))
    assert "encoder" not in str(sorted(path.name for path in folder.iterdir()))
    words = ["predict", "--model", str(folder), "--dataset", "social"]
    with pytest.raises(GapgnnError, match="which no folder holds"):
        cli.main([*words, "--out", str(tmp_path / "labels.csv")])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"encoder": nn.Linear(6, 8)}, "a function that builds a network. Got a Linear"),
        ({"classifier": 3}, "`classifier` must be a function. Got 3"),
        ({"encoder": encoder, "encoder_layers": 3}, "`encoder_layers` must be left out with"),
        ({"classifier": Attention, "combine": "sum"}, "`combine` must be left out with"),
        ({"encoder": encoder, "classifier": Attention, "dropout": 0.1}, "no network is the"),
        ({"encoder": lambda features, width: nn.Linear(width, width)}, "Calling it failed"),
    ],
)
def test_what_cannot_work_is_refused_before_the_charge(given, reason, graph, ledger):
    with pytest.raises(InputError, match=reason):
        GAP(**{"ledger": ledger.path, **given}).fit(graph)
    assert not charges(ledger)


def test_a_network_that_mixes_people_is_refused_at_node_level_before_the_charge(graph, ledger):
    def mixes(features: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, width), nn.BatchNorm1d(width))

    with pytest.raises(PrivacyError, match=r"BatchNorm1d.*use nn\.LayerNorm"):
        GAP(level="node", encoder=mixes, ledger=ledger.path).fit(graph)
    assert not charges(ledger)
    GAP(encoder=mixes, ledger=ledger.path, **QUICK).fit(graph)
    assert charges(ledger) == 1


def test_no_command_line_option_takes_a_function():
    assert own_pieces(GAP) == ("encoder", "classifier")
    assert own_pieces(LabelGAP) == ("messages",)
    for words in (["train", "gap", "--encoder", "x"], ["train", "label-gap", "--messages", "x"]):
        with pytest.raises(GapgnnError, match=r"unrecognized|unknown|no option"):
            cli.main(words)


# Messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"folds": 0}, {"encoder_layers": 0}])
def test_messages_of_ones_own_are_released_at_the_price_of_class_codes(
    more, graph, ledger, tmp_path
):
    shared = {"hops": 2, "ledger": ledger.path, **QUICK, **more}
    model = LabelGAP(messages=one_hot, **shared).fit(graph)
    assert charges(ledger) == 1
    assert model.plan_.promise == LabelGAP(**shared).plan_for(graph).promise
    assert model.releases_.training().hops[1].shape[1] == 3
    assert "a bound on their norm that is checked" in model.card_.messages
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="trained with `messages` of your own"):
        load_model(tmp_path / "model")
    loaded = load_model(tmp_path / "model", messages=one_hot, ledger=ledger.path)
    assert (loaded.predict_proba(graph) == model.predict_proba(graph)).all()


def test_what_is_sent_are_the_messages_over_their_bound(graph, ledger, monkeypatch):
    from gapgnn.privacy import PrivateSession

    sent: list[Tensor] = []
    release = PrivateSession.release

    def spy(self, name, rows, **options):
        sent.append(rows)
        return release(self, name, rows, **options)

    monkeypatch.setattr(PrivateSession, "release", spy)
    model = LabelGAP(messages=one_hot, hops=2, ledger=ledger.path, **QUICK).fit(graph)
    assert len(sent) == 2
    for rows in sent:
        assert float(torch.linalg.vector_norm(rows, dim=-1).max()) <= 1 + 1e-6
        trains = torch.tensor(graph.train_mask)
        labels = torch.tensor(graph.labels)[trains]
        assert torch.allclose(rows[0, trains], torch.eye(3)[labels])
    assert model.score(graph) > 0


def test_messages_see_no_label_of_a_node_that_does_not_train(graph, ledger):
    seen: list[Tensor] = []

    def spying(senders: Senders) -> Tensor:
        seen.append(senders.labels)
        assert len(senders.released) == senders.hop - 1
        assert senders.features.shape == (300, 6)
        return senders.codes[senders.labels.clamp(min=0)]

    spying.norm_bound = 1.0
    LabelGAP(messages=spying, hops=2, ledger=ledger.path, **QUICK).fit(graph)
    known = torch.tensor(np.where(graph.train_mask, graph.labels, -1))
    assert len(seen) >= 4, "two hops, tried and sent"
    assert all(torch.equal(labels, known) for labels in seen)


def longer_in_hop_two(senders: Senders) -> Tensor:
    return one_hot(senders) * (1.01 if senders.hop == 2 else 1.0)


longer_in_hop_two.norm_bound = 3.0
longer_in_hop_two.columns = 3


def without_bound(senders: Senders) -> Tensor:
    return one_hot(senders)


def of_another_shape(senders: Senders) -> Tensor:
    return senders.features[:5]


of_another_shape.norm_bound = 1.0


def not_finite(senders: Senders) -> Tensor:
    return senders.codes[senders.labels.clamp(min=0)] / 0


not_finite.norm_bound = 1.0


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (longer_in_hop_two, r"norm at most 3, as `norm_bound` declares.*in hop 2"),
        (without_bound, "must declare `norm_bound`"),
        (of_another_shape, r"a row per node and 2 columns, \(300, 2\). Got \(5, 6\) in hop 1"),
        (not_finite, "norm at most 1"),
    ],
)
def test_messages_that_break_their_word_are_refused_before_the_charge(
    messages, reason, graph, ledger
):
    with pytest.raises((InputError, PrivacyError), match=reason):
        LabelGAP(messages=messages, hops=2, ledger=ledger.path, **QUICK).fit(graph)
    assert not charges(ledger)


def test_a_bound_that_only_the_released_sums_break_is_caught_before_that_release(
    graph, ledger, spied
):
    # Larger than any sum that the trial invents.
    def grows(senders: Senders) -> Tensor:
        if senders.hop == 1:
            return torch.zeros(len(senders.labels), 2)
        return (senders.released[0].abs().amax(dim=1, keepdim=True) > 3.5).expand(-1, 2) * 1.0

    grows.norm_bound = 1.0
    with pytest.raises(PrivacyError, match=r"norm 1\.41421 in hop 2"):
        LabelGAP(messages=grows, hops=2, epsilon=0.5, ledger=ledger.path, **QUICK).fit(graph)
    assert len(spied) == 1, "hop 2 was not drawn"


def test_what_reads_sums_as_class_codes_is_refused_for_other_messages(graph, ledger):
    model = LabelGAP(messages=one_hot, hops=2, ledger=ledger.path, **QUICK).fit(graph)
    for asked in ({"own": "record"}, {"new_people": True}):
        with pytest.raises(InputError, match="reads sums as class codes"):
            model.predict(graph, **asked)
    assert charges(ledger) == 1


def test_messages_travel_along_several_edge_types(graph, ledger):
    from gapgnn.graph import join_edge_types

    both = join_edge_types({"calls": graph, "visits": graph})
    model = LabelGAP(messages=one_hot, hops=2, ledger=ledger.path, **QUICK).fit(both)
    assert model.predict(both).shape == (300,)


def test_the_folder_names_the_function_and_holds_no_code(graph, ledger, tmp_path: Path):
    LabelGAP(messages=one_hot, hops=1, ledger=ledger.path, **QUICK).fit(graph).save(tmp_path / "m")
    config = next(path.read_text() for path in (tmp_path / "m").iterdir() if "config" in path.name)
    assert "one_hot" in config


# From tables to a folder --------------------------------------------------------------------------


@pytest.fixture
def own_methods(monkeypatch, ledger):
    """Methods of the command line with parts of one's own, for the audit that replays commands."""
    monkeypatch.setattr(registry, "_ADDED", {})
    monkeypatch.setenv("GAPGNN_LEDGER", str(ledger.path))

    @registry.register_method
    @dataclasses.dataclass(kw_only=True, eq=False, repr=False)
    class OwnGAP(GAP):
        """GAP with networks of one's own."""

        method = "own-gap"
        encoder: Any = declared_as(HalfCentred)  # noqa: RUF009
        classifier: Any = declared_as(Attention)  # noqa: RUF009

    @registry.register_method
    @dataclasses.dataclass(kw_only=True, eq=False, repr=False)
    class OwnLabelGAP(LabelGAP):
        """LabelGAP with messages of one's own."""

        method = "own-label-gap"
        messages: Any = declared_as(any_one_hot)  # noqa: RUF009


class HalfCentred(nn.Linear):
    """Takes half the mean of the rows that it is given away: of one person's row alone."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows - 0.5 * rows.mean(dim=0))


def declared_as(function: Any) -> Any:
    declared = {part.name: part.metadata for part in dataclasses.fields(GAP)}
    return dataclasses.field(default=function, metadata=declared["encoder"])


def any_one_hot(senders: Senders) -> Tensor:
    return senders.codes[senders.labels.clamp(min=0)] * (senders.labels >= 0).unsqueeze(1)


any_one_hot.norm_bound = 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("neighbours", ["first", "hub", "huge"])
def test_the_pipeline_audit_finds_no_leak_beside_networks_of_ones_own(neighbours):
    words = ["train", "own-gap", "--level", "node", "--max-degree", "3", "--epochs", "1"]
    assert cli.main(["audit", "pipeline", "--neighbours", neighbours, *words]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("own_methods")
def test_the_pipeline_audit_finds_no_leak_beside_messages_of_ones_own():
    words = ["train", "own-label-gap", "--level", "edge", "--hops", "2", "--epochs", "2"]
    assert cli.main(["audit", "pipeline", *words]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("own_methods")
def test_the_pipeline_audit_finds_rows_that_are_read_as_a_batch(monkeypatch):
    def as_batch(*args: Any, **options: Any) -> OwnNetwork:
        return OwnNetwork(*args, **{**options, "one_by_one": False})

    monkeypatch.setattr("gapgnn.methods.own_networks.OwnNetwork", as_batch)
    words = ["train", "own-gap", "--level", "node", "--max-degree", "3", "--epochs", "1"]
    assert cli.main(["audit", "pipeline", "--neighbours", "first", *words]) == 1
