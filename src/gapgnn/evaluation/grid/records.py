"""One result of an experiment: what was run, on what, under which guarantee, and what came out.

A record is one JSON line of the results store (``results.jsonl``). It is computed from private data
without noise and carries the data's fingerprint, so a store belongs to the curator of the data; for
the public data sets of the registry neither says anything that is not known (privacy page,
section 6).

Why the store never loses what is finished:

- *One write.* A record is one line and one ``write`` to a file opened for appending, followed by
  ``fsync`` before the record counts as done. A kill leaves all of a line, none of it, or its
  beginning at the very end of the file; earlier lines are never touched.
- *One writer at a time.* Appending takes an exclusive lock on the file, so two processes can share
  a folder. What is already there is not written again.
- *Repair under the lock.* A beginning without its line end is cut off by the next append, which
  holds the lock and so knows that nobody is still writing it. If only the line end is missing, the
  record is whole and is kept.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gapgnn.errors import DataError, UnavailableError, check_choice
from gapgnn.evaluation.grid.plans import EXPERIMENTS
from gapgnn.training import Metrics, Ranking

# Format 1 named methods that are others now.
FORMAT = 2
FILE = "results.jsonl"
# What was tried to choose a row's parameters; such records are only read to resume.
CANDIDATE = "candidate"
METRICS = ("test_accuracy", "auc")
# Accuracy and what stands beside it, by its name in :class:`gapgnn.training.Metrics`, in words.
FIGURES = {
    "accuracy": "accuracy",
    "majority": "largest class",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auc": "AUC",
    "average_precision": "average precision",
}
# What is recorded of every repeat, None where it does not exist.
_MEASURED = {
    "accuracy",
    "majority",
    "balanced_accuracy",
    "macro_f1",
    "auc",
    "calibration_error",
    "per_class",
    "ranking",
}


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
        method: the row's name, one of ``METHODS``: of its method, and what it sets besides.
        level: ``none``, ``edge`` or ``node``.
        relation: the neighbouring relation of the guarantee; ``none`` at level none.
        epsilon: as asked; None is infinity (no privacy), 0.0 is a model that releases nothing of
            edges. ``extra["accounted_epsilon"]`` is the accounted one, at most as large.
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
        extra: anything else worth keeping: what a prediction reads of its own person (``own``) and
            the node-level ``notion``, as the card has them, ``validation_runs``, ``noise`` (safe or
            fast), and for an attack its setting in ``attack`` and all its figures in
            ``attack_runs``. Beside accuracies ``metrics`` has every figure of every repeat and
            ``headline`` the one that the data set is judged by; ``curator_only`` names what is
            computed from private labels without noise (node level).
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
        metrics = self.extra.get("metrics")
        if metrics is not None and not (
            isinstance(metrics, list | tuple)
            and len(metrics) == len(self.runs)
            and all(isinstance(one, Mapping) and one.keys() >= _MEASURED for one in metrics)
        ):
            raise DataError(
                f"`metrics` must hold {', '.join(sorted(_MEASURED))} for each repeat. "
                f"Got {metrics!r:.60}."
            )

    @property
    def estimator(self) -> str:
        """The name of the method, without what the row sets besides."""
        return self.method.split(" ", 1)[0]

    @property
    def mean(self) -> float:
        """Mean over the repeats."""
        return sum(self.runs) / len(self.runs)

    @property
    def own(self) -> str:
        """What a prediction reads of the node's own record without noise, where that differs.

        At edge level features are public, so only the node's own neighbours are named.
        """
        found = self.extra.get("own") or self.parameters.get("own")
        return str(found or ("features" if self.level == "node" else ""))

    @property
    def is_joint(self) -> bool:
        """Whether predictions read the node's own neighbours (joint differential privacy)."""
        return self.own == "record"

    @property
    def notion(self) -> str:
        """What is removed with a person at node level: the own record, or also links to them.

        A method that reads no adjacency list has no notion.
        """
        if self.level != "node":
            return ""
        return str(self.extra.get("notion") or ("strict" if self.method == "mlp" else "own record"))

    @property
    def headline(self) -> str:
        """The figure that the data set is judged by, where the record has it; else accuracy."""
        name = self.extra.get("headline", "accuracy")
        return name if name in FIGURES and self.figures(name) else "accuracy"

    def figures(self, name: str) -> tuple[float, ...]:
        """Return a figure for every repeat; empty where a repeat does not have it."""
        if self.metric != "test_accuracy":
            return ()
        found = [_figure(run, name) for run in self.extra.get("metrics", ())]
        values = [x for x in found if isinstance(x, int | float) and math.isfinite(x)]
        return tuple(values) if len(values) == len(found) else ()

    @property
    def rankings(self) -> tuple[Ranking, ...]:
        """How well every repeat puts one class first; empty unless all of them have it."""
        found = [run["ranking"] for run in self.extra.get("metrics", ())]
        return tuple(map(Ranking.from_dict, found)) if all(found) else ()

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
        """Read a record back; another format, unknown or missing keys are an error.

        >>> Record.from_json('{"format": 99}')
        Traceback (most recent call last):
        ...
        gapgnn.errors.DataError: A result must have format 2. Got 99; use a newer gapgnn to read it.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
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
    advice = ""
    if isinstance(found, int):
        is_newer = found > FORMAT
        advice = (
            "; use a newer gapgnn to read it"
            if is_newer
            else ", whose methods had other names; measure again into another folder"
        )
    raise DataError(f"A result must have format {FORMAT}. Got {found!r}{advice}.")


class Store:
    """The records of one folder, read as they are now and appended durably.

    Nothing is created before the first append or :meth:`prepare`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(folder).records()
    []
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE

    def records(self) -> list[Record]:
        """Return every finished record, oldest first; other code versions included.

        A record of a newer format, or a damaged line before the last, is refused: appending to a
        file that is only half understood could lose what somebody else wrote.
        """
        finished, rest = _split(self._read())
        records = parse(finished, name=str(self.path))
        whole = _whole(rest)
        return records if whole is None else [*records, whole]

    def half_written(self) -> int:
        """Return the bytes of a half-written last line, which the next append removes."""
        rest = _split(self._read())[1]
        return 0 if _whole(rest) is not None else len(rest)

    def prepare(self) -> None:
        """Create folder and file where they are missing, or say why they cannot be written."""
        with self._locked():
            pass

    def append(self, record: Record) -> bool:
        """Add a record durably; return False if the same one is there already."""
        with self._locked() as descriptor:
            finished, rest = _split(self._read())
            records = parse(finished, name=str(self.path))
            start = b""
            whole = _whole(rest)
            if whole is not None:
                records.append(whole)
                start = b"\n"
            elif rest:
                os.ftruncate(descriptor, len(finished))
            identity = (record.key, record.experiment)
            is_new = all(identity != (other.key, other.experiment) for other in records)
            line = start + (record.to_json().encode() + b"\n" if is_new else b"")
            if line:
                self._write(descriptor, line)
            return is_new

    def _write(self, descriptor: int, line: bytes) -> None:
        before = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, line)
            if written != len(line):
                raise OSError(0, "the disk is full")
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, before)
            raise UnavailableError(
                f"`{self.path}` must be writable. Got {error.strerror}; earlier results are safe."
            ) from None

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except NotADirectoryError as error:
            raise self._unwritable(error) from None
        except OSError as error:
            raise UnavailableError(
                f"`{self.path}` must be readable. Got {error.strerror}."
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending, creating it durably, and hold its lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if is_new:
                _sync_folder(self.folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _unwritable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"`{self.folder}` must be a folder that can be written. Got {error.strerror}."
        )


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return the finished lines and what follows the last line end."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _whole(rest: bytes) -> Record | None:
    """Return the record whose line end alone is missing, if that is what the rest is.

    A whole line that cannot be understood, such as one of a newer format, is refused like any
    other.
    """
    try:
        json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return parse(rest + b"\n", name="the last line of the results")[0]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _figure(run: Mapping[str, Any], name: str) -> Any:
    """Return one figure of one repeat; None where it does not exist."""
    return run[name] if name in run else Metrics.from_dict(run).find(name)
