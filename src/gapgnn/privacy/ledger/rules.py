"""What fits a budget: exact amounts, and the rules on relations and levels.

The rules, chosen to be simple and sound (privacy page, section 6):

- *Composition.* Charges add up: the sums of epsilon and of delta. Basic composition holds whatever
  the mechanisms and accountants were. Every charge keeps its events, so that a joint accounting of
  all of them, which is tighter, can be made later; the budget test does not use it.
- *Exact sums.* An amount is the decimal number that was written (0.1 is one tenth), summed as a
  fraction: ten charges of 0.1 fill a budget of 1, and no rounding lets an eleventh in.
- *Relation.* A budget is stated under one neighbouring relation, and a charge under another one is
  refused. Charges made before there was a budget count as they are under the same relation, and by
  group privacy under the stricter one: an undirected edge is two arcs, and a replaced record is one
  removed and one added, so (epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta). The other
  way there is no general rule, and the grant is refused.
- *Level.* A data set without any grant is recorded, not limited. Once a budget is granted at one
  level, the other level is closed until it has a budget of its own: otherwise a spent edge budget
  could be walked around at node level, and a node budget by a release that calls features public.
"""

from __future__ import annotations

import math
import re
import sqlite3
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from gapgnn.errors import BudgetExceededError, InputError, PrivacyError, check_choice, check_number
from gapgnn.privacy import RELATIONS_OF_LEVEL
from gapgnn.privacy.ledger.file import damaged

# The relations of each level that has a price, the stricter one last.
RELATIONS = {level: RELATIONS_OF_LEVEL[level] for level in ("edge", "node")}


@dataclass(frozen=True)
class Budget:
    """What was granted, spent and is left for one data set at one level.

    Without a grant, the granted and left amounts are None. ``relation`` is the one the amounts are
    stated under: the grant's, or else the strictest one charged. ``relations`` are those charged.
    """

    fingerprint: str
    name: str
    level: str
    relation: str
    relations: tuple[str, ...]
    granted_epsilon: float | None
    granted_delta: float | None
    spent_epsilon: float
    spent_delta: float
    left_epsilon: float | None
    left_delta: float | None
    charges: int


class Amount(NamedTuple):
    """An exact epsilon and delta."""

    epsilon: Fraction
    delta: Fraction

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Amount:
        """Take the numbers as they are written in decimal, so that 0.1 is one tenth.

        >>> Amount.of(0.1, 0).times(10) == Amount.of(1, 0)
        True
        """
        return cls(
            Fraction(repr(check_number("epsilon", epsilon, at_least=0))),
            Fraction(repr(check_number("delta", delta, at_least=0, below=1))),
        )

    def plus(self, other: Amount) -> Amount:
        """Return the sum: basic sequential composition."""
        return Amount(self.epsilon + other.epsilon, self.delta + other.delta)

    def minus(self, other: Amount) -> Amount:
        """Return what is left of this after the other."""
        return Amount(self.epsilon - other.epsilon, self.delta - other.delta)

    def times(self, count: int) -> Amount:
        """Return the price of ``count`` releases."""
        return Amount(self.epsilon * count, self.delta * count)

    def doubled(self) -> Amount:
        """Return group privacy of two, rounded up: (2 epsilon, (1 + e^epsilon) delta).

        >>> float(Amount.of(1, 1e-6).doubled().epsilon)
        2.0
        """
        # A delta of 1 promises nothing, so it never needs to be more; e^710 would overflow.
        if self.epsilon >= 700:
            delta = Fraction(1 if self.delta else 0)
        else:
            growth = Fraction(math.exp(float(self.epsilon)) * (1 + 1e-12))
            delta = min(Fraction(1), (1 + growth) * self.delta)
        return Amount(2 * self.epsilon, delta)

    def fits(self, other: Amount) -> bool:
        """Tell whether neither part is more than the other's."""
        return self.epsilon <= other.epsilon and self.delta <= other.delta

    def __str__(self) -> str:
        return f"epsilon {float(self.epsilon):.6g} and delta {float(self.delta):.6g}"


def check_key(fingerprint: object, level: str, relation: str) -> None:
    """Refuse anything that is not a fingerprint, a level and one of the level's relations."""
    if not (isinstance(fingerprint, str) and re.fullmatch("[0-9a-f]{64}", fingerprint)):
        raise InputError(f"`fingerprint` must be 64 hexadecimal digits. Got {fingerprint!r}.")
    check_choice("level", level, RELATIONS)
    check_choice("relation", relation, RELATIONS[level])


