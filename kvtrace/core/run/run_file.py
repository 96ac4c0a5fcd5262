"""`run.json`.

What was replayed or imported, on what, how, and what came of it; and the names of a run's files.

A folder without run.json is no run: it is written last, so a run that died is not taken for a whole
one.
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
"""Beside blocks.parquet, while a probe goes on: its rows so far."""
TRIALS_FILE, SWEEP_FILE = "trials.json", "sweep.json"
"""In the folder above the folders of the runs."""
PARTIAL_RUN_FILE, PARTIAL_OPS_FILE = "run.partial.json", "ops.partial.arrow"
"""Of a run that goes on, or was killed."""
MLPERF_FILE, TRIALS_FOLDER = "mlperf.json", "trials"


class TraceNote(msgspec.Struct, frozen=True, kw_only=True):
    """The trace that was replayed."""

    file: str
    metadata: Metadata
    sha256: str | None = None
    """Of the file's bytes; null in runs of earlier versions, and of what was imported."""


class PacingNote(msgspec.Struct, frozen=True, kw_only=True):
    """When operations were submitted."""

    loop: str | None
    """open or closed."""
    speed: float | None


class SubmitterNote(msgspec.Struct, frozen=True, kw_only=True):
    """One io_uring, and who enters the kernel for it."""

    targets: list[str] | None
    """The drives whose I/O goes by it; null: all."""
    is_own_thread: bool
    """Whether a thread of its own does; else the one that orders and makes data."""
    numa_node: int | None
    """Of its drives; null: not known, or they lie on several."""
    cpus: list[int] | None
    """The processors of that node, to which its thread is bound; null: it is not bound."""
    cpu: int | None
    """On which its thread ended; null without one."""


class EngineNote(msgspec.Struct, frozen=True, kw_only=True):
    """How operations were submitted."""

    name: str
    because: str | None = None
    """Why this engine was chosen."""
    is_deferred_taskrun: bool | UnsetType = UNSET
    """This and the next three: io_uring's alone."""
    has_registered_buffers: bool | UnsetType = UNSET
    unregistered_because: str | UnsetType | None = UNSET
    spin_ns: int | UnsetType = UNSET
    submitters: list[SubmitterNote] | UnsetType = UNSET
    """Io_uring's alone, as the next two."""
    submitters_because: str | UnsetType = UNSET
    """What set how many they are."""
    submitters_refused: str | UnsetType | None = UNSET
    """Why they are not as many as were asked for."""
    queue_depth: int | None
    queue_depth_because: str | None = None
    """What set it: the option, the default of a closed loop, or what an open loop has room for."""
    io_bytes: int | None
    buffer_bytes: int | None = None
    """Memory for the buffers of all I/Os that may be in flight.

    What the window can fill of it is touched before the run, and does not grow.
    """
    buffer_used_bytes: int | None = None
    """What was in use of it at once, at most."""
    buffer_small_page_bytes: int | None = None
    """Of the buffers, what lies on small pages: an I/O from there may be split above the device."""
    plan_bytes: int | None = None


