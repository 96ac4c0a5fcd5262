"""The content of `run.json`, and the names of the files in a run's folder.

`run.json` contains the options, the host, the trace and the results of a replay or an import. It is
written last: a folder without it contains no complete run.
"""

from __future__ import annotations

import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from kvtrace.core.app import log, progress
from kvtrace.core.config import sha256
from kvtrace.core.errors import ConfigError, KvError, ProbeUnavailable, TraceError
from kvtrace.core.files import find_json, read_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import Metadata
from kvtrace.core.parameters import named
from kvtrace.core.run.figures import (
    CheckpointFigures,
    Metrology,
    Mlperf,
    RequestFigures,
    Serving,
    Summary,
)
from kvtrace.core.simulation_stats import Count

RUN_FILE = "run.json"
OPS_FILE, SERVED_FILE, SERIES_FILE = "ops.parquet", "requests.parquet", "series.parquet"
PROBE_FILE, BLOCKS_FILE = "probe.json", "blocks.parquet"
BLOCKS_JOURNAL = "blocks.partial.arrows"
"""The rows of blocks.parquet so far, beside it, while a probe measures."""
TRIALS_FILE, SWEEP_FILE = "trials.json", "sweep.json"
"""Both lie in the folder that contains the folders of the runs."""
PARTIAL_RUN_FILE, PARTIAL_OPS_FILE = "run.partial.json", "ops.partial.arrow"
"""The files of a run that is in progress or was killed."""
MLPERF_FILE, TRIALS_FOLDER = "mlperf.json", "trials"


class TraceNote(msgspec.Struct, frozen=True, kw_only=True):
    """The trace that was replayed."""

    file: str
    metadata: Metadata
    sha256: str | None = None
    """SHA-256 of the file's bytes; null in runs of earlier versions and in imports."""


