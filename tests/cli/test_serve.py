"""The service: the answers of `gapgnn predict`, uncharged, and nothing to whoever attacks it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gapgnn.errors import GapgnnError, InputError, PrivacyError
from gapgnn.privacy.ledger import Ledger

pytestmark = pytest.mark.gate

pytest.importorskip("fastapi")
TOKEN = "a token that nobody guesses"
# Whoever has no answer after so many seconds gets none, however busy the machine is.
HANGS = 300.0


@dataclass
class Service:
    """A service in a process of its own, on a port of this machine alone."""

    words: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Service:
        command = [sys.executable, "-m", "gapgnn", "serve", *self.words, "--port", "0", "--json"]
        settings = {**os.environ, "GAPGNN_SERVE_TOKEN": TOKEN, **self.environment}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=settings, text=True
            )
        assert self.process.stdout is not None
        self.port = json.loads(self.process.stdout.readline())["port"]
        deadline = time.monotonic() + HANGS
        while self.ask("GET", "/healthz")[0] != 200:  # waits in the queue of the socket
            assert time.monotonic() < deadline
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        assert self.process.stdout is not None
        assert self.process.stdout.read() == ""  # one object is all
        self.process.stdout.close()
        assert self.process.wait(HANGS) == 0

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Send one request and return the status and the answer."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        given = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS)) as link:
            link.request(method, path, given, sent)
            answer = link.getresponse()
            return answer.status, answer.read()

    def predict(self, ids: list[Any]) -> tuple[int, bytes]:
        return self.ask("POST", "/v1/predictions", {"ids": ids})

    def workers(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(one) for one in listed.read_text().split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, its ledger and what `gapgnn predict` says."""
    from gapgnn import LabelGAP
    from gapgnn.cli.main import main
    from gapgnn.graph.datasets import load_dataset

    folder = tmp_path_factory.mktemp("served")
    ledger = Ledger.init(folder / "ledger.sqlite")
    graph = load_dataset("social")
    LabelGAP(epochs=1, hops=1, ledger=ledger.path).fit(graph).save(folder / "model")
    words = ["--model", str(folder / "model"), "--ledger", str(ledger.path)]
    assert main(["predict", *words, "--cached", "--out", str(folder / "labels.jsonl")]) == 0
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with Service(["--model", str(folder / "model")], folder / "log") as service:
        yield service


def test_answers_are_those_of_predict_byte_for_byte_and_never_charged(
    service: Service, folder: Path
) -> None:
    before = (folder / "ledger.sqlite").read_bytes()
    written = (folder / "labels.jsonl").read_bytes()
    ids = [json.loads(line)["id"] for line in written.splitlines()]
    answered = b""
    for start in range(0, len(ids), 1000):
        status, lines = service.predict(ids[start : start + 1000])
        assert status == 200
        answered += lines
    assert answered == written
    assert service.predict([str(ids[3])])[1] == written.splitlines(keepends=True)[3]
    assert (folder / "ledger.sqlite").read_bytes() == before


def test_the_card_is_the_models(service: Service, folder: Path) -> None:
    assert service.ask("GET", "/v1/card") == (200, (folder / "model" / "card.json").read_bytes())


def test_a_monitor_sees_counts_and_nobody_without_a_token_does(service: Service) -> None:
    assert service.ask("GET", "/healthz", token=None) == (200, b"ok\n")
    status, text = service.ask("GET", "/metrics")
    assert status == 200
    assert b'gapgnn_requests_total{route="/v1/predictions",status="200"}' in text
    assert service.ask("GET", "/metrics", token=None)[0] == 401


