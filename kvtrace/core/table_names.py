"""Names of files of tables: their suffixes, and the tables beside a trace."""

from __future__ import annotations

from pathlib import Path

from kvtrace.core.errors import ConfigError

SUFFIXES = (".parquet", ".csv.zst")


def names_dataset(trace: Path) -> bool:
    """Return whether `trace` names a dataset: a folder, or a name without a dot, which may be new."""
    return not trace.name.endswith(SUFFIXES) and ("." not in trace.name or trace.is_dir())


def objects_path(trace: Path | str) -> Path:
    """Return the path of the objects table of `trace`.

    `t.parquet` has `t.objects.parquet`; the dataset `t` has `t/objects.parquet`.
    """
    return _path_beside(Path(trace), "objects")


def requests_path(trace: Path | str) -> Path:
    """Return the path of the requests table of `trace`.

    `t.parquet` has `t.requests.parquet`; the dataset `t` has `t/requests.parquet`.
    """
    return _path_beside(Path(trace), "requests")


def _path_beside(trace: Path, name: str) -> Path:
    """Return the path of the table `name` of `trace`."""
    if names_dataset(trace):
        return trace / f"{name}.parquet"
    suffix = format_suffix(trace)
    return trace.with_name(f"{trace.name.removesuffix(suffix)}.{name}{suffix}")


def format_suffix(path: Path) -> str:
    """Return the suffix of a table file; ConfigError if `path` has none of them."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    advice = "name it"
    if path.exists():
        advice = "kvtrace gen FILE --source FORMAT reads requests; a trace is named"
    raise ConfigError(f"{path}: unknown file type; {advice} *{' or *'.join(SUFFIXES)}")
