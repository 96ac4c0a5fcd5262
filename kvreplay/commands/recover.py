"""Make a run of what a killed replay had measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvreplay.commands.options import RunAsJson
from kvreplay.commands.run import show_run


def recover(
    run: Annotated[Path, typer.Argument(help="The directory of a run that was killed, of one rank or several.")],
    trace: Annotated[Path | None, typer.Option(help="The trace it replayed, if that lies elsewhere now.")] = None,
    as_json: RunAsJson = False,
) -> None:
    """Make a run, marked partial, of what a killed one had measured.

    While a run goes on it notes every second or few what has ended; of a killed run the last may be missing.
    Files that it left on its target are removed by the next run there. Of a run with --mpi the ranks that were killed
    are recovered, and all are put together.

    \b
    Example:
      kvreplay recover run
    """
    from kvreplay.mpi import recover as of_ranks
    from kvreplay.run import recover as recovering

    finished = of_ranks.recover(run) if of_ranks.is_of_ranks(run) else recovering.recover(run, trace)
    show_run(finished, f"wrote {run}: {finished.error or 'all ranks together'}", as_json=as_json)
