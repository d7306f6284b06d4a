"""Replaying a run on a neighbour: with the same transcript, whatever still differs is a leak.

Privacy page, section 9. The first run is *recorded*: every charged release with its value before
noise and what came out, and the batch of every DP-SGD step. The second run, on a neighbour, is
*replayed*: each release is held to its accounted sensitivity and then answers what came out the
first time, and every batch has the same people. Adaptive composition compares exactly such runs.

At node level the record in question is put into every batch of the recorded run: its coin matters
to amplification, not to how far it may move a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gapgnn.privacy import Relation, Release, Replace, Unprotected
from gapgnn.privacy.dpsgd import PoissonBatch

# Sums of others' rows may round otherwise where rows lie in another place.
ROUNDING = 1e-6


class Interrupted(BaseException):
    """Stands for a kill: raised in the middle of a run that is going to be resumed."""


@dataclass(frozen=True)
class Compared:
    """One release in both runs: how far it may move, how far it did, and how much noise it has.

    Attributes:
        name: of the release.
        accounted: how far it may move.
        observed: how far it did.
        noise: its noise multiplier, the scale of the noise over the sensitivity.
        scale: of the noise.
        mechanism: ``hop``, ``step`` (of DP-SGD), ``labels``, ``edges``, ``number`` (with Laplace
            noise) or ``other``.
    """

    name: str
    accounted: float
    observed: float
    noise: float = 0.0
    scale: float = 0.0
    mechanism: str = "other"

    @property
    def holds(self) -> bool:
        """Whether the release moved no further than is accounted for."""
        return self.observed <= self.accounted * (1 + ROUNDING) + 1e-12


@dataclass(frozen=True)
class _Seen:
    release: Release
    output: Any
    ids: tuple[str, ...]


class _Watcher:
    """What recording and replaying share: who is who in the present run.

    Args:
        person: the id of the record in question at node level; None at edge level.
        interrupt_after: die after so many releases, to be resumed.
    """

    def __init__(self, person: str | None, interrupt_after: int | None) -> None:
        self.person = person
        self.interrupt_after = interrupt_after
        self.relation: Relation = Unprotected()
        self._ids: tuple[str, ...] = ()
        self._place: dict[str, int] = {}
        self._released = 0

    def begin(self, purpose: str, *, ids: NDArray[Any], relation: Relation) -> None:
        """Learn who is who."""
        self.relation = relation
        self._ids = tuple(str(name) for name in ids.tolist())
        self._place = {name: place for place, name in enumerate(self._ids)}

    def _maybe_interrupted(self) -> None:
        """Die once, right after a release was drawn and before anybody kept it."""
        self._released += 1
        if self._released == self.interrupt_after:
            raise Interrupted


class Recording(_Watcher):
    """Writes down a run as it happens: what it released, in order, and who was in its batches."""

    def __init__(self, person: str | None, interrupt_after: int | None) -> None:
        super().__init__(person, interrupt_after)
        self.releases: list[_Seen] = []
        # An interrupted training takes its first steps twice, with other batches.
        self.batches: dict[tuple[str, int], list[list[list[str]]]] = {}

    def release(self, release: Release, output: Any) -> Any:
        """Write a release down."""
        self._maybe_interrupted()
        self.releases.append(_Seen(release, _copied(output), self._ids))
        return output

    def drawn_twice(self) -> list[str]:
        """Return what was drawn again after an interruption, though the first draw was kept.

        The interrupted draw itself was kept by nobody. DP-SGD begins its phase anew.
        """
        names = [one.release.name for one in self.releases if not one.release.counts_records]
        return sorted({name for name in names if names.count(name) > 1})

    def batch(self, phase: str, batch: PoissonBatch, members: list[Tensor]) -> PoissonBatch:
        """Put the record in question into the batch, and write down who is in it."""
        chosen = []
        for positions, valid, mine in zip(batch.positions, batch.valid, members, strict=True):
            drawn = positions[valid]
            place = self._place.get(self.person) if self.person is not None else None
            if place is not None and bool((mine == place).any()):
                drawn = torch.cat([drawn[drawn != place], drawn.new_tensor([place])]).sort().values
            chosen.append(drawn)
        names = [[self._ids[place] for place in drawn.tolist()] for drawn in chosen]
        self.batches.setdefault((phase, batch.step), []).append(names)
        return _padded(batch, chosen, members)


class Replaying(_Watcher):
    """Answers with a recorded run, and notes whatever does not agree with it.

    Args:
        recorded: the other run.
        entities: how many protected entities the two inputs differ in, where one is promised: an
            edge is two arcs.
    """

    def __init__(self, recorded: Recording, entities: int) -> None:
        super().__init__(recorded.person, recorded.interrupt_after)
        self.compared: list[Compared] = []
        self.findings: list[str] = []
        self._recorded, self._entities = recorded, entities
        self._next = 0
        self._taken: Counter[tuple[str, int]] = Counter()

    def release(self, release: Release, output: Any) -> Any:
        """Hold a release to its accounted sensitivity, and answer with the recorded output."""
        self._maybe_interrupted()
        if self._next >= len(self._recorded.releases):
            self.findings.append(f"{release.name}: released on one of the two inputs only")
            return output
        first = self._recorded.releases[self._next]
        self._next += 1
        before = first.release
        for what in ("name", "scale", "sensitivity"):
            was, now = getattr(before, what), getattr(release, what)
            if was != now:
                self.findings.append(f"{release.name}: its {what} is {was} and {now}")
        if before.name != release.name:
            return output
        here: Any = slice(None)
        there: Any = slice(None)
        if release.rows_of_people:
            here, there = self._common(first.ids, own=release.covers_own_row)
        values = before.value[there], release.value[here]
        if release.measure != "bits" and values[0].shape != values[1].shape:
            shapes = f"{before.value.shape} and {release.value.shape}"
            self.findings.append(f"{release.name}: its shape is {shapes}")
            return output
        noise = release.scale / release.sensitivity if release.sensitivity else 0.0
        moved = _distance(release, *values)
        limit = self._limit(release)
        compared = Compared(
            release.name, limit, moved, noise, release.scale, _mechanism_of(release)
        )
        self.compared.append(compared)
        if not compared.holds:
            self.findings.append(
                f"{release.name}: moved by {compared.observed:.6g}, "
                f"accounted {compared.accounted:.6g}"
            )
        return self._answer(release, first, output, here, there)

    def finish(self) -> None:
        """Note what the recorded run released and this one did not."""
        for seen in self._recorded.releases[self._next :]:
            self.findings.append(f"{seen.release.name}: released on one of the two inputs only")

    def batch(self, phase: str, batch: PoissonBatch, members: list[Tensor]) -> PoissonBatch:
        """Return the recorded batch as far as its people are here."""
        step = phase, batch.step
        kept = self._recorded.batches.get(step, [])[self._taken[step] :][:1]
        self._taken[step] += 1
        recorded = kept[0] if kept else None
        if recorded is None or len(recorded) != len(members):
            self.findings.append(f"{phase} step {batch.step + 1}: no such batch in the other run")
            return batch
        chosen = []
        for names, mine in zip(recorded, members, strict=True):
            trained = set(mine.tolist())
            places = [self._place[name] for name in names if name in self._place]
            moved = [
                self._ids[place]
                for place in places
                if place not in trained and self._ids[place] != self.person
            ]
            if moved and len(self.findings) < _MOST_FINDINGS:
                self.findings.append(
                    f"{phase} step {batch.step + 1}: {len(moved)} other people of the batch train "
                    f"on one of the two inputs only, such as {moved[0]!r}"
                )
            chosen.append(mine.new_tensor([place for place in places if place in trained]))
        return _padded(batch, chosen, members)

    def _common(
        self, ids: Sequence[str], *, own: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where everybody stands, here and in the other run.

        Without the person in question, unless that row is covered too: others read it where they
        list the person.
        """
        pairs = [
            (self._place[name], place)
            for place, name in enumerate(ids)
            if name in self._place and (own or name != self.person)
        ]
        here, there = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return here, there

    def _limit(self, release: Release) -> float:
        limit = release.sensitivity
        if release.counts_records and self.relation == Replace():
            limit *= 2
        return float(limit * (self._entities if release.measure != "l2" else self._entities**0.5))

    def _answer(self, release: Release, first: _Seen, output: Any, here: Any, there: Any) -> Any:
        """Return the recorded output, row by row where rows belong to people."""
        if not release.rows_of_people:
            return _copied(first.output)
        answer = output.clone()
        answer[torch.from_numpy(here)] = first.output[torch.from_numpy(there)].to(output.device)
        return answer


