"""How far apart the clocks of two ranks are: by messages to and fro, of which the quickest tells.

The clock is the monotonic one, which every time of a run is counted on. What a message takes is not known one way, so
the offset may be off by half the shortest round trip; that error is stated wherever the offset is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 200
_PING, _PONG, _RESULT = 11, 12, 13


def send_pings(comm: Any, other: int, timeout_s: float) -> None:
    """Measure the clock of rank `other` against ours, as rank 0, and send it the result; TimeoutError if it is deaf."""
    stamp, pong = memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("q")
    rounds: list[tuple[int, int, int]] = []
    for _ in range(ROUNDS):
        answer = comm.Irecv(pong.cast("B"), other, _PONG)
        sent_ns = time.monotonic_ns()
        comm.Send(stamp.cast("B"), other, _PING)
        _spin(answer, timeout_s)
        rounds.append((sent_ns, pong[0], time.monotonic_ns()))
    offset, error = offset_of(rounds)
    result = memoryview(bytearray(16)).cast("q")
    result[0], result[1] = offset, error
    comm.Send(result.cast("B"), other, _RESULT)


def answer_pings(comm: Any, serve: Callable[[], bool], timeout_s: float) -> tuple[int, int]:
    """Let rank 0 measure our clock; return its offset and error in ns, or zeros if `serve` says to give up."""
    ping, stamp = memoryview(bytearray(8)).cast("q"), memoryview(bytearray(8)).cast("q")
    asked = comm.Irecv(ping.cast("B"), 0, _PING)
    while not asked.Test():
        # Ranks before us come first.
        if not serve():
            return 0, 0
    for at in range(ROUNDS):
        if at:
            asked = comm.Irecv(ping.cast("B"), 0, _PING)
            _spin(asked, timeout_s)
        stamp[0] = time.monotonic_ns()
        comm.Send(stamp.cast("B"), 0, _PONG)
    result = memoryview(bytearray(16)).cast("q")
    _spin(comm.Irecv(result.cast("B"), 0, _RESULT), timeout_s)
    return result[0], result[1]


def offset_of(rounds: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the offset of the other clock and its error, in ns, of `rounds`: sent, its clock, received.

    >>> offset_of([(100, 1_000_150, 200), (300, 1_000_390, 500)])
    (1000000, 50)
    """
    sent, theirs, received = min(rounds, key=lambda one: one[2] - one[0])
    return theirs - (sent + received) // 2, -(-(received - sent) // 2)


def _spin(request: Any, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not request.Test():
        os.sched_yield()
        if time.monotonic() > until:
            raise TimeoutError
