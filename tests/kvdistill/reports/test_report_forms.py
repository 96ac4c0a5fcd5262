from __future__ import annotations

import csv
import io as text_io
import json
import re
import sys
from html.parser import HTMLParser

import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import HAND, MS, change_run, io, write_hand, write_run
from phrases import shows
from simulated import kvtrace

from kvdistill.reports.output import documents_of, list_trials, make_reports, report, write_report
from kvtrace.core.document.export import csv_lines, markdown
from kvtrace.core.document.page import html_page
from kvtrace.core.errors import ProbeUnavailable
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.figures import WarmupFacts
from kvtrace.core.statistics import Endurance


class Page(HTMLParser):
    """What a test wants to know of a page.

    What it fetches, and by heading its charts and exact cells.
    """

    def __init__(self, text):
        super().__init__()
        self.fetched, self.charts, self.rows, self.text = [], {}, {}, ""
        self._heading, self._is_heading, self._row = "", False, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.fetched += [
            v
            for k, v in attributes
            if k in ("src", "srcset", "href", "xlink:href", "action", "data")
        ]
        self._is_heading = tag == "h3"
        if tag == "svg":
            self.charts[self._heading] = self.charts.get(self._heading, 0) + 1
        elif tag == "tr":
            self._row = []
            self.rows.setdefault(self._heading, []).append(self._row)
        elif tag == "td":
            self._row.append(named.get("title"))

    def handle_endtag(self, tag):
        self._is_heading = False
        self._row = None if tag == "tr" else self._row

    def handle_data(self, data):
        self.text += data
        if self._is_heading:
            self._heading = data
        elif self._row and self._row[-1] is None:
            self._row[-1] = data


def page_of(*paths):
    documents = documents_of([report(path) for path in paths], [path.name for path in paths])
    return html_page(documents, "made by a test")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    return write_run(folder / "run", [i * 1000 for i in range(1, 1001)]), write_hand(folder)


@pytest.fixture(scope="module")
def text(both):
    return page_of(*both)


def test_the_page_asks_nothing_of_a_network(text):
    page = Page(text)
    assert [url for url in page.fetched if not url.startswith("#") and url != "data:,"] == []
    ours = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"https?:|@import|url\((?!#)|<link(?! rel=\"icon\")|//[a-z]+\.", ours) == []
    # What a library's script might ask for, the browser refuses.
    assert (
        "content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
        ' img-src data: blob:"' in text
    )
    # The clip paths of several charts must not be confused.
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_page_has_a_table_beneath_every_chart(text):
    page = Page(text)
    # Two of each document stand first, and again where their tables are.
    assert (page.charts.pop(""), page.charts.pop("Run")) == (2, 2)
    assert page.charts == {
        "Over time: nvme": 4, "Over time: cpu": 2, "Size distribution: nvme": 2, "Size distribution: cpu": 1,
        "Latency distribution: nvme": 1, "Response time distribution: nvme": 1, "Lateness distribution: nvme": 1,
        "Response time over time: nvme read": 1,
        "Reuse distances: nvme": 1,
    }  # fmt: skip
    assert all(len(page.rows[heading]) > 1 for heading in page.charts)


def test_later_documents_are_folded_with_their_summary(text):
    first, _, second = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL).partition(
        "</article>"
    )
    assert "<h1>" in first.partition("<details")[0]
    assert second.strip().startswith('<article id="d1">\n<details class="folded"><summary>')
    assert second.index("operations for") < second.index("</summary>") < second.index("<dl")


def test_the_page_says_what_the_json_says(both, text):
    page = Page(text)
    found = json.loads(run_cli("kvdistill", "report", *both, "--json").stdout)
    (figures,), (latency,) = found[0]["figures"], found[0]["latency"]
    assert figures["bandwidth_bytes_per_s"] == 4e6
    assert '<dt>read bandwidth, nvme</dt><dd title="4000000.0 bytes/s">4.00 MB/s</dd>' in text
    # Each was 10 µs late: an open loop is judged by the response time.
    (response,) = found[0]["response"]
    assert response["p99_ns"] == latency["p99_ns"] + 10_000
    assert f'<dd title="{response["p99_ns"]} ns">1.00 ms</dd>' in text
    assert page.rows["Response time"][1][3] == f"{latency['mean_ns'] + 10_000} ns"
    (row,) = [row for row in page.rows["Operations"] if "threads" in row]
    assert row[-2:] == [
        f"{figures['operations_per_s']} 1/s",
        f"{figures['bandwidth_bytes_per_s']} bytes/s",
    ]
    assert page.rows["Latency"][1] == [
        "nvme", "read", "1000 count", "500500.0 ns", *(f"{latency[p + '_ns']} ns" for p in ("p50", "p95", "p99")),
        f"{latency['p99_9_ns']} ns", "-", f"{latency['max_ns']} ns",
    ]  # fmt: skip
    nvme = found[1]["tiers"][2]
    assert [
        "nvme",
        *(f"{nvme[n]} bytes" for n in ("capacity_bytes", "peak_live_bytes", "end_live_bytes")),
        "-",
        "-",
    ] in (page.rows["Tiers"])
    assert "fine" in page.text


