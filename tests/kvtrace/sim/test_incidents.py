"""Nodes lost and joined, drives replaced, a store out of reach: row by row as plain Python says them, and by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from outages import settled
from simulated import ONE_BYTE, TWO_HEADS, brief, preset_of, requests_of, simulate, simulate_fleet
from test_fleet_oracle import compare_stats, fleets, in_sessions
from test_oracle import SEMANTICS, conversations, presets, request_lists, rich_presets, staged_presets, waiting
from test_routers import fleet_of

from kvtrace.core.errors import ConfigError
from kvtrace.model.shape import bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.fleet.incidents import Incident, Kind, parse, steps_of
from kvtrace.sim.fleet.setting import Scope
from kvtrace.sim.routers.routers import Router
from kvtrace.sim.simulation import Load


@st.composite
def incidents_of(draw, preset):
    """Return what may happen to the fleet of `preset`: any of it, if it can."""
    fleet, tiers, times = preset.fleet, preset.tiers, st.sampled_from([0, 1, 2, 3, 5, 8, 10, 20, 41, 45, 60, 90])
    nodes, racks = st.integers(0, fleet.nodes - 1), st.integers(0, fleet.instances(Scope.RACK) - 1)
    own = [tier.name for tier in tiers if tier.scope is not Scope.FLEET]
    kinds = [k for k in Kind if k is not Kind.DRIVE_REPLACED or own]
    found = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)):
        at, place = draw(times), draw(racks if kind in (Kind.RACK_LOST, Kind.RACK_JOINED) else nodes)
        lasts = draw(st.sampled_from([1, 4, 30]))
        tier = draw(st.sampled_from(own)) if kind is Kind.DRIVE_REPLACED else None
        if kind in (Kind.NODE_LOST, Kind.RACK_LOST) and draw(st.booleans()):
            back = Kind.NODE_JOINED if kind is Kind.NODE_LOST else Kind.RACK_JOINED
            found.append(Incident("back", at + lasts, back, place))
        lasts_ns = lasts if kind in (Kind.STORE_UNREACHABLE, Kind.ROLLING_RESTART) else 0
        found.append(Incident(str(kind), at, kind, place, lasts_ns, tier, draw(st.integers(1, 2))))
    return tuple(found)


def draw_incidents(draw, preset):
    """Return incidents that can be, or fewer."""
    found = draw(incidents_of(preset))
    while found:
        try:
            steps_of(found, preset.fleet, preset.tiers)
        except ConfigError:
            found = found[1:]
        else:
            return found
    return ()


def check(preset, load, model=ONE_BYTE, ranks=1, rows=4096):
    """Compare what happens with what plain Python says."""
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    oracle = Oracle(
        preset, load.requests, per_rank * stored, stored, waits=load.waits, seed=load.seed, incidents=load.incidents
    )
    expected = oracle.run()
    if preset.fleet.nodes > 1:
        simulation, found, nodes = simulate_fleet(preset, load, model, ranks=ranks, rows=rows)
        compare_stats(simulation.stats(), oracle)
    else:
        simulation, found, _, _ = simulate(preset, load, model, ranks=ranks, rows=rows)
        nodes = [0] * len(found)
    assert settled(found, nodes) == settled(expected, oracle.row_nodes)
    stats = simulation.stats()
    assert stats["requests"] == len(load.requests)
    assert stats["lookups"] == oracle.lookups
    for number, tier in enumerate(stats["tiers"]):
        instances = {id(node.tiers[number]): node.tiers[number] for node in oracle.nodes}.values()
        live = sum(sum(instance.objects.values()) for instance in instances)
        if not preset.tiers[number].bucket_objects:
            assert tier["live_bytes"] == tier["written_bytes"] - tier["deleted_bytes"] == live


@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_row_of_a_fleet_to_which_something_happens(semantics, data):
    preset = data.draw(fleets(data.draw(presets(semantics))))
    requests = data.draw(request_lists())
    if semantics[0].value == "chunk":
        requests = in_sessions(data.draw, requests)
    model, ranks = data.draw(st.sampled_from([(ONE_BYTE, 1), (TWO_HEADS, 2)]))
    load = Load(
        requests=requests, waits=data.draw(waiting(requests)), seed=data.draw(st.integers(0, 3)),
        incidents=draw_incidents(data.draw, preset),
    )  # fmt: skip
    check(preset, load, model, ranks)
    check(preset, load, model, ranks, rows=1)


@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_policies_and_offers(semantics, data):
    rich = data.draw(rich_presets(semantics))
    has_whole = any(tier.whole_offers for tier in rich.tiers)
    preset = data.draw(fleets(rich, policies=not has_whole))
    check(preset, Load(requests=data.draw(request_lists()), incidents=draw_incidents(data.draw, preset)), TWO_HEADS, 2)


@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_one_node_alone(semantics, data):
    preset = data.draw(rich_presets(semantics))
    check(preset, Load(requests=data.draw(request_lists()), incidents=draw_incidents(data.draw, preset)))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_staging(data):
    preset = data.draw(staged_presets())
    if data.draw(st.booleans()):
        preset = data.draw(fleets(preset))
    check(preset, Load(requests=data.draw(conversations()), incidents=draw_incidents(data.draw, preset)))
