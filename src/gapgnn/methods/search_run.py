"""Running a private search: its fits under one charge, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.base import clone

from gapgnn.errors import PrivacyError
from gapgnn.graph import Graph
from gapgnn.methods.decisions import positive_class
from gapgnn.methods.estimator import NodeClassifier
from gapgnn.methods.search_plan import Plans, Search
from gapgnn.privacy import SCORE, PrivateSession, SelectionSession
from gapgnn.privacy.mechanisms import noisy_count
from gapgnn.training import Silent, measure


@dataclass(frozen=True)
class Winner:
    """The model that is handed out.

    Attributes:
        index: of its setting.
        model: fitted.
        score: on validation nodes.
        shown: the scores that may be shown, by setting.
    """

    index: int
    model: NodeClassifier[Any]
    score: float
    shown: dict[int, float]


def run_search(search: Search, graph: Graph, session: SelectionSession) -> Winner:
    """Make the fits of a search that was charged, and return the winner.

    Args:
        search: that was planned on the graph.
        graph: with roles.
        session: open, of the search's plan.
    """
    if search.pilots:
        return _after_pilots(search, graph, session)
    best: Winner | None = None
    for number, release in enumerate(session.draw_candidates()):
        candidate = Candidate(search, session, number, search.plans)
        found = candidate.run(graph, search.releases[release])
        # Of equal scores the first counts: candidates are exchangeable.
        if best is None or found.score > best.score:
            best = found
    if best is None:
        raise PrivacyError(
            "the search drew no candidate, as it does with a small probability: what was charged "
            "stays charged, and nothing is released. Use a geometric number, which is at least 1."
        )
    return best


def _after_pilots(search: Search, graph: Graph, session: SelectionSession) -> Winner:
    """Fit a pilot of every setting, and the best setting with the rest of the budget."""
    scores: dict[int, float] = {}
    for number, group in enumerate(search.releases):
        scores |= Candidate(search, session, number, search.pilots).run(graph, group).shown
    best = max(scores, key=lambda index: scores[index])
    (group,) = (group for group in search.releases if best in group)
    final = Candidate(search, session, len(search.releases), search.plans).run(graph, group)
    return Winner(final.index, final.model, final.score, scores)


@dataclass(frozen=True)
class Candidate:
    """One fit of a search: of all settings that share its releases.

    Attributes:
        search: that it belongs to.
        session: that was charged.
        number: of the candidate.
        plans: of every setting, at the candidate's budget.
    """

    search: Search
    session: SelectionSession
    number: int
    plans: Plans

    def run(self, graph: Graph, group: Sequence[int]) -> Winner:
        """Fit the settings of a group on the same releases, and return the best of them."""
        scores, models = {}, {}
        for variant, index in enumerate(group):
            models[index] = clone(self.search.settings[index].model)
            scores[index] = self.fit(graph, models[index], index, variant)
        best = max(scores, key=lambda index: scores[index])
        return Winner(best, models[best], scores[best], scores)

    def fit(self, graph: Graph, model: NodeClassifier[Any], index: int, variant: int) -> float:
        """Fit one model under the charge of the search, and return its score."""
        scores: list[float] = []
        plan, total = self.plans[index], model.epsilon

        def opened(_: Any, released: Graph) -> PrivateSession:
            return self.session.candidate(
                self.number,
                plan,
                released,
                variant=variant,
                score=lambda inner: scores.append(self._score(graph, model, inner)),
            )

        if plan.promise.events:
            # The budget that the plan was made for; the model itself states the total.
            model.set_params(epsilon=plan.budget)
        model.__dict__["_opens"] = opened
        try:
            model.fit(graph, callback=Silent(), progress=False)
        finally:
            del model.__dict__["_opens"]
            model.set_params(epsilon=total)
        (score,) = scores
        return score

    def _score(self, graph: Graph, model: NodeClassifier[Any], inner: PrivateSession) -> float:
        """Return the score on validation nodes: at node level a noisy count, which is charged."""
        mask = graph.val_mask & (graph.labels >= 0)
        with torch.no_grad():
            raw = model._weighed(model.class_scores(graph))
            found = torch.softmax(raw.double(), dim=-1).float().cpu().numpy()
        answers, labels = model.decide(found[mask]), graph.labels[mask]
        if inner.plan.level != "node":
            names, positive = graph.label_names, positive_class(model, graph)
            return measure(found[mask], answers, labels, names, positive).get(self.search.metric)

        def run() -> dict[str, torch.Tensor]:
            count = noisy_count(
                int((answers == labels).sum()),
                name=SCORE,
                epsilon=self.search.score_epsilon,
                key=inner.options.keys[0].derive(SCORE),
                noise=inner.options.noise,
            )
            return {"count": torch.tensor(count, dtype=torch.float64)}

        return float(inner.draw(SCORE, run, events=(SCORE,))["count"])
