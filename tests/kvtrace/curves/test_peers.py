"""Hits that other simulators of KV caches count on Mooncake's traces.

kvcache-simulator 0.1.3 and AISimulate 0.13.0.dev202610270000000085, both from PyPI, were run once;
their counts are here.
"""

from __future__ import annotations

import json

import pytest
from conftest import TRACES, run_cli
from evictions import policy_hits

from kvtrace.curves.stack import optimal_uses
from kvtrace.requests import mooncake
from kvtrace.sim.chains import Chains, block_chains

pytestmark = pytest.mark.traces

CONVERSATION = TRACES / "mooncake_conversation.jsonl"
ARXIV = TRACES / "mooncake_arxiv_first1000.jsonl"
BLOCK_TOKENS = 512
CAPACITIES = [1600, 8000, 48_000]
HIT_TOKENS = {
    "fifo": [3_424_178, 11_009_313, 23_337_403],
    "lru": [3_505_658, 12_515_013, 25_475_956],
    "belady": [16_502_128, 26_967_412, 27_038_068],
}
"""Tokens of hits that kvcache-simulator counts in the last half of the requests."""
SHARES = {"fifo": [5.0, 16.2, 34.4], "lru": [5.2, 18.4, 37.5], "belady": [24.3, 39.7, 39.8]}
"""The same of all prompt tokens of that half, in per cent."""


@pytest.mark.parametrize("policy", HIT_TOKENS)
def test_hits_of_the_last_half_are_those_of_kvcache_simulator(policy):
    """It counts a partial last block by its tokens, where a block is 512 here."""
    requests = mooncake.read(CONVERSATION)
    chains = block_chains(requests)
    half = (len(chains.offsets) - 1) // 2
    if policy == "belady":
        hits = [uses.hits for uses in optimal_uses(chains, CAPACITIES)]
        before = [uses.hits for uses in optimal_uses(chains, CAPACITIES, until_request=half)]
    else:
        first = Chains(
            chains.offsets[: half + 1], chains.slots[: chains.offsets[half]], chains.tokens
        )
        hits, before = (policy_hits(part, CAPACITIES, policy) for part in (chains, first))
    tokens = int(requests.input_tokens[half:].sum())
    hit_tokens = [BLOCK_TOKENS * (all_ - first) for all_, first in zip(hits, before, strict=True)]
    assert [round(100 * count / tokens, 1) for count in hit_tokens] == SHARES[policy]
    # Partial last blocks that hit are a thousandth of all tokens at most.
    for ours, theirs in zip(hit_tokens, HIT_TOKENS[policy], strict=True):
        assert abs(ours - theirs) <= 0.003 * theirs


@pytest.mark.parametrize(("capacity", "hits"), [(1600, 5623), (8000, 7350)])
def test_hits_of_requests_apart_are_those_of_aisimulate(capacity, hits):
    """Requests 60 s apart, so that none waits for another: GPU blocks of 512 tokens alone."""
    options = ("--source", "mooncake", "--full-blocks", "--capacity-blocks", capacity, "--json")
    found = json.loads(run_cli("kvtrace", "sim", ARXIV, *options).stdout)
    assert [result["hits"] for result in found["results"]] == [hits]
