"""Pages of the documentation as a reader runs them: their commands in order, and what each block printed.

A block ```sh holds commands. A block ```text after it is what its last command printed: exactly, unless it is
marked ```text measured, where the figures are of one machine.
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
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, what the last one printed by the page (None: the page does not say), and where that stands in it."""

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
                commands=[line for line in block[3].splitlines() if line.strip() and not line.startswith("#")],
                needs=frozenset(needs[1].split(",")) if needs else frozenset(),
                shown=None if after is None else after[3],
                is_measured=after is not None and "measured" in after[2],
                place=None if after is None else after.span(3),
            )
        )
    return found


def run(line: str, cwd: Path) -> str:
    """Run a command line as a reader does, with our programs on the path; return what it printed."""
    env = {**MPI_AS_ROOT, **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    done = subprocess.run(  # noqa: S602 - as a reader does
        line, shell=True, cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout
