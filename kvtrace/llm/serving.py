"""How long a GPU takes to compute a prompt token and a decode step.

A roofline of peak FLOPs and memory bandwidth.

Prefill is bound by arithmetic: 2 FLOPs a token for each parameter that is active, and in attention
2 for each element of a query and of a value, for each key that the query attends to. A decode step
makes one token for each request of the batch, and reads all weights once and each request's KV
cache: it takes what that takes, or what the FLOPs of all its tokens take, if that is longer. What
is left out, and where it is from: docs/concepts/computing.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from kvtrace.core.config import Bounds
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import first_tokens_ns
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
FLOPS_SHARE, BANDWIDTH_SHARE = 0.5, 0.7
"""Of the peaks, what serving engines reach on long prompts and large batches: assumed, and said."""
EXAMPLE_TOKENS, LONG_TOKENS = 8192, 100_000
"""Of each request, where a decode step is shown as an example; of prompts, where their speed is."""
FS_PER_S: Final = 10**15

COMPUTING: Final = ("prefill_ns_per_token", "decode_ns_per_token")
ATTENTION: Final = "prefill_attention"
BATCH: Final = ("decode_active_ns", "decode_compute_ns", "decode_bandwidth", "step_tokens")
"""The knobs of a preset that say how long computing takes.

By ATTENTION a token of a prompt depends on those before it, by BATCH a decode step on its batch,
and on the prompt that is computed meanwhile.
"""


class Attention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What attention adds to the computing of prompts, in the layers of one span."""

    pair_fs: Annotated[int, Bounds(0, 10**12)]
    """Femtoseconds for each query and each key that it attends to."""
    window_tokens: Annotated[int, Bounds(0, 2**31 - 1)] = 0
    """How many keys a query attends to, at most; 0: itself and all before it."""
    is_aligned: bool = False
    """Those since the last multiple of `window_tokens`, not the last so many."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator, by its maker's data sheet."""

    flops_per_s: float
    """Dense bf16, without sparsity."""
    bytes_per_s: float
    """Of its memory."""
    memory_bytes: int
    """As large as data sheets say, whose GB are GiB here."""
    step_tokens: int
    """Of a step, by default of vLLM's server (max_num_batched_tokens), which goes by the GPU's
    memory.
    """
    source: str


GPUS: Final = {
    "a100": Accelerator(312e12, 2.039e12, 80 << 30, 2048, "NVIDIA A100 80GB SXM data sheet"),
    "h100": Accelerator(989e12, 3.35e12, 80 << 30, 8192, "NVIDIA H100 SXM data sheet"),
    "h200": Accelerator(989e12, 4.8e12, 141 << 30, 8192, "NVIDIA H200 SXM data sheet"),
    "b200": Accelerator(
        2250e12, 8.0e12, 180 << 30, 16384, "NVIDIA HGX B200 data sheet, one of eight"
    ),
    "l40s": Accelerator(362e12, 0.864e12, 48 << 30, 2048, "NVIDIA L40S data sheet"),
    "mi300x": Accelerator(1307e12, 5.3e12, 192 << 30, 16384, "AMD Instinct MI300X data sheet"),
}


def computing_times(gpu: str, model: ModelShape, ranks: int) -> dict[str, Any]:
    """Return the knobs of a preset that say how long `model` computes on `ranks` of `gpu`.

    See sim/presets/preset.py.

    ConfigError for an unknown `gpu`, or a model whose parameters are not known.
    """
    if gpu == INSTANT:
        return {"prefill_ns_per_token": 0, "decode_ns_per_token": 0}
    if gpu not in GPUS:
        raise ConfigError(
            f"unknown GPU {gpu!r}; known are {', '.join(GPUS)}, and {INSTANT} for no time at all"
        )
    if not model.parameters:
        raise ConfigError(
            "the model's number of parameters is not known, so computing cannot be modelled: give"
            f" --set prefill_ns_per_token=… and --set decode_ns_per_token=…, or use --gpu {INSTANT}"
        )
    flops_per_s = GPUS[gpu].flops_per_s * FLOPS_SHARE * ranks
    bytes_per_s = GPUS[gpu].bytes_per_s * BANDWIDTH_SHARE
    active = model.active_parameters or model.parameters
    compute_ns = max(1, math.ceil(2 * active / flops_per_s * NS_PER_S))

    def reading_ns(parameters: int) -> int:
        return max(1, math.ceil(parameters * model.weight_bytes / (bytes_per_s * ranks) * NS_PER_S))

    pair_fs = FS_PER_S / (GPUS[gpu].flops_per_s * FLOPS_SHARE)
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


