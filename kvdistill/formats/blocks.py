"""Block requests, as `kvreplay probe` or an import of blkparse keeps them, as a trace that kvreplay issues again.

A place is what begins at one address, and an object: requests on one place keep their order where one is a write, and
others go at their own times, as the device got them. Places that overlap lie apart in a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvdistill.formats.formats import Account, Imported, ImportOptions
from kvdistill.formats.rows import DELETE, INPUT, OK, finish
from kvdistill.formats.text import one
from kvdistill.queries.database import literal, named, query
from kvtrace.core import tables
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import BLOCKS

if TYPE_CHECKING:
    import duckdb

_NOTES = [
    "an object is what begins at one address of the device; objects that overlap there lie apart in a replay",
    "times are when requests were queued; which application operation they belong to is not known",
]


def read(files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import the requests of one device; `options.tier` names it where there are several.

    Raises:
        TraceError: the file is damaged, or holds no read or write.
        ConfigError: there are several files or devices to choose from, or no such device.

    """
    if len(files) > 1:
        raise ConfigError(f"blocks: {len(files)} files; import one blocks.parquet at a time")
    (path,) = (file / BLOCKS_FILE if file.is_dir() else file for file in files)
    tables.checked(path, BLOCKS)
    db.execute(f"CREATE VIEW measured AS SELECT * FROM read_parquet({literal(path)})")
    devices = [row["device"] for row in query(db, "measured_devices")]
    device = options.tier or (devices[0] if len(devices) == 1 else None)
    if devices and device not in devices:
        what = "say which device with --tier" if device is None else f"no device {device!r} did I/O here"
        raise ConfigError(f"{path}: {what}; there is {', '.join(devices)}")
    db.execute(INPUT)
    db.execute(
        "INSERT INTO input SELECT 0, row_number() OVER (ORDER BY ts_ns, address), op, printf('%016x', address), 0, "
        f"length_bytes, ts_ns, NULL, {OK}, NULL FROM ({named('measured_blocks')}) WHERE op <> {DELETE}",
        {"device": device, "processes": None},
    )
    (seen,), (kept,) = one(db, "SELECT count(*) FROM measured"), one(db, "SELECT count(*) FROM input")
    account = Account(seen, kept, notes=list(_NOTES))
    account.leave_out("other devices, discards, flushes, and requests without an issue", seen - kept, f"in {path.name}")
    rows, _first_ns = finish(db, [path], is_measured=False)
    # Numbered by their addresses: a replay lays out what it reads in order of number, so that neighbours stay so.
    db.execute("CREATE TABLE numbers AS SELECT object_id, row_number() OVER (ORDER BY key) - 1 AS number FROM objects")
    for table in ("objects", "ordered"):
        db.execute(
            f"CREATE OR REPLACE TABLE {table} AS SELECT {table}.* REPLACE (number AS object_id) "
            f"FROM {table} JOIN numbers USING (object_id)"
        )
    return Imported(account, rows, [device or "device"])
