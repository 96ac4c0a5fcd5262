"""What a report has beside a run's own figures.

Probes, requests, closeness, reuse; and several beside each other.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import MS, change_run, io, write_hand, write_probe, write_run
from phrases import Saying, show_each, shows
from run_files import figures

from kvdistill.profile.locality import reuse_distances, tier_reuse
from kvdistill.queries.database import opened
from kvdistill.reports.compare import compare
from kvdistill.reports.jobs import JobsReport
from kvdistill.reports.output import documents_of, make_reports, report, write_report
from kvdistill.reports.probe import ProbeReport
from kvdistill.reports.tables import ReportedTrials
from kvtrace.core.document.export import csv_lines, markdown
from kvtrace.core.document.page import html_page
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import read_run

SIDE = {
    "side": "fio",
    "ios": 10,
    "read_share": 0.5,
    "ios_per_s": 1.0,
    "bytes_per_s": 1.0,
    "size_tv": None,
}
CLOSENESS = {
    "fio_version": "3.33", "notes": ["the target is slow"],
    "comparisons": [{
        "job": "replay.fio", "window": "the first 3 s", "source": SIDE | {"name": "source"},
        "fio": SIDE | {"name": "replay", "size_tv": 0.25},
        "verdicts": [
            {"name": "size TV", "target": "<= 0.015", "value": 0.25, "passes": False},
            {"name": "read share", "target": "within 1.5 %", "value": -0.0125, "passes": True},
            {"name": "same I/Os", "target": "yes", "value": True, "passes": True},
            {"name": "end slip", "target": "<= 1 %", "value": None, "passes": None},
            {"name": "bytes a second", "target": "within 1.5 %", "value": 0.5, "passes": None,
             "reason": "15 operations"},
        ],
    }],
}  # fmt: skip


def test_reuse_distance_is_the_bytes_of_others_between(tmp_path):
    # Object 0 (1000 bytes), 1 (2000), 2 (4000), then 1 after 4000, 0 after 2000 + 4000, 0 at once.
    rows = [
        io(1, "write", 0, 1000), io(2, "write", 1, 2000), io(3, "write", 2, 4000), io(4, "read", 1, 2000),
        io(5, "read", 0, 1000), io(6, "read", 0, 1000), io(7, "read", 3, 8),
    ]  # fmt: skip
    (reuse,) = report(write_trace(tmp_path / "t.parquet", rows)).reuse
    assert (reuse["tier"], reuse["reads"], reuse["first_reads"], reuse["is_whole"]) == (
        "nvme",
        4,
        1,
        True,
    )
    assert (reuse["p50_bytes"], reuse["p95_bytes"], reuse["max_bytes"]) == (4000, None, 6000)
    assert reuse["bins"] == [
        {"low_bytes": 0, "reads": 1}, {"low_bytes": 2048, "reads": 1}, {"low_bytes": 4096, "reads": 1},
    ]  # fmt: skip


def test_reuse_distances_agree_with_counting():
    rng = np.random.default_rng(5)
    things, weights = rng.integers(0, 9, 200), rng.integers(1, 50, 200)
    expected = []
    for i, thing in enumerate(things):
        before = [k for k in range(i) if things[k] == thing]
        between = range(before[-1] + 1, i) if before else []
        last = {things[k]: weights[k] for k in between}
        expected.append(sum(last.values()) if before else -1)
    assert reuse_distances(things, weights, 9).tolist() == expected


def test_simulated_tiers_have_null_reuse_not_zero_bytes(tmp_path):
    trace, tier = write_hand(tmp_path), "nvme=sim:bandwidth=1GB,latency=10us"
    run_cli("kvreplay", "run", trace, "--tier", tier, "-o", tmp_path / "run")
    assert report(tmp_path / "run").reuse == []


def test_the_reuse_of_a_run_is_that_of_what_completed(tmp_path):
    run = write_run(tmp_path / "run", [1000] * 4)
    with opened([run / "ops.parquet"]) as db:
        (reuse,) = tier_reuse(db, ["nvme"])
    assert (reuse["reads"], reuse["first_reads"], reuse["p50_bytes"]) == (4, 4, None)
    failed = write_run(tmp_path / "failed", [1000], outcome="error")
    with opened([failed / "ops.parquet"]) as db:
        assert tier_reuse(db, ["nvme"]) == []


@pytest.mark.full
def test_a_probe_has_a_report_of_its_own_and_in_its_run(tmp_path):
    found = report(write_probe(tmp_path / "probe"))
    assert isinstance(found, ProbeReport)
    assert shows(found.answer, "0.6 requests/s … 4 KiB … 2.46 kB/s, p99 … 100 … 5.00 s")
    q2d, d2c = found.layers
    assert (q2d["layer"], q2d["op"], q2d["count"], q2d["p50_ns"]) == ("q2d", "read", 3, 1024.5)
    assert (d2c["layer"], d2c["longest_below_ns"], d2c["p95_ns"]) == ("d2c", 131072, None)
    assert found.in_flight == [
        {"op": "read", "in_flight": 1, "count": 2},
        {"op": "read", "in_flight": 2, "count": 1},
    ]
    assert (found.directions[0]["requeues"], found.heat) == (1, [])
    run = write_run(tmp_path / "run", [1000] * 4)
    write_probe(run)
    documents = documents_of([report(run), found], ["run", "probe"])
    lines = csv_lines(documents).splitlines()
    assert shows(lines, "requeues,count,1")
    assert shows(lines, "D2C) read,p50_ns,ns,65536.5")
    assert shows(lines, "read 4096,count,count,3")
    page = html_page(documents, "test")
    assert "a &lt;b&gt; c" in page
    (tmp_path / "probe" / "probe.json").write_text('{"block": {"directions": {"read": {}}}}')
    with pytest.raises(TraceError, match="this version"):
        report(tmp_path / "probe")


def test_only_probes_that_the_run_started_join_its_operations(tmp_path):
    run = write_run(tmp_path / "run", [1000] * 4)
    write_probe(run)
    found = report(run)
    assert (found.layers, found.probe.duration_ns) == (None, 5 * 10**9)
    change_run(run, probes={"is_measured": True})
    (moved,) = report(run).layers.moved
    assert (moved["object_bytes"], moved["device_bytes"]) == (16_000, 12_288)


def test_closeness_is_reported_with_its_marks(tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "closeness.json").write_text(json.dumps(CLOSENESS))
    (jobs / "profile.json").write_text(
        json.dumps({"tier": "nvme", "origin": {"file": "conv.parquet", "seed": None}})
    )
    found = report(jobs)
    assert isinstance(found, JobsReport)
    lines = markdown(documents_of([found], ["jobs"])).splitlines()
    assert "| replay | size TV | \\<= 0.015 | 0.25 | FAIL |" in lines
    assert shows(lines, "1.5 % | -1.25 % | pass")
    assert shows(lines, "| yes | yes | pass")
    assert shows(lines, "1 % | - | not measured")
    assert shows(lines, "1.5 % | 50 % | undetermined: 15 operations")
    said = "replay.fio: … 2 of 3 … 5"
    few = "1 undetermined … 15 operations"
    assert shows(lines, said)
    (picked,) = re.findall(
        r"grep -E '(.+fio.+)' ", (Path(__file__).parents[3] / "docs/demo.sh").read_text()
    )
    line = next(line for line in lines if shows(line, said))
    assert re.match(picked, line.removeprefix("- ")), "make demo shows this line"
    assert shows(lines, f"{said} … MISMATCH … TV (0.25); {few}; 1 not")
    # A miss whose reason is known says it.
    pair = CLOSENESS["comparisons"][0]
    missed, *others = pair["verdicts"]
    told = CLOSENESS | {
        "comparisons": [pair | {"verdicts": [missed | {"reason": "none waits"}, *others]}]
    }
    (jobs / "closeness.json").write_text(json.dumps(told))
    lines = markdown(documents_of([report(jobs)], ["jobs"])).splitlines()
    assert shows(lines, f"{said} … MISMATCH … TV (0.25) … TV: … {few}; 1 not")
    # 3 s, of which 100 times as many operations would settle it; of a source of 10 min, then of one
    # of 3 s.
    pair = CLOSENESS["comparisons"][0]
    verdicts = [*pair["verdicts"][:-1], pair["verdicts"][-1] | {"operations_factor": 100.0}]
    for whole_s, said_of_it in (
        (600, "--check-duration 5min"),
        (3, "--check-duration 5min … 3.00 s"),
    ):
        timed = pair | {"verdicts": verdicts, "span_ns": 3 * 10**9, "whole_ns": whole_s * 10**9}
        (jobs / "closeness.json").write_text(json.dumps(CLOSENESS | {"comparisons": [timed]}))
        text = " ".join(documents_of([report(jobs)], ["jobs"])[0].subject)
        assert shows(text, f"{few} … {said_of_it} … 1 not")
    assert "| figure | source of replay | replay |" in lines
    assert "| size tv | - | 0.25 |" in lines
    assert "| tier | nvme |" in lines
    run = write_run(tmp_path / "run", [1000] * 4)
    (run / "closeness.json").write_text(json.dumps(CLOSENESS))
    assert "Closeness" in markdown(documents_of([report(run)], ["run"]))


@pytest.mark.usefixtures("without_charts")
def test_classes_of_service_stand_beside_their_targets(tmp_path):
    run = write_run(tmp_path / "run", [1000] * 4)
    times = {"count": 3, "mean_ns": 5.0, "p50_ns": 4, "p95_ns": 60 * MS, "p99_ns": None, "p99_9_ns": None,
             "p99_99_ns": None, "max_ns": 9}  # fmt: skip
    targets = {"p95": 50 * MS, "p99": 100 * MS, "p99_9": 150 * MS, "p99_99": 200 * MS}
    of_class = {
        "qos": "interactive",
        "storage": times,
        "targets_ns": targets,
        "share_within_p95_target": 0.5,
    }
    unknown = dict.fromkeys(("first_token", "first_token_unknown", "first_token_reason"))
    counted = {"requests": 3, "storage": times, "first_token_definition": "d"}
    change_run(run, requests=counted | unknown | {"classes": [of_class | {"verdict": "fail"}]})
    documents = documents_of([report(run)], ["run"])
    text = csv_lines(documents)
    assert shows(text, "share_within_p95_target,share … 1,0.5")
    assert "interactive p95,target_ns,ns,50000000" in text
    assert "interactive p95,verdict,,fail" in text
    assert "interactive p99.9,verdict,,not measured" in text
    assert "p95_ns,ns,60000000" in text
    assert 'class="verdict fail"' in html_page(documents, "test")


@pytest.mark.usefixtures("without_charts")
def test_a_partial_run_says_so_before_any_figure(tmp_path):
    run = write_run(tmp_path / "run", [1000] * 4, verdict="FELL BEHIND: much")
    change_run(run, status="partial", reason="the disk is full")
    (document,) = documents_of([report(run)], ["run"])
    assert shows(". ".join(document.warnings), "PARTIAL: the disk … full")
    page = html_page([document], "test")
    assert (
        page.index("PARTIAL: FELL BEHIND")
        < page.index('class="highlights"')
        < page.index("PARTIAL: the disk")
        < page.index("<table")
    )
    told = markdown([document]).splitlines()
    assert told[2].startswith("PARTIAL: FELL BEHIND")
    assert shows(told[4], "PARTIAL: the disk … full")
    shown = run_cli("kvdistill", "report", run).stdout.splitlines()
    assert shown[1].startswith("PARTIAL: FELL BEHIND: much")
    assert shows(shown[2], "PARTIAL: the disk … full")


def test_failures_are_counted_and_include_corrupt_reads(tmp_path):
    # As in run.json: what failed, came up short, or brought corrupt blocks.
    outcomes = ["ok"] * 5 + ["error", "short", "corrupt", "corrupt", "skipped"]
    run = write_run(tmp_path / "run", [1000] * 10, outcome=outcomes)
    found = report(run)
    (row,) = found.figures
    assert (row["operations"], row["errors"], row["corrupt"], row["skipped"]) == (5, 4, 2, 1)
    assert found.failed() == (4, 9, "operations")
    assert found.warnings() == ["4 operations FAILED", Saying("2 … CORRUPT")]
    alone = msgspec.structs.replace(found, figures=[row | {"errors": 1, "corrupt": 1}])
    assert alone.warnings() == ["1 operation FAILED", Saying("1 … CORRUPT")]
    summary = msgspec.to_builtins(read_run(run).summary)
    of_run = msgspec.to_builtins(figures(operations=5, errors=4, corrupt=2))
    change_run(run, summary=summary | {"figures": [of_run]})
    assert report(run).of_model().failed() == found.failed()


def test_rows_of_other_nodes_do_not_make_a_run_an_empty_one(tmp_path):
    # As of `kvreplay run --node 1`: node 0's row comes first, and nothing did it.
    outcomes, engines = ["skipped", "ok", "ok"], ["none", "uring", "uring"]
    found = report(
        write_run(tmp_path / "run", [1000, 2000, 3000], outcome=outcomes, engine=engines)
    )
    (row,) = found.figures
    assert (row["engine"], row["operations"], row["skipped"]) == ("uring", 2, 1)
    assert found.warnings() == []
    assert ("nvme", "read", "bandwidth_bytes_per_s") in dict(found.compared())
    none = report(write_run(tmp_path / "none", [1000], outcome="skipped", engine="none"))
    assert none.figures[0]["engine"] == "none"


@pytest.mark.first(latencies=1)
@pytest.mark.parametrize(
    ("latencies", "outcome"),
    [([], "ok"), ([1000], "ok"), ([2**61], "ok"), ([0, 0], "ok"), ([1000], "error")],
)
def test_odd_runs_have_every_form(tmp_path, latencies, outcome):
    run = write_run(tmp_path / "a <script>x run", latencies, outcome=outcome)
    documents = make_reports([run], 5).documents
    for suffix in (".html", ".md", ".csv", ".xlsx"):
        write_report(documents, tmp_path / f"r{suffix}")
    page = (tmp_path / "r.html").read_text()
    assert "<script>x" not in page
    assert ("no operation" in page) == (not latencies or outcome == "error")


def test_a_folder_of_nothing_is_one_line(tmp_path):
    done = run_cli("kvdistill", "report", tmp_path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    (tmp_path / "run.partial.json").write_text("{}")
    assert (
        "kvreplay recover"
        in run_cli("kvdistill", "compare", tmp_path, tmp_path, check=False).stderr
    )
    (tmp_path / "ops.parquet").write_bytes(b"PAR1")
    done = run_cli("kvdistill", "report", tmp_path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)


def trials(folder, name, factor):
    for number, latency in enumerate((100, 102, 98), 1):
        (folder / name).mkdir(exist_ok=True)
        write_run(folder / name / f"trial-{number}", [latency * 1000 * factor] * 10)
    return folder / name


@pytest.mark.full
def test_trials_are_compared_with_confidence(tmp_path):
    a, b = trials(tmp_path, "a", 1), trials(tmp_path, "b", 2)
    found = json.loads(run_cli("kvdistill", "compare", a, b, "--json").stdout)
    assert (found["names"], found["trials"], found["warnings"]) == (["a", "b"], [3, 3], [])
    (line,) = [line for line in found["lines"] if line["name"] == "latency_p50_ns"]
    base, other = line["sides"]
    assert (base["median"], base["low"], base["high"]) == (100_000, 98_000, 102_000)
    # By naive arithmetic: logarithms of 98, 100, 102, their error, and t of 4 degrees of freedom
    # for 95 %.
    logs = [math.log(value) for value in (98, 100, 102)]
    reach = 2.7764451 * math.sqrt(2 * statistics.variance(logs) / 3)
    assert base["ratio"] == {
        "value": 1.0,
        "low": pytest.approx(math.exp(-reach)),
        "high": pytest.approx(math.exp(reach)),
        "differs": False,
        "trials_needed": 3,
    }
    assert other["ratio"]["value"] == 2
    bounds = (2 * math.exp(-reach), 2 * math.exp(reach))
    assert (other["ratio"]["low"], other["ratio"]["high"]) == pytest.approx(bounds)
    assert other["ratio"]["differs"] is True
    shown = run_cli("kvdistill", "compare", a, b).stdout
    assert "read  latency_p50_ns" in shown
    documents = make_reports([a, b], 5).documents
    assert [d.name for d in documents] == [
        "Comparison",
        *(f"{n}/trial-{i}" for n in "ab" for i in (1, 2, 3)),
    ]
    assert [t.title for t in documents[0].tables if t.charts] == [
        "Response time: nvme read", "Bandwidth of nvme: [0] a", "Bandwidth of nvme: [1] b"
    ]  # fmt: skip


def test_faults_of_a_run_precede_its_comparison(tmp_path):
    for number, latency in enumerate((1000, 2000, 1000), 1):
        run = write_run(
            tmp_path / f"trial-{number}", [latency] * 4, engine="sim" if number == 3 else "threads"
        )
    change_run(tmp_path / "trial-1", verification={
        "block_bytes": 4096, "checked_blocks": 1, "unwritten_blocks": 0, "corrupt_blocks": 0, "by_fault": {},
        "located": [], "check_ns": 1,
    })  # fmt: skip
    summary = msgspec.to_builtins(read_run(run).summary)
    change_run(
        run,
        summary=summary
        | {"figures": [msgspec.to_builtins(figures(is_simulated=True, engine="sim"))]},
    )
    two = [report(tmp_path / f"trial-{number}") for number in (1, 2)]
    found = compare([ReportedTrials("two", two), ReportedTrials("simulated", [report(run)])])
    assert shows(found.warnings, "two, trial 1 … verified")
    spread = "latency p50 by 67 % … latency mean by 67 %"
    disagree = f"RESULTS VARY … 10 % … 2 of 4 … {spread}"
    assert shows(found.warnings, f"two: {disagree}")
    assert shows(found.warnings, "nvme … simulated")
    assert {
        line.sides[1].median for line in found.lines if line.tier == "nvme" and line.name == "bytes"
    } == {None}


def test_traces_and_single_runs_have_ratios_only(tmp_path):
    a = write_hand(tmp_path)
    b = write_trace(
        tmp_path / "b.parquet", [io(1, "read", 0, 4096), io(2, "read", 0, 4096)], preset="other"
    )
    found = compare([ReportedTrials("a", [report(a)]), ReportedTrials("b", [report(b)])])
    (reads,) = [x for x in found.lines if (x.tier, x.op, x.name) == ("nvme", "read", "operations")]
    assert [(s.median, s.ratio.value, s.ratio.low) for s in reads.sides] == [
        (5, 1, None),
        (2, 0.4, None),
    ]
    assert found.settings["preset"] == ["by-hand", "other"]
    assert found.warnings == []
    run = report(write_run(tmp_path / "run", [1000, 2000]))
    warnings = compare([ReportedTrials("q", [run]), ReportedTrials("r", [run])]).warnings
    assert show_each(warnings, [f"{name} … one trial … --trials 3" for name in "qr"])
    with pytest.raises(ConfigError, match="two or"):
        compare([ReportedTrials("a", [report(a)])])
    probe = ProbeReport(**{name: [] for name in ProbeReport.__struct_fields__})
    with pytest.raises(ConfigError, match=r"a.*a trace, p.*a probe"):
        compare([ReportedTrials("a", [report(a)]), ReportedTrials("p", [probe])])


def test_runs_stand_beside_what_was_simulated_in_what_both_know(tmp_path):
    trace, run = report(write_hand(tmp_path)), report(write_run(tmp_path / "run", [1000, 2000]))
    found = compare([ReportedTrials("r", [run]), ReportedTrials("t", [trace])])
    lines = {(x.tier, x.op, x.name): [side.median for side in x.sides] for x in found.lines}
    assert found.kind == "run and trace"
    assert lines["nvme", "read", "operations"] == [2, 5]
    assert lines["nvme", "read", "latency_p50_ns"] == [1000, None]
    assert lines["nvme", "read", "size_mean_bytes"][0] == run.sizes[0]["mean_bytes"]
    assert not any(key[1:] == ("delete", "bytes") for key in lines)


@pytest.mark.full
def test_a_trace_beside_its_run_is_context_and_no_side(tmp_path):
    trace, run, other = (
        write_hand(tmp_path),
        write_run(tmp_path / "r", [1000]),
        write_run(tmp_path / "s", [2000]),
    )
    assert [d.name for d in make_reports([run, trace], 10).documents] == ["r", "hand.parquet"]
    documents = make_reports([run, trace, other], 10).documents
    assert [d.name for d in documents] == ["Comparison", "r", "hand.parquet", "s"]
    assert shows(documents[0].headline, "s … 50 % lower … r")
    assert make_reports([trace, trace], 10).documents[0].name == "Comparison"


def test_the_response_time_stands_beside_the_service_time(tmp_path):
    run = write_run(tmp_path / "run", [i * 1000 for i in range(1, 1001)])
    found = report(run)
    (service,), (response,) = found.latency, found.response
    assert response["count"] == service["count"] == 1000
    assert all(
        response[n] == service[n] + 10_000 for n in ("mean_ns", "p50_ns", "p99_ns", "max_ns")
    )
    figures = {line.name for line in compare([ReportedTrials(n, [found]) for n in "ab"]).lines}
    assert {"response_p99_ns", "latency_p99_ns", "response_mean_ns"} <= figures
    asked = run_cli("kvdistill", "sql", run, "--query", "slowest_operations", "--json").stdout
    assert {row["response_ns"] - row["latency_ns"] for row in json.loads(asked)} == {10_000}
    text = run_cli("kvdistill", "report", run, "--csv").stdout
    assert "Response time" in text
    pace = msgspec.to_builtins(read_run(run).pacing) | {"loop": "closed"}
    change_run(run, pacing=pace)


def test_hostile_names_are_text_in_pages_and_cells(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    for number, name in enumerate(
        ("<img src=x onerror=alert(1)>", '"><script>x', "=cmd|x!A0", "@SUM(A1)")
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = write_run(folder / name, [1000, 2000], outcome="ok")
        documents = make_reports([run], 5).documents
        for suffix in (".html", ".xlsx"):
            write_report(documents, folder / f"r{suffix}")
        page = (folder / "r.html").read_text()
        assert "<img src=x" not in page
        assert "<script>x" not in page
        book = openpyxl.load_workbook(folder / "r.xlsx")
        cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
        assert not [cell.value for cell in cells if cell.data_type == "f"]


def test_an_archive_is_refused_and_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "r.jsonl", "w") as archive:
        archive.writestr("../slipped", "text")
    done = run_cli(
        "kvtrace", "import", tmp_path / "r.jsonl", "-o", tmp_path / "i.parquet", check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert not (tmp_path.parent / "slipped").exists()
