"""The public functions of kvdistill that query tables with SQL, and how sources are named.

A query needs few of the libraries of jobs and reports, which take long to import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvdistill.queries.database import open_connection, register
from kvdistill.queries.sql import NamedQuery, Shell, named_query, opened_shell, run_statement
from kvdistill.queries.sql import named_queries as list_named_queries
from kvtrace.core import pa
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.remote import local_path
from kvtrace.core.temporary import TemporaryFolder

if TYPE_CHECKING:
    import duckdb


class HasPath(Protocol):
    """An object with a path, such as a trace of kvtrace or a run of kvreplay."""

    @property
    def path(self) -> Path:
        """The trace's file, or the run's folder."""


Source = str | Path | HasPath
"""A trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json."""


def path_of(source: Source) -> Path:
    """Return the local path of `source`, which may be a trace in S3."""
    return local_path(source) if isinstance(source, str | Path) else Path(source.path)


def connect(*sources: Source) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with a view of each kind of table in `sources`.

    Views are trace, objects, requests, ops, served, series, blocks, runs, tiers and probes, if the
    files hold them. `measured` is `ops`, and `measured_requests` `served`, without the
    operations of a run's warm-up. Times are in ns, sizes in bytes; each row's `origin` is its run's
    folder or its file. `percentile(x, 0.99)` is by nearest rank. Memory is bounded at half of what is
    available; larger queries spill into a temporary folder that is removed at the end of the process.

    `sources` are files, folders (recursive), glob patterns, or traces and runs with a `path`; a
    trace may also be a dataset's folder, or in S3 (s3://bucket/key). Of a dataset, a condition on
    ts_ns reads only the parts and row groups that can have such rows.

    Raises ConfigError if a folder holds no table, a pattern matches no file, or there are figures
    only. Raises TraceError if a file is missing, damaged or not a table of kvtrace.

    Examples:
        >>> db = kvdistill.connect("trace.parquet")
        >>> db.sql("SELECT op::VARCHAR, count(*) FROM trace WHERE tier = 'nvme' GROUP BY ALL"
        ...        " ORDER BY ALL").fetchall()
        [('delete', 1), ('read', 5), ('write', 3)]
    """
    if not sources:
        raise ConfigError("name at least one trace, run or table to connect to")
    paths = [path_of(source) for source in sources]
    folder = TemporaryFolder("kvdistill-")
    connection = open_connection(folder.path)
    if not register(connection, paths, folder.path):
        raise ConfigError(f"{paths[0]}: holds figures only, and no rows; use kvdistill.report")
    # A query may outlive its connection, so the folder is removed at the end of the process.
    _FOLDERS.append(folder)
    return connection


_FOLDERS: list[TemporaryFolder] = []
"""Folders that connections read from and spill into."""


def named_queries() -> list[NamedQuery]:
    """Return the SQL queries of the library: their names, what they answer, the views they read.

    Examples:
        >>> [
        ...     query.needs
        ...     for query in kvdistill.named_queries()
        ...     if query.name == "slowest_operations"
        ... ]
        [['measured']]
    """
    return list_named_queries()


@contextmanager
def run_query(
    *sources: Source, sql: str | None = None, name: str | None = None
) -> Iterator[pa.RecordBatchReader]:
    """Yield the result of one SQL statement over `sources` as a stream of Arrow batches.

    `sql` is the statement, or `name` that of a query of `named_queries`. The views are those of
    `connect`. The statement can read these sources only, and cannot write.

    Raises ConfigError if the text is not one statement, DuckDB rejects it, or a view is missing;
    TraceError if a file is damaged or not a table of kvtrace.

    Examples:
        >>> with kvdistill.run_query(
        ...     "trace.parquet", sql="SELECT count(*) AS n FROM trace"
        ... ) as batches:
        ...     print(batches.read_all().to_pylist()[0]["n"] > 0)
        True
    """
    if (sql is None) == (name is None):
        raise ConfigError(f"give either {named('sql')} or {named('name')}")
    query = None if name is None else named_query(name)
    statement, needs = (sql or "", ()) if query is None else (query.sql, query.needs)
    with run_statement([path_of(source) for source in sources], statement, needs) as batches:
        yield batches


@contextmanager
def open_shell(*sources: Source) -> Iterator[Shell]:
    """Yield a shell that runs statements one after another over the views of `sources`.

    Tables, views and macros that a statement creates are kept in memory until the end. Statements
    can read these sources only, and cannot write.

    Raises TraceError if a file is damaged or not a table of kvtrace.

    Examples:
        >>> with kvdistill.open_shell("trace.parquet") as shell:
        ...     shell.run("SELECT 1 AS one;", lambda batches: print(batches.read_all().to_pylist()))
        [{'one': 1}]
    """
    with opened_shell([path_of(source) for source in sources]) as shell:
        yield shell
