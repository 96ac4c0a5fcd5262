from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest
from browser import height_above, printed_pages, watch
from conftest import run_cli
from kvdistill_rows import MS, change_run, write_probe, write_run
from phrases import shows

from kvdistill.reports.compare import compare, drive_of, judge
from kvdistill.reports.output import documents_of, read_comparison, report
from kvdistill.reports.tables import ReportedTrials
from kvtrace.core.document.document import (
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    show,
)
from kvtrace.core.document.live_figure import build_live_figure, log_ticks
from kvtrace.core.document.page import html_page
from kvtrace.core.document.picture import build_picture
from kvtrace.core.document.svg_figure import draw_svg
from kvtrace.core.statistics import Endurance, parse_endurance

_SCRIPTS = re.compile(r"<script>.*?</script>", re.DOTALL)
MIB = 1 << 20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An open loop of reads of 0.1 to 20 ms, and a probe beside it."""
    folder = write_run(
        tmp_path_factory.mktemp("pages") / "run", [100_000 + i * 10_000 for i in range(2000)]
    )
    write_probe(folder)
    change_run(folder, status="partial", reason="the disk is full")
    return folder


@pytest.fixture(scope="module")
def text(run):
    return html_page(documents_of([report(run)], ["run"]), "made by a test")


def test_a_reader_of_two_minutes_finds_the_answer_first(text):
    ours = _SCRIPTS.sub("", text)
    order = [f'class="{part}"' for part in ("headline", "subject", "highlights", "warning")]
    places = [ours.index(part) for part in ["<h1>", *order, "<figure>", 'class="folded"']]
    assert places == sorted(places)
    assert ours.partition('<details class="folded"')[0].count("<figure>") == 2
    assert 1 <= ours.count("<dt>") <= 6
    folded = re.findall(r'<details class="folded"[^>]*><summary><h2>([^<]*)', ours)
    assert folded == [
        *("Tiers", "Latency", "Requests, QoS and criteria", "Wear", "Block layer"),
        *("Service time and lateness", "Sizes", "Reuse", "Run and targets"),
    ]
    assert ours.count("<h2>") == len(folded)


def test_each_chart_stands_still_without_scripts_and_on_paper(text):
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert figures
    assert all('<div class="still"><svg ' in figure for figure in figures)
    live = text.split('<script type="application/json" id="charts">')[1].split("</script>")[0]
    assert re.findall(r'^\{?"(f\d+)":', live, re.MULTILINE) == re.findall(
        r'class="live" id="(f\d+)"', text
    )


def test_a_page_is_small_beside_the_script_that_it_carries(text):
    assert len(_SCRIPTS.sub("", text).encode()) < 1_500_000


@pytest.mark.full
def test_charts_are_drawn_the_same_each_time():
    line = Series("read", [1.0, 2.0, 4.0], [0.5, 0.6, 0.7])
    picture = build_picture(Chart("t", ChartShape.STEPS, Unit.NS, Unit.COUNT, [line], 1.0))
    assert (
        len({draw_svg(picture, 1) for _ in range(2)})
        == len({build_live_figure(picture) for _ in range(2)})
        == 1
    )


@pytest.mark.full
def test_a_page_is_the_same_each_time(run, text):
    assert html_page(documents_of([report(run)], ["run"]), "made by a test") == text


def test_a_page_holds_one_family_of_units(text):
    shown = re.sub(r"<style>.*?</style>|<[^>]*>", " ", _SCRIPTS.sub("", text), flags=re.DOTALL)
    # Lengths of I/Os alone are said as their options are: in powers of two.
    assert set(re.findall(r"[0-9.]+ [KMGTP]iB", shown)) == {"4 KiB", "1 MiB"}
    assert (show(4 * MIB, Unit.BYTES), show(2.5e9, Unit.BYTES_PER_S)) == ("4.19 MB", "2.50 GB/s")
    assert (show(999_999, Unit.BYTES), show(None, Unit.BYTES)) == ("1.00 MB", "-")
    assert show(3e12, Unit.BYTES_PER_DAY) == "3.00 TB/day"


def test_axes_name_their_units_and_give_the_tail_its_room():
    line = Series("read", [0.01, 0.5, 0.9, 0.99, 0.999, 0.9999], [1e5, 1e6, 2e6, 4e6, 8e6, 9e7])
    tail = build_picture(
        Chart("t", ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, [line], y_title="response time")
    )
    assert (tail.y.heading, tail.y.is_log, tail.x.is_log) == ("response time (ms)", True, True)
    assert [label for _, label in tail.x.ticks] == ["0", "50", "90", "99", "99.9", "99.99"]
    assert tail.lines[0].x == pytest.approx([1 / 0.99, 2, 10, 100, 1000, 10_000], rel=1e-5)
    assert tail.lines[0].y == [0.1, 1, 2, 4, 8, 90]
    steps = Series("read", [0.0, 1e9], [2e9, 1e9])
    rate = build_picture(Chart("b", ChartShape.STEPS, Unit.NS, Unit.BYTES_PER_S, [steps], 1e9))
    assert (rate.x.heading, rate.y.heading) == ("time (s)", "bandwidth (GB/s)")
    assert (rate.lines[0].x, rate.lines[0].y) == ([0, 1, 1, 2], [2, 2, 1, 1])


def test_a_logarithmic_axis_has_numbers_all_along():
    assert log_ticks([40, 900]) == [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert log_ticks([0.002, 900]) == [0.001, 0.01, 0.1, 1, 10, 100, 1000]
    assert log_ticks([]) == []


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([1, 2, 4, 8, 16, 32], "1 2 4 8 16 32"),
        # Those of a bisection crowd each other.
        ([1, 2, 4, 8, 9, 10, 11, 13, 14, 15, 16], "1 2 4 8 16"),
        ([0.5, 1, 2, 4], "0.5 1 2 4"),
        ([1, 2, 4], "1 2 3 4"),
        ([10, 20, 35], "10 13 16 19 22 25 28 31 34"),
        # Between two powers of two there is none: the drawing program chooses.
        ([9], ""),
    ],
)
def test_loads_stand_at_whole_numbers(loads, expected):
    line = Series("throughput", [float(at) for at in loads], [1e9] * len(loads))
    drawn = build_picture(
        Chart("t", ChartShape.LOAD, Unit.NUMBER, Unit.BYTES_PER_S, [line], x_title="queue depth")
    )
    assert " ".join(name for _, name in drawn.x.ticks) == expected


def test_lengths_of_ios_stand_at_powers_of_two():
    sizes = Series("read", [4096.0, 131072.0, 1048576.0], [5.0, 1.0, 2.0])
    drawn = build_picture(Chart("t", ChartShape.BARS, Unit.IO_BYTES, Unit.COUNT, [sizes]))
    assert (drawn.x.unit, [name for _, name in drawn.x.ticks]) == (
        "KiB",
        ["4", "16", "64", "256", "1024"],
    )


def test_trials_of_a_side_share_a_colour_and_axes_end_alike():
    lines = [Series(name, [1.0, 2.0], [1.0, 1.0], colour=at // 2) for at, name in enumerate("abcd")]
    chart = Chart("c", ChartShape.STEPS, Unit.NS, Unit.COUNT, lines, 1.0, x_end=9.0, y_end=7.0)
    drawn = build_picture(chart)
    assert [line.colour for line in drawn.lines] == ["read", "read", "write", "write"]
    assert (drawn.x.high, drawn.y.high) == (9, 7)


def test_bytes_are_spread_over_the_time_in_flight(tmp_path):
    # 4,000 bytes from 10 µs to 48.00001 s; the next four begin a millisecond later each, and take 1
    # ms.
    found = report(write_run(tmp_path / "run", [48_000 * MS] + [1 * MS] * 4), 48)
    moved = [row["read_bytes"] for row in found.over_time]
    assert found.bucket_ns == 48_000 * MS // 48 + 1
    assert moved[0] == round(4000 / 48) + 4 * 4000
    assert set(moved[1:]) == {83}
    assert [row["reads"] for row in found.over_time] == [4, *[0] * 46, 1]


def test_what_completes_at_once_did_not_move_at_once(tmp_path):
    # 64 reads of 4,000 bytes end together at 64 ms; each began when it was due.
    latencies = [(64 - i) * MS for i in range(64)]
    found = report(write_run(tmp_path / "run", latencies), 16)
    most = max(row["read_bytes"] for row in found.over_time)
    # At the end all are in flight: 4,000 / 64 + 4,000 / 63 + … bytes a millisecond, for 4 ms at
    # most.
    assert most <= sum(min(4000 / (ns / MS) * 4, 4000) for ns in latencies) + 16
    assert most < 64 * 4000 / 2
    assert abs(sum(row["read_bytes"] for row in found.over_time) - 64 * 4000) <= 16


def test_a_map_is_of_response_times_in_an_open_loop(tmp_path):
    # Of a microsecond each, submitted 10 µs late.
    found = report(write_run(tmp_path / "run", [1000] * 4))
    assert {row["low_ns"] for row in found.heat} == {8192}
    titles = [t.title for d in documents_of([found], ["run"]) for t in d.tables]
    assert "Response time over time: nvme read" in titles


def test_the_life_of_a_drive_is_in_years_where_one_is_known(tmp_path):
    trace = tmp_path / "t.parquet"
    run_cli("kvtrace", "gen", "--model", "tiny-1b", "--users", "2", "--duration", "20s", "-o", trace,
            "--set", "tiers.gpu.capacity=64MiB", "--set", "tiers.cpu.capacity=64MiB",
            "--set", "tiers.nvme.capacity=1GiB")  # fmt: skip
    row = report(trace).writes_per_day[-1]
    assert (row["tier"], row["endurance_bytes"], row["years_of_life"]) == ("nvme", None, None)
    worn = report(trace, endurance=Endurance(total_bytes=7 * 10**15)).writes_per_day[-1]
    assert worn["years_of_life"] == pytest.approx(7e15 / worn["written_bytes_per_day"] / 365)
    shown = run_cli("kvdistill", "report", trace, "--markdown", "--endurance", "7PB").stdout
    assert "7.00 PB" in shown
    # As gen and size take it; of the size that the tier has.
    rated = report(trace, endurance=parse_endurance("2DWPD,3y")).writes_per_day[-1]
    assert rated["endurance_bytes"] == 2 * 3 * 365 * 2**30
    usual = run_cli("kvdistill", "report", trace, "--markdown", "--endurance", "2dwpd, 3y").stdout
    assert "2.35 TB" in usual
    assert "a day" in shown
    assert "| endurance" in shown


def test_all_tiers_together_have_a_hit_ratio(tmp_path):
    trace = tmp_path / "t.parquet"
    run_cli(
        "kvtrace", "gen", "--model", "tiny-1b", "--users", "2", "--duration", "20s", "-o", trace
    )
    found = report(trace)
    assert found.hit_ratio == pytest.approx(sum(tier["hit_ratio"] for tier in found.tiers))
    (tiers,) = [t for d in documents_of([found], ["t"]) for t in d.tables if t.title == "Tiers"]
    assert tiers.rows[-1][0] == "in total"
    assert tiers.rows[-1][-1] == found.hit_ratio


def side(folder, name, medians, **changed):
    """Write closed-loop trials whose reads all take about as long as each of `medians`."""
    folder = folder / name
    folder.mkdir()
    for number, median in enumerate(medians, 1):
        spread = np.linspace(0.9, 1.1, 200)
        run = write_run(folder / f"trial-{number}", (spread * median).astype(int).tolist())
        if changed:
            change_run(run, **changed)
    return folder


def test_a_comparison_says_first_which_is_faster(tmp_path):
    a, b = side(tmp_path, "a", [1e6, 1.01e6, 0.99e6]), side(tmp_path, "b", [0.8e6, 0.81e6, 0.79e6])
    compared, document = read_comparison([a, b])
    (line,) = [line for line in compared.lines if line.name == "response_p99_ns"]
    found = line.sides[1].ratio
    less = [f"{100 * (1 - value):.0f}" for value in (found.value, found.high, found.low)]
    assert shows(compared.verdict, f"{less[0]} % faster at p99 [{less[1]}, {less[2]}]")
    assert document.headline == compared.verdict
    assert run_cli("kvdistill", "compare", a, b).stdout.splitlines()[0] == compared.verdict
    back, _document = read_comparison([b, a])
    assert re.search(r"a reads 2\d % slower at p99 \[\d+, \d+\]", back.verdict)


@pytest.mark.full
def test_a_comparison_says_that_trials_show_no_difference(tmp_path):
    a, b = side(tmp_path, "a", [1e6, 1.2e6, 0.9e6]), side(tmp_path, "b", [1.1e6, 0.95e6, 1e6])
    compared, document = read_comparison([a, b])
    interval = r"read p99 \(\d+ % faster to \d+ % slower\)"
    assert re.match(rf"INCONCLUSIVE.* a and b .*{interval}", compared.verdict)
    (table,) = [t for t in document.tables if t.title == "Each trial"]
    assert [row[:4] for row in table.rows if row[2] == "latency_p50_ns"] == [
        ["nvme", "read", "latency_p50_ns", name] for name in "ab"
    ]
    assert [cell.value for cell in table.rows[-2][4:]] == pytest.approx(
        [1e6, 1.2e6, 0.9e6], rel=0.02
    )
    distribution = next(t for t in document.tables if t.title == "Response time: nvme read")
    assert [series.colour for series in distribution.charts[0].series] == [0, 0, 0, 1, 1, 1]


def test_trials_that_vary_support_a_claim_if_sides_are_apart(tmp_path):
    a, b = side(tmp_path, "a", [1e6, 1e6, 1e6]), side(tmp_path, "b", [2e6, 2.3e6, 2e6])
    compared, _document = read_comparison([a, b])
    assert re.match(r"b reads \d+ % slower at p99 \[\d+, \d+\] than a", compared.verdict)
    # Of the same intervals, but with one trial of b among those of a, nothing is claimed.
    c = side(tmp_path, "c", [1e6, 1.02e6, 0.98e6, 1e6, 1.5e6, 1.01e6, 0.99e6])
    d = side(tmp_path, "d", [2e6, 2.3e6, 2e6, 2.1e6, 1.4e6, 2.2e6, 2e6])
    overlapping, _document = read_comparison([c, d])
    assert any(
        line.sides[1].ratio.differs for line in overlapping.lines if line.name == "response_p99_ns"
    )
    interval = r"read p99 \(\d+ % slower to \d+ % slower\)"
    assert re.match(rf"INCONCLUSIVE: results of c and d .*{interval}", overlapping.verdict)


def figures_of_sides(**times):
    """Return the figures of two drives: a list of trials a figure, first side and other side."""
    keys = {
        "read_p99": ("nvme", "read", "latency_p99_ns"),
        "write_p99": ("nvme", "write", "latency_p99_ns"),
        "write_p50": ("nvme", "write", "latency_p50_ns"),
        "delete_p50": ("nvme", "delete", "latency_p50_ns"),
        "read_bandwidth": ("nvme", "read", "bandwidth_bytes_per_s"),
        "write_bandwidth": ("nvme", "write", "bandwidth_bytes_per_s"),
    }
    return [{keys[name]: list(sides[at]) for name, sides in times.items()} for at in (0, 1)]


def test_a_figure_that_varies_vetoes_itself_alone():
    """The case of a throttle of 800 MB/s against 1,000 on a machine with other work."""
    slower = [0.79, 0.80, 0.795, 0.79, 0.80]
    found = figures_of_sides(
        read_p99=([5, 9, 4, 7, 6], [6, 5, 9, 7, 4]),
        write_p50=([30, 130, 20, 50, 40], [60, 35, 90, 25, 30]),
        delete_p50=([20, 130, 30, 40, 25], [30, 20, 110, 25, 40]),
        read_bandwidth=([1, 1.01, 0.99, 1, 1], slower),
        write_bandwidth=([1, 1.01, 0.99, 1.01, 1], [0.81, 0.80, 0.81, 0.80, 0.81]),
    )
    sentence, _lines, _together = judge(["a", "b"], found)
    assert shows(sentence, "b has a read bandwidth 20 % lower … write bandwidth 19 % lower")
    assert shows(sentence, "INCONCLUSIVE … read p99")
    assert sentence.index("20 % lower") < sentence.index("INCONCLUSIVE")


def test_without_a_difference_the_largest_possible_one_is_named():
    found = figures_of_sides(
        read_bandwidth=([1, 1.01, 0.99, 1, 1], [1, 0.99, 1.01, 1, 1.01]),
        write_bandwidth=([2, 2.02, 1.98, 2, 2], [2, 2.02, 2, 1.98, 2]),
    )
    sentence, lines, _together = judge(["a", "b"], found)
    largest = max(
        abs(end - 1)
        for line in lines
        for end in (line.sides[1].ratio.low, line.sides[1].ratio.high)
    )
    assert shows(sentence, f"no difference … more than {100 * largest:.1f} % is compatible")


def test_the_first_line_names_which_of_several_drives_it_means():
    found = {
        ("nvme", "read", "bandwidth_bytes_per_s"): [1.0],
        ("s3", "read", "bandwidth_bytes_per_s"): [2.0],
    }
    found |= {(tier, "read", "latency_p99_ns"): [5.0] for tier in ("cpu", "nvme", "s3")}
    assert shows(judge("ab", [found, found])[0], "s3: … 0 % slower at p99")
    one = {key: value for key, value in found.items() if key[0] != "nvme"}
    assert judge("ab", [one, one])[0].startswith("b reads")


@pytest.mark.full
def test_an_unbounded_ratio_is_not_printed_in_per_cent(tmp_path):
    a, b = side(tmp_path, "a", [1e6, 3e6]), side(tmp_path, "b", [1e6, 20e6])
    compared, document = read_comparison([a, b])
    assert "read p99" in compared.verdict
    # Of the same figure, the table has no interval.
    (row,) = [
        row
        for table in document.tables
        for row in table.rows
        if row[1] == "response_p99_ns" and len(row) > 6
    ]
    (ratio,) = [line.sides[1].ratio for line in compared.lines if line.name == "response_p99_ns"]
    assert (ratio.high > 100, row[4:]) == (True, [ratio.value, None, None, "no"])


@pytest.mark.full
def test_agreeing_trials_name_how_many_show_a_small_difference(tmp_path):
    a, b = side(tmp_path, "a", [1e6, 1.05e6, 1e6]), side(tmp_path, "b", [1.05e6, 1e6, 1.05e6])
    compared, _document = read_comparison([a, b])
    interval = r"read p99 \(\d+ % faster to \d+ % slower\)"
    assert re.search(
        rf"no difference .* compatible .*{interval}.* 5%: [4-9] trials", compared.verdict
    )


FIGURES = [
    ("nvme", op, name)
    for op in ("read", "write")
    for name in ("bandwidth_bytes_per_s", "latency_p99_ns")
]


@pytest.mark.full
@pytest.mark.star
@pytest.mark.parametrize("trials", [2, 3, 5])
@pytest.mark.parametrize("noise", ["normal", "exponential", "drift"])
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_a_drive_differs_from_itself_in_5_percent_at_most(trials, noise, count):
    rng = np.random.default_rng(trials)
    claims = 0
    for _ in range(count):
        draws = (
            rng.normal(size=(2 * trials, 4))
            if noise != "exponential"
            else rng.exponential(size=(2 * trials, 4))
        )
        if noise == "drift":
            # The whole machine slows down while the sides take turns: a b, b a, a b.
            draws += 0.5 * np.arange(2 * trials)[:, None]
        factors = np.exp(0.02 * draws)
        turns = [number for at in range(trials) for number in ((0, 1), (1, 0))[at % 2]]
        sides = [
            {
                key: (100 * factors[[t == which for t in turns], at]).tolist()
                for at, key in enumerate(FIGURES)
            }
            for which in (0, 1)
        ]
        said, _lines, together = judge(["a", "b"], sides)
        assert together == len(FIGURES)
        claims += " than a" in said
    assert claims <= 0.05 * count


def test_single_trials_show_no_difference(tmp_path):
    a, b = (
        report(write_run(tmp_path / name, [latency] * 200))
        for name, latency in (("a", 10**6), ("b", 2 * 10**6))
    )
    found = compare([ReportedTrials("a", [a]), ReportedTrials("b", [b])])
    # 1.01 and 2.01 ms from when they were due.
    assert shows(found.verdict, "99 % slower at p99")


@pytest.mark.full
def test_what_was_cut_off_is_said_first_and_counts_only_alone(tmp_path):
    a, b = (
        side(tmp_path, "a", [1e6, 1.01e6, 0.99e6]),
        side(tmp_path, "b", [0.8e6, 0.81e6, 0.79e6, 9e6]),
    )
    change_run(b / "trial-4", status="partial", reason="interrupted")
    compared, document = read_comparison([a, b])
    assert shows(compared.verdict, "PARTIAL: 1 … 4 trials of b … 20 % faster at p99")
    assert (compared.trials, document.subject[1]) == ([3, 3], "[1] b, 3 trials")
    assert "b, trial 4: PARTIAL: interrupted" in compared.warnings
    alone, _document = read_comparison([a, b / "trial-4"])
    assert shows(alone.verdict, "PARTIAL: trial-4 … trial-4 reads")
    fails = write_run(tmp_path / "fails", [10**6] * 50 + [10**5] * 50, outcome="error")
    failed, _document = read_comparison([a / "trial-1", fails])
    assert shows(failed.verdict, "100 … 100 operations of fails FAILED")


def test_traces_are_compared_by_their_hits(tmp_path):
    for name, capacity in (("a", "64MiB"), ("b", "8GiB")):
        run_cli("kvtrace", "gen", "--model", "tiny-1b", "--users", "3", "--duration", "40s",
                "-o", tmp_path / f"{name}.parquet", "--set", "tiers.gpu.capacity=64MiB",
                "--set", "tiers.cpu.capacity=64MiB", "--set", f"tiers.nvme.capacity={capacity}")  # fmt: skip
    first = run_cli(
        "kvdistill", "compare", tmp_path / "a.parquet", tmp_path / "b.parquet"
    ).stdout.splitlines()[0]
    found = re.fullmatch(r"b.parquet hit rate ([0-9.]+)%, a.parquet ([0-9.]+)%", first)
    assert float(found[1]) > float(found[2])
    _compared, document = read_comparison([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert document.highlights
    assert all(
        ", nvme: b.parquet relative to a.parquet" in figure.label for figure in document.highlights
    )
    assert [chart.title for chart in document.pictures] == [
        f"Bandwidth of nvme: [{at}] {name}.parquet" for at, name in enumerate("ab")
    ]
    assert document.chapters[4].tables[0].title == "Figures: nvme"


def test_a_comparison_leads_with_the_drive_not_other_tiers():
    rate, times = ("read", "bandwidth_bytes_per_s"), ("read", "latency_p99_ns")
    alone = {("nvme", *rate): [1.0], ("nvme", *times): [5.0]}
    both = alone | {("cpu", *rate): [9.0], ("cpu", *times): [1.0]}
    for sides in ([alone, both], [dict(reversed(both.items())), alone]):
        assert drive_of(judge(["a", "b"], sides)[1]) == "nvme"
    # DRAM has reads enough for a p99, the drive for a p50: the headline is of the drive all the
    # same.
    few = {
        ("cpu", *rate): [9.0],
        ("cpu", *times): [1.0],
        ("nvme", *rate): [1.0],
        ("nvme", "read", "latency_p50_ns"): [4.0],
    }
    quick = few | {("nvme", *rate): [2.0], ("nvme", "read", "latency_p50_ns"): [2.0]}
    said = judge(["a", "b"], [few, quick])[0]
    assert shows(said, "50 % faster at p50 … 100 % higher")


@pytest.mark.parametrize(
    ("p99_ns", "said"),
    [
        # A hundredth of a percent is no 0 %, and a three hundredth of the time no 100 % less of it.
        ([1.5e6, 1.5e6, 1.5e6], "99.7 % faster at p99 [99.7, 99.7]"),
        ([499e6, 499e6, 499e6], "0.2 % faster at p99 [0.2, 0.2]"),
        ([500.01e6, 500.01e6, 500.01e6], "< 0.1 % slower at p99 [< 0.1, < 0.1]"),
        ([400e6, 400e6, 400e6], "20 % faster at p99 [20, 20]"),
        (
            [500e6, 500e6, 500e6],
            "read p99 (0 % slower",
        ),
    ],
)
def test_a_headline_rounds_no_difference_to_none_or_to_all(p99_ns, said):
    figure = ("nvme", "read", "response_p99_ns")
    assert shows(judge(["a", "b"], [{figure: [500e6] * 3}, {figure: p99_ns}])[0], said)


@pytest.mark.full
def test_zero_storage_times_are_not_compared_with_measured_ones(tmp_path):
    for preset in ("vllm-fs", "vllm-obj"):
        run_cli("kvtrace", "gen", "--preset", preset, "--model", "tiny-1b", "--users", "3", "--duration", "20s",
                "-o", tmp_path / f"{preset}.parquet")  # fmt: skip
    fs, obj = tmp_path / "vllm-fs.parquet", tmp_path / "vllm-obj.parquet"
    found = json.loads(run_cli("kvdistill", "compare", fs, obj, "--json").stdout)
    assert shows(found["warnings"][0], "TTFT … vllm-fs")
    assert not [line for line in found["lines"] if line["name"].startswith("first_token")]
    # Nor with those of a run, whose storage takes time.
    requests = tmp_path / "requests.parquet"
    run_cli("kvtrace", "gen", "--preset", "vllm-fs", "--model", "tiny-1b", "--users", "3", "--duration", "20s",
            "--requests-out", requests, "--force", "-o", fs)  # fmt: skip
    tiers = [
        "--tier",
        "cpu=sim:bandwidth=1GB,latency=1ms",
        "--tier",
        "nvme=sim:bandwidth=1GB,latency=1ms",
    ]
    run_cli(
        "kvreplay",
        "run",
        fs,
        *tiers,
        "--requests",
        requests,
        "--speed",
        "1",
        "-o",
        tmp_path / "run",
    )
    mixed = json.loads(run_cli("kvdistill", "compare", tmp_path / "run", fs, "--json").stdout)
    assert mixed["warnings"][0] == found["warnings"][0].replace(
        "in vllm-fs but", "in vllm-fs.parquet but"
    )
    assert not [line for line in mixed["lines"] if line["name"].startswith("first_token")]
    alike = json.loads(run_cli("kvdistill", "compare", fs, fs, "--json").stdout)
    assert [line for line in alike["lines"] if line["name"].startswith("first_token")]


@pytest.mark.usefixtures("without_charts")
def test_a_comparison_is_a_page_too(tmp_path):
    a, b = side(tmp_path, "a", [1e6, 1.01e6, 0.99e6]), side(tmp_path, "b", [0.8e6, 0.81e6, 0.79e6])
    out = tmp_path / "c.html"
    done = run_cli("kvdistill", "compare", a, b, "-o", out)
    assert done.stdout.startswith("b reads ")
    page = out.read_text()
    assert page.index("b reads ") < page.index('class="highlights"') < page.index("<figure>")
    bad = run_cli("kvdistill", "compare", a, b, "-o", tmp_path / "c.pdf", check=False)
    assert (bad.returncode, "*.html" in bad.stderr) == (2, True)


@pytest.mark.chromium
@pytest.mark.first(width=1)
@pytest.mark.parametrize(("width", "is_dark"), [(1440, False), (1440, True), (390, False)])
def test_a_browser_draws_every_chart_without_errors_or_requests(tmp_path, text, width, is_dark):
    found = watch(text, tmp_path, width=width, is_dark=is_dark)
    assert found | {"wide": max(found["wide"], 0)} == {
        "errors": [], "fetched": [], "said": [], "wide": 0, "clipped": 0, "drawn": text.count("<figure>"),
        "paper": "rgb(20, 24, 29)" if is_dark else "rgb(255, 255, 255)",
    }  # fmt: skip


@pytest.mark.full
@pytest.mark.chromium
def test_paper_has_what_is_folded_on_a_screen(tmp_path, text):
    pages = printed_pages(text, tmp_path)
    assert 6 < pages <= 10
    assert printed_pages(text.replace("<details", "<details open"), tmp_path) == pages


@pytest.mark.full
@pytest.mark.chromium
@pytest.mark.parametrize(("width", "most"), [(1280, 800), (690, 1300), (390, 1400)])
def test_the_summary_is_one_screen(tmp_path, text, width, most):
    """From the top to the first chapter, which is folded; on a phone a few."""
    assert 200 < height_above(text, tmp_path, "details.folded", width=width) <= most


@pytest.mark.usefixtures("without_charts")
def test_a_page_is_called_by_drive_model_workload_and_verdict(tmp_path):
    from kvtrace.core.run.run_file import read_run

    run = write_run(tmp_path / "run", [1000] * 4)
    found = read_run(run)
    trace = msgspec.structs.replace(
        found.trace.metadata, preset="vllm-fs", model={"name": "tiny-1b"}, config={"users": 4}
    )
    note = msgspec.structs.replace(found.trace, metadata=trace)
    facts = {"device": "nvme0n1", "device_model": "Make 990", "filesystem": "xfs"}
    change_run(run, trace=msgspec.to_builtins(note), tiers={"nvme": facts})
    page = html_page(documents_of([report(run)], ["run"]), "a test")
    assert "<title>Make 990 (xfs), tiny-1b, vllm-fs, 4 users: fine</title>" in page
    assert '<p class="name">run</p> <h1>Make 990 (xfs), tiny-1b, vllm-fs, 4 users</h1>' in page


def test_mark_labels_have_rows_of_their_own_near_the_middle():
    steps = Series("a", [0.0, 1e9, 2e9, 3e9], [1.0, 2.0, 3.0, 4.0])
    marks = ((1e9, "lost"), (1.1e9, "over"), (3.9e9, "joined"))
    chart = Chart("b", ChartShape.STEPS, Unit.NS, Unit.BYTES_PER_S, [steps], 1e9, marks=marks)
    (root,) = json.loads(build_live_figure(build_picture(chart)))["roots"]
    shown = [part["attributes"] for part in root["attributes"]["center"] if part["name"] == "Label"]
    assert [part["text"] for part in shown] == ["lost", "over", "joined"]
    assert len({part["y"] for part in shown}) == 3
    assert [part.get("text_align", "left") for part in shown] == ["left", "left", "right"]


@pytest.mark.full
@pytest.mark.chromium
def test_every_shape_is_drawn(tmp_path):
    line = Series("read", [1.0, 2.0, 4.0], [0.5, 0.6, 0.7])
    shaded = Series("read", [1.0, 2.0, 4.0], [1.0, 2.0, 4.0], [0.1, 0.5, 1.0])
    tail = Series("read", [0.5, 0.9, 0.99], [1e3, 1e5, 1e7])
    ranges = Series("read", [1.0, 2.0, 4.0], [0.0, 1.0, 2.0], [2.0, 4.0, 5.0])
    drawn = {
        ChartShape.CELLS: shaded,
        ChartShape.GRID: shaded,
        ChartShape.MAP: shaded,
        ChartShape.RANGES: ranges,
    }
    drawn[ChartShape.QUANTILES] = tail
    units = {ChartShape.QUANTILES: Unit.NUMBER}
    knee = ((2.0, "knee: 2"),)
    names = {ChartShape.MAP: ("a", "b", "c", "d", "e"), ChartShape.RANGES: ("a", "b", "c")}
    charts = tuple(
        Chart(
            *(s, s, units.get(s, Unit.BYTES), Unit.NS, [drawn.get(s, line)], 1.0, 1.0),
            marks=knee,
            x_names=names.get(s, ()),
            y_names=names.get(s, ()),
        )
        for s in ChartShape
    )
    table = ReportTable(
        "All",
        Sheet.SUMMARY,
        [
            ReportColumn("a"),
        ],
        [["b"]],
        charts,
    )
    page = html_page([Document("all", "each shape", [Chapter("Shapes", [table])])], "a test")
    found = watch(page, tmp_path, width=1440)
    assert (found["errors"], found["said"], found["drawn"]) == ([], [], len(ChartShape))


def test_the_duration_of_one_load_is_judged():
    """Bandwidths vary too much to tell; the same load took 7 % longer in every trial."""
    bandwidth, duration = ("nvme", "read", "bandwidth_bytes_per_s"), ("", "", "wall_ns")
    operations = ("nvme", "read", "operations")
    a = {bandwidth: [200e6, 250e6, 230e6], duration: [9.41e9, 9.40e9, 9.42e9], operations: [99] * 3}
    b = a | {duration: [10.07e9, 10.05e9, 10.06e9]}
    sentence, lines, _together = judge(["a", "b"], [a, b])
    assert sentence.startswith("b takes 7 % longer")
    (line,) = (line for line in lines if line.name == "wall_ns")
    assert line.sides[1].ratio.differs
    # Runs of a fixed duration do different amounts of work.
    longer = b | {operations: [120] * 3}
    assert "longer" not in judge(["a", "b"], [a, longer])[0]
