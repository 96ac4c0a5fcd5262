from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from conftest import run_cli, write_trace
from kvdistill_rows import HAND, MS
from phrases import Saying, show_counts, shows
from whole import read_table

from kvdistill.formats.formats import Account, Format, ImportOptions
from kvdistill.formats.importing import import_files
from kvdistill.formats.oplog import Style, write_oplogs
from kvdistill.profile.sources import distil_source
from kvdistill.reports.output import report
from kvdistill.reports.run import summary_report
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.run.run_file import read_run
from kvtrace.core.schema import BLOCKS, OBJECTS, OPS, SERIES, TRACE
from kvtrace.core.temporary import host_digest

HEADER = "\t".join(Style.WARP.columns)


def run_import(format_: str, files: list, out, tier: str | None = None, **how: bool) -> Account:
    return import_files(
        files, ImportOptions(Format(format_), tier), out, ["kvdistill", "import"], **how
    )


def rows_of(path, table, *names: str) -> list[tuple]:
    found = read_table(path, table)
    return list(zip(*(found.column(n).to_pylist() for n in names), strict=True))


def manifest(out) -> dict:
    return json.loads((out / "run.json").read_text())


def figures(out) -> dict[tuple[str, str], dict]:
    return {(f["tier"], f["op"]): f for f in manifest(out)["summary"]["figures"]}


def warp_line(
    op: str, file: str, start: str, end: str, size: int, error: str = "", **more: str
) -> str:
    values = dict.fromkeys(Style.WARP.columns, "") | {
        "idx": "0", "thread": "3", "op": op, "client_id": "c", "n_objects": "1", "bytes": str(size), "file": file,
        "error": error, "start": start, "end": end, "duration_ns": "", "cat": "0",
    } | more  # fmt: skip
    return "\t".join(values.values())


def write_lines(path, *lines: str, compress: bool = False):
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if compress else data)
    return path


# What a log cannot carry of HAND's tier: tier, phase, request, stage, rank; and offsets, since a
# GET is of an object.
EXPECTED = [
    (0, "write", "chunk/000000000000", 6000), (0, "write", "chunk/000000000001", 3 << 20),
    (2 * MS, "read", "chunk/000000000002", 8192), (10 * MS, "read", "chunk/000000000001", 3 << 20),
    (20 * MS, "read", "chunk/000000000000", 2000), (30 * MS, "delete", "chunk/000000000000", 6000),
    (40 * MS, "write", "chunk/000000000003", 4096), (50 * MS, "read", "chunk/000000000003", 4096),
    (100 * MS, "read", "chunk/000000000001", 1 << 20),
]  # fmt: skip


@pytest.mark.parametrize(("style", "hosts"), [(Style.SAI3, 1), (Style.SAI3, 3), (Style.WARP, 1)])
def test_a_trace_comes_back_from_its_op_log(tmp_path, style, hosts):
    trace = write_trace(tmp_path / "hand.parquet", HAND)
    log = write_oplogs(
        trace, "nvme", tmp_path, style, endpoint="s3://b/", hosts=hosts, limit=Limit(), argv=[]
    )
    result = run_import(style.value, [tmp_path / name for name in log.files], tmp_path / "out")
    assert (result.rows_read, result.rows_kept, result.left_out) == (9, 9, {})
    keys = dict(rows_of(tmp_path / "out" / "trace.objects.parquet", OBJECTS, "object_id", "key"))
    found = rows_of(
        tmp_path / "out" / "trace.parquet", TRACE, "ts_ns", "op", "object_id", "length_bytes"
    )
    if hosts == 1:
        assert [(ts, op, keys[o], length) for ts, op, o, length in found] == EXPECTED
    # Several hosts' rows of one instant may change places.
    assert sorted((ts, op, keys[o], length) for ts, op, o, length in found) == sorted(EXPECTED)
    assert sorted(keys) == list(range(4))
    # Nothing was measured: no run.
    assert result.files == ["trace.objects.parquet", "trace.parquet"]
    # The log begins at the first operation: its time is the trace's.
    assert rows_of(tmp_path / "out" / "trace.parquet", TRACE, "request_id", "stage", "rank", "phase")[0] == (
        None, None, 0, "other",
    )  # fmt: skip


def test_an_imported_trace_keeps_its_date_and_round_trips(tmp_path):
    log = write_lines(
        tmp_path / "w.csv", HEADER,
        warp_line("PUT", "a", "2026-01-01T01:00:00.5+01:00", "2026-01-01T00:00:00.75Z", 4096),
    )  # fmt: skip
    run_import("warp", [log], tmp_path / "out")
    again = write_oplogs(
        tmp_path / "out" / "trace.parquet",
        "s3",
        tmp_path,
        Style.SAI3,
        endpoint="",
        hosts=1,
        limit=Limit(),
        argv=[],
    )
    text = (
        zstandard.ZstdDecompressor()
        .decompressobj()
        .decompress((tmp_path / again.files[0]).read_bytes())
        .decode()
    )
    assert "\t2026-01-01T00:00:00.500000000Z\t" in text


