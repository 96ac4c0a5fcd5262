"""One kind of user, and how long users think: only what was asked for changes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import run_cli
from phrases import shows
from whole import read_table

from kvtrace.core.schema import REQUESTS, RequestKind
from kvtrace.core.tables import open_table
from kvtrace.requests.users import TEMPLATES, make_users

S = 10**9
GEN = (
    "gen",
    "--users",
    "20",
    "--duration",
    "20s",
    "--model",
    "tiny-1b",
    "--preset",
    "lmcache-disk",
)


@pytest.mark.parametrize("kind", list(TEMPLATES))
def test_all_users_of_a_kind_think_about_the_stated_time(kind: RequestKind) -> None:
    users, starts = make_users(400, 3, kind=kind, mean_think_ns=30 * S)
    shortest, longest = TEMPLATES[kind][:2]
    assert ((users["context"] >= shortest) & (users["context"] <= longest)).all()
    assert len(set(users["kind"])) == 1
    assert (users["think_ns"] >= 10 * S).all()
    assert (users["think_ns"] <= 50 * S).all()
    assert abs(users["think_ns"].mean() - 30 * S) < 3 * S
    assert (starts <= users["think_ns"]).all()


def test_a_think_time_changes_nothing_else_of_a_user() -> None:
    usual, changed = make_users(50, 3)[0], make_users(50, 3, mean_think_ns=30 * S)[0]
    for name in set(usual.dtype.names) - {"think_ns"}:
        assert np.array_equal(usual[name], changed[name])
    # The kinds' own means are the same share of their bounds.
    for *_, shortest, longest in TEMPLATES.values():
        mean = (shortest + longest) // 2
        assert (mean // 3, 5 * mean // 3) == (shortest, longest)


def test_users_who_think_ask_less(tmp_path) -> None:
    asked = {}
    for think in ("1s", "10s"):
        options = ["--set", f"workload.think_time={think}", "--set", "workload.user_kind=chatbot"]
        done = run_cli("kvtrace", *GEN, *options, "--json", "-o", tmp_path / f"{think}.parquet")
        asked[think] = json.loads(done.stdout)["stats"]["requests"]
        workload = open_table(tmp_path / f"{think}.parquet").meta.config["hierarchy"]["workload"]
        assert (workload["think_time"], workload["user_kind"]) == (think, "chatbot")
    # 20 users for 20 s: about 20 turns each at 1 s, 2 at 10 s, and the time of answers.
    assert 200 < asked["1s"] <= 450
    assert 25 < asked["10s"] < 80


def test_a_kind_holds_in_an_open_loop_and_of_overlapping_users(tmp_path) -> None:
    for nth, options in enumerate((["--request-rate", "5/s"], ["--set", "workload.overlap=true"])):
        users = [] if nth == 0 else GEN[1:3]
        done = run_cli(
            "kvtrace", "gen", *users, *GEN[3:], *options, "--set", "workload.user_kind=coding", "--json",
            "--requests-out", tmp_path / f"r{nth}.parquet", "-o", tmp_path / f"o{nth}.parquet",
        )  # fmt: skip
        assert json.loads(done.stdout)["stats"]["requests"] > 0
        kinds = read_table(tmp_path / f"r{nth}.parquet", REQUESTS)["kind"]
        assert set(kinds.to_pylist()) == {"coding"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--request-rate", "5/s", "--set", "workload.think_time=5s"],
            "synthetic users",
        ),
        (
            ["--set", "workload.think_time=0s"],
            "workload.think_time(=0s) … > 0 … 24h",
        ),
        (["--set", "workload.think_time=25h"], "> 0 … 24h"),
        (["--set", "workload.user_kind=robot"], "robot"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, options: list[str], message: str) -> None:
    users = () if "--request-rate" in options else GEN[1:3]
    done = run_cli(
        "kvtrace", "gen", *users, *GEN[3:], *options, "-o", tmp_path / "t.parquet", check=False
    )
    assert done.returncode == 2
    assert shows(done.stderr, message)


def test_a_file_has_users_of_its_own(tmp_path) -> None:
    for setting in ("workload.user_kind=chatbot", "workload.think_time=5s"):
        file = "examples/conversation.jsonl"
        done = run_cli(
            "kvtrace", "gen", file, "--set", setting, "-o", tmp_path / "t.parquet", check=False
        )
        assert done.returncode == 2
        assert setting in done.stderr
        assert file in done.stderr
