"""Where the probes cannot run, their tests skip and say why."""

from __future__ import annotations

import os

import pytest

from kvreplay.probes.available import check_available
from kvtrace.core.errors import ProbeUnavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [i for i in items if "bcc" in i.keywords or "root" in i.keywords]
    if not marked:
        return
    reason = None
    try:
        check_available()
    except ProbeUnavailable as error:
        reason = str(error)
    for item in marked:
        if "bcc" in item.keywords and reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif "root" in item.keywords and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))
