"""Write fio jobs from a `Profile`: an exact replay of a log, and a statistical job. Pure functions to text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvdistill.fioheader import common_losses, header, version_bugs
from kvdistill.fiorate import pace
from kvdistill.sizes import cut_long, split_sizes
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from kvdistill.fioprogram import FioVersion
    from kvdistill.iolog import LogSummary
    from kvdistill.profile import Direction, Profile

SCRATCH = "kvdistill.scratch"
REPLAY_JOB, REPLAY_LOG, STAT_JOB, PROFILE = "replay.fio", "replay.iolog", "stat.fio", "profile.json"
MIB = 1 << 20
REPLAY_BUFFER_BYTES = 256 * MIB
STAT_BUFFER_BYTES = 1024 * MIB
STAT_MAX_IO_BYTES = 64 * MIB
"""The statistical job draws longer operations as several: fio buffers depth times the longest in memory."""
_MAX_DEPTH = 1024
_MAX_TARGET = 256
_MIN_SCALE, _MAX_SCALE = 1, 10_000
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a user chooses about jobs; `version` null is any fio."""

    target: str = SCRATCH
    version: FioVersion | None = None
    runtime_cap_ns: int = 300 * 10**9
    time_scale_percent: int = 100
    """How much faster than the log fio replays: what `--check` found to undo its growing lateness."""

    def __post_init__(self) -> None:
        """Refuse what fio cannot take."""
        if not _MIN_SCALE <= self.time_scale_percent <= _MAX_SCALE:
            raise ConfigError(
                f"--time-scale {self.time_scale_percent}: it must be {_MIN_SCALE} to {_MAX_SCALE} percent"
            )
        if not self.target or len(self.target) > _MAX_TARGET or any(c.isspace() or c in "'\"#;" for c in self.target):
            raise ConfigError(
                f"--target {self.target}: fio's log takes names of at most {_MAX_TARGET} characters without spaces, "
                "quotes, # or ;"
            )

    @property
    def filename(self) -> str:
        """The target as fio's `filename=` wants it: a colon would part two names."""
        return self.target.replace(":", "\\:")


