"""Every eviction policy.

Counts worked by hand, the same from plain Python, and from libcachesim.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from evictions import OF_OBJECTS, POLICIES, Arc, count_hits, policy_hits
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from phrases import shows
from simulated import ONE_BYTE, TWO_HEADS, brief, preset_of, requests_of, rows_of, simulate
from test_oracle import SEMANTICS, fault, presets, request_lists

from kvtrace.core.errors import ConfigError
from kvtrace.curves.stack import HASH_VALUES, estimate, lru_curve, sample_chains
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.chains import Chains
from kvtrace.sim.output import trace_batch
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Placement, load_preset
from kvtrace.sim.presets.tier import TierSetting
from kvtrace.sim.simulation import Load, Simulation
from kvtrace.trace.inventory import Ledger

TIMELESS = [policy for policy in OF_OBJECTS if policy is not Policy.TTL]


def one_each(references):
    """Return requests of one object each, so that every hit is a leading run."""
    ids = np.array(references, dtype=np.int32)
    return Chains(np.arange(len(ids) + 1), ids, np.ones(ids.max() + 1, np.int64))


def pattern(policy, references, capacity, sizes=None, **options):
    """Return `H` for each reference that hits and `.` for each that does not."""
    numbers = {name: n for n, name in enumerate(dict.fromkeys(references))}
    ids = [numbers[name] for name in references]
    if sizes is not None:
        sizes = np.array([sizes[name] for name in numbers])
    hits = [0]
    for end in range(1, len(ids) + 1):
        chains = one_each(ids[:end])
        own = None if sizes is None else sizes[: len(chains.tokens)]
        times = {k: v[:end] if k == "arrival_ns" else v for k, v in options.items()}
        hits += policy_hits(chains, [capacity], policy, sizes=own, **times)
    return "".join("H" if after > before else "." for before, after in itertools.pairwise(hits))


# Worked by hand; each letter is an object of one unit.
BY_HAND = {
    "lru: d takes b's place": (Policy.LRU, "abcada", 3, "...H.H"),
    "fifo: d takes a's place, used or not": (Policy.FIFO, "abcada", 3, "...H.."),
    "clock: a is spared once and becomes the newest": (Policy.CLOCK, "abcadaefda", 3, "...H.H...H"),
    "clock: c is spared and a, not used again, goes": (Policy.CLOCK, "abcadcea", 3, "...H.H.."),
    "sieve: the hand passed a, clears c, and takes d": (Policy.SIEVE, "abcadcea", 3, "...H.H.H"),
    "sieve: the hand goes on where it was": (Policy.SIEVE, "abcadeabad", 3, "...H..H.H."),
    "lfu: of two used twice, a has been so for longer": (Policy.LFU, "ababcbab", 2, "..HH.H.H"),
    "lfu: a count starts anew": (Policy.LFU, "aabbbcaca", 2, ".H.HH...."),
    "arc: a was used twice, and b and c pass it by": (Policy.ARC, "aabcadbadad", 2, ".H..H..H..H"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "references", "capacity", "expected"), BY_HAND.values(), ids=BY_HAND.keys()
)
def test_hits_worked_by_hand(policy, references, capacity, expected):
    assert pattern(policy, references, capacity) == expected


def test_s3fifo_worked_by_hand():
    # Room for 20: a small queue of 2, a main queue of 18. 0 and 1 are in the small one, which is
    # then full, and while nothing was evicted, 2 to 19 go to the main one. 20 makes 0 a ghost; 0,
    # replayed, makes 1 one and joins the main queue, which is now too long, so that 21 displaces 2,
    # which becomes no ghost. 2 is new, and makes 20 a ghost; 0 hits. 1 was a ghost, makes 21 one,
    # and joins the main queue. 2 is used twice: it is in the small queue. 22 displaces 3. For 23, 2
    # moves to the main queue, and 22 goes. 2 hits.
    references = [*range(20), 20, 0, 21, 2, 0, 1, 2, 2, 22, 23, 2]
    assert pattern(Policy.S3FIFO, references, 20) == 20 * "." + "....H.HH..H"


def test_sizes_are_bytes():
    sizes = {"a": 4, "b": 3, "c": 2, "d": 5, "e": 11}
    # Room for 10: d needs a gone, and then c's 2 and d's 5 and b's 3 fit. e fits nowhere, and
    # displaces nothing.
    assert pattern(Policy.FIFO, "abcdebcda", 10, sizes) == ".....HHH."
    assert pattern(Policy.LRU, "abcadebca", 10, sizes) == "...H....."


def test_ttl_worked_by_hand():
    times = np.array([0, 9, 10, 19, 20])
    # Written at 0 and at 10 and at 20: a read does not renew it, and at its expiry it is gone.
    assert pattern(Policy.TTL, "aaaaa", None, arrival_ns=times, ttl_ns=10) == ".H.H."
    # And what expires first makes room.
    assert pattern(Policy.TTL, "abaca", 2, arrival_ns=np.arange(5), ttl_ns=100) == "..H.."
    with pytest.raises(ValueError, match=r"ttl_ns\(=0\) > 0"):
        policy_hits(one_each([0]), [1], Policy.TTL, arrival_ns=times)


def test_an_object_is_deleted_exactly_when_it_expires():
    tier = TierSetting("disk", 100, policy=Policy.TTL, ttl="10ns")
    preset = msgspec.structs.replace(preset_of(None), tiers=(tier,))
    requests = requests_of([(0, 4, 0, [1]), (7, 8, 0, [1, 2]), (16, 4, 0, [1]), (40, 4, 0, [1])])
    rows = rows_of(preset, requests)
    assert list(zip([row[0] for row in rows], brief(rows), strict=True)) == [
        (0, "write 0 prefill 0 4 0/0"),
        (7, "read 0 load 0 4 1/0"),
        (7, "write 0 prefill 1 4 1/1"),
        (10, "delete 0 evict 0 4"),
        (16, "write 0 prefill 0 4 2/0"),
        (17, "delete 0 evict 1 4"),
        (26, "delete 0 evict 0 4"),
        (40, "write 0 prefill 0 4 3/0"),
    ]
    # The same if a row at a time has room.
    assert rows_of(preset, requests, rows=1) == rows


# Against plain Python, and libcachesim.


@st.composite
def sized_references(draw):
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    # The largest object that occurs is the last, so that every size has an object.
    references = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=120))
    return [*references, len(sizes) - 1], sizes


@pytest.mark.parametrize("policy", TIMELESS)
@settings(max_examples=100, deadline=None)
@given(drawn=sized_references(), capacity=st.integers(1, 60))
def test_hits_are_what_plain_python_says(policy, drawn, capacity):
    references, sizes = drawn
    expected = count_hits(POLICIES[policy](capacity), references, sizes)
    assert policy_hits(one_each(references), [capacity], policy, sizes=np.array(sizes)) == [
        expected
    ]


def skewed(count, objects, skew, seed):
    """Return references, some of them a loop over half of all objects, and sizes from 1 to 40."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, objects + 1) ** skew
    ids = rng.choice(objects, count, p=weights / weights.sum())
    loop = np.tile(np.arange(objects // 2), 3)
    return np.concatenate(
        [ids[: count // 2], loop, ids[count // 2 :], [objects - 1]]
    ), rng.integers(1, 40, objects)


def libcachesim_hits(directory, policy, ids, sizes, capacity):
    # It makes a cache of traces as it is imported, which a user without a home has no place for.
    os.environ.setdefault("LCS_HUB_CACHE", str(directory / "cache"))
    lcs = pytest.importorskip("libcachesim")
    classes = {
        Policy.LRU: lcs.LRU, Policy.FIFO: lcs.FIFO, Policy.CLOCK: lcs.Clock, Policy.SIEVE: lcs.Sieve,
        Policy.LFU: lcs.LFU, Policy.S3FIFO: lcs.S3FIFO, Policy.ARC: lcs.ARC,
    }  # fmt: skip
    record = np.zeros(
        len(ids), dtype=[("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")]
    )
    record["id"], record["size"], record["next"] = ids + 1, sizes[ids], -2
    path = directory / "references.oracleGeneral"
    record.tofile(path)
    reader = lcs.TraceReader(str(path), trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE)
    miss_ratio, _ = classes[policy](cache_size=capacity).process_trace(reader)
    return round((1 - miss_ratio) * len(ids))


@pytest.mark.star
@pytest.mark.parametrize("policy", TIMELESS)
@pytest.mark.parametrize("skew", [0.4, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_hits_are_libcachesims(policy, skew, seed, tmp_path):
    ids, sizes = skewed(4000, 300, skew, seed)
    for are_sized in (False, True):
        own = sizes if are_sized else np.ones_like(sizes)
        # Below, an object could be as large as S3-FIFO's small queue, which libcachesim then
        # refuses.
        capacities = [
            max(int(own.sum() * share), 10 * int(own.max()) + 10) for share in (0.08, 0.2, 0.4, 0.7)
        ]
        theirs = [libcachesim_hits(tmp_path, policy, ids, own, c) for c in capacities]
        if policy is Policy.ARC and are_sized:
            # Of one definition with it but for the steps: this one, with its steps, is it.
            references = ids.tolist()
            ours = [
                count_hits(Arc(c, are_steps_sized=False), references, own.tolist())
                for c in capacities
            ]
        else:
            ours = policy_hits(one_each(ids), capacities, policy, sizes=own)
        assert ours == theirs


def test_arcs_steps_grow_with_the_objects():
    ids, _ = skewed(4000, 300, 0.4, 1)
    small = policy_hits(one_each(ids), [30, 100, 200], Policy.ARC)
    large = policy_hits(
        one_each(ids),
        [30 * 4096, 100 * 4096, 200 * 4096],
        Policy.ARC,
        sizes=np.full(300, 4096, dtype=np.int64),
    )
    assert large == small


# In a hierarchy.


def with_policies(preset, policies, ttl):
    tiers = [
        msgspec.structs.replace(tier, policy=policy, ttl=ttl if policy is Policy.TTL else None)
        for tier, policy in zip(preset.tiers, policies, strict=False)
    ]
    return msgspec.structs.replace(preset, tiers=tuple(tiers))


@st.composite
def tiers_with(draw, policy):
    """Return a preset that has `policy` in at least one tier, beside others, and any placement."""
    preset = draw(st.sampled_from(SEMANTICS).flatmap(presets))
    others = draw(st.lists(st.sampled_from(OF_OBJECTS), min_size=3, max_size=3))
    at = draw(st.integers(0, len(preset.tiers) - 1))
    ttl = draw(st.sampled_from(["1ns", "3ns", "20ns", "100ns"]))
    return with_policies(preset, [*others[:at], policy, *others[at:]], ttl)


@pytest.mark.parametrize("policy", OF_OBJECTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_row_is_what_plain_python_says(policy, data):
    preset, requests = data.draw(tiers_with(policy)), data.draw(request_lists())
    model, ranks = data.draw(st.sampled_from([(ONE_BYTE, 1), (TWO_HEADS, 2)]))
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    oracle = Oracle(preset, requests, per_rank * stored, stored)
    expected = oracle.run()
    simulation, rows, _, _ = simulate(preset, Load(requests=requests), model, ranks=ranks)
    assert rows == expected
    moved = Counter()
    for _, op, tier, _, _, length, *_ in rows:
        moved[op, tier] += length
    for t, tier in enumerate(simulation.stats().tiers):
        assert tier.written_bytes == moved["write", t]
        assert tier.deleted_bytes == moved["delete", t]
        assert tier.written_bytes == tier.deleted_bytes + tier.live_bytes
    for room in (1, 50):
        assert simulate(preset, Load(requests=requests), model, ranks=ranks, rows=room)[1] == rows
    batches = []
    again = type(simulation)(preset, model, Load(requests=requests), ranks=ranks, rows=4096)
    again.run(lambda flush: batches.append(trace_batch(flush.rows)))
    assert [fault(preset, batch) for batch in batches] == [None]


@pytest.mark.star
@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("policy", OF_OBJECTS)
def test_slots_of_users_are_used_again(policy, placement):
    preset = preset_of(384 << 20, 3 << 30, chunk_tokens=256, placement=placement)
    preset = with_policies(preset, [policy, policy], "2s")
    model = find_model("tiny-1b")
    runs = []
    for room in (1 << 16, 900):
        simulation = Simulation(
            preset, model, Load(users=6, seed=1, until_ns=20 * 10**9), rows=room
        )
        ledger = Ledger(preset.tier_list(), 100_000)
        parts = []

        def sink(flush, ledger=ledger, parts=parts):
            parts.append(trace_batch(flush.rows))
            assert ledger.apply(parts[-1]) is None

        simulation.run(sink)
        runs.append(pa.Table.from_batches(parts))
        objects = simulation.world.control.next_object
        # More objects than slots: what nobody can ask for is forgotten, ghosts too.
        assert objects > 2 * len(simulation.world.slots)
        upper, lower = simulation.stats().tiers
        assert min(upper.deleted_bytes, lower.deleted_bytes, lower.hits) > 0
    assert runs[0].equals(runs[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["tiers.nvme.policy=ttl"],
            "tiers.nvme: policy=ttl … 10m",
        ),
        (
            ["tiers.nvme.ttl=10m"],
            "tiers.nvme: policy=ttl … 10m",
        ),
        (["tiers.nvme.policy=ttl", "tiers.nvme.ttl=0s"], "tiers.nvme.ttl(=0s) … > 0"),
        (["tiers.nvme.policy=ttl", "tiers.nvme.ttl=200y"], "unit 'y'"),
        (
            ["tiers.nvme.policy=ttl", "tiers.nvme.ttl=99999d"],
            "tiers.nvme.ttl(=99999d)",
        ),
        (["tiers.nvme.policy=mru"], "'mru'"),
    ],
)
def test_a_policy_that_cannot_be_is_named(changes, message):
    with pytest.raises(ConfigError) as caught:
        load_preset("mlperf", changes)
    assert shows(str(caught.value), message)


# Sampled.


def sampled(ids, capacities, policy, rate):
    chains = one_each(ids)
    return estimate(chains, capacities, policy, lru_curve(chains), rate=rate)


def test_a_sample_of_all_is_exact():
    ids, _ = skewed(2000, 200, 1.0, 3)
    found = sampled(ids, [20, 60], Policy.SIEVE, 1.0)
    assert [e.hits for e in found] == policy_hits(one_each(ids), [20, 60], Policy.SIEVE)
    assert {(e.sampling_rate, e.sampled_references, e.hits_error) for e in found} == {
        (1.0, len(ids), 0.0)
    }


def test_a_sample_is_of_those_whose_hash_says_so():
    """As plain Python has it: SplitMix64 of the object's number and the seed."""
    requests, seed, below = [[0, 1, 2, 3, 1], [], [5, 4, 3], [0, 6]], 3, HASH_VALUES // 2
    offsets = np.cumsum([0, *(len(of) for of in requests)])
    chains = Chains(offsets, np.concatenate(requests).astype(np.int32), np.arange(10, 17))

    def hashed(number):
        n = (number + seed * 0x9E3779B97F4A7C15 + 1) % 2**64
        n = (n ^ n >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        n = (n ^ n >> 27) * 0x94D049BB133111EB % 2**64
        return (n ^ n >> 31) % HASH_VALUES

    chosen = [number for number in range(7) if hashed(number) < below]
    assert 0 < len(chosen) < 7
    kept = [[chosen.index(number) for number in of if number in chosen] for of in requests]
    found = sample_chains(chains, below, seed)
    assert found.slots.tolist() == np.concatenate(kept).tolist()
    assert found.offsets.tolist() == np.cumsum([0, *(len(of) for of in kept)]).tolist()
    assert found.tokens.tolist() == [10 + number for number in chosen]


@pytest.mark.parametrize("policy", TIMELESS)
def test_a_sample_is_near(policy):
    rng = np.random.default_rng(4)
    weights = 1.0 / np.arange(1, 20_001) ** 0.6
    ids = np.append(rng.choice(20_000, 100_000, p=weights / weights.sum()), 19_999)
    capacities = [2_000, 8_000, 14_000]
    exact = policy_hits(one_each(ids), capacities, policy)
    for guess, hits in zip(sampled(ids, capacities, policy, 0.1), exact, strict=True):
        assert 0.38 < guess.sampled_references / len(ids) < 0.42
        assert guess.hits / len(ids) == pytest.approx(hits / len(ids), abs=0.01)
        assert guess.hits_error < 0.02 * len(ids)


def test_a_sample_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"rate\(=0\)"):
        sampled([0], [1], Policy.LRU, 0)
    with pytest.raises(ValueError, match="ttl"):
        sampled([0], [1], Policy.TTL, 1)
