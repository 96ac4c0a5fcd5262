"""What waits to be stored, and buckets.

Rows worked by hand, and all of them as plain Python says.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import moving_tables  # noqa: F401
from oracle import Oracle
from phrases import pattern
from simulated import ONE_BYTE, TWO_HEADS, brief, preset_of, requests_of, rows_of, simulate
from test_oracle import ADMISSIONS, SEMANTICS, presets, request_lists

from kvtrace.core.errors import ConfigError
from kvtrace.llm.shape import bytes_per_token_per_rank, stored_ranks
from kvtrace.sim.output import trace_batch
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Placement, Promotion, load_preset
from kvtrace.sim.simulation import Load, Simulation
from kvtrace.trace.inventory import Ledger


def queued(cpu, disk, /, **knobs):
    """Return a preset of DRAM and a disk with `knobs`."""
    preset = preset_of(cpu, disk, promotion=Promotion.NEVER)
    return msgspec.structs.replace(
        preset, tiers=(preset.tiers[0], msgspec.structs.replace(preset.tiers[1], **knobs))
    )


def asked(*times_and_blocks):
    return requests_of([(when, 4 * len(blocks), 1, blocks) for when, blocks in times_and_blocks])


def test_a_heartbeat_stores_what_dram_still_has():
    preset = queued(8, None, store_queue=9, heartbeat="10ns")
    simulation, rows, _, _ = simulate(
        preset, Load(requests=asked((0, [1, 2]), (3, [3]), (10, [4]), (30, [4])))
    )
    assert [(row[0], text) for row, text in zip(rows, brief(rows), strict=True)] == [
        (0, "write 0 prefill 0 4 0/0"),
        (0, "write 0 prefill 1 4 0/0"),
        (3, "delete 0 evict 0 4"),
        (3, "write 0 prefill 2 4 1/0"),
        # At 10, block 1 is gone.
        (10, "write 1 store 1 4"),
        (10, "write 1 store 2 4"),
        (10, "delete 0 evict 1 4"),
        (10, "write 0 prefill 3 4 2/0"),
        (20, "write 1 store 3 4"),
        (30, "read 0 load 3 4 3/0"),
    ]
    stats = simulation.stats().tiers[1]
    assert (stats.lost_objects, stats.lost_bytes, stats.dropped_objects) == (1, 4, 0)
    assert (stats.written_bytes, stats.waiting_objects) == (12, 0)


def test_a_full_queue_drops_and_what_is_left_waits():
    preset = queued(None, None, store_queue=2, heartbeat="10ns")
    simulation, rows, _, _ = simulate(
        preset, Load(requests=asked((0, [1, 2, 3]), (10, [1, 2, 3, 4])))
    )
    assert [text for text in brief(rows) if text.startswith("write 1")] == [
        "write 1 store 0 4",
        "write 1 store 1 4",
    ]
    stats = simulation.stats().tiers[1]
    # Block 3 is dropped; it is a hit later, and so not computed, nor offered again.
    assert (stats.dropped_objects, stats.dropped_bytes, stats.waiting_objects) == (1, 4, 1)


@pytest.mark.parametrize(("bandwidth", "each_ns"), [("1MB", 4000), ("1600kB", 2500)])
def test_without_a_heartbeat_the_writer_keeps_the_tiers_pace(bandwidth, each_ns):
    # 4 bytes at a byte a microsecond, or more.
    preset = queued(None, None, store_queue=9, write_bandwidth=bandwidth)
    rows = rows_of(preset, asked((5, [1, 2, 3]), (10, [4]), (20_000, [5]), (30_000, [5])))
    assert [(row[0], row[4]) for row in rows if row[1] == "write" and row[2] == 1] == [
        *((5 + n * each_ns, n) for n in range(4)), (20_000, 4),
    ]  # fmt: skip


def test_a_bucket_is_one_write_read_by_offset_and_deleted_whole():
    knobs = {
        "store_queue": 9,
        "heartbeat": "10ns",
        "bucket_objects": 2,
        "bucket_key_bytes": 3,
        "bucket_meta_bytes": 5,
    }
    # DRAM keeps two blocks; the disk holds one bucket of 2 * (4 + 3) bytes, and 2 * 5 beside it.
    preset = queued(8, 24, **knobs)
    requests = asked((0, [1, 2, 3]), (1, [4]), (12, [5]))
    simulation, rows, _, sizes = simulate(preset, Load(requests=requests))
    disk = [(row[0], text) for row, text in zip(rows, brief(rows), strict=True) if row[2] == 1]
    # At 10 the first two (objects 0, 1) are gone from DRAM, and 2 and 3 make a bucket: object 4,
    # and 5 beside it.
    assert disk == [(10, "write 1 store 4 14"), (10, "write 1 store 5 10")]
    assert (sizes[4], sizes[5]) == (14, 10)
    stats = simulation.stats().tiers[1]
    assert (stats.lost_objects, stats.written_bytes, stats.live_bytes) == (2, 24, 24)

    # The same with room in DRAM for all but the first request's blocks when they are replayed.
    requests = asked((0, [1, 2]), (11, [3, 4]), (12, [1]), (13, [2]), (22, [5]), (23, [1]))
    batches = []
    simulation = Simulation(preset, ONE_BYTE, Load(requests=requests), rows=64)
    simulation.run(lambda flush: batches.append(trace_batch(flush.rows)))
    found = [
        (row["op"], row["object_id"], row["offset_bytes"], row["length_bytes"], row["request_id"])
        for batch in batches for row in batch.to_pylist() if row["tier"] == 1
    ]  # fmt: skip
    assert found == [
        ("write", 2, 0, 14, None),
        ("write", 3, 0, 10, None),
        # Its members begin behind their keys. Block 2 is read by itself no more: a prefix begins
        # with block 1.
        ("read", 2, 3, 4, 2),
        ("read", 2, 10, 4, 3),
        # What was computed in between makes a bucket, for which the first gives way whole.
        ("delete", 2, 0, 14, None),
        ("delete", 3, 0, 10, None),
        ("write", 6, 0, 14, None),
        ("write", 7, 0, 10, None),
    ]


def test_buckets_end_where_bytes_do():
    knobs = {"store_queue": 9, "heartbeat": "10ns", "bucket_objects": 5, "bucket_bytes": 11}
    rows = rows_of(queued(None, None, **knobs), asked((0, [1, 2, 3, 4, 5]), (10, [1])))
    # Two of 4 bytes fit 11, three do not; one is left.
    assert [row[5] for row in rows if row[1] == "write" and row[2] == 1] == [8, 8]


COLLECTED = {"store_queue": 9, "heartbeat": "10ns", "bucket_objects": 2, "bucket_gc": 0.6}


def test_live_parts_of_a_bucket_are_rewritten_to_free_the_rest():
    # Two buckets of two blocks of 4 bytes; a third makes room at 30.
    preset = queued(None, 16, **COLLECTED)
    requests = asked((0, [1, 2]), (11, [3, 4]), (22, [5, 6]), (31, [6]))
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    assert [(row[0], text) for row, text in zip(rows, brief(rows), strict=True) if row[2] == 1] == [
        (10, "write 1 store 2 8"),
        (20, "write 1 store 5 8"),
        # Block 1 is dead: of its bucket 4 of 8 bytes live, less than 0.6. Block 2 is written again,
        # as object 8.
        (30, "read 1 collect 2 4"),
        (30, "delete 1 evict 2 8"),
        (30, "write 1 collect 8 4"),
        # That is not enough; then nothing lives in that bucket, either.
        (30, "delete 1 evict 8 4"),
        (30, "write 1 store 9 8"),
    ]
    stats = simulation.stats().tiers[1]
    assert (stats.collected_bytes, stats.written_bytes, stats.live_bytes) == (4, 28, 16)
    # At half, 4 of 8 bytes are enough to stay: the bucket goes when both are dead, and nothing is
    # written again.
    preset = queued(None, 16, **COLLECTED | {"bucket_gc": 0.5})
    simulation, rows, _, _ = simulate(preset, Load(requests=requests))
    assert [text for row, text in zip(rows, brief(rows), strict=True) if row[2] == 1][2:] == [
        "delete 1 evict 2 8", "write 1 store 8 8",
    ]  # fmt: skip
    assert simulation.stats().tiers[1].collected_bytes == 0


def test_a_collected_bucket_is_read_once_for_all_ranks():
    preset = queued(None, 16, **COLLECTED, each_rank_reads=True, read_bandwidth="1MB")
    load = Load(requests=asked((0, [1, 2]), (11, [3, 4]), (22, [5, 6]), (31, [6])))
    simulation, *_ = simulate(preset, load, ranks=2)
    # At 30, 4 bytes, each of which takes a microsecond.
    assert simulation.stats().tiers[1].read_bytes == 4
    assert simulation.world.tiers["busy_until_ns"][1].tolist() == [4030, 0]


def test_objects_that_were_used_outlive_those_beside_them():
    preset = queued(8, 16, **COLLECTED)
    # Block 1 is read from the disk at 23, and so block 2 is given up first.
    requests = asked((0, [1, 2]), (11, [3, 4]), (23, [1]), (24, [5, 6]), (31, [7]))
    _, rows, _, _ = simulate(preset, Load(requests=requests))
    disk = [
        text for row, text in zip(rows, brief(rows), strict=True) if row[2] == 1 and row[0] >= 23
    ]
    assert disk[0] == "read 1 load 2 4 2/0"
    assert disk[1:4] == ["read 1 collect 2 4", "delete 1 evict 2 8", "write 1 collect 8 4"]


QUEUES = [
    {"store_queue": 2},
    {"store_queue": 3, "write_bandwidth": "1GB"},
    {"store_queue": 50, "write_bandwidth": "100MB"},
    {"store_queue": 4, "heartbeat": "7ns"},
    {"store_queue": 50, "heartbeat": "20ns"},
    {"store_queue": 50, "heartbeat": "1ns", "bucket_objects": 1},
    {
        "store_queue": 50,
        "heartbeat": "5ns",
        "bucket_objects": 3,
        "bucket_key_bytes": 2,
        "bucket_meta_bytes": 1,
    },
    {
        "store_queue": 5,
        "heartbeat": "9ns",
        "bucket_objects": 4,
        "bucket_bytes": 40,
        "bucket_meta_bytes": 3,
    },
    {"store_queue": 50, "heartbeat": "3ns", "bucket_objects": 3, "bucket_gc": 0.7},
    {
        "store_queue": 50,
        "heartbeat": "3ns",
        "bucket_objects": 4,
        "bucket_key_bytes": 1,
        "bucket_gc": 0.4,
    },
    {
        "store_queue": 9,
        "heartbeat": "2ns",
        "bucket_objects": 2,
        "bucket_meta_bytes": 1,
        "bucket_gc": 0.99,
    },
]
THROUGH = [semantics for semantics in SEMANTICS if semantics[2] is Placement.WRITE_THROUGH]


@st.composite
def queued_presets(draw, semantics):
    preset = draw(presets(semantics).filter(lambda preset: len(preset.tiers) > 1))
    knobs = draw(st.sampled_from(QUEUES))
    policy = draw(
        st.sampled_from([Policy.LRU, Policy.LRU, Policy.FIFO, Policy.TTL, Policy.SIEVE, Policy.LFU])
    )
    if "bucket_gc" in knobs and policy is Policy.TTL:
        policy = Policy.CLOCK
    more = {"policy": policy, "ttl": "15ns" if policy is Policy.TTL else None}
    if draw(st.booleans()) and preset.tiers[-1].capacity is not None:
        more["low_watermark"] = 0.5
    admission = draw(st.sampled_from(ADMISSIONS[:5]))
    last = msgspec.structs.replace(preset.tiers[-1], **knobs, **more, **admission)
    return msgspec.structs.replace(preset, tiers=(*preset.tiers[:-1], last))


@pytest.mark.parametrize("semantics", THROUGH, ids="-".join)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_row_is_what_plain_python_says(semantics, data):
    preset, requests = data.draw(queued_presets(semantics)), data.draw(request_lists())
    model, ranks = data.draw(st.sampled_from([(ONE_BYTE, 1), (TWO_HEADS, 1), (TWO_HEADS, 2)]))
    per_rank, stored = bytes_per_token_per_rank(model, ranks), stored_ranks(model, ranks)
    oracle = Oracle(preset, requests, per_rank * stored, stored)
    expected = oracle.run()
    simulation, rows, _, sizes = simulate(preset, Load(requests=requests), model, ranks=ranks)
    assert rows == expected
    counts = simulation.stats().tiers[-1]
    assert oracle.tiers[-1].queue.counts().items() <= msgspec.structs.asdict(counts).items()
    assert sum(t.hits for t in simulation.stats().tiers) == oracle.hits
    if counts.collected_bytes is not msgspec.UNSET:
        assert counts.collected_bytes == oracle.tiers[-1].queue.collected
        # What is written again for what it frees: at most 1 / (1 - threshold) times what was stored
        # is written.
        if not preset.tiers[-1].bucket_meta_bytes:
            assert counts.written_bytes * (1 - preset.tiers[-1].bucket_gc) <= (
                counts.written_bytes - counts.collected_bytes
            )
    # Objects are numbered as they are made, those that hold no KV by themselves among them.
    assert all(
        sizes[row[4]] == row[5]
        for row in rows
        if row[1] == "delete" or (row[1] == "write" and row[2] == 0)
    )
    for room in (1, 40):
        batches = []
        again = Simulation(preset, model, Load(requests=requests), ranks=ranks, rows=room)
        again.run(lambda flush, to=batches: to.append(trace_batch(flush.rows)))
        assert [
            offset for b in batches for offset in b.column("offset_bytes").to_pylist()
        ] == oracle.offsets
        assert [key for b in batches for key in b.column("object_id").to_pylist()] == [
            row[4] for row in expected
        ]
        assert again.stats() == simulation.stats()
    ledger = Ledger(preset.tier_list(), 10_000)
    assert [ledger.apply(batch) for batch in batches] == [None] * len(batches)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tiers.cpu.store_queue=9"], "store_queue … nvme"),
        (
            ["tiers.nvme.store_queue=9", "placement=write-back"],
            "store_queue needs placement=write-through",
        ),
        (["tiers.nvme.heartbeat=1s"], "heartbeat … store_queue"),
        (["tiers.nvme.bucket_objects=5"], "bucket_objects … store_queue … heartbeat"),
        (
            ["tiers.nvme.store_queue=4", "tiers.nvme.heartbeat=1s", "tiers.nvme.bucket_objects=5"],
            "store_queue … 4",
        ),
        (
            [
                *(f"tiers.nvme.{k}" for k in ("store_queue=9", "heartbeat=1s", "bucket_objects=5")),
                "recency=tail-first",
            ],
            "bucket_objects needs recency=head-first",
        ),
        (["tiers.nvme.bucket_gc=0.5"], "bucket_gc … bucket_objects"),
        (["tiers.nvme.bucket_bytes=0"], "bucket_bytes"),
        (
            ["tiers.nvme.store_queue=9", "tiers.nvme.request_writes=1"],
            "request_writes",
        ),
        (
            [
                *(
                    f"tiers.nvme.{k}"
                    for k in ("store_queue=9", "heartbeat=1s", "bucket_objects=5", "evict_every=1s")
                ),
                "tiers.nvme.request_writes=0",
            ],
            "evict_every … bucket_objects",
        ),
    ],
)
def test_a_wrong_knob_is_one_line(settings, message):
    with pytest.raises(ConfigError, match=pattern(message)):
        load_preset("lmcache-disk", settings)
