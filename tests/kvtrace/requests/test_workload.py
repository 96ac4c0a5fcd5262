"""System prompts, documents, and one half of a node.

A token is a byte, and lengths come from the request log.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from phrases import shows
from simulated import (
    ONE_BYTE,
    TWO_HEADS,
    brief,
    kvtrace,
    mlperf_of,
    preset_of,
    requests_of,
    simulate,
)
from whole import read_table

from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I8, function
from kvtrace.core.schema import OBJECTS
from kvtrace.core.simulation_stats import LookupCounts, TierStats
from kvtrace.core.statistics import parse_endurance
from kvtrace.core.tables import objects_path, open_table
from kvtrace.curves.points import Meter
from kvtrace.llm.catalogue import find_model
from kvtrace.native.records import USER
from kvtrace.requests.users import Popularity, ServingMode, Workload, library_of, make_users
from kvtrace.sim.presets.preset import Placement, Promotion, load_preset, preset_names
from kvtrace.sim.simulation import Load, Simulation
from kvtrace.studies.gen_options import DriveArguments

S = 10**9


def with_workload(preset, **fields):
    """Return `preset` with a workload of these fields."""
    return msgspec.structs.replace(preset, workload=Workload(**fields))


def turns_of(log):
    """Return, for each request, its new tokens and whether it begins its conversation.

    Log has no retrieved tokens.
    """
    history, found = {}, []
    for _, _, session, _, tokens, output, _, _ in log:
        found.append((tokens - history.get(session, 0), session not in history))
        history[session] = tokens + output
    return found


def asked(preset, **load):
    return simulate(preset, Load(**load), ONE_BYTE, rows=1 << 16)


USERS = {"users": 3, "seed": 7, "until_ns": 60 * S}


def test_a_prompt_is_stored_by_the_first_and_read_by_all_others():
    preset = with_workload(
        mlperf_of(None, decode_read_tokens=0), prompt_share=1.0, prompt_tokens=(100,)
    )
    simulation, rows, log, _ = asked(preset, **USERS)
    plain = asked(mlperf_of(None, decode_read_tokens=0), **USERS)
    assert [(o, length) for _, op, _, _, o, length, *_ in rows if op == "write" and o == 0] == [
        (0, 100)
    ]
    of_prompt = [
        request
        for _, op, _, phase, o, _, request, _, _ in rows
        if o == 0 and (op, phase) == ("read", "load")
    ]
    assert of_prompt == list(range(1, len(log)))
    # The same turns are asked with and without it; each request is 100 tokens longer.
    assert [line[4] - 100 for line in log] == [line[4] for line in plain[2]]
    assert [line[:4] for line in log] == [line[:4] for line in plain[2]]
    stats, before = simulation.stats(), plain[0].stats()
    assert stats.prompts == LookupCounts(
        lookups=len(log), hits=len(log) - 1, hit_ratio=1 - 1 / len(log)
    )
    assert stats.lookups - before.lookups == len(log)
    assert stats.tiers[0].written_bytes - before.tiers[0].written_bytes == 100
    assert stats.tiers[0].read_bytes - before.tiers[0].read_bytes == 100 * (len(log) - 1)


def test_the_first_request_stores_its_prompt_before_its_entry():
    preset = with_workload(
        mlperf_of(None, decode_read_tokens=0), prompt_share=1.0, prompt_tokens=(100,)
    )
    _, rows, log, _ = asked(preset, users=1, seed=7, until_ns=60 * S, max_requests=2)
    (first, _), (second, is_new) = turns_of(log)
    assert not is_new
    assert brief(rows) == [
        "write 0 prefill 0 100 0/0",
        f"write 0 prefill 1 {first - 100} 0/0",
        "read 0 load 0 100 1/0",
        f"read 0 load 1 {first - 100} 1/0",
        f"write 0 prefill 2 {second} 1/1",
    ]


def test_the_head_of_a_chain_is_shared_and_the_partial_rest_not():
    # 100 tokens are one full chunk of 64; the other 36 begin each conversation's own first chunk.
    preset = with_workload(preset_of(None, chunk_tokens=64), prompt_share=1.0, prompt_tokens=(100,))
    simulation, rows, log, sizes = asked(preset, **USERS)
    last = {session: tokens for _, _, session, _, tokens, *_ in log}
    assert 1 + len(sizes) == 1 + sum(tokens // 64 - 1 for tokens in last.values())
    writes = Counter(o for _, op, _, _, o, *_ in rows if op == "write")
    assert set(writes.values()) == {1}
    assert writes[0] == 1
    assert sum(o == 0 for _, op, _, _, o, *_ in rows if op == "read") == len(log) - 1
    assert simulation.stats().prompts == LookupCounts(
        lookups=len(log), hits=len(log) - 1, hit_ratio=1 - 1 / len(log)
    )
    assert simulation.stats().lookups == sum(tokens // 64 for _, _, _, _, tokens, *_ in log)


@pytest.mark.parametrize("capacity", [0, 50, 99])
def test_a_prompt_that_fits_nowhere_is_no_hit(capacity):
    preset = with_workload(
        mlperf_of(capacity, decode_read_tokens=0), prompt_share=1.0, prompt_tokens=(100,)
    )
    simulation, rows, log, _ = asked(preset, **USERS)
    assert rows == []
    assert simulation.stats().prompts == LookupCounts(lookups=len(log), hits=0, hit_ratio=0.0)
    assert simulation.stats().unplaced_objects == 2 * len(log)


def test_a_lost_prompt_is_stored_again():
    preset = with_workload(
        mlperf_of(12_000, decode_read_tokens=0), prompt_share=1.0, prompt_tokens=(10_000,)
    )
    simulation, rows, log, _ = asked(preset, **USERS)
    stored = [op for _, op, _, _, o, *_ in rows if o == 0]
    # Written, perhaps read, deleted, written again: never twice without a delete between.
    changes = [op for op in stored if op != "read"]
    assert changes == ["write", "delete"] * (len(changes) // 2) + ["write"] * (len(changes) % 2)
    assert changes.count("write") > 5
    assert changes.count("write") + stored.count("read") == len(log)
    assert simulation.stats().prompts.hits == stored.count("read")


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_share_of_conversations_has_each_prompt_equally_often(share):
    preset = with_workload(
        mlperf_of(None, decode_read_tokens=0), prompt_share=share, prompt_tokens=(10, 20, 40)
    )
    _, rows, log, _ = asked(preset, users=600, seed=1, until_ns=20 * S)
    plain = asked(mlperf_of(None, decode_read_tokens=0), users=600, seed=1, until_ns=20 * S)[2]
    begun = [
        tokens - other[4]
        for (_, _, _, turn, tokens, *_), other in zip(log, plain, strict=True)
        if turn == 0
    ]
    found, count = Counter(begun), len(begun)
    assert set(found) == {0, 10, 20, 40}
    for tokens, expected in ((0, 1 - share), (10, share / 3), (20, share / 3), (40, share / 3)):
        assert (
            abs(found[tokens] - expected * count) < 4 * (expected * (1 - expected) * count) ** 0.5
        )
    # As many objects are written as there are prompts, whoever comes first.
    assert Counter(o for _, op, _, _, o, *_ in rows if op == "write" and o < 3) == {
        0: 1,
        1: 1,
        2: 1,
    }


RAG = {
    "rag_share": 1.0,
    "rag_documents": 1,
    "rag_document_tokens": (1200, 1200),
    "rag_chunk_tokens": 512,
}


def test_documents_are_populated_and_their_chunks_retrieved():
    # 1,200 tokens are chunks of 512, 512 and 176 tokens; all three are retrieved by every request.
    preset = with_workload(mlperf_of(None, decode_read_tokens=0), **RAG)
    simulation, rows, log, _ = asked(preset, users=1, seed=7, until_ns=60 * S, max_requests=2)
    assert brief(rows[:3]) == [
        f"write 0 populate {i} {size}" for i, size in enumerate((512, 512, 176))
    ]
    assert rows[0][0] == rows[2][0] == 0
    first, second = (line[4] - 1200 for line in log)
    assert sorted(brief(rows[3:6])) == [
        f"read 0 retrieve {i} {size} 0/0" for i, size in enumerate((512, 512, 176))
    ]
    assert brief(rows[6:7]) == [f"write 0 prefill 3 {first} 0/1"]
    assert sorted(brief(rows[7:10])) == [
        f"read 0 retrieve {i} {size} 1/0" for i, size in enumerate((512, 512, 176))
    ]
    # What was retrieved is no part of the conversation: the next turn loads the turn alone.
    output = log[0][5]
    assert brief(rows[10:]) == [
        f"read 0 load 3 {first} 1/1",
        f"write 0 prefill 4 {second - first - output} 1/2",
    ]
    stats = simulation.stats()
    assert stats.documents == LookupCounts(lookups=6, hits=6, hit_ratio=1.0)
    assert (stats.lookups, stats.misses) == (7, 0)
    assert stats.tiers[0].populated_bytes == 1200


def test_document_chunks_are_read_first_and_promoted_alike():
    fields = RAG | {"rag_document_tokens": (128, 128), "rag_chunk_tokens": 128}
    # Two objects of 64 tokens, populated last to first into a fast tier of one: it keeps the
    # second.
    preset = with_workload(
        preset_of(64, None, chunk_tokens=64, promotion=Promotion.ALWAYS), **fields
    )
    _, rows, log, _ = asked(preset, users=1, seed=7, until_ns=60 * S, max_requests=1)
    own = (log[0][4] - 128) // 64
    assert brief(rows[:12]) == [
        "write 0 populate 0 64", "delete 0 evict 0 64", "write 0 populate 1 64",
        "write 1 populate 0 64", "write 1 populate 1 64",
        "read 1 retrieve 0 64 0/0", "read 0 retrieve 1 64 0/0",
        # Only the first is below; it is copied up, where the second makes room.
        "delete 0 evict 1 64", "write 0 promote 0 64 0/1",
        "delete 0 evict 0 64", "write 0 prefill 2 64 0/2", "delete 0 evict 2 64",
    ]  # fmt: skip
    assert sum(r.startswith("write 1 store") for r in brief(rows)) == own


def test_a_lost_chunk_of_a_document_is_stored_again():
    preset = with_workload(mlperf_of(9000, decode_read_tokens=0), **RAG)
    simulation, rows, log, _ = asked(preset, **USERS)
    documents = simulation.stats().documents
    assert documents.lookups == 3 * len(log)
    assert 0 < documents.hits < documents.lookups
    again = sum(op == "write" and phase == "prefill" and o < 3 for _, op, _, phase, o, *_ in rows)
    assert again == documents.lookups - documents.hits


def test_what_was_populated_is_not_worn_out_every_day():
    preset = with_workload(mlperf_of(0, None, decode_read_tokens=0), mode=ServingMode.DECODE_ONLY)
    simulation = asked(preset, **USERS)[0]
    assert simulation.stats().tiers[1].written_bytes == 3 * 10 * 2048
    assert (
        DriveArguments().wear(preset, simulation.stats().tiers, 60 * S)[0]["written_bytes_per_day"]
        == 0
    )


def test_evictions_for_populated_data_precede_the_start():
    """Of a write-back stack rates had the demotions that populating caused.

    Size and study wore drives by them.
    """
    preset = with_workload(mlperf_of(700, None, decode_read_tokens=0), **RAG)
    simulation, rows, *_ = asked(preset, **USERS)
    [first, *_] = [of for of in rows if of[1] != "delete" and of[3] != "populate"]
    populated = [sum(r[5] for r in rows if r[1:4] == ("write", t, "populate")) for t in range(2)]
    assert first[0] > 0
    assert populated == [tier.populated_bytes for tier in simulation.stats().tiers]
    assert populated[1] > 0
    again = Simulation(preset, ONE_BYTE, simulation.load)
    meter = Meter(again)
    again.run(meter)
    written = again.stats().tiers[1].written_bytes - populated[1]
    assert meter.rates(60 * S)[1].write_bytes_per_s.mean == pytest.approx(written / 60)


def test_memory_and_buckets_do_not_wear():
    """Of lmcache-s3 it is the drive above the bucket, which alone was said to wear."""
    counters = dict.fromkeys(TierStats.__struct_fields__, 0) | {"instances": UNSET}
    tiers = [TierStats(**counters | {"written_bytes": 10**12})] * 4
    preset, asked_for = (
        load_preset("lmcache-s3"),
        DriveArguments(10**12, parse_endurance("1DWPD,5y")),
    )
    drive, bucket = asked_for.wear(preset, tiers, 60 * S)
    assert (drive["name"], drive["drive_writes_per_day"], drive["years_of_life"]) == (
        "nvme",
        1440,
        5 / 1440,
    )
    assert (bucket["name"], bucket["drive_writes_per_day"], "years_of_life" in bucket) == (
        "s3",
        None,
        False,
    )
    assert asked_for.wear(load_preset("vllm-offload-cpu"), tiers[:2], 60 * S) == []


PICK = function("user_pick", I8, int, USER, int, int, returns=int)
PICK_DISTINCT = function("user_pick_distinct", I8, int, int, int, int, USER, int, int, returns=int)


def pick_many(found, weights, users):
    for i in range(len(found)):
        found[i] = PICK(weights, len(weights), users, 3, 0)


def pick_chunks(chosen, count, is_zipf, users):
    return PICK_DISTINCT(chosen, 0, len(chosen), count, is_zipf, users, 3, 0)


def test_popularity_is_drawn_from_whole_weights():
    users, _ = make_users(1, 3)
    # 1, 1/2, 1/3, 1/4 of 2^32, as whole numbers.
    library = library_of(Workload(rag_share=1.0, rag_documents=4), 0, 32, 1, is_turn=True, seed=1)
    assert np.diff(library.document_weight, prepend=0).tolist() == [2**32, 2**31, 2**32 // 3, 2**30]
    picked = np.empty(5000, np.int64)
    pick_many(picked, library.document_weight, users)
    found = Counter(picked.tolist())
    for rank in range(4):
        expected = 5000 / (rank + 1) / (25 / 12)
        assert abs(found[rank] - expected) < 4 * expected**0.5
    even = library_of(
        Workload(rag_share=1.0, rag_documents=4, rag_document_popularity=Popularity.UNIFORM), 0, 32, 1, is_turn=True,
        seed=1,
    )  # fmt: skip
    assert even.document_weight.tolist() == [1, 2, 3, 4]
    assert all(4000 <= sum(even.tokens[a:b]) <= 12_000 for a, b in pairwise(even.document_first))
    large = library_of(Workload(rag_share=1.0, rag_documents=9), 0, 80, 1, is_turn=True, seed=1)
    assert all(1024 <= sum(large.tokens[a:b]) <= 4096 for a, b in pairwise(large.document_first))
    # A chunk takes 256 MiB at most: at 1 MiB a token, 256 tokens.
    heavy = library_of(
        Workload(rag_share=1.0, rag_documents=9), 0, 80, 1 << 20, is_turn=True, seed=1
    )
    assert heavy.tokens.max() == 256


@pytest.mark.parametrize("is_zipf", [0, 1])
def test_chunks_are_drawn_without_repetition(is_zipf):
    users, _ = make_users(1, 3)
    first = Counter()
    for _ in range(2000):
        chosen = np.full(5, -1)
        assert pick_chunks(chosen, 8, is_zipf, users) == 5
        assert len(set(chosen.tolist())) == 5
        assert set(chosen.tolist()) <= set(range(8))
        first[int(chosen[0])] += 1
    share = 1 / sum(1 / (i + 1) for i in range(8)) if is_zipf else 1 / 8
    assert abs(first[0] - 2000 * share) < 4 * (2000 * share) ** 0.5
    assert pick_chunks(chosen, 3, is_zipf, users) == 3
    assert sorted(chosen[:3].tolist()) == [0, 1, 2]


def test_prefill_alone_writes_every_entry_and_reads_nothing():
    preset = with_workload(mlperf_of(None), mode=ServingMode.PREFILL_ONLY)
    simulation, rows, log, _ = asked(preset, **USERS)
    plain = asked(mlperf_of(None), **USERS)
    # Answers take as long elsewhere, so the same is asked at the same times.
    assert log == plain[2]
    written = [
        [(r[0], r[4], r[5], r[6]) for r in found if r[1] == "write"] for found in (rows, plain[1])
    ]
    assert written[0] == written[1]
    assert [(r[1], r[3], r[5], r[6], r[7]) for r in rows] == [
        ("write", "prefill", new, i, 0) for i, (new, _) in enumerate(turns_of(log))
    ]
    stats = simulation.stats()
    assert (stats.lookups, stats.misses, stats.tiers[0].hit_ratio) == (0, 0, None)


def test_prefill_alone_computes_all_and_stores_no_chunk_twice():
    preset = with_workload(
        preset_of(None, chunk_tokens=64, prefill_ns_per_token=10), mode=ServingMode.PREFILL_ONLY, prompt_share=1.0,
        prompt_tokens=(128,),
    )  # fmt: skip
    _, rows, log, sizes = asked(preset, **USERS)
    assert {r[1] for r in rows} == {"write"}
    assert sorted(r[4] for r in rows) == list(range(2 + len(sizes)))
    done = {request: ts for ts, *_, request, _, _ in rows}
    arrivals = {line[1]: line[0] for line in log}
    assert all(done[n] == arrivals[n] + 10 * line[4] for n, line in enumerate(log) if n in done)


@pytest.mark.parametrize("placement", list(Placement))
def test_decode_alone_reads_what_is_there_from_the_start(placement):
    preset = with_workload(
        preset_of(None, None, chunk_tokens=64, placement=placement), mode=ServingMode.DECODE_ONLY, decode_entries=2,
        decode_entry_tokens=128,
    )  # fmt: skip
    _, rows, log, _ = asked(preset, users=2, seed=7, until_ns=10 * S)
    # Two users with two entries of two chunks each.
    tiers = 2 if placement is Placement.WRITE_THROUGH else 1
    populated = [r for r in rows if r[3] == "populate"]
    assert len(populated) == 8 * tiers
    assert {(r[0], r[1], r[5], r[6], r[7]) for r in populated} == {(0, "write", 64, None, None)}
    assert {(line[2], line[4]) for line in log} <= {(entry, 128) for entry in range(4)}
    expected = [
        (line[0], "read", 0, "load", 2 * line[2] + i, 64, n, 0)
        for n, line in enumerate(log)
        for i in (0, 1)
    ]
    assert [r[:8] for r in rows[len(populated) :]] == expected
    # How often each was decoded before.
    seen = Counter()
    for _, _, session, turn, *_ in log:
        assert turn == seen[session]
        seen[session] += 1


def test_decode_alone_reads_an_entry_again_each_32_tokens():
    preset = with_workload(mlperf_of(None), mode=ServingMode.DECODE_ONLY)
    _, rows, log, _ = asked(preset, **USERS)
    assert sum(r[3] == "populate" for r in rows) == 30
    reads = Counter((r[6], r[3]) for r in rows if r[1] == "read")
    for arrival, request, _, _, tokens, output, _, _ in log:
        assert tokens == 2048
        assert reads[request, "load"] == 1
        if arrival + output * 30_000_000 < 60 * S:
            assert reads[request, "decode"] == -(-output // 32)
    first = [(r[0] - log[0][0], r[3], r[7]) for r in rows if r[6] == 0]
    assert first[:3] == [(0, "load", 0), (0, "decode", 1), (0, "decode", 2)]


def test_reads_of_an_answer_can_be_spread_over_its_tokens():
    spread = msgspec.structs.replace(mlperf_of(None), decode_reads_at_once=False)
    _, rows, log, _ = asked(with_workload(spread, mode=ServingMode.DECODE_ONLY), **USERS)
    first = [(r[0] - log[0][0], r[3], r[7]) for r in rows if r[6] == 0]
    assert first[:3] == [(0, "load", 0), (0, "decode", 1), (960_000_000, "decode", 2)]


def test_decode_alone_stores_nothing_that_was_lost():
    # Room for three of the ten entries of one user: those populated last.
    preset = with_workload(mlperf_of(3 * 2048, decode_read_tokens=0), mode=ServingMode.DECODE_ONLY)
    simulation, rows, log, _ = asked(preset, users=1, seed=7, until_ns=600 * S)
    assert Counter(r[1:4:2] for r in rows if r[1] != "read") == {
        ("write", "populate"): 10,
        ("delete", "evict"): 7,
    }
    hits = [line[1] for line in log if line[2] >= 7]
    assert [r[6] for r in rows if r[1] == "read"] == hits
    stats = simulation.stats()
    assert (stats.lookups, stats.misses) == (len(log), len(log) - len(hits))
    assert 0 < len(hits) < len(log)


def test_populating_keeps_no_tier_busy():
    slow = preset_of(None, chunk_tokens=64)
    tier = msgspec.structs.replace(slow.tiers[0], read_bandwidth="1MB", write_bandwidth="1MB")
    preset = with_workload(
        msgspec.structs.replace(slow, tiers=(tier,)), mode=ServingMode.DECODE_ONLY
    )
    simulation, *_ = asked(preset, users=1, seed=7, until_ns=600 * S)
    # 2,048 bytes at 1 MB/s, in 32 reads of 64 µs.
    assert simulation.stats().first_token.with_cache.p50_ns == 2_048_000


BAD = {
    "prompt_share=2": "workload.prompt_share(=2.0) … at most 1",
    "rag_share=-0.1": "workload.rag_share(=-0.1) … >= 0",
    "rag_share=nan": "workload.rag_share(=nan) … >= 0",
    "prompt_tokens=[]": "workload.prompt_tokens(=[])",
    "prompt_tokens=[5, 0]": "workload.prompt_tokens(=0) … >= 1 … 10000000",
    "rag_documents=0": "workload.rag_documents(=0) … >= 1",
    "rag_top_chunks=1001": "workload.rag_top_chunks(=1001) … 1 … 1000",
    "rag_document_tokens=[9, 3]": ("workload.rag_document_tokens(=[9, 3])"),
    "decode_entries=-1": "workload.decode_entries(=-1) … >= 1",
    "mode=both": "'both'",
    "colour=blue": "`colour`",
}


@pytest.mark.parametrize(("setting", "message"), BAD.items())
def test_a_workload_that_cannot_be_is_named(setting, message):
    with pytest.raises(ConfigError) as caught:
        load_preset("mlperf", [f"workload.{setting}"])
    assert shows(str(caught.value), message)


@pytest.mark.parametrize(
    ("preset", "settings", "message"),
    [
        (
            "mlperf",
            ["workload.mode=decode-only", "workload.rag_share=0.1"],
            "documents",
        ),
        (
            "mlperf",
            ["workload.mode=prefill-only", "workload.rag_share=0.1"],
            "documents",
        ),
        (
            "mlperf",
            ["workload.mode=decode-only", "workload.prompt_share=0.1"],
            "prompts",
        ),
        (
            "vllm-fs",
            ["workload.mode=decode-only", "store_generated=true"],
            "generated tokens",
        ),
        (
            "lmcache-disk",
            ["workload.rag_share=1", "workload.rag_chunk_tokens=300"],
            "a multiple of chunk_tokens(=256)",
        ),
        (
            "lmcache-disk",
            ["workload.mode=decode-only", "chunk_tokens=4096"],
            "decode_entry_tokens(=2048) must be a",
        ),
    ],
)
def test_what_means_nothing_together_is_refused(preset, settings, message):
    with pytest.raises(ConfigError) as caught:
        load_preset(preset, settings)
    assert shows(str(caught.value), message)


@pytest.mark.parametrize(
    "fields", [{"prompt_share": 0.1}, {"rag_share": 0.1}, {"mode": ServingMode.DECODE_ONLY}]
)
def test_requests_of_a_file_have_their_own(fields):
    with pytest.raises(ConfigError, match="synthetic users"):
        simulate(
            with_workload(preset_of(None), **fields), Load(requests=requests_of([(0, 4, 0, [1])]))
        )


def test_prefill_alone_takes_requests_of_a_file():
    requests = requests_of([(0, 8, 0, [1, 2]), (1, 8, 0, [1, 3])])
    rows = simulate(
        with_workload(preset_of(None), mode=ServingMode.PREFILL_ONLY), Load(requests=requests)
    )[1]
    assert brief(rows) == [
        "write 0 prefill 0 4 0/0",
        "write 0 prefill 1 4 0/0",
        "write 0 prefill 2 4 1/0",
    ]


WORKLOADS = {
    "prompts and documents": [
        "workload.prompt_share=0.5",
        "workload.rag_share=0.5",
        "workload.rag_documents=3",
    ],
    "prefill": ["workload.mode=prefill-only", "workload.prompt_share=0.5"],
    "decode": ["workload.mode=decode-only"],
}


@pytest.mark.first(preset=1)
@pytest.mark.parametrize("preset", sorted(preset_names(), key=lambda name: name != "vllm-fs"))
@pytest.mark.parametrize("settings", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_every_preset_takes_every_workload_with_little_room(preset, settings):
    load = Load(users=2, seed=5, until_ns=2 * S, max_requests=4)
    chosen = load_preset(preset, settings)
    large, rows, log, sizes = simulate(chosen, load, find_model("tiny-1b"), ranks=2, rows=1 << 16)
    small, same_rows, same_log, same_sizes = simulate(
        chosen, load, find_model("tiny-1b"), ranks=2, rows=1
    )
    assert rows
    assert same_rows == rows
    assert (same_log, same_sizes, small.stats()) == (log, sizes, large.stats())
    for tier in large.stats().tiers:
        assert tier.written_bytes == tier.deleted_bytes + tier.live_bytes


def test_a_trace_says_what_is_shared(tmp_path, monkeypatch, capsys):
    path = tmp_path / "t.parquet"
    options = [
        "--users",
        5,
        "--duration",
        "20s",
        "--set",
        "workload.prompt_share=1",
        "--set",
        "workload.rag_share=1",
    ]
    options += ["--set", "workload.rag_documents=2", "--set", "workload.prompt_tokens=[100]"]
    assert kvtrace(monkeypatch, "gen", *options, "-o", path, "--json") == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    assert stats["documents"]["hits"] == stats["documents"]["lookups"] > 0
    assert kvtrace(monkeypatch, "validate", path) == 0
    objects = read_table(objects_path(path), OBJECTS).to_pylist()
    assert objects[0] == {
        "object_id": 0,
        "key": "prompt/000000000000",
        "kind": "prompt",
        "size_bytes": 100 * 131_072,
    }
    assert objects[1]["key"] == "document/000000000001"
    assert [o["object_id"] for o in objects] == list(range(len(objects)))
    kinds = Counter(o["kind"] for o in objects)
    assert (kinds["prompt"], kinds["turn"]) == (1, stats["requests"])
    meta = open_table(path).meta
    assert meta.config["hierarchy"]["workload"]["prompt_share"] == 1.0
    assert any("system prompts" in note for note in meta.notes)
    assert any("documents" in note for note in meta.notes)


def test_each_rank_stores_its_part_of_a_prompt():
    preset = with_workload(preset_of(None, chunk_tokens=64), prompt_share=1.0, prompt_tokens=(64,))
    rows = simulate(
        preset,
        Load(users=1, seed=7, until_ns=5 * S, max_requests=1),
        TWO_HEADS,
        ranks=2,
        rows=1 << 16,
    )[1]
    assert [r[4:6] + r[8:] for r in rows[:2]] == [(0, 128, 0), (1, 128, 1)]
