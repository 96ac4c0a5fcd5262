"""The figures of several ranks as one: what was counted added up, times pooled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvreplay.mpi.pooled.operations import Pooled, RankOperations
from kvreplay.mpi.pooled.part import PartRun
from kvtrace.core.run.figures import Figures, Pace
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.statistics import mean, total
from kvtrace.core.units import NS_PER_S


def pooled_figures(parts: Sequence[PartRun], found: RankOperations) -> list[Figures]:
    """Return the figures of each tier and kind of operation, in the order of the ranks' own."""
    of: dict[tuple[str, str], list[Figures]] = {}
    for part in parts:
        for figures in [] if part.run is None else part.run.summary.figures:
            of.setdefault((figures.tier, figures.op), []).append(figures)
    tiers = _order([tier for tier, _ in of])
    ops = ["read", "write", "delete"]
    keys = sorted(of, key=lambda key: (tiers.index(key[0]), ops.index(key[1])))
    return [_pooled(of[key], found.of(*key)) for key in keys]


def _order(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _pooled(each: Sequence[Figures], times: Pooled) -> Figures:
    first = each[0]
    span = None if times.first_ns is None or times.last_ns is None else times.last_ns - times.first_ns
    moved, operations = total([f.bytes for f in each]), sum(f.operations or 0 for f in each)
    is_rated = bool(span) and any(f.operations_per_s is not None for f in each)
    per_mib = times.per_mib.distribution()
    return Figures(
        tier=first.tier,
        op=first.op,
        engine=first.engine if len({f.engine for f in each}) == 1 else "several",
        is_simulated=first.is_simulated,
        planned=total([f.planned for f in each]),
        operations=operations,
        errors=total([f.errors for f in each]),
        corrupt=sum(f.corrupt for f in each),
        bytes=moved,
        io_bytes=total([f.io_bytes for f in each]),
        span_ns=span,
        bandwidth_bytes_per_s=(moved or 0) * NS_PER_S / span if is_rated and span and first.op != "delete" else None,
        operations_per_s=operations * NS_PER_S / span if is_rated and span else None,
        in_flight_mean=times.service_ns / span if is_rated and span else None,
        in_flight_max=_most_at_once(times) if is_rated else None,
        latency=times.latency.distribution(),
        response=None if first.response is None else times.response.distribution(),
        latency_per_mib=per_mib,
        lateness=None if first.lateness is None else times.lateness.distribution(),
    )


def _most_at_once(times: Pooled) -> int | None:
    """Return how many operations overlapped at most; null where only histograms are kept."""
    if not times.edges:
        return None
    submitted = np.sort(np.concatenate([s for s, _ in times.edges]))
    ended = np.searchsorted(np.sort(np.concatenate([c for _, c in times.edges])), submitted, side="right")
    return int((np.arange(1, len(submitted) + 1) - ended).max())


def pooled_pace(runs: Sequence[RunFile], found: RankOperations) -> Pace | None:
    """Return whether all ranks kept pace; null in a closed loop."""
    paces = [(run.summary.pace, run.summary.operations or 0) for run in runs]
    known = [(pace, count) for pace, count in paces if pace is not None]
    if not known:
        return None
    operations = sum(count for _, count in known) or 1
    late = max((pace for pace, _ in known), key=lambda pace: (not pace.kept_pace, pace.end_late_ns or 0))
    names = {name for pace, _ in known for name in pace.causes}
    # Shares of response times: those of a rank count by its part of them all.
    weights = [(pace, (pace.response.mean_ns or 0) * pace.response.count if pace.response else 0) for pace, _ in known]
    whole = sum(weight for _, weight in weights) or 1
    every = found.of("", "")
    return Pace(
        kept_pace=all(pace.kept_pace for pace, _ in known),
        late_fraction=sum(pace.late_fraction * count for pace, count in known) / operations,
        late_by_itself_fraction=sum(pace.late_by_itself_fraction * count for pace, count in known) / operations,
        lateness=every.lateness.distribution(),
        response=every.response.distribution(),
        offered_per_s=total([pace.offered_per_s for pace, _ in known]),
        delivered_per_s=total([pace.delivered_per_s for pace, _ in known]),
        end_late_ns=late.end_late_ns,
        cause=late.cause,
        causes={name: sum(pace.causes.get(name, 0) * w for pace, w in weights) / whole for name in sorted(names)},
        held_share=mean([pace.held_share for pace, _ in known]),
        on_time_fraction=_weighted([(pace.on_time_fraction, count) for pace, count in known]),
        unhindered_share=_weighted([(pace.unhindered_share, weight) for pace, weight in weights]),
    )


def _weighted(each: Sequence[tuple[float | None, float]]) -> float | None:
    """Return the mean of values by their weights; null if one is not known."""
    known = [(value, weight) for value, weight in each if value is not None]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if len(known) == len(each) and whole else None
