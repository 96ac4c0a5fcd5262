"""How long a GPU takes to compute a prompt token and a decode step: a roofline of peak FLOPs and memory bandwidth.

Prefill is bound by arithmetic, 2 FLOPs a token for each parameter that is active. A decode step makes one token for
each request of the batch, and reads all weights once and each request's KV cache: it takes what that takes, or what
the FLOPs of all its tokens take, if that is longer. What is left out, and where it is from: docs/concepts/computing.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_count, format_duration
from kvtrace.model.shape import ModelShape, pieces

INSTANT: Final = "instant"
"""The GPU whose compute time is not modelled."""
FLOPS_SHARE, BANDWIDTH_SHARE = 0.5, 0.7
"""Of the peaks, what serving engines reach on long prompts and large batches: assumed, and said."""
EXAMPLE_TOKENS: Final = 8192
"""Of each request, where a decode step is shown as an example."""


COMPUTING: Final = ("prefill_ns_per_token", "decode_ns_per_token")
BATCH: Final = ("decode_active_ns", "decode_compute_ns", "decode_bandwidth")
"""The knobs of a preset that say how long computing takes; by BATCH a decode step depends on its batch."""


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
    """Return the knobs of a preset that say how long `model` computes on `ranks` of `gpu`; see sim/presets/preset.py.

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
    bytes_per_s = GPUS[gpu].bytes_per_s * BANDWIDTH_SHARE
    active = model.active_parameters or model.parameters
    compute_ns = max(1, math.ceil(2 * active / flops_per_s * NS_PER_S))

    def reading_ns(parameters: int) -> int:
        return max(1, math.ceil(parameters * model.weight_bytes / (bytes_per_s * ranks) * NS_PER_S))

    return {
        "prefill_ns_per_token": compute_ns,
        "decode_ns_per_token": reading_ns(model.parameters),
        "decode_active_ns": reading_ns(active) if active < model.parameters else 0,
        "decode_compute_ns": compute_ns,
        "decode_bandwidth": int(bytes_per_s),
    }


def step_ns(knobs: dict[str, Any], batch: int, kv_bytes: int) -> int:
    """Return how long a decode step takes that reads `kv_bytes` of the cache of `batch` requests on each rank."""
    weights: int = knobs["decode_ns_per_token"]
    if knobs["decode_active_ns"]:
        weights = min(weights, batch * knobs["decode_active_ns"])
    if knobs["decode_bandwidth"]:
        weights += kv_bytes * NS_PER_S // knobs["decode_bandwidth"]
    return max(weights, batch * int(knobs["decode_compute_ns"]))


def describe(
    gpu: str, ranks: int, model: ModelShape, knobs: dict[str, Any], expected: dict[str, int]
) -> dict[str, Any]:
    """Return the serving model as the metadata and the summary have it.

    `knobs` are those of the preset that say how long computing takes, `expected` what the roofline gave for them; those
    that differ were said by the preset or the user.
    """
    tokens, prefill_ns = EXAMPLE_TOKENS, knobs["prefill_ns_per_token"]
    kv_bytes = sum(
        min(tokens, p.window_tokens or tokens) * p.bytes_per_token + 2 * p.state_bytes for p in pieces(model, ranks)
    )
    examples = [{"batch": n, "tokens": tokens, "step_ns": step_ns(knobs, n, n * kv_bytes)} for n in (1, 32)]
    said = [name for name in COMPUTING + BATCH if (knobs[name] or 0) != expected.get(name, 0)]
    if COMPUTING[1] in said:
        # Who says how long a step takes has said that it does not depend on the batch.
        said = [name for name in said if name in COMPUTING or knobs[name]]
    return {
        "gpu": gpu,
        "tensor_parallel": ranks,
        **knobs,
        "prefill_tokens_per_s": round(NS_PER_S / prefill_ns) if prefill_ns else None,
        "decode_steps": examples if any(knobs[name] for name in BATCH) else None,
        "overridden": said,
        "source": GPUS[gpu].source if gpu in GPUS else None,
    }


def in_words(serving: dict[str, Any]) -> str:
    """Return one line that says how long computing takes, and where that is from."""
    prefill, step_ns, steps = (
        serving[name] for name in ("prefill_tokens_per_s", "decode_ns_per_token", "decode_steps")
    )
    if not prefill and not step_ns:
        return "computing is not modelled: requests come as fast as storage and users let them (--gpu instant)"
    said = f"prefill {format_count(prefill)} tokens/s" if prefill else "prefill takes no time"
    if prefill:
        said += ", one prompt at a time" if serving["prefill_in_turn"] else ", all prompts at once"
    if steps:
        alone, batch = steps
        said += (
            f"; decode step {format_duration(alone['step_ns'])} alone, {format_duration(batch['step_ns'])} in a batch "
            f"of {batch['batch']}, with {format_count(batch['tokens'])} tokens each"
        )
    else:
        said += f"; decode step {format_duration(step_ns)}, whatever the batch" if step_ns else "; decode takes no time"
    if serving["overridden"] or serving["source"] is None:
        return f"computing (as the preset or --set says): {said}"
    return (
        f"computing ({serving['gpu']} x {serving['tensor_parallel']}, {serving['source']}; roofline at "
        f"{FLOPS_SHARE:.0%} of its bf16 FLOPs and {BANDWIDTH_SHARE:.0%} of its bandwidth): {said}"
    )
