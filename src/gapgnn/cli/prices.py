"""What a charge would cost, what it would leave, and why an answer of a saved model has no price.

A price is computed before anything is charged, and shown to whoever is going to pay it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapgnn.cli.main import in_options
from gapgnn.errors import NotAgreedError, PrivacyError

if TYPE_CHECKING:
    from gapgnn.graph import Graph
    from gapgnn.methods import NodeClassifier
    from gapgnn.privacy import Guarantee
    from gapgnn.privacy.ledger import Budget, Ledger, People


@dataclass(frozen=True)
class Afterwards:
    """The budgets of some people before and after a charge.

    Attributes:
        budgets: each budget now, and after the charge; the same twice where it would be refused.
        error: with which the ledger would refuse the charge; None if it would not.
    """

    budgets: tuple[tuple[Budget, Budget | None], ...] = ()
    error: PrivacyError | None = None

    @property
    def refusal(self) -> str:
        """Why the ledger would refuse the charge; empty if it would not."""
        return "" if self.error is None else in_options(str(self.error), ["--population"])

    @property
    def lines(self) -> list[str]:
        """A line for each budget: what is left, and what would be left."""
        return [now.left_of(after) for now, after in self.budgets]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the budgets as plain values; without a charge there is no amount after it."""
        return [
            {
                "population": now.population,
                "level": now.level,
                "granted_epsilon": now.granted_epsilon,
                "spent_epsilon": now.spent_epsilon,
                "left_epsilon": now.left_epsilon,
                "left_delta": now.left_delta,
                "left_epsilon_after": None if after is None else after.left_epsilon,
                "left_delta_after": None if after is None else after.left_delta,
            }
            for now, after in self.budgets
        ]


def afterwards(ledger: Ledger, people: People, price: Guarantee, *, count: int = 1) -> Afterwards:
    """Return each budget, now and after the charge; or now, and why the charge is refused.

    Args:
        ledger: that would be charged.
        people: whom the release reads.
        price: of one release.
        count: how many of them.
    """
    if not price.events:
        return Afterwards()
    asked = (price.epsilon or 0.0, price.delta, [event.to_dict() for event in price.events])
    try:
        found = ledger.budgets_after(
            people, level=price.level, relation=price.relation, releases=[asked] * count
        )
    except PrivacyError as error:
        left = [one for one in ledger.budgets_of(people) if one.level == price.level]
        return Afterwards(tuple((one, None) for one in left), error)
    return Afterwards(tuple(found))


