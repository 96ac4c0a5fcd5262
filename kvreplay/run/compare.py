"""Runs side by side: ratios to the first, and whether the trials tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.result.journal import is_unrecovered
from kvreplay.result.tables import MANIFEST, TRIALS_FILE
from kvreplay.run.trials import Quantity, disagreements, quantities
from kvtrace.core.errors import ConfigError
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


@dataclass(frozen=True, slots=True)
class _Loaded:
    name: str
    manifests: list[dict[str, Any]]
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
        runs=[run.name for run in loaded], trials=[len(run.manifests) for run in loaded],
        verdicts=[run.manifests[0]["summary"]["verdict"] for run in loaded],
        settings=differing([_settings(run) for run in loaded]), warnings=_warnings(loaded), lines=lines,
    )  # fmt: skip


def _load(path: Path) -> _Loaded:
    trials = path / TRIALS_FILE
    if trials.is_file():
        runs = [path / str(name) for name in _json(trials).get("runs", [])]
    elif (path / MANIFEST).is_file():
        runs = [path]
    elif is_unrecovered(path):
        raise ConfigError(f"{path}: that run goes on or was cut off; kvreplay recover {path} makes a partial run of it")
    else:
        raise ConfigError(f"{path}: no run of kvreplay in this folder ({MANIFEST} and {TRIALS_FILE} are missing)")
    manifests = [_json(run / MANIFEST) for run in runs]
    try:
        found = quantities(manifests)
    except (KeyError, TypeError):
        raise ConfigError(f"{path}: its {MANIFEST} is not of this version of kvreplay; run it again") from None
    if not manifests:
        raise ConfigError(f"{path}: holds no trial")
    return _Loaded(str(path), manifests, {(q.tier, q.op, q.name): q for q in found})


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _side(found: Quantity | None, first: Quantity | None) -> Side | None:
    if found is None:
        return None
    compared = UNKNOWN if first is None else ratio(first.values, found.values)
    return Side(median=found.median, low=found.low, high=found.high, ratio=compared)


def _settings(run: _Loaded) -> dict[str, Any]:
    manifest = run.manifests[0]
    trace = manifest["trace"]
    return {
        **manifest["config"], "host": manifest["host"], "engine.name": manifest["engine"]["name"],
        "version": manifest["version"], "trace.file": trace["file"],
        "trace.config_sha256": trace["metadata"]["config_sha256"], "window.rows": manifest["window"]["rows"],
    }  # fmt: skip


def _warnings(loaded: list[_Loaded]) -> list[str]:
    warnings = []
    for run in loaded:
        figures = run.manifests[0]["summary"]["figures"]
        warnings += [
            f"{run.name}: tier {name} is simulated: its figures are a model's and not compared"
            for name in sorted({f["tier"] for f in figures if f["is_simulated"]})
        ]
        for at, manifest in enumerate(run.manifests):
            which = f"{run.name}, trial {at + 1}" if len(run.manifests) > 1 else run.name
            if manifest["status"] != "complete":
                warnings.append(f"{which} is PARTIAL: {manifest['reason']}")
            if manifest["summary"]["verdict"].startswith("FELL BEHIND"):
                warnings.append(f"{which} fell behind the trace: its times are those of an overload")
            if manifest["summary"]["errors"]:
                warnings.append(f"{which} had {manifest['summary']['errors']:,} failed operations")
            if manifest.get("verification"):
                warnings.append(f"{which} was verified, which slows reads down")
        if len(run.manifests) == 1:
            warnings.append(f"{run.name} is one trial: its spread is unknown; run it with --trials 3 or more")
        warnings += [f"{run.name}: {line}" for line in disagreements(run.quantities.values())]
    return warnings
