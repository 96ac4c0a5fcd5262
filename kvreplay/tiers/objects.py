"""An object store as a tier.

Each write is one PUT, each read one GET or ranged GET, each delete one DELETE.

Requests go through s3dlio, each from the thread that waits for its answer. s3dlio's own retries are
switched off, because it does not report them: a request that it retried would look like a slow one.
Retries made here are counted.

All objects lie below a folder of ours in the prefix. A marker object there lets a later run
recognize the leftovers of a killed one. Nothing else in the bucket is touched. Credentials come
from the environment or the standard files, and are never written or shown.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import re
import threading
from collections.abc import Callable, Sequence
from configparser import ConfigParser, Error
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from kvreplay.plan.buffers import PAGE_BYTES, address_of
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.tier import FileLayout, Holding, Tier, path_function
from kvtrace.core.app import NOTED, log
from kvtrace.core.errors import ConfigError, DeviceError, how_to_add
from kvtrace.core.parameters import entry, named
from kvtrace.core.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    import asyncio


FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""The wait before the first repeat of a request, and the longest wait before any.

Each wait is twice the one before, minus a random share of up to one half.
"""
_ENVIRONMENT = {
    "S3DLIO_MAX_RETRY_ATTEMPTS": "1",
    # Credentials come from the environment and the standard files alone, not from a file .env.
    "S3DLIO_LOAD_DOTENV": "0",
}


