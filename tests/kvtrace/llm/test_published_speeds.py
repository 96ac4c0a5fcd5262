"""Published times to the first token and of decode steps, held against the serving model.

Docs/concepts/computing.md.

Each as its page gives it, on GPUs that we know by a data sheet. `pytest -s` prints the table.
"""

from __future__ import annotations

from statistics import geometric_mean
from typing import NamedTuple

import pytest

from kvtrace.core.metadata import prefix_compute_ns
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.serving import computing_times, step_ns
from kvtrace.llm.shape import bytes_per_token_per_rank

NVL32 = (
    "developer.nvidia.com/blog/low-latency-inference-chapter-2-blackwell-is-coming-nvidia-gh200-nvl32-with-nvlink-switch"
    "-gives-signs-of-big-leap-in-time-to-first-token-performance"
)
RING = "arXiv:2411.01783, abstract"
TRTLLM = (
    "github.com/NVIDIA/TensorRT-LLM, docs/source/performance.md at 138f96d: first token latency,"
    " batch 1"
)
LMDEPLOY = "github.com/InternLM/lmdeploy, docs/en/benchmark/a100_fp16.md at 3e391df"
SGLANG = (
    "lmsys.org/blog/2025-05-05-large-scale-ep: 52.3k input tokens/s a node of 8, prompts of 2,000"
)
GB200 = (
    "lmsys.org/blog/2025-09-25-gb200-part-2: 18,471 input tokens/s a GPU, prompts of 2,000, bf16"
    " attention"
)
VLLM = (
    "buildkite.com/vllm/performance-benchmark/builds/9515: latency tests, 32 tokens in and 128 out,"
    " over 128"
)


class Prompt(NamedTuple):
    model: str
    gpu: str
    ranks: int
    tokens: int
    measured_s: float
    source: str


class Step(NamedTuple):
    model: str
    gpu: str
    ranks: int
    batch: int
    tokens: int
    measured_ms: float
    source: str


PROMPTS = [
    Prompt("llama3.1-405b", "h200", 32, 32_768, 1.6, NVL32),
    Prompt("llama3.1-405b", "h200", 32, 122_880, 7.5, NVL32),
    Prompt("llama3.1-70b-instruct", "h200", 32, 32_768, 0.472, NVL32),
    Prompt("llama3.1-405b", "h100", 128, 131_072, 3.8, RING),
    Prompt("llama3.1-405b", "h100", 128, 1_000_000, 77, RING),
    Prompt("llama2-7b", "a100", 1, 2048, 0.133, TRTLLM),
    Prompt("llama3.1-70b-instruct", "a100", 4, 2048, 0.377, TRTLLM),  # Llama 2's, of the same shape
    Prompt("llama2-7b", "a100", 1, 2048, 0.139, LMDEPLOY),
    Prompt("llama3.1-70b-instruct", "a100", 4, 2048, 0.402, LMDEPLOY),
    Prompt("deepseek-v3", "h100", 8, 2000, 2000 / 52_300, SGLANG),
    Prompt("deepseek-v3", "b200", 1, 2000, 2000 / 18_471, GB200),
    Prompt("llama3.1-70b-instruct", "h100", 4, 2048, 0.109, TRTLLM + "; fp8"),
    Prompt("llama2-7b", "h100", 1, 2048, 0.036, TRTLLM + "; fp8"),
]
STEPS = [
    Step("llama3.1-8b", "h200", 1, 8, 96, 833.421 / 128, VLLM),
    Step("mixtral-8x7b", "h200", 2, 8, 96, 1917.44 / 128, VLLM),
    Step("llama2-7b", "a100", 1, 1, 1152, 1000 / 98.92, LMDEPLOY),
    Step("llama2-7b", "a100", 1, 16, 1152, 1000 * 16 / 1010.62, LMDEPLOY),
    Step("llama3.1-70b-instruct", "a100", 4, 1, 1152, 1000 / 32.38, LMDEPLOY),
    Step("llama3.1-70b-instruct", "a100", 4, 16, 1152, 1000 * 16 / 482.99, LMDEPLOY),
    Step("llama3.1-70b-instruct", "h200", 4, 8, 96, 2077.53 / 128, VLLM),
]
OUTSIDE = [
    # fp8 on a GPU that has twice the FLOPs for it, which is not modelled.
    (Prompt("llama2-7b", "l40s", 1, 2048, 0.073, TRTLLM + "; fp8"), 0.64),
]


def ratio(row: Prompt | Step) -> float:
    """Return what was measured over what the model says."""
    model = find_model(row.model)
    knobs = computing_times(row.gpu, model, row.ranks)
    if isinstance(row, Prompt):
        ours, measured = prefix_compute_ns(knobs, [row.tokens])[0] / 1e9, row.measured_s
    else:
        kv_bytes = row.batch * row.tokens * bytes_per_token_per_rank(model, row.ranks)
        ours, measured = step_ns(knobs, row.batch, kv_bytes) / 1e6, row.measured_ms
    said = (
        f"{row.model} {row.gpu} x {row.ranks}, {row.tokens:,} tokens, batch"
        f" {getattr(row, 'batch', 1)}"
    )
    print(f"{said}: measured {measured:.4g}, ours {ours:.4g}, {measured / ours:.2f} ({row.source})")  # noqa: T201 - the table
    return measured / ours


@pytest.mark.parametrize(
    "row", [*PROMPTS, *STEPS], ids=lambda row: f"{row.model}-{row.gpu}-{row.ranks}-{row.tokens}"
)
def test_a_published_speed_is_within_one_and_a_half_times_ours(row):
    assert 1 / 1.5 <= ratio(row) <= 1.5


@pytest.mark.parametrize(("row", "expected"), OUTSIDE, ids=lambda row: getattr(row, "model", None))
def test_those_outside_are_outside_as_the_page_says(row, expected):
    assert ratio(row) == pytest.approx(expected, abs=0.01)


def test_published_speeds_are_those_modelled_on_average():
    assert geometric_mean(map(ratio, PROMPTS)) == pytest.approx(1, abs=0.05)
    assert geometric_mean(map(ratio, STEPS)) == pytest.approx(1.05, abs=0.05)
