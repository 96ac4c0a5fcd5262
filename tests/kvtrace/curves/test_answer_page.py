"""The pages of `size -o answer.html` and `plan -o answer.html`, as a browser shows them.

What sliders answer is held against every option tried in plain Python.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import evaluated, watch
from conftest import run_cli

from kvtrace.core.document.document import Document
from kvtrace.core.document.explorer import Choice, Explorer, Price
from kvtrace.core.document.page import html_page

pytestmark = pytest.mark.chromium
MOVE = """(()=>{{const set=(name,value)=>{{const slider=document.querySelector(`input[name=${{name}}]`);
slider.value=value;slider.dispatchEvent(new Event('input'))}};
for(const [name,value] of Object.entries({moves})) set(name,value);
const root=document.getElementById('explorer');const answer=root.querySelector('.answer');
return {{best:answer.dataset.best,text:answer.textContent,front:root.dataset.front,
bold:root.querySelectorAll('.map .best').length,dots:root.querySelectorAll('circle').length}}}})()"""
HOSTILE = "<img src=x onerror=alert(1)></script><script>seen.push('run')</script>"


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 120 requests of ten prompts of eight blocks."""
    path = tmp_path_factory.mktemp("pages") / "r.jsonl"
    lines = [
        {
            "timestamp": 2000 * number,
            "input_length": 4096,
            "output_length": 4,
            "hash_ids": [100 * (number * number % 10) + block for block in range(8)],
        }
        for number in range(120)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module", params=["size", "plan"])
def page(request: pytest.FixtureRequest, requests: Path, tmp_path_factory: Any) -> str:
    """Return the page of each command."""
    folder = tmp_path_factory.mktemp(request.param)
    argv = ("--model", "tiny-1b", "--source", "mooncake", "--gpu", "a100", "--target-hit", "50%")
    argv += ("--preset", "lmcache-disk", "--set", "tiers.gpu.capacity=64MiB")
    run_cli("kvtrace", request.param, requests, *argv, "-o", folder / "answer.html")
    return (folder / "answer.html").read_text()


def data_of(page: str) -> Any:
    """Return what the sliders choose among."""
    (text,) = re.findall(r'id="choices">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def moved(page: str, folder: Path, moves: dict[str, int]) -> Any:
    return evaluated(page, folder, MOVE.format(moves=json.dumps(moves)))


def cheapest(data: Any, hit: float, limit_ns: float | None, factors: list[float]) -> list[int]:
    """Return the options of the least cost that are enough, by trying all."""
    costs = {
        index: sum(c * f for c, f in zip(choice["costs"], factors, strict=True))
        for index, choice in enumerate(data["choices"])
        if choice["is_working"]
        and choice["hit_ratio"] >= hit
        and (limit_ns is None or choice["first_token_p99_ns"] <= limit_ns)
    }
    least = min(costs.values(), default=None)
    return [index for index, cost in costs.items() if least is not None and cost <= least * 1.0001]


@pytest.mark.parametrize(
    ("width", "is_dark"), [(1280, False), (1280, True), (390, False), (390, True)]
)
def test_a_page_shows_all_without_errors_or_requests(page, tmp_path, width, is_dark):
    found = watch(page, tmp_path, width=width, is_dark=is_dark)
    assert (found["errors"], found["fetched"], found["said"]) == ([], [], [])
    assert max(found["wide"], 0) == 0
    assert found["paper"] == ("rgb(20, 24, 29)" if is_dark else "rgb(255, 255, 255)")


def test_a_page_begins_with_the_answer_of_the_command(page, tmp_path):
    data, found = data_of(page), moved(page, tmp_path, {})
    assert found["best"] == str(data["answer"])
    assert found["bold"] == 1
    assert found["dots"] == len(data["choices"]) > 2
    assert data["choices"][data["answer"]]["hit_ratio"] >= 0.5
    assert "Break-even bandwidth" in page


@pytest.mark.parametrize(
    ("hit", "dram", "storage"),
    [(0, 0, 0), (300, -100, 100), (700, 100, -50), (830, -50, 0), (1000, 0, 0)],
)
def test_sliders_choose_the_cheapest_of_all(page, tmp_path, hit, dram, storage):
    data = data_of(page)
    factors = [10 ** (place / 100) for place in (dram, storage)]
    found = moved(page, tmp_path, {"hit": hit, "price0": dram, "price1": storage})
    expected = cheapest(data, hit / 1000, None, factors)
    assert found["best"] in ({str(index) for index in expected} or {""})


def test_a_limit_of_ttft_moves_the_answer(page, tmp_path):
    data = data_of(page)
    times = [choice["first_token_p99_ns"] for choice in data["choices"]]
    for place in (0, 500, 900):
        limit = min(times) * (max(times) / min(times)) ** (place / 1000)
        found = moved(page, tmp_path, {"hit": 100, "ttft": place})
        expected = cheapest(data, 0.1, limit * (1 + 1e-12), [1.0, 1.0])
        assert found["best"] in ({str(index) for index in expected} or {""})


def test_the_frontier_is_that_of_all_pairs(page, tmp_path):
    data = data_of(page)
    found = moved(page, tmp_path, {})
    points = [
        (sum(choice["costs"]), choice["hit_ratio"])
        for choice in data["choices"]
        if choice["is_working"]
    ]
    front = {
        (cost, hit)
        for cost, hit in points
        if not any(c <= cost and h >= hit and (c, h) != (cost, hit) for c, h in points)
    }
    drawn = [data["choices"][int(index)] for index in found["front"].split()]
    assert {(sum(choice["costs"]), choice["hit_ratio"]) for choice in drawn} == front


def test_hostile_names_stay_text(tmp_path):
    choices = [
        Choice(HOSTILE, HOSTILE, HOSTILE, hit, None, None, (cost,), is_working=True)
        for hit, cost in ((0.5, 1.0), (0.7, 2.0))
    ]
    explorer = Explorer(
        rows=HOSTILE,
        columns=HOSTILE,
        row_labels=[HOSTILE],
        column_labels=[HOSTILE],
        choices=choices,
        prices=[Price(HOSTILE, 1.0, HOSTILE)],
        cost=HOSTILE,
        answer=0,
        target_hit=0.5,
        target_first_token_p99_ns=None,
        note=HOSTILE,
    )
    page = html_page([Document(HOSTILE, HOSTILE, [], explorer=explorer)], "a test")
    found = watch(page, tmp_path, width=1280)
    assert (found["errors"], found["fetched"], found["said"]) == ([], [], [])
    shown = moved(page, tmp_path, {"hit": 600})
    assert shown["best"] == "1"
    assert HOSTILE in shown["text"]
