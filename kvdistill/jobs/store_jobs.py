"""Write random jobs for object stores from a `Profile`.

MinIO's warp and sai3-bench. Pure functions to text.

Both draw objects at random, so a job keeps mix, sizes, rate and number of objects, and says what it
loses.

- warp (`warp run FILE`) has no arrival process. Its sizes are uniform between a bucket's bound and the one before:
  a bound without weight just below each gives exact ones.
- sai3-bench (`sai3-bench run --config FILE`) samples prepared objects and paces with Poisson arrivals. Its sizes are
  one an operation entry, so each is an entry of its own with its weight; what replays exactly is the op log (oplog.py).

Beside that: how what a job asks for compares with what a replay did.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvdistill.formats.oplog import OpLog, Style, can_log, write_oplogs
from kvdistill.jobs.job import PROFILE, header, make_folder
from kvdistill.profile.profile import (
    DirectionProfile,
    Profile,
    SizeCount,
    mean_bytes,
    percentages,
    total_variation,
)
from kvdistill.profile.sources import distil_source
from kvtrace.core import np
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_json, write_text
from kvtrace.core.limit import Limit
from kvtrace.core.schema import MOST
from kvtrace.core.units import (
    NS_PER_MS,
    NS_PER_S,
    counted,
    format_bytes,
    format_count,
    format_duration,
    per_second,
)

_WORTH_TELLING = 0.0005
"""Shares below this are 0.0 % in print."""
_INSTANT = "all operations of the trace share one instant"


@dataclass(frozen=True, slots=True)
class StoreMix:
    """What is asked of a store.

    Sizes of GETs and PUTs by weight, and how many of each operation.
    """

    gets: Sequence[SizeCount]
    puts: Sequence[SizeCount]
    counts: tuple[int, int, int]
    """GETs, PUTs and DELETEs."""
    rate: float | None
    """Operations a second; null where all share one instant."""

    @property
    def figures(self) -> dict[str, float | None]:
        """Shares, mean sizes and rate, by name; null where there is none of it."""
        get, put, delete = (count / sum(self.counts) for count in self.counts)
        means = {"get_mean_bytes": self.gets, "put_mean_bytes": self.puts}
        found = {"get_share": get, "put_share": put, "delete_share": delete, "ops_per_s": self.rate}
        return found | {of: mean_bytes(sizes) if sizes else None for of, sizes in means.items()}


def profile_mix(profile: Profile, most_deletes: int = MOST) -> StoreMix:
    """Return what the source of `profile` does, with at most so many of its deletes."""
    counts = (profile.read.ops, profile.write.ops, min(profile.delete_ops, most_deletes))
    rate = per_second(sum(counts), profile.whole_ns)
    return StoreMix(profile.read.object_sizes, profile.write.object_sizes, counts, rate)


@dataclass(frozen=True, slots=True)
class StoreJob:
    """The text of one job, what it asks for, and what the format could not say of the profile."""

    text: str
    asks: StoreMix
    lost: list[str]


def _depth(profile: Profile, option: str, indent: str = "") -> tuple[int | None, list[str]]:
    """Return the operations in flight, null if the profile does not say, and the lines of the
    `option` that says them.

    Measured if they were timed, else a stage's, which bounds them.
    """
    stages, mean = profile.concurrency, None if profile.depth is None else profile.depth.mean
    if mean is not None:
        count, said = (
            max(1, math.ceil(mean)),
            f"measured: {mean:.3g} operations in flight, weighted by time",
        )
    elif stages is not None:
        count, bound = stages.max_stage_ops, "an upper bound, not a measured depth"
        said = f"the most operations of one stage (mean {stages.mean_stage_ops:.2f}): {bound}"
    else:
        return None, [f"{indent}# no {option}: the trace has no stages and no measured times"]
    return count, [f"{indent}# {said}", f"{indent}{option}: {count}"]


def _duration(profile: Profile, cap_ns: int, indent: str = "") -> str:
    """Return the option of how long a job runs: as long as the source, up to `cap_ns`."""
    if not profile.whole_ns:
        return f"{indent}# no duration: {_INSTANT}"
    return f'{indent}duration: "{max(1, min(profile.whole_ns, cap_ns) // NS_PER_MS)}ms"'


def _live(profile: Profile, sizes: Sequence[SizeCount]) -> int:
    """Return the most objects that lived at once.

    Of a source that knows none, as many of the mean of `sizes`.
    """
    space = profile.placed
    return space.peak_live_objects or round(space.peak_reserved_bytes / mean_bytes(sizes))


def _estimated(profile: Profile) -> str:
    return (
        ""
        if profile.placed.peak_live_objects
        else " (estimated: peak live bytes over their mean size)"
    )


def size_classes(sizes: Sequence[SizeCount], most: int) -> list[SizeCount]:
    """Return `sizes`, ascending, in at most `most` classes.

    If there are more, they are joined into runs of about as many operations, of their mean size:
    this keeps the bytes.
    """
    if len(sizes) <= most:
        return list(sizes)
    total, done = sum(s.ops for s in sizes), 0
    runs, joined = defaultdict[int, list[SizeCount]](list), Counter[int]()
    for size in sizes:
        # By its middle operation, so that a common size does not pull its neighbours in.
        runs[min(most - 1, (2 * done + size.ops) * most // (2 * total))].append(size)
        done += size.ops
    for run in runs.values():
        joined[max(1, round(mean_bytes(run)))] += sum(size.ops for size in run)
    return [SizeCount(size, ops) for size, ops in sorted(joined.items())]


def _classes_lost(
    what: str, direction: DirectionProfile, classes: Sequence[SizeCount]
) -> list[str]:
    """Return what `classes` lose of the sizes of `direction`, called `what`.

    Nothing if they are the same.
    """
    sizes = direction.object_sizes
    if not direction.ops or (moved := total_variation(sizes, classes)) < _WORTH_TELLING:
        return []
    part = (
        f"{moved:.1%} of {format_count(direction.ops)} get another size (total variation distance"
        f" {moved:.3f})"
    )
    exact = format_bytes(mean_bytes(sizes))
    return [f"sizes of {what}: {part}; mean {format_bytes(mean_bytes(classes))} instead of {exact}"]


def _random_lost(profile: Profile, hot: str, bursts: str, names: str) -> list[str]:
    """Return what every job of random operations loses, with its words for what is hot, bursty, and
    for names.
    """
    order = "the order of operations: the reuse distances of the trace are not kept"
    if (known := profile.locality) is not None:
        of = "" if known.is_whole else f"the first {known.ops:,} "
        hot += (
            f" (in the source, the hottest 10 % of 128 KiB blocks get {known.hot10_share:.1%} of"
            f" {of}operations)"
        )
        if known.reuse_p50_blocks is not None:
            order += f" (median in the source: {known.reuse_p50_blocks:,.0f} blocks)"
    if profile.arrivals is not None:
        said = profile.arrivals.dispersion
        bursts += f" (variance by mean of operations in the source: {said}; by chance it is 1)"
    lost = [
        hot,
        bursts,
        names,
        "dependencies of requests and stages: no operation waits for another",
        order,
    ]
    if profile.empty_ops:
        lost.append(f"left out: {counted(profile.empty_ops, 'operation')} of zero bytes")
    data = profile.data
    if data is not None and (data.dedup_ratio, data.compress_ratio) != (1, 1):
        lost.append(
            f"data reduction: the replay's data deduplicated {data.dedup_ratio:g}:1 and compressed "
            f"{data.compress_ratio:g}:1; this job sets neither"
        )
    return lost


WARP_JOB = "mixed.yml"
MIX_STEPS = 1000
"""warp draws operations from a deck of this many."""
_WARP_CLASSES = 256
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9.\[\]:{}_-]+")


_TARGET = re.compile(r"(s3|gs|gcs|az|file|direct)://[A-Za-z0-9._/:@-]+/")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a store's job.

    Of warp's, where the store and which the bucket is; of sai3-bench's, the base URI.
    """

    host: str = "127.0.0.1:9000"
    bucket: str = "kvdistill"
    target: str = "s3://kvdistill/"
    runtime_cap_ns: int = 300 * NS_PER_S

    def __post_init__(self) -> None:
        """Raise ConfigError for names that S3 or YAML do not take."""
        if not _BUCKET.fullmatch(self.bucket):
            raise ConfigError(
                f"--bucket {self.bucket}: a bucket has 3 to 63 letters a-z, digits, dots and"
                " hyphens"
            )
        if not _HOST.fullmatch(self.host):
            raise ConfigError(f"--host {self.host}: write it as HOST:PORT")
        if not _TARGET.fullmatch(self.target):
            raise ConfigError(
                f"--target {self.target}: write a base URI that ends in a slash, such as"
                " s3://bucket/ or direct:///mnt/x/"
            )


