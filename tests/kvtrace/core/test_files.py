from __future__ import annotations

import os

import pytest

from kvtrace.core.errors import DeviceError
from kvtrace.core.files import aside, write_text


def names(directory):
    return sorted(p.name for p in directory.iterdir())


def test_the_name_appears_when_all_is_written(tmp_path):
    with aside(tmp_path / "a") as temporary:
        temporary.write_text("x")
        assert temporary.parent == tmp_path
        assert names(tmp_path) == [temporary.name]
    assert names(tmp_path) == ["a"]
    write_text(tmp_path / "a", "é")
    assert (tmp_path / "a").read_bytes() == "é".encode()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_a_failure(tmp_path, error):
    (tmp_path / "a").write_text("old")

    def fail():
        with aside(tmp_path / "a") as temporary:
            temporary.write_text("new")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_refusal_of_the_disk_is_named(tmp_path):
    def fail():
        with aside(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise OSError(28, os.strerror(28))

    with pytest.raises(DeviceError, match="/a: No space left on device"):
        fail()
    assert names(tmp_path) == []


def test_targets_that_cannot_be_are_refused_before_any_work(tmp_path):
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, message in (
        ("d", "directory"),
        ("none/a", "none:"),
        ("fifo", "regular"),
        ("/dev/null", "regular"),
    ):
        with pytest.raises(DeviceError, match=message), aside(tmp_path / name):
            raise AssertionError
