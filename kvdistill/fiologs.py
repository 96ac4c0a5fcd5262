"""Read back what fio did: its per-I/O logs and the iologs it writes, as `Stream`s in order of issue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.closeness import Stream
from kvdistill.iolog import split_ios

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_US_PER_MS = 1000


def source_stream(ios: Path, max_io_bytes: int) -> Stream:
    """Return the operations of `ios` as fio should issue them, split at `max_io_bytes`."""
    parts = list(split_ios(ios, max_io_bytes))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Stream(whole["us"], whole["is_read"], whole["offset"], whole["length"], whole["part"] == 0)


def replayed_stream(log: Path, source: Stream) -> Stream:
    """Return what fio's submission latency log says of a replay of `source`.

    The log has one line an I/O, in order of submission, with the time in whole milliseconds.
    """
    time_ms, _latency, direction, length, offset = _columns(log, ",", 5)
    same = len(time_ms) == len(source.us)
    return Stream(
        time_ms * _US_PER_MS, direction == 0, offset, length,
        source.starts_op if same else np.ones(len(time_ms), dtype=bool), resolution_us=_US_PER_MS,
    )  # fmt: skip


def drawn_stream(logs: Sequence[Path], span_us: int | None) -> Stream:
    """Return the I/Os of all jobs' written iologs, merged by time."""
    us, is_read, offset, length = [], [], [], []
    for log in logs:
        fields = [f for f in (line.split() for line in log.read_text().splitlines()[1:]) if len(f) == 5]  # noqa: PLR2004
        us.append(np.array([int(f[0]) for f in fields], dtype=np.int64))
        is_read.append(np.array([f[2] == "read" for f in fields], dtype=bool))
        offset.append(np.array([int(f[3]) for f in fields], dtype=np.int64))
        length.append(np.array([int(f[4]) for f in fields], dtype=np.int64))
    times = np.concatenate(us)
    order = np.argsort(times, kind="stable")
    return Stream(
        times[order], np.concatenate(is_read)[order], np.concatenate(offset)[order],
        np.concatenate(length)[order], np.ones(len(order), dtype=bool), span_us=span_us,
    )  # fmt: skip


def _columns(path: Path, separator: str, count: int) -> list[Any]:
    import polars as pl

    if path.stat().st_size == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(count)]
    frame = pl.read_csv(path, has_header=False, separator=separator, infer_schema=False)
    names = frame.columns[:count]
    frame = frame.select(pl.col(name).str.strip_chars().cast(pl.Int64) for name in names)
    return [frame[name].to_numpy() for name in names]
