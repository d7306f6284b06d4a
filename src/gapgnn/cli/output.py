"""Where output goes: results to stdout, everything for people's eyes only to stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def complain(message: str) -> None:
    """Print one error line to stderr, whatever line breaks the message contains."""
    print("gapgnn: " + " ".join(message.split()), file=sys.stderr)


def emit_json(result: dict[str, Any]) -> None:
    """Print exactly one JSON object to stdout."""
    print(json.dumps(result, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays into what JSON knows."""
    return value.tolist()


def console(*, to_stderr: bool) -> Console:
    """Return a rich console for tables and progress."""
    from rich.console import Console

    return Console(stderr=to_stderr, highlight=False)
