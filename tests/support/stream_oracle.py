"""The streams of a trace's writes, said again in plain Python: one row after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sim.presets.tier import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvtrace.sim.presets.preset import Preset

PHASES = {"prefill": 0, "store": 0, "decode": 1, "promote": 2, "demote": 3, "populate": 4}
AGES_S = [1, 10, 60, 600, 3600]


def streams_of(
    preset: Preset,
    rows: Iterable[tuple[Any, ...]],
    asked: Callable[[str, int], int],
    kind_of: Callable[[int], int],
) -> list[int | None]:
    """Return the stream of each row.

    `asked` says what a request has in a column, -1 for nothing, `kind_of` an object.

    Rows are as in simulated.Row.
    """
    found: list[int | None] = []
    first: dict[int, int] = {}
    last: dict[tuple[str, int], int] = {}
    for ts_ns, op, tier, phase, key, _, request, _, _ in rows:
        setting, number = preset.tiers[tier], None
        if op == "write":
            first.setdefault(key, ts_ns)
            for column in ("kind", "qos", "session_id"):
                if request is not None:
                    last[column, key] = asked(column, request)
            number = {
                Streams.NONE: None,
                Streams.USER_KIND: last.get(("kind", key), -1),
                Streams.QOS: last.get(("qos", key), -1),
                Streams.SESSION: last.get(("session_id", key), -1),
                Streams.PHASE: PHASES[phase],
                Streams.AGE: sum(ts_ns - first[key] >= s * 10**9 for s in AGES_S),
                Streams.OBJECT_KIND: kind_of(key),
            }[setting.streams]
        if number is not None:
            number = None if number < 0 else number % setting.stream_count
        found.append(number)
    return found
