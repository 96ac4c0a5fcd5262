"""An object store as a tier.

Each write is one PUT, each read one GET or ranged GET, each delete one DELETE.

Requests go through s3dlio, each from the thread that waits for it. s3dlio's own retries are
switched off, because it does not report them: a request that it retried would look like a slow one.
Retries made here are counted.

All objects lie below a folder of ours in the prefix, with a marker: by it a later run knows the
leftovers of a killed one. Nothing else in the bucket is touched. Credentials come from the
environment or the standard files, and never reach anything that is written or shown.
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
from kvtrace.core.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    import asyncio


FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Before the first repeat of a request, and before any.

Each wait is twice the one before it, less up to half of it.
"""
_ENVIRONMENT = {
    "S3DLIO_MAX_RETRY_ATTEMPTS": "1",
    # Credentials come from the environment and the standard files alone, and not from a .env that
    # lies about.
    "S3DLIO_LOAD_DOTENV": "0",
}


_TIMEOUT = "S3DLIO_OPERATION_TIMEOUT_SECS"
_THIS = "\ufffc"
"""Stands for the object while its error is judged: a name says nothing of what became of it."""
_LEAVES_S = 1
"""After a signal, of what the main thread waits for."""


class Balance(StrEnum):
    """How `--balance` spreads requests over endpoints."""

    ROUND_ROBIN = "round-robin"
    LEAST_CONNECTIONS = "least-connections"


