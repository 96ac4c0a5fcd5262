"""Write a trace of your own system, with pyarrow alone: what docs/format.md asks for, and no more.

Events are what the system did, in the order of time: (ns, op, phase, object, bytes, request,
stage). Give `write_trace` your own in the place of these five; an object is as large as the most of
it that was written or read at once.
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

MIB = 1 << 20
EVENTS = [
    (0, "write", "store", "chunk-a", 4 * MIB, 0, 0),
    (1_000_000, "write", "store", "chunk-b", 4 * MIB, 0, 0),
    (9_000_000, "read", "load", "chunk-a", 4 * MIB, 1, 0),
    (
        9_000_000,
        "read",
        "load",
        "chunk-b",
        4 * MIB,
        1,
        1,
    ),  # stage 1: begins when stage 0 of request 1 has ended
    (20_000_000, "delete", "evict", "chunk-b", 4 * MIB, None, None),
]
NAMES = pa.dictionary(pa.int8(), pa.string())
TRACE = [
    *[("ts_ns", pa.int64()), ("op", NAMES), ("tier", pa.int8()), ("phase", NAMES)],
    *[("object_id", pa.int64()), ("offset_bytes", pa.int64()), ("length_bytes", pa.int64())],
    *[("request_id", pa.int64()), ("stage", pa.int32()), ("rank", pa.int16())],
]
OBJECTS = [
    ("object_id", pa.int64()),
    ("key", pa.string()),
    ("kind", NAMES),
    ("size_bytes", pa.int64()),
]


def write_trace(path: str, events: list[tuple], tier: str = "nvme") -> None:
    """Write the trace of `events` on one `tier` to `path`, NAME.parquet, and its objects beside it."""
    sizes: dict[str, int] = {}
    for event in events:
        sizes[event[3]] = max(event[4], sizes.get(event[3], 0))
    numbers = {key: at for at, key in enumerate(sizes)}
    names = ["ts_ns", "op", "phase", "object_id", "length_bytes", "request_id", "stage"]
    rows = [
        dict(zip(names, (*event[:3], numbers[event[3]], *event[4:]), strict=True))
        for event in events
    ]
    for row in rows:
        row |= {"tier": 0, "offset_bytes": 0, "rank": 0}
    objects = [
        {"object_id": at, "key": key, "kind": "chunk", "size_bytes": sizes[key]}
        for key, at in numbers.items()
    ]
    for name, table, fields, of in [
        (path, "trace", TRACE, rows),
        (path.removesuffix(".parquet") + ".objects.parquet", "objects", OBJECTS, objects),
    ]:
        about = {"schema_version": 1, "program": "my-system", "version": "1.0", "argv": sys.argv}
        about |= {"tiers": [{"name": tier}], "table": table, "rows": len(of)}
        known = [
            pa.field(f, kind, nullable=f in ("request_id", "stage", "size_bytes"))
            for f, kind in fields
        ]
        schema = pa.schema(known, metadata={"kvtrace": json.dumps(about)})
        pq.write_table(pa.Table.from_pylist(of, schema), name)


if __name__ == "__main__":
    write_trace("mine.parquet", EVENTS)
