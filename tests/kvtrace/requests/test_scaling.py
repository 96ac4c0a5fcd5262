"""--scale.

Copies of a file over each other; what they share, and when they come, worked out by hand.
"""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from conftest import run_cli
from hypothesis import given
from hypothesis import strategies as st
from phrases import shows

from kvtrace.core.errors import ConfigError
from kvtrace.requests.requests import Requests, Waits
from kvtrace.requests.reshape import superpose

CHAINS = [[10, 11], [10, 12, 13], [10, 11, 14], [20, 21]]
"""References: 10 three times, 11 twice, the others once; ten in all."""


class Shifts:
    """What is drawn, said in advance: shares of the most."""

    def __init__(self, *shares):
        self.shares = shares

    def random(self, count):
        assert count == len(self.shares)
        return np.array(self.shares)


def requests_of(chains=CHAINS, arrivals=(0, 10, 10, 30), **more):
    lengths = [len(chain) for chain in chains]
    return Requests(
        np.array(arrivals), 16 * np.array(lengths), np.arange(len(chains)), np.cumsum([0, *lengths]),
        np.array([block for chain in chains for block in chain], dtype=np.int64), 16, {"kind": "made"}, (), **more,
    )  # fmt: skip


def chains_of(found):
    return [found.block_ids[a:b].tolist() for a, b in pairwise(found.block_offsets)]


def test_two_copies_by_hand():
    # The second comes 5 ns later. A fifth of ten references is two: 10 has three, so that nothing
    # is common.
    found = superpose(requests_of(), 2, 0.2, 10, Shifts(0.5))
    assert found.arrival_ns.tolist() == [0, 5, 10, 10, 15, 15, 30, 35]
    assert found.output_tokens.tolist() == [0, 0, 1, 2, 1, 2, 3, 3]
    names = chains_of(found)
    first, second = ([names[n] for n in rows] for rows in ((0, 2, 3, 6), (1, 4, 5, 7)))
    assert not {b for chain in first for b in chain} & {b for chain in second for b in chain}
    for copy in (first, second):
        assert [len(chain) for chain in copy] == [2, 3, 3, 2]
        assert copy[0] == copy[2][:2]
        assert copy[0][0] == copy[1][0]
        assert copy[0][1] != copy[1][1]


def test_common_prefixes_are_the_most_used_ones():
    # Half of ten is five: 10 three times, and 11 twice.
    found = superpose(requests_of(), 2, 0.5, 0, Shifts(0.9))
    assert found.arrival_ns.tolist() == [0, 0, 10, 10, 10, 10, 30, 30]
    names = chains_of(found)
    # Of equal times, the first copy's come first.
    ten, eleven = names[0]
    assert names[1] == [ten, eleven]
    assert [chain[0] for chain in names[2:6]] == [ten] * 4
    assert names[3][:2] == names[5][:2] == [ten, eleven]
    assert names[3][2] != names[5][2]
    assert not set(names[6]) & set(names[7])
    assert shows(found.notes[-1], "50.0 %")


def test_all_in_common_is_the_same_requests_again():
    found = superpose(requests_of(), 3, 1.0, 0, Shifts(0.1, 0.2))
    assert len({tuple(chain) for chain in chains_of(found)}) == 4


