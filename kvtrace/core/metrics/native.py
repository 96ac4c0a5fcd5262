"""The records of recorder.h, and the rows that a recorder takes."""

from __future__ import annotations

from pathlib import Path

from kvtrace.core.native import library
from kvtrace.core.native.structs import header

_HERE = Path(library.__file__).parent
RECORDER = header(_HERE / "core.h", _HERE / "operation.h", _HERE / "recorder.h")
OPERATION_ROW = RECORDER.dtype("OperationRow")
NONE = -1
NOT_DONE = NONE
"""The time of an event that did not happen."""
READ, WRITE, DELETE, OPS_A_PLACE = 0, 1, 2, 3
"""The codes of `op`, in the order of the contract's closed set, and how many there are."""
OK, ERROR, SHORT, SKIPPED, CORRUPT = 0, 1, 2, 3, 4
"""The codes of `outcome`, in the order of the contract's closed set."""
NEVER_NS = (1 << 63) - 1
"""A time later than any other, which is never reached."""
