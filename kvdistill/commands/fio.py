"""The commands `profile` and `fio`: extract a profile, and write fio jobs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from kvdistill.commands import completion
from kvdistill.commands.options import SOURCE, Json, Source, Tier, WindowArguments
from kvdistill.jobs.job import PROFILE, JobOptions, make_folder
from kvdistill.jobs.simulated_source import simulate_source
from kvtrace.core.app import Force, log, option, progress
from kvtrace.core.document.document import Document
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import check_new
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


@dataclass(frozen=True, slots=True)
class SimulatedSource:
    """Options of `kvtrace gen` that stand for an INPUT: those that most users of an engine give."""

    gen: str | None = option(
        "Instead of INPUT: options of `kvtrace gen`, which makes the trace in the folder of the"
        " jobs. Without --tier, its slowest tier is used."
    )
    preset: str | None = option(
        "Instead of INPUT: the caching stack, as in --gen.",
        autocompletion=completion.presets,
    )
    model: str | None = option("Its model, as in --gen.", autocompletion=completion.models)
    tp: int | None = option("GPUs that share the model, as in --gen.", None, "--tp", min=1)
    users: int | None = option("Its users, as in --gen.", min=1)
    duration: str | None = option(
        "Its simulated time, as in --gen.  [default: the preset's, or as long as it takes until the"
        " drive is read]"
    )

    @property
    def has_default_duration(self) -> bool:
        """Whether users are simulated for as long as their preset says."""
        return self.gen is None and self.duration is None

    def command_line(self) -> str | None:
        """Return the options of `kvtrace gen`; None if none is given."""
        named_options = [
            word
            for name in ("preset", "model", "tp", "users", "duration")
            if (value := getattr(self, name)) is not None
            for word in (f"--{name}", str(value))
        ]
        if self.gen is None and not named_options:
            return None
        return " ".join([*filter(None, [self.gen]), shlex.join(named_options)]).strip()


def fio(
    source: Annotated[Path | None, SOURCE] = None,
    output: Path = option("The folder for the jobs; made if missing.", Path("jobs"), "-o --output"),
    tier: Tier = None,
    *,
    simulated: SimulatedSource,
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
    kvdistill fio --preset lmcache --users 100 --model 70b --tp 4 -o jobs
    kvdistill fio --gen "--preset lmcache-disk --request-rate 5/s --duration 10m" -o jobs
    kvdistill fio conv.parquet --tier nvme -o jobs --mode replay --limit 60s --check
    kvdistill fio run -o jobs --mode stat
    cd jobs && fio prefill.fio && fio replay.fio
    """
    import kvdistill
    from kvdistill.reports.jobs import written_document

    check_new(output / PROFILE, is_forced=force)
    source, tier = _source(source, simulated, tier, output)
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
    source: Path | None, simulated: SimulatedSource, tier: str | None, output: Path
) -> tuple[Path, str | None]:
    """Return the source and tier; a simulated source is made first."""
    command_line = simulated.command_line()
    if source is not None and command_line is None:
        return source, tier
    if source is not None or command_line is None:
        raise ConfigError(
            "name one INPUT, or say what to simulate: --preset, --model, --users and --duration, or"
            " --gen with any options of `kvtrace gen`"
        )
    output.mkdir(parents=True, exist_ok=True)
    return simulate_source(
        command_line, output, tier, may_last_longer=simulated.has_default_duration, tell=log
    )
