from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import moving_tables  # noqa: F401
from oracle import Oracle
from simulated import ONE_BYTE, TWO_HEADS, mlperf_of, preset_of, requests_of, simulate

from kvtrace.llm.catalogue import find_model
from kvtrace.llm.serving import Attention
from kvtrace.llm.shape import (
    Chunked,
    Full,
    KvDtype,
    ModelShape,
    Sliding,
    bytes_per_token_per_rank,
    pieces,
    stored_ranks,
)
from kvtrace.requests.requests import Waits, waits_of
from kvtrace.sim.output import trace_batch
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Entry, LayerGroups, Match, Placement, Promotion
from kvtrace.sim.presets.tier import Admission, Recency, TierSetting
from kvtrace.sim.simulation import Load
from kvtrace.trace.inventory import Ledger

BLOCK = 4
# How a decode step depends on its batch: not at all, by the FLOPs, by the cache that it reads, by
# the experts it uses, and as one in which a prompt is computed, too, in memory that they share.
BATCHES = [
    {},
    {"decode_compute_ns": 3},
    {"decode_bandwidth": "1GB"},
    {"decode_active_ns": 1, "decode_compute_ns": 2, "decode_bandwidth": "100MB"},
    {
        "decode_compute_ns": 3,
        "decode_bandwidth": "100MB",
        "step_tokens": 3,
        "prefill_in_turn": True,
    },
    {
        "decode_ns_per_token": 5,
        "prefill_ns_per_token": 1,
        "step_tokens": 9,
        "prefill_in_turn": True,
    },
]
# What attention adds to a prompt: nothing, all pairs, those of a window and of chunks, nanoseconds
# and parts of one.
ATTENTION = [
    (),
    (Attention(2_000_000),),
    (Attention(300_000), Attention(700_000, 5)),
    (Attention(1, 3), Attention(1_500_000, 8, is_aligned=True)),
]
ADMISSIONS = [
    {},
    {"admission": Admission.NTH_OFFER},
    {"admission": Admission.NTH_OFFER, "admission_count": 3},
    {"admission": Admission.FREQUENCY},
    {"admission": Admission.FREQUENCY, "admission_count": 4, "admission_decay": "20ns"},
    {"admission": Admission.TINYLFU},
    {"admission": Admission.TINYLFU, "admission_window": 1},
]
WALKS = st.lists(st.integers(0, 1), max_size=5)
SEMANTICS = [
    (Entry.CHUNK, Match.PREFIX, Placement.WRITE_THROUGH, Promotion.ALWAYS),
    (Entry.CHUNK, Match.PREFIX, Placement.WRITE_THROUGH, Promotion.NEVER),
    (Entry.CHUNK, Match.PREFIX, Placement.WRITE_BACK, Promotion.NEVER),
    (Entry.TURN, Match.ANY, Placement.WRITE_BACK, Promotion.NEVER),
    (Entry.TURN, Match.ANY, Placement.WRITE_THROUGH, Promotion.ALWAYS),
    (Entry.CHUNK, Match.PREFIX, Placement.WRITE_THROUGH, Promotion.SECOND_TOUCH),
    (Entry.CHUNK, Match.PREFIX, Placement.WRITE_THROUGH, Promotion.TEMPORARY),
    (Entry.CHUNK, Match.PREFIX, Placement.WRITE_BACK, Promotion.ALWAYS),
]


@st.composite
def request_lists(draw):
    """Requests whose prompts are walks down one tree, so that they share prefixes."""
    names: dict[tuple[int, ...], int] = {}
    rows, now = [], 0
    for walk in draw(st.lists(WALKS, min_size=1, max_size=14)):
        now += draw(st.sampled_from([0, 0, 1, 3, 40]))
        ids = [names.setdefault(tuple(walk[: i + 1]), len(names)) for i in range(len(walk))]
        spare = draw(st.integers(0, BLOCK - 1)) if ids else 0
        rows.append((now, len(ids) * BLOCK - spare, draw(st.integers(0, 7)), ids))
    return requests_of(rows, block_tokens=BLOCK)


