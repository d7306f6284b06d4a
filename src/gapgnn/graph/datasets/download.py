"""Find a public data file: under ``GAPGNN_DATA``, in the user's cache, or at its address.

A download is encrypted and authenticated (HTTPS only, also after redirects), is retried if the
connection fails, is checked against its SHA-256 where that is known, and gets its file name only
when it is complete.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from gapgnn.errors import DataError, InputError, UnavailableError
from gapgnn.graph import Progress, file_digest

_BLOCK = 1 << 18
_TIMEOUT = 30.0
_RETRIES = 2


@dataclass(frozen=True)
class DataFile:
    """One public file: its path under the data folder, its address and its checksum.

    Attributes:
        path: under the data folder or the cache.
        address: where it is published.
        sha256: of the published file; None if unknown.
        size: in bytes; None if unknown.
        repacked: SHA-256 of another file with the same content, which is accepted too.

    >>> DataFile("github/git_web_ml.zip", "https://snap.stanford.edu/data/git_web_ml.zip").name
    'git_web_ml.zip'
    """

    path: str
    address: str
    sha256: str | None = None
    size: int | None = None
    repacked: str | None = None

    @property
    def name(self) -> str:
        """The file's own name, without folders."""
        return self.path.rsplit("/", 1)[-1]


def data_folder() -> Path | None:
    """Return the folder that ``GAPGNN_DATA`` names, or None if the variable is not set."""
    value = os.environ.get("GAPGNN_DATA")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise InputError(f"`GAPGNN_DATA` must be an existing folder. Got {value!r}.")
    return folder


def cache_folder() -> Path:
    """Return the user's cache for downloaded data; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gapgnn"


def find(file: DataFile) -> tuple[Path, str] | None:
    """Return the path of a file on this machine and which folder it is in, or None.

    >>> find(DataFile("no/such.file", "https://example.org/such.file")) is None
    True
    """
    for folder, where in ((data_folder(), "GAPGNN_DATA"), (cache_folder(), "cache")):
        if folder is not None and (folder / file.path).is_file():
            return folder / file.path, where
    return None


def obtain(file: DataFile, *, progress: Progress | None = None) -> Path:
    """Return the path of a file, after downloading it if it is not on this machine.

    A file found here is checked against its SHA-256 too, but never removed.
    """
    found = find(file)
    if found is None:
        return fetch(file, progress=progress)
    path = found[0]
    if file.sha256 is not None and (digest := file_digest(path)) not in (
        file.sha256,
        file.repacked,
    ):
        raise DataError(
            f"`{path}` must have the SHA-256 {file.sha256}. Got {digest}. Replace it with the "
            f"file at {file.address}."
        )
    return path


def fetch(file: DataFile, *, progress: Progress | None = None) -> Path:
    """Download a file into the user's cache and return its path there.

    Args:
        file: the file.
        progress: called after every block.
    """
    import pooch  # here: only downloads need it

    if not file.address.startswith("https://"):
        raise InputError(f"`address` must begin with https://. Got {file.address!r}.")
    pooch.get_logger().setLevel("WARNING")  # the caller reports progress
    cache = pooch.create(
        cache_folder(),
        base_url="",
        registry={file.path: file.sha256},
        urls={file.path: file.address},
        retry_if_failed=_RETRIES,
    )

    def download(address: str, part: str, _: object) -> None:
        os.remove(part)  # created readable by its owner only; a public file follows the umask
        with ExitStack() as opened:

            def check(response: Any, **_: object) -> None:
                opened.callback(response.close)
                _refuse_plain_http(response)

            pooch.HTTPDownloader(
                progressbar=None if progress is None else _ProgressBar(file, progress),
                chunk_size=_BLOCK,
                timeout=_TIMEOUT,
                headers={"User-Agent": "gapgnn", "Accept-Encoding": "identity"},
                hooks={"response": check},
            )(address, part, None)

    try:
        return Path(cache.fetch(file.path, downloader=download))
    except OSError as error:
        raise UnavailableError(_offline(file, _root_cause(error))) from None
    except ValueError as mismatch:
        raise DataError(f"{file.address}: {mismatch}") from None


class _ProgressBar:
    """One attempt's progress, in the form that pooch reports it."""

    def __init__(self, file: DataFile, progress: Progress) -> None:
        self.total = 0  # set by pooch; 0 where the server does not send it
        self._file, self._progress, self._done = file, progress, 0
        progress(file.name, 0, file.size)

    def update(self, size: int) -> None:
        """Count another block; the last one may be shorter than reported."""
        total = self.total or self._file.size
        self._done = self._done + size if total is None else min(self._done + size, total)
        self._progress(self._file.name, self._done, total)

    def reset(self) -> None:
        """Do nothing: pooch calls this at the end."""

    def close(self) -> None:
        """Do nothing."""


def _refuse_plain_http(response: Any) -> None:
    """Stop before a redirect to anything but HTTPS is followed."""
    if response.is_redirect:
        target = urljoin(response.url, response.headers["location"])
        if not target.startswith("https://"):
            raise UnavailableError(
                f"{response.url} redirects to {target}, which is not HTTPS, and was not followed."
            )


def _root_cause(error: BaseException) -> BaseException:
    """Return the first error of a chain, which has the shortest message."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _offline(file: DataFile, reason: BaseException) -> str:
    folder = ((data_folder() or cache_folder()) / file.path).parent
    return (
        f"`{file.path}` is not here and could not be downloaded ({reason}). Get {file.address} and "
        f"put it in {folder} as {file.name}."
    )
