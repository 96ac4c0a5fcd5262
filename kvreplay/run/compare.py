"""Runs side by side: ratios to the first, and whether the trials tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.result.journal import is_unrecovered
from kvreplay.run.trials import Quantity, disagreements, quantities
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import RUN_FILE, TRIALS_FILE, RunFile, read_run
from kvtrace.core.statistics import DEFINITION, UNKNOWN, Ratio, differing, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One figure in one of the runs."""

    median: float | None
    low: float | None
    high: float | None
    ratio: Ratio
    """To the first run."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure in all runs."""

    tier: str
    op: str
    name: str
    sides: list[Side | None]
    """One a run; null where it has no such operations."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Runs beside each other."""

    runs: list[str]
    trials: list[int]
    verdicts: list[str]
    settings: dict[str, list[Any]]
    """Those that differ, one value a run."""
    warnings: list[str]
    lines: list[Line]
    definition: str = DEFINITION


class _TrialsFile(msgspec.Struct):
    """What a comparison reads of trials.json."""

    runs: list[str] = []


@dataclass(frozen=True, slots=True)
class _Loaded:
    name: str
    runs: list[RunFile]
    quantities: dict[tuple[str, str, str], Quantity]


def compare(paths: Sequence[Path]) -> Compared:
    """Return the runs, or directories of trials, at `paths` beside each other."""
    if len(paths) < 2:  # noqa: PLR2004 - a comparison
        raise ConfigError("name two runs or more to compare")
    loaded = [_load(path) for path in paths]
    keys = list(dict.fromkeys(key for run in loaded for key in run.quantities))
    lines = []
    for key in keys:
        found = [run.quantities.get(key) for run in loaded]
        if any(q is not None and q.median is not None for q in found):
            tier, op, name = key
            lines.append(Line(tier=tier, op=op, name=name, sides=[_side(q, found[0]) for q in found]))
    return Compared(
        runs=[run.name for run in loaded], trials=[len(run.runs) for run in loaded],
        verdicts=[run.runs[0].summary.verdict for run in loaded],
        settings=differing([_settings(run) for run in loaded]), warnings=_warnings(loaded), lines=lines,
    )  # fmt: skip


def _load(path: Path) -> _Loaded:
    trials = path / TRIALS_FILE
    if trials.is_file():
        runs = [path / name for name in _trials(trials)]
    elif (path / RUN_FILE).is_file():
        runs = [path]
    elif is_unrecovered(path):
        raise ConfigError(f"{path}: that run goes on or was cut off; kvreplay recover {path} makes a partial run of it")
    else:
        raise ConfigError(f"{path}: no run of kvreplay in this folder ({RUN_FILE} and {TRIALS_FILE} are missing)")
    if not runs:
        raise ConfigError(f"{path}: holds no trial")
    files = [read_run(run) for run in runs]
    return _Loaded(str(path), files, {(q.tier, q.op, q.name): q for q in quantities(files)})


def _trials(path: Path) -> list[str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TrialsFile).runs
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"cannot be read: {error}", path=path) from None


def _side(found: Quantity | None, first: Quantity | None) -> Side | None:
    if found is None:
        return None
    compared = UNKNOWN if first is None else ratio(first.values, found.values)
    return Side(median=found.median, low=found.low, high=found.high, ratio=compared)


def _settings(run: _Loaded) -> dict[str, Any]:
    first = run.runs[0]
    return {
        **first.config,
        "host": first.host,
        "engine.name": first.engine.name,
        "version": first.version,
        "trace.file": first.trace.file,
        "trace.config_sha256": first.trace.metadata.config_sha256,
        "window.rows": first.window.rows,
    }


def _warnings(loaded: list[_Loaded]) -> list[str]:
    warnings = []
    for run in loaded:
        simulated = {f.tier for f in run.runs[0].summary.figures if f.is_simulated}
        warnings += [
            f"{run.name}: tier {name} is simulated: its figures are a model's and not compared"
            for name in sorted(simulated)
        ]
        for at, trial in enumerate(run.runs):
            which = f"{run.name}, trial {at + 1}" if len(run.runs) > 1 else run.name
            if trial.status != "complete":
                warnings.append(f"{which} is PARTIAL: {trial.reason}")
            if trial.summary.verdict.startswith("FELL BEHIND"):
                warnings.append(f"{which} fell behind the trace: its times are those of an overload")
            if trial.summary.errors:
                warnings.append(f"{which} had {trial.summary.errors:,} failed operations")
            if trial.verification:
                warnings.append(f"{which} was verified, which slows reads down")
        if len(run.runs) == 1:
            warnings.append(f"{run.name} is one trial: its spread is unknown; run it with --trials 3 or more")
        warnings += [f"{run.name}: {line}" for line in disagreements(run.quantities.values())]
    return warnings
