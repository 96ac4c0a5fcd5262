"""`kvtrace size`.

Every point of a grid equals `gen`, samples say how far off they may be, the first line answers.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from conftest import TRACES, run_cli
from phrases import shows

import kvtrace
from kvtrace.core.config import as_setting
from kvtrace.core.units import NS_PER_S

MIB = 2**20
EXAMPLE = Path(__file__).parents[3] / "examples/conversation.jsonl"


def write_requests(path, count, seed, *, blocks=6, prefixes=12):
    """Write requests that share prefixes, some more often than others.

    And last blocks that are their own.
    """
    draw = random.Random(seed)  # noqa: S311 - the same each time
    chains = [[100 * n + k for k in range(draw.randint(1, blocks))] for n in range(prefixes)]
    lines = []
    for n in range(count):
        shared = chains[min(int(draw.expovariate(0.4)), prefixes - 1)]
        own = [10_000 + 10 * n + k for k in range(draw.randint(1, 3))]
        ids = [*shared[: draw.randint(1, len(shared))], *own]
        tokens = 512 * len(ids) - draw.randint(0, 511)
        lines.append(
            {"timestamp": 700 * n, "input_length": tokens, "output_length": 8, "hash_ids": ids}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def requests(tmp_path):
    return write_requests(tmp_path / "r.jsonl", 250, 3)


def size(*args, check=True):
    return run_cli("kvtrace", "size", *args, check=check)


def sized(*args):
    return json.loads(size(*args, "--json").stdout)


PAGE_TOKENS = 64
"""Tokens of an object of sglang-hicache."""
TOKEN_BYTES = 24576
"""Bytes of a token of tiny-1b."""
GIVEN = ["--source", "mooncake", "--model", "tiny-1b", "--set", "tiers.gpu.capacity=64MiB"]
PRESETS = {
    "vllm-fs": ([], ("cpu", "nvme")),
    "vllm-offload-cpu": (["--tp", "2"], ("cpu",)),
    "lmcache-disk": (["--tp", "2"], ("cpu", "nvme")),
    "lmcache-layerwise": ([], ("cpu", "nvme")),
    "lmcache-mp": ([], ("cpu", "nvme")),
    "mooncake-store": ([], ("cpu", "nvme")),
    "kvbm": (["--set", "placement=write-back"], ("cpu", "nvme")),
    "sglang-hicache": (["--set", "tiers.cpu.policy=s3fifo"], ("cpu", "nvme")),
    "llm-d-fs": ([], ("nvme",)),
    "mlperf": ([], ("cpu", "nvme")),
}
ROLES = {"cpu": "dram", "nvme": "nvme"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_point_is_what_gen_counts(requests, tmp_path, preset):
    options, tiers = PRESETS[preset]
    draw = random.Random(preset)  # noqa: S311 - the same each time
    axes = {tier: [draw.randrange(0, 600 * MIB), None] for tier in tiers}
    given = [requests, "--source", "mooncake", "--gpu", "instant"]
    if preset == "mlperf":
        given = ["--users", "6", "--duration", "60s"]
    given += ["--model", "tiny-1b", "--set", "tiers.gpu.capacity=64MiB", *options]
    stated = [
        part
        for tier, of in axes.items()
        for part in (f"--{ROLES[tier]}", ",".join(f"{c}B" if c else "unlimited" for c in of))
    ]
    found = sized(*given, "--preset", preset, *stated, "--target-hit", "1%")
    assert len(found["points"]) == 2 ** len(tiers)
    for point in found["points"]:
        held = {tier: point["capacities"][ROLES[tier]] for tier in tiers}
        settings = [
            ("--set", as_setting(f"tiers.{t}.capacity", "unlimited" if of is None else of))
            for t, of in held.items()
        ]
        arguments = [*given, "--preset", preset, *(a for s in settings for a in s)]
        made = json.loads(
            run_cli(
                "kvtrace", "gen", *arguments, "-o", tmp_path / "t.parquet", "--json", "--force"
            ).stdout
        )
        compare(point, made["stats"])


def compare(point, stats):
    assert point["sampling_rate"] == 1
    assert point["lookups"] == stats["lookups"]
    assert point["hit_ratio"] == pytest.approx(1 - stats["misses"] / stats["lookups"], abs=1e-12)
    span_s = point["span_ns"] / NS_PER_S
    for mine, other in zip(point["tiers"], stats["tiers"], strict=True):
        for name in (
            "name",
            "hits",
            "hit_ratio",
            "read_bytes",
            "written_bytes",
            "deleted_bytes",
            "populated_bytes",
        ):
            assert mine[name] == other[name], name
        # By the second, from the rows: together what the counters say.
        assert mine["rates"]["read_bytes_per_s"]["mean"] * span_s == pytest.approx(
            other["read_bytes"]
        )
        assert mine["rates"]["write_bytes_per_s"]["mean"] * span_s == pytest.approx(
            other["written_bytes"]
        )


def test_saved_tokens_are_those_of_the_chunks_that_hit(requests):
    found = sized(
        requests,
        *GIVEN,
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "1%",
        "--dram",
        "0",
        "--nvme",
        "4GiB",
    )
    (point,) = found["points"]
    hits = sum(tier["hits"] for tier in point["tiers"])
    assert hits > 100
    assert point["saved_tokens"] == 256 * hits
    assert point["saved_tokens"] < point["input_tokens"]


@pytest.mark.first(preset=1)
@pytest.mark.parametrize("preset", ["vllm-fs", "lmcache-disk", "trtllm"])
def test_samples_are_as_far_off_as_they_say(tmp_path, preset):
    path = write_requests(tmp_path / "many.jsonl", 2000, 8, blocks=12, prefixes=400)
    given = [
        path,
        *GIVEN,
        "--preset",
        preset,
        "--target-hit",
        "20%",
        "--dram",
        "32MiB,4GiB",
        "--nvme",
        "4GiB,8GiB,16GiB",
    ]
    sampled, full = sized(*given, "--sample", "0.1"), sized(*given, "--sample", "1")
    assert sampled["basis"]["points"] == "sampled"
    assert full["basis"]["points"] == "simulated"
    for estimated, point in zip(sampled["points"], full["points"], strict=True):
        if point["capacities"]["dram"] == 32 * MIB:
            # A sample would have fewer than 64 objects there.
            assert estimated == point
            continue
        assert estimated["sampling_rate"] == 0.1
        assert 0 < estimated["hit_ratio_error"] < 0.1
        assert estimated["hit_ratio"] == pytest.approx(
            point["hit_ratio"], abs=estimated["hit_ratio_error"]
        )
        assert estimated["tiers"][-1]["written_bytes"] == pytest.approx(
            point["tiers"][-1]["written_bytes"], rel=0.1
        )
        assert estimated["tiers"][-1]["rates"]["read_bytes_per_s"]["p99_second"] is None
    # What is chosen, and the ceiling, are exact.
    assert sampled["chosen"] == full["chosen"]
    assert sampled["ceiling"] == full["ceiling"]


def test_the_least_dram_without_stalls_or_the_cheapest_wins(requests):
    given = [
        requests,
        *GIVEN,
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "25%",
        "--nvme",
        "64MiB,2GiB",
    ]
    # Where the engine stalls with every capacity that reaches the target, the answer says so.
    stalling = sized(*given, "--dram", "32MiB")
    assert (stalling["chosen"]["capacities"]["dram"], stalling["answer"][:18]) == (
        32 * MIB,
        "ENGINE WOULD STALL",
    )
    given += ["--dram", "32MiB,2GiB"]
    least = sized(*given)
    reached = [p["capacities"] for p in least["points"] if p["hit_ratio"] >= 0.25]
    assert reached == [
        {"dram": a * MIB, "nvme": b * MIB} for a, b in ((32, 2048), (2048, 64), (2048, 2048))
    ]
    assert (least["chosen"]["capacities"], least["chosen"]["stalled_requests"]) == (reached[1], 0)
    cheap = sized(*given, "--price", "dram=1/GiB", "--price", "nvme=8/GiB")
    assert cheap["chosen"]["capacities"] == reached[1]
    assert cheap["chosen"]["price"] == pytest.approx(2 * 1 + 8 / 16)


def test_without_prices_none_stalls_where_more_dram_hits_less():
    """The grid's first has 128 MB of DRAM, which 42 requests never fit.

    With DRAM for all it misses the target.
    """
    chosen = sized(
        EXAMPLE, "--limit", "250", "--model", "deepseek-v3", "--tp", "8", "--set", "tiers.gpu.capacity=256MiB",
        "--preset", "lmcache-disk", "--target-hit", "35%",
    )["chosen"]  # fmt: skip
    assert (chosen["stalled_requests"], chosen["hit_ratio"] >= 0.35) == (0, True)


def test_the_answer_is_refined_between_two_capacities(requests):
    asked = [requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "25%"]
    found = sized(*asked)
    chosen, grid = found["chosen"], [p for p in found["points"] if p != found["chosen"]]
    assert len(grid) == 20
    # Of the grid it would be this one.
    first = min(
        (p["capacities"]["dram"], p["capacities"]["nvme"]) for p in grid if p["hit_ratio"] >= 0.25
    )
    dram, nvme = chosen["capacities"]["dram"], chosen["capacities"]["nvme"]
    assert chosen["hit_ratio"] >= 0.25
    assert chosen["stalled_requests"] == 0
    assert nvme < first[1]
    for less_dram, less_nvme in ((int(dram / 1.03), first[1]), (dram, int(nvme / 1.03))):
        less = sized(*asked, "--dram", f"{less_dram}B", "--nvme", f"{less_nvme}B")["chosen"]
        assert less is None or less["stalled_requests"] > 0
    # Where it is given, it is not searched.
    assert sized(*asked, "--dram", f"{first[0]}B")["chosen"]["capacities"]["dram"] == first[0]


@pytest.mark.parametrize("nvme", ["1GiB", "unlimited"])
def test_with_given_nvme_the_least_dram_without_stalls_wins(requests, nvme):
    asked = [requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "25%", "--nvme", nvme]
    chosen = sized(*asked)["chosen"]
    assert (chosen["stalled_requests"], chosen["hit_ratio"] >= 0.25) == (0, True)
    less = sized(*asked, "--dram", f"{int(chosen['capacities']['dram'] / 1.03)}B")["chosen"]
    assert less is None or less["stalled_requests"] > 0


def test_dram_beyond_the_grid_is_found_for_little_nvme(requests):
    asked = [requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "40%", "--nvme", "64MiB"]
    found = sized(*asked)
    dram, grid = (
        found["chosen"]["capacities"]["dram"],
        [p for p in found["points"] if p != found["chosen"]],
    )
    assert dram > max(point["capacities"]["dram"] for point in grid)
    assert (found["chosen"]["stalled_requests"], found["chosen"]["hit_ratio"] >= 0.4) == (0, True)
    assert sized(*asked, "--dram", f"{int(dram / 1.03)}B")["chosen"] is None


def test_beside_unlimited_dram_no_nvme_is_needed(requests):
    asked = [requests, *GIVEN, "--preset", "vllm-fs", "--target-hit", "25%", "--dram", "unlimited"]
    for prices in ([], ["--price", "dram=4/GiB", "--price", "nvme=0.1/GiB"]):
        done = size(*asked, *prices)
        assert shows(done.stdout, "unlimited DRAM")
        assert ("no price" in done.stderr) == bool(prices)


@pytest.mark.parametrize("nvme", ["1GiB", "unlimited"])
def test_the_cheapest_that_never_starts_is_no_answer(requests, nvme):
    """Without DRAM, vLLM's loads have no pool to go through, and most requests never start."""
    asked = [
        requests,
        *GIVEN,
        "--preset",
        "vllm-fs",
        "--nvme",
        nvme,
        "--price",
        "dram=4/GiB",
        "--price",
        "nvme=1/GiB",
    ]
    none = sized(*asked, "--dram", "0", "--target-hit", "25%")["chosen"]
    assert none["hit_ratio"] > 0.3
    assert none["stalled_requests"] > 100
    found = sized(*asked, "--target-hit", "30%")
    assert found["chosen"]["stalled_requests"] == 0
    assert found["chosen"]["capacities"]["dram"] >= none["largest_load_bytes"]
    assert found["rejected"]["stalled_requests"] > 0


