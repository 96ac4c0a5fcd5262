"""Write what an importer found into a folder: tables, and a run.json or probe.json for reports and comparisons."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvdistill.formats.formats import Imported, ImportOptions, reader, run_summary
from kvdistill.formats.text import OBJECTS_FILE, TRACE_FILE
from kvdistill.queries.database import connect, distributions, figures, measured_views
from kvdistill.queries.views import register
from kvtrace import __version__
from kvtrace.core.app import progress
from kvtrace.core.config import sha256
from kvtrace.core.errors import DeviceError, TraceError
from kvtrace.core.files import read_json, write_json
from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.run.run_file import BLOCKS_FILE, OPS_FILE, PROBE_FILE, RUN_FILE, SERIES_FILE
from kvtrace.core.schema import OBJECTS, OPS, TRACE
from kvtrace.core.statistics import QUANTILES
from kvtrace.core.tables import create, open_table
from kvtrace.core.units import NS_PER_S

_FILES = (RUN_FILE, PROBE_FILE, TRACE_FILE, OBJECTS_FILE, OPS_FILE, SERIES_FILE, BLOCKS_FILE)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import: files written, rows read, kept and left out."""

    files: list[str]
    rows_read: int
    rows_kept: int
    left_out: dict[str, int]
    """By reason."""
    examples: dict[str, str]
    """By reason, the first that was left out."""
    notes: list[str]


def import_files(
    files: Sequence[Path], options: ImportOptions, outdir: Path, argv: list[str], *, is_forced: bool = False
) -> Result:
    """Import `files` of one format into the folder `outdir`, made if missing; over an earlier import if `is_forced`.

    Raises:
        TraceError: a file is missing, damaged, or not of the format.
        DeviceError: the folder holds something else, or cannot be written.

    """
    _check_folder(outdir, is_forced=is_forced)
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        db.execute("SET TimeZone = 'UTC'")
        with progress(f"read {options.format}"):
            found = reader(options.format)(files, options, db)
        outdir.mkdir(exist_ok=True)
        for name in _FILES:
            # What an earlier import left must not stand beside new tables.
            (outdir / name).unlink(missing_ok=True)
        config = {"import": str(options.format), "files": [path.name for path in files], "tier": options.tier}
        written = [str(rows.file) for rows in found.rows]
        for rows in found.rows:
            with create(outdir / rows.file, rows.table, _metadata(found, rows.table, config, argv)) as out:
                for batch in rows.batches():
                    out.write(batch)
    if found.probe is not None:
        write_json(outdir / PROBE_FILE, _head(found, config, argv) | found.probe)
        written.append(PROBE_FILE)
    elif OPS_FILE in written or found.summary is not None:
        write_json(outdir / RUN_FILE, _manifest(outdir, found, config, argv, files))
        written.append(RUN_FILE)
    account = found.account
    return Result(
        files=written,
        rows_read=account.rows,
        rows_kept=account.kept,
        left_out=account.left_out,
        examples=account.examples,
        notes=account.notes,
    )


def _check_folder(outdir: Path, *, is_forced: bool) -> None:
    if outdir.exists() and not outdir.is_dir():
        raise DeviceError(f"{outdir} is not a directory; name the import's directory with -o")
    if not outdir.exists() and not outdir.parent.is_dir():
        raise DeviceError(f"{outdir.parent}: no such directory; make it first")
    if outdir.is_dir() and any(outdir.iterdir()):
        if not _is_import(outdir):
            raise DeviceError(f"{outdir} is not empty and holds no import; name another with -o")
        if not is_forced:
            raise DeviceError(f"{outdir} holds an import already; name another with -o, or say --force to replace it")


def _is_import(outdir: Path) -> bool:
    for path in outdir.iterdir():
        if path.name in (RUN_FILE, PROBE_FILE):
            try:
                return bool(read_json(path, dict[str, Any]).get("program") == "kvdistill")
            except TraceError:
                return False
        if path.suffix == ".parquet":
            try:
                return open_table(path).meta.program == "kvdistill"
            except TraceError:
                return False
    return False


def _metadata(found: Imported, table: Any, config: dict[str, Any], argv: list[str]) -> Metadata:
    source = {"kind": config["import"], "file": config["files"][0], "files": config["files"]}
    if found.first_unix_ns is not None:
        source["first_unix_ns"] = found.first_unix_ns
    tiers = [TierFacts(name) for name in found.tiers] if table in (TRACE, OBJECTS, OPS) else []
    return describe(table, "kvdistill", argv, config, tiers=tiers, source=source, notes=found.account.lines())


def _head(found: Imported, config: dict[str, Any], argv: list[str]) -> dict[str, Any]:
    """Return the fields that run.json and probe.json begin with, as kvreplay writes them."""
    started = None
    if found.first_unix_ns is not None:
        started = datetime.fromtimestamp(found.first_unix_ns / NS_PER_S, UTC).isoformat()
    return {
        "program": "kvdistill",
        "version": __version__,
        "argv": argv,
        "config": config,
        "config_sha256": sha256(config),
        "started_utc": started,
        "notes": found.account.lines(),
    }


def _manifest(
    outdir: Path, found: Imported, config: dict[str, Any], argv: list[str], files: Sequence[Path]
) -> dict[str, Any]:
    """Return the content of run.json; null where an import does not know a field."""
    summary = found.summary or _summary_of_ops(outdir / OPS_FILE, str(config["import"]))
    head = _head(found, config, argv)
    return head | {
        "status": "complete",
        "reason": None,
        "host": {},
        "trace": {
            "file": files[0].name,
            "metadata": msgspec.to_builtins(_metadata(found, TRACE, config, argv)) | {"rows": found.account.kept},
        },
        "tiers": {name: {"target": None, "engine": "other"} for name in found.tiers},
        "pacing": {"loop": None, "speed": None},
        "engine": {"name": "other", "queue_depth": None, "io_bytes": None},
        "window": {"rows": found.account.kept, "is_whole_trace": None, "span_ns": None, "limit": None},
        "device_io": {},
        "mlperf": None,
        "verification": None,
        **found.facts,
        "summary": summary,
    }


def _summary_of_ops(ops: Path, source: str) -> dict[str, Any]:
    """Return the summary of the `ops` that were just written, by the queries that a report of them uses."""
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [ops], Path(scratch))
        measured_views(db, None)
        counted = figures(db)
        _points, times = distributions(db, list(QUANTILES.values()))
    latencies = {(row["tier"], row["op"]): row for row in times["latency"]}
    shown = [
        {name: value for name, value in f.items() if name not in ("rows", "skipped")}
        | {"is_simulated": False, "latency": latency(latencies.get((f["tier"], f["op"]))), "lateness": None}
        for f in counted
    ]
    return run_summary(
        f"imported from {source}",
        shown,
        operations=sum(f["operations"] for f in counted),
        errors=sum(f["errors"] + f["corrupt"] for f in counted),
        not_reached=0,
    )


def latency(row: dict[str, Any] | None) -> dict[str, Any]:
    """Return a distribution of times from `row`; null for the figures that it has not."""
    names = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
    found = row or {}
    return {"count": found.get("count", 0)} | {name: found.get(name) for name in names}
