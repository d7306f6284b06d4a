"""GAP: differentially private GNNs with aggregation perturbation, as the paper has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gapgnn.errors import InputError, check_choice, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods.configs import TRAINING, GAPConfig
from gapgnn.methods.edge_reader import EdgeReader
from gapgnn.methods.estimator import Fit, Shape
from gapgnn.methods.hops import along_types, num_blocks, resolve_edge_types
from gapgnn.methods.own_networks import own_classifier, own_encoder, replaced
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
from gapgnn.training import FeatureInputs, HopInputs

HOPS = "aggregation"


@dataclass(frozen=True, kw_only=True)
class GAPSettings(Settings):
    """GAP with nothing left to ``auto``; ``edge_types`` is ``any`` or ``each``."""

    edge_types: str


class GAP(GAPConfig, EdgeReader[GAPSettings]):
    """Node classifier that reads the edges only through K noisy aggregations.

    Algorithm 1 of GAP: an *encoder* is trained on features and labels alone, and its
    unit-normalised embeddings are hop 0. Each of K hops sums the rows of the hop before over the
    in-neighbours, adds Gaussian noise and normalises (*private multi-hop aggregation*). A
    *classifier* is trained on hops 0 to K.

    At edge level only the K hops read edges, and so only they are charged: one Gaussian mechanism
    each. At node level every adjacency list is first cut to ``max_degree`` neighbours by a keyed
    hash, encoder and classifier are trained by DP-SGD, and all of it is charged together (privacy
    page, sections 1 to 3). Predictions on the training graph are free: they read the released hops.
    Predicting on another graph releases and charges its hops once.

    Its parameters are those of :class:`~gapgnn.methods.configs.gap.GAPConfig`.

    >>> from gapgnn import load_dataset
    >>> graph = load_dataset("social")
    >>> model = GAP(level="edge", epsilon=4.0, epochs=5).fit(graph)
    >>> model.predict(graph).shape
    (10000,)
    """

    method: ClassVar[str] = "gap"
    settings_class: ClassVar[type[Settings]] = GAPSettings
    keeps_releases: ClassVar[bool] = True

    def check_parameters(self) -> None:
        """Refuse invalid parameters."""
        for name in ("hops", "base_layers", "head_layers", "hidden", "max_degree"):
            check_integer(name, getattr(self, name), at_least=1)
        check_integer("encoder_layers", self.encoder_layers, at_least=0)
        check_choice("combine", self.combine, COMBINATIONS)
        resolve_edge_types(self.level, self.edge_types)
        if self.noise_ratios is not None and len(self.noise_ratios) != 3:
            raise InputError(f"`noise_ratios` must be three numbers. Got {self.noise_ratios!r}.")
        for ratio in self.noise_ratios or ():
            check_number("noise_ratios", ratio, above=0)
        if self.noise_ratios is not None and not self.encoder_layers and self.noise_ratios[0] != 1:
            raise InputError(
                "`noise_ratios` must start with 1 where no encoder is trained: it is the encoder's "
                f"noise. Got {self.noise_ratios!r}."
            )

    def check_edge_types(self, graph: Graph) -> None:
        """Any edges will do, with weights and of several types."""

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters that do nothing at this level."""
        yield from super().unused()
        yield from replaced(self)
        if self.level != "node":
            yield Unused(
                ("noise_ratios",),
                f"at level {self.level}: networks are trained with noise at level node",
            )

    def after_release(self) -> frozenset[str]:
        """The classifier reads released hops; without an encoder nothing is trained before them."""
        names = {"base_layers", "head_layers", "combine", "classifier"}
        if not self.encoder_layers and self.encoder is None:
            names |= {*TRAINING, "hidden", "activation", "dropout"}
        return super().after_release() | names

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[GAPSettings]:
        """Return K Gaussian hops and, at node level, DP-SGD of encoder and classifier."""
        recipe = self.recipe(facts.num_train)
        edge_types = resolve_edge_types(self.level, self.edge_types)
        settings = self.settings(GAPSettings, facts, recipe, edge_types=edge_types)
        if self.level == "none":
            return self.make_plan(facts, settings, hops=self._hops())
        is_node = self.level == "node"
        encoder, hop, classifier = self.noise_ratios or (1.0, 1.0, 1.0)
        count = self.hops * (facts.num_types if edge_types == "each" else 1)
        ratio = hop * aggregation_ratio(self.relation_on(facts)) if is_node else 1.0
        hops = Gaussian(ratio, count=count, label=HOPS)
        if not is_node:
            return self.make_plan(facts, settings, template=[hops], hops=self._hops())
        ratios = {"encoder": encoder} if self.encoder_layers else {}
        ratios["classifier"] = classifier
        trained = [recipe.event(facts.num_train, ratio=r, label=n) for n, r in ratios.items()]
        return self.make_plan(
            facts,
            settings,
            template=[hops, *trained],
            hops=self._hops(),
            training={n: PlannedTraining(event=n, ratio=r) for n, r in ratios.items()},
        )

    def _hops(self) -> dict[str, PlannedHops]:
        bound = self.max_degree if self.level == "node" else None
        protects = resolve_edge_types(self.level, self.edge_types)
        return {HOPS: PlannedHops(event=HOPS, count=self.hops, max_degree=bound, protects=protects)}

    # The networks -------------------------------------------------------------------------------

    def networks(self, settings: GAPSettings, shape: Shape) -> dict[str, nn.Module]:
        """Return encoder and classifier, untrained."""
        shared = layer_options(self, settings, dropout=self.dropout)
        modules: dict[str, nn.Module] = {}
        if self.encoder is not None:
            modules["encoder"] = own_encoder(self, shape)
        elif self.encoder_layers:
            modules["encoder"] = Encoder(
                shape.replicas, shape.features, shape.classes, layers=self.encoder_layers, **shared
            )
        width = self.hidden if modules else shape.features
        widths = [width, *[width * num_blocks(shape.edge_types)] * self.hops]
        if self.classifier is not None:
            return {**modules, "classifier": own_classifier(self, shape, widths)}
        modules["classifier"] = MultiHopClassifier(
            shape.replicas,
            widths,
            shape.classes,
            first_layers=self.base_layers,
            base_layers=self.base_layers,
            head_layers=self.head_layers,
            combine=self.combine,
            has_embedding=False,
            **shared,
        )
        return modules

    # Algorithm 1 --------------------------------------------------------------------------------

    def train(self, fit: Fit[GAPSettings]) -> Tensor:
        """Encoder, aggregation, classifier; return class scores of every node."""
        features, modules = self._features(fit.graph, fit.device), self.modules_
        if self.encoder_layers:
            fit.train("encoder", modules["encoder"], features)
        embeddings = self._encode(features, fit.repeats)
        with fit.timed("aggregate"):
            hops = self._aggregate(fit.session, embeddings, on_hop=fit.on_hop(self.hops))
        fit.train("classifier", modules["classifier"], self._inputs(embeddings, hops))
        self.keep(fit.graph, fit.session, *self._kept(embeddings, hops))
        return self._classify(embeddings, hops)

    def _features(self, graph: Graph, device: torch.device) -> FeatureInputs:
        """Return the features; a network of the user's own reads dense rows."""
        return FeatureInputs(graph, device, dense=self.encoder is not None)

    def _encode(self, features: FeatureInputs, repeats: int = 1) -> Tensor:
        """Return hop 0: unit rows of the encoder's embeddings, or of the features."""
        if "encoder" not in self.modules_:
            rows = row_normalise(features.dense())
            return rows.expand(repeats, *rows.shape)
        encoder: Any = self.modules_["encoder"]
        with torch.no_grad():
            return self.of_features(lambda rows: row_normalise(encoder.embed(rows)), features)

    def _aggregate(
        self, session: PrivateSession, rows: Tensor, on_hop: Callable[[], None] = lambda: None
    ) -> list[Tensor]:
        """Return hops 1 to K: aggregate, perturb, normalise; each edge type has its own chain."""
        hops: list[Tensor] = []
        sent: Tensor | Sequence[Tensor] = rows
        for _ in range(self.hops):
            sent = session.release(HOPS, sent, normalise=True)
            hops.append(torch.cat(sent, dim=-1))
            on_hop()
        return hops

    def _inputs(self, first: Tensor | Encoded, hops: Sequence[Tensor]) -> HopInputs:
        return HopInputs(first, [along_types(hop, self.num_types_) for hop in hops])

    def _classify(self, first: Tensor | Encoded, hops: Sequence[Tensor]) -> Tensor:
        return self.of_rows(self.modules_["classifier"], self._inputs(first, hops))

    # Released rows ------------------------------------------------------------------------------

    def _kept(self, first: Tensor, hops: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        """Return the rows to keep, and whether hop 0 is among them: at node level it is private."""
        if self.level == "node":
            return list(hops), False
        classifier: Any = self.modules_["classifier"]
        with torch.no_grad():
            return [classifier.encode_first(first).codes, *hops], True

    def hop_zero(self, graph: Graph, device: torch.device) -> Tensor:
        """Return hop 0 as a release keeps it."""
        return self._kept(self._encode(self._features(graph, device)), [])[0][0]

    def read(self, session: PrivateSession, graph: Graph) -> tuple[list[Tensor], bool]:
        """Release the hops of another graph, by the networks as they are."""
        rows = self._encode(self._features(graph, session.options.device))
        return self._kept(rows, self._aggregate(session, rows))

    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores from released hops; at node level hop 0 comes from the features."""
        hops = [hop.to(device).unsqueeze(0) for hop in released.hops]
        if released.has_hop_zero:
            return self._classify(Encoded(hops[0]), hops[1:])[0]
        if graph is None:
            raise InputError("The model keeps no features: give the graph to predict.")
        return self._classify(self._encode(self._features(graph, device)), hops)[0]

    def card_facts(self) -> ReleaseFacts:
        """Return what the card says of GAP."""
        steps = ("preparation", "training", "hop0", "classifier", "selection", "prediction")
        return ReleaseFacts(method="GAP", messages="features", steps=self.steps_taken(*steps))
