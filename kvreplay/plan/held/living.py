"""What is known of each object of each tier as the rows go by: a table of those that live, compiled.

An object that was deleted is forgotten but for one bit, unless it must be populated or grew: so the table is as long as
what the tiers hold at once, however long the trace. What was written of an object is known as bytes from its start on,
and as a list of extents beyond.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.compiled import inner, njit, prefetch
from kvtrace.core.schema import TRACE, Op, enum_code
from kvtrace.core.structures import Structure, record, table

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
ENTRY = np.dtype(
    # What it is, 0 in a free place; how long it is now, must be before the first row, is whole from its start on, and
    # gets at most where it grows; its first extent beyond; the trace row that touched it last.
    [(name, "i8") for name in ("key", "held", "needed", "written", "longest", "extents", "last_row")]
    # Whether it was deleted before; written before that; deleted by its last row.
    + [(name, "?") for name in ("is_reborn", "is_own", "is_gone")],
    align=True,
)
EXTENT = np.dtype([("start", "i8"), ("end", "i8"), ("next", "i8")])
"""Of a list in the order of their starts, with gaps between them; `next` is 0 at its end."""
STATE = np.dtype(
    [
        (name, "i8")
        for name in (
            # Entries in the table; rows that were taken; the first that reads what was deleted (-1: none).
            *("entries", "rows", "lost"),
            # Extents that were ever used, and the first that is free again.
            *("extents_used", "free_extent"),
            # Whether an object got longer, was needed longer than it seemed when it was written, and whether a row
            # follows another one on its object.
            *("has_grown", "is_late", "is_chained"),
        )
    ]
)
_MIXER = 0x9E3779B97F4A7C15
_AHEAD = 12
"""Rows; so many later ones find their entries in the cache."""


class TouchedRows(Structure):
    """Some rows: the contract's codes, ids, and the bytes that they touch."""

    tier, op = table("i1"), table("i1")
    object_id, number = table("i4"), table("i8")
    """`number` is the object's among all that there are: empty where ids are, which are not sparse."""
    offset, length, row = table("i8"), table("i8"), table("i8")
    absent = table("?")
    """Set of a delete of nothing."""


class Living(Structure):
    """The objects, and the space that they take in each place: each tier, then each drive of each tier."""

    state = record(STATE)
    entries, extents = table(ENTRY), table(EXTENT)
    was_deleted = table("u1")
    """Bits: by object's number and tier, whether it was deleted before; of objects that are not in the table."""
    numbers = table("i8")
    """One number: how many tiers there are."""
    paddings = table("i8")
    """By tier."""
    first_place, known_objects, drives_at = table("i8"), table("i8"), table("i8")
    """By tier: its first drive's place; of how many objects the drive is known, and where in `drive_of`, or 0."""
    drive_of = table("i2")
    base, now, most = table("i8"), table("i8"), table("i8")
    """By place, bytes: populated; what came beside it, and the most of that."""


@inner
def _home(key: int, size: int) -> int:
    """Return the place of a key in a table of `size` (a power of two)."""
    mixed = np.uint64(key) * np.uint64(_MIXER)
    return int(np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(size - 1)))


@inner
def _find(living: Living, key: int) -> int:
    """Return where the entry of `key` is, or would be."""
    size = len(living.entries)
    at = _home(key, size)
    while living.entries[at].key != 0 and living.entries[at].key != key:
        at = (at + 1) & (size - 1)
    return at


@inner
def _enter(living: Living, key: int, number: int, tier: int) -> int:
    """Return where the entry of `key` is, which is made if there is none."""
    at = _find(living, key)
    entry = living.entries[at]
    if entry.key == 0:
        entry.key, entry.last_row = key, -1
        entry.held = entry.needed = entry.written = entry.longest = entry.extents = 0
        bit = number * living.numbers[0] + tier
        entry.is_reborn = (living.was_deleted[bit >> 3] >> (bit & 7)) & 1 != 0
        entry.is_own = entry.is_gone = False
        living.state.entries += 1
    return at


@inner
def _copy(entry: Any, source: Any) -> None:
    entry.key, entry.held, entry.needed, entry.written = source.key, source.held, source.needed, source.written
    entry.longest, entry.extents, entry.last_row = source.longest, source.extents, source.last_row
    entry.is_reborn, entry.is_own, entry.is_gone = source.is_reborn, source.is_own, source.is_gone


