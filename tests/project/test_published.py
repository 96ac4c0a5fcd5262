"""Numbers that others published.

The page is what the stored figures make, and rows that run here still make them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TRACES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import published  # noqa: E402 - beside the page that it writes

ROWS = {row.name: row for row in published.read().row}
HERE = {
    "conversation_trace.jsonl": "mooncake_conversation.jsonl",
    "mooncake_first1000.jsonl": "mooncake_arxiv_first1000.jsonl",
    "AzureLLMInferenceTrace_code.csv": "azure_2023_code.csv",
}
"""What of its files is among the traces that tests find."""


def test_the_page_is_what_its_stored_figures_make():
    made = published.page(published.read(), published.read_results())
    assert (ROOT / "docs" / "published.md").read_text(encoding="utf-8") == made


def test_every_row_has_a_source_a_command_and_a_verdict():
    assert len(ROWS) >= 10
    results = published.read_results()
    for name, row in ROWS.items():
        assert "](https://" in row.source.format(**published.read().sources), name
        assert all(line.split()[0] in ("kvtrace", "kvdistill", "head") for line in row.commands), (
            name
        )
        assert published.verdict(row, results.rows[name].ours).startswith(("equal", "differs: ")), (
            name
        )
    assert all(
        "](https://" in one.source.format(**published.read().sources)
        for one in published.read().lacked
    )


def test_a_difference_needs_a_reason_and_equality_none():
    row = ROWS["conversation: size"]
    with pytest.raises(SystemExit, match="`why`"):
        published.verdict(row, ["1"])
    with pytest.raises(SystemExit, match="`why`"):
        published.verdict(ROWS["bytes of 64K tokens: MinIO"], ["20.5 GB"])


def check(data: Path) -> subprocess.CompletedProcess[str]:
    """Run the rows whose files are in `data`, as `make published` does, and write nothing."""
    command = [sys.executable, "docs/published.py", str(data), "--check"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_without_files_only_models_run_and_the_rest_is_named(tmp_path):
    done = check(tmp_path)
    assert (done.returncode, len(done.stdout.splitlines()) + len(done.stderr.splitlines())) == (
        0,
        len(ROWS),
    ), done.stderr
    assert "11.12 GiB" in done.stdout
    assert f"{tmp_path}/kv-cache-tester/traces" in done.stderr


@pytest.mark.full
@pytest.mark.traces
def test_rows_of_files_that_are_here_make_the_stored_figures(tmp_path):
    for name, ours in HERE.items():
        (tmp_path / name).symlink_to(TRACES / ours)
    done = check(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "3.6 %; 4.5 %; 4.5 %; 5.6 %; 18.8 %; 35.6 %; 39.8 %" in done.stdout
    not_run = [line.split(" is not there")[0].rsplit("/")[-1] for line in done.stderr.splitlines()]
    assert set(not_run) == {"synthetic_trace.jsonl", "traces"}
