"""MLP: the baseline that ignores the graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_integer
from gapgnn.graph import Graph
from gapgnn.methods.base import NodeClassifier, Run, choose_device
from gapgnn.nn import ReplicaMLP
from gapgnn.privacy.accounting import Event
from gapgnn.privacy.ledger import Charge
from gapgnn.training import FeatureInputs


class MLP(NodeClassifier):
    """Node classifier on features alone.

    It reads no edge, so at edge level its epsilon is 0 whatever was asked. At node level it is
    trained by DP-SGD (MLP-DP in the paper). Any graph with the same features can be predicted,
    free of charge: a prediction is computed from the node's own features.

    Args:
        level: what is protected: ``none``, ``edge`` or ``node``.
        epsilon: privacy budget at node level.
        delta: failure probability; auto is the largest power of ten that is at most 1 / (10 times
            the protected entities).
        relation: which graphs are neighbours; auto is undirected for a symmetric graph, directed
            otherwise, and add-remove at node level.
        layers: number of layers, the output layer included.
        hidden: width of every hidden layer.
        activation: activation after every hidden layer.
        batch_norm: batch normalisation; auto is on except at node level, where it is not allowed.
        dropout: dropout rate after every hidden layer; 0 at node level.
        epochs: passes over the training nodes; auto is 100, at node level 10.
        batch_size: nodes per step; auto is all of them, at node level 256 to 4096 by graph size.
        learning_rate: step size of the optimiser.
        weight_decay: L2 penalty.
        optimizer: optimiser.
        clip: largest gradient norm of one node at node level.
        train_size: number of training people that is made public at node level, where the rate and
            the number of steps of DP-SGD follow from it; auto is their number rounded to two
            digits.
        noise: safe is exact on a fixed grid, for releases; fast is single precision, for
            experiments.
        insecure_noise_seed: makes the noise predictable, for tests and tables; the result is then
            not private and its card says so.
        repeats: independent models trained together; each is charged. The first is the model.
        split: whether repeats after the first draw fresh splits or keep the graph's own.
        seed: of splits, initial weights and shuffling; never of noise.
        device: where to compute.
        ledger: file of the privacy ledger; left out: the user's own.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> MLP(level="edge", epochs=5).fit(graph).card_.epsilon
    0.0
    """

    method = "mlp"

    def __init__(
        self,
        *,
        level: Literal["none", "edge", "node"] = "edge",
        epsilon: float = 8.0,
        delta: float | Literal["auto"] = "auto",
        relation: Literal["auto", "undirected", "directed", "add-remove", "replace"] = "auto",
        layers: int = 3,
        hidden: int = 16,
        activation: Literal["selu", "relu", "elu", "gelu", "tanh"] = "selu",
        batch_norm: bool | Literal["auto"] = "auto",
        dropout: float = 0.0,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: Literal["adam", "sgd"] = "adam",
        clip: float = 1.0,
        train_size: int | Literal["auto"] = "auto",
        noise: Literal["safe", "fast"] = "safe",
        insecure_noise_seed: int | None = None,
        repeats: int = 1,
        split: Literal["fresh", "fixed"] = "fresh",
        seed: int = 0,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        ledger: str | Path | None = None,
    ) -> None:
        self.level = level
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.layers = layers
        self.hidden = hidden
        self.activation = activation
        self.batch_norm = batch_norm
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.optimizer = optimizer
        self.clip = clip
        self.train_size = train_size
        self.noise = noise
        self.insecure_noise_seed = insecure_noise_seed
        self.repeats = repeats
        self.split = split
        self.seed = seed
        self.device = device
        self.ledger = ledger

    def _check_parameters(self) -> None:
        check_integer("layers", self.layers, at_least=1)
        check_integer("hidden", self.hidden, at_least=1)

    def _template(self, graph: Graph) -> Sequence[Event]:
        if self.level != "node":
            return ()
        num_train = self._num_train(graph)
        return (self._recipe(num_train).event(num_train, ratio=1.0, label="training"),)

    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        return {
            "mlp": ReplicaMLP(
                replicas,
                [num_features, *[self.hidden] * (self.layers - 1), num_classes],
                activation=self.activation,
                batch_norm=self._uses_batch_norm(),
                dropout=self.dropout,
            )
        }

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        graph, device = run.graph, run.device
        model = self._start_modules(run)["mlp"]
        inputs = FeatureInputs(graph, device)
        trainer = self._trainer(run)
        with run.timed("classifier"):
            trainer.fit(model, inputs, phase="classifier", private=self._private(run))
            with torch.no_grad():
                scores: Tensor = model(inputs.all())
        return scores

    def _class_scores(self, graph: Graph | None) -> Tensor:
        if graph is None:
            raise InputError("An MLP keeps no features: give the graph whose nodes to predict.")
        device = choose_device(self.device)
        scores: Tensor = self.modules_["mlp"].to(device)(FeatureInputs(graph, device).all())
        return scores[0]

    def _card_facts(self) -> dict[str, Any]:
        steps = ["preparation", "training", "selection"]
        if self._uses_batch_norm():
            steps.append("statistics")
        return {"method": "MLP", "messages": "none", "steps": steps}