def test_a_run_comes_back_from_warp_s_csv_with_its_times(tmp_path):
    log = write_lines(
        tmp_path / "w.csv", HEADER,
        warp_line("PUT", "a b", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.75Z", 4096),
        warp_line("GET", "a b", "2026-01-01T00:00:01.000000001Z", "2026-01-01T00:00:01.5Z", 4096),
        warp_line("GET", "a b", "2026-01-01T00:00:01.25Z", "", 4096),
        warp_line("DELETE", "a b", "2026-01-01T00:00:02Z", "2026-01-01T00:00:02.1Z", 0, error="gone"),
    )  # fmt: skip
    run_import("warp", [log], tmp_path / "out")
    made = write_oplogs(
        tmp_path / "out",
        "s3",
        tmp_path,
        Style.WARP,
        endpoint="http://h",
        hosts=1,
        limit=Limit(),
        argv=[],
    )
    # warp analyze can read it: rows that were measured have ends.
    assert not any("analyze" in line for line in made.lost)
    text = (
        zstandard.ZstdDecompressor()
        .decompressobj()
        .decompress((tmp_path / made.files[0]).read_bytes())
        .decode()
    )
    rows = [
        dict(zip(Style.WARP.columns, line.split("\t"), strict=True))
        for line in text.splitlines()[1:]
        if line[0] != "#"
    ]
    names = ("op", "file", "bytes", "start", "end", "duration_ns", "error")
    assert [tuple(r[n] for n in names) for r in rows] == [
        (
            "PUT",
            "a%20b",
            "4096",
            "2026-01-01T00:00:00.500000000Z",
            "2026-01-01T00:00:00.750000000Z",
            "250000000",
            "",
        ),
        (
            "GET",
            "a%20b",
            "4096",
            "2026-01-01T00:00:01.000000001Z",
            "2026-01-01T00:00:01.500000000Z",
            "499999999",
            "",
        ),
        # What was not measured is empty.
        ("GET", "a%20b", "4096", "2026-01-01T00:00:01.250000000Z", "", "", ""),
        (
            "DELETE",
            "a%20b",
            "0",
            "2026-01-01T00:00:02.000000000Z",
            "2026-01-01T00:00:02.100000000Z",
            "100000000",
            "error",
        ),
    ]
    run_import("warp", [tmp_path / made.files[0]], tmp_path / "again")
    wanted = ("op", "object_id", "submitted_ns", "completed_ns", "outcome")
    first, again = (
        rows_of(tmp_path / name / "ops.parquet", OPS, *wanted) for name in ("out", "again")
    )
    assert first == again


def test_the_log_that_s3dlio_writes(tmp_path):
    # As s3dlio 0.10 wrote it, but for its thread numbers: HEAD, a name with a space, an error
    # without quotes.
    when = "2026-11-21T07:57:43."
    log = write_lines(
        tmp_path / "o.tsv", "\t".join(Style.SAI3.columns),
        f"0\t240\tPUT\t\t1\t4096\tfile://\t/t/o 2.bin\t\t{when}938825512Z\t{when}938825512Z\t{when}938930290Z\t104778",
        f"1\t240\tGET\t\t1\t4096\tfile://\t/t/o 2.bin\t\t{when}939379174Z\t{when}939397539Z\t{when}939397539Z\t18365",
        f"2\t736\tLIST\t\t5\t0\tfile://\t/t/\t\t{when}939527949Z\t\t{when}939575082Z\t47133",
        f"3\t240\tHEAD\t\t1\t4096\tfile://\t/t/o 2.bin\t\t{when}939651179Z\t\t{when}939669126Z\t17947",
        f'4\t240\tGET\t\t1\t0\tfile://\t/t/no\tFile not found: "no"\t{when}939791873Z\t{when}939858060Z\t'
        f"{when}939858060Z\t66187",
    )  # fmt: skip
    result = run_import("sai3", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "ops.parquet", OPS, "op", "submitted_ns", "completed_ns", "bytes", "outcome") == [
        ("write", 0, 104_778, 4096, "ok"), ("read", 553_662, 572_027, 4096, "ok"),
        ("read", 966_361, 1_032_548, None, "error"),
    ]  # fmt: skip
    # What was never read or written well has no known size.
    objects = rows_of(tmp_path / "out" / "trace.objects.parquet", OBJECTS, "key", "size_bytes")
    assert objects == [("/t/o%202.bin", 4096), ("/t/no", None)]
    assert show_counts(result.left_out, {"LIST and STAT": 2})
    # The read that failed is written as it was; nothing is populated for it.
    again = write_oplogs(
        tmp_path / "out", "s3", tmp_path, Style.SAI3, endpoint="", hosts=1, limit=Limit(), argv=[]
    )
    assert (again.gets, again.populated) == (2, 0)


def sai3_log(path, rows, encoding="utf-8"):
    """A log of PUTs of 4 KiB at these starts and ends, with their durations in ns."""
    lines = ["\t".join(Style.SAI3.columns)] + [
        f"{n}\t1\tPUT\t\t1\t4096\ts3://b\to{n}\t\t{start}\t\t{end}\t{duration_ns}"
        for n, (start, end, duration_ns) in enumerate(rows)
    ]
    path.write_bytes("".join(line + "\n" for line in lines).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("zero_ns", "date"), [(1_762_000_000 * 10**9, "2025-11-01T12:26:40+00:00"), (5, None)]
)
def test_times_of_an_op_log_in_whole_ns(tmp_path, zero_ns, date, encoding):
    spans = [(0, 104_778), (553_662, 572_027)]
    rows = [(zero_ns + start, zero_ns + end, end - start) for start, end in spans]
    log = sai3_log(tmp_path / "o.tsv", rows, encoding)
    run_import("sai3", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "ops.parquet", OPS, "submitted_ns", "completed_ns") == spans
    # A clock of its own has no date.
    assert manifest(tmp_path / "out")["started_utc"] == date


def test_whole_times_that_are_not_in_ns_are_left_out(tmp_path):
    us = 1_762_000_000 * 10**6
    rows = [(us, us + 104, 104_778), (us * 1000, us * 1000 + 18_365, 18_365)]
    result = run_import("sai3", [sai3_log(tmp_path / "o.tsv", rows)], tmp_path / "out")
    assert result.rows_kept == 1
    assert show_counts(result.left_out, {"not in ns": 1})


def test_what_warp_measured_becomes_a_run(tmp_path):
    log = write_lines(
        tmp_path / "w.csv.zst", HEADER,
        # An hour east of UTC: the zone counts.
        warp_line("PUT", "a b", "2026-01-01T01:00:00.5+01:00", "2026-01-01T01:00:00.75+01:00", 4096),
        warp_line("GET", "a b", "2026-01-01T00:00:01.000000001Z", "2026-01-01T00:00:01.5Z", 4096),
        warp_line("GET", "a b", "2026-01-01T00:00:01.25Z", "", 4096, duration_ns="1000"),
        warp_line("DELETE", "a b", "2026-01-01T00:00:02Z", "2026-01-01T00:00:02.1Z", 0, error='"no ""way"""'),
        warp_line("GET", "c", "2026-01-01T00:00:03Z", "", 10),
        "# written by warp", compress=True,
    )  # fmt: skip
    out = tmp_path / "out"
    result = run_import("warp", [log], out, tier="minio")
    assert result.files == ["trace.objects.parquet", "trace.parquet", "ops.parquet", "run.json"]
    assert rows_of(
        out / "ops.parquet",
        OPS,
        "op",
        "submitted_ns",
        "completed_ns",
        "bytes",
        "io_bytes",
        "outcome",
    ) == [
        ("write", 0, 250 * MS, 4096, None, "ok"),
        ("read", 500 * MS + 1, 1000 * MS, 4096, None, "ok"),
        ("read", 750 * MS, 750 * MS + 1000, 4096, None, "ok"),
        ("delete", 1500 * MS, 1600 * MS, None, None, "error"),
        # No end: not measured, which is not 0.
        ("read", 2500 * MS, None, 10, None, "ok"),
    ]
    assert rows_of(out / "trace.objects.parquet", OBJECTS, "key", "size_bytes") == [
        ("a%20b", 4096),
        ("c", 10),
    ]
    assert shows(result.notes, "1 operation … null")
    run = manifest(out)
    assert (run["started_utc"], run["status"], run["summary"]["errors"]) == (
        "2026-01-01T00:00:00.500000+00:00", "complete", 1,
    )  # fmt: skip
    write = figures(out)["minio", "write"]
    assert (write["operations"], write["bytes"], write["span_ns"], write["latency"]["max_ns"]) == (
        1, 4096, 250 * MS, 250 * MS,
    )  # fmt: skip
    assert write["bandwidth_bytes_per_s"] == 4096 * 4
    # Fewer than two values have no median.
    assert write["latency"]["p50_ns"] is None
    done = run_cli("kvdistill", "report", out, "--json")
    assert json.loads(done.stdout)["figures"]
    both = run_cli("kvdistill", "compare", out, out, "--json")
    assert {line["tier"] for line in json.loads(both.stdout)["lines"]} == {"minio"}


@pytest.mark.parametrize("format_", ["sai3", "warp"])
def test_a_name_may_hold_what_a_comment_begins_with(tmp_path, format_):
    line = warp_line("GET", "b/a#1", "2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z", 100)
    head = "\t".join(Style.WARP.columns)
    log = write_lines(tmp_path / "w.csv", head, line, "# a line of it, with\ttabs")
    result = run_import(format_, [log], tmp_path / "out")
    assert (result.rows_read, result.rows_kept, result.left_out) == (1, 1, {})
    assert rows_of(tmp_path / "out" / "trace.objects.parquet", OBJECTS, "key") == [("b/a#1",)]


def test_rows_that_do_not_fit_are_counted_by_reason(tmp_path):
    good = "2026-01-01T00:00:01Z"
    log = write_lines(
        tmp_path / "w.csv", HEADER + "\tcolour",
        warp_line("GET", "a", good, "", 1) + "\tred",
        warp_line("STAT", "a", good, "", 0) + "\tred",
        warp_line("LIST", "a", good, "", 0) + "\tred",
        warp_line("COPY", "a", good, "", 0) + "\tred",
        warp_line("GET", "", good, "", 1) + "\tred",
        warp_line("GET", "a", "yesterday", "", 1) + "\tred",
        warp_line("GET", "a", "2026-13-01T00:00:01Z", "", 1) + "\tred",
        warp_line("GET", "a", good, "", 1, n_objects="many").replace("\t1\thttp", "\tx\thttp") + "\tred\ttoo\tmany",
        warp_line("PUT", "a", good, "", -5) + "\tred",
        warp_line("PUT", "a", good, "", 2**50 + 1) + "\tred",
        warp_line("PUT", "a", good, "", "0x7fffffffffffffff") + "\tred",
        warp_line("DELETE", "a", good, "", 0, n_objects="100") + "\tred",
    )  # fmt: skip
    result = run_import("warp", [log], tmp_path / "out")
    assert (result.rows_read, result.rows_kept) == (12, 2)
    reasons = {"columns": 1, "LIST": 2, "unknown": 1, "name": 1, "RFC 3339": 2, "number": 3}
    assert show_counts(result.left_out, reasons)
    (place,) = (place for reason, place in result.examples.items() if "RFC 3339" in reason)
    assert place.startswith("w.csv, row ")
    assert shows(result.notes, "w.csv: … colour")
    assert any(shows(note, "1 row") for note in result.notes)


@pytest.mark.parametrize(
    ("format_", "name", "text", "said"),
    [
        ("sai3", "a.tsv", "", "empty"),
        (
            "sai3",
            "a.tsv",
            "idx,op\n",
            "a.tsv, row 1:",
        ),
        ("warp", "a.csv", HEADER + "\n", "no operation"),
        (
            "fio-iolog",
            "a.log",
            "hello\n",
            "a.log, row 1: … 'fio version 2",
        ),
        ("fio-iolog", "a.log", "fio version 3 iolog\n1 f add\n", "no operation"),
        ("fio-json", "a.json", "warning\n", "not fio's JSON"),
        ("fio-json", "a.json", "fio: [warning]\n", "not fio's JSON"),
        ("fio-json", "a.json", '{"jobs": [{"read": {"total_ios": 1}}]}', "fio 3"),
        ("fio-json", "a.json", '{"jobs": []}', "no job"),
        ("fio-json", "a.json", '{"jobs": [{"read": {"total_ios": "1"}}]}', "not fio's JSON"),
        ("fio-json", "a.json", '{"jobs": ', "not fio's JSON"),
        ("fio-log", "a_lat.1.log", "1, 2\n", "has 2 columns"),
        # The second line has a window's mean and maximum, for which the first has too few columns.
        ("fio-log", "a_bw.1.log", "0, 0, 0, 0\n500, 1001, 10, 0, 0, 0\n", "has 4 columns"),
        ("fio-log", "a_clat_hist.1.log", "100, 0, 4096, 1, 2\n", "2 latency bins"),
        ("bpftrace", "a.txt", "Attaching 1 probe...\n", "no histogram"),
        (
            "bpftrace",
            "a.txt",
            "@d2c_read_us: \n[nonsense\n",
            "a.txt, row 2: '[nonsense'",
        ),
        (
            "bpftrace",
            "a.txt",
            f"@d2c_read_us:\n[1] {2**70} |@|\n",
            "'[1] 1180591620717411303424 |@|'",
        ),
        (
            "bpftrace",
            "a.txt",
            "@qd_read:\n[1] 1 |@|\n@qd_read:\n[1] 1 |@|\n",
            "row 3: @qd_read",
        ),
        ("blkparse", "a.txt", "CPU0 (8,0):\n", "no event"),
        ("blkparse", "a.txt", "  8,0 1 1 0.000000001 1 Q R 1 + 1 [x]\n", "no issue"),
    ],
)
def test_a_broken_file_is_one_line_with_its_place(tmp_path, format_, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError) as caught:
        run_import(format_, [tmp_path / name], tmp_path / "out")
    assert shows(str(caught.value), said)
    assert not (tmp_path / "out").exists()


def test_a_missing_and_a_damaged_file(tmp_path):
    log = write_lines(tmp_path / "w.csv.zst", HEADER, *[warp_line("GET", "a", "2026-01-01T00:00:01Z", "", 1)] * 500,
                      compress=True)  # fmt: skip
    log.write_bytes(log.read_bytes()[:-40])
    with pytest.raises(TraceError, match=r"w\.csv\.zst: .*"):
        run_import("warp", [log], tmp_path / "out")
    for format_ in Format:
        with pytest.raises((TraceError, ConfigError), match=r"absent|latencies"):
            run_import(format_, [tmp_path / "absent"], tmp_path / "out")


def test_an_import_replaces_an_import_and_nothing_else(tmp_path):
    log = write_lines(
        tmp_path / "w.csv", HEADER, warp_line("GET", "a", "2026-01-01T00:00:01Z", "", 1)
    )
    out = tmp_path / "out"
    run_import("warp", [log], out)
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [fio_job()]}))
    with pytest.raises(DeviceError, match="force"):
        run_import("fio-json", [tmp_path / "o.json"], out)
    assert (out / "trace.parquet").is_file()
    run_import("fio-json", [tmp_path / "o.json"], out, is_forced=True)
    # The trace of the first import does not stay beside the figures of the second.
    assert [path.name for path in out.iterdir()] == ["run.json"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("x")
    for is_forced in (False, True):
        with pytest.raises(DeviceError, match="no import"):
            run_import("warp", [log], tmp_path / "mine", is_forced=is_forced)


def test_iolog_3(tmp_path):
    log = write_lines(
        tmp_path / "x.iolog", "fio version 3 iolog", "1 f add", "1 f open", "10 f write 8192 6144", "12 g read 0 512",
        "15 f trim 0 4096", "20 f sync", "25 f read", "30 f read 8192 100", "40 f close", "x f read 0 1",
    )  # fmt: skip
    result = run_import("fio-iolog", [log], tmp_path / "out")
    assert rows_of(
        tmp_path / "out" / "trace.parquet",
        TRACE,
        "ts_ns",
        "op",
        "object_id",
        "offset_bytes",
        "length_bytes",
    ) == [(0, "write", 0, 8192, 6144), (2000, "read", 1, 0, 512), (20_000, "read", 0, 8192, 100)]
    assert rows_of(tmp_path / "out" / "trace.objects.parquet", OBJECTS, "key", "size_bytes") == [
        ("f", 8192 + 6144), ("g", 512),
    ]  # fmt: skip
    # Adding, opening and closing files is no row.
    assert (result.rows_read, result.rows_kept) == (7, 3)
    reasons = {"syncs": 1, "trims": 1, "offset or length": 1, "time is not": 1}
    assert show_counts(result.left_out, reasons)


def test_iolog_2_has_only_the_times_of_its_waits(tmp_path):
    log = write_lines(
        tmp_path / "x.iolog", "fio version 2 iolog", "f add", "f open", "f write 0 4096", "f wait 20 0",
        "f read 0 4096", "f close",
    )  # fmt: skip
    result = run_import("fio-iolog", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "trace.parquet", TRACE, "ts_ns", "op") == [
        (0, "write"),
        (20 * MS, "read"),
    ]
    assert shows(result.notes, "x.iolog … version 2")


def test_our_own_iolog_comes_back(tmp_path):
    golden = Path(__file__).parents[2] / "golden" / "kvdistill" / "replay.iolog"
    run_import("fio-iolog", [golden], tmp_path / "out")
    lines = [
        line.split()
        for line in golden.read_text().splitlines()
        if line.split()[2] in ("read", "write")
    ]
    assert len(lines) > 5
    rows = rows_of(
        tmp_path / "out" / "trace.parquet", TRACE, "ts_ns", "op", "offset_bytes", "length_bytes"
    )
    first = int(lines[0][0])
    assert rows == [
        ((int(us) - first) * 1000, op, int(at), int(length)) for us, _, op, at, length in lines
    ]
    # A folder with a trace alone is one to report on and distil.
    report = json.loads(run_cli("kvdistill", "report", tmp_path / "out", "--json").stdout)
    assert sum(row["ops"] for row in report["operations"]) == len(lines)
    profile = distil_source(tmp_path / "out", None, Limit(), tmp_path).profile
    assert profile.ops == len(lines)


@pytest.mark.parametrize(
    ("lines", "has_trace", "first"),
    [
        # ms, latency, direction, bytes, priority
        (["5, 1000, 0, 4096, 0", "7, 2000, 1, 8192, 1"], False, 0),
        # ..., offset (before priorities were logged)
        (["5, 1000, 0, 4096, 65536", "7, 2000, 1, 8192, 0"], True, 65536),
        # ..., offset, priority
        (["5, 1000, 0, 4096, 65536, 0", "7, 2000, 1, 8192, 0, 0"], True, 65536),
        (["5, 1000, 0, 4096, 65536, 0x0000", "7, 2000, 1, 8192, 0, 0x4001"], True, 65536),
    ],
)
def test_latency_logs(tmp_path, lines, has_trace, first):
    log = write_lines(tmp_path / "job_lat.1.log", *lines)
    result = run_import(
        "fio-log", [log, write_lines(tmp_path / "job_clat.1.log", lines[0])], tmp_path / "out"
    )
    names = ("op", "submitted_ns", "completed_ns", "bytes", "io_bytes")
    assert rows_of(tmp_path / "out" / "ops.parquet", OPS, *names) == [
        ("read", 0, 1000, 4096, 4096), ("write", 2 * MS - 1000, 2 * MS + 1000, 8192, 8192),
    ]  # fmt: skip
    assert ("trace.parquet" in result.files) == has_trace
    if has_trace:
        assert rows_of(tmp_path / "out" / "trace.parquet", TRACE, "offset_bytes")[0] == (first,)
    assert shows(result.notes, "job_clat.1.log")
    assert shows(result.notes, "job_lat.1.log: … milliseconds")


def test_latency_logs_with_issue_times_are_exact(tmp_path):
    # ms, latency, direction, bytes, offset, priority, issue time
    log = write_lines(tmp_path / "j_lat.1.log", "5, 1000, 0, 4096, 512, 0, 4321000", "9, 3000, 2, 4096, 0, 0, 5321000",
                      "9, 3000, 1, 4096, 1024, 0, 5321000")  # fmt: skip
    result = run_import("fio-log", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "ops.parquet", OPS, "submitted_ns", "completed_ns") == [
        (0, 1000), (1_000_000, 1_003_000),
    ]  # fmt: skip
    assert show_counts(result.left_out, {"trims": 1})
    # A job of it goes where the log says, at the times that were measured.
    made = distil_source(tmp_path / "out", None, Limit(), tmp_path)
    assert pq.read_table(made.ios, columns=["address", "completed_ns"]).to_pydict() == {
        "address": [512, 1024], "completed_ns": [1000, 1_003_000]
    }  # fmt: skip
    # Without offsets, a priority and an issue time.
    log = write_lines(
        tmp_path / "k_clat.1.log", "5, 1000, 0, 4096, 0, 4321000", "9, 3000, 1, 4096, 1, 5321000"
    )
    result = run_import("fio-log", [log], tmp_path / "out2")
    assert result.files == ["ops.parquet", "run.json"]
    assert rows_of(tmp_path / "out2" / "ops.parquet", OPS, "submitted_ns", "completed_ns")[1] == (
        1_000_000,
        1_003_000,
    )
    assert shows(result.notes, "completion latencies")


def test_total_latencies_have_no_issue_times_and_completions_do(tmp_path):
    # As fio 3.42 writes them with log_issue_time=1: by the zeros, all I/Os were issued at once.
    lat = write_lines(
        tmp_path / "j_lat.1.log",
        "1, 946436, 0, 16384, 512, 0, 0",
        "10, 596263, 1, 16384, 512, 0, 0",
    )
    ops, names = tmp_path / "out" / "ops.parquet", ("submitted_ns", "completed_ns")
    run_import("fio-log", [lat], tmp_path / "out")
    assert rows_of(ops, OPS, *names) == [
        (0, 946_436),
        (9 * MS + 946_436 - 596_263, 9 * MS + 946_436),
    ]
    clat = write_lines(tmp_path / "j_clat.1.log", "1, 945825, 0, 16384, 512, 0, 51767",
                       "10, 594520, 1, 16384, 512, 0, 10008700")  # fmt: skip
    result = run_import("fio-log", [lat, clat], tmp_path / "out", is_forced=True)
    assert rows_of(ops, OPS, *names) == [
        (0, 945_825),
        (10_008_700 - 51_767, 10_008_700 - 51_767 + 594_520),
    ]
    assert shows(result.notes, "total latency")


def test_completion_latencies_are_read_without_total_ones(tmp_path):
    both = [
        write_lines(tmp_path / f"a_{kind}.1.log", "10, 1000, 0, 4096, 0")
        for kind in ("lat", "clat")
    ]
    other = write_lines(tmp_path / "b_clat.1.log", "10, 1000, 1, 8192, 0")
    result = run_import("fio-log", [*both, other], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "ops.parquet", OPS, "op", "bytes") == [
        ("read", 4096),
        ("write", 8192),
    ]
    assert shows(result.notes, "a_clat.1.log")
    assert shows(result.notes, "b_clat.1.log")


def test_windows_with_their_mean_and_their_largest_value(tmp_path):
    # As fio 3.42 writes them with log_window_value=both: ms, mean, largest, direction, bytes,
    # priority.
    bw = write_lines(tmp_path / "j_bw.1.log", "500, 800, 1600, 0, 0, 0", "1000, 800, 900, 1, 0, 0")
    lat = write_lines(tmp_path / "j_lat.1.log", "500, 421877, 2248377, 0, 0, 0")
    run_import("fio-log", [bw, lat], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "series.parquet", SERIES, "op", "bytes", "mean_ns") == [
        ("read", 409_600, 421_877), ("write", 819_200, None),
    ]  # fmt: skip


def test_rates_become_a_series(tmp_path):
    # 800 KiB/s for 500 ms is 409,600 bytes; 1600 KiB/s from 500 to 1500 ms is 819,200 in each half.
    reads = [f"{ms}, {rate}, 0, 0, 0" for ms, rate in ((500, 800), (1000, 1600), (1500, 1600))]
    bw = write_lines(
        tmp_path / "j_bw.1.log", *reads, *(f"{ms}, 1000, 1, 0, 0" for ms in (500, 1000, 1500))
    )
    # The mean from 0 to 1500 ms: 150 operations, 100 of them in the first second.
    iops = write_lines(tmp_path / "j_iops.1.log", "1500, 100, 0, 0, 0")
    # Latencies that go on for longer say nothing of how long bytes were counted.
    lat = write_lines(tmp_path / "j_lat.1.log", "1500, 100, 0, 0, 0", "2000, 100, 0, 0, 0")
    with_lat = run_import("fio-log", [bw, iops, lat], tmp_path / "with")
    assert (with_lat.rows_kept, figures(tmp_path / "with")["fio", "read"]["span_ns"]) == (
        9,
        1500 * MS,
    )
    result = run_import("fio-log", [bw, iops], tmp_path / "out")
    names = ("second", "op", "operations", "bytes", "errors", "mean_ns")
    assert rows_of(tmp_path / "out" / "series.parquet", SERIES, *names) == [
        (0, "read", 100, 409_600 + 819_200, None, None), (0, "write", None, 1_024_000, None, None),
        (1, "read", 50, 819_200, None, None), (1, "write", None, 512_000, None, None),
    ]  # fmt: skip
    read = figures(tmp_path / "out")["fio", "read"]
    assert (read["operations"], read["bytes"], read["span_ns"]) == (150, 2_048_000, 1500 * MS)
    assert read["operations_per_s"] == 100
    assert figures(tmp_path / "out")["fio", "write"]["operations"] is None
    assert (result.rows_kept, result.files) == (7, ["series.parquet", "run.json"])
    shown = run_cli("kvdistill", "report", tmp_path / "out").stdout
    assert ("imported from fio-log" in shown, "no operation" in shown) == (True, False)


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        # As fio 3.33 wrote them of a job that pauses (thinktime): no line of a window without I/O,
        # 784 reads in all.
        (
            [
                "250, 3152, 0",
                "250, 3248, 1",
                "1750, 3024, 0",
                "1750, 3376, 1",
                "3250, 3088, 0",
                "4750, 3280, 0",
            ],
            {"read": [788, 756, 0, 772, 820], "write": [812, 844]},
        ),
        # Windows of 10 ms, of which the clock makes 9 to 12, and a short last one, are no pauses.
        (["10, 100, 0", "22, 100, 0", "31, 100, 0", "40, 100, 0", "43, 100, 0"], {"read": [4.3]}),
        # One file for all jobs (per_job_logs=0): a time that does not go on begins the next job's;
        # the last one's first window was idle.
        (["500, 8, 0", "1000, 8, 0", "500, 16, 0", "1000, 16, 0", "1000, 2, 0"], {"read": [25]}),
    ],
)
def test_a_rate_counts_for_its_own_window(tmp_path, lines, seconds):
    log = write_lines(tmp_path / "j_bw.1.log", *(f"{line}, 0, 0" for line in lines))
    result = run_import("fio-log", [log], tmp_path / "out")
    assert (result.rows_kept, result.left_out) == (len(lines), {})
    rows = rows_of(tmp_path / "out" / "series.parquet", SERIES, "op", "second", "bytes")
    expected = {
        (op, at): round(kib * 1024)
        for op, of in seconds.items()
        for at, kib in enumerate(of)
        if kib
    }
    assert {(op, second): of for op, second, of in rows} == expected
    assert {op: of["bytes"] for (_, op), of in figures(tmp_path / "out").items()} == {
        op: round(sum(of) * 1024) for op, of in seconds.items()
    }


