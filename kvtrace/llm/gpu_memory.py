"""The memory of a node's GPUs: whether weights and KV cache fit, and how many GPUs hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvtrace.core.parameters import named
from kvtrace.core.units import format_bytes
from kvtrace.llm.serving import GPU_MEMORY_SHARE, GPUS
from kvtrace.llm.shape import ModelShape, divides_over, read_bytes, stored_ranks

_USUAL_RANKS: Final = (2, 4, 8, 16, 32)
"""Tensor-parallel ranks that servers have GPUs for."""
MOST_RANKS: Final = _USUAL_RANKS[-1]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of GPUs of one kind, and what tensor-parallel ranks of a model hold in it."""

    gpu: str
    """A name of `GPUS`."""
    model: ModelShape
    """A model with a known number of parameters."""
    cache_bytes: int = 0
    """The capacity of tier `gpu`; 0 if it has none or no bound."""
    each_rank_stores: bool = False
    """Whether `cache_bytes` is the capacity of all ranks together, whatever they have copies of."""

    def choose_ranks(self) -> tuple[int, list[str]]:
        """Return the ranks if the user names none, and a note unless one GPU holds the weights.

        One GPU, unless the weights alone exceed its memory. Then it is the smallest power of two
        over which the model divides, and whose memory has room for the weights and the cache; the
        cache is one prompt of the longest context if it has no capacity, as vLLM requires. If no
        number of GPUs has that room, the weights count alone.
        """
        if self._weight_bytes <= self._bytes_per_gpu:
            return 1, []
        candidates = self._usual_ranks(1)
        enough = [ranks for ranks in candidates if self._has_room(ranks)]
        enough = enough or [ranks for ranks in candidates if self._has_room_for_weights(ranks)]
        misfit = (
            f"weights of {format_bytes(self._weight_bytes)} do not fit in the"
            f" {format_bytes(self._bytes_per_gpu)} of one {self.gpu}"
        )
        if not enough:
            usual = ", ".join(map(str, _USUAL_RANKS[:-1]))
            note = (
                f"{misfit}, and none of {usual} or {_USUAL_RANKS[-1]} GPUs holds them and divides the"
                f" key-value heads: times are those of a GPU that does not exist;"
                f" {named('tensor_parallel')} names another number"
            )
            return 1, [note]
        return enough[0], [f"{named('tensor_parallel', enough[0])} is chosen: {misfit}"]

    def notes(self, ranks: int) -> list[str]:
        """Return a note if `ranks` GPUs have no room for the weights and the cache."""
        if not self.cache_bytes:
            return [
                (
                    "tiers.gpu.capacity=0: GPU memory limits no requests, and first tokens come sooner"
                    " than on a real GPU"
                )
            ]
        if self._has_room(ranks):
            return []
        enough = next((gpus for gpus in self._usual_ranks(ranks) if self._has_room(gpus)), None)
        more = "more GPUs (--tp)" if enough is None else f"more GPUs (--tp {enough})"
        copies = self._cache_copies(ranks)
        cache = f"{format_bytes(self.cache_bytes)} of cache"
        cache += f" on each of {copies}" * (copies > 1)
        has = (
            f"{format_bytes(ranks * self._bytes_per_gpu)} of {ranks} x {self.gpu}; set a smaller"
            f" one, {more} or another --gpu"
        )
        return [
            (
                f"tiers.gpu.capacity: weights of {format_bytes(self._weight_bytes)} and {cache} do"
                f" not fit in the {has}"
            )
        ]

    @property
    def _bytes_per_gpu(self) -> int:
        return GPUS[self.gpu].memory_bytes

    @property
    def _weight_bytes(self) -> int:
        return round(self.model.parameters * self.model.weight_bytes)

    def _usual_ranks(self, more_than: int) -> list[int]:
        """Return the usual numbers of ranks over `more_than` over which the model divides."""
        return [
            ranks for ranks in _USUAL_RANKS if ranks > more_than and divides_over(self.model, ranks)
        ]

    def _cache_copies(self, ranks: int) -> int:
        """Return how many copies of the cache `ranks` ranks hold."""
        return 1 if self.each_rank_stores else ranks // stored_ranks(self.model, ranks)

    def _has_room(self, ranks: int) -> bool:
        """Tell whether `ranks` GPUs have room for the weights and the cache."""
        copies = self._cache_copies(ranks)
        if self.cache_bytes:
            return self._weight_bytes + copies * self.cache_bytes <= ranks * self._bytes_per_gpu
        tokens = self.model.max_context_tokens
        prompt_bytes = read_bytes(self.model, tokens, chunk_tokens=1, ranks=ranks)
        return self._has_room_for_weights(ranks, copies * prompt_bytes)

    def _has_room_for_weights(self, ranks: int, prompt_bytes: int = 0) -> bool:
        """Tell whether the weights and a prompt fit in the share of `ranks` GPUs that vLLM uses."""
        needed_bytes = self._weight_bytes + prompt_bytes
        return needed_bytes < GPU_MEMORY_SHARE * ranks * self._bytes_per_gpu
