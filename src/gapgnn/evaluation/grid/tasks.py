"""One task: a configuration on a data set. What it is called, and doing it.

A task trains the repeats of its configuration together, with a throw-away ledger: the models are
measured for the curator and dropped, nothing is released, so nothing is charged to the data set's
budget. The figures themselves are computed from private data without noise and are not covered by
any epsilon (privacy page, sections 2 and 6).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapgnn import __version__
from gapgnn.errors import DataError
from gapgnn.evaluation.grid.plans import Configuration
from gapgnn.evaluation.grid.records import Record

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.methods import NodeClassifier
    from gapgnn.training import Callback

Attack = Callable[..., Any]
# What an attack reports of how it was made.
_SETTING = (
    *("setting", "epoch", "shadows", "shadow_per_class", "target_per_class"),
    *("targets", "share", "pairs", "nodes", "others", "published"),
)
# Computed from labels without noise: not covered by a promise about whole people.
_FROM_LABELS = ("runs", "metrics", "validation_runs")

# Neither the command line nor tables and figures can change a number that was measured.
_PARTS = ("rng.py", "graph", "privacy", "nn", "training", "methods")
_OF_METRIC = {"test_accuracy": (), "auc": ("attacks",)}


@dataclass(frozen=True)
class Source:
    """Where a graph comes from; it can be sent to another process.

    Attributes:
        name: what people call it.
        words: the command-line words that choose it.
        open: returns the graph, split by a seed.
    """

    name: str
    words: tuple[str, ...]
    open: Callable[[int], Graph]


@dataclass(frozen=True)
class Task:
    """One configuration on one data set; fingerprint and version are those of the planning.

    Attributes:
        arcs: of the data, for estimates of time.
        repeats: trained together.
        insecure_noise_seed: makes the noise predictable, so that a table can be made again exactly.
        log_folder: where the training log goes, if anywhere.
    """

    configuration: Configuration
    source: Source
    fingerprint: str
    arcs: int
    version: str
    repeats: int = 10
    seed: int = 0
    noise: str = "fast"
    insecure_noise_seed: int | None = None
    device: str = "auto"
    log_folder: str | None = None
    tensorboard: bool = False

    @functools.cached_property
    def key(self) -> str:
        """SHA-256 of everything that decides the figures; the device and the experiment do not."""
        parameters = self.estimator().get_params()
        for name in ("device", "ledger"):
            del parameters[name]
        return content_key(
            method=self.configuration.estimator,
            parameters=parameters,
            fingerprint=self.fingerprint,
            version=self.version,
            metric=self.configuration.metric,
            attack=self.configuration.attack,
        )

    @property
    def command(self) -> str:
        """The command that makes these figures alone."""
        configuration = self.configuration
        words = ["gapgnn", "train", configuration.estimator]
        if configuration.attack is not None:
            words[1:] = ["attack", configuration.attack_name, configuration.estimator]
            words += ["--runs", str(self.repeats)]
            words += _option_words(configuration.attack_options)
        options = {**configuration.constructor(), **self._noise_options(), "seed": self.seed}
        if configuration.attack is None:
            options["repeats"] = self.repeats
        return shlex.join([*words, *self.source.words, *_option_words(options), "--json"])

    def estimator(self, **more: Any) -> NodeClassifier:
        """Return the estimator, unfitted."""
        from gapgnn.methods import method_class

        return method_class(self.configuration.estimator)(
            **self.configuration.constructor(),
            **self._noise_options(),
            repeats=self.repeats,
            seed=self.seed,
            device=self.device,
            **more,
        )

    def _noise_options(self) -> dict[str, Any]:
        """Return how noise is drawn, for a row that draws some."""
        if not self.configuration.draws_noise:
            return {}
        if self.insecure_noise_seed is None:
            return {"noise": self.noise}
        return {"noise": self.noise, "insecure_noise_seed": self.insecure_noise_seed}

    def with_configuration(self, configuration: Configuration) -> Task:
        """Return the same task for another configuration."""
        return replace(self, configuration=configuration)


@functools.cache
def code_version(metric: str, method: str = "gap") -> str:
    """Return the version under which results of a metric are kept; changed code is run again.

    Results of a method of another package also depend on the files of that package.

    >>> code_version("auc") == code_version("auc") != code_version("test_accuracy")
    True
    """
    root = Path(__file__).resolve().parent.parent.parent
    digest = hashlib.sha256()
    for part in (*_PARTS, *_OF_METRIC[metric]):
        _update(digest, root, root / part)
    outside = _package_of(method)
    if outside is not None:
        _update(digest, outside.parent, outside)
    return f"{__version__}+{digest.hexdigest()[:12]}"


def _update(digest: hashlib._Hash, root: Path, place: Path) -> None:
    """Add the source files at a place, by their names below the root."""
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)


def _package_of(method: str) -> Path | None:
    """Return where the package of another author's method is; None for a method of this package."""
    from gapgnn.methods import method_class

    top = method_class(method).__module__.partition(".")[0]
    file = getattr(sys.modules[top], "__file__", None)
    if top == "gapgnn" or file is None:
        return None
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


