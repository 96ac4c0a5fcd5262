"""A run that has ended: its figures, its tables and run.json written, and why it is partial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreplay.config.setting import Setting
from kvreplay.engine.job import Driven, Record
from kvreplay.result import tables as results
from kvreplay.result.checkpoints import checkpoint_figures
from kvreplay.result.figures import summarize
from kvreplay.result.manifest import Measured, finished, table_metadata
from kvreplay.result.tables import series_batch
from kvreplay.run.runtime import with_repeats
from kvtrace.core.app import INTERRUPTED
from kvtrace.core.errors import KvError
from kvtrace.core.run.figures import Summary
from kvtrace.core.run.run_file import (
    BLOCKS_FILE,
    OPS_FILE,
    SERIES_FILE,
    SERVED_FILE,
    DeviceIo,
    RunBegun,
    RunFile,
)
from kvtrace.core.run.verification import Verification
from kvtrace.core.schema import BLOCKS, OPS, SERIES, SERVED

if TYPE_CHECKING:
    import pyarrow as pa


class Interrupted(KvError):  # noqa: N818 - the user's wish, not a fault
    """The user asked to stop; what was measured is kept."""

    exit_code = INTERRUPTED


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, whole or partial."""

    run: RunFile
    error: KvError | None
    """Why it is partial, or that operations failed; None if it is whole and all went well."""

    @property
    def summary(self) -> Summary:
        """Its figures."""
        return self.run.summary

    @property
    def verification(self) -> Verification | None:
        """What the checks found; None unless asked to check."""
        return self.run.verification


Replaying = Callable[..., FinishedRun]
"""As `run.replay`, or what has it done on several ranks."""


def summary_of(
    setting: Setting,
    record: Record,
    due_ns: Any,
    driven: Driven | None,
    wall_ns: int | None = None,
    moved: dict[str, DeviceIo] | None = None,
) -> Summary:
    """Return the summary of `record`; `driven`, `wall_ns` and `moved` are as in `summarize`."""
    names = [t.name for t in setting.reader.meta.tiers]
    found = summarize(
        setting.window.plan,
        record,
        due_ns,
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
    return with_repeats(found, setting, record)


def write_down(
    setting: Setting,
    begun: RunBegun,
    measured: Measured,
    record: Record,
    due_ns: Any,
    served: pa.RecordBatch,
    output: Path,
) -> FinishedRun:
    """Write the tables and run.json of a run to `output`; return the run."""
    checkpoints = checkpoint_figures(setting, record, due_ns, measured.summary.wall_ns)
    content = finished(setting, begun, measured, checkpoints)
    tables = [
        (OPS_FILE, OPS, results.ops_batches(setting, record, due_ns)),
        (SERVED_FILE, SERVED, [served]),
        (SERIES_FILE, SERIES, [series_batch(setting.window.plan, record, setting.tiers)]),
    ]
    if measured.probed is not None and measured.probed.has_events:
        tables.append((BLOCKS_FILE, BLOCKS, measured.probed.blocks()))
    results.write_run(
        output,
        [
            results.Output(
                file, table_metadata(table, setting, content), rows, results.extras_of(table, setting, record)
            )
            for file, table, rows in tables
        ],
        content,
        measured.probed,
    )
    return FinishedRun(content, measured.error)
