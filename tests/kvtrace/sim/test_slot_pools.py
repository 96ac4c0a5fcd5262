"""In a fleet, slots of objects and slots of copies take ranges, and so pages, of their own.

An object and one of its copies take one slot, where nothing but LRU looks at both.
"""

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

NODES = 4
SETTINGS = [f"fleet.nodes={NODES}", "tiers.gpu.capacity=96MiB", "tiers.cpu.capacity=256MiB"]
OBJECTS, COPIES = 0, 1


def simulated_fleet(*more_settings, shares_slots, events=()):
    """Return a simulation of four nodes, where requests wait for GPU memory, and its rows."""
    scenario = kt.build_scenario(
        preset="vllm-fs",
        settings=[*SETTINGS, *more_settings],
        model="tiny-1b",
        gpu="h100",
        users=12,
        duration="6s",
        seed=1,
        events=events,
    )
    simulation = Simulation(scenario.preset, scenario.model, scenario.load)
    assert simulation.world.knobs.shares_slots
    simulation.world.knobs.shares_slots = shares_slots
    flushes = []
    simulation.run(flushes.append)
    return simulation, flushes


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
    world = simulated_fleet(shares_slots=False)[0].world
    by_slot = {
        "links": world.links.reshape(-1, world.knobs.linked_tiers),
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


def live_copies(world):
    """Return the objects of all live copies: of slots of their own, and of objects' own slots."""
    slots, copies = world.slots, world.fleet.copies
    with_slot = slots["home"][(slots["place"] > 0) & (slots["live"] != 0)]
    in_own_slot = np.flatnonzero((copies["own_place"] > 0) & (copies["own_live"] != 0))
    return (slots["object"][of].tolist() for of in (with_slot, in_own_slot))


def test_a_lone_copy_takes_no_slot_beside_its_objects():
    router = "fleet.router=session"
    apart, none = live_copies(simulated_fleet(router, shares_slots=False)[0].world)
    with_slot, in_own_slot = live_copies(simulated_fleet(router, shares_slots=True)[0].world)
    assert not none
    assert sorted(apart) == sorted(with_slot + in_own_slot)
    assert len(in_own_slot) > 10 * len(with_slot)


@pytest.mark.parametrize(
    ("settings", "events"),
    [
        ([], []),
        (["fleet.router=random"], ["2s:node-lost:1", "4s:node-joined:1"]),
        (["tiers.nvme.scope=node", "fleet.router=prefix"], ["1s:rolling-restart:1s"]),
        (["tiers.nvme.scope=rack", "fleet.rack_nodes=2"], ["2s:rack-lost:0", "4s:rack-joined:0"]),
        (["fleet.prefill_nodes=2", "tiers.nvme.capacity=1GiB"], ["3s:engine-restart:3:2s"]),
    ],
)
def test_sharing_slots_changes_no_row(settings, events):
    apart, shared = (
        simulated_fleet(*settings, shares_slots=shares, events=events) for shares in (False, True)
    )
    assert apart[0].stats() == shared[0].stats()
    assert len(apart[1]) == len(shared[1])
    for one, other in zip(apart[1], shared[1], strict=True):
        for name, column in one.rows.items():
            np.testing.assert_array_equal(column, other.rows[name], name)
        np.testing.assert_array_equal(one.object_bytes, other.object_bytes)


@pytest.mark.parametrize("shares_slots", [False, True])
def test_duplicates_are_bytes_beyond_one_copy_of_each_object(monkeypatch, shares_slots):
    monkeypatch.setattr(fleet, "_SLOTS_AT_ONCE", 7)
    world = simulated_fleet("fleet.router=random", shares_slots=shares_slots)[0].world
    homes_and_places = [
        (int(slot["home"]), int(slot["place"])) for slot in world.slots if slot["live"]
    ]
    homes_and_places += [
        (home, int(copies["own_place"]))
        for home, copies in enumerate(world.fleet.copies)
        if copies["own_live"]
    ]
    copied = [home for home, place in homes_and_places if 0 < place <= NODES]
    sizes = world.slots["size"]
    expected = sum(int(sizes[home]) for home in copied) - sum(int(sizes[h]) for h in set(copied))
    assert fleet._duplicate_bytes(world.slots, world.fleet.copies, NODES) == expected > 0


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