def test_a_series_without_a_tier_has_unknown_operations(tmp_path):
    run_import(
        "fio-log", [write_lines(tmp_path / "j_bw.1.log", "500, 800, 0, 0, 0")], tmp_path / "out"
    )
    query = "SELECT second, tier, op, bytes FROM series"
    assert "409600" in run_cli("kvdistill", "sql", tmp_path / "out", query).stdout
    assert "no operation" not in run_cli("kvdistill", "report", tmp_path / "out").stdout


def test_rates_of_single_operations_count_where_they_end(tmp_path):
    lines = (
        "0, 12215, 0, 4096, 0",
        "999, 39602, 0, 16384, 0",
        "1000, 39387, 1, 16384, 0",
        "2500, 1, 2, 512, 0",
    )
    result = run_import("fio-log", [write_lines(tmp_path / "j_bw.1.log", *lines)], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "series.parquet", SERIES, "second", "op", "operations", "bytes") == [
        (0, "read", None, 20480), (1, "write", None, 16384),
    ]  # fmt: skip
    assert show_counts(result.left_out, {"trims": 1})


def test_a_silent_job_has_an_empty_log(tmp_path):
    logs = [
        write_lines(tmp_path / f"a_{kind}.1.log", "10, 1000, 0, 4096, 0") for kind in ("lat", "bw")
    ]
    silent, no_queue = (
        [tmp_path / f"e_{kind}.1.log" for kind in ("lat", "bw")],
        tmp_path / "a_slat.1.log",
    )
    for path in (*silent, no_queue):
        path.write_text("")
    result = run_import("fio-log", [*logs, *silent, no_queue], tmp_path / "out")
    assert (result.rows_read, result.rows_kept, result.left_out) == (2, 2, {})
    assert shows(result.notes, "e_lat.1.log, e_bw.1.log")
    assert shows(result.notes, "a_slat.1.log")
    assert figures(tmp_path / "out")["fio", "read"]["operations"] == 1
    with pytest.raises(TraceError, match=r"e_lat\.1\.log:"):
        run_import("fio-log", [*silent, no_queue], tmp_path / "none")


