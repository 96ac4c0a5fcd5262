"""A drive's scorecard: how many users of each caching stack it sustains, how fast it is then, and how that repeats.

Each stack is a sweep of users in the steady window of its trace, when its tiers are full and evict. The load that
decides is run three times: how far these are apart is the measurement's own repeatability, which says what difference
between two cards is one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from kvreplay.run.run import Replay
from kvreplay.run.sweep import TRIALS, sweep
from kvtrace import __version__
from kvtrace.core import statistics
from kvtrace.core.document.document import Chapter, Document, Highlight, Sheet, Unit, show, table_of
from kvtrace.core.errors import KvError
from kvtrace.core.files import write_json
from kvtrace.core.run.probe_file import find_probe
from kvtrace.core.run.run_file import RunFile, find_run
from kvtrace.core.run.sweep_file import Axis, LoadSweep, SweepPoint
from kvtrace.core.statistics import SECONDS_PER_DAY, Endurance
from kvtrace.core.units import NS_PER_S, percent

CARD_FILE = "scorecard.json"
PRESETS = ("lmcache-disk", "vllm-fs", "sglang-hicache", "mooncake-store")
MODEL, FASTER = "qwen2.5-7b", {"gpu": "512MiB", "cpu": "2GiB"}
"""What the stacks serve, and what they hold above the drive: little, so that the drive has the work."""
LOAD = ("--duration", "20min", "--set", "workload.think_time=10s")
"""The steady window begins where the drive's tier first evicts, which takes few users long."""
FIRST_USERS = 4.0
TIER = "nvme"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What the drive does under one stack, at the load that decides."""

    preset: str
    users: float | None
    """The most that it sustains; null if it sustains not even the least that was tried."""
    at_users: float
    """Where it was measured: the same, or else the least that was tried."""
    answer: str
    limit: str | None
    read_bytes_per_s: float | None
    written_bytes_per_s: float | None
    read_p50_ns: int | None
    """Response times, from when an operation was due; null of too few."""
    read_p99_ns: int | None
    read_p99_9_ns: int | None
    request_bytes: float | None
    """The mean of the block requests; this and the next null without probes."""
    in_flight: float | None
    """The mean number of block requests in flight, as one is dispatched."""
    drive_writes_per_day: float | None
    """At this load, kept up, of the whole device; null if its size is not known."""
    life_years: float | None
    """Null without --endurance."""
    delivered_share: float | None
    """Bytes that were moved over bytes that the trace asked for in the same time: its bias, less one."""
    spread: float | None
    """(greatest - least) / median of the throughput over the trials at this load."""
    trials: int
    trace_sha256: str | None
    """Of its trace at this load: the same seed and options give the same bytes."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The scorecard of a drive."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    status: str
    """complete, or why it is partial."""
    device: str | None
    model: str | None
    device_bytes: int | None
    filesystem: str | None
    scores: list[Score]


def gen_options(preset: str, size: str) -> str:
    """Return the options of the `kvtrace gen` that makes a stack's trace, on `size` of the drive."""
    capacities = FASTER | {TIER: size}
    settings = [part for tier, of in capacities.items() for part in ("--set", f"tiers.{tier}.capacity={of}")]
    return shlex.join(["--preset", preset, "--model", MODEL, *LOAD, *settings])


def measure(
    asked: Replay, preset: str, done: Callable[[SweepPoint], None], endurance: Endurance | None
) -> tuple[Score, RunFile, KvError | None]:
    """Sweep the users of one stack in `asked`; return its score, the run of that, and why it is partial.

    Raises:
        KvError: nothing was measured.

    """
    found, error = sweep(asked, Axis.USERS, [FIRST_USERS], is_made=True, done=done)
    if not found.points:
        raise error or KvError(f"{preset}: nothing was measured")
    point = next((p for p in found.points if p.value == found.knee), found.points[0])
    runs = list(_trials(asked.output, point))
    run = next(run for run, name in runs if name == point.run)
    return _score(preset, found, point, [run for run, _ in runs], run, asked.output / point.run, endurance), run, error


def _trials(folder: Path, point: SweepPoint) -> Iterator[tuple[RunFile, str]]:
    """Yield the runs at the load of `point`, and their names."""
    first = point.run.partition("-trial-")[0]
    for name in [first, *(f"{first}-trial-{n}" for n in range(2, TRIALS + 1))]:
        if (run := find_run(folder / name)) is not None:
            yield run, name


