"""Methods that read edges: what they release on a graph is paid for once and answers ever after."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gapgnn.graph import Graph
from gapgnn.methods.base import NodeClassifier, choose_device
from gapgnn.methods.releases import ReleasedHops
from gapgnn.privacy import Guarantee, active_witness
from gapgnn.privacy.ledger import Charge, Ledger
from gapgnn.rng import NoiseKey


class EdgeReader(NodeClassifier):
    """Predicts from what was released on a graph, and releases it once for a graph it never read.

    A graph that was released, the training graph first of all, is answered without reading an edge.
    Another one (the inductive setting) is charged before it is read, and so is every earlier graph
    that it shares nodes with (privacy page, section 2).
    """

    @abstractmethod
    def _prediction_guarantee(self, graph: Graph) -> Guarantee:
        """Return what reading an unread graph for prediction releases, and its price."""

    @abstractmethod
    def _read(
        self,
        graph: Graph,
        guarantee: Guarantee,
        keys: Sequence[NoiseKey],
        device: torch.device,
        charge: Charge | None,
    ) -> ReleasedHops:
        """Read the edges of a graph that was paid for, and keep what is released."""

    @abstractmethod
    def _scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores (nodes, classes) from a release; ``graph`` None: features unknown."""

    def _class_scores(self, graph: Graph | None) -> Tensor:
        device = choose_device(self.device)
        for module in self.modules_.values():
            module.to(device)
        if graph is None:
            return self._scores_from(self.releases_.training(), None, device)
        # Without a price there is no charge to know a graph by, and reading it again is free.
        by_ids = self.level != "none"
        released = self.releases_.find(graph, Ledger(self.ledger), by_ids=by_ids)
        if released is None:
            released = self._release_for_prediction(graph, device)
        return self._scores_from(released, graph, device)

    def _release_for_prediction(self, graph: Graph, device: torch.device) -> ReleasedHops:
        """Pay for a graph the model has not read, then read it."""
        guarantee = self._prediction_guarantee(graph)
        ledger = Ledger(self.ledger)
        sharing = self.releases_.sharing(graph, ledger) if guarantee.events else []
        charge = self._charge(
            guarantee, [graph.fingerprint, *sharing], graph.name, purpose="predict"
        )
        if (witness := active_witness()) is not None:
            relation = guarantee.relation
            witness.begin("predict", ids=graph.ids, level=guarantee.level, relation=relation)
        key = self._noise_keys()[0].derive("predict", graph.fingerprint)
        released = self._read(graph, guarantee, [key], device, charge)
        if charge is not None:
            ledger.complete(charge.id)
        return released
