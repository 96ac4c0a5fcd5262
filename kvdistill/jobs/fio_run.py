"""Run fio on a job, with the device observed where it can be.

What the device saw is kept as block requests; without probes the reason is kept instead.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kvdistill.jobs.closeness import Seen
from kvdistill.jobs.job import TUNABLE, fio_program, run_fio
from kvdistill.jobs.reference import probed_program
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core import pa, pc, pq, tables
from kvtrace.core.errors import ProbeUnavailable, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import BLOCKS, arrow_schema


def run_seen(
    job: Path, timeout_s: float, *, unseen: Path | None = None, keep: Path | None = None
) -> Seen:
    """Run fio on `job` in its folder, which lies on the target's filesystem, with the probes
    attached if possible.

    If not, `unseen` is run in its place: a job whose own logs say what it did. What the probes
    wrote stays in the folder `keep`, if one is named.

    ProbeUnavailable if there is no fio. DeviceError if fio failed.
    """
    disk, program = disk_of(job.parent), fio_program()
    if disk is None:
        why = "no block device lies beneath the target"
        return Seen(run_fio(unseen or job, timeout_s, environment=environment()), None, why)
    # A name of its own, so that no other fio on the machine is taken for it.
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
            return Seen(result, None, str(refused))
        device, reason = direct_requests(
            output / BLOCKS_FILE, None, job.parent / f"{job.stem}.scratch"
        )
        if device is None and unseen is not None:
            result = run_fio(unseen, timeout_s, environment=environment())
        return Seen(result, device, reason)
    finally:
        link.unlink()
        if keep is None:
            shutil.rmtree(output, ignore_errors=True)


def environment() -> dict[str, str]:
    """Return the environment to run fio in, as a job's head says: glibc asks for huge pages."""
    name, value = TUNABLE
    others = [
        t
        for t in os.environ.get(name, "").split(":")
        if t and not t.startswith("glibc.malloc.hugetlb=")
    ]
    return os.environ | {name: ":".join([*others, value])}


def disk_of(place: Path) -> Path | None:
    """Return the disk in /dev beneath `place`.

    Null if no block device is (tmpfs, overlay, network).
    """
    found = place.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(found)}:{os.minor(found)}")
    if not link.exists():
        return None
    block = link.resolve()
    return Path("/dev") / (block if (block / "queue").is_dir() else block.parent).name


def direct_requests(
    blocks: Path, device: str | None, scratch: Path
) -> tuple[Distilled | None, str | None]:
    """Distil the direct I/O in `blocks`, or say why that fails.

    All other requests are removed from the file.

    All jobs do direct I/O: the rest is fio's own start, its program and the job file. The kernel
    flags direct requests as sync, and those of files it reads ahead or of metadata as such. Of the
    processes of fio's jobs none is a neighbour's, however little it does.
    """
    table, meta = pq.read_table(blocks), tables.open_table(blocks, BLOCKS).meta
    flags = table.column("rwbs").cast("string")
    is_direct = pc.and_(
        pc.match_substring(flags, "S"), pc.invert(pc.match_substring_regex(flags, "[AM]"))
    )
    with tables.create(blocks, BLOCKS, meta) as out:
        kept = table.filter(is_direct).cast(arrow_schema(BLOCKS))
        pid = kept.schema.field("pid")
        nobody = pa.nulls(len(kept), pid.type)
        for batch in kept.set_column(kept.schema.names.index("pid"), pid, nobody).to_batches():
            out.write(batch)
    scratch.mkdir(exist_ok=True)
    try:
        return distil_source(blocks, device, Limit(), scratch), None
    except TraceError as error:
        return None, f"no block requests to distil were seen: {error}"
