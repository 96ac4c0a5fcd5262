"""A folder of MLPerf's figures is reported with what they may and may not be taken for, before any
figure.
"""

from __future__ import annotations

import json

from conftest import run_cli

RULE = {"rule": "trials", "reference": "6.3.2.1", "kept": "not kept", "detail": "1, not 3"}


def marked(folder, mark):
    folder.mkdir()
    content = {
        "answer": "v3-8b-stress: 1.64 GB/s of storage",
        "mark": mark,
        "option": "v3-8b-stress",
        "not_claimed": {"device P95": "whole object"},
        "rules": [RULE],
        "clients": [],
    }
    (folder / "mlperf.json").write_text(json.dumps(content))
    return folder


def test_the_mark_comes_before_any_figure(tmp_path) -> None:
    folder = marked(tmp_path / "results", "not a submission: 1 trial of 3")
    lines = run_cli("kvdistill", "report", folder).stdout.splitlines()
    assert lines[1] == "v3-8b-stress: 1.64 GB/s of storage"
    assert lines[2] == "not a submission: 1 trial of 3"
    page = tmp_path / "r.html"
    run_cli("kvdistill", "report", folder, "-o", page)
    text = page.read_text()
    assert "not a submission: 1 trial of 3" in text
    assert "device P95" in text
    assert "v3-8b-stress" in text


def test_what_clients_came_to_together_is_compared_with_nothing(tmp_path) -> None:
    folder = marked(tmp_path / "results", None)
    done = run_cli("kvdistill", "compare", folder, folder, check=False)
    assert done.returncode == 2
    assert "compare" in done.stderr


def test_a_result_that_keeps_the_rules_is_still_no_submission(tmp_path) -> None:
    shown = run_cli("kvdistill", "report", marked(tmp_path / "results", None)).stdout
    assert "mlpstorage" in shown
