"""The two sources of randomness, which are never mixed (privacy page, section 4).

*Experiment* randomness (splits, initialisation, shuffling) is seeded and reproducible.
*Noise* randomness comes from a secret :class:`NoiseKey`: 256 bits of the operating system's
entropy, expanded by SHAKE-256. Every use names a path such as ``("hop", 1, "block", 7)``, so a
retried or partitioned computation that holds the key draws the same bytes again, and no two uses
share any.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

PathPart = str | int


def _encode(path: tuple[PathPart, ...]) -> bytes:
    """Encode a path without ambiguity: type and length stand before every part."""
    parts = []
    for part in path:
        prefix, text = ("s", part) if isinstance(part, str) else ("i", str(int(part)))
        raw = text.encode()
        parts.append(f"{prefix}{len(raw)}:".encode() + raw)
    return b"".join(parts)


def experiment_seed(seed: int, *path: PathPart) -> int:
    """Return a 63-bit seed for one named purpose, independent of every other purpose.

    >>> experiment_seed(0, "split") == experiment_seed(0, "split")
    True
    >>> experiment_seed(0, "split", 0) == experiment_seed(0, "split", 1)
    False
    """
    return int.from_bytes(experiment_bytes(seed, 8, *path), "little") >> 1


def experiment_bytes(seed: int, count: int, *path: PathPart) -> bytes:
    """Return up to 64 bytes for one named purpose of a seeded experiment: public, never secret.

    >>> experiment_bytes(0, 16, "role") == experiment_bytes(0, 16, "role")
    True
    """
    material = b"gapgnn experiment" + _encode((int(seed), *path))
    digest = hashlib.sha256(material).digest()
    return (digest + hashlib.sha256(digest + material).digest())[:count]


def system_entropy(count: int) -> bytes:
    """Return bytes of the operating system's entropy: the only source of unseeded randomness.

    >>> len(system_entropy(12))
    12
    """
    return os.urandom(count)


def experiment_rng(seed: int, *path: PathPart) -> np.random.Generator:
    """Return a NumPy generator for one named purpose of a seeded experiment.

    >>> float(experiment_rng(7, "split").random()) == float(experiment_rng(7, "split").random())
    True
    """
    return np.random.default_rng(experiment_seed(seed, *path))


def experiment_torch(seed: int, *path: PathPart, device: str = "cpu") -> torch.Generator:
    """Return a torch generator for one named purpose of a seeded experiment."""
    import torch

    return torch.Generator(device=device).manual_seed(experiment_seed(seed, *path))


@dataclass(frozen=True)
class NoiseKey:
    """A secret from which all noise of one run is derived.

    The key never leaves the process: it is not part of a saved model, a card or a ledger entry, and
    its representation hides it. Whoever holds it can subtract the noise.

    >>> NoiseKey.fresh() == NoiseKey.fresh()
    False
    >>> NoiseKey.insecure(3).derive("hop", 1) == NoiseKey.insecure(3).derive("hop", 1)
    True
    """

    secret: bytes = field(repr=False)
    is_insecure: bool = False

    @classmethod
    def fresh(cls) -> NoiseKey:
        """Draw a key from the operating system's entropy."""
        return cls(system_entropy(32))

    @classmethod
    def insecure(cls, seed: int) -> NoiseKey:
        """Make a predictable key, for tests and paper tables only; the card then says so."""
        return cls(hashlib.sha256(b"gapgnn insecure" + _encode((int(seed),))).digest(), True)

    def derive(self, *path: PathPart) -> NoiseKey:
        """Return the key of one named part; parts with different paths are independent."""
        return NoiseKey(self.bytes(32, "derive", *path), self.is_insecure)

    def bytes(self, count: int, *path: PathPart) -> bytes:
        """Return ``count`` pseudorandom bytes for one named purpose (SHAKE-256 of key and path)."""
        return hashlib.shake_256(self.secret + _encode(path)).digest(count)

    def seed(self, *path: PathPart) -> int:
        """Return a 63-bit seed for a fast, non-cryptographic generator (experiments only)."""
        return int.from_bytes(self.bytes(8, "seed", *path), "little") >> 1
