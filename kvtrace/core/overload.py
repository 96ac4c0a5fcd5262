"""What to say of GPUs that cannot keep up with the requests of a simulation."""

from __future__ import annotations

from typing import Final

from kvtrace.core.simulation_stats import PrefillStats, TimeToFirstToken
from kvtrace.core.units import NS_PER_S, counted, format_duration

_OVERLOADED: Final = "GPU OVERLOADED"
_LONGEST_WAIT_NS: Final = 60 * NS_PER_S
"""Wait above which GPUs are called overloaded, though their load is not above 1 or not known."""
_SOME_WAIT_NS: Final = _LONGEST_WAIT_NS // 10
"""Wait for the GPU below which a long TTFT is taken for long computing."""


def overload_note(prefill: PrefillStats, first_token: TimeToFirstToken | None = None) -> str | None:
    """Return what to say of GPUs that cannot keep up with the requests; None if they can.

    Requests of a log arrive faster than prompts are computed, or wait for GPU memory. Users that
    wait for answers send no more than is computed, but wait ever longer: for the GPU, or for a place
    among the requests that run, which only TTFT shows, with and without offload.
    """
    if prefill.load is not None and prefill.load > 1 and prefill.needed_nodes is not None:
        return (
            f"{_OVERLOADED}: computing the prompts takes {prefill.load:.3g} times the time in which"
            f" they arrive; at least {counted(prefill.needed_nodes, 'node')} would keep up"
        )
    wait_ns = prefill.mean_wait_ns or 0
    if wait_ns > _LONGEST_WAIT_NS:
        return f"{_OVERLOADED}: prompts wait {format_duration(wait_ns)} for the GPU on average"
    without = None if first_token is None else first_token.without_offload
    if wait_ns < _SOME_WAIT_NS or first_token is None or without is None:
        return None
    median_ns, median_without_ns = first_token.with_cache.p50_ns, without.p50_ns
    if median_ns is None or median_without_ns is None:
        return None
    if min(median_ns, median_without_ns) <= _LONGEST_WAIT_NS:
        return None
    return (
        f"{_OVERLOADED}: half of the requests wait over {format_duration(median_ns)} for their"
        " first token"
    )
