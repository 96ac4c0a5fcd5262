"""Models for Python users: `kvtrace.models` and `kvtrace.llm`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import suggest_keywords
from kvtrace.llm import shape as shapes
from kvtrace.llm.catalogue import describe_model, find_model, full_model_name, load_models


@dataclass(frozen=True, slots=True)
class Model:
    """A model and what its KV cache takes. Sizes are in bytes, without a tensor-parallel split."""

    name: str
    shape: shapes.ModelShape
    """The layers, from which all sizes follow."""

    @property
    def bytes_per_token(self) -> int:
        """KV cache of one token in all layers, bytes; layers with a window count in full."""
        return shapes.bytes_per_token(self.shape)

    @property
    def growing_bytes_per_token(self) -> int:
        """The part of `bytes_per_token` that grows with the context without a bound, bytes."""
        return shapes.growing_bytes_per_token(self.shape)

    @property
    def windowed_bytes_per_token(self) -> int:
        """The part of `bytes_per_token` in layers that attend to a window, bytes."""
        return shapes.windowed_bytes_per_token(self.shape)

    @property
    def state_bytes(self) -> int:
        """State of recurrent layers, bytes a request of any length."""
        return shapes.state_bytes(self.shape)

    @property
    def fixed_bytes(self) -> int:
        """Full windows and states, bytes a request of any length."""
        return shapes.fixed_bytes(self.shape)

    def tokens_that_fit(self, memory_bytes: int) -> int | None:
        """Return the longest request, in tokens, that fits `memory_bytes` with its KV cache.

        None if every length fits, because all layers attend to a window.

        Examples:
            >>> import kvtrace as kt
            >>> kt.model("llama3.1-8b").tokens_that_fit(16 * 2**30)  # 131,072 bytes a token
            131072
        """
        return shapes.tokens_that_fit(self.shape, memory_bytes)

    @property
    def layers(self) -> int:
        """Layers that keep a cache or a state."""
        return self.shape.layers

    @property
    def kv_dtype(self) -> str:
        """Element type of the cache, such as "bf16"."""
        return str(self.shape.kv_dtype)

    @property
    def max_context_tokens(self) -> int:
        """Longest context, tokens."""
        return self.shape.max_context_tokens

    @property
    def source(self) -> str:
        """The source of the shape."""
        return self.shape.source

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions and omissions."""
        return self.shape.notes

    def bytes_per_token_per_rank(self, tensor_parallel: int) -> int:
        """Return the KV cache of one token on one of so many tensor-parallel ranks, bytes.

        Examples:
            >>> import kvtrace as kt
            >>> kt.model("llama3.1-70b").bytes_per_token_per_rank(8)
            40960
        """
        return shapes.bytes_per_token_per_rank(self.shape, tensor_parallel)

    def describe(
        self,
        *,
        tokens: int = 8192,
        tensor_parallel: int = 1,
        chunk_tokens: int = 256,
        page_bytes: int = 4096,
    ) -> JsonObject:
        """Return the arithmetic of a prompt of `tokens` tokens, as `kvtrace models NAME --json`.

        Examples:
            >>> import kvtrace as kt
            >>> kt.model("llama3.1-8b").describe(tokens=1024)["stored_dense_bytes"]
            134217728
        """
        return describe_model(
            self.name, self.kv_dtype, tensor_parallel, tokens, chunk_tokens, page_bytes
        )

    def _repr_html_(self) -> str:
        """Return the sizes for a notebook."""
        facts = {
            "layers": f"{self.layers:,}",
            "bytes a token": f"{self.bytes_per_token:,}",
            "state, bytes a request": f"{self.state_bytes:,}" if self.state_bytes else "-",
            "element type": self.kv_dtype,
            "context, tokens": f"{self.max_context_tokens:,}",
        }
        return html_table(["model", *facts], [[self.name, *facts.values()]])


@suggest_keywords
def model(name: str | Path, *, kv_dtype: str | None = None) -> Model:
    """Return a model by its name here, its Hugging Face name, or the path of its `config.json`.

    Args:
        name: Such as "llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct" or "config.json".
        kv_dtype: Element type of the cache, such as "fp8". Default: the model's.

    Raises:
        ConfigError: if there is no such model; the message has the nearest names.
        TraceError: if the file is not a configuration that is understood.

    Examples:
        >>> import kvtrace as kt
        >>> kt.model("llama3.1-8b").bytes_per_token  # 2 x 32 layers x 8 heads x 128 x 2 bytes
        131072

    """
    full_name = full_model_name(str(name))
    return Model(full_name, find_model(full_name, kv_dtype))


def models() -> list[Model]:
    """Return the models that kvtrace knows by name.

    Examples:
        >>> import kvtrace as kt
        >>> {model.name: model.bytes_per_token for model in kt.models()}["llama3.3-70b"]
        327680
    """
    return [Model(name, shape) for name, shape in load_models().items()]
