"""When loading a cached prefix is faster than computing it: `kvtrace.break_even`.

    compute time of a prefix   = roofline of the GPU (kvtrace/llm/serving.py)
    load time of a prefix      = latency + bytes of its KV cache x loads at a time / bandwidth
    break-even bandwidth       = bytes of its KV cache / compute time

Loading pays if it takes less time than computing. What follows the prefix is computed either way,
so the difference of the two times is the difference in time to first token (TTFT) on an idle
engine. The more tokens a prefix has, the longer attention makes each of them to compute, and the
less bandwidth is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from kvtrace.core import pl
from kvtrace.core.arrays import Array
from kvtrace.core.document.document import (
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import prefix_compute_ns
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import named, suggest_keywords
from kvtrace.core.units import (
    NS_PER_S,
    counted,
    format_bytes,
    format_duration,
    format_rate,
    percent,
)
from kvtrace.curves.stores import Store, example_stores, parse_stores
from kvtrace.llm.catalogue import find_model, full_model_name
from kvtrace.llm.gpu_memory import GpuMemory
from kvtrace.llm.serving import (
    EXAMPLE_TOKENS,
    FLOPS_SHARES,
    GPUS,
    INSTANT,
    calibration_text,
    computing_times,
    reached_share,
)
from kvtrace.llm.shape import Chunked, ModelShape, read_bytes
from kvtrace.requests.registry import read_requests
from kvtrace.requests.requests import Requests
from kvtrace.sim.chains import Chains, chunk_chains

TOKENS: Final = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SHORTEST_TOKENS: Final = 16
"""The shortest prefix that engines cache: one block of vLLM."""
_SESSION_CHUNK: Final = 16
"""Tokens of an object where the source has sessions in place of block ids."""
_LINK_GT_PER_S: Final = {
    "limit of PCIe 4.0 x4": 16 * 4,
    "limit of PCIe 5.0 x4": 32 * 4,
    "limit of PCIe 5.0 x16": 32 * 16,
}
"""Links of today, for the chart: giga-transfers a second over all lanes, of one bit each."""
_PCIE_CODING: Final = 128 / 130


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """Whether one store pays, by the length of the prefix."""

    store: Store
    pays_from_tokens: int | None
    """The shortest prefix from which on loading is faster than computing; None if it is not faster
    at the longest.
    """


@dataclass(frozen=True, slots=True)
class PrefixPoint:
    """A prefix of one length, computed and loaded."""

    tokens: int
    kv_bytes: int
    """Bytes that are read to resume after the prefix, of all ranks."""
    compute_ns: int
    """Modelled time to compute the prefix."""
    break_even_bytes_per_s: float
    load_ns: dict[str, float]
    """Time to load the prefix, by the store's name."""
    compute_j: float
    """Energy to compute the prefix, at the power of the GPUs' data sheet."""
    load_j: dict[str, float | None]
    """Energy of the store while it loads the prefix; None if its power is not known."""


