"""A picture of a page, taken with the browser that is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from gapgnn.errors import InputError, UnavailableError
from gapgnn.evaluation.report.writing import write_file

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No sandbox: containers often cannot make one, and the only page opened is one's own, which by its
# policy loads nothing. The other switches keep the browser itself off the network.
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
_LONGEST_SECONDS = 120


def find_browser() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def screenshot(
    page: Path, target: Path, *, section: str = "", width: int = 1280, height: int = 1400
) -> None:
    """Write a PNG of a report's top; it appears complete or not at all.

    Args:
        page: an HTML file.
        target: ending in ``.png``.
        section: id of the section that shall follow the page's head; those before are left out.
        width: of the window, in pixels.
        height: likewise.

    >>> screenshot(Path("report.html"), Path("shot.gif"))
    Traceback (most recent call last):
    ...
    gapgnn.errors.InputError: `screenshot` must end in .png. Got 'shot.gif'.
    """
    if target.suffix != ".png":
        raise InputError(f"`screenshot` must end in .png. Got {str(target)!r}.")
    browser = find_browser()
    if browser is None:
        raise UnavailableError(
            "A screenshot needs Chromium or Chrome on the PATH. Got none; on Debian: "
            "`apt install chromium`."
        )
    with tempfile.TemporaryDirectory() as scratch:
        picture = Path(scratch) / "page.png"
        shown = page.resolve()
        if section:
            # A headless browser takes its picture at the top, whatever the address names.
            shown = Path(scratch) / "page.html"
            shown.write_text(_from(page.read_text(encoding="utf-8"), section), encoding="utf-8")
        words = [
            browser,
            *SWITCHES,
            "--hide-scrollbars",
            f"--user-data-dir={scratch}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            shown.as_uri(),
        ]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"`{browser}` must answer. Got nothing in {_LONGEST_SECONDS} seconds."
            ) from None
        if not picture.exists():
            raise UnavailableError(f"`{browser}` must take a picture. Got exit {done.returncode}.")
        write_file(target, picture.read_bytes())


def _from(text: str, section: str) -> str:
    """Return a report without the sections before the given one.

    >>> _from('<main><section id="a">A</section><section id="b">B</section></main>', "b")
    '<main><section id="b">B</section></main>'
    """
    first, start = text.find("<section id="), text.find(f'<section id="{section}"')
    if start < 0:
        raise InputError(
            f"`section` must be in the report. Got {section!r}, which it does not have."
        )
    return text[:first] + text[start:]
