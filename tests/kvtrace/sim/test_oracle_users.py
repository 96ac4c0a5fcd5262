"""Every preset, source and workload: users' rows as plain Python says them, and bytes conserved."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import moving_tables  # noqa: F401
from plans import oracle_of
from simulated import ONE_BYTE, preset_of, requests_of, simulate
from test_oracle import ATTENTION, BATCHES, SEMANTICS

from kvtrace.llm.catalogue import find_model
from kvtrace.requests import users as arrivals
from kvtrace.requests.users import ArrivalProcess, ServingMode, Workload
from kvtrace.sim.output import trace_batch
from kvtrace.sim.presets.preset import Entry, Placement, load_preset, preset_names
from kvtrace.sim.presets.tier import Recency
from kvtrace.sim.simulation import FOREVER_NS, Load, Simulation
from kvtrace.trace.inventory import Ledger

WORKLOADS = [
    Workload(),
    Workload(prompt_share=1.0, prompt_tokens=(3000,)),
    Workload(rag_share=1.0, rag_documents=1, rag_document_tokens=(4096, 4096), rag_chunk_tokens=4096),
    Workload(
        prompt_share=1.0, prompt_tokens=(5000,), rag_share=1.0, rag_documents=1, rag_document_tokens=(2048, 2048),
        rag_chunk_tokens=2048,
    ),
    Workload(mode=ServingMode.PREFILL_ONLY),
    Workload(mode=ServingMode.PREFILL_ONLY, prompt_share=1.0, prompt_tokens=(3000,)),
    Workload(mode=ServingMode.DECODE_ONLY, decode_entries=3),
]  # fmt: skip


@pytest.mark.first(workload=3)
@pytest.mark.parametrize("workload", range(len(WORKLOADS)))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_users_share_what_plain_python_says(workload, data):
    entry, match, placement, promotion = data.draw(st.sampled_from(SEMANTICS))
    capacities = data.draw(st.lists(st.none() | st.integers(0, 200_000), min_size=1, max_size=4))
    preset = preset_of(
        *capacities, entry=entry, match=match, placement=placement, promotion=promotion,
        chunk_tokens=data.draw(st.sampled_from([256, 1024])), is_gpu=data.draw(st.booleans()),
        max_object_fraction=data.draw(st.sampled_from([1.0, 0.25])),
        high_watermark=data.draw(st.sampled_from([1.0, 0.8])),
        exclusive=placement is Placement.WRITE_BACK and data.draw(st.booleans()),
        decode_read_tokens=data.draw(st.sampled_from([0, 32])),
        decode_reads_at_once=data.draw(st.booleans()),
        prefill_only_from_tokens=data.draw(st.sampled_from([0, 3000])),
        prefill_attention=data.draw(st.sampled_from(ATTENTION)),
        **{"prefill_in_turn": data.draw(st.booleans())} | data.draw(st.sampled_from(BATCHES)) | {
            "prefill_ns_per_token": data.draw(st.sampled_from([0, 1000])),
            "decode_ns_per_token": data.draw(st.sampled_from([0, 1_000_000])),
        },
        workload=WORKLOADS[workload],
    )  # fmt: skip
    if entry is Entry.CHUNK:
        is_through = placement is Placement.WRITE_THROUGH
        whole = data.draw(st.integers(-1, len(capacities) - 1)) if is_through else -1
        tiers = tuple(
            msgspec.structs.replace(
                tier, whole_offers=place == whole, request_writes=data.draw(st.sampled_from([0, 2]))
            )
            for place, tier in enumerate(preset.tiers)
        )
        preset = msgspec.structs.replace(
            preset, tiers=tiers, offer_tokens=data.draw(st.sampled_from([0, 0, 600, 2048])),
            offers_hits=is_through and data.draw(st.booleans()), recency=data.draw(st.sampled_from(Recency)),
        )  # fmt: skip
    check_users(preset, users=data.draw(st.integers(1, 3)), seed=data.draw(st.integers(0, 9)))


def asked_in(log):
    """Return what the oracle of users notes of `log`.

    When, in which session, input and output tokens.
    """
    return [(when, session, tokens, output) for when, _, session, _, tokens, output, *_ in log]


def check_users(preset, users, seed):
    """Compare what 40 requests of `users` cause with the oracle."""
    load = Load(users=users, seed=seed, until_ns=FOREVER_NS, max_requests=40)
    # With a context that holds every conversation, everybody retrieves.
    model = msgspec.structs.replace(ONE_BYTE, max_context_tokens=10**7)
    simulation, rows, log, _ = simulate(preset, load, model, rows=1 << 14)
    oracle = oracle_of(preset, users, seed, 1, 1)
    assert oracle.run() == rows
    assert asked_in(log) == oracle.users.log
    stats = simulation.stats()
    assert sum(t.hits for t in stats.tiers) == oracle.hits
    assert (stats.lookups, stats.requests) == (oracle.lookups, 40)


@pytest.mark.full
@pytest.mark.parametrize("workload", [1, 3])
def test_one_promotion_demotes_what_another_would_move(workload):
    # Each tier above the last holds one chunk: what is promoted into it pushes out what the same
    # request found there.
    preset = preset_of(
        256,
        256,
        None,
        chunk_tokens=256,
        exclusive=True,
        placement=Placement.WRITE_BACK,
        workload=WORKLOADS[workload],
    )
    check_users(preset, users=2, seed=0)


def test_refused_parts_of_a_document_prompt_are_offered_at_end():
    # Room for eight or nine chunks: the prompt's do not fit together, but would in the steps of its
    # computing.
    for capacity in (2048, 2304):
        preset = preset_of(capacity, chunk_tokens=256, workload=WORKLOADS[2], offer_tokens=2048)
        tier = msgspec.structs.replace(preset.tiers[0], whole_offers=True)
        check_users(msgspec.structs.replace(preset, tiers=(tier,)), users=2, seed=0)


SOURCES = {
    "users": lambda: Load(users=3, seed=5, until_ns=4 * 10**9),
    "open loop": lambda: Load(requests=arrivals.make_open_loop(ArrivalProcess(10.0), 3 * 10**9, 8192, 5), seed=5),
    "block ids": lambda: Load(requests=requests_of(
        [(i * 10**8, 1024 * (1 + i % 5), 40, [i % 3, *range(10 * i, 10 * i + i % 5)]) for i in range(40)],
        block_tokens=1024,
    )),
}  # fmt: skip


@pytest.mark.star
@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_every_preset_conserves_bytes_with_every_source(name, source, data):
    load, share = source(), data.draw(st.sampled_from([0.0, 0.001, 0.05]))
    modes = [m for m in ServingMode if load.requests is None or m is not ServingMode.DECODE_ONLY]
    preset = load_preset(name, [f"workload.mode={data.draw(st.sampled_from(modes))}"])
    tiers = tuple(
        (
            t
            if t.capacity_bytes is None
            else msgspec.structs.replace(t, capacity=int(t.capacity_bytes * share))
        )
        for t in preset.tiers
    )
    preset = msgspec.structs.replace(preset, tiers=tiers)
    batches = []
    simulation = Simulation(preset, find_model("tiny-1b"), load, ranks=2, rows=4096)
    simulation.run(lambda flush: batches.append(trace_batch(flush.rows)))
    ledger = Ledger(preset.tier_list(), sum(b.num_rows for b in batches))
    assert [ledger.apply(batch) for batch in batches] == [None] * len(batches)
    for t, tier in enumerate(simulation.stats().tiers):
        assert tier.written_bytes == tier.deleted_bytes + tier.live_bytes
        assert tier.live_bytes == ledger.live_bytes[t]
