"""Check a result tree of mlpstorage against the rules of a KV-cache submission (Rules.md of
mlcommons/storage).

The official validator has no checks of its own for the KV cache yet (its class is a stub), so that
what section 6 asks is left to reviewers. Here all that the files of a tree can tell is checked, and
what they cannot is said. Read only.
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
"""What is checked, by its place in Rules.md."""
NOT_CHECKED = {
    "2.1.9": "that the hardware and software of a system were the same in all its runs",
    "2.1.6": "that a code image holds the source that its hash names (mlpstorage validate does)",
    "PROV-02": "what submission.yaml lists (mlpstorage reports reportgen writes it)",
    "6.5.2": "that a gateway's or NFS client's version and options are recorded",
}
_CLOSED_ONLY = {"6.3.1.1", "6.3.2.1", "6.3.2.2", "6.6.1"}
_MOST_RANKS, _MOST_TRIALS = 4096, 100
"""That are looked for, whatever a damaged file says."""
_CLOSE = 1e-6
"""Of a figure that is recomputed: sums of the same numbers differ by no more."""
_WHOLE = 0.95
"""Of an option's duration: what ran for less was cut off."""
_LOCKS = {"seed": SEED, "trials": TRIALS, "inter_option_delay_s": PAUSE_S, "config": "default"}
_SUMS = {
    name: ("6.3.4.1" if column in (READ_RATE, WRITE_RATE) else "6.3.4.2", PLACES[column])
    for name, column in SUMMED.items()
}
_GREATEST = {name: PLACES[column] for name, column in WORST.items()}
_GREATEST["aggregated_p95_latency_ms"] = "storage_io_latency_ms.p95"
"""By the result's name.

Where a rank's file has it, below `summary`; the last is of earlier releases.
"""


def _table(option: LockedOption) -> dict[str, object]:
    """Return an option's row of table KVCache-1, by the names that the metadata have."""
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
    """A rule that something in the tree does not keep."""

    rule: str
    """Its place in Rules.md."""
    path: str
    """From the tree's top."""
    what: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a tree."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    answer: str
    runs: int
    findings: list[Finding]
    rules: list[Rule]
    not_checked: dict[str, str]


class _Run(NamedTuple):
    """A run's folder, and what its metadata says."""

    path: Path
    division: str
    metadata: dict[str, object]


Found = Iterator[tuple[str, Path, str]]
"""Rules that are not kept: the rule, the file or folder, and what is wrong."""


def check_tree(root: Path, argv: list[str]) -> Checked:
    """Check the tree below `root`, the folder that holds `closed` or `open`.

    TraceError if it holds neither.
    """
    if not root.is_dir():
        raise TraceError("no such folder" if not root.exists() else "no folder", path=root)
    if not (divisions := [each for each in _folders(root) if each.name.lower() in (CLOSED, OPEN)]):
        why = "name the folder that mlpstorage init made, which --results-dir named"
        raise TraceError(f"neither {CLOSED} nor {OPEN} is in it: {why}", path=root)
    runs: list[_Run] = []
    found = [
        *_top(root),
        *(each for division in divisions for each in _division(root, division, runs)),
    ]
    for run in runs:
        found += _run(run)
    seen = {
        rule
        for rule in RULES
        if any(run.division == CLOSED or rule not in _CLOSED_ONLY for run in runs)
    }
    findings = [
        Finding(rule=rule, path=str(path.relative_to(root)), what=what)
        for rule, path, what in found
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
        rules=[_rule(rule, findings, is_seen=rule in seen) for rule in RULES],
        not_checked=NOT_CHECKED,
    )


def _rule(rule: str, findings: Sequence[Finding], *, is_seen: bool) -> Rule:
    broken = [each for each in findings if each.rule == rule]
    if broken:
        return judged(RULES[rule], rule, counted(len(broken), "fault"), is_kept=False)
    if rule == "6.4.1":
        return judged(
            RULES[rule],
            rule,
            "paths differ; the files do not say on which filesystems",
            is_kept=None,
        )
    return judged(
        RULES[rule],
        rule,
        "" if is_seen else "applies to no run here",
        is_kept=True if is_seen else None,
    )


