"""A small trace worked by hand, and how to distil it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from conftest import Row, trace_meta, write_trace
from run_files import run_file
from run_files import summary as run_summary

from kvdistill.jobs import fio_replay, fio_stat
from kvdistill.jobs.fio_jobs import WrittenJobs, make_jobs
from kvdistill.jobs.job import SCRATCH, JobOptions
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core.files import write_json
from kvtrace.core.limit import Limit, parse_limit
from kvtrace.core.run import run_file as core_run_file
from kvtrace.core.schema import OPS, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import create
from kvtrace.core.temporary import TemporaryFolder

if TYPE_CHECKING:
    from pathlib import Path

    from kvdistill.jobs.fio_replay import IoSource

MS = 1_000_000
US = 1000

# Tier 2 (nvme): object 2 is read before it is written, so it lies first, at 0 (8 KiB). Object 0
# (6000 bytes, reserved 8 KiB) goes to 8 KiB, object 1 (3 MiB) to 16 KiB; the delete of 0 makes room
# for object 3 at 8 KiB.
HAND: list[Row] = [
    (5 * MS, "write", 1, "store", 0, 0, 6000, 0, 0, 0),
    (10 * MS, "write", 2, "store", 0, 0, 6000, 0, 1, 0),
    (10 * MS, "write", 2, "store", 1, 0, 3 << 20, 0, 1, 0),
    (12 * MS, "read", 2, "load", 2, 0, 8192, 1, 0, 0),
    (20 * MS, "read", 2, "load", 1, 0, 3 << 20, 1, 0, 0),
    (30 * MS, "read", 2, "load", 0, 1000, 2000, 2, 0, 0),
    (40 * MS, "delete", 2, "evict", 0, 0, 6000, None, None, 0),
    (50 * MS, "write", 2, "store", 3, 0, 4096, 3, 0, 0),
    (60 * MS, "read", 2, "load", 3, 0, 4096, 4, 0, 0),
    (110 * MS, "read", 2, "load", 1, 1 << 20, 1 << 20, 5, 0, 0),
]


def write_hand(folder: Path) -> Path:
    """Write the hand trace into `folder`."""
    return write_trace(folder / "hand.parquet", HAND, preset="by-hand")


def distil_rows(
    folder: Path, rows: list[Row], limit: str | None = None, **meta: object
) -> Distilled:
    """Distil tier nvme of `rows`, written as a trace into `folder`."""
    trace = write_trace(folder / "t.parquet", rows, **meta)
    return distil_source(trace, "nvme", Limit() if limit is None else parse_limit(limit), folder)


def stat_job(profile: Profile, options: JobOptions) -> str:
    """Return the text of the statistical job."""
    return fio_stat.stat_job(profile, options).text


def write_logs(
    folder: Path, name: str, ios: IoSource, options: JobOptions
) -> fio_replay.LogSummary:
    """Write the iologs called `name` of the `ios`."""
    log = fio_replay.plan_iologs(name, ios, options)
    fio_replay.write_iologs(folder, name, log, ios)
    return log


def write_jobs(
    source: Path, tier: str | None, folder: Path, limit: Limit, options: JobOptions
) -> WrittenJobs:
    """Write the jobs of `source`, and check them if `options` say so."""
    scratch = TemporaryFolder("kvdistill-")
    jobs = make_jobs(distil_source(source, tier, limit, scratch.path, scratch), options)
    written = jobs.write(folder)
    if options.has_check or options.has_null_check:
        closeness = jobs.check(folder / SCRATCH)
        written = jobs.timed(closeness).write(folder, closeness)
    return written


def io(ts_ms: float, op: str, object_id: int, length: int, **fields: int | None) -> Row:
    """Return a row on tier 2 with its own request; `request` and `stage` may be null."""
    request, stage = fields.get("request", object_id), fields.get("stage", 0)
    return (
        int(ts_ms * MS),
        op,
        2,
        "load",
        object_id,
        fields.get("offset", 0) or 0,
        length,
        request,
        stage,
        0,
    )


def change_run(folder, **changed):
    """Change the run.json in `folder`: `changed` replaces fields by what they are in JSON."""
    content = msgspec.to_builtins(core_run_file.read_run(folder)) | changed
    write_json(folder / "run.json", msgspec.convert(content, core_run_file.RunFile))


def data_note(dedup_ratio, compress_ratio):
    """Return what run.json says of data of these ratios."""
    made = {
        "block_bytes": 4096,
        "made_blocks": 0,
        "distinct_blocks": 0,
        "measured_dedup_ratio": None,
    }
    shape = {
        "dedup_ratio": dedup_ratio,
        "compress_ratio": compress_ratio,
        "random_bytes_per_512": 0,
    } | made
    note = {
        "generator": "dgen",
        "seed": 1,
        "piece_bytes": 4096,
        "note": "",
        "stamped_block_bytes": None,
    }
    return note | {"shape": shape | {"measured_compress_ratio": 1.0}}


def write_run(folder, latencies_ns, outcome="ok", engine="threads", **summary):
    """Write a run of one 4 KiB read every millisecond, each 10 µs late.

    `outcome` may be one for each.
    """
    n = len(latencies_ns)
    submitted = np.arange(n) * MS + 10_000
    columns = {
        "row": np.arange(n), "tier": np.full(n, 2, np.int8), "object_id": np.arange(n), "request_id": np.arange(n),
        "scheduled_ns": np.arange(n) * MS, "submitted_ns": submitted,
        "completed_ns": submitted + np.array(latencies_ns), "bytes": np.full(n, 4000), "io_bytes": np.full(n, 4096),
    }  # fmt: skip
    said = {"op": "read", "phase": "load", "outcome": outcome, "engine": engine}
    said = {name: [each] * n if isinstance(each, str) else each for name, each in said.items()}
    codes = {
        name: np.array([enum_code(OPS, name, one) for one in each], np.int8)
        for name, each in said.items()
    }
    arrays = [
        enum_array(OPS, c.name, codes[c.name]) if c.type == "enum"
        else pa.array(columns[c.name], arrow_schema(OPS).field(c.name).type)
        for c in OPS.columns
    ]  # fmt: skip
    folder.mkdir()
    with create(folder / "ops.parquet", OPS, trace_meta(OPS)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(OPS)))
    made = run_file(
        msgspec.structs.replace(run_summary([], verdict="fine"), **summary),
        host={},
        config={},
        tiers={},
    )
    write_json(folder / "run.json", made)
    return folder


def histogram(count, low_ns):
    return {
        "count": count, "mean_ns": float(low_ns), "p50_ns": low_ns + 0.5, "p95_ns": None, "p99_ns": None,
        "p99_9_ns": None, "p99_99_ns": None, "longest_below_ns": 2 * low_ns,
        "log2_ns": [{"from": low_ns, "below": 2 * low_ns, "count": count}], "fine_ns": [],
    }  # fmt: skip


def write_probe(folder):
    counts = {"queued": 3, "issued": 4, "completed": 3, "errors": 0, "issued_bytes": 12288, "completed_bytes": 12288,
              "bios": 5, "bios_merged": 2, "splits": 1, "requests_merged": 0, "requeues": 1, "lost_events": 0,
              "lost_requests": 0, "ends_not_seen": 0}  # fmt: skip
    read = counts | {
        "q2d": histogram(3, 1024), "d2c": histogram(3, 65536), "block_sizes": [{"bytes": 4096, "count": 3}],
        "in_flight_at_dispatch": [{"in_flight": 1, "count": 2}, {"in_flight": 2, "count": 1}],
    }  # fmt: skip
    content = {
        "program": "kvreplay", "version": "0.1.0", "argv": ["kvreplay", "probe"], "duration_ns": 5 * 10**9,
        "config": {"comm": "a <b> c", "pid": None, "devices": ["vda"]}, "block": {"directions": {"read": read}},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "probe.json").write_text(json.dumps(content))
    return folder


def closed(ops, depth, service, submit_ns, rng):
    """Return arrivals and completions of a loop that keeps `depth` in flight."""
    free = np.zeros(depth)
    came, done = np.empty(ops), np.empty(ops)
    for i in range(ops):
        slot = int(free.argmin())
        came[i] = free[slot] + rng.exponential(submit_ns)
        done[i] = came[i] + service(i)
        free[slot] = done[i]
    order = np.argsort(came)
    return came[order].astype(np.int64), done[order]


def bursts(pauses_ms, ops):
    """Return arrivals and completions of a closed loop of depth 16 that pauses so long after so
    many operations.
    """
    rng = np.random.default_rng(5)
    parts, start = [], 0
    for pause_ms, count in zip(pauses_ms, ops, strict=True):
        came, done = closed(count, 16, lambda _i: rng.exponential(300 * US), 5 * US, rng)
        parts.append((came + start, done + start))
        start = int((done + start).max()) + pause_ms * MS
    return tuple(np.concatenate(x) for x in zip(*parts, strict=True))
