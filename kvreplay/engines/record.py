"""What a real engine did, as a trace of its file operations and a record of their times: what any run is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.config.config import Config
from kvreplay.config.setting import Setting
from kvreplay.engines.events import EngineRecord, FileOperation
from kvreplay.native.rows import ERROR, NOT_DONE, OK, RowRing
from kvreplay.plan.loader import MOST_ROWS
from kvreplay.plan.pacing import ClosedLoop
from kvreplay.plan.window import compile_window
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions, Tier
from kvtrace.core.files import Limit
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.schema import OBJECTS, TRACE, Op, Phase, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import create, objects_path, open_table

if TYPE_CHECKING:
    import pyarrow as pa

TIER = "nvme"
TRACE_FILE = "trace.parquet"
_BATCH_ROWS = 1 << 16
_PHASES = {"read": Phase.LOAD, "write": Phase.STORE, "delete": Phase.EVICT}


@dataclass(frozen=True, slots=True)
class Told:
    """What a run says of its trace, beside what was recorded."""

    argv: list[str]
    config: dict[str, Any]
    model: dict[str, Any]
    source: dict[str, Any]
    notes: list[str]
    capacity_bytes: int | None
    object_kind: str


@dataclass(frozen=True, slots=True)
class Recording:
    """An engine's operations as a setting and rows, of which the figures and tables of any run are made."""

    setting: Setting
    rows: RowRing
    """All that was done."""
    started_ns: int
    """On the monotonic clock."""
    wall_ns: int


def write_trace(output: Path, recorded: EngineRecord, told: Told) -> list[FileOperation]:
    """Write the operations and their objects as a trace into `output`; return them in its order."""
    operations = sorted(recorded.operations, key=lambda done: (done.start_ns, done.end_ns))
    numbers: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for done in operations:
        number = numbers.setdefault(done.name, len(numbers))
        sizes[number] = max(sizes.get(number, 0), done.offset + done.length)
    known = {
        "tiers": [TierFacts(TIER, told.capacity_bytes)],
        "model": told.model,
        "source": told.source,
        "notes": told.notes,
    }
    first_ns = _first_ns(recorded, operations)
    with create(output / TRACE_FILE, TRACE, describe(TRACE, "kvreplay", told.argv, told.config, **known)) as out:
        for batch in _trace_batches(operations, numbers, first_ns):
            out.write(batch)
    meta = describe(OBJECTS, "kvreplay", told.argv, told.config, **known)
    with create(objects_path(output / TRACE_FILE), OBJECTS, meta) as out:
        out.write(_objects(list(numbers), [sizes[number] for number in range(len(numbers))], told.object_kind))
    return operations


def _first_ns(recorded: EngineRecord, operations: list[FileOperation]) -> int:
    """Return when the run began: with its first request, or an operation before it."""
    starts = [recorded.requests[0][0]] if recorded.requests else []
    return min(starts + [done.start_ns for done in operations[:1]], default=0)


def _trace_batches(operations: list[FileOperation], numbers: dict[str, int], first_ns: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    stage: dict[int, tuple[bool, int]] = {}
    for at in range(0, len(operations), _BATCH_ROWS):
        part = operations[at : at + _BATCH_ROWS]
        stages = [_stage(done, stage) for done in part]
        codes = {
            "op": [enum_code(TRACE, "op", done.op) for done in part],
            "phase": [enum_code(TRACE, "phase", _PHASES[done.op]) for done in part],
        }
        columns: dict[str, list[Any]] = {
            "ts_ns": [done.start_ns - first_ns for done in part],
            "tier": [0] * len(part),
            "object_id": [numbers[done.name] for done in part],
            "offset_bytes": [done.offset for done in part],
            "length_bytes": [done.length for done in part],
            "request_id": [done.request for done in part],
            "stage": stages,
            "rank": [0] * len(part),
        }
        schema = arrow_schema(TRACE)
        arrays = [
            enum_array(TRACE, c.name, np.array(codes[c.name], np.int8))
            if c.type == "enum"
            else pa.array(columns[c.name], schema.field(c.name).type)
            for c in TRACE.columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stage(done: FileOperation, known: dict[int, tuple[bool, int]]) -> int | None:
    """Return the stage of an operation, by what is `known` of its request: a stage ends where loads end."""
    if done.request is None:
        return None
    is_load = done.op == Op.READ
    before, number = known.get(done.request, (is_load, 0))
    known[done.request] = is_load, number + (before and not is_load)
    return known[done.request][1]


def _objects(names: list[str], sizes: list[int], kind: str) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [
        pa.array(range(len(names)), pa.int64()),
        pa.array(["%20".join(name.split()) for name in names], pa.string()),
        enum_array(OBJECTS, "kind", np.full(len(names), enum_code(OBJECTS, "kind", kind), np.int8)),
        pa.array(sizes, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(OBJECTS))


def recording(output: Path, target: Path, recorded: EngineRecord, told: Told, config: Config) -> Recording:
    """Write the trace of what was `recorded` into `output`, and return it as what figures and tables are made of."""
    operations = write_trace(output, recorded, told)
    path = output / TRACE_FILE
    reader = open_table(path, TRACE)
    window = compile_window(reader, path, {0: 1}, Limit(), is_done=True)
    setting = Setting(config, ClosedLoop(), reader, window, [_tier(target, config)], path, told.argv)
    first_ns = _first_ns(recorded, operations)
    rows = window.loader.begin(window=MOST_ROWS)
    window.loader.load()
    rows.all["submitted_ns"] = [done.start_ns - first_ns for done in operations]
    rows.all["completed_ns"] = [NOT_DONE if done.error else done.end_ns - first_ns for done in operations]
    rows.all["outcome"] = [ERROR if done.error else OK for done in operations]
    rows.all["is_ended"] = True
    last_ns = max([done.end_ns for done in operations] + [end for _start, end in recorded.requests], default=first_ns)
    return Recording(setting, rows, first_ns, last_ns - first_ns)


def _tier(target: Path, config: Config) -> Tier:
    """Return the tier on which the engine's files lay: nothing is asked of it."""
    tier = FileTier(TIER, target, StorageOptions(is_direct=not config.is_buffered))
    tier.engine, tier.alignment = "other", 1
    return tier
