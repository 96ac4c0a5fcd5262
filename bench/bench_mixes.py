"""Whether known fio jobs come back.

Source, probe, distil, fio, probe, and both sides' figures at the device.

    python bench/bench_mixes.py [NAME ...] [--keep FOLDER] [--mode stat]

Each mix runs 15 s on a preallocated and written file of 4 GiB with `kvreplay probe` beside it;
`kvdistill fio --check` then makes jobs of what the probe saw and runs them likewise. `kvreplay`
replays the first seconds of the same block requests exactly. The mix runs once more after that:
what it then differs from itself is the machine's. Prints a Markdown table, with the load average
after each mix. Needs root, libbpf, fio and 20 GiB on FOLDER's or the temporary directory's disk;
two minutes a mix.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from kvdistill.jobs.closeness import (
    device_figures,
    figures_of,
    requested_stream,
    sampling_error,
)
from kvdistill.jobs.fio_replay import split_ios
from kvdistill.jobs.fio_run import direct_requests, run_observed
from kvdistill.jobs.fio_run import disk_of as disk_beneath
from kvdistill.jobs.verdicts import judge
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core.limit import Limit

SHARED = """[global]
filename=source.dat
size=4g
direct=1
ioengine=libaio
iomem_align=2m
time_based=1
runtime=15
"""
MIXES = {
    "K1 closed loop, two sizes": (
        "[a]\nrw=randrw\nrwmixread=70\nbssplit=64k/30:256k/70\niodepth=8\n"
    ),
    "K2 sequential, even rate": "[a]\nrw=write\nbs=128k\nrate_iops=200\n",
    "J1 1 MiB reads beside writes": (
        "[r]\nrw=randread\nbs=1m\nrate_iops=200\niodepth=8\n[w]\nrw=randwrite\nbs=256k\nrate_iops=100\niodepth=4\n"
    ),
    "zipf, sizes far apart": (
        "[a]\nrw=randread\nbssplit=16k/80:512k/20\nrandom_distribution=zipf:1.1\niodepth=4\n"
    ),
    "pareto, two directions, Poisson": (
        "[a]\nrw=randrw\nbs=16k\nrandom_distribution=pareto:0.2\niodepth=4\nrate_iops=600,400\nrate_process=poisson\n"
    ),
    "Poisson, one size": (
        "[a]\nrw=randread\nbs=64k\nrate_iops=500\nrate_process=poisson\niodepth=16\n"
    ),
    "bursts by thinktime": (
        "[a]\nrw=randread\nbs=32k\nthinktime=20ms\nthinktime_blocks=16\niodepth=4\n"
    ),
    "phases: writes, then reads": (
        "[w]\nrw=write\nbs=256k\niodepth=4\nruntime=6\n[r]\nstartdelay=7\nrw=randread\nbs=64k\niodepth=8\nruntime=8\n"
    ),
    "closed beside open loop": (
        "[c]\nrw=randread\nbs=64k\niodepth=4\n[o]\nrw=write\nbs=256k\nrate_iops=100\n"
    ),
    "sequential with random": "[a]\nrw=randread\npercentage_random=40\nbs=64k\niodepth=4\n",
}
FIGURES = {
    "size TV": ("size_tv", "{:.3f}"),
    "I/Os a second": ("ios_per_s", "{:,.0f}"),
    "read %": ("read_share", "{:.1%}"),
    "gap KS": ("gap_ks", "{:.3f}"),
    "in flight": ("mean_depth", "{:.3g}"),
    "p99": ("in_flight_p99", "{:.0f}"),
    "idle": ("idle_share", "{:.1%}"),
    "hot 10 %": ("hot10_share", "{:.3f}"),
    "reuse": ("reuse_p50_blocks", "{:,.0f}"),
}


def disk_of(place: Path) -> Path:
    """Return the disk beneath `place`, which must have one."""
    disk = disk_beneath(place)
    if disk is None:
        raise SystemExit(f"{place} is on no block device")
    return disk


def first_word(name: str) -> str:
    """Return what a mix is called for."""
    return name.partition(" ")[0].strip(",:").lower()


def prefill(folder: Path) -> None:
    """Write the source's file in full, unless it is there."""
    if (folder / "source.dat").exists():
        return
    command = (
        "fio --name=prefill --filename=source.dat --size=4g --rw=write --bs=1m --direct=1"
        " --ioengine=libaio"
    )
    subprocess.run(
        [*command.split(), "--iodepth=4", "--refill_buffers=1", "--end_fsync=1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def record(folder: Path, name: str, job: str) -> Path:
    """Run `job` with the probes beside it; return the folder of what they saw."""
    seen = folder / name
    if not (seen / "blocks.parquet").exists():
        (folder / f"{name}.fio").write_text(SHARED + job)
        found = run_observed(folder / f"{name}.fio", 120, disk=disk_beneath(folder), keep=seen)
        if found.reason is not None:
            raise SystemExit(found.reason)
    return seen


def replayed(folder: Path, name: str, seconds: float, scratch: Path) -> dict[str, Any]:
    """Replay the first `seconds` of what was seen with kvreplay.

    Return its figures against those seconds.
    """
    limit, run = Limit(span_ns=round(seconds * 1e9)), folder / f"{name}.replayed"
    if not (run / "blocks.parquet").exists():
        call("kvdistill", "import", "blocks", folder / name, "-o", folder / f"{name}.imported")
        call(
            "kvreplay", "run", folder / f"{name}.imported" / "trace.parquet", "--speed", "1", "--probes", "--limit",
            f"{seconds}s", "--tier", f"{disk_of(folder).name}={folder / 'replay.dat'}", "-o", run, "--force",
        )  # fmt: skip
    (scratch / "source").mkdir()
    source = distil_source(
        folder / name / "blocks.parquet", disk_of(folder).name, limit, scratch / "source"
    )
    seen, why = direct_requests(run / "blocks.parquet", disk_of(folder).name, scratch / "replayed")
    if seen is None:
        raise SystemExit(why)
    asked, came = (
        requested_stream(split_ios(ios_of(one), 1 << 31), by_instant=False)
        for one in (source, seen)
    )
    figures = figures_of("source", asked, profile=source.profile)
    found = device_figures("kvreplay", None, came, seen.profile, asked, has_gaps=True)
    passed = judge(found, figures)
    window = f"the first {seconds:g} s"
    return {"job": "kvreplay", "window": window} | to_builtins(
        {"source": figures, "fio": found, "verdicts": passed}
    )


def call(program: str, *arguments: object) -> None:
    """Run one of our programs."""
    command = [sys.executable, "-m", f"{program}.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def again(folder: Path, name: str, job: str, scratch: Path) -> dict[str, Any]:
    """Run `job` once more; return its figures against its first run."""
    seen = [distilled(record(folder, run, job), scratch / run) for run in (name, f"{name}.again")]
    source, stream = (
        requested_stream(split_ios(ios_of(one), 1 << 31), by_instant=False) for one in seen
    )
    found = device_figures("the mix again", None, stream, seen[1].profile, source, has_gaps=True)
    sampling = sampling_error(source, len(stream.us), 1 << 31)
    passed = judge(found, figures_of("source", source, profile=seen[0].profile), sampling)
    return {"job": "the mix again", "fio": to_builtins(found), "verdicts": to_builtins(passed)}


def ios_of(found: Distilled) -> Path:
    """Return where the I/Os of what was distilled are kept."""
    assert found.ios is not None, "none is kept of measurements without rows"
    return found.ios


def distilled(seen: Path, scratch: Path) -> Distilled:
    """Distil what the probes saw."""
    scratch.mkdir()
    return distil_source(seen, disk_of(seen).name, Limit(), scratch)


def compare(seen: Path, out: Path, modes: list[str]) -> list[dict[str, Any]]:
    """Return what `--check` finds of the jobs of `modes` made of `seen`."""
    disk = disk_of(seen)
    assert disk is not None
    command = [
        sys.executable, "-m", "kvdistill.cli", "fio", str(seen), "--tier", disk.name, "-o", str(out), "--force",
        "--check", "--check-duration", "20s", "--check-bytes", "64GiB", "--json", *(f"--mode={mode}" for mode in modes),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: list[dict[str, Any]] = json.loads(done.stdout)["closeness"]["comparisons"]
    return found


def rows(name: str, found: list[dict[str, Any]]) -> list[str]:
    """Return the table's lines of one mix.

    The source before what it is compared with, once a window.
    """
    lines, window = [], None
    for pair in found:
        if pair.get("window", window) != window:
            window = pair["window"]
            lines.append(row(f"**{name}**, {window}", pair["source"], ""))
        failed = [v["name"] for v in pair["verdicts"] if v["passes"] is False]
        lines.append(row(pair["job"], pair["fio"], ", ".join(failed) or "none"))
    return lines


def row(name: str, figures: dict[str, Any], failed: str) -> str:
    """Return one line of the table."""
    cells = [
        form.format(v) if (v := figures[field]) is not None else "-"
        for field, form in FIGURES.values()
    ]
    return f"| {' | '.join([name, *cells, failed])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", help="mixes by the first word of their names; all if none"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="keep sources and jobs in this folder, and use those that are there",
    )
    parser.add_argument("--mode", action="append", help="stat, replay, or kvreplay [default: all]")
    parser.add_argument(
        "--seconds", type=float, default=5, help="how much of a mix kvreplay replays [default: 5]"
    )
    wanted = parser.parse_args()
    print("| what | " + " | ".join(FIGURES) + " | missed |")
    print("|---" * (len(FIGURES) + 2) + "|")
    with tempfile.TemporaryDirectory(prefix="bench-mixes-") as scratch:
        folder = wanted.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, job in MIXES.items():
            short = first_word(name)
            if wanted.names and short not in [n.lower() for n in wanted.names]:
                continue
            prefill(folder)
            with tempfile.TemporaryDirectory(prefix="again-") as place:
                seen, modes = (
                    record(folder, short, job),
                    wanted.mode or ["stat", "replay", "kvreplay"],
                )
                of_fio = [mode for mode in modes if mode != "kvreplay"]
                found = compare(seen, folder / f"{short}.jobs", of_fio) if of_fio else []
                if "kvreplay" in modes:
                    found.append(replayed(folder, short, wanted.seconds, Path(place)))
                if of_fio:
                    found.append(again(folder, short, job, Path(place)))
            print("\n".join(rows(name, found)), flush=True)
            print(f"{name}: load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
