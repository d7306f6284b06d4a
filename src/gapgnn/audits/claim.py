"""The audit of somebody else's program: it is run on graphs of ours, and its output is attacked.

The program reads a graph folder (:mod:`gapgnn.audits.claim_graphs`) and writes what it releases, as
arrays, and what it claims: epsilon, delta and the relation. Nothing else is known about it. Two
games are played, and each gives a lower bound on epsilon that assumes nothing of the mechanism:

*Canaries.* Some runs on graphs with canaries, each in or out by a fair coin. From half of the runs
two classifiers learn how the released arrays differ where a canary is in; about the other half they
guess. The number of right guesses is priced as in one-run audits (Steinke et al. 2023). Runs are on
disjoint people, so all together are one mechanism with the same epsilon.

*Neighbours.* Many runs on two neighbouring graphs in which one edge or record changes a statistic
of the whole graph at once, such as the largest degree. Each run is scored by a few numbers about
the arrays. A few runs choose one of them and a threshold; where it guesses hardly better than a
coin, the pair is left there, and otherwise further runs judge it (Clopper-Pearson).

No game shows more than about the logarithm of the number of guesses or runs.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from gapgnn.audits.bounds import LEAST_TRIALS, fixed_bound
from gapgnn.audits.claim_graphs import (
    CLASSES,
    SHARED,
    CanaryGraph,
    ClaimGraph,
    canary_graph,
    neighbours,
)
from gapgnn.audits.claim_graphs import small_graph as small_graph
from gapgnn.audits.report import AuditReport, Check
from gapgnn.audits.scores import Matrix, guess_bound
from gapgnn.errors import DataError, InputError, check_integer, check_number
from gapgnn.rng import experiment_rng

RELATIONS = {
    "undirected": "edge",
    "directed": "edge",
    "add-remove": "node",
}
# Columns of an array that are read one by one; of wider rows only some numbers are.
_NARROW = 32
# Runs that choose a number and a threshold, and the share of right guesses from which on others
# judge them.
_LEARNING, _PROMISING = 24, 0.8
# Numbers that a program states beside its claim are part of what it hands out.
_STATED = ("epsilon", "delta")


@dataclass(frozen=True)
class Claim:
    """What a program says of itself.

    Attributes:
        epsilon: claimed.
        delta: claimed.
        relation: ``undirected``, ``directed`` or ``add-remove``.

    >>> Claim.read({"epsilon": 1, "delta": 1e-6, "relation": "undirected"}).level
    'edge'
    """

    epsilon: float
    delta: float
    relation: str

    @property
    def level(self) -> str:
        """What is protected."""
        return RELATIONS[self.relation]

    @property
    def directed(self) -> bool:
        """Whether edges of the graphs have a direction."""
        return self.relation != "undirected"

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Claim:
        """Read what ``claim.json`` says."""
        missing = [name for name in (*_STATED, "relation") if name not in values]
        if missing:
            raise DataError(f"claim.json must state {', '.join(missing)}. Got none.")
        relation = values["relation"]
        if relation not in RELATIONS:
            raise DataError(
                f"claim.json must state a relation of {', '.join(RELATIONS)}. Got {relation!r}."
            )
        for name in _STATED:
            if isinstance(values[name], bool) or not isinstance(values[name], int | float):
                raise DataError(f"claim.json must state a number of {name}. Got {values[name]!r}.")
        epsilon = check_number("epsilon", float(values["epsilon"]), above=0)
        delta = check_number("delta", float(values["delta"]), at_least=0, below=1)
        return cls(epsilon, delta, relation)


@dataclass(frozen=True)
class Output:
    """What one run handed out.

    Attributes:
        arrays: by name; a stack of hops is taken apart.
        stated: what ``claim.json`` says.
    """

    arrays: dict[str, Matrix]
    stated: dict[str, Any]


@dataclass
class Program:
    """Runs a program on graphs, each time in folders of its own.

    Attributes:
        command: the words; the graph folder and the output folder are appended.
        timeout: seconds for one run.
        jobs: runs at once.
        progress: called with finished and all runs.
    """

    command: Sequence[str]
    timeout: float = 60.0
    jobs: int = 2
    progress: Callable[[int, int], None] | None = None
    total: int = 0
    done: int = field(default=0)

    def run(self, graph: ClaimGraph, seed: int) -> Output:
        """Run the program once and read what it wrote."""
        with tempfile.TemporaryDirectory(prefix="gapgnn-claim-") as scratch:
            given, made = Path(scratch) / "graph", Path(scratch) / "out"
            graph.write(given, seed=seed)
            made.mkdir()
            try:
                ran = subprocess.run(
                    [*self.command, str(given), str(made)],
                    capture_output=True,
                    text=True,
                    timeout=self.timeout,
                    check=False,
                )
            except FileNotFoundError:
                raise InputError(
                    f"`command` must be a program that can be run. Got {self.command[0]!r}."
                ) from None
            except PermissionError:
                raise InputError(
                    f"`command` must be executable. Got {self.command[0]!r}."
                ) from None
            except subprocess.TimeoutExpired:
                raise InputError(
                    f"`command` must end within {self.timeout:g} s (`timeout`). It did not."
                ) from None
            if ran.returncode:
                said = ran.stderr.strip().rpartition("\n")[2] or "no message"
                raise InputError(
                    f"`command` must end with exit code 0. Got {ran.returncode}: {said}"
                )
            return read_output(made)

    def runs(self, graphs: Sequence[ClaimGraph], seed: int) -> list[Output]:
        """Run the program on each graph."""

        def one(place: int) -> Output:
            found = self.run(graphs[place], seed + place)
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, max(self.total, self.done))
            return found

        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            return list(pool.map(one, range(len(graphs))))


def read_output(folder: Path) -> Output:
    """Read ``claim.json`` and all arrays of a folder."""
    try:
        stated = json.loads((folder / "claim.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("the program must write claim.json. It wrote none.") from None
    except ValueError as error:
        raise DataError(f"claim.json must be JSON. Got {error}.") from None
    if not isinstance(stated, dict):
        raise DataError(f"claim.json must be an object. Got {stated!r}.")
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix == ".npy":
                found[path.stem] = np.load(path, allow_pickle=False)
            elif path.suffix == ".safetensors":
                from safetensors.numpy import load_file

                found |= {f"{path.stem} {name}": one for name, one in load_file(path).items()}
        except (ValueError, OSError, SafetensorError) as error:
            raise DataError(f"{path.name} must hold arrays of numbers. Got {error}.") from None
    if not found:
        raise DataError("the program must write .npy or .safetensors files. It wrote none.")
    arrays: dict[str, Matrix] = {}
    for name, values in sorted(found.items()):
        if values.dtype.kind not in "fiub" or values.ndim > 3:
            raise DataError(
                f"{name} must hold numbers in at most 3 dimensions. Got {values.dtype} of shape "
                f"{values.shape}."
            )
        numbers = np.nan_to_num(values.astype(np.float64), posinf=1e300, neginf=-1e300)
        if numbers.ndim == 3:
            arrays |= {f"{name} {place}": one for place, one in enumerate(numbers)}
        else:
            arrays[name] = (
                numbers.reshape(len(numbers), -1) if numbers.ndim else numbers[None, None]
            )
    return Output(arrays, stated)


def audit_claim(
    command: Sequence[str],
    *,
    canaries: int = 300,
    canary_runs: int = 4,
    runs: int = 100,
    confidence: float = 0.95,
    timeout: float = 60.0,
    jobs: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> AuditReport:
    """Run a program on graphs with canaries and on neighbours, and bound its epsilon from below.

    Relation: what the program states. The bound is the largest of all games, which share the
    allowed error.

    Args:
        command: the program and its words; graph folder and output folder are appended.
        canaries: in each run with canaries.
        canary_runs: runs with canaries; half of them teach the attacker.
        runs: that judge a pair of neighbours, where a few runs distinguished them.
        confidence: of the lower bound.
        timeout: seconds for one run.
        jobs: runs at once.
        seed: of graphs, coins and the public seed that the program is given; never of noise.
        progress: called with finished and all runs.
    """
    check_integer("canaries", canaries, at_least=LEAST_TRIALS)
    check_integer("canary_runs", canary_runs, at_least=2)
    check_integer("runs", runs, at_least=LEAST_TRIALS)
    check_number("confidence", confidence, above=0, below=1)
    check_number("timeout", timeout, above=0)
    check_integer("jobs", jobs, at_least=1)
    if not command:
        raise InputError("`command` must name a program. Got none.")
    program = Program(command, timeout, jobs, progress)
    claim = Claim.read(program.run(small_graph(directed=False), seed).stated)
    pairs = list(neighbours(claim.level, directed=claim.directed))
    program.total = canary_runs + _LEARNING * len(pairs)
    rng = experiment_rng(seed, "audit claim")
    alpha = (1 - confidence) / (1 + len(pairs))
    bounds = {"canaries": _from_canaries(program, claim, canaries, canary_runs, rng, alpha, seed)}
    stated, trials = set[str](), canaries * canary_runs
    for name, *pair in pairs:
        if max(bounds.values()) > claim.epsilon:
            # The claim is broken, and nothing that follows would mend it.
            break
        first, second = pair
        seen = _from_neighbours(program, claim, (first, second), runs, rng, alpha=alpha, seed=seed)
        bounds[f"neighbours: {name}"] = seen.bound
        stated |= seen.stated
        trials += seen.runs
    return AuditReport(
        "claim",
        claim.epsilon,
        max(bounds.values()),
        claim.delta,
        confidence,
        trials,
        {"command": list(command), "relation": claim.relation, "level": claim.level}
        | {"bounds": bounds},
        (Check("different claims on graphs of one size", float(max(len(stated), 1)), 1.0),),
    )


def _said(output: Output) -> str:
    return json.dumps({name: output.stated.get(name) for name in (*_STATED, "relation")})


# Canaries -----------------------------------------------------------------------------------------


def _from_canaries(
    program: Program,
    claim: Claim,
    canaries: int,
    runs: int,
    rng: np.random.Generator,
    alpha: float,
    seed: int,
) -> float:
    """Learn on half of the runs what a canary looks like, and guess about the others."""
    coins = [rng.random(canaries) < 0.5 for _ in range(runs)]
    drawn = [
        canary_graph(inside, rng, level=claim.level, directed=claim.directed) for inside in coins
    ]
    outputs = program.runs([one.graph for one in drawn], seed)
    seen = [canary_numbers(one, output) for one, output in zip(drawn, outputs, strict=True)]
    if len({one.shape[1] for one in seen}) > 1:
        raise DataError("the program must write arrays of the same shapes for graphs of one size.")
    half = runs // 2
    known, judged = np.concatenate(seen[:half]), np.concatenate(seen[half:])
    truth, asked = np.concatenate(coins[:half]), np.concatenate(coins[half:])
    scores = _learned(known, truth, judged, seed)
    # The guess about people of several runs is as one about people of one.
    return max(
        guess_bound(one, asked, delta=claim.delta, alpha=alpha / len(scores)) for one in scores
    )


def canary_numbers(drawn: CanaryGraph, output: Output) -> Matrix:
    """Return numbers about each canary in the released arrays, one row for each.

    Of arrays with a row for each node those of sender and receiver, how long they are, and how they
    differ from those of other arrays; of arrays with a row for each feature that of its own.
    """
    nodes, columns = drawn.nodes, drawn.columns
    people, width = drawn.graph.features.shape
    found: list[Matrix] = []
    of_nodes = [one for one in output.arrays.values() if len(one) == people]
    for array in output.arrays.values():
        if len(array) == people:
            for place in (0, 1):
                found.append(_row_numbers(array[nodes[:, place]], drawn))
        elif len(array) == width:
            found.append(_row_numbers(array[columns], drawn))
        elif array.shape[1] == width:
            found.append(_row_numbers(array.T[columns], drawn))
    for first in range(len(of_nodes)):
        for second in range(first, len(of_nodes)):
            one, other = of_nodes[first], of_nodes[second]
            if one.shape != other.shape:
                continue
            for ends in ((0, 1), (1, 0), (1, 1))[: 3 if first != second else 1]:
                left, right = one[nodes[:, ends[0]]], other[nodes[:, ends[1]]]
                found += [_logs(_sizes(left - right)), (left * right).sum(axis=1)[:, None]]
    if not found:
        raise DataError(
            f"the program must release an array with a row for each node ({people}) or for each "
            f"feature ({width}). Got shapes {[one.shape for one in output.arrays.values()]}."
        )
    return np.concatenate(found, axis=1)


def _row_numbers(rows: Matrix, drawn: CanaryGraph) -> Matrix:
    """Return what is read of one row of each canary."""
    number, width = np.arange(len(rows)), drawn.graph.features.shape[1]
    found = [_logs(_sizes(rows))]
    if rows.shape[1] == width:
        found += [rows[number, drawn.columns][:, None], rows[:, : SHARED + 1]]
    elif rows.shape[1] <= _NARROW:
        found.append(rows)
    else:
        found.append(rows.mean(axis=1)[:, None])
    if rows.shape[1] == CLASSES:
        found.append(rows[number, drawn.labels][:, None])
    return np.concatenate(found, axis=1)


def _sizes(rows: Matrix) -> Matrix:
    sizes: Matrix = np.linalg.norm(rows, axis=1, keepdims=True)
    return sizes


def _logs(sizes: Matrix) -> Matrix:
    logs: Matrix = np.log(sizes + 1e-12)
    return logs


def _learned(
    known: Matrix, truth: NDArray[np.bool_], judged: Matrix, seed: int
) -> list[NDArray[np.float64]]:
    """Return the scores of two classifiers: along one direction, and by thresholds."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import RandomForestClassifier

    spread = known.std(axis=0)
    varies = spread > 1e-9
    if not varies.any():
        return [np.zeros(len(judged))]
    middle = known.mean(axis=0)
    scaled = [(rows[:, varies] - middle[varies]) / spread[varies] for rows in (known, judged)]
    straight = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3).fit(scaled[0], truth)
    forest = RandomForestClassifier(100, min_samples_leaf=5, random_state=seed).fit(
        scaled[0], truth
    )
    return [
        np.asarray(straight.decision_function(scaled[1]), dtype=np.float64),
        np.asarray(forest.predict_proba(scaled[1])[:, 1], dtype=np.float64),
    ]