# Long: the job is one text.
def warp_job(profile: Profile, options: StoreOptions) -> StoreJob:
    """Return warp's mixed benchmark for `profile`."""
    # The sizes of the more frequent direction: warp has one distribution for what it writes and
    # reads.
    more = profile.read if profile.read.ops > profile.write.ops else profile.write
    classes = size_classes(more.object_sizes, _WARP_CLASSES)
    # It refuses to delete more than it writes.
    did = profile_mix(profile, profile.write.ops)
    (get, put, delete), lost = _deck(did.counts, profile.delete_ops)
    concurrent, in_flight = _depth(profile, "concurrent", "    ")
    # Without a number of its own, warp runs 20 at once.
    objects = max(_live(profile, [*did.gets, *did.puts]), (concurrent or 20) + 1)
    # To six digits, never in scientific notation, which YAML readers differ on.
    rate, pace = (
        None if did.rate is None else float(f"{did.rate:.6g}"),
        [f"  # no rps-limit: {_INSTANT}"],
    )
    if rate is not None:
        said = np.format_float_positional(rate, trim="-")
        pace = [
            "  advanced:",
            "    # requests a second, of each warp client",
            f"    rps-limit: {said}",
        ]
    lost += [
        *_classes_lost("PUTs", profile.write, classes),
        *_classes_lost("GETs, which read whole objects at random", profile.read, classes),
        *_random_lost(
            profile,
            "hot objects: warp reads and deletes all objects with equal probability",
            "bursts: requests are spaced evenly up to the rate limit",
            "object names: warp makes its own",
        ),
    ]
    size, count = mean_bytes(classes), format_count(objects)
    run = [
        f"export WARP_ACCESS_KEY=... WARP_SECRET_KEY=...; warp run {WARP_JOB}",
        (
            f"WARNING: warp deletes everything in the bucket {options.bucket}, before and after"
            " the run"
        ),
    ]
    if did.rate is not None:
        took = format_duration(objects / did.rate * NS_PER_S)
        run.append(
            f"the rate limit also applies to the upload of {count} objects before the run: that"
            f" takes {took}"
        )
    room = (
        f"{counted(objects, 'object')} of {format_bytes(size)} on average"
        f" ({format_bytes(objects * size)})"
    )
    needs = [f"space for {room}, and for what the run writes"]
    lines = [
        "warp:",
        "  api: v1",
        "  benchmark: mixed",
        "  remote:",
        f'    host: ["{options.host}"]',
        f'    bucket: "{options.bucket}"',
        "  params:",
        _duration(profile, options.runtime_cap_ns, "    "),
        *in_flight,
        f"    # peak of live objects{_estimated(profile)}; warp needs more than concurrent",
        f"    objects: {objects}",
        "    # one record a request, which kvdistill import warp reads",
        "    full: true",
        "    # per mille of requests",
        f"    distribution: {{get: {get}, stat: 0, put: {put}, delete: {delete}}}",
        (
            f"    # {format_count(len(classes))} sizes, in bytes, by how often they occur; those of"
            " weight 0 are bounds"
        ),
        "    obj:",
        f'      size: "{size_histogram(classes)}"',
        *pace,
    ]
    title = "warp: mixed benchmark of a KV-cache trace, objects drawn at random"
    asks = StoreMix(classes if get else [], classes if put else [], (get, put, delete), rate)
    return StoreJob(_text(title, profile, run, needs, lost, lines), asks, lost)


