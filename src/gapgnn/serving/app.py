"""The service: `POST /v1/predictions` answers with one line of JSON for each id that was asked for.

========================== ========== ==========================================================
route                      token      answer
========================== ========== ==========================================================
``POST /v1/predictions``   yes        the lines of ``{"ids": [...]}``, in that order
``GET /v1/card``           yes        the privacy card of the model
``GET /metrics``           yes        counts and durations, for a monitor
``GET /healthz``           no         ``ok``
========================== ========== ==========================================================

Ids are in the body, because addresses end up in the logs of servers in between. What is logged of a
request is its route, status, duration and number of ids: no id, no token, no address of a client.
An unknown id, a body that is too large, too slow or no such object, a wrong token and too many
requests are refused with one line of JSON; nothing that was sent is in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gapgnn.serving.guards import Counts, RateLimit, Tokens
from gapgnn.serving.rows import Served

LOG = logging.getLogger("gapgnn.serving")
MOST_IDS = 1_000
MOST_BYTES = 1 << 16
BODY_SECONDS = 10.0
# Wrong tokens per second, of all clients together: nobody guesses 128 bits at that rate.
WRONG_TOKENS = 10.0
_LINES = "application/x-ndjson"


class RefusedError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        code: for programs.
        message: for people; nothing of the request is in it.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Guards:
    """Who may ask, and how often.

    Attributes:
        tokens: that are let in.
        requests: limit of all requests with a token.
        wrong: limit of requests without one, which are then not even compared.
    """

    tokens: Tokens
    requests: RateLimit
    wrong: RateLimit = field(
        default_factory=lambda: RateLimit(WRONG_TOKENS, burst=10 * WRONG_TOKENS)
    )

    def check(self, request: Request) -> None:
        """Refuse a request without a token, or one too many."""
        if not self.tokens.admits(request.headers.get("authorization")):
            if not self.wrong.allows():
                raise RefusedError(429, "too-many", "too many requests without a valid token")
            raise RefusedError(401, "no-token", "send a valid token: `Authorization: Bearer ...`")
        if not self.requests.allows():
            raise RefusedError(429, "too-many", "too many requests; try again in a second")


class Guarded:
    """Lets in whoever may ask, and counts and logs every request.

    Args:
        app: what answers.
        guards: who may ask.
        counts: for the monitor.
    """

    def __init__(self, app: ASGIApp, guards: Guards, counts: Counts) -> None:
        self._app, self._guards, self._counts = app, guards, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] != "/healthz":
                self._guards.check(Request(scope))
            await self._app(scope, receive, noting)
        except RefusedError as refused:
            await _refusal(refused)(scope, receive, noting)
        except Exception as error:
            # Its text may hold what was sent.
            LOG.error(json.dumps({"event": "error", "type": type(error).__name__}))
            if not status:
                failed = RefusedError(500, "error", "the request failed")
                await _refusal(failed)(scope, receive, noting)
        seconds = time.perf_counter() - started
        route = getattr(scope.get("route"), "path", "other")
        self._counts.add(route, status, seconds)
        if route != "/healthz":
            said = {"event": "request", "route": route, "status": status}
            LOG.info(json.dumps({**said, "ms": round(1000 * seconds, 2)}))


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return _refusal(error)


def make_app(served: Served, guards: Guards) -> FastAPI:
    """Return the service as an ASGI application.

    Args:
        served: the rows.
        guards: who may ask.

    >>> guards = Guards(Tokens(["a token of sixteen letters or more"]), RateLimit(9, burst=9))
    >>> sorted(route.path for route in make_app(Served({}), guards).routes)
    ['/healthz', '/metrics', '/v1/card', '/v1/predictions']
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    counts = Counts()
    app.add_middleware(Guarded, guards=guards, counts=counts)
    app.add_exception_handler(RefusedError, _answer_refusal)

    @app.get("/healthz")
    async def health() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(counts.text(rows=len(served.rows)), media_type="text/plain; version=0.0.4")

    @app.get("/v1/card")
    async def card() -> Response:
        if not served.card:
            raise RefusedError(404, "no-card", "these predictions were served without a card")
        return Response(served.card, media_type="application/json")

    @app.post("/v1/predictions")
    async def predictions(request: Request) -> Response:
        return Response(_lines(served, await _asked_ids(request)), media_type=_LINES)

    return app


def _lines(served: Served, ids: list[str]) -> bytes:
    """Return a line for each id; refuse all of them if one is unknown."""
    found = [served.rows.get(one) for one in ids]
    missing = sum(line is None for line in found)
    if missing:
        raise RefusedError(404, "unknown-id", f"{missing} of {len(ids)} ids are not known")
    return b"".join(line for line in found if line is not None)


async def _asked_ids(request: Request) -> list[str]:
    """Read the ids that are asked for."""
    try:
        body = await asyncio.wait_for(_body(request), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RefusedError(408, "too-slow", "the body took too long") from None
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(400, "bad-body", 'send an object such as {"ids": [17, "b-4"]}') from None
    ids = asked.get("ids") if isinstance(asked, dict) and set(asked) == {"ids"} else None
    is_plain = isinstance(ids, list) and all(type(one) in (int, str) for one in ids)
    if not isinstance(ids, list) or not is_plain or not 1 <= len(ids) <= MOST_IDS:
        raise RefusedError(
            400, "bad-body", f"`ids` must be a list of 1 to {MOST_IDS} numbers or texts, alone"
        )
    return [str(one) for one in ids]


async def _body(request: Request) -> bytes:
    """Read a body; stop where it is too large, whatever its header says."""
    too_large = RefusedError(413, "too-large", f"a body may have {MOST_BYTES} bytes")
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated) > MOST_BYTES:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise too_large
    return bytes(body)


def _refusal(refused: RefusedError) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
    return Response(
        json.dumps({"error": {"code": refused.code, "message": refused.message}}) + "\n",
        status_code=refused.status,
        media_type="application/json",
        headers=headers.get(refused.status),
    )
