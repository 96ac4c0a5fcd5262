"""The tables of how close jobs come to their source: `closeness.json`, as `kvdistill fio --check` leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdistill.report.tables import at
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    headed,
    parameters,
)

if TYPE_CHECKING:
    from kvdistill.report.report import JobsReport

_UNITS = {"_per_s": Unit.PER_S, "_bytes": Unit.BYTES, "_share": Unit.SHARE, "_us": Unit.NUMBER}
_MARKS = {True: "pass", False: "FAIL"}


def jobs_document(report: JobsReport) -> Document:
    """Return the document of checked jobs."""
    profile = report.profile or {}
    origin = at(profile, "origin") or {}
    said = {name.replace("_", " "): value for name, value in origin.items() if isinstance(value, str | int | float)}
    facts = {"tier": profile.get("tier"), **said}
    return Document(
        name=report.name,
        headline="Jobs, and how close they come to their source",
        notes=[],
        chapters=[
            closeness_chapter(report.closeness),
            Chapter("What was distilled", [parameters("Source of the jobs", Sheet.PARAMETERS, facts)]),
        ],
    )


def closeness_chapter(found: dict[str, Any]) -> Chapter:
    """Return the chapter of what `--check` found."""
    comparisons = [c for c in found.get("comparisons") or [] if isinstance(c, dict)]
    notes = "; ".join(str(note) for note in found.get("notes") or [])
    note = f"fio {found.get('fio_version')}. {f'{notes[:1].upper()}{notes[1:]}.' if notes else ''}".strip()
    return Chapter("Closeness of the jobs", [_sides(comparisons, note), _verdicts(comparisons)])


def _sides(comparisons: list[dict[str, Any]], note: str) -> ReportTable:
    """Return a row a figure and a column a side: there are more figures than a page is wide."""
    sides = [
        (_name(comparison, side), side, comparison.get("window"))
        for comparison in comparisons
        for side in (comparison.get("source"), comparison.get("fio"))
        if isinstance(side, dict)
    ]
    names = dict.fromkeys(
        name
        for _label, side, _window in sides
        for name, value in side.items()
        if name != "name" and not isinstance(value, dict | list)
    )
    columns = [
        ReportColumn("figure", "figure"),
        *(ReportColumn(label, label, Unit.NUMBER) for label, _side, _window in sides),
    ]
    rows: list[list[Any]] = [["window", *(Cell(window, Unit.TEXT) for _label, _side, window in sides)]]
    rows += [
        [name.replace("_", " "), *(Cell(side.get(name), _unit(name)) for _label, side, _window in sides)]
        for name in names
    ]
    return ReportTable("Closeness", Sheet.PERFORMANCE, columns, rows if sides else [], (), note)


def _name(comparison: dict[str, Any], side: dict[str, Any]) -> str:
    """Return what to call a side; several jobs may have the source as theirs."""
    is_source = side is comparison.get("source")
    return f"source of {at(comparison, 'fio', 'name')}" if is_source else str(side.get("name"))


def _unit(name: str) -> Unit:
    if name == "bytes_per_s":
        return Unit.BYTES_PER_S
    if name == "ios":
        return Unit.COUNT
    if name.startswith("has_"):
        return Unit.TEXT
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), Unit.NUMBER)


def _verdicts(comparisons: list[dict[str, Any]]) -> ReportTable:
    columns = [*headed(job="job", target="target", wanted="wanted", reached="reached", verdict="verdict")]
    rows = []
    for comparison in comparisons:
        job = at(comparison, "fio", "name") or comparison.get("job")
        for verdict in comparison.get("verdicts") or []:
            value, wanted = verdict.get("value"), str(verdict.get("target"))
            is_share = "%" in wanted and isinstance(value, int | float) and not isinstance(value, bool)
            reached = Cell(value, Unit.SHARE if is_share else Unit.TEXT if isinstance(value, bool) else Unit.NUMBER)
            rows.append([job, verdict.get("name"), wanted, reached, _verdict(verdict)])
    note = "Shares are differences from the source: negative is less than it."
    return ReportTable("Targets of closeness", Sheet.PERFORMANCE, columns, rows, (), note, 2)


def _verdict(verdict: dict[str, Any]) -> str:
    if verdict.get("passes") is None:
        return "not measured" if verdict.get("value") is None else "too few I/Os to tell"
    return _MARKS[bool(verdict["passes"])]
