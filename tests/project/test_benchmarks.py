"""Figures of speed.

The page is what was measured, a busy machine is refused, its figures never pass for quiet ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from phrases import shows

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import bench_mlperf_spread as spread_of  # noqa: E402 - beside the benches
import figures  # noqa: E402
import quiet  # noqa: E402

TINY = {"KVTRACE_BENCH_TINY": "1"}


def bench_quiet(*arguments: object, nice: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*nice, sys.executable, ROOT / "bench" / "quiet.py", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | TINY
    )


def test_the_page_is_what_was_measured():
    assert quiet.PAGE.read_text(encoding="utf-8") == quiet.page_of(quiet.read(quiet.PAGE))


def test_every_bench_that_keeps_figures_is_run():
    keeping = {
        path.stem.removeprefix("bench_")
        for path in (ROOT / "bench").glob("bench_*.py")
        if re.search(
            r"figures\.record|from bench_replay import .*compare", path.read_text(encoding="utf-8")
        )
    }
    assert keeping == set(quiet.BENCHES)


def test_a_busy_machine_is_refused_and_nothing_is_written(tmp_path):
    done = bench_quiet("study", "--load-limit", -1, "-o", tmp_path / "page.md")
    assert done.returncode == 1
    assert re.search(r"-1: .*study; .*--wait", done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_tiny_run_does_not_reach_the_page_that_others_read():
    done = bench_quiet("study", "--load-limit", 1e6)
    assert done.returncode == 2
    assert "measure nothing" in done.stderr


@pytest.mark.full
def test_a_tiny_run_of_a_bench_is_kept_as_a_busy_one(tmp_path):
    page = tmp_path / "page.md"
    done = bench_quiet("live", "--load-limit", 1e6, "-o", page, nice=("nice", "-n", "19"))
    assert done.returncode == 0, done.stderr
    stored = quiet.read(page)
    assert not stored["quiet"]
    assert [row["rounds"] for row in stored["busy"]["live"]["rows"]] == [5, 5]
    text = page.read_text(encoding="utf-8")
    assert text.index("## On a busy machine") < text.index(
        "| live view, reads of 4 KiB at depth 32 |"
    )
    assert "`bench/bench_live.py`" in text.split("## On a busy machine")[0], (
        "still not measured on a quiet one"
    )


def test_fewer_than_three_rounds_are_no_figure(tmp_path, monkeypatch):
    monkeypatch.setenv(figures.OUTPUT_VARIABLE, str(tmp_path / "kept"))
    with pytest.raises(ValueError, match=r"2 rounds.*3"):
        figures.record_comparison("a", "GB/s", "fio", [(1, 1), (1, 1)])
    assert not list(tmp_path.iterdir())


def test_a_table_of_words_is_on_the_page_as_it_was_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(figures.OUTPUT_VARIABLE, str(tmp_path / "kept"))
    figures.record_table(["who", "how far"], [["ours", "1 %"]], "of two\n    runs")
    found = [json.loads(line) for line in (tmp_path / "kept").read_text().splitlines()]
    run = {
        "command": "c",
        "date": "d",
        "commit": "e",
        "machine": "m",
        "load": 0,
        "others": 0,
        "rows": found,
    }
    page = quiet.page_of({"quiet": {"mlperf_spread": run}, "busy": {}})
    assert "| ours | 1 % |" in page
    assert "of two runs" in page
    assert "| what | ours |" not in page, "no figure beside a peer"


def test_issued_rows_are_compared_up_to_the_shortest_run():
    def run(*issued):
        return spread_of.Run(issued=list(issued), read=1.0, written=2.0, tokens_per_s=0.0)

    a, b, c = ("write", 1), ("read", 1), ("read", 2)
    assert re.fullmatch(r"the same 2.*\(\w{8}\)", spread_of.alike([run(a, b, c), run(a, b)]))
    assert shows(spread_of.alike([run(a, b, c), run(b, a, c)]), "100% of 3")
    assert shows(spread_of.alike([run(a, b, c), run(a, c, a), run(a, a)]), "50% of 2")
    assert spread_of.spread([1.0, 3.0]) == "70.7% (3.00)"
    assert spread_of.spread([0.0, 0.0]) == "-"
