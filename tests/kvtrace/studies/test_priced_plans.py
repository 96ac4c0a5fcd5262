"""`kvtrace plan`.

The cheapest of all that the price list offers, its costs by plain arithmetic over the traces.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import run_cli
from phrases import shows
from whole import read_table

from kvtrace.core.schema import STUDY, TRACE
from kvtrace.core.simulation_stats import HitSteps
from kvtrace.core.units import format_duration
from kvtrace.studies.plan import hits_back_ns
from kvtrace.studies.run import Task
from kvtrace.studies.study import files_sha256
from kvtrace.studies.worker import simulate

MONTH_S = 365 * 86400 / 12
DRAM, NVME, FILE = ("16MiB", "64MiB", "4GiB"), ("64MiB", "256MiB", "1GiB"), ("128MiB", "2GiB")
PRICES = """
currency = "EUR"
years = 4
[dram]
sizes = ["16MiB", "64MiB", "4GiB"]
price = "4000/GiB"
source = "made up"
[nvme]
sizes = ["64MiB", "256MiB", "1GiB"]
price = "100/GiB"
endurance = "3DWPD,5y"
read_bandwidth = "2GB"
write_bandwidth = "1GB"
source = "made up"
[file]
sizes = ["128MiB", "2GiB"]
price = "150/GiB"
endurance = "1PB"
source = "made up"
[object]
price_per_gb_month = 0.5
put_price_per_1000 = 0.00001
get_price_per_1000 = 0.000001
source = "made up"
"""
BYTES = {"MiB": 2**20, "GiB": 2**30}


def bytes_of(size):
    return int(size[:-3]) * BYTES[size[-3:]]


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    """Return a file of requests that come again after a while, over ten minutes."""
    path, rng = tmp_path_factory.mktemp("plan") / "r.jsonl", np.random.default_rng(5)
    prompts = [[1000 * p + i for i in range(int(rng.integers(2, 10)))] for p in range(40)]
    lines = []
    for at in range(150):
        ids = prompts[min(39, int(rng.exponential(12.5)))]
        lines.append(
            {
                "timestamp": 4000 * at,
                "input_length": 512 * len(ids),
                "output_length": 20,
                "hash_ids": ids,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path.parent / "prices.toml").write_text(PRICES)
    return path


def plan(requests, out, *options, prices=None, **kwargs):
    prices = prices or requests.parent / "prices.toml"
    return run_cli(
        *("kvtrace", "plan", requests, "--source", "mooncake", "--model", "tiny-1b", "--set", "tiers.gpu.capacity=0"),
        *("--nodes", "2", "--prices", prices, "-o", out, *options), **kwargs,
    )  # fmt: skip


def naive_cost(trace, last, store, dram, size, span_s=None):
    """Return what a fleet of two costs a month, from the rows of its trace."""
    dram_month = 2 * 4000 * bytes_of(dram) / 2**30 / 48
    rows = read_table(trace, TRACE).to_pylist()
    # To the last arrival, or the last row.
    span_s = span_s or max(149 * 4, rows[-1]["ts_ns"] / 1e9)
    if store == "no storage":
        assert {row["tier"] for row in rows} <= {0, 1}
        return dram_month
    here = [row for row in rows if row["tier"] == last]
    if store == "a bucket":
        ops = Counter(row["op"] for row in here)
        stored = sum(
            {"write": 1, "delete": -1}.get(row["op"], 0) * row["length_bytes"] for row in here
        )
        requests = (ops["write"] * 0.00001 + ops["read"] * 0.000001) / 1000 * MONTH_S / span_s
        return dram_month + requests + stored / 1e9 * 0.5
    written = Counter()
    for row in here:
        if row["op"] == "write":
            written[row["node"] if store == "a drive in each node" else 0] += row["length_bytes"]
    places = range(2) if store == "a drive in each node" else range(1)
    total = dram_month
    for place in places:
        price = (100 if len(places) == 2 else 150) * bytes_of(size) / 2**30 / 48
        rated = 3 * 5 * 365 * bytes_of(size) if len(places) == 2 else 10**15
        years = rated / (written[place] / span_s * 365 * 86400)
        total += price * max(1.0, 4 / years)
    return total


@pytest.mark.full
def test_the_answer_is_the_cheapest_of_all_that_can_be_bought(requests, tmp_path):
    found = json.loads(plan(requests, tmp_path / "out", "--target-hit", "55%", "--json").stdout)
    rows = read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()
    begin = rows[0]["command"].split(" --preset ")[0]
    best, tried, kinds = None, 0, {}
    stores = [
        ("a drive in each node", NVME),
        ("a shared file store", FILE),
        ("a bucket", "-"),
        ("no storage", "-"),
    ]
    for (store, sizes), router, dram in itertools.product(stores, ("round-robin", "prefix"), DRAM):
        for size in sizes:
            own = [r for r in rows if (r["knob.store"], r["knob.router"], r["knob.DRAM a node"], r["knob.size"])
                   == (store, router, dram, size)]  # fmt: skip
            preset, tier = ("lmcache-s3", "s3") if store == "a bucket" else ("lmcache-disk", "nvme")
            more = [f"tiers.cpu.capacity={dram}"]
            if store != "no storage":
                more.append(
                    f"tiers.{tier}.scope={'node' if tier == 'nvme' and len(sizes) == 3 else 'fleet'}"
                )
            if store == "a bucket":
                prices = {
                    "put_price_per_1000": 0.00001,
                    "get_price_per_1000": 0.000001,
                    "price_per_gb_month": 0.5,
                }
                more += [
                    "tiers.nvme.capacity=0",
                    *(f"tiers.s3.{name}={of!r}" for name, of in prices.items()),
                ]
            else:
                more.append(f"tiers.nvme.capacity={'0' if size == '-' else size}")
            if len(sizes) == 3:
                more += ["tiers.nvme.read_bandwidth=2GB", "tiers.nvme.write_bandwidth=1GB"]
            argv = [*shlex.split(begin), "--preset", preset, "--router", router]
            argv += [part for of in more for part in ("--set", of)]
            trace = tmp_path / "t.parquet"
            stats = json.loads(run_cli(*argv, "-o", trace, "--force", "--json").stdout)["stats"]
            hit_ratio, cost = (
                stats["fleet"]["hit_ratio"],
                naive_cost(trace, len(stats["tiers"]) - 1, store, dram, size),
            )
            if own:
                assert (own[0]["hit_ratio"], own[0]["price"]) == (
                    pytest.approx(hit_ratio),
                    pytest.approx(cost, rel=2e-3),
                )
                tried += 1
            if hit_ratio >= 0.55 and not stats.get("stalled_requests"):
                kinds[store, router] = min(cost, kinds.get((store, router), cost))
                best = min(best or (cost, ""), (cost, f"{dram} of DRAM a node and {store}"))
    assert 0 < tried == len(rows) < 42
    assert len({store for store, _ in kinds}) == 4
    for (store, router), cost in kinds.items():
        costs = [
            fleet["cost_per_month"] for fleet in found["fleets"]
            if (fleet["store"], fleet["router"]) == (store, router)
            and fleet["hit_ratio"] >= 0.55 and not fleet["stalled_requests"]
        ]  # fmt: skip
        assert min(costs) == pytest.approx(cost, rel=2e-3)
    chosen = found["chosen"]
    assert chosen["cost_per_month"] == pytest.approx(best[0], rel=2e-3)
    parts = chosen["dram_cost_per_month"] + chosen["storage_cost_per_month"]
    assert parts == pytest.approx(chosen["cost_per_month"])
    assert best[1] in found["answer"]


def test_stores_that_never_fill_share_one_simulation(requests, tmp_path):
    sizes = '["64MiB", "256MiB", "1GiB", "4GiB", "16GiB"]'
    prices = PRICES.replace('["64MiB", "256MiB", "1GiB"]', sizes)
    (tmp_path / "prices.toml").write_text(prices)
    out = tmp_path / "out"
    found = json.loads(
        plan(requests, out, "--target-hit", "99%", "--json", prices=tmp_path / "prices.toml").stdout
    )
    rows = read_table(out / "results.parquet", STUDY).to_pylist()
    kept = list((out / "simulated").glob("*.json"))
    assert len(rows) == len(found["fleets"]) == 54
    assert 12 < len(kept) < 54  # a bucket and no storage: 12; of stores only sizes that fill
    checked = [row for row in rows if row["knob.store"] == "a drive in each node"]
    for row in checked[::4]:
        task = Task("key", tuple(shlex.split(row["command"])[2:]), str(tmp_path))
        alone = simulate(replace(task, file_sha256=files_sha256(requests)))
        assert alone.hit_ratio == row["hit_ratio"]
        assert alone.first_token_ns("p99_ns") == row["first_token_p99_ns"]
        for tier in alone.tiers:
            figures = {f"tier.{tier.name}.{name}": of for name, of in tier.figures().items()}
            assert {name: of for name, of in figures.items() if name in row} == {
                name: of for name, of in row.items() if name.startswith(f"tier.{tier.name}.")
            }


def test_a_restart_and_a_lost_node_are_those_of_gen(requests, tmp_path):
    found = json.loads(
        plan(
            requests, tmp_path / "out", "--target-hit", "55%", "--router", "prefix", "--json"
        ).stdout
    )
    assert list(found["events"]) == ["nothing happens", "an engine restarts", "a node is lost"]
    hits = {}
    for name, event in found["events"].items():
        made = run_cli(
            *shlex.split(event["command"]), "-o", tmp_path / "t.parquet", "--force", "--json"
        )
        stats = json.loads(made.stdout)["stats"]
        assert event["hit_ratio"] == stats["fleet"]["hit_ratio"]
        (around,) = (w for w in stats["incidents"]["around"] if ":node-joined:" not in w["event"])
        steps = event["hit_steps"]
        assert steps == around["steps"]
        # Every hit is a read of phase load, except from the end of the last whole step on.
        rows = read_table(tmp_path / "t.parquet", TRACE)
        end_ns = around["at_ns"] + len(steps["hits"]) * 10 * 10**9
        reads = [
            ts
            for ts, phase in zip(rows["ts_ns"].to_pylist(), rows["phase"].to_pylist(), strict=True)
            if phase == "load" and around["at_ns"] <= ts < end_ns
        ]
        by_step = Counter((ts - around["at_ns"]) // (10 * 10**9) for ts in reads)
        assert steps["hits"] == [by_step[k] for k in range(len(steps["hits"]))]
        hits[name] = [
            h / n if n else None for h, n in zip(steps["hits"], steps["lookups"], strict=True)
        ]
        windows = {w["window"]: w for w in around["windows"]}
        if around["over_ns"] == around["at_ns"]:
            assert sum(steps["lookups"][:6]) == windows["minute 1 after"]["lookups"]
    # Both incidents empty GPU memory and DRAM of one of two nodes: hits are not back at once.
    usual = hits["nothing happens"]
    for name in ("an engine restarts", "a node is lost"):
        back_ns = found["events"][name]["hits_back_ns"]
        first = len(usual) if back_ns is None else back_ns // (10 * 10**9)
        assert first > 0
        assert all(
            hits[name][k] is None or usual[k] is None or hits[name][k] < usual[k] - 0.01
            for k in range(min(first, 1))
        )
    shown = plan(requests, tmp_path / "out", "--target-hit", "55%", "--router", "prefix")
    assert shows(shown.stdout, "2 nodes, router prefix")
    assert "simulated before" in shown.stderr
    for line in (
        "nothing happens",
        "an engine restarts",
        "a node is lost",
        "DRAM: made up",
    ):
        assert line in shown.stdout


def test_hits_are_back_where_the_undisturbed_run_has_no_more():
    def steps(*hits):
        return HitSteps(10**10, [100] * len(hits), list(hits))

    usual = steps(54, 36, 44, 50, 50, 50, 50, 50, 50)
    # The run: never back in its three steps, though it was called back after 10 s.
    assert hits_back_ns(steps(38, 29, 36), steps(54, 36, 44)) is None
    assert hits_back_ns(usual, usual) == 0
    # One good step is not enough: the minute from it on must be as undisturbed, too.
    assert hits_back_ns(steps(54, 10, 10, 49, 49, 50, 50, 50, 50), usual) == 3 * 10**10
    assert hits_back_ns(None, usual) is None
    away = HitSteps(10**10, [0, 0, 100], [0, 0, 50])
    assert hits_back_ns(away, steps(50, 50, 50)) == 2 * 10**10


def test_a_node_lost_at_the_end_of_a_load_does_not_return(requests, tmp_path):
    """It was left out without a word: no simulation takes an event after its end."""
    users = [
        "--model",
        "tiny-1b",
        "--nodes",
        "2",
        "--users",
        "4",
        "--duration",
        "20s",
        "--target-hit",
        "1%",
    ]
    users += [
        "--prices",
        requests.parent / "prices.toml",
        "-o",
        tmp_path / "out",
        "--router",
        "session",
    ]
    done = run_cli("kvtrace", "plan", *users)
    assert "lost node" in done.stdout
    assert "kvtrace gen" in done.stdout
    assert done.stdout.rstrip().endswith("--event 10s:node-lost:0")
    split = run_cli("kvtrace", "plan", *users, "--prefill-nodes", "1")
    why = "--event 10s:node-lost:0:"
    assert shows(split.stderr, why)


def test_what_nothing_reaches(requests, tmp_path):
    done = plan(requests, tmp_path / "out", "--target-hit", "99%", "--quiet")
    assert done.stderr == ""
    assert shows(done.stdout, "99 %: … 2 nodes")


def test_the_nearest_time_to_first_token_is_the_shortest(requests, tmp_path):
    done = plan(
        requests, tmp_path / "out", "--target-ttft", "p99=1us", "--gpu", "a100", "--quiet", "--json"
    )
    assert shows(json.loads(done.stdout)["answer"], "p99 1.00 µs")
    times = [
        row["first_token_p99_ns"]
        for row in read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()
    ]
    shown = plan(
        requests, tmp_path / "out", "--target-ttft", "p99=1us", "--gpu", "a100", "--quiet"
    ).stdout
    (nearest,) = [
        line
        for line in shown.splitlines()
        if line.startswith(("a shared", "a drive", "a bucket", "no storage"))
    ]
    assert len(set(times)) > 1
    assert format_duration(min(times)) in nearest


def test_nothing_is_bought_that_the_stack_does_not_use(requests, tmp_path):
    """A drive that DRAM keeps idle, and DRAM of a stack that has none, were in the answer."""
    users = [
        "--users",
        "8",
        "--duration",
        "20s",
        "--target-hit",
        "1%",
        "--preset",
        "vllm-disk",
        "--model",
        "tiny-1b",
    ]
    done = run_cli(
        "kvtrace",
        "plan",
        *users,
        "--prices",
        requests.parent / "prices.toml",
        "-o",
        tmp_path,
        "--json",
    )
    found = json.loads(done.stdout)
    assert shows(found["answer"], "1 node: no storage, 0 EUR")
    assert {fleet["dram_bytes_per_node"] for fleet in found["fleets"]} == {None}
    # Users who wait ask less while the engine is away: what it computes then is not 'more'.
    shown = run_cli(
        "kvtrace", "plan", *users, "--prices", requests.parent / "prices.toml", "-o", tmp_path
    ).stdout
    (line,) = [
        line.split() for line in shown.splitlines() if line.startswith("an engine restarts ")
    ]
    assert (int(line[3]), line[4]) == (found["events"]["an engine restarts"]["requests"], "-")


def test_a_p99_of_too_few_requests_is_not_one_that_is_missed(requests, tmp_path):
    argv = [
        "--model",
        "tiny-1b",
        "--users",
        "1",
        "--duration",
        "60s",
        "--target-ttft",
        "p99=1s",
        "-o",
        tmp_path,
    ]
    done = run_cli("kvtrace", "plan", *argv, "--prices", requests.parent / "prices.toml", "--quiet")
    assert shows(done.stdout, "p99 1.00 s … unknown")
    median = run_cli(
        "kvtrace",
        "plan",
        *argv[:-4],
        "--target-ttft",
        "p50=9s",
        *argv[-2:],
        "--prices",
        requests.parent / "prices.toml",
    )
    assert re.match(
        r"1 node: .*p50 [0-9.]+ m?s.*p50 9.00 s",
        median.stdout,
    )


def test_falling_behind_makes_storage_no_cheaper(requests, tmp_path):
    """Costs are of the 596 ms in which requests come, not of how long the fleet takes for them."""
    plan(requests, tmp_path / "out", "--target-hit", "5%", "--time-scale", "0.001", "--gpu", "a100")
    rows = read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()
    row = next(row for row in rows if row["knob.store"] == "a bucket")
    made = json.loads(
        run_cli(*shlex.split(row["command"]), "-o", tmp_path / "t.parquet", "--json").stdout
    )
    stated = ("a bucket", row["knob.DRAM a node"], "-", 0.596)
    assert row["span_ns"] > 2 * 596 * 10**6
    assert row["price"] == pytest.approx(
        naive_cost(tmp_path / "t.parquet", len(made["stats"]["tiers"]) - 1, *stated)
    )


def test_a_stack_whose_slowest_tier_is_a_bucket_or_memory(requests, tmp_path):
    found = json.loads(
        plan(
            requests, tmp_path / "a", "--preset", "vllm-obj", "--target-hit", "5%", "--json"
        ).stdout
    )
    assert {fleet["store"] for fleet in found["fleets"]} == {"a bucket", "no storage"}
    refused = plan(
        requests,
        tmp_path / "b",
        "--preset",
        "vllm-offload-cpu",
        "--target-hit",
        "5%",
        "--router",
        "prefix",
        check=False,
    )
    assert (
        refused.returncode,
        shows(refused.stderr, "vllm-offload-cpu: … cpu"),
    ) == (2, True)
    assert "[default: lmcache-disk]" in " ".join(
        run_cli("kvtrace", "plan", "--help").stdout.split()
    )


@pytest.mark.parametrize(
    ("prices", "options", "message"),
    [
        (PRICES, [], "--target-hit 60% … --target-ttft p99=2s"),
        (
            PRICES.replace("years = 4", "years = 0"),
            ["--target-hit", "50%"],
            "prices.toml: years: … > 0",
        ),
        (
            PRICES.replace('sizes = ["128MiB", "2GiB"]\n', ""),
            ["--target-hit", "50%"],
            "prices.toml: file:",
        ),
        (
            PRICES.replace("4000/GiB", "dear"),
            ["--target-hit", "50%"],
            "prices.toml:",
        ),
        (PRICES.replace("[nvme]", "[nvmes]"), ["--target-hit", "50%"], "nvme"),
        (
            PRICES.replace("3DWPD,5y", "much"),
            ["--target-hit", "50%"],
            "--endurance much: … 1DWPD,5y",
        ),
        (
            PRICES.partition("[nvme]")[0],
            ["--target-hit", "50%"],
            "prices.toml: … lmcache-disk",
        ),
        # Each fleet was simulated with that, and called by the routers and the sizes that a plan
        # tries.
        (
            PRICES,
            ["--target-hit", "50%", "--set", "fleet.router=session"],
            "fleet.router=session:",
        ),
        (
            PRICES,
            ["--target-hit", "50%", "--set", "tiers.nvme.capacity=1GB"],
            "tiers.nvme.capacity=1GB: a plan sets",
        ),
        (
            PRICES,
            ["--target-hit", "50%", "--set", "tiers.nvme.write_bandwidth=9GB"],
            "bandwidth=9GB:",
        ),
    ],
)
def test_what_is_refused(requests, tmp_path, prices, options, message):
    path = tmp_path / "prices.toml"
    path.write_text(prices)
    done = plan(requests, tmp_path / "out", *options, prices=path, check=False)
    assert (done.returncode, shows(done.stderr, message)) == (2, True), done.stderr
    assert not (tmp_path / "out" / "results.parquet").exists()


def test_a_router_needs_several_nodes(requests, tmp_path):
    given = [
        requests,
        "--source",
        "mooncake",
        "--model",
        "tiny-1b",
        "--target-hit",
        "50%",
        "-o",
        tmp_path / "out",
    ]
    done = run_cli("kvtrace", "plan", *given, "--router", "prefix", check=False)
    assert (done.returncode, shows(done.stderr, "--router … --nodes")) == (
        2,
        True,
    )


def test_a_drive_slower_than_computing_is_not_planned(requests, tmp_path):
    """A drive of 20 MB/s reaches the hit rate for less than DRAM does, but nobody would wait."""
    dram, nvme = PRICES[: PRICES.index("[file]")].split("[nvme]")
    answers = {}
    for rate in ("50GB", "20MB"):
        prices = tmp_path / f"{rate}.toml"
        slower = nvme.replace('read_bandwidth = "2GB"', f'read_bandwidth = "{rate}"')
        little = dram.replace('"16MiB", "64MiB", "4GiB"', '"256MiB", "4GiB"')
        prices.write_text(f"{little}[nvme]{slower}")
        done = plan(
            requests, tmp_path / rate, "--target-hit", "55%", "--gpu", "h100", "--json",
            prices=prices,
        )  # fmt: skip
        answers[rate] = json.loads(done.stdout)["chosen"]
    fast, slow = answers["50GB"], answers["20MB"]
    assert fast["store"] == "a drive in each node"
    assert slow["store"] == "no storage"
    assert slow["cost_per_month"] > fast["cost_per_month"]
    assert slow["hit_ratio"] >= 0.55


def test_json_has_the_figures_of_the_text(requests, tmp_path):
    """Every figure of the table's first row, and of the first line, is in `chosen`."""
    options = ("--target-hit", "55%", "--router", "prefix", "--gpu", "h100")
    text = plan(requests, tmp_path / "out", *options).stdout
    found = json.loads(plan(requests, tmp_path / "out", *options, "--json").stdout)
    chosen = found["chosen"]
    assert found["answer"] == text.splitlines()[0]
    assert f"{100 * chosen['hit_ratio']:.1f} %" in found["answer"]
    assert f"extrapolated from {format_duration(chosen['load_ns'])}" in found["answer"]
    assert chosen["hit_ratio"] >= 0.55
    assert chosen["stalled_requests"] == 0
    cost = re.search(r"storage, |of \d+\w+, ", found["answer"])
    assert cost is not None
    assert found["fleets"][0] == chosen
    if chosen["most_drive_writes_per_day"] is not None:
        assert f"{chosen['most_drive_writes_per_day']:,.4g}" in text
