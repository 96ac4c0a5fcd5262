"""Numbers of the trace's rows, where a replay takes a window of them, repeats, or a rank's part.

A replay numbers the rows that it reads from 0. The table `ops`, errors and notes name the row of
the trace instead, so that they can be joined with it. Readers know which row of their file a row
is (`Reader.file_rows`), and a rank's part has the rows of the whole trace in the column `whole_row`.
"""

from __future__ import annotations

import numpy as np

from kvtrace.core import pa
from kvtrace.core.schema import numbers
from kvtrace.core.tables import Reader

WHOLE_ROW = "whole_row"
"""The extra column of a rank's part: each row's number in the whole trace."""


def trace_rows(reader: Reader, batch: pa.RecordBatch, first_row: int) -> np.ndarray:
    """Return int64: the row of the trace that each row of `batch` is.

    The batch begins at row `first_row` of `reader`; of a rank's part it has the column `whole_row`.
    """
    if WHOLE_ROW in reader.extras:
        rows: np.ndarray = numbers(batch.column(WHOLE_ROW))
        return rows
    return np.asarray(reader.file_rows(np.arange(first_row, first_row + batch.num_rows)))


def trace_row(reader: Reader, row: int) -> int:
    """Return the row of the trace that row `row` of `reader` is; of a rank, of the whole trace."""
    file_row = int(reader.file_rows(np.array([row]))[0])
    if WHOLE_ROW not in reader.extras:
        return file_row
    for batch in reader.batches((WHOLE_ROW,)):
        if row < batch.num_rows:
            return int(numbers(batch.column(WHOLE_ROW))[row])
        row -= batch.num_rows
    return file_row
