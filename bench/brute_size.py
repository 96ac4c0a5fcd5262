"""What `kvtrace size` answers beside a brute force: 400 points, each simulated whole, for price lists and targets.

And how many of the points that it estimates by samples lie in their interval.

    python bench/brute_size.py conversation.jsonl --source mooncake --preset lmcache-disk --model llama3.1-70b --tp 8

The answer must cost at most 1.02 times the cheapest point of the grid that reaches the target, and may cost less, for
it lies between the grid's points. It takes some minutes, and measures no time.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

SIDE = 20
MOST = 1.02
PRICES = ((4.0, 0.1), (20.0, 0.35), (3.0, 1.0), (1.0, 1.0), (0.1, 4.0))
"""Of a GiB of DRAM and of NVMe."""
SHARES = (0.5, 0.85, 0.97)
"""Targets, of the hit ratio without a bound."""


def size(*arguments: str) -> Any:
    """Return what `kvtrace size` prints as JSON."""
    command = [sys.executable, "-m", "kvtrace.cli", "size", *sys.argv[1:], *arguments, "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ladder(least: float, most: float) -> list[int]:
    """Return 0 and capacities that rise evenly from `least` to `most`, in per cent."""
    steps = SIDE - 2
    return [0, *(int(least * (most / least) ** (n / steps)) for n in range(steps + 1))]


def main() -> None:
    """Compare, print a line a question, and leave with 1 if an answer costs too much."""
    first = size("--target-hit", "1%", "--dram", "unlimited", "--nvme", "unlimited")
    ceiling, most = first["ceiling"]["hit_ratio"], first["ceiling"]["live_bytes"]
    axes = {"dram": ladder(most / 4000, most), "nvme": ladder(most / 300, 1.2 * most)}
    said = [part for role, of in axes.items() for part in (f"--{role}", ",".join(f"{n}B" if n else "0" for n in of))]
    points = size("--target-hit", "1%", "--sample", "1", *said)["points"]
    estimated = [
        (guess, point)
        for guess, point in zip(size("--target-hit", "1%", *said)["points"], points, strict=True)
        if guess["sampling_rate"] < 1
    ]
    outside = sum(abs(a["hit_ratio"] - b["hit_ratio"]) > a["hit_ratio_error"] for a, b in estimated)
    print(f"{outside} of {len(estimated)} points that samples estimate lie outside their interval")
    worst = 0.0
    for share, (dram, nvme) in itertools.product(SHARES, PRICES):
        target = f"{100 * share * ceiling:.2f}"
        prices = {"dram": dram / 2**30, "nvme": nvme / 2**30}
        costs = [
            sum(prices[role] * of for role, of in point["capacities"].items())
            for point in points
            if 100 * point["hit_ratio"] >= float(target)
        ]
        told = size("--target-hit", f"{target}%", "--price", f"dram={dram:g}/GiB", "--price", f"nvme={nvme:g}/GiB")
        price = told["chosen"]["price"]
        ratio = price / min(costs) if min(costs) else 1.0 + price
        worst = max(worst, ratio)
        print(f"target {target} %, {dram:g} and {nvme:g} a GiB: {ratio:.3f} of the brute force's; {told['answer']}")
    print(f"{len(points)} points; at most {worst:.3f} of the brute force's price ({MOST} is allowed)")
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
