"""Judge queue depths by second runs of both sides, if a job misses those of the first.

Queue depths follow the latency of the disk, which may change from run to run: another tenant, a
cache that fills, a busy machine. Two runs of fio's job, and two replays of the same trace by
kvreplay, show by how much.

    if the depths of the two runs and of the two replays overlap, or are within the target:
        each side is within the target of itself: pass
        else: undetermined, because the disk does not repeat
    else: the miss stands
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def misses_depth(pair: ClosenessPair) -> bool:
    """Return whether the job misses the target of a queue depth."""
    return any(verdict.name in _FIELDS and verdict.passes is False for verdict in pair.verdicts)


def judge_again(
    pairs: Sequence[ClosenessPair],
    second_replay: StreamFigures,
    second_runs: Mapping[str, StreamFigures],
) -> list[ClosenessPair]:
    """Return `pairs` with missed queue depths judged against second runs as well.

    `second_runs` has those of fio by the name of the job.
    """
    return [
        msgspec.structs.replace(
            pair,
            verdicts=[
                _judged(pair, verdict, second_replay, second_runs.get(pair.job))
                for verdict in pair.verdicts
            ],
        )
        for pair in pairs
    ]


def _judged(
    pair: ClosenessPair,
    verdict: Verdict,
    second_replay: StreamFigures,
    second_run: StreamFigures | None,
) -> Verdict:
    field = _FIELDS.get(verdict.name)
    if field is None or verdict.passes is not False:
        return verdict
    run_depths, replay_depths = (
        [getattr(side, field) for side in sides]
        for sides in (
            [pair.fio] if second_run is None else [pair.fio, second_run],
            [pair.source, second_replay],
        )
    )
    if not all((*run_depths, *replay_depths)):
        return verdict
    target = replayed_depth_target(verdict.name, is_replay=pair.job == FioMode.REPLAY.job)
    distance = 0.0
    if min(run_depths) > max(replay_depths):
        distance = min(run_depths) / max(replay_depths) - 1
    elif max(run_depths) < min(replay_depths):
        distance = max(run_depths) / min(replay_depths) - 1
    both = (
        f"kvreplay's two replays had {_listed(replay_depths)} on this disk, fio's"
        f" {'run' if second_run is None else 'two runs'} {_listed(run_depths)}"
    )
    if abs(distance) > target:
        return msgspec.structs.replace(verdict, reason=verdict.reason or both)
    spread = max(max(depths) / min(depths) - 1 for depths in (run_depths, replay_depths))
    if spread > target:
        reason = f"{both}: it does not repeat; rerun when it is quiet"
        return msgspec.structs.replace(verdict, passes=None, reason=reason)
    return msgspec.structs.replace(verdict, value=distance, passes=True, reason=both)


def _listed(depths: Sequence[float]) -> str:
    return " and ".join(f"{depth:.3g}" for depth in depths)
