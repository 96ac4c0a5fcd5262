"""One locked option from its trace to its files: the trace is made, replayed as often as asked, and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.mlperf.attempt import STORAGE, Attempt
from kvreplay.mlperf.document import write_book, write_csv
from kvreplay.mlperf.result import Client, MlperfResult, result_of, trial_of
from kvreplay.mlperf.rules import Rule
from kvreplay.mlperf.served import Served, served_of
from kvreplay.result import tables
from kvreplay.run.run import FinishedRun, Replaying, replay
from kvreplay.run.trials import Trials
from kvreplay.run.watch import Watching
from kvtrace.core.app import log
from kvtrace.core.errors import KvError, ProbeUnavailable
from kvtrace.core.files import write_json
from kvtrace.core.run.mlperf_file import MLPERF_FILE, TRIALS_FOLDER
from kvtrace.core.run.run_file import RunFile, run_program

TRACE, REQUESTS = "trace.parquet", "requests.parquet"
CSV_FILE, BOOK_FILE = "mlperf.csv", "mlperf.xlsx"


def submit(
    attempt: Attempt,
    rules: list[Rule],
    output: Path,
    argv: list[str],
    *,
    show: Callable[[str, int], Any] | None = None,
    watching: Watching | None = None,
    replaying: Replaying = replay,
) -> tuple[MlperfResult, KvError | None]:
    """Run `attempt` into `output`, which may hold an earlier one.

    Returns:
        what it came to, which `output`/mlperf.json holds too, and why it is partial or None.

    """
    tables.make_directory(output, MLPERF_FILE)
    for name in (CSV_FILE, BOOK_FILE):
        (output / name).unlink(missing_ok=True)
    make_trace(attempt, output)
    config = msgspec.structs.replace(attempt.config, requests=str(output / REQUESTS))
    runs: list[tuple[str, RunFile, Served]] = []

    def done(run: Path, finished: FinishedRun) -> None:
        log(f"{run}: {finished.run.summary.verdict}")
        served = served_of(run, output / REQUESTS, finished.run.trace.metadata)
        runs.append((f"{TRIALS_FOLDER}/{run.name}", finished.run, served))

    folder = output / TRIALS_FOLDER
    trials = Trials(
        config,
        output / TRACE,
        folder,
        argv,
        attempt.trials,
        is_forced=True,
        show=show,
        watching=watching,
        replaying=replaying,
    )
    _, error = trials.perform(done)
    result = _result(attempt, rules, argv, runs)
    write_result(result, runs, output)
    return result, error


def make_trace(attempt: Attempt, output: Path) -> None:
    """Let kvtrace simulate the option: its preset, for as long as a trial lasts, on a storage tier as large as ours."""
    run_program(
        "kvtrace",
        [
            *("gen", "--preset", attempt.option.preset, "--seed", str(attempt.seed)),
            *("--duration", f"{attempt.runtime_ns}ns"),
            *("--set", f"tiers.{STORAGE}.capacity={attempt.capacity_bytes}"),
            *("-o", str(output / TRACE), "--requests-out", str(output / REQUESTS)),
        ],
    )


def _result(
    attempt: Attempt, rules: list[Rule], argv: list[str], runs: Sequence[tuple[str, RunFile, Served]]
) -> MlperfResult:
    client = Client(
        rank=attempt.rank,
        seed=attempt.seed,
        target=attempt.place.target,
        capacity_bytes=attempt.capacity_bytes,
        trials=[trial_of(run, name, served) for name, run, served in runs],
    )
    option = attempt.option
    fields: dict[str, Any] = {
        "argv": argv,
        "option": option.name,
        "workload": option.said,
        "seed_base": attempt.seed_base,
        "asked_trials": attempt.trials,
        "runtime_ns": attempt.runtime_ns,
        "queue_depth": attempt.config.depth,
        "rules": rules,
        "space": [attempt.space],
        "trace": TRACE,
    }
    return result_of(fields, [client], option.number, has_memory=option.cpu_gib > 0)


def write_result(result: MlperfResult, runs: Sequence[tuple[str, RunFile, Served]], output: Path) -> None:
    """Write `result` to `output` in its three forms; a workbook if openpyxl is there, else a line that says how."""
    write_csv(result, output / CSV_FILE)
    written = [MLPERF_FILE, CSV_FILE]
    try:
        write_book(result, runs, output / BOOK_FILE)
        written.append(BOOK_FILE)
    except ProbeUnavailable as error:
        log(f"no {BOOK_FILE}: {error}")
    write_json(output / MLPERF_FILE, result)
    log(f"wrote {', '.join(str(output / name) for name in written)}")
