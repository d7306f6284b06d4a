"""The estimator contract that every method keeps, and the order in which a release happens.

``fit`` always goes: check the input, resolve the guarantee, calibrate, charge the ledger, and only
then touch private data (privacy page, sections 3 and 6). Subclasses fill in what is trained.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_choice, check_integer
from gapgnn.graph import Graph, align_features, as_graph, check_declared, check_trainable
from gapgnn.methods.journal import Journal, NoJournal
from gapgnn.methods.persistence import Persistent
from gapgnn.methods.releases import Releases
from gapgnn.nn import replica_state, reset_replicas
from gapgnn.privacy import LEVELS, Guarantee, active_witness, public_count
from gapgnn.privacy.accounting import Event
from gapgnn.privacy.card import PrivacyCard, make_card, public_facts
from gapgnn.privacy.ledger import Charge, Ledger
from gapgnn.privacy.mechanisms import Construction
from gapgnn.rng import NoiseKey, experiment_torch
from gapgnn.training import (
    Callback,
    PrivateTraining,
    Recipe,
    Silent,
    Splits,
    Trainer,
    repeat_splits,
)

Self = TypeVar("Self", bound="NodeClassifier")


@dataclass
class Run:
    """Everything one ``fit`` needs to know beside the estimator's own parameters."""

    graph: Graph
    splits: Splits
    guarantee: Guarantee
    keys: list[NoiseKey]
    device: torch.device
    callback: Callback
    journal: NoJournal = field(default_factory=NoJournal)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Number of repeats trained together."""
        return len(self.keys)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of a block to ``seconds[phase]``."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


class NodeClassifier(BaseEstimator, Persistent, ABC):  # type: ignore[misc]
    """Base of all methods: scikit-learn's estimator contract over graphs.

    ``fit(graph)`` never changes the graph, may be called again, and sets attributes that end in an
    underscore: ``card_`` (the privacy card), ``repeat_scores_`` (test accuracy of every repeat),
    ``seconds_``, ``classes_``. With ``repeats`` above 1 the first repeat is the model; it is never
    exchanged for a better one (privacy page, section 2).
    """

    level: str
    epsilon: float
    delta: float | str
    relation: str
    batch_norm: bool | str
    epochs: int | str
    batch_size: int | str
    learning_rate: float
    weight_decay: float
    optimizer: str
    clip: float
    train_size: int | str
    noise: Construction
    insecure_noise_seed: int | None
    repeats: int
    split: str
    seed: int
    device: str
    ledger: str | Path | None

    # For attacks on one's own models: keep the class scores and the split of every repeat.
    _keeps_repeats: bool = False

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise if one of the method's own parameters cannot work."""

    @abstractmethod
    def _template(self, graph: Graph) -> Sequence[Event]:
        """Return the releases of one fit, their noise multipliers being ratios of the free one."""

    @abstractmethod
    def _build(self, replicas: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        """Return the networks, untrained."""

    @abstractmethod
    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        """Train all repeats and return their class scores, shape (repeats, nodes, classes)."""

    @abstractmethod
    def _class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores of the fitted model, (nodes, classes); None is the training graph."""

    @abstractmethod
    def _card_facts(self) -> dict[str, Any]:
        """Return what the privacy card says about this method alone."""

    def fit(
        self: Self, graph: Any, *, callback: Callback | None = None, journal: Journal | None = None
    ) -> Self:
        """Train on a graph (or PyG ``Data``) and return the estimator itself.

        The data set's ledger is charged before anything private is computed; if it has too little
        left, nothing is computed and :class:`~gapgnn.errors.BudgetExceededError` is raised.

        Args:
            graph: in memory or in a store.
            callback: told about progress.
            journal: keeps finished steps, for a run that can be killed and resumed (GAP).
        """
        start = time.perf_counter()
        self.check()
        is_node = self.level == "node"
        graph = as_graph(graph, not_finite="zero" if is_node else "refuse")
        if is_node:
            check_declared(graph)
        check_trainable(graph, level=self.level)
        guarantee = self._resolve(graph)
        run = Run(
            graph=graph,
            splits=repeat_splits(
                graph, level=self.level, repeats=self.repeats, split=self.split, seed=self.seed
            ),
            guarantee=guarantee,
            keys=self._noise_keys(),
            device=choose_device(self.device),
            callback=callback or Silent(),
            journal=self._checked_journal(journal),
            seconds={"calibrate": time.perf_counter() - start},
        )
        # What cannot be built or trained must fail here, before the charge.
        self._build(1, graph.num_features, graph.num_classes)
        self._recipe(self._num_train(graph))
        charge = run.journal.charged(
            self._about_run(graph, guarantee),
            lambda: self._charge(guarantee, [graph.fingerprint], graph.name, purpose="fit"),
        )
        if (witness := active_witness()) is not None:
            relation = guarantee.relation
            witness.begin("fit", ids=graph.ids, level=guarantee.level, relation=relation)
        # Unfitted until the end: an interrupted fit must not keep an earlier fit's card.
        self.__dict__.pop("card_", None)
        self.releases_ = Releases()
        self.num_features_ = graph.num_features
        self.num_classes_ = graph.num_classes
        self.classes_ = np.arange(graph.num_classes)
        self.label_names_ = graph.label_names
        self.feature_names_ = graph.feature_names
        self.schema_ = graph.schema
        self.device_ = str(run.device)
        self.noise_multiplier_ = guarantee.noise_multiplier
        scores = self._train(run, charge)
        self.repeat_scores_ = run.splits.test_accuracies(scores, graph.labels)
        if self._keeps_repeats:
            self._repeats = scores.detach().cpu(), run.splits
        self._keep_first_repeat()
        if charge is not None:
            Ledger(self.ledger).complete(charge.id)
        self.card_ = self._make_card(graph, guarantee, charge)
        run.seconds["total"] = time.perf_counter() - start
        self.seconds_ = run.seconds
        return self

    def predict_proba(self, graph: Any = None) -> NDArray[np.float32]:
        """Return class probabilities, one row per node of ``graph``.

        For the training graph the cached noisy hops answer and no budget is spent; it may be left
        out except at node level. For another graph (the inductive setting) see the method's own
        notes: it has its own price. Where both the model and the graph know the names of their
        features, columns are matched by name: those the model does not know are left out and those
        the graph lacks are 0.
        """
        self._check_fitted()
        graph = None if graph is None else as_graph(graph)
        names = self.feature_names_
        if graph is not None and names is not None and graph.feature_names is not None:
            graph = align_features(graph, names)
        if graph is not None and graph.num_features != self.num_features_:
            raise InputError(
                f"The graph must have the {self.num_features_} features the model was trained on. "
                f"Got {graph.num_features}."
            )
        with torch.no_grad():
            probabilities = torch.softmax(self._class_scores(graph).double(), dim=-1)
        result: NDArray[np.float32] = probabilities.float().cpu().numpy()
        return result

    def predict(self, graph: Any = None) -> NDArray[np.int64]:
        """Return the most probable class of every node of ``graph``."""
        labels: NDArray[np.int64] = self.predict_proba(graph).argmax(axis=1)
        return labels

    def score(self, graph: Any) -> float:
        """Return the accuracy on the nodes of the graph's test mask.

        Computed from the test labels without noise: at node level a figure for the curator.
        """
        graph = as_graph(graph)
        if not graph.test_mask.any():
            raise InputError("`graph` must have a test mask to be scored. Got no test node.")
        mask = graph.test_mask
        return float((self.predict(graph)[mask] == graph.labels[mask]).mean())

    def check(self) -> None:
        """Raise if a parameter cannot work, before any data is read."""
        check_choice("level", self.level, LEVELS)
        check_choice("noise", self.noise, ("safe", "fast"))
        check_choice("split", self.split, ("fresh", "fixed"))
        check_integer("repeats", self.repeats, at_least=1)
        check_integer("seed", self.seed, at_least=0)
        if self.insecure_noise_seed is not None:
            check_integer("insecure_noise_seed", self.insecure_noise_seed, at_least=0)
        if self.train_size != "auto":
            check_integer("train_size", self.train_size, at_least=1)
        choose_device(self.device)
        self._check_parameters()
        if self.level == "node" and self.get_params().get("dropout", 0) not in ("auto", 0):
            raise PrivacyError(
                "`dropout` must be 0 at level node: masks that are drawn row after row change for "
                "everybody behind a person who joins a batch, so one record would move more than "
                f"its clip. Got {self.get_params()['dropout']}. Set dropout to 0."
            )
        if self.level == "node" and self._uses_batch_norm():
            raise PrivacyError(
                "`batch_norm` mixes the nodes of a batch, so one person's gradient cannot be "
                "clipped at level node. Set batch_norm to auto or false."
            )
        if self.batch_size == 1 and self._uses_batch_norm():
            raise InputError(
                "`batch_size` must be at least 2 with batch norm. Got 1. Set batch_norm to false."
            )

    def _resolve(self, graph: Graph) -> Guarantee:
        """Return what is promised for this graph, calibrated: no private data is released yet."""
        return Guarantee.resolve(
            graph,
            self._template(graph),
            level=self.level,
            relation=self.relation,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def _uses_batch_norm(self) -> bool:
        return self.level != "node" if self.batch_norm == "auto" else bool(self.batch_norm)

    def _num_train(self, graph: Graph) -> int:
        """Return how many training nodes there are, at node level as far as that is public."""
        if self.level != "node":
            return int(graph.train_mask.sum())
        if self.train_size != "auto":
            return int(self.train_size)
        return public_count(int(graph.train_mask.sum()))

    def _trainer(self, run: Run) -> Trainer:
        """Return the one training loop, set up for this run."""
        num_train = self._num_train(run.graph)
        return Trainer(
            labels=torch.tensor(run.graph.labels, device=run.device),
            splits=run.splits,
            num_train=num_train,
            recipe=self._recipe(num_train),
            seed=self.seed,
            callback=run.callback,
        )

    def _recipe(self, num_train: int) -> Recipe:
        """Return the training settings with ``auto`` filled in."""
        return Recipe.resolve(
            level=self.level,
            num_train=num_train,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            clip=self.clip,
        )

    def _private(
        self, run: Run, ratio: float = 1.0, *, sensitivity: float = 1.0
    ) -> PrivateTraining | None:
        """Return DP-SGD settings at node level; elsewhere training is free."""
        if self.level != "node":
            return None
        return PrivateTraining(
            noise_multiplier=run.guarantee.free_multiplier * ratio,
            keys=run.keys,
            construction=self.noise,
            sensitivity=sensitivity,
        )

    def _check_fitted(self) -> None:
        if not hasattr(self, "card_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call `fit` or `load` first."
            )
        if self.level != self.card_.level:
            raise PrivacyError(
                f"`level` must be {self.card_.level}, at which the model was fitted. "
                f"Got {self.level!r}. Fit again at the new level."
            )

    def _noise_keys(self) -> list[NoiseKey]:
        """Return one key per repeat: secret unless seeded, which the card reports."""
        if self.insecure_noise_seed is None:
            return [NoiseKey.fresh() for _ in range(self.repeats)]
        key = NoiseKey.insecure(self.insecure_noise_seed)
        return [key.derive("repeat", repeat) for repeat in range(self.repeats)]

    def _charge(
        self, guarantee: Guarantee, fingerprints: list[str], name: str, *, purpose: str
    ) -> Charge | None:
        """Record the price durably before the release is computed (privacy page, section 6)."""
        if not guarantee.events:
            return None
        if guarantee.epsilon is None or not math.isfinite(guarantee.epsilon):
            raise PrivacyError(f"A release must have a finite price. Got {guarantee.epsilon}.")
        return Ledger(self.ledger).charge(
            fingerprints[0],
            others=fingerprints[1:],
            level=guarantee.level,
            relation=guarantee.relation,
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            events=[event.to_dict() for event in guarantee.events],
            purpose=f"{self.method} {purpose}",
            name=name,
            count=self.repeats if purpose == "fit" else 1,
        )

    def _start_modules(self, run: Run) -> dict[str, nn.Module]:
        """Build the networks of all repeats, each initialised from its own seed."""
        graph = run.graph
        self.modules_ = self._build(run.replicas, graph.num_features, graph.num_classes)
        for name, module in self.modules_.items():
            generators = [
                experiment_torch(self.seed, "initial", name, repeat)
                for repeat in range(run.replicas)
            ]
            reset_replicas(module, generators)
            module.to(run.device)
        return self.modules_

    def _keep_first_repeat(self) -> None:
        """Drop the networks of the repeats after the first."""
        first = self._build(1, self.num_features_, self.num_classes_)
        for name, module in first.items():
            module.load_state_dict(replica_state(self.modules_[name], 0))
            module.eval()
        self.modules_ = first

    def _make_card(self, graph: Graph, guarantee: Guarantee, charge: Charge | None) -> PrivacyCard:
        """Put the facts of this fit on a privacy card."""
        is_degree_bounded = guarantee.level == "node" and "max_degree" in self.get_params()
        max_degree = self.get_params()["max_degree"] if is_degree_bounded else None
        return make_card(
            dataset=graph.name,
            level=guarantee.level,
            relation=guarantee.relation,
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            delta_is_auto=guarantee.delta_is_auto,
            entities=guarantee.entities,
            accountant=guarantee.accountant,
            rdp_epsilon=guarantee.rdp_epsilon(),
            undirected_epsilon=guarantee.undirected_epsilon(),
            noise_multiplier=guarantee.noise_multiplier,
            events=[event.to_dict() for event in guarantee.events],
            noise=self.noise,
            is_insecure=self.insecure_noise_seed is not None,
            is_symmetric=not graph.is_directed,
            max_degree=max_degree,
            native_degree_bounded=max_degree is not None
            and int(graph.out_degrees.max()) <= max_degree,
            charge=charge,
            public=self._public_facts(graph, guarantee),
            **self._card_facts(),
        )

    def _public_facts(self, graph: Graph, guarantee: Guarantee) -> tuple[tuple[str, str], ...]:
        """Return every fact of the data that this release takes to be public."""
        return public_facts(
            guarantee.level,
            num_train=self._num_train(graph),
            train_size_is_declared=self.train_size != "auto",
            delta_is_auto=guarantee.delta_is_auto,
            inferred=graph.inferred,
            has_schema=graph.schema is not None,
            max_degree=self.get_params().get("max_degree"),
        )


def choose_device(device: str) -> torch.device:
    """Resolve ``auto|cpu|cuda``; asking for a GPU that is not there is an error.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    check_choice("device", device, ("auto", "cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("`device` is cuda, but no CUDA device is available. Use cpu or auto.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
