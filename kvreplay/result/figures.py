"""Uses of a run's figures: MLPerf's names for them, and a comparison with device traffic.

`traffic_warnings` compares what devices moved with what was asked of them, because figures of a
drive that did not do the work are not its own: reads of holes and of caches beneath O_DIRECT move
too little, other programs and filesystems that copy move too much. MLPerf's figures have the names
of its Storage KV-cache benchmark. Its device latency is not measured here, so its criteria are
judged by the total latency, which is never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any

from kvreplay.engine.setting import Setting
from kvreplay.plan.replay_config import Criteria
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.claims import is_of_root
from kvreplay.tiers.host import device_number
from kvreplay.tiers.tier import Tier
from kvtrace.core.metadata import Metadata
from kvtrace.core.metrics.recorder import OperationRecorder
from kvtrace.core.run.figures import (
    Criterion,
    Figures,
    Metrology,
    Mlperf,
    MlperfLatency,
    Pace,
    RequestFigures,
    Summary,
    TokenThroughput,
)
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.statistics import total
from kvtrace.core.units import (
    format_bytes,
    format_duration,
    format_rate,
    parse_bytes,
    parse_duration_ns,
    per_second,
)

WARNING = "WARNING: "
"""How a note begins that belongs to the first lines of a run."""
LEAST, MOST = 0.95, 1.10
_FEW_BYTES = 1 << 20  # of fewer, all that a device moved is other programs'
_SIDES = ("asked", "moved")
_CLOCK_READS = 1000
_OTHERS_BYTES = 16 << 20
"""More than this must be beyond MOST: journals and inodes of a short run are no fault."""
_TOO_LITTLE = {
    "read": "likely causes: holes, a cache beneath O_DIRECT, or compression by a layer beneath",
    "write": "likely causes: a layer beneath that caches, compresses or deduplicates",
}
_TOO_MUCH = {
    "read": "likely causes: another program, or larger blocks or readahead of a layer beneath",
    "write": "likely causes: another program, or a journal, copies or parity of a layer beneath",
}


@dataclass(slots=True)
class Traffic:
    """Bytes asked of one device, and bytes moved by its own counters."""

    drives: list[str]
    is_alone: bool
    """Whether other programs are unlikely to use the device."""
    asked: dict[str, int]
    moved: dict[str, int | None]

    def warnings(self) -> Iterator[str]:
        """Yield warnings where the device's counters disagree with the operations, and likely
        reasons.
        """
        for op, operation_bytes in self.asked.items():
            device_bytes = self.moved[op]
            if device_bytes is None or operation_bytes < _FEW_BYTES:
                continue
            ratio = device_bytes / operation_bytes
            cause = _TOO_LITTLE[op] if ratio < LEAST else _TOO_MUCH[op]
            if ratio < LEAST or (
                self.is_alone and device_bytes > MOST * operation_bytes + _OTHERS_BYTES
            ):
                yield (
                    f"{WARNING}the device beneath {', '.join(self.drives)} moved"
                    f" {format_bytes(device_bytes)} for the {format_bytes(operation_bytes)} of its {op}s"
                    f" ({ratio:.2f} of it); {cause}"
                )


def traffic_warnings(
    setting: Setting, recorder: OperationRecorder[Tier], device_io: dict[str, DeviceIo]
) -> list[str]:
    """Return the warnings of all devices.

    None for buffered I/O, which the page cache answers rightly.

    The requests that object stores refused or failed are among them.
    """
    refused = [WARNING + text for t in setting.tiers if t is not None for text in t.warnings()]
    if setting.config.is_buffered:
        return refused
    return refused + [
        text for device in _by_device(recorder, device_io).values() for text in device.warnings()
    ]


def _by_device(
    recorder: OperationRecorder[Tier], device_io: dict[str, DeviceIo]
) -> dict[str, Traffic]:
    """Return the traffic of each device; drives on one device are one."""
    by: dict[str, Traffic] = {}
    for index, tier in enumerate(recorder.tiers):
        for at, drive in enumerate(() if tier is None else tier.drives):
            counted = device_io.get(drive.name)
            path = Path(drive.target)
            if counted is None or not path.exists():
                continue
            seen = {"read": counted.read_bytes, "write": counted.written_bytes}
            new = Traffic([], not is_of_root(path), dict.fromkeys(_TOO_LITTLE, 0), seen)
            device = by.setdefault(device_number(path), new)
            device.drives.append(drive.name)
            number = at if len(recorder.drives[index]) > 1 else None
            for name, code in (("read", READ), ("write", WRITE)):
                device.asked[name] += recorder.total(
                    "asked_bytes", recorder.kinds_of(index, code, number)
                )
    return by


def metrology(
    recorder: OperationRecorder[Tier], device_io: dict[str, DeviceIo], pace: Pace | None
) -> Metrology:
    """Return the errors of the measurement: `device_io` is by drive, `pace` that of the run."""
    devices, off = _by_device(recorder, device_io).values(), dict[str, float | None]()
    for op in _TOO_LITTLE:
        asked, seen = (total([getattr(of, name)[op] for of in devices]) for name in _SIDES)
        off[op] = seen / asked - 1 if asked and asked >= _FEW_BYTES and seen is not None else None
    clock = [monotonic_ns() for _ in range(_CLOCK_READS)]
    return Metrology(
        late_p50_ns=None if pace is None else pace.lateness.p50_ns,
        late_p99_ns=None if pace is None else pace.lateness.p99_ns,
        bytes_off=off,
        clock_step_ns=min(after - before for before, after in pairwise(clock) if after > before),
    )


HOST_REASON = (
    "host and device time are one call here; run --probes measures the device's share at the block"
    " layer"
)
MEMORY_TIERS = ("gpu", "cpu")
"""The names that presets give tiers that are memory."""
QOS_REASON = (
    "the trace does not say which class a request is of; name its requests table with --requests"
)


def mlperf_figures(
    meta: Metadata,
    targets: Mapping[str, str],
    summary: Summary,
    criteria: Criteria,
    requests: RequestFigures,
    *,
    is_whole_trace: bool,
    took_ns: Callable[[list[str]], int | None],
) -> Mlperf:
    """Return the benchmark's figures from `summary`, for a trace with metadata `meta`.

    `targets` are those of the tiers where bytes moved, by name; `took_ns` gives the time from the
    first submission to the last completion of reads and writes on tiers.
    """
    kinds = {
        name: {"ram": "cpu", "gpu": "other"}.get(target.partition(":")[0], "storage")
        for name, target in targets.items()
    }
    transfers = [f for f in summary.figures if f.tier in kinds and f.op != "delete"]
    return Mlperf(
        latencies=[
            MlperfLatency(
                tier=f.tier,
                kind=kinds[f.tier],
                op=f.op,
                total=f.latency,
                response=f.response,
                reason=HOST_REASON,
            )
            for f in transfers
        ],
        throughput=_throughput(
            meta,
            summary,
            [f for f in transfers if kinds[f.tier] == "storage"],
            is_whole_trace=is_whole_trace,
        ),
        criteria=_criteria(criteria, transfers, kinds, meta.hit_ratio, took_ns),
        qos_compliance={c.qos: c.share_within_p95_target for c in requests.classes} or None,
        qos_reason=None if requests.classes else QOS_REASON,
        qos_definition=QOS_DEFINITION,
    )


def _throughput(
    meta: Metadata, summary: Summary, storage: list[Figures], *, is_whole_trace: bool
) -> TokenThroughput:
    # All tiers but GPU and CPU memory are storage.
    unmoved = {f.tier for f in summary.figures if f.is_simulated} | set(summary.skipped_rows)
    tokens, reason = (meta.stats or {}).get("output_tokens"), None
    if tokens is None:
        reason = "the trace does not say how many tokens its requests generated"
    elif not is_whole_trace or summary.warmup is not None or summary.not_reached or summary.errors:
        tokens, reason = (
            None,
            "only a part of the trace was measured, and the trace counts tokens as a whole",
        )
    elif lacking := [
        t.name for t in meta.tiers if t.name in unmoved and t.name not in MEMORY_TIERS
    ]:
        tokens, reason = (
            None,
            f"storage tiers of the trace whose data did not move: {', '.join(lacking)}",
        )
    io_ns = round(
        sum(f.latency.mean_ns * f.latency.count for f in storage if f.latency.mean_ns is not None)
    )
    return TokenThroughput(
        tokens=tokens,
        storage_io_ns=io_ns,
        reason=reason,
        storage_throughput_tokens_per_s=per_second(tokens, io_ns),
        wall_clock_throughput_tokens_per_s=per_second(tokens, summary.wall_ns),
    )


def measured_figures(figures: Sequence[Figures]) -> list[Figures]:
    """Return those of tiers where data moves.

    Where it moves on none, those of tiers that have a model.
    """
    return [f for f in figures if not f.is_simulated] or [f for f in figures if f.bytes is not None]


def worst_percentile(figures: Sequence[Figures], op: str, quantile: str = "p99_ns") -> int | None:
    """Return the worst of a percentile of `op` over the tiers that count.

    Null if one is not known.
    """
    times: list[int | None] = [
        getattr(f.judged, quantile) for f in measured_figures(figures) if f.op == op
    ]
    return (
        None if None in times else max((time for time in times if time is not None), default=None)
    )


def sum_fields(each: Sequence[Any], *names: str) -> dict[str, Any]:
    """Return the fields `names` of `each` added up; null where one is not known."""
    return {name: total([getattr(figures, name) for figures in each]) for name in names}


def min_known(values: Sequence[int | None]) -> int | None:
    """Return the least of `values` that is known; null if none is."""
    return min((value for value in values if value is not None), default=None)


def max_known(values: Sequence[Any]) -> Any:
    """Return the greatest of `values` that is known; null if none is."""
    return max((value for value in values if value is not None), default=None)


def _criteria(
    wanted: Criteria,
    transfers: list[Figures],
    kinds: dict[str, str],
    hit_rate: float | None,
    took_ns: Callable[[list[str]], int | None],
) -> list[Criterion]:
    def worst(kind: str, op: str | None) -> float | None:
        found = [f.judged.p95_ns for f in transfers if kinds[f.tier] == kind and op in (None, f.op)]
        return None if not found or None in found else max(p for p in found if p is not None)

    storage = [
        f for f in transfers if kinds[f.tier] == "storage" and f.bandwidth_bytes_per_s is not None
    ]
    # Reads and writes need not go on at the same time.
    bandwidth = per_second(
        sum(f.bytes or 0 for f in storage), took_ns([f.tier for f in storage]) if storage else None
    )
    simulated = "hits / lookups, of the simulation that made the trace"
    both = (
        "bytes read and written on storage tiers / the time from the first submission to the last"
        " completion there"
    )
    return [
        _below("storage_read_p95_ns", wanted.storage_read_p95, worst("storage", "read")),
        _below("storage_write_p95_ns", wanted.storage_write_p95, worst("storage", "write")),
        _below("cpu_p95_ns", wanted.cpu_p95, worst("cpu", None)),
        judge("hit_rate", wanted.hit_rate, hit_rate, simulated, "{:.1%}".format),
        judge(
            "storage_bandwidth_bytes_per_s",
            parse_bytes(wanted.storage_bandwidth),
            bandwidth,
            both,
            format_rate,
        ),
    ]


BELOW_DEFINITION = (
    "total latency, of the worst tier of its kind: service time in a closed loop, response time in"
    " an open one; the benchmark takes the device's, which is no longer"
)


def _below(name: str, threshold: str, measured: float | None) -> Criterion:
    return judge(
        name, parse_duration_ns(threshold), measured, BELOW_DEFINITION, format_duration, sign="<"
    )


def judge(
    name: str,
    threshold: float,
    measured: float | None,
    definition: str,
    show: Callable[[float], str],
    sign: str = ">",
) -> Criterion:
    """Judge a value that must exceed a threshold, or by another `sign` stay below it.

    `show` formats both.
    """
    passes = measured is not None and (
        measured > threshold if sign == ">" else measured < threshold
    )
    return Criterion(
        name=name,
        threshold=threshold,
        measured=measured,
        verdict="not measured" if measured is None else "pass" if passes else "fail",
        definition=definition,
        shown=f"{'-' if measured is None else show(measured)} {sign} {show(threshold)}",
    )


QOS_DEFINITION = (
    "storage_ns of a request: time in which at least one of its operations was in flight; in an"
    " open loop its response time: at least one was due and had not completed; requests with an"
    " operation that failed or was not reached are left out; a class complies if no percentile that"
    " is known exceeds its target"
)
