"""The registry of foreign formats: each by name, the function that reads it, and what that returns.

What a format does not carry is null; what does not fit is counted and told. A reader is
`read(files, options, db) -> Imported`; the connection is the import's own, and stays open until its
rows are written.
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
"""The versions of fio's iolog, by their times."""


class Format(StrEnum):
    """What can be imported: its name, and the function that reads it."""

    reader: str
    """The module beside this one, and its name there."""
    SAI3 = "sai3", "oplog:read"
    WARP = "warp", "oplog:read"
    FIO_JSON = "fio-json", "fio_json:read_results"
    FIO_LOG = "fio-log", "fio:read_logs"
    FIO_IOLOG = "fio-iolog", "fio:read_iolog"
    BPFTRACE = "bpftrace", "blocktrace:read_bpftrace"
    BLKPARSE = "blkparse", "blocktrace:read_blkparse"
    VLLM_BENCH = "vllm-bench", "bench:read_vllm"
    AIPERF = "aiperf", "aiperf:read_aiperf"
    LMCACHE_BENCH = "lmcache-bench", "bench:read_lmcache"
    BLOCKS = "blocks", "blocktrace:read_blocks"

    def __new__(cls, name: str, reader: str) -> Self:
        """Return the member called `name`."""
        member = str.__new__(cls, name)
        member._value_, member.reader = name, reader
        return member


class Account(msgspec.Struct, kw_only=True):
    """The result of an import: files that were written, rows that were read, kept and left out."""

    files: list[str] = []
    rows_read: int = 0
    rows_kept: int = 0
    left_out: dict[str, int] = {}
    """By reason."""
    examples: dict[str, str] = {}
    """By reason, where the first one stands and what it says."""
    notes: list[str] = []
    """What the reader of the tables must know."""

    def leave_out(self, reason: str, count: int, example: str) -> None:
        """Count rows that are left out for `reason`; `example` is the first."""
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + count
            self.examples.setdefault(reason, example)

    def lines(self) -> list[str]:
        """Return notes and what was left out, for provenance."""
        return [
            *self.notes,
            *(
                f"left out: {counted(n, 'row')}: {of} (first: {self.examples[of]})"
                for of, n in self.left_out.items()
            ),
        ]


@dataclass(frozen=True, slots=True)
class Rows:
    """One table to write.

    The rows that `query` gives over the import's connection; a column that it lacks is null.
    """

    file: str
    table: Table
    query: str


OTHER_ENGINE = EngineNote(name="other", queue_depth=None, io_bytes=None)
"""A program that is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFacts:
    """More of run.json that a format knows."""

    status: str = COMPLETE
    reason: str | None = None
    """Why it is not complete."""
    host: dict[str, object] = field(default_factory=dict)
    engine: EngineNote = OTHER_ENGINE
    serving: Serving | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of a reader; null is what the format does not carry."""

    account: Account
    rows: list[Rows]
    tiers: list[str]
    summary: Summary | None = None
    """Figures that are no rows, for run.json; null if the rows give them, or there are none."""
    probe: dict[str, object] | None = None
    """The content of probe.json; null if there is none."""
    first_unix_ns: int | None = None
    """When the first row happened; null if the format has no date."""
    facts: ImportedFacts = ImportedFacts()
    config: dict[str, object] = field(default_factory=dict)
    """How it was measured: where two imports differ in it, a comparison says so."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a user chooses; a null name is the format's own."""

    format: Format
    tier: str | None = None


def reader(
    format_: Format,
) -> Callable[[Sequence[Path], ImportOptions, duckdb.DuckDBPyConnection], Imported]:
    """Return the function that reads `format_`; its module is imported only now."""
    module, _, name = format_.reader.partition(":")
    read: Callable[[Sequence[Path], ImportOptions, duckdb.DuckDBPyConnection], Imported]
    read = getattr(import_module(f"kvdistill.formats.{module}"), name)
    return read