@inner
def _forget(living: Living, at: int, number: int, tier: int) -> None:
    """Take an entry out; those that stand behind it because it was there move up."""
    bit = number * living.numbers[0] + tier
    living.was_deleted[bit >> 3] |= np.uint8(1 << (bit & 7))
    size = len(living.entries)
    free, here = at, (at + 1) & (size - 1)
    while living.entries[here].key != 0:
        home = _home(living.entries[here].key, size)
        if (here - home) & (size - 1) >= (here - free) & (size - 1):
            _copy(living.entries[free], living.entries[here])
            free = here
        here = (here + 1) & (size - 1)
    living.entries[free].key = 0
    living.state.entries -= 1


@njit
def move_all(source: Living, to: Living) -> None:
    """Put all entries of a table into a larger one."""
    for at in range(len(source.entries)):
        if source.entries[at].key != 0:
            _copy(to.entries[_find(to, source.entries[at].key)], source.entries[at])


@inner
def _padded(length: int, padding: int) -> int:
    return -(-length // padding) * padding


@inner
def _drive(living: Living, tier: int, object_id: int) -> int:
    """Return the place of the drive that an object lies on."""
    known = living.known_objects[tier]
    if known == 0:
        return living.first_place[tier]
    # Ids that no row has may lie beyond the table.
    return living.first_place[tier] + living.drive_of[living.drives_at[tier] + min(object_id, known - 1)]


@inner
def _note(living: Living, place: int, more: int) -> None:
    """Note that a place holds `more` bytes from now on."""
    living.now[place] += more
    living.most[place] = max(living.most[place], living.now[place])


@inner
def _is_chained(living: Living, op: int, object_id: int) -> bool:
    """Return whether a row follows one on its object, in any tier; two reads do not follow each other.

    Asked of the first rows only, up to the first that does: none of them was forgotten.
    """
    for other in range(living.numbers[0]):
        entry = living.entries[_find(living, (other << 32 | object_id) + 1)]
        if entry.key != 0 and entry.last_row >= 0 and (op != READ or entry.is_own):
            return True
    return False


@inner
def _write(living: Living, entry: Any, start: int, end: int) -> int:
    """Note that an object is written; return how long it is then."""
    before, reach = entry.held, max(end, 1)
    after = max(before, reach)
    if 0 < before < after:
        entry.longest, living.state.has_grown = max(entry.longest, after), 1
    if end > start or start == 0:
        _note_written(living, entry, start, reach)
    entry.is_own = True
    return after


@inner
def _delete(living: Living, entry: Any) -> int:
    """Note that an object is deleted; return how long it is then."""
    entry.written, entry.is_reborn = 0, True
    while entry.extents != 0:
        entry.extents = _free_extent(living, entry.extents)
    return 0


@inner
def _need(living: Living, entry: Any, tier: int, reach: int) -> int:
    """Note that bytes are read that nothing wrote; return how long the object is, and was from the first row on."""
    state, before = living.state, entry.held
    if entry.is_reborn:
        state.lost = state.rows if state.lost < 0 else state.lost
        return before
    if reach <= entry.needed:
        return before
    entry.needed = reach
    if entry.is_own:
        state.is_late = 1
        return before
    padding = living.paddings[tier]
    more = _padded(reach, padding) - _padded(before, padding)
    living.base[tier] += more
    living.base[_drive(living, tier, (entry.key - 1) & 0xFFFFFFFF)] += more
    return reach


@inner
def _key(rows: TouchedRows, i: int) -> int:
    return (np.int64(rows.tier[i]) << 32 | rows.object_id[i]) + 1


@inner
def _number(rows: TouchedRows, i: int) -> int:
    return rows.number[i] if len(rows.number) else np.int64(rows.object_id[i])


@inner
def _ask_ahead(living: Living, rows: TouchedRows, i: int) -> None:
    """Ask for the memory of an entry that a later row is about: it takes longer to come than a row takes."""
    if i + _AHEAD < len(rows.op):
        prefetch(living.entries[_home(_key(rows, i + _AHEAD), len(living.entries))])


@njit
def look(living: Living, rows: TouchedRows) -> None:
    """Follow `rows`, the next ones: what must be there first, and how much that and what comes beside it is."""
    state = living.state
    for i in range(len(rows.op)):
        _ask_ahead(living, rows, i)
        tier, op, object_id, number = rows.tier[i], rows.op[i], np.int64(rows.object_id[i]), _number(rows, i)
        start, end, padding = rows.offset[i], rows.offset[i] + rows.length[i], living.paddings[tier]
        reach = max(end, 1)
        at = _enter(living, _key(rows, i), number, tier)
        entry = living.entries[at]
        before = after = entry.held
        is_there = op != DELETE or before != 0
        if state.is_chained == 0 and is_there and _is_chained(living, op, object_id):
            state.is_chained = 1
        if op == WRITE:
            after = _write(living, entry, start, end)
        elif op == DELETE:
            rows.absent[i] = not is_there
            after = _delete(living, entry)
        elif not _is_written(living, entry, reach - 1 if end == start and start > 0 else start, reach):
            # An empty read needs what lies before it.
            before = after = _need(living, entry, tier, reach)
        entry.held, entry.last_row, entry.is_gone = after, rows.row[i], op == DELETE
        if after != before:
            more = _padded(after, padding) - _padded(before, padding)
            _note(living, tier, more)
            _note(living, _drive(living, tier, object_id), more)
        if op == DELETE and entry.needed == 0 and entry.longest == 0:
            _forget(living, at, number, tier)
        state.rows += 1


@njit
def look_again(living: Living, rows: TouchedRows, is_grown: bool) -> None:
    """Follow `rows` once more, now that it is known what is needed: the most that places hold, and what grows.

    If it `is_grown`, that is known as well: such an object has all of its length from the first on.
    """
    state = living.state
    for i in range(len(rows.op)):
        _ask_ahead(living, rows, i)
        tier, op, object_id, number = rows.tier[i], rows.op[i], np.int64(rows.object_id[i]), _number(rows, i)
        padding = living.paddings[tier]
        at = _enter(living, _key(rows, i), number, tier)
        entry = living.entries[at]
        before = after = entry.held
        if op == WRITE:
            after = max(before, rows.offset[i] + rows.length[i], 1)
            if 0 < before < after:
                entry.longest, state.has_grown = max(entry.longest, after), 1
        elif op == DELETE:
            after = 0
        entry.held = after
        if not is_grown:
            _note(living, tier, _padded(after, padding) - _padded(before, padding))
        if is_grown and entry.longest:
            before, after = entry.longest if before else 0, entry.longest if after else 0
        _note(living, _drive(living, tier, object_id), _padded(after, padding) - _padded(before, padding))
        if op == DELETE and entry.needed == 0 and entry.longest == 0:
            _forget(living, at, number, tier)


@njit
def begin_again(living: Living, is_grown: bool) -> None:
    """Let the tiers hold what is needed, and nothing else; where it `is_grown`, an object that grows all its length."""
    for place in range(len(living.base)):
        if place >= living.numbers[0] or not is_grown:
            living.base[place] = living.now[place] = living.most[place] = 0
    for at in range(len(living.entries)):
        entry = living.entries[at]
        if entry.key == 0:
            continue
        entry.held = entry.needed
        if not is_grown:
            entry.longest = 0
        if entry.needed == 0:
            continue
        tier, object_id = (entry.key - 1) >> 32, (entry.key - 1) & 0xFFFFFFFF
        length = max(entry.needed, entry.longest) if is_grown else entry.needed
        length = _padded(length, living.paddings[tier])
        if not is_grown:
            living.base[tier] += length
        living.base[_drive(living, tier, object_id)] += length


@inner
def _free_extent(living: Living, which: int) -> int:
    """Give an extent back; return the one after it."""
    after = living.extents[which].next
    living.extents[which].next, living.state.free_extent = living.state.free_extent, which
    return after


@inner
def _note_written(living: Living, entry: Any, start: int, end: int) -> None:
    """Note that an object was written from `start` to `end`."""
    extents = living.extents
    if start <= entry.written:
        entry.written = max(entry.written, end)
        while entry.extents != 0 and extents[entry.extents].start <= entry.written:
            entry.written = max(entry.written, extents[entry.extents].end)
            entry.extents = _free_extent(living, entry.extents)
        return
    before, here = np.int64(0), np.int64(entry.extents)
    while here != 0 and extents[here].end < start:
        before, here = here, np.int64(extents[here].next)
    while here != 0 and extents[here].start <= end:
        start, end = min(start, extents[here].start), max(end, extents[here].end)
        here = _free_extent(living, here)
    new = np.int64(living.state.free_extent)
    if new != 0:
        living.state.free_extent = extents[new].next
    else:
        living.state.extents_used += 1
        new = np.int64(living.state.extents_used)
    extent = extents[new]
    extent.start, extent.end, extent.next = start, end, here
    if before != 0:
        extents[before].next = new
    else:
        entry.extents = new


@inner
def _is_written(living: Living, entry: Any, start: int, end: int) -> bool:
    """Return whether all of an object from `start` to `end` was written."""
    if end <= entry.written:
        return True
    here = np.int64(entry.extents)
    while here != 0 and living.extents[here].end < end:
        here = np.int64(living.extents[here].next)
    return here != 0 and living.extents[here].start <= start