@pytest.mark.usefixtures("without_charts")
def test_names_are_escaped(tmp_path):
    path = write_trace(
        tmp_path / "<img src=x>&.parquet", [io(1, "read", 0, 0), io(2, "read", 0, 4096)]
    )
    text = page_of(path)
    assert "<img" not in text
    assert "<img src=x>&.parquet" in Page(text).text


def test_empty_and_instantaneous_traces_have_pages(tmp_path):
    empty, instant = (
        write_trace(tmp_path / "e.parquet", []),
        write_trace(tmp_path / "i.parquet", [io(5, "read", 0, 9)]),
    )
    assert Page(page_of(empty)).charts == {}
    page = Page(page_of(instant))
    assert page.charts == {"Size distribution: nvme": 1}
    assert page.rows["Size distribution: nvme"][1] == ["read", "8 bytes", "1 count", "9 bytes"]


@pytest.mark.usefixtures("without_charts")
def test_a_run_without_its_summary_says_so(tmp_path):
    run = write_run(tmp_path / "run", [1000, 2000])
    (run / "run.json").unlink()
    assert shows(Page(page_of(run)).text, "run.json … missing")


def test_markdown(both):
    text = run_cli("kvdistill", "report", both[1], "--markdown").stdout
    lines = text.splitlines()
    assert lines[0] == "# hand.parquet"
    assert "| nvme | delete | evict | 1 | 6.00 kB | 1 |" in lines
    assert "| nvme | 1.07 GB | 3.16 MB | 3.16 MB | - | - |" in lines
    # 3,155,824 bytes in 105 ms.
    # 1.07 GB is no whole drive: what is written to it a day is not what a drive is.
    assert "| nvme | 3.16 MB | 105 ms | 2.60 TB/day | 1.07 GB | - | - | - |" in lines


def test_csv_has_every_figure_raw(both):
    rows = list(csv.reader(text_io.StringIO(run_cli("kvdistill", "report", *both, "--csv").stdout)))
    assert rows[0] == ["file", "sheet", "table", "row", "figure", "unit", "value"]
    assert ["run", "Performance", "Latency", "nvme read", "p99_9_ns", "ns", "999000"] in rows
    assert ["run", "Performance", "Latency", "nvme read", "p99_99_ns", "ns", ""] in rows
    assert [
        "hand.parquet",
        "Histograms",
        "Size distribution: nvme",
        "read 2097152",
        "ops",
        "count",
        "1",
    ] in rows
    assert ["run", "Performance", "Operations", "nvme read", "engine", "", "threads"] in rows
    assert len({tuple(row[:5]) for row in rows}) == len(rows)


def test_a_workbook_has_our_tables_on_sheets(both, tmp_path):
    from openpyxl import load_workbook

    documents = documents_of([report(both[0]), report(both[1])], ["=1+1", "hand.parquet"])
    write_report(documents, tmp_path / "r.xlsx")
    book = load_workbook(tmp_path / "r.xlsx")
    assert book.sheetnames == ["Report", "Parameters", "Performance", "QoS", "Device", "Histograms"]
    assert (book["Report"]["A1"].value, book["Report"]["A1"].data_type) == ("=1+1", "s")
    rows = [list(row) for row in book["Performance"].iter_rows(values_only=True)]
    at = next(i for i, row in enumerate(rows) if row[0] == "Latency")
    assert rows[at + 2][2:5] == ["count", "ns", "ns"]
    assert rows[at + 3][:5] == ["tier", "op", "count", "mean_ns", "p50_ns"]
    assert rows[at + 4][:10] == [
        "nvme",
        "read",
        1000,
        500500,
        500000,
        950000,
        990000,
        999000,
        None,
        1000000,
    ]


