"""Offers, refusals, and what of a request runs at once: worked by hand."""

from __future__ import annotations

import random

import msgspec
import pytest
from adversarial import sessions
from msgspec import UNSET
from simulated import brief, preset_of, requests_of, simulate, simulate_fleet

from kvtrace.core.errors import ConfigError
from kvtrace.core.simulation_stats import OfferStats
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.presets.tier import FleetSetting, Recency
from kvtrace.sim.routers import Router
from kvtrace.sim.simulation import Load

BLOCK = 4


def of_tiers(preset, *fields, **more):
    """Return `preset` with some `fields` of its tiers replaced, and `more` of its own."""
    tiers = tuple(
        msgspec.structs.replace(t, **f) for t, f in zip(preset.tiers, fields, strict=True)
    )
    return msgspec.structs.replace(preset, tiers=tiers, **more)


def prompts(*rows):
    """Return requests of (arrival_ns, output_tokens, blocks)."""
    return requests_of(
        [(now, BLOCK * len(ids), output, ids) for now, output, ids in rows], block_tokens=BLOCK
    )


def moved(preset, requests):
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    return simulation, rows


def test_a_prompt_is_stored_as_each_step_has_computed_it():
    preset = of_tiers(preset_of(64, None), {}, {}, offer_tokens=8, prefill_ns_per_token=1)
    _, rows = moved(preset, prompts((0, 1, [1, 2, 3, 4, 5])))
    # Steps of 8 tokens are done at 8 ns, 16 ns and, with 4 tokens, 20 ns; each has two stages of
    # its own.
    assert [(now, tier, number, stage) for now, _, tier, _, number, _, _, stage, _ in rows] == [
        (8, 0, 0, 0), (8, 0, 1, 0), (8, 1, 0, 1), (8, 1, 1, 1),
        (16, 0, 2, 2), (16, 0, 3, 2), (16, 1, 2, 3), (16, 1, 3, 3),
        (20, 0, 4, 4), (20, 1, 4, 5),
    ]  # fmt: skip


def test_room_for_an_offer_is_made_before_it_is_written():
    # Three objects fit. The second request's two displace the oldest two at once; one by one, its
    # own would be next.
    whole = of_tiers(preset_of(12, None), {"whole_offers": True}, {}, recency=Recency.TAIL_FIRST)
    _, rows = moved(whole, prompts((0, 0, [1, 2, 3]), (1, 0, [7, 8])))
    assert brief(rows)[6:] == [
        "delete 0 evict 2 4", "delete 0 evict 1 4",
        "write 0 prefill 3 4 1/0", "write 0 prefill 4 4 1/0",
        "write 1 store 3 4 1/1", "write 1 store 4 4 1/1",
    ]  # fmt: skip


def test_a_session_makes_room_for_its_own_alone():
    # Room for four. A session that was used once more than a new one would be keeps it out, each
    # time; a request that goes on with it takes the place of what it stored last, of its own prompt
    # or not.
    sessions = {"whole_offers": True, "policy": Policy.SAE}
    preset = of_tiers(preset_of(0, 16), {}, sessions)
    simulation, rows = moved(preset, prompts((0, 0, [1, 2, 3, 4]), (1, 0, [5, 6]), (2, 0, [1, 2, 3, 4, 7]),
                                             (3, 0, [1, 2, 3, 4])))  # fmt: skip
    assert [f"{op} {number}" for _, op, _, _, number, *_ in rows] == [
        "write 0", "write 1", "write 2", "write 3",
        "read 0", "read 1", "read 2", "read 3", "delete 3", "write 6",
        "read 0", "read 1", "read 2", "delete 6", "write 3",
    ]  # fmt: skip
    # Refused: 5 and 6, as they are computed and as the request ends.
    assert simulation.stats().offers == OfferStats(count=5, refused=2, refused_objects=4)


def test_the_session_used_least_gives_way_from_its_end():
    # Each look-up and each store is a use. The session of 1 and 2 was used once, last as the 2nd of
    # all: 2 + 1500, and the bonus that each has here. That of 3 and 4 was used twice: 5 + 3000.
    # What is new scores 1507 and the bonus.
    sessions = {"whole_offers": True, "policy": Policy.SAE}
    preset = of_tiers(preset_of(0, 16), {}, sessions)
    others = [(10 + n, 0, []) for n in range(1501)]
    _, rows = moved(
        preset, prompts((0, 0, [1, 2]), (1, 0, [3, 4]), (2, 0, [3, 4]), *others, (9999, 0, [5]))
    )
    assert [f"{op} {number}" for _, op, _, _, number, *_ in rows] == [
        "write 0", "write 1", "write 2", "write 3", "read 2", "read 3", "delete 1", "write 4",
    ]  # fmt: skip


