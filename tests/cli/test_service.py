"""The service as an application, without a socket: who is let in, what is answered and logged."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gapgnn import MLP, LabelGAP, NeighborVote
from gapgnn.errors import DataError, InputError, PrivacyError
from gapgnn.graph.datasets.synthetic import social_graph
from gapgnn.privacy.ledger import Ledger

pytest.importorskip("fastapi")

from gapgnn.serving import Guards, RateLimit, Served, Tokens, make_app, rows_of_file, rows_of_model

TOKEN, OTHER, SECRET = "a token that nobody guesses", "another token of a client", "4242424242"
ROWS = {"7": b'{"id": 7}\n', "b-4": b'{"id": "b-4"}\n'}


def guards(tokens: tuple[str, ...] = (TOKEN, OTHER), *, rate: float = 1e6, wrong: float = 1e6):
    limits = (RateLimit(one, burst=one, clock=lambda: 0.0) for one in (rate, wrong))
    return Guards(Tokens(tokens), *limits)


def ask(
    app: Any,
    method: str = "POST",
    path: str = "/v1/predictions",
    body: Any = None,
    *,
    authorization: str | None = f"Bearer {TOKEN}",
    pieces: int = 1,
    **headers: str,
) -> tuple[int, bytes]:
    """Send one request to an ASGI application; return its status and answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = -(-len(raw) // pieces)
    sent = [raw[at : at + size] for at in range(0, max(len(raw), 1), max(size, 1))]
    given = {} if authorization is None else {"authorization": authorization}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    answered: list[Any] = []

    async def receive() -> Any:
        part = sent.pop(0) if sent else b""
        return {"type": "http.request", "body": part, "more_body": bool(sent)}

    async def send(message: Any) -> None:
        answered.append(message)

    asyncio.run(app(scope, receive, send))
    return answered[0]["status"], b"".join(one.get("body", b"") for one in answered)


def predict(app: Any, ids: Any, **options: Any) -> tuple[int, bytes]:
    return ask(app, body={"ids": ids}, **options)


def test_ids_are_answered_in_their_order_in_either_type_and_all_of_them_or_none() -> None:
    app = make_app(Served(ROWS), guards())
    assert predict(app, ["b-4", 7, "7"]) == (200, ROWS["b-4"] + 2 * ROWS["7"])
    status, answer = predict(app, [7, SECRET])
    assert (status, json.loads(answer)["error"]["code"]) == (404, "unknown-id")
    assert b'"id"' not in answer


@pytest.mark.parametrize("path", ["/v1/predictions", "/v1/card", "/metrics", "/docs", "/"])
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN],
)
def test_without_its_token_nothing_is_answered(path: str, authorization: str | None) -> None:
    app = make_app(Served(ROWS, b"{}"), guards())
    for method in ("GET", "POST"):
        status, answer = ask(app, method, path, {"ids": [7]}, authorization=authorization)
        assert (status, json.loads(answer)["error"]["code"]) == (401, "no-token")


def test_every_token_of_the_file_is_let_in_and_life_is_shown_to_all() -> None:
    app = make_app(Served(ROWS, b'{"card": 1}'), guards())
    assert ask(app, "GET", "/healthz", authorization=None) == (200, b"ok\n")
    for token in (TOKEN, OTHER):
        assert ask(app, "GET", "/v1/card", authorization=f"Bearer {token}")[1] == b'{"card": 1}'
    assert ask(make_app(Served(ROWS), guards()), "GET", "/v1/card")[0] == 404


def test_who_guesses_tokens_is_slowed_down_and_nobody_else() -> None:
    app = make_app(Served(ROWS), guards(wrong=2))
    found = [predict(app, [7], authorization="Bearer guess")[0] for _ in range(4)]
    assert found == [401, 401, 429, 429]
    assert predict(app, [7])[0] == 200


def test_more_requests_than_the_rate_are_refused() -> None:
    app = make_app(Served(ROWS), guards(rate=2))
    assert [predict(app, [7])[0] for _ in range(3)] == [200, 200, 429]
    # One without a token takes nobody's place.
    app = make_app(Served(ROWS), guards(rate=1))
    assert predict(app, [7], authorization=None)[0] == 401
    assert predict(app, [7])[0] == 200


def test_a_rate_below_one_lets_in_one_request_at_a_time() -> None:
    now = [0.0]
    limit = RateLimit(0.25, burst=0.25, clock=lambda: now[0])
    found = []
    for now[0] in (0.0, 0.0, 3.9, 4.0, 4.0, 100.0, 100.0):
        found.append(limit.allows())
    assert found == [True, False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, [SECRET]),
        (400, {"ids": [7], "where": SECRET}),
        (400, {"ids": [{"$ne": SECRET}]}),
        (400, {"ids": [True]}),
        (400, {"ids": [7.0]}),
        (400, {"ids": SECRET}),
        (400, {"ids": []}),
        (400, {"ids": [7] * 1001}),
        (200, {"ids": [7] * 1000}),
        (400, b"{" + SECRET.encode()),
        (400, b"[" * 60_000),
        (413, b"[" * 70_000),
    ],
)
def test_what_is_no_request_is_refused_without_an_echo(status: int, body: Any) -> None:
    app = make_app(Served(ROWS), guards())
    for pieces in (1, 3):
        found, answer = ask(app, body=body, pieces=pieces)
        assert found == status
        assert SECRET.encode() not in answer


