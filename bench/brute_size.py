"""What `kvtrace size` answers beside a brute force, for price lists and targets.

And how many of the points that it estimates by samples lie in their interval, of a grid of 400.

    python bench/brute_size.py conversation.jsonl --source mooncake --preset lmcache-disk --model llama3.1-70b --tp 8

Of each answer 24 capacities of DRAM, none among them, are simulated whole with all the NVMe that 2
% less money buys beside them: none may reach the target. It takes a quarter of an hour, and
measures no time.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

SIDE, TRIED = 20, 24
MOST = 1.02
PRICES = ((4.0, 0.1), (20.0, 0.35), (3.0, 1.0), (1.0, 1.0), (0.1, 4.0))
"""Of a GiB of DRAM and of NVMe."""
SHARES = (0.5, 0.85, 0.97)
"""Targets, of the hit ratio without a bound."""


def size(*arguments: str) -> Any:
    """Return what `kvtrace size` prints as JSON."""
    command = [
        sys.executable,
        "-m",
        "kvtrace.cli",
        "size",
        *sys.argv[1:],
        *arguments,
        "--json",
        "--quiet",
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ladder(least: float, most: float, count: int) -> list[int]:
    """Return 0 and capacities that rise evenly from `least` to `most`, in per cent.

    So many in all.
    """
    steps = count - 2
    return [0, *(int(least * (most / least) ** (n / steps)) for n in range(steps + 1))]


def said(sizes: list[int]) -> str:
    """Return capacities as an option has them."""
    return ",".join(f"{size}B" if size else "0" for size in sizes)


def cheaper(price: float, prices: dict[str, float], target: str, most: int) -> list[str]:
    """Return the capacities that reach the target for 2 % less than `price`, of those that are
    tried.
    """
    found = []
    for dram in ladder(most / 4000, price / MOST / prices["dram"], TRIED):
        nvme = min(2 * most, int((price / MOST - dram * prices["dram"]) / prices["nvme"]))
        if nvme >= 0:
            asked = (
                "--dram",
                said([dram]),
                "--nvme",
                said([nvme]),
                "--target-hit",
                f"{target}%",
                "--sample",
                "1",
            )
            if size(*asked)["chosen"] is not None:
                found.append(f"{dram} B of DRAM and {nvme} B of NVMe")
    return found


def main() -> None:
    """Compare, print a line a question, and leave with 1 if an answer costs too much."""
    first = size("--target-hit", "1%", "--dram", "unlimited", "--nvme", "unlimited")
    ceiling, most = first["ceiling"]["hit_ratio"], first["ceiling"]["live_bytes"]
    axes = {"dram": ladder(most / 4000, most, SIDE), "nvme": ladder(most / 300, 1.2 * most, SIDE)}
    grid = [part for role, of in axes.items() for part in (f"--{role}", said(of))]
    guesses, points = (
        size("--target-hit", "1%", *how, *grid)["points"] for how in ((), ("--sample", "1"))
    )
    both = [(a, b) for a, b in zip(guesses, points, strict=True) if a["sampling_rate"] < 1]
    outside = sum(abs(a["hit_ratio"] - b["hit_ratio"]) > a["hit_ratio_error"] for a, b in both)
    print(f"{outside} of {len(both)} points that samples estimate lie outside their interval")
    dear = 0
    for share, (dram, nvme) in itertools.product(SHARES, PRICES):
        target, prices = (
            f"{100 * share * ceiling:.2f}",
            {"dram": dram / 2**30, "nvme": nvme / 2**30},
        )
        told = size(
            "--target-hit",
            f"{target}%",
            "--price",
            f"dram={dram:g}/GiB",
            "--price",
            f"nvme={nvme:g}/GiB",
        )
        price = told["chosen"]["price"]
        found = cheaper(price, prices, target, most) if price else []
        dear += bool(found)
        print(
            f"target {target} %, {dram:g} and {nvme:g} a GiB: {told['answer']};"
            f" {found or 'nothing'} is enough for less"
        )
    print(f"{dear} of {len(SHARES) * len(PRICES)} answers cost over {MOST} times another")
    sys.exit(dear > 0)


if __name__ == "__main__":
    main()
