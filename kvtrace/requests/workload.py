"""What synthetic users share and which half of a serving node they load: system prompts, documents, prefill or decode.

All of it is off by default; `--set workload.prompt_share=0.2` turns some on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core.config import Bounds
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import RequestKind
from kvtrace.core.units import parse_duration_ns

MAX_ITEMS = 10**7
_Items = Annotated[int, Bounds(1, MAX_ITEMS)]
_ItemTokens = Annotated[int, Bounds(1, 10**7)]
_Share = Annotated[float, Bounds(0, 1)]
_ThinkTime = Annotated[str, Bounds(1, 24 * 3600 * 10**9, "> 0, and at most 24h", parse_duration_ns)]
# As in the MLPerf Storage KV-cache benchmark: lengths of documents, shorter ones for large models, and a chunk's bytes.
DOCUMENT_TOKENS, DOCUMENT_TOKENS_LARGE = (4000, 12_000), (1024, 4096)
LARGE_LAYERS = 64
MAX_DOCUMENT_CHUNK_BYTES = 256 << 20


class ServingMode(StrEnum):
    """Which half of a disaggregated node the storage serves."""

    BOTH = "prefill-decode"
    PREFILL_ONLY = "prefill-only"
    """Every prompt is computed and stored; nothing is looked up or read, and what is there already is not stored twice.
    Another node generates the answer, which takes its time."""
    DECODE_ONLY = "decode-only"
    """Every request continues one of its user's entries, which are there from the start; nothing is stored."""


class UserKind(StrEnum):
    """What all synthetic users are."""

    CHATBOT = "chatbot"
    """Turns of up to 512 to 4,096 new tokens."""
    CODING = "coding"
    """Up to 4,096 to 25,000."""
    DOCUMENT = "document"
    """Up to 4,096 to 16,384, and long answers."""


class Popularity(StrEnum):
    """How requests are spread over items ranked from 1."""

    ZIPF = "zipf"
    """Item n is requested 1/n as often as item 1."""
    UNIFORM = "uniform"


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is added to the turns of synthetic users; the turns themselves do not depend on it."""

    mode: ServingMode = ServingMode.BOTH
    """Which half of a disaggregated node the storage serves."""
    user_kind: UserKind | None = None
    """What all synthetic users are; without it each is any of the three with the same chance."""
    think_time: _ThinkTime | None = None
    """How long synthetic users think before their next turn, on average over users, such as `30s`: each user's own is
    from a third of it to five thirds. Without it 0.3 s (chatbot), 0.6 s (coding) and 0.9 s (document): the load of a
    benchmark, not of people."""
    overlap: bool = False
    """Users ask on without waiting for answers; their requests wait by class of service for one of as many servers."""
    prompt_share: _Share = 0.0
    """The share of conversations that begin with one of the system prompts."""
    prompt_tokens: tuple[_ItemTokens, ...] = (512, 1024, 2048)
    """The length of each system prompt; a conversation has any of them with the same chance."""
    rag_share: _Share = 0.0
    """The share of requests that retrieve chunks of a document, which are there from the start."""
    rag_documents: _Items = 100
    """How many documents there are."""
    rag_document_tokens: tuple[_ItemTokens, _ItemTokens] | None = None
    """Shortest and longest; by default 4,000 to 12,000, or 1,024 to 4,096 for models of 64 layers and more."""
    rag_chunk_tokens: _ItemTokens = 512
    """Tokens of a document's chunk; with entry=turn none is larger than 256 MiB."""
    rag_top_chunks: Annotated[int, Bounds(1, 1000)] = 5
    """Chunks of its document that a request retrieves."""
    rag_document_popularity: Popularity = Popularity.ZIPF
    """How requests are spread over the documents."""
    rag_chunk_popularity: Popularity = Popularity.ZIPF
    """How they are spread over the chunks of one."""
    decode_entries: _Items = 10
    """With mode=decode-only: entries a user has."""
    decode_entry_tokens: _ItemTokens = 2048
    """With mode=decode-only: tokens of each."""

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
        """Whether it needs synthetic users in a closed loop."""
        return bool(self.prompt_share or self.rag_share or self.mode is ServingMode.DECODE_ONLY)


class LoadDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a locked benchmark prescribes; `gen` uses it where the command line says nothing."""

    model: str | None = None
    """The model, where the command line names none."""
    users: _Items | None = None
    """Synthetic users, likewise."""
    duration: str | None = None
    """Virtual time, likewise, such as `300s`."""


def complaints(workload: Workload, chunk_tokens: int, *, stores_generated: bool) -> Iterator[str]:
    """Yield what does not hold of the knobs of `workload` together; `chunk_tokens` is 0 for entry=turn."""
    mode = workload.mode
    if not workload.prompt_tokens:
        yield "workload.prompt_tokens(=[]) must be some lengths"
    low, high = workload.rag_document_tokens or DOCUMENT_TOKENS
    if low > high:
        yield f"workload.rag_document_tokens(={[low, high]}) must be shortest and longest"
    used = {"rag_chunk_tokens": workload.rag_share, "decode_entry_tokens": mode is ServingMode.DECODE_ONLY}
    for name in (name for name, is_used in used.items() if is_used):
        value = getattr(workload, name)
        if chunk_tokens and value % chunk_tokens:
            multiple = f"must be a multiple of chunk_tokens(={chunk_tokens})"
            yield f"workload.{name}(={value}) {multiple}: only full ones are stored"
    if workload.overlap and (workload.shares or mode is not ServingMode.BOTH):
        yield "workload.overlap works without prompts, documents and modes: leave the others of workload out"
    if mode is not ServingMode.BOTH and stores_generated:
        yield f"workload.mode={mode} stores no generated tokens: leave store_generated out"
    if mode is not ServingMode.BOTH and workload.rag_share:
        yield f"workload.mode={mode} retrieves no documents: leave workload.rag_share out"
    if mode is ServingMode.DECODE_ONLY and workload.prompt_share:
        yield "workload.mode=decode-only computes no prompts: leave workload.prompt_share out"


def notes(workload: Workload) -> list[str]:
    """Return what the reader of a trace must know of its workload."""
    found = []
    if workload.prompt_share:
        found.append(
            f"{workload.prompt_share:g} of all conversations begin with one of {len(workload.prompt_tokens)} system "
            "prompts, which all users share: the first to need one stores it, and so does whoever needs it once lost"
        )
    if workload.rag_share:
        found.append(
            f"{workload.rag_share:g} of all requests retrieve {workload.rag_top_chunks} chunks of one of "
            f"{workload.rag_documents} documents, populated at the start and stored again when lost; a chunk's KV is "
            "taken to serve wherever it stands, so it is no part of a prefix, and a later turn does not carry it on"
        )
    if workload.mode is ServingMode.PREFILL_ONLY:
        found.append(
            "prefill only: nothing is looked up or loaded; answers are generated elsewhere and take their time"
        )
    if workload.mode is ServingMode.DECODE_ONLY:
        found.append(
            f"decode only: each request continues one of its user's {workload.decode_entries} entries of "
            f"{workload.decode_entry_tokens} tokens, populated at the start; one that is lost is not computed again"
        )
    return found


@dataclass(frozen=True, slots=True)
class Library:
    """The items that all users share, or that are there from the start: prompts, documents' chunks, users' entries."""

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
        """Return the kinds of objects that items hold, `entry` being that of users' entries: kind, first item, end."""
        bounds = [0, self.prompts, self.first_entry, len(self.tokens)]
        return [
            (kind, bounds[i], bounds[i + 1])
            for i, kind in enumerate(("prompt", "document", entry))
            if bounds[i] < bounds[i + 1]
        ]


def library_of(
    workload: Workload, users: int, layers: int, bytes_per_token: int, *, is_turn: bool, seed: int
) -> Library:
    """Return the items that `users` share or that exist from the start; document lengths are drawn from `seed`."""
    from kvtrace.requests import synthetic

    parts = [np.array(workload.prompt_tokens if workload.prompt_share else (), dtype=np.int64)]
    prompts = len(parts[0])
    first, weight = [prompts], np.zeros(0, dtype=np.int64)
    if workload.rag_share:
        chunk = workload.rag_chunk_tokens
        if is_turn:
            chunk = max(1, min(chunk, MAX_DOCUMENT_CHUNK_BYTES // bytes_per_token))
        usual = DOCUMENT_TOKENS_LARGE if layers >= LARGE_LAYERS else DOCUMENT_TOKENS
        lengths = np.empty(workload.rag_documents, np.int64)
        synthetic.draw_all(lengths, seed, synthetic.LIBRARY, *(workload.rag_document_tokens or usual))
        for tokens in lengths.tolist():
            parts.append(np.minimum(chunk, np.arange(tokens, 0, -chunk)))
            first.append(first[-1] + len(parts[-1]))
        ranks, is_zipf = np.arange(1, len(lengths) + 1), workload.rag_document_popularity is Popularity.ZIPF
        # Whole weights: without floats every machine draws the same.
        weight = np.cumsum(synthetic.ZIPF_WEIGHT // ranks if is_zipf else np.ones_like(ranks))
    if workload.mode is ServingMode.DECODE_ONLY:
        parts.append(np.full(users * workload.decode_entries, workload.decode_entry_tokens))
    found = np.concatenate(parts)
    if len(found) > MAX_ITEMS:
        raise ConfigError(f"the workload has {len(found)} prompts, document chunks and entries; at most {MAX_ITEMS}")
    return Library(found, prompts, np.array(first, dtype=np.int64), weight)
