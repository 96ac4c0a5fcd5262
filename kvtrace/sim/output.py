"""Write the output of a simulation: the trace, objects and requests tables, and their metadata.

The simulation runs in one thread while another encodes the flush before. The streams of writes,
which a drive stores apart (FDP handles, write hints), are derived from the finished rows: nothing
in the simulation depends on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from kvtrace.core import metadata, pa
from kvtrace.core.arrays import Array, Columns
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import INSTANT_STORAGE, STALLS, Metadata
from kvtrace.core.parameters import named
from kvtrace.core.schema import (
    OBJECTS,
    REQUESTS,
    TRACE,
    Op,
    Phase,
    batch_of,
    enum_code,
    objects_batch,
)
from kvtrace.core.simulation_stats import SimulationStats, StreamStats, to_json
from kvtrace.core.tables import ROW_GROUP_ROWS, Writer, create, objects_path, staged, staged_path
from kvtrace.llm.serving import serving_text
from kvtrace.native.numbering import grown
from kvtrace.native.records import NONE
from kvtrace.requests.requests import batches
from kvtrace.requests.users import workload_notes
from kvtrace.sim.baseline import slower_note, with_baseline_stats
from kvtrace.sim.fleet import LOSING_NOTHING
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Entry, as_config
from kvtrace.sim.presets.tier import Streams
from kvtrace.sim.scenario import Scenario
from kvtrace.sim.simulation import FOREVER_NS, Flush, Simulation

FLEET = ("node",)
"""The extra column of a trace of several nodes."""
STREAMED = ("stream",)
"""The extra column of a trace whose writes have streams."""
TIMES = ("first_token_ns", "time_per_token_ns")
"""The extra columns of the requests of a simulation in which anything takes time."""
_OBJECT_ROWS = 1 << 18
# Rows that may wait to be encoded, some 45 bytes each: one row group, which is encoded at once, so
# that neither thread often waits for the other.
_WAITING_ROWS = ROW_GROUP_ROWS
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_KEY_DIGITS = 12


def write(
    path: Path,
    simulation: Simulation,
    scenario: Scenario,
    argv: list[str],
    requests_path: Path | None = None,
    progress: Callable[[float], None] = lambda _ns: None,
    baseline_stats: Callable[[], SimulationStats | None] = lambda: None,
) -> Metadata:
    """Run `simulation` and write its trace to `path`, with its objects table, and its requests table
    to `requests_path` if given.

    The metadata record `argv` and the configuration of `scenario`, and the times without offload in
    the counters that `baseline_stats` returns once the simulation has ended. Files get their final
    names only if all are complete.
    """
    meta = _metadata(simulation, scenario, argv)
    if requests_path is not None and requests_path.absolute() in (
        path.absolute(),
        objects_path(path).absolute(),
    ):
        raise ConfigError(
            f"{named('requests_out', requests_path)}: the trace or its objects go there; name"
            " another file"
        )
    with ExitStack() as stack:
        # The trace is entered first and so renamed last: if it exists, the other files do.
        are_apart = any(tier.streams is not Streams.NONE for tier in simulation.preset.tiers)
        labels = StreamLabels(simulation) if are_apart else None
        extras = (FLEET if simulation.preset.fleet.nodes > 1 else ()) + (STREAMED if labels else ())
        target = stack.enter_context(staged(path))
        trace = stack.enter_context(create(target, TRACE, meta, extras))
        objects = stack.enter_context(create(objects_path(target), OBJECTS, meta))
        log = None
        if requests_path is not None:
            time_columns = TIMES if simulation.has_request_times else ()
            requests_target = staged_path(requests_path, path, target)
            log = stack.enter_context(create(requests_target, REQUESTS, meta, time_columns))
        for shared, sizes in simulation.library_object_bytes():
            object_sizes = np.repeat(sizes // simulation.sizes.parts, simulation.sizes.parts)
            for start in range(0, len(object_sizes), _OBJECT_ROWS):
                objects.write(
                    object_batch(objects.rows, shared, object_sizes[start : start + _OBJECT_ROWS])
                )
        users_requests = _run(simulation, trace, objects, labels, progress)
        if log is not None:
            _write_requests(log, simulation, users_requests)
        stats, warnings = with_baseline_stats(simulation.stats(), baseline_stats()), []
        if labels is not None:
            tiers = [
                msgspec.structs.replace(tier, streams=labels.counts(t))
                for t, tier in enumerate(stats.tiers)
            ]
            stats = msgspec.structs.replace(stats, tiers=tiers)
        if stats.stalled_requests:
            tier = next(tier.name for tier in simulation.preset.tiers if tier.loads_whole)
            which = (
                f"{stats.stalled_requests:,} of {stats.requests:,} requests load more from storage than tier"
                f" {tier} holds"
            )
            end = (
                "a real engine would never finish them, the simulation does: raise"
                f" tiers.{tier}.capacity"
            )
            warnings = [f"{STALLS}: {which}; {end}"]
        if slower := slower_note(stats.first_token):
            warnings.append(slower)
        for writer in filter(None, (trace, objects, log)):
            writer.update(stats=to_json(stats), notes=warnings + writer.meta.notes)
            writer.finish()
    return trace.meta


def _run(
    simulation: Simulation,
    trace: Writer,
    objects: Writer,
    labels: StreamLabels | None,
    progress: Callable[[float], None],
) -> list[Array]:
    """Simulate in this thread, and encode the flushes into the tables in another, in order.

    Returns the requests of users, records.LOGGED_REQUEST.
    """
    logs: list[Array] = []
    kind = "layer" if simulation.sizes.layers > 1 else simulation.preset.entry.value
    waiting: deque[tuple[Future[None], int]] = deque()
    encoded_flushes: deque[tuple[int, Flush]] = deque()

    def encode(flush: Flush) -> None:
        extras = tuple(name for name in FLEET if name in flush.rows)
        if labels is None:
            trace.write(trace_batch(flush.rows, extras))
        else:
            trace.write(
                trace_batch(flush.rows | {"stream": labels.label(flush)}, extras + STREAMED)
            )
        # Consecutive objects of one kind make one batch.
        sizes = flush.object_bytes
        is_other = np.zeros(len(sizes), np.int8) if flush.is_other is None else flush.is_other
        for start, end in pairwise([*np.flatnonzero(np.diff(is_other, prepend=-1)), len(sizes)]):
            objects.write(
                object_batch(objects.rows, "other" if is_other[start] else kind, sizes[start:end])
            )
        logs.append(flush.log)
        encoded_flushes.append((trace.rows, flush))
        # A flush returns its arrays to the simulation once its rows are encoded.
        while encoded_flushes and encoded_flushes[0][0] <= trace.encoded_rows:
            simulation.give_back(encoded_flushes.popleft()[1])

    with ThreadPoolExecutor(1, thread_name_prefix="trace-encoder") as encoder:

        def sink(flush: Flush) -> None:
            waiting.append((encoder.submit(encode, flush), flush.capacity_rows))
            while len(waiting) > 1 and sum(rows for _, rows in waiting) > _WAITING_ROWS:
                waiting.popleft()[0].result()

        simulation.run(sink, progress)
        for future, _ in waiting:
            future.result()
    return logs


def _write_requests(log: Writer, simulation: Simulation, logs: list[Array]) -> None:
    """Write the requests table: those of the file, or of users, with their times."""
    requests, load = simulation.load.requests, simulation.load
    times: Columns = {}
    if simulation.has_request_times:
        times = dict(zip(TIMES, simulation.request_times(), strict=True))
    if requests is not None:
        arrivals = simulation.arrivals()
        recorded = None
        if arrivals is None:
            recorded = min(
                int(np.searchsorted(requests.arrival_ns, load.until_ns)), load.max_requests
            )
            # The last may arrive as the simulation ends, which does not serve them any more.
            times = {name: grown(values, recorded, NONE) for name, values in times.items()}
        for batch in batches(requests, recorded, arrivals, times):
            log.write(batch)
        return
    first = 0
    for rows in logs:
        if len(rows):
            columns = {name: rows[name].copy() for name in rows.dtype.names or ()}
            served = {name: values[first : first + len(rows)] for name, values in times.items()}
            log.write(batch_of(REQUESTS, columns | served, tuple(times)))
            first += len(rows)


def trace_batch(rows: Columns, extras: tuple[str, ...] = ()) -> pa.RecordBatch:
    """Return rows of the simulation, arrays by column, as a record batch that shares their memory."""
    return batch_of(TRACE, {"offset_bytes": np.zeros(len(rows["ts_ns"]), np.int64)} | rows, extras)


def object_batch(first_id: int, kind: str, sizes: Array) -> pa.RecordBatch:
    """Return objects `first_id`, `first_id` + 1, … of `kind` with `sizes`, bytes, as a record
    batch.

    Their keys are `kind`/ and the id in hexadecimal digits.
    """
    ids = np.arange(first_id, first_id + len(sizes))
    head = np.frombuffer(f"{kind}/".encode(), dtype=np.uint8)
    text = np.empty((len(ids), len(head) + _KEY_DIGITS), dtype=np.uint8)
    text[:, : len(head)] = head
    for digit in range(_KEY_DIGITS):
        text[:, len(head) + digit] = _HEX[ids >> 4 * (_KEY_DIGITS - 1 - digit) & 15]
    ends = np.arange(len(ids) + 1, dtype=np.int32) * text.shape[1]
    keys = pa.StringArray.from_buffers(len(ids), pa.py_buffer(ends), pa.py_buffer(text))
    return objects_batch(ids, keys, kind, sizes)


def notes_of(scenario: Scenario) -> list[str]:
    """Return the notes on the requests, on the model, and on the objects and memory it needs."""
    preset, model, requests = scenario.preset, scenario.model, scenario.load.requests
    notes = model.entry_notes(preset.chunk_tokens * (preset.entry is Entry.CHUNK), scenario.ranks)
    return [
        *(requests.notes if requests else ()),
        *model.notes,
        *notes,
        *memory_notes(scenario),
    ]


def memory_notes(scenario: Scenario) -> list[str]:
    """Return the notes on the number of GPUs that were chosen, and on what they have no room for."""
    return [*scenario.notes, *scenario.preset.memory_notes(scenario.model, scenario.ranks)]


def _metadata(simulation: Simulation, scenario: Scenario, argv: list[str]) -> Metadata:
    config = scenario.config
    preset, model, requests = simulation.preset, simulation.model, simulation.load.requests
    facts = {
        "name": config["model"],
        "source": model.source,
        "kv_dtype": str(model.kv_dtype),
        "bytes_per_token": simulation.sizes.bytes_per_token,
        "ranks": simulation.sizes.ranks,
        "objects_per_chunk": simulation.sizes.parts * simulation.sizes.slots_per_chunk,
    }
    notes = notes_of(scenario)
    has_service = any(any(tier.rates_bytes_per_s) for tier in preset.tiers)
    notes.append(
        "simulated: storage latency is what the tiers' service model says"
        if has_service
        else INSTANT_STORAGE
    )
    if any(incident.kind not in LOSING_NOTHING for incident in simulation.load.incidents):
        notes.append(
            "data lost with a node or a drive appears as deletes of phase=lose; no I/O was issued"
        )
    notes += [
        f"streams: writes to {tier.name} are separated by {tier.streams} (column stream)"
        for tier in preset.tiers
        if tier.streams is not Streams.NONE
    ]
    notes += [
        f"{tier.name}: objects take {tier.stored_share:g} of their bytes (stored_share); packing and"
        " unpacking take no time"
        for tier in preset.tiers
        if tier.stored_share < 1
    ]
    notes += [
        f"{tier.name}: the engine keeps all objects in one file: --tier {tier.name}=FILE.dat"
        " replays them so; a folder gets a file for each, which takes longer"
        for tier in preset.tiers
        if tier.in_one_file
    ]
    if any(tier.policy is Policy.TTL for tier in preset.tiers):
        notes.append(
            "the trace ends with its last operation: what expires later (policy ttl) is live at"
            " the end"
        )
    if preset.store_generated and requests:
        notes.append("generated tokens are not stored: the source names no blocks for them")
    return metadata.describe(
        TRACE,
        "kvtrace",
        argv,
        config | {"hierarchy": as_config(preset)},
        seed=config["seed"],
        preset=config["preset"],
        model=facts,
        tiers=preset.tier_list(),
        source=config["source"],
        notes=[*notes, *workload_notes(preset.workload), serving_text(config["serving"])],
        is_simulated=True,
    )


_AGES: Final = (
    ("under 1 s", 1),
    ("under 10 s", 10),
    ("under 1 min", 60),
    ("under 10 min", 600),
    ("under 1 h", 3600),
)
_PHASES: Final = {
    "computed": (Phase.PREFILL, Phase.STORE),
    "generated": (Phase.DECODE,),
    "promoted": (Phase.PROMOTE,),
    "demoted": (Phase.DEMOTE,),
    "there before": (Phase.POPULATE,),
    "collected": (Phase.COLLECT,),
}
_KINDS: Final = ("chunk or turn", "prompt", "document", "bucket")
CLASSES: Final[dict[Streams, tuple[str, ...]]] = {
    Streams.USER_KIND: REQUESTS.column("kind").values,
    Streams.QOS: REQUESTS.column("qos").values,
    Streams.SESSION: (),
    Streams.PHASE: tuple(_PHASES),
    Streams.AGE: (*(name for name, _ in _AGES), "older"),
    Streams.OBJECT_KIND: _KINDS,
}
"""The classes of each criterion for streams, in the order of their numbers.

