"""Belady's optimum: by hand, against the best of all choices, and never below any policy."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from conftest import TRACES
from evictions import OF_OBJECTS
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.curves.stack import OPTIMAL, Uses, optimal_uses, policy_uses
from kvtrace.requests import mooncake
from kvtrace.sim.chains import Chains, block_chains
from kvtrace.sim.policies import Policy

TIMELESS = [policy for policy in OF_OBJECTS if policy is not Policy.TTL]


def chains_of(requests):
    """Return `requests`, lists of names, as chains of objects of one token."""
    names = {name: n for n, name in enumerate(dict.fromkeys(itertools.chain(*requests)))}
    slots = np.array([names[name] for request in requests for name in request], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(request) for request in requests])]).astype(
        np.int64
    )
    return Chains(offsets, slots, np.ones(len(names), np.int64))


# Each letter is a request of one object.
BY_HAND = [
    # c is used later than a and b, and so is not stored; nor is any of them again, for they are not
    # used again.
    ("abcabc", 2, 2, 2),
    # With room for 3, 4 is used later than 1, 2 and 3, and 5 later than all: neither is stored.
    ("123412512345", 3, 5, 3),
    ("aaaa", 1, 3, 1),
    ("abcd", 4, 0, 0),
    ("abab", 1, 1, 1),
]


@pytest.mark.parametrize(("references", "capacity", "hits", "inserts"), BY_HAND)
def test_by_hand(references, capacity, hits, inserts):
    found = optimal_uses(chains_of(list(references)), [capacity])[0]
    assert found.hits == hits == best(references, capacity)
    assert found.inserts <= len(references) - hits
    assert inserts == found.inserts


def best(references, capacity):
    """Return the most references that any choice of what to store and what to give up can find."""

    @cache
    def most(at, there):
        if at == len(references):
            return 0
        name = references[at]
        if name in there:
            return 1 + most(at + 1, there)
        choices = [there]
        choices += (
            [there | {name}] if len(there) < capacity else [there - {old} | {name} for old in there]
        )
        return max(most(at + 1, choice) for choice in choices)

    return most(0, frozenset())


@settings(max_examples=100, deadline=None)
@given(st.text("abcde", min_size=1, max_size=14), st.integers(1, 4))
def test_it_equals_the_best_of_all_choices(references, capacity):
    assert optimal_uses(chains_of(list(references)), [capacity])[0].hits == best(
        references, capacity
    )


@st.composite
def prompts(draw):
    """Return prompts as chains of prefixes: what follows a prefix is named by it."""
    found = draw(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)
    )
    return [[tuple(words[: n + 1]) for n in range(len(words))] for words in found]


@settings(max_examples=80, deadline=None)
@given(prompts(), st.integers(1, 30))
def test_no_policy_exceeds_it(requests, capacity):
    chains = chains_of(requests)
    optimum = optimal_uses(chains, [capacity])[0]
    for policy in TIMELESS:
        assert policy_uses(chains, [capacity], policy)[0].hits <= optimum.hits, policy


def test_without_bounds_all_that_is_used_again_is_found():
    chains = chains_of([["a"], ["a", "b"], ["c"], ["a", "b"]])
    assert optimal_uses(chains, [None]) == [Uses(hits=3, inserts=2)]
    assert policy_uses(chains, [None], OPTIMAL) == [Uses(hits=3, inserts=2)]
    with pytest.raises(ValueError, match="one size"):
        policy_uses(chains, [1], OPTIMAL, sizes=np.ones(3, np.int64))


def naive(chain, capacity):
    """Return Belady's hits in plain Python: the next use is looked for at each reference."""
    uses, there, hits = {}, set(), 0
    for at, name in enumerate(chain):
        uses.setdefault(name, []).append(at)
    for name in chain:
        uses[name].pop(0)
        hits += name in there
        there.add(name)
        there = {n for n in there if uses[n]}
        if len(there) > capacity:
            there.remove(max(there, key=lambda n: uses[n][0]))
    return hits


@pytest.mark.full
@pytest.mark.traces
def test_a_real_trace():
    requests = mooncake.read(TRACES / "mooncake_arxiv_first1000.jsonl")
    chains = block_chains(requests)
    capacities = [100, 1000, 5000]
    found = [uses.hits for uses in optimal_uses(chains, capacities)]
    assert found == [naive(chains.slots.tolist(), capacity) for capacity in capacities]