@pytest.mark.parametrize(
    ("names", "is_noted"),
    [(["j_bw.1.log"], False), (["j_bw.1.log", "j_lat.1.log"], False), (["j_bw.1.log", "j_lat.2.log"], True),
     # All jobs in one file (per_job_logs=0).
     (["j_bw.log"], True), (["j_lat.log"], True)],
)  # fmt: skip
def test_jobs_whose_times_overlap_are_noted_once(tmp_path, names, is_noted):
    logs = [
        write_lines(tmp_path / name, "500, 1000, 0, 4096, 0", "400, 1000, 0, 4096, 0")
        for name in names
    ]
    notes = run_import("fio-log", logs, tmp_path / "out").notes
    assert sum("own start" in note for note in notes) == is_noted


def test_a_folder_is_no_log(tmp_path):
    done = run_cli("kvdistill", "import", "fio-log", ".", "-o", tmp_path / "out", check=False)
    assert done.stderr.splitlines() == [Saying("kvdistill: error: .:")]


def test_logs_of_submission_alone_are_refused(tmp_path):
    log = write_lines(tmp_path / "j_slat.1.log", "1, 2, 0, 4096, 0")
    with pytest.raises(ConfigError, match=r"bandwidth.*IOPS"):
        run_import("fio-log", [log], tmp_path / "out")


def fio_job(**fields: object) -> dict:
    times = {
        "min": 10,
        "max": 900,
        "mean": 400.5,
        "N": 200,
        "percentile": {"50.000000": 300, "99.000000": 880},
    }
    read = {
        "io_bytes": 819200, "bw_bytes": 409600, "iops": 100.0, "runtime": 2000, "total_ios": 200,
        "lat_ns": {"min": 0, "max": 1000, "mean": 500.0, "N": 200}, "clat_ns": times,
    }  # fmt: skip
    return {
        "jobname": "j", "error": 0, "job_runtime": 2100, "job options": {"ioengine": "libaio", "iodepth": "8"},
        "read": read, "write": {"total_ios": 0}, "trim": {"total_ios": 3}, "sync": {"total_ios": 0}, **fields,
    }  # fmt: skip


