"""Tiers that move no data: `sim` takes the time of a service model, `null` takes none; every output marks them.

The model is the one by which `kvtrace gen` gives a tier's operations their times.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import monotonic_ns, sleep
from typing import Any

import msgspec

from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import Metadata
from kvtrace.core.units import NS_PER_S, format_duration, format_rate, parse_bytes, parse_duration_ns

OPTIONS = ("bandwidth", "read_bandwidth", "write_bandwidth", "latency", "concurrency")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How long operations take: each direction is one first-come server."""

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int
    """Of one operation, after it has had the server."""
    concurrency: int = 0
    """Operations served at once, which bounds their rate by the latency; 0 is unbounded."""
    source: str
    """Where the numbers come from."""

    def occupied_ns(self, op: int, length_bytes: int) -> int:
        """Return for how long an operation has the server to itself."""
        rate = self.write_bytes_per_s if op == WRITE else self.read_bytes_per_s
        share = self.latency_ns // self.concurrency if self.concurrency else 0
        return max(length_bytes * NS_PER_S // rate, share)

    def __str__(self) -> str:
        at_once = f", {self.concurrency} at once" if self.concurrency else ""
        return (
            f"reads at {format_rate(self.read_bytes_per_s)}, writes at {format_rate(self.write_bytes_per_s)}, "
            f"latency {format_duration(self.latency_ns)}{at_once} ({self.source})"
        )


ASSUMED = {
    "gpu": Service(
        read_bytes_per_s=1_500 * 10**9,
        write_bytes_per_s=1_500 * 10**9,
        latency_ns=10_000,
        source="assumed: copies within HBM3",
    ),
    "cpu": Service(
        read_bytes_per_s=50 * 10**9,
        write_bytes_per_s=50 * 10**9,
        latency_ns=10_000,
        source="assumed: copies over PCIe 5.0 x16",
    ),
}
"""By tier name, where neither the option nor the trace says."""


class SimulatedTier:
    """Operations that move nothing: they take the time of `service`, or none without it."""

    engine = "sim"
    alignment = 1
    is_simulated = True

    def __init__(self, name: str, service: Service | None = None) -> None:
        """Name the tier; `service` None is `null`."""
        self.name, self.service = name, service
        self.target = "null" if service is None else "sim"
        self.is_timed = service is not None
        self._lock = threading.Lock()
        self._busy_until = [0, 0]

    def serve(self, op: int, length_bytes: int, now_ns: int) -> int:
        """Return when an operation that comes at `now_ns` (monotonic clock) is done."""
        if self.service is None or op == DELETE:
            return now_ns
        with self._lock:
            busy_until = max(self._busy_until[op], now_ns) + self.service.occupied_ns(op, length_bytes)
            self._busy_until[op] = busy_until
        return busy_until + self.service.latency_ns

    def wait(self, op: int, length_bytes: int, now_ns: int) -> int:
        """Sleep until the operation is done; return when it was by the model, not when the sleep ended."""
        done_ns = self.serve(op, length_bytes, now_ns)
        rest_ns = done_ns - monotonic_ns()
        if rest_ns > 0:
            sleep(rest_ns / NS_PER_S)
        return done_ns

    def open(self, peak_bytes: int) -> None:
        """Do nothing: there is room for everything."""

    def reserve(self, object_id: int, end: int) -> None:
        """Do nothing."""

    def begin(self, op: int, object_id: int) -> None:
        """Do nothing."""

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        """Do nothing."""

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        """Report the whole length as read."""
        return len(into)

    def end(self, op: int, handle: Any) -> None:
        """Do nothing."""

    def delete(self, object_id: int) -> None:
        """Do nothing."""

    def facts(self) -> dict[str, Any]:
        """Return that nothing moved, and the model of its times."""
        if self.service is None:
            return {"is_simulated": True, "note": "no data moved; its times are only moments in the replay"}
        return {
            "is_simulated": True,
            "service": msgspec.to_builtins(self.service),
            "note": f"no data moved; its times are a model's: {self.service}",
        }

    def close(self) -> None:
        """Do nothing."""


def service_of(tier: str, options: Mapping[str, str], meta: Metadata, said: str) -> Service:
    """Return the service of the simulated `tier`: by its options, else the trace's own model, else what is assumed.

    Raises:
        ConfigError: an option that is none, or no bandwidth for a tier for which none is assumed; it quotes `said`.

    """
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"{said}: unknown option {name!r}; sim takes {', '.join(OPTIONS)}")
    if options.keys() & {"bandwidth", "read_bandwidth", "write_bandwidth"}:
        return _stated(options, said)
    if options:
        raise ConfigError(f"{said}: name a bandwidth too, such as sim:bandwidth=25GB,latency=10us")
    found = _of_trace(tier, meta) or ASSUMED.get(tier)
    if found is None:
        raise ConfigError(
            f"{said}: the trace models no bandwidths of tier {tier}; name one, such as sim:bandwidth=7GB,latency=80us"
        )
    return found


def _stated(options: Mapping[str, str], said: str) -> Service:
    both = options.get("bandwidth")
    directions = [options.get(f"{way}_bandwidth", both) for way in ("read", "write")]
    if None in directions:
        raise ConfigError(f"{said}: name both read_bandwidth and write_bandwidth, or bandwidth for both")
    try:
        rates = [parse_bytes(text) for text in directions if text is not None]
        latency_ns = parse_duration_ns(options.get("latency", "0"))
        concurrency = int(options.get("concurrency", "0"))
    except ValueError:
        raise ConfigError(f"{said}: concurrency is a whole number") from None
    except ConfigError as error:
        raise ConfigError(f"{said}: {error}") from None
    if min(rates) <= 0 or concurrency < 0:
        raise ConfigError(f"{said}: a bandwidth must be > 0, and concurrency >= 0")
    return Service(
        read_bytes_per_s=rates[0],
        write_bytes_per_s=rates[1],
        latency_ns=latency_ns,
        concurrency=concurrency,
        source="--tier",
    )


def _of_trace(tier: str, meta: Metadata) -> Service | None:
    """Return the service model that the trace was simulated with; None if it had none for both directions."""
    hierarchy = meta.config.get("hierarchy")
    tiers = hierarchy.get("tiers", []) if isinstance(hierarchy, dict) else []
    found: dict[str, Any] = next((t for t in tiers if t.get("name") == tier), {})
    rates = [_bytes(found.get(f"{way}_bandwidth")) for way in ("read", "write")]
    if not all(rates):
        return None
    return Service(
        read_bytes_per_s=rates[0],
        write_bytes_per_s=rates[1],
        latency_ns=parse_duration_ns(found["latency"]) if found.get("latency") else 0,
        concurrency=found.get("concurrency") or 0,
        source="the trace's service model",
    )


def _bytes(value: str | int | None) -> int:
    return parse_bytes(value) if isinstance(value, str) else value or 0
