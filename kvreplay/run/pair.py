"""One trace on two sets of targets in turn, so that a machine whose speed drifts favours neither."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kvreplay.config.config import Config, check
from kvreplay.config.tiers import make_tiers
from kvreplay.result import tables
from kvreplay.run.run import FinishedRun, replay
from kvreplay.run.trials import MAX_TRIALS, write_trials
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.run.run_file import TRIALS_FILE, RunFile
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

SIDES = ("a", "b")
"""The folders of the two sides."""


def run_pair(
    configs: tuple[Config, Config],
    trace: Path,
    output: Path,
    argv: list[str],
    count: int,
    *,
    is_forced: bool = False,
    show: Callable[[str, int], AbstractContextManager[Any]] | None = None,
    done: Callable[[Path, FinishedRun], None],
) -> KvError | None:
    """Replay `trace` `count` times as each of `configs` says, into trials below `output`/a and `output`/b.

    The sides take turns, and who is first in a round alternates: a b, b a, a b. Both stop at the first trial that is
    cut short.

    Returns:
        why a trial is partial or failed, or None.

    """
    if not 1 <= count <= MAX_TRIALS:
        raise ConfigError(f"--trials {count}: give 1 to {MAX_TRIALS}")
    tables.check_output(output, is_forced=is_forced)
    meta = open_table(trace, TRACE).meta
    tiers = []
    for config in configs:
        check(config)
        tiers.append(make_tiers(config, meta, trace, output))
    runs: tuple[list[RunFile], list[RunFile]] = ([], [])
    error: KvError | None = None
    for number in range(1, count + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            folder = output / SIDES[side]
            if number == 1:
                tables.make_directory(output, TRIALS_FILE)
                tables.make_directory(folder, TRIALS_FILE)
                tables.remove_stale(folder, {f"trial-{i + 1}" for i in range(count)})
            outcome = replay(configs[side], trace, folder / f"trial-{number}", argv, is_forced=is_forced, show=show)
            runs[side].append(outcome.run)
            done(folder / f"trial-{number}", outcome)
            error = error or outcome.error
            if outcome.run.status == "partial":
                break
        if error is not None and any(run.status == "partial" for of_side in runs for run in of_side):
            break
    for side, of_side in enumerate(runs):
        if of_side:
            write_trials(output / SIDES[side], argv, count, of_side, tiers[side], error)
    return error
