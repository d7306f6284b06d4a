"""Sessions: a session charges a plan, makes its releases and records them.

A session owns the charge, the noise keys, the checkpoint and the transcript of one run over one
graph. Opening it checks everything that can fail without reading private data, announces the price,
and charges the ledger durably (privacy page, section 6). From then on every access to private data
goes through it:

- :meth:`PrivateSession.release` aggregates rows along the edges and returns noisy sums;
- :meth:`PrivateSession.train` trains a network, by DP-SGD if the plan contains it;
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

from gapgnn.errors import PrivacyError
from gapgnn.graph import Graph
from gapgnn.privacy.accounting import Event, MixtureOfGaussians, PoissonGaussian
from gapgnn.privacy.card import (
    IN_HOPS,
    ChargedRelease,
    PrivacyCard,
    ReleaseFacts,
    make_card,
    rounded_up,
)
from gapgnn.privacy.checkpoint import NoCheckpoint, Tensors
from gapgnn.privacy.dpsgd import PrivateTraining, check_size
from gapgnn.privacy.guarantee import Guarantee
from gapgnn.privacy.ledger import Charge, Ledger, People
from gapgnn.privacy.mechanisms import (
    PrivateAggregation,
    SafeOrFast,
    check_scale,
    hop_mechanisms,
)
from gapgnn.privacy.observer import active_observer
from gapgnn.privacy.plan import Plan
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
        keys: the secret of each repeat.
        noise: ``safe`` for releases, ``fast`` for experiments.
        is_seeded: whether the noise is predictable, which the card says.
        device: where sums are computed.
        ledger: file of the privacy ledger; None: the user's own.
        reason: why this is released, for the ledger.
        curator_only: at level none, why the curator looks at people with a budget.
    """

    keys: Sequence[NoiseKey]
    noise: SafeOrFast = "safe"
    is_seeded: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ledger: Any = None
    reason: str = ""
    curator_only: str | None = None


