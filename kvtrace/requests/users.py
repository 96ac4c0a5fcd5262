"""Synthetic users: turns of chatbot, coding and document conversations, and their arrivals.

The templates are those of the MLPerf Storage KV-cache benchmark. Three loads use them:

- Closed loop: the next turn of a user arrives a think time after the answer to the last one. Each
  random number depends on (seed, user, count of numbers before), so users are independent.
- Overlap, as in the MLPerf benchmark's program: users do not wait for answers. Requests queue by
  service class and then by time for one of as many servers as users; a server is busy while it
  generates the answer. Under overload, lower classes are hardly served.
- Open loop: arrivals are even, Poisson, bursty (gamma) or diurnal, and independent of answers.

A random arrival process is stationary, so its expected rate is exact over any window:

    first time = uniform share of a length-biased interval (the one at a random moment)
    later times = previous time + interval (gamma; shape 1 is Poisson)
    diurnal: thin a Poisson process at the peak rate by rate(time) / peak (Lewis and Shedler, 1979)

The conversation and length of the n-th request in an open loop depend on the seed and the number of
live conversations only: another process has the same requests at other times.

Shared system prompts and documents, and the halves of a disaggregated node, are off by default;
`--set workload.prompt_share=0.2` turns some on.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa
from kvtrace.core.arrays import Array
from kvtrace.core.config import Bounds
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.native.library import I8, function
from kvtrace.core.parameters import named
from kvtrace.core.schema import REQUESTS, Qos, RequestKind, enum_code
from kvtrace.core.units import (
    DURATIONS_NS,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_duration,
    parse_duration_ns,
)
from kvtrace.native.records import USER, WORLD
from kvtrace.requests.int_columns import NONE, Ints
from kvtrace.requests.requests import MAX_NS, Requests, without_blocks

CONTINUE_PER_MILLE: Final = WORLD.constants["CONTINUE_PER_MILLE"]
MAX_TURNS: Final = WORLD.constants["MAX_TURNS"]

# kind: context tokens from, to; output tokens from, to; think time from, to
TEMPLATES: Final = {
    RequestKind.CHATBOT: (512, 4096, 50, 200, 100 * NS_PER_MS, 500 * NS_PER_MS),
    RequestKind.CODING: (4096, 25000, 100, 500, 200 * NS_PER_MS, 1000 * NS_PER_MS),
    RequestKind.DOCUMENT: (4096, 16384, 200, 800, 300 * NS_PER_MS, 1500 * NS_PER_MS),
}
# cumulated per mille
QOS_SHARES: Final = ((Qos.INTERACTIVE, 150), (Qos.RESPONSIVE, 500), (Qos.BATCH, 1000))

# The pseudo-user that draws the lengths of documents; see native/users.c.
LIBRARY: Final = -2
# Weight of rank 1 of a Zipf distribution with exponent 1; rank r has 1 / r of it.
ZIPF_WEIGHT: Final = 1 << 32

_draw_all = function("user_draw_all", I8, int, int, int, int, int)
_make_users = function("user_make_all", USER, I8, int, I8, int, I8, int)


def make_users(
    count: int, seed: int, *, kind: RequestKind | None = None, mean_think_ns: int | None = None
) -> tuple[Array, Array]:
    """Return `count` users (USER records) and their first arrivals (int64 ns), from `seed`.

    Without `kind`, each is of a random kind. `mean_think_ns` replaces the think times of the kinds.
    """
    users, starts = np.zeros(count, USER), np.zeros(count, dtype=np.int64)
    chosen = TEMPLATES if kind is None else {kind: TEMPLATES[kind]}
    templates = np.array(
        [[*values, enum_code(REQUESTS, "kind", name)] for name, values in chosen.items()],
        dtype=np.int64,
    )
    if mean_think_ns is not None:
        # Minimum and maximum of each kind are a third and five thirds of the mean.
        templates[:, 4:6] = mean_think_ns // 3, 5 * mean_think_ns // 3
    qos = np.array(
        [
            [enum_code(REQUESTS, "qos", name), cumulative_share]
            for name, cumulative_share in QOS_SHARES
        ],
        dtype=np.int64,
    )
    _make_users(users, starts, count, templates, len(templates), qos, seed)
    return users, starts


_OVERLAPPING = WORLD.dtype("OverlappingRequest")
_ROOM: Final = 1 << 12
_MAX_OVERLAPPING: Final = 10**7

_ask = function(
    "user_ask_overlapping", _OVERLAPPING, int, USER, I8, int, int, int, int, returns=int
)


def make_overlapping(
    count: int,
    until_ns: int,
    max_context_tokens: int,
    seed: int,
    *,
    decode_ns_per_token: int,
    max_requests: int | None = None,
    kind: RequestKind | None = None,
    mean_think_ns: int | None = None,
) -> Requests:
    """Return the requests of `count` users that as many servers start before `until_ns`.

    A request arrives when it is started. ConfigError for too many requests, or none.
    """
    users, starts = make_users(count, seed, kind=kind, mean_think_ns=mean_think_ns)
    requests = np.empty(_ROOM, _OVERLAPPING)
    while (
        rows := _ask(
            requests, len(requests), users.copy(), starts, count, seed, until_ns, max_context_tokens
        )
    ) > len(requests):
        if rows > _MAX_OVERLAPPING:
            raise ConfigError(
                f"{count} users have more than {_MAX_OVERLAPPING:,} requests: shorten"
                f" {named('duration')} or use fewer users"
            )
        requests = np.empty(2 * len(requests), _OVERLAPPING)
    requests = requests[:rows]
    # Classes are served in the order of the enum in the schema.
    requests["rank"] = users["qos"][requests["user"]]
    requests = requests[np.argsort(requests["time_ns"], kind="stable")]
    started, times = _serve(requests, count, until_ns, decode_ns_per_token, max_requests)
    if not started:
        raise ConfigError(
            f"no request arrives within {format_duration(until_ns)} with seed {seed}: raise the duration"
        )
    return _requests(requests[started], np.array(times), users, rows, decode_ns_per_token)


def _serve(
    requests: Array, servers: int, until_ns: int, decode_ns_per_token: int, max_requests: int | None
) -> tuple[list[int], list[int]]:
    """Return the requests that are started, in order, and their start times.

    A free server takes the oldest request of the highest waiting class.
    """
    times, service_ns = (
        requests["time_ns"].tolist(),
        (requests["output"] * decode_ns_per_token).tolist(),
    )
    queues = [deque(np.flatnonzero(requests["rank"] == rank).tolist()) for rank in range(len(Qos))]
    free_ns, started, started_ns = [0] * servers, list[int](), list[int]()
    while waiting := [queue for queue in queues if queue]:
        queue = next(
            (candidate for candidate in waiting if times[candidate[0]] <= free_ns[0]),
            min(waiting, key=lambda candidate: times[candidate[0]]),
        )
        start_ns = max(free_ns[0], times[queue[0]])
        if start_ns >= until_ns or len(started) == max_requests:
            break
        heapq.heapreplace(free_ns, start_ns + service_ns[queue[0]])
        started.append(queue.popleft())
        started_ns.append(start_ns)
    return started, started_ns


def _requests(
    served: Array, times: Array, users: Array, requested_count: int, decode_ns_per_token: int
) -> Requests:
    """Return `served` requests in order of their start; conversations are numbered as they begin."""
    conversation_keys = pa.array(served["user"] * (1 << 32) + served["conversation"])
    session = conversation_keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    by_class = {
        str(name): int(np.count_nonzero(served["rank"] == rank)) for rank, name in enumerate(Qos)
    }
    origin: JsonObject = {
        "kind": "overlapping",
        "users": len(users),
        "requests": len(served),
        "block_tokens": 0,
        "asked": requested_count,
        "served_by_class": by_class,
        "served_users": len(np.unique(served["user"])),
    }
    shares = ", ".join(f"{number} {name}" for name, number in by_class.items())
    notes = (
        (
            f"users do not wait for answers: of {requested_count} requests, {len(served)} of"
            f" {origin['served_users']} of {len(users)} users are served ({shares}), and arrive at"
            " their start"
        ),
        (
            f"a server is busy for {decode_ns_per_token / 1e6:g} ms a token of its answer: storage,"
            " prefill and concurrent decoding do not delay later requests"
        ),
        "the source has no block ids: prompts share a prefix within their conversation only",
    )
    inputs, outputs = (np.ascontiguousarray(served[name]) for name in ("input", "output"))
    return without_blocks(
        *(times, inputs, outputs, origin, notes),
        session_id=session,
        turn=np.ascontiguousarray(served["turn"]),
        qos=np.ascontiguousarray(users["qos"][served["user"]]),
        kind=np.ascontiguousarray(users["kind"][served["user"]]),
    )


MAX_ITEMS = 10**7
_Items = Annotated[int, Bounds(1, MAX_ITEMS)]
_ItemTokens = Annotated[int, Bounds(1, 10**7)]
_Share = Annotated[float, Bounds(0, 1)]
_ThinkTime = Annotated[str, Bounds(1, 24 * 3600 * 10**9, "> 0, and at most 24h", parse_duration_ns)]
# As in the MLPerf Storage KV-cache benchmark: lengths of documents, shorter ones for large models,
# and a chunk's bytes.
DOCUMENT_TOKENS, DOCUMENT_TOKENS_LARGE = (4000, 12_000), (1024, 4096)
LARGE_LAYERS = 64
MAX_DOCUMENT_CHUNK_BYTES = 256 << 20


class ServingMode(StrEnum):
    """The half of a disaggregated node that the storage serves."""

    BOTH = "prefill-decode"
    PREFILL_ONLY = "prefill-only"
    """Every prompt is computed and stored.

    There are no lookups and reads, and present objects are not stored again. Another node generates
    the answer, which takes time.
    """
    DECODE_ONLY = "decode-only"
    """Every request continues one of its user's entries, which exist from the start.

    Nothing is stored.
    """


class UserKind(StrEnum):
    """The kind of all synthetic users."""

    CHATBOT = "chatbot"
    """Turns of up to 512 to 4,096 new tokens."""
    CODING = "coding"
    """Up to 4,096 to 25,000."""
    DOCUMENT = "document"
    """Up to 4,096 to 16,384, and long answers."""


class Popularity(StrEnum):
    """The distribution of requests over ranked items."""

    ZIPF = "zipf"
    """Item n is requested 1/n as often as item 1."""
    UNIFORM = "uniform"


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Additions to the turns of synthetic users, which do not depend on them."""

    mode: ServingMode = ServingMode.BOTH
    """The half of a disaggregated node that the storage serves."""
    user_kind: UserKind | None = None
    """Kind of all synthetic users; by default each is a random one of the three."""
    think_time: _ThinkTime | None = None
    """Mean think time of synthetic users before their next turn, such as `30s`.

    Each user has one third to five thirds of it. The default is 0.3 s (chatbot), 0.6 s (coding) and
    0.9 s (document): the load of a benchmark, not of people.
    """
    overlap: bool = False
    """Users do not wait for answers.

    Their requests queue by service class for one of as many servers as users.
    """
    prompt_share: _Share = 0.0
    """Share of conversations that begin with one of the system prompts."""
    prompt_tokens: tuple[_ItemTokens, ...] = (512, 1024, 2048)
    """Length of each system prompt, in tokens; a conversation has a random one."""
    rag_share: _Share = 0.0
    """Share of requests that retrieve chunks of a document, which exist from the start."""
    rag_documents: _Items = 100
    """Number of documents."""
    rag_document_tokens: tuple[_ItemTokens, _ItemTokens] | None = None
    """Minimum and maximum tokens of a document.

    By default 4,000 to 12,000, or 1,024 to 4,096 for models of 64 layers and more.
    """
    rag_chunk_tokens: _ItemTokens = 512
    """Tokens of a document's chunk; with entry=turn none is larger than 256 MiB."""
    rag_top_chunks: Annotated[int, Bounds(1, 1000)] = 5
    """Number of chunks of its document that a request retrieves."""
    rag_document_popularity: Popularity = Popularity.ZIPF
    """Distribution of requests over the documents."""
    rag_chunk_popularity: Popularity = Popularity.ZIPF
    """Distribution of requests over the chunks of a document."""
    decode_entries: _Items = 10
    """With mode=decode-only: entries of a user."""
    decode_entry_tokens: _ItemTokens = 2048
    """With mode=decode-only: tokens of an entry."""

    @property
    def request_kind(self) -> RequestKind | None:
        """The kind of all users; None if they are mixed."""
        return None if self.user_kind is None else RequestKind(self.user_kind)

    @property
    def mean_think_ns(self) -> int | None:
        """The mean think time; None for that of each kind."""
        return None if self.think_time is None else parse_duration_ns(self.think_time)

    @property
    def shares(self) -> bool:
        """Tell whether the workload needs synthetic users in a closed loop."""
        return bool(self.prompt_share or self.rag_share or self.mode is ServingMode.DECODE_ONLY)


class LoadDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Defaults of a locked benchmark for `gen`; options of the command line replace them."""

    model: str | None = None
    """The model, unless the command line sets it."""
    users: _Items | None = None
    """Number of synthetic users, likewise."""
    duration: str | None = None
    """Simulated time, likewise, such as `300s`."""


def complaints_of_workload(
    workload: Workload, chunk_tokens: int, *, stores_generated: bool
) -> Iterator[str]:
    """Yield conflicts between the knobs of `workload`.

    `chunk_tokens` is 0 for entry=turn.
    """
    mode = workload.mode
    if not workload.prompt_tokens:
        yield "workload.prompt_tokens(=[]) must be some lengths"
    low, high = workload.rag_document_tokens or DOCUMENT_TOKENS
    if low > high:
        yield f"workload.rag_document_tokens(={[low, high]}) must be shortest and longest"
    used = {
        "rag_chunk_tokens": workload.rag_share,
        "decode_entry_tokens": mode is ServingMode.DECODE_ONLY,
    }
    for name in (name for name, is_used in used.items() if is_used):
        value = getattr(workload, name)
        if chunk_tokens and value % chunk_tokens:
            multiple = f"must be a multiple of chunk_tokens(={chunk_tokens})"
            yield f"workload.{name}(={value}) {multiple}: only full ones are stored"
    if workload.overlap and (workload.shares or mode is not ServingMode.BOTH):
        yield (
            "workload.overlap works without prompts, documents and modes: leave the others of"
            " workload out"
        )
    if mode is not ServingMode.BOTH and stores_generated:
        yield f"workload.mode={mode} stores no generated tokens: leave store_generated out"
    if mode is not ServingMode.BOTH and workload.rag_share:
        yield f"workload.mode={mode} retrieves no documents: leave workload.rag_share out"
    if mode is ServingMode.DECODE_ONLY and workload.prompt_share:
        yield "workload.mode=decode-only computes no prompts: leave workload.prompt_share out"


def workload_notes(workload: Workload) -> list[str]:
    """Return notes on the workload of a trace."""
    notes = []
    if workload.prompt_share:
        notes.append(
            f"{workload.prompt_share:g} of all conversations begin with one of"
            f" {len(workload.prompt_tokens)} system prompts, which all users share: the first"
            " request to need one stores it, as does the next after it is lost"
        )
    if workload.rag_share:
        notes.append(
            f"{workload.rag_share:g} of all requests retrieve {workload.rag_top_chunks} chunks of"
            f" one of {workload.rag_documents} documents, populated at the start and stored again"
            " when lost; a chunk's KV is assumed reusable at any position, so it is not part of a"
            " prefix, and later turns do not include it"
        )
    if workload.mode is ServingMode.PREFILL_ONLY:
        notes.append(
            "prefill only: nothing is looked up or loaded; answers are generated elsewhere and take"
            " their time"
        )
    if workload.mode is ServingMode.DECODE_ONLY:
        notes.append(
            f"decode only: each request continues one of its user's {workload.decode_entries}"
            f" entries of {workload.decode_entry_tokens} tokens, populated at the start; one that"
            " is lost is not computed again"
        )
    return notes


@dataclass(frozen=True, slots=True)
class Library:
    """The items that users share or that exist from the start: prompts, chunks, users' entries."""

    tokens: NDArray[np.int64]
    prompts: int
    """The number of system prompts, which are the first items."""
    document_first: NDArray[np.int64]
    """[documents + 1]: the first item of each document's chunks, and the first user's entry."""
    document_weight: NDArray[np.int64]
    """[documents]: cumulated weights of their popularity."""

    @property
    def first_entry(self) -> int:
        """The first item that is a user's entry."""
        return int(self.document_first[-1])

    def kinds(self, entry: str) -> list[tuple[str, int, int]]:
        """Return (kind, first item, end) of the items; `entry` is the kind of users' entries."""
        bounds = pairwise([0, self.prompts, self.first_entry, len(self.tokens)])
        object_kinds = zip(("prompt", "document", entry), bounds, strict=True)
        return [(kind, first, end) for kind, (first, end) in object_kinds if first < end]


