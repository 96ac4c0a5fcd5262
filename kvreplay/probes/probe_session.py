"""One measurement by the probes: attach, read, detach.

`measure` writes probe.json and blocks.parquet. A value that was not measured is null or absent
there, never 0. `probing`, at the end, attaches probes for the measured part of a replay.
"""

from __future__ import annotations

import os
import shutil
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
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, TraceError
from kvtrace.core.files import write_json
from kvtrace.core.metadata import Metadata, decode, describe, encode
from kvtrace.core.parquet_tables import META_KEY
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
    format_probe_answer,
)
from kvtrace.core.run.run_file import (
    ATTACHED,
    BLOCKS_FILE,
    BLOCKS_JOURNAL,
    PROBE_FILE,
    ProbesNote,
    attach_probes,
)
from kvtrace.core.schema import BLOCKS, arrow_schema, batch_of
from kvtrace.core.statistics import total
from kvtrace.core.tables import Writer, create, open_table
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import NS_PER_S, counted, format_bytes, format_duration, format_io_size

POLL_MS = 100
DRAIN_NS = 60 * NS_PER_S
"""Interval at which finished seconds are moved out of the kernel's table, which would fill up."""


class Session:
    """The probes while they are attached.

    `poll` must run often enough for the ring buffer not to fill up.
    """

    def __init__(self, io_filter: Filter, writer: Writer | None) -> None:
        """Attach the probes for the processes and devices that pass the filter.

        Requests go to `writer` as rows of the table blocks, if there is one, and to `journal` once
        that is set.

        ConfigError if nothing can pass the filter. ProbeUnavailable if this machine cannot run them.
        """
        io_filter.check()
        self._programs, self._writer = load(io_filter, has_events=writer is not None), writer
        self.journal: Callable[[pa.RecordBatch], None] | None = None
        self._shift = zone_shift(io_filter.disks)
        self._seconds: dict[tuple[int, int], tuple[int, int]] = {}
        self.duration_ns: int | None = None
        if writer is not None:
            self._ring = EventRing(self._programs.descriptor("events"))
            self._bits = self._programs.enumerators("req_flag_bits")
        self.start_ns = self._drained_ns = time.monotonic_ns()
        # The programs count from now on.
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
                counts = (int(amount["requests"]), int(amount["bytes"]))
                self._seconds[int(key["direction"]), int(key["second"])] = counts
                if not is_end:
                    self._programs.delete("seconds", key.tobytes())

    def finish(self) -> tuple[BlockFigures, Application | None]:
        """Read the last events, and return the figures of the block layer and the application.

        The latter is None if the kernel has no tracepoints of system calls.
        """
        self.duration_ns = time.monotonic_ns() - self.start_ns
        for program in PROGRAMS:
            self._programs.detach(program)
        self._programs.shared()["origin_ns"] = 0
        # A request that has not completed by now becomes a row without a completion.
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
    """Return the kernel's letters for a request's `flags`.

    `bits` are the numbers of the flags in the running kernel, by name.
    """
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

    Times count from `start_ns`, the start of the run on the monotonic clock.
    """
    events = np.frombuffer(data, dtype=EVENT)
    columns: dict[str, pa.Array] = {}
    for name, source in (
        ("insert_ns", "queue_ns"),
        ("issue_ns", "issue_ns"),
        ("complete_ns", "complete_ns"),
    ):
        times_ns = events[source].astype(np.int64)
        columns[name] = pa.array(times_ns - start_ns, pa.int64(), mask=times_ns == 0)
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
    """Return `name(value)` for each of `values`; it is called once for each distinct value."""
    encoded = pa.array(np.ascontiguousarray(values)).dictionary_encode()
    names = pa.array([name(value) for value in encoded.dictionary.to_pylist()], type_)
    return names.take(encoded.indices)


@contextmanager
def block_journal(folder: Path, meta: Metadata) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that appends rows of blocks at once to a journal in `folder`.

    The journal survives if the probe is killed.
    """
    schema = arrow_schema(BLOCKS).with_metadata({META_KEY: encode(meta)})
    with pa.OSFile(str(folder / BLOCKS_JOURNAL), "wb") as file:
        yield pa.ipc.new_stream(file, schema).write_batch


