"""Sessions of a search: one charge for several fits, of which one is handed out.

A :class:`SelectionSession` charges a whole search before anything is read and opens a session for
each of its fits.

- A *private selection* draws how many candidates run, and with which settings, from the noise key
  (Theorem 21 of the proofs page). What a candidate releases stays inside the process and, where the
  run can be resumed, in the curator's unfinished folder. Only the winner is handed out.
- *Pilots* are fits at a small part of the budget, one for each setting, after which one setting is
  fitted with the rest. That is adaptive composition of all of it (Theorem 14), so everything that
  any of these fits releases is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gapgnn.errors import InputError, PrivacyError
from gapgnn.privacy.accounting import CandidateNumber, Event, Laplace, PrivateSelection
from gapgnn.privacy.card import PrivacyCard, ReleaseFacts, chosen_by_pilots, chosen_from
from gapgnn.privacy.checkpoint import NoCheckpoint, Tensors
from gapgnn.privacy.guarantee import Guarantee
from gapgnn.privacy.plan import Plan
from gapgnn.privacy.session import PrivateSession, SessionOptions

SELECTION, SCORE = "selection", "validation score"


@dataclass(frozen=True, kw_only=True)
class SelectionSettings:
    """The settings of a plan that selects.

    Attributes:
        settings: number of settings that a candidate is drawn from.
        number: the distribution of the number of candidates.
    """

    settings: int
    number: str


def with_score(plan: Plan[Any], epsilon: float) -> Plan[Any]:
    """Return a calibrated plan that also releases a noisy count: the score at node level.

    Args:
        plan: of one candidate.
        epsilon: of the count, at delta 0; it comes on top of the plan's own.
    """
    event = Laplace(1.0 / epsilon, label=SCORE)
    promise = plan.promise
    return replace(
        plan,
        guarantee=replace(promise, events=(*promise.events, event)),
        options=tuple(with_score(option, epsilon) for option in plan.options),
        scales=(*plan.scales, (SCORE, 1.0 / epsilon)),
    )


def selection_event(plans: Sequence[Plan[Any]], number: CandidateNumber) -> PrivateSelection:
    """Return the event of a selection among candidates with these plans."""
    return PrivateSelection(
        tuple(plan.promise.events for plan in plans),
        number.mean,
        number.shape,
        number.distribution,
        label=SELECTION,
    )


def selection_plan(
    plans: Sequence[Plan[Any]], number: CandidateNumber, *, method: str, budget: float, delta: Any
) -> Plan[SelectionSettings]:
    """Return the priced plan of a selection among candidates with these plans.

    Args:
        plans: one for each setting, calibrated on the same graph.
        number: the distribution of the number of candidates.
        method: what is selected, for the ledger.
        budget: the epsilon that was asked for.
        delta: as it was asked for.
    """
    first = plans[0]
    assert first.facts is not None
    promise = Guarantee.of_events(
        first.facts.counts,
        [selection_event(plans, number)],
        relation=first.relation,
        delta=delta,
        noise_multiplier=None,
    )
    return Plan(
        method=method,
        relation=first.relation,
        budget=budget,
        delta=promise.delta,
        settings=SelectionSettings(settings=len(plans), number=str(number)),
        facts=first.facts,
        guarantee=promise,
    )


@dataclass(frozen=True, kw_only=True)
class PilotSettings:
    """The settings of a plan with pilots.

    Attributes:
        settings: number of settings, each with a pilot.
    """

    settings: int


def pilot_plan(
    pilots: Sequence[Plan[Any]],
    finals: Sequence[Plan[Any]],
    *,
    method: str,
    budget: float,
    delta: Any,
) -> Plan[PilotSettings]:
    """Return the priced plan of one pilot per setting and of a final fit with one of the settings.

    Pilots and the final fit compose. Which setting is fitted at the end is an adaptive choice
    between options, so the dearest one is charged (Theorems 14 and 16 of the proofs page).

    Args:
        pilots: the plan of each setting's pilot, calibrated.
        finals: the plan of each setting's final fit, calibrated.
        method: what is fitted, for the ledger.
        budget: the epsilon that was asked for.
        delta: as it was asked for.
    """
    first = finals[0]
    assert first.facts is not None
    events: list[Event] = []
    for number, (pilot, final) in enumerate(zip(pilots, finals, strict=True)):
        if pilot.options or not all(hasattr(event, "option") for event in final.promise.events):
            raise InputError(
                f"pilots must have releases whose noise is calibrated, and no adaptive choice. Got "
                f"{first.method}: use the strategy selection."
            )
        events += pilot_events(pilot, number) + final_events(final, number)
    promise = Guarantee.of_events(
        first.facts.counts, events, relation=first.relation, delta=delta, noise_multiplier=None
    )
    return Plan(
        method=method,
        relation=first.relation,
        budget=budget,
        delta=promise.delta,
        settings=PilotSettings(settings=len(finals)),
        facts=first.facts,
        guarantee=promise,
    )


def pilot_events(plan: Plan[Any], number: int) -> list[Event]:
    """Return the events of a pilot as the search is charged for them."""
    return [
        replace(event, label=f"pilot {number + 1}: {event.label}")  # type: ignore[type-var]
        for event in plan.promise.events
    ]


def final_events(plan: Plan[Any], number: int) -> list[Event]:
    """Return the events of a final fit as the search is charged for them."""
    return [
        replace(event, option=number + 1)  # type: ignore[type-var]
        for event in plan.promise.events
    ]


def _within(plan: Plan[Any], whole: Guarantee, budget: float) -> Plan[Any]:
    """Return a candidate's plan at the price of the selection, which is what was charged."""
    promise = replace(
        plan.promise,
        epsilon=whole.epsilon,
        delta=whole.delta,
        delta_is_auto=whole.delta_is_auto,
        accountant=whole.accountant,
        charged=whole.events,
    )
    return replace(plan, guarantee=promise, budget=budget)


