"""Which settings of a comparison are read first."""

from __future__ import annotations

from kvdistill.report.compare import ordered_settings, split_settings


def test_what_changes_a_run_comes_first_and_the_host_last() -> None:
    found = ordered_settings(
        {
            "host.kernel": ["6.1", "6.2"],
            "version": ["1", "2"],
            "memory": [1, 2],
            "queue_depth": [8, 16],
            "tiers.nvme": ["/mnt/a", "/mnt/b"],
        }
    )
    assert list(found) == ["tiers.nvme", "queue_depth", "memory", "host.kernel", "version"]


def test_what_one_side_does_not_know_is_no_difference_to_read_first() -> None:
    settings = {
        "tiers.cpu": ["ram", None],
        "queue_depth": [8, 16],
        "limit": [None, "1GiB"],
        "host.numa": [None, "2 nodes"],
    }
    differing, one_sided = split_settings(settings)
    assert list(differing) == ["tiers.cpu", "queue_depth", "limit"]
    assert list(one_sided) == ["host.numa"]


def test_a_terminal_counts_what_a_page_lists(capsys) -> None:
    from kvdistill.report.compare import _one_sided
    from kvtrace.core.document.document import Document
    from kvtrace.core.document.page import html_page
    from kvtrace.core.document.terminal import show_documents

    document = Document(name="d", headline="h", chapters=[_one_sided({"host.numa": [None, "2 nodes"]}, ["[0]", "[1]"])])
    show_documents([document])
    shown = capsys.readouterr().out
    assert "1 setting that only some sides have" in shown
    assert "host.numa" not in shown
    assert "host.numa" in html_page([document], "test")
