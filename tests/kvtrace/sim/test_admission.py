"""What a tier takes of what it is offered: counts worked by hand for each admission."""

from __future__ import annotations

import msgspec
import pytest
from phrases import pattern
from simulated import brief, preset_of, requests_of, simulate

from kvtrace.core.errors import ConfigError
from kvtrace.sim.presets.preset import Match, Placement, Promotion, load_preset
from kvtrace.sim.presets.tier import Admission
from kvtrace.sim.simulation import Load


def stored(times_and_blocks, capacity, **knobs):
    """Return which of the tier's writes each request caused, and the tier's stats.

    Blocks are of 4 bytes.
    """
    requests = requests_of(
        [(when, 4 * len(blocks), 1, blocks) for when, blocks in times_and_blocks]
    )
    # A tier that holds nothing comes first, so that what is replayed is offered again.
    preset = preset_of(0, capacity, promotion=Promotion.NEVER)
    tiers = (preset.tiers[0], msgspec.structs.replace(preset.tiers[1], **knobs))
    simulation, rows, _, _ = simulate(
        msgspec.structs.replace(preset, tiers=tiers), Load(requests=requests)
    )
    writes = [
        (request, object_) for _, op, _, _, object_, _, request, _, _ in rows if op == "write"
    ]
    return writes, simulation.stats().tiers[1]


def test_the_nth_offer_is_stored():
    asked = [(0, [7]), (10, [8]), (20, [7]), (30, [7]), (40, [8])]
    writes, stats = stored(asked, None, admission=Admission.NTH_OFFER)
    # 7 (object 0) is taken at its second offer, then hit; 8 (object 1) at its second.
    assert writes == [(2, 0), (4, 1)]
    assert (stats.refused_objects, stats.refused_bytes, stats.hits) == (2, 8, 1)
    writes, stats = stored(asked, None, admission=Admission.NTH_OFFER, admission_count=3)
    assert (writes, stats.refused_objects) == ([(3, 0)], 4)


def test_an_object_stored_once_and_evicted_is_stored_at_once():
    asked = [(0, [1]), (1, [1]), (2, [2]), (3, [2]), (4, [1])]
    writes, stats = stored(asked, 4, admission=Admission.NTH_OFFER)
    assert (writes, stats.refused_objects) == ([(1, 0), (3, 1), (4, 0)], 2)


def test_a_count_that_offers_double_and_time_lowers():
    # Counts: 1 (refused), 2 (stored). In the second list a decay between takes the 1 back, so that
    # it begins again.
    assert stored([(0, [1]), (9, [1])], None, admission=Admission.FREQUENCY)[0] == [(1, 0)]
    slow = {"admission": Admission.FREQUENCY, "admission_decay": "10ns"}
    assert stored([(0, [1]), (10, [1]), (19, [1])], None, **slow)[0] == [(2, 0)]
    # 1, 2, 4 (stored) within one decay; 1, 2, then a decay: 1, so 2 at the third offer and 4 at the
    # fourth.
    four = {**slow, "admission_count": 4}
    assert stored([(1, [1]), (2, [1]), (3, [1])], None, **four)[0] == [(2, 0)]
    assert stored([(8, [1]), (9, [1]), (10, [1]), (11, [1])], None, **four)[0] == [(3, 0)]


def test_tinylfu_compares_with_what_would_make_room():
    asked = [(0, [1]), (1, [1]), (2, [2]), (3, [2]), (4, [2])]
    writes, stats = stored(asked, 4, admission=Admission.TINYLFU)
    # 1 has room, and is hit: 2 references. 2 comes to 1 and 2, which is not more, and then to 3.
    assert (writes, stats.refused_objects, stats.hits) == ([(0, 0), (4, 1)], 2, 1)


def test_tinylfu_forgets_with_a_window():
    asked = [(when, [block]) for when, block in enumerate([1, 1, 1, 1, 2, 2, 2])]
    writes, stats = stored(asked, 4, admission=Admission.TINYLFU)
    assert (writes, stats.refused_objects) == ([(0, 0)], 3)
    # A window of 12 bytes, half of which stays as it is full. 1: 1, 2, 3 halved is 1, 2. Then 2 is
    # 1 halved is 0, with 1 at 1; 2 is 1, as 1 is; 2 is 2 halved is 1, with 1 at 0.
    writes, stats = stored(asked, 4, admission=Admission.TINYLFU, admission_window=3)
    assert (writes, stats.refused_objects) == ([(0, 0), (6, 1)], 2)


def test_what_is_not_admitted_below_is_deleted_as_it_makes_room():
    requests = requests_of([(when, 4, 1, [block]) for when, block in enumerate([1, 2, 1, 2])])
    preset = preset_of(4, None, placement=Placement.WRITE_BACK, promotion=Promotion.NEVER)
    tiers = (
        preset.tiers[0],
        msgspec.structs.replace(preset.tiers[1], admission=Admission.NTH_OFFER),
    )
    rows = simulate(msgspec.structs.replace(preset, tiers=tiers), Load(requests=requests))[1]
    assert brief(rows) == [
        "write 0 prefill 0 4 0/0",
        "delete 0 evict 0 4",
        "write 0 prefill 1 4 1/0",
        "delete 0 evict 1 4",
        "write 0 prefill 0 4 2/0",
        "read 0 demote 0 4",
        "write 1 demote 0 4",
        "delete 0 demote 0 4",
        "write 0 prefill 1 4 3/0",
    ]


def test_a_refusing_fastest_tier_leaves_the_object_to_the_next():
    requests = requests_of([(0, 4, 1, [1]), (1, 4, 1, [1])])
    preset = preset_of(
        4, 4, placement=Placement.WRITE_BACK, promotion=Promotion.NEVER, match=Match.PREFIX
    )
    tiers = (
        msgspec.structs.replace(preset.tiers[0], admission=Admission.NTH_OFFER),
        preset.tiers[1],
    )
    simulation, rows, _, _ = simulate(
        msgspec.structs.replace(preset, tiers=tiers), Load(requests=requests)
    )
    assert brief(rows) == ["write 1 prefill 0 4 0/0", "read 1 load 0 4 1/0"]
    assert simulation.stats().unplaced_objects == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["admission=frequency", "admission_decay=0s"], "> 0"),
        (["admission=tinylfu", "policy=sieve"], "policy=lru … ttl"),
        (["admission=nth-offer", "admission_count=0"], ">= 1"),
        (["admission=tinylfu", "admission_window=0"], ">= 1"),
        (["admission=sometimes"], "sometimes"),
    ],
)
def test_a_wrong_knob_is_one_line(settings, message):
    with pytest.raises(ConfigError, match=pattern(message)):
        load_preset("lmcache-disk", [f"tiers.nvme.{setting}" for setting in settings])
