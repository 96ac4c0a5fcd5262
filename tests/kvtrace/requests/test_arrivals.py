"""Synthetic users in an open loop.

Exact rates, told burstiness, a day's curve, and the closed loop's conversations.

Bounds are four standard deviations of what is counted; the seeds are fixed, so what holds once
holds always.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from phrases import pattern, shows
from simulated import kvtrace, mlperf_of, rows_of
from whole import read_table

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import REQUESTS, TRACE, enum_code
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_S, parse_rate_per_s
from kvtrace.requests import users as arrivals
from kvtrace.requests import users as arrivals_module
from kvtrace.requests.users import QOS_SHARES, TEMPLATES, ArrivalProcess, Process, sine_of_turns

S = NS_PER_S
CONTEXT = 131_072


@pytest.fixture(scope="module")
def many():
    """200,000 requests over 64 conversations."""
    return arrivals.make_open_loop(
        ArrivalProcess(1000.0), 10**6 * S, CONTEXT, 42, max_requests=200_000
    )


@pytest.mark.parametrize(("text", "rate"), [
    ("20/s", 20.0), ("20", 20.0), (" 0.5 / s ", 0.5), ("90/min", 1.5), ("7200/h", 2.0), ("86400/d", 1.0), ("3/ms", 3e3),
])  # fmt: skip
def test_rates_are_read(text, rate):
    assert parse_rate_per_s(text) == rate


@pytest.mark.parametrize(
    "text", ["", "/s", "fast", "-1", "1e3", "20/", "20/fortnight", "20 s", "inf", "nan"]
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ConfigError, match=r"20/s|'fortnight'"):
        parse_rate_per_s(text)


def test_constant_arrivals_are_even_and_exact():
    assert ArrivalProcess(4.0, Process.CONSTANT).times_ns(1, S).tolist() == [
        0,
        250_000_000,
        500_000_000,
        750_000_000,
    ]
    third = ArrivalProcess(3.0, Process.CONSTANT).times_ns(1, S + 1)
    assert third.tolist() == [0, 333_333_000, 666_667_000, 1_000_000_000]
    assert len(ArrivalProcess(20.0, Process.CONSTANT).times_ns(1, 3600 * S)) == 72_000


@pytest.mark.parametrize(("cv", "seed"), [(1.0, 1), (4.0, 2), (0.25, 3), (2.0, 4)])
def test_renewals_have_their_rate_and_their_burstiness(cv, seed):
    process = ArrivalProcess(20.0, Process.GAMMA, cv)
    times = process.times_ns(seed, 10_000 * S)
    gaps = np.diff(times)
    # A renewal process counts n with a variance of n cv².
    assert abs(len(times) - 200_000) < 4 * cv * 200_000**0.5
    assert gaps.mean() == pytest.approx(S / 20, rel=4 * cv / 200_000**0.5)
    # Of gamma intervals, var(s²) = σ⁴ (2 + 6 cv²) / n.
    assert gaps.std() / gaps.mean() == pytest.approx(
        cv, rel=4 * (2 + 6 * cv * cv) ** 0.5 / 200_000**0.5
    )


def test_poisson_counts_vary_as_poisson_counts_do():
    times = ArrivalProcess(20.0).times_ns(5, 10_000 * S)
    counts = np.bincount(times // S, minlength=10_000)
    assert abs(counts.sum() - 200_000) < 4 * 200_000**0.5
    # Variance over mean is 1; its standard deviation over n windows is (2 / n)^½ and a little.
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * (2.1 / 10_000) ** 0.5)
    assert np.all(times % 1000 == 0)


@pytest.mark.parametrize(("cv", "ordinary"), [(4.0, 27.5), (0.25, 19.53)])
def test_bursty_arrivals_have_their_rate_in_short_windows_too(monkeypatch, cv, ordinary):
    # Begun with an arrival's interval, 20 expected would be 20 + (cv² - 1) / 2.
    monkeypatch.setattr(arrivals_module, "_BLOCK", 64)
    process = ArrivalProcess(2.0, Process.GAMMA, cv)
    counts = np.array([len(process.times_ns(seed, 10 * S)) for seed in range(6000)])
    error = counts.std() / len(counts) ** 0.5
    assert abs(counts.mean() - 20) < 4 * error
    assert abs(counts.mean() - ordinary) > 4 * error


def test_a_day_has_its_peak_and_its_trough():
    day = ArrivalProcess(20.0, Process.DIURNAL, day_ns=1000 * S, amplitude=0.5)
    times = day.times_ns(6, 20_000 * S)
    assert day.expected(20_000 * S) == 400_000
    assert abs(len(times) - 400_000) < 4 * 400_000**0.5
    phase = times // S % 1000
    peak, trough = (
        int(np.count_nonzero((phase >= low) & (phase < low + 100))) for low in (200, 700)
    )
    # The mean of the sine over a tenth of a day about its peak is sin(π / 10) / (π / 10) = 0.98363.
    assert abs(peak - 40_000 * 1.49182) < 4 * 59_673**0.5
    assert abs(trough - 40_000 * 0.50818) < 4 * 20_327**0.5
    assert peak / trough == pytest.approx(
        1.49182 / 0.50818, rel=4 * (1 / 59_673 + 1 / 20_327) ** 0.5
    )
    # Half a day, from the mean up and back: 20 (500 + 500 / π).
    assert day.expected(500 * S) == pytest.approx(13_183.0989)
    half = np.count_nonzero(times < 500 * S)
    assert abs(half - 13_183) < 4 * 13_183**0.5


def test_a_whole_swing_leaves_the_trough_empty():
    times = ArrivalProcess(100.0, Process.DIURNAL, day_ns=100 * S, amplitude=1.0).times_ns(
        7, 100 * S
    )
    assert np.count_nonzero((times >= 74 * S) & (times < 76 * S)) <= 3  # 0.13 expected
    assert abs(len(times) - 10_000) < 400


def test_the_sine_is_a_sine():
    turns = np.linspace(-2, 5, 7001)
    assert np.abs(sine_of_turns(turns) - np.sin(2 * np.pi * turns)).max() < 1e-11


@pytest.mark.parametrize("process", [
    ArrivalProcess(3000.0), ArrivalProcess(3000.0, Process.GAMMA, 3.0), ArrivalProcess(3000.0, Process.CONSTANT),
    ArrivalProcess(3000.0, Process.DIURNAL, day_ns=40 * S),
])  # fmt: skip
def test_a_seed_gives_the_same_times_and_longer_windows_extend(process):
    # More than one block of draws.
    times = process.times_ns(9, 60 * S)
    assert np.array_equal(times, process.times_ns(9, 60 * S))
    assert np.array_equal(times[: len(process.times_ns(9, 17 * S))], process.times_ns(9, 17 * S))
    assert np.array_equal(times[:70_000], process.times_ns(9, 60 * S, 70_000))
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0
    assert times[-1] < 60 * S
    if process.process is not Process.CONSTANT:
        assert not np.array_equal(times[:1000], process.times_ns(10, 60 * S)[:1000])


def test_same_seed_same_columns():
    def make(seed, **more):
        return arrivals.make_open_loop(
            ArrivalProcess(50.0, Process.GAMMA, 2.0), 60 * S, CONTEXT, seed, **more
        )

    one, two, other = make(1), make(1), make(2)
    for name in (
        "arrival_ns",
        "session_id",
        "turn",
        "input_tokens",
        "output_tokens",
        "qos",
        "kind",
    ):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
        assert not np.array_equal(getattr(one, name)[:1000], getattr(other, name)[:1000]), name
    assert one.origin == two.origin
    few = make(1, max_requests=100)
    assert len(few) == 100
    assert np.array_equal(few.input_tokens, one.input_tokens[:100])


def test_what_is_asked_does_not_depend_on_when():
    poisson = arrivals.make_open_loop(ArrivalProcess(50.0), 60 * S, CONTEXT, 1, max_requests=1000)
    even = arrivals.make_open_loop(
        ArrivalProcess(9.0, Process.CONSTANT), 600 * S, CONTEXT, 1, max_requests=1000
    )
    for name in ("session_id", "turn", "input_tokens", "output_tokens", "qos", "kind"):
        assert np.array_equal(getattr(poisson, name), getattr(even, name)), name


def test_conversations_carry_their_history_and_go_on_together(many):
    history, turns = {}, {}
    for session, turn, asked, answered, kind in zip(
        *(
            c.tolist()
            for c in (many.session_id, many.turn, many.input_tokens, many.output_tokens, many.kind)
        ),
        strict=True,
    ):
        if session not in turns:
            assert session == len(turns)
        assert turn == turns.get(session, 0)
        new = asked - history.get(session, 0)
        template = TEMPLATES[list(TEMPLATES)[kind]]
        assert max(1, template[0] // 4) <= new <= template[1]
        assert max(1, template[2] // 4) <= answered <= template[3]
        turns[session], history[session] = turn + 1, asked + answered
        assert asked + answered <= CONTEXT
    assert max(turns.values()) <= 50
    assert many.origin["conversations"] == len(turns) == many.session_id.max() + 1
    assert many.origin["over_context"] == 0
    assert all(np.ptp(many.qos[many.session_id == s]) == 0 for s in range(50))


def test_no_more_conversations_go_on_than_were_asked_for():
    found = arrivals.make_open_loop(ArrivalProcess(100.0), 60 * S, CONTEXT, 3, live_conversations=5)
    spans = [
        np.flatnonzero(found.session_id == s)[[0, -1]] for s in range(found.origin["conversations"])
    ]
    live = np.zeros(len(found) + 1, dtype=np.int64)
    for begin, end in spans:
        live[begin] += 1
        live[end + 1] -= 1
    assert np.cumsum(live).max() == 5


def test_shares_and_continuations_are_those_of_the_users(many):
    first = many.turn == 0
    begun = int(first.sum())
    shares = np.diff([0, *(upto for _, upto in QOS_SHARES)]) / 1000
    for (qos, _), share in zip(QOS_SHARES, shares, strict=True):
        found = np.count_nonzero(many.qos[first] == enum_code(REQUESTS, "qos", qos)) / begun
        assert found == pytest.approx(share, abs=4 * (share * (1 - share) / begun) ** 0.5)
    for kind in TEMPLATES:
        found = np.count_nonzero(many.kind[first] == enum_code(REQUESTS, "kind", kind)) / begun
        assert found == pytest.approx(1 / 3, abs=4 * (2 / 9 / begun) ** 0.5)
    # A second turn always fits, so only chance decides: 0.8 of all but the conversations that still
    # go on.
    second = np.count_nonzero(many.turn == 1)
    assert second / begun == pytest.approx(0.8, abs=4 * (0.16 / begun) ** 0.5 + 64 / begun)


@pytest.mark.full
def test_turn_entries_hold_the_history_between_them(many):
    rows = rows_of(mlperf_of(None, decode_read_tokens=0), many, rows=1 << 18)
    sizes = np.zeros(len(many), dtype=np.int64)
    np.add.at(sizes, [row[6] for row in rows], [row[5] for row in rows])
    # Entries hold what prompts add; the answers between them make the rest.
    earlier = many.turn > 0
    assert np.array_equal(sizes[~earlier], many.input_tokens[~earlier])
    assert np.all(sizes[earlier] < many.input_tokens[earlier])


def test_more_users_than_first_made_change_nothing():
    # So small a context that nearly every request begins a conversation: far more than a quarter.
    found = arrivals.make_open_loop(ArrivalProcess(100.0), 60 * S, 1, 8, live_conversations=3)
    assert found.origin["conversations"] == len(found) == found.origin["over_context"]
    assert shows(found.notes, f"{len(found)} first turns … 1 tokens")
    few = arrivals.make_open_loop(
        ArrivalProcess(100.0), 60 * S, 1, 8, live_conversations=3, max_requests=10
    )
    assert np.array_equal(few.input_tokens, found.input_tokens[:10])


def test_all_is_told():
    day = ArrivalProcess(20.0, Process.DIURNAL, amplitude=0.25)
    found = arrivals.make_open_loop(day, 60 * S, CONTEXT, 1, live_conversations=8)
    assert found.origin == {
        "kind": "open-loop", "requests": len(found), "block_tokens": 0, "arrivals": "diurnal",
        "request_rate_per_s": 20.0, "burstiness_cv": None, "day_ns": 86_400 * S, "day_amplitude": 0.25,
        "expected_requests": day.expected(60 * S), "duration_ns": 60 * S, "max_requests": None,
        "live_conversations": 8, "conversations": int(found.session_id.max()) + 1, "over_context": 0,
        "generator": f"PCG64, numpy {np.__version__}",
    }  # fmt: skip
    told = " ".join(found.notes)
    assert shows(told, "86400 s: 20 … 25")
    assert shows(told, "8 conversations … 0.4 s")
    assert shows(told, "200 … 1000 … 50 turns … 131072 tokens")
    assert "whatever the system" in told
    assert "share a prefix" in told
    assert "whole microseconds" in told
    assert shows(told, f"PCG64 … {np.__version__}")
    even = arrivals.make_open_loop(ArrivalProcess(20.0, Process.CONSTANT), S, CONTEXT, 1)
    assert shows(even.notes[-1], "whole microseconds")
    assert even.origin["generator"] is None


@pytest.mark.parametrize(("fields", "message"), [
    ({"rate_per_s": 0.0}, "request rate(=0)"),
    ({"rate_per_s": float("nan")}, "> 0"),
    ({"rate_per_s": float("inf")}, "> 0"),
    ({"process": Process.GAMMA}, "burstiness"),
    ({"process": Process.GAMMA, "burstiness": 0.0}, "burstiness(=0) … 0.01 … 100"),
    ({"process": Process.GAMMA, "burstiness": float("nan")}, "0.01 … 100"),
    ({"burstiness": 2.0}, "burstiness(=2)"),
    ({"process": Process.DIURNAL, "amplitude": 1.5}, "amplitude(=1.5) … 0 … 1"),
    ({"process": Process.DIURNAL, "day_ns": 0}, "day(=0 ns)"),
])  # fmt: skip
def test_what_is_no_process_is_refused(fields, message):
    with pytest.raises(ConfigError, match=pattern(message)):
        ArrivalProcess(**{"rate_per_s": 20.0, **fields})


def test_too_much_and_too_little_are_refused():
    with pytest.raises(ConfigError, match="100000000 requests:"):
        ArrivalProcess(1e6).times_ns(1, 101 * S)
    assert len(ArrivalProcess(1e6).times_ns(1, 10**6 * S, 7)) == 7
    with pytest.raises(ConfigError, match="trace's clock"):
        ArrivalProcess(1.0).times_ns(1, 2**61 + 1, 10)
    with pytest.raises(ConfigError, match=r"1\.00 s.*0\.0001.*seed 1"):
        arrivals.make_open_loop(ArrivalProcess(0.0001), S, CONTEXT, 1)
    for live in (0, 10**7 + 1):
        with pytest.raises(ConfigError, match="live conversations"):
            arrivals.make_open_loop(ArrivalProcess(1.0), S, CONTEXT, 1, live_conversations=live)


OPEN = ["gen", "--request-rate", "20/s", "--model", "tiny-1b"]


@pytest.mark.parametrize("preset", ["mlperf", "lmcache-disk"])
def test_a_trace_of_an_open_loop_is_valid(monkeypatch, tmp_path, preset):
    out, requests = tmp_path / "t.parquet", tmp_path / "r.parquet"
    args = [
        *OPEN,
        "--arrivals",
        "gamma",
        "--burstiness",
        "3",
        "--duration",
        "20s",
        "--live-conversations",
        "16",
    ]
    small = ["--set", "tiers.gpu.capacity=1GiB", "--set", "tiers.cpu.capacity=2GiB"]
    assert (
        kvtrace(
            monkeypatch, *args, *small, "--preset", preset, "-o", out, "--requests-out", requests
        )
        == 0
    )
    assert kvtrace(monkeypatch, "validate", out) == 0
    meta = open_table(out).meta
    expected = arrivals.make_open_loop(
        ArrivalProcess(20.0, Process.GAMMA, 3.0), 20 * S, CONTEXT, 42, live_conversations=16
    )
    assert meta.source == expected.origin
    notes = [note for note in meta.notes if not note.startswith("ENGINE WOULD STALL")]
    assert notes[: len(expected.notes)] == list(expected.notes)
    assert meta.stats["requests"] == len(expected)
    assert meta.stats["input_tokens"] == expected.input_tokens.sum()
    nvme = meta.stats["tiers"][-1]
    assert nvme["written_bytes"] > 0
    assert nvme["hits"] > 0
    table = next(iter(open_table(requests).batches()))
    assert table.column("arrival_ns").to_pylist() == expected.arrival_ns.tolist()
    assert table.column("qos").to_pylist()[:5] == [
        list(REQUESTS.column("qos").values)[q] for q in expected.qos[:5]
    ]
    assert table.column("kind").to_pylist()[:5] == [
        list(REQUESTS.column("kind").values)[k] for k in expected.kind[:5]
    ]
    # The requests table, read back, makes the same.
    again = tmp_path / "again.parquet"
    args = ["gen", requests, "--model", "tiny-1b", "--duration", "20s", *small, "--preset", preset]
    assert kvtrace(monkeypatch, *args, "-o", again) == 0
    assert open_table(again).meta.stats == meta.stats


def written_seconds(monkeypatch, capsys, *args):
    """Return the requests of a run, and over how many seconds it says that its bytes were written."""
    capsys.readouterr()
    small = [
        "--set",
        "tiers.gpu.capacity=1GiB",
        "--set",
        "tiers.cpu.capacity=1GiB",
        "--model",
        "tiny-1b",
    ]
    assert kvtrace(monkeypatch, "gen", *args, *small, "--json", "--force") == 0
    found = json.loads(capsys.readouterr().out)
    (nvme,) = found["endurance"]
    return (
        found["stats"]["requests"],
        found["stats"]["tiers"][2]["written_bytes"] * 86_400 / nvme["written_bytes_per_day"],
    )


def test_the_bytes_of_a_day_are_over_what_was_simulated(monkeypatch, capsys, tmp_path):
    out, requests = tmp_path / "t.parquet", tmp_path / "r.parquet"
    args = ["--request-rate", "20/s", "--arrivals", "constant", "--duration", "10.01s", "-o", out]
    whole = written_seconds(monkeypatch, capsys, *args, "--requests-out", requests)
    assert whole == (201, pytest.approx(10.01))
    # What is cut ends with its last request.
    assert written_seconds(monkeypatch, capsys, *args, "--limit", "101") == (
        101,
        pytest.approx(5.0),
    )
    assert written_seconds(monkeypatch, capsys, requests, "-o", out) == (201, pytest.approx(10.0))
    assert written_seconds(monkeypatch, capsys, requests, "--duration", "4s", "-o", out) == (
        80,
        pytest.approx(4.0),
    )
    # Faster than they are served: over the 10 ms in which they arrive, as the costs of a plan.
    served, seconds = written_seconds(
        monkeypatch,
        capsys,
        requests,
        "--time-scale",
        "0.001",
        "--set",
        "prefill_ns_per_token=100000",
        "-o",
        out,
    )
    (last,) = read_table(out, TRACE)["ts_ns"].to_pylist()[-1:]
    assert last > 100 * 10**9
    assert (served, seconds) == (201, pytest.approx(0.01))


@pytest.mark.parametrize(("args", "message"), [
    (["--users", "4"], "--users 4 … --request-rate 20/s"),
    (
        ["m.jsonl", "--source", "mooncake"],
        "--request-rate … --source",
    ),
    (["m.jsonl", "--arrivals", "gamma"], "--arrivals gamma: … m.jsonl"),
    (["--arrivals", "uniform"], "--arrivals uniform:"),
    (["--arrivals", "gamma"], "burstiness"),
    (["--burstiness", "2"], "burstiness(=2)"),
    (["--day", "1h"], "--day 1h … --arrivals"),
    (["--amplitude", "0.5"], "--amplitude 0.5 … --arrivals diurnal"),
    (["--arrivals", "diurnal", "--amplitude", "2"], "amplitude(=2) … 0 … 1"),
    (["--live-conversations", "0"], "conversations(=0) … 1"),
    (["--cycles", "2"], "--cycles 2 … FILE"),
    (["--time-scale", "0.5"], "--time-scale 0.5 … FILE"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(monkeypatch, capsys, tmp_path, args, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [4]}\n'
    )
    assert kvtrace(monkeypatch, *OPEN, *args, "-o", "t.parquet") == 2
    assert shows(" ".join(capsys.readouterr().err.split()), message)
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize(
    "args", [["--arrivals", "poisson"], ["--live-conversations", "4"], ["--burstiness", "2"]]
)
def test_an_open_loop_needs_its_rate(monkeypatch, capsys, tmp_path, args):
    assert (
        kvtrace(monkeypatch, "gen", "--model", "tiny-1b", *args, "-o", tmp_path / "t.parquet") == 2
    )
    assert shows(" ".join(capsys.readouterr().err.split()), "--request-rate … 20/s")
