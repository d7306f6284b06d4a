"""The audit from table to folder: the real command on neighbouring files, compared byte for byte.

Privacy page, section 9. For each pair of neighbours the command runs twice, once recorded and once
replayed (:mod:`gapgnn.audits.replay`), in folders of their own, with a throw-away ledger
and the same bytes in place of the operating system's entropy. Then every release moved by at most
what is accounted, all hops together by no more than what was charged for them, and everything that
leaves is the same: exit status, messages, names and contents of files. Excepted are, at node level,
the rows of the person in question and what is marked as the curator's, and what the card lists as
public.

What is not compared: how long a run takes and how much memory it needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load as tensors_from_bytes

from gapgnn import rng
from gapgnn.audits.neighbours import (
    AMOUNTS,
    EACH_TYPE,
    EDGE_PAIRS,
    NODE_PAIRS,
    OTHER_TYPE,
    SHARED_ENDS,
    VANISHED,
    Neighbours,
    Tables,
    edge_neighbours,
    node_neighbours,
)
from gapgnn.audits.replay import (
    ROUNDING,
    Compared,
    Interrupted,
    Recording,
    Replaying,
)
from gapgnn.errors import GapgnnError, InputError, check_choice
from gapgnn.graph import CURATOR_ONLY, roles
from gapgnn.privacy import (
    Relation,
    auto_delta,
    links_of,
    observed_by,
    public_count,
    resolve_edge_types,
)
from gapgnn.privacy.accounting import (
    Composition,
    Event,
    Gaussian,
    LabelResponse,
    Laplace,
    MixtureOfGaussians,
    PoissonGaussian,
    RandomisedResponse,
    account,
    gaussian_epsilon,
    parallel_compositions,
)
from gapgnn.privacy.card import PrivacyCard
from gapgnn.privacy.card import texts as texts
from gapgnn.privacy.ledger import Charge, Ledger, copy_ledger

Run = Callable[[Sequence[str]], int]
OUT, STORE, MODEL, PREDICTIONS = "model", "store", "saved", "predictions.csv"
# Facts of the card that follow from whether any list is longer than D, which it lists as public.
_FROM_NOTION = ("node_notion", "covered", "not_covered", "templates")
# Between two ways to compute the price of the same releases.
ROUNDING_OF_PRICES = 1e-3
_UNCOMPARED = ("seconds", "peak_memory_mb")
# Variables by which what is no terminal is taken for one.
_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclass(frozen=True)
class Case:
    """A command whose promise is to be audited.

    Attributes:
        words: the command without the options that choose data and output.
        tables: its input.
        relation: which inputs are neighbours.
        max_degree: D at node level, where the method has one.
        seed: of the command, which decides who trains.
        parts: put the tables into a store of so many parts first.
        interrupt_after: kill the run after so many releases and resume it.
        model: for ``predict``: the saved model.
        ledger: for ``predict``: the ledger of the training, of which a copy is used.
        protects: with several edge types: ``each``, ``any`` or what ``auto`` is at this level.
        keeps_rows: whether the row of a removed record stays, as where the node's own neighbours
            are read at prediction.
    """

    words: tuple[str, ...]
    tables: Tables
    relation: Relation
    max_degree: int | None = None
    seed: int = 0
    parts: int | None = None
    interrupt_after: int | None = None
    model: Path | None = None
    ledger: Path | str | None = None
    protects: str = "auto"
    keeps_rows: bool = False

    @property
    def level(self) -> str:
        """What is protected."""
        return self.relation.level

    @property
    def pair_types(self) -> tuple[str, ...]:
        """Every pair type of this level."""
        if self.level == "node":
            if self.keeps_rows:
                # Links to people without a row are refused there.
                return tuple(pair_type for pair_type in NODE_PAIRS if pair_type != "dangling")
            return (*NODE_PAIRS, VANISHED)
        weighed = tuple(AMOUNTS) if self.tables.weight is not None else ()
        is_each = resolve_edge_types(self.level, self.protects) == "each"
        several = (OTHER_TYPE, *((EACH_TYPE,) if is_each else ()))
        links = links_of(self.relation)
        if links.are_arcs and links.count > 1:
            several = (*several, SHARED_ENDS)
        return (*EDGE_PAIRS, *weighed, *(several if self.tables.more else ()))

    def _training(self, names: Sequence[str]) -> dict[str, bool]:
        """Return for each name whether the command's seed puts it into the training set."""
        drawn = roles(np.array(names), seed=self.seed, train=0.75, val=0.1)
        return dict(zip(names, (drawn == 0).tolist(), strict=True))

    def neighbours(self, pair_type: str, seed: int) -> Neighbours:
        """Return two inputs of one pair type."""
        if self.level == "edge":
            return edge_neighbours(self.tables, pair_type, relation=self.relation, seed=seed)

        # A role is a function of the id, so all roles are computed at once.
        known = self._training(self.tables.ids)

        def trains(name: str) -> bool:
            return known[name] if name in known else self._training([name])[name]

        return node_neighbours(
            self.tables,
            pair_type,
            relation=self.relation,
            max_degree=self.max_degree,
            trains=trains,
            keeps_row=self.keeps_rows,
            seed=seed,
        )


