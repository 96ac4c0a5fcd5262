"""The benchmark's locked options, one attempt at them, and which rules of a submission it keeps.

Rules.md of mlcommons/storage: section 6, a line each; the options are table KVCache-1 of 6.3.1. A
preset of kvtrace holds the workload of each option; a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from kvreplay.plan.replay_config import Config
from kvreplay.plan.tier_targets import FILE_SUFFIX, STORAGE, named, paths_of
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    parameters,
    table_of,
)
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.parameters import entry as named_entry
from kvtrace.core.parameters import named as named_option
from kvtrace.core.units import NS_PER_S, counted, format_bytes, format_duration

SEED, TRIALS, RUNTIME_S, PAUSE_S = 42, 3, 300, 90
"""Values that Rules.md locks for all options: 6.3.2.1, and the duration of table KVCache-1."""


@dataclass(frozen=True, slots=True)
class LockedOption:
    """One option: the workload of a client, the same for all storage."""

    number: int
    name: str
    title: str
    model: str
    users: int
    """Users of each client; the benchmark has as many threads that read and write."""
    cpu_gib: int
    max_concurrent_allocs: int
    """Without a counterpart in a replay."""

    @property
    def preset(self) -> str:
        """The preset of kvtrace that holds its workload."""
        return f"mlperf-{self.name}"

    @property
    def said(self) -> str:
        """Describe the workload in a few words."""
        memory = f"{self.cpu_gib} GiB of CPU memory" if self.cpu_gib else "no CPU tier"
        return f"option {self.number}, {self.model}, {self.users} users, {memory}"


OPTIONS = (
    LockedOption(1, "v3-8b-stress", "Max Storage Stress", "llama3.1-8b", 200, 0, 16),
    LockedOption(2, "v3-8b-throughput", "Storage Throughput", "llama3.1-8b", 100, 4, 16),
    LockedOption(3, "v3-70b", "Large Model (70B)", "llama3.1-70b-instruct", 70, 0, 4),
)
ALL = "v3"
SHORT = {"v3-8b": "v3-8b-stress"}
"""Short names of options."""
_BY_NAME = {
    key: option for option in OPTIONS for key in (option.name, option.preset, str(option.number))
}


def resolve(names: Sequence[str]) -> list[LockedOption]:
    """Look up options by name, each once.

    ConfigError, with the nearest name, for an unknown one.
    """
    options: list[LockedOption] = []
    for name in names:
        for option in OPTIONS if name in (ALL, f"mlperf-{ALL}") else [_one(name)]:
            if option in options:
                raise ConfigError(f"{name}: {option.name} is named twice; name it once")
            options.append(option)
    if not options:
        raise ConfigError(
            f"name an option: {', '.join(o.name for o in OPTIONS)}, or {ALL} for all of them"
        )
    return options


def _one(name: str) -> LockedOption:
    plain = name.lower()
    option = _BY_NAME.get(SHORT.get(plain.removeprefix("mlperf-"), plain))
    if option is not None:
        return option
    names = [o.name for o in OPTIONS]
    if Path(name).exists():
        raise ConfigError(
            f"{name} is no locked option: name the storage under test as"
            f" {named_entry('tiers', STORAGE, name)}"
        )
    near = get_close_matches(plain, [*names, *SHORT], n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}? There" if near else "; there"
    raise ConfigError(
        f"no locked option {name!r}{hint} are {', '.join(names)}, and {ALL} for all of them"
    )


class Kept(StrEnum):
    """The judgement of a rule."""

    YES = "kept"
    NO = "not kept"
    UNKNOWN = "undetermined"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, and whether it is kept."""

    rule: str
    reference: str
    """Its section in Rules.md."""
    kept: Kept
    detail: str
    short: str = ""
    """The mark of results that break the rule."""
    is_chosen: bool = True
    """Whether the user chose the deviation by an option; other deviations are refused."""


NOT_CLAIMED = {
    "a submission": (
        "MLCommons takes results of its own mlpstorage alone (Rules.md 1); this measures the same"
        " option by replay, to prepare and to compare"
    ),
    "device P95": (
        "storage_read_device_p95_ms and storage_write_device_p95_ms are null: measured is the time"
        " of a whole object, from submission to completion, with fdatasync for writes, not the"
        " device's part of it; kvreplay run --probes measures that"
    ),
    "P95 with one thread per user": (
        "the benchmark has as many threads as users, of which max-concurrent-allocs may write; here"
        " as many I/Os of 1 MiB as users, unless --queue-depth says otherwise, are in flight, in"
        " the order of the simulated requests, and there is no think time: fewer objects share the"
        " storage at a time, so that each may take less time than there"
    ),
    "reads through the page cache": (
        "the benchmark uses np.load after dropping a file's pages; here all I/O is direct"
    ),
    "end-to-end latency": "a replay computes nothing",
}
"""Parts of a submission that a replay cannot provide, and why."""


