"""Fleets of 2 to 5 nodes, any router and any scopes, row by row as plain Python says them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from evictions import OF_OBJECTS
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import moving_tables  # noqa: F401
from msgspec import UNSET
from oracle import Oracle
from outages import settled
from plans import MOST, oracle_of
from simulated import ONE_BYTE, TWO_HEADS, preset_of, requests_of, simulate_fleet
from test_oracle import SEMANTICS, presets, request_lists, rich_presets, staged_presets, waiting
from test_oracle import conversations as conversation_lists
from test_oracle_users import WORKLOADS, asked_in
from test_queues import THROUGH, queued_presets

from kvtrace.core.errors import ConfigError
from kvtrace.llm.shape import bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Entry, Preset, Promotion, load_preset
from kvtrace.sim.presets.tier import Admission, FleetSetting, Scope
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import FOREVER_NS, Load

ANY_POLICY = st.sampled_from(
    [{"policy": p, "ttl": "15ns" if p is Policy.TTL else None} for p in OF_OBJECTS]
)


@st.composite
def fleets(draw, preset: Preset, *, policies: bool = False) -> Preset:
    """Return `preset` for several nodes, its tiers shared as drawn, from those of a node to those
    of all.
    """
    scopes = sorted(
        draw(
            st.lists(
                st.sampled_from(list(Scope)), min_size=len(preset.tiers), max_size=len(preset.tiers)
            )
        ),
        key=list(Scope).index,
    )
    if preset.tiers[-1].bucket_objects:
        scopes[-2] = scopes[-1]
    tiers = tuple(
        msgspec.structs.replace(tier, scope=scope, **(draw(ANY_POLICY) if policies else {}))
        for tier, scope in zip(preset.tiers, scopes, strict=True)
    )
    nodes = draw(st.integers(2, 5))
    fleet = FleetSetting(
        nodes=nodes, prefill_nodes=draw(st.sampled_from([0, 0, 1, nodes - 1])),
        router=draw(st.sampled_from(Router)), rack_nodes=draw(st.integers(1, 3)),
        prefill_weight=draw(st.sampled_from([1.0, 0.5, 4.0])), prefix_weight=draw(st.sampled_from([2.0, 0.0, 0.3])),
        load_threshold=draw(st.sampled_from([1, 2, 128])),
    )  # fmt: skip
    return msgspec.structs.replace(preset, tiers=tiers, fleet=fleet)


def check(preset, load, model=ONE_BYTE, ranks=1, rows=4096):
    """Compare what a fleet does with what plain Python says."""
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    oracle = Oracle(
        preset, load.requests, per_rank * stored, stored, waits=load.waits, seed=load.seed
    )
    expected = oracle.run()
    simulation, found, nodes = simulate_fleet(preset, load, model, ranks=ranks, rows=rows)
    assert found == expected
    assert nodes == oracle.row_nodes
    compare_stats(simulation.stats(), oracle)
    if (arrivals := simulation.arrivals()) is not None:
        assert list(zip(*map(list, arrivals), strict=True)) == oracle.came
    return simulation, oracle


def compare_stats(stats, oracle):
    """Compare the counters of a fleet with those of the oracle."""
    fleet = stats.fleet
    assert sum(t.hits for t in stats.tiers) == oracle.hits == fleet.local_hits + fleet.shared_hits
    if fleet.link_bytes is not UNSET:
        assert fleet.link_bytes == sum(
            row[5] for row in oracle.rows if row[1:3] == ("read", len(stats.tiers))
        )
    assert stats.lookups == oracle.lookups == sum(fleet.by_node.lookups)
    assert fleet.by_node.requests == [node.served for node in oracle.nodes]
    assert fleet.by_node.local_hits == [node.local_hits for node in oracle.nodes]
    assert fleet.by_node.shared_hits == [node.shared_hits for node in oracle.nodes]
    assert fleet.by_node.computing_ns == [node.computing for node in oracle.nodes]
    for number, tier in enumerate(stats.tiers):
        instances = {id(node.tiers[number]): node.tiers[number] for node in oracle.nodes}.values()
        live = sum(sum(instance.objects.values()) for instance in instances)
        assert tier.live_bytes == tier.written_bytes - tier.deleted_bytes
        if oracle.preset.tiers[number].bucket_objects:
            live = sum(instance.queue.used() for instance in instances)
        assert tier.live_bytes == live
        refused = [size for instance in instances for size in instance.refused]
        assert (tier.refused_objects or 0, tier.refused_bytes or 0) == (
            len(refused),
            sum(refused),
        )


def in_sessions(draw, requests):
    """Return the requests, perhaps in conversations."""
    if draw(st.booleans()):
        return requests
    return replace(requests, session_id=np.array(draw(st.lists(
        st.integers(-1, 3), min_size=len(requests), max_size=len(requests)
    ))))  # fmt: skip


@pytest.mark.first(semantics=4)
@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_row_of_a_fleet_is_what_plain_python_says(semantics, data):
    preset = data.draw(fleets(data.draw(presets(semantics))))
    requests = data.draw(request_lists())
    if semantics[0] is Entry.CHUNK:  # an oracle's turns follow no others
        requests = in_sessions(data.draw, requests)
    model, ranks = data.draw(st.sampled_from([(ONE_BYTE, 1), (TWO_HEADS, 2)]))
    load = Load(
        requests=requests, waits=data.draw(waiting(requests)), seed=data.draw(st.integers(0, 3))
    )
    check(preset, load, model, ranks)
    check(preset, load, model, ranks, rows=1)


@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_marks_policies_and_offers_of_a_fleet(semantics, data):
    rich = data.draw(rich_presets(semantics))
    is_fixed = any(tier.whole_offers or tier.admission is Admission.TINYLFU for tier in rich.tiers)
    preset = data.draw(fleets(rich, policies=not is_fixed))
    check(preset, Load(requests=data.draw(request_lists())), TWO_HEADS, 2)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_prompts_computed_together_may_offer_the_same_object(data):
    """Small tiers, steps of a few objects, and prompts of two branches.

    What one evicts another stores again.
    """
    capacities, place = data.draw(st.sampled_from([((32,), 0), ((32, 256), 0), ((256, 32), 1)]))
    preset = preset_of(
        *capacities, offer_tokens=9, prefill_ns_per_token=1, prefill_in_turn=False,
        decode_ns_per_token=data.draw(st.sampled_from([0, 2])),
        promotion=data.draw(st.sampled_from(Promotion)), offers_hits=data.draw(st.booleans()),
        fleet=FleetSetting(nodes=2, router=Router.RANDOM),
    )  # fmt: skip
    scope = data.draw(st.sampled_from(Scope))
    tiers = tuple(
        msgspec.structs.replace(tier, scope=scope, whole_offers=n == place)
        for n, tier in enumerate(preset.tiers)
    )
    asked = st.tuples(
        st.sampled_from([0, 1, 5]), st.sampled_from([(0, 1, 2, 3), (4, 5), (0, 1), (0,)])
    )
    rows, now = [], 0
    for gap, ids in data.draw(st.lists(asked, min_size=3, max_size=8)):
        now += gap
        rows.append((now, 4 * len(ids), 5, ids))
    load = Load(requests=requests_of(rows), seed=data.draw(st.integers(0, 3)))
    check(msgspec.structs.replace(preset, tiers=tiers), load, TWO_HEADS, 2)


@pytest.mark.parametrize("semantics", THROUGH, ids="-".join)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_queues_and_buckets_of_a_fleet(semantics, data):
    preset = data.draw(fleets(data.draw(queued_presets(semantics))))
    load = Load(requests=data.draw(request_lists()))
    simulation, oracle = check(preset, load, TWO_HEADS, 2)
    check(preset, load, TWO_HEADS, 2, rows=1)
    queues = {
        id(queue): queue for queue in (node.tiers[-1].queue for node in oracle.nodes)
    }.values()
    counted = {
        name: sum(queue.counts()[name] for queue in queues) for name in next(iter(queues)).counts()
    }
    assert counted.items() <= msgspec.structs.asdict(simulation.stats().tiers[-1]).items()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_staging_in_a_fleet(data):
    check(
        data.draw(fleets(data.draw(staged_presets()))),
        Load(requests=data.draw(conversation_lists())),
    )


@st.composite
def users_presets(draw, workload):
    """Return a fleet for synthetic users, whose prompts are thousands of tokens, not tens."""
    semantics = draw(st.sampled_from(SEMANTICS))
    preset = draw(fleets(draw(presets(semantics))))
    tiers = tuple(
        msgspec.structs.replace(tier, capacity=draw(st.none() | st.integers(0, 200_000)))
        for tier in preset.tiers
    )
    chunk = draw(st.sampled_from([256, 1024]))
    return msgspec.structs.replace(
        preset, tiers=tiers, workload=workload, chunk_tokens=chunk if semantics[0] is Entry.CHUNK else 256,
        decode_read_tokens=draw(st.sampled_from([0, 32])),
    )  # fmt: skip


def check_users(preset, users, seed, incidents=()):
    """Compare what a fleet does for so many users, to which `incidents` happen, with what plain
    Python says.
    """
    load = Load(users=users, seed=seed, until_ns=FOREVER_NS, max_requests=MOST, incidents=incidents)
    model = msgspec.structs.replace(ONE_BYTE, max_context_tokens=10**7)
    simulation, rows, nodes, log = simulate_fleet(preset, load, model, rows=1 << 14, with_log=True)
    oracle = oracle_of(preset, users, seed, 1, 1, incidents=incidents)
    expected = oracle.run()
    assert asked_in(log) == oracle.users.log
    assert settled(rows, nodes) == settled(expected, oracle.row_nodes)
    compare_stats(simulation.stats(), oracle)
    return simulation


@pytest.mark.first(workload=3)
@pytest.mark.parametrize("workload", WORKLOADS, ids=range(len(WORKLOADS)))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_users_of_a_fleet(workload, data):
    check_users(
        data.draw(users_presets(workload)),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(0, 9)),
    )


@pytest.mark.parametrize("name", ["kvbm", "lmcache-mp", "lmcache-raw-block", "lmcache-disk"])
def test_presets_of_several_nodes_with_local_or_shared_drives(name):
    for scope in Scope:
        settings = ["fleet.nodes=3", f"tiers.nvme.scope={scope}"]
        assert load_preset(name, settings).fleet.nodes == 3


def test_a_bucket_is_written_from_one_memory():
    settings = ["fleet.nodes=3", "tiers.nvme.scope=fleet"]
    with pytest.raises(
        ConfigError,
        match=r"tiers.nvme.bucket_objects:.*tier cpu \(scope=node\)",
    ):
        load_preset("mooncake-store", settings)
    assert (
        load_preset("mooncake-store", [*settings, "tiers.cpu.scope=fleet"]).tiers[-1].bucket_objects
        == 500
    )
    assert load_preset("mooncake-store", settings[:1]).tiers[-1].bucket_objects == 500
