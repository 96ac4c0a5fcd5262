"""Which copies there are of an object, by the place that has them: a hash table, and a list of each object's copies.

The table has one entry a copy, and stays half empty. Objects are numbered as they are named, so that those of one
prompt follow each other: sixteen that do share a line of the table, and one miss of the processor's cache finds all.
Each of the sixteen columns is a table of its own in which what finds its line taken goes to the next.
"""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import forced, inner, njit
from kvtrace.sim.records import NONE, World

COLUMNS = 16


@forced
def _line(lines: int, number: int, place: int) -> int:
    """Return in which of so many `lines`, a power of two, object `number` at `place` is looked for first."""
    x = (number >> 4) * 0x1E3779B97F4A7C15 + place * 0x51B54A32D192ED03
    x ^= x >> 29
    x *= 0x3F58476D1CE4E5B9
    x ^= x >> 32
    return x & (lines - 1)


@inner
def find_copy(world: World, number: int, place: int) -> int:
    """Return the slot of the copy of object `number` at `place`, or NONE."""
    table, lines = world.fleet.places, len(world.fleet.places) // COLUMNS
    line = _line(lines, number, place)
    slot: int = table[line * COLUMNS + (number & 15)]
    while slot != NONE:
        what = world.slots[slot]
        if what.object == number and what.place == place:
            return slot
        line = (line + 1) & (lines - 1)
        slot = table[line * COLUMNS + (number & 15)]
    return NONE


@inner
def _enter(world: World, slot: int) -> None:
    """Put a copy's slot into the table."""
    what, table, lines = world.slots[slot], world.fleet.places, len(world.fleet.places) // COLUMNS
    line, column = _line(lines, what.object, what.place), what.object & 15
    while table[line * COLUMNS + column] != NONE:
        line = (line + 1) & (lines - 1)
    table[line * COLUMNS + column] = slot


@inner
def _remove(world: World, slot: int) -> None:
    """Take a copy's slot out of the table; those behind it that it kept from their line move up."""
    what, table, lines = world.slots[slot], world.fleet.places, len(world.fleet.places) // COLUMNS
    line, column = _line(lines, what.object, what.place), what.object & 15
    while table[line * COLUMNS + column] != slot:
        line = (line + 1) & (lines - 1)
    empty = line
    while True:
        line = (line + 1) & (lines - 1)
        other: int = table[line * COLUMNS + column]
        if other == NONE:
            break
        first = _line(lines, world.slots[other].object, world.slots[other].place)
        if (line - first) & (lines - 1) >= (line - empty) & (lines - 1):
            table[empty * COLUMNS + column] = other
            empty = line
    table[empty * COLUMNS + column] = NONE


@inner
def add_copy(world: World, slot: int) -> None:
    """Note that `slot` is a copy of the object whose own slot is its home."""
    copies, home = world.fleet.copies, world.slots[slot].home
    mine, first = copies[slot], copies[home].first
    mine.newer, mine.older = NONE, first
    if first != NONE:
        copies[first].newer = slot
    copies[home].first = slot
    _enter(world, slot)


@inner
def remove_copy(world: World, slot: int) -> None:
    """Note that the copy `slot` is there no more."""
    copies, home = world.fleet.copies, world.slots[slot].home
    newer, older = copies[slot].newer, copies[slot].older
    if newer == NONE:
        copies[home].first = older
    else:
        copies[newer].older = older
    if older != NONE:
        copies[older].newer = newer
    if copies[home].node_copy == slot:
        copies[home].node_copy = NONE
    if copies[home].rack_copy == slot:
        copies[home].rack_copy = NONE
    _remove(world, slot)


@njit
def enter_all(world: World) -> None:
    """Put all copies into an empty table."""
    for slot in range(len(world.slots)):
        if world.slots[slot].place > 0:
            _enter(world, slot)


@forced
def place_of(world: World, t: int) -> Any:
    """Return the place whose tier `t` is at hand: 1 + a node, or racks after all nodes."""
    node, fleet = world.control.node, world.fleet
    return 1 + (fleet.count + node // fleet.rack_nodes if fleet.racked & (1 << t) else node)
