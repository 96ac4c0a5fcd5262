"""An object store as a tier.

Each write is one PUT, each read one GET or ranged GET, each delete one DELETE. One of three client
libraries sends them (`s3_clients`).

All objects lie below a folder of ours in the prefix. A marker object there lets a later run
recognize the leftovers of a killed one. Nothing else in the bucket is touched. Credentials come
from the environment or the standard files, and are never written or shown.
"""

from __future__ import annotations

import errno
import mmap
from dataclasses import dataclass

from kvreplay.plan.buffers import PAGE_BYTES
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.s3_clients.protocol import copy
from kvreplay.tiers.s3_clients.store_client import FAULTS, StoreClient
from kvreplay.tiers.tier import FileLayout, Holding, Tier, path_function
from kvtrace.core.app import log
from kvtrace.core.errors import DeviceError
from kvtrace.core.parameters import entry, named
from kvtrace.core.units import NS_PER_S, format_bytes

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
        self.name, self.target, self.engine = name, target, client.client.value
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
                    " which keeps other keys"
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
        refused, failed, silent = (counts.total(name) for name in FAULTS)
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
