"""Write an import into a folder: its tables, and a run.json or probe.json."""

from __future__ import annotations

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
from kvtrace.core.csv_tables import BLOCK_BYTES, decompress, line_blocks
from kvtrace.core.errors import ConfigError, DeviceError, TraceError, need_file
from kvtrace.core.files import ZSTD_MAGIC, read_json, write_json
from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.metrics.ops_table import record_ops
from kvtrace.core.metrics.recorder import DEFINITIONS, RunFacts
from kvtrace.core.parameters import named as named_parameter
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
    seal,
)
from kvtrace.core.schema import MOST, OBJECTS, OPS, TRACE, Table, arrow_schema, batch_of, enum_code
from kvtrace.core.tables import create, open_table
from kvtrace.core.temporary import sweep, temporary_folder
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
    """Import `files` of one format into the folder `outdir`, which is made if missing.

    `is_forced` replaces an earlier import.

    TraceError if a file is missing, damaged, or of another format. DeviceError if the folder holds
    other files, or cannot be written.
    """
    _check_folder(outdir, is_forced=is_forced)
    with temporary_folder("kvdistill-") as scratch, connect(scratch) as db:
        db.execute("SET TimeZone = 'UTC'")
        with _utf8_files(files, scratch) as utf8_files:
            imported = reader(options.format)(utf8_files, options, db)
        if options.tier is not None and not imported.tiers:
            raise ConfigError(
                f"{named_parameter('tier', options.tier)}: {options.format} has no tiers; remove"
                " the option"
            )
        outdir.mkdir(exist_ok=True)
        for name in _FILES:
            # Files of an earlier import must not remain next to new tables.
            (outdir / name).unlink(missing_ok=True)
        names = [path.name for path in files]
        config: dict[str, object] = {
            "import": str(options.format),
            "files": names,
            "tier": options.tier,
            **imported.config,
        }
        written_files = [str(rows.file) for rows in imported.rows]
        for rows in imported.rows:
            with create(
                outdir / rows.file, rows.table, _metadata(imported, rows.table, names, config, argv)
            ) as out:
                for batch in _batches(db, rows):
                    out.write(batch)
    metadata = _metadata(imported, TRACE, names, config, argv)
    started = None
    if imported.first_unix_ns is not None:
        started = datetime.fromtimestamp(imported.first_unix_ns / NS_PER_S, UTC).isoformat()
    if imported.probe is not None:
        metadata_fields = msgspec.to_builtins(metadata)
        facts = ("program", "version", "argv", "config", "config_sha256", "notes")
        head = {name: metadata_fields[name] for name in facts} | {"started_utc": started}
        write_json(outdir / PROBE_FILE, head | imported.probe)
        written_files.append(PROBE_FILE)
    elif OPS_FILE in written_files or imported.summary is not None:
        summary = imported.summary
        if summary is None:
            summary = summary_of_ops(outdir / OPS_FILE, options.format)
        run = _run_file(imported, summary, metadata, files[0].name, started)
        try:
            sealed = seal(run)
        except msgspec.ValidationError as error:
            raise TraceError(
                f"a number is beyond what a run holds: {error}", path=files[0]
            ) from None
        write_json(outdir / RUN_FILE, sealed)
        written_files.append(RUN_FILE)
    imported.account.files = written_files
    return imported.account