@dataclass(frozen=True, slots=True)
class ReplayedLoads:
    """What a store would do for the requests of a log if it held every prefix that came before."""

    store: str
    loads: int
    """Requests that begin with a prefix of an earlier request."""
    slower_loads: int
    """Loads that take longer than computing their prefix."""
    compute_ns: int
    """Time to compute the prefixes of all loads."""
    load_ns: int
    """Time to load all of them."""
    best_ns: int
    """Time if each prefix is loaded or computed, whichever is faster."""

    @property
    def slower_share(self) -> float | None:
        """Share of the loads that are slower than computing; None without loads."""
        return self.slower_loads / self.loads if self.loads else None


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The break-even bandwidth of a model on a GPU, and which stores reach it."""

    model: str
    gpu: str
    tensor_parallel: int
    loads: int
    """Loads that share a store's bandwidth at a time."""
    max_context_tokens: int
    points: list[PrefixPoint]
    verdicts: list[StoreVerdict]
    replayed: list[ReplayedLoads]
    """One for each store if requests were given; else empty."""
    notes: list[str]

    @property
    def answer(self) -> str:
        """Whether each store pays, and why, in one line."""
        verdicts = "; ".join(self._verdict_text(verdict) for verdict in self.verdicts)
        return f"{self.name}: {verdicts}{self._reason()}"

    @property
    def name(self) -> str:
        """The model and what it runs on, such as "llama3.1-70b on 4 x h100"."""
        gpus = self.gpu if self.tensor_parallel == 1 else f"{self.tensor_parallel} x {self.gpu}"
        return f"{self.model} on {gpus}"

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each prefix length and store: sizes in bytes, times in ns, energy in J."""
        rows = [
            {
                "tokens": point.tokens,
                "kv_bytes": point.kv_bytes,
                "compute_ns": point.compute_ns,
                "break_even_bytes_per_s": point.break_even_bytes_per_s,
                "store": name,
                "load_ns": load_ns,
                "times_faster": point.compute_ns / load_ns,
                "compute_j": point.compute_j,
                "load_j": point.load_j[name],
            }
            for point in self.points
            for name, load_ns in point.load_ns.items()
        ]
        return pl.DataFrame(rows)

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace breakeven --json` prints it."""
        return {"answer": self.answer} | asdict(self)

    def document(self) -> Document:
        """Return the answer, the table by prefix length, and its picture."""
        tables = [self._lengths_table()]
        if self.replayed:
            tables.append(self._requests_table())
        return Document("", self.answer, [Chapter("", tables, self.notes)])

    def _verdict_text(self, verdict: StoreVerdict) -> str:
        store, tokens = verdict.store, verdict.pays_from_tokens
        name = store.describe()
        if tokens is None:
            return f"{name} does not pay, up to {self.max_context_tokens:,} tokens"
        if tokens <= SHORTEST_TOKENS:
            return f"{name} pays for prefixes of any length"
        return f"{name} pays for prefixes from {tokens:,} tokens on"

    def _reason(self) -> str:
        """Return the two times of the first store that decide, at the example's length."""
        point = min(self.points, key=lambda point: abs(point.tokens - EXAMPLE_TOKENS))
        load_ns = point.load_ns[self.verdicts[0].store.name]
        return (
            f" ({point.tokens:,} tokens: {format_duration(point.compute_ns)} to compute,"
            f" {format_duration(load_ns)} to load from {self.verdicts[0].store.name}; break-even at"
            f" {format_rate(point.break_even_bytes_per_s)})"
        )

    def _lengths_table(self) -> ReportTable:
        columns = [
            ReportColumn("tokens", "prefix tokens", Unit.COUNT),
            ReportColumn("kv_bytes", "KV cache", Unit.BYTES),
            ReportColumn("compute_ns", "compute (modelled)", Unit.NS),
            ReportColumn("break_even_bytes_per_s", "break-even", Unit.BYTES_PER_S),
            ReportColumn("compute_j", "energy (J)", Unit.NUMBER),
        ]
        # By their number: a store may have the name of another column.
        for number, verdict in enumerate(self.verdicts):
            name = verdict.store.name
            columns.append(ReportColumn(f"store{number}_ns", f"{name}: load", Unit.NS))
            columns.append(ReportColumn(f"store{number}_ratio", "times faster", Unit.RATIO))
            if verdict.store.power_w is not None:
                columns.append(ReportColumn(f"store{number}_j", "energy (J)", Unit.NUMBER))
        rows = []
        for point in self.points:
            loads: JsonObject = {}
            for number, (name, load_ns) in enumerate(point.load_ns.items()):
                loads |= {
                    f"store{number}_ns": load_ns,
                    f"store{number}_ratio": point.compute_ns / load_ns,
                    f"store{number}_j": point.load_j[name],
                }
            rows.append(asdict(point) | loads)
        title = "loading a cached prefix against computing it"
        return table_of(title, Sheet.SUMMARY, columns, rows, charts=(self.chart(),))

    def chart(self) -> Chart:
        """Return the bandwidth that is needed, and that of each store, against the length."""
        return chart_of([("break-even bandwidth", self)])

    def _requests_table(self) -> ReportTable:
        columns = [
            ReportColumn("store"),
            ReportColumn("loads", unit=Unit.COUNT),
            ReportColumn("slower_share", "slower than computing", Unit.SHARE),
            ReportColumn("compute_ns", "all computed", Unit.NS),
            ReportColumn("load_ns", "all loaded", Unit.NS),
            ReportColumn("best_ns", "the faster of both", Unit.NS),
        ]
        rows = [asdict(loads) | {"slower_share": loads.slower_share} for loads in self.replayed]
        return table_of("the prefixes of these requests", Sheet.SUMMARY, columns, rows)

    def __repr__(self) -> str:
        """Return the answer."""
        return f"BreakEven({self.answer!r})"

    def _repr_html_(self) -> str:
        """Return the table by prefix length for a notebook."""
        rows = [
            [
                f"{point.tokens:,}",
                format_bytes(point.kv_bytes),
                format_duration(point.compute_ns),
                format_rate(point.break_even_bytes_per_s),
            ]
            for point in self.points
        ]
        return html_table(["prefix tokens", "KV cache", "compute", "break-even"], rows)


