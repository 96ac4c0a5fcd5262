"""Check a result tree of mlpstorage against the rules of a KV-cache submission (Rules.md of
mlcommons/storage).

The official validator has no checks for the KV cache yet (its class is a stub), so section 6 is
left to reviewers. This module checks everything that the files of a tree show, and lists the rules
that they cannot show. It only reads.
"""

from __future__ import annotations

import hashlib
import json
import math
import os.path
import re
import shlex
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from kvreplay.experiments.mlperf_result import PLACES, READ_RATE, SUMMED, WORST, WRITE_RATE
from kvreplay.experiments.mlperf_rules import (
    OPTIONS,
    PAUSE_S,
    RUNTIME_S,
    SEED,
    TRIALS,
    LockedOption,
    Rule,
    judged,
    rules_table,
)
from kvtrace import __version__
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    table_of,
)
from kvtrace.core.errors import TraceError
from kvtrace.core.files import at
from kvtrace.core.units import counted

CLOSED, OPEN, POOL, WORKLOAD = "closed", "open", "code-images", "kv_cache"
POOL_MARK, POINTER, STAMP, IMAGE_HASH = (
    ".mlps-image-pool",
    ".mlps-code-image",
    "provenance.json",
    ".code-hash.json",
)
OTHER_WORKLOADS = {"training", "checkpointing", "vector_database"}
PHASES = {"run", "datasize"}
RULES = {
    "2.1.2": "folders at the top",
    "2.1.5": "folders of a submitter",
    "2.1.6": "each run names its code image",
    "2.1.7": "a .yaml and a .pdf describe each system",
    "2.1.8": "systems have results",
    "2.1.10": "workloads of a system",
    "2.1.12": "phases and times of runs",
    "PROV-01": "provenance of each run",
    "6.3.1.1": "the three options, as table KVCache-1 has them",
    "6.3.2.1": "seed, trials and pause; no --config",
    "6.3.2.2": "no autoscaling",
    "6.3.3.1": "ranks: so many a host, in all",
    "6.3.3.3": "each rank has a result of its own",
    "6.3.4.1": "bandwidth: summed over ranks, mean of trials",
    "6.3.4.2": "throughput: summed over ranks, mean of trials",
    "6.3.4.3": "P95: the greatest of all ranks and trials",
    "6.3.4.4": "storage was read",
    "6.3.4.5": "the run is whole, and has a result",
    "6.4.1": "cache and results on different filesystems",
    "6.6.1": "nothing else is changed in CLOSED",
}
"""The rules that are checked, by their section in Rules.md."""
NOT_CHECKED = {
    "2.1.9": "that the hardware and software of a system were the same in all its runs",
    "2.1.6": "that a code image holds the source that its hash names (mlpstorage validate does)",
    "PROV-02": "what submission.yaml lists (mlpstorage reports reportgen writes it)",
    "6.5.2": "that a gateway's or NFS client's version and options are recorded",
}
_CLOSED_ONLY = {"6.3.1.1", "6.3.2.1", "6.3.2.2", "6.6.1"}
_MAX_RANKS, _MAX_TRIALS = 4096, 100
"""Limits of the ranks and trials that are checked, in case a damaged file gives more."""
_CLOSE = 1e-6
"""Tolerance of recomputed figures: sums of the same numbers differ by no more."""
_WHOLE = 0.95
"""Minimum share of an option's duration; a shorter run was cut off."""
_LOCKS = {"seed": SEED, "trials": TRIALS, "inter_option_delay_s": PAUSE_S, "config": "default"}
_SUMS = {
    name: ("6.3.4.1" if column in (READ_RATE, WRITE_RATE) else "6.3.4.2", PLACES[column])
    for name, column in SUMMED.items()
}
_GREATEST = {name: PLACES[column] for name, column in WORST.items()}
_GREATEST["aggregated_p95_latency_ms"] = "storage_io_latency_ms.p95"
"""Field of a rank's file below `summary`, by the name in the aggregated result.

The last one is of earlier releases.
"""