def test_each_node_of_a_fleet_knows_its_own_sessions():
    # By turns, so that each of two nodes does what it does alone with its half of the requests.
    preset = of_tiers(preset_of(0, 160), {}, {"whole_offers": True, "policy": Policy.SAE})
    both = of_tiers(preset, {}, {}, fleet=FleetSetting(nodes=2, router=Router.ROUND_ROBIN))
    draw = random.Random(3)  # noqa: S311 - a fixed draw
    asked = [(n, 0, blocks) for n, blocks in enumerate(sessions(draw)) if n < 1200]
    _, rows, nodes = simulate_fleet(both, Load(requests=prompts(*asked)))
    for node in (0, 1):
        alone = moved(preset, prompts(*asked[node::2]))[1]
        mine = [row for row, of in zip(rows, nodes, strict=True) if of == node]
        # Times, operations, tiers and stages; what is named by numbers has others.
        assert [(*row[:4], row[7]) for row in mine] == [(*row[:4], row[7]) for row in alone]
        assert sum(row[1] == "delete" for row in mine) > 100


def test_an_offer_that_does_not_fit_is_refused_and_retried():
    # Steps of two objects in a tier of three: the second finds only one place that is not the
    # first's, which is in flight. With it, the third offer would need four places, and that after
    # the end three.
    preset = of_tiers(preset_of(12, None), {"whole_offers": True}, {}, offer_tokens=8)
    simulation, rows = moved(preset, prompts((0, 1, [1, 2, 3, 4, 5])))
    assert brief(rows) == [
        "write 0 prefill 0 4 0/0", "write 0 prefill 1 4 0/0", "write 1 store 0 4 0/1", "write 1 store 1 4 0/1",
        "delete 0 evict 0 4", "delete 0 evict 1 4",
        "write 0 prefill 2 4 0/2", "write 0 prefill 3 4 0/2", "write 0 prefill 4 4 0/2",
        "write 1 store 2 4 0/3", "write 1 store 3 4 0/3", "write 1 store 4 4 0/3",
    ]  # fmt: skip
    # Refused as two objects, stored as three in the step after, when the first offer is no longer
    # in flight.
    assert simulation.stats().offers == OfferStats(count=3, refused=1, refused_objects=2)


def test_what_never_fits_is_refused_to_the_end():
    preset = of_tiers(preset_of(None, 8, None), {}, {"whole_offers": True}, {})
    simulation, rows = moved(preset, prompts((0, 1, [1, 2, 3]), (10, 1, [7, 8])))
    # The tier above takes all; the refusing one and that below it have only the second request's.
    assert [line for line in brief(rows) if not line.startswith("write 0")] == [
        "write 1 store 3 4 1/1", "write 2 store 3 4 1/1", "write 1 store 4 4 1/1", "write 2 store 4 4 1/1",
    ]  # fmt: skip
    assert simulation.stats().offers == OfferStats(count=3, refused=2, refused_objects=6)
    assert not moved(preset_of(8), prompts((0, 0, [1])))[0].stats().offers


def at_once(preset):
    """Return `preset` in steps of two objects, whose fastest tier takes offers whole, prompts
    computed side by side.
    """
    times = {
        "offer_tokens": 8,
        "prefill_ns_per_token": 1,
        "prefill_in_turn": False,
        "decode_ns_per_token": 1,
    }
    return of_tiers(preset, {"whole_offers": True}, *[{}] * (len(preset.tiers) - 1), **times)


def test_an_object_stored_again_by_another_is_not_in_flight():
    # Two objects fit. The first request's two are gone at 9 ns, and the third's are stored at 10.
    # At its next step nothing of what the first has stored is there, so that both places are free
    # for it.
    simulation, rows = moved(
        at_once(preset_of(8)), prompts((0, 9, [0, 1, 2, 3]), (1, 9, [4, 5]), (2, 9, [0, 1]))
    )
    assert [(now, line) for (now, *_), line in zip(rows, brief(rows), strict=True)] == [
        (8, "write 0 prefill 0 4 0/0"), (8, "write 0 prefill 1 4 0/0"),
        (9, "delete 0 evict 0 4"), (9, "delete 0 evict 1 4"),
        (9, "write 0 prefill 4 4 1/0"), (9, "write 0 prefill 5 4 1/0"),
        (10, "delete 0 evict 4 4"), (10, "delete 0 evict 5 4"),
        (10, "write 0 prefill 0 4 2/0"), (10, "write 0 prefill 1 4 2/0"),
        (16, "delete 0 evict 0 4"), (16, "delete 0 evict 1 4"),
        (16, "write 0 prefill 2 4 0/1"), (16, "write 0 prefill 3 4 0/1"),
    ]  # fmt: skip
    assert simulation.stats().offers == OfferStats(count=4, refused=0, refused_objects=0)


