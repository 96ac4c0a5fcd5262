"""`kvtrace study`.

Each row is what gen counts, what is done is kept, a failure is a row, and the page shows it.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import duckdb
import pytest
from conftest import run_cli
from phrases import shows
from study_workers import BEGIN, SMALL, study_file
from whole import read_table

from kvtrace.core.schema import STUDY, TRACE
from kvtrace.core.tables import open_table

MIB = 2**20


def study(path, out, *options, **kwargs):
    return run_cli("kvtrace", "study", path, "-o", out, "--workers", "1", *options, **kwargs)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return a study that is over: its folder, and its results as JSON."""
    folder = tmp_path_factory.mktemp("study")
    made = study(study_file(folder), folder / "out", "--json", "--target-hit", "5%")
    return folder, json.loads(made.stdout)


def test_each_row_is_what_gen_counts(done, tmp_path):
    folder, found = done
    rows = read_table(folder / "out" / "results.parquet", STUDY).to_pylist()
    assert len(rows) == len(found["rows"]) == 12
    assert len({row["hit_ratio"] for row in rows}) > 3
    for row in rows[::5]:
        made = run_cli(*row["command"].split(), "-o", tmp_path / "t.parquet", "--json", "--force")
        stats = json.loads(made.stdout)["stats"]
        assert row["hit_ratio"] == pytest.approx(
            sum(tier["hits"] for tier in stats["tiers"]) / stats["lookups"]
        )
        for tier in stats["tiers"]:
            for name in ("hit_ratio", "read_bytes", "written_bytes"):
                assert row[f"tier.{tier['name']}.{name}"] == tier[name]
        assert row["first_token_p50_ns"] == stats["first_token"]["with_cache"]["p50_ns"]
        assert row["recomputed_tokens"] == stats["input_tokens"] - 256 * sum(
            t["hits"] for t in stats["tiers"]
        )
        assert row["error"] is None


def test_the_table_has_knobs_prices_and_units(done):
    folder, _ = done
    path = folder / "out" / "results.parquet"
    row = read_table(path, STUDY).to_pylist()[4]
    assert (row["knob.seed"], row["knob.tiers.nvme.policy"], row["knob.tiers.nvme.capacity"]) == (
        1,
        "fifo",
        "256MiB",
    )
    assert (row["price"], row["tier.nvme.capacity_bytes"], row["capacity_bytes"]) == (
        0.25,
        256 * MIB,
        384 * MIB,
    )
    # Of three seconds no 99th can be told.
    assert row["tier.nvme.p99_second_read_bytes_per_s"] is None
    assert row["tier.nvme.write_bytes_per_s"] == row["tier.nvme.written_bytes"] / 3
    meta = open_table(path).meta
    assert (meta.table, meta.rows, meta.is_simulated) == ("study", 12, True)
    assert [tier.name for tier in meta.tiers] == ["gpu", "cpu", "nvme"]
    assert duckdb.read_parquet(str(path)).filter('"knob.seed" = 2').shape[0] == 6


def test_the_first_line_is_the_answer(done):
    folder, found = done
    shown = study(folder / "study.toml", folder / "out", "--target-hit", "5%").stdout.splitlines()
    assert shown[0] == found["answer"]
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in found["rows"]:
        knobs = row["knobs"]
        key = (knobs["tiers.nvme.policy"], knobs["tiers.nvme.capacity"])
        ratios.setdefault(key, []).append(row["hit_ratio"])
    # The best is that of the mean over the seeds, of those whose loads are not slower than computing.
    best = found["best"]["knobs"]
    policy, capacity = best["tiers.nvme.policy"], best["tiers.nvme.capacity"]
    assert found["best"]["hit_ratio"] == pytest.approx(sum(ratios[policy, capacity]) / 2)
    best_text = f"tiers.nvme.policy={policy}, tiers.nvme.capacity={capacity}"
    assert best_text in shown[0].partition(";")[0]
    assert shows(shown[0], "cheapest … 5 %: tiers.nvme.")
    assert found["basis"] == "simulated"


