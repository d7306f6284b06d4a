"""Audit of the noisy steps of GraphSAGE at node level, where one record is part of many examples.

An example is a node with its in-neighbours, clipped as one. The canary is a record v with D
out-neighbours. All features of v and of these nodes lie in one direction: theirs are -1, those of v
are +2, both much longer than the clip. With v in the graph the gradients of the D examples have the
clipped norm in one direction, without v in the opposite one, and v's own example is added: the
2 D + 1 clips of the privacy page's section 5.

The shipped estimator trains; only its network is exchanged for one linear map, whose gradient is
the sum of an example's features wherever the weights are. Each group of v and D people has a
direction of its own, so one training holds as many independent trials as there are groups. The
attacker watches the weights move at every step and adds up the logarithm of the likelihood ratio of
the two mixtures of Gaussians.

One example more or less is too small for the statistics, so it is counted as well. With the same
predictable noise and everybody in the batch, a training with the record and one without it differ
by exactly what the record moves. Its list is longer than D there. The event must account for that
distance, for as much of it on average as the sampling rate leaves, and for no more noise than a
step has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.audits.aggregation import without
from gapgnn.audits.bounds import LEAST_TRIALS, Scores, steps_price
from gapgnn.audits.report import Attempt, AuditReport, Check, Options, claim, confirmed
from gapgnn.errors import check_choice, check_integer, check_number
from gapgnn.graph import Graph
from gapgnn.methods import EVENT, HOP, NETWORK, GraphSAGE, GraphSAGESettings, Shape
from gapgnn.nn import ReplicaLinear, Sage
from gapgnn.privacy import AddRemove, Guarantee, Plan, PublicFacts, parse_relation
from gapgnn.privacy.accounting import Gaussian, MixtureOfGaussians
from gapgnn.privacy.dpsgd import PrivateTraining, neighbourhood_sensitivity
from gapgnn.privacy.ledger import scratch_ledger
from gapgnn.privacy.mechanisms import SafeOrFast
from gapgnn.training import Inputs, Trainer

if TYPE_CHECKING:
    from typing_extensions import Unpack

GROUPS = 500
_LENGTH = 10.0
# Nodes without features: they fill up the training set, whose size is public, and one is for tests.
_SPARE = 4
# So small that the gradient of the loss stays constant; the weights' precision is far finer.
_RATE_OF_LEARNING = 1e-3


class _Sum(Sage):
    """Adds up the features of an example's parts: its gradient is this sum."""

    def __init__(self, replicas: int, num_features: int) -> None:
        nn.Module.__init__(self)
        self.unit_messages = False
        self.pre = ReplicaLinear(replicas, num_features, 1, bias=False)  # type: ignore[assignment]

    def classify(self, codes: Tensor, summed: Tensor) -> Tensor:
        """Return scores of the two classes that differ by twice the sum."""
        total = codes + summed
        return torch.cat([total, -total], dim=-1)


class _Canary(GraphSAGE):
    """The shipped estimator with the network of the audit, at a noise that is given."""

    promised: Guarantee
    # Standard deviation of a step's noise, in clips.
    std: float

    def networks(self, settings: GraphSAGESettings, shape: Shape) -> dict[str, nn.Module]:
        """Return one linear map instead of the network."""
        return {NETWORK: _Sum(shape.replicas, shape.features)}

    def _checked_plan(self, graph: Graph) -> Plan[GraphSAGESettings]:
        facts = PublicFacts.of(graph, level=self.level, train_size=self.train_size)
        return replace(self.plan(facts), guarantee=self.promised)

    def _trainer(self, *args: Any) -> Trainer:
        trainer = super()._trainer(*args)
        shared = {one.name: getattr(trainer, one.name) for one in fields(trainer)}
        return _Trainer(**shared, canary=self)


@dataclass(frozen=True, kw_only=True)
class _Trainer(Trainer):
    """The shipped training loop, which tells how much noise it was asked for."""

    canary: _Canary

    def fit(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        phase: str,
        private: PrivateTraining | None = None,
    ) -> None:
        """Train, and keep the standard deviation of a step's noise."""
        assert private is not None
        self.canary.std = private.noise_multiplier * private.sensitivity
        super().fit(model, inputs, phase=phase, private=private)


