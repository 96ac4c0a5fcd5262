"""One trace on two sets of targets in turn, so that a machine whose speed drifts favours neither."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kvreplay.config.config import Config
from kvreplay.result import tables
from kvreplay.run.finished import FinishedRun
from kvreplay.run.trials import Trials
from kvtrace.core.errors import KvError
from kvtrace.core.run.run_file import TRIALS_FILE

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
    tables.check_output(output, is_forced=is_forced)
    sides = [
        Trials(config, trace, output / side, argv, count, is_forced=is_forced, show=show)
        for config, side in zip(configs, SIDES, strict=True)
    ]
    tables.make_directory(output, TRIALS_FILE)
    for number in range(count):
        for side in reversed(sides) if number % 2 else sides:
            try:
                folder, outcome = side.go_on()
            except KvError:
                tables.remove_empty(output)
                raise
            done(folder, outcome)
            if side.is_cut_short:
                break
        if any(side.is_cut_short for side in sides):
            break
    for side in sides:
        if side.runs:
            side.write()
    return next((side.error for side in sides if side.is_cut_short), next(filter(None, (s.error for s in sides)), None))
