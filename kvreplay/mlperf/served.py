"""The requests that a trial served whole, by which the benchmark counts tokens and hits: the clock cuts its trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.mlperf.attempt import STORAGE
from kvtrace.core.document.chapters import Named
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.figures import Criterion
from kvtrace.core.run.run_file import OPS_FILE, SERVED_FILE
from kvtrace.core.schema import OPS, REQUESTS, SERVED
from kvtrace.core.tables import open_table, read_table
from kvtrace.core.units import NS_PER_S

_NOTE = "of the requests served whole within the trial"
_IO_NOTE = f"{_NOTE}; over the time of their storage operations, added up"
_HIT_NOTE = f"{_NOTE}: earlier turns found, of those looked up"


@dataclass(frozen=True, slots=True)
class Served:
    """What the requests served whole come to."""

    requests: int
    tokens: int
    storage_io_ns: int
    """Latencies of their reads and writes on storage, added up."""
    lookups: int
    """Earlier turns of their conversations, each of which is looked up."""
    hits: int

    @property
    def hit_rate(self) -> float | None:
        """Hits of lookups; None without a lookup."""
        return self.hits / self.lookups if self.lookups else None

    def named(self, wall_ns: int | None) -> Named:
        """Return what is known of them by the benchmark's names."""
        return {
            "Total Requests": (self.requests, _NOTE),
            "Total Tokens": (self.tokens, _NOTE),
            "Avg Throughput (tok/s)": (_rate(self.tokens, wall_ns), _NOTE),
            "Storage Throughput (tok/s)": (_rate(self.tokens, self.storage_io_ns), _IO_NOTE),
            "Requests/sec": (_rate(self.requests, wall_ns), _NOTE),
            "Cache Hit Rate": (self.hit_rate, _HIT_NOTE),
        }

    def judged(self, criteria: list[Criterion]) -> list[Criterion]:
        """Return `criteria` with the hit rate of these requests, not that of a trace which the trial only began."""
        return [self._judged(criterion) if criterion.name == "hit_rate" else criterion for criterion in criteria]

    def _judged(self, criterion: Criterion) -> Criterion:
        rate, limit = self.hit_rate, criterion.threshold
        return msgspec.structs.replace(
            criterion,
            measured=rate,
            verdict="not measured" if rate is None else "pass" if rate > limit else "fail",
            definition=_HIT_NOTE,
            shown=f"{'-' if rate is None else f'{rate:.1%}'} > {limit:.1%}",
        )


def _rate(count: int, time_ns: int | None) -> float | None:
    return count * NS_PER_S / time_ns if time_ns else None


def served_of(run: Path, requests: Path, trace: Metadata) -> Served:
    """Return the requests that `run` served whole, of those in the table `requests` of its `trace`."""
    import numpy as np

    served = read_table(run / SERVED_FILE, SERVED)
    unfinished, operations = (served.column(name).to_numpy() for name in ("unfinished", "operations"))
    ids, hits = (served.column(name).to_numpy() for name in ("request_id", "hits"))
    is_whole = (unfinished == 0) & (operations > 0)
    asked = read_table(requests, REQUESTS)
    order = np.argsort(asked.column("request_id").to_numpy())
    # A repeat of the trace counts its requests on.
    at = order[ids[is_whole] % max(1, len(order))]
    tokens, turns = (asked.column(name).to_numpy() for name in ("output_tokens", "turn"))
    storage = [tier.name for tier in trace.tiers].index(STORAGE)
    return Served(
        requests=int(is_whole.sum()),
        tokens=int(tokens[at].sum()),
        storage_io_ns=sum(_io_ns(batch, ids[is_whole], storage) for batch in open_table(run / OPS_FILE, OPS).batches()),
        lookups=int(turns[at].sum()),
        hits=int(hits[is_whole].sum()),
    )


def _io_ns(batch: Any, whole: Any, storage: int) -> int:
    """Return the time of the reads and writes in `batch` of the requests `whole` on the tier `storage`, added up."""
    import numpy as np
    import pyarrow.compute as pc

    is_moved = pc.is_in(batch.column("op").cast("string"), value_set=_moves())
    begun, ended = (batch.column(name).fill_null(-1).to_numpy() for name in ("submitted_ns", "completed_ns"))
    counts = (batch.column("tier").to_numpy() == storage) & is_moved.to_numpy(zero_copy_only=False) & (ended >= 0)
    counts &= np.isin(batch.column("request_id").fill_null(-1).to_numpy(), whole)
    return int((ended - begun)[counts].sum())


def _moves() -> Any:
    import pyarrow as pa

    return pa.array(["read", "write"])