SECRET = "4242424242"
ATTACKS: dict[str, tuple[int, dict[str, Any]]] = {
    "no token": (401, {"token": None, "body": {"ids": [0]}}),
    "a wrong token": (401, {"token": SECRET, "body": {"ids": [0]}}),
    "a prefix of the token": (401, {"token": TOKEN[:-1], "body": {"ids": [0]}}),
    "another scheme": (
        401,
        {"token": None, "headers": {"Authorization": f"Basic {TOKEN}"}, "body": {"ids": [0]}},
    ),
    "an unknown id": (404, {"body": {"ids": [0, SECRET]}}),
    "no object": (400, {"body": [SECRET]}),
    "another key": (400, {"body": {"ids": [0], "where": SECRET}}),
    "an id of another type": (400, {"body": {"ids": [{"$ne": SECRET}]}}),
    "a truth value": (400, {"body": {"ids": [True]}}),
    "no ids": (400, {"body": {"ids": []}}),
    "too many ids": (400, {"body": {"ids": [0] * 1001}}),
    "no JSON": (400, {"body": b"{" + SECRET.encode()}),
    "deep JSON": (400, {"body": b"[" * 60_000}),
    "a huge body": (413, {"body": b"[" * 70_000}),
    "a path above": (404, {"method": "GET", "path": "/../../etc/passwd"}),
    "a path above, encoded": (404, {"method": "GET", "path": "/v1/%2e%2e/%2e%2e/etc/passwd"}),
    "a file of the model": (404, {"method": "GET", "path": "/v1/card/../config.json"}),
    "the pages of the framework": (404, {"method": "GET", "path": "/docs"}),
    "its description": (404, {"method": "GET", "path": "/openapi.json"}),
    "another method": (405, {"method": "DELETE"}),
    "a long address": (404, {"method": "GET", "path": "/" + "a" * 8000}),
}


@pytest.mark.parametrize(("status", "attack"), ATTACKS.values(), ids=ATTACKS)
def test_what_is_no_request_is_refused_without_an_echo(
    service: Service, folder: Path, status: int, attack: dict[str, Any]
) -> None:
    asked = {"method": "POST", "path": "/v1/predictions", **attack}
    found, answer = service.ask(asked.pop("method"), asked.pop("path"), **asked)
    assert found == status
    assert SECRET.encode() not in answer
    assert b"Traceback" not in answer
    assert b"root:" not in answer
    assert service.predict([0])[0] == 200


def test_what_is_no_http_is_dropped_and_the_service_goes_on(service: Service) -> None:
    head = b"POST /v1/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode()
    for sent in (
        b"\x16\x03\x01" * 100,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
        head + b"\r\nContent-Length: 99999999999\r\n\r\n",
        head + b"\r\nContent-Length: -1\r\n\r\n",
        head
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"ffff\r\n"
        + b"[" * 0xFFFF
        + b"\r\n" * 2,
    ):
        with closing(socket.create_connection(("127.0.0.1", service.port), HANGS)) as link:
            with suppress(OSError):
                link.sendall(sent)
            link.settimeout(2)
            with suppress(OSError):
                assert b" 200 " not in link.recv(4096)
    assert service.predict([0])[0] == 200


def test_a_thousand_connections_at_once_do_not_stop_it(service: Service) -> None:
    links = []
    try:
        for _ in range(1000):
            links.append(socket.create_connection(("127.0.0.1", service.port), HANGS))
            links[-1].sendall(b"POST /v1/predictions HTTP/1.1\r\nHost: x\r\n")  # and no more
        assert service.predict([0])[0] == 200
    finally:
        for link in links:
            link.close()
    assert service.predict([0])[0] == 200


def test_logs_have_no_id_no_token_and_no_client(service: Service, folder: Path) -> None:
    service.predict([SECRET])
    service.ask("GET", f"/v1/predictions/{SECRET}?id={SECRET}", token=SECRET)
    service.ask("POST", "/v1/predictions", {"ids": [{"a": SECRET}]})
    text = (folder / "log").read_text()
    assert '"route": "/v1/predictions", "status": 404' in text
    assert SECRET not in text
    assert TOKEN not in text
    assert "127.0.0.1:" not in text.replace(f"http://127.0.0.1:{service.port}", "")
    assert "Traceback" not in text


def test_more_requests_than_the_rate_are_refused_until_there_is_room(folder: Path) -> None:
    # Thirty of one in a second: all would be answered if they took half a minute.
    words = ["--predictions", str(folder / "labels.jsonl"), "--rate", "1"]
    with Service(words, folder / "log of rate") as service:
        found = [service.predict([0])[0] for _ in range(30)]
        assert 429 in found
        assert 200 in found
        assert service.ask("GET", "/v1/card")[0] in (404, 429)
        deadline = time.monotonic() + HANGS
        while service.predict([0])[0] != 200:
            assert time.monotonic() < deadline


