"""Look at this machine before a replay."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtrace.core.app import emit_json


def discover(as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False) -> None:
    """Say what this machine has for a replay, what would spoil one, and settings to start from.

    \b
    Example:
      kvreplay discover
    """
    from kvreplay.run import discover as discovering
    from kvreplay.run.document import machine_document
    from kvtrace.core.document.terminal import show_documents

    found = discovering.discover()
    if as_json:
        emit_json(found)
    else:
        show_documents([machine_document(found)])