def chart_of(engines: Sequence[tuple[str, BreakEven]]) -> Chart:
    """Return the bandwidth that each engine needs, by its label, and that of stores and links.

    The stores are those of the first engine: all load the same bytes of their own models.
    """
    points, verdicts = engines[0][1].points, engines[0][1].verdicts
    tokens = [float(point.tokens) for point in points]
    series = [
        Series(
            label,
            [float(point.tokens) for point in engine.points],
            [point.break_even_bytes_per_s for point in engine.points],
        )
        for label, engine in engines
    ]
    for verdict in verdicts:
        name = verdict.store.name
        rates = [point.kv_bytes / point.load_ns[name] * NS_PER_S for point in points]
        series.append(Series(f"{name}, latency included", tokens, rates))
    for link, gigatransfers in _LINK_GT_PER_S.items():
        limit = gigatransfers * 1e9 * _PCIE_CODING / 8
        series.append(Series(link, [tokens[0], tokens[-1]], [limit, limit]))
    return Chart(
        "Bandwidth at which loading is as fast as computing",
        ChartShape.LOAD,
        Unit.COUNT,
        Unit.BYTES_PER_S,
        series,
        x_title="tokens of the prefix",
        y_title="bandwidth",
    )


@suggest_keywords
def break_even(
    requests: Requests | str | Path | None = None,
    *,
    model: str | Path = "llama3.1-8b",
    gpu: str = "h100",
    tensor_parallel: int | None = None,
    kv_dtype: str | None = None,
    stores: Sequence[str] | None = None,
    prefix_tokens: Sequence[int] | None = None,
    loads: int = 1,
) -> BreakEven:
    """Return from which bandwidth on loading a cached prefix is faster than computing it.

    Compute times are modelled by a roofline of the GPU. Load times are latency and bandwidth, on a
    store that does nothing else.

    Args:
        requests: A log of requests, or the path of one. For its prefixes that came before, the
            result says how many loads would be slower than computing.
        model: A name of `models()`, a Hugging Face name, or the path of a `config.json`.
        gpu: The GPU, such as "h100".
        tensor_parallel: Tensor-parallel ranks, each a GPU. Default: 1, or as many GPUs as hold the
            model's weights.
        kv_dtype: Element type of the cache, such as "fp8". Default: the model's.
        stores: Stores as "NAME=BANDWIDTH", with a latency and a power if they are known, such as
            "qlc=3GB/s,100us,20W"; without a name, the text is the name. Or "sim:drive.json", a
            drive that `kvreplay scorecard` measured. Default: a drive of 7 GB/s, and an object
            store of 25 GB/s.
        prefix_tokens: Lengths of prefixes. Default: powers of two up to the model's context.
        loads: Loads that share a store's bandwidth at a time.

    Raises:
        ConfigError: for an unknown model or GPU, a GPU without compute times, a model whose number
            of parameters is unknown, and a store that is not written as above.
        TraceError: for a damaged file of requests, or a damaged drive file.

    Examples:
        >>> import kvtrace as kt
        >>> result = kt.break_even(model="llama3.1-8b", gpu="h100", stores=["qlc=3GB/s,100us"])
        >>> result.verdicts[0].pays_from_tokens
        54121

    """
    if gpu == INSTANT:
        raise ConfigError(f"{named('gpu', gpu)} computes in no time, so no load pays; name a GPU")
    if (tensor_parallel is not None and tensor_parallel < 1) or loads < 1:
        name = "loads" if loads < 1 else "tensor_parallel"
        raise ConfigError(f"{named(name)} must be > 0")
    shape = find_model(str(model), kv_dtype)
    compared_stores = example_stores() if stores is None else parse_stores(stores)
    if isinstance(requests, str | Path):
        requests = read_requests(requests)
    return model_break_even(
        shape,
        full_model_name(str(model)),
        gpu,
        tensor_parallel,
        compared_stores,
        requests=requests,
        prefix_tokens=prefix_tokens,
        loads=loads,
    )


