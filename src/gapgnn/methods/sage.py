"""SAGE: GraphSAGE without privacy, on randomised edges, or with one layer by DP-SGD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.graph import Graph, csr
from gapgnn.methods.base import EdgeReader, Run
from gapgnn.methods.journal import NoJournal
from gapgnn.methods.releases import ReleasedHops
from gapgnn.methods.unused import Unused
from gapgnn.nn import Arcs, InLists, Sage
from gapgnn.privacy import Guarantee, check_finite_budget, resolve_relation
from gapgnn.privacy.accounting import Event, Gaussian
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.dpsgd import NOT_PROVEN, neighbourhood_event, neighbourhood_sensitivity
from gapgnn.privacy.ledger import Charge
from gapgnn.privacy.mechanisms import (
    PERTURBATIONS,
    Cells,
    check_output_fits,
    count_scale,
    perturb_edges,
    perturbation_events,
    row_normalise,
)
from gapgnn.rng import NoiseKey
from gapgnn.training import (
    ExampleInputs,
    FeatureInputs,
    GraphInputs,
    HopInputs,
    Trainer,
    row_by_row,
)

MOST_LAYERS = 5
# Entries that lists are cut to at node level: the more, the more a record weighs. Up to epsilon 16
# one was the best of 1 to 10 on the development graphs, but for Cornell5 at 16 (two gain a point).
AUTO_DEGREE = 1


@dataclass(kw_only=True, eq=False, repr=False)
class SAGE(EdgeReader):
    """Node classifier by GraphSAGE with sums over in-neighbours (paper, competing methods).

    At edge level (SAGE-EDP) the edges are randomised once and released; the network is trained on
    the released graph, which is post-processing: epsilon as asked, delta 0. At node level
    (SAGE-NDP) out-lists are cut to ``max_degree`` entries and one layer is trained by DP-SGD, an
    example being a node with its in-neighbours, clipped as one; predictions read one noisy
    aggregation of unit rows, charged with the training (privacy page, section 5). Predictions on
    the training graph are free. Predicting on another graph releases it once and charges it.

    Parameters that all methods share are those of :class:`~gapgnn.methods.NodeClassifier`.

    Args:
        delta: failure probability at node level; auto is the largest power of ten that is at most
            1 / (10 times the protected entities). At edge level none is needed.
        relation: which graphs are neighbours; auto is undirected for a symmetric graph, directed
            otherwise, and add-remove at node level (replace has no accounting here).
        layers: message-passing layers, 1 to 5; auto is 2, at node level 1, where no other number
            can be accounted.
        max_degree: entries D that each list is cut to at node level; auto is 1: the more entries,
            the more a record weighs, which no usual budget can pay.
        perturbation: how the edges are randomised at edge level.
        pre_layers: layers of the network before message passing.
        post_layers: layers of the network after it, the output layer included.
        hidden: width of every hidden layer.
        activation: activation after every hidden layer.
        dropout: dropout rate after every hidden layer of the networks before and after; 0 at node
            level.
        clip: largest gradient norm of one example at node level.
        noise_ratios: noise multipliers of training and aggregation relative to each other, at node
            level.
        memory_limit: GiB that the output of edgerand may take.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> model = SAGE(level="edge", epsilon=4.0, epochs=5).fit(graph)
    >>> model.card_.epsilon, model.card_.delta
    (4.0, 0.0)
    """

    method: ClassVar[str] = "sage"
    _keeps_releases: ClassVar[bool] = True

    epsilon: float = 4.0
    layers: int | Literal["auto"] = "auto"
    max_degree: int | Literal["auto"] = "auto"
    perturbation: Literal["arr", "edgerand", "lapgraph"] = "arr"
    pre_layers: int = 2
    post_layers: int = 1
    hidden: int = 16
    activation: Literal["selu", "relu", "elu", "gelu", "tanh"] = "selu"
    dropout: float = 0.0
    noise_ratios: tuple[float, float] = (1.0, 1.0)
    memory_limit: float = 16.0

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
        check_integer("max_degree", self._degree(), at_least=1)
        for name in ("pre_layers", "post_layers", "hidden"):
            check_integer(name, getattr(self, name), at_least=1)
        check_number("memory_limit", self.memory_limit, above=0)
        if len(self.noise_ratios) != 2:
            raise InputError(f"`noise_ratios` must be two numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios:
            check_number("noise_ratios", ratio, above=0)

    def _unused(self) -> Iterator[Unused]:
        yield from super()._unused()
        at = f"at level {self.level}"
        if self.level != "node":
            trained = "two releases share the budget at level node only"
            yield Unused(("noise_ratios",), f"{at}: {trained}")
        if self.level == "edge":
            yield Unused(("delta",), f"{at}: randomised edges need none", (0.0,))
        if self.level != "edge":
            yield Unused(("perturbation",), f"{at}: edges are randomised at level edge only")
        if self.level != "edge" or self.perturbation != "edgerand":
            yield Unused(("memory_limit",), "unless perturbation is edgerand at level edge")

    def _num_layers(self) -> int:
        if self.layers == "auto":
            return 1 if self.level == "node" else 2
        return int(self.layers)

    def _num_hops(self) -> int:
        return 1

    def _hop_ratio(self, relation: str) -> float:
        return self.noise_ratios[1]

    def _resolved_values(self) -> dict[str, Any]:
        return {"max_degree": self._degree()}

    def _degree(self) -> int:
        if self._resolved_at_save is not None:
            return int(self._resolved_at_save["max_degree"])
        return AUTO_DEGREE if self.max_degree == "auto" else self.max_degree

    def _list_bound(self) -> int | None:
        return self._degree()

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
            max_degree=self._degree(),
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

    def _noise_to_draw(self, graph: Graph, guarantee: Guarantee) -> list[tuple[str, float]]:
        if self.level != "edge":
            return super()._noise_to_draw(graph, guarantee)
        num_nodes, is_directed = graph.num_nodes, graph.is_directed
        cells = Cells.of(guarantee.relation, num_nodes=num_nodes, is_directed=is_directed)
        scale = count_scale(self.perturbation, self.epsilon, cells)
        return [] if scale is None else [("the number of edges", scale)]

    def _build(self, repeats: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        return {
            "sage": Sage(
                repeats,
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
            arcs = self._arcs(graph, run.guarantee, run.keys, device, run.journal)
            inputs = GraphInputs(features, arcs)
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
        cut of the out-lists, which depends on a repeat's secret and on no result.
        """
        model = self.modules_["sage"]
        aggregation = self._aggregation(run.graph, run.guarantee, run.keys, run.device)
        with run.timed("classifier"):
            lists = [aggregation.in_lists(repeat) for repeat in range(len(run.keys))]
            private = self._private(
                run,
                self.noise_ratios[0],
                sensitivity=neighbourhood_sensitivity(self._degree()),
            )
            examples = ExampleInputs(features, lists)
            train = partial(trainer.fit, model, examples, phase="classifier", private=private)
            run.journal.trained("classifier", model, train)
        with run.timed("aggregate"), torch.no_grad():
            codes = self._codes(features)
            summed = run.journal.hops(aggregation).hop(codes, 1)
            scores = self._classify(codes, summed)
        self._remember(run.graph, charge, summed)
        return scores

    def _arcs(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
        journal: NoJournal,
    ) -> Arcs:
        """Return the arcs to learn from: the graph's own at level none, released ones otherwise.

        Edges are randomised once for each repeat. Relation ``undirected`` or ``directed``, cost
        ``epsilon`` at delta 0 for each repeat (privacy page, section 5); see
        :func:`gapgnn.privacy.mechanisms.perturb_edges`.
        """
        if guarantee.level == "none":
            return _own_arcs(graph, device)

        def draw(key: NoiseKey) -> dict[str, Tensor]:
            released = perturb_edges(
                graph,
                perturbation=self.perturbation,
                epsilon=self.epsilon,
                relation=guarantee.relation,
                key=key.derive("edges"),
                noise=self.noise,
                memory_limit=self.memory_limit,
            )
            indptr, indices = map(torch.tensor, released.in_lists())
            is_symmetric = torch.tensor(released.is_symmetric)
            return {"indptr": indptr, "indices": indices, "is_symmetric": is_symmetric}

        kept = [
            journal.drawn(f"edges-{repeat}", partial(draw, key)) for repeat, key in enumerate(keys)
        ]
        lists: list[InLists] = [(one["indptr"].numpy(), one["indices"].numpy()) for one in kept]
        return Arcs(lists, is_symmetric=bool(kept[0]["is_symmetric"]), device=device)

    def _codes(self, features: FeatureInputs) -> Tensor:
        """Return the unit rows that nodes send at node level."""
        model = self.modules_["sage"]
        assert isinstance(model, Sage)
        return row_by_row(lambda rows: row_normalise(model.codes(rows)), features)

    def _classify(self, codes: Tensor, summed: Tensor) -> Tensor:
        model = self.modules_["sage"]
        assert isinstance(model, Sage)
        return model.classify(codes, summed)

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
        inputs = HopInputs(codes, [rows.to(device).unsqueeze(0)])
        return row_by_row(lambda parts: self._classify(*parts), inputs)[0]

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
            arcs = self._arcs(graph, guarantee, keys, device, NoJournal())
            rows = self.modules_["sage"](GraphInputs(features, arcs).all())
        return self._remember(graph, charge, rows)

    def _prediction_guarantee(self, graph: Graph) -> Guarantee:
        if self.level == "edge":
            return self._resolve(graph)
        return super()._prediction_guarantee(graph)

    def _prediction_events(self, relation: str, num_kinds: int) -> tuple[Event, ...]:
        if self.level == "edge":
            return tuple(Event.from_dict(dict(event)) for event in self.card_.events)
        return super()._prediction_events(relation, num_kinds)

    def _card_facts(self) -> ReleaseFacts:
        if self.level == "edge":
            steps = ["preparation", "perturbed", "selection"]
            return ReleaseFacts(method="SAGE", messages="perturbed", steps=steps)
        steps = ["preparation", "training", "selection", "prediction"]
        warnings = [NOT_PROVEN] if self.level == "node" else []
        return ReleaseFacts(method="SAGE", steps=steps, warnings=warnings)


def _own_arcs(graph: Graph, device: torch.device) -> Arcs:
    """Return the graph's own arcs, shared by all repeats: nothing is protected."""
    lists: InLists = graph.indptr, graph.indices
    if graph.is_directed:
        columns = csr.matrix(graph.indptr, graph.indices).tocsc()
        lists = columns.indptr, columns.indices
    return Arcs([lists], is_symmetric=not graph.is_directed, device=device)