_TIMEOUT = "S3DLIO_OPERATION_TIMEOUT_SECS"
_THIS = "\ufffc"
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

    def __init__(self, address: Address, balance: Balance, retries: int, timeout_s: int) -> None:
        """Send requests to `address`.

        A request that is refused, fails or takes `timeout_s` is repeated up to `retries` times.
        """
        self.address = address
        self.requests = RequestCounts(len(address.roots()))
        self._roots, self._balance, self._retries, self._timeout_s = (
            address.roots(),
            balance,
            retries,
            timeout_s,
        )
        self._lock = threading.Lock()
        self._turn = -1
        """Index of the endpoint of the latest request."""
        self.in_flight = [0] * len(self._roots)
        """Number of requests in flight, by endpoint."""
        self._is_spread = False
        """Whether requests go to all endpoints; else to the first only."""
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._api: Any = None
        self._thread_state = threading.local()

    def open(self) -> None:
        """Load s3dlio and find credentials.

        DeviceError, with a remedy, if either is missing.
        """
        if self.address.scheme == "s3":
            find_credentials()
            os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        os.environ.update(_ENVIRONMENT | {_TIMEOUT: str(self._timeout_s)})
        if ports := self.address.tls_ports():
            os.environ["S3DLIO_S3_ENDPOINT_TLS_PORTS"] = ",".join(map(str, ports))
        try:
            import s3dlio
        except ImportError as error:
            raise DeviceError(
                f"{self.address.scheme}:// targets need s3dlio ({error}); install it:"
                f" {how_to_add('s3')}"
            ) from None
        self._api = s3dlio
        self._errors = (
            RuntimeError,
            ValueError,
            s3dlio.ObjectNotFoundError,
            s3dlio.LengthMismatchError,
        )

    def begin(self) -> None:
        """Start to count and spread requests; earlier ones are not part of the replay."""
        self.requests, self._is_spread = RequestCounts(len(self._roots)), True

    def end(self) -> None:
        """Stop spreading requests."""
        self._is_spread = False

    def take_retries(self) -> int:
        """Return how often the calling thread has repeated a request since its last call."""
        count: int = getattr(self._thread_state, "retries", 0)
        self._thread_state.retries = 0
        return count

    def put(self, key: str, data: memoryview) -> None:
        """Write a whole object from `data`, without copying it."""
        self._send("put", key, len(data), lambda uri: self._api.put_bytes(uri, data))

    def get(self, key: str, into: memoryview) -> None:
        """Read a whole object, of the length of `into`, straight into it."""
        import asyncio

        async def get_into(uri: str) -> None:
            await self._api.get_into_async(uri, into, expected_len=len(into))

        def request(uri: str) -> None:
            # Each waiting thread has an event loop of its own; list operations are atomic.
            try:
                loop = self._loops.pop()
            except IndexError:
                loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(get_into(uri))
            finally:
                self._loops.append(loop)

        self._send("get", key, len(into), request)

    def get_range(self, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the object's bytes from `offset` on."""

        def request(uri: str) -> None:
            data = memoryview(self._api.get_range(uri, offset, len(into)))
            if len(data) != len(into):
                raise RuntimeError(
                    f"LengthMismatch: {len(data)} of {len(into)} bytes came from offset {offset}"
                )
            copy(into, data)

        self._send("ranged get", key, len(into), request)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._send("delete", key, 0, self._api.delete)

    def keys(self) -> list[str]:
        """Return the keys below the prefix, without it."""
        names: list[str] = []
        self._send("list", "", 0, lambda uri: names.extend(self._api.list(uri, recursive=True)))
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
        self._send("clean", folder, 0, lambda uri: self._api.delete(uri, recursive=True))

    def is_seen_by_all(self, key: str) -> str | None:
        """Return an endpoint that does not see an object that another wrote; None if all do."""
        for root, url in zip(self._roots, self.address.endpoints, strict=False):
            try:
                self._api.stat(f"{root}/{key}")
            except self._errors:
                return url
        return None

    def facts(self) -> dict[str, object]:
        """Return the facts of the client, its endpoints and its settings.

        An endpoint's URL is null if the environment gives it.
        """
        urls = self.address.endpoints or (None,)
        return {
            "name": "s3dlio",
            "version": self._api.__version__,
            "balance": self._balance.value,
            "retries": self._retries,
            "endpoints": [
                {"url": url, **counts}
                for url, counts in zip(urls, self.requests.by_endpoint, strict=True)
            ],
        }

    def close(self) -> None:
        """Close the connections of the threads."""
        while self._loops:
            self._loops.pop().close()

    def _send(self, kind: str, key: str, nbytes: int, call: Callable[[str], object]) -> None:
        """Send a request, and repeat it until it succeeds.

        OSError if it failed too often, or if a repeat would not help; FileNotFoundError if there is
        no such object or bucket.
        """
        repeats, waited_ns, wait_s = 0, 0, FIRST_WAIT_S
        while True:
            text = self._once(kind, key, nbytes, call, is_repeat=repeats > 0)
            if text is None:
                if repeats:
                    self.requests.add_repeated(waited_ns)
                return
            answer = answer_of(text)
            if answer is Answer.FINAL or repeats == self._retries:
                tried = f" (asked {repeats + 1} times)" if repeats else ""
                missing = "NoSuch" in text or "404" in text or "not found" in text
                text = text.replace(_THIS, f"{self.address.scheme}://{self.address.path}/{key}")
                raise OSError(errno.ENOENT if missing else errno.EIO, f"{text}{tried}")
            since = monotonic_ns()
            sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - so that those refused together do not come together
            waited_ns += monotonic_ns() - since
            self._thread_state.retries = self.take_retries() + 1
            repeats, wait_s = repeats + 1, min(2 * wait_s, LONGEST_WAIT_S)

    def _once(
        self, kind: str, key: str, nbytes: int, call: Callable[[str], object], *, is_repeat: bool
    ) -> str | None:
        """Send a request once; return the error's text if it failed."""
        endpoint = self._pick()
        uri, text = f"{self._roots[endpoint]}/{key}", None
        try:
            if threading.current_thread() is threading.main_thread():
                _wait_for(lambda: call(uri))
            else:
                call(uri)
        except self._errors as error:
            # s3dlio does not know of --endpoint, and advises its own options.
            message = str(error).partition("; no endpoint URL is set")[0]
            message = message.replace(_TIMEOUT, named("request_timeout")).replace(uri, _THIS)
            path = f"{self.address.path}/{key}"
            message = message.replace(f"{self.address.scheme}://{path}", _THIS)
            text = without_secrets(message.replace(path, _THIS))
        with self._lock:
            self.in_flight[endpoint] -= 1
        answer = Answer.DONE if text is None else answer_of(text)
        self.requests.add(kind, endpoint, answer, nbytes, is_repeat=is_repeat)
        return text

    def _pick(self) -> int:
        """Return the endpoint of the next request."""
        with self._lock:
            count = len(self._roots) if self._is_spread else 1
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


def copy(into: memoryview, source: memoryview) -> None:
    """Copy all of `source` without the interpreter's lock, so that other threads run meanwhile."""
    ctypes.memmove(address_of(into), address_of(source), len(source))


SCHEMES = ("s3", "az", "gs")
"""URL schemes of object stores; s3dlio supports az and gs too, which are untested here."""
_TARGET = re.compile(rf"({'|'.join(SCHEMES)})://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PORTS = {"http": 80, "https": 443}


def is_object_store(target: str) -> bool:
    """Return whether a target names an object store."""
    return _TARGET.match(target) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """A prefix in a bucket, as each endpoint names it."""

    scheme: str
    path: str
    """Bucket and prefix, without a slash at the end."""
    endpoints: tuple[str, ...]
    """URLs, in the order in which the user named them; if empty, the environment has the URL."""

    @classmethod
    def of(cls, option: str, target: str, endpoints: Sequence[str]) -> Self:
        """Return the address that `target` and `endpoints` name.

        ConfigError, which quotes the text `option` of the tier, if they are invalid.
        """
        scheme, _, location = target.partition("://")
        bucket, _, prefix = location.partition("/")
        prefix = prefix.strip("/")
        if "@" in bucket:
            raise ConfigError(
                f"{named('tiers')}: the target has credentials; leave them out: they are read from"
                " the"
                " environment or the standard files alone"
            )
        if not prefix or (scheme == "s3" and not _BUCKET.fullmatch(bucket)):
            raise ConfigError(
                f"{option}: write {scheme}://BUCKET/PREFIX, with a bucket of 3 to 63 lower-case"
                " letters, digits, dots and hyphens, and a prefix that is the replay's own"
            )
        if any(c in "*?[]%#" or c.isspace() for c in prefix) or "//" in prefix:
            raise ConfigError(f"{option}: the prefix is letters, digits and / . _ - only")
        if endpoints and scheme != "s3":
            raise ConfigError(
                f"{option}: {named('endpoints')} is for s3:// targets; {scheme}:// takes its own"
                " from the"
                " environment"
            )
        return cls(scheme, f"{bucket}/{prefix}", tuple(_checked(url) for url in endpoints))

    def roots(self) -> list[str]:
        """Return the URI of the prefix for each endpoint, as s3dlio takes it."""
        if not self.endpoints:
            return [f"{self.scheme}://{self.path}"]
        return [f"{self.scheme}://{urlsplit(url).netloc}/{self.path}" for url in self.endpoints]

    def tls_ports(self) -> list[int]:
        """Return the ports of endpoints that use TLS, for s3dlio's configuration."""
        urls = [urlsplit(url) for url in self.endpoints]
        return sorted({url.port for url in urls if url.scheme == "https" and url.port is not None})


def _checked(url: str) -> str:
    """Return an endpoint's URL with its port; ConfigError if it is invalid."""
    try:
        split_url = urlsplit(url)
        port = split_url.port
    except ValueError as error:
        raise ConfigError(
            f"{named('endpoints', url)}: {error}; write http://host:9000 or https://host"
        ) from None
    if split_url.username is not None or split_url.password is not None:
        raise ConfigError(
            f"{named('endpoints')}: the URL has credentials; leave them out: they are read from the"
            " environment"
        )
    if (
        split_url.scheme not in _PORTS
        or not split_url.hostname
        or split_url.path.strip("/")
        or split_url.query
        or split_url.fragment
    ):
        raise ConfigError(f"{named('endpoints', url)}: write http://host:9000 or https://host")
    host = f"[{split_url.hostname}]" if ":" in split_url.hostname else split_url.hostname
    return f"{split_url.scheme}://{host}:{port or _PORTS[split_url.scheme]}"


_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
"""Keys of the standard files; the environment variables are the same in capitals."""
_SECRETS = (
    *map(str.upper, _KEYS),
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "S3DLIO_AZURE_SAS_TOKEN",
)
_MIN_SECRET_LENGTH = 4
"""A shorter value is not a secret, and hiding it would hide words."""


def find_credentials() -> None:
    """Copy the credentials of the standard files to this process's environment.

    s3dlio reads only the environment. Variables that are set take precedence, as in every S3
    client.

    DeviceError if there are no credentials.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ:
        return
    profile, home = os.environ.get("AWS_PROFILE", "default"), Path.home() / ".aws"
    section = profile if profile == "default" else f"profile {profile}"
    files = [
        (os.environ.get("AWS_CONFIG_FILE", home / "config"), section),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), profile),
    ]
    # The credentials file comes last, so it takes precedence.
    settings: dict[str, str] = {}
    for path, name in files:
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(path, encoding="utf-8")
        except (Error, OSError, UnicodeError):
            # An error's text would quote the line, which may hold a secret.
            raise DeviceError(
                f"{path} is not a readable file of AWS credentials; correct it"
            ) from None
        if parser.has_section(name):
            settings |= dict(parser.items(name))
    if not {"aws_access_key_id", "aws_secret_access_key"} <= settings.keys():
        raise DeviceError(
            "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them"
            f" to ~/.aws/credentials (profile {profile})"
        )
    for key in _KEYS:
        if key in settings:
            os.environ[key.upper()] = settings[key]
    if "region" in settings:
        os.environ.setdefault("AWS_REGION", settings["region"])


def without_secrets(text: str) -> str:
    """Return `text` on one line and without any credential of the environment."""
    for name in _SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= _MIN_SECRET_LENGTH:
            text = text.replace(value, f"<{name}>")
    return " ".join(text.split())


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


_REFUSED = (
    *("SlowDown", "HTTP 503", "status 503", "HTTP 429", "status 429"),
    *("ServiceUnavailable", "TooManyRequests", "Throttl", "throttled"),
)
_FINAL = (
    *(
        "NoSuch",
        "not found",
        "AccessDenied",
        "Forbidden",
        "SignatureDoesNotMatch",
        "InvalidAccessKeyId",
    ),
    *(
        "InvalidRange",
        "InvalidBucketName",
        "EntityTooLarge",
        "HTTP 4",
        "status 4",
        "Missing AWS",
        "LengthMismatch",
    ),
)


def answer_of(text: str) -> Answer:
    """Return the outcome of a request with the error `text`; s3dlio gives no other sign of it."""
    if any(word in text for word in _REFUSED):
        return Answer.REFUSED
    if "timed out" in text:
        return Answer.TIMED_OUT
    return Answer.FINAL if any(word in text for word in _FINAL) else Answer.FAILED


_FAULTS = (Answer.REFUSED.value, Answer.FAILED.value, Answer.TIMED_OUT.value)


class RequestCounts:
    """Counts of all requests of one tier."""

    def __init__(self, endpoints: int) -> None:
        """Start with no requests to any of `endpoints`."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self.by_endpoint = [dict.fromkeys(("requests", *_FAULTS), 0) for _ in range(endpoints)]
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
                kind, dict.fromkeys(("requests", *_FAULTS, "repeats", "bytes"), 0)
            )
            count["requests"] += 1
            count["repeats"] += is_repeat
            count["bytes"] += nbytes if answer is Answer.DONE else 0
            endpoint_count = self.by_endpoint[endpoint]
            endpoint_count["requests"] += 1
            if answer is not Answer.DONE:
                name = str(answer) if answer in _FAULTS else "failed"
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


FOLDER = "kvreplay-scratch"
MARKER = f"{FOLDER}/KVREPLAY"
_MARKER_TEXT = b"Written by kvreplay: everything in this folder is its own and will be deleted.\n"
MAX_PUT_BYTES = 5 << 30
"""Maximum length of one PUT, by S3's definition."""


@dataclass(slots=True)
class ObjectRequest:
    """The request of one operation.

    `staged` is memory for all its data, if the data takes several buffers.
    """

    object_id: int
    start: int
    end: int
    staged: memoryview | None = None


class ObjectTier(Tier):
    """Objects in a bucket, below a prefix."""

    engine = "s3dlio"

    def __init__(
        self,
        name: str,
        target: str,
        client: StoreClient,
        *,
        is_verified: bool = False,
        is_kept: bool = False,
        is_shared: bool = False,
    ) -> None:
        """Store objects of the tier `name`.

        With `is_shared`, foreign objects may lie below the prefix, and stay there. A verified tier
        stores whole blocks.
        """
        self.name, self.target = name, target
        self.alignment = PAGE_BYTES if is_verified else 1
        self._client, self._is_verified = client, is_verified
        self._is_kept, self._is_shared, self._is_ours = is_kept, is_shared, False
        self._key = path_function(FileLayout.HASHED, FOLDER)
        self._lengths: dict[int, int] = {}
        self._staging: list[memoryview] = []
        """Memory of earlier requests, for reuse."""
        self._found_leftovers = 0

    def expect(self, holding: Holding) -> None:
        """Raise DeviceError if objects are extended: a store writes whole objects only."""
        if holding.grown:
            raise DeviceError(
                f"{entry('tiers', self.name, self.target)}: object {next(iter(holding.grown))} is"
                " extended"
                " after its write, but an object store takes whole objects; give this tier another"
                " target"
            )

    def open(self, peak_bytes: int) -> None:
        """Claim the prefix.

        DeviceError, with a remedy, if the store does not answer or the prefix is not ours.
        """
        self._client.open()
        try:
            keys = self._client.keys()
            foreign = next((key for key in keys if not key.startswith(f"{FOLDER}/")), None)
            if foreign is not None and not self._is_shared:
                raise DeviceError(
                    f"{self.target} is not empty ({foreign}{' and more' if len(keys) > 1 else ''})"
                    f" and not kvreplay's; name an empty prefix, or add {named('destroy_data')},"
                    " which keeps"
                    " other keys"
                )
            ours = [key for key in keys if key.startswith(f"{FOLDER}/")]
            if ours and MARKER not in ours:
                raise DeviceError(
                    f"{self.target}/{FOLDER} is not kvreplay's ({ours[0]}); name another prefix"
                )
            if ours:
                self._client.delete_all(f"{FOLDER}/")
                self._found_leftovers = len(ours) - 1
            self._client.put(MARKER, memoryview(_MARKER_TEXT))
        except FileNotFoundError as error:
            raise DeviceError(f"{self.target}: {error.strerror}; create the bucket first") from None
        except InterruptedError:
            raise KeyboardInterrupt from None
        except OSError as error:
            raise DeviceError(f"{self.target}: {error.strerror}") from None
        self._is_ours = True
        blind = self._client.is_seen_by_all(MARKER)
        if blind is not None:
            raise DeviceError(
                f"{named('endpoints', blind)} does not see what was written through the first; name"
                " endpoints of one store"
            )
        self._client.begin()

    def reserve(self, object_id: int, end: int) -> None:
        """Check that one PUT can write `end` bytes."""
        if end > MAX_PUT_BYTES:
            raise OSError(
                27,
                f"{format_bytes(end)} exceed the limit of one PUT ({format_bytes(MAX_PUT_BYTES)})",
            )

    def begin_whole(
        self, op: int, object_id: int, start: int, end: int, *, is_split: bool
    ) -> ObjectRequest:
        """Begin, in place of `begin`, a request for bytes `start` to `end`.

        With `is_split`, the data takes several buffers; a read then fetches all of it now.
        """
        if op == WRITE and start:
            raise OSError(
                22, f"an object store takes whole objects, not a write from offset {start}"
            )
        exchange = ObjectRequest(object_id, start, end)
        if is_split:
            exchange.staged = self._take_staging(end - start)
        if op == READ and exchange.staged is not None:
            self._fetch(
                object_id, start, exchange.staged[: self._available_bytes(object_id, start, end)]
            )
        return exchange

    def write(self, handle: ObjectRequest, offset: int, data: memoryview) -> None:
        """Put the object; or, if its data takes several buffers, collect `data` for that."""
        if handle.staged is None:
            self._put(handle.object_id, data)
        else:
            copy(handle.staged[offset - handle.start :], data)

    def read(self, handle: ObjectRequest, offset: int, into: memoryview) -> int:
        """Read the bytes from `offset` on to `into`.

        A split read has fetched its data already, which is copied only to be checked.
        """
        length = self._available_bytes(handle.object_id, offset, offset + len(into))
        if handle.staged is None:
            self._fetch(handle.object_id, offset, into[:length])
        elif self._is_verified:
            start = offset - handle.start
            copy(into, handle.staged[start : start + length])
        return length

    def end_whole(self, op: int, handle: ObjectRequest) -> None:
        """Put the collected data of a split write; the operation's time begins here."""
        if op == WRITE and handle.staged is not None:
            self._put(handle.object_id, handle.staged[: handle.end])

    def end(self, op: int, handle: ObjectRequest) -> None:
        """Return the staging memory for reuse."""
        if handle.staged is not None:
            self._staging.append(handle.staged)
            handle.staged = None

    def delete(self, object_id: int) -> None:
        """Delete the object."""
        if self._lengths.pop(object_id, None) is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")
        self._client.delete(self._key(object_id))

    def take_retries(self) -> int:
        """Return how often the calling thread has repeated a request since its last call."""
        return self._client.take_retries()

    def path(self, object_id: int) -> str:
        """Return the object's URI."""
        return f"{self.target.rstrip('/')}/{self._key(object_id)}"

    def facts(self) -> dict[str, object]:
        """Return the counts of requests and their outcomes, including those that populate."""
        client = self._client
        return {
            "is_simulated": False,
            "client": client.facts(),
            **client.requests.facts(),
            "found_leftovers": self._found_leftovers,
            "note": (
                "latencies are those of whole requests, repeats and the waits before them included"
            ),
        }

    def warnings(self) -> list[str]:
        """Return a warning about requests that the store refused or failed."""
        counts = self._client.requests
        refused, failed, silent = (counts.total(name) for name in _FAULTS)
        if not refused + failed + silent:
            return []
        faults = (
            f"refused {refused:,} requests (503 or 429) and failed {failed:,}, of"
            f" {counts.total('requests'):,}"
        )
        if silent:
            faults += f", and left {silent:,} unanswered"
        retries = f"{counts.operations_repeated:,} operations succeeded on retry"
        waits = f"{counts.waited_ns / NS_PER_S:.1f} s of waits"
        return [f"{self.target} {faults}; {retries}; their latencies include {waits}"]

    def close(self) -> None:
        """Remove our own objects; the next run there removes those that cannot be removed now."""
        self._client.end()
        if self._is_ours and not self._is_kept:
            try:
                if any(self._client.in_flight):
                    raise InterruptedError(errno.EINTR, "requests are still waiting for it")
                self._client.delete_all(f"{FOLDER}/")
            except OSError as error:
                log(
                    f"{self.target}/{FOLDER} could not be removed ({error.strerror}); the next run"
                    " there removes it"
                )
        self._is_ours = False
        self._client.close()
        self._staging.clear()

    def _available_bytes(self, object_id: int, start: int, end: int) -> int:
        """Return the number of bytes that the object has between `start` and `end`."""
        length = self._lengths.get(object_id)
        if length is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")
        return max(0, min(end, length) - start)

    def _fetch(self, object_id: int, start: int, into: memoryview) -> None:
        if not len(into):
            return
        if start == 0 and len(into) == self._lengths[object_id]:
            self._client.get(self._key(object_id), into)
        else:
            self._client.get_range(self._key(object_id), start, into)

    def _put(self, object_id: int, data: memoryview) -> None:
        self._client.put(self._key(object_id), data)
        self._lengths[object_id] = len(data)

    def _take_staging(self, nbytes: int) -> memoryview:
        """Return memory of at least `nbytes`; memory that is too short is dropped."""
        while self._staging:
            memory = self._staging.pop()
            if len(memory) >= nbytes:
                return memory
        return memoryview(mmap.mmap(-1, nbytes))
