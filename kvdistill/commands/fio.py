"""The commands that distil a profile, and fio jobs from it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from kvdistill.commands.options import SOURCE, Json, Source, Tier, WindowArguments, positive
from kvdistill.jobs.job import PROFILE, FioMode
from kvtrace.core.app import Force, emit_json, log, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import check_new

_MANY_PAGES = 1 << 30


@takes_groups
def profile(
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", writable=True, help="The profile.")] = Path("profile.json"),
    tier: Tier = None,
    json: Json = False,
    *,
    part: WindowArguments,
) -> None:
    """Distil what jobs are made of into a JSON file: mix, sizes, arrivals, depth, places, reuse, phases.

    What the source does not say is null: a trace has no depth, a probe's histograms no order.

    \b
    kvdistill profile conv.parquet --tier nvme -o profile.json
    kvdistill profile run -o profile.json
    kvdistill profile probe/blocks.parquet --tier nvme0n1
    """
    import tempfile

    from kvdistill.profile.sources import distil_source
    from kvdistill.report.jobs import profile_chapter
    from kvtrace.core.app import progress
    from kvtrace.core.document.document import Document
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.core.files import write_json

    scratched = tempfile.TemporaryDirectory(prefix="kvdistill-")
    with scratched as scratch, progress(f"distil {source.name}"):
        found = distil_source(source, tier, part.window(), Path(scratch)).profile
    write_json(output, found)
    log(f"wrote {output}")
    if json:
        emit_json(found)
    else:
        show_documents([Document("", "", [profile_chapter(found)])])


# Long: a parameter an option.
@takes_groups
def fio(
    source: Annotated[Path | None, SOURCE] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the jobs; made if missing.")] = Path(
        "jobs"
    ),
    gen: Annotated[
        str | None,
        typer.Option(
            "--gen",
            help="Instead of INPUT: the options of the `kvtrace gen` that makes the trace, kept beside the jobs. "
            "Without --tier they are of its slowest tier.",
        ),
    ] = None,
    tier: Tier = None,
    mode: Annotated[
        list[FioMode] | None,
        typer.Option(
            "--mode", help="replay, stat or reuse; may be given again [default: all that the source supports]."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", help="File or block device that the jobs overwrite.")
    ] = "kvdistill.scratch",
    fio_version: Annotated[
        str | None, typer.Option("--fio-version", help="Fio version to write for [default: the installed one].")
    ] = None,
    io_bytes: Annotated[
        str, typer.Option("--io-bytes", help="Largest I/O of replay and reuse; longer operations are split.")
    ] = "1MiB",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            help="Partition replay and reuse over this many jobs of one I/O in flight each; 1 is one asynchronous job "
            "[default: 1].",
        ),
    ] = None,
    log_version: Annotated[
        int | None,
        typer.Option(
            "--log-version",
            help="2: absolute times, whole ms; 3: microseconds, but lateness only grows [default: the closest].",
        ),
    ] = None,
    *,
    part: WindowArguments,
    is_whole: Annotated[
        bool, typer.Option("--whole", help="Write the logs of the whole replay, however long they are.")
    ] = False,
    has_huge_pages: Annotated[
        bool | None,
        typer.Option(
            "--huge-pages/--no-huge-pages",
            help="Huge pages are reserved (vm.nr_hugepages) where the jobs run [default: as on this machine].",
            show_default=False,
        ),
    ] = None,
    max_runtime: Annotated[str, typer.Option("--max-duration", help="Longest run time of stat and reuse.")] = "300s",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random draws of reuse.")] = 42,
    space: Annotated[
        str | None,
        typer.Option("--space", help="Space of the target that stat uses, if the source does not say (10GiB)."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Run the jobs briefly and compare.")] = False,
    check_duration: Annotated[
        str, typer.Option("--check-duration", help="How much of the source each checked job runs.")
    ] = "10s",
    check_bytes: Annotated[
        str, typer.Option("--check-bytes", help="Most bytes that --check replays, and largest scratch file.")
    ] = "4GiB",
    check_null: Annotated[
        bool, typer.Option("--check-null", help="Check with fio's null engine: fio's own times, without a target.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if a job is expected to be over 10 % off its source.")
    ] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write fio jobs: an exact replay, a statistical job, and a drawn one that keeps how soon places are used again.

    Each job's head says where it comes from, how to run it, what space it needs and what it lost. What each job is
    expected to do at the source's own response times is held against the source before it runs: rates, I/Os in flight,
    idle time, sizes, reads. With --check, closeness.json says how close fio comes.

    \b
    kvdistill fio conv.parquet --tier nvme -o jobs
    kvdistill fio --gen "--preset lmcache-disk --users 100 --duration 10m" -o jobs
    kvdistill fio conv.parquet --tier nvme -o jobs --mode replay --limit 60s --check
    kvdistill fio run -o jobs --mode stat
    cd jobs && fio prefill.fio && fio replay.fio
    """
    from kvdistill.check.check import write_jobs
    from kvdistill.formats.iolog import LogOptions
    from kvdistill.jobs.fio_program import free_huge_pages, installed, parse_version
    from kvdistill.jobs.job import JobOptions
    from kvdistill.jobs.write import CheckOptions, JobRequest
    from kvdistill.report.jobs import written_document
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns

    check_new(output / PROFILE, is_forced=force)
    options = JobOptions(
        target=target,
        version=parse_version(fio_version) if fio_version else installed(),
        runtime_cap_ns=positive(parse_duration_ns(max_runtime), f"--max-duration {max_runtime}"),
        space_bytes=None if space is None else positive(parse_bytes(space), f"--space {space}"),
        huge_pages=free_huge_pages() if has_huge_pages is None else _MANY_PAGES * has_huge_pages,
    )
    most = positive(parse_bytes(check_bytes), f"--check-bytes {check_bytes}")
    lasts_ns = positive(parse_duration_ns(check_duration), f"--check-duration {check_duration}")
    checks = CheckOptions(lasts_ns / NS_PER_S, most, is_null=check_null)
    request = JobRequest(
        mode or [],
        options,
        LogOptions(parse_bytes(io_bytes), jobs, log_version),
        seed,
        checks if check or check_null else None,
        is_strict=strict,
        is_whole=is_whole,
    )
    source, tier = _source(source, gen, tier, output)
    result = write_jobs(source, tier, output, part.window(), request)
    if json:
        emit_json(result)
    else:
        show_documents([written_document(result, output)])


def _source(source: Path | None, gen: str | None, tier: str | None, output: Path) -> tuple[Path, str | None]:
    """Return the source, made first if it is to be, and the tier to take."""
    from kvtrace.core.run.run_file import run_program
    from kvtrace.core.schema import TRACE
    from kvtrace.core.tables import open_table

    if (source is None) == (gen is None):
        raise ConfigError("name one INPUT, or give --gen the options of the `kvtrace gen` that makes it")
    if source is None:
        source = output / "trace.parquet"
        output.mkdir(parents=True, exist_ok=True)
        run_program("kvtrace", ["gen", *shlex.split(gen or ""), "-o", str(source), "--force"])
        tier = tier or open_table(source, TRACE).meta.tiers[-1].name
    return source, tier