class _Steps:
    """Watches the weights: what each step released is how far it moved them."""

    def __init__(self, model: _Canary) -> None:
        self.model = model
        self.moves: list[Tensor] = []

    def start(self, phase: str, total: int) -> None:
        """Begin where the gradient of every loss is the same."""
        with torch.no_grad():
            self._weights().zero_()
        self._before = self._weights().clone()

    def advance(
        self, phase: str, *, loss: float | None = None, accuracy: float | None = None
    ) -> None:
        """Keep the last move."""
        now = self._weights().clone()
        self.moves.append(now - self._before)
        self._before = now

    def _weights(self) -> Tensor:
        layer = self.model.modules_[NETWORK].pre
        assert isinstance(layer, ReplicaLinear)
        return layer.weight.detach()[0, :, 0]


def audit_subgraphs(
    *,
    relation: str = "add-remove",
    epsilon: float = 1.0,
    delta: float = 1e-5,
    steps: int = 20,
    sampling_rate: float = 0.2,
    max_degree: int = 4,
    trials: int = 10_000,
    noise_multiplier: float | None = None,
    clip: float = 1.0,
    noise: SafeOrFast = "safe",
    **options: Unpack[Options],
) -> AuditReport:
    """Attack GraphSAGE's training at node level with canary records; bound its epsilon from below.

    Relation ``add-remove``: the record is in the graph or not, entries that name it dangle. One
    step moves by at most ``clip (2 D + 1)``, by chance of the batch mostly by less (privacy page,
    sections 5 and 8). What is audited is the training; the noisy aggregation that predictions read
    has an audit of its own.

    Args:
        relation: ``add-remove``.
        epsilon: claimed budget of all steps, for which the noise is calibrated.
        delta: of the claim.
        steps: DP-SGD steps of one training, rounded to whole epochs.
        sampling_rate: probability of an example to join a batch.
        max_degree: bound D on every out-degree, and the out-degree of the canary.
        trials: independent canaries.
        noise_multiplier: audit this noise, in units of ``clip (2 D + 1)``, instead; the claim is
            then what it is accounted at.
        clip: largest gradient norm of one example.
        noise: ``safe`` or ``fast``.
        options: of every audit.

    >>> audit_subgraphs(epsilon=4.0, steps=4, sampling_rate=0.5, trials=200).holds
    True
    """
    neighbours = parse_relation(check_choice("relation", relation, ("add-remove",)))
    check_integer("trials", trials, at_least=LEAST_TRIALS)
    check_integer("max_degree", max_degree, at_least=1)
    check_number("sampling_rate", sampling_rate, above=0, at_most=1)
    check_number("clip", clip, above=0)
    groups = min(GROUPS, trials // LEAST_TRIALS * LEAST_TRIALS)
    attack = _Attack(groups, max_degree, max_degree, clip, noise)
    template = attack.planned(check_integer("steps", steps, at_least=1), sampling_rate)
    multiplier, epsilon = claim(template, neighbours, epsilon, delta, noise_multiplier)
    check_number("epsilon", epsilon, above=0)
    event = template.scaled(multiplier)
    attack.promise(event, multiplier, delta)
    checks, price = attack.checks(event), steps_price(event, delta, neighbours)

    def attempt(run: Attempt) -> AuditReport:
        return run.conclude(
            {"canaries": run.run(attack.train, at_once=groups, price=price)},
            epsilon=epsilon,
            delta=delta,
            checks=checks,
            details={
                "relation": relation,
                "steps": event.steps,
                "sampling_rate": attack.rate,
                "max_degree": max_degree,
                "noise_multiplier": multiplier,
                "clip": clip,
                "noise": noise,
            },
        )

    return confirmed("subgraphs", attempt, trials, **options)


@dataclass
class _Attack:
    """Trains on canary groups and scores what every step released."""

    groups: int
    degree: int
    entries: int
    clip: float
    noise: SafeOrFast
    batch: int = 1
    epochs: int = 1
    rate: float = 1.0
    std: float = 1.0
    promised: Guarantee | None = None

    @property
    def num_train(self) -> int:
        return self.groups * (self.entries + 1) + _SPARE

    def planned(self, steps: int, rate: float) -> MixtureOfGaussians:
        """Choose batch and epochs, and return what the training releases, at multiplier 1."""
        self.batch = max(1, round(rate * self.num_train))
        self.rate = self.batch / self.num_train
        self.epochs = max(1, round(steps * self.rate))
        graph = self._graph(np.ones(self.groups, dtype=np.bool_))
        facts = PublicFacts.of(graph, level="node", train_size=self.num_train)
        (event,) = (one for one in self._model().plan(facts).template if one.label == EVENT)
        assert isinstance(event, MixtureOfGaussians)
        return event

    def promise(self, event: MixtureOfGaussians, multiplier: float, delta: float) -> None:
        """Keep the estimator's promise at this noise: priced once, all graphs have one size."""
        self.std = event.noise_multiplier
        self.promised = Guarantee.of_events(
            self._graph(np.ones(self.groups, dtype=np.bool_)),
            # The aggregation for predictions is released too; nobody looks at it here.
            (event, Gaussian(multiplier, label=HOP)),
            relation=AddRemove(),
            delta=delta,
            noise_multiplier=multiplier,
        )

    def checks(self, event: MixtureOfGaussians) -> list[Check]:
        """Compare what one record moves, with everybody in the batch, with what is accounted."""
        one = _Attack(1, self.degree, 2 * self.degree, self.clip, self.noise)
        one.batch, one.promised = one.num_train, self.promised
        model = one._model(insecure_noise_seed=0)
        moves = [one._moves(np.array([world]), model)[0, 0] for world in (True, False)]
        clips = abs(float(moves[0] - moves[1]))
        pairs = zip(event.sensitivities, event.probabilities, strict=True)
        mean = math.fsum(shift * share for shift, share in pairs)
        most = min(max(event.sensitivities), neighbourhood_sensitivity(self.degree))
        return [
            Check("clips that one record moves a step by at most", clips, most),
            Check("clips that one record moves a step by on average", clips * self.rate, mean),
            Check("one clip over a step's noise", 1 / model.std, 1 / event.noise_multiplier),
        ]

    def train(self, worlds: NDArray[np.bool_]) -> Scores:
        """Train once on one group per coin; return each group's log likelihood ratio.

        Of k people in the batch and v itself or not, a step releases N(k + v, std) with the record
        and N(-k, std) without.
        """
        from scipy.stats import binom

        released, std = self._moves(worlds, self._model()), self.std
        counts = np.arange(self.degree + 1)
        touched = binom.logpmf(counts, self.degree, self.rate)

        def density(shifts: NDArray[Any], weights: NDArray[Any]) -> Scores:
            exponents = -0.5 * ((released[..., None] - shifts) / std) ** 2 + weights
            return np.asarray(np.logaddexp.reduce(exponents, axis=-1))

        with np.errstate(divide="ignore"):
            own = np.log([1 - self.rate, self.rate])
        shifts = (counts[:, None] + np.arange(2)).ravel()
        present = density(shifts, (touched[:, None] + own).ravel())
        return np.asarray((present - density(-counts, touched)).sum(axis=0))[None]

    def _model(self, **changes: Any) -> _Canary:
        return _Canary(
            level="node",
            max_degree=self.degree,
            epochs=self.epochs,
            batch_size=self.batch,
            train_size=self.num_train,
            optimizer="sgd",
            learning_rate=_RATE_OF_LEARNING,
            clip=self.clip,
            noise_ratios=(1.0, 1.0),
            noise=self.noise,
            device="cpu",
            **changes,
        )

    def _moves(self, worlds: NDArray[np.bool_], model: _Canary) -> Scores:
        """Return how far every step moved each group's weight, ``(steps, groups)``, in clips."""
        assert self.promised is not None
        model.promised = self.promised
        steps = _Steps(model)
        with scratch_ledger() as ledger:
            model.set_params(ledger=ledger)
            model.fit(self._graph(worlds), callback=steps)
        unit = _RATE_OF_LEARNING * self.clip / self.batch
        released: Scores = torch.stack(steps.moves).double().numpy()[:, : len(worlds)] / unit
        return released

    def _graph(self, worlds: NDArray[np.bool_]) -> Graph:
        """Groups of a canary and whom it names, one direction each; spare nodes in v's stead."""
        groups, size = len(worlds), self.entries + 1
        centre = size * np.arange(groups)
        people = centre[:, None] + np.arange(1, size)
        absent = int((~worlds).sum())
        # One node more than are trained on is for tests.
        fill = self.num_train - size * groups + absent
        num_nodes = size * groups + fill + 1
        sizes = np.tile([2.0, *[-1.0] * self.entries], groups) * _LENGTH * self.clip
        directions = np.repeat(np.arange(groups), size)
        features = sp.csr_array(
            (sizes.astype(np.float32), (np.arange(size * groups), directions)),
            shape=(num_nodes, self.groups),
        )
        labels = np.zeros(num_nodes, dtype=np.int64)
        labels[-2] = 1
        graph = Graph.from_arcs(
            np.repeat(centre, self.entries),
            people.ravel(),
            num_nodes=num_nodes,
            features=features,
            labels=labels,
            directed=True,
            name="canaries",
        )
        train = np.arange(num_nodes) < num_nodes - 1
        graph = graph.with_masks(train, np.zeros(num_nodes, dtype=np.bool_), ~train)
        return without(graph, centre[~worlds])[0]
