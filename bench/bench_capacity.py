"""How long `kvtrace size` and `kvtrace plan` take on a log of 12,031 requests, in how much memory.

None has a peer; each is printed with its target. `bench/brute_size.py` compares what `size` answers
with a brute force. Takes some minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import figures
from bench_distil import measure

CONVERSATION = (
    Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake_conversation.jsonl"
)


class Limits(NamedTuple):
    """A command of kvtrace, and what it may take."""

    text: str
    most_s: float
    most_bytes: float


_PRICES = "--price dram=4/GiB --price nvme=0.1/GiB"
COMMANDS = {
    "size, vllm-fs, 70B, tp 4": Limits(
        "size {} --preset vllm-fs --model llama3.1-70b --tp 4 --target-hit 30%", 4, 500e6
    ),
    "size, vllm-fs, 70B, tp 8, with prices": Limits(
        f"size {{}} --preset vllm-fs --model llama3.1-70b --tp 8 --target-hit 30% {_PRICES}",
        4,
        500e6,
    ),
    "size, lmcache-disk, 8B": Limits(
        "size {} --preset lmcache-disk --model llama3.1-8b --target-hit 30%", 4, 500e6
    ),
    "plan, vllm-fs": Limits("plan {} --preset vllm-fs --target-hit 35%", 60, 2e9),
}


def main() -> None:
    if not CONVERSATION.is_file():
        print(f"skipped, there is no {CONVERSATION.name}")
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    rows = []
    for name, command in COMMANDS.items():
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            arguments = [argument.format(CONVERSATION) for argument in command.text.split()]
            if arguments[0] == "plan":
                arguments += ["-o", f"{folder}/plan"]
            taken = measure([sys.executable, "-m", "kvtrace.cli", *arguments])
        rows.append(figures.CommandCost(name, *taken, command.most_s, command.most_bytes))
    figures.record_costs(
        rows,
        "Whole processes, once each, on a log of 12,031 requests (mooncake_conversation.jsonl).",
    )


if __name__ == "__main__":
    main()
