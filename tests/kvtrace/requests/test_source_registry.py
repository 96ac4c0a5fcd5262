"""Sources by name: which options they take, and how files are known without being told."""

from __future__ import annotations

import bz2
import gzip

import numpy as np
import pytest
from conftest import TRACES

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.requests.registry import SOURCES, detect, read
from kvtrace.requests.reshape import Reshaping
from kvtrace.studies.gen_options import SourceArguments

AGENTIC = (
    '{"id": "a", "block_size": 64, "requests": [{"t": 0, "type": "n", "in": 64, "out": 1,'
    ' "hash_ids": [1]}]}'
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n0,m,1,1,2,l\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,1,1\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [3]}\n'
BAILIAN = '{"chat_id": 1, "timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [3]}\n'
SHAREGPT = '[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]'
FILES = {
    "m.jsonl": MOONCAKE, "b.jsonl": BAILIAN, "a.csv": AZURE, "s.json": SHAREGPT, "one/t.json": AGENTIC,
    "two/1.csv": BURST, "two/2.csv": "\ufeff" + BURST,
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("name", "kind"), [
    ("m.jsonl", "mooncake"), ("b.jsonl", "bailian"), ("a.csv", "azure"), ("s.json", "sharegpt"),
    ("one/t.json", "agentic"), ("one", "agentic"), ("two/1.csv", "burstgpt"), ("two", "burstgpt"),
    ("two/*.csv", "burstgpt"), ("two/2.csv", "burstgpt"),
])  # fmt: skip
def test_files_are_known_and_read(files, name, kind):
    assert detect(files / name) == kind
    found = read(kind, files / name, {}, Reshaping(), seed=1)
    assert found.origin["kind"] == kind
    assert len(found) == (2 if name in ("two", "two/*.csv") else 1)


@pytest.mark.parametrize(
    "text", ["", "hello\n", "a,b,c\n1,2,3\n", "[1, 2]", '{"a": 1}', '{"timestamp": 1}']
)
def test_what_is_not_certain_is_asked_for(tmp_path, text):
    (tmp_path / "x").write_text(text, encoding="utf-8")
    for path in (tmp_path / "x", tmp_path):
        with pytest.raises(
            ConfigError,
            match=r"source.*mooncake",
        ):
            detect(path)


def test_a_directory_of_both_kinds_is_asked_for(files):
    (files / "two" / "t.json").write_text(AGENTIC, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"two .*source"):
        detect(files / "two")


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(TraceError, match=r"none.jsonl"):
        detect(tmp_path / "none.jsonl")


def test_options_are_for_their_sources_alone(files):
    with pytest.raises(
        ConfigError,
        match=r"request_rate.*source=.*mooncake",
    ):
        read("mooncake", files / "m.jsonl", {"request_rate_per_s": 1}, Reshaping(), 1)
    for wrong in (0, -16):
        with pytest.raises(ConfigError, match=rf"block_tokens={wrong}:.*> 0"):
            read("mooncake", files / "m.jsonl", {"block_tokens": wrong}, Reshaping(), 1)
    with pytest.raises(ConfigError, match=r"'web'.*mooncake"):
        read("web", files / "m.jsonl", {}, Reshaping(), 1)
    found = read(
        "sharegpt",
        files / "s.json",
        {"tokenizer": "characters", "request_rate_per_s": 5},
        Reshaping(),
        1,
    )
    assert found.origin["request_rate_per_s"] == 5


def test_every_option_of_a_source_is_one_of_the_command_line():
    names = {
        name.removesuffix("_per_s").removesuffix("_ns")
        for source in SOURCES.values()
        for name in source.options
    }
    assert names - {"rng", "kind"} <= set(SourceArguments.__slots__)


def test_jitter_and_draws_come_from_the_seed(files):
    many = files / "many.jsonl"
    many.write_text(MOONCAKE * 50, encoding="utf-8")
    one, same, other = (
        read("mooncake", many, {}, Reshaping(jitter_ns=10**9), seed).arrival_ns
        for seed in (1, 1, 2)
    )
    assert one.tolist() == same.tolist()
    assert one.tolist() != other.tolist()
    assert (np.diff(one) >= 0).all()


@pytest.mark.traces
@pytest.mark.parametrize(("name", "kind"), [
    ("mooncake_conversation.jsonl", "mooncake"), ("mooncake_arxiv_first1000.jsonl", "mooncake"),
    ("agentic", "agentic"), ("azure_2023_code.csv", "azure"), ("burstgpt_sample54.csv", "burstgpt"),
])  # fmt: skip
def test_real_files_are_known(name, kind):
    assert detect(TRACES / name) == kind


@pytest.mark.parametrize(
    ("packed", "program"), [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2")]
)
@pytest.mark.parametrize("asked", [detect, lambda path: read("mooncake", path, {}, Reshaping(), 1)])
def test_a_compressed_file_is_told_from_a_damaged_one(tmp_path, packed, program, asked):
    path = tmp_path / "m.jsonl.packed"
    path.write_bytes(packed(MOONCAKE.encode()))
    with pytest.raises(TraceError, match=rf"{program} m.jsonl.packed"):
        asked(path)
