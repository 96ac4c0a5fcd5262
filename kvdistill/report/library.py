"""The library of named queries in `kvdistill/sql/library`: each file's first comment says what it answers."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
    files = [file for file in _folder().iterdir() if file.name.endswith(".sql")]
    return [_read(file) for file in sorted(files, key=lambda file: file.name)]


def named_query(name: str) -> NamedQuery:
    """Return the query called `name`; ConfigError if there is none."""
    found = {query.name: query for query in named_queries()}
    if name not in found:
        close = get_close_matches(name, found, 1)
        meant = f"; did you mean {close[0]}?" if close else ";"
        raise ConfigError(f"--query {name}: no such query{meant} `kvdistill sql --list` names them all")
    return found[name]


def _folder() -> Traversable:
    return resources.files("kvdistill").joinpath("sql", "library")


def _read(file: Traversable) -> NamedQuery:
    text = file.read_text(encoding="utf-8")
    comment = [line.removeprefix("-- ") for line in text.splitlines() if line.startswith("-- ")]
    needs = next(line.removeprefix(_NEEDS).rstrip(".") for line in comment if line.startswith(_NEEDS))
    return NamedQuery(
        name=file.name.removesuffix(".sql"),
        needs=needs.split(", "),
        sql=text,
        answers=" ".join(line for line in comment if not line.startswith(_NEEDS)),
    )
