"""Write the fio jobs that run iologs, of a trace or drawn by an LRU stack model.

An iolog has one target; long operations are split, lines partitioned round-robin over several jobs;
deletes only free space, since fio knows none. Replayed, the lateness of version 2 of the log is
caught up with, that of version 3 only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from math import isnan, nan
from pathlib import Path
from typing import BinaryIO, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kvdistill.formats.fio import PlacedOperations
from kvdistill.formats.formats import ABSOLUTE, RELATIVE
from kvdistill.jobs.fio_lanes import MAX_LANES, Lane, LanePlan
from kvdistill.jobs.fio_sections import FioJob, FioOptions, FioSection, FioSettings
from kvdistill.jobs.job import (
    GRANULE_BYTES,
    HANGS_IN_IO_URING,
    MIB,
    REAPS_WHILE_WAITING,
    ExpectedFigure,
    FioMode,
    FioVersion,
    IoLoad,
    JobOptions,
    common_losses,
    expected_figures,
    fio_job,
    most_in_flight,
    source_load,
    whole_mib,
)
from kvdistill.profile.profile import DirectionProfile, Profile, SourceKind
from kvdistill.queries.window import READ
from kvtrace.core import pa, pc, pq
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import aside
from kvtrace.core.native.library import I8, function
from kvtrace.core.statistics import Slot, slot_of
from kvtrace.core.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    US_PER_MS,
    counted,
    format_bytes,
    format_duration,
    format_io_size,
)

FIRST_US = 1
"""fio drops the gap after timestamp 0."""
# A row may become many lines: 32 MiB objects are 32 each.
_BATCH_ROWS = 1 << 14
_LANE_START_MS = 10
"""fio starts a process for each lane."""
_START_MS, _LINES_PER_MS, _FILLED_PER_MS = 1000, 200, 500_000
"""Before the first I/O fio reads the logs, and fills its buffers with random data."""


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the written logs, in fio's terms: each line is one I/O."""

    files: list[str]
    """One a job; without lanes, line i of the whole is in file i modulo their number."""
    lanes: list[Lane] = []
    """The jobs whose I/Os wait for each other, one for each of `files`; empty where none waits."""
    version: int
    target: str
    max_io_bytes: int
    """Longer operations are split at this."""
    start_ms: int
    """When the first line is due, from fio's start.

    Time to read the logs and fill buffers; 0 in version 3.
    """
    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    split_ops: int
    last_us: int
    """The last line's time; the first is 1."""
    largest_io_bytes: int
    max_burst_ios: int
    """The most lines due at one time."""
    issue_us: tuple[float, float] = (0.0, 0.0)
    """What issuing an I/O and each MiB of it was taken to take: delays are so much shorter."""

    @property
    def depth(self) -> int:
        """The most I/Os in flight of one asynchronous job.

        Its longest burst, where its buffers are not too much; of lanes, those of all together.
        """
        if self.lanes:
            return sum(lane.depth for lane in self.lanes)
        return min(most_in_flight(self.largest_io_bytes), max(32, self.max_burst_ios))


class FioIos(PlacedOperations):
    """I/Os as fio issues them: operations longer than a limit are several."""

    part: NDArray[np.int64]
    """Which I/O of its operation each is, from 0."""


IoSource = Callable[[], Iterator[FioIos]]
"""Yields the I/Os of a job in batches, from the first one on whenever it is called."""


def split_ios(ios: Path, max_io_bytes: int) -> Iterator[FioIos]:
    """Yield the operations of the Parquet file `ios` as the I/Os that fio issues, in order."""
    first = None
    for batch in pq.ParquetFile(ios).iter_batches(
        batch_size=_BATCH_ROWS, columns=["ts_ns", "op", "address", "io_bytes"], use_threads=False
    ):
        ts, op, address, length = (column.to_numpy() for column in batch.columns)
        kept = np.flatnonzero(length > 0)
        if not len(kept):
            continue
        ts, op = ts[kept], op[kept]
        first = ts[0] if first is None else first
        operations: PlacedOperations = {
            "us": FIRST_US + (ts - first) // NS_PER_US,
            "is_read": op == READ,
            "offset": address[kept],
            "length": length[kept],
        }
        yield from split(operations, max_io_bytes)


