"""Answer one SQL statement over our files, read only and with bounded memory.

The user's own or one of the library.

The library is `kvdistill/queries/sql/library`; the comment at the head of each file says what the
query answers.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from kvdistill.queries.database import connect, literal, register
from kvtrace.core import duckdb, pa
from kvtrace.core.config import nearest
from kvtrace.core.errors import ConfigError

BATCH_ROWS = 10_000


def split_query(arguments: Sequence[str]) -> tuple[list[Path], str | None]:
    """Return the files of a command line, and the SQL that may be its last argument.

    SQL is what is no file and has a space in it, or nothing at all.
    """
    if not arguments:
        return [], None
    last = arguments[-1]
    is_sql = (not last or any(c.isspace() for c in last)) and not Path(last or "/").is_file()
    return [Path(name) for name in (arguments[:-1] if is_sql else arguments)], (
        last if is_sql else None
    )


@contextmanager
def answer(
    paths: Sequence[Path], statement: str, needs: Sequence[str] = ()
) -> Iterator[pa.RecordBatchReader]:
    """Yield the result of `statement`, which reads the views `needs`, over `paths` as a stream of
    Arrow batches.

    The statement can read nothing but these files and write nothing.

    ConfigError if the statement is not one, DuckDB refuses it, or a view is missing. TraceError if
    a file is damaged or none of ours.
    """
    with _opened(paths) as (db, names):
        missing = [name for name in needs if name not in names]
        if missing:
            raise ConfigError(
                f"this query reads the view{'s' if len(missing) > 1 else ''} {', '.join(missing)},"
                f" but the files hold only {', '.join(names)}"
            )
        with _refusals(names):
            kinds = [found.type for found in db.extract_statements(statement)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise ConfigError(
                    "write exactly one SQL statement that reads: SELECT, FROM, DESCRIBE or"
                    " SUMMARIZE"
                )
            yield _told_apart(db.sql(statement).to_arrow_reader(BATCH_ROWS))


@contextmanager
def _opened(paths: Sequence[Path]) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
    """Yield a connection that can read nothing but `paths` and write no file, and the names of its
    views.
    """
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as folder, connect(Path(folder)) as db:
        if not (views := register(db, paths, Path(folder))):
            raise ConfigError(f"{paths[0]}: figures only, no rows to query; use kvdistill report")
        allowed = ", ".join(literal(file) for files in views.values() for file in files)
        db.execute(f"SET allowed_paths = [{allowed}]")
        db.execute("SET enable_external_access = false")
        db.execute("SET lock_configuration = true")
        yield db, list(views)


@contextmanager
def _refusals(names: Sequence[str]) -> Iterator[None]:
    """Raise ConfigError, which lists the views, for what DuckDB refuses."""
    try:
        yield
    except duckdb.OutOfMemoryException:
        # `connect` says it.
        raise
    except duckdb.Error as error:
        # The last lines repeat the statement, with a mark.
        said = " ".join(str(error).partition("\nLINE ")[0].split())
        raise ConfigError(f"SQL: {said} (views here: {', '.join(names)})") from None


def _told_apart(answered: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return `answered` with columns of one name, as a join has them, called NAME, NAME_1 and so
    on.
    """
    fields: dict[str, pa.Field] = {}
    for field in answered.schema:
        free = (f"{field.name}_{count}" if count else field.name for count in itertools.count())
        name = next(name for name in free if name not in fields)
        fields[name] = field.with_name(name)
    named = (batch.rename_columns(list(fields)) for batch in answered)
    return pa.RecordBatchReader.from_batches(pa.schema(fields.values()), named)


@dataclass(frozen=True, slots=True)
class Shell:
    """Answers statements one after another over the views of some files.

    Tables, views and macros that a statement makes are kept in memory until the end.
    """

    connection: duckdb.DuckDBPyConnection
    names: list[str]
    """Of the views."""

    def run(self, text: str, show: Callable[[pa.RecordBatchReader], None]) -> None:
        """Run the statements in `text`, and `show` the result of each that reads.

        ConfigError if DuckDB refuses one, also while its result is read.
        """
        with _refusals(self.names):
            for statement in self.connection.extract_statements(text):
                if statement.type == duckdb.StatementType.SELECT:
                    found = self.connection.sql(statement.query)
                    show(_told_apart(found.to_arrow_reader(BATCH_ROWS)))
                else:
                    self.connection.execute(statement)


@contextmanager
def opened_shell(paths: Sequence[Path]) -> Iterator[Shell]:
    """Yield what answers statements over the views of `paths`.

    TraceError if a file is damaged or none of ours.
    """
    with _opened(paths) as (connection, names):
        yield Shell(connection, names)


_NEEDS = "Needs: "


class NamedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One query of the library."""

    name: str
    answers: str
    """What it answers, in a sentence or two."""
    needs: list[str]
    """The views that it reads."""
    sql: str


def named_queries() -> list[NamedQuery]:
    """Return the library, by name."""
    found = []
    folder = resources.files("kvdistill.queries").joinpath("sql", "library")
    for file in sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    ):
        text = file.read_text(encoding="utf-8")
        comment = [line.removeprefix("-- ") for line in text.splitlines() if line.startswith("-- ")]
        needs = next(
            line.removeprefix(_NEEDS).rstrip(".") for line in comment if line.startswith(_NEEDS)
        )
        answers = " ".join(line for line in comment if not line.startswith(_NEEDS))
        name = file.name.removesuffix(".sql")
        found.append(NamedQuery(name=name, needs=needs.split(", "), sql=text, answers=answers))
    return found


def named_query(name: str) -> NamedQuery:
    """Return the query called `name`; ConfigError if there is none."""
    found = {query.name: query for query in named_queries()}
    if name not in found:
        meant = nearest(name, found) or ";"
        raise ConfigError(
            f"--query {name}: no such query{meant} `kvdistill sql --list` names them all"
        )
    return found[name]
