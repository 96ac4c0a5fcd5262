"""LFU: one list by count, the least used last, and of those used as often the one that has been so for longest.

Those of one count are a group, which knows its most recent slot, so that a slot can go past all of its group.
"""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import njit
from kvtrace.sim.policies.queues import own, unlink
from kvtrace.sim.records import COUNT, FREE_GROUP, GROUPS, HEAD, LINKS, MEMBERS, NONE, PLACE, TAIL, TOP


@njit
def insert(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Note that `slot` is used for the first time."""
    first = own(tiers, t)
    slots[slot, first + COUNT] = 1
    last = tiers[t, TAIL]
    if last != NONE and slots[last, first + COUNT] == 1:
        group = slots[last, first + PLACE]
        _link_above(tiers, slots, t, slot, slots[group, first + TOP])
    else:
        group = _new_group(tiers, slots, t)
        _link_above(tiers, slots, t, slot, NONE)
    _join_group(tiers, slots, t, slot, group)


@njit
def hit(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Note that `slot` is used once more."""
    first = own(tiers, t)
    place = slots[slots[slot, first + PLACE], first + TOP]
    above = slots[place, LINKS + 2 * t]
    slots[slot, first + COUNT] += 1
    is_group = above != NONE and slots[above, first + COUNT] == slots[slot, first + COUNT]
    if is_group:
        place = slots[slots[above, first + PLACE], first + TOP]
    leave_group(tiers, slots, t, slot)
    if place != slot:
        unlink(tiers, slots, t, slot, 0)
        _link_above(tiers, slots, t, slot, place)
    group = slots[above, first + PLACE] if is_group else _new_group(tiers, slots, t)
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
    first = own(tiers, t)
    group = tiers[t, FREE_GROUP]
    if group == NONE:
        group = tiers[t, GROUPS]
        tiers[t, GROUPS] += 1
    else:
        tiers[t, FREE_GROUP] = slots[group, first + TOP]
    slots[group, first + MEMBERS] = 0
    return group


@njit
def _join_group(tiers: Any, slots: Any, t: int, slot: int, group: int) -> None:
    first = own(tiers, t)
    slots[slot, first + PLACE] = group
    slots[group, first + TOP] = slot
    slots[group, first + MEMBERS] += 1


@njit
def leave_group(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Take `slot` out of the group of its count."""
    first = own(tiers, t)
    group = slots[slot, first + PLACE]
    slots[group, first + MEMBERS] -= 1
    if slots[group, first + MEMBERS] == 0:
        slots[group, first + TOP] = tiers[t, FREE_GROUP]
        tiers[t, FREE_GROUP] = group
    elif slots[group, first + TOP] == slot:
        slots[group, first + TOP] = slots[slot, LINKS + 2 * t + 1]