@contextmanager
def _utf8_files(files: Sequence[Path], scratch: Path) -> Iterator[list[Path]]:
    """Yield `files`, with UTF-8 copies of those that begin with a byte order mark.

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
    imported: Imported, summary: Summary, metadata: Metadata, file: str, started_utc: str | None
) -> RunFile:
    """Return the content of run.json in kvreplay's format; null where the import has no figure."""
    rows, facts = imported.account.rows_kept, imported.facts
    header = build_header(
        program=metadata.program,
        argv=metadata.argv,
        config=metadata.config,
        started_utc=started_utc,
        host=facts.host,
        trace=TraceNote(file=file, metadata=msgspec.structs.replace(metadata, rows=rows)),
        tiers={name: {"target": None, "engine": ENGINE} for name in imported.tiers},
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
    """Return the summary of an imported ops table, computed as for a live run."""
    recording = record_ops(ops)
    facts = RunFacts(verdict=f"imported from {source}", definitions=DEFINITIONS | _DEFINITIONS)
    return recording.recorder.summary(facts)


def _check_folder(outdir: Path, *, is_forced: bool) -> None:
    if outdir.exists() and not outdir.is_dir():
        raise DeviceError(f"{outdir} is not a directory; name the import's directory with -o")
    if not outdir.exists() and not outdir.parent.is_dir():
        raise DeviceError(f"{outdir.parent}: no such directory; create it first")
    if outdir.is_dir():
        # What a killed import was writing is no file of others.
        sweep(outdir)
    entries = list(outdir.iterdir()) if outdir.is_dir() else []
    if entries and {*map(_made_by, entries)} - {None} != {"kvdistill"}:
        raise DeviceError(f"{outdir} is not empty and holds no import; name another folder with -o")
    if entries and not is_forced:
        raise DeviceError(
            f"{outdir} holds an import already; name another with -o, or add"
            f" {named_parameter('force')} to replace it"
        )


def _made_by(path: Path) -> object:
    """Return the program that wrote the file at `path`; null if it is not one of kvtrace's files."""
    with suppress(TraceError):
        if path.name in (RUN_FILE, PROBE_FILE):
            return read_json(path, dict[str, object]).get("program")
        return open_table(path).meta.program if path.suffix == ".parquet" else None
    return None


def _metadata(
    imported: Imported,
    table: Table,
    files: Sequence[str],
    config: dict[str, object],
    argv: list[str],
) -> Metadata:
    """Return the metadata of a `table` that was imported from `files`."""
    source = {
        "kind": config["import"],
        "file": files[0],
        "files": files,
        "first_unix_ns": imported.first_unix_ns,
    }
    tiers = [TierFacts(name) for name in imported.tiers] if table in (TRACE, OBJECTS, OPS) else []
    notes = imported.account.lines()
    try:
        return describe(table, "kvdistill", argv, config, tiers=tiers, source=source, notes=notes)
    except ValueError as error:
        # Names of jobs and devices become those of tiers.
        raise TraceError(str(error), path=files[0]) from None


ENGINE = "other"
INPUT = (
    "CREATE TABLE input (file INTEGER, line BIGINT, op TINYINT, name VARCHAR, offset_bytes BIGINT, "
    "length_bytes BIGINT, start_ns BIGINT, end_ns BIGINT, outcome TINYINT, io_bytes BIGINT)"
)
"""The table of imported operations, one row each.

`op` and `outcome` are codes; `end_ns` and `io_bytes` are null if the log has none.
"""
_CODES = {
    **dict.fromkeys(("tier", "rank"), 0),
    "phase": enum_code(TRACE, "phase", "other"),
    "kind": enum_code(OBJECTS, "kind", "other"),
    "engine": enum_code(OPS, "engine", ENGINE),
}


_HEAD_BYTES = 1 << 16


def fetch_row(db: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    """Return the single row of the result of `query`."""
    (row,) = db.execute(query).fetchall()
    return tuple(row)


def first_lines(path: Path) -> list[str]:
    """Return the lines in the first 64 KiB of `path`, plain or zstd.

    The last line may be cut. TraceError if the file is empty.
    """
    need_file(path)
    if is_zstd(path):
        head = next(decompress(path), b"")[:_HEAD_BYTES]
    else:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    text = head.decode(errors="replace")
    if not text.strip():
        raise TraceError("is empty, so there is nothing to import", path=path)
    return text.splitlines()


def is_zstd(path: Path) -> bool:
    """Return whether the content of `path` is zstd, whatever its name."""
    with path.open("rb") as file:
        return file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC


LINE_BYTES = 1 << 20
"""A line of a log is no longer. fio's histograms have 1,859 numbers, some 20 KiB."""
_SPARE_FIELDS = 8
"""Fields beyond the columns that DuckDB is left to reject: its time for a line is quadratic in them.
"""


def _text_chunks(path: Path) -> Iterator[bytes]:
    """Yield the text of a plain or zstd file, some MiB at a time."""
    if is_zstd(path):
        # `decompress` refuses decompression bombs, which DuckDB would decompress without limit.
        yield from decompress(path)
        return
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            yield data


def _is_crowded(line: bytes, delimiter: bytes, columns: int) -> bool:
    """Return whether a line has so many fields that DuckDB would take long to reject it."""
    return line.count(delimiter) > columns + _SPARE_FIELDS


def _crowded_lines(path: Path, delimiter: bytes, columns: int) -> int:
    """Return how many lines of `path` are crowded; TraceError for one of more than LINE_BYTES."""
    count = number = 0
    for block in line_blocks(_text_chunks(path), path):
        for line in block.split(b"\n")[: block.count(b"\n") or 1]:
            if len(line) > LINE_BYTES:
                message = f"this line is longer than {LINE_BYTES >> 20} MiB: not a line of a log"
                raise TraceError(message, path=path, row=number)
            count += _is_crowded(line, delimiter, columns)
            number += 1
    return count


def _write_uncrowded(path: Path, copy: Path, delimiter: bytes, columns: int) -> None:
    """Write a plain copy of `path` in which crowded lines have but one field too many."""
    replacement = delimiter.join([b"x"] * (columns + 1)) + b"\n"
    with copy.open("wb") as out:
        for block in line_blocks(_text_chunks(path), path):
            for line in block.splitlines(keepends=True):
                is_crowded = _is_crowded(line, delimiter, columns)
                out.write(replacement if is_crowded else line)


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
    """Create the table `raw` from the lines of `path` after `skip`: `line` (from 0) and `columns`.

    All columns are text. Missing columns at the end of a line are null. Lines with too many
    columns, or invalid text, are rejected and counted.

    TraceError if the file cannot be read to its end, or has a line of more than LINE_BYTES.
    """
    separator = delimiter.encode()
    if not _crowded_lines(path, separator, len(columns)):
        _load_file(db, path, path, columns, account, delimiter=delimiter, skip=skip, quote=quote)
        return
    with temporary_folder("kvdistill-") as scratch:
        copy = scratch / "lines"
        _write_uncrowded(path, copy, separator, len(columns))
        _load_file(db, copy, path, columns, account, delimiter=delimiter, skip=skip, quote=quote)


def _load_file(
    db: duckdb.DuckDBPyConnection,
    file: Path,
    path: Path,
    columns: Sequence[str],
    account: Account,
    *,
    delimiter: str,
    skip: int,
    quote: str,
) -> None:
    """Create the table `raw` from the lines of `file`, which are those of `path`."""
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
    options = {
        "delim": delimiter,
        "quote": quote,
        "escape": quote,
        "compression": "zstd" if is_zstd(file) else "none",
    }
    option_text = ", ".join(f"{name}={literal(value)}" for name, value in options.items())
    for table in ("raw", "reject_errors", "reject_scans"):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    settings = (
        "header=false, auto_detect=false, all_varchar=true, null_padding=true, store_rejects=true"
    )
    settings += f", columns={{{types}}}, skip={skip}, {option_text}"
    # Brackets keep DuckDB from taking the name for a pattern.
    name = literal(
        "".join(f"[{character}]" if character in "*?[" else character for character in str(file))
    )
    query = f"SELECT row_number() OVER () - 1 AS line, * FROM read_csv({name}, {settings})"
    try:
        db.execute(f"CREATE TABLE raw AS {query}")
    except duckdb.OutOfMemoryException:
        # `connect` converts this one.
        raise
    except duckdb.Error as error:
        raise TraceError(
            f"cannot be read to its end: {str(error).splitlines()[0]}", path=path
        ) from None
    (rows,) = fetch_row(db, "SELECT count(*) FROM raw")
    count, line, error_type = fetch_row(
        db, "SELECT count(DISTINCT line), min(line), min_by(error_type, line) FROM reject_errors"
    )
    account.rows_read += rows + count
    account.leave_out(
        "columns do not match the format",
        count,
        f"{path.name}, line {line}: {str(error_type).replace('_', ' ').lower()}",
    )


def leave_out(
    db: duckdb.DuckDBPyConnection, path: Path, account: Account, reasons: dict[str, str]
) -> None:
    """Delete rows of `raw` for each reason (reason: SQL condition), and count them."""
    for reason, condition in reasons.items():
        count, line = fetch_row(db, f"SELECT count(*), min(line) FROM raw WHERE {condition}")
        account.leave_out(reason, count, f"{path.name}, row {line}")
        if count:
            db.execute(f"DELETE FROM raw WHERE {condition}")


def finish(
    db: duckdb.DuckDBPyConnection, files: Sequence[Path], account: Account, *, is_measured: bool
) -> tuple[list[Rows], int]:
    """Return the tables of the rows in `input`, and the first start (Unix ns), their time 0.

    White space in names, which the tables cannot hold, becomes `%20` and the like.

    TraceError if no row was accepted.
    """
    (early,) = fetch_row(db, f"DELETE FROM input WHERE start_ns NOT BETWEEN -{MOST} AND {MOST}")
    account.leave_out("a time that 64 bits of ns cannot hold", early, f"in {files[0].name}")
    count, first_ns = fetch_row(db, "SELECT count(*), min(start_ns) FROM input")
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
        present = {name: batch.column(name) for name in table.names if name in batch.schema.names}
        columns = {
            name: array.to_numpy() if name in enums else array.cast(types.field(name).type)
            for name, array in present.items()
        }
        # Constants for columns that no log has: tier 0, rank 0, and the enum value `other`.
        yield batch_of(
            table, columns | {name: np.full(batch.num_rows, code) for name, code in _CODES.items()}
        )
