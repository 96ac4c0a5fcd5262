"""The thresholds by which a run is judged: MLPerf's health criteria and the targets of the classes of service."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import Qos
from kvtrace.core.units import parse_bytes, parse_duration_ns


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a class of service asks of its requests."""

    p95: str
    p99: str
    p99_9: str
    p99_99: str


class Criteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds; the defaults are the benchmark's."""

    storage_read_p95: str = "200ms"
    storage_write_p95: str = "500ms"
    cpu_p95: str = "150ms"
    hit_rate: float = 0.3
    storage_bandwidth: str = "0"
    """Bytes a second, read and written together, that must be exceeded."""
    qos_interactive: Targets = Targets("50ms", "100ms", "150ms", "200ms")
    """What the percentiles of a class's requests must not exceed."""
    qos_responsive: Targets = Targets("100ms", "200ms", "350ms", "500ms")
    qos_batch: Targets = Targets("1s", "5s", "7500ms", "10s")

    @property
    def targets(self) -> dict[str, Targets]:
        """The targets by class of service."""
        return {qos.value: getattr(self, f"qos_{qos.value}") for qos in Qos}


def read_criteria(path: Path | None) -> Criteria:
    """Return the thresholds in the TOML file `path`, or the benchmark's; ConfigError for what is none."""
    if path is None:
        return Criteria()
    criteria = to_struct(load_toml(path), Criteria, str(path))
    try:
        of_classes = [text for targets in criteria.targets.values() for text in msgspec.structs.astuple(targets)]
        for text in (criteria.storage_read_p95, criteria.storage_write_p95, criteria.cpu_p95, *of_classes):
            parse_duration_ns(text)
        parse_bytes(criteria.storage_bandwidth)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return criteria