def test_sessions_waits_and_answers_stay_within_a_copy():
    waits = Waits.of(4, [(2, 0, 7, False), (3, 2, 1, True)], np.array([0, 0, 3, 4]))
    plain = requests_of(
        session_id=np.array([5, -1, 5, 5]), turn=np.array([0, 0, 1, 2]), answered_ns=np.array([3, 12, 13, 31]),
        waits=waits,
    )  # fmt: skip
    found = superpose(plain, 2, 0.0, 10, Shifts(0.5))
    # In order: 0, 0', 1, 2, 1', 2', 3, 3'.
    assert found.session_id.tolist() == [0, 1, -1, 0, -1, 1, 0, 1]
    assert found.turn.tolist() == [0, 0, 0, 1, 0, 1, 2, 2]
    assert found.answered_ns.tolist() == [3, 8, 12, 13, 17, 18, 31, 36]
    assert sorted(zip(found.waits.row.tolist(), found.waits.before.tolist(), strict=True)) == [
        (3, 0), (5, 1), (6, 3), (7, 5),
    ]  # fmt: skip
    assert found.waits.not_before_ns.tolist() == [0, 5, 0, 3, 5, 8, 4, 9]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(2, 5), st.floats(0, 1),
)  # fmt: skip
def test_common_blocks_are_a_share_with_all_their_prefixes(paths, copies, common):
    # A block is named by all that leads to it.
    names = {}
    chains = [
        [names.setdefault(tuple(path[: n + 1]), len(names)) for n in range(len(path))]
        for path in paths
    ]
    plain = requests_of(chains, range(len(chains)))
    found = superpose(plain, copies, common, 100, np.random.default_rng(1))
    assert len(found) == copies * len(chains)
    by_copy = {}
    for chain, number in zip(chains_of(found), found.output_tokens.tolist(), strict=True):
        by_copy.setdefault(number, []).append(chain)
    shared = 0
    for number, each in by_copy.items():
        is_same = [len({chain[at] for chain in each}) == 1 for at in range(len(chains[number]))]
        assert is_same == sorted(is_same, reverse=True)
        shared += sum(is_same)
    assert shared <= common * len(plain.block_ids) + 1e-6


def test_without_blocks_there_is_nothing_to_share():
    plain = Requests(*(np.zeros(2, dtype=np.int64),) * 3, np.zeros(3, dtype=np.int64), np.zeros(0, dtype=np.int64), 0,
                     {}, (), session_id=np.array([0, 1]))  # fmt: skip
    assert superpose(plain, 2, 0.0, 0, Shifts(0.0)).session_id.tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"scale_common.*block ids"):
        superpose(plain, 2, 0.5, 0, Shifts(0.0))


LINE = '{{"timestamp": {0}, "input_length": 1024, "output_length": 8, "hash_ids": [{1}, {2}]}}\n'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("".join(LINE.format(3000 * n, n % 2, 10 + n % 5) for n in range(20)))
    return path


def test_gen_and_size_scale_and_a_seed_gives_the_same_bytes(file, tmp_path):
    given = [
        file,
        "--source",
        "mooncake",
        "--preset",
        "lmcache-disk",
        "--model",
        "tiny-1b",
        "--scale",
        "4",
    ]
    found = []
    for name, common in (("a", "0"), ("b", "0"), ("c", "100%")):
        out = tmp_path / f"{name}.parquet"
        made = run_cli("kvtrace", "gen", *given, "--scale-common", common, "-o", out, "--json")
        found.append((json.loads(made.stdout)["stats"], out.read_bytes()))
    assert [stats["requests"] for stats, _ in found] == [80, 80, 80]
    assert found[0][1] == found[1][1]
    # Seven blocks, of four chunks of 128 tokens... each is new once, or once a copy.
    assert found[0][0]["misses"] == 4 * found[2][0]["misses"]
    sized = run_cli(
        "kvtrace",
        "size",
        *given,
        "--target-hit",
        "1%",
        "--dram",
        "1GiB",
        "--nvme",
        "1GiB",
        "--json",
    )
    assert json.loads(sized.stdout)["chosen"]["lookups"] == found[0][0]["lookups"]
    assert json.loads(sized.stdout)["source"]["shape"] == {"scale": 4}


REFUSED = {
    "none": (["--scale", "0"], "scale(=0) … > 0"),
    "over all": (
        ["--scale", "2", "--scale-common", "120%"],
        "scale common(=1.2) … 0 … 1",
    ),
    "no share": (
        ["--scale", "2", "--scale-common", "some"],
        "--scale-common some: … 80% … 0.8",
    ),
    "of one": (["--scale-common", "20%"], "--scale"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_one_line(file, what, tmp_path):
    options, said = REFUSED[what]
    done = run_cli("kvtrace", "gen", file, *options, "-o", tmp_path / "t.parquet", check=False)
    assert done.returncode == 2
    assert shows(done.stderr.splitlines()[-1], said)
