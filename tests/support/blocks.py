"""Block requests as the probes keep them, of few columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from conftest import trace_meta

from kvtrace.core.schema import BLOCKS, arrow_schema
from kvtrace.core.tables import create

MS = 1_000_000


def write_blocks(
    path: Path,
    rows: list[tuple[float, str, int, int]],
    device: str = "vda",
    pids: list[int] | None = None,
    took_ns: int = MS // 10,
) -> Path:
    """Write requests of (ms when queued, flags, first byte, bytes), each of `took_ns`, to `path`.

    Return it.
    """
    schema, queued = arrow_schema(BLOCKS), [int(ms * MS) for ms, *_ in rows]
    columns = {
        "insert_ns": queued, "issue_ns": queued, "complete_ns": [ns + took_ns for ns in queued],
        "device": [device] * len(rows), "sector": [row[2] // 512 for row in rows], "bytes": [row[3] for row in rows],
        "rwbs": [row[1] for row in rows], "pid": pids or [1] * len(rows), "comm": ["app"] * len(rows),
        "error": [0] * len(rows),
    }  # fmt: skip
    with create(path, BLOCKS, trace_meta(BLOCKS)) as out:
        arrays = [pa.array(columns[name], schema.field(name).type) for name in schema.names]
        out.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return path
