"""Write the fio jobs that run iologs, of a trace or sampled from an LRU stack model.

An iolog has one target. Long operations are split, and lines are partitioned round-robin over
several jobs. Deletes only free space, because fio has none. A replay catches up with lateness in
version 2 of the log; lateness of version 3 accumulates.
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

from kvdistill.formats.fio_iolog import PlacedOperations
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
from kvdistill.profile.profile import (
    ArrivalProfile,
    BurstSequence,
    DirectionProfile,
    Profile,
    SourceKind,
    cut_long,
)
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
# A row may become many lines: a 32 MiB object is 32 lines.
_BATCH_ROWS = 1 << 14
_LANE_START_MS = 10
"""fio starts a process for each lane."""
_START_MS, _LINES_PER_MS, _FILLED_PER_MS = 1000, 200, 500_000
"""Before the first I/O, fio reads the logs and fills its buffers with random data.

The figures are ms at the start, lines read per ms, and bytes filled per ms.
"""


class LogSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the written logs; each line is one I/O."""

    files: list[str]
    """One log a job; without lanes, line i of all lines is in file i modulo their number."""
    lanes: list[Lane] = []
    """The jobs of I/Os that wait for each other, one for each of `files`; empty if none waits."""
    version: int
    target: str
    max_io_bytes: int
    """Maximum I/O; longer operations are split."""
    start_ms: int
    """Due time of the first line, from fio's start: time to read logs and fill buffers.

    0 in version 3.
    """
    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    split_ops: int
    last_us: int
    """Time of the last line; that of the first is 1."""
    largest_io_bytes: int
    max_burst_ios: int
    """Maximum number of lines due at one time."""
    issue_us: tuple[float, float] = (0.0, 0.0)
    """Time by which each delay is shortened, for an I/O and for each MiB of it."""

    @property
    def depth(self) -> int:
        """Queue depth of one asynchronous job: its longest burst, limited by its buffers.

        With lanes, it is that of all lanes together.
        """
        if self.lanes:
            return sum(lane.depth for lane in self.lanes)
        return min(most_in_flight(self.largest_io_bytes), max(32, self.max_burst_ios))


class FioIos(PlacedOperations):
    """I/Os as fio issues them: operations longer than a limit are several."""

    part: NDArray[np.int64]
    """Number of each I/O within its operation, from 0."""


IoSource = Callable[[], Iterator[FioIos]]
"""A function that yields the I/Os of a job in batches; each call starts from the first."""


def split_ios(ios: Path, max_io_bytes: int) -> Iterator[FioIos]:
    """Yield the operations of the Parquet file `ios` as the I/Os that fio issues, in order."""
    first = None
    for batch in pq.ParquetFile(ios).iter_batches(
        batch_size=_BATCH_ROWS, columns=["ts_ns", "op", "address", "io_bytes"], use_threads=False
    ):
        ts, op, address, length = (column.to_numpy() for column in batch.columns)
        moves_bytes = np.flatnonzero(length > 0)
        if not len(moves_bytes):
            continue
        ts, op = ts[moves_bytes], op[moves_bytes]
        first = ts[0] if first is None else first
        operations: PlacedOperations = {
            "us": FIRST_US + (ts - first) // NS_PER_US,
            "is_read": op == READ,
            "offset": address[moves_bytes],
            "length": length[moves_bytes],
        }
        yield from split(operations, max_io_bytes)


