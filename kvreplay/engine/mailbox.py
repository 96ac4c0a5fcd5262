"""What the submitting thread and those beside it say to each other, in memory that both see: no lock, no interpreter.

Whoever waits for the interpreter's lock while another thread takes and gives it back all the time waits for
milliseconds. So the submitting thread asks for data, takes what was made, and sleeps without it. `q` are the places
of the arrays.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from kvreplay.engine import order
from kvreplay.engine.order import ASKED_END, ASKED_START
from kvtrace.core.compiled import holding, int64s, intrinsic, table

FLAGS, ASKED, MADE = range(3)
"""The arrays, int64: counters, buffers asked for (a row each, as `order.take_fill` answers) and buffers made; rings."""
(ASKED_TAIL, ASKED_HEAD, MADE_TAIL, MADE_HEAD, SLEEPS, WAKES, MAKERS_FD, ASLEEP, HAS_MAIL, FLAG_WORDS) = range(10)
"""Places of `FLAGS`: threads that make data add one to `SLEEPS` before they sleep, `WAKES` counts what woke them."""
TOGETHER = 32
"""Buffers that a thread makes at a time, at most."""
AWAKE, FULL, HUNGRY = range(3)
"""What `ASLEEP` says of the submitting thread: asleep with a full queue, data need not wake it."""

_eventfd_write: Any = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.int64))


@intrinsic
def fence(typing: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
    """Keep reads and writes before it apart from those after it, as other threads and the kernel see them."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@holding
def ask(q: Any, p: Any, now: int, is_urgent: bool) -> None:
    """Ask for data that may be made now; wake threads that sleep, if it is urgent or there is much to make.

    Each time a thread must be woken costs as much as an I/O.
    """
    flags, asked = int64s(q, FLAGS), table(q, ASKED)
    tail = flags[ASKED_TAIL]
    while order.take_fill(p, now, asked[tail % len(asked)]):
        tail += 1
    fence()
    flags[ASKED_TAIL] = tail
    count = tail - flags[ASKED_HEAD]
    spare = len(asked) - int64s(p, order.COUNTERS)[order.DEPTH]
    if not count or (not is_urgent and count < min(TOGETHER, spare // 2)):
        return
    fence()
    idle = min(count, flags[SLEEPS] - flags[WAKES])
    if idle > 0:
        flags[WAKES] += idle
        _eventfd_write(flags[MAKERS_FD], idle)


@holding
def next_asked(q: Any, fills: Any, most_bytes: int) -> int:
    """Take up to len(`fills`) buffers to fill, with about `most_bytes`; called with the interpreter's lock held."""
    flags, asked = int64s(q, FLAGS), table(q, ASKED)
    count, size, tail = 0, 0, flags[ASKED_TAIL]
    fence()
    while count < len(fills) and size < most_bytes and flags[ASKED_HEAD] + count != tail:
        fill = asked[(flags[ASKED_HEAD] + count) % len(asked)]
        fills[count] = fill
        size += fill[ASKED_END] - fill[ASKED_START]
        count += 1
    flags[ASKED_HEAD] += count
    return count


@holding
def may_sleep(q: Any) -> bool:
    """Return whether a thread that makes data has nothing to do; then it must sleep, and will be woken."""
    flags = int64s(q, FLAGS)
    flags[SLEEPS] += 1
    fence()
    # If not, it will be woken once in vain.
    return bool(flags[ASKED_HEAD] == flags[ASKED_TAIL])


@holding
def made(q: Any, slots: Any) -> None:
    """Hand over buffers that hold their data; called with the interpreter's lock held.

    Whoever sees them sees mail that was posted before.
    """
    flags, ring = int64s(q, FLAGS), int64s(q, MADE)
    for i in range(len(slots)):
        ring[(flags[MADE_TAIL] + i) % len(ring)] = slots[i]
    fence()
    flags[MADE_TAIL] += len(slots)


@holding
def must_wake(q: Any, least: int) -> bool:
    """Return whether the submitting thread sleeps at least so deeply; if so, the caller must wake it."""
    flags = int64s(q, FLAGS)
    fence()
    if flags[ASLEEP] < least:
        return False
    flags[ASLEEP] = AWAKE
    return True


@holding
def take_made(q: Any, p: Any) -> bool:
    """Take the buffers that hold their data; return False, and do not, if Python has mail, which may be of them."""
    flags, ring = int64s(q, FLAGS), int64s(q, MADE)
    tail = flags[MADE_TAIL]
    fence()
    if flags[HAS_MAIL]:
        return False
    while flags[MADE_HEAD] != tail:
        order.filled(p, ring[flags[MADE_HEAD] % len(ring)])
        flags[MADE_HEAD] += 1
    return True


@holding
def fall_asleep(q: Any, depth: int) -> bool:
    """Say that the submitting thread sleeps; return False, and do not, if there is something for it."""
    flags = int64s(q, FLAGS)
    flags[ASLEEP] = depth
    fence()
    if flags[HAS_MAIL] or (depth == HUNGRY and flags[MADE_HEAD] != flags[MADE_TAIL]):
        flags[ASLEEP] = AWAKE
        return False
    return True
