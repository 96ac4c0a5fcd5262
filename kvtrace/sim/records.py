"""What the compiled simulation knows of its tiers: a few int64 matrices, and what each of their columns holds.

They are passed around as bare matrices and no objects, because counting references costs more than the work
itself: `slots[slot, field]`, `tiers[tier, field]`, `rows[column, row]`, `control[field]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

UNBOUNDED = 2**62
NONE = -1

# Eviction policies, as hierarchy.Policy orders them.
LRU, LFU, FIFO, CLOCK, S3FIFO, SIEVE, ARC, TTL = range(8)

QUEUES = 4
"""Lists that a tier may keep its slots in."""

# Fields of a tier: bytes it may hold, bytes it goes down to when it must make room, largest object it takes, bytes
# it holds; most and least recent slot of each of its lists (at HEAD + 2 * list and TAIL + 2 * list); and counters of
# what happened in it. Then the service model: bytes a microsecond (0: takes no time), latency, operations at once,
# and until when it is busy with what it was given. Then its policy: which, how long an object lives (TTL), the bytes
# of each list (at QUEUE_BYTES + list), and what one policy alone needs: bytes ARC means T1 to have (float64); whether
# S3-FIFO ever evicted; SIEVE's hand; LFU's unused groups (one of them, and how many were ever used). Last, what was
# written to it before the start.
(
    LIMIT, LOW, LARGEST, USED, HEAD, TAIL, HITS, HIT_BYTES, WRITTEN_BYTES, DELETED_BYTES, READ_BYTES,
    READ_RATE, WRITE_RATE, LATENCY_NS, CONCURRENCY, READ_BUSY_NS, WRITE_BUSY_NS,
    POLICY, TTL_NS, TARGET, HAS_EVICTED, HAND, FREE_GROUP, GROUPS, QUEUE_BYTES, POPULATED_BYTES, TIER_FIELDS,
) = (
    *range(6), *range(4 + 2 * QUEUES, 22 + 2 * QUEUES), 22 + 2 * QUEUES, 22 + 3 * QUEUES, 23 + 3 * QUEUES,
)  # fmt: skip

# Fields of a slot: the object it holds, its bytes (all ranks together), a bit for each tier it is live in, whether
# a conversation may still ask for it (so that it is not reused), whether it was loaded once and not promoted yet, and
# from LINKS on, for each tier, the next more recent and less recent slot.
OBJECT, SIZE, LIVE, HELD, SEEN, LINKS = range(6)

# If any tier's policy is not LRU, then for each tier, behind all links: in which list the slot is (LFU: in which
# group), a count (uses; TTL: when it expires), and of the LFU group of this number its most recent slot (if
# unused: the next unused group) and how many it has.
PLACE, COUNT, TOP, MEMBERS, POLICY_FIELDS = range(5)

# Columns of rows.
TS_NS, OP, TIER, PHASE, OBJECT_ID, LENGTH_BYTES, REQUEST_ID, STAGE, RANK, ROW_FIELDS = range(10)

# Fields of control that the tiers use: rows filled, free slots, of how many objects a slot consists (one for each
# rank and group of layers), whether any tier forgets with time, and a bit for each tier that never gives anything up.
ROW_COUNT, FREE_COUNT, RANKS, LAYERS, EXPIRES, ENDLESS, STORE_CONTROLS = range(7)


def new_tiers(limits: Sequence[int], largest: Sequence[int], policies: Sequence[int] = ()) -> Any:
    """Return empty tiers that hold `limits` bytes and take objects of up to `largest`; service takes no time.

    They are LRU without `policies`. If any is not, the matrix is every other column of a larger one, and so not
    contiguous: by this policies.has_policies tells them apart when compiling.
    """
    step = 2 if any(policy != LRU for policy in policies) else 1
    tiers = np.zeros((len(limits), step * TIER_FIELDS), dtype=np.int64)[:, ::step]
    tiers[:, LIMIT], tiers[:, LOW], tiers[:, LARGEST] = limits, limits, largest
    tiers[:, HEAD : HEAD + 2 * QUEUES] = NONE
    tiers[:, HAND] = tiers[:, FREE_GROUP] = NONE
    if policies:
        tiers[:, POLICY] = policies
    return tiers


def new_slots(sizes: Any, tiers: Any) -> Any:
    """Return one slot an object of `sizes` bytes, live in none of `tiers` and held by nobody."""
    fields = LINKS + 2 * len(tiers)
    if (tiers[:, POLICY] != LRU).any():
        fields += POLICY_FIELDS * len(tiers)
    slots = np.full((len(sizes), fields), NONE, dtype=np.int64)
    slots[:, OBJECT], slots[:, SIZE] = np.arange(len(sizes)), sizes
    slots[:, LIVE], slots[:, HELD], slots[:, SEEN] = 0, 0, 0
    return slots


def new_rows(capacity: int) -> Any:
    """Return room for `capacity` rows."""
    return np.empty((ROW_FIELDS, capacity), dtype=np.int64)
