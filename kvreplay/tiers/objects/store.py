"""An object store as a tier: each write is one PUT, each read one GET or ranged GET, each delete one DELETE.

All objects lie below a folder of ours in the prefix, with a marker: by it a later run knows the leftovers of a killed
one. Nothing else in the bucket is touched.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

from kvreplay.native.rows import READ, WRITE
from kvreplay.tiers.layout import FileLayout, path_function
from kvreplay.tiers.objects.client import StoreClient, copy, seconds
from kvreplay.tiers.tier import Holding
from kvtrace.core.app import log
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import format_bytes

PAGE_BYTES = 4096
FOLDER = "kvreplay-scratch"
MARKER = f"{FOLDER}/KVREPLAY"
_MARKER_TEXT = b"Written by kvreplay: everything in this folder is its own and will be deleted.\n"
MOST_BYTES = 5 << 30
"""Of one PUT, by S3's definition."""


@dataclass(slots=True)
class ObjectRequest:
    """One operation's request, and the memory that it goes through where its data takes several buffers."""

    object_id: int
    start: int
    end: int
    staged: memoryview | None = None


class ObjectTier:
    """Objects in a bucket, below a prefix."""

    engine = "s3dlio"
    is_simulated = False

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
        """Hold objects for the tier `name`; `is_shared`: others' objects may lie below the prefix, and stay there.

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
                f"--tier {self.name}={self.target}: object {next(iter(holding.grown))} is written on beyond its end, "
                "but an object store takes whole objects; give this tier another target"
            )

    def open(self, peak_bytes: int) -> None:
        """Claim the prefix: DeviceError, saying what to do, if the store does not answer or the prefix is not ours."""
        self._client.open()
        try:
            keys = self._client.keys()
            foreign = next((key for key in keys if not key.startswith(f"{FOLDER}/")), None)
            if foreign is not None and not self._is_shared:
                raise DeviceError(
                    f"{self.target} is not empty ({foreign}{' and more' if len(keys) > 1 else ''}) and not ours; name "
                    "an empty prefix, or say --destroy-data: what is there stays"
                )
            ours = [key for key in keys if key.startswith(f"{FOLDER}/")]
            if ours and MARKER not in ours:
                raise DeviceError(f"{self.target}/{FOLDER} is not ours ({ours[0]}); name another prefix")
            if ours:
                self._client.delete_all(f"{FOLDER}/")
                self._found_leftovers = len(ours) - 1
            self._client.put(MARKER, memoryview(_MARKER_TEXT))
        except FileNotFoundError as error:
            raise DeviceError(f"{self.target}: {error.strerror}; make the bucket first") from None
        except OSError as error:
            raise DeviceError(f"{self.target}: {error.strerror}") from None
        self._is_ours = True
        blind = self._client.is_seen_by_all(MARKER)
        if blind is not None:
            raise DeviceError(
                f"--endpoint {blind} does not see what was written through the first; name endpoints of one store"
            )
        self._client.begin()

    def reserve(self, object_id: int, end: int) -> None:
        """Check that one PUT takes so much."""
        if end > MOST_BYTES:
            raise OSError(27, f"{format_bytes(end)} are more than one PUT takes ({format_bytes(MOST_BYTES)})")

    def begin(self, op: int, object_id: int) -> ObjectRequest:
        """Do not begin what is not known whole: `begin_whole` does."""
        raise NotImplementedError

    def begin_whole(self, op: int, object_id: int, start: int, end: int, *, is_split: bool) -> ObjectRequest:
        """Return the exchange of bytes `start` to `end`; of a read in several buffers all come now."""
        if op == WRITE and start:
            raise OSError(22, f"an object store takes whole objects, not a write from offset {start}")
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
        """Get the bytes to `into`; of several buffers' they have come, and are copied only to be checked."""
        came = self._there(handle.object_id, offset, offset + len(into))
        if handle.staged is None:
            self._fetch(handle.object_id, offset, into[:came])
        elif self._is_verified:
            at = offset - handle.start
            copy(into, handle.staged[at : at + came])
        return came

    def end_whole(self, op: int, handle: ObjectRequest) -> None:
        """Put what was gathered."""
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

    def facts(self) -> dict[str, Any]:
        """Return what was asked of the store and what it answered; populating is among it."""
        client = self._client
        return {
            "is_simulated": False,
            "client": client.facts(),
            **client.requests.facts(),
            "found_leftovers": self._found_leftovers,
            "note": "latencies are those of whole requests, repeats and the waits before them included",
        }

    def warnings(self) -> list[str]:
        """Return what the store refused or failed, in words."""
        counts = self._client.requests
        refused, failed = counts.total("refused"), counts.total("failed")
        if not refused + failed:
            return []
        of = f"refused {refused:,} requests (503 or 429) and failed {failed:,}, of {counts.total('requests'):,}"
        again = f"{counts.operations_repeated:,} operations went through when asked again"
        return [
            f"{self.target} {of}; {again}, after {seconds(counts.waited_ns)} of waits, which are in their latencies"
        ]

    def close(self) -> None:
        """Remove our own objects; what cannot be removed, the next run there removes."""
        self._client.end()
        if self._is_ours and not self._is_kept:
            try:
                self._client.delete_all(f"{FOLDER}/")
            except OSError as error:
                log(f"{self.target}/{FOLDER} could not be removed ({error.strerror}); the next run there removes it")
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
