"""Make the result of a run, part by part: its figures, its tables, and run.json with its notes.

Parts come in the order of the planned rows, each row once. Which rows a part holds changes no
result. A replay computes nothing: a request's time to the first token is what storage took, and
what its preset says that prompts compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import numpy as np
from msgspec.structs import asdict

from kvreplay.engine.job import Driven
from kvreplay.engine.native_engine import Engine
from kvreplay.engine.setting import Setting
from kvreplay.engine.share import AUTO
from kvreplay.plan.buffers import small_page_bytes
from kvreplay.plan.contents import DataSource
from kvreplay.plan.row_ring import NOT_DONE, READ, ROW, WINDOW_ROWS, WRITE
from kvreplay.plan.trace_rows import WHOLE_ROW, trace_row
from kvreplay.plan.window import IS_LOAD, NO_QOS, RequestTable
from kvreplay.result import run_tables as tables
from kvreplay.result.cause import pace
from kvreplay.result.checkpoints import Checkpoints
from kvreplay.result.figures import metrology, mlperf_figures, traffic_warnings
from kvreplay.result.recording import LeastLater, RunPart, RunRecorder, TraceRows, ops_batch
from kvreplay.result.run_tables import PartialRunFile, Running
from kvreplay.result.verdict import beside_drive, verdict
from kvreplay.tiers.extents import FREED_ONLY
from kvreplay.tiers.host import host_facts
from kvtrace.core import pa
from kvtrace.core.errors import FailedOperations, KvError
from kvtrace.core.metadata import Metadata, describe, prefix_compute_ns
from kvtrace.core.metrics.native import NEVER_NS
from kvtrace.core.metrics.recorder import RunFacts
from kvtrace.core.metrics.requests import OpenRequests, RequestTimes
from kvtrace.core.run.figures import (
    CheckpointFigures,
    Generation,
    Metrology,
    Pace,
    RequestFigures,
    Summary,
)
from kvtrace.core.run.run_builder import (
    RunOutcome,
    build_header,
    build_run_file,
    histogram_notes,
)
from kvtrace.core.run.run_file import (
    OPS_FILE,
    SERIES_FILE,
    SERVED_FILE,
    DataNote,
    DeviceIo,
    EngineNote,
    PacingNote,
    Populated,
    Preconditioned,
    Prepared,
    ProbesNote,
    RunBegun,
    RunFile,
    Smart,
    SmartReadings,
    TraceNote,
    Verification,
    WindowNote,
)
from kvtrace.core.schema import OPS, SERIES, SERVED, Op, Table, batch_of, numbers
from kvtrace.core.tables import Writer, create
from kvtrace.core.units import counted, format_bytes, format_duration


class RunResults:
    """The results of a run so far; a context manager that writes its tables."""

    setting: Setting
    """The setting of the run; after `end`, its window has only the rows that the run reached.

    Rows that --duration planned beyond those are left out.
    """
    requests: RequestFigures
    """The figures of requests, after `end`."""

    def __init__(self, setting: Setting, output: Path) -> None:
        """Collect the results of a run of `setting`.

        Tables are written to `output`, which exists, under temporary names until `close_tables`.
        """
        self.setting, self._output = setting, output
        is_open_loop = setting.pacer.speed is not None
        self._recorder = RunRecorder(
            setting.tiers, is_open_loop=is_open_loop, io_bytes=setting.config.io_bytes
        )
        self._served, self._checkpoints = (
            ServedRequests(setting),
            Checkpoints(is_open_loop=is_open_loop),
        )
        self._warmup, self._ops_columns = (
            setting.warmup,
            tables.FROM_TRACE + tables.shared_extras(OPS, setting),
        )
        # Only the trace has the time of a save without a request, and the time that a run with
        # --duration reached.
        self._is_cut = bool(setting.rows_once) and not is_open_loop
        # Ranks are put together from their rows, those that were due and not reached included.
        is_rank = WHOLE_ROW in setting.reader.extras
        self._omits_tail = bool(setting.rows_once) and is_open_loop and not is_rank
        self._is_over = False
        """Whether the run has ended, so that only rows which were laid by then were reached."""
        self._omitted_rows = 0
        """Rows behind the last that an open loop with --duration reached: counted, in no table."""
        timed = ("ts_ns",) if setting.window.facts.is_bulk or self._is_cut else ()
        if WHOLE_ROW in setting.reader.extras:
            self._ops_columns += (WHOLE_ROW,)
        columns = tuple(dict.fromkeys(self._ops_columns + COLUMNS + timed))
        self._trace = TraceRows(setting.reader, columns)
        self._reached_ns, self._passed = 0, np.zeros(len(setting.tiers), np.int64)
        """Trace time of the last row that was taken, and the number of rows taken on each tier."""
        self._unreached: list[RunPart] = []
        """Rows that were not submitted.

        In a closed loop with --duration, these count only if submitted rows follow.
        """
        self._files, self._writers = ExitStack(), dict[Table, Writer]()

    def __enter__(self) -> Self:
        for table, file, extras in (
            (OPS, OPS_FILE, tables.ops_extras(self.setting)),
            (SERVED, SERVED_FILE, ()),
            (SERIES, SERIES_FILE, ()),
        ):
            # The facts of the run are complete at its end.
            meta = msgspec.structs.replace(self.setting.reader.meta, table=table.name)
            writing = create(self._output / file, table, meta, extras)
            self._writers[table] = self._files.enter_context(writing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._trace.close()
        self._files.__exit__(kind, error, traceback)

    def note_end(self, ended_ns: int) -> None:
        """Note when the run ended, before rows come that it did not reach.

        The load that was due by then is the offered load.
        """
        self._recorder.run["until_ns"] = ended_ns
        self._is_over = True

    def take(self, run_part: RunPart) -> None:
        """Take the next rows; `run_part.first` is the number of rows taken before."""
        if not (self._is_cut or (self._omits_tail and self._is_over)):
            self._count(run_part)
            return
        if self._omitted_rows:
            self._omit(run_part)
            return
        sent = np.flatnonzero(run_part.rows["submitted_ns"] != NOT_DONE)
        reached = int(sent[-1]) + 1 if len(sent) else 0
        if reached:
            for unreached in self._unreached:
                self._count(unreached)
            self._unreached.clear()
            self._count(run_part.within(0, reached))
        if reached < len(run_part):
            self._unreached.append(run_part.within(reached, len(run_part)).copy())
        if self._omits_tail and sum(map(len, self._unreached)) > WINDOW_ROWS:
            self._omit_unreached()

    def _omit_unreached(self) -> None:
        """Count the rows at the end, behind which no row was reached, without writing them."""
        for run_part in self._unreached:
            self._omit(run_part)
        self._unreached.clear()

    def _omit(self, run_part: RunPart) -> None:
        """Count rows that were not reached: those that were due are a part of the load."""
        self._omitted_rows += len(run_part)
        self._recorder.take(run_part, self._is_measured(run_part))
        self._write_series()

    def end(self) -> None:
        """Note that all rows were taken, including those that the run did not reach.

        Results can be read from then on.
        """
        window = self.setting.window
        if self._omits_tail:
            self._omit_unreached()
        if self._is_cut and not self.rows:
            # A run that submitted nothing counts the rows of the first repeat as not reached.
            for run_part in self._unreached:
                self._count(
                    run_part.within(
                        0, int(np.searchsorted(run_part.rows["trace_row"], self.setting.rows_once))
                    )
                )
        if self._is_cut and self.rows < window.planned_rows:
            # The rows planned beyond those were only in case the run had time for them, so none of
            # them was missed.
            reached_window = replace(
                window,
                facts=replace(window.facts, rows=self.rows),
                rows=self._trace.row,
                is_whole=False,
                span_ns=self._reached_ns,
                skipped_rows={
                    t: int(n)
                    for t, n in enumerate(self._passed)
                    if n and self.setting.tiers[t] is None
                },
            )
            self.setting = replace(self.setting, window=reached_window)
        last_row = self._trace.row if self._omitted_rows else self.setting.window.rows
        self._take_trace(last_row, RunPart.nothing(), np.zeros(0, bool), np.zeros(0, np.int64))
        for batch in self._served.end():
            self._writers[SERVED].write(batch)
        self._recorder.end()
        self.requests = self._served.figures()
        self._write_series(is_last=True)

    def _count(self, run_part: RunPart) -> None:
        """Record the rows of `run_part` in the figures and tables."""
        if not len(run_part):
            return
        counts = self._is_measured(run_part)
        padded_bytes = self._recorder.take(run_part, counts)
        self._write_series()
        self._take_trace(int(run_part.rows["trace_row"][-1]) + 1, run_part, counts, padded_bytes)

    def _is_measured(self, run_part: RunPart) -> np.ndarray:
        """Return bool a row: whether figures count it, because it is not of the warm-up."""
        if self._warmup is None:
            return np.ones(len(run_part), bool)
        return np.ascontiguousarray(self._warmup.is_measured(run_part.rows), np.bool_)

    def _write_series(self, *, is_last: bool = False) -> None:
        if (over := self._recorder.over(is_last=is_last)) is not None:
            self._writers[SERIES].write(tables.series_batch(self._recorder, over))

    def _take_trace(
        self, up_to: int, run_part: RunPart, counts: np.ndarray, padded_bytes: np.ndarray
    ) -> None:
        """Take the trace's rows before `up_to`; `run_part` has the planned ones among them."""
        self._served.begin()
        for batch in self._trace.up_to(up_to):
            first_row = self._trace.row
            first, last = np.searchsorted(
                run_part.rows["trace_row"], [first_row, first_row + batch.num_rows]
            ).tolist()
            batch_part = run_part.within(first, last)
            trace_columns, extras = batch.select(self._ops_columns), tables.ops_extras(self.setting)
            self._writers[OPS].write(
                ops_batch(
                    self.setting,
                    extras,
                    trace_columns,
                    first_row,
                    batch_part,
                    padded_bytes[first:last],
                )
            )
            self._checkpoints.take(batch, batch_part, first_row)
            if self._is_cut and batch.num_rows:
                self._reached_ns = int(numbers(batch.column("ts_ns"))[-1])
                # By tier, without rows of nodes that are left out.
                tier, node = numbers(batch.column("tier"), "i1"), self.setting.config.node
                node_tiers = (
                    tier if node is None else tier[numbers(batch.column("node"), "i4") == node]
                )
                self._passed += np.bincount(node_tiers, minlength=len(self._passed))
            for served in self._served.take(first_row, batch, run_part, counts):
                self._writers[SERVED].write(served)
        # Otherwise a run of hours keeps the peak memory of all its tables.
        pa.default_memory_pool().release_unused()

    @property
    def omitted_rows(self) -> int:
        """Rows that the run did not reach, and that have no row in ops.parquet."""
        return self._omitted_rows

    @property
    def rows(self) -> int:
        """The number of planned rows that were taken, submitted or not."""
        return int(self._recorder.run["rows"][0])

    @property
    def last_completed_ns(self) -> int | None:
        """Time of the last completion; None if there was none."""
        return self._recorder.last_completed_ns

    def took_ns(self, tiers: list[str]) -> int | None:
        """Return the time from the first submission to the last completion of reads and writes on
        `tiers`.
        """
        recorder = self._recorder
        kinds = [
            kind
            for index, tier in enumerate(recorder.tiers)
            if tier is not None and tier.name in tiers
            for op in (READ, WRITE)
            for kind in recorder.kinds_of(index, op)
        ]
        return recorder.span_ns(kinds)

    # Long: one field a line.
    def summary(
        self,
        driven: Driven | None,
        wall_ns: int | None = None,
        device_io: dict[str, DeviceIo] | None = None,
    ) -> Summary:
        """Return the figures.

        `driven` is None if the run ended before its first operation, or for a recovered run; then
        `wall_ns` is its duration. `device_io` are the counters of devices during the run, by drive.
        """
        setting, recorder, run = self.setting, self._recorder, self._recorder.run[0]
        names = [t.name for t in setting.reader.meta.tiers]
        wall_ns = driven.wall_ns if driven else wall_ns
        threads_ns = 0 if driven is None else driven.wall_ns * max(1, len(driven.threads))
        judged = pace(recorder, driven)
        failed, sent = int(run["failed"]), int(run["sent"])
        depth, because = setting.config.depth, setting.depth_because
        judgement = verdict(recorder, driven, judged, device_io or {}, depth, because)
        times = None
        if setting.rows_once:
            # The number of times that --duration repeated the window, less than 1 if it cut it.
            # Rows of the last repeat may start while some of earlier ones still wait.
            times = sent / setting.planned_once
            replayed = repeated(replayed_part(window_note(setting)), times)
            message = f"{judgement.sentence}; {replayed} in {format_duration(wall_ns)}"
            judgement = msgspec.structs.replace(judgement, sentence=message)
        sentence = judgement.sentence
        if failed:
            sentence = f"{failed:,} of {sent:,} operations FAILED; {sentence}"
        generation = None
        if driven is not None and driven.wall_ns:
            generation = Generation(
                generation_ns=driven.making_ns,
                reserve_ns=driven.reserve_ns,
                threads=len(driven.threads),
                share_of_threads=driven.making_ns / threads_ns,
                reserve_share=driven.reserve_ns / threads_ns,
                writes_generated_in_flight=driven.writes_generated_in_flight,
            )
        summary = recorder.summary(
            RunFacts(
                verdict=sentence,
                judgement=judgement,
                pace=judged,
                wall_ns=wall_ns,
                trace_times=times,
                warmup=setting.config.warmup,
                skipped_rows={names[i]: n for i, n in sorted(setting.window.skipped_rows.items())},
                absent_deletes=setting.window.residency.absent_deletes,
                generation=generation,
            )
        )
        if summary.warmup is None or summary.warmup.first_measured_row is None:
            return summary
        row = trace_row(setting.reader, summary.warmup.first_measured_row)
        return msgspec.structs.replace(
            summary, warmup=msgspec.structs.replace(summary.warmup, first_measured_row=row)
        )

    def warnings(self, device_io: dict[str, DeviceIo]) -> list[str]:
        """Return warnings about devices with counters that do not fit the operations."""
        return traffic_warnings(self.setting, self._recorder, device_io)

    def metrology(self, device_io: dict[str, DeviceIo], judged: Pace | None) -> Metrology:
        """Return the errors of the measurement, from the device counters `device_io`, by drive."""
        # With a page cache, device traffic does not correspond to the operations.
        return metrology(
            self._recorder, {} if self.setting.config.is_buffered else device_io, judged
        )

    def close_tables(self, run: RunFile) -> None:
        """Give the tables of `run` their metadata and their names."""
        for table, out in self._writers.items():
            meta = table_metadata(table, self.setting, run)
            out.update(
                **{
                    name: getattr(meta, name)
                    for name in meta.__struct_fields__
                    if name != "schema_version"
                }
            )
        self._files.close()

    def checkpoints(self, wall_ns: int | None) -> CheckpointFigures | None:
        """Return the figures of checkpoints, after the tables are closed.

        None without checkpoints.
        """
        last_ns = int(self._recorder.run["last_ns"][0])
        return self._checkpoints.figures(
            self.setting, self._output / OPS_FILE, last_ns=last_ns, wall_ns=wall_ns
        )