def _text(
    title: str,
    profile: Profile,
    run: list[str],
    needs: list[str],
    lost: list[str],
    lines: Iterable[str],
) -> str:
    head = header(title, profile, [("Run", run), ("Needs", needs), ("Not reproduced", lost)])
    return head + "".join(f"{line}\n" for line in lines)


def size_histogram(classes: Sequence[SizeCount]) -> str:
    """Return `classes`, ascending, as warp's `obj.size`.

    `bound:weight`, exact by bounds without weight.
    """
    bars: list[str] = []
    last = 0
    for size in classes:
        # A bucket draws from the bound before up to below its own; two equal bounds would end warp.
        if size.io_bytes != last:
            bars.append(f"{size.io_bytes}:0")
        bars.append(f"{size.io_bytes + 1}:{size.ops}")
        last = size.io_bytes + 1
    return ",".join(bars)


def _deck(counts: tuple[int, int, int], deletes: int) -> tuple[tuple[int, int, int], list[str]]:
    """Return GETs, PUTs and DELETEs in a deck of `MIX_STEPS`, and what that lost, of the source's
    `deletes` too.
    """
    get, put, delete = percentages(counts, MIX_STEPS)
    if delete > put:
        # Equal counts, of which the delete was rounded up: warp refuses to delete more than it
        # writes.
        put, delete = delete, put
    dropped = f"{format_count(deletes - counts[2])} of {format_count(deletes)} deletes"
    lost = [f"{dropped}: warp refuses to delete more than it writes"] if deletes > counts[2] else []
    for name, count, share in zip(
        ("GET", "PUT", "DELETE"), counts, (get, put, delete), strict=True
    ):
        if count and not share:
            lost.append(
                f"all {format_count(count)} {name}s: they are below warp's resolution of 0.1 % of"
                " requests"
            )
    return (get, put, delete), lost


