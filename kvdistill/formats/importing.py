"""Write what an importer found into a folder.

Tables, and a run.json or probe.json for reports and comparisons.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvdistill.formats.formats import Account, Imported, ImportOptions, Rows, reader
from kvdistill.queries.database import BATCH_ROWS, connect, literal, named
from kvtrace.core import duckdb, pa
from kvtrace.core.errors import ConfigError, DeviceError, TraceError, need_file
from kvtrace.core.files import ZSTD_MAGIC, read_json, write_json
from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.metrics.ops_table import record_ops
from kvtrace.core.metrics.recorder import DEFINITIONS, RunFacts
from kvtrace.core.run.figures import Summary
from kvtrace.core.run.run_builder import (
    RunOutcome,
    build_header,
    build_run_file,
    histogram_notes,
)
from kvtrace.core.run.run_file import (
    BLOCKS_FILE,
    OPS_FILE,
    PROBE_FILE,
    RUN_FILE,
    SERIES_FILE,
    PacingNote,
    RunFile,
    TraceNote,
    WindowNote,
    sealed,
)
from kvtrace.core.schema import OBJECTS, OPS, TRACE, Table, arrow_schema, batch_of, enum_code
from kvtrace.core.tables import create, open_table, unpacked
from kvtrace.core.text import has_byte_order_mark, utf8_lines
from kvtrace.core.units import NS_PER_S

TRACE_FILE, OBJECTS_FILE = "trace.parquet", "trace.objects.parquet"
_FILES = (RUN_FILE, PROBE_FILE, TRACE_FILE, OBJECTS_FILE, OPS_FILE, SERIES_FILE, BLOCKS_FILE)


def import_files(
    files: Sequence[Path],
    options: ImportOptions,
    outdir: Path,
    argv: list[str],
    *,
    is_forced: bool = False,
) -> Account:
    """Import `files` of one format into the folder `outdir`, made if missing.

    Over an earlier import if `is_forced`.

    TraceError if a file is missing, damaged, or not of the format. DeviceError if the folder holds
    something else, or cannot be written.
    """
    _check_folder(outdir, is_forced=is_forced)
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        db.execute("SET TimeZone = 'UTC'")
        with _utf8_files(files, Path(scratch)) as utf8_files:
            found = reader(options.format)(utf8_files, options, db)
        if options.tier is not None and not found.tiers:
            raise ConfigError(
                f"--tier {options.tier}: what {options.format} holds is of no tier; leave it out"
            )
        outdir.mkdir(exist_ok=True)
        for name in _FILES:
            # What an earlier import left must not stand beside new tables.
            (outdir / name).unlink(missing_ok=True)
        names = [path.name for path in files]
        config: dict[str, object] = {
            "import": str(options.format),
            "files": names,
            "tier": options.tier,
            **found.config,
        }
        written = [str(rows.file) for rows in found.rows]
        for rows in found.rows:
            with create(
                outdir / rows.file, rows.table, _metadata(found, rows.table, names, config, argv)
            ) as out:
                for batch in _batches(db, rows):
                    out.write(batch)
    metadata = _metadata(found, TRACE, names, config, argv)
    started = None
    if found.first_unix_ns is not None:
        started = datetime.fromtimestamp(found.first_unix_ns / NS_PER_S, UTC).isoformat()
    if found.probe is not None:
        known = msgspec.to_builtins(metadata)
        facts = ("program", "version", "argv", "config", "config_sha256", "notes")
        head = {name: known[name] for name in facts} | {"started_utc": started}
        write_json(outdir / PROBE_FILE, head | found.probe)
        written.append(PROBE_FILE)
    elif OPS_FILE in written or found.summary is not None:
        summary = found.summary
        if summary is None:
            summary = summary_of_ops(outdir / OPS_FILE, options.format)
        run = _run_file(found, summary, metadata, files[0].name, started)
        write_json(outdir / RUN_FILE, sealed(run))
        written.append(RUN_FILE)
    found.account.files = written
    return found.account


@contextmanager
def _utf8_files(files: Sequence[Path], scratch: Path) -> Iterator[list[Path]]:
    """Give copies in UTF-8 for those of `files` that begin with a byte order mark.

    PowerShell's `>` writes UTF-16, and other Windows programs a mark before UTF-8. A copy has the
    name of its file, and errors name the file itself.
    """
    originals: dict[Path, Path] = {}
    utf8_files = []
    for number, path in enumerate(files):
        if not path.is_file() or not has_byte_order_mark(path):
            utf8_files.append(path)
            continue
        copy = scratch / f"utf8-{number}" / path.name
        copy.parent.mkdir()
        with copy.open("wb") as out:
            out.writelines(utf8_lines(path))
        originals[copy] = path
        utf8_files.append(copy)
    try:
        yield utf8_files
    except TraceError as error:
        original = originals.get(Path(str(error.path)))
        if original is None:
            raise
        raise error.in_file(original) from None


def _run_file(
    found: Imported, summary: Summary, metadata: Metadata, file: str, started_utc: str | None
) -> RunFile:
    """Return the content of run.json, as kvreplay writes it; null where an import does not know."""
    rows, facts = found.account.rows_kept, found.facts
    header = build_header(
        program=metadata.program,
        argv=metadata.argv,
        config=metadata.config,
        started_utc=started_utc,
        host=facts.host,
        trace=TraceNote(file=file, metadata=msgspec.structs.replace(metadata, rows=rows)),
        tiers={name: {"target": None, "engine": ENGINE} for name in found.tiers},
        pacing=PacingNote(loop=None, speed=None),
        engine=facts.engine,
        window=WindowNote(rows=rows, is_whole_trace=None, span_ns=None, limit=None),
    )
    return build_run_file(
        header,
        RunOutcome(
            summary=summary,
            status=facts.status,
            reason=facts.reason,
            notes=[*metadata.notes, *histogram_notes(summary.figures, None)],
            serving=facts.serving,
        ),
    )


_DEFINITIONS = {
    "latency": "service time: completed_ns - submitted_ns, as the imported program measured them"
}


def summary_of_ops(ops: Path, source: str) -> Summary:
    """Return the summary of an imported table `ops`, by the recorder that live runs use."""
    recording = record_ops(ops)
    facts = RunFacts(verdict=f"imported from {source}", definitions=DEFINITIONS | _DEFINITIONS)
    return recording.recorder.summary(facts)


def _check_folder(outdir: Path, *, is_forced: bool) -> None:
    if outdir.exists() and not outdir.is_dir():
        raise DeviceError(f"{outdir} is not a directory; name the import's directory with -o")
    if not outdir.exists() and not outdir.parent.is_dir():
        raise DeviceError(f"{outdir.parent}: no such directory; create it first")
    held = list(outdir.iterdir()) if outdir.is_dir() else []
    if held and {*map(_made_by, held)} - {None} != {"kvdistill"}:
        raise DeviceError(f"{outdir} is not empty and holds no import; name another folder with -o")
    if held and not is_forced:
        raise DeviceError(
            f"{outdir} holds an import already; name another with -o, or add --force to replace it"
        )


def _made_by(path: Path) -> object:
    """Return the program that wrote the file at `path`.

    Null unless it is a table or figures of ours.
    """
    with suppress(TraceError):
        if path.name in (RUN_FILE, PROBE_FILE):
            return read_json(path, dict[str, object]).get("program")
        return open_table(path).meta.program if path.suffix == ".parquet" else None
    return None


def _metadata(
    found: Imported, table: Table, files: Sequence[str], config: dict[str, object], argv: list[str]
) -> Metadata:
    """Return the metadata of a `table` that was imported from `files`."""
    source = {
        "kind": config["import"],
        "file": files[0],
        "files": files,
        "first_unix_ns": found.first_unix_ns,
    }
    tiers = [TierFacts(name) for name in found.tiers] if table in (TRACE, OBJECTS, OPS) else []
    return describe(
        table, "kvdistill", argv, config, tiers=tiers, source=source, notes=found.account.lines()
    )


ENGINE = "other"
INPUT = (
    "CREATE TABLE input (file INTEGER, line BIGINT, op TINYINT, name VARCHAR, offset_bytes BIGINT, "
    "length_bytes BIGINT, start_ns BIGINT, end_ns BIGINT, outcome TINYINT, io_bytes BIGINT)"
)
"""One row an operation.

