"""The shares of a GPU's peaks that `--gpu` models, held against a table of measured kernels.

bench/kernel_times.py writes the table: vLLM's kernels as aiconfigurator 0.12.0 measured them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import pytest

from kvtrace.core.metadata import prefix_compute_ns
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.serving import (
    BANDWIDTH_SHARES,
    DECODE_ERROR,
    FLOPS_SHARES,
    MEASURED_GPUS,
    PREFILL_ERROR,
    computing_times,
    step_ns,
)
from kvtrace.llm.shape import bytes_per_token_per_rank

TABLE = Path(__file__).with_name("kernel_times.csv")
COVERED = 0.9
"""Share of the measured times that the stated error covers."""


class Ratio(NamedTuple):
    gpu: str
    ranks: int
    is_step: bool
    measured_over_modelled: float


def modelled_ms(row: dict[str, str]) -> float:
    model, ranks = find_model(row["model"]), int(row["ranks"])
    batch, tokens, loaded = (int(row[name]) for name in ("batch", "tokens", "loaded_tokens"))
    knobs = computing_times(row["gpu"], model, ranks)
    if row["is_step"] == "1":
        kv_bytes = batch * tokens * bytes_per_token_per_rank(model, ranks)
        return step_ns(knobs, batch, kv_bytes) / 1e6
    first_ns, all_ns = prefix_compute_ns(knobs, [loaded, tokens])
    return float(all_ns - first_ns) / 1e6


@pytest.fixture(scope="module")
def ratios() -> list[Ratio]:
    with TABLE.open(newline="") as file:
        return [
            Ratio(
                row["gpu"],
                int(row["ranks"]),
                row["is_step"] == "1",
                float(row["ms"]) / modelled_ms(row),
            )
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize(("is_step", "error"), [(False, PREFILL_ERROR), (True, DECODE_ERROR)])
def test_measured_times_are_within_the_stated_error(ratios, is_step, error):
    of_kind = [row.measured_over_modelled for row in ratios if row.is_step == is_step]
    within = sum(abs(ratio - 1) <= error for ratio in of_kind)
    assert within >= COVERED * len(of_kind)
    assert geometric_mean(of_kind) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("ranks", FLOPS_SHARES)
@pytest.mark.parametrize("is_step", [False, True])
def test_no_number_of_ranks_is_off_in_one_direction(ratios, ranks, is_step):
    of_ranks = [
        row.measured_over_modelled for row in ratios if (row.ranks, row.is_step) == (ranks, is_step)
    ]
    assert geometric_mean(of_ranks) == pytest.approx(1, abs=0.15)


def test_every_gpu_that_counts_as_measured_is_in_the_table(ratios):
    assert {row.gpu for row in ratios} == set(MEASURED_GPUS)


def test_a_prompt_of_8192_tokens_of_8b_takes_what_kernels_do():
    """200 ms by measured kernels, 236 ms by our own layers; half of the peak made it 302 ms."""
    model = find_model("llama3.1-8b")
    (took_ns,) = prefix_compute_ns(computing_times("h100", model, 1), [8192])
    assert 200e6 <= took_ns <= 236e6


def test_shares_are_below_the_data_sheet_and_fall_with_ranks():
    for shares in (FLOPS_SHARES, BANDWIDTH_SHARES):
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
        assert all(0 < share < 1 for share in shares.values())
        # More ranks are never slower.
        rates = [ranks * share for ranks, share in shares.items()]
        assert rates == sorted(rates)
