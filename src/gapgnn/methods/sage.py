"""SAGE: GraphSAGE without privacy, on randomised edges, or with one layer by DP-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods.base import Run
from gapgnn.methods.reader import EdgeReader
from gapgnn.methods.releases import ReleasedHops
from gapgnn.methods.sage_arcs import own_arcs, released_arcs
from gapgnn.nn import Arcs, Sage
from gapgnn.privacy import Guarantee, check_finite_budget, resolve_relation
from gapgnn.privacy.accounting import Event, Gaussian
from gapgnn.privacy.dpsgd import NOT_PROVEN, neighbourhood_event, neighbourhood_sensitivity
from gapgnn.privacy.ledger import Charge
from gapgnn.privacy.mechanisms import (
    PERTURBATIONS,
    Cells,
    PrivateAggregation,
    check_output_fits,
    perturbation_events,
    row_normalise,
)
from gapgnn.rng import NoiseKey
from gapgnn.training import ExampleInputs, FeatureInputs, GraphInputs, Trainer

MOST_LAYERS = 5


class SAGE(EdgeReader):
    """Node classifier by GraphSAGE with sums over in-neighbours (paper, competing methods).

    At edge level (SAGE-EDP) the edges are randomised once and released; the network is trained on
    the released graph, which is post-processing: epsilon as asked, delta 0. At node level
    (SAGE-NDP) out-lists are cut to ``max_degree`` entries and one layer is trained by DP-SGD, an
    example being a node with its in-neighbours, clipped as one; predictions read one noisy
    aggregation of unit rows, charged with the training (privacy page, section 5). Predictions on
    the training graph are free. Predicting on another graph releases it once and charges it.

    Args:
        level: what is protected: ``none``, ``edge`` (who is connected to whom) or ``node`` (a whole
            person).
        epsilon: privacy budget; smaller is more private. Ignored at level none.
        delta: failure probability at node level; auto is the largest power of ten that is at most
            1 / (10 times the protected entities). At edge level none is needed.
        relation: which graphs are neighbours; auto is undirected for a symmetric graph, directed
            otherwise, and add-remove at node level (replace has no accounting here).
        layers: message-passing layers, 1 to 5; auto is 2, at node level 1, where no other number
            can be accounted.
        perturbation: how the edges are randomised at edge level.
        max_degree: entries D that each out-list is cut to at node level.
        pre_layers: layers of the network before message passing.
        post_layers: layers of the network after it, the output layer included.
        hidden: width of every hidden layer.
        activation: activation after every hidden layer.
        batch_norm: batch normalisation; auto is on except at node level, where it is not allowed.
        dropout: dropout rate after every hidden layer of the networks before and after; 0 at node
            level.
        epochs: passes over the training nodes; auto is 100, at node level 10.
        batch_size: nodes per step; auto is all of them, at node level 256 to 4096 by graph size.
        learning_rate: step size of the optimiser.
        weight_decay: L2 penalty.
        optimizer: optimiser.
        clip: largest gradient norm of one example at node level.
        train_size: number of training people that is made public at node level, where the rate and
            the number of steps of DP-SGD follow from it; auto is their number rounded to two
            digits.
        noise_ratios: noise multipliers of training and aggregation relative to each other, at node
            level.
        memory_limit: GiB that the output of edgerand may take.
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
    >>> model = SAGE(level="edge", epsilon=4.0, epochs=5).fit(graph)
    >>> model.card_.epsilon, model.card_.delta
    (4.0, 0.0)
    """

    method = "sage"

    def __init__(
        self,
        *,
        level: Literal["none", "edge", "node"] = "edge",
        epsilon: float = 4.0,
        delta: float | Literal["auto"] = "auto",
        relation: Literal["auto", "undirected", "directed", "add-remove", "replace"] = "auto",
        layers: int | Literal["auto"] = "auto",
        perturbation: Literal["arr", "edgerand", "lapgraph"] = "arr",
        max_degree: int = 100,
        pre_layers: int = 2,
        post_layers: int = 1,
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
        noise_ratios: tuple[float, float] = (1.0, 1.0),
        memory_limit: float = 16.0,
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
        self.perturbation = perturbation
        self.max_degree = max_degree
        self.pre_layers = pre_layers
        self.post_layers = post_layers
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
        self.noise_ratios = noise_ratios
        self.memory_limit = memory_limit
        self.noise = noise
        self.insecure_noise_seed = insecure_noise_seed
        self.repeats = repeats
        self.split = split
        self.seed = seed
        self.device = device
        self.ledger = ledger

    def _check_parameters(self) -> None:
        if self.layers != "auto":
            check_integer("layers", self.layers, at_least=1, at_most=MOST_LAYERS)
        if self.level == "node" and self._num_layers() != 1:
            raise InputError(
                "`layers` must be 1 or auto at level node: what one person touches through more "
                f"layers is not bounded by the degree alone. Got {self.layers}."
            )
        if self.level == "node" and self.relation == "replace":
            raise InputError(
                "`relation` must be add-remove for SAGE at level node: replacing a record has no "
                "accounting here. Got 'replace'."
            )
        check_choice("perturbation", self.perturbation, PERTURBATIONS)
        for name in ("max_degree", "pre_layers", "post_layers", "hidden"):
            check_integer(name, getattr(self, name), at_least=1)
        check_number("memory_limit", self.memory_limit, above=0)
        if len(self.noise_ratios) != 2:
            raise InputError(f"`noise_ratios` must be two numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios:
            check_number("noise_ratios", ratio, above=0)

    def _num_layers(self) -> int:
        if self.layers == "auto":
            return 1 if self.level == "node" else 2
        return int(self.layers)

    def _template(self, graph: Graph) -> Sequence[Event]:
        """At node level the DP-SGD steps and the noisy aggregation that predictions read."""
        if self.level != "node":
            return ()
        num_train = self._num_train(graph)
        schedule = self._recipe(num_train).schedule(num_train)
        training = neighbourhood_event(
            self.noise_ratios[0],
            sampling_rate=schedule.sampling_rate,
            steps=schedule.steps,
            max_degree=self.max_degree,
            label="training",
        )
        return (training, Gaussian(self.noise_ratios[1], label="aggregation"))

    def _resolve(self, graph: Graph) -> Guarantee:
        if self.level != "edge":
            return super()._resolve(graph)
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        cells = Cells.of(relation, num_nodes=graph.num_nodes, is_directed=graph.is_directed)
        check_finite_budget(self.level, self.epsilon)
        bits = cells.bits_per_edge
        guarantee = Guarantee.pure(
            graph,
            perturbation_events(self.perturbation, self.epsilon, bits_per_edge=bits),
            level=self.level,
            relation=self.relation,
            epsilon=self.epsilon,
            delta=self.delta,
        )
        check_output_fits(self.perturbation, self.epsilon, cells, memory_limit=self.memory_limit)
        return guarantee

    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        return {
            "sage": Sage(
                replicas,
                num_features,
                num_classes,
                hidden=self.hidden,
                layers=self._num_layers(),
                pre_layers=self.pre_layers,
                post_layers=self.post_layers,
                activation=self.activation,
                batch_norm=self._uses_batch_norm(),
                dropout=self.dropout,
                unit_messages=self.level == "node",
            )
        }

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        graph, device = run.graph, run.device
        model = self._start_modules(run)["sage"]
        features = FeatureInputs(graph, device)
        trainer = self._trainer(run)
        if self.level == "node":
            return self._train_examples(run, trainer, features, charge)
        with run.timed("aggregate"):
            inputs = GraphInputs(features, self._arcs(graph, run.guarantee, run.keys, device))
        with run.timed("classifier"):
            trainer.fit(model, inputs, phase="classifier")
            with torch.no_grad():
                scores: Tensor = model(inputs.all())
        self._remember(graph, charge, scores)
        return scores

    def _train_examples(
        self, run: Run, trainer: Trainer, features: FeatureInputs, charge: Charge | None
    ) -> Tensor:
        """DP-SGD over nodes with their in-neighbours, then one noisy aggregation for all nodes.

        Relation ``add-remove``; one record moves a batch's clipped sum by at most 2 D + 1 clips,
        and the aggregation by at most sqrt(D) (privacy page, sections 1 and 5). Both read the same
        cut of the out-lists, which depends on a replica's secret and on no result.
        """
        model = self.modules_["sage"]
        aggregation = self._aggregation(run.graph, run.guarantee, run.keys, run.device)
        with run.timed("classifier"):
            lists = [aggregation.in_lists(replica) for replica in range(len(run.keys))]
            private = self._private(
                run,
                self.noise_ratios[0],
                sensitivity=neighbourhood_sensitivity(self.max_degree),
            )
            examples = ExampleInputs(features, lists)
            trainer.fit(model, examples, phase="classifier", private=private)
        with run.timed("aggregate"), torch.no_grad():
            codes = self._codes(features)
            summed = aggregation.hop(codes, 1)
            scores = self._classify(codes, summed)
        self._remember(run.graph, charge, summed)
        return scores

    def _arcs(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
    ) -> Arcs:
        """Return the arcs to learn from: the graph's own at level none, released ones otherwise."""
        if guarantee.level == "none":
            return own_arcs(graph, device)
        return released_arcs(
            graph,
            keys,
            device,
            perturbation=self.perturbation,
            epsilon=self.epsilon,
            relation=guarantee.relation,
            construction=self.noise,
            memory_limit=self.memory_limit,
        )

    def _codes(self, features: FeatureInputs) -> Tensor:
        """Return the unit rows that nodes send at node level."""
        model = self.modules_["sage"]
        assert isinstance(model, Sage)
        return row_normalise(model.codes(features.all()))

    def _classify(self, codes: Tensor, summed: Tensor) -> Tensor:
        model = self.modules_["sage"]
        assert isinstance(model, Sage)
        return model.classify(codes, summed)

    def _aggregation(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
    ) -> PrivateAggregation:
        """Return the noisy aggregation of a graph at node level: sensitivity sqrt(D)."""
        if guarantee.noise_multiplier is None:
            raise PrivacyError("A finite budget must have noise. Got none.")
        return PrivateAggregation(
            graph,
            level=guarantee.level,
            relation=guarantee.relation,
            noise_multiplier=guarantee.noise_multiplier * self.noise_ratios[1],
            max_degree=self.max_degree,
            keys=[key.derive("aggregation") for key in keys],
            construction=self.noise,
            device=device,
        )

    def _remember(self, graph: Graph, charge: Charge | None, rows: Tensor) -> ReleasedHops:
        """Keep the first repeat's class scores; at node level its noisy aggregation instead.

        Scores at edge level are computed from the released edges and from public features.
        """
        first = rows[0].detach().cpu().clone()
        return self.releases_.add(graph, charge, (first,), has_hop_zero=self.level != "node")

    def _scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        (rows,) = released.hops
        if self.level != "node":
            return rows
        if graph is None:
            raise InputError("The model keeps no features: give the graph to predict.")
        codes = self._codes(FeatureInputs(graph, device))
        return self._classify(codes, rows.to(device).unsqueeze(0))[0]

    def _read(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
        charge: Charge | None,
    ) -> ReleasedHops:
        features = FeatureInputs(graph, device)
        if self.level == "node":
            aggregation = self._aggregation(graph, guarantee, keys, device)
            rows = aggregation.hop(self._codes(features), 1)
        else:
            arcs = self._arcs(graph, guarantee, keys, device)
            rows = self.modules_["sage"](GraphInputs(features, arcs).all())
        return self._remember(graph, charge, rows)

    def _prediction_guarantee(self, graph: Graph) -> Guarantee:
        if self.level == "edge":
            return self._resolve(graph)
        events: tuple[Event, ...] = ()
        if self.noise_multiplier_ is not None:
            multiplier = self.noise_multiplier_ * self.noise_ratios[1]
            events = (Gaussian(multiplier, label="aggregation for prediction"),)
        return Guarantee.of_events(
            graph,
            events,
            level=self.level,
            relation=self.relation,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier_,
        )

    def _card_facts(self) -> dict[str, Any]:
        if self.level == "edge":
            steps = ["preparation", "perturbed", "selection"]
            return {"method": "SAGE", "messages": "perturbed", "steps": steps}
        steps = ["preparation", "training", "selection", "prediction"]
        facts: dict[str, Any] = {"method": "SAGE", "messages": "features", "steps": steps}
        if self.level == "node":
            facts["warnings"] = [NOT_PROVEN]
        return facts
