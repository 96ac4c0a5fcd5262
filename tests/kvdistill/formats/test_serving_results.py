"""Results of serving benchmarks, as the released packages wrote them, imported, reported and
compared.

The samples: `vllm bench serve` 0.32.0 against a server that answers after 30 ms and then each 3 ms;
AIPerf 0.13.0's export of ten requests, and LMCache 0.5.6's of twelve, one of them failed, that were
given to their own writers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import run_cli
from phrases import shows

from kvtrace.core.run.run_file import read_run

SAMPLES = Path(__file__).parents[2] / "golden" / "engines" / "bench"


def import_file(tmp_path, kind, path):
    run_cli("kvdistill", "import", kind, path, "-o", tmp_path / "out")
    return read_run(tmp_path / "out")


def imported(tmp_path, kind, sample, out=None):
    run_cli("kvdistill", "import", kind, SAMPLES / sample, "-o", tmp_path / (out or sample))
    return read_run(tmp_path / (out or sample))


def test_vllm_summaries_hold_what_it_printed(tmp_path):
    said = json.loads((SAMPLES / "vllm-0.32.0.json").read_text())
    run = imported(tmp_path, "vllm-bench", "vllm-0.32.0.json")
    found = run.serving
    assert (found.requests, found.failed_requests) == (10, 0)
    assert (found.input_tokens, found.output_tokens) == (160, 80)
    assert run.summary.wall_ns == round(said["duration"] * 1e9)
    assert found.requests_per_s == said["request_throughput"]
    assert found.output_tokens_per_s == said["output_throughput"]
    assert found.input_tokens_per_s == 160 / said["duration"]
    for metric, times in (
        ("ttft", found.first_token),
        ("itl", found.inter_token),
        ("tpot", found.output_token),
    ):
        assert times.mean_ns == round(said[f"mean_{metric}_ms"] * 1e6)
        assert times.p50_ns == round(said[f"median_{metric}_ms"] * 1e6)
        assert times.p99_ns == round(said[f"p99_{metric}_ms"] * 1e6)
        assert times.max_ns is None
    assert (found.first_token.count, found.inter_token.count) == (10, None)
    assert run.host["model_id"] == "tiny"


def test_vllm_details_give_every_request_and_gap(tmp_path):
    said = json.loads((SAMPLES / "vllm-0.32.0-detailed.json").read_text())
    found = imported(tmp_path, "vllm-bench", "vllm-0.32.0-detailed.json").serving
    ordered = sorted(said["ttfts"])
    assert (found.first_token.count, found.first_token.max_ns) == (10, round(ordered[-1] * 1e9))
    assert found.first_token.p50_ns == round(ordered[4] * 1e9)
    assert (found.first_token.p90_ns, found.first_token.p95_ns) == (round(ordered[8] * 1e9), None)
    assert found.inter_token.count == sum(len(gaps) for gaps in said["itls"]) == 70


def test_failed_requests_count_in_no_gap_between_tokens(tmp_path):
    said = json.loads((SAMPLES / "vllm-0.32.0-detailed.json").read_text())
    said |= {
        "ttfts": [0.5, 0.0],
        "itls": [[0.01, 0.03], [9.0]],
        "errors": ["", "cut off"],
        "completed": 1,
        "failed": 1,
    }
    (tmp_path / "v.json").write_text(json.dumps(said))
    found = imported(tmp_path, "vllm-bench", tmp_path / "v.json", "out").serving
    assert (found.first_token.count, found.first_token.max_ns) == (1, 500_000_000)
    assert (found.inter_token.count, found.inter_token.mean_ns) == (2, 20_000_000)


@pytest.mark.parametrize(
    ("kind", "sample", "within", "zeros"),
    [
        ("vllm-bench", "vllm-0.32.0.json", None, {"completed": 0, "failed": 10}),
        (
            "lmcache-bench",
            "lmcache-0.5.6.json",
            "results",
            {"successful_requests": 0, "failed_requests": 12},
        ),
    ],
)
def test_where_every_request_failed_no_time_was_measured(tmp_path, kind, sample, within, zeros):
    said = json.loads((SAMPLES / sample).read_text())
    told = said[within] if within else said
    told |= zeros | {name: 0.0 for name in told if name.endswith("_ms")}
    (tmp_path / "r.json").write_text(json.dumps(said))
    found = imported(tmp_path, kind, tmp_path / "r.json", "out").serving
    assert (found.requests, found.failed_requests) == (0, next(of for of in zeros.values() if of))
    assert (found.first_token, found.inter_token, found.output_token, found.answer) == (
        None,
        None,
        None,
        None,
    )


def test_lmcache_counts_failures_and_leaves_speeds_out(tmp_path):
    summary = imported(tmp_path, "lmcache-bench", "lmcache-0.5.6.json")
    found = summary.serving
    assert (found.requests, found.failed_requests) == (11, 1)
    assert (found.first_token.mean_ns, found.first_token.p50_ns) == (105_454_545, 110_000_000)
    assert (found.first_token.p95_ns, found.output_token) == (None, None)
    assert shows(summary.summary.verdict, "11 requests, 1 FAILED")
    rows = imported(tmp_path, "lmcache-bench", "lmcache-0.5.6.csv").serving
    assert (rows.requests, rows.failed_requests) == (11, 1)
    assert (rows.first_token.mean_ns, rows.first_token.p50_ns) == (105_454_545, 110_000_000)
    assert rows.output_token.mean_ns == 5_000_000
    assert (rows.first_token.max_ns, rows.answer.max_ns) == (160_000_000, 260_000_000)


def test_aiperf_says_the_same_in_both_its_files(tmp_path):
    said = json.loads((SAMPLES / "aiperf-0.13.0.json").read_text())
    found = imported(tmp_path, "aiperf", "aiperf-0.13.0.json").serving
    assert (found.benchmark, found.requests) == ("AIPerf 0.13.0", 10)
    assert found.first_token.mean_ns == round(said["time_to_first_token"]["avg"] * 1e6)
    assert found.first_token.p99_ns == round(said["time_to_first_token"]["p99"] * 1e6)
    assert (found.inter_token, found.output_token.p90_ns) == (
        None,
        round(said["inter_token_latency"]["p90"] * 1e6),
    )
    assert found.requests_per_s == said["request_throughput"]["avg"]
    rows = imported(tmp_path, "aiperf", "aiperf-0.13.0.csv").serving
    assert (rows.requests, rows.output_tokens) == (found.requests, found.output_tokens)
    assert rows.first_token.p99_ns == pytest.approx(found.first_token.p99_ns, abs=10_000)
    assert rows.requests_per_s == pytest.approx(found.requests_per_s, abs=0.01)


def test_a_count_of_requests_beyond_all_numbers_is_one_error(tmp_path):
    said = json.loads((SAMPLES / "aiperf-0.13.0.json").read_text())
    said["request_count"]["avg"] = 2**64 - 1
    (tmp_path / "a.json").write_text(json.dumps(said))
    argv = ("kvdistill", "import", "aiperf", tmp_path / "a.json", "-o", tmp_path / "out")
    done = run_cli(*argv, check=False)
    assert done.returncode == 3
    assert "a.json" in done.stderr
    assert not (tmp_path / "out" / "run.json").exists()


def test_aiperf_of_2025_has_its_metrics_in_records(tmp_path):
    def metric(avg: float, unit: str, **more: float) -> dict:
        return {"avg": avg, "unit": unit, "p1": None, **more}

    metrics = {
        "request_count": metric(89, "requests", count=1),
        "error_request_count": metric(11, "requests"),
        "ttft": metric(2343.2194, "ms", p50=2369.3177, p99=3833.389, count=89),
        "total_isl": metric(48950, "tokens"),
        "benchmark_duration": metric(9.317788951, "sec"),
    }
    (tmp_path / "r.json").write_text(json.dumps({"records": metrics, "was_cancelled": False}))
    result = import_file(tmp_path, "aiperf", tmp_path / "r.json")
    serving = result.serving
    assert (serving.requests, serving.failed_requests) == (89, 11)
    assert serving.first_token.p50_ns == 2_369_317_700
    assert serving.input_tokens_per_s == pytest.approx(48950 / 9.317788951)


def test_aiperf_records_of_requests_are_pooled(tmp_path):
    def record(number: int, first_token_ms: float | None, **metadata: object) -> str:
        metrics = {"input_sequence_length": {"value": 100 * number, "unit": "tokens"}}
        if first_token_ms is not None:
            metrics["time_to_first_token"] = {"value": first_token_ms, "unit": "ms"}
        begin = 10**18 + number * 10**9
        times = {"request_start_ns": begin, "request_end_ns": begin + 5 * 10**8}
        failed = {"error": {"code": 499}} if first_token_ms is None else {}
        return json.dumps({"metadata": times | metadata, "metrics": metrics} | failed)

    lines = [
        record(0, 9.0, benchmark_phase="warmup"),
        record(1, 10.0),
        record(2, 30.0),
        record(3, None),
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    result = import_file(tmp_path, "aiperf", tmp_path / "r.jsonl")
    serving = result.serving
    assert (serving.requests, serving.failed_requests, serving.input_tokens) == (2, 1, 300)
    assert (serving.first_token.mean_ns, serving.first_token.max_ns) == (20_000_000, 30_000_000)
    assert result.summary.wall_ns == 25 * 10**8


def test_serving_results_are_compared_with_the_time_model(tmp_path):
    imported(tmp_path, "vllm-bench", "vllm-0.32.0.json")
    imported(tmp_path, "lmcache-bench", "lmcache-0.5.6.json")
    trace = tmp_path / "t.parquet"
    run_cli("kvtrace", "gen", "--preset", "lmcache-disk", "--model", "llama3.1-8b", "--users", 2, "--duration", "20s",
            "--gpu", "h100", "--set", "tiers.nvme.read_bandwidth=7GB", "-o", trace)  # fmt: skip
    sides = (tmp_path / "vllm-0.32.0.json", tmp_path / "lmcache-0.5.6.json", trace)
    compared = json.loads(run_cli("kvdistill", "compare", *sides, "--json").stdout)
    lines = {
        line["name"]: [side["median"] for side in line["sides"]]
        for line in compared["lines"]
        if not line["tier"]
    }
    stats = json.loads(run_cli("kvtrace", "info", trace, "--json").stdout)
    modelled = stats["metadata"]["stats"]["first_token"]["with_cache"]["p50_ns"]
    assert lines["first_token_p50_ns"] == [39_317_194, 110_000_000, modelled]
    assert lines["requests"][:2] == [10, 11]
    assert lines["failed_requests"] == [0, 1, None]
    assert shows(compared["verdict"], "1 … 12 requests … lmcache-0.5.6.json FAILED")
    assert lines["output_tokens_per_s"][2] is None
    said = "t.parquet: … modelled"
    assert shows(compared["warnings"], said)


def test_a_report_shows_them_and_no_operations(tmp_path):
    imported(tmp_path, "vllm-bench", "vllm-0.32.0.json")
    said = run_cli("kvdistill", "report", tmp_path / "vllm-0.32.0.json").stdout
    assert shows(said, "vllm … 10 requests")
    assert "first token" in said
    assert "no operation" not in said


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        (
            "vllm-bench",
            "r.json",
            '{"duration": 1, "completed": 1}\n{"duration": 1, "completed": 1}',
            "holds 2 results",
        ),
        ("vllm-bench", "r.json", "{}", "vllm bench serve"),
        ("vllm-bench", "r.json", '{"duration": -1, "completed": 1}', "-1.0"),
        (
            "vllm-bench",
            "r.json",
            '{"duration": 1, "completed": 1, "request_throughput": -1}',
            "requests_per_s",
        ),
        ("aiperf", "r.json", "{}", "metrics"),
        ("aiperf", "r.json", '{"time_to_first_token": {"unit": "h", "avg": 1}}', "times in 'h'"),
        ("aiperf", "r.csv", "a,b\n1,2\n", "metrics"),
        ("lmcache-bench", "r.json", "{}", "lmcache bench engine"),
        ("lmcache-bench", "r.csv", "a,b\n1,2\n", "lmcache bench engine"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, kind, name, text, said):
    (tmp_path / name).write_text(text)
    ended = run_cli(
        "kvdistill", "import", kind, tmp_path / name, "-o", tmp_path / "out", check=False
    )
    assert ended.returncode == 3
    assert shows(ended.stderr, said)
    assert len(ended.stderr.splitlines()) == 1


def test_what_lmcache_does_not_say_is_null(tmp_path):
    said = json.loads((SAMPLES / "lmcache-0.5.6.json").read_text())
    said["results"] = {
        name: of for name, of in said["results"].items() if not name.startswith(("p50", "p90"))
    }
    (tmp_path / "r.json").write_text(json.dumps(said))
    run_cli("kvdistill", "import", "lmcache-bench", tmp_path / "r.json", "-o", tmp_path / "out")
    found = read_run(tmp_path / "out").serving
    assert (found.first_token.p50_ns, found.answer.p90_ns) == (None, None)
    assert found.first_token.mean_ns == 105_454_545
    # It is a run to SQL, too, and has no operations.
    (run,) = json.loads(run_cli("kvdistill", "sql", tmp_path / "out", "FROM runs", "--json").stdout)
    assert (run["verdict"][:20], run["status"], run["queue_depth"]) == (
        "lmcache bench engine",
        "complete",
        None,
    )
    refused = run_cli("kvdistill", "sql", tmp_path / "out", "FROM ops", check=False).stderr
    assert shows(refused, "runs")


@pytest.mark.parametrize(
    ("kind", "sample", "place", "field"),
    [
        ("vllm-bench", "vllm-0.32.0.json", ("p99_ttft_ms",), "p99_ttft_ms"),
        ("vllm-bench", "vllm-0.32.0.json", ("max_concurrency",), "max_concurrency"),
        ("vllm-bench", "vllm-0.32.0-detailed.json", ("mean_itl_ms",), "mean_itl_ms"),
        ("lmcache-bench", "lmcache-0.5.6.json", ("results", "p90_ttft_ms"), "results.p90_ttft_ms"),
        ("lmcache-bench", "lmcache-0.5.6.json", ("config", "seed"), "config.seed"),
    ],
)
def test_a_negative_number_counts_as_unmeasured(tmp_path, kind, sample, place, field):
    result = json.loads((SAMPLES / sample).read_text())
    values = result
    for name in place[:-1]:
        values = values[name]
    values[place[-1]] = -1
    (tmp_path / "r.json").write_text(json.dumps(result))
    run_cli("kvdistill", "import", kind, tmp_path / "r.json", "-o", tmp_path / "out")
    text = (tmp_path / "out" / "run.json").read_text()
    (note,) = [note for note in json.loads(text)["notes"] if "negative" in note]
    assert f"1 number of {field}" in note
    assert not re.search(r": -[0-9]", text)


def test_negative_times_of_rows_are_left_out_of_the_duration(tmp_path):
    lines = (SAMPLES / "lmcache-0.5.6.csv").read_text().splitlines()
    header = lines[0].split(",")
    cells = lines[1].split(",")
    cells[header.index("submit_time")] = cells[header.index("decode_speed")] = "-1"
    (tmp_path / "r.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:], ""]))
    run_cli("kvdistill", "import", "lmcache-bench", tmp_path / "r.csv", "-o", tmp_path / "out")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    (note,) = [note for note in run["notes"] if "negative" in note]
    assert "2 numbers of decode_speed, submit_time" in note
    assert run["summary"]["wall_ns"] < 10 * 10**9
