"""The report of a run as a document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvdistill.document import Column, Document, Quantity, Sheet, Table, Unit, select
from kvdistill.figures import (
    OP,
    TIER,
    distribution_tables,
    heat_tables,
    parameters,
    rate_tables,
    size_tables,
    wear_table,
)
from kvdistill.tracedocument import origin

if TYPE_CHECKING:
    from kvdistill.runreport import RunReport

_NS = ("mean", "p50", "p95", "p99", "p99_9", "p99_99", "max")
_NO_SUMMARY = "run.json is missing: how the run was made, its device and its notes are unknown"
_TARGET = (
    "name",
    "target",
    "engine",
    "is_direct",
    "filesystem",
    "device",
    "device_model",
    "device_firmware",
    "scheduler",
)


def run_document(report: RunReport) -> Document:
    """Return the document of `report`."""
    run = report.run or {}
    verdict = str(_at(run, "summary", "verdict") or "Run")
    is_partial = run.get("status") == "partial"
    headline = f"PARTIAL ({run.get('reason')}): {verdict}" if is_partial else verdict
    notes = _notes(run) if report.run is not None else [_NO_SUMMARY, *report.subject.notes]
    return Document(
        name=_at(run, "trace", "file") or report.subject.file, headline=headline, notes=notes,
        tables=[
            parameters("What was run", Sheet.PARAMETERS, _facts(report, run)), *_targets(run), *_hits(run),
            _figures(report),
            *rate_tables(report.over_time, report.bucket_ns, "Counted when operations complete."),
            _times("Latency", report.latency), *_of(report, "latency"), *heat_tables(report.heat, report.bucket_ns),
            _times("Lateness", report.lateness), *_of(report, "lateness"),
            *size_tables(report.sizes, report.size_bins),
            wear_table(report.writes_per_day, "At this run's rate, which is not the service's unless it kept pace "
                       "at speed 1. Padding counts; what the drive writes inside does not."),
            *_throughput(run), _criteria(run), _device(run),
        ],
    )  # fmt: skip


def _at(value: Any, *names: str) -> Any:
    """Return what lies under `names`; null where the run does not say."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _notes(run: dict[str, Any]) -> list[str]:
    notes = [str(note) for note in run.get("notes") or []]
    return notes + [f"trace: {note}" for note in _at(run, "trace", "metadata", "notes") or []]


def _facts(report: RunReport, run: dict[str, Any]) -> dict[str, Any]:
    facts = origin(report.subject) | {"source": _at(run, "trace", "file")}
    if report.run is None:
        return facts
    return facts | {
        "trace made by": " ".join(_at(run, "trace", "metadata", "argv") or []) or None,
        "status": run.get("status"), "started": run.get("started_utc"),
        "wall time": Quantity(_at(run, "summary", "wall_ns"), Unit.NS),
        "loop": _at(run, "pacing", "loop"), "speed": _at(run, "pacing", "speed"),
        "kept pace": _at(run, "summary", "pace", "kept_pace"),
        "queue depth": Quantity(_at(run, "engine", "queue_depth"), Unit.COUNT),
        "engine": _at(run, "engine", "name"),
        "largest I/O": Quantity(_at(run, "engine", "io_bytes"), Unit.BYTES),
        "whole trace": _at(run, "window", "is_whole_trace"), "limit": _at(run, "window", "limit"),
        "warm-up": _at(run, "config", "warmup"), "data": _at(run, "data", "note"),
        "processor": _at(run, "host", "cpu_model"), "processors": Quantity(_at(run, "host", "cpus"), Unit.COUNT),
        "kernel": _at(run, "host", "kernel"),
    }  # fmt: skip


def _targets(run: dict[str, Any]) -> list[Table]:
    tiers = run.get("tiers")
    if not isinstance(tiers, dict) or not tiers:
        return []
    columns = [Column(name, name.removeprefix("is_").replace("_", " ")) for name in _TARGET]
    rows = [[{"name": name, **facts}.get(c.name) for c in columns] for name, facts in tiers.items()]
    return [Table("On what it ran", Sheet.PARAMETERS, columns, rows)]


