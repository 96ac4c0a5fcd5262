"""Distil any source: a trace, a run or its ops, block events, a probe's result, a profile."""

from __future__ import annotations

from pathlib import Path

from kvdistill.profile.distil import Distilled, distil
from kvdistill.profile.profile import FORMAT, Profile
from kvtrace.core import tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import Limit, read_json
from kvtrace.core.run.run_file import refuse_cut_off
from kvtrace.core.schema import BLOCKS, OPS, TRACE

WHAT = "a trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json"
_IN_FOLDER = ("ops.parquet", "blocks.parquet", "trace.parquet", "probe.json", "profile.json")


def distil_source(path: Path, tier: str | None, limit: Limit, scratch: Path) -> Distilled:
    """Distil the source at `path`; `tier` may be null where there is only one.

    Raises:
        ConfigError: there is no such tier, several to choose from, or an option that the source has no use for.
        TraceError: the file is missing, damaged or none that can be distilled.

    """
    file = file_of(path)
    if file.suffix == ".json":
        return Distilled(_without_rows(file, tier, limit), None)
    from kvdistill.profile.measured import distil_blocks, distil_ops

    reader = tables.open_table(file)
    if reader.table is TRACE:
        return distil(file, tier or _only_tier([t.name for t in reader.meta.tiers], file), limit, scratch)
    if reader.table in (OPS, BLOCKS):
        return (distil_ops if reader.table is OPS else distil_blocks)(file, tier, limit, scratch)
    raise TraceError(f"holds the table {reader.table.name}, which tells no I/O; take {WHAT}", path=file)


def _only_tier(names: list[str], file: Path) -> str:
    if len(names) == 1:
        return names[0]
    raise ConfigError(f"{file}: say which tier with --tier; there is {', '.join(names)}")


def file_of(path: Path) -> Path:
    """Return the file that is distilled of the source at `path`, which may be a folder; ConfigError if it has none."""
    return _file_in(path) if path.is_dir() else path


def _file_in(folder: Path) -> Path:
    refuse_cut_off(folder)
    for name in _IN_FOLDER:
        if (folder / name).is_file():
            return folder / name
    runs = sorted(file.parent.name for file in folder.glob("*/ops.parquet"))
    more = f"; it has the runs {', '.join(runs)}: name one of them" if runs else ""
    raise ConfigError(f"{folder}: none of {', '.join(_IN_FOLDER)} in this folder{more}")


def _without_rows(file: Path, tier: str | None, limit: Limit) -> Profile:
    """Return the profile of a file that holds no single operations."""
    from kvdistill.profile.probe import distil_probe

    if str(limit):
        raise ConfigError(f"--limit: {file} holds no single operations to take the first of")
    content = read_json(file, object)
    if not isinstance(content, dict) or "origin" not in content:
        profile = distil_probe(file)
    else:
        profile = _profile(content, file)
    if tier is not None and tier != profile.tier:
        raise ConfigError(f"--tier {tier}: {file} is of {profile.tier}")
    return profile


def _profile(content: dict[str, object], file: Path) -> Profile:
    if content.get("format") != FORMAT:
        raise TraceError(f"a profile of format {content.get('format')}, which this version does not know", path=file)
    return read_json(file, Profile, misfit="no profile of kvdistill: {}")
