"""`Run`, `replay` and `read_run`: kvreplay as a Python library.

trace -> replay on real tiers -> run.json and its tables in a folder -> `Run`
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Interrupted, Replay
from kvreplay.run.replay import replay as perform
from kvtrace.core import pl
from kvtrace.core.app import QUIET
from kvtrace.core.errors import ConfigError, FailedOperations, KvError, TraceError
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import suggest_keywords
from kvtrace.core.remote import local_path
from kvtrace.core.run.figures import Evidence, LimitCause, RequestFigures, RunVerdict, Summary
from kvtrace.core.run.run_file import BLOCKS_FILE, OPS_FILE, SERIES_FILE, SERVED_FILE, RunFile
from kvtrace.core.run.run_file import read_run as read_run_file
from kvtrace.core.schema import BLOCKS, OPS, SERIES, SERVED, Table
from kvtrace.core.tables import open_table, requests_path
from kvtrace.core.temporary import TemporaryFolder, temporary_folder
from kvtrace.core.trace import Trace, named_columns
from kvtrace.core.units import counted, format_bytes, format_duration

if TYPE_CHECKING:
    from kvdistill import ComparedSides

_LATENCIES = ("p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns")


class ReplayVerdict:
    """The cause that limited a run, with the evidence.

    `str()` gives the sentence. `kvreplay.replay(...).verdict` returns one.
    """

    def __init__(self, summary: Summary) -> None:
        """Read the verdict of a run's summary."""
        self._summary = summary
        self._judgement: RunVerdict | None = summary.judgement

    @property
    def sentence(self) -> str:
        """The offered load, the delivered load, and the limit."""
        return self._summary.verdict

    @property
    def delivered(self) -> bool | None:
        """True if an open loop reached the trace's rate; None in a closed loop."""
        return None if self._judgement is None else self._judgement.has_reached

    @property
    def on_time(self) -> float | None:
        """Share of the operations that completed on time, 0 to 1; None in a closed loop."""
        return None if self._summary.pace is None else self._summary.pace.on_time_fraction

    @property
    def bottleneck(self) -> LimitCause | None:
        """The limit of the run; None if nothing limited it or the measurements do not identify it."""
        return None if self._judgement is None else self._judgement.cause

    @property
    def reason(self) -> str | None:
        """The measurement that identifies the bottleneck, or why none does."""
        return None if self._judgement is None else self._judgement.reason

    @property
    def evidence(self) -> Evidence | None:
        """The figures on which the verdict stands."""
        return None if self._judgement is None else self._judgement.evidence

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<ReplayVerdict: {self.sentence}>"


