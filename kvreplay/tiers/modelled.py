"""Tiers that move no data: `sim` takes the time of a service model, `null` takes none; every output marks them.

The model is the one by which `kvtrace gen` gives a tier's operations their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvreplay.tiers.tier import Native, Service, TierKind
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import Metadata
from kvtrace.core.units import parse_bytes, parse_duration_ns

OPTIONS = ("bandwidth", "read_bandwidth", "write_bandwidth", "latency", "concurrency")


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

    def native(self) -> Native:
        """Return how the engine does its operations."""
        return Native(TierKind.NOTHING if self.service is None else TierKind.MODELLED, service=self.service)

    def open(self, peak_bytes: int) -> None:
        """Do nothing: everything fits."""

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
