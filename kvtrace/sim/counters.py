"""What a simulation counted, as the metadata and the summaries carry it; nothing that did not occur is a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.sim import records, world

if TYPE_CHECKING:
    from kvtrace.sim.preset import Preset
    from kvtrace.sim.world import World


def stats(preset: Preset, now: World, first_ns: Any) -> dict[str, Any]:
    """Return the counters; `first_ns`, int64[n, 2], are times to the first token with and without cache, or None."""
    total, tiers = now.total, now.tiers
    lookups = int(total[world.LOOKUPS])
    per_tier = [
        {
            "name": tier.name,
            "hits": int(tiers[t, records.HITS]),
            "hit_ratio": _ratio(tiers[t, records.HITS], lookups),
            "hit_bytes": int(tiers[t, records.HIT_BYTES]),
            "read_bytes": int(tiers[t, records.READ_BYTES]),
            "written_bytes": int(tiers[t, records.WRITTEN_BYTES]),
            "populated_bytes": int(tiers[t, records.POPULATED_BYTES]),
            "deleted_bytes": int(tiers[t, records.DELETED_BYTES]),
            "live_bytes": int(tiers[t, records.USED]),
        }
        for t, tier in enumerate(preset.tiers)
    ]
    return {
        "requests": int(total[world.REQUESTS]),
        "input_tokens": int(total[world.INPUT_TOKENS]),
        "output_tokens": int(total[world.OUTPUT_TOKENS]),
        "lookups": lookups,
        "lookup_bytes": int(total[world.LOOKUP_BYTES]),
        "misses": lookups - int(tiers[:, records.HITS].sum()),
        "prompts": _shared(total, preset.workload.prompt_share, world.PROMPT_LOOKUPS, world.PROMPT_HITS),
        "documents": _shared(total, preset.workload.rag_share, world.DOCUMENT_LOOKUPS, world.DOCUMENT_HITS),
        "decode_misses": int(total[world.DECODE_MISSES]),
        "unplaced_objects": int(total[world.UNPLACED]),
        "first_token": None if first_ns is None else _first_token(first_ns),
        "tiers": per_tier,
    }


def _ratio(part: int, whole: int) -> float | None:
    return int(part) / int(whole) if whole else None


def _shared(total: Any, share: float, lookups: int, hits: int) -> dict[str, Any] | None:
    """Return the look-ups of shared objects, which all look-ups include; null if the workload has none."""
    if not share:
        return None
    return {
        "lookups": int(total[lookups]), "hits": int(total[hits]), "hit_ratio": _ratio(total[hits], total[lookups]),
    }  # fmt: skip


def _first_token(times: Any) -> dict[str, Any]:
    """Return modelled times to the first token, with and without the cache."""
    return {
        "requests": len(times),
        "with_cache": quantiles_ns(times[:, 0]),
        "without_cache": quantiles_ns(times[:, 1]),
    }


def quantiles_ns(times: Any) -> dict[str, int | None]:
    """Return the quantiles of all `times`, ns, each a time that occurred; null where there are too few for it."""
    ordered = np.sort(times)
    return {
        f"{name}_ns": int(ordered[rank - 1]) if (rank := nearest_rank(len(ordered), part)) else None
        for name, part in QUANTILES.items()
    }
