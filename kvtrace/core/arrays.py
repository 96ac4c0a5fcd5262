"""Types of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""An array of integers, or of records that a C header lays out (see `core/native/structs.py`)."""
Columns = dict[str, NDArray[Any]]
"""Arrays of one length by column name."""
Int64s = NDArray[np.int64]
