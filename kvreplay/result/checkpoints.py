"""How long saves and restores of checkpoints took, and what they did to the operations of others meanwhile."""

from __future__ import annotations

from typing import Any

from kvreplay.config.setting import Setting
from kvreplay.engine.job import NOT_DONE, OK, Record
from kvreplay.plan.plan import DELETE
from kvreplay.result.pace import distribution
from kvreplay.tiers.tier import has_times
from kvtrace.core.run.checkpoints import DEFINITIONS, Beside, Checkpoint, CheckpointFigures, CheckpointKind
from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.core.units import NS_PER_S

_OPS = (Op.READ.value, Op.WRITE.value)
_COLUMNS = ("request_id", "phase")
_SAVE = enum_code(TRACE, "phase", Phase.SAVE)


def checkpoint_figures(setting: Setting, record: Record, due_ns: Any, wall_ns: int | None) -> CheckpointFigures | None:
    """Return what the run did for checkpoints; None if no row on a tier with a target saves or restores one."""
    plan = setting.window.plan
    if plan.bulk is None:
        return None
    each = _each(setting, record, due_ns)
    spans = spans_of(each, max(int(record.completed_ns.max(initial=0)), int(record.submitted_ns.max(initial=0))))
    return figures_of(each, spans, wall_ns, _beside(setting, record, due_ns, spans))


def figures_of(each: list[Checkpoint], spans: Any, wall_ns: int | None, beside: list[Beside]) -> CheckpointFigures:
    """Return the figures of checkpoints, which were under way in `spans`, in a run so long."""
    stalls = [found.stall_ns for found in each if found.stall_ns is not None]
    return CheckpointFigures(
        each=each,
        kinds=[_kind(kind, of) for kind in ("save", "restore") if (of := [c for c in each if c.kind == kind])],
        busy_ns=int((spans[1] - spans[0]).sum()),
        stall_share=sum(stalls) / wall_ns if wall_ns and stalls else None,
        beside=beside,
        definitions=DEFINITIONS,
    )


def users_requests(setting: Setting, request_id: Any) -> Any:
    """Return bool for each of `request_id`: whether it is a user's, and no checkpoint."""
    import numpy as np

    plan = setting.window.plan
    if plan.bulk is None:
        return np.ones(len(request_id), bool)
    request = _columns(setting)[0][plan.row[np.flatnonzero(plan.bulk)]]
    return ~np.isin(request_id, request)


def _columns(setting: Setting) -> tuple[Any, Any]:
    """Return request (-1: none) and phase of each of the window's rows."""
    import numpy as np

    rows = setting.window.rows
    request, phase, at = np.full(rows, -1, np.int64), np.zeros(rows, np.int8), 0
    for batch in setting.reader.batches(_COLUMNS):
        count = min(batch.num_rows, rows - at)
        request[at : at + count] = batch.column("request_id").fill_null(-1).to_numpy()[:count]
        phase[at : at + count] = batch.column("phase").indices.to_numpy()[:count]
        at += count
        if at == rows:
            break
    return request, phase


def _each(setting: Setting, record: Record, due_ns: Any) -> list[Checkpoint]:
    """Return the saves and restores: the rows of a request, or without one those of a moment."""
    import numpy as np

    plan = setting.window.plan
    rows = np.flatnonzero(plan.bulk)
    request, phase = (column[plan.row[rows]] for column in _columns(setting))
    key = np.where(request >= 0, request, -2 - plan.ts_ns[rows])
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    found = []
    for number in np.argsort(first).tolist():
        own = rows[group == number]
        at = int(first[number])
        done = own[record.outcome[own] == OK]
        sent = record.submitted_ns[own]
        is_whole = len(done) == len(own)
        due = None if due_ns is None else int(due_ns[own].min())
        submitted = int(sent[sent != NOT_DONE].min()) if (sent != NOT_DONE).any() else None
        completed = int(record.completed_ns[own].max()) if is_whole else None
        found.append(
            checkpoint(
                Phase.SAVE.value if phase[at] == _SAVE else Phase.RESTORE.value,
                int(request[at]) if request[at] >= 0 else None,
                int(plan.ts_ns[own].min()),
                due,
                submitted,
                completed,
                int(plan.length[done].sum()),
                len(done),
                len(own) - len(done),
            )
        )
    return found


