"""Sessions: a session charges a plan, makes its releases and records them.

A session owns the charge, the noise keys, the checkpoint and the transcript of one run over one
graph. Opening it checks everything that can fail without reading private data, announces the price,
and charges the ledger durably (privacy page, section 6). From then on every access to private data
goes through it:

- :meth:`PrivateSession.release` aggregates rows along the edges and returns noisy sums;
- :meth:`PrivateSession.train` trains a network, by DP-SGD at node level;
- :meth:`PrivateSession.draw` runs any other mechanism.

It refuses releases that the plan does not contain or that were already made. The transcript lists
the releases in order, and the privacy card is made from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from gapgnn.errors import DataError, InputError, PrivacyError
from gapgnn.graph import Graph, as_graph, check_declared, spelled_twice
from gapgnn.privacy.accounting import (
    Event,
    MixtureOfGaussians,
    PoissonGaussian,
    SubgraphGaussian,
)
from gapgnn.privacy.card import (
    ChargedRelease,
    PrivacyCard,
    ReleasedRun,
    ReleaseFacts,
    charged_for,
    make_card,
    public_facts,
)
from gapgnn.privacy.checkpoint import NoCheckpoint, Tensors
from gapgnn.privacy.dpsgd import PrivateTraining, check_size
from gapgnn.privacy.gradients import without_gradient
from gapgnn.privacy.ledger import Charge, Ledger, People, check_agreed, note_charge
from gapgnn.privacy.mechanisms import (
    PrivateAggregation,
    SafeOrFast,
    check_scale,
    hop_mechanisms,
)
from gapgnn.privacy.observer import active_observer
from gapgnn.privacy.plan import Declared, Plan
from gapgnn.rng import NoiseKey


class Trains(Protocol):
    """What trains a network: the library's trainer, or another one with the same call."""

    def fit(
        self, model: nn.Module, inputs: Any, *, phase: str, private: PrivateTraining | None = None
    ) -> None:
        """Train every replica of a network in place."""


@dataclass(frozen=True)
class SessionOptions:
    """Where and for whom a session releases.

    Attributes:
        keys: the secret of each repeat; left out: one, fresh from the operating system.
        noise: ``safe`` for releases, ``fast`` for experiments.
        is_seeded: whether the noise is predictable, which the card says.
        device: where sums are computed.
        ledger: file of the privacy ledger; None: the user's own.
        reason: why this is released, for the ledger.
        curator_only: at level none, why the curator looks at people with a budget.
    """

    keys: Sequence[NoiseKey] = field(default_factory=lambda: [NoiseKey.fresh()])
    noise: SafeOrFast = "safe"
    is_seeded: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ledger: Any = None
    reason: str = ""
    curator_only: str | None = None


