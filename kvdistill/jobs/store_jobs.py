"""Write random jobs for object stores (MinIO's warp, sai3-bench) from a `Profile`.

Both choose objects at random, so a job keeps mix, sizes, rate and number of objects, and lists the
features that it loses.

- warp (`warp run FILE`) has no arrival process. Its sizes are uniform between the bounds of a
  bucket: a bound of weight 0 just below each one gives exact sizes.
- sai3-bench (`sai3-bench run --config FILE`) samples prepared objects and paces with Poisson
  arrivals. An operation entry has one size, so each size is an entry with a weight; the exact replay
  is the op log (oplog.py).

`compare_with_run` compares a job with a replay.
"""

from __future__ import annotations

import math
import re
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
from kvtrace.core.parameters import named
from kvtrace.core.schema import MOST
from kvtrace.core.temporary import temporary_folder
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
"""Shares below this are printed as 0.0 %."""
_INSTANT = "all operations of the trace share one instant"


@dataclass(frozen=True, slots=True)
class StoreMix:
    """The operations of an object store: sizes of GETs and PUTs by weight, counts and rate."""

    gets: Sequence[SizeCount]
    puts: Sequence[SizeCount]
    counts: tuple[int, int, int]
    """GETs, PUTs and DELETEs."""
    rate: float | None
    """Operations a second; null if all share one instant."""

    @property
    def figures(self) -> dict[str, float | None]:
        """Shares, mean sizes and rate, by name; null without operations."""
        get, put, delete = (count / sum(self.counts) for count in self.counts)
        means = {"get_mean_bytes": self.gets, "put_mean_bytes": self.puts}
        shares = {
            "get_share": get,
            "put_share": put,
            "delete_share": delete,
            "ops_per_s": self.rate,
        }
        return shares | {
            name: mean_bytes(sizes) if sizes else None for name, sizes in means.items()
        }


def profile_mix(profile: Profile, max_deletes: int = MOST) -> StoreMix:
    """Return the mix of `profile`, with at most `max_deletes` deletes."""
    counts = (profile.read.ops, profile.write.ops, min(profile.delete_ops, max_deletes))
    rate = per_second(sum(counts), profile.whole_ns)
    return StoreMix(profile.read.object_sizes, profile.write.object_sizes, counts, rate)


@dataclass(frozen=True, slots=True)
class StoreJob:
    """The text of a job, its requested mix, and the features that its format loses."""

    text: str
    requested: StoreMix
    lost: list[str]


def _depth(profile: Profile, option: str, indent: str = "") -> tuple[int | None, list[str]]:
    """Return the queue depth (null if unknown), and the lines of the `option` that sets it.

    It is measured if operations were timed, else the largest stage, an upper bound.
    """
    stages, mean = profile.concurrency, None if profile.depth is None else profile.depth.mean
    if mean is not None:
        count, comment = (
            max(1, math.ceil(mean)),
            f"measured: mean queue depth {mean:.3g}",
        )
    elif stages is not None:
        count, bound = stages.max_stage_ops, "an upper bound, not a measured depth"
        comment = f"the most operations of one stage (mean {stages.mean_stage_ops:.2f}): {bound}"
    else:
        return None, [f"{indent}# no {option}: the trace has no stages and no measured times"]
    return count, [f"{indent}# {comment}", f"{indent}{option}: {count}"]


def _duration(profile: Profile, cap_ns: int, indent: str = "") -> str:
    """Return the duration option: that of the source, up to `cap_ns`."""
    if not profile.whole_ns:
        return f"{indent}# no duration: {_INSTANT}"
    return f'{indent}duration: "{max(1, min(profile.whole_ns, cap_ns) // NS_PER_MS)}ms"'


def _peak_objects(profile: Profile, sizes: Sequence[SizeCount]) -> int:
    """Return the peak number of live objects.

    For a source without objects, it is estimated from peak bytes and the mean of `sizes`.
    """
    space = profile.placed
    return space.peak_live_objects or round(space.peak_reserved_bytes / mean_bytes(sizes))


def _estimate_note(profile: Profile) -> str:
    return (
        ""
        if profile.placed.peak_live_objects
        else " (estimated: peak live bytes over their mean size)"
    )


