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
COLUMNS = ("row", "op", "tier", "phase", "scheduled_ns", "submitted_ns", "completed_ns", "outcome")
"""Columns of the operations that are read again when the run is over."""
_NONE = np.iinfo(np.int64).max

DEFINITIONS = {
    "duration_ns": (
        "from the first submission of a save or restore to its last completion, its marker included"
    ),
    "stall_ns": (
        "how long training waits for it if it does nothing meanwhile: from when it was due, in a"
        " closed loop from its first submission, to its last completion"
    ),
    "bandwidth_bytes_per_s": "object bytes / duration_ns",
    "during": (
        "operations of others that were under way at any moment of a save or restore, in an open"
        " loop from when they were due; without: all others"
    ),
}


class Checkpoints:
    """The saves and restores of a run: the rows of a request, or without one those of a moment."""

    def __init__(self, *, is_open_loop: bool) -> None:
        """Know none."""
        self._known: dict[int, Checkpoint] = {}
        self._is_open_loop = is_open_loop

    def take(self, batch: pa.RecordBatch, part: RunPart, first_row: int) -> None:
        """Take the rows of `part` that save or restore.

        `batch` has the trace's rows from `first_row` on.
        """
        if not part.rows["is_bulk"].any():
            return
        rows = part.rows[part.rows["is_bulk"]]
        at = rows["trace_row"] - first_row
        request, phase, ts_ns = (
            numbers(batch.column(name))[at] for name in ("request_id", "phase", "ts_ns")
        )
        keys = np.where(request >= 0, request, -2 - ts_ns)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        for number in np.argsort(first).tolist():
            here, is_own = int(first[number]), group == number
            own, key = rows[is_own], int(keys[here])
            done, sent = (
                own[own["outcome"] == OK],
                own["submitted_ns"][own["submitted_ns"] != NOT_DONE],
            )
            found = checkpoint(
                kind=_KINDS[int(phase[here])],
                request_id=int(request[here]) if request[here] >= 0 else None,
                ts_ns=int(ts_ns[is_own].min()),
                scheduled_ns=int(own["due_ns"].min()) if self._is_open_loop else None,
                submitted_ns=int(sent.min()) if len(sent) else None,
                completed_ns=int(own["completed_ns"].max()) if len(done) == len(own) else None,
                bytes=int(done["length_bytes"].sum()),
                operations=len(done),
                unfinished=len(own) - len(done),
            )
            self._known[key] = joined([self._known[key], found]) if key in self._known else found

    def figures(
        self, setting: Setting, ops: Path, *, last_ns: int, wall_ns: int | None
    ) -> CheckpointFigures | None:
        """Return the figures of the checkpoints that the run saved and restored.

        None if no row on a tier with a target saves or restores one.

        `ops` is where its operations are written, all of them; `last_ns` the last moment that was
        measured.
        """
        if not self._known:
            return None
        each = list(self._known.values())
        spans = spans_of(each, last_ns)
        tiers = [
            tier.name if tier is not None and tier.has_times else None for tier in setting.tiers
        ]
        limit, is_open = (
            EXACT_VALUES // (2 * len(tiers) * len(_OPS)),
            setting.pacer.speed is not None,
        )
        beside = times_beside([OpsFile(ops, setting.warmup)], spans, tiers, limit, is_open=is_open)
        return figures_of(each, spans, wall_ns, beside)


def figures_of(
    each: list[Checkpoint], spans: np.ndarray, wall_ns: int | None, beside: list[Beside]
) -> CheckpointFigures:
    """Return the figures of checkpoints, which were under way in `spans`, in a run so long."""
    stalls, kinds = [found.stall_ns for found in each if found.stall_ns is not None], []
    for kind in ("save", "restore"):
        of_kind = [found for found in each if found.kind == kind]
        whole = [found for found in of_kind if found.duration_ns is not None]
        durations = np.array([found.duration_ns for found in whole], np.int64)
        total, moved = int(durations.sum()), sum(found.bytes for found in whole)
        if of_kind:
            kinds.append(
                CheckpointKind(
                    kind=kind,
                    count=len(whole),
                    unfinished=len(of_kind) - len(whole),
                    bytes=moved,
                    duration=distribution_of(durations),
                    bandwidth_bytes_per_s=per_second(moved, total),
                    stall_ns=sum(found.stall_ns or 0 for found in whole) if whole else None,
                )
            )
    return CheckpointFigures(
        each=each,
        kinds=kinds,
        busy_ns=int((spans[1] - spans[0]).sum()),
        stall_share=sum(stalls) / wall_ns if wall_ns and stalls else None,
        beside=beside,
        definitions=DEFINITIONS,
    )