_WHOLE_BYTES = 256 << 10
"""An I/O of up to this size has no more small pages than a device accepts memory segments."""


def replayed_part(window: WindowNote) -> str:
    """Return a description of the part of the trace that a run replays."""
    scope = "the trace" if window.limit is None else f"the trace's start, --limit {window.limit}"
    scope = scope if window.window is None else f"the trace's window {window.window}"
    if window.node is None:
        return scope
    within = "" if window.limit is None and window.window is None else f" within {scope}"
    return f"the rows of node {window.node} alone{within}"


def repeated(scope: str, times: float) -> str:
    """Return the repeats of `scope` in words: the trace 2.5 times, 14 % of the trace."""
    # The number is formatted without an exponent.
    return (
        f"{scope} {float(f'{times:.3g}'):,.10g} times"
        if times >= 1
        else f"{times * 100:.3g} % of {scope}"
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a replay, beside its tables."""

    device_io: dict[str, DeviceIo]
    """Device counters by drive."""
    summary: Summary
    error: KvError | None
    """The error if the run is partial or operations failed; else None."""
    trouble: list[str]
    """Errors that are not errors of operations, for the notes."""
    verification: Verification | None = None
    smart: dict[str, Smart] = field(default_factory=dict)
    """SMART data by drive, read after the run."""
    probes: ProbesNote | None = None
    """Results of the kernel probes; None if the run had no probes."""


class EngineFacts(NamedTuple):
    """The facts of a run's header that may have grown by the end of the run."""

    tiers: dict[str, dict[str, object]]
    engine: EngineNote
    window: WindowNote
    data: DataNote | None = None


def collect_engine_facts(setting: Setting, engine: Engine, data: DataSource) -> EngineFacts:
    """Return the current facts of a replay's tiers, engine, window and data."""
    tiers = [tier for tier in setting.tiers if tier]
    used = engine.arena.used
    return EngineFacts(
        tiers={t.name: {"target": t.target, "engine": t.engine, **t.facts()} for t in tiers},
        engine=EngineNote(
            name=engine.name,
            because=engine.because,
            **engine.facts(),
            queue_depth=setting.config.depth,
            queue_depth_because=setting.depth_because,
            io_bytes=setting.config.io_bytes,
            buffer_bytes=engine.arena.nbytes,
            buffer_used_bytes=None if used is None else used * engine.io_bytes,
            # Unused buffers have no pages yet, and the lookup takes long.
            buffer_small_page_bytes=small_page_bytes(engine.arena) if used else None,
            plan_bytes=setting.window.loader.held_bytes,
        ),
        window=window_note(setting),
        data=data.facts(),
    )


def build_run_header(
    setting: Setting,
    config: dict[str, object],
    trace: TraceNote,
    facts: EngineFacts,
    *,
    started_utc: str | None = None,
    host: dict[str, object] | None = None,
    preconditioned: Sequence[Preconditioned] = (),
    populated: Populated | None = None,
    prepared: Prepared | None = None,
    smart: dict[str, SmartReadings] | None = None,
) -> RunBegun:
    """Return the content of run.json before the first operation is submitted."""
    return build_header(
        program="kvreplay",
        argv=setting.argv,
        config=config,
        started_utc=datetime.now(UTC).isoformat() if started_utc is None else started_utc,
        host=host_facts() if host is None else host,
        trace=trace,
        tiers=facts.tiers,
        pacing=PacingNote(loop=setting.pacer.name, speed=setting.pacer.speed),
        engine=facts.engine,
        window=facts.window,
        preconditioned=preconditioned,
        populated=populated,
        prepared=prepared,
        data=facts.data,
        smart=smart,
    )


def build_partial_run(setting: Setting, header: RunBegun) -> PartialRunFile:
    """Return the content of run.partial.json."""
    # Buffers that populating used are not the run's.
    engine = msgspec.structs.replace(header.engine, buffer_used_bytes=None)
    fields = asdict(header) | {"engine": engine}
    return PartialRunFile(**fields, running=Running(str(setting.trace.resolve())))


def build_results(results: RunResults, header: RunBegun, measured: Measured) -> RunFile:
    """Return the content of run.json without checkpoints."""
    setting, requests, error = results.setting, results.requests, measured.error
    targets = {t.name: t.target for t in setting.tiers if t is not None and not t.is_simulated}
    mlperf = mlperf_figures(
        setting.reader.meta,
        targets,
        measured.summary,
        setting.config.criteria,
        requests,
        is_whole_trace=setting.is_whole_trace,
        took_ns=results.took_ns,
    )
    return build_run_file(
        header,
        RunOutcome(
            summary=measured.summary,
            status=status_of(error),
            reason=None if error is None else str(error),
            smart=measured.smart,
            verification=measured.verification,
            device_io=measured.device_io,
            probes=measured.probes,
            notes=[
                *_notes(setting, header, measured, requests),
                *omitted_notes(results.omitted_rows),
                *measured.trouble,
            ],
            requests=requests,
            mlperf=mlperf,
            metrology=results.metrology(measured.device_io, measured.summary.pace),
        ),
    )


def status_of(error: KvError | None) -> str:
    """Return the status and reason in run.json for a run that ended with `error`."""
    if error is None:
        return "complete"
    return "failed operations" if isinstance(error, FailedOperations) else "partial"


def table_metadata(table: Table, setting: Setting, run: RunFile) -> Metadata:
    """Return the metadata of a table of `run`."""
    meta = setting.reader.meta
    return describe(
        table,
        "kvreplay",
        setting.argv,
        run.config,
        tiers=meta.tiers,
        seed=setting.seed,
        preset=meta.preset,
        model=meta.model,
        source=msgspec.to_builtins(run.trace),
        notes=run.notes,
        stats={"status": run.status, "reason": run.reason},
        is_simulated=all(t is None or t.is_simulated for t in setting.tiers),
    )


def window_note(setting: Setting) -> WindowNote:
    """Return the note on the rows of the trace that are replayed."""
    window = setting.window
    names = [tier.name for tier in setting.reader.meta.tiers]
    return WindowNote(
        rows=window.rows,
        is_whole_trace=setting.is_whole_trace,
        span_ns=window.span_ns,
        planned_rows=window.planned_rows,
        limit=setting.config.limit,
        window=setting.config.window,
        node=setting.config.node,
        runtime_ns=setting.config.runtime_ns,
        rows_once=setting.rows_once or None,
        repeats=window.rows / setting.rows_once if setting.rows_once else None,
        planned_repeats=getattr(setting.reader, "repeats", 1) if setting.rows_once else None,
        peak_bytes=dict(zip(names, window.residency.peak_bytes, strict=True)),
    )


def _notes(
    setting: Setting, begun: RunBegun, measured: Measured, requests: RequestFigures
) -> Iterator[str]:
    summary, facts, window = measured.summary, begun.tiers, window_note(setting)
    tiers = [tier for tier in setting.tiers if tier is not None]
    yield from (
        f"tier {t.name} is SIMULATED: {facts[t.name]['note']}" for t in tiers if t.is_simulated
    )
    yield from (
        f"tier {t.name} by --gds: {facts[t.name]['gds']['note']}"
        for t in tiers
        if t.engine == "gds"
    )
    if begun.engine.name == "threads" and setting.config.submitters not in ("1", AUTO):
        submitters = setting.config.submitters
        yield f"--submitters {submitters} was not used: without io_uring each thread submits for itself"
    elif refused := begun.engine.submitters_refused:
        yield f"{begun.engine.submitters_because} was not used, one ring served all: {refused}"
    yield from skipped_notes(summary)
    if long := summary.generation.writes_generated_in_flight if summary.generation else 0:
        yield (
            f"latency of {long:,} writes includes data generation: they were longer than one I/O; a"
            " larger --io-bytes avoids it"
        )
    runtime_ns, is_through = setting.config.runtime_ns, window.repeats == window.planned_repeats
    is_short = is_through and not summary.not_reached and (summary.wall_ns or 0) < (runtime_ns or 0)
    if runtime_ns and setting.pacer.speed is None and is_short and measured.error is None:
        yield (
            f"ended before its --duration of {format_duration(runtime_ns)}: all repeats that memory"
            " was taken for were done; use a longer trace, or larger objects"
        )
    if summary.warmup is not None:
        warmup = (
            f"{counted(summary.warmup.operations, 'operation')} of the warm-up (--warmup"
            f" {summary.warmup.asked})"
        )
        remark = (
            ""
            if summary.warmup.first_measured_row is not None
            else "; NOTHING was measured after it"
        )
        yield f"figures exclude the {warmup}{remark}"
    yield from (
        f"tier {name} is separate on each node: here {count} nodes share one copy of an object,"
        f" which the first delete removes; mpirun -n {ranks} kvreplay run --mpi --partition node"
        " keeps copies separate, --node replays one node"
        for name, count, ranks in setting.shared_instances
    )
    yield from (
        f"tier {name}: the trace's write streams were NOT passed on: the target has none"
        for name in setting.unplaced
    )
    yield from histogram_notes(summary.figures, requests)
    yield from _storage_notes(begun, {f.tier for f in summary.figures if f.op == Op.DELETE})
    if measured.probes is not None and measured.probes.reason is not None:
        yield f"left out the probes: {measured.probes.reason}"
    if measured.verification is not None:
        yield (
            f"verified: checking took {format_duration(measured.verification.check_ns)} of the"
            " submitting threads' time, which read latencies include; run again without --verify"
            " for figures"
        )
    if setting.config.drive is not None:
        yield from beside_drive(Path(setting.config.drive), begun, summary)
    if setting.config.is_buffered:
        yield "buffered: the page cache took part, so times are not the device's"


def omitted_notes(rows: int) -> list[str]:
    """Return a note on `rows` that a run did not reach, and that its tables leave out."""
    if not rows:
        return []
    text = "behind the last that was submitted are counted as not reached"
    return [f"{counted(rows, 'operation')} {text}, and have no rows in ops.parquet"]


def skipped_notes(summary: Summary) -> list[str]:
    """Return notes on the rows of the trace that a run skipped."""
    rows = ", ".join(
        f"{name} ({counted(count, 'row')})" for name, count in summary.skipped_rows.items()
    )
    is_cut = summary.trace_times is not None and summary.pace is None
    scope = ", of all that was to be replayed" if summary.not_reached and not is_cut else ""
    notes = [f"skipped, because no --tier names them: {rows}{scope}"] if rows else []
    if summary.absent_deletes:
        notes.append(
            f"skipped {counted(summary.absent_deletes, 'delete')} of objects that were never"
            " written"
        )
    return notes


def _storage_notes(begun: RunBegun, deleting: set[str]) -> Iterator[str]:
    """Yield notes on effects of the storage on the figures; `deleting` are tiers with deletes."""
    drives = [facts for _, facts in begun.drives()]
    for name, facts in begun.drives():
        where, streams = f"{facts['target']} (tier {name})", facts.get("streams")
        if facts.get("memory_beneath"):
            yield f"{where} lies in memory: {facts['memory_beneath']}; its times are not a drive's"
        elif facts.get("direct_io") and not facts.get("is_drive_beneath", True):
            beneath = f"no block device is visible beneath ({facts['filesystem']})"
            yield f"{where}: {beneath}, so it is unconfirmed that O_DIRECT reached a drive"
        if streams is not None and streams["applied"]:
            passed = f"passed on by {streams['applied']}: {streams['numbers']}"
            yield (
                f"{where}: the trace's write streams were {passed}; how the drive uses them is not"
                " seen"
            )
        elif streams is not None:
            yield f"{where}: the trace's write streams were NOT passed on: {streams['why_not']}"
    yield from (
        f"deletes on {name} only free space, and issue no I/O: their times are the replayer's own"
        for name, tier in begun.tiers.items()
        if name in deleting and tier.get("deletes") == FREED_ONLY
    )
    # A preallocated file stays; what was written in a directory is removed, which discards its
    # blocks.
    if begun.preconditioned and any(
        "deletes" not in drive and "discard" in (drive.get("mount_options") or "").split(",")
        for drive in drives
    ):
        yield (
            "preconditioning may have had no effect: a target is mounted with discard, so the"
            " blocks were freed"
        )
    small, is_direct = (
        begun.engine.buffer_small_page_bytes,
        any(drive.get("direct_io") for drive in drives),
    )
    if small and is_direct and (begun.engine.io_bytes or 0) > _WHOLE_BYTES:
        # A device takes no long I/O whole from small pages.
        problem = f"{format_bytes(small)} of the I/O buffers are on small pages"
        where = "/sys/kernel/mm/transparent_hugepage/enabled"
        yield f"{problem} (see {where}): I/Os from these may be split above the device"
    devices = [str(drive["device"]) for drive in drives if drive.get("device") is not None]
    for device in sorted({d for d in devices if devices.count(d) > 1}):
        affected = "their figures, and the device's counters"
        yield (
            f"several drives of the replay are on one device, {device}: {affected}, cannot be separated"
        )


COLUMNS = ("request_id", "phase", "op", "length_bytes")
"""The columns of the trace that are read."""


class ServedRequests:
    """The requests of a run: rows of the table `served` in order of request_id, and their figures.

    A request is yielded when no more rows of it, or of an earlier request, can follow. Until then
    it takes 200 bytes of memory.
    """

    def __init__(self, setting: Setting) -> None:
        """Collect the requests of the run that `setting` describes."""
        self._setting, self._is_open_loop = setting, setting.pacer.speed is not None
        self._moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])
        self._requests = OpenRequests(
            self._moves, IS_LOAD, is_open_loop=self._is_open_loop, row_bytes=ROW.itemsize
        )
        self._later: LeastLater | None = None
        self._is_modelled = not_modelled(setting.reader.meta, setting.request_table) is None
        self._last_load = -1
        """The request of the last row, if that row is a load; else -1."""
        self._figures = RequestTimes(setting.config.criteria.targets_ns)

    def begin(self) -> None:
        """Start a new part of rows."""
        self._requests.begin()

    def take(
        self, first_row: int, batch: pa.RecordBatch, run_part: RunPart, counts: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Take the rows of `batch`, from `first_row` on, with the measurements in `run_part`.

        Yield the requests that are complete. `counts` is true for each row of `run_part` that
        figures count.
        """
        columns = {
            **{name: numbers(batch.column(name)) for name in ("request_id", "length_bytes")},
            **{name: numbers(batch.column(name), "i1") for name in ("phase", "op")},
        }
        if (node := self._setting.config.node) is not None:
            # Rows of other nodes are not replayed, and do not count.
            is_own = numbers(batch.column("node"), "i4") == node
            columns["request_id"] = np.where(is_own, columns["request_id"], -1)
        row = 0
        while (
            row := self._requests.take(row, first_row, columns, run_part.rows, counts)
        ) < batch.num_rows:
            if self._later is None:
                self._later = LeastLater(self._setting.reader, self._setting.window.rows)
            yield from self._finish(self._requests.pop(self._later.after(first_row + row)))
            self._requests.make_room()
        if batch.num_rows:
            is_load = IS_LOAD[columns["phase"][-1]] and columns["op"][-1] == READ
            self._last_load = int(columns["request_id"][-1]) if is_load else -1

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the requests that are left: no row will follow."""
        yield from self._finish(self._requests.pop(NEVER_NS), is_last=True)

    def _finish(self, served: np.ndarray, *, is_last: bool = False) -> Iterator[pa.RecordBatch]:
        if not len(served):
            return
        request_table = self._setting.request_table
        qos, first_token = np.full(len(served), NO_QOS, np.int8), np.full(len(served), NOT_DONE)
        if request_table is not None and len(request_table.request_id):
            places = request_table.indices_of(served["id"])
            qos = np.where(places < 0, NO_QOS, request_table.qos[places]).astype(np.int8)
            if self._is_modelled:
                start = (
                    self._setting.pacer.due_ns(request_table.arrival_ns[places])
                    if self._is_open_loop
                    else served["loads_from_ns"]
                )
                storage = np.where(served["loads"] > 0, served["loads_until_ns"] - start, 0)
                meta = self._setting.reader.meta
                compute = compute_ns(
                    meta, request_table.input_tokens[places], served["loads"], served["load_bytes"]
                )
                is_known = (places >= 0) & (served["loads_done"] == served["loads"])
                first_token = np.where(is_known, storage + compute, NOT_DONE)
        if is_last and not self._setting.window.is_whole:
            # The window may end within this request's loads.
            first_token[served["id"] == self._last_load] = NOT_DONE
        counted_as = ("planned", "operations", "hits", "hit_bytes", "read_bytes", "written_bytes")
        values = {name: served[name] for name in counted_as} | {
            **{
                name: np.where(served[name] == NEVER_NS, NOT_DONE, served[name])
                for name in ("scheduled_ns", "submitted_ns")
            },
            "request_id": served["id"],
            "completed_ns": served["completed_ns"],
            "storage_ns": np.where(served["operations"] > 0, served["storage_ns"], NOT_DONE),
            "first_token_ns": first_token,
            "unfinished": served["planned"] - served["operations"],
            "not_replayed": served["in_window"] - served["planned"],
        }
        counts = served["is_left_out"] == 0
        storage = np.where(
            served["planned"] == served["operations"], values["storage_ns"], NOT_DONE
        )[counts]
        response = served["response_ns"][counts] if self._is_open_loop else None
        self._figures.add(storage, response, first_token[counts], qos[counts])
        yield batch_of(SERVED, values | {"qos": qos})

    def figures(self) -> RequestFigures:
        """Return the figures of the requests that were yielded."""
        reason = not_modelled(self._setting.reader.meta, self._setting.request_table)
        return self._figures.figures(reason, is_open_loop=self._is_open_loop)


NO_REQUESTS = "name the requests table with --requests (kvtrace gen --requests-out writes it)"
NO_RATE = "the trace models no computing time (kvtrace gen --set prefill_ns_per_token=50000)"


def not_modelled(meta: Metadata, request_table: RequestTable | None) -> str | None:
    """Return the reason why there is no TTFT; None if there is one."""
    hierarchy = meta.config.get("hierarchy")
    knobs = (
        hierarchy
        if isinstance(hierarchy, dict) and (meta.model or {}).get("bytes_per_token")
        else {}
    )
    if not (knobs.get("prefill_ns_per_token") or knobs.get("prefill_attention")):
        return NO_RATE
    return NO_REQUESTS if request_table is None else None


def compute_ns(
    meta: Metadata, input_tokens: np.ndarray, loads: np.ndarray, loaded_bytes: np.ndarray
) -> np.ndarray:
    """Return the compute time of the uncached tokens of each request's prompt (int64, ns).

    It follows the trace's model. `loads` and `loaded_bytes` are the number of the trace's rows that
    load for the request, on all tiers, and their bytes.
    """
    hierarchy, model = meta.config["hierarchy"], meta.model or {}
    hit_tokens = (
        loads // int(model.get("objects_per_chunk") or 1) * int(hierarchy["chunk_tokens"])
        if hierarchy.get("entry") == "chunk"
        else loaded_bytes // int(model["bytes_per_token"])
    )
    prompt_ns, loaded_ns = (
        prefix_compute_ns(hierarchy, n)
        for n in (input_tokens, np.clip(input_tokens - 1, 0, hit_tokens))
    )
    compute: np.ndarray = prompt_ns - loaded_ns
    return compute
