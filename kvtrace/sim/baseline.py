"""The baseline of a simulation: the same requests on the same engine, without offload.

Whether an offload pays is seen against an engine that has nothing but its GPU memory, and computes
what it does not find there. That takes a simulation of its own: in the simulation with offload a
request waits for prompts that hits have made shorter, or that slow loads have made longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import UNSET

from kvtrace.core.errors import OutOfMemory
from kvtrace.core.simulation_stats import (
    Percentiles,
    SimulationStats,
    TimeToFirstToken,
)
from kvtrace.core.units import counted, format_duration
from kvtrace.llm.shape import ModelShape
from kvtrace.sim.presets.preset import Preset
from kvtrace.sim.service_level import ServiceLevel
from kvtrace.sim.simulation import Flush, Load, Simulation

GPU: Final = "gpu"
"""The tier that an engine has without offload."""
WORSE: Final = 1.05
"""An offload whose TTFT is longer than this multiple of the baseline's is called slower."""
_COMPARED: Final = {"p50_ns": "p50", "p99_ns": "p99"}
"""The percentiles of TTFT that are compared, with their labels."""
_SERVED: Final = "requests"
"""What is slower if an offload serves fewer requests."""
SLOWER: Final = "OFFLOAD IS SLOWER THAN COMPUTING"
"""The beginning of what is said of such an offload."""
LARGE_FLEET: Final = 32
"""Nodes from which on a fleet takes so much memory that its baseline is simulated before it."""


class _StoppedError(Exception):
    """The simulation with offload has failed, so its baseline is not needed any more."""


class Baseline:
    """A simulation without offload that runs beside the one with it."""

    def __init__(
        self,
        preset: Preset,
        model: ModelShape,
        load: Load,
        ranks: int,
        service_level: ServiceLevel | None = None,
    ) -> None:
        """Prepare the simulation; nothing is simulated yet."""
        self._arguments = preset, model, load, ranks
        self._service_level = service_level
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """End the simulation at its next flush."""
        self._is_stopped.set()

    def _check_stopped(self) -> None:
        if self._is_stopped.is_set():
            raise _StoppedError

    def run(self) -> SimulationStats | None:
        """Simulate, and return the counters; None if stopped, or with too little memory for it."""
        preset, model, load, ranks = self._arguments
        try:
            with Simulation(
                preset, model, load, ranks=ranks, service_level=self._service_level
            ) as simulation:
                simulation.omit_rows()

                def sink(flush: Flush) -> None:
                    self._check_stopped()
                    simulation.give_back(flush)

                simulation.run(sink)
                return simulation.stats()
        except (_StoppedError, OutOfMemory):
            return None


def preset_without_offload(preset: Preset) -> Preset | None:
    """Return `preset` with GPU memory as its only tier that holds anything.

    None where there is nothing to compare: computing takes no time, or no other tier has a
    capacity.
    """
    others = [tier for tier in preset.tiers if tier.name != GPU and tier.capacity_bytes != 0]
    if not preset.has_prefill or not others:
        return None
    tiers = tuple(
        tier if tier.name == GPU else msgspec.structs.replace(tier, capacity=0)
        for tier in preset.tiers
    )
    return msgspec.structs.replace(preset, tiers=tiers)


@contextmanager
def baseline_beside(
    preset: Preset,
    model: ModelShape,
    load: Load,
    ranks: int,
    service_level: ServiceLevel | None = None,
) -> Iterator[Callable[[], SimulationStats | None]]:
    """Simulate the baseline in a thread of its own while the block runs.

    Yields a function that waits for its counters and returns them; it returns None if there is no
    baseline. Compiled code releases the interpreter's lock, so both simulations run at once. That of
    a large fleet runs before the block: both at once would take half as much memory again.
    """
    plain = preset_without_offload(preset)
    if plain is None:
        yield lambda: None
        return
    baseline = Baseline(plain, model, load, ranks, service_level)
    if preset.fleet.nodes >= LARGE_FLEET:
        stats = baseline.run()
        yield lambda: stats
        return
    with ThreadPoolExecutor(1, thread_name_prefix="baseline") as pool:
        future = pool.submit(baseline.run)
        try:
            yield future.result
        except BaseException:
            baseline.stop()
            raise


def ttft_without_offload(
    preset: Preset, model: ModelShape, load: Load, ranks: int
) -> TimeToFirstToken | None:
    """Simulate the baseline and return its TTFT; None if there is no baseline."""
    plain = preset_without_offload(preset)
    stats = None if plain is None else Baseline(plain, model, load, ranks).run()
    return None if stats is None else stats.first_token


def with_baseline(
    first_token: TimeToFirstToken | None, baseline: TimeToFirstToken | None
) -> TimeToFirstToken | None:
    """Return `first_token` with what its baseline gave, if both are known."""
    if first_token is None or baseline is None:
        return first_token
    return msgspec.structs.replace(
        first_token,
        without_offload=baseline.with_cache,
        requests_without_offload=baseline.requests,
    )


def with_baseline_stats(
    stats: SimulationStats, baseline: SimulationStats | None
) -> SimulationStats:
    """Return `stats` with the TTFT, TPOT and goodput of its baseline, if there is one."""
    if baseline is None:
        return stats
    decode = msgspec.structs.replace(
        stats.decode, time_per_token_without_offload=baseline.decode.time_per_token
    )
    goodput = stats.goodput
    if goodput is not UNSET and baseline.goodput is not UNSET:
        goodput = msgspec.structs.replace(goodput, share_without_offload=baseline.goodput.share)
    return msgspec.structs.replace(
        stats,
        decode=decode,
        goodput=goodput,
        first_token=with_baseline(stats.first_token, baseline.first_token),
    )


def slower_note(first_token: TimeToFirstToken | None) -> str | None:
    """Return what to say of an offload that makes TTFT longer; None if it does not."""
    if first_token is None or first_token.without_offload is None:
        return None
    times, baseline = first_token.with_cache, first_token.without_offload
    name = slower_percentile(
        lambda percentile: getattr(times, percentile),
        first_token.requests,
        baseline,
        first_token.requests_without_offload or 0,
    )
    if name is None:
        return None
    if name == _SERVED:
        return (
            f"{SLOWER}: {counted(first_token.requests, 'request')} served in the same time,"
            f" {first_token.requests_without_offload:,} without offload"
        )
    return (
        f"{SLOWER}: TTFT {_COMPARED[name]} {format_duration(getattr(times, name))},"
        f" {format_duration(getattr(baseline, name))} without offload"
    )


def slower_percentile(
    time_ns: Callable[[str], float | None],
    requests: int,
    baseline: Percentiles,
    baseline_requests: int,
) -> str | None:
    """Return what an offload makes slower: a percentile of TTFT, or "requests"; None for nothing.

    `time_ns` returns the TTFT with offload at a percentile, by the percentile's name in the
    counters.

    Users that wait for answers send more requests if these come sooner, and then wait for each
    other: an offload that served more requests than its baseline is not called slower. Where loads
    make a few of them wait long, percentiles may be alike, or unknown of few requests, and yet far
    fewer requests are served: that is slower, too.
    """
    if requests > baseline_requests:
        return None
    for name in _COMPARED:
        with_ns, without_ns = time_ns(name), getattr(baseline, name)
        if with_ns is not None and without_ns is not None and with_ns > WORSE * without_ns:
            return name
    return _SERVED if WORSE * requests < baseline_requests else None
