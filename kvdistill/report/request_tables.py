"""The tables of what a run did for whole requests: classes of service, time to the first token, health criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdistill.report.tables import at
from kvtrace.core.document.document import Cell, ReportColumn, ReportTable, Sheet, Unit, headed, parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMES = {
    "count": "requests",
    "mean_ns": "mean",
    "p50_ns": "p50",
    "p95_ns": "p95",
    "p99_ns": "p99",
    "p99_9_ns": "p99.9",
    "p99_99_ns": "p99.99",
    "max_ns": "max",
}
_TARGETS = ("p95", "p99", "p99_9", "p99_99")


def request_tables(run: dict[str, Any]) -> list[ReportTable]:
    """Return the tables of requests, classes of service and criteria of `run`, the content of a run.json."""
    return [*_requests(run), *_classes(run), _criteria(run)]


def _requests(run: dict[str, Any]) -> list[ReportTable]:
    found = run.get("requests")
    if not isinstance(found, dict):
        return []
    columns = [ReportColumn("measure", "measure"), *(_times_column(name, heading) for name, heading in _NAMES.items())]
    rows = [_row("storage time", found.get("storage"))]
    if found.get("first_token"):
        rows.append(_row("time to the first token, modelled", found["first_token"]))
    note = "Storage time: in which at least one of a request's operations was in flight."
    reason, definition = found.get("first_token_reason"), found.get("first_token_definition")
    note += f" Time to the first token: {definition if found.get('first_token') else reason or 'not known'}."
    return [ReportTable("Requests", Sheet.QOS, columns, rows, (), note)]


def _classes(run: dict[str, Any]) -> list[ReportTable]:
    classes = at(run, "requests", "classes") or []
    if not classes:
        reason = at(run, "mlperf", "qos_reason") or "the run does not say which class a request is of"
        return [parameters("Classes of service", Sheet.QOS, {"QoS": f"not measured: {reason}"})]
    note = str(at(run, "mlperf", "qos_definition") or "").strip()
    columns = [
        ReportColumn("qos", "class"),
        ReportColumn("count", "requests", Unit.COUNT),
        ReportColumn("share_within_p95_target", "within p95 target", Unit.SHARE),
        ReportColumn("verdict", "verdict"),
    ]
    rows = [
        [c.get("qos"), at(c, "storage", "count"), c.get("share_within_p95_target"), c.get("verdict")] for c in classes
    ]
    judged = ReportTable(
        "Classes of service", Sheet.QOS, columns, rows, (), f"{note[:1].upper()}{note[1:]}." if note else ""
    )
    columns = [
        *headed(qos="class", percentile="percentile"),
        *headed(Unit.NS, reached_ns="storage time", target_ns="target"),
        ReportColumn("verdict", "verdict"),
    ]
    rows = [_against_target(c, name) for c in classes for name in _TARGETS]
    return [judged, ReportTable("Targets of the classes", Sheet.QOS, columns, rows, (), "", 2)]


def _against_target(of_class: dict[str, Any], name: str) -> list[Any]:
    reached, target = at(of_class, "storage", f"{name}_ns"), at(of_class, "targets_ns", name)
    is_known = reached is not None and target is not None
    verdict = ("pass" if reached <= target else "fail") if is_known else "not measured"
    return [of_class.get("qos"), name.replace("_", "."), reached, target, verdict]


def _criteria(run: dict[str, Any]) -> ReportTable:
    found = at(run, "mlperf", "criteria")
    if not found:
        return parameters("Criteria of MLPerf", Sheet.QOS, {"criteria": "not measured: this run judged none"})
    columns = [
        *headed(
            name="criterion", verdict="verdict", measured="measured", threshold="threshold", definition="definition"
        )
    ]
    rows = []
    for criterion in found:
        unit = _unit(str(criterion["name"]))
        values = [Cell(criterion[name], unit) for name in ("measured", "threshold")]
        rows.append([criterion["name"], criterion["verdict"], *values, criterion["definition"]])
    note = "Latencies must be below their thresholds, others above."
    return ReportTable("Criteria of MLPerf", Sheet.QOS, columns, rows, (), note)


def _times_column(name: str, heading: str) -> ReportColumn:
    return ReportColumn(name, heading, Unit.COUNT if name == "count" else Unit.NS)


def _row(label: str, distribution: Any) -> list[Any]:
    values: Iterable[Any] = (at(distribution, name) for name in _NAMES)
    return [label, *values]


def _unit(name: str) -> Unit:
    if name.endswith("_bytes_per_s"):
        return Unit.BYTES_PER_S
    return Unit.NS if name.endswith("_ns") else Unit.SHARE
