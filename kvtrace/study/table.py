"""The results of a study as one Parquet table: the same bytes however many workers made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.schema import arrow_schema, study_table
from kvtrace.core.tables import create
from kvtrace.curves.points import Simulated
from kvtrace.study.run import Failed, Result
from kvtrace.study.study import Configuration, Study, Value, as_text

_COUNTED = (
    *("requests", "lookups", "hit_ratio", "input_tokens", "recomputed_tokens", "output_tokens", "span_ns"),
    *("imbalance", "duplicate_bytes"),
)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One configuration and what came of it."""

    configuration: Configuration
    found: Result
    price: float | None = None
    """Of its tiers; null without prices, or if one that has a price has no bound."""
    parts: tuple[float, ...] = ()
    """What that is the sum of, where several things cost."""

    @property
    def figures(self) -> Simulated | None:
        """What was simulated; null if it failed."""
        return None if isinstance(self.found, Failed) else self.found

    @property
    def capacity_bytes(self) -> int | None:
        """Of all tiers together; null if one has no bound."""
        capacities = [tier.total_bytes for tier in self.figures.tiers] if self.figures else [None]
        return None if None in capacities else sum(of or 0 for of in capacities)

    def first_token_ns(self, name: str) -> int | None:
        """Return a percentile of the modelled time to the first token; null where it is not known."""
        times = self.figures.first_token if self.figures else None
        return None if times is None else times["with_cache"][f"{name}_ns"]


def rows_of(study: Study, results: Mapping[int, Result]) -> list[StudyRow]:
    """Return the configurations that have a result, in the order of the grid."""
    return [
        StudyRow(one, found, _price(study.price, found))
        for one in study.configurations
        if (found := results.get(one.number)) is not None
    ]


def _price(of_byte: Mapping[str, float], found: Result) -> float | None:
    tiers = [] if isinstance(found, Failed) else [tier for tier in found.tiers if tier.name in of_byte]
    if not tiers or any(tier.total_bytes is None for tier in tiers):
        return None
    return sum(of_byte[tier.name] * (tier.total_bytes or 0) for tier in tiers)


def write(path: Path, study: Study, rows: Sequence[StudyRow], argv: list[str]) -> None:
    """Write `rows` to `path`, aside and renamed."""
    import pyarrow as pa

    tiers = list(dict.fromkeys(tier.name for row in rows if row.figures for tier in row.figures.tiers))
    kinds = {key: _kind([one.knobs[key] for one in study.configurations if key in one.knobs]) for key in study.keys}
    table = study_table({"knob": kinds, "tier": dict.fromkeys(tiers, "")})
    config = {"knobs": kinds, "price": study.price, "configurations": len(study.configurations)}
    meta = describe(table, "kvtrace", argv, config, tiers=[TierFacts(name) for name in tiers], is_simulated=True)
    with create(path, table, meta) as out:
        columns = [dict(_cells(row, kinds)) for row in rows]
        schema = arrow_schema(table)
        arrays = [pa.array([row.get(field.name) for row in columns], field.type) for field in schema]
        out.write(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _kind(values: Sequence[Value]) -> str:
    """Return the type of a column of `values`."""
    kinds = {type(value) for value in values}
    if kinds == {int} and all(-(1 << 62) <= value <= 1 << 62 for value in values if isinstance(value, int)):
        return "int64"
    return "float64" if kinds <= {int, float} else "string"


def _cells(row: StudyRow, kinds: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the cells of `row` by column; what is not known is left out."""
    yield "configuration", row.configuration.number
    yield "command", row.configuration.command
    for key, value in row.configuration.knobs.items():
        yield f"knob.{key}", as_text(value) if kinds[key] == "string" else value
    if isinstance(row.found, Failed):
        yield "error", row.found.error
        return
    found = row.found
    for name in _COUNTED:
        yield name, getattr(found, name)
    for name in ("p50", "p95", "p99"):
        yield f"first_token_{name}_ns", row.first_token_ns(name)
    yield "capacity_bytes", row.capacity_bytes
    yield "price", row.price
    for tier in found.tiers:
        yield from ((f"tier.{tier.name}.{name}", value) for name, value in tier.figures().items())