def _table(option: LockedOption) -> dict[str, object]:
    """Return an option's row of table KVCache-1, by the names in the metadata."""
    return {
        "model": option.model,
        "num_users": option.users,
        "duration": RUNTIME_S,
        "gpu_mem_gb": 0,
        "cpu_mem_gb": option.cpu_gib,
        "max_concurrent_allocs": option.max_concurrent_allocs,
        "generation_mode": "none",
    }


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A violation of a rule."""

    rule: str
    """Its section in Rules.md."""
    path: str
    """Path from the tree's top."""
    what: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a tree."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    answer: str
    runs: int
    findings: list[Finding]
    rules: list[Rule]
    not_checked: dict[str, str]


class _Run(NamedTuple):
    """A run's folder and its metadata."""

    path: Path
    division: str
    metadata: dict[str, object]


Violations = Iterator[tuple[str, Path, str]]
"""Violations of rules: the rule, the file or folder, and the fault."""


def check_tree(root: Path, argv: list[str]) -> Checked:
    """Check the tree below `root`, the folder that contains `closed` or `open`.

    TraceError if it contains neither.
    """
    if not root.is_dir():
        raise TraceError("no such folder" if not root.exists() else "not a folder", path=root)
    divisions = [folder for folder in _folders(root) if folder.name.lower() in (CLOSED, OPEN)]
    if not divisions:
        remedy = "name the folder that mlpstorage init made, which --results-dir named"
        raise TraceError(
            f"not an mlpstorage tree: no {CLOSED}/ or {OPEN}/ in it; {remedy}", path=root
        )
    runs: list[_Run] = []
    violations = [
        *_top(root),
        *(violation for division in divisions for violation in _division(root, division, runs)),
    ]
    for run in runs:
        violations += _run(run)
    applicable = {
        rule
        for rule in RULES
        if any(run.division == CLOSED or rule not in _CLOSED_ONLY for run in runs)
    }
    findings = [
        Finding(rule=rule, path=str(path.relative_to(root)), what=fault)
        for rule, path, fault in violations
    ]
    answer = f"{counted(len(findings), 'fault')} in {counted(len(runs), 'run')} of the KV cache"
    if not runs:
        answer = (
            f"no run of the KV cache is in {root}; {counted(len(findings), 'fault')} in its folders"
        )
    elif not findings:
        answer = (
            f"no fault in {counted(len(runs), 'run')} of the KV cache, as far as the files show"
        )
    return Checked(
        argv=argv,
        answer=answer,
        runs=len(runs),
        findings=findings,
        rules=[_rule(rule, findings, is_applicable=rule in applicable) for rule in RULES],
        not_checked=NOT_CHECKED,
    )


def _rule(rule: str, findings: Sequence[Finding], *, is_applicable: bool) -> Rule:
    broken = [finding for finding in findings if finding.rule == rule]
    if broken:
        return judged(RULES[rule], rule, counted(len(broken), "fault"), is_kept=False)
    if rule == "6.4.1":
        return judged(
            RULES[rule],
            rule,
            "paths differ; the files do not show on which filesystems",
            is_kept=None,
        )
    return judged(
        RULES[rule],
        rule,
        "" if is_applicable else "applies to no run here",
        is_kept=True if is_applicable else None,
    )


def _folders(path: Path) -> list[Path]:
    return sorted(
        entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )


def _top(root: Path) -> Violations:
    for entry in sorted(root.iterdir()):
        name = entry.name
        if name.startswith(".") or name in (CLOSED, OPEN, POOL) or (entry / POOL_MARK).is_file():
            continue
        hint = f"; it is written {name.lower()}" if name.lower() in (CLOSED, OPEN, POOL) else ""
        yield "2.1.2", entry, f"neither {CLOSED}, {OPEN} nor {POOL}{hint}"


def _division(root: Path, division: Path, runs: list[_Run]) -> Violations:
    """Check the folders of each submitter, and gather the runs of the KV cache."""
    submitters = _folders(division)
    if not submitters:
        yield "2.1.5", division, "has no submitter's folder"
    for submitter in submitters:
        names = {folder.name for folder in _folders(submitter)}
        for name in sorted({"results", "systems"} ^ names):
            yield (
                "2.1.5",
                submitter / name,
                "is missing" if name not in names else "is not allowed beside results and systems",
            )
        results, systems = submitter / "results", submitter / "systems"
        if systems.is_dir():
            yield from _systems(systems, results)
        if not results.is_dir():
            continue
        if not _folders(results):
            yield "2.1.8", results, "has no system's folder"
        for system in _folders(results):
            for ending in (".yaml", ".pdf"):
                if not (systems / f"{system.name}{ending}").is_file():
                    yield (
                        "2.1.7",
                        systems / f"{system.name}{ending}",
                        "is missing: it describes the system",
                    )
            yield from _workloads(root, system, division.name.lower(), runs)


