"""Runs the benches that have a peer on a quiet machine, and writes docs/benchmarks.md.

All speeds, in one table.

Each bench alternates its sides in at least three rounds; the table has medians, and the least and
the most of the rounds' ratios. A bench begins only at a 1-minute load of --load-limit (0.5) or
less: before the first that is refused, or waited for with --wait; between two, what the last one
left is waited out. Figures taken with a higher limit, or while other programs used over a quarter
of a processor, are kept as of a busy machine, apart from the quiet ones, which they never replace.
Names of benches restrict it: `live study`. --official names kv-cache.py of mlcommons/storage, which
is no part of this repository, for the bench that has it as its peer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import figures
from figures import OUTPUT_VARIABLE, TINY

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import validate  # noqa: E402 - knows commit and machine, too

PAGE = ROOT / "docs" / "benchmarks.md"
QUIET_LOAD, QUIET_OTHERS = 0.5, 0.25
"""The 1-minute load that a bench may begin at, and the processors that others may use meanwhile."""
SETTLING_S, LOOK_S = 600, 5
"""How long what a bench left of the load is waited out, and between two looks."""
BENCHES = {
    "replay": "files, beside fio",
    "extents": "one I/O an operation in one file, beside fio",
    "files": "a file an object, beside fio",
    "drives": "two drives in memory, beside fio",
    "ram": "the tier in DRAM, beside memcpy",
    "drive_file": "cells of a drive file, beside fio",
    "live": "the live view, beside none",
    "probes": "the probes, beside none (root, libbpf, fio)",
    "mpi": "four ranks, beside one (mpi4py, mpirun)",
    "objects": "S3 on this machine, beside s3dlio and boto3",
    "study": "a study on two processors, beside one",
    "simulation": "hits of LRU, beside libcachesim",
    "distil": "53 M rows: a query beside DuckDB, and other commands",
    "capacity": "`size` and `plan` on a log of 12,031 requests, beside their targets",
    "fleet": "fleets of 1 to 1,000 nodes, beside their targets",
    "startup": "start of each command, and `kvtrace sim` beside kvcache-simulator",
    "long": "memory of a long replay, beside a short one's",
    "mlperf_spread": "an MLPerf option over repeats and seeds, beside the benchmark's own program",
    "mlperf_client": "an MLPerf option with fewer processors, beside all of them (root)",
}
WITH_OFFICIAL = "mlperf_spread"
"""The bench that takes --official."""
HEAD = """# Figures of speed, beside a peer

