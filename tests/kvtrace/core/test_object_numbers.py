"""Object numbers of a trace are bounded by its rows, or by the objects table beside it."""

import numpy as np
import pyarrow as pa
import pytest

from kvtrace.core import row_check
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.schema import OBJECTS, TRACE, batch_of, objects_batch
from kvtrace.core.tables import create, objects_path, open_table

ROWS = {
    "ts_ns": [0, 1],
    "op": [1, 0],
    "tier": [0, 0],
    "phase": [3, 1],
    "object_id": [0, 90],
    "offset_bytes": [0, 0],
    "length_bytes": [8, 8],
    "rank": [0, 0],
}


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A trace of two rows, of the objects 0 and 90."""
    monkeypatch.setattr(row_check, "DENSE_SLACK", 0)
    path = tmp_path / "t.parquet"
    metadata = describe(TRACE, "kvtrace", [], {}, tiers=[TierFacts("nvme")])
    with create(path, TRACE, metadata) as writer:
        writer.write(batch_of(TRACE, {name: np.array(values) for name, values in ROWS.items()}))
    return path


def write_objects(trace, count):
    numbers = np.arange(count)
    keys = pa.array([f"chunk/{number}" for number in range(count)])
    with create(objects_path(trace), OBJECTS, describe(OBJECTS, "kvtrace", [], {})) as writer:
        writer.write(objects_batch(numbers, keys, "chunk", np.full(count, 8)))


def test_a_number_far_above_the_rows_is_refused(trace):
    with pytest.raises(TraceError, match="object_id"):
        open_table(trace, TRACE).read_all()


def test_the_objects_table_bounds_the_numbers(trace):
    write_objects(trace, 91)
    assert open_table(trace, TRACE).read_all().num_rows == 2


def test_a_number_beyond_the_objects_table_is_refused(trace):
    write_objects(trace, 90)
    with pytest.raises(TraceError, match="object_id"):
        open_table(trace, TRACE).read_all()
