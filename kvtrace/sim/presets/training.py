"""The knobs of the preset `checkpoint`: a training run that saves and restores checkpoints, with no KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from kvtrace.core.config import override, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns

PRESET = "checkpoint"
DESCRIPTION = "a training run that saves checkpoints, and restores them after failures: no KV cache"
_MOST_RANKS = 32_767
_MOST_BYTES_A_PARAMETER = 1024.0
_MOST_PARAMETERS = 10**14
MOST_EVENTS = 1_000_000


class WrittenBy(StrEnum):
    """Who writes a checkpoint."""

    SHARDED = "sharded"
    """Each rank writes an equal part, as fully sharded training does (ZeRO 3, FSDP)."""
    RANK0 = "rank0"
    """Rank 0 writes all, and reads all back for the others."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training run, so far as its checkpoints show it."""

    ranks: int = 8
    """Processes of the training, one a GPU."""
    every: str = "10min"
    """Training time from one save, or from a restart, to the next save."""
    mtbf: str | None = None
    """Mean time between failures, of an exponential distribution; none: nothing fails."""
    restart: str = "5min"
    """From a failure to the restore: the job is scheduled and started again."""
    keep: int = 2
    """Checkpoints kept; the oldest is deleted when a newer one is whole. 0: all."""
    placement: WrittenBy = WrittenBy.SHARDED
    """Who writes and reads."""
    weight_bytes: float = 2.0
    """Bytes a parameter of the weights: 2 in bf16."""
    optimizer_bytes: float = 12.0
    """Bytes a parameter of the optimizer's state: Adam's two moments and the weights once more, in fp32; 0: none."""
    parameters: int = 0
    """Parameters of the model; 0: as its card says."""
    ranks_per_node: int = 8
    """Ranks of one host, for the trace's column `node`."""
    tier: str = "nvme"
    """The name of the tier that checkpoints lie on."""

    @property
    def every_ns(self) -> int:
        """The time from save to save."""
        return parse_duration_ns(self.every)

    @property
    def mtbf_ns(self) -> int | None:
        """The mean time between failures; None: nothing fails."""
        return None if self.mtbf is None else parse_duration_ns(self.mtbf)


def load_training(settings: Iterable[str], options: dict[str, Any]) -> Training:
    """Return the training run of `--set` settings and of `options`, those that were given.

    Raises:
        ConfigError: an unknown knob, or a value that cannot be.

    """
    tree = override({}, settings) | {name: value for name, value in options.items() if value is not None}
    found = to_struct(tree, Training, f"preset {PRESET}")

    def require(holds: bool, message: str) -> None:
        if not holds:
            raise ConfigError(f"preset {PRESET}: {message}")

    for name, least, most in (
        ("ranks", 1, _MOST_RANKS),
        ("keep", 0, MOST_EVENTS),
        ("parameters", 0, _MOST_PARAMETERS),
        ("ranks_per_node", 1, _MOST_RANKS),
        ("weight_bytes", 0.0, _MOST_BYTES_A_PARAMETER),
        ("optimizer_bytes", 0.0, _MOST_BYTES_A_PARAMETER),
    ):
        value = getattr(found, name)
        require(least <= value <= most, f"{name}(={value}) must be >= {least}, and at most {most}")
    require(found.weight_bytes > 0, f"weight_bytes(={found.weight_bytes}) must be > 0")
    for name in ("every", "mtbf", "restart"):
        text = getattr(found, name)
        require(text is None or parse_duration_ns(text) > 0, f"{name}={text} must be > 0")
    require(bool(found.tier) and found.tier.isprintable(), f"tier={found.tier!r} is no name")
    return found
