"""Write a trace of your own system, with pyarrow alone: what docs/format.md asks for, and no more.

`events` are what the system did, in the order of time: (ns, op, phase, object, bytes, request, stage). Replace them.
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

MIB = 1 << 20
NAMES = pa.dictionary(pa.int8(), pa.string())
events = [
    (0, "write", "store", "chunk-a", 4 * MIB, 0, 0),
    (1_000_000, "write", "store", "chunk-b", 4 * MIB, 0, 0),
    (9_000_000, "read", "load", "chunk-a", 4 * MIB, 1, 0),
    (9_000_000, "read", "load", "chunk-b", 4 * MIB, 1, 1),  # stage 1: begins when stage 0 of request 1 has ended
    (20_000_000, "delete", "evict", "chunk-b", 4 * MIB, None, None),
]
keys = list(dict.fromkeys(event[3] for event in events))
names = ["ts_ns", "op", "phase", "object_id", "length_bytes", "request_id", "stage"]
rows = [dict(zip(names, (*event[:3], keys.index(event[3]), *event[4:]), strict=True)) for event in events]
for row in rows:
    row |= {"tier": 0, "offset_bytes": 0, "rank": 0}
columns = [
    *[("ts_ns", pa.int64()), ("op", NAMES), ("tier", pa.int8()), ("phase", NAMES)],
    *[("object_id", pa.int64()), ("offset_bytes", pa.int64()), ("length_bytes", pa.int64())],
    *[("request_id", pa.int64()), ("stage", pa.int32()), ("rank", pa.int16())],
]
about = {"schema_version": 1, "program": "my-system", "version": "1.0", "argv": sys.argv, "tiers": [{"name": "nvme"}]}


def write(path: str, table: str, fields: list[tuple[str, pa.DataType]], rows: list[dict[str, object]]) -> None:
    """Write `rows` with the JSON under `kvtrace`, and which columns may be null."""
    said = {"kvtrace": json.dumps(about | {"table": table, "rows": len(rows)})}
    required = [pa.field(name, kind, nullable=name in ("request_id", "stage", "size_bytes")) for name, kind in fields]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(required, metadata=said)), path)


write("mine.parquet", "trace", columns, rows)
write(
    "mine.objects.parquet",
    "objects",
    [("object_id", pa.int64()), ("key", pa.string()), ("kind", NAMES), ("size_bytes", pa.int64())],
    [{"object_id": at, "key": key, "kind": "chunk", "size_bytes": 4 * MIB} for at, key in enumerate(keys)],
)
