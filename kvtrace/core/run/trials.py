"""Several runs of one replay: every figure's median and spread, and whether they agree enough to be quoted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.run.run_file import TRIALS_FILE, RunFile

MAX_SPREAD = 0.1
"""Above it, trials disagree."""
RATES = ("bandwidth_bytes_per_s", "operations_per_s")
TIMES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
SHOWN_WORST = 3
JUDGED = (*RATES, "mean_ns", "p50_ns")
"""Those that should repeat; tails are shown, not judged."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one tier and op over the trials."""

    tier: str
    op: str
    name: str
    values: list[float | None]
    """One a trial, null where it is not known."""
    median: float | None
    """Null unless all trials know it."""
    low: float | None
    high: float | None
    spread: float | None
    """(high - low) / median; null with one trial."""


class TrialSet(msgspec.Struct, frozen=True, kw_only=True):
    """What several trials came to."""

    asked: int
    runs: list[str]
    """Directories of the trials, in order."""
    status: str
    """complete, or partial if a trial was cut short."""
    verdicts: list[str]
    quantities: list[Quantity]
    simulated_tiers: list[str] = []
    """Their figures are a model's, and not among the quantities."""
    warnings: list[str]
    definition: str = f"spread = (greatest - least) / median; trials disagree above {MAX_SPREAD:.0%}"


def quantities(runs: Iterable[RunFile]) -> list[Quantity]:
    """Return every figure of `runs`; tiers where nothing moved have none."""
    found: dict[tuple[str, str, str], list[float | None]] = {}
    count = 0
    for at, run in enumerate(runs):
        count = at + 1
        for figures in run.summary.figures:
            if figures.is_simulated:
                continue
            known = [(name, getattr(figures, name)) for name in RATES]
            known += [(name, getattr(figures.latency, name)) for name in TIMES]
            for name, value in known:
                values = found.setdefault((figures.tier, figures.op, name), [])
                values += [None] * (at - len(values)) + [value]
    return [_quantity(*key, values + [None] * (count - len(values))) for key, values in found.items()]


def _quantity(tier: str, op: str, name: str, values: list[float | None]) -> Quantity:
    known = [v for v in values if v is not None]
    if len(known) < len(values) or not known:
        return Quantity(tier=tier, op=op, name=name, values=values, median=None, low=None, high=None, spread=None)
    middle, low, high = median(known), min(known), max(known)
    spread = (high - low) / middle if len(known) > 1 and middle else None
    return Quantity(tier=tier, op=op, name=name, values=values, median=middle, low=low, high=high, spread=spread)


def disagreements(found: Iterable[Quantity]) -> list[str]:
    """Return a line that names the figures that should repeat and do not, the worst first; none if all do."""
    judged = [(q.spread, f"{q.tier} {q.op} {q.name}") for q in found if q.name in JUDGED and q.spread is not None]
    bad = sorted((pair for pair in judged if pair[0] > MAX_SPREAD), reverse=True)
    if not bad:
        return []
    worst = ", ".join(f"{name} {spread:.0%}" for spread, name in bad[:SHOWN_WORST])
    more = ", …" if len(bad) > SHOWN_WORST else ""
    share = f"{len(bad)} of {len(judged)} figures that should repeat spread by more than {MAX_SPREAD:.0%}"
    return [f"TRIALS DISAGREE: {share}: {worst}{more}"]


def read_trials(folder: Path) -> list[Path]:
    """Return the folders of the trials in `folder`, as its trials.json names them; TraceError if that is damaged."""
    path = folder / TRIALS_FILE
    try:
        runs = msgspec.json.decode(path.read_bytes(), type=_Trials).runs
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", path=path) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"damaged: {error}", path=path) from None
    if not runs:
        raise TraceError("holds no trial", path=path)
    return [folder / name for name in runs]


class _Trials(msgspec.Struct):
    runs: list[str]
