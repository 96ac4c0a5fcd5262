"""The fleet of a simulation: its incidents, the setup of its nodes and tiers, and its counters.

An incident (a node or rack is lost or joins, a drive is replaced, the store is out of reach) is
written TIME:KIND[:ARGUMENTS], such as `300s:node-lost:7`. Before the start, the incidents become
steps, one for each node or tier, which the simulation takes at their times (`native/fleet.c`).
The counters before, during and after each incident are kept during the simulation, in stretches of
a second. A stretch also ends where a window of an incident does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from msgspec import UNSET, UnsetType

from kvtrace.core.arrays import Array, Columns
from kvtrace.core.config import nearest
from kvtrace.core.document.fleet_chapters import HitRatios, hit_ratios
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.core.simulation_stats import (
    FleetImbalance,
    FleetStats,
    HitSteps,
    IncidentOutcome,
    IncidentStats,
    IncidentWindow,
    LookupSeries,
    NodeCounts,
    RestartCounts,
    TierSeries,
    TierWindow,
)
from kvtrace.core.statistics import is_memory
from kvtrace.core.units import NS_PER_S, format_duration, parse_duration_ns
from kvtrace.native import records
from kvtrace.native.numbering import grown
from kvtrace.sim.presets.tier import FleetSetting, Scope, TierSetting, bytes_of


class Kind(StrEnum):
    """The kinds of incidents, as --event has them behind a time."""

    NODE_LOST = "node-lost:NODE"
    """A node leaves the fleet, and all objects in its own tiers are lost.

    Its running requests start again on other nodes. If no node is up, they and all new requests
    wait for one.
    """
    NODE_JOINED = "node-joined:NODE"
    """A node that was lost returns, or a new one joins, with empty tiers."""
    RACK_LOST = "rack-lost:RACK"
    """All nodes of a rack are lost, and the objects in the tiers that they share."""
    RACK_JOINED = "rack-joined:RACK"
    """All absent nodes of a rack join."""
    ENGINE_RESTART = "engine-restart:NODE:DURATION"
    """The engine of a node restarts, and the node is away for a time.

    The objects in its memory are lost. Its drives keep theirs, and the restarted engine finds them.
    Its running requests start again on other nodes.
    """
    DRIVE_REPLACED = "drive-replaced:NODE[:TIER]"
    """The drive of a node is replaced by an empty one: its slowest own tier, or the given tier."""
    STORE_UNREACHABLE = "store-unreachable:DURATION"
    """The slowest tier is out of reach for a time: lookups miss and stores are refused.

    Its objects are available again afterwards.
    """
    ROLLING_RESTART = "rolling-restart:DURATION[:NODES]"
    """NODES nodes at a time (1) are lost for a duration, and join as the next are lost."""
    NOTHING = "nothing"
    """Nothing happens: the undisturbed run, whose hits are counted from that time on."""


LOSING_NOTHING = (Kind.NODE_JOINED, Kind.RACK_JOINED, Kind.STORE_UNREACHABLE, Kind.NOTHING)


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident, as --event gives it."""

    text: str
    at_ns: int
    kind: Kind
    place: int = 0
    """The node, or the rack."""
    lasts_ns: int = 0
    """How long the store is out of reach, or each node is down."""
    tier: str | None = None
    nodes: int = 1
    """How many restart at once."""

    def end_ns(self, fleet: FleetSetting) -> int:
        """Return the time at which the incident is over."""
        rounds = -(-fleet.nodes // self.nodes) if self.kind is Kind.ROLLING_RESTART else 1
        return self.at_ns + rounds * self.lasts_ns


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """One step of an incident at a time.

    Of several steps at the same time, those that restore a node or tier come first.
    """

    at_ns: int
    is_loss: bool
    kind: int
    place: int = 0
    """The node, or the first of the rack whose tier it is."""
    tier: int = 0
    """The tier that is emptied or out of reach; for a lost node, a bit for each surviving tier."""


def parse_all(texts: Sequence[str], until_ns: int | None) -> tuple[Incident, ...]:
    """Return the incidents that `texts` describe.

    Raises ConfigError for an incident at or after `until_ns`, where the simulation ends.
    """
    incidents = tuple(parse(text) for text in texts)
    for incident in incidents:
        if until_ns is not None and incident.at_ns >= until_ns:
            raise ConfigError(
                f"{named('events', incident.text)}: the simulation ends at"
                f" {format_duration(until_ns)}"
            )
    return incidents


def parse(text: str) -> Incident:
    """Return the incident that `text` describes; ConfigError, naming `--event`, if it is invalid."""
    time_text, _, incident_text = text.partition(":")
    name, *arguments = incident_text.split(":")
    kinds = {kind.partition(":")[0]: kind for kind in Kind}
    if name not in kinds:
        forms = ", ".join(f"TIME:{kind}" for kind in Kind)
        raise ConfigError(
            f"{named('events', text)}: no such event{nearest(name, list(kinds))}; write {forms}"
        )
    kind, form = kinds[name], f"{named('events', text)}: write TIME:{kinds[name]}"
    field_forms = kind.replace("[:", ":[").split(":")[1:]
    if (
        not sum(not field.startswith("[") for field in field_forms)
        <= len(arguments)
        <= len(field_forms)
    ):
        raise ConfigError(form)
    values = dict(zip((field.strip("[]") for field in field_forms), arguments, strict=False))
    try:
        lasts_ns, at_ns = (
            parse_duration_ns(values.get("DURATION", "0")),
            parse_duration_ns(time_text),
        )
    except ConfigError as error:
        raise ConfigError(f"{named('events', text)}: {error}") from None
    if "DURATION" in values and lasts_ns == 0:
        raise ConfigError(f"{named('events', text)}: {values['DURATION']} must be > 0")
    place, nodes = (
        _number(count_text, form)
        for count_text in (values.get("NODE", values.get("RACK", "0")), values.get("NODES", "1"))
    )
    if nodes == 0:
        raise ConfigError(f"{named('events', text)}: at least 1 node restarts at once")
    return Incident(text, at_ns, kind, place, lasts_ns, values.get("TIER"), nodes)


def _number(text: str, form: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - digits
        raise ConfigError(form)
    return int(text)


def steps_of(
    incidents: Sequence[Incident], fleet: FleetSetting, tiers: Sequence[TierSetting]
) -> list[Move]:
    """Return the steps of `incidents` in order of time.

    Raises ConfigError, naming `--event`, for a node, rack or tier that does not exist, and for an
    order that is impossible.
    """
    planned: list[tuple[Move, Incident]] = []
    racks = fleet.instances(Scope.RACK)
    for incident in incidents:
        place = incident.place
        prefix = f"{named('events', incident.text)}: there is no"
        if incident.kind in (Kind.RACK_LOST, Kind.RACK_JOINED):
            if place >= racks:
                valid_places = (
                    f"{fleet.nodes} nodes, {fleet.rack_nodes} a rack, are racks 0 to {racks - 1}"
                )
                raise ConfigError(f"{prefix} rack {place}: {valid_places}")
        elif place >= fleet.nodes:
            valid_places = (
                f"0 to {fleet.nodes - 1} ({named('nodes', fleet.nodes)})"
                if fleet.nodes > 1
                else f"0 alone ({named('nodes', 1)})"
            )
            raise ConfigError(f"{prefix} node {place}: nodes are {valid_places}")
        planned += [(step, incident) for step in _steps(incident, fleet, tiers)]
    planned.sort(key=lambda entry: (entry[0].at_ns, entry[0].is_loss))
    _check_order(planned, fleet)
    return [step for step, _ in planned]


def initially_absent(steps: Sequence[Move]) -> list[int]:
    """Return the nodes that are absent at the start: those that join before they are lost."""
    first: dict[int, int] = {}
    for step in steps:
        if step.kind in (records.LOST, records.JOINED):
            first.setdefault(step.place, step.kind)
    return [node for node, kind in first.items() if kind == records.JOINED]


def _steps(incident: Incident, fleet: FleetSetting, tiers: Sequence[TierSetting]) -> Iterator[Move]:  # noqa: C901
    at_ns, place, size = incident.at_ns, incident.place, fleet.rack_nodes
    rack = range(place * size, min(fleet.nodes, (place + 1) * size))
    match incident.kind:
        case Kind.NODE_LOST:
            yield Move(at_ns, True, records.LOST, place)
        case Kind.NODE_JOINED:
            yield Move(at_ns, False, records.JOINED, place)
        case Kind.RACK_LOST:
            for t in (t for t, tier in enumerate(tiers) if tier.scope is Scope.RACK):
                yield Move(at_ns, True, records.EMPTIED, rack[0], t)
            yield from (Move(at_ns, True, records.LOST, node) for node in rack)
        case Kind.RACK_JOINED:
            yield from (Move(at_ns, False, records.JOINED, node) for node in rack)
        case Kind.ENGINE_RESTART:
            surviving_tiers = sum(
                1 << t for t, tier in enumerate(tiers) if not is_memory(tier.name)
            )
            yield Move(at_ns, True, records.LOST, place, surviving_tiers)
            yield Move(at_ns + incident.lasts_ns, False, records.JOINED, place)
        case Kind.DRIVE_REPLACED:
            yield Move(at_ns, True, records.EMPTIED, place, _drive(incident, tiers))
        case Kind.STORE_UNREACHABLE:
            if fleet.nodes > 1 and tiers[-1].scope is not Scope.FLEET:
                raise ConfigError(
                    f"{named('events', incident.text)}: the slowest tier, {tiers[-1].name}, is"
                    " shared by no"
                    f" more than a {tiers[-1].scope}: set tiers.{tiers[-1].name}.scope=fleet"
                )
            yield Move(at_ns, True, records.GONE, 0, len(tiers) - 1)
            yield Move(at_ns + incident.lasts_ns, False, records.BACK, 0, len(tiers) - 1)
        case Kind.ROLLING_RESTART:
            for node in range(fleet.nodes):
                lost_ns = at_ns + node // incident.nodes * incident.lasts_ns
                yield Move(lost_ns, True, records.LOST, node)
                yield Move(lost_ns + incident.lasts_ns, False, records.JOINED, node)


def _drive(incident: Incident, tiers: Sequence[TierSetting]) -> int:
    local_tiers = {tier.name: t for t, tier in enumerate(tiers) if tier.scope is not Scope.FLEET}
    if incident.tier is None:
        drives = [t for name, t in local_tiers.items() if not is_memory(name)]
        if not drives:
            raise ConfigError(
                f"{named('events', incident.text)}: no node has a drive of its own; name one of"
                f" its tiers: {incident.text}:TIER with {' or '.join(local_tiers) or 'scope=node'}"
            )
        return drives[-1]
    if incident.tier not in local_tiers:
        raise ConfigError(
            f"{named('events', incident.text)}: nodes have no tier {incident.tier} of their own;"
            f" theirs are {', '.join(local_tiers) or 'none'}"
        )
    return local_tiers[incident.tier]


def _check_order(planned: Sequence[tuple[Move, Incident]], fleet: FleetSetting) -> None:
    """Refuse steps that do not fit the state of the fleet, and a fleet without a serving node."""
    absent_nodes = set(initially_absent([step for step, _ in planned]))
    is_unreachable = False
    if planned:
        _check_served(planned[0][1], absent_nodes, fleet, is_last=False)
    for index, (step, incident) in enumerate(planned):
        is_rack = incident.kind in (Kind.RACK_JOINED, Kind.RACK_LOST)
        if step.kind == records.JOINED:
            problem = (
                f"node {step.place} is in the fleet already"
                if step.place not in absent_nodes and not is_rack
                else ""
            )
            absent_nodes.discard(step.place)
        elif step.kind in (records.LOST, records.EMPTIED):
            problem = (
                f"node {step.place} is not in the fleet"
                if step.place in absent_nodes and not is_rack
                else ""
            )
            absent_nodes |= {step.place} if step.kind == records.LOST else set()
        else:
            problem = (
                "the store is out of reach already"
                if is_unreachable == (step.kind == records.GONE)
                else ""
            )
            is_unreachable = step.kind == records.GONE
        if problem:
            raise ConfigError(
                f"{named('events', incident.text)}: {problem} at {format_duration(step.at_ns)}"
            )
        if index + 1 == len(planned) or planned[index + 1][0].at_ns > step.at_ns:
            _check_served(
                incident,
                absent_nodes,
                fleet,
                is_last=all(later.kind != records.JOINED for later, _ in planned[index + 1 :]),
            )


def _check_served(
    incident: Incident, absent_nodes: set[int], fleet: FleetSetting, *, is_last: bool
) -> None:
    """Refuse a fleet that stays without nodes, and a disaggregated fleet with an empty pool."""
    if is_last and len(absent_nodes) == fleet.nodes:
        raise ConfigError(
            f"{named('events', incident.text)}: no node is left, and none joins later: add"
            " TIME:node-joined:NODE"
        )
    if fleet.is_disaggregated:
        pools = {
            "compute prompts": range(fleet.prefill_nodes),
            "generate": range(fleet.prefill_nodes, fleet.nodes),
        }
        for task, nodes in pools.items():
            if absent_nodes.issuperset(nodes):
                raise ConfigError(
                    f"{named('events', incident.text)}: none of the nodes that {task} would be"
                    " left; at least one must stay"
                )


WINDOW_NS: Final = 60 * NS_PER_S
WINDOWS_AFTER: Final = 5
STEP_NS: Final = 10 * NS_PER_S
"""Hits have recovered once a step of this length has the hit rate of before."""
BACK_WITHIN: Final = 0.01
"""Tolerance of that hit rate, absolute."""
MOST_STEPS: Final = 90
"""Steps that are counted from an incident on: a quarter of an hour."""
MOST_POINTS: Final = 150
"""Maximum points of a series over the whole simulation."""
LOOKUP_COUNTS: Final = tuple(name for name in records.LOOKUP_OUTCOME.names or () if name != "ts_ns")
TIER_COUNTS: Final = ("reads", "read_bytes", "writes", "written_bytes", "lost_bytes")
_CODES = {op: enum_code(TRACE, "op", op) for op in Op}
_POPULATE, _LOSE = (enum_code(TRACE, "phase", phase) for phase in (Phase.POPULATE, Phase.LOSE))


class IncidentCounters:
    """Counts, around each incident, hits, computed tokens, and reads and writes of the tiers."""

    def __init__(
        self, incidents: Sequence[Incident], fleet: FleetSetting, tiers: Sequence[str]
    ) -> None:
        self._incidents, self._fleet, self._tiers = incidents, fleet, tiers
        ends = {0} | {
            t % NS_PER_S for incident in incidents for t in (incident.at_ns, incident.end_ns(fleet))
        }
        self._parts = np.array(sorted(ends))
        """Start of each stretch within a second, ns."""
        self._requests = np.zeros((0, len(LOOKUP_COUNTS)), np.int64)
        self._storage = np.zeros((0, len(tiers) * len(TIER_COUNTS)), np.int64)
        """Counters by stretch (rows), tier and TIER_COUNTS (columns)."""
        self._again = np.zeros(len(RestartCounts.__struct_fields__), np.int64)
        self._end_ns = 0

    def count_flush(self, rows: Columns, outcomes: Array) -> None:
        """Count rows of the trace, and the lookup outcomes of requests, records.LOOKUP_OUTCOME."""
        outcome_stretches = self._stretch(outcomes["ts_ns"])
        row_stretches = self._stretch(rows["ts_ns"])
        stretches = max(outcome_stretches.max(initial=-1), row_stretches.max(initial=-1)) + 1
        self._requests, self._storage = (
            grown(self._requests, stretches, 0),
            grown(self._storage, stretches, 0),
        )
        for column, name in enumerate(LOOKUP_COUNTS):
            np.add.at(self._requests[:, column], outcome_stretches, outcomes[name])
        hits, again = outcomes["local_hits"] + outcomes["shared_hits"], outcomes["restarted"] > 0
        counts = (again, outcomes["lookups"][again], hits[again], outcomes["lookups"], hits)
        self._again += np.array([count.sum() for count in counts])
        op, phase, length = rows["op"], rows["phase"], rows["length_bytes"]
        is_read, is_written = (
            (op == _CODES[counted_op]) & (phase != _POPULATE) for counted_op in (Op.READ, Op.WRITE)
        )
        kinds = ((is_read, 0, 1), (is_written, 2, 3), (phase == _LOSE, None, 4))
        # The link of a disaggregated fleet is a tier after all others.
        is_tier = rows["tier"] < len(self._tiers)
        for is_kind, count, size in kinds:
            is_counted = is_kind & is_tier
            place, first = (
                row_stretches[is_counted],
                rows["tier"][is_counted].astype(np.int64) * len(TIER_COUNTS),
            )
            if count is not None:
                np.add.at(self._storage, (place, first + count), 1)
            np.add.at(self._storage, (place, first + size), length[is_counted])

    def _stretch(self, ts_ns: Array | np.int64) -> Array:
        stretch_in_second = np.searchsorted(self._parts, ts_ns % NS_PER_S, side="right") - 1
        return ts_ns // NS_PER_S * len(self._parts) + stretch_in_second

    def stats(self, end_ns: int) -> IncidentStats | UnsetType:
        """Return the counters of a simulation that ends at `end_ns`; UNSET without incidents."""
        if not self._incidents:
            return UNSET
        self._end_ns = end_ns
        stretches = (end_ns // NS_PER_S + 1) * len(self._parts)
        self._requests, self._storage = (
            grown(self._requests, stretches, 0),
            grown(self._storage, stretches, 0),
        )
        seconds = max(1, -(-end_ns // NS_PER_S))
        step = max(1, -(-seconds // MOST_POINTS))
        starts = np.arange(0, seconds, step) * len(self._parts)
        end = max(
            seconds * len(self._parts), int(self._stretch(np.int64(end_ns))) + 1
        )  # The last row may come exactly at the end.
        requests = np.add.reduceat(self._requests[:end], starts)
        tiers = np.add.reduceat(self._storage[:end], starts).reshape(
            len(starts), len(self._tiers), -1
        )
        return IncidentStats(
            around=[self._outcome(incident, end_ns) for incident in self._incidents],
            begun_again=RestartCounts(*self._again.tolist()),
            step_ns=step * NS_PER_S,
            end_ns=end_ns,
            over_time=LookupSeries(
                **{name: requests[:, column].tolist() for column, name in enumerate(LOOKUP_COUNTS)}
            ),
            tiers=[
                TierSeries(
                    name=name,
                    **{
                        count: tiers[:, t, column].tolist()
                        for column, count in enumerate(TIER_COUNTS)
                    },
                )
                for t, name in enumerate(self._tiers)
            ],
        )

    def _outcome(self, incident: Incident, end_ns: int) -> IncidentOutcome:
        """Count the windows around `incident`, and find when its hit rate has recovered."""
        over_ns = incident.end_ns(self._fleet)
        windows = [self._window(*window) for window in _windows(incident.at_ns, over_ns, end_ns)]
        before = windows[0].hit_ratio if windows and windows[0].window == "before" else None
        back_ns = None
        if before is not None:
            for start in range(over_ns, end_ns - STEP_NS + 1, STEP_NS):
                lookups, _ = self._between(start, start + STEP_NS)
                ratio = ratios_of(lookups)["hit_ratio"]
                if ratio is not None and ratio >= before - BACK_WITHIN:
                    back_ns = start + STEP_NS - over_ns
                    break
        return IncidentOutcome(
            event=incident.text,
            at_ns=incident.at_ns,
            over_ns=over_ns,
            is_reached=incident.at_ns < end_ns,
            hits_back_ns=back_ns,
            windows=windows,
            steps=self._steps_from(incident.at_ns, end_ns),
        )

    def _steps_from(self, at_ns: int, end_ns: int) -> HitSteps:
        """Count the lookups and hits of the whole steps from `at_ns` on."""
        starts = range(at_ns, end_ns - STEP_NS + 1, STEP_NS)[:MOST_STEPS]
        counts = [self._between(start, start + STEP_NS)[0] for start in starts]
        return HitSteps(
            step_ns=STEP_NS,
            lookups=[step["lookups"] for step in counts],
            hits=[step["local_hits"] + step["shared_hits"] for step in counts],
        )

    def _window(self, name: str, first_ns: int, last_ns: int) -> IncidentWindow:
        lookups, storage = self._between(first_ns, last_ns)
        shape = (-1, len(self._tiers), len(TIER_COUNTS))
        # The peaks are those of whole seconds, counted from the start of the window.
        seconds = np.add.reduceat(storage, np.arange(0, len(storage), len(self._parts))).reshape(
            shape
        )
        return IncidentWindow(
            window=name,
            from_ns=first_ns,
            to_ns=last_ns,
            lookups=lookups["lookups"],
            local_hits=lookups["local_hits"],
            shared_hits=lookups["shared_hits"],
            computed_tokens=lookups["computed_tokens"],
            restarted=lookups["restarted"],
            **ratios_of(lookups),
            tiers=[
                TierWindow(
                    name=tier,
                    **dict(zip(TIER_COUNTS, total.tolist(), strict=True)),
                    peak_read_bytes=int(peak[TIER_COUNTS.index("read_bytes")]),
                    peak_written_bytes=int(peak[TIER_COUNTS.index("written_bytes")]),
                )
                for tier, total, peak in zip(
                    self._tiers, seconds.sum(axis=0), seconds.max(axis=0), strict=True
                )
            ],
        )

    def _between(self, first_ns: int, last_ns: int) -> tuple[dict[str, int], Array]:
        """Return the lookup counters of a window, and the tier counters of its stretches.

        A window that ends with the simulation includes all stretches that remain.
        """
        first, last = self._stretch(np.array([first_ns, last_ns])).tolist()
        stretches = slice(first, None if last_ns == self._end_ns else last)
        return (
            dict(zip(LOOKUP_COUNTS, self._requests[stretches].sum(axis=0).tolist(), strict=True)),
            self._storage[stretches],
        )


def _windows(at_ns: int, over_ns: int, end_ns: int) -> Iterator[tuple[str, int, int]]:
    """Yield the windows around an incident from `at_ns` to `over_ns`, as name, start and end.

    No window starts after `end_ns`.
    """
    if 0 < at_ns <= end_ns:
        yield "before", max(0, at_ns - WINDOW_NS), at_ns
    if over_ns > at_ns and at_ns < end_ns:
        yield "during", at_ns, min(over_ns, end_ns)
    for k in range(WINDOWS_AFTER):
        start = over_ns + k * WINDOW_NS
        if start < end_ns:
            yield f"minute {k + 1} after", start, min(start + WINDOW_NS, end_ns)


def set_fleet(
    world: records.World, setting: FleetSetting, scopes: Sequence[Scope], rows: int
) -> None:
    """Set up the nodes of `setting`; `scopes` says which of their tiers each one owns.

    `rows` is the size of the row buffers.
    """
    fleet, knobs, count = world.fleet, world.knobs, setting.nodes
    fleet.count, fleet.entry_nodes = (
        count,
        setting.prefill_nodes if setting.is_disaggregated else count,
    )
    fleet.link_bytes_per_s = bytes_of(setting.link_bandwidth) or 0
    fleet.rack_nodes = setting.rack_nodes
    fleet.nodes, fleet.batches = np.zeros(count, records.NODE), np.zeros(count, records.BATCH)
    fleet.nodes["is_up"] = 1
    fleet.node_tiers = sum(1 << t for t, scope in enumerate(scopes) if scope is Scope.NODE)
    world.control.open_nodes = fleet.entry_nodes
    world.control.next_event_ns = records.UNBOUNDED
    fleet.batches["due_ns"] = records.UNBOUNDED
    if count == 1:
        return
    fleet.place_tiers = sum(1 << t for t, scope in enumerate(scopes) if scope is not Scope.FLEET)
    fleet.rack_tiers = sum(1 << t for t, scope in enumerate(scopes) if scope is Scope.RACK)
    fleet.router = setting.router.address()
    weights = (setting.prefill_weight, setting.prefix_weight, setting.load_weight)
    fleet.prefill_ppm, fleet.prefix_ppm, fleet.load_ppm = (
        round(1_000_000 * weight) for weight in weights
    )
    fleet.load_threshold = setting.load_threshold
    fleet.prefix_runs = np.zeros(2 * count, np.int64)
    fleet.row_nodes = np.empty(rows, np.int32)
    if fleet.place_tiers:
        fleet.copies = np.full(len(world.slots), records.NONE, records.COPIES)
        fleet.copies["own_place"] = fleet.copies["own_live"] = 0
        # Policies, leases and staging note of the slot of a copy what is not true of its object.
        knobs.shares_slots = knobs.is_packed and not (
            len(world.notes) or knobs.keeps_age or knobs.staging
        )
        fleet.copy_links = np.full(len(world.slots), records.NONE, records.LINK)
        if knobs.has_timed_work:
            fleet.due_ns = np.full(count + setting.instances(Scope.RACK), records.UNBOUNDED)


def schedule_incidents(
    world: records.World, incidents: Sequence[Incident], steps: Sequence[Move], rows: int
) -> None:
    """Schedule the `steps` of `incidents`, and count lookups around these.

    Nodes that join before they are lost are absent at the start.
    """
    if incidents:
        world.lookup_outcomes = np.empty(rows, records.LOOKUP_OUTCOME)
    if not steps:
        return
    fleet, control = world.fleet, world.control
    world.fleet_events = np.array(
        [(s.at_ns, s.kind, s.place, s.tier) for s in steps], records.FLEET_EVENT
    )
    control.next_event_ns = steps[0].at_ns
    fleet.nodes["is_up"][initially_absent(steps)] = 0
    control.open_nodes = fleet.nodes["is_up"][: fleet.entry_nodes].sum()
    control.populating_node = np.argmax(fleet.nodes["is_up"])
    if not fleet.nodes["is_up"].any():
        # No node is up to hold the populated objects.
        control.populated = len(world.items)
    # Tiers that may lose objects keep lists of them, even if they never evict.
    lost = sum({1 << s.tier for s in steps if s.kind == records.EMPTIED})
    if any(s.kind == records.LOST for s in steps):
        lost |= fleet.node_tiers
    world.knobs.endless_tiers &= ~lost


def all_tiers(world: records.World) -> tuple[Array, Array]:
    """Return the tiers of all places, records.TIER by place and tier, and which of them exist.

    Nodes come first, then racks. A shared tier exists once, at the first place.
    """
    fleet, tiers = world.fleet, world.tiers
    if fleet.count <= 1 or not len(fleet.tiers):
        return tiers.reshape(1, -1).copy(), np.ones((1, len(tiers)), bool)
    all_places = fleet.tiers.reshape(-1, len(tiers)).copy()
    node = world.control.node
    exists = np.zeros(all_places.shape, bool)
    for t in range(len(tiers)):
        is_rack = bool(fleet.rack_tiers & 1 << t)
        place = fleet.count + node // fleet.rack_nodes if is_rack else node
        if fleet.place_tiers & 1 << t:
            exists[slice(fleet.count, None) if is_rack else slice(fleet.count), t] = True
            all_places[place, t] = tiers[t]
        else:
            exists[0, t] = True
            all_places[0, t] = tiers[t]
    return all_places, exists


_SLOTS_AT_ONCE: Final = 1 << 20
"""Slots of which duplicates are counted at a time."""
NODE_COUNTS = (
    "requests",
    "input_tokens",
    "computed_tokens",
    "computing_ns",
    "lookups",
    "local_hits",
    "shared_hits",
)


def fleet_stats(setting: FleetSetting, world: records.World) -> FleetStats | UnsetType:
    """Return the counters of the fleet; UNSET for a single node."""
    if world.fleet.count <= 1:
        return UNSET
    nodes, routed = world.fleet.nodes, world.fleet.nodes[: world.fleet.entry_nodes]
    total = {name: int(nodes[name].sum()) for name in NODE_COUNTS}
    return FleetStats(
        nodes=setting.nodes,
        router=str(setting.router),
        local_hits=total["local_hits"],
        shared_hits=total["shared_hits"],
        **ratios_of(total),
        computed_tokens=total["computed_tokens"],
        duplicate_bytes=_duplicate_bytes(world.slots, world.fleet.copies, world.fleet.count),
        link_bytes=int(nodes["sent_bytes"].sum()) if setting.is_disaggregated else UNSET,
        imbalance=FleetImbalance(
            requests=_imbalance(routed["requests"]),
            computing_ns=_imbalance(routed["computing_ns"]),
        ),
        by_node=NodeCounts(**{name: nodes[name].tolist() for name in NODE_COUNTS}),
    )


def _duplicate_bytes(slots: Array, copies_of: Array, nodes: int) -> int:
    """Return the bytes of the copies that nodes have, without the first one of each object.

    It takes a byte a slot, and not several times the memory of all copies, of which there may be
    tens of millions.
    """
    has_copy, copied_bytes = np.zeros(len(slots), np.bool_), 0
    for start in range(0, len(slots), _SLOTS_AT_ONCE):
        part = slots[start : start + _SLOTS_AT_ONCE]
        copies = part[(part["place"] > 0) & (part["place"] <= nodes) & (part["live"] != 0)]
        has_copy[copies["home"]] = True
        copied_bytes += int(copies["size"].sum())
    for start in range(0, len(copies_of), _SLOTS_AT_ONCE):
        of_part = slice(start, start + _SLOTS_AT_ONCE)
        own = copies_of[of_part]
        is_copy = (own["own_place"] > 0) & (own["own_place"] <= nodes) & (own["own_live"] != 0)
        has_copy[of_part] |= is_copy
        copied_bytes += int(slots["size"][of_part][is_copy].sum())
    for start in range(0, len(slots), _SLOTS_AT_ONCE):
        of_part = slice(start, start + _SLOTS_AT_ONCE)
        copied_bytes -= int(slots["size"][of_part][has_copy[of_part]].sum())
    return copied_bytes


def _imbalance(counts: Array) -> float | None:
    """Return the largest of the nodes' `counts` over their mean; None if all are 0."""
    return float(counts.max()) / float(counts.mean()) if counts.any() else None


def ratios_of(counts: Mapping[str, int]) -> HitRatios:
    """Return the hit rates of `counts` by name."""
    return hit_ratios(counts["local_hits"], counts["shared_hits"], counts["lookups"])
