"""How long a grid will take: from records of the same kind, or from a few measured ones."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from gapgnn.evaluation.grid.plans import Configuration
from gapgnn.evaluation.grid.records import Record
from gapgnn.evaluation.grid.tasks import Task

# Seconds per repeat, 10 repeats together on one core, and the graph's arcs
# (`gapgnn experiment accuracy --datasets facebook100/Cornell5`, x86_64, 2026-11-15).
MEASURED_ARCS = 1_303_452
SECONDS = {
    "GAP-inf": 0.8,
    "GAP-inf labels": 7.0,
    "SAGE-inf": 4.3,
    "GAP-EDP": 0.7,
    "GAP-EDP labels": 6.8,
    "SAGE-EDP": 3.4,
    "MLP": 0.3,
    "GAP-NDP": 0.6,
    "GAP-NDP labels": 0.4,
    "SAGE-NDP": 5.4,
    "MLP-DP": 0.1,
}
# An attack trains a shadow and a target model in every run, one after the other.
ATTACK_FACTOR = 4.0


def estimate(task: Task, records: Iterable[Record]) -> float:
    """Return the seconds one task may take; a guess, not a promise.

    Records of the same row on the same data set are best (whatever their epsilon), then of the same
    method and level there; without one, the table of this module is scaled by the number of arcs
    and repeats.
    """
    wanted = task.configuration
    known = [
        record
        for record in records
        if record.metric == wanted.metric
        and (record.fingerprint, record.method, record.level)
        == (task.fingerprint, wanted.method, wanted.level)
    ]
    same = [record for record in known if dict(record.parameters) == dict(wanted.parameters)]
    if same or known:
        return task.repeats * mean(record.seconds / len(record.runs) for record in same or known)
    return _guess(wanted, arcs=task.arcs, repeats=task.repeats)


def _guess(configuration: Configuration, *, arcs: int, repeats: int) -> float:
    seconds = SECONDS[configuration.method]
    if configuration.attack is not None:
        seconds *= ATTACK_FACTOR
    return 1.0 + repeats * seconds * arcs / MEASURED_ARCS
