"""Whether the probes can run on this machine, and if not, in one line, why not and what mends it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kvreplay.probes.libbpf import library
from kvtrace.core.errors import ProbeUnavailable

BTF = Path("/sys/kernel/btf/vmlinux")
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


def check_root() -> None:
    """Raise ProbeUnavailable unless this process may load programs into the kernel."""
    if sys.platform != "linux":
        raise ProbeUnavailable(f"the probes need Linux, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise ProbeUnavailable("needs root, to load programs into the kernel: run it with sudo, for example")


def check_available() -> None:
    """Raise ProbeUnavailable if there is no root, BTF, tracefs or libbpf, or the kernel is locked down."""
    check_root()
    if not BTF.exists():
        raise ProbeUnavailable(f"no {BTF}: use a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions' are")
    check_lockdown(_LOCKDOWN)
    tracefs()
    library()


def check_lockdown(path: Path) -> None:
    """Raise ProbeUnavailable if `path` says that the kernel lets nobody read its memory."""
    if path.exists() and "[confidentiality]" in path.read_text(encoding="utf-8"):
        raise ProbeUnavailable("the kernel is locked down (confidentiality): boot with lockdown=integrity or none")


def tracefs() -> Path:
    """Return where the kernel's tracepoints are listed; ProbeUnavailable if they are not."""
    for path in TRACEFS:
        if (path / "events" / "block").is_dir():
            return path
    raise ProbeUnavailable("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")
