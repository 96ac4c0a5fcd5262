"""One job's tables, shared by Python and compiled code: records by name, all reached from one address.

At the end, for compiled code: stacks and heaps of numbers, by the address of a LIST.

A field whose comment says "address" holds where a vector, a record or a list of numbers lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.compiled import array_at, inner, int64s
from kvtrace.core.structures import fields_of, record_at

NONE = -1
FLIGHT_BITS = 22
MOST_FLIGHTS = 1 << FLIGHT_BITS
"""Operations under way at most: in heaps, one is its row, then its number among them."""
CHAIN_KINDS = 2
BY_OTHERS, HERE, HERE_WITH_ROOM = range(3)
"""Who makes a tier's data, if its buffer is short: threads, or who submits, who may have to make room first."""


def record(integers: str, booleans: str = "") -> np.dtype[Any]:
    """Return the type of a record with int64 and boolean fields of these names."""
    names = [(name, np.int64) for name in integers.split()] + [(name, np.bool_) for name in booleans.split()]
    return np.dtype(names, align=True)


JOB = record(
    # Addresses of columns of the plan; `due` and `ready_ns` are 0 in a closed loop, `bulk` where no row is.
    "op tier object_id offset length version due ready_ns bulk "
    # Address of how many groups each row waits for that the cursor has passed.
    "unmet "
    # Address of int32 a row, the stream of a write (-1: none), and of int64 a tier, how many of them a request may
    # name; 0 and 0 where nothing is placed.
    "stream write_streams "
    # Addresses of what is known of each tier: whether data moves, its padding, whether objects must be given room.
    "moves paddings rooms "
    # Address: by row, the operation (its number and 1) whose data is made before it may go, or 0.
    "prepared "
    # Addresses of records.
    "chains groups flights fills answer mail lanes "
    # Groups that were ever in use; the first of those that are free again, and of those that another thread gave back.
    "groups_used free_group returned_group "
    # Address of how many rows of the plan are there.
    "loaded "
    # Addresses of stacks of free numbers, and of how many pieces each buffer of data still serves.
    "free_flights free_slots held "
    # Addresses of heaps: rows that wait no more, operations that lack data, may start, or started short of data; those
    # whose data is under way, some of them offered since; rows whose data may be made before they may go; operations
    # whose data was made so, and that lack room.
    "ready to_fill to_start hungry making to_prepare to_room "
    # Buffers that hold, or will, what is prepared so; how many may always, and with those of rows not due.
    "prepared_slots prepared_most early_or_prepared "
    # Address of a heap of started bulk writes that want data, the one of which least is made first; of `source`, the
    # heap of the next buffer. How much of a bulk operation may be in flight, and how many buffers of data one may hold.
    "bulk_hungry source bulk_depth bulk_fills "
    # Address of a ring of started operations with pieces that may go; how many they are, and where the first is.
    "running_ring running running_first flights_size "
    # What the engine is given, and how far it has come; `depth` grows with the buffers that are touched.
    "rows depth ahead early io_bytes pieces_a_fill slots cursor completed in_flight short_starts "
    # Pieces of lanes that may go.
    "available",
    # Whether all rows that were looked at wait, and there are others.
    "is_stopped is_looking",
)
"""What `order` works on."""
LIST = record("count items least")
"""A stack or a heap of numbers: how many there are, the address of the first; in a stack, the fewest there were yet."""
CHAIN = record("links groups waiting since")
"""One kind of chain: the addresses of a plan's links, of each row's group, of the next row that waits with it, and of
when the group of a row was opened that begins a chain (0: it waited for none)."""
GROUP = np.dtype(
    [("left", "i4"), ("waiting", "i4"), ("follower", "i4"), ("state", "i4"), ("opened_ns", "i8"), ("done_ns", "i8")]
)
"""Rows of a chain that may run together: how many have not completed; the first that waits for it to be opened, and
the group after it, or NONE; when it was opened by the one before it, and when all that had come had completed.

Of those that are free, `follower` is the next one.
"""
ENDED = -1
"""Of `unmet`: the row has completed."""
CLOSED, NEXT, OPEN = range(3)
"""States of a group: NEXT is one whose predecessor is open."""
FLIGHT = record(
    "row op first end needed_end pieces "
    # Pieces whose data is made, asked for, submitted; pieces out (all those of a lane are one).
    "filled_pieces next_fill next_piece outstanding "
    # Its first and its last buffer of data; that of its first piece.
    "first_fill last_fill first_slot "
    # As a lane: flags and file of its requests, where the object begins in that file, requests out.
    # Copied: the object's address is `base`, copies are `lane_out`; when the last one yet was done.
    "file base lane_out copied_ns "
    # Which ring its requests go by.
    "ring "
    # Buffers of data that a bulk write holds.
    "held_fills",
    "has_io needs_data is_offered is_started is_begun is_running is_reserved is_failed is_lane is_copied is_own "
    "is_file is_bulk is_waiting is_unready lacks_room has_first",
)
"""An operation between becoming ready and completing.

A lane is one whose pieces compiled code submits; it is `is_own` if compiled code finishes with it, too, and `is_file`
if it is all there is to do on an object's own file: `file` is then its place in the ring. The pieces of one that is
copied go to the threads that copy, and take no place of the queue. One that `is_bulk` saves or restores a checkpoint;
it `is_waiting` in the heap of those that want data. One that `is_unready` has its data made while it still
waits, and gets room for its object, which it `lacks_room`, afterwards.
"""
FILL = record("flight piece end at next")
"""A buffer of data: whose it is, its next piece and the one after its last, where the next begins, the next buffer."""
ASKED = record("flight row piece slot start end object_end room")
"""A buffer to be filled: the fields of `schedule.Fill`."""
ANSWER = record("flight piece slot is_first start length at")
"""What `order.take` answers."""
MAIL = record(
    # Addresses of the rings of buffers asked for (ASKED) and made (their numbers); `slots` in each.
    "asked made slots asked_tail asked_head made_tail made_head "
    # Threads that make data add one to `sleeps` before they sleep, `wakes` counts what woke them.
    "sleeps wakes makers_fd asleep "
    # What the submitting thread makes itself: a ring of buffers (ASKED), how many were put, have room, were made; the
    # bytes made of the next, and the time it took.
    "here here_tail here_roomy here_head here_bytes here_ns "
    # Addresses: by tier, who makes its data (`mailbox.BY_OTHERS`, ...); the seed, 0 if no data is compiled code's.
    "makers seed",
    "has_mail",
)
"""What the submitting thread and those beside it say to each other, and what of it the submitting thread does."""
LANES = record(
    # Addresses: of pieces in flight, buffers (reads, then data), lanes (oldest first); of the rings; how many they are.
    "tokens buffers sequence rings ring_count "
    # Addresses: of how long a wait may take, what is polled, and room for a time.
    "timeout poll clock "
    # Address: by tier, by which rings its I/O goes (BY_RINGS).
    "by_rings "
    # Addresses: what a call of `loop.run` leaves for Python, and the rows put since the last stamp.
    "others over bad fresh "
    # Addresses by tier: how its operations are done, (an address again) where its objects lie, `data.calls.FILES`.
    "ways places files "
    # Addresses of columns of the record.
    "submitted_ns completed_ns outcome "
    # Addresses of stacks.
    "free_reads free_tokens free_files "
    # What is shared with threads that copy (0: nothing is copied), what they work on (oldest first), and how many.
    "copies copied copied_count "
    # How many lanes there are, and what in what is left for Python.
    "count other_count over_count bad_count fresh_count "
    # Requests in flight.
    "out starved_ns "
    # Of an open loop: time in which a due operation waited at the depth, or for its data; up to when they count.
    "held_ns lacking_ns counted_ns "
    # Places of the queue times time: in use; idle because all that is left waits for what is in flight (closed loop).
    # How many of each there were when they were counted last; time in which the submitting thread had nothing to do.
    "in_use_ns blocked_ns counted_in_use counted_blocked idle_ns "
    # The same of those that are idle because the next rows are not there yet.
    "unread_ns counted_unread "
    # Threads that take their own pieces: places of the queue that lack data, since when.
    "starved seen_ns "
    # What stays as it is.
    "start_ns mail_fd "
    # Where buffers of data begin among all; how many of the first reads and of the first data rings have registered.
    "first_slot fixed_reads fixed_slots",
    # Whether threads of their own enter the kernel for the rings.
    "is_error is_held is_lacking is_served",
)
"""What `loop` works on."""
RING = record(
    # Addresses of what it shares with the kernel, and of room for a path a request.
    "requests completions sq_head sq_tail cq_head cq_tail paths "
    # Requests put, those submitted or handed to the thread that does that, completions taken.
    "tail submitted head "
    # What stays as it is; `server` is the address of a SERVER, if there is such a thread.
    "fd sq_mask cq_mask timeout_argument server"
)
"""A ring, as compiled code sees it."""
SERVER = record(
    "sq_head sq_tail fd "
    # It says that it sleeps on this descriptor, and is woken; on which processor it ended.
    "is_asleep bell_fd cpu",
    "is_ending",
)
"""What a thread that enters the kernel for a ring shares with who puts requests on it."""
BY_RINGS = record("drive_of first step counts")
"""By which rings a tier's I/O goes. Addresses: of uint8 an object, its drive (0: there is one); by drive, of the first
of its rings and how many they are, each `step` after the one before."""
TOKEN = record("flight start length buffer slot")
"""A piece in flight: a read has a buffer, a write a slot of data; the other is NONE."""
OTHER = record("data result")
"""A completion that is not of a lane."""
BAD = record("flight start length result")
"""A piece of a lane that went wrong."""

