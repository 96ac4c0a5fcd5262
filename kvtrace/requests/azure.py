"""Azure LLM inference CSVs (2023, 2024, multimodal 2025): arrival and lengths, no conversations and no ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.requests.csvtable import header_of, in_time_order, read_columns
from kvtrace.requests.requests import MAX_NS, Requests, Start, origin_of, sha256_of, without_blocks

TIME, INPUT, OUTPUT, IMAGES = "TIMESTAMP", "ContextTokens", "GeneratedTokens", "NumImages"


def is_own(start: Start) -> bool:
    """Return whether the file is an Azure CSV: its header has the three columns."""
    return {TIME, INPUT, OUTPUT} <= start.columns


def read(path: Path) -> Requests:
    """Return the requests of the Azure CSV at `path`: times with or without a fraction, with or without a zone.

    Rows out of order are sorted, and counted in the notes.

    Raises:
        TraceError: a column is missing, a cell is empty or does not fit, or some times have a zone and some none.

    """
    import pyarrow as pa

    zone = "UTC" if _has_zone(path) else None
    table = read_columns(
        path, {TIME: pa.timestamp("ns", zone), INPUT: pa.int64(), OUTPUT: pa.int64()}, {IMAGES: pa.int64()}
    )
    times = table.arrays[TIME].cast(pa.int64()).to_numpy()
    inputs, outputs = table.tokens(INPUT), table.tokens(OUTPUT)
    order, backwards = in_time_order(times)
    if order is not None:
        times, inputs, outputs = times[order], inputs[order], outputs[order]
    if int(times[-1]) - int(times[0]) > MAX_NS:
        raise TraceError("its times span more than a trace's clock can hold", path=path, column=TIME)
    images = int(np.nansum(table.arrays[IMAGES].to_numpy())) if IMAGES in table.arrays else None
    facts = {"images": images, "out_of_order": backwards, "unknown_columns": list(table.others)}
    origin = origin_of("azure", path, sha256_of(path), len(times), 0, **facts)
    return without_blocks(times - times[0], inputs, outputs, origin, _notes(images, backwards, table.others))


def _has_zone(path: Path) -> bool:
    """Return whether the first time of the CSV at `path` has a zone, as `+00:00` or `Z`."""
    names = header_of(path)
    if TIME not in names:
        return False
    with path.open("rb") as file:
        file.readline()
        cells = file.readline(1 << 16).decode(errors="replace").split(",")
    index = names.index(TIME)
    # The date has dashes of its own.
    clock = cells[index].strip().strip('"')[10:] if index < len(cells) else ""
    return clock.endswith("Z") or "+" in clock or "-" in clock


def _notes(images: int | None, backwards: int, unknown: tuple[str, ...]) -> tuple[str, ...]:
    notes = ["the source has no sessions, turns or block ids: they are null, and no request reuses another's cache"]
    if images is not None:
        notes.append(
            f"{images} images are not simulated beyond the source's own ContextTokens, whose image share is unknown"
        )
    if backwards:
        notes.append(f"times went backwards {backwards} times: the requests were sorted by arrival")
    if unknown:
        notes.append(f"unknown columns were not read: {', '.join(unknown)}")
    return tuple(notes)
