"""A trace compiled to arrays, so that submitting an operation only looks things up.

The arrays are as long as the trace; of a long one they hold what is being replayed, see `window`. A row that is there
takes about 60 bytes, 80 in an open loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvreplay.plan.chains import IS_BULK, IS_COPY, LINK, OBJECT, Laying, lay
from kvreplay.plan.facts import Counter
from kvreplay.plan.held.numbering import Numbering
from kvreplay.plan.intake import Columns
from kvreplay.plan.residency import Residency
from kvtrace.core.compiled import compile_announced
from kvtrace.core.errors import ConfigError

READ, WRITE, DELETE = 0, 1, 2
"""The codes of `op`, in the order of the contract's closed set."""
ROW_COLUMNS = (
    "row", "ts_ns", "op", "tier", "object_id", "offset", "length", "version", "stage_links", "object_links",
)  # fmt: skip
"""What a plan holds of each row."""
LAID_COLUMNS = (*ROW_COLUMNS, "stream", "bulk")
"""The same with what not every plan has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows to replay, in trace order: those of the window whose tier has a target."""

    row: Any
    """int64: the trace row."""
    ts_ns: Any
    """int64: when it is due in trace time."""
    op: Any
    """int8: READ, WRITE or DELETE."""
    tier: Any
    """int8: index into the trace's tiers."""
    object_id: Any
    """int32."""
    offset: Any
    """int64: the first byte of the object that is touched."""
    length: Any
    """int64: bytes of the object."""
    version: Any
    """int32: which content a write gives the object: a new one, unless it copies from another replayed tier."""
    stage_links: Any
    """int32: where the row before it in its request's chain of stages stands, as `chains` says."""
    object_links: Any
    """int32: the same in its object's, whatever the tiers: reads may run together, any other pair keeps its order."""
    alignments: Any
    """int64 a tier: to what its offsets and ends are padded."""
    stream: Any = None
    """int32: the stream that a write belongs to, -1 for none; None where the trace places nothing."""
    bulk: Any = None
    """bool a row: whether it saves or restores a checkpoint, which has a depth of its own; None if no row does."""
    objects: int = 0
    """One more than the highest object id of its rows."""
    is_chained: bool = False
    """Whether a row must wait for another one."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def nbytes(self) -> int:
        """The bytes that the arrays take."""
        return sum(int(getattr(self, name).nbytes) for name in ROW_COLUMNS)

    def start(self, rows: Any) -> Any:
        """Return int64 for each of `rows`: the first byte asked of the tier, aligned downwards."""
        align = self.alignments[self.tier[rows]]
        return self.offset[rows] // align * align


def build_plan(rows: dict[str, Any], alignments: list[int], path: Path) -> Plan:
    """Return the plan of `rows` (numpy columns, nulls as -1) of the trace at `path`, all at once.

    `version` among them is taken as it is; without `phase`, no write is a copy.
    """
    count = len(rows["row"])
    objects, requests = Numbering(count), Numbering(count)
    phase = rows.get("phase")
    columns = Columns(
        object_number=objects.of(rows["object_id"]),
        phase=np.zeros(count) if phase is None else phase,
        **{name: rows[name] for name in Columns.fields if name in rows and name != "phase"},
    )
    counter = Counter(path, len(alignments), count, requests, has_streams="stream" in rows)
    with compile_announced():
        counter.take(columns, count, np.zeros(count, bool))
    is_bulk = phase is not None and counter.result().is_bulk
    laying = Laying(
        objects=np.zeros(objects.count, OBJECT),
        requests=np.zeros(requests.count, LINK),
        is_copy=IS_COPY if phase is not None else np.zeros(len(IS_COPY), bool),
        is_bulk=IS_BULK,
    )
    for name in (*ROW_COLUMNS, *["stream"] * ("stream" in rows), *["bulk"] * is_bulk):
        setattr(laying, name, np.empty(count, Laying.fields[name].dtype))
    with compile_announced():
        lay(laying, columns, count)
    if "version" in rows:
        laying.version[:] = rows["version"]
    return Plan(
        **{name: getattr(laying, name) for name in ROW_COLUMNS},
        alignments=np.array(alignments, np.int64),
        stream=laying.stream if "stream" in rows else None,
        bulk=laying.bulk if is_bulk else None,
        objects=int(columns.object_id.max(initial=-1)) + 1,
        is_chained=bool((laying.stage_links > 0).any() or (laying.object_links > 0).any()),
    )


def populate_plan(residency: Residency, alignments: dict[int, int], path: Path, wanted: Any = slice(None)) -> Plan:
    """Return a plan that writes what the replayed window reads but never wrote, or those `wanted` (bool) of it.

    Its version is 0 in every tier, which only a copy of it has in the window.
    """
    objects = residency.populate_object[wanted]
    count = len(objects)
    zeros, none = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    tier = residency.populate_tier[wanted].astype(np.int64)
    rows = {
        "row": np.arange(count, dtype=np.int64),
        "ts_ns": zeros,
        "op": np.full(count, WRITE, np.int64),
        "tier": tier,
        "object_id": objects,
        "offset_bytes": zeros,
        "length_bytes": residency.populate_bytes[wanted],
        "request_id": none,
        "stage": none,
        "version": zeros,
    }
    return build_plan(rows, [alignments.get(i, 1) for i in range(max(alignments) + 1)], path)


def tier_indices(names: list[str], targets: dict[str, str], path: Path) -> Iterator[tuple[int, str]]:
    """Yield (tier index, target) for each of `targets`; ConfigError for a name that the trace lacks."""
    if not targets:
        raise ConfigError(
            f"no --tier given; name a target for one of {', '.join(names)}, such as --tier {names[-1]}=DIR"
        )
    for name, target in targets.items():
        if name not in names:
            raise ConfigError(f"--tier {name}={target}: {path} has no tier {name!r}; it has {', '.join(names)}")
        yield names.index(name), target
