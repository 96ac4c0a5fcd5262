"""Import and export of the trace CSV of the MLPerf Storage KV-cache benchmark (`--io-trace-log`).

Its six columns have no delete, offset, request, stage or rank. After an import those are null or
absent, and an export reports the values that it leaves out. Its clock is Unix seconds with six
decimals.

There may be millions of keys. They are numbered by first appearance in little memory: a key is
identified by a 64-bit hash, and a second hash detects collisions. The texts of the keys are stored
as Arrow arrays.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvtrace.core import pa, pl, zstandard
from kvtrace.core.arrays import Array
from kvtrace.core.csv_tables import BLOCK_BYTES, decompress, line_blocks, read_csv
from kvtrace.core.errors import ConfigError, TraceError, refuse
from kvtrace.core.files import ZSTD_MAGIC, aside
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.schema import (
    MOST,
    MOST_BYTES,
    OBJECTS,
    TRACE,
    Op,
    Phase,
    batch_of,
    enum_code,
    objects_batch,
)
from kvtrace.core.tables import create, objects_path, open_table, staged
from kvtrace.core.units import NS_PER_S, counted, format_duration
from kvtrace.native.numbering import Numbers, grown

HEADER = "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"
ZSTD_LEVEL = 3
# The maximum time of a trace. A double holds microseconds exactly up to here.
_MAX_SECONDS = MOST / NS_PER_S
_TIERS = {"Tier-0": "gpu", "Tier-1": "cpu", "Tier-2": "nvme"}
_OPS = {"Read": enum_code(TRACE, "op", Op.READ), "Write": enum_code(TRACE, "op", Op.WRITE)}
# The benchmark evicts by moving to the next tier down, which it logs as a read and a write.
_PHASES = (("Prefill", Phase.PREFILL), ("Decode", Phase.DECODE), ("Evict", Phase.DEMOTE))
_EXPORT_PHASES = {Phase.DECODE: "Decode", Phase.DEMOTE: "Evict"}


def is_mlperf(path: Path) -> bool:
    """Return whether `path` starts with the MLPerf header, plain or zstd."""
    try:
        return path.is_file() and next(_chunks(path), b"").startswith(HEADER.encode())
    except TraceError:
        return False


@dataclass(slots=True)
class Import:
    """The state of an import: keys and rows so far, and counts of changed values."""

    numbers: Numbers = field(default_factory=lambda: Numbers(0))
    """The numbers of keys, by their 64-bit hashes."""
    second_hashes: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    """A second 64-bit hash of each key, which detects collisions of the first one."""
    sizes: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    """The largest size of each key so far, bytes."""
    names: list[pa.StringArray] = field(default_factory=list)
    """The keys in the order of their numbers, in pieces."""
    rows: int = 0
    raised_rows: int = 0
    raised_most_ns: int = 0
    other_phases: dict[str, int] = field(default_factory=dict)
    first_ns: int | None = None
    last_ns: int = 0

    def number(self, names: pa.StringArray) -> Array:
        """Return the int64 numbers of distinct keys; new keys get the next numbers."""
        series = pl.Series(values=pl.from_arrow(names))
        low, high = (series.hash(seed).to_numpy().view(np.int64) for seed in (1, 2))
        before, ids = self.numbers.count, self.numbers.of(low).astype(np.int64)
        self.sizes, self.second_hashes = (
            grown(table, self.numbers.count, 0) for table in (self.sizes, self.second_hashes)
        )
        is_new = ids >= before
        self.second_hashes[ids[is_new]] = high[is_new]
        if (self.second_hashes[ids] != high).any():
            raise ConfigError("two keys have the same 64-bit hash: rename one of them")
        self.names.append(names.filter(pa.array(is_new)))
        return ids

    def notes(self) -> list[str]:
        """Return the notes of the imported trace."""
        notes = [
            (
                "imported from an MLPerf trace: it has no deletes, offsets or ranks; requests and"
                " stages are null"
            )
        ]
        if self.raised_rows:
            notes.append(
                f"{self.raised_rows} of {self.rows} rows had a time earlier than the row before, by"
                f" {format_duration(self.raised_most_ns)} at most; their times were raised to the"
                " row before"
            )
        notes += [
            f"phase {name!r} ({counted(n, 'row')}) is 'other' here"
            for name, n in self.other_phases.items()
        ]
        return notes


def read_into(
    source: Path, target: Path, argv: list[str], progress: Callable[[float], None]
) -> Import:
    """Convert the MLPerf CSV at `source` to the trace at `target`, with its objects table beside
    it.
    """
    tiers = [TierFacts(name) for name in _TIERS.values()]
    origin = {"kind": "mlperf-csv", "file": source.name}
    meta = describe(TRACE, "kvtrace", argv, {"import": origin}, tiers=tiers, source=origin)
    # The trace is entered first and so renamed last: if it exists, the objects table does.
    with (
        staged(target) as path,
        create(path, TRACE, meta) as out,
        create(objects_path(path), OBJECTS, meta) as objects,
    ):
        state = Import()
        text = pa.dictionary(pa.int32(), pa.string())
        types = dict(
            zip(
                HEADER.split(","),
                (pa.float64(), text, pa.int64(), text, pa.string(), text),
                strict=True,
            )
        )
        for block, row in _blocks(source):
            rows = read_csv(io.BytesIO(block), list(types), types, source, row, has_nulls=False)
            out.write(_convert(rows.combine_chunks(), state, source))
            progress(float(state.rows))
        for names in state.names:
            first, end = objects.rows, objects.rows + len(names)
            objects.write(
                objects_batch(np.arange(first, end), names, "other", state.sizes[first:end])
            )
        for writer in (out, objects):
            writer.update(notes=state.notes(), source=origin | {"first_unix_ns": state.first_ns})
    return state


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the text of `path`, plain or zstd, some MiB at a time."""
    with path.open("rb") as file:
        if file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
            yield from decompress(path)
            return
        file.seek(0)
        while data := file.read(BLOCK_BYTES):
            yield data


