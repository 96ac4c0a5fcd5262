"""How long the GPU here takes for prompts and decode steps of Llama 3.1 8B, over what the serving
model says.

The layers are PyTorch's products and attention (cuDNN's or FlashAttention's) with random weights in
bf16: what an engine computes, without its scheduler, its pages and its sampling. Prompts, alone and
behind loaded tokens, and decode steps are a CUDA graph each. Needs PyTorch, 50 GB of GPU memory and
a GPU that `--gpu` knows; takes a minute.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from kvtrace.core.metadata import prefix_compute_ns
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.serving import GPUS, computing_times, step_ns
from kvtrace.llm.shape import bytes_per_token_per_rank

MODEL = "llama3.1-8b"
# meta-llama/Llama-3.1-8B config.json
LAYERS, HIDDEN, HEADS, KV_HEADS, WIDTH, INNER, VOCABULARY = 32, 4096, 32, 8, 128, 14336, 128256
RUNS = 3
# Loaded and computed tokens.
PROMPTS = (
    (0, 512),
    (0, 2048),
    (0, 8192),
    (0, 32768),
    (0, 65536),
    (28672, 4096),
    (61440, 4096),
    (8191, 1),
)
# Requests and the tokens of each.
STEPS = ((1, 96), (8, 96), (1, 8192), (8, 8192), (32, 8192), (128, 1024))


class Llama:
    """The layers, and a cache that holds `tokens`, of all requests together."""

    def __init__(self, torch: Any, tokens: int) -> None:
        """Take random weights."""
        self.torch = torch
        torch.manual_seed(0)

        def weight(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda") * rows**-0.5

        rows = (HEADS + 2 * KV_HEADS) * WIDTH
        self._layers = [
            (
                weight(HIDDEN, rows),
                weight(HIDDEN, HIDDEN),
                weight(HIDDEN, 2 * INNER),
                weight(INNER, HIDDEN),
            )
            for _ in range(LAYERS)
        ]
        self._embedding, self._head = weight(VOCABULARY, HIDDEN), weight(HIDDEN, VOCABULARY)
        self._ones = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")
        angles = torch.outer(
            torch.arange(131072), 5e5 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        ).cuda()
        self._cos, self._sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        self._cache = torch.zeros(
            LAYERS, 2, tokens * KV_HEADS * WIDTH, dtype=torch.bfloat16, device="cuda"
        )
        self._cache.normal_()

        def rotate(x: Any, cos: Any, sin: Any) -> Any:
            first, second = x.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        def gate(x: Any) -> Any:
            first, second = x.chunk(2, -1)
            return torch.nn.functional.silu(first) * second

        self._rotate, self._gate = (
            torch.compile(rotate, dynamic=True),
            torch.compile(gate, dynamic=True),
        )

    def attend(self, query: Any, key: Any, value: Any, *, is_cudnn: bool) -> Any:
        """Return what each query finds in the keys up to its own, of which the last belongs to the
        last query.
        """
        if is_cudnn:
            with self.torch.nn.attention.sdpa_kernel(
                self.torch.nn.attention.SDPBackend.CUDNN_ATTENTION
            ):
                return self.torch.nn.functional.scaled_dot_product_attention(
                    query, key, value, is_causal=True, enable_gqa=True
                )
        # This one, and not scaled_dot_product_attention, takes fewer queries than keys as the last
        # ones.
        flash = self.torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001 - an operator's name
        return flash(query, key, value, 0.0, is_causal=query.shape[2] > 1)[0]

    def run(self, tokens: Any, loaded: int, *, is_cudnn: bool = False) -> Any:
        """Return each request's next token, behind `loaded` and `tokens`, of shape (requests,
        tokens).
        """
        norm = self.torch.nn.functional.rms_norm
        requests, new = tokens.shape
        x = self._embedding[tokens]
        cos, sin = (table[loaded : loaded + new, None] for table in (self._cos, self._sin))
        for (qkv, out, up, down), cache in zip(self._layers, self._cache, strict=True):
            query, key, value = (norm(x, (HIDDEN,), self._ones) @ qkv).split(
                [HEADS * WIDTH, KV_HEADS * WIDTH, KV_HEADS * WIDTH], -1
            )
            query = self._rotate(query.view(requests, new, HEADS, WIDTH), cos, sin)
            key = self._rotate(key.view(requests, new, KV_HEADS, WIDTH), cos, sin)
            end = loaded + new
            keys, values = (
                side[: requests * end * KV_HEADS * WIDTH].view(requests, end, KV_HEADS, WIDTH)
                for side in cache
            )
            keys[:, loaded:], values[:, loaded:] = key, value.view(requests, new, KV_HEADS, WIDTH)
            found = self.attend(
                query.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                is_cudnn=is_cudnn,
            )
            x = x + found.transpose(1, 2).reshape(requests, new, HIDDEN) @ out
            x = x + self._gate(norm(x, (HIDDEN,), self._ones) @ up) @ down
        return (norm(x[:, -1], (HIDDEN,), self._ones) @ self._head).argmax(-1)


def check_attention(torch: Any, llama: Llama) -> None:
    """Hold the attention behind loaded tokens against the sum itself."""
    query, key, value = (
        torch.randn(1, heads, n, WIDTH, dtype=torch.bfloat16, device="cuda")
        for heads, n in ((HEADS, 64), (KV_HEADS, 192), (KV_HEADS, 192))
    )
    mask = torch.ones(64, 192, dtype=torch.bool, device="cuda").tril(128)
    scores = query.float() @ key.float().repeat_interleave(4, 1).mT * WIDTH**-0.5
    expected = scores.masked_fill(~mask, float("-inf")).softmax(
        -1
    ) @ value.float().repeat_interleave(4, 1)
    torch.testing.assert_close(
        llama.attend(query, key, value, is_cudnn=False).float(), expected, atol=2e-2, rtol=2e-2
    )


def graphed_ms(torch: Any, call: Callable[[], Any], times: int) -> float:
    """Return what one of so many `times` takes as a CUDA graph, between two events.

    The median of three rounds.
    """
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    found = []
    for _ in range(RUNS + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / times)
    return statistics.median(found[1:])


def main() -> None:
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return
    name = torch.cuda.get_device_name()
    gpu = next((known for known in GPUS if known.upper() in name.upper()), None)
    if gpu is None:
        print(f"skipped: no data sheet of {name}")
        return
    knobs = computing_times(gpu, find_model(MODEL), 1)
    token_bytes = bytes_per_token_per_rank(find_model(MODEL), 1)
    with torch.inference_mode():
        llama = Llama(
            torch, max(*(sum(p) for p in PROMPTS), *(n * (tokens + 1) for n, tokens in STEPS))
        )
        check_attention(torch, llama)
        print(f"{MODEL} on one {name}, PyTorch {torch.__version__}, bf16; modelled as --gpu {gpu}")
        print(
            "prompt: loaded  computed   FlashAttention-2      cuDNN   modelled  ratio of the faster"
        )
        for loaded, new in PROMPTS:
            tokens = torch.randint(VOCABULARY, (1, new), device="cuda")
            # cuDNN's takes fewer queries than keys as the first ones.
            kinds = (False, True) if not loaded else (False,)
            found = [
                graphed_ms(torch, partial(llama.run, tokens, loaded, is_cudnn=kind), 1)
                for kind in kinds
            ]
            first, last = (int(ns) / 1e6 for ns in prefix_compute_ns(knobs, [loaded, loaded + new]))
            ours = max(last - first, step_ns(knobs, 1, (loaded + new) * token_bytes) / 1e6)
            cudnn = "".join(f"{took:8.2f} ms" for took in found[1:]) or "-".rjust(11)
            print(
                f"{loaded:14,}{new:10,}{found[0]:16.2f} ms{cudnn}{ours:8.2f}"
                f" ms{min(found) / ours:7.2f}",
                flush=True,
            )
        print("step: requests    tokens   measured   modelled  ratio")
        for requests, tokens_each in STEPS:
            tokens = torch.randint(VOCABULARY, (requests, 1), device="cuda")
            took = graphed_ms(torch, partial(llama.run, tokens, tokens_each), 20)
            ours = step_ns(knobs, requests, requests * tokens_each * token_bytes) / 1e6
            print(
                f"{requests:14,}{tokens_each:10,}{took:9.2f} ms{ours:9.2f} ms{took / ours:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
