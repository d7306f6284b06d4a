"""MLP: the baseline that ignores the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods.base import NodeClassifier, Run, choose_device
from gapgnn.nn import ReplicaMLP
from gapgnn.privacy.accounting import Event
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.ledger import Charge
from gapgnn.training import FEATURE_NORM, FeatureInputs, Recipe, node_recipe, row_by_row


@dataclass(kw_only=True, eq=False, repr=False)
class MLP(NodeClassifier):
    """Node classifier on features alone.

    It reads no edge, so at edge level its epsilon is 0 whatever was asked. At node level it is
    trained by DP-SGD (MLP-DP in the paper). Any graph with the same features can be predicted,
    free of charge: a prediction is computed from the node's own features.

    Parameters that all methods share are those of :class:`~gapgnn.methods.NodeClassifier`.

    Args:
        level: what is protected: ``none``, ``edge`` or ``node``.
        epsilon: privacy budget at node level.
        layers: number of layers, the output layer included; auto is 3, at node level 2.
        hidden: width of every hidden layer.
        feature_norm: scale every row of features to this norm, a function of the row alone; 0
            leaves them as they are; auto is 6 at node level and 0 elsewhere.
        activation: activation after every hidden layer.
        dropout: dropout rate after every hidden layer; 0 at node level.
        epochs: passes over the training nodes; auto is 100, at node level 225 steps.
        batch_size: nodes per step; auto is all of them, at node level 6 % (12 % of few).

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> MLP(level="edge", epochs=5).fit(graph).card_.epsilon
    0.0
    """

    method: ClassVar[str] = "mlp"
    _keeps_releases: ClassVar[bool] = True
    _as_in_0_1: ClassVar[Mapping[str, Any]] = {"feature_norm": 0.0}

    epsilon: float = 8.0
    layers: int | Literal["auto"] = "auto"
    hidden: int = 16
    feature_norm: float | Literal["auto"] = "auto"
    activation: Literal["selu", "relu", "elu", "gelu", "tanh"] = "selu"
    dropout: float = 0.0

    def _check_parameters(self) -> None:
        check_integer("layers", self._num_layers(), at_least=1)
        check_integer("hidden", self.hidden, at_least=1)
        if self.feature_norm != "auto":
            check_number("feature_norm", self.feature_norm, at_least=0)

    def _num_layers(self) -> int:
        if self.layers != "auto":
            return self.layers
        return 2 if self.level == "node" else 3

    def _recipe(self, num_train: int) -> Recipe:
        papers = super()._recipe(num_train)
        if self.level != "node":
            return papers
        return node_recipe(papers, num_train, epochs=self.epochs, batch_size=self.batch_size)

    def _features(self, graph: Graph, device: torch.device) -> FeatureInputs:
        norm = self.feature_norm
        if norm == "auto":
            norm = FEATURE_NORM if self.level == "node" else 0.0
        return FeatureInputs(graph, device, norm=norm or None)

    def _template(self, graph: Graph) -> Sequence[Event]:
        if self.level != "node":
            return ()
        num_train = self._num_train(graph)
        return (self._recipe(num_train).event(num_train, ratio=1.0, label="training"),)

    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        return {
            "mlp": ReplicaMLP(
                replicas,
                [num_features, *[self.hidden] * (self._num_layers() - 1), num_classes],
                activation=self.activation,
                batch_norm=self._uses_batch_norm(),
                dropout=self.dropout,
            )
        }

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        graph, device = run.graph, run.device
        model = self._start_modules(run)["mlp"]
        inputs = self._features(graph, device)
        trainer = self._trainer(run)
        with run.timed("classifier"):
            train = partial(
                trainer.fit, model, inputs, phase="classifier", private=self._private(run)
            )
            run.journal.trained("classifier", model, train)
            with torch.no_grad():
                scores: Tensor = model(inputs.all())
        return scores

    def _class_scores(self, graph: Graph | None) -> Tensor:
        if graph is None:
            raise InputError("An MLP keeps no features: give the graph whose nodes to predict.")
        device = choose_device(self.device)
        model, features = self.modules_["mlp"].to(device), self._features(graph, device)
        scores: Tensor = (
            row_by_row(model, features) if self.level == "node" else model(features.all())
        )
        return scores[0]

    def _card_facts(self) -> ReleaseFacts:
        steps = ["preparation", "training", "selection"]
        if self._uses_batch_norm():
            steps.append("statistics")
        return ReleaseFacts(method="MLP", messages="none", steps=steps)
