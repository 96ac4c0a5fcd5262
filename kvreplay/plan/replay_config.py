"""The options of a replay: each option once, with its name, type, default and meaning.

A command takes `Config` as a group of options, so that the help text of an option is also the
description of the configuration's field. This module loads only what --help needs; `limits.py`
checks the values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from kvtrace.core.app import option
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import STEADIEST, STEADIEST_LENGTHENED
from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency targets of one class of service."""

    p95: str
    p99: str
    p99_9: str
    p99_99: str


class Criteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds of the health criteria; the defaults are the benchmark's."""

    storage_read_p95: str = "200ms"
    storage_write_p95: str = "500ms"
    cpu_p95: str = "150ms"
    hit_rate: float = 0.3
    storage_bandwidth: str = "0"
    """Bytes per second, read and written together, that must be exceeded."""
    qos_interactive: Targets = Targets("50ms", "100ms", "150ms", "200ms")
    """Maximum percentiles of a class's requests."""
    qos_responsive: Targets = Targets("100ms", "200ms", "350ms", "500ms")
    qos_batch: Targets = Targets("1s", "5s", "7500ms", "10s")

    @property
    def targets(self) -> dict[str, Targets]:
        """The targets by class of service."""
        return {
            n.removeprefix("qos_"): getattr(self, n)
            for n in self.__struct_fields__
            if n.startswith("qos_")
        }

    @property
    def targets_ns(self) -> dict[str, dict[str, int]]:
        """The targets by class of service and percentile, in ns."""
        return {
            name: {
                percentile: parse_duration_ns(text)
                for percentile, text in msgspec.structs.asdict(targets).items()
            }
            for name, targets in self.targets.items()
        }


def read_criteria(path: Path) -> Criteria:
    """Read the thresholds from the TOML file `path`; ConfigError for a bad value."""
    # Loaded only for a file, because --help does not need it.
    from kvtrace.core.config import load_toml, to_struct

    criteria = to_struct(load_toml(path), Criteria, str(path))
    try:
        targets_text = [
            text
            for targets in criteria.targets.values()
            for text in msgspec.structs.astuple(targets)
        ]
        for text in (
            criteria.storage_read_p95,
            criteria.storage_write_p95,
            criteria.cpu_p95,
            *targets_text,
        ):
            parse_duration_ns(text)
        parse_bytes(criteria.storage_bandwidth)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return criteria


MAX_QUEUE_DEPTH = 1024
CLOSED_LOOP_DEPTH = 8
POOL_BYTES = 128_000_000
"""Size of the buffers in an open loop that saves or restores checkpoints."""
CHECKPOINT_DEPTH = 4
DEFAULT_REQUEST_TIMEOUT = "60s"
MAX_SEED = 2**64 - 1


class PartitionBy(StrEnum):
    """The units of a trace that `--partition` keeps together on one rank."""

    NODE = "node"
    USER = "user"
    OBJECT = "object"


class Precondition(StrEnum):
    """The methods of `--precondition`."""

    TWICE = "twice"
    STEADY = "steady"


