"""Time to the first token: what storage took in the replay, plus the computing time that the trace models.

A replay computes nothing. The tokens that a request did not find cached are those that the trace did not load for
it; each takes what the preset says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvreplay.plan.requests import Asked
    from kvtrace.core.metadata import Metadata

DEFINITION = (
    "the loads of a request, from its arrival (closed loop: from its first load's submission) to the last completion, "
    "as replayed, + tokens that were not loaded * prefill_ns_per_token of the trace"
)
NO_REQUESTS = "name the requests table with --requests (kvtrace gen --requests-out writes it)"
NO_RATE = "the trace models no computing time (kvtrace gen --set prefill_ns_per_token=50000)"


def not_modelled(meta: Metadata, asked: Asked | None) -> str | None:
    """Return why there is no time to the first token; None if there is."""
    if not _prefill_ns(meta):
        return NO_RATE
    return NO_REQUESTS if asked is None else None


def _prefill_ns(meta: Metadata) -> int:
    hierarchy = meta.config.get("hierarchy")
    is_whole = isinstance(hierarchy, dict) and bool((meta.model or {}).get("bytes_per_token"))
    return int(hierarchy.get("prefill_ns_per_token") or 0) if is_whole and isinstance(hierarchy, dict) else 0


def compute_ns(meta: Metadata, input_tokens: Any, loads: Any, loaded_bytes: Any) -> Any:
    """Return int64 a request: what computing the rest of its prompt takes by the trace's model.

    `loads` and `loaded_bytes` are the rows of the trace that load for it, and their bytes, on all tiers.
    """
    import numpy as np

    hierarchy, model = meta.config["hierarchy"], meta.model or {}
    hit_tokens = (
        loads // int(model.get("objects_per_chunk") or 1) * int(hierarchy["chunk_tokens"])
        if hierarchy.get("entry") == "chunk"
        else loaded_bytes // int(model["bytes_per_token"])
    )
    return np.maximum(0, input_tokens - hit_tokens) * _prefill_ns(meta)
