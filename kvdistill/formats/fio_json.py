"""fio's JSON result (`--output-format=json` or `json+`): figures of each job and direction, as a run.json holds them.

fio keeps histograms, not I/Os: percentiles are those that it printed or, with json+, those of its bins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportOptions
from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.metadata import Count
from kvtrace.core.schema import MOST
from kvtrace.core.statistics import QUANTILES, nearest_rank

if TYPE_CHECKING:
    import duckdb

_NS_PER_MS = 1_000_000
_WHOLE = 100
_Ms = Annotated[int, msgspec.Meta(ge=0, le=MOST // _NS_PER_MS)]


class _Times(msgspec.Struct):
    """Latencies, so far as they are read; any field may be missing or null."""

    mean: float | None = None
    max: Count | None = None
    N: Count | None = None
    percentile: dict[str, Count | None] | None = None
    bins: dict[str, Count | None] | None = None


class _Moved(msgspec.Struct):
    """What a job did in one direction."""

    total_ios: Count | None = None
    io_bytes: Count | None = None
    bw_bytes: float | None = None
    iops: float | None = None
    runtime: _Ms | None = None
    lat_ns: _Times | None = None
    clat_ns: _Times | None = None


class _Job(msgspec.Struct, rename={"options": "job options"}):
    jobname: str | None = None
    error: int | None = None
    total_err: Count | None = None
    job_runtime: _Ms | None = None
    read: _Moved | None = None
    write: _Moved | None = None
    trim: _Moved | None = None
    sync: _Moved | None = None
    options: dict[str, str | None] | None = None


class _Result(msgspec.Struct, rename={"version": "fio version", "options": "global options"}):
    """fio's result, so far as it is read, with the types that it must have."""

    jobs: list[_Job | None]
    version: str | None = None
    options: dict[str, str | None] | None = None


