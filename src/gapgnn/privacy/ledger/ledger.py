"""The durable budget of people (privacy page, section 6).

A budget belongs to a population at one level. A method charges it *before* it computes a release,
so a kill at any moment leaves at worst a charge without a release. Populations are described in
:mod:`gapgnn.privacy.ledger.people`, the rules of budgets in :mod:`gapgnn.privacy.ledger.rules`, the
chain in :mod:`gapgnn.privacy.ledger.chain`, and durability where a ledger is kept:
:mod:`gapgnn.privacy.ledger.sqlite` and :mod:`gapgnn.privacy.ledger.postgres`.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapgnn.errors import (
    InputError,
    PrivacyError,
    UnavailableError,
    check_choice,
    check_integer,
)
from gapgnn.privacy import (
    RelationLike,
    check_delta,
    check_epsilon,
    check_price,
    parse_relation,
)
from gapgnn.privacy.ledger import signing
from gapgnn.privacy.ledger.amounts import Amount
from gapgnn.privacy.ledger.chain import (
    CHANGED_SETTINGS,
    MOVED_TO,
    DamageError,
    broken_links,
    chain_time,
    put_setting,
    secret_key,
    setting,
)
from gapgnn.privacy.ledger.copying import check_empty, copy_ledger
from gapgnn.privacy.ledger.evidence import (
    Entry,
    Removal,
    broken_promises,
    entries_of,
    missing,
    removals,
)
from gapgnn.privacy.ledger.filters import Filter, Spend
from gapgnn.privacy.ledger.notes import Origin, write_note
from gapgnn.privacy.ledger.people import People, pseudonyms
from gapgnn.privacy.ledger.proposals import check_approvable, needs_two, open_proposals, propose
from gapgnn.privacy.ledger.rules import (
    Budget,
    BudgetEndedError,
    LedgerTransaction,
    check_population,
    check_stated,
)
from gapgnn.privacy.ledger.store import (
    Connection,
    LedgerNotice,
    damaged,
    default_place,
    is_address,
    store_of,
    transaction,
)
from gapgnn.rng import system_entropy

SETTINGS = dict.fromkeys(CHANGED_SETTINGS, ("off", "on"))


@dataclass(frozen=True)
class Charge:
    """One recorded spend: ``count`` releases of ``epsilon`` and ``delta`` each.

    ``others`` are the further populations charged in the same step. ``together`` is the epsilon
    that the population's charges up to this one come to under its budget's rule. ``budget`` is the
    state right after the charge; both are None where they do not apply. ``link`` is that of the
    chain: a keyed hash of this charge and everything before it.
    """

    id: str
    population: str
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
    who: str = ""
    host: str = ""
    command: str = ""
    reason: str = ""
    others: tuple[str, ...] = ()
    together: float | None = None
    budget: Budget | None = None
    link: str = ""


@dataclass(frozen=True)
class Grant:
    """One budget as it was granted; of those at one level the last one counts."""

    population: str
    namespace: str
    level: str
    relation: str
    epsilon: float
    delta: float
    composition: str
    renyi_order: float | None
    until: str | None
    granted_at: str
    who: str
    host: str
    reason: str


@dataclass(frozen=True)
class Note:
    """An entry of the chain that is neither a grant nor a charge.

    ``kind`` is ``setting`` (one was changed), ``overlap`` (ids of another namespace were named
    apart), ``ended`` (a charge was refused because the budget's last day is over), ``moved`` (the
    ledger was copied to another place and closed), ``signer`` (a public key was registered),
    ``proposed`` and ``approved`` (by two people, where grants need them) or ``forgotten`` (somebody
    was removed from a saved folder).
    """

    kind: str
    about: str
    noted_at: str
    who: str
    host: str
    command: str


class Ledger:
    """The ledger in one file or on a server; safe to share between processes, to fork and pickle.

    Args:
        path: the file, or the address of a PostgreSQL database (``postgresql://host/database``);
            by default ``$GAPGNN_LEDGER``, else ``gapgnn/ledger.sqlite`` in the user's data folder.
            That last one is made, for its owner only, when something is first written; a ledger
            that is named must be there, or be made by :meth:`init`.

    >>> import tempfile, numpy as np
    >>> ledger = Ledger.init(Path(tempfile.mkdtemp()) / "ledger.sqlite")
    >>> customers = People(np.arange(1000), "5f" * 32)
    >>> budget = ledger.grant("customers", customers, level="edge", relation="undirected",
    ...                       epsilon=1, delta=1e-5, composition="sum")
    >>> spend = dict(level="edge", relation="undirected", epsilon=0.6, delta=1e-6)
    >>> month = People(np.array(["999", "1000"]), "60" * 32)
    >>> charge = ledger.charge(month, **spend, events=[], purpose="fit")
    >>> charge.population, charge.budget.left_epsilon, charge.budget.people
    ('customers', 0.4, 1001)
    >>> ledger.charge(month, **spend, events=[], purpose="fit")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gapgnn.errors.BudgetExceededError: The budget of customers at edge level ... 0.4 and ... left...
    """

    def __init__(self, path: str | Path | None = None) -> None:
        place = default_place() if path is None else path
        self.path: Path | str = str(place) if is_address(place) else Path(place).expanduser()
        self.store = store_of(self.path)

    @property
    def name(self) -> str:
        """What to call this ledger: its path, or its address without a password."""
        return self.store.name

    def __repr__(self) -> str:
        return f"Ledger({self.name!r})"

    @classmethod
    def init(cls, path: str | Path) -> Ledger:
        """Create an empty ledger at a path or address, or return an existing one."""
        ledger = cls(path)
        ledger.create()
        return ledger

    def create(self) -> bool:
        """Create this ledger if it is not there; return whether it was made."""
        return self.store.create(named=True)

    def move_to(self, other: Ledger) -> None:
        """Copy everything into an empty ledger, and close this one for good.

        This one is closed before the first row is copied: of a move that was interrupted, neither
        can be charged until it is repeated. Where the other one is not empty, nothing is closed.
        """
        for one in (self, other):
            one._is_made()
        check_empty(other.store)
        with transaction(self.store, writing=False) as db:
            place = setting(db, MOVED_TO)
        if place not in ("", other.name):
            raise PrivacyError(f"Ledger {self.name} was moved to {place} before. Use {place}.")
        if not place:
            with transaction(self.store, writing=True) as db:
                put_setting(db, MOVED_TO, other.name)
                write_note(db, "moved", f"to {other.name}", Origin.here())
        copy_ledger(self.store, other.store)

    def grant(
        self,
        population: str,
        people: People | None = None,
        *,
        level: str,
        relation: RelationLike,
        epsilon: float,
        delta: float,
        composition: str = "auto",
        until: str | None = None,
        reason: str = "",
    ) -> Budget:
        """Set or replace the budget of a population at one level; never below the spent amount.

        Args:
            population: its name; a new one needs ``people``.
            people: its members; new ones are enrolled. Charges of a population that shares a person
                with them are copied.
            level: ``edge`` or ``node``.
            relation: the neighbouring relation of the budget.
            epsilon: of all releases together.
            delta: likewise.
            composition: ``gaussian``, ``renyi`` or ``sum``; fixed once something was charged under
                it. auto is that of the replaced budget; for a new one gaussian at edge level and
                renyi at node level.
            until: last day on which it can be spent, such as ``2027-11-15``.
            reason: a note for readers of the ledger.

        Returns:
            The budget. Where grants need two people it is still the one before: the grant is a
            proposal, the last one of :meth:`proposals`, until somebody else approves it.
        """
        check_population(population)
        check_epsilon(epsilon)
        check_delta(delta)
        stated, amount = check_stated(level, relation).name, (float(epsilon), float(delta))
        terms = GrantTerms(population, level, stated, *amount, composition, until, reason)
        terms.check()
        origin = Origin.here()
        self.store.create(named=False)
        with transaction(self.store, writing=True) as db:
            tx, moment = LedgerTransaction(db), chain_time(db)
            shared = [] if people is None else _note_overlaps(db, tx, people, origin)
            found = self._population(tx, population, people, moment)
            if needs_two(db):
                _grantable(tx, found, terms)
                propose(db, {"action": "grant", **terms._asdict()}, origin)
            else:
                _write_grant(db, tx, terms, origin)
            granted = tx.budget(found, level)
            _warn_of(shared)
        return granted

    def _population(
        self, tx: LedgerTransaction, name: str, people: People | None, moment: str
    ) -> int:
        """Return the population of a name, after enrolling the given people."""
        found = tx.named(name)
        if people is None:
            if found is None:
                raise InputError(
                    f"{name!r} must be a known population, or come with its people. Got a new "
                    "name: give the table of its people (`--nodes`)."
                )
            return found
        if found is not None and tx.namespace(found) != people.namespace:
            raise InputError(
                f"{name!r} must be a new name, or a population of {people.namespace!r}. Got one of "
                f"{tx.namespace(found)!r}, whose ids mean other people: choose another name."
            )
        hashes = tx.hashes(people)
        touched = tx.touched(people, hashes)
        if found is None:
            # A population without a budget whose members are all among these people is renamed.
            same = (
                other
                for other, common in touched.items()
                if tx.is_free(other) and common.sum() == tx.members.count(other)
            )
            found = next(same, None)
            if found is None:
                found = tx.add_population(name, people.namespace, moment)
            else:
                tx.rename(found, name)
        for other in touched:
            if other != found:
                tx.copy_charges(found, other)
        none = np.zeros(len(hashes), dtype=np.bool_)
        tx.enrol({found: touched.get(found, none)}, people, hashes, "edge")
        return found

    def charge(
        self,
        people: People,
        *,
        level: str,
        relation: RelationLike,
        epsilon: float,
        delta: float,
        events: Sequence[Mapping[str, Any]],
        purpose: str,
        count: int = 1,
        reason: str = "",
    ) -> Charge:
        """Spend before releasing: when this returns, the charge is on disk for good.

        Over budget, or under another relation or level than was granted, nothing is recorded.

        Args:
            people: whom the release reads. Every population of their namespace that has one of
                them as a member is charged, or none is.
            level: ``edge`` or ``node``.
            relation: the neighbouring relation under which epsilon and delta are stated.
            epsilon: of one release.
            delta: of one release.
            events: of one release, as plain dictionaries.
            purpose: of the release, as readable text.
            count: number of independent releases; each is charged.
            reason: why, in the user's words.
        """
        neighbours = check_stated(level, relation)
        check_integer("count", count, at_least=1)
        check_price(epsilon)
        check_delta(delta)
        asked = Spend(neighbours, Amount.of(epsilon, delta), int(count), _written(events))
        charge_id, origin = system_entropy(12).hex(), Origin.here()
        self.store.create(named=False)
        with self._noting_end(), transaction(self.store, writing=True) as db:
            tx, moment = LedgerTransaction(db), chain_time(db)
            shared = _note_overlaps(db, tx, people, origin)
            charged = _paying(tx, people, asked, level, moment)
            price = (repr(float(epsilon)), repr(float(delta)), int(count))
            bought = (people.fingerprint, level, neighbours.name, *price, purpose, asked.events)
            noted = (moment, None, *origin, reason)
            _record(db, [(charge_id, population, *bought, *noted) for population in charged])
            names = [tx.name(population) for population in charged]
            budget = tx.budget(charged[0], level)
            query = "SELECT min(seq) FROM charges WHERE id = ?"
            (number,) = db.execute(query, (charge_id,)).fetchone()
            _warn_of(shared)
        return Charge(
            id=charge_id,
            population=names[0],
            fingerprint=people.fingerprint,
            level=level,
            relation=neighbours.name,
            epsilon=float(epsilon),
            delta=float(delta),
            count=int(count),
            purpose=purpose,
            events=tuple(json.loads(asked.events)),
            charged_at=moment,
            **origin._asdict(),
            reason=reason,
            others=tuple(names[1:]),
            budget=budget,
            link=db.added["charges", number],
        )

    def check_affordable(
        self,
        people: People,
        *,
        level: str,
        relation: RelationLike,
        releases: Sequence[tuple[float, float, Sequence[Mapping[str, Any]]]],
    ) -> None:
        """Refuse releases of which :meth:`charge` would refuse one, before the first of them.

        Nothing is charged or reserved: another process may spend in between.

        Args:
            people: whom the releases read.
            level: ``edge`` or ``node``.
            relation: the neighbouring relation under which prices are stated.
            releases: epsilon, delta and events of each.

        >>> import tempfile, numpy as np
        >>> ledger = Ledger.init(Path(tempfile.mkdtemp()) / "ledger.sqlite")
        >>> people = People(np.arange(1000), "5f" * 32)
        >>> terms = dict(level="edge", relation="undirected")
        >>> _ = ledger.grant("customers", people, **terms, epsilon=1, delta=1e-5, composition="sum")
        >>> ledger.check_affordable(people, **terms, releases=[(0.3, 0.0, [])] * 3)
        >>> ledger.check_affordable(  # doctest: +ELLIPSIS
        ...     people, **terms, releases=[(0.3, 0.0, [])] * 4)
        Traceback (most recent call last):
        ...
        gapgnn.errors.BudgetExceededError: The budget of customers ... request for epsilon 1.2 ...
        """
        if releases:
            self.budgets_after(people, level=level, relation=relation, releases=releases)

    def budgets_after(
        self,
        people: People,
        *,
        level: str,
        relation: RelationLike,
        releases: Sequence[tuple[float, float, Sequence[Mapping[str, Any]]]],
    ) -> list[tuple[Budget, Budget]]:
        """Return the budgets of these people at a level, now and after releases; see above.

        Refuses what :meth:`check_affordable` refuses, with its arguments. Nothing is charged.

        >>> import tempfile, numpy as np
        >>> ledger = Ledger.init(Path(tempfile.mkdtemp()) / "ledger.sqlite")
        >>> people = People(np.arange(1000), "5f" * 32)
        >>> terms = dict(level="edge", relation="undirected")
        >>> _ = ledger.grant("customers", people, **terms, epsilon=1, delta=1e-5, composition="sum")
        >>> ((now, after),) = ledger.budgets_after(people, **terms, releases=[(0.3, 0.0, [])])
        >>> now.left_of(after)
        'customers has epsilon 1 of 1 left, delta 1e-05; after this, epsilon 0.7'
        """
        neighbours = check_stated(level, relation)
        if not self._is_made():
            return []
        asked = [
            Spend(neighbours, Amount.of(epsilon, delta), 1, _written(events))
            for epsilon, delta, events in releases
        ]
        found = []
        with self._noting_end(), transaction(self.store, writing=False) as db:
            tx = LedgerTransaction(db)
            touched = tx.touched(people, tx.hashes(people))
            for population in tx.by_weight(touched, level):
                tx.check_affordable(population, level=level, asked=asked)
                if tx.granted(population, level) is not None:
                    after = tx.budget(population, level, more=asked)
                    found.append((tx.budget(population, level), after))
        return found

    @contextmanager
    def _noting_end(self) -> Iterator[None]:
        """Record in the chain that a budget has ended, so that it stays ended."""
        try:
            yield
        except BudgetEndedError as error:
            # Refused in any case, also where the ledger can only be read.
            with suppress(UnavailableError), transaction(self.store, writing=True) as db:
                write_note(db, "ended", str(error), Origin.here())
            raise

    def check_free(
        self, people: People, *, level: str, purpose: str, curator_only: str | None
    ) -> None:
        """Refuse access without a charge that would circumvent a budget.

        A computation without noise cannot be charged, so only the curator may run it on people with
        a budget, as a logged access. A model that reads no edge is free at edge level, but not if
        only node level has a budget, because features are private there.

        Args:
            people: whose records are read.
            level: ``none``, ``edge`` or ``node``.
            purpose: of the access.
            curator_only: the curator's reason for an access without a charge; None if the result is
                to be released.
        """
        if not self._is_made():
            return
        with transaction(self.store, writing=False) as db:
            tx = LedgerTransaction(db)
            touched = tx.touched(people, tx.hashes(people))
            logged = tx.check_unpriced(
                touched, level=level, purpose=purpose, is_curator=curator_only is not None
            )
        self.note_overlaps(people)
        for level, relation in logged:
            reason = curator_only or ""
            self.log_access(people, level=level, relation=relation, purpose=purpose, reason=reason)

    def note_overlaps(self, people: People) -> None:
        """Record and warn, once, that most ids belong to people of another population as well.

        Under the name of another population people have no budget, so that reading them without
        a charge leaves no other trace (privacy page, section 6).

        Args:
            people: whose records are read without a charge.
        """
        if not self._is_made():
            return
        with transaction(self.store, writing=False) as db:
            found = _new_overlaps(db, LedgerTransaction(db), people)
        if found:
            with transaction(self.store, writing=True) as db:
                found = _note_overlaps(db, LedgerTransaction(db), people, Origin.here())
                _warn_of(found)

    def log_access(
        self, people: People, *, level: str, relation: RelationLike, purpose: str, reason: str
    ) -> None:
        """Record a logged access: the curator read private data without releasing anything.

        Nothing is charged, because results that stay with the curator are not a release.
        """
        neighbours = check_stated(level, relation)
        if not reason.strip():
            raise InputError("an access without a charge must have a reason. Got none.")
        origin = Origin.here()
        self.store.create(named=False)
        with transaction(self.store, writing=True) as db:
            tx, moment = LedgerTransaction(db), chain_time(db)
            stated = people.fingerprint, level, neighbours.name
            seen = (*stated, "0.0", "0.0", 0, f"access: {purpose}", "[]")
            rows = [
                (system_entropy(12).hex(), population, *seen, moment, moment, *origin, reason)
                for population in tx.touched(people, tx.hashes(people))
            ]
            _record(db, rows)

    def budgets_of(self, people: People) -> list[Budget]:
        """Return the granted budgets of the populations of these people; nothing is charged."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            tx = LedgerTransaction(db)
            touched = tx.touched(people, tx.hashes(people))
            return [
                tx.budget(population, level)
                for population in touched
                for level in ("edge", "node")
                if tx.granted(population, level) is not None
            ]

    def claim(self, charge_id: str, previous: str | None, token: str) -> None:
        """Take over the use of a charge, if ``previous`` is its last claim: compare and swap.

        A charge pays for each release once, however many copies of an unfinished run there are.
        Whoever draws on it claims it with a fresh token and must know the one before, so of two
        that know the same one only the first goes on. Durable when this returns.

        Args:
            charge_id: the charge.
            previous: the last claim; None if there must be none yet.
            token: the new claim, which was never used before.

        >>> import tempfile, numpy as np
        >>> ledger = Ledger.init(Path(tempfile.mkdtemp()) / "ledger.sqlite")
        >>> paid = ledger.charge(People(np.arange(3), "5f" * 32), level="edge",
        ...                      relation="undirected", epsilon=1, delta=0, events=[],
        ...                      purpose="fit")
        >>> ledger.claim(paid.id, None, "one")
        >>> ledger.claim(paid.id, "one", "two")
        >>> ledger.claim(paid.id, "one", "three")
        Traceback (most recent call last):
        ...
        gapgnn.errors.PrivacyError: `previous` must be the last claim of the charge. Got another ...
        """
        self._check_charge(charge_id)
        with transaction(self.store, writing=True) as db:
            if _last_claim(db, charge_id) != previous:
                raise PrivacyError(
                    "`previous` must be the last claim of the charge. Got another one: somebody "
                    "else draws on it."
                )
            row = (charge_id, token, chain_time(db))
            db.execute(
                "INSERT INTO claims (charge, token, claimed_at) VALUES (?, ?, ?) ON CONFLICT "
                "(charge) DO UPDATE SET token = excluded.token, claimed_at = excluded.claimed_at",
                row,
            )

    def claimed(self, charge_id: str) -> str | None:
        """Return the last claim of a charge, None if nobody ever claimed it."""
        self._check_charge(charge_id)
        with transaction(self.store, writing=False) as db:
            return _last_claim(db, charge_id)

    def _check_charge(self, charge_id: str) -> None:
        found = 0
        if self._is_made():
            with transaction(self.store, writing=False) as db:
                (found,) = db.execute(
                    "SELECT count(*) FROM charges WHERE id = ?", (charge_id,)
                ).fetchone()
        if not found:
            raise InputError(f"`charge_id` must name a charge of {self.name}. Got {charge_id!r}.")

    def complete(self, charge_id: str) -> None:
        """Note that the release of a charge was made. For information: it was spent before."""
        self._check_charge(charge_id)
        with transaction(self.store, writing=True) as db:
            db.execute(
                "UPDATE charges SET completed_at = coalesce(completed_at, ?) WHERE id = ?",
                (chain_time(db), charge_id),
            )

    def entries(self, population: str | None = None) -> list[Charge]:
        """Return the charges, oldest first; one that is shared appears once per population."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            tx = LedgerTransaction(db)
            names = dict(db.execute("SELECT id, name FROM populations").fetchall())
            rows = db.execute(
                "SELECT id, population, fingerprint, level, relation, epsilon, delta, count, "
                "purpose, events, charged_at, completed_at, who, host, command, reason, link "
                "FROM charges JOIN entries ON source = 'charges' AND number = charges.seq "
                "ORDER BY charges.seq"
            ).fetchall()
            rules = {
                (known, level): granted[0]
                for known in names
                for level in ("edge", "node")
                if (granted := tx.granted(known, level)) is not None
            }
        sharing: dict[str, list[str]] = {}
        for row in rows:
            sharing.setdefault(row[0], []).append(names[row[1]])
        so_far: dict[tuple[int, str], list[Spend]] = {}
        charges = []
        try:
            for row in rows:
                amount = Amount.of(float(row[5]), float(row[6]))
                before = so_far.setdefault((row[1], row[3]), [])
                before.append(Spend(parse_relation(row[4]), amount, row[7], row[9]))
                if population not in (None, names[row[1]]):
                    continue
                rule = rules.get((row[1], row[3]))
                charges.append(
                    Charge(
                        id=row[0],
                        population=names[row[1]],
                        fingerprint=row[2],
                        level=row[3],
                        relation=row[4],
                        epsilon=float(row[5]),
                        delta=float(row[6]),
                        count=row[7],
                        purpose=row[8],
                        events=tuple(json.loads(row[9])),
                        charged_at=row[10],
                        completed_at=row[11],
                        who=row[12],
                        host=row[13],
                        command=row[14],
                        reason=row[15],
                        others=tuple(o for o in sharing[row[0]] if o != names[row[1]]),
                        together=None if rule is None else rule.together(before),
                        link=row[16],
                    )
                )
        except (TypeError, ValueError) as error:
            raise damaged(self.name, error) from None
        return charges

    def grants(self) -> list[Grant]:
        """Return every grant, oldest first."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            rows = db.execute(
                "SELECT p.name, p.namespace, g.level, g.relation, g.epsilon, g.delta, "
                "g.composition, g.renyi_order, g.until, g.granted_at, g.who, g.host, g.reason "
                "FROM grants g JOIN populations p ON p.id = g.population ORDER BY g.seq"
            ).fetchall()
        try:
            return [
                Grant(name, namespace, level, relation, float(epsilon), float(delta), *rest)
                for name, namespace, level, relation, epsilon, delta, *rest in rows
            ]
        except (TypeError, ValueError) as error:
            raise damaged(self.name, error) from None

    def graph_of(self, charge_id: str) -> str | None:
        """Return the fingerprint of the graph that a charge was for; None if it is not known."""
        try:
            if not self._is_made():
                return None
        except InputError:  # a ledger that is not there knows no charge
            return None
        with transaction(self.store, writing=False) as db:
            row = db.execute(
                "SELECT fingerprint FROM charges WHERE id = ? ORDER BY seq LIMIT 1", (charge_id,)
            ).fetchone()
        return None if row is None else str(row[0])

    def summary(self) -> list[Budget]:
        """Return every budget that was granted or charged, by population and level."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            tx = LedgerTransaction(db)
            keys = db.execute(
                "SELECT population, level FROM grants UNION SELECT population, level FROM charges"
            ).fetchall()
            budgets = [tx.budget(population, level) for population, level in keys]
        return sorted(budgets, key=lambda row: (row.population, row.level))

    def setting(self, name: str) -> str:
        """Return a setting of the ledger, such as ``require-grant``."""
        check_choice("setting", name, SETTINGS)
        if not self._is_made():
            return SETTINGS[name][0]
        with transaction(self.store, writing=False) as db:
            return setting(db, name)

    def set(self, name: str, value: str) -> None:
        """Change a setting of the ledger.

        ``require-grant``: nothing is charged to people without a budget. ``require-signatures``:
        every entry is signed (:mod:`gapgnn.privacy.ledger.signing`). ``two-person-grants``: grants,
        settings and signers are proposed by one signer and approved by another.
        """
        check_choice(name, value, SETTINGS[check_choice("setting", name, SETTINGS)])
        self.store.create(named=False)
        with transaction(self.store, writing=True) as db:
            if setting(db, name) == value:
                return
            if name == "two-person-grants" and len(signing.signers(db)) < 2:
                raise InputError(
                    "`two-person-grants` takes two signers. Register them with `gapgnn ledger "
                    "signer`."
                )
            if needs_two(db):
                propose(db, {"action": "setting", "name": name, "value": value}, Origin.here())
            else:
                _change_setting(db, name, value, Origin.here())

    def add_signer(self, name: str, public_key: str) -> None:
        """Register who signs with a key, or a new key of somebody, which a signer must sign."""
        check_population(name)
        public_key = signing.check_public_key(public_key)
        self.store.create(named=False)
        with transaction(self.store, writing=True) as db:
            if public_key in signing.signers(db).values():
                raise InputError("a public key is one signer's. Got one that is registered.")
            if name in signing.signers(db) and not signing.own_signer(db):
                raise PrivacyError(
                    f"a new key of {name!r} must be registered by a signer, or others could sign "
                    f"as {name!r}. Name the file of the old private key, or of another signer's, "
                    f"in {signing.VARIABLE}. Nothing was changed."
                )
            if needs_two(db):
                terms = {"action": "signer", "name": name, "public_key": public_key}
                propose(db, terms, Origin.here())
            else:
                write_note(db, "signer", f"{name} {public_key}", Origin.here())

    def signers(self) -> dict[str, str]:
        """Return the public key of every signer."""
        if not self._is_made():
            return {}
        with transaction(self.store, writing=False) as db:
            return signing.signers(db)

    def proposals(self) -> dict[int, dict[str, Any]]:
        """Return what was proposed and not approved yet, by its number."""
        if not self._is_made():
            return {}
        with transaction(self.store, writing=False) as db:
            return open_proposals(db)

    def approve(self, number: int) -> None:
        """Carry out a proposal, as another signer than the one who made it."""
        self._is_made()
        origin = Origin.here()
        with transaction(self.store, writing=True) as db:
            terms = check_approvable(db, number)
            action = terms.pop("action")
            if action == "grant":
                made = (
                    "grants",
                    _write_grant(db, LedgerTransaction(db), GrantTerms(**terms), origin),
                )
            elif action == "setting":
                made = "notes", _change_setting(db, terms["name"], terms["value"], origin)
            else:
                if terms["name"] == signing.own_signer(db):
                    raise PrivacyError(
                        f"proposal {number} must be approved by another signer than "
                        f"{terms['name']!r}, whose key it replaces. Propose a new key of your own "
                        "yourself, and let somebody else approve it."
                    )
                about = f"{terms['name']} {terms['public_key']}"
                made = "notes", write_note(db, "signer", about, origin)
            about = json.dumps({"proposal": number, "source": made[0], "number": made[1]})
            write_note(db, "approved", about, origin)

    def pseudonyms(self, charge_id: str, ids: NDArray[Any]) -> NDArray[np.str_]:
        """Return keyed hashes of ids for the folder of one release; nobody else can compute them.

        The key is the ledger's, and another one for every charge: hashes of two releases tell
        nobody who is in both.

        Args:
            charge_id: of the release.
            ids: numbers or texts, in any spelling.
        """
        with transaction(self.store, writing=False) as db:
            key = hashlib.blake2b(f"folder {charge_id}".encode(), key=secret_key(db)).digest()
        return pseudonyms(ids, key)

    def record_removal(self, removal: Mapping[str, Any]) -> str:
        """Record that people were removed from a saved folder; return the link of the entry.

        A removal that is on record is not recorded again. Neither its fields nor the command that
        is recorded name anybody: an entry of the chain stays for good.

        Args:
            removal: ``id``, ``people`` (their number) and ``releases`` (rows by charge).
        """
        origin = Origin.here()._replace(command="gapgnn forget")
        self.store.create(named=False)
        with transaction(self.store, writing=True) as db:
            recorded = removals(db)
            if removal["id"] in recorded:
                return recorded[removal["id"]].link
            number = write_note(db, "forgotten", json.dumps(dict(removal)), origin)
        return db.added["notes", number]

    def removals(self) -> list[Removal]:
        """Return every removal of people from a saved folder, oldest first."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            return list(removals(db).values())

    def check_signer(self) -> None:
        """Raise if an entry that is written now would be refused for want of a signature."""
        if self._is_made():
            with transaction(self.store, writing=True) as db:
                sign = signing.signature_for(db)
                if sign is not None:
                    sign("")

    def chain(self) -> list[Entry]:
        """Return the entries of the chain, oldest first."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            return entries_of(db)

    def missing(self, exported: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return which entries of an earlier export are not in this ledger as they were."""
        return missing(self.chain(), exported)

    def notes(self) -> list[Note]:
        """Return what the chain holds beside grants and charges, oldest first."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False) as db:
            rows = db.execute(
                "SELECT kind, about, noted_at, who, host, command FROM notes ORDER BY seq"
            ).fetchall()
        return [Note(*row) for row in rows]

    def problems(self) -> list[str]:
        """Return what is wrong with the file: damage, and rows that were changed or removed."""
        if not self._is_made():
            return []
        with transaction(self.store, writing=False, checking=False) as db:
            problems = self.store.damage(db) + broken_links(db)
            tx = LedgerTransaction(db)
            for population, name in db.execute("SELECT id, name FROM populations").fetchall():
                try:
                    for _ in tx.members.parts(population):
                        pass
                except DamageError as error:
                    problems.append(f"{name}: {error}")
            return problems or broken_promises(db)

    def check(self) -> None:
        """Raise if nothing could be charged here: a named file is missing, or cannot be written."""
        if self._is_made():
            with transaction(self.store, writing=True):
                pass

    def _is_made(self) -> bool:
        return self.store.is_made()


@contextmanager
def scratch_ledger() -> Iterator[Path]:
    """Give a ledger that is thrown away, for models that are never released."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        Ledger.init(path)
        yield path


