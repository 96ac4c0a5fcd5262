"""Say a rate so that fio keeps it: Poisson where its whole numbers allow, else an even byte rate.

fio takes whole operations a second and turns them into whole microseconds (`1000000 / rate`, rounded down),
so a slow rate loses its fraction and a fast one is rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_JOBS = 16
"""Jobs that a fast rate may be split over."""
TOLERANCE = 0.005
"""Relative error of the rate that we accept before looking for another form."""
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """How one direction is paced: the same `options` in each of `jobs` equal jobs."""

    jobs: int
    options: tuple[str, ...]
    per_s: float
    """Operations a second that fio will aim at, over all jobs."""
    is_poisson: bool


def poisson_per_s(rate_iops: int) -> float:
    """Return the operations a second that fio makes of `rate_iops` with `rate_process=poisson`."""
    return _US_PER_S / (_US_PER_S // rate_iops)


def pace(ops_per_s: float, bytes_per_s: float) -> Rate:
    """Return how to keep `ops_per_s`, which carry `bytes_per_s`; both must be positive."""
    best: Rate | None = None
    for jobs in range(1, MAX_JOBS + 1):
        rate_iops = round(ops_per_s / jobs)
        if not 1 <= rate_iops <= _US_PER_S:
            continue
        made = jobs * poisson_per_s(rate_iops)
        rate = Rate(jobs, (f"rate_iops={rate_iops}", "rate_process=poisson"), made, is_poisson=True)
        if _error(made, ops_per_s) <= TOLERANCE:
            return rate
        if best is None or _error(made, ops_per_s) < _error(best.per_s, ops_per_s):
            best = rate
    even = max(1, round(bytes_per_s))
    linear = Rate(1, (f"rate={even}",), ops_per_s * even / bytes_per_s, is_poisson=False)
    fast = best is not None and ops_per_s > _US_PER_S / 100
    return best if best is not None and fast else linear


def _error(made: float, wanted: float) -> float:
    return abs(made / wanted - 1)
