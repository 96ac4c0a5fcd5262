"""The locked options of the benchmark (Rules.md of mlcommons/storage, 6.3.1, table KVCache-1), and how users name them.

A preset of kvtrace holds the workload of each; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from kvtrace.core.errors import ConfigError

SEED, TRIALS, RUNTIME_S, PAUSE_S = 42, 3, 300, 90
"""What Rules.md locks for all options: 6.3.2.1, and the duration of table KVCache-1."""


@dataclass(frozen=True, slots=True)
class LockedOption:
    """One option: what a client runs, whatever the storage."""

    number: int
    name: str
    title: str
    model: str
    users: int
    """Of each client; the benchmark has as many threads that read and write."""
    cpu_gib: int
    max_concurrent_allocs: int
    """Without a counterpart in a replay."""

    @property
    def preset(self) -> str:
        """The preset of kvtrace that holds its workload."""
        return f"mlperf-{self.name}"

    @property
    def said(self) -> str:
        """Its workload in a few words."""
        memory = f"{self.cpu_gib} GiB of CPU memory" if self.cpu_gib else "no CPU tier"
        return f"option {self.number}, {self.model}, {self.users} users, {memory}"


OPTIONS = (
    LockedOption(1, "v3-8b-stress", "Max Storage Stress", "llama3.1-8b", 200, 0, 16),
    LockedOption(2, "v3-8b-throughput", "Storage Throughput", "llama3.1-8b", 100, 4, 16),
    LockedOption(3, "v3-70b", "Large Model (70B)", "llama3.1-70b-instruct", 70, 0, 4),
)
ALL = "v3"
SHORT = {"v3-8b": "v3-8b-stress"}
"""What stands for one of several."""
_BY_NAME = {key: option for option in OPTIONS for key in (option.name, option.preset, str(option.number))}


def resolve(names: Sequence[str]) -> list[LockedOption]:
    """Return the options that `names` are of, each once; ConfigError, with the nearest name, for one of none."""
    found: list[LockedOption] = []
    for name in names:
        for option in OPTIONS if name in (ALL, f"mlperf-{ALL}") else [_one(name)]:
            if option in found:
                raise ConfigError(f"{name}: {option.name} is named twice; name it once")
            found.append(option)
    if not found:
        raise ConfigError(f"name an option: {', '.join(o.name for o in OPTIONS)}, or {ALL} for all of them")
    return found


def _one(name: str) -> LockedOption:
    plain = name.lower()
    option = _BY_NAME.get(SHORT.get(plain.removeprefix("mlperf-"), plain))
    if option is not None:
        return option
    known = [o.name for o in OPTIONS]
    near = get_close_matches(plain, [*known, *SHORT], n=1, cutoff=0.3)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"no locked option {name!r}{meant} There are {', '.join(known)}, and {ALL} for all of them")
