"""Would an admission filter save the drive? The same requests once with each, hits against what the drive writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import (
    AsJson,
    DriveArguments,
    RunArguments,
    SourceArguments,
    StackArguments,
    TurnsOption,
    UserArguments,
    percent,
)
from kvtrace.commands.scenario import prepare
from kvtrace.core.app import log, progress, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes

if TYPE_CHECKING:
    from kvtrace.core.document.document import Document
    from kvtrace.sim.presets.tier import TierSetting

A_POINT = 0.01
"""Of the hit ratio: as many hits fewer are as good as none."""


@takes_groups
def admission(
    file: Annotated[Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")] = None,
    *,
    stack: StackArguments,
    users: UserArguments,
    run: RunArguments,
    drive: DriveArguments,
    as_json: AsJson = False,
    source: SourceArguments,
    turns: TurnsOption = None,
) -> None:
    """Simulate the same requests with each admission filter of the slowest tier: hits against what the drive writes.

    No trace is written: `kvtrace gen --set tiers.nvme.admission=nth-offer` makes one. Writes are the host's; what the
    drive adds within itself counts where its endurance is stated without it.

    \b
    kvtrace admission conversation.jsonl --preset lmcache-disk --drive-size 3.84TB --endurance 1DWPD,5y
    kvtrace admission --users 64 --duration 10m --preset vllm-fs --set tiers.nvme.capacity=500GiB
    """
    import msgspec

    from kvtrace.core.document.terminal import answer

    scenario = prepare(file, stack, users, run, source, turns)
    scenario.refuse_fleet("kvtrace admission")
    *faster, tier = scenario.preset.tiers
    if not faster:
        raise ConfigError(f"--preset {stack.preset} has one tier, so that no slower one could refuse anything")
    filters, notes = _filters(tier)
    rows = []
    with progress("simulating", len(filters)) as tick:
        for setting in filters:
            preset = msgspec.structs.replace(scenario.preset, tiers=(*faster, setting))
            simulation = replace(scenario, preset=preset).simulation()
            simulation.run(simulation.give_back)
            stats = simulation.stats()
            rows.append(_row(setting, stats, drive.wear(stats, scenario.span_ns(simulation), tier.capacity_bytes)))
            tick(len(rows))
    for note in notes:
        log(f"note: {note}")
    facts = {name: scenario.config[name] for name in ("preset", "model", "seed")}
    whole = {"tier": tier.name, "drive_size_bytes": drive.drive_size, **facts, "admissions": rows}
    answer(whole, lambda: _document(tier.name, rows), as_json=as_json)


def _filters(tier: TierSetting) -> tuple[list[TierSetting], list[str]]:
    """Return `tier` with each admission, `always` first, and what is to be said of those that are left out."""
    import msgspec

    from kvtrace.sim.presets.tier import IN_ORDER, Admission

    kinds: list[dict[str, Any]] = [
        {"admission": Admission.ALWAYS},
        {"admission": Admission.NTH_OFFER, "admission_count": 2},
        {"admission": Admission.NTH_OFFER, "admission_count": 3},
        {"admission": Admission.FREQUENCY, "admission_count": 2, "admission_decay": "10m"},
    ]
    notes = []
    if tier.capacity_bytes is None:
        notes.append(f"tinylfu is left out: {tier.name} has no capacity, so that all has room")
    elif tier.policy not in IN_ORDER:
        notes.append(f"tinylfu is left out: it needs another policy than {tier.policy} in {tier.name}")
    else:
        kinds.append({"admission": Admission.TINYLFU})
    plain = msgspec.structs.replace(tier, admission_decay=None)
    return [msgspec.structs.replace(plain, **kind) for kind in kinds], notes


def _row(tier: TierSetting, stats: dict[str, Any], worn: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what came of one admission."""
    of, counted = stats["tiers"][-1], tier.admission in ("nth-offer", "frequency")
    lookups = stats["lookups"]
    wear = worn[0] if worn else {}
    return {
        "admission": str(tier.admission),
        "admission_count": tier.admission_count if counted else None,
        "admission_decay": tier.admission_decay,
        "hit_ratio": (lookups - stats["misses"]) / lookups if lookups else None,
        "tier_hit_ratio": of["hit_ratio"],
        "refused_bytes": of.get("refused_bytes", 0),
        "written_bytes": of["written_bytes"] - of["populated_bytes"],
        **{name: wear.get(name) for name in ("written_bytes_per_day", "drive_writes_per_day", "years_of_life")},
    }


def _name(row: dict[str, Any]) -> str:
    details = [str(row[name]) for name in ("admission_count", "admission_decay") if row[name] is not None]
    return str(row["admission"]) + (f" ({', '.join(details)})" if details else "")


def _document(tier: str, rows: list[dict[str, Any]]) -> Document:
    from kvtrace.core.document.document import Chapter, Document, Sheet, table_of

    spec = f"""
        text: name = admission
        share: hit_ratio = hits, tier_hit_ratio = hits in {tier}
        bytes: written_bytes = written, refused_bytes = refused; bytes_per_day: written_bytes_per_day = written a day
        number: drive_writes_per_day = drive writes a day; years: years_of_life = life
    """
    shown = [row | {"name": _name(row)} for row in rows]
    table = table_of(f"what {tier} takes", Sheet.SUMMARY, spec, shown)
    note = "simulated; a day at this trace's rate, kept up. What is refused is refused each time that it is offered"
    return Document("", _answer(tier, rows), [Chapter("", [table], [note])])


def _answer(tier: str, rows: list[dict[str, Any]]) -> str:
    """Return the sentence that a reader came for: which filter saves most, at what price."""
    every, *filtered = rows
    if not every["written_bytes"] or every["hit_ratio"] is None:
        return f"nothing is written to {tier}, so there is nothing to save"
    start = (
        f"without a filter, {format_bytes(every['written_bytes'])} are written to {tier} and "
        f"{percent(every['hit_ratio'])} of look-ups hit"
    )

    def spared(row: dict[str, Any]) -> str:
        return f"{_name(row)} saves {percent(1 - row['written_bytes'] / every['written_bytes'])} of the writes"

    least = min(filtered, key=lambda row: row["written_bytes"])
    if least["written_bytes"] >= every["written_bytes"]:
        return f"{start}; no filter saves writes"
    good = [row for row in filtered if row["hit_ratio"] >= every["hit_ratio"] - A_POINT]
    best = min(good, key=lambda row: row["written_bytes"], default=None)
    if best is None or best["written_bytes"] >= every["written_bytes"]:
        return (
            f"{start}; no filter saves writes within a point of that: {spared(least)} at {percent(least['hit_ratio'])}"
        )
    return f"{start}; {spared(best)} at {percent(best['hit_ratio'])}"
