"""The options of a replay that its commands share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.commands.options import Buffered, Seed
from kvtrace.core.units import parse_bytes

if TYPE_CHECKING:
    # Loaded by the commands alone: --help needs none of it.
    from kvreplay.config.config import Config


@dataclass(frozen=True, slots=True)
class ReplayArguments:
    """The options of a replay; a field named as one of Config has the same meaning."""

    is_as_fast_as_possible: Annotated[
        bool,
        typer.Option(
            "--as-fast-as-possible", help="Closed loop: trace times are ignored. The default without --speed."
        ),
    ] = False
    speed: Annotated[
        float | None,
        typer.Option(help="Open loop: submit at trace times divided by this factor; 1 is the trace's own speed."),
    ] = None
    queue_depth: Annotated[
        int | None,
        typer.Option(
            help="At most this many I/Os, and operations, in flight. The default: 8 in a closed loop; with --speed as "
            "memory allows, up to 1024 (128 where an I/O takes a thread)."
        ),
    ] = None
    io_bytes: Annotated[
        str,
        typer.Option(
            help="Longer objects are split into I/Os of this size. "
            "Buffers take three times the queue depth, but at least 66, of it; those for writes 256 KiB or more each."
        ),
    ] = "1MiB"
    engine: Annotated[
        str,
        typer.Option(help="auto, threads or uring (io_uring); auto takes uring for files where the kernel allows it."),
    ] = "auto"
    submitters: Annotated[
        str,
        typer.Option(
            help="io_urings, each with a thread of its own that enters the kernel if they are several: for drives that "
            "together do more than one processor can submit. auto: one a drive, as far as there are processors. With "
            "1 the thread that orders does it all, without the hand-over, which shows where queues are short."
        ),
    ] = "1"
    limit: Annotated[
        str | None,
        typer.Option(help="Replay the trace's start only: 10000 rows, 30s of trace time, or 2GiB read and written."),
    ] = None
    node: Annotated[
        int | None,
        typer.Option(
            help="Of a fleet's trace (kvtrace gen --nodes): replay this node's rows alone, at their own times. With "
            "--mpi nodes are partitioned over ranks instead."
        ),
    ] = None
    runtime: Annotated[
        str | None,
        typer.Option(
            "--duration",
            help="Run so long by the clock: 300s. The trace is repeated on the same objects, or cut. Its requests are "
            "new ones in each repeat, and an open loop's times go on; what it deletes and reads first is kept.",
        ),
    ] = None
    seed: Seed = None
    is_buffered: Buffered = False
    is_gds: Annotated[
        bool,
        typer.Option(
            "--gds",
            help="Move files' data straight to and from GPU 0 by cuFile (kvikio); the run says if it could not go "
            "direct. Untested on hardware.",
        ),
    ] = False
    endpoints: Annotated[
        list[str] | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="A server of the s3:// target: http://host:9000. Repeatable: requests are spread over all. "
            "The default: AWS_ENDPOINT_URL, else AWS.",
        ),
    ] = None
    balance: Annotated[
        str, typer.Option(help="How requests are spread over endpoints: round-robin or least-connections.")
    ] = "round-robin"
    retries: Annotated[
        int,
        typer.Option(
            help="Send a request again that an object store refuses (503) or fails, up to so often; counted in "
            "run.json, and in the operation's latency."
        ),
    ] = 2
    fsync: Annotated[str, typer.Option(help="never, or close: fdatasync each written file, within its time.")] = "never"
    advice: Annotated[
        str,
        typer.Option(
            "--fadvise",
            help="Of buffered files: none; sequential, when one is opened; or dontneed, which also drops a file's "
            "pages when it is closed, so that a later read is the drive's.",
        ),
    ] = "none"
    pool: Annotated[
        str | None,
        typer.Option(
            help="The memory of all buffers, which bounds the queue depth if that is not given.  [default for "
            "checkpoints with --speed: 128MB]"
        ),
    ] = None
    checkpoint_depth: Annotated[
        int | None,
        typer.Option(
            help="At most this many I/Os of one save or restore in flight, as its writer has; other operations go "
            "before it.  [default: the queue depth; with --speed 4]"
        ),
    ] = None
    on_error: Annotated[
        str, typer.Option(help="stop, or continue, when an operation fails; a run that went on ends with exit code 6.")
    ] = "stop"
    warmup: Annotated[
        str | None, typer.Option(help="Leave the run's start out of its figures: 30s of the run, or 1000 rows.")
    ] = None
    layout: Annotated[
        str, typer.Option(help="How object files are named: hashed (256 subdirectories), flat, vllm or lmcache.")
    ] = "hashed"
    is_ignoring_streams: Annotated[
        bool,
        typer.Option(
            "--ignore-streams",
            help="Do not pass on the streams of a trace's writes. Without it files get write hints (F_SET_RW_HINT), "
            "writes to a block device name a write stream where the kernel offers some, and the run says which.",
        ),
    ] = False
    is_destroying: Annotated[
        bool, typer.Option("--destroy-data", help="Allow a --tier to be a block device: all that is on it is lost.")
    ] = False
    overwritten: Annotated[
        str | None,
        typer.Option(
            "--overwrite-signature",
            help="With --destroy-data: what a block device may hold and lose, by the names that its refusal gives: "
            "ext4, or LVM2_member,dos.",
        ),
    ] = None
    is_discarding: Annotated[
        bool,
        typer.Option("--discard", help="Deletes discard (trim) on block devices; without it they only free the space."),
    ] = False
    precondition: Annotated[
        str | None,
        typer.Option(
            help="First write the drives full (a directory up to the trace's peak): twice, sequentially, then at "
            "random places; or steady, until random writes keep their bandwidth."
        ),
    ] = None
    requests: Annotated[
        Path | None,
        typer.Option(
            help="The trace's requests table (kvtrace gen --requests-out): adds classes of service and, where the "
            "trace models computing, the time to the first token."
        ),
    ] = None
    criteria: Annotated[
        Path | None,
        typer.Option(
            help="Thresholds of the health criteria, in a TOML file: storage_read_p95, storage_write_p95, cpu_p95, "
            "hit_rate, storage_bandwidth, and tables qos_interactive, qos_responsive, qos_batch of p95, p99, p99_9, "
            "p99_99. MLPerf's if not given."
        ),
    ] = None
    is_verified: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Stamp each 4 KiB block written and check each one read; every wrong one is listed. Slows reads down.",
        ),
    ] = False
    dedup_ratio: Annotated[
        float, typer.Option(help="4 KiB blocks written for each distinct one; 1: no 512 bytes occur twice.")
    ] = 1.0
    compress_ratio: Annotated[
        float, typer.Option(help="By which zstd shrinks each 4 KiB block written; 1: not at all.")
    ] = 1.0
    stall: Annotated[
        str,
        typer.Option(
            "--stall-timeout",
            help="End the run, partial, if for so long nothing completes that is in flight or due; 0: never.",
        ),
    ] = "10s"
    is_probed: Annotated[
        bool,
        typer.Option(
            "--probes",
            help="Also probe our calls and the block requests beneath, as kvreplay probe does: probe.json and "
            "blocks.parquet in the run. Needs root and libbpf; goes on without if they are missing.",
        ),
    ] = False
    is_histograms_only: Annotated[
        bool, typer.Option("--histograms-only", help="With --probes: write no blocks.parquet, one row a request.")
    ] = False

    def config(self, tiers: dict[str, str], *, is_kept: bool) -> Config:
        """Return the configuration with the targets `tiers`."""
        from kvreplay.config.config import Config, read_criteria

        known = asdict(self) | {
            "io_bytes": parse_bytes(self.io_bytes),
            "endpoints": tuple(self.endpoints or ()),
            "pool": None if self.pool is None else parse_bytes(self.pool),
            "criteria": read_criteria(self.criteria),
            "requests": None if self.requests is None else str(self.requests),
        }
        return Config(tiers=tiers, is_kept=is_kept, **known)


# Long: its options, and what --help says of them.
