"""A run while it goes on.

Totals and rates of the last seconds, shown on stderr or served as OpenMetrics.

Nothing is asked of the engine: once a second the journal collects the rows that have ended, and hands them on.
`live` draws a table on a terminal, else a line now and then; `serving` is `--metrics`, by
prometheus_client.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.engine.setting import Setting
from kvreplay.plan.row_ring import JOURNAL
from kvtrace.core.app import QUIET, log
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, how_to_add
from kvtrace.core.native.structs import Structure
from kvtrace.core.schema import Op
from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.core.units import NS_PER_S, format_count, format_duration, format_rate, per_second

if TYPE_CHECKING:
    from rich.console import Group


LAST_NS = 5 * NS_PER_S
"""Length of the sliding window that a live view calls "the last seconds"."""
BOUNDS_NS = tuple(16_000 << power for power in range(22))
"""Upper bounds of the histogram of response times: 16 µs to 34 s, doubling."""
_OPS = tuple(op.value for op in Op)
_KEPT = 1024
"""Limit of the latencies kept per sample, taken evenly.

A fast run is sampled a hundred times a second.
"""
_COUNTS = np.dtype([(name, np.int64) for name in ("operations", "errors", "bytes", "response_ns")])
_TOTALS = np.dtype([*_COUNTS.descr, ("buckets", np.int64, len(BOUNDS_NS) + 1)])
"""Completions so far of one kind of operation on one tier.

