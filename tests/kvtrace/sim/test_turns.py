"""Closed loops of a file.

Worked by hand, against the same file in an open loop, and through the command line.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from phrases import shows
from simulated import kvtrace, preset_of, requests_of, simulate
from whole import read_table

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import REQUESTS, TRACE
from kvtrace.core.tables import open_table
from kvtrace.requests.registry import read
from kvtrace.requests.requests import Turns, Waits, choose, waits_of
from kvtrace.requests.reshape import Reshaping
from kvtrace.sim.simulation import Load

ENGINES = Path(__file__).resolve().parents[2] / "golden" / "engines"
MS = 10**6


def with_sessions(rows, sessions, answered=None):
    requests = requests_of(rows)
    ends = None if answered is None else np.array(answered)
    return replace(requests, session_id=np.array(sessions), answered_ns=ends)


def came(requests, preset, **load):
    """Return (which of the file, when) of each request in a closed loop, in order of arrival."""
    simulation = simulate(preset, Load(requests=requests, waits=waits_of(requests), **load))[0]
    return list(zip(*(part.tolist() for part in simulation.arrivals()), strict=True))


# A prompt token takes 10 ns, a decode step 100; each prompt is one new chunk of 4 tokens: 40 ns,
# one after the other. The prefill gives the first token of an answer.
TIMED = preset_of(1000, prefill_ns_per_token=10, decode_ns_per_token=100)
# Sessions 0, 1 and 2; rows are (arrival, input, output, blocks).
THREE = [
    (0, 4, 3, [1]),  # session 0: answered at 0 + 40 + 200 = 240
    (10, 4, 2, [2]),  # session 1: computed from 40 to 80, answered at 180
    (30, 4, 0, [3]),  # session 2: computed from 80 to 120, and answered
    (
        90,
        4,
        2,
        [4],
    ),  # session 2: recorded 60 after, comes at 120 + 60 = 180, answered at 220 + 100 = 320
    (
        100,
        4,
        2,
        [5],
    ),  # session 0: recorded 100 after, comes at 240 + 100 = 340, answered at 380 + 100 = 480
    (110, 4, 0, [6]),  # session 1: recorded 100 after, comes at 180 + 100 = 280, answered at 320
    (120, 4, 0, [7]),  # session 0: recorded 20 after, comes at 480 + 20 = 500
]
SESSIONS = [0, 1, 2, 2, 0, 1, 0]


def test_three_sessions_by_hand():
    requests = with_sessions(THREE, SESSIONS)
    expected = [(0, 0), (1, 10), (2, 30), (3, 180), (5, 280), (4, 340), (6, 500)]
    assert came(requests, TIMED) == expected
    # Requests and objects are numbered as they come, and times never go back.
    rows = simulate(TIMED, Load(requests=requests, waits=waits_of(requests)))[1]
    assert [(time, object_, request) for time, op, *_, object_, _, request, _, _ in rows if op == "write"] == [
        (40, 0, 0), (80, 1, 1), (120, 2, 2), (220, 3, 3), (320, 4, 4), (380, 5, 5), (540, 6, 6),
    ]  # fmt: skip


def test_what_the_answers_took_when_recorded_is_no_pause():
    # Session 0's first answer took 70 of the recorded 100, its second 90 of 20: no pause.
    requests = with_sessions(THREE, SESSIONS, answered=[70, 10, 30, 90, 190, 110, 120])
    assert waits_of(requests).delay_ns.tolist() == [30, 0, 100, 60]
    assert came(requests, TIMED) == [
        (0, 0),
        (1, 10),
        (2, 30),
        (3, 180),
        (4, 270),
        (5, 280),
        (6, 410),
    ]


def test_the_end_and_the_most_requests_hold():
    requests = with_sessions(THREE, SESSIONS)
    assert came(requests, TIMED, until_ns=280) == [(0, 0), (1, 10), (2, 30), (3, 180)]
    assert came(requests, TIMED, max_requests=5) == [(0, 0), (1, 10), (2, 30), (3, 180), (5, 280)]


def test_a_join_waits_for_the_last_and_a_dispatch_for_the_start():
    requests = requests_of([(0, 4, 3, [1]), (0, 4, 2, [2]), (0, 4, 0, [3]), (0, 4, 0, [4])])
    # 1 comes 5 after 0 starts; 2 comes 7 after 0 is answered (240) or 9 after 1 is (computed 40 to
    # 80, answered 180); 3 comes 1 after 1 starts, but not before 600.
    waits = Waits.of(
        4,
        [(1, 0, 5, True), (2, 0, 7, False), (2, 1, 9, False), (3, 1, 1, True)],
        np.array([0, 0, 0, 600]),
    )
    simulation = simulate(TIMED, Load(requests=requests, waits=waits))[0]
    assert [part.tolist() for part in simulation.arrivals()] == [[0, 1, 2, 3], [0, 5, 247, 600]]


def test_one_session_without_pauses_is_the_open_loop():
    """Where nothing takes time, a turn comes as the answer before it ends.

    The file with these times.
    """
    rows = [(0, 4 * n, 3, list(range(n))) for n in range(1, 9)]
    requests = with_sessions(rows, [0] * len(rows))
    preset = preset_of(16, 64)
    closed = simulate(preset, Load(requests=requests, waits=waits_of(requests)))
    assert closed[0].arrivals()[1].tolist() == [0] * len(rows)
    assert closed[1] == simulate(preset, Load(requests=requests))[1]
    # Where it does, it is the open loop at the times at which turns came.
    timed = preset_of(16, 64, prefill_ns_per_token=10, decode_ns_per_token=100)
    closed = simulate(timed, Load(requests=requests, waits=waits_of(requests)))
    times = closed[0].arrivals()[1].tolist()
    assert len(set(times)) == len(rows)
    again = requests_of([(time, *row[1:]) for time, row in zip(times, rows, strict=True)])
    assert closed[1] == simulate(timed, Load(requests=again))[1]


def test_a_request_without_a_session_keeps_its_time():
    requests = with_sessions(THREE, [0, 1, -1, -1, 0, 1, -1])
    waits = waits_of(requests)
    assert (waits.row.tolist(), waits.before.tolist()) == ([4, 5], [0, 1])


def test_nothing_to_follow_is_refused_if_asked_for():
    requests = requests_of(THREE)
    with pytest.raises(ConfigError, match="turns=follow:"):
        choose(requests, Turns.FOLLOW)
    untimed = replace(requests, untimed="x")
    chosen, waits = choose(untimed, None)
    assert (chosen is untimed, waits) == (True, None)


def test_times_are_scaled_repeated_and_cut_with_the_waits(tmp_path):
    path = tmp_path / "b.jsonl"
    lines = [
        {"chat_id": 7, "timestamp": 1.0, "input_length": 16, "output_length": 1, "hash_ids": [1]},
        {"chat_id": 8, "timestamp": 2.0, "input_length": 16, "output_length": 1, "hash_ids": [2], "parent_chat_id": 7},
        {"chat_id": 9, "timestamp": 4.0, "input_length": 99, "output_length": 1, "hash_ids": [3, 4, 5, 6, 7, 8],
         "parent_chat_id": 7},
        {"chat_id": 10, "timestamp": 5.0, "input_length": 16, "output_length": 1, "hash_ids": [9], "parent_chat_id": 9},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def found(**wanted):
        waits = waits_of(read("bailian", path, {}, Reshaping(**wanted), 1))
        return list(
            zip(
                waits.row.tolist(),
                waits.before.tolist(),
                (waits.delay_ns // MS).tolist(),
                strict=True,
            )
        )

    # A tree: 8 and 9 both follow 7, 10 follows 9.
    assert found() == [(1, 0, 1000), (2, 0, 3000), (3, 2, 1000)]
    assert found(time_scale=0.5) == [(1, 0, 500), (2, 0, 1500), (3, 2, 500)]
    assert found(max_requests=2) == [(1, 0, 1000)]
    assert found(max_input_tokens=50) == [(1, 0, 1000)]  # 9 is gone, and 10 comes at its time
    assert found(cycles=2) == [
        (1, 0, 1000),
        (2, 0, 3000),
        (3, 2, 1000),
        (5, 4, 1000),
        (6, 4, 3000),
        (7, 6, 1000),
    ]


def gen(monkeypatch, capsys, *args):
    assert kvtrace(monkeypatch, "gen", *args, "--json", "--force") == 0
    return json.loads(capsys.readouterr().out)


def test_dynamos_dependencies_are_followed(tmp_path, monkeypatch, capsys):
    """Its own simulator dispatches the child 5 ms after the root, and the join 1 ms after the later
    of both answers.
    """
    out, asked = tmp_path / "t.parquet", tmp_path / "r.parquet"
    options = [
        "--set",
        "prefill_ns_per_token=1000000",
        "--set",
        "decode_ns_per_token=10000000",
        "--model",
        "tiny-1b",
    ]
    path = ENGINES / "dynamo" / "agentic-mooncake.jsonl"
    gen(monkeypatch, capsys, path, *options, "-o", out, "--requests-out", asked)
    # root: 4 ms to compute, a step of 10 ms; child: from 5 on the same; join: 1 ms after 19.
    assert [t // MS for t in read_table(asked, REQUESTS)["arrival_ns"].to_pylist()] == [0, 5, 20]
    meta = open_table(out, TRACE).meta
    assert meta.config["turns"] == "follow"
    assert any(shows(note, "2 … 3 requests") for note in meta.notes)
    assert not any("no durations" in note for note in meta.notes)
    # As recorded, what is waited for takes no time.
    gen(
        monkeypatch,
        capsys,
        path,
        *options,
        "-o",
        out,
        "--requests-out",
        asked,
        "--turns",
        "as-recorded",
    )
    assert [t // MS for t in read_table(asked, REQUESTS)["arrival_ns"].to_pylist()] == [0, 5, 6]
    meta = open_table(out, TRACE).meta
    assert any("no durations" in note for note in meta.notes)
    assert "turns" not in meta.config


def test_sessions_of_aiperf_follow_by_themselves(tmp_path, monkeypatch, capsys):
    """The sample of AIPerf's own writer.

    Its first turns have times, its later ones delays, and no times.
    """
    path, out, asked = (
        ENGINES / "aiperf" / "sessions.jsonl",
        tmp_path / "t.parquet",
        tmp_path / "r.parquet",
    )
    options = ["--preset", "lmcache-disk", "--model", "tiny-1b", "-o", out, "--requests-out", asked]
    gen(monkeypatch, capsys, path, *options, "--gpu", "instant")
    at_once = read_table(asked, REQUESTS)["arrival_ns"].to_pylist()
    gen(monkeypatch, capsys, path, *options, "--gpu", "l40s")
    rows = read_table(asked, REQUESTS)
    assert rows["request_id"].to_pylist() == list(range(30))
    arrivals = rows["arrival_ns"].to_pylist()
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] > at_once[-1]
    # With answers that take no time, a session's turns come one delay after the other.
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = max(
        sum(line.get("delay", 0) for line in lines if line["session_id"] == name)
        for name in {line["session_id"] for line in lines}
    )
    assert at_once[-1] / MS == pytest.approx(last)
    # The table of what came is a source again, whose times are now recorded ones.
    assert (
        kvtrace(
            monkeypatch,
            "gen",
            asked,
            "--preset",
            "lmcache-disk",
            "--model",
            "tiny-1b",
            "-o",
            out,
            "--force",
        )
        == 0
    )


def test_a_closed_loop_at_the_command_line(tmp_path, monkeypatch, capsys):
    path, out = tmp_path / "m.jsonl", tmp_path / "t.parquet"
    rows = [
        {
            "session_id": s,
            "timestamp": 1000 * t,
            "input_length": 512,
            "output_length": 10,
            "hash_ids": [10 * s + t],
        }
        for t in range(3)
        for s in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "--model",
        "tiny-1b",
        "--set",
        "decode_ns_per_token=100000000",
        "--set",
        "prefill_ns_per_token=0",
    ]
    found = gen(monkeypatch, capsys, path, *options, "--turns", "follow", "-o", out)
    assert found["stats"]["requests"] == 6
    # Two rounds of an answer of 1 s and a pause of 1 s.
    assert open_table(out, TRACE).meta.config["turns"] == "follow"
    written = found["stats"]["tiers"][-1]["written_bytes"]
    assert found["endurance"][0]["written_bytes_per_day"] == written * 86400 // 4
    # As recorded is the default where the file has times, and says nothing.
    gen(monkeypatch, capsys, path, *options, "-o", tmp_path / "a.parquet")
    gen(monkeypatch, capsys, path, *options, "--turns", "as-recorded", "-o", tmp_path / "b.parquet")
    first, second = (open_table(tmp_path / f"{name}.parquet", TRACE).meta for name in "ab")
    assert "turns" not in first.config
    assert (first.config, first.notes) == (second.config, second.notes)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--turns", "follow"],
            "--turns … FILE",
        ),
        (["FILE", "--turns", "wait"], "--turns wait:"),
        (
            ["FILE", "--turns", "follow"],
            "--turns follow:",
        ),
    ],
)
def test_wrong_turns_are_refused(tmp_path, monkeypatch, capsys, args, message):
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n')
    args = [path if arg == "FILE" else arg for arg in args]
    assert kvtrace(monkeypatch, "gen", *args, "-o", tmp_path / "t.parquet") == 2
    assert shows(capsys.readouterr().err, message)
