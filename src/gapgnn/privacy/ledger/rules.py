"""Rules of budgets: populations, relations and levels.

The rules (privacy page, section 6):

- *People.* A release is charged to every population of its namespace with a member among the ids it
  reads, or to none of them. Ids without a population are enrolled in the charged population with
  the largest overlap, one with a budget first, so that every record read is covered by a budget. If
  no population is charged, they become a new population.
- *Composition.* Fixed when a budget is granted (:mod:`gapgnn.privacy.ledger.filters`).
- *Relation.* A budget is stated under one neighbouring relation, and a charge under another one is
  refused. Charges made before the grant count under the budget's relation if it covers theirs:
  edges cover arcs, and more links of a person cover fewer.
- *Level.* Charges of a population without any grant are recorded but not limited, unless the ledger
  requires a grant. Once a budget is granted at one level, the other level is closed until it has a
  budget of its own: otherwise a spent edge budget could be circumvented at node level, and a node
  budget by a release that treats features as public.
- *Time.* A budget may end on a day; after it nothing is charged. The time is that of the clock, but
  never before the last row of the ledger.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import (
    BudgetExceededError,
    InputError,
    NotGrantedError,
    PrivacyError,
    check_choice,
)
from gapgnn.privacy import RELATIONS_OF_LEVEL, Relation, RelationLike, parse_relation, strictest
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.chain import ID_SPELLING, DamageError, chain_time, secret_key, setting
from gapgnn.privacy.ledger.filters import Filter, Spend
from gapgnn.privacy.ledger.people import (
    REMEMBERED,
    Hashes,
    Members,
    People,
    among,
    distinct,
    respelled,
)

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.store import Connection

# Populations, each with the mask of the people read who are members.
Touched = dict[int, NDArray[np.bool_]]
# The named relations of each level that has a price.
RELATIONS = {level: RELATIONS_OF_LEVEL[level] for level in ("edge", "node")}
# Share of ids in common with a population of another namespace from which on a warning is given.
LARGE_OVERLAP = 0.5


class BudgetEndedError(BudgetExceededError):
    """A budget whose last day is over."""


@dataclass(frozen=True)
class Budget:
    """The granted, spent and remaining amounts of one population at one level.

    Without a grant, the granted and remaining amounts are None, and the spent amount is the sum of
    the charges. ``relation`` is the one the amounts are stated under: the grant's, or else the
    strictest one charged. ``relations`` are those charged.
    """

    population: str
    namespace: str
    people: int
    level: str
    relation: str
    relations: tuple[str, ...]
    composition: str
    until: str | None
    granted_epsilon: float | None
    granted_delta: float | None
    spent_epsilon: float
    spent_delta: float
    left_epsilon: float | None
    left_delta: float | None
    charges: int

    def left_of(self, after: Budget | None = None) -> str:
        """Say what is left, never more than it is, and what would be after some charges."""
        # Of an untouched budget all is left, also where a rule's own unit is rounded.
        rest = self.left_epsilon if self.charges else self.granted_epsilon
        left = (
            f"{self.population} has epsilon {_down(rest)} of "
            f"{self.granted_epsilon or 0.0:g} left, delta {self.left_delta or 0.0:.3g}"
        )
        if after is None:
            return left
        at = "" if after.left_delta == self.left_delta else f", delta {after.left_delta or 0.0:.3g}"
        return f"{left}; after this, epsilon {_down(after.left_epsilon)}{at}"


def _down(left: float | None) -> str:
    return f"{math.floor(1e4 * (left or 0.0)) / 1e4:g}"


def check_stated(level: str, relation: RelationLike) -> Relation:
    """Return the relation; refuse one that is not of a level with a price."""
    check_choice("level", level, RELATIONS)
    return parse_relation(relation, level)


def check_population(name: object) -> str:
    """Refuse a name that looks like an option or would break a table."""
    if not (isinstance(name, str) and re.fullmatch(r"[\w][\w ./@+-]{0,99}", name)):
        raise InputError(
            "a population must have a name of letters, digits and . _ / @ + -, at most 100. "
            f"Got {name!r}."
        )
    return name


class LedgerTransaction:
    """The ledger's content inside one database transaction."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self.members = Members(db)
        self._respelled: tuple[People, tuple[Hashes, Hashes]] | None = None
        self._hashed: tuple[People, Hashes] | None = None

    def hashes(self, people: People) -> Hashes:
        """Return the hashes of people under this ledger's key, computed once in a transaction."""
        if self._hashed is None or self._hashed[0] is not people:
            self._hashed = people, REMEMBERED.of(people.ids, secret_key(self.db))
        return self._hashed[1]

    def touched(self, people: People, hashes: Hashes) -> Touched:
        """Return the populations that a release on these people reads, with its members."""
        found: Touched = {}
        for (population,) in self.db.execute(
            "SELECT id FROM populations WHERE namespace = ?", (people.namespace,)
        ).fetchall():
            common = self._known(population, people, hashes)
            if common.any():
                found[population] = common
        return found

    def _known(self, population: int, people: People, hashes: Hashes) -> NDArray[np.bool_]:
        """Return the mask of the members, also under the spelling of version 3."""
        common = self.members.known(population, hashes)
        before, now = self._earlier(people)
        if len(before) and (found := self.members.known(population, before)).any():
            common |= among(hashes, distinct(now[found]))
        return common

    def _earlier(self, people: People) -> tuple[Hashes, Hashes]:
        """Return the hashes of these people in a ledger of version 3."""
        if setting(self.db, ID_SPELLING) == "normalised":
            empty = np.empty((0, 2), dtype=np.uint64)
            return empty, empty
        if self._respelled is None or self._respelled[0] is not people:
            self._respelled = people, respelled(people.ids, secret_key(self.db))
        return self._respelled[1]

    def _respell(self, population: int, people: People) -> None:
        """Store today's hash of the members who were read, which does not depend on spelling."""
        before, now = self._earlier(people)
        if len(before) and (found := self.members.known(population, before)).any():
            self.members.replace(population, before[found], distinct(now[found]))

    def overlaps(self, people: People, hashes: Hashes) -> list[tuple[str, str, int]]:
        """Return populations of other namespaces that share most of their ids with these people.

        Registered data sets are left out: their ids are positions, as in many tables.

        Returns:
            Name, namespace and the number of ids in common of each.
        """
        if people.namespace.startswith("dataset "):
            return []
        found = []
        for population, name, namespace in self.db.execute(
            "SELECT id, name, namespace FROM populations WHERE namespace != ? "
            "AND substr(namespace, 1, 8) != 'dataset ' ORDER BY id",
            (people.namespace,),
        ).fetchall():
            common = int(self._known(population, people, hashes).sum())
            smaller = min(len(hashes), self.members.count(population))
            if common and common >= LARGE_OVERLAP * smaller:
                found.append((str(name), str(namespace), common))
        return found

    def add_population(self, name: str, namespace: str, moment: str) -> int:
        """Add a population; a number is appended to a name in use."""
        taken = {row[0] for row in self.db.execute("SELECT name FROM populations")}
        free, number = name, 2
        while free in taken:
            free, number = f"{name} {number}", number + 1
        self.db.execute(
            "INSERT INTO populations (name, namespace, made_at) VALUES (?, ?, ?)",
            (free, namespace, moment),
        )
        (made,) = self.db.execute("SELECT id FROM populations WHERE name = ?", (free,)).fetchone()
        return int(made)

    def enrol(self, touched: Touched, people: People, hashes: Hashes, level: str) -> None:
        """Enrol people without a population in the first of those that are charged."""
        known = np.zeros(len(hashes), dtype=np.bool_)
        for population, common in touched.items():
            known |= common
            self._respell(population, people)
            self.db.execute(
                "INSERT INTO fingerprints VALUES (?, ?) ON CONFLICT DO NOTHING",
                (population, people.fingerprint),
            )
        self.members.join(self.by_weight(touched, level)[0], hashes[~known])

    def by_weight(self, touched: Touched, level: str) -> list[int]:
        """Return populations in order of precedence; new people are enrolled in the first.

        Those with a budget come first, then those with the largest overlap with the people read.
        """
        weights = {
            population: (self.granted(population, level) is None, -int(common.sum()), population)
            for population, common in touched.items()
        }
        return sorted(touched, key=weights.__getitem__)

    def rename(self, population: int, name: str) -> None:
        """Give a population another name."""
        self.db.execute("UPDATE populations SET name = ? WHERE id = ?", (name, population))

    def is_free(self, population: int) -> bool:
        """Return whether a population has no budget at any level."""
        return all(self.granted(population, level) is None for level in RELATIONS)

    def copy_charges(self, population: int, other: int) -> None:
        """Copy the charges of another population that shares a person with this one.

        Its releases may have read the shared person, so they count for both.
        """
        columns = (
            "id, fingerprint, level, relation, epsilon, delta, count, purpose, events, charged_at, "
            "completed_at, who, host, command, reason"
        )
        self.db.execute(
            f"INSERT INTO charges (population, {columns}) "
            f"SELECT CAST(? AS BIGINT), {columns} FROM charges WHERE population = ? ORDER BY seq "
            "ON CONFLICT DO NOTHING",
            (population, other),
        )

    def check_unpriced(
        self, touched: Touched, *, level: str, purpose: str, is_curator: bool
    ) -> list[tuple[str, str]]:
        """Refuse access without a charge to people with a budget, unless the curator keeps it.

        Returns the levels and relations of the budgets for which the access is logged.
        """
        if level != "none":
            for population in touched:
                self._open_budget(population, level)
            return []
        needs_grant = setting(self.db, "require-grant") == "on"
        budgets = [
            (self.name(population), limited, granted[0].relation.name)
            for population in touched
            for limited in RELATIONS
            if (granted := self.granted(population, limited)) is not None
        ]
        if (budgets or needs_grant) and not is_curator:
            why = (
                f"the people of {budgets[0][0]!r} have a privacy budget"
                if budgets
                else "this ledger requires a privacy budget"
            )
            raise PrivacyError(
                f"{why}, and `{purpose}` computes from their data without noise, "
                "which no budget can pay. Say `curator_only=REASON` if it stays with "
                "you: the access is then written to the ledger."
            )
        return [(limited, relation) for _, limited, relation in budgets]

    def _open_budget(self, population: int, level: str) -> tuple[Filter, str | None] | None:
        """Return the budget of charges at a level; refuse a closed level."""
        granted = self.granted(population, level)
        known = self.name(population)
        if granted is None:
            other = "node" if level == "edge" else "edge"
            if self.granted(population, other) is not None:
                raise NotGrantedError(
                    f"{known} has a budget at {other} level and none at {level} level, so {level} "
                    f"level is closed. Grant one with `gapgnn ledger grant` and `--level {level}`."
                )
            if setting(self.db, "require-grant") == "on":
                raise NotGrantedError(
                    f"{known} has no budget at {level} level, and this ledger requires one. Grant "
                    f"it with `gapgnn ledger grant` and `--level {level}`."
                )
        return granted

    def check_affordable(self, population: int, *, level: str, asked: Sequence[Spend]) -> None:
        """Refuse charges that together exceed their budget."""
        granted, known = self._open_budget(population, level), self.name(population)
        if granted is None:
            return
        budget, until = granted
        if until is not None and chain_time(self.db)[: len(until)] > until:
            raise BudgetEndedError(
                f"The budget of {known} at {level} level ended on {until}; nothing was charged. "
                "Grant a new one with `gapgnn ledger grant`."
            )
        for spend in asked:
            if budget.relation != spend.relation:
                raise PrivacyError(
                    f"The budget of {known} at {level} level is stated under {budget.relation}. "
                    f"Got a charge under {spend.relation}. Use the relation {budget.relation}, or "
                    "grant the budget anew."
                )
        spends = self.spends(population, level)
        if not budget.allows([*spends, *asked]):
            left = budget.left(spends)
            # A remainder from rounding is reported as nothing.
            is_spent = left.epsilon <= budget.amount.epsilon / 10**6
            requested = asked[0].amount.times(asked[0].count)
            for spend in asked[1:]:
                requested = requested.plus(spend.amount.times(spend.count))
            raise BudgetExceededError(
                f"The budget of {known} at {level} level ({budget.relation}, {budget.composition}) "
                f"has {'nothing' if is_spent else left} left. Got a request for "
                f"{requested}; nothing was charged." + self._name_apart(population)
            )

    def _name_apart(self, population: int) -> str:
        """Return the advice for tables whose ids coincide with those of other people."""
        if self.namespace(population) != "default":
            return ""
        return " If your tables are of other people, say so with `population=NAME`."

    def check_grantable(self, population: int, budget: Filter) -> None:
        """Refuse a budget below the spent amount, or whose relation does not cover a charge."""
        used = self._relations(population, budget.level)
        beyond = [one for one in used if not budget.relation.covers(parse_relation(one))]
        if beyond:
            wanted = strictest(map(parse_relation, used))
            raise PrivacyError(
                f"`relation` must be {wanted}: the ledger holds charges under "
                f"{' and '.join(beyond)}, which cannot be counted under a relation that does not "
                f"cover them. Got {budget.relation.name!r}."
            )
        spends = self.spends(population, budget.level)
        if not budget.allows(spends):
            raise PrivacyError(
                f"A budget at {budget.level} level cannot be below what is spent: "
                f"{budget.spent(spends)} under {budget.relation} by {budget.composition}. Got "
                f"{budget.amount}."
            )

    def budget(self, population: int, level: str, *, more: Sequence[Spend] = ()) -> Budget:
        """Return the state of one budget, or as it would be after more charges."""
        granted = self.granted(population, level)
        used = self._relations(population, level)
        spends = [*self.spends(population, level), *more]
        if granted:
            rule, until = granted
            left = rule.left(spends)
        else:
            relation = strictest(map(parse_relation, used))
            nothing = Amount(Fraction(0), Fraction(0))
            rule, until, left = Filter("sum", level, relation, nothing), None, None
        spent = rule.spent(spends)
        (charges,) = self.db.execute(
            "SELECT CAST(coalesce(sum(count), 0) AS BIGINT) FROM charges "
            "WHERE population = ? AND level = ?",
            (population, level),
        ).fetchone()
        return Budget(
            population=self.name(population),
            namespace=self.namespace(population),
            people=self.members.count(population),
            level=level,
            relation=rule.relation.name,
            relations=used,
            composition=rule.composition,
            until=until,
            granted_epsilon=float(rule.amount.epsilon) if granted else None,
            granted_delta=float(rule.amount.delta) if granted else None,
            spent_epsilon=float(spent.epsilon),
            spent_delta=float(spent.delta),
            left_epsilon=float(left.epsilon) if left else None,
            left_delta=float(left.delta) if left else None,
            charges=charges + sum(spend.count for spend in more),
        )

    def named(self, name: str) -> int | None:
        """Return the population of a name."""
        row = self.db.execute("SELECT id FROM populations WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def name(self, population: int) -> str:
        """Return the name of a population."""
        row = self.db.execute("SELECT name FROM populations WHERE id = ?", (population,)).fetchone()
        return str(row[0])

    def namespace(self, population: int) -> str:
        """Return the namespace of a population's ids."""
        wanted = "SELECT namespace FROM populations WHERE id = ?"
        return str(self.db.execute(wanted, (population,)).fetchone()[0])

    def granted(self, population: int, level: str) -> tuple[Filter, str | None] | None:
        """Return the last grant of a population at one level, and the day it ends."""
        row = self.db.execute(
            "SELECT composition, relation, epsilon, delta, renyi_order, until FROM grants "
            "WHERE population = ? AND level = ? ORDER BY seq DESC LIMIT 1",
            (population, level),
        ).fetchone()
        if row is None:
            return None
        amount = self._amount(row[2], row[3])
        return Filter(row[0], level, parse_relation(row[1]), amount, float(row[4] or 0.0)), row[5]

    def spends(self, population: int, level: str) -> list[Spend]:
        """Return what was charged to a population at one level."""
        rows = self.db.execute(
            "SELECT relation, epsilon, delta, CAST(sum(count) AS BIGINT), events FROM charges "
            "WHERE population = ? AND level = ? GROUP BY relation, epsilon, delta, events",
            (population, level),
        )
        return [
            Spend(parse_relation(used), self._amount(epsilon, delta), count, events)
            for used, epsilon, delta, count, events in rows
        ]

    def _relations(self, population: int, level: str) -> tuple[str, ...]:
        rows = self.db.execute(
            "SELECT DISTINCT relation FROM charges WHERE population = ? AND level = ?",
            (population, level),
        )
        return tuple(sorted(row[0] for row in rows))

    def _amount(self, epsilon: str, delta: str) -> Amount:
        try:
            return Amount(Fraction(epsilon), Fraction(delta))
        except (TypeError, ValueError) as error:
            raise DamageError(str(error)) from None
