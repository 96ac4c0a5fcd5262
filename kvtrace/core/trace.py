"""`Trace`: a trace file as Python users see it, with names in place of codes.

A trace may be larger than memory, so a `Trace` refers to files and reads them on demand. The trace
that `kvtrace.simulate` returns is in a temporary folder until `save` copies it.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.core import pa, pa_dataset, pa_fs, pc, pl
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import aside
from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.notebook import html_table
from kvtrace.core.schema import OBJECTS, REQUESTS, TRACE, Table, arrow_schema
from kvtrace.core.simulation_stats import SimulationStats, from_json
from kvtrace.core.tables import (
    SUFFIXES,
    DatasetReader,
    create,
    is_dataset,
    objects_path,
    open_table,
    requests_path,
    staged,
)
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from kvtrace.core.tables import Reader

_ENUMS = ("op", "phase")
"""Columns of a trace that hold one of a closed set of names."""


class Trace:
    """The reads, writes and deletes of a KV cache, one row an operation.

    `kvtrace.simulate` and `kvtrace.read_trace` return one. The columns of `scan`, `to_polars` and
    `to_arrow` are those of the trace table in `schemas/README.md`, with the names of tiers,
    operations and phases in place of their codes:

    Examples:
        >>> import kvtrace as kt
        >>> trace = kt.simulate(
        ...     preset="lmcache-disk", users=2, duration="2s", model="tiny-1b",
        ...     tiers={"cpu": {"capacity": "64MiB"}, "nvme": {"capacity": "128MiB"}},
        ... )
        >>> trace.to_polars().select("ts_ns", "op", "tier", "length_bytes").columns
        ['ts_ns', 'op', 'tier', 'length_bytes']
        >>> trace.tiers
        ['gpu', 'cpu', 'nvme']
    """

    def __init__(self, path: Path, metadata: Metadata, *, folder: TemporaryFolder | None) -> None:
        """Refer to the trace file at `path`. `folder` is deleted with the last reference to it."""
        self.path = path
        """The trace file, `*.parquet` or `*.csv.zst`, or the folder of a dataset."""
        self.metadata = metadata
        """The provenance: program, version, arguments, seed, configuration, tiers, counts."""
        self._folder = folder

    @property
    def tiers(self) -> list[str]:
        """The names of the tiers, fastest first."""
        return [tier.name for tier in self.metadata.tiers]

    @property
    def stats(self) -> SimulationStats | None:
        """The counters of the simulation; None for a trace that no simulation wrote."""
        return from_json(self.metadata.stats)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.metadata.rows or 0

    def scan(self) -> pl.LazyFrame:
        """Return the rows as a lazy frame, which reads only the columns and rows it needs.

        Time is in ns from the start of the trace, sizes are in bytes. `op`, `phase` and `tier` are
        of Polars' type `Enum`. A trace in zstd CSV is read into memory first.

        Examples:
            >>> import kvtrace as kt, polars as pl
            >>> trace = kt.simulate(preset="lmcache-disk", users=2, duration="2s", model="tiny-1b")
            >>> written = trace.scan().filter(
            ...     pl.col("op") == "write"
            ... ).select(pl.len()).collect().item()
            >>> written > 0
            True
        """
        self._keep_files()
        return named_columns(self.path, TRACE, self.tiers)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars frame; see `scan` for traces larger than memory.

        Examples:
            >>> import kvtrace as kt
            >>> frame = kt.simulate(
            ...     preset="vllm-fs", users=2, duration="2s", model="tiny-1b"
            ... ).to_polars()
            >>> frame["op"].dtype.categories.to_list()
            ['read', 'write', 'delete']
        """
        return named_columns(self.path, TRACE, self.tiers).collect()

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table; `op`, `phase` and `tier` are dictionaries of names.

        Examples:
            >>> import kvtrace as kt
            >>> table = kt.simulate(
            ...     preset="vllm-fs", users=2, duration="2s", model="tiny-1b"
            ... ).to_arrow()
            >>> str(table.schema.field("tier").type)
            'dictionary<values=string, indices=int8, ordered=0>'
        """
        rows = open_table(self.path, TRACE).read_all()
        position = rows.schema.names.index("tier")
        codes = rows.column("tier").combine_chunks()
        if isinstance(codes, pa.ChunkedArray):
            codes = pa.concat_arrays(codes.chunks) if codes.chunks else pa.array([], pa.int8())
        names = pa.DictionaryArray.from_arrays(codes, pa.array(self.tiers, pa.string()))
        return rows.set_column(position, "tier", names)

    def objects(self) -> pl.LazyFrame:
        """Return the objects as a lazy frame: `object_id`, `key`, `kind` and `size_bytes`.

        Raises:
            TraceError: if the trace has no objects table beside it.

        Examples:
            >>> import kvtrace as kt
            >>> trace = kt.simulate(preset="vllm-fs", users=2, duration="2s", model="tiny-1b")
            >>> trace.objects().collect().columns
            ['object_id', 'key', 'kind', 'size_bytes']

        """
        self._keep_files()
        return _scan(objects_path(self.path), OBJECTS)

    def requests(self) -> pl.LazyFrame:
        """Return the requests as a lazy frame: arrival, tokens, session and block ids.

        Raises:
            TraceError: if the trace has no requests table beside it.

        Examples:
            >>> import kvtrace as kt
            >>> trace = kt.simulate(preset="vllm-fs", users=2, duration="2s", model="tiny-1b")
            >>> trace.requests().collect()["input_tokens"].min() > 0
            True

        """
        self._keep_files()
        return _scan(requests_path(self.path), REQUESTS)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Trace:
        """Copy the trace, with its objects and requests tables, to `path`; return the copy.

        `t.parquet` gets `t.objects.parquet` and `t.requests.parquet` beside it. A name that ends in
        `.csv.zst` converts the tables. A name without a dot, such as `t/`, is the folder of a
        dataset, which holds all tables. Each file and folder appears under its name only once it is
        complete.

        Raises:
            ConfigError: if a file of that name exists and `overwrite` is False, or the name has
                another suffix than `.parquet` and `.csv.zst`.
            DeviceError: if the folder holds other files than a dataset.

        Examples:
            >>> import kvtrace as kt, tempfile
            >>> trace = kt.simulate(preset="vllm-fs", users=2, duration="2s", model="tiny-1b")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     saved = trace.save(f"{folder}/t.parquet")
            ...     len(kt.read_trace(saved.path)) == len(trace)
            True

        """
        target = Path(path)
        for copy in (requests_path(target), objects_path(target), target):
            if (copy.is_file() or is_dataset(copy)) and not overwrite:
                raise ConfigError(f"{copy} exists; pass overwrite=True, or another name")
        with staged(target) as place:
            # The trace itself is copied last: where it is, its other tables are.
            for source, copy, table in (
                (requests_path(self.path), requests_path(place), REQUESTS),
                (objects_path(self.path), objects_path(place), OBJECTS),
                (self.path, place, TRACE),
            ):
                if source.exists():
                    _copy(source, copy, table)
        return read_trace(target)

    @classmethod
    def from_polars(
        cls,
        rows: pl.DataFrame,
        *,
        tiers: Mapping[str, int | None],
        argv: Sequence[str] = ("kvtrace.Trace.from_polars",),
    ) -> Trace:
        """Make a trace of your own rows; see `from_arrow`.

        Examples:
            >>> import kvtrace as kt, polars as pl
            >>> rows = pl.DataFrame({
            ...     "ts_ns": [0, 1000], "op": ["write", "read"], "tier": ["nvme", "nvme"],
            ...     "object_id": [0, 0], "length_bytes": [4096, 4096],
            ... })
            >>> len(kt.Trace.from_polars(rows, tiers={"nvme": None}))
            2
        """
        return cls.from_arrow(rows.to_arrow(), tiers=tiers, argv=argv)

    @classmethod
    def from_arrow(
        cls,
        rows: pa.Table,
        *,
        tiers: Mapping[str, int | None],
        argv: Sequence[str] = ("kvtrace.Trace.from_arrow",),
    ) -> Trace:
        """Make a trace of your own rows, in a temporary file until it is saved.

        `rows` needs the columns `ts_ns`, `op`, `tier` (names, or positions in `tiers`),
        `object_id` and `length_bytes`. A missing `phase` is `other`, a missing `offset_bytes` or
        `rank` is 0, a missing `request_id` or `stage` is null. `tiers` gives the capacity of each
        tier in bytes, fastest first; None has no bound. `argv` is the
        command that made the rows, for the metadata.

        Raises:
            ConfigError: if a column is missing or has a value that is not allowed.
            TraceError: if the rows are not a trace: times decrease, or object numbers have gaps.

        Examples:
            >>> import kvtrace as kt, pyarrow as pa
            >>> rows = pa.table({
            ...     "ts_ns": [0], "op": ["write"], "tier": ["nvme"], "object_id": [0],
            ...     "length_bytes": [4096],
            ... })
            >>> kt.Trace.from_arrow(rows, tiers={"nvme": 1 << 30}).to_polars()["phase"].to_list()
            ['other']

        """
        names = list(tiers)
        complete = _complete_rows(rows, names)
        metadata = describe(
            TRACE,
            "kvtrace",
            list(argv),
            {},
            tiers=[TierFacts(name, capacity) for name, capacity in tiers.items()],
        )
        folder = TemporaryFolder("kvtrace-")
        path = folder.path / "trace.parquet"
        with create(path, TRACE, metadata) as writer:
            for batch in complete.to_batches():
                writer.write(batch)
        for _batch in open_table(path, TRACE).batches():
            pass  # A reader refuses the first row that is not allowed, with its number.
        return open_trace(path, folder)

    def _keep_files(self) -> None:
        """Keep temporary files: a lazy frame may read them after this object is gone."""
        if self._folder is not None:
            self._folder.keep_until_exit()

    def __repr__(self) -> str:
        stats = self.stats
        hits = ""
        if stats is not None and stats.hit_ratio is not None:
            hits = f", hit rate {stats.hit_ratio:.1%}"
        return f"<Trace of {len(self):,} rows, tiers {', '.join(self.tiers)}{hits}: {self.path}>"

    def _repr_html_(self) -> str:
        """Return a table of the tiers for a notebook."""
        head = f"<b>Trace</b>: {len(self):,} rows, {html.escape(self.metadata.program)}"
        stats = self.stats
        if stats is None:
            capacities = [
                [
                    tier.name,
                    "-" if tier.capacity_bytes is None else format_bytes(tier.capacity_bytes),
                ]
                for tier in self.metadata.tiers
            ]
            return head + html_table(["tier", "capacity"], capacities)
        if stats.hit_ratio is not None:
            head += f", hit rate {stats.hit_ratio:.1%} of {format_count(stats.lookups)} lookups"
        columns = ["tier", "hit rate", "read", "written", "deleted", "live at the end"]
        rows = [
            [
                tier.name,
                "-" if tier.hit_ratio is None else f"{tier.hit_ratio:.1%}",
                format_bytes(tier.read_bytes),
                format_bytes(tier.written_bytes),
                format_bytes(tier.deleted_bytes),
                format_bytes(tier.live_bytes),
            ]
            for tier in stats.tiers
        ]
        return f"{head} (simulated){html_table(columns, rows)}"


def read_trace(path: str | Path) -> Trace:
    """Return the trace in the file at `path`, `*.parquet` or `*.csv.zst`, or in a dataset's folder.

    Only the metadata are read.

    Raises:
        TraceError: if there is no such file, or it holds no trace.

    Examples:
        >>> import kvtrace as kt, tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = kt.simulate(preset="vllm-fs", users=2, duration="2s", model="tiny-1b").save(
        ...         f"{place}/t.parquet")
        ...     kt.read_trace(f"{place}/t.parquet").metadata.preset
        'vllm-fs'

    """
    return open_trace(path, None)


def open_trace(path: str | Path, folder: TemporaryFolder | None) -> Trace:
    """Return the trace in the file or dataset at `path`; it owns `folder`, a temporary one."""
    reader = open_table(path, TRACE)
    return Trace(reader.path, reader.meta, folder=folder)


def _scan(path: Path, table: Table) -> pl.LazyFrame:
    """Return a file of `table` as a lazy frame. Its closed sets are Polars enumerations."""
    reader: Reader = open_table(path, table)
    if isinstance(reader, DatasetReader):
        frame = _scan_parts(reader)
    elif path.name.endswith(".parquet"):
        frame = pl.scan_parquet(path, glob=False)
    else:
        frame = pl.LazyFrame(pl.from_arrow(reader.read_all()))
    return frame.with_columns(
        pl.col(column.name).cast(pl.String).cast(pl.Enum([str(value) for value in column.values]))
        for column in table.columns
        if column.type == "enum"
    )


def _scan_parts(reader: DatasetReader) -> pl.LazyFrame:
    """Return the parts of a dataset as a lazy frame, after a check of their footers."""
    for index in range(len(reader.parts)):
        reader.open_part(index)
    sources = [reader.part_source(index) for index in range(len(reader.parts))]
    files, paths = sources[0][0], [path for _files, path in sources]
    if isinstance(files, pa_fs.LocalFileSystem):
        return pl.scan_parquet(paths, glob=False)
    # Polars would read S3 with a client and settings of its own.
    return pl.scan_pyarrow_dataset(pa_dataset.dataset(paths, filesystem=files))


def named_columns(path: Path, table: Table, tiers: Sequence[str]) -> pl.LazyFrame:
    """Return a file of `table` as a lazy frame with the names of tiers and of closed sets."""
    frame = _scan(path, table)
    return _with_tier_names(frame, tiers) if "tier" in table.names else frame


def _with_tier_names(frame: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
    """Replace the positions in the column `tier` by the tiers' names."""
    # An enumeration takes each name once; two tiers of one name keep it as text.
    kind = pl.Enum(names) if len(set(names)) == len(names) else pl.String()
    positions = list(range(len(names)))
    return frame.with_columns(
        pl.col("tier").replace_strict(positions, list(names), return_dtype=pl.String).cast(kind)
    )


