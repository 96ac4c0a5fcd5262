"""The compiled eviction policies: what a tier keeps about its slots, and which of them leaves when it must make room.

Four operations on tier `t` are all that the rest of the simulation knows: `on_hit`, `on_insert`, `victim` and
`on_remove`. LRU is inlined into its callers; the others are called. All count bytes, need no clock but TTL, and draw
no random numbers. Compared with libcachesim 0.3.5, the same references give the same hits, objects of any sizes:

- lru; fifo; clock (one bit); sieve; lfu (a count starts anew with each insertion, ties go to what has had its count
  for longest) are the same.
- s3fifo (10 % small queue, 90 % ghosts, two uses to be moved to the main queue, counts to 3) is the same, except that
  libcachesim refuses objects as large as the small queue, and this puts them in like any other.
- arc is the same for objects of one unit. For others libcachesim still moves its target by max(1, ratio of the ghost
  lists) bytes on a ghost hit, which is next to nothing beside objects of megabytes. This moves it by so many times the
  object's size, so that objects of one size do as in the paper (Megiddo and Modha, FAST 2003), whatever that size.
- ttl: what is written expires `ttl` later, read or not; to make room, what expires first leaves first.

S3-FIFO and ARC remember objects that they evicted (ghosts). A ghost is forgotten when its slot is given back, that is
when nobody can ask for it any more, and when it leaves its tier other than by eviction it never becomes one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvtrace.compiled import inlined, intrinsic, njit
from kvtrace.state import (
    ARC,
    CLOCK,
    COUNT,
    FREE_GROUP,
    GROUPS,
    HAND,
    HAS_EVICTED,
    HEAD,
    LFU,
    LIMIT,
    LINKS,
    LRU,
    MEMBERS,
    NONE,
    PLACE,
    POLICY,
    POLICY_FIELDS,
    QUEUE_BYTES,
    S3FIFO,
    SIEVE,
    SIZE,
    TAIL,
    TARGET,
    TOP,
    TTL,
    TTL_NS,
)

# Lists of S3-FIFO and of ARC. What is about to be inserted, and was a ghost, is in none of them.
SMALL, MAIN, GHOST, WAS_GHOST = range(4)
T1, T2, B1, B2, WAS_B1, WAS_B2 = range(6)

S3FIFO_MOVES_AT, S3FIFO_COUNTS_TO = 2, 3


@inlined
def unlink(tiers: Any, slots: Any, t: int, slot: int, queue: int) -> None:
    """Take `slot` out of list `queue` of tier `t`."""
    before, after = slots[slot, LINKS + 2 * t], slots[slot, LINKS + 2 * t + 1]
    if before == NONE:
        tiers[t, HEAD + 2 * queue] = after
    else:
        slots[before, LINKS + 2 * t + 1] = after
    if after == NONE:
        tiers[t, TAIL + 2 * queue] = before
    else:
        slots[after, LINKS + 2 * t] = before


@inlined
def link_first(tiers: Any, slots: Any, t: int, slot: int, queue: int) -> None:
    """Put `slot` first in list `queue` of tier `t`."""
    head = tiers[t, HEAD + 2 * queue]
    slots[slot, LINKS + 2 * t] = NONE
    slots[slot, LINKS + 2 * t + 1] = head
    if head == NONE:
        tiers[t, TAIL + 2 * queue] = slot
    else:
        slots[head, LINKS + 2 * t] = slot
    tiers[t, HEAD + 2 * queue] = slot


@intrinsic
def has_policies(_typing: Any, tiers: Any) -> Any:
    """Return whether any tier is not LRU: known when compiling, by the memory layout that state.new_tiers gives.

    So LRU alone compiles to code without the calls that the other policies need, which would cost it some 6 %:
    numba counts references around a call, even around one that is never made.
    """
    answer = tiers.layout != "C"
    return types.boolean(tiers), lambda context, _builder, _signature, _tiers: context.get_constant(
        types.boolean, answer
    )


@inlined
def on_hit(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Note that `slot`, which is live in tier `t`, was used."""
    if has_policies(tiers):
        _hit(tiers, slots, t, slot)
    elif tiers[t, HEAD] != slot:
        unlink(tiers, slots, t, slot, 0)
        link_first(tiers, slots, t, slot, 0)


@inlined
def on_insert(tiers: Any, slots: Any, t: int, slot: int, now: int) -> None:
    """Note that `slot` is now live in tier `t`."""
    if has_policies(tiers):
        _insert(tiers, slots, t, slot, now)
    else:
        link_first(tiers, slots, t, slot, 0)


