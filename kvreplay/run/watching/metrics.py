"""`--metrics`: a run's counters as OpenMetrics over HTTP, by prometheus_client, while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvreplay.run.watching.watch import BOUNDS_NS, Watch
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.units import NS_PER_S

LOOPBACK = "127.0.0.1"
_MOST_PORT = 65535
_KIND = ("tier", "op")
COUNTERS = {
    "kvreplay_operations": "Operations that completed well",
    "kvreplay_errors": "Operations that failed, came up short, or brought corrupt blocks",
    "kvreplay_bytes": "Object bytes of operations that completed well",
}
RESPONSE = "kvreplay_response_seconds"
GAUGES = {
    "kvreplay_in_flight": "I/Os in flight now",
    "kvreplay_queue_depth": "I/Os that may be in flight",
    "kvreplay_elapsed_seconds": "Time since the first operation could be submitted",
    "kvreplay_progress_ratio": "Part of the rows, or of --runtime, that is done",
    "kvreplay_response_p99_seconds": "99th percentile of response times (closed loop: service times), last 5 s",
    "kvreplay_lateness_p99_seconds": "99th percentile of submission after the due time, last 5 s; open loop",
}


def parse_address(text: str) -> tuple[str, int]:
    """Return the address and port that `text` names, `:9464`, `9464` or `0.0.0.0:9464`; loopback if it names none."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) <= _MOST_PORT:
        raise ConfigError(f"--metrics {text}: write a port, :9464, or an address and a port, 0.0.0.0:9464")
    return host.strip("[]") or LOOPBACK, int(port)


class Exporter:
    """Serves what the run that is watched has come to; between two runs, what the last one came to."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._watch: Watch | None = None

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Serve `watch` from now on."""
        self._watch = watch
        yield

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        watch = self._watch
        if watch is None:
            return
        totals, look = watch.snapshot(), watch.look()
        for (name, text), attribute in zip(COUNTERS.items(), ("operations", "errors", "bytes"), strict=True):
            counter = CounterMetricFamily(name, text, labels=_KIND)
            for key, found in totals.items():
                counter.add_metric(key, getattr(found, attribute))
            yield counter
        histogram = HistogramMetricFamily(
            RESPONSE, "Response times, from when an operation was due; service times in a closed loop", labels=_KIND
        )
        for key, found in totals.items():
            so_far = found.buckets.cumsum().tolist()
            bounds = [*(str(ns / NS_PER_S) for ns in BOUNDS_NS), "+Inf"]
            histogram.add_metric(key, list(zip(bounds, so_far, strict=True)), found.response_ns / NS_PER_S)
        yield histogram
        values = (
            look.in_flight,
            look.queue_depth,
            look.elapsed_ns / NS_PER_S,
            look.share,
            *(None if ns is None else ns / NS_PER_S for ns in (look.response_p99_ns, look.late_p99_ns)),
        )
        for (name, text), value in zip(GAUGES.items(), values, strict=True):
            # What is not known is left out, and is not 0.
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)


@contextmanager
def serving(text: str) -> Iterator[Exporter]:
    """Serve at the address that `text` names.

    Raises:
        ConfigError: it names none.
        ProbeUnavailable: prometheus_client is missing.
        DeviceError: the address cannot be had.

    """
    host, port = parse_address(text)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ProbeUnavailable("--metrics needs prometheus_client: pip install 'kvtrace[metrics]'") from None
    exporter, registry = Exporter(), CollectorRegistry()
    registry.register(exporter)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise DeviceError(f"--metrics {text}: cannot serve at {host}:{port}: {error.strerror or error}") from None
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
