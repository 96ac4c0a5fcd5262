"""Documents on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from kvtrace.core.document import terminal
from kvtrace.core.document.document import Chapter, Document, Sheet, parameters


def shown(monkeypatch, *, is_terminal):
    out = io.StringIO()
    monkeypatch.setattr(terminal, "_console", lambda: Console(file=out, force_terminal=is_terminal, no_color=True))
    table = parameters("Facts", Sheet.SUMMARY, {"a": "b"})
    terminal.show_documents([Document("name", "the answer", chapters=[Chapter("", [table])])])
    return [line.strip() for line in out.getvalue().splitlines() if line.strip()]


def test_on_a_terminal_the_answer_is_the_first_line_and_the_last(monkeypatch):
    lines = shown(monkeypatch, is_terminal=True)
    assert "the answer" in lines[1]
    assert "the answer" in lines[-1]
    assert sum("the answer" in line for line in shown(monkeypatch, is_terminal=False)) == 1
