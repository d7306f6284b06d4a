"""A ledger moved from one place to another, row by row: from a file to a server, or back."""

from __future__ import annotations

from gapgnn.errors import InputError
from gapgnn.privacy.ledger.chain import MOVED_TO, columns, put_setting
from gapgnn.privacy.ledger.store import Connection, Store, transaction


def check_empty(target: Store) -> None:
    """Refuse a target that is closed, or in which something was granted, charged or noted."""
    with transaction(target, writing=True) as db:
        _check_empty(db, target)


def _check_empty(db: Connection, target: Store) -> None:
    for table in ("populations", "grants", "charges", "notes"):
        (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        if count:
            raise InputError(
                f"a ledger is copied into an empty one. Got {target.name}, which has rows in "
                f"{table}."
            )


def copy_ledger(source: Store, target: Store) -> None:
    """Copy everything into an empty ledger: key, people, grants, charges, claims and chain.

    Two copies that are both used spend the same budget twice, so whoever moves a ledger stops using
    the first one.

    Args:
        source: of the ledger that is copied; it is checked first.
        target: of a ledger in which nothing was granted or charged.

    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> from gapgnn.privacy.ledger import Ledger, People
    >>> first, second = (Ledger.init(Path(tempfile.mkdtemp()) / "a.sqlite") for _ in range(2))
    >>> _ = first.charge(People(np.arange(3), "5f" * 32), level="edge", relation="undirected",
    ...                  epsilon=1, delta=0, events=[], purpose="fit")
    >>> copy_ledger(first.store, second.store)
    >>> second.entries() == first.entries(), second.problems()
    (True, [])
    """
    with transaction(source, writing=False) as old, transaction(target, writing=True) as new:
        _check_empty(new, target)
        for table, names in columns().items():
            if table == "settings":
                continue
            listed = ", ".join(names)
            marks = ", ".join("?" * len(names))
            insert = f"INSERT INTO {table} ({listed}) VALUES ({marks})"
            for row in old.execute(f"SELECT {listed} FROM {table}"):
                new.execute(insert, tuple(row))
        for key, value in old.execute("SELECT key, value FROM settings").fetchall():
            if key != MOVED_TO:
                put_setting(new, key, value)
        new.count_on()
