"""Write placed operations as fio's iolog version 3: one file, times in microseconds, long operations split.

fio drops the gap after timestamp 0, so time starts at 1; it knows no delete, so deletes only free space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.core.files import aside
from kvtrace.core.schema import TRACE, enum_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST_US = 1
MAX_NAME = 256
_READ = enum_code(TRACE, "op", "read")
_NS_PER_US = 1000
# A row may become many lines: 32 MiB objects are 32 each.
_BATCH_ROWS = 1 << 14


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a log holds, as fio will count it."""

    file: str
    target: str
    max_io_bytes: int
    """Longer operations are split at this."""
    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    split_ops: int
    last_us: int
    """The last timestamp; the first is 1."""
    largest_io_bytes: int
    max_burst_ios: int
    """The most lines that share one timestamp."""


def split_ios(ios: Path, max_io_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the operations of `ios` as fio will see them, in order, as numpy arrays.

    `us` (timestamp), `is_read`, `offset`, `length`, and `part` (0 for the first of a split operation).
    """
    import numpy as np
    import pyarrow.parquet as pq

    first = None
    for batch in pq.ParquetFile(ios).iter_batches(
        batch_size=_BATCH_ROWS, columns=["ts_ns", "op", "address", "io_bytes"], use_threads=False
    ):
        ts, op, address, length = (column.to_numpy() for column in batch.columns)
        kept = np.flatnonzero(length > 0)
        if not len(kept):
            continue
        ts, op, address, length = ts[kept], op[kept], address[kept], length[kept]
        first = ts[0] if first is None else first
        parts = -(-length // max_io_bytes)
        row = np.repeat(np.arange(len(parts)), parts)
        part = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        yield {
            "us": FIRST_US + (ts[row] - first) // _NS_PER_US,
            "is_read": op[row] == _READ,
            "offset": address[row] + part * max_io_bytes,
            "length": np.minimum(length[row] - part * max_io_bytes, max_io_bytes),
            "part": part,
        }


def write_iolog(path: Path, ios: Path, target: str, max_io_bytes: int) -> LogSummary:
    """Write the operations of `ios` to `path` as an iolog on the file or device `target`."""
    import numpy as np
    import polars as pl

    counts = dict.fromkeys(
        ("read_ios", "write_ios", "read_bytes", "write_bytes", "split_ops", "last_us", "largest_io_bytes"), 0
    )
    burst, burst_us, max_burst = 0, -1, 0
    with aside(path) as temporary, temporary.open("wb") as out:
        out.write(f"fio version 3 iolog\n{FIRST_US} {target} add\n{FIRST_US} {target} open\n".encode())
        for part in split_ios(ios, max_io_bytes):
            frame = pl.DataFrame({"us": part["us"], "offset": part["offset"], "length": part["length"]}).select(
                "us", pl.lit(target).alias("name"),
                pl.Series("op", np.where(part["is_read"], "read", "write")), "offset", "length",
            )  # fmt: skip
            frame.write_csv(out, include_header=False, separator=" ", quote_style="never")
            for name, chosen in (("read", part["is_read"]), ("write", ~part["is_read"])):
                counts[f"{name}_ios"] += int(chosen.sum())
                counts[f"{name}_bytes"] += int(part["length"][chosen].sum())
            counts["split_ops"] += int((part["part"] == 1).sum())
            counts["largest_io_bytes"] = max(counts["largest_io_bytes"], int(part["length"].max()))
            times, lines = np.unique(part["us"], return_counts=True)
            lines[0] += burst if times[0] == burst_us else 0
            burst_us, burst, max_burst = int(times[-1]), int(lines[-1]), max(max_burst, int(lines.max()))
        counts["last_us"] = burst_us
        out.write(f"{counts['last_us']} {target} close\n".encode())
    return LogSummary(file=path.name, target=target, max_io_bytes=max_io_bytes, max_burst_ios=max_burst, **counts)