def test_what_the_gpu_reaches_by_itself_takes_no_dram(requests):
    given = [
        *GIVEN[:-1],
        "tiers.gpu.capacity=64GiB",
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "30%",
    ]
    said = size(requests, *given).stdout.splitlines()[0]
    assert shows(said, "no DRAM … 68.7 GB … GPU")
    assert (
        sized(requests, *given, "--price", "dram=4/GiB", "--price", "nvme=0.1/GiB")["chosen"][
            "price"
        ]
        == 0
    )


def test_a_target_that_no_capacity_reaches(requests):
    done = size(requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "99%")
    ceiling = sized(requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "99%")["ceiling"][
        "hit_ratio"
    ]
    assert shows(
        done.stdout.splitlines()[0], f"99 % … {100 * ceiling:.1f} % … 99 % … unlimited DRAM"
    )
    assert 0.2 < ceiling < 0.9


def test_a_grid_that_is_too_small_says_what_would_do(requests):
    done = size(
        requests,
        *GIVEN,
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "25%",
        "--dram",
        "0",
        "--nvme",
        "8MiB",
    )
    first = done.stdout.splitlines()[0]
    assert shows(first, "none … enough")
    assert shows(first, "no DRAM … 8.39 MB … NVMe")
    assert "unlimited DRAM" in first


