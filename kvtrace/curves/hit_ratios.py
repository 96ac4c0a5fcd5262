"""Hit rates against capacity as Python functions: of a tier in bytes, of a cache in blocks.

requests + policy + capacities -> `hit_ratio_curve`, `CapacityCurve`, `HitCounts`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvtrace.core import pl
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import named, suggest_keywords
from kvtrace.core.units import counted, format_bytes, parse_bytes, parse_duration_ns
from kvtrace.curves.documents import bounded_capacity, curve_document
from kvtrace.curves.mrc import CurvePoint, HitCurve, SufficientCapacity, check_policy, sweep
from kvtrace.curves.stack import optimal_uses, policy_uses
from kvtrace.llm.catalogue import find_model, full_model_name
from kvtrace.llm.shape import bytes_per_token
from kvtrace.requests.registry import read_requests
from kvtrace.requests.requests import Requests
from kvtrace.sim.chains import block_chains, chunk_chains
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.tier import MAX_TTL_NS

_MAX_BLOCKS = 2**62


@suggest_keywords
def hit_ratio_curve(
    requests: Requests | str | Path,
    *,
    policies: Sequence[str] = ("lru",),
    capacities: Sequence[str | int] | None = None,
    points: int = 20,
    model: str = "llama3.1-8b",
    kv_dtype: str | None = None,
    chunk_tokens: int | None = None,
    sample: float | None = None,
) -> pl.DataFrame:
    """Return hit rate against capacity of a single cache tier, for each policy.

    LRU is exact at every capacity, from one pass over the requests. Another policy is simulated at
    each capacity, with samples of a large file.

    Args:
        requests: What `read_requests` returned, or the path of a file that it reads.
        policies: Names of `policies()`: lru, lfu, fifo, clock, s3fifo, sieve, arc; or belady, the
            optimum, which knows all later requests.
        capacities: Sizes such as "64GiB", or numbers of bytes; rounded down to whole objects.
            Default: `points` capacities from one object to all of them, log-spaced.
        points: How many capacities if none are given.
        model: The model that is served: its KV cache gives the bytes of an object.
        kv_dtype: Element type of the cache. Default: the model's.
        chunk_tokens: Tokens of an object. Default: those of the requests' blocks.
        sample: Share of the objects to simulate for policies other than LRU; 1 is exact. Default:
            1, or the share with a million references.

    Returns:
        One row for each policy and capacity: `policy`, `capacity_bytes`, `capacity_objects`,
        `lookups`, `hits`, `hit_ratio`, `hit_ratio_error` (0 where exact), `optimal_hit_ratio`
        (null where it was not computed), `read_bytes` and `written_bytes`.

    Raises:
        ConfigError: for an unknown policy or model, or if no prompt fills an object.

    Examples:
        >>> import kvtrace as kt, polars as pl
        >>> frame = pl.DataFrame({
        ...     "arrival_ns": [0, 1, 2], "input_tokens": [32, 32, 32], "output_tokens": [1, 1, 1],
        ...     "block_ids": [[0, 1], [2, 3], [0, 1]],
        ... })
        >>> requests = kt.Requests.from_polars(frame, block_tokens=16)
        >>> curve = kt.hit_ratio_curve(
        ...     requests, policies=["lru", "belady"], capacities=["4MiB", "8MiB"]
        ... )
        >>> curve.select("policy", "capacity_objects", "hits").rows()
        [('lru', 2, 0), ('lru', 4, 2), ('belady', 2, 2), ('belady', 4, 2)]

    """
    if isinstance(requests, str | Path):
        requests = read_requests(requests)
    shape = find_model(model, kv_dtype)
    object_bytes = (chunk_tokens or requests.block_tokens) * bytes_per_token(shape)
    objects = None
    if capacities is not None:
        sizes = [
            parse_bytes(capacity) if isinstance(capacity, str) else capacity
            for capacity in capacities
        ]
        objects = [size // object_bytes for size in sizes] if object_bytes else None
        if objects is not None and min(objects, default=0) < 1:
            raise ConfigError(f"capacities: an object takes {object_bytes} bytes; none fits")
    rows = []
    for name in policies:
        policy = check_policy(name)
        lru_needs_no_sample = None if policy == Policy.LRU else sample
        curve = sweep(
            requests, shape, chunk_tokens, points, policy, lru_needs_no_sample, objects=objects
        )
        rows += [
            {
                "policy": name,
                "capacity_bytes": point.capacity_bytes,
                "capacity_objects": point.capacity_objects,
                "lookups": curve.references,
                "hits": point.hits,
                "hit_ratio": point.hit_ratio,
                "hit_ratio_error": point.hit_ratio_error,
                "optimal_hit_ratio": point.optimal_hit_ratio,
                "read_bytes": point.read_bytes,
                "written_bytes": point.written_bytes,
            }
            for point in curve.points
        ]
    return pl.DataFrame(rows, schema_overrides={"optimal_hit_ratio": pl.Float64})


def policies() -> list[str]:
    """Return the names of the eviction policies that `hit_ratio_curve` takes.

    Examples:
        >>> import kvtrace as kt
        >>> "s3fifo" in kt.policies()
        True
    """
    return [str(policy) for policy in Policy if policy not in (Policy.SAE, Policy.TTL)] + ["belady"]


@dataclass(frozen=True, slots=True)
class CapacityCurve:
    """Hits, and bytes read and written, of one tier alone at each of some capacities."""

    model: str
    """The model whose KV cache is stored."""
    source: JsonObject
    """Where the requests came from."""
    policy: str
    """The eviction policy, as it was named."""
    curve: HitCurve
    """The points, the size of an object, and the share of the objects that was simulated."""

    @property
    def points(self) -> list[CurvePoint]:
        """The figures at each capacity, the smallest first."""
        return self.curve.points

    @property
    def sufficient(self) -> list[SufficientCapacity]:
        """The capacities that reach 50 %, 90 %, 95 %, 99 % and all of the possible hits."""
        return self.curve.enough

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each capacity, with the fields of `CurvePoint` as columns."""
        rows = [asdict(point) for point in self.points]
        return pl.DataFrame(rows, schema_overrides={"optimal_hit_ratio": pl.Float64})

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace mrc --json` prints it."""
        return {"model": self.model, "source": self.source, **asdict(self.curve)}

    def document(self) -> Document:
        """Return the tables and charts as a document for a terminal or a page."""
        return curve_document(self.curve, self.policy)

    def __repr__(self) -> str:
        return f"<CapacityCurve: {self.policy}, {counted(len(self.points), 'point')}>"

    def _repr_html_(self) -> str:
        """Return the points for a notebook."""
        rows = [[format_bytes(p.capacity_bytes), f"{p.hit_ratio:.1%}"] for p in self.points]
        return html_table(["capacity", "hit rate"], rows)


@suggest_keywords
def capacity_curve(
    requests: Requests | str | Path,
    *,
    policy: str = "lru",
    points: int = 20,
    model: str = "llama3.1-8b",
    kv_dtype: str | None = None,
    chunk_tokens: int | None = None,
    sample: float | None = None,
) -> CapacityCurve:
    """Return hits, and bytes read and written, against the capacity of one tier alone.

    `hit_ratio_curve` compares several policies in one frame. This is one of them in full, with the
    bytes of an object and the capacities that reach shares of all possible hits.

    Args:
        requests: As in `hit_ratio_curve`.
        policy: A name of `policies()`.
        points: How many capacities, log-spaced from one object to all of them.
        model: As in `hit_ratio_curve`.
        kv_dtype: As in `hit_ratio_curve`.
        chunk_tokens: As in `hit_ratio_curve`.
        sample: As in `hit_ratio_curve`.

    Raises:
        ConfigError: for an unknown policy or model, or if no prompt fills an object.

    Examples:
        >>> import kvtrace as kt, polars as pl
        >>> frame = pl.DataFrame({
        ...     "arrival_ns": [0, 1, 2], "input_tokens": [32, 32, 32], "output_tokens": [1, 1, 1],
        ...     "block_ids": [[0, 1], [2, 3], [0, 1]],
        ... })
        >>> curve = kt.capacity_curve(kt.Requests.from_polars(frame, block_tokens=16), points=2)
        >>> [(point.capacity_objects, point.hits) for point in curve.points]
        [(1, 0), (4, 2)]
        >>> curve.sufficient[-1].capacity_objects
        4

    """
    if isinstance(requests, str | Path):
        requests = read_requests(requests)
    shape, chosen = find_model(model, kv_dtype), check_policy(policy)
    curve = sweep(requests, shape, chunk_tokens, points, chosen, sample)
    return CapacityCurve(full_model_name(model), requests.origin, policy, curve)


@dataclass(frozen=True, slots=True)
class CountedHits:
    """Hits of one cache of `capacity_blocks` over all requests; a capacity of None is unlimited."""

    capacity_blocks: int | None
    hits: int
    optimal_hits: int
    """Hits of Belady's optimum, which no policy exceeds."""


@dataclass(frozen=True, slots=True)
class HitCounts:
    """Hits of one cache at each of some capacities, counted in blocks."""

    policy: str
    ttl_ns: int | None
    """How long a block is kept under the policy ttl; None for another policy."""
    requests: int
    references: int
    """Blocks that the requests look up."""
    results: list[CountedHits]
    """One for each capacity, in the order given."""
    full_blocks: bool
    """Whether partial last blocks of prompts are left out."""

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each capacity; a null capacity is unlimited."""
        rows = [
            asdict(result) | {"hit_ratio": self.ratio_of(result.hits)} for result in self.results
        ]
        types = {"capacity_blocks": pl.Int64, "hit_ratio": pl.Float64}
        return pl.DataFrame(rows, schema_overrides=types)

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace sim --json` prints it."""
        return {
            "policy": self.policy,
            "ttl_ns": self.ttl_ns,
            "requests": self.requests,
            "references": self.references,
            "results": [asdict(result) for result in self.results],
            "full_blocks": self.full_blocks,
        }

    def document(self) -> Document:
        """Return the table as a document for a terminal."""
        blocks = "full blocks" if self.full_blocks else "partial last blocks included"
        title = (
            f"{self.policy}: {counted(self.references, 'reference')} of"
            f" {counted(self.requests, 'request')}, {blocks}"
        )
        columns = [
            ReportColumn("capacity_blocks", "capacity in blocks", Unit.COUNT),
            ReportColumn("hits", unit=Unit.COUNT),
            ReportColumn("hit_ratio", "hit rate", Unit.SHARE),
            ReportColumn("optimal_hit_ratio", "optimal", Unit.SHARE),
        ]
        rows = [
            [
                bounded_capacity(result.capacity_blocks),
                result.hits,
                self.ratio_of(result.hits),
                self.ratio_of(result.optimal_hits),
            ]
            for result in self.results
        ]
        return Document("", "", [Chapter("", [table_of(title, Sheet.SUMMARY, columns, rows)])])

    def ratio_of(self, hits: int) -> float | None:
        """Return `hits` as a share of all references; None without any."""
        return hits / self.references if self.references else None

    def _repr_html_(self) -> str:
        """Return the counts for a notebook."""
        rows = [[str(r.capacity_blocks or "unlimited"), f"{r.hits:,}"] for r in self.results]
        return html_table(["capacity in blocks", "hits"], rows)


@suggest_keywords
def count_hits(
    requests: Requests | str | Path,
    capacity_blocks: Sequence[int | None],
    *,
    policy: str = "lru",
    ttl: str | None = None,
    full_blocks: bool = False,
) -> HitCounts:
    """Count the hits of one cache at each capacity, block by block in the order of the requests.

    A hit is a block of a request's leading run: found in the cache before the request's first miss.

    Args:
        requests: What `read_requests` returned, or the path of a file that it reads.
        capacity_blocks: Capacities in blocks; None is unlimited.
        policy: A name of `policies()`, or ttl.
        ttl: How long the policy ttl keeps a block, such as "10m".
        full_blocks: Leave out partial last blocks of prompts, which engines do not store.

    Raises:
        ConfigError: for an unknown policy, a capacity below 1, or requests without block ids.

    Examples:
        >>> import kvtrace as kt, polars as pl
        >>> frame = pl.DataFrame({
        ...     "arrival_ns": [0, 1, 2], "input_tokens": [32, 32, 32], "output_tokens": [1, 1, 1],
        ...     "block_ids": [[0, 1], [2, 3], [0, 1]],
        ... })
        >>> requests = kt.Requests.from_polars(frame, block_tokens=16)
        >>> counts = kt.count_hits(requests, [2, None])
        >>> [(result.hits, result.optimal_hits) for result in counts.results]
        [(0, 2), (2, 2)]

    """
    chosen = check_policy(policy)
    if (chosen == Policy.TTL) != (ttl is not None):
        raise ConfigError(
            f"{named('policy', 'ttl')} needs {named('ttl')}, such as 10m, and {named('ttl')} needs"
            f" {named('policy', 'ttl')}"
        )
    ttl_ns = parse_duration_ns(ttl) if ttl is not None else 0
    if ttl is not None and not 0 < ttl_ns <= MAX_TTL_NS:
        raise ConfigError(f"{named('ttl', ttl)}: must be > 0, and at most {MAX_TTL_NS // 10**9} s")
    for capacity in capacity_blocks:
        if capacity is not None and not 0 < capacity < _MAX_BLOCKS:
            raise ConfigError(f"{named('capacity_blocks', capacity)}: must be > 0")
    if isinstance(requests, str | Path):
        requests = read_requests(requests)
    if not requests.block_tokens:
        name = requests.origin.get("file", "the source")
        raise ConfigError(f"{name} has no block ids, which are counted here: use kvtrace gen")
    chains = (
        chunk_chains(requests, requests.block_tokens) if full_blocks else block_chains(requests)
    )
    uses = policy_uses(
        chains, capacity_blocks, chosen, arrival_ns=requests.arrival_ns, ttl_ns=ttl_ns
    )
    optimal = optimal_uses(chains, capacity_blocks)
    results = [
        CountedHits(capacity, policy_use.hits, optimal_use.hits)
        for capacity, policy_use, optimal_use in zip(capacity_blocks, uses, optimal, strict=True)
    ]
    return HitCounts(policy, ttl_ns or None, len(requests), len(chains.slots), results, full_blocks)