Response times, in a closed loop service times, are added up and counted by BOUNDS_NS, those beyond
all at the end; not cumulative.
"""


@dataclass(frozen=True, slots=True)
class LiveRate:
    """Rates of one kind of operation on one tier in the last seconds; null where not known yet."""

    tier: str
    op: str
    bytes_per_s: float | None
    operations_per_s: float | None


@dataclass(frozen=True, slots=True)
class Look:
    """A run at one moment."""

    elapsed_ns: int
    completed: int
    """Operations, of all that are planned or that the time admits."""
    share: float
    """Completed share of the rows, or of --duration."""
    left_ns: int | None
    """Estimated remaining time, from `share` and the elapsed time; null at first and above a day."""
    in_flight: int | None
    queue_depth: int
    rates: list[LiveRate]
    response_p99_ns: int | None
    """p99 over the last seconds, of service times in a closed loop; null below 100 operations."""
    late_p99_ns: int | None
    """The same of submission after the due time; null in a closed loop."""


_MOST_LEFT_NS = 86_400 * NS_PER_S


class Watch:
    """The progress of a run; `note` is called by one thread, the rest by others."""

    def __init__(self, setting: Setting, is_open_loop: bool) -> None:
        """Watch the run of `setting`, which begins now."""
        self.setting = setting
        self._kinds: dict[tuple[str, str], int] = {}
        """Index of each tier and operation in the totals."""
        self._totals: np.ndarray = np.zeros(len(setting.tiers) * len(_OPS), _TOTALS)
        self.counters = Structure(
            JOURNAL,
            "Watched",
            totals=np.zeros(len(self._totals), _COUNTS),
            buckets=np.zeros((len(self._totals), len(BOUNDS_NS) + 1), np.int64),
            bound=np.array(BOUNDS_NS),
            response_ns=np.zeros(_KEPT, np.int64),
            late_ns=np.zeros(_KEPT, np.int64),
            bounds=len(BOUNDS_NS),
            room=_KEPT,
            step=1,
            is_open_loop=is_open_loop,
        )
        """Rows are put there as they end, by one thread, which then calls `note`."""
        self.in_flight: Callable[[], int] | None = None
        """Set by the engine; its counter can be read at any time."""
        self.completed = 0.0
        """Rows; set by the engine now and then."""
        self._is_open = is_open_loop
        self._simulated = {t.name for t in setting.tiers if t is not None and t.is_simulated}
        self._timeless = {t.name for t in setting.tiers if t is not None and not t.has_times}
        self._lock = threading.Lock()
        self._looks: deque[
            tuple[int, dict[tuple[str, str], tuple[int, int]], np.ndarray | None, np.ndarray | None]
        ] = deque()
        for index, op in np.argwhere(setting.window.facts.kinds["rows"]).tolist():
            tier = setting.tiers[index]
            if tier is not None:
                self._kinds[tier.name, _OPS[op]] = index * len(_OPS) + op
        self.begin()

    def begin(self) -> None:
        """Start the clock of the run."""
        with self._lock:
            self._started_ns = monotonic_ns()
            self._looks.clear()
            self._looks.append((self._started_ns, self._counts(), None, None))

    def note(self) -> None:
        """Record the increase of the counters since the last call."""
        totals, buckets = self.counters.arrays["totals"], self.counters.arrays["buckets"]
        times, late = (
            self.counters.arrays[name][: self.counters.sampled].copy()
            for name in ("response_ns", "late_ns")
        )
        with self._lock:
            for name in _COUNTS.names or ():
                self._totals[name] += totals[name]
            self._totals["buckets"] += buckets
            now = monotonic_ns()
            self._looks.append((now, self._counts(), times, late if self._is_open else None))
            while len(self._looks) > 2 and self._looks[1][0] < now - LAST_NS:  # noqa: PLR2004 - a start and an end
                self._looks.popleft()
        totals.fill(0)
        buckets.fill(0)
        self.counters.set(sampled=0, seen=0, step=1)

    def snapshot(self) -> dict[tuple[str, str], Any]:
        """Return a consistent snapshot of the completions by tier and operation, records of
        _TOTALS.
        """
        with self._lock:
            totals = self._totals.copy().view(np.recarray)
        return {key: totals[index] for key, index in self._kinds.items()}

    def look(self) -> Look:
        """Return the run as it stands."""
        with self._lock:
            looks, started_ns = list(self._looks), self._started_ns
        elapsed = monotonic_ns() - started_ns
        runtime_ns = self.setting.config.runtime_ns
        rows = self.setting.window.planned_rows
        share = min(1.0, elapsed / runtime_ns if runtime_ns else self.completed / max(1, rows))
        remaining = (
            runtime_ns - elapsed
            if runtime_ns
            else int(elapsed / share - elapsed)
            if share
            else None
        )
        (first_ns, first, *_), (last_ns, last, *_) = looks[0], looks[-1]
        passed, rates = last_ns - first_ns, []
        for tier, op in self._kinds:
            operations, traffic = (last[tier, op][i] - first[tier, op][i] for i in (0, 1))
            # Where nothing takes time, no bytes move: a run's figures have no bandwidth either.
            bytes_per_s = None if tier in self._timeless else per_second(traffic, passed)
            parts_shown = f"{tier} (SIMULATED)" if tier in self._simulated else tier
            rates.append(LiveRate(parts_shown, op, bytes_per_s, per_second(operations, passed)))
        return Look(
            elapsed_ns=elapsed,
            completed=int(self.completed),
            share=share,
            left_ns=None if remaining is None or remaining > _MOST_LEFT_NS else max(0, remaining),
            in_flight=None if self.in_flight is None else self.in_flight(),
            queue_depth=self.setting.config.depth,
            rates=rates,
            response_p99_ns=_p99([times for *_, times, _late in looks[1:] if times is not None]),
            late_p99_ns=_p99([late for *_, late in looks[1:] if late is not None]),
        )

    def _counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        counts: np.ndarray = self._totals[["operations", "bytes"]].tolist()
        return {key: counts[index] for key, index in self._kinds.items()}


Watching = Callable[[Watch], AbstractContextManager[object]]
"""Shows a run for as long as its context lasts."""


def _p99(samples: list[np.ndarray]) -> int | None:
    times = np.concatenate(samples) if samples else np.zeros(0, np.int64)
    rank = nearest_rank(len(times), QUANTILES["p99"])
    return None if rank is None else int(np.partition(times, rank - 1)[rank - 1])


DRAWN_S, LINE_S = 0.5, 10.0
"""How often: a table, and a line."""


@contextmanager
def live(watch: Watch) -> Iterator[None]:
    """Show `watch` until the context is left; with --quiet nothing."""
    if QUIET.get():  # which a thread of its own would not know of
        yield
        return
    is_over, is_open = threading.Event(), watch.setting.pacer.speed is not None

    def say() -> None:
        while not is_over.wait(LINE_S):
            log(line_of(watch.look(), is_open=is_open))

    def draw() -> None:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as display:
            display.update(table_of(watch.look(), is_open=is_open), refresh=True)
            while not is_over.wait(DRAWN_S):
                display.update(table_of(watch.look(), is_open=is_open), refresh=True)

    thread = threading.Thread(
        target=draw if sys.stderr.isatty() else say, name="kvreplay-live", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def line_of(look: Look, *, is_open: bool) -> str:
    """Return a run at one moment as one line."""
    rates = [
        f"{rate.tier} {rate.op} {format_rate(rate.bytes_per_s)}"
        f" {format_count(rate.operations_per_s)} op/s"
        for rate in look.rates
    ]
    return "; ".join([_progress(look), *rates, *_times(look, is_open=is_open)])


def table_of(look: Look, *, is_open: bool) -> Group:
    """Return a run at one moment as a table of its tiers, between lines on the whole run."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for heading in ("tier", "op"):
        table.add_column(heading, no_wrap=True)
    for heading in ("bandwidth", "op/s"):
        table.add_column(heading, no_wrap=True, justify="right", min_width=10)
    for rate in look.rates:
        table.add_row(
            rate.tier, rate.op, format_rate(rate.bytes_per_s), format_count(rate.operations_per_s)
        )
    return Group(Text(_progress(look)), table, Text("; ".join(_times(look, is_open=is_open))))


