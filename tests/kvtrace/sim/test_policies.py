"""Traces worked by hand.

A token is a byte, and a row reads `op tier phase object bytes request/stage`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import msgspec
import pytest
from phrases import shows
from simulated import brief, mlperf_of, preset_of, requests_of, rows_of, simulate

from kvtrace.core.errors import ConfigError
from kvtrace.core.simulation_stats import PrefillStats
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import bytes_per_token, bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.presets.preset import Placement, Promotion, as_config, load_preset, preset_names
from kvtrace.sim.simulation import Load, tier_limits

S = 10**9


def turns(*tokens, output=0, gap_ns=1):
    """Return requests of so many tokens, each an entry of its own, with ids enough for them."""
    return requests_of(
        [
            (i * gap_ns, t, output, range(1000 * i, 1000 * i + -(-t // 4)))
            for i, t in enumerate(tokens)
        ]
    )


def shared(*prompts):
    """Return requests whose prompts are these block ids, of 4 tokens each."""
    return requests_of([(i, 4 * len(ids), 0, ids) for i, ids in enumerate(prompts)])


# The MLPerf workload.


def conversations(preset, **load):
    """Return the turns of each conversation and the operations of each request by phase."""
    simulation, rows, log, _ = simulate(
        preset, Load(**load), find_model("llama3.1-8b"), rows=1 << 16
    )
    lengths, phases = Counter(line[2] for line in log), defaultdict(Counter)
    for _, _, _, phase, _, _, request, _, _ in rows:
        if request is not None:
            phases[request][phase] += 1
    return simulation, lengths, phases, log


def test_four_turns_make_six_reloads():
    _, lengths, phases, log = conversations(mlperf_of(None), users=1, seed=3, until_ns=3600 * S)
    session = next(s for s, n in lengths.items() if n == 4)
    loads = [phases[request]["load"] for _, request, s, *_ in log if s == session]
    assert loads == [0, 1, 2, 3]
    assert {n: sum(range(n)) for n in set(lengths.values())} == {
        lengths[s]: sum(phases[r]["load"] for _, r, t, *_ in log if t == s) for s in lengths
    }


def test_decode_reads_again_each_32_tokens_but_not_if_long():
    _, _, phases, log = conversations(mlperf_of(None), users=20, seed=5, until_ns=120 * S)
    history: dict[int, int] = {}
    seen = Counter()
    for arrival, request, session, _, input_tokens, output, _, _ in log:
        new = input_tokens - history.get(session, 0)
        history[session] = input_tokens + output
        if arrival + output * 30_000_000 >= 120 * S:
            continue  # cut off by the end of the run
        is_long = new >= 10_000
        seen[is_long] += 1
        assert phases[request]["decode"] == (0 if is_long else 1 + -(-output // 32))
        assert phases[request]["prefill"] == 1
    assert min(seen[True], seen[False]) > 20


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "reads"),
    [(1, 0, 1), (1, 1, 2), (1, 32, 2), (1, 33, 3), (9_999, 64, 3), (10_000, 64, 0), (0, 64, 0)],
)
def test_decode_reads(input_tokens, output_tokens, reads):
    rows = rows_of(mlperf_of(None), turns(input_tokens, output=output_tokens))
    assert [r[3] for r in rows] == ["prefill"] * (input_tokens > 0) + ["decode"] * reads


def test_the_benchmark_reads_all_at_once_and_then_sleeps():
    requests = requests_of([(0, 8, 70, [0, 1])])
    simulation, rows, _, _ = simulate(mlperf_of(None), Load(requests=requests))
    assert [r[0] for r in rows if r[3] == "decode"] == [0, 0, 0, 0]
    # The request ends as before: with 70 tokens of 30 ms.
    assert simulation.now_ns == 70 * 30_000_000
    # With a service time one follows the other, and the sleep follows the last.
    tier = msgspec.structs.replace(mlperf_of(None).tiers[0], read_bandwidth="1MB", latency="1us")
    preset = msgspec.structs.replace(mlperf_of(None), tiers=(tier,))
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    times = [r[0] for r in rows if r[3] == "decode"]
    assert times == sorted(set(times))
    assert simulation.now_ns >= times[-1] + 70 * 30_000_000


def test_decode_reads_take_turns_and_time():
    rows = rows_of(mlperf_of(None, decode_reads_at_once=False), turns(8, output=70))
    # One read fetches the entry; then one begins each run of 32 tokens of 30 ms.
    assert [(ts, phase, stage) for ts, _, _, phase, _, _, _, stage, _ in rows] == [
        (0, "prefill", 0), (0, "decode", 1), (0, "decode", 2), (960_000_000, "decode", 3), (1_920_000_000, "decode", 4),
    ]  # fmt: skip


def test_the_next_turn_waits_for_the_answer_and_a_thought():
    _, _, _, log = conversations(mlperf_of(None), users=1, seed=3, until_ns=600 * S)
    for (before, *_, output, _, _), (after, *_) in itertools.pairwise(log):
        assert 80_000_000 <= after - before - output * 30_000_000 <= 1_800_000_000


def test_evicted_turns_miss_without_io():
    simulation, lengths, phases, _ = conversations(
        mlperf_of(0, 0), users=3, seed=5, until_ns=120 * S
    )
    stats = simulation.stats()
    assert sum(phases.values(), Counter()) == Counter()
    assert stats.misses == stats.lookups == sum(sum(range(n)) for n in lengths.values()) > 20
    assert stats.unplaced_objects == stats.requests
    # With room for some, what hits is read and what misses is not.
    simulation, lengths, phases, _ = conversations(
        mlperf_of(2 << 30), users=3, seed=5, until_ns=120 * S
    )
    stats = simulation.stats()
    assert stats.lookups == sum(sum(range(n)) for n in lengths.values())
    assert (
        0
        < stats.tiers[0].hits
        == sum(p["load"] for p in phases.values())
        == stats.lookups - stats.misses
    )
    assert stats.misses > 0


def test_an_entry_over_95_percent_of_a_tier_skips_it():
    rows = rows_of(mlperf_of(100, 200, 1000), turns(95, 96, 190, 191), rows=100)
    assert [r for r in brief(rows) if "prefill" in r] == [
        "write 0 prefill 0 95 0/0",
        "write 1 prefill 1 96 1/0",
        "write 1 prefill 2 190 2/0",
        "write 2 prefill 3 191 3/0",
    ]


def test_the_last_tier_fills_to_its_capacity_and_no_further():
    preset = mlperf_of(100, decode_read_tokens=0)
    assert tier_limits(preset) == ([100], [100])
    assert brief(rows_of(preset, turns(60, 40, 100, 101))) == [
        "write 0 prefill 0 60 0/0",
        "write 0 prefill 1 40 1/0",
        "delete 0 evict 0 60",
        "delete 0 evict 1 40",
        "write 0 prefill 2 100 2/0",
    ]


def test_an_upper_tier_fills_to_80_percent_and_demotes_lru():
    preset = mlperf_of(100, 50, decode_read_tokens=0)
    assert tier_limits(preset) == ([80, 50], [95, 50])
    assert brief(rows_of(preset, turns(40, 40, 30, 20))) == [
        "write 0 prefill 0 40 0/0",
        "write 0 prefill 1 40 1/0",
        "read 0 demote 0 40",
        "write 1 demote 0 40",
        "delete 0 demote 0 40",
        "write 0 prefill 2 30 2/0",
        # 40 + 30 + 20 > 80: entry 1 goes down, for which entry 0 falls off the end.
        "delete 1 evict 0 40",
        "read 0 demote 1 40",
        "write 1 demote 1 40",
        "delete 0 demote 1 40",
        "write 0 prefill 3 20 3/0",
    ]


def test_a_decode_read_makes_an_entry_recent():
    preset = mlperf_of(
        100, 100, decode_read_tokens=32, decode_reads_at_once=False, decode_ns_per_token=10
    )
    requests = requests_of(
        [(0, 40, 64, range(10)), (5, 40, 0, range(20, 30)), (400, 40, 0, range(40, 50))]
    )
    # Entry 0 is read again at 320 ns, after entry 1 was: entry 1 must go at 400 ns.
    assert [r for r in brief(rows_of(preset, requests)) if r.startswith("delete")] == [
        "delete 0 demote 1 40"
    ]


def test_an_object_too_large_to_demote_passes_or_is_deleted():
    preset = mlperf_of(100, 20, 60, decode_read_tokens=0)
    assert brief(rows_of(preset, turns(61, 50, 80)))[1:] == [
        # 61 fits neither 19 (95 % of 20) nor 60.
        "delete 0 evict 0 61",
        "write 0 prefill 1 50 1/0",
        "read 0 demote 1 50",
        "write 2 demote 1 50",
        "delete 0 demote 1 50",
        "write 0 prefill 2 80 2/0",
    ]


# Write-through with promotion.


def test_write_through_writes_every_tier_and_reads_the_fastest():
    assert brief(rows_of(preset_of(100, 100, 100), shared([1, 2], [1, 2]))) == [
        "write 0 prefill 0 4 0/0",
        "write 0 prefill 1 4 0/0",
        "write 1 store 0 4 0/1",
        "write 2 store 0 4 0/1",
        "write 1 store 1 4 0/1",
        "write 2 store 1 4 0/1",
        "read 0 load 0 4 1/0",
        "read 0 load 1 4 1/0",
    ]


def test_a_load_is_copied_up_and_displaces_the_lru_object():
    rows = brief(rows_of(preset_of(4, 8, None), shared([1], [2], [3], [1])))
    assert rows[-5:] == [
        "read 2 load 0 4 3/0",
        "delete 1 evict 1 4",
        "write 1 promote 0 4 3/1",
        "delete 0 evict 2 4",
        "write 0 promote 0 4 3/1",
    ]
    assert rows[:-5] == [
        "write 0 prefill 0 4 0/0", "write 1 store 0 4 0/1", "write 2 store 0 4 0/1",
        "delete 0 evict 0 4", "write 0 prefill 1 4 1/0", "write 1 store 1 4 1/1", "write 2 store 1 4 1/1",
        "delete 0 evict 1 4", "write 0 prefill 2 4 2/0", "delete 1 evict 0 4", "write 1 store 2 4 2/1",
        "write 2 store 2 4 2/1",
    ]  # fmt: skip


def test_without_promotion_a_load_leaves_all_where_it_was():
    rows = rows_of(preset_of(4, 8, None, promotion=Promotion.NEVER), shared([1], [2], [3], [1]))
    assert brief(rows)[-1] == "read 2 load 0 4 3/0"


def test_exclusive_promotion_passes_a_tier_that_refuses():
    preset = preset_of(4, 0, None, placement=Placement.WRITE_BACK, exclusive=True)
    assert brief(rows_of(preset, shared([1], [2], [1])))[-5:] == [
        "delete 2 promote 0 4",
        "read 0 demote 1 4",
        "write 2 demote 1 4",
        "delete 0 demote 1 4",
        "write 0 promote 0 4 2/1",
    ]


def test_exclusive_promotion_spares_what_an_earlier_one_demoted():
    # Object 0 lies in tier 2 and 1 in tier 1 when both are asked for: 0 moves up into the place of
    # 1, which moves down.
    preset = preset_of(4, 4, None, placement=Placement.WRITE_BACK, exclusive=True)
    assert brief(rows_of(preset, shared([1, 2], [3], [1, 2], [1, 2])))[11:] == [
        "write 0 prefill 2 4 1/0",
        "read 2 load 0 4 2/0", "read 1 load 1 4 2/0",
        "delete 2 promote 0 4",
        "read 1 demote 1 4", "write 2 demote 1 4", "delete 1 demote 1 4",
        "write 1 promote 0 4 2/1",
        # The next request finds 0 in tier 1 and 1 in tier 2, and moves both up by one.
        "read 1 load 0 4 3/0", "read 2 load 1 4 3/0",
        "delete 1 promote 0 4",
        "read 0 demote 2 4", "write 1 demote 2 4", "delete 0 demote 2 4",
        "write 0 promote 0 4 3/1",
        "delete 2 promote 1 4",
        "read 1 demote 2 4", "write 2 demote 2 4", "delete 1 demote 2 4",
        "write 1 promote 1 4 3/1",
    ]  # fmt: skip


def test_a_match_ends_at_a_miss_and_stores_nothing_twice():
    # One tier of three chunks: 1 2 3, then 9 displaces 1 (the least recent); of 1 2 3, 2 and 3 are
    # still there.
    simulation, rows, _, _ = simulate(
        preset_of(12), Load(requests=shared([1, 2, 3], [9], [1, 2, 3]))
    )
    assert brief(rows)[3:] == [
        "delete 0 evict 0 4",
        "write 0 prefill 3 4 1/0",
        # No hit at all, though two are live; writing 1 again displaces 2, then 2 displaces 3, and
        # so on.
        "delete 0 evict 1 4",
        "write 0 prefill 0 4 2/0",
        "delete 0 evict 2 4",
        "write 0 prefill 1 4 2/0",
        "delete 0 evict 3 4",
        "write 0 prefill 2 4 2/0",
    ]
    assert simulation.stats().lookups == simulation.stats().misses == 7


def test_a_recomputed_object_becomes_recent():
    # 1 2 3, then 9 takes the place of 1; 8 8' make 1 miss again. Four chunks of room.
    rows = brief(rows_of(preset_of(16), shared([1, 2, 3, 4], [9], [1, 2], [7, 8])))
    assert rows[4:] == [
        "delete 0 evict 0 4",
        "write 0 prefill 4 4 1/0",
        "delete 0 evict 1 4",
        "write 0 prefill 0 4 2/0",
        "delete 0 evict 2 4",
        "write 0 prefill 1 4 2/0",
        "delete 0 evict 3 4",
        "write 0 prefill 5 4 3/0",
        "delete 0 evict 4 4",
        "write 0 prefill 6 4 3/0",
    ]


def test_a_partial_last_chunk_waits_for_a_longer_prompt():
    requests = requests_of([(0, 6, 0, [1, 2]), (1, 8, 0, [1, 3])])
    assert brief(rows_of(preset_of(None), requests)) == [
        "write 0 prefill 0 4 0/0",
        "read 0 load 0 4 1/0",
        "write 0 prefill 1 4 1/1",
    ]


def test_only_what_missed_takes_time():
    preset = preset_of(None, prefill_ns_per_token=10, decode_ns_per_token=7)
    rows = rows_of(preset, requests_of([(0, 6, 3, [1, 2]), (100, 10, 3, [1, 3, 4])]))
    assert [(ts, phase) for ts, _, _, phase, *_ in rows] == [
        (60, "prefill"),  # 6 tokens
        (100, "load"),
        (160, "prefill"),  # 10 tokens less the 4 that hit
    ]


def test_prompts_are_computed_in_turn():
    requests = requests_of([(0, 4, 1, [1]), (0, 8, 1, [2, 3]), (100, 4, 1, [1])])
    preset = preset_of(None, prefill_ns_per_token=10)
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    # The second waits for the first; the third, all there, computes its last token again behind
    # both.
    assert [row[0] for row in rows if row[3] == "prefill"] == [40, 120, 120]
    stats = simulation.stats()
    # They take 40, 80 and 10 ns, and arrive within 100 ns.
    load = (40 + 80 + 10) / 100
    assert stats.prefill == PrefillStats(
        requests=3, mean_wait_ns=(0 + 40 + 20) // 3, load=load, needed_nodes=2
    )
    assert simulation._first_tokens[0]["ttft_ns"].tolist() == [40, 120, 20 + 10]
    at_once = msgspec.structs.replace(preset, prefill_in_turn=False)
    assert [row[0] for row in rows_of(at_once, requests) if row[3] == "prefill"] == [40, 80, 80]


def test_a_prompt_that_waits_is_looked_up_when_it_is_computed():
    """It was looked up as it arrived.

    Of prompts that come together none hit, and what was evicted meanwhile did.
    """
    together = requests_of(
        [(0, 4, 1, [1]), (0, 4, 1, [1]), (10, 8, 1, [1, 2]), (10, 4, 1, [3]), (11, 4, 1, [1])]
    )
    simulation, rows, _, _ = simulate(
        preset_of(8, prefill_ns_per_token=10), Load(requests=together)
    )
    # Of 8 bytes, two objects of 4 tokens: the first is stored at 40, found 1 ns later, and found
    # again at 51, when one token of the second was computed. With 2 it is evicted for 3, and not
    # there for the last.
    found = [(ts, op, phase, key) for ts, op, _, phase, key, *_ in rows]
    assert found == [
        (40, "write", "prefill", 0),
        (41, "read", "load", 0),
        (51, "read", "load", 0), (90, "write", "prefill", 1),
        (130, "delete", "evict", 0), (130, "write", "prefill", 2),
        (170, "delete", "evict", 1), (170, "write", "prefill", 0),
    ]  # fmt: skip
    times = simulation._first_tokens[0]["ttft_ns"].tolist()
    assert times == [40, 50, 90 - 10, 130 - 10, 170 - 11]


def test_a_first_token_takes_a_step_even_if_all_was_cached():
    """It took no time at all: 0 s at p50 of prompts that come again."""
    requests = requests_of([(0, 4, 1, [1]), (1000, 4, 1, [1]), (2000, 40, 1, list(range(20, 30)))])
    step = {
        "decode_ns_per_token": 100,
        "decode_compute_ns": 1,
        "decode_bandwidth": "100MB",
    }  # 10 ns a byte of cache
    simulation, *_ = simulate(
        preset_of(None, prefill_ns_per_token=20, **step), Load(requests=requests)
    )
    (first_tokens,) = simulation._first_tokens
    assert first_tokens["ttft_ns"].tolist() == [100 + 40, 100 + 40, 40 * 20]
    assert simulation.world.total.missed_tokens == 4 + 1 + 40


def test_a_step_of_decoding_takes_what_its_batch_needs():
    # Alone a step takes 10 ns, for two their 16 ns of computing: the first has done two steps when
    # the second joins, does two more beside it, and leaves the last two to it.
    requests = requests_of([(0, 4, 4, [1]), (20, 4, 4, [2])])
    preset = preset_of(
        None, chunk_tokens=4, decode_read_tokens=1, decode_ns_per_token=10, decode_compute_ns=8
    )
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    reads = [(row[6], row[0]) for row in rows if row[3] == "decode"]
    assert [ts for n, ts in reads if n == 0] == [0, 0, 10, 20, 36]
    assert [ts for n, ts in reads if n == 1] == [20, 20, 36, 52, 62]
    decode = simulation.stats().decode
    assert (decode.tokens, decode.mean_ns_per_token) == (8, (52 + 52) // 8)
    # At 100 MB/s the cache of a context of 4 + 2 tokens, a byte each, takes 60 ns more of each of a
    # step alone.
    cache = msgspec.structs.replace(preset, decode_compute_ns=0, decode_bandwidth="100MB")
    first = requests_of([(0, 4, 4, [1])])
    assert [row[0] for row in rows_of(cache, first) if row[3] == "decode"] == [0, 0, 70, 140, 210]
    # With a mixture of experts, a step alone reads but those that its token uses.
    experts = msgspec.structs.replace(preset, decode_compute_ns=0, decode_active_ns=3)
    assert [row[0] for row in rows_of(experts, first) if row[3] == "decode"] == [0, 0, 3, 6, 9]


def test_answers_wait_for_the_steps_of_a_prompt_and_its_reads():
    # The first decodes from 40 on, 10 ns a token. Of a step's three tokens one is then its own: the
    # second's four take two steps of 20 ns, from 55 to 95. It had done one and a half, ends two
    # beside the prompt, and the last after it.
    requests = requests_of([(0, 4, 4, [1]), (55, 4, 4, [2])])
    times = {
        "prefill_ns_per_token": 10,
        "decode_ns_per_token": 10,
        "decode_compute_ns": 1,
        "step_tokens": 3,
    }
    preset = preset_of(None, chunk_tokens=4, decode_read_tokens=1, **times)
    reads = [(row[6], row[0]) for row in rows_of(preset, requests) if row[3] == "decode"]
    assert [ts for n, ts in reads if n == 0] == [40, 40, 50, 65, 85]
    assert [ts for n, ts in reads if n == 1] == [95, 95, 105, 115, 125]
    # At 10 ns a byte each of the two steps reads the first's six bytes, too; neither first token
    # comes sooner than a step takes that reads the weights and its prompt's cache.
    simulation, *_ = simulate(
        msgspec.structs.replace(preset, decode_bandwidth="100MB"), Load(requests=requests)
    )
    assert simulation._first_tokens[0]["ttft_ns"].tolist() == [50, 50 + 2 * 60]


def test_a_prompt_step_of_weeks_is_its_share_of_them():
    # 64 bits do not hold the nanoseconds times the tokens of a step.
    preset = preset_of(None, prefill_ns_per_token=10**9, decode_compute_ns=1, step_tokens=8192)
    simulation, *_ = simulate(preset, Load(requests=requests_of([(0, 1 << 21, 1, [])])))
    assert simulation.world.fleet.batches["prompt_step_ns"].tolist() == [8192 * 10**9]


def test_a_request_waits_for_gpu_memory_and_running_ones_stay():
    # Of 16 bytes the first takes 8 and half of its answer, so the second's 8 wait for its end:
    # computed from 110 on, as the prefill gives the first of its four tokens.
    times = {
        "prefill_ns_per_token": 10,
        "decode_ns_per_token": 10,
        "decode_compute_ns": 1,
        "step_tokens": 4,
    }
    requests = requests_of([(0, 8, 4, [1, 2]), (1, 8, 0, [3, 4])])
    for capacity, at in ((16, 190), (18, 160)):
        simulation, rows, *_ = simulate(
            preset_of(capacity, chunk_tokens=4, **times), Load(requests=requests)
        )
        assert [row[0] for row in rows if row[3] == "prefill"] == [80, 80, at, at]
        first_ns = [80, at - 1]
        assert simulation._first_tokens[0]["ttft_ns"].tolist() == first_ns
    # Each prompt behind the first takes 80 ns, in steps of three tokens, in which the first
    # generates three in 90: it ends behind the fourth, whose room is then made by what the second
    # left, though that was used later.
    requests = requests_of(
        [(0, 8, 12, [1, 2]), *((n, 8, 0, [2 * n + 1, 2 * n + 2]) for n in (1, 2, 3))]
    )
    # In the memory of a GPU the first's answer takes another 12 bytes, of which it frees at its end
    # those that it does not fill.
    for setting, capacity, deleted in ((4, 36, [2, 3, 10]), (0, 24, [0, 1])):
        preset = preset_of(capacity, chunk_tokens=4, **(times | {"step_tokens": setting}))
        _, rows, *_ = simulate(preset, Load(requests=requests))
        assert [row[4] for row in rows if row[1] == "delete"] == deleted


def test_shared_gpu_memory_stays_until_both_requests_end():
    # The first has 20 bytes of 40 until it ends at 310; the second, from 100 to 120, has one beside
    # the eight that both use. The third's 24 have no room before 310, and take 240 to compute.
    times = {
        "prefill_ns_per_token": 10,
        "decode_ns_per_token": 10,
        "decode_compute_ns": 1,
        "step_tokens": 4,
    }
    requests = requests_of(
        [(0, 8, 24, [1, 2]), (100, 8, 2, [1, 2]), (200, 24, 0, [3, 4, 5, 6, 7, 8])]
    )
    simulation, rows, *_ = simulate(preset_of(40, chunk_tokens=4, **times), Load(requests=requests))
    assert [row[0] for row in rows if row[6] == 2] == [550] * 6
    assert simulation._first_tokens[0]["ttft_ns"].tolist() == [80, 10, 350]


def test_each_rank_has_an_object_of_its_own_with_its_share():
    rows = rows_of(preset_of(None), shared([1, 2]), find_model("tiny-1b"), ranks=2)
    per_rank = 12 * 2 * 2 * 128 * 2 * 4
    assert [(o, length, rank) for *_, o, length, _, _, rank in rows] == [
        (0, per_rank, 0), (1, per_rank, 1), (2, per_rank, 0), (3, per_rank, 1),
    ]  # fmt: skip


# Models and presets.


@pytest.mark.parametrize(
    ("name", "ranks", "per_token", "per_rank", "stored"),
    [
        ("llama3.1-8b", 1, 131_072, 131_072, 1),
        ("llama3.1-8b", 8, 131_072, 16_384, 8),
        ("llama3.1-8b", 16, 131_072, 16_384, 16),  # eight heads, so two ranks hold the same one
        ("llama3.1-70b-instruct", 8, 327_680, 40_960, 8),
        ("deepseek-v3", 8, 70_272, 70_272, 1),  # a latent is the same on every rank
        ("gpt-oss-120b", 4, 73_728, 18_432, 4),
    ],
)
def test_bytes_a_token(name, ranks, per_token, per_rank, stored):
    model = find_model(name)
    assert bytes_per_token(model) == per_token
    assert bytes_per_token_per_rank(model, ranks) == per_rank
    assert stored_ranks(model, ranks) == stored


def test_presets_are_what_they_say():
    assert {"lmcache-disk", "mlperf"} <= set(preset_names())
    for name in preset_names():
        assert load_preset(name).description
    for name in ("lmcache-disk", "mlperf"):
        preset = load_preset(name)
        assert [t.name for t in preset.tiers] == ["gpu", "cpu", "nvme"]
        assert all(t.capacity_bytes for t in preset.tiers)
    assert load_preset("mlperf", ["tiers.nvme.capacity=1GiB"]).tiers[2].capacity_bytes == 1 << 30
    assert as_config(load_preset("mlperf"))["decode_read_tokens"] == 32


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tiers.nvme.capacity=-1", "capacity(=-1) … >= 0"),
        ("tiers.nvme.capacity=1XB", "unit 'XB'"),
        ("tiers.nvme.capacity=much", "'much'"),
        ("tiers.nvme.capacity=99999999999999999999", ">= 0"),
        ("tiers.nvme.capacity=1.5", "tiers[2].capacity"),
        ("tiers.disk.capacity=1", "'disk' … gpu, cpu, nvme"),
        ("tiers.nvme.name=gpu", "gpu, cpu, gpu"),
        ("tiers=[]", "1 … 8 tiers … 0"),
        ("tiers.gpu.high_watermark=0", "gpu.high_watermark(=0.0) … (0, 1]"),
        ("tiers.gpu.high_watermark=nan", "gpu.high_watermark(=nan) … (0, 1]"),
        ("tiers.gpu.max_object_fraction=1.1", "gpu.max_object_fraction(=1.1) … (0, 1]"),
        (
            "tiers.gpu.low_watermark=0.9",
            "gpu.low_watermark(=0.9) … high_watermark(=0.8)",
        ),
        ("chunk_tokens=0", "chunk_tokens(=0) … >= 1"),
        ("decode_ns_per_token=-3", "decode_ns_per_token(=-3) … >= 0"),
        (
            "prefill_ns_per_token=99999999999999999999",
            "prefill_ns_per_token(=99999999999999999999) must be",
        ),
        ("placement=write-through", "set placement=write-back"),
        ("entry=page", "'page'"),
        ("entry=chunk", "entry=chunk needs match=prefix"),
        ("colour=blue", "`colour`"),
        ("chunk_tokens", "KEY=VALUE"),
    ],
)
def test_a_setting_that_cannot_be_is_named(setting, message):
    with pytest.raises(ConfigError) as caught:
        load_preset("mlperf", [setting])
    assert shows(str(caught.value), message)


def test_chunks_must_fit_the_blocks_of_the_source():
    with pytest.raises(ConfigError, match=r"chunk_tokens\(=3\)"):
        rows_of(preset_of(None, chunk_tokens=3), shared([1]))
