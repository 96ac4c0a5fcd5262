"""Notes on what a source did with a file."""

from __future__ import annotations

import msgspec


def counted(*counts: tuple[int, str]) -> list[str]:
    """Return a note for each of `counts` that is not 0, which begins with the count."""
    return [f"{count} {text}" for count, text in counts if count]


def unused_notes(fields: set[str], used: type[msgspec.Struct]) -> list[str]:
    """Return a note on the `fields` of a file's rows that `used` lacks; empty if there are none."""
    unused = sorted(fields.difference(used.__struct_fields__))
    return [f"fields of the file that are not used: {', '.join(unused)}"] if unused else []


def backwards_notes(times: int) -> list[str]:
    """Return a note on times that go backwards; empty if `times` is 0."""
    return (
        [f"times went backwards {times} times: the requests were sorted by arrival"]
        if times
        else []
    )