def content_key(**content: Any) -> str:
    """Return the SHA-256 of plain values, whatever the order of their names.

    >>> content_key(a=1, b=2) == content_key(b=2, a=1) != content_key(a=1, b=3)
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def perform(task: Task, *, attack: Attack | None = None) -> Record:
    """Train and measure one configuration, and return its record.

    Args:
        task: what to do.
        attack: in place of the one that the task names.
    """
    graph = _graph(task)
    start = time.perf_counter()
    with _callback(task) as callback:
        if task.configuration.attack is None:
            found = _accuracy(task, graph, callback)
        else:
            found = _attacked(task, graph, attack or _attack_of(task.configuration), callback)
    configuration = task.configuration
    return Record(
        key=task.key,
        experiment=configuration.experiment,
        dataset=task.source.name,
        fingerprint=task.fingerprint,
        method=configuration.method,
        level=configuration.level,
        epsilon=configuration.epsilon,
        parameters=dict(configuration.parameters),
        metric=configuration.metric,
        seconds=round(time.perf_counter() - start, 3),
        command=task.command,
        version=task.version,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=_machine(found.pop("device")),
        seed=task.seed,
        **found,
    )


def _accuracy(task: Task, graph: Graph, callback: Callback) -> dict[str, Any]:
    """Fit all repeats; every figure on test nodes, validation accuracies and the card's facts."""
    from gapgnn.graph.datasets import default_metric
    from gapgnn.privacy.card import guarantee_sentence
    from gapgnn.privacy.ledger import scratch_ledger

    with scratch_ledger() as ledger:
        model = task.estimator(ledger=ledger)
        model._keeps_repeats = True
        model.fit(graph, callback=callback)
    scores, splits = model._repeats
    right = scores.argmax(dim=-1).numpy() == graph.labels
    has_validation = bool(splits.val.any(axis=1).all())
    card = model.card_
    return {
        "relation": card.relation.name,
        "delta": card.delta,
        "runs": tuple(model.repeat_scores_),
        "noise_multiplier": card.noise_multiplier,
        "events": tuple(dict(event) for event in card.events),
        "guarantee": guarantee_sentence(card),
        "device": model.device_,
        "extra": {
            "accounted_epsilon": card.epsilon,
            "own": card.own,
            "notion": card.node_notion,
            "noise": task.noise,
            "metrics": [figures.to_dict() for figures in model.repeat_metrics_],
            "headline": default_metric(graph),
            "curator_only": list(_FROM_LABELS) if card.level == "node" or card.own else [],
            "validation_runs": [
                float(hits[mask].mean()) for hits, mask in zip(right, splits.val, strict=True)
            ]
            if has_validation
            else [],
        },
    }


def _attack_of(configuration: Configuration) -> Attack:
    """Return the function of the attack that a configuration names."""
    from gapgnn.attacks import inductive, label_inference, membership, reconstruction

    attacks: dict[str, Attack] = {
        "membership": membership.membership_attack,
        "label-inference": label_inference.label_inference_attack,
        "inductive-links": inductive.inductive_link_attack,
        "reconstruction": reconstruction.reconstruction_attack,
    }
    return attacks[configuration.attack_name]


def _attacked(task: Task, graph: Graph, attack: Attack, callback: Callback) -> dict[str, Any]:
    """Attack models of this configuration; the promise is the one they are trained under."""
    from gapgnn.graph import Wording
    from gapgnn.methods import choose_device
    from gapgnn.privacy import EntityCounts, auto_delta, resolve_relation
    from gapgnn.privacy.card import promise

    configuration = task.configuration
    setting = configuration.attack_options
    result = attack(
        task.estimator(),
        graph,
        runs=task.repeats,
        seed=task.seed,
        callback=callback,
        **setting,
    ).to_dict()
    level = configuration.level
    relation = resolve_relation(level, configuration.relation, is_directed=graph.is_directed)
    delta = None
    if level != "none":
        delta = configuration.delta or auto_delta(EntityCounts.of(graph).protected(relation))
    return {
        "relation": relation.name,
        "delta": delta,
        "runs": tuple(float(run["auc"]) for run in result["runs"]),
        "noise_multiplier": None,
        "events": (),
        "guarantee": Wording().fill(promise(relation, configuration.epsilon, delta)),
        "device": str(choose_device(task.device)),
        "extra": {
            "noise": task.noise,
            "attack": {
                **{name: result[name] for name in _SETTING if name in result},
                **(configuration.attack or {}),
            },
            "attack_runs": [
                {name: float(value) for name, value in run.items()} for run in result["runs"]
            ],
        },
    }


# The graph of the last task: the tasks of a grid mostly share it, and reading it can take longer
# than training.
_last: dict[tuple[str, int], Graph] = {}


def open_graph(source: Source, seed: int, *, fingerprint: str | None = None) -> Graph:
    """Return a source's graph; in each process the last one is kept open."""
    key = (json.dumps(source.words), seed)
    if key not in _last:
        graph = source.open(seed)
        _last.clear()
        _last[key] = graph
    graph = _last[key]
    if fingerprint is not None and graph.fingerprint != fingerprint:
        raise DataError(
            f"`{source.name}` must not change while experiments run. Got other data than at the "
            "start; start again."
        )
    return graph


def _graph(task: Task) -> Graph:
    return open_graph(task.source, task.seed, fingerprint=task.fingerprint)


@contextmanager
def _callback(task: Task) -> Iterator[Callback]:
    from gapgnn.training import JsonlLogger, Several, Silent, TensorBoardLogger

    if task.log_folder is None:
        yield Silent()
        return
    folder, name = Path(task.log_folder), task.key[:16]
    with ExitStack() as stack:
        loggers: list[Callback] = [stack.enter_context(JsonlLogger(folder / f"{name}.jsonl"))]
        if task.tensorboard:
            loggers.append(stack.enter_context(TensorBoardLogger(folder / "tensorboard" / name)))
        yield Several(*loggers)


def _machine(device: str) -> str:
    """Return device and machine in words."""
    import torch

    place = f"{os.cpu_count()} cores {platform.machine()}"
    if device.startswith("cuda"):
        place = torch.cuda.get_device_name(torch.device(device))
    return f"{place}, torch {torch.__version__}"


def _option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of the command line."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        words += ["--" + name.replace("_", "-"), *(str(item) for item in values)]
    return words