def test_fio_json_by_hand(tmp_path):
    of_k = {"jobname": "k", "error": 5, "trim": {"total_ios": 1}}
    content = {"fio version": "fio-3.33", "jobs": [fio_job(), fio_job(), fio_job(**of_k)]}
    text = json.dumps(content, indent=2)
    # With --output-format=json,normal fio writes text after its JSON.
    (tmp_path / "o.json").write_text(f"fio: a warning\n{text}\n\nj: (groupid=0, jobs=1): err= 0\n")
    result = run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    found = figures(tmp_path / "out")
    assert list(found) == [("j", "read"), ("j #2", "read"), ("k", "read")]
    # What each job did in each direction, trims too.
    assert (result.rows_read, result.rows_kept) == (6, 3)
    assert shows(result.notes, "1 trim of job k in o.json")
    assert found["j", "read"]["latency"] == {
        "count": 200, "mean_ns": 400.5, "max_ns": 900, "p50_ns": 300, "p95_ns": None, "p99_ns": 880,
        # 200 values cannot tell them.
        "p99_9_ns": None, "p99_99_ns": None,
    }  # fmt: skip
    assert found["j", "read"]["span_ns"] == 2 * 10**9
    run = manifest(tmp_path / "out")
    assert (run["status"], run["reason"]) == ("partial", Saying("job k of o.json … error 5"))
    engine = {name: run["engine"][name] for name in ("name", "queue_depth", "io_bytes")}
    assert engine == {"name": "libaio", "queue_depth": 8, "io_bytes": None}
    assert (run["summary"]["errors"], run["summary"]["wall_ns"]) == (1, 2_000 * MS)
    assert shows(result.notes, "3 trims of job j in o.json")
    # Another job is compared as another job.
    (tmp_path / "p.json").write_text(
        json.dumps({"jobs": [fio_job(**{"job options": {"iodepth": "1", "bs": "4k"}})]})
    )
    run_import("fio-json", [tmp_path / "p.json"], tmp_path / "other")
    compared = json.loads(
        run_cli("kvdistill", "compare", tmp_path / "out", tmp_path / "other", "--json").stdout
    )
    assert compared["settings"]["fio.jobs.j.iodepth"] == ["8", "1"]


def fio_result(timestamp_ms: int, elapsed: int, **fields: object) -> str:
    job = fio_job(elapsed=elapsed, **fields)
    return json.dumps({"timestamp_ms": timestamp_ms, "jobs": [job]}, indent=2)


def read_of(total_ios: int, runtime: int, mean: float) -> dict:
    completion = fio_job()["read"]["clat_ns"] | {"mean": mean, "N": total_ios}
    total = fio_job()["read"]["lat_ns"] | {"mean": mean + 100}
    return fio_job()["read"] | {
        "total_ios": total_ios, "runtime": runtime, "clat_ns": completion, "lat_ns": total,
    }  # fmt: skip


def counts_in(folder: Path) -> list[tuple[str, int]]:
    return [(tier, row["operations"]) for (tier, _), row in figures(folder).items()]


def test_states_of_one_fio_run_are_one_run(tmp_path):
    # As fio 3.33 wrote them with --status-interval=1: the run goes on from state to state.
    states = [
        fio_result(1_795_909_813_383, 1, job_runtime=888, read=read_of(90, 888, 400.0)),
        fio_result(1_795_909_814_382, 2, job_runtime=1887, read=read_of(190, 1887, 401.0)),
        fio_result(1_795_909_815_510, 4, job_runtime=3000, read=read_of(300, 3001, 402.0)),
    ]
    (tmp_path / "o.json").write_text("\n".join(states))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert counts_in(tmp_path / "out") == [("j", 300)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # `fio … >> o.json`, twice: jobs of the same name, of 2 s each.
        ((10_000, 3, 2000, 200, 400.0), (13_000, 3, 2001, 201, 401.0)),
        # Both are shorter than the whole seconds that fio counts.
        ((10_000, 1, 11, 256, 400.0), (10_500, 1, 12, 256, 401.0)),
        ((10_000, 1, 11, 256, 400.0), (10_500, 1, 12, 257, 401.0)),
        ((10_000, 3, 2000, 200, 400.0), (13_000, 3, 1990, 190, 401.0)),
    ],
)
def test_results_of_two_fio_runs_are_both_imported(tmp_path, first, second):
    results = [
        fio_result(stamp, elapsed, job_runtime=ms, read=read_of(count, ms, mean))
        for stamp, elapsed, ms, count, mean in (first, second)
    ]
    (tmp_path / "o.json").write_text("\n".join(results))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert counts_in(tmp_path / "out") == [("j", first[3]), ("j #2", second[3])]
    # Nobody knows how long both took together.
    assert manifest(tmp_path / "out")["summary"]["wall_ns"] is None


@pytest.mark.parametrize(
    "layout",
    [
        "lines",
        "one-line",
        "array",
        "with-warnings",
        "two-arrays",
        "indented",
        "commas",
        "note-array",
    ],
)
def test_every_layout_of_two_results_is_both(tmp_path, layout):
    first = fio_result(10_000, 3, read=read_of(200, 2000, 400.0))
    second = fio_result(13_000, 3, read=read_of(201, 2001, 401.0))
    text = {
        "lines": f"{first}\n{second}",
        "one-line": json.dumps(json.loads(first)) + json.dumps(json.loads(second)),
        "array": json.dumps([json.loads(first), json.loads(second)]),
        "two-arrays": f"[{first}]\n[{second}]\n",
        "indented": f"{first}\nfio: a warning\n  {second}",
        "commas": f"{first} , {second}",
        "note-array": f"fio: [a warning]\n[{first},{second}]",
        "with-warnings": f"note: queue depth will be capped\n{first}\n[r(1)] [10 %]\n{second}\n",
    }[layout]
    (tmp_path / "o.json").write_text(text)
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert counts_in(tmp_path / "out") == [("j", 200), ("j #2", 201)]


def test_a_result_cut_short_is_refused(tmp_path):
    whole = fio_result(10_000, 3)
    (tmp_path / "o.json").write_text(f"{whole}\n{whole[:300]}")
    with pytest.raises(TraceError):
        run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_changes_no_figure(tmp_path, encoding):
    text = json.dumps({"jobs": [fio_job()]}, indent=2)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "o.json").write_bytes((mark + text).encode(encoding))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert counts_in(tmp_path / "out") == [("j", 200)]
    log = tmp_path / "j_lat.1.log"
    log.write_bytes((mark + "5, 1000, 0, 4096, 0\n").encode(encoding))
    assert run_import("fio-log", [log], tmp_path / "log").rows_kept == 1


def test_errors_name_the_file_and_not_its_copy(tmp_path):
    (tmp_path / "o.json").write_bytes("{".encode("utf-16"))
    with pytest.raises(TraceError) as caught:
        run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert caught.value.path == tmp_path / "o.json"


def test_jobs_of_clients_count_once(tmp_path):
    # As fio 3.33 --client writes it: text before, jobs as they end, each with its host, then the
    # sum of all.
    hosts = ("b", "a", "a")
    jobs = [fio_job(hostname=host, jobname=name) for host, name in zip(hosts, "jjk", strict=True)]
    both = {"io_bytes": 3 * 819200, "total_ios": 600, "runtime": 2000, "bw_bytes": 3 * 409600}
    total = fio_job(hostname="a", jobname="All clients", read=fio_job()["read"] | both)
    content = {"fio version": "fio-3.33", "client_stats": [*jobs, total], "disk_util": []}
    (tmp_path / "o.json").write_text(f"<a> j: (g=0): rw=read\n{json.dumps(content, indent=2)}\n")
    result = run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert [tier for tier, _ in figures(tmp_path / "out")] == ["j on b", "j on a", "k on a"]
    assert (manifest(tmp_path / "out")["summary"]["operations"], result.rows_kept) == (600, 3)
    # One host's jobs are called as they are without a client: runs on two servers are compared.
    (tmp_path / "o.json").write_text(json.dumps(content | {"client_stats": [*jobs[1:], total]}))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "one")
    assert [tier for tier, _ in figures(tmp_path / "one")] == ["j", "k"]


def test_rates_of_fio_are_said_to_be_over_its_own_time(tmp_path):
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [fio_job()]}))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "json")
    run_import(
        "fio-log", [write_lines(tmp_path / "j_lat.1.log", "5, 1000, 0, 4096, 0")], tmp_path / "log"
    )
    for name in ("json", "log"):
        shown = run_cli("kvdistill", "report", tmp_path / name, "--markdown").stdout
        assert [of in shown for of in ("imported tool", "first submission")] == [
            name == "json",
            name == "log",
        ]


def test_an_imported_run_is_a_run_to_sql(tmp_path):
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [fio_job()]}))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "json")
    run_import(
        "fio-log", [write_lines(tmp_path / "j_bw.1.log", "500, 800, 0, 0, 0")], tmp_path / "log"
    )
    done = run_cli(
        "kvdistill",
        "sql",
        tmp_path / "json",
        tmp_path / "log",
        "--query",
        "runs_at_a_glance",
        "--json",
    )
    rows = sorted(
        (run["verdict"], run["operations"], run["engine"], run["wall_s"])
        for run in json.loads(done.stdout)
    )
    assert rows == [
        ("imported from fio-json", 200, "libaio", 2.0),
        ("imported from fio-log", None, "other", 0.5),
    ]


def test_which_latencies_are_whole_is_said(tmp_path):
    whole = fio_job(jobname="w")
    whole["read"] |= {"lat_ns": whole["read"]["clat_ns"]}
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [fio_job(), whole]}, indent=2))
    notes = run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out").notes
    assert any(shows(note, "lat_percentiles=1") for note in notes)


def test_a_tier_of_what_has_none_is_refused_and_not_ignored(tmp_path):
    (tmp_path / "b.txt").write_text(
        "  8,0 1 1 0.000000001 1 D R 8 + 8 [x]\n  8,0 1 2 0.000000002 1 C R 8 + 8 [0]\n"
    )
    with pytest.raises(ConfigError, match="tier=nvme:"):
        run_import("blkparse", [tmp_path / "b.txt"], tmp_path / "out", tier="nvme")
    assert not (tmp_path / "out").exists()


def test_an_import_of_nothing_says_what_was_left_out(tmp_path):
    log = write_lines(tmp_path / "j_lat.1.log", "10, 1000, 2, 4096, 0")
    with pytest.raises(TraceError, match="trims"):
        run_import("fio-log", [log], tmp_path / "out")


