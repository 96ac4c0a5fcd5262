"""A run of several ranks, each a process of its own with its part of the trace, as run.json of the whole holds it."""

from __future__ import annotations

import msgspec

RANK_FOLDER = "rank-{:04d}"
"""Where the run of a rank lies in that of the whole."""


class DealNote(msgspec.Struct, frozen=True, kw_only=True):
    """How the trace was dealt to the ranks, and what that cut apart."""

    by: str
    """node, user or object."""
    because: str
    dealt: int
    """How many nodes, users or objects there are."""
    rows: list[int]
    """By rank."""
    bytes: list[int]
    """By rank: read and written."""
    nodes: list[list[int]] | None = None
    """By rank: the nodes dealt to it; null if users or objects were."""
    shared_objects: int
    """Objects that several ranks touch: each has a copy of its own, written before the run if it reads it first."""
    shared_rows: int
    """Rows on such an object by a rank that did not touch it first."""
    shared_bytes: int
    split_requests: int
    """Requests whose operations lie on several ranks, which do not wait for each other there."""
    deletes_left_out: int
    """Because their rank goes on to read what another rank wrote since."""


class StartNote(msgspec.Struct, frozen=True, kw_only=True):
    """How closely together the ranks began; null of what is not known."""

    skew_ns: int | None
    """Between the first and the last rank to begin, by the common clock."""
    first_submission_skew_ns: int | None
    """Between their first submissions; null in an open loop, where these have times of their own."""
    clock_error_ns: int | None
    """How far off the common clock may be: of the worst rank, half its shortest round trip to rank 0."""


class RankNote(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; null is what is not known, as of one that left nothing."""

    rank: int
    folder: str
    """Beside run.json: the rank's own run, with its ops.parquet, requests.parquet, series.parquet; none is pooled."""
    host: str | None = None
    nodes: list[int] | None = None
    """Those of the trace that were dealt to it; null if users or objects were."""
    cpus: int | None = None
    """Those that it may run on."""
    status: str
    """As in its run.json; idle if it was dealt nothing, lost if it left nothing."""
    reason: str | None = None
    operations: int | None = None
    errors: int | None = None
    bytes: int | None = None
    """Read and written, on tiers where bytes move."""
    wall_ns: int | None = None
    bandwidth_bytes_per_s: float | None = None
    """Bytes over its wall time."""
    read_p99_ns: int | None = None
    """Of its slowest tier: response time in an open loop, else service time."""
    write_p99_ns: int | None = None
    clock_offset_ns: int | None = None
    """Its monotonic clock - that of rank 0, before the run."""
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    """The offset after the run - before it."""
    begun_late_ns: int | None = None
    """After the instant that was agreed."""
    first_submission_ns: int | None = None
    """After that instant."""
    stood_still_ns: int | None = None
    """The longest that its process did not answer, if that was over a second: it was stopped, or had no processor."""


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that ended last, if it held up the whole."""

    rank: int
    behind_ns: int
    """After the median rank."""
    reason: str


class CombinedNote(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks taken together by MLPerf Storage's rule (Rules.md 6.3.4), which is not pooling; null is not known."""

    rule: str = "MLPerf Storage: bandwidths of the ranks added up, the worst P95 of any rank"
    read_bandwidth_bytes_per_s: float | None
    write_bandwidth_bytes_per_s: float | None
    read_p95_ns: int | None
    write_p95_ns: int | None


class RanksNote(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a run."""

    count: int
    library: str | None
    """The MPI library; null without one."""
    deal: DealNote | None = None
    """Null where each rank has a trace of its own."""
    start: StartNote
    is_exact: bool
    """Whether percentiles are of all operations pooled; if not, of their histograms, added up."""
    ranks: list[RankNote]
    straggler: Straggler | None
    combined: CombinedNote
