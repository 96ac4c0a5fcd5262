"""The provenance of a report's subject, and what it wears out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.metadata import Metadata

_NS_PER_DAY = 86_400 * 10**9


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


def writes_per_day(written: dict[str, int], span_ns: int | None, meta: Metadata) -> list[dict[str, Any]]:
    """Return for each tier that was written the bytes a day at this rate; null without a time span.

    `capacity_writes_per_day` is in the capacity that the trace gave the tier: drive writes per day of such a drive.
    """
    capacities = {tier.name: tier.capacity_bytes for tier in meta.tiers}
    rows = []
    for tier, count in written.items():
        # Whole numbers first: a rate of a day has more digits than it is worth, but no rounding on the way.
        daily = count * _NS_PER_DAY / span_ns if span_ns else None
        capacity = capacities.get(tier)
        rows.append(
            {
                "tier": tier,
                "written_bytes": count,
                "span_ns": span_ns,
                "written_bytes_per_day": daily,
                "capacity_bytes": capacity,
                "capacity_writes_per_day": daily / capacity if daily is not None and capacity else None,
            }
        )
    return rows
