"""Several trials of one replay as a document: the median and spread of every figure."""

from __future__ import annotations

from kvreplay.experiments.trials import JUDGED, TrialSet
from kvtrace.core.document.document import Cell, Chapter, Document, Sheet, Unit, table_of
from kvtrace.core.units import percent

_UNITS = {"bandwidth_bytes_per_s": Unit.BYTES_PER_S, "operations_per_s": Unit.PER_S}
"""Units of figures that are no times."""


def trials_document(found: TrialSet) -> Document:
    """Make the document of several trials: median and spread of every figure."""
    counted_trials = max((len(q.values) for q in found.quantities), default=len(found.runs))
    spec = "text: tier, op, name = figure, median, low = least, high = greatest; share: spread"
    rows = [
        [
            q.tier,
            q.op,
            q.name,
            *(Cell(v, _UNITS.get(q.name, Unit.NS)) for v in (q.median, q.low, q.high)),
            q.spread,
        ]
        for q in found.quantities
        if q.median is not None
    ]
    spreads = [q.spread for q in found.quantities if q.name in JUDGED and q.spread is not None]
    notes = [f"tier {tier} is SIMULATED: no figure counts it" for tier in found.simulated_tiers]
    if spreads:
        notes.append(
            f"repeatability: figures that should repeat spread by at most {percent(max(spreads))}"
        )
    table = table_of(
        f"{counted_trials} of {found.asked} trials", Sheet.PERFORMANCE, spec, rows, keys=3
    )
    return Document(
        name="",
        headline=found.verdict,
        chapters=[Chapter("", [table])],
        notes=notes,
        warnings=found.warnings,
    )