Codes of `op` and `outcome`; `end_ns` and `io_bytes` null where the log has none.
"""
_CODES = {
    **dict.fromkeys(("tier", "rank"), 0),
    "phase": enum_code(TRACE, "phase", "other"),
    "kind": enum_code(OBJECTS, "kind", "other"),
    "engine": enum_code(OPS, "engine", ENGINE),
}


_HEAD_BYTES = 1 << 16


def one(db: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    """Return the one row that `query` gives."""
    (row,) = db.execute(query).fetchall()
    return tuple(row)


def first_lines(path: Path) -> list[str]:
    """Return the lines in the first 64 KiB of `path`, plain or zstd.

    The last may be cut. TraceError if it is empty.
    """
    need_file(path)
    if is_zstd(path):
        head = next(unpacked(path), b"")[:_HEAD_BYTES]
    else:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    text = head.decode(errors="replace")
    if not text.strip():
        raise TraceError("empty: there is nothing to import", path=path)
    return text.splitlines()


def is_zstd(path: Path) -> bool:
    """Return whether `path` is compressed, whatever its name."""
    with path.open("rb") as file:
        return file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC


def load(
    db: duckdb.DuckDBPyConnection,
    path: Path,
    columns: Sequence[str],
    account: Account,
    *,
    delimiter: str,
    skip: int = 0,
    quote: str = "",
) -> None:
    """Make the table `raw` of the lines of `path` after `skip`.

    `line` (from 0) and `columns`, as text.

    Missing columns at the end of a line are null; lines with too many, or that are no text, are
    left out and counted.

    TraceError if the file cannot be read to its end.
    """
    if is_zstd(path):
        # DuckDB would unpack without end what was made to fill a machine.
        for _part in unpacked(path):
            pass
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
    options = {
        "delim": delimiter,
        "quote": quote,
        "escape": quote,
        "compression": "zstd" if is_zstd(path) else "none",
    }
    shown = ", ".join(f"{name}={literal(value)}" for name, value in options.items())
    for table in ("raw", "reject_errors", "reject_scans"):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    settings = (
        "header=false, auto_detect=false, all_varchar=true, null_padding=true, store_rejects=true"
    )
    settings += f", columns={{{types}}}, skip={skip}, {shown}"
    # Not to be taken for a pattern.
    name = literal("".join(f"[{c}]" if c in "*?[" else c for c in str(path)))
    query = f"SELECT row_number() OVER () - 1 AS line, * FROM read_csv({name}, {settings})"
    try:
        db.execute(f"CREATE TABLE raw AS {query}")
    except duckdb.OutOfMemoryException:
        # `connect` says it.
        raise
    except duckdb.Error as error:
        raise TraceError(
            f"cannot be read to its end: {str(error).splitlines()[0]}", path=path
        ) from None
    (rows,) = one(db, "SELECT count(*) FROM raw")
    count, line, why = one(
        db, "SELECT count(DISTINCT line), min(line), min_by(error_type, line) FROM reject_errors"
    )
    account.rows_read += rows + count
    account.leave_out(
        "not of the format's columns",
        count,
        f"{path.name}, line {line}: {str(why).replace('_', ' ').lower()}",
    )


def leave_out(
    db: duckdb.DuckDBPyConnection, path: Path, account: Account, reasons: dict[str, str]
) -> None:
    """Delete the rows of `raw` where the condition of a reason holds, reason by reason, and count
    them in `account`.
    """
    for reason, condition in reasons.items():
        count, line = one(db, f"SELECT count(*), min(line) FROM raw WHERE {condition}")
        account.leave_out(reason, count, f"{path.name}, row {line}")
        if count:
            db.execute(f"DELETE FROM raw WHERE {condition}")


def finish(
    db: duckdb.DuckDBPyConnection, files: Sequence[Path], account: Account, *, is_measured: bool
) -> tuple[list[Rows], int]:
    """Return the tables made of `input`, whose rows are kept, and its first start in Unix ns, which
    is their time 0.

    Names that our tables cannot hold (with white space) get `%20` and the like instead.

    TraceError if no row is left.
    """
    count, first_ns = one(db, "SELECT count(*), min(start_ns) FROM input")
    if not count:
        raise TraceError(
            "; since: ".join(["has no operation that can be imported", *account.left_out]),
            path=files[0],
        )
    account.rows_kept += count
    db.execute(f"UPDATE input SET start_ns = start_ns - {first_ns}, end_ns = end_ns - {first_ns}")
    for name in ("import_objects", "import_ordered"):
        db.execute(named(name))
    ordered = "FROM ordered ORDER BY row"
    rows = [
        Rows(OBJECTS_FILE, OBJECTS, "FROM objects ORDER BY object_id"),
        Rows(TRACE_FILE, TRACE, ordered),
    ]
    return [*rows, *([Rows(OPS_FILE, OPS, ordered)] if is_measured else [])], int(first_ns)


def _batches(db: duckdb.DuckDBPyConnection, rows: Rows) -> Iterator[pa.RecordBatch]:
    table = rows.table
    types, enums = (
        arrow_schema(table),
        {column.name for column in table.columns if column.type == "enum"},
    )
    for batch in db.sql(rows.query).to_arrow_reader(BATCH_ROWS):
        known = {name: batch.column(name) for name in table.names if name in batch.schema.names}
        columns = {
            name: of.to_numpy() if name in enums else of.cast(types.field(name).type)
            for name, of in known.items()
        }
        # What no log has: its only tier and rank, and the enum values that stand for none.
        yield batch_of(
            table, columns | {name: np.full(batch.num_rows, code) for name, code in _CODES.items()}
        )