def test_a_best_of_a_gpu_without_bound_is_warned_of(tmp_path):
    knobs = 'preset = "lmcache-disk"\nmodel = "tiny-1b"\nusers = 4\nduration = "3s"'
    (tmp_path / "s.toml").write_text(
        f'[base]\n{knobs}\n[grid]\ntiers.gpu.capacity = ["64MiB", "0"]\n'
    )
    line, warned, *_ = study(tmp_path / "s.toml", tmp_path / "out").stdout.splitlines()
    assert "tiers.gpu.capacity=0" in line
    assert shows(warned, "tiers.gpu.capacity=0:")
    listed = json.loads(study(tmp_path / "s.toml", tmp_path / "out", "--json").stdout)["rows"]
    assert [len(row["notes"]) for row in listed] == [0, 1]
    # Of several ranks that share an object, too, the memory is of all: 141 GB of weights fit two
    # GPUs, and not one.
    knobs = (
        'preset = "vllm-fs"\nmodel = "llama3.1-70b"\nusers = 1\nduration = "1s"\ntiers.gpu.capacity'
        ' = "16GiB"'
    )
    (tmp_path / "s.toml").write_text(f"[base]\n{knobs}\n[grid]\ntp = [1, 2]\n")
    listed = json.loads(study(tmp_path / "s.toml", tmp_path / "out", "--json").stdout)["rows"]
    assert [len(row["notes"]) for row in listed] == [1, 0]


def test_what_is_done_is_not_simulated_again(done, monkeypatch):
    folder, _ = done
    before = (folder / "out" / "results.parquet").read_bytes()
    monkeypatch.setattr("kvtrace.studies.worker.simulate", None)
    again = study(folder / "study.toml", folder / "out")
    assert shows(again.stderr, "12 … 12 configurations")
    assert (folder / "out" / "results.parquet").read_bytes() == before


def test_what_was_changed_since_it_was_kept_is_simulated_again(done, tmp_path):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "again")
    kept = sorted((tmp_path / "again" / "out" / "simulated").glob("*.json"))
    found = json.loads(kept[0].read_text())
    found["result"]["requests"] += 1
    kept[0].write_text(json.dumps(found))
    again = study(tmp_path / "again" / "study.toml", tmp_path / "again" / "out")
    assert shows(again.stderr, "11 … 12 configurations")
    assert json.loads(kept[0].read_text())["result"]["requests"] == found["result"]["requests"] - 1


def test_a_study_grows_and_an_edited_file_of_requests_counts(tmp_path, monkeypatch):
    requests = tmp_path / "r.jsonl"
    line = (
        '{{"timestamp": {0}, "input_length": 1024, "output_length": 8, "hash_ids": [{1}, {2}]}}\n'
    )
    requests.write_text("".join(line.format(1000 * n, n % 3, 10 + n % 3) for n in range(9)))
    made = []
    from kvtrace.studies import worker as command

    whole = command.simulate
    monkeypatch.setattr(command, "simulate", lambda task: (made.append(task.argv), whole(task))[1])
    text = (
        f'[base]\nfile = "{requests}"\nsource = "mooncake"\npreset = "lmcache-disk"\nmodel ='
        ' "tiny-1b"\n[grid]\n'
    )
    study(study_file(tmp_path, text + "chunk_tokens = [256]"), tmp_path / "out")
    study(study_file(tmp_path, text + "chunk_tokens = [256, 512]"), tmp_path / "out")
    assert [argv[-1] for argv in made] == ["chunk_tokens=256", "chunk_tokens=512"]
    with requests.open("a") as out:
        out.write(line.format(60_000, 7, 8))
    study(study_file(tmp_path, text + "chunk_tokens = [256, 512]"), tmp_path / "out")
    assert len(made) == 4


def test_a_failed_configuration_is_a_row(tmp_path):
    path = study_file(tmp_path, BEGIN + '[grid]\ntiers.nvme.policy = ["lru", "newest", "fifo"]')
    found = json.loads(study(path, tmp_path / "out", "--json").stdout)
    rows = read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()
    assert found["failed"] == 1
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert "policy" in rows[1]["error"]
    assert rows[1]["hit_ratio"] is None
    shown = study(path, tmp_path / "out").stdout
    assert shows(shown, "1 … 3 configurations")


def test_memory_does_not_wear_and_one_node_needs_no_router(tmp_path):
    """A stack without a drive had drive writes a day, and a router of one node changed nothing,
    unsaid.
    """
    begin = '[base]\npreset = "vllm-offload-cpu"\nmodel = "tiny-1b"\nusers = 2\nduration = "3s"\n'
    shown = study(study_file(tmp_path, begin), tmp_path / "out").stdout
    assert "drive writes" not in shown
    row = read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()[0]
    assert (row["tier.cpu.drive_writes_per_day"], row["tier.cpu.written_bytes"] > 0) == (None, True)
    sized = study(study_file(tmp_path, begin + 'drive-size = "1TB"'), tmp_path / "out").stdout
    assert "drive-size:" in sized
    routed = study(study_file(tmp_path, begin + 'router = "prefix"'), tmp_path / "out", check=False)
    assert shows(routed.stderr, "--router … --nodes")
    both = study(
        study_file(tmp_path, begin + 'router = "prefix"\n[grid]\nnodes = [1, 2]'),
        tmp_path / "out",
        "--json",
    )
    assert [row["error"] for row in json.loads(both.stdout)["rows"]] == [None, None]


