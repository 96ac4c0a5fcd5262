"""What figures leave out and what is written before them: warm-up and preconditioning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import write_trace
from phrases import Saying, pattern, shows
from taken import counted, rows_of
from whole import read_table

from kvreplay.plan.replay_config import Config
from kvreplay.run import precondition as preconditioning
from kvreplay.run.precondition import MAX_ROUNDS, Precondition, is_steady, precondition
from kvreplay.run.replay import Replay, replay
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError
from kvtrace.core.metrics.warmup import Warmup, parse_warmup
from kvtrace.core.schema import OPS

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9


def rows(count: int, length: int = 4096) -> list[Any]:
    return [
        (i * 10_000_000, "write", 2, "store", i, 0, length, None, None, 0) for i in range(count)
    ]


def measured(**columns: Any) -> Any:
    known = {
        "op": np.full(4, 1, np.int8),
        "length_bytes": [1000, 2000, 4000, 8000],
        "trace_row": [0, 2, 4, 6],
        "outcome": 0,
    }
    known |= {"submitted_ns": np.arange(4) * S, "completed_ns": np.array([2, 2, 4, 4]) * S}
    return rows_of(4, **(known | columns))


@pytest.mark.parametrize("warmup", [Warmup(rows=3), Warmup(time_ns=2 * S)])
def test_the_warm_up_is_in_no_figure(warmup: Warmup) -> None:
    operations = counted(measured(), [RamTier("cpu", 4096)], warmup)
    (write,) = operations.figures()
    # Rows 4 and 6 remain: 12,000 bytes from 2 to 4 s.
    assert (write.operations, write.bytes, write.bandwidth_bytes_per_s) == (2, 12_000, 6000.0)
    assert operations.total("good") == 2
    assert operations.run[["left_out", "first_row", "from_ns"]][0].tolist() == (2, 4, 2 * S)


def test_an_open_loop_warms_up_by_due_times() -> None:
    due = np.array([0, 1, 1, 1]) * S
    assert Warmup(time_ns=S).is_measured(measured(due_ns=due)).tolist() == [False, True, True, True]


def test_a_run_keeps_the_warm_up_in_its_operations(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", rows(10))
    outcome = replay(Replay(Config(tiers={"nvme": "ram"}, warmup="4"), trace, tmp_path / "run", []))
    assert (
        read_table(tmp_path / "run" / "ops.parquet", OPS).column("outcome").to_pylist()
        == ["ok"] * 10
    )
    assert (outcome.summary.operations, outcome.summary.figures[0].operations) == (6, 6)
    assert outcome.run.notes == [Saying("4 operations … (--warmup 4)")]


def test_a_closed_loop_that_was_all_warm_up_completed_some(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", rows(10))
    outcome = replay(
        Replay(Config(tiers={"nvme": "ram"}, warmup="100s"), trace, tmp_path / "run", [])
    )
    assert shows(outcome.summary.verdict, "after the warm-up")


def test_warm_ups_that_leave_nothing_are_refused(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", rows(10))
    for options, message in (
        ({"warmup": "10rows"}, "10 rows"),
        ({"warmup": "1s", "speed": 1.0}, "measured"),
        ({"warmup": "0"}, "more than 0"),
        ({"warmup": "soon"}, "rows (1000) … (30s)"),
        ({"precondition": "twice"}, "precondition"),
    ):
        with pytest.raises(ConfigError, match=pattern(message)):
            replay(Replay(Config(tiers={"nvme": "ram"}, **options), trace, tmp_path / "run", []))
    assert parse_warmup("5 rows") == Warmup(rows=5)
    assert parse_warmup("30s") == Warmup(time_ns=30 * S)


def test_preconditioning_writes_the_peak_twice_and_removes_it(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", rows(3, 100_000))
    drive = tmp_path / "d"
    drive.mkdir()
    config = Config(
        tiers={"nvme": str(drive)},
        precondition="twice",
        io_bytes=131_072,
        is_buffered=True,
        is_verified=True,
    )
    outcome = replay(Replay(config, trace, tmp_path / "run", []))
    (done,) = outcome.run.preconditioned
    # Three objects of 25 blocks.
    assert (done.file_bytes, done.written_bytes, done.is_whole) == (307_200, 614_400, True)
    assert (done.sequential_io_bytes, done.random_io_bytes) == (131_072, 65_536)
    assert outcome.summary.operations == 3
    assert list(drive.iterdir()) == []


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([100.0] * 4, False),
        ([100.0] * 5, True),
        # The mean is 100: 110 is 10 % from it, 110.1 is more.
        ([110.0, 97.5, 97.5, 97.5, 97.5], True),
        ([111.0, 97.25, 97.25, 97.25, 97.25], False),
        # A line that falls by 2.5 a round falls by 10 % over the window, one of 2.6 by 10.4 %.
        ([105.0, 102.5, 100.0, 97.5, 95.0], True),
        ([105.2, 102.6, 100.0, 97.4, 94.8], False),
        # Only the last five count.
        ([500.0, 300.0, 100.0, 100.0, 100.0, 100.0, 100.0], True),
    ],
)
def test_steady_means_level_in_the_last_five_rounds(rates: list[float], expected: bool) -> None:
    assert is_steady(rates) is expected


@pytest.mark.parametrize(("seconds", "is_reached"), [([1.0] * 5, True), ([1.0, 9.0] * 30, False)])
def test_preconditioning_goes_on_until_steady_or_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: list[float], is_reached: bool
) -> None:
    """Each round writes 8 MiB in the given seconds, by a clock of ours."""
    size, clock, waiting = 8 << 20, [0], iter(seconds)

    monkeypatch.setattr(preconditioning, "monotonic_ns", lambda: clock[0])
    monkeypatch.setattr(preconditioning.os, "fdatasync", lambda _fd: None)
    drive = FileTier("nvme", tmp_path, StorageOptions(is_buffered=True))
    drive.open(0)
    progress = [0.0]

    def note(done: float) -> None:
        # The first pass is sequential; the last write of each later one ends a round.
        if done > max(size, progress[-1]) and done % size == 0:
            clock[0] += int(next(waiting) * S)
        progress.append(done)

    found, _ = precondition(
        drive,
        size,
        Precondition.STEADY,
        1 << 20,
        4,
        lambda *_: None,
        0,
        interrupted=lambda: None,
        progress=note,
    )
    drive.close()
    rounds = 5 if is_reached else MAX_ROUNDS
    assert found.rounds_bytes_per_s == [size / s for s in seconds[:rounds]]
    assert (found.is_steady, found.is_whole) == (is_reached, True)
    assert found.written_bytes == size * (1 + rounds)
    assert list(tmp_path.iterdir()) == []