def _systems(systems: Path, results: Path) -> Violations:
    for entry in sorted(systems.iterdir()):
        if entry.name.startswith(".") or entry.suffix == ".md":
            continue
        if entry.suffix not in (".yaml", ".pdf"):
            yield "2.1.7", entry, "neither .yaml, .pdf nor .md"
        elif not (results / entry.stem).is_dir():
            yield "2.1.8", entry, f"describes a system without results: no results/{entry.stem}"


def _workloads(root: Path, system: Path, division: str, runs: list[_Run]) -> Violations:
    folders = _folders(system)
    for folder in folders:
        if folder.name not in OTHER_WORKLOADS | {WORKLOAD}:
            normalized = folder.name.replace("-", "_").lower().replace("kvcache", WORKLOAD)
            hint = f"; it is written {WORKLOAD}" if normalized == WORKLOAD else ""
            yield (
                "2.1.10",
                folder,
                (
                    f"is not a workload; there are {WORKLOAD},"
                    f" {', '.join(sorted(OTHER_WORKLOADS))}{hint}"
                ),
            )
    if not folders:
        yield "2.1.10", system, "has no workload"
    for model in _folders(system / WORKLOAD) if (system / WORKLOAD).is_dir() else ():
        phases = {phase.name for phase in _folders(model)}
        for name in sorted(phases - PHASES):
            yield (
                "2.1.12",
                model / name,
                f"is not a phase; a phase is {' or '.join(sorted(PHASES))}",
            )
        leaves = _folders(model / "run") if "run" in phases else []
        if not leaves:
            yield "2.1.12", model / "run", "has no run"
        for leaf in leaves:
            if not _is_time(leaf.name):
                yield "2.1.12", leaf, "its name is not a time: YYYYMMDD_HHmmss"
            metadata, fault = _metadata(leaf)
            if fault:
                yield "6.3.4.5", leaf, fault
            else:
                runs.append(_Run(leaf, division, metadata))
                yield from _provenance(root, leaf, metadata)


def _is_time(name: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{8}_\d{6}", name)) and bool(
            datetime.strptime(name, "%Y%m%d_%H%M%S")  # noqa: DTZ007 - local time
        )
    except ValueError:
        return False


def _metadata(leaf: Path) -> tuple[dict[str, object], str]:
    """Return the metadata of a run, or the reason why there are none."""
    files = sorted(leaf.glob("*_metadata.json"))
    if len(files) != 1:
        return {}, f"{len(files) or 'no'} *_metadata.json: a run has one"
    content = _read(files[0])
    return (
        (content, "")
        if isinstance(content, dict)
        else ({}, f"{files[0].name} is not a JSON object")
    )


def _read(path: Path) -> object:
    """Return the content of the JSON file at `path`; None if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    """Return a finite number, given as a number or as text; None for any other value."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _provenance(root: Path, leaf: Path, metadata: dict[str, object]) -> Violations:
    pointer_file = leaf / POINTER
    pointer = ""
    if pointer_file.is_file():
        pointer = pointer_file.read_text(encoding="utf-8", errors="replace").strip()
    digest = pointer.rpartition(":")[2]
    if not re.fullmatch("[0-9a-f]{32}", digest):
        yield (
            "2.1.6",
            pointer_file,
            "is missing" if not pointer else "names no hash of 32 hexadecimal digits",
        )
    else:
        submitter = leaf.relative_to(root).parts[1]
        images = [root / pool / f"code-{digest[:8]}" for pool in (POOL, submitter)]
        image = next((folder for folder in images if folder.is_dir()), None)
        if image is None:
            yield "2.1.6", images[0], f"is missing: {leaf.name} ran it"
        elif (image_hash := at(_read(image / IMAGE_HASH), "hash")) != digest:
            yield (
                "2.1.6",
                image / IMAGE_HASH,
                f"its hash is {image_hash}, not {digest}, which {leaf.name} names",
            )
    stamp = leaf / STAMP
    if not stamp.is_file():
        if metadata.get("provenance_file"):
            yield "PROV-01", stamp, "is missing, but the metadata name it"
    elif (provenance := _read(stamp)) is None:
        yield "PROV-01", stamp, "is not JSON"
    elif str(at(provenance, "tool", "code_image")).rpartition(":")[2] != digest:
        yield "PROV-01", stamp, "names another code image than the run"