def read(files: Sequence[Path], options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import the results of one run of fio; each job is a tier of its name.

    Raises:
        TraceError: a file holds no result of fio 3 or later.

    """
    account = Account()
    figures: list[dict[str, Any]] = []
    contents = [_content(path) for path in files]
    names = _names([job for content in contents for job in content["jobs"]], options.tier)
    kinds: set[str] = set()
    errors = []
    for path, content in zip(files, contents, strict=True):
        for job in content["jobs"]:
            tier = names.pop(0)
            account.rows += 1
            if job.get("error"):
                errors.append(f"job {job.get('jobname')} of {path.name} ended with error {job['error']}")
            for op in ("read", "write"):
                if job.get(op, {}).get("total_ios"):
                    figures.append(_figures(job, op, tier, kinds, path))
                    account.kept += 1
            account.notes += _not_kept(job, path)
    if not figures:
        raise TraceError("holds no job that read or wrote", path=files[0])
    account.notes += _about(kinds)
    tiers = list(dict.fromkeys(f["tier"] for f in figures))
    return Imported(account, [], tiers, summary=_summary(figures, contents), facts=_facts(contents, errors))


def _content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise TraceError("no such file" if not path.exists() else "not a regular file", path=path)
    text = path.read_text(encoding="utf-8", errors="replace")
    # fio writes warnings before the JSON, to the same file.
    start = re.search(r"^\{", text, re.MULTILINE)
    if start is None:
        raise TraceError("not fio's JSON (fio --output-format=json writes it)", path=path)
    data = text[start.start() :].encode()
    decode_json(data, _Result, path, misfit="not fio's JSON: {} (fio --output-format=json writes it)")
    content = _without_nulls(decode_json(data, dict[str, Any], path))
    content["jobs"] = [job for job in content["jobs"] if job]
    return content


def _without_nulls(value: Any) -> Any:
    """Return `value` without the fields that are null: fio writes null for what it did not measure."""
    if isinstance(value, dict):
        return {name: _without_nulls(held) for name, held in value.items() if held is not None}
    return [_without_nulls(held) for held in value] if isinstance(value, list) else value


def _names(jobs: list[dict[str, Any]], tier: str | None) -> list[str]:
    """Return a name for each job: its own, or `tier`, made to differ where they would not."""
    names: list[str] = []
    for job in jobs:
        own = str(job.get("jobname", "fio"))
        name = own if tier is None else tier if len(jobs) == 1 else f"{tier} {own}"
        same = sum(n == name or n.startswith(f"{name} #") for n in names)
        names.append(f"{name} #{same + 1}" if same else name)
    return names


def _figures(job: dict[str, Any], op: str, tier: str, kinds: set[str], path: Path) -> dict[str, Any]:
    found = job[op]
    try:
        return {
            "tier": tier,
            "op": op,
            "engine": "other",
            "is_simulated": False,
            "planned": None,
            "operations": found["total_ios"],
            "errors": None if job.get("error") or job.get("total_err") else 0,
            "corrupt": 0,
            "bytes": found["io_bytes"],
            "io_bytes": found["io_bytes"],
            "span_ns": found["runtime"] * _NS_PER_MS,
            "bandwidth_bytes_per_s": float(found["bw_bytes"]) if found["runtime"] else None,
            "operations_per_s": float(found["iops"]) if found["runtime"] else None,
            "in_flight_mean": None,
            "latency": _latency(found, kinds),
            "lateness": None,
        }
    except KeyError as error:
        raise TraceError(f"not of fio 3 or later: {op} of a job lacks {error}", path=path) from None


def _latency(found: dict[str, Any], kinds: set[str]) -> dict[str, Any]:
    """Return a distribution, all of one kind: total latency if fio has its percentiles, else completion latency."""
    kind = "lat_ns" if "percentile" in found["lat_ns"] or "bins" in found["lat_ns"] else "clat_ns"
    kinds.add(kind)
    times = found[kind]
    count = int(times.get("N", found["total_ios"]))
    result: dict[str, Any] = {
        "count": count,
        "mean_ns": times["mean"] if count else None,
        "max_ns": times["max"] if count else None,
    }
    for name, part in QUANTILES.items():
        rank = nearest_rank(count, part)
        result[f"{name}_ns"] = None if rank is None else _at(times, part, rank)
    return result


def _at(times: dict[str, Any], part: int, rank: int) -> int | None:
    """Return the value at a percentile: fio's own, else that of the bin which holds `rank`; null without either."""
    printed = times.get("percentile", {}).get(f"{part / _WHOLE:.6f}")
    if printed is not None:
        return int(printed)
    seen = 0
    for value, count in sorted((int(v), n) for v, n in times.get("bins", {}).items() if v.isdecimal()):
        seen += count
        if seen >= rank:
            return value
    return None


def _not_kept(job: dict[str, Any], path: Path) -> list[str]:
    counts = {"trims": job.get("trim", {}).get("total_ios", 0), "syncs": job.get("sync", {}).get("total_ios", 0)}
    return [
        f"{count:,} {what} of job {job.get('jobname')} in {path.name} have no place in our figures"
        for what, count in counts.items()
        if count
    ]


def _about(kinds: set[str]) -> list[str]:
    notes = [
        "fio's percentiles are of histograms whose bins are at most 1/64 of their value wide",
        "each job is a tier of its name",
        "bandwidth and rates are over each job's own run time",
    ]
    if "clat_ns" in kinds:
        notes.append("latency is fio's completion latency, without submission (lat_percentiles=1 would give the whole)")
    return notes


def _summary(figures: list[dict[str, Any]], contents: list[dict[str, Any]]) -> dict[str, Any]:
    runtimes = [job.get("job_runtime") for content in contents for job in content["jobs"]]
    known = [ms for ms in runtimes if ms is not None]
    # A job that ended with an error had one at least; only continue_on_error counts them.
    failed = sum(job.get("total_err") or bool(job.get("error")) for c in contents for job in c["jobs"])
    return {
        "verdict": "imported from fio-json",
        "wall_ns": max(known) * _NS_PER_MS if known else None,
        "operations": sum(f["operations"] for f in figures),
        "errors": failed,
        "not_reached": None,
        "pace": None,
        "in_flight_mean": None,
        "warmup": None,
        "skipped_rows": {},
        "figures": figures,
    }


def _facts(contents: list[dict[str, Any]], errors: list[str]) -> dict[str, Any]:
    options = [
        content.get("global options", {}) | job.get("job options", {})
        for content in contents
        for job in content["jobs"]
    ]

    def same(name: str) -> Any:
        """Return the option that all jobs share, else null."""
        values = {option.get(name) for option in options}
        return values.pop() if len(values) == 1 else None

    depth = same("iodepth")
    return {
        "status": "partial" if errors else "complete",
        "reason": "; ".join(errors) or None,
        "engine": {
            "name": same("ioengine") or "other",
            "queue_depth": int(depth) if str(depth).isdigit() else None,
            "io_bytes": None,
        },
        "fio": {"version": contents[0].get("fio version"), "options": options},
    }
