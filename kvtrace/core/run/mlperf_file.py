"""What the readers of `mlperf.json` share: its answer, and what its figures may and may not be taken for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvtrace.core.files import read_json

MLPERF_FILE, TRIALS_FOLDER = "mlperf.json", "trials"


class MlperfRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the benchmark, and whether it was kept."""

    rule: str
    reference: str
    """Where it stands in Rules.md."""
    kept: str
    detail: str


class MlperfMark(msgspec.Struct, frozen=True, kw_only=True):
    """What must stand wherever the figures of an option stand; the file has more."""

    answer: str
    mark: str | None
    """Which rules are not kept; null if all that can be told are."""
    option: str
    not_claimed: dict[str, str]
    """What the figures are not, and why."""
    rules: list[MlperfRule]


def find_mark(folder: Path) -> MlperfMark | None:
    """Return what the figures in `folder` must be marked with, or None if it has none of the benchmark's."""
    path = folder / MLPERF_FILE
    if not path.is_file():
        return None
    return read_json(path, MlperfMark, misfit="not of this version of kvreplay: {}; run it again")
