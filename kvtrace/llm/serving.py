"""Time of a GPU for prompt tokens and decode steps: a roofline of FLOPs and memory bandwidth.

    prefill time of a token = (2 FLOPs x active parameters + attention) / FLOPs per second
    attention = 2 FLOPs x (elements of a query and a value) x keys attended to, over heads, layers
    decode step of a batch = max(bytes of weights and of all KV caches / bandwidth,
                                 FLOPs of one token a request / FLOPs per second)

The shares of the peaks are calibrated on measured times.

Source: roofline model (Williams et al., CACM 2009); docs/concepts/computing.md lists omissions and
references.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from kvtrace.core.config import Bounds
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import prefix_compute_ns
from kvtrace.core.parameters import named, setting
from kvtrace.core.units import NS_PER_S, format_count, format_duration
from kvtrace.llm.shape import (
    Chunked,
    Compressed,
    CompressorState,
    Full,
    Indexer,
    IndexKeys,
    Latent,
    LatentWindow,
    ModelShape,
    Recurrent,
    pieces,
    share,
)

INSTANT: Final = "instant"
"""The GPU whose compute time is not modelled."""
FLOPS_SHARES: Final = {1: 0.70, 2: 0.63, 4: 0.58, 8: 0.52}
BANDWIDTH_SHARES: Final = {1: 0.70, 2: 0.60, 4: 0.54, 8: 0.50}
"""Shares of the peaks that prompts and decode steps reach, from so many tensor-parallel ranks on.

Calibrated on measured kernels, our own layers on an H200 and published figures of engines
(docs/concepts/computing.md). They fall with the ranks, whose all-reduces are not modelled apart.
"""
PREFILL_ERROR, DECODE_ERROR = 0.25, 0.30
"""The calibration's error: 90 % of the measured kernel times are within these shares of ours.

For dense models in bf16 on 1 to 8 ranks of a GPU in MEASURED_GPUS, prompts of 1,024 to 131,000
tokens, batches of 1 to 128.
"""
MEASURED_GPUS: Final = ("a100", "h100", "h200", "b200")
GPU_MEMORY_SHARE: Final = 0.9
"""Share of GPU memory for weights and cache: vLLM's default gpu_memory_utilization."""
EXAMPLE_TOKENS, LONG_TOKENS = 8192, 100_000
"""Lengths of the examples: context of a decode step, and long prompt."""
FS_PER_S: Final = 10**15

COMPUTING: Final = ("prefill_ns_per_token", "decode_ns_per_token")
ATTENTION: Final = "prefill_attention"
BATCH: Final = ("decode_active_ns", "decode_compute_ns", "decode_bandwidth", "step_tokens")
"""The knobs of a preset for compute time.

ATTENTION makes a prompt token depend on those before it. BATCH makes a decode step depend on its
batch, and on a prompt computed in the same step.
"""


class Attention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Compute time of attention in prefill, for the layers with one span of keys."""

    pair_fs: Annotated[int, Bounds(0, 10**12)]
    """Femtoseconds for each query and each key that it attends to."""
    window_tokens: Annotated[int, Bounds(0, 2**31 - 1)] = 0
    """Maximum keys that a query attends to; 0: all up to itself."""
    is_aligned: bool = False
    """Keys since the last multiple of `window_tokens`, not the last `window_tokens`."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator, by its maker's data sheet."""

    flops_per_s: float
    """Dense bf16, without sparsity."""
    bytes_per_s: float
    """Memory bandwidth."""
    memory_bytes: int
    """Memory by the data sheet, of which GB are GiB."""
    power_w: int
    """Maximum power by the data sheet."""
    step_tokens: int
    """Tokens of a step: vLLM's default max_num_batched_tokens, which depends on GPU memory."""
    source: str


GPUS: Final = {
    "a100": Accelerator(312e12, 2.039e12, 80 << 30, 400, 2048, "NVIDIA A100 80GB SXM data sheet"),
    "h100": Accelerator(989e12, 3.35e12, 80 << 30, 700, 8192, "NVIDIA H100 SXM data sheet"),
    "h200": Accelerator(989e12, 4.8e12, 141 << 30, 700, 8192, "NVIDIA H200 SXM data sheet"),
    "b200": Accelerator(
        2250e12, 8.0e12, 180 << 30, 1000, 16384, "NVIDIA HGX B200 data sheet, one of eight"
    ),
    "l40s": Accelerator(362e12, 0.864e12, 48 << 30, 350, 2048, "NVIDIA L40S data sheet"),
    "mi300x": Accelerator(1307e12, 5.3e12, 192 << 30, 750, 16384, "AMD Instinct MI300X data sheet"),
}


