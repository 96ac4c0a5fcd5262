"""What to say of GPUs that cannot keep up with the requests of a simulation."""

from __future__ import annotations

from typing import Final

from kvtrace.core.simulation_stats import PrefillStats, TimeToFirstToken
from kvtrace.core.units import NS_PER_S, counted, format_duration

_OVERLOADED: Final = "GPU OVERLOADED"
_LONGEST_WAIT_NS: Final = 60 * NS_PER_S
"""Wait above which users who wait for answers are called an overload."""


def overload_note(prefill: PrefillStats, first_token: TimeToFirstToken | None = None) -> str | None:
    """Return what to say if prompts arrive faster than they are computed; None if they do not.

    Users that wait for answers send no more than is computed, but wait ever longer: for the GPU, or
    for a place among the requests that run, which only TTFT shows.
    """
    wait_ns = prefill.mean_wait_ns or 0
    if prefill.load is None and wait_ns > _LONGEST_WAIT_NS:
        return f"{_OVERLOADED}: prompts wait {format_duration(wait_ns)} for the GPU on average"
    if prefill.load is None and wait_ns > NS_PER_S and first_token is not None:
        without = first_token.without_offload or first_token.with_cache
        medians = [first_token.with_cache.p50_ns, without.p50_ns]
        if all(median is not None and median > _LONGEST_WAIT_NS for median in medians):
            return (
                f"{_OVERLOADED}: half of the requests wait over {format_duration(medians[0])} for"
                " their first token"
            )
    if prefill.load is None or prefill.needed_nodes is None or prefill.load <= 1:
        return None
    return (
        f"{_OVERLOADED}: computing the prompts takes {prefill.load:.3g} times the time in which they"
        f" arrive; at least {counted(prefill.needed_nodes, 'node')} would keep up"
    )
