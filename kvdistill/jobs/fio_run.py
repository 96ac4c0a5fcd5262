"""Run fio on a job with block-layer probes, if they are available.

The result holds the block requests, or the reason for their absence.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from kvdistill.jobs.closeness import ObservedRun
from kvdistill.jobs.job import TUNABLE, fio_program, run_fio
from kvdistill.jobs.reference import probed_program
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core import pa, pc, pq, tables
from kvtrace.core.errors import ProbeUnavailable, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.mounts import block_directory, numbered
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import BLOCKS, arrow_schema

_SECTOR_BYTES = 512
"""The unit of sectors in block events."""


def run_observed(
    job: Path,
    timeout_s: float,
    *,
    disk: Path | None,
    unseen: Path | None = None,
    keep: Path | None = None,
    largest_io_bytes: int | None = None,
) -> ObservedRun:
    """Run fio on `job` in its folder, with the probes attached to `disk` if possible.

    `disk` is the disk beneath the job's target; null if there is none. `largest_io_bytes` is as in
    `direct_requests`.

    Otherwise `unseen` is run instead: a job that logs its own I/O. The files of the probes stay in
    the folder `keep`, if given.

    ProbeUnavailable if there is no fio. DeviceError if fio failed.
    """
    program = fio_program()
    if disk is None:
        reason_text = "the target is not on a block device"
        return ObservedRun(
            run_fio(unseen or job, timeout_s, environment=environment()), None, reason_text
        )
    # A unique name distinguishes this fio from others on the machine.
    link = job.parent.resolve() / f"fio{os.getpid()}"  # fio is run in the job's folder
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    output = keep or job.parent / f"{job.stem}.seen"
    try:
        try:
            with probed_program(link.name, disk, output):
                result = run_fio(job, timeout_s, program=str(link), environment=environment())
        except ProbeUnavailable as refused:
            result = run_fio(unseen or job, timeout_s, program=str(link), environment=environment())
            return ObservedRun(result, None, str(refused))
        device, reason = direct_requests(
            output / BLOCKS_FILE,
            None,
            job.parent / f"{job.stem}.scratch",
            largest_io_bytes=largest_io_bytes,
        )
        if device is None and unseen is not None:
            result = run_fio(unseen, timeout_s, environment=environment())
        return ObservedRun(result, device, reason)
    finally:
        link.unlink()
        if keep is None:
            shutil.rmtree(output, ignore_errors=True)


def environment() -> dict[str, str]:
    """Return the environment of a job's head, in which glibc uses huge pages."""
    name, value = TUNABLE
    other_tunables = [
        tunable
        for tunable in os.environ.get(name, "").split(":")
        if tunable and not tunable.startswith("glibc.malloc.hugetlb=")
    ]
    return os.environ | {name: ":".join([*other_tunables, value])}


def disk_of(place: Path) -> Path | None:
    """Return the disk in /dev beneath `place`; null without one (tmpfs, overlay, network).

    `place` is a folder, a file, or a block device (a partition, for example).
    """
    status = place.stat()
    block = block_directory(numbered(status.st_rdev if place.is_block_device() else status.st_dev))
    if block is None:
        return None
    # A partition has no queue of its own; its disk, the directory above, has.
    return Path("/dev") / (block if (block / "queue").is_dir() else block.parent).name


def direct_requests(
    blocks: Path, device: str | None, scratch: Path, *, largest_io_bytes: int | None = None
) -> tuple[Distilled | None, str | None]:
    """Extract the profile of the direct I/O in `blocks`, or return the reason of a failure.

    All other requests are removed from the file: jobs use direct I/O only, and the rest is fio's
    start, its program and the job file. The kernel flags read-ahead as A and metadata as M. Direct
    writes are flagged as sync (S), buffered ones are not. Direct reads are S only if their program
    waits in the system call: those of libaio and io_uring have no flag. Process ids are removed,
    because all of fio's processes count.

    The block layer merges adjacent I/Os that wait at the same time, which differs from run to run.
    So a request longer than `largest_io_bytes`, the longest I/O that a program issues, counts as
    the I/Os of that length which it consists of. Null: requests count as they are.
    """
    table, meta = pq.read_table(blocks), tables.open_table(blocks, BLOCKS).meta
    flags = table.column("rwbs").cast("string")
    is_read = pc.starts_with(flags, "R")
    is_sync = pc.match_substring(flags, "S")
    is_cached_or_metadata = pc.match_substring_regex(flags, "[AM]")
    is_direct = pc.and_(pc.or_(is_read, is_sync), pc.invert(is_cached_or_metadata))
    with tables.create(blocks, BLOCKS, meta) as out:
        direct = table.filter(is_direct).cast(arrow_schema(BLOCKS))
        if largest_io_bytes is not None:
            direct = _without_merges(direct, largest_io_bytes)
        pid = direct.schema.field("pid")
        unknown_pids = pa.nulls(len(direct), pid.type)
        for batch in direct.set_column(
            direct.schema.names.index("pid"), pid, unknown_pids
        ).to_batches():
            out.write(batch)
    scratch.mkdir(exist_ok=True)
    try:
        return distil_source(blocks, device, Limit(), scratch), None
    except TraceError as error:
        return None, f"no block requests were seen: {error}"


def _without_merges(requests: pa.Table, largest_io_bytes: int) -> pa.Table:
    """Return `requests` with those that are longer than `largest_io_bytes` as several I/Os."""
    length = requests.column("bytes").to_numpy()
    parts = np.maximum(1, -(-length // largest_io_bytes))
    row = np.repeat(np.arange(len(parts)), parts)
    offset = (np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)) * largest_io_bytes
    divided = requests.take(pa.array(row))
    columns = {
        "sector": divided.column("sector").to_numpy() + offset // _SECTOR_BYTES,
        "bytes": np.minimum(length[row] - offset, largest_io_bytes),
    }
    for name, values in columns.items():
        index = divided.schema.get_field_index(name)
        divided = divided.set_column(index, divided.schema.field(name), pa.array(values))
    return divided
