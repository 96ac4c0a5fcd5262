"""What held a run back.

A decision on measurements, constructed here for each cause and for each doubt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from phrases import Saying, shows

from kvreplay.result.cause import judge
from kvreplay.result.verdict import levels_of
from kvtrace.core.run.figures import Evidence, LimitCause

DRIVE, REPLAYER, QUEUE, DATA, DEPENDENCIES, COPIES, PROCESSOR, MEMORY, THROTTLE, KERNEL = LimitCause
QUEUED: Any = {
    "is_end_late": True,
    "response_shares": {"queue": 0.9, "drive": 0.1},
    "in_flight_mean": 31.9,
}
SERVED: Any = {
    "is_end_late": True,
    "response_shares": {"queue": 0.1, "drive": 0.9},
    "in_flight_mean": 12.0,
}
LATE: Any = {
    "is_end_late": False,
    "response_shares": {"submission": 0.3, "drive": 0.7},
    "in_flight_mean": 3.0,
}
FULL: Any = {"in_flight_mean": 31.9, "starved_share": 0.0, "blocked_share": 0.0}


def open_loop(
    *, copies: bool = False, depth: int = 32, **known: Any
) -> tuple[LimitCause | None, str]:
    evidence = Evidence(queue_depth=depth, **known)
    cause, reason = judge(evidence, is_open=True, has_reached=False, copies=copies, does_io=True)
    return cause, reason or ""


def closed_loop(
    *, copies: bool = False, does_io: bool = True, depth: int = 32, **known: Any
) -> tuple[LimitCause | None, str]:
    evidence = Evidence(queue_depth=depth, **known)
    cause, reason = judge(evidence, is_open=False, has_reached=None, copies=copies, does_io=does_io)
    return cause, reason or ""


def test_nothing_held_a_run_back_that_reached_what_was_asked() -> None:
    found = Evidence(queue_depth=8, response_shares={"queue": 1.0}, is_end_late=True)
    assert judge(found, is_open=True, has_reached=True, copies=False, does_io=True) == (None, None)


def test_a_full_queue_is_the_drives_if_more_depth_adds_nothing() -> None:
    cause, reason = open_loop(**QUEUED, doubling_gain=0.02, device_time_share=0.94)
    assert cause is DRIVE
    assert shows(reason, "in flight 31.9 … 32 … 94.0 % … 2.0 %")
    assert open_loop(**QUEUED, slowdown=9.0)[0] is DRIVE
    cause, reason = open_loop(**QUEUED, doubling_gain=0.9)
    assert (cause, "90.0 % more" in reason) == (QUEUE, True)


def test_a_full_queue_not_proven_the_drives_names_its_limit() -> None:
    for known in ({}, {"doubling_gain": 0.3}, {"device_time_share": 0.97}, {"slowdown": 3.0}):
        cause, reason = open_loop(**QUEUED, held_share=0.998, **known)
        assert (cause, "--queue-depths" in reason) == (QUEUE, True)
        assert shows(reason, "in flight 31.9 … 32 … 99.8 %")
        assert closed_loop(**FULL, **known)[0] is QUEUE
    # Two measurements that contradict each other.
    assert open_loop(**QUEUED, doubling_gain=0.9, slowdown=20.0)[0] is QUEUE
    # Of one at a time no drive has a queue.
    assert open_loop(**QUEUED, depth=1)[0] is QUEUE
    # One operation alone, or a single chain: nothing that was due waited for a place.
    for depth in (1, 2):
        reason = f"in flight 1 of {depth}"
        assert closed_loop(in_flight_mean=1.0, held_share=0.0, doubling_gain=1.0, depth=depth) == (
            None,
            reason,
        )
    assert closed_loop(**{**FULL, "in_flight_mean": 0.99}, depth=1)[0] is QUEUE


def test_service_time_is_the_drives_unless_the_device_was_idle() -> None:
    assert open_loop(**SERVED)[0] is DRIVE
    assert open_loop(**SERVED, device_time_share=0.95)[0] is DRIVE
    cause, reason = open_loop(**SERVED, device_time_share=0.2)
    assert (cause, "block layer" in reason) == (KERNEL, True)
    assert open_loop(**SERVED, device_time_share=0.2, submitter_busy_share=0.97)[0] is REPLAYER
    # Its ticks are believed where its nanoseconds are not known.
    assert open_loop(**SERVED, device_busy_share=0.2)[0] is KERNEL
    assert open_loop(**SERVED, device_busy_share=0.2, device_time_share=0.9)[0] is DRIVE


def test_late_submission_is_ours_unless_measured_otherwise() -> None:
    late = LATE | {"unhindered_share": 0.65}
    for busy in (None, 0.99, 0.1):
        assert open_loop(**late, submitter_busy_share=busy)[0] is REPLAYER
    shares = {"processor": 0.25, "submission": 0.05, "drive": 0.7}
    cause, reason = open_loop(**late | {"response_shares": shares}, processor_share=0.3)
    assert cause is PROCESSOR
    assert shows(reason, "71.4 % … 30.0 %")
    cause, reason = open_loop(**late | {"response_shares": {"buffers": 0.3, "drive": 0.7}})
    assert (cause, "faulted in" in reason) == (REPLAYER, True)
    at_work = {"device_busy_share": 0.93, "device_time_share": 0.3, "in_flight_mean": 380.0}
    cause, reason = open_loop(
        **late | {"response_shares": {"buffers": 0.3, "drive": 0.7}} | at_work
    )
    assert (cause, shows(reason, "device busy 93.0 %")) == (DRIVE, True)
    # Where the kernel copies as it takes submissions, being late there is the cache's.
    cached = {"storage": "page cache", "submitter_busy_share": 0.95, "kernel_share": 0.8}
    assert open_loop(**late, **cached)[0] is DRIVE
    assert closed_loop(in_flight_mean=2.0, **cached)[0] is DRIVE
    assert closed_loop(in_flight_mean=2.0, **cached | {"kernel_share": 0.2})[0] is REPLAYER
    assert closed_loop(in_flight_mean=2.0, **cached | {"storage": "drive"})[0] is REPLAYER


def test_a_full_queue_of_the_block_layer_is_the_drives() -> None:
    blocked: Any = {"is_end_late": True, "response_shares": {"block queue": 0.7, "drive": 0.3}}
    seen: Any = {"queue_full_share": 0.6, "device_time_share": 0.2, "in_flight_mean": 3.0}
    cause, reason = open_loop(**blocked, **seen)
    assert cause is DRIVE
    assert shows(reason, "in flight 3 … 32 … 20.0 % … 60.0 %")
    # I/Os waited above a device whose own queue was full, whatever they waited for then.
    full: Any = {"device_queue_mean": 126.0, "device_queue_limit": 128, "device_busy_share": 0.99}
    for shares in ({"buffers": 0.8, "drive": 0.2}, {"processor": 0.6, "queue": 0.4}):
        cause, reason = open_loop(
            is_end_late=True, response_shares=shares, in_flight_mean=410.0, depth=1024, **full
        )
        assert (cause, shows(reason, "126 requests … 128")) == (
            DRIVE,
            True,
        )
    assert closed_loop(**FULL, **full)[0] is DRIVE
    assert closed_loop(**FULL, **full | {"device_queue_mean": 30.0})[0] is QUEUE
    assert (
        closed_loop(in_flight_mean=5.0, queue_full_share=0.7, submitter_busy_share=0.9)[0] is DRIVE
    )


def test_a_throttle_that_was_reached_is_named() -> None:
    limit = "io.max rbps=50000000 of /sys/fs/cgroup/x"
    for known in (
        QUEUED,
        SERVED,
        {"is_end_late": True, "response_shares": {"buffers": 0.9, "drive": 0.1}},
    ):
        cause, reason = open_loop(**known, throttle=limit, throttle_share=1.02)
        assert (cause, shows(reason, f"{limit} … 102 % … in flight")) == (
            THROTTLE,
            True,
        )
        # Kernels let less through than they say: then I/Os were long, and short at the device.
        nearly: Any = {"throttle": limit, "throttle_share": 0.4}
        assert open_loop(**known, **nearly, device_time_share=0.01)[0] is THROTTLE
        assert open_loop(**known, **nearly, device_time_share=0.9)[0] is not THROTTLE
    assert closed_loop(**FULL, throttle=limit, throttle_share=0.95)[0] is THROTTLE


def test_dependencies_and_data_are_told_by_what_waited() -> None:
    waits = {"dependencies": 0.8, "drive": 0.2}
    short: Any = {"is_end_late": True, "unhindered_share": 0.2}
    assert open_loop(**short, response_shares=waits)[0] is DEPENDENCIES
    # What waited for earlier ones waited for the drive, if that is shown to be full.
    assert (
        open_loop(is_end_late=True, response_shares=waits, in_flight_mean=9.0, slowdown=12.0)[0]
        is DRIVE
    )
    ours = {"dependencies": 0.6, "submission": 0.39, "drive": 0.01}
    assert (
        open_loop(is_end_late=True, response_shares=ours, submitter_busy_share=0.99)[0] is REPLAYER
    )
    assert (
        open_loop(is_end_late=True, response_shares=ours, in_flight_mean=9.0, slowdown=12.0)[0]
        is DRIVE
    )
    assert open_loop(**short, response_shares=waits | {"submission": 0.08})[0] is DEPENDENCIES
    # Chains of a thousand, each of whose I/Os waits for the one place of the queue: more in flight
    # would help.
    chains = {"dependencies": 0.9985, "queue": 0.0008, "drive": 0.0007}
    cause, reason = open_loop(
        is_end_late=True, response_shares=chains, depth=1, in_flight_mean=0.996, held_share=0.98
    )
    assert (cause, shows(reason, "98.0 % … 99.9 %")) == (
        QUEUE,
        True,
    )
    assert (
        open_loop(is_end_late=True, response_shares=chains, in_flight_mean=2.0, held_share=0.1)[0]
        is DEPENDENCIES
    )
    assert open_loop(is_end_late=True, response_shares={"data": 0.7, "drive": 0.3})[0] is DATA
    assert closed_loop(in_flight_mean=2.0, starved_share=0.7, blocked_share=0.1)[0] is DATA
    unread = closed_loop(in_flight_mean=2.0, starved_share=0.0, blocked_share=0.0, unread_share=0.8)
    assert unread == (
        REPLAYER,
        Saying("80.0 %"),
    )
    assert closed_loop(in_flight_mean=2.0, starved_share=0.1, blocked_share=0.8)[0] is DEPENDENCIES


def test_an_end_in_time_is_judged_by_what_most_delays_were() -> None:
    # Operations that waited for earlier ones were due when those ended: that was no delay.
    mostly = {"dependencies": 0.82, "drive": 0.1, "submission": 0.05, "data": 0.03}
    served: Any = {"is_end_late": False, "unhindered_share": 0.1}
    cause, reason = open_loop(response_shares=mostly, submitter_busy_share=0.01, **served)
    assert (cause, shows(reason, "62.5 %")) == (REPLAYER, True)
    partly = {"dependencies": 0.5, "drive": 0.1, "submission": 0.01, "data": 0.39}
    cause, reason = open_loop(response_shares=partly, **served)
    assert cause is DATA
    assert shows(reason, "97.5 %")
    # What is small beside service is what was late all the same, if service took no longer than it
    # must.
    small = {"data": 0.07, "drive": 0.9, "submission": 0.03}
    assert open_loop(is_end_late=False, response_shares=small, unhindered_share=0.9)[0] is DATA
    assert open_loop(is_end_late=False, response_shares=small, unhindered_share=0.5)[0] is DRIVE
    # Earlier operations that took long are the drive's.
    chain = {"dependencies": 0.6, "drive": 0.4}
    for unhindered in (0.05, 0.38):
        late = open_loop(is_end_late=False, response_shares=chain, unhindered_share=unhindered)
        assert late[0] is DRIVE


def test_latency_of_a_chain_names_what_would_keep_up() -> None:
    """A load that took twice its time needs operations of half the length."""
    cause, reason = open_loop(
        is_end_late=True,
        response_shares={"dependencies": 0.9, "drive": 0.1},
        unhindered_share=0.1,
        mean_service_ns=400_000.0,
        needed_service_ns=200_000.0,
    )
    assert cause is DEPENDENCIES
    assert shows(reason, "400 µs … 200 µs")


def test_processors_that_others_took_are_the_cause() -> None:
    late: Any = {
        "is_end_late": True,
        "response_shares": {"dependencies": 0.9, "drive": 0.1},
        "others_processor_share": 0.85,
    }
    for storage, is_processor in (
        ("device in memory", True), ("memory", True), ("page cache", True), ("drive", False),
    ):  # fmt: skip
        cause, reason = open_loop(storage=storage, **late)
        assert (cause is PROCESSOR) is is_processor
        assert shows(reason, "85.0 %") is is_processor
    # A limit that was reached holds whoever has the processors.
    throttled: Any = {"throttle": "a limit of 1 GB/s", "throttle_share": 0.97}
    assert open_loop(storage="device in memory", **late, **throttled)[0] is THROTTLE
    # So does a queue that was full most of the time.
    held = open_loop(
        storage="device in memory", **late, depth=2, in_flight_mean=1.9, held_share=0.8
    )
    assert held[0] is QUEUE


def test_where_nothing_is_half_all_parts_are_told() -> None:
    cause, reason = open_loop(
        is_end_late=True, response_shares={"queue": 0.4, "drive": 0.35, "data": 0.25}
    )
    assert (
        cause,
        shows(reason, "queue 40.0 %, service 35.0 %, data 25.0 %"),
    ) == (QUEUE, True)
    cause, reason = open_loop(
        is_end_late=True, response_shares={"before submission": 0.8, "drive": 0.2}
    )
    assert (cause, "unknown" in reason) == (None, True)
    assert open_loop(is_end_late=True)[0] is None
    assert closed_loop()[0] is None
    assert (
        closed_loop(
            in_flight_mean=8.0, starved_share=0.3, blocked_share=0.05, submitter_busy_share=0.4
        )[0]
        is None
    )


def test_a_queue_without_a_processor_is_full_for_want_of_one() -> None:
    # Held to an eighth of a processor, 17 % was lost, and the queue was full: nobody took what had
    # ended.
    full: Any = {"in_flight_mean": 31.0, "held_share": 0.9, "processor_share": 0.464}
    cause, reason = closed_loop(**full, device_busy_share=0.5)
    assert cause is PROCESSOR
    assert shows(reason, "46.4 %")
    assert closed_loop(**full)[0] is PROCESSOR, "of a device that was not seen"
    # A device that has work all the time is what binds, whoever else waits.
    assert closed_loop(**full, device_busy_share=0.99)[0] is not PROCESSOR
    assert closed_loop(**full | {"processor_share": 0.1})[0] is QUEUE


def test_copies_and_tiers_without_times_have_no_queue() -> None:
    assert closed_loop(copies=True, in_flight_mean=0.0, copy_busy_share=0.98)[0] is COPIES
    assert closed_loop(copies=True, copy_busy_share=0.5, submitter_busy_share=0.95)[0] is REPLAYER
    some_at_once = closed_loop(copies=True, copy_busy_share=0.5, copying_share=0.4)
    assert some_at_once == (
        COPIES, Saying("50.0 %")
    )  # fmt: skip
    did: Any = {"copies": True, "copy_busy_share": 0.95, "copying_share": 0.3}
    assert closed_loop(**did, touch_share=0.6) == (
        MEMORY, Saying("95.0 % … 60.0 %")
    )  # fmt: skip
    assert closed_loop(**did, starved_share=0.6)[0] is DATA
    assert closed_loop(**did, processor_share=0.6)[0] is PROCESSOR
    late: Any = {"copies": True, "is_end_late": False}
    assert (
        open_loop(**late, response_shares={"memory": 0.9, "drive": 0.1}, touch_share=0.4)[0]
        is MEMORY
    )
    assert (
        open_loop(**late, response_shares={"copying": 0.9, "drive": 0.1}, copy_busy_share=0.4)[0]
        is COPIES
    )
    assert open_loop(**SERVED, copies=True, copy_busy_share=0.98)[0] is COPIES
    # Copies that waited for other operations, as those of a drive are, did not wait for who copies.
    waited: Any = {
        "response_shares": {"dependencies": 0.99, "drive": 0.01},
        "copies": True,
        "processor_share": 0.21,
    }
    assert open_loop(**waited, copy_busy_share=0.4, is_end_late=True)[0] is DEPENDENCIES
    assert open_loop(**waited, copy_busy_share=0.98, copying_share=0.7)[0] is COPIES
    own: Any = {"dependencies": 0.45, "copying": 0.3, "memory": 0.25}
    assert (
        open_loop(response_shares=own, copies=True, copy_busy_share=0.4, copying_share=0.3)[0]
        is COPIES
    )
    assert closed_loop(does_io=False, submitter_busy_share=1.0)[0] is REPLAYER
    assert closed_loop(does_io=False)[0] is REPLAYER


def served(
    *, depth: int, parallel: int, service_ns: int, arrival_ns: int, rows: int
) -> tuple[Any, Any]:
    """Return when operations are submitted and completed.

    `depth` places, a drive that does `parallel` at a time.
    """
    places, queues = np.zeros(depth, np.int64), np.zeros(parallel, np.int64)
    submitted, completed = np.zeros((2, rows), np.int64)
    for row in range(rows):
        place, lane = int(places.argmin()), int(queues.argmin())
        submitted[row] = max(row * arrival_ns, places[place])
        queues[lane] = max(queues[lane], submitted[row]) + service_ns
        completed[row] = places[place] = queues[lane]
    return submitted, completed


@pytest.mark.parametrize("depth", [8, 32])
def test_levels_tell_a_full_drive_from_a_short_queue(depth: int) -> None:
    kind = np.zeros(4000, np.int64)
    # A little more than the drive takes: its queue fills slowly.
    full = served(depth=depth, parallel=1, service_ns=10_000, arrival_ns=9_000, rows=4000)
    gain, slowdown = levels_of(*full, kind)
    assert gain == pytest.approx(0, abs=0.1)
    assert slowdown is None or slowdown > depth / 4
    # 1 ms each, however many there are, and slowly more of them.
    level = np.linspace(1, depth, 4000)
    submitted = np.cumsum(1_000_000 / level).astype(np.int64)
    gain, slowdown = levels_of(submitted, submitted + 1_000_000, kind)
    assert gain == pytest.approx(1, abs=0.1)
    assert slowdown == pytest.approx(1) or (slowdown is None and depth == 8)


def test_levels_of_a_steady_queue_tell_no_gain() -> None:
    steady = served(depth=16, parallel=16, service_ns=10_000, arrival_ns=0, rows=4000)
    assert levels_of(*steady, np.zeros(4000, np.int64))[0] is None
    assert levels_of(*np.zeros((2, 0), np.int64), np.zeros(0, np.int64)) == (None, None)