def test_a_workbook_has_widths_heads_filters_and_formats(both, tmp_path):
    from openpyxl import load_workbook

    run_cli("kvdistill", "report", *both, "-o", tmp_path / "r.xlsx")
    book = load_workbook(tmp_path / "r.xlsx")
    assert {sheet.freeze_panes for sheet in book} == {"B2"}
    sheet = book["Performance"]
    head = next(
        row
        for row in sheet.iter_rows()
        if [cell.value for cell in row[:4]] == ["tier", "op", "count", "mean_ns"]
    )
    (table,) = [
        found for found in sheet.tables.values() if found.ref.startswith(head[0].coordinate)
    ]
    # One row beneath, of which each column can be chosen from.
    assert table.ref.endswith(f"{head[9].column_letter}{head[0].row + 1}")
    assert table.autoFilter.ref == table.ref
    assert [column.name for column in table.tableColumns] == [cell.value for cell in head[:10]]
    row = sheet[head[0].row + 1]
    assert (row[3].value, row[3].number_format) == (500500, "#,##0")
    # 500,500 and 1,000,000 are not as wide as their heads, mean_ns and max_ns, are... and a name is
    # as wide as it is.
    widths = {letter: of.width for letter, of in sheet.column_dimensions.items()}
    assert widths["A"] > max(
        len(str(c.value)) for c in sheet["A"] if c.value and sheet.cell(c.row, 2).value
    )
    assert all(10 <= width <= 50 for width in widths.values())
    shares = [c for r in book["Histograms"].iter_rows() for c in r if c.number_format == "0.00%"]
    assert 0.5 in [cell.value for cell in shares]
    # The benchmark's sheets, too.
    assert book["QoS Metrics"].tables == {} or book["Summary"].tables
    assert len(book["Summary"].tables) == 1


def test_outputs_are_checked_before_any_work(tmp_path):
    done = run_cli(
        "kvdistill", "report", tmp_path / "none.parquet", "-o", tmp_path / "r.pdf", check=False
    )
    assert (done.returncode, "*.html" in done.stderr) == (2, True)
    done = run_cli("kvdistill", "report", tmp_path / "none.parquet", "--csv", "--json", check=False)
    assert (done.returncode, "choose one" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("module", "suffix", "advice"),
    [
        ("matplotlib", ".html", "plot"),
        ("bokeh.plotting", ".html", "plot"),
        ("openpyxl", ".xlsx", "xlsx"),
    ],
)
def test_a_missing_library_is_named(both, tmp_path, monkeypatch, module, suffix, advice):
    monkeypatch.setitem(sys.modules, module, None)
    documents = documents_of([report(both[1])], ["hand"])
    with pytest.raises(
        ProbeUnavailable,
        match=rf"{module.partition('.')[0]}: .*'\.\[{advice}\]'",
    ):
        write_report(documents, tmp_path / f"r{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "left"), [("10", 10), ("10 rows", 10), ("10ms", 10), ("9500us", 10)]
)
def test_a_warm_up_is_in_no_figure(tmp_path, asked, left):
    # Operation i is due at i ms; the first ten take a second each, the others 1 µs.
    run = write_run(
        tmp_path / "run",
        [1000 * MS] * 10 + [1000] * 90,
        warmup=WarmupFacts(
            asked=asked, operations=10, first_measured_row=10, measured_from_ns=None
        ),
    )
    found = report(run)
    assert (found.figures[0]["operations"], found.latency[0]["max_ns"]) == (100 - left, 1000)
    assert sum(row["reads"] for row in found.over_time) == 90
    assert sum(row["operations"] for row in found.heat) == 90
    # 89 ms + 1 µs in 48 stretches.
    assert found.bucket_ns == 89_001_000 // 48 + 1


def test_points_of_a_distribution(tmp_path):
    found = report(write_run(tmp_path / "run", [i * 1000 for i in range(1, 101)]))
    latency = {r["share"]: r["time_ns"] for r in found.distributions if r["measure"] == "latency"}
    assert (latency[0.01], latency[0.5], latency[0.95], latency[0.99]) == (
        1000,
        50_000,
        95_000,
        99_000,
    )
    assert latency[1] == 100_000
    assert max(share for share in latency if share < 1) == 0.99
    # Response times, 10 µs longer: from 2^16 ns = 65.536 µs on, 66 … 110; 11 … 16 µs from 2^13 on.
    by_latency = {}
    for row in found.heat:
        by_latency[row["low_ns"]] = by_latency.get(row["low_ns"], 0) + row["operations"]
    assert (by_latency[1 << 16], by_latency[1 << 13], sum(by_latency.values())) == (45, 6, 100)


def test_writes_per_day_need_time_and_capacity(tmp_path):
    found = report(write_trace(tmp_path / "t.parquet", HAND))
    cpu, nvme = found.writes_per_day
    assert (cpu["tier"], cpu["written_bytes"], cpu["span_ns"]) == ("cpu", 6000, 105 * MS)
    assert nvme["written_bytes_per_day"] == 3_155_824 * 86_400 / 0.105
    assert nvme["capacity_writes_per_day"] == nvme["written_bytes_per_day"] / (1 << 30)
    instant = report(write_trace(tmp_path / "i.parquet", [io(5, "write", 0, 9)])).writes_per_day
    assert (instant[0]["written_bytes"], instant[0]["written_bytes_per_day"]) == (9, None)


