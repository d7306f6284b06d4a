"""What reading files has in common: telling progress, digests, and what damage makes it raise."""

from __future__ import annotations

import hashlib
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int | None], None]
"""Called with what is being read, how much of it is done, and how much there is (None: unknown)."""

# What zipfile, NumPy, SciPy and Arrow raise on bytes that are not what they should be.
DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def file_digest(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file, read in pieces; ``advance`` is told the bytes of each."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            if advance is not None:
                advance(len(chunk))
    return digest.hexdigest()