job_at, lanes_at, mail_at, answer_at, list_at = (record_at(kind) for kind in (JOB, LANES, MAIL, ANSWER, LIST))
server_at = record_at(SERVER)
asked_at = record_at(ASKED)
flights_at, fills_at, chains_at, groups_at = (array_at(kind) for kind in (FLIGHT, FILL, CHAIN, GROUP))
asked_ring_at, tokens_at, others_at, bad_at = (array_at(kind) for kind in (ASKED, TOKEN, OTHER, BAD))
rings_at, by_rings_at = array_at(RING), array_at(BY_RINGS)


class Tables:
    """Keeps the arrays whose addresses are in a job's records, and the records themselves."""

    def __init__(self) -> None:
        """Make a job of nothing."""
        self._kept: list[Any] = []
        self.job = self.record(JOB)
        """The job's own record: its fields are attributes."""
        self.address = self.at(self._kept[0])
        """What compiled functions take."""

    def record(self, kind: np.dtype[Any]) -> Any:
        """Return a new record of zeros, its fields as attributes."""
        self._kept.append(np.zeros(1, kind))
        return fields_of(self._kept[-1])

    def at(self, array: Any) -> int:
        """Return where `array`, which must be contiguous, lies; it is kept."""
        if not array.flags.c_contiguous:
            raise ValueError("the array must be contiguous")
        self._kept.append(array)
        return int(array.ctypes.data)

    def stack(self, items: Any) -> Any:
        """Return a full stack (LIST) in the int64 array `items`, its fields as attributes."""
        found = self.record(LIST)
        found.count, found.items, found.least = len(items), self.at(items), len(items)
        return found

    def numbers(self, items: Any, count: int) -> int:
        """Return the address of a stack or a heap in the int64 array `items`, of which `count` are there."""
        return self.at(np.array([(count, self.at(items), count)], LIST))