@st.composite
def waiting(draw, requests):
    """Return which of the requests wait for others.

    Nothing, sessions, or a graph with joins and waits for starts.
    """
    count, kind = len(requests), draw(st.sampled_from(["none", "sessions", "graph"]))
    if kind == "none":
        return None
    delays = st.sampled_from([0, 0, 1, 5, 30])
    if kind == "sessions":
        sessions = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
        return waits_of(replace(
            requests, session_id=np.array(sessions),
            answered_ns=requests.arrival_ns + draw(st.sampled_from([0, 2])),
        ))  # fmt: skip
    edges = [
        (row, before, draw(delays), draw(st.booleans()))
        for row in range(1, count)
        for before in sorted(draw(st.sets(st.integers(0, row - 1), max_size=3)))
    ]
    return Waits.of(
        count,
        edges,
        np.array(draw(st.lists(delays, min_size=count, max_size=count)), dtype=np.int64),
    )


@st.composite
def presets(draw, semantics):
    entry, match, placement, promotion = semantics
    # Sizes near multiples of a chunk of four tokens at 1, 4 or 16 bytes each.
    capacity = st.none() | st.integers(0, 90) | st.sampled_from([0, 16, 32, 48, 64, 128, 256])
    return preset_of(
        *draw(st.lists(capacity, min_size=1, max_size=4)),
        is_gpu=draw(st.booleans()),
        entry=entry, match=match, placement=placement, promotion=promotion,
        chunk_tokens=draw(st.sampled_from([1, 2, 4, 8])),
        high_watermark=draw(st.sampled_from([1.0, 0.8, 0.5])),
        max_object_fraction=draw(st.sampled_from([1.0, 0.95, 0.25])),
        decode_read_tokens=draw(st.sampled_from([0, 2])),
        decode_reads_at_once=draw(st.booleans()),
        demotion_keeps_age=draw(st.booleans()),
        prefill_only_from_tokens=draw(st.sampled_from([0, 9])),
        **{
            "prefill_ns_per_token": draw(st.sampled_from([0, 1])),
            "decode_ns_per_token": draw(st.sampled_from([0, 2])),
            "prefill_in_turn": draw(st.booleans()),
        } | draw(st.sampled_from(BATCHES)),
    )  # fmt: skip


def fault(preset, rows):
    """Return the first fault in simulated rows, by the rules of `kvtrace validate`."""
    return Ledger(preset.tier_list(), 10_000).apply(rows)


@pytest.mark.first(semantics=5)
@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_every_row_is_what_plain_python_says(semantics, data):
    preset, requests = data.draw(presets(semantics)), data.draw(request_lists())
    if preset.entry is Entry.CHUNK:
        pad = data.draw(st.sampled_from([1, 3]))
        preset = msgspec.structs.replace(
            preset, partial_chunks=data.draw(st.booleans()), pad_bytes=pad
        )
    model, ranks = data.draw(
        st.sampled_from(
            [(ONE_BYTE, 1), (ONE_BYTE, 8), (TWO_HEADS, 1), (TWO_HEADS, 2), (TWO_HEADS, 8)]
        )
    )
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    load = Load(requests=requests, waits=data.draw(waiting(requests)))
    oracle = Oracle(preset, requests, per_rank * stored, stored, waits=load.waits)
    expected = oracle.run()
    simulation, rows, _, _ = simulate(preset, load, model, ranks=ranks)
    assert rows == expected
    if (arrivals := simulation.arrivals()) is not None:
        assert list(zip(*map(list, arrivals), strict=True)) == oracle.came

    stats = simulation.stats()
    assert sum(t.hits for t in stats.tiers) == oracle.hits
    assert (stats.lookups, stats.requests) == (oracle.lookups, len(requests))
    # A few rows of room at a time make the loop stop and go on, and change nothing.
    for room in (1, 3, 50):
        other, same_rows, _, _ = simulate(preset, load, model, ranks=ranks, rows=room)
        assert same_rows == rows
        assert other.stats() == stats


WINDOWS = ModelShape(
    source="test", kv_dtype=KvDtype.INT8, max_context_tokens=131072,
    groups=(
        Full(layers=1, kv_heads=2, head_dim=1), Sliding(layers=2, kv_heads=2, head_dim=1, window_tokens=5),
        Chunked(layers=1, kv_heads=2, head_dim=1, window_tokens=8),
    ),
)  # fmt: skip
FOUR_LAYERS = ModelShape(
    source="test", groups=(Full(layers=4, kv_heads=2, head_dim=1),), kv_dtype=KvDtype.INT8, max_context_tokens=131072
)  # fmt: skip


