from __future__ import annotations

import msgspec
import pytest
from phrases import shows

from kvtrace import __version__
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import Metadata, TierFacts, decode, describe, encode, without_outputs
from kvtrace.core.schema import TRACE


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["gen", "-o", "a.parquet", "--seed", "1"], ["gen", "--seed", "1"]),
        (["gen", "-oa.parquet", "--seed=1"], ["gen", "--seed=1"]),
        (["gen", "--output", "a", "--users", "2"], ["gen", "--users", "2"]),
        (["gen", "--output=a", "--requests-out=b", "x"], ["gen", "x"]),
        (["gen", "--requests-out", "b", "--json", "x"], ["gen", "x"]),
        (["gen", "--force", "--quiet", "x"], ["gen", "x"]),
        (["gen", "--other", "o"], ["gen", "--other", "o"]),
    ],
)
def test_outputs_are_no_part_of_the_command(argv, kept):
    assert without_outputs(argv) == kept


def test_what_is_encoded_is_decoded():
    meta = describe(
        TRACE, "kvtrace", ["kvtrace", "gen", "-o", "x"], {"a": {"b": 1}}, seed=3,
        tiers=[TierFacts("gpu", 5), TierFacts("nvme")],
        notes=["é"], stats={"n": 1}, is_simulated=True,
    )  # fmt: skip
    assert decode(encode(meta), "p") == meta
    assert meta.argv == ["kvtrace", "gen"]
    assert meta.rows is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "metadata"), (b"{", "metadata"), (b"[1]", "metadata"),
        (b'{"schema_version": 1}', "metadata"),
        (b"{}", "None … 1 … 2"),
        (b'{"schema_version": 3, "what": "ever"}', "version 3 … 1 … 2"),
        (b'{"schema_version": true}', "True … 1 … 2"),
    ],
)  # fmt: skip
def test_damaged_metadata_is_named(data, message):
    with pytest.raises(TraceError) as caught:
        decode(data, "t.parquet")
    assert str(caught.value).startswith("t.parquet: ")
    assert shows(str(caught.value), message)


@pytest.mark.parametrize(
    ("stats", "ratio"),
    [
        (None, None), ({}, None), ({"lookups": 8}, None), ({"lookups": 0, "tiers": [{"hits": 0}]}, None),
        ({"lookups": 8, "tiers": [{"hits": 1}, {"hits": 3}]}, 0.5),
        # A merged trace's tier that no cache has: what it answered is not known.
        ({"lookups": 8, "tiers": [{"hits": 1}, {"name": "ckpt"}]}, None),
    ],
)  # fmt: skip
def test_hit_ratio_is_over_all_tiers(stats, ratio):
    assert describe(TRACE, "kvtrace", [], {}, stats=stats).hit_ratio == ratio


def test_metadata_of_a_later_minor_version_may_have_more_fields():
    more = msgspec.json.decode(encode(describe(TRACE, "kvtrace", [], {}))) | {"colour": "blue"}
    assert isinstance(decode(msgspec.json.encode(more), "p"), Metadata)


def test_a_version_that_is_not_said_is_not_ours():
    said = msgspec.json.decode(encode(describe(TRACE, "fromblktrace", [], {})))
    assert decode(msgspec.json.encode(said), "p").version == __version__
    del said["version"]
    assert decode(msgspec.json.encode(said), "p").version == "unknown"


@pytest.mark.parametrize("wrong", [{"capacity_bytes": 2**63}, {"instance_nodes": 2**63}])
def test_facts_of_a_tier_fit_64_bits(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "nvme"} | wrong, TierFacts)
