"""What a private search compares, and what it costs: resolved from a grid and public facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sklearn.base import clone

from gapgnn.errors import CalibrationError, InputError
from gapgnn.graph import Graph
from gapgnn.methods.estimator import NodeClassifier
from gapgnn.methods.registry import method_class
from gapgnn.methods.unused import is_same
from gapgnn.privacy import LEAST_EPSILON, Plan, pilot_plan, selection_plan, with_score
from gapgnn.privacy.accounting import CandidateNumber, search_multiplier

# Parameters of the promise and of the run, which are the same for all candidates.
SHARED = (
    *("level", "epsilon", "delta", "relation", "noise", "insecure_noise_seed", "device"),
    *("ledger", "reason", "train_size", "repeats", "split", "seed", "notion"),
)
# Methods whose prediction about a person reads, beside releases, that person's record alone, so
# that one record changes the number of right answers by at most 1.
SCORED_AT_NODE = ("gap", "progap", "node-label-gap", "mlp")
# The first guess of the total over a candidate's budget.
_START = {"selection": 1.3, "pilots": 1.03}

Plans = tuple[Plan[Any], ...]


@dataclass(frozen=True)
class Setting:
    """One combination of the grid.

    Attributes:
        params: as the grid has them.
        model: the estimator with these parameters, not fitted.
    """

    params: Mapping[str, Any]
    model: NodeClassifier[Any]

    @property
    def asking(self) -> dict[str, Any]:
        """The parameters that decide what is released; two models alike in them share releases."""
        free = self.model.after_release() if self.model.level != "node" else frozenset()
        params = self.model.get_params(deep=False).items()
        return {"method": self.model.method, **{k: v for k, v in params if k not in free}}


@dataclass(frozen=True)
class Search:
    """A search with nothing left to ``auto``, and priced.

    Attributes:
        settings: all combinations of the grid.
        releases: the settings that share the releases of a candidate, by their numbers.
        plans: of every setting, at the budget of a candidate, or of the final fit after pilots.
        plan: what is charged.
        metric: by which models are compared.
        number: distribution of the number of candidates of a private selection; else None.
        score_epsilon: of a candidate's noisy score; 0 where labels are public.
        pilots: of every setting, the plan of its pilot; empty where there are none.
    """

    settings: tuple[Setting, ...]
    releases: tuple[tuple[int, ...], ...]
    plans: Plans
    plan: Plan[Any]
    metric: str
    number: CandidateNumber | None = None
    score_epsilon: float = 0.0
    pilots: Plans = ()

    def __str__(self) -> str:
        """Say what is compared, what of it is free, and what it costs."""
        promise = self.plan.promise
        lines = [f"{len(self.settings)} settings, compared by {self.metric} on validation nodes"]
        free = {name for one in self.releases for name in self.differing(one)}
        if free:
            lines.append(f"compared without a further charge: {', '.join(sorted(free))}")
        asking = self.differing([one[0] for one in self.releases])
        if asking:
            lines.append(f"asking the graph again: {', '.join(sorted(asking))}")
        lines += self._runs()
        if promise.epsilon:
            lines.append(
                f"price: epsilon {promise.epsilon:.6g}, delta {promise.delta:.3g}; accountant: "
                f"{promise.accountant}"
            )
        else:
            lines.append("nothing private is released: epsilon 0")
        return "\n".join(lines)

    def _runs(self) -> list[str]:
        """Return what is run, and what each run alone would cost."""
        each = self.plans[0].promise.epsilon
        if self.pilots:
            pilot = self.pilots[0].promise.epsilon
            return [
                f"{len(self.releases)} pilots, each alone epsilon {pilot:.6g}, and a fit with the "
                f"best setting, alone epsilon {each:.6g}"
            ]
        if self.number is None:
            return ["one release for all settings"]
        usual, most = self.number.at_most(0.5), self.number.at_most(0.99)
        scored = f", and its noisy score epsilon {self.score_epsilon:.6g}"
        return [
            f"candidates: a random number, {self.number}; at most {usual} in half of all runs, "
            f"and {most} in 99 %",
            f"each candidate alone: epsilon {each:.6g}{scored if self.score_epsilon else ''}",
        ]

    def differing(self, numbers: Sequence[int]) -> set[str]:
        """Return the names of the parameters in which some settings differ."""
        given = [self.settings[number].params for number in numbers]
        names = {name for params in given for name in params}
        return {n for n in names if any(p.get(n) != given[0].get(n) for p in given)}


@dataclass(frozen=True)
class Planner:
    """Prices a search on one graph; nothing is charged or trained.

    Attributes:
        settings: all combinations of the grid.
        graph: with roles.
        epsilon: the total.
        delta: as it was asked for.
        metric: by which models are compared.
    """

    settings: tuple[Setting, ...]
    graph: Graph
    epsilon: float
    delta: Any
    metric: str

    @property
    def releases(self) -> tuple[tuple[int, ...], ...]:
        """The settings that share their releases, by number."""
        groups: list[list[int]] = []
        for number, one in enumerate(self.settings):
            for known in groups:
                if self.settings[known[0]].asking == one.asking:
                    known.append(number)
                    break
            else:
                groups.append([number])
        return tuple(map(tuple, groups))

    @property
    def firsts(self) -> tuple[Setting, ...]:
        """One setting for each release."""
        return tuple(self.settings[group[0]] for group in self.releases)

    def check_charged(self) -> None:
        """Refuse methods that release nothing beside others that do."""
        free = [one for one in self.firsts if not one.model.draws_noise()]
        if free:
            raise InputError(
                "`param_grid` must hold methods that release something alone. Got "
                f"{free[0].model.method}, which reads no private data: train it apart."
            )

    def together(self) -> Search:
        """Return the search where all settings share one release."""
        plans = self.plans(self.settings, self.epsilon)
        return Search(self.settings, self.releases, plans, plans[0], self.metric)

    def selection(self, number: CandidateNumber, share: float) -> Search:
        """Return a private selection; ``share`` of a candidate's epsilon pays for its score."""

        def whole(epsilon: float) -> Plan[Any]:
            return selection_plan(
                self.plans(self.firsts, epsilon, share),
                number,
                method=f"a selection of {self._methods()}",
                budget=self.epsilon,
                delta=self.delta,
            )

        each = self._candidate_epsilon(whole, "selection")
        _check_run(each * (1 - share), "candidate", "a smaller `mean`")
        plans = self.plans(self.settings, each, share)
        return Search(
            self.settings,
            self.releases,
            plans,
            whole(each),
            self.metric,
            number=number,
            score_epsilon=share * each,
        )

    def pilots(self, share: float) -> Search:
        """Return pilots of all releases and a fit with the best setting.

        Args:
            share: of all pilots together in the squared shift of Gaussian noise.
        """
        ratio = math.sqrt(share / (1 - share) / len(self.releases))

        def whole(epsilon: float) -> Plan[Any]:
            return pilot_plan(
                self.plans(self.firsts, ratio * epsilon),
                self.plans(self.firsts, epsilon),
                method=f"pilots of {self._methods()}",
                budget=self.epsilon,
                delta=self.delta,
            )

        final = self._candidate_epsilon(whole, "pilots")
        _check_run(ratio * final, "pilot", "a larger `pilot_share` or fewer settings")
        return Search(
            self.settings,
            self.releases,
            self.plans(self.settings, final),
            whole(final),
            self.metric,
            pilots=self.plans(self.settings, ratio * final),
        )

    def _methods(self) -> str:
        return " and ".join(dict.fromkeys(one.model.method for one in self.firsts))

    def _candidate_epsilon(self, whole: Callable[[float], Plan[Any]], strategy: str) -> float:
        """Return the largest budget of a candidate with which the whole costs at most the total."""

        def price(noise: float) -> float:
            found: float = whole(self.epsilon / noise).promise.epsilon or 0.0
            return found

        noise = search_multiplier(price, self.epsilon, start=_START[strategy])
        if noise is None or not price(noise) <= self.epsilon:
            raise CalibrationError(
                f"no candidate is cheap enough for epsilon {self.epsilon:g} in all: use fewer "
                "settings or a smaller mean."
            )
        return self.epsilon / noise

    def plans(self, settings: Sequence[Setting], epsilon: float, share: float = 0.0) -> Plans:
        """Return the plan of each setting at a candidate's budget, with its noisy score."""
        plans = []
        for one in settings:
            model = one.model
            if model.draws_noise():
                model = clone(model).set_params(epsilon=epsilon * (1 - share))
            plan = model._checked_plan(self.graph)
            plans.append(with_score(plan, epsilon * share) if share else plan)
        return tuple(plans)


