"""The figures of a run, from all its operations pooled; what cannot be known is null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvreplay.config.warmup import Warmup
from kvreplay.config.warmup import facts as warmup_facts
from kvreplay.engine.job import CORRUPT, ERROR, NOT_DONE, OK, SHORT, Driven, Record
from kvreplay.plan.plan import DELETE, Plan
from kvreplay.result.pace import distribution, pace
from kvreplay.result.verdict import verdict
from kvreplay.tiers.sharded import SeveralDrives
from kvreplay.tiers.tier import Tier, has_times
from kvtrace.core.run.figures import Figures, Generation, Summary
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.schema import Op
from kvtrace.core.units import NS_PER_S

MIB = 1 << 20
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
    "in_flight_max": "the most completed operations of this kind that were in flight at once",
    "percentiles": "nearest rank over all completed operations; null with fewer than 1 / (1 - q) of them",
}


def io_bytes(plan: Plan, tiers: Sequence[Tier | None], rows: Any) -> Any:
    """Return int64 for each of the planned `rows`: the bytes asked of its tier, padding included; -1 where none are."""
    import numpy as np

    tier, offset, length = plan.tier[rows], plan.offset[rows], plan.length[rows]
    padding = np.array([1 if t is None else t.alignment for t in tiers], dtype=np.int64)[tier]
    moves = np.array([t is not None and not t.is_simulated for t in tiers])[tier] & (plan.op[rows] != DELETE)
    padded = -(-(offset + length) // padding) * padding - offset // padding * padding
    return np.where(moves, np.where(length == 0, 0, padded), -1)


def figures(
    plan: Plan, record: Record, due_ns: Any, tiers: Sequence[Tier | None], is_measured: Any = True
) -> list[Figures]:
    """Return the figures of every tier and operation that the plan has, over rows where `is_measured`."""
    import numpy as np

    result = []
    for index, tier in enumerate(tiers):
        for code, op in enumerate(OPS):
            rows = np.flatnonzero((plan.tier == index) & (plan.op == code) & is_measured)
            if tier is not None and len(rows):
                result.append(_figures(tiers, index, op, rows, plan, record, due_ns))
    return result


def drive_figures(
    plan: Plan, record: Record, due_ns: Any, tiers: Sequence[Tier | None], is_measured: Any = True
) -> list[Figures]:
    """Return the same for each drive of the tiers that lie on several."""
    import numpy as np

    result = []
    for index, tier in enumerate(tiers):
        if isinstance(tier, SeveralDrives):
            drive_of = tier.drive_of[np.where(plan.tier == index, plan.object_id, 0)]
            for at, drive in enumerate(tier.drives):
                alone = [drive if i == index else None for i in range(len(tiers))]
                result += figures(plan, record, due_ns, alone, is_measured & (drive_of == at))
    return result


def _figures(
    tiers: Sequence[Tier | None], index: int, op: str, rows: Any, plan: Plan, record: Record, due_ns: Any
) -> Figures:
    tier = tiers[index]
    assert tier is not None, "only rows with a target are planned"
    outcome = record.outcome[rows]
    good = rows[outcome == OK]
    submitted, completed = record.submitted_ns[good], record.completed_ns[good]
    latency = completed - submitted
    span = int(completed.max() - submitted.min()) if len(good) else 0
    # The times of a tier without a model, where nothing moves, describe our own loop.
    is_timed = has_times(tier)
    is_rated = span > 0 and is_timed
    moved = int(plan.length[good].sum())
    return Figures(
        tier=tier.name,
        op=op,
        engine=tier.engine,
        is_simulated=tier.is_simulated,
        planned=len(rows),
        operations=len(good),
        errors=int(_is_failed(outcome).sum()),
        corrupt=int((outcome == CORRUPT).sum()),
        bytes=moved if is_timed else None,
        io_bytes=None if tier.is_simulated or op == Op.DELETE else int(io_bytes(plan, tiers, good).sum()),
        span_ns=span if len(good) else None,
        bandwidth_bytes_per_s=moved * NS_PER_S / span if is_rated and op != Op.DELETE else None,
        operations_per_s=len(good) * NS_PER_S / span if is_rated else None,
        in_flight_mean=float(latency.sum()) / span if is_rated else None,
        in_flight_max=_most_at_once(submitted, completed) if is_rated else None,
        latency=distribution(latency if is_timed else latency[:0]),
        response=None if due_ns is None else distribution((completed - due_ns[good]) if is_timed else latency[:0]),
        latency_per_mib=distribution(_per_mib(latency, plan.length[good], is_moved=is_timed and op != Op.DELETE)),
        lateness=None if due_ns is None else distribution(submitted - due_ns[good]),
    )


def _most_at_once(submitted: Any, completed: Any) -> int:
    """Return how many operations overlapped at most; one that ends as another starts does not overlap it."""
    import numpy as np

    ended = np.searchsorted(np.sort(completed), np.sort(submitted), side="right")
    return int((np.arange(1, len(submitted) + 1) - ended).max())


def _per_mib(latency: Any, length: Any, *, is_moved: bool) -> Any:
    has_bytes = (length > 0) & is_moved
    return (latency[has_bytes] * (MIB / length[has_bytes])).astype("int64")


def _is_failed(outcome: Any) -> Any:
    return (outcome == ERROR) | (outcome == SHORT) | (outcome == CORRUPT)


def summarize(
    plan: Plan,
    record: Record,
    due_ns: Any,
    tiers: Sequence[Tier | None],
    driven: Driven | None,
    *,
    queue_depth: int,
    io_bytes: int = 1 << 20,
    depth_because: str = "--queue-depth",
    moved: dict[str, DeviceIo] | None = None,
    skipped_rows: dict[str, int],
    absent_deletes: int,
    warmup: Warmup | None = None,
    asked: str | None = None,
    wall_ns: int | None = None,
) -> Summary:
    """Return the summary of a run; `driven` is None if it ended before its first operation, or is not known.

    `wall_ns` says how long the run was where `driven` cannot; `moved` what devices did meanwhile, by drive.
    """
    wall_ns = driven.wall_ns if driven else wall_ns
    is_measured: Any = True if warmup is None else warmup.is_measured(plan, record, due_ns)
    done = (record.outcome == OK) & is_measured
    left_out = None if warmup is None else warmup_facts(asked or "", is_measured, plan, record)
    # The warm-up's time is no time of the figures.
    span_ns = None if wall_ns is None else wall_ns - ((left_out.measured_from_ns if left_out else 0) or 0)
    judged = pace(record, due_ns, is_measured, plan=plan, driven=driven)
    failed = int(_is_failed(record.outcome).sum())
    busy = float((record.completed_ns[done] - record.submitted_ns[done]).sum())
    sent = int((record.submitted_ns != NOT_DONE).sum())
    how: dict[str, Any] = {"queue_depth": queue_depth, "io_bytes": io_bytes, "because": depth_because}
    found = verdict(plan, record, due_ns, tiers, driven, judged, is_measured, moved=moved or {}, **how)
    return Summary(
        verdict=f"{failed:,} of {sent:,} operations FAILED; {found.sentence}" if failed else found.sentence,
        judgement=found,
        wall_ns=wall_ns,
        operations=int(done.sum()),
        errors=failed,
        not_reached=len(record.submitted_ns) - sent,
        figures=figures(plan, record, due_ns, tiers, is_measured),
        drives=drive_figures(plan, record, due_ns, tiers, is_measured),
        pace=judged,
        in_flight_mean=busy / span_ns if span_ns else None,
        warmup=left_out,
        skipped_rows=skipped_rows,
        absent_deletes=absent_deletes,
        definitions=DEFINITIONS,
        generation=None if driven is None or not driven.wall_ns else _generation(driven, queue_depth),
    )


def _generation(driven: Driven, queue_depth: int) -> Generation:
    threads_ns = driven.wall_ns * driven.generation_threads
    return Generation(
        generation_ns=driven.generation_ns + driven.submitting_generation_ns,
        reserve_ns=driven.reserve_ns + driven.submitting_reserve_ns,
        threads=driven.generation_threads,
        share_of_threads=driven.generation_ns / threads_ns,
        reserve_share=driven.reserve_ns / threads_ns,
        starved_share=driven.starved_ns / (driven.wall_ns * queue_depth),
        writes_generated_in_flight=driven.writes_generated_in_flight,
        submitting_generation_ns=driven.submitting_generation_ns,
        submitting_reserve_ns=driven.submitting_reserve_ns,
        submitting_share=(driven.submitting_generation_ns + driven.submitting_reserve_ns) / driven.wall_ns,
    )