class _Part(NoCheckpoint):
    """The steps of one candidate in the checkpoint of its selection.

    Variants of a candidate, which differ after its releases only, share these releases: hops, what
    other mechanisms drew, and networks that DP-SGD trained. Other networks are their own.
    """

    def __init__(
        self,
        whole: NoCheckpoint,
        name: str,
        variant: int,
        shared: dict[str, Any],
        *,
        plan: Plan[Any],
    ):
        self._whole, self._name, self._variant, self._shared = whole, name, variant, shared
        self._released = {
            f"network-{network}" for one in (plan, *plan.options) for network in one.training
        }

    def load_or_run(
        self, name: str, run: Callable[[], Tensors], *, is_sound: Callable[[Tensors], bool]
    ) -> Tensors:
        """Return what the candidate or a variant of it has finished, or run the step."""
        if name.startswith("network-") and name not in self._released:
            place = f"{self._name}-{self._variant}-{name}"
            return self._whole.load_or_run(place, run, is_sound=is_sound)
        if name not in self._shared:
            place = f"{self._name}-{name}"
            self._shared[name] = self._whole.load_or_run(place, run, is_sound=is_sound)
        found: Tensors = self._shared[name]
        return {key: value.clone() for key, value in found.items()}


class SelectionSession(PrivateSession):
    """Charges a search once, and opens a session for each of its fits.

    Its plan is that of a selection (:func:`selection_plan`), of pilots (:func:`pilot_plan`), or of
    one release whose variants are compared, which is post-processing. See
    :class:`~gapgnn.privacy.session.PrivateSession` for the arguments. The outputs of candidates of
    a selection that are not selected, their scores and their number are secret: the price covers
    none of them.
    """

    _drawn_settings: tuple[int, ...] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Of each candidate that was opened, what it was paid for and what it released.
        self._opened: dict[int, tuple[tuple[Event, ...], dict[str, Any]]] = {}

    def _claimed(self, number: int, plan: Plan[Any]) -> dict[str, Any]:
        """Return the releases of a candidate, which are made once, whatever is done with them."""
        events, shared = self._opened.setdefault(number, (plan.promise.events, {}))
        if events != plan.promise.events:
            raise PrivacyError(f"candidate {number} must make its own releases. Got another plan.")
        return shared

    @property
    def selection(self) -> PrivateSelection | None:
        """The event of the selection; None for pilots, and where all share one release."""
        events = self.plan.promise.events
        return events[0] if len(events) == 1 and isinstance(events[0], PrivateSelection) else None

    def draw_candidates(self) -> tuple[int, ...]:
        """Return the setting of every candidate to run: a secret number of them.

        Number and settings come from the noise key, so nobody can predict or repeat them. A
        resumed run is given those of its first start.
        """
        event, plan = self.selection, self.plan
        if event is None:
            return (0,)
        (key,) = self.options.keys
        own = key.derive(SELECTION)

        def run() -> Tensors:
            count = event.number.of(own.bytes(24, "number"))
            settings = [
                int.from_bytes(own.bytes(32, "setting", i), "big") % plan.settings.settings
                for i in range(count)
            ]
            return {"settings": torch.tensor(settings, dtype=torch.int64)}

        found = self.draw("candidates", run, events=(SELECTION,))["settings"]
        self._drawn_settings = tuple(found.tolist())
        return self._drawn_settings

    def candidate(
        self,
        number: int,
        plan: Plan[Any],
        graph: Any,
        *,
        variant: int = 0,
        score: Callable[[PrivateSession], None] | None = None,
    ) -> PrivateSession:
        """Return the session of one candidate, which this session's charge pays for.

        Opened again for another variant, it is given the releases that the candidate has made.

        Args:
            number: of the candidate, from 0 on.
            plan: of its setting, calibrated.
            graph: with the rows that its releases have.
            variant: of several that share the releases of the candidate.
            score: called before the session closes.
        """
        self._check_paid_for(number, plan)
        return _CandidateSession(self, number, plan, graph, variant, score)

    def _check_paid_for(self, number: int, plan: Plan[Any], *, opens: bool = False) -> None:
        """Refuse a candidate that the search does not contain or did not draw.

        Args:
            number: of the candidate.
            plan: of its setting.
            opens: it is about to release, for which the candidates of a selection must be drawn:
                the price holds for a random number of them, not for a chosen one.
        """
        event, events, paid = self.selection, plan.promise.events, self.plan.promise.events
        if isinstance(self.plan.settings, PilotSettings):
            count = self.plan.settings.settings
            if number < count:
                options = [pilot_events(plan, number)]
            else:
                options = [final_events(plan, option) for option in range(count)]
            is_paid = number <= count and any(set(one) <= set(paid) for one in options)
        elif event is None:
            is_paid = number == 0 and events == paid
        else:
            # Before the draw a session may be made to be checked, and is not opened.
            drawn = self._drawn_settings
            is_drawn = not opens if drawn is None else 0 <= number < len(drawn)
            is_paid = events in event.candidates and is_drawn
        if not is_paid or plan.relation != self.plan.relation:
            raise PrivacyError(
                "a candidate must be one that the search was charged for. Got another plan, or "
                "one candidate more than were drawn."
            )