def _whole_mib(count: int) -> int:
    return -(-count // MIB) * MIB


def replay_space_bytes(profile: Profile) -> int:
    """Return the space that the replay needs on its target."""
    return _whole_mib(profile.space.span_bytes)


def stat_space_bytes(profile: Profile) -> int:
    """Return the space that the statistical job needs: operations near the end run over it by their length."""
    return _whole_mib(profile.space.span_bytes + min(_longest(profile), STAT_MAX_IO_BYTES))


def _longest(profile: Profile) -> int:
    return max(s.io_bytes for s in (*profile.read.sizes, *profile.write.sizes))


def replay_job(profile: Profile, log: LogSummary, options: JobOptions) -> str:
    """Return the job that fills the target, then replays `log` on it."""
    space = replay_space_bytes(profile)
    # Room for what may be in flight, not a claim about the workload: the log's times decide that.
    depth = max(1, min(_MAX_DEPTH, REPLAY_BUFFER_BYTES // log.max_io_bytes, max(32, log.max_burst_ios)))
    split = f"{format_count(log.split_ops)} operations longer than {format_bytes(log.max_io_bytes)} are split"
    lost = [
        f"{split}; their parts are issued at once" if log.split_ops else "",
        "which request and stage an operation serves: all are issued by time, none waits for another to complete",
        *common_losses(profile),
    ]  # fmt: skip
    text = header(
        "Exact replay of a KV-cache trace: every read and write, at its time", profile,
        [
            ("Run", [
                f"in this folder: fio {REPLAY_JOB}",
                f"a second time, without filling the target again: fio --section=replay {REPLAY_JOB}",
                f"it takes {format_duration(log.last_us * 1000)} once the target is filled",
            ]),
            ("Needs", _needs(options, space)),
            ("It does", [
                (
                    f"{format_count(log.read_ios)} reads of {format_count(log.read_bytes)} bytes and "
                    f"{format_count(log.write_ios)} writes of {format_count(log.write_bytes)} bytes, as fio counts them"
                ),
                (
                    f"{format_count(profile.space.prior_objects)} objects ({format_bytes(profile.space.prior_bytes)}) "
                    "are read before the trace writes them; [prefill] writes the whole target, so that every read "
                    "meets data on the device"
                ),
            ]),
            ("Lost", [line for line in lost if line]),
            (_bugs_heading(options.version), version_bugs(options.version, is_replay=True)),
        ],
    )  # fmt: skip
    prefill = [
        f"filename={options.filename}", "ioengine=libaio", "iodepth=4", "rw=write", "bs=1M", f"size={space}",
        "end_fsync=1",
    ]  # fmt: skip
    replay = [
        "stonewall", "ioengine=libaio", f"iodepth={depth}", f"bs={log.max_io_bytes}", f"read_iolog={log.file}",
        "read_iolog_chunked=1",
    ]  # fmt: skip
    if options.time_scale_percent != 100:  # noqa: PLR2004 - fio's default
        replay += [
            "# a percentage of speed: it undoes the lateness that --check measured on this machine",
            f"replay_time_scale={options.time_scale_percent}",
        ]
    return text + _sections([("global", ["direct=1", "refill_buffers=1"]), ("prefill", prefill), ("replay", replay)])


def stat_job(profile: Profile, options: JobOptions) -> str:
    """Return the job that draws reads and writes from the profile's distributions."""
    space = stat_space_bytes(profile)
    lost = [
        "temporal reuse: an object is as hot as in the trace, but not read again soon after it was used",
        "bursts and the order of operations: arrivals are independent of each other",
        f"operations longer than {format_bytes(STAT_MAX_IO_BYTES)} are drawn as several, apart from each other"
        if _longest(profile) > STAT_MAX_IO_BYTES
        else "",
        *common_losses(profile),
    ]
    jobs: list[tuple[str, list[str]]] = []
    for name, direction in (("read", profile.read), ("write", profile.write)):
        jobs += _direction_jobs(name, cut_long(direction, STAT_MAX_IO_BYTES), profile)
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    text = header(
        "Statistical job of a KV-cache trace: its sizes, rates and hot places, drawn at random", profile,
        [
            ("Run", [f"in this folder: fio {STAT_JOB}", *_runtime_note(profile, runtime_ns)]),
            ("Needs", _needs(options, space)),
            ("Lost", [line for line in lost if line]),
            (_bugs_heading(options.version), version_bugs(options.version, is_replay=False)),
        ],
    )  # fmt: skip
    shared = [
        f"filename={options.filename}", f"size={space}", "direct=1", "ioengine=libaio", "refill_buffers=1",
        "# written in full before the run: a file's unwritten parts would not reach the device",
        "overwrite=1",
        "# without the map, hot places are hit again",
        "norandommap=1", "bs_unaligned=1", "blockalign=4k",
    ]  # fmt: skip
    if profile.span_ns:
        shared += ["time_based=1", f"runtime={max(1, runtime_ns // _NS_PER_MS)}ms"]
    return text + _sections([("global", shared), *jobs])


def _direction_jobs(name: str, direction: Direction, profile: Profile) -> list[tuple[str, list[str]]]:
    if not direction.ops:
        return []
    split = split_sizes(direction)
    zones = [f"{zone.percent}/{zone.span_bytes}" for zone in direction.zones]
    rest = stat_space_bytes(profile) - sum(zone.span_bytes for zone in direction.zones)
    if rest:
        zones.append(f"0/{rest}")
    lines = [
        f"rw=rand{name}",
        f"# {split.distinct_sizes} distinct sizes; {split.moved_share:.2%} of I/Os get another size than theirs,",
        f"# mean {split.mean_bytes:.0f} bytes for {split.exact_mean_bytes:.0f}",
        f"bssplit={split}",
        f"random_distribution=zoned_abs:{':'.join(zones)}",
        *_depth_lines(direction, profile),
    ]
    ops_per_s, bytes_per_s = profile.per_second(direction.ops), profile.per_second(split.mean_bytes * direction.ops)
    if ops_per_s is None or bytes_per_s is None:
        lines += ["# no rate: all operations of the trace share one instant", f"number_ios={direction.ops}"]
        return [(name, lines)]
    rate = pace(ops_per_s, bytes_per_s)
    how = "Poisson" if rate.is_poisson else "evenly by bytes, since Poisson rates are whole operations a second"
    lines += [f"# {ops_per_s:.4g} I/Os a second in the trace, {rate.per_s:.4g} here; {how}", *rate.options]
    names = [name] if rate.jobs == 1 else [f"{name}{i}" for i in range(1, rate.jobs + 1)]
    return [(job, lines) for job in names]


def _depth_lines(direction: Direction, profile: Profile) -> list[str]:
    if profile.concurrency is None:
        return ["# no iodepth: the trace has no stages and no measured times that could tell it; fio takes 1"]
    most = profile.concurrency.max_stage_ops * -(-_longest(profile) // STAT_MAX_IO_BYTES)
    room = max(1, STAT_BUFFER_BYTES // direction.sizes[-1].io_bytes)
    depth = min(most, room, _MAX_DEPTH)
    cut = f", cut to what fits {format_bytes(STAT_BUFFER_BYTES)} of buffers" if room < most else ""
    return [
        f"# an upper bound, not a measured depth: the most I/Os in one stage of a request, {most}{cut};",
        f"# the mean is {profile.concurrency.mean_stage_ops:.3g} operations",
        f"iodepth={depth}",
    ]


def _runtime_note(profile: Profile, runtime_ns: int) -> list[str]:
    if not profile.span_ns:
        return ["it ends after as many operations as the trace has: they share one instant, so no time is known"]
    if runtime_ns < profile.span_ns:
        return [f"it runs {format_duration(runtime_ns)} of the trace's {format_duration(profile.span_ns)}"]
    return [f"it runs {format_duration(runtime_ns)}, as long as the trace"]


def _needs(options: JobOptions, space: int) -> list[str]:
    return [
        f"{format_bytes(space)} ({space} bytes) on {options.target}, whose former content is overwritten",
        "a filesystem or device that takes O_DIRECT in 512-byte sectors",
    ]


def _bugs_heading(version: FioVersion | None) -> str:
    return f"Known of fio {version}" if version else "Known of fio (written for any version)"


def _sections(sections: list[tuple[str, list[str]]]) -> str:
    return "".join(f"\n[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections)
