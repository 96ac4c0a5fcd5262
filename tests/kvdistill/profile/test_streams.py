"""Known processes come back as the models they were drawn from; others than these shall, too."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvdistill_rows import MS, US, bursts, closed

from kvdistill.profile.profile import Law, Pacing
from kvdistill.profile.sources import view_ios
from kvdistill.profile.streams import (
    _operations,
    _split_directions,
    _Window,
    cut_phases,
    fit_loop,
    fit_places,
    place_probabilities,
)
from kvdistill.queries.database import connect


def served(came, service):
    """Return when each arrival is done, with as many servers as are needed."""
    return (came + service).astype(np.float64)


@pytest.mark.parametrize("depth", [1, 2, 8, 64])
def test_a_closed_loop_is_told_by_its_depth(depth):
    rng = np.random.default_rng(1)
    came, done = closed(4000, depth, lambda _i: rng.exponential(500 * US), 10 * US, rng)
    loop = fit_loop(came, done)
    assert (loop.pace, loop.depth, loop.think_ns) == (Pacing.CLOSED, depth, None)


def test_a_pausing_closed_loop_has_its_pause_and_its_period():
    rng = np.random.default_rng(2)
    parts, start = [], 0
    for _burst in range(100):
        came, done = closed(16, 4, lambda _i: rng.exponential(300 * US), 5 * US, rng)
        parts.append((came + start, done + start))
        start = int((done + start).max()) + 20 * MS
    came, done = (np.concatenate(x) for x in zip(*parts, strict=True))
    loop = fit_loop(came, done)
    assert (loop.pace, loop.depth, loop.think_ops) == (Pacing.CLOSED, 4, 16)
    assert loop.think_ns == pytest.approx(20 * MS, rel=0.01)


def test_a_few_even_pauses_are_a_setting_of_the_program():
    loop = fit_loop(*bursts([300] * 18, [128] * 18))
    assert (loop.pace, loop.depth, loop.think_ops) == (Pacing.CLOSED, 16, 128)
    assert loop.think_ns == pytest.approx(300 * MS, rel=0.01)


def test_a_loop_whose_pauses_no_setting_explains_keeps_its_rate():
    """Closed without pauses it would ask for some hundred times what the source did."""
    rng = np.random.default_rng(6)
    loop = fit_loop(*bursts(rng.integers(20, 2000, 30), rng.integers(30, 600, 30)))
    assert (loop.pace, loop.think_ns) == (Pacing.BURSTS, None)


def test_what_is_left_of_a_burst_waits_with_the_next():
    """10 come 100 ns after 20, ten times.

    By then a drive of 0.05 a ns has done 5 of those, of 1 a ns all.
    """
    came = np.concatenate(
        [np.repeat(np.array([0, 100]) + at * 1_000_000, (20, 10)) for at in range(10)]
    )
    # An operation waits with (20 x 20 + 10 x (10 + 2 x 15)) / 30 = 26.7: 11 bursts of 28, of 26.7
    # each with a rest.
    assert fit_loop(came, None, 0.05).burst_ops == 28
    # (20 x 20 + 10 x 10) / 30 = 16.7: 18 bursts.
    assert fit_loop(came, None, 1.0).burst_ops == fit_loop(came, None).burst_ops == 17


def test_open_loops_are_even_or_by_chance_or_neither():
    rng = np.random.default_rng(3)
    service = rng.exponential(800 * US, 4000)
    even = np.cumsum(rng.normal(5 * MS, 50 * US, 4000)).astype(np.int64)
    assert fit_loop(even, served(even, service)).pace is Pacing.EVEN
    # Ticks that come late, but are caught up with.
    late = np.sort(np.arange(4000) * 5 * MS + rng.exponential(2 * MS, 4000)).astype(np.int64)
    assert fit_loop(late, served(late, service)).pace is Pacing.EVEN
    chance = np.cumsum(rng.exponential(2 * MS, 4000)).astype(np.int64)
    assert fit_loop(chance, served(chance, service)).pace is Pacing.POISSON
    heavy = np.cumsum(rng.pareto(1.2, 4000) * MS).astype(np.int64)
    assert fit_loop(heavy, served(heavy, service)).pace is Pacing.BURSTS
    # Without completions the clock is all there is.
    assert fit_loop(chance, None).depth is None


def test_a_stall_of_the_device_is_no_phase_and_a_change_is():
    rng = np.random.default_rng(4)
    steady = rng.poisson(50, (1, 240))
    assert len(cut_phases(steady, has_rate=True)) == 1
    stalled = np.full((1, 240), 50)
    stalled[0, 100:106], stalled[0, 106:112] = 0, 100
    assert cut_phases(stalled, has_rate=True) == [(0, 240)]
    turned = np.zeros((2, 240), dtype=np.int64)
    turned[0, :90], turned[1, 90:] = 40, 60
    assert cut_phases(turned, has_rate=False) == [(0, 90), (90, 240)]
    # A closed loop is as fast as the device; an open one has a rate.
    faster = np.concatenate([np.full(120, 40), np.full(120, 80)])[None, :]
    assert len(cut_phases(faster, has_rate=False)) == 1
    assert cut_phases(faster, has_rate=True) == [(0, 120), (120, 240)]


def test_sequential_runs_are_told_with_their_share():
    rng = np.random.default_rng(5)
    length = np.full(5000, 131072)
    along = np.arange(5000) * 131072
    assert fit_places(along, length).sequential_share == 1
    jumps = rng.integers(0, 1 << 20, 5000) * 131072
    mixed, at = np.empty(5000, dtype=np.int64), 0
    for i in range(5000):
        at = int(jumps[i]) if rng.random() < 0.4 else at + 131072
        mixed[i] = at
    found = fit_places(mixed, length)
    assert found.sequential_share == pytest.approx(0.6, abs=0.02)
    assert found.run_ops is None
    eights = (jumps[:625, None] + np.arange(8) * 131072).reshape(-1)
    assert fit_places(eights, length).run_ops == 8


@pytest.mark.parametrize("law", ["uniform", "once", "zipf", "pareto", "zones"])
def test_laws_of_places_come_back(law):
    rng = np.random.default_rng(6)
    places, n = 20_000, 40_000
    if law == "once":
        drawn = np.concatenate([rng.permutation(places), rng.permutation(places)])
    else:
        shares = {
            "uniform": np.full(places, 1 / places),
            "zipf": place_probabilities(Law.ZIPF, 0.9, places),
            "pareto": place_probabilities(Law.PARETO, 0.2, places),
            # Two kinds of places, far apart: no law of fio.
            "zones": np.where(np.arange(places) < 200, 0.7 / 200, 0.3 / (places - 200)),
        }[law]
        drawn = rng.choice(places, n, p=shares)
    found = fit_places(drawn * 16384, np.full(n, 16384))
    assert found.law == law
    assert found.align_bytes == 16384
    if law == "zipf":
        assert found.theta == pytest.approx(0.9, abs=0.05)
    if law == "pareto":
        assert found.theta == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("theta", [0.3, 0.9, 1.2])
def test_two_places_have_a_law(theta):
    # The second of two ranks has the rest, so that fio needs no formula for later ones.
    hot = 1 / (1 + 0.5**theta)
    assert place_probabilities(Law.ZIPF, theta, 2) == pytest.approx([hot, 1 - hot])
    hot_first = np.sort(np.random.default_rng(3).choice(2, 20_000, p=[hot, 1 - hot]))
    found = fit_places(hot_first * 16384, np.full(20_000, 16384))
    assert (found.law, found.span_bytes) == (Law.ZIPF, 2 * 16384)
    assert found.theta == pytest.approx(theta, abs=0.1)


def test_a_closed_loop_is_closed_though_some_requests_are_split():
    """Few arrive as two, and for a moment nine are in flight where the program keeps eight.

    Of 4 arrivals in 1,000.
    """
    rng = np.random.default_rng(1)
    came, done = closed(8000, 8, lambda _i: rng.exponential(500 * US), 10 * US, rng)
    twice = np.arange(0, len(came), 1600)
    came, done = np.insert(came, twice, came[twice]), np.insert(done, twice, done[twice])
    loop = fit_loop(came, done)
    assert (loop.pace, loop.depth) == (Pacing.CLOSED, 8)


@pytest.mark.parametrize(("shares_them", "names"), [(True, ["mixed"]), (False, ["read", "write"])])
def test_reads_and_writes_are_one_stream_if_hot_places_agree(shares_them, names):
    """Two sections of a fio job have hot places of their own.

    One process's must stay one section.
    """
    rng, places, n = np.random.default_rng(9), 4096, 20_000
    law = place_probabilities(Law.PARETO, 0.2, places)
    place, is_write = rng.choice(places, n, p=law), rng.random(n) < 0.4
    if not shares_them:
        place = np.where(is_write, (place + places // 2 + 1) % places, place)
    times = np.cumsum(rng.exponential(MS, n)).astype(np.int64)
    ops = {
        "op": is_write.astype(np.int8), "ts_ns": times, "address": place * 16384, "io_bytes": np.full(n, 16384),
    }  # fmt: skip
    found = _split_directions(ops, served(times, rng.exponential(100 * US, n)))
    assert [name for name, _which, _loop in found] == names
    assert {loop.pace for _name, _which, loop in found} == {Pacing.POISSON}


def test_operations_of_one_instant_are_taken_in_their_order(tmp_path):
    n = 50_000
    columns = {
        "ts_ns": np.zeros(n, np.int64),
        "address": 4096 * np.arange(n),
        "io_bytes": np.full(n, 4096),
    }
    zeros = ("completed_ns", "process", "request_id", "stage")
    others = {"op": np.zeros(n, np.int8), **dict.fromkeys(zeros, columns["ts_ns"])}
    pq.write_table(pa.table(columns | others), tmp_path / "ios.parquet", row_group_size=1000)
    with connect(tmp_path) as db:
        view_ios(db, tmp_path / "ios.parquet")
        assert (np.diff(_operations(db, _Window(None, 0, 0))["address"]) == 4096).all()
