"""Answer one SQL statement over our files, read only and with bounded memory.

The user's own or one of the library.

The library is `kvdistill/queries/sql/library`; the comment at the head of each file says what the
query answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from kvdistill.queries.database import connect, damage_of, literal, register
from kvtrace.core import duckdb, pa
from kvtrace.core.config import nearest
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.temporary import temporary_folder

BATCH_ROWS = 10_000


@contextmanager
def run_statement(
    paths: Sequence[Path], statement: str, needs: Sequence[str] = ()
) -> Iterator[pa.RecordBatchReader]:
    """Yield the result of `statement` over `paths` as a stream of Arrow batches.

    The statement can read only these files and cannot write. `needs` are the views that it reads.

    ConfigError if the text is not one statement, DuckDB rejects it, or a view is missing.
    TraceError if a file is damaged or not a table of kvtrace.
    """
    with _opened(paths) as (db, names):
        missing = [name for name in needs if name not in names]
        if missing:
            raise ConfigError(
                f"this query reads the view{'s' if len(missing) > 1 else ''} {', '.join(missing)},"
                f" but the files hold only {', '.join(names)}"
            )
        with _convert_errors(db, names):
            kinds = [parsed.type for parsed in db.extract_statements(statement)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise ConfigError(
                    "write exactly one SQL statement that reads: SELECT, FROM, DESCRIBE or"
                    " SUMMARIZE"
                )
            yield _rename_duplicates(db.sql(statement).to_arrow_reader(BATCH_ROWS))


@contextmanager
def _opened(paths: Sequence[Path]) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
    """Yield a connection that can read only `paths` and write no file, with its view names."""
    with temporary_folder("kvdistill-") as folder, connect(folder) as db:
        if not (views := register(db, paths, folder)):
            raise ConfigError(f"{paths[0]}: holds figures only, and no rows; use kvdistill report")
        allowed = ", ".join(literal(file) for files in views.values() for file in files)
        db.execute(f"SET allowed_paths = [{allowed}]")
        db.execute("SET enable_external_access = false")
        db.execute("SET lock_configuration = true")
        yield db, list(views)


@contextmanager
def _convert_errors(db: duckdb.DuckDBPyConnection, names: Sequence[str]) -> Iterator[None]:
    """Convert errors of DuckDB to a ConfigError that lists the views, or to that of a damaged file."""
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.InterruptException):
        # `connect` converts the first, and the command line ends at the second.
        raise
    except duckdb.Error as error:
        if (damage := damage_of(db)) is not None:
            raise damage from None
        # DuckDB's last lines repeat the statement.
        message = " ".join(str(error).partition("\nLINE ")[0].split())
        raise ConfigError(f"SQL: {message} (views here: {', '.join(names)})") from None


def _rename_duplicates(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Rename duplicate columns, as of a join, to NAME, NAME_1 and so on."""
    fields: dict[str, pa.Field] = {}
    for field in reader.schema:
        candidates = (
            f"{field.name}_{count}" if count else field.name for count in itertools.count()
        )
        name = next(name for name in candidates if name not in fields)
        fields[name] = field.with_name(name)
    renamed_batches = (batch.rename_columns(list(fields)) for batch in reader)
    return pa.RecordBatchReader.from_batches(pa.schema(fields.values()), renamed_batches)


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs statements one after another over the views of some files.

    Tables, views and macros that a statement creates are kept in memory until the end.
    """

    connection: duckdb.DuckDBPyConnection
    names: list[str]
    """Names of the views."""

    def run(self, text: str, show: Callable[[pa.RecordBatchReader], None]) -> None:
        """Run the statements in `text`, and `show` the result of each SELECT.

        ConfigError if DuckDB rejects one, also while its result is read.
        """
        with _convert_errors(self.connection, self.names):
            for statement in self.connection.extract_statements(text):
                if statement.type == duckdb.StatementType.SELECT:
                    relation = self.connection.sql(statement.query)
                    show(_rename_duplicates(relation.to_arrow_reader(BATCH_ROWS)))
                else:
                    self.connection.execute(statement)


@contextmanager
def opened_shell(paths: Sequence[Path]) -> Iterator[Shell]:
    """Yield a shell over the views of `paths`.

    TraceError if a file is damaged or not a table of kvtrace.
    """
    with _opened(paths) as (connection, names):
        yield Shell(connection, names)


_NEEDS = "Needs: "


class NamedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One query of the library."""

    name: str
    answers: str
    """The question that it answers, in one or two sentences."""
    needs: list[str]
    """The views that it reads."""
    sql: str


def named_queries() -> list[NamedQuery]:
    """Return the library, by name."""
    queries = []
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
        queries.append(NamedQuery(name=name, needs=needs.split(", "), sql=text, answers=answers))
    return queries


def named_query(name: str) -> NamedQuery:
    """Return the query called `name`; ConfigError if there is none."""
    queries = {query.name: query for query in named_queries()}
    if name not in queries:
        suggestion = nearest(name, queries) or ";"
        raise ConfigError(
            f"{named('query', name)}: no such query{suggestion} `kvdistill sql --list` lists them"
        )
    return queries[name]