class Run:
    """A replay and its measurements: a folder with run.json and its tables.

    `kvreplay.replay` and `kvreplay.read_run` return one. Times are in ns from the start of the run.
    Unmeasured values are null.
    """

    def __init__(self, path: Path, file: RunFile, *, folder: TemporaryFolder | None) -> None:
        """Refer to the run in the folder `path`. `folder` is deleted with the last reference."""
        self.path = path
        """The folder of the run."""
        self.file = file
        """The content of run.json as typed structs: settings, environment, summary."""
        self._folder = folder

    @property
    def verdict(self) -> ReplayVerdict:
        """The cause that limited the run, with the evidence."""
        return ReplayVerdict(self.file.summary)

    @property
    def is_partial(self) -> bool:
        """True if the run was cut short; its measurements until then are kept."""
        return self.file.status == "partial"

    @property
    def summary(self) -> Summary:
        """All figures as typed structs."""
        return self.file.summary

    @property
    def request_figures(self) -> RequestFigures | None:
        """Figures of the requests: storage time, time to first token, classes of service."""
        return self.file.requests

    def figures(self) -> pl.DataFrame:
        """Return one row for each tier and operation.

        Columns: `tier`, `op`, `is_simulated`, `operations`, `errors`, `bytes` (of objects),
        `io_bytes` (with padding), `span_ns`, `bandwidth_bytes_per_s`, `operations_per_s`,
        `in_flight_mean`, `in_flight_max`, then mean, p50, p95, p99, p99.9, p99.99 and maximum of
        the latency (completion - submission) in ns, and p99 of the response time (completion - due
        time; null in a closed loop). Percentiles come from all operations, pooled; one is null
        where there are too few operations for it.

        Examples:
            >>> import kvtrace as kt, kvreplay, tempfile
            >>> trace = kt.simulate(
            ...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
            ...     tiers={"cpu": {"capacity": "32MiB"}, "nvme": {"capacity": "64MiB"}},
            ... )
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     run = kvreplay.replay(
            ...         trace, tiers={"nvme": f"{folder}/objects/"}, buffered=True
            ...     )
            >>> run.figures().filter(tier="nvme", op="write")["errors"].item()
            0
        """
        names = (
            "tier",
            "op",
            "is_simulated",
            "operations",
            "errors",
            "bytes",
            "io_bytes",
            "span_ns",
            "bandwidth_bytes_per_s",
            "operations_per_s",
            "in_flight_mean",
            "in_flight_max",
        )
        integers = ("operations", "errors", "bytes", "io_bytes", "span_ns", "in_flight_max")
        rows = []
        for figures in self.file.summary.figures:
            row: dict[str, object] = {name: getattr(figures, name) for name in names}
            row["latency_mean_ns"] = figures.latency.mean_ns
            row |= {f"latency_{name}": getattr(figures.latency, name) for name in _LATENCIES}
            row["latency_max_ns"] = figures.latency.max_ns
            row["response_p99_ns"] = None if figures.response is None else figures.response.p99_ns
            rows.append(row)
        times = [f"latency_{name}" for name in (*_LATENCIES, "max_ns")] + ["response_p99_ns"]
        floats = ("bandwidth_bytes_per_s", "operations_per_s", "in_flight_mean", "latency_mean_ns")
        types: dict[str, type[pl.DataType]] = dict.fromkeys((*integers, *times), pl.Int64)
        return pl.DataFrame(rows, schema_overrides=types | dict.fromkeys(floats, pl.Float64))

    def operations(self) -> pl.LazyFrame:
        """Return one row for each row of the trace that was replayed, with names for codes.

        Columns are those of the table ops in `schemas/README.md`; latency is
        `completed_ns - submitted_ns`.

        Raises:
            TraceError: if the run has no such table: imports of results lack it.

        """
        return self._table(OPS_FILE, OPS)

    def series(self) -> pl.LazyFrame:
        """Return one row for each second, tier and operation."""
        return self._table(SERIES_FILE, SERIES)

    def requests(self) -> pl.LazyFrame:
        """Return one row for each request: its storage time, hits and bytes."""
        return self._table(SERVED_FILE, SERVED)

    def blocks(self) -> pl.LazyFrame:
        """Return one row for each request of the block layer; needs a run with `probes=True`."""
        return self._table(BLOCKS_FILE, BLOCKS)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Run:
        """Copy the run to the folder `path`; return the copy.

        Raises:
            ConfigError: if there is a folder or file of that name and `overwrite` is False.

        """
        target = Path(path)
        if target.exists() and not overwrite:
            raise ConfigError(f"{target} exists; pass overwrite=True, or another name")
        with temporary_folder(".kvreplay-", target.absolute().parent) as temporary:
            copy = temporary / "copy"
            shutil.copytree(self.path, copy)
            if target.exists():
                read_run_file(target)  # nothing but a run is replaced
                shutil.rmtree(target)
            copy.rename(target)
        return read_run(target)

    def to_json(self) -> str:
        """Return the content of run.json."""
        return msgspec.json.encode(self.file).decode()

    def _table(self, name: str, table: Table) -> pl.LazyFrame:
        path = self.path / name
        if not path.exists():
            raise TraceError(f"this run has no {name}", path=self.path)
        if self._folder is not None:
            # A lazy frame may read the table after this object is gone.
            self._folder.keep_until_exit()
        tiers = [tier.name for tier in open_table(path, table).meta.tiers]
        return named_columns(path, table, tiers)

    def __repr__(self) -> str:
        partial = ", partial" if self.is_partial else ""
        return f"<Run{partial}: {self.verdict.sentence}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the figures for a notebook."""
        columns = ["tier", "operation", "operations", "bytes", "bandwidth", "p50", "p99"]
        rows = []
        for figures in self.file.summary.figures:
            latency, rate = figures.latency, figures.bandwidth_bytes_per_s
            rows.append(
                [
                    f"{figures.tier}{' (simulated)' if figures.is_simulated else ''}",
                    figures.op,
                    "-" if figures.operations is None else f"{figures.operations:,}",
                    "-" if figures.bytes is None else format_bytes(figures.bytes),
                    "-" if rate is None else f"{format_bytes(rate)}/s",
                    "-" if latency.p50_ns is None else format_duration(latency.p50_ns),
                    "-" if latency.p99_ns is None else format_duration(latency.p99_ns),
                ]
            )
        return f"<b>{html.escape(self.verdict.sentence)}</b>{html_table(columns, rows)}"


