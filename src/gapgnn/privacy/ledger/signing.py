"""Signatures of the entries of a ledger: who wrote what, by a key that the ledger does not hold.

A *signer* is a name and an Ed25519 public key, registered by an entry of the chain. Where
``GAPGNN_SIGNING_KEY`` names the file of a private key, every entry that a process writes is signed:
the signature is of the entry's link, which covers the entry and all before it. With the setting
``require-signatures`` nothing is written without one.

A key counts for the entries after the one that registers it. A new key of a known signer is
therefore signed by the old one, or by another signer. Only a new signer may sign that entry with
the key it registers, and not where signatures are required.

Somebody who has the file of a ledger but no signer's key cannot add an entry in their name, nor
change one that is signed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.errors import InputError, PrivacyError, UnavailableError
from gapgnn.privacy.ledger import chain

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from gapgnn.privacy.ledger.store import Connection

VARIABLE = "GAPGNN_SIGNING_KEY"
_MESSAGE = "gapgnn ledger entry 1: "


def make_key(path: Path) -> str:
    """Write a new private key to a new file, for its owner only, and return the public key.

    >>> import tempfile
    >>> len(make_key(Path(tempfile.mkdtemp()) / "ann.pem"))
    64
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"`out` must be a new file in a folder that exists. Got {str(path)!r}: "
            f"{error.strerror}."
        ) from None
    return _public(key)


def check_public_key(text: str) -> str:
    """Return a public key as it is registered; refuse what is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except ValueError:
        raise InputError(
            "a public key must be 64 hexadecimal digits, as `gapgnn ledger key` prints it. Got "
            f"{text!r}."
        ) from None
    return text.lower()


def signers(db: Connection) -> dict[str, str]:
    """Return the public key of every signer; of several of one name the last one counts."""
    rows = db.execute("SELECT about FROM notes WHERE kind = 'signer' ORDER BY seq").fetchall()
    return dict(about.rsplit(" ", 1) for (about,) in rows)


def own_signer(db: Connection) -> str:
    """Return the name under which this process signs; empty where it has no key."""
    key = _own_key()
    if key is None:
        return ""
    rows = db.execute(
        "SELECT about FROM notes JOIN entries ON source = 'notes' AND number = notes.seq "
        "WHERE kind = 'signer' ORDER BY notes.seq"
    ).fetchall()
    # Without those that this transaction registers, which have no entry yet.
    registered: dict[str, str] = dict(about.rsplit(" ", 1) for (about,) in rows)
    known = {public: name for name, public in registered.items()}
    if chain.setting(db, "require-signatures") != "on":
        known |= {public: name for name, public in signers(db).items() if name not in registered}
    name = known.get(_public(key))
    if name is None:
        raise PrivacyError(
            f"the key of {VARIABLE} must be a signer's of this ledger. Got an unknown one: a "
            f"signer registers it with `gapgnn ledger signer NAME {_public(key)}`. Nothing was "
            "released."
        )
    return name


def signature_for(db: Connection) -> chain.Sign | None:
    """Return what signs the entries of a transaction; None where this process does not sign.

    It is asked when an entry is written, so that an entry may register its own new signer.
    """
    key = _own_key()
    is_required = chain.setting(db, "require-signatures") == "on"
    if key is None and not is_required:
        return None

    def sign(link: str) -> tuple[str, str]:
        if key is None:
            raise PrivacyError(
                "this ledger requires signatures. Name the file of your private key in "
                f"{VARIABLE}; `gapgnn ledger key` makes one. Nothing was released."
            )
        return own_signer(db), key.sign((_MESSAGE + link).encode()).hex()

    return sign


def is_signed(link: str, public_key: str, signature: str) -> bool:
    """Tell whether a signature is of a link, by the key of a signer."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), (_MESSAGE + link).encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _own_key() -> Ed25519PrivateKey | None:
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(path).expanduser().read_bytes(), password=None)
    except OSError as error:
        raise UnavailableError(
            f"{VARIABLE} names {path!r}, which cannot be read: {error.strerror}."
        ) from None
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{VARIABLE} must name a private key of `gapgnn ledger key`. Got {path!r}."
        )
    return key


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
