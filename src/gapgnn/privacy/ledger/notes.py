"""Entries of the chain that are neither grants nor charges, and who writes them."""

from __future__ import annotations

import getpass
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gapgnn.errors import without_password
from gapgnn.privacy.ledger.chain import chain_time

if TYPE_CHECKING:
    from gapgnn.privacy.ledger.store import Connection


class Origin(NamedTuple):
    """The user, machine and command behind an entry of the ledger."""

    who: str
    host: str
    command: str

    @classmethod
    def here(cls) -> Origin:
        """Return this user, this machine and this process's command line."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError):
            who = "unknown"
        # `python -m gapgnn` is the same command as the program.
        program = Path(sys.argv[0])
        name = program.parent.name if program.name == "__main__.py" else program.name
        command = shlex.join([name, *sys.argv[1:]])
        # A file name may hold bytes that are no text.
        plain = without_password(command).encode(errors="backslashreplace").decode()
        return cls(who, socket.gethostname(), plain[:1000])


def write_note(db: Connection, entry: str, about: str, origin: Origin) -> int:
    """Write an entry that is neither a grant nor a charge, and return the number of its row."""
    db.execute(
        "INSERT INTO notes (kind, about, noted_at, who, host, command) VALUES (?, ?, ?, ?, ?, ?)",
        (entry, about, chain_time(db), *origin),
    )
    (number,) = db.execute("SELECT max(seq) FROM notes").fetchone()
    return int(number)