@suggest_keywords
def replay(
    trace: Trace | str | Path,
    *,
    tiers: Mapping[str, str | Path],
    queue_depth: int | None = None,
    speed: float | None = None,
    limit: str | None = None,
    window: str | None = None,
    duration: str | None = None,
    warmup: str | None = None,
    io_bytes: int = 1 << 20,
    engine: str = "auto",
    buffered: bool = False,
    fsync: str = "never",
    verify: bool = False,
    probes: bool = False,
    precondition: str | None = None,
    on_error: str = "stop",
    endpoints: Sequence[str] = (),
    s3_client: str = "s3dlio",
    destroy_data: bool = False,
    keep_files: bool = False,
    seed: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Run:
    """Replay a trace on real storage and measure each operation.

    Writes carry data that neither deduplicates nor compresses. Objects that the replayed part
    reads but does not write are written first and not measured. Stages of a request, and operations
    on one object, keep their order.

    Args:
        trace: A `Trace`, or the path of one.
        tiers: The target of each tier by its name: an empty directory (made if its name ends in
            a slash), a file `*.dat`, a block device (needs `destroy_data`), "s3://bucket/prefix",
            "ram", "gpu", "sim" (a model's times) or "null". Operations on other tiers are skipped.
        queue_depth: I/Os in flight at most. Default: 8 in a closed loop, else as memory allows.
        speed: None replays as fast as the tiers allow (a closed loop). A number submits at the
            trace's times divided by it (an open loop).
        limit: Only the start of the trace: rows ("10000"), trace time ("30s") or bytes ("2GiB").
        window: A part of the trace: "steady:60s", "busiest:60s", "from:300s+60s".
        duration: Repeat or cut the trace to run so long by the clock, such as "300s".
        warmup: The start of the run that the figures leave out: "30s", or "1000" rows.
        io_bytes: Longer operations are split into I/Os of this size, bytes.
        engine: "uring" (io_uring), "threads", or "auto".
        buffered: Use the page cache in place of O_DIRECT.
        fsync: "close" flushes each written file and counts that in its latency.
        verify: Check each block that is read; slows reads down.
        probes: Measure system calls and block requests by eBPF. Needs root and libbpf; without
            them the run goes on, and its notes say so.
        precondition: "twice" or "steady", as SNIA's test specification preconditions drives.
        on_error: "continue" goes on when an operation fails.
        endpoints: URLs of the object store.
        s3_client: Client library of "s3://" targets: "s3dlio", "minio" or "s3torchconnector".
        destroy_data: Allow a block device as target: all data on it are lost.
        keep_files: Leave the files of the objects; the next run removes them.
        seed: Seed of the data. Default: the trace's.
        output: The folder for run.json and the tables. Default: a temporary folder that lives as
            long as the returned object; see `Run.save`.
        overwrite: Replace a run in `output`.

    Returns:
        The run. A run that was cut short by a signal is returned too, with `is_partial` set.

    Raises:
        ConfigError: for a tier that the trace does not have, or options that exclude each other.
        TraceError: for a damaged trace.
        DeviceError: if a target cannot be used, or must not be.
        FailedOperations: if operations failed, or corrupt blocks were read; the measurements are in
            `output`.

    Examples:
        >>> import kvtrace as kt, kvreplay
        >>> trace = kt.simulate(
        ...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
        ...     tiers={"cpu": {"capacity": "32MiB"}, "nvme": {"capacity": "64MiB"}},
        ... )
        >>> run = kvreplay.replay(trace, tiers={"nvme": "ram"})
        >>> run.figures()["tier"].unique().to_list()
        ['nvme']

    """
    path = trace.path if isinstance(trace, Trace) else local_path(trace)
    requests = requests_path(path)
    config = Config(
        tiers={name: str(target) for name, target in tiers.items()},
        is_kept=keep_files,
        is_as_fast_as_possible=speed is None,
        speed=speed,
        queue_depth=queue_depth,
        io_bytes=io_bytes,
        engine=engine,
        limit=limit,
        window=window,
        runtime=duration,
        seed=seed,
        is_buffered=buffered,
        endpoints=tuple(endpoints),
        s3_client=s3_client,
        fsync=fsync,
        on_error=on_error,
        warmup=warmup,
        is_destroying=destroy_data,
        precondition=precondition,
        is_verified=verify,
        is_probed=probes,
        requests=str(requests) if requests.exists() and window is None else None,
    )
    for target in config.tiers.values():
        if target.endswith("/") and "://" not in target and Path(target).parent.is_dir():
            Path(target).mkdir(exist_ok=True)
    targets = [f"{name}={target}" for name, target in config.tiers.items()]
    argv = ["kvreplay.replay", path.name, *targets]
    return replay_config(config, path, argv, output=output, overwrite=overwrite)


def compare(first: Run | str | Path, *more_runs: Run | str | Path) -> ComparedSides:
    """Compare runs, or folders of trials, each with the first.

    `kvdistill.compare` does it, and takes traces and probes as well. A folder of trials, as
    `kvreplay run --trials` writes it, gives confidence intervals; single runs give ratios only.

    Raises:
        ConfigError: for fewer than two runs, or runs that have nothing in common.
        TraceError: if a run is missing or damaged.

    Examples:
        >>> import kvtrace as kt, kvreplay
        >>> trace = kt.simulate(
        ...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
        ...     tiers={"cpu": {"capacity": "32MiB"}, "nvme": {"capacity": "64MiB"}},
        ... )
        >>> runs = [kvreplay.replay(trace, tiers={"nvme": "ram"}, queue_depth=d) for d in (1, 8)]
        >>> compared = kvreplay.compare(*runs)
        >>> compared.figures()["side"].n_unique()
        2
    """
    import kvdistill

    return kvdistill.compare(first, *more_runs)


def replay_config(
    config: Config,
    trace: Path,
    argv: list[str],
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Run:
    """Replay the file `trace` as `config` says; see `replay`. The metadata name `argv`."""
    folder = None
    if output is None:
        folder = TemporaryFolder("kvreplay-")
        output = folder.path / "run"
    path = Path(output)
    quiet = QUIET.set(True)
    try:
        finished = perform(Replay(config, trace, path, argv, overwrite))
    finally:
        QUIET.reset(quiet)
    error = error_of(finished, path)
    if error is not None and not isinstance(error, Interrupted):
        raise error
    return Run(path, finished.run, folder=folder)


def error_of(finished: FinishedRun, output: Path) -> KvError | None:
    """Return the error of a run that was cut short, had failed operations or read corrupt blocks."""
    verification, error = finished.run.verification, finished.error
    corrupt_blocks = 0 if verification is None else verification.corrupt_blocks
    if corrupt_blocks and (error is None or finished.run.status != "partial"):
        blocks = counted(corrupt_blocks, "corrupt block")
        return FailedOperations(f"{blocks} read; {output} lists them")
    return error


def read_run(path: str | Path) -> Run:
    """Return the run in the folder `path`, a replay's or an import's.

    Raises:
        TraceError: if there is no run.json, or it is damaged.

    Examples:
        >>> import kvtrace as kt, kvreplay, tempfile
        >>> trace = kt.simulate(
        ...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
        ...     tiers={"cpu": {"capacity": "32MiB"}, "nvme": {"capacity": "64MiB"}},
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = kvreplay.replay(trace, tiers={"nvme": "ram"}).save(f"{folder}/run")
        ...     kvreplay.read_run(saved.path).summary.errors
        0

    """
    folder = Path(path)
    return Run(folder, read_run_file(folder), folder=None)
