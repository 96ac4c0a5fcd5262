"""The KV bytes of a token, from the shapes and dtypes of the tensors that an engine's log gives for one chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

ITEM_BYTES: Final = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint8", "int8"), 1),
    **dict.fromkeys(("bfloat16", "float16", "half", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "float", "int32"), 4),
    **dict.fromkeys(("float64", "int64"), 8),
}
"""The bytes of an element, by the names that PyTorch gives its dtypes."""


def chunk_bytes(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int | None:
    """Return the bytes of tensors of these `shapes` and `dtypes`; None if a dtype is unknown or nothing is given."""
    sizes = [ITEM_BYTES.get(name.removeprefix("torch.")) for name in dtypes]
    if not shapes or len(shapes) != len(sizes) or any(size is None for size in sizes):
        return None
    return sum(math.prod(shape) * (size or 0) for shape, size in zip(shapes, sizes, strict=True))


def model_of(name: str, size_bytes: int | None, chunk_tokens: int) -> dict[str, Any]:
    """Return what the origin of a source says of the model: its name, and the KV bytes that one rank stores of a token.

    The bytes are None where the log does not say them, or where they are no whole number.
    """
    whole = size_bytes is not None and size_bytes > 0 and size_bytes % chunk_tokens == 0
    return {"name": name, "kv_bytes_per_token_per_rank": size_bytes // chunk_tokens if whole and size_bytes else None}
