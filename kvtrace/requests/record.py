"""The KV events that vLLM and SGLang publish.

Followed over ZeroMQ, kept as rows, and read as requests.

They come in order, and what was missed is asked for again. A message, in MessagePack, is [time,
[events], rank]. An event is a map with its type in it, or in older releases an array that begins
with it: https://docs.vllm.ai/en/stable/examples/online_serving/kv_events_subscriber/

The engine says what it stored, not what was asked: who stored which blocks behind which prefix. A
run of stores, each behind the block that the one before ended in, is taken as one request: stores
of several blocks as its prompt, computed chunk by chunk, stores of a single block after that as its
answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvtrace.core import pa
from kvtrace.core.errors import ConfigError, ProbeUnavailable, TraceError, how_to_add
from kvtrace.core.schema import EVENTS, MOST, CacheEvent, batch_of, enum_code
from kvtrace.core.tables import Writer, open_table
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.requests import Count, Gathered, Requests, Start, counted, sha256_of

_POLL_MS = 100
_REPLAY_MS = 2000
_END = -1
"""The sequence number that ends a replay."""
_FRAMES = 3
_FLUSH_ROWS = 10_000


@dataclass(slots=True)
class Recorded:
    """What a recording heard and missed, in messages."""

    messages: int = 0
    events: int = 0
    replayed: int = 0
    """Messages that were missed and then had from the engine's replay socket."""
    lost: int = 0
    """Messages that were missed for good."""
    restarts: int = 0
    """How often the numbers began again: the engine was restarted."""
    unreadable: int = 0
    first: int | None = None
    """The number of the first message."""


class Recorder:
    """Writes the events of one publisher as they come."""

    def __init__(self, endpoint: str, replay: str | None, topic: str, out: Writer) -> None:
        """Hear `endpoint`, ask for lost messages at `replay` if there is one, and write to `out`.

        ProbeUnavailable without pyzmq; ConfigError for an endpoint that is none.
        """
        try:
            import zmq
        except ImportError:
            raise ProbeUnavailable(f"recording needs pyzmq: {how_to_add('record')}") from None
        self.heard, self.rows = Recorded(), EventRows()
        self._zmq, self._out, self._next = zmq, out, None
        self._stack = ExitStack()
        context = self._stack.enter_context(zmq.Context())
        self._subscriber = self._open(context, zmq.SUB, endpoint, "--zmq")
        self._subscriber.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._replay = (
            None if replay is None else self._open(context, zmq.DEALER, replay, "--replay")
        )

    _next: int | None
    """The number that the next message must have; None before the first."""
    _overlap = 0
    """Messages below it came with the first replay and may come a second time, as published."""

    def _open(self, context: Any, kind: int, endpoint: str, option: str) -> Any:
        socket = self._stack.enter_context(context.socket(kind))
        # A publisher drops what a slow subscriber has no room for: none is dropped here for want of
        # room.
        socket.setsockopt(self._zmq.RCVHWM, 0)
        socket.setsockopt(self._zmq.LINGER, 0)
        try:
            socket.connect(endpoint)
        except self._zmq.ZMQError as error:
            self._stack.close()
            raise ConfigError(f"{option} {endpoint}: {error}; write tcp://HOST:PORT") from None
        return socket

    def run(self, is_done: Callable[[], bool], tick: Callable[[float], None]) -> Recorded:
        """Record until `is_done`; `tick` takes the events so far."""
        with self._stack:
            if self._replay is not None:
                self._ask(0, None)
                self._overlap = self._next or 0
            while not is_done():
                if self._subscriber.poll(_POLL_MS):
                    frames = self._subscriber.recv_multipart()
                    self._take(frames)
                    tick(float(self.heard.events))
            self._flush()
        return self.heard

    def _take(self, frames: list[bytes]) -> None:
        """Enter the message [topic, number, payload], after those that are missing before it."""
        if len(frames) != _FRAMES:
            self.heard.unreadable += 1
            return
        number = int.from_bytes(frames[1], "big", signed=True)
        if self._next is not None and number < self._next:
            if number < self._overlap:
                return
            self.heard.restarts += 1
            self._next = 0
        self._overlap = 0
        if self._next is not None and number > self._next:
            missing = number - self._next
            self.heard.lost += missing - self._ask(self._next, number)
        self._enter(number, frames[2])

    def _enter(self, number: int, payload: bytes) -> None:
        if self.heard.first is None:
            self.heard.first = number
        self._next = number + 1
        self.heard.messages += 1
        try:
            self.heard.events += self.rows.add(number, payload)
        except ValueError:
            self.heard.unreadable += 1
        if len(self.rows) >= _FLUSH_ROWS:
            self._flush()

    def _ask(self, start: int, stop: int | None) -> int:
        """Enter the messages from `start` on, before `stop`, that the engine still has.

        Return how many it had.
        """
        if self._replay is None:
            return 0
        self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        had, deadline = 0, time.monotonic() + _REPLAY_MS / 1000
        while self._replay.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            frames = self._replay.recv_multipart()
            number = (
                int.from_bytes(frames[-2], "big", signed=True) if len(frames) == _FRAMES else _END
            )
            if number == _END:
                break
            if (self._next is None or number >= self._next) and (stop is None or number < stop):
                self._enter(number, frames[-1])
                self.heard.replayed += 1
                had += 1
        return had

    def _flush(self) -> None:
        if len(self.rows):
            self._out.write(self.rows.take())


