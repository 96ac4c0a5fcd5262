"""What storage did for each request: the table `served`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvreplay.engines import NOT_DONE, OK
from kvreplay.plan import READ, WRITE
from kvreplay.residency import running_max
from kvtrace.core.schema import SERVED, TRACE, Phase, arrow_schema, enum_code

if TYPE_CHECKING:
    import pyarrow as pa

    from kvreplay.engines import Record
    from kvreplay.manifest import Setting

_LOADS = (Phase.LOAD, Phase.RETRIEVE)


def served_batch(setting: Setting, record: Record, due_ns: Any) -> pa.RecordBatch:
    """Return one row a request of the window, in order of request_id; simulated tiers count as not replayed."""
    import numpy as np
    import pyarrow as pa

    plan, rows = setting.window.plan, setting.window.rows
    request, phase = _columns(setting, rows)
    moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])[plan.tier]
    asked = np.unique(request[request >= 0])
    group = np.searchsorted(asked, request)
    planned = np.flatnonzero(moves & (request[plan.row] >= 0))
    done = planned[record.outcome[planned] == OK]
    sent = planned[record.submitted_ns[planned] != NOT_DONE]
    of = group[plan.row]
    count = len(asked)

    def total(part: Any, weights: Any = None) -> Any:
        return np.bincount(of[part], None if weights is None else weights[part], count).astype(np.int64)

    def least(part: Any, values: Any) -> Any:
        low = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(low, of[part], values[part])
        return np.where(low == np.iinfo(np.int64).max, NOT_DONE, low)

    latest = np.full(count, NOT_DONE)
    np.maximum.at(latest, of[done], record.completed_ns[done])
    loads = [enum_code(TRACE, "phase", p) for p in _LOADS]
    is_load = np.isin(phase[plan.row], loads) & (plan.op == READ)
    reads, writes, loaded = done[plan.op[done] == READ], done[plan.op[done] == WRITE], done[is_load[done]]
    in_window = np.bincount(group[request >= 0], minlength=count)
    values = {
        "request_id": asked,
        "scheduled_ns": np.full(count, NOT_DONE) if due_ns is None else least(planned, due_ns),
        "submitted_ns": least(sent, record.submitted_ns), "completed_ns": latest,
        "storage_ns": np.where(total(done) > 0, _busy(of, done, record, count), NOT_DONE),
        "operations": total(done), "unfinished": total(planned) - total(done),
        "not_replayed": in_window - total(planned),
        "hits": total(loaded), "hit_bytes": total(loaded, plan.length),
        "read_bytes": total(reads, plan.length), "written_bytes": total(writes, plan.length),
    }  # fmt: skip
    arrays = [
        pa.array(values[c.name], pa.int64(), mask=values[c.name] == NOT_DONE if c.nullable else None)
        for c in SERVED.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SERVED))


def _columns(setting: Setting, rows: int) -> tuple[Any, Any]:
    """Return request id (-1: none) and code of the phase, for every row of the window."""
    import numpy as np

    request, phase, at = np.full(rows, -1, np.int64), np.zeros(rows, np.int8), 0
    for batch in setting.reader.batches(("request_id", "phase")):
        take = min(batch.num_rows, rows - at)
        request[at : at + take] = batch.column("request_id").fill_null(-1).to_numpy()[:take]
        phase[at : at + take] = batch.column("phase").indices.to_numpy()[:take]
        at += take
        if at >= rows:
            break
    return request, phase


def _busy(of: Any, done: Any, record: Record, count: int) -> Any:
    """Return for how long at least one operation of each request was in flight: overlaps once, waits not."""
    import numpy as np

    order = done[np.lexsort((record.submitted_ns[done], of[done]))]
    group, start, end = of[order], record.submitted_ns[order], record.completed_ns[order]
    if not len(order):
        return np.zeros(count, np.int64)
    segment = np.cumsum(np.append(False, group[1:] != group[:-1]))
    reached = running_max(end, segment)
    before = np.append(-1, np.where(group[1:] == group[:-1], reached[:-1], -1))
    busy = np.maximum(0, end - np.maximum(start, before))
    # Nanoseconds of a request fit a float's 53 bits for three months.
    return np.bincount(group, busy, count).astype(np.int64)
