"""`kvreplay mlperf --mpi`: a client a rank, begun together, combined by the benchmark's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from phrases import shows
from ranks import start_ranks

pytestmark = [pytest.mark.mpi, pytest.mark.full]
TIMEOUT_S = 600
"""Of a hang: the machine may be busy."""


def test_two_clients_run_an_option_and_combine_their_results(tmp_path: Path) -> None:
    drive, output = tmp_path / "drive", tmp_path / "out"
    drive.mkdir()
    short = (
        "--duration",
        "1s",
        "--trials",
        "2",
        "--capacity",
        "3GiB",
        "--queue-depth",
        "16",
        "--break-rules",
    )
    arguments = ("mlperf", "v3-8b", "--mpi", "--tier", f"nvme={drive}", "-o", output, *short)
    process = start_ranks(2, *arguments)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert stdout.startswith("v3-8b-stress: ")
    assert shows(stdout.splitlines()[0], "2 trials of 2 ranks")
    whole = json.loads((output / "mlperf.json").read_text())
    each = [
        json.loads((output / f"rank-{rank:04d}" / "mlperf.json").read_text()) for rank in range(2)
    ]
    # Each client has requests of its own.
    assert [of["clients"][0]["seed"] for of in each] == [42, 43]
    assert [client["seed"] for client in whole["clients"]] == [42, 43]
    assert whole["aggregated"]["rank_count"] == 2
    # An option's objects are large: on a slow disk a second may not be enough for one of each kind.
    for name in ("aggregated_write_bandwidth_gbps", "aggregated_read_bandwidth_gbps"):
        known = [of["aggregated"][name] for of in each]
        assert whole["aggregated"][name] == (None if None in known else pytest.approx(sum(known)))
    rules = {rule["rule"]: rule["kept"] for rule in whole["rules"]}
    assert rules["each client has its own rank"] == rules["ranks ran at the same time"] == "kept"
    for trial in (1, 2):
        runs = [
            json.loads(
                (output / f"rank-{rank:04d}" / "trials" / f"trial-{trial}" / "run.json").read_text()
            )
            for rank in range(2)
        ]
        assert [run["status"] for run in runs] == ["complete"] * 2
        assert runs[0]["trace"]["metadata"]["seed"] != runs[1]["trace"]["metadata"]["seed"]
    assert not any(drive.iterdir())