def _run(run: _Run) -> Violations:
    """Check one run by section 6."""
    expectations = (
        ("2.1.10", f"a run of {{}}, not {WORKLOAD}", run.metadata.get("benchmark_type"), WORKLOAD),
        (
            "2.1.12",
            "the run was of {}: its folder was renamed",
            run.metadata.get("run_datetime"),
            run.path.name,
        ),
        ("6.3.4.5", "ended with status {}", run.metadata.get("exit_status"), 0),
        (
            "6.6.1",
            f"a run of {{}} lies in {run.division}",
            at(run.metadata, "args", "mode"),
            run.division,
        ),
    )
    for rule, message, value, expected in expectations:
        if value not in (None, expected):
            yield rule, run.path, message.format(value)
    yield from _places(run)
    options, sequence, features = workload_of(run.metadata)
    if run.division == CLOSED:
        yield from _locked(run.path, options, sequence, features)
    path, summary = yield from _summary(run.path)
    # There is one rank if neither file gives their number.
    candidates = (at(summary, "total_ranks"), run.metadata.get("num_processes"), 1)
    rank_count = next(n for candidate in candidates if (n := _number(candidate)) is not None)
    ranks = max(1, int(min(_MAX_RANKS, rank_count)))
    trials = int(min(_MAX_TRIALS, _number(sequence.get("trials")) or TRIALS))
    for option in OPTIONS:
        folder = run.path / f"option_{option.number}"
        by_trial = defaultdict[str, list[dict[str, object]]](list)
        yield from _results(folder, trials, ranks, by_trial)
        if by_trial:
            duration = _number(at(options, str(option.number), "duration")) or RUNTIME_S
            yield from _served(folder, option, by_trial, duration)
            if path is not None:
                aggregated = at(summary, "options", str(option.number))
                yield from _aggregated(path, aggregated, option.number, by_trial)


def _summary(leaf: Path) -> Generator[tuple[str, Path, str], None, tuple[Path | None, object]]:
    """Check a run's aggregated result, and return its path and content; None if there is none."""
    files = [
        path
        for name in ("summary.json", "kvcache_run_summary*.json")
        for path in sorted(leaf.glob(name))
    ]
    if len(files) != 1:
        yield (
            "6.3.4.5",
            leaf,
            f"{len(files) or 'no'} summary.json or kvcache_run_summary_*.json: a run has one",
        )
        return None, None
    (path,), content = files, _read(files[0])
    if not isinstance(content, dict):
        yield "6.3.4.5", path, "is not a JSON object"
        return None, None
    if content.get("partial_failure"):
        yield "6.3.4.5", path, "reports that results of ranks are missing (partial_failure)"
    ranks_per_host, hosts, ranks = (
        _number(content.get(name)) for name in ("npernode", "host_count", "total_ranks")
    )
    if ranks_per_host and hosts and ranks and ranks_per_host * hosts != ranks:
        yield (
            "6.3.3.1",
            path,
            f"{ranks_per_host:g} ranks a host on {hosts:g} hosts are not {ranks:g}",
        )
    return path, content


def _places(run: _Run) -> Violations:
    arguments = at(run.metadata, "args")
    cache, results = (at(arguments, name) for name in ("cache_dir", "results_dir"))
    if isinstance(arguments, dict) and "cache_dir" in arguments and not cache:
        yield "6.4.1", run.path, "without --cache-dir the cache lies among the results"
    elif isinstance(cache, str) and isinstance(results, str):
        inner, outer = (os.path.normpath(folder) + "/" for folder in (cache, results))
        if inner.startswith(outer):
            yield "6.4.1", run.path, f"the cache {cache} lies in the results {results}"


