"""DP-SGD for any module of torch or PyG, on bounded neighbourhoods."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typing_extensions import TypedDict, Unpack

from gapgnn.errors import InputError, check_all, check_choice, check_integer, check_number
from gapgnn.graph import Graph, RootedSubgraphs, as_graph, bound_out_degrees, check_trainable
from gapgnn.methods.module_checks import check_module, message_layers
from gapgnn.privacy import (
    Checkpoint,
    Guarantee,
    NoCheckpoint,
    Plan,
    PlannedTraining,
    PrivateSession,
    PublicFacts,
    SessionOptions,
    check_delta,
    check_finite_budget,
    resolve_relation,
)
from gapgnn.privacy.card import PrivacyCard, ReleaseFacts, public_facts
from gapgnn.privacy.dpsgd import DPSchedule, plan_steps, rooted_event, rooted_sensitivity
from gapgnn.rng import NoiseKey
from gapgnn.training import (
    Callback,
    FeatureInputs,
    Loss,
    Recipe,
    RootInputs,
    RootTrainer,
    Silent,
    node_recipe,
)

METHOD, EVENT = "dp-sgd", "training"
WEIGHTS_ONLY = (
    "Only the weights are covered. A prediction of the module reads the exact rows of the "
    "neighbours that it is given, without noise: make it for whoever may see them, give it no "
    "neighbours, or predict from released rows (`PrivateHops`). The weights that training started "
    "from are taken to be public."
)

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class DPSGDSettings:
    """DP-SGD on sub-graphs with nothing left to ``auto``.

    Attributes:
        layers: arcs from a root to the farthest record of its example.
        max_degree: neighbours D that each adjacency list is cut to.
        keep: probability of an arc to stay in a root's example.
        parameters: how many are trained.
        batch_size: expected number of roots in a batch.
        steps: number of batches.
        optimizer: ``adam`` or ``sgd``.
        learning_rate: of the optimiser.
        weight_decay: L2 penalty.
        clip: largest gradient norm of one root.
    """

    layers: int
    max_degree: int
    keep: float
    parameters: int
    batch_size: int
    steps: int
    optimizer: str
    learning_rate: float
    weight_decay: float
    clip: float


class Options(TypedDict, total=False):
    """The options of :func:`dp_sgd`."""

    level: Literal["edge", "node"]
    epsilon: float
    delta: float | Literal["auto"]
    relation: str
    layers: int | Literal["auto"]
    max_degree: int
    keep: float
    epochs: int
    batch_size: int | Literal["auto"]
    learning_rate: float
    weight_decay: float
    optimizer: Literal["adam", "sgd"]
    clip: float
    train_size: int | Literal["auto"]
    loss: Loss
    callback: Callback | None
    noise: Literal["safe", "fast"]
    insecure_noise_seed: int | None
    ledger: str | Path | None
    reason: str
    checkpoint: Checkpoint | None
    announce: Callable[[str], None] | None


@overload
def dp_sgd(
    module: Module, graph: Any, *, plan_only: Literal[False] = False, **options: Unpack[Options]
) -> tuple[Module, PrivacyCard]: ...
@overload
def dp_sgd(
    module: nn.Module, graph: Any, *, plan_only: Literal[True], **options: Unpack[Options]
) -> Plan[DPSGDSettings]: ...
def dp_sgd(
    module: Module,
    graph: Any,
    *,
    level: Literal["edge", "node"] = "node",
    epsilon: float = 8.0,
    delta: float | Literal["auto"] = "auto",
    relation: str = "auto",
    layers: int | Literal["auto"] = "auto",
    max_degree: int = 2,
    keep: float = 1.0,
    epochs: int = 4,
    batch_size: int | Literal["auto"] = "auto",
    learning_rate: float = 0.03,
    weight_decay: float = 0.0,
    optimizer: Literal["adam", "sgd"] = "adam",
    clip: float = 1.0,
    train_size: int | Literal["auto"] = "auto",
    loss: Loss = cross_entropy,
    callback: Callback | None = None,
    noise: Literal["safe", "fast"] = "safe",
    insecure_noise_seed: int | None = None,
    ledger: str | Path | None = None,
    reason: str = "",
    checkpoint: Checkpoint | None = None,
    announce: Callable[[str], None] | None = None,
    plan_only: bool = False,
) -> tuple[Module, PrivacyCard] | Plan[DPSGDSettings]:
    """Train a module of torch or PyG by DP-SGD on bounded neighbourhoods; return it with its card.

    One example is a training node, the *root*, with everybody who reaches it along at most
    ``layers`` arcs of adjacency lists that are cut to ``max_degree`` entries by a keyed hash. The
    module is called with one example at a time, ``module(x, edge_index)``: row 0 of ``x`` is the
    root's, and so is row 0 of the scores that it returns. Roots join a batch by their own coins,
    each root's gradient is clipped as one, and noise is added to the sum. Everything that a layer
    normalises by, such as the degrees of ``GCNConv``, is computed from the example alone, so a root
    has no influence on another one's gradient.

    One record changes its own example and those of at most D + D^2 + ... + D^r other roots (D =
    ``max_degree``, r = ``layers``), one edge those of at most 4 (1 + D + ... + D^(r - 1)) roots.
    The noise is calibrated to the number of them in a Poisson batch, which is a mixture of
    Gaussians (proofs page, Theorem 20). It grows with D^r: keep both small.

    **What is covered: the weights, and nothing else.** A prediction of the module reads the exact
    rows of the neighbours that it is given. See *A PyG model by DP-SGD* in the how-to page for
    what may be handed out, and :class:`~gapgnn.PrivateHops` for predictions that are covered.

    Refused before anything is charged: batch norm, running statistics, caches, and whatever else
    makes a root's row depend on unconnected nodes or on earlier calls. Dropout is drawn for every
    root by a secret of its own.

    Args:
        module: with the initial weights, which are taken to be public; it stays as it is.
        graph: a PyG ``Data``, a ``Graph`` or anything else that :func:`~gapgnn.as_graph` takes,
            with a split.
        level: ``node`` protects records, ``edge`` edges.
        epsilon: privacy budget.
        delta: failure probability, or ``auto``.
        relation: which graphs are neighbours, or ``auto``.
        layers: arcs from a root to the farthest record of its example; ``auto`` is the number of
            message passing layers of PyG in the module. Without any, it is called as ``module(x)``.
        max_degree: neighbours D that each adjacency list is cut to.
        keep: probability of an arc to stay in an example, by a coin of its own for every root and
            step.
        epochs: passes over the training nodes.
        batch_size: expected number of roots in a batch; ``auto`` is 1,024, or 6 % of the training
            nodes if that is more, and at most half.
        learning_rate: of the optimiser.
        weight_decay: L2 penalty.
        optimizer: ``adam`` or ``sgd``.
        clip: largest gradient norm of one root.
        train_size: number of training nodes that is made public at node level; ``auto`` is their
            number rounded to two digits.
        loss: of the root's scores (1, classes) and its label (1,).
        callback: notified of every step.
        noise: ``safe`` for releases, ``fast`` for experiments.
        insecure_noise_seed: makes the noise predictable, for tests; the card says so.
        ledger: file of the privacy ledger; left out: the user's own.
        reason: why this is released, for the ledger.
        checkpoint: for a run that can be killed and resumed without a second charge.
        announce: called with the plan and the price before it is charged; left out: they are
            printed to stderr.
        plan_only: return the plan and its price; nothing is charged, read or trained.

    Returns:
        A copy of the module with trained weights, in evaluation mode, and its card; or the plan.

    >>> from gapgnn import load_dataset, random_split
    >>> from torch_geometric.nn import SAGEConv
    >>> graph = random_split(load_dataset("social"), seed=0)
    >>> plan = dp_sgd(SAGEConv(349, 6), graph, epsilon=8, plan_only=True)
    >>> plan.settings.layers, plan.settings.max_degree, plan.promise.epsilon <= 8
    (1, 2, True)
    """
    options = SessionOptions(
        keys=[_key(insecure_noise_seed)],
        noise=noise,
        is_seeded=insecure_noise_seed is not None,
        ledger=ledger,
        reason=reason,
    )
    asked = _Asked(
        module=module,
        graph=as_graph(graph, not_finite="zero" if level == "node" else "refuse"),
        level=level,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        layers=message_layers(module) if layers == "auto" else layers,
        max_degree=max_degree,
        keep=keep,
        recipe={
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "optimizer": optimizer,
            "clip": clip,
        },
        train_size=train_size,
        loss=loss,
    )
    plan = asked.plan()
    if plan_only:
        return plan
    return asked.train(
        plan,
        options,
        callback=Silent() if callback is None else callback,
        checkpoint=NoCheckpoint() if checkpoint is None else checkpoint,
        announce=_print_price if announce is None else announce,
    )


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What :func:`dp_sgd` was asked for, with the graph and the layers known."""

    module: nn.Module
    graph: Graph
    level: str
    epsilon: float
    delta: float | Literal["auto"]
    relation: str
    layers: int
    max_degree: int
    keep: float
    recipe: dict[str, Any]
    train_size: int | Literal["auto"]
    loss: Loss

    def plan(self) -> Plan[DPSGDSettings]:
        """Check everything that can be checked without private data, and return the priced plan."""
        self._check()
        graph = self.graph
        facts = PublicFacts.of(graph, level=self.level, train_size=self.train_size)
        relation = resolve_relation(self.level, self.relation, is_directed=graph.is_directed)
        recipe, schedule = self._schedule(facts.num_train)
        event = rooted_event(
            relation,
            layers=self.layers,
            max_degree=self.max_degree,
            keep=self.keep,
            sampling_rate=schedule.sampling_rate,
            steps=schedule.steps,
            label=EVENT,
        )
        settings = DPSGDSettings(
            layers=self.layers,
            max_degree=self.max_degree,
            keep=self.keep,
            parameters=sum(one.numel() for one in self.module.parameters() if one.requires_grad),
            batch_size=round(schedule.expected_batch),
            steps=schedule.steps,
            optimizer=recipe.optimizer,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            clip=recipe.clip,
        )
        training = PlannedTraining(
            event=EVENT, sensitivity=rooted_sensitivity(event.reach, event.own)
        )
        plan = Plan(
            method=METHOD,
            relation=relation,
            budget=self.epsilon,
            delta=Guarantee.unpriced(facts.counts, relation=relation, delta=self.delta).delta,
            settings=settings,
            facts=facts,
            template=(event,),
            training={METHOD: training},
        )
        return plan.calibrated(self.delta)

    def train(
        self,
        plan: Plan[DPSGDSettings],
        options: SessionOptions,
        *,
        callback: Callback,
        checkpoint: NoCheckpoint,
        announce: Callable[[str], None],
    ) -> tuple[Any, PrivacyCard]:
        """Charge the plan, train a copy of the module and return it with its card."""
        assert plan.facts is not None
        work = copy.deepcopy(self.module)
        recipe, schedule = self._schedule(plan.facts.num_train)
        trainer = RootTrainer(recipe=recipe, schedule=schedule, loss=self.loss, callback=callback)
        session = PrivateSession(
            plan,
            self.graph,
            options,
            checkpoint=checkpoint,
            about={"params": {**plan.to_dict()["settings"], "module": str(self.module)}},
            announce=announce,
        )
        session.check_noise([work])
        announce(str(plan))
        with session:
            session.train(METHOD, work, trainer, self._inputs(session.graph, options.keys[0]))
        trained = copy.deepcopy(self.module)
        trained.load_state_dict(work.state_dict())
        return trained.eval(), session.card(self._card_facts(plan))

    def _check(self) -> None:
        graph = self.graph
        check_choice("level", self.level, ("edge", "node"))
        check_all(
            lambda: check_integer("layers", self.layers, at_least=0),
            lambda: check_integer("max_degree", self.max_degree, at_least=1),
            lambda: check_number("keep", self.keep, above=0, at_most=1),
            lambda: check_finite_budget(self.level, self.epsilon),
            lambda: check_delta(self.delta),
        )
        if self.level == "edge" and not self.layers:
            raise InputError(
                "`module` must read neighbours at level edge. Got one without message passing, "
                "which reads features and labels alone: they are public there, so train it plainly."
            )
        if self.keep < 1 and not self.layers:
            raise InputError(f"`keep` must be left out without layers. Got {self.keep}.")
        if len(graph.edge_types) > 1 or graph.is_weighted:
            raise InputError(
                "`graph` must have one edge type without weights: a module is given arcs alone. "
                "Got others."
            )
        if not graph.has_split:
            raise InputError("`graph` must have a split. Got none: use `gapgnn.random_split`.")
        # Nothing is chosen by validation or test nodes.
        check_trainable(graph, level="node")
        check_module(
            self.module,
            layers=self.layers,
            columns=graph.num_features,
            classes=graph.num_classes,
            loss=self.loss,
        )

    def _schedule(self, num_train: int) -> tuple[Recipe, DPSchedule]:
        """Return how the optimiser moves, and how roots are sampled."""
        epochs, batch_size = self.recipe["epochs"], self.recipe["batch_size"]
        found = Recipe.resolve(level="node", num_train=num_train, **self.recipe)
        recipe = node_recipe(found, num_train, epochs=epochs, batch_size=batch_size)
        return recipe, plan_steps(num_train, recipe.batch_size or num_train, recipe.epochs)

    def _inputs(self, graph: Graph, key: NoiseKey) -> RootInputs:
        """Return features, labels and sub-graphs, with adjacency lists as they are cut."""
        lists = bound_out_degrees(graph, self.max_degree, key.derive("lists"))
        subgraphs = RootedSubgraphs(
            lists, graph.ids, layers=self.layers, keep=self.keep, key=key.derive("roots")
        )
        return RootInputs(
            features=FeatureInputs(graph, torch.device("cpu")).dense(),
            labels=torch.tensor(graph.labels),
            roots=torch.from_numpy(np.flatnonzero(graph.train_mask)),
            subgraphs=subgraphs,
        )

    def _card_facts(self, plan: Plan[DPSGDSettings]) -> ReleaseFacts:
        """Return what the card says of the training."""
        assert plan.facts is not None
        graph, promise = self.graph, plan.promise
        read = (
            f"The features of whoever reaches a training {{entity}} along at most {self.layers} "
            f"arcs of adjacency lists that are cut to {self.max_degree} entries, in its example "
            "alone."
        )
        return ReleaseFacts(
            method=f"DP-SGD ({type(self.module).__name__})",
            messages=read if self.layers else "none",
            steps=["preparation", "module checks"],
            warnings=[WEIGHTS_ONLY] if self.layers else [],
            product="weights",
            public=public_facts(
                plan.level,
                num_train=plan.facts.num_train,
                train_size_is_declared=self.train_size != "auto",
                delta_is_auto=promise.delta_is_auto,
                is_delta_compared=bool(promise.delta),
                inferred=graph.inferred,
                has_schema=graph.schema is not None,
                max_degree=None,
            ),
        )


def _key(seed: int | None) -> NoiseKey:
    return NoiseKey.fresh() if seed is None else NoiseKey.insecure(seed)


def _print_price(text: str) -> None:
    print(text, file=sys.stderr)
