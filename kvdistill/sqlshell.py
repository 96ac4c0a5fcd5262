"""Answer one SQL statement over our files: read only, with bounded memory, and errors in one line."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvdistill.database import connect, literal, register
from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb
    import pyarrow as pa

BATCH_ROWS = 10_000


@contextmanager
def answer(paths: Sequence[Path], statement: str) -> Iterator[pa.RecordBatchReader]:
    """Yield the result of `statement` over the views of `paths` as a stream of Arrow batches.

    The statement can read nothing but these files and write nothing.

    Raises:
        ConfigError: the statement is not one, or DuckDB refuses it.
        TraceError: a file is damaged or none of ours.

    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="kvdistill-") as folder, connect(Path(folder)) as db:
        views = register(db, paths, Path(folder))
        _lock(db, [file for files in views.values() for file in files])
        try:
            kinds = [found.type for found in db.extract_statements(statement)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise ConfigError("write exactly one SQL statement that reads: SELECT, FROM, DESCRIBE or SUMMARIZE")
            relation = db.sql(statement)
            yield relation.to_arrow_reader(BATCH_ROWS)
        except duckdb.Error as error:
            first = str(error).strip().split("\n")[0]
            raise ConfigError(f"SQL: {first} (views here: {', '.join(views)})") from None


def _lock(db: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    db.execute(f"SET allowed_paths = [{', '.join(literal(file) for file in files)}]")
    db.execute("SET enable_external_access = false")
    db.execute("SET lock_configuration = true")
