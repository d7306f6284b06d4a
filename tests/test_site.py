"""The site in a real browser: on a desk and on a phone, in the light and in the dark."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browsing import NEEDED, Browser, Tab, serious_problems

pytestmark = [*NEEDED, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
# One page of each sort, and those with the widest tables.
PAGES = (
    "index.html",
    "questions/index.html",
    "tutorials/first-model/index.html",
    "tutorials/notebook/index.html",
    "how-to/own-model/index.html",
    "reference/gapgnn/index.html",
    "reference/commands/index.html",
    "explanation/privacy/index.html",
    "explanation/results/index.html",
    "explanation/sharp-edges/index.html",
)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built as the gate builds it."""
    pytest.importorskip("mkdocs", reason="comes with the dev extra")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_no_serious_problem(
    browser: Browser, site: str, page: str, width: int, theme: str
) -> None:
    tab = Tab(browser, f"{site}/{page}", width=width, offline=False)
    scheme = {"light": "default", "dark": "slate"}[theme]
    tab.value(f"document.querySelector('input[data-md-color-scheme={scheme}]').click()")
    tab.wait_for(f"document.body.getAttribute('data-md-color-scheme') === '{scheme}'")
    assert serious_problems(tab) == []


@pytest.mark.parametrize("page", PAGES)
def test_on_a_phone_no_page_is_wider_than_the_screen(
    browser: Browser, site: str, page: str
) -> None:
    tab = Tab(browser, f"{site}/{page}", width=390, offline=False)
    assert tab.value("document.documentElement.scrollWidth") <= 390