def recover_blocks(folder: Path) -> int:
    """Write blocks.parquet from the journal in `folder`, after its probe was killed.

    Return the number of rows. The kernel's tables are lost: there is no probe.json, and requests
    that were in flight have no rows.
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
    for temporary_file in folder.glob(f".{BLOCKS_FILE}.*.tmp"):
        temporary_file.unlink()
    return rows


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command`, which waits until it is sent SIGCONT.

    If it still runs at the end, it is sent SIGTERM.

    ConfigError if there is no such command.
    """
    if shutil.which(command[0]) is None:
        raise ConfigError(f"-- {command[0]}: command not found; check its name and PATH")
    shell = ["/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command]
    with subprocess.Popen(shell) as child:  # noqa: S603 - what the user gave
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.terminate()


# Long: all steps of a measurement in order.
def measure(
    io_filter: Filter,
    output: Path,
    duration_ns: int | None,
    argv: list[str],
    *,
    has_events: bool,
    announce: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
) -> ProbeFile:
    """Measure for `duration_ns`, until `is_over()`, or until SIGINT or SIGTERM.

    Write the result to the directory `output`. `announce` is called with a line of text when the
    probes are attached.

    ConfigError, DeviceError or ProbeUnavailable before the measurement starts.
    """
    configuration = {
        "comm": io_filter.comm,
        "pid": io_filter.pid,
        "cgroup": None if io_filter.cgroup is None else str(io_filter.cgroup),
        "devices": [d.name for d in io_filter.disks],
        "duration_ns": duration_ns,
        "has_events": has_events,
        "backend": str(check_available(io_filter.backend)),
    }
    meta = describe(BLOCKS, "kvreplay", argv, configuration)
    output.mkdir(exist_ok=True)
    # An old result must not lie beside new events.
    for name in (PROBE_FILE, BLOCKS_FILE):
        (output / name).unlink(missing_ok=True)
    try:
        with ExitStack() as stack:
            writer = (
                stack.enter_context(create(output / BLOCKS_FILE, BLOCKS, meta))
                if has_events
                else None
            )
            session = stack.enter_context(closing(Session(io_filter, writer)))
            session.journal = (
                stack.enter_context(block_journal(output, meta)) if has_events else None
            )
            began = datetime.now(UTC)
            with noted_signals() as caught:
                # The reader of this line may send a signal at once, so signals are noted first.
                announce(ATTACHED)
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
        "requests of the block layer to a disk; one system call or object can take many, and merges"
        " join several"
    ),
    "whose": (
        "the process that queued the request, not the one that issued or completed it; for a merged"
        " request, the process of its first I/O"
    ),
    "not seen": (
        "dirty pages that the kernel writes back later belong to its own threads, and so not to a"
        " process; requests queued before the probes were attached"
    ),
    "q2d": (
        "from the creation of the request (block_io_start, or block_rq_insert on older kernels) to"
        " its last issue: plugging, scheduler and requeues; only requests whose completion was"
        " seen, so that Q2D and D2C add up to queue to completion"
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
        "requests passed to the driver; null for flushes, which the kernel passes on by requests"
        " that belong to no process"
    ),
    "requeues": "issues that the driver requeued; each is counted, their request once",
    "per_second": (
        "completed requests, by the second since the start; the end cuts the last second short"
    ),
    "heat": "issued requests, by the zone of the disk in which a request starts",
    "ends_not_seen": (
        "requests that completed without the kernel running the probe there (some kernels run none"
        " while a process they protect is the current one); rows of blocks.parquet without a"
        " completion"
    ),
    "application": (
        "calls on regular files and block devices, except on the kernel's own file systems;"
        " memory-mapped access and calls that were in progress at the start are not seen; failed"
        " calls count as errors only; with --dev only files on these disks"
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
    """Return the figures of block requests from the tables and counts of the attached programs.

    `counted` are the programs' shared counts. `seconds` are requests and bytes by direction and
    second. A zone of the heat map is a sector number >> `shift`.
    """
    sizes = sorted(
        (int(k["direction"]), int(k["bytes"]), int(v["value"]))
        for k, v in programs.entries("sizes")
    )
    zones = sorted(
        (int(k["direction"]), int(k["dev"]), int(k["zone"]), int(v["requests"]), int(v["bytes"]))
        for k, v in programs.entries("zones")
    )
    # Requests that ended without the program at their completion having run.
    unseen_ends = Counter(
        int(request["direction"])
        for _, request in programs.entries("requests")
        if request["is_gone"]
    )
    counts = counted["counts"]["block"].sum(axis=0)
    zone_bytes = SECTOR_BYTES << shift
    directions = {}
    for index, name in enumerate(DIRECTIONS):
        fields: dict[str, Any] = dict(zip(COUNTS, counts[index].tolist(), strict=True))
        if not any(fields.values()):
            continue
        if name == "flush" and not fields["issued"]:
            fields |= {"issued": None, "issued_bytes": None}
        fields["ends_not_seen"] += unseen_ends[index]
        fields |= {
            layer: histogram(counted[layer][index].tolist(), fields.pop(f"{layer}_sum"))
            for layer in LAYERS
        }
        directions[name] = DirectionFigures(
            block_sizes=[Sized(size, n) for direction, size, n in sizes if direction == index],
            in_flight_at_dispatch=[
                DepthCount(depth, n)
                for depth, n in enumerate(counted["depths"][index].tolist())
                if n
            ],
            per_second=[
                Second(second * NS_PER_S, *amounts)
                for (direction, second), amounts in sorted(seconds.items())
                if direction == index
            ],
            heat=[
                ZoneCount(device_name(dev), zone * zone_bytes, *amounts)
                for direction, dev, zone, *amounts in zones
                if direction == index
            ],
            **fields,
        )
    in_flight = sum(int(v["value"]) for _, v in programs.entries("in_flight"))
    return BlockFigures(directions=directions, zone_bytes=zone_bytes, in_flight_at_end=in_flight)


_ASYNCHRONOUS = ("io_submit", "io_uring")
_MOVES_NOTHING = ("fsync", "fdatasync")


def application(counted: np.ndarray, unseen: Sequence[str]) -> Application:
    """Return the figures of the application's calls from the programs' shared counts.

    `unseen` lists asynchronous calls that the kernel's tracepoints do not show.
    """
    histograms = {
        name: histogram(counted["app_times"][i].tolist(), int(counted["app_sums"][i]))
        for i, name in enumerate(KINDS)
    }
    calls = []
    counts_by_kind = counted["counts"]["app"].sum(axis=0).tolist()
    for kind, counts_by_call in zip(KINDS, counts_by_kind, strict=True):
        for call, amounts in zip(CALLS, counts_by_call, strict=True):
            fields: dict[str, int | None] = dict(zip(CALL_COUNTS, amounts, strict=True))
            if not any(amounts):
                continue
            if call in _ASYNCHRONOUS or kind in _MOVES_NOTHING:
                fields |= {"without_io": None, "without_io_bytes": None}
            if kind in _MOVES_NOTHING:
                fields["bytes"] = None
            calls.append(msgspec.convert({"kind": kind, "call": call, **fields}, Calls))
    return Application(
        times={name: times for name, times in histograms.items() if times.count},
        calls=calls,
        unseen=list(unseen),
        not_followed=int(counted["app_not_followed"]),
    )


MAX_SIZES = 12
"""Block sizes shown; probe.json has all."""
MAX_ZONES = 8
_UNSEEN = (
    "this kernel has no tracepoints of system calls (CONFIG_FTRACE_SYSCALLS): the application is"
    " unseen"
)
_NO_REQUEST = "no block request was seen: check the filter; the page cache may have served all I/O"


# Long: one table after another.
def probe_document(probe: ProbeFile) -> Document:
    """Make the document of a measurement: its answer, the application's calls, block requests."""
    calls, directions = probe.application, probe.block.directions
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
        timed += [(f"{name} {layer}", times) for layer, times in layers if times and times.count]
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
        common = sorted(d.block_sizes, key=lambda s: -s.count)[:MAX_SIZES]
        hidden = len(d.block_sizes) - len(common)
        title = f"{name} block size"
        title += f" (the most frequent; {hidden} more in probe.json)" if hidden else ""
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
        hottest = sorted(d.heat, key=lambda z: -(z.bytes or 0))[:MAX_ZONES]
        hidden = len(d.heat) - len(hottest)
        title = f"{name} by disk offset, in zones of {format_bytes(probe.block.zone_bytes)}"
        title += f" (the hottest; {hidden} more in probe.json)" if hidden else ""
        columns = [
            ReportColumn("device", "disk"),
            ReportColumn("from_bytes", "from", Unit.BYTES),
            ReportColumn("requests", unit=Unit.COUNT),
            ReportColumn("bytes", unit=Unit.BYTES),
        ]
        hottest.sort(key=lambda z: (z.device, z.from_bytes))
        places = table_of(title, Sheet.HISTOGRAMS, columns, hottest, keys=2)
        chapters.append(Chapter("", [sizes, places], list(_in_flight_and_rates(name, d))))
    chapters.append(Chapter("", [], list(_lost(probe.block))))
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
        headline=format_probe_answer(probe) if directions else _NO_REQUEST,
        chapters=chapters,
        notes=notes,
    )