@pytest.mark.parametrize(
    ("jobs", "wall_ms"),
    [
        # Of a group of three, fio adds up their run times.
        ([{"job_runtime": 6000}], 2000),
        ([{}, {"groupid": 1}], None), ([{}, {"job options": {"startdelay": "2"}}], None),
        ([{"job_start": 7000}, {"job_start": 9500}], 4500),
    ],
)  # fmt: skip
def test_how_long_a_run_of_fio_took(tmp_path, jobs, wall_ms):
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [fio_job(**of) for of in jobs]}))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out")
    assert manifest(tmp_path / "out")["summary"]["wall_ns"] == (
        None if wall_ms is None else wall_ms * MS
    )


def test_mean_latencies_of_windows_are_a_series_that_says_so(tmp_path):
    # As fio 3.33 writes it with log_avg_msec=500: means, without a count, and nothing of a quiet
    # window.
    log = write_lines(
        tmp_path / "j_lat.1.log", "500, 1000, 0, 0, 0", "1500, 4000, 0, 0, 0", "2000, 800, 1, 0, 0"
    )
    result = run_import("fio-log", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "series.parquet", SERIES, "second", "op", "operations", "bytes", "mean_ns") == [
        # Half a second of each window.
        (0, "read", None, None, 2500), (0, "write", None, None, 800), (1, "read", None, None, 4000),
        (1, "write", None, None, 800),
    ]  # fmt: skip
    assert any("mean latencies" in note for note in result.notes)
    found = figures(tmp_path / "out")["fio", "read"]
    # Without counts, no mean of the whole.
    assert (found["operations"], found["bytes"], found["latency"]["mean_ns"]) == (None, None, None)


def hist_line(ms: int, op: int, size: int, counts: dict[int, int], coarseness: int = 0) -> str:
    bins = [0] * (1856 >> coarseness)
    for bin_, count in counts.items():
        bins[bin_] = count
    return ", ".join(map(str, (ms, op, size, *bins)))


@pytest.mark.parametrize("coarseness", [0, 2])
def test_latency_histograms_of_windows(tmp_path, coarseness):
    # fio's bins: one a ns to 128, then 64 a power of two. 100 ns is bin 100; 1024 to 1039 ns is 5 *
    # 64.
    short, long = 100 >> coarseness, 320 >> coarseness
    log = write_lines(
        tmp_path / "j_clat_hist.1.log", hist_line(1000, 0, 4096, {short: 30, long: 10}, coarseness),
        hist_line(2000, 0, 4096, {long: 60}, coarseness), hist_line(2000, 1, 512, {short: 2}, coarseness),
    )  # fmt: skip
    result = run_import("fio-log", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "series.parquet", SERIES, "second", "op", "operations", "bytes") == [
        # The write's window began with the run: no line says otherwise.
        (0, "read", 40, 40 * 4096), (0, "write", 1, 512), (1, "read", 60, 60 * 4096), (1, "write", 1, 512),
    ]  # fmt: skip
    latency = figures(tmp_path / "out")["fio", "read"]["latency"]
    end = {0: 1024 + 15, 2: 1024 + 63}[coarseness]
    assert (latency["count"], latency["p50_ns"], latency["p99_ns"], latency["mean_ns"]) == (
        100,
        end,
        end,
        None,
    )
    # Another job's rates stand in for nothing of this one, and say nothing of its operations.
    other = write_lines(tmp_path / "k_bw.2.log", "1000, 1, 0, 4096, 0")
    notes = run_import("fio-log", [log, other], tmp_path / "both").notes
    both = figures(tmp_path / "both")["fio", "read"]
    assert (both["operations"], both["bytes"]) == (None, 101 * 4096)
    assert shows(notes, "omitted")
    assert any("own start" in note for note in notes)
    assert any("histograms" in note for note in result.notes)
    assert run_cli("kvdistill", "report", tmp_path / "out").returncode == 0


def test_a_histogram_of_i_os_that_differ_in_size_says_no_bytes(tmp_path):
    lines = (hist_line(1000, 0, 4096, {100: 10}), hist_line(2000, 0, 65536, {100: 5}))
    result = run_import(
        "fio-log", [write_lines(tmp_path / "j_clat_hist.1.log", *lines)], tmp_path / "out"
    )
    read = figures(tmp_path / "out")["fio", "read"]
    assert (read["operations"], read["bytes"], read["bandwidth_bytes_per_s"]) == (15, None, None)
    assert shows(result.notes, "j_clat_hist.1.log: … omitted")


@pytest.mark.parametrize(
    ("logs", "expected"),
    [(("bw", "iops"), (150, 2_048_000)), (("bw",), (10, 2_048_000)), (("iops",), (150, 40_960))],
)
def test_a_histogram_counts_nothing_that_logs_of_rates_count(tmp_path, logs, expected):
    rates = ((500, 800), (1000, 1600), (1500, 1600))
    lines = {
        "bw": [f"{ms}, {rate}, 0, 0, 0" for ms, rate in rates],
        "iops": ("1500, 100, 0, 0, 0",),
    }
    files = [write_lines(tmp_path / f"j_{name}.1.log", *lines[name]) for name in logs]
    histogram = write_lines(tmp_path / "j_clat_hist.1.log", hist_line(1000, 0, 4096, {100: 10}))
    run_import("fio-log", [histogram, *files], tmp_path / "out")
    read = figures(tmp_path / "out")["fio", "read"]
    assert (read["operations"], read["bytes"]) == expected
    assert (read["latency"]["count"], read["latency"]["p50_ns"]) == (10, 100)


def test_logs_of_windows_with_dates_count_from_their_first_line(tmp_path):
    log = write_lines(
        tmp_path / "j_bw.1.log", "1700000000500, 1000, 0, 0, 0", "1700000001500, 1000, 0, 0, 0"
    )
    result = run_import("fio-log", [log], tmp_path / "out")
    assert rows_of(tmp_path / "out" / "series.parquet", SERIES, "second", "bytes") == [
        (0, 1024_000)
    ]
    assert any("log_unix_epoch" in note for note in result.notes)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("j_lat.1.log", "5, 9223372036854775807, 0, 4096, 0, 0x0"),
        ("j_lat.1.log", "5, 10, 0, 4096, 18446744073709551616, 0x0"),
        ("j_lat.1.log", "9223372036854775807, 10, 0, 4096, 0, 0x0"),
        ("j_lat.1.log", "5, 10, 0, 4611686018427387904, 0, 0x0"),
        ("j_lat.1.log", "5, 10, 0, 4096, , 0x0"), ("j_bw.1.log", "9223372036854775807, 10, 0, 0, 0, 0x0"),
        ("j_bw.1.log", "5, 9223372036854775807, 0, 0, 0, 0x0"),
    ],
)  # fmt: skip
def test_impossible_numbers_in_a_fio_log_are_left_out(tmp_path, name, line):
    log = write_lines(
        tmp_path / name, "5, 10, 0, 4096, 4096, 0x0", "6, 10, 0, 4096, 8192, 0x0", line
    )
    result = run_import("fio-log", [log], tmp_path / "out")
    assert (result.rows_read, result.rows_kept, sum(result.left_out.values())) == (3, 2, 1)


def test_figures_without_operations_are_reported_and_compared(tmp_path):
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [fio_job()]}))
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out", tier="nvme")
    found = summary_report(read_run(tmp_path / "out"))
    (figures_,), (latency,) = found.figures, found.latency
    assert (figures_["tier"], figures_["operations"], figures_["bandwidth_bytes_per_s"]) == (
        "nvme",
        200,
        409600.0,
    )
    assert (latency["p50_ns"], latency["p99_9_ns"]) == (300, None)
    # What would need the operations is absent, not 0.
    assert (found.over_time, found.sizes, found.bucket_ns) == ([], [], None)
    done = run_cli(
        "kvdistill", "report", tmp_path / "out", "-o", tmp_path / "r.md", "-o", tmp_path / "r.html"
    )
    assert "r.html" in done.stderr
    assert "imported from fio-json" in (tmp_path / "r.md").read_text()
    (tmp_path / "out" / "run.json").write_text('{"program": "kvreplay"}')
    with pytest.raises(TraceError, match="this version"):
        report(tmp_path / "out")


def test_runs_with_only_bandwidth_are_compared_by_bandwidth(tmp_path):
    for name, rate in (("a", 100), ("b", 250)):
        run_import(
            "fio-log",
            [write_lines(tmp_path / "j_bw.1.log", f"500, {rate}, 0, 0, 0")],
            tmp_path / name,
        )
    said = run_cli("kvdistill", "compare", tmp_path / "a", tmp_path / "b").stdout
    assert shows(said.splitlines()[0], "b … 150 % higher … a")


def test_fio_json_plus_gives_percentiles_that_fio_did_not_print(tmp_path):
    job = fio_job()
    # 100 of 200 at or below 20, 190 at or below 30: p50 is 20, p95 30, p99 40.
    job["read"]["lat_ns"] |= {"bins": {"40": 10, "20": 60, "30": 90, "10": 40}}
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [job]}))
    result = run_import("fio-json", [tmp_path / "o.json"], tmp_path / "out", tier="nvme")
    latency = figures(tmp_path / "out")["nvme", "read"]["latency"]
    assert (latency["p50_ns"], latency["p95_ns"], latency["p99_ns"], latency["mean_ns"]) == (
        20,
        30,
        40,
        500.0,
    )
    # Total latency, so nothing to warn of.
    assert not any("completion latency" in note for note in result.notes)


