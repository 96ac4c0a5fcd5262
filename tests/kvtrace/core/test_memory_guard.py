"""The guard of memory, beside files of limits that a test writes; and the forecast of a log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.core import reading_forecast
from kvtrace.core.errors import OutOfMemory
from kvtrace.core.text import utf8_lines

MIB = 1 << 20
GUARDED = """
import ctypes, sys, time
from kvtrace.core.native.library import library
limit_bytes, used, stat, kernel_used, *keys = (word.encode() for word in sys.argv[1:])
native = library()
native.memory_guard_add(
    ctypes.c_int64(int(limit_bytes)), used, stat, (ctypes.c_char_p * 3)(*keys), kernel_used,
    ctypes.c_int64(0), b"",
)
native.memory_guard_start(b"kvtrace: error: out of memory\\n")
time.sleep(1)
"""


def ends(*arguments: object) -> tuple[int, str]:
    """Return how a guarded process that does nothing for a second ends, and what it prints."""
    command = [sys.executable, "-c", GUARDED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


OUT_OF_MEMORY = (7, "kvtrace: error: out of memory\n")
GOES_ON = (0, "")
KEY = "MemAvailable:"
CACHED = ("inactive_file ", "active_file ", "")


@pytest.mark.parametrize(
    ("limit_mib", "available_mib", "expected"),
    [
        (64, 1, OUT_OF_MEMORY),
        (64, 47, OUT_OF_MEMORY),
        (64, 49, GOES_ON),
        # This process has less than a quarter of the limit, so that another one fills it.
        (1 << 20, 1, GOES_ON),
    ],
)
def test_a_machine_with_little_left(
    tmp_path: Path, limit_mib: int, available_mib: int, expected: tuple[int, str]
) -> None:
    stat = tmp_path / "meminfo"
    stat.write_text(f"MemTotal: {limit_mib * 1024} kB\n{KEY} {available_mib * 1024} kB\n")
    assert ends(limit_mib * MIB, "", stat, "", KEY, "", "") == expected


@pytest.mark.parametrize(
    ("used_mib", "inactive_mib", "active_mib", "kernel_mib", "expected"),
    [
        (63, 0, 0, 0, OUT_OF_MEMORY),
        (63, 20, 26, 0, OUT_OF_MEMORY),
        # Cached files are dropped before the kernel refuses memory, and so are most inodes.
        (63, 20, 28, 0, GOES_ON),
        (63, 20, 20, 8, OUT_OF_MEMORY),
        (63, 20, 20, 12, GOES_ON),
        (15, 0, 0, 0, GOES_ON),
    ],
)
def test_a_control_group_with_little_left(
    tmp_path: Path,
    used_mib: int,
    inactive_mib: int,
    active_mib: int,
    kernel_mib: int,
    expected: tuple[int, str],
) -> None:
    used, stat = tmp_path / "memory.current", tmp_path / "memory.stat"
    kernel = tmp_path / "memory.kmem.usage_in_bytes"
    kernel.write_text(f"{kernel_mib * MIB}\n")
    used.write_text(f"{used_mib * MIB}\n")
    lines = ("anon 5", f"inactive_file {inactive_mib * MIB}", f"active_file {active_mib * MIB}")
    stat.write_text("\n".join(lines) + "\n")
    assert ends(64 * MIB, used, stat, kernel, *CACHED) == expected


def test_a_limit_whose_files_are_gone_ends_nothing(tmp_path: Path) -> None:
    assert ends(64 * MIB, "", tmp_path / "none", "", KEY, "", "") == GOES_ON


@pytest.mark.parametrize(("available_mib", "fits"), [(150, False), (220, True)])
def test_a_log_is_foreseen_from_its_first_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, available_mib: int, fits: bool
) -> None:
    # 100 lines of 1 MiB, of which the reader keeps all: 100 MiB, and as much again to copy them.
    log = tmp_path / "log"
    log.write_bytes((b"x" * (MIB - 1) + b"\n") * 100)
    kept: list[bytes] = []
    monkeypatch.setattr(reading_forecast, "_STEP_BYTES", 10 * MIB)
    monkeypatch.setattr(reading_forecast, "resident_bytes", lambda: len(kept) * MIB + 50 * MIB)
    monkeypatch.setattr(
        reading_forecast, "available_bytes", lambda: (available_mib - len(kept)) * MIB
    )
    if fits:
        kept.extend(utf8_lines(log))
        assert len(kept) == 100
        return
    with pytest.raises(OutOfMemory, match="head -n 70") as error:
        kept.extend(utf8_lines(log))
    assert "log" in str(error.value)
    assert len(kept) == 20
