"""Shared parts of reading files: progress, digests, and the errors that damaged files raise."""

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
"""Called with the name of what is read, the amount read, and the total (None: unknown)."""

# Errors that zipfile, NumPy, SciPy and Arrow raise on damaged files.
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
    """Return the SHA-256 of a file, read in pieces; ``advance`` gets the size of each piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            if advance is not None:
                advance(len(chunk))
    return digest.hexdigest()
