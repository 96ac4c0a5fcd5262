"""What a tier does in each second, by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from simulated import ONE_BYTE, TWO_HEADS, preset_of, requests_of

from kvtrace.core.statistics import Endurance
from kvtrace.curves.points import Meter
from kvtrace.sim.presets.tier import FleetSetting
from kvtrace.sim.simulation import Load, Simulation

S = 10**9


def test_seconds_by_hand():
    # Chunks of 4 bytes: two are written at 0 s; at 2.5 s both are read and one more is written;
    # nothing until 200 s.
    rows = [(0, 8, 0, [1, 2]), (2 * S + S // 2, 12, 0, [1, 2, 3]), (200 * S, 4, 0, [9])]
    simulation = Simulation(preset_of(None), ONE_BYTE, Load(requests=requests_of(rows)))
    meter = Meter(simulation)
    simulation.run(meter)
    span_ns = max(100 * S, simulation.last_io_ns)
    assert span_ns == 200 * S
    (rates,) = meter.rates(span_ns)
    assert rates.read_bytes_per_s.mean == pytest.approx(8 / 200)
    assert rates.write_bytes_per_s.mean == pytest.approx(16 / 200)
    assert rates.reads_per_s.mean == pytest.approx(2 / 200)
    assert rates.writes_per_s.mean == pytest.approx(4 / 200)
    # 201 seconds: two of them are more than 1 %, and the third largest is what all but 1 % stay
    # within.
    assert rates.write_bytes_per_s.p99_second == np.sort([8, 4, 4, *[0] * 198])[-3]
    assert rates.read_bytes_per_s.p99_second == 0


@pytest.mark.parametrize("fleet", [{}, {"nodes": 2, "prefill_nodes": 1, "link_bandwidth": "1MB"}])
def test_what_is_counted_without_rows_is_what_the_rows_say(fleet):
    """On two ranks, with evictions, over more seconds than there is room for at first.

    A fleet's link is no tier.
    """
    preset = msgspec.structs.replace(preset_of(200, 800), fleet=FleetSetting(**fleet))
    asked = [(i * S // 2, 12, 4, [i % 17, 100 + i % 5, 200 + i]) for i in range(200)]

    def simulation():
        return Simulation(preset, TWO_HEADS, Load(requests=requests_of(asked)), ranks=2, rows=64)

    kept, counted, flushes = simulation(), simulation(), []
    Meter(kept, keeps_rows=True)
    kept.run(
        lambda flush: flushes.append({name: column.copy() for name, column in flush.rows.items()})
    )
    meter = Meter(counted)
    counted.run(meter)
    rows = {name: np.concatenate([of[name] for of in flushes]) for name in flushes[0]}
    assert (rows["tier"].max() == 2) == bool(fleet)
    expected = np.zeros(counted.world.by_second.shape, np.int64).reshape(-1, 2, 2, 2)
    names = ("ts_ns", "op", "tier", "length_bytes")
    for ts_ns, op, tier, length in zip(*(rows[name].tolist() for name in names), strict=True):
        if op < 2 and tier < 2:
            expected[ts_ns // S, tier, op] += (length, 1)
    for simulated in (kept, counted):
        assert (simulated.world.by_second == expected.reshape(-1)).all()
    assert expected[64:].any()
    assert counted.stats() == kept.stats()
    assert meter.rates(100 * S)[0].reads_per_s.mean == pytest.approx(
        expected[:, 0, 0, 1].sum() / 100
    )


def test_too_few_seconds_tell_no_percentile():
    simulation = Simulation(
        preset_of(None), ONE_BYTE, Load(requests=requests_of([(98 * S, 8, 0, [1, 2])]))
    )
    meter = Meter(simulation)
    simulation.run(meter)
    (rates,) = meter.rates(98 * S)
    assert rates.write_bytes_per_s.p99_second is None
    assert rates.write_bytes_per_s.mean == pytest.approx(8 / 98)


def test_no_time_has_no_rate():
    simulation = Simulation(
        preset_of(None), ONE_BYTE, Load(requests=requests_of([(0, 8, 0, [1, 2])]))
    )
    meter = Meter(simulation)
    simulation.run(meter)
    assert meter.rates(simulation.last_io_ns)[0].write_bytes_per_s is None


@pytest.mark.parametrize(
    ("endurance", "years"),
    [
        (Endurance(writes_per_day=2, years=5), 2 * 5 / 4),
        (Endurance(total_bytes=365 * 4000), 1.0),
    ],
)
def test_life_by_hand(endurance, years):
    assert endurance.life_years(1000, 4000.0) == pytest.approx(years)
    assert endurance.life_years(1000, 0.0) is None


def test_a_share_of_an_unlimited_drive_is_not_known():
    assert Endurance(writes_per_day=2, years=5).life_years(None, 4000.0) is None
