"""What a run came to, taken part by part: its figures and tables, in memory that does not grow with its rows.

Parts come in the order of the planned rows, each row once. Which rows a part holds changes no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kvreplay.config.criteria import Targets
from kvreplay.config.setting import Setting
from kvreplay.engine.job import NOT_DONE, Driven, Record
from kvreplay.plan.plan import ROW_COLUMNS, Plan
from kvreplay.result import tables
from kvreplay.result.checkpoints import checkpoint_figures
from kvreplay.result.figures import summarize
from kvreplay.result.manifest import table_metadata
from kvreplay.result.mlperf import request_figures
from kvreplay.result.part import RunPart
from kvreplay.result.requests import served_batch
from kvreplay.result.traffic import traffic_warnings
from kvtrace.core.run.checkpoints import CheckpointFigures
from kvtrace.core.run.figures import RequestFigures, Summary
from kvtrace.core.run.run_file import OPS_FILE, SERIES_FILE, SERVED_FILE, DeviceIo, RunFile
from kvtrace.core.schema import OPS, SERIES, SERVED

if TYPE_CHECKING:
    import pyarrow as pa


class RunResults:
    """The results of a run, as far as its rows were taken; a context that holds the tables that are being written."""

    setting: Setting
    """After `end`, with the window that the run came to: what --runtime provided beyond it is left out."""

    def __init__(self, setting: Setting, output: Path) -> None:
        """Find what `setting` comes to; tables go to `output`, which exists, aside until `close_tables`."""
        self.setting, self._output = setting, output
        self._parts: list[RunPart] = []
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._files.__exit__(kind, error, at)

    def take(self, part: RunPart) -> None:
        """Take the next rows: `part.first` is how many were taken before."""
        self._parts.append(part)

    def end(self) -> None:
        """Note that all rows were taken, those that the run did not reach as well; all that follows is asked then."""
        (part,) = self._parts
        self.setting, self._record, self._due_ns = _cut(self.setting, part.record, part.due_ns)
        self._served: pa.RecordBatch = served_batch(self.setting, self._record, self._due_ns)

    @property
    def rows(self) -> int:
        """Planned rows that the run came to, whether it reached them or not."""
        return len(self._record.outcome)

    @property
    def last_completed_ns(self) -> int | None:
        """The last completion; null if there was none."""
        last_ns = int(self._record.completed_ns.max(initial=NOT_DONE))
        return None if last_ns == NOT_DONE else last_ns

    @property
    def last_reached_row(self) -> int | None:
        """The last row of the trace that was submitted; null if none was."""
        count = _reached(self._record)
        return int(self.setting.window.plan.row[count - 1]) if count else None

    def summary(
        self, driven: Driven | None, wall_ns: int | None = None, moved: dict[str, DeviceIo] | None = None
    ) -> Summary:
        """Return the figures; `driven` is None if the run ended before its first operation, or is not known.

        `wall_ns` says how long the run was where `driven` cannot; `moved` what devices did meanwhile, by drive.
        """
        setting = self.setting
        names = [t.name for t in setting.reader.meta.tiers]
        return summarize(
            setting.window.plan,
            self._record,
            self._due_ns,
            setting.tiers,
            driven,
            queue_depth=setting.config.depth,
            io_bytes=setting.config.io_bytes,
            depth_because=setting.depth_because,
            moved=moved,
            skipped_rows={names[i]: n for i, n in sorted(setting.window.skipped_rows.items())},
            absent_deletes=setting.window.absent_deletes,
            warmup=setting.warmup,
            asked=setting.config.warmup,
            wall_ns=wall_ns,
        )

    def warnings(self, moved: dict[str, DeviceIo]) -> list[str]:
        """Return where devices moved, by drive, too little or too much for what was asked of them."""
        return traffic_warnings(self.setting, self._record, moved)

    def requests(self, targets: Mapping[str, Targets]) -> RequestFigures:
        """Return what requests got, judged by the `targets` of each class."""
        return request_figures(self.setting, self._record, self._due_ns, self._served, targets)

    def close_tables(self, run: RunFile) -> None:
        """Give the tables of `run` their metadata and their names."""
        setting, record = self.setting, self._record
        batches = [
            (OPS_FILE, OPS, tables.ops_batches(setting, record, self._due_ns)),
            (SERVED_FILE, SERVED, [self._served]),
            (SERIES_FILE, SERIES, [tables.series_batch(setting.window.plan, record, setting.tiers)]),
        ]
        for file, table, rows in batches:
            extras = tables.extras_of(table, setting, record)
            tables.write_table(self._output, tables.Output(file, table_metadata(table, setting, run), rows, extras))

    def checkpoints(self, wall_ns: int | None) -> CheckpointFigures | None:
        """Return what was done for checkpoints, when the tables are closed; None if nothing was to be done."""
        return checkpoint_figures(self.setting, self._record, self._due_ns, wall_ns)


def _cut(setting: Setting, record: Record, due_ns: Any) -> tuple[Setting, Record, Any]:
    """Return the setting, the record and the due times of what a closed loop with --runtime came to.

    What was planned beyond was a provision, and nothing that was missed, however the run ended; of a run that came to
    nothing it is all but the first repeat. What an open loop did not reach was due.
    """
    plan = setting.window.plan
    count = _reached(record) or int(np.searchsorted(plan.row, setting.rows_once))
    if not setting.rows_once or due_ns is not None or count == len(plan):
        return setting, record, due_ns
    shorter: Plan = replace(plan, **{name: getattr(plan, name)[:count] for name in ROW_COLUMNS})
    window = replace(setting.window, plan=shorter, rows=int(plan.row[count - 1]) + 1)
    kept = Record(
        record.submitted_ns[:count], record.completed_ns[:count], record.outcome[:count], None, record.retries
    )
    return replace(setting, window=window), kept, due_ns


def _reached(record: Record) -> int:
    """Return how many operations there are up to the last that was submitted."""
    sent = np.flatnonzero(record.submitted_ns != NOT_DONE)
    return int(sent[-1]) + 1 if len(sent) else 0
