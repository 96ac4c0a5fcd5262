"""What happens to a fleet at a time: nodes and racks lost and joined, drives replaced, the store out of reach.

One is written TIME:KIND and what it is about, `300s:node-lost:7`. All are laid out before the start as steps, one a
node or tier, which the simulation takes at their times (`native/fleet.c`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvtrace.core.config import nearest
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_duration, parse_duration_ns
from kvtrace.native.records import BACK, EMPTIED, GONE, JOINED, LOST
from kvtrace.sim.fleet.setting import FleetSetting, Scope
from kvtrace.sim.presets.tier import TierSetting

MEMORY: Final = ("gpu", "cpu")
"""Tiers of these names are no drives."""


class Kind(StrEnum):
    """What happens."""

    NODE_LOST = "node-lost"
    """A node is gone, and all that lay in its own tiers. Its running requests start again on other nodes; if none is
    up, they and all new ones wait for one."""
    NODE_JOINED = "node-joined"
    """A node comes, its tiers empty: one that was lost, or a new one that was not there before."""
    RACK_LOST = "rack-lost"
    """All nodes of a rack are lost, and what lay in tiers that they share."""
    RACK_JOINED = "rack-joined"
    """All nodes of a rack that are not there come."""
    DRIVE_REPLACED = "drive-replaced"
    """The drive of a node is empty from now on; its slowest own tier, or the tier named."""
    STORE_UNREACHABLE = "store-unreachable"
    """For a time nothing is found in the slowest tier, and nothing stored; what it holds is there again afterwards."""
    ROLLING_RESTART = "rolling-restart"
    """Each node in turn, or so many at once, is lost for a time, and joins as the next are lost."""


_FORMS: Final = {
    Kind.NODE_LOST: "node-lost:NODE",
    Kind.NODE_JOINED: "node-joined:NODE",
    Kind.RACK_LOST: "rack-lost:RACK",
    Kind.RACK_JOINED: "rack-joined:RACK",
    Kind.DRIVE_REPLACED: "drive-replaced:NODE[:TIER]",
    Kind.STORE_UNREACHABLE: "store-unreachable:DURATION",
    Kind.ROLLING_RESTART: "rolling-restart:DURATION[:NODES]",
}
FORMS: Final = ", ".join(f"TIME:{form}" for form in _FORMS.values())


@dataclass(frozen=True, slots=True)
class Incident:
    """One of them, as it was asked for."""

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
        """Return when it is over."""
        rounds = -(-fleet.nodes // self.nodes) if self.kind is Kind.ROLLING_RESTART else 1
        return self.at_ns + rounds * self.lasts_ns


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """What is done at a time; of what happens at one time, that which comes back goes first."""

    at_ns: int
    is_loss: bool
    kind: int
    place: int = 0
    """The node, or the first of the rack whose tier it is."""
    tier: int = 0


def parse_all(texts: Sequence[str], until_ns: int | None) -> tuple[Incident, ...]:
    """Return the incidents that `texts` say; ConfigError for one that no simulation up to `until_ns` comes to."""
    found = tuple(parse(text) for text in texts)
    for incident in found:
        if until_ns is not None and incident.at_ns >= until_ns:
            raise ConfigError(f"--event {incident.text}: the simulation ends at {format_duration(until_ns)}")
    return found


def parse(text: str) -> Incident:
    """Return the incident that `text` says; ConfigError, naming `--event`, if it says none."""
    at, _, rest = text.partition(":")
    name, *arguments = rest.split(":")
    if name not in tuple(Kind):
        raise ConfigError(f"--event {text}: no such event{nearest(name, list(Kind))}; write {FORMS}")
    kind = Kind(name)
    form = f"--event {text}: write TIME:{_FORMS[kind]}"
    if not 1 <= len(arguments) <= 1 + _FORMS[kind].count("["):
        raise ConfigError(form)
    at_ns = _duration(at, text)
    if kind in (Kind.STORE_UNREACHABLE, Kind.ROLLING_RESTART):
        lasts_ns = _duration(arguments[0], text)
        if lasts_ns == 0:
            raise ConfigError(f"--event {text}: {arguments[0]} must be > 0")
        nodes = _number(arguments[1], form) if len(arguments) > 1 else 1
        if nodes == 0:
            raise ConfigError(f"--event {text}: at least 1 node restarts at once")
        return Incident(text, at_ns, kind, lasts_ns=lasts_ns, nodes=nodes)
    tier = arguments[1] if len(arguments) > 1 else None
    return Incident(text, at_ns, kind, _number(arguments[0], form), tier=tier)


def _duration(text: str, whole: str) -> int:
    try:
        return parse_duration_ns(text)
    except ConfigError as error:
        raise ConfigError(f"--event {whole}: {error}") from None


def _number(text: str, form: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - digits
        raise ConfigError(form)
    return int(text)


def steps_of(incidents: Sequence[Incident], fleet: FleetSetting, tiers: Sequence[TierSetting]) -> list[Move]:
    """Return what is done when, in order; ConfigError, naming `--event`, for what cannot be."""
    found: list[tuple[Move, Incident]] = []
    for incident in incidents:
        _check_place(incident, fleet)
        found += [(step, incident) for step in _steps(incident, fleet, tiers)]
    found.sort(key=lambda of: (of[0].at_ns, of[0].is_loss))
    _check_order(found, fleet)
    return [step for step, _ in found]


def absent(steps: Sequence[Move]) -> list[int]:
    """Return the nodes that are not there at the start: those that join before they are lost."""
    first: dict[int, int] = {}
    for step in steps:
        if step.kind in (LOST, JOINED):
            first.setdefault(step.place, step.kind)
    return [node for node, kind in first.items() if kind == JOINED]


def _check_place(incident: Incident, fleet: FleetSetting) -> None:
    kind, racks = incident.kind, fleet.instances(Scope.RACK)
    if kind in (Kind.RACK_LOST, Kind.RACK_JOINED):
        if incident.place >= racks:
            raise ConfigError(
                f"--event {incident.text}: there is no rack {incident.place}: {fleet.nodes} nodes, {fleet.rack_nodes} "
                f"a rack, are racks 0 to {racks - 1}"
            )
    elif incident.place >= fleet.nodes:
        known = f"0 to {fleet.nodes - 1} (--nodes {fleet.nodes})" if fleet.nodes > 1 else "0 alone (--nodes 1)"
        raise ConfigError(f"--event {incident.text}: there is no node {incident.place}: nodes are {known}")


def _steps(incident: Incident, fleet: FleetSetting, tiers: Sequence[TierSetting]) -> Iterator[Move]:  # noqa: C901
    at_ns, place, size = incident.at_ns, incident.place, fleet.rack_nodes
    rack = range(place * size, min(fleet.nodes, (place + 1) * size))
    match incident.kind:
        case Kind.NODE_LOST:
            yield Move(at_ns, True, LOST, place)
        case Kind.NODE_JOINED:
            yield Move(at_ns, False, JOINED, place)
        case Kind.RACK_LOST:
            for t in (t for t, tier in enumerate(tiers) if tier.scope is Scope.RACK):
                yield Move(at_ns, True, EMPTIED, rack[0], t)
            yield from (Move(at_ns, True, LOST, node) for node in rack)
        case Kind.RACK_JOINED:
            yield from (Move(at_ns, False, JOINED, node) for node in rack)
        case Kind.DRIVE_REPLACED:
            yield Move(at_ns, True, EMPTIED, place, _drive(incident, tiers))
        case Kind.STORE_UNREACHABLE:
            if fleet.nodes > 1 and tiers[-1].scope is not Scope.FLEET:
                raise ConfigError(
                    f"--event {incident.text}: the slowest tier, {tiers[-1].name}, is shared by no more than a "
                    f"{tiers[-1].scope}: set tiers.{tiers[-1].name}.scope=fleet"
                )
            yield Move(at_ns, True, GONE, 0, len(tiers) - 1)
            yield Move(at_ns + incident.lasts_ns, False, BACK, 0, len(tiers) - 1)
        case Kind.ROLLING_RESTART:
            for node in range(fleet.nodes):
                lost_ns = at_ns + node // incident.nodes * incident.lasts_ns
                yield Move(lost_ns, True, LOST, node)
                yield Move(lost_ns + incident.lasts_ns, False, JOINED, node)


def _drive(incident: Incident, tiers: Sequence[TierSetting]) -> int:
    """Return the tier whose drive is replaced."""
    own = {tier.name: t for t, tier in enumerate(tiers) if tier.scope is not Scope.FLEET}
    if incident.tier is None:
        drives = [t for name, t in own.items() if name not in MEMORY]
        if not drives:
            raise ConfigError(
                f"--event {incident.text}: no node has a drive of its own; name one of its tiers: "
                f"{incident.text}:TIER with {' or '.join(own) or 'scope=node'}"
            )
        return drives[-1]
    if incident.tier not in own:
        raise ConfigError(
            f"--event {incident.text}: nodes have no tier {incident.tier} of their own; theirs are "
            f"{', '.join(own) or 'none'}"
        )
    return own[incident.tier]


def _check_order(found: Sequence[tuple[Move, Incident]], fleet: FleetSetting) -> None:
    """Refuse what happens to what is not there, and a fleet that nobody serves any more."""
    gone = set(absent([step for step, _ in found]))
    is_gone = False
    if found:
        _check_served(found[0][1], gone, fleet, is_last=False)
    for at, (step, incident) in enumerate(found):
        is_rack = incident.kind in (Kind.RACK_JOINED, Kind.RACK_LOST)
        if step.kind == JOINED:
            wrong = f"node {step.place} is there already" if step.place not in gone and not is_rack else ""
            gone.discard(step.place)
        elif step.kind in (LOST, EMPTIED):
            wrong = f"node {step.place} is not there" if step.place in gone and not is_rack else ""
            gone |= {step.place} if step.kind == LOST else set()
        else:
            wrong = "the store is out of reach already" if is_gone == (step.kind == GONE) else ""
            is_gone = step.kind == GONE
        if wrong:
            raise ConfigError(f"--event {incident.text}: {wrong} at {format_duration(step.at_ns)}")
        if at + 1 == len(found) or found[at + 1][0].at_ns > step.at_ns:
            _check_served(incident, gone, fleet, is_last=all(later.kind != JOINED for later, _ in found[at + 1 :]))


def _check_served(incident: Incident, gone: set[int], fleet: FleetSetting, *, is_last: bool) -> None:
    """Refuse a fleet without nodes for good, or one of two pools of which one has none."""
    if is_last and len(gone) == fleet.nodes:
        raise ConfigError(f"--event {incident.text}: no node is left, and none joins later: add TIME:node-joined:NODE")
    if fleet.is_disaggregated:
        pools = {"compute prompts": range(fleet.prefill_nodes), "generate": range(fleet.prefill_nodes, fleet.nodes)}
        for what, nodes in pools.items():
            if gone.issuperset(nodes):
                raise ConfigError(
                    f"--event {incident.text}: none of the nodes that {what} would be left; at least one must stay"
                )