def _check_run(epsilon: float, run: str, fix: str) -> None:
    """Refuse a part of the budget that the fit of a run would refuse, after the charge."""
    if epsilon < LEAST_EPSILON:
        raise InputError(
            f"`epsilon` must leave each {run} at least {LEAST_EPSILON:g}. Got {epsilon:.3g} for "
            f"each: use {fix}."
        )


def model_of(estimator: NodeClassifier[Any], params: Mapping[str, Any]) -> NodeClassifier[Any]:
    """Return the estimator of a setting: a given one with other parameters, or of another method.

    >>> from gapgnn import GAP
    >>> model_of(GAP(epsilon=2.0), {"method": "label-gap", "hops": 3})
    LabelGAP(level='edge', epsilon=2.0, hops=3)
    """
    shared = sorted(set(params) & set(SHARED))
    if shared:
        raise InputError(
            f"`param_grid` must leave out {shared[0]}, which all candidates have in common. "
            "Give it to the estimator."
        )
    own = {name: value for name, value in params.items() if name != "method"}
    name = params.get("method", estimator.method)
    model: NodeClassifier[Any] = clone(estimator)
    if name != model.method:
        cls = method_class(name)
        known = {part.name for part in fields(cls)}
        defaults = {part.name: part.default for part in fields(type(model))}
        kept = {
            name: value
            for name, value in model.get_params(deep=False).items()
            if name in known and (name in SHARED or not is_same(value, defaults[name]))
        }
        unused = cls(**kept).unused_parameters()
        model = cls(**{name: value for name, value in kept.items() if name not in unused})
    unknown = sorted(set(own) - set(model.get_params(deep=False)))
    if unknown:
        raise InputError(f"`param_grid` must name parameters of {name}. Got {unknown[0]!r}.")
    model.set_params(**own)
    return model
