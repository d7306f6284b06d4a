"""ProGAP: progressive GNNs with differential privacy guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods.configs import ProGAPConfig
from gapgnn.methods.edge_reader import EdgeReader
from gapgnn.methods.estimator import Fit, Shape
from gapgnn.methods.hops import (
    blocks_of,
    direction_and_size,
    events_per_hop,
    in_noise_units,
    num_blocks,
    releases_union,
    resolve_edge_types,
)
from gapgnn.methods.releases import ReleasedHops
from gapgnn.methods.settings import Settings, layer_options
from gapgnn.methods.unused import Unused
from gapgnn.nn import COMBINATIONS, Encoded, Encoder, MultiHopClassifier
from gapgnn.privacy import (
    Plan,
    PlannedHops,
    PlannedTraining,
    PrivateSession,
    PublicFacts,
    aggregation_ratio,
)
from gapgnn.privacy.accounting import Gaussian
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.mechanisms import row_normalise
from gapgnn.training import FeatureInputs, HopInputs, Recipe

HOPS = "aggregation"
# Training nodes that a step reads where training is free; chosen on the development graphs, as are
# the other settings (docs/explanation/research-notes.md).
STEP_NODES = 2048
EPOCHS, NODE_BATCHES = 1.5, 2


@dataclass(frozen=True, kw_only=True)
class ProGAPSettings(Settings):
    """ProGAP with nothing left to ``auto``.

    Attributes:
        hops: number K of noisy aggregations.
        dropout: of the classifiers.
        edge_types: ``any`` or ``each``.
        with_union: whether hops release the sum over the union of the edge types.
    """

    hops: int
    dropout: float
    edge_types: str
    with_union: bool


class ProGAP(ProGAPConfig, EdgeReader[ProGAPSettings]):
    """Node classifier that is trained progressively: a classifier after every noisy hop.

    The embeddings of the encoder are what the first hop aggregates, and the embeddings of the
    classifier that was trained after hop k are what hop k + 1 aggregates (Sajadmanesh and
    Gatica-Perez, WSDM 2024). Each hop is one Gaussian mechanism; at node level every adjacency list
    is cut to ``max_degree`` neighbours and all K + 1 networks are trained by DP-SGD (privacy page,
    sections 1 to 3). Classifiers read the direction and the size of a noisy sum in units of its
    noise, and below node level the features again, which are public there.

    Its parameters are those of :class:`~gapgnn.methods.configs.progap.ProGAPConfig`.

    >>> from gapgnn import load_dataset
    >>> graph = load_dataset("social")
    >>> model = ProGAP(level="edge", epsilon=4.0, hops=2, epochs=5).fit(graph)
    >>> sorted(model.modules_)
    ['classifier', 'encoder', 'stage1']
    """

    method: ClassVar[str] = "progap"
    settings_class: ClassVar[type[Settings]] = ProGAPSettings
    keeps_releases: ClassVar[bool] = True

    def check_parameters(self) -> None:
        """Refuse parameters that cannot work."""
        for name in ("encoder_layers", "base_layers", "head_layers", "hidden", "max_degree"):
            check_integer(name, getattr(self, name), at_least=1)
        check_integer("hops", self._num_hops(), at_least=1)
        check_choice("combine", self.combine, COMBINATIONS)
        resolve_edge_types(self.level, self.edge_types)
        if self.noise_ratios is not None and len(self.noise_ratios) != 3:
            raise InputError(f"`noise_ratios` must be three numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios or ():
            check_number("noise_ratios", ratio, above=0)

    def check_edge_types(self, graph: Graph) -> None:
        """Any edges will do, with weights and of several types."""

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters that do nothing at this level."""
        yield from super().unused()
        if self.level != "node":
            yield Unused(
                ("noise_ratios",),
                f"at level {self.level}: networks are trained with noise at level node",
            )

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[ProGAPSettings]:
        """Return K Gaussian hops and, at node level, DP-SGD of every network."""
        relation, is_node = self.relation_on(facts), self.level == "node"
        protected = resolve_edge_types(self.level, self.edge_types)
        with_union = releases_union(facts.num_types, protected=protected, relation=relation)
        settings = self.settings(
            ProGAPSettings,
            facts,
            self.recipe(facts.num_train),
            hops=self._num_hops(),
            dropout=(0.0 if is_node else 0.2) if self.dropout == "auto" else self.dropout,
            edge_types=protected,
            with_union=with_union,
        )
        bound = self.max_degree if is_node else None
        hops = {
            HOPS: PlannedHops(
                event=HOPS,
                count=settings.hops,
                max_degree=bound,
                with_union=with_union,
                protects=protected,
            )
        }
        if self.level == "none":
            return self.make_plan(facts, settings, hops=hops)
        encoder, hop, classifiers = self.noise_ratios or (1.0, self.epsilon ** (-1 / 3), 1.0)
        count = settings.hops * events_per_hop(
            facts.num_types, protected=protected, with_union=with_union
        )
        ratio = hop * aggregation_ratio(relation) if is_node else 1.0
        released = [Gaussian(ratio, count=count, label=HOPS)]
        if not is_node:
            return self.make_plan(facts, settings, template=released, hops=hops)
        ratios = {"encoder": encoder, **dict.fromkeys(stages(settings.hops), classifiers)}
        trained = [
            settings.recipe.event(facts.num_train, ratio=ratio, label=name)
            for name, ratio in ratios.items()
        ]
        training = {n: PlannedTraining(event=n, ratio=ratio) for n, ratio in ratios.items()}
        return self.make_plan(
            facts, settings, template=[*released, *trained], hops=hops, training=training
        )

    def _num_hops(self) -> int:
        if self.hops == "auto":
            return 4 if self.level == "node" else 5
        return self.hops

    def recipe(self, num_train: int) -> Recipe:
        """Return GAP's recipe with larger batches or minibatch steps; given parameters are kept."""
        paper_recipe = super().recipe(num_train)
        if self.level == "node":
            if self.batch_size != "auto" or paper_recipe.batch_size is None:
                return paper_recipe
            most = max(num_train // 4, paper_recipe.batch_size)
            return replace(
                paper_recipe, batch_size=min(NODE_BATCHES * paper_recipe.batch_size, most)
            )
        longer = paper_recipe
        if self.epochs == "auto":
            longer = replace(paper_recipe, epochs=round(EPOCHS * paper_recipe.epochs))
        # More and smaller steps, if a step reads a part of the graph.
        is_small = num_train <= STEP_NODES
        nodes: int | None = STEP_NODES
        if self.batch_size != "auto":
            nodes = paper_recipe.batch_size or num_train
        if is_small and (nodes is None or nodes >= num_train):
            nodes = None
        return replace(paper_recipe if is_small else longer, batch_size=None, nodes=nodes)

    # The networks -------------------------------------------------------------------------------

    def networks(self, settings: ProGAPSettings, shape: Shape) -> dict[str, nn.Module]:
        """Return the encoder and one classifier for each hop, untrained."""
        shared = layer_options(self, settings, dropout=settings.dropout)
        modules: dict[str, nn.Module] = {
            "encoder": Encoder(
                shape.replicas, shape.features, shape.classes, layers=self.encoder_layers, **shared
            )
        }
        is_node = self.level == "node"
        first = self.hidden if is_node else shape.features
        width = (self.hidden + 1) * num_blocks(shape.edge_types)
        for hop, name in enumerate(stages(settings.hops), start=1):
            modules[name] = MultiHopClassifier(
                shape.replicas,
                [first, *[width] * hop],
                shape.classes,
                first_layers=self.base_layers
                if is_node
                else max(self.encoder_layers, self.base_layers),
                base_layers=self.base_layers,
                head_layers=self.head_layers,
                combine=self.combine,
                has_embedding=True,
                **shared,
            )
        return modules

    # Training -----------------------------------------------------------------------------------

    def train(self, fit: Fit[ProGAPSettings]) -> Tensor:
        """Train encoder and classifiers, each between two hops; return class scores."""
        features, settings = FeatureInputs(fit.graph, fit.device), fit.settings
        fit.train("encoder", self.modules_["encoder"], features)
        first = self._first(features)
        on_hop = fit.on_hop(settings.hops)
        hops: list[Tensor] = []
        rows = self._messages(features)
        for name in stages(settings.hops):
            with fit.timed("aggregate"):
                hops.append(self._release(fit.session, rows))
            on_hop()
            inputs = self._inputs(first, hops)
            fit.train(name, self.modules_[name], inputs)
            if name != "classifier":
                rows = self._next_messages(name, first, hops)
        scores = self._scores("classifier", first, hops)
        self.keep(fit.graph, fit.session, *self._kept(first, hops))
        return scores

    def _first(self, features: FeatureInputs) -> Any:
        """Return what classifiers read as hop 0: features, or at node level unit embeddings."""
        return self._messages(features) if self.level == "node" else features

    def _messages(self, features: FeatureInputs) -> Tensor:
        """Return what nodes send in hop 1: unit rows of the encoder's embeddings."""
        encoder = self.modules_["encoder"]
        assert isinstance(encoder, Encoder)
        with torch.no_grad():
            return row_normalise(self.of_features(encoder.embed, features))

    def _next_messages(self, name: str, first: Any, hops: Sequence[Tensor]) -> Tensor:
        """Return what nodes send after a classifier was trained: its embeddings, of norm 1."""
        stage = self.modules_[name]
        assert isinstance(stage, MultiHopClassifier)
        with torch.no_grad():
            return row_normalise(self._applied(stage.embed, first, hops))

    def _release(self, session: PrivateSession, rows: Tensor) -> Tensor:
        """Release one hop, in units of its noise, so that no classifier need know its level."""
        blocks = [
            in_noise_units(one, std) if std else one
            for one, std in zip(session.release(HOPS, rows), session.std(HOPS), strict=True)
        ]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)

    def _inputs(self, first: Any, hops: Sequence[Tensor]) -> HopInputs:
        """Return what a classifier reads: hop 0, and direction and size of every noisy sum."""
        with_union = self.plan_.settings.with_union
        read = []
        for hop in hops:
            blocks = blocks_of(hop, self.num_types_, with_union=with_union)
            shown = [direction_and_size(sums) for sums in blocks]
            read.append(shown[0] if len(shown) == 1 else torch.cat(shown, -1))
        return HopInputs(first, read)

    def _applied(self, network: Any, first: Any, hops: Sequence[Tensor]) -> Tensor:
        if self.level != "node":
            return self.of_rows(network, self._inputs(first, hops))
        # Directions and sizes are computed in the batches, too.
        return self.of_rows(
            lambda rows: network(self._inputs(rows[0], rows[1:]).all()),
            HopInputs(first, list(hops)),
        )

    def _scores(self, name: str, first: Any, hops: Sequence[Tensor]) -> Tensor:
        return self._applied(self.modules_[name], first, hops)

    # Released rows ------------------------------------------------------------------------------

    def _kept(self, first: Any, hops: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        if self.level == "node":
            return list(hops), False
        classifier = self.modules_["classifier"]
        assert isinstance(classifier, MultiHopClassifier)
        with torch.no_grad():
            return [classifier.encode_first(HopInputs(first, []).all()[0]).codes, *hops], True

    def hop_zero(self, graph: Graph, device: torch.device) -> Tensor:
        """Return hop 0 as a release keeps it."""
        return self._kept(self._first(FeatureInputs(graph, device)), [])[0][0]

    def read(self, session: PrivateSession, graph: Graph) -> tuple[list[Tensor], bool]:
        """Release the hops of another graph, by the networks as they are."""
        features = FeatureInputs(graph, session.options.device)
        first, rows = self._first(features), self._messages(features)
        hops: list[Tensor] = []
        for name in stages(self.plan_.settings.hops):
            hops.append(self._release(session, rows))
            if name != "classifier":
                rows = self._next_messages(name, first, hops)
        return self._kept(first, hops)

    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores from released hops; at node level hop 0 comes from the features."""
        hops = [hop.to(device).unsqueeze(0) for hop in released.hops]
        if released.has_hop_zero:
            return self._scores("classifier", Encoded(hops[0]), hops[1:])[0]
        if graph is None:
            raise InputError("The model keeps no features: give the graph to predict.")
        return self._scores("classifier", self._first(FeatureInputs(graph, device)), hops)[0]

    def card_facts(self) -> ReleaseFacts:
        """Return what the card says of ProGAP."""
        steps = self.steps_taken(
            "preparation", "training", "hop0", "classifier", "selection", "prediction"
        )
        return ReleaseFacts(method="ProGAP", messages="features", steps=steps)


def stages(hops: int) -> tuple[str, ...]:
    """Return the names of the classifiers, the one after each hop; the last one classifies.

    >>> stages(3)
    ('stage1', 'stage2', 'classifier')
    """
    return (*(f"stage{hop}" for hop in range(1, hops)), "classifier")
