"""Which settings of a comparison are read first, and what it says of sides with other loads."""

from __future__ import annotations

import json

import msgspec
import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import change_run, write_run
from phrases import shows
from simulated import kvtrace

from kvdistill.reports.compare import ordered_settings, split_settings
from kvdistill.reports.output import read_comparison
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import read_run


def test_what_changes_a_run_comes_first_and_the_host_last() -> None:
    found = ordered_settings(
        {
            "host.kernel": ["6.1", "6.2"],
            "version": ["1", "2"],
            "memory": [1, 2],
            "queue_depth": [8, 16],
            "tiers.nvme": ["/mnt/a", "/mnt/b"],
        }
    )
    assert list(found) == ["tiers.nvme", "queue_depth", "memory", "host.kernel", "version"]


def test_a_setting_unknown_to_one_side_is_not_named_first() -> None:
    settings = {
        "tiers.cpu": ["ram", None],
        "queue_depth": [8, 16],
        "limit": [None, "1GiB"],
        "host.numa": [None, "2 nodes"],
    }
    differing, one_sided = split_settings(settings)
    assert list(differing) == ["tiers.cpu", "queue_depth", "limit"]
    assert list(one_sided) == ["host.numa"]


def test_a_terminal_counts_what_a_page_lists(capsys) -> None:
    from kvdistill.reports.compare import _one_sided_chapter
    from kvtrace.core.document.document import Document
    from kvtrace.core.document.page import html_page
    from kvtrace.core.document.terminal import show_documents

    document = Document(
        name="d",
        headline="h",
        chapters=[_one_sided_chapter({"host.numa": [None, "2 nodes"]}, ["[0]", "[1]"])],
    )
    show_documents([document])
    shown = capsys.readouterr().out
    assert "1 setting" in shown
    assert "host.numa" not in shown
    assert "host.numa" in html_page([document], "test")


@pytest.fixture
def side(monkeypatch, tmp_path):
    """Return a function that simulates requests, or users, into the trace of a name, and returns
    its path.
    """

    def requests(name, blocks):
        rows = [{"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [n % blocks, 9 + n % blocks]}
                for n in range(20)]  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    for name, blocks in (
        ("a.jsonl", 4),
        ("b.jsonl", 5),
        ("same/other.jsonl", 4),
        ("apart/a.jsonl", 5),
    ):
        requests(name, blocks)

    def made(out, *options):
        path, usual = (
            tmp_path / f"{out}.parquet",
            ("--preset", "lmcache-disk", "--model", "tiny-1b"),
        )
        files = [
            tmp_path / option if str(option).endswith("jsonl") else option for option in options
        ]
        assert kvtrace(monkeypatch, "gen", *files, *usual, "-o", path) == 0
        return path

    return made


A, USERS = ("a.jsonl", "--source", "mooncake"), ("--users", 2, "--duration", "5s")


@pytest.mark.first(one=3)
@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ([*A, "--limit", 10], [*A, "--limit", 12], "requests at most 10 / 12"),
        (A, [*A, "--limit", 12], "requests at most - / 12"),
        (A, ["b.jsonl", "--source", "mooncake"], "file a.jsonl / b.jsonl"),
        ([*A, "--time-scale", 2], A, "time scale 2.0 / -"),
        ([*USERS, "--seed", 1], [*USERS, "--seed", 2], "seed 1 / 2"),
        (USERS, ["--users", 3, "--duration", "7s"], "users 2 / 3; duration 5.00 s / 7.00 s"),
        (["--request-rate", "9/s", "--duration", "5s"], ["--request-rate", "8/s", "--duration", "5s"],
         "request rate per s 9 / 8"),
    ],
)  # fmt: skip
def test_sides_with_other_loads_say_so_before_any_figure(side, one, other, said):
    found, document = read_comparison([side("one", *one), side("other", *other)])
    because = "LOADS DIFFER"
    assert shows(found.verdict, f"{because} … {said}; other.parquet hit rate")
    assert document.headline == found.verdict
    assert any(name.startswith("load.") for name in split_settings(found.settings)[0])


def test_another_file_of_the_same_name_is_another_load(side):
    found, _ = read_comparison(
        [side("one", *A), side("other", "apart/a.jsonl", "--source", "mooncake")]
    )
    assert shows(found.verdict, "LOADS DIFFER")


@pytest.mark.parametrize(
    "other",
    [
        ["same/other.jsonl", "--source", "mooncake"],  # the same requests by another name
        [*A, "--seed", 7],  # nothing of them is drawn
        [*A, "--set", "tiers.nvme.policy=fifo", "--set", "tiers.nvme.capacity=1GiB"],
    ],
)
def test_the_same_requests_are_one_load_whatever_serves_them(side, other):
    found, _ = read_comparison([side("one", *A), side("other", *other)])
    assert found.verdict.startswith("other.parquet hit rate")


def test_requests_that_were_imported_before_are_the_same_load(monkeypatch, tmp_path, side):
    table = tmp_path / "requests.parquet"
    assert (
        kvtrace(monkeypatch, "import", tmp_path / "a.jsonl", "--source", "mooncake", "-o", table)
        == 0
    )
    found, _ = read_comparison([side("one", *A), side("other", table, "--source", "requests")])
    assert found.verdict.startswith("other.parquet hit rate")
    cut, _ = read_comparison(
        [side("cut", *A, "--limit", 5), side("two", table, "--source", "requests", "--limit", 6)]
    )
    assert "5 / 6" in cut.verdict


@pytest.mark.full
def test_runs_of_other_traces_or_of_another_part_say_so(tmp_path):
    runs = {
        name: write_run(tmp_path / name, [1000, 2000]) for name in ("a", "same", "other", "part")
    }
    trace = msgspec.to_builtins(read_run(runs["a"]).trace)
    for name, run in runs.items():
        # Another file may have the same name.
        change_run(run, trace=trace | {"sha256": ("2" if name == "other" else "1") * 64})
    change_run(runs["part"], config={"limit": "2 rows", "speed": 2.0})
    told = {
        name: read_comparison([runs["a"], run])[0].verdict
        for name, run in runs.items()
        if name != "a"
    }
    assert shows(told.pop("same"), "0 % slower")
    assert [
        said.partition("; " + name)[0].partition("compared: ")[2] for name, said in told.items()
    ] == [
        "content of the file 111111111111 / 222222222222",
        "limit - / 2 rows; speed - / 2.0",
    ]


@pytest.mark.full
def test_the_answer_is_of_the_drive_that_is_another(tmp_path):
    rows = [(n, "write", tier, "store", n, 0, 4096, n, 0, 0) for n in range(9) for tier in (0, 1)]
    tiers = [TierFacts("nvme", 1 << 30), TierFacts("far", 1 << 30)]
    trace = write_trace(tmp_path / "t.parquet", rows, tiers=tiers)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    options = ("--trials", "1", "-o", tmp_path / "sides")
    both = (
        "--tier",
        f"nvme={tmp_path / 'a'}",
        "--tier",
        f"far={tmp_path / 'c'}",
        "--against",
        f"nvme={tmp_path / 'b'}",
    )
    run_cli("kvreplay", "compare", trace, *both, *options)
    done = run_cli("kvdistill", "compare", tmp_path / "sides" / "a", tmp_path / "sides" / "b")
    # Which figure leads is a matter of 18 writes on this machine, but it is one of that drive.
    assert done.stdout.startswith("nvme: b ")
    shown = [line for line in done.stdout.splitlines() if line.startswith("Figures: ")]
    assert shown[0] == "Figures: nvme"
