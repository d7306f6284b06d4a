"""Vote: the simple baselines of predictions that are for their own person alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_number
from gapgnn.graph import Graph
from gapgnn.methods.base import Run, choose_device
from gapgnn.methods.lists import exact_sums
from gapgnn.methods.mlp import MLP
from gapgnn.methods.unused import Unused
from gapgnn.privacy import Guarantee, check_finite_budget
from gapgnn.privacy.accounting import Event, LabelResponse
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.card import texts as texts
from gapgnn.privacy.ledger import Charge, Ledger, People
from gapgnn.privacy.mechanisms import randomised_labels
from gapgnn.rng import NoiseKey
from gapgnn.training import is_dealt, public_training

SENT = {
    "edge": "The training labels of those on a person's own list, to that person alone.",
    "node": (
        "Nothing: training labels are released by randomised response, and each person's own list "
        "of them is read for that person alone."
    ),
}


# What a vote at node level has of an MLP's parameters: those of releases and of runs.
_WITHOUT_TRAINING = (
    *("level", "epsilon", "delta", "relation", "threshold", "metric", "positive"),
    *("noise", "insecure_noise_seed"),
    *("repeats", "split", "seed", "device", "ledger", "reason"),
)


@dataclass(kw_only=True, eq=False, repr=False)
class Vote(MLP):
    """Node classifier that lets the training people on a person's own list vote for their class.

    A prediction reads its own person's list exactly, so it is for that person, or for whoever may
    know the list: joint differential privacy (privacy page, sections 1 and 5). Predictions of
    everybody handed out together would tell lists.

    At edge level labels are public and the vote needs no budget: its scores are the logarithm of
    what an MLP says of the own features, plus log(``odds``) for each vote. At node level the label
    of every training person is released once by randomised response, at pure epsilon ``epsilon``,
    and those answers vote; features are not read and nothing is trained. Whoever withdrew keeps a
    row with empty cells and answers at random. Lists are read at prediction, from the graph that is
    given, and never stored.

    Who trains is public at node level where it follows from (seed, id), as ``random_split`` with
    the seed of this estimator has it: only these people answer. With other masks everybody does,
    those who do not train at random.

    Parameters that all methods share are those of :class:`~gapgnn.methods.NodeClassifier`; those of
    the MLP are not used at node level.

    Args:
        level: what is protected: ``none``, ``edge`` or ``node``.
        epsilon: privacy budget at node level.
        odds: how much more often somebody on the own list has the own class than any other.

    >>> from gapgnn.graph.datasets.synthetic import social_graph
    >>> from gapgnn.graph.transforms import random_split
    >>> graph = random_split(social_graph(num_nodes=300, mean_degree=10), seed=0)
    >>> Vote(level="edge", epochs=5).fit(graph).card_.epsilon
    0.0
    >>> card = Vote(level="node", epsilon=2.0).fit(graph).card_
    >>> card.epsilon, card.delta, card.own
    (2.0, 0.0, 'record')
    """

    method: ClassVar[str] = "vote"

    epsilon: float = 1.0
    odds: float = 6.0

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("odds", self.odds, above=1)
        if self.threshold in ("auto", "rate") and self.level != "none":
            raise PrivacyError(
                "`threshold` must be prior or a number for vote: choosing it would read the lists "
                f"of other nodes without noise. Got {self.threshold}."
            )

    def _unused(self) -> Iterator[Unused]:
        yield from super()._unused()
        if self.level == "node":
            trains = (field.name for field in fields(MLP) if field.name not in _WITHOUT_TRAINING)
            yield Unused(tuple(trains), "at level node: nothing is trained, released labels vote")
            yield Unused(("delta",), "at level node: randomised response needs none", (0.0,))

    def _check_edges(self, graph: Graph) -> None:
        if graph.more or graph.is_weighted:
            found = "weights" if graph.is_weighted else f"the kinds {', '.join(graph.kind_names)}"
            raise InputError(
                "`graph` must have one kind of edges without weights for vote. "
                f"Got {found}; use gap."
            )
        if self.level == "node" and graph.num_dangling:
            # What v reads of its list must not change when somebody on it leaves (section 1).
            raise PrivacyError(
                f"vote needs a row for everybody on a list. Got {graph.num_dangling} entries that "
                "name somebody without one. Keep a row with empty cells for people who withdrew; "
                "leave out entries that name nobody of yours."
            )

    def _check_free(
        self,
        guarantee: Guarantee,
        people: People,
        *,
        purpose: str,
        curator_only: str | None = None,
    ) -> None:
        """Put on record who computes figures from exact lists: they are the curator's alone."""
        super()._check_free(guarantee, people, purpose=purpose, curator_only=curator_only)
        if guarantee.level == "edge":
            Ledger(self.ledger).check_free(
                people,
                level="none",
                purpose=f"{self.method} {purpose}",
                curator_only=curator_only,
            )

    def _template(self, graph: Graph) -> Sequence[Event]:
        return ()

    def _resolve(self, graph: Graph) -> Guarantee:
        if self.level != "node":
            return super()._resolve(graph)
        check_finite_budget(self.level, self.epsilon)
        return Guarantee.pure(
            graph,
            (self._response(graph.num_classes),),
            level=self.level,
            relation=self.relation,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def _response(self, num_classes: int) -> LabelResponse:
        return LabelResponse.of(self.epsilon, num_classes, label="labels")

    def _build(self, repeats: int, num_features: int, num_classes: int) -> dict[str, nn.Module]:
        return {} if self.level == "node" else super()._build(repeats, num_features, num_classes)

    def _train(self, run: Run, charge: Charge | None) -> Tensor:
        if self.level == "node":
            return self._release(run, charge)
        prior = torch.log_softmax(super()._train(run, charge), dim=-1)
        with run.timed("aggregate"):
            votes = [
                self._votes(run.graph, _training_labels(run.graph, mask)).to(prior)
                for mask in run.splits.train
            ]
        return prior + math.log(self.odds) * torch.stack(votes)

    def _release(self, run: Run, charge: Charge | None) -> Tensor:
        """Release a class for everybody who has a row, with a record or without.

        Relation ``add-remove`` or ``replace``: a record is one label, and its response costs
        ``epsilon`` at delta 0 for each repeat (privacy page, section 5).
        """
        graph = run.graph
        speaks = self._speaking(graph, len(run.keys))

        def draw(repeat: int, key: NoiseKey) -> dict[str, Tensor]:
            said = randomised_labels(
                _training_labels(graph, run.splits.train[repeat]),
                speaks[repeat],
                self._response(self.num_classes_),
                key=key.derive("labels"),
                noise=self.noise,
                name=f"labels of repeat {repeat + 1}",
            )
            return {"labels": said}

        with run.timed("aggregate"):
            said = [
                run.journal.drawn(f"labels-{repeat}", partial(draw, repeat, key))["labels"]
                for repeat, key in enumerate(run.keys)
            ]
            scores = [self._scores_of(graph, one) for one in said]
        self.releases_.add(graph, charge, (said[0],), has_hop_zero=False)
        return torch.stack(scores)

    def _speaking(self, graph: Graph, repeats: int) -> NDArray[np.bool_]:
        """Return who answers in each repeat: who trains by the public hash, or else everybody."""
        if is_dealt(graph, seed=self.seed):
            return public_training(graph, repeats=repeats, split=self.split, seed=self.seed)
        return np.ones((repeats, graph.num_nodes), dtype=np.bool_)

    def _scores_of(self, graph: Graph, said: Tensor) -> Tensor:
        """Return what the answers on everybody's own list say, as log-odds.

        An answer k is as likely as ``keep`` where its giver has class k and as ``other`` elsewhere;
        the giver has the reader's class ``odds`` times as likely as any other. So an answer counts
        less the more random it is, and as much as a label where it is none.
        """
        response = self._response(self.num_classes_)
        alike = self.odds / (self.odds + self.num_classes_ - 1)
        unlike = (1 - alike) / (self.num_classes_ - 1)
        certainty = response.keep - response.other
        same, different = (response.other + share * certainty for share in (alike, unlike))
        return math.log(same / different) * self._votes(graph, said.numpy())

    def _votes(self, graph: Graph, labels: NDArray[np.int64]) -> Tensor:
        """Return how many on each node's own list have which class; those below 0 have none."""
        ballots = torch.zeros(graph.num_nodes, self.num_classes_)
        voters = torch.from_numpy(np.flatnonzero(labels >= 0))
        ballots[voters, torch.from_numpy(labels[labels >= 0])] = 1.0
        return exact_sums(graph, ballots)

    def _class_scores(self, graph: Graph | None) -> Tensor:
        if graph is None:
            raise InputError("A vote keeps no lists: give the graph whose nodes to predict.")
        self._check_edges(graph)
        if self.level == "node":
            return self._released_scores(graph)
        graph = self._split_as_fitted(graph, is_made=self._made_split)
        if not graph.train_mask.any():
            raise InputError("`graph` must have training labels, which vote. Got none.")
        if self.level == "edge":
            # Free of charge, because each answer is for its own person; on record all the same.
            Ledger(self.ledger).check_free(
                People.of(graph),
                level="none",
                purpose=f"{self.method} predict",
                curator_only=self.reason.strip() or "answers for their own people",
            )
        prior = torch.log_softmax(super()._class_scores(graph), dim=-1)
        votes = self._votes(graph, _training_labels(graph, graph.train_mask)).to(prior)
        return prior + math.log(self.odds) * votes

    def _released_scores(self, graph: Graph) -> Tensor:
        released = self.releases_.find(graph, Ledger(self.ledger))
        if released is None:
            raise InputError(
                "`graph` must be the one whose labels were released. Got another: fit on it, which "
                "is charged; there is nothing to learn from the first one."
            )
        (said,) = released.hops
        device = choose_device(self.device)
        return self._scores_of(graph, said).to(device)

    def _scores_with(self, graph: Graph | None, own: str) -> Tensor:
        if own != "record":
            raise InputError(f"`own` must be record for vote, which reads lists. Got {own!r}.")
        return self._class_scores(graph)

    def _public_facts(self, graph: Graph, guarantee: Guarantee) -> tuple[tuple[str, str], ...]:
        facts = super()._public_facts(graph, guarantee)
        if self.level != "node":
            return facts
        # No rate and no number of steps follows from how many people train.
        kept = [fact for fact in facts if fact[0] != texts.NUM_TRAIN]
        origin = "a public hash of (seed, id)"
        if not is_dealt(graph, seed=self.seed):
            origin = "given with the records: those who do not train answer at random"
        return (*kept, ("where roles come from", origin))

    def _card_facts(self) -> ReleaseFacts:
        steps = ["preparation", "own list"]
        if self.level != "node":
            steps += ["training", "selection"]
            if self._uses_batch_norm():
                steps.append("statistics")
        sent = SENT.get(self.level, SENT["edge"])
        return ReleaseFacts(
            method="Vote", messages=sent, steps=steps, own="record", is_divided=self.level == "node"
        )


def _training_labels(graph: Graph, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the labels of the training nodes, and -1 for the others."""
    labels: NDArray[np.int64] = np.where(mask, graph.labels, -1)
    return labels
