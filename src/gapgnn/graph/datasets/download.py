"""Finding a public data file: under ``GAPGNN_DATA``, in the user's cache, or at its address.

A download is encrypted and authenticated (HTTPS only, also after redirects), is resumed from where
it broke off, is checked against its SHA-256 where that is known, and appears under its name only
when it is complete.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gapgnn.errors import DataError, InputError, UnavailableError
from gapgnn.graph import Progress, file_digest

if sys.platform != "win32":
    import fcntl

_BLOCK = 1 << 18
_TIMEOUT = 30.0


@dataclass(frozen=True)
class DataFile:
    """One public file: where it lies under the data folder, where it comes from, what it must be.

    Attributes:
        path: under the data folder or the cache.
        address: where it is published.
        sha256: of the published file; None if unknown.
        size: in bytes; None if unknown.
        repacked: SHA-256 of another file with the same content, which is as good.

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
    """Return where a file is on this machine and which folder that was, or None.

    >>> find(DataFile("no/such.file", "https://example.org/such.file")) is None
    True
    """
    for folder, where in ((data_folder(), "GAPGNN_DATA"), (cache_folder(), "cache")):
        if folder is not None and (folder / file.path).is_file():
            return folder / file.path, where
    return None


def obtain(file: DataFile, *, progress: Progress | None = None) -> Path:
    """Return the path of a file, after downloading it if it is nowhere on this machine.

    A file found here is checked against its SHA-256 too, but never removed: it is the user's.
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


def fetch(
    file: DataFile,
    *,
    progress: Progress | None = None,
    opener: urllib.request.OpenerDirector | None = None,
) -> Path:
    """Download a file into the user's cache and return its path there.

    Args:
        file: what to fetch.
        progress: called after every block.
        opener: how addresses are opened; :func:`https_opener` unless a test brings its own.
    """
    target = cache_folder() / file.path
    part = target.with_name(target.name + ".part")
    if not file.address.startswith("https://"):
        raise InputError(f"`address` must begin with https://. Got {file.address!r}.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(part) as output:
            try:
                _transfer(file, output, progress, opener or https_opener())
                output.flush()
                os.fsync(output.fileno())
                if file.sha256 is not None and (digest := file_digest(part)) != file.sha256:
                    part.unlink()
                    raise DataError(
                        f"{file.address} must have the SHA-256 {file.sha256}. Got {digest}; the "
                        "download was removed."
                    )
                os.replace(part, target)
            except BaseException:
                if part.exists() and not part.stat().st_size:
                    part.unlink()  # nothing arrived that a new try could go on from
                raise
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(_offline(file, error)) from None
    return target


def https_opener(context: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Return an opener that knows HTTPS and nothing else, with certificates verified."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=context or ssl.create_default_context()),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _HttpsRedirects(),
    ):
        opener.add_handler(handler)
    return opener


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects to HTTPS only: the standard handler would also go on in the clear."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise urllib.error.URLError(f"redirected to {newurl}, which is not HTTPS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _claimed(part: Path) -> BinaryIO:
    """Open a ``.part`` file for appending, for this process alone."""
    while True:
        handle = part.open("ab")
        if sys.platform == "win32":
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            raise UnavailableError(
                f"`{part}` is being downloaded by another process. Try again when it is done."
            ) from None
        # Between opening and locking, the other process may have moved the finished file away.
        if part.exists() and os.path.samestat(os.fstat(handle.fileno()), part.stat()):
            return handle
        handle.close()


def _transfer(
    file: DataFile,
    output: BinaryIO,
    progress: Progress | None,
    opener: urllib.request.OpenerDirector,
) -> None:
    """Append what is missing; start over where the server cannot go on from there."""
    offset = output.tell()
    try:
        response = _open(file, offset, opener)
    except urllib.error.HTTPError as error:
        if not offset or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{offset}":
            return  # everything was here already; only the last step was interrupted
        response = _open(file, 0, opener)
    with response:
        start = 0
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            start = int(span[1]) if span else -1
            if start != offset:
                raise urllib.error.URLError("the server sent another part than was asked for")
        output.truncate(start)
        output.seek(start)
        done = start
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else file.size
        while True:
            if progress is not None:
                progress(file.name, done, total)
            try:
                block = response.read(_BLOCK)
            except http.client.IncompleteRead as broken:
                block = broken.partial
            if not block:
                break
            output.write(block)
            done += len(block)
    if total is not None and done < total:
        raise urllib.error.URLError(
            f"the connection broke off after {done:,} of {total:,} bytes; a new try goes on there"
        )


def _open(file: DataFile, offset: int, opener: urllib.request.OpenerDirector) -> Any:
    """Ask for the file from an offset on."""
    headers = {"User-Agent": "gapgnn", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        return opener.open(urllib.request.Request(file.address, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise


def _offline(file: DataFile, error: Exception) -> str:
    folder = ((data_folder() or cache_folder()) / file.path).parent
    reason: object = error
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        reason = error.reason
    return (
        f"`{file.path}` is not here and could not be downloaded ({reason}). Get {file.address} and "
        f"put it in {folder} as {file.name}."
    )
