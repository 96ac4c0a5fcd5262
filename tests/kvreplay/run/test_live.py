"""A run shown while it goes on: what is counted, how it is drawn, and what --metrics serves."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import write_trace
from phrases import shows
from taken import planned

from kvreplay.engine.setting import settle
from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import ERROR, JOURNAL, OK, RowRing
from kvreplay.result.run_tables import _COLUMNS
from kvreplay.run import watch as watching
from kvreplay.run.replay import Replay, replay
from kvreplay.run.watch import (
    BOUNDS_NS,
    COUNTERS,
    GAUGES,
    RESPONSE,
    Watch,
    line_of,
    parse_address,
    serving,
    table_of,
)
from kvtrace.core.app import QUIET
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.native.library import call
from kvtrace.core.native.structs import Structure

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 10**6


def take(watch: Watch, rows: Any) -> None:
    """Let `watch` count `rows`, as the journal does when it keeps them."""
    ring = RowRing(len(rows), 1 << 15)
    ring.ring[: len(rows)], ring.struct.laid = rows, len(rows)
    told = {name: np.empty(len(rows), kind) for name, kind in _COLUMNS.items()}
    call(
        "journal_take",
        ring.address,
        Structure(JOURNAL, "JournalBatch", **told, watched=watch.counters, room=len(rows)),
    )
    watch.note()


def row(i: int, op: str) -> Any:
    return (i * MS, op, 1, "load", i % 4, 0, 8192, None, None, 0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [row(i, "write") for i in range(4)] + [row(4 + i, "read") for i in range(200)]
    return write_trace(tmp_path / "t.parquet", rows)


@pytest.fixture
def watch(trace: Path, tmp_path: Path) -> Watch:
    """All but the last read have ended: each 2 ms after it was due, 1 ms late; one failed."""
    setting = settle(Config(tiers={"cpu": "ram"}, speed=1.0), trace, tmp_path / "run", [])
    rows = planned(setting, outcome=OK)
    rows["submitted_ns"], rows["completed_ns"] = rows["due_ns"] + MS, rows["due_ns"] + 2 * MS
    rows["outcome"][10], rows["completed_ns"][10] = ERROR, -1
    watch = Watch(setting, is_open_loop=True)
    take(watch, rows[:100])
    take(watch, rows[100:203])
    watch.completed, watch.in_flight = 203, lambda: 1
    return watch


def test_what_has_ended_is_counted_by_tier_and_operation(watch: Watch) -> None:
    found = watch.snapshot()
    assert set(found) == {("cpu", "write"), ("cpu", "read")}
    reads = found["cpu", "read"]
    assert (reads.operations, reads.errors, reads.bytes, reads.response_ns) == (
        198,
        1,
        198 * 8192,
        198 * 2 * MS,
    )
    # 2 ms is more than 1.024 and at most 2.048.
    assert reads.buckets.tolist() == [
        198 if bound == 2_048_000 else 0 for bound in (*BOUNDS_NS, None)
    ]
    look = watch.look()
    assert (look.completed, look.in_flight, look.response_p99_ns, look.late_p99_ns) == (
        203,
        1,
        2 * MS,
        MS,
    )
    assert look.share == 203 / 204
    rates = {rate.op: (rate.bytes_per_s, rate.operations_per_s) for rate in look.rates}
    assert rates["read"][0] == pytest.approx(8192 * (rates["read"][1] or 0))


def test_a_look_at_many_operations_keeps_some_of_their_times(trace: Path, tmp_path: Path) -> None:
    setting = settle(Config(tiers={"cpu": "ram"}), trace, tmp_path / "run", [])
    rows = planned(setting, submitted_ns=0, completed_ns=MS, outcome=OK)
    watch = Watch(setting, is_open_loop=False)
    for _ in range(2):
        take(watch, rows.repeat(100))
    assert sum(t.operations for t in watch.snapshot().values()) == 2 * 20_400
    assert watch.look().response_p99_ns == MS
    # A run of millions of operations a second is looked at a hundred times a second.
    assert all(len(times) <= 4096 for *_, times, _late in watch._looks if times is not None)


def test_a_line_and_a_table_say_the_same(watch: Watch) -> None:
    from rich.console import Console

    look = watch.look()
    line = line_of(look, is_open=True)
    assert shows(line, "100%, 203 operations")
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(table_of(look, is_open=True))
    drawn = console.export_text()
    for said in ("cpu", "read", "response p99 2.00 ms", "in flight 1 of 1024", "late p99 1.00 ms"):
        assert said in line
        assert said in drawn
    assert "late" not in line_of(look, is_open=False)
    assert "service p99" in line_of(look, is_open=False)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_quiet_is_quiet_on_threads_too(
    watch: Watch,
    is_quiet: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(watching, "LINE_S", 0.01)
    told = QUIET.set(is_quiet)
    try:
        with watching.live(watch):
            time.sleep(0.1)
    finally:
        QUIET.reset(told)
    assert ("replaying: " in capsys.readouterr().err) is not is_quiet


def test_nothing_known_yet_is_a_dash(trace: Path, tmp_path: Path) -> None:
    setting = settle(Config(tiers={"cpu": "ram"}), trace, tmp_path / "run", [])
    line = line_of(Watch(setting, is_open_loop=False).look(), is_open=False)
    assert "cpu read - - op/s" in line
    assert shows(line, "p99 - … 8")
    assert " left" not in line


def test_an_address_is_loopback_unless_it_says_otherwise() -> None:
    assert parse_address(":9464") == parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("192.0.2.1:80") == ("192.0.2.1", 80)
    assert parse_address("[::1]:80") == ("::1", 80)
    for bad in ("", ":", "here", ":0", ":70000", "9464:"):
        with pytest.raises(ConfigError, match="--metrics"):
            parse_address(bad)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


def served(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        assert "application/openmetrics-text" in answer.headers["Content-Type"]
        found: str = answer.read().decode()
    return found


def test_counters_are_served_as_openmetrics(watch: Watch, port: int) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    with serving(f":{port}") as exporter:
        assert served(port) == "# EOF\n"
        exporter.watch = watch
        families = {family.name: family for family in text_string_to_metric_families(served(port))}
        with (
            pytest.raises(DeviceError, match=rf"127.0.0.1:{port}"),
            serving(f":{port}"),
        ):
            pass
    assert set(families) == {*COUNTERS, *GAUGES, RESPONSE}
    values = {
        (s.name, s.labels.get("op"), s.labels.get("le")): s.value
        for f in families.values()
        for s in f.samples
    }
    assert values["kvreplay_operations_total", "read", None] == 198
    assert values["kvreplay_errors_total", "read", None] == 1
    assert values["kvreplay_bytes_total", "write", None] == 4 * 8192
    assert values["kvreplay_response_seconds_bucket", "read", "0.001024"] == 0
    assert values["kvreplay_response_seconds_bucket", "read", "0.002048"] == 198
    assert values["kvreplay_response_seconds_sum", "read", None] == pytest.approx(0.396)
    assert values["kvreplay_in_flight", None, None] == 1


def test_the_dashboard_asks_for_what_is_exported() -> None:
    text = (Path(__file__).parents[3] / "docs" / "grafana.json").read_text(encoding="utf-8")
    expressions = [
        target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]
    ]
    asked = {name for expression in expressions for name in re.findall(r"kvreplay_\w+", expression)}
    exported = {f"{name}_total" for name in COUNTERS} | set(GAUGES) | {f"{RESPONSE}_bucket"}
    assert asked == exported


def test_a_run_is_watched_from_its_engine_and_its_journal(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    monkeypatch.setattr("kvreplay.result.run_tables._PERIOD_S", 0.01)
    seen: list[Watch] = []
    counted = threading.Event()

    @contextmanager
    def watching(watch: Watch) -> Iterator[None]:
        seen.append(watch)
        yield
        assert watch.in_flight is not None
        assert watch.in_flight() == 0
        counted.set()

    config = Config(tiers={"cpu": "ram"}, speed=1.0)
    finished = replay(Replay(config, trace, tmp_path / "run", [], watching=watching))
    assert counted.is_set()
    (watch,) = seen
    # However seldom the journal looked while the run went on, its last look follows the last
    # operation.
    assert (
        sum(t.operations for t in watch.snapshot().values()) == finished.summary.operations == 204
    )
    assert watch.look().completed > 0