def workload_of(
    metadata: dict[str, object],
) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """Return a run's options, sequence and features: as recorded, else from its commands."""
    recorded = metadata.get("parameters")
    sections = [at(recorded, name) for name in ("options", "sequence", "features")]
    if isinstance(sections[0], dict):
        return tuple(section if isinstance(section, dict) else {} for section in sections)  # type: ignore[return-value]
    arguments = at(metadata, "args")
    sequence = {
        "trials": at(arguments, "trials"),
        "inter_option_delay_s": at(arguments, "inter_option_delay"),
    }
    options, features = defaultdict[str, dict[str, object]](dict), dict[str, object]()
    commands = metadata.get("command_output_files")
    for entry in commands if isinstance(commands, list) else ():
        flags = _flags(str(at(entry, "command")))
        number = re.search(r"option_(\d)", str(flags.pop("rank_output_base", "")))
        if number is None:
            continue
        config = Path(str(flags.pop("config", "")))
        is_default = config.parent.name == "kv_cache_benchmark"
        flags.pop("rank_cache_base", None)
        _merge(
            sequence,
            {
                "seed": flags.pop("seed_base", None),
                "config": "default" if is_default else str(config),
            },
        )
        _merge(
            options[number[1]],
            {name: flags.pop(name) for name in _table(OPTIONS[0]) if name in flags},
        )
        features |= flags
    return dict(options), sequence, features


def _merge(into: dict[str, object], parameters: dict[str, object]) -> None:
    """Add the parameters of one command to those of others.

    If values differ, the result has both of them, which equals no locked value.
    """
    for name, value in parameters.items():
        earlier = into.setdefault(name, value)
        if str(value) not in str(earlier).split(" and "):
            into[name] = f"{earlier} and {value}"


def _flags(command: str) -> dict[str, object]:
    """Return the options of mlperf_wrapper.py in `command`, by name.

    The result is empty if the command runs another program.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    program = next(
        (i for i, word in enumerate(words) if word.endswith("mlperf_wrapper.py")), len(words)
    )
    flags: dict[str, object] = {}
    for word, value in zip(words[program + 1 :], [*words[program + 2 :], "--"], strict=False):
        if word.startswith("--"):
            flags[word[2:].replace("-", "_")] = True if value.startswith("--") else value
    return flags


def _locked(
    path: Path, options: dict[str, object], sequence: dict[str, object], features: dict[str, object]
) -> Violations:
    """Check the rules of CLOSED: the options' parameters, the sequence, and no other settings."""
    for option in OPTIONS:
        parameters = options.get(str(option.number))
        if not isinstance(parameters, dict):
            yield (
                "6.3.1.1",
                path,
                f"option {option.number} was not run, or its command was not recorded",
            )
            continue
        for name, locked in _table(option).items():
            if not _is_equal(parameters.get(name), locked):
                yield (
                    "6.3.1.1",
                    path,
                    f"option {option.number}: {name} {parameters.get(name)}, must be {locked}",
                )
    for name, locked in _LOCKS.items():
        if not _is_equal(sequence.get(name), locked):
            yield "6.3.2.1", path, f"{name} {sequence.get(name)}, must be {locked}"
    if features.get("enable_autoscaling"):
        yield "6.3.2.2", path, "enable_autoscaling is set"
    for name in sorted(features.keys() - {"enable_autoscaling"}):
        yield "6.6.1", path, f"{name} {features[name]} is set, which CLOSED does not allow"


def _is_equal(value: object, locked: object) -> bool:
    return value == locked or (not isinstance(locked, str) and _number(value) == locked)


