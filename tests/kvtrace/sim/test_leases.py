"""Mooncake's read leases, pins and refused puts: against plain Python, and against captures."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import adversarial
import msgspec
import polars as pl
import pytest
from conftest import TRACES, run_cli
from pool_leases import LeasedPool
from simulated import preset_of, requests_of, simulate, simulate_fleet

from kvtrace.core.errors import ConfigError
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Promotion, load_preset
from kvtrace.sim.presets.tier import FleetSetting
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import Load

MOONCAKE = Path(__file__).parents[2] / "golden" / "engines" / "mooncake"
PAGE, KEY = 65_536, 26
DRAM, DISK = 1, 2


def leased_preset(pages, bucket):
    """Return a preset of a DRAM of so many pages of four bytes, above an SSD."""
    preset = preset_of(0, 4 * pages, None, promotion=Promotion.TEMPORARY)
    gpu, dram, disk = preset.tiers
    dram = msgspec.structs.replace(dram, high_watermark=0.9, low_watermark=0.8, lease="50ns")
    disk = msgspec.structs.replace(
        disk, policy=Policy.FIFO, store_queue=10_000, heartbeat="20ns", bucket_objects=bucket,
        pins_queued=True,
    )  # fmt: skip
    return msgspec.structs.replace(preset, tiers=(gpu, dram, disk))


@pytest.mark.parametrize("seed", range(150))
def test_hits_and_pages_equal_plain_python(seed):
    draw = random.Random(seed)  # noqa: S311 - a fixed draw
    pages, bucket = draw.choice([10, 20, 40]), draw.choice([2, 5, 9])
    pool = LeasedPool(
        limit=int(4 * pages * 0.9) // 4, low=int(4 * pages * 0.8) // 4, full=pages, lease=50,
        heartbeat=20, bucket=bucket,
    )  # fmt: skip
    heads = [[100 * k + n for n in range(draw.randint(1, 8))] for k in range(4)]
    rows, expected, now, fresh = [], [], 0, 10_000
    for _ in range(draw.randint(3, 25)):
        now += draw.choice([0, 1, 7, 19, 30])
        tail = draw.choice([0, 0, 3, 12])
        blocks = [*draw.choice(heads), *range(fresh, fresh + tail)]
        fresh += tail
        rows.append((now, 4 * len(blocks), 0, blocks))
        expected.append(pool.serve(now, blocks))
    simulation, traced, *_ = simulate(
        leased_preset(pages, bucket), Load(requests=requests_of(rows))
    )
    reads = Counter(row[6] for row in traced if row[1] == "read")
    assert [reads[n] for n in range(len(rows))] == expected
    written = sum(row[5] for row in traced if row[1:3] == ("write", DISK)) // 4
    assert written == len(pool.on_ssd)
    assert simulation.stats().tiers[DRAM].live_bytes == 4 * len(pool.pages)


@pytest.mark.parametrize("seed", range(100))
def test_nodes_wait_for_room_apart(seed):
    """Each node has a pool and a client of its own: what one refuses holds up no other's puts.

    No two nodes have a page in common: an object that several refuse waits for the first alone.
    """
    draw = random.Random(seed)  # noqa: S311 - a fixed draw
    nodes, pages, bucket = draw.choice([2, 3]), draw.choice([10, 20]), draw.choice([2, 5, 9])
    pools = [
        LeasedPool(
            limit=int(4 * pages * 0.9) // 4, low=int(4 * pages * 0.8) // 4, full=pages, lease=50,
            heartbeat=20, bucket=bucket,
        )
        for _ in range(nodes)
    ]  # fmt: skip
    heads = [[100 * k + n for n in range(draw.randint(1, 8))] for k in range(3 * nodes)]
    rows, expected, now, fresh = [], [], 0, 10_000
    for number in range(draw.randint(10, 40)):
        now += draw.choice([0, 1, 7, 19])
        tail = draw.choice([0, 3, 12])
        blocks = [*draw.choice(heads[number % nodes :: nodes]), *range(fresh, fresh + tail)]
        fresh += tail
        rows.append((now, 4 * len(blocks), 0, blocks))
        expected.append(pools[number % nodes].serve(now, blocks))
    for pool in pools:
        pool.catch_up(now)
    preset = msgspec.structs.replace(
        leased_preset(pages, bucket), fleet=FleetSetting(nodes=nodes, router=Router.ROUND_ROBIN)
    )
    simulation, traced, *_ = simulate_fleet(preset, Load(requests=requests_of(rows)))
    reads = Counter(row[6] for row in traced if row[1] == "read")
    assert [reads[n] for n in range(len(rows))] == expected
    written = sum(row[5] for row in traced if row[1:3] == ("write", DISK)) // 4
    assert written == sum(len(pool.on_ssd) for pool in pools)
    live = simulation.stats().tiers[DRAM].live_bytes
    assert live == 4 * sum(len(pool.pages) for pool in pools)


def captured(tmp_path, name, source=None):
    """Return a capture, and our rows of the same requests at the times at which they came.

    They are those of the conversation trace, of the file `source`, or in the capture.
    """
    capture = json.loads((MOONCAKE / f"{name}.json").read_text())
    lines = (source or TRACES / "mooncake_conversation.jsonl").read_text().splitlines()
    if "requests" in capture:
        lines = [json.dumps(request) for request in capture["requests"]]
    times = [row[0] for row in capture["rows"]]
    log, config, trace = (tmp_path / name for name in ("r.jsonl", "config.json", "t.parquet"))
    log.write_text("".join(
        json.dumps(json.loads(line) | {"timestamp": time, "output_length": 1}) + "\n"
        for time, line in zip(times, lines, strict=False)
    ))  # fmt: skip
    model = json.loads((MOONCAKE.parent / "tinier-config.json").read_text())
    config.write_text(json.dumps(model | {"num_hidden_layers": 4}))
    knobs = ["tiers.gpu.capacity=0", f"tiers.cpu.capacity={capture['dram']}"]
    knobs.append("tiers.nvme.heartbeat=1s")
    run_cli(
        "kvtrace", "gen", log, "--source", "mooncake", "--preset", "mooncake-store", "--gpu",
        "instant", "--model", config, *(a for knob in knobs for a in ("--set", knob)), "-o", trace,
    )  # fmt: skip
    return capture, pl.read_parquet(trace).with_columns(pl.col("op").cast(pl.String))


def hits_and_pages(capture, rows):
    """Return the hits of each request, and the pages that were written to the disk."""
    reads = Counter(rows.filter(pl.col("op") == "read")["request_id"].to_list())
    written = rows.filter((pl.col("op") == "write") & (pl.col("tier") == DISK))["length_bytes"]
    # Behind each bucket stands its file of metadata.
    buckets = written.to_list()[::2]
    hits = [reads[n] for n in range(len(capture["rows"]))]
    return hits, sum(size // (PAGE + KEY) for size in buckets)


@pytest.mark.traces
def test_what_was_read_of_late_outlives_what_was_put_later(tmp_path):
    # Its third row of 96 pages fills DRAM; the last finds the first of its pages evicted.
    capture, rows = captured(tmp_path, "lease6s")
    hits, pages = hits_and_pages(capture, rows)
    assert hits == [row[2] for row in capture["rows"]] == [0, 64, 0, 0, 64, 0]
    assert pages == capture["pages"] == 0


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "differ", "pages_rel"),
    [
        ("fast-100", 0, 0.05),
        ("fast-57", 1, 0.11),
        ("fast-57-again", 1, 0.05),
        ("paced-57", 0, 0.25),
        ("paced-40", 0, 0.25),
    ],
)
def test_hits_and_pages_are_those_of_mooncake(tmp_path, name, differ, pages_rel):
    """Two runs of Mooncake with the same 57 requests wrote 4,732 and 5,305 pages.

    Which pages a heartbeat brings is by the clock. Where a put takes 3 or 4 ms, a prompt's pages come
    to several heartbeats; here they are put at once.
    """
    capture, rows = captured(tmp_path, name)
    hits, pages = hits_and_pages(capture, rows)
    real = [row[2] for row in capture["rows"]]
    assert sum(ours != theirs for ours, theirs in zip(hits, real, strict=True)) == differ
    assert sum(hits) == pytest.approx(sum(real), rel=0.03)
    assert pages == pytest.approx(capture["pages"], rel=pages_rel)


def test_prompts_beyond_dram_differ_as_runs_of_mooncake_do(tmp_path):
    """Three runs of Mooncake with the same 70 requests hit 1,925 to 2,675 pages.

    Which pages are pinned when DRAM is full is decided by when in a second the client's heartbeats
    come, which differs from run to run.
    """
    source = tmp_path / "hard.jsonl"
    adversarial.write(source)
    runs = {}
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        runs[name] = captured(folder, f"thrash-70-{name}", source)
    real = {name: [row[2] for row in capture["rows"]] for name, (capture, _) in runs.items()}
    ours = {name: hits_and_pages(capture, rows) for name, (capture, rows) in runs.items()}

    def differing(some, others):
        return sum(one != other for one, other in zip(some, others, strict=True))

    assert [sum(hits) for hits in real.values()] == [2675, 1925, 2619]
    between_runs = [differing(real[one], real[other]) for one, other in ("ab", "ac", "bc")]
    assert between_runs == [45, 28, 45]
    for name, (capture, _) in runs.items():
        assert differing(real[name], ours[name][0]) < max(between_runs)
        assert ours[name][1] == pytest.approx(capture["pages"], rel=0.55)


@pytest.mark.parametrize(
    "setting",
    ["tiers.cpu.policy=fifo", "tiers.cpu.evict_every=10ms", "tiers.nvme.bucket_objects=0"],
)
def test_leases_and_pins_that_contradict_are_refused(setting):
    with pytest.raises(ConfigError, match=r"lease|pins_queued"):
        load_preset("mooncake-store", [setting])