@st.composite
def rich_presets(draw, semantics):
    """Return a preset with low marks, exclusive tiers, thresholds and padding."""
    preset = draw(presets(semantics))
    is_chunk, is_back = semantics[0] is Entry.CHUNK, semantics[2] is Placement.WRITE_BACK
    low = st.none() | st.sampled_from([0.0, 0.25, 0.5])
    at_once, whole = (
        st.sampled_from([0, 0, 1, 2]),
        -1 if is_back else draw(st.integers(-1, len(preset.tiers) - 1)),
    )
    tiers = tuple(
        msgspec.structs.replace(
            tier, low_watermark=None if tier.capacity is None else draw(low), request_reads=draw(at_once),
            request_writes=draw(at_once), whole_offers=place == whole, looks_past_miss=draw(st.booleans()),
            loads_whole=draw(st.booleans()), recency=draw(st.none() | st.sampled_from(Recency)),
        )
        for place, tier in enumerate(preset.tiers)
    )  # fmt: skip
    if draw(st.booleans()):
        tiers = tuple(
            t if t.whole_offers else msgspec.structs.replace(t, **draw(st.sampled_from(ADMISSIONS)))
            for t in tiers
        )
    return msgspec.structs.replace(
        preset, tiers=tiers, exclusive=is_back and draw(st.booleans()), recency=draw(st.sampled_from(Recency)),
        pad_bytes=draw(st.sampled_from([1, 3, 16])) if is_chunk else 1,
        min_load_tokens=draw(st.sampled_from([0, 5, 9])) if is_chunk else 0,
        min_lookup_tokens=draw(st.sampled_from([0, 0, 8, 13])) if is_chunk else 0,
        offer_tokens=draw(st.sampled_from([0, 0, 1, 4, 9])) if is_chunk else 0,
        offers_hits=is_chunk and not is_back and draw(st.booleans()),
    )  # fmt: skip


@st.composite
def staged_presets(draw):
    """Return a preset in which a tier stages, makes room only at times, or orders loads backwards,
    above one that holds more: of 4 to 9 chunks above up to 24.
    """
    every = draw(st.sampled_from([None, None, "1ns", "4ns", "30ns"]))
    recency = draw(st.sampled_from([Recency.HEAD_FIRST, Recency.HEAD_FIRST, *Recency]))
    backwards = st.booleans() if recency is Recency.HEAD_FIRST else st.just(False)
    stages = draw(st.sampled_from([True, True, False]))
    policy = draw(
        st.sampled_from(
            [Policy.LRU, Policy.FIFO]
            if every
            else [Policy.LRU, Policy.LRU, Policy.LFU, Policy.FIFO]
        )
    )
    pool = TierSetting(
        "pool", draw(st.integers(15, 36)), high_watermark=draw(st.sampled_from([1.0, 1.0, 0.8, 0.5])),
        low_watermark=draw(st.none() | st.sampled_from([0.0, 0.25, 0.5])), staging=stages,
        max_object_fraction=draw(st.sampled_from([1.0, 1.0, 0.1])), evict_every=every,
        evict_share=draw(st.none() | st.sampled_from([0.2, 0.5, 1.0])) if every else None,
        loads_backwards=draw(backwards), stores_backwards=stages and policy is Policy.LRU and draw(backwards),
        policy=policy if stages or every else Policy.LRU,
        fits_at_once=bool(every and not stages and draw(st.booleans())),
    )  # fmt: skip
    below = TierSetting(
        "below", draw(st.none() | st.integers(20, 96)), loads_backwards=draw(backwards),
        loads_twice=draw(st.booleans()),
        policy=draw(st.sampled_from([Policy.LRU, Policy.LFU])),
        request_writes=draw(st.sampled_from([0, 0, 1, 2])), request_reads=draw(st.sampled_from([0, 0, 2])),
    )  # fmt: skip
    above = draw(st.sampled_from([(), (), (TierSetting("above", 0),), (TierSetting("above", 9),)]))
    return msgspec.structs.replace(
        preset_of(1), tiers=(*above, pool, below), recency=recency, skip_held=stages and draw(st.booleans()),
        match=draw(st.sampled_from([Match.PREFIX, Match.PREFIX_BY_TIER])),
        promotion=draw(st.sampled_from(Promotion)), min_load_tokens=draw(st.sampled_from([0, 0, 9])),
        prefill_ns_per_token=draw(st.sampled_from([0, 1])),
    )  # fmt: skip


