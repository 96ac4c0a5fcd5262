"""One measurement by the probes.

Attach, read, detach; `measure` writes probe.json and blocks.parquet.

What was not measured is null or absent there, never 0. Last, the probes beside a replay, attached
for its measured part alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from kvreplay.probes.libbpf import (
    CALL_COUNTS,
    CALLS,
    COUNTS,
    DIRECTIONS,
    EVENT,
    KINDS,
    EventRing,
    Filter,
    Programs,
    beneath,
    check_available,
    device_name,
    histogram,
    load,
    tracefs,
    unseen_calls,
    zone_shift,
)
from kvreplay.tiers.host import SECTOR_BYTES, device_number, host_facts
from kvreplay.tiers.tier import Tier, drives_of
from kvtrace.core import pa, pc
from kvtrace.core.app import log, noted_signals
from kvtrace.core.document.document import (
    TIME_COLUMNS,
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import DeviceError, ProbeUnavailable, TraceError
from kvtrace.core.files import write_json
from kvtrace.core.metadata import Metadata, decode, describe, encode
from kvtrace.core.run.probe_file import (
    LAYERS,
    Application,
    BlockFigures,
    Calls,
    DepthCount,
    DirectionFigures,
    ProbeFile,
    Second,
    Sized,
    ZoneCount,
    find_probe,
    probe_answer,
)
from kvtrace.core.run.run_file import (
    ATTACHED,
    BLOCKS_FILE,
    BLOCKS_JOURNAL,
    PROBE_FILE,
    ProbesNote,
    attached,
)
from kvtrace.core.schema import BLOCKS, arrow_schema, batch_of
from kvtrace.core.statistics import total
from kvtrace.core.tables import META_KEY, Writer, create, open_table
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import NS_PER_S, counted, format_bytes, format_duration, format_io_size

POLL_MS = 100
DRAIN_NS = 60 * NS_PER_S
"""How often finished seconds are taken out of the kernel's table, which would fill up."""


class Session:
    """The probes while they are attached.

    `poll` must run often enough for the ring buffer not to fill up.
    """

    def __init__(self, wanted: Filter, writer: Writer | None) -> None:
        """Attach the probes for the processes and devices that pass `wanted`.

        Requests go to `writer` as rows of blocks, or nowhere.

        Once `journal` is set it takes them, too, as they come.

        ConfigError if nothing can pass the filter. ProbeUnavailable if this machine cannot run them.
        """
        wanted.check()
        self._programs, self._writer = load(wanted, has_events=writer is not None), writer
        self.journal: Callable[[pa.RecordBatch], None] | None = None
        self._shift = zone_shift(wanted.disks)
        self._seconds: dict[tuple[int, int], tuple[int, int]] = {}
        self.duration_ns: int | None = None
        if writer is not None:
            self._ring = EventRing(self._programs.descriptor("events"))
            self._bits = self._programs.enumerators("req_flag_bits")
        self.start_ns = self._drained_ns = time.monotonic_ns()
        # They count from now on.
        self._programs.shared()["origin_ns"] = self.start_ns

    def close(self) -> None:
        """Detach the probes."""
        self._programs.close()

    def poll(self) -> None:
        """Wait POLL_MS, then take the events in the ring."""
        time.sleep(POLL_MS / 1000)
        if time.monotonic_ns() - self._drained_ns > DRAIN_NS:
            self._drain_seconds(is_end=False)
        self._take_events()

    def _take_events(self, unfinished: bytes = b"") -> None:
        if self._writer is None:
            return
        if events := self._ring.take() + unfinished:
            batch = blocks_batch(events, self.start_ns, self._bits)
            self._writer.write(batch)
            if self.journal is not None:
                self.journal(batch)

    def _drain_seconds(self, *, is_end: bool) -> None:
        self._drained_ns = time.monotonic_ns()
        # A request that completes now still counts in the second that ends now.
        below = (self._drained_ns - self.start_ns) // NS_PER_S - 1
        for key, amount in list(self._programs.entries("seconds")):
            if is_end or key["second"] < below:
                moved = (int(amount["requests"]), int(amount["bytes"]))
                self._seconds[int(key["direction"]), int(key["second"])] = moved
                if not is_end:
                    self._programs.delete("seconds", key.tobytes())

    def finish(self) -> tuple[BlockFigures, Application | None]:
        """Read the last events and return the figures.

        Null for calls where the kernel has no tracepoints of them.
        """
        self.duration_ns = time.monotonic_ns() - self.start_ns
        for program in PROGRAMS:
            self._programs.detach(program)
        self._programs.shared()["origin_ns"] = 0
        # What has not completed by now is a row without a completion.
        self._take_events(
            b"".join(unfinished(state) for _, state in self._programs.entries("requests"))
        )
        self._drain_seconds(is_end=True)
        counted, unseen = self._programs.shared()[0], unseen_calls(tracefs() / "events")
        block = block_figures(self._programs, counted, self._seconds, self._shift)
        return block, None if unseen is None else application(counted, unseen)


