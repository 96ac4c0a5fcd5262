"""What a fleet did around each event, before, during and after: hits, tokens computed, reads and writes of its tiers.

All is counted as it is simulated, in stretches of a second that also end where a window of an event does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.native.records import FOUND
from kvtrace.sim.fleet.incidents import Incident
from kvtrace.sim.fleet.setting import FleetSetting

SECOND_NS: Final = 10**9
WINDOW_NS: Final = 60 * SECOND_NS
WINDOWS_AFTER: Final = 5
STEP_NS: Final = 10 * SECOND_NS
"""Hits are back once so long a step has them."""
BACK_WITHIN: Final = 0.01
"""As many as before, less so much."""
MOST_POINTS: Final = 150
"""Of a series over the whole time."""
OF_REQUESTS: Final = tuple(name for name in FOUND.names or () if name != "ts_ns")
OF_TIERS: Final = ("reads", "read_bytes", "writes", "written_bytes", "lost_bytes")
_CODES = {op: enum_code(TRACE, "op", op) for op in Op}
_POPULATE, _LOSE = (enum_code(TRACE, "phase", phase) for phase in (Phase.POPULATE, Phase.LOSE))


class Around:
    """Counts what happens in time, if there are incidents."""

    def __init__(self, incidents: Sequence[Incident], fleet: FleetSetting, tiers: Sequence[str]) -> None:
        self._incidents, self._fleet, self._tiers = incidents, fleet, tiers
        ends = {0} | {t % SECOND_NS for of in incidents for t in (of.at_ns, of.end_ns(fleet))}
        self._parts = np.array(sorted(ends))
        """Where in a second its stretches begin."""
        self._requests = np.zeros((0, len(OF_REQUESTS)), np.int64)
        self._storage = np.zeros((0, len(tiers) * len(OF_TIERS)), np.int64)
        """[stretches, of each tier OF_TIERS]"""
        self._end_ns = 0

    def see(self, rows: dict[str, Any], found: Any) -> None:
        """Count rows of the trace, and what requests found, records.FOUND."""
        at = self._stretch(found["ts_ns"])
        rows_at = self._stretch(rows["ts_ns"])
        self._grow(max(at.max(initial=-1), rows_at.max(initial=-1)) + 1)
        for column, name in enumerate(OF_REQUESTS):
            np.add.at(self._requests[:, column], at, found[name])
        op, phase, length = rows["op"], rows["phase"], rows["length_bytes"]
        is_read = op == _CODES[Op.READ]
        is_written = (op == _CODES[Op.WRITE]) & (phase != _POPULATE)
        kinds = ((is_read, 0, 1), (is_written, 2, 3), (phase == _LOSE, None, 4))
        # The link of a disaggregated fleet is a tier after all others.
        is_tier = rows["tier"] < len(self._tiers)
        for is_one, count, size in kinds:
            which = is_one & is_tier
            place, first = rows_at[which], rows["tier"][which].astype(np.int64) * len(OF_TIERS)
            if count is not None:
                np.add.at(self._storage, (place, first + count), 1)
            np.add.at(self._storage, (place, first + size), length[which])

    def _stretch(self, ts_ns: Any) -> Any:
        parts = np.searchsorted(self._parts, ts_ns % SECOND_NS, side="right") - 1
        return ts_ns // SECOND_NS * len(self._parts) + parts

    def _grow(self, stretches: int) -> None:
        more = stretches - len(self._requests)
        if more > 0:
            more += len(self._requests) // 2
            self._requests = np.pad(self._requests, ((0, more), (0, 0)))
            self._storage = np.pad(self._storage, ((0, more), (0, 0)))

    def stats(self, end_ns: int) -> dict[str, Any]:
        """Return the counters as the metadata carries them, of a simulation that ends then; nothing without events."""
        if not self._incidents:
            return {}
        self._end_ns = end_ns
        self._grow((end_ns // SECOND_NS + 1) * len(self._parts))
        return {
            "incidents": {"around": [self._of(incident, end_ns) for incident in self._incidents]} | self._series(end_ns)
        }

    def _of(self, incident: Incident, end_ns: int) -> dict[str, Any]:
        over_ns = incident.end_ns(self._fleet)
        windows = [self._window(*window) for window in _windows(incident.at_ns, over_ns, end_ns)]
        before = windows[0]["hit_ratio"] if windows and windows[0]["window"] == "before" else None
        return {
            "event": incident.text,
            "at_ns": incident.at_ns,
            "over_ns": over_ns,
            "is_reached": incident.at_ns < end_ns,
            "hits_back_ns": None if before is None else self._back_ns(over_ns, end_ns, before),
            "windows": windows,
        }

    def _window(self, name: str, first_ns: int, last_ns: int) -> dict[str, Any]:
        found = dict(zip(OF_REQUESTS, self._sum(self._requests, first_ns, last_ns).tolist(), strict=True))
        lookups = found["lookups"]
        shared = {name: found[f"{name}s"] for name in ("local_hit", "shared_hit")} | {
            "hit": found["local_hits"] + found["shared_hits"]
        }
        tiers = self._sum(self._storage, first_ns, last_ns).reshape(len(self._tiers), -1)
        peaks = self._peaks(first_ns, last_ns)
        return {
            "window": name,
            "from_ns": first_ns,
            "to_ns": last_ns,
            **found,
            **{f"{name}_ratio": hits / lookups if lookups else None for name, hits in shared.items()},
            "tiers": [
                {"name": tier} | dict(zip(OF_TIERS, of.tolist(), strict=True)) | peak
                for tier, of, peak in zip(self._tiers, tiers, peaks, strict=True)
            ],
        }

    def _sum(self, table: Any, first_ns: int, last_ns: int) -> Any:
        return table[self._between(first_ns, last_ns)].sum(axis=0)

    def _between(self, first_ns: int, last_ns: int) -> slice:
        """Return the stretches of a window: all that are left, if it goes to the end."""
        first, last = self._stretch(np.array([first_ns, last_ns])).tolist()
        return slice(first, None if last_ns == self._end_ns else last)

    def _peaks(self, first_ns: int, last_ns: int) -> list[dict[str, int]]:
        """Return of each tier the most bytes that it read, and wrote, in a second from the start of the window on."""
        table, step = self._storage[self._between(first_ns, last_ns)], len(self._parts)
        seconds = np.add.reduceat(table, np.arange(0, len(table), step)).reshape(-1, len(self._tiers), len(OF_TIERS))
        most = seconds.max(axis=0)
        return [{"peak_read_bytes": int(of[1]), "peak_written_bytes": int(of[3])} for of in most]

    def _back_ns(self, over_ns: int, end_ns: int, before: float) -> int | None:
        """Return how long after `over_ns` the first step ends in which hits are as before; null if none does."""
        for start in range(over_ns, end_ns - STEP_NS + 1, STEP_NS):
            of = dict(zip(OF_REQUESTS, self._sum(self._requests, start, start + STEP_NS).tolist(), strict=True))
            if of["lookups"] and (of["local_hits"] + of["shared_hits"]) / of["lookups"] >= before - BACK_WITHIN:
                return start + STEP_NS - over_ns
        return None

    def _series(self, end_ns: int) -> dict[str, Any]:
        """Return what there is over the whole time, in steps of whole seconds."""
        seconds = max(1, -(-end_ns // SECOND_NS))
        step = max(1, -(-seconds // MOST_POINTS))
        starts = np.arange(0, seconds, step) * len(self._parts)
        end = seconds * len(self._parts)
        requests = np.add.reduceat(self._requests[:end], starts)
        tiers = np.add.reduceat(self._storage[:end], starts).reshape(len(starts), len(self._tiers), -1)
        return {
            "step_ns": step * SECOND_NS,
            "end_ns": end_ns,
            "over_time": {name: requests[:, column].tolist() for column, name in enumerate(OF_REQUESTS)},
            "tiers": [
                {"name": name} | {of: tiers[:, t, column].tolist() for column, of in enumerate(OF_TIERS)}
                for t, name in enumerate(self._tiers)
            ],
        }


def _windows(at_ns: int, over_ns: int, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """Yield the windows around what happens from `at_ns` to `over_ns`: name, start and end; none after the end."""
    if 0 < at_ns <= end_ns:
        yield "before", max(0, at_ns - WINDOW_NS), at_ns
    if over_ns > at_ns and at_ns < end_ns:
        yield "during", at_ns, min(over_ns, end_ns)
    for k in range(WINDOWS_AFTER):
        start = over_ns + k * WINDOW_NS
        if start < end_ns:
            yield f"minute {k + 1} after", start, min(start + WINDOW_NS, end_ns)