def stopwatch() -> Callable[[], int]:
    """Return what says how long it is, in ns, since it was made."""
    begin_ns = time.monotonic_ns()
    return lambda: time.monotonic_ns() - begin_ns


def notes_of(heard: Recorded, unknown: dict[str, int]) -> list[str]:
    """Return what was missed, for people and for the file's metadata."""
    notes = []
    if heard.first:
        notes.append(
            f"the first message heard is number {heard.first}: what the engine published before is"
            " not here"
        )
    notes += counted((heard.lost, "messages were lost: blocks stored in them are missing"))
    if heard.restarts:
        notes.append(
            f"the numbers began again {heard.restarts} times: the engine was restarted, and its"
            " cache empty"
        )
    unread = (
        (count, f"events of type {name!r} were not read") for name, count in sorted(unknown.items())
    )
    return notes + counted((heard.unreadable, "messages were not batches of KV events"), *unread)


_KINDS: Final = {
    "BlockStored": CacheEvent.STORED,
    "BlockRemoved": CacheEvent.REMOVED,
    "AllBlocksCleared": CacheEvent.CLEARED,
}
_ORDER: Final = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    ),
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
    block_size: Count | None = None
    medium: str | None = None
    group_idx: Count | None = None
    session_id: str | None = None


class _Batch(msgspec.Struct, array_like=True):
    ts: Annotated[float, msgspec.Meta(ge=0, le=MOST / NS_PER_S)]
    events: list[Any]
    rank: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)] | None = None


@dataclass(slots=True)
class EventRows:
    """Events as columns of the events table, with the blocks numbered as they are first heard of."""

    unknown: Counter[str] = field(default_factory=Counter)
    """How many events were of each type that this reads none of."""
    _ids: dict[_Hash, int] = field(default_factory=dict)
    _columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in EVENTS.names}
    )
    _decoder: Any = field(default_factory=lambda: msgspec.msgpack.Decoder(_Batch))

    def __len__(self) -> int:
        """Return how many rows wait for `take`."""
        return len(self._columns["ts_ns"])

    def add(self, sequence: int, payload: bytes) -> int:
        """Append the events of the message `sequence` and return how many.

        ValueError if it is no such message.
        """
        try:
            batch = self._decoder.decode(payload)
            events = [msgspec.convert(_as_map(event), _Event) for event in batch.events]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"message {sequence} is not a batch of KV events: {error}") from None
        hashes = (
            one for event in events for one in (*event.block_hashes, event.parent_block_hash or 0)
        )
        if wrong := [one for one in hashes if not isinstance(one, int | bytes | str)]:
            raise ValueError(
                f"message {sequence} is not a batch of KV events: {wrong[0]!r} is not a block hash"
            )
        known = [event for event in events if event.type in _KINDS]
        self.unknown.update(event.type for event in events if event.type not in _KINDS)
        for event in known:
            stored = event.type == "BlockStored"
            row = {
                "ts_ns": round(batch.ts * NS_PER_S),
                "sequence": sequence,
                "rank": batch.rank,
                "event": enum_code(EVENTS, "event", _KINDS[event.type]),
                "medium": event.medium,
                "block_ids": (
                    None
                    if event.type == "AllBlocksCleared"
                    else [self._id(h) for h in event.block_hashes]
                ),
                "parent_id": (
                    None if event.parent_block_hash is None else self._id(event.parent_block_hash)
                ),
                "block_tokens": event.block_size if stored else None,
                "group": event.group_idx,
                "session": event.session_id,
            }
            for name, value in row.items():
                self._columns[name].append(value)
        return len(known)

    def take(self) -> pa.RecordBatch:
        """Return the rows that wait, and forget them; the numbers of the blocks stay."""
        taken, self._columns = self._columns, {name: [] for name in EVENTS.names}
        return batch_of(EVENTS, taken)

    def _id(self, block_hash: _Hash) -> int:
        return self._ids.setdefault(block_hash, len(self._ids))