def computing_times(gpu: str, model: ModelShape, ranks: int) -> JsonObject:
    """Return the knobs of a preset for compute time of `model` on `ranks` of `gpu`.

    ConfigError for an unknown `gpu`, or a model with an unknown number of parameters.
    """
    if gpu == INSTANT:
        return {"prefill_ns_per_token": 0, "decode_ns_per_token": 0}
    if gpu not in GPUS:
        raise ConfigError(
            f"unknown GPU {gpu!r}; known are {', '.join(GPUS)}, and {INSTANT} for no compute time"
        )
    if not model.parameters:
        raise ConfigError(
            "the model's number of parameters is unknown, so compute time cannot be modelled: give"
            f" {setting('prefill_ns_per_token=…')} and {setting('decode_ns_per_token=…')}, or use"
            f" {named('gpu', INSTANT)}"
        )
    flops_per_s = GPUS[gpu].flops_per_s * reached_share(FLOPS_SHARES, ranks)
    bytes_per_s = GPUS[gpu].bytes_per_s * reached_share(BANDWIDTH_SHARES, ranks)
    active = model.active_parameters or model.parameters
    compute_ns = max(1, math.ceil(2 * active / (flops_per_s * ranks) * NS_PER_S))

    def reading_ns(parameters: int) -> int:
        return max(1, math.ceil(parameters * model.weight_bytes / (bytes_per_s * ranks) * NS_PER_S))

    pair_fs = FS_PER_S / flops_per_s
    attention = [
        Attention(math.ceil(flops * pair_fs), *span)
        for span, flops in attention_flops(model, ranks).items()
    ]
    return {
        "prefill_ns_per_token": compute_ns,
        ATTENTION: msgspec.to_builtins(attention),
        "decode_ns_per_token": reading_ns(model.parameters),
        "decode_active_ns": reading_ns(active) if active < model.parameters else 0,
        "decode_compute_ns": compute_ns,
        "decode_bandwidth": int(bytes_per_s),
        "step_tokens": GPUS[gpu].step_tokens,
    }


def reached_share(shares: dict[int, float], ranks: int) -> float:
    """Return the share of a peak that `ranks` tensor-parallel ranks reach."""
    return shares[max(count for count in shares if count <= ranks)]


def attention_flops(model: ModelShape, ranks: int) -> dict[tuple[int, bool], int]:
    """Return the attention FLOPs of a rank for each query and key, over its heads and layers.

    They are by span of the keys (see Attention). The result is empty if query heads are unknown, or
    the attention is sparse in a way that is not modelled. A latent is expanded to heads if all keys
    are attended to; keys picked by an indexer are attended to as latents. Every rank has the whole
    indexer.
    """
    states = (Recurrent, CompressorState)
    groups = [group for group in model.computed_as or model.groups if not isinstance(group, states)]
    top_tokens = next((group.top_tokens for group in groups if isinstance(group, Indexer)), 0)
    flops_by_span: dict[tuple[int, bool], int] = {}
    for group in groups:
        if isinstance(group, IndexKeys | Compressed | LatentWindow):
            return {}  # the number of attended keys is unknown
        span, width, heads = (0, False), 0, group.query_heads
        if isinstance(group, Indexer):
            width = group.index_dim
        elif isinstance(group, Latent) and top_tokens:
            span, width = (top_tokens, False), 2 * group.latent_dim + group.rope_dim
        elif isinstance(group, Latent):
            width = (
                group.nope_dim + group.rope_dim + group.value_dim
                if group.nope_dim and group.value_dim
                else 0
            )
        else:
            span = (
                (0, False)
                if isinstance(group, Full)
                else (group.window_tokens, isinstance(group, Chunked))
            )
            width = group.pair_elements
        if not (heads and width) or top_tokens is None:
            return {}
        heads = heads if isinstance(group, Indexer) else share(heads, ranks)
        flops_by_span[span] = flops_by_span.get(span, 0) + 2 * group.layers * heads * width
    return flops_by_span


def step_ns(knobs: JsonObject, batch: int, kv_bytes: int) -> int:
    """Return the time of a decode step of `batch` requests that reads `kv_bytes` on each rank."""
    weights: int = knobs["decode_ns_per_token"]
    if knobs["decode_active_ns"]:
        weights = min(weights, batch * knobs["decode_active_ns"])
    if knobs["decode_bandwidth"]:
        weights += kv_bytes * NS_PER_S // knobs["decode_bandwidth"]
    return max(weights, batch * int(knobs["decode_compute_ns"]))


