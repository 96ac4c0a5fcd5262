"""Replay random traces with random options on every backend, and look at what comes of each.

`python tests/fuzz/replays.py --plans 5000`.

A plan is made of a seed and its number: a trace of a few dozen rows, a backend, and options. It
must end, in time; a fault is one of our errors; a complete run has each row of its window, as the
trace has it, once; and nothing may be left on the target, or under a temporary name. Prints a line
a failed plan, with how to repeat it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [
    str(Path(__file__).parent),
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[1] / "support"),
    str(Path(__file__).parents[1] / "kvreplay" / "tiers"),
    str(Path(__file__).parents[2]),
]

from conftest import write_trace  # noqa: E402 - beside the tests
from object_runs import environment, in_store  # noqa: E402
from stores import BUCKET, SERVERS, found_program, stub  # noqa: E402
from test_backends import BACKENDS, Backend  # noqa: E402

from kvreplay.plan.replay_config import Config  # noqa: E402
from kvreplay.run.replay import Replay, replay  # noqa: E402
from kvtrace.core.errors import KvError  # noqa: E402
from kvtrace.core.metadata import TierFacts  # noqa: E402
from kvtrace.core.schema import OPS, TRACE  # noqa: E402
from kvtrace.core.tables import objects_path, open_table  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

HANG_S = 60
IO_BYTES = (4096, 16_384, 65_536)


class FoundError(Exception):
    """A plan that breaks a promise."""


class Hang(BaseException):
    """A plan that does not end."""


def draw_rows(draw: random.Random) -> list[tuple[Any, ...]]:
    """Return rows of a trace that makes sense: what is read or deleted was written, mostly."""
    lengths: dict[int, int] = {}
    rows: list[tuple[Any, ...]] = []
    ts_ns = 0
    for number in range(draw.choice((1, 5, 30, 120))):
        ts_ns += draw.choice((0, 0, 1000, 100_000, 2_000_000))
        object_id = draw.randrange(draw.choice((1, 4, 40)))
        length = draw.choice((0, 1, 4095, 4096, 4097, 65_536, 65_537, 200_000))
        op = draw.choice(("write", "read", "read", "delete"))
        offset = 0
        if op != "write" and object_id not in lengths and draw.random() < 0.9:
            op = "write"
        if op == "read" and object_id in lengths:
            length = lengths[object_id]
            if length > 1 and draw.random() < 0.3:
                offset = draw.randrange(length)
                length = draw.randrange(length - offset + 1)
        if op == "write":
            length = lengths.get(object_id, length) if draw.random() < 0.8 else length
            lengths[object_id] = max(length, lengths.get(object_id, 0))
        if op == "delete":
            length = lengths.pop(object_id, length)
        phase = {"write": "store", "read": "load", "delete": "evict"}[op]
        request = None if draw.random() < 0.2 else number // draw.choice((1, 3))
        stage = None if request is None else 0
        rows.append((ts_ns, op, 0, phase, object_id, offset, length, request, stage, 0))
    return rows


def draw_options(draw: random.Random, backend: Backend) -> dict[str, Any]:
    """Return options that the backend takes, and a few that it may refuse."""
    options: dict[str, Any] = dict(backend.options)
    options["io_bytes"] = draw.choice(IO_BYTES)
    options["queue_depth"] = draw.choice((None, 1, 2, 32))
    options["speed"] = draw.choice((None, None, 1.0, 100.0, 1e6))
    options["is_verified"] = backend.holds_objects and draw.random() < 0.5
    options["on_error"] = draw.choice(("stop", "continue"))
    options["warmup"] = draw.choice((None, None, "1", "3rows", "1ms"))
    options["limit"] = draw.choice((None, None, "3", "1ms", "100KiB"))
    options["window"] = draw.choice((None, None, None, "from:1ms+1s", "busiest:2ms"))
    options["runtime"] = draw.choice((None, None, None, None, "30ms"))
    options["submitters"] = draw.choice(("auto", "1"))
    return options


def check_run(folder: Path, trace: Path, *, is_complete: bool, is_repeated: bool) -> None:
    """Check the table of operations against the trace."""
    ops = [
        row
        for batch in open_table(folder / "ops.parquet", OPS).batches()
        for row in batch.to_pylist()
    ]
    traced = [row for batch in open_table(trace, TRACE).batches() for row in batch.to_pylist()]
    for op in ops:
        row = traced[op["row"]]
        if any(op[name] != row[name] for name in ("op", "tier", "object_id")):
            raise FoundError(f"operation {op} is not the trace's {row}")
        if op["completed_ns"] is not None and op["completed_ns"] < op["submitted_ns"]:
            raise FoundError(f"operation {op} ends before it begins")
    numbers = [op["row"] for op in ops]
    if not is_repeated and numbers != list(
        range(numbers[0], numbers[0] + len(numbers)) if numbers else []
    ):
        raise FoundError("rows of the window are missing, or come twice")
    if is_complete and any(op["outcome"] not in ("ok", "skipped") for op in ops):
        raise FoundError("a complete run has operations that failed")


def try_plan(
    seed: int, number: int, place: Path, url_of: Callable[[str], str], names: list[str]
) -> tuple[str, str]:
    """Do one plan in an empty folder; return its backend, and what came of it in a word."""
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(names)
    backend = BACKENDS[name]
    rows, options = draw_rows(draw), draw_options(draw, backend)
    trace = write_trace(place / "t.parquet", rows, tiers=[TierFacts(backend.tier, 1 << 30)])
    if draw.random() < 0.5 or "folders" in name:
        objects_path(trace).unlink()
    endpoints = (url_of(backend.server),) if backend.server else ()
    config = Config(
        tiers={backend.tier: backend.target(place)}, endpoints=endpoints, stall="20s", **options
    )
    try:
        done = replay(Replay(config, trace, place / "run", []))
    except KvError as error:
        if "\n" in str(error) or not str(error):
            raise FoundError(f"not one line: {error!r}") from None
        word = type(error).__name__
    else:
        word = "complete" if done.error is None else type(done.error).__name__
        check_run(
            place / "run",
            trace,
            is_complete=done.error is None,
            is_repeated=config.runtime is not None,
        )
    targets = [
        path
        for part in ("d", "a", "b")
        if (place / part).is_dir()
        for path in (place / part).iterdir()
    ]
    left = [*targets, *place.glob("space.dat"), *place.rglob(".*")]
    if left:
        raise FoundError(f"left behind: {[str(path) for path in left[:3]]}")
    return name, word


def ring(*_: object) -> None:
    raise Hang


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--plan", type=int, help="this one alone")
    asked = parser.parse_args()
    os.environ.update(environment())
    signal.signal(signal.SIGALRM, ring)
    seen, failed, started = Counter[tuple[str, str]](), 0, dict[str, str]()
    names = [name for name in BACKENDS if not name.endswith("seaweedfs")]
    if found_program("rclone") is None:
        names.remove("store, rclone")
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="replays-"))
        )

        def url_of(server: str) -> str:
            if server not in started:
                (place / server).mkdir()
                context = stub() if server == "stub" else SERVERS[server](place / server)
                started[server] = stack.enter_context(context).url
                if server != "stub":
                    in_store(started[server], f"s3dlio.create_bucket('s3://{BUCKET}')")
            return started[server]

        for number in range(asked.plans) if asked.plan is None else [asked.plan]:
            folder = place / "plan"
            folder.mkdir()
            signal.alarm(HANG_S)
            try:
                seen[try_plan(asked.seed, number, folder, url_of, names)] += 1
            except (Exception, Hang) as error:  # noqa: BLE001 - whatever it is, it is a finding
                failed += 1
                text = "no end" if isinstance(error, Hang) else traceback.format_exc().strip()
                print(
                    f"FAILED plan {number}: {text} (--seed {asked.seed} --plan {number})",
                    flush=True,
                )
            finally:
                signal.alarm(0)
            shutil.rmtree(folder)
            if number % 500 == 499:
                print(f"{number + 1} plans, {failed} failed", flush=True)
    for (name, word), count in sorted(seen.items()):
        print(f"  {name}: {word} {count}")
    print(f"{sum(seen.values()) + failed} plans, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
