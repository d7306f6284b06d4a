"""GraphSAGE: without privacy, on randomised edges, or with one layer by DP-SGD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.graph import Graph, csr
from gapgnn.methods.configs import GraphSAGEConfig
from gapgnn.methods.edge_reader import EdgeReader
from gapgnn.methods.estimator import Fit, Shape
from gapgnn.methods.releases import ReleasedHops
from gapgnn.methods.settings import Settings
from gapgnn.methods.unused import Unused
from gapgnn.nn import Arcs, InLists, Sage
from gapgnn.privacy import (
    Plan,
    PlannedHops,
    PlannedTraining,
    PrivateSession,
    PublicFacts,
    check_finite_budget,
)
from gapgnn.privacy.accounting import Event, Gaussian
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.dpsgd import NOT_PROVEN, neighbourhood_event, neighbourhood_sensitivity
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
    row_by_row,
)

MOST_LAYERS = 5
NETWORK, HOP, EVENT = "sage", "aggregation", "training"


@dataclass(frozen=True, kw_only=True)
class GraphSAGESettings(Settings):
    """GraphSAGE with nothing left to ``auto``: ``layers`` is a number."""

    layers: int


class GraphSAGE(GraphSAGEConfig, EdgeReader[GraphSAGESettings]):
    """Node classifier by GraphSAGE with sums over in-neighbours (GAP, competing methods).

    At edge level (SAGE-EDP) the edges are randomised once and released; the network is trained on
    the released graph, which is post-processing: epsilon as asked, delta 0. At node level
    (SAGE-NDP) adjacency lists are cut to ``max_degree`` neighbours and one layer is trained by
    DP-SGD, an example being a node with its in-neighbours, clipped as one; predictions read one
    noisy aggregation of unit rows, charged with the training (privacy page, section 5). Predictions
    on the training graph are free. Predicting on another graph releases it once and charges it.

    Its parameters are those of :class:`~gapgnn.methods.configs.graphsage.GraphSAGEConfig`.

    >>> from gapgnn import load_dataset
    >>> model = GraphSAGE(level="edge", epsilon=4.0, epochs=5).fit(load_dataset("social"))
    >>> model.card_.epsilon, model.card_.delta
    (4.0, 0.0)
    """

    method: ClassVar[str] = "sage"
    settings_class: ClassVar[type[Settings]] = GraphSAGESettings
    keeps_releases: ClassVar[bool] = True

    def check_parameters(self) -> None:
        """Refuse parameters that cannot work, or have no accounting."""
        if self.layers != "auto":
            check_integer("layers", self.layers, at_least=1, at_most=MOST_LAYERS)
        if self.level == "node" and self._num_layers() != 1:
            raise InputError(
                "`layers` must be 1 or auto at level node: what one person touches through more "
                f"layers is not bounded by the degree alone. Got {self.layers}."
            )
        if self.level == "node" and self.relation == "replace":
            raise InputError(
                "`relation` must be add-remove for sage at level node: replacing a record has no "
                "accounting here. Got 'replace'."
            )
        check_choice("perturbation", self.perturbation, PERTURBATIONS)
        check_integer("max_degree", self.max_degree, at_least=1)
        for name in ("pre_layers", "post_layers", "hidden"):
            check_integer(name, getattr(self, name), at_least=1)
        check_number("memory_limit", self.memory_limit, above=0)
        if len(self.noise_ratios) != 2:
            raise InputError(f"`noise_ratios` must be two numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios:
            check_number("noise_ratios", ratio, above=0)

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters that do nothing at this level."""
        yield from super().unused()
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

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[GraphSAGESettings]:
        """Return randomised edges, or DP-SGD steps and one noisy hop for predictions."""
        recipe = self.recipe(facts.num_train)
        settings = self.settings(GraphSAGESettings, facts, recipe, layers=self._num_layers())
        if self.level == "edge":
            return self._edge_plan(facts, settings)
        if self.level == "none":
            return self.make_plan(facts, settings)
        schedule = recipe.schedule(facts.num_train)
        training = neighbourhood_event(
            self.noise_ratios[0],
            sampling_rate=schedule.sampling_rate,
            steps=schedule.steps,
            max_degree=self.max_degree,
            label=EVENT,
        )
        planned = PlannedTraining(
            event=EVENT,
            ratio=self.noise_ratios[0],
            sensitivity=neighbourhood_sensitivity(self.max_degree),
        )
        return self.make_plan(
            facts,
            settings,
            template=[training, Gaussian(self.noise_ratios[1], label=HOP)],
            hops={HOP: PlannedHops(event=HOP, count=1, max_degree=self.max_degree)},
            training={"classifier": planned},
        )

    def _edge_plan(
        self, facts: PublicFacts, settings: GraphSAGESettings
    ) -> Plan[GraphSAGESettings]:
        """Return randomised response on every cell of the adjacency matrix, at delta 0."""
        relation, epsilon = self.relation_on(facts), self.epsilon
        cells = Cells.of(relation, num_nodes=facts.num_nodes, is_directed=facts.is_directed)
        check_finite_budget(self.level, epsilon)
        events = perturbation_events(self.perturbation, epsilon, bits_per_edge=cells.bits_per_edge)
        check_output_fits(self.perturbation, epsilon, cells, memory_limit=self.memory_limit)
        scale = count_scale(self.perturbation, epsilon, cells)
        scales = () if scale is None else (("the number of edges", scale),)
        return self.make_plan(facts, settings, fixed=events, is_pure=True, scales=scales)

    # The network --------------------------------------------------------------------------------

    def networks(self, settings: GraphSAGESettings, shape: Shape) -> dict[str, nn.Module]:
        """Return the network, untrained."""
        return {
            NETWORK: Sage(
                shape.replicas,
                shape.features,
                shape.classes,
                hidden=self.hidden,
                layers=settings.layers,
                pre_layers=self.pre_layers,
                post_layers=self.post_layers,
                activation=self.activation,
                batch_norm=settings.batch_norm,
                dropout=self.dropout,
                unit_messages=self.level == "node",
            )
        }

    # Training -----------------------------------------------------------------------------------

    def train(self, fit: Fit[GraphSAGESettings]) -> Tensor:
        """Train on released edges, or by DP-SGD on nodes with their in-neighbours."""
        model, features = self.modules_[NETWORK], FeatureInputs(fit.graph, fit.device)
        if self.level == "node":
            return self._train_examples(fit, features)
        with fit.timed("aggregate"):
            inputs = GraphInputs(features, self._arcs(fit.graph, fit.session))
        with fit.timed("classifier"):
            fit.trainer.fit(model, inputs, phase="classifier")
            with torch.no_grad():
                scores: Tensor = model(inputs.all())
        # Scores at edge level are computed from the released edges and from public features.
        self.keep(fit.graph, fit.session, [scores.cpu()], True)
        return scores

    def _train_examples(self, fit: Fit[GraphSAGESettings], features: FeatureInputs) -> Tensor:
        """DP-SGD over nodes with their in-neighbours, then one noisy aggregation for all nodes.

        Relation ``add-remove``; one record moves a batch's clipped sum by at most 2 D + 1 clips,
        and the aggregation by at most sqrt(D) (privacy page, sections 1 and 5). Both read the same
        cut of the adjacency lists, which depends on a repeat's secret and on no result.
        """
        aggregation = fit.session.mechanism(HOP)
        with fit.timed("classifier"):
            lists = [aggregation.in_lists(repeat) for repeat in range(fit.repeats)]
            examples = ExampleInputs(features, lists)
        fit.train("classifier", self.modules_[NETWORK], examples)
        with fit.timed("aggregate"), torch.no_grad():
            codes = self._codes(features)
            (summed,) = fit.session.release(HOP, codes, normalise=True)
            scores = self._classify(codes, summed)
        self.keep(fit.graph, fit.session, [summed.cpu()], False)
        return scores

    def _arcs(self, graph: Graph, session: PrivateSession) -> Arcs:
        """Return the arcs to learn from: the graph's own at level none, released ones otherwise.

        Edges are randomised once for each repeat. Relation ``undirected`` or ``directed``, cost
        ``epsilon`` at delta 0 for each repeat (privacy page, section 5); see
        :func:`gapgnn.privacy.mechanisms.perturb_edges`.
        """
        plan, options = session.plan, session.options
        if plan.level == "none":
            return _own_arcs(graph, options.device)

        def run(key: NoiseKey) -> dict[str, Tensor]:
            released = perturb_edges(
                graph,
                perturbation=self.perturbation,
                epsilon=self.epsilon,
                relation=plan.relation,
                key=key.derive("edges"),
                noise=options.noise,
                memory_limit=self.memory_limit,
            )
            indptr, indices = map(torch.tensor, released.in_lists())
            is_symmetric = torch.tensor(released.is_symmetric)
            return {"indptr": indptr, "indices": indices, "is_symmetric": is_symmetric}

        kept = [
            session.draw(f"edges-{repeat}", partial(run, key), events=plan.planned)
            for repeat, key in enumerate(options.keys)
        ]
        lists: list[InLists] = [(one["indptr"].numpy(), one["indices"].numpy()) for one in kept]
        return Arcs(lists, is_symmetric=bool(kept[0]["is_symmetric"]), device=options.device)

    def _codes(self, features: FeatureInputs) -> Tensor:
        """Return the unit rows that nodes send at node level."""
        model = self.modules_[NETWORK]
        assert isinstance(model, Sage)
        return row_by_row(lambda rows: row_normalise(model.codes(rows)), features)

    def _classify(self, codes: Tensor, summed: Tensor) -> Tensor:
        model = self.modules_[NETWORK]
        assert isinstance(model, Sage)
        return model.classify(codes, summed)

    # Released rows ------------------------------------------------------------------------------

    def read(self, session: PrivateSession, graph: Graph) -> tuple[Sequence[Tensor], bool]:
        """Release another graph: its edges, or one noisy aggregation."""
        features = FeatureInputs(graph, session.options.device)
        if self.level == "node":
            (summed,) = session.release(HOP, self._codes(features), normalise=True)
            return [summed.cpu()], False
        arcs = self._arcs(graph, session)
        scores: Tensor = self.modules_[NETWORK](GraphInputs(features, arcs).all())
        return [scores.cpu()], True

    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return the scores on the released edges, or from features and the noisy aggregation."""
        (rows,) = released.hops
        if self.level != "node":
            return rows
        if graph is None:
            raise InputError("The model keeps no features: give the graph to predict.")
        codes = self._codes(FeatureInputs(graph, device))
        inputs = HopInputs(codes, [rows.to(device).unsqueeze(0)])
        return row_by_row(lambda parts: self._classify(*parts), inputs)[0]

    def prediction_plan(self, graph: Graph) -> Plan[GraphSAGESettings]:
        """Return what reading an unread graph for prediction releases, and its price."""
        if self.level == "edge":
            facts = PublicFacts.of(graph, level=self.level)
            return self._edge_plan(facts, self.plan_.settings).calibrated(self.delta)
        return super().prediction_plan(graph)

    def prediction_events(self, num_types: int) -> tuple[Event, ...]:
        """Return what a prediction releases: the edges at edge level, one hop at node level."""
        if self.level == "edge":
            return self.plan_.promise.events
        return super().prediction_events(num_types)

    def card_facts(self) -> ReleaseFacts:
        """Return what the card says of GraphSAGE."""
        if self.level == "edge":
            steps = ["preparation", "perturbed", "selection"]
            return ReleaseFacts(method="GraphSAGE", messages="perturbed", steps=steps)
        steps = ["preparation", "training", "selection", "prediction"]
        warnings = [NOT_PROVEN] if self.level == "node" else []
        return ReleaseFacts(method="GraphSAGE", steps=steps, warnings=warnings)


def _own_arcs(graph: Graph, device: torch.device) -> Arcs:
    """Return the graph's own arcs, shared by all repeats: nothing is protected."""
    lists: InLists = graph.indptr, graph.indices
    if graph.is_directed:
        columns = csr.matrix(graph.indptr, graph.indices).tocsc()
        lists = columns.indptr, columns.indices
    return Arcs([lists], is_symmetric=not graph.is_directed, device=device)
