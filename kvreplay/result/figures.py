"""Uses of a run's figures: MLPerf's names for them, and a comparison with device traffic.

`traffic_warnings` compares the bytes that devices transferred with those of the operations. If they
differ, the figures are not the drive's own: reads of holes and of caches beneath O_DIRECT transfer
too little, other programs and filesystems that copy transfer too much. MLPerf's figures have the
names of its Storage KV-cache benchmark. Its device latency is not measured here, so its criteria
are judged by the total latency, which is never less.
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
"""Prefix of notes that belong to the first lines of a run."""
MIN_RATIO, MAX_RATIO = 0.95, 1.10
"""Limits of a device's bytes by the bytes of the operations, outside of which a warning is due."""
_FEW_BYTES = 1 << 20
"""With fewer bytes of operations, a device's counters show mostly other programs."""
_SIDES = ("operation_bytes", "device_bytes")
_CLOCK_READS = 1000
_OTHERS_BYTES = 16 << 20
"""Bytes beyond MAX_RATIO that are allowed: journals and inodes of a short run are no fault."""
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
    """Bytes of the operations on one device, and bytes by the device's own counters."""

    drives: list[str]
    is_alone: bool
    """Whether other programs are unlikely to use the device."""
    operation_bytes: dict[str, int]
    device_bytes: dict[str, int | None]

    def warnings(self) -> Iterator[str]:
        """Yield a warning, with likely causes, if the device's counters disagree with the
        operations.
        """
        for op, operation_bytes in self.operation_bytes.items():
            device_bytes = self.device_bytes[op]
            if device_bytes is None or operation_bytes < _FEW_BYTES:
                continue
            ratio = device_bytes / operation_bytes
            cause = _TOO_LITTLE[op] if ratio < MIN_RATIO else _TOO_MUCH[op]
            if ratio < MIN_RATIO or (
                self.is_alone and device_bytes > MAX_RATIO * operation_bytes + _OTHERS_BYTES
            ):
                yield (
                    f"{WARNING}the device beneath {', '.join(self.drives)} transferred"
                    f" {format_bytes(device_bytes)} for the {format_bytes(operation_bytes)} of its {op}s"
                    f" ({ratio:.2f} times as much); {cause}"
                )


def traffic_warnings(
    setting: Setting, recorder: OperationRecorder[Tier], device_io: dict[str, DeviceIo]
) -> list[str]:
    """Return the warnings of all tiers, and those of devices on their traffic.

    For buffered I/O there are none of the latter, because the page cache serves part of it.
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
    """Return the traffic of each device; drives on one device are taken together."""
    traffic_by_device: dict[str, Traffic] = {}
    for tier_index, tier in enumerate(recorder.tiers):
        for drive_index, drive in enumerate(() if tier is None else tier.drives):
            counters = device_io.get(drive.name)
            path = Path(drive.target)
            if counters is None or not path.exists():
                continue
            device_bytes = {"read": counters.read_bytes, "write": counters.written_bytes}
            new = Traffic([], not is_of_root(path), dict.fromkeys(_TOO_LITTLE, 0), device_bytes)
            traffic = traffic_by_device.setdefault(device_number(path), new)
            traffic.drives.append(drive.name)
            number = drive_index if len(recorder.drives[tier_index]) > 1 else None
            for name, code in (("read", READ), ("write", WRITE)):
                traffic.operation_bytes[name] += recorder.total(
                    "asked_bytes", recorder.kinds_of(tier_index, code, number)
                )
    return traffic_by_device


def metrology(
    recorder: OperationRecorder[Tier], device_io: dict[str, DeviceIo], pace: Pace | None
) -> Metrology:
    """Return the errors of the measurement: `device_io` is by drive, `pace` that of the run."""
    devices = _by_device(recorder, device_io).values()
    off = dict[str, float | None]()
    for op in _TOO_LITTLE:
        operation_bytes, device_bytes = (
            total([getattr(traffic, side)[op] for traffic in devices]) for side in _SIDES
        )
        has_enough = operation_bytes is not None and operation_bytes >= _FEW_BYTES
        off[op] = (
            device_bytes / operation_bytes - 1
            if has_enough and operation_bytes and device_bytes is not None
            else None
        )
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
    "the trace does not have the class of a request; name its requests table with --requests"
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

    `targets` has the targets of the tiers on which data moved, by tier. `took_ns` gives the time
    from the first submission to the last completion of reads and writes on the tiers named.
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
        reason = "the trace does not have the number of tokens that its requests generated"
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
    """Return the figures of tiers on which data moves.

    If data moves on no tier, return those of tiers with a model.
    """
    return [f for f in figures if not f.is_simulated] or [f for f in figures if f.bytes is not None]


def worst_percentile(figures: Sequence[Figures], op: str, quantile: str = "p99_ns") -> int | None:
    """Return the highest value over the tiers of a percentile of `op`; None if one is unknown."""
    times: list[int | None] = [
        getattr(f.judged, quantile) for f in measured_figures(figures) if f.op == op
    ]
    return (
        None if None in times else max((time for time in times if time is not None), default=None)
    )


def sum_fields(structs: Sequence[Any], *names: str) -> dict[str, Any]:
    """Return the sum over `structs` of each of the fields `names`; None if one is unknown."""
    return {name: total([getattr(struct, name) for struct in structs]) for name in names}


def min_known(values: Sequence[int | None]) -> int | None:
    """Return the minimum of the known `values`; None if all are unknown."""
    return min((value for value in values if value is not None), default=None)


def max_known(values: Sequence[Any]) -> Any:
    """Return the maximum of the known `values`; None if all are unknown."""
    return max((value for value in values if value is not None), default=None)


def _criteria(
    criteria: Criteria,
    transfers: list[Figures],
    kinds: dict[str, str],
    hit_rate: float | None,
    took_ns: Callable[[list[str]], int | None],
) -> list[Criterion]:
    def worst(kind: str, op: str | None) -> float | None:
        p95_ns = [
            f.judged.p95_ns for f in transfers if kinds[f.tier] == kind and op in (None, f.op)
        ]
        known_ns = [value for value in p95_ns if value is not None]
        return max(known_ns) if known_ns and len(known_ns) == len(p95_ns) else None

    storage = [
        f for f in transfers if kinds[f.tier] == "storage" and f.bandwidth_bytes_per_s is not None
    ]
    # Reads and writes may go on at different times, so their bandwidths cannot be added.
    bandwidth = per_second(
        sum(f.bytes or 0 for f in storage), took_ns([f.tier for f in storage]) if storage else None
    )
    simulated = "hits / lookups, of the simulation that made the trace"
    bandwidth_definition = (
        "bytes read and written on storage tiers / the time from the first submission to the last"
        " completion there"
    )
    return [
        _below("storage_read_p95_ns", criteria.storage_read_p95, worst("storage", "read")),
        _below("storage_write_p95_ns", criteria.storage_write_p95, worst("storage", "write")),
        _below("cpu_p95_ns", criteria.cpu_p95, worst("cpu", None)),
        judge("hit_rate", criteria.hit_rate, hit_rate, simulated, "{:.1%}".format),
        judge(
            "storage_bandwidth_bytes_per_s",
            parse_bytes(criteria.storage_bandwidth),
            bandwidth,
            bandwidth_definition,
            format_rate,
        ),
    ]


BELOW_DEFINITION = (
    "total latency of the worst tier of its kind: service time in a closed loop, response time in"
    " an open one; the benchmark takes the device latency, which is never longer"
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
    " operation that failed or was not reached are left out; a class complies if no known"
    " percentile exceeds its target"
)
