"""What the three programs share, and the libraries that take long to import.

Each of these is imported as something of it is first asked for: what needs none of them, a
command's help among them, starts without. Who does need one imports its name from here, at the top
of the file as any other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "bokeh",
    "duckdb",
    "np",
    "pa",
    "pa_csv",
    "pa_dataset",
    "pa_fs",
    "pc",
    "pl",
    "pq",
    "zstandard",
]


class _Library:
    """A module that is imported when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return self.__dict__.setdefault(attribute, getattr(import_module(self._name), attribute))


bokeh: Any = _Library("bokeh.models")
if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.dataset as pa_dataset
    import pyarrow.fs as pa_fs
    import pyarrow.parquet as pq
    import zstandard
else:
    duckdb, np, pl, zstandard = map(_Library, ("duckdb", "numpy", "polars", "zstandard"))
    pa, pc, pa_csv, pa_dataset, pa_fs, pq = map(
        _Library,
        (
            "pyarrow",
            "pyarrow.compute",
            "pyarrow.csv",
            "pyarrow.dataset",
            "pyarrow.fs",
            "pyarrow.parquet",
        ),
    )