# Neighbours ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """What was seen of two neighbouring graphs."""

    bound: float
    stated: set[str]
    runs: int


def _from_neighbours(
    program: Program,
    claim: Claim,
    pair: tuple[ClaimGraph, ClaimGraph],
    runs: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    seed: int,
) -> _Seen:
    """Distinguish two neighbouring graphs by numbers about what is released."""

    def play(count: int, start: int) -> tuple[list[dict[str, float]], NDArray[np.bool_], set[str]]:
        worlds = rng.permutation(count) < count // 2
        outputs = program.runs([pair[0] if world else pair[1] for world in worlds], start)
        return [output_numbers(one) for one in outputs], worlds, {_said(one) for one in outputs}

    numbers, worlds, stated = play(_LEARNING, seed)
    # A number that is missing in some runs is itself a difference.
    names = sorted(set().union(*numbers))
    best = max((_best_threshold(_column(numbers, name), worlds), name) for name in names)
    (share, threshold, sign), name = best
    if share < _PROMISING:
        return _Seen(0.0, stated, _LEARNING)
    numbers, worlds, more = play(runs, seed + _LEARNING)
    scores = sign * _column(numbers, name)
    bound = fixed_bound(scores, worlds, threshold=threshold, delta=claim.delta, alpha=alpha)
    return _Seen(bound, stated | more, _LEARNING + runs)