def test_no_policy_exceeds_the_optimum(requests):
    found = sized(requests, *GIVEN, "--preset", "vllm-fs", "--target-hit", "10%")
    assert all(
        p["hit_ratio"] <= p["optimal_hit_ratio"] <= found["ceiling"]["hit_ratio"]
        for p in found["points"]
    )
    assert any(p["hit_ratio"] < p["optimal_hit_ratio"] for p in found["points"])


def test_the_time_to_the_first_token_is_that_of_gen(tmp_path):
    given = ["--users", "20", "--duration", "30s", "--preset", "lmcache-disk"]
    given += ["--set", "tiers.gpu.capacity=1GiB", "--set", "tiers.nvme.read_bandwidth=1GB"]
    capacities = ["--dram", "1GiB,64GiB", "--nvme", "1TiB"]
    found = sized(*given, *capacities, "--target-ttft", "p95=10s")
    for point in found["points"]:
        settings = [("cpu", point["capacities"]["dram"]), ("nvme", point["capacities"]["nvme"])]
        stated = [
            a for tier, of in settings for a in ("--set", as_setting(f"tiers.{tier}.capacity", of))
        ]
        made = run_cli(
            "kvtrace", "gen", *given, *stated, "-o", tmp_path / "t.parquet", "--json", "--force"
        )
        first_token = json.loads(made.stdout)["stats"]["first_token"]
        assert point["first_token"]["with_cache"] == first_token["with_cache"]
        # The baseline has no capacities but GPU memory's, so it is the same for all points.
        assert found["ceiling"]["first_token"]["without_offload"] == first_token["without_offload"]
    assert set(found["basis"].values()) == {"simulated", "modelled"}
    times = [point["first_token"]["with_cache"]["p95_ns"] for point in found["points"]]
    assert times[0] != times[1]
    limit = sum(times) / 2 / NS_PER_S
    chosen = sized(*given, *capacities, "--target-ttft", f"p95={limit:.9f}s")["chosen"]
    assert chosen["first_token"]["with_cache"]["p95_ns"] == min(times)


