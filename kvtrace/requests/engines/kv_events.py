"""The KV events that vLLM and SGLang publish: MessagePack into rows of the events table.

A message is [time, [events], rank]. An event is a map with its type in it, or in older releases an array that begins
with it: https://docs.vllm.ai/en/stable/examples/online_serving/kv_events_subscriber/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kvtrace.core.schema import EVENTS, CacheEvent, arrow_schema, enum_array, enum_code
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS: Final = {
    "BlockStored": CacheEvent.STORED,
    "BlockRemoved": CacheEvent.REMOVED,
    "AllBlocksCleared": CacheEvent.CLEARED,
}
_ORDER: Final = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""The fields of an event that is an array, in their order; what follows them is not used."""
_Hash = Any
"""A number, bytes, or their hexadecimal digits."""


class _Event(msgspec.Struct):
    type: str
    block_hashes: list[_Hash] = []
    parent_block_hash: _Hash | None = None
    block_size: int | None = None
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    rank: int | None = None


@dataclass(slots=True)
class EventRows:
    """Events as columns of the events table, with the blocks numbered as they are first heard of."""

    unknown: dict[str, int] = field(default_factory=dict)
    """How many events were of each type that this reads none of."""
    _ids: dict[_Hash, int] = field(default_factory=dict)
    _columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in EVENTS.names})
    _decoder: Any = field(default_factory=lambda: msgspec.msgpack.Decoder(_Batch))

    def __len__(self) -> int:
        """Return how many rows wait for `take`."""
        return len(self._columns["ts_ns"])

    def add(self, sequence: int, payload: bytes) -> int:
        """Append the events of the message `sequence` and return how many; ValueError if it is no such message."""
        try:
            batch = self._decoder.decode(payload)
            events = [msgspec.convert(_as_map(event), _Event) for event in batch.events]
            for event in events:
                _check([*event.block_hashes, event.parent_block_hash])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"message {sequence} is no batch of KV events: {error}") from None
        known = [event for event in events if event.type in _KINDS]
        for event in events:
            if event.type not in _KINDS:
                self.unknown[event.type] = self.unknown.get(event.type, 0) + 1
        for event in known:
            stored = event.type == "BlockStored"
            row = {
                "ts_ns": round(batch.ts * NS_PER_S),
                "sequence": sequence,
                "rank": batch.rank,
                "event": enum_code(EVENTS, "event", _KINDS[event.type]),
                "medium": event.medium,
                "block_ids": None if event.type == "AllBlocksCleared" else [self._id(h) for h in event.block_hashes],
                "parent_id": None if event.parent_block_hash is None else self._id(event.parent_block_hash),
                "block_tokens": event.block_size if stored else None,
                "group": event.group_idx,
                "session": event.session_id,
            }
            for name, value in row.items():
                self._columns[name].append(value)
        return len(known)

    def take(self) -> pa.RecordBatch:
        """Return the rows that wait, and forget them; the numbers of the blocks stay."""
        import pyarrow as pa

        schema, columns = arrow_schema(EVENTS), self._columns
        kinds = enum_array(EVENTS, "event", columns["event"])
        arrays = [kinds if f.name == "event" else pa.array(columns[f.name], f.type) for f in schema]
        self._columns = {name: [] for name in EVENTS.names}
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _id(self, block_hash: _Hash) -> int:
        return self._ids.setdefault(block_hash, len(self._ids))


def _check(hashes: list[_Hash]) -> None:
    wrong = next((h for h in hashes if not isinstance(h, int | bytes | str | None)), None)
    if wrong is not None:
        raise TypeError(f"{wrong!r} is no block hash")


def _as_map(event: Any) -> Any:
    """Return `event` as a map, also if it is an array in the order of older releases."""
    if not isinstance(event, list) or not event:
        return event
    kind, values = event[0], event[1:]
    names = _ORDER.get(kind, ()) if isinstance(kind, str) else ()
    return {"type": kind, **dict(zip(names, values, strict=False))}