def _results(
    option: Path, trials: int, ranks: int, by_trial: dict[str, list[dict[str, object]]]
) -> Violations:
    """Check that each trial of `option` has a result of each rank.

    Add the summaries that can be read to `by_trial`, by trial folder.
    """
    for folder in (option / f"trial_{trial}" for trial in range(trials)):
        if not folder.is_dir():
            yield "6.3.3.3", folder, "is missing"
            continue
        rank_by_digest, by_rank = dict[bytes, str](), defaultdict[str, list[Path]](list)
        for file in sorted(folder.glob("rank_*/kvcache_results_*.json")):
            by_rank[file.parent.name].append(file)
        for rank in map("rank_{}".format, range(ranks)):
            files = by_rank[rank]
            if len(files) != 1:
                fault = (
                    f"has {len(files)} results: the tool takes any one of them"
                    if files
                    else "has no result"
                )
                yield "6.3.3.3", folder / rank, fault
                continue
            summary = at(_read(files[0]), "summary")
            if not isinstance(summary, dict):
                yield "6.3.4.5", files[0], "is not a result: no JSON with a summary"
                continue
            digest = hashlib.sha256(files[0].read_bytes()).digest()
            if digest in rank_by_digest:
                original = rank_by_digest[digest]
                yield "6.3.3.3", files[0], f"is the result of {original}, byte for byte"
            rank_by_digest[digest] = rank
            by_trial[folder.name].append(summary)
        expected = {f"rank_{rank}" for rank in range(ranks)}
        names = sorted(path.name for path in folder.glob("rank_*"))
        if extra := [name for name in names if name not in expected]:
            yield "6.3.3.1", folder, f"has {', '.join(extra)}, but {ranks} ranks ran"


def _value(summary: object, place: str) -> float:
    """Return a rank's figure; 0 if it has none, as the tool counts it."""
    return _number(at(summary, *place.split("."))) or 0.0


def _served(
    path: Path, option: LockedOption, by_trial: dict[str, list[dict[str, object]]], duration: float
) -> Violations:
    """Check that ranks ran to their end and read from storage."""
    every = [summary for summaries in by_trial.values() for summary in summaries]
    short = [
        elapsed_s
        for summary in every
        if (elapsed_s := _number(summary.get("elapsed_time"))) is not None
        and elapsed_s < _WHOLE * duration
    ]
    if short:
        yield (
            "6.3.1.1",
            path,
            (
                f"{len(short)} of {len(every)} results ended after {min(short):.0f} s of"
                f" {duration:.0f}"
            ),
        )
    in_memory = [
        summary for summary in every if _number(at(summary, "cache_stats", "storage_entries")) == 0
    ]
    if in_memory and (not option.cpu_gib or len(in_memory) == len(every)):
        yield "6.3.4.4", path, f"{len(in_memory)} of {len(every)} results kept nothing on storage"
    read_rate_place = _SUMS["aggregated_read_bandwidth_gbps"][1]
    unread = [
        summary
        for summary in every
        if summary not in in_memory and not _value(summary, read_rate_place)
    ]
    if unread:
        yield "6.3.4.4", path, f"{len(unread)} of {len(every)} results read nothing from storage"


def _aggregated(
    path: Path, aggregated: object, number: int, by_trial: dict[str, list[dict[str, object]]]
) -> Violations:
    """Recompute the figures of an option from its ranks' files."""
    if not isinstance(aggregated, dict):
        yield "6.3.4.5", path, f"has no option {number}"
        return
    if aggregated.get("partial_failure") or aggregated.get("missing_files"):
        yield "6.3.4.5", path, f"option {number} lacks results of ranks"
    checks = [
        *(
            (
                name,
                rule,
                fmean(
                    sum(_value(summary, place) for summary in summaries)
                    for summaries in by_trial.values()
                ),
            )
            for name, (rule, place) in _SUMS.items()
        ),
        *(
            (
                name,
                "6.3.4.3",
                max(
                    _value(summary, place)
                    for summaries in by_trial.values()
                    for summary in summaries
                ),
            )
            for name, place in _GREATEST.items()
        ),
    ]
    for name, rule, recomputed in checks:
        if name in aggregated and not math.isclose(
            _number(aggregated[name]) or 0.0, recomputed, rel_tol=_CLOSE, abs_tol=_CLOSE
        ):
            yield (
                rule,
                path,
                f"option {number}: {name} {aggregated[name]}, but its ranks' files give {recomputed:g}",
            )


def check_document(checked: Checked) -> Document:
    """Make the document of a checked result tree: its faults, then the rules."""
    faults = table_of(
        "Faults",
        Sheet.PERFORMANCE,
        [
            ReportColumn("rule", "Rules.md"),
            ReportColumn("path"),
            ReportColumn("what", "fault"),
        ],
        checked.findings,
    )
    return Document(
        name="",
        headline=checked.answer,
        notes=[f"not checked: {text} ({rule})" for rule, text in checked.not_checked.items()],
        chapters=[
            Chapter("", [*([faults] if checked.findings else []), rules_table(checked.rules)])
        ],
    )
