"""Knobs of tiers that were each checked alone, set together.

What the checks let through is as plain Python says.
"""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from simulated import ONE_BYTE, TWO_HEADS, simulate
from test_oracle import ADMISSIONS, SEMANTICS, presets, request_lists, waiting
from test_queues import QUEUES

from kvtrace.core.errors import ConfigError
from kvtrace.llm.shape import bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Match, Placement, check
from kvtrace.sim.presets.tier import Recency
from kvtrace.sim.simulation import Load

THROUGH = [semantics for semantics in SEMANTICS if semantics[2] is Placement.WRITE_THROUGH]
WAYS = [
    {"staging": True}, {"staging": True, "stores_backwards": True, "loads_backwards": True}, {"whole_offers": True},
    {"evict_every": "4ns"}, {"evict_every": "30ns", "evict_share": 0.5}, *ADMISSIONS[1:],
]  # fmt: skip
OF_A_TIER = [
    {"request_writes": 1}, {"request_reads": 2}, {"looks_past_miss": True}, {"loads_backwards": True},
    {"loads_whole": True},
    {"policy": Policy.FIFO}, {"policy": Policy.TTL, "ttl": "15ns"}, {"low_watermark": 0.25, "high_watermark": 0.8},
    {"recency": Recency.TAIL_FIRST},
]  # fmt: skip
OF_THE_PRESET = [
    {"skip_held": True}, {"offers_hits": True}, {"offer_tokens": 4}, {"match": Match.PREFIX_BY_TIER},
]  # fmt: skip


def is_let_through(preset):
    """Return whether the checks take `preset`, as if it made room each so many ms, not ns."""
    tiers = (msgspec.structs.replace(t, evict_every=t.evict_every and "1ms") for t in preset.tiers)
    try:
        check(msgspec.structs.replace(preset, tiers=tuple(tiers)), "test")
    except ConfigError:
        return False
    return True


def with_knobs(preset, place, knobs):
    """Return `preset` with `knobs` of its tier `place`, or of itself if that is -1.

    As it was if that is refused.
    """
    if place >= 0:
        tiers = list(preset.tiers)
        tiers[place] = msgspec.structs.replace(tiers[place], **knobs)
        knobs = {"tiers": tuple(tiers)}
    other = msgspec.structs.replace(preset, **knobs)
    return other if is_let_through(other) else preset


@st.composite
def mixed_presets(draw):
    """Return a preset of two tiers or more with two ways to store or to make room, and more knobs
    that go with them.
    """
    plain = presets(draw(st.sampled_from(THROUGH))).filter(lambda preset: len(preset.tiers) > 1)
    preset = draw(plain)
    last = len(preset.tiers) - 1
    places = st.integers(0, last)
    queues = st.tuples(st.just(last), st.sampled_from(QUEUES))
    of_a_tier = st.tuples(places, st.sampled_from(OF_A_TIER))
    of_the_preset = st.tuples(st.just(-1), st.sampled_from(OF_THE_PRESET))
    ways = draw(st.lists(queues | st.tuples(places, st.sampled_from(WAYS)), min_size=2, max_size=3))
    for place, knobs in [*ways, *draw(st.lists(of_a_tier | of_the_preset, max_size=4))]:
        preset = with_knobs(preset, place, knobs)
    return preset


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_what_the_checks_let_through_is_what_plain_python_says(data):
    preset, requests = data.draw(mixed_presets()), data.draw(request_lists())
    model, ranks = data.draw(st.sampled_from([(ONE_BYTE, 1), (TWO_HEADS, 2)]))
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    load = Load(requests=requests, waits=data.draw(waiting(requests)))
    oracle = Oracle(preset, requests, per_rank * stored, stored, waits=load.waits)
    expected = oracle.run()
    simulation, rows, _, _ = simulate(preset, load, model, ranks=ranks)
    assert rows == expected
    assert sum(t.hits for t in simulation.stats().tiers) == oracle.hits
    assert simulate(preset, load, model, ranks=ranks, rows=1)[1] == rows
