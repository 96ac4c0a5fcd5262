"""What a run came to, taken part by part: its figures and tables, in memory that does not grow with its rows.

Parts come in the order of the planned rows, each row once. Which rows a part holds changes no result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from kvreplay.config.setting import Setting
from kvreplay.engine.job import Driven
from kvreplay.native.rows import NOT_DONE
from kvreplay.result import tables
from kvreplay.result.checkpoints import Checkpoints
from kvreplay.result.counted.operations import CountedOperations
from kvreplay.result.counted.tables import ROW_GROUP_ROWS, OpsRows, TraceRows
from kvreplay.result.figures import summarize
from kvreplay.result.manifest import table_metadata
from kvreplay.result.part import RunPart
from kvreplay.result.requests import COLUMNS, ServedRequests
from kvreplay.result.traffic import traffic_warnings
from kvtrace.core.run.figures import CheckpointFigures, RequestFigures, Summary
from kvtrace.core.run.run_file import OPS_FILE, SERIES_FILE, SERVED_FILE, DeviceIo, RunFile
from kvtrace.core.schema import OPS, SERIES, SERVED, Table
from kvtrace.core.tables import Writer, create


class RunResults:
    """The results of a run, as far as its rows were taken; a context that holds the tables that are being written."""

    setting: Setting
    """After `end`, with the window that the run came to: what --runtime provided beyond it is left out."""
    requests: RequestFigures
    """After `end`: what requests got."""

    def __init__(self, setting: Setting, output: Path) -> None:
        """Find what `setting` comes to; tables go to `output`, which exists, aside until `close_tables`."""
        self.setting, self._output = setting, output
        is_open_loop = setting.pacer.speed is not None
        self._operations = CountedOperations(setting.tiers, is_open_loop=is_open_loop, io_bytes=setting.config.io_bytes)
        self._served, self._checkpoints = ServedRequests(setting), Checkpoints()
        self._warmup, self._ops_columns = setting.warmup, tables.ops_columns(setting)
        self._ops_rows = OpsRows(setting, tables.ops_extras(setting))
        # When a save without a request began, the trace says alone.
        bulk_columns = ("ts_ns",) if setting.window.facts.is_bulk else ()
        columns = tuple(dict.fromkeys(self._ops_columns + COLUMNS + bulk_columns))
        self._trace = TraceRows(setting.reader, columns)
        self._is_cut = bool(setting.rows_once) and not is_open_loop
        self._unreached: list[RunPart] = []
        """Rows that were not submitted: of a closed loop with --runtime only those count that others follow."""
        self._files, self._writers = ExitStack(), dict[Table, Writer]()

    def __enter__(self) -> Self:
        for table, file, extras in (
            (OPS, OPS_FILE, tables.ops_extras(self.setting)),
            (SERVED, SERVED_FILE, ()),
            (SERIES, SERIES_FILE, ()),
        ):
            # What is said of the run is known at its end.
            meta = msgspec.structs.replace(self.setting.reader.meta, table=table.name)
            writing = create(self._output / file, table, meta, extras, ROW_GROUP_ROWS)
            self._writers[table] = self._files.enter_context(writing)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._trace.close()
        self._files.__exit__(kind, error, at)

    def take(self, part: RunPart) -> None:
        """Take the next rows: `part.first` is how many were taken before."""
        if not self._is_cut:
            self._count(part)
            return
        sent = np.flatnonzero(part.rows["submitted_ns"] != NOT_DONE)
        reached = int(sent[-1]) + 1 if len(sent) else 0
        if reached:
            self._count_unreached()
            self._count(part.within(0, reached))
        if reached < len(part):
            self._unreached.append(part.within(reached, len(part)).kept())

    def _count_unreached(self) -> None:
        for part in self._unreached:
            self._count(part)
        self._unreached.clear()

    def end(self) -> None:
        """Note that all rows were taken, those that the run did not reach as well; all that follows is asked then."""
        window = self.setting.window
        if self._is_cut and not self.rows:
            # Of a run that came to nothing all but the first repeat was a provision.
            for part in self._unreached:
                self._count(part.within(0, int(np.searchsorted(part.rows["trace_row"], self.setting.rows_once))))
        if self._is_cut and self.rows < window.planned_rows:
            # What was planned beyond was a provision, and nothing that was missed, however the run ended.
            came_to = replace(window, facts=replace(window.facts, rows=self.rows), rows=self._trace.row)
            self.setting = replace(self.setting, window=came_to)
        self._take_trace(self.setting.window.rows, RunPart.nothing(), np.zeros(0, bool), np.zeros(0, np.int64))
        for batch in self._served.end():
            self._writers[SERVED].write(batch)
        self._operations.end()
        self.requests = self._served.figures()
        self._writers[SERIES].write(tables.series_batch(self._operations))

    def _count(self, part: RunPart) -> None:
        if not len(part):
            return
        warmup = self._warmup
        counts = np.ones(len(part), bool)
        if warmup is not None:
            counts = np.ascontiguousarray(warmup.is_measured(part.rows), np.bool_)
        asked = self._operations.take(part, counts)
        self._take_trace(int(part.rows["trace_row"][-1]) + 1, part, counts, asked)

    def _take_trace(self, up_to: int, part: RunPart, counts: Any, asked: Any) -> None:
        """Take the trace's rows before `up_to`, of which `part` has those that were planned."""
        self._served.begin()
        for batch in self._trace.up_to(up_to):
            first_row = self._trace.row
            first, last = np.searchsorted(part.rows["trace_row"], [first_row, first_row + batch.num_rows]).tolist()
            some = part.within(first, last)
            ops = self._ops_rows.batch(batch.select(self._ops_columns), first_row, some, asked[first:last])
            self._writers[OPS].write(ops)
            self._checkpoints.take(batch, some, first_row)
            for served in self._served.take(first_row, batch, part, counts):
                self._writers[SERVED].write(served)

    @property
    def rows(self) -> int:
        """Planned rows that the run came to, whether it reached them or not."""
        return int(self._operations.run["rows"][0])

    @property
    def last_completed_ns(self) -> int | None:
        """The last completion; null if there was none."""
        last_ns = int(self._operations.run["last_completed_ns"][0])
        return None if last_ns == NOT_DONE else last_ns

    @property
    def last_reached_row(self) -> int | None:
        """The last row of the trace that was submitted; null if none was."""
        row = int(self._operations.run["last_sent_row"][0])
        return None if row == NOT_DONE else row

    def summary(
        self, driven: Driven | None, wall_ns: int | None = None, moved: dict[str, DeviceIo] | None = None
    ) -> Summary:
        """Return the figures; `driven` is None if the run ended before its first operation, or is not known.

        `wall_ns` says how long the run was where `driven` cannot; `moved` what devices did meanwhile, by drive.
        """
        setting = self.setting
        names = [t.name for t in setting.reader.meta.tiers]
        return summarize(
            self._operations,
            driven,
            queue_depth=setting.config.depth,
            depth_because=setting.depth_because,
            moved=moved,
            skipped_rows={names[i]: n for i, n in sorted(setting.window.skipped_rows.items())},
            absent_deletes=setting.window.absent_deletes,
            warmup=setting.config.warmup,
            wall_ns=wall_ns,
        )

    def warnings(self, moved: dict[str, DeviceIo]) -> list[str]:
        """Return where devices moved, by drive, too little or too much for what was asked of them."""
        return traffic_warnings(self.setting, self._operations, moved)

    def close_tables(self, run: RunFile) -> None:
        """Give the tables of `run` their metadata and their names."""
        for table, out in self._writers.items():
            meta = table_metadata(table, self.setting, run)
            out.update(**{name: getattr(meta, name) for name in meta.__struct_fields__ if name != "schema_version"})
        self._files.close()

    def checkpoints(self, wall_ns: int | None) -> CheckpointFigures | None:
        """Return what was done for checkpoints, when the tables are closed; None if nothing was to be done."""
        last_ns = int(self._operations.run["last_ns"][0])
        return self._checkpoints.figures(self.setting, self._output / OPS_FILE, last_ns=last_ns, wall_ns=wall_ns)
