"""What a foreign format's writer writes, its reader reads back.

Whatever the operations, over one log or several.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
from conftest import write_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from kvdistill_rows import write_logs

from kvdistill.formats import fio_iolog, oplog
from kvdistill.formats.formats import ABSOLUTE, RELATIVE, Format, ImportOptions
from kvdistill.formats.oplog import Style
from kvdistill.jobs import fio_replay
from kvdistill.jobs.job import JobOptions
from kvdistill.queries.database import connect
from kvtrace.core.limit import Limit
from kvtrace.core.schema import TRACE, enum_code

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
GRANULE = 4096
MAX_IO_BYTES = 8 * GRANULE

PLACED = st.lists(
    st.tuples(st.integers(0, 5000), st.booleans(), st.integers(0, 1 << 20), st.integers(1, 20)),
    min_size=1,
    max_size=30,
)
"""Gap in microseconds, whether a read, offset and length in granules."""


def placed(rows):
    """Return `rows` as the writer takes them: splits included, times from FIRST_US on."""
    gaps, is_read, offset, length = zip(*rows, strict=True)
    us = np.array(list(itertools.accumulate(gaps))) - gaps[0] + fio_replay.FIRST_US
    operations = {
        "us": us,
        "is_read": np.array(is_read),
        "offset": np.array(offset) * GRANULE,
        "length": np.array(length) * GRANULE,
    }
    return list(fio_replay.split(operations, MAX_IO_BYTES))


def imported(db, columns):
    return sorted(db.table("input").select(columns).fetchall())


@settings(deadline=None, max_examples=25)
@given(rows=PLACED, version=st.sampled_from([ABSOLUTE, RELATIVE]), jobs=st.integers(1, 4))
def test_an_iolog_is_read_as_it_was_written(rows, version, jobs):
    parts = placed(rows)
    with tempfile.TemporaryDirectory() as name, connect() as db:
        folder = Path(name)
        options = JobOptions(target="target", io_bytes=MAX_IO_BYTES, jobs=jobs, log_version=version)
        made = write_logs(folder, "job", lambda: iter(parts), options)
        logs = [folder / file for file in made.files]
        fio_iolog.read_iolog(logs, ImportOptions(Format.FIO_IOLOG), db)
        (part,) = parts
        # Version 2 tells whole milliseconds.
        unit = 1000 if version == ABSOLUTE else 1
        ns = (part["us"] - fio_replay.FIRST_US) // unit * unit * 1000
        op = np.where(part["is_read"], READ, WRITE)
        expected = sorted(
            zip(
                ns.tolist(),
                op.tolist(),
                part["offset"].tolist(),
                part["length"].tolist(),
                strict=True,
            )
        )
        assert imported(db, "start_ns, op, offset_bytes, length_bytes") == expected
        assert (made.read_ios, made.write_ios) == (sum(op == READ), sum(op == WRITE))
        if version == RELATIVE:
            again = [fio_iolog.logged_ios(log) for log in logs]
            for column in ("us", "is_read", "offset", "length"):
                # Line i is in log i modulo their number.
                dealt = [part[column][i :: len(logs)].tolist() for i in range(len(logs))]
                assert [log[column].tolist() for log in again] == dealt


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 10**7),
        st.sampled_from(["read", "write", "delete"]),
        st.integers(0, 9),
        st.integers(0, 1 << 22),
    ),
    min_size=1,
    max_size=30,
)
"""Gap in nanoseconds, operation, object, length."""


@settings(deadline=None, max_examples=25)
@given(rows=OPERATIONS, style=st.sampled_from(list(Style)), hosts=st.integers(1, 3))
def test_an_op_log_is_read_as_it_was_written(rows, style, hosts):
    times = itertools.accumulate(gap for gap, *_ in rows)
    trace = [
        (at, op, 2, "other", thing, 0, size, None, None, 0)
        for at, (_, op, thing, size) in zip(times, rows, strict=True)
    ]
    with tempfile.TemporaryDirectory() as name, connect() as db:
        folder = Path(name)
        db.execute("SET TimeZone = 'UTC'")
        source = write_trace(
            folder / "t.parquet", trace, source={"first_unix_ns": 1_700_000_000_000_000_001}
        )
        made = oplog.write_oplogs(
            source,
            "nvme",
            folder,
            style,
            endpoint="s3://b/",
            hosts=hosts,
            limit=Limit(),
            argv=["kvdistill"],
        )
        logs = [folder / file for file in made.files]
        # A host may have none of the objects.
        logs = [log for log in logs if len(log_rows(log))]
        found = oplog.read(logs, ImportOptions(Format(style)), db)
        codes = {"read": READ, "write": WRITE, "delete": DELETE}
        expected = [
            (at - trace[0][0], codes[op], 0 if op == "delete" else size)
            for at, op, _, _, _, _, size, *_ in trace
        ]
        assert imported(db, "start_ns, op, length_bytes") == sorted(expected)
        names = {(at - trace[0][0], thing) for at, _, _, _, thing, *_ in trace}
        assert len(set(imported(db, "start_ns, name"))) == len(names)
        assert (found.first_unix_ns, found.account.left_out) == (
            1_700_000_000_000_000_001 + trace[0][0],
            {},
        )


def log_rows(path):
    import zstandard

    text = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).decode()
    return [line for line in text.splitlines()[1:] if not line.startswith("#")]
