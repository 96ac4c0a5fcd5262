"""Read a table of the contract at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from kvtrace.core.schema import Table
from kvtrace.core.tables import open_table


def read_table(path: Path | str, table: Table) -> pa.Table:
    """Return the whole table at `path`."""
    return open_table(path, table).read_all()
