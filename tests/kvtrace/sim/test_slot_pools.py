"""Slots of objects and of copies, and what tiers keep of them."""

from __future__ import annotations

import msgspec
from simulated import ONE_BYTE, preset_of, requests_of

from kvtrace.sim.presets.preset import Placement, Promotion
from kvtrace.sim.presets.tier import FleetSetting, Scope
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import Load, Simulation


def test_a_tier_that_never_evicts_keeps_no_order():
    # The second object is demoted after the first was used again. Where the endless tier below were
    # taken for one with a list, it would be looked for in links that no list has written.
    preset = preset_of(
        4,
        None,
        placement=Placement.WRITE_BACK,
        promotion=Promotion.NEVER,
        demotion_keeps_age=True,
    )
    memory, store = preset.tiers
    preset = msgspec.structs.replace(
        preset,
        tiers=(memory, msgspec.structs.replace(store, scope=Scope.FLEET)),
        fleet=FleetSetting(nodes=2, router=Router.ROUND_ROBIN),
    )
    rows = [(0, 4, 0, [0]), (10, 4, 0, [1]), (20, 4, 0, [0]), (30, 4, 0, [2])]
    simulation = Simulation(preset, ONE_BYTE, Load(requests=requests_of(rows)))
    simulation.world.links["older"] = 0
    simulation.run(lambda _flush: None)
    assert [tier.live_bytes for tier in simulation.stats().tiers] == [8, 4]