@inner
def stack_put(stack: int, number: int) -> None:
    """Put `number` on a stack."""
    numbers = list_at(stack)
    int64s(numbers.items)[numbers.count] = number
    numbers.count += 1


@inner
def stack_take(stack: int) -> int:
    """Take a number off a stack."""
    numbers = list_at(stack)
    numbers.count -= 1
    numbers.least = min(numbers.least, numbers.count)
    return int64s(numbers.items)[numbers.count]


@inner
def count_of(numbers: int) -> int:
    """Return how many numbers there are."""
    return list_at(numbers).count


@inner
def heap_least(heap: int) -> int:
    """Return the least number of a heap."""
    return int64s(list_at(heap).items)[0]


@inner
def heap_item(numbers: int, at: int) -> int:
    """Return number `at`, in no order that means anything in a heap but for the first."""
    return int64s(list_at(numbers).items)[at]


@inner
def heap_push(heap: int, number: int) -> None:
    """Put `number` into a heap."""
    numbers = list_at(heap)
    sift_up(int64s(numbers.items), numbers.count, number)
    numbers.count += 1


@inner
def heap_pop(heap: int) -> int:
    """Take the least number out of a heap."""
    numbers = list_at(heap)
    items = int64s(numbers.items)
    found = items[0]
    numbers.count -= 1
    sift_down(items, numbers.count, 0, items[numbers.count])
    return found


@inner
def heap_remove(heap: int, number: int) -> None:
    """Take `number` out of a heap."""
    numbers = list_at(heap)
    items, kept = int64s(numbers.items), 0
    for i in range(numbers.count):
        if items[i] != number:
            items[kept] = items[i]
            kept += 1
    numbers.count = kept
    for at in range(kept // 2 - 1, -1, -1):
        sift_down(items, kept, at, items[at])


@inner
def sift_up(items: Any, at: int, number: int) -> None:
    """Put `number` at `at`, behind all others of a heap, or above it."""
    while at and items[(at - 1) >> 1] > number:
        items[at] = items[(at - 1) >> 1]
        at = (at - 1) >> 1
    items[at] = number


@inner
def sift_down(items: Any, size: int, at: int, number: int) -> None:
    """Put `number` at `at` of a heap of `size` or below it."""
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and items[child + 1] < items[child]:
            child += 1
        if items[child] >= number:
            break
        items[at] = items[child]
        at = child
    items[at] = number