@dataclass(frozen=True)
class Quote:
    """The price of an answer of a saved model.

    Attributes:
        model: that answers.
        graph: to answer for; None is the graph of training.
        new_people: whether the answers are for people who were not in training.
        price: what is charged; None if the answer is free.
        why_free: the reason; empty where something is charged.
    """

    model: Any
    graph: Graph | None
    new_people: bool
    price: Guarantee | None
    why_free: str

    @classmethod
    def of(
        cls, model: NodeClassifier, graph: Graph | None, *, own: str | None, new_people: bool
    ) -> Quote:
        """Return the price of an answer; nothing is charged or released.

        Args:
            model: that answers.
            graph: to answer for; None is the graph of training.
            own: what a prediction reads of the node's own record.
            new_people: whether the answers are for people who were not in training.
        """
        from gapgnn.methods import EdgeReader

        price = None
        if graph is not None and isinstance(model, EdgeReader):
            price = model.prediction_guarantee(graph, own=own, new_people=new_people)
        if price is not None and price.events:
            return cls(model, graph, new_people, price, "")
        why = _why_free(model, graph, own=own, new_people=new_people)
        return cls(model, graph, new_people, None, model.card_.wording.fill(why))

    @property
    def charged(self) -> str:
        """The price and what it is for, in the words of the model's card."""
        from gapgnn.privacy.card import charged_for

        assert self.price is not None
        card, price = self.model.card_, self.price
        said: str = charged_for(
            price.epsilon or 0.0,
            price.delta,
            price.relation,
            edge_types=card.edge_types,
            protects=card.protects,
        )
        return str(card.wording.fill(said))

    def to_dict(self) -> dict[str, Any]:
        """Return the price as plain values; of a free answer epsilon and delta are 0."""
        price = self.price
        return {
            "epsilon": 0.0 if price is None else price.epsilon,
            "delta": 0.0 if price is None else price.delta,
            "relation": None if price is None else price.relation.name,
        }

    @property
    def what(self) -> str:
        """What is charged."""
        if not self.new_people:
            return "this graph was not released before, and is"
        words = "the edges of new {entities} were not released before, and are"
        return str(self.model.card_.wording.fill(words))

    @property
    def ledger(self) -> Ledger:
        """The ledger that would be charged."""
        from gapgnn.privacy.ledger import Ledger

        return Ledger(self.model.ledger)

    @property
    def people(self) -> People | None:
        """Whom the answer reads; None where nothing but the model is read."""
        from gapgnn.methods import EdgeReader
        from gapgnn.privacy.ledger import People

        if self.graph is None:
            return None
        if self.price is not None and isinstance(self.model, EdgeReader):
            return self.model.people_charged(self.graph, new_people=self.new_people)
        return People.of(self.graph)

    def afterwards(self) -> Afterwards:
        """Return the budgets now and after the charge; of a free answer, the budgets now."""
        people = self.people
        if people is None:
            return Afterwards()
        if self.price is None:
            left = self.ledger.budgets_of(people)
            level = self.model.level
            return Afterwards(tuple((one, None) for one in left if one.level == level))
        return afterwards(self.ledger, people, self.price)

    @property
    def epsilon_before(self) -> float:
        """The composed epsilon of all releases of the model as they are."""
        return self.model.card_.composed_epsilon or 0.0

    @property
    def epsilon_after(self) -> float:
        """The composed epsilon of all releases of the model with this one."""
        if self.price is None:
            return self.epsilon_before
        composed: float = self.model.composed_epsilon(self.price)
        return composed

    def check_agreed(self, *, charge: bool, at_most: float | None) -> None:
        """Refuse a price that the caller has not agreed to pay.

        Args:
            charge: whether any price is agreed to.
            at_most: the largest epsilon that is agreed to; None is no such number.
        """
        refusal = self.disagreement(charge=charge, at_most=at_most)
        if not refusal:
            return
        # What the ledger refuses need not be agreed to first.
        raise self.afterwards().error or NotAgreedError(refusal)

    def disagreement(self, *, charge: bool, at_most: float | None) -> str:
        """Return why the price may not be charged: what the caller agreed to is less; or nothing.

        Args:
            charge: whether any price is agreed to.
            at_most: the largest epsilon that is agreed to; None is no such number.
        """
        from gapgnn.privacy.card import rounded_up

        if self.price is None or (charge and at_most is None):
            return ""
        epsilon = self.price.epsilon or 0.0
        if at_most is not None:
            if epsilon <= at_most:
                return ""
            return (
                f"`--max-epsilon` must be at least {rounded_up(epsilon)}, the price of this "
                f"answer. Got {at_most:g}; nothing was charged."
            )
        left = [f"{line}." for line in self.afterwards().lines] or ["No budget limits it."]
        return (
            f"{self.what} charged {self.charged}. {' '.join(left)} Agree with `--charge`, or with "
            "`--max-epsilon E` to at most E; nothing was charged."
        )


def _why_free(
    model: NodeClassifier, graph: Graph | None, *, own: str | None, new_people: bool
) -> str:
    """Return why an answer has no price, with placeholders for people and edges."""
    from gapgnn.methods import EdgeReader
    from gapgnn.privacy.ledger import Ledger

    if model.level == "none":
        return "level none promises nothing"
    if model.reads_lists:
        return "each answer reads the {entity}'s own neighbours, and is for that {entity} alone"
    if not isinstance(model, EdgeReader) or (model.card_.edges_unread and own != "record"):
        return "this model reads no edges to predict"
    if graph is None:
        return "the rows that were released in training answer"
    if new_people and own == "record":
        return (
            "each answer reads the new {entity}'s own record, and of others only rows that were "
            "released in training"
        )
    if new_people:
        return "the edges of these new {entities} were released before"
    if model.releases_.known(graph, Ledger(model.ledger)) is None:
        return "nothing is released"
    if model.releases_.is_training(graph):
        return "this is the graph of training, whose rows were released"
    return "this graph was released before, for an earlier answer"


def left_lines(ledger: Ledger, people: People, level: str) -> Sequence[str]:
    """Return one line for each budget of these people at a level; none without one."""
    return [one.left_of() for one in ledger.budgets_of(people) if one.level == level]
