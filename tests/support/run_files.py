"""The content of a run.json for tests, with figures of their own."""

from __future__ import annotations

from typing import Any

from kvtrace.core.metadata import Metadata
from kvtrace.core.run.figures import Distribution, Figures, Summary
from kvtrace.core.run.run_file import EngineNote, PacingNote, RunFile, TraceNote, WindowNote


def distribution(time_ns: int | None = 100, count: int = 1) -> Distribution:
    """Return a distribution whose every figure is `time_ns`."""
    return Distribution(count, time_ns, *[time_ns] * 6)


def figures(rate: float | None = None, time_ns: int | None = 100, **changed: Any) -> Figures:
    """Return the figures of the reads of tier nvme, at `rate` bytes and operations a second."""
    known: dict[str, Any] = {
        "tier": "nvme",
        "op": "read",
        "engine": "threads",
        "is_simulated": False,
        "operations": 1,
        "errors": 0,
        "corrupt": 0,
        "bytes": 1,
        "io_bytes": 1,
        "span_ns": 1,
        "bandwidth_bytes_per_s": rate,
        "operations_per_s": rate,
        "latency": distribution(time_ns),
        "lateness": None,
    }
    return Figures(**known | changed)


def summary(found: list[Figures], *, verdict: str = "closed", errors: int = 0) -> Summary:
    """Return the summary of a run with the figures `found`."""
    return Summary(
        verdict=verdict,
        wall_ns=1,
        operations=1,
        errors=errors,
        not_reached=0,
        figures=found,
        pace=None,
        skipped_rows={},
    )


def run_file(found: Summary, **changed: Any) -> RunFile:
    """Return a run.json with the summary `found`; `changed` fields replace the rest."""
    known: dict[str, Any] = {
        "program": "kvreplay",
        "version": "1",
        "argv": ["kvreplay", "run"],
        "config": {},
        "config_sha256": "",
        "started_utc": None,
        "status": "complete",
        "reason": None,
        "host": {"cpus": 2},
        "trace": TraceNote(
            file="t",
            metadata=Metadata(table="trace", program="kvtrace", argv=[], config_sha256="x"),
        ),
        "tiers": {"nvme": {"target": "/mnt", "engine": "threads"}},
        "pacing": PacingNote(loop="closed", speed=None),
        "engine": EngineNote(name="threads", queue_depth=8, io_bytes=1 << 20),
        "window": WindowNote(rows=5, is_whole_trace=True, span_ns=1, limit=None),
    }
    return RunFile(**known | changed, summary=found)
