"""KV events of vLLM and SGLang: recorded over ZeroMQ, stored as rows, and read as requests.

Messages have numbers, and missed ones are requested again. A message, in MessagePack, is [time,
[events], rank]. An event is a map that holds its type, or in older releases an array that begins
with it: https://docs.vllm.ai/en/stable/examples/online_serving/kv_events_subscriber/

The engine reports stored blocks and their parent, not requests, which are estimated:

    for each store of blocks:
        if its parent is the last block of an open request, within 2 s and of one session:
            a single block is part of the answer; several are part of the prompt
        else: a new request, with a prompt of the known prefix and these blocks

Source: own reasoning.
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
from kvtrace.core.parameters import named
from kvtrace.core.schema import EVENTS, MOST, CacheEvent, batch_of, enum_code
from kvtrace.core.tables import Writer, open_table
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.json_lines import Count
from kvtrace.requests.notes import counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import Requests
from kvtrace.requests.source_files import Start, sha256_of

_POLL_MS = 100
_REPLAY_MS = 2000
_END = -1
"""The sequence number that ends a replay."""
_FRAMES = 3
_FLUSH_ROWS = 10_000


@dataclass(slots=True)
class RecordingCounts:
    """Counts of received and missed messages of a recording."""

    messages: int = 0
    events: int = 0
    replayed: int = 0
    """Messages that were missed, and then received from the engine's replay socket."""
    lost: int = 0
    """Messages that are lost."""
    restarts: int = 0
    """Number of restarts of the engine, after which message numbers begin again."""
    unreadable: int = 0
    first: int | None = None
    """Number of the first message."""


class Recorder:
    """Writes the events of one publisher as they arrive."""

    def __init__(self, endpoint: str, replay: str | None, topic: str, out: Writer) -> None:
        """Subscribe to `endpoint`, and write to `out`; missed messages come from `replay` if given.

        ProbeUnavailable without pyzmq; ConfigError for an invalid endpoint.
        """
        try:
            import zmq
        except ImportError:
            raise ProbeUnavailable(f"recording needs pyzmq: {how_to_add('record')}") from None
        self.counts, self.rows = RecordingCounts(), EventRows()
        self._zmq, self._out, self._next = zmq, out, None
        self._stack = ExitStack()
        context = self._stack.enter_context(zmq.Context())
        self._subscriber = self._open(context, zmq.SUB, endpoint, named("zmq"))
        self._subscriber.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._replay = (
            None if replay is None else self._open(context, zmq.DEALER, replay, named("replay"))
        )

    _next: int | None
    """Expected number of the next message; None before the first."""
    _overlap = 0
    """Messages below this number came with the first replay, and may be published again."""

    def _open(self, context: Any, kind: int, endpoint: str, option: str) -> Any:
        socket = self._stack.enter_context(context.socket(kind))
        # No limit on queued messages, because ZeroMQ drops messages of a slow subscriber.
        socket.setsockopt(self._zmq.RCVHWM, 0)
        socket.setsockopt(self._zmq.LINGER, 0)
        try:
            socket.connect(endpoint)
        except self._zmq.ZMQError as error:
            self._stack.close()
            raise ConfigError(f"{option} {endpoint}: {error}; write tcp://HOST:PORT") from None
        return socket

    def run(self, is_done: Callable[[], bool], tick: Callable[[float], None]) -> RecordingCounts:
        """Record until `is_done`; `tick` receives the number of events so far."""
        with self._stack:
            if self._replay is not None:
                self._replay_missed(0, None)
                self._overlap = self._next or 0
            while not is_done():
                if self._subscriber.poll(_POLL_MS):
                    frames = self._subscriber.recv_multipart()
                    self._take(frames)
                    tick(float(self.counts.events))
            self._flush()
        return self.counts

    def _take(self, frames: list[bytes]) -> None:
        """Enter the message [topic, number, payload], after missed ones before it."""
        if len(frames) != _FRAMES:
            self.counts.unreadable += 1
            return
        number = int.from_bytes(frames[1], "big", signed=True)
        if self._next is not None and number < self._next:
            if number < self._overlap:
                return
            self.counts.restarts += 1
            self._next = 0
        self._overlap = 0
        if self._next is not None and number > self._next:
            missing = number - self._next
            self.counts.lost += missing - self._replay_missed(self._next, number)
        self._enter(number, frames[2])

    def _enter(self, number: int, payload: bytes) -> None:
        if self.counts.first is None:
            self.counts.first = number
        self._next = number + 1
        self.counts.messages += 1
        try:
            self.counts.events += self.rows.add(number, payload)
        except ValueError:
            self.counts.unreadable += 1
        if len(self.rows) >= _FLUSH_ROWS:
            self._flush()

    def _replay_missed(self, start: int, stop: int | None) -> int:
        """Enter the messages from `start` to `stop` (exclusive) that the engine still has.

        Returns their number.
        """
        if self._replay is None:
            return 0
        self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        received, deadline = 0, time.monotonic() + _REPLAY_MS / 1000
        while self._replay.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            frames = self._replay.recv_multipart()
            number = (
                int.from_bytes(frames[-2], "big", signed=True) if len(frames) == _FRAMES else _END
            )
            if number == _END:
                break
            if (self._next is None or number >= self._next) and (stop is None or number < stop):
                self._enter(number, frames[-1])
                self.counts.replayed += 1
                received += 1
        return received

    def _flush(self) -> None:
        if len(self.rows):
            self._out.write(self.rows.take())