def checkpoint(**known: Any) -> Checkpoint:
    """Return a save or restore with the fields in `known`, its duration, and how long training
    waited.
    """
    due_ns, submitted_ns, completed_ns = (
        known[f"{name}_ns"] for name in ("scheduled", "submitted", "completed")
    )
    start = submitted_ns if due_ns is None else due_ns
    duration, stall = (
        None if None in (since, completed_ns) else completed_ns - since
        for since in (submitted_ns, start)
    )
    rate = per_second(known["bytes"], duration)
    return Checkpoint(**known, duration_ns=duration, stall_ns=stall, bandwidth_bytes_per_s=rate)


def joined(parts: Sequence[Checkpoint]) -> Checkpoint:
    """Return a save or restore of which each of `parts` knows some rows.

    Of a batch, or a rank. The last ends it.
    """
    firsts = ("ts_ns", "scheduled_ns", "submitted_ns")
    ends = [part.completed_ns for part in parts]
    return checkpoint(
        kind=parts[0].kind,
        request_id=parts[0].request_id,
        **{name: min_known([getattr(part, name) for part in parts]) for name in firsts},
        completed_ns=None if None in ends else max_known(ends),
        **sum_fields(parts, "bytes", "operations", "unfinished"),
    )


def spans_of(each: list[Checkpoint], last: int) -> np.ndarray:
    """Return int64 (2, spans).

    When a checkpoint was under way, from and to, apart from each other and in order.

    One that never ended lasted until `last`, the end of the run.
    """
    pairs = sorted(
        (c.submitted_ns, last if c.completed_ns is None else c.completed_ns)
        for c in each
        if c.submitted_ns is not None
    )
    joined: list[list[int]] = []
    for start, end in pairs:
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return np.array(joined, np.int64).reshape(-1, 2).T


def times_beside(
    files: Sequence[OpsFile],
    spans: np.ndarray,
    tiers: Sequence[str | None],
    limit: int,
    *,
    is_open: bool,
) -> list[Beside]:
    """Return how long operations of others took while a checkpoint was under way, and otherwise, by
    tier and kind.

    When checkpoints are under way, in `spans`, is known at the end, so operations are read again.
    Of `tiers` those with a name are told of; up to `limit` times of a kind are kept one by one.
    """
    times = TimeDistributions(2 * len(tiers) * len(_OPS), limit)
    is_told = np.array([tier is not None for tier in tiers])
    for file in files:
        for batch in open_table(file.path, OPS).batches(COLUMNS):
            rows = {name: numbers(batch.column(name)) for name in COLUMNS}
            begun = rows["scheduled_ns" if is_open else "submitted_ns"]
            which = (
                (rows["outcome"] == OK)
                & (rows["op"] < len(_OPS))
                & ~IS_BULK[rows["phase"]]
                & is_told[rows["tier"]]
            )
            if file.warmup is not None:
                which &= file.warmup.counts(rows["row"], begun)
            start = begun[which] + file.late_ns
            end = rows["completed_ns"][which] + file.late_ns
            following = np.searchsorted(spans[1], start, side="right")
            is_during = np.append(spans[0], _NONE)[following] < end
            key = (rows["tier"][which] * len(_OPS) + rows["op"][which]) * 2 + ~is_during
            for at in np.unique(key).tolist():
                times.add((end - start)[key == at], at)
    return [
        Beside(
            tier=tier,
            op=op,
            measure="response" if is_open else "latency",
            during=times.distribution(at),
            without=times.distribution(at + 1),
        )
        for index, tier in enumerate(tiers)
        if tier is not None
        for code, op in enumerate(_OPS)
        if times.count(at := (index * len(_OPS) + code) * 2, at + 1)
    ]
