"""``gapgnn serve``: predictions over HTTP, by id, from rows that were released before."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gapgnn.cli.output import emit_json, note
from gapgnn.errors import InputError, UnavailableError, check_integer, check_number

if TYPE_CHECKING:
    from gapgnn.serving import Served

TOKEN = "GAPGNN_SERVE_TOKEN"
_SHORTEST = 16

EPILOG = f"""\
Nothing is charged, however often somebody asks: the answers are those of `gapgnn predict --cached`.
Whoever asks sends a token of {TOKEN} or --token-file. Put a server that speaks TLS in front.

examples:
  {TOKEN}=$(openssl rand -hex 24) gapgnn serve --model january
  gapgnn serve --model january --token-file /run/secrets/token --workers 2
  gapgnn serve --predictions labels.jsonl --token-file /run/secrets/token

  curl -H "Authorization: Bearer $TOKEN" -d '{{"ids": [17, 18]}}' localhost:8017/v1/predictions
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--model", type=Path, metavar="FOLDER", help="a saved model at edge level")
    given.add_argument(
        "--predictions", type=Path, metavar="FILE", help="a .jsonl file of `gapgnn predict`"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8017, metavar="N", help="(8017; 0: any)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"tokens, one per line, else {TOKEN}"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument(
        "--rate",
        type=float,
        default=1000.0,
        metavar="N",
        help="requests a second (1000)",
    )
    parser.add_argument(
        "--not-private", action="store_true", help="serve a model that promises no privacy"
    )
    parser.add_argument("--json", action="store_true", help="print the address as a JSON object")


def execute(args: argparse.Namespace) -> int:
    """Listen, and serve until SIGTERM."""
    check_integer("workers", args.workers, at_least=1)
    check_number("rate", args.rate, above=0)
    _tokens(args.token_file)
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "`gapgnn serve` needs the packages fastapi and uvicorn. Install them with `pip install "
            '"gapgnn[serve]"`.'
        ) from None
    from gapgnn.serving import Supervisor, listen

    _check_servable(args)
    with listen(args.host, args.port) as listener:
        host, port = listener.getsockname()[:2]
        if args.json:
            emit_json({"host": host, "port": port})
            sys.stdout.flush()
        else:
            note(f"Serving on http://{host}:{port}; SIGHUP reads the model anew, SIGTERM ends.")

        def work(wait_for_turn: Callable[[], None]) -> None:
            # Read here, so that SIGHUP changes both.
            tokens = _tokens(args.token_file)
            _serve(listener, _served(args), tokens, args.rate / args.workers, wait_for_turn)

        return Supervisor(work, workers=args.workers).run()


def _tokens(file: Path | None) -> list[str]:
    """Return the tokens that are let in."""
    if file is None:
        tokens = [os.environ.get(TOKEN, "")]
    else:
        try:
            tokens = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            raise UnavailableError(f"`--token-file` cannot be read: {str(file)!r}.") from None
    tokens = [token.strip() for token in tokens if token.strip()]
    if not tokens or min(map(len, tokens)) < _SHORTEST:
        raise InputError(
            f"a token must have {_SHORTEST} letters or more. Got none or a shorter one: set "
            f"{TOKEN} or `--token-file`, for example to the output of `openssl rand -hex 24`."
        )
    return tokens


def _check_servable(args: argparse.Namespace) -> None:
    """Refuse a folder or file that is not there, before anybody is started."""
    place = args.model or args.predictions
    if not place.exists():
        raise UnavailableError(f"`--model` or `--predictions` does not exist: {str(place)!r}.")


def _served(args: argparse.Namespace) -> Served:
    from gapgnn.serving import rows_of_file, rows_of_model

    if args.model is not None:
        return rows_of_model(args.model, not_private=args.not_private)
    return rows_of_file(args.predictions)


def _serve(
    listener: object,
    served: Served,
    tokens: list[str],
    rate: float,
    wait_for_turn: Callable[[], None],
) -> None:
    """Answer requests until SIGTERM, in a process of its own."""
    import asyncio
    import logging
    import socket

    import uvicorn

    from gapgnn.serving import LOG, Guards, RateLimit, Tokens, make_app

    assert isinstance(listener, socket.socket)
    LOG.setLevel(logging.INFO)
    LOG.addHandler(logging.StreamHandler(sys.stderr))
    LOG.propagate = False
    LOG.info(json.dumps({"event": "start", "rows": len(served.rows)}))
    app = make_app(served, Guards(Tokens(tokens), RateLimit(rate, burst=rate)))
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=2000,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=1 << 14,
    )
    config.load()  # what it imports takes longer than an answer
    wait_for_turn()
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
