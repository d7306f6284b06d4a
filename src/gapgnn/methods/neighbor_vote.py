"""NeighborVote: a simple baseline for predictions under joint differential privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gapgnn.errors import InputError, PrivacyError, check_number
from gapgnn.graph import Graph
from gapgnn.methods.checks import choose_device
from gapgnn.methods.configs import MLPConfig, NeighborVoteConfig
from gapgnn.methods.estimator import Fit, Shape
from gapgnn.methods.lists import exact_sums
from gapgnn.methods.mlp import MLP, MLPSettings
from gapgnn.methods.unused import Unused
from gapgnn.privacy import Plan, PublicFacts, check_finite_budget
from gapgnn.privacy.accounting import LabelResponse
from gapgnn.privacy.card import ReleaseFacts
from gapgnn.privacy.card import texts as texts
from gapgnn.privacy.ledger import Ledger, People
from gapgnn.privacy.mechanisms import randomised_labels
from gapgnn.rng import NoiseKey
from gapgnn.training import is_hash_split, public_training

SENT = {
    "edge": "The training labels of a node's own neighbours, to that node's person alone.",
    "node": (
        "Nothing: training labels are released by randomised response, and each person's own "
        "neighbours are read for that person alone."
    ),
}
EVENT = "labels"


# Parameters of the MLP that also apply at node level: those of releases and of runs.
_WITHOUT_TRAINING = (
    *("level", "epsilon", "delta", "relation", "threshold", "metric", "positive"),
    *("noise", "insecure_noise_seed"),
    *("repeats", "split", "seed", "device", "ledger", "reason"),
)


class NeighborVote(NeighborVoteConfig, MLP):
    """Node classifier by the votes of a node's own training neighbours.

    A prediction reads the node's own neighbours exactly, so it is only for the node's own person,
    or for parties that may know the adjacency list: joint differential privacy (privacy page,
    sections 1 and 5). Publishing the predictions of all nodes together would reveal edges.

    At edge level labels are public and the vote needs no budget: its scores are the log-posterior
    of an MLP on the node's own features, plus log(``odds``) for each vote. At node level the label
    of every training node is released once by randomised response, at pure epsilon ``epsilon``, and
    the released labels vote. Features are not read and nothing is trained. A person who withdrew
    keeps a row with empty cells, whose label is drawn uniformly. Adjacency lists are read at
    prediction, from the given graph, and never stored.

    At node level the set of training nodes is public if it follows from (seed, id), as
    ``random_split`` with the seed of this estimator has it; then only their labels are released.
    With other masks a label is released for every row, drawn uniformly for nodes that do not train.

    Its parameters are those of
    :class:`~gapgnn.methods.configs.neighbor_vote.NeighborVoteConfig`; those of the MLP are refused
    at node level.

    >>> from gapgnn import load_dataset
    >>> graph = load_dataset("social")
    >>> NeighborVote(level="edge", epochs=5).fit(graph).card_.epsilon
    0.0
    >>> card = NeighborVote(level="node", epsilon=2.0).fit(graph).card_
    >>> card.epsilon, card.delta, card.own
    (2.0, 0.0, 'record')
    """

    method: ClassVar[str] = "vote"
    reads_lists: ClassVar[bool] = True

    def check_parameters(self) -> None:
        """Refuse invalid parameters."""
        super().check_parameters()
        check_number("odds", self.odds, above=1)
        if self.threshold in ("auto", "rate") and self.level != "none":
            raise PrivacyError(
                "`threshold` must be prior or a number for vote: choosing it would read the lists "
                f"of other nodes without noise. Got {self.threshold}."
            )

    def unused(self) -> Iterator[Unused]:
        """Yield the parameters without an effect at this level."""
        yield from super().unused()
        if self.level == "node":
            trains = (part.name for part in fields(MLPConfig) if part.name not in _WITHOUT_TRAINING)
            yield Unused(tuple(trains), "at level node: nothing is trained, released labels vote")
            yield Unused(("delta",), "at level node: randomised response needs none", (0.0,))

    def check_edges(self, graph: Graph) -> None:
        """Refuse weights, several edge types, and at node level neighbours without a row."""
        if graph.more_edge_types or graph.is_weighted:
            types = f"the edge types {', '.join(graph.edge_type_names)}"
            found = "weights" if graph.is_weighted else types
            raise InputError(
                f"`graph` must have one edge type without weights for vote. Got {found}; use gap."
            )
        if self.level == "node" and graph.num_dangling:
            # The inputs from v's neighbours must not change when one is removed (section 1).
            raise PrivacyError(
                f"vote needs a row for everybody on a list. Got {graph.num_dangling} entries that "
                "name somebody without one. Keep a row with empty cells for people who withdrew; "
                "leave out entries that name nobody of yours."
            )

    # What is released ---------------------------------------------------------------------------

    def plan(self, facts: PublicFacts) -> Plan[MLPSettings]:
        """Return randomised labels at node level, and no release at other levels."""
        settings = self._settings(facts)
        if self.level != "node":
            return self.make_plan(facts, settings)
        check_finite_budget(self.level, self.epsilon)
        response = self._response(facts.num_classes)
        return self.make_plan(facts, settings, fixed=[response], is_pure=True)

    def _response(self, num_classes: int) -> LabelResponse:
        return LabelResponse.of(self.epsilon, num_classes, label=EVENT)

    def networks(self, settings: MLPSettings, shape: Shape) -> dict[str, nn.Module]:
        """Return the networks of the MLP; none at node level."""
        return {} if self.level == "node" else super().networks(settings, shape)

    def train(self, fit: Fit[MLPSettings]) -> Tensor:
        """Train the MLP and add the votes; at node level, release labels instead."""
        if self.level == "node":
            return self._release(fit)
        prior = torch.log_softmax(super().train(fit), dim=-1)
        with fit.timed("aggregate"):
            votes = [
                self._votes(fit.graph, _training_labels(fit.graph, mask)).to(prior)
                for mask in fit.splits.train
            ]
        return prior + math.log(self.odds) * torch.stack(votes)

    def _release(self, fit: Fit[MLPSettings]) -> Tensor:
        """Release a class for every row, with or without a record.

        Relation ``add-remove`` or ``replace``: a record is one label, and its response costs
        ``epsilon`` at delta 0 for each repeat (privacy page, section 5).
        """
        graph, session = fit.graph, fit.session
        responds = self._responding(graph, fit.repeats)

        def run(repeat: int, key: NoiseKey) -> dict[str, Tensor]:
            labels = randomised_labels(
                _training_labels(graph, fit.splits.train[repeat]),
                responds[repeat],
                self._response(self.num_classes_),
                key=key.derive("labels"),
                noise=self.noise,
                name=f"labels of repeat {repeat + 1}",
            )
            return {"labels": labels}

        with fit.timed("aggregate"):
            released = [
                session.draw(f"labels-{repeat}", partial(run, repeat, key), events=(EVENT,))
                for repeat, key in enumerate(session.options.keys)
            ]
            scores = [self._scores_of(graph, one["labels"]) for one in released]
        kept = (released[0]["labels"],)
        self.releases_.add(graph, session.charge, kept, has_hop_zero=False)
        return torch.stack(scores)

    def _responding(self, graph: Graph, repeats: int) -> NDArray[np.bool_]:
        """Return the rows with a response in each repeat: training nodes by hash, or all rows."""
        if is_hash_split(graph, seed=self.seed):
            return public_training(graph, repeats=repeats, split=self.split, seed=self.seed)
        return np.ones((repeats, graph.num_nodes), dtype=np.bool_)

    def _scores_of(self, graph: Graph, responses: Tensor) -> Tensor:
        """Return the votes of every node's own neighbours, as log-odds.

        A response is k with probability ``keep`` if the neighbour has class k, and with probability
        ``other`` if not. The neighbour has the node's class with ``odds`` against any other given
        class. The log-odds of one response fall with the randomness of the response, and equal
        those of a label if it has none.
        """
        response = self._response(self.num_classes_)
        alike = self.odds / (self.odds + self.num_classes_ - 1)
        unlike = (1 - alike) / (self.num_classes_ - 1)
        certainty = response.keep - response.other
        same, different = (response.other + share * certainty for share in (alike, unlike))
        return math.log(same / different) * self._votes(graph, responses.numpy())

    def _votes(self, graph: Graph, labels: NDArray[np.int64]) -> Tensor:
        """Return the number of each node's neighbours per class; negative labels do not vote."""
        ballots = torch.zeros(graph.num_nodes, self.num_classes_)
        voters = torch.from_numpy(np.flatnonzero(labels >= 0))
        ballots[voters, torch.from_numpy(labels[labels >= 0])] = 1.0
        return exact_sums(graph, ballots)

    def importance_inputs(self, graph: Graph) -> NoReturn:
        """Refuse: a vote reads no features, and its neighbours are all there is."""
        raise InputError("`importance` must be asked of a method that reads features. Got vote.")

    def class_scores(self, graph: Graph | None) -> Tensor:
        """Return class scores, each for the node's own person, from the given graph's lists."""
        if graph is None:
            raise InputError("A vote keeps no lists: give the graph whose nodes to predict.")
        self.check_edges(graph)
        if self.level == "node":
            return self._released_scores(graph)
        graph = self._split_as_fitted(graph, is_made=self._made_split)
        if not graph.train_mask.any():
            raise InputError("`graph` must have training labels, which vote. Got none.")
        if self.level == "edge":
            # Free, because each prediction is for the node's own person; recorded nevertheless.
            Ledger(self.ledger).check_free(
                People.of(graph),
                level="none",
                purpose=f"{self.method} predict",
                curator_only=self.reason.strip() or "answers for their own people",
            )
        prior = torch.log_softmax(super().class_scores(graph), dim=-1)
        votes = self._votes(graph, _training_labels(graph, graph.train_mask)).to(prior)
        return prior + math.log(self.odds) * votes

    def _released_scores(self, graph: Graph) -> Tensor:
        released = self.releases_.find(graph, Ledger(self.ledger))
        if released is None:
            raise InputError(
                "`graph` must be the one whose labels were released. Got another: fit on it, which "
                "is charged; there is nothing to learn from the first one."
            )
        (responses,) = released.hops
        device = choose_device(self.device)
        return self._scores_of(graph, responses).to(device)

    def scores_with(self, graph: Graph | None, own: str) -> Tensor:
        """Return class scores; a vote always reads the node's own neighbours."""
        if own != "record":
            raise InputError(f"`own` must be record for vote, which reads lists. Got {own!r}.")
        return self.class_scores(graph)

    def public_facts(self, graph: Graph, *args: Any) -> tuple[tuple[str, str], ...]:
        """Return the facts assumed public; at node level with the source of the roles."""
        facts = super().public_facts(graph, *args)
        if self.level != "node":
            return facts
        # No sampling rate or number of steps depends on the number of training nodes.
        kept = [fact for fact in facts if fact[0] != texts.NUM_TRAIN]
        origin = "a public hash of (seed, id)"
        if not is_hash_split(graph, seed=self.seed):
            origin = "given with the records: those who do not train answer at random"
        return (*kept, ("where roles come from", origin))

    def card_facts(self) -> ReleaseFacts:
        """Return the card's facts about NeighborVote."""
        steps = ["preparation", "own neighbours"]
        if self.level != "node":
            steps = self.steps_taken(*steps, "training", "selection")
        return ReleaseFacts(
            method="NeighborVote",
            messages=SENT.get(self.level, SENT["edge"]),
            steps=steps,
            own="record",
        )


def _training_labels(graph: Graph, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the labels of the training nodes, and -1 for the others."""
    labels: NDArray[np.int64] = np.where(mask, graph.labels, -1)
    return labels