class PacingNote(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which operations were submitted."""

    loop: str | None
    """open or closed."""
    speed: float | None


class SubmitterNote(msgspec.Struct, frozen=True, kw_only=True):
    """One io_uring, and the thread that enters the kernel for it."""

    targets: list[str] | None
    """The drives whose I/O uses this ring; null if it serves all of them."""
    is_own_thread: bool
    """True if a thread of its own submits; false if the thread that orders operations and generates
    data also submits.
    """
    numa_node: int | None
    """NUMA node of the ring's drives; null if unknown, or if the drives are on several nodes."""
    cpus: list[int] | None
    """The processors of that node, to which the ring's thread is bound; null if it is not bound."""
    cpu: int | None
    """The processor on which the ring's thread ended; null without such a thread."""


class EngineNote(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that submitted the operations, its queue depth and its buffers."""

    name: str
    because: str | None = None
    """Why this engine was chosen."""
    is_deferred_taskrun: bool | UnsetType = UNSET
    """This field and the next six are set for io_uring only."""
    has_registered_buffers: bool | UnsetType = UNSET
    unregistered_because: str | UnsetType | None = UNSET
    spin_ns: int | UnsetType = UNSET
    submitters: list[SubmitterNote] | UnsetType = UNSET
    submitters_because: str | UnsetType = UNSET
    """Why there are this many submitters."""
    submitters_refused: str | UnsetType | None = UNSET
    """Why there are fewer submitters than requested; null if there are as many."""
    queue_depth: int | None
    queue_depth_because: str | None = None
    """What set the queue depth: the option, the default of a closed loop, or the capacity of an
    open loop.
    """
    io_bytes: int | None
    buffer_bytes: int | None = None
    """Memory for the buffers of all I/Os that may be in flight. The share that the window can use
    is touched before the run, and does not grow during the run.
    """
    buffer_used_bytes: int | None = None
    """The peak of the memory in use."""
    buffer_small_page_bytes: int | None = None
    """Bytes of the buffers that lie on small pages. The kernel may split an I/O of theirs above the
    device.
    """
    plan_bytes: int | None = None


class WindowNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the trace that was replayed."""

    rows: int
    is_whole_trace: bool | None
    span_ns: int | None
    """Its duration in trace time."""
    planned_rows: int | None = None
    """Rows whose tier had a target."""
    limit: str | None
    window: str | None = None
    """The part of the trace, as `--window` names it; null without that option. `row` of ops.parquet
    counts from the first row of this part.
    """
    node: int | None = None
    """The only node of a fleet's trace whose rows were replayed; null if all nodes were."""
    runtime_ns: int | None = None
    """The requested duration of the run by the clock; null if the run replays the window once."""
    rows_once: int | None = None
    """Rows in one pass over the window, if `--duration` repeats it. `row` of ops.parquet counts on
    from one repeat to the next.
    """
    repeats: float | None = None
    """Number of passes over the window: rows / rows_once."""
    planned_repeats: int | None = None
    peak_bytes: dict[str, int] | None = None
    """By tier: the most bytes that the tier held at once."""


class Preconditioned(msgspec.Struct, frozen=True, kw_only=True):
    """The writes before the run that bring the drive into a steady state."""

    tier: str
    """The tier; if it has several drives, followed by the path of the drive."""
    rule: str
    file_bytes: int
    """Size of the region that was filled: a file as large as the tier's peak, or all of a
    preallocated file or device.
    """
    written_bytes: int
    sequential_io_bytes: int
    random_io_bytes: int
    wall_ns: int
    is_whole: bool
    """False if preconditioning was interrupted."""
    rounds_bytes_per_s: list[float] | None
    """Bandwidth of each round of random writes; null for the rule `twice`."""
    is_steady: bool | None
    """True if the rule was met; null for the rule `twice`."""


class Populated(msgspec.Struct, frozen=True):
    """The objects that were written before the run because the window reads them."""

    objects: int
    bytes: int
    wall_ns: int
    """Time for all objects except those on preallocated files and devices, which are written as
    these are laid out.
    """


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The time that preparation took until the first operation could be submitted."""

    lay_out_ns: int
    """Time of one pass over preallocated files and devices, which writes the objects to populate
    and all other unwritten areas.
    """
    total_ns: int
    """Time since before the trace was read, including preconditioning, laying out and populating.
    """


class ShapeNote(msgspec.Struct, frozen=True, kw_only=True):
    """The requested deduplication and compression ratios of the data, and the measured ones."""

    dedup_ratio: float
    """The requested ratio, as is the next field."""
    compress_ratio: float
    block_bytes: int
    made_blocks: int
    """Whole blocks generated for writes, including those that populate and precondition."""
    distinct_blocks: int
    """Generated blocks that occur once, plus the blocks of the pool that were used."""
    measured_dedup_ratio: float | None
    random_bytes_per_512: int
    measured_compress_ratio: float
    """Bytes of a sample / its size after zstd -3, with each 4 KiB block compressed separately."""


class DataNote(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the writes."""

    generator: str
    """The generator of the data. If it is a library, its version is among those of the host."""
    seed: int
    piece_bytes: int | None
    """Bytes generated from one seed; null if every 8 bytes have their own."""
    note: str
    shape: ShapeNote | None
    """Null if no ratio was requested: then no block occurs twice, and none compresses."""
    stamped_block_bytes: int | None
    """Size of the blocks that carry a stamp; null unless verified."""


class Smart(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a drive's SMART health data."""

    values: JsonObject | None
    """The values by the names that the tool gives them; null if they cannot be read."""
    source: str | None
    reason: str | None
    """Why there are no values."""


class SmartReadings(msgspec.Struct, frozen=True, kw_only=True):
    """A drive's health before and after the run."""

    before: Smart | None
    after: Smart | None


class DeviceIo(msgspec.Struct, frozen=True, kw_only=True):
    """The I/O of the device beneath a drive during the run, from all programs.

    Null if the device's counters cannot be read.
    """

    read_bytes: int | None
    written_bytes: int | None
    device_ns: int | None = None
    """Time of the device's requests, summed, from the block layer's queue to completion. Also null
    in runs of earlier versions.
    """
    busy_ns: int | None = None
    """Time during which the device had at least one request."""


class ProbesNote(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of the probes during the run.

    If probes were left out, all but the first two fields are unset.
    """

    is_measured: bool
    reason: str | None = None
    """Why they were left out."""
    file: str | UnsetType = UNSET
    event_rows: int | UnsetType | None = UNSET
    """Null if the probes recorded histograms only."""
    devices: list[str] | UnsetType | None = UNSET
    start_ns: int | UnsetType | None = UNSET
    """Time since the run's start."""
    duration_ns: int | UnsetType | None = UNSET


class RunBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run when its first operation is about to be submitted."""

    program: str
    """kvreplay, or kvdistill for an import."""
    version: str
    argv: list[str]
    config: JsonObject
    """The options, by their names in kvreplay's Config."""
    config_sha256: str
    started_utc: str | None
    status: str
    """`running`, `complete`, `partial` if the run was cut short, or `failed operations` if the run
    was complete but some operations failed.
    """
    reason: str | None
    """Why the run is not complete."""
    host: JsonObject
    """The kernel, cpu_model, cpus and more."""
    trace: TraceNote
    tiers: dict[str, JsonObject]
    """By tier: its target, its engine, and the facts that tiers of its kind have."""
    pacing: PacingNote
    engine: EngineNote
    window: WindowNote
    preconditioned: list[Preconditioned] = []
    populated: Populated | None = None
    prepared: Prepared | None = None
    data: DataNote | None = None
    smart: dict[str, SmartReadings] = {}
    """By drive."""

    def __post_init__(self) -> None:
        """Refuse `host` and `tiers` unless their `CheckedFacts` have the right types.

        The error is msgspec's own.
        """
        msgspec.convert({"host": self.host, "tiers": self.tiers}, CheckedFacts)

    def drives(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield (tier, facts) for each drive of each tier.

        The facts of a drive include those that all drives of the tier share.
        """
        for name, facts in self.tiers.items():
            for drive in facts.get("drives") or [{}]:
                yield name, facts | drive


class RunFile(RunBegun, frozen=True, kw_only=True):
    """The content of run.json. A value that is unknown is null."""

    sha256: str | None = None
    """SHA-256 of all other fields, as `seal` sets it; null in runs of earlier versions."""
    verification: Verification | None = None
    """Null unless `--verify` was given."""
    device_io: dict[str, DeviceIo] = {}
    """By drive."""
    probes: ProbesNote | None = None
    """Null unless probes were requested."""
    notes: list[str] = []
    """Facts without which a reader may misread the figures."""
    requests: RequestFigures | None = None
    serving: Serving | UnsetType = UNSET
    """The result of a serving benchmark, in an import of one; unset in replays."""
    mlperf: Mlperf | None = None
    checkpoints: CheckpointFigures | None = None
    """Null if the run neither saved nor restored a checkpoint."""
    metrology: Metrology | None = None
    """Null if the run has several ranks, in imports, and in runs of earlier versions."""
    ranks: RanksNote | UnsetType = UNSET
    """The ranks of a run that has several, whose own runs lie in subfolders; unset in other runs.
    """
    summary: Summary


Kind = TypeVar("Kind", bound=msgspec.Struct)


def read_run(folder: Path) -> RunFile:
    """Return the content of run.json in `folder`.

    TraceError if the file is missing or damaged, or if it is of another version of this program.
    """
    run = read_manifest(folder / RUN_FILE, RunFile)
    if run.sha256 not in (None, seal(run).sha256):
        raise TraceError("damaged: its content is not what was written", path=folder / RUN_FILE)
    return run


def seal(content: Kind) -> Kind:
    """Return `content` with the hash of all other fields in its field `sha256`.

    A reader recomputes the hash to see whether the file was changed.
    """
    # A reader hashes the decoded content, in which a float may have become an integer. Hash the
    # same form here.
    encoded = msgspec.json.encode(msgspec.structs.replace(content, sha256=None))
    decoded = msgspec.json.decode(encoded, type=type(content))
    return msgspec.structs.replace(decoded, sha256=sha256(decoded))


def find_run(folder: Path) -> RunFile | None:
    """Return the content of run.json in `folder`, or None if there is no such file.

    TraceError if it is damaged.
    """
    return read_run(folder) if (folder / RUN_FILE).is_file() else None


def find_unfinished_runs(folder: Path) -> list[Path]:
    """Return the folders of runs that are in progress or were killed.

    These are `folder` itself and folders up to two levels below, where trials and sweeps put their
    runs. If a rank is unfinished, this is the folder of the run that contains it.
    """
    runs: set[Path] = set()
    for subfolders in ("", "*/", "*/*/"):
        for file in folder.glob(f"{subfolders}{PARTIAL_RUN_FILE}"):
            run = file.parent
            is_rank = run.match("rank-[0-9]*")
            runs.add(run.parent if is_rank else run)
    return sorted(run for run in runs if not (run / RUN_FILE).is_file())


def list_runs_below(folder: Path) -> str:
    """Return a clause for the error that `folder` is no run: the names of the runs below it.

    Empty if there are none.
    """
    runs = sorted(file.parent.name for file in folder.glob(f"*/{OPS_FILE}"))
    return f"; it has the runs {', '.join(runs)}: name one of them" if runs else ""


def refuse_unfinished_runs(folder: Path) -> None:
    """Raise TraceError if `folder` has no run.json but contains unfinished runs.

    The error names the command that recovers them.
    """
    if (folder / RUN_FILE).is_file():
        return
    unfinished = find_unfinished_runs(folder)
    if not unfinished:
        return
    if unfinished == [folder]:
        subject = "that run"
    else:
        subject = ", ".join(str(run.relative_to(folder)) for run in unfinished)
    raise TraceError(
        f"{subject} is in progress or was killed; kvreplay recover {folder} makes a partial run"
        " of it",
        path=folder,
    )


def read_manifest(path: Path, kind: type[Kind]) -> Kind:
    """Return the run.json or run.partial.json at `path`; errors as of `read_run`."""
    if not path.is_file():
        refuse_unfinished_runs(path.parent)
    return read_json(path, kind, misfit="not of this version of kvtrace: {}; make the run again")


class _Host(msgspec.Struct):
    kernel: str | None = None
    cpu_model: str | None = None
    cpus: Count | None = None


class _Target(msgspec.Struct):
    drives: list[JsonObject] | None = None


class CheckedFacts(msgspec.Struct):
    """Fields of `host` and `tiers` with a type that other modules rely on."""

    host: _Host
    tiers: dict[str, _Target]


class BlockFault(StrEnum):
    """The fault of a block that was read."""

    DAMAGED = "damaged"
    """Its checksum is wrong: the block is torn, or its bytes were changed."""
    FOREIGN = "foreign"
    """This run did not write it. Zeros count as foreign."""
    MISPLACED = "misplaced"
    """This run wrote it, but elsewhere."""
    STALE = "stale"
    """This run wrote it here, but it is another version."""


class BadBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One bad block and where it was read."""

    fault: BlockFault
    row: int
    """The trace row that read it."""
    tier: str
    object_id: int
    key: str | None = None
    """The object's name, from the trace's objects table; null without that table."""
    file: str | None
    """Null where objects are not files."""
    offset_bytes: int
    """Offset of the block in its object."""
    expected_version: int
    found: dict[str, int] | None
    """The fields of the stamp that was read; null if its checksum is wrong."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of --verify."""

    block_bytes: int
    checked_blocks: int
    unwritten_blocks: int
    """Blocks that were read where the trace never wrote: there is nothing to check."""
    corrupt_blocks: int
    by_fault: dict[str, int]
    located: list[BadBlock]
    """All corrupt blocks, up to 100,000."""
    check_ns: int
    """Thread time spent on checking, included in the measured time of the run."""


RANK_FOLDER = "rank-{:04d}"
"""The folder of a rank's run, within the folder of the combined run."""


class PartitionNote(msgspec.Struct, frozen=True, kw_only=True):
    """How the trace was partitioned over the ranks, and the relations that this cuts."""

    by: str
    """`node`, `user` or `object`."""
    because: str
    distributed: int
    """Number of nodes, users or objects."""
    rows: list[int]
    """By rank."""
    bytes: list[int]
    """By rank: bytes read and written."""
    nodes: list[list[int]] | None = None
    """By rank: its nodes; null if users or objects were partitioned."""
    shared_objects: int
    """Objects that several ranks touch. Each of these ranks has its own copy, which is written
    before the run if the rank reads it first.
    """
    shared_rows: int
    """Rows on a shared object by a rank that was not the first to touch it."""
    shared_bytes: int
    split_requests: int
    """Requests whose operations are on several ranks. The ranks do not wait for each other in such
    a request.
    """
    deletes_left_out: int
    """Deletes left out because their rank later reads a version that another rank writes."""


class StartNote(msgspec.Struct, frozen=True, kw_only=True):
    """How closely together the ranks began. A value that is unknown is null."""

    skew_ns: int | None
    """Time between the first and the last rank to begin, by the common clock."""
    first_submission_skew_ns: int | None
    """Time between the ranks' first submissions. Null in an open loop, where the trace sets these
    times.
    """
    clock_error_ns: int | None
    """Largest error of the common clock: half the shortest round trip to rank 0, of the worst rank.
    """


class RankNote(msgspec.Struct, frozen=True, kw_only=True):
    """One rank. A value that is unknown is null, such as all results of a lost rank."""

    rank: int
    folder: str
    """Folder of the rank's own run, relative to run.json. Its ops.parquet, requests.parquet and
    series.parquet are not merged.
    """
    host: str | None = None
    nodes: list[int] | None = None
    """The trace's nodes that it replayed; null if users or objects were partitioned."""
    cpus: int | None = None
    """Number of processors that it may run on."""
    status: str
    """As in its run.json; `idle` if it had no part of the trace, `lost` if it left no results."""
    reason: str | None = None
    operations: int | None = None
    errors: int | None = None
    bytes: int | None = None
    """Bytes read and written, on tiers that transfer data."""
    wall_ns: int | None = None
    bandwidth_bytes_per_s: float | None = None
    """Bytes / the rank's wall time."""
    read_p99_ns: int | None = None
    """p99 of its slowest tier: response time in an open loop, else service time."""
    write_p99_ns: int | None = None
    clock_offset_ns: int | None = None
    """Its monotonic clock minus that of rank 0, before the run."""
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    """The offset after the run minus the offset before it."""
    begun_late_ns: int | None = None
    """Its start minus the agreed start."""
    first_submission_ns: int | None = None
    """Its first submission minus the agreed start."""
    stood_still_ns: int | None = None
    """The longest time for which its process did not answer; null up to one second. The process was
    stopped, or had no processor.
    """


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that ended last, if it delayed the other ranks."""

    rank: int
    behind_ns: int
    """Its end minus the end of the median rank."""
    reason: str


class CombinedNote(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of all ranks by MLPerf Storage's rule (Rules.md 6.3.4), which does not pool
    operations.

    A value that is unknown is null.
    """

    rule: str = "MLPerf Storage: bandwidths of the ranks added up, the worst P95 of any rank"
    read_bandwidth_bytes_per_s: float | None
    write_bandwidth_bytes_per_s: float | None
    read_p95_ns: int | None
    write_p95_ns: int | None


class RanksNote(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a run."""

    count: int
    library: str | None
    """The MPI library; null without one."""
    partition: PartitionNote | None = None
    """Null if each rank has a trace of its own."""
    start: StartNote
    is_exact: bool
    """True if percentiles are over all ranks' operations; false if they come from the ranks'
    histograms, summed.
    """
    ranks: list[RankNote]
    straggler: Straggler | None
    combined: CombinedNote


class ProgramError(KvError):
    """Another of our programs failed. The message and the exit code are those of that program."""

    def __init__(self, command: str, message: str, exit_code: int) -> None:
        """Name the `command` that failed and the `message` that it printed."""
        super().__init__(f"{command}: {message}")
        self.exit_code = exit_code


def build_argv(program: str, *arguments: str) -> list[str]:
    """Return the command line that starts `program` with `arguments` in this interpreter."""
    return [sys.executable, "-m", f"{program}.cli", *arguments]


def run_program(
    program: str, arguments: Sequence[str], *, is_shown: bool = False, is_noted: bool = True
) -> None:
    """Run `program` with `arguments`.

    Its stdout is passed on if `is_shown`; the lines of its stderr are logged if `is_noted`.

    ProgramError if its exit code is not 0.
    """
    command = shlex.join([program, *arguments])
    sys.stdout.flush()
    with progress(command):
        process = subprocess.run(  # noqa: S603 - our own program
            build_argv(program, *arguments),
            stdout=None if is_shown else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = process.stderr.strip().splitlines()
    if process.returncode:
        message = lines[-1] if lines else f"it exited with {process.returncode}"
        message = message.removeprefix(f"{program}: error: ")
        raise ProgramError(command, message, process.returncode)
    if is_noted:
        for line in lines:
            log(line)


def generate(gen: str, trace: Path) -> None:
    """Write `trace` with `kvtrace gen` and the options `gen`, replacing an existing file.

    ConfigError if the quotes in `gen` do not match; ProgramError if `kvtrace gen` fails.
    """
    try:
        run_program("kvtrace", ["gen", *shlex.split(gen), "-o", str(trace), "--force"])
    except ValueError as error:
        raise ConfigError(f"{named('gen', gen)}: {error}") from None


ATTACHED = "probes attached"
"""The line that `kvreplay probe` prints to stderr when it starts to measure."""
_ATTACH_S, _END_S = 120, 120


@contextmanager
def attach_probes(*options: str) -> Iterator[Callable[[], None]]:
    """Run `kvreplay probe` with `options` while the context lasts.

    Yield a function that ends the probes; their files are complete when it returns.

    ProbeUnavailable, from entering the context or from that function, says why nothing is measured.
    """
    command = build_argv("kvreplay", "probe", *options)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise ProbeUnavailable(f"{command[0]} does not start: {error.strerror}") from None
    errors = cast("IO[str]", process.stderr)

    def build_error(stderr: str) -> ProbeUnavailable:
        lines = stderr.splitlines() or ["kvreplay probe ended without an error message"]
        return ProbeUnavailable(lines[-1].removeprefix("kvreplay: error: "))

    def end() -> None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            raise ProbeUnavailable(f"the probes did not end within {_END_S} s") from None
        if process.returncode:
            raise build_error(errors.read().strip())

    with process:
        try:
            if not select.select([errors], [], [], _ATTACH_S)[0]:
                raise ProbeUnavailable(f"the probes were not attached within {_ATTACH_S} s")
            first_line = errors.readline().strip()
            if first_line != ATTACHED:
                raise build_error(first_line)
            yield end
        finally:
            process.kill()


class MlperfRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the benchmark, and whether the run complies with it."""

    rule: str
    reference: str
    """Its section in Rules.md."""
    kept: str
    """`kept`, `not kept` or `undetermined`."""
    detail: str


class MlperfMark(msgspec.Struct, frozen=True, kw_only=True):
    """The mark that must accompany the figures of an MLPerf option; the file has more fields."""

    answer: str
    mark: str | None
    """The rules that are not met; null if all rules that can be checked are met."""
    option: str
    not_claimed: dict[str, str]
    """The claims that the figures do not make, each with the reason."""
    rules: list[MlperfRule]


def find_mark(folder: Path) -> MlperfMark | None:
    """Return the mark of the figures in `folder`, or None if they are not the benchmark's."""
    return find_json(
        folder / MLPERF_FILE, MlperfMark, misfit="not of this version of kvreplay: {}; run it again"
    )