def test_an_object_evicted_and_promoted_again_is_not_in_flight():
    # The first request's first object leaves at 9 ns and is copied up for the third at 10: no offer
    # brought it in then.
    requests = prompts((0, 9, [0, 1, 2, 3]), (5, 9, [5]), (10, 9, [0]))
    simulation, rows = moved(at_once(preset_of(8, 400)), requests)
    assert [(now, line) for (now, *_), line in zip(rows, brief(rows), strict=True)][4:] == [
        (9, "delete 0 evict 0 4"), (9, "write 0 prefill 4 4 1/0"), (9, "write 1 store 4 4 1/1"),
        (10, "read 1 load 0 4 2/0"), (10, "delete 0 evict 1 4"), (10, "write 0 promote 0 4 2/1"),
        (16, "delete 0 evict 4 4"), (16, "delete 0 evict 0 4"),
        (16, "write 0 prefill 2 4 0/2"), (16, "write 0 prefill 3 4 0/2"),
        (16, "write 1 store 2 4 0/3"), (16, "write 1 store 3 4 0/3"),
    ]  # fmt: skip
    assert simulation.stats().offers == OfferStats(count=3, refused=0, refused_objects=0)


@pytest.mark.parametrize(("second_at", "is_stored"), [(7_999, False), (8_000, True)])
def test_what_is_still_written_below_makes_no_room(second_at, is_stored):
    # 8 bytes at a byte a microsecond: the first request's two objects leave the lower tier's queue
    # after 8 us.
    preset = of_tiers(preset_of(8, None), {"whole_offers": True}, {"write_bandwidth": "1MB"})
    simulation, rows = moved(preset, prompts((0, 0, [1, 2]), (second_at, 0, [7, 8])))
    assert ("write 0 prefill 2 4 1/0" in brief(rows)) is is_stored
    assert simulation.stats().offers.refused == (
        0 if is_stored else 2
    )  # as it is computed, and as it ends


def test_operations_of_a_request_that_do_not_overlap_are_stages():
    preset = of_tiers(
        preset_of(8, None), {}, {"request_reads": 1, "request_writes": 2}, promotion="never"
    )
    _, rows = moved(preset, prompts((0, 0, [1, 2, 3]), (9, 0, [1, 2, 3])))
    assert brief(rows) == [
        "write 0 prefill 0 4 0/0", "write 0 prefill 1 4 0/0", "delete 0 evict 0 4", "write 0 prefill 2 4 0/0",
        "write 1 store 0 4 0/1", "write 1 store 1 4 0/1", "write 1 store 2 4 0/2",
        "read 1 load 0 4 1/0", "read 0 load 1 4 1/0", "read 0 load 2 4 1/0",
    ]  # fmt: skip


@pytest.mark.parametrize(("at_once", "first_token_ns"), [(0, 60_000), (1, 156_000), (2, 108_000)])
def test_reads_that_follow_each_other_take_each_its_own_latency(at_once, first_token_ns):
    # Three objects of 4 bytes at a byte a microsecond, 48 us late each.
    disk = {"read_bandwidth": "1MB", "latency": "48us", "request_reads": at_once}
    preset = of_tiers(preset_of(0, None), {}, disk, promotion="never")
    simulation, _ = moved(preset, prompts((0, 0, [1, 2, 3]), (10**6, 0, [1, 2, 3])))
    assert simulation.stats().first_token.with_cache.p99_ns is None
    assert simulation._first_tokens[0]["ttft_ns"].tolist() == [0, first_token_ns]


def test_what_was_found_is_stored_again_where_it_is_gone():
    fields = {"promotion": "never", "offers_hits": True}
    preset = of_tiers(preset_of(None, 8), {}, {}, **fields)
    _, rows = moved(preset, prompts((0, 0, [1, 2]), (1, 0, [3]), (2, 0, [1, 2])))
    assert brief(rows)[5:] == [
        "delete 1 evict 0 4", "write 1 store 2 4 1/1",
        "read 0 load 0 4 2/0", "read 0 load 1 4 2/0", "delete 1 evict 1 4", "write 1 store 0 4 2/1",
        "delete 1 evict 2 4", "write 1 store 1 4 2/1",
    ]  # fmt: skip


def test_look_ups_that_go_on_past_a_miss_are_counted():
    preset = of_tiers(
        preset_of(0, 8, None), {}, {}, {"looks_past_miss": True}, recency=Recency.TAIL_FIRST
    )
    simulation, _ = moved(preset, prompts((0, 0, [1, 2]), (1, 0, [1, 7, 8, 9])))
    # 2 of the first request; of the second, all but the first block, which the tier above has.
    assert [tier.file_lookups for tier in simulation.stats().tiers] == [UNSET, UNSET, 5]
    assert simulation.stats().lookups == 6


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("mlperf", "offer_tokens=512", "entry=chunk"),
        ("mlperf", "tiers.cpu.whole_offers=true", "placement=write-through"),
        ("lmcache-disk", "tiers.nvme.policy=sae", "policy=sae needs whole_offers=true"),
        ("lmcache-disk", "tiers.nvme.request_reads=-1", "request_reads"),
    ],
)
def test_what_cannot_be_is_refused(name, setting, message):
    with pytest.raises(ConfigError, match=message):
        load_preset(name, [setting])
