"""A training run and how it is checkpointed: who writes how much, and when it saves, fails and restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from kvtrace.core.config import override, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns

PRESET = "checkpoint"
DESCRIPTION = "a training run that saves checkpoints, and restores them after failures: no KV cache"
MARKER_BYTES = 4096
_MOST_RANKS = 32_767
_MOST_BYTES_A_PARAMETER = 1024.0
_MOST_PARAMETERS = 10**14
_MOST_EVENTS = 1_000_000


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


class EventKind(StrEnum):
    """What happens to a checkpoint."""

    SAVE = "save"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Event:
    """A save or a restore that becomes due."""

    kind: EventKind
    at_ns: int
    checkpoint: int
    """Which, counted from 0 in the order of saves."""


@dataclass(slots=True)
class Course:
    """How a training run went."""

    events: list[Event]
    failures: int = 0
    lost_ns: int = 0
    """Training time since the last save or restart, of all failures together."""


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
        ("keep", 0, _MOST_EVENTS),
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


def shard_bytes(training: Training, parameters: int) -> dict[str, list[int]]:
    """Return the bytes that each writer writes, by part: weights and, if there is any, the optimizer's state.

    The parts of a part differ by a byte at most, and add up to all of it.
    """
    writers = training.ranks if training.placement is WrittenBy.SHARDED else 1
    found = {}
    for part, each in (("weights", training.weight_bytes), ("optimizer", training.optimizer_bytes)):
        total = round(parameters * each)
        if not total:
            continue
        if total < writers:
            raise ConfigError(f"{total} bytes of {part} are less than a byte for each of {writers} ranks; use fewer")
        found[part] = [total // writers + (rank < total % writers) for rank in range(writers)]
    return found


def run_course(training: Training, until_ns: int, seed: int) -> Course:
    """Return when the run saves and restores up to `until_ns`; failures come from `seed`.

    ConfigError if that is more often than a trace could be made of.
    """
    if until_ns // training.every_ns > _MOST_EVENTS:
        raise ConfigError(f"--every {training.every} over that duration is more than {_MOST_EVENTS:,} saves")
    course = Course([])
    failures = _failures(training.mtbf_ns, seed)
    now, saves, failure_ns = 0, 0, next(failures)
    while True:
        due = now + training.every_ns
        if failure_ns is not None and now + failure_ns <= due:
            failed = now + failure_ns
            if failed > until_ns:
                return course
            if course.failures == _MOST_EVENTS:
                raise ConfigError(f"--mtbf {training.mtbf} over that duration is more than {_MOST_EVENTS:,} failures")
            course.failures += 1
            course.lost_ns += failure_ns
            now = failed + parse_duration_ns(training.restart)
            failure_ns = next(failures)
            if saves and now <= until_ns:
                course.events.append(Event(EventKind.RESTORE, now, saves - 1))
            continue
        if due > until_ns:
            return course
        course.events.append(Event(EventKind.SAVE, due, saves))
        failure_ns = None if failure_ns is None else failure_ns - training.every_ns
        now, saves = due, saves + 1


def _failures(mtbf_ns: int | None, seed: int) -> Iterator[int | None]:
    """Yield how long the run goes on before each failure; None for ever."""
    import numpy as np

    rng = np.random.default_rng(seed)
    while True:
        yield None if mtbf_ns is None else 1 + int(rng.exponential(mtbf_ns))