def _in_flight_and_rates(name: str, d: DirectionFigures) -> Iterator[str]:
    if depths := d.in_flight_at_dispatch:
        mean = sum(x.in_flight * x.count for x in depths) / sum(x.count for x in depths)
        yield f"{name} in flight at dispatch: mean {mean:.2f}, maximum {depths[-1].in_flight}"
    if d.per_second:
        fastest = max(d.per_second, key=lambda s: s.bytes)
        yield (
            f"{name} peak second: {format_bytes(fastest.bytes)} and"
            f" {counted(fastest.requests, 'request')}, from {format_duration(fastest.from_ns)} on;"
            f" {counted(len(d.per_second), 'second')} had requests"
        )


def _lost(figures: BlockFigures) -> Iterator[str]:
    """Yield a line for each kind of requests that are missing in some figures."""
    messages = {
        "ends_not_seen": "NOT SEEN: the completion of {}, which D2C leaves out",
        "lost_events": "LOST: {} not in blocks.parquet, but in all figures; try --histograms-only",
        "lost_zones": "LOST: {} not in the LBA map",
        "lost_requests": "LOST: {} in no figure; narrow the filter",
    }
    for name, text in messages.items():
        if count := sum(getattr(d, name) for d in figures.directions.values()):
            yield text.format(counted(count, "request"))
    if figures.in_flight_at_end:
        yield (
            f"{counted(figures.in_flight_at_end, 'request')} had not completed by the end, and D2C"
            " leaves them out"
        )


