"""MLP: the baseline that ignores the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods.base import NodeClassifier, Run, choose_device
from gapgnn.methods.unused import Unused
from gapgnn.nn import LinearBySize, ReplicaMLP, ShrunkRegression
from gapgnn.privacy.accounting import Event
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.ledger import Charge
from gapgnn.training import (
    FEATURE_WIDTH,
    CrossFit,
    FeatureInputs,
    FeatureNetworks,
    Recipe,
    RowScale,
    Voices,
    features_read,
    node_recipe,
    resolve_folds,
    row_by_row,
    shallow_networks,
    some_nodes_recipe,
)


@dataclass(kw_only=True, eq=False, repr=False)
class MLP(NodeClassifier):
    """Node classifier on features alone.

    It reads no edge, so at edge level its epsilon is 0 whatever was asked; there and at level none
    it is the mean of networks that each leave out a fold of the training nodes, of shallow ones
    beside them and up to 4,000 training nodes of linear ones, the same that GAP reads features
    through. At node level it is one network, trained by DP-SGD (MLP-DP in the paper). Any graph
    with the same features can be predicted, free of charge: a prediction is computed from the own
    features.

    Parameters that all methods share are those of :class:`~gapgnn.methods.NodeClassifier`.

    Args:
        level: what is protected: ``none``, ``edge`` or ``node``.
        epsilon: privacy budget at node level.
        layers: number of layers, the output layer included; auto is 3, at node level 2.
        hidden: width of every hidden layer; auto is 64, and 16 for a single network.
        folds: number of networks, each trained on all folds but one, with a shallow one of one
            hidden layer beside it; auto is 4, at node level 0, which is a single one (the paper's).
        feature_norm: scale every row of features to this norm and read its size, as 0.3 times the
            logarithm of 1 + its squared norm, beside it, functions of the row alone; 0 leaves them
            as they are; auto is 6 at node level, less for a row of few numbers where training
            people are few or the budget is large, and 0 elsewhere.
        activation: activation after every hidden layer.
        dropout: dropout rate after every hidden layer; auto is 0.4, 0.7 where
            features are many, and 0 for a single network.
        epochs: passes over the training nodes, or steps over some of them where there are folds;
            auto is 80 of these, 60 where features are many, 100 for a single network, at node level
            225 steps.
        batch_size: training nodes per step; auto is all of them for a single network, 1,024 where
            there are folds, and at node level 1,024, at least 6 % and at most half of them.
        weight_decay: L2 penalty; 0 is 0.0005 where there are folds.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> MLP(level="edge", epochs=5).fit(graph).card_.epsilon
    0.0
    """

    method: ClassVar[str] = "mlp"
    _keeps_releases: ClassVar[bool] = True
    _as_in_0_1: ClassVar[Mapping[str, Any]] = {"feature_norm": 0.0, "folds": 0}

    epsilon: float = 8.0
    layers: int | Literal["auto"] = "auto"
    hidden: int | Literal["auto"] = "auto"
    folds: int | Literal["auto"] = "auto"
    feature_norm: float | Literal["auto"] = "auto"
    activation: Literal["selu", "relu", "elu", "gelu", "tanh"] = "selu"
    dropout: float | Literal["auto"] = "auto"

    def _check_parameters(self) -> None:
        check_integer("layers", self._num_layers(), at_least=1)
        check_integer("hidden", self._widths()[0], at_least=1)
        if self.feature_norm != "auto":
            check_number("feature_norm", self.feature_norm, at_least=0)

    def _draws_noise(self) -> bool:
        return self.level == "node"

    def _unused(self) -> Iterator[Unused]:
        yield from super()._unused()
        if self._num_layers() == 1 and not self._num_folds():
            yield Unused(
                ("hidden", "activation", "dropout", "batch_norm"),
                "with one layer and no folds: there is no hidden layer",
            )

    def _num_layers(self) -> int:
        if self.layers != "auto":
            return self.layers
        return 2 if self.level == "node" else 3

    def _resolved_values(self) -> dict[str, Any]:
        return {"folds": self._num_folds(), "class_weights": self._answer_weights}

    def _weighs_answers(self) -> bool:
        return self._num_folds() > 0

    def _num_folds(self) -> int:
        if self._resolved_at_save is not None:
            return int(self._resolved_at_save["folds"])
        return resolve_folds(self.folds, can_cross_fit=self.level != "node")

    def _widths(self) -> tuple[int, float]:
        """Return width and dropout of the hidden layers, as they are built."""
        hidden, dropout = 16, 0.0
        if self._num_folds():
            hidden, dropout = FEATURE_WIDTH, FeatureNetworks.suited(0, 1).dropout
        return (
            hidden if self.hidden == "auto" else self.hidden,
            dropout if self.dropout == "auto" else self.dropout,
        )

    def _recipe(self, num_train: int) -> Recipe:
        papers = super()._recipe(num_train)
        if self._num_folds():
            given = {"epochs": self.epochs, "batch_size": self.batch_size}
            return some_nodes_recipe(papers, num_train, **given)
        if self.level != "node":
            return papers
        return node_recipe(papers, num_train, epochs=self.epochs, batch_size=self.batch_size)

    def _learns_features(self) -> bool:
        return self.level == "node"

    def _row_scale(self, num_train: int, worth: float = 0.0) -> RowScale | None:
        if self.feature_norm == "auto":
            return RowScale.suited(num_train, worth) if self.level == "node" else None
        return RowScale(self.feature_norm) if self.feature_norm else None

    def _features(self, graph: Graph, device: torch.device) -> FeatureInputs:
        return FeatureInputs(graph, device, scale=self.row_scale_)

    def _template(self, graph: Graph) -> Sequence[Event]:
        if self.level != "node":
            return ()
        num_train = self._num_train(graph)
        return (self._recipe(num_train).event(num_train, ratio=1.0, label="training"),)

    def _build(self, repeats: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        hidden, dropout = self._widths()
        # As wide for any number of training nodes.
        width = features_read(num_features, self._row_scale(0))
        modules: dict[str, nn.Module] = {
            "mlp": ReplicaMLP(
                repeats * max(1, self._num_folds()),
                [width, *[hidden] * (self._num_layers() - 1), num_classes],
                activation=self.activation,
                batch_norm=self._uses_batch_norm(),
                dropout=dropout,
            )
        }
        if folds := self._num_folds():
            modules["shallow"] = shallow_networks(
                repeats * folds,
                width,
                num_classes,
                hidden=hidden,
                batch_norm=self._uses_batch_norm(),
                dropout=dropout,
            )
            modules["linear"] = LinearBySize(repeats * folds, width, num_classes)
            modules["shrunk"] = ShrunkRegression(repeats * folds, width, num_classes)
        return modules

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        graph, device = run.graph, run.device
        modules = self._start_modules(run)
        inputs = self._features(graph, device)
        trainer = self._trainer(run)
        crossfit = self._crossfit(graph)

        def fit(phase: str, model: nn.Module) -> None:
            fitting = trainer
            if crossfit is not None:
                fitting = crossfit.trainer(
                    trainer, model, graph.num_features, dropout=self.dropout, epochs=self.epochs
                )
            train = partial(fitting.fit, model, inputs, phase=phase, private=self._private(run))
            run.journal.trained(phase, model, train)

        with run.timed("classifier"):
            fit("classifier", modules["mlp"])
            if crossfit is not None:
                fit("shallow", modules["shallow"])
                crossfit.solve(Voices.of(modules, "mlp"), trainer, inputs)
            return self._scores(inputs, crossfit, run.repeats)

    def _crossfit(self, graph: Graph) -> CrossFit | None:
        folds = self._num_folds()
        return CrossFit.of(graph, seed=self.seed, folds=folds) if folds else None

    @torch.no_grad()
    def _scores(self, inputs: FeatureInputs, crossfit: CrossFit | None, repeats: int) -> Tensor:
        """Return what is said about every node from its features alone, by all networks."""
        if crossfit is not None:
            nobody = torch.zeros(repeats, len(crossfit.fold), dtype=torch.bool)
            nobody = nobody.to(inputs.device)
            return crossfit.log_probabilities(Voices.of(self.modules_, "mlp"), inputs, nobody)
        scores: Tensor = self.modules_["mlp"](inputs.all())
        return scores

    def _class_scores(self, graph: Graph | None) -> Tensor:
        if graph is None:
            raise InputError("An MLP keeps no features: give the graph whose nodes to predict.")
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        model, features = self.modules_["mlp"], self._features(graph, device)
        if self.level == "node":
            return row_by_row(model, features)[0]
        return self._scores(features, self._crossfit(graph), 1)[0]

    def _card_facts(self) -> ReleaseFacts:
        steps = ["preparation", "training", "selection"]
        if self._uses_batch_norm():
            steps.append("statistics")
        return ReleaseFacts(method="MLP", messages="none", steps=steps)