Written by `make bench-quiet`; nothing here is typed in. A row is of one run of a bench whose sides took turns, in at
least three rounds: medians of ours and of the peer's, the median of the rounds' ratios, and in brackets the least and
the most of them. Ratios are ours divided by the peer's; of processor time, less than 1 is less than the peer takes.
What a side does exactly is said at the top of the bench. Other machines give other figures; ratios travel better than
rates.
"""
COLUMNS = ("what", "ours", "peer", "its", "ratio", "processor time")

Stored = dict[str, Any]


def stored_at(page: Path) -> Path:
    """Return where the figures of a page are kept."""
    return page.with_suffix(".json")


def read(page: Path) -> Stored:
    """Return the figures that are kept, by bench: of quiet runs and of busy ones."""
    empty: Stored = {"quiet": {}, "busy": {}}
    path = stored_at(page)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(runs: Stored) -> list[str]:
    """Return a table for each bench of `runs`, with when and where it was measured."""
    lines = []
    for name, what in BENCHES.items():
        if name not in runs:
            continue
        run = runs[name]
        measured = (
            f"`{run['command']}`, {run['date']} at {run['commit']}, load {run['load']:.2f}, "
            f"others {run['others']:.2f} processors; {run['machine']}"
        )
        lines += [f"### {what}", "", measured, ""]
        for kept in (row for row in run["rows"] if "columns" in row):
            lines += [*figures.table(kept["columns"], kept["rows"]), "", kept["said"], ""]
        rows = []
        for row in (row for row in run["rows"] if "ratio" in row):
            cells = [
                row["what"],
                f"{number(row['ours'])} {row['unit']}",
                row["peer"],
                f"{number(row['theirs'])} {row['unit']}",
                (
                    f"**{row['ratio']:.2f}** ({row['least']:.2f} to {row['most']:.2f},"
                    f" {row['rounds']} rounds)"
                ),
                "" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}",
            ]
            rows.append(cells)
        if rows:
            lines += [*figures.table(COLUMNS, rows), ""]
    return lines[:-1]


def page_of(stored: Stored) -> str:
    """Return the page: quiet figures, what has none, and busy ones apart."""
    parts = [HEAD]
    if stored["quiet"]:
        parts += ["## On a quiet machine\n", "\n".join(table(stored["quiet"])) + "\n"]
    lacking = [name for name in BENCHES if name not in stored["quiet"]]
    if lacking:
        lines = [f"- {BENCHES[name]}: `bench/bench_{name}.py`" for name in lacking]
        parts += ["## Not measured on a quiet machine yet\n", "\n".join(lines) + "\n"]
    if stored["busy"]:
        said = (
            "These show that the benches run. Others used the machine meanwhile: do not quote them,"
            " and compare nothing with them.\n"
        )
        parts += ["## On a busy machine\n", said, "\n".join(table(stored["busy"])) + "\n"]
    return "\n".join(parts)


def write(page: Path, stored: Stored) -> None:
    stored_at(page).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    page.write_text(page_of(stored), encoding="utf-8")


def load() -> float:
    return os.getloadavg()[0]


def is_settled(limit: float, seconds: float) -> bool:
    """Wait until the load is at most `limit`, `seconds` at most; return whether it is."""
    end = time.monotonic() + seconds
    while load() > limit and time.monotonic() < end:
        time.sleep(LOOK_S)
    return load() <= limit


def others_s() -> float:
    """Return the user time, and the time that a host took away, of all processes but our children,
    so far.
    """
    user, nice, _system, _idle, _wait, _irq, _softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + steal) / os.sysconf("SC_CLK_TCK") - resource.getrusage(
        resource.RUSAGE_CHILDREN
    ).ru_utime


def command_of(name: str, official: Path | None) -> list[str]:
    """Return the arguments that a bench is run with."""
    return (
        ["--official", str(official.resolve())]
        if official is not None and name == WITH_OFFICIAL
        else []
    )


def run(name: str, arguments: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Run a bench, with what it prints.

    Return its figures, and how many processors others used meanwhile.
    """
    start, others = time.monotonic(), others_s()
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "figures"
        command = [sys.executable, str(ROOT / "bench" / f"bench_{name}.py"), *arguments]
        subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {OUTPUT_VARIABLE: str(kept)})
        lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return [json.loads(line) for line in lines], max(
        0.0, (others_s() - others) / (time.monotonic() - start)
    )


def main() -> int:
    """Run benches; return 1 where the machine is too busy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=", ".join(BENCHES))
    parser.add_argument("--load-limit", type=float, default=QUIET_LOAD)
    parser.add_argument(
        "--wait", type=float, default=0, metavar="MINUTES", help="wait so long for the load to fall"
    )
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    parser.add_argument(
        "--official", type=Path, metavar="kv-cache.py", help="beside our MLPerf option"
    )
    options = parser.parse_args()
    unknown = [name for name in options.benches if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]}: {', '.join(BENCHES)}")
    if TINY in os.environ and options.output == PAGE:
        parser.error(f"{TINY} is set: tiny runs measure nothing, and go to another page (-o)")
    stored, is_first = read(options.output), True
    for name in options.benches or BENCHES:
        if not is_settled(
            options.load_limit,
            options.wait * 60 if is_first else max(SETTLING_S, options.wait * 60),
        ):
            sys.stderr.write(
                f"the 1-minute load is {load():.2f}, over {options.load_limit:g}: figures would be"
                f" the neighbours'; not begun: {name}; wait with --wait MINUTES\n"
            )
            return 1
        is_first, before = False, load()
        arguments = command_of(name, options.official)
        rows, others = run(name, arguments)
        if not rows:
            print(f"{name}: no figure, it was skipped", flush=True)
            continue
        is_quiet = before <= QUIET_LOAD and others <= QUIET_OTHERS and TINY not in os.environ
        kind = "quiet" if is_quiet else "busy"
        stored[kind][name] = {
            "command": " ".join(
                [f"bench/bench_{name}.py", *(Path(word).name for word in arguments)]
            ),
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": validate.commit(),
            "machine": validate.machine(),
            "load": round(before, 2),
            "others": round(others, 2),
            "rows": rows,
        }
        if kind == "quiet":
            stored["busy"].pop(name, None)
        write(options.output, stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
