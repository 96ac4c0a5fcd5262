"""Nodes lost and joined, drives replaced, a store out of reach.

Row by row as plain Python says them, and by hand.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from conftest import trace_meta
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import moving_tables  # noqa: F401
from oracle import Oracle
from outages import settled
from phrases import show_each, shows
from simulated import (
    ONE_BYTE,
    TWO_HEADS,
    brief,
    kvtrace,
    preset_of,
    requests_of,
    simulate,
    simulate_fleet,
)
from test_fleet_oracle import check_users, compare_stats, fleets, in_sessions, users_presets
from test_oracle import (
    SEMANTICS,
    conversations,
    presets,
    request_lists,
    rich_presets,
    staged_presets,
    waiting,
)
from test_oracle_users import WORKLOADS
from test_queues import THROUGH, queued_presets
from test_routers import fleet_of

from kvtrace.core.document.fleet_chapters import event_lines
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import TRACE
from kvtrace.core.simulation_stats import IncidentStats, RestartCounts, to_json
from kvtrace.core.statistics import is_memory
from kvtrace.core.tables import open_table
from kvtrace.llm.shape import bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.fleet import Incident, Kind, parse, steps_of
from kvtrace.sim.presets.tier import Admission, FleetSetting, Scope, TierSetting
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import Load


@pytest.fixture(scope="module", autouse=True)
def _the_first_tier_is_memory():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "kvtrace.sim.fleet.is_memory", lambda tier: tier == "tier0" or is_memory(tier)
        )
        yield


@st.composite
def incidents_of(draw, preset):
    """Return what may happen to the fleet of `preset`: any of it, if it can."""
    fleet, tiers, times = (
        preset.fleet,
        preset.tiers,
        st.sampled_from([0, 1, 2, 3, 5, 8, 10, 20, 41, 45, 60, 90]),
    )
    nodes, racks = st.integers(0, fleet.nodes - 1), st.integers(0, fleet.instances(Scope.RACK) - 1)
    own = [tier.name for tier in tiers if tier.scope is not Scope.FLEET]
    kinds = [k for k in Kind if k is not Kind.DRIVE_REPLACED or own]
    kinds.remove(Kind.NOTHING)
    found = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)):
        at, place = (
            draw(times),
            draw(racks if kind in (Kind.RACK_LOST, Kind.RACK_JOINED) else nodes),
        )
        lasts = draw(st.sampled_from([1, 4, 30]))
        tier = draw(st.sampled_from(own)) if kind is Kind.DRIVE_REPLACED else None
        if kind in (Kind.NODE_LOST, Kind.RACK_LOST) and draw(st.booleans()):
            back = Kind.NODE_JOINED if kind is Kind.NODE_LOST else Kind.RACK_JOINED
            found.append(Incident("back", at + lasts, back, place))
        lasts_ns = (
            lasts
            if kind in (Kind.STORE_UNREACHABLE, Kind.ROLLING_RESTART, Kind.ENGINE_RESTART)
            else 0
        )
        found.append(Incident(str(kind), at, kind, place, lasts_ns, tier, draw(st.integers(1, 2))))
    return tuple(found)


def draw_incidents(draw, preset, unit_ns=1):
    """Return incidents that can be, or fewer; their times are of so many ns."""
    found = tuple(
        replace(one, at_ns=one.at_ns * unit_ns, lasts_ns=one.lasts_ns * unit_ns)
        for one in draw(incidents_of(preset))
    )
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
        preset,
        load.requests,
        per_rank * stored,
        stored,
        waits=load.waits,
        seed=load.seed,
        incidents=load.incidents,
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
    assert stats.requests == len(load.requests)
    assert stats.lookups == oracle.lookups
    for number, tier in enumerate(stats.tiers):
        instances = {id(node.tiers[number]): node.tiers[number] for node in oracle.nodes}.values()
        live = sum(sum(instance.objects.values()) for instance in instances)
        if not preset.tiers[number].bucket_objects:
            assert tier.live_bytes == tier.written_bytes - tier.deleted_bytes == live


@pytest.mark.first(semantics=4)
@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=15, deadline=None)
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
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_policies_and_offers(semantics, data):
    rich = data.draw(rich_presets(semantics))
    is_fixed = any(tier.whole_offers or tier.admission is Admission.TINYLFU for tier in rich.tiers)
    preset = data.draw(fleets(rich, policies=not is_fixed))
    check(
        preset,
        Load(requests=data.draw(request_lists()), incidents=draw_incidents(data.draw, preset)),
        TWO_HEADS,
        2,
    )


@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_one_node_alone(semantics, data):
    preset = data.draw(rich_presets(semantics))
    check(
        preset,
        Load(requests=data.draw(request_lists()), incidents=draw_incidents(data.draw, preset)),
    )


@pytest.mark.parametrize("semantics", THROUGH, ids="-".join)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_queues_and_buckets(semantics, data):
    preset = data.draw(queued_presets(semantics))
    if data.draw(st.booleans()):
        preset = data.draw(fleets(preset))
    check(
        preset,
        Load(requests=data.draw(request_lists()), incidents=draw_incidents(data.draw, preset)),
    )


@pytest.mark.first(workload=3)
@pytest.mark.parametrize("workload", WORKLOADS, ids=range(len(WORKLOADS)))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_users(workload, data):
    preset = data.draw(users_presets(workload))
    # 40 requests of a few users take seconds.
    incidents = draw_incidents(data.draw, preset, data.draw(st.sampled_from([10**7, 10**8])))
    check_users(preset, data.draw(st.integers(1, 6)), data.draw(st.integers(0, 9)), incidents)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_staging(data):
    preset = data.draw(staged_presets())
    if data.draw(st.booleans()):
        preset = data.draw(fleets(preset))
    check(
        preset,
        Load(requests=data.draw(conversations()), incidents=draw_incidents(data.draw, preset)),
    )


def happens(preset, rows, *texts):
    """Return what a fleet does to which the events `texts` happen, each row with its time and node."""
    load = Load(requests=requests_of(rows), incidents=tuple(parse(text) for text in texts))
    if preset.fleet.nodes > 1:
        simulation, found, nodes = simulate_fleet(preset, load)
    else:
        simulation, found, _, _ = simulate(preset, load)
        nodes = [0] * len(found)
    return simulation, [
        f"{row[0]} n{node} {text}"
        for row, node, text in zip(found, nodes, brief(found), strict=True)
    ]


def test_a_lost_node_by_hand():
    # Node 0 serves request 0 and is done at 8; it computes request 2, from 20 to 28, as it is lost
    # at 24.
    rows = [
        (0, 8, 0, [0, 1]),
        (10, 4, 0, [7]),
        (20, 8, 0, [3, 4]),
        (40, 8, 0, [0, 1]),
        (60, 4, 0, [9]),
    ]
    simulation, found = happens(
        fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET),
        rows,
        "24ns:node-lost:0",
        "50ns:node-joined:0",
    )
    assert found == [
        "8 n0 write 0 prefill 0 4 0/0",
        "8 n0 write 0 prefill 1 4 0/0",
        "8 n0 write 1 store 0 4 0/1",
        "8 n0 write 1 store 1 4 0/1",
        "14 n1 write 0 prefill 2 4 1/0",
        "14 n1 write 1 store 2 4 1/1",
        # Its own tier is lost, the shared one is not; request 2 begins again on node 1.
        "24 n0 delete 0 lose 0 4",
        "24 n0 delete 0 lose 1 4",
        "32 n1 write 0 prefill 3 4 2/0",
        "32 n1 write 0 prefill 4 4 2/0",
        "32 n1 write 1 store 3 4 2/1",
        "32 n1 write 1 store 4 4 2/1",
        "40 n1 read 1 load 0 4 3/0",
        "40 n1 read 1 load 1 4 3/0",
        "40 n1 write 0 promote 0 4 3/1",
        "40 n1 write 0 promote 1 4 3/1",
        # It has joined: empty, and again its turn.
        "64 n0 write 0 prefill 5 4 4/0",
        "64 n0 write 1 store 5 4 4/1",
    ]
    stats = simulation.stats()
    assert (stats.requests, stats.fleet.by_node.requests) == (5, [3, 3])
    lost, joined = stats.incidents.around
    assert [window.window for window in lost.windows] == ["before", "minute 1 after"]
    before, after = lost.windows
    assert msgspec.structs.astuple(stats.incidents.begun_again) == (1, 2, 0, 10, 2)
    # Tokens are counted as they are found to be missing: request 2's twice.
    assert (before.lookups, before.computed_tokens, before.restarted) == (5, 20, 0)
    assert (after.lookups, after.local_hits, after.shared_hits) == (5, 0, 2)
    # Of request 2, whose 8 tokens the shared tier has, the last is computed again.
    assert (after.computed_tokens, after.restarted) == (12 + 1, 1)
    assert [tier.lost_bytes for tier in after.tiers] == [8, 0]
    assert (
        after.tiers[1].reads,
        after.tiers[1].read_bytes,
        after.tiers[1].writes,
    ) == (2, 8, 3)
    assert joined.at_ns == 50


def test_a_request_that_decodes_is_begun_again_by_hand():
    # Computed at 4, stored; its 10 tokens would take until 104, and its node is lost at 50.
    preset = msgspec.structs.replace(
        fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET), decode_ns_per_token=10
    )
    simulation, found = happens(preset, [(0, 4, 10, [0]), (200, 8, 1, [0, 1])], "50ns:node-lost:0")
    again = [
        "50 n0 delete 0 lose 0 4",
        "50 n1 read 1 load 0 4 0/2",
        "50 n1 write 0 promote 0 4 0/3",
    ]
    assert found[2:6] == [*again, "200 n1 read 0 load 0 4 1/0"]
    stats = simulation.stats()
    assert (stats.decode.tokens, stats.first_token.requests) == (11, 2)
    # Look-ups 1 + 2, and 1 again; hits 0 + 1, and 1 again, of what it had stored itself: 2 of 4; 1
    # of 3 once a prompt.
    assert (stats.lookups, stats.fleet.hit_ratio) == (4, 0.5)
    again = RestartCounts(requests=1, lookups=1, hits=1, of_lookups=4, of_hits=2)
    assert stats.incidents.begun_again == again
    first, lost = event_lines(stats.incidents)
    assert shows(lost, "restarted 1 time")
    assert shows(first, "restarted 1 time … 1 … 4 lookups … 1 … 2 hits … 33.33 %")


def test_ratios_omit_restarts_where_no_request_restarted():
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET)
    stats = happens(preset, [(0, 4, 1, [0]), (30, 4, 1, [1])], "20ns:node-lost:0")[0].stats()
    assert msgspec.structs.astuple(stats.incidents.begun_again) == (0, 0, 0, 2, 0)
    [line] = event_lines(stats.incidents)
    # The trace begins and ends within a minute of it.
    assert re.match(r"20ns:node-lost:0: hits \S+( %)? .*20 ns before.* \d+ ns after", line), line
    # A trace of before has no such counts; one that has them as text is refused where it is read.
    fields = to_json(stats)
    msgspec.structs.replace(trace_meta(TRACE), stats=fields)
    wrong = fields | {"incidents": fields["incidents"] | {"begun_again": {"requests": "many"}}}
    with pytest.raises(msgspec.ValidationError, match="begun_again"):
        msgspec.structs.replace(trace_meta(TRACE), stats=wrong)
    del fields["incidents"]["begun_again"]
    earlier = msgspec.structs.replace(trace_meta(TRACE), stats=fields)
    assert event_lines(earlier.events) == [line]


def test_no_hits_before_an_event_are_not_a_drop():
    windows = [
        {
            "window": name,
            "from_ns": begin,
            "to_ns": begin + 10**10,
            "computed_tokens": 0,
            "restarted": 0,
            "hit_ratio": ratio,
            "local_hit_ratio": ratio,
            "shared_hit_ratio": ratio,
            "tiers": [],
        }
        for name, ratio, begin in (("before", None, 0), ("minute 1 after", 0.5, 10**10))
    ]
    outcome = {
        "event": "10s:drive-replaced:0",
        "at_ns": 10**10,
        "over_ns": 10**10,
        "is_reached": True,
        "hits_back_ns": None,
        "windows": windows,
    }
    series = {name: [0] for name in ("lookups", "local_hits", "shared_hits", "computed_tokens")}
    tier = {"name": "nvme", "read_bytes": [0], "written_bytes": [0]}
    fields = {
        "around": [outcome],
        "step_ns": 10**9,
        "end_ns": 2 * 10**10,
        "over_time": series,
        "tiers": [tier],
    }
    events = msgspec.convert(fields, IncidentStats)
    phrase = "10s:drive-replaced:0: hits - … 10.0 s before … 50 % … 10.0 s after"
    assert show_each(event_lines(events), [phrase])


def test_requests_wait_while_no_node_is_there_by_hand():
    rows = [(0, 4, 0, [0]), (20, 4, 0, [0]), (45, 4, 0, [0])]
    preset = preset_of(100, prefill_ns_per_token=1)
    _, found = happens(preset, rows, "10ns:node-lost:0", "30ns:node-joined:0")
    assert found == [
        "4 n0 write 0 prefill 0 4 0/0",
        "10 n0 delete 0 lose 0 4",
        "34 n0 write 0 prefill 0 4 1/0",
        "45 n0 read 0 load 0 4 2/0",
    ]
    _, rolled = happens(preset, rows, "10ns:rolling-restart:20ns")
    assert rolled == found


def test_a_new_node_joins_cold_by_hand():
    rows = [(0, 4, 0, [0]), (10, 4, 0, [0]), (20, 4, 0, [0]), (30, 4, 0, [0])]
    _, found = happens(fleet_of(Router.ROUND_ROBIN, Scope.NODE), rows, "15ns:node-joined:1")
    assert found == [
        "4 n0 write 0 prefill 0 4 0/0",
        "10 n0 read 0 load 0 4 1/0",
        "24 n1 write 0 prefill 0 4 2/0",
        "30 n0 read 0 load 0 4 3/0",
    ]


def test_a_node_that_joins_is_as_fresh_as_the_freshest():
    # Idle nodes take turns: the one that joins does not take all until it has served as many.
    rows = [(10 * i, 4, 0, [i]) for i in range(8)]
    _, found = happens(fleet_of(Router.LEAST_OUTSTANDING, Scope.NODE), rows, "35ns:node-joined:1")
    assert [row.split()[1] for row in found] == ["n0"] * 4 + ["n0", "n1", "n0", "n1"]


@pytest.mark.parametrize(
    ("events", "read_from_drive"),
    [(["20ns:engine-restart:0:10ns"], 1), (["20ns:node-lost:0", "30ns:node-joined:0"], 0)],
)
def test_an_engine_that_restarts_finds_its_drive_again_by_hand(events, read_from_drive):
    rows = [(0, 4, 0, [0]), (25, 4, 0, [0])]
    _, found = happens(preset_of(100, 100), rows, *events)
    memory, drive = "20 n0 delete 0 lose 0 4", "20 n0 delete 1 lose 0 4"
    assert ((memory in found), (drive in found)) == (True, not read_from_drive)
    # The second comes at 25, while nobody is there, and is served at 30.
    assert found.count("30 n0 read 1 load 0 4 1/0") == read_from_drive
    assert ("30 n0 write 0 prefill 0 4 1/0" in found) == (not read_from_drive)


def test_memory_dies_with_its_engine_in_any_spelling_of_a_name():
    tiers = [TierSetting("CPU", 100), TierSetting("nvme", 100)]
    lost, _ = steps_of([parse("1s:engine-restart:0:1s")], FleetSetting(), tiers)
    assert lost.tier == 1 << 1
    (emptied,) = steps_of([parse("1s:drive-replaced:0")], FleetSetting(), tiers)
    assert emptied.tier == 1
    with pytest.raises(ConfigError, match="drive"):
        steps_of([parse("1s:drive-replaced:0")], FleetSetting(), tiers[:1])


def test_a_replaced_drive_by_hand():
    rows = [(0, 4, 0, [0]), (10, 4, 0, [0]), (20, 4, 0, [0]), (30, 4, 0, [0])]
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.NODE)
    _, found = happens(preset, rows, "15ns:drive-replaced:0")
    # DRAM has it still; nothing computes it, so nothing stores it below again.
    assert found[4:] == [
        "15 n0 delete 1 lose 0 4",
        "20 n0 read 0 load 0 4 2/0",
        "30 n1 read 0 load 0 4 3/0",
    ]
    _, found = happens(preset, rows, "15ns:drive-replaced:0:tier0")
    assert found[4:7] == [
        "15 n0 delete 0 lose 0 4",
        "20 n0 read 1 load 0 4 2/0",
        "20 n0 write 0 promote 0 4 2/1",
    ]


def test_a_second_event_and_the_end_belong_to_the_course():
    # The second prompt comes, and is stored, at 1 s: it was in the windows, and not in the course.
    rows = [(0, 4, 0, [0]), (10**9, 4, 0, [1])]
    simulation, _ = happens(preset_of(100, 100), rows, "500ms:drive-replaced:0")
    found = simulation.stats().incidents
    assert (found.end_ns, found.over_time.lookups) == (10**9, [2])
    assert [tier.written_bytes for tier in found.tiers] == [[8], [8]]


def test_a_store_out_of_reach_by_hand():
    rows = [(0, 4, 0, [0]), (10, 4, 0, [0]), (20, 4, 0, [1]), (40, 4, 0, [0]), (50, 4, 0, [1])]
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET)
    _, found = happens(preset, rows, "5ns:store-unreachable:30ns")
    assert found == [
        "4 n0 write 0 prefill 0 4 0/0",
        "4 n0 write 1 store 0 4 0/1",
        # Node 1 does not find it, and what it computes is not stored.
        "14 n1 write 0 prefill 0 4 1/0",
        "24 n0 write 0 prefill 1 4 2/0",
        # The store is there again: what was never stored is not.
        "40 n1 read 0 load 0 4 3/0",
        "50 n0 read 0 load 1 4 4/0",
    ]


def test_a_rack_and_what_it_shares_by_hand():
    rows = [(10 * i, 4, 0, [0]) for i in range(4)] + [(100 + 10 * i, 4, 0, [0]) for i in range(3)]
    preset = fleet_of(Router.ROUND_ROBIN, Scope.RACK, nodes=4, rack_nodes=2)
    _, found = happens(preset, rows, "50ns:rack-lost:0", "105ns:rack-joined:0")
    assert found[4:] == [
        "50 n0 delete 0 lose 0 4",
        "100 n2 read 0 load 0 4 4/0",
        "110 n3 read 0 load 0 4 5/0",
        "124 n0 write 0 prefill 0 4 6/0",
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["300s:node-gone:1"],
            "events=300s:node-gone:1: … node-joined",
        ),
        (["node-lost:1"], "event"),
        (["300s:node-lost"], "events=300s:node-lost: write TIME:node-lost:NODE"),
        (["300s:node-lost:x"], "TIME:node-lost:NODE"),
        (["soon:node-lost:1"], "events=soon:node-lost:1: 'soon'"),
        (["1s:store-unreachable:0s"], "0s … > 0"),
        (["1s:rolling-restart:1s:0"], "1 node"),
        (["1s:node-lost:2"], "node 2: … 0 … 1 … nodes=2"),
        (["1s:rack-lost:1"], "rack 1: 2 nodes, 8 a rack … 0 … 0"),
        (
            ["1s:node-lost:1", "2s:node-lost:1"],
            "events=2s:node-lost:1: node 1 … 2.00 s",
        ),
        (
            ["1s:node-lost:1", "2s:node-joined:1", "3s:node-joined:1"],
            "node 1",
        ),
        (["1s:node-lost:1", "2s:drive-replaced:1"], "node 1 … 2.00 s"),
        (["1s:node-lost:0", "1s:node-lost:1"], "no node"),
        (
            ["1s:drive-replaced:1:nvme"],
            "tier nvme … gpu, tier1",
        ),
        (["1s:store-unreachable:5s"], "set tiers.tier1.scope=fleet"),
    ],
)
def test_what_cannot_happen(texts, message):
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.NODE)
    tiers = (msgspec.structs.replace(preset.tiers[0], name="gpu"), preset.tiers[1])
    with pytest.raises(ConfigError) as caught:
        steps_of([parse(text) for text in texts], preset.fleet, tiers)
    assert shows(str(caught.value), message)
    assert "\n" not in str(caught.value)


def test_what_else_cannot_happen():
    preset = fleet_of(Router.ROUND_ROBIN, Scope.NODE, Scope.FLEET)
    memory = tuple(
        msgspec.structs.replace(t, name=n)
        for t, n in zip(preset.tiers, ("cpu", "pool"), strict=True)
    )
    for text, message in (
        ("1s:drive-replaced:0", "drive"),
        ("1s:store-unreachable:5s 2s:store-unreachable:9s", "2.00 s"),
    ):
        with pytest.raises(ConfigError) as caught:
            steps_of([parse(part) for part in text.split()], preset.fleet, memory)
        assert shows(str(caught.value), message)
    pools = FleetSetting(nodes=3, prefill_nodes=1)
    with pytest.raises(ConfigError) as caught:
        steps_of([parse("1s:node-lost:0"), parse("9s:node-joined:0")], pools, preset.tiers)
    assert "compute prompts" in str(caught.value)


def test_a_restarted_request_reuses_and_frees_its_gpu_blocks():
    # The first is computed by node 0 and handed over to node 1, which is lost at 100: node 0 still
    # has its two blocks. The second needs all 16 bytes of node 0.
    times = {
        "prefill_ns_per_token": 10,
        "decode_ns_per_token": 10,
        "decode_compute_ns": 1,
        "step_tokens": 4,
    }
    preset = preset_of(16, chunk_tokens=4, fleet=FleetSetting(nodes=3, prefill_nodes=1), **times)
    requests = requests_of([(0, 8, 40, [1, 2]), (200, 16, 0, [3, 4, 5, 6])])
    lost = (Incident("lost", 100, Kind.NODE_LOST, 1),)
    simulation, rows, _ = simulate_fleet(preset, Load(requests=requests, incidents=lost))
    assert [row[0] for row in rows if row[1] == "write" and row[2] == 0 and row[6] == 1] == [
        360
    ] * 8
    assert not simulation.world.fleet.nodes["gpu_bytes"].any()


def test_the_command(monkeypatch, tmp_path, capsys):
    trace, plain, late, out_of_reach = (
        tmp_path / f"{name}.parquet" for name in ("t", "plain", "late", "reach")
    )
    small = (
        "--model",
        "tiny-1b",
        "--users",
        6,
        "--duration",
        "8s",
        "--preset",
        "lmcache-disk",
        "--nodes",
        3,
    )
    more = ("--set", "tiers.nvme.scope=fleet", "--set", "tiers.cpu.capacity=1GiB")
    events = (
        "--event",
        "2s:node-lost:1",
        "--event",
        "4s:node-joined:1",
        "--event",
        "5s:store-unreachable:1s",
    )
    assert kvtrace(monkeypatch, "gen", *small, *more, "-o", plain) == 0
    capsys.readouterr()
    assert kvtrace(monkeypatch, "gen", *small, *more, *events, "-o", trace) == 0
    said = capsys.readouterr().out
    assert "2s:node-lost:1: hits " in said
    assert "event" in said
    assert "nvme around" in said
    assert kvtrace(monkeypatch, "validate", trace) == 0
    capsys.readouterr()
    assert kvtrace(monkeypatch, "info", trace) == 0
    assert "nvme around" in capsys.readouterr().out
    assert any("phase=lose" in note for note in open_table(trace).meta.notes)
    # A store that is out of reach for a time has lost nothing.
    assert kvtrace(monkeypatch, "gen", *small, *more, *events[4:], "-o", out_of_reach) == 0
    assert not any("phase=lose" in note for note in open_table(out_of_reach).meta.notes)
    assert open_table(trace).meta.config["events"] == [text for text in events if text != "--event"]
    assert "events" not in open_table(plain).meta.config
    assert "events" not in (open_table(plain).meta.stats or {})
    assert kvtrace(monkeypatch, "gen", *small, *more, "--event", "9s:node-lost:1", "-o", late) == 2
    assert shows(capsys.readouterr().err, "--event 9s:node-lost:1: … 8.00 s")
    assert (
        kvtrace(
            monkeypatch, "gen", "--preset", "checkpoint", "--event", "9s:node-lost:1", "-o", late
        )
        == 2
    )
    assert "preset checkpoint" in capsys.readouterr().err
