"""The figures of whole requests: their storage time by service class, and the time to the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.engine.job import NOT_DONE
from kvreplay.result import first_token as firsttoken
from kvreplay.result.figures import distribution
from kvtrace.core.run.figures import ClassFigures, RequestFigures
from kvtrace.core.schema import Qos
from kvtrace.core.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from kvreplay.engine.job import Record
    from kvreplay.result.manifest import Setting

QOS_DEFINITION = (
    "storage_ns of a request: time in which at least one of its operations was in flight; requests with an operation "
    "that failed or was not reached are left out; a class complies if no percentile that is known exceeds its target"
)


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a class of service asks of its requests."""

    p95: str
    p99: str
    p99_9: str
    p99_99: str


def request_figures(
    setting: Setting, record: Record, due_ns: Any, served: pa.RecordBatch, targets: Mapping[str, Targets]
) -> RequestFigures:
    """Return the figures of the rows of `served`, judged by the `targets` of each class."""
    import numpy as np

    counts = _is_measured(setting, record, due_ns, served)
    storage, first = (_values(served, name)[counts] for name in ("storage_ns", "first_token_ns"))
    storage = np.where(_values(served, "unfinished")[counts] == 0, storage, NOT_DONE)
    reason = firsttoken.not_modelled(setting.reader.meta, setting.asked)
    codes = served.column("qos").indices.fill_null(-1).to_numpy(zero_copy_only=False)[counts]
    classes = [
        _class(str(qos), storage[(codes == code) & (storage != NOT_DONE)], targets[qos])
        for code, qos in enumerate(Qos) if (codes == code).any()
    ]  # fmt: skip
    return RequestFigures(
        requests=int(counts.sum()), storage=distribution(storage[storage != NOT_DONE]), classes=classes,
        first_token=None if reason else distribution(first[first != NOT_DONE]),
        first_token_unknown=None if reason else int((first == NOT_DONE).sum()), first_token_reason=reason,
        first_token_definition=firsttoken.DEFINITION,
    )  # fmt: skip


def _values(served: pa.RecordBatch, name: str) -> Any:
    return served.column(name).fill_null(NOT_DONE).to_numpy(zero_copy_only=False)


def _is_measured(setting: Setting, record: Record, due_ns: Any, served: pa.RecordBatch) -> Any:
    """Return bool a request: whether the warm-up touches none of its operations."""
    import numpy as np

    is_whole = np.ones(served.num_rows, bool)
    if setting.warmup is None:
        return is_whole
    plan = setting.window.plan
    left_out = plan.row[~setting.warmup.is_measured(plan, record, due_ns)]
    ids = served.column("request_id").to_numpy()
    at = 0
    for batch in setting.reader.batches(("request_id",)):
        within = left_out[(left_out >= at) & (left_out < at + batch.num_rows)] - at
        touched = batch.column("request_id").fill_null(-1).to_numpy()[within]
        is_whole &= ~np.isin(ids, touched)
        at += batch.num_rows
        if at >= setting.window.rows:
            break
    return is_whole


def _class(qos: str, storage_ns: Any, targets: Targets) -> ClassFigures:
    found = distribution(storage_ns)
    limits = {name: parse_duration_ns(getattr(targets, name)) for name in targets.__struct_fields__}
    known = {name: value for name in limits if (value := getattr(found, f"{name}_ns")) is not None}
    verdict = "pass" if all(value <= limits[name] for name, value in known.items()) else "fail"
    return ClassFigures(
        qos=qos, storage=found, targets_ns=limits, verdict=verdict if known else "not measured",
        share_within_p95_target=float((storage_ns <= limits["p95"]).mean()) if len(storage_ns) else None,
    )  # fmt: skip