Empty where numbers are assigned in order of appearance.
"""
_COLUMNS: Final = {Streams.USER_KIND: "kind", Streams.QOS: "qos", Streams.SESSION: "session_id"}
"""The criteria that take the class from the request that a write serves, and its column."""


class StreamLabels:
    """Numbers the streams of a simulation's writes, one flush after the other."""

    def __init__(self, simulation: Simulation) -> None:
        """Start with the objects of the library, which exist before the first request."""
        self._simulation = simulation
        settings, requests = simulation.preset.tiers, simulation.load.requests
        for tier in settings:
            column = _COLUMNS.get(tier.streams)
            if requests is not None and column is not None and getattr(requests, column) is None:
                file = requests.origin.get("file", "the file")
                raise ConfigError(
                    f"tiers.{tier.name}.streams={tier.streams}: the requests of {file} have no"
                    f" {column}; streams may be"
                    f" {', '.join(s for s in Streams if s not in _COLUMNS)} here"
                )
        self._streams = [tier.streams for tier in settings]
        self._counts = np.array([tier.stream_count for tier in settings])
        none = np.zeros(0, np.int64)
        self._request_classes = {
            criterion: none for criterion in _COLUMNS if criterion in self._streams
        }
        """The class of each request, by criterion."""
        self._owners, self._first_ns = dict(self._request_classes), none
        """For each object, the class of its last write by criterion, and the time of its first write."""
        objects_per_slot = simulation.sizes.parts
        kinds = [
            np.full(len(sizes) * objects_per_slot, _KINDS.index(kind) if kind in _KINDS else 0)
            for kind, sizes in simulation.library_object_bytes()
        ]
        self._kinds = np.concatenate([none, *kinds])
        self._objects, self._requests = len(self._kinds), 0
        """The numbers of objects and of requests so far."""
        self._tally = np.zeros(
            (len(settings), max(tier.stream_count for tier in settings), 2), np.int64
        )

    def label(self, flush: Flush) -> Array:
        """Return the stream of each row of `flush`, int16; NONE for a row without a stream."""
        self._note(flush)
        rows, labels = flush.rows, np.full(len(flush.rows["op"]), NONE, np.int16)
        writes = np.flatnonzero(rows["op"] == enum_code(TRACE, "op", Op.WRITE))
        write = {
            name: rows[name][writes]
            for name in ("ts_ns", "tier", "phase", "object_id", "request_id")
        }
        for criterion in set(self._streams) - {Streams.NONE}:
            classes = self._classes(criterion, write)
            for t in (t for t, streams in enumerate(self._streams) if streams is criterion):
                labelled = np.flatnonzero((write["tier"] == t) & (classes != NONE))
                numbers = classes[labelled] % self._counts[t]
                labels[writes[labelled]] = numbers
                np.add.at(self._tally[t, :, 0], numbers, 1)
                np.add.at(self._tally[t, :, 1], numbers, rows["length_bytes"][writes[labelled]])
        return labels

    def counts(self, t: int) -> list[StreamStats] | UnsetType:
        """Count the writes of each stream of tier `t`; UNSET if the tier has no streams."""
        streams, stream_count = self._streams[t], int(self._counts[t])
        if streams is Streams.NONE:
            return UNSET
        names = CLASSES[streams]
        return [
            StreamStats(
                stream=stream,
                holds=", ".join(names[stream::stream_count])
                or f"{streams}s {stream}, {stream + stream_count}, ...",
                writes=int(writes),
                written_bytes=int(written_bytes),
            )
            for stream, (writes, written_bytes) in enumerate(self._tally[t, :stream_count])
            if writes
        ]

    def _note(self, flush: Flush) -> None:
        first, self._objects = self._objects, self._objects + len(flush.object_bytes)
        if Streams.AGE in self._streams:
            self._first_ns = grown(self._first_ns, self._objects, FOREVER_NS)
        if Streams.OBJECT_KIND in self._streams:
            self._kinds = grown(self._kinds, self._objects, 0)
            if flush.is_other is not None:
                self._kinds[first : self._objects] = flush.is_other * _KINDS.index("bucket")
        requests, arrivals, known_requests = (
            self._simulation.load.requests,
            self._simulation.arrivals(),
            self._requests,
        )
        last = (
            known_requests + len(flush.log) - 1
            if requests is None
            else int(flush.rows["request_id"].max(initial=NONE))
        )
        self._requests = max(known_requests, last + 1)
        new = slice(known_requests, self._requests)
        for criterion, name in (
            (criterion, _COLUMNS[criterion]) for criterion in self._request_classes
        ):
            self._owners[criterion] = grown(self._owners[criterion], self._objects, NONE)
            self._request_classes[criterion] = grown(
                self._request_classes[criterion], self._requests, NONE
            )
            rows = new if arrivals is None else arrivals[0][new]
            self._request_classes[criterion][new] = (
                flush.log[name] if requests is None else getattr(requests, name)[rows]
            )

    def _classes(self, criterion: Streams, write: Columns) -> Array:
        classes = np.zeros(len(write["tier"]), np.int64)
        if criterion is Streams.PHASE:
            classes = _PHASE_CLASS[write["phase"]]
        elif criterion is Streams.OBJECT_KIND:
            classes = self._kinds[write["object_id"]]
        elif criterion is Streams.AGE:
            # Rows are in order of time, so the first write of an object is its oldest.
            np.minimum.at(self._first_ns, write["object_id"], write["ts_ns"])
            age_ns = write["ts_ns"] - self._first_ns[write["object_id"]]
            classes = np.searchsorted(
                [seconds * 10**9 for _, seconds in _AGES], age_ns, side="right"
            )
        elif len(classes):
            owners, request_classes = self._owners[criterion], self._request_classes[criterion]
            serves = write["request_id"] != NONE
            order = np.argsort(write["object_id"], kind="stable")
            objects, has_request = write["object_id"][order], serves[order]
            # For each write, the position of the last one up to it that serves a request. It counts
            # if it is of the same object.
            places = np.maximum.accumulate(np.where(has_request, np.arange(len(order)), NONE))
            is_known = places >= np.searchsorted(objects, objects)
            write_classes = owners[objects]
            write_classes[is_known] = request_classes[write["request_id"][order[places[is_known]]]]
            owners[objects] = write_classes
            classes = np.empty(len(order), np.int64)
            classes[order] = write_classes
        return classes


_PHASE_CLASS: Final = np.array(
    [
        next((n for n, phases in enumerate(_PHASES.values()) if phase in phases), NONE)
        for phase in TRACE.column("phase").values
    ]
)
