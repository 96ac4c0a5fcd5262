"""What a training run's checkpoints come to, as a document."""

from __future__ import annotations

from typing import Any

from kvtrace.core.document.document import Chapter, Document, Sheet, table_of
from kvtrace.core.units import format_bytes, format_count, format_duration


def document(summary: dict[str, Any]) -> Document:
    """Return what `kvtrace gen --preset checkpoint` made as a document."""
    found, training = summary["stats"]["checkpoint"], summary["training"]
    headline = (
        f"{format_count(found['saves'])} saves of {format_bytes(found['checkpoint_bytes'])} and "
        f"{format_count(found['restores'])} restores: {format_count(summary['rows'])} rows, model {summary['model']}, "
        f"{format_count(training['ranks'])} ranks ({training['placement']}), seed {summary['seed']}"
    )
    rows = [{"part": part} | of for part, of in summary["parts"].items()]
    spec = "text: part; count: objects = objects a checkpoint; bytes: bytes = a checkpoint, largest_bytes = largest"
    said = [f"{format_bytes(found[f'{way}_bytes'])} {way} in all" for way in ("written", "read")]
    notes = [", ".join(said)]
    if found["failures"]:
        notes.append(
            f"{format_count(found['failures'])} failures, {format_duration(found['lost_ns'])} of training lost to them"
        )
    return Document(summary["file"], headline, [Chapter("", [table_of("parts", Sheet.SUMMARY, spec, rows)], notes)])