PROGRAMS = (
    "block_io_start",
    "block_rq_insert",
    "block_bio_queue",
    "block_bio_backmerge",
    "block_bio_frontmerge",
    "block_split",
    "block_rq_merge",
    "block_rq_requeue",
    "block_rq_issue",
    "block_rq_issue_first",
    "block_rq_complete",
)
"""The order of detaching: programs that begin a request before those that end it."""


ERRNO = {0: 0, 1: 95, 2: 110, 3: 28, 4: 67, 5: 121, 6: 52, 7: 61, 8: 84, 9: 12, 10: 5}
"""The kernel's block status (blk_status_t) as an error number.

Its later codes changed between versions.
"""
EIO = 5
_OPERATIONS = {0: "R", 1: "W", 2: "F", 3: "D", 5: "DE", 7: "ZA", 9: "WZ"}
_FLAGS = (
    ("__REQ_FUA", "F"),
    ("__REQ_RAHEAD", "A"),
    ("__REQ_SYNC", "S"),
    ("__REQ_META", "M"),
    ("__REQ_ATOMIC", "U"),
)
_OPERATION_MASK = 0xFF


def rwbs(flags: int, bits: Mapping[str, int]) -> str:
    """Return the kernel's letters for a request's `flags`; `bits` are those of the running kernel."""
    before = "F" if flags >> bits["__REQ_PREFLUSH"] & 1 else ""
    after = "".join(letter for name, letter in _FLAGS if name in bits and flags >> bits[name] & 1)
    return before + _OPERATIONS.get(flags & _OPERATION_MASK, "N") + after


def unfinished(state: np.void) -> bytes:
    """Return `state`, a REQUEST that never completed, as the bytes of an event."""
    event = np.zeros(1, dtype=EVENT)
    for name in ("queue_ns", "issue_ns", "sector", "bytes", "flags", "dev", "pid", "comm"):
        event[name] = state[name]
    return event.tobytes()


def blocks_batch(data: bytes, start_ns: int, bits: Mapping[str, int]) -> pa.RecordBatch:
    """Return the events in `data`, packed `EVENT` records, as rows of the table blocks.

    Times are from `start_ns`, the monotonic clock's at the start of the run.
    """
    events = np.frombuffer(data, dtype=EVENT)
    columns: dict[str, pa.Array] = {}
    for name, source in (
        ("insert_ns", "queue_ns"),
        ("issue_ns", "issue_ns"),
        ("complete_ns", "complete_ns"),
    ):
        at = events[source].astype(np.int64)
        columns[name] = pa.array(at - start_ns, pa.int64(), mask=at == 0)
    columns |= {
        name: pa.array(events[name].astype(kind))
        for name, kind in (("sector", "i8"), ("bytes", "i8"), ("pid", "i4"))
    }
    columns["device"] = _mapped(events["dev"], device_name, pa.string())
    columns["rwbs"] = _mapped(events["flags"], lambda flags: rwbs(flags, bits), pa.string())
    names = np.ascontiguousarray(events["comm"]).view("S16")[:, 0]
    columns["comm"] = _mapped(names, lambda name: name.decode(errors="replace"), pa.string())
    error = _mapped(events["status"], lambda status: ERRNO.get(status, EIO), pa.int32())
    columns["error"] = pc.if_else(
        pa.array(events["complete_ns"] == 0), pa.scalar(None, pa.int32()), error
    )
    return batch_of(BLOCKS, columns)