def library_of(
    workload: Workload, users: int, layers: int, bytes_per_token: int, *, is_turn: bool, seed: int
) -> Library:
    """Return the items that `users` share or that exist from the start.

    Document lengths are random, from `seed`.
    """
    token_parts = [
        np.array(workload.prompt_tokens if workload.prompt_share else (), dtype=np.int64)
    ]
    prompts = len(token_parts[0])
    document_first, document_weight = [prompts], np.zeros(0, dtype=np.int64)
    if workload.rag_share:
        chunk = workload.rag_chunk_tokens
        if is_turn:
            chunk = max(1, min(chunk, MAX_DOCUMENT_CHUNK_BYTES // bytes_per_token))
        default_lengths = DOCUMENT_TOKENS_LARGE if layers >= LARGE_LAYERS else DOCUMENT_TOKENS
        lengths = np.empty(workload.rag_documents, np.int64)
        _draw_all(
            lengths, len(lengths), seed, LIBRARY, *(workload.rag_document_tokens or default_lengths)
        )
        for tokens in lengths.tolist():
            token_parts.append(np.minimum(chunk, np.arange(tokens, 0, -chunk)))
            document_first.append(document_first[-1] + len(token_parts[-1]))
        ranks, is_zipf = (
            np.arange(1, len(lengths) + 1),
            workload.rag_document_popularity is Popularity.ZIPF,
        )
        # Integer weights give the same numbers on every machine.
        document_weight = np.cumsum(ZIPF_WEIGHT // ranks if is_zipf else np.ones_like(ranks))
    if workload.mode is ServingMode.DECODE_ONLY:
        token_parts.append(np.full(users * workload.decode_entries, workload.decode_entry_tokens))
    tokens_by_item = np.concatenate(token_parts)
    if len(tokens_by_item) > MAX_ITEMS:
        raise ConfigError(
            f"the workload has {len(tokens_by_item)} prompts, document chunks and entries; at most"
            f" {MAX_ITEMS}"
        )
    return Library(
        tokens_by_item, prompts, np.array(document_first, dtype=np.int64), document_weight
    )


Floats = NDArray[np.float64]

MAX_REQUESTS: Final = 10**8
MIN_BURSTINESS: Final = 0.01
MAX_BURSTINESS: Final = 100.0
# Block size of random numbers; it is fixed, so a longer window begins with the same arrivals.
_BLOCK = 1 << 16


class Process(StrEnum):
    """The kind of an arrival process."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    DIURNAL = "diurnal"


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """An arrival process; `day_ns` and `amplitude` apply to DIURNAL only."""

    rate_per_s: float
    """Mean rate; for DIURNAL, over a whole day."""
    process: Process = Process.POISSON
    burstiness: float | None = None
    """GAMMA: the intervals' standard deviation over their mean; 1 is Poisson, more is burstier."""
    day_ns: int = DURATIONS_NS["d"]
    amplitude: float = 0.5
    """Swing of the rate around its mean, as a share of the mean."""

    def __post_init__(self) -> None:
        """Raise ConfigError for parameters out of range, or of another process."""
        if not 0 < self.rate_per_s < math.inf:
            raise ConfigError(f"request rate(={self.rate_per_s:g}) must be > 0 a second")
        if self.process is Process.GAMMA:
            if self.burstiness is None:
                raise ConfigError(
                    "gamma arrivals need a burstiness, the intervals' coefficient of variation"
                )
            if not MIN_BURSTINESS <= self.burstiness <= MAX_BURSTINESS:
                raise ConfigError(
                    f"burstiness(={self.burstiness:g}) must be from {MIN_BURSTINESS:g} to"
                    f" {MAX_BURSTINESS:g}"
                )
        elif self.burstiness is not None:
            raise ConfigError(
                f"burstiness(={self.burstiness:g}) is for gamma arrivals, not for {self.process}"
            )
        if not 0 <= self.amplitude <= 1:
            raise ConfigError(f"amplitude(={self.amplitude:g}) must be from 0 to 1")
        if self.day_ns < NS_PER_US:
            raise ConfigError(f"day(={self.day_ns} ns) must be at least 1 µs")

    def expected(self, until_ns: int) -> float:
        """Return the expected number of arrivals before `until_ns`."""
        length = until_ns / NS_PER_S
        if self.process is Process.DIURNAL:
            day = self.day_ns / NS_PER_S
            half = float(sine_of_turns(np.array([until_ns % self.day_ns / self.day_ns / 2]))[0])
            length += self.amplitude * day / math.pi * half * half
        return self.rate_per_s * length

    def times_ns(self, seed: int, until_ns: int, limit: int | None = None) -> Ints:
        """Return the arrival times in ns from 0 to `until_ns` (exclusive), at most `limit` of them.

        Times are whole microseconds. A longer window or a larger limit begins with the same
        arrivals. ConfigError if there would be more than MAX_REQUESTS, or `until_ns` is beyond the
        clock.
        """
        if until_ns > MAX_NS:
            raise ConfigError(f"{format_duration(until_ns)} is longer than a trace's clock")
        count = min(self.expected(until_ns), MAX_REQUESTS + 1 if limit is None else limit)
        if count > MAX_REQUESTS:
            raise ConfigError(
                f"{self.rate_per_s:g} requests a second for {format_duration(until_ns)} are more"
                f" than {MAX_REQUESTS} requests: lower one of the two, or set a maximum of requests"
            )
        if self.process is Process.CONSTANT:
            even_us = np.rint(
                np.arange(math.ceil(count)) * (NS_PER_S // NS_PER_US) / self.rate_per_s
            ).astype(np.int64)
            return even_us[even_us * NS_PER_US < until_ns] * NS_PER_US
        blocks: list[Ints] = []
        total = 0
        for times_us in self._drawn(np.random.Generator(np.random.PCG64([seed, 2]))):
            times_within = times_us[times_us * NS_PER_US < until_ns]
            blocks.append(np.floor(times_within).astype(np.int64) * NS_PER_US)
            total += len(times_within)
            if len(times_within) < len(times_us) or (limit is not None and total >= limit):
                break
        return np.concatenate(blocks)[:limit]

    def describe(self) -> str:
        """Return a description of the process that continues "requests arrive"."""
        rate = f"{self.rate_per_s:g} a second"
        if self.process is Process.DIURNAL:
            low, high = (f"{self.rate_per_s * (1 + sign * self.amplitude):g}" for sign in (-1, 1))
            return (
                "at random (Poisson) at a rate that is a sine over a day of"
                f" {format_duration(self.day_ns)}: {rate} on average and at the start, {high} a"
                f" quarter of a day later, {low} after three quarters"
            )
        if self.process is Process.GAMMA:
            return (
                f"{rate} with gamma intervals, coefficient of variation {self.burstiness:g} (1 is"
                " Poisson)"
            )
        return (
            f"evenly, {rate} from 0"
            if self.process is Process.CONSTANT
            else f"at random (Poisson), {rate}"
        )

    def _drawn(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield blocks of times in µs, without end."""
        shape = 1.0 if self.burstiness is None else 1 / (self.burstiness * self.burstiness)
        peak = 1 + self.amplitude if self.process is Process.DIURNAL else 1.0
        scale_us = NS_PER_S // NS_PER_US / (self.rate_per_s * peak * shape)
        # A uniform share of a length-biased interval: gamma with shape + 1.
        now_us = rng.random() * rng.standard_gamma(shape + 1) * scale_us
        while True:
            gaps = rng.standard_gamma(shape, _BLOCK)
            times_us = now_us + np.concatenate([np.zeros(1), np.cumsum(gaps * scale_us)])
            now_us = times_us[-1]
            times_us = times_us[:-1]
            if self.process is Process.DIURNAL:
                chances = 1 + self.amplitude * sine_of_turns(times_us * NS_PER_US / self.day_ns)
                times_us = times_us[rng.random(_BLOCK) * peak < chances]
            yield times_us


def sine_of_turns(turns: Floats) -> Floats:
    """Return sin(2π `turns`) to 1e-11, from sums and products only.

    The result is the same on every machine and C library.
    """
    folded = np.abs((turns - 0.25) % 1.0 - 0.5) - 0.25
    angle = folded * math.tau
    square, sine = angle * angle, np.zeros_like(angle)
    for power in range(17, 0, -2):
        sine = sine * square + (-1) ** (power // 2) / math.factorial(power)
    return sine * angle


LIVE_CONVERSATIONS: Final = 64
MAX_LIVE: Final = 10**7

_TURN, _LIVE = WORLD.dtype("Turn"), WORLD.dtype("LiveConversation")
_take_turns = function(
    "user_take_turns", _TURN, int, _LIVE, int, I8, USER, int, int, int, returns=bool
)


def make_open_loop(
    arrivals: ArrivalProcess,
    until_ns: int,
    max_context_tokens: int,
    seed: int,
    *,
    live_conversations: int = LIVE_CONVERSATIONS,
    max_requests: int | None = None,
    user_kind: RequestKind | None = None,
) -> Requests:
    """Return the requests that arrive before `until_ns`, turns of `live_conversations`.

    Each is the next turn of a random live conversation; a finished one is replaced by one of a new
    user. All users are of `user_kind`, or mixed. ConfigError for an invalid count, or without
    arrivals.
    """
    if not 1 <= live_conversations <= MAX_LIVE:
        raise ConfigError(f"live conversations(={live_conversations}) must be from 1 to {MAX_LIVE}")
    times = arrivals.times_ns(seed, until_ns, max_requests)
    if not len(times):
        raise ConfigError(
            f"no request arrives within {format_duration(until_ns)} at {arrivals.rate_per_s:g} a"
            f" second with seed {seed}: raise the duration or the rate"
        )
    turns = _turns(len(times), live_conversations, max_context_tokens, seed, user_kind)
    over_context = int(np.count_nonzero(turns["input"] + turns["output"] > max_context_tokens))
    is_even = arrivals.process is Process.CONSTANT
    day = (
        (arrivals.day_ns, arrivals.amplitude)
        if arrivals.process is Process.DIURNAL
        else (None, None)
    )
    origin = {
        "kind": "open-loop",
        "requests": len(times),
        "block_tokens": 0,
        "arrivals": str(arrivals.process),
        "request_rate_per_s": arrivals.rate_per_s,
        "burstiness_cv": arrivals.burstiness,
        **dict(zip(("day_ns", "day_amplitude"), day, strict=True)),
        "expected_requests": arrivals.expected(until_ns),
        "duration_ns": until_ns,
        "max_requests": max_requests,
        "live_conversations": live_conversations,
        "conversations": int(turns["session"].max()) + 1,
        "over_context": over_context,
        "generator": None if is_even else f"PCG64, numpy {np.__version__}",
    }
    session, turn, inputs, outputs, qos, kind = (
        np.ascontiguousarray(turns[name]) for name in _TURN.names or ()
    )
    notes = _notes(arrivals, origin, max_context_tokens)
    return without_blocks(
        times,
        inputs,
        outputs,
        origin,
        notes,
        session_id=session,
        turn=turn,
        qos=qos,
        kind=kind,
    )


def _turns(
    count: int, live: int, max_context_tokens: int, seed: int, kind: RequestKind | None
) -> Array:
    """Return `count` turns; conversations are numbered as they begin."""
    turns, conversations = np.empty(count, _TURN), np.zeros(live, _LIVE)
    conversations["user"] = NONE
    progress = np.zeros(2, dtype=np.int64)
    users, _ = make_users(min(count, live) + count // 4 + 1, seed, kind=kind)
    while not _take_turns(
        *(turns, count, conversations, live, progress, users, len(users)), seed, max_context_tokens
    ):
        larger_users, _ = make_users(2 * len(users), seed, kind=kind)
        larger_users[: len(users)] = users
        users = larger_users
    return turns


def _notes(
    arrivals: ArrivalProcess, origin: JsonObject, max_context_tokens: int
) -> tuple[str, ...]:
    live, generator = origin["live_conversations"], origin["generator"]
    pause = f"{live / arrivals.rate_per_s:g} s"
    rounding = (
        "cut to whole microseconds, so that the last digits of C libraries do not show; they are"
        f" drawn with {generator}, and another numpy may draw others"
    )
    notes = (
        (
            f"open loop: requests arrive {arrivals.describe()}, whatever the system does: a turn"
            " may come before the answer to the one before it"
        ),
        (
            f"each request is the next turn of one of {live} conversations, any with the same"
            f" chance: {pause} on average between turns of one; none has begun at the start"
        ),
        (
            f"a conversation ends after each turn with a chance of {1000 - CONTINUE_PER_MILLE} in"
            f" 1000, after {MAX_TURNS} turns, or when the next would not fit {max_context_tokens}"
            " tokens of context; then a new user begins one"
        ),
        "the source has no block ids: prompts share a prefix within their conversation only",
        f"times are {'rounded to whole microseconds' if generator is None else rounding}",
    )
    if not origin["over_context"]:
        return notes
    return (
        *notes,
        f"{origin['over_context']} first turns do not fit {max_context_tokens} tokens of context",
    )
