"""The commands `profile` and `fio`: extract a profile, and write fio jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from kvdistill.commands.options import SOURCE, Json, Source, Tier, WindowArguments
from kvdistill.jobs.job import PROFILE, JobOptions, make_folder
from kvtrace.core.app import Force, log, option, progress
from kvtrace.core.document.document import Document
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import check_new
from kvtrace.core.run.run_file import generate
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.core.temporary import temporary_folder


def profile(
    source: Source,
    output: Path = option("The profile.", Path("profile.json"), "-o --output", writable=True),
    tier: Tier = None,
    json: Json = False,
    *,
    window: WindowArguments,
) -> None:
    """Extract the workload profile into a JSON file.

    Mix, sizes, arrivals, queue depth, offsets, reuse distances, phases.

    A figure that the source does not hold is null: a trace has no queue depth, a probe's
    histograms no order.

    \b
    kvdistill profile conv.parquet --tier nvme -o profile.json
    kvdistill profile run -o profile.json
    kvdistill profile probe/blocks.parquet --tier nvme0n1
    """
    import kvdistill
    from kvdistill.reports.jobs import profile_chapter

    with progress(f"profile {source.name}"):
        distilled = kvdistill.distil(source, tier, **window.as_keywords())
    distilled.save(output)
    log(f"wrote {output}")
    answer(distilled, lambda: Document("", "", [profile_chapter(distilled)]), as_json=json)


def fio(
    source: Annotated[Path | None, SOURCE] = None,
    output: Path = option("The folder for the jobs; made if missing.", Path("jobs"), "-o --output"),
    gen: str | None = option(
        "Instead of INPUT: options of `kvtrace gen`, which makes the trace in the folder of the"
        " jobs. Without --tier, its slowest tier is used."
    ),
    tier: Tier = None,
    *,
    options: JobOptions,
    window: WindowArguments,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write fio jobs.

    An exact replay, a statistical job, and a sampled one with the source's reuse distances.

    The head of each job lists its source, how to run it, the space that it needs and the features
    that it loses. Its expected figures at the source's response times are compared with the
    source before it runs: rates, queue depth, idle time, sizes, read share. With --check, fio runs
    the job, and closeness.json holds the measured differences.

    \b
    kvdistill fio conv.parquet --tier nvme -o jobs
    kvdistill fio --gen "--preset lmcache-disk --users 100 --duration 10m" -o jobs
    kvdistill fio conv.parquet --tier nvme -o jobs --mode replay --limit 60s --check
    kvdistill fio run -o jobs --mode stat
    cd jobs && fio prefill.fio && fio replay.fio
    """
    import kvdistill
    from kvdistill.reports.jobs import written_document

    check_new(output / PROFILE, is_forced=force)
    source, tier = _source(source, gen, tier, output)
    make_folder(output)
    options = replace(options, is_device=(output / options.target).is_block_device())
    with temporary_folder(".kvdistill-", output) as scratch:
        with progress(f"profile {source.name}"):
            distilled = kvdistill.distil(source, tier, **window.as_keywords(), scratch=scratch)
        with progress("write the jobs"):
            jobs = kvdistill.fio_jobs(distilled, options=options)
            for note in jobs.notes:
                log(note)
            written = jobs.write(output)
        if options.has_check or options.has_null_check:
            closeness = jobs.check(output / options.target, tell=log, folder=output)
            written = jobs.timed(closeness).write(output, closeness)
    answer(written, lambda: written_document(written, output), as_json=json)


def _source(
    source: Path | None, gen: str | None, tier: str | None, output: Path
) -> tuple[Path, str | None]:
    """Return the source and tier; `gen` makes the source first."""
    if (source is None) == (gen is None):
        raise ConfigError("name one INPUT, or give --gen with the options of `kvtrace gen`")
    if source is not None:
        return source, tier
    trace_path = output / "trace.parquet"
    output.mkdir(parents=True, exist_ok=True)
    generate(gen or "", trace_path)
    return trace_path, tier or open_table(trace_path, TRACE).meta.tiers[-1].name
