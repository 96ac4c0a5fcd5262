"""The shell of `kvdistill sql`: statements from stdin, answers on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kvtrace.core import pa
from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import printable

_LEAVE = (".quit", ".exit", "quit", "exit")


def open_shell(paths: Sequence[Path], show: Callable[[pa.RecordBatchReader], None]) -> None:
    """Run statements from stdin, each up to a semicolon, and `show` every result.

    Errors are one line on stderr.

    TraceError if a file is damaged or not a table of kvtrace.
    """
    import kvdistill

    is_terminal = sys.stdin.isatty()
    with suppress(ImportError):
        # readline adds editing and history to input().
        import readline  # noqa: F401
    with kvdistill.open_shell(*paths) as shell:
        if is_terminal:
            log(
                f"views: {', '.join(shell.names)}; a statement ends with a semicolon, the shell"
                " with Ctrl-D"
            )
        text, is_over, has_statement = "", False, False
        while not is_over:
            try:
                line = input(("   ... " if text else "sql> ") if is_terminal else "")
            except EOFError:
                line, is_over = ";", True
            text += f"{line}\n"
            if text.strip() in _LEAVE:
                return
            if not line.rstrip().endswith(";"):
                continue
            has_statement = has_statement or bool(text.strip("; \n"))
            try:
                shell.run(text, show)
            except ConfigError as error:
                sys.stderr.write(f"{printable(str(error))}\n")
            text = ""
    if not has_statement and not is_terminal:
        raise ConfigError("no SQL statement was given, and standard input is empty")
