"""Trials and comparisons: median, spread, ratios, and what may be said of a difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli, write_trace
from run_files import figures, run_file, summary

from kvreplay.config.config import Config
from kvreplay.run.compare import compare
from kvreplay.run.trials import disagreements, quantities, run_trials
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import RunFile, write_run

if TYPE_CHECKING:
    from pathlib import Path


def manifest(rate: float | None, time: int | None = 100, *, verdict: str = "closed", errors: int = 0,
             status: str = "complete", **config: Any) -> RunFile:  # fmt: skip
    found = [figures(rate, time), figures(rate, time, is_simulated=True)]
    return run_file(summary(found, verdict=verdict, errors=errors), status=status, reason="why", config=config)


def saved(path: Path, runs: list[RunFile]) -> Path:
    path.mkdir()
    if len(runs) == 1:
        write_run(path, runs[0])
        return path
    for i, content in enumerate(runs):
        (path / f"trial-{i}").mkdir()
        write_run(path / f"trial-{i}", content)
    (path / "trials.json").write_text(json.dumps({"runs": [f"trial-{i}" for i in range(len(runs))]}))
    return path


def test_the_spread_is_the_range_over_the_median() -> None:
    found = {q.name: q for q in quantities([manifest(100.0, 5), manifest(90.0, None), manifest(120.0, 5)])}
    rate = found["bandwidth_bytes_per_s"]
    assert (rate.values, rate.median, rate.low, rate.high, rate.spread) == ([100, 90, 120], 100, 90, 120, 0.3)
    # What one trial does not know has no median.
    assert (found["p50_ns"].values, found["p50_ns"].median, found["p50_ns"].spread) == ([5, None, 5], None, None)
    (line,) = disagreements(found.values())
    assert "TRIALS DISAGREE: 2 of 2 figures that should repeat spread by more than 10%" in line
    assert "nvme read bandwidth_bytes_per_s 30%" in line
    assert disagreements(quantities([manifest(100.0), manifest(110.0), manifest(105.0)])) == []
    assert disagreements(quantities([manifest(100.0)])) == []


def test_a_difference_counts_when_the_interval_excludes_1(tmp_path: Path) -> None:
    base = saved(tmp_path / "a", [manifest(100.0), manifest(104.0), manifest(102.0)])
    near = saved(tmp_path / "b", [manifest(98.0), manifest(97.0), manifest(105.0)])
    far = saved(tmp_path / "c", [manifest(111.0), manifest(112.0), manifest(110.0)])
    single = saved(tmp_path / "d", [manifest(200.0, queue_depth=4)])
    found = compare([base, near, far, single])
    line = next(entry for entry in found.lines if entry.name == "bandwidth_bytes_per_s")
    assert [(s.median, s.ratio.differs) for s in line.sides if s] == [
        (102, False), (98, False), (111, True), (200, None)
    ]  # fmt: skip
    assert [round(s.ratio.value, 4) for s in line.sides if s and s.ratio.value] == [1, 0.9608, 1.0882, 1.9608]
    assert found.trials == [3, 3, 3, 1]
    assert found.settings == {"queue_depth": [None, None, None, 4]}
    assert [w for w in found.warnings if "one trial" in w] == [
        f"{single} is one trial: its spread is unknown; run it with --trials 3 or more"
    ]


def test_what_spoils_a_comparison_is_said(tmp_path: Path) -> None:
    base = saved(tmp_path / "a", [manifest(100.0), manifest(100.0, status="partial", errors=2)])
    late = saved(tmp_path / "b", [manifest(100.0, verdict="FELL BEHIND: much"), manifest(150.0)])
    found = compare([base, late]).warnings
    assert f"{base}, trial 2 is PARTIAL: why" in found
    assert f"{base}, trial 2 had 2 failed operations" in found
    assert f"{late}, trial 1 fell behind the trace: its times are those of an overload" in found
    assert any("TRIALS DISAGREE" in line for line in found)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "a", [manifest(1.0)])
    with pytest.raises(ConfigError, match="two runs or more"):
        compare([run])
    with pytest.raises(ConfigError, match="no run of kvreplay in this folder"):
        compare([run, tmp_path])
    (run / "run.json").write_text("{}")
    with pytest.raises(TraceError, match="not of this version"):
        compare([run, run])
    for damaged in (b"[1", b"[" * 100_000, b'{"program": "\xff"}', b'{"program": 1}', b""):
        (run / "run.json").write_bytes(damaged)
        with pytest.raises(TraceError, match=r"damaged|not of this version"):
            compare([run, run])


def row(i: int) -> Any:
    return (i, "write", 1, "store", i, 0, 65_536, None, None, 0)


def test_trials_are_runs_under_one_directory(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(30)])
    for _ in range(2):
        done = run_cli("kvreplay", "run", trace, "--tier", "cpu=ram", "--trials", "2", "-o", tmp_path / "r")
        assert "2 of 2 trials" in done.stdout
    kept = json.loads((tmp_path / "r" / "trials.json").read_text())
    assert (kept["runs"], kept["status"], kept["asked"]) == (["trial-1", "trial-2"], "complete", 2)
    assert (tmp_path / "r" / "trial-2" / "ops.parquet").is_file()
    shown = run_cli("kvreplay", "compare", tmp_path / "r", tmp_path / "r" / "trial-1")
    assert "cpu write bandwidth_bytes_per_s" in shown.stdout
    as_json = json.loads(run_cli("kvreplay", "compare", tmp_path / "r", tmp_path / "r", "--json").stdout)
    assert {s["ratio"]["value"] for line in as_json["lines"] for s in line["sides"]} == {1.0}
    assert {s["ratio"]["differs"] for line in as_json["lines"] for s in line["sides"]} <= {False, None}


def test_what_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row(i) for i in range(3)])
    drive = tmp_path / "d"
    drive.mkdir()
    for config, output, count, message in (
        (Config(tiers={"cpu": "ram"}), tmp_path / "r", 0, "--trials 0: give 1 to 100"),
        (Config(tiers={"disk": "ram"}), tmp_path / "r", 2, "has no tier 'disk'"),
        (Config(tiers={"nvme": str(drive)}), drive / "r", 2, "lies in the target of tier nvme"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_trials(config, trace, output, [], count)
        assert not output.exists()
