"""Two nodes, worked by hand for every router; a router of one's own; what a fleet refuses."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from phrases import shows
from simulated import brief, kvtrace, preset_of, requests_of, simulate_fleet

from kvtrace.core.errors import ConfigError
from kvtrace.core.simulation_stats import FleetImbalance
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.presets.tier import FleetSetting, Scope
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import Load, Simulation


def fleet_of(router, *scopes, nodes=2, **fields):
    """Return a fleet whose tiers hold 100 bytes each, one a scope.

    A token to compute takes 1 ns.
    """
    preset = preset_of(*(100 for _ in scopes), prefill_ns_per_token=1, prefill_in_turn=False)
    tiers = tuple(
        msgspec.structs.replace(t, scope=s) for t, s in zip(preset.tiers, scopes, strict=True)
    )
    fleet = FleetSetting(nodes=nodes, router=router, **fields)
    return msgspec.structs.replace(preset, tiers=tiers, fleet=fleet)


def nodes_of(preset, rows, sessions=None, seed=0):
    """Return the node that served each request of (arrival_ns, input, output, ids)."""
    requests = requests_of(rows)
    if sessions is not None:
        requests = replace(requests, session_id=np.array(sessions))
    _, found, nodes = simulate_fleet(preset, Load(requests=requests, seed=seed))
    return [
        {n for row, n in zip(found, nodes, strict=True) if row[6] == request}
        for request in range(len(rows))
    ]


def apart(count, every=1000):
    """Return requests that have nothing in common, and do not meet."""
    return [(i * every, 4, 0, [i]) for i in range(count)]


def test_round_robin_takes_turns():
    assert nodes_of(fleet_of(Router.ROUND_ROBIN, Scope.NODE), apart(5)) == [{0}, {1}, {0}, {1}, {0}]


def test_random_goes_anywhere_and_the_same_way_again():
    preset = fleet_of(Router.RANDOM, Scope.NODE)
    found = nodes_of(preset, apart(40))
    assert found == nodes_of(preset, apart(40)) != nodes_of(preset, apart(40), seed=1)
    assert 10 < sum(node == {0} for node in found) < 30


def test_least_outstanding_breaks_ties_by_past_requests():
    # Both are idle: node 0 as the first. It computes until 40: the next goes to node 1, which is
    # done at 14.
    rows = [
        (0, 40, 0, list(range(10))),
        (10, 4, 0, [20]),
        (20, 4, 0, [21]),
        (30, 4, 0, [22]),
        (100, 4, 0, [23]),
    ]
    # At 100 both are idle, and node 0 has served one, node 1 three.
    assert nodes_of(fleet_of(Router.LEAST_OUTSTANDING, Scope.NODE), rows) == [
        {0},
        {1},
        {1},
        {1},
        {0},
    ]


def test_a_session_stays_where_it_is():
    preset, sessions = fleet_of(Router.SESSION, Scope.NODE, nodes=4), [0, 1, 2, 3, 4, 5, 6, 7] * 3
    found = nodes_of(preset, apart(24), sessions)
    assert found[:8] == found[8:16] == found[16:]
    assert len({*map(tuple, found)}) > 1
    # One node less moves only what was on it.
    fewer = nodes_of(fleet_of(Router.SESSION, Scope.NODE, nodes=3), apart(24), sessions)
    assert all(one == other for one, other in zip(found, fewer, strict=True) if one != {3})


def test_prefix_weighs_what_is_cached_against_work():
    prompt = list(range(10))
    rows = [
        (0, 40, 0, prompt),  # all tokens new in either: node 0, the first
        (
            10,
            40,
            0,
            prompt,
        ),  # node 0 computes it still: 40 + 40 to compute and 40 active, against 40 on node 1
        (60, 40, 0, prompt),  # both are idle and have it, and served as many: node 0
        (200, 44, 0, [*prompt, 50]),  # as before: node 1 has served fewer
        (300, 48, 0, [*prompt, 50, 51]),  # node 1 has 44 of 48, node 0 40 of 48
    ]
    assert nodes_of(fleet_of(Router.PREFIX, Scope.NODE), rows) == [{0}, {1}, {0}, {1}, {1}]
    # If computing counts for nothing, only what is active does: 40 on node 0.
    light = nodes_of(fleet_of(Router.PREFIX, Scope.NODE, prefill_weight=0.0), rows[:2])
    assert light == [{0}, {1}]
    # One prompt each, and then one that node 0 takes as the first of two alike: from then on it
    # costs nothing there.
    rows = [(0, 4, 0, [0]), (1, 4, 0, [1]), (60, 40, 0, prompt), (101, 40, 0, prompt)]
    assert nodes_of(fleet_of(Router.PREFIX, Scope.NODE), rows)[2:] == [{0}, {0}]


def test_a_prefix_in_a_shared_tier_is_no_nodes_own():
    # What all nodes share says nothing of where to go: node 1 has served fewer.
    prompt = list(range(5))
    rows = [(0, 20, 0, prompt), (100, 20, 0, prompt)]
    assert nodes_of(fleet_of(Router.PREFIX, Scope.FLEET), rows) == [{0}, {1}]
    assert nodes_of(fleet_of(Router.PREFIX, Scope.NODE, Scope.FLEET), rows) == [{0}, {0}]


def test_prefix_score_adds_up_shares():
    prompt = list(range(10))
    # At 50 node 0 has all of the prompt: 2 and 0.5 for its load, against 0.5. At 60 nobody has any
    # of it.
    rows = [(0, 40, 0, prompt), (50, 40, 0, prompt), (60, 40, 0, list(range(20, 30)))]
    assert nodes_of(fleet_of(Router.PREFIX_SCORE, Scope.NODE), rows) == [{0}, {0}, {1}]
    # At 50 node 0 has half of it: 0.2 + 0.5 against 0.5. At 60 that one waits there until 90: 0.4 +
    # 0 against 0.5.
    rows = [(0, 40, 0, prompt), (50, 80, 0, [*prompt, *range(50, 60)]), (60, 40, 0, prompt)]
    full = fleet_of(Router.PREFIX_SCORE, Scope.NODE, load_threshold=1, prefix_weight=0.4)
    assert nodes_of(full, rows) == [{0}, {0}, {1}]
    # One of 128 takes away only 1/256.
    assert nodes_of(fleet_of(Router.PREFIX_SCORE, Scope.NODE, prefix_weight=0.4), rows) == [
        {0},
        {0},
        {0},
    ]


def test_two_nodes_with_a_shared_tier_by_hand():
    requests = requests_of([(0, 8, 0, [0, 1]), (10, 8, 0, [0, 1]), (20, 8, 0, [0, 1])])
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET)
    simulation, rows, nodes = simulate_fleet(preset, Load(requests=requests))
    assert list(zip(nodes, brief(rows), strict=True)) == [
        (0, "write 0 prefill 0 4 0/0"),
        (0, "write 0 prefill 1 4 0/0"),
        (0, "write 1 store 0 4 0/1"),
        (0, "write 1 store 1 4 0/1"),
        # Node 1 has nothing of its own, reads from the shared tier, and keeps a copy.
        (1, "read 1 load 0 4 1/0"),
        (1, "read 1 load 1 4 1/0"),
        (1, "write 0 promote 0 4 1/1"),
        (1, "write 0 promote 1 4 1/1"),
        (0, "read 0 load 0 4 2/0"),
        (0, "read 0 load 1 4 2/0"),
    ]
    fleet = simulation.stats().fleet
    assert (fleet.local_hits, fleet.shared_hits, fleet.hit_ratio) == (2, 2, 4 / 6)
    assert fleet.duplicate_bytes == 8
    assert fleet.by_node.requests == [2, 1]
    # Of the second and third prompt, all there, the last token is computed again.
    assert fleet.imbalance == FleetImbalance(requests=2 / 1.5, computing_ns=(8 + 1) / 5)
    assert fleet.computed_tokens == 8 + 1 + 1


def test_a_pool_computes_and_sends_what_the_other_lacks_by_hand():
    requests = requests_of([(0, 8, 0, [0, 1]), (100, 8, 0, [0, 1]), (200, 12, 0, [0, 1, 2])])
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, prefill_nodes=1)
    simulation, rows, nodes = simulate_fleet(preset, Load(requests=requests))
    assert [t.name for t in preset.tier_list()] == ["tier0", "link"]
    assert list(zip(nodes, brief(rows), strict=True)) == [
        (0, "write 0 prefill 0 4 0/0"),
        (0, "write 0 prefill 1 4 0/0"),
        (0, "write 1 store 0 4 0/1"),
        (0, "write 1 store 1 4 0/1"),
        (1, "read 1 load 0 4 0/2"),
        (1, "read 1 load 1 4 0/2"),
        (1, "delete 1 evict 0 4"),
        (1, "delete 1 evict 1 4"),
        (1, "write 0 promote 0 4 0/3"),
        (1, "write 0 promote 1 4 0/3"),
        # Both have all of it: nothing is sent.
        (0, "read 0 load 0 4 1/0"),
        (0, "read 0 load 1 4 1/0"),
        (0, "read 0 load 0 4 2/0"),
        (0, "read 0 load 1 4 2/0"),
        (0, "write 0 prefill 2 4 2/1"),
        (0, "write 1 store 2 4 2/2"),
        (1, "read 1 load 2 4 2/3"),
        (1, "delete 1 evict 2 4"),
        (1, "write 0 promote 2 4 2/4"),
    ]
    fleet = simulation.stats().fleet
    assert fleet.link_bytes == 12
    assert fleet.by_node.requests == [3, 3]
    # The one that computes computes all, as it is there to do: it is not twice as busy as the
    # other.
    assert fleet.imbalance == FleetImbalance(requests=1.0, computing_ns=1.0)


@pytest.mark.parametrize(("bandwidth", "each_ns"), [("1MB", 8000), ("1600kB", 5000)])
def test_a_node_sends_one_prompt_after_the_other(bandwidth, each_ns):
    # 1 MB/s is a byte a microsecond: 8 bytes take 8 us, and the second prompt waits for the first.
    requests = requests_of([(0, 8, 2, [0, 1]), (1000, 8, 2, [2, 3])])
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, prefill_nodes=1, link_bandwidth=bandwidth)
    preset = msgspec.structs.replace(preset, decode_ns_per_token=5)
    simulation, _, _ = simulate_fleet(preset, Load(requests=requests))
    # Computed at 8, sent by 8,008; computed at 1,008, sent by 16,008; a token later it ends.
    assert simulation.now_ns == 8 + 2 * each_ns + 5


def test_racks_share_what_other_racks_do_not():
    requests = requests_of([(10 * i, 4, 0, [0]) for i in range(4)])
    preset = fleet_of(Router.ROUND_ROBIN, Scope.RACK, nodes=4, rack_nodes=2)
    _, rows, nodes = simulate_fleet(preset, Load(requests=requests))
    assert list(zip(nodes, brief(rows), strict=True)) == [
        (0, "write 0 prefill 0 4 0/0"),
        (1, "read 0 load 0 4 1/0"),
        (2, "write 0 prefill 0 4 2/0"),
        (3, "read 0 load 0 4 3/0"),
    ]


def test_one_node_is_no_fleet():
    requests = requests_of(apart(3))
    simulation = Simulation(
        preset_of(100), __import__("simulated").ONE_BYTE, Load(requests=requests)
    )
    flushes = []
    simulation.run(flushes.append)
    assert "node" not in flushes[0].rows
    assert not simulation.stats().fleet


@pytest.mark.parametrize("keeps_age", [False, True])
def test_memory_follows_what_is_live(keeps_age):
    requests = requests_of([(i, 40, 0, list(range(10 * i, 10 * i + 10))) for i in range(3000)])
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET, nodes=4)
    preset = msgspec.structs.replace(preset, demotion_keeps_age=keeps_age)
    simulation, _, _ = simulate_fleet(preset, Load(requests=requests))
    world = simulation.world
    # 25 objects in each of four nodes, and in the shared tier: nothing else has a slot. Ages are of
    # copies, which then have slots of their own.
    in_own_slots = int((world.fleet.copies["own_live"] != 0).sum())
    with_slots = int((world.slots["place"] > 0).sum())
    assert (in_own_slots, with_slots) == ((0, 100) if keeps_age else (100, 0))
    assert int(((world.slots["live"] != 0) & (world.slots["place"] == 0)).sum()) <= 125
    assert len(world.slots) < 4096
    # Nor do lines of copies stay that have none: 25 objects of a node are in four at most.
    assert world.fleet.lines_room <= 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fleet.nodes=0"], "fleet.nodes(=0) … >= 1"),
        (
            ["fleet.nodes=2", "tiers.gpu.scope=fleet"],
            "tiers.cpu.scope(=node): tier gpu",
        ),
        (["fleet.router=prefx"], "'prefx'"),
        (["fleet.nodes=2", "fleet.prefill_nodes=2"], "generate"),
        (
            ["fleet.nodes=2", "fleet.prefill_nodes=1", "fleet.link_bandwidth=5"],
            "1MB",
        ),
    ],
)
def test_what_a_fleet_refuses(settings, message):
    with pytest.raises(ConfigError) as caught:
        load_preset("vllm-fs", settings)
    assert shows(str(caught.value), message)


def test_the_command(monkeypatch, tmp_path, capsys):
    trace = tmp_path / "t.parquet"
    small = ("--model", "tiny-1b", "--users", 8, "--duration", "5s", "--preset", "lmcache-disk")
    more = ("--set", "tiers.nvme.scope=fleet", "--set", "tiers.cpu.capacity=1GiB")
    assert (
        kvtrace(monkeypatch, "gen", *small, *more, "--nodes", 3, "--router", "session", "-o", trace)
        == 0
    )
    assert shows(capsys.readouterr().out.splitlines()[1], "3 nodes … session")
    assert kvtrace(monkeypatch, "validate", trace) == 0
    assert kvtrace(monkeypatch, "info", trace) == 0
    assert "1.07 GB a node" in capsys.readouterr().out
    assert (
        kvtrace(
            monkeypatch, "gen", *small, "--nodes", 3, "--router", "sesion", "-o", trace, "--force"
        )
        == 2
    )
    assert "--router sesion" in capsys.readouterr().err
    for flag, value in (("--router", "session"), ("--rack-nodes", 4), ("--prefill-nodes", 1)):
        assert kvtrace(monkeypatch, "gen", *small, flag, value, "-o", trace, "--force") == 2
        assert shows(capsys.readouterr().err, f"{flag} {value} … --nodes")