@st.composite
def conversations(draw):
    """Requests of a few conversations, each turn of which adds up to three blocks to the one
    before.
    """
    chains: list[list[int]] = [[0], [0], [0, 1], [2]]
    rows, now, new = [], 0, 3
    for which, blocks, wait in draw(st.lists(st.tuples(*map(st.sampled_from, (range(4), range(4), (0, 1, 3, 9)))),
                                             min_size=2, max_size=16)):  # fmt: skip
        now += wait
        chains[which] += range(new, new + blocks)
        new += blocks
        rows.append((now, len(chains[which]) * BLOCK, 0, list(chains[which])))
    return requests_of(rows, block_tokens=BLOCK)


@settings(max_examples=400, deadline=None)
@given(preset=staged_presets(), requests=conversations())
def test_staging_and_room_made_at_times(preset, requests):
    oracle = Oracle(preset, requests, 1, 1)
    expected = oracle.run()
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    assert rows == expected
    assert sum(t.hits for t in simulation.stats().tiers) == oracle.hits
    for room in (1, 50):
        assert simulate(preset, Load(requests=requests), rows=room)[1] == rows


def test_objects_already_stored_precede_those_stored_now():
    tiers = (
        TierSetting("above", 9),
        TierSetting("pool", 15, staging=True),
        TierSetting("below", None),
    )
    preset = msgspec.structs.replace(
        preset_of(1), tiers=tiers, recency=Recency.TAIL_FIRST, skip_held=True, match=Match.PREFIX,
        promotion=Promotion.NEVER, prefill_ns_per_token=1,
    )  # fmt: skip
    # Both begin before the first block is there, which the second then finds as it stores.
    requests = requests_of([(0, BLOCK, 0, [0]), (0, 3 * BLOCK, 0, [0, 3, 4])], block_tokens=BLOCK)
    rows = simulate(preset, Load(requests=requests))[1]
    # Two fit above. The third block of the prompt takes the place of the second: the first, held,
    # comes before it.
    assert [row[4] for row in rows if row[1:3] == ("delete", 0)] == [1]