class PrivateSession:
    """Makes the releases of a calibrated plan on one graph, and nothing else.

    Opening it checks the plan, charges the ledger and only then lets anything be released. What is
    charged and not released is charged all the same.

    What the promise rests on, and no library can check: rows that are sent are computed from
    features, labels and earlier releases at edge level, and each from its sender's own record and
    from earlier releases at node level; and nothing else reads the graph's edges, or at node level
    anybody's record, on the way to what is handed out.

    Args:
        plan: what will be released; print it to see the price.
        graph: with a row for each node that a release has one for: a ``Graph``, a PyG ``Data`` or
            whatever :func:`~gapgnn.graph.as_graph` takes.
        options: where and for whom; left out: a fresh key, the CPU and the user's own ledger.
        purpose: ``fit`` or ``predict``, for the ledger.
        people: who is charged; None: everybody in the graph.
        checkpoint: keeps finished steps, for a run that can be killed and resumed.
        about: what else must be the same when a run is resumed.
        announce: called with the price before it is charged.
        reads_lists: also put on the ledger's record that exact adjacency lists are read.

    >>> from gapgnn import Plan, load_dataset
    >>> graph = load_dataset("social")
    >>> plan = Plan.declare(graph, epsilon=2.0, hops={"sums": 2})
    >>> with PrivateSession(plan, graph) as session:
    ...     (first,) = session.release("sums", torch.ones(graph.num_nodes, 4) / 2, normalise=True)
    ...     (second,) = session.release("sums", first)
    >>> tuple(second.shape), session.transcript, session.card().epsilon <= 2.0
    ((10000, 4), ('sums',), True)
    """

    def __init__(
        self,
        plan: Plan[Any],
        graph: Any,
        options: SessionOptions | None = None,
        *,
        purpose: Literal["fit", "predict"] = "fit",
        people: People | None = None,
        checkpoint: NoCheckpoint | None = None,
        about: dict[str, Any] | None = None,
        announce: Callable[[str], None] | None = None,
        reads_lists: bool = False,
    ) -> None:
        self.plan = plan
        is_node = plan.level == "node"
        self.graph: Graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        if is_node:
            check_declared(self.graph)
        self.options = SessionOptions() if options is None else options
        self.charge: Charge | None = None
        self._purpose = purpose
        self._people = People.of(self.graph) if people is None else people
        self._checkpoint = NoCheckpoint() if checkpoint is None else checkpoint
        self._about = about or {}
        self._announce = announce
        self._reads_lists = reads_lists
        self._mechanisms: dict[str, list[PrivateAggregation]] = {}
        self._made: Counter[str] = Counter()
        self._drawn: set[str] = set()
        self._next_hop = 1
        self._is_open = False

    # Opening and closing ----------------------------------------------------------------------

    def __enter__(self) -> PrivateSession:
        self.open()
        return self

    def __exit__(
        self,
        exception: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exception is None:
            self.close()

    def open(self) -> None:
        """Check, show the price, and charge it; nothing private is read before this returns."""
        self.check_noise()
        self._check_paid()
        self._check_spelling()
        self._check_free()
        self.charge = self._checkpoint.charged(self._about_run(), self._charge)
        if self.charge is not None:
            # Also one that an interrupted run has paid.
            note_charge(self.charge)
        if (observer := active_observer()) is not None:
            observer.begin(
                self._purpose,
                ids=self.graph.ids,
                relation=self.plan.relation,
            )
        self._is_open = True

    def close(self) -> None:
        """Note in the ledger that the releases were made."""
        self._is_open = False
        if self.charge is not None:
            Ledger(self.options.ledger).complete(self.charge.id)

    def check_noise(self, networks: Sequence[nn.Module] = ()) -> None:
        """Refuse noise that the safe grid cannot carry, in whichever option (section 6).

        Args:
            networks: that DP-SGD trains.
        """
        noise = self.options.noise
        for plan in self.plan.options or (self.plan,):
            for name, scale in (*_training_noise(plan), *self._hop_noise(plan), *plan.scales):
                check_scale(name, scale, noise)
        is_private = self.plan.level == "node" or bool(self.plan.training)
        if is_private and noise == "safe":
            for network in networks:
                check_size(sum(value.numel() for value in network.parameters()))

    def _check_paid(self) -> None:
        """Refuse hops that are more sums than their event pays for (privacy page, section 2).

        At node level, and where an edge of each type is protected, neighbours move the sums of
        every edge type. Elsewhere they move the sum of one type, and that of their union where it
        is released. The union has no bound where they differ in several types.
        """
        if self.plan.level == "none":
            return
        num_types = len(self.graph.edge_types)
        for plan in self.plan.options or (self.plan,):
            paid = {event.label: event.times for event in plan.promise.events}
            for name, hops in plan.hops.items():
                is_each = plan.level == "node" or hops.protects == "each"
                if is_each and hops.with_union and num_types > 1:
                    raise PrivacyError(
                        f"{name!r} must be released without the union of the edge types where "
                        "neighbours differ in each of them. Got both."
                    )
                sums = num_types if is_each else 1 + hops.with_union
                needed, found = hops.count * sums, paid.get(hops.event, 0)
                if found < needed:
                    raise PrivacyError(
                        f"every hop must be paid for: {name!r} needs {needed} in its event. "
                        f"Got {found}."
                    )

    def _check_spelling(self) -> None:
        """Refuse two nodes whose ids are one person: a budget would count that person once."""
        rows = None if self.plan.level == "none" else spelled_twice(self.graph.ids)
        if rows is not None:
            one, other = (str(self.graph.ids[row]) for row in rows)
            raise DataError(
                f"`ids` must name each node in one spelling. Got {one!r} and {other!r}, which are "
                "one person for a budget; give the graph one node for each person."
            )

    def _hop_noise(self, plan: Plan[Any]) -> list[tuple[str, float]]:
        if plan.level == "none":
            return []
        released = {event.label for event in plan.promise.events}
        return [
            (name, mechanism.std)
            for name, hops in plan.hops.items()
            if hops.event in released
            for mechanism in self._aggregations(plan, name, [NoiseKey.insecure(0)], "cpu")
        ]

    def _about_run(self) -> dict[str, Any]:
        """Return what must not change when a run is resumed: options, and what is released."""
        promise = self.plan.promise
        return {
            **self._about,
            "method": self.plan.method,
            "num_nodes": self.graph.num_nodes,
            "level": promise.level,
            "relation": promise.relation.name,
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "count": len(self.options.keys),
            "events": [event.to_dict() for event in promise.events],
            "fingerprint": self._people.fingerprint,
        }

    def _check_free(self) -> None:
        """Refuse what has no price where it would walk around a budget (section 6)."""
        promise, ledger = self.plan.promise, Ledger(self.options.ledger)
        purpose, reason = f"{self.plan.method} {self._purpose}", self.options.curator_only
        if not promise.events:
            ledger.check_free(
                self._people, level=promise.level, purpose=purpose, curator_only=reason
            )
        if self._reads_lists and promise.level == "edge":
            # Figures computed from exact adjacency lists are the curator's alone, on record.
            ledger.check_free(self._people, level="none", purpose=purpose, curator_only=reason)

    def _charge(self) -> Charge | None:
        """Record the price durably before anything is released (privacy page, section 6)."""
        promise = self.plan.promise
        if not promise.events:
            return None
        if promise.epsilon is None or not math.isfinite(promise.epsilon):
            raise PrivacyError(f"A release must have a finite price. Got {promise.epsilon}.")
        ledger = Ledger(self.options.ledger)
        events = [event.to_dict() for event in promise.events]
        count = len(self.options.keys)
        stated: dict[str, Any] = {"level": promise.level, "relation": promise.relation}
        if self._announce is not None:
            asked = [(promise.epsilon, promise.delta, events)] * count
            budgets = ledger.budgets_after(self._people, releases=asked, **stated)
            left = [f"{now.left_of(after)}." for now, after in budgets]
            self._announce(" ".join([self._price(promise.epsilon, promise.delta, count), *left]))
        check_agreed(promise.epsilon * count)
        charge = ledger.charge(
            self._people,
            epsilon=promise.epsilon,
            delta=promise.delta,
            events=events,
            purpose=f"{self.plan.method} {self._purpose}",
            count=count,
            reason=self.options.reason,
            **stated,
        )
        # At once: what comes next may fail, and the charge stands.
        note_charge(charge)
        return charge

    def _price(self, epsilon: float, delta: float, count: int) -> str:
        """Say what a run is charged, and for what."""
        names = self.graph.edge_type_names
        is_each = any(hops.protects == "each" for hops in self.plan.hops.values())
        what = charged_for(
            epsilon,
            delta,
            self.plan.promise.relation,
            edge_types=names,
            protects=("each" if is_each else "any") if names else "",
        )
        times = f"{count} times " if count > 1 else ""
        is_method = not isinstance(self.plan.settings, Declared)
        who = f"{'training ' * (is_method and self._purpose == 'fit')}{self.plan.method}"
        return self.graph.wording.fill(f"{who} is charged {times}{what}.")

    # Releases ---------------------------------------------------------------------------------

    @property
    def transcript(self) -> tuple[str, ...]:
        """The names of what was released or trained, in order; hops of one name are listed once."""
        return tuple(self._made)

    def std(self, name: str) -> tuple[float, ...]:
        """Return the noise of one hop, for each edge type and, where released, their union."""
        return tuple(one.std for one in self._hops(name))

    def release(
        self,
        name: str,
        rows: Tensor | Sequence[Tensor],
        *,
        normalise: bool = False,
        keep: bool = True,
    ) -> list[Tensor]:
        """Release the next hop of a name: noisy sums of what every node's in-neighbours send.

        Each row is at most 1 long, and its sum has the sensitivity of the stated relation whatever
        the rows are: they may be computed from the sender's own record and from earlier releases
        (privacy page, section 1).

        Args:
            name: of the planned hops.
            rows: ``(nodes, columns)``, or ``(repeats, nodes, columns)``; the same along all edge
                types, or a list with those of each.
            normalise: scale the noisy rows to norm 1, as the paper does.
            keep: write the hop to the checkpoint.

        Returns:
            The noisy sums along each edge type and, where the plan says so, along their union. No
            gradient passes through a release: where rows have one, a backward pass is refused.
        """
        planned = self.plan.hops.get(name)
        if planned is None:
            raise self._unplanned(name)
        self._check_planned(planned.event, at_most=planned.count)
        mechanisms = self._hops(name)
        sent = [rows] * len(mechanisms) if isinstance(rows, Tensor) else list(rows)
        released = []
        for mechanism, block in zip(mechanisms, sent, strict=True):
            index = self._next_hop
            self._next_hop += 1
            draw = partial(mechanism.hop, block, index, normalise=normalise)
            if not keep:
                released.append(without_gradient(draw(), block))
                continue
            state = self._checkpoint.load_or_run(
                f"hop-{index}",
                lambda draw=draw: {"hop": draw()},  # type: ignore[misc]
                is_sound=partial(_is_hop, shape=block.shape),
            )
            released.append(without_gradient(state["hop"].to(block.device), block))
        self._made[planned.event] += 1
        return released

    def train(
        self,
        name: str,
        network: nn.Module,
        trainer: Trains | Callable[[nn.Module], object],
        inputs: Any = None,
    ) -> None:
        """Train a network: by DP-SGD where the plan says so, and always at node level.

        Below node level training reads released rows and public features and labels alone, which is
        post-processing: any module and any training loop will do. What reads exact edges there, and
        everything at node level, must be planned, and the trainer must clip and add noise.

        Args:
            name: of the network.
            network: trained in place; left in evaluation mode.
            trainer: a training loop of your own, called with the network; or an object with a
                method ``fit``, such as the library's trainer.
            inputs: what such an object's ``fit`` is given.
        """
        private, event = None, name
        planned = self.plan.training.get(name)
        if planned is None and self.plan.level == "node":
            raise self._unplanned(name)
        if planned is not None:
            if not hasattr(trainer, "fit"):
                raise PrivacyError(
                    "`trainer` must clip gradients and add noise at level node, which a training "
                    "loop of one's own does not. Got a function. Use `gapgnn.dp_sgd`, or train at "
                    "level edge."
                )
            event = planned.event
            self._check_planned(event, at_most=1)
            private = PrivateTraining(
                self.plan.promise.free_multiplier * planned.ratio,
                self.options.keys,
                self.options.noise,
                planned.sensitivity,
            )
        self._check_open(name)
        before = {key: value.shape for key, value in _state_of(network).items()}

        def run() -> Tensors:
            if hasattr(trainer, "fit"):
                trainer.fit(network, inputs, phase=name, private=private)
            else:
                trainer(network)
            # Parameters that share memory are written one by one.
            return {key: value.detach().clone() for key, value in _state_of(network).items()}

        state = self._checkpoint.load_or_run(
            f"network-{name}",
            run,
            is_sound=lambda state: {key: one.shape for key, one in state.items()} == before,
        )
        network.load_state_dict(state)
        network.eval()
        self._made[event] += 1

    def draw(
        self,
        name: str,
        run: Callable[[], Tensors],
        *,
        events: Sequence[str] = (),
        is_sound: Callable[[Tensors], bool] = lambda state: True,
    ) -> Tensors:
        """Make a release by another mechanism, once; a resumed run is given what it made.

        Args:
            name: of the step, once in a session.
            run: makes the release. It must draw its noise from a :class:`NoiseSource` and report
                to the release observer.
            events: names of the planned events that pay for it; one release may be made in several
                steps, such as one for each repeat.
            is_sound: whether what a resumed run finds has the expected shapes.
        """
        self._check_open(name)
        if name in self._drawn:
            raise PrivacyError(f"a release must be drawn once. Got {name!r} again.")
        self._drawn.add(name)
        if self.plan.level != "none":
            for event in events:
                if event not in self.plan.planned:
                    raise self._unplanned(event)
        found = self._checkpoint.load_or_run(name, run, is_sound=is_sound)
        for event in events:
            # A resumed run finds what its first start released.
            self._made[event] = max(1, self._made[event])
        return found

    def choose(self, number: int) -> None:
        """Go on with one option of an adaptive choice, which a first release decided."""
        self.plan = self.plan.chosen(number)

    def mechanism(self, name: str) -> PrivateAggregation:
        """Return the aggregation of planned hops along one edge type, for what must read its cut.

        What it returns of adjacency lists is private: it may only enter a clipped DP-SGD step.
        """
        (only,) = self._hops(name)
        return only

    def _hops(self, name: str) -> list[PrivateAggregation]:
        if name not in self._mechanisms:
            keys = [key.derive(name) for key in self.options.keys]
            found = self._aggregations(self.plan, name, keys, self.options.device)
            self._mechanisms[name] = found
        return self._mechanisms[name]

    def _aggregations(
        self, plan: Plan[Any], name: str, keys: Sequence[NoiseKey], device: torch.device | str
    ) -> list[PrivateAggregation]:
        hops = plan.hops[name]
        return hop_mechanisms(
            self.graph,
            level=plan.level,
            relation=plan.relation,
            noise_multiplier=plan.multiplier_of(hops.event),
            max_degree=hops.max_degree if plan.level == "node" else None,
            normalised=hops.is_normalised,
            to_self=hops.to_self,
            symmetrised=hops.is_symmetrised,
            with_total=hops.with_union,
            keys=keys,
            noise=self.options.noise,
            device=device,
        )

    def _check_open(self, name: str) -> None:
        if not self._is_open:
            raise PrivacyError(f"a session must be open to release {name!r}. Got a closed one.")

    def _check_planned(self, name: str, *, at_most: int) -> None:
        self._check_open(name)
        if self.plan.level != "none" and name not in self.plan.planned:
            raise self._unplanned(name)
        if self._made[name] >= at_most:
            raise PrivacyError(
                f"a release must be made as often as the plan says. Got {name!r} once more than "
                f"{at_most}."
            )

    def _unplanned(self, name: str) -> PrivacyError:
        planned = ", ".join(self.plan.planned) or "nothing"
        return PrivacyError(f"a release must be planned ({planned}). Got {name!r}.")

    # The card ---------------------------------------------------------------------------------

    @property
    def released_events(self) -> tuple[Event, ...]:
        """The events of what was released, as the transcript lists it."""
        return tuple(event for event in self.plan.promise.events if self._made[event.label])

    def card(self, facts: ReleaseFacts | None = None) -> PrivacyCard:
        """Return the privacy card of this run, made from its transcript.

        Args:
            facts: what the method says of itself; left out: :meth:`facts`.
        """
        facts = self.facts() if facts is None else facts
        unmade = [event.label for event in self.plan.promise.events if not self._made[event.label]]
        if unmade:
            raise PrivacyError(f"a run must make what it charged. Got no {', '.join(unmade)}.")
        run = ReleasedRun.of(
            self.graph,
            self.plan,
            replace(self.plan.promise, events=self.released_events),
            self.transcript,
            charge=self.charge,
            noise=self.options.noise,
            is_seeded=self.options.is_seeded,
        )
        return make_card(run, facts)

    def facts(self) -> ReleaseFacts:
        """Return what a card says of a program that is no method of the library.

        The card states what the promise rests on: how the rows that were sent were computed.
        """
        plan, graph = self.plan, self.graph
        is_node = plan.level == "node"
        bounds = [hops.max_degree for hops in plan.hops.values() if hops.max_degree is not None]
        messages = "given records" if is_node else "given rows"
        return ReleaseFacts(
            method=plan.method,
            messages=messages if plan.hops else "none",
            steps=["own program"],
            public=public_facts(
                plan.level,
                num_train=0 if plan.facts is None else plan.facts.num_train,
                train_size_is_declared=False,
                delta_is_auto=plan.promise.delta_is_auto,
                is_delta_compared=bool(plan.promise.delta),
                inferred=graph.inferred,
                has_schema=graph.schema is not None,
                max_degree=bounds[0] if bounds and is_node else None,
                edge_types=graph.edge_type_names,
                weight_bounds=[
                    (one.weight_bounds or (0.0, 1.0)) if one.is_weighted else None
                    for one in graph.edge_types
                ],
            ),
        )

    def charged_release(self, purpose: str) -> ChargedRelease:
        """Return this session's releases as a card lists them."""
        return ChargedRelease.of(self.plan.promise, self.charge, purpose)


def _state_of(network: nn.Module) -> Tensors:
    """Return what is kept of a network, which must have all of its parameters by now."""
    state = network.state_dict()
    if any(torch.nn.parameter.is_lazy(value) for value in state.values()):
        raise InputError(
            "`network` must have all parameters before it is trained. Got one that is still lazy: "
            "call it once on some rows, or state the width of its input."
        )
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _is_hop(state: Tensors, *, shape: torch.Size) -> bool:
    return state.keys() == {"hop"} and state["hop"].shape == shape


def _training_noise(plan: Plan[Any]) -> list[tuple[str, float]]:
    return [
        (event.label or "training", event.noise_multiplier)
        for event in plan.promise.events
        if isinstance(event, (PoissonGaussian, MixtureOfGaussians, SubgraphGaussian))
    ]
