"""Pages of the documentation as a reader runs them.

Their commands in order, and what each block printed.

A block ```sh holds commands. A block ```text after it is what its last command printed: exactly,
unless it is marked ```text measured, where the figures are of one machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""Open MPI's mpirun asks this of who is root, and for more ranks than there are CPUs."""
_GAP = re.compile(r" {2,}")
_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?(?: ?(\D+))?")
_FAMILIES = {
    **dict.fromkeys(("ns", "µs", "ms", "s"), "time"),
    **dict.fromkeys(("B", "kB", "MB", "GB", "TB"), "bytes"),
    **dict.fromkeys(("B/s", "kB/s", "MB/s", "GB/s"), "bytes a second"),
    **dict.fromkeys(("KiB", "MiB", "GiB"), "length of an I/O"),
}
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """Commands of a page, with the output that the page shows of the last one.

    The output is None where the page shows none.
    """

    commands: list[str]
    needs: frozenset[str]
    """As in ```sh needs=root,fio."""
    shown: str | None
    is_measured: bool
    place: tuple[int, int] | None


def steps_of(text: str) -> list[Step]:
    """Return the steps of the page `text`."""
    blocks = list(_BLOCK.finditer(text))
    found = []
    for at, block in enumerate(blocks):
        if block[1] != "sh":
            continue
        after = blocks[at + 1] if at + 1 < len(blocks) and blocks[at + 1][1] == "text" else None
        needs = re.search(r"needs=([\w,]+)", block[2])
        found.append(
            Step(
                commands=[
                    line
                    for line in block[3].splitlines()
                    if line.strip() and not line.startswith("#")
                ],
                needs=frozenset(needs[1].split(",")) if needs else frozenset(),
                shown=None if after is None else after[3],
                is_measured=after is not None and "measured" in after[2],
                place=None if after is None else after.span(3),
            )
        )
    return found


def run(line: str, cwd: Path) -> str:
    """Run a command line as a reader does, with our programs on the path.

    Return what it printed.
    """
    env = {
        **MPI_AS_ROOT,
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    done = subprocess.run(  # noqa: S602 - as a reader does
        line, shell=True, cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tables_of(text: str) -> dict[str, dict[tuple[str, ...], list[str | None]]]:
    """Return the tables in what a command printed, by their headings.

    Of each row, by its names, its cells' units.

    A table is a line of headings without a figure, two or more, and the lines up to an empty one. A
    unit is the family that the printed one is of; None for what is no number, and for a dash.
    """
    found: dict[str, dict[tuple[str, ...], list[str | None]]] = {}
    rows: dict[tuple[str, ...], list[str | None]] | None = None
    for line in text.splitlines():
        cells = _GAP.split(line.strip())
        if not line.strip():
            rows = None
        elif rows is None:
            # A title of a table, which is one cell, may stand before its headings.
            if len(cells) > 1 and not any(_NUMBER.fullmatch(cell) for cell in cells):
                rows = found.setdefault(" | ".join(cells), {})
        else:
            named = next(
                (at for at, cell in enumerate(cells) if _unit(cell) or cell == "-"), len(cells)
            )
            rows[tuple(cells[:named])] = [_unit(cell) for cell in cells[named:]]
    return found


def _unit(cell: str) -> str | None:
    match = _NUMBER.fullmatch(cell)
    return None if match is None else _FAMILIES.get(match[1] or "", match[1] or "number")