@pytest.mark.parametrize("stated", ["70000", "-1", "many"])
def test_a_body_that_is_said_to_be_too_large_is_not_read(stated: str) -> None:
    app = make_app(Served(ROWS), guards())
    assert predict(app, [7], content_length=stated)[0] == 413


def test_the_log_has_routes_and_durations_and_nothing_of_a_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(Served(ROWS), guards())
    monkeypatch.setattr(logging.getLogger("gapgnn.serving"), "propagate", True)
    with caplog.at_level(logging.INFO, "gapgnn.serving"):
        predict(app, [7])
        predict(app, [SECRET])
        predict(app, [SECRET], authorization=f"Bearer {SECRET}")
        ask(app, "GET", f"/v1/predictions/{SECRET}")
        ask(app, "GET", "/healthz")
        # What fails inside may quote what was sent.
        broken = make_app(Served({"7": SECRET}), guards())  # type: ignore[dict-item]
        assert predict(broken, [7])[0] == 500
    lines = [json.loads(one.getMessage()) for one in caplog.records]
    found = [(one["route"], one["status"]) for one in lines if one["event"] == "request"]
    asked = [("/v1/predictions", 200), ("/v1/predictions", 404), ("other", 401), ("other", 404)]
    assert found == [*asked, ("/v1/predictions", 500)]
    assert {key for one in lines for key in one} == {"event", "route", "status", "ms", "type"}
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text


def test_a_monitor_counts_every_answer_by_route_and_status() -> None:
    app = make_app(Served(ROWS), guards(wrong=1))
    for authorization in (f"Bearer {TOKEN}", f"Bearer {TOKEN}", None, None):
        predict(app, [7], authorization=authorization)
    text = ask(app, "GET", "/metrics")[1].decode()
    for line in (
        'gapgnn_requests_total{route="/v1/predictions",status="200"} 2',
        'gapgnn_requests_total{route="other",status="401"} 1',
        'gapgnn_requests_total{route="other",status="429"} 1',
        "gapgnn_request_seconds_count 4",
        "gapgnn_rows 2",
    ):
        assert line in text.splitlines()


# What is served ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a ledger and saved models, private and not."""
    place = tmp_path_factory.mktemp("served")
    graph = social_graph(num_nodes=300, mean_degree=8, num_classes=3, seed=0)
    shared: dict[str, Any] = {"ledger": Ledger.init(place / "ledger.sqlite").path, "epochs": 1}
    LabelGAP(hops=1, **shared).fit(graph).save(place / "model")
    LabelGAP(hops=1, level="none", **shared).fit(graph, curator_only="x").save(place / "bare")
    NeighborVote(ledger=shared["ledger"]).fit(graph).save(place / "own")
    MLP(**shared).fit(graph).save(place / "features")
    return place


def test_a_model_answers_as_predict_does_with_its_card_and_nothing_is_charged(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gapgnn.cli.main import main

    before = Ledger(place / "ledger.sqlite").chain()
    served = rows_of_model(place / "model")
    words = ["--model", str(place / "model"), "--ledger", str(place / "ledger.sqlite"), "--cached"]
    assert main(["predict", *words, "--out", str(place / "labels.jsonl")]) == 0
    assert b"".join(served.rows.values()) == (place / "labels.jsonl").read_bytes()
    assert rows_of_file(place / "labels.jsonl").rows == served.rows
    assert served.card == (place / "model" / "card.json").read_bytes()
    assert Ledger(place / "ledger.sqlite").chain() == before


def test_what_promises_less_than_a_service_needs_is_refused(place: Path) -> None:
    with pytest.raises(PrivacyError, match="promises no privacy"):
        rows_of_model(place / "bare")
    assert len(rows_of_model(place / "bare", not_private=True).rows) == 300
    for allowed in (False, True):
        with pytest.raises(PrivacyError, match="each person's own neighbours"):
            rows_of_model(place / "own", not_private=allowed)
    with pytest.raises(InputError, match="from released rows alone"):
        rows_of_model(place / "features")


@pytest.mark.parametrize("text", ["[1]\n", '{"id": 1}\n{"id": "1"}\n', "no\n", '{"name": 1}\n'])
def test_a_file_that_is_no_table_of_predictions_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.jsonl").write_text(text)
    with pytest.raises(DataError, match="`--predictions` must"):
        rows_of_file(tmp_path / "labels.jsonl")