def size_classes(sizes: Sequence[SizeCount], max_classes: int) -> list[SizeCount]:
    """Return `sizes`, ascending, in at most `max_classes` classes.

    More sizes are merged into classes with about equal operations and their mean size, which
    preserves the bytes.
    """
    if len(sizes) <= max_classes:
        return list(sizes)
    total, cumulative_ops = sum(size_count.ops for size_count in sizes), 0
    runs, classes = defaultdict[int, list[SizeCount]](list), Counter[int]()
    for size in sizes:
        # A size is assigned by its middle operation, so a common size does not absorb neighbours.
        runs[
            min(max_classes - 1, (2 * cumulative_ops + size.ops) * max_classes // (2 * total))
        ].append(size)
        cumulative_ops += size.ops
    for run in runs.values():
        classes[max(1, round(mean_bytes(run)))] += sum(size.ops for size in run)
    return [SizeCount(size, ops) for size, ops in sorted(classes.items())]


def _class_losses(
    label: str, direction: DirectionProfile, classes: Sequence[SizeCount]
) -> list[str]:
    """Return the loss of sizes of `direction` in `classes`; empty if there is none."""
    sizes = direction.object_sizes
    if not direction.ops or (mismatch := total_variation(sizes, classes)) < _WORTH_TELLING:
        return []
    mismatch_text = (
        f"{mismatch:.1%} of {format_count(direction.ops)} get another size (total variation distance"
        f" {mismatch:.3f})"
    )
    exact = format_bytes(mean_bytes(sizes))
    return [
        f"sizes of {label}: {mismatch_text}; mean {format_bytes(mean_bytes(classes))} instead of {exact}"
    ]


def _random_losses(profile: Profile, hot_loss: str, bursts_loss: str, names_loss: str) -> list[str]:
    """Return the features that every random job loses; a job words the first three itself."""
    order = "the order of operations: the reuse distances of the trace are not kept"
    if (locality := profile.locality) is not None:
        scope = "" if locality.is_whole else f"the first {locality.ops:,} "
        hot_loss += (
            f" (in the source, the hottest 10 % of 128 KiB blocks get {locality.hot10_share:.1%} of"
            f" {scope}operations)"
        )
        if locality.reuse_p50_blocks is not None:
            order += f" (median in the source: {locality.reuse_p50_blocks:,.0f} blocks)"
    if profile.arrivals is not None:
        dispersion = profile.arrivals.dispersion
        bursts_loss += f" (burstiness, variance/mean, of the source: {dispersion}; Poisson is 1)"
    lost = [
        hot_loss,
        bursts_loss,
        names_loss,
        "dependencies of requests and stages: no operation waits for another",
        order,
    ]
    if profile.empty_ops:
        lost.append(f"omitted: {counted(profile.empty_ops, 'operation')} of zero bytes")
    data = profile.data
    if data is not None and (data.dedup_ratio, data.compress_ratio) != (1, 1):
        lost.append(
            f"data reduction: the replay's data deduplicated {data.dedup_ratio:g}:1 and compressed "
            f"{data.compress_ratio:g}:1; this job sets neither"
        )
    return lost


WARP_JOB = "mixed.yml"
MIX_STEPS = 1000
"""warp samples operations from a deck of this size."""
_WARP_CLASSES = 256
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9.\[\]:{}_-]+")


_TARGET = re.compile(r"(s3|gs|gcs|az|file|direct)://[A-Za-z0-9._/:@-]+/")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of an object store's job: host and bucket for warp, base URI for sai3-bench."""

    host: str = "127.0.0.1:9000"
    bucket: str = "kvdistill"
    target: str = "s3://kvdistill/"
    runtime_cap_ns: int = 300 * NS_PER_S

    def __post_init__(self) -> None:
        """Raise ConfigError for names that S3 or YAML do not accept."""
        if not _BUCKET.fullmatch(self.bucket):
            raise ConfigError(
                f"{named('bucket', self.bucket)}: a bucket has 3 to 63 letters a-z, digits, dots and"
                " hyphens"
            )
        if not _HOST.fullmatch(self.host):
            raise ConfigError(f"{named('host', self.host)}: write it as HOST:PORT")
        if not _TARGET.fullmatch(self.target):
            raise ConfigError(
                f"{named('target', self.target)}: write a base URI that ends in a slash, such as"
                " s3://bucket/ or direct:///mnt/x/"
            )


