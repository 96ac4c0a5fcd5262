"""What policies are made of: the lists that a tier keeps its slots in, most recent first, and the calls of a policy.

LRU is here: a tier without a policy's addresses is LRU, and keeps one list.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.core import types

from kvtrace.core.compiled import callback, forced, inner, intrinsic
from kvtrace.sim.records import NONE, QUEUES, UNBOUNDED, World


@forced
def link_of(world: World, t: int, slot: int) -> Any:
    """Return the links of `slot` in tier `t`."""
    return world.links[slot * len(world.tiers) + t]


@forced
def note_of(world: World, t: int, slot: int) -> Any:
    """Return what the policy of tier `t` notes of `slot`."""
    return world.notes[slot * len(world.tiers) + t]


@forced
def queue_of(world: World, t: int, number: int) -> Any:
    """Return list `number` of tier `t`."""
    return world.queues[t * QUEUES + number]


@forced
def unlink(world: World, t: int, slot: int, number: int) -> None:
    """Take `slot` out of list `number` of tier `t`."""
    link, queue = link_of(world, t, slot), queue_of(world, t, number)
    newer, older = link.newer, link.older
    if newer == NONE:
        queue.head = older
    else:
        link_of(world, t, newer).older = older
    if older == NONE:
        queue.tail = newer
    else:
        link_of(world, t, older).newer = newer


@forced
def link_first(world: World, t: int, slot: int, number: int) -> None:
    """Put `slot` first in list `number` of tier `t`."""
    link, queue = link_of(world, t, slot), queue_of(world, t, number)
    head = queue.head
    link.newer, link.older = NONE, head
    if head == NONE:
        queue.tail = slot
    else:
        link_of(world, t, head).newer = slot
    queue.head = slot


@inner
def _link_behind(world: World, t: int, slot: int, newer: int) -> None:
    """Put `slot` into the list of tier `t` right behind `newer`, as the next older one."""
    mine, front = link_of(world, t, slot), link_of(world, t, newer)
    mine.newer, mine.older = newer, front.older
    if front.older == NONE:
        queue_of(world, t, 0).tail = slot
    else:
        link_of(world, t, front.older).newer = slot
    front.older = slot


@forced
def _age(world: World, t: int, slot: int) -> int:
    """Return when `slot` was last used: at its own node in a node's tier, at any in a tier that nodes share."""
    if world.fleet.racked & (1 << t):
        slot = world.slots[slot].home
    age: int = world.ages[slot]
    return age


@inner
def settle(world: World, t: int, slot: int) -> None:
    """Move `slot`, first in the list of tier `t`, behind those that were used after it, if the tier is LRU."""
    older = link_of(world, t, slot).older
    if world.tiers[t].on_insert or older == NONE or _age(world, t, older) < _age(world, t, slot):
        return
    unlink(world, t, slot, 0)
    newer = older
    while older != NONE and _age(world, t, older) > _age(world, t, slot):
        newer, older = older, link_of(world, t, older).older
    link_of(world, t, slot).newer, link_of(world, t, slot).older = newer, older
    link_of(world, t, newer).older = slot
    if older == NONE:
        queue_of(world, t, 0).tail = slot
    else:
        link_of(world, t, older).newer = slot


@inner
def enter(world: World, t: int, slot: int, number: int) -> None:
    """Put `slot` first in list `number`, and count its bytes there."""
    link_first(world, t, slot, number)
    note_of(world, t, slot).place = number
    queue_of(world, t, number).bytes += world.slots[slot].size


@inner
def leave(world: World, t: int, slot: int) -> None:
    """Take `slot` out of the list it is in."""
    note = note_of(world, t, slot)
    unlink(world, t, slot, note.place)
    queue_of(world, t, note.place).bytes -= world.slots[slot].size
    note.place = NONE


class operation:  # noqa: N801 - a decorator
    """A policy's operation: compiled when a tier first needs its address."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @cached_property
    def _compiled(self) -> Any:
        return callback(types.int64(World.kind, types.int64, types.int64, types.int64))(self._function)

    @property
    def address(self) -> int:
        """Where its compiled code is."""
        return int(self._compiled.address)


@intrinsic
def call(_typing: Any, address: Any, world: Any, t: Any, slot: Any, with_: Any) -> Any:
    """Call the operation at `address`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = [context.get_value_type(kind) for kind in signature.args[1:]]
        kind = ir.FunctionType(context.get_value_type(signature.return_type), kinds)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, world, types.int64, types.int64, types.int64), code


@forced
def on_hit(world: World, t: int, slot: int) -> None:
    """Note that `slot`, which is live in tier `t`, was used."""
    address = world.tiers[t].on_hit
    if address:
        call(address, world, t, slot, 0)
    elif world.tiers[t].behind:
        unlink(world, t, slot, 0)
        _link_behind(world, t, slot, world.tiers[t].behind - 1)
        world.tiers[t].behind = 0
    elif queue_of(world, t, 0).head != slot:
        unlink(world, t, slot, 0)
        link_first(world, t, slot, 0)


@forced
def on_insert(world: World, t: int, slot: int, now: int) -> None:
    """Note that `slot` is now live in tier `t`."""
    address = world.tiers[t].on_insert
    if address:
        call(address, world, t, slot, now)
    elif world.tiers[t].behind:
        _link_behind(world, t, slot, world.tiers[t].behind - 1)
        world.tiers[t].behind = 0
    else:
        link_first(world, t, slot, 0)


@forced
def victim(world: World, t: int, incoming: int) -> int:
    """Return which slot of tier `t`, which is not empty, makes room for `incoming`; the caller then removes it.

    This may reorder the tier, so ask once for each that is removed.
    """
    address = world.tiers[t].choose
    slot: int = queue_of(world, t, 0).tail
    if address:
        slot = call(address, world, t, incoming, 0)
    return slot


@forced
def on_remove(world: World, t: int, slot: int, is_evicted: int) -> None:
    """Note that `slot` leaves tier `t`; `is_evicted` if `victim` chose it."""
    address = world.tiers[t].on_remove
    if address:
        call(address, world, t, slot, is_evicted)
    else:
        unlink(world, t, slot, 0)


@inner
def forget(world: World, slot: int) -> None:
    """Drop what any tier remembers of `slot`, which is live in none, so that another object may have it."""
    for t in range(len(world.tiers)):
        address = world.tiers[t].forget
        if address:
            call(address, world, t, slot, 0)
        if len(world.notes):
            note_of(world, t, slot).place = NONE


@inner
def expiry_ns(world: World, t: int) -> int:
    """Return when what tier `t` has had longest expires; UNBOUNDED if it never does, or there is none."""
    tail, when = queue_of(world, t, 0).tail, UNBOUNDED
    if world.tiers[t].ttl_ns and tail != NONE:
        when = note_of(world, t, tail).count
    return when
