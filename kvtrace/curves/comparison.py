"""Hits of one tier, or of one cache counted in blocks, under several eviction policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    Series,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.json_types import JsonObject
from kvtrace.curves.documents import bounded_capacity
from kvtrace.curves.hit_ratios import CapacityCurve, HitCounts
from kvtrace.curves.mrc import check_policy
from kvtrace.curves.stack import OPTIMAL

_OPTIMAL_COLUMN = "optimal (Belady)"


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """The hits of several policies over the same requests, at the same capacities.

    Examples:
        >>> import kvtrace as kt, polars as pl
        >>> frame = pl.DataFrame({
        ...     "arrival_ns": [0, 1, 2], "input_tokens": [32, 32, 32], "output_tokens": [1, 1, 1],
        ...     "block_ids": [[0, 1], [2, 3], [0, 1]],
        ... })
        >>> requests = kt.Requests.from_polars(frame, block_tokens=16)
        >>> both = kt.PolicyComparison(
        ...     [kt.count_hits(requests, [2, 4], policy=policy) for policy in ("lru", "belady")]
        ... )
        >>> [result["policy"] for result in both.to_dict()["policies"]]
        ['lru', 'belady']
    """

    results: Sequence[CapacityCurve | HitCounts]
    """One for each policy."""

    def to_dict(self) -> JsonObject:
        """Return the results, each as `--json` prints it for one policy alone, in a list."""
        return {"policies": [result.to_dict() for result in self.results]}

    def document(self) -> Document:
        """Return a table and a chart: a row for each capacity, a column for each policy."""
        counts = [_hits_by_capacity(result) for result in self.results]
        in_blocks = isinstance(self.results[0], HitCounts)
        ratios = {
            result.policy: [hits.ratio for hits in each]
            for result, each in zip(self.results, counts, strict=True)
        }
        # The optimum is known beside each policy, unless there are too many references.
        optimal = [
            next((hits.optimal for hits in each if hits.optimal is not None), None)
            for each in zip(*counts, strict=True)
        ]
        if not any(check_policy(result.policy) == OPTIMAL for result in self.results):
            ratios[_OPTIMAL_COLUMN] = optimal
        capacities = [hits.capacity for hits in counts[0]]
        unit = Unit.COUNT if in_blocks else Unit.BYTES
        columns = [
            ReportColumn("capacity", "capacity in blocks" if in_blocks else "capacity", unit),
            *(ReportColumn(name, unit=Unit.SHARE) for name in ratios),
        ]
        rows = [list(row) for row in zip(capacities, *ratios.values(), strict=True)]
        title = f"Hit rate by policy: most hits at {_wins(self.results, counts)}"
        charts = () if in_blocks else (_chart([hits.bytes for hits in counts[0]], ratios),)
        table = table_of(title, Sheet.SUMMARY, columns, rows, charts=charts)
        return Document("", "", [Chapter("", [table])])


def _chart(capacities: list[float], ratios: dict[str, list[float | None]]) -> Chart:
    """Return the curves of the policies whose hit rate is known at each capacity."""
    series = [
        Series(name, capacities, [value for value in values if value is not None])
        for name, values in ratios.items()
        if None not in values
    ]
    return Chart(
        "Hit rate against capacity",
        ChartShape.CURVE,
        Unit.BYTES,
        Unit.SHARE,
        series,
        x_title="capacity",
        y_title="hit rate",
    )


@dataclass(frozen=True, slots=True)
class _HitsAtCapacity:
    capacity: int | Cell
    bytes: float
    """The capacity in bytes; 0 where it is counted in blocks."""
    hits: int
    ratio: float | None
    optimal: float | None


def _hits_by_capacity(result: CapacityCurve | HitCounts) -> list[_HitsAtCapacity]:
    """Return the hits of one policy, in the order of its capacities."""
    if isinstance(result, CapacityCurve):
        return [
            _HitsAtCapacity(
                point.capacity_bytes,
                float(point.capacity_bytes),
                point.hits,
                point.hit_ratio,
                point.optimal_hit_ratio,
            )
            for point in result.points
        ]
    return [
        _HitsAtCapacity(
            bounded_capacity(at_capacity.capacity_blocks),
            0.0,
            at_capacity.hits,
            result.ratio_of(at_capacity.hits),
            result.ratio_of(at_capacity.optimal_hits),
        )
        for at_capacity in result.results
    ]


def _wins(results: Sequence[CapacityCurve | HitCounts], counts: list[list[_HitsAtCapacity]]) -> str:
    """Return at how many capacities each policy has the most hits; a tie counts for each."""
    wins = [0] * len(counts)
    for each in zip(*counts, strict=True):
        most = max(hits.hits for hits in each)
        for index, hits in enumerate(each):
            wins[index] += hits.hits == most
    texts = [f"{won} by {result.policy}" for result, won in zip(results, wins, strict=True)]
    return f"{', '.join(texts)}, of {len(counts[0])} capacities; a tie counts for each"
