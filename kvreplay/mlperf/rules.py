"""Which rules of a submission are kept: Rules.md of mlcommons/storage, section 6, a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from kvreplay.mlperf.attempt import Attempt
from kvreplay.mlperf.options import OPTIONS, PAUSE_S, RUNTIME_S, SEED, TRIALS
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_bytes, format_duration


class Kept(StrEnum):
    """Whether a rule is kept."""

    YES = "kept"
    NO = "not kept"
    UNKNOWN = "cannot be told"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, and whether it is kept."""

    rule: str
    reference: str
    """Where it stands in Rules.md."""
    kept: Kept
    detail: str
    short: str = ""
    """What marks results where it is not kept."""
    is_chosen: bool = True
    """Whether an option said so: what was not chosen is refused."""


NOT_CLAIMED = {
    "a submission": "MLCommons takes results of its own mlpstorage alone (Rules.md 1); this measures the same option "
    "by replay, to know before and to compare",
    "device P95": "storage_read_device_p95_ms and storage_write_device_p95_ms are null: measured is the time of a "
    "whole object, from submission to completion, with fdatasync for writes, not the device's part of it; kvreplay run "
    "--probes looks beneath",
    "P95 under a thread for each user": "the benchmark has as many threads as users, of which max-concurrent-allocs "
    "may write; here as many I/Os of 1 MiB as users, unless --queue-depth says otherwise, are in flight, in the order "
    "of the simulated requests, and nobody thinks between turns: fewer objects share the storage at a time, so that "
    "each may take less time than there",
    "its way through the page cache": "it reads by np.load after dropping a file's pages; here all I/O is direct",
    "end-to-end latency": "a replay computes nothing",
}
"""What a replay cannot say of a submission, and why."""


def rules_of(attempt: Attempt) -> list[Rule]:
    """Return the rules of a submission as `attempt` keeps them."""
    option = attempt.option
    workload = Rule(
        rule="workload of the option",
        reference="6.3.1.1",
        kept=Kept.YES,
        detail=f"{option.title}: {option.said}, no GPU tier, no generation time",
    )
    return [
        workload,
        _locked("runtime", "6.3.1.1", attempt.runtime_ns, RUNTIME_S * NS_PER_S, format_duration),
        _locked("seed", "6.3.2.1", attempt.seed_base, SEED, str, f", plus rank {attempt.rank}"),
        _trials(attempt.trials),
        _pause(attempt),
        _options(attempt.options),
        _filesystems(attempt),
        _capacity(attempt),
        Rule(
            rule="each client has its own cache folder",
            reference="6.3.3.3",
            kept=Kept.UNKNOWN,
            detail="one client is seen here; name a folder of its own for each",
        ),
    ]


def _locked(rule: str, reference: str, value: int, locked: int, show: Callable[[int], str], more: str = "") -> Rule:
    shown = show(value), show(locked)
    if value == locked:
        return Rule(rule=rule, reference=reference, kept=Kept.YES, detail=f"{shown[0]}{more}")
    said = f"{shown[0]} of {shown[1]}" if rule == "runtime" else f"{rule} {shown[0]}, not {shown[1]}"
    return Rule(rule=rule, reference=reference, kept=Kept.NO, detail=f"{shown[0]}, not {shown[1]}{more}", short=said)


def _trials(trials: int) -> Rule:
    if trials == TRIALS:
        return Rule(rule="trials", reference="6.3.2.1", kept=Kept.YES, detail=f"{trials}")
    count = f"{trials} trial{'' if trials == 1 else 's'}"
    short = f"{count} of {TRIALS}" if trials < TRIALS else f"{count}, not {TRIALS}"
    return Rule(rule="trials", reference="6.3.2.1", kept=Kept.NO, detail=f"{trials}, not {TRIALS}", short=short)


def _pause(attempt: Attempt) -> Rule:
    if attempt.options == 1:
        detail = f"one option here; {PAUSE_S} s between one and the next"
        return Rule(rule="pause between options", reference="6.3.2.1", kept=Kept.UNKNOWN, detail=detail)
    return _locked("pause between options", "6.3.2.1", attempt.pause_ns, PAUSE_S * NS_PER_S, format_duration)


def _options(count: int) -> Rule:
    is_all = count == len(OPTIONS)
    detail = "all three, one after the other" if is_all else f"{count} of {len(OPTIONS)} here; v3 runs them all"
    kept = Kept.YES if is_all else Kept.UNKNOWN
    return Rule(rule="all options are run", reference="6.3.1.1", kept=kept, detail=detail)


def _filesystems(attempt: Attempt) -> Rule:
    place = attempt.place
    is_apart = place.filesystems is None or place.results_filesystem not in place.filesystems
    return Rule(
        rule="cache and results on different filesystems",
        reference="6.4.1",
        kept=Kept.YES if is_apart else Kept.NO,
        detail=place.target if is_apart else f"results would lie on the filesystem of {place.target}: name another -o",
        short="" if is_apart else "cache and results on one filesystem",
        is_chosen=False,
    )


def _capacity(attempt: Attempt) -> Rule:
    is_default = attempt.asked_bytes is None
    size = format_bytes(attempt.capacity_bytes)
    return Rule(
        rule="storage tier as large as the benchmark makes it",
        reference="6.6.1",
        kept=Kept.YES if is_default else Kept.NO,
        detail=f"{size}, 95 % of what is free" if is_default else f"{size} by --capacity, not 95 % of what is free",
        short="" if is_default else f"storage tier of {size}",
    )


def mark_of(rules: Sequence[Rule]) -> str | None:
    """Return what results must be marked with; None if no rule is known to be broken."""
    broken = [rule.short for rule in rules if rule.kept is Kept.NO]
    return f"not a submission: {', '.join(broken)}" if broken else None


def refuse_broken(rules: Sequence[Rule], *, is_allowed: bool) -> None:
    """Raise ConfigError for a rule that is broken though no option said so, unless that `is_allowed`."""
    broken = [f"{r.rule} ({r.reference}): {r.detail}" for r in rules if r.kept is Kept.NO and not r.is_chosen]
    if broken and not is_allowed:
        raise ConfigError(f"a rule is not kept: {'; '.join(broken)}; --break-rules goes on and marks the results")
