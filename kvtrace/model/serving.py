"""How long a GPU takes to compute a prompt token and to generate one: a roofline of peak FLOPs and memory bandwidth.

Prefill is bound by arithmetic, 2 FLOPs a token for each parameter that is active; a decode step by memory, which all
weights are read from once. Not modelled: attention's own FLOPs, reads of the cache, the size of the batch, traffic
between tensor-parallel ranks, and a wait for other prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_count, format_duration
from kvtrace.model.shape import ModelShape

INSTANT: Final = "instant"
"""The GPU that computes in no time."""
FLOPS_SHARE, BANDWIDTH_SHARE = 0.5, 0.7
"""Of the peaks, what serving engines reach on long prompts and large batches: assumed, and said."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator, by its maker's data sheet."""

    flops_per_s: float
    """Dense bf16, without sparsity."""
    bytes_per_s: float
    """Of its memory."""
    source: str


GPUS: Final = {
    "a100": Accelerator(312e12, 2.039e12, "NVIDIA A100 80GB SXM data sheet"),
    "h100": Accelerator(989e12, 3.35e12, "NVIDIA H100 SXM data sheet"),
    "h200": Accelerator(989e12, 4.8e12, "NVIDIA H200 SXM data sheet"),
    "b200": Accelerator(2250e12, 8.0e12, "NVIDIA HGX B200 data sheet, one of eight"),
    "l40s": Accelerator(362e12, 0.864e12, "NVIDIA L40S data sheet"),
    "mi300x": Accelerator(1307e12, 5.3e12, "AMD Instinct MI300X data sheet"),
}


def computing_times(gpu: str, model: ModelShape, ranks: int) -> dict[str, int]:
    """Return the knobs `prefill_ns_per_token` and `decode_ns_per_token` of `model` on `ranks` of `gpu`.

    ConfigError for an unknown `gpu`, or a model whose parameters are not known.
    """
    if gpu == INSTANT:
        return {"prefill_ns_per_token": 0, "decode_ns_per_token": 0}
    if gpu not in GPUS:
        raise ConfigError(f"unknown GPU {gpu!r}; known are {', '.join(GPUS)}, and {INSTANT} for no time at all")
    if not model.parameters:
        raise ConfigError(
            "how many parameters the model has is not known, and so not how long it computes: say it with --set "
            f"prefill_ns_per_token=… and --set decode_ns_per_token=…, or use --gpu {INSTANT}"
        )
    flops_per_s = GPUS[gpu].flops_per_s * FLOPS_SHARE * ranks
    bytes_per_s = GPUS[gpu].bytes_per_s * BANDWIDTH_SHARE * ranks
    flops = 2 * (model.active_parameters or model.parameters)
    return {
        "prefill_ns_per_token": max(1, math.ceil(flops / flops_per_s * NS_PER_S)),
        "decode_ns_per_token": max(1, math.ceil(model.parameters * model.weight_bytes / bytes_per_s * NS_PER_S)),
    }


def describe(gpu: str, ranks: int, prefill_ns: int, decode_ns: int, expected: dict[str, int]) -> dict[str, Any]:
    """Return the serving model as the metadata and the summary have it.

    `expected` are the knobs that the roofline gave; those that differ were said by the preset or the user.
    """
    times = {"prefill_ns_per_token": prefill_ns, "decode_ns_per_token": decode_ns}
    return {
        "gpu": gpu,
        "tensor_parallel": ranks,
        **times,
        "prefill_tokens_per_s": round(NS_PER_S / prefill_ns) if prefill_ns else None,
        "overridden": [name for name, value in times.items() if expected.get(name) != value],
        "source": GPUS[gpu].source if gpu in GPUS else None,
    }


def in_words(serving: dict[str, Any]) -> str:
    """Return one line that says how long computing takes, and where that is from."""
    prefill, decode = serving["prefill_tokens_per_s"], serving["decode_ns_per_token"]
    said = f"prefill {format_count(prefill)} tokens/s" if prefill else "prefill in no time"
    said += f", decode step {format_duration(decode)}" if decode else ", decode in no time"
    if not prefill and not decode:
        return "computing takes no time: requests come as fast as storage and users let them (--gpu instant)"
    if serving["overridden"] or serving["source"] is None:
        return f"computing (as the preset or --set says): {said}"
    return (
        f"computing ({serving['gpu']} x {serving['tensor_parallel']}, {serving['source']}; roofline at "
        f"{FLOPS_SHARE:.0%} of its bf16 FLOPs and {BANDWIDTH_SHARE:.0%} of its bandwidth, whatever the batch): {said}"
    )
