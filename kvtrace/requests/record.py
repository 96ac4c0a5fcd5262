"""Follow a live engine's KV events over ZeroMQ: in order, with what was missed asked for again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.core.errors import ConfigError, ProbeUnavailable, how_to_add
from kvtrace.requests.kv_events import EventRows

if TYPE_CHECKING:
    from kvtrace.core.tables import Writer

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
        self._replay = None if replay is None else self._open(context, zmq.DEALER, replay, "--replay")

    _next: int | None
    """The number that the next message must have; None before the first."""
    _overlap = 0
    """Messages below it came with the first replay and may come a second time, as published."""

    def _open(self, context: Any, kind: int, endpoint: str, option: str) -> Any:
        socket = self._stack.enter_context(context.socket(kind))
        # A publisher drops what a slow subscriber has no room for: none is dropped here for want of room.
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
        """Enter the messages from `start` on, before `stop`, that the engine still has; return how many it had."""
        if self._replay is None:
            return 0
        self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        had, deadline = 0, time.monotonic() + _REPLAY_MS / 1000
        while self._replay.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            frames = self._replay.recv_multipart()
            number = int.from_bytes(frames[-2], "big", signed=True) if len(frames) == _FRAMES else _END
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


def notes_of(heard: Recorded, unknown: dict[str, int]) -> list[str]:
    """Return what was missed, for people and for the file's metadata."""
    notes = []
    if heard.first:
        notes.append(f"the first message heard is number {heard.first}: what the engine published before is not here")
    if heard.lost:
        notes.append(f"{heard.lost} messages were lost: blocks stored in them are missing")
    if heard.restarts:
        notes.append(f"the numbers began again {heard.restarts} times: the engine was restarted, and its cache empty")
    if heard.unreadable:
        notes.append(f"{heard.unreadable} messages were no batches of KV events")
    notes += [f"{count} events of type {name!r} were not read" for name, count in sorted(unknown.items())]
    return notes