class GrantTerms(NamedTuple):
    """What a budget is granted with; see :meth:`Ledger.grant`."""

    population: str
    level: str
    relation: str
    epsilon: float
    delta: float
    composition: str
    until: str | None
    reason: str

    @property
    def amount(self) -> Amount:
        """Epsilon and delta, exactly."""
        return Amount.of(self.epsilon, self.delta)

    def check(self) -> None:
        """Refuse a rule or a day that is none, before anything is made."""
        if self.composition != "auto":
            neighbours = parse_relation(self.relation, self.level)
            Filter.granted(self.composition, self.level, neighbours, self.amount)
        if self.until is not None:
            _check_day(self.until)


def _write_grant(db: Connection, tx: LedgerTransaction, terms: GrantTerms, origin: Origin) -> int:
    """Write a grant to a known population and return the number of its row."""
    found = tx.named(terms.population)
    if found is None:
        raise InputError(f"{terms.population!r} must be a known population. Got a new name.")
    budget = _grantable(tx, found, terms)
    row = (found, terms.level, terms.relation, repr(terms.epsilon), repr(terms.delta))
    chosen = (budget.composition, budget.order or None, terms.until, chain_time(db))
    db.execute(
        "INSERT INTO grants (population, level, relation, epsilon, delta, composition, "
        "renyi_order, until, granted_at, who, host, reason) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, *chosen, origin.who, origin.host, terms.reason),
    )
    (number,) = db.execute("SELECT max(seq) FROM grants").fetchone()
    return int(number)


