"""Tools of attackers: a classifier, and ranking metrics of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from gapgnn.errors import InputError
from gapgnn.nn import ReplicaMLP
from gapgnn.privacy.dpsgd import FlatAdam, FlatParameters
from gapgnn.rng import experiment_torch

Rows = NDArray[np.float64]
FALSE_ALARMS = 0.01
# The attack network of GAP.
_WIDTHS = (64, 64, 64)
_BATCH = 1024
_PATIENCE = 20


@dataclass(frozen=True)
class Ranking:
    """Ranking metrics of an attacker's scores.

    Attributes:
        auc: probability that a true case is ranked before another; 0.5 is guessing.
        average_precision: area under the precision-recall curve; the share of true cases is
            guessing.
        tpr_at_1pct_fpr: share of the true cases found when one other case in a hundred is taken for
            one; 0.01 is guessing.
    """

    auc: float
    average_precision: float
    tpr_at_1pct_fpr: float


def guessing(truth: NDArray[np.bool_]) -> dict[str, float]:
    """Return the expected value of every metric under random scores.

    >>> guessing(np.array([True, False, False, False]))["average_precision"]
    0.25
    """
    return {"auc": 0.5, "average_precision": float(truth.mean()), "tpr_at_1pct_fpr": FALSE_ALARMS}


def rank(scores: ArrayLike, truth: NDArray[np.bool_]) -> Ranking:
    """Return the ranking metrics of scores.

    >>> rank([0.9, 0.8, 0.3, 0.1], np.array([True, True, False, False])).auc
    1.0
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    values = np.asarray(scores, dtype=np.float64)
    if truth.all() or not truth.any():
        raise InputError(
            f"`truth` must have true and false cases. Got {int(truth.sum())} true of {len(truth)}."
        )
    fpr, tpr, _ = roc_curve(truth, values)
    return Ranking(
        float(roc_auc_score(truth, values)),
        float(average_precision_score(truth, values)),
        # The best point within the allowance: ties are not split.
        float(tpr[fpr <= FALSE_ALARMS].max()),
    )


@dataclass(frozen=True)
class RepeatedResult:
    """Figures of an attack over independent runs, with those of its control.

    Attributes:
        attack: its name on the command line.
        rankings: of the attack, one per run.
        controls: of the same attacker without the target's answers, one per run; none where such an
            attacker can only guess.
        guesses: what guessing reaches, one per run.
        details: the setting, as plain values.
    """

    attack: str
    rankings: tuple[Ranking, ...]
    controls: tuple[Ranking, ...]
    guesses: tuple[dict[str, float], ...]
    details: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: means over the runs, and the runs."""
        runs = [asdict(ranking) for ranking in self.rankings]
        about: dict[str, Any] = {"guessing": _means(self.guesses)}
        if self.controls:
            about["control"] = _means([asdict(control) for control in self.controls])
            for run, control in zip(runs, self.controls, strict=True):
                run["gain_auc"] = run["auc"] - control.auc
        return {"attack": self.attack, **_means(runs), **about, "runs": runs, **self.details}


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


class AttackNetwork:
    """A binary classifier on standardised inputs, trained on cases the attacker knows.

    A tenth of the cases is held out, and the epoch with the best score on them is used, because
    overfitting would underestimate the attack.

    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(400, 2))
    >>> network = AttackNetwork(seed=0).fit(rows, rows[:, 0] > 0)
    >>> float(((network.score(rows) > 0) == (rows[:, 0] > 0)).mean()) > 0.9
    True
    """

    def __init__(self, *, seed: int, epochs: int = 200) -> None:
        self.seed = seed
        self.epochs = epochs

    def fit(self, rows: Rows, truth: NDArray[np.bool_]) -> AttackNetwork:
        """Train on known cases."""
        # The layers are small: threads would wait for each other longer than they compute, on a
        # machine with other work ten to sixty times longer (measured).
        with threadpool_limits(1, user_api="openmp"):
            self._train(rows, truth)
        return self

    def _train(self, rows: Rows, truth: NDArray[np.bool_]) -> None:
        self._mean, self._std = rows.mean(axis=0), rows.std(axis=0) + 1e-9
        inputs, wanted = self._inputs(rows), torch.from_numpy(truth.astype(np.float32))
        self._model = ReplicaMLP(1, [rows.shape[1], *_WIDTHS, 1], batch_norm=True)
        self._model.reset([experiment_torch(self.seed, "attack network")])
        flat = FlatParameters(self._model)
        optimiser = FlatAdam(flat.values, learning_rate=0.001, weight_decay=1e-4)
        shuffle = experiment_torch(self.seed, "attack batches")
        order = torch.randperm(len(rows), generator=shuffle)
        held, used = order[: len(rows) // 10], order[len(rows) // 10 :]
        best, kept, best_epoch = float("inf"), self._state(), 0
        for epoch in range(self.epochs):
            if epoch - best_epoch > _PATIENCE:
                break
            self._model.train()
            mixed = used[torch.randperm(len(used), generator=shuffle)]
            for batch in torch.split(mixed, _BATCH):
                if len(batch) < 2:
                    continue
                loss = self._loss(inputs[batch], wanted[batch])
                optimiser.step(flat.gradient(loss))
            self._model.eval()
            with torch.no_grad():
                missed = float(self._loss(inputs[held], wanted[held])) if len(held) else 0.0
            if missed < best:
                best, kept, best_epoch = missed, self._state(), epoch
        self._model.load_state_dict(kept)
        self._model.eval()

    def score(self, rows: Rows) -> Rows:
        """Return the log odds of every case."""
        with torch.no_grad():
            odds: Rows = self._model(self._inputs(rows).unsqueeze(0))[0, :, 0].double().numpy()
        return odds

    def _inputs(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(((rows - self._mean) / self._std).astype(np.float32))

    def _loss(self, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        odds = self._model(inputs.unsqueeze(0))[0, :, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(odds, wanted)

    def _state(self) -> dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in self._model.state_dict().items()}
