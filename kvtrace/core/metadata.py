"""The provenance that every output carries: versions, argv, seed, configuration, tiers, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from kvtrace import __version__
from kvtrace.core import np
from kvtrace.core.config import sha256
from kvtrace.core.errors import TraceError
from kvtrace.core.files import at, decode_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.schema import SCHEMA_VERSION, Table
from kvtrace.core.simulation_stats import MAX_COUNT, Count, FleetStats, IncidentStats
from kvtrace.core.statistics import total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.core.arrays import Array


_MOST_TIERS = 127
_LONGEST_NAME = 255
_ATTENTION = ("pair_fs", "window_tokens", "is_aligned")
"""Of the C struct Attention, in its order."""
_OUTPUT_OPTIONS = ("-o", "--output", "--requests-out")
_BARE_OUTPUT_OPTIONS = ("--json", "--force", "--quiet")


class TierFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of the hierarchy, fastest first; `capacity_bytes` is null if it has no bound."""

    name: str
    capacity_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """In a fleet, of each instance of it."""
    instance_nodes: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    """How many nodes of a fleet, in order, share one instance of it.

    Absent where there is but one.
    """


class _TierStats(msgspec.Struct):
    name: str | None = None
    hits: Count | None = None
    hit_ratio: float | None = None
    live_bytes: Count | None = None
    populated_bytes: Count | None = None


class _Stats(msgspec.Struct):
    """What a simulation counted, so far as others look at it."""

    lookups: Count | None = None
    tiers: list[_TierStats] | None = None
    fleet: FleetStats | None = None
    incidents: IncidentStats | None = None


class _Source(msgspec.Struct):
    kind: str = ""
    block_tokens: Count | None = None
    first_unix_ns: Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)] | None = None


class _Model(msgspec.Struct):
    name: str | None = None
    bytes_per_token: float | None = None


