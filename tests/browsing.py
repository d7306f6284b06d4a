"""Chromium without a network, driven over a pipe by its DevTools protocol, for tests of pages."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gapgnn.evaluation.report.page import SWITCHES, find_browser

NEEDED = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed"),
]

# The browser reads commands from descriptor 3 and answers on 4, whatever numbers they have here.
LAUNCH = (
    "import fcntl, os, sys; reader, writer = map(int, sys.argv[1:3]);"
    "high = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (reader, writer)];"
    "os.dup2(high[0], 3); os.dup2(high[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 300.0


class Browser:
    """One headless browser; commands wait for their answer, events are kept."""

    def __init__(self, folder: Path) -> None:
        path = find_browser()
        assert path is not None
        reader, self._out = os.pipe()
        self._in, writer = os.pipe()
        words = [*SWITCHES, f"--user-data-dir={folder}", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(reader), str(writer), path, *words],
            pass_fds=(reader, writer),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reader)
        os.close(writer)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found["error"]
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            self._rest += os.read(self._in, 1 << 20)
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def close(self) -> None:
        try:
            self.ask("Browser.close")
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)


class Tab:
    """One page of the browser."""

    def __init__(
        self, browser: Browser, page: Path | str, *, width: int = 1280, offline: bool = True
    ) -> None:
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Network.emulateNetworkConditions",
            offline=offline,
            latency=0,
            downloadThroughput=0 if offline else -1,
            uploadThroughput=0 if offline else -1,
        )
        self.resize(width)
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete' && location.protocol !== 'about:'")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def value(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.02)

    def press(self, key: str) -> None:
        codes = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }
        text = {"text": "\r"} if key == "Enter" else {}
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **shared)

    def said(self, method: str) -> list[dict[str, Any]]:
        self.value("1")
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") == method
        ]

    @property
    def errors(self) -> list[Any]:
        logged = [e["entry"] for e in self.said("Log.entryAdded")]
        console = [e for e in self.said("Runtime.consoleAPICalled") if e["type"] != "log"]
        return [*logged, *console, *self.said("Runtime.exceptionThrown")]

    def picture(self, path: Path, *, height: int = 5000) -> None:
        """Write what the page looks like, from the top down to a height."""
        width = self.value("innerWidth")
        height = min(height, self.value("document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        beyond = {"captureBeyondViewport": True, "clip": clip}
        shot = self.ask("Page.captureScreenshot", format="png", **beyond)
        path.write_bytes(base64.b64decode(shot["data"]))

    def use_theme(self, theme: str) -> None:
        """Say which theme the reader's system has."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.ask("Emulation.setEmulatedMedia", features=features)


def axe() -> str:
    """Return the program axe-core: that of the dev extra, or of GAPGNN_AXE for a newer one."""
    named = os.environ.get("GAPGNN_AXE")
    if named:
        return Path(named).read_text()
    package = pytest.importorskip("axe_core_python", reason="comes with the dev extra")
    return (Path(package.__file__).parent / "axe.min.js").read_text()


def serious_problems(tab: Tab) -> list[Any]:
    """Return what axe-core finds on a page that keeps people from reading it."""
    tab.ask("Runtime.evaluate", expression=axe())
    answer = tab.ask(
        "Runtime.evaluate",
        expression="axe.run({resultTypes: ['violations']}).then(found => "
        "JSON.stringify(found.violations.map("
        "one => [one.impact, one.id, one.nodes.slice(0, 5).map(node => node.html)])))",
        awaitPromise=True,
        returnByValue=True,
    )
    found = json.loads(answer["result"]["value"])
    return [one for one in found if one[0] in ("serious", "critical")]
