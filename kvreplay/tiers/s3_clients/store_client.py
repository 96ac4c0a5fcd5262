"""Requests to an object store: spread over endpoints, repeated where that helps, and counted.

A client library sends them, each from the thread that waits for its answer. Retries made here are
counted.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from enum import StrEnum
from time import monotonic_ns, sleep

from kvreplay.tiers.s3_clients.address import Address
from kvreplay.tiers.s3_clients.credentials import find_credentials, without_secrets
from kvreplay.tiers.s3_clients.make_client import ClientName, make_client
from kvreplay.tiers.s3_clients.protocol import Answer, Fault, S3Client
from kvtrace.core.app import NOTED
from kvtrace.core.units import NS_PER_S

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""The wait before the first repeat of a request, and the longest wait before any.

Each wait is twice the one before, minus a random share of up to one half.
"""
_NAME = "\ufffc"
"""Placeholder for the object's name while its error text is classified.

A name that contains a word such as `404` must not affect the result.
"""
_GRACE_S = 1
"""Seconds from the start of a request of the main thread until a signal may abandon it."""


class Balance(StrEnum):
    """The rule of `--balance` by which requests are spread over endpoints."""

    ROUND_ROBIN = "round-robin"
    LEAST_CONNECTIONS = "least-connections"


class StoreClient:
    """One prefix of a store; everything but `open` and `close` is called from many threads."""

    def __init__(
        self,
        address: Address,
        balance: Balance,
        retries: int,
        timeout_s: int,
        client: ClientName = ClientName.S3DLIO,
    ) -> None:
        """Send requests to `address` by the library `client`.

        A request that is refused, fails or takes `timeout_s` is repeated up to `retries` times.
        """
        self.address, self.client = address, client
        self.requests = RequestCounts(len(address.roots()))
        self._balance, self._retries, self._timeout_s = balance, retries, timeout_s
        self._lock = threading.Lock()
        self._turn = -1
        """Index of the endpoint of the latest request."""
        self.in_flight = [0] * len(address.roots())
        """Number of requests in flight, by endpoint."""
        self._is_spread = False
        """Whether requests go to all endpoints; else to the first only."""
        self._library: S3Client | None = None
        self._thread_state = threading.local()

    def open(self) -> None:
        """Find credentials, load the client library and connect.

        DeviceError, with a remedy, if credentials or the library are missing.
        """
        if self.address.scheme == "s3":
            find_credentials()
        self._library = make_client(self.client, self.address, self._timeout_s)

    def begin(self) -> None:
        """Start to count and spread requests; earlier ones are not part of the replay."""
        self.requests, self._is_spread = RequestCounts(len(self.in_flight)), True

    def end(self) -> None:
        """Stop spreading requests."""
        self._is_spread = False

    def take_retries(self) -> int:
        """Return how often the calling thread has repeated a request since its last call."""
        count: int = getattr(self._thread_state, "retries", 0)
        self._thread_state.retries = 0
        return count

    def put(self, key: str, data: memoryview) -> None:
        """Write a whole object from `data`."""
        library = self._connected
        self._send("put", key, len(data), lambda endpoint: library.put(endpoint, key, data))

    def get(self, key: str, into: memoryview) -> None:
        """Read a whole object, of the length of `into`, to it."""
        library = self._connected
        self._send("get", key, len(into), lambda endpoint: library.get(endpoint, key, into))

    def get_range(self, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the object's bytes from `offset` on."""
        library = self._connected
        self._send(
            "ranged get",
            key,
            len(into),
            lambda endpoint: library.get_range(endpoint, key, offset, into),
        )

    def delete(self, key: str) -> None:
        """Delete an object."""
        library = self._connected
        self._send("delete", key, 0, lambda endpoint: library.delete(endpoint, key))

    def keys(self) -> list[str]:
        """Return the keys below the prefix, without it."""
        names: list[str] = []
        library = self._connected
        self._send("list", "", 0, lambda endpoint: names.extend(library.list_names(endpoint)))
        split_names = [name.partition(f"{self.address.path}/") for name in names]
        foreign = next((name for name, prefix, _ in split_names if not prefix), None)
        if foreign is not None:
            raise OSError(
                errno.EIO,
                f"listing this prefix, the store returned {foreign}, which is not below it",
            )
        return [key for _, _, key in split_names]

    def delete_all(self, folder: str) -> None:
        """Delete all objects below `folder`, one request each."""
        library = self._connected
        self._send("clean", folder, 0, lambda endpoint: library.delete_all(endpoint, folder))

    def is_seen_by_all(self, key: str) -> str | None:
        """Return an endpoint that does not see an object that another wrote; None if all do."""
        library = self._connected
        for endpoint, url in enumerate(self.address.endpoints):
            try:
                library.stat(endpoint, key)
            except library.errors:
                return url
        return None

    def facts(self) -> dict[str, object]:
        """Return the facts of the client, its endpoints and its settings.

        An endpoint's URL is null if the environment gives it.
        """
        urls = self.address.endpoints or (None,)
        return {
            "name": self.client.value,
            "version": self._connected.version,
            "settings": self._connected.settings,
            "balance": self._balance.value,
            "retries": self._retries,
            "endpoints": [
                {"url": url, **counts}
                for url, counts in zip(urls, self.requests.by_endpoint, strict=True)
            ],
        }

    def close(self) -> None:
        """Close the connections."""
        if self._library is not None:
            self._library.close()

    @property
    def _connected(self) -> S3Client:
        assert self._library is not None, "the client is open"
        return self._library

    def _send(self, kind: str, key: str, nbytes: int, call: Callable[[int], object]) -> None:
        """Send a request by `call`, to the endpoint it is given, and repeat it until it succeeds.

        OSError if it failed too often, or if a repeat would not help; FileNotFoundError if there is
        no such object or bucket.
        """
        repeats, waited_ns, wait_s = 0, 0, FIRST_WAIT_S
        while True:
            fault = self._once(kind, key, nbytes, call, is_repeat=repeats > 0)
            if fault is None:
                if repeats:
                    self.requests.add_repeated(waited_ns)
                return
            if fault.answer is Answer.FINAL or repeats == self._retries:
                tried = f" (asked {repeats + 1} times)" if repeats else ""
                uri = f"{self.address.scheme}://{self.address.path}/{key}"
                message = fault.message
                if _NAME not in message:
                    message += f" for '{_NAME}'"
                raise OSError(
                    errno.ENOENT if fault.is_missing else errno.EIO,
                    f"{message.replace(_NAME, uri)}{tried}",
                )
            since = monotonic_ns()
            sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - so that those refused together do not come together
            waited_ns += monotonic_ns() - since
            self._thread_state.retries = self.take_retries() + 1
            repeats, wait_s = repeats + 1, min(2 * wait_s, LONGEST_WAIT_S)

    def _once(
        self, kind: str, key: str, nbytes: int, call: Callable[[int], object], *, is_repeat: bool
    ) -> Fault | None:
        """Send a request once; return its fault if it failed."""
        endpoint, fault, library = self._pick(), None, self._connected
        path = f"{self.address.path}/{key}"
        roots = (self.address.roots()[endpoint], f"{self.address.scheme}://{self.address.path}")

        def without_name(text: str) -> str:
            for name in (*(f"{root}/{key}" for root in roots), path):
                text = text.replace(name, _NAME)
            return without_secrets(text)

        try:
            if threading.current_thread() is threading.main_thread():
                _wait_for(lambda: call(endpoint))
            else:
                call(endpoint)
        except library.errors as error:
            fault = library.fault_of(error, without_name)
        with self._lock:
            self.in_flight[endpoint] -= 1
        answer = Answer.DONE if fault is None else fault.answer
        self.requests.add(kind, endpoint, answer, nbytes, is_repeat=is_repeat)
        return fault

    def _pick(self) -> int:
        """Return the endpoint of the next request."""
        with self._lock:
            count = len(self.in_flight) if self._is_spread else 1
            endpoint = (self._turn + 1) % count
            if self._balance is Balance.LEAST_CONNECTIONS:
                # Among endpoints with equally few requests in flight, the next in turn.
                in_turn = range(endpoint, endpoint + count)
                _, index = min((self.in_flight[index % count], index) for index in in_turn)
                endpoint = index % count
            self._turn = endpoint
            self.in_flight[endpoint] += 1
        return endpoint


def _wait_for(call: Callable[[], object]) -> None:
    """Run `call` in a thread of its own and wait for it.

    InterruptedError if a signal came meanwhile; the thread is then abandoned.
    """
    failures: list[Exception] = []

    def work() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    grace_end_ns = monotonic_ns() + _GRACE_S * NS_PER_S
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        if NOTED.get() and monotonic_ns() > grace_end_ns and thread.is_alive():
            raise InterruptedError(errno.EINTR, "it did not answer when a signal asked to end")
    if failures:
        raise failures[0]


FAULTS = (Answer.REFUSED.value, Answer.FAILED.value, Answer.TIMED_OUT.value)
"""The outcomes that are counted as faults."""


class RequestCounts:
    """Counts of all requests of one tier."""

    def __init__(self, endpoints: int) -> None:
        """Start with no requests to any of `endpoints`."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self.by_endpoint = [dict.fromkeys(("requests", *FAULTS), 0) for _ in range(endpoints)]
        self.operations_repeated = 0
        """Number of operations that succeeded after a request had been refused or failed."""
        self.waited_ns = 0
        """Total time that these operations waited between their requests."""

    def add(
        self, kind: str, endpoint: int, answer: Answer, nbytes: int, *, is_repeat: bool
    ) -> None:
        """Count one request: `kind` is put, get, ranged get or delete."""
        with self._lock:
            count = self._counts.setdefault(
                kind, dict.fromkeys(("requests", *FAULTS, "repeats", "bytes"), 0)
            )
            count["requests"] += 1
            count["repeats"] += is_repeat
            count["bytes"] += nbytes if answer is Answer.DONE else 0
            endpoint_count = self.by_endpoint[endpoint]
            endpoint_count["requests"] += 1
            if answer is not Answer.DONE:
                name = str(answer) if answer in FAULTS else "failed"
                count[name] += 1
                endpoint_count[name] += 1

    def add_repeated(self, waited_ns: int) -> None:
        """Count an operation that succeeded after more than one request."""
        with self._lock:
            self.operations_repeated += 1
            self.waited_ns += waited_ns

    def total(self, name: str) -> int:
        """Return the sum of one count over all kinds."""
        return sum(count[name] for count in self._counts.values())

    def facts(self) -> dict[str, object]:
        """Return the counts by kind, and those of repeated operations."""
        return {
            "requests": {kind: dict(count) for kind, count in self._counts.items()},
            "operations_repeated": self.operations_repeated,
            "waited_ns": self.waited_ns,
        }
