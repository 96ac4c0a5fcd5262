"""The output directory of results: check it, create it, and clear it of old runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kvtrace.core.errors import DeviceError, KvError
from kvtrace.core.run.run_file import (
    OPS_FILE,
    PARTIAL_RUN_FILE,
    RUN_FILE,
    SERIES_FILE,
    SERVED_FILE,
    SWEEP_FILE,
    TRIALS_FILE,
)
from kvtrace.core.tables import objects_path
from kvtrace.core.temporary import sweep

_MOST_FOLDERS_DEEP = 3
"""How deep an experiment has its runs: those of a scorecard are in a folder of each stack."""


def check_output(path: Path, *, is_forced: bool) -> None:
    """Raise DeviceError unless a run may be written to `path`: new, empty, or `is_forced`."""
    if not path.exists():
        if not path.parent.is_dir():
            raise DeviceError(f"{path.parent}: no such directory; create it first")
        return
    if not path.is_dir():
        raise DeviceError(f"{path} is not a directory; name the run's directory with -o")
    cut_off = next((run for run in (path, *sorted(path.glob("*/"))) if is_unrecovered(run)), None)
    if cut_off is not None and not is_forced:
        raise DeviceError(
            f"{cut_off} has a run that is in progress or was killed; run kvreplay recover"
            f" {cut_off}, or name another directory with -o, or add --force"
        )
    if is_forced or not any(path.iterdir()):
        return
    if _is_run(path):
        raise DeviceError(
            f"{path} has a finished run; name another directory with -o, or add --force to"
            " replace it"
        )
    raise DeviceError(
        f"{path} is not empty and has no kvreplay run; name another with -o, or add --force"
    )


def _is_run(path: Path) -> bool:
    """Return whether `path` holds a run, finished or not, or nothing but directories of runs."""
    if is_unrecovered(path):
        return True
    for name in (RUN_FILE, TRIALS_FILE, SWEEP_FILE):
        with suppress(OSError, msgspec.DecodeError, KeyError, TypeError):
            if msgspec.json.decode((path / name).read_bytes())["program"] == "kvreplay":
                return True
    inside = list(path.iterdir())
    return bool(inside) and all(
        entry.is_dir() and not entry.is_symlink() and _is_run(entry) for entry in inside
    )


def remove_stale(path: Path, new_names: Collection[str]) -> None:
    """Remove kvreplay's runs of an earlier series below `path`, except those in `new_names`.

    The new series replaces the latter. Only a run's own files are removed, and then the directory
    if it is empty.
    """
    for entry in sorted(path.glob("*/")):
        if (
            entry.name in new_names
            or entry.is_symlink()
            or not (entry / RUN_FILE).is_file()
            or not _is_run(entry)
        ):
            continue
        for name in (RUN_FILE, OPS_FILE, SERVED_FILE, SERIES_FILE):
            (entry / name).unlink(missing_ok=True)
        remove_empty(entry)


def make_directory(path: Path, manifest: str) -> None:
    """Create `path`, and remove an old `manifest` from it, which must not lie beside new results.

    Temporary files of ended processes are removed from the folders of runs below it, too: the new
    runs may have other names.
    """
    try:
        path.mkdir(exist_ok=True)
        (path / manifest).unlink(missing_ok=True)
        _sweep_below(path, _MOST_FOLDERS_DEEP)
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror}") from None


def _sweep_below(path: Path, depth: int) -> None:
    """Remove temporary files of ended processes from the folders below `path`, without links."""
    if not depth:
        return
    # A folder of somebody else's that cannot be listed holds none of ours.
    with suppress(OSError):
        for folder in path.iterdir():
            if folder.is_dir() and not folder.is_symlink():
                sweep(folder)
                _sweep_below(folder, depth - 1)


def remove_empty(path: Path) -> None:
    """Remove `path` if nothing is in it."""
    with suppress(OSError):
        path.rmdir()


@contextmanager
def forgotten(output: Path, traces: Collection[Path] = ()) -> Iterator[None]:
    """Remove `traces`, and `output` if it is empty then, if the replay raises an error.

    Otherwise they would be in the way of the next attempt.
    """
    try:
        yield
    except KvError:
        for trace in traces:
            trace.unlink(missing_ok=True)
            objects_path(trace).unlink(missing_ok=True)
        remove_empty(output)
        raise


def is_unrecovered(path: Path) -> bool:
    """Return whether a run in `path` was cut off, or is going on."""
    return (path / PARTIAL_RUN_FILE).is_file()