class StoreClient:
    """One prefix of a store; everything but `open` and `close` is called from many threads."""

    def __init__(self, address: Address, balance: Balance, retries: int, timeout_s: int) -> None:
        """Serve `address`.

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
        self._turn, self.in_flight = -1, [0] * len(self._roots)
        """Whose turn it was, and the requests in flight, by endpoint."""
        self._is_spread = False
        """Whether requests go to all endpoints; else to the first."""
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._api: Any = None
        self._here = threading.local()

    def open(self) -> None:
        """Load s3dlio and find credentials.

        DeviceError, saying what to do, where either is missing.
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
        """Start counting and spreading requests; earlier ones are not part of the replay."""
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
        import asyncio

        async def get_into(uri: str) -> None:
            await self._api.get_into_async(uri, into, expected_len=len(into))

        def ask(uri: str) -> None:
            # A loop for each thread that waits at once; list's own lock suffices.
            try:
                loop = self._loops.pop()
            except IndexError:
                loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(get_into(uri))
            finally:
                self._loops.append(loop)

        self._ask("get", key, len(into), ask)

    def get_range(self, key: str, offset: int, into: memoryview) -> None:
        """Read so many bytes from `offset`."""

        def ask(uri: str) -> None:
            came = memoryview(self._api.get_range(uri, offset, len(into)))
            if len(came) != len(into):
                raise RuntimeError(
                    f"LengthMismatch: {len(came)} of {len(into)} bytes came from offset {offset}"
                )
            copy(into, came)

        self._ask("ranged get", key, len(into), ask)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._ask("delete", key, 0, self._api.delete)

    def keys(self) -> list[str]:
        """Return the keys below the prefix, without it."""
        names: list[str] = []
        self._ask("list", "", 0, lambda uri: names.extend(self._api.list(uri, recursive=True)))
        found = [name.partition(f"{self.address.path}/") for name in names]
        if (foreign := next((name for name, at, _ in found if not at), None)) is not None:
            raise OSError(
                errno.EIO,
                f"listing this prefix, the store returned {foreign}, which is not below it",
            )
        return [key for _, _, key in found]

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

    def facts(self) -> dict[str, object]:
        """Return the client, its endpoints and its settings.

        The first is null where the environment named it.
        """
        urls = self.address.endpoints or (None,)
        return {
            "name": "s3dlio",
            "version": self._api.__version__,
            "balance": self._balance.value,
            "retries": self._retries,
            "endpoints": [
                {"url": url, **of} for url, of in zip(urls, self.requests.of_endpoints, strict=True)
            ],
        }

    def close(self) -> None:
        """Close the connections of the threads."""
        while self._loops:
            self._loops.pop().close()

    def _ask(self, kind: str, key: str, nbytes: int, call: Callable[[str], object]) -> None:
        """Send a request until it is done.

        OSError if it was refused or failed too often, or for good; FileNotFoundError if there is no
        such object or bucket.
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
            self._here.retries = self.take_retries() + 1
            repeats, wait_s = repeats + 1, min(2 * wait_s, LONGEST_WAIT_S)

    def _once(
        self, kind: str, key: str, nbytes: int, call: Callable[[str], object], *, is_repeat: bool
    ) -> str | None:
        """Send a request; return what went wrong, if anything did."""
        at = self._pick()
        uri, text = f"{self._roots[at]}/{key}", None
        try:
            if threading.current_thread() is threading.main_thread():
                _wait_for(lambda: call(uri))
            else:
                call(uri)
        except self._errors as error:
            # It does not know of --endpoint, and names an option of its own.
            said = str(error).partition("; no endpoint URL is set")[0]
            said = said.replace(_TIMEOUT, "--request-timeout").replace(uri, _THIS)
            own = f"{self.address.path}/{key}"
            text = without_secrets(
                said.replace(f"{self.address.scheme}://{own}", _THIS).replace(own, _THIS)
            )
        with self._lock:
            self.in_flight[at] -= 1
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
                self._turn = at = (
                    min((self.in_flight[i % count], i) for i in range(at, at + count))[1] % count
                )
            self.in_flight[at] += 1
        return at


def _wait_for(call: Callable[[], object]) -> None:
    """Do `call` in a thread of its own, which is left if a signal came: InterruptedError."""
    failed: list[Exception] = []

    def work() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            failed.append(error)

    thread, left = threading.Thread(target=work, daemon=True), monotonic_ns() + _LEAVES_S * NS_PER_S
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        if NOTED.get() and monotonic_ns() > left and thread.is_alive():
            raise InterruptedError(errno.EINTR, "it did not answer when a signal asked to end")
    if failed:
        raise failed[0]


def copy(into: memoryview, source: memoryview) -> None:
    """Copy all of `source`, other threads running meanwhile."""
    ctypes.memmove(address_of(into), address_of(source), len(source))


SCHEMES = ("s3", "az", "gs")
"""URL schemes of object stores; s3dlio supports az and gs too, which are untested here."""
_TARGET = re.compile(rf"({'|'.join(SCHEMES)})://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PORTS = {"http": 80, "https": 443}


def is_object_store(target: str) -> bool:
    """Return whether a target is a place in an object store."""
    return _TARGET.match(target) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """A prefix in a bucket, as each endpoint names it."""

    scheme: str
    path: str
    """Bucket and prefix, without a slash at the end."""
    endpoints: tuple[str, ...]
    """URLs, in the order in which the user named them; none: where the environment says."""

    @classmethod
    def of(cls, said: str, target: str, endpoints: Sequence[str]) -> Self:
        """Return the address that `target` and `endpoints` name.

        ConfigError, quoting `said`, for what is none.
        """
        scheme, _, rest = target.partition("://")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        if "@" in bucket:
            raise ConfigError(
                "--tier: the target has credentials; leave them out: they are read from the"
                " environment or the standard files alone"
            )
        if not prefix or (scheme == "s3" and not _BUCKET.fullmatch(bucket)):
            raise ConfigError(
                f"{said}: write {scheme}://BUCKET/PREFIX, with a bucket of 3 to 63 lower-case"
                " letters, digits, dots and hyphens, and a prefix that is the replay's own"
            )
        if any(c in "*?[]%#" or c.isspace() for c in prefix) or "//" in prefix:
            raise ConfigError(f"{said}: the prefix is letters, digits and / . _ - only")
        if endpoints and scheme != "s3":
            raise ConfigError(
                f"{said}: --endpoint is for s3:// targets; {scheme}:// takes its own from the"
                " environment"
            )
        return cls(scheme, f"{bucket}/{prefix}", tuple(_checked(url) for url in endpoints))

    def roots(self) -> list[str]:
        """Return the prefix as s3dlio names it, for each endpoint.

        An endpoint is part of the URI.
        """
        if not self.endpoints:
            return [f"{self.scheme}://{self.path}"]
        return [f"{self.scheme}://{urlsplit(url).netloc}/{self.path}" for url in self.endpoints]

    def tls_ports(self) -> list[int]:
        """Return the ports of endpoints that speak TLS, which s3dlio must be told."""
        asked = [urlsplit(url) for url in self.endpoints]
        return sorted({url.port for url in asked if url.scheme == "https" and url.port is not None})


def _checked(url: str) -> str:
    """Return an endpoint's URL; ConfigError for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(
            f"--endpoint {url}: {error}; write http://host:9000 or https://host"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "--endpoint: the URL has credentials; leave them out: they are read from the"
            " environment"
        )
    if (
        parts.scheme not in _PORTS
        or not parts.hostname
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
    ):
        raise ConfigError(f"--endpoint {url}: write http://host:9000 or https://host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or _PORTS[parts.scheme]}"


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
_SHORTEST = 4
"""A shorter value is no secret, and would blot out words."""


def find_credentials() -> None:
    """Put the credentials of the standard files into this process's environment, which is all that
    s3dlio reads.

    Variables that are set win, as they do in every S3 client.

    DeviceError if there are none.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ:
        return
    profile, home = os.environ.get("AWS_PROFILE", "default"), Path.home() / ".aws"
    section = profile if profile == "default" else f"profile {profile}"
    files = [
        (os.environ.get("AWS_CONFIG_FILE", home / "config"), section),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), profile),
    ]
    # The credentials file wins.
    found: dict[str, str] = {}
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
            found |= dict(parser.items(name))
    if not {"aws_access_key_id", "aws_secret_access_key"} <= found.keys():
        raise DeviceError(
            "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them"
            f" to ~/.aws/credentials (profile {profile})"
        )
    for key in _KEYS:
        if key in found:
            os.environ[key.upper()] = found[key]
    if "region" in found:
        os.environ.setdefault("AWS_REGION", found["region"])


def without_secrets(text: str) -> str:
    """Return `text` on one line and without any credential of the environment."""
    for name in _SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST:
            text = text.replace(value, f"<{name}>")
    return " ".join(text.split())


class Answer(StrEnum):
    """How a request to a store ended."""

    DONE = "done"
    REFUSED = "refused"
    """503 SlowDown or 429: the store asks for fewer requests."""
    FAILED = "failed"
    """A fault of the store or of the way there: 500, no connection."""
    TIMED_OUT = "timed_out"
    """No answer in time."""
    FINAL = "final"
    """An error that a retry does not mend: no such object, no permission."""


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
    """Return how a request ended of which s3dlio says `text`: it has no other sign than words."""
    if any(word in text for word in _REFUSED):
        return Answer.REFUSED
    if "timed out" in text:
        return Answer.TIMED_OUT
    return Answer.FINAL if any(word in text for word in _FINAL) else Answer.FAILED


_FAULTS = (Answer.REFUSED.value, Answer.FAILED.value, Answer.TIMED_OUT.value)


class RequestCounts:
    """Counts of all requests of one tier."""

    def __init__(self, endpoints: int) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self.of_endpoints = [dict.fromkeys(("requests", *_FAULTS), 0) for _ in range(endpoints)]
        self.operations_repeated = 0
        """Operations that went through after the store had refused or failed them."""
        self.waited_ns = 0
        """Time that these waited between their requests, together."""

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
            at = self.of_endpoints[endpoint]
            at["requests"] += 1
            if answer is not Answer.DONE:
                name = str(answer) if answer in _FAULTS else "failed"
                count[name] += 1
                at[name] += 1

    def add_repeated(self, waited_ns: int) -> None:
        """Count an operation that went through by more than one request."""
        with self._lock:
            self.operations_repeated += 1
            self.waited_ns += waited_ns

    def total(self, name: str) -> int:
        """Return the sum of one count over all kinds."""
        return sum(count[name] for count in self._counts.values())

    def facts(self) -> dict[str, object]:
        """Return the counts by kind, and what was done about refusals."""
        return {
            "requests": {kind: dict(count) for kind, count in self._counts.items()},
            "operations_repeated": self.operations_repeated,
            "waited_ns": self.waited_ns,
        }


FOLDER = "kvreplay-scratch"
MARKER = f"{FOLDER}/KVREPLAY"
_MARKER_TEXT = b"Written by kvreplay: everything in this folder is its own and will be deleted.\n"
MOST_BYTES = 5 << 30
"""Maximum length of one PUT, by S3's definition."""


@dataclass(slots=True)
class ObjectRequest:
    """One operation's request, and the memory that it goes through where its data takes several
    buffers.
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
        """Hold objects for the tier `name`.

        `is_shared`: others' objects may lie below the prefix, and stay there.

        A verified tier holds whole blocks.
        """
        self.name, self.target = name, target
        self.alignment = PAGE_BYTES if is_verified else 1
        self._client, self._is_verified = client, is_verified
        self._is_kept, self._is_shared, self._is_ours = is_kept, is_shared, False
        self._key = path_function(FileLayout.HASHED, FOLDER)
        self._lengths: dict[int, int] = {}
        self._staging: list[memoryview] = []
        """Memory that exchanges have used, to be used again."""
        self._found_leftovers = 0

    def expect(self, holding: Holding) -> None:
        """Refuse what a store cannot do: objects there are written whole."""
        if holding.grown:
            raise DeviceError(
                f"--tier {self.name}={self.target}: object {next(iter(holding.grown))} is extended"
                " after its write, but an object store takes whole objects; give this tier another"
                " target"
            )

    def open(self, peak_bytes: int) -> None:
        """Claim the prefix.

        DeviceError, saying what to do, if the store does not answer or the prefix is not ours.
        """
        self._client.open()
        try:
            keys = self._client.keys()
            foreign = next((key for key in keys if not key.startswith(f"{FOLDER}/")), None)
            if foreign is not None and not self._is_shared:
                raise DeviceError(
                    f"{self.target} is not empty ({foreign}{' and more' if len(keys) > 1 else ''})"
                    " and not kvreplay's; name an empty prefix, or add --destroy-data, which keeps"
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
                f"--endpoint {blind} does not see what was written through the first; name"
                " endpoints of one store"
            )
        self._client.begin()

    def reserve(self, object_id: int, end: int) -> None:
        """Check that one PUT takes so much."""
        if end > MOST_BYTES:
            raise OSError(
                27, f"{format_bytes(end)} exceed the limit of one PUT ({format_bytes(MOST_BYTES)})"
            )

    def begin_whole(
        self, op: int, object_id: int, start: int, end: int, *, is_split: bool
    ) -> ObjectRequest:
        """Begin, in place of `begin`, a request for bytes `start` to `end`.

        Of a read in several buffers all come now.

        `is_split` says that their data takes several buffers.
        """
        if op == WRITE and start:
            raise OSError(
                22, f"an object store takes whole objects, not a write from offset {start}"
            )
        exchange = ObjectRequest(object_id, start, end)
        if is_split:
            exchange.staged = self._take_staging(end - start)
        if op == READ and exchange.staged is not None:
            self._fetch(object_id, start, exchange.staged[: self._there(object_id, start, end)])
        return exchange

    def write(self, handle: ObjectRequest, offset: int, data: memoryview) -> None:
        """Put the object, or gather it first where `data` is a part of it."""
        if handle.staged is None:
            self._put(handle.object_id, data)
        else:
            copy(handle.staged[offset - handle.start :], data)

    def read(self, handle: ObjectRequest, offset: int, into: memoryview) -> int:
        """Read the bytes to `into`.

        With several buffers they are here already, and are copied only to be checked.
        """
        came = self._there(handle.object_id, offset, offset + len(into))
        if handle.staged is None:
            self._fetch(handle.object_id, offset, into[:came])
        elif self._is_verified:
            at = offset - handle.start
            copy(into, handle.staged[at : at + came])
        return came

    def end_whole(self, op: int, handle: ObjectRequest) -> None:
        """Send what the buffers of a split write brought.

        Part of the operation's time, which begins with it.
        """
        if op == WRITE and handle.staged is not None:
            self._put(handle.object_id, handle.staged[: handle.end])

    def end(self, op: int, handle: ObjectRequest) -> None:
        """Give the memory back."""
        if handle.staged is not None:
            self._staging.append(handle.staged)
            handle.staged = None

    def delete(self, object_id: int) -> None:
        """Delete the object."""
        if self._lengths.pop(object_id, None) is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")
        self._client.delete(self._key(object_id))

    def take_retries(self) -> int:
        """Return how often the calling thread has repeated a request since it last asked."""
        return self._client.take_retries()

    def path(self, object_id: int) -> str:
        """Return the object's URI."""
        return f"{self.target.rstrip('/')}/{self._key(object_id)}"

    def facts(self) -> dict[str, object]:
        """Return the counts of requests to the store and of its answers, those of populating included."""
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
        """Return sentences on the requests that the store refused or failed."""
        counts = self._client.requests
        refused, failed, silent = (counts.total(name) for name in _FAULTS)
        if not refused + failed + silent:
            return []
        of = (
            f"refused {refused:,} requests (503 or 429) and failed {failed:,}, of"
            f" {counts.total('requests'):,}"
        )
        of += f", and left {silent:,} unanswered" if silent else ""
        again = f"{counts.operations_repeated:,} operations succeeded on retry"
        waits = f"{counts.waited_ns / NS_PER_S:.1f} s of waits"
        return [f"{self.target} {of}; {again}, after {waits}, which are in their latencies"]

    def close(self) -> None:
        """Remove our own objects; what cannot be removed, the next run there removes."""
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

    def _there(self, object_id: int, start: int, end: int) -> int:
        """Return how many of the bytes the object has."""
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
        """Return memory of at least so many bytes; what is too short is not kept."""
        while self._staging:
            found = self._staging.pop()
            if len(found) >= nbytes:
                return found
        return memoryview(mmap.mmap(-1, nbytes))
