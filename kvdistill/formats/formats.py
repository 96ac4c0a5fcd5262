"""The registry of foreign formats: names, reader functions, and the result of a reader.

A figure that a format does not hold is null; rejected rows are counted and reported. A reader is
`read(files, options, db) -> Imported`. The connection belongs to the import, and stays open until
its rows are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Self

import msgspec
from msgspec import UNSET, UnsetType

from kvtrace.core import duckdb
from kvtrace.core.run.figures import Serving, Summary
from kvtrace.core.run.run_builder import COMPLETE
from kvtrace.core.run.run_file import EngineNote
from kvtrace.core.schema import Table
from kvtrace.core.units import counted

ABSOLUTE, RELATIVE = 2, 3
"""The versions of fio's iolog with absolute and relative times."""
FIO_TIER = "fio"
"""The tier of imported fio logs, unless the user names another."""


class Format(StrEnum):
    """A format that can be imported, with its reader."""

    reader: str
    """Module in this package, and function of the reader."""
    SAI3 = "sai3", "oplog:read"
    WARP = "warp", "oplog:read"
    FIO_JSON = "fio-json", "fio_json:read_results"
    FIO_LOG = "fio-log", "fio_logs:read_logs"
    FIO_IOLOG = "fio-iolog", "fio_iolog:read_iolog"
    BPFTRACE = "bpftrace", "blocktrace:read_bpftrace"
    BLKPARSE = "blkparse", "blocktrace:read_blkparse"
    VLLM_BENCH = "vllm-bench", "vllm_bench:read_vllm"
    AIPERF = "aiperf", "aiperf:read_aiperf"
    LMCACHE_BENCH = "lmcache-bench", "lmcache_bench:read_lmcache"
    LMCACHE_L2 = "lmcache-l2", "lmcache_l2:read_l2_trace"
    BLOCKS = "blocks", "blocktrace:read_blocks"

    def __new__(cls, name: str, reader: str) -> Self:
        """Return the member called `name`."""
        member = str.__new__(cls, name)
        member._value_, member.reader = name, reader
        return member


class Account(msgspec.Struct, kw_only=True):
    """The account of an import: files written; rows read, accepted and rejected."""

    files: list[str] = []
    rows_read: int = 0
    rows_kept: int = 0
    left_out: dict[str, int] = {}
    """Rejected rows by reason."""
    examples: dict[str, str] = {}
    """The first rejected row by reason, with its position."""
    notes: list[str] = []
    """Notes for readers of the tables."""

    def leave_out(self, reason: str, count: int, example: str) -> None:
        """Count rows rejected for `reason`; `example` is the first of them."""
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + count
            self.examples.setdefault(reason, example)

    def lines(self) -> list[str]:
        """Return notes and rejected rows, for the provenance."""
        return [
            *self.notes,
            *(
                f"left out: {counted(count, 'row')}: {reason} (first: {self.examples[reason]})"
                for reason, count in self.left_out.items()
            ),
        ]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table to write: the rows of `query` over the import's connection.

    A missing column is null.
    """

    file: str
    table: Table
    query: str


OTHER_ENGINE = EngineNote(name="other", queue_depth=None, io_bytes=None)
"""The engine of another program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFacts:
    """Further fields of run.json that a format holds."""

    status: str = COMPLETE
    reason: str | None = None
    """Reason if the run is not complete."""
    host: dict[str, object] = field(default_factory=dict)
    engine: EngineNote = OTHER_ENGINE
    serving: Serving | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of a reader; a figure that the format does not hold is null."""

    account: Account
    rows: list[Rows]
    tiers: list[str]
    summary: Summary | None = None
    """Figures for run.json; null if they are computed from the rows, or there are none."""
    probe: dict[str, object] | None = None
    """The content of probe.json; null if there is none."""
    first_unix_ns: int | None = None
    """Time of the first row; null if the format has no date."""
    facts: ImportedFacts = ImportedFacts()
    config: dict[str, object] = field(default_factory=dict)
    """Settings of the measurement; a comparison lists their differences."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import; a null tier is named by the format."""

    format: Format
    tier: str | None = None


def reader(
    format_: Format,
) -> Callable[[Sequence[Path], ImportOptions, duckdb.DuckDBPyConnection], Imported]:
    """Return the reader of `format_`, and import its module."""
    module, _, name = format_.reader.partition(":")
    read: Callable[[Sequence[Path], ImportOptions, duckdb.DuckDBPyConnection], Imported]
    read = getattr(import_module(f"kvdistill.formats.{module}"), name)
    return read
