"""What one rank left of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from kvreplay.config.config import Warmup, parse_warmup
from kvreplay.mpi.pooled.files import RankReport
from kvtrace.core.run.run_file import OPS_FILE, RunFile
from kvtrace.core.schema import OPS
from kvtrace.core.tables import open_table


@dataclass(frozen=True, slots=True)
class PartRun:
    """The run of one rank, and what it said of itself."""

    rank: int
    host: str
    folder: Path
    run: RunFile | None
    """Null if it left none, or had nothing to replay."""
    told: RankReport | None
    """Null if it did not come to its end."""
    trouble: str | None = None
    """Why what it left cannot be read."""

    @property
    def status(self) -> str:
        """As in its run.json; idle if it was dealt nothing, lost if it left nothing or died."""
        if self.run is None:
            return "idle" if self.told is not None and self.told.is_idle else "lost"
        # A recovered run is partial, too; who died did not say so.
        return self.run.status if self.told is not None else "lost"

    @property
    def warmup(self) -> Warmup | None:
        """What its figures leave out."""
        return None if self.run is None else parse_warmup(self.run.config.get("warmup"))

    @property
    def timed(self) -> set[tuple[str, str]]:
        """Tiers and kinds of operations that have times: measured ones, or a model's."""
        figures = [] if self.run is None else self.run.summary.figures
        return {(f.tier, f.op) for f in figures if f.latency.count}

    @property
    def bytes(self) -> int:
        """What it read and wrote, on tiers where bytes move."""
        figures = [] if self.run is None else self.run.summary.figures
        return sum(f.bytes or 0 for f in figures if f.op != "delete" and not f.is_simulated)

    @property
    def operations(self) -> int:
        """Those that completed."""
        return 0 if self.run is None else self.run.summary.operations or 0

    @property
    def first_submission_ns(self) -> int | None:
        """After all began; null if it is not known."""
        ops = self.folder / OPS_FILE
        if self.run is None or not ops.is_file():
            return None
        for batch in open_table(ops, OPS).batches(("submitted_ns",)):
            found = pc.min(batch.column("submitted_ns")).as_py()
            if found is not None:
                # Rows far behind are submitted later.
                return int(found)
        return None
