"""`partial_chunks`: the chunk that the end of a prompt does not fill, an object of its tokens."""

from __future__ import annotations

import json

import pytest
from engine_runs import ENGINES, counted, simulated
from lmcache_pool import Addresses, Amount, served
from phrases import shows
from simulated import ONE_BYTE, TWO_HEADS, brief, kvtrace, preset_of, requests_of, rows_of, simulate

from kvtrace.curves.points import Stack
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.simulation import Load

TURNS = ENGINES / "lmcache" / "turns.jsonl"
MIB = 1 << 20


def test_a_partial_chunk_is_found_by_the_same_prompt_only():
    requests = requests_of(
        [(0, 6, 0, [1, 2]), (1, 8, 0, [1, 3]), (2, 6, 0, [1, 2]), (3, 5, 0, [1, 2]), (4, 3, 0, [1])]
    )
    simulation, rows, _, sizes = simulate(
        preset_of(None, partial_chunks=True), Load(requests=requests)
    )
    assert brief(rows) == [
        "write 0 prefill 0 4 0/0",
        "write 0 prefill 1 2 0/0",
        "read 0 load 0 4 1/0",
        "write 0 prefill 2 4 1/1",
        "read 0 load 0 4 2/0",
        "read 0 load 1 2 2/0",
        "read 0 load 0 4 3/0",
        "write 0 prefill 3 1 3/1",
        "write 0 prefill 4 3 4/0",  # the first three tokens of block 1 are not its first chunk
    ]
    assert sizes == [4, 2, 4, 1, 3]
    stats = simulation.stats()
    # Look-ups 2 + 2 + 2 + 2 + 1, hits 0 + 1 + 2 + 1 + 0; of the third prompt the last token is
    # computed again.
    assert (stats.lookups, stats.tiers[0].hits) == (9, 4)
    assert simulation.world.total.missed_tokens == 6 + 4 + 1 + 1 + 3


def test_room_is_made_by_bytes_and_each_rank_pads_its_part():
    # 6 bytes, full of a chunk and a half: the next prompt's 4 take the chunk's place, and its 1
    # byte the half's.
    requests = requests_of([(0, 6, 0, [1, 2]), (1, 5, 0, [3, 4])])
    assert brief(rows_of(preset_of(6, partial_chunks=True), requests)) == [
        "write 0 prefill 0 4 0/0",
        "write 0 prefill 1 2 0/0",
        "delete 0 evict 0 4",
        "write 0 prefill 2 4 1/0",
        "delete 0 evict 1 2",
        "write 0 prefill 3 1 1/0",
    ]
    # Four bytes a token on two ranks, two on each: chunks of 8, the end's 4 made up to 5.
    padded = preset_of(None, partial_chunks=True, pad_bytes=5)
    rows = rows_of(padded, requests_of([(0, 6, 0, [1, 2])]), TWO_HEADS, ranks=2)
    assert [(row[4], row[5], row[8]) for row in rows] == [
        (0, 10, 0),
        (1, 10, 1),
        (2, 5, 0),
        (3, 5, 1),
    ]


def test_a_chunk_of_several_blocks_is_named_by_all_of_them():
    rows = [
        (0, 10, 0, [1, 2, 3]),
        (1, 12, 0, [1, 2, 3]),
        (2, 10, 0, [1, 2, 4]),
        (3, 10, 0, [1, 2, 3]),
        (4, 11, 0, [1, 2]),
    ]
    found = brief(rows_of(preset_of(None, partial_chunks=True, chunk_tokens=8), requests_of(rows)))
    assert [row for row in found if " 1 " in row or row.startswith("write")] == [
        "write 0 prefill 0 8 0/0",
        "write 0 prefill 1 2 0/0",
        "write 0 prefill 2 4 1/1",
        "write 0 prefill 3 2 2/1",
        "read 0 load 1 2 3/0",
    ]  # the last prompt's end has no block id, so that nothing says what it is


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--users", 2, "--duration", "1s"],
            "partial_chunks … blocks",
        ),
        (
            [TURNS, "--source", "mooncake", "--set", "min_load_tokens=512"],
            "partial_chunks excludes min_load_tokens",
        ),
        (
            [TURNS, "--source", "mooncake", "--model", "gpt-oss-20b"],
            "layers",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(monkeypatch, tmp_path, capsys, options, said):
    preset = [
        "--preset",
        "lmcache-disk",
        "--set",
        "partial_chunks=true",
        "-o",
        tmp_path / "t.parquet",
    ]
    model = [] if "--model" in options else ["--model", "tiny-1b"]
    assert kvtrace(monkeypatch, "gen", *options, *preset, *model) == 2
    assert shows(capsys.readouterr().err, said)


def test_rows_equal_lmcaches_but_for_gaps_in_its_pool(monkeypatch, tmp_path):
    count, pool, disk = 160, 16 * MIB, 64 * MIB
    settings = ["partial_chunks=true", "pad_bytes=4096", "tiers.gpu.capacity=0"]
    settings += [f"tiers.cpu.capacity={pool}B", f"tiers.nvme.capacity={disk}B"]
    did = counted(simulated(monkeypatch, tmp_path, "lmcache-disk", count, settings, trace=TURNS))
    ours = [[did[n][op, 2] for op in ("write", "read", "delete")] for n in range(count)]
    assert ours == served(TURNS, count, Amount(pool), disk)
    # LMCache's own engine takes addresses: what it did is what plain Python does with them, and not
    # ours in eight.
    golden = json.loads((ENGINES / "counts" / "lmcache-disk-unfull-turns-160.json").read_text())
    assert golden["per_request"] == served(TURNS, count, Addresses(pool), disk)
    assert sum(a != b for a, b in zip(ours, golden["per_request"], strict=True)) == 8


def test_sizing_counts_saved_tokens_without_samples_or_bounds():
    # The second prompt finds 4 of its tokens, in 1 of 2 chunks; the third all 6, in a chunk and a
    # part of one, and computes the last again.
    requests = requests_of([(0, 6, 0, [1, 2]), (1, 8, 0, [1, 3]), (2, 6, 0, [1, 2])])
    preset = load_preset("lmcache-disk", ["partial_chunks=true", "chunk_tokens=4"], gpu="instant")
    stack = Stack(preset, ONE_BYTE, Load(requests=requests), 1, lambda _: None).with_chains()
    point = stack.simulate({"dram": None, "nvme": None})
    assert (point.hit_ratio, point.saved_tokens, point.input_tokens) == (3 / 6, 4 + 5, 20)
    assert not stack.can_sample
    assert stack.optimum({"dram": 8, "nvme": 8}) is None


def test_empty_prompts_have_no_partial_chunk():
    preset = preset_of(None, partial_chunks=True)
    assert rows_of(preset, requests_of([(0, 0, 1, []), (1, 0, 1, [])])) == []
    found = brief(
        rows_of(
            preset, requests_of([(0, 0, 1, []), (1, 3, 0, [1]), (2, 0, 1, []), (3, 8, 0, [1, 2])])
        )
    )
    assert found == [
        "write 0 prefill 0 3 1/0",
        "write 0 prefill 1 4 3/0",
        "write 0 prefill 2 4 3/0",
    ]
