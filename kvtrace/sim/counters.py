"""What a simulation counted, as the metadata and the summaries carry it; nothing that did not occur is a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.native.records import World
from kvtrace.sim.fleet import report
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Preset
from kvtrace.sim.presets.tier import Admission, TierSetting


def stats(preset: Preset, world: World, first_tokens: Any) -> dict[str, Any]:
    """Return the counters; `first_tokens`, records.FIRST_TOKEN, are times to the first token, or None."""
    total, tiers = world.total, report.summed(world)
    lookups, decoded, prefills = (int(total[name]) for name in ("lookups", "decoded_tokens", "prefills"))
    counted = ("hit_bytes", "read_bytes", "written_bytes", "populated_bytes", "deleted_bytes")
    per_tier = [
        {"name": tier.name, "hits": int(of["hits"]), "hit_ratio": _ratio(of["hits"], lookups)}
        | {name: int(of[name]) for name in counted}
        | {"live_bytes": int(of["used"])}
        | _refused(tier, of)
        | ({"file_lookups": int(of["looked_up"])} if tier.looks_past_miss else {})
        | _waited(tier, of)
        | ({} if tier.bucket_gc is None else {"collected_bytes": int(of["collected_bytes"])})
        | report.share(preset.fleet, tier.scope)
        for tier, of in zip(preset.tiers, tiers, strict=True)
    ]
    return {
        **{name: int(total[name]) for name in ("requests", "input_tokens", "output_tokens", "lookups", "lookup_bytes")},
        "misses": lookups - int(tiers["hits"].sum()),
        "prompts": _shared(total, preset.workload.prompt_share, "prompt"),
        "documents": _shared(total, preset.workload.rag_share, "document"),
        "prefill": {
            "requests": prefills,
            "mean_wait_ns": round(int(total["waiting_ns"]) / prefills) if prefills else None,
        },
        "decode": {
            "tokens": decoded,
            "mean_ns_per_token": round(int(total["decoding_ns"]) / decoded) if decoded else None,
        },
        "decode_misses": int(total["decode_misses"]),
        "unplaced_objects": int(total["unplaced"]),
        **_offers(preset, total),
        "first_token": None if first_tokens is None else _first_token(first_tokens),
        "tiers": per_tier,
        **report.stats(preset.fleet, world),
    }


def _refused(tier: TierSetting, of: Any) -> dict[str, int]:
    """Return what the tier was offered and did not take; nothing if it takes all."""
    if tier.admission is Admission.ALWAYS:
        return {}
    return {"refused_objects": int(of["refused"]), "refused_bytes": int(of["refused_bytes"])}


def _waited(tier: TierSetting, of: Any) -> dict[str, int]:
    """Return what was offered to the tier's queue and not stored; nothing if it has none."""
    if not tier.store_queue:
        return {}
    names = ("dropped", "dropped_bytes", "lost", "lost_bytes")
    dropped, dropped_bytes, lost, lost_bytes = (int(of[name]) for name in names)
    return {
        "dropped_objects": dropped,
        "dropped_bytes": dropped_bytes,
        "lost_objects": lost,
        "lost_bytes": lost_bytes,
        "waiting_objects": int(of["waiting"]),
    }


def _ratio(part: int, whole: int) -> float | None:
    return int(part) / int(whole) if whole else None


def _shared(total: Any, share: float, kind: str) -> dict[str, Any] | None:
    """Return the look-ups of shared objects, which all look-ups include; null if the workload has none."""
    if not share:
        return None
    lookups, hits = int(total[f"{kind}_lookups"]), int(total[f"{kind}_hits"])
    return {"lookups": lookups, "hits": hits, "hit_ratio": _ratio(hits, lookups)}


def _offers(preset: Preset, total: Any) -> dict[str, Any]:
    """Return how often a tier that takes all or nothing was offered something, and refused it; nothing without one."""
    if not any(tier.whole_offers and tier.policy is Policy.LRU for tier in preset.tiers):
        return {}
    names = {"count": "offers", "refused": "refused_offers", "refused_objects": "refused_objects"}
    return {"offers": {name: int(total[column]) for name, column in names.items()}}


def _first_token(times: Any) -> dict[str, Any]:
    """Return modelled times to the first token, with and without the cache."""
    return {
        "requests": len(times),
        "with_cache": quantiles_ns(times["with_cache_ns"]),
        "without_cache": quantiles_ns(times["without_cache_ns"]),
    }


def quantiles_ns(times: Any) -> dict[str, int | None]:
    """Return the quantiles of all `times`, ns, each a time that occurred; null where there are too few for it."""
    ordered = np.sort(times)
    return {
        f"{name}_ns": int(ordered[rank - 1]) if (rank := nearest_rank(len(ordered), part)) else None
        for name, part in QUANTILES.items()
    }
