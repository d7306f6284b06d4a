"""Who may ask, how often and how much: bearer tokens, a rate limit, counts for a monitor."""

from __future__ import annotations

import hashlib
import hmac
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

# Upper ends of the histogram of durations, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Tokens:
    """The tokens that are let in, compared in a time that does not depend on what is wrong.

    >>> tokens = Tokens(["a token of sixteen letters or more"])
    >>> tokens.admits("Bearer a token of sixteen letters or more"), tokens.admits("Bearer x")
    (True, False)
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def admits(self, authorization: str | None) -> bool:
        """Tell whether a header ``Authorization`` has one of the tokens."""
        scheme, _, token = (authorization or "").partition(" ")
        asked = _digest(token)
        # All of them are compared, whichever it is.
        found = [hmac.compare_digest(asked, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(found)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


class RateLimit:
    """A bucket of requests that fills at a steady rate.

    Args:
        rate: requests per second.
        burst: how many may come at once; at least one, or nobody would ever be let in.
        clock: seconds that only go on.

    >>> now = [0.0]
    >>> limit = RateLimit(2, burst=1, clock=lambda: now[0])
    >>> [limit.allows(), limit.allows()]
    [True, False]
    >>> now[0] = 0.5
    >>> limit.allows()
    True
    """

    def __init__(
        self, rate: float, *, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._left, self._at = self._burst, clock()

    def allows(self) -> bool:
        """Take one request out of the bucket if there is one."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Counts:
    """What a monitor reads: requests by route and status, and how long they took.

    >>> counts = Counts()
    >>> counts.add("/v1/predictions", 200, 0.002)
    >>> print(counts.text(rows=3).splitlines()[1])
    gapgnn_requests_total{route="/v1/predictions",status="200"} 1
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._durations = [0] * (len(BUCKETS) + 1)
        self._total = 0.0

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self._requests[route, status] += 1
        self._durations[bisect_left(BUCKETS, seconds)] += 1
        self._total += seconds

    def text(self, *, rows: int) -> str:
        """Return everything in the text format of Prometheus."""
        lines = ["# TYPE gapgnn_requests_total counter"]
        lines += [
            f'gapgnn_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(self._requests.items())
        ]
        lines.append("# TYPE gapgnn_request_seconds histogram")
        so_far = 0
        for end, count in zip((*BUCKETS, "+Inf"), self._durations, strict=True):
            so_far += count
            lines.append(f'gapgnn_request_seconds_bucket{{le="{end}"}} {so_far}')
        lines += [
            f"gapgnn_request_seconds_sum {self._total:.6f}",
            f"gapgnn_request_seconds_count {so_far}",
            "# TYPE gapgnn_rows gauge",
            f"gapgnn_rows {rows}",
        ]
        return "\n".join(lines) + "\n"