def test_if_all_fail_so_does_the_study(tmp_path):
    path = study_file(tmp_path, BEGIN + '[grid]\ntiers.nvme.policy = ["newest", "oldest"]')
    done = study(path, tmp_path / "out", check=False)
    assert done.returncode == 2
    assert "2 configurations" in done.stderr


def test_a_missing_file_of_a_configuration_is_named_as_by_gen(tmp_path):
    done = study(study_file(tmp_path, '[base]\nfile = "none.jsonl"'), tmp_path / "out", check=False)
    assert (done.returncode, "none.jsonl:" in done.stderr) == (3, True)


def test_the_list_simulates_nothing(tmp_path):
    shown = run_cli(
        "kvtrace", "study", study_file(tmp_path), "--list", "-o", tmp_path / "out"
    ).stdout.splitlines()
    assert shown[0] == "12 configurations"
    assert shown[1] == "0: seed=1, tiers.nvme.policy=lru, tiers.nvme.capacity=64MiB"
    assert not (tmp_path / "out").exists()


def test_what_gen_refuses_is_refused_before_any_simulation(tmp_path):
    path = study_file(tmp_path, BEGIN + "[grid]\ntp = [1, 0]")
    done = study(path, tmp_path / "out", check=False)
    assert done.returncode == 2
    assert shows(done.stderr, f"{path}: configuration 1: … '--tp'")
    assert not (tmp_path / "out").exists()


def test_traces_are_written_if_asked_for(tmp_path):
    text = BEGIN + "[grid]\nseed = [1, 2]"
    study(study_file(tmp_path, text), tmp_path / "out", "--with-traces")
    run_cli("kvtrace", "gen", "--preset", "lmcache-disk", "--model", "tiny-1b", "--users", "2", "--duration", "3s",
            "--seed", "2", "--set", "tiers.gpu.capacity=64MiB", "--set", "tiers.cpu.capacity=64MiB",
            "-o", tmp_path / "t.parquet", "--force")  # fmt: skip
    assert (tmp_path / "out" / "traces" / "1.parquet").read_bytes() == (
        tmp_path / "t.parquet"
    ).read_bytes()


def test_the_page(done):
    pytest.importorskip("matplotlib")
    folder, found = done
    study(folder / "study.toml", folder / "out", "--target-hit", "5%")
    page = (folder / "out" / "study.html").read_text()
    assert f'<p class="headline">{found["answer"]}</p>' in page
    for chart in (
        "hit rate against price",
        "mean hit rate, from the worst to the best value of each knob",
    ):
        assert f'aria-label="{chart}"' in page
    assert 'aria-label="hit rate' in page


def test_traces_are_of_their_configurations_after_any_study(tmp_path):
    """Kept results stand for a configuration, traces for its place in the study, which may be
    another's by now.
    """

    def capacities(sizes):
        text = BEGIN + f'[grid]\ntiers.nvme.capacity = ["{sizes[0]}MiB", "{sizes[1]}MiB"]'
        study(study_file(tmp_path, text), tmp_path / "out", "--with-traces")
        traces = [tmp_path / "out" / "traces" / f"{number}.parquet" for number in range(2)]
        return [
            open_table(trace, TRACE).meta.tiers[-1].capacity_bytes // MIB for trace in traces
        ], traces

    assert capacities([256, 512])[0] == [256, 512]
    assert capacities([512, 256])[0] == [512, 256]
    assert capacities([512, 512])[0] == [512, 512], "one that is asked for twice has two traces"
    found, traces = capacities([512, 1024])
    assert found == [512, 1024]
    made = [trace.stat().st_mtime_ns for trace in traces]
    capacities([512, 1024])
    assert [trace.stat().st_mtime_ns for trace in traces] == made, "what is done is kept"


@pytest.mark.full
def test_ctrl_c_keeps_what_is_done(tmp_path):
    text = SMALL.replace("seed = [1, 2]", f"seed = {list(range(200))}")
    path, out = study_file(tmp_path, text), tmp_path / "out"
    argv = [
        sys.executable,
        "-m",
        "kvtrace.cli",
        "study",
        str(path),
        "-o",
        str(out),
        "--workers",
        "1",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and len(list((out / "simulated").glob("*.json"))) < 3:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = len(list((out / "simulated").glob("*.json")))
    assert 3 <= kept < 1200
    # It may come between a result's file and its count.
    assert any(shows(said, f"{count} … 1200 configurations") for count in (kept, kept - 1))
    assert not (out / "results.parquet").exists()
    # A smaller study of the same takes what is there.
    again = study(study_file(tmp_path, SMALL.replace("seed = [1, 2]", "seed = [0]")), out)
    assert "configurations were simulated before" in again.stderr
