"""The engines' own code, driven now, beside what our presets say of the same requests.

`make engines`.

LMCache, SGLang and Mooncake run as a user runs them, by `kvreplay engine`; a request's operations
are counted in its run and in our trace. Of vLLM, which wants a GPU for the rest, programs beside
this one drive scheduler, connector and storage. What came out goes into docs/validation.md. Within
LMCache and vLLM a hook writes a trace with examples/write_trace.py, which our programs read.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import adversarial
import environments
import pytest
import synthetic
import table
from conftest import TRACES, run_cli
from engine_runs import (
    CONVERSATION,
    CPU,
    DISK,
    ENGINES,
    blocks_that_differ,
    counted,
    first_had,
    moved,
    queued,
    recorded,
    recorded_slots,
    simulated,
    slots_taken,
    write_alike,
)
from whole import read_table

from kvtrace.core.schema import OBJECTS, OPS, TRACE
from kvtrace.core.tables import objects_path
from kvtrace.core.units import counted as counted_words

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

OPERATIONS = ("write", "read", "delete")
PAGE_TOKENS, TOKEN_BYTES = 64, 256
MIB = 1 << 20
GEOMETRY = ("--layers", 1, "--kv-heads", 1, "--head-dim", 64)
"""256 bytes of KV a token, as the model of `engine_runs.simulated`."""


@pytest.fixture(scope="module")
def rows():
    """Collect rows of the table, and write it when all tests are done."""
    found: list[table.Row] = []
    yield found
    if found:
        table.write(found)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    published = TRACES / CONVERSATION
    return (
        published
        if published.is_file()
        else synthetic.write(tmp_path_factory.mktemp("trace") / "own.jsonl", 400)
    )


def served(tmp_path, engine, trace, count, *options):
    """Let an engine serve the first `count` requests.

    Return its run's rows: operation, request, key, bytes.
    """
    reason = environments.why_absent(engine)
    if reason is not None:
        pytest.skip(reason)
    drive, run = tmp_path / "drive", tmp_path / "run"
    drive.mkdir()
    where = ("--tier", f"nvme={drive}", "-o", run, "--python", environments.ENGINES[engine].python)
    run_cli("kvreplay", "engine", engine, trace, "--requests", count, *where, *GEOMETRY, *options)
    ops, keys = (
        read_table(run / "ops.parquet", OPS),
        read_table(run / "trace.objects.parquet", OBJECTS)["key"],
    )
    columns = (ops[name].to_pylist() for name in ("op", "request_id", "object_id", "bytes"))
    return [
        (op, request, str(keys[number]), size)
        for op, request, number, size in zip(*columns, strict=True)
    ]


def compared(real, ours, count):
    """Return the requests in which an operation was not done as often, with both counts."""
    return {
        (request, op): (real[request, op], ours[request][op, DISK])
        for request in range(count)
        for op in OPERATIONS
        if real[request, op] != ours[request][op, DISK]
    }


def totals(real, ours, count):
    return [
        table.pair(
            sum(real[n, op] for n in range(count)), sum(ours[n][op, DISK] for n in range(count))
        )
        for op in OPERATIONS
    ]


UNFULL = "save_unfull_chunk"
HARD = "hard on a cache"
"""The trace of `adversarial`, 70 requests."""
CASES = {
    "lmcache-disk": ("lmcache", 150, "lmcache-disk", ("--cpu", 32 * MIB, "--disk", 256 * MIB),
                     {"gpu": 0, "cpu": 32 * MIB, "nvme": 256 * MIB}),
    "lmcache-disk, O_DIRECT": ("lmcache", 60, "lmcache-disk",
                               ("--cpu", 32 * MIB, "--disk", 64 * MIB, "--direct"),
                               {"gpu": 0, "cpu": 32 * MIB, "nvme": 64 * MIB}),
    "sglang-hicache, given a cap": ("sglang", 120, "sglang-hicache", ("--disk", 128 * MIB),
                                    {"gpu": 0, "cpu": 0, "nvme": 128 * MIB}),
    f"lmcache-disk, {HARD}": ("lmcache", 70, "lmcache-disk", ("--cpu", 4 * MIB, "--disk", 9 * MIB),
                              {"gpu": 0, "cpu": 4 * MIB, "nvme": 9 * MIB}),
    # With LFU, LMCache itself ends now and then in a KeyError: it chooses what is not written yet.
    **{f"lmcache-disk, {policy}, {HARD}": ("lmcache", 70, "lmcache-disk", ("--cpu", 4 * MIB, "--disk", 9 * MIB),
                                           {"gpu": 0, "cpu": 4 * MIB, "nvme": 9 * MIB}) for policy in ("LFU", "FIFO")},
    f"sglang-hicache, {HARD}": ("sglang", 70, "sglang-hicache", ("--disk", 12 * MIB),
                                {"gpu": 0, "cpu": 0, "nvme": 12 * MIB}),
    f"lmcache-disk, {UNFULL}": ("lmcache", 150, "lmcache-disk", ("--cpu", 32 * MIB, "--disk", 256 * MIB),
                                {"gpu": 0, "cpu": 32 * MIB, "nvme": 256 * MIB}),
    f"lmcache-disk, {UNFULL}, {HARD}": ("lmcache", 70, "lmcache-disk", ("--cpu", 4 * MIB, "--disk", 9 * MIB),
                                        {"gpu": 0, "cpu": 4 * MIB, "nvme": 9 * MIB}),
}  # fmt: skip
GAPS = {f"lmcache-disk, {UNFULL}, {HARD}": {(65, "read"): (5, 4)}}
"""Where LMCache's pool has gaps between chunks of unlike sizes, and gives up more.