def test_a_worker_that_is_killed_and_a_new_model_interrupt_nobody(folder: Path) -> None:
    """Whoever asks while nobody serves waits in the queue of the socket."""
    file = folder / "changing.jsonl"
    file.write_text('{"id": 0, "label": "north"}\n')
    with Service(["--predictions", str(file), "--workers", "2"], folder / "log of kill") as service:
        while len(service.workers()) < 3:  # one more than asked for
            time.sleep(0.01)
        before = service.workers()
        for process in before:
            os.kill(process, signal.SIGKILL)
        while set(before) & set(service.workers()):
            time.sleep(0.01)  # one that is dying may still take a connection
        assert service.predict([0]) == (200, b'{"id": 0, "label": "north"}\n')
        file.write_text('{"id": 0, "label": "south"}\n')
        service.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + HANGS
        while service.predict([0])[1] != b'{"id": 0, "label": "south"}\n':
            assert service.predict([0])[0] == 200
            assert time.monotonic() < deadline
        # What cannot be read leaves the old ones in their place.
        file.write_text("no predictions\n")
        service.process.send_signal(signal.SIGHUP)
        for _ in range(20):
            assert service.predict([0])[0] == 200


def test_one_who_waits_takes_the_place_of_a_worker_that_is_killed(folder: Path) -> None:
    """It had read everything before the kill, so nobody waits for a program to start."""
    words = ["--predictions", str(folder / "labels.jsonl")]
    with Service(words, folder / "log of spare") as service:
        for _ in range(2):
            deadline = time.monotonic() + HANGS
            while len(service.workers()) < 2:
                time.sleep(0.01)
                assert time.monotonic() < deadline
            serving, waiting = service.workers()
            os.kill(serving, signal.SIGKILL)
            assert service.predict([0])[0] == 200
            assert waiting in service.workers()
            assert serving not in service.workers()
        # One that waits may be killed too; it has nothing to answer.
        os.kill(service.workers()[-1], signal.SIGKILL)
        assert service.predict([0])[0] == 200


def test_a_thousand_requests_at_once_are_all_answered(service: Service) -> None:
    """Each on a connection of its own, and none before all are open."""
    body = b'{"ids": [0, 1, 2]}'
    head = f"POST /v1/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    sent = f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    expected = service.predict([0, 1, 2])[1]
    links = [socket.create_connection(("127.0.0.1", service.port), HANGS) for _ in range(1000)]
    try:
        for link in links:
            link.sendall(sent)
        for link in links:
            with link.makefile("rb") as answer:
                status, _, content = answer.read().partition(b"\r\n\r\n")
            assert status.startswith(b"HTTP/1.1 200"), status
            assert content == expected
    finally:
        for link in links:
            link.close()


def test_connections_send_small_answers_at_once() -> None:
    """asyncio sets TCP_NODELAY where a socket says its protocol; else an answer takes 40 ms."""
    from gapgnn.serving import listen

    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.proto == socket.IPPROTO_TCP


def test_what_must_not_be_served_is_refused_before_anything_listens(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapgnn import LabelGAP, NodeLabelGAP
    from gapgnn.cli.main import main
    from gapgnn.graph.datasets import load_dataset
    from gapgnn.serving.rows import rows_of_file, rows_of_model

    graph = load_dataset("social")
    options = {"epochs": 1, "ledger": folder / "ledger.sqlite"}
    LabelGAP(level="none", hops=1, **options).fit(graph, curator_only="x").save(tmp_path / "bare")
    with pytest.raises(PrivacyError, match="promises no privacy"):
        rows_of_model(tmp_path / "bare")
    assert rows_of_model(tmp_path / "bare", not_private=True).rows
    NodeLabelGAP(epsilon=8.0, **options).fit(graph).save(tmp_path / "node")
    with pytest.raises((InputError, PrivacyError)) as refusal:
        rows_of_model(tmp_path / "node")
    assert "\n" not in str(refusal.value)
    for text in ("[1]\n", '{"id": 1}\n{"id": "1"}\n', "no\n"):
        (tmp_path / "bad.jsonl").write_text(text)
        with pytest.raises(GapgnnError, match="`--predictions` must"):
            rows_of_file(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text("no\n")
    words = ["serve", "--predictions", str(tmp_path / "bad.jsonl"), "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "gapgnn", *words],
        env={**os.environ, "GAPGNN_SERVE_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 2
    assert "gapgnn: `--predictions` must have" in done.stderr
    for token in ("", "short"):
        monkeypatch.setenv("GAPGNN_SERVE_TOKEN", token)
        with pytest.raises(InputError, match="16 letters or more"):
            main(["serve", "--model", str(folder / "model"), "--port", "0"])
