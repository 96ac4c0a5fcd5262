"""What a simulated table says of itself: the configuration, the model, and what the reader must know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.core.metadata import describe
from kvtrace.model.shape import PieceKind, pieces
from kvtrace.sim.preset import Entry, Policy, as_config
from kvtrace.users.workload import notes as workload_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.core.metadata import Metadata
    from kvtrace.core.schema import Table
    from kvtrace.sim.simulation import Simulation


def describer(simulation: Simulation, config: dict[str, Any], argv: list[str]) -> Callable[[Table], Metadata]:
    """Return the function that makes the metadata of each table of this run of `argv` under `config`."""
    preset, model = simulation.preset, simulation.model
    facts = {
        "name": config["model"], "source": model.source, "kv_dtype": str(model.kv_dtype),
        "bytes_per_token": simulation.bytes_per_token, "ranks": simulation.ranks,
        "objects_per_chunk": simulation.parts,
    }  # fmt: skip
    config = {**config, "hierarchy": as_config(preset)}
    notes = _notes(simulation)

    def make(table: Table) -> Metadata:
        return describe(
            table, "kvtrace", argv, config, seed=config["seed"], preset=config["preset"], model=facts,
            tiers=preset.tier_list(), source=config["source"], notes=notes, is_simulated=True,
        )  # fmt: skip

    return make


def _notes(simulation: Simulation) -> list[str]:
    preset, requests = simulation.preset, simulation.load.requests
    notes = [*(requests.notes if requests else ()), *simulation.model.notes]
    has_service = any(any(tier.rates_bytes_per_s) for tier in preset.tiers)
    notes.append(
        "times are virtual: "
        + (
            "operations take what the tiers' service model says"
            if has_service
            else "storage operations take none, and no tier queues"
        )
    )
    if any(tier.policy is Policy.TTL for tier in preset.tiers):
        notes.append("the trace ends with its last operation: what expires later (policy ttl) is live at the end")
    kinds = {piece.kind for piece in pieces(simulation.model)}
    if preset.entry is Entry.TURN and kinds != {PieceKind.GROWING}:
        notes.append("turn entries charge every attention layer for every token, and hold no recurrent states")
    if preset.store_generated and requests:
        notes.append("generated tokens are not stored: the source names no blocks for them")
    return notes + workload_notes(preset.workload)