See test_partial_chunks.py.
"""


@pytest.mark.parametrize("name", CASES)
def test_each_request_writes_reads_and_deletes_as_often(monkeypatch, tmp_path, rows, trace, name):
    engine, count, preset, options, sizes = CASES[name]
    if name.endswith(HARD):
        trace = tmp_path / "hard.jsonl"
        assert adversarial.write(trace) == count
    policy = next((each for each in ("LFU", "FIFO") if each in name), "LRU")
    monkeypatch.setenv("LMCACHE_CACHE_POLICY", policy)
    settings = (
        []
        if engine != "lmcache"
        else [f"tiers.{t}.policy={policy.lower()}" for t in ("cpu", "nvme")]
    )
    if UNFULL in name:
        monkeypatch.setenv("LMCACHE_SAVE_UNFULL_CHUNK", "true")
        settings += [
            "partial_chunks=true",
            "pad_bytes=4096",
        ]  # a file of fewer bytes counts as so many
    did = served(tmp_path, engine, trace, count, *options)
    settings += [f"tiers.{tier}.capacity={size}" for tier, size in sizes.items()]
    ours = counted(simulated(monkeypatch, tmp_path, preset, count, settings, trace=str(trace)))
    real = Counter((request, op) for op, request, _key, _bytes in did)
    wrong = compared(real, ours, count)
    by_chance = ""
    if UNFULL in name:
        # Which chunks of a prompt its threads end first is chance, and the last is smaller: now and
        # then one more has to go for the next, and one less later.
        ahead = [real[n, "delete"] - ours[n]["delete", DISK] for n in range(count)]
        assert max(abs(sum(ahead[: n + 1])) for n in range(count)) <= 1
        wrong = {at: counts for at, counts in wrong.items() if at[1] != "delete"}
        by_chance = "; deletes by chance of its threads one sooner or later"
    differs = (
        f"in {counted_words(len({request for request, _ in wrong}), 'request')}"
        if wrong
        else "in no request"
    )
    rows.append((f"`{preset}`{name.removeprefix(preset)}", f"{engine} {environments.version(engine)}", f"{count}",
                 *totals(real, ours, count), differs + by_chance))  # fmt: skip
    assert wrong == GAPS.get(name, {})
    assert sum(1 for op, *_ in did if op == "delete") > 0
    sizes = {size for op, _request, _key, size in did if op != "delete"}
    assert max(sizes) == (256 if engine == "lmcache" else PAGE_TOKENS) * TOKEN_BYTES
    assert (len(sizes) > 1) == (UNFULL in name)


PAGES_A_BUCKET = 500
KEY_BYTES = 64
"""What Mooncake writes before a page, at most: its key."""


def paced(tmp_path, trace, puts, run):
    """Return the trace of the requests that put so many pages each, each as far behind the one
    before as that took.
    """
    ops = read_table(run / "ops.parquet", OPS)
    whole_ms = max(when for when in ops["completed_ns"].to_pylist() if when is not None) // 10**6
    lines = Path(TRACES / trace).read_text().splitlines()[: len(puts)]
    times = [whole_ms * sum(puts[:n]) // sum(puts) for n in range(len(puts))]
    out = tmp_path / "paced.jsonl"
    timed = zip(times, lines, strict=True)
    out.write_text(
        "".join(json.dumps(json.loads(line) | {"timestamp": time}) + "\n" for time, line in timed)
    )
    return out


def pages_and_buckets(trace, page):
    """Return how many pages our trace writes to the disk, and in how many buckets, each with a
    .meta behind it.
    """
    rows = read_table(trace, TRACE)
    columns = (rows[name].to_pylist() for name in ("op", "tier", "length_bytes"))
    sizes = [
        size for op, tier, size in zip(*columns, strict=True) if (op, tier) == ("write", DISK)
    ][::2]
    return sum(size // page for size in sizes), len(sizes)


def test_mooncake_writes_buckets_of_pages_and_their_meta(monkeypatch, tmp_path, rows, trace):
    count = 40
    monkeypatch.setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1")
    did = served(tmp_path, "mooncake", trace, count, "--cpu", 64 * MIB)
    page = PAGE_TOKENS * TOKEN_BYTES
    settings = ["tiers.gpu.capacity=0", f"tiers.cpu.capacity={64 * MIB}", "tiers.nvme.heartbeat=1s"]
    ours = counted(
        simulated(monkeypatch, tmp_path, "mooncake-store", count, settings, trace=str(trace))
    )
    puts = [ours[n]["write", CPU] for n in range(count)]
    again = paced(tmp_path, trace, puts, tmp_path / "run")
    ours = counted(
        simulated(monkeypatch, tmp_path, "mooncake-store", count, settings, trace=str(again))
    )
    our_pages, our_buckets = pages_and_buckets(tmp_path / "t.parquet", page)
    writes, sizes = defaultdict(list), Counter()
    for op, _request, key, size in did:
        if op == "write":
            writes[Path(key).suffix].append(key)
            sizes[key] += size
    # One call writes a bucket, one its .meta, and there is no other file.
    assert set(writes) == {".bucket", ".meta"}
    buckets = set(writes[".bucket"])
    assert len(writes[".bucket"]) == len(buckets) > 1
    assert {key.replace(".meta", ".bucket") for key in writes[".meta"]} == buckets
    pages = sum(sizes[key] // page for key in buckets)
    assert all(page < sizes[key] <= PAGES_A_BUCKET * (page + KEY_BYTES) for key in buckets)
    # Pages that DRAM gives up before a heartbeat never reach the disk.
    put = sum(puts)
    assert 0 < pages <= put
    assert 0 < our_pages <= put
    rows.append(("`mooncake-store`", f"mooncake {environments.version('mooncake')}", f"{count}",
                 f"{pages:,} pages in {len(buckets):,} buckets / {our_pages:,} in {our_buckets:,}",
                 table.pair(sum(1 for op, *_ in did if op == "read"), sum(ours[n]["read", DISK] for n in range(count))),
                 table.pair(sum(1 for op, *_ in did if op == "delete"),
                            sum(ours[n]["delete", DISK] for n in range(count))),
                 f"of {put:,} pages put, those still in DRAM at a heartbeat, which is by the clock"))  # fmt: skip


def test_two_ranks_of_lmcache_write_and_read_the_same_chunks(monkeypatch, tmp_path, rows):
    trace, ranks, pool, disk, chunk = tmp_path / "hard.jsonl", 2, 64, 144, 256
    count = adversarial.write(trace)
    options = ("--ranks", ranks, "--cpu-chunks", pool, "--disk-chunks", disk)
    real = recorded(driven(tmp_path, "drive_lmcache.py", trace, count, *options, engine="lmcache"))
    sizes = {"gpu": 0, "cpu": pool * ranks, "nvme": disk * ranks}
    settings = [
        f"tiers.{tier}.capacity={chunks * chunk * TOKEN_BYTES}" for tier, chunks in sizes.items()
    ]
    ours = moved(
        simulated(monkeypatch, tmp_path, "lmcache-disk", count, settings, trace=trace, ranks=ranks),
        first_had(count, chunk, trace, ranks),
    )
    # Threads write a prompt's chunks, so that which of them are the oldest is chance: of deletes
    # the number.
    how = {"write": sorted, "read": sorted, "delete": len}
    differs = {
        n: [op for op in OPERATIONS if how[op](real[n][op]) != how[op](ours[n][op, DISK])]
        for n in range(count)
    }
    files = [table.pair(amount(real, op), amount(ours, (op, DISK))) for op in OPERATIONS]
    rows.append((f"`lmcache-disk`, two ranks, {HARD}", f"lmcache {environments.version('lmcache')}", f"{count}", *files,
                 said(differs, "the same chunks of each rank")))  # fmt: skip
    assert wrong(differs) == {}
    assert amount(real, "delete") > 0


VLLM_BLOCK_TOKENS = 16
AT_END = "recency=at-end"
"""How vLLM 0.32.0 ages a prompt's blocks; the presets are of 0.33.0."""


