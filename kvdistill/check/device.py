"""What a device sees: of a fio run, or of a replay of a trace, by `kvreplay probe`, distilled as any source's.

A trace says what is asked of files. The block layer merges and splits that, so only a replay on the same disk shows
what a trace makes at the device.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvdistill.jobs.fio_program import HOW_TO_GET, TUNABLE, run_fio
from kvdistill.profile.sources import Distilled, distil_source
from kvdistill.queries.window import RowWindow, place_of
from kvtrace.core import tables
from kvtrace.core.errors import ProbeUnavailable, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import BLOCKS_FILE, argv_of, read_run
from kvtrace.core.schema import BLOCKS, TRACE, arrow_schema
from kvtrace.core.units import NS_PER_S

ATTACHED = "probes attached"
"""What `kvreplay probe` says once it measures."""
_ATTACH_S, _END_S = 120, 120


@dataclass(frozen=True, slots=True)
class Seen:
    """A fio run: its JSON, and what the device saw; null with the reason in `why` if it could not be observed."""

    result: dict[str, Any]
    device: Distilled | None
    why: str | None


def disk_of(place: Path) -> Path | None:
    """Return the disk in /dev beneath `place`; null if no block device is (tmpfs, overlay, network)."""
    found = place.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(found)}:{os.minor(found)}")
    if not link.exists():
        return None
    block = link.resolve()
    return Path("/dev") / (block if (block / "queue").is_dir() else block.parent).name


def environment() -> dict[str, str]:
    """Return the environment to run fio in, as a job's head says: glibc asks for huge pages."""
    name, value = TUNABLE
    others = [t for t in os.environ.get(name, "").split(":") if t and not t.startswith("glibc.malloc.hugetlb=")]
    return os.environ | {name: ":".join([*others, value])}


def run_seen(job: Path, timeout_s: float, *, unseen: Path | None = None, keep: Path | None = None) -> Seen:
    """Run fio on `job` in its folder, which lies on the target's filesystem, with the probes attached if possible.

    If not, `unseen` is run in its place: a job whose own logs say what it did. What the probes wrote stays in the
    folder `keep`, if one is named.

    Raises:
        ProbeUnavailable: there is no fio.
        DeviceError: fio failed.

    """
    disk = disk_of(job.parent)
    program = shutil.which("fio")
    if program is None:
        raise ProbeUnavailable(f"fio is not installed; {HOW_TO_GET}")
    if disk is None:
        why = "no block device lies beneath the target"
        return Seen(run_fio(unseen or job, timeout_s, environment=environment()), None, why)
    # A name of its own, so that no other fio on the machine is taken for it.
    link = job.parent.resolve() / f"fio{os.getpid()}"  # fio is run in the job's folder
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    output = keep or job.parent / f"{job.stem}.seen"
    try:
        with _probe(link.name, disk, output) as refused:
            chosen = job if refused is None else unseen or job
            result = run_fio(chosen, timeout_s, program=str(link), environment=environment())
        if refused is not None:
            return Seen(result, None, refused)
        device, reason = direct_requests(output / BLOCKS_FILE, None, job.parent / f"{job.stem}.scratch")
        if device is None and unseen is not None:
            result = run_fio(unseen, timeout_s, environment=environment())
        return Seen(result, device, reason)
    finally:
        link.unlink()
        if keep is None:
            shutil.rmtree(output, ignore_errors=True)


@contextmanager
def _probe(comm: str, disk: Path, output: Path) -> Iterator[str | None]:
    """Yield null while the probes are attached, or why they are not."""
    command = argv_of("kvreplay", "probe", "--comm", comm, "--dev", str(disk), "-o", str(output), "--json")
    said = output.with_suffix(".log")
    with (
        said.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as process,  # noqa: S603 - our own program
    ):
        try:
            yield _attached(process, said)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _attached(process: subprocess.Popen[bytes], said: Path) -> str | None:
    """Wait until the probes are attached; return why they are not, or null."""
    until = time.monotonic() + _ATTACH_S
    while time.monotonic() < until:
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        if ATTACHED in lines:
            return None
        if process.poll() is not None:
            return lines[-1].removeprefix("error: ") if lines else "kvreplay probe ended"
        time.sleep(0.05)
    return f"the probes were not attached within {_ATTACH_S} s"


def direct_requests(blocks: Path, device: str | None, scratch: Path) -> tuple[Distilled | None, str | None]:
    """Distil the direct I/O in `blocks`, or say why that fails; all other requests are removed from the file."""
    scratch.mkdir(exist_ok=True)
    _keep_direct(blocks)
    try:
        return distil_source(blocks, device, Limit(), scratch), None
    except TraceError as error:
        return None, f"the device saw nothing that can be distilled: {error}"


def _keep_direct(blocks: Path) -> None:
    """Leave only direct I/O in `blocks`, which all jobs do: the rest is fio's own start, its program and the job file.

    The kernel flags direct requests as sync, and those of files it reads ahead or of metadata as such.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table, meta = pq.read_table(blocks), tables.open_table(blocks, BLOCKS).meta
    flags = table.column("rwbs").cast("string")
    is_direct = pc.and_(pc.match_substring(flags, "S"), pc.invert(pc.match_substring_regex(flags, "[AM]")))
    with tables.create(blocks, BLOCKS, meta) as out:
        for batch in table.filter(is_direct).cast(arrow_schema(BLOCKS)).to_batches():
            out.write(batch)


_LEAD_NS = NS_PER_S
"""Before the first operation, in which the data of the first writes is made."""
_START_S, _SLOWEST_BYTES_PER_S = 120, 20e6


def replay_seen(
    trace: Path, part: Distilled, place: Path, io_bytes: int, depth_cap: int | None
) -> tuple[Distilled | None, str]:
    """Replay `part` of `trace` at its times on one file in the folder `place`, with the probes attached.

    At most `depth_cap` I/Os are in flight, as in the jobs; null is kvreplay's own bound. Returns what the device saw,
    and how the replay went; or null, and why there is nothing to compare with.
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
    command += [] if depth_cap is None else ["--queue-depth", str(depth_cap)]
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
    summary = read_run(output).summary
    if summary.fell_behind:
        return None, f"check invalid at the device: its own reference, a replay by kvreplay, {summary.verdict}"
    seen, why_not = direct_requests(output / BLOCKS_FILE, disk.name, place / "replayed.scratch")
    return seen, why_not or summary.verdict


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