def _mapped(values: np.ndarray, name: Callable[[Any], Any], type_: pa.DataType) -> pa.Array:
    """Return `name` of each of `values`, asked once for each distinct one."""
    found = pa.array(np.ascontiguousarray(values)).dictionary_encode()
    return pa.array([name(value) for value in found.dictionary.to_pylist()], type_).take(
        found.indices
    )


@contextmanager
def block_journal(folder: Path, meta: Metadata) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that appends rows of blocks to a file in `folder` at once.

    It is what is left of a probe that is killed.
    """
    schema = arrow_schema(BLOCKS).with_metadata({META_KEY: encode(meta)})
    with pa.OSFile(str(folder / BLOCKS_JOURNAL), "wb") as file:
        yield pa.ipc.new_stream(file, schema).write_batch


def recover_blocks(folder: Path) -> int:
    """Write blocks.parquet of a probe in `folder` that was killed, from its journal.

    Return the number of rows.

    What the kernel held is gone: there is no probe.json, and requests that were under way are no
    rows.
    """
    path = folder / BLOCKS_JOURNAL
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            meta = decode(stream.schema.metadata[META_KEY], path)
            with create(folder / BLOCKS_FILE, BLOCKS, meta) as writer:
                try:
                    for batch in stream:
                        writer.write(batch)
                except (pa.ArrowInvalid, OSError):
                    pass  # the batch that was being written
                rows = writer.rows
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise TraceError(f"not the journal of a probe: {error}", path=path) from None
    path.unlink()
    for left in folder.glob(f".{BLOCKS_FILE}.*.tmp"):
        left.unlink()
    return rows


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command`, which waits until it is sent SIGCONT.

    What is left of it at the end is sent SIGTERM.
    """
    shell = ["/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command]
    with subprocess.Popen(shell) as child:  # noqa: S603 - what the user gave
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.terminate()


# Long: what a probe does, step after step.
def measure(
    wanted: Filter,
    output: Path,
    duration_ns: int | None,
    argv: list[str],
    *,
    has_events: bool,
    tell: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> ProbeFile:
    """Measure for `duration_ns`, until it `is_over`, or until SIGINT or SIGTERM.

    Write the result to `output`.

    `tell` takes a line when the probes are attached.

    ConfigError, DeviceError, ProbeUnavailable before anything was measured.
    """
    configuration = {
        "comm": wanted.comm,
        "pid": wanted.pid,
        "cgroup": None if wanted.cgroup is None else str(wanted.cgroup),
        "devices": [d.name for d in wanted.disks],
        "duration_ns": duration_ns,
        "has_events": has_events,
        "backend": str(check_available(wanted.backend)),
    }
    meta = describe(BLOCKS, "kvreplay", argv, configuration)
    output.mkdir(exist_ok=True)
    # An old result must not stand beside new events.
    for name in (PROBE_FILE, BLOCKS_FILE):
        (output / name).unlink(missing_ok=True)
    try:
        with ExitStack() as stack:
            writer = (
                stack.enter_context(create(output / BLOCKS_FILE, BLOCKS, meta))
                if has_events
                else None
            )
            session = stack.enter_context(closing(Session(wanted, writer)))
            session.journal = (
                stack.enter_context(block_journal(output, meta)) if has_events else None
            )
            began = datetime.now(UTC)
            with noted_signals() as caught:
                # Who reads this may send the signal at once.
                tell(ATTACHED)
                end = None if duration_ns is None else time.monotonic() + duration_ns / NS_PER_S
                while not caught() and (end is None or time.monotonic() < end) and not is_over():
                    session.poll()
                was_stopped = caught() is not None
            block, calls = session.finish()
        (output / BLOCKS_JOURNAL).unlink(missing_ok=True)
        content = ProbeFile(
            program=meta.program,
            version=meta.version,
            argv=meta.argv,
            config=configuration,
            config_sha256=meta.config_sha256,
            started=began.isoformat(),
            start_monotonic_ns=session.start_ns,
            duration_ns=session.duration_ns,
            was_stopped=was_stopped,
            event_rows=None if writer is None else writer.rows,
            block=block,
            application=calls,
            definitions=DEFINITIONS,
            host=host_facts(),
        )
        write_json(output / PROBE_FILE, content)
    finally:
        if not any(output.iterdir()):
            output.rmdir()
    return content


DEFINITIONS = {
    "requests": (
        "what the block layer hands to a disk; one system call or object can take many, merges join"
        " several"
    ),
    "whose": (
        "the process that queued the request, not who issued or completed it; if merged, its first"
        " part's"
    ),
    "not seen": (
        "dirty pages that the kernel writes back later belong to its own threads, and so not to a"
        " process; requests queued before the probes were attached"
    ),
    "q2d": (
        "from when the request was made (block_io_start, or block_rq_insert on older kernels) to"
        " its last issue: plugging, scheduler, and what requeues took; of requests whose completion"
        " was seen, so that Q2D and D2C add up to queue to completion"
    ),
    "d2c": "from the last issue to the completion: driver and device",
    "requeued": (
        "from a requeue by the driver to the next issue, once for each requeue; part of Q2D"
    ),
    "block_sizes": "requests by their bytes when first issued",
    "in_flight_at_dispatch": (
        "requests by how many of those that pass the filter, in any direction, their disk had in"
        " flight when they were first issued, themselves included; 1023 stands for 1023 and more. A"
        " request whose completion was not seen is taken out as soon as the kernel's own state of"
        " it says that it has ended"
    ),
    "bios": (
        "I/Os as the filesystem or program gave them to the block layer, before splits and merges"
    ),
    "splits": "I/Os cut because they were longer than the disk takes",
    "issued": (
        "handed to the driver; null of flushes, which the kernel passes on by requests that belong"
        " to no process"
    ),
    "requeues": "issues that the driver requeued; each is counted, their request once",
    "per_second": (
        "what completed, by the second since the start; the last second is cut short by the end"
    ),
    "heat": "what was issued, by the stretch of the disk in which a request starts",
    "ends_not_seen": (
        "requests that completed without the kernel running the probe there (some kernels run none"
        " while a process they protect is the current one); rows of blocks.parquet without a"
        " completion"
    ),
    "application": (
        "calls on regular files and block devices, of the kernel's own file systems none;"
        " memory-mapped access and calls that were under way at the start are not seen; calls that"
        " failed count as errors alone; with --dev only files on these disks"
    ),
    "application times": (
        "a system call from its start to its return; asynchronous I/O from io_submit to the"
        " io_getevents that returns it; io_uring from submission to completion, where all"
        " synchronizations count as fsync"
    ),
    "application read and write": (
        "calls that queued I/O while they waited, and asynchronous ones, which on files "
        "without O_DIRECT may have been answered by the page cache"
    ),
    "application read_without_io and write_without_io": (
        "calls that waited and queued no I/O themselves: the data was "
        "in the page cache or a hole, or went to the page cache and is written back later"
    ),
    "direct": (
        "calls on files and devices that were opened with O_DIRECT; the others go by way of the"
        " page cache"
    ),
    "without_io": (
        "calls that queued no I/O themselves: the data was in the page cache, or on its way there"
    ),
    "write_to_fsync": (
        "from the return of the last write to a file to the start of its next synchronization"
    ),
    "fadvise_to_read": (
        "from the return of the last fadvise64 on a file to the start of its next read"
    ),
    "application devices": (
        "with --dev, files on filesystems that lie on these disks; filesystems without a disk of "
        "their own (NFS, FUSE, overlay, btrfs) are then not seen"
    ),
    "percentiles": (
        "nearest rank; the middle of a slot at most 1/64 of its value wide, so within 0.8 %; "
        "null with fewer than 1 / (1 - q) requests"
    ),
}


def block_figures(
    programs: Programs,
    counted: np.ndarray,
    seconds: Mapping[tuple[int, int], tuple[int, int]],
    shift: int,
) -> BlockFigures:
    """Return the figures in the tables of the attached `programs` and in their counts, `counted`.

    `seconds` are requests and bytes by direction and second; zones of the heat map are sectors >>
    `shift`.
    """
    sizes = sorted(
        (int(k["direction"]), int(k["bytes"]), int(v["value"]))
        for k, v in programs.entries("sizes")
    )
    zones = sorted(
        (int(k["direction"]), int(k["dev"]), int(k["zone"]), int(v["requests"]), int(v["bytes"]))
        for k, v in programs.entries("zones")
    )
    gone = Counter(int(r["direction"]) for _, r in programs.entries("requests") if r["is_gone"])
    counts = counted["counts"]["block"].sum(axis=0)
    zone_bytes = SECTOR_BYTES << shift
    directions = {}
    for index, name in enumerate(DIRECTIONS):
        of: dict[str, Any] = dict(zip(COUNTS, counts[index].tolist(), strict=True))
        if not any(of.values()):
            continue
        if name == "flush" and not of["issued"]:
            of |= {"issued": None, "issued_bytes": None}
        of["ends_not_seen"] += gone[index]
        of |= {
            name: histogram(counted[name][index].tolist(), of.pop(f"{name}_sum")) for name in LAYERS
        }
        directions[name] = DirectionFigures(
            block_sizes=[Sized(size, n) for direction, size, n in sizes if direction == index],
            in_flight_at_dispatch=[
                DepthCount(depth, n)
                for depth, n in enumerate(counted["depths"][index].tolist())
                if n
            ],
            per_second=[
                Second(second * NS_PER_S, *moved)
                for (of_, second), moved in sorted(seconds.items())
                if of_ == index
            ],
            heat=[
                ZoneCount(device_name(dev), zone * zone_bytes, *moved)
                for of_, dev, zone, *moved in zones
                if of_ == index
            ],
            **of,
        )
    in_flight = sum(int(v["value"]) for _, v in programs.entries("in_flight"))
    return BlockFigures(directions=directions, zone_bytes=zone_bytes, in_flight_at_end=in_flight)


_ASYNCHRONOUS = ("io_submit", "io_uring")
_MOVES_NOTHING = ("fsync", "fdatasync")


def application(counted: np.ndarray, unseen: Sequence[str]) -> Application:
    """Return the figures in the programs' counts, `counted`.

    `unseen` are calls that the kernel does not show.
    """
    found = {
        name: histogram(counted["app_times"][i].tolist(), int(counted["app_sums"][i]))
        for i, name in enumerate(KINDS)
    }
    calls = []
    for kind, of_kind in zip(KINDS, counted["counts"]["app"].sum(axis=0).tolist(), strict=True):
        for call, amounts in zip(CALLS, of_kind, strict=True):
            of: dict[str, int | None] = dict(zip(CALL_COUNTS, amounts, strict=True))
            if not any(amounts):
                continue
            if call in _ASYNCHRONOUS or kind in _MOVES_NOTHING:
                of |= {"without_io": None, "without_io_bytes": None}
            if kind in _MOVES_NOTHING:
                of["bytes"] = None
            calls.append(msgspec.convert({"kind": kind, "call": call, **of}, Calls))
    return Application(
        times={name: times for name, times in found.items() if times.count},
        calls=calls,
        unseen=list(unseen),
        not_followed=int(counted["app_not_followed"]),
    )


MOST_SIZES = 12
"""Block sizes shown; probe.json has all."""
MOST_ZONES = 8
_UNSEEN = (
    "this kernel has no tracepoints of system calls (CONFIG_FTRACE_SYSCALLS): the application is"
    " unseen"
)
_NO_REQUEST = "no block request was seen: check the filter; the page cache may have served all I/O"


# Long: a table each.
def probe_document(found: ProbeFile) -> Document:
    """Make the document of a measurement.

    Its answer, the application's calls, then the block requests beneath.
    """
    calls, directions = found.application, found.block.directions
    columns = [
        ReportColumn("kind"),
        ReportColumn("call"),
        ReportColumn("count", unit=Unit.COUNT),
        ReportColumn("bytes", unit=Unit.BYTES),
        ReportColumn("errors", unit=Unit.COUNT),
        ReportColumn("direct", "O_DIRECT", Unit.COUNT),
        ReportColumn("without_io", "queued no I/O", Unit.COUNT),
    ]
    timed = (
        []
        if calls is None
        else [(f"application {n.replace('_', ' ')}", t) for n, t in calls.times.items()]
    )
    for name, d in directions.items():
        layers = (("Q2D", d.q2d), ("of it requeued", d.requeued), ("D2C", d.d2c))
        timed += [(f"{name} {what}", times) for what, times in layers if times and times.count]
    tables = (
        [table_of("Application calls", Sheet.DEVICE, columns, calls.calls, keys=2)]
        if calls and calls.calls
        else []
    )
    if directions:
        columns = [
            ReportColumn("direction"),
            ReportColumn("issued", "requests", Unit.COUNT),
            ReportColumn("completed", unit=Unit.COUNT),
            ReportColumn("completed_bytes", "bytes", Unit.BYTES),
            ReportColumn("bios", unit=Unit.COUNT),
            ReportColumn("splits", unit=Unit.COUNT),
            ReportColumn("merges", unit=Unit.COUNT),
            ReportColumn("requeues", unit=Unit.COUNT),
            ReportColumn("errors", unit=Unit.COUNT),
        ]
        merges = {name: total([d.bios_merged, d.requests_merged]) for name, d in directions.items()}
        rows = [
            asdict(d) | {"direction": name, "merges": merges[name]}
            for name, d in directions.items()
        ]
        note = f"Requests: {DEFINITIONS['issued']}." if "flush" in directions else ""
        tables.append(table_of("Block requests", Sheet.DEVICE, columns, rows, note))
    if timed:
        rows = [asdict(times) | {"time": name} for name, times in timed]
        columns = [
            ReportColumn("time"),
            ReportColumn("count", unit=Unit.COUNT),
            *TIME_COLUMNS,
            ReportColumn("longest_below_ns", "below", Unit.NS),
        ]
        tables.append(table_of("Times", Sheet.DEVICE, columns, rows))
    columns = [
        ReportColumn("from_ns", "from", Unit.NS),
        ReportColumn("below_ns", "below", Unit.NS),
        ReportColumn("count", unit=Unit.COUNT),
    ]
    for name, times in timed:
        slots = [(bucket.from_, bucket.below, bucket.count) for bucket in times.log2_ns]
        tables.append(table_of(name, Sheet.HISTOGRAMS, columns, slots, bars="count"))
    chapters = [Chapter("", tables)]
    for name, d in ((name, d) for name, d in directions.items() if d.block_sizes):
        common = sorted(d.block_sizes, key=lambda s: -s.count)[:MOST_SIZES]
        others = len(d.block_sizes) - len(common)
        title = (
            f"{name} block"
            f" size{f' (the most frequent; {others} more in probe.json)' if others else ''}"
        )
        counts = [(format_io_size(s.bytes), s.count) for s in sorted(common, key=lambda s: s.bytes)]
        sizes = table_of(
            title,
            Sheet.HISTOGRAMS,
            [
                ReportColumn("size"),
                ReportColumn("count", "requests", Unit.COUNT),
            ],
            counts,
        )
        hottest = sorted(d.heat, key=lambda z: -(z.bytes or 0))[:MOST_ZONES]
        others = len(d.heat) - len(hottest)
        title = f"{name} by place, in stretches of {format_bytes(found.block.zone_bytes)}"
        title += f" (the hottest; {others} more in probe.json)" if others else ""
        columns = [
            ReportColumn("device", "disk"),
            ReportColumn("from_bytes", "from", Unit.BYTES),
            ReportColumn("requests", unit=Unit.COUNT),
            ReportColumn("bytes", unit=Unit.BYTES),
        ]
        hottest.sort(key=lambda z: (z.device, z.from_bytes))
        places = table_of(title, Sheet.HISTOGRAMS, columns, hottest, keys=2)
        chapters.append(Chapter("", [sizes, places], list(_in_flight_and_rates(name, d))))
    chapters.append(Chapter("", [], list(_lost(found.block))))
    notes = [_UNSEEN] if calls is None else []
    if calls is not None and calls.unseen:
        notes += [
            (
                f"NOT SEEN: calls by {' and '.join(calls.unseen)}; this kernel has no tracepoints for"
                " them"
            )
        ]
    if calls is not None and calls.not_followed:
        notes += [
            (
                f"NOT FOLLOWED: {counted(calls.not_followed, 'asynchronous I/O')} beyond 128 of one"
                " io_submit"
            )
        ]
    return Document(
        name="",
        headline=probe_answer(found) if directions else _NO_REQUEST,
        chapters=chapters,
        notes=notes,
    )


def _in_flight_and_rates(name: str, d: DirectionFigures) -> Iterator[str]:
    if depths := d.in_flight_at_dispatch:
        mean = sum(x.in_flight * x.count for x in depths) / sum(x.count for x in depths)
        yield f"{name} in flight at dispatch: mean {mean:.2f}, most {depths[-1].in_flight}"
    if d.per_second:
        fastest = max(d.per_second, key=lambda s: s.bytes)
        yield (
            f"{name} per second: most {format_bytes(fastest.bytes)} and"
            f" {counted(fastest.requests, 'request')}, in the one from"
            f" {format_duration(fastest.from_ns)}; {counted(len(d.per_second), 'second')} had any"
        )


def _lost(figures: BlockFigures) -> Iterator[str]:
    """Yield which requests are missing in which figures."""
    said = {
        "ends_not_seen": "NOT SEEN: the completion of {}, which D2C leaves out",
        "lost_events": "LOST: {} not in blocks.parquet, but in all figures; try --histograms-only",
        "lost_zones": "LOST: {} not in the LBA map",
        "lost_requests": "LOST: {} in no figure; narrow the filter",
    }
    for name, text in said.items():
        if count := sum(getattr(d, name) for d in figures.directions.values()):
            yield text.format(counted(count, "request"))
    if figures.in_flight_at_end:
        yield (
            f"{counted(figures.in_flight_at_end, 'request')} had no completion by the end: in"
            " no D2C"
        )


# === beside a replay ==================================================================================================

_SINCE_START = ("insert_ns", "issue_ns", "complete_ns")


@dataclass(frozen=True, slots=True)
class Probed:
    """The results of the probes during a replay, or the reason why there were none."""

    reason: str | None
    """Why they were left out; None if they measured."""
    content: ProbeFile | None
    """Null without."""
    directory: Path | None
    """Where their files are until the run is written."""
    started_ns: int | None
    """The replay's start on the monotonic clock; None if it never started."""

    @property
    def has_events(self) -> bool:
        """Whether there are rows of blocks."""
        return (
            self.started_ns is not None
            and self.content is not None
            and self.content.event_rows is not None
        )

    @property
    def _since_start_ns(self) -> int | None:
        """When the probes started after the replay; null if one of them never did."""
        start_ns = None if self.content is None else self.content.start_monotonic_ns
        return None if start_ns is None or self.started_ns is None else start_ns - self.started_ns

    def facts(self) -> ProbesNote:
        """Return the note on the probes for run.json."""
        if self.content is None:
            return ProbesNote(is_measured=False, reason=self.reason)
        return ProbesNote(
            is_measured=True,
            file=PROBE_FILE,
            event_rows=self.content.event_rows,
            devices=self.content.devices,
            start_ns=self._since_start_ns,
            duration_ns=self.content.duration_ns,
        )

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of blocks, with times from the replay's start."""
        if self.directory is None or (shift_ns := self._since_start_ns) is None:
            return
        for batch in open_table(self.directory / BLOCKS_FILE, BLOCKS).batches():
            shifted = batch
            for name in _SINCE_START:
                at = batch.schema.get_field_index(name)
                shifted = shifted.set_column(
                    at, batch.schema.field(at), pc.add(batch.column(at), shift_ns)
                )
            yield shifted

    def save(self, output: Path) -> None:
        """Move probe.json to the run's directory, `output`."""
        if self.directory is not None:
            (self.directory / PROBE_FILE).replace(output / PROBE_FILE)


@contextmanager
def probing(
    tiers: Sequence[Tier | None],
    output: Path,
    *,
    is_wanted: bool,
    has_events: bool = True,
    is_of_all: bool = False,
) -> Iterator[Callable[[int | None], Probed | None]]:
    """Attach probes to this process tree if that `is_wanted`; yield a function that ends them.

    They are `kvreplay probe` in a process of its own, for who submits has no time to read events.
    `is_of_all` attaches them to all processes on the tiers' disks instead: the kernel's own write
    back a page cache. The function takes the replay's start on the monotonic clock, or None if it
    never started. Where they cannot run, one line on stderr says why and what mends it, and the
    replay goes on.
    """
    if not is_wanted:
        yield lambda _started_ns: None
        return
    with ExitStack() as stack:
        staging = stack.enter_context(temporary_folder(".probe-", output.resolve().parent))
        directory, left_out = staging / "probe", None
        try:
            end = stack.enter_context(
                attached(*_options(tiers, directory, has_events=has_events, is_of_all=is_of_all))
            )
        except ProbeUnavailable as error:
            left_out = _left_out(error)
        yield lambda started_ns: left_out or _ended(end, directory, started_ns)


def _options(
    tiers: Sequence[Tier | None], directory: Path, *, has_events: bool, is_of_all: bool
) -> list[str]:
    # The disks beneath all tiers on storage; none, for all, if those of one are not known.
    disks: list[Path] = []
    numbers = [device_number(Path(drive.target)) for drive in drives_of(tiers)]
    with suppress(DeviceError):
        below = [disk.name for number in numbers for disk in beneath(number)]
        disks = [Path("/dev") / name for name in dict.fromkeys(below)]
    known = disks if all(disk.is_block_device() for disk in disks) else []
    return [
        *("-o", str(directory)),
        *([] if is_of_all else ["--pid", str(os.getpid())]),
        *(arg for disk in known for arg in ("--dev", str(disk))),
        *([] if has_events else ["--histograms-only"]),
    ]


def _ended(end: Callable[[], None], directory: Path, started_ns: int | None) -> Probed:
    try:
        end()
    except ProbeUnavailable as error:
        return _left_out(error)
    return Probed(None, find_probe(directory), directory, started_ns)


def _left_out(why: ProbeUnavailable) -> Probed:
    log(f"left out the probes: {why}")
    return Probed(str(why), None, None, None)