def _copy(source: Path, target: Path, table: Table) -> None:
    """Copy one table, converting it if the two names end differently."""
    suffixes = {
        next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")
        for path in (source, target)
    }
    reader = open_table(source, table)
    if len(suffixes) == 1 and not source.is_dir():
        with aside(target) as temporary:
            shutil.copyfile(source, temporary)
        return
    with create(target, table, reader.meta, reader.extras) as writer:
        for batch in reader.batches():
            writer.write(batch)


_DEFAULTS: dict[str, object] = {
    "phase": "other",
    "offset_bytes": 0,
    "rank": 0,
    "request_id": None,
    "stage": None,
}
"""Values of the trace columns that a user's rows may lack."""


def _complete_rows(rows: pa.Table, tiers: Sequence[str]) -> pa.Table:
    """Return a user's rows as a trace table: with all columns, in its order and of its types."""
    schema = arrow_schema(TRACE)
    if unknown := sorted(set(rows.column_names) - set(schema.names)):
        raise ConfigError(f"unknown column {unknown[0]!r}; a trace has {', '.join(schema.names)}")
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            values = rows.column(field.name)
        elif field.name in _DEFAULTS:
            values = pa.array([_DEFAULTS[field.name]] * rows.num_rows)
        else:
            raise ConfigError(f"no column {field.name!r}, which a trace needs")
        if field.name == "tier" and not pa.types.is_integer(values.type):
            values = _positions(values, tiers, "tier")
        elif field.name in _ENUMS:
            names = [str(name) for name in TRACE.column(field.name).values]
            codes = _positions(values, names, field.name)
            values = pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))
        try:
            columns.append(values if values.type == field.type else values.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigError(f"column {field.name}: {error}") from None
    try:
        return pa.table(columns, schema=schema)
    except (pa.ArrowInvalid, ValueError) as error:
        raise TraceError(str(error)) from None


def _positions(values: pa.ChunkedArray, names: Sequence[str], column: str) -> pa.Array:
    """Return the position of each value of a text column in `names`, as int8."""
    text = values.cast(pa.string())
    positions = pc.index_in(text, pa.array(names, pa.string())).cast(pa.int8())
    if positions.null_count:
        wrong = text.filter(positions.is_null())[0].as_py()
        raise ConfigError(f"column {column}: {wrong!r} is not one of {', '.join(names)}")
    return positions.combine_chunks() if isinstance(positions, pa.ChunkedArray) else positions
