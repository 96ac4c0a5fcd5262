"""Trials: median and spread of every figure, and whether they agree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from conftest import run_cli, write_trace
from phrases import pattern, shows
from run_files import figures, run_file, summary

from kvreplay.experiments.trials import (
    Trials,
    disagreements,
    quantities,
    trials_document,
    trials_verdict,
)
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Interrupted, Replay, replay
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.run_file import RunFile

if TYPE_CHECKING:
    from pathlib import Path


def manifest(
    rate: float | None,
    time: int | None = 100,
    *,
    verdict: str = "closed",
    errors: int = 0,
    status: str = "complete",
    **config: Any,
) -> RunFile:
    found = [figures(rate, time), figures(rate, time, is_simulated=True)]
    return run_file(
        summary(found, verdict=verdict, errors=errors), status=status, reason="why", config=config
    )


def test_the_spread_is_the_range_over_the_median() -> None:
    found = {
        q.name: q
        for q in quantities([manifest(100.0, 5), manifest(90.0, None), manifest(120.0, 5)])
    }
    rate = found["bandwidth_bytes_per_s"]
    assert (rate.values, rate.median, rate.low, rate.high, rate.spread) == (
        [100, 90, 120],
        100,
        90,
        120,
        0.3,
    )
    # What one trial does not know has no median.
    assert (found["p50_ns"].values, found["p50_ns"].median, found["p50_ns"].spread) == (
        [5, None, 5],
        None,
        None,
    )
    (line,) = disagreements(found.values())
    assert shows(line, "RESULTS VARY … 10 % … 2 of 2")
    assert "nvme read bandwidth by 30 %" in line
    assert disagreements(quantities([manifest(100.0), manifest(110.0), manifest(105.0)])) == []
    assert disagreements(quantities([manifest(100.0)])) == []
    empty = manifest(None, verdict="closed loop: nothing completed")
    assert [trials_verdict([empty] * n, []).partition(":")[0] for n in (1, 2)] == [
        "1 trial",
        "2 trials",
    ]


def row(i: int) -> Any:
    return (i, "write", 1, "store", i, 0, 65_536, None, None, 0)


def test_trials_are_runs_under_one_directory(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(30)])
    for _ in range(2):
        done = run_cli(
            "kvreplay",
            "run",
            trace,
            "--tier",
            "cpu=ram",
            "--trials",
            "2",
            "-o",
            tmp_path / "r",
            "--force",
        )
        assert shows(done.stdout, "2 … 2 trials")
        assert "lower median: cpu" in done.stdout
    kept = json.loads((tmp_path / "r" / "trials.json").read_text())
    assert (kept["runs"], kept["status"], kept["asked"]) == (["trial-1", "trial-2"], "complete", 2)
    assert (tmp_path / "r" / "trial-2" / "ops.parquet").is_file()

    def cut_off(asked: Replay) -> FinishedRun:
        run = replay(asked).run
        return FinishedRun(msgspec.structs.replace(run, status="partial"), Interrupted("by SIGINT"))

    found, error = Trials(
        Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "cut", []), 3, replaying=cut_off
    ).perform()
    assert (found.status, found.verdict[:17], isinstance(error, Interrupted)) == (
        "partial",
        "PARTIAL: 1 trial:",
        True,
    )
    # Nor does another follow one that was asked to stop as it ended.
    ended = Trials(
        Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "ended", []), 3,
        replaying=lambda asked: FinishedRun(replay(asked).run, Interrupted("by SIGINT as the run ended")),
    )  # fmt: skip
    found, error = ended.perform()
    assert (found.runs, found.status, isinstance(error, Interrupted)) == (
        ["trial-1"],
        "partial",
        True,
    )
    # After whole ones, what was cut off is in no median.
    trials = Trials(Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "cut", []), 3)
    trials.error = Interrupted("by SIGINT")
    trials.runs += [manifest(100.0), manifest(104.0), manifest(10.0, status="partial")]
    found = trials.write()
    assert shows(found.verdict, "PARTIAL: trial-3 … 2 trials")
    assert (found.quantities[0].values, found.quantities[0].median, found.warnings) == (
        [100, 104],
        102,
        [],
    )
    assert trials_document(found).tables[0].title == "2 of 3 trials"


def test_what_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(3)])
    drive = tmp_path / "d"
    drive.mkdir()
    for config, output, count, message in (
        (Config(tiers={"cpu": "ram"}), tmp_path / "r", 0, "--trials 0: give 1 to 100"),
        (Config(tiers={"disk": "ram"}), tmp_path / "r", 2, "tier 'disk'"),
        (Config(tiers={"nvme": str(drive)}), drive / "r", 2, "inside … tier nvme"),
    ):
        with pytest.raises(ConfigError, match=pattern(message)):
            Trials(Replay(config, trace, output, []), count).perform()
        assert not output.exists()