class _Known(msgspec.Struct):
    """The fields of the free parts of a Metadata that are looked at, with the types that they must
    have.
    """

    stats: _Stats | None = None
    source: _Source | None = None
    model: _Model | None = None


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The provenance of one table; fields that do not apply are null."""

    table: str
    schema_version: int = 1
    """Set as the file is made: the lowest that has its columns."""
    program: str
    version: str = "unknown"
    argv: list[str]
    """The command, without its output options, so that one command gives the same bytes anywhere.
    """
    seed: int | None = None
    preset: str | None = None
    config: JsonObject = {}
    config_sha256: str = ""
    model: JsonObject | None = None
    tiers: list[TierFacts] = []
    source: JsonObject | None = None
    """Where requests came from: kind, file name, its SHA-256, block_tokens, counts."""
    notes: list[str] = []
    """What is assumed, approximated, or absent in the source."""
    stats: JsonObject | None = None
    """Counters of the simulation or the run; null where there was none."""
    clock_unit: str = "ns"
    is_simulated: bool = False
    rows: Count | None = None
    """The number of rows; null until the table is finished."""

    @property
    def model_name(self) -> str | None:
        """The model's name; null if it has none, or something else stands there."""
        name = (self.model or {}).get("name")
        return name if isinstance(name, str) else None

    @property
    def fleet(self) -> FleetStats | None:
        """Counters of several nodes; None for a single node."""
        counters = (self.stats or {}).get("fleet")
        return None if counters is None else msgspec.convert(counters, FleetStats)

    @property
    def events(self) -> IncidentStats | None:
        """Counters around the incidents that the user asked for; None without any."""
        counters = (self.stats or {}).get("incidents")
        return None if counters is None else msgspec.convert(counters, IncidentStats)

    @property
    def hit_ratio(self) -> float | None:
        """The share of look-ups that any tier answered, as a simulation counted them.

        Null if it does not say.
        """
        hits, lookups = (
            total([tier.get("hits") for tier in at(self.stats, "tiers") or ()]),
            at(self.stats, "lookups"),
        )
        return hits / lookups if lookups and hits is not None else None

    def instances(self, tier: TierFacts) -> int:
        """Return how many there are of `tier`."""
        if self.fleet is None or tier.instance_nodes is msgspec.UNSET:
            return 1
        return -(-self.fleet.nodes // tier.instance_nodes)

    def __post_init__(self) -> None:
        """Refuse what others could not work with, wherever it is read.

        A ValueError, or msgspec's own.

        The free parts need not hold what a reader looks for, but if they do it has its type.
        """
        msgspec.convert({"stats": self.stats, "source": self.source, "model": self.model}, _Known)
        if len(self.tiers) > _MOST_TIERS:
            raise ValueError(f"{len(self.tiers)} tiers; {_MOST_TIERS} are the most")
        names = (
            self.program,
            self.version,
            self.preset or "",
            self.config_sha256,
            *(t.name for t in self.tiers),
        )
        for name in names:
            if not name.isprintable() or len(name) > _LONGEST_NAME:
                raise ValueError(f"a name that is too long or cannot be printed: {name[:40]!r}")


def describe(
    table: Table, program: str, argv: list[str], config: JsonObject, **fields: Any
) -> Metadata:
    """Return the metadata of a new `table` that `program` writes under `config`."""
    about: JsonObject = {"table": table.name, "program": program, "version": __version__}
    return Metadata(
        **about, argv=without_outputs(argv), config=config, config_sha256=sha256(config), **fields
    )


def without_outputs(argv: list[str]) -> list[str]:
    """Return `argv` without the options that only say where output goes, and how it is shown."""
    kept, skip = [], False
    for argument in argv:
        name = argument.split("=", 1)[0]
        if skip:
            skip = False
        elif name in _OUTPUT_OPTIONS:
            skip = "=" not in argument
        elif argument not in _BARE_OUTPUT_OPTIONS and (
            argument.startswith("--") or not argument.startswith("-o")
        ):
            kept.append(argument)
    return kept


def computing_notes(notes: list[str]) -> list[str]:
    """Return those of a trace's `notes` without which its rates mean nothing.

    How long computing took, and stalls.
    """
    return [note for note in notes if note.startswith(("computing", STALLS))]


def first_tokens_ns(knobs: JsonObject, tokens: Sequence[int] | Array) -> Array:
    """Return int64.

    How long the first so many `tokens` of prompts take to compute, by the knobs of a trace's
    preset.

    What is computed behind loaded tokens takes the difference of two of these; config.hierarchy has
    the knobs.
    """
    from kvtrace.core.native.library import I8, function

    attention = [
        [int(a[name]) for name in _ATTENTION] for a in knobs.get("prefill_attention") or ()
    ]
    found = np.empty(len(tokens), np.int64)
    function("compute_prefill_times", I8, int, int, I8, int, I8)(
        *(
            np.array(attention, np.int64).reshape(-1, 3),
            len(attention),
            knobs["prefill_ns_per_token"],
        ),
        *(np.ascontiguousarray(tokens, np.int64), len(tokens), found),
    )
    return found


STALLS = "ENGINE WOULD STALL"
"""So begins the note of requests in which the real engine waits for ever, and the simulation goes
on.
"""
INSTANT_STORAGE = "simulated: storage latency is zero, and no tier queues"
"""The note of a trace whose tiers have no model of time.

No modelled time of its requests contains any of storage.
"""


def stream_notes(notes: list[str], tier: str) -> list[str]:
    """Return that of a trace's `notes` which says so of `tier`, if there is one."""
    return [note for note in notes if note.startswith(f"streams: writes to {tier} are ")]


def encode(meta: Metadata) -> bytes:
    """Return `meta` as JSON, in one stable form."""
    return msgspec.json.encode(meta, order="deterministic")


class _Names(msgspec.Struct):
    knobs: dict[str, Literal["int64", "float64", "string"]] = {}


def study_names(meta: Metadata, path: object) -> dict[str, dict[str, str]]:
    """Return what stands for the stars in the columns of the study that `meta` describes, as
    study_table takes it.

    TraceError if it does not say so.
    """
    try:
        knobs = dict[str, str](msgspec.convert(meta.config, _Names).knobs)
    except msgspec.ValidationError as error:
        raise TraceError(f"its kvtrace metadata is damaged: {error}", path=path) from None
    return {"knob": knobs, "tier": {tier.name: "" for tier in meta.tiers}}


class _Version(msgspec.Struct):
    schema_version: object = None


def decode(data: bytes, path: object) -> Metadata:
    """Return the metadata in `data`.

    TraceError if it is none, or of a schema version we do not know.
    """
    misfit = "its kvtrace metadata is damaged: {}"
    version = decode_json(data, _Version, path, misfit=misfit).schema_version
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        known = (
            f"but this program reads versions 1 to {SCHEMA_VERSION}; use the kvtrace that wrote it"
        )
        raise TraceError(f"schema version {version}, {known}", path=path)
    return decode_json(data, Metadata, path, misfit=misfit)
