"""The storage time of each request: the table `served`, which a run holds as requests.parquet.

A replay computes nothing. The time to the first token is what storage took in the replay, plus the computing time
that the trace models: each token of the prompt that the trace did not load takes what its preset says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvreplay.config.setting import Setting
from kvreplay.engine.job import NOT_DONE, OK, Record
from kvreplay.plan.plan import READ, WRITE
from kvreplay.plan.requests import NO_QOS, Asked
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import SERVED, TRACE, Phase, arrow_schema, enum_array, enum_code

if TYPE_CHECKING:
    import pyarrow as pa

_LOADS = (Phase.LOAD, Phase.RETRIEVE)
_COLUMNS = ("request_id", "phase", "op", "length_bytes")


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests of the window, and which of them each of its rows serves."""

    ids: Any
    """int64, rising."""
    group: Any
    """int64 a row: index into `ids`; meaningless where `request` is negative."""
    request: Any
    """int64 a row: -1 for background work."""
    is_load: Any
    """bool a row: reads cached KV for its request."""
    length: Any

    def count(self, rows: Any) -> Any:
        """Return int64 a request: how many of `rows` are its."""
        import numpy as np

        return np.bincount(self.group[rows], minlength=len(self.ids))

    def total(self, rows: Any) -> Any:
        """Return int64 a request: the bytes of those of `rows` that are its."""
        import numpy as np

        return np.bincount(self.group[rows], self.length[rows], len(self.ids)).astype(np.int64)

    def least(self, rows: Any, values: Any) -> Any:
        """Return int64 a request: the least of `values`, one for each of `rows`; -1 without a row."""
        import numpy as np

        low = np.full(len(self.ids), np.iinfo(np.int64).max)
        np.minimum.at(low, self.group[rows], values)
        return np.where(low == np.iinfo(np.int64).max, NOT_DONE, low)

    def greatest(self, rows: Any, values: Any) -> Any:
        """Return int64 a request: the greatest of `values`, one for each of `rows`; -1 without a row."""
        import numpy as np

        high = np.full(len(self.ids), NOT_DONE)
        np.maximum.at(high, self.group[rows], values)
        return high


def served_batch(setting: Setting, record: Record, due_ns: Any) -> pa.RecordBatch:
    """Return one row a request of the window, in order of request_id; simulated tiers count as not replayed."""
    import numpy as np
    import pyarrow as pa

    plan = setting.window.plan
    requests = _requests(setting)
    moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])[plan.tier]
    planned = np.flatnonzero(moves & (requests.request[plan.row] >= 0))
    done = planned[record.outcome[planned] == OK]
    sent = planned[record.submitted_ns[planned] != NOT_DONE]
    row = plan.row
    reads, writes = done[plan.op[done] == READ], done[plan.op[done] == WRITE]
    loaded = done[requests.is_load[row[done]]]
    in_window = requests.count(np.flatnonzero(requests.request >= 0))
    operations, count = requests.count(row[done]), len(requests.ids)
    busy = _busy(requests.group[row], done, record.submitted_ns, record.completed_ns, count)
    values = {
        "request_id": requests.ids,
        "scheduled_ns": np.full(count, NOT_DONE) if due_ns is None else requests.least(row[planned], due_ns[planned]),
        "submitted_ns": requests.least(row[sent], record.submitted_ns[sent]),
        "completed_ns": requests.greatest(row[done], record.completed_ns[done]),
        "storage_ns": np.where(operations > 0, busy, NOT_DONE),
        "first_token_ns": _first_token_ns(setting, requests, record, due_ns),
        "operations": operations,
        "unfinished": requests.count(row[planned]) - operations,
        "not_replayed": in_window - requests.count(row[planned]),
        "hits": requests.count(row[loaded]),
        "hit_bytes": requests.total(row[loaded]),
        "read_bytes": requests.total(row[reads]),
        "written_bytes": requests.total(row[writes]),
    }
    arrays = [
        _qos(setting, requests)
        if c.name == "qos"
        else pa.array(values[c.name], pa.int64(), mask=values[c.name] == NOT_DONE if c.nullable else None)
        for c in SERVED.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SERVED))


def _requests(setting: Setting) -> _Requests:
    import numpy as np

    rows = setting.window.rows
    request, length, is_load = np.full(rows, -1, np.int64), np.zeros(rows, np.int64), np.zeros(rows, bool)
    loads = [enum_code(TRACE, "phase", p) for p in _LOADS]
    at = 0
    for batch in setting.reader.batches(_COLUMNS):
        take = min(batch.num_rows, rows - at)
        part = slice(at, at + take)
        request[part] = batch.column("request_id").fill_null(-1).to_numpy()[:take]
        length[part] = batch.column("length_bytes").to_numpy()[:take]
        codes = [batch.column(name).indices.to_numpy()[:take] for name in ("phase", "op")]
        is_load[part] = np.isin(codes[0], loads) & (codes[1] == READ) & (request[part] >= 0)
        at += take
        if at >= rows:
            break
    ids = np.unique(request[request >= 0])
    return _Requests(ids, np.searchsorted(ids, request), request, is_load, length)


