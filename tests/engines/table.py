"""The table of docs/validation.md that `make engines` writes, so that no figure in it is copied by
hand.
"""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "validation.md"
BEGIN, END = "<!-- written by make engines -->", "<!-- end -->"
HEAD = [
    "| preset | engine | requests | writes real / ours | reads | deletes | differs |",
    "|---|---|---|---|---|---|---|",
]
Row = tuple[str, str, str, str, str, str, str]


def pair(real: int, ours: int) -> str:
    """Return two counts as the table has them."""
    return f"{real:,} / {ours:,}"


def merged(text: str, rows: list[Row]) -> str:
    """Return the page `text` with `rows` in its table.

    Rows of what was not run now stay as they were.
    """
    before, _, rest = text.partition(BEGIN + "\n")
    table, _, after = rest.partition(END)
    found: dict[tuple[str, ...], str] = {}
    for line in table.splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if line.startswith("|") and line not in HEAD:
            found[cells[0], cells[1].split(" ")[0], cells[2]] = line
    for row in rows:
        found[row[0], row[1].split(" ")[0], row[2]] = "| " + " | ".join(row) + " |"
    return before + BEGIN + "\n" + "\n".join([*HEAD, *found.values()]) + "\n" + END + after


def write(rows: list[Row]) -> None:
    """Put `rows` into the page."""
    PAGE.write_text(merged(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