def model_break_even(
    shape: ModelShape,
    name: str,
    gpu: str,
    tensor_parallel: int | None,
    compared_stores: Sequence[Store] | None = None,
    *,
    requests: Requests | None = None,
    prefix_tokens: Sequence[int] | None = None,
    loads: int = 1,
) -> BreakEven:
    """Return `break_even` of a model that is resolved already; `name` is the one that is shown."""
    ranks, notes = _ranks_of(gpu, shape, tensor_parallel)
    knobs = computing_times(gpu, shape, ranks)
    times = _PrefixTimes(shape, knobs, ranks)
    power_w = GPUS[gpu].power_w * ranks
    if compared_stores is None:
        compared_stores = example_stores()
    longest = shape.max_context_tokens
    lengths = _checked_lengths(prefix_tokens, longest)
    return BreakEven(
        model=name,
        gpu=gpu,
        tensor_parallel=ranks,
        loads=loads,
        max_context_tokens=longest,
        points=[_point(times, power_w, tokens, compared_stores, loads) for tokens in lengths],
        verdicts=[
            StoreVerdict(store, _pays_from(times, store, loads, longest))
            for store in compared_stores
        ],
        replayed=(
            []
            if requests is None
            else _replay_loads(times, _reused_tokens(requests), compared_stores, loads)
        ),
        notes=[*notes, *_notes(shape, name, gpu, ranks, compared_stores, loads, requests)],
    )


def _ranks_of(gpu: str, shape: ModelShape, named_ranks: int | None) -> tuple[int, list[str]]:
    """Return the ranks that the user named, or those that hold the weights with a note on them."""
    if named_ranks is not None or gpu not in GPUS or not shape.parameters:
        return named_ranks or 1, []
    return GpuMemory(gpu, shape).choose_ranks()


def mean_break_even(
    shape: ModelShape, knobs: JsonObject, ranks: int, requests: Requests | None
) -> float | None:
    """Return the bandwidth at which loading all prefixes takes as long as computing them, bytes/s.

    The prefixes are those of `requests` that came before, or without requests one of EXAMPLE_TOKENS
    tokens. None if computing takes no time, or no prefix came before.

    Args:
        shape: The model.
        knobs: Its compute times, as `computing_times` returns them.
        ranks: Tensor-parallel ranks.
        requests: The requests, if there is a log of them.

    """
    times = _PrefixTimes(shape, knobs, ranks)
    lengths = np.array([min(EXAMPLE_TOKENS, shape.max_context_tokens)], np.int64)
    if requests is not None:
        reused_tokens = _reused_tokens(requests)
        lengths = reused_tokens[reused_tokens > 0]
    compute_ns = int(times.compute_ns(lengths).sum())
    if compute_ns == 0:
        return None
    distinct, counts = np.unique(lengths, return_counts=True)
    kv_bytes = sum(
        times.kv_bytes(int(tokens)) * int(count)
        for tokens, count in zip(distinct, counts, strict=True)
    )
    return kv_bytes * NS_PER_S / compute_ns


