"""RequestCounts to a store through s3dlio, each from the thread that waits for it; what it refuses is asked for again.

s3dlio's own repeats are switched off, for it does not tell of them: a request that it repeats would look like a slow
one. Those made here are counted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import threading
from collections.abc import Callable
from enum import StrEnum
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any

from kvreplay.tiers.objects.address import Address
from kvreplay.tiers.objects.credentials import find_credentials, without_secrets
from kvreplay.tiers.objects.requests import Answer, RequestCounts, answer_of
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import asyncio

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Before the first repeat of a request, and before any: each wait is twice the one before it, less up to half of it."""
_ENVIRONMENT = {
    "S3DLIO_MAX_RETRY_ATTEMPTS": "1",
    # Credentials come from the environment and the standard files alone, and not from a .env that lies about.
    "S3DLIO_LOAD_DOTENV": "0",
}


class Balance(StrEnum):
    """How `--balance` spreads requests over endpoints."""

    ROUND_ROBIN = "round-robin"
    LEAST_CONNECTIONS = "least-connections"


class StoreClient:
    """One prefix of a store; everything but `open` and `close` is called from many threads."""

    def __init__(self, address: Address, balance: Balance, retries: int) -> None:
        """Serve `address`; a request that the store refuses or fails is repeated up to `retries` times."""
        self.address = address
        self.requests = RequestCounts(len(address.roots()))
        self._roots, self._balance, self._retries = address.roots(), balance, retries
        self._lock = threading.Lock()
        self._turn, self._in_flight = -1, [0] * len(self._roots)
        self._is_spread = False
        """Whether requests go to all endpoints; else to the first."""
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._api: Any = None
        self._here = threading.local()

    def open(self) -> None:
        """Load s3dlio and find credentials; DeviceError, saying what to do, where either is missing."""
        if self.address.scheme == "s3":
            find_credentials()
            os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        os.environ.update(_ENVIRONMENT)
        if ports := self.address.tls_ports():
            os.environ["S3DLIO_S3_ENDPOINT_TLS_PORTS"] = ",".join(map(str, ports))
        try:
            import s3dlio
        except ImportError as error:
            raise DeviceError(
                f"{self.address.scheme}:// targets need s3dlio ({error}); install it: pip install 'kvtrace[s3]'"
            ) from None
        self._api = s3dlio
        self._errors = (RuntimeError, ValueError, s3dlio.ObjectNotFoundError, s3dlio.LengthMismatchError)

    def begin(self) -> None:
        """Count from now on, and spread requests: what was asked before was no part of the replay."""
        self.requests, self._is_spread = RequestCounts(len(self._roots)), True

    def end(self) -> None:
        """Spread requests no more."""
        self._is_spread = False

    def take_retries(self) -> int:
        """Return how often the calling thread has repeated a request since it last asked."""
        count: int = getattr(self._here, "retries", 0)
        self._here.retries = 0
        return count

    def put(self, key: str, data: memoryview) -> None:
        """Write a whole object, from where `data` lies."""
        self._ask("put", key, len(data), lambda uri: self._api.put_bytes(uri, data))

    def get(self, key: str, into: memoryview) -> None:
        """Read a whole object of just so many bytes straight to `into`."""
        self._ask("get", key, len(into), lambda uri: self._get_into(uri, into))

    def get_range(self, key: str, offset: int, into: memoryview) -> None:
        """Read so many bytes from `offset`."""

        def ask(uri: str) -> None:
            came = memoryview(self._api.get_range(uri, offset, len(into)))
            if len(came) != len(into):
                raise RuntimeError(f"LengthMismatch: {len(came)} of {len(into)} bytes came from offset {offset}")
            copy(into, came)

        self._ask("ranged get", key, len(into), ask)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._ask("delete", key, 0, self._api.delete)

    def keys(self) -> list[str]:
        """Return the keys below the prefix, without it."""
        found: list[str] = []

        def ask(uri: str) -> None:
            found[:] = [name.split(f"{self.address.path}/", 1)[1] for name in self._api.list(uri, recursive=True)]

        self._ask("list", "", 0, ask)
        return found

    def delete_all(self, folder: str) -> None:
        """Delete what lies below `folder`, a request each."""
        self._ask("clean", folder, 0, lambda uri: self._api.delete(uri, recursive=True))

    def is_seen_by_all(self, key: str) -> str | None:
        """Return the endpoint that does not see an object which another wrote; None: all do."""
        for root, url in zip(self._roots, self.address.endpoints, strict=False):
            try:
                self._api.stat(f"{root}/{key}")
            except self._errors:
                return url
        return None

    def facts(self) -> dict[str, Any]:
        """Return what spoke to which endpoints, and how; the first is null where the environment named it."""
        urls = self.address.endpoints or (None,)
        return {
            "name": "s3dlio",
            "version": self._api.__version__,
            "balance": self._balance.value,
            "retries": self._retries,
            "endpoints": [{"url": url, **self.requests.of_endpoint(i)} for i, url in enumerate(urls)],
        }

    def close(self) -> None:
        """Close what threads waited with."""
        while self._loops:
            self._loops.pop().close()

    def _get_into(self, uri: str, into: memoryview) -> None:
        import asyncio

        async def wait() -> None:
            await self._api.get_into_async(uri, into, expected_len=len(into))

        # A loop for each thread that waits at once; list's own lock suffices.
        try:
            loop = self._loops.pop()
        except IndexError:
            loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(wait())
        finally:
            self._loops.append(loop)

    def _ask(self, kind: str, key: str, nbytes: int, call: Callable[[str], object]) -> None:
        """Send a request until it is done.

        Raises:
            OSError: it was refused or failed too often, or for good; FileNotFoundError: no such object, or bucket.

        """
        repeats, waited_ns, wait_s = 0, 0, FIRST_WAIT_S
        while True:
            text = self._once(kind, key, nbytes, call, is_repeat=repeats > 0)
            if text is None:
                if repeats:
                    self.requests.add_repeated(waited_ns, is_done=True)
                return
            answer = answer_of(text)
            if answer is Answer.FINAL or repeats == self._retries:
                self.requests.add_repeated(waited_ns, is_done=False)
                tried = f" (asked {repeats + 1} times)" if repeats else ""
                missing = "NoSuch" in text or "404" in text or "not found" in text
                raise OSError(errno.ENOENT if missing else errno.EIO, f"{text}{tried}")
            since = monotonic_ns()
            sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - so that those refused together do not come together
            waited_ns += monotonic_ns() - since
            self._here.retries = self.take_retries() + 1
            repeats, wait_s = repeats + 1, min(2 * wait_s, LONGEST_WAIT_S)

    def _once(self, kind: str, key: str, nbytes: int, call: Callable[[str], object], *, is_repeat: bool) -> str | None:
        """Send a request; return what went wrong, if anything did."""
        at = self._pick()
        uri, text = f"{self._roots[at]}/{key}", None
        try:
            call(uri)
        except self._errors as error:
            # The name of an object says nothing of what became of it.
            text = without_secrets(str(error).replace(uri, "it").replace(f"{self.address.path}/{key}", "it"))
        with self._lock:
            self._in_flight[at] -= 1
        answer = Answer.DONE if text is None else answer_of(text)
        self.requests.add(kind, at, answer, nbytes, is_repeat=is_repeat)
        return text

    def _pick(self) -> int:
        """Return the endpoint of the next request."""
        with self._lock:
            count = len(self._roots) if self._is_spread else 1
            self._turn = at = (self._turn + 1) % count
            if self._balance is Balance.LEAST_CONNECTIONS:
                # Of those that have as little to do, the one whose turn it is.
                self._turn = at = min((self._in_flight[i % count], i) for i in range(at, at + count))[1] % count
            self._in_flight[at] += 1
        return at


def copy(into: memoryview, source: memoryview) -> None:
    """Copy all of `source`, other threads running meanwhile."""
    ctypes.memmove(_address(into), _address(source), len(source))


def _address(buffer: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


def seconds(waited_ns: int) -> str:
    """Return a time as text, in seconds."""
    return f"{waited_ns / NS_PER_S:.1f} s"
