"""How near kvreplay comes to s3dlio's own calls on an S3 server of this machine, and beside boto3,
in the same minute.

Sides alternate; printed are medians of five, and the medians of each round's ratios. Servers keep
objects in memory where there is a place for that. All have as many requests in flight and as many
bytes an object, in one process of one client; the server takes its part of the same processors, so
these are ratios, and no store's rates. Ours makes new data for each write and the others write the
same bytes again; ours reads into its buffers, s3dlio's get_many and boto3 into new memory. A server
that ends by itself is told of, with its last lines, and what it did not serve is left out. Takes
four minutes and 1 GiB of memory. Names of servers (seaweedfs, rclone) and sizes in MiB as arguments
restrict it: `rclone 8`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import figures
import numpy as np
from bench_replay import cpu_s, drive, plan_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from stores import BUCKET, KEY, SECRET, SERVERS, StoreEndedError

os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.s3_clients.address import Address
from kvreplay.tiers.s3_clients.store_client import Balance, StoreClient

RUNS, DEPTH = 5, 8
MIB = 1 << 20
MEMORY = Path("/dev/shm")  # noqa: S108 - what lies there is in memory
SIZES = {1: 64, 8: 24, 32: 8}
"""Objects a run, by their size in MiB."""


class Boto:
    """boto3 with as many threads as requests in flight."""

    def __init__(self, url: str) -> None:
        import boto3
        from botocore.config import Config

        config = Config(
            max_pool_connections=DEPTH, retries={"max_attempts": 1}, s3={"addressing_style": "path"}
        )
        self.client = boto3.client("s3", endpoint_url=url, config=config)
        self.pool = ThreadPoolExecutor(DEPTH)

    def put(self, items: list[tuple[str, bytes]]) -> None:
        """Put objects by their keys."""
        list(
            self.pool.map(
                lambda item: self.client.put_object(Bucket=BUCKET, Key=item[0], Body=item[1]), items
            )
        )

    def get(self, keys: list[str]) -> None:
        """Get objects, and drop them."""
        list(
            self.pool.map(
                lambda key: self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read(), keys
            )
        )


def boto(url: str) -> Boto | None:
    try:
        return Boto(url)
    except ImportError:
        return None


Timed = tuple[float, float]
"""Seconds that moving the bytes took, and of this process's processor time."""


def timed(run: Callable[[], Any]) -> Timed:
    started, before = time.monotonic(), cpu_s()
    run()
    return time.monotonic() - started, cpu_s() - before


def compare(server: str, url: str, mib: int) -> None:
    import s3dlio

    length, count = mib * MIB, SIZES[mib]
    target = f"s3://{BUCKET}/bench"
    tier = ObjectTier(
        "s3", target, StoreClient(Address.of("", target, [url]), Balance.ROUND_ROBIN, 0, 60)
    )
    tier.open(0)
    engine = choose(EngineName.AUTO, [tier], DEPTH, MIB)

    def ours(op: int) -> Timed:
        driven, _, cpu = drive(engine, tier, plan_of(op, np.arange(count), length, 1))
        return driven.wall_ns / 1e9, cpu

    data = np.random.default_rng(1).bytes(length)
    names = [f"{mib}-{i}" for i in range(count)]
    root = f"s3://{url.removeprefix('http://')}/{BUCKET}"
    theirs, beside = [f"{root}/theirs/{name}" for name in names], boto(url)
    sides: dict[str, dict[str, Callable[[], Timed]]] = {
        "put": {
            "ours": lambda: ours(WRITE),
            "s3dlio": lambda: timed(
                lambda: s3dlio.put_many([(uri, data) for uri in theirs], DEPTH)
            ),
        },
        "get": {
            "ours": lambda: ours(READ),
            "s3dlio": lambda: timed(lambda: s3dlio.get_many(theirs, DEPTH)),
        },
    }
    if beside is not None:
        sides["put"]["boto3"] = lambda: timed(
            lambda: beside.put([(f"boto/{name}", data) for name in names])
        )
        sides["get"]["boto3"] = lambda: timed(
            lambda: beside.get([f"boto/{name}" for name in names])
        )
    for op, of_op in sides.items():
        took: dict[str, list[float]] = {side: [] for side in of_op}
        cpu: dict[str, list[float]] = {side: [] for side in of_op}
        for turn in range(RUNS + 1):
            order = list(of_op) if turn % 2 else list(of_op)[::-1]
            for side in order:
                seconds, of_cpu = of_op[side]()
                # The first is for connections, and for what the server keeps.
                if turn:
                    took[side].append(seconds)
                    cpu[side].append(of_cpu)
        rates = {
            side: count * length / statistics.median(times) / 1e6 for side, times in took.items()
        }
        ratios = [
            theirs_s / ours_s for theirs_s, ours_s in zip(took["s3dlio"], took["ours"], strict=True)
        ]
        ms = {side: statistics.median(times) * 1e3 / (count * mib) for side, times in cpu.items()}
        shown = ", ".join(
            f"{side} {rate:,.0f} MB/s ({ms[side]:.2f} ms of CPU a MiB)"
            for side, rate in rates.items()
        )
        for side in took.keys() - {"ours"}:
            pairs = zip(took["ours"], took[side], strict=True)
            figures.record_comparison(
                f"{server}, {op} {mib} MiB, {DEPTH} in flight",
                "MB/s",
                side,
                [(count * length / a / 1e6, count * length / b / 1e6) for a, b in pairs],
                list(zip(cpu["ours"], cpu[side], strict=True)),
            )
        print(
            f"  {op} {mib} MiB x {count}: {shown}; ours / s3dlio {statistics.median(ratios):.2f}",
            flush=True,
        )
    tier.close()


def main() -> None:
    import s3dlio

    wanted = [word for word in sys.argv[1:] if word in SERVERS] or list(SERVERS)
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or list(SIZES)
    if len(wanted) > 1:
        # s3dlio goes on asking the first server that a process named for what it reads.
        for name in wanted:
            subprocess.run([sys.executable, __file__, name, *map(str, sizes)], check=True)
        return
    for name in wanted:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            try:
                with SERVERS[name](Path(folder)) as store:
                    os.environ["AWS_ENDPOINT_URL"] = store.url
                    s3dlio.create_bucket(f"s3://{store.url.removeprefix('http://')}/{BUCKET}")
                    print(f"{name}, {DEPTH} requests in flight, load {os.getloadavg()[0]:.1f}")
                    for mib in sizes:
                        compare(name, store.url, mib)
            except StoreEndedError as error:
                print(f"  {error}")


if __name__ == "__main__":
    main()