class _CandidateSession(PrivateSession):
    """Makes the releases of one candidate, at the price of the selection it belongs to."""

    def __init__(
        self,
        outer: SelectionSession,
        number: int,
        plan: Plan[Any],
        graph: Any,
        variant: int,
        score: Callable[[PrivateSession], None] | None,
    ) -> None:
        (key,) = outer.options.keys
        options: SessionOptions = replace(outer.options, keys=[key.derive("candidate", number)])
        super().__init__(
            _within(plan, outer.plan.promise, outer.plan.budget),
            graph,
            options,
            people=outer._people,
        )
        self._outer, self._score = outer, score
        self._number, self._variant, self._own_plan = number, variant, plan

    def open(self) -> None:
        """Go on under the charge of the selection, which must be open."""
        self._outer._check_open("a candidate")
        self._outer._check_paid_for(self._number, self._own_plan, opens=True)
        self._check_paid()
        self.check_noise()
        shared = self._outer._claimed(self._number, self._own_plan)
        name = f"candidate-{self._number}"
        self._checkpoint = _Part(
            self._outer._checkpoint, name, self._variant, shared, plan=self._own_plan
        )
        self.charge = self._outer.charge
        self._is_open = True

    def card(self, facts: ReleaseFacts | None = None) -> PrivacyCard:
        """Return the privacy card, which says what the candidate was chosen from."""
        known = self.facts() if facts is None else facts
        settings = self._outer.plan.settings
        if isinstance(settings, SelectionSettings):
            text = chosen_from(settings.settings, settings.number)
            known = replace(known, warnings=(*known.warnings, text))
        if isinstance(settings, PilotSettings):
            known = replace(known, warnings=(*known.warnings, chosen_by_pilots(settings.settings)))
        return super().card(known)

    def close(self) -> None:
        """Score the candidate; the ledger hears of the selection alone."""
        if self._score is not None:
            self._score(self)
        self._is_open = False
