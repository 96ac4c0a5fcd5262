"""Judge queue depths against a second replay, if a job misses those of the first.

Queue depths follow the latency of the disk, which may change from run to run: another tenant, a
cache that fills, a busy machine. Two replays of the same trace by kvreplay show by how much.

    if the job is within its target of either replay, or between the two:
        the replays are within the target of each other: pass
        else: undetermined, because the disk does not repeat
    else: the miss stands
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvdistill.jobs.closeness import ClosenessPair
from kvdistill.jobs.job import FioMode
from kvdistill.jobs.verdicts import (
    BUSY_DEPTH,
    DEPTH,
    ISSUE_DEPTH,
    StreamFigures,
    Verdict,
    replayed_depth_target,
)

_FIELDS = {DEPTH: "mean_depth", ISSUE_DEPTH: "depth_at_issue", BUSY_DEPTH: "busy_depth"}


def misses_depth(pairs: Sequence[ClosenessPair]) -> bool:
    """Return whether some job misses the target of a queue depth."""
    return any(
        verdict.name in _FIELDS and verdict.passes is False
        for pair in pairs
        for verdict in pair.verdicts
    )


def judge_again(pairs: Sequence[ClosenessPair], second: StreamFigures) -> list[ClosenessPair]:
    """Return `pairs` with missed queue depths judged against the `second` replay as well."""
    return [
        msgspec.structs.replace(
            pair, verdicts=[_judged(pair, verdict, second) for verdict in pair.verdicts]
        )
        for pair in pairs
    ]


def _judged(pair: ClosenessPair, verdict: Verdict, second: StreamFigures) -> Verdict:
    field = _FIELDS.get(verdict.name)
    if field is None or verdict.passes is not False:
        return verdict
    job, first_depth, second_depth = (
        getattr(side, field) for side in (pair.fio, pair.source, second)
    )
    if not (job and first_depth and second_depth):
        return verdict
    lower, upper = sorted((first_depth, second_depth))
    target = replayed_depth_target(verdict.name, is_replay=pair.job == FioMode.REPLAY.job)
    nearest = min(upper, max(lower, job))
    distance = job / nearest - 1
    spread = upper / lower - 1
    replays = f"kvreplay's two replays had {first_depth:.3g} and {second_depth:.3g} on this disk"
    if abs(distance) > target:
        return msgspec.structs.replace(verdict, reason=verdict.reason or replays)
    if spread > target:
        reason = f"{replays}: it does not repeat; rerun when it is quiet"
        return msgspec.structs.replace(verdict, passes=None, reason=reason)
    return msgspec.structs.replace(verdict, value=distance, passes=True, reason=replays)