def _folders(path: Path) -> list[Path]:
    return sorted(
        each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")
    )


def _top(root: Path) -> Found:
    for each in sorted(root.iterdir()):
        name = each.name
        if name.startswith(".") or name in (CLOSED, OPEN, POOL) or (each / POOL_MARK).is_file():
            continue
        near = f"; it is written {name.lower()}" if name.lower() in (CLOSED, OPEN, POOL) else ""
        yield "2.1.2", each, f"neither {CLOSED}, {OPEN} nor {POOL}{near}"


def _division(root: Path, division: Path, runs: list[_Run]) -> Found:
    """Check the folders of each submitter, and gather the runs of the KV cache."""
    submitters = _folders(division)
    if not submitters:
        yield "2.1.5", division, "holds no submitter's folder"
    for submitter in submitters:
        found = {each.name for each in _folders(submitter)}
        for name in sorted({"results", "systems"} ^ found):
            yield (
                "2.1.5",
                submitter / name,
                "is missing" if name not in found else "is not allowed beside results and systems",
            )
        results, systems = submitter / "results", submitter / "systems"
        if systems.is_dir():
            yield from _systems(systems, results)
        if not results.is_dir():
            continue
        if not _folders(results):
            yield "2.1.8", results, "holds no system's folder"
        for system in _folders(results):
            for ending in (".yaml", ".pdf"):
                if not (systems / f"{system.name}{ending}").is_file():
                    yield (
                        "2.1.7",
                        systems / f"{system.name}{ending}",
                        "is missing: it describes the system",
                    )
            yield from _workloads(root, system, division.name.lower(), runs)


def _systems(systems: Path, results: Path) -> Found:
    for each in sorted(systems.iterdir()):
        if each.name.startswith(".") or each.suffix == ".md":
            continue
        if each.suffix not in (".yaml", ".pdf"):
            yield "2.1.7", each, "neither .yaml, .pdf nor .md"
        elif not (results / each.stem).is_dir():
            yield "2.1.8", each, f"describes a system without results: no results/{each.stem}"


def _workloads(root: Path, system: Path, division: str, runs: list[_Run]) -> Found:
    folders = _folders(system)
    for each in folders:
        if each.name not in OTHER_WORKLOADS | {WORKLOAD}:
            is_meant = each.name.replace("-", "_").lower().replace("kvcache", WORKLOAD) == WORKLOAD
            meant = f"; it is written {WORKLOAD}" if is_meant else ""
            yield (
                "2.1.10",
                each,
                (
                    f"is no workload; there are {WORKLOAD},"
                    f" {', '.join(sorted(OTHER_WORKLOADS))}{meant}"
                ),
            )
    if not folders:
        yield "2.1.10", system, "holds no workload"
    for model in _folders(system / WORKLOAD) if (system / WORKLOAD).is_dir() else ():
        phases = {each.name for each in _folders(model)}
        for name in sorted(phases - PHASES):
            yield "2.1.12", model / name, f"is no phase; a phase is {' or '.join(sorted(PHASES))}"
        leaves = _folders(model / "run") if "run" in phases else []
        if not leaves:
            yield "2.1.12", model / "run", "holds no run"
        for leaf in leaves:
            if not _is_time(leaf.name):
                yield "2.1.12", leaf, "its name is not a time: YYYYMMDD_HHmmss"
            metadata, why = _metadata(leaf)
            if why:
                yield "6.3.4.5", leaf, why
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
    """Return the metadata of a run, and why there are none."""
    files = sorted(leaf.glob("*_metadata.json"))
    if len(files) != 1:
        return {}, f"{len(files) or 'no'} *_metadata.json: a run has one"
    found = _read(files[0])
    return (found, "") if isinstance(found, dict) else ({}, f"{files[0].name} is no JSON object")