def describe(
    gpu: str, ranks: int, model: ModelShape, knobs: JsonObject, expected: JsonObject
) -> JsonObject:
    """Return the serving model for metadata and summary.

    `knobs` are the compute knobs of the preset, `expected` those of the roofline; different ones
    were set by the preset or the user.
    """
    tokens, prompts = (
        EXAMPLE_TOKENS,
        [min(count, model.max_context_tokens) for count in (EXAMPLE_TOKENS, LONG_TOKENS)],
    )
    prefills = [
        {"tokens": count, "ns": int(ns)}
        for count, ns in zip(prompts, prefix_compute_ns(knobs, prompts), strict=True)
    ]
    kv_bytes = sum(
        min(tokens, piece.window_tokens or tokens) * piece.bytes_per_token + 2 * piece.state_bytes
        for piece in pieces(model, ranks)
    )
    examples = [
        {"batch": count, "tokens": tokens, "step_ns": step_ns(knobs, count, count * kv_bytes)}
        for count in (1, 32)
    ]
    overridden = [
        name
        for name in (*COMPUTING, ATTENTION, *BATCH)
        if (knobs[name] or 0) != (expected.get(name) or 0)
    ]
    # A time set by the user for tokens or steps is constant, so dependent knobs are implied.
    implied = (ATTENTION,) * (COMPUTING[0] in overridden) + BATCH * (COMPUTING[1] in overridden)
    overridden = [name for name in overridden if name not in implied or knobs[name]]
    attention = {ATTENTION: knobs[ATTENTION], "prefills": prefills} if knobs[ATTENTION] else {}
    return {
        "gpu": gpu,
        "tensor_parallel": ranks,
        **{name: value for name, value in knobs.items() if name != ATTENTION},
        **attention,
        "prefill_tokens_per_s": (
            round(prompts[0] * NS_PER_S / prefills[0]["ns"]) if prefills[0]["ns"] else None
        ),
        "decode_steps": examples if any(knobs[name] for name in BATCH) else None,
        "overridden": overridden,
        "source": GPUS[gpu].source if gpu in GPUS else None,
        "flops_share": reached_share(FLOPS_SHARES, ranks) if gpu in GPUS else None,
        "bandwidth_share": reached_share(BANDWIDTH_SHARES, ranks) if gpu in GPUS else None,
    }


def serving_text(serving: JsonObject) -> str:
    """Return one line on compute times and their source."""
    prefill, step_ns, steps = (
        serving[name] for name in ("prefill_tokens_per_s", "decode_ns_per_token", "decode_steps")
    )
    if not prefill and not step_ns:
        return "computing is not modelled (--gpu instant): requests are limited by storage and users only"
    sentence = f"prefill {format_count(prefill)} tokens/s" if prefill else "prefill takes no time"
    if ATTENTION in serving:
        short, long = serving["prefills"]
        sentence += f" at {format_count(short['tokens'])} tokens"
        if long != short:
            rate = format_count(round(long["tokens"] * NS_PER_S / long["ns"]))
            sentence += f", {rate} at {format_count(long['tokens'])}"
    elif prefill and not {COMPUTING[0], ATTENTION} & set(serving["overridden"]):
        sentence += (
            " (without attention: the model's query heads are unknown, or its attention is sparse)"
        )
    if prefill:
        sentence += (
            ", one prompt at a time" if serving["prefill_in_turn"] else ", all prompts at once"
        )
        if serving["prefill_in_turn"] and serving["step_tokens"]:
            sentence += (
                f" in steps of {format_count(serving['step_tokens'])} tokens, which decode"
                " waits for"
            )
        elif step_ns:
            sentence += ", without interference from decode"
    if steps:
        alone, batch = steps
        sentence += (
            f"; decode step {format_duration(alone['step_ns'])} alone,"
            f" {format_duration(batch['step_ns'])} in a batch of {batch['batch']}, with"
            f" {format_count(batch['tokens'])} tokens each"
        )
    else:
        sentence += (
            f"; decode step {format_duration(step_ns)}, whatever the batch"
            if step_ns
            else "; decode takes no time"
        )
    if serving["overridden"] or serving["source"] is None:
        return f"computing (set by the preset or --set): {sentence}"
    return (
        f"computing ({serving['gpu']} x {serving['tensor_parallel']}, {serving['source']}; roofline"
        f" at {serving['flops_share']:.0%} of its bf16 FLOPs and {serving['bandwidth_share']:.0%}"
        f" of its bandwidth, {calibration_text(serving['gpu'])}): {sentence}"
    )


def calibration_text(gpu: str) -> str:
    """Return how far the compute times of `gpu` are from measured ones."""
    if gpu not in MEASURED_GPUS:
        return "shares measured on other GPUs"
    return (
        f"within {PREFILL_ERROR:.0%} of measured prompts and {DECODE_ERROR:.0%} of measured steps"
    )
