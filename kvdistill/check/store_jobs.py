"""What a job of an object store asks for, compared with what a replay did: mix, sizes and rate.

The job's side is read from the file that was written, as its tool would, and not from what it was written of.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvdistill.jobs import sai3, warp
from kvdistill.jobs.store_mix import ops_per_s
from kvdistill.profile.distributions import mean_bytes, total_variation
from kvdistill.profile.profile import SizeCount
from kvdistill.profile.sources import distil_source
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit


class StoreSide(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a store; null where there is none of it."""

    get_share: float
    put_share: float
    delete_share: float
    get_mean_bytes: float | None
    put_mean_bytes: float | None
    ops_per_s: float | None
    """Null where all share one instant."""


class StoreCloseness(msgspec.Struct, frozen=True, kw_only=True):
    """A job compared with a replay."""

    run: str
    job: StoreSide
    replay: StoreSide
    gets: int
    """Operations of the replay that went well, as are the next two."""
    puts: int
    deletes: int
    get_size_variation: float | None
    """Share of GETs whose size would have to change for both to have the same sizes; null without GETs."""
    put_size_variation: float | None


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's file says, or a replay did, by weight."""

    gets: list[SizeCount]
    puts: list[SizeCount]
    shares: tuple[float, float, float]
    rate: float | None


def compare_with_run(job: Path, run: Path, tier: str) -> StoreCloseness:
    """Compare the job in the file `job`, of warp or sai3-bench, with what the replay `run` did on `tier`.

    Raises:
        ConfigError: the run is none, or has no such tier.

    """
    if not run.is_dir():
        raise ConfigError(f"--run {run}: name a run of kvreplay")
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch:
        profile = distil_source(run, tier, Limit(), Path(scratch)).profile
    asked = _READERS[job.name](job.read_text(encoding="utf-8"))
    gets, puts, deletes = counts = profile.read.ops, profile.write.ops, profile.delete_ops
    done = _Content(
        gets=list(profile.read.object_sizes),
        puts=list(profile.write.object_sizes),
        shares=(gets / sum(counts), puts / sum(counts), deletes / sum(counts)),
        rate=ops_per_s(sum(counts), profile),
    )
    return StoreCloseness(
        run=str(run),
        job=_side(asked),
        replay=_side(done),
        gets=gets,
        puts=puts,
        deletes=deletes,
        get_size_variation=total_variation(done.gets, asked.gets) if done.gets and asked.gets else None,
        put_size_variation=total_variation(done.puts, asked.puts) if done.puts and asked.puts else None,
    )


def _side(content: _Content) -> StoreSide:
    get, put, delete = content.shares
    return StoreSide(
        get_share=get,
        put_share=put,
        delete_share=delete,
        get_mean_bytes=mean_bytes(content.gets) if content.gets else None,
        put_mean_bytes=mean_bytes(content.puts) if content.puts else None,
        ops_per_s=content.rate,
    )


def _of_warp(text: str) -> _Content:
    """Return what warp's file says: of a bucket of sizes up to below its bound, the bound before is one byte less."""
    mix = re.search(r"distribution: \{get: (\d+), stat: 0, put: (\d+), delete: (\d+)\}", text)
    size, rate = re.search(r'size: "([0-9:,]+)"', text), re.search(r"rps-limit: ([0-9.]+)", text)
    assert mix is not None, "a job of ours has a mix"
    assert size is not None, "a job of ours has sizes"
    get, put, delete = (int(part) / warp.MIX_STEPS for part in mix.groups())
    bars = [tuple(map(int, bar.split(":"))) for bar in size[1].split(",")]
    sizes = [SizeCount(bound - 1, weight) for bound, weight in bars if weight]
    return _Content(
        gets=sizes if get else [],
        puts=sizes if put else [],
        shares=(get, put, delete),
        rate=float(rate[1]) if rate else None,
    )


def _of_sai3(text: str) -> _Content:
    """Return what sai3-bench's file says: an entry an operation and size, each with its weight."""
    entries = text.partition("workload:\n")[2].split("  - op: ")[1:]
    found: dict[str, list[SizeCount]] = {"get": [], "put": [], "delete": []}
    for entry in entries:
        weight = re.search(r"weight: (\d+)", entry)
        size = re.search(r"object_size: (\d+)|get-(\d+)/", entry)
        assert weight is not None, "an entry of ours has a weight"
        found[entry.split()[0]].append(SizeCount(int(size[1] or size[2]) if size else 0, int(weight[1])))
    rate = re.search(r"iops: (\d+)", text)
    weights = [sum(s.ops for s in found[op]) for op in ("get", "put", "delete")]
    get, put, delete = (weight / sum(weights) for weight in weights)
    return _Content(
        gets=found["get"], puts=found["put"], shares=(get, put, delete), rate=float(rate[1]) if rate else None
    )


_READERS: dict[str, Callable[[str], _Content]] = {warp.JOB: _of_warp, sai3.WORKLOAD: _of_sai3}
