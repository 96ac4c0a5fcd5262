"""Small requests, models and presets for the tests of the simulation, and its rows as plain tuples."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from kvtrace import cli
from kvtrace.llm.shape import Full, KvDtype, Latent, ModelShape
from kvtrace.requests.requests import Requests
from kvtrace.sim.output import object_batch, trace_batch
from kvtrace.sim.presets.preset import Entry, Match, Placement, Preset, Promotion, load_preset
from kvtrace.sim.presets.tier import TierSetting
from kvtrace.sim.simulation import Load, Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

# One byte a token on one rank: hand-worked sizes are tokens.
ONE_BYTE = ModelShape(
    source="test", groups=(Latent(layers=1, latent_dim=1, rope_dim=0),),
    kv_dtype=KvDtype.INT8, max_context_tokens=131072
)  # fmt: skip
# Two key-value heads of one byte: four bytes a token on 1 or 2 ranks, 16 on 8 (each holds a whole
# head).
TWO_HEADS = ModelShape(
    source="test", groups=(Full(layers=1, kv_heads=2, head_dim=1),), kv_dtype=KvDtype.INT8, max_context_tokens=131072
)  # fmt: skip

Row = tuple[Any, ...]
"""ts_ns, op, tier, phase, object_id, length_bytes, request_id, stage, rank."""
COLUMNS = [
    "ts_ns",
    "op",
    "tier",
    "phase",
    "object_id",
    "length_bytes",
    "request_id",
    "stage",
    "rank",
]


def requests_of(
    rows: Sequence[tuple[int, int, int, Sequence[int]]], *, block_tokens: int = 4
) -> Requests:  # arrival, input, output, ids
    """Return requests of (arrival_ns, input_tokens, output_tokens, block ids)."""
    chains = [list(row[3]) for row in rows]

    def column(values: list[int]) -> Any:
        return np.array(values, dtype=np.int64)

    return Requests(
        column([r[0] for r in rows]), column([r[1] for r in rows]), column([r[2] for r in rows]),
        column([0, *np.cumsum([len(c) for c in chains])]), column([i for c in chains for i in c]), block_tokens, {}, (),
    )  # fmt: skip


def tiers_of(
    capacities: tuple[int | None, ...], high: float, largest: float
) -> tuple[TierSetting, ...]:
    """Return tiers of `capacities`.

    All but the last fill to `high` and take objects up to `largest` of theirs.
    """
    last = len(capacities) - 1
    return tuple(
        TierSetting(f"tier{i}", capacity) if i == last
        else TierSetting(f"tier{i}", capacity, high_watermark=high, max_object_fraction=largest)
        for i, capacity in enumerate(capacities)
    )  # fmt: skip


def preset_of(*capacities: int | None, **fields: Any) -> Preset:
    """Return a write-through, prefix-matched, promoting preset of 4-token chunks, with `fields`
    replaced.

    With `is_gpu`, and where prompts and answers share steps, its fastest tier is a GPU's memory.
    """
    tiers = tiers_of(
        capacities, fields.pop("high_watermark", 1.0), fields.pop("max_object_fraction", 1.0)
    )
    if fields.pop("is_gpu", False) or fields.get("step_tokens"):
        tiers = (msgspec.structs.replace(tiers[0], name="gpu"), *tiers[1:])
    usual: dict[str, Any] = {
        "description": "test", "entry": Entry.CHUNK, "chunk_tokens": 4, "match": Match.PREFIX,
        "placement": Placement.WRITE_THROUGH, "promotion": Promotion.ALWAYS,
    }  # fmt: skip
    return Preset(tiers=tiers, **usual | fields)


def mlperf_of(*capacities: int | None, **fields: Any) -> Preset:
    """Return the preset `mlperf` with other capacities, and `fields` replaced."""
    tiers = tiers_of(capacities, 0.80, 0.95)
    return msgspec.structs.replace(load_preset("mlperf"), tiers=tiers, **fields)


def simulate(
    preset: Preset, load: Load, model: ModelShape = ONE_BYTE, *, ranks: int = 1, rows: int = 4096
) -> Any:
    """Run a simulation.

    Return it, its trace rows, and its request log as lists of tuples, object sizes last.

    The batches are looked at only when all is over, as a writer does that gathers row groups.
    """
    simulation = Simulation(preset, model, load, ranks=ranks, rows=rows)
    batches, logs, sizes = [], [], []

    def sink(flush: Any) -> None:
        batches.append(trace_batch(flush.rows))
        logs.extend(tuple(int(v) for v in line) for line in flush.log)
        if len(flush.object_bytes):
            sizes.append(object_batch(0, "chunk", flush.object_bytes))

    simulation.run(sink)
    table = pa.Table.from_batches(batches).select(COLUMNS).to_pydict()
    object_bytes = [size for batch in sizes for size in batch.column("size_bytes").to_pylist()]
    return simulation, list(zip(*table.values(), strict=True)), logs, object_bytes


def simulate_fleet(
    preset: Preset,
    load: Load,
    model: ModelShape = ONE_BYTE,
    *,
    ranks: int = 1,
    rows: int = 4096,
    with_log: bool = False,
) -> Any:
    """Run a simulation of several nodes.

    Return it, its trace rows, the node of each, and, if asked, its requests.
    """
    simulation = Simulation(preset, model, load, ranks=ranks, rows=rows)
    batches, nodes, logs = [], [], []

    def sink(flush: Any) -> None:
        batches.append(trace_batch(flush.rows))
        nodes.extend(flush.rows["node"].tolist())
        logs.extend(tuple(int(v) for v in line) for line in flush.log)

    simulation.run(sink)
    table = pa.Table.from_batches(batches).select(COLUMNS).to_pydict()
    found = list(zip(*table.values(), strict=True))
    return (simulation, found, nodes, logs) if with_log else (simulation, found, nodes)


def rows_of(
    preset: Preset, requests: Requests, model: ModelShape = ONE_BYTE, **options: Any
) -> list[Row]:
    """Return the rows that `requests` cause."""
    rows: list[Row] = simulate(preset, Load(requests=requests), model, **options)[1]
    return rows


def brief(rows: Sequence[Row]) -> list[str]:
    """Return rows as `op tier phase object bytes request/stage`, for traces worked by hand."""
    return [
        f"{op} {tier} {phase} {object_} {length}"
        + (f" {request}/{stage}" if request is not None else "")
        for _, op, tier, phase, object_, length, request, stage, _ in rows
    ]


def kvtrace(monkeypatch: Any, *args: object) -> int:
    """Run kvtrace in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["kvtrace", *map(str, args)])
    try:
        cli.main()
    except SystemExit as left:
        return int(left.code or 0)
    raise AssertionError
