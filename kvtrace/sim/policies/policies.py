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

from numba import types

from kvtrace.core.compiled import inlined, intrinsic, njit
from kvtrace.sim.policies import arc, clock, lfu, s3fifo, sieve
from kvtrace.sim.policies.queues import enter, leave, link_first, own, unlink
from kvtrace.sim.records import ARC, CLOCK, COUNT, HEAD, LFU, LRU, NONE, PLACE, POLICY, S3FIFO, SIEVE, TAIL, TTL, TTL_NS


@intrinsic
def has_policies(_typing: Any, tiers: Any) -> Any:
    """Return whether any tier is not LRU: known when compiling, by the memory layout that state.new_tiers gives.

    So LRU alone compiles to code without the calls that the other policies need.
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
        place = slots[slot, own(tiers, t) + PLACE]
        if (tiers[t, POLICY] == S3FIFO and place == s3fifo.GHOST) or (
            tiers[t, POLICY] == ARC and place in (arc.B1, arc.B2)
        ):
            leave(tiers, slots, t, slot)
        slots[slot, own(tiers, t) + PLACE] = NONE


@njit
def first_expiry(tiers: Any, slots: Any) -> tuple[int, int]:
    """Return the tier in which a slot expires first, and when; NONE and NONE if none ever does."""
    first, when = NONE, NONE
    for t in range(len(tiers)):
        if tiers[t, POLICY] == TTL and tiers[t, TAIL] != NONE:
            expires = slots[tiers[t, TAIL], own(tiers, t) + COUNT]
            if first == NONE or expires < when:
                first, when = t, expires
    return first, when


@njit
def _hit(tiers: Any, slots: Any, t: int, slot: int) -> None:
    policy, own_count = tiers[t, POLICY], own(tiers, t) + COUNT
    if policy == LFU:
        lfu.hit(tiers, slots, t, slot)
    elif policy in (CLOCK, SIEVE):
        slots[slot, own_count] = 1
    elif policy == S3FIFO:
        slots[slot, own_count] += 1
    elif policy in (LRU, ARC):
        leave(tiers, slots, t, slot)
        enter(tiers, slots, t, slot, 0 if policy == LRU else arc.T2)


@njit
def _insert(tiers: Any, slots: Any, t: int, slot: int, now: int) -> None:
    policy = tiers[t, POLICY]
    slots[slot, own(tiers, t) + COUNT] = now + tiers[t, TTL_NS] if policy == TTL else 0
    if policy == LFU:
        lfu.insert(tiers, slots, t, slot)
        return
    queue = 0
    if policy == S3FIFO:
        queue = s3fifo.queue_of(tiers, slots, t, slot)
    elif policy == ARC:
        queue = arc.queue_of(tiers, slots, t, slot)
    enter(tiers, slots, t, slot, queue)


@njit
def _remove(tiers: Any, slots: Any, t: int, slot: int, is_evicted: int) -> None:
    policy, first = tiers[t, POLICY], own(tiers, t)
    if policy == LFU:
        lfu.leave_group(tiers, slots, t, slot)
        unlink(tiers, slots, t, slot, 0)
        slots[slot, first + PLACE] = NONE
        return
    if policy == SIEVE:
        sieve.pass_by(tiers, slots, t, slot)
    place = slots[slot, first + PLACE]
    leave(tiers, slots, t, slot)
    if policy == S3FIFO and place == s3fifo.SMALL and is_evicted:
        s3fifo.remember(tiers, slots, t, slot)
    if policy == ARC and is_evicted and not slots[slot, first + COUNT]:
        enter(tiers, slots, t, slot, arc.B1 if place == arc.T1 else arc.B2)


@njit
def _victim(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    policy = tiers[t, POLICY]
    if policy == S3FIFO:
        return s3fifo.victim(tiers, slots, t, incoming)
    if policy == ARC:
        return arc.victim(tiers, slots, t, incoming)
    if policy == CLOCK:
        return clock.victim(tiers, slots, t)
    if policy == SIEVE:
        return sieve.victim(tiers, slots, t)
    return tiers[t, TAIL]