def _hits(run: dict[str, Any]) -> list[Table]:
    tiers = _at(run, "trace", "metadata", "stats", "tiers")
    if not tiers:
        return []
    capacity = {t["name"]: t.get("capacity_bytes") for t in _at(run, "trace", "metadata", "tiers") or []}
    columns = [
        Column("name", "tier"), Column("capacity_bytes", "capacity", Unit.BYTES), Column("hits", "hits", Unit.COUNT),
        Column("hit_ratio", "hit ratio", Unit.SHARE),
    ]  # fmt: skip
    rows = [[t.get("name"), capacity.get(t.get("name")), t.get("hits"), t.get("hit_ratio")] for t in tiers]
    note = "Of the simulation that made the whole trace, not of this run."
    return [Table("Tiers of the trace", Sheet.SUMMARY, columns, rows, (), note)]


def _figures(report: RunReport) -> Table:
    columns = [
        TIER, OP, Column("engine", "engine"),
        *(Column(n, h, Unit.COUNT) for n, h in (
            ("rows", "rows"), ("operations", "completed"), ("errors", "errors"), ("corrupt", "corrupt"),
            ("skipped", "skipped"))),
        Column("bytes", "bytes", Unit.BYTES), Column("io_bytes", "with padding", Unit.BYTES),
        Column("span_ns", "in", Unit.NS), Column("operations_per_s", "ops/s", Unit.PER_S),
        Column("bandwidth_bytes_per_s", "bandwidth", Unit.BYTES_PER_S),
    ]  # fmt: skip
    note = "Rates: completed operations over the time from their first submission to their last completion."
    return Table("Operations", Sheet.PERFORMANCE, columns, select(report.figures, columns), (), note, 2)


def _times(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = [
        TIER, OP, Column("count", "operations", Unit.COUNT),
        *(Column(f"{name}_ns", name.replace("_", "."), Unit.NS) for name in _NS),
    ]  # fmt: skip
    note = {
        "Latency": "From submission to completion, of all completed operations pooled.",
        "Lateness": "From when operations were due to their submission; a closed loop has none.",
    }[title]
    return Table(title, Sheet.PERFORMANCE, columns, select(rows, columns), (), note, 2)


def _of(report: RunReport, measure: str) -> list[Table]:
    return distribution_tables([row for row in report.distributions if row["measure"] == measure])


def _criteria(run: dict[str, Any]) -> Table:
    found = _at(run, "mlperf", "criteria")
    if not found:
        reason = "not measured: this run judged no criteria, and a replay has no latency of a whole request"
        return parameters("QoS and criteria", Sheet.QOS, {"QoS": reason})
    columns = [Column("name", "criterion"), Column("verdict", "verdict"), Column("measured", "measured"),
               Column("threshold", "threshold"), Column("definition", "definition")]  # fmt: skip
    rows = []
    for criterion in found:
        unit = _unit(str(criterion["name"]))
        values = [Quantity(criterion[name], unit) for name in ("measured", "threshold")]
        rows.append([criterion["name"], criterion["verdict"], *values, criterion["definition"]])
    note = f"Latencies must be below their thresholds, others above. QoS: {_at(run, 'mlperf', 'qos_reason') or '-'}."
    return Table("Criteria of MLPerf", Sheet.QOS, columns, rows, (), note)


def _unit(name: str) -> Unit:
    if name.endswith("_bytes_per_s"):
        return Unit.BYTES_PER_S
    return Unit.NS if name.endswith("_ns") else Unit.SHARE


def _throughput(run: dict[str, Any]) -> list[Table]:
    found = _at(run, "mlperf", "throughput")
    if not found:
        return []
    rates = ("storage_throughput_tokens_per_s", "wall_clock_throughput_tokens_per_s")
    facts = {"tokens": Quantity(found.get("tokens"), Unit.COUNT),
             "storage_io_ns": Quantity(found.get("storage_io_ns"), Unit.NS)}  # fmt: skip
    facts |= {name: Quantity(found.get(name), Unit.PER_S) for name in rates}
    table = parameters("Throughput by MLPerf's names", Sheet.PERFORMANCE, facts)
    note = found.get("reason") or (
        "Tokens that the trace's requests generated, over the latencies of all operations on storage added up, and "
        "over the wall time of the replay, in which no token is generated."
    )
    return [replace(table, note=note)]


def _device(run: dict[str, Any]) -> Table:
    columns = [TIER, Column("read_bytes", "read", Unit.BYTES), Column("written_bytes", "written", Unit.BYTES)]
    rows = [[name, moved.get("read_bytes"), moved.get("written_bytes")]
            for name, moved in (run.get("device_io") or {}).items()]  # fmt: skip
    note = "What the device beneath did meanwhile, for all programs. What the block layer saw is not in this report."
    return Table("Device", Sheet.DEVICE, columns, rows, (), note)