def driven(tmp_path, program, trace, count, *options, engine="vllm"):
    """Let the program beside this one drive an engine with `count` requests.

    Return where its recording is.
    """
    reason = environments.why_absent(engine)
    if reason is not None:
        pytest.skip(reason)
    drive = tmp_path / "drive"
    drive.mkdir()
    command = [
        environments.ENGINES[engine].python,
        Path(__file__).with_name(program),
        trace,
        tmp_path / "real.txt.gz",
    ]
    command += ["--dir", drive, "--requests", count, *options]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONHASHSEED": "0"
    }
    done = subprocess.run(
        list(map(str, command)), env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return tmp_path / "real"


def amount(moves, *kinds):
    """Return how many objects were moved, in all requests, by any of the `kinds`."""
    return sum(len(of_one[kind]) for of_one in moves.values() for kind in kinds)


def in_memory(real, ours):
    """Return the table's cells of what vLLM's CPU tier and ours wrote, loaded and gave up."""
    return [
        table.pair(amount(real, "store", "promote"), amount(ours, ("write", CPU))),
        table.pair(amount(real, "load"), amount(ours, ("read", CPU), ("read", DISK)))
        + " to the GPU",
        table.pair(amount(real, "evict"), amount(ours, ("delete", CPU))),
    ]


@pytest.mark.parametrize("is_latent", [False, True])
def test_sglang_ranks_agree_on_hits_and_each_reads_a_latent(monkeypatch, tmp_path, rows, is_latent):
    trace, ranks, most = tmp_path / "hard.jsonl", 2, 12 * MIB
    count, copies = adversarial.write(trace), 1 if is_latent else ranks
    options = ("--ranks", ranks, "--max-size", most, *(["--mla"] if is_latent else []))
    real = recorded(
        driven(tmp_path, "drive_sglang_ranks.py", trace, count, *options, engine="sglang")
    )
    # Each rank's evictor counts its own files.
    settings = [
        "tiers.gpu.capacity=0",
        "tiers.cpu.capacity=0",
        f"tiers.nvme.capacity={most * copies}",
    ]
    ours = moved(
        simulated(monkeypatch, tmp_path, "sglang-hicache", count, settings, trace=trace, ranks=ranks,
                  is_latent=is_latent),
        first_had(count, PAGE_TOKENS, trace, copies),
    )  # fmt: skip
    differs = {
        n: [op for op in OPERATIONS if sorted(real[n][op]) != sorted(ours[n][op, DISK])]
        for n in range(count)
    }
    files = [table.pair(amount(real, op), amount(ours, (op, DISK))) for op in OPERATIONS]
    kind, whose = (", latent", "each read by both") if is_latent else ("", "of each rank")
    rows.append((f"`sglang-hicache`, two ranks{kind}, {HARD}", f"sglang {environments.version('sglang')}", f"{count}",
                 *files, said(differs, f"the same pages, {whose}")))  # fmt: skip
    assert wrong(differs) == {}
    assert amount(real, "delete") > 0
    ops = read_table(tmp_path / "t.parquet", TRACE)
    by_rank = Counter(zip(ops["op"].to_pylist(), ops["rank"].to_pylist(), strict=True))
    assert by_rank["read", 0] == by_rank["read", 1] == amount(real, "read") / ranks
    assert by_rank["write", 1] == (0 if is_latent else by_rank["write", 0])


@pytest.mark.parametrize("is_latent", [False, True])
@pytest.mark.parametrize(("preset", "options"), [("vllm-fs", ["--fs"]), ("vllm-offload-cpu", [])])
def test_vllm_ranks_share_a_row_file_and_a_latent_has_one_place(
    monkeypatch, tmp_path, rows, preset, options, is_latent
):
    # Rows are whole pages: two ranks of 2,560 bytes need two, a latent of as many one.
    trace, ranks, of_rank, token_bytes = tmp_path / "hard.jsonl", 2, 2560, 160
    count, row, places = adversarial.write(trace), *((4096, [1]) if is_latent else (8192, [1, 2]))
    options = [
        *options,
        "--ranks",
        ranks,
        "--token-bytes",
        token_bytes,
        *(["--mla"] if is_latent else []),
    ]
    real = recorded(
        driven(tmp_path, "drive_vllm_offload.py", trace, count, "--cpu-bytes", 2048 * row, *options)
    )
    settings = [AT_END, "tiers.gpu.capacity=0", f"tiers.cpu.capacity={2048 * row}"]
    ours = moved(
        simulated(monkeypatch, tmp_path, preset, count, settings, trace=trace, ranks=ranks, is_latent=is_latent,
                  token_bytes=token_bytes),
        first_had(count, VLLM_BLOCK_TOKENS, trace),
    )  # fmt: skip
    in_files = {
        n: [op for op in OPERATIONS if sorted(real[n][op]) != sorted(ours[n][op, DISK])]
        for n in range(count)
    }
    in_dram = {
        n: blocks_that_differ(real[n], ours[n], is_ordered=False, in_rounds=True)
        for n in range(count)
    }
    named = f"`{preset}`, `{AT_END}`, two ranks{', latent' if is_latent else ''}, {HARD}"
    engine, same = f"vllm {environments.version('vllm')}", "the same blocks, of as many bytes"
    if "--fs" in options:
        files = [table.pair(amount(real, op), amount(ours, (op, DISK))) for op in OPERATIONS]
        rows.append((f"{named}: files", engine, f"{count}", *files, said(in_files, same)))
    rows.append((f"{named}: DRAM", engine, f"{count}", *in_memory(real, ours), said(in_dram, same)))
    assert wrong(in_files) == wrong(in_dram) == {}
    assert amount(real, "evict") > 0
    assert set(read_table(tmp_path / "t.parquet", TRACE)["length_bytes"].to_pylist()) == {row}
    held = {path.read_bytes() for path in (tmp_path / "drive").rglob("*.bin")}
    assert held == (
        {b"".join(bytes([of]) * of_rank for of in places).ljust(row, b"\0")}
        if "--fs" in options
        else set()
    )


@pytest.mark.parametrize("is_hard", [False, True])
@pytest.mark.parametrize(
    ("preset", "cpu_blocks", "options"),
    [("vllm-fs", 2048, ["--fs"]), ("vllm-offload-cpu", 4096, [])],
)
def test_vllm_moves_the_same_blocks(
    monkeypatch, tmp_path, rows, trace, preset, cpu_blocks, options, is_hard
):
    count, block = 100, VLLM_BLOCK_TOKENS * TOKEN_BYTES
    if is_hard:
        trace, cpu_blocks = tmp_path / "hard.jsonl", 2048
        count = adversarial.write(trace)
    real = recorded(
        driven(
            tmp_path, "drive_vllm_offload.py", trace, count, "--cpu-blocks", cpu_blocks, *options
        )
    )
    settings = [AT_END, "tiers.gpu.capacity=0", f"tiers.cpu.capacity={cpu_blocks * block}"]
    ours = moved(
        simulated(monkeypatch, tmp_path, preset, count, settings, trace=str(trace)),
        first_had(count, VLLM_BLOCK_TOKENS, trace),
    )
    in_files = {
        n: [op for op in OPERATIONS if Counter(real[n][op]) != Counter(ours[n][op, DISK])]
        for n in range(count)
    }
    # What it brings up in rounds comes in another order.
    in_dram = {
        n: blocks_that_differ(real[n], ours[n], is_ordered=False, in_rounds=is_hard)
        for n in range(count)
    }
    named, engine = (
        f"`{preset}`, `{AT_END}`{f', {HARD}' if is_hard else ''}",
        f"vllm {environments.version('vllm')}",
    )
    if options:
        files = [table.pair(amount(real, op), amount(ours, (op, DISK))) for op in OPERATIONS]
        rows.append(
            (f"{named}: files", engine, f"{count}", *files, said(in_files, "the same blocks"))
        )
    same = "the same blocks" if is_hard else "the same blocks, stored and loaded in the same order"
    rows.append((f"{named}: DRAM", engine, f"{count}", *in_memory(real, ours), said(in_dram, same)))
    assert wrong(in_files) == wrong(in_dram) == {}
    assert amount(real, "evict") > 0
    assert (amount(real, "write") > 0) == bool(options)


@pytest.mark.parametrize("ranks", [1, 2])
def test_vllm_writes_and_reads_the_same_slots_of_its_disk_file(
    monkeypatch, tmp_path, rows, trace, ranks
):
    # Of 150 requests the last: one of them finds in the file what the GPU no longer has.
    count, slots, layers = 60, 32768, 2
    requests, block = tmp_path / "requests.jsonl", layers * VLLM_BLOCK_TOKENS * TOKEN_BYTES * ranks
    longest = write_alike(requests, trace, count, after=90, output=1)  # as the drive asks
    # Two ranks have a latent, the same on both, which both store nevertheless.
    options = ("--slots", slots, "--ranks", ranks, *(["--mla"] if ranks > 1 else []))
    real = recorded_slots(driven(tmp_path, "drive_vllm_disk.py", requests, count, *options))
    # Its GPU holds the longest prompt, and of the slots one is never used.
    gpu = longest // VLLM_BLOCK_TOKENS + 2
    settings = [f"tiers.gpu.capacity={gpu * block}", f"tiers.nvme.capacity={(slots - 1) * block}"]
    of_two = simulated(monkeypatch, tmp_path, "vllm-disk", count, settings, layers=layers, trace=str(requests),
                       ranks=ranks, is_latent=ranks > 1)  # fmt: skip
    of_ranks = [
        slots_taken([(*row, n // ranks) for *row, n in of_two if n % ranks == rank], 1)
        for rank in range(ranks)
    ]
    # The last two writes of a step come in the order of two buffers, not of the prompt.
    differs = {
        n: [
            op
            for op, order in (("write", sorted), ("read", list))
            for rank, ours in enumerate(of_ranks)
            if order(slot // ranks for slot in real[n][op] if slot % ranks == rank)
            != order(ours[n][op])
        ]
        for n in range(count)
    }
    files = [
        table.pair(amount(real, op), sum(amount(ours, op) for ours in of_ranks))
        for op in ("write", "read")
    ]
    named = f"`vllm-disk`, {'two ranks, latent, ' if ranks > 1 else ''}{slots:,} slots"
    rows.append((named, f"vllm {environments.version('vllm')}", f"{count}", *files, "",
                 said(differs, "the same slots" + " of each rank" * (ranks > 1))))  # fmt: skip
    assert wrong(differs) == {}
    assert amount(real, "write") > slots * ranks


def test_vllm_scheduler_hits_for_waiting_prompts_as_recorded(tmp_path):
    """Under a virtual clock.

    Tests/kvtrace/sim/test_engines.py holds our simulation against the recording.
    """
    trace, name = tmp_path / "together.jsonl", "vllm/vllm032-queue-gpu4096-together"
    count, then = adversarial.write(trace, adversarial.together), queued(name)
    options = ("--gpu-blocks", 4097, "--token-ns", *then)
    assert queued(driven(tmp_path, "drive_vllm_queue.py", trace, count, *options)) == then


TURNS = ENGINES / "lmcache" / "turns.jsonl"
WRITERS = {
    "lmcache, files": ("lmcache", "drive_lmcache.py", ("--cpu-chunks", 256, "--disk-chunks", 1024), "nvme", 65536,
                       "lmcache/lmcache-0.5.6-turns-cpu256-disk1024-160-ops", {op: (op,) for op in OPERATIONS}),
    "vllm, DRAM": ("vllm", "drive_vllm_offload.py", ("--cpu-blocks", 2048), "cpu", 4096,
                   "vllm/vllm032-cpu2048-adversarial-ops",
                   {"write": ("store", "promote"), "read": ("load",), "delete": ("evict",)}),
    "vllm, files": ("vllm", "drive_vllm_offload.py", ("--cpu-blocks", 2048, "--fs"), "nvme", 4096,
                    "vllm/vllm032-fs-cpu2048-adversarial-ops", {op: (op,) for op in OPERATIONS}),
}  # fmt: skip
"""Engine, program that drives it, options.

The tier that the hook writes, the bytes of an object; what was recorded in the repository of the
same drive; and by which words a recording names what the trace says.
"""


@pytest.mark.parametrize("name", WRITERS)
def test_our_short_writer_in_the_engine_writes_as_recorded(tmp_path, name):
    engine, program, options, tier, size, before, words = WRITERS[name]
    trace = TURNS if engine == "lmcache" else tmp_path / "hard.jsonl"
    count = 160 if engine == "lmcache" else adversarial.write(trace)
    written = tmp_path / "written.parquet"
    now = recorded(
        driven(tmp_path, program, trace, count, *options, "--trace-out", written, engine=engine)
    )
    table, keys = (
        read_table(written, TRACE),
        read_table(objects_path(written), OBJECTS)["key"].to_pylist(),
    )
    found = defaultdict(lambda: defaultdict(list))
    columns = (
        table[column].to_pylist() for column in ("request_id", "op", "object_id", "length_bytes")
    )
    for request, op, number, length in zip(*columns, strict=True):
        found[request][op].append(tuple(map(int, keys[number].split("-"))))
        assert length == size
    # Of files a recording has an order only where they are read one at a time; the hook sees them
    # as they come.
    order = {
        op: list if tier == "cpu" or (op == "read" and engine == "lmcache") else sorted
        for op in OPERATIONS
    }
    for request in range(count):
        for op in OPERATIONS:
            recording = [one for word in words[op] for one in now[request][word]]
            assert order[op](found[request][op]) == order[op](recording), (request, op)
    # The same drive as it was recorded for the repository: threads choose among the oldest, so of
    # deletes the number.
    then = recorded(before)
    for request in range(count):
        for op in OPERATIONS:
            recording = [one for word in words[op] for one in then[request][word]]
            how = len if op == "delete" else sorted
            assert how(found[request][op]) == how(recording), (request, op)
    rows, run = len(table), tmp_path / "run"
    assert f"{rows:,} rows" in run_cli("kvtrace", "validate", written).stdout
    replay = run_cli("kvreplay", "run", written, "--tier", f"{tier}=null", "-o", run, "--json")
    done = {
        figures["op"]: figures["operations"]
        for figures in json.loads(replay.stdout)["summary"]["figures"]
    }
    assert done == {
        op: sum(len(of[op]) for of in found.values()) for op in OPERATIONS if op in done
    }
    assert sum(done.values()) == rows
    run_cli("kvdistill", "fio", written, "--tier", tier, "-o", tmp_path / "jobs")
    assert (tmp_path / "jobs" / "stat.fio").is_file()


def wrong(differs):
    """Return the requests in which something `differs`, with what."""
    return {n: what for n, what in differs.items() if what}


def said(differs, same):
    """Return the table's last cell.

    In how many requests something `differs`, else what is the `same`.
    """
    return f"in {len(wrong(differs))} requests" if wrong(differs) else f"in no request; {same}"