class _PrefixTimes:
    """Bytes and compute time of the prefixes of one model on one engine."""

    def __init__(self, shape: ModelShape, knobs: JsonObject, ranks: int) -> None:
        self._shape = shape
        self._knobs = knobs
        self._ranks = ranks

    def kv_bytes(self, tokens: int) -> int:
        """Return the bytes that are read to resume after `tokens` tokens, of all ranks."""
        return read_bytes(self._shape, tokens, chunk_tokens=1, ranks=self._ranks)

    def compute_ns(self, tokens: Sequence[int] | Array) -> Array:
        """Return how long each prefix of `tokens` tokens takes to compute, ns (int64)."""
        return prefix_compute_ns(self._knobs, tokens)

    def spans(self, longest: int) -> list[tuple[int, int]]:
        """Return the first and last lengths of the spans of prefixes, the longest first.

        In chunked layers each span begins with nothing to read; other models have one span.
        """
        shortest = min(SHORTEST_TOKENS, longest)
        starts = {shortest}
        for group in self._shape.groups:
            if isinstance(group, Chunked):
                starts.update(range(group.window_tokens, longest + 1, group.window_tokens))
        rising = sorted(start for start in starts if start >= shortest)
        ends = [start - 1 for start in rising[1:]] + [longest]
        return list(zip(rising, ends, strict=True))[::-1]


def _point(
    times: _PrefixTimes, power_w: float, tokens: int, stores: Sequence[Store], loads: int
) -> PrefixPoint:
    kv_bytes = times.kv_bytes(tokens)
    compute_ns = int(times.compute_ns([tokens])[0])
    load_ns = {store.name: float(store.load_ns(kv_bytes, loads)) for store in stores}
    return PrefixPoint(
        tokens=tokens,
        kv_bytes=kv_bytes,
        compute_ns=compute_ns,
        break_even_bytes_per_s=kv_bytes * loads * NS_PER_S / compute_ns,
        load_ns=load_ns,
        compute_j=power_w * compute_ns / NS_PER_S,
        load_j={
            # Loads at a time share the store, and so its power.
            store.name: None
            if store.power_w is None
            else store.power_w * load_ns[store.name] / loads / NS_PER_S
            for store in stores
        },
    )


def _pays_from(times: _PrefixTimes, store: Store, loads: int, longest: int) -> int | None:
    """Return the shortest prefix from which on loads from `store` are faster than computing.

    None if the longest prefix is not.
    """

    def gain_ns(tokens: int) -> float:
        load_ns = store.load_ns(times.kv_bytes(tokens), loads)
        return float(times.compute_ns([tokens])[0] - load_ns)

    for first, last in times.spans(longest):
        slower = _last_slower(gain_ns, first, last)
        if slower is not None:
            return None if slower == longest else slower + 1
    return min(SHORTEST_TOKENS, longest)


def _last_slower(gain_ns: Callable[[int], float], first: int, last: int) -> int | None:
    """Return the longest prefix of `first` to `last` tokens of which loading is not faster.

    None if loading is faster for all. Within a span the compute time of a token never falls with
    its place, and its bytes never rise: what loading gains may fall first, and then only rises.
    """
    if gain_ns(last) <= 0:
        return last
    least = _first_true(lambda tokens: gain_ns(tokens + 1) > gain_ns(tokens), first, last)
    if gain_ns(least) > 0:
        return None
    return _first_true(lambda tokens: gain_ns(tokens) > 0, least, last) - 1


def _first_true(is_reached: Callable[[int], bool], first: int, last: int) -> int:
    """Return the first number from `first` on that reaches it; `last` if none before does."""
    return first + bisect_left(range(first, last), True, key=is_reached)


def _reused_tokens(requests: Requests) -> Array:
    """Return for each request how many of its first tokens an earlier request had (int64).

    Only whole blocks count. Of a prompt that came before as a whole the last token is computed
    again, because it gives the first token of the answer.
    """
    chunk_tokens = requests.block_tokens or _SESSION_CHUNK
    chains = chunk_chains(requests, chunk_tokens)
    reused = _leading_hits(chains) * chunk_tokens
    return np.minimum(reused, np.maximum(requests.input_tokens - 1, 0))