_MOST_FINDINGS = 50


def _mechanism_of(release: Release) -> str:
    """Return which mechanism made a release, by what it says of itself."""
    if release.measure == "bits":
        return "edges"
    if release.measure == "l1":
        return "labels" if release.rows_of_people else "number"
    return "hop" if release.rows_of_people else "step" if release.counts_records else "other"


def _copied(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.detach().clone()
    return output


def _distance(release: Release, first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return how far apart two values are, in the worst repeat where there are several."""
    if release.measure == "bits":
        return float(len(np.setxor1d(first, second)))
    difference = np.abs(first - second)
    if release.measure == "l1":
        return float(difference.sum())
    if release.rows_of_people:
        return float(np.sqrt((difference**2).sum()))
    return float(np.sqrt((difference**2).reshape(len(difference), -1).sum(axis=1)).max())


def _padded(batch: PoissonBatch, chosen: list[Tensor], members: list[Tensor]) -> PoissonBatch:
    """Return a batch of these positions, filled up as the sampler does."""
    width = max(1, *(len(places) for places in chosen))
    positions = torch.stack([mine[:1].expand(width).clone() for mine in members])
    valid = torch.zeros(len(chosen), width, dtype=torch.bool, device=positions.device)
    for row, places in enumerate(chosen):
        positions[row, : len(places)] = places
        valid[row, : len(places)] = True
    return replace(batch, positions=positions, valid=valid)