def _read(path: Path) -> object:
    """Return what is in the JSON file at `path`; None if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    """Return a finite number, written as one or as text; None for all else."""
    try:
        found = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found is not None and math.isfinite(found) else None


def _provenance(root: Path, leaf: Path, metadata: dict[str, object]) -> Found:
    named = leaf / POINTER
    pointer = named.read_text(encoding="utf-8", errors="replace").strip() if named.is_file() else ""
    digest = pointer.rpartition(":")[2]
    if not re.fullmatch("[0-9a-f]{32}", digest):
        yield (
            "2.1.6",
            named,
            "is missing" if not pointer else "names no hash of 32 hexadecimal digits",
        )
    else:
        submitter = leaf.relative_to(root).parts[1]
        images = [root / pool / f"code-{digest[:8]}" for pool in (POOL, submitter)]
        image = next((each for each in images if each.is_dir()), None)
        if image is None:
            yield "2.1.6", images[0], f"is missing: {leaf.name} ran it"
        elif (other := at(_read(image / IMAGE_HASH), "hash")) != digest:
            yield (
                "2.1.6",
                image / IMAGE_HASH,
                f"its hash is {other}, not {digest}, which {leaf.name} names",
            )
    stamp = leaf / STAMP
    if not stamp.is_file():
        if metadata.get("provenance_file"):
            yield "PROV-01", stamp, "is missing, but the metadata name it"
    elif (found := _read(stamp)) is None:
        yield "PROV-01", stamp, "is no JSON"
    elif str(at(found, "tool", "code_image")).rpartition(":")[2] != digest:
        yield "PROV-01", stamp, "names another code image than the run"


def _run(run: _Run) -> Found:
    """Check one run by section 6."""
    kept = (
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
    for rule, said, value, wanted in kept:
        if value not in (None, wanted):
            yield rule, run.path, said.format(value)
    yield from _places(run)
    options, sequence, features = workload_of(run.metadata)
    if run.division == CLOSED:
        yield from _locked(run.path, options, sequence, features)
    path, summary = yield from _summary(run.path)
    # One if nothing says.
    known = (at(summary, "total_ranks"), run.metadata.get("num_processes"), 1)
    ranks = max(
        1, int(min(_MOST_RANKS, next(n for each in known if (n := _number(each)) is not None)))
    )
    trials = int(min(_MOST_TRIALS, _number(sequence.get("trials")) or TRIALS))
    for option in OPTIONS:
        folder, found = (
            run.path / f"option_{option.number}",
            defaultdict[str, list[dict[str, object]]](list),
        )
        yield from _results(folder, trials, ranks, found)
        if found:
            duration = _number(at(options, str(option.number), "duration")) or RUNTIME_S
            yield from _served(folder, option, found, duration)
            if path is not None:
                yield from _aggregated(
                    path, at(summary, "options", str(option.number)), option.number, found
                )


def _summary(leaf: Path) -> Generator[tuple[str, Path, str], None, tuple[Path | None, object]]:
    """Check a run's aggregated result, and return where it is and what it says.

    None without one.
    """
    files = [
        each
        for name in ("summary.json", "kvcache_run_summary*.json")
        for each in sorted(leaf.glob(name))
    ]
    if len(files) != 1:
        yield (
            "6.3.4.5",
            leaf,
            f"{len(files) or 'no'} summary.json or kvcache_run_summary_*.json: a run has one",
        )
        return None, None
    (path,), found = files, _read(files[0])
    if not isinstance(found, dict):
        yield "6.3.4.5", path, "is no JSON object"
        return None, None
    if found.get("partial_failure"):
        yield "6.3.4.5", path, "says that results of ranks are missing (partial_failure)"
    a_host, hosts, ranks = (
        _number(found.get(name)) for name in ("npernode", "host_count", "total_ranks")
    )
    if a_host and hosts and ranks and a_host * hosts != ranks:
        yield "6.3.3.1", path, f"{a_host:g} ranks a host on {hosts:g} hosts are not {ranks:g}"
    return path, found


def _places(run: _Run) -> Found:
    arguments = at(run.metadata, "args")
    cache, results = (at(arguments, name) for name in ("cache_dir", "results_dir"))
    if isinstance(arguments, dict) and "cache_dir" in arguments and not cache:
        yield "6.4.1", run.path, "without --cache-dir the cache lies among the results"
    elif isinstance(cache, str) and isinstance(results, str):
        inner, outer = (os.path.normpath(each) + "/" for each in (cache, results))
        if inner.startswith(outer):
            yield "6.4.1", run.path, f"the cache {cache} lies in the results {results}"


def workload_of(
    metadata: dict[str, object],
) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """Return a run's options, sequence and features.

    As recorded, or else from the commands that it ran.
    """
    recorded = metadata.get("parameters")
    parts = [at(recorded, name) for name in ("options", "sequence", "features")]
    if isinstance(parts[0], dict):
        return tuple(part if isinstance(part, dict) else {} for part in parts)  # type: ignore[return-value]
    arguments = at(metadata, "args")
    sequence = {
        "trials": at(arguments, "trials"),
        "inter_option_delay_s": at(arguments, "inter_option_delay"),
    }
    options, features = defaultdict[str, dict[str, object]](dict), dict[str, object]()
    commands = metadata.get("command_output_files")
    for each in commands if isinstance(commands, list) else ():
        flags = _flags(str(at(each, "command")))
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


def _merge(into: dict[str, object], found: dict[str, object]) -> None:
    """Add what a command said to what others did.

    Two values where they differ, which are no locked one.
    """
    for name, value in found.items():
        known = into.setdefault(name, value)
        if str(value) not in str(known).split(" and "):
            into[name] = f"{known} and {value}"


def _flags(command: str) -> dict[str, object]:
    """Return the options of mlperf_wrapper.py in `command`, by name.

    None if it runs another program.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    program = next(
        (i for i, word in enumerate(words) if word.endswith("mlperf_wrapper.py")), len(words)
    )
    found: dict[str, object] = {}
    for word, value in zip(words[program + 1 :], [*words[program + 2 :], "--"], strict=False):
        if word.startswith("--"):
            found[word[2:].replace("-", "_")] = True if value.startswith("--") else value
    return found


