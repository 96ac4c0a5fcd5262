"""A trace of one file, and its dataset of several parts."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvtrace as kt
from kvtrace.core import dataset, table_files


def write_both(
    folder: Path, part_rows: int, group_rows: int = table_files.ROW_GROUP_ROWS
) -> tuple[kt.Trace, kt.Trace]:
    """Return a trace `t.parquet` in `folder`, and its dataset `d` of parts of so many rows."""
    whole = kt.simulate(
        path=folder / "t.parquet", preset="lmcache-disk", users=4, duration="20s", model="tiny-1b",
        tiers={"cpu": {"capacity": "64MiB"}, "nvme": {"capacity": "128MiB"}},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "PART_ROWS", part_rows)
        patch.setattr(table_files, "ROW_GROUP_ROWS", group_rows)
        return whole, whole.save(folder / "d")