def attention_flops(model: ModelShape, ranks: int) -> dict[tuple[int, bool], int]:
    """Return the FLOPs that a rank does for each query and each key that it attends to, of all its
    heads and layers.

    By the span of these keys (see Attention); empty if not all query heads are known, or if the attention is of
    a sparse kind that is not modelled. A latent is
    expanded to heads where all keys are attended to; those that an indexer picks are attended to as
    they are, and every rank has all of the indexer.
    """
    states = (Recurrent, CompressorState)
    groups = [g for g in model.computed_as or model.groups if not isinstance(g, states)]
    top_tokens = next((g.top_tokens for g in groups if isinstance(g, Indexer)), 0)
    found: dict[tuple[int, bool], int] = {}
    for g in groups:
        if isinstance(g, IndexKeys | Compressed | LatentWindow):
            return {}  # How many of the keys are attended to is not known here.
        span, width, heads = (0, False), 0, g.query_heads
        if isinstance(g, Indexer):
            width = g.index_dim
        elif isinstance(g, Latent) and top_tokens:
            span, width = (top_tokens, False), 2 * g.latent_dim + g.rope_dim
        elif isinstance(g, Latent):
            width = g.nope_dim + g.rope_dim + g.value_dim if g.nope_dim and g.value_dim else 0
        else:
            span = (0, False) if isinstance(g, Full) else (g.window_tokens, isinstance(g, Chunked))
            width = g.pair_elements
        if not (heads and width) or top_tokens is None:
            return {}
        heads = heads if isinstance(g, Indexer) else share(heads, ranks)
        found[span] = found.get(span, 0) + 2 * g.layers * heads * width
    return found


def step_ns(knobs: dict[str, Any], batch: int, kv_bytes: int) -> int:
    """Return how long a decode step takes that reads `kv_bytes` of the cache of `batch` requests on
    each rank.
    """
    weights: int = knobs["decode_ns_per_token"]
    if knobs["decode_active_ns"]:
        weights = min(weights, batch * knobs["decode_active_ns"])
    if knobs["decode_bandwidth"]:
        weights += kv_bytes * NS_PER_S // knobs["decode_bandwidth"]
    return max(weights, batch * int(knobs["decode_compute_ns"]))


def describe(
    gpu: str, ranks: int, model: ModelShape, knobs: dict[str, Any], expected: dict[str, Any]
) -> dict[str, Any]:
    """Return the serving model as the metadata and the summary have it.

    `knobs` are those of the preset that say how long computing takes, `expected` what the roofline
    gave for them; those that differ were said by the preset or the user.
    """
    tokens, prompts = (
        EXAMPLE_TOKENS,
        [min(n, model.max_context_tokens) for n in (EXAMPLE_TOKENS, LONG_TOKENS)],
    )
    prefills = [
        {"tokens": n, "ns": int(ns)}
        for n, ns in zip(prompts, first_tokens_ns(knobs, prompts), strict=True)
    ]
    kv_bytes = sum(
        min(tokens, p.window_tokens or tokens) * p.bytes_per_token + 2 * p.state_bytes
        for p in pieces(model, ranks)
    )
    examples = [
        {"batch": n, "tokens": tokens, "step_ns": step_ns(knobs, n, n * kv_bytes)} for n in (1, 32)
    ]
    said = [
        name
        for name in (*COMPUTING, ATTENTION, *BATCH)
        if (knobs[name] or 0) != (expected.get(name) or 0)
    ]
    # Who says how long a token or a step takes has said that it depends on nothing else.
    implied = (ATTENTION,) * (COMPUTING[0] in said) + BATCH * (COMPUTING[1] in said)
    said = [name for name in said if name not in implied or knobs[name]]
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
        "overridden": said,
        "source": GPUS[gpu].source if gpu in GPUS else None,
    }


def in_words(serving: dict[str, Any]) -> str:
    """Return one line that says how long computing takes, and where that is from."""
    prefill, step_ns, steps = (
        serving[of] for of in ("prefill_tokens_per_s", "decode_ns_per_token", "decode_steps")
    )
    if not prefill and not step_ns:
        return (
            "computing is not modelled: requests come as fast as storage and users let them (--gpu"
            " instant)"
        )
    said = f"prefill {format_count(prefill)} tokens/s" if prefill else "prefill takes no time"
    if ATTENTION in serving:
        short, long = serving["prefills"]
        said += f" at {format_count(short['tokens'])} tokens"
        if long != short:
            rate = format_count(round(long["tokens"] * NS_PER_S / long["ns"]))
            said += f", {rate} at {format_count(long['tokens'])}"
    elif prefill and not {COMPUTING[0], ATTENTION} & set(serving["overridden"]):
        said += " (attention not counted: the model's query heads are not known, or its attention is sparse)"
    if prefill:
        said += ", one prompt at a time" if serving["prefill_in_turn"] else ", all prompts at once"
        if serving["prefill_in_turn"] and serving["step_tokens"]:
            said += (
                f" in steps of {format_count(serving['step_tokens'])} tokens, which answers"
                " wait for"
            )
        elif step_ns:
            said += ", as if no answers were generated meanwhile"
    if steps:
        alone, batch = steps
        said += (
            f"; decode step {format_duration(alone['step_ns'])} alone,"
            f" {format_duration(batch['step_ns'])} in a batch of {batch['batch']}, with"
            f" {format_count(batch['tokens'])} tokens each"
        )
    else:
        said += (
            f"; decode step {format_duration(step_ns)}, whatever the batch"
            if step_ns
            else "; decode takes no time"
        )
    if serving["overridden"] or serving["source"] is None:
        return f"computing (as the preset or --set says): {said}"
    return (
        f"computing ({serving['gpu']} x {serving['tensor_parallel']}, {serving['source']}; roofline"
        f" at {FLOPS_SHARE:.0%} of its bf16 FLOPs and {BANDWIDTH_SHARE:.0%} of its bandwidth):"
        f" {said}"
    )
