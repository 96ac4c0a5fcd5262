"""Simulate the fleets of a price list that may be the cheapest of their kind.

A store from which nothing is ever deleted is never full, and another one that has room for as much
holds the same at each time. So of the fleets that differ in the size of the store alone, the largest
is simulated first:

    filled = the bytes that the store holds at the end, if nothing was deleted from it
    of a size >= filled:  the figures are the same, but for the wear, which refers to the size
    of a smaller size:    a simulation of its own
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_bytes
from kvtrace.curves.points import Simulated, filled_bytes, with_drive_size
from kvtrace.curves.size import Target
from kvtrace.sim.presets.tier import Admission, TierSetting
from kvtrace.studies.document import Findings, collect_findings
from kvtrace.studies.plan import DRAM, ROUTER, SIZE, STORE, WAVE, Offer, Plan, kind_of, rivals_of
from kvtrace.studies.run import Result
from kvtrace.studies.study import Configuration, Value


@dataclass(frozen=True, slots=True)
class FleetSearch:
    """The search for the cheapest fleet of a plan."""

    plan: Plan
    offers: Sequence[Offer]
    """All fleets that can be bought, the cheapest to own first."""
    store: TierSetting
    """The tier that stores what is bought in sizes."""
    simulate: Callable[[Sequence[Configuration]], None]
    """Simulates configurations, into `results`."""
    results: dict[int, Result]
    """Results by the number of the configuration."""

    def find_cheapest(self, target: Target) -> Findings:
        """Simulate the offers that may be the cheapest of their kind, WAVE at a time.

        ConfigError if no request looks up anything.
        """
        findings = collect_findings(self.plan.study(self.offers), [], target)
        for start in range(0, len(self.offers), WAVE):
            lowest_costs = {
                kind: math.inf if rival.cost is None else rival.cost
                for kind, rival in rivals_of(findings).items()
            }
            promising = [
                offer
                for offer in self.offers[start : start + WAVE]
                if offer.ownership_cost
                < lowest_costs.get(kind_of(offer.configuration.knobs), math.inf)
            ]
            self._simulate(promising)
            rows = [
                self.plan.row(offer, self.results[offer.configuration.number])
                for offer in promising
            ]
            findings = collect_findings(findings.study, findings.rows + rows, target)
        if not findings.candidates:
            raise ConfigError(
                "no request looks up anything: no prompt repeats what another has stored"
            )
        return findings

    def _simulate(self, offers: Sequence[Offer]) -> None:
        """Fill the results of `offers`: by simulations, or by those of other sizes of the store."""
        largest: dict[tuple[Value, ...], Offer] = {}
        for offer in self._share_known(offers):
            if self._can_share(offer):
                largest[_without_size(offer)] = max(
                    offer, largest.get(_without_size(offer), offer), key=_store_bytes
                )
        self.simulate([offer.configuration for offer in largest.values()])
        self.simulate([offer.configuration for offer in self._share_known(offers)])

    def _share_known(self, offers: Sequence[Offer]) -> list[Offer]:
        """Give `offers` the results of fleets that store the same; return those without a result."""
        missing = [offer for offer in offers if offer.configuration.number not in self.results]
        sharing = {_without_size(offer) for offer in missing if self._can_share(offer)}
        known: dict[tuple[Value, ...], Simulated] = {}
        for offer in self.offers if sharing else ():
            result = self.results.get(offer.configuration.number)
            is_alike = _without_size(offer) in sharing
            if is_alike and isinstance(result, Simulated) and filled_bytes(result, -1) is not None:
                known[_without_size(offer)] = result
        for offer in missing:
            if self._can_share(offer) and _without_size(offer) in known:
                self._share(known[_without_size(offer)], offer)
        return [offer for offer in missing if offer.configuration.number not in self.results]

    def _can_share(self, offer: Offer) -> bool:
        """Return whether the size of the store matters only once it is full."""
        store = self.store
        has_other_limits = bool(store.evict_every or store.lease) or (
            store.admission is not Admission.ALWAYS
        )
        return offer.configuration.knobs[SIZE] != "-" and not has_other_limits

    def _share(self, other: Simulated, offer: Offer) -> None:
        """Give `offer` the figures of a fleet with another size of the store, if neither fills."""
        filled, size_bytes = filled_bytes(other, -1), _store_bytes(offer)
        room_bytes = int(
            size_bytes * min(self.store.high_watermark, self.store.max_object_fraction)
        )
        if filled is None or filled > room_bytes:
            return
        figures = with_drive_size(other, -1, size_bytes)
        if figures is not None:
            self.results[offer.configuration.number] = figures


def _without_size(offer: Offer) -> tuple[Value, ...]:
    """Return all that is bought, but for the size of the store."""
    return tuple(offer.configuration.knobs[key] for key in (STORE, ROUTER, DRAM))


def _store_bytes(offer: Offer) -> int:
    """Return the size of the store of an offer that is bought in sizes."""
    return parse_bytes(str(offer.configuration.knobs[SIZE]))