def _blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole data lines and the number of their first row."""
    row, block = 0, b""
    for index, block in enumerate(line_blocks(_chunks(path), path)):
        rows = block if index else block.partition(b"\n")[2]
        if rows.endswith(b"\n"):
            yield rows, row
            row += rows.count(b"\n")
    if not block or (block.strip() and not block.endswith(b"\n")):
        raise TraceError("truncated: its last line has no end", path=path, row=row)


def _convert(rows: pa.Table, state: Import, path: Path) -> pa.RecordBatch:
    n, frame = (
        rows.num_rows,
        pl.DataFrame(pl.from_arrow(rows)).with_columns(pl.col(pl.Categorical).cast(pl.String)),
    )
    sizes, seconds = rows["Object_Size_Bytes"].to_numpy(), rows["Timestamp"].to_numpy()
    refuse(
        sizes < 0, "a negative size", path=path, column="Object_Size_Bytes", first_row=state.rows
    )
    refuse(
        sizes > MOST_BYTES,
        "more than 1 PiB",
        path=path,
        column="Object_Size_Bytes",
        first_row=state.rows,
    )
    refuse(
        (frame["Key"] == "").to_numpy(),
        "empty: write a name",
        path=path,
        column="Key",
        first_row=state.rows,
    )
    is_wrong = ~((seconds >= 0) & (seconds <= _MAX_SECONDS))
    refuse(
        is_wrong,
        "{:g} is no Unix time",
        seconds,
        path=path,
        column="Timestamp",
        first_row=state.rows,
    )

    def codes(name: str, code_of: dict[str, int]) -> Array:
        column_codes = frame[name].replace_strict(code_of, default=None, return_dtype=pl.Int8)
        message = f"unknown value {{!r}}; it must be one of {', '.join(code_of)}"
        refuse(
            column_codes.is_null().to_numpy(),
            message,
            frame[name].to_numpy(),
            path=path,
            column=name,
            first_row=state.rows,
        )
        return column_codes.to_numpy()

    keys = rows["Key"].combine_chunks().dictionary_encode()
    ids = state.number(keys.dictionary)[keys.indices.to_numpy()]
    np.maximum.at(state.sizes, ids, sizes)
    ops = codes("Operation", _OPS)
    columns = {
        "ts_ns": _times(seconds, state),
        "op": ops,
        "tier": codes("Tier", {name: i for i, name in enumerate(_TIERS)}),
        "phase": _phases(frame, ops, state),
        "object_id": ids,
        "offset_bytes": np.zeros(n, np.int64),
        "length_bytes": sizes,
        "rank": np.zeros(n, np.int16),
    }
    state.rows += n
    return batch_of(TRACE, columns)


def _phases(frame: pl.DataFrame, ops: Array, state: Import) -> Array:
    """Return the phase code of each row.

    A phase is matched by its prefix. All other phases become `other` and are counted.
    """
    code = {phase: pl.lit(enum_code(TRACE, "phase", phase), pl.Int8) for phase in Phase}
    starts = pl.col("Phase").str.starts_with
    rules = (pl.when(starts(prefix)).then(code[phase]) for prefix, phase in _PHASES)
    phases = frame.select("Phase", code=pl.coalesce(*rules, code[Phase.OTHER]))
    other_counts = (
        phases.filter(pl.col("code") == code[Phase.OTHER])
        .group_by("Phase", maintain_order=True)
        .len()
    )
    for name, count in other_counts.rows():
        state.other_phases[name] = state.other_phases.get(name, 0) + count
    codes = phases["code"].to_numpy().copy()
    # A read of the phase Prefill loads cached KV.
    is_load = (codes == enum_code(TRACE, "phase", Phase.PREFILL)) & (
        ops == enum_code(TRACE, "op", Op.READ)
    )
    codes[is_load] = enum_code(TRACE, "phase", Phase.LOAD)
    return codes


def _times(seconds: Array, state: Import) -> Array:
    """Return the times in ns since the first row, raised where they would decrease.

    A double holds today's Unix time to well under 1 µs.
    """
    times = np.round(seconds * 1e6).astype(np.int64) * 1000
    if state.first_ns is None and len(times):
        state.first_ns = int(times[0])
    times -= state.first_ns or 0
    raised = np.maximum(np.maximum.accumulate(times), state.last_ns) if len(times) else times
    late = raised - times
    state.raised_rows += int((late > 0).sum())
    state.raised_most_ns = max(state.raised_most_ns, int(late.max(initial=0)))
    state.last_ns = int(raised[-1]) if len(raised) else state.last_ns
    return raised


def write_from(source: Path, target: Path, progress: Callable[[float], None]) -> dict[str, int]:
    """Convert the trace at `source` to MLPerf CSV at `target`; a name that ends in .zst is zstd.

    Returns the number of lost values by kind.
    """
    reader = open_table(source, TRACE)
    if len(reader.meta.tiers) > len(_TIERS):
        raise TraceError(
            f"it has {len(reader.meta.tiers)} tiers; the MLPerf format has {len(_TIERS)}",
            path=source,
        )
    keys = _keys(source)
    # An imported trace keeps the time of its first row, which restores its clock.
    first_us = ((reader.meta.source or {}).get("first_unix_ns") or 0) // 1000
    lost = {
        "deletes": 0,
        "request ids": 0,
        "offsets": 0,
        "phases": 0,
        "ranks": 0,
        "sub-microsecond times": 0,
    }
    lost |= {f"{name}s": 0 for name in reader.extras}
    rows = 0
    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    with (
        aside(target) as temporary,
        (
            zstandard.open(temporary, "wb", cctx=packer)
            if target.name.endswith(".zst")
            else temporary.open("wb")
        ) as out,
    ):
        out.write(HEADER.encode() + b"\n")
        for batch in reader.batches():
            frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(
                pl.col("op", "phase").cast(pl.String)
            )
            is_deleted = pl.col("op") == Op.DELETE
            # The phase that an import would make of "Prefill".
            reimported_phase = (
                pl.when(pl.col("op") == Op.READ)
                .then(pl.lit(Phase.LOAD))
                .otherwise(pl.lit(Phase.PREFILL))
            )
            is_lost = (
                (pl.col("phase") != reimported_phase)
                & ~pl.col("phase").is_in([*_EXPORT_PHASES])
                & ~is_deleted
            )
            counts = frame.select(
                is_deleted.sum(),
                pl.col("request_id").is_not_null().sum(),
                (pl.col("offset_bytes") > 0).sum(),
                is_lost.sum().alias("p"),
                (pl.col("rank") > 0).sum(),
                (pl.col("ts_ns") % 1000 != 0).sum(),
                *(
                    pl.col(name).ne_missing(TRACE.column(name).default).sum()
                    for name in reader.extras
                ),
            ).row(0)
            lost = {name: lost[name] + int(count) for name, count in zip(lost, counts, strict=True)}
            text = io.BytesIO()
            _mlperf_rows(frame.filter(~is_deleted), keys, first_us).write_csv(
                text, include_header=False
            )
            out.write(text.getbuffer())
            rows += batch.num_rows
            progress(float(rows))
    return lost


def _keys(source: Path) -> pl.Series | None:
    """Return the key of each object as a polars series, null for an object without one.

    None if the trace has no objects table.
    """
    path = objects_path(source)
    if not path.exists():
        return None
    objects = pl.DataFrame(
        pl.from_arrow(open_table(path, OBJECTS).read_all().select(["object_id", "key"]))
    )
    ids = objects["object_id"]
    if len(ids) and (ids[0] != 0 or ids[-1] != len(ids) - 1):
        every = pl.DataFrame({"object_id": pl.int_range(int(ids.to_numpy().max()) + 1, eager=True)})
        objects = every.join(objects, on="object_id", how="left", maintain_order="left")
    return objects["key"]


def _mlperf_rows(frame: pl.DataFrame, keys: pl.Series | None, first_us: int) -> pl.DataFrame:
    us = pl.col("ts_ns") // 1000 + first_us
    phase = pl.col("phase").replace_strict(
        dict(_EXPORT_PHASES), default="Prefill", return_dtype=pl.String
    )
    key: pl.Expr = pl.format("object/{}", pl.col("object_id"))
    if keys is not None:
        table_keys = keys.gather(frame["object_id"], null_on_oob=True).alias("key")
        frame, key = frame.with_columns(table_keys), pl.coalesce("key", key)
    return frame.select(
        pl.format("{}.{}", us // 1_000_000, (us % 1_000_000).cast(pl.String).str.zfill(6)),
        pl.col("op").str.to_titlecase(),
        pl.col("length_bytes"),
        pl.format("Tier-{}", pl.col("tier")).alias("tier"),
        key.alias("key"),
        phase.alias("phase"),
    )