def split(operations: PlacedOperations, max_io_bytes: int) -> Iterator[FioIos]:
    """Yield `operations` as the I/Os that fio issues (see `split_ios`)."""
    us, is_read = operations["us"], operations["is_read"]
    offset, length = operations["offset"], operations["length"]
    for start in range(0, len(us), _BATCH_ROWS):
        batch = slice(start, start + _BATCH_ROWS)
        length_bytes = length[batch]
        parts_per_row = -(-length_bytes // max_io_bytes)
        row = np.repeat(np.arange(len(parts_per_row)), parts_per_row)
        first_part = np.cumsum(parts_per_row) - parts_per_row
        part_index = np.arange(len(row)) - np.repeat(first_part, parts_per_row)
        yield {
            "us": us[batch][row],
            "is_read": is_read[batch][row],
            "offset": offset[batch][row] + part_index * max_io_bytes,
            "length": np.minimum(length_bytes[row] - part_index * max_io_bytes, max_io_bytes),
            "part": part_index,
        }


def plan_iologs(
    name: str, ios: IoSource, options: JobOptions, lanes: LanePlan | None = None
) -> LogSummary:
    """Return the summary of the iologs of the `ios`, without writing them.

    With `lanes`, there is one log for each. Otherwise the default is one log for one asynchronous
    job: several jobs wake up independently, and have no more I/Os in flight than jobs. Times are
    absolute milliseconds by default: relative microseconds are more exact, but fio's time to issue
    I/Os accumulates unless a check has measured it (`issue_us`), see docs/concepts/fio-jobs.md. Logs
    are called `name`.iolog, or `name`.1.iolog and so on.
    """
    version, jobs = options.log_version or ABSOLUTE, options.jobs or 1
    counts = _count_ios(ios())
    lines = counts["read_ios"] + counts["write_ios"]
    if lanes is not None:
        return _plan_lane_logs(lanes, counts, options)
    # fio rejects a log without I/O.
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
    """Return the logs of lanes, with absolute times, because a late lane has to catch up."""
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
    file_of_io = np.concatenate([files for _, files in _assign_files(log, ios(), plan)])
    return [np.flatnonzero(file_of_io == index) for index in range(len(log.files))]


def _assign_files(
    log: LogSummary, batches: Iterable[FioIos], plan: LanePlan | None
) -> Iterator[tuple[FioIos, NDArray[np.int64]]]:
    """Yield each batch with the file that each of its I/Os goes to, an index into `log.files`.

    All parts of an operation go to its lane; without lanes, I/O i goes to file i modulo the number
    of files.
    """
    ios_before = operations_before = 0
    for batch in batches:
        count = len(batch["part"])
        if plan is None:
            files = np.arange(ios_before, ios_before + count) % len(log.files)
        else:
            operation = operations_before + np.cumsum(batch["part"] == 0) - 1
            files = plan.lane_of_operation[operation].astype(np.int64)
            operations_before = int(operation[-1]) + 1
        ios_before += count
        yield batch, files


def write_iologs(
    folder: Path, name: str, log: LogSummary, ios: IoSource, plan: LanePlan | None = None
) -> None:
    """Write the logs called `name` of the `ios` to `folder`, as planned in `log`.

    Logs of an earlier run are removed.
    """
    for earlier_log in folder.glob(f"{name}.*iolog"):
        earlier_log.unlink()
    with ExitStack() as stack:
        streams = [
            stack.enter_context(stack.enter_context(aside(folder / file)).open("wb"))
            for file in log.files
        ]
        writers = [_Log(out, log) for out in streams]
        for batch, files in _assign_files(log, ios(), plan):
            for index in np.unique(files):
                writers[index].write(batch, files == index)
        for writer in writers:
            writer.close()


def _join_columns(*columns: npt.ArrayLike | pa.Array, separator: str = " ") -> pa.Array:
    """Join `columns` (arrays, or one text for all rows) row by row to an Arrow array."""
    text = pa.large_string()
    arrays = [
        pa.scalar(column, text) if isinstance(column, str) else pa.array(column).cast(text)
        for column in columns
    ]
    return pc.binary_join_element_wise(*arrays, pa.scalar(separator, text))


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

    def write(self, batch: FioIos, selection: NDArray[np.bool_]) -> None:
        """Write the `selection` of I/Os of `batch`."""
        us = batch["us"][selection]
        if not len(us):
            return
        length = batch["length"][selection]
        op = np.where(batch["is_read"][selection], "read", "write")
        line = _join_columns(self._target, op, batch["offset"][selection], length)
        if self._is_absolute:
            ms = self._start_ms + (us - FIRST_US) // US_PER_MS
            waits = np.diff(ms, prepend=self._last) != 0
            line = _join_columns(
                pc.if_else(pa.array(waits), _join_columns(self._target, "wait", ms, "0\n"), ""),
                line,
                separator="",
            )
            self._last = int(ms[-1])
        else:
            # fio waits for the difference of two times from the issue of the first one. So each time
            # is reduced by the time to issue all earlier I/Os, but never goes back.
            base, per_mib = self._issue_us
            issued_us = self._before_us + np.cumsum(base + per_mib * length / MIB)
            issued_before_us = np.concatenate([[self._before_us], issued_us[:-1]])
            us = np.round(
                np.maximum.accumulate(np.maximum(us - issued_before_us, self._last))
            ).astype(np.int64)
            self._before_us = float(issued_us[-1])
            line = _join_columns(us, line)
            self._last = int(us[-1])
        lines = _join_columns(line, "", separator="\n")
        self._out.write(lines.buffers()[2][: pc.sum(pc.binary_length(lines)).as_py()])

    def close(self) -> None:
        stamp = "" if self._is_absolute else f"{self._last} "
        self._out.write(f"{stamp}{self._target} close\n".encode())


class _Counts(TypedDict):
    """The counts of `LogSummary`."""

    read_ios: int
    write_ios: int
    read_bytes: int
    write_bytes: int
    split_ops: int
    last_us: int
    largest_io_bytes: int
    max_burst_ios: int


def _count_ios(batches: Iterable[FioIos]) -> _Counts:
    """Return the counts of the I/Os in `batches`."""
    read_ios = write_ios = read_bytes = write_bytes = split_ops = 0
    largest, burst_us, burst, longest_burst = 0, -1, 0, 0
    for batch in batches:
        is_read, length = batch["is_read"], batch["length"]
        read_ios += int(is_read.sum())
        write_ios += int((~is_read).sum())
        read_bytes += int(length[is_read].sum())
        write_bytes += int(length[~is_read].sum())
        split_ops += int((batch["part"] == 1).sum())
        largest = max(largest, int(length.max()))
        times, lines = np.unique(batch["us"], return_counts=True)
        # A burst may continue in the next batch.
        lines[0] += burst if times[0] == burst_us else 0
        burst_us, burst = int(times[-1]), int(lines[-1])
        longest_burst = max(longest_burst, int(lines.max()))
    return {
        "read_ios": read_ios,
        "write_ios": write_ios,
        "read_bytes": read_bytes,
        "write_bytes": write_bytes,
        "split_ops": split_ops,
        "last_us": burst_us,
        "largest_io_bytes": largest,
        "max_burst_ios": longest_burst,
    }


def expected_replay(profile: Profile, log: LogSummary, *, is_drawn: bool) -> list[ExpectedFigure]:
    """Return the expected figures of the job of `log`; empty if the source has no times."""
    source = source_load(profile, log.max_io_bytes)
    if not profile.span_ns or log.last_us <= FIRST_US:
        return []
    read_ios, total_bytes = log.read_ios, log.read_bytes + log.write_bytes
    ios, seconds = read_ios + log.write_ios, (log.last_us - FIRST_US) * NS_PER_US / NS_PER_S
    response_s, jobs = source.mean_depth / source.ios_per_s, len(log.files)
    max_depth = jobs if jobs > 1 and not log.lanes else log.depth
    # Without response times, it is unknown whether one I/O in flight a job suffices.
    rate = nan if isnan(response_s) and jobs > 1 and not log.lanes else ios / seconds
    idle = nan if isnan(response_s) else source.idle_share
    if rate * response_s > max_depth:
        rate, idle = max_depth / response_s, 0.0
    # Sampled operations queue differently than the source's.
    latency_figures = (nan, nan, nan) if is_drawn else (0.0, rate * response_s, idle)
    return expected_figures(
        source, IoLoad(rate, rate * total_bytes / ios, read_ios / ios, *latency_figures)
    )


# Long, because of the head of the job.
def log_job(
    profile: Profile,
    log: LogSummary,
    mode: FioMode,
    span_bytes: int,
    options: JobOptions,
    *,
    waiting_requests: int = 0,
) -> FioJob:
    """Return the job that runs `log`: all operations of the source, or sampled ones (reuse).

    `waiting_requests` begin in the source before their lane is free.
    """
    if mode is FioMode.REPLAY:
        title = "Exact replay of a KV-cache workload: every read and write, at its time"
        existing_objects = (
            f"{counted(profile.placed.prior_objects, 'object')}"
            f" ({format_bytes(profile.placed.prior_bytes)})"
        )
        description = (
            f"read before written: {existing_objects}; the prefill writes the whole target, so that every read"
            " finds data on the device"
        )
        lost = _lost_order(profile, log, waiting_requests)
    else:
        title = (
            "Randomly sampled job of a KV-cache workload: its sizes, mix, bursts, gaps and reuse"
            " distances"
        )
        description = (
            f"operations are sampled, with seed {options.seed}, from the profile's distributions;"
            " offsets from an LRU stack, at the profile's reuse distances"
        )
        lost = [
            "the sequence of operations: each is sampled independently",
            "phases: the mean rate is constant",
        ]
    duration = format_duration(log.last_us * NS_PER_US + log.start_ms * NS_PER_MS)
    start_note = f", of which {format_duration(log.start_ms * NS_PER_MS)} before the first I/O"
    start_note = f"{start_note}, to read the logs and fill buffers: fio includes them in mean rates"
    reads = f"{counted(log.read_ios, 'read')} of {counted(log.read_bytes, 'byte')}"
    writes = f"{counted(log.write_ios, 'write')} of {counted(log.write_bytes, 'byte')}"
    descriptions = [f"{reads} and {writes} in the log", _order_text(log, mode)]
    if any(log.issue_us):
        base, per_mib = log.issue_us
        per_mib_text = f" and {per_mib:.0f} µs a MiB" if per_mib else ""
        descriptions.append(
            f"each delay in the log is {base:.0f} µs{per_mib_text} shorter than the source's, to compensate"
            " for the time that this fio takes to issue an I/O, as measured by --check"
        )
    largest, count = log.largest_io_bytes, len(log.files)
    buffers = [(log.depth, largest)] if count == 1 else [(1, largest)] * count
    if log.lanes:
        buffers = [(lane.depth, lane.largest_io_bytes) for lane in log.lanes]
    memory_bytes = sum(depth * size for depth, size in buffers) + 128 * (
        log.read_ios + log.write_ios
    )
    split_note = (
        f"split: {counted(log.split_ops, 'operation')} longer than"
        f" {format_io_size(log.max_io_bytes)}"
    )
    all_losses = [
        *([f"{split_note}; the parts are issued at once"] if log.split_ops else []),
        *(
            ["times are whole milliseconds; kvreplay keeps microseconds"]
            if log.version == ABSOLUTE
            else []
        ),
        *lost,
        *(
            [f"{flushes:,} flushes are not issued (stat.fio issues them)"]
            if (flushes := profile.flush_ops)
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
        run=[f"it takes {duration}{start_note if log.start_ms else ''}"],
        memory=[f"{format_bytes(memory_bytes)} of memory for buffers and logs"],
        description=[*descriptions, description],
        lost=all_losses,
        bugs=_bugs(options.version, log),
        shared=FioSettings(shared),
        late_settings=FioSettings({"group_reporting": True}),
        sections=_log_sections(log),
    )


def _log_sections(log: LogSummary) -> list[FioSection]:
    """Return one section for each iolog."""
    section_options = [lane.options for lane in log.lanes] or [FioOptions()] * len(log.files)
    return [
        FioSection(file.removesuffix(".iolog"), FioSettings({"read_iolog": file, **options}))
        for file, options in zip(log.files, section_options, strict=True)
    ]


def _order_text(log: LogSummary, mode: FioMode) -> str:
    """Return a description of the order in which I/Os wait for each other."""
    if log.lanes:
        chains = [lane for lane in log.lanes if lane.is_chain]
        widths = sorted({lane.depth for lane in chains})
        width = (
            f"{widths[0]} to {widths[-1]} I/Os" if len(widths) > 1 else counted(widths[0], "I/O")
        )
        chain = "requests" if mode is FioMode.REPLAY else "bursts"
        text = (
            f"{chain} are distributed over {counted(len(chains), 'lane')} of {width} in flight, the"
            " size of their stages; a lane continues when a stage has completed"
        )
        if len(chains) < len(log.lanes):
            text += "; I/Os outside requests are in a separate lane, and wait for nothing"
        return text
    if len(log.files) > 1:
        return (
            f"lines are partitioned round-robin over {len(log.files)} jobs with one I/O in flight"
            " each: this limits the queue depth, but latencies are correct"
        )
    return "one log, issued asynchronously"


def _lost_order(profile: Profile, log: LogSummary, waiting_requests: int) -> list[str]:
    """Return the losses of the replay in the order of dependent I/Os."""
    if not log.lanes:
        run = "; jobs from kvreplay's run of it use its actual issue times"
        return [
            "dependencies of requests and stages: operations are issued by time, and none waits for"
            " another" + run * (profile.origin.kind is SourceKind.TRACE)
        ]
    lost = [
        (
            "the order of operations of one object in different requests: a read does not wait for"
            " the write of another request"
        )
    ]
    if any(lane.is_chain and lane.depth > 1 for lane in log.lanes):
        lost.append(
            "stages with fewer I/Os than their lane: the next stage starts together with them"
        )
    if waiting_requests:
        lost.append(
            f"{counted(waiting_requests, 'request')} wait for the end of another one, because lanes are"
            f" limited to {MAX_LANES}"
        )
    return lost


def _bugs(version: FioVersion | None, log: LogSummary) -> list[str]:
    """Return the bugs of fio `version` (null: any version) that affect a replay of `log`."""
    is_one, is_absolute = len(log.files) == 1, log.version == ABSOLUTE
    is_old, is_new = (
        version is None or version < REAPS_WHILE_WAITING,
        version is None or version >= REAPS_WHILE_WAITING,
    )
    lines = []
    if is_absolute:
        lines.append(
            "wait times of a version 2 log are absolute, in ms after fio's start, contrary to its"
            " manual (code of all versions; verified with 3.33 and 3.39): a late replay catches"
            " up, but must not follow another job in one run of fio"
        )
    else:
        lines.append(
            "each delay of a version 3 log starts at the previous issue, so lateness accumulates"
        )
        if is_new:
            lines.append(
                f"fio from {REAPS_WHILE_WAITING} on busy-waits: each job needs a CPU of its own"
            )
    if any(lane.depth > 1 for lane in log.lanes) or (is_one and (is_absolute or is_old)):
        affected = "fio" if is_absolute else f"fio before {REAPS_WHILE_WAITING}"
        lines.append(
            f"{affected} does not reap completions while it waits: its completion latency and queue"
            " depth are wrong here (operations are issued on time); use --jobs 32 for correct ones"
        )
        omission = "omits the last operations, up to iodepth, from byte counts and latencies"
        lines.append(f"{affected} {omission}; total_ios is right")
    chunked = "read_iolog_chunked loses lines of a log that is read slowly"
    lines.append(f"{chunked}, and thread=1 crashes fio 3.33: use neither")
    if version is None or version >= HANGS_IN_IO_URING:
        lines.append(f"with io_uring, replay hangs from fio {HANGS_IN_IO_URING} on")
    return lines


MAX_OPS, MAX_SAMPLED_IOS = 2_000_000, 8_000_000
"""Maximum number of sampled operations, and of the I/Os that they are split into.

They bound our memory, the logs, and the memory of fio, which reads whole logs before it begins.
"""
_EXACT_SIZES = 256
_model = function("reuse_model_place", int, I8, I8, int, I8, I8, I8, returns=int)


def sampled_span_ns(profile: Profile, options: JobOptions) -> int:
    """Return the time that the reuse job samples.

    It is no longer than MAX_OPS operations take, or MAX_SAMPLED_IOS I/Os.
    """
    ios = sum(cut_long(side, options.io_bytes).ops for side in (profile.read, profile.write))
    return min(
        profile.span_ns,
        options.runtime_cap_ns,
        profile.span_ns * MAX_OPS // max(1, profile.ops),
        profile.span_ns * MAX_SAMPLED_IOS // max(1, ios),
    )


def sample_operations(profile: Profile, runtime_ns: int, seed: int) -> tuple[PlacedOperations, int]:
    """Sample `runtime_ns` of operations; return them, and the end of the highest address.

    The result depends only on the profile and `seed`. Offsets come from an LRU stack model:

        for each operation, with a size class and a reuse distance:
            first use: take a new place of its class
            else: take the place of its class nearest to that distance (bytes) in the LRU stack
            move the place to the top of the stack

    Source: Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal 9
    (1970), used as a generator.

    ConfigError if the profile has no arrivals or reuse distances.
    """
    if profile.locality is None or profile.arrivals is None:
        raise ConfigError(
            f"{profile.origin.file} has no arrival times and reuse distances, which the reuse job"
            " needs; use a trace, a run or block events that span more than an instant"
        )
    share = runtime_ns / profile.span_ns
    count = max(1, round(profile.ops * share))
    rng = np.random.default_rng(seed)
    is_read = np.zeros(count, dtype=np.bool_)
    is_read[: round(count * profile.read.ops / profile.ops)] = True
    rng.shuffle(is_read)
    length, distance = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for direction, reuse, selected in (
        (profile.read, profile.locality.read, is_read),
        (profile.write, profile.locality.write, ~is_read),
    ):
        ops_of_direction = int(selected.sum())
        if ops_of_direction:
            length[selected] = _sampled_sizes(direction, ops_of_direction, rng)
            # `count` reuse distances in bytes; -1 for a first use.
            reuses = sum(slot.count for slot in reuse.distances)
            distances = np.full(ops_of_direction, -1, dtype=np.int64)
            # A direction that begins after the measured operations has no reuse distances.
            reuse_count = round(ops_of_direction * reuses / max(1, reuses + reuse.first_ops))
            distances[:reuse_count] = _sample_slots(reuse.distances, reuse_count, rng)
            rng.shuffle(distances)
            distance[selected] = distances
    # Operations of one size share places; with very many sizes, those of a similar size.
    sizes, index = np.unique(length, return_inverse=True)
    classes = (
        index if len(sizes) <= _EXACT_SIZES else np.unique(slot_of(length), return_inverse=True)[1]
    )
    reserved = np.zeros(int(classes.max()) + 1, dtype=np.int64)
    np.maximum.at(reserved, classes, -(-length // GRANULE_BYTES) * GRANULE_BYTES)
    uses, offset = np.bincount(classes), np.empty(count, dtype=np.int64)
    span_bytes = int(_model(count, classes.astype(I8), distance, len(uses), reserved, uses, offset))
    us = _sampled_times(profile, count, runtime_ns, rng)
    return {"us": us, "is_read": is_read, "offset": offset, "length": length}, span_bytes


def _sampled_sizes(
    direction: DirectionProfile, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return `count` sizes in the shares of `direction` (largest remainder), in random order."""
    weights = (
        np.array([size.ops for size in direction.sizes], dtype=np.float64) * count / direction.ops
    )
    shares = np.floor(weights).astype(np.int64)
    largest_remainders = np.argsort(-(weights - shares), kind="stable")[: count - int(shares.sum())]
    shares[largest_remainders] += 1
    sizes = np.repeat(np.array([size.io_bytes for size in direction.sizes]), shares)
    rng.shuffle(sizes)
    return sizes


def _sample_slots(slots: Sequence[Slot], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` stratified samples of the histogram `slots`, uniform within each slot."""
    if not count:
        return np.empty(0, dtype=np.int64)
    cumulative = np.cumsum([slot.count for slot in slots])
    positions = (np.arange(count) + rng.random(count)) / count * cumulative[-1]
    index = np.minimum(np.searchsorted(cumulative, positions, "right"), len(slots) - 1)
    low, below = (np.array([getattr(slot, name) for slot in slots]) for name in ("low", "below"))
    values = low[index] + np.floor(rng.random(count) * (below - low)[index]).astype(np.int64)
    rng.shuffle(values)
    return values


def _bursts_in_order(
    arrivals: ArrivalProfile, sequence: BurstSequence, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return bursts of `count` operations and the gaps between them.

    The first is a random one of those that follow a pause, so that bursts close to each other stay
    so. The last burst is followed by the first one, after a gap as long as the mean.
    """
    mean_gap = arrivals.gap_mean_ns or 0.0
    gaps = np.array([*sequence.gaps_ns, mean_gap])
    first = int(rng.choice(np.flatnonzero(np.roll(gaps, 1) >= mean_gap)))
    gaps, ops = np.roll(gaps, -first), np.roll(np.array(sequence.ops, dtype=np.int64), -first)
    repeats = -(-count // int(ops.sum()))
    ends = np.minimum(np.cumsum(np.tile(ops, repeats)), count)
    bursts = np.diff(ends, prepend=0)
    bursts = bursts[bursts > 0]
    return bursts, np.tile(gaps, repeats)[: len(bursts) - 1]


def _bursts_of(count: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `sizes` of bursts scaled to a sum of `count` operations, each of at least one.

    No more than `count` bursts are returned.
    """
    beyond_one = sizes[:count] - 1
    if not beyond_one.any():
        beyond_one += 1
    left = count - len(beyond_one)
    ends = np.rint(np.cumsum(beyond_one) * (left / beyond_one.sum())).astype(np.int64)
    return np.diff(ends, prepend=0) + 1


def _sampled_times(
    profile: Profile, count: int, runtime_ns: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return due times of `count` operations in microseconds, with the profile's bursts and gaps.

    An operation waits for those of its own burst and of bursts shortly before it. So bursts are
    whole, and as many large ones as in the profile. They keep their order if the profile has it and
    the job is no shorter, beginning behind a random pause; else their order is random.
    """
    arrivals = profile.arrivals
    assert arrivals is not None
    if arrivals.sequence is not None and count >= profile.ops:
        bursts, gaps = _bursts_in_order(arrivals, arrivals.sequence, count, rng)
    else:
        burst_count = max(1, round(count * arrivals.instants / profile.ops))
        bursts = _bursts_of(count, _sample_slots(arrivals.bursts, burst_count, rng))
        gaps = _sample_slots(arrivals.gaps, len(bursts) - 1, rng).astype(np.float64)
    starts = np.concatenate([[0.0], np.cumsum(gaps)])
    if starts[-1] > 0:
        starts *= runtime_ns / starts[-1]
    return (FIRST_US + np.repeat(starts, bursts) * (1_000_000 / NS_PER_S)).astype(np.int64)