def checkpoint(
    kind: str,
    request_id: int | None,
    ts_ns: int | None,
    due_ns: int | None,
    submitted_ns: int | None,
    completed_ns: int | None,
    moved: int,
    operations: int,
    unfinished: int,
) -> Checkpoint:
    """Return a save or restore, and how long it took and training waited for it."""
    duration = completed_ns - submitted_ns if completed_ns is not None and submitted_ns is not None else None
    start = submitted_ns if due_ns is None else due_ns
    return Checkpoint(
        kind=kind,
        request_id=request_id,
        ts_ns=ts_ns,
        scheduled_ns=due_ns,
        submitted_ns=submitted_ns,
        completed_ns=completed_ns,
        duration_ns=duration,
        stall_ns=completed_ns - start if completed_ns is not None and start is not None else None,
        bytes=moved,
        bandwidth_bytes_per_s=moved * NS_PER_S / duration if duration else None,
        operations=operations,
        unfinished=unfinished,
    )


def _kind(kind: str, each: list[Checkpoint]) -> CheckpointKind:
    import numpy as np

    whole = [found for found in each if found.duration_ns is not None]
    durations = np.array([found.duration_ns for found in whole], np.int64)
    total, moved = int(durations.sum()), sum(found.bytes for found in whole)
    return CheckpointKind(
        kind=kind,
        count=len(whole),
        unfinished=len(each) - len(whole),
        bytes=moved,
        duration=distribution(durations),
        bandwidth_bytes_per_s=moved * NS_PER_S / total if total else None,
        stall_ns=sum(found.stall_ns or 0 for found in whole) if whole else None,
    )


def spans_of(each: list[Checkpoint], last: int) -> Any:
    """Return int64 (2, spans): when a checkpoint was under way, from and to, apart from each other and in order.

    One that never ended lasted until `last`, the end of the run.
    """
    import numpy as np

    pairs = sorted(
        (c.submitted_ns, last if c.completed_ns is None else c.completed_ns) for c in each if c.submitted_ns is not None
    )
    joined: list[list[int]] = []
    for start, end in pairs:
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return np.array(joined, np.int64).reshape(-1, 2).T


def is_beside(spans: Any, start: Any, end: Any) -> Any:
    """Return bool an operation: whether it was under way, from `start` to `end`, at any moment of `spans`."""
    import numpy as np

    at = np.searchsorted(spans[1], start, side="right")
    return np.append(spans[0], np.iinfo(np.int64).max)[at] < end


def _beside(setting: Setting, record: Record, due_ns: Any, spans: Any) -> list[Beside]:
    import numpy as np

    plan, warmup = setting.window.plan, setting.warmup
    others = ~plan.bulk & (plan.op != DELETE) & (record.outcome == OK)
    if warmup is not None:
        others &= warmup.is_measured(plan, record, due_ns)
    found = []
    for index, tier in enumerate(setting.tiers):
        for code, op in enumerate(_OPS):
            rows = np.flatnonzero(others & (plan.tier == index) & (plan.op == code))
            if tier is None or not len(rows) or not has_times(tier):
                continue
            start, end = (record.submitted_ns if due_ns is None else due_ns)[rows], record.completed_ns[rows]
            is_during, times = is_beside(spans, start, end), end - start
            found.append(
                Beside(
                    tier=tier.name,
                    op=op,
                    measure="latency" if due_ns is None else "response",
                    during=distribution(times[is_during]),
                    without=distribution(times[~is_during]),
                )
            )
    return found
