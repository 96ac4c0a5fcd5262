"""The calls of an S3 client library that a replay makes, and the outcomes of their requests."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Protocol

from kvreplay.plan.buffers import address_of

_ERROR_BODY = re.compile(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", re.DOTALL)
CLEANING_THREADS = 16
"""Number of deletes in flight when a prefix is cleaned, which is not measured."""


class Answer(StrEnum):
    """The outcome of a request to a store."""

    DONE = "done"
    REFUSED = "refused"
    """503 SlowDown or 429: the store asks for fewer requests."""
    FAILED = "failed"
    """A fault of the store or the network: 500, no connection."""
    TIMED_OUT = "timed_out"
    """No answer in time."""
    FINAL = "final"
    """An error that a retry does not resolve: no such object, no permission."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The outcome of a request that did not succeed."""

    answer: Answer
    message: str
    is_missing: bool = False
    """Whether the store has no such object or bucket."""


class ShortAnswerError(Exception):
    """A read returned fewer or more bytes than it asked for."""


class S3Client(Protocol):
    """One client library, connected to a prefix by each of its endpoints.

    `endpoint` is an index into the endpoints of the address, and `key` is the key of an object
    below the prefix. Each method may be called from many threads, sends its request once, and
    raises one of `errors` if that fails.
    """

    version: str
    errors: tuple[type[Exception], ...]
    """The exceptions that the library raises for a request."""
    settings: dict[str, object]
    """The library's settings that affect the requests on the wire, for run.json."""

    def put(self, endpoint: int, key: str, data: memoryview) -> None:
        """Write a whole object."""

    def get(self, endpoint: int, key: str, into: memoryview) -> None:
        """Read a whole object, which is as long as `into`."""

    def get_range(self, endpoint: int, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the object's bytes from `offset` on."""

    def delete(self, endpoint: int, key: str) -> None:
        """Delete an object; one that does not exist is no error."""

    def stat(self, endpoint: int, key: str) -> None:
        """Ask for the metadata of an object; it is an error if the object does not exist."""

    def list_names(self, endpoint: int) -> list[str]:
        """Return the names of all objects below the prefix, with their bucket."""

    def delete_all(self, endpoint: int, folder: str) -> None:
        """Delete all objects whose keys begin with `folder`."""

    def fault_of(self, error: Exception, without_name: Callable[[str], str]) -> Fault:
        """Return the outcome that `error` stands for.

        `without_name` replaces the name of the object in a text by a placeholder. A name that
        contains a word such as `404` must not affect the classification.
        """

    def close(self) -> None:
        """Close the connections."""


def fault_of_status(status: int, message: str) -> Fault:
    """Return the outcome of a request that the store answered with an HTTP status of 300 or more."""
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return Fault(Answer.REFUSED, message)
    is_final = status < HTTPStatus.INTERNAL_SERVER_ERROR
    is_missing = status == HTTPStatus.NOT_FOUND
    return Fault(Answer.FINAL if is_final else Answer.FAILED, message, is_missing)


def error_of_body(text: str) -> str | None:
    """Return the code and message of S3's XML error body within `text`; None without one."""
    body = _ERROR_BODY.search(text)
    return None if body is None else ": ".join(filter(None, body.groups()))


def check_length(received_bytes: int, into: memoryview) -> None:
    """Raise ShortAnswerError unless a read returned as many bytes as it asked for."""
    if received_bytes != len(into):
        raise ShortAnswerError(f"{received_bytes:,} of {len(into):,} bytes came")


def delete_each(delete: Callable[[str], None], keys: Iterable[str]) -> None:
    """Delete `keys` by one request each, several at a time; the first error is raised."""
    with ThreadPoolExecutor(CLEANING_THREADS) as threads:
        for _ in threads.map(delete, keys):
            pass


def copy(into: memoryview, source: memoryview) -> None:
    """Copy all of `source` without the interpreter's lock, so that other threads run meanwhile."""
    ctypes.memmove(address_of(into), address_of(source), len(source))
