"""Damaged files of the contract's tables."""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mutate
import pyarrow as pa
import pyarrow.parquet as pq
import seeds
import zstandard

from kvtrace.core.schema import TABLES, Table


def _columns(rows: pa.Table, rng: random.Random) -> pa.Table:
    """Return `rows` with a column of another type, gone or doubled, or with other rows."""
    at = rng.randrange(rows.num_columns)
    name, kind = rows.schema.names[at], rng.randrange(5)
    if kind == 0:
        return rows.remove_column(at)
    if kind == 1:
        return rows.append_column(rng.choice((name, "more", mutate.HOSTILE[2])), rows.column(at))
    if kind == 2:
        types = (
            pa.float64(),
            pa.string(),
            pa.int8(),
            pa.uint64(),
            pa.binary(),
            pa.bool_(),
            pa.list_(pa.int64()),
        )
        return rows.set_column(at, name, pa.nulls(rows.num_rows, rng.choice(types)))
    if kind == 3:
        return rows.slice(rng.randrange(rows.num_rows), rng.choice((0, 1, 5)))
    return rows.take(pa.array(rng.sample(range(rows.num_rows), rows.num_rows)))


def _cells(rows: pa.Table, rng: random.Random) -> pa.Table:
    """Return `rows` with cells at edges."""
    at = rng.randrange(rows.num_columns)
    name, type_ = rows.schema.names[at], rows.schema.types[at]
    try:
        values = rows.column(at).to_pylist()
        for _ in range(rng.choice((1, 1, 3, len(values)))):
            values[rng.randrange(len(values))] = _cell(type_, rng)
        if pa.types.is_dictionary(type_):
            return rows.set_column(at, name, pa.array(values, pa.string()).dictionary_encode())
        if pa.types.is_string(type_):
            raw = [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]
            return rows.set_column(at, name, _text(raw))
        return rows.set_column(at, name, pa.array(values, type_))
    except (pa.ArrowException, OverflowError, UnicodeError):
        return rows


def _text(raw: list[bytes | None]) -> Any:
    """Return text as it stands, UTF-8 or not."""
    held = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(held), held.buffers(), held.null_count)


def _cell(type_: Any, rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return None
    if pa.types.is_integer(type_):
        bits = type_.bit_width - 1
        return rng.choice((mutate.number(rng), 2**bits - 1, -(2**bits)))
    if pa.types.is_list(type_):
        return [mutate.number(rng) for _ in range(rng.choice((0, 1, 3)))]
    return rng.choice((b"\xff\xfe", rng.choice(mutate.HOSTILE)))


def parquet_of(rows: pa.Table, meta: bytes, rng: random.Random) -> bytes:
    """Return a Parquet file with `rows` and our metadata `meta`."""
    out = io.BytesIO()
    kept = rows.replace_schema_metadata({b"kvtrace": meta})
    pq.write_table(
        kept, out, compression=rng.choice(("zstd", "none", "snappy")), use_dictionary=rng.random() < 0.5,
        row_group_size=rng.choice((7, 1 << 20)), write_page_checksum=rng.random() < 0.5,
    )  # fmt: skip
    return out.getvalue()


def csv_of(rows: pa.Table, table: Table, meta: bytes) -> bytes:
    """Return the text of a zstd CSV with `rows` and the metadata `meta`."""
    head = b'# kvtrace {"table":"%s","schema_version":1}\n' % table.name.encode()
    text = [head, ",".join(rows.schema.names).encode() + b"\n"]
    for row in rows.to_pylist():
        cells = [
            "" if v is None else f"[{' '.join(map(str, v))}]" if isinstance(v, list) else str(v)
            for v in row.values()
        ]
        text.append(",".join(cells).encode() + b"\n")
    return b"".join((*text, b"# end ", meta, b"\n"))


@dataclass
class Damaged:
    """A damaged table file, and the rows that it must have if it is taken.

    Null if only its bytes tell.
    """

    path: Path
    rows: pa.Table | None


def table_file(table: Table, rng: random.Random, folder: Path, name: str = "t") -> Damaged:
    """Write a damaged file of `table` into `folder`."""
    rows, meta = seeds.TABLES[table.name]
    is_parquet = rng.random() < 0.6
    path = folder / f"{name}{'.parquet' if is_parquet else '.csv.zst'}"
    kind = rng.random()
    if kind < 0.35:
        # Its bytes.
        path.write_bytes(mutate.several(mutate.bytes_of, whole(table.name, is_parquet), rng))
        return Damaged(path, rows)
    if kind < 0.55:
        meta = mutate.several(mutate.tree_of, meta, rng)
    elif is_parquet:
        for _ in range(rng.choice((1, 1, 2))):
            if rows.num_rows:
                rows = (_cells if rng.random() < 0.6 else _columns)(rows, rng)
        meta = meta | {"rows": rows.num_rows}
    encoded = mutate.json_of(meta)
    if rng.random() < 0.1:
        encoded = mutate.bytes_of(encoded, rng)
    if is_parquet:
        path.write_bytes(parquet_of(rows, encoded, rng))
        return Damaged(path, rows)
    text = csv_of(rows, table, encoded)
    is_rows = kind >= 0.55
    path.write_bytes(
        zstandard.compress(mutate.several(mutate.text_of, text, rng) if is_rows else text)
    )
    return Damaged(path, None if is_rows else rows)


def _whole(table: Table, is_parquet: bool) -> bytes:
    import tempfile

    from kvtrace.core.metadata import decode
    from kvtrace.core.tables import create

    rows, meta = seeds.TABLES[table.name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{'.parquet' if is_parquet else '.csv.zst'}"
        with create(path, table, decode(json.dumps(meta).encode(), path)) as out:
            for batch in rows.to_batches():
                out.write(batch)
        return path.read_bytes()


@cache
def whole(name: str, is_parquet: bool) -> bytes:
    """Return the file of the table `name` as our writer makes it."""
    return _whole(TABLES[name], is_parquet)