def _change_setting(db: Connection, name: str, value: str, origin: Origin) -> int:
    """Change a setting and return the number of the note that says so."""
    before = setting(db, name)
    put_setting(db, name, value)
    return write_note(db, "setting", f"{name}: {before} to {value}", origin)


def _grantable(tx: LedgerTransaction, population: int, terms: GrantTerms) -> Filter:
    """Return the budget to grant; refuse one below the spent amount."""
    level, composition = terms.level, terms.composition
    before = tx.granted(population, level)
    if composition == "auto":
        usual = "gaussian" if level == "edge" else "renyi"
        composition = usual if before is None else before[0].composition
    relation = parse_relation(terms.relation, level)
    budget = Filter.granted(composition, level, relation, terms.amount)
    if before is not None and tx.spends(population, level):
        budget = budget.in_place_of(before[0])
    tx.check_grantable(population, budget)
    # Copied charges of enrolled people count at the other level too.
    other = tx.granted(population, "node" if level == "edge" else "edge")
    if other is not None:
        tx.check_grantable(population, other[0])
    return budget


def _paying(
    tx: LedgerTransaction, people: People, asked: Spend, level: str, moment: str
) -> list[int]:
    """Return the populations charged for a release; refuse it if one has too little budget."""
    hashes = tx.hashes(people)
    touched = tx.touched(people, hashes)
    if not touched:
        made = tx.add_population(people.name or "data set", people.namespace, moment)
        touched = {made: np.zeros(len(hashes), dtype=np.bool_)}
    # The first population represents the charge.
    charged = tx.by_weight(touched, level)
    for population in charged:
        tx.check_affordable(population, level=level, asked=[asked])
    tx.enrol(touched, people, hashes, level)
    return charged


