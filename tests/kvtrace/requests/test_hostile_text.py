"""Every reader of text takes time linear in its input, and bounded memory, whatever it is given."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, run_process

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))

import mutate
import seeds

from kvdistill.formats.formats import Format, ImportOptions
from kvdistill.formats.importing import import_files
from kvtrace.core import text
from kvtrace.core.errors import KvError, TraceError
from kvtrace.core.text import read_bounded, utf8_lines
from kvtrace.requests.registry import SOURCES, read
from kvtrace.requests.reshape import Reshaping

SIZES = [1 << power for power in (17, 18, 19, 20)]
MEASURABLE_S = 0.4
FACTOR = 3.0
PATTERNS = (
    b"11-22 11:22:33 ",
    b"2026-01-01T00:00:00.5Z",
    b"] Received request x",
    b"prompt_token_ids: [0, 0",
    b"conversation_id='",
    b"1, ",
    b"1,",
    b"1\t",
    b"1",
    b"[",
    b"{",
    b'"',
    b"'",
    b"\\",
    b"@a_b[",
    b" ",
    b"\n",
    b"\x01",
)
"""What a line is filled with."""


def request_heads() -> dict[str, tuple[str, bytes]]:
    """Return a file name and a whole file for each source that reads one file of text."""
    files = {
        name: (f"r.{'csv' if name in ('burstgpt', 'azure') else 'jsonl'}", data)
        for name, data in seeds.REQUEST_TEXTS.items()
    }
    for name, path in seeds.ENGINES.items():
        files[name] = (Path(path).name, (seeds.GOLDEN.parent / "engines" / path).read_bytes())
    files["sharegpt"] = ("s.json", mutate.json_of(seeds.SHAREGPT))
    files["agentic"] = files["agentx"] = ("a.json", mutate.json_of(seeds.AGENTIC))
    files["servegen"] = ("chunk-0-trace.csv", seeds.SERVEGEN["chunk-0-trace.csv"])
    return files


def import_heads() -> dict[str, tuple[str, bytes]]:
    """Return a file name and a whole file for each format of text that is imported."""
    return {kind: next(iter(files.items())) for kind, files in seeds.IMPORTS.items()}


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of `call`, which may find its input damaged.

    The cyclic collector is off: it looks at all objects of the tests' process, in steps.
    """
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        with contextlib.suppress(KvError):
            call()
        return time.process_time() - began
    finally:
        gc.enable()