def rules_of(attempt: Attempt) -> list[Rule]:
    """Judge each rule of a submission for `attempt`."""
    option, place = attempt.option, attempt.place
    is_all, is_default = attempt.options == len(OPTIONS), attempt.asked_bytes is None
    pause_note = f"one option here; {PAUSE_S} s between one and the next"
    is_apart = place.filesystems is None or place.results_filesystem not in place.filesystems
    trials = counted(attempt.trials, "trial")
    off = f"{trials} of {TRIALS}" if attempt.trials < TRIALS else f"{trials}, not {TRIALS}"
    size, some = (
        format_bytes(attempt.capacity_bytes),
        f"{attempt.options} of {len(OPTIONS)} here; v3 runs them all",
    )
    return [
        judged(
            "workload of the option",
            "6.3.1.1",
            f"{option.title}: {option.said}, no GPU tier, no generation time",
            is_kept=True,
        ),
        _locked("runtime", "6.3.1.1", attempt.runtime_ns, RUNTIME_S * NS_PER_S, format_duration),
        _locked("seed", "6.3.2.1", attempt.seed_base, SEED, str, f", plus rank {attempt.rank}"),
        _locked("trials", "6.3.2.1", attempt.trials, TRIALS, str, short=off),
        (
            _locked(
                "pause between options",
                "6.3.2.1",
                attempt.pause_ns,
                PAUSE_S * NS_PER_S,
                format_duration,
            )
            if attempt.options > 1
            else judged("pause between options", "6.3.2.1", pause_note, is_kept=None)
        ),
        judged(
            "all options are run",
            "6.3.1.1",
            "all three, one after the other" if is_all else some,
            is_kept=is_all or None,
        ),
        judged(
            "cache and results on different filesystems",
            "6.4.1",
            (
                place.target
                if is_apart
                else f"results would lie on the filesystem of {place.target}: name another -o"
            ),
            "cache and results on one filesystem",
            is_kept=is_apart,
            is_chosen=False,
        ),
        judged(
            "storage tier as large as the benchmark makes it",
            "6.6.1",
            (
                f"{size}, 95 % of what is free"
                if is_default
                else f"{size} by --capacity, not 95 % of what is free"
            ),
            f"storage tier of {size}",
            is_kept=is_default,
        ),
        judged(
            "each client has its own cache folder",
            "6.3.3.3",
            "one client is seen here; name a folder of its own for each",
            is_kept=None,
        ),
    ]


def judged(
    rule: str,
    reference: str,
    detail: str,
    short: str = "",
    *,
    is_kept: bool | None,
    is_chosen: bool = True,
) -> Rule:
    """Return the judgement of a rule: kept, not kept, or undetermined if `is_kept` is None.

    `short` is the mark of results if it is not kept.
    """
    judgement = Kept.UNKNOWN if is_kept is None else Kept.YES if is_kept else Kept.NO
    short = short if is_kept is False else ""
    return Rule(
        rule=rule,
        reference=reference,
        kept=judgement,
        detail=detail,
        short=short,
        is_chosen=is_chosen,
    )


def _locked(
    rule: str,
    reference: str,
    value: int,
    locked: int,
    show: Callable[[int], str],
    suffix: str = "",
    short: str = "",
) -> Rule:
    value_text, locked_text = show(value), show(locked)
    if not short:
        is_runtime = rule == "runtime"
        short = (
            f"{value_text} of {locked_text}"
            if is_runtime
            else f"{rule} {value_text}, not {locked_text}"
        )
    detail = value_text if value == locked else f"{value_text}, not {locked_text}"
    return judged(rule, reference, f"{detail}{suffix}", short, is_kept=value == locked)


def mark_of(rules: Sequence[Rule]) -> str | None:
    """Return the mark of results that break a rule; None if no rule is known to be broken."""
    broken = [rule.short for rule in rules if rule.kept is Kept.NO]
    return f"not a submission: {', '.join(broken)}" if broken else None


def refuse_broken(rules: Sequence[Rule], *, is_allowed: bool) -> None:
    """Raise ConfigError for a broken rule that the user did not choose, unless `is_allowed`."""
    broken = [
        f"{r.rule} ({r.reference}): {r.detail}"
        for r in rules
        if r.kept is Kept.NO and not r.is_chosen
    ]
    if broken and not is_allowed:
        raise ConfigError(
            f"a rule is not kept: {'; '.join(broken)}; --break-rules goes on and marks the results"
        )


MEMORY = "cpu"
"""The tier in memory of the options' presets."""
SHARE_OF_FREE = 0.95
"""Share of the free space that the benchmark takes as its storage tier (kv_cache/cache.py)."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class UnderTest:
    """The storage under test, and the filesystem of the results."""

    target: str
    free_bytes: int
    """Free space on the filesystems of directories and files, and the size of block devices."""
    filesystems: frozenset[int] | None
    """Device numbers; None if the cache is on block devices, where no results can be."""
    results_filesystem: int
    size_bytes: int | None = None
    """Size of existing files and devices, which is the tier's whatever is free."""

    @property
    def room_bytes(self) -> int:
        """The maximum size of a cache there."""
        return self.free_bytes if self.size_bytes is None else self.size_bytes


