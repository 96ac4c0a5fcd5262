"""Find the least number of GPUs that meet a service level: tensor-parallel degree times nodes.

For each tensor-parallel degree, with the largest caches of the price list and without offload:

    double the nodes until a fleet meets the service level, or more of them do not help
    bisect between the last number that fails and the first that meets it

More nodes serve a request no later, so a number above one that meets the level meets it, too; where
a router breaks that rule, a smaller number may do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvtrace.core.document.document import ReportColumn, ReportTable, Sheet, Unit, table_of
from kvtrace.studies.run import Failed, Result
from kvtrace.studies.study import Configuration

DEGREES: Final = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried unless one is given."""
MOST_NODES: Final = 256
_STALE_DOUBLINGS: Final = 2
"""The search ends after so many doublings that bring no more requests within the limits."""
WITH_CACHE: Final = "with the largest cache"
WITHOUT_OFFLOAD: Final = "without offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """The least GPUs of one tensor-parallel degree, or the most that were tried in vain."""

    cache: str
    """WITH_CACHE or WITHOUT_OFFLOAD."""
    tensor_parallel: int
    nodes: int
    gpus: int
    is_met: bool
    goodput_share: float | None
    """Share of the requests within the limits."""
    first_token_p99_ns: float | None
    time_per_token_p99_ns: float | None
    command: str
    """The command that simulates the fleet."""


@dataclass(frozen=True, slots=True)
class LeastGpus:
    """All degrees, and the one with the fewest GPUs."""

    counts: list[GpuCount]
    share: float
    """The share of requests that must be within the limits."""

    def least(self, cache: str) -> GpuCount | None:
        """Return the fleet of fewest GPUs that meets the service level; None if none does."""
        met = [count for count in self.counts if count.cache == cache and count.is_met]
        return min(met, key=lambda count: (count.gpus, count.tensor_parallel), default=None)

    def nearest(self, cache: str) -> GpuCount:
        """Return the fleet with the most requests within the limits."""
        tried = [count for count in self.counts if count.cache == cache]
        return max(tried, key=lambda count: (count.goodput_share or 0.0, -count.gpus))

    def describe(self) -> str:
        """Return the answer as a clause of a sentence."""
        answers = []
        for cache in (WITH_CACHE, WITHOUT_OFFLOAD):
            least = self.least(cache)
            if least is None:
                best = self.nearest(cache)
                share = 100 * (best.goodput_share or 0.0)
                answers.append(f"no number of GPUs {cache} (at best {share:.1f} % of requests)")
                continue
            fleet = f"{least.nodes} x --tp {least.tensor_parallel}"
            answers.append(f"{least.gpus} GPU{'s' * (least.gpus > 1)} ({fleet}) {cache}")
        return ", ".join(answers)

    def table(self) -> ReportTable:
        """Return a table with a row for each degree and cache."""
        columns = [
            ReportColumn("cache", ""),
            ReportColumn("tensor_parallel", "--tp", Unit.COUNT),
            ReportColumn("nodes", unit=Unit.COUNT),
            ReportColumn("gpus", "GPUs", Unit.COUNT),
            ReportColumn("verdict", "service level"),
            ReportColumn("goodput_share", "requests within it", Unit.SHARE),
            ReportColumn("first_token_p99_ns", "TTFT p99", Unit.NS),
            ReportColumn("time_per_token_p99_ns", "TPOT p99", Unit.NS),
        ]
        rows = [
            {name: getattr(count, name) for name in GpuCount.__slots__}
            | {"verdict": "met" if count.is_met else "not met"}
            for count in self.counts
        ]
        return table_of("least GPUs that meet the service level", Sheet.SUMMARY, columns, rows)


class GpuSearch:
    """Search the least number of nodes for one tensor-parallel degree after the other."""

    def __init__(
        self,
        fleets: Callable[[str, int, int], list[Configuration]],
        simulate: Callable[[Sequence[Configuration]], Mapping[int, Result]],
        share: float,
        most_nodes: int,
    ) -> None:
        """Prepare a search.

        `fleets` returns the configurations to try, by cache, degree and nodes; `simulate` returns
        their results by number. A service level is met if `share` of the requests are within it.
        """
        self._fleets, self._simulate, self._share = fleets, simulate, share
        self._most_nodes = most_nodes

    def run(self, degrees: Sequence[int]) -> LeastGpus:
        """Return the least GPUs for each of `degrees`, with the largest cache and without offload.

        A degree ends where it needs as many GPUs as another one.
        """
        counts = []
        for cache in (WITH_CACHE, WITHOUT_OFFLOAD):
            fewest: int | None = None
            for degree in degrees:
                count = self._least_nodes(cache, degree, fewest)
                counts.append(count)
                if count.is_met:
                    fewest = count.gpus if fewest is None else min(fewest, count.gpus)
        return LeastGpus(counts, self._share)

    def _least_nodes(self, cache: str, degree: int, fewest: int | None) -> GpuCount:
        most = self._most_nodes
        if fewest is not None:
            most = min(most, max(1, (fewest - 1) // degree))
        nodes, failed, best_share, stale = 1, 0, -1.0, 0
        count = self._count(cache, degree, nodes)
        while not count.is_met and nodes < most and stale < _STALE_DOUBLINGS:
            failed = nodes
            stale = 0 if (count.goodput_share or 0.0) > best_share else stale + 1
            best_share = max(best_share, count.goodput_share or 0.0)
            nodes = min(2 * nodes, most)
            count = self._count(cache, degree, nodes)
        while count.is_met and nodes - failed > 1:
            middle = (nodes + failed) // 2
            middle_count = self._count(cache, degree, middle)
            if middle_count.is_met:
                nodes, count = middle, middle_count
            else:
                failed = middle
        return count

    def _count(self, cache: str, degree: int, nodes: int) -> GpuCount:
        """Return the best of the fleets of so many nodes."""
        configurations = self._fleets(cache, degree, nodes)
        results = self._simulate(configurations)
        counts = []
        for configuration in configurations:
            result = results[configuration.number]
            figures = None if isinstance(result, Failed) else result
            share = None if figures is None else figures.goodput_share
            is_running = figures is not None and not figures.stalled_requests
            counts.append(
                GpuCount(
                    cache=cache,
                    tensor_parallel=degree,
                    nodes=nodes,
                    gpus=degree * nodes,
                    is_met=is_running and share is not None and share >= self._share,
                    goodput_share=share,
                    first_token_p99_ns=None
                    if figures is None
                    else figures.first_token_ns("p99_ns"),
                    time_per_token_p99_ns=None
                    if figures is None
                    else figures.time_per_token_p99_ns,
                    command=configuration.command,
                )
            )
        return max(counts, key=lambda count: (count.is_met, count.goodput_share or 0.0))