def check_linear(call: Callable[[int], Callable[[], object]]) -> None:
    """Check that twice the input takes less than four times as long, where that can be measured.

    Quadratic time would take four times as long. Another process may have the caches at any
    moment, so what seems to be slow is measured again, in turns, and the fastest of each counts.
    """
    before: float | None = None
    for size in SIZES:
        took = seconds(call(size))
        if before is not None and took > MEASURABLE_S and took > FACTOR * before:
            pairs = [(seconds(call(size // 2)), seconds(call(size))) for _ in range(5)]
            half, whole = (min(times) for times in zip(*pairs, strict=True))
            assert whole <= FACTOR * half, f"{size} bytes: {whole:.3f} s, half of it: {half:.3f} s"
        if took > 10 * MEASURABLE_S:
            return
        before = took


def reader_of(kind: str, folder: Path) -> tuple[Callable[[Path], object], str, bytes]:
    """Return what reads a file of `kind`, its name, and a whole one."""
    if kind in request_heads():
        name, data = request_heads()[kind]
        return (lambda path: read(kind, path, {}, Reshaping(), 1)), name, data
    name, data = import_heads()[kind]

    def import_one(path: Path) -> Any:
        return import_files([path], ImportOptions(Format(kind)), folder / "out", [], is_forced=True)

    return import_one, name, data


def test_every_source_and_format_is_here():
    assert {*request_heads()} == {*SOURCES} - {"requests"}
    assert {*import_heads()} == {*Format} - {Format.BLOCKS}


def check_reader(folder: Path, kind: str, patterns: tuple[bytes, ...]) -> None:
    call, name, whole = reader_of(kind, folder)
    head = whole.splitlines(keepends=True)
    path = folder / name
    for pattern in patterns:

        def of_size(size: int, pattern: bytes = pattern) -> Callable[[], object]:
            filled = pattern * (size // len(pattern))
            # A line of its own, and at the end of a line that begins well.
            path.write_bytes(
                b"".join([*head, filled, b"\n", head[-1].rstrip(b"\n}]"), filled, b"\n"])
            )
            return lambda: call(path)

        check_linear(of_size)


@pytest.mark.parametrize(
    ("kind", "pattern"), [("vllm-log", b"11-22 11:22:33 "), ("fio-log", b"1, "), ("servegen", b"1")]
)
def test_known_hostile_lines_take_linear_time(tmp_path, kind, pattern):
    check_reader(tmp_path, kind, (pattern,))


@pytest.mark.full
@pytest.mark.parametrize("kind", [*request_heads(), *import_heads()])
def test_twice_a_hostile_line_takes_twice_the_time(tmp_path, kind):
    check_reader(tmp_path, kind, PATTERNS)


LINES = ("mooncake", "otel", "vllm-log", "fio-log")
"""Readers of lines, of documents, of text by patterns and of a table; the others with --full."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in LINES else pytest.mark.full)
        for kind in [*request_heads(), *import_heads()]
    ],
)
def test_twice_the_lines_take_twice_the_time(tmp_path, kind):
    call, name, whole = reader_of(kind, tmp_path)
    path = tmp_path / name

    def of_size(size: int) -> Callable[[], object]:
        path.write_bytes(whole * max(1, size // len(whole) // 4))
        return lambda: call(path)

    check_linear(of_size)


def test_a_crowded_line_counts_as_one_with_a_field_too_many(tmp_path):
    lines = [f"{i}, {1000 + i}, 0, 4096, {i * 4096}" for i in range(5)]
    counts = []
    for number, fields in enumerate((6, 7, 20, 50_000)):
        path = tmp_path / f"j{number}_lat.1.log"
        crowded = ", ".join(["1"] * fields)
        path.write_text("\n".join([*lines[:3], crowded, *lines[3:], ""]))
        account = import_files([path], ImportOptions(Format.FIO_LOG), tmp_path / f"out{number}", [])
        counts.append((account.rows_read, account.rows_kept, account.left_out))
        assert "line 4" in next(iter(account.examples.values()))
    assert counts == [(6, 5, {"columns do not match the format": 1})] * 4


def test_a_line_longer_than_the_limit_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LINE_BYTES", 1000)
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"short\n" + b"x" * 1001 + b"\n")
    with pytest.raises(TraceError) as error:
        list(utf8_lines(path))
    assert error.value.row == 2
    path.write_bytes(b"short\n" + b"x" * 999 + b"\n")
    assert len(list(utf8_lines(path))) == 2


def test_a_log_line_longer_than_the_limit_is_one_error(tmp_path):
    path = tmp_path / "j_lat.1.log"
    path.write_bytes(b"1, 2, 0, 4096\n" + b"x" * (2 << 20))
    with pytest.raises(TraceError, match="longer than 1 MiB") as error:
        import_files([path], ImportOptions(Format.FIO_LOG), tmp_path / "out", [])
    assert error.value.row == 1


def test_what_is_read_at_once_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "DOCUMENT_BYTES", (1 << 17) - 1)
    path = tmp_path / "t.json"
    path.write_bytes(b" " * (1 << 17))
    with pytest.raises(TraceError, match="larger than"):
        read_bounded(path)
    path.write_bytes(b" " * ((1 << 17) - 1))
    assert len(read_bounded(path)) == (1 << 17) - 1
    with pytest.raises(TraceError, match="regular"):
        read_bounded(Path("/dev/zero"))


def hostile_file(kind: str, folder: Path, name: str) -> Path:
    """Return a path called `name` in `folder`: a link to a device, a hole, or a pipe."""
    path = folder / name
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "hole":
        with path.open("wb") as file:
            file.truncate(100 << 30)
    else:
        os.mkfifo(path)
    return path


@pytest.mark.parametrize("what", ["device", "hole", "pipe"])
@pytest.mark.parametrize("program", ["kvtrace", "kvdistill"])
def test_endless_input_is_refused_with_little_memory(tmp_path, program, what):
    heads = request_heads() if program == "kvtrace" else import_heads()
    draw = random.Random(program + what)  # noqa: S311 - the same in every run
    for kind in draw.sample(sorted(heads), 5):
        folder = tmp_path / kind
        folder.mkdir()
        path = hostile_file(what, folder, heads[kind][0])
        words = (
            ["import", path, "--source", kind] if program == "kvtrace" else ["import", kind, path]
        )
        done = run_process(
            program,
            *words,
            "-o",
            folder / "o.parquet",
            check=False,
            timeout=20,
            preexec_fn=limit_memory,
        )
        assert done.returncode == 3, (kind, done.stderr)
        assert len(done.stderr.splitlines()) == 1, done.stderr


def limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
