"""A run that has ended: its figures, its tables and run.json written, and why it is partial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvreplay.result import tables as results
from kvreplay.result.manifest import Measured, finished, table_metadata
from kvreplay.result.results import RunResults
from kvtrace.core.app import INTERRUPTED
from kvtrace.core.errors import KvError
from kvtrace.core.run.figures import Summary
from kvtrace.core.run.run_file import BLOCKS_FILE, PROBE_FILE, RunBegun, RunFile, Verification, write_run
from kvtrace.core.schema import BLOCKS


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


def write_down(found: RunResults, begun: RunBegun, measured: Measured, output: Path, *, said: str = "") -> FinishedRun:
    """Write the tables and run.json of a run to `output`, run.json last; return the run.

    `said` stands in place of its verdict, where it is no replay: then no criterion judges it.
    """
    content = finished(found.setting, begun, measured)
    if said:
        # Criteria of MLPerf judge a replay of its workload.
        summary = msgspec.structs.replace(content.summary, verdict=said, judgement=None)
        content = msgspec.structs.replace(content, mlperf=None, summary=summary)
    for name in (PROBE_FILE, BLOCKS_FILE):
        (output / name).unlink(missing_ok=True)
    if measured.probed is not None:
        measured.probed.save(output)
        if measured.probed.has_events:
            meta = table_metadata(BLOCKS, found.setting, content)
            results.write_table(output / BLOCKS_FILE, meta, measured.probed.blocks())
    found.close_tables(content)
    content = msgspec.structs.replace(content, checkpoints=found.checkpoints(measured.summary.wall_ns))
    write_run(output, content)
    return FinishedRun(content, measured.error)