# === beside a replay ==================================================================================================

_SINCE_START = ("insert_ns", "issue_ns", "complete_ns")


@dataclass(frozen=True, slots=True)
class Probed:
    """The results of the probes during a replay, or the reason why there are none."""

    reason: str | None
    """The reason why the probes were left out; None if they measured."""
    content: ProbeFile | None
    """None if the probes were left out."""
    directory: Path | None
    """The directory of their files until the run is written."""
    started_ns: int | None
    """The replay's start on the monotonic clock; None if it never started."""

    @property
    def has_events(self) -> bool:
        """True if there are rows of blocks."""
        return (
            self.started_ns is not None
            and self.content is not None
            and self.content.event_rows is not None
        )

    @property
    def _since_start_ns(self) -> int | None:
        """The time from the replay's start to the probes' start; None if one never started."""
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
                index = batch.schema.get_field_index(name)
                shifted = shifted.set_column(
                    index, batch.schema.field(index), pc.add(batch.column(index), shift_ns)
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
    """Attach probes to this process tree if `is_wanted`, and yield a function that ends them.

    They run as `kvreplay probe` in another process, because the threads that submit have no time to
    read events. With `is_of_all` they cover all processes on the tiers' disks, since kernel threads
    write back the page cache. The yielded function takes the replay's start on the monotonic clock,
    or None if it never started. If probes cannot run, a line on stderr gives the reason and the
    remedy, and the replay goes on without them.
    """
    if not is_wanted:
        yield lambda _started_ns: None
        return
    with ExitStack() as stack:
        staging = stack.enter_context(temporary_folder(".probe-", output.resolve().parent))
        directory, skipped = staging / "probe", None
        try:
            end = stack.enter_context(
                attach_probes(
                    *_options(tiers, directory, has_events=has_events, is_of_all=is_of_all)
                )
            )
        except ProbeUnavailable as error:
            skipped = _without_probes(error)
        yield lambda started_ns: skipped or _end_probes(end, directory, started_ns)


def _options(
    tiers: Sequence[Tier | None], directory: Path, *, has_events: bool, is_of_all: bool
) -> list[str]:
    """Return the options of `kvreplay probe` for the disks beneath all tiers on storage.

    If the disks of one tier are unknown, the options name no disk, and all disks are probed.
    """
    disks: list[Path] = []
    numbers = [device_number(Path(drive.target)) for drive in drives_of(tiers)]
    with suppress(DeviceError):
        below = [disk.name for number in numbers for disk in beneath(number)]
        disks = [Path("/dev") / name for name in dict.fromkeys(below)]
    devices = disks if all(disk.is_block_device() for disk in disks) else []
    return [
        *("-o", str(directory)),
        *([] if is_of_all else ["--pid", str(os.getpid())]),
        *(arg for disk in devices for arg in ("--dev", str(disk))),
        *([] if has_events else ["--histograms-only"]),
    ]


def _end_probes(end: Callable[[], None], directory: Path, started_ns: int | None) -> Probed:
    try:
        end()
    except ProbeUnavailable as error:
        return _without_probes(error)
    return Probed(None, find_probe(directory), directory, started_ns)


def _without_probes(error: ProbeUnavailable) -> Probed:
    log(f"left out the probes: {error}")
    return Probed(str(error), None, None, None)
