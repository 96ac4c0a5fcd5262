"""Builds the content of run.json for a replay, a recovered run, several ranks and an import.

    header = build_header(program="kvreplay", argv=[...], config={...}, ...)
    run = build_run_file(header, RunOutcome(summary=recorder.summary(facts)))

The header has the facts that are known before the first operation is submitted; the outcome has all
others. No other module builds a run.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from kvtrace import __version__
from kvtrace.core.config import sha256
from kvtrace.core.json_types import JsonObject
from kvtrace.core.run.figures import (
    CheckpointFigures,
    Figures,
    Metrology,
    Mlperf,
    RequestFigures,
    Serving,
    Summary,
)
from kvtrace.core.run.run_file import (
    DataNote,
    DeviceIo,
    EngineNote,
    PacingNote,
    Populated,
    Preconditioned,
    Prepared,
    ProbesNote,
    RanksNote,
    RunBegun,
    RunFile,
    Smart,
    SmartReadings,
    TraceNote,
    Verification,
    WindowNote,
)

COMPLETE, RUNNING = "complete", "running"


def build_header(
    *,
    program: str,
    argv: list[str],
    config: JsonObject,
    started_utc: str | None,
    host: JsonObject,
    trace: TraceNote,
    tiers: dict[str, JsonObject],
    pacing: PacingNote,
    engine: EngineNote,
    window: WindowNote,
    preconditioned: Sequence[Preconditioned] = (),
    populated: Populated | None = None,
    prepared: Prepared | None = None,
    data: DataNote | None = None,
    smart: dict[str, SmartReadings] | None = None,
) -> RunBegun:
    """Return the content of run.json that is known before the first operation is submitted."""
    return RunBegun(
        program=program,
        version=__version__,
        argv=argv,
        config=config,
        config_sha256=sha256(config),
        started_utc=started_utc,
        status=RUNNING,
        reason=None,
        host=host,
        trace=trace,
        tiers=tiers,
        pacing=pacing,
        engine=engine,
        window=window,
        preconditioned=list(preconditioned),
        populated=populated,
        prepared=prepared,
        data=data,
        smart={} if smart is None else smart,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The results of a run. A value that was not measured is null, unset or empty."""

    summary: Summary
    status: str = COMPLETE
    reason: str | None = None
    """Why the run is not complete."""
    smart: dict[str, Smart] = field(default_factory=dict)
    """By drive: its SMART health data after the run."""
    verification: Verification | None = None
    device_io: dict[str, DeviceIo] = field(default_factory=dict)
    probes: ProbesNote | None = None
    notes: list[str] = field(default_factory=list)
    requests: RequestFigures | None = None
    serving: Serving | UnsetType = UNSET
    mlperf: Mlperf | None = None
    checkpoints: CheckpointFigures | None = None
    metrology: Metrology | None = None
    ranks: RanksNote | UnsetType = UNSET


def build_run_file(header: RunBegun, outcome: RunOutcome) -> RunFile:
    """Return the content of run.json."""
    # Not asdict: the header of a run that was cut off is a subclass with more fields.
    facts: JsonObject = {name: getattr(header, name) for name in RunBegun.__struct_fields__}
    facts["status"] = outcome.status
    facts["reason"] = outcome.reason
    facts["smart"] = {
        name: SmartReadings(before=readings.before, after=outcome.smart.get(name))
        for name, readings in header.smart.items()
    }
    return RunFile(
        **facts,
        verification=outcome.verification,
        device_io=outcome.device_io,
        probes=outcome.probes,
        notes=outcome.notes,
        requests=outcome.requests,
        serving=outcome.serving,
        mlperf=outcome.mlperf,
        checkpoints=outcome.checkpoints,
        metrology=outcome.metrology,
        ranks=outcome.ranks,
        summary=outcome.summary,
    )


HISTOGRAM_NOTE = "percentiles of "
"""The start of a note which says that percentiles come from a histogram."""


def histogram_notes(figures: Sequence[Figures], requests: RequestFigures | None) -> list[str]:
    """Return one note for each distribution whose percentiles come from a histogram, with their
    error.
    """
    distributions = [
        (f"{group.latency.count:,} {group.op}s on {group.tier}", group.latency) for group in figures
    ]
    if requests is not None:
        distributions.append((f"{requests.storage.count:,} requests", requests.storage))
    return [
        f"{HISTOGRAM_NOTE}{subject} come from a histogram, at most"
        f" {distribution.percentiles_within:.2%} off"
        for subject, distribution in distributions
        if not isinstance(distribution.percentiles_within, UnsetType)
    ]
