"""`kvreplay run --probes`.

What the block layer did for a run lies beside the run, or the run says why not.
"""

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import run_cli, write_trace
from phrases import shows

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvtrace.core.errors import ConfigError
from kvtrace.core.run import run_file
from kvtrace.core.run.run_file import ProbesNote

MIB = 1 << 20
ROWS = [
    (0, "write", 2, "prefill", 1, 0, 3 * MIB, 1, 0, 0),
    (1, "write", 2, "prefill", 2, 0, 5 * MIB, 1, 0, 0),
    (2, "read", 2, "decode", 1, 0, 3 * MIB, 2, 0, 0),
    (3, "read", 2, "decode", 2, 0, 5 * MIB, 2, 0, 0),
]


@pytest.mark.root
@pytest.mark.bpf
def test_a_runs_block_requests_are_its_operations_bytes(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    (tmp_path / "scratch").mkdir()
    done = run_cli(
        "kvreplay",
        "run",
        trace,
        "--tier",
        f"nvme={tmp_path / 'scratch'}",
        "--probes",
        "-o",
        tmp_path / "run",
        "--json",
    )
    facts = json.loads(done.stdout)["probes"]
    if not facts["devices"]:
        pytest.skip("the temporary directory does not lie on a disk")
    assert (facts["is_measured"], facts["reason"]) == (True, None)
    assert facts["start_ns"] < 0
    ops = pq.read_table(tmp_path / "run" / "ops.parquet").to_pylist()
    blocks = pq.read_table(tmp_path / "run" / "blocks.parquet").to_pylist()
    assert len(blocks) == facts["event_rows"]
    for op, rwbs in (("write", "WS"), ("read", "RS")):
        mine, rows = [o for o in ops if o["op"] == op], [b for b in blocks if b["rwbs"] == rwbs]
        assert sum(b["bytes"] for b in rows) == sum(o["io_bytes"] for o in mine) == 8 * MIB
        # On the run's clock, every request lies within the operations that made it.
        assert min(o["submitted_ns"] for o in mine) <= min(b["insert_ns"] for b in rows)
        ends = [b["complete_ns"] for b in rows if b["complete_ns"] is not None]
        assert max(ends) <= max(o["completed_ns"] for o in mine)
    probe = json.loads((tmp_path / "run" / "probe.json").read_text())
    assert {
        c["kind"]: c["bytes"] for c in probe["application"]["calls"] if c["call"] == "io_uring"
    }["read"] == 8 * MIB


@pytest.mark.full
@pytest.mark.root
@pytest.mark.bpf
def test_parts_of_an_operation_reach_the_device_as_they_are(tmp_path):
    """Several in one submission would be merged, up to the longest request of the device."""
    rows = [(i, "read", 2, "decode", i, 0, 8 * MIB, i, 0, 0) for i in range(8)]
    trace, target = write_trace(tmp_path / "t.parquet", rows), tmp_path / "nvme.dat"
    more = (
        "--probes",
        "--io-bytes",
        "256KiB",
        "--queue-depth",
        "32",
        "--as-fast-as-possible",
        "--json",
    )
    for number in range(3):
        out = tmp_path / f"run{number}"
        facts = json.loads(
            run_cli("kvreplay", "run", trace, "--tier", f"nvme={target}", "-o", out, *more).stdout
        )
        if not facts["probes"]["devices"]:
            pytest.skip("the temporary directory does not lie on a disk")
        rows = [
            b["bytes"]
            for b in pq.read_table(out / "blocks.parquet").to_pylist()
            if b["rwbs"] == "RS"
        ]
        if (
            rows == [256 << 10] * 256
        ):  # where the disk is busy with others' I/O the scheduler merges what waits for it
            return
    assert rows == [256 << 10] * 256


def _replay(tmp_path, **config):
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    (tmp_path / "scratch").mkdir(exist_ok=True)
    wanted = Config(tiers={"nvme": str(tmp_path / "scratch")}, is_probed=True, **config)
    return replay(Replay(wanted, trace, tmp_path / "run", ["kvreplay", "run"], is_forced=True)).run


def test_a_run_goes_on_without_probes_and_says_why(tmp_path, monkeypatch, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"program": "kvreplay"}')
    (tmp_path / "run" / "blocks.parquet").write_text("of an earlier run")
    said = "import sys; sys.exit('kvreplay: error: no libbpf.so.1: apt-get install libbpf1')"
    monkeypatch.setattr(run_file, "build_argv", lambda *_: [sys.executable, "-c", said])
    run = _replay(tmp_path)
    reason = "no libbpf.so.1: apt-get install libbpf1"
    assert run.status == "complete"
    assert run.probes == ProbesNote(is_measured=False, reason=reason)
    assert shows(run.notes, f"{reason}")
    (picked,) = re.findall(
        r"grep -E '(.+probes.+)' ", (Path(__file__).parents[3] / "docs/demo.sh").read_text()
    )
    (note,) = (note for note in run.notes if reason in note)
    assert re.match(picked, f"note: {note}"), "make demo shows this note"
    assert f"{reason}" in capfd.readouterr().err
    assert not {"probe.json", "blocks.parquet"} & {p.name for p in (tmp_path / "run").iterdir()}
    assert {p.name for p in tmp_path.iterdir()} == {
        "t.parquet",
        "t.objects.parquet",
        "scratch",
        "run",
    }


def test_probes_that_die_on_the_way_are_left_out(tmp_path, monkeypatch):
    died = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "print('probes attached', file=sys.stderr, flush=True); sys.exit('kvreplay: error: gone')"
    )
    monkeypatch.setattr(run_file, "build_argv", lambda *_: [sys.executable, "-c", died])
    assert _replay(tmp_path).probes == ProbesNote(is_measured=False, reason="gone")


def test_a_program_that_does_not_start_leaves_the_probes_out(tmp_path, monkeypatch):
    monkeypatch.setattr(run_file, "build_argv", lambda *_: ["/nonexistent/python"])
    reason = "/nonexistent/python"
    probes = _replay(tmp_path).probes
    assert shows(probes.reason, reason)
    assert probes == ProbesNote(is_measured=False, reason=probes.reason)


def test_histograms_only_needs_probes(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    with pytest.raises(ConfigError, match=r"is_histograms_only.*probes"):
        replay(
            Replay(
                Config(tiers={"nvme": "null"}, is_histograms_only=True), trace, tmp_path / "run", []
            )
        )
