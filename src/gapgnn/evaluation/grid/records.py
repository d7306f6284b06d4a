"""One result of an experiment: what was run, on what, under which guarantee, and what came out.

A record is one JSON line of the results store (``results.jsonl``). It is computed from private data
without noise and carries the data's fingerprint, so a store belongs to the curator of the data; for
the public data sets of the registry neither says anything that is not known (privacy page,
section 6).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gapgnn.errors import DataError, UnavailableError, check_choice
from gapgnn.evaluation.grid.plans import EXPERIMENTS

FORMAT = 1
FILE = "results.jsonl"
# What was tried to choose a row's parameters; such records are only read to resume.
CANDIDATE = "candidate"
METRICS = ("test_accuracy", "auc")


@dataclass(frozen=True, kw_only=True)
class Record:
    """The repeats of one configuration on one data set.

    Attributes:
        key: SHA-256 of everything that decides the figures (method, all parameters, data
            fingerprint, code version, metric, seed). The same configuration has the same key in
            every experiment.
        experiment: one of ``EXPERIMENTS``, or ``CANDIDATE``.
        dataset: its name.
        fingerprint: of the data; never hand it out for a private data set.
        method: the row's label, one of ``METHODS``; ``labels`` is the package's own default.
        level: ``none``, ``edge`` or ``node``.
        relation: the neighbouring relation of the guarantee; ``none`` at level none.
        epsilon: as asked; None is infinity (no privacy), 0.0 is a model that reads no edge.
            ``extra["accounted_epsilon"]`` is the accounted one, at most as large.
        delta: None where epsilon is infinite.
        parameters: what was given to the constructor beside level, relation, epsilon and delta; an
            ablation's own parameter is always among them.
        metric: ``test_accuracy`` or ``auc``.
        runs: one figure per repeat, as a fraction between 0 and 1. Repeats with the same seed
            share their splits across methods, so they can be compared in pairs.
        seconds: wall time of the whole configuration.
        noise_multiplier: the calibrated one, where there is a single one.
        events: what was released on private data, in the words of the privacy card.
        guarantee: the privacy card's promise as one sentence.
        command: makes this record's figures alone.
        version: package version and a digest of its source files.
        created: UTC, ISO 8601.
        machine: device and machine in words.
        seed: of splits and initialisation; never of noise.
        select: ``fixed`` (defaults) or ``validation``; with the latter ``parameters`` holds what
            was chosen and ``extra["candidates"]`` every candidate with its validation accuracy.
            The choice is not covered by epsilon.
        extra: anything else worth keeping: ``validation_runs``, ``noise`` (safe or fast), and for
            an attack its setting in ``attack`` and all its figures in ``attack_runs``.
    """

    key: str
    experiment: str
    dataset: str
    fingerprint: str
    method: str
    level: str
    relation: str
    epsilon: float | None
    delta: float | None
    parameters: Mapping[str, Any]
    metric: str
    runs: tuple[float, ...]
    seconds: float
    noise_multiplier: float | None
    events: tuple[Mapping[str, Any] | str, ...]
    guarantee: str
    command: str
    version: str
    created: str
    machine: str
    seed: int = 0
    select: str = "fixed"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("experiment", self.experiment, (*EXPERIMENTS, CANDIDATE))
        check_choice("metric", self.metric, METRICS)
        if not self.runs or not all(
            isinstance(run, int | float) and math.isfinite(run) for run in self.runs
        ):
            raise DataError(
                f"`runs` must be at least one finite number. Got {list(self.runs)!r:.60}."
            )

    @property
    def mean(self) -> float:
        """Mean over the repeats."""
        return sum(self.runs) / len(self.runs)

    @property
    def row(self) -> tuple[Any, ...]:
        """What the record is about, whatever the code version and the number of repeats."""
        parameters = json.dumps(dict(self.parameters), sort_keys=True)
        if self.select == "validation":
            parameters = "chosen by validation accuracy"
        where = (self.experiment, self.dataset, self.fingerprint, self.method)
        price = (self.level, self.relation, self.epsilon, self.delta)
        setting = json.dumps(self.extra.get("attack"), sort_keys=True)
        return (*where, *price, parameters, self.metric, setting, self.seed, self.select)

    def to_json(self) -> str:
        """Write the record as one line of JSON, without the line's end."""
        return json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Read a record back; a newer format, unknown or missing keys are an error.

        >>> Record.from_json('{"format": 99}')
        Traceback (most recent call last):
        ...
        gapgnn.errors.DataError: A result must have format 1. Got 99; use a newer gapgnn to read it.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise DataError(f"A result must be one line of JSON. Got {error}.") from None
        if not isinstance(values, dict):
            raise DataError(f"A result must be a JSON object. Got {type(values).__name__}.")
        _check_format(values.pop("format", None))
        known = {item.name for item in fields(cls)}
        wrong = known.symmetric_difference(values)
        if wrong:
            raise DataError(f"A result has missing or unknown keys: {', '.join(sorted(wrong))}.")
        values["runs"] = tuple(values["runs"])
        values["events"] = tuple(values["events"])
        return cls(**values)


def load(folder: str | Path) -> list[Record]:
    """Return the results in a folder, one per row: of the newest code, with the most repeats.

    A half-written last line (a run that was killed while it was being recorded) is passed over, and
    so are the candidates of a selection.

    >>> load("nowhere")
    Traceback (most recent call last):
    ...
    gapgnn.errors.UnavailableError: `nowhere` must hold results.jsonl. Got no such file.
    """
    path = Path(folder) / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UnavailableError(f"`{folder}` must hold {FILE}. Got no such file.") from None
    except OSError as error:
        raise UnavailableError(f"`{path}` must be readable. Got {error.strerror}.") from None
    records = parse(data, name=str(path))
    return newest(record for record in records if record.experiment != CANDIDATE)


def parse(data: bytes, *, name: str = FILE) -> list[Record]:
    """Return every record of a store's bytes; what follows the last line end is passed over."""
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            records.append(Record.from_json(line))
        except (DataError, TypeError) as error:
            raise DataError(f"`{name}`, line {number}: {error}") from None
    return records


def newest(records: Iterable[Record]) -> list[Record]:
    """Return one record per row, in order of first appearance: newest code, then most repeats."""
    rows: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        rows.setdefault(record.row, []).append(record)
    chosen = []
    for same in rows.values():
        version = max(same, key=lambda record: record.created).version
        chosen.append(
            max(
                (record for record in same if record.version == version),
                key=lambda record: (len(record.runs), record.created),
            )
        )
    return chosen


def _check_format(found: object) -> None:
    if found == FORMAT:
        return
    advice = "; use a newer gapgnn to read it" if isinstance(found, int) and found > FORMAT else ""
    raise DataError(f"A result must have format {FORMAT}. Got {found!r}{advice}.")
