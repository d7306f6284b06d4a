"""The durable budget of a data set (privacy page, section 6).

A budget belongs to a data set's fingerprint at one level. A method charges it *before* it computes
a release, so a kill at any moment leaves at worst a charge without a release. What fits a budget is
decided in :mod:`gapgnn.privacy.ledger.rules`, why the file survives a kill is told in
:mod:`gapgnn.privacy.ledger.file`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gapgnn.errors import InputError, PrivacyError, check_integer, check_number
from gapgnn.privacy.ledger.file import create, damaged, default_path, is_there, transaction
from gapgnn.privacy.ledger.rules import RELATIONS, Amount, Books, Budget, check_key
from gapgnn.rng import system_entropy

__all__ = ["RELATIONS", "Budget", "Charge", "Ledger"]


@dataclass(frozen=True)
class Charge:
    """One recorded spend: ``count`` releases of ``epsilon`` and ``delta`` each.

    ``others`` are the further data sets charged in the same step. ``budget`` is the state right
    after the charge; it is None where a charge is read back later.
    """

    id: str
    fingerprint: str
    level: str
    relation: str
    epsilon: float
    delta: float
    count: int
    purpose: str
    events: tuple[Mapping[str, Any], ...]
    charged_at: str
    completed_at: str | None = None
    others: tuple[str, ...] = ()
    budget: Budget | None = None


class Ledger:
    """The ledger in one file; safe to share between processes, to fork and to pickle.

    Args:
        path: the file; by default ``$GAPGNN_LEDGER``, else ``gapgnn/ledger.sqlite`` in the user's
            data folder. It is created, for its owner only, when something is first written.

    >>> import tempfile
    >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "ledger.sqlite")
    >>> data = "5f" * 32
    >>> budget = ledger.grant(data, level="edge", relation="undirected", epsilon=1, delta=1e-5)
    >>> spend = dict(level="edge", relation="undirected", epsilon=0.6, delta=1e-6)
    >>> charge = ledger.charge(data, **spend, events=[{"kind": "gaussian"}], purpose="fit")
    >>> charge.budget.left_epsilon
    0.4
    >>> ledger.charge(data, **spend, events=[], purpose="fit")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gapgnn.errors.BudgetExceededError: The budget of 5f... has epsilon 0.4 and ... left. ...
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path).expanduser()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def grant(
        self,
        fingerprint: str,
        *,
        level: str,
        relation: str,
        epsilon: float,
        delta: float,
        name: str = "",
    ) -> Budget:
        """Set or replace the budget of a data set at one level; never below what is spent."""
        check_key(fingerprint, level, relation)
        check_number("epsilon", epsilon, above=0)
        amount = Amount.of(epsilon, delta)
        create(self.path)
        with transaction(self.path, writing=True) as db:
            books = Books(db, self.path)
            books.check_grantable(fingerprint, level=level, relation=relation, amount=amount)
            books.remember_name(fingerprint, name)
            db.execute(
                "INSERT INTO grants (fingerprint, level, relation, epsilon, delta, granted_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (fingerprint, level, relation, repr(float(epsilon)), repr(float(delta)), _now()),
            )
            budget = books.budget(fingerprint, level)
        return budget

    def charge(
        self,
        fingerprint: str,
        *,
        level: str,
        relation: str,
        epsilon: float,
        delta: float,
        events: Sequence[Mapping[str, Any]],
        purpose: str,
        name: str = "",
        others: Sequence[str] = (),
        count: int = 1,
    ) -> Charge:
        """Spend before releasing: when this returns, the charge is on disk for good.

        Over budget, or under another relation or level than was granted, nothing is recorded.

        Args:
            fingerprint: the data set whose private data the release reads.
            level: ``edge`` or ``node``.
            relation: the neighbouring relation under which epsilon and delta are stated.
            epsilon: of one release.
            delta: of one release.
            events: what one release consists of, as plain dictionaries.
            purpose: what the release is for, for people.
            name: what people call the data set.
            others: further data sets that share nodes with this one. Sequential composition charges
                them the same, and either all are charged or none (privacy page, section 2).
            count: number of independent releases; each is charged.
        """
        targets = tuple(dict.fromkeys((fingerprint, *others)))
        for target in targets:
            check_key(target, level, relation)
        check_integer("count", count, at_least=1)
        asked = Amount.of(epsilon, delta).times(count)
        try:
            described = json.dumps([dict(event) for event in events], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"`events` must be plain dictionaries. Got {error}.") from None
        charge_id, moment = system_entropy(12).hex(), _now()
        price = (repr(float(epsilon)), repr(float(delta)), int(count))
        create(self.path)
        with transaction(self.path, writing=True) as db:
            books = Books(db, self.path)
            books.remember_name(fingerprint, name)
            for target in targets:
                books.check_affordable(target, level=level, relation=relation, asked=asked)
            db.executemany(
                "INSERT INTO charges (id, fingerprint, level, relation, epsilon, delta, count, "
                "purpose, events, charged_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (charge_id, target, level, relation, *price, purpose, described, moment)
                    for target in targets
                ],
            )
            budget = books.budget(fingerprint, level)
        return Charge(
            id=charge_id,
            fingerprint=fingerprint,
            level=level,
            relation=relation,
            epsilon=float(epsilon),
            delta=float(delta),
            count=int(count),
            purpose=purpose,
            events=tuple(json.loads(described)),
            charged_at=moment,
            others=targets[1:],
            budget=budget,
        )

    def claim(self, charge_id: str, previous: str | None, token: str) -> None:
        """Take over the use of a charge, if ``previous`` is its last claim: compare and swap.

        A charge pays for each release once, however many copies of an unfinished run there are.
        Whoever draws on it claims it with a fresh token and must know the one before, so of two
        that know the same one only the first goes on. Durable when this returns. The table came
        with version 2 of the file (:mod:`gapgnn.privacy.ledger.file`).

        Args:
            charge_id: the charge.
            previous: the last claim; None if there must be none yet.
            token: the new claim, which was never used before.

        >>> import tempfile
        >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "ledger.sqlite")
        >>> paid = ledger.charge("5f" * 32, level="edge", relation="undirected", epsilon=1,
        ...                      delta=0, events=[], purpose="fit")
        >>> ledger.claim(paid.id, None, "one")
        >>> ledger.claim(paid.id, "one", "two")
        >>> ledger.claim(paid.id, "one", "three")
        Traceback (most recent call last):
        ...
        gapgnn.errors.PrivacyError: `previous` must be the last claim of the charge. Got another ...
        """
        self._check_charge(charge_id)
        with transaction(self.path, writing=True) as db:
            if _last_claim(db, charge_id) != previous:
                raise PrivacyError(
                    "`previous` must be the last claim of the charge. Got another one: somebody "
                    "else draws on it."
                )
            db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (charge_id, token, _now()))

    def claimed(self, charge_id: str) -> str | None:
        """Return the last claim of a charge, None if nobody ever claimed it."""
        self._check_charge(charge_id)
        with transaction(self.path, writing=False) as db:
            return _last_claim(db, charge_id)

    def _check_charge(self, charge_id: str) -> None:
        found = 0
        if is_there(self.path):
            with transaction(self.path, writing=False) as db:
                (found,) = db.execute(
                    "SELECT count(*) FROM charges WHERE id = ?", (charge_id,)
                ).fetchone()
        if not found:
            raise InputError(f"`charge_id` must name a charge of {self.path}. Got {charge_id!r}.")

    def complete(self, charge_id: str) -> None:
        """Note that the release of a charge was made. For information: it was spent before."""
        self._check_charge(charge_id)
        with transaction(self.path, writing=True) as db:
            db.execute(
                "UPDATE charges SET completed_at = coalesce(completed_at, ?) WHERE id = ?",
                (_now(), charge_id),
            )

    def entries(self, fingerprint: str | None = None) -> list[Charge]:
        """Return the charges, oldest first; one that is shared appears once per data set."""
        if not is_there(self.path):
            return []
        with transaction(self.path, writing=False) as db:
            rows = db.execute(
                "SELECT id, fingerprint, level, relation, epsilon, delta, count, purpose, events, "
                "charged_at, completed_at FROM charges ORDER BY seq"
            ).fetchall()
        sharing: dict[str, list[str]] = {}
        for row in rows:
            sharing.setdefault(row[0], []).append(row[1])
        try:
            return [
                Charge(
                    id=row[0],
                    fingerprint=row[1],
                    level=row[2],
                    relation=row[3],
                    epsilon=float(row[4]),
                    delta=float(row[5]),
                    count=row[6],
                    purpose=row[7],
                    events=tuple(json.loads(row[8])),
                    charged_at=row[9],
                    completed_at=row[10],
                    others=tuple(other for other in sharing[row[0]] if other != row[1]),
                )
                for row in rows
                if fingerprint in (None, row[1])
            ]
        except (TypeError, ValueError) as error:
            raise damaged(self.path, error) from None

    def summary(self) -> list[Budget]:
        """Return every budget that was granted or charged, by data set name and level."""
        if not is_there(self.path):
            return []
        with transaction(self.path, writing=False) as db:
            books = Books(db, self.path)
            keys = db.execute(
                "SELECT fingerprint, level FROM grants UNION SELECT fingerprint, level FROM charges"
            ).fetchall()
            budgets = [books.budget(fingerprint, level) for fingerprint, level in keys]
        return sorted(budgets, key=lambda row: (row.name, row.fingerprint, row.level))


def _last_claim(db: sqlite3.Connection, charge_id: str) -> str | None:
    tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'claims'"
    if not db.execute(tables).fetchone()[0]:
        return None  # a file of version 1 that nobody has written to since
    row = db.execute("SELECT token FROM claims WHERE charge = ?", (charge_id,)).fetchone()
    return None if row is None else str(row[0])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