def _score(
    preset: str, sweep_: LoadSweep, point: SweepPoint, trials: list[RunFile], run: RunFile, folder: Path,
    endurance: Endurance | None,
) -> Score:  # fmt: skip
    rates = {op: _rate(run, op) for op in ("read", "write")}
    size, written = _device_bytes(run), rates["write"]
    a_day = None if written is None else written * SECONDS_PER_DAY
    probed = find_probe(folder)
    sides = list(probed.block.directions.values()) if probed else []
    issued = sum(side.issued or 0 for side in sides)
    depths = [(of.in_flight, of.count) for side in sides for of in side.in_flight_at_dispatch]
    both = [sum(rate for op in ("read", "write") if (rate := _rate(trial, op)) is not None) for trial in trials]
    return Score(
        preset=preset,
        users=sweep_.knee,
        at_users=point.value,
        answer=sweep_.answer,
        limit=sweep_.limit,
        read_bytes_per_s=rates["read"],
        written_bytes_per_s=written,
        read_p50_ns=point.read_p50_ns,
        read_p99_ns=point.read_p99_ns,
        read_p99_9_ns=point.read_p99_9_ns,
        request_bytes=sum(side.issued_bytes or 0 for side in sides) / issued if issued else None,
        in_flight=sum(of * count for of, count in depths) / sum(count for _, count in depths) if depths else None,
        drive_writes_per_day=a_day / size if a_day is not None and size else None,
        life_years=endurance.life_years(size, a_day) if endurance and a_day else None,
        delivered_share=_share(point.throughput_bytes_per_s, point.asked_bytes_per_s),
        spread=statistics.spread(both) if len(both) > 1 else None,
        trials=len(both),
        trace_sha256=run.trace.sha256,
    )


def _rate(run: RunFile, op: str) -> float | None:
    """Return the bytes a second that `run` moved by `op`."""
    moved = [f.bytes or 0 for f in run.summary.figures if f.op == op and not f.is_simulated]
    return sum(moved) * NS_PER_S / run.summary.wall_ns if moved and run.summary.wall_ns else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _device_bytes(run: RunFile) -> int | None:
    size: int | None = run.tiers[TIER].get("device_bytes")
    return size


def card_of(asked: Replay, scores: list[Score], run: RunFile | None, error: KvError | None) -> Card:
    """Return the card, which scorecard.json in the output holds, too."""
    tier = {} if run is None else run.tiers[TIER]
    card = Card(
        argv=asked.argv,
        status="complete" if error is None else str(error),
        device=tier.get("device"),
        model=tier.get("device_model"),
        device_bytes=tier.get("device_bytes"),
        filesystem=tier.get("filesystem"),
        scores=scores,
    )
    write_json(asked.output / CARD_FILE, card)
    return card


def card_document(card: Card) -> Document:
    """Return the card on one page."""
    spec = """
        text: preset; number: users = users sustained, at_users = measured at
        bytes_per_s: read_bytes_per_s = read, written_bytes_per_s = written
        ns: read_p50_ns = read p50, read_p99_ns = p99, read_p99_9_ns = p99.9
        bytes: request_bytes = request; number: in_flight = in flight
        number: drive_writes_per_day = drive writes a day; years: life_years = life
        share: delivered_share = delivered, spread; text: limit = limited by
    """
    rows = [msgspec.structs.asdict(score) for score in card.scores]
    table = table_of("at the most users that it sustains", Sheet.SUMMARY, spec, rows)
    notes = [
        f"users of synthetic conversations with {MODEL}; read times are response times, from when a read was due",
        "delivered: of what the trace asked for; spread: (greatest - least) / median of the throughput over its trials",
        "two cards are told apart where they differ by more than both spreads",
    ]
    notes += ["request and in flight: block requests; not measured (root and libbpf are needed)"] * all(
        score.request_bytes is None for score in card.scores
    )
    notes += [f"{score.preset}: {score.answer}" for score in card.scores]
    warnings = [] if card.status == "complete" else [f"PARTIAL: {card.status}"]
    return Document(
        card.device or "",
        first_line(card),
        [Chapter("", [replace(table, is_answer=True)], notes)],
        [],
        _highlights(card),
        warnings,
    )


def first_line(card: Card) -> str:
    """Return the answer: users of each stack, and how well it repeats."""
    told = [
        f"{score.preset} {'less than ' if score.users is None else ''}{score.at_users:g} users" for score in card.scores
    ]
    spreads = [score.spread for score in card.scores if score.spread is not None]
    repeats = f"; repeats within {percent(max(spreads))}" if spreads else ""
    return f"sustains {', '.join(told) or 'nothing that was measured'}{repeats}"


def _highlights(card: Card) -> list[Highlight]:
    return [
        Highlight(
            score.preset, score.users, Unit.NUMBER, f"users, {show(score.read_bytes_per_s, Unit.BYTES_PER_S)} read"
        )
        for score in card.scores
    ]


def outputs(asked: Replay, preset: str) -> Replay:
    """Return `asked` with a folder of its own for a stack."""
    return replace(asked, output=asked.output / preset)
