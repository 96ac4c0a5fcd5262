"""A wrong argument of the library names the right one."""

import inspect

import pytest

import kvdistill
import kvreplay
import kvtrace as kt
from kvtrace.core.errors import ConfigError

PUBLIC = {
    f"{package.__name__}.{name}": function
    for package in (kt, kvreplay, kvdistill)
    for name in package.__all__
    if inspect.isfunction(function := getattr(package, name))
    and hasattr(function, "__wrapped__")
    and not inspect.isgeneratorfunction(inspect.unwrap(function))
}


@pytest.mark.parametrize(("function", "wrong", "right"), [
    (kt.simulate, "limit", "max_requests"),
    (kt.simulate, "tp", "tensor_parallel"),
    (kt.simulate, "set", "knobs"),
    (kt.simulate, "event", "events"),
    (kt.simulate, "output", "path"),
    (kt.size, "price", "prices"),
    (kt.size, "dram", "capacities"),
    (kt.break_even, "tokens", "prefix_tokens"),
    (kt.break_even, "store", "stores"),
    (kvreplay.replay, "tier", "tiers"),
    (kvreplay.replay, "force", "overwrite"),
    (kvreplay.replay, "keep", "keep_files"),
    (kvreplay.replay, "queuedepth", "queue_depth"),
])  # fmt: skip
def test_the_name_of_an_option_gets_that_of_the_argument(function, wrong, right):
    with pytest.raises(TypeError, match=rf"'{wrong}'; use {right}$"):
        function(**{wrong: 1})


def test_options_of_sources_are_no_wrong_arguments(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text("{}")
    with pytest.raises(TypeError, match=r"'limit'; use max_requests$"):
        kt.read_requests(file, limit=5)
    with pytest.raises(ConfigError):  # Of another source.
        kt.read_requests(file, source="mooncake", request_rate_per_s=2.0)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_names_its_arguments(name):
    assert len(PUBLIC) > 20
    with pytest.raises(TypeError) as error:
        PUBLIC[name](no_such_word=1)
    assert str(error.value).endswith(", ".join(inspect.signature(PUBLIC[name]).parameters))