def test_a_day_is_reckoned_over_what_was_simulated(tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.parquet"
    of_training = ("--preset", "checkpoint", "--duration", "20min", "--every", "10min")
    assert kvtrace(monkeypatch, "gen", *of_training, "-o", path) == 0
    found = report(path)
    assert (found.span_ns, found.writes_per_day[0]["span_ns"]) == (
        600 * 1000 * MS,
        1200 * 1000 * MS,
    )
    assert (
        found.writes_per_day[0]["written_bytes_per_day"]
        == 72 * found.writes_per_day[0]["written_bytes"]
    )
    # As gen says of the same trace, which begins and ends without I/O, or has what was there before
    # it began.
    little = (
        "--model",
        "tiny-1b",
        "--users",
        "2",
        "--set",
        "tiers.gpu.capacity=64MiB",
        "--set",
        "tiers.cpu.capacity=64MiB",
    )
    for preset in (("lmcache-disk",), ("mlperf", "--set", "workload.mode=decode-only")):
        capsys.readouterr()
        asked = ("--preset", *preset, *little, "--duration", "40s")
        assert kvtrace(monkeypatch, "gen", *asked, "-o", path, "--force", "--json") == 0
        [worn] = json.loads(capsys.readouterr().out)["endurance"]
        row = next(row for row in report(path).writes_per_day if row["tier"] == worn["name"])
        assert row["written_bytes_per_day"] == pytest.approx(worn["written_bytes_per_day"], abs=1)


def test_memory_has_no_drive_to_wear(tmp_path):
    large = [TierFacts(name, 10**12) for name in ("gpu", "cpu", "nvme")]
    path = write_trace(tmp_path / "t.parquet", HAND, tiers=large)
    for rated in (None, Endurance(total_bytes=10**16)):
        cpu, nvme = report(path, endurance=rated).writes_per_day
        assert (cpu["capacity_writes_per_day"], cpu["endurance_bytes"], cpu["years_of_life"]) == (
            None,
            None,
            None,
        )
        assert nvme["capacity_writes_per_day"] > 0 < nvme["years_of_life"]
    shown = run_cli("kvdistill", "report", path, "--markdown").stdout
    assert "whole drive" not in shown
    (cpu,) = [line for line in shown.splitlines() if line.startswith("| cpu | 6.00 kB")]
    assert cpu.endswith("| 4.94 GB/day | 1.00 TB | - | - | - |")


def test_markdown_takes_names_literally(tmp_path):
    path = write_trace(tmp_path / "a|b_c.parquet", [io(1, "read", 0, 1)])
    documents = documents_of([report(path)], [path.name])
    assert markdown(documents).startswith("# a\\|b\\_c.parquet\n")
    assert "a|b_c.parquet,Report," in csv_lines(documents)


def test_a_folder_of_trials_is_its_runs(tmp_path):
    for number in (10, 9):
        write_run(tmp_path / f"trial-{number}", [1000])
    assert list_trials(tmp_path) == [tmp_path / "trial-9", tmp_path / "trial-10"]
    assert list_trials(tmp_path / "trial-9") == [tmp_path / "trial-9"]
    documents = make_reports([tmp_path], 2).documents
    assert [document.name for document in documents] == [
        f"{tmp_path.name}/trial-{n}" for n in (9, 10)
    ]


def test_criteria_and_throughput_have_their_units(tmp_path):
    run = write_run(tmp_path / "run", [1000])
    criterion = {"definition": "d", "shown": "s"}
    change_run(run, mlperf={
        "latencies": [], "qos_compliance": None, "qos_definition": "q", "qos_reason": "no model",
        "criteria": [
            criterion | {"name": "storage_read_p95_ns", "threshold": 2e8, "measured": None, "verdict": "not measured"},
            criterion | {"name": "hit_rate", "threshold": 0.3, "measured": 0.75, "verdict": "pass"},
        ],
        "throughput": {"tokens": 10, "storage_io_ns": 4_000_000, "storage_throughput_tokens_per_s": 2500.0,
                       "wall_clock_throughput_tokens_per_s": None, "reason": None},
    })  # fmt: skip
    documents = documents_of([report(run)], ["run"])
    assert "run,QoS,Criteria of MLPerf,hit_rate,measured,share of 1,0.75\n" in csv_lines(documents)
    lines = markdown(documents).splitlines()
    assert "| storage\\_read\\_p95\\_ns | not measured | - | 200 ms | d |" in lines
    assert "| hit\\_rate | pass | 75 % | 30 % | d |" in lines
    assert "| storage\\_throughput\\_tokens\\_per\\_s | 2,500 |" in lines
    assert "| wall\\_clock\\_throughput\\_tokens\\_per\\_s | - |" in lines
