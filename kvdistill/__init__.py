"""Make fio jobs and reports from KV-cache traces and measurements.

    profile = kvdistill.distil("trace.parquet", tier="nvme")
    jobs = kvdistill.fio_jobs(profile)
    jobs.write("jobs/")
    db = kvdistill.connect("trace.parquet", "run/")
    kvdistill.report("run/").write("report.html")

Only these names are public. Each is imported at its first use, because the libraries beneath take
long to import. Errors are the classes of `kvtrace.core.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvdistill.api import distil, fio_jobs
    from kvdistill.formats.formats import Account, Format
    from kvdistill.import_api import import_file
    from kvdistill.jobs.check import Closeness
    from kvdistill.jobs.fio_jobs import FioJobs, WrittenJobs
    from kvdistill.jobs.job import FioMode, JobOptions
    from kvdistill.profile.profile import Profile
    from kvdistill.queries.sql import NamedQuery, Shell
    from kvdistill.query_api import connect, named_queries, open_shell, run_query
    from kvdistill.report_api import ComparedSides, compare, report
    from kvdistill.reports.output import Reports
    from kvdistill.store_api import WrittenStoreJobs, sai3, warp

__all__ = [
    "Account",
    "Closeness",
    "ComparedSides",
    "FioJobs",
    "FioMode",
    "Format",
    "JobOptions",
    "NamedQuery",
    "Profile",
    "Reports",
    "Shell",
    "WrittenJobs",
    "WrittenStoreJobs",
    "compare",
    "connect",
    "distil",
    "fio_jobs",
    "import_file",
    "named_queries",
    "open_shell",
    "report",
    "run_query",
    "sai3",
    "warp",
]

_MODULES = {
    "Account": "kvdistill.formats.formats",
    "Closeness": "kvdistill.jobs.check",
    "ComparedSides": "kvdistill.report_api",
    "FioJobs": "kvdistill.jobs.fio_jobs",
    "FioMode": "kvdistill.jobs.job",
    "Format": "kvdistill.formats.formats",
    "JobOptions": "kvdistill.jobs.job",
    "NamedQuery": "kvdistill.queries.sql",
    "Profile": "kvdistill.profile.profile",
    "Reports": "kvdistill.reports.output",
    "Shell": "kvdistill.queries.sql",
    "WrittenJobs": "kvdistill.jobs.fio_jobs",
    "WrittenStoreJobs": "kvdistill.store_api",
    "compare": "kvdistill.report_api",
    "connect": "kvdistill.query_api",
    "distil": "kvdistill.api",
    "fio_jobs": "kvdistill.api",
    "import_file": "kvdistill.import_api",
    "named_queries": "kvdistill.query_api",
    "open_shell": "kvdistill.query_api",
    "report": "kvdistill.report_api",
    "run_query": "kvdistill.query_api",
    "sai3": "kvdistill.store_api",
    "warp": "kvdistill.store_api",
}
"""The module of each public name."""


def __getattr__(name: str) -> object:
    """Return the public object called `name`, imported now."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
