"""Which objects lie in each tier at each row: what must be written first, and the peak of live bytes.

A replay of a window reads objects written before it; they must be written first, or the tier reads nothing. The rows
are followed in batches, and what is kept of them is what the tiers hold (`living`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from kvreplay.plan.held.column import column
from kvreplay.plan.held.living import ENTRY, EXTENT, Living, TouchedRows, begin_again, look, look_again, move_all
from kvreplay.plan.held.numbering import Numbering
from kvtrace.core.compiled import compile_announced

_FIRST_ENTRIES = 1 << 10
_DONE_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class Residency:
    """The liveness of objects through the replayed rows, a tier and an object at a time."""

    populate_tier: Any
    """int8 an object to write first: its tier."""
    populate_object: Any
    """int64 an object to write first."""
    populate_bytes: Any
    """int64: how long it must be."""
    absent_deletes: Any
    """int32, rising: which of the rows delete an object that is not in the tier."""
    lost_read: int | None
    """The first row that reads bytes that nothing has written since the object was deleted; null if there is none."""
    peak_bytes: list[int]
    """The most live bytes of each tier, padded, the populated ones included."""
    drive_peak_bytes: list[list[int]]
    """For each drive of each tier, with every object as long as it will get: what must be free there."""
    grown: list[dict[int, int]]
    """By tier, for objects that are written on beyond their end: how long they get at most."""
    last_deletes: Any
    """int64: the last row of an object that must be written first, where that deletes it; in their order."""
    is_chained: bool
    """Whether a row must wait for another one because of their object."""


class Follower:
    """Follows the objects of all tiers through batches of rows; once more through all of them, if it has to."""

    def __init__(
        self, rows: int, alignments: list[int], shared: Mapping[int, tuple[Any, int]], objects: Numbering
    ) -> None:
        """Follow at most `rows` rows; `alignments` and `shared` are as in `trace_residency`."""
        tiers = len(alignments)
        drives = [shared[tier][1] if tier in shared else 1 for tier in range(tiers)]
        self._starts = list(accumulate(drives, initial=tiers))
        tables = [np.asarray(shared[tier][0]) if tier in shared else np.zeros(0, np.int16) for tier in range(tiers)]
        places = self._starts[-1]
        self._living = Living(
            entries=column(_FIRST_ENTRIES, ENTRY),
            extents=column(rows + 2, EXTENT),
            was_deleted=column(_DONE_BITS >> 3, np.uint8),
            numbers=[tiers],
            paddings=alignments,
            first_place=self._starts[:-1],
            known_objects=[len(of_tier) for of_tier in tables],
            drives_at=list(accumulate([len(of_tier) for of_tier in tables], initial=0))[:-1],
            drive_of=np.concatenate([*tables, np.zeros(0, np.int16)]),
            base=np.zeros(places),
            now=np.zeros(places),
            most=np.zeros(places),
        )
        self._living.state["lost"] = -1
        self._tiers, self._objects, self._rows = tiers, objects, TouchedRows()
        self._absent = [np.zeros(0, np.int32)]

    def _count(self, name: str) -> int:
        return int(self._living.state[name])

    def take(self, rows: Mapping[str, Any]) -> Any:
        """Follow the next rows: columns by name; return which are deletes of nothing (bool)."""
        first = self._count("rows")
        self._prepare(rows)
        absent = self._rows.absent = np.zeros(len(rows["op"]), bool)
        look(self._living, self._rows)
        if absent.any():
            self._absent.append((np.flatnonzero(absent) + first).astype(np.int32))
        return absent

    def _prepare(self, rows: Mapping[str, Any]) -> None:
        """Let compiled code see `rows`, and have room for them."""
        of, living = self._rows, self._living
        of.tier, of.op, of.object_id, of.row = rows["tier"], rows["op"], rows["object_id"], rows["row"]
        numbers = self._objects.of(rows["object_id"])
        of.number = numbers[:0] if numbers is rows["object_id"] else numbers
        of.offset, of.length = rows["offset_bytes"], rows["length_bytes"]
        need = 2 * (self._count("entries") + len(of.op))
        if need > len(living.entries):
            larger = Living(entries=column(1 << (2 * need - 1).bit_length() - 1, ENTRY))
            move_all(living, larger)
            living.entries = larger.entries
        bits = self._objects.count * self._tiers
        if bits > 8 * len(living.was_deleted):
            more = column(1 << (bits - 1).bit_length() - 3 + 1, np.uint8)
            more[: len(living.was_deleted)] = living.was_deleted
            living.was_deleted = more

    def result(self, again: Callable[[], Iterable[Mapping[str, Any]]]) -> Residency:
        """Return what was found; `again` gives all rows once more, if they must be followed again."""
        lost = self._count("lost")
        if self._count("is_late"):
            self._again(again(), is_grown=False)
        living = self._living
        peaks = [int(n) for n in (living.base + living.most)[: self._tiers]]
        if self._count("has_grown"):
            self._again(again(), is_grown=True)
        of_drives = [int(n) for n in living.base + living.most]
        entries = living.entries
        used = entries[(entries["key"] != 0) & ((entries["needed"] > 0) | (entries["longest"] > 0))]
        used = used[np.argsort(used["key"])]
        tier, object_id = used["key"] - 1 >> 32, used["key"] - 1 & 0xFFFFFFFF
        grown: list[dict[int, int]] = [{} for _ in range(self._tiers)]
        for at in np.flatnonzero(used["longest"]).tolist():
            grown[int(tier[at])][int(object_id[at])] = int(used["longest"][at])
        first = used["needed"] > 0
        return Residency(
            tier[first].astype(np.int8),
            object_id[first],
            used["needed"][first],
            np.concatenate(self._absent),
            None if lost < 0 else lost,
            peaks,
            [of_drives[a:b] for a, b in pairwise(self._starts)],
            grown,
            np.sort(used["last_row"][first & used["is_gone"]]),
            bool(self._count("is_chained")),
        )

    def _again(self, batches: Iterable[Mapping[str, Any]], *, is_grown: bool) -> None:
        living = self._living
        living.state["has_grown"] = int(is_grown)
        begin_again(living, is_grown)
        for rows in batches:
            self._prepare(rows)
            look_again(living, self._rows, is_grown)


def trace_residency(
    tier: Any,
    op: Any,
    object_id: Any,
    end: Any,
    alignments: list[int],
    shared: Mapping[int, tuple[Any, int]] | None = None,
    offset: Any = None,
) -> Residency:
    """Follow every (tier, object) through the rows.

    `op` holds the contract's codes; `end` the byte after the last one touched; `alignments` each tier's padding in
    bytes; `shared`, by tier on several drives, which of them an object id lies on and how many there are; `offset` the
    first byte touched, None where that is the object's first in every row.
    """
    start = np.zeros(len(op), np.int64) if offset is None else offset
    rows = {
        "tier": tier, "op": op, "object_id": object_id, "row": np.arange(len(op)),
        "offset_bytes": start, "length_bytes": end - start,
    }  # fmt: skip
    with compile_announced():
        follower = Follower(len(op), alignments, shared or {}, Numbering(len(op)))
        follower.take(rows)
        return follower.result(lambda: [rows])
