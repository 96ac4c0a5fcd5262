"""The data that the BPF programs and Python share, laid out as in common.bpf.h and block.bpf.h; histograms.

A histogram's slots are fine, for percentiles: exact below 128, at most 1/64 of their value wide above, so the middle of
a slot is within 0.8 %. For display they are summed into powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtrace.core.run.probe_file import Bucket, Histogram
from kvtrace.core.statistics import QUANTILES, nearest_rank

SUB_BITS = 6
SLOTS = (41 - SUB_BITS) << SUB_BITS
"""As in common.bpf.c: up to 2^40, what is above is in the last one."""


def slot_bounds(slot: int, bits: int = SUB_BITS) -> tuple[int, int]:
    """Return the bounds of `slot`, of 2^`bits` for each power of two: its first value, and the first one beyond it."""
    if slot < 2 << bits:
        return slot, slot + 1
    shift = (slot >> bits) - 1
    return (slot - (shift << bits)) << shift, (slot - (shift << bits) + 1) << shift


def histogram(slots: Sequence[int], total_ns: int) -> Histogram:
    """Return the histogram of the counts in `slots`, whose values sum to `total_ns`.

    Percentiles are by nearest rank, as the middle of its slot; null with fewer than 1 / (1 - q) values.
    """
    fine = [Bucket(*slot_bounds(i), n) for i, n in enumerate(slots) if n]
    count = sum(b.count for b in fine)
    ranks = {
        f"{name}_ns": _at_rank(fine, rank) if (rank := nearest_rank(count, part)) else None
        for name, part in QUANTILES.items()
    }
    return Histogram(
        count=count,
        mean_ns=total_ns / count if count else None,
        longest_below_ns=fine[-1].below if fine and not slots[-1] else None,
        log2_ns=log2(fine),
        fine_ns=fine,
        **ranks,
    )


def _at_rank(fine: list[Bucket], rank: int) -> float:
    seen = 0
    for bucket in fine:
        seen += bucket.count
        if seen >= rank:
            return (bucket.from_ + bucket.below - 1) / 2
    raise ValueError(f"rank {rank} of {seen} values")


def log2(fine: Sequence[Bucket]) -> list[Bucket]:
    """Return `fine` slots summed into power-of-two buckets, empty ones in between included; [0, 1) is the first."""
    counts: dict[int, int] = {}
    for bucket in fine:
        power = bucket.from_.bit_length()
        counts[power] = counts.get(power, 0) + bucket.count
    if not counts:
        return []
    return [
        Bucket(1 << power - 1 if power else 0, 1 << power, counts.get(power, 0))
        for power in range(min(counts), max(counts) + 1)
    ]


DIRECTIONS = ("read", "write", "discard", "flush", "other")
COUNTS = (
    *("queued", "issued", "issued_bytes", "completed", "completed_bytes", "errors", "requeues", "requests_merged"),
    *("bios", "bio_bytes", "bios_merged", "splits", "d2c_sum", "q2d_sum", "requeued_sum", "lost_events"),
    *("lost_requests", "ends_not_seen", "lost_zones"),
)
KINDS = (
    *("read", "write", "read_without_io", "write_without_io", "fsync", "fdatasync", "write_to_fsync"),
    "fadvise_to_read",
)
CALLS = (
    *("read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2"),
    *("fsync", "fdatasync", "io_submit", "io_uring"),
)
CALL_COUNTS = ("count", "bytes", "errors", "direct", "without_io", "without_io_bytes")
"""`enum direction`, `count`, `kind`, `call` and `call_count`."""
DEPTHS = 1024
_SHARDS, _SWEPT, _LINE_BYTES = 16, 8192, 64


def _fields(type_: str, names: str) -> list[tuple[str, str]]:
    return [(name, type_) for name in names.split()]


CONFIG = np.dtype(
    [
        *_fields("<u8", "wanted_cgroup comm_low comm_high comm_mask_low comm_mask_high"),
        *_fields(
            "<u4", "own_pid wanted_pid cgroup_level is_comm_wanted is_device_wanted has_events zone_shift o_direct"
        ),
        *_fields("<u4", "uring_submitted_at uring_req_at uring_result_at unused"),
    ]
)
_BLOCK, _APP = (len(DIRECTIONS), len(COUNTS)), (len(KINDS), len(CALLS), len(CALL_COUNTS))
_COUNTED = np.dtype([("block", "<u8", _BLOCK), ("app", "<u8", _APP)])
_SHARD = np.dtype(
    {
        "names": ["block", "app"],
        "formats": [("<u8", _BLOCK), ("<u8", _APP)],
        "itemsize": -(-_COUNTED.itemsize // _LINE_BYTES) * _LINE_BYTES,
    }
)
_TIMES = (len(DIRECTIONS), SLOTS)
_SHARED = np.dtype(
    [
        ("counts", _SHARD, _SHARDS),
        *_fields("<u8", "origin_ns app_not_followed swept_head swept_tail"),
        ("app_sums", "<u8", len(KINDS)),
        *((name, "<u8", _TIMES) for name in ("d2c", "q2d", "requeued")),
        ("app_times", "<u8", (len(KINDS), SLOTS)),
        ("depths", "<u8", (len(DIRECTIONS), DEPTHS)),
        ("swept", "<u8", (_SWEPT, 2)),
    ]
)
SHARED = np.dtype([("values", _SHARED), ("unused", "u1", -_SHARED.itemsize % _LINE_BYTES)])

REQUEST = np.dtype(
    [
        *_fields("<u8", "queue_ns issue_ns requeue_ns sector"),
        *_fields("<u4", "bytes flags dev pid direction is_in_flight is_gone unused"),
        ("comm", "S16"),
    ]
)
EVENT = np.dtype(
    [
        *_fields("<u8", "queue_ns issue_ns complete_ns sector"),
        *_fields("<u4", "bytes flags dev pid status unused"),
        ("comm", "S16"),
    ]
)
"""`struct request_state` and `struct event`; 0 for a time that was not seen."""
AMOUNT = np.dtype(_fields("<u8", "requests bytes"))
NUMBER = np.dtype([("value", "<u8")])
KEYS = {
    "requests": np.dtype([("request", "<u8")]),
    "in_flight": np.dtype([("dev", "<u4")]),
    "sizes": np.dtype(_fields("<u4", "direction bytes")),
    "seconds": np.dtype(_fields("<u4", "second direction")),
    "zones": np.dtype([("zone", "<u8"), ("dev", "<u4"), ("direction", "<u4")]),
}
VALUES = {"requests": REQUEST, "in_flight": NUMBER, "sizes": NUMBER, "seconds": AMOUNT, "zones": AMOUNT}
"""Of the hash tables."""