def stopwatch() -> Callable[[], int]:
    """Return a function that returns the ns since this call."""
    begin_ns = time.monotonic_ns()
    return lambda: time.monotonic_ns() - begin_ns


def notes_of(counts: RecordingCounts, unknown: dict[str, int]) -> list[str]:
    """Return notes on missed messages."""
    notes = []
    if counts.first:
        notes.append(
            f"the first message heard is number {counts.first}: earlier events of the engine are"
            " missing"
        )
    notes += counted((counts.lost, "messages were lost: blocks stored in them are missing"))
    if counts.restarts:
        notes.append(
            f"the numbers began again {counts.restarts} times: the engine was restarted with an"
            " empty cache"
        )
    unread = (
        (count, f"events of type {name!r} were not read") for name, count in sorted(unknown.items())
    )
    return notes + counted((counts.unreadable, "messages were not batches of KV events"), *unread)


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
    """Events as columns of the events table, with blocks numbered by first appearance."""

    unknown: Counter[str] = field(default_factory=Counter)
    """Number of events by unknown type."""
    _ids: dict[_Hash, int] = field(default_factory=dict)
    _columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in EVENTS.names}
    )
    _decoder: Any = field(default_factory=lambda: msgspec.msgpack.Decoder(_Batch))

    def __len__(self) -> int:
        """Return the number of rows for `take`."""
        return len(self._columns["ts_ns"])

    def add(self, sequence: int, payload: bytes) -> int:
        """Append the events of the message `sequence`, and return their number.

        ValueError if it is not a batch of events.
        """
        try:
            batch = self._decoder.decode(payload)
            events = [msgspec.convert(_as_map(event), _Event) for event in batch.events]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"message {sequence} is not a batch of KV events: {error}") from None
        hashes = (
            block_hash
            for event in events
            for block_hash in (*event.block_hashes, event.parent_block_hash or 0)
        )
        if invalid := [
            block_hash for block_hash in hashes if not isinstance(block_hash, int | bytes | str)
        ]:
            raise ValueError(
                f"message {sequence} is not a batch of KV events: {invalid[0]!r} is not a block hash"
            )
        readable = [event for event in events if event.type in _KINDS]
        self.unknown.update(event.type for event in events if event.type not in _KINDS)
        for event in readable:
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
                    else [self._id(block_hash) for block_hash in event.block_hashes]
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
        return len(readable)

    def take(self) -> pa.RecordBatch:
        """Return the rows, and clear them; the numbers of blocks are kept."""
        columns, self._columns = self._columns, {name: [] for name in EVENTS.names}
        return batch_of(EVENTS, columns)

    def _id(self, block_hash: _Hash) -> int:
        return self._ids.setdefault(block_hash, len(self._ids))


