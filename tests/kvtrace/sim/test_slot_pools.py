"""In a fleet, slots of objects and slots of copies take ranges, and so pages, of their own."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from simulated import ONE_BYTE, preset_of, requests_of

import kvtrace as kt
from kvtrace.sim import fleet
from kvtrace.sim.presets.preset import Placement, Promotion
from kvtrace.sim.presets.tier import FleetSetting, Scope
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import Load, Simulation

SETTINGS = ["fleet.nodes=4", "tiers.gpu.capacity=96MiB", "tiers.cpu.capacity=256MiB"]
OBJECTS, COPIES = 0, 1


def simulated_fleet():
    """Return a simulation of four nodes, where requests wait for GPU memory."""
    scenario = kt.build_scenario(
        preset="vllm-fs",
        settings=SETTINGS,
        model="tiny-1b",
        gpu="h100",
        users=12,
        duration="10s",
        seed=1,
    )
    simulation = Simulation(scenario.preset, scenario.model, scenario.load)
    simulation.run(lambda _flush: None)
    return simulation


@pytest.fixture
def grown(monkeypatch):
    """Note the ranges that each pool of slots gets while a simulation runs."""
    ranges = {OBJECTS: [], COPIES: []}
    grow = Simulation._grow_slots

    def note(self, pool, need):
        first = len(self.world.slots)
        grow(self, pool, need)
        ranges[pool].append(slice(first, len(self.world.slots)))

    monkeypatch.setattr(Simulation, "_grow_slots", note)
    return ranges


def test_what_lists_say_of_objects_takes_no_memory(grown):
    simulation = simulated_fleet()
    world, tiers = simulation.world, simulation.world.knobs.linked_tiers
    by_slot = {
        "links": world.links.reshape(-1, tiers),
        "pins": world.pins,
        "idle_links": world.idle_links,
        "gpu_uses": world.gpu_uses,
        "copy_links": world.fleet.copy_links,
    }
    assert grown[OBJECTS]
    for name, table in by_slot.items():
        assert len(table) == len(world.slots), name
        for objects in grown[OBJECTS]:
            assert not table[objects].view(np.uint8).any(), name
        assert any(table[copies].view(np.uint8).any() for copies in grown[COPIES]), name
    for copies in grown[COPIES]:
        assert not world.fleet.copies[copies].view(np.uint8).any()
        used = world.slots["live"][copies] != 0
        assert (world.slots["place"][copies][used] > 0).all()


def test_duplicates_are_bytes_beyond_one_copy_of_each_object(monkeypatch):
    monkeypatch.setattr(fleet, "_SLOTS_AT_ONCE", 7)
    simulation = simulated_fleet()
    copies_of: dict[int, list[int]] = {}
    for slot in simulation.world.slots:
        if slot["live"] and 0 < slot["place"] <= 4:
            copies_of.setdefault(int(slot["home"]), []).append(int(slot["size"]))
    expected = sum(sum(sizes[1:]) for sizes in copies_of.values())
    assert fleet._duplicate_bytes(simulation.world.slots, 4) == expected > 0


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