@dataclass(frozen=True, slots=True)
class Attempt:
    """One option that is about to be run."""

    option: LockedOption
    config: Config
    """Configuration of its replays."""
    place: UnderTest
    trials: int
    runtime_ns: int
    pause_ns: int
    seed_base: int = SEED
    rank: int = 0
    options: int = 1
    """Number of options that are run one after the other."""
    asked_bytes: int | None = None
    """The capacity that --capacity gave the storage tier."""

    @property
    def seed(self) -> int:
        """The seed of this client.

        The benchmark's wrapper adds the rank to the base (mlperf_wrapper.py).
        """
        return self.seed_base + self.rank

    @property
    def capacity_bytes(self) -> int:
        """The most bytes that the storage tier holds, and so the space that may be needed."""
        if self.asked_bytes is not None:
            return self.asked_bytes
        return int(self.place.room_bytes * SHARE_OF_FREE) // _MIB * _MIB

    @property
    def space(self) -> str:
        """Compare the space needed with the space available."""
        capacity, room = (
            format_bytes(size) for size in (self.capacity_bytes, self.place.room_bytes)
        )
        if self.asked_bytes is not None:
            return f"at most {capacity} on {self.place.target}, {room} free there"
        return (
            f"at most {capacity} on {self.place.target}, {SHARE_OF_FREE:.0%} of the {room} free"
            f" there as in the benchmark ({named_option('capacity')} takes less)"
        )


def targets_of(tiers: dict[str, str], option: LockedOption) -> dict[str, str]:
    """Return the targets of an option: the storage that is named, and memory for its CPU tier.

    ConfigError if no storage is named, or a tier that the options do not have.
    """
    target = tiers.get(STORAGE)
    if target is None or set(tiers) - {STORAGE, MEMORY}:
        raise ConfigError(
            f"--tier {STORAGE}=TARGET names the storage under test, such as {STORAGE}=/mnt/drive"
        )
    if named(target):
        raise ConfigError(
            f"--tier {STORAGE}={target}: the storage under test is a directory, a *.dat file or a"
            " device"
        )
    if tiers.get(MEMORY, "ram") != "ram":
        raise ConfigError(
            f"--tier {MEMORY}={tiers[MEMORY]}: the options' CPU tier is memory; leave it out"
        )
    return {STORAGE: target} | ({MEMORY: "ram"} if option.cpu_gib else {})


def place_of(target: str, output: Path) -> UnderTest:
    """Examine the storage `target` and the place of `output`.

    DeviceError if that does not exist.
    """
    free, sizes, filesystems = {}, [], set()
    try:
        for path in paths_of(target):
            if path.is_block_device():
                with path.open("rb") as device:
                    sizes.append(device.seek(0, os.SEEK_END))
                continue
            holder = path if path.exists() else path.parent
            space = os.statvfs(holder)
            filesystems.add(holder.stat().st_dev)
            free[holder.stat().st_dev] = space.f_bavail * space.f_frsize
            if path.is_file() and path.suffix == FILE_SUFFIX:
                sizes.append(path.stat().st_size)
        results = (output if output.exists() else output.resolve().parent).stat().st_dev
    except OSError as error:
        raise DeviceError(f"{error.filename}: {error.strerror}; make it first") from None
    room = sum(free.values())
    return UnderTest(
        target, room, frozenset(filesystems) or None, results, sum(sizes) if sizes else None
    )


def plan_document(attempt: Attempt, rules: Sequence[Rule]) -> Document:
    """Make the document of a dry run: the replays, their targets, and the rules that are kept."""
    mark = mark_of(rules)
    trials = f"{counted(attempt.trials, 'trial')} of {format_duration(attempt.runtime_ns)}"
    headline = f"{attempt.option.name}: would run {trials} on {attempt.place.target}"
    facts = {
        "workload": attempt.option.said,
        "preset": attempt.option.preset,
        "seed": attempt.seed,
        "I/Os in flight": attempt.config.depth,
        "space": attempt.space,
    }
    tables = [parameters("Plan", Sheet.PARAMETERS, facts), rules_table(rules)]
    return Document(
        name="",
        headline=f"{headline}; {mark or 'no rule is broken'}",
        chapters=[Chapter("", tables)],
    )


def rules_table(rules: Sequence[Rule]) -> ReportTable:
    """Return the table of `rules`, and which are kept."""
    rows = [asdict(r) | {"kept": "NOT KEPT" if r.kept is Kept.NO else r.kept.value} for r in rules]
    return table_of(
        "Rules",
        Sheet.PARAMETERS,
        [
            ReportColumn("rule"),
            ReportColumn("reference", "Rules.md"),
            ReportColumn("kept"),
            ReportColumn("detail"),
        ],
        rows,
    )
