"""Requests by s3dlio, which also takes `az://` and `gs://` targets.

s3dlio's own retries are switched off, because it does not report them: a request that it retried
would look like a slow one. It takes its configuration from the environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import s3dlio

from kvreplay.tiers.s3_clients.address import Address
from kvreplay.tiers.s3_clients.protocol import Answer, Fault, ShortAnswerError, check_length, copy
from kvtrace.core.parameters import named

_ENVIRONMENT = {
    "S3DLIO_MAX_RETRY_ATTEMPTS": "1",
    # Credentials come from the environment and the standard files alone, not from a file .env.
    "S3DLIO_LOAD_DOTENV": "0",
}
_TIMEOUT = "S3DLIO_OPERATION_TIMEOUT_SECS"
_REFUSED = (
    *("SlowDown", "HTTP 503", "status 503", "HTTP 429", "status 429"),
    *("ServiceUnavailable", "TooManyRequests", "Throttl", "throttled"),
)
_MISSING = ("NoSuch", "404", "not found")
_FINAL = (
    *("NoSuch", "not found", "AccessDenied", "Forbidden", "SignatureDoesNotMatch"),
    *("InvalidAccessKeyId", "InvalidRange", "InvalidBucketName", "EntityTooLarge"),
    *("HTTP 4", "status 4", "Missing AWS", "LengthMismatch"),
)


class S3dlioClient:
    """A prefix of a store, by s3dlio."""

    version: str = s3dlio.__version__
    errors: tuple[type[Exception], ...] = (
        RuntimeError,
        ValueError,
        ShortAnswerError,
        s3dlio.ObjectNotFoundError,
        s3dlio.LengthMismatchError,
    )

    def __init__(self, address: Address, timeout_s: int) -> None:
        """Send requests to `address`, each of which may take `timeout_s`."""
        self._roots = address.roots()
        self.settings: dict[str, object] = {}
        self._loops: list[asyncio.AbstractEventLoop] = []
        """Event loops for reuse, each by one waiting thread at a time."""
        if address.scheme == "s3":
            os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        os.environ.update(_ENVIRONMENT | {_TIMEOUT: str(timeout_s)})
        if ports := address.tls_ports():
            os.environ["S3DLIO_S3_ENDPOINT_TLS_PORTS"] = ",".join(map(str, ports))

    def put(self, endpoint: int, key: str, data: memoryview) -> None:
        """Write a whole object from `data`, without copying it."""
        s3dlio.put_bytes(self._uri(endpoint, key), data)

    def get(self, endpoint: int, key: str, into: memoryview) -> None:
        """Read a whole object straight into `into`."""

        async def get_into(uri: str) -> None:
            await s3dlio.get_into_async(uri, into, expected_len=len(into))

        # List operations are atomic.
        try:
            loop = self._loops.pop()
        except IndexError:
            loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(get_into(self._uri(endpoint, key)))
        finally:
            self._loops.append(loop)

    def get_range(self, endpoint: int, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the object's bytes from `offset` on."""
        data = memoryview(s3dlio.get_range(self._uri(endpoint, key), offset, len(into)))
        check_length(len(data), into)
        copy(into, data)

    def delete(self, endpoint: int, key: str) -> None:
        """Delete an object."""
        s3dlio.delete(self._uri(endpoint, key))

    def stat(self, endpoint: int, key: str) -> None:
        """Ask for the metadata of an object."""
        s3dlio.stat(self._uri(endpoint, key))

    def list_names(self, endpoint: int) -> list[str]:
        """Return the URIs of all objects below the prefix."""
        return list(s3dlio.list(self._uri(endpoint, ""), recursive=True))

    def delete_all(self, endpoint: int, folder: str) -> None:
        """Delete all objects below `folder`, one request each."""
        s3dlio.delete(self._uri(endpoint, folder), recursive=True)

    def fault_of(self, error: Exception, without_name: Callable[[str], str]) -> Fault:
        """Return the outcome that `error` stands for; its text is all that s3dlio tells of it."""
        # s3dlio does not know of --endpoint, and advises its own options.
        message = str(error).partition("; no endpoint URL is set")[0]
        message = without_name(message.replace(_TIMEOUT, named("request_timeout")))
        if isinstance(error, ShortAnswerError):
            return Fault(Answer.FINAL, message)
        return Fault(answer_of(message), message, any(word in message for word in _MISSING))

    def close(self) -> None:
        """Close the event loops of the threads; s3dlio keeps its connections."""
        while self._loops:
            self._loops.pop().close()

    def _uri(self, endpoint: int, key: str) -> str:
        return f"{self._roots[endpoint]}/{key}"


def answer_of(text: str) -> Answer:
    """Return the outcome of a request with the error `text`."""
    if any(word in text for word in _REFUSED):
        return Answer.REFUSED
    if "timed out" in text:
        return Answer.TIMED_OUT
    return Answer.FINAL if any(word in text for word in _FINAL) else Answer.FAILED