def split(operations: PlacedOperations, max_io_bytes: int) -> Iterator[FioIos]:
    """Yield `operations` as `split_ios` does."""
    us, is_read = operations["us"], operations["is_read"]
    offset, length = operations["offset"], operations["length"]
    for start in range(0, len(us), _BATCH_ROWS):
        batch = slice(start, start + _BATCH_ROWS)
        length_bytes = length[batch]
        parts_per_row = -(-length_bytes // max_io_bytes)
        row = np.repeat(np.arange(len(parts_per_row)), parts_per_row)
        first_part = np.cumsum(parts_per_row) - parts_per_row
        part = np.arange(len(row)) - np.repeat(first_part, parts_per_row)
        yield {
            "us": us[batch][row],
            "is_read": is_read[batch][row],
            "offset": offset[batch][row] + part * max_io_bytes,
            "length": np.minimum(length_bytes[row] - part * max_io_bytes, max_io_bytes),
            "part": part,
        }


def plan_iologs(
    name: str, ios: IoSource, options: JobOptions, lanes: LanePlan | None = None
) -> LogSummary:
    """Return what the iologs called `name` of the `ios` will hold, without writing them.

    With `lanes` there is one for each. Otherwise, unless `options` say else, it is one log, of one asynchronous job: many jobs wake each on its
    own, and as many as there are may be in flight. Its times are absolute milliseconds: relative
    microseconds are closer, but what fio takes to issue an I/O adds up, unless a check has measured
    it (`issue_us`), see docs/concepts/fio-jobs.md. They are called `name`.iolog, or `name`.1.iolog
    and so on.
    """
    version, jobs = options.log_version or ABSOLUTE, options.jobs or 1
    counts = _counted(ios())
    lines = counts["read_ios"] + counts["write_ios"]
    if lanes is not None:
        return _plan_lane_logs(lanes, counts, options)
    # fio takes a log without I/O for an error.
    jobs = max(1, min(jobs, lines))
    width = len(str(jobs))
    files = (
        [f"{name}.iolog"]
        if jobs == 1
        else [f"{name}.{i:0{width}d}.iolog" for i in range(1, jobs + 1)]
    )
    log = LogSummary(
        files=files,
        version=version,
        target=options.target,
        max_io_bytes=options.io_bytes,
        start_ms=0,
        **counts,
        issue_us=options.issue_us if version == RELATIVE else (0.0, 0.0),
    )
    if version == ABSOLUTE:
        fills_ms = log.depth * log.largest_io_bytes // _FILLED_PER_MS
        log = msgspec.structs.replace(log, start_ms=_START_MS + lines // _LINES_PER_MS + fills_ms)
    return log


def _plan_lane_logs(plan: LanePlan, counts: _Counts, options: JobOptions) -> LogSummary:
    """Return the logs of lanes: absolute times, since a lane that is late has to catch up."""
    buffer_bytes = sum(lane.depth * lane.largest_io_bytes for lane in plan.lanes)
    lines = counts["read_ios"] + counts["write_ios"]
    start_ms = _START_MS + lines // _LINES_PER_MS + buffer_bytes // _FILLED_PER_MS
    return LogSummary(
        files=[lane.file for lane in plan.lanes],
        lanes=plan.lanes,
        version=ABSOLUTE,
        target=options.target,
        max_io_bytes=options.io_bytes,
        start_ms=start_ms + _LANE_START_MS * len(plan.lanes),
        **counts,
    )


def log_members(log: LogSummary, ios: IoSource, plan: LanePlan | None) -> list[NDArray[np.int64]]:
    """Return, for each of the files of `log`, which I/Os of the whole it holds, by their numbers."""
    jobs = len(log.files)
    if plan is None:
        count = log.read_ios + log.write_ios
        return [np.arange(index, count, jobs) for index in range(jobs)]
    lanes = np.concatenate([*_lanes_of(ios(), plan)])
    return [np.flatnonzero(lanes == index) for index in range(jobs)]


def _lanes_of(batches: Iterable[FioIos], plan: LanePlan) -> Iterator[NDArray[np.int16]]:
    """Yield the lane of each I/O, batch by batch: all parts of an operation go to one lane."""
    done = 0
    for batch in batches:
        operation = done + np.cumsum(batch["part"] == 0) - 1
        yield plan.lane_of_operation[operation]
        done = int(operation[-1]) + 1


def write_iologs(
    folder: Path, name: str, log: LogSummary, ios: IoSource, plan: LanePlan | None = None
) -> None:
    """Write the logs called `name` of the `ios` to `folder`, as `log` plans them.

    Logs of an earlier number are removed.
    """
    for old in folder.glob(f"{name}.*iolog"):
        old.unlink()
    jobs = len(log.files)
    with ExitStack() as stack:
        outs = [
            stack.enter_context(stack.enter_context(aside(folder / file)).open("wb"))
            for file in log.files
        ]
        logs = [_Log(out, log) for out in outs]
        if plan is not None:
            for batch, lanes in zip(ios(), _lanes_of(ios(), plan), strict=True):
                for index in np.unique(lanes):
                    logs[index].write(batch, lanes == index)
        else:
            done = 0
            for batch in ios():
                for index, each in enumerate(logs):
                    # Line i goes to log i modulo their number.
                    each.write(batch, slice((index - done) % jobs, None, jobs))
                done += len(batch["us"])
        for each in logs:
            each.close()


def _joined(*columns: npt.ArrayLike | pa.Array, by: str = " ") -> pa.Array:
    """Join `columns`, arrays or a text for all rows, row by row with `by` between.

    Return an Arrow array.
    """
    text = pa.large_string()
    parts = [pa.scalar(c, text) if isinstance(c, str) else pa.array(c).cast(text) for c in columns]
    return pc.binary_join_element_wise(*parts, pa.scalar(by, text))


class _Log:
    """One log being written."""

    def __init__(self, out: BinaryIO, log: LogSummary) -> None:
        self._out, self._target, self._start_ms = out, log.target, log.start_ms
        self._is_absolute = log.version == ABSOLUTE
        self._issue_us, self._before_us = log.issue_us, 0.0
        self._last = FIRST_US if not self._is_absolute else -1
        stamp = "" if self._is_absolute else f"{FIRST_US} "
        out.write(
            f"fio version {log.version} iolog\n{stamp}{self._target} add\n"
            f"{stamp}{self._target} open\n".encode()
        )

    def write(self, batch: FioIos, chosen: slice | NDArray[np.bool_]) -> None:
        """Write the `chosen` I/Os of `batch`."""
        us = batch["us"][chosen]
        if not len(us):
            return
        length = batch["length"][chosen]
        op = np.where(batch["is_read"][chosen], "read", "write")
        line = _joined(self._target, op, batch["offset"][chosen], length)
        if self._is_absolute:
            ms = self._start_ms + (us - FIRST_US) // US_PER_MS
            waits = np.diff(ms, prepend=self._last) != 0
            line = _joined(
                pc.if_else(pa.array(waits), _joined(self._target, "wait", ms, "0\n"), ""),
                line,
                by="",
            )
            self._last = int(ms[-1])
        else:
            # An I/O is issued when it is asked for, or when those before are, with what each takes:
            # fio waits for the difference of two times from when the first of them was issued.
            base, per_mib = self._issue_us
            done = self._before_us + np.cumsum(base + per_mib * length / MIB)
            before = np.concatenate([[self._before_us], done[:-1]])
            us = np.round(np.maximum.accumulate(np.maximum(us - before, self._last))).astype(
                np.int64
            )
            self._before_us = float(done[-1])
            line = _joined(us, line)
            self._last = int(us[-1])
        lines = _joined(line, "", by="\n")
        self._out.write(lines.buffers()[2][: pc.sum(pc.binary_length(lines)).as_py()])

    def close(self) -> None:
        stamp = "" if self._is_absolute else f"{self._last} "
        self._out.write(f"{stamp}{self._target} close\n".encode())


class _Counts(TypedDict):
    """What `LogSummary` counts of I/Os."""

    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    split_ops: int
    last_us: int
    largest_io_bytes: int
    max_burst_ios: int


def _counted(batches: Iterable[FioIos]) -> _Counts:
    """Return the counts of the I/Os in `batches`."""
    read_ios = write_ios = read_bytes = write_bytes = split_ops = 0
    largest, burst_us, burst, longest = 0, -1, 0, 0
    for batch in batches:
        is_read, length = batch["is_read"], batch["length"]
        read_ios += int(is_read.sum())
        write_ios += int((~is_read).sum())
        read_bytes += int(length[is_read].sum())
        write_bytes += int(length[~is_read].sum())
        split_ops += int((batch["part"] == 1).sum())
        largest = max(largest, int(length.max()))
        times, lines = np.unique(batch["us"], return_counts=True)
        # A burst may go on in the next batch.
        lines[0] += burst if times[0] == burst_us else 0
        burst_us, burst = int(times[-1]), int(lines[-1])
        longest = max(longest, int(lines.max()))
    return {
        "read_ios": read_ios,
        "write_ios": write_ios,
        "read_bytes": read_bytes,
        "write_bytes": write_bytes,
        "split_ops": split_ops,
        "last_us": burst_us,
        "largest_io_bytes": largest,
        "max_burst_ios": longest,
    }


def expected_replay(profile: Profile, log: LogSummary, *, is_drawn: bool) -> list[ExpectedFigure]:
    """Return what the job of `log` is expected to do beside its source.

    Nothing if the source has no times.
    """
    source = source_load(profile, log.max_io_bytes)
    if not profile.span_ns or log.last_us <= FIRST_US:
        return []
    reads, moved = log.read_ios, log.read_bytes + log.write_bytes
    ios, seconds = reads + log.write_ios, (log.last_us - FIRST_US) * NS_PER_US / NS_PER_S
    took_s, jobs = source.mean_depth / source.ios_per_s, len(log.files)
    most = jobs if jobs > 1 and not log.lanes else log.depth
    # Without response times nobody knows whether one I/O at a time of each job is enough.
    rate = nan if isnan(took_s) and jobs > 1 and not log.lanes else ios / seconds
    idle = nan if isnan(took_s) else source.idle_share
    if rate * took_s > most:
        rate, idle = most / took_s, 0.0
    # Drawn apart, operations wait for each other otherwise than in the source.
    told = (nan, nan, nan) if is_drawn else (0.0, rate * took_s, idle)
    return expected_figures(source, IoLoad(rate, rate * moved / ios, reads / ios, *told))


# Long: what stands in the head.
def log_job(
    profile: Profile,
    log: LogSummary,
    mode: FioMode,
    span_bytes: int,
    options: JobOptions,
    *,
    waiting_requests: int = 0,
) -> FioJob:
    """Return the job that runs `log`.

    Every operation of the profile, or, for the reuse job, what was drawn from it.
    `waiting_requests` begin in the source before their lane is free.
    """
    if mode is FioMode.REPLAY:
        title = "Exact replay of a KV-cache workload: every read and write, at its time"
        prior = (
            f"{counted(profile.placed.prior_objects, 'object')}"
            f" ({format_bytes(profile.placed.prior_bytes)})"
        )
        does = (
            f"read before written: {prior}; the prefill writes the whole target, so that every read"
            " finds data on the device"
        )
        lost = _lost_order(profile, log, waiting_requests)
    else:
        title = (
            "Randomly drawn job of a KV-cache workload: its sizes, mix, bursts, gaps and reuse"
            " distances"
        )
        does = (
            f"operations are drawn, with seed {options.seed}, from the profile's distributions;"
            " places from an LRU stack, at the profile's reuse distances"
        )
        lost = [
            "the sequence of operations: each is drawn independently of the others",
            "phases: the mean rate is constant",
        ]
    took = format_duration(log.last_us * NS_PER_US + log.start_ms * NS_PER_MS)
    started = f", of which {format_duration(log.start_ms * NS_PER_MS)} before the first I/O"
    started = f"{started}, to read the logs and fill buffers: fio's mean rates count them"
    reads = f"{counted(log.read_ios, 'read')} of {counted(log.read_bytes, 'byte')}"
    writes = f"{counted(log.write_ios, 'write')} of {counted(log.write_bytes, 'byte')}"
    ios = [f"{reads} and {writes} in the log", _said_order(log)]
    if any(log.issue_us):
        base, per_mib = log.issue_us
        each = f" and {per_mib:.0f} µs a MiB" if per_mib else ""
        ios.append(
            f"each delay in the log is {base:.0f} µs{each} shorter than the source's: it makes up"
            " for the time this fio takes to issue an I/O, as --check measured it here"
        )
    largest, count = log.largest_io_bytes, len(log.files)
    buffers = [(log.depth, largest)] if count == 1 else [(1, largest)] * count
    if log.lanes:
        buffers = [(lane.depth, lane.largest_io_bytes) for lane in log.lanes]
    held = sum(depth * size for depth, size in buffers) + 128 * (log.read_ios + log.write_ios)
    split = (
        f"split: {counted(log.split_ops, 'operation')} longer than"
        f" {format_io_size(log.max_io_bytes)}"
    )
    losses = [
        *([f"{split}; the parts are issued at once"] if log.split_ops else []),
        *(
            ["times are whole milliseconds; kvreplay keeps microseconds"]
            if log.version == ABSOLUTE
            else []
        ),
        *lost,
        *(
            [f"{n:,} flushes are not issued (stat.fio has them)"]
            if (n := profile.flush_ops)
            else []
        ),
        *common_losses(profile),
    ]
    shared: FioOptions = {"direct": True}
    if not log.lanes:
        shared["ioengine"] = "psync" if count > 1 else "libaio"
        if count == 1:
            shared["iodepth"] = log.depth
        shared["bs"] = largest
    return fio_job(
        mode,
        profile,
        options,
        title,
        whole_mib(span_bytes),
        buffers,
        run=[f"it takes {took}{started if log.start_ms else ''}"],
        memory=[f"{format_bytes(held)} of memory for buffers and logs"],
        does=[*ios, does],
        lost=losses,
        bugs=_bugs(options.version, log),
        shared=FioSettings(shared),
        more=FioSettings({"group_reporting": True}),
        sections=_log_sections(log),
    )


def _log_sections(log: LogSummary) -> list[FioSection]:
    """Return one section for each iolog."""
    own = [lane.options for lane in log.lanes] or [FioOptions()] * len(log.files)
    return [
        FioSection(file.removesuffix(".iolog"), FioSettings({"read_iolog": file, **options}))
        for file, options in zip(log.files, own, strict=True)
    ]


def _said_order(log: LogSummary) -> str:
    """Return in words which I/Os wait for which others."""
    if log.lanes:
        chains = [lane for lane in log.lanes if lane.is_chain]
        widths = sorted({lane.depth for lane in chains})
        width = (
            f"{widths[0]} to {widths[-1]} I/Os" if len(widths) > 1 else counted(widths[0], "I/O")
        )
        text = (
            f"requests are dealt out to {counted(len(chains), 'lane')} of {width} in flight, as the"
            " stages of requests have; a lane goes on once a stage has completed"
        )
        if len(chains) < len(log.lanes):
            text += "; I/Os of no request are in a lane of their own, and wait for nothing"
        return text
    if len(log.files) > 1:
        return (
            f"lines are partitioned round-robin over {len(log.files)} jobs with one I/O in flight"
            " each: no more are in flight, and latencies are correct"
        )
    return "all from one log, asynchronously"


def _lost_order(profile: Profile, log: LogSummary, waiting_requests: int) -> list[str]:
    """Return what the replay loses of the order in which I/Os wait for each other."""
    if not log.lanes:
        run = "; jobs made of kvreplay's run of it have the times at which it issued them"
        return [
            "dependencies of requests and stages: all operations are issued by time, none waits for"
            " another to complete" + run * (profile.origin.kind is SourceKind.TRACE)
        ]
    lost = [
        (
            "the order of operations of one object in different requests: a read does not wait for"
            " the write of another request"
        )
    ]
    if any(lane.is_chain and lane.depth > 1 for lane in log.lanes):
        lost.append("stages of fewer I/Os than their lane: the next stage begins with them")
    if waiting_requests:
        lost.append(
            f"{counted(waiting_requests, 'request')} wait for another to end, for there are no more"
            f" than {MAX_LANES} lanes"
        )
    return lost


def _bugs(version: FioVersion | None, log: LogSummary) -> list[str]:
    """Return the bugs of fio `version` (any, if null) that change the results of replaying `log`."""
    is_one, is_absolute = len(log.files) == 1, log.version == ABSOLUTE
    is_old, is_new = (
        version is None or version < REAPS_WHILE_WAITING,
        version is None or version >= REAPS_WHILE_WAITING,
    )
    lines = []
    if is_absolute:
        lines.append(
            "the wait times of a version 2 log are absolute, in ms after fio's start, unlike what"
            " its manual says (so in the code of all versions; run with 3.33 and 3.39): a late"
            " replay catches up, but it must not follow another job in one run of fio"
        )
    else:
        lines.append(
            "each delay of a version 3 log runs from the last issue, with no catching up: lateness"
            " only grows"
        )
        if is_new:
            lines.append(
                f"fio from {REAPS_WHILE_WAITING} on busy-waits: each job needs a CPU of its own"
            )
    if any(lane.depth > 1 for lane in log.lanes) or (is_one and (is_absolute or is_old)):
        which = "fio" if is_absolute else f"fio before {REAPS_WHILE_WAITING}"
        lines.append(
            f"{which} does not reap completions while it waits for the next time: its completion"
            " latency and depth are wrong here (operations are still issued on time); with --jobs"
            " 32 they are right"
        )
        left_out = "leaves the last operations, up to iodepth, out of its byte counts and latencies"
        lines.append(f"{which} {left_out}; total_ios is right")
    chunked = "read_iolog_chunked loses lines of a log that is read slowly"
    lines.append(f"{chunked}, and thread=1 crashes fio 3.33: use neither")
    if version is None or version >= HANGS_IN_IO_URING:
        lines.append(f"with io_uring, replay hangs from fio {HANGS_IN_IO_URING} on")
    return lines


MAX_OPS = 2_000_000
"""The most operations that are drawn, which bounds memory and the logs."""
_EXACT_SIZES = 256
_model = function("reuse_model_place", int, I8, I8, int, I8, I8, I8, returns=int)


def draw(profile: Profile, runtime_ns: int, seed: int) -> tuple[PlacedOperations, int]:
    """Draw `runtime_ns` of operations, and return them and where the highest ends.

    The same seed draws the same.

    ConfigError if the profile does not know arrivals or reuse, or these are too many operations.
    """
    if profile.locality is None or profile.arrivals is None:
        raise ConfigError(
            f"{profile.origin.file} has no arrival times and reuse distances, which the reuse job"
            " draws from; take a trace, a run or block events that last longer than an instant"
        )
    share = runtime_ns / profile.span_ns
    count = max(1, round(profile.ops * share))
    if count > MAX_OPS:
        raise ConfigError(
            f"{count:,} operations exceed the maximum of the reuse job ({MAX_OPS:,}); shorten it"
            " with --max-duration"
        )
    rng = np.random.default_rng(seed)
    is_read = np.zeros(count, dtype=np.bool_)
    is_read[: round(count * profile.read.ops / profile.ops)] = True
    rng.shuffle(is_read)
    length, distance = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for direction, reuse, which in (
        (profile.read, profile.locality.read, is_read),
        (profile.write, profile.locality.write, ~is_read),
    ):
        n = int(which.sum())
        if n:
            length[which] = _sizes(direction, n, rng)
            # `count` reuse distances in bytes; -1 for a first use.
            known = sum(slot.count for slot in reuse.distances)
            result = np.full(n, -1, dtype=np.int64)
            # Of a direction that begins after what was looked at, no reuse is known.
            again = round(n * known / max(1, known + reuse.first_ops))
            result[:again] = _from_slots(reuse.distances, again, rng)
            rng.shuffle(result)
            distance[which] = result
    # Which operations may share places: those of one size, or of about one if there are very many
    # sizes.
    sizes, index = np.unique(length, return_inverse=True)
    classes = (
        index if len(sizes) <= _EXACT_SIZES else np.unique(slot_of(length), return_inverse=True)[1]
    )
    reserved = np.zeros(int(classes.max()) + 1, dtype=np.int64)
    np.maximum.at(reserved, classes, -(-length // GRANULE_BYTES) * GRANULE_BYTES)
    uses, offset = np.bincount(classes), np.empty(count, dtype=np.int64)
    span_bytes = int(_model(count, classes.astype(I8), distance, len(uses), reserved, uses, offset))
    us = _times(profile, count, runtime_ns, rng)
    return {"us": us, "is_read": is_read, "offset": offset, "length": length}, span_bytes


def _sizes(direction: DirectionProfile, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` sizes in the exact shares of `direction`, by largest remainder, in random
    order.
    """
    weights = (
        np.array([size.ops for size in direction.sizes], dtype=np.float64) * count / direction.ops
    )
    shares = np.floor(weights).astype(np.int64)
    rest = np.argsort(-(weights - shares), kind="stable")[: count - int(shares.sum())]
    shares[rest] += 1
    sizes = np.repeat(np.array([size.io_bytes for size in direction.sizes]), shares)
    rng.shuffle(sizes)
    return sizes


def _from_slots(slots: Sequence[Slot], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` values with the distribution of `slots`, even within each, stratified."""
    if not count:
        return np.empty(0, dtype=np.int64)
    done = np.cumsum([slot.count for slot in slots])
    at = (np.arange(count) + rng.random(count)) / count * done[-1]
    index = np.minimum(np.searchsorted(done, at, "right"), len(slots) - 1)
    low, below = (np.array([getattr(slot, name) for slot in slots]) for name in ("low", "below"))
    values = low[index] + np.floor(rng.random(count) * (below - low)[index]).astype(np.int64)
    rng.shuffle(values)
    return values


def _times(
    profile: Profile, count: int, runtime_ns: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return when each of `count` operations is due, in microseconds.

    Bursts of the profile's sizes, at its gaps.
    """
    arrivals = profile.arrivals
    assert arrivals is not None
    mean = count / max(1, round(count * arrivals.instants / profile.ops))
    bursts = _from_slots(arrivals.bursts, 2 * int(count / mean) + 8, rng)
    bursts = bursts[: int(np.searchsorted(np.cumsum(bursts), count)) + 1]
    gaps = _from_slots(arrivals.gaps, len(bursts) - 1, rng).astype(np.float64)
    starts = np.concatenate([[0.0], np.cumsum(gaps)])
    if starts[-1] > 0:
        starts *= runtime_ns / starts[-1]
    return (FIRST_US + np.repeat(starts, bursts)[:count] * (1_000_000 / NS_PER_S)).astype(np.int64)
