"""The links of chains as groups of rows: what compiled code finds row by row, spelled out for a whole plan."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvreplay.plan.chains import NO_CHAIN

if TYPE_CHECKING:
    from collections.abc import Sequence


def chains_of(links: Sequence[int]) -> list[list[list[int]]]:
    """Return the groups of each chain, both in the order of their first rows."""
    found: list[list[list[int]]] = []
    of_row: dict[int, list[list[int]]] = {}
    for row, link in enumerate(links):
        if link == NO_CHAIN:
            continue
        groups = of_row[row] = of_row[row - abs(link)] if link else []
        if not groups:
            found.append(groups)
        if link < 0:
            assert row + link in groups[-1], "the row before it in its chain stands in the last group"
            groups[-1].append(row)
        else:
            groups.append([row])
    return found


def unmet_of(plan: Any) -> list[int]:
    """Return for each row for how many groups it waits."""
    unmet = [0] * len(plan)
    for links in (plan.stage_links, plan.object_links):
        for groups in chains_of(links.tolist()):
            for row in (row for group in groups[1:] for row in group):
                unmet[row] += 1
    return unmet


def before_of(plan: Any) -> list[list[int]]:
    """Return for each row the rows that it waits for: those of the groups just before its own."""
    before: list[list[int]] = [[] for _ in range(len(plan))]
    for links in (plan.stage_links, plan.object_links):
        for groups in chains_of(links.tolist()):
            for first, second in pairwise(groups):
                for row in second:
                    before[row] += first
    return before