# As blkparse 1.2.0 prints them, but for the line of junk.
BLKPARSE = """\
  8,0    3        1     0.000000000   697  Q   R 223490 + 8 [fio]
  8,0    3        2     0.000000829   697  G   R 223490 + 8 [fio]
  8,0    3        3     0.000001500   697  I   R 223490 + 8 [fio]
  8,0    3        4     0.000010000    12  D   R 223490 + 8 [kworker/3:1H]
  8,0    3        5     0.000020000   697  Q  WS 1000 + 16 [fio]
  8,0    3        6     0.000021000   697  M  WS 1016 + 16 [fio]
  8,0    3        7     0.000022000   697  D  WS 1000 + 32 [fio]
  8,0    3        8     0.000025000   697  R  WS 1000 + 32 [0]
  8,0    3        9     0.000030000   697  D  WS 1000 + 32 [fio]
  8,0    1        1     0.000110000     0  C   R 223490 + 8 [0]
  8,0    1        2     0.000120000     0  C  WS 1000 + 32 [5]
  8,0    0        0     0.000120500     0  m   N cfq697 insert_request
junk in the middle
  8,0    3       10     0.000200000   697  D   R 223490 + 8 [fio]
  8,0    1        3     0.000290000     0  C   R 223490 + 8 [0]
  8,0    1        4     0.000300000   697  D  FN [fio]
  8,0    1        4     0.000310000     0  C  FN 0 [0]
  8,0    3       11     0.000400000   697  D   R 55 + 8 [a name]
CPU0 (8,0):
 Reads Queued:           1,        4KiB\t Writes Queued:           1,        8KiB
"""


def test_blkparse(tmp_path):
    (tmp_path / "b.txt").write_text(BLKPARSE)
    result = run_import("blkparse", [tmp_path / "b.txt"], tmp_path / "out")
    names = (
        "insert_ns",
        "issue_ns",
        "complete_ns",
        "sector",
        "bytes",
        "rwbs",
        "pid",
        "comm",
        "error",
    )
    assert rows_of(tmp_path / "out" / "blocks.parquet", BLOCKS, *names) == [
        # Queued by fio, whoever issued it.
        (0, 10_000, 110_000, 223490, 4096, "R", 697, "fio", 0),
        # Merged, given back and issued again: one request, queued once, issued last.
        (20_000, 30_000, 120_000, 1000, 16384, "WS", 697, "fio", 5),
        (None, 200_000, 290_000, 223490, 4096, "R", 697, "fio", 0),
        (None, 300_000, 310_000, 0, 0, "FN", 697, "fio", 0),
        (None, 400_000, None, 55, 4096, "R", 697, "a name", None),
    ]
    assert rows_of(tmp_path / "out" / "blocks.parquet", BLOCKS, "device")[0] == ("8,0",)
    # The message and the summary are no rows.
    assert (result.rows_read, result.rows_kept) == (17, 5)
    assert result.left_out == {"no event in blkparse's default form": 1}
    assert shows(result.notes, "1 I/O merged")
    assert shows(result.notes, "1 request")


# Flushes and a rewrite as Linux traces them: the flush's own I/O ends behind the request that the
# kernel made of it.
FLUSHED = """\
  8,0    3        1     0.000100000   697  Q FWS [fio]
  8,0    3        2     0.000101000   697  G FWS [fio]
  8,0    3        3     0.000102000    12  D  FN [kworker/3:1H]
  8,0    3        4     0.000202000     0  C  FN 0 [0]
  8,0    3        5     0.000203000     0  C  WS 0 [0]
  8,0    3        6     0.000300000   697  Q  WS 2000 + 16 [fio]
  8,0    3        7     0.000301000   697  Q  WS 2016 + 16 [fio]
  8,0    3        8     0.000302000   697  M  WS 2016 + 16 [fio]
  8,0    3        9     0.000303000   697  D  WS 2000 + 32 [fio]
  8,0    3       10     0.000403000     0  C  WS 2000 + 32 [0]
  8,0    3       11     5.000000000   697  Q  WS 2016 + 16 [fio]
  8,0    3       12     5.000004000   697  D  WS 2016 + 16 [fio]
  8,0    3       13     5.000104000     0  C  WS 2016 + 16 [0]
  8,0    3       14     6.000000000   697  D FWS 0 + 0 [fio]
  8,0    3       15     6.000001000     0  C FWS 0 + 0 [0]
"""


def test_flushes_are_no_writes_and_merged_ios_start_nothing(tmp_path):
    (tmp_path / "b.txt").write_text(FLUSHED)
    run_import("blkparse", [tmp_path / "b.txt"], tmp_path / "out")
    names = ("insert_ns", "issue_ns", "complete_ns", "bytes", "rwbs")
    assert rows_of(tmp_path / "out" / "blocks.parquet", BLOCKS, *names) == [
        (100_000, 102_000, 202_000, 0, "FN"), (300_000, 303_000, 403_000, 16384, "WS"),
        (5_000_000_000, 5_000_004_000, 5_000_104_000, 8192, "WS"), (None, 6_000_000_000, 6_000_001_000, 0, "FWS"),
    ]  # fmt: skip
    directions = json.loads((tmp_path / "out" / "probe.json").read_text())["block"]["directions"]
    assert {op: (of["issued"], of["completed"]) for op, of in directions.items()} == {
        "flush": (2, 2),
        "write": (2, 2),
    }


@pytest.mark.parametrize("line", [
    f"  8,0 3 3 {10**30}.000001500 697 D R 1 + 8 [x]", f"  8,0 3 3 0.000001500 {2**40} D R 1 + 8 [x]",
    f"  8,0 3 3 0.000001500 697 D R {2**62} + 8 [x]", f"  8,0 3 3 0.000001500 697 D R 1 + {2**40} [x]",
])  # fmt: skip
def test_impossible_numbers_in_blkparse_text_are_left_out(tmp_path, line):
    log = write_lines(
        tmp_path / "b.txt", *BLKPARSE.splitlines()[:4], line, *BLKPARSE.splitlines()[4:]
    )
    result = run_import("blkparse", [log], tmp_path / "out")
    assert (result.rows_read, result.rows_kept, result.left_out["numbers beyond any device's"]) == (
        18,
        5,
        1,
    )


def test_blkparse_s_figures(tmp_path):
    (tmp_path / "b.txt").write_text(BLKPARSE)
    run_import("blkparse", [tmp_path / "b.txt"], tmp_path / "out")
    found = json.loads((tmp_path / "out" / "probe.json").read_text())
    assert found["duration_ns"] == 400_000
    read, write = (found["block"]["directions"][name] for name in ("read", "write"))
    # The last read has no completion; the write failed.
    assert (
        read["queued"],
        read["issued"],
        read["issued_bytes"],
        read["completed"],
        read["errors"],
    ) == (
        1,
        3,
        12288,
        2,
        0,
    )
    assert (write["queued"], write["issued"], write["completed"], write["errors"]) == (1, 1, 1, 1)
    assert (read["completed_bytes"], write["completed_bytes"]) == (8192, 0)
    assert (read["d2c"]["count"], read["d2c"]["mean_ns"], read["d2c"]["p50_ns"]) == (
        2,
        95_000,
        90_000,
    )
    assert read["d2c"]["p95_ns"] is None
    assert read["d2c"]["log2_ns"] == [{"from": 65536, "below": 131072, "count": 2}]
    assert (read["q2d"]["count"], read["q2d"]["mean_ns"], write["q2d"]["mean_ns"]) == (
        1,
        10_000,
        10_000,
    )
    assert read["block_sizes"] == [{"bytes": 4096, "count": 3}]
    # The write is issued while the first read is in flight.
    assert read["in_flight_at_dispatch"] == [{"in_flight": 1, "count": 3}]
    assert write["in_flight_at_dispatch"] == [{"in_flight": 2, "count": 1}]
    assert found["block"]["directions"]["flush"]["issued"] == 1
    report = json.loads(run_cli("kvdistill", "report", tmp_path / "out", "--json").stdout)
    assert [(row["op"], row["issued"]) for row in report["directions"]] == [
        ("flush", 1),
        ("read", 3),
        ("write", 1),
    ]


# As bpftrace 0.17 prints them.
BPFTRACE = """\
Attaching 14 probes...
^C

@bssplit_read_kb:
[128, 256)             3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[256, 512)             0 |                                                    |
[512, 1K)              1 |@@@@@@@@@@@@@@@@@                                   |

@d[1, 2]: 5
@d2c_read_us:
(..., 0)               1 |@@                                                  |
[0]                    2 |@@@@                                                |
[1]                    1 |@@                                                  |
[512, 1K)             30 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[1K, 2K)               7 |@@@@@@@@@@@@                                        |

@inflight_read: 3
@lba_read_gb:
[0, 10)                3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[10, 20)               0 |                                                    |
[8000, ...)            1 |@@@@@@@@@@@@@@@@@                                   |

@mine:
[4, 8)                 9 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|

@qd_read:
[8, 16)                4 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|

@vfs_read_us:
[2M, 4M)               4 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|

@write_enter:

"""


def test_a_bucket_without_an_end_is_reported(tmp_path):
    (tmp_path / "b.txt").write_text("@d2c_read_us:\n[8, 16)  5 |@|\n[8M, ...)  3 |@|\n\n")
    run_import("bpftrace", [tmp_path / "b.txt"], tmp_path / "out")
    assert [row["low_ns"] for row in report(tmp_path / "out").latency_bins] == [
        8_000,
        8_388_608_000,
    ]


