"""Tiers that each node of a fleet has its own of, where one replay stands for several nodes: their copies are one."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import UNSET

from kvtrace.core.tables import Reader


def joined(reader: Reader, tiers: Collection[int], rows: int) -> dict[int, int]:
    """Return, of `tiers` that nodes have apart, on how many instances the first `rows` rows lie, where several do."""
    each = {t: reader.meta.tiers[t].instance_nodes for t in tiers}
    apart = {t: nodes for t, nodes in each.items() if nodes is not UNSET}
    if not apart or "node" not in reader.extras:
        return {}
    found: dict[int, set[int]] = {t: set() for t in apart}
    for batch in reader.batches(("tier", "node")):
        tier, node = (batch.column(name).to_numpy()[:rows] for name in ("tier", "node"))
        for t, nodes in apart.items():
            found[t] |= set((np.unique(node[tier == t]) // nodes).tolist())
        rows -= len(tier)
        if rows <= 0:
            break
    return {t: len(instances) for t, instances in found.items() if len(instances) > 1}
