"""The table over all admission filters, against traces made with each of them."""

from __future__ import annotations

import json

import pytest
from simulated import kvtrace

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import read_table

# Blocks 0 and 1 begin each prompt; each other block comes once, but for 7, which comes twice.
LINES = [[0, 1, 2], [0, 1, 7], [0, 1, 3], [0, 1, 7], [0, 1, 4]]
NAMES = ["always", "nth-offer", "nth-offer", "frequency", "tinylfu"]
SMALL = ["--preset", "llm-d-fs", "--model", "tiny-1b", "--gpu", "instant", "--source", "mooncake"]
TIERS = ["--set", "tiers.gpu.capacity=0", "--set", "tiers.nvme.capacity=60MiB"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = [
        {"timestamp": 1000 * i, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate(LINES)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_each_row_is_what_gen_writes_with_that_filter(prompts, tmp_path, monkeypatch, capsys):
    drive = ["--drive-size", "1GB", "--endurance", "1TB"]
    assert kvtrace(monkeypatch, "admission", prompts, *SMALL, *TIERS, *drive, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tier"], [row["admission"] for row in found["admissions"]]) == ("nvme", NAMES)
    for row in found["admissions"]:
        knobs = ["--set", f"tiers.nvme.admission={row['admission']}"]
        for knob in ("admission_count", "admission_decay"):
            if row[knob] is not None:
                knobs += ["--set", f"tiers.nvme.{knob}={row[knob]}"]
        trace = tmp_path / "t.parquet"
        assert (
            kvtrace(monkeypatch, "gen", prompts, *SMALL, *TIERS, *knobs, *drive, "-o", trace, "--json", "--force") == 0
        )
        summary = json.loads(capsys.readouterr().out)
        rows = read_table(trace, TRACE).to_pylist()
        assert row["written_bytes"] == sum(r["length_bytes"] for r in rows if r["op"] == "write" and r["tier"] == 1)
        assert row["tier_hit_ratio"] == summary["stats"]["tiers"][1]["hit_ratio"]
        worn = summary["endurance"][0]
        assert {name: row[name] for name in worn if name != "name"} == {k: v for k, v in worn.items() if k != "name"}
        assert worn["years_of_life"] == pytest.approx(1e12 / worn["written_bytes_per_day"] / 365)
    always, second, *_ = found["admissions"]
    # Chunks are of 6 MiB. At the second offer, blocks 0 and 1 are stored (4 chunks)
    # by request 1 and then hit, and 7 (2 chunks) by request 3: all of these have room.
    chunk = 256 * 24576
    assert second["written_bytes"] == 6 * chunk
    assert always["written_bytes"] > second["written_bytes"] > 0
    assert always["refused_bytes"] == 0


def test_the_answer_comes_first(prompts, monkeypatch, capsys):
    assert kvtrace(monkeypatch, "admission", prompts, *SMALL, *TIERS) == 0
    out = capsys.readouterr().out
    assert out.startswith("without a filter, ")
    assert " are written to nvme and " in out.splitlines()[0]
    assert "drive writes a day" in out


def test_tinylfu_needs_a_capacity(prompts, monkeypatch, capsys):
    options = ["--preset", "vllm-fs", *SMALL[2:], "--json"]
    assert kvtrace(monkeypatch, "admission", prompts, *options) == 0
    said = capsys.readouterr()
    assert [row["admission"] for row in json.loads(said.out)["admissions"]] == NAMES[:-1]
    assert "tinylfu is left out: nvme has no capacity" in said.err


def test_one_tier_has_none_that_refuses(prompts, tmp_path, monkeypatch, capsys):
    preset = tmp_path / "one.toml"
    preset.write_text(
        'description="one"\nentry="chunk"\nmatch="prefix"\nplacement="write-through"\npromotion="never"\n'
        '[[tiers]]\nname="gpu"\ncapacity="1GiB"\n'
    )
    assert kvtrace(monkeypatch, "admission", prompts, *SMALL[2:], "--preset", preset) == 2
    assert "has one tier" in capsys.readouterr().err