def _as_map(event: Any) -> Any:
    """Return `event` as a map, also if it is an array in the order of older releases."""
    if not isinstance(event, list) or not event:
        return event
    kind, values = event[0], event[1:]
    names = _ORDER.get(kind, ()) if isinstance(kind, str) else ()
    return {"type": kind, **dict(zip(names, values, strict=False))}


MAX_PAUSE_NS: Final = 2 * NS_PER_S
"""A store after a longer pause belongs to another request, the next turn of a conversation."""


@dataclass(slots=True)
class _OpenRequest:
    """A request that may continue."""

    first_ns: int
    last_ns: int
    prompt: list[int]
    session: str | None
    answer: list[int] = field(default_factory=list)


def _stored_up_to(block: int | None, before: dict[int, int | None]) -> list[int]:
    """Return the chain of stored blocks up to and including `block`, as far as recorded."""
    chain = dict[int, None]()  # ordered, without duplicates
    while block is not None and block not in chain:
        chain[block] = None
        block = before.get(block)
    return [*reversed(chain)]


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
    """Return the requests estimated from the events table at `path`.

    TraceError if the file is not an events table, or has blocks of several sizes.
    """
    reader, requests, sizes, unknown_parents, unused_events = (
        open_table(path, EVENTS),
        list[_OpenRequest](),
        set[int](),
        0,
        0,
    )
    by_last: dict[int, _OpenRequest] = {}
    """Open requests by their last block."""
    parents: dict[int, int | None] = {}
    """Parent of each stored block."""
    for row in (
        row
        for batch in reader.batches()
        for row in batch.to_pylist()
        if row["event"] == CacheEvent.STORED
    ):
        ids, parent, now_ns = row["block_ids"], row["parent_id"], row["ts_ns"]
        if row["medium"] not in (None, "GPU") or row["group"] not in (None, 0) or not ids:
            unused_events += 1
            continue
        sizes.add(row["block_tokens"] or 0)
        request = by_last.pop(parent, None)
        if (
            request is None
            or now_ns - request.last_ns > MAX_PAUSE_NS
            or request.session != row["session"]
        ):
            prefix = _stored_up_to(parent, parents)
            unknown_parents += bool(prefix) and prefix[0] not in parents
            request = _OpenRequest(now_ns, now_ns, [*prefix, *ids], row["session"])
            requests.append(request)
        elif len(ids) == 1:
            request.answer += ids
        else:
            # A single block followed by more of the prompt was a chunk of the prompt.
            request.prompt += [*request.answer, *ids]
            request.answer = []
        request.last_ns = now_ns
        for block in ids:
            parents[block] = parent
            parent = block
        by_last[parent] = request
    if not requests:
        raise TraceError("holds no stored block, and so no request", path=path)
    if len(sizes) != 1 or 0 in sizes:
        raise TraceError(
            f"blocks of {sorted(sizes)} tokens: a file may hold one size above 0", path=path
        )
    block_tokens, gathered = sizes.pop(), RequestCollector()
    for request in requests:
        tokens = len(request.prompt) * block_tokens, len(request.answer) * block_tokens
        gathered.add(
            request.first_ns, *tokens, request.prompt, request.session, answered_ns=request.last_ns
        )
    method = (
        "a request arrives when its first block is stored, prompts and answers count whole blocks"
        " only"
    )
    notes = [
        *reader.meta.notes,
        (
            f"the engine reports stored blocks only: {method}, and the split into prompt and answer is"
            " estimated"
        ),
        (
            "a prompt that hits fully in the GPU's cache stores nothing and is missing, unless the engine"
            " reported in full"
        ),
    ]
    if unknown_parents:
        notes.append(
            f"{unknown_parents} prompts follow a block without a recorded store, and begin with it"
        )
    facts = {"unknown_parents": unknown_parents, "stores_not_used": unused_events}
    return gathered.build_requests("kv-events", path, sha256_of(path), block_tokens, notes, **facts)
