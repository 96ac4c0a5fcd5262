"""Durations of checkpoint saves and restores, and their effect on other operations meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvreplay.engine.setting import Setting
from kvreplay.plan.row_ring import NOT_DONE, OK
from kvreplay.plan.window import IS_BULK
from kvreplay.result.figures import max_known, min_known, sum_fields
from kvreplay.result.recording import RunPart
from kvtrace.core import pa
from kvtrace.core.metrics.distribution import EXACT_VALUES, TimeDistributions, distribution_of
from kvtrace.core.metrics.ops_table import OpsFile
from kvtrace.core.run.figures import Beside, Checkpoint, CheckpointFigures, CheckpointKind
from kvtrace.core.schema import OPS, TRACE, Op, Phase, enum_code, numbers
from kvtrace.core.tables import open_table
from kvtrace.core.units import per_second

_OPS = (Op.READ.value, Op.WRITE.value)
_KINDS = {enum_code(TRACE, "phase", phase): phase.value for phase in (Phase.SAVE, Phase.RESTORE)}
COLUMNS = ("op", "tier", "phase", "scheduled_ns", "submitted_ns", "completed_ns", "outcome")
"""Columns of the operations that are read again when the run is over."""
_NONE = np.iinfo(np.int64).max

DEFINITIONS = {
    "duration_ns": (
        "from the first submission of a save or restore to its last completion, its marker included"
    ),
    "stall_ns": (
        "time for which training waits if it does nothing meanwhile: from its due time, in a closed"
        " loop from its first submission, to its last completion"
    ),
    "bandwidth_bytes_per_s": "object bytes / duration_ns",
    "during": (
        "other operations that were in progress at any time of a save or restore, in an open loop"
        " from their due time on; without: all others"
    ),
}


class Checkpoints:
    """The saves and restores of a run: rows of one request, or without one, of one trace time."""

    def __init__(self, *, is_open_loop: bool) -> None:
        """Start without checkpoints."""
        self._by_key: dict[int, Checkpoint] = {}
        self._is_open_loop = is_open_loop

    def take(self, batch: pa.RecordBatch, run_part: RunPart, first_row: int) -> None:
        """Take the rows of `run_part` that save or restore.

        `batch` has the trace's rows from `first_row` on.
        """
        if not run_part.rows["is_bulk"].any():
            return
        rows = run_part.rows[run_part.rows["is_bulk"]]
        indices = rows["trace_row"] - first_row
        request, phase, ts_ns = (
            numbers(batch.column(name))[indices] for name in ("request_id", "phase", "ts_ns")
        )
        keys = np.where(request >= 0, request, -2 - ts_ns)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        for number in np.argsort(first).tolist():
            first_index, is_member = int(first[number]), group == number
            members, key = rows[is_member], int(keys[first_index])
            completed = members[members["outcome"] == OK]
            submitted_ns = members["submitted_ns"][members["submitted_ns"] != NOT_DONE]
            is_complete = len(completed) == len(members)
            batch_checkpoint = checkpoint(
                kind=_KINDS[int(phase[first_index])],
                request_id=int(request[first_index]) if request[first_index] >= 0 else None,
                ts_ns=int(ts_ns[is_member].min()),
                scheduled_ns=int(members["due_ns"].min()) if self._is_open_loop else None,
                submitted_ns=int(submitted_ns.min()) if len(submitted_ns) else None,
                completed_ns=int(members["completed_ns"].max()) if is_complete else None,
                bytes=int(completed["length_bytes"].sum()),
                operations=len(completed),
                unfinished=len(members) - len(completed),
            )
            if key in self._by_key:
                batch_checkpoint = joined([self._by_key[key], batch_checkpoint])
            self._by_key[key] = batch_checkpoint

    def figures(
        self, setting: Setting, ops: Path, *, last_ns: int, wall_ns: int | None
    ) -> CheckpointFigures | None:
        """Return the figures of the checkpoints that the run saved and restored.

        None if no row on a tier with a target saves or restores one.

        `ops` is the complete table of its operations; `last_ns` is the last measured time.
        """
        if not self._by_key:
            return None
        checkpoints = list(self._by_key.values())
        spans = spans_of(checkpoints, last_ns)
        tiers = [
            tier.name if tier is not None and tier.has_times else None for tier in setting.tiers
        ]
        limit = EXACT_VALUES // (2 * len(tiers) * len(_OPS))
        is_open = setting.pacer.speed is not None
        beside = times_beside([OpsFile(ops, setting.warmup)], spans, tiers, limit, is_open=is_open)
        return figures_of(checkpoints, spans, wall_ns, beside)


def figures_of(
    checkpoints: list[Checkpoint], spans: np.ndarray, wall_ns: int | None, beside: list[Beside]
) -> CheckpointFigures:
    """Return the figures of checkpoints in a run that took `wall_ns`.

    `spans` are the times in which a checkpoint was in progress.
    """
    stalls = [item.stall_ns for item in checkpoints if item.stall_ns is not None]
    kinds = []
    for kind in ("save", "restore"):
        of_kind = [item for item in checkpoints if item.kind == kind]
        complete = [item for item in of_kind if item.duration_ns is not None]
        durations = np.array([item.duration_ns for item in complete], np.int64)
        total_ns, nbytes = int(durations.sum()), sum(item.bytes for item in complete)
        if of_kind:
            kinds.append(
                CheckpointKind(
                    kind=kind,
                    count=len(complete),
                    unfinished=len(of_kind) - len(complete),
                    bytes=nbytes,
                    duration=distribution_of(durations),
                    bandwidth_bytes_per_s=per_second(nbytes, total_ns),
                    stall_ns=sum(item.stall_ns or 0 for item in complete) if complete else None,
                )
            )
    return CheckpointFigures(
        each=checkpoints,
        kinds=kinds,
        busy_ns=int((spans[1] - spans[0]).sum()),
        stall_share=sum(stalls) / wall_ns if wall_ns and stalls else None,
        beside=beside,
        definitions=DEFINITIONS,
    )


def checkpoint(**fields: Any) -> Checkpoint:
    """Return a save or restore with `fields`, its duration, and the time that training waited."""
    due_ns, submitted_ns, completed_ns = (
        fields[f"{name}_ns"] for name in ("scheduled", "submitted", "completed")
    )
    start = submitted_ns if due_ns is None else due_ns
    duration, stall = (
        None if None in (since, completed_ns) else completed_ns - since
        for since in (submitted_ns, start)
    )
    rate = per_second(fields["bytes"], duration)
    return Checkpoint(**fields, duration_ns=duration, stall_ns=stall, bandwidth_bytes_per_s=rate)


def joined(pieces: Sequence[Checkpoint]) -> Checkpoint:
    """Join the pieces of one save or restore.

    Each piece has the rows of one batch, or of one rank. The checkpoint ends with its last piece.
    """
    firsts = ("ts_ns", "scheduled_ns", "submitted_ns")
    ends = [piece.completed_ns for piece in pieces]
    return checkpoint(
        kind=pieces[0].kind,
        request_id=pieces[0].request_id,
        **{name: min_known([getattr(piece, name) for piece in pieces]) for name in firsts},
        completed_ns=None if None in ends else max_known(ends),
        **sum_fields(pieces, "bytes", "operations", "unfinished"),
    )


def spans_of(checkpoints: list[Checkpoint], end_ns: int) -> np.ndarray:
    """Return the times in which a checkpoint was in progress: int64 (2, spans), starts and ends.

    The spans are disjoint and in order. A checkpoint that never ended lasts until `end_ns`, the end
    of the run.
    """
    pairs = sorted(
        (item.submitted_ns, end_ns if item.completed_ns is None else item.completed_ns)
        for item in checkpoints
        if item.submitted_ns is not None
    )
    spans: list[list[int]] = []
    for start, end in pairs:
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([start, end])
    return np.array(spans, np.int64).reshape(-1, 2).T


def times_beside(
    files: Sequence[OpsFile],
    spans: np.ndarray,
    tiers: Sequence[str | None],
    limit: int,
    *,
    is_open: bool,
) -> list[Beside]:
    """Return the times of other operations while a checkpoint was in progress, and otherwise.

    They are given by tier and kind. `spans` are known only at the end of the run, so operations are
    read again from `files`. Tiers that are None are left out. Up to `limit` times of each kind are
    exact.
    """
    times = TimeDistributions(2 * len(tiers) * len(_OPS), limit)
    is_reported = np.array([tier is not None for tier in tiers])
    for file in files:
        rows_read = 0
        for batch in open_table(file.path, OPS).batches(COLUMNS):
            rows = {name: numbers(batch.column(name)) for name in COLUMNS}
            begun = rows["scheduled_ns" if is_open else "submitted_ns"]
            is_counted = (
                (rows["outcome"] == OK)
                & (rows["op"] < len(_OPS))
                & ~IS_BULK[rows["phase"]]
                & is_reported[rows["tier"]]
            )
            if file.warmup is not None:
                positions = np.arange(rows_read, rows_read + batch.num_rows)
                is_counted &= file.warmup.counts(positions, begun)
            rows_read += batch.num_rows
            start = begun[is_counted] + file.late_ns
            end = rows["completed_ns"][is_counted] + file.late_ns
            following = np.searchsorted(spans[1], start, side="right")
            is_during = np.append(spans[0], _NONE)[following] < end
            key = (rows["tier"][is_counted] * len(_OPS) + rows["op"][is_counted]) * 2 + ~is_during
            for slot in np.unique(key).tolist():
                times.add((end - start)[key == slot], slot)
    return [
        Beside(
            tier=tier,
            op=op,
            measure="response" if is_open else "latency",
            during=times.distribution(slot),
            without=times.distribution(slot + 1),
        )
        for index, tier in enumerate(tiers)
        if tier is not None
        for code, op in enumerate(_OPS)
        if times.count(slot := (index * len(_OPS) + code) * 2, slot + 1)
    ]
