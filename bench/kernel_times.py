"""Times of prompts and decode steps by kernels that aiconfigurator measured, as a table.

tests/kvtrace/llm/kernel_times.csv holds them for the calibration of `--gpu` (docs/concepts/
computing.md). Run it with a Python that has aiconfigurator (PyPI, Apache-2.0):

    python bench/kernel_times.py > kernel_times.csv

Each time is the sum of the measured kernels of one forward pass in vLLM: products, attention,
all-reduces and what lies between. Takes some 15 minutes.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

GPUS = {"h100": "h100_sxm", "h200": "h200_sxm", "a100": "a100_sxm", "b200": "b200_sxm"}
MODELS = {
    "llama3.1-8b": ("meta-llama/Meta-Llama-3.1-8B", (1, 2)),
    "qwen3-32b": ("Qwen/Qwen3-32B", (1, 4)),
    "llama3.1-70b-instruct": ("meta-llama/Meta-Llama-3.1-70B", (4, 8)),
    "llama3.1-405b": ("meta-llama/Meta-Llama-3.1-405B", (8,)),
}
PROMPTS = ((1024, 0), (8192, 0), (32768, 0), (32768, 28672), (131000, 0))
"""Tokens, and how many of them are loaded."""
STEPS = ((1, 96), (8, 8192), (32, 8192), (128, 1024))
"""Requests of a batch, and the tokens of each."""
COLUMNS = ("gpu", "model", "ranks", "batch", "tokens", "loaded_tokens", "is_step", "ms")


def rows() -> Iterator[dict[str, Any]]:
    """Yield the row of each prompt and step; a model that does not fit a GPU has none."""
    cli_estimate = import_module("aiconfigurator.cli.api").cli_estimate

    cases = [(1, tokens, loaded, False) for tokens, loaded in PROMPTS]
    cases += [(batch, tokens, 0, True) for batch, tokens in STEPS]
    for (gpu, system), (model, (path, rank_counts)) in product(GPUS.items(), MODELS.items()):
        for ranks, (batch, tokens, loaded, is_step) in product(rank_counts, cases):
            try:
                estimate = cli_estimate(
                    path,
                    system,
                    mode="static_gen" if is_step else "static_ctx",
                    backend_name="vllm",
                    isl=tokens,
                    osl=2,
                    batch_size=batch,
                    tp_size=ranks,
                    prefix=loaded,
                )
            except Exception as error:  # noqa: BLE001 - the table says what could not be had
                print(f"{gpu} {model} x {ranks}: {error}", file=sys.stderr)
                continue
            ms = estimate.tpot if is_step else estimate.ttft
            values = (gpu, model, ranks, batch, tokens, loaded, int(is_step), f"{ms:.4g}")
            yield dict(zip(COLUMNS, values, strict=True))


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
