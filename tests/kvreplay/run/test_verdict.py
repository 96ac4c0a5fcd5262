"""What a run says of itself: whether it moved anything, kept pace, failed, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli, write_trace

from kvreplay.config.config import Config
from kvreplay.run.run import replay
from kvreplay.tiers.ram import RamTier
from kvtrace.core.errors import ConfigError, FailedOperations

if TYPE_CHECKING:
    from pathlib import Path

STATS = {"output_tokens": 500, "lookups": 10, "tiers": [{"hits": 2}, {"hits": 1}, {"hits": 1}]}


def row(op: str, tier: int, obj: int, length: int = 4096, *, ts: int = 0) -> Any:
    return (ts, op, tier, "load", obj, 0, length, None, None, 0)


def test_a_run_that_would_move_nothing_names_the_tiers_that_have_rows(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 2, i) for i in range(3)] + [row("read", 0, 9)])
    done = run_cli("kvreplay", "run", trace, "--tier", "cpu=ram", "-o", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(
        "nothing to replay: the trace has no rows on cpu; name one that has some: gpu (1 rows), nvme (3 rows)"
    )
    assert not (tmp_path / "run").exists()
    deletes = write_trace(tmp_path / "d.parquet", [row("delete", 1, 0), row("write", 2, 1)])
    with pytest.raises(ConfigError, match="no rows on cpu, but 1 deletes of objects that were never there"):
        replay(Config(tiers={"cpu": "ram"}), deletes, tmp_path / "run", [])


def test_tokens_a_second_need_every_storage_tier(tmp_path: Path) -> None:
    rows = [row("write", 1, 0), row("write", 2, 1), row("read", 2, 1)]
    trace = write_trace(tmp_path / "t.parquet", rows, stats=STATS)
    found = []
    for targets in (["cpu=ram"], ["cpu=ram", "nvme=null"], ["nvme=ram"]):
        named = [argument for target in targets for argument in ("--tier", target)]
        shown = run_cli("kvreplay", "run", trace, *named, "-o", tmp_path / "-".join(targets), "--json")
        found.append(json.loads(shown.stdout)["mlperf"]["throughput"])
    for lacking in found[:2]:
        assert (lacking["tokens"], lacking["wall_clock_throughput_tokens_per_s"]) == (None, None)
        assert lacking["reason"] == "storage tiers of the trace whose data did not move: nvme"
    assert (found[2]["tokens"], found[2]["reason"]) == (500, None)


class Full(RamTier):
    """Memory that is full for objects from number 16 on."""

    def begin(self, op: int, object_id: int) -> Any:
        if object_id >= 16:
            raise OSError(28, "No space left on device")
        return super().begin(op, object_id)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvreplay.config.tiers.RamTier", Full)


@pytest.mark.usefixtures("full")
def test_a_run_that_went_on_says_what_failed(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 1, i) for i in range(41)])
    how = ["--tier", "cpu=ram", "--on-error", "continue"]
    done = run_cli("kvreplay", "run", trace, *how, "-o", tmp_path / "run", check=False)
    assert done.returncode == FailedOperations.exit_code == 6
    assert done.stdout.startswith("25 of 41 operations FAILED; closed loop at queue depth 8; 16 operations in ")
    assert "25 of 41 operations failed, the first at row 16: write of object 16: No space left on device" in done.stderr
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["status"] == "failed operations"
    assert kept["reason"].startswith("25 of 41 operations failed")
    # Trials go on as well, and say it.
    done = run_cli("kvreplay", "run", trace, *how, "--trials", "2", "-o", tmp_path / "trials", check=False)
    assert done.returncode == 6
    assert json.loads((tmp_path / "trials" / "trials.json").read_text())["status"] == "failed operations"
