"""GAP: graph neural networks with aggregation perturbation, at three levels of privacy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer, check_number
from gapgnn.graph.graph import Graph
from gapgnn.methods.base import NodeClassifier, Run, choose_device
from gapgnn.methods.guarantee import Guarantee
from gapgnn.methods.releases import ReleasedHops
from gapgnn.nn.gap import COMBINATIONS, Encoder, MultiHopClassifier
from gapgnn.privacy.aggregation import PrivateAggregation, row_normalise
from gapgnn.privacy.events import Event, Gaussian
from gapgnn.privacy.ledger import Charge, Ledger
from gapgnn.rng import NoiseKey
from gapgnn.training.inputs import FeatureInputs, HopInputs
from gapgnn.training.trainer import Trainer


class GAP(NodeClassifier):
    """Node classifier that reads the edges only through K noisy aggregations.

    An encoder is trained on features and labels; its unit-normalised codes are summed over the
    neighbours, perturbed and normalised K times; a classifier is trained on hops 0 to K. At edge
    level only the aggregations are charged. At node level encoder and classifier are trained by
    DP-SGD, every out-list is cut to ``max_degree`` entries, and all of it is charged together
    (privacy page, sections 1 to 3). Predictions on the training graph are free: the cached hops
    answer. Predicting on another graph releases its hops once and charges that graph, and every
    earlier graph it shares nodes with.

    Args:
        level: what is protected: ``none``, ``edge`` (who is connected to whom) or ``node`` (a whole
            person).
        epsilon: privacy budget; smaller is more private. Ignored at level none.
        delta: failure probability; auto is the largest power of ten below 1 / (protected entities).
        relation: which graphs are neighbours; auto is undirected for a symmetric graph, directed
            otherwise, and add-remove at node level.
        hops: number K of noisy aggregations.
        max_degree: entries D that each out-list is cut to at node level.
        encoder_layers: layers of the encoder; 0 sends the raw features, normalised.
        base_layers: layers of the network applied to each hop.
        head_layers: layers of the network applied to the combined hops.
        hidden: width of every hidden layer and of the codes.
        combine: how the hops are combined.
        activation: activation after every hidden layer.
        batch_norm: batch normalisation; auto is on except at node level, where it is not allowed.
        dropout: dropout rate after every hidden layer.
        epochs: passes over the training nodes per phase; auto is 100, at node level 10.
        batch_size: nodes per step; auto is all of them, at node level 256 to 4096 by graph size.
        learning_rate: step size of the optimiser.
        weight_decay: L2 penalty.
        optimizer: optimiser of both phases.
        clip: largest gradient norm of one node at node level.
        noise_ratios: noise multipliers of encoder, aggregation and classifier relative to each
            other, at node level.
        noise: safe is exact on a fixed grid, for releases; fast is single precision, for
            experiments.
        insecure_noise_seed: makes the noise predictable, for tests and tables; the result is then
            not private and its card says so.
        repeats: independent models trained together; each is charged. The first is the model.
        split: whether repeats after the first draw fresh splits or keep the graph's own.
        seed: of splits, initial weights and shuffling; never of noise.
        device: where to compute.
        ledger: file of the privacy ledger; left out: the user's own.

    >>> from gapgnn.graph.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> model = GAP(level="edge", epsilon=4.0, epochs=5).fit(graph)
    >>> model.predict(graph).shape
    (300,)
    """

    method = "gap"

    def __init__(
        self,
        *,
        level: Literal["none", "edge", "node"] = "edge",
        epsilon: float = 1.0,
        delta: float | Literal["auto"] = "auto",
        relation: Literal["auto", "undirected", "directed", "add-remove", "replace"] = "auto",
        hops: int = 2,
        max_degree: int = 100,
        encoder_layers: int = 2,
        base_layers: int = 1,
        head_layers: int = 1,
        hidden: int = 16,
        combine: Literal["concat", "sum", "max", "mean", "attention"] = "concat",
        activation: Literal["selu", "relu", "elu", "gelu", "tanh"] = "selu",
        batch_norm: bool | Literal["auto"] = "auto",
        dropout: float = 0.0,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: Literal["adam", "sgd"] = "adam",
        clip: float = 1.0,
        noise_ratios: tuple[float, float, float] = (1.0, 1.0, 1.0),
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
        self.hops = hops
        self.max_degree = max_degree
        self.encoder_layers = encoder_layers
        self.base_layers = base_layers
        self.head_layers = head_layers
        self.hidden = hidden
        self.combine = combine
        self.activation = activation
        self.batch_norm = batch_norm
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.optimizer = optimizer
        self.clip = clip
        self.noise_ratios = noise_ratios
        self.noise = noise
        self.insecure_noise_seed = insecure_noise_seed
        self.repeats = repeats
        self.split = split
        self.seed = seed
        self.device = device
        self.ledger = ledger

    def _check_parameters(self) -> None:
        check_integer("hops", self.hops, at_least=1)
        check_integer("encoder_layers", self.encoder_layers, at_least=0)
        check_integer("base_layers", self.base_layers, at_least=1)
        check_integer("head_layers", self.head_layers, at_least=1)
        check_integer("hidden", self.hidden, at_least=1)
        check_integer("max_degree", self.max_degree, at_least=1)
        check_choice("combine", self.combine, COMBINATIONS)
        if len(self.noise_ratios) != 3:
            raise InputError(f"`noise_ratios` must be three numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios:
            check_number("noise_ratios", ratio, above=0)

    def _template(self, graph: Graph) -> Sequence[Event]:
        """At edge level K hops; at node level also the DP-SGD steps of encoder and classifier."""
        if self.level == "none":
            return ()
        encoder_ratio, hop_ratio, classifier_ratio = self.noise_ratios
        hops = Gaussian(hop_ratio, count=self.hops, label="aggregation")
        if self.level == "edge":
            return (hops,)
        num_train = int(graph.train_mask.sum())
        recipe = self._recipe(num_train)
        classifier = recipe.event(num_train, ratio=classifier_ratio, label="classifier")
        if self.encoder_layers == 0:
            return (hops, classifier)
        encoder = recipe.event(num_train, ratio=encoder_ratio, label="encoder")
        return (encoder, hops, classifier)

    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        shared: dict[str, Any] = {
            "hidden": self.hidden,
            "activation": self.activation,
            "batch_norm": self._uses_batch_norm(),
            "dropout": self.dropout,
        }
        modules: dict[str, nn.Module] = {}
        width = num_features
        if self.encoder_layers > 0:
            width = self.hidden
            modules["encoder"] = Encoder(
                replicas, num_features, num_classes, layers=self.encoder_layers, **shared
            )
        modules["classifier"] = MultiHopClassifier(
            replicas,
            [width] * (self.hops + 1),
            num_classes,
            base_layers=self.base_layers,
            head_layers=self.head_layers,
            combine=self.combine,
            **shared,
        )
        return modules

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        graph, device = run.graph, run.device
        modules = self._start_modules(run)
        inputs = FeatureInputs(graph, device)
        trainer = Trainer(
            labels=torch.tensor(graph.labels, device=device),
            splits=run.splits,
            recipe=self._recipe(int(graph.train_mask.sum())),
            seed=self.seed,
            callback=run.callback,
        )
        with run.timed("encoder"):
            if "encoder" in modules:
                private = self._private(run, self.noise_ratios[0])
                trainer.fit(modules["encoder"], inputs, phase="encoder", private=private)
        with run.timed("aggregate"), torch.no_grad():
            rows = self._hop_zero(inputs, run.replicas)
            noisy = self._release(graph, rows, run.guarantee, run.keys, run)
        with run.timed("classifier"):
            hops = [rows, *noisy]
            private = self._private(run, self.noise_ratios[2])
            trainer.fit(modules["classifier"], HopInputs(hops), phase="classifier", private=private)
            with torch.no_grad():
                scores: Tensor = modules["classifier"](hops)
        self._remember(graph, charge, hops)
        return scores

    def _hop_zero(self, inputs: FeatureInputs, replicas: int) -> Tensor:
        """Return unit rows of the encoder's codes, or of the raw features without an encoder."""
        if "encoder" in self.modules_:
            encoder = self.modules_["encoder"]
            assert isinstance(encoder, Encoder)
            return row_normalise(encoder.encode(inputs.all()))
        rows = row_normalise(inputs.dense())
        return rows.expand(replicas, *rows.shape)

    def _release(
        self,
        graph: Graph,
        rows: Tensor,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        run: Run | None = None,
    ) -> list[Tensor]:
        """Compute the noisy hops of a graph: the only reading of its edges."""
        multiplier = 0.0
        if guarantee.level != "none":
            if guarantee.noise_multiplier is None:
                raise PrivacyError("A finite budget must have noise. Got none.")
            multiplier = guarantee.noise_multiplier * self.noise_ratios[1]
        aggregation = PrivateAggregation(
            graph,
            level=guarantee.level,
            relation=guarantee.relation,
            noise_multiplier=multiplier,
            max_degree=self.max_degree if guarantee.level == "node" else None,
            keys=[key.derive("aggregation") for key in keys],
            construction=self.noise,
            device=rows.device,
        )
        if run is None:
            return aggregation.run(rows, self.hops)
        run.callback.start("aggregation", self.hops)
        return aggregation.run(
            rows, self.hops, progress=lambda done, total: run.callback.advance("aggregation")
        )

    def _remember(
        self, graph: Graph, charge: Charge | None, hops: Sequence[Tensor]
    ) -> ReleasedHops:
        """Keep one graph's hops of the first repeat; at node level hop 0 stays out."""
        kept = hops if self.level != "node" else hops[1:]
        first = tuple(hop[0].detach().cpu().clone() for hop in kept)
        return self.releases_.add(graph, charge, first, has_hop_zero=self.level != "node")

    def _class_scores(self, graph: Graph | None) -> Tensor:
        """Classify from released hops alone: no edge is read for a graph that was released."""
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        if graph is None:
            released: ReleasedHops | None = self.releases_.training()
        else:
            # Without a price there is no charge to know a graph by, and reading it again is free.
            by_ids = self.level != "none"
            released = self.releases_.find(graph, Ledger(self.ledger), by_ids=by_ids)
        if released is None:
            assert graph is not None
            released = self._release_for_prediction(graph, device)
        hops = [hop.to(device).unsqueeze(0) for hop in released.hops]
        if not released.has_hop_zero:
            if graph is None:
                raise InputError(
                    "At node level a model keeps no features: give the graph to predict."
                )
            hops = [self._hop_zero(FeatureInputs(graph, device), 1), *hops]
        scores: Tensor = self.modules_["classifier"](hops)
        return scores[0]

    def _release_for_prediction(self, graph: Graph, device: torch.device) -> ReleasedHops:
        """Pay for and release the hops of a graph the model has not read (inductive setting)."""
        events: tuple[Event, ...] = ()
        if self.noise_multiplier_ is not None:
            multiplier = self.noise_multiplier_ * self.noise_ratios[1]
            events = (Gaussian(multiplier, count=self.hops, label="aggregation for prediction"),)
        guarantee = Guarantee.of_events(
            graph,
            events,
            level=self.level,
            relation=self.relation,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier_,
        )
        sharing = []
        if events:
            sharing = self.releases_.sharing(graph, Ledger(self.ledger))
        charge = self._charge(
            guarantee, [graph.fingerprint, *sharing], graph.name, purpose="predict"
        )
        rows = self._hop_zero(FeatureInputs(graph, device), 1)
        key = self._noise_keys()[0].derive("predict", graph.fingerprint)
        noisy = self._release(graph, rows, guarantee, [key])
        if charge is not None:
            Ledger(self.ledger).complete(charge.id)
        return self._remember(graph, charge, [rows, *noisy])

    def _card_facts(self) -> dict[str, Any]:
        steps = ["preparation", "training", "hop0", "classifier", "selection", "prediction"]
        if self._uses_batch_norm():
            steps.append("statistics")
        return {"method": "GAP", "messages": "features", "steps": steps}