def _leading_hits(chains: Chains) -> Array:
    """Return for each request how many of its leading objects an earlier request named (int64)."""
    counts = np.diff(chains.offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    # Objects are numbered by first appearance, so an object is new where its number is the
    # greatest so far.
    greatest_before = np.full(len(chains.slots), -1, np.int64)
    if len(chains.slots):
        greatest_before[1:] = np.maximum.accumulate(chains.slots)[:-1]
    is_new = chains.slots > greatest_before
    place = np.arange(len(chains.slots)) - np.repeat(chains.offsets[:-1], counts)
    hits = counts.astype(np.int64)
    np.minimum.at(hits, owner[is_new], place[is_new])
    return hits


def _replay_loads(
    times: _PrefixTimes, reused_tokens: Array, stores: Sequence[Store], loads: int
) -> list[ReplayedLoads]:
    lengths = reused_tokens[reused_tokens > 0]
    compute_ns = times.compute_ns(lengths)
    distinct, inverse = np.unique(lengths, return_inverse=True)
    sizes = np.array([times.kv_bytes(int(tokens)) for tokens in distinct], np.int64)[inverse]
    outcomes = []
    for store in stores:
        load_ns = store.load_ns(sizes, loads)
        outcomes.append(
            ReplayedLoads(
                store=store.name,
                loads=len(lengths),
                slower_loads=int(np.count_nonzero(load_ns >= compute_ns)),
                compute_ns=int(compute_ns.sum()),
                load_ns=round(load_ns.sum()),
                best_ns=round(np.minimum(load_ns, compute_ns).sum()),
            )
        )
    return outcomes


def _checked_lengths(prefix_tokens: Sequence[int] | None, longest: int) -> list[int]:
    """Return the lengths of prefixes, rising, without those beyond the model's context."""
    if prefix_tokens is None:
        return sorted({min(tokens, longest) for tokens in TOKENS})
    for tokens in prefix_tokens:
        if not 0 < tokens <= longest:
            raise ConfigError(
                f"{named('prefix_tokens', tokens)}: the model's context has 1 to {longest:,} tokens"
            )
    if not prefix_tokens:
        raise ConfigError(f"{named('prefix_tokens')}: give one or more")
    return sorted(set(prefix_tokens))


def _notes(
    shape: ModelShape,
    name: str,
    gpu: str,
    ranks: int,
    stores: Sequence[Store],
    loads: int,
    requests: Requests | None,
) -> list[str]:
    share = percent(reached_share(FLOPS_SHARES, ranks))
    basis = (
        f"compute times are modelled ({GPUS[gpu].source}; {share} of its bf16 FLOPs,"
        f" {calibration_text(gpu)})"
    )
    sharing = f"load times are latency and bandwidth, for {counted(loads, 'load')} at a time"
    caveat = (
        "on a busy GPU a load that is slower than computing can still raise throughput, because"
        " other prompts are computed meanwhile: kvtrace gen simulates that"
    )
    energy = (
        f"energy: {GPUS[gpu].power_w:g} W a GPU by its data sheet, which computing does not exceed,"
        " and the power of a store if it is given"
    )
    weights, memory = round(shape.parameters * shape.weight_bytes), ranks * GPUS[gpu].memory_bytes
    fit = (
        [
            (
                f"{name}: weights of {format_bytes(weights)} do not fit in the"
                f" {format_bytes(memory)} of {ranks} x {gpu}: no engine computes in these times;"
                " give more GPUs (--tp) or another --gpu"
            )
        ]
        if weights > memory
        else []
    )
    notes = [*fit, basis, sharing, *(store.note for store in stores if store.note), energy, caveat]
    if requests is not None:
        notes.append(
            "requests: every prefix of an earlier request is taken to be in the store; kvtrace size"
            " says how much capacity that takes"
        )
    return [*notes, *shape.notes]
