from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from conftest import run_process, write_trace
from phrases import shows
from simulated import kvtrace
from waiting import wait_for

from kvtrace.cli import app

ROWS = [(0, "write", 2, "prefill", 0, 0, 4096, 0, 0, 0)]
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4, 2]}\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a trace and a source, to run in."""
    write_trace(tmp_path / "t.parquet", ROWS)
    (tmp_path / "m.jsonl").write_text(MOONCAKE)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-9])
    (tmp_path / "bad.csv.zst").write_bytes(b"\x28\xb5\x2f\xfd nothing")
    (tmp_path / "bad.toml").write_text("entry = ")
    (tmp_path / "odd.toml").write_text('description = "odd"\n')
    (tmp_path / "d.parquet").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


GEN = ["gen", "--users", "2", "--duration", "2s"]
BAD = {
    "model": ([*GEN, "--model", "gpt-9"], 2, "model 'gpt-9' … tiny-1b"),
    "preset": ([*GEN, "--preset", "vllm-9"], 2, "preset 'vllm-9'"),
    "preset file": ([*GEN, "--preset", "none.toml"], 3, "none.toml:"),
    "preset not TOML": ([*GEN, "--preset", "bad.toml"], 2, "bad.toml: not valid TOML"),
    "preset lacks fields": ([*GEN, "--preset", "odd.toml"], 2, "preset odd.toml:"),
    "tier": ([*GEN, "--set", "tiers.disk.capacity=1GiB"], 2, "'disk' … gpu, cpu, nvme"),
    "unit": ([*GEN, "--set", "tiers.nvme.capacity=1XiB"], 2, "unit 'XiB' … '1XiB'"),
    "negative capacity": ([*GEN, "--set", "tiers.nvme.capacity=-1"], 2, "capacity(=-1) … >= 0"),
    "capacity overflows": ([*GEN, "--set", "tiers.nvme.capacity=99999PB"], 2, "too large"),
    "knob": ([*GEN, "--set", "speed=1"], 2, "`speed`"),
    "nearest knob": ([*GEN, "--set", "prefil_ns_per_token=1"], 2, "`prefil_ns_per_token` … prefill_ns_"),
    "nearest knob of a tier": (
        [*GEN, "--set", "tiers.nvme.capcity=1GiB"], 2, "`capcity`",
    ),
    "nearest table": ([*GEN, "--set", "workloads.mode=1"], 2, "'workloads' … workload"),
    "padding": (
        [*GEN, "--preset", "vllm-fs", "--set", f"pad_bytes={2**63 - 1}"], 2, "1 … 1073741824",
    ),
    "padding beyond 64 bits": ([*GEN, "--preset", "vllm-fs", "--set", f"pad_bytes={2**70}"], 2, "pad_bytes"),
    "layers": ([*GEN, "--preset", "vllm-fs", "--set", f"layers_per_object={2**63}"], 2, "layers_per_object"),
    "concurrency": ([*GEN, "--set", f"tiers.nvme.concurrency={2**63}"], 2, "tiers.nvme.concurrency"),
    "bandwidth": ([*GEN, "--set", f"tiers.nvme.read_bandwidth={2**62}B"], 2, "1MB"),
    "latency": ([*GEN, "--set", "tiers.nvme.latency=99999h"], 2, "tiers.nvme.latency"),
    "drive size": ([*GEN, "--drive-size", "x"], 2, "'x'"),
    "no drive size": ([*GEN, "--drive-size", "0"], 2, "--drive-size 0: … > 0"),
    "drive of memory": (
        [*GEN, "--preset", "vllm-offload-cpu", "--drive-size", "1TB"], 2,
        "--drive-size: … gpu, cpu",
    ),
    "setting": ([*GEN, "--set", "speed"], 2, "KEY=VALUE"),
    "duration": (["gen", "--duration", "5 lightyears"], 2, "unit 'lightyears'"),
    "negative duration": (["gen", "--duration", "-5s"], 2, "'-5s'"),
    "no duration": (["gen", "--duration", "0s"], 2, "--duration 0s: … > 0"),
    "endless duration": (["gen", "--duration", "9" * 5000 + "s"], 2, "duration"),
    "negative users": (["gen", "--users", "-1"], 2, "equal to 1. … --help"),
    "no users": (["gen", "--users", "0"], 2, "--users' … 1"),
    "users": (["gen", "--users", "many"], 2, "'--users': "),
    "negative seed": ([*GEN, "--seed", "-1"], 2, "'--seed': … 0"),
    "seed overflows": ([*GEN, "--seed", "9" * 20], 2, "9223372036854775807"),
    "requests overflow": ([*GEN, "--limit", "9" * 20], 2, "'--limit':"),
    "ranks": ([*GEN, "--tp", "0"], 2, "'--tp': … 1"),
    "unknown option": ([*GEN, "--colour"], 2, "option"),
    "unknown command": (["generate"], 2, "'generate'"),
    "source without file": ([*GEN, "--source", "mooncake"], 2, "--source mooncake … FILE"),
    "file of no known kind": (["gen", "bad.toml"], 2, "bad.toml … --source"),
    "source": (["gen", "m.jsonl", "--source", "web"], 2, "'web'"),
    "time unit": (["gen", "m.jsonl", "--source", "mooncake", "--time-unit", "h"], 2, "unit 'h'"),
    "block size": (["gen", "m.jsonl", "--source", "mooncake", "--block-tokens", "0"], 2, "> 0"),
    "source missing": (["gen", "n.jsonl", "--source", "mooncake"], 3, "n.jsonl:"),
    "source damaged": (["gen", "t.parquet", "--source", "mooncake"], 3, "t.parquet, row 1: "),
    "output type": ([*GEN, "-o", "t.txt"], 2, "t.txt:"),
    "output directory": ([*GEN, "-o", "none/t.parquet"], 4, "none:"),
    "output is a directory": ([*GEN, "-o", "d.parquet"], 4, "d.parquet"),
    "output is a device": ([*GEN, "-o", "/dev/null.parquet/x.parquet"], 4, "/dev/null.parquet"),
    "requests over trace": ([*GEN, "-o", "a.parquet", "--requests-out", "a.parquet"], 2, "--requests-out"),
    "requests over objects": (
        [*GEN, "-o", "a.parquet", "--requests-out", "./a.objects.parquet"], 2, "name another file",
    ),
    "model missing": (["models", "none/config.json"], 3, "none/config.json:"),
    "study missing": (["study", "none.toml"], 3, "none.toml:"),
    "former name": (["mrc", "r.jsonl", "--max-requests", "3"], 2, "--max-requests … --limit"),
    "info missing": (["info", "n.parquet"], 3, "n.parquet:"),
    "info damaged": (["info", "bad.parquet"], 3, "bad.parquet:"),
    "info truncated": (["info", "cut.parquet"], 3, "cut.parquet:"),
    "info of zst": (["info", "bad.csv.zst"], 3, "bad.csv.zst:"),
    "validate damaged": (["validate", "bad.parquet"], 3, "bad.parquet:"),
    "validate of objects": (["validate", "t.objects.parquet"], 3, "'objects' … 'trace'"),
    "validate of a directory": (["validate", "d.parquet"], 3, "d.parquet:"),
    "policy": (
        ["sim", "m.jsonl", "--source", "mooncake", "--capacity-blocks", "5", "--policy", "mru"], 2,
        "policy 'mru' … lru … s3fifo … ttl",
    ),
    "no capacity": (["sim", "m.jsonl", "--source", "mooncake"], 2, "Missing option '--capacity-blocks'"),
    "capacity": (["sim", "m.jsonl", "--source", "mooncake", "--capacity-blocks", "5,x"], 2, "'x'"),
    "zero capacity": (["sim", "m.jsonl", "--source", "mooncake", "--capacity-blocks", "0"], 2, "0 … > 0"),
    "negative blocks": (["sim", "m.jsonl", "--source", "mooncake", "--capacity-blocks=-5"], 2, "-5 … > 0"),
    "empty capacity": (["sim", "m.jsonl", "--source", "mooncake", "--capacity-blocks", "5,"], 2, "number"),
}  # fmt: skip


def names(directory):
    return sorted(p.name for p in directory.iterdir())


@pytest.mark.parametrize(("arguments", "code", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_leaves_nothing(
    here, monkeypatch, capsys, arguments, code, message
):
    before = names(here)
    assert kvtrace(monkeypatch, *arguments) == code
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if not line.startswith("compiling: ")]
    assert shown.out == ""
    assert len(lines) == 1
    assert lines[0].startswith("kvtrace: error: ")
    assert shows(lines[0], message)
    assert names(here) == before


def test_errors_of_a_process_are_the_same():
    done = run_process("kvtrace", "gen", "--model", "gpt-9", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert shows(done.stderr, "model 'gpt-9'")


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts so many KiB; needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = []

    def mount(kib):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "kvtrace-test", disk],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"cannot mount a small tmpfs here: {done.stderr.decode().strip()}")
        mounted.append(disk)
        return disk

    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    yield mount
    # What a traceback still holds open keeps a filesystem busy.
    gc.collect()
    for path in mounted:
        subprocess.run(["umount", path], check=True)


@pytest.mark.star
@pytest.mark.root
@pytest.mark.parametrize("kib", [4, 24, 32, 48])
@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
def test_a_full_disk_leaves_nothing(small_disk, monkeypatch, capsys, kib, suffix):
    disk = small_disk(kib)
    # Enough for the larger file alone, at some of the sizes: then no name may be given either.
    load = [
        "--users",
        30,
        "--duration",
        "60s",
        "--preset",
        "lmcache-disk",
        "--set",
        "chunk_tokens=64",
    ]
    code = kvtrace(monkeypatch, "gen", *load, "-o", disk / f"t{suffix}")
    shown = capsys.readouterr()
    assert code == 4
    assert shown.err.splitlines()[-1].endswith("No space left on device")
    assert len([line for line in shown.err.splitlines() if not line.startswith("compiling: ")]) == 1
    assert names(disk) == []


@pytest.mark.first(target=1)
@pytest.mark.root
@pytest.mark.parametrize("target", ["u.parquet", "u.csv.zst", "u.csv"])
def test_a_full_disk_stops_a_conversion(small_disk, here, monkeypatch, capsys, target):
    disk = small_disk(4)
    rows = [
        (i * i, "write", 2, "prefill", i * 7919 % 60_000, 0, i * 31, i, 0, 0) for i in range(60_000)
    ]
    source = write_trace(here / "big.parquet", rows)
    options = ["--to", "mlperf"] if target == "u.csv" else []
    assert kvtrace(monkeypatch, "convert", source, disk / target, *options) == 4
    assert capsys.readouterr().err.endswith("No space left on device\n")
    assert names(disk) == []


# Help.


def commands():
    group = typer.main.get_command(app)
    return sorted(group.commands)


def test_the_commands():
    assert set(commands()) >= {"gen", "info", "validate", "sim", "convert"}


@pytest.mark.parametrize("command", commands())
def test_help_shows_an_example(monkeypatch, capsys, command):
    assert kvtrace(monkeypatch, command, "--help") == 0
    out = capsys.readouterr().out
    assert re.search(rf"\n  kvtrace {command}\s", out)
    assert "Usage: kvtrace" in out or "Usage: " in out


def test_help_of_the_program_shows_first_steps(monkeypatch, capsys):
    assert kvtrace(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    assert "kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet" in out
    assert kvtrace(monkeypatch) == 2


def test_version(monkeypatch, capsys):
    assert kvtrace(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("kvtrace ")


def test_help_imports_no_heavy_library():
    code = (
        "import sys\nsys.argv = ['kvtrace', 'gen', '--help']\nfrom kvtrace.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('LOADED', *sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    loaded = set(out.rpartition("LOADED ")[2].split())
    assert "kvtrace.cli" in loaded
    assert not loaded & {"numpy", "pyarrow", "duckdb", "polars", "zstandard", "rich", "dgen_py"}


# Same seed, same bytes.


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
@pytest.mark.parametrize("preset", ["mlperf", "lmcache-disk"])
def test_same_seed_same_bytes(tmp_path, monkeypatch, suffix, preset):
    def gen(name, *options):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"{name}{suffix}"
        requests = path.with_name(f"r{suffix}")
        load = ["--users", 5, "--duration", "20s", "--preset", preset]
        assert (
            kvtrace(monkeypatch, "gen", *load, *options, "-o", path, "--requests-out", requests)
            == 0
        )
        return [p.read_bytes() for p in (path, path.with_name(f"{name}.objects{suffix}"), requests)]

    first, again, other = gen("a", "--seed", 1), gen("b", "--seed", 1), gen("c", "--seed", 2)
    assert first == again
    assert not any(x == y for x, y in zip(first, other, strict=True))


@pytest.mark.full
def test_another_process_and_json_make_the_same_bytes(tmp_path, monkeypatch):
    load = ["gen", "--users", 3, "--duration", "9s", "--seed", 9]
    assert kvtrace(monkeypatch, *load, "-o", tmp_path / "a.parquet") == 0
    run_process("kvtrace", *load, "--json", f"--output={tmp_path / 'b.parquet'}")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


# Interruption.


def test_an_interrupt_leaves_no_file(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "kvtrace.cli", "gen", "--users", "20000", "--duration", "100h",
         "-o", tmp_path / "t.parquet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            # Its temporary files are there while it works.
            wait_for(process, lambda: names(tmp_path), "no file is begun")
            assert not [name for name in names(tmp_path) if not name.startswith(".")]
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 130
    assert (out, err.splitlines()[-1]) == ("", "kvtrace: error: interrupted")
    assert "Traceback" not in err
    assert names(tmp_path) == []


def test_what_is_printed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.parquet"
    assert kvtrace(monkeypatch, "gen", "--users", 4, "--duration", "9s", "-o", path) == 0
    out = capsys.readouterr().out
    assert shows(out, "preset mlperf … llama3.1-8b … seed 42")
    assert kvtrace(monkeypatch, "info", path) == 0
    out = capsys.readouterr().out
    assert "preset mlperf" in out
    assert "gpu write prefill" in " ".join(out.split())
    assert Path(path).exists()


def test_a_trace_that_is_there_is_replaced_if_that_is_said(tmp_path, monkeypatch, capsys):
    trace, table = tmp_path / "t.parquet", tmp_path / "r.parquet"
    made = ["gen", "--model", "tiny-1b", "--users", "1", "--duration", "2s"]
    assert kvtrace(monkeypatch, *made, "-o", trace) == 0
    before = trace.read_bytes()
    table.write_bytes(b"mine")
    (tmp_path / "alone.objects.parquet").write_bytes(b"mine")
    for more, named in (
        (["-o", trace], "t.parquet"),
        (
            ["-o", tmp_path / "alone.parquet"],
            "alone.objects.parquet",
        ),
        (
            ["-o", tmp_path / "u.parquet", "--requests-out", table],
            "r.parquet … --requests-out",
        ),
    ):
        capsys.readouterr()
        assert kvtrace(monkeypatch, *made, "--seed", "1", *more) == 4
        assert shows(capsys.readouterr().err, f"{named} … --force")
    checkpoint = ["gen", "--preset", "checkpoint", "--duration", "20min", "-o", trace]
    assert kvtrace(monkeypatch, *checkpoint) == 4
    assert (trace.read_bytes(), table.read_bytes()) == (before, b"mine")
    again = ["-o", trace, "--seed", "1"]
    assert kvtrace(monkeypatch, *made, *again, "--requests-out", table, "--force") == 0
    assert trace.read_bytes() != before


@pytest.mark.first(limit_mib=1)
@pytest.mark.parametrize("limit_mib", [800, 700, 660, 900])
def test_a_simulation_out_of_memory_ends_in_one_line(tmp_path, limit_mib):
    # As on two processors: libraries reserve memory for a thread of each.
    code = "import os, resource; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])"
    code += f"; resource.setrlimit(resource.RLIMIT_AS, ({limit_mib} << 20,) * 2)"
    argv = [
        "gen",
        "--users",
        "200000",
        "--duration",
        "20min",
        "--preset",
        "lmcache-disk",
        "-o",
        "t.parquet",
        "--quiet",
    ]
    code += "; from kvtrace.cli import app; from kvtrace.core.app import run; run(app, 'kvtrace')"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    is_said = "fewer users" in done.stderr or "out of memory" in done.stderr
    assert (done.returncode, is_said, done.stderr.count("\n")) == (7, True, 1), done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_left_of_memory_is_looked_at_as_it_is_taken(tmp_path, monkeypatch, capsys):
    left = iter([1 << 40] * 3)
    monkeypatch.setattr("kvtrace.core.memory.available_bytes", lambda: next(left, 1_000_000))
    argv = (
        "--users",
        500,
        "--duration",
        "20min",
        "--preset",
        "lmcache-disk",
        "--quiet",
        "-o",
        tmp_path / "t.parquet",
    )
    assert kvtrace(monkeypatch, "gen", *argv) == 7
    said = r"simulation … 1.00 MB"
    assert shows(capsys.readouterr().err, said)
    assert not list(tmp_path.iterdir())


def test_a_simulation_goes_without_memory_signals_if_it_must():
    # Nothing but the simulation allocates: other libraries end the process.
    code = """
import pathlib, resource
from kvtrace.llm.catalogue import find_model
from kvtrace.sim import simulation
from kvtrace.sim.presets.preset import load_preset

simulation.check_memory = lambda _bytes: None
load = simulation.Load(users=100_000, until_ns=1200 * 10**9)
started = simulation.Simulation(load_preset("lmcache-disk", ["chunk_tokens=16"]), find_model("llama3.1-8b"), load)
taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20),) * 2)
try:
    started.run(started.give_back)
except MemoryError:
    print("no memory after", started.world.total.requests)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"no memory after [1-9][0-9]*\n", done.stdout)
