"""Methods that read edges through releases, and release once what they predict on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from gapgnn.errors import InputError, PrivacyError, check_choice
from gapgnn.graph import Graph, check_declared
from gapgnn.methods.checks import choose_device
from gapgnn.methods.configs import DegreeBoundConfig
from gapgnn.methods.edgefacts import check_plain
from gapgnn.methods.estimator import NodeClassifier
from gapgnn.methods.hops import resolve_edge_types
from gapgnn.methods.releases import ReleasedHops
from gapgnn.methods.settings import Settings
from gapgnn.methods.unused import Unused
from gapgnn.privacy import Guarantee, Plan, PrivateSession
from gapgnn.privacy.accounting import Event, Gaussian
from gapgnn.privacy.card import ChargedRelease
from gapgnn.privacy.ledger import Ledger, People

S = TypeVar("S", bound=Settings, default=Any)

OF_PREDICTION = "aggregation for prediction"


class EdgeReader(NodeClassifier[S]):
    """Predicts from released hops, which are released once for each graph.

    Predictions on a graph with a release, such as the training graph, read no edge. Another graph
    (the inductive setting) is charged before it is read, and so is every earlier graph that it
    shares nodes with (privacy page, section 2).

    A subclass also defines :meth:`read` and :meth:`scores_from`.
    """

    # Whether a session over a graph that was paid for is open: its charge, if a kill interrupts it.
    _unfinished = None

    @abstractmethod
    def read(self, session: PrivateSession, graph: Graph) -> tuple[Sequence[Tensor], bool]:
        """Release the hops that predictions on a graph need.

        Returns:
            The rows of one repeat or more, ``(repeats, nodes, columns)`` each, of which the first
            repeat's are kept; and whether the first of them is hop 0.
        """

    @abstractmethod
    def scores_from(
        self, released: ReleasedHops, graph: Graph | None, device: torch.device
    ) -> Tensor:
        """Return class scores (nodes, classes) from a release; ``graph`` None: features unknown."""

    def check_edges(self, graph: Graph) -> None:
        """Refuse edges that the method cannot read, and a notion that cannot be promised."""
        self.check_edge_types(graph)
        self._check_notion(graph)

    def check_edge_types(self, graph: Graph) -> None:
        """Refuse weights and several edge types; methods that support them override this."""
        check_plain(graph, self.method)

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters without an effect at this level."""
        yield from super().unused()
        if self.level != "node":
            at = f"at level {self.level}"
            yield Unused(("max_degree",), f"{at}: adjacency lists are cut at level node only")
            yield Unused(("notion",), f"{at}: it says who withdraws at level node")
        if self.level == "none":
            yield Unused(("edge_types",), "at level none: nothing is protected", ("any",))

    def unused_on(self, graph: Graph) -> Iterator[Unused]:
        """Yield the parameters without an effect on this graph."""
        yield from super().unused_on(graph)
        if len(graph.edge_types) == 1:
            only = resolve_edge_types(self.level)
            yield Unused(("edge_types",), "with one edge type", (only,))

    def _check_notion(self, graph: Graph) -> None:
        """Refuse the strict notion if an out-degree exceeds D.

        The truncation of a list would then depend on the records of others. Whether some adjacency
        list is longer than D is public, and stated on the card.
        """
        if not isinstance(self, DegreeBoundConfig):
            return
        check_choice("notion", self.notion, ("own", "strict"))
        if self.notion == "own" or self.level != "node":
            return
        if max(int(one.out_degrees.max()) for one in graph.edge_types) > self.max_degree:
            raise PrivacyError(
                "`notion` must be own where adjacency lists are cut: some are longer than "
                f"{self.max_degree}, and which neighbours are kept changes with every mention that "
                "goes. Got 'strict'. Set max_degree at least as long as the longest list."
            )

    def space_needed(self, graph: Graph) -> int:
        """Return how many bytes a fit holds at the least: scores, and hops of as many columns."""
        plan = getattr(self, "plan_", None) or self.plan_for(graph)
        num_types = len(graph.edge_types)
        hops = sum(
            planned.count * (num_types + planned.with_union) for planned in plan.hops.values()
        )
        return (1 + hops) * super().space_needed(graph)

    # Released rows ------------------------------------------------------------------------------

    def keep(
        self, graph: Graph, session: PrivateSession, rows: Sequence[Tensor], has_hop_zero: bool
    ) -> ReleasedHops:
        """Store a session's released rows of the first repeat for predictions."""
        kept = tuple(hop[0].detach().clone() for hop in rows)
        return self.releases_.add(graph, session.charge, kept, has_hop_zero=has_hop_zero)

    def predict_cached(self, ids: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """Return the class probabilities of the training graph's nodes, from its release.

        Nothing else is read, so later changes of these records have no effect. It is not available
        at node level, where predictions need the node's own features.

        Args:
            ids: of the nodes; all if left out.
        """
        self.check_fitted()
        known = self.releases_.training()
        if known.is_keyed:
            raise InputError("A model at node level keeps no features: give the graph to predict.")
        known = known if ids is None else self.releases_.cached(ids)
        device = choose_device(self.device)
        self.networks_on(device)
        with torch.no_grad():
            scores = self._weighed(self.scores_from(known, None, device))
        result: NDArray[np.float32] = torch.softmax(scores.double(), dim=-1).float().cpu().numpy()
        return result

    def class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores from released hops; another graph is charged and read first."""
        device = choose_device(self.device)
        self.networks_on(device)
        if graph is None:
            return self.scores_from(self.releases_.training(), None, device)
        return self.scores_from(self.released_on(graph), graph, device)

    def released_on(self, graph: Graph) -> ReleasedHops:
        """Return the release on a graph; another graph is charged and read first."""
        self.edges_.check(graph)
        ledger = Ledger(self.ledger)
        released = self.releases_.find(graph, ledger, is_paid=self.level != "none")
        if released is not None:
            return released
        if self.level == "node":
            check_declared(graph)
        self.check_edges(graph)

        def read(session: PrivateSession) -> ReleasedHops:
            return self.keep(graph, session, *self.read(session, graph))

        return self.release_once(self.prediction_plan(graph), graph, People.of(graph), read)

    def release_once(
        self,
        plan: Plan[S],
        graph: Graph,
        people: People,
        read: Callable[[PrivateSession], ReleasedHops],
        *,
        purpose: str = "prediction",
    ) -> ReleasedHops:
        """Charge a release for prediction, list it on the card, and only then make it."""
        key = self._noise_keys()[0].derive("predict", people.fingerprint)
        session = PrivateSession(
            plan,
            self.released_graph(graph),
            self._session_options([key]),
            purpose="predict",
            people=people,
        )
        if plan.promise.events:
            # Refuse before the charge what cannot be listed on the card.
            self.composed_epsilon(plan.promise)
        session.open()
        self._unfinished = session.charge
        if session.charge is not None:
            # Before any noise is drawn, so that the card lists every release.
            self.card_ = self.card_.with_release(session.charged_release(purpose))
        released = read(session)
        session.close()
        self._unfinished = None
        return released

    def hop_zero(self, graph: Graph, device: torch.device) -> Tensor:
        """Return hop 0 as a release keeps it below node level, from the features of a graph."""
        raise InputError(
            "`importance` must be asked of a method that keeps the features of hop 0 apart. "
            f"Got {self.method}."
        )

    def importance_inputs(
        self, graph: Graph
    ) -> tuple[ReleasedHops, Callable[[Graph, ReleasedHops | None], Tensor]]:
        """Return released rows of a graph, and class scores from its features and such rows."""
        device = choose_device(self.device)
        self.networks_on(device)
        known = self.releases_.find(graph, Ledger(self.ledger), is_paid=self.level != "none")
        if known is None:
            raise InputError(
                "`graph` must be one whose hops the model has released: that of the training, or "
                "one it has predicted on. Got another."
            )

        def scores(given: Graph, rows: ReleasedHops | None) -> Tensor:
            assert rows is not None
            if rows.has_hop_zero:
                first = self.hop_zero(given, device)[0].cpu()
                rows = replace(rows, hops=(first, *rows.hops[1:]))
            return self.scores_from(rows, given, device)

        return known, scores

    # Prices of predictions ----------------------------------------------------------------------

    def prediction_plan(self, graph: Graph) -> Plan[S]:
        """Return the release and the price of a prediction on a graph that was not read before."""
        return self.priced(graph, self.prediction_events(len(graph.edge_types)), delta=self.delta)

    def prediction_events(self, num_types: int) -> tuple[Event, ...]:
        """Return the events of a prediction on such a graph: as many hops as the training."""
        released = [event for event in self.plan_.promise.events if isinstance(event, Gaussian)]
        return tuple(
            Gaussian(event.noise_multiplier, count=event.count, label=OF_PREDICTION)
            for event in released
        )

    def priced(self, graph: Graph, events: Sequence[Event], *, delta: Any) -> Plan[S]:
        """Return the plan of a prediction from events with given noise."""
        promise = Guarantee.of_events(
            graph,
            events,
            relation=self.relation_on(graph),
            delta=delta,
            noise_multiplier=self.noise_multiplier_,
        )
        return self.plan_.for_prediction(promise)

    def composed_epsilon(self, promise: Guarantee) -> float:
        """Return the composed epsilon of all releases of this model with one more.

        It holds for an edge or a record in all of them, at the delta of ``card_``.

        Args:
            promise: from :meth:`prediction_guarantee`.
        """
        self.check_fitted()
        release = ChargedRelease.of(promise, None, "prediction")
        epsilon = self.card_.with_release(release).composed_epsilon
        assert epsilon is not None
        return epsilon

    def prediction_guarantee(
        self, graph: Any, own: str | None = None, *, new_people: bool = False
    ) -> Guarantee | None:
        """Return the guarantee that predicting on a graph would be charged for; None if it is free.

        Nothing is charged or released here. Predictions from an earlier release are free, and so
        are those of a model that reads no edges.

        Args:
            graph: to predict on.
            own: as for :meth:`predict_proba`.
            new_people: likewise.
        """
        self.check_fitted()
        graph = self._as_trained(graph)
        if new_people:
            return self.guarantee_of_new(graph, own)
        known = self.releases_.find(graph, Ledger(self.ledger), is_paid=self.level != "none")
        if known is not None or self.level == "none":
            return None
        self.edges_.check(graph)
        if self.level == "node":
            check_declared(graph)
        self.check_edges(graph)
        return self.prediction_plan(graph).promise

    def people_charged(self, graph: Any, *, new_people: bool = False) -> People:
        """Return whom a prediction on a graph is charged to.

        Args:
            graph: to predict on.
            new_people: as for :meth:`predict_proba`.
        """
        return People.of(self._as_trained(graph))

    def guarantee_of_new(self, graph: Graph, own: str | None) -> Guarantee | None:
        """Return the guarantee of predictions for new nodes; None if they are free."""
        self.scores_of_new(graph, own)
        return None

    def check_loaded(self) -> None:
        """Raise ValueError if a folder lists no release of its training."""
        listed = self.card_.releases
        if listed and listed[0].charge_id not in {"", *self.releases_.hops}:
            raise ValueError(
                f"it does not hold the release of its training, {listed[0].charge_id}."
            )