def _progress(look: Look) -> str:
    remaining = "" if look.left_ns is None else f", {format_duration(look.left_ns)} left"
    return (
        f"replaying: {look.share:.0%}, {look.completed:,} operations in"
        f" {format_duration(look.elapsed_ns)}{remaining}"
    )


def _times(look: Look, *, is_open: bool) -> list[str]:
    label = "response" if is_open else "service"
    in_flight = "-" if look.in_flight is None else look.in_flight
    texts = [
        f"{label} p99 {format_duration(look.response_p99_ns)}",
        f"in flight {in_flight} of {look.queue_depth}",
    ]
    return [*texts, f"late p99 {format_duration(look.late_p99_ns)}"] if is_open else texts


LOOPBACK = "127.0.0.1"
_MOST_PORT = 65535
_KIND = ("tier", "op")
COUNTERS = {
    "kvreplay_operations": "Operations that completed without error",
    "kvreplay_errors": "Operations that failed, were short, or returned corrupt blocks",
    "kvreplay_bytes": "Object bytes of operations that completed without error",
}
RESPONSE = "kvreplay_response_seconds"
GAUGES = {
    "kvreplay_in_flight": "I/Os in flight now",
    "kvreplay_queue_depth": "Queue depth: the maximum of I/Os in flight",
    "kvreplay_elapsed_seconds": "Time since the first operation could be submitted",
    "kvreplay_progress_ratio": "Part of the rows, or of --duration, that is done",
    "kvreplay_response_p99_seconds": (
        "99th percentile of response times (closed loop: service times), last 5 s"
    ),
    "kvreplay_lateness_p99_seconds": (
        "99th percentile of submission after the due time, last 5 s; open loop"
    ),
}


def parse_address(text: str) -> tuple[str, int]:
    """Return the address and port that `text` names, `:9464`, `9464` or `0.0.0.0:9464`.

    Loopback if it names none.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) <= _MOST_PORT:
        raise ConfigError(
            f"--metrics {text}: write a port, :9464, or an address and a port, 0.0.0.0:9464"
        )
    return host.strip("[]") or LOOPBACK, int(port)


class Exporter:
    """Serves the progress of the run that is watched; between two runs, that of the last one."""

    watch: Watch | None = None

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, as prometheus_client asks for them."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        watch = self.watch
        if watch is None:
            return
        totals, look = watch.snapshot(), watch.look()
        for (name, text), attribute in zip(
            COUNTERS.items(), ("operations", "errors", "bytes"), strict=True
        ):
            counter = CounterMetricFamily(name, text, labels=_KIND)
            for key, snapshot in totals.items():
                counter.add_metric(key, getattr(snapshot, attribute))
            yield counter
        histogram = HistogramMetricFamily(
            RESPONSE,
            "Response times, from when an operation was due; service times in a closed loop",
            labels=_KIND,
        )
        for key, snapshot in totals.items():
            so_far = snapshot.buckets.cumsum().tolist()
            bounds = [*(str(ns / NS_PER_S) for ns in BOUNDS_NS), "+Inf"]
            histogram.add_metric(
                key, list(zip(bounds, so_far, strict=True)), snapshot.response_ns / NS_PER_S
            )
        yield histogram
        of_look = (
            "in_flight",
            "queue_depth",
            "elapsed_ns",
            "share",
            "response_p99_ns",
            "late_p99_ns",
        )
        for (name, text), attribute in zip(GAUGES.items(), of_look, strict=True):
            # Unknown values are left out; they are not 0.
            if (value := getattr(look, attribute)) is not None:
                yield GaugeMetricFamily(
                    name, text, value=value / NS_PER_S if attribute.endswith("_ns") else value
                )


@contextmanager
def serving(text: str) -> Iterator[Exporter]:
    """Serve at the address that `text` names.

    ConfigError if it names none. ProbeUnavailable if prometheus_client is missing. DeviceError if
    the address cannot be had.
    """
    host, port = parse_address(text)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ProbeUnavailable(
            f"--metrics needs prometheus_client: {how_to_add('metrics')}"
        ) from None
    exporter, registry = Exporter(), CollectorRegistry()
    registry.register(exporter)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise DeviceError(
            f"--metrics {text}: cannot serve at {host}:{port}: {error.strerror or error}"
        ) from None
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
