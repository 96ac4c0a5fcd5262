"""The processor time that other programs took while a job ran, by the kernel's counters."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvtrace.core.system_files import sys_text

_STAT = Path("/proc/stat")
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_OTHERS = ("user", "nice", "steal")
"""Time that programs and other virtual machines took.

System time is no part of it: kernel threads also work for the replay.
"""
_LEAST_S = 0.2
"""Shortest time that the kernel's ticks of 10 ms resolve well enough."""


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Processor time since boot, in seconds, added up over all processors."""

    total_s: float
    """All time, idle time included."""
    others_s: float
    """Time that programs other than this process ran."""

    @classmethod
    def now(cls) -> ProcessorTimes | None:
        """Return the times until now; null where the kernel does not tell them."""
        line = (sys_text(_STAT) or "").partition("\n")[0].split()
        if len(line) <= len(_FIELDS) or line[0] != "cpu":
            return None
        per_s = os.sysconf("SC_CLK_TCK")
        seconds = {name: int(text) / per_s for name, text in zip(_FIELDS, line[1:], strict=False)}
        own_s = os.times().user
        return cls(sum(seconds.values()), sum(seconds[name] for name in _OTHERS) - own_s)

    def others_share(self, begin: ProcessorTimes | None) -> float | None:
        """Return the share of all processor time since `begin` that other programs took.

        Null if the time is too short to tell, or unknown.
        """
        if begin is None or self.total_s - begin.total_s < _LEAST_S:
            return None
        share = (self.others_s - begin.others_s) / (self.total_s - begin.total_s)
        return min(1.0, max(0.0, share))