# Long, because it describes a whole job.
def warp_job(profile: Profile, options: StoreOptions) -> StoreJob:
    """Return warp's mixed benchmark for `profile`."""
    # warp has one size distribution for reads and writes: that of the busier direction is used.
    busier = profile.read if profile.read.ops > profile.write.ops else profile.write
    classes = size_classes(busier.object_sizes, _WARP_CLASSES)
    # warp refuses to delete more than it writes.
    mix = profile_mix(profile, profile.write.ops)
    (get, put, delete), lost = _mix_deck(mix.counts, profile.delete_ops)
    concurrent, in_flight = _depth(profile, "concurrent", "    ")
    # warp's default concurrency is 20.
    objects = max(_peak_objects(profile, [*mix.gets, *mix.puts]), (concurrent or 20) + 1)
    # Six digits, and no scientific notation, because YAML readers differ on it.
    rate, pace = (
        None if mix.rate is None else float(f"{mix.rate:.6g}"),
        [f"  # no rps-limit: {_INSTANT}"],
    )
    if rate is not None:
        rate_text = np.format_float_positional(rate, trim="-")
        pace = [
            "  advanced:",
            "    # requests a second for each warp client",
            f"    rps-limit: {rate_text}",
        ]
    lost += [
        *_class_losses("PUTs", profile.write, classes),
        *_class_losses("GETs, which read whole objects at random", profile.read, classes),
        *_random_losses(
            profile,
            "hot objects: warp reads and deletes all objects with equal probability",
            "bursts: requests are spaced evenly up to the rate limit",
            "object names: warp generates its own",
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
    if mix.rate is not None:
        upload_time = format_duration(objects / mix.rate * NS_PER_S)
        run.append(
            f"the rate limit also applies to the upload of {count} objects before the run: that"
            f" takes {upload_time}"
        )
    space_text = (
        f"{counted(objects, 'object')} of {format_bytes(size)} on average"
        f" ({format_bytes(objects * size)})"
    )
    needs = [f"space for {space_text}, and for the writes of the run"]
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
        f"    # peak of live objects{_estimate_note(profile)}; warp needs more than concurrent",
        f"    objects: {objects}",
        "    # one record a request, for kvdistill import warp",
        "    full: true",
        "    # per mille of requests",
        f"    distribution: {{get: {get}, stat: 0, put: {put}, delete: {delete}}}",
        (
            f"    # {format_count(len(classes))} sizes in bytes, with frequencies; weight 0 marks a"
            " bound"
        ),
        "    obj:",
        f'      size: "{size_histogram(classes)}"',
        *pace,
    ]
    title = "warp: mixed benchmark of a KV-cache trace with random objects"
    requested = StoreMix(classes if get else [], classes if put else [], (get, put, delete), rate)
    return StoreJob(_text(title, profile, run, needs, lost, lines), requested, lost)


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
    """Return `classes`, ascending, as warp's `obj.size` (`bound:weight`), with exact sizes."""
    entries: list[str] = []
    last_bound = 0
    for size in classes:
        # A bucket spans the previous bound to below its own; warp rejects two equal bounds.
        if size.io_bytes != last_bound:
            entries.append(f"{size.io_bytes}:0")
        entries.append(f"{size.io_bytes + 1}:{size.ops}")
        last_bound = size.io_bytes + 1
    return ",".join(entries)


def _mix_deck(counts: tuple[int, int, int], deletes: int) -> tuple[tuple[int, int, int], list[str]]:
    """Return GETs, PUTs and DELETEs in a deck of `MIX_STEPS`, and its losses.

    `deletes` counts all deletes of the source.
    """
    get, put, delete = percentages(counts, MIX_STEPS)
    if delete > put:
        # Counts are equal and deletes were rounded up; warp refuses more deletes than writes.
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
"""Maximum sizes in each direction; each is an entry, and a folder of prepared objects."""
_MAX_WEIGHT = 2**32 - 1


# Long, because it describes a whole job.
def sai3_workload(profile: Profile, options: StoreOptions) -> StoreJob:
    """Return sai3-bench's random workload for `profile`."""
    gets, puts = (
        size_classes(direction.object_sizes, _SAI3_CLASSES)
        for direction in (profile.read, profile.write)
    )
    mix = profile_mix(profile)
    lost = [
        *_class_losses("GETs", profile.read, gets),
        *_class_losses("PUTs", profile.write, puts),
        *_random_losses(
            profile,
            "hot objects: prepared objects of a size are read with equal probability, objects"
            " written by the run never",
            "bursts: arrivals are Poisson",
            "object names: sai3-bench generates its own",
        ),
    ]
    if profile.delete_ops:
        lost.append(
            f"space freed by {counted(profile.delete_ops, 'delete')}: prepared objects are deleted, not"
            " written ones, so every PUT increases the space in use"
        )
    if mix.rate is not None and round(mix.rate) != mix.rate:
        lost.append(
            f"the rate's fraction: {mix.rate:.6g} operations a second, but sai3-bench accepts whole"
            " numbers"
        )
    rate = None if mix.rate is None else max(1, round(mix.rate))
    folders, needs = [], []
    if gets:
        # About the peak number of live objects, in proportion to reads.
        count = max(len(gets), _peak_objects(profile, profile.read.object_sizes))
        object_counts = [
            max(1, object_count)
            for object_count in percentages([size_count.ops for size_count in gets], count)
        ]
        folders = [
            (f"get-{size_count.io_bytes}/", object_count, size_count.io_bytes)
            for size_count, object_count in zip(gets, object_counts, strict=True)
        ]
        total = format_bytes(sum(object_count * size for _, object_count, size in folders))
        # With deletes, sai3-bench prepares a separate pool for them from every entry.
        delete_pool = (
            ", twice: sai3-bench prepares separate objects to delete" if profile.delete_ops else ""
        )
        needs = [
            (
                f"space for {counted(sum(object_counts), 'prepared object')} ({total}){delete_pool}; and for the"
                " writes of the run"
            )
        ]
    if profile.delete_ops:
        # Deletes transfer no bytes, so the smallest size keeps the preparation short.
        smallest = min(
            size_count.io_bytes
            for size_count in (*profile.read.object_sizes, *profile.write.object_sizes)
        )
        folders.append(("delete/", profile.delete_ops, smallest))
    # The sum of weights is limited to 32 bits.
    scale = max(1, -(-sum(mix.counts) // _MAX_WEIGHT))
    gets, puts = (
        [SizeCount(size_count.io_bytes, max(1, size_count.ops // scale)) for size_count in sizes]
        for sizes in (gets, puts)
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
            f"  # peak of live objects{_estimate_note(profile)}",
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
    for size_count in gets:
        lines += [
            "  - op: get",
            f'    path: "get-{size_count.io_bytes}/prepared-*.dat"',
            f"    weight: {size_count.ops}",
        ]
    for size_count in puts:
        lines += [
            "  - op: put",
            f'    path: "put-{size_count.io_bytes}/"',
            f"    object_size: {size_count.io_bytes}",
        ]
        lines.append(f"    weight: {size_count.ops}")
    if deletes:
        lines += ["  - op: delete", '    path: "delete/prepared-*.dat"', f"    weight: {deletes}"]
    run = [
        f"sai3-bench run --config {SAI3_JOB} --dry-run   # checks this file",
        f"sai3-bench run --config {SAI3_JOB}",
    ]
    requested = StoreMix(
        gets,
        puts,
        (
            sum(size_count.ops for size_count in gets),
            sum(size_count.ops for size_count in puts),
            deletes,
        ),
        rate,
    )
    return StoreJob(
        _text("sai3-bench: random workload of a KV-cache trace", profile, run, needs, lost, lines),
        requested,
        lost,
    )


class StoreCloseness(msgspec.Struct, frozen=True, kw_only=True):
    """A job compared with a replay."""

    run: str
    job: dict[str, float | None]
    """Figures of the job's `StoreMix`; `replay` has those of the replay."""
    replay: dict[str, float | None]
    gets: int
    """Successful GETs of the replay; `puts` and `deletes` likewise."""
    puts: int
    deletes: int
    get_size_variation: float | None
    """Total variation distance of the sizes of GETs; null without GETs."""
    put_size_variation: float | None


def compare_with_run(requested: StoreMix, run: Path, tier: str) -> StoreCloseness:
    """Compare the requested mix of a job with the replay `run` on `tier`.

    ConfigError if `run` is not a run, or lacks the tier.
    """
    if not run.is_dir():
        raise ConfigError(f"{named('run', run)}: name a run of kvreplay")
    with temporary_folder("kvdistill-") as scratch:
        measured = profile_mix(distil_source(run, tier, Limit(), scratch).profile)
    gets, puts, deletes = measured.counts
    return StoreCloseness(
        run=str(run),
        job=requested.figures,
        replay=measured.figures,
        gets=gets,
        puts=puts,
        deletes=deletes,
        get_size_variation=(
            total_variation(measured.gets, requested.gets)
            if measured.gets and requested.gets
            else None
        ),
        put_size_variation=(
            total_variation(measured.puts, requested.puts)
            if measured.puts and requested.puts
            else None
        ),
    )


MAX_HOSTS = 1024


class StoreJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Files written for warp or sai3-bench.

    `lost` lists features that the format cannot express; `log` is null without op logs.
    """

    files: list[str]
    lost: list[str]
    log: OpLog | None
    profile: Profile


# Long, because of its parameters.
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
    """Write the job `name` of `job_of`, and op logs of a `style`, one for each of `hosts`.

    Without a style there are no logs. Returns the files, and the requested mix.

    Raises the errors of `distil_source` and `write_oplogs`, and DeviceError if a write fails.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"{named('hosts', hosts)}: it must be 1 to {MAX_HOSTS}")
    make_folder(outdir)
    with temporary_folder(".kvdistill-", outdir) as scratch:
        profile = distil_source(source, tier, limit, scratch).profile
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
    return StoreJobs(
        files=[name, *logs, PROFILE], lost=lost, log=oplog, profile=profile
    ), job.requested
