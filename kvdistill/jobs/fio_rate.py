"""How fio keeps a rate: whole operations a second by chance, or evenly, by bytes where that is finer."""

from __future__ import annotations

from dataclasses import dataclass

MAX_JOBS = 16
"""Jobs that a fast rate may be split over."""
TOLERANCE = 0.005
"""Relative error of the rate that we accept before looking for another form."""
_EVEN_TOLERANCE = 0.001
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
    """Return how to keep `ops_per_s`, which carry `bytes_per_s`, by chance; both must be positive."""
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
    fast = best is not None and ops_per_s > _US_PER_S / 100
    return best if best is not None and fast else by_bytes(ops_per_s, bytes_per_s)


def even_pace(ops_per_s: float, bytes_per_s: float, *, has_one_size: bool) -> Rate:
    """Return how to keep `ops_per_s` at equal gaps; with several sizes, gaps are as long as the operation before."""
    whole = round(ops_per_s)
    # rate_iops with bssplit is wrong before fio 3.42.
    if has_one_size and whole and _error(whole, ops_per_s) <= _EVEN_TOLERANCE:
        return Rate(1, (f"rate_iops={whole}",), whole, is_poisson=False)
    return by_bytes(ops_per_s, bytes_per_s)


def by_bytes(ops_per_s: float, bytes_per_s: float) -> Rate:
    """Return an even rate in bytes a second."""
    even = max(1, round(bytes_per_s))
    return Rate(1, (f"rate={even}",), ops_per_s * even / bytes_per_s, is_poisson=False)


def _error(made: float, wanted: float) -> float:
    return abs(made / wanted - 1)
