"""The figures of a run, from all its operations pooled; what cannot be known is null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvreplay.engine.job import Driven
from kvreplay.result.counted.operations import LATENESS, PER_MIB, RESPONSE, SERVICE, CountedOperations
from kvreplay.result.counted.times import NOTHING
from kvreplay.result.pace import pace
from kvreplay.result.verdict import verdict
from kvreplay.tiers.sharded import SeveralDrives
from kvreplay.tiers.tier import Tier, has_times
from kvtrace.core.run.figures import Figures, Generation, Summary, WarmupFacts
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.schema import Op
from kvtrace.core.units import NS_PER_S

OPS = tuple(op.value for op in Op)
DEFINITIONS = {
    "bandwidth_bytes_per_s": "object bytes of completed operations / span_ns",
    "operations_per_s": "completed operations / span_ns",
    "span_ns": "from the first submission to the last completion of this tier's operations of this kind",
    "latency": "service time: completed_ns - submitted_ns, opening and closing the object included, making data not",
    "response": "response time: completed_ns - scheduled_ns, so what was late counts; null in a closed loop",
    "latency_per_mib": "service time * 1 MiB / object bytes of the operation; operations without bytes left out",
    "lateness": "submitted_ns - scheduled_ns; null in a closed loop",
    "in_flight_mean": "sum of service times / span_ns: operations in flight, weighted by time",
    "in_flight_max": "the most completed operations of this kind that were in flight at once; null where operations "
    "were submitted more than 65,000 behind others that follow them in the trace",
    "percentiles": "nearest rank over all completed operations; null with fewer than 1 / (1 - q) of them; of so many "
    "that not all are kept from a histogram, and then percentiles_within says how far off they may be, of their value",
}


def figures(found: CountedOperations) -> list[Figures]:
    """Return the figures of every tier and operation that was planned."""
    return [
        _figures(found, tier, op, found.at(index, code), found.tiers[index], most_at_once=_of_tier(found, index, code))
        for index, tier in enumerate(found.tiers)
        if tier is not None
        for code, op in enumerate(OPS)
        if found.total("planned", found.at(index, code))
    ]


def drive_figures(found: CountedOperations) -> list[Figures]:
    """Return the same for each drive of the tiers that lie on several."""
    return [
        _figures(found, drive, op, at, found.tiers[index], most_at_once=found.order.most_at_once(at[0]))
        for index, tier in enumerate(found.tiers)
        if isinstance(tier, SeveralDrives)
        for number, drive in enumerate(tier.drives)
        for code, op in enumerate(OPS)
        if found.total("planned", at := found.at(index, code, number))
    ]


def _of_tier(found: CountedOperations, tier: int, op: int) -> int | None:
    at = found.at(tier, op)
    return found.order.most_at_once(at[0]) if len(at) == 1 else found.order.most_of_group(tier * len(OPS) + op)


def _figures(
    found: CountedOperations, where: Any, op: str, at: Sequence[int], tier: Tier | None, *, most_at_once: int | None
) -> Figures:
    """Return the figures of the kinds `at`, which are one operation on a tier, or on `where`, a drive of it."""
    good, moved = found.total("good", at), found.total("bytes", at)
    first_last = found.span(at)
    span = 0 if first_last is None else first_last[1] - first_last[0]
    # The times of a tier without a model, where nothing moves, describe our own loop.
    is_timed = tier is not None and has_times(where)
    is_rated = span > 0 and is_timed
    return Figures(
        tier=where.name,
        op=op,
        engine=where.engine,
        is_simulated=where.is_simulated,
        planned=found.total("planned", at),
        operations=good,
        errors=found.total("errors", at),
        corrupt=found.total("corrupt", at),
        bytes=moved if is_timed else None,
        io_bytes=None if where.is_simulated or op == Op.DELETE else found.total("io_bytes", at),
        span_ns=None if first_last is None else span,
        bandwidth_bytes_per_s=moved * NS_PER_S / span if is_rated and op != Op.DELETE else None,
        operations_per_s=good * NS_PER_S / span if is_rated else None,
        in_flight_mean=found.total("service_ns", at) / span if is_rated else None,
        in_flight_max=most_at_once if is_rated else None,
        latency=found.distribution(SERVICE, at) if is_timed else NOTHING,
        response=None if not found.is_open_loop else found.distribution(RESPONSE, at) if is_timed else NOTHING,
        latency_per_mib=found.distribution(PER_MIB, at) if is_timed else NOTHING,
        lateness=None if not found.is_open_loop else found.distribution(LATENESS, at),
    )


def summarize(
    found: CountedOperations,
    driven: Driven | None,
    *,
    queue_depth: int,
    depth_because: str = "--queue-depth",
    moved: dict[str, DeviceIo] | None = None,
    skipped_rows: dict[str, int],
    absent_deletes: int,
    warmup: str | None = None,
    wall_ns: int | None = None,
) -> Summary:
    """Return the summary of a run; `driven` is None if it ended before its first operation, or is not known.

    `wall_ns` says how long the run was where `driven` cannot; `moved` what devices did meanwhile, by drive; `warmup`
    what was asked to be left out.
    """
    wall_ns, run = driven.wall_ns if driven else wall_ns, found.run[0]
    left_out = None if warmup is None else _left_out(warmup, run)
    # The warm-up's time is no time of the figures.
    span_ns = None if wall_ns is None else wall_ns - ((left_out.measured_from_ns if left_out else 0) or 0)
    judged = pace(found, driven)
    failed, sent = int(run["failed"]), int(run["sent"])
    judgement = verdict(found, driven, judged, moved=moved or {}, queue_depth=queue_depth, because=depth_because)
    return Summary(
        verdict=f"{failed:,} of {sent:,} operations FAILED; {judgement.sentence}" if failed else judgement.sentence,
        judgement=judgement,
        wall_ns=wall_ns,
        operations=found.total("good"),
        errors=failed,
        not_reached=int(run["rows"]) - sent,
        figures=figures(found),
        drives=drive_figures(found),
        pace=judged,
        in_flight_mean=found.total("service_ns") / span_ns if span_ns else None,
        warmup=left_out,
        skipped_rows=skipped_rows,
        absent_deletes=absent_deletes,
        definitions=DEFINITIONS,
        generation=None if driven is None or not driven.wall_ns else _generation(driven),
    )


def _left_out(asked: str, run: Any) -> WarmupFacts:
    """Return what the warm-up `asked` left out."""
    has_counted = bool(run["counted_sent"])
    return WarmupFacts(
        asked=asked,
        operations=int(run["left_out"]),
        first_measured_row=int(run["first_row"]) if has_counted else None,
        measured_from_ns=int(run["from_ns"]) if has_counted else None,
    )


def _generation(driven: Driven) -> Generation:
    threads_ns = driven.wall_ns * max(1, len(driven.threads))
    return Generation(
        generation_ns=driven.making_ns,
        reserve_ns=driven.reserve_ns,
        threads=len(driven.threads),
        share_of_threads=driven.making_ns / threads_ns,
        reserve_share=driven.reserve_ns / threads_ns,
        writes_generated_in_flight=driven.writes_generated_in_flight,
    )
