"""`size --day-profile` and `plan --day-profile`: a log of ten minutes is not a month."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import run_cli

from kvtrace.core.errors import ConfigError
from kvtrace.curves.day_profile import DayProfile, extrapolation, read_day_profile

SECOND = 10**9
LOAD_S = 600
WEIGHTS = [1.0] * 12 + [4.0] * 6 + [0.0] * 6
"""Mean 1.5, greatest 4."""
SHARE = 1.5 / 4


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 31 requests of eight blocks, 20 s apart, of ten prompts."""
    path = tmp_path_factory.mktemp("log") / "r.jsonl"
    lines = [
        {
            "timestamp": 20_000 * number,
            "input_length": 4096,
            "output_length": 4,
            "hash_ids": [100 * (number % 10) + block for block in range(8)],
        }
        for number in range(LOAD_S // 20 + 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def profile_file(folder: Path) -> Path:
    path = folder / "day.txt"
    path.write_text("\n".join(map(str, WEIGHTS)))
    return path


def size(log: Path, *options: object) -> Any:
    argv = ("--model", "tiny-1b", "--source", "mooncake", "--preset", "lmcache-disk", "--json")
    argv += ("--set", "tiers.gpu.capacity=64MiB", "--dram", "256MiB", "--nvme", "2GiB")
    argv += ("--target-hit", "20%", "--endurance", "1DWPD,5y")
    return json.loads(run_cli("kvtrace", "size", log, *argv, *options).stdout)


def drive_of(found: Any) -> Any:
    (drive,) = (tier for tier in found["chosen"]["tiers"] if tier["name"] == "nvme")
    return drive


def test_wear_follows_the_hours_of_a_day(log: Path, tmp_path: Path) -> None:
    """Bytes written in the log, over the drive, times how often the log's load is in a day."""
    usual = drive_of(size(log))
    logs_a_day = 86_400 / LOAD_S
    for options, share in (
        ((), 1.0),
        (("--day-profile", "log"), 1 / logs_a_day),
        (("--day-profile", profile_file(tmp_path)), SHARE),
    ):
        found = size(log, *options)
        drive = drive_of(found)
        writes = drive["written_bytes"] / drive["capacity_bytes"] * logs_a_day * share
        assert found["day_share"] == pytest.approx(share)
        assert drive["drive_writes_per_day"] == pytest.approx(writes)
        assert drive["life_years"] == pytest.approx(5 / writes)
        # Hits, bytes and capacities are those of the log.
        assert drive["written_bytes"] == usual["written_bytes"]


def test_costs_and_wear_of_a_plan_follow_the_hours(log: Path, tmp_path: Path) -> None:
    def plan(*options: object) -> Any:
        argv = ("--model", "tiny-1b", "--source", "mooncake", "--target-hit", "20%", "--json")
        argv += ("--gpu", "instant", "--set", "tiers.gpu.capacity=64MiB")
        argv += ("-o", tmp_path / "out", *options)
        return json.loads(run_cli("kvtrace", "plan", log, *argv).stdout)

    usual, daily = plan(), plan("--day-profile", profile_file(tmp_path))
    assert daily["chosen"]["day_share"] == pytest.approx(SHARE)
    by_command = {fleet["command"]: fleet for fleet in daily["fleets"]}
    compared = 0
    for fleet in usual["fleets"]:
        other = by_command.get(fleet["command"])
        if other is None:
            continue
        compared += 1
        if (writes := fleet["most_drive_writes_per_day"]) is not None:
            assert other["most_drive_writes_per_day"] == pytest.approx(writes * SHARE)
        if fleet["store"] == "a bucket":
            # Requests are paid by the rate, bytes by what is stored.
            assert other["storage_cost_per_month"] < fleet["storage_cost_per_month"]
    assert compared > 0
    assert "10.0 min" in usual["answer"] or "600 s" in usual["answer"]


def test_a_log_of_days_is_all_of_its_days() -> None:
    assert DayProfile().share(3 * 86_400 * SECOND) == 1
    assert DayProfile().share(6 * 3600 * SECOND) == 0.25
    assert extrapolation(86_400 * SECOND, None) is None
    assert extrapolation(177 * SECOND, None) is not None


@pytest.mark.parametrize(
    "text", ["1 2 3", "0 " * 24, "-1 " + "1 " * 23, "nan " + "1 " * 23, "one " * 24, ""]
)
def test_a_profile_that_is_no_day_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "day.txt"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_day_profile(path)


@pytest.mark.parametrize("weight", ["5e-324", "7", "1e308"])
def test_a_flat_day_is_the_logs_rate_whatever_its_weights(tmp_path: Path, weight: str) -> None:
    path = tmp_path / "day.txt"
    path.write_text(f"{weight} " * 24)
    assert read_day_profile(path).share(SECOND) == 1


def test_a_missing_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_day_profile(tmp_path / "none.txt")