@pytest.mark.first(semantics=4)
@pytest.mark.parametrize("semantics", SEMANTICS, ids="-".join)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_marks_exclusion_windows_layers_and_padding(semantics, data):
    preset, requests = data.draw(rich_presets(semantics)), data.draw(request_lists())
    preset = msgspec.structs.replace(
        preset, prefill_attention=data.draw(st.sampled_from(ATTENTION))
    )
    model, ranks = data.draw(
        st.sampled_from([(WINDOWS, 1), (WINDOWS, 2), (FOUR_LAYERS, 1), (FOUR_LAYERS, 2)])
    )
    layers = 1
    if model is WINDOWS and preset.entry is Entry.CHUNK:
        groups = data.draw(st.sampled_from([LayerGroups.ONE, LayerGroups.KIND]))
        match = data.draw(st.sampled_from([Match.PREFIX, Match.PREFIX_BY_TIER]))
        preset = msgspec.structs.replace(preset, layer_groups=groups, match=match)
    if model is FOUR_LAYERS and preset.entry is Entry.CHUNK:
        preset = msgspec.structs.replace(
            preset, layers_per_object=data.draw(st.sampled_from([0, 1, 2, 3]))
        )
        layers = -(-4 // preset.layers_per_object) if preset.layers_per_object else 1
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    load = Load(requests=requests, waits=data.draw(waiting(requests)))
    oracle = Oracle(
        preset,
        requests,
        per_rank * stored,
        stored,
        layers=layers,
        pieces=pieces(model, ranks),
        waits=load.waits,
    )
    expected = oracle.run()
    simulation, rows, _, _ = simulate(preset, load, model, ranks=ranks)
    assert rows == expected
    assert simulation.world.tiers["file_lookups"].tolist() == [
        tier.looked_up for tier in oracle.tiers
    ]
    tiers = simulation.stats().tiers
    assert sum(t.hits for t in tiers) == oracle.hits
    refused = [(len(tier.refused), sum(tier.refused)) for tier in oracle.tiers]
    assert [(t.refused_objects or 0, t.refused_bytes or 0) for t in tiers] == refused
    assert simulate(preset, load, model, ranks=ranks, rows=1)[1] == rows


@settings(max_examples=80, deadline=None)
@given(preset=st.sampled_from(SEMANTICS).flatmap(rich_presets), requests=request_lists())
def test_what_is_written_is_live_or_deleted(preset, requests):
    batches = []
    simulation, rows, _, _ = simulate(preset, Load(requests=requests), TWO_HEADS, ranks=2)
    moved = Counter()
    for _, op, tier, _, _, length, *_ in rows:
        moved[op, tier] += length
    for t, tier in enumerate(simulation.stats().tiers):
        assert tier.written_bytes == moved["write", t]
        assert tier.deleted_bytes == moved["delete", t]
        assert tier.read_bytes == moved["read", t]
        assert tier.written_bytes == tier.deleted_bytes + tier.live_bytes
    again = type(simulation)(preset, TWO_HEADS, Load(requests=requests), ranks=2, rows=4096)
    again.run(lambda flush: batches.append(trace_batch(flush.rows)))
    assert [fault(preset, batch) for batch in batches] == [None]


USERS = {
    "turns in a waterfall": mlperf_of(2 << 30, 3 << 30, 9 << 30),
    "chunks written through": preset_of(1 << 30, 2 << 30, 3 << 30, chunk_tokens=256),
    "small chunks": preset_of(64 << 20, 300 << 20, chunk_tokens=64),
}


@pytest.mark.first(preset=1)
@pytest.mark.parametrize("preset", USERS.values(), ids=USERS.keys())
def test_users_do_the_same_however_little_room_the_loop_has(preset):
    load = Load(users=6, seed=7, until_ns=90 * 10**9, max_requests=45)
    model = find_model("tiny-1b")
    large, rows, log, sizes = simulate(preset, load, model, ranks=2, rows=1 << 18)
    assert len(log) == large.stats().requests == 45
    assert any(op == "delete" for _, op, *_ in rows)
    # A trace names each object once; its sizes are those of the rows.
    seen = {object_: length for *_, object_, length, _, _, _ in rows}
    assert max(seen) < len(sizes)
    assert {sizes[o] for o in seen} == set(seen.values())
    assert all(sizes[o] == length for o, length in seen.items())
    for room in (1, 3000):
        small, same_rows, same_log, same_sizes = simulate(preset, load, model, ranks=2, rows=room)
        assert same_rows == rows
        assert (same_log, same_sizes, small.stats()) == (log, sizes, large.stats())


@pytest.mark.full
def test_memory_follows_what_a_tier_may_delete():
    preset, model = preset_of(None, chunk_tokens=16), find_model("tiny-1b")
    load = Load(users=40, seed=1, until_ns=3 * 10**9)
    # Nothing is ever deleted: no chunk needs a slot for longer than it is being written.
    endless = simulate(preset, load, model)
    objects = len(endless[3])
    assert int((endless[0].world.slots["live"] != 0).sum()) == 0
    assert len(endless[0].world.slots) < objects / 5  # as many as one request may need at once
    assert endless[0].stats().tiers[0].live_bytes == sum(endless[3])
    # A tier that may delete it must remember it, as long as it has room.
    large = simulate(preset_of(1 << 40, chunk_tokens=16), load, model)
    assert int((large[0].world.slots["live"] != 0).sum()) == len(large[3]) == objects
    assert large[1] == endless[1]
    # What a small one has deleted, and is still asked for, needs none either.
    small = simulate(preset_of(1 << 20, chunk_tokens=16), load, model)
    live = small[0].stats().tiers[0].live_bytes // small[3][0]
    assert int((small[0].world.slots["live"] != 0).sum()) == live < objects / 20


def test_a_users_turns_do_not_depend_on_the_other_users():
    preset, model = mlperf_of(4 << 30, None), find_model("llama3.1-8b")

    def asked(users):
        log = simulate(preset, Load(users=users, seed=11, until_ns=60 * 10**9), model)[2]
        # arrival, turn, input, output, qos, kind: all but the numbers of request and session, which
        # are global
        return Counter((a, t, i, o, q, k) for a, _, _, t, i, o, q, k in log)

    few, many = asked(3), asked(30)
    assert sum(few.values()) == 19
    assert few <= many
    assert sum(many.values()) > 5 * sum(few.values())


def test_seeds_differ():
    preset, model = mlperf_of(None), find_model("llama3.1-8b")
    logs = [
        simulate(preset, Load(users=5, seed=s, until_ns=30 * 10**9), model)[2] for s in (1, 1, 2)
    ]
    assert logs[0] == logs[1] != logs[2]


@pytest.mark.full
def test_more_requests_in_flight_than_there_were_actors():
    requests = requests_of([(i, 4, 1, [i]) for i in range(3000)])
    preset = preset_of(4000, decode_read_tokens=1, decode_ns_per_token=10_000)
    oracle = Oracle(preset, requests, 1, 1)
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    assert len(simulation.world.actors) >= 3000
    assert rows == oracle.run()
