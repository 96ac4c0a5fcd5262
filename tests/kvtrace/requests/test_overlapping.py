"""Users who do not wait for answers.

Who is served when, against a plain queue, and what a trace says of it.
"""

from __future__ import annotations

import heapq
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import run_cli

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import REQUESTS, Qos, enum_code
from kvtrace.requests import users as synthetic
from kvtrace.requests.users import make_users

S, CONTEXT, DECODE_NS = 10**9, 131_072, 30_000_000
RANK = {
    enum_code(REQUESTS, "qos", name): rank
    for rank, name in enumerate((Qos.INTERACTIVE, Qos.RESPONSIVE, Qos.BATCH))
}


def queued(count, until_ns, seed, decode_ns):
    """Return (begun at, user, its conversation, turn, input, output), one an answer, with a heap
    for a queue.
    """
    users, starts = make_users(count, seed)
    table = np.empty(10_000, synthetic._OVERLAPPING)
    rows = synthetic._ask(table, len(table), users.copy(), starts, count, seed, until_ns, CONTEXT)
    asked = [
        (int(row["time_ns"]), nth, RANK[int(users[row["user"]]["qos"])], row)
        for nth, row in enumerate(table[:rows])
    ]
    waiting, free, served = [], [0] * count, []
    asked.sort(key=lambda one: one[:2])
    while asked or waiting:
        now = heapq.heappop(free)
        if not waiting:
            now = max(now, asked[0][0])
        while asked and asked[0][0] <= now:
            time, nth, rank, row = asked.pop(0)
            heapq.heappush(waiting, (rank, time, nth, row))
        if now >= until_ns:
            break
        row = heapq.heappop(waiting)[-1]
        served.append(
            (now, *(int(row[name]) for name in ("user", "conversation", "turn", "input", "output")))
        )
        heapq.heappush(free, now + served[-1][-1] * decode_ns)
    return served


@pytest.mark.parametrize("decode_ns", [0, 2_000_000, DECODE_NS])
@pytest.mark.parametrize("seed", [1, 42])
def test_who_is_served_when_is_as_in_a_plain_queue(seed, decode_ns):
    found = synthetic.make_overlapping(8, 20 * S, CONTEXT, seed, decode_ns_per_token=decode_ns)
    expected = queued(8, 20 * S, seed, decode_ns)
    columns = (found.arrival_ns, found.turn, found.input_tokens, found.output_tokens)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [
        (t, n, i, o) for t, _, _, n, i, o in expected
    ]
    # The same conversations, by another name.
    names = {(user, conversation): None for _, user, conversation, *_ in expected}
    numbers = dict(zip(names, range(len(names)), strict=True))
    assert found.session_id.tolist() == [
        numbers[user, conversation] for _, user, conversation, *_ in expected
    ]


def test_answers_under_way_are_bounded_and_first_class_leads():
    found = synthetic.make_overlapping(32, 60 * S, CONTEXT, 42, decode_ns_per_token=DECODE_NS)
    ends = found.arrival_ns + found.output_tokens * DECODE_NS
    under_way = [
        (found.arrival_ns <= t).sum() - (ends <= t).sum() for t in found.arrival_ns.tolist()
    ]
    assert max(under_way) == 32
    assert found.origin["asked"] > 5 * len(found)
    by_class = found.origin["served_by_class"]
    users, _ = make_users(32, 42)
    assert np.mean(users["qos"] == enum_code(REQUESTS, "qos", Qos.INTERACTIVE)) < 0.3
    assert by_class["interactive"] / len(found) > 0.8
    assert sum(by_class.values()) == len(found)
    assert found.origin["served_users"] < 32


def test_answers_that_take_no_time_are_those_of_users_who_wait(tmp_path):
    tables = []
    for overlap in ("true", "false"):
        more = (
            "--force",
            "--users",
            8,
            "--duration",
            "20s",
            "--gpu",
            "instant",
            "--set",
            "decode_ns_per_token=0",
        )
        table = tmp_path / f"{overlap}.parquet"
        knob = f"workload.overlap={overlap}"
        run_cli(
            "kvtrace",
            "gen",
            *more,
            "--set",
            knob,
            "--requests-out",
            table,
            "-o",
            tmp_path / "t.parquet",
            "--force",
        )
        tables.append(pq.read_table(table).to_pylist())
    assert tables[0] == tables[1]


def test_the_first_of_many_requests_are_the_same():
    whole = synthetic.make_overlapping(8, 20 * S, CONTEXT, 3, decode_ns_per_token=DECODE_NS)
    few = synthetic.make_overlapping(
        8, 20 * S, CONTEXT, 3, decode_ns_per_token=DECODE_NS, max_requests=5
    )
    assert few.arrival_ns.tolist() == whole.arrival_ns[:5].tolist()
    # More is asked than the first table holds.
    assert (
        synthetic.make_overlapping(8, 3600 * S, CONTEXT, 3, decode_ns_per_token=0).origin["asked"]
        > 4096
    )


def test_too_much_and_nothing(monkeypatch):
    with pytest.raises(ConfigError, match="no request"):
        synthetic.make_overlapping(1, 1, CONTEXT, 3, decode_ns_per_token=0)
    monkeypatch.setattr(synthetic, "_MAX_OVERLAPPING", 5000)
    with pytest.raises(ConfigError, match=r"8 users.*5,000 requests"):
        synthetic.make_overlapping(8, 10_000 * S, CONTEXT, 3, decode_ns_per_token=0)


def test_a_trace_of_it_is_served_in_whole_and_says_so(tmp_path):
    more = (
        "--model",
        "tiny-1b",
        "--users",
        4,
        "--duration",
        "10s",
        "--set",
        "workload.overlap=true",
        "--json",
    )
    out = run_cli("kvtrace", "gen", *more, "-o", tmp_path / "t.parquet")
    assert "wait" in out.stderr
    found = json.loads(out.stdout)
    source = json.loads(run_cli("kvtrace", "info", tmp_path / "t.parquet", "--json").stdout)[
        "metadata"
    ]["source"]
    assert source["kind"] == "overlapping"
    assert source["requests"] == found["stats"]["requests"] < source["asked"]


@pytest.mark.parametrize(
    "other",
    [
        ("--set", "workload.prompt_share=0.2"),
        ("--set", "workload.mode=prefill-only"),
        ("--request-rate", "5/s"),
    ],
)
def test_what_it_cannot_go_with_is_refused(tmp_path, other):
    more = ("--set", "workload.overlap=true", *other, "-o", tmp_path / "t.parquet")
    done = run_cli("kvtrace", "gen", *more, check=False)
    assert done.returncode == 2
    assert "workload.overlap" in done.stderr
