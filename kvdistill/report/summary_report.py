"""The report of a run whose operations were not kept: an import of figures alone, such as fio's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdistill.report.run import RunReport
from kvdistill.report.subject import Subject
from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_FIGURES = (
    "tier",
    "op",
    "engine",
    "operations",
    "errors",
    "corrupt",
    "bytes",
    "io_bytes",
    "span_ns",
    "bandwidth_bytes_per_s",
    "operations_per_s",
)


def summary_report(folder: Path, run: dict[str, Any]) -> RunReport:
    """Return the report of `run`, the run.json in `folder`: its figures, and nothing that would need its operations.

    Raises:
        ConfigError: it has no figures, or not those of this version.

    """
    try:
        found, trace = run["summary"]["figures"], run["trace"]
        latency = [{"tier": f["tier"], "op": f["op"]} | f["latency"] for f in found if f["latency"]["count"]]
        return RunReport(
            subject=Subject(
                file=trace["file"],
                table="run",
                rows=None,
                program=run["program"],
                version=run["version"],
                argv=run["argv"],
                preset=None,
                seed=None,
                config_sha256=run["config_sha256"],
                model=None,
                source=trace["metadata"]["source"],
                is_simulated=False,
                notes=run["notes"],
            ),
            run=run,
            figures=[{n: f[n] for n in _FIGURES} | {"rows": None, "skipped": None} for f in found],
            latency=latency,
            lateness=[],
            distributions=[],
            sizes=[],
            size_bins=[],
            bucket_ns=None,
            over_time=[],
            heat=[],
            writes_per_day=[],
            reuse=[],
            probe=None,
            layers=None,
            closeness=None,
        )
    except (KeyError, TypeError):
        raise ConfigError(f"{folder}: its run.json has no figures that this version knows, and no operations") from None
