"""The provenance of a report's subject, and what it wears out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.metadata import Metadata
from kvtrace.core.statistics import SECONDS_PER_DAY, Endurance
from kvtrace.core.units import DAYS_PER_YEAR, NS_PER_S

_NS_PER_DAY = SECONDS_PER_DAY * NS_PER_S
LEAST_DRIVE_BYTES = 100 * 10**9
"""No drive for a server is smaller: of a tier with less capacity no writes of the whole drive are told."""
_USUAL = Endurance(writes_per_day=1, years=5)
"""What a drive for mixed reading is sold to endure: a write of all of it a day, for so many years."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The table that is reported on and its provenance; null where the file does not tell."""

    file: str
    table: str
    rows: int | None
    program: str
    version: str
    argv: list[str]
    preset: str | None
    seed: int | None
    config_sha256: str
    model: str | None
    source: dict[str, Any] | None
    is_simulated: bool
    notes: list[str]


def subject_of(path: Path, meta: Metadata) -> Subject:
    """Return the provenance of the table at `path`."""
    name = (meta.model or {}).get("name")
    return Subject(
        file=path.name,
        table=meta.table,
        rows=meta.rows,
        program=meta.program,
        version=meta.version,
        argv=meta.argv,
        preset=meta.preset,
        seed=meta.seed,
        config_sha256=meta.config_sha256,
        model=name if isinstance(name, str) else None,
        source=meta.source,
        is_simulated=meta.is_simulated,
        notes=meta.notes,
    )


def hit_ratio(meta: Metadata) -> float | None:
    """Return the share of lookups that any tier answered, as the simulation that made a trace counted; else null."""
    stats = meta.stats or {}
    hits = [tier.get("hits") for tier in stats.get("tiers") or [] if isinstance(tier, dict)]
    lookups = stats.get("lookups")
    if not lookups or not hits or not all(isinstance(count, int) for count in (*hits, lookups)):
        return None
    return sum(count for count in hits if count) / lookups


def writes_per_day(
    written: dict[str, int], span_ns: int | None, meta: Metadata, endurance: Endurance | None
) -> list[dict[str, Any]]:
    """Return for each tier that was written the bytes a day at this rate; null without a time span.

    `capacity_writes_per_day` is in the capacity that the trace gave the tier: drive writes per day of such a drive.
    `years_of_life` are those of a drive of that `endurance`; without that, of one of the tier's capacity that endures
    `_USUAL`, if a drive may be so small. Of a tier that each node of a fleet has its own of, it is all these drives
    together.
    """
    tiers = {tier.name: tier for tier in meta.tiers}
    rows = []
    for tier, count in written.items():
        # Whole numbers first: a rate of a day has more digits than it is worth, but no rounding on the way.
        daily = count * _NS_PER_DAY / span_ns if span_ns else None
        capacity, drives = (None, 1) if tier not in tiers else (tiers[tier].capacity_bytes, meta.instances(tiers[tier]))
        is_drive = capacity is not None and capacity >= LEAST_DRIVE_BYTES
        life = (_USUAL if endurance is None and is_drive else endurance or Endurance()).rated_bytes(capacity)
        life, capacity = life and life * drives, capacity and capacity * drives
        rows.append(
            {
                "tier": tier,
                "written_bytes": count,
                "span_ns": span_ns,
                "written_bytes_per_day": daily,
                "capacity_bytes": capacity,
                "capacity_writes_per_day": daily / capacity if daily is not None and capacity else None,
                "endurance_bytes": life,
                "years_of_life": life / daily / DAYS_PER_YEAR if life and daily else None,
            }
        )
    return rows