class WindowNote(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the trace was replayed."""

    rows: int
    is_whole_trace: bool | None
    span_ns: int | None
    """Trace time."""
    planned_rows: int | None = None
    """Those whose tier had a target."""
    limit: str | None
    window: str | None = None
    """Which later part of it, as `--window` says.

    `row` of ops.parquet counts from its first row.
    """
    node: int | None = None
    """Of a fleet's trace: the only node whose rows were replayed."""
    runtime_ns: int | None = None
    """How long the run was to last by the clock; null: once through the window."""
    rows_once: int | None = None
    """Those that were repeated for that.

    `row` of ops.parquet counts on from one repeat to the next.
    """
    repeats: float | None = None
    """How often: rows / rows_once."""
    planned_repeats: int | None = None
    peak_bytes: dict[str, int] | None = None
    """By tier: the most that lay there at once."""


class Preconditioned(msgspec.Struct, frozen=True, kw_only=True):
    """What was written before the run to bring the drive into a lasting state."""

    tier: str
    """With the drive's path behind it where the tier has several."""
    rule: str
    file_bytes: int
    """What was written full.

    A file as large as the tier's peak, or all of a preallocated file or device.
    """
    written_bytes: int
    sequential_io_bytes: int
    random_io_bytes: int
    wall_ns: int
    is_whole: bool
    """False if it was interrupted."""
    rounds_bytes_per_s: list[float] | None
    """Bandwidth of each round of random writes; null for `twice`."""
    is_steady: bool | None
    """Whether the rule was met; null for `twice`."""


class Populated(msgspec.Struct, frozen=True):
    """What was written before the run because the window reads it."""

    objects: int
    bytes: int
    wall_ns: int
    """Without what is on preallocated files and devices, which is written as they are laid out."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took until the first operation that is measured could be submitted."""

    lay_out_ns: int
    """One pass over preallocated files and devices.

    What is populated there, and all else that was unwritten.
    """
    total_ns: int
    """From before the trace was read: with preconditioning, laying out and populating."""


class ShapeNote(msgspec.Struct, frozen=True, kw_only=True):
    """The ratios that were asked of the data, and what came of them."""

    dedup_ratio: float
    """Asked for."""
    compress_ratio: float
    block_bytes: int
    made_blocks: int
    """Whole blocks made for writes, the populated and the preconditioning ones included."""
    distinct_blocks: int
    """Of these: made once, plus those of the pool that were used."""
    measured_dedup_ratio: float | None
    random_bytes_per_512: int
    measured_compress_ratio: float
    """Bytes of a sample / its size after zstd -3, each 4 KiB block by itself."""


class DataNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the writes carried."""

    generator: str
    """What made it; its version, if it is a library, is among those of the host."""
    seed: int
    piece_bytes: int | None
    """What was made by one seed; null if each 8 bytes were by themselves."""
    note: str
    shape: ShapeNote | None
    """Null if no ratio was asked for: no block occurs twice, and none compresses."""
    stamped_block_bytes: int | None
    """Null unless verified."""


class Smart(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a drive's health."""

    values: JsonObject | None
    """As the tool names them; null if they cannot be read."""
    source: str | None
    reason: str | None
    """Why there are none."""


class SmartReadings(msgspec.Struct, frozen=True, kw_only=True):
    """A drive's health before and after the run."""

    before: Smart | None
    after: Smart | None


class DeviceIo(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that the device beneath a drive moved meanwhile, for all programs.

    Null if it is not seen.
    """

    read_bytes: int | None
    written_bytes: int | None
    device_ns: int | None = None
    """Time of its requests, added up, from the block layer's queue to completion.

    Null as above, and in runs of earlier versions.
    """
    busy_ns: int | None = None
    """Time in which it had at least one request."""


class ProbesNote(msgspec.Struct, frozen=True, kw_only=True):
    """What probes beside the run measured.

    All but the first two are unset if they were left out.
    """

    is_measured: bool
    reason: str | None = None
    """Why they were left out."""
    file: str | UnsetType = UNSET
    event_rows: int | UnsetType | None = UNSET
    """Null if only histograms were kept."""
    devices: list[str] | UnsetType | None = UNSET
    start_ns: int | UnsetType | None = UNSET
    """Since the run's start."""
    duration_ns: int | UnsetType | None = UNSET


class RunBegun(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run when its first operation is about to be submitted."""

    program: str
    """kvreplay, or kvdistill if it was imported."""
    version: str
    argv: list[str]
    config: JsonObject
    """The options, by their names in kvreplay's Config."""
    config_sha256: str
    started_utc: str | None
    status: str
    """running, complete, partial if the run was cut short, or failed operations if it was whole but
    some failed.
    """
    reason: str | None
    """Why it is not complete."""
    host: JsonObject
    """kernel, cpu_model, cpus and more."""
    trace: TraceNote
    tiers: dict[str, JsonObject]
    """By tier: its target, its engine, and the facts that its kind of tier has."""
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
        """Refuse, with msgspec's own error, free fields whose known parts are not of their types."""
        msgspec.convert({"host": self.host, "tiers": self.tiers}, KnownFacts)

    def drives(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield (tier, facts) for each drive of each tier.

        What all drives of a tier share is among each one's.
        """
        for name, facts in self.tiers.items():
            for drive in facts.get("drives") or [{}]:
                yield name, facts | drive


class RunFile(RunBegun, frozen=True, kw_only=True):
    """The content of run.json; null is what is not known."""

    sha256: str | None = None
    """Of all else, as `sealed` has it; null in a run of before."""
    verification: Verification | None = None
    """Null unless asked for."""
    device_io: dict[str, DeviceIo] = {}
    """By drive."""
    probes: ProbesNote | None = None
    """Null unless asked for."""
    notes: list[str] = []
    """What a reader of the figures must know."""
    requests: RequestFigures | None = None
    serving: Serving | UnsetType = UNSET
    """Of a serving benchmark that was imported; unset in replays."""
    mlperf: Mlperf | None = None
    checkpoints: CheckpointFigures | None = None
    """Null where nothing saved or restored one."""
    metrology: Metrology | None = None
    """Null of several ranks, in imports, and in runs of earlier versions."""
    ranks: RanksNote | UnsetType = UNSET
    """Of several ranks, whose runs lie in folders below; unset in a run of one."""
    summary: Summary


Kind = TypeVar("Kind", bound=msgspec.Struct)


def read_run(folder: Path) -> RunFile:
    """Return the content of run.json in `folder`.

    TraceError if there is none, it is damaged, or of another version of this program.
    """
    run = read_manifest(folder / RUN_FILE, RunFile)
    if run.sha256 not in (None, sealed(run).sha256):
        raise TraceError("damaged: its content is not what was written", path=folder / RUN_FILE)
    return run


def sealed(content: Kind) -> Kind:
    """Return `content` with the hash of all else in its field `sha256`, by which a reader knows if
    any was changed.
    """
    # As it is read: a float that is a whole number here has another form there.
    whole = msgspec.json.decode(
        msgspec.json.encode(msgspec.structs.replace(content, sha256=None)), type=type(content)
    )
    return msgspec.structs.replace(whole, sha256=sha256(whole))


def find_run(folder: Path) -> RunFile | None:
    """Return the content of run.json in `folder`, or None if there is no such file.

    TraceError if it is damaged.
    """
    return read_run(folder) if (folder / RUN_FILE).is_file() else None


def cut_off(folder: Path) -> list[Path]:
    """Return the folders of runs that go on or were cut off.

    `folder`, or those below as trials and sweeps lie.
    """
    found = (
        path.parent
        for deep in ("", "*/", "*/*/")
        for path in folder.glob(f"{deep}{PARTIAL_RUN_FILE}")
    )
    # One of several ranks lies where they are put together.
    runs = {path.parent if path.match("rank-[0-9]*") else path for path in found}
    return sorted(run for run in runs if not (run / RUN_FILE).is_file())


def runs_below(folder: Path) -> str:
    """Return what an error adds of a `folder` that has runs and is none.

    Their names, or nothing.
    """
    runs = sorted(file.parent.name for file in folder.glob(f"*/{OPS_FILE}"))
    return f"; it has the runs {', '.join(runs)}: name one of them" if runs else ""


def refuse_cut_off(folder: Path) -> None:
    """Raise TraceError, which says how to recover it, if `folder` has a run of `cut_off` and is
    none itself.
    """
    if not (folder / RUN_FILE).is_file() and (cut := cut_off(folder)):
        which = (
            "that run"
            if cut == [folder]
            else ", ".join(str(run.relative_to(folder)) for run in cut)
        )
        how = f"kvreplay recover {folder} makes a partial run of it"
        raise TraceError(f"{which} is in progress or was killed; {how}", path=folder)


def read_manifest(path: Path, kind: type[Kind]) -> Kind:
    """Return the run.json or run.partial.json at `path`; errors as of `read_run`."""
    if not path.is_file():
        refuse_cut_off(path.parent)
    return read_json(path, kind, misfit="not of this version of kvtrace: {}; make the run again")


class _Host(msgspec.Struct):
    kernel: str | None = None
    cpu_model: str | None = None
    cpus: Count | None = None


class _Target(msgspec.Struct):
    drives: list[JsonObject] | None = None


class KnownFacts(msgspec.Struct):
    """The parts of the free fields that readers look at."""

    host: _Host
    tiers: dict[str, _Target]


class BlockFault(StrEnum):
    """What is wrong with a block that was read."""

    DAMAGED = "damaged"
    """Its checksum does not hold: torn, or bytes changed."""
    FOREIGN = "foreign"
    """Not written by this run; zeros among them."""
    MISPLACED = "misplaced"
    """A block of this run that belongs elsewhere."""
    STALE = "stale"
    """The right place, another version."""


class BadBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One bad block and where it was read."""

    fault: BlockFault
    row: int
    """The trace row that read it."""
    tier: str
    object_id: int
    key: str | None = None
    """The object's name, from the trace's objects table; null if that is absent."""
    file: str | None
    """Null where objects are no files."""
    offset_bytes: int
    """Of the block in its object."""
    expected_version: int
    found: dict[str, int] | None
    """What the block says it is; null if its checksum does not hold."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What --verify found."""

    block_bytes: int
    checked_blocks: int
    unwritten_blocks: int
    """Read where the trace never wrote: nothing to check."""
    corrupt_blocks: int
    by_fault: dict[str, int]
    located: list[BadBlock]
    """All, up to 100,000."""
    check_ns: int
    """Thread time that checking took, inside the measured time of the run."""


RANK_FOLDER = "rank-{:04d}"
"""Where the run of a rank lies in that of the whole."""


class PartitionNote(msgspec.Struct, frozen=True, kw_only=True):
    """How the trace was partitioned over the ranks, and which relations that cut."""

    by: str
    """node, user or object."""
    because: str
    distributed: int
    """How many nodes, users or objects there are."""
    rows: list[int]
    """By rank."""
    bytes: list[int]
    """By rank: read and written."""
    nodes: list[list[int]] | None = None
    """By rank: its nodes; null if users or objects were partitioned."""
    shared_objects: int
    """Objects that several ranks touch.

    Each has a copy of its own, written before the run if it reads it first.
    """
    shared_rows: int
    """Rows on such an object by a rank that did not touch it first."""
    shared_bytes: int
    split_requests: int
    """Requests whose operations lie on several ranks, which do not wait for each other there."""
    deletes_left_out: int
    """Because their rank goes on to read what another rank wrote since."""


class StartNote(msgspec.Struct, frozen=True, kw_only=True):
    """How closely together the ranks began; null of what is not known."""

    skew_ns: int | None
    """Between the first and the last rank to begin, by the common clock."""
    first_submission_skew_ns: int | None
    """Between their first submissions.

    Null in an open loop, where these have times of their own.
    """
    clock_error_ns: int | None
    """How far off the common clock may be.

    Of the worst rank, half its shortest round trip to rank 0.
    """


class RankNote(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; null is what is not known, as of one that left nothing."""

    rank: int
    folder: str
    """Beside run.json.

    The rank's own run, with its ops.parquet, requests.parquet, series.parquet; none is merged.
    """
    host: str | None = None
    nodes: list[int] | None = None
    """The trace's nodes that it replayed; null if users or objects were partitioned."""
    cpus: int | None = None
    """Those that it may run on."""
    status: str
    """As in its run.json; idle if it had no part of the trace, lost if it left no results."""
    reason: str | None = None
    operations: int | None = None
    errors: int | None = None
    bytes: int | None = None
    """Read and written, on tiers where bytes move."""
    wall_ns: int | None = None
    bandwidth_bytes_per_s: float | None = None
    """Bytes over its wall time."""
    read_p99_ns: int | None = None
    """Of its slowest tier: response time in an open loop, else service time."""
    write_p99_ns: int | None = None
    clock_offset_ns: int | None = None
    """Its monotonic clock - that of rank 0, before the run."""
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    """The offset after the run - before it."""
    begun_late_ns: int | None = None
    """After the instant that was agreed."""
    first_submission_ns: int | None = None
    """After that instant."""
    stood_still_ns: int | None = None
    """The longest that its process did not answer, if that was over a second.

    It was stopped, or had no processor.
    """


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that ended last, if it delayed the others."""

    rank: int
    behind_ns: int
    """After the median rank."""
    reason: str


class CombinedNote(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks taken together by MLPerf Storage's rule (Rules.md 6.3.4), which is not pooling.

    Null is not known.
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
    """Null where each rank has a trace of its own."""
    start: StartNote
    is_exact: bool
    """Whether percentiles are of all ranks' operations together.

    If not, of their histograms, added up.
    """
    ranks: list[RankNote]
    straggler: Straggler | None
    combined: CombinedNote


class ProgramError(KvError):
    """Another of our programs refused; the message is its own, and so is the exit code."""

    def __init__(self, command: str, said: str, exit_code: int) -> None:
        """Say which `command` it was and the line it `said`."""
        super().__init__(f"{command}: {said}")
        self.exit_code = exit_code


def argv_of(program: str, *arguments: str) -> list[str]:
    """Return what starts `program` with `arguments` in this interpreter."""
    return [sys.executable, "-m", f"{program}.cli", *arguments]


def run_program(
    program: str, arguments: Sequence[str], *, is_shown: bool = False, is_noted: bool = True
) -> None:
    """Run `program` with `arguments`.

    What it prints is shown if `is_shown`, its notes are logged if `is_noted`.

    ProgramError if it left with an error.
    """
    argv, command = argv_of(program, *arguments), shlex.join([program, *arguments])
    sys.stdout.flush()
    with progress(command):
        done = subprocess.run(  # noqa: S603 - our own program
            argv,
            stdout=None if is_shown else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = done.stderr.strip().splitlines()
    if done.returncode:
        last = said[-1] if said else f"it exited with {done.returncode}"
        raise ProgramError(command, last.removeprefix(f"{program}: error: "), done.returncode)
    for line in said if is_noted else ():
        log(line)


def generate(gen: str, trace: Path) -> None:
    """Make `trace` by `kvtrace gen` with the options `gen`, in place of what was there.

    ConfigError, ProgramError.
    """
    try:
        run_program("kvtrace", ["gen", *shlex.split(gen), "-o", str(trace), "--force"])
    except ValueError as error:
        raise ConfigError(f"{named('gen', gen)}: {error}") from None


ATTACHED = "probes attached"
"""What `kvreplay probe` says once it measures."""
_ATTACH_S, _END_S = 120, 120


@contextmanager
def attached(*options: str) -> Iterator[Callable[[], None]]:
    """Attach probes, a `kvreplay probe` with `options`.

    Yield what ends them, after which their files are there.

    ProbeUnavailable, of both, says why nothing is measured.
    """
    command = argv_of("kvreplay", "probe", *options)
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

    def refused(said: str) -> ProbeUnavailable:
        lines = said.splitlines() or ["kvreplay probe ended without saying why"]
        return ProbeUnavailable(lines[-1].removeprefix("kvreplay: error: "))

    def end() -> None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            raise ProbeUnavailable(f"the probes did not end within {_END_S} s") from None
        if process.returncode:
            raise refused(errors.read().strip())

    with process:
        try:
            if not select.select([errors], [], [], _ATTACH_S)[0]:
                raise ProbeUnavailable(f"the probes were not attached within {_ATTACH_S} s")
            if (said := errors.readline().strip()) != ATTACHED:
                raise refused(said)
            yield end
        finally:
            process.kill()


class MlperfRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the benchmark, and whether it was kept."""

    rule: str
    reference: str
    """Where it stands in Rules.md."""
    kept: str
    detail: str


class MlperfMark(msgspec.Struct, frozen=True, kw_only=True):
    """What must stand wherever the figures of an option stand; the file has more."""

    answer: str
    mark: str | None
    """Which rules are not kept; null if all that can be told are."""
    option: str
    not_claimed: dict[str, str]
    """What the figures are not, and why."""
    rules: list[MlperfRule]


def find_mark(folder: Path) -> MlperfMark | None:
    """Return what the figures in `folder` must be marked with, or None if it has none of the
    benchmark's.
    """
    return find_json(
        folder / MLPERF_FILE, MlperfMark, misfit="not of this version of kvreplay: {}; run it again"
    )