def _as_map(event: Any) -> Any:
    """Return `event` as a map, also if it is an array in the order of older releases."""
    if not isinstance(event, list) or not event:
        return event
    kind, values = event[0], event[1:]
    names = _ORDER.get(kind, ()) if isinstance(kind, str) else ()
    return {"type": kind, **dict(zip(names, values, strict=False))}


MOST_PAUSE_NS: Final = 2 * NS_PER_S
"""A store this long after the one before it is another request's.

The next turn of a conversation.
"""


@dataclass(slots=True)
class _Asked:
    """One request so far."""

    first_ns: int
    last_ns: int
    prompt: list[int]
    session: str | None
    answer: list[int] = field(default_factory=list)


def _stored_up_to(block: int | None, before: dict[int, int | None]) -> list[int]:
    """Return the blocks up to and including `block`, as far as they were seen stored."""
    found = dict[int, None]()  # in order, each once
    while block is not None and block not in found:
        found[block] = None
        block = before.get(block)
    return [*reversed(found)]


def is_own(start: Start) -> bool:
    """Return whether the file is an events table."""
    if not start.path.name.endswith((".parquet", ".csv.zst")):
        return False
    try:
        open_table(start.path, EVENTS)
    except TraceError:
        return False
    return True


def read(path: Path) -> Requests:
    """Return the requests that the events table at `path` lets one know of.

    TraceError if the file is no events table, or its blocks are of several sizes.
    """
    reader, requests, sizes, unknown_parents, not_used = (
        open_table(path, EVENTS),
        list[_Asked](),
        set[int](),
        0,
        0,
    )
    by_last: dict[int, _Asked] = {}
    """By the last block of each request so far, the request."""
    before: dict[int, int | None] = {}
    """Of each block that was seen stored, the one that it stands behind."""
    for row in (
        row
        for batch in reader.batches()
        for row in batch.to_pylist()
        if row["event"] == CacheEvent.STORED
    ):
        ids, parent, now = row["block_ids"], row["parent_id"], row["ts_ns"]
        if row["medium"] not in (None, "GPU") or row["group"] not in (None, 0) or not ids:
            not_used += 1
            continue
        sizes.add(row["block_tokens"] or 0)
        asked = by_last.pop(parent, None)
        if asked is None or now - asked.last_ns > MOST_PAUSE_NS or asked.session != row["session"]:
            prefix = _stored_up_to(parent, before)
            unknown_parents += bool(prefix) and prefix[0] not in before
            asked = _Asked(now, now, [*prefix, *ids], row["session"])
            requests.append(asked)
        elif len(ids) == 1:
            asked.answer += ids
        else:
            # A chunk of one block is no answer if more of the prompt comes behind it.
            asked.prompt += [*asked.answer, *ids]
            asked.answer = []
        asked.last_ns = now
        for block in ids:
            before[block] = parent
            parent = block
        by_last[parent] = asked
    if not requests:
        raise TraceError("holds no stored block, and so no request", path=path)
    if len(sizes) != 1 or 0 in sizes:
        raise TraceError(
            f"blocks of {sorted(sizes)} tokens: a file may hold one size above 0", path=path
        )
    block_tokens, found = sizes.pop(), Gathered()
    for asked in requests:
        tokens = len(asked.prompt) * block_tokens, len(asked.answer) * block_tokens
        found.add(asked.first_ns, *tokens, asked.prompt, asked.session, answered_ns=asked.last_ns)
    how = (
        "a request arrives when its first block is stored, prompts and answers count whole blocks"
        " only"
    )
    notes = [
        *reader.meta.notes,
        (
            f"the engine says what it stored: {how}, and which stores are a prompt's and which an"
            " answer's is estimated"
        ),
        (
            "a prompt wholly in the GPU's cache stored nothing and is not here, unless the engine"
            " reported in full"
        ),
    ]
    if unknown_parents:
        notes.append(
            f"{unknown_parents} prompts follow a block that was not seen stored: they begin with it"
        )
    facts = {"unknown_parents": unknown_parents, "stores_not_used": not_used}
    return found.requests("kv-events", path, sha256_of(path), block_tokens, notes, **facts)
