"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from gapgnn.errors import InputError


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file and the folders above it; a kill leaves the old file or the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "tables" / "a.md", "text")
    ...     (Path(folder) / "tables" / "a.md").read_text()
    'text'
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"`{path}` must be writable. Got {error.strerror}.") from None
