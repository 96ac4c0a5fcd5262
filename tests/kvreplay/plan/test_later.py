"""A window that begins later than its trace, against plain Python that follows every object."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from conftest import run_cli, write_trace
from phrases import shows
from whole import read_table

from kvreplay.plan.pacing import Pacer
from kvreplay.plan.window import Later, compile_window
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import STEADIEST_LENGTHENED, Limit
from kvtrace.core.schema import OPS, TRACE
from kvtrace.core.tables import open_table

NVME, MS = 2, 1_000_000


def lru_rows(seed: int):
    """Return rows of an LRU tier of 12 objects of one to three pages, one access a millisecond."""
    rng, held, rows = np.random.default_rng(seed), [], []
    sizes = {obj: 4096 * int(rng.integers(1, 4)) for obj in range(40)}
    for at, obj in enumerate(rng.integers(0, 40, 400).tolist()):
        op, phase = ("read", "load") if obj in held else ("write", "store")
        rows.append((at * MS, op, NVME, phase, obj, 0, sizes[obj], at, 0, 0))
        held = [*(other for other in held if other != obj), obj]
        if len(held) > 12:
            gone = held.pop(0)
            rows.append((at * MS, "delete", NVME, "evict", gone, 0, sizes[gone], at, 1, 0))
    return rows


def lay_before(rows, begin_ns, end_ns):
    """Return which objects lie there at `begin_ns` and are read or deleted, before a write, until
    `end_ns`.
    """
    live, first = {}, {}
    for ts_ns, op, _tier, _phase, obj, _offset, length, *_ in rows:
        if ts_ns < begin_ns:
            live = {key: size for key, size in live.items() if key != obj}
            if op != "delete":
                live[obj] = length
        elif ts_ns < end_ns:
            first.setdefault(obj, op)
    return {obj: size for obj, size in live.items() if first.get(obj) in ("read", "delete")}


@pytest.mark.first(seed=2)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_verified", [False, True])
def test_a_window_has_all_its_rows_and_what_they_read(tmp_path, seed, is_verified):
    rows = lru_rows(seed)
    reader = open_table(write_trace(tmp_path / "t.parquet", rows), TRACE)
    window = compile_window(reader, reader.path, {NVME: 4096}, Limit(window="from:150ms+100ms"))
    expected = [row for row in rows if 150 * MS <= row[0] < 250 * MS]
    laid = window.loader.begin(Pacer(1.0), is_verified=is_verified)
    assert window.loader.load() == len(expected) == window.planned_rows
    assert laid.all["due_ns"].tolist() == [row[0] - 150 * MS for row in expected]
    assert laid.all["object_id"].tolist() == [row[4] for row in expected]
    found = window.residency
    assert (found.absent_deletes, found.lost_read) == (0, None)
    populated = dict(
        zip(found.populate_object.tolist(), found.populate_bytes.tolist(), strict=True)
    )
    assert populated == lay_before(rows, 150 * MS, 250 * MS)
    # Nothing that is read was deleted or never there, as the engine sees it.
    held = set(populated)
    for row in expected:
        assert row[1] == "write" or row[4] in held
        (held.discard if row[1] == "delete" else held.add)(row[4])


def test_busiest_and_steady_windows_begin_as_in_plain_python(tmp_path):
    rows = [
        *lru_rows(1),
        *((500 * MS + i, "read", NVME, "load", 1, 0, 1 << 20, 900 + i, 0, 0) for i in range(50)),
    ]
    reader = open_table(write_trace(tmp_path / "t.parquet", rows), TRACE)
    first = next(row[0] for row in rows if row[1] == "delete")
    assert Later(reader, "steady:60ms", [NVME]).begin_ns == first
    busiest = Later(reader, "busiest:60ms", [NVME])
    assert busiest.begin_ns <= 500 * MS < busiest.begin_ns + busiest.span_ns


def test_a_window_from_the_start_is_a_part_too(tmp_path):
    rows = lru_rows(5)
    reader = open_table(write_trace(tmp_path / "t.parquet", rows), TRACE)
    for asked, is_whole, count in (
        ("from:0s+100ms", False, sum(r[0] < 100 * MS for r in rows)),
        ("from:0s+1h", True, len(rows)),
    ):
        window = compile_window(reader, reader.path, {NVME: 4096}, Limit(window=asked))
        assert (window.is_whole, window.rows, window.begin_ns) == (is_whole, count, 0)
    assert compile_window(reader, reader.path, {NVME: 4096}, Limit()).begin_ns is None


def test_a_steady_window_is_replayed_with_its_evictions(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", lru_rows(2))
    (tmp_path / "scratch").mkdir()
    tier = f"nvme={tmp_path / 'scratch'}"
    run_cli(
        "kvreplay",
        "run",
        trace,
        "--tier",
        tier,
        "--window",
        "steady:100ms",
        "--verify",
        "-o",
        tmp_path / "run",
    )
    first = next(row[0] for row in lru_rows(2) if row[1] == "delete")
    expected = Counter(row[1] for row in lru_rows(2) if first <= row[0] < first + 100 * MS)
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS)
    assert Counter(ops.column("op").to_pylist()) == expected
    assert set(ops.column("outcome").to_pylist()) == {"ok"}
    window = json.loads((tmp_path / "run" / "run.json").read_text())["window"]
    assert (window["window"], window["is_whole_trace"], window["rows"]) == (
        "steady:100ms",
        False,
        len(ops),
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("soon:60s", "from:300s+60s, busiest:60s, steady:60s"),
        ("from:60s", "from:300s+60s, busiest:60s, steady:60s"),
        ("steady:0s", "0 s"),
        ("from:1h+1s", "--window from:1h+1s"),
        (
            "steady:1s",
            ("evicted from nvme"),
        ),
    ],
)
def test_what_is_no_window_is_refused(tmp_path, asked, said):
    trace = write_trace(tmp_path / "t.parquet", [row for row in lru_rows(3) if row[1] != "delete"])
    (tmp_path / "scratch").mkdir()
    options = ("--tier", f"nvme={tmp_path / 'scratch'}", "--window", asked, "-o", tmp_path / "run")
    done = run_cli("kvreplay", "run", trace, *options, check=False)
    assert (done.returncode, said in done.stderr, len(done.stderr.splitlines())) == (2, True, 1)
    # What is evicted at the end alone is no steady state, either: nothing of it would be measured.
    kept = [row for row in lru_rows(3) if row[1] != "delete"]
    gone = (400 * MS, "delete", NVME, "evict", kept[0][4], 0, kept[0][6], 400, 1, 0)
    ends = write_trace(tmp_path / "e.parquet", [*kept, gone])
    with pytest.raises(ConfigError, match=r"steady:60s.*nvme"):
        Later(open_table(ends, TRACE), "steady:60s", [NVME])
    # Where objects fit no tier, a smaller one would not help.
    with pytest.raises(ConfigError, match="written on cpu"):
        Later(open_table(trace, TRACE), "steady:60s", [NVME - 1])


def alternating_rows(seconds, gap_s, length=4096):
    """Return an eviction at 5 s, and after it a read and a write every `gap_s` until `seconds`."""
    rows = [(0, "write", NVME, "store", obj, 0, length, 0, 0, 0) for obj in range(2)]
    rows.append((5000 * MS, "delete", NVME, "evict", 1, 0, length, 1, 0, 0))
    for count, at_s in enumerate(range(5 + gap_s, seconds, gap_s)):
        rows.append((at_s * 1000 * MS, "read", NVME, "load", 0, 0, length, count, 0, 0))
        rows.append((at_s * 1000 * MS, "write", NVME, "store", count + 2, 0, length, count, 1, 0))
    return rows


@pytest.mark.parametrize(
    ("seconds", "gap_s", "span_s"),
    [
        (1000, 1, 101),  # The hundredth pair comes 100 s after the eviction.
        (1000, 2, 201),
        (60, 1, 60),  # The trace ends before.
        (90, 1, 85),  # Its last pair comes 84 s after the eviction.
        (9000, 90, 3511),  # An hour has 39 pairs.
    ],
)
def test_a_compared_window_has_a_hundred_reads_and_writes(tmp_path, seconds, gap_s, span_s):
    trace = write_trace(tmp_path / "t.parquet", alternating_rows(seconds, gap_s))
    limit = Limit(window=STEADIEST_LENGTHENED)
    window = compile_window(open_table(trace, TRACE), trace, {NVME: 4096}, limit)
    assert (window.begin_ns, window.part) == (5000 * MS, f"steady:{span_s}s")
    pairs = min(span_s - 1, seconds - 6) // gap_s
    assert window.planned_rows == 1 + 2 * pairs


def test_a_compared_window_moves_no_more_than_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("kvreplay.plan.window.MOST_BYTES", 150 * 4096)
    trace = write_trace(tmp_path / "t.parquet", alternating_rows(1000, 1))
    limit = Limit(window=STEADIEST_LENGTHENED)
    window = compile_window(open_table(trace, TRACE), trace, {NVME: 4096}, limit)
    # The 75th pair is the last within 150 pages.
    assert window.part == "steady:76s"


@pytest.mark.parametrize("missing", ["read", "write"])
def test_a_compared_window_waits_for_nothing_that_never_comes(tmp_path, missing):
    rows = [row for row in alternating_rows(1000, 1) if row[1] != missing or row[0] == 0]
    trace = write_trace(tmp_path / "t.parquet", rows)
    limit = Limit(window=STEADIEST_LENGTHENED)
    window = compile_window(open_table(trace, TRACE), trace, {NVME: 4096}, limit)
    assert window.part == "steady:101s"


def test_a_compared_window_waits_for_no_later_burst(tmp_path):
    late = [(10**13, "read", NVME, "load", 0, 0, 4096, 99, 0, 0)]
    trace = write_trace(tmp_path / "t.parquet", alternating_rows(30, 1) + late)
    limit = Limit(window=STEADIEST_LENGTHENED)
    window = compile_window(open_table(trace, TRACE), trace, {NVME: 4096}, limit)
    assert (window.part, window.planned_rows) == ("steady:60s", 1 + 2 * 24)


def test_a_window_of_writes_alone_says_so_before_it_is_measured(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", [row for row in lru_rows(4) if row[1] == "write"])
    (tmp_path / "scratch").mkdir()
    tier = f"nvme={tmp_path / 'scratch'}"
    done = run_cli(
        "kvreplay", "run", trace, "--tier", tier, "--window", "busiest:50ms", "-o", tmp_path / "run"
    )
    assert shows(done.stderr.splitlines()[0], "no reads")
    # Nor does one of deletes alone read 0 % of its bytes.
    rows = [(at, *row[1:]) for at, row in zip((0, 10**9), [lru_rows(4)[0]] * 2, strict=True)]
    trace = write_trace(tmp_path / "d.parquet", [rows[0], (rows[1][0], "delete", *rows[1][2:])])
    options = ("--tier", tier, "--window", "from:0.5s+1s", "-o", tmp_path / "deletes")
    done = run_cli("kvreplay", "run", trace, *options)
    assert shows(done.stderr.splitlines()[0], "0 reads … 0 writes")
    assert shows(done.stdout.splitlines()[0], "deletes only … nvme")


def compared(tmp_path, rows, *options):
    """Compare a drive with itself, once each; return run.json of a side, and what was said."""
    for side in "ab":
        (tmp_path / side).mkdir()
    sides = (
        "--tier",
        f"nvme={tmp_path / 'a'}",
        "--against",
        f"nvme={tmp_path / 'b'}",
        "--trials",
        1,
    )
    trace, output = write_trace(tmp_path / "t.parquet", rows), tmp_path / "out"
    done = run_cli("kvreplay", "compare", trace, *sides, *options, "-o", output, check=False)
    return json.loads((output / "a" / "trial-1" / "run.json").read_text()), done.stderr


@pytest.mark.full
def test_drives_are_compared_in_the_steady_window(tmp_path):
    rows = lru_rows(3)
    first = next(row[0] for row in rows if row[1] == "delete")
    run, _ = compared(tmp_path, rows)
    assert (run["window"]["window"], run["window"]["rows"]) == (
        "steady:60s",
        sum(row[0] >= first for row in rows),
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "count"), [(("--window", "all"), 400), (("--limit", "100"), 100)]
)
def test_another_part_than_the_steady_one_is_asked_for(tmp_path, options, count):
    rows = [row for row in lru_rows(3) if row[1] != "delete"]
    run, said = compared(tmp_path, rows, *options)
    assert (run["window"]["window"], run["window"]["rows"]) == (None, count)
    assert "note: the whole trace" not in said


@pytest.mark.full
def test_a_trace_without_evictions_is_compared_whole(tmp_path):
    run, said = compared(tmp_path, [row for row in lru_rows(3) if row[1] != "delete"])
    assert (run["window"]["window"], run["window"]["rows"]) == (None, 400)
    assert shows(said, "whole trace … --window steady:60s")
