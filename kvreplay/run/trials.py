"""Several runs of one replay: their median and spread, and whether they agree enough to be quoted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.config.config import Config, check
from kvreplay.config.tiers import make_tiers
from kvreplay.result import tables
from kvreplay.run.run import FinishedRun, replay
from kvtrace import __version__
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.files import write_text
from kvtrace.core.run.run_file import TRIALS_FILE, RunFile
from kvtrace.core.run.trials import TrialSet, disagreements, quantities
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

MAX_TRIALS = 100


def run_trials(
    config: Config,
    trace: Path,
    output: Path,
    argv: list[str],
    count: int,
    *,
    is_forced: bool = False,
    show: Callable[[str, int], Any] | None = None,
    done: Callable[[Path, FinishedRun], None] | None = None,
) -> tuple[TrialSet, KvError | None]:
    """Replay `count` times into `output`/trial-1 and on; stop at the first trial that is cut short.

    Returns:
        what they came to, which `output`/trials.json holds too, and why it is partial or None.

    """
    if not 1 <= count <= MAX_TRIALS:
        raise ConfigError(f"--trials {count}: give 1 to {MAX_TRIALS}")
    tables.check_output(output, is_forced=is_forced)
    # What a replay would refuse must not leave a directory behind.
    check(config)
    tiers = make_tiers(config, open_table(trace, TRACE).meta, trace, output)
    done_runs: list[RunFile] = []
    error = None
    for number in range(1, count + 1):
        run = output / f"trial-{number}"
        if number == 1:
            tables.make_directory(output, TRIALS_FILE)
            tables.remove_stale(output, {f"trial-{i + 1}" for i in range(count)})
        outcome = replay(config, trace, run, argv, is_forced=is_forced, show=show)
        done_runs.append(outcome.run)
        if done is not None:
            done(run, outcome)
        error = outcome.error
        if error is not None:
            break
    found = quantities(done_runs)
    trials = TrialSet(
        asked=count,
        runs=[f"trial-{i + 1}" for i in range(len(done_runs))],
        quantities=found,
        status="complete" if error is None else "partial",
        verdicts=[r.summary.verdict for r in done_runs],
        warnings=disagreements(found),
        simulated_tiers=[t.name for t in tiers if t is not None and t.is_simulated],
    )
    content = {"program": "kvreplay", "version": __version__, "argv": argv} | msgspec.to_builtins(trials)
    write_text(output / TRIALS_FILE, msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n")
    return trials, error
