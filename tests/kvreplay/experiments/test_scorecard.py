"""`kvreplay scorecard`.

Its figures are those of the runs that it keeps, recomputed from their operations.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
from statistics import median
from types import SimpleNamespace

import msgspec
import pytest
from conftest import run_cli
from drive_files import cell, drive_of, write_drive
from phrases import show_each, shows
from whole import read_table

from kvreplay.experiments.scorecard import (
    ReadingWindow,
    card_document,
    first_users,
    longer_window,
)
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay
from kvtrace.core.document.sweep_document import card_answer
from kvtrace.core.run.sweep_file import Card, Score
from kvtrace.core.schema import OPS, TRACE

NVME = 2


@pytest.fixture
def small(monkeypatch):
    """Let the stacks be small, and their users quick."""
    cards = "kvreplay.experiments.scorecard"
    monkeypatch.setattr(f"{cards}.MODEL", "tiny-1b")
    monkeypatch.setattr(f"{cards}.FASTER", {"gpu": "8MiB", "cpu": "32MiB"})
    monkeypatch.setattr(f"{cards}.LOAD", ("--duration", "60s", "--set", "workload.think_time=2s"))
    monkeypatch.setattr(f"{cards}.first_users", lambda _drive, _known: [8.0])
    monkeypatch.setattr("kvreplay.experiments.scorecard.PRECISION", 4)
    monkeypatch.setattr("kvreplay.run.discover.ROOFLINE_NS", 10**9)
    monkeypatch.setattr("kvreplay.run.discover.SIZES", (4096, 1 << 20))
    monkeypatch.setattr("kvreplay.run.discover.ROOFLINE_DEPTHS", (1, 4))
    monkeypatch.setattr("kvreplay.run.discover.FILE_BYTES", 64 << 20)


def moved(folder):
    """Return the bytes read and written on the drive in a run, from its rows, and how long it took,
    s.
    """
    run = json.loads((folder / "run.json").read_text())
    rows = read_table(folder / "ops.parquet", OPS).to_pylist()
    done = [row for row in rows if row["tier"] == NVME and row["completed_ns"] is not None]
    bytes_of = {
        op: sum(row["bytes"] for row in done if row["op"] == op) for op in ("read", "write")
    }
    return (
        bytes_of,
        (run["summary"]["wall_ns"] - min(row["submitted_ns"] for row in done)) / 1e9,
        run,
    )


def test_a_search_begins_near_what_the_stack_before_sustains():
    drive = drive_of([cell(size, 16, share) for size in (4096, 1 << 20) for share in (0.0, 1.0)])
    [first] = first_users(drive, None)
    assert first == 2.0 ** round(math.log2(first))
    assert [first_users(drive, known) for known in (1.0, 8.0, 20.0)] == [
        [1.0, 2.0],
        [7.0, 9.0],
        [18.0, 22.0],
    ]


def test_a_card_of_writes_alone_says_so_first():
    known = dict.fromkeys(Score.__struct_fields__) | {
        "preset": "lmcache-disk",
        "users": 11.0,
        "at_users": 11.0,
    }
    score = Score(**(known | {"tried": [], "each": [], "answer": "", "trials": 1}))
    facts = dict.fromkeys(("device", "model", "device_bytes", "filesystem"))
    card = Card(argv=[], status="complete", scores=[score], **facts)
    assert shows(card_answer(card), "lmcache-disk … 11 users … writes only")
    page = card_document(card, drive_of([cell(4096, 1, 1.0)]))
    assert page.warnings[0].startswith("lmcache-disk: NOTHING WAS READ")
    few = Card(
        argv=[], status="complete", scores=[msgspec.structs.replace(score, requests=8)], **facts
    )
    assert shows(
        card_document(few, drive_of([cell(4096, 1, 1.0)])).warnings[1], "TOO FEW REQUESTS (8)"
    )


@pytest.mark.full
@pytest.mark.usefixtures("small")
def test_a_card_is_what_its_runs_say(tmp_path):
    drive, out = tmp_path / "drive", tmp_path / "card"
    drive.mkdir()
    options = (
        "--size",
        "256MiB",
        "--window",
        "2s",
        "--presets",
        "lmcache-disk",
        "--endurance",
        "1DWPD,5y",
    )
    done = run_cli("kvreplay", "scorecard", drive, *options, "-o", out, "--json", check=False)
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)
    assert card == json.loads((out / "scorecard.json").read_text())
    (score,) = card["scores"]
    sweep = json.loads((out / "lmcache-disk" / "sweep.json").read_text())
    assert (card["status"], score["preset"], score["users"]) == (
        "complete",
        "lmcache-disk",
        sweep["knee"],
    )
    point = next(p for p in sweep["points"] if p["value"] == score["at_users"])
    first = f"users-{score['at_users']:g}"
    names = [first, f"{first}-trial-2", f"{first}-trial-3"]
    folders = [
        out / "lmcache-disk" / name for name in names if (out / "lmcache-disk" / name).is_dir()
    ]
    bytes_of, _wall_s, run = moved(out / "lmcache-disk" / point["run"])
    # Of its trials the median, though they are two: not the rate of one of them.
    each = {
        op: [found[op] / seconds for found, seconds, _ in map(moved, folders)]
        for op in ("read", "write")
    }
    written = median(each["write"])
    assert score["read_bytes_per_s"] == (
        pytest.approx(median(each["read"]), abs=1) if all(each["read"]) else None
    )
    assert score["written_bytes_per_s"] == pytest.approx(written, abs=1)
    assert bytes_of["write"] > 0
    rates = [sum(found.values()) / seconds for found, seconds, _ in map(moved, folders)]
    assert score["trials"] == len(folders)
    assert score["spread"] == pytest.approx((max(rates) - min(rates)) / median(rates))
    # What a comparison of cards stands on: each trial, and every load of the search.
    both = [
        (each["read_bytes_per_s"] or 0) + (each["written_bytes_per_s"] or 0)
        for each in score["each"]
    ]
    assert both == pytest.approx(rates)
    loads = [(at["value"], at["trials"], at["held_trials"]) for at in sweep["points"]]
    assert [(of["users"], of["trials"], of["held_trials"]) for of in score["tried"]] == loads
    assert card["window"] == "steady:2s"
    if (size := card["device_bytes"]) is not None:
        a_day = written * 86400
        assert score["drive_writes_per_day"] == pytest.approx(a_day / size)
        assert score["life_years"] == pytest.approx(5 * size / a_day)
    # The same seed and options give the same trace: anybody can repeat it.
    again = tmp_path / "again.parquet"
    argv = run["trace"]["metadata"]["argv"]
    assert shlex.join(argv[2:]) == f"{score['gen']} --users {score['at_users']:g}"
    run_cli(*argv, "-o", again)
    assert (
        score["trace_sha256"]
        == hashlib.sha256((out / "lmcache-disk" / f"{first}.parquet").read_bytes()).hexdigest()
    )
    assert read_table(again, TRACE).equals(
        read_table(out / "lmcache-disk" / f"{first}.parquet", TRACE)
    )


@pytest.mark.full
@pytest.mark.usefixtures("small")
def test_what_was_measured_is_kept_when_a_later_stack_cannot_be(tmp_path, monkeypatch):
    from kvreplay.experiments import scorecard as cards
    from kvtrace.core.errors import DeviceError

    (tmp_path / "drive").mkdir()
    score = cards.Score(
        **dict.fromkeys(cards.Score.__struct_fields__) | {"preset": "lmcache-disk", "answer": "?"}
    )

    def measured(_asked, preset, *_):
        if preset != score.preset:
            raise DeviceError("the drive is gone")
        return score, None, None

    monkeypatch.setattr(cards, "measure_stack", measured)
    monkeypatch.setattr(cards, "LOAD", ("--duration", "2s"))
    argv = (
        "kvreplay",
        "scorecard",
        tmp_path / "drive",
        "--size",
        "64MiB",
        "-o",
        tmp_path / "card",
        "--presets",
    )
    refused = run_cli(*argv, "lmcache-disk,nosuch", check=False)
    assert "nosuch" in refused.stderr
    assert not (tmp_path / "card").exists()
    failed = run_cli(*argv, "lmcache-disk,vllm-fs", "--json", check=False)
    assert failed.returncode != 0
    card = json.loads((tmp_path / "card" / "scorecard.json").read_text())
    assert (card["status"], [of["preset"] for of in card["scores"]]) == (
        "the drive is gone",
        ["lmcache-disk"],
    )
    assert card == json.loads(failed.stdout)


def test_what_a_card_needs(tmp_path):
    drive = tmp_path / "drive"
    drive.mkdir()
    for options, message in (
        (("--presets", "nosuch"), "nosuch"),
        (("--window", "soon"), "soon"),
        (("--endurance", "much"), "--endurance much: write 1DWPD,5y"),
    ):
        refused = run_cli(
            "kvreplay", "scorecard", drive, *options, "-o", tmp_path / "card", check=False
        )
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
        assert not list(drive.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    refused = run_cli("kvreplay", "scorecard", drive, "-o", tmp_path / "full", check=False)
    assert "not empty" in refused.stderr


def test_the_page_has_the_drive_itself_behind_its_stacks(tmp_path):
    from msgspec.structs import replace

    from kvreplay.experiments import scorecard as cards
    from kvreplay.run.discover import drive_table
    from kvtrace.core.run.drive_file import DriveError

    drive = write_drive(tmp_path / "drive.json")
    error = DriveError(
        cells=9, bandwidth_median=0.1, bandwidth_greatest=0.5, p99_median=None, p99_greatest=None
    )
    unknown = replace(
        drive.cells[0], bytes_per_s=None, read=None, write=None, reason="the device moved 0 B"
    )
    drive = replace(drive, held_out=error, cells=[unknown, *drive.cells[1:]])
    score = cards.Score(
        **dict.fromkeys(cards.Score.__struct_fields__)
        | {
            "preset": "vllm-fs",
            "answer": "?",
            "at_users": 4.0,
        }
    )
    of_card = dict.fromkeys(cards.Card.__struct_fields__) | {
        "status": "complete",
        "argv": [],
        "scores": [score],
    }
    (chapter,) = cards.card_document(cards.Card(**of_card), drive).chapters
    titles = [table.title for table in chapter.tables]
    assert show_each(titles, ["users", "drive.json"])
    assert shows(chapter.notes, "1 measurements … 0 B")
    assert shows(" ".join(chapter.notes), "10.0 % … 50.0 %")
    largest = drive_table(drive).rows[-1]
    rates = {
        share: max(
            c.bytes_per_s for c in drive.cells if (c.io_bytes, c.read_share) == (1 << 20, share)
        )
        for share in (1, 0, 0.7)
    }
    assert [cell.value if hasattr(cell, "value") else cell for cell in largest[:4]] == [
        1 << 20,
        *rates.values(),
    ]
    # What is not known at 64 in flight is not that of 8 under its name.
    cells = [replace(c, bytes_per_s=None, read=None) if c.depth == 64 else c for c in drive.cells]
    assert largest[-1] is not None
    assert drive_table(replace(drive, cells=cells)).rows[-1][-1] is None


@pytest.mark.parametrize(
    ("window", "longer"),
    [
        ("steady:3s", "steady:6s"),
        ("busiest:500ms", "busiest:1s"),
        ("from:300s+60s", "from:300s+120s"),
        (None, None),
        ("all", None),
    ],
)
def test_a_window_is_doubled(window, longer):
    assert longer_window(window) == longer


@pytest.mark.parametrize(
    ("reads_from_s", "tried", "later"),
    [(3, [3], [3]), (12, [3, 6, 12], [12]), (999, [3, 6, 12, 24, 48], [3])],
)
def test_a_window_without_reads_is_doubled(tmp_path, monkeypatch, reads_from_s, tried, later):
    """A window of 3 s in which storage is only written says nothing about reads."""
    windows = []

    def replayed(request):
        seconds = int(request.config.window.removeprefix("steady:").removesuffix("s"))
        windows.append(seconds)
        request.output.mkdir(parents=True)
        figures = SimpleNamespace(
            op="read", operations=int(seconds >= reads_from_s), is_simulated=False, tier="nvme"
        )
        run = SimpleNamespace(
            summary=SimpleNamespace(figures=[figures]),
            window=SimpleNamespace(window=request.config.window),
        )
        return SimpleNamespace(error=None, run=run)

    monkeypatch.setattr("kvreplay.experiments.scorecard.replay", replayed)
    monkeypatch.setattr("kvreplay.experiments.load_sweep.measured_figures", lambda figures: figures)
    request = Replay(
        Config(tiers={"nvme": "ram"}, window="steady:3s"), tmp_path / "t", tmp_path / "run", []
    )
    reading = ReadingWindow()
    reading(request)
    assert windows == tried
    assert reading.has_read == (reads_from_s < 999)
    # Later runs begin with the window that had reads. None had: they are not doubled in vain.
    reading(dataclasses.replace(request, output=tmp_path / "next"))
    assert windows == tried + later
    assert reading.longest == (None if reading.has_read else "steady:48s")
