"""Types of numpy arrays, for annotations only: importing this file does not import numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    """Integers, booleans, or records that a C header lays out (see `core/native/structs.py`)."""
    Columns = dict[str, NDArray[Any]]
    """Arrays of one length by column name."""
else:
    Array = Columns = object
