"""run.json: read as it was written, and refused in one line where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_files import figures, run_file, summary

from kvtrace.core.errors import TraceError
from kvtrace.core.files import write_json
from kvtrace.core.run.run_file import find_run, read_run, seal

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "house" / "run" / "run.json"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    run = run_file(summary([figures(3.5)]), config={"queue_depth": 8})
    write_json(tmp_path / "run.json", run)
    assert find_run(tmp_path) == read_run(tmp_path) == run


def test_a_run_of_kvreplay_is_the_same_bytes_when_written_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(GOLDEN.read_bytes())
    write_json(tmp_path / "run.json", read_run(tmp_path))
    written, golden = ((tmp_path / "run.json").read_text(), GOLDEN.read_text())
    # What run.json has gained since is null for an older run; nothing else is added, lost or put
    # elsewhere.
    assert json.dumps(known(json.loads(written), json.loads(golden))) == json.dumps(
        json.loads(golden)
    )


def known(found: Any, golden: Any) -> Any:
    """Return `found` without the nulls that `golden` does not have."""
    if isinstance(golden, dict):
        assert {key: found[key] for key in found.keys() - golden.keys()} == dict.fromkeys(
            found.keys() - golden.keys()
        )
        return {key: known(value, golden[key]) for key, value in found.items() if key in golden}
    if isinstance(golden, list):
        return [known(value, of) for value, of in zip(found, golden, strict=True)]
    return found


def test_a_changed_figure_is_seen(tmp_path: Path) -> None:
    run = run_file(summary([figures(3.5)]), config={"queue_depth": 8})
    file = tmp_path / "run.json"
    write_json(file, seal(run))
    assert read_run(tmp_path) == seal(run)
    written = file.read_text()
    for before, after in (
        ("3.5", "3.6"),
        ('"queue_depth": 8', '"queue_depth": 9'),
        ('"program"', '"progran"'),
    ):
        assert before in written
        file.write_text(written.replace(before, after, 1))
        with pytest.raises(
            TraceError,
            match=r"run.json: .*(damaged|version)",
        ):
            read_run(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[1", b"[" * 100_000, b'{"program": "\xff"}', b'{"program": 1}', b"", b"null"],
)
def test_what_is_damaged_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(TraceError, match=r"damaged|version") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"host": {"kernel": 5}}, {"host": {"cpus": -1}}, {"tiers": {"nvme": {"drives": 3}}}, {"window": "all"},
        {"summary": {"verdict": 1}},
    ],
)  # fmt: skip
def test_text_where_numbers_belong_is_refused_in_one_line(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    content = json.loads((GOLDEN).read_text(encoding="utf-8"))
    (tmp_path / "run.json").write_text(json.dumps(content | changed), encoding="utf-8")
    with pytest.raises(TraceError, match=r"run\.json, column .*version"):
        read_run(tmp_path)


def test_no_run_is_none_and_no_file_is_an_error(tmp_path: Path) -> None:
    assert find_run(tmp_path) is None
    with pytest.raises(TraceError, match=r"run.json"):
        read_run(tmp_path)
