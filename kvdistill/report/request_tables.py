"""The tables of what a run did for whole requests: classes of service, time to the first token, health criteria."""

from __future__ import annotations

from typing import Any

from kvtrace.core.document.document import Cell, ReportColumn, ReportTable, Sheet, Unit, columns_of, parameters
from kvtrace.core.run.figures import ClassFigures, Distribution, Mlperf, RequestFigures, Serving
from kvtrace.core.run.run_file import RunFile

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
SERVING_FIGURES = {
    "requests": Unit.COUNT,
    "failed_requests": Unit.COUNT,
    "input_tokens": Unit.COUNT,
    "output_tokens": Unit.COUNT,
    "requests_per_s": Unit.PER_S,
    "input_tokens_per_s": Unit.PER_S,
    "output_tokens_per_s": Unit.PER_S,
}
"""Of a serving benchmark."""
SERVING_TIMES = {
    "first_token": "to the first token",
    "inter_token": "between two tokens",
    "output_token": "a token after the first, by answer",
    "answer": "to the last token",
}
_TARGETS = ("p95", "p99", "p99_9", "p99_99")


def request_tables(run: RunFile | None) -> list[ReportTable]:
    """Return the tables of requests, classes of service and criteria of `run`."""
    requests, mlperf = (None, None) if run is None else (run.requests, run.mlperf)
    if run is not None and isinstance(run.serving, Serving):
        return _served(run.serving)
    return [*_requests(requests), *_classes(requests, mlperf), _criteria(mlperf)]


def _served(found: Serving) -> list[ReportTable]:
    figures = {name.replace("_", " "): Cell(getattr(found, name), unit) for name, unit in SERVING_FIGURES.items()}
    columns = columns_of("""
        text: measure
        count: count
        ns: mean_ns = mean, p50_ns = p50, p90_ns = p90, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9, max_ns = max
    """)
    rows = []
    for name, said in SERVING_TIMES.items():
        times = getattr(found, name)
        if times is not None:
            rows.append([said, *(getattr(times, column.name) for column in columns[1:])])
    note = f"As {found.benchmark} measured them, at the engine's front."
    return [
        parameters("Requests", Sheet.QOS, figures),
        ReportTable("Times of requests", Sheet.QOS, columns, rows, (), note),
    ]


def _requests(found: RequestFigures | None) -> list[ReportTable]:
    if found is None:
        return []
    columns = columns_of("""
        text: measure
        count: count = requests
        ns: mean_ns = mean, p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9, p99_99_ns = p99.99,
            max_ns = max
    """)
    rows = [_row("storage time", found.storage)]
    if found.response is not None:
        rows.append(_row("response time", found.response))
    if found.first_token is not None:
        rows.append(_row("time to the first token, modelled", found.first_token))
    said = found.first_token_definition if found.first_token is not None else found.first_token_reason or "not known"
    note = (
        "Storage time: in which at least one of a request's operations was in flight. Response time, of an open loop: "
        "in which at least one was due and not completed."
    )
    return [ReportTable("Requests", Sheet.QOS, columns, rows, (), f"{note} Time to the first token: {said}.")]


def _classes(found: RequestFigures | None, mlperf: Mlperf | None) -> list[ReportTable]:
    if found is None or not found.classes:
        reason = (mlperf.qos_reason if mlperf else None) or "the run does not say which class a request is of"
        return [parameters("Classes of service", Sheet.QOS, {"QoS": f"not measured: {reason}"})]
    note = mlperf.qos_definition.strip() if mlperf else ""
    columns = columns_of("""
        text: qos = class
        count: count = requests
        share: share_within_p95_target = within p95 target
        text: verdict
    """)
    rows: list[list[Any]] = [[c.qos, c.storage.count, c.share_within_p95_target, c.verdict] for c in found.classes]
    said = f"{note[:1].upper()}{note[1:]}." if note else ""
    judged = ReportTable("Classes of service", Sheet.QOS, columns, rows, (), said)
    columns = columns_of("""
        text: qos = class, percentile
        ns: reached_ns = reached, target_ns = target
        text: verdict
    """)
    rows = [_against_target(c, name) for c in found.classes for name in _TARGETS]
    reached = "Reached: the response time in an open loop, else the storage time."
    return [judged, ReportTable("Targets of the classes", Sheet.QOS, columns, rows, (), reached, 2)]


def _against_target(of_class: ClassFigures, name: str) -> list[Any]:
    judged = of_class.storage if of_class.response is None else of_class.response
    reached, target = getattr(judged, f"{name}_ns"), of_class.targets_ns.get(name)
    is_known = reached is not None and target is not None
    verdict = ("pass" if reached <= target else "fail") if is_known else "not measured"
    return [of_class.qos, name.replace("_", "."), reached, target, verdict]


def _criteria(mlperf: Mlperf | None) -> ReportTable:
    if mlperf is None or not mlperf.criteria:
        return parameters("Criteria of MLPerf", Sheet.QOS, {"criteria": "not measured: this run judged none"})
    names = ("verdict", "measured", "threshold", "definition")
    columns = [ReportColumn("name", "criterion"), *(ReportColumn(name, name) for name in names)]
    rows = [
        [c.name, c.verdict, Cell(c.measured, _unit(c.name)), Cell(c.threshold, _unit(c.name)), c.definition]
        for c in mlperf.criteria
    ]
    note = "Latencies must be below their thresholds, others above."
    return ReportTable("Criteria of MLPerf", Sheet.QOS, columns, rows, (), note)


def _row(label: str, distribution: Distribution) -> list[Any]:
    return [label, *(getattr(distribution, name) for name in _NAMES)]


def _unit(name: str) -> Unit:
    if name.endswith("_bytes_per_s"):
        return Unit.BYTES_PER_S
    return Unit.NS if name.endswith("_ns") else Unit.SHARE
