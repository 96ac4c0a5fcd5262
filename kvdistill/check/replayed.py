"""What a trace makes at a device: kvreplay replays the part that is checked, and its block requests are distilled.

A trace says what is asked of files. What arrives at the disk, the block layer decides, which merges and splits: only a
replay on the same disk can stand beside fio there.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import numpy as np

from kvdistill.check.device import direct_requests, disk_of
from kvdistill.profile.sources import Distilled
from kvdistill.queries.views import RowWindow, place_of
from kvtrace.core import tables
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import BLOCKS_FILE, argv_of, read_run
from kvtrace.core.schema import TRACE, arrow_schema
from kvtrace.core.units import NS_PER_S

_LEAD_NS = NS_PER_S
"""Before the first operation, in which the data of the first writes is made."""
_START_S, _SLOWEST_BYTES_PER_S = 120, 20e6


def replay_seen(trace: Path, part: Distilled, place: Path, io_bytes: int) -> tuple[Distilled | None, str]:
    """Replay `part` of `trace` at its times on one file in the folder `place`, with the probes beside it.

    Returns what the device saw, and how the replay went; or null, and why there is nothing to compare with.
    """
    disk, tier = disk_of(place), part.profile.tier.rpartition("@")[0] or part.profile.tier
    if disk is None:
        return None, "no block device lies beneath the target"
    if os.geteuid() != 0:
        return None, "to see what a replay of the trace makes at the device needs root"
    cut, output = place / "part.parquet", place / "replayed"
    write_part(trace, part, cut)
    command = argv_of("kvreplay", "run", str(cut), "--tier", f"{tier}={place / 'replayed.dat'}")
    command += ["--speed", "1", "--probes", "--io-bytes", str(io_bytes), "-o", str(output)]
    moved = 2 * part.profile.placed.span_bytes + part.profile.read.io_bytes + part.profile.write.io_bytes
    timeout_s = _START_S + part.profile.span_ns / NS_PER_S + moved / _SLOWEST_BYTES_PER_S
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603 - our own program
    except subprocess.TimeoutExpired:
        return None, f"kvreplay did not end within {timeout_s:.0f} s"
    if not (output / BLOCKS_FILE).is_file():
        said = done.stderr.strip().splitlines() or ["kvreplay ended without saying why"]
        why = next((line for line in said if "left out the probes: " in line), said[-1])
        return None, why.partition("error: ")[2] or why
    seen, why_not = direct_requests(output / BLOCKS_FILE, disk.name, place / "replayed.scratch")
    return seen, why_not or read_run(output).summary.verdict


def write_part(trace: Path, part: Distilled, target: Path) -> None:
    """Write the rows of `trace` that `part` was distilled from to `target`, the first a second after the start."""
    import pyarrow as pa
    import pyarrow.compute as pc

    reader = tables.open_table(trace, TRACE)
    place, window, first = place_of(reader.meta, part.profile.tier), RowWindow(part.limit), None
    # What one node has is a trace of one node.
    tiers = [TierFacts(tier.name, tier.capacity_bytes) for tier in reader.meta.tiers]
    with tables.create(target, TRACE, msgspec.structs.replace(reader.meta, tiers=tiers)) as out:
        for batch in reader.batches():
            rows = batch.filter(pa.array(place.holds(batch)))
            looked_at = {name: rows.column(name).to_numpy() for name in ("ts_ns", "length_bytes")}
            op = rows.column("op").indices.to_numpy()
            kept = window.take({**looked_at, "op": op, "at": np.arange(rows.num_rows)})
            if kept is not None:
                first = int(kept["ts_ns"][0]) - _LEAD_NS if first is None else first
                taken = rows.take(pa.array(kept["at"]))
                times = pc.subtract(taken.column("ts_ns"), pa.scalar(first, pa.int64()))
                columns = [times if name == "ts_ns" else taken.column(name) for name in TRACE.names]
                out.write(pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TRACE)))
            if window.is_over:
                return