def _column(numbers: Sequence[Mapping[str, float]], name: str) -> NDArray[np.float64]:
    return np.array([one.get(name, -1e300) for one in numbers])


def _best_threshold(
    scores: NDArray[np.float64], worlds: NDArray[np.bool_]
) -> tuple[float, float, float]:
    """Return the share of right guesses of the best threshold, the threshold and a sign.

    >>> _best_threshold(np.array([4.0, 3.0, 1.0, 2.0]), np.array([False, False, True, True]))
    (1.0, -2.5, -1.0)
    """
    found = (0.0, 0.0, 1.0)
    for sign in (1.0, -1.0):
        values = np.unique(sign * scores)
        for threshold in ((values[1:] + values[:-1]) / 2).tolist():
            right = float(((sign * scores >= threshold) == worlds).mean())
            found = max(found, (right, threshold, sign))
    return found


def output_numbers(output: Output) -> dict[str, float]:
    """Return numbers about all that one run handed out.

    >>> found = output_numbers(Output({"a": np.array([[3.0, 4.0]])}, {"noise": 2.0}))
    >>> round(found["a: size"], 3), found["claim: noise"]
    (1.263, 2.0)
    """
    found: dict[str, float] = {"arrays": float(len(output.arrays))}
    for name, array in output.arrays.items():
        sizes = np.linalg.norm(array, axis=1)
        found |= {
            f"{name}: rows": float(array.shape[0]),
            f"{name}: columns": float(array.shape[1]),
            f"{name}: size": _log(float(np.sqrt((array**2).mean()))),
            f"{name}: middle of rows": _log(float(np.median(sizes))),
            f"{name}: longest row": _log(float(sizes.max(initial=0.0))),
            f"{name}: first row": _log(float(sizes[0]) if len(sizes) else 0.0),
            f"{name}: zeros": float((array == 0).mean()) if array.size else 0.0,
            f"{name}: mean": float(array.mean()) if array.size else 0.0,
        }
    for name, value in output.stated.items():
        if isinstance(value, int | float) and math.isfinite(value):
            found[f"claim: {name}"] = float(value)
    return found


def _log(value: float) -> float:
    return math.log(value + 1e-12)