class PrivateSession:
    """Makes the releases of a calibrated plan on one graph, and nothing else.

    Args:
        plan: what will be released.
        graph: with a row for each node that a release has one for.
        options: noise keys, device and ledger.
        purpose: ``fit`` or ``predict``, for the ledger.
        people: who is charged; None: everybody in the graph.
        checkpoint: keeps finished steps, for a run that can be killed and resumed.
        about: what must be the same when a run is resumed.
        announce: told the price before it is charged.
        reads_lists: also put on the ledger's record that exact adjacency lists are read.

    >>> from gapgnn import GAP, load_dataset
    >>> graph = load_dataset("social")
    >>> plan = GAP(level="edge", epsilon=2.0).plan_for(graph)
    >>> with PrivateSession(plan, graph, SessionOptions([NoiseKey.fresh()])) as session:
    ...     rows = torch.nn.functional.normalize(torch.ones(graph.num_nodes, 4))
    ...     (hop,) = session.release("aggregation", rows, normalise=True)
    >>> tuple(hop.shape), session.transcript
    ((10000, 4), ('aggregation',))
    """

    def __init__(
        self,
        plan: Plan[Any],
        graph: Graph,
        options: SessionOptions,
        *,
        purpose: Literal["fit", "predict"] = "fit",
        people: People | None = None,
        checkpoint: NoCheckpoint | None = None,
        about: dict[str, Any] | None = None,
        announce: Callable[[str], None] | None = None,
        reads_lists: bool = False,
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.options = options
        self.charge: Charge | None = None
        self._purpose = purpose
        self._people = People.of(graph) if people is None else people
        self._checkpoint = NoCheckpoint() if checkpoint is None else checkpoint
        self._about = about or {}
        self._announce = announce
        self._reads_lists = reads_lists
        self._mechanisms: dict[str, list[PrivateAggregation]] = {}
        self._made: Counter[str] = Counter()
        self._next_hop = 1
        self._is_open = False

    # Opening and closing ----------------------------------------------------------------------

    def __enter__(self) -> PrivateSession:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    def open(self) -> None:
        """Check, show the price, and charge it; nothing private is read before this returns."""
        self.check_noise()
        self._check_paid()
        self._check_free()
        self.charge = self._checkpoint.charged(self._about, self._charge)
        if (observer := active_observer()) is not None:
            observer.begin(
                self._purpose,
                ids=self.graph.ids,
                level=self.plan.level,
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
        if self.plan.level == "node" and noise == "safe":
            for network in networks:
                check_size(sum(value.numel() for value in network.parameters()))

    def _check_paid(self) -> None:
        """Refuse hops that are more sums than their event pays for (privacy page, section 2).

        At node level one record moves the sums of every edge type. At edge level it moves at least
        that of one type, and that of their union where it is released.
        """
        if self.plan.level == "none":
            return
        num_types = len(self.graph.edge_types)
        for plan in self.plan.options or (self.plan,):
            paid = {event.label: event.times for event in plan.promise.events}
            for name, hops in plan.hops.items():
                sums = num_types if plan.level == "node" else 1 + hops.with_union
                needed, found = hops.count * sums, paid.get(hops.event, 0)
                if found < needed:
                    raise PrivacyError(
                        f"every hop must be paid for: {name!r} needs {needed} in its event. "
                        f"Got {found}."
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
            ledger.check_affordable(self._people, releases=asked, **stated)
            times = f"{count} times " if count > 1 else ""
            self._announce(
                f"training {self.plan.method} is charged {times}epsilon "
                f"{rounded_up(promise.epsilon)}, delta {promise.delta:.3g} ({promise.relation})."
            )
        return ledger.charge(
            self._people,
            epsilon=promise.epsilon,
            delta=promise.delta,
            events=events,
            purpose=f"{self.plan.method} {self._purpose}",
            count=count,
            reason=self.options.reason,
            **stated,
        )

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
            rows: ``(repeats, nodes, columns)``, the same along all edge types or one for each.
            normalise: scale the noisy rows to norm 1, as the paper does.
            keep: write the hop to the checkpoint.

        Returns:
            The noisy sums along each edge type and, where the plan says so, along their union.
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
                released.append(draw())
                continue
            state = self._checkpoint.load_or_run(
                f"hop-{index}",
                lambda draw=draw: {"hop": draw()},  # type: ignore[misc]
                is_sound=partial(_is_hop, shape=block.shape),
            )
            released.append(state["hop"].to(block.device))
        self._made[planned.event] += 1
        return released

    def train(
        self,
        name: str,
        network: nn.Module,
        trainer: Trains,
        inputs: Any,
    ) -> None:
        """Train a network: by DP-SGD at node level, plainly elsewhere.

        Below node level training reads released rows and public features and labels alone, which is
        post-processing. At node level the plan must contain it.

        Args:
            name: of the network.
            network: all replicas, trained in place.
            trainer: the training loop.
            inputs: what the network reads.
        """
        private, event = None, name
        if self.plan.level == "node":
            planned = self.plan.training.get(name)
            if planned is None:
                raise self._unplanned(name)
            event = planned.event
            self._check_planned(event, at_most=1)
            private = PrivateTraining(
                self.plan.promise.free_multiplier * planned.ratio,
                self.options.keys,
                self.options.noise,
                planned.sensitivity,
            )
        self._check_open(name)
        device = next(network.parameters()).device

        def run() -> Tensors:
            trainer.fit(network, inputs, phase=name, private=private)
            return dict(network.state_dict())

        before = {key: value.shape for key, value in network.state_dict().items()}
        state = self._checkpoint.load_or_run(
            f"network-{name}",
            run,
            is_sound=lambda state: {key: one.shape for key, one in state.items()} == before,
        )
        network.load_state_dict({key: value.to(device) for key, value in state.items()})
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
            name: of the step.
            run: makes the release. It must draw its noise from a :class:`NoiseSource` and report
                to the release observer.
            events: names of the planned events that pay for it; one release may be made in several
                steps, such as one for each repeat.
            is_sound: whether what a resumed run finds has the expected shapes.
        """
        self._check_open(name)
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

    def card(self, facts: ReleaseFacts) -> PrivacyCard:
        """Return the privacy card of this run, made from its transcript.

        Args:
            facts: what the method says of itself.
        """
        unmade = [event.label for event in self.plan.promise.events if not self._made[event.label]]
        if unmade:
            raise PrivacyError(f"a run must make what it charged. Got no {', '.join(unmade)}.")
        # Nothing travelled along the edges where no hop was released, whatever was planned.
        is_promised = self.plan.level != "none"
        is_silent = is_promised and facts.messages in IN_HOPS and not self._released_hops
        return make_card(
            replace(self.plan.promise, events=self.released_events),
            replace(
                facts,
                messages="none released" if is_silent else facts.messages,
                noise=self.options.noise,
                is_insecure=self.options.is_seeded,
                charge=self.charge,
            ),
        )

    @property
    def _released_hops(self) -> bool:
        return any(self._made[hops.event] for hops in self.plan.hops.values())

    def charged_release(self, purpose: str) -> ChargedRelease:
        """Return this session's releases as a card lists them."""
        return charged_release(self.plan.promise, self.charge, purpose)


def _is_hop(state: Tensors, *, shape: torch.Size) -> bool:
    return state.keys() == {"hop"} and state["hop"].shape == shape


def charged_release(promise: Guarantee, charge: Charge | None, purpose: str) -> ChargedRelease:
    """Return what a promise releases as a card lists it; without a charge, as it would."""
    assert promise.epsilon is not None
    return ChargedRelease(
        purpose=purpose,
        charge_id="not charged" if charge is None else charge.id,
        when="" if charge is None else charge.charged_at[:10],
        relation=promise.relation,
        epsilon=promise.epsilon,
        delta=promise.delta,
        events=tuple(event.to_dict() for event in promise.events),
    )


def _training_noise(plan: Plan[Any]) -> list[tuple[str, float]]:
    return [
        (event.label or "training", event.noise_multiplier)
        for event in plan.promise.events
        if isinstance(event, (PoissonGaussian, MixtureOfGaussians))
    ]