def test_bpftrace(tmp_path):
    # It prints a space after the name of a histogram.
    (tmp_path / "b.txt").write_text(re.sub(r":$", ": ", BPFTRACE, flags=re.MULTILINE))
    result = run_import("bpftrace", [tmp_path / "b.txt"], tmp_path / "out")
    assert result.files == ["probe.json"]
    found = json.loads((tmp_path / "out" / "probe.json").read_text())
    read = found["block"]["directions"]["read"]
    assert read["d2c"]["log2_ns"] == [
        {"from": 0, "below": 1000, "count": 2}, {"from": 1000, "below": 2000, "count": 1},
        {"from": 512_000, "below": 1_024_000, "count": 30}, {"from": 1_024_000, "below": 2_048_000, "count": 7},
    ]  # fmt: skip
    assert (read["d2c"]["count"], read["d2c"]["longest_below_ns"], read["d2c"]["mean_ns"]) == (
        40,
        2_048_000,
        None,
    )
    # The 20th of 40 lies in the third bucket, the 38th in the last; 40 values have no p99.
    assert read["d2c"]["p50_ns"] is None
    assert read["d2c"]["percentiles_within"] == {
        "p50": {"from": 512_000, "below": 1_024_000}, "p95": {"from": 1_024_000, "below": 2_048_000},
        "p99": None, "p99_9": None, "p99_99": None,
    }  # fmt: skip
    assert read["block_size_bins"] == [
        {"from": 131072, "below": 262144, "count": 3}, {"from": 524288, "below": 1048576, "count": 1},
    ]  # fmt: skip
    assert (read["issued"], read["completed"], read["in_flight_bins"]) == (
        4,
        None,
        [{"from": 8, "below": 16, "count": 4}],
    )
    assert [(z["from_bytes"], z["requests"]) for z in read["heat"]] == [(0, 3), (8000 << 30, 1)]
    assert found["application"]["times"]["read"]["log2_ns"] == [
        {"from": 2097152000, "below": 4194304000, "count": 4}
    ]  # fmt: skip
    assert show_counts(result.left_out, {"below 0": 1, "histograms": 1})
    assert "b.txt: @mine, 9 values" in result.examples.values()
    assert run_cli("kvdistill", "report", tmp_path / "out", "--json").returncode == 0
    with pytest.raises(TraceError, match="no duration"):
        distil_source(tmp_path / "out" / "probe.json", None, Limit(), tmp_path)


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_many_objects(tmp_path, count):
    starts = (f"2026-01-01T00:00:{i // 20000:02d}.{i % 20000 * 50000:09d}Z" for i in range(count))
    lines = "".join(
        f"{i}\t0\tPUT\tc\t1\t9\t\tk/{i:07d}\t\t{start}\t\t\t\n" for i, start in enumerate(starts)
    )
    header = "\t".join(Style.SAI3.columns)
    (tmp_path / "m.tsv.zst").write_bytes(
        zstandard.ZstdCompressor().compress(f"{header}\n{lines}".encode())
    )
    result = run_import("sai3", [tmp_path / "m.tsv.zst"], tmp_path / "out")
    assert result.rows_kept == count
    keys = read_table(tmp_path / "out" / "trace.objects.parquet", OBJECTS).column("key")
    assert (len(keys), keys[0].as_py(), keys[count - 1].as_py()) == (
        count,
        "k/0000000",
        f"k/{count - 1:07d}",
    )
    trace = tmp_path / "out" / "trace.parquet"
    log = write_oplogs(
        trace, "s3", tmp_path, Style.SAI3, endpoint="s3://b/", hosts=4, limit=Limit(), argv=[]
    )
    assert log.puts == count


@pytest.mark.fio
def test_what_fio_logged_and_what_it_summed_up_agree(tmp_path):
    (tmp_path / "j.fio").write_text(
        "[mix]\nfilename=t.dat\nsize=4M\nrw=randrw\nrwmixread=60\nbssplit=4k/50:16k/50\nnumber_ios=83\n"
        "ioengine=psync\nwrite_lat_log=m\nlog_offset=1\nwrite_iolog=m.iolog\n"
    )
    subprocess.run(
        ["fio", "--output-format=json+", "--output=o.json", "j.fio"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    run_import("fio-log", [*tmp_path.glob("m_*.log")], tmp_path / "log")
    run_import("fio-json", [tmp_path / "o.json"], tmp_path / "json", tier="fio")
    run_import("fio-iolog", [tmp_path / "m.iolog"], tmp_path / "iolog")
    (job,) = json.loads((tmp_path / "o.json").read_text())["jobs"]
    logged, summed = figures(tmp_path / "log"), figures(tmp_path / "json")
    traced = rows_of(
        tmp_path / "iolog" / "trace.parquet", TRACE, "op", "offset_bytes", "length_bytes"
    )
    for op in ("read", "write"):
        assert (
            logged["fio", op]["operations"]
            == summed["fio", op]["operations"]
            == job[op]["total_ios"]
        )
        assert logged["fio", op]["bytes"] == summed["fio", op]["bytes"] == job[op]["io_bytes"]
        assert sum(length for o, _, length in traced if o == op) == job[op]["io_bytes"]
        # The log is of whole latencies; json+ has bins of them too.
        assert logged["fio", op]["latency"]["max_ns"] == job[op]["lat_ns"]["max"]
        assert logged["fio", op]["latency"]["mean_ns"] == pytest.approx(
            job[op]["lat_ns"]["mean"], rel=1e-6
        )
    offsets = rows_of(
        tmp_path / "log" / "trace.parquet", TRACE, "op", "offset_bytes", "length_bytes"
    )
    assert sorted(offsets) == sorted(traced)


def test_the_command_tells_what_it_left_out(tmp_path):
    log = write_lines(tmp_path / "w.csv", HEADER, warp_line("GET", "a", "2026-01-01T00:00:01Z", "", 1),
                      warp_line("STAT", "a", "2026-01-01T00:00:01Z", "", 1))  # fmt: skip
    done = run_cli("kvdistill", "import", "warp", log, "-o", tmp_path / "out", "--json")
    assert show_counts(json.loads(done.stdout)["left_out"], {"LIST and STAT": 1})
    assert shows(done.stderr, "1 row: LIST … STAT … w.csv, row 1")
    bad = run_cli("kvdistill", "import", "xml", log, "-o", tmp_path / "out", check=False)
    assert bad.returncode == 2


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "x.iolog",
            ["fio version 3 iolog", "1 f write 9223372036854775807 6144", "2 f read 0 512"],
        ),
        ("x.iolog", ["fio version 3 iolog", "9223372036854775 f write 0 6144", "2 f read 0 512"]),
    ],
)
def test_numbers_beyond_64_bits_of_an_iolog_are_left_out(tmp_path, name, lines):
    (tmp_path / name).write_text("\n".join([*lines, ""]))
    account = import_files(
        [tmp_path / name], ImportOptions(Format.FIO_IOLOG), tmp_path / "out", ["kvdistill"]
    )
    assert (account.rows_kept, sum(account.left_out.values())) == (1, 1)


def test_a_time_beyond_64_bits_of_an_op_log_is_left_out(tmp_path):
    header = "idx\tthread\top\tclient_id\tn_objects\tbytes\tendpoint\tfile\terror\tstart\tfirst_byte\tend\tduration_ns"
    times = [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("29999-01-01T00:00:00Z", "29999-01-01T00:00:01Z"),
    ]
    rows = [
        f"{i}\t1\tPUT\t\t1\t4096\tfile://\t/t/a\t\t{start}\t\t{end}\t"
        for i, (start, end) in enumerate(times)
    ]
    (tmp_path / "o.tsv").write_text("\n".join([header, *rows, ""]))
    account = import_files(
        [tmp_path / "o.tsv"], ImportOptions(Format.SAI3), tmp_path / "out", ["kvdistill"]
    )
    assert (account.rows_kept, sum(account.left_out.values())) == (1, 1)


def test_amounts_beyond_64_bits_of_a_fio_log_are_left_out(tmp_path):
    (tmp_path / "j_bw.1.log").write_text(
        "500, 1000, 0, 0, 0\n4611686018427, 4611686018427387904, 0, 0, 0\n"
    )
    account = import_files(
        [tmp_path / "j_bw.1.log"], ImportOptions(Format.FIO_LOG), tmp_path / "out", ["kvdistill"]
    )
    assert (account.rows_kept, sum(account.left_out.values())) == (1, 1)


def test_a_job_whose_name_cannot_be_printed_is_one_error(tmp_path):
    times = {"min": 1, "max": 1, "mean": 1.0, "N": 1}
    read = {"io_bytes": 4096, "bw_bytes": 4096, "iops": 1.0, "total_ios": 1, "runtime": 1}
    job = {"jobname": "a\nb", "error": 0, "read": read | {"lat_ns": times, "clat_ns": times}}
    (tmp_path / "o.json").write_text(json.dumps({"fio version": "fio-3.33", "jobs": [job]}))
    with pytest.raises(TraceError, match="cannot be printed"):
        import_files(
            [tmp_path / "o.json"], ImportOptions(Format.FIO_JSON), tmp_path / "out", ["kvdistill"]
        )


def test_an_import_replaces_what_a_killed_one_was_writing(tmp_path):
    (tmp_path / "j_lat.1.log").write_text("1, 1000, 0, 4096, 0\n")
    (tmp_path / "out").mkdir()
    stale = f".trace.parquet.{host_digest()}-{2**22 + 1}-5.tmp"
    (tmp_path / "out" / stale).touch()
    options = ImportOptions(Format.FIO_LOG)
    import_files([tmp_path / "j_lat.1.log"], options, tmp_path / "out", ["kvdistill"])
    assert not (tmp_path / "out" / stale).exists()
