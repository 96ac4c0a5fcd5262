"""Documents on a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from kvtrace.core.document import terminal
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    parameters,
    table_of,
)


def shown(monkeypatch, *, is_terminal):
    out = io.StringIO()
    monkeypatch.setattr(
        terminal, "_console", lambda: Console(file=out, force_terminal=is_terminal, no_color=True)
    )
    table = parameters("Facts", Sheet.SUMMARY, {"a": "b"})
    terminal.show_documents([Document("name", "the answer", chapters=[Chapter("", [table])])])
    return [line.strip() for line in out.getvalue().splitlines() if line.strip()]


def test_no_figure_is_cut_where_the_terminal_is_narrow(monkeypatch):
    """In 80 columns rates of wide tables lost their units and last digits, and names were not there
    at all.
    """
    out = io.StringIO()
    monkeypatch.setattr(
        terminal,
        "_console",
        lambda: Console(file=out, force_terminal=True, no_color=True, width=40),
    )
    spec = [
        ReportColumn("tier"),
        ReportColumn("holds", ""),
        ReportColumn("read", "read from it", Unit.BYTES_PER_S),
        ReportColumn("p99", "p99 of per-second rate", Unit.BYTES_PER_S),
        ReportColumn("hits", unit=Unit.SHARE),
        ReportColumn("n", unit=Unit.COUNT),
    ]
    rows = [
        ["nvme", "what a chunk of tokens leaves there", 95.5e6, 246e6, 0.7322, 1_234_567],
        ["cpu"] + [None] * 5,
    ]
    terminal.show_tables([table_of("bandwidth", Sheet.SUMMARY, spec, rows)])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    (row,) = (line for line in lines if "95.5" in line)
    assert row.split()[0] == "nvme"
    assert row.split()[-6:] == ["MB/s", "246", "MB/s", "73.22", "%", "1,234,567"]
    assert {"from", "per-second", "rate"} <= set(" ".join(lines).split())


def test_a_terminal_shows_the_answer_first_and_last(monkeypatch):
    lines = shown(monkeypatch, is_terminal=True)
    assert "the answer" in lines[1]
    assert "the answer" in lines[-1]
    assert sum("the answer" in line for line in shown(monkeypatch, is_terminal=False)) == 1
