"""A replay of a trace dataset: the operations of the same trace in a file."""

from __future__ import annotations

import hashlib

import pytest
from trace_datasets import write_both

import kvreplay
import kvtrace as kt
from kvreplay.ranks.partition import PartitionOptions, write_part
from kvtrace.core import dataset
from kvtrace.core.limit import Limit

PART_ROWS = 1000


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Return a trace of one file, and its dataset of several parts."""
    return write_both(tmp_path_factory.mktemp("traces"), PART_ROWS)


@pytest.mark.parametrize("window", [None, "steady:3s"])
def test_a_replay_of_a_dataset_is_that_of_the_file(traces, window):
    runs = [
        kvreplay.replay(trace, tiers={"cpu": "ram", "nvme": "ram"}, window=window)
        for trace in traces
    ]
    counts = [
        run.operations().select("row", "tier", "op", "object_id", "bytes").sort("row").collect()
        for run in runs
    ]
    assert counts[0].equals(counts[1])
    assert len(counts[0]) > 100


def test_a_run_notes_the_checksum_of_the_manifest(traces):
    _whole, parts = traces
    run = kvreplay.replay(parts, tiers={"nvme": "ram"}, limit="100rows")
    manifest = (parts.path / dataset.MANIFEST).read_bytes()
    assert run.file.trace.sha256 == hashlib.sha256(manifest).hexdigest()
    assert run.file.trace.file == parts.path.name


def test_ranks_partition_a_dataset_as_its_file(traces, tmp_path):
    options = PartitionOptions(by=None, ranks=2, limit=Limit(), tiers=frozenset({1, 2}))
    for rank in range(2):
        rows = []
        for trace in traces:
            path = tmp_path / f"{trace.path.stem}-{rank}.parquet"
            write_part(trace.path, options, rank, path)
            rows.append(kt.read_trace(path).to_arrow())
        assert rows[0].equals(rows[1])