def _qos(setting: Setting, requests: _Requests) -> pa.DictionaryArray:
    import numpy as np

    if setting.asked is None or not len(setting.asked.request_id):
        codes = np.full(len(requests.ids), NO_QOS, np.int8)
    else:
        at = setting.asked.places(requests.ids)
        codes = np.where(at < 0, NO_QOS, setting.asked.qos[at]).astype(np.int8)
    return enum_array(SERVED, "qos", codes, codes == NO_QOS)


def _first_token_ns(setting: Setting, requests: _Requests, record: Record, due_ns: Any) -> Any:
    """Return int64 a request: the time to its first token; -1 where it is not modelled or a load is missing."""
    import numpy as np

    meta, asked, plan = setting.reader.meta, setting.asked, setting.window.plan
    if asked is None or not_modelled(meta, asked) is not None or not len(asked.request_id):
        return np.full(len(requests.ids), NOT_DONE)
    wanted = np.flatnonzero(requests.is_load)
    planned = np.flatnonzero(requests.is_load[plan.row])
    done = planned[record.outcome[planned] == OK]
    loads = requests.count(wanted)
    at = asked.places(requests.ids)
    if due_ns is None:
        start = requests.least(plan.row[done], record.submitted_ns[done])
    else:
        start = setting.pacer.due_ns(asked.arrival_ns[at])
    end = requests.greatest(plan.row[done], record.completed_ns[done])
    storage = np.where(loads > 0, end - start, 0)
    compute = compute_ns(meta, asked.input_tokens[at], loads, requests.total(wanted))
    is_known = (at >= 0) & (requests.count(plan.row[done]) == loads)
    if not setting.window.is_whole and len(wanted) and wanted[-1] == setting.window.rows - 1:
        # The window may end within this request's loads.
        is_known &= requests.ids != requests.request[-1]
    return np.where(is_known, storage + compute, NOT_DONE)


def response_ns(setting: Setting, record: Record, due_ns: Any) -> Any:
    """Return int64 a request: for how long at least one of its operations was due and had not completed."""
    import numpy as np

    plan, requests = setting.window.plan, _requests(setting)
    moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])[plan.tier]
    done = np.flatnonzero(moves & (requests.request[plan.row] >= 0) & (record.outcome == OK))
    return _busy(requests.group[plan.row], done, due_ns, record.completed_ns, len(requests.ids))


def _busy(of: Any, done: Any, starts: Any, ends: Any, count: int) -> Any:
    """Return for how long at least one operation of each request was between its start and end: overlaps once."""
    import numpy as np

    order = done[np.lexsort((starts[done], of[done]))]
    group, start, end = of[order], starts[order], ends[order]
    if not len(order):
        return np.zeros(count, np.int64)
    segment = np.cumsum(np.append(False, group[1:] != group[:-1]))
    reached = _running_max(end, segment)
    before = np.append(-1, np.where(group[1:] == group[:-1], reached[:-1], -1))
    busy = np.maximum(0, end - np.maximum(start, before))
    # Nanoseconds of a request fit a float's 53 bits for three months.
    return np.bincount(group, busy, count).astype(np.int64)


def _running_max(values: Any, segment: Any) -> Any:
    """Return the running maximum of `values`, starting anew in each `segment`."""
    import numpy as np

    # Ranks instead of values, so that adding the segment cannot overflow.
    ladder, rank = np.unique(values, return_inverse=True)
    step = len(ladder)
    return ladder[np.maximum.accumulate(rank + segment * step) - segment * step]


TTFT_DEFINITION = (
    "the loads of a request, from its arrival (closed loop: from its first load's submission) to the last completion, "
    "as replayed, + tokens that were not loaded * prefill_ns_per_token of the trace"
)
NO_REQUESTS = "name the requests table with --requests (kvtrace gen --requests-out writes it)"
NO_RATE = "the trace models no computing time (kvtrace gen --set prefill_ns_per_token=50000)"


def not_modelled(meta: Metadata, asked: Asked | None) -> str | None:
    """Return why there is no time to the first token; None if there is."""
    if not _prefill_ns(meta):
        return NO_RATE
    return NO_REQUESTS if asked is None else None


def _prefill_ns(meta: Metadata) -> int:
    hierarchy = meta.config.get("hierarchy")
    is_whole = isinstance(hierarchy, dict) and bool((meta.model or {}).get("bytes_per_token"))
    return int(hierarchy.get("prefill_ns_per_token") or 0) if is_whole and isinstance(hierarchy, dict) else 0


def compute_ns(meta: Metadata, input_tokens: Any, loads: Any, loaded_bytes: Any) -> Any:
    """Return int64 a request: what computing the rest of its prompt takes by the trace's model.

    `loads` and `loaded_bytes` are the rows of the trace that load for it, and their bytes, on all tiers.
    """
    import numpy as np

    hierarchy, model = meta.config["hierarchy"], meta.model or {}
    hit_tokens = (
        loads // int(model.get("objects_per_chunk") or 1) * int(hierarchy["chunk_tokens"])
        if hierarchy.get("entry") == "chunk"
        else loaded_bytes // int(model["bytes_per_token"])
    )
    return np.maximum(0, input_tokens - hit_tokens) * _prefill_ns(meta)
