"""The objects of prompts, beside plain Python that names each chunk."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace as kt
from kvtrace.sim.chains import chunk_chains

BLOCK = 8


def requests_of(prompts: list[tuple[list[int], int]]) -> kt.Requests:
    """Return requests of so many blocks, the last of which lacks so many tokens."""
    return kt.Requests.from_polars(
        pl.DataFrame(
            {
                "arrival_ns": np.arange(len(prompts)),
                "input_tokens": [
                    max(0, BLOCK * len(blocks) - missing) for blocks, missing in prompts
                ],
                "output_tokens": [1] * len(prompts),
                "block_ids": [blocks for blocks, _ in prompts],
            }
        ),
        block_tokens=BLOCK,
    )


def name_chunks(requests: kt.Requests, chunk_tokens: int) -> list[list[int]]:
    """Return the chunks of each request, numbered by first appearance."""
    numbers: dict[tuple[int, int], int] = {}
    chains = []
    for row in requests.to_polars().iter_rows(named=True):
        chain = []
        for chunk in range(row["input_tokens"] // chunk_tokens):
            block, place = divmod(chunk * chunk_tokens, BLOCK)
            name = (row["block_ids"][block], place)
            chain.append(numbers.setdefault(name, len(numbers)))
        chains.append(chain)
    return chains


PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=4, unique=True), st.integers(0, BLOCK - 1)),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("batch", [1, 3, 1 << 18])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 4, 8])
@given(prompts=PROMPTS)
def test_chunks_are_numbered_by_first_appearance(
    chunk_tokens: int, batch: int, prompts: list[tuple[list[int], int]]
) -> None:
    requests = requests_of(prompts)
    with patch("kvtrace.requests.int_columns.BATCH_ITEMS", batch):
        chains = chunk_chains(requests, chunk_tokens)
    bounds = zip(chains.offsets[:-1].tolist(), chains.offsets[1:].tolist(), strict=True)
    named = name_chunks(requests, chunk_tokens)
    assert [chains.slots[first:end].tolist() for first, end in bounds] == named
    assert len(chains.tokens) == len({number for chain in named for number in chain})


def test_a_block_may_have_more_chunks_in_a_later_prompt() -> None:
    requests = requests_of([([1, 2], 6), ([1, 2], 0), ([1, 3], 0)])
    chains = chunk_chains(requests, 2)
    assert chains.slots.tolist() == [
        0,
        1,
        2,
        3,
        4,
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
    ]