@dataclass(frozen=True)
class Outcome:
    """What the audit of one pair of neighbours found.

    Attributes:
        pair_type: which pair.
        who: what they differ in.
        releases: every release in both runs.
        findings: every difference by which a reader of the output could distinguish the inputs.
        public: facts that differ and that the card lists as public.
        skipped: why the pair does not apply, if so.
    """

    pair_type: str
    who: str
    releases: tuple[Compared, ...] = ()
    findings: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def worst(self) -> Compared | None:
        """The release that came closest to its accounted sensitivity, or exceeded it most."""
        return max(self.releases, key=lambda one: one.observed / one.accounted, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {
            "neighbours": self.pair_type,
            "differ_in": self.who,
            "holds": self.holds,
            "findings": list(self.findings),
            "public_facts_that_differ": list(self.public),
            "skipped": self.skipped,
            "releases": [asdict(one) for one in self.releases],
        }


@dataclass
class _Ran:
    """What one run left behind."""

    folder: Path
    ledger: Path = Path()
    known: frozenset[str] = frozenset()
    exits: list[int] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""

    def files(self) -> dict[str, bytes]:
        """Return everything that leaves the curator, by name."""
        found = {}
        for root in (OUT, f"{OUT}.unfinished", MODEL, PREDICTIONS):
            top = self.folder / root
            paths = [top] if top.is_file() else sorted(top.rglob("*"))
            for path in paths:
                if path.is_file():
                    found[str(path.relative_to(self.folder))] = path.read_bytes()
        return found

    def names_of(self, person: str | None, file: str) -> frozenset[str] | None:
        """Return how a file may name a person: by the id, or by the keyed hash of a release."""
        if person is None:
            return None
        release = Path(file).name.partition(".")[0]
        return frozenset(
            (person, str(Ledger(self.ledger).pseudonyms(release, np.array([person]))[0]))
        )

    @property
    def card(self) -> PrivacyCard | None:
        path = self.folder / OUT / "card.json"
        return PrivacyCard.from_json(path.read_bytes()) if path.is_file() else None


def audit_pipeline(
    case: Case,
    run: Run,
    *,
    pair_types: Sequence[str] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run a command on neighbouring files and report every difference in its output.

    Args:
        case: the command and its input.
        run: runs the words of a command and returns its exit code, as
            :func:`gapgnn.cli.main.main` does.
        pair_types: which pairs of neighbours; all of the level if left out.
        seed: of the choice of neighbours; never of noise.
        progress: called with the number of finished pairs and their total.
    """
    check_choice("level", case.level, ("edge", "node"))
    chosen = list(case.pair_types if pair_types is None else pair_types)
    for pair_type in chosen:
        check_choice("neighbours", pair_type, case.pair_types)
    outcomes = []
    for done, pair_type in enumerate(chosen):
        pair = case.neighbours(pair_type, seed)
        outcomes.append(_audit_pair(case, run, pair))
        if progress is not None:
            progress(done + 1, len(chosen))
    return outcomes


def _audit_pair(case: Case, run: Run, pair: Neighbours) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="gapgnn-audit-") as scratch:
        top = Path(scratch)
        if case.ledger is None:
            # One key in all runs, as keyed hashes of ids are compared.
            case = replace(case, ledger=Path(Ledger.init(top / "ledger.sqlite").path))
        recording = Recording(pair.person, case.interrupt_after)
        first = _execute(case, run, top / "first", pair.first, recording)
        card = first.card
        if pair.pair_type == VANISHED and (card is None or card.node_notion != "strict"):
            why = "promised by the strict notion only, which this card does not claim"
            return Outcome(pair.pair_type, pair.who, skipped=why)

        def replayed(folder: str, *declared: str) -> tuple[Replaying, _Ran]:
            watcher = Replaying(recording, pair.entities)
            ran = _execute(case, run, top / folder, pair.second, watcher, declared)
            watcher.finish()
            return watcher, ran

        watcher, second = replayed("second")
        if first.exits == second.exits and first.exits[-1] not in (0, 1):
            raise InputError(
                f"The audited command must work on its own input. Got exit code {first.exits[-1]}: "
                f"{first.stderr.strip() or 'no message'}"
            )
        public, declared = _differing_counts(card, second.card)
        if declared:
            # The same facts, now declared, so that everything else can be compared.
            watcher, second = replayed("third", *declared)
        also, more = _compare_runs(first, second, pair.person, declared)
        findings = (
            *watcher.findings,
            *(f"{name}: drawn twice under one charge" for name in recording.drawn_twice()),
            *_uncharged(second, watcher.compared),
            *_overspent(second, watcher.compared, case.relation),
            *_underpriced(second, watcher.compared, pair.entities),
            *_untrue(card, watcher.compared),
            *more,
        )
        return Outcome(
            pair.pair_type, pair.who, tuple(watcher.compared), findings, (*public, *also)
        )


def _untrue(card: PrivacyCard | None, compared: Sequence[Compared]) -> list[str]:
    """Compare the card's statement about edges with the hops that were observed."""
    if card is None:
        return []
    was_released = any(one.name.startswith("hop ") for one in compared)
    sent = tuple(card.wording.fill(texts.MESSAGES[one]) for one in texts.IN_HOPS)
    is_said = card.messages.startswith(sent)
    if is_said and not was_released:
        return [
            f"card.json: states messages along the edges, but no hop was released: "
            f"{_short(card.messages)}"
        ]
    if was_released and card.edges_unread == "no hop":
        return ["card.json: says that no hop was released, but one was"]
    return []


def _charges(ran: _Ran) -> list[Charge]:
    """Return what a run was charged; one that several populations share is listed for each."""
    charges = {one.id: one for one in Ledger(ran.ledger).entries() if one.id not in ran.known}
    return list(charges.values())


def _events_of(charge: Charge) -> list[Event]:
    return [Event.from_dict(dict(event)) for event in charge.events]


def _uncharged(ran: _Ran, compared: Sequence[Compared]) -> list[str]:
    """Compare the noise of every release with the events that were charged.

    A release whose noise is that of no event was not charged, or was made with other noise.
    """
    events = [event for charge in _charges(ran) for event in _events_of(charge)]
    known = (Gaussian, Laplace, PoissonGaussian, MixtureOfGaussians, LabelResponse)
    if any(not isinstance(event, (*known, RandomisedResponse)) for event in events):
        # A method of another package has its own mechanisms.
        return []
    findings: dict[str, None] = {}
    for one in compared:
        if one.mechanism == "edges":
            # Randomised response: its coins are not observed.
            continue
        if not any(_has_noise_of(one, event) for event in events):
            what = one.name.split(" step ")[0]
            findings[f"{what}: its noise multiplier {one.noise:.6g} is of no charged event"] = None
    return list(findings)


def _has_noise_of(one: Compared, event: Event) -> bool:
    """Whether a release may be what an event charges for."""
    if isinstance(event, LabelResponse):
        return one.mechanism == "labels" and math.isclose(one.scale, event.other)
    if isinstance(event, MixtureOfGaussians):
        # In units of the clip; the sensitivity is a multiple of it.
        return one.mechanism == "step" and math.isclose(one.scale, event.noise_multiplier)
    made_by = {Gaussian: ("hop", "other"), PoissonGaussian: ("step",), Laplace: ("number",)}
    noise = getattr(event, "noise_multiplier", math.nan)
    return one.mechanism in made_by.get(type(event), ()) and math.isclose(one.noise, noise)


def _underpriced(ran: _Ran, compared: Sequence[Compared], entities: int) -> list[str]:
    """Compose the observed releases, and compare their epsilon with what was charged.

    Each release becomes one event: the distance by which the person or link moved it, under noise
    of its scale. These events have no group and no option, so the result does not depend on
    parallel composition. Steps of DP-SGD are left out, which can only lower the result. If the
    inputs differ in several entities, each is charged for its part, as in the sensitivity of a
    release.
    """
    charges = _charges(ran)
    if not charges or any(charge.delta is None for charge in charges):
        return []
    repeats: dict[str, list[Event]] = {}
    for one in compared:
        if one.observed <= 0 or one.scale <= 0 or one.mechanism not in ("hop", "number", "other"):
            continue
        is_number = one.mechanism == "number"
        moved = one.observed / (entities if is_number else math.sqrt(entities))
        event = Laplace(one.scale / moved) if is_number else Gaussian(one.scale / moved)
        repeats.setdefault(one.name.partition(" of repeat ")[2], []).append(event)
    findings = []
    for name, events in repeats.items():
        charged = sum(charge.epsilon for charge in charges)
        delta = sum(charge.delta for charge in charges)
        if _cheapest_bound(events, delta) <= charged:
            continue
        found = account(events, delta, relation="add-remove").epsilon
        if found > charged * (1 + ROUNDING_OF_PRICES):
            which = f" of repeat {name}" if name else ""
            findings.append(
                f"all releases{which}: cost epsilon {found:.6g} at delta {delta:g} by what they "
                f"moved, charged {charged:.6g}"
            )
    return findings


def _cheapest_bound(events: Sequence[Event], delta: float) -> float:
    """Return a closed-form upper bound of the epsilon of pure events and Gaussian ones."""
    pure = sum(event.times / event.noise_multiplier for event in events if type(event) is Laplace)
    squares = sum(
        event.times / event.noise_multiplier**2 for event in events if type(event) is Gaussian
    )
    if not squares:
        return pure
    return pure + gaussian_epsilon(math.sqrt(squares), delta) if delta > 0 else math.inf


def _overspent(ran: _Ran, compared: Sequence[Compared], relation: Relation) -> list[str]:
    """Compare the distance of all hops together with what was charged for them.

    Squared shifts of Gaussian noise add up (privacy page, section 3). So at most as many hops may
    move by their whole sensitivity as the charge has Gaussian events. Under parallel composition
    over roles, these are the events of one role. A record that is replaced may change its role, and
    then moves the hops of each role by half. Roles are drawn anew for every repeat.
    """
    repeats: dict[str, list[Compared]] = {}
    for one in compared:
        if one.name.startswith("hop "):
            repeats.setdefault(one.name.partition(" of repeat ")[2], []).append(one)
    charged = [
        replace(event, count=charge.count * event.count)
        for charge in _charges(ran)
        for event in _events_of(charge)
        if isinstance(event, Gaussian)
    ]
    cases = parallel_compositions(charged, relation=relation)
    findings = []
    for name, hops in repeats.items():
        # If a record changes its role, events have twice the noise for half the distance.
        if any(
            _explains(case, hops, len(repeats), 1 if other == relation else 2)
            for case, other in cases
        ):
            continue
        moved = sum((one.observed / one.accounted) ** 2 for one in hops)
        paid = max(sum(event.times for event in case) for case, _ in cases) / len(repeats)
        which = f" of repeat {name}" if name else ""
        findings.append(
            f"all hops{which}: moved by {moved:.6g} whole sensitivities, charged for {paid:g}"
        )
    return findings


def _explains(case: Composition, hops: Sequence[Compared], repeats: int, parts: int) -> bool:
    """Whether the hops that moved are at most as many as the events that were charged together.

    Hops and events are matched by their noise multiplier.
    """
    for noise in {one.noise for one in hops}:
        moved = sum((one.observed / one.accounted) ** 2 for one in hops if one.noise == noise)
        paid = sum(
            event.times
            for event in case
            if isinstance(event, Gaussian) and math.isclose(event.noise_multiplier, parts * noise)
        )
        if moved > paid / repeats / parts**2 * (1 + ROUNDING) + 1e-12:
            return False
    return True


def _differing_counts(
    first: PrivacyCard | None, second: PrivacyCard | None
) -> tuple[list[str], list[str]]:
    """Return the counts that two cards took to be public and that differ, and how to declare them.

    A count that is not rounded as the card says is no public fact.
    """
    if first is None or second is None:
        return [], []
    notes, words = [], []
    was, now = _train_size(first), _train_size(second)
    if was != now and public_count(was) == was and public_count(now) == now:
        notes.append(f"number of training people, rounded: {was} and {now}")
        words += ["--train-size", str(was)]
    before, after = first.delta or 0.0, second.delta or 0.0
    if before != after and first.delta_is_auto and _is_auto(before) and _is_auto(after):
        notes.append(f"order of magnitude behind delta: {before:g} and {after:g}")
        words += ["--delta", repr(before)]
    return notes, words


def _train_size(card: PrivacyCard) -> int:
    """Return the number of training people on a card, 0 where it has none."""
    fact = card.wording.fill(texts.NUM_TRAIN)
    return int(dict(card.public).get(fact, "0").split(":")[0])


def _is_auto(delta: float) -> bool:
    """Whether a delta can be what ``auto`` chose."""
    return delta > 0 and delta == auto_delta(round(0.1 / delta))


def _execute(
    case: Case,
    run: Run,
    folder: Path,
    tables: Tables,
    watcher: Recording | Replaying,
    declared: Sequence[str] = (),
) -> _Ran:
    """Run the command in a folder of its own and return what it left behind."""
    folder.mkdir()
    ran = _Ran(folder)
    data = tables.write(folder)
    ledger = folder / "ledger.sqlite"
    if isinstance(case.ledger, Path) and case.ledger.exists():
        shutil.copyfile(case.ledger, ledger)
    copy = Ledger.init(ledger)
    if isinstance(case.ledger, str):
        copy_ledger(Ledger(case.ledger).store, copy.store)
    ran.ledger, ran.known = ledger, frozenset(charge.id for charge in Ledger(ledger).entries())
    words = [*case.words, *declared, "--json"]
    if case.model is not None:
        shutil.copytree(case.model, folder / MODEL)
        # What is charged here is charged to a ledger of the audit's own.
        words += ["--model", MODEL, "--out", PREDICTIONS, "--charge"]
    else:
        words += ["--out", OUT]
    with _as_process(folder, ledger) as (stdout, stderr):
        if case.parts is not None:
            store = ["partition", *data, "--level", case.level, "--parts", str(case.parts)]
            store += ["--out", STORE, "--json"]
            with contextlib.redirect_stdout(io.StringIO()):
                ran.exits.append(_exit_code(run, store, stderr))
            data = ["--store", STORE]
        with observed_by(watcher):
            try:
                ran.exits.append(_exit_code(run, [*words, *data], stderr))
            except Interrupted:
                ran.exits.append(_exit_code(run, [*words, *data, "--resume"], stderr))
    ran.stdout, ran.stderr = stdout.getvalue(), stderr.getvalue()
    return ran


def _exit_code(run: Run, words: Sequence[str], stderr: io.StringIO) -> int:
    try:
        return run(words)
    except GapgnnError as error:
        print(" ".join(str(error).split()), file=stderr)
        return 2


@contextlib.contextmanager
def _as_process(folder: Path, ledger: Path) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Run a block as if it were a process of its own, with the same entropy each time.

    The ledger is named from its folder: messages that name it are then the same in every run.
    """
    stdout, stderr, before = io.StringIO(), io.StringIO(), Path.cwd()
    drawn = 0

    def entropy(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"replay {drawn}".encode()).digest(count)

    os.chdir(folder)
    try:
        with (
            # Of this package alone: a library that is imported in one of the runs draws some, too.
            mock.patch.object(rng, "os", SimpleNamespace(urandom=entropy)),
            mock.patch.dict(os.environ, {"GAPGNN_LEDGER": ledger.name}),
            _without_a_terminal(),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            yield stdout, stderr
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _without_a_terminal() -> Iterator[None]:
    """Draw no progress bars in a block: their timing differs between any two runs."""
    with mock.patch.dict(os.environ):
        for name in _TERMINAL:
            os.environ.pop(name, None)
        yield


def _compare_runs(
    first: _Ran, second: _Ran, person: str | None, declared: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the public facts that differ, and everything else that does."""
    findings: list[str] = []
    if first.exits != second.exits:
        # The reason why a run ended is the last line.
        failed = first if first.exits[-1] else second
        said = failed.stderr.strip().rpartition("\n")[2] or "no message"
        findings.append(f"exit status: {first.exits[-1]} and {second.exits[-1]}; {said}")
    messages = _messages(first), _messages(second)
    if messages[0] != messages[1]:
        findings.append(f"messages: {_first_difference(*messages)}")
    findings += [f"output: {text}" for text in _json_differences(*map(_output, (first, second)))]
    files = first.files(), second.files()
    for name in sorted(files[0].keys() ^ files[1].keys()):
        findings.append(f"{name}: written for one of the two inputs only")
    public: list[str] = []
    for name in sorted(files[0].keys() & files[1].keys()):
        contents = files[0][name], files[1][name]
        if contents[0] == contents[1]:
            continue
        if name.endswith("card.json"):
            also, found = _card_differences(*contents, declared)
            public += also
        elif name.endswith("card.md") and all(_is_rendered(some, name) for some in files):
            continue
        else:
            of_person = first.names_of(person, name)
            found = _file_differences(name, contents, files, of_person, declared)
        findings += [f"{name}: {text}" for text in found]
    return public, findings


def _messages(ran: _Ran) -> str:
    """Return what was written to standard error, without the lines that are the curator's."""
    lines = ran.stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(CURATOR_ONLY))


def _output(ran: _Ran) -> Any:
    """Return the JSON on standard output without what is measured and what is the curator's."""
    try:
        printed = json.loads(ran.stdout)
    except ValueError:
        return ran.stdout
    hidden = {*_UNCOMPARED, *printed.get("curator_only", ())}
    # How many labels were written is how many ids have a row.
    return {key: value for key, value in printed.items() if key not in hidden | {"nodes"}}


def _card_differences(
    first: bytes, second: bytes, declared: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return what two cards differ in: public facts, and anything else."""
    cards = json.loads(first), json.loads(second)
    for card in cards:
        # A hash of the whole ledger under its secret key, which both runs were given.
        if card["ledger"] is not None:
            card["ledger"].pop("head")
    public = []
    if cards[0]["node_notion"] != cards[1]["node_notion"]:
        public.append("whether any list is longer than the bound")
        for card in cards:
            for name in _FROM_NOTION:
                card.pop(name)
    if declared:
        # Declared in one run and counted in the other: the numbers must agree.
        for card in cards:
            card["public"] = [[what, why.split(":")[0]] for what, why in card["public"]]
            card["public"] = [row for row in card["public"] if "order of magnitude" not in row[0]]
            card.pop("delta_is_auto")
    return public, _json_differences(*cards)


def _is_rendered(files: dict[str, bytes], name: str) -> bool:
    """Whether a card for people says what the one for programs says, and nothing else."""
    card = PrivacyCard.from_json(files[name.replace(".md", ".json")])
    return files[name].decode() == card.to_markdown()


def _file_differences(
    name: str,
    contents: tuple[bytes, bytes],
    files: tuple[dict[str, bytes], dict[str, bytes]],
    person: frozenset[str] | None,
    declared: Sequence[str],
) -> list[str]:
    """Say where two files differ, apart from one person's rows."""
    if name.endswith("config.json"):
        configs = json.loads(contents[0]), json.loads(contents[1])
        for config in configs:
            # Checksums of files that are compared themselves.
            config.pop("checksum", None)
            config["files"] = sorted(config.get("files", {}))
            if declared:
                for option in ("train_size", "delta"):
                    config["params"].pop(option, None)
                config.get("plan", {}).get("guarantee", {}).pop("delta_is_auto", None)
        return _json_differences(*configs)
    if person is None:
        return [_first_difference(*contents)]
    if name.endswith(".ids.json"):
        ids = [[one for one in json.loads(raw) if str(one) not in person] for raw in contents]
        return _json_differences(ids[0], ids[1])
    if "/hops/" in name and name.endswith(".safetensors"):
        beside = name.replace(".safetensors", ".ids.json")
        rows = [
            _rows_of_others(raw, json.loads(where[beside]), person)
            for raw, where in zip(contents, files, strict=True)
        ]
        hops = sorted(rows[0].keys() | rows[1].keys())
        differing = [hop for hop in hops if rows[0].get(hop) != rows[1].get(hop)]
        return [f"{hop}: the rows of others differ" for hop in differing]
    if name.endswith(".parquet"):
        tables = [_table_of_others(raw, person) for raw in contents]
        return [] if tables[0] == tables[1] else ["the rows of others differ"]
    if name.endswith(".csv"):
        mine = {name.encode() for name in person}
        lines = [
            [line for line in raw.splitlines() if line.split(b",", 1)[0].strip(b'"') not in mine]
            for raw in contents
        ]
        return [] if lines[0] == lines[1] else ["the rows of others differ"]
    return [_first_difference(*contents)]


def _table_of_others(raw: bytes, person: frozenset[str]) -> list[Any]:
    """Return the names of columns, and the rows of everybody else."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(raw))
    rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    return [table.column_names, *(row for row in rows if str(row[0]) not in person)]


def _rows_of_others(raw: bytes, ids: list[Any], person: frozenset[str]) -> dict[str, bytes]:
    keep = np.array([str(one) not in person for one in ids])
    return {hop: rows[keep].tobytes() for hop, rows in tensors_from_bytes(raw).items()}


def _json_differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Return where two plain values differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        found = []
        for key in sorted(first.keys() | second.keys()):
            if key not in first or key not in second:
                found.append(f"{path}{key} is there on one of the two inputs only")
            else:
                found += _json_differences(first[key], second[key], f"{path}{key}.")
        return found
    if first == second:
        return []
    return [f"{path.rstrip('.') or 'text'} is {_short(first)} and {_short(second)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _first_difference(first: Any, second: Any) -> str:
    """Say where two texts or byte strings first differ."""
    place = next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
    shown = [_short(text[max(0, place - 20) : place + 40]) for text in (first, second)]
    return f"{len(first)} and {len(second)} long, from {place} on {shown[0]} and {shown[1]}"