def _locked(
    path: Path, options: dict[str, object], sequence: dict[str, object], features: dict[str, object]
) -> Found:
    """Check what CLOSED fixes.

    The options' parameters, the sequence, and that nothing else was set.
    """
    for option in OPTIONS:
        mine = options.get(str(option.number))
        if not isinstance(mine, dict):
            yield (
                "6.3.1.1",
                path,
                f"option {option.number} was not run, or its command was not recorded",
            )
            continue
        for name, wanted in _table(option).items():
            if not _is_equal(mine.get(name), wanted):
                yield (
                    "6.3.1.1",
                    path,
                    f"option {option.number}: {name} {mine.get(name)}, must be {wanted}",
                )
    for name, wanted in _LOCKS.items():
        if not _is_equal(sequence.get(name), wanted):
            yield "6.3.2.1", path, f"{name} {sequence.get(name)}, must be {wanted}"
    if features.get("enable_autoscaling"):
        yield "6.3.2.2", path, "enable_autoscaling is set"
    for name in sorted(features.keys() - {"enable_autoscaling"}):
        yield "6.6.1", path, f"{name} {features[name]} is set, which CLOSED does not allow"


def _is_equal(value: object, wanted: object) -> bool:
    return value == wanted or (not isinstance(wanted, str) and _number(value) == wanted)


