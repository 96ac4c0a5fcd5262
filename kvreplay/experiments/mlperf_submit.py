"""Run one locked option: make its trace, replay its trials, judge it; and combine several clients.

Clients of one storage are combined by Rules.md 6.3.4 of mlcommons/storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kvreplay.experiments.mlperf_result import (
    GIB,
    NS_PER_MS,
    READ_P95,
    READ_RATE,
    WRITE_P95,
    WRITE_RATE,
    Client,
    Expected,
    MlperfResult,
    Served,
    read_result,
    result_document,
    result_of,
    served_of,
    summary_sheet,
    trial_of,
    write_csv,
)
from kvreplay.experiments.mlperf_rules import Attempt, Kept, Rule, judged, resolve
from kvreplay.experiments.trials import Trials
from kvreplay.plan.output_directory import make_directory
from kvreplay.plan.tier_targets import STORAGE
from kvreplay.run.replay import FinishedRun, Replay, Replaying, replay
from kvtrace.core.app import log
from kvtrace.core.document.export import write_workbook
from kvtrace.core.document.mlperf_sheets import run_sheets
from kvtrace.core.errors import ConfigError, KvError, ProbeUnavailable, TraceError
from kvtrace.core.files import write_json
from kvtrace.core.run.run_file import MLPERF_FILE, TRIALS_FOLDER, RunFile, run_program
from kvtrace.core.units import per_second

TRACE, REQUESTS, EXPECTED = "trace.parquet", "requests.parquet", "expected"
CSV_FILE, BOOK_FILE = "mlperf.csv", "mlperf.xlsx"


def submit(
    attempt: Attempt, rules: list[Rule], request: Replay, *, replaying: Replaying = replay
) -> tuple[MlperfResult, KvError | None]:
    """Run `attempt` with its trace in the output of `request`, replacing an earlier result there.

    Returns the result, which is also written to mlperf.json, and the error if it is partial.
    """
    output, argv = request.output, request.argv
    make_directory(output, MLPERF_FILE)
    for name in (CSV_FILE, BOOK_FILE):
        (output / name).unlink(missing_ok=True)
    make_trace(attempt, output)
    config = replace(attempt.config, requests=str(output / REQUESTS))
    runs: list[tuple[str, RunFile, Served]] = []
    expected = (
        None
        if config.drive is None
        else _expected(replace(request, config=config, trace=output / TRACE))
    )

    def on_trial(run: Path, finished: FinishedRun) -> None:
        log(f"{run}: {finished.run.summary.verdict}")
        served = served_of(run, output / REQUESTS, finished.run.trace.metadata)
        runs.append((f"{TRIALS_FOLDER}/{run.name}", finished.run, served))

    trial_request = replace(
        request, config=config, trace=output / TRACE, output=output / TRIALS_FOLDER, is_forced=True
    )
    _, error = Trials(trial_request, attempt.trials, replaying=replaying).perform(on_trial)
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
        "expected": expected and expected.beside(client.trials),
    }
    result = result_of(fields, [client], option.number, has_memory=option.cpu_gib > 0)
    write_result(result, runs, output)
    return result, error


def _expected(request: Replay) -> Expected:
    """Replay the option's trace in simulated time on the drive file of `request`, and return its
    prediction.
    """
    name = str(request.config.drive)
    on_file = replace(
        request.config, tiers=request.config.tiers | {STORAGE: f"sim:{name}"}, drive=None
    )
    run = replay(
        replace(
            request, config=on_file, output=request.output / EXPECTED, is_forced=True, watching=None
        )
    ).run
    row = dict[str, float | None]()
    for op, rate, p95 in (("read", READ_RATE, READ_P95), ("write", WRITE_RATE, WRITE_P95)):
        figures = next((f for f in run.summary.figures if (f.tier, f.op) == (STORAGE, op)), None)
        nbytes, tail_ns = (figures.bytes, figures.latency.p95_ns) if figures else (None, None)
        per_s = per_second(nbytes or None, run.summary.wall_ns)
        row[rate] = None if per_s is None else per_s / GIB
        row[p95] = None if tail_ns is None else tail_ns / NS_PER_MS
    prediction = Expected(drive=name, row=row)
    log(prediction.in_words())
    return prediction


def make_trace(attempt: Attempt, output: Path) -> None:
    """Let kvtrace simulate the option's preset, for the duration of a trial.

    Its storage tier has the capacity of the storage under test.
    """
    run_program(
        "kvtrace",
        [
            *("gen", "--preset", attempt.option.preset, "--seed", str(attempt.seed)),
            *("--duration", f"{attempt.runtime_ns}ns"),
            *("--set", f"tiers.{STORAGE}.capacity={attempt.capacity_bytes}B"),
            *("-o", str(output / TRACE), "--requests-out", str(output / REQUESTS), "--force"),
        ],
    )


def write_result(
    result: MlperfResult, runs: Sequence[tuple[str, RunFile, Served]], output: Path
) -> None:
    """Write `result` to `output` as JSON, CSV and a workbook.

    Without openpyxl, a line on how to install it replaces the workbook. The workbook has the
    benchmark's sheets, and ours behind them if `runs` are given.
    """
    write_csv(result, output / CSV_FILE)
    written = [MLPERF_FILE, CSV_FILE]
    figures = [served.named(run.summary.wall_ns) for _, run, served in runs]
    sheets = run_sheets([(name, run) for name, run, _ in runs], figures)[1:] if runs else []
    try:
        write_workbook(
            [result_document(result, result.option)],
            output / BOOK_FILE,
            [summary_sheet(result), *sheets],
        )
        written.append(BOOK_FILE)
    except ProbeUnavailable as error:
        log(f"no {BOOK_FILE}: {error}")
    write_json(output / MLPERF_FILE, result)
    log(f"wrote {', '.join(str(output / name) for name in written)}")


TOGETHER = 0.9
"""All ranks must run at the same time for at least this share of the longest run."""
_SAME = {
    "option": "option",
    "seed_base": "base seed",
    "asked_trials": "number of trials",
    "runtime_ns": "runtime in ns",
    "queue_depth": "queue depth",
}


def folders_of(folder: Path) -> dict[str, Path]:
    """Return the folders of the results in `folder`, by option: itself, or one for each option."""
    inside = (
        [folder]
        if (folder / MLPERF_FILE).is_file()
        else sorted(p.parent for p in folder.glob(f"*/{MLPERF_FILE}"))
    )
    if not inside:
        raise TraceError(
            f"no {MLPERF_FILE}: name the folders of kvreplay mlperf, one for each rank", path=folder
        )
    by_option: dict[str, Path] = {}
    for path in inside:
        option = read_result(path).option
        if option in by_option:
            raise ConfigError(
                f"{folder} has {by_option[option].name} and {path.name}, both of {option}; name them"
                " instead"
            )
        by_option[option] = path
    return by_option


def combine(folders: Sequence[Path], argv: list[str]) -> list[MlperfResult]:
    """Return the combined results of the ranks in `folders`, one for each option.

    ConfigError if their options, seeds, numbers of trials or runtimes differ, or one is named
    twice. TraceError if a folder has no result.
    """
    if len(folders) < 2:  # noqa: PLR2004 - several
        raise ConfigError("combine takes the folders of two ranks or more, such as rank-*/")
    for index, folder in enumerate(folders):
        if folder.resolve() in [earlier.resolve() for earlier in folders[:index]]:
            raise ConfigError(f"{folder} is named twice; name each rank once")
    folders_by_rank = [folders_of(folder) for folder in folders]
    first = folders_by_rank[0]
    for folder, by_option in zip(folders, folders_by_rank, strict=True):
        if set(by_option) != set(first):
            raise ConfigError(
                f"{folder} has {', '.join(by_option)}, but {folders[0]} {', '.join(first)}"
            )
    return [
        _combined([by_option[option] for by_option in folders_by_rank], argv) for option in first
    ]


def _combined(paths: Sequence[Path], argv: list[str]) -> MlperfResult:
    ranks = [read_result(path) for path in paths]
    first = ranks[0]
    for path, rank in zip(paths, ranks, strict=True):
        for field, label in _SAME.items():
            value, first_value = getattr(rank, field), getattr(first, field)
            if value != first_value:
                raise ConfigError(
                    f"{path}: {label} {value}, but {first_value} in {paths[0]}; combine ranks of"
                    " one run"
                )
    clients = [client for rank in ranks for client in rank.clients]
    (option,) = resolve([first.option])
    fields: dict[str, Any] = {field: getattr(first, field) for field in _SAME} | {
        "argv": argv,
        "workload": f"{first.workload}, {len(clients)} clients",
        "rules": [*merged(ranks), own_ranks(clients), together(clients)],
        "space": [
            f"rank {c.rank}: {line}"
            for r in ranks
            for c, line in zip(r.clients, r.space, strict=False)
        ],
        "trace": None,
    }
    return result_of(fields, clients, option.number, has_memory=option.cpu_gib > 0)


def merged(ranks: Sequence[MlperfResult]) -> list[Rule]:
    """Merge the rules of all ranks: each rule as judged for the worst rank."""
    severity = [Kept.YES, Kept.UNKNOWN, Kept.NO]
    rules_by_rank = [{rule.rule: rule for rule in rank.rules} for rank in ranks]
    combined_only = ("each client has its own rank", "ranks ran at the same time")
    return [
        max(
            (rules[name] for rules in rules_by_rank if name in rules),
            key=lambda rule: severity.index(rule.kept),
        )
        for name in rules_by_rank[0]
        if name not in combined_only
    ]


def own_ranks(clients: Sequence[Client]) -> Rule:
    """Judge the rule that each client has its own rank, and so its own seed and requests."""
    ranks = [client.rank for client in clients]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    duplicates = ", ".join(map(str, twice))
    detail = (
        f"rank {duplicates} more than once, with the same requests and data: say --rank"
        if twice
        else f"{ranks}"
    )
    short = f"rank {duplicates} more than once"
    return judged("each client has its own rank", "6.3.3.3", detail, short, is_kept=not twice)


def together(clients: Sequence[Client]) -> Rule:
    """Judge the rule that the ranks ran at the same time.

    Bandwidths of different times must not be summed.
    """
    rule = "ranks ran at the same time", "6.3.4.1"
    min_overlap = 1.0
    for trials in zip(*(client.trials for client in clients), strict=False):
        spans = [_span(trial.row) for trial in trials]
        if any(span is None for span in spans):
            return judged(*rule, "a trial does not have its start time", is_kept=None)
        begins, ends = zip(*(span for span in spans if span is not None), strict=True)
        longest = max(e - b for b, e in zip(begins, ends, strict=True))
        shared = max(min(ends) - max(begins), timedelta())
        min_overlap = min(min_overlap, shared / longest if longest else 0.0)
    if min_overlap < TOGETHER:
        detail = (
            f"in one trial they overlap for {min_overlap:.0%} of the longest: the sum was never reached"
            " at once"
        )
        return judged(*rule, detail, f"ranks overlap for {min_overlap:.0%} only", is_kept=False)
    return judged(
        *rule, f"they overlap for {min_overlap:.0%} or more, by their hosts' clocks", is_kept=True
    )


def _span(row: dict[str, Any]) -> tuple[datetime, datetime] | None:
    began, elapsed = row.get("Timestamp"), row.get("Elapsed Time (s)")
    if not isinstance(began, str) or elapsed is None:
        return None
    start = datetime.fromisoformat(began)
    return start, start + timedelta(seconds=elapsed)
