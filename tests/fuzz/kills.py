"""Kill commands at random moments, and look at what is left.

`python tests/fuzz/kills.py --kills 200`.

A case is made of a seed and its number: which command, and when it is killed (SIGKILL, of its whole
process group). Then: a file under its final name is the one that an undisturbed command writes,
byte for byte, where these bytes are reproducible; what `kvreplay recover` makes of a run holds only
rows of the trace, each once, with times in order; and the same command with --force ends well and
has all rows. Prints a line a failed case, with how to repeat it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from stores import BUCKET, KEY, SECRET, found_program, rclone  # noqa: E402 - beside the tests

from kvtrace.core.schema import OPS, TRACE  # noqa: E402
from kvtrace.core.tables import open_table  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

GEN = [
    "gen",
    "--preset",
    "lmcache-disk",
    "--model",
    "tiny-1b",
    "--users",
    "16",
    "--duration",
    "8s",
    "--set",
    "workload.think_time=1s",
    "--set",
    "tiers.gpu.capacity=16MiB",
    "--set",
    "tiers.cpu.capacity=32MiB",
    "--set",
    "tiers.nvme.capacity=256MiB",
    "--quiet",
    "-o",
]
MLPERF = ("kvreplay", "mlperf", "v3-8b", "--tier", "nvme=scratch")
MOST_S = 400


class FoundError(Exception):
    """A case that fails."""


@dataclass(frozen=True)
class Command:
    """A command in a folder of its own, which holds `t.parquet`; what it writes is below `out`."""

    argv: tuple[str, ...]
    is_reproducible: bool = False
    """Whether its files are the same bytes each time."""
    trace: str = ""
    """The trace that it makes for itself and replays until the clock ends it.

    Without, it replays all of `t.parquet`.
    """
    is_replay: bool = True
    """Whether it leaves operations; of others, only what is left behind is looked at."""
    force: tuple[str, ...] = ("--force",)
    """How it is told to replace its output."""
    code: int = 0
    """The exit code of an undisturbed run."""

    @property
    def makes_file(self) -> bool:
        """Whether it is given a file in `out`, a folder that must be there."""
        return any(word.startswith("out/") for word in self.argv)


COMMANDS = {
    "gen": Command(("kvtrace", *GEN, "out/made.parquet"), is_reproducible=True, is_replay=False),
    "fio": Command(
        ("kvdistill", "fio", "t.parquet", "--tier", "nvme", "-o", "out"), is_reproducible=True, is_replay=False
    ),
    "run": Command(("kvreplay", "run", "t.parquet", "--tier", "nvme=scratch", "--speed", "4", "-o", "out")),
    "trials": Command(("kvreplay", "run", "t.parquet", "--tier", "nvme=scratch", "--trials", "2", "-o", "out")),
    "sweep": Command(
        ("kvreplay", "sweep", "t.parquet", "--tier", "nvme=scratch", "--queue-depths", "1,4", "--window", "all", "-o", "out")
    ),
    "compare": Command(
        ("kvreplay", "compare", "t.parquet", "--tier", "nvme=scratch", "--against", "nvme=other", "--window", "all",
         "--trials", "2", "-o", "out")
    ),
    "size": Command(
        ("kvtrace", "size", "--users", "4", "--duration", "10s", "--model", "tiny-1b", "--preset", "lmcache-disk",
         "--target-hit", "20%", "-o", "out/size.html"),
        is_replay=False,
    ),
    "mlperf": Command(
        (*MLPERF, "--duration", "2s", "--trials", "2", "--capacity", "1GiB", "--break-rules", "-o", "out"),
        trace="out/trace.parquet",
    ),
    # So small a scorecard measures the drive and its first users, and then has no reads to show.
    "scorecard": Command(
        ("kvreplay", "scorecard", "scratch", "--size", "64MiB", "--window", "1s", "--presets", "lmcache-disk", "-o", "out"),
        is_replay=False, code=2,
    ),
    "report": Command(("kvdistill", "report", "t.parquet", "-o", "out/report.html"), is_replay=False),
    "sai3": Command(("kvdistill", "sai3", "t.parquet", "--tier", "nvme", "-o", "out"), is_replay=False, force=()),
    "warp": Command(("kvdistill", "warp", "t.parquet", "--tier", "nvme", "-o", "out"), is_replay=False, force=()),
    "profile": Command(("kvdistill", "profile", "t.parquet", "--tier", "nvme", "-o", "out/p.json"), is_replay=False),
    "import": Command(("kvdistill", "import", "fio-log", "j_lat.1.log", "-o", "out"), is_replay=False),
    "convert": Command(("kvtrace", "convert", "t.parquet", "out/t.csv.zst"), is_replay=False),
    "mlperf-csv": Command(("kvtrace", "convert", "t.parquet", "out/t.csv", "--to", "mlperf"), is_replay=False),
    "sql": Command(("kvdistill", "sql", "t.parquet", "SELECT op, count(*) FROM trace GROUP BY op"), is_replay=False, force=()),
    "s3": Command(("kvreplay", "run", "t.parquet", "--tier", f"nvme=s3://{BUCKET}/case", "--limit", "400", "-o", "out")),
}  # fmt: skip


Known = tuple[float, dict[str, str], dict[str, int]]
"""Of an undisturbed command: its seconds, its files by hash, and the rows of its runs."""


def start(command: Command, folder: Path, *extra: str) -> subprocess.Popen[bytes]:
    """Start `command` in `folder`, in a process group of its own."""
    program, *rest = command.argv
    said = (folder / "said").open("wb")
    argv = [sys.executable, "-m", f"{program}.cli", *rest, *extra]
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        argv,
        cwd=folder,
        stdout=said,
        stderr=said,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
    )


def finish(command: Command, folder: Path, *extra: str) -> float:
    """Run `command` to its end; return its seconds. FoundError: it fails."""
    began = time.monotonic()
    with start(command, folder, *extra) as process:
        if process.wait(MOST_S) != command.code:
            raise FoundError(
                f"left with {process.returncode}: {(folder / 'said').read_text(errors='replace')[-600:]}"
            )
    return time.monotonic() - began


def files(folder: Path) -> dict[str, str]:
    """Return the final files below `folder` with their hashes; not those that are written aside."""
    found = [
        path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".tmp")
    ]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def rows_of(path: Path, columns: tuple[str, ...], table: object) -> Iterator[dict[str, object]]:
    for batch in open_table(path, table).batches(columns):
        yield from batch.to_pylist()


def check_rows(
    ops: Path, trace: list[dict[str, object]], *, is_whole: bool, is_repeated: bool = False
) -> int:
    """Return how many rows the run's `ops` has.

    FoundError if one is not the trace's, or some are missing.
    """
    columns = ("row", "op", "tier", "object_id", "submitted_ns", "completed_ns", "bytes")
    seen = Counter()
    for row in rows_of(ops, columns, OPS):
        seen[row["row"]] += 1
        of = trace[row["row"]]
        moved = 0 if row["op"] == "delete" else of["length_bytes"]
        if any(row[name] != of[name] for name in ("op", "tier", "object_id")) or row[
            "bytes"
        ] not in (None, moved):
            raise FoundError(f"{ops}: row {row['row']} is {row}, in the trace {of}")
        if (
            None not in (row["submitted_ns"], row["completed_ns"])
            and row["completed_ns"] < row["submitted_ns"]
        ):
            raise FoundError(f"{ops}: row {row['row']} ends before it begins")
    if not is_repeated and any(count > 1 for count in seen.values()):
        raise FoundError(
            f"{ops}: rows come twice: {[row for row, count in seen.items() if count > 1][:5]}"
        )
    if is_whole and not seen:
        raise FoundError(f"{ops}: no rows")
    return sum(seen.values())


def trace_of(path: Path) -> list[dict[str, object]]:
    return list(rows_of(path, ("op", "tier", "object_id", "length_bytes"), TRACE))


def recovered(command: Command, folder: Path, trace: list[dict[str, object]]) -> list[int]:
    """Recover what a kill left in `folder`; return how many rows each run then has."""
    done = subprocess.run(
        [sys.executable, "-m", "kvreplay.cli", "recover", "out"], cwd=folder, capture_output=True, text=True, check=False,
        timeout=MOST_S,
    )  # fmt: skip
    if done.returncode not in (0, 2, 3) or "Traceback" in done.stderr:
        raise FoundError(f"recover left with {done.returncode}: {done.stderr[-600:]}")
    found = sorted((folder / "out").rglob("ops.parquet"))
    if found and command.trace:
        trace = trace_of(folder / command.trace)
    is_repeated = bool(command.trace)
    return [check_rows(ops, trace, is_whole=False, is_repeated=is_repeated) for ops in found]


def check(
    name: str,
    folder: Path,
    wanted: dict[str, str],
    trace: list[dict[str, object]],
    whole: dict[str, int],
) -> str:
    """Look at what a kill left in `folder`, then run the command again.

    Return what was seen, in a word.
    """
    command, out = COMMANDS[name], folder / "out"
    left = files(out) if out.exists() else {}
    word = "nothing" if not left else "all" if left.keys() >= wanted.keys() else "some"
    if command.is_reproducible:
        wrong = [path for path, digest in left.items() if wanted.get(path) not in (None, digest)]
        if wrong:
            raise FoundError(f"files are not what they are without a kill: {wrong}")
    elif command.is_replay and out.exists():
        rows = recovered(command, folder, trace)
        word = f"{sum(rows)} rows" if rows else word
    finish(command, folder, *command.force)
    check_nothing_stale(folder)
    if command.is_reproducible and files(out) != wanted:
        raise FoundError("the next run does not write the same files")
    if command.is_replay:
        check_replayed(command, folder, trace, whole)
    return word


def check_nothing_stale(folder: Path) -> None:
    """Check that no temporary file or folder is below `folder`, and nothing on its targets."""
    stale = [
        path for path in folder.rglob("*") if path.name.startswith(".") or path.parent.name == "tmp"
    ]
    if stale:
        raise FoundError(f"the next run leaves {stale[:3]}")
    for target in ("scratch", "other"):
        if left := [path.name for path in (folder / target).iterdir()]:
            raise FoundError(f"the next run leaves {left[:3]} on its target")


def check_replayed(
    command: Command, folder: Path, trace: list[dict[str, object]], whole: dict[str, int]
) -> None:
    """Check that the run in `folder` has all rows."""
    out = folder / "out"
    if command.trace:
        trace = trace_of(folder / command.trace)
    for ops in out.rglob("ops.parquet"):
        key, count = (
            str(ops.relative_to(out)),
            check_rows(ops, trace, is_whole=True, is_repeated=bool(command.trace)),
        )
        if not command.trace and whole.get(key, count) != count:
            raise FoundError(f"{key} of the next run has {count} rows, not {whole[key]}")


def undisturbed(command: Command, folder: Path, trace: list[dict[str, object]]) -> Known:
    """Run `command` to its end in `folder`."""
    took, out = finish(command, folder), folder / "out"
    rows = trace_of(folder / command.trace) if command.trace else trace
    whole = {
        str(path.relative_to(out)): check_rows(
            path, rows, is_whole=True, is_repeated=bool(command.trace)
        )
        for path in (out.rglob("ops.parquet") if command.is_replay else ())
    }
    return took, files(out) if out.exists() else {}, whole


def new_folder(at: Path, trace: Path) -> Path:
    """Return an empty folder with the trace, a target and what gen writes into."""
    at.mkdir()
    for part in ("scratch", "other", "out"):
        (at / part).mkdir()
    (at / "out").rmdir()
    for path in [*trace.parent.glob("t.*"), *trace.parent.glob("*.log")]:
        os.link(path, at / path.name)
    return at


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="of these, with commas")
    asked = parser.parse_args()
    names, failed, seen = asked.commands.split(","), 0, Counter()
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="kills-"))
        )
        if "s3" in names and found_program("rclone") is None:
            names.remove("s3")
            print("s3: left out, rclone is not installed")
        if "s3" in names:
            (place / "store").mkdir()
            store = stack.enter_context(rclone(place / "store"))
            os.environ |= {
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_ENDPOINT_URL": store.url,
            }
            os.environ |= {"AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        (place / "given").mkdir()
        finish(Command(("kvtrace", *GEN, "t.parquet")), place / "given")
        lines = (f"{i}, {1000 + i}, {i % 2}, 4096, {i * 4096}" for i in range(200_000))
        (place / "given" / "j_lat.1.log").write_text("\n".join(lines) + "\n", encoding="ascii")
        trace = trace_of(place / "given" / "t.parquet")
        known = {}
        for name in names:
            folder = new_folder(place / name, place / "given" / "t.parquet")
            if COMMANDS[name].makes_file:
                (folder / "out").mkdir()
            known[name] = undisturbed(COMMANDS[name], folder, trace)
            took, _files, whole = known[name]
            print(f"{name}: {took:.1f} s undisturbed, {sum(whole.values())} rows", flush=True)
        for number in [asked.case] if asked.case is not None else range(asked.kills):
            draw = random.Random(f"{asked.seed} {number}")
            name = draw.choice(names)
            took, wanted, whole = known[name]
            folder, after = (
                new_folder(place / f"case-{number}", place / "given" / "t.parquet"),
                draw.uniform(0.1, took),
            )
            if COMMANDS[name].makes_file:
                (folder / "out").mkdir()
            try:
                with start(COMMANDS[name], folder) as process:
                    time.sleep(after)
                    os.killpg(process.pid, signal.SIGKILL)
                word = check(name, folder, wanted, trace, whole)
                seen[name, "recovered" if "rows" in word else word] += 1
            except (FoundError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(
                    f"FAILED {name} killed after {after:.2f} s: {error} (--seed {asked.seed} --case {number})",
                    flush=True,
                )
            shutil.rmtree(folder)
    left = ", ".join(f"{name} {word} {count}" for (name, word), count in sorted(seen.items()))
    print(f"{sum(seen.values()) + failed} kills, {failed} failed; left: {left}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
