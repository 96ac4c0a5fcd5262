"""The knobs of the preset `checkpoint`: a training run that saves and restores checkpoints, with no KV cache."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from kvtrace.core.config import Bounds, check_bounds, override, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import INT64_MAX, parse_duration_ns

PRESET = "checkpoint"
DESCRIPTION = "a training run that saves checkpoints, and restores them after failures: no KV cache"
MOST_EVENTS = 1_000_000
_MOST_BYTES = 1024.0
"""Of a parameter."""
_Ranks = Annotated[int, Bounds(1, 32_767)]
_Duration = Annotated[str, Bounds(1, INT64_MAX, "> 0", parse_duration_ns)]


class WrittenBy(StrEnum):
    """Who writes a checkpoint."""

    SHARDED = "sharded"
    """Each rank writes an equal part, as fully sharded training does (ZeRO 3, FSDP)."""
    RANK0 = "rank0"
    """Rank 0 writes all, and reads all back for the others."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training run, so far as its checkpoints show it."""

    ranks: _Ranks = 8
    """Processes of the training, one a GPU."""
    every: _Duration = "10min"
    """Training time from one save, or from a restart, to the next save."""
    mtbf: _Duration | None = None
    """Mean time between failures, of an exponential distribution; none: nothing fails."""
    restart: _Duration = "5min"
    """From a failure to the restore: the job is scheduled and started again."""
    keep: Annotated[int, Bounds(0, MOST_EVENTS)] = 2
    """Checkpoints kept; the oldest is deleted when a newer one is whole. 0: all."""
    placement: WrittenBy = WrittenBy.SHARDED
    """Who writes and reads."""
    weight_bytes: Annotated[float, Bounds(math.nextafter(0, 1), _MOST_BYTES, f"> 0, and at most {_MOST_BYTES}")] = 2.0
    """Bytes a parameter of the weights: 2 in bf16."""
    optimizer_bytes: Annotated[float, Bounds(0, _MOST_BYTES)] = 12.0
    """Bytes a parameter of the optimizer's state: Adam's two moments and the weights once more, in fp32; 0: none."""
    parameters: Annotated[int, Bounds(0, 10**14)] = 0
    """Parameters of the model; 0: as its card says."""
    ranks_per_node: _Ranks = 8
    """Ranks of one host, for the trace's column `node`."""
    tier: str = "nvme"
    """The name of the tier that checkpoints lie on."""

    @property
    def every_ns(self) -> int:
        """The time from save to save."""
        return parse_duration_ns(self.every)


def load_training(settings: Iterable[str], options: dict[str, Any]) -> Training:
    """Return the training run of `--set` settings and of `options`, those that were given.

    ConfigError if a knob is unknown, or a value cannot be.
    """
    tree = override({}, settings) | {name: value for name, value in options.items() if value is not None}
    found = to_struct(tree, Training, f"preset {PRESET}")

    check_bounds(found, f"preset {PRESET}")
    if not found.tier or not found.tier.isprintable():
        raise ConfigError(f"preset {PRESET}: tier={found.tier!r} is no name")
    return found
