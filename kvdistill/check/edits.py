"""Changes to the text of a job that a check makes for itself: more logs, or no device."""

from __future__ import annotations


def on_null(job: str) -> str:
    """Return `job` for fio's null engine, which needs no file and does no I/O."""
    lines = [line for line in job.splitlines() if line != "allow_file_create=0"]
    # One at a time, which the null engine completes at once: what is not reaped at the end is in no log.
    told = {"ioengine": "ioengine=null", "iodepth": "iodepth=1"}
    return "\n".join(told.get(line.partition("=")[0], line) for line in lines) + "\n"


def with_options(job: str, per_job: str, shared: list[str]) -> str:
    """Return `job` with `per_job` set in each section to a name of its own, and `shared` in the first."""
    lines = []
    for line in job.splitlines():
        lines.append(line)
        if line == "[global]":
            lines += shared
        elif line.startswith("["):
            lines.append(f"{per_job}={line[1:-1]}" + (".drawn" if per_job == "write_iolog" else ""))
    return "\n".join(lines) + "\n"
