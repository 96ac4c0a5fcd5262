"""The shell of `kvdistill sql`: statements from stdin, answers on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kvdistill.queries.sql import opened_shell
from kvtrace.core import pa
from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import printable

_LEAVE = (".quit", ".exit", "quit", "exit")


def open_shell(paths: Sequence[Path], show: Callable[[pa.RecordBatchReader], None]) -> None:
    """Read statements up to a semicolon each from stdin, over the views of `paths`, and `show`
    every answer.

    What is refused is a line on stderr.

    TraceError if a file is damaged or none of ours.
    """
    is_asked = sys.stdin.isatty()
    with suppress(ImportError):
        # With it, lines can be edited and called back.
        import readline  # noqa: F401
    with opened_shell(paths) as shell:
        if is_asked:
            log(
                f"views: {', '.join(shell.names)}; a statement ends with a semicolon, the shell"
                " with Ctrl-D"
            )
        text, is_over = "", False
        while not is_over:
            try:
                line = input(("   ... " if text else "sql> ") if is_asked else "")
            except EOFError:
                line, is_over = ";", True
            text += f"{line}\n"
            if text.strip() in _LEAVE:
                return
            if not line.rstrip().endswith(";"):
                continue
            try:
                shell.run(text, show)
            except ConfigError as error:
                sys.stderr.write(f"{printable(str(error))}\n")
            text = ""
