"""A run shown while it goes on: a table that is drawn anew on a terminal, else a line now and then; both on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvreplay.run.watching.watch import Look, Watch
from kvtrace.core.app import log
from kvtrace.core.units import format_duration, format_rate

if TYPE_CHECKING:
    # Heavy.
    from rich.console import Group

DRAWN_S, LINE_S = 0.5, 10.0
"""How often: a table, and a line."""


@contextmanager
def live(watch: Watch) -> Iterator[None]:
    """Show `watch` until the context is left."""
    is_over = threading.Event()
    body = _draw if sys.stderr.isatty() else _say
    thread = threading.Thread(target=body, args=(watch, is_over), name="kvreplay-live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _say(watch: Watch, is_over: threading.Event) -> None:
    while not is_over.wait(LINE_S):
        log(line_of(watch.look(), is_open=watch.setting.pacer.speed is not None))


def _draw(watch: Watch, is_over: threading.Event) -> None:
    from rich.console import Console
    from rich.live import Live

    is_open = watch.setting.pacer.speed is not None
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as shown:
        while True:
            shown.update(table_of(watch.look(), is_open=is_open), refresh=True)
            if is_over.wait(DRAWN_S):
                return


def line_of(look: Look, *, is_open: bool) -> str:
    """Return a run at one moment as one line."""
    rates = [
        f"{rate.tier} {rate.op} {format_rate(rate.bytes_per_s)} {_whole(rate.operations_per_s)} op/s"
        for rate in look.rates
    ]
    return "; ".join([_progress(look), *rates, *_times(look, is_open=is_open)])


def table_of(look: Look, *, is_open: bool) -> Group:
    """Return a run at one moment as a table of its tiers, between lines on what is of all."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for heading in ("tier", "op"):
        table.add_column(heading, no_wrap=True)
    for heading in ("bandwidth", "op/s"):
        table.add_column(heading, no_wrap=True, justify="right", min_width=10)
    for rate in look.rates:
        table.add_row(rate.tier, rate.op, format_rate(rate.bytes_per_s), _whole(rate.operations_per_s))
    return Group(Text(_progress(look)), table, Text("; ".join(_times(look, is_open=is_open))))


def _progress(look: Look) -> str:
    left = "" if look.left_ns is None else f", {format_duration(look.left_ns)} left"
    return f"replaying: {look.share:.0%}, {look.completed:,} operations in {format_duration(look.elapsed_ns)}{left}"


def _times(look: Look, *, is_open: bool) -> list[str]:
    what = "response" if is_open else "service"
    in_flight = "-" if look.in_flight is None else look.in_flight
    said = [f"{what} p99 {format_duration(look.response_p99_ns)}", f"in flight {in_flight} of {look.queue_depth}"]
    return [*said, f"late p99 {format_duration(look.late_p99_ns)}"] if is_open else said


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