def _results(
    option: Path, trials: int, ranks: int, found: dict[str, list[dict[str, object]]]
) -> Found:
    """Check that each trial of `option` has a result of each rank, and gather the summaries that
    are read.
    """
    for folder in (option / f"trial_{trial}" for trial in range(trials)):
        if not folder.is_dir():
            yield "6.3.3.3", folder, "is missing"
            continue
        seen, by_rank = dict[bytes, str](), defaultdict[str, list[Path]](list)
        for file in sorted(folder.glob("rank_*/kvcache_results_*.json")):
            by_rank[file.parent.name].append(file)
        for rank in map("rank_{}".format, range(ranks)):
            files = by_rank[rank]
            if len(files) != 1:
                many = (
                    f"holds {len(files)} results: the tool takes any one of them"
                    if files
                    else "has no result"
                )
                yield "6.3.3.3", folder / rank, many
                continue
            summary = at(_read(files[0]), "summary")
            if not isinstance(summary, dict):
                yield "6.3.4.5", files[0], "is not a result: no JSON with a summary"
                continue
            digest = hashlib.sha256(files[0].read_bytes()).digest()
            if digest in seen:
                yield "6.3.3.3", files[0], f"is the result of {seen[digest]}, byte for byte"
            seen[digest] = rank
            found[folder.name].append(summary)
        own = {f"rank_{rank}" for rank in range(ranks)}
        if extra := sorted(each.name for each in folder.glob("rank_*") if each.name not in own):
            yield "6.3.3.1", folder, f"holds {', '.join(extra)}, but {ranks} ranks ran"


def _value(summary: object, place: str) -> float:
    """Return a rank's figure; 0 where it has none, as the tool counts it."""
    return _number(at(summary, *place.split("."))) or 0.0


def _served(
    path: Path, option: LockedOption, found: dict[str, list[dict[str, object]]], duration: float
) -> Found:
    """Check that ranks ran to their end and read from storage."""
    every = [summary for of_trial in found.values() for summary in of_trial]
    short = [
        s
        for each in every
        if (s := _number(each.get("elapsed_time"))) is not None and s < _WHOLE * duration
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
    in_memory = [each for each in every if _number(at(each, "cache_stats", "storage_entries")) == 0]
    if in_memory and (not option.cpu_gib or len(in_memory) == len(every)):
        yield "6.3.4.4", path, f"{len(in_memory)} of {len(every)} results kept nothing on storage"
    unread = [
        e
        for e in every
        if e not in in_memory and not _value(e, _SUMS["aggregated_read_bandwidth_gbps"][1])
    ]
    if unread:
        yield "6.3.4.4", path, f"{len(unread)} of {len(every)} results read nothing from storage"


def _aggregated(
    path: Path, said: object, number: int, found: dict[str, list[dict[str, object]]]
) -> Found:
    """Recompute the figures of an option from its ranks' files."""
    if not isinstance(said, dict):
        yield "6.3.4.5", path, f"has no option {number}"
        return
    if said.get("partial_failure") or said.get("missing_files"):
        yield "6.3.4.5", path, f"option {number} lacks results of ranks"
    checks = [
        *(
            (n, rule, fmean(sum(_value(s, at) for s in each) for each in found.values()))
            for n, (rule, at) in _SUMS.items()
        ),
        *(
            (n, "6.3.4.3", max(_value(s, at) for of in found.values() for s in of))
            for n, at in _GREATEST.items()
        ),
    ]
    for name, rule, wanted in checks:
        if name in said and not math.isclose(
            _number(said[name]) or 0.0, wanted, rel_tol=_CLOSE, abs_tol=_CLOSE
        ):
            yield (
                rule,
                path,
                f"option {number}: {name} {said[name]}, but its ranks' files give {wanted:g}",
            )


def check_document(found: Checked) -> Document:
    """Make the document of a checked result tree: its faults, then the rules."""
    faults = table_of(
        "Faults",
        Sheet.PERFORMANCE,
        [
            ReportColumn("rule", "Rules.md"),
            ReportColumn("path"),
            ReportColumn("what", "fault"),
        ],
        found.findings,
    )
    return Document(
        name="",
        headline=found.answer,
        notes=[f"not checked: {what} ({rule})" for rule, what in found.not_checked.items()],
        chapters=[Chapter("", [*([faults] if found.findings else []), rules_table(found.rules)])],
    )
