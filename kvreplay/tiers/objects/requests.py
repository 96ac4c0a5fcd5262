"""What became of requests to a store: how many there were of each kind, how many it refused, how many were repeated."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Any


class Answer(StrEnum):
    """How a request to a store ended."""

    DONE = "done"
    REFUSED = "refused"
    """503 SlowDown or 429: the store asks for fewer requests."""
    FAILED = "failed"
    """A fault of the store or of the way there: 500, no connection, no answer in time."""
    FINAL = "final"
    """What will not change: no such object, no permission."""


_REFUSED = (
    *("SlowDown", "HTTP 503", "status 503", "HTTP 429", "status 429"),
    *("ServiceUnavailable", "TooManyRequests", "Throttl", "throttled"),
)
_FINAL = (
    *("NoSuch", "not found", "AccessDenied", "Forbidden", "SignatureDoesNotMatch", "InvalidAccessKeyId"),
    *("InvalidRange", "InvalidBucketName", "EntityTooLarge", "HTTP 4", "status 4", "Missing AWS", "LengthMismatch"),
)


def answer_of(text: str) -> Answer:
    """Return how a request ended of which s3dlio says `text`: it has no other sign than words."""
    if any(word in text for word in _REFUSED):
        return Answer.REFUSED
    return Answer.FINAL if any(word in text for word in _FINAL) else Answer.FAILED


class RequestCounts:
    """Counts of all requests of one tier."""

    def __init__(self, endpoints: int) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._endpoints = [dict.fromkeys(("requests", "refused", "failed"), 0) for _ in range(endpoints)]
        self.operations_repeated = 0
        """Operations that went through after the store had refused or failed them."""
        self.waited_ns = 0
        """Time that operations waited between their requests, together."""

    def add(self, kind: str, endpoint: int, answer: Answer, nbytes: int, *, is_repeat: bool) -> None:
        """Count one request: `kind` is put, get, ranged get or delete."""
        with self._lock:
            names = ("requests", "refused", "failed", "repeats", "bytes")
            count = self._counts.setdefault(kind, dict.fromkeys(names, 0))
            count["requests"] += 1
            count["repeats"] += is_repeat
            count["bytes"] += nbytes if answer is Answer.DONE else 0
            at = self._endpoints[endpoint]
            at["requests"] += 1
            if answer is not Answer.DONE:
                name = "refused" if answer is Answer.REFUSED else "failed"
                count[name] += 1
                at[name] += 1

    def add_repeated(self, waited_ns: int, *, is_done: bool) -> None:
        """Count an operation that took more than one request."""
        with self._lock:
            self.operations_repeated += is_done
            self.waited_ns += waited_ns

    def total(self, name: str) -> int:
        """Return the sum of one count over all kinds."""
        return sum(count[name] for count in self._counts.values())

    def facts(self) -> dict[str, Any]:
        """Return the counts by kind, and what was done about refusals."""
        return {
            "requests": {kind: dict(count) for kind, count in self._counts.items()},
            "operations_repeated": self.operations_repeated,
            "waited_ns": self.waited_ns,
        }

    def of_endpoint(self, index: int) -> dict[str, int]:
        """Return the counts of one endpoint."""
        return dict(self._endpoints[index])
