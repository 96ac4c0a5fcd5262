"""What a tier does in each second, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import ONE_BYTE, preset_of, requests_of

from kvtrace.core.statistics import Endurance
from kvtrace.curves.points import Meter
from kvtrace.sim.simulation import Load, Simulation

S = 10**9


def test_seconds_by_hand():
    # Chunks of 4 bytes: two are written at 0 s; at 2.5 s both are read and one more is written; nothing until 200 s.
    rows = [(0, 8, 0, [1, 2]), (2 * S + S // 2, 12, 0, [1, 2, 3]), (200 * S, 4, 0, [9])]
    simulation = Simulation(preset_of(None), ONE_BYTE, Load(requests=requests_of(rows)))
    meter = Meter(simulation)
    simulation.run(meter)
    span_ns = meter.span_ns(100 * S)
    assert span_ns == 200 * S
    (rates,) = meter.rates(span_ns)
    assert rates.read_bytes_per_s.mean == pytest.approx(8 / 200)
    assert rates.write_bytes_per_s.mean == pytest.approx(16 / 200)
    assert rates.reads_per_s.mean == pytest.approx(2 / 200)
    assert rates.writes_per_s.mean == pytest.approx(4 / 200)
    # 201 seconds: two of them are more than 1 %, and the third largest is what all but 1 % stay within.
    assert rates.write_bytes_per_s.p99_second == np.sort([8, 4, 4, *[0] * 198])[-3]
    assert rates.read_bytes_per_s.p99_second == 0


def test_too_few_seconds_tell_no_percentile():
    simulation = Simulation(preset_of(None), ONE_BYTE, Load(requests=requests_of([(98 * S, 8, 0, [1, 2])])))
    meter = Meter(simulation)
    simulation.run(meter)
    (rates,) = meter.rates(98 * S)
    assert rates.write_bytes_per_s.p99_second is None
    assert rates.write_bytes_per_s.mean == pytest.approx(8 / 98)


def test_no_time_has_no_rate():
    simulation = Simulation(preset_of(None), ONE_BYTE, Load(requests=requests_of([(0, 8, 0, [1, 2])])))
    meter = Meter(simulation)
    simulation.run(meter)
    assert meter.rates(meter.span_ns(None))[0].write_bytes_per_s is None


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