class Books:
    """The ledger's content as seen inside one transaction."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self.path = path

    def check_affordable(
        self, fingerprint: str, *, level: str, relation: str, asked: Amount
    ) -> None:
        """Refuse a charge that its budget does not allow."""
        granted = self._granted(fingerprint, level)
        known = self._name(fingerprint) or fingerprint[:12]
        if granted is None:
            other = "node" if level == "edge" else "edge"
            if self._granted(fingerprint, other) is not None:
                raise PrivacyError(
                    f"{known} has a budget at {other} level and none at {level} level, so {level} "
                    f"level is closed. Grant one with `gapgnn ledger grant` and `--level {level}`."
                )
            return
        stated, amount = granted
        if stated != relation:
            raise PrivacyError(
                f"The budget of {known} at {level} level is stated under {stated}. Got a charge "
                f"under {relation}. Use the relation {stated}, or grant the budget anew."
            )
        left = amount.minus(self._spent(fingerprint, level, relation))
        if not asked.fits(left):
            raise BudgetExceededError(
                f"The budget of {known} at {level} level ({relation}) has {left} left. "
                f"Got a request for {asked}; nothing was charged."
            )

    def check_grantable(
        self, fingerprint: str, *, level: str, relation: str, amount: Amount
    ) -> None:
        """Refuse a budget below what is spent, or one under which a charge cannot be counted."""
        strictest = RELATIONS[level][-1]
        if relation != strictest and strictest in self._relations(fingerprint, level):
            raise PrivacyError(
                f"`relation` must be {strictest}: the ledger holds charges under it, which cannot "
                f"be counted under the weaker one. Got {relation!r}."
            )
        spent = self._spent(fingerprint, level, relation)
        if not spent.fits(amount):
            raise PrivacyError(
                f"A budget cannot be below what is spent: {spent} under {relation}. Got {amount}."
            )

    def budget(self, fingerprint: str, level: str) -> Budget:
        """Return the state of one budget that was granted or charged."""
        granted = self._granted(fingerprint, level)
        used = self._relations(fingerprint, level)
        relation = granted[0] if granted else max(used, key=RELATIONS[level].index)
        spent = self._spent(fingerprint, level, relation)
        left = granted[1].minus(spent) if granted else None
        (charges,) = self.db.execute(
            "SELECT coalesce(sum(count), 0) FROM charges WHERE fingerprint = ? AND level = ?",
            (fingerprint, level),
        ).fetchone()
        return Budget(
            fingerprint=fingerprint,
            name=self._name(fingerprint),
            level=level,
            relation=relation,
            relations=used,
            granted_epsilon=float(granted[1].epsilon) if granted else None,
            granted_delta=float(granted[1].delta) if granted else None,
            spent_epsilon=float(spent.epsilon),
            spent_delta=float(spent.delta),
            left_epsilon=float(left.epsilon) if left else None,
            left_delta=float(left.delta) if left else None,
            charges=charges,
        )

    def remember_name(self, fingerprint: str, name: str) -> None:
        """Keep what people call a data set; the last name counts."""
        if name:
            self.db.execute("INSERT OR REPLACE INTO datasets VALUES (?, ?)", (fingerprint, name))

    def _name(self, fingerprint: str) -> str:
        row = self.db.execute(
            "SELECT name FROM datasets WHERE fingerprint = ?", (fingerprint,)
        ).fetchone()
        return "" if row is None else str(row[0])

    def _granted(self, fingerprint: str, level: str) -> tuple[str, Amount] | None:
        row = self.db.execute(
            "SELECT relation, epsilon, delta FROM grants WHERE fingerprint = ? AND level = ? "
            "ORDER BY seq DESC LIMIT 1",
            (fingerprint, level),
        ).fetchone()
        return None if row is None else (row[0], self._amount(row[1], row[2]))

    def _relations(self, fingerprint: str, level: str) -> tuple[str, ...]:
        rows = self.db.execute(
            "SELECT DISTINCT relation FROM charges WHERE fingerprint = ? AND level = ?",
            (fingerprint, level),
        )
        return tuple(sorted(row[0] for row in rows))

    def _spent(self, fingerprint: str, level: str, relation: str) -> Amount:
        """Sum the charges of one budget, stated under ``relation``."""
        total = Amount(Fraction(0), Fraction(0))
        for used, epsilon, delta, count in self.db.execute(
            "SELECT relation, epsilon, delta, sum(count) FROM charges "
            "WHERE fingerprint = ? AND level = ? GROUP BY relation, epsilon, delta",
            (fingerprint, level),
        ):
            amount = self._amount(epsilon, delta)
            total = total.plus((amount if used == relation else amount.doubled()).times(count))
        return total

    def _amount(self, epsilon: str, delta: str) -> Amount:
        try:
            return Amount(Fraction(epsilon), Fraction(delta))
        except (TypeError, ValueError) as error:
            raise damaged(self.path, error) from None