def test_wear_by_hand(requests):
    given = [
        requests,
        *GIVEN,
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "1%",
        "--dram",
        "1GiB",
        "--nvme",
        "1GiB",
    ]
    found = sized(*given, "--endurance", "2DWPD,5y")["chosen"]["tiers"]
    drive = found[-1]
    per_day = drive["written_bytes"] / (249 * 0.7) * 86_400
    assert drive["drive_writes_per_day"] == pytest.approx(per_day / 2**30)
    assert drive["life_years"] == pytest.approx(2 * 5 / (per_day / 2**30))
    assert [tier["drive_writes_per_day"] for tier in found[:-1]] == [None, None]
    in_all = sized(*given, "--endurance", "1PB")["chosen"]["tiers"][-1]
    assert in_all["life_years"] == pytest.approx(10**15 / per_day / 365)
    assert sized(*given)["chosen"]["tiers"][-1]["life_years"] is None


def test_the_page(requests, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "size.html"
    first = size(
        requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "25%", "--plot", page
    ).stdout.splitlines()[0]
    text = page.read_text()
    assert f'<p class="headline">{first}</p>' in text
    assert re.search("<h1>.*r.jsonl</h1>", text)
    assert 'aria-label="Hits against NVMe' in text


def test_users_have_capacities_that_suit_them():
    found = sized(
        *(
            "--users",
            "4",
            "--duration",
            "30s",
            "--model",
            "tiny-1b",
            "--preset",
            "lmcache-disk",
            "--target-hit",
            "1%",
        ),
        *("--set", "tiers.gpu.capacity=0"),
    )
    capacities = [(p["capacities"]["dram"], p["capacities"]["nvme"]) for p in found["points"]]
    chosen = found["chosen"]["capacities"]["dram"]
    assert len({dram for dram, _ in capacities} - {chosen}) == 2
    largest = max(nvme for _, nvme in capacities)
    assert largest / 2 < found["ceiling"]["live_bytes"] <= largest
    assert found["points"][-1]["hit_ratio"] == found["ceiling"]["hit_ratio"]
    # They ask sooner where computing takes no time, which they are spared only if that is said.
    assert found["serving"]["gpu"] == "h100"


def test_the_printed_command_makes_the_trace_of_the_answer(tmp_path):
    """Its --gpu took away what the preset says of computing.

    Users asked sooner, and 20 % hit where 50 % did.
    """
    users = ["--users", "6", "--duration", "30s", "--model", "tiny-1b", "--preset", "mlperf"]
    users += ["--set", "workload.rag_share=0.2", "--set", "tiers.gpu.capacity=64MiB"]
    found = sized(*users, "--target-hit", "50%")["chosen"]
    (note,) = (
        line
        for line in size(*users, "--target-hit", "50%").stdout.splitlines()
        if "kvtrace gen" in line
    )
    more = note.partition(" options and ")[2].split()
    made = run_cli("kvtrace", "gen", *users, *more, "-o", tmp_path / "t.parquet", "--json")
    stats = json.loads(made.stdout)["stats"]
    assert sum(tier["hits"] for tier in stats["tiers"]) / stats["lookups"] == found["hit_ratio"]


def test_a_file_is_served_in_its_order_unless_a_gpu_is_said(requests):
    given = [
        requests,
        *GIVEN,
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "1%",
        "--dram",
        "0",
        "--nvme",
        "1GiB",
    ]
    assert sized(*given)["serving"]["gpu"] == "instant"
    timed = sized(*given, "--gpu", "l40s")
    assert timed["serving"]["gpu"] == "l40s"
    assert timed["chosen"]["first_token"]["requests"] == 250


REFUSED = {
    "no target": ([], "--target-hit 80% … --target-ttft p99=2s"),
    "over all": (["--target-hit", "120%"], "--target-hit 120%: … 0 … 100%"),
    "no share": (["--target-hit", "80"], "80 % … written 80%"),
    "no number": (["--target-hit", "most"], "80% … 0.8"),
    "percentile": (["--target-ttft", "p98=2s"], "percentiles … p50, p95, p99, p99.9, p99.99"),
    "no time": (["--target-ttft", "p99"], "p99=2s"),
    "no computing": (["--target-ttft", "p99=2s", "--gpu", "instant"], "--gpu instant"),
    "price of what": (["--target-hit", "1%", "--price", "tape=1/GiB"], "dram … nvme … tape"),
    "price of all": (["--target-hit", "1%", "--price", "dram=1/GiB"], "--price: … nvme"),
    "price per what": (["--target-hit", "1%", "--price", "dram=4"], "dram=4/GiB"),
    "two prices": (["--target-hit", "1%", "--price", "dram=1/GiB", "--price", "dram=4/GiB"], "dram"),
    "no drive to wear": (
        ["--target-hit", "1%", "--preset", "vllm-obj", "--endurance", "1DWPD,5y"],
        "--endurance: … gpu, cpu, s3",
    ),
    "price unit": (["--target-hit", "1%", "--price", "dram=4/XiB"], "unit 'XiB'"),
    "endurance": (["--target-hit", "1%", "--endurance", "5y"], "--endurance 5y: … 1DWPD,5y"),
    "no endurance": (["--target-hit", "1%", "--endurance", "0DWPD,5y"], "--endurance 0DWPD,5y: … > 0"),
    "capacity": (["--target-hit", "1%", "--nvme", "many"], "'many'"),
    "capacity of what": (["--target-hit", "1%", "--dram", "1GiB,64"], "--dram 64: … 64GiB"),
    "fraction of what": (["--target-hit", "1%", "--nvme", "1.5"], "--nvme 1.5: … 1.5GiB"),
    "no such tier": (
        ["--target-hit", "1%", "--preset", "llm-d-fs", "--dram", "1GiB"], "--dram:",
    ),
    "sample": (["--target-hit", "1%", "--sample", "2"], "--sample 2: … 0 … 1"),
    "sample of buckets": (
        ["--target-hit", "1%", "--sample", "0.1", "--preset", "mooncake-store", "--gpu", "instant"],
        "attention without store_queue",
    ),
    "sample of turns": (["--target-hit", "1%", "--sample", "0.1", "--preset", "mlperf"], "sampling"),
    "nothing shared": (["--target-hit", "1%", "--preset", "mlperf"], "looks up"),
    "page": (["--target-hit", "1%", "--plot", "size.gif"], "--plot size.gif:"),
    "model": (["--target-hit", "1%", "--model", "llama-3.1-71b"], "llama-3.1-71b"),
}  # fmt: skip


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


@pytest.mark.parametrize(
    "command", [["size", "--target-hit", "30%", "--model", "tiny-1b"], ["mrc"]]
)
def test_hits_that_a_file_cannot_tell_are_not_said_to_be_none(tmp_path, command):
    path = tmp_path / "a.csv"
    path.write_text(AZURE)
    done = run_cli("kvtrace", *command, path, "--source", "azure", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert shows(done.stderr, "azure: … prefix")
    assert "hits" in done.stderr


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_one_line(requests, what):
    options, said = REFUSED[what]
    given = [] if "--model" in options else ["--model", "tiny-1b"]
    preset = [] if "--preset" in options else ["--preset", "lmcache-disk"]
    done = size(requests, "--source", "mooncake", *given, *preset, *options, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    error = done.stderr.strip().splitlines()[-1]
    assert shows(error, said)


@pytest.mark.parametrize("options", [[], ["--sample", "0.5"], ["--dram", "0", "--nvme", "1GB"]])
def test_prompts_of_no_whole_object_ask_for_nothing(tmp_path, options):
    """It ended with a division by zero."""
    path, line = (
        tmp_path / "r.jsonl",
        {"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]},
    )
    path.write_text(f"{json.dumps(line)}\n" * 2)
    done = size(
        path,
        "--model",
        "tiny-1b",
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "30%",
        *options,
        check=False,
    )
    assert (
        done.returncode,
        "looks up" in done.stderr,
    ) == (2, True)


def test_the_printed_command_says_what_is_unlimited(requests):
    """Without it the preset's 128 GiB of DRAM were simulated."""
    given = [requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "1%", "--nvme", "1GiB"]
    given += ["--dram", "unlimited"]
    assert (
        "--set tiers.cpu.capacity=unlimited --set tiers.nvme.capacity=1073741824B\n"
        in size(*given).stdout
    )


def test_a_capacity_that_is_set_is_not_searched(requests):
    given = [requests, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "1%", "--nvme", "1GiB"]
    found = sized(*given, "--set", "tiers.cpu.capacity=512MiB")
    assert [point["capacities"] for point in found["points"]] == [
        {"dram": 512 * MIB, "nvme": 1024 * MIB}
    ]
    # What is said of the sizes that are tried counts, as before.
    found = sized(*given, "--set", "tiers.cpu.capacity=512MiB", "--dram", "0,1GiB")
    assert {point["capacities"]["dram"] for point in found["points"]} == {0, 1024 * MIB}


def test_with_as_much_dram_as_is_named_none_stalls(tmp_path):
    """It said.

    ENGINE WOULD STALL in 6 of 12 requests, none with 2.75 GB of DRAM; 2.75 GB of DRAM and ...
    """
    path, prompts = tmp_path / "r.jsonl", [[1000 * p + at for at in range(41)] for p in range(3)]
    lines = [
        {
            "timestamp": 1000 * at,
            "input_length": 41 * 512,
            "output_length": 5,
            "hash_ids": prompts[at % 3],
        }
        for at in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [
        path,
        "--source",
        "mooncake",
        "--preset",
        "lmcache-disk",
        "--model",
        "llama3.1-8b",
        "--target-hit",
        "30%",
    ]
    given += ["--set", "tiers.gpu.capacity=0", "--nvme", "1TB"]
    # 41 blocks of 512 tokens of 128 KiB each are 2,751,463,424 bytes.
    assert shows(sized(*given, "--dram", "2.75GB")["answer"], "2.76 GB … DRAM … 2.75 GB … DRAM")
    assert shows(sized(*given, "--dram", "2.76GB")["answer"], "2.76 GB … DRAM … 1.00 TB … NVMe")


def test_models_by_the_names_that_people_type(requests):
    given = [
        requests,
        "--source",
        "mooncake",
        "--preset",
        "lmcache-disk",
        "--target-hit",
        "1%",
        "--dram",
        "1GiB",
    ]
    found = [
        sized(*given, "--nvme", "1TiB", "--model", model)["chosen"]
        for model in ("llama3.1-70b-instruct", "llama3.1-70b", "meta-llama/Llama-3.1-70B-Instruct")
    ]
    assert found[0] == found[1] == found[2] is not None


@pytest.mark.full
@pytest.mark.traces
def test_the_conversation_trace():
    path = TRACES / "mooncake_conversation.jsonl"
    given = [
        path,
        "--source",
        "mooncake",
        "--model",
        "llama3.1-70b",
        "--tp",
        "4",
        "--preset",
        "lmcache-disk",
    ]
    done = size(*given, "--target-hit", "80%")
    assert shows(done.stdout.splitlines()[0], "80 % … 37.8 % … 80 % … unlimited DRAM")


@pytest.mark.full
def test_an_object_store_is_named_and_costs_what_gen_says(tmp_path):
    few = ["--users", 4, "--duration", "20s", "--model", "tiny-1b", "--gpu", "h100"]
    tiers = ["--set", "tiers.gpu.capacity=64MiB", "--set", "tiers.cpu.capacity=64MiB"]
    capacities = ["--dram", "64MiB", "--nvme", "1GiB"]
    shown = size(*few, "--preset", "vllm-obj", *tiers, *capacities, "--target-hit", "0.1%").stdout
    # What makes hits is named, asked for or not.
    answer = (
        r"ENGINE WOULD STALL in 9 of 57 requests, none with 2\.47 GB of DRAM; 67\.1 MB of DRAM and"
    )
    assert re.match(
        answer + r" 1\.07 GB of S3, .* 67\.1 MB of GPU \(hit rate (?:[\d.]+|< 0\.1) %\): ",
        shown,
    )
    assert "NVMe" not in shown
    made = ["gen", *few, "--preset", "vllm-obj", *tiers, "--set", "tiers.s3.capacity=1GiB"]
    (cost,) = json.loads(run_cli("kvtrace", *made, "-o", tmp_path / "t.parquet", "--json").stdout)[
        "costs"
    ]
    total = cost["requests_cost_per_month"] + cost["storage_cost_per_month"]
    (said,) = (line for line in shown.splitlines() if line.startswith("s3: ") and "a month" in line)
    assert float(said.split()[1].replace(",", "")) == pytest.approx(total, rel=0.02)
    assert said.split()[2] == cost["currency"] == "USD"


def test_beside_an_object_store_it_is_the_drive_that_is_sized():
    few = [
        "--users",
        4,
        "--duration",
        "20s",
        "--model",
        "tiny-1b",
        "--preset",
        "lmcache-s3",
        "--gpu",
        "h100",
    ]
    shown = size(*few, "--dram", "64MiB", "--nvme", "128MiB", "--target-hit", "0.1%").stdout
    assert shows(shown, "67.1 MB … DRAM … 134 MB … NVMe")
    assert "--set tiers.nvme.capacity=134217728" in shown


@pytest.mark.first(price=1)
@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=pytest.mark.full)
        for name in ("vllm-fs", "sglang-hicache", "lmcache-disk")
    ],
)
@pytest.mark.parametrize(
    ("price", "target"), [((4, 0.1), 25), ((1, 1), 25), ((0.1, 4), 25), ((0.1, 4), 50)]
)
def test_no_point_of_a_brute_force_is_cheaper(requests, preset, price, target):
    given = [requests, *GIVEN, "--preset", preset, "--target-hit", f"{target}%"]
    given += [
        part
        for role, of in zip(("dram", "nvme"), price, strict=True)
        for part in ("--price", f"{role}={of}/GiB")
    ]
    found = sized(*given)["chosen"]
    top = 1.2 * max(
        point["capacities"]["nvme"] for point in sized(*given)["points"] if point["price"]
    )
    sizes = ",".join(f"{int(top * 0.75**n)}B" for n in range(19)) + ",0"
    every = sized(*given, "--dram", sizes, "--nvme", sizes)["points"]
    assert len(every) == 400
    # SGLang's HiCache needs host memory for its largest prompt, or no prompt uses its files.
    least_dram = 0
    if preset == "sglang-hicache":
        prompts = [json.loads(line)["input_length"] for line in requests.read_text().splitlines()]
        least_dram = max(prompts) // PAGE_TOKENS * PAGE_TOKENS * TOKEN_BYTES
    least = min(
        point["price"]
        for point in every
        if point["hit_ratio"] >= target / 100
        and not point["stalled_requests"]
        and (point["capacities"]["dram"] >= least_dram or point["capacities"]["nvme"] == 0)
    )
    assert found["hit_ratio"] >= target / 100
    assert found["price"] <= 1.02 * least


@pytest.mark.full
def test_samples_find_what_all_of_it_finds(tmp_path):
    path = write_requests(tmp_path / "many.jsonl", 2000, 8, blocks=12, prefixes=400)
    given = [path, *GIVEN, "--preset", "lmcache-disk", "--target-hit", "25%"]
    for price in (("dram=4/GiB", "nvme=0.1/GiB"), ("dram=0.1/GiB", "nvme=4/GiB")):
        asked = [*given, "--price", price[0], "--price", price[1]]
        sampled, full = (sized(*asked, "--sample", sample)["chosen"] for sample in ("0.1", "1"))
        assert sampled["sampling_rate"] == 1, "what is answered is simulated in full"
        assert sampled["hit_ratio"] >= 0.25
        assert sampled["price"] <= 1.02 * full["price"]
        # Where DRAM is the cheaper, all of it is DRAM.
        assert (sampled["capacities"]["nvme"] == 0) == (price[0] == "dram=0.1/GiB")


SLOW_DRIVE = {"read_bandwidth": "50MB", "write_bandwidth": "1GB"}


def test_a_drive_slower_than_computing_is_no_answer():
    """A hit on a drive of 50 MB/s takes far longer than to compute the tokens.

    DRAM alone reaches the target then; with the drive, and little DRAM given, the answer says so.
    """
    asked = {
        "preset": "lmcache-disk", "model": "llama3.1-8b", "gpu": "h100", "target_hit": 0.5,
        "tiers": {"gpu": {"capacity": "2GiB"}, "nvme": SLOW_DRIVE},
    }  # fmt: skip
    found = kvtrace.size(EXAMPLE, **asked)
    baseline = found.chosen.first_token.without_offload
    assert found.capacities["nvme"] == 0
    assert found.chosen.hit_ratio >= 0.5
    assert found.chosen.first_token_ns("p50_ns") <= 1.05 * baseline.p50_ns
    assert found.sizing.rejected.first_token_ns("p50_ns") > 10 * baseline.p50_ns
    # Less DRAM misses the target.
    dram = int(found.capacities["dram"] / 1.03)
    less = kvtrace.size(EXAMPLE, **asked, capacities={"dram": [dram], "nvme": [0]})
    assert not less.is_reached

    given = kvtrace.size(EXAMPLE, **asked, capacities={"dram": ["1GiB"]})
    assert given.answer.startswith("OFFLOAD IS SLOWER")
    assert given.chosen.first_token_ns("p50_ns") > 10 * baseline.p50_ns


def test_unlimited_leased_memory_is_memory_that_never_fills(requests, tmp_path):
    """Objects without links in DRAM must not touch those of GPU memory, whose hits would fall."""
    argv = ("--source", "mooncake", "--gpu", "instant", "--model", "tiny-1b")
    argv += ("--preset", "mooncake-store", "--set", "tiers.gpu.capacity=64MiB")
    argv += ("--set", "tiers.nvme.capacity=100MiB", "-o", tmp_path / "t.parquet", "--force")
    unlimited, large = (
        json.loads(
            run_cli(
                "kvtrace", "gen", requests, *argv, "--set", f"tiers.cpu.capacity={of}", "--json"
            ).stdout
        )["stats"]["tiers"]
        for of in ("unlimited", "1TB")
    )
    assert unlimited == large