def _several(urls: list[str]) -> tuple[str, ...]:
    return tuple(urls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that determines a replay, besides the trace.

    Commands set the first fields; the others are options. The criteria are the thresholds by which
    a run is judged: MLPerf's health criteria and the targets of the classes of service. The warm-up
    is the start of a run that its figures leave out: the first rows, or the first seconds.
    """

    tiers: dict[str, str] = field(default_factory=dict)
    """Target by tier name.

    Paths, separated by commas, or one of NAMED with options after a colon.
    """
    is_kept: bool = False
    """Whether object files stay after the run."""
    is_taking_over: bool = False
    """Whether objects to be written before the run reuse files of the same length of a run before.

    Their data is then not the objects' own.
    """
    is_as_fast_as_possible: bool = option(
        "Closed loop: trace times are ignored. The default without --speed.",
        False,
        "--as-fast-as-possible",
    )
    speed: float | None = option(
        "Open loop: submit at trace times divided by this factor; 1 is the trace's own speed."
    )
    queue_depth: int | None = option(
        "Maximum I/Os, and operations, in flight. The default: 8 in a closed loop; with --speed as"
        " memory allows, up to 1024 (128 where an I/O takes a thread)."
    )
    io_bytes: int = option(
        "Longer objects are split into I/Os of this size; buffers hold as many of them as the queue"
        " depth.  [default: 1MiB]",
        1 << 20,
        parse=parse_bytes,
    )
    engine: str = option(
        "auto, threads or uring (io_uring); auto takes uring for files where the kernel allows it.",
        "auto",
    )
    submitters: str = option(
        "Number of io_urings; if several, each has its own submitting thread: for drives that"
        " together take more IOPS than one CPU can submit. auto: one per drive, up to the CPUs"
        " available. With 1 the scheduling thread submits itself, without a hand-over, which"
        " matters at low queue depths.",
        "1",
    )
    limit: str | None = option(
        "Replay only the trace's start: rows (10000), trace time (30s) or bytes read and written"
        " (2GiB)."
    )
    window: str | None = option(
        "Replay a window of the trace: steady:60s begins when the slowest --tier first evicts;"
        " busiest:60s moves the most bytes; from:300s+60s; or all. Objects it needs from before are"
        " written first. compare and sweep default to steady:60s, without --limit and --requests,"
        " for a trace that evicts; in a closed loop they take longer until it has 100 reads and 100"
        " writes.",
        metavar="WINDOW",
    )
    node: int | None = option(
        "Of a fleet's trace (kvtrace gen --nodes): replay this node's rows alone, at their own"
        " times. With --mpi nodes are partitioned over ranks instead."
    )
    runtime: str | None = option(
        "Wall-clock time of the run, such as 300s: the trace is repeated on the same objects, or"
        " cut. Each repeat has new requests, and an open loop's times continue; objects that it"
        " reads first and deletes are kept.",
        None,
        "--duration",
    )
    seed: int | None = option("Seed of the data; default: the trace's.")
    is_buffered: bool = option(
        "Go through the page cache instead of O_DIRECT.", False, "--buffered"
    )
    is_gds: bool = option(
        "Move file data directly to and from GPU 0 by cuFile (kvikio); the run notes if it went"
        " through host memory, the only path tested on hardware.",
        False,
        "--gds",
    )
    endpoints: tuple[str, ...] = option(
        "Endpoint URL of the s3:// target: http://host:9000. Repeatable: requests are spread over"
        " all. The default: AWS_ENDPOINT_URL, else AWS.",
        (),
        "--endpoint",
        parse=_several,
        metavar="URL",
    )
    s3_client: str = option(
        "Client library of s3:// targets: s3dlio, minio or s3torchconnector; each is the extra of"
        " its name. s3torchconnector writes multipart uploads only, and repeats a failed request"
        " once itself.",
        "s3dlio",
    )
    balance: str = option(
        "How requests are spread over endpoints: round-robin or least-connections.", "round-robin"
    )
    retries: int = option(
        "Retries of a request that the object store refuses (503) or fails; counted in run.json,"
        " and in the operation's latency.",
        2,
    )
    request_timeout: str = option(
        "Time after which an unanswered request to an object store counts as failed, and is"
        " retried. s3torchconnector has no such setting.",
        DEFAULT_REQUEST_TIMEOUT,
    )
    fsync: str = option(
        "never, or close: fdatasync each written file, counted in its latency.", "never"
    )
    advice: str = option(
        "posix_fadvise of buffered files: none; sequential, on open; or dontneed, which also drops"
        " a file's pages on close, so that a later read goes to the drive.",
        "none",
        "--fadvise",
    )
    pool: int | None = option(
        "Memory of all I/O buffers; limits the queue depth if that is not given.  [default for"
        " checkpoints with --speed: 128MB]",
        parse=parse_bytes,
    )
    checkpoint_depth: int | None = option(
        "Maximum I/Os in flight of one save or restore, as its writer has; other operations go"
        " first.  [default: the queue depth; with --speed 4]"
    )
    on_error: str = option(
        "stop, or continue, when an operation fails; a run that continued exits with code 6.",
        "stop",
    )
    warmup: str | None = option(
        "Warm-up, excluded from the figures: the first 30s of the run, or 1000 rows."
    )
    layout: str = option(
        "How object files are named: hashed (256 subdirectories), flat, vllm or lmcache.", "hashed"
    )
    is_ignoring_streams: bool = option(
        "Do not pass on the trace's write streams. By default files get write hints"
        " (F_SET_RW_HINT), writes to a block device name a write stream where the kernel has some,"
        " and the run notes which.",
        False,
        "--ignore-streams",
    )
    is_destroying: bool = option(
        "Allow a block device as target of --tier: all data on it is lost.", False, "--destroy-data"
    )
    overwritten: str | None = option(
        "With --destroy-data: signatures of a block device to overwrite, by the names in its"
        " refusal: ext4, or LVM2_member,dos.",
        None,
        "--overwrite-signature",
    )
    is_discarding: bool = option(
        "Deletes discard (trim) on block devices; by default they only free the space.",
        False,
        "--discard",
    )
    precondition: str | None = option(
        "Precondition the drives (a directory up to the trace's peak): twice: full once"
        " sequentially, once at random offsets; or steady: until the bandwidth of random writes is"
        " steady."
    )
    requests: str | None = option(
        "The trace's requests table (kvtrace gen --requests-out): adds classes of service and,"
        " where the trace models computing, the time to the first token.",
        metavar="PATH",
    )
    criteria: Criteria = option(
        "Thresholds of the health criteria, in a TOML file: storage_read_p95, storage_write_p95,"
        " cpu_p95, hit_rate, storage_bandwidth, and tables qos_interactive, qos_responsive,"
        " qos_batch of p95, p99, p99_9, p99_99. MLPerf's if not given.",
        Criteria(),
        parse=read_criteria,
    )
    drive: str | None = option(
        "A drive file (drive.json of kvreplay scorecard): print in five lines what it predicts for"
        " this load, what was observed, and why they differ.",
        metavar="FILE",
    )
    is_verified: bool = option(
        "Stamp each 4 KiB block on write and check it on read; corrupt ones are listed. Slows reads"
        " down.",
        False,
        "--verify",
    )
    dedup_ratio: float = option(
        "Dedup ratio of written data, by 4 KiB blocks; 1: no 512 bytes occur twice.", 1.0
    )
    compress_ratio: float = option(
        "Compression ratio (zstd) of each 4 KiB block written; 1: incompressible.", 1.0
    )
    stall: str = option(
        "End the run as partial if nothing in flight or due completes for this long; 0: never.",
        "10s",
        "--stall-timeout",
    )
    is_probed: bool = option(
        "Also measure system calls and block requests by eBPF, as kvreplay probe does: probe.json"
        " and blocks.parquet in the run. Needs root and libbpf; without them the run continues"
        " unprobed.",
        False,
        "--probes",
    )
    is_histograms_only: bool = option(
        "With --probes: write no blocks.parquet (one row per request).", False, "--histograms-only"
    )

    def steady(self, *, is_lengthened: bool = False) -> Config:
        """Return the configuration for comparing drives: the steady window, unless a part is named.

        With `is_lengthened` the window may become longer, until it has enough reads and writes. At
        the trace's own pace it would then take as much longer to replay, so it does not.
        """
        is_named = (self.window, self.limit, self.requests) != (None, None, None)
        is_closed_loop = self.speed is None
        window = STEADIEST_LENGTHENED if is_lengthened and is_closed_loop else STEADIEST
        return self if is_named else replace(self, window=window)

    @property
    def depth(self) -> int:
        """The maximum number of I/Os in flight; the closed loop's default if not given."""
        return CLOSED_LOOP_DEPTH if self.queue_depth is None else self.queue_depth

    @property
    def bulk_depth(self) -> int | None:
        """The maximum I/Os in flight of one save or restore; None: no limit of its own."""
        return self.checkpoint_depth or (None if self.speed is None else CHECKPOINT_DEPTH)

    @property
    def runtime_ns(self) -> int | None:
        """The duration of the run by the clock; None: once through the window.

        ConfigError if the text is not a duration.
        """
        if self.runtime is None:
            return None
        duration_ns = parse_duration_ns(self.runtime)
        if duration_ns <= 0:
            raise ConfigError(
                f"--duration {self.runtime}: write more than 0, such as 300s or 10min"
            )
        return duration_ns

    @property
    def request_timeout_s(self) -> int:
        """The maximum duration of a request to an object store, in whole seconds.

        ConfigError if the text is not a duration.
        """
        seconds = -(-parse_duration_ns(self.request_timeout) // NS_PER_S)
        if not seconds:
            raise ConfigError(
                f"--request-timeout {self.request_timeout}: write more than 0, such as 30s"
            )
        return seconds

    @property
    def stall_ns(self) -> int | None:
        """The time without any completion that ends a run; None: no limit.

        ConfigError if the text is not a duration.
        """
        try:
            return parse_duration_ns(self.stall) or None
        except ConfigError as error:
            raise ConfigError(f"--stall-timeout {self.stall}: {error}") from None
