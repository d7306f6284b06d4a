"""MLP: the baseline that ignores the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods.checks import choose_device
from gapgnn.methods.configs import TRAINING, MLPConfig
from gapgnn.methods.estimator import Fit, NodeClassifier, Shape
from gapgnn.methods.releases import ReleasedHops
from gapgnn.methods.settings import Settings
from gapgnn.methods.unused import Unused
from gapgnn.nn import LinearBySize, ReplicaMLP, ShrunkRegression
from gapgnn.privacy import Plan, PlannedTraining, PublicFacts
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.training import (
    FEATURE_DECAY,
    FEATURE_WIDTH,
    CrossFit,
    FeatureInputs,
    FeatureModels,
    FeatureNetworks,
    Recipe,
    RowScale,
    features_read,
    minibatch_recipe,
    node_learning_rate,
    node_recipe,
    resolve_folds,
    row_by_row,
    shallow_networks,
)

# Name of the network and of its DP-SGD event.
NETWORK, EVENT = "mlp", "training"


@dataclass(frozen=True, kw_only=True)
class MLPSettings(Settings):
    """The MLP with nothing left to ``auto``.

    Attributes:
        folds: of the cross-fitted networks; 0: a single network.
        layers: the output layer included.
        hidden: width of hidden layers.
        dropout: after every hidden layer.
    """

    folds: int
    layers: int
    hidden: int
    dropout: float


class MLP(MLPConfig, NodeClassifier[MLPSettings]):
    """Node classifier on features alone.

    It reads no edge, so at edge level its epsilon is 0 for any budget. There and at level none it
    is the ensemble of LabelGAP's feature models: networks that each omit a fold of the training
    nodes, shallow networks and, up to 4,000 training nodes, linear ones. At node level it is one
    network, trained by DP-SGD (MLP-DP in GAP). Predictions on any graph with the same features are
    free, because they follow from the node's own features.

    Its parameters are those of :class:`~gapgnn.methods.configs.mlp.MLPConfig`.

    >>> from gapgnn import load_dataset
    >>> MLP(level="edge", epochs=5).fit(load_dataset("social")).card_.epsilon
    0.0
    """

    method: ClassVar[str] = "mlp"
    settings_class: ClassVar[type[Settings]] = MLPSettings
    keeps_releases: ClassVar[bool] = True

    def after_release(self) -> frozenset[str]:
        """Below node level nothing is released: every parameter of the networks is free."""
        own = {"layers", "hidden", "activation", "dropout"}
        return super().after_release() | {*TRAINING, *own}

    def check_parameters(self) -> None:
        """Refuse invalid parameters."""
        check_integer("layers", self._num_layers(), at_least=1)
        check_integer("hidden", self._widths()[0], at_least=1)
        if self.feature_norm != "auto":
            check_number("feature_norm", self.feature_norm, at_least=0)

    def draws_noise(self) -> bool:
        """Whether a fit releases something of private data."""
        return self.level == "node"

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters that do nothing with the others as they are."""
        yield from super().unused()
        if self._num_layers() == 1 and not self._num_folds():
            yield Unused(
                ("hidden", "activation", "dropout", "batch_norm"),
                "with one layer and no folds: there is no hidden layer",
            )

    def weighs_answers(self) -> bool:
        """Cross-fitted networks train without class weights."""
        return self._num_folds() > 0

    def _num_layers(self) -> int:
        if self.layers != "auto":
            return self.layers
        return 2 if self.level == "node" else 3

    def _num_folds(self) -> int:
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

    def plan(self, facts: PublicFacts) -> Plan[MLPSettings]:
        """Return DP-SGD at node level, and nothing elsewhere."""
        settings = self._settings(facts)
        if self.level != "node":
            return self.make_plan(facts, settings)
        event = settings.recipe.event(facts.num_train, ratio=1.0, label=EVENT)
        return self.make_plan(
            facts,
            settings,
            template=[event],
            training={"classifier": PlannedTraining(event=EVENT)},
        )

    def _settings(self, facts: PublicFacts) -> MLPSettings:
        recipe, budget = (
            self.recipe(facts.num_train),
            self.add_remove_epsilon(self.relation_on(facts)),
        )
        is_node = self.level == "node"
        if self.learning_rate == "auto" and is_node:
            recipe = replace(recipe, learning_rate=node_learning_rate(facts.num_train, budget))
        scale = RowScale.suited(facts.num_train, budget) if is_node else None
        if self.feature_norm != "auto":
            scale = RowScale(self.feature_norm) if self.feature_norm else None
        hidden, dropout = self._widths()
        if self._num_folds():
            suited = FeatureNetworks.suited(facts.num_train, facts.num_features)
            dropout = suited.dropout if self.dropout == "auto" else self.dropout
            epochs = suited.steps if self.epochs == "auto" else self.epochs
            decay = recipe.weight_decay or FEATURE_DECAY
            recipe = replace(recipe, epochs=epochs, weight_decay=decay)
        return self.settings(
            MLPSettings,
            facts,
            recipe,
            row_scale=scale,
            folds=self._num_folds(),
            layers=self._num_layers(),
            hidden=hidden,
            dropout=dropout,
        )

    def recipe(self, num_train: int) -> Recipe:
        """Return minibatch steps with folds, more steps of DP-SGD at node level."""
        paper_recipe = super().recipe(num_train)
        given: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size}
        if self._num_folds():
            return minibatch_recipe(paper_recipe, num_train, **given)
        return (
            node_recipe(paper_recipe, num_train, **given) if self.level == "node" else paper_recipe
        )

    def networks(self, settings: MLPSettings, shape: Shape) -> dict[str, nn.Module]:
        """Return the network, or with folds all three networks of each, untrained."""
        width = features_read(shape.features, settings.row_scale)
        count = shape.replicas * max(1, settings.folds)
        shared: dict[str, Any] = {"batch_norm": settings.batch_norm, "dropout": settings.dropout}
        modules: dict[str, nn.Module] = {
            NETWORK: ReplicaMLP(
                count,
                [width, *[settings.hidden] * (settings.layers - 1), shape.classes],
                activation=self.activation,
                **shared,
            )
        }
        if settings.folds:
            modules["shallow"] = shallow_networks(
                count, width, shape.classes, hidden=settings.hidden, **shared
            )
            modules["linear"] = LinearBySize(count, width, shape.classes)
            modules["shrunk"] = ShrunkRegression(count, width, shape.classes)
        return modules

    def train(self, fit: Fit[MLPSettings]) -> Tensor:
        """Train the networks; return class scores of every node."""
        graph, modules = fit.graph, self.modules_
        inputs, crossfit = self._features(graph, fit.device), self._crossfit(graph)

        def train(name: str, network: nn.Module) -> None:
            trainer = fit.trainer
            if crossfit is not None:
                trainer = crossfit.trainer(trainer, fit.settings.recipe)
            with fit.timed("classifier"):
                fit.session.train(name, network, trainer, inputs)

        train("classifier", modules[NETWORK])
        with fit.timed("classifier"):
            if crossfit is not None:
                train("shallow", modules["shallow"])
                crossfit.solve(FeatureModels.of(modules, NETWORK), fit.trainer, inputs)
            return self._scores(inputs, crossfit, fit.repeats)

    def _features(self, graph: Graph, device: torch.device) -> FeatureInputs:
        return FeatureInputs(graph, device, scale=self.plan_.settings.row_scale)

    def _crossfit(self, graph: Graph) -> CrossFit | None:
        folds = self.plan_.settings.folds
        return CrossFit.of(graph, seed=self.seed, folds=folds) if folds else None

    @torch.no_grad()
    def _scores(self, inputs: FeatureInputs, crossfit: CrossFit | None, repeats: int) -> Tensor:
        """Return the scores of all networks for every node, from its features alone."""
        if crossfit is not None:
            nobody = torch.zeros(repeats, len(crossfit.fold), dtype=torch.bool)
            nobody = nobody.to(inputs.device)
            return crossfit.log_probabilities(
                FeatureModels.of(self.modules_, NETWORK), inputs, nobody
            )
        scores: Tensor = self.modules_[NETWORK](inputs.all())
        return scores

    def class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores from features; any graph with the same features will do."""
        if graph is None:
            raise InputError("An MLP keeps no features: give the graph whose nodes to predict.")
        device = choose_device(self.device)
        model, features = self.networks_on(device)[NETWORK], self._features(graph, device)
        if self.level == "node":
            return row_by_row(model, features)[0]
        return self._scores(features, self._crossfit(graph), 1)[0]

    def importance_inputs(
        self, graph: Graph
    ) -> tuple[None, Callable[[Graph, ReleasedHops | None], Tensor]]:
        """Return no released rows, and class scores from the features of a graph."""
        return None, lambda given, _: self.class_scores(given)

    def card_facts(self) -> ReleaseFacts:
        """Return what the card says of the MLP."""
        steps = self.steps_taken("preparation", "training", "selection")
        return ReleaseFacts(method="MLP", messages="none", steps=steps)
