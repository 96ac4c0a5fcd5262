"""run.json: read as it was written, and refused in one line where it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import figures, run_file, summary

from kvtrace.core.errors import TraceError
from kvtrace.core.run.run_file import find_run, read_run, write_run

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "house" / "run" / "run.json"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    run = run_file(summary([figures(3.5)]), config={"queue_depth": 8})
    write_run(tmp_path, run)
    assert find_run(tmp_path) == read_run(tmp_path) == run


def test_a_run_of_kvreplay_is_the_same_bytes_when_written_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(GOLDEN.read_bytes())
    write_run(tmp_path, read_run(tmp_path))
    assert (tmp_path / "run.json").read_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize(
    "content", [b"{}", b"[1", b"[" * 100_000, b'{"program": "\xff"}', b'{"program": 1}', b"", b"null"]
)
def test_what_is_damaged_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(TraceError, match=r"damaged|not of this version") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_run_is_none_and_no_file_is_an_error(tmp_path: Path) -> None:
    assert find_run(tmp_path) is None
    with pytest.raises(TraceError, match="No such file"):
        read_run(tmp_path)