def _record(db: Connection, rows: Sequence[tuple[object, ...]]) -> None:
    """Write a charge or a logged access: one row for each population."""
    db.executemany(
        "INSERT INTO charges (id, population, fingerprint, level, relation, epsilon, delta, count, "
        "purpose, events, charged_at, completed_at, who, host, command, reason) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def _note_overlaps(
    db: Connection, tx: LedgerTransaction, people: People, origin: Origin
) -> list[str]:
    """Record, once, that ids overlap with another namespace; return the new entries."""
    found = _new_overlaps(db, tx, people)
    for about in found:
        write_note(db, "overlap", about, origin)
    return found


def _new_overlaps(db: Connection, tx: LedgerTransaction, people: People) -> list[str]:
    """Return the overlaps with other namespaces that are not on record."""
    known = "SELECT count(*) FROM fingerprints JOIN populations ON id = population "
    known += "WHERE fingerprint = ? AND namespace = ?"
    if db.execute(known, (people.fingerprint, people.namespace)).fetchone()[0]:
        return []  # this graph was compared when it was first read
    noted = {row[0] for row in db.execute("SELECT about FROM notes WHERE kind = 'overlap'")}
    found = []
    for name, namespace, common in tx.overlaps(people, tx.hashes(people)):
        pair = f"namespace {people.namespace!r} shares most ids with population {name!r}"
        if not any(about.startswith(pair) for about in noted):
            found.append(f"{pair} of namespace {namespace!r}: {common:,}")
    return found


def _warn_of(overlaps: Sequence[str]) -> None:
    """Warn before the transaction is committed: where warnings are errors, nothing was charged."""
    for about in overlaps:
        warnings.warn(
            f"The {about}. They are charged as different people, each with a budget of its own. If "
            "they are the same people, leave out `population`. This was written to the ledger.",
            LedgerNotice,
            stacklevel=3,
        )


def _written(events: Sequence[Mapping[str, Any]]) -> str:
    try:
        return json.dumps([dict(event) for event in events], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"`events` must be plain dictionaries. Got {error}.") from None


def _last_claim(db: Connection, charge_id: str) -> str | None:
    row = db.execute("SELECT token FROM claims WHERE charge = ?", (charge_id,)).fetchone()
    return None if row is None else str(row[0])


def is_day(text: str) -> bool:
    """Tell whether a text is a day as the ledger writes it, such as 2027-11-15.

    >>> is_day("2027-11-15"), is_day("15.11.2027")
    (True, False)
    """
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _check_day(text: str) -> None:
    if not is_day(text):  # days are compared as text
        raise InputError(f"`until` must be a day such as 2027-11-15. Got {text!r}.")
