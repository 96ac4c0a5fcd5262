"""The provenance in every output: versions, argv, seed, configuration, tiers, counts."""

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
"""The fields of the C struct Attention, in its order."""
_OUTPUT_OPTIONS = ("-o", "--output", "--requests-out")
_BARE_OUTPUT_OPTIONS = ("--json", "--force", "--quiet")


class TierFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of the hierarchy. `capacity_bytes` is null if the tier has no bound.

    The bounds are those of a preset, with which all that is computed from them fits 64 bits.
    """

    name: str
    capacity_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**61)] | None = None
    """In a fleet, the capacity of each instance."""
    instance_nodes: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | msgspec.UnsetType = msgspec.UNSET
    """Number of consecutive nodes of a fleet that share one instance. Absent if there is only one
    instance.
    """
    stored_share: Annotated[float, msgspec.Meta(gt=0, le=1)] | msgspec.UnsetType = msgspec.UNSET
    """Share of an object's bytes that the tier stores. Absent if it stores all of them."""


class _TierStats(msgspec.Struct):
    name: str | None = None
    hits: Count | None = None
    hit_ratio: float | None = None
    live_bytes: Count | None = None
    populated_bytes: Count | None = None


class _Stats(msgspec.Struct):
    """The counters of a simulation that other modules read."""

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


class _CheckedFields(msgspec.Struct):
    """The fields in the free parts of a Metadata that have checked types.

    They are checked because other modules read them.
    """

    stats: _Stats | None = None
    source: _Source | None = None
    model: _Model | None = None


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The provenance of one table. Fields that do not apply are null."""

    table: str
    schema_version: int = 1
    """The lowest version that has the file's columns. It is set when the file is created."""
    program: str
    version: str = "unknown"
    argv: list[str]
    """The command without its output options, so that the same command gives the same bytes with
    any output path.
    """
    seed: int | None = None
    preset: str | None = None
    config: JsonObject = {}
    config_sha256: str = ""
    model: JsonObject | None = None
    tiers: list[TierFacts] = []
    source: JsonObject | None = None
    """The source of the requests: kind, file name, its SHA-256, block_tokens, counts."""
    notes: list[str] = []
    """Assumptions, approximations, and facts that the source lacks."""
    stats: JsonObject | None = None
    """Counters of the simulation or the run; null without either."""
    clock_unit: str = "ns"
    is_simulated: bool = False
    rows: Count | None = None
    """The number of rows; null until the table is finished."""

    @property
    def model_name(self) -> str | None:
        """The model's name; null if it has none, or if it is not a text."""
        name = (self.model or {}).get("name")
        return name if isinstance(name, str) else None

    @property
    def fleet(self) -> FleetStats | None:
        """Counters of several nodes; None for a single node."""
        counters = (self.stats or {}).get("fleet")
        return None if counters is None else msgspec.convert(counters, FleetStats)

    @property
    def events(self) -> IncidentStats | None:
        """Counters around the user's incidents; None without any."""
        counters = (self.stats or {}).get("incidents")
        return None if counters is None else msgspec.convert(counters, IncidentStats)

    @property
    def hit_ratio(self) -> float | None:
        """The share of lookups that hit in any tier of a simulation; null if it is unknown."""
        hits = total([tier.get("hits") for tier in at(self.stats, "tiers") or ()])
        lookups = at(self.stats, "lookups")
        return hits / lookups if lookups and hits is not None else None

    def instances(self, tier: TierFacts) -> int:
        """Return the number of instances of `tier`."""
        if self.fleet is None or tier.instance_nodes is msgspec.UNSET:
            return 1
        # The quotient, rounded up: the last instance may have fewer nodes.
        return -(-self.fleet.nodes // tier.instance_nodes)

    def __post_init__(self) -> None:
        """Refuse values that other modules cannot use, in every table that is read.

        The error is a ValueError, or msgspec's own. The free parts may lack the fields that other
        modules read, but fields that they have must have the right types.
        """
        msgspec.convert(
            {"stats": self.stats, "source": self.source, "model": self.model}, _CheckedFields
        )
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
    return Metadata(
        table=table.name,
        program=program,
        version=__version__,
        argv=without_outputs(argv),
        config=config,
        config_sha256=sha256(config),
        **fields,
    )


def without_outputs(argv: list[str]) -> list[str]:
    """Return `argv` without the options that affect only the output's place and display."""
    arguments = []
    is_option_value = False
    for argument in argv:
        name = argument.split("=", 1)[0]
        # `-o` may be written with its value, as in -oout.parquet.
        is_short_output = argument.startswith("-o") and not argument.startswith("--")
        if is_option_value:
            is_option_value = False
        elif name in _OUTPUT_OPTIONS:
            is_option_value = "=" not in argument
        elif argument not in _BARE_OUTPUT_OPTIONS and not is_short_output:
            arguments.append(argument)
    return arguments


def computing_notes(notes: list[str]) -> list[str]:
    """Return the `notes` of a trace that its rates depend on: computing times and stalls."""
    return [note for note in notes if note.startswith(("computing", STALLS))]


def prefix_compute_ns(knobs: JsonObject, tokens: Sequence[int] | Array) -> Array:
    """Return the times (int64) to compute the first `tokens` of prompts.

    `knobs` are those of the trace's preset, in config.hierarchy. Computing tokens after loaded ones
    takes the difference of two of these times.
    """
    from kvtrace.core.native.library import I8, function

    attention = [
        [int(layers[name]) for name in _ATTENTION]
        for layers in knobs.get("prefill_attention") or ()
    ]
    times_ns = np.empty(len(tokens), np.int64)
    compute_prefill_times = function("compute_prefill_times", I8, int, int, I8, int, I8)
    compute_prefill_times(
        np.array(attention, np.int64).reshape(-1, 3),
        len(attention),
        knobs["prefill_ns_per_token"],
        np.ascontiguousarray(tokens, np.int64),
        len(tokens),
        times_ns,
    )
    return times_ns


STALLS = "ENGINE WOULD STALL"
"""The start of the note on requests for which the real engine would wait for ever, while the
simulation continues.
"""
INSTANT_STORAGE = "simulated: storage is treated as infinitely fast"
"""The note of a trace without a time model for its tiers. Modelled request times then exclude
storage.
"""


def stream_notes(notes: list[str], tier: str) -> list[str]:
    """Return the `notes` of a trace on the streams of `tier`: one, or none."""
    return [note for note in notes if note.startswith(f"streams: writes to {tier} are ")]


def encode(meta: Metadata) -> bytes:
    """Return `meta` as JSON in canonical form."""
    return msgspec.json.encode(meta, order="deterministic")


class _Names(msgspec.Struct):
    knobs: dict[str, Literal["int64", "float64", "string"]] = {}


def study_names(meta: Metadata, path: object) -> dict[str, dict[str, str]]:
    """Return the names that replace the stars in the columns of a study, as study_table takes them.

    TraceError if the metadata `meta` of the study do not have them.
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

    TraceError if it is not metadata, or has an unknown schema version.
    """
    misfit = "its kvtrace metadata is damaged: {}"
    version = decode_json(data, _Version, path, misfit=misfit).schema_version
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise TraceError(
            f"schema version {version}, but this program reads versions 1 to {SCHEMA_VERSION}; use"
            " the kvtrace that wrote it",
            path=path,
        )
    return decode_json(data, Metadata, path, misfit=misfit)