SAI3_JOB = "workload.yaml"
_SAI3_CLASSES = 64
"""Sizes in each direction: each is an entry, and a folder of prepared objects."""
_MAX_WEIGHT = 2**32 - 1


# Long: the job is one text.
def sai3_workload(profile: Profile, options: StoreOptions) -> StoreJob:
    """Return sai3-bench's random workload for `profile`."""
    gets, puts = (
        size_classes(d.object_sizes, _SAI3_CLASSES) for d in (profile.read, profile.write)
    )
    did = profile_mix(profile)
    lost = [
        *_classes_lost("GETs", profile.read, gets),
        *_classes_lost("PUTs", profile.write, puts),
        *_random_lost(
            profile,
            "hot objects: prepared objects of a size are read with equal probability, those it"
            " wrote itself never",
            "bursts: arrivals are Poisson",
            "object names: sai3-bench makes its own",
        ),
    ]
    if profile.delete_ops:
        lost.append(
            f"what {counted(profile.delete_ops, 'delete')} would free: taken from prepared objects,"
            " not from those written, so the space in use grows by every PUT"
        )
    if did.rate is not None and round(did.rate) != did.rate:
        lost.append(
            f"the rate's fraction: {did.rate:.6g} operations a second, but sai3-bench takes whole"
            " ones"
        )
    rate = None if did.rate is None else max(1, round(did.rate))
    folders, needs = [], []
    if gets:
        # About as many as lived at once, by how often they are read.
        count = max(len(gets), _live(profile, profile.read.object_sizes))
        many = [max(1, n) for n in percentages([s.ops for s in gets], count)]
        folders = [(f"get-{s.io_bytes}/", n, s.io_bytes) for s, n in zip(gets, many, strict=True)]
        total = format_bytes(sum(n * size for _, n, size in folders))
        # With deletes it makes a pool of its own for them from every entry.
        twice = (
            ", twice: sai3-bench prepares separate objects to delete" if profile.delete_ops else ""
        )
        needs = [
            (
                f"space for {counted(sum(many), 'prepared object')} ({total}){twice}; and for what the"
                " run writes"
            )
        ]
    if profile.delete_ops:
        # The size of what is deleted moves no bytes; the smallest there is keeps the preparation
        # short.
        smallest = min(
            s.io_bytes for s in (*profile.read.object_sizes, *profile.write.object_sizes)
        )
        folders.append(("delete/", profile.delete_ops, smallest))
    # Weights are 32 bits in sum.
    scale = max(1, -(-sum(did.counts) // _MAX_WEIGHT))
    gets, puts = (
        [SizeCount(s.io_bytes, max(1, s.ops // scale)) for s in sizes] for sizes in (gets, puts)
    )
    deletes = max(1, profile.delete_ops // scale) if profile.delete_ops else 0
    lines = [
        f'target: "{options.target}"',
        _duration(profile, options.runtime_cap_ns),
        *_depth(profile, "concurrency")[1],
        *(
            [f"# no io_rate: {_INSTANT}"]
            if rate is None
            else ["io_rate:", f"  iops: {rate}", "  distribution: exponential"]
        ),
    ]
    if folders:
        lines += [
            "prepare:",
            f"  # peak of live objects{_estimated(profile)}",
            "  ensure_objects:",
        ]
    for folder, count, size in folders:
        lines += [
            f'    - base_uri: "{options.target}{folder}"',
            f"      count: {count}",
            f"      min_size: {size}",
        ]
        lines += [f"      max_size: {size}", "      fill: random"]
    lines.append("workload:")
    for s in gets:
        lines += [
            "  - op: get",
            f'    path: "get-{s.io_bytes}/prepared-*.dat"',
            f"    weight: {s.ops}",
        ]
    for s in puts:
        lines += ["  - op: put", f'    path: "put-{s.io_bytes}/"', f"    object_size: {s.io_bytes}"]
        lines.append(f"    weight: {s.ops}")
    if deletes:
        lines += ["  - op: delete", '    path: "delete/prepared-*.dat"', f"    weight: {deletes}"]
    run = [
        f"sai3-bench run --config {SAI3_JOB} --dry-run   # checks this file",
        f"sai3-bench run --config {SAI3_JOB}",
    ]
    asks = StoreMix(gets, puts, (sum(s.ops for s in gets), sum(s.ops for s in puts), deletes), rate)
    return StoreJob(
        _text("sai3-bench: random workload of a KV-cache trace", profile, run, needs, lost, lines),
        asks,
        lost,
    )


class StoreCloseness(msgspec.Struct, frozen=True, kw_only=True):
    """A job compared with a replay."""

    run: str
    job: dict[str, float | None]
    """The figures of its `StoreMix`, as is the next."""
    replay: dict[str, float | None]
    gets: int
    """Operations of the replay that went well, as are the next two."""
    puts: int
    deletes: int
    get_size_variation: float | None
    """Share of GETs whose size would have to change for both to have the same sizes.

    Null without GETs.
    """
    put_size_variation: float | None


def compare_with_run(asked: StoreMix, run: Path, tier: str) -> StoreCloseness:
    """Compare what a job asks for with what the replay `run` did on `tier`.

    ConfigError if the run is none, or has no such tier.
    """
    if not run.is_dir():
        raise ConfigError(f"--run {run}: name a run of kvreplay")
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch:
        did = profile_mix(distil_source(run, tier, Limit(), Path(scratch)).profile)
    gets, puts, deletes = did.counts
    return StoreCloseness(
        run=str(run),
        job=asked.figures,
        replay=did.figures,
        gets=gets,
        puts=puts,
        deletes=deletes,
        get_size_variation=(
            total_variation(did.gets, asked.gets) if did.gets and asked.gets else None
        ),
        put_size_variation=(
            total_variation(did.puts, asked.puts) if did.puts and asked.puts else None
        ),
    )


MAX_HOSTS = 1024


class StoreJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Files written for warp or sai3-bench.

    `lost` is what the format cannot express, `log` null without op logs.
    """

    files: list[str]
    lost: list[str]
    log: OpLog | None
    profile: Profile


# Long: its parameters.
def write_store_jobs(
    source: Path,
    tier: str | None,
    outdir: Path,
    limit: Limit,
    name: str,
    job_of: Callable[[Profile], StoreJob],
    *,
    style: Style | None,
    endpoint: str,
    hosts: int = 1,
    argv: Sequence[str],
) -> tuple[StoreJobs, StoreMix]:
    """Write the job `name` of an object store, which `job_of` makes, and op logs of a `style`, one
    for each of `hosts`.

    Without a style there are no logs. Returns what was written, and what the job asks for.

    ConfigError, TraceError, DeviceError as the parts say.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"--hosts {hosts}: it must be 1 to {MAX_HOSTS}")
    make_folder(outdir)
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch:
        profile = distil_source(source, tier, limit, Path(scratch)).profile
    job, oplog = job_of(profile), None
    lost = job.lost
    if style is not None and can_log(source):
        oplog = write_oplogs(
            source,
            profile.tier,
            outdir,
            style,
            endpoint=endpoint,
            hosts=hosts,
            limit=limit,
            argv=argv,
        )
    elif style is not None:
        lost = [
            *lost,
            f"single operations on objects: {source.name} holds none, so there is no op log",
        ]
    write_text(outdir / name, job.text)
    write_json(outdir / PROFILE, profile)
    logs = [] if oplog is None else [*oplog.populate_files, *oplog.files]
    return StoreJobs(files=[name, *logs, PROFILE], lost=lost, log=oplog, profile=profile), job.asks