@inlined
def victim(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    """Return which slot of tier `t`, which is not empty, makes room for `incoming`; the caller then removes it.

    This may reorder the tier, so ask once for each that is removed.
    """
    slot = tiers[t, TAIL]
    if has_policies(tiers):
        slot = _victim(tiers, slots, t, incoming)
    return slot


@inlined
def on_remove(tiers: Any, slots: Any, t: int, slot: int, is_evicted: int) -> None:
    """Note that `slot` leaves tier `t`; `is_evicted` if `victim` chose it."""
    if has_policies(tiers):
        _remove(tiers, slots, t, slot, is_evicted)
    else:
        unlink(tiers, slots, t, slot, 0)


@njit
def forget(tiers: Any, slots: Any, slot: int) -> None:
    """Drop what any tier remembers of `slot`, which is live in none, so that another object may have it."""
    for t in range(len(tiers)):
        place = slots[slot, _own(tiers, t) + PLACE]
        if (tiers[t, POLICY] == S3FIFO and place == GHOST) or (tiers[t, POLICY] == ARC and place in (B1, B2)):
            _leave(tiers, slots, t, slot)
        slots[slot, _own(tiers, t) + PLACE] = NONE


@njit
def first_expiry(tiers: Any, slots: Any) -> tuple[int, int]:
    """Return the tier in which a slot expires first, and when; NONE and NONE if none ever does."""
    first, when = NONE, NONE
    for t in range(len(tiers)):
        if tiers[t, POLICY] == TTL and tiers[t, TAIL] != NONE:
            expires = slots[tiers[t, TAIL], _own(tiers, t) + COUNT]
            if first == NONE or expires < when:
                first, when = t, expires
    return first, when


@inlined
def _own(tiers: Any, t: int) -> int:
    """Return from which column on a slot holds what the policy of tier `t` needs."""
    return LINKS + 2 * len(tiers) + POLICY_FIELDS * t


@njit
def _enter(tiers: Any, slots: Any, t: int, slot: int, queue: int) -> None:
    link_first(tiers, slots, t, slot, queue)
    slots[slot, _own(tiers, t) + PLACE] = queue
    tiers[t, QUEUE_BYTES + queue] += slots[slot, SIZE]


@njit
def _leave(tiers: Any, slots: Any, t: int, slot: int) -> None:
    queue = slots[slot, _own(tiers, t) + PLACE]
    unlink(tiers, slots, t, slot, queue)
    slots[slot, _own(tiers, t) + PLACE] = NONE
    tiers[t, QUEUE_BYTES + queue] -= slots[slot, SIZE]


@njit
def _hit(tiers: Any, slots: Any, t: int, slot: int) -> None:
    policy, own = tiers[t, POLICY], _own(tiers, t)
    if policy == LFU:
        _count_up(tiers, slots, t, slot)
    elif policy in (CLOCK, SIEVE):
        slots[slot, own + COUNT] = 1
    elif policy == S3FIFO:
        slots[slot, own + COUNT] += 1
    elif policy in (LRU, ARC):
        _leave(tiers, slots, t, slot)
        _enter(tiers, slots, t, slot, 0 if policy == LRU else T2)


@njit
def _insert(tiers: Any, slots: Any, t: int, slot: int, now: int) -> None:
    policy, own = tiers[t, POLICY], _own(tiers, t)
    slots[slot, own + COUNT] = now + tiers[t, TTL_NS] if policy == TTL else 0
    if policy == LFU:
        _count_first(tiers, slots, t, slot)
        return
    queue = 0
    if policy == S3FIFO:
        _recall(tiers, slots, t, slot)
        is_small_full = tiers[t, QUEUE_BYTES + SMALL] >= tiers[t, LIMIT] // 10
        if slots[slot, own + PLACE] == WAS_GHOST or (is_small_full and not tiers[t, HAS_EVICTED]):
            queue = MAIN
    elif policy == ARC:
        _recall(tiers, slots, t, slot)
        queue = T1 if slots[slot, own + PLACE] == NONE else T2
    _enter(tiers, slots, t, slot, queue)


@njit
def _remove(tiers: Any, slots: Any, t: int, slot: int, is_evicted: int) -> None:
    policy, own = tiers[t, POLICY], _own(tiers, t)
    if policy == LFU:
        _leave_group(tiers, slots, t, slot)
        unlink(tiers, slots, t, slot, 0)
        slots[slot, own + PLACE] = NONE
        return
    if policy == SIEVE and tiers[t, HAND] == slot:
        tiers[t, HAND] = slots[slot, LINKS + 2 * t]
    place = slots[slot, own + PLACE]
    _leave(tiers, slots, t, slot)
    if policy == S3FIFO and place == SMALL and is_evicted:
        _remember(tiers, slots, t, slot)
    if policy == ARC and is_evicted and not slots[slot, own + COUNT]:
        _enter(tiers, slots, t, slot, B1 if place == T1 else B2)


@njit
def _victim(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    policy, own = tiers[t, POLICY], _own(tiers, t)
    if policy == S3FIFO:
        return _victim_of_s3fifo(tiers, slots, t, incoming)
    if policy == ARC:
        return _victim_of_arc(tiers, slots, t, incoming)
    slot = tiers[t, TAIL]
    if policy == CLOCK:
        while slots[slot, own + COUNT]:
            slots[slot, own + COUNT] = 0
            unlink(tiers, slots, t, slot, 0)
            link_first(tiers, slots, t, slot, 0)
            slot = tiers[t, TAIL]
    elif policy == SIEVE:
        if tiers[t, HAND] != NONE:
            slot = tiers[t, HAND]
        while slots[slot, own + COUNT]:
            slots[slot, own + COUNT] = 0
            slot = slots[slot, LINKS + 2 * t]
            if slot == NONE:
                slot = tiers[t, TAIL]
        tiers[t, HAND] = slot
    return slot


@njit
def _recall(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; do so once."""
    own, policy = _own(tiers, t), tiers[t, POLICY]
    place = slots[slot, own + PLACE]
    if policy == S3FIFO and place == GHOST:
        _leave(tiers, slots, t, slot)
        slots[slot, own + PLACE] = WAS_GHOST
    elif policy == ARC and place in (B1, B2):
        recent, frequent = tiers[t, QUEUE_BYTES + B1], tiers[t, QUEUE_BYTES + B2]
        target = tiers[t, TARGET : TARGET + 1].view(np.float64)
        if place == B1:
            step = slots[slot, SIZE] * max(1.0, frequent / recent)
            target[0] = min(target[0] + step, float(tiers[t, LIMIT]))
        else:
            step = slots[slot, SIZE] * max(1.0, recent / frequent)
            target[0] = max(target[0] - step, 0.0)
        _leave(tiers, slots, t, slot)
        slots[slot, own + PLACE] = WAS_B1 if place == B1 else WAS_B2


@njit
def _victim_of_s3fifo(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    own, count = _own(tiers, t), _own(tiers, t) + COUNT
    _recall(tiers, slots, t, incoming)
    tiers[t, HAS_EVICTED] = 1
    if tiers[t, QUEUE_BYTES + MAIN] <= tiers[t, LIMIT] - tiers[t, LIMIT] // 10:
        slot = tiers[t, TAIL + 2 * SMALL]
        while slot != NONE and slots[slot, count] >= S3FIFO_MOVES_AT:
            _leave(tiers, slots, t, slot)
            _enter(tiers, slots, t, slot, MAIN)
            slots[slot, count] = 0
            slot = tiers[t, TAIL + 2 * SMALL]
        if slot != NONE:
            return slot
    slot = tiers[t, TAIL + 2 * MAIN]
    while slots[slot, own + COUNT]:
        slots[slot, count] = min(slots[slot, count], S3FIFO_COUNTS_TO) - 1
        unlink(tiers, slots, t, slot, MAIN)
        link_first(tiers, slots, t, slot, MAIN)
        slot = tiers[t, TAIL + 2 * MAIN]
    return slot


@njit
def _remember(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Make `slot` the newest ghost of S3-FIFO, unless it is larger than all ghosts may be."""
    room = tiers[t, LIMIT] - (tiers[t, LIMIT] + 9) // 10
    size = slots[slot, SIZE]
    if size <= room:
        while tiers[t, QUEUE_BYTES + GHOST] + size > room:
            _leave(tiers, slots, t, tiers[t, TAIL + 2 * GHOST])
        _enter(tiers, slots, t, slot, GHOST)


@njit
def _victim_of_arc(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    """Return ARC's victim; its count says that it is not to become a ghost (case IV A, T1 alone fills the tier)."""
    own, limit = _own(tiers, t), tiers[t, LIMIT]
    _recall(tiers, slots, t, incoming)
    origin = slots[incoming, own + PLACE]
    recent, frequent = tiers[t, QUEUE_BYTES + T1], tiers[t, QUEUE_BYTES + T2]
    ghosts_recent, ghosts_frequent = tiers[t, QUEUE_BYTES + B1], tiers[t, QUEUE_BYTES + B2]
    if origin not in (WAS_B1, WAS_B2):
        if recent + ghosts_recent + slots[incoming, SIZE] > limit:
            if ghosts_recent > 0:
                _leave(tiers, slots, t, tiers[t, TAIL + 2 * B1])
            elif recent > 0:
                slots[tiers[t, TAIL + 2 * T1], own + COUNT] = 1
                return tiers[t, TAIL + 2 * T1]
        elif recent + ghosts_recent + frequent + ghosts_frequent - limit >= limit and ghosts_frequent > 0:
            _leave(tiers, slots, t, tiers[t, TAIL + 2 * B2])
    target = tiers[t, TARGET : TARGET + 1].view(np.float64)[0]
    if frequent == 0 or (recent > 0 and (recent > target or (recent == target and origin == WAS_B2))):
        return tiers[t, TAIL + 2 * T1]
    return tiers[t, TAIL + 2 * T2]


# LFU keeps one list by count, the least used last, and of those used as often the one that has been so for longest.
# Those of one count are a group, which knows its most recent slot, so that a slot can go past all of its group.


@njit
def _count_first(tiers: Any, slots: Any, t: int, slot: int) -> None:
    own = _own(tiers, t)
    slots[slot, own + COUNT] = 1
    last = tiers[t, TAIL]
    if last != NONE and slots[last, own + COUNT] == 1:
        group = slots[last, own + PLACE]
        _link_above(tiers, slots, t, slot, slots[group, own + TOP])
    else:
        group = _new_group(tiers, slots, t)
        _link_above(tiers, slots, t, slot, NONE)
    _join_group(tiers, slots, t, slot, group)


@njit
def _count_up(tiers: Any, slots: Any, t: int, slot: int) -> None:
    own = _own(tiers, t)
    place = slots[slots[slot, own + PLACE], own + TOP]
    above = slots[place, LINKS + 2 * t]
    slots[slot, own + COUNT] += 1
    is_group = above != NONE and slots[above, own + COUNT] == slots[slot, own + COUNT]
    if is_group:
        place = slots[slots[above, own + PLACE], own + TOP]
    _leave_group(tiers, slots, t, slot)
    if place != slot:
        unlink(tiers, slots, t, slot, 0)
        _link_above(tiers, slots, t, slot, place)
    group = slots[above, own + PLACE] if is_group else _new_group(tiers, slots, t)
    _join_group(tiers, slots, t, slot, group)


@njit
def _link_above(tiers: Any, slots: Any, t: int, slot: int, below: int) -> None:
    """Put `slot` next to `below`, on the more used side; NONE is below all."""
    above = tiers[t, TAIL] if below == NONE else slots[below, LINKS + 2 * t]
    slots[slot, LINKS + 2 * t], slots[slot, LINKS + 2 * t + 1] = above, below
    if above == NONE:
        tiers[t, HEAD] = slot
    else:
        slots[above, LINKS + 2 * t + 1] = slot
    if below == NONE:
        tiers[t, TAIL] = slot
    else:
        slots[below, LINKS + 2 * t] = slot


@njit
def _new_group(tiers: Any, slots: Any, t: int) -> int:
    own = _own(tiers, t)
    group = tiers[t, FREE_GROUP]
    if group == NONE:
        group = tiers[t, GROUPS]
        tiers[t, GROUPS] += 1
    else:
        tiers[t, FREE_GROUP] = slots[group, own + TOP]
    slots[group, own + MEMBERS] = 0
    return group


@njit
def _join_group(tiers: Any, slots: Any, t: int, slot: int, group: int) -> None:
    own = _own(tiers, t)
    slots[slot, own + PLACE] = group
    slots[group, own + TOP] = slot
    slots[group, own + MEMBERS] += 1


@njit
def _leave_group(tiers: Any, slots: Any, t: int, slot: int) -> None:
    own = _own(tiers, t)
    group = slots[slot, own + PLACE]
    slots[group, own + MEMBERS] -= 1
    if slots[group, own + MEMBERS] == 0:
        slots[group, own + TOP] = tiers[t, FREE_GROUP]
        tiers[t, FREE_GROUP] = group
    elif slots[group, own + TOP] == slot:
        slots[group, own + TOP] = slots[slot, LINKS + 2 * t + 1]
